/*
 * Prefixes: full pages that another session of the principal has, found by their chain keys.
 *
 * A key names the tokens of a page and all before them, so whoever asks for a page's key may have
 * that page and, since it stands in its owner's table behind the ones before it, all of those too. A
 * table of hashes leads from a key to the page, and from the page to its *holder*, one of its owners;
 * the prefix is shared out of the holder's table from its first unit on. What a session has itself of
 * the same tokens is given up for it, so owners of a unit stay among the owners of the unit before.
 *
 * Keys come with a turn and are kept with it: pages that its prompt fills are entered when they have
 * been computed, and another turn sees from them what is being computed. An entry lives as long as its
 * page has an owner that can be found: nothing is kept for its sake. Hashes are made by the runtime,
 * under a secret; they are compared in full. A page is only ever found by sessions of its principal,
 * or by all if that is the one whose prefixes are public.
 */
#include "sched/state.h"

enum {
	SEARCH_MAX = 32 /* neighbours, to each side, of which one may be another owner */
};

/* The table. */

static uint32_t *bucket_of(const struct sched *s, uint32_t principal, const struct chain_key *key)
{
	uint64_t hash = (key->lo ^ principal * 0x9e3779b97f4a7c15u) * 0xff51afd7ed558ccdu;
	return bucket_at(s, (uint32_t)(hash >> 32) & (s->bucket_count - 1));
}

static int keys_equal(const struct chain_key *a, const struct chain_key *b)
{
	return a->lo == b->lo && a->hi == b->hi;
}

void prefix_init(struct sched *s)
{
	CHECK((s->bucket_count & (s->bucket_count - 1)) == 0);
	for (uint32_t i = 0; i < s->bucket_count; i++)
		*bucket_at(s, i) = SCHED_NONE;
}

/* The principal's page of that key, or SCHED_NONE. */
static uint32_t lookup(const struct sched *s, uint32_t principal, const struct chain_key *key)
{
	uint32_t page = *bucket_of(s, principal, key);
	for (; page != SCHED_NONE; page = prefix_at(s, page)->next)
		if (keys_equal(&prefix_at(s, page)->key, key) && page_at(s, 0, page)->principal == principal)
			return page;
	return SCHED_NONE;
}

/* The same for a session of the principal, which also finds what is public. */
static uint32_t lookup_for(const struct sched *s, uint32_t principal, const struct chain_key *key)
{
	uint32_t page = lookup(s, principal, key);
	if (page == SCHED_NONE && s->limits.public_principal && principal + 1 != s->limits.public_principal)
		page = lookup(s, s->limits.public_principal - 1, key);
	return page;
}

/* Of two pages with one key the first stays in the table. */
static void prefix_add(struct sched *s, uint32_t session, uint32_t page, const struct chain_key *key)
{
	struct prefix *entry = prefix_at(s, page);
	uint32_t principal = page_at(s, 0, page)->principal;
	CHECK(page_at(s, 0, page)->owners > 0);
	if (entry->holder || lookup_for(s, principal, key) != SCHED_NONE)
		return;
	uint32_t *bucket = bucket_of(s, principal, key);
	entry->key = *key;
	entry->holder = session + 1;
	entry->next = *bucket;
	*bucket = page;
	s->prefix_count++;
}

void prefix_remove(struct sched *s, uint32_t page)
{
	struct prefix *entry = prefix_at(s, page);
	if (!entry->holder)
		return;
	uint32_t *at = bucket_of(s, page_at(s, 0, page)->principal, &entry->key);
	while (*at != page) {
		CHECK(*at != SCHED_NONE);
		at = &prefix_at(s, *at)->next;
	}
	*at = entry->next;
	entry->holder = 0;
	CHECK(s->prefix_count > 0);
	s->prefix_count--;
}

/* Another owner of the page than the session: at once if there are two, else among its neighbours,
   which are those that it shared with last. */
static uint32_t other_owner(const struct sched *s, uint32_t session, uint32_t page)
{
	const struct page *seen = page_at(s, 0, page);
	if (seen->owners == 2)
		return seen->owner_xor ^ session;
	uint32_t next = session, prev = session;
	for (int i = 0; i < SEARCH_MAX; i++) {
		next = session_at(s, next)->family.next;
		prev = session_at(s, prev)->family.prev;
		if (next != session && session_owns(s, next, 0, page))
			return next;
		if (prev != session && session_owns(s, prev, 0, page))
			return prev;
	}
	return SCHED_NONE;
}

/* The session is about to leave its units from `units_left` on. What others own too gets another holder,
   from the last to the first: who owns the one owns those before it. */
void prefix_leave(struct sched *s, uint32_t session, uint32_t units_left)
{
	const struct session *x = session_at(s, session);
	uint32_t holder = SCHED_NONE;
	if (s->prefix_count == 0)
		return;
	for (uint32_t unit = x->units - x->sole; unit > units_left; unit--) {
		uint32_t page = table_page(s, session, 0, unit - 1);
		struct prefix *entry = prefix_at(s, page);
		if (entry->holder != session + 1)
			continue;
		if (holder == SCHED_NONE)
			holder = other_owner(s, session, page);
		if (holder == SCHED_NONE)
			prefix_remove(s, page);
		else
			entry->holder = holder + 1;
	}
}

/* Keys of a turn. */

void prefix_keys_take(struct step *p, uint32_t turn)
{
	const struct event *e = p->event;
	struct turn *t = turn_at(p->s, turn);
	uint32_t first = e->as.turn.chain_first, end = first + e->as.turn.chain_count;
	/* With windows, who has a page need not have those before it in each group. */
	if (e->as.turn.chain_count == 0 || first >= p->s->key_units || p->s->windowed)
		return;
	if (end > p->s->key_units)
		end = p->s->key_units;
	t->key_first = first;
	t->key_end = end;
	for (uint32_t unit = first; unit < end; unit++)
		*key_at(p->s, turn, unit) = p->keys[unit - first];
}

/* Enters those of the session's units that are full, of which its turn has the keys. */
void prefix_enter(struct sched *s, uint32_t turn, uint32_t first, uint32_t end)
{
	const struct turn *t = turn_at(s, turn);
	if (first < t->key_first)
		first = t->key_first;
	if (end > t->key_end)
		end = t->key_end;
	if (first >= end)
		return;
	CHECK(end * s->limits.page_tokens <= session_at(s, t->session)->resident);
	struct cursor at = cursor_at(s, t->session, first);
	for (; at.unit < end; cursor_next(s, &at))
		prefix_add(s, t->session, cursor_page(s, &at, 0), key_at(s, turn, at.unit));
}

/* Units that the turn may have from others: all of its prompt but what its last token is in, since
   there must be a row to sample from. */
static uint32_t units_most(const struct sched *s, const struct turn *t)
{
	uint32_t most = (t->prompt - 1) / s->limits.page_tokens;
	return most < t->key_end ? most : t->key_end;
}

/* What sharing the first units of the holder's table would mean; ends before a unit that is on its way
   or lost. */
static struct share share_count(const struct sched *s, uint32_t holder, uint32_t units)
{
	const struct session *x = session_at(s, holder);
	struct share share = {holder, 0, 0, 0, SCHED_NONE, 0};
	struct cursor at = cursor_at(s, holder, 0);
	CHECK(units <= x->resident / s->limits.page_tokens);
	for (; at.unit < units && !unit_moves(s, &at) && !unit_lost(s, &at); cursor_next(s, &at)) {
		const struct page *page = page_at(s, 0, cursor_page(s, &at, 0));
		share.units++;
		share.missing += page->place != PLACE_DEVICE;
		share.yielded += (uint32_t)page_yields(page);
		share.loss += page->owners == 1;
	}
	if (x->state == SESSION_RUNNING)
		share.loser = x->turn;
	else
		share.loss = 0;
	return share;
}

/* The longest prefix that others have of the turn's prompt; units 0 if it is not longer than what its
   session has itself. If a page of it is found, so are those before it, or there is no harm: so the
   search halves. */
struct share prefix_find(const struct sched *s, uint32_t turn)
{
	const struct turn *t = turn_at(s, turn);
	const struct session *x = session_at(s, t->session);
	uint32_t have = x->resident / s->limits.page_tokens, low = have, high = units_most(s, t);
	uint32_t found = SCHED_NONE;
	struct share share = {SCHED_NONE, 0, 0, 0, SCHED_NONE, 0};
	if (low < t->key_first)
		low = t->key_first;
	while (low < high) {
		uint32_t middle = low + (high - low + 1) / 2;
		uint32_t page = lookup_for(s, x->principal, key_at(s, turn, middle - 1));
		if (page == SCHED_NONE) {
			high = middle - 1;
		} else {
			low = middle;
			found = page;
		}
	}
	if (found == SCHED_NONE || low > s->share_max - s->share_extra)
		return share;
	share = share_count(s, prefix_at(s, found)->holder - 1, low);
	if (share.units <= have)
		share.units = 0;
	return share;
}

/* A running turn of the principal that is at the unit that follows on those that the turn can have, for the
   same tokens, and need not stand still before it has computed it; its session, or SCHED_NONE. */
uint32_t prefix_coming(const struct sched *s, uint32_t turn, uint32_t unit)
{
	const struct turn *t = turn_at(s, turn);
	uint32_t principal = session_at(s, t->session)->principal, span = s->limits.page_tokens;
	uint32_t end = (unit + 1) * span;
	if (unit < t->key_first || unit >= units_most(s, t))
		return SCHED_NONE;
	for (uint32_t at = s->running.first; at != SCHED_NONE; at = turn_at(s, at)->link.next) {
		const struct turn *o = turn_at(s, at);
		const struct session *x = session_at(s, o->session);
		if (x->principal != principal && x->principal + 1 != s->limits.public_principal)
			continue;
		if (unit < o->key_first || unit >= o->key_end)
			continue;
		if (!keys_equal(key_at(s, at, unit), key_at(s, turn, unit)))
			continue;
		/* Computed, and not found: another page had its place in the table. Or not so far yet. */
		if (x->resident >= end || x->resident < unit * span || o->end != END_NONE)
			continue;
		/* It needs credit, or a page that an older turn has taken the promise of. */
		if ((end >= o->prompt && o->sampled >= o->credit) || (x->units <= unit && o->promised == 0))
			continue;
		return o->session;
	}
	return SCHED_NONE;
}

/* The turn's session gets the prefix in place of what it has. The turn runs in this same step. */
void prefix_take(struct step *p, uint32_t turn, const struct share *share)
{
	struct sched *s = p->s;
	uint32_t session = turn_at(s, turn)->session, same = 0;
	struct session *x = session_at(s, session);
	CHECK(x->state == SESSION_WAITING);
	CHECK(share->units > x->resident / s->limits.page_tokens);
	struct cursor mine = cursor_at(s, session, 0), from = cursor_at(s, share->holder, 0);
	while (same < x->units && cursor_page(s, &mine, 0) == cursor_page(s, &from, 0)) {
		cursor_next(s, &mine);
		cursor_next(s, &from);
		same++;
	}
	CHECK(same * s->limits.page_tokens <= x->resident);
	s->counts.tokens_shared += share->units * s->limits.page_tokens - x->resident;
	pages_drop(p, session, same, 0);
	pages_share(p, share->holder, session, share->units);
	x->resident = share->units * s->limits.page_tokens;
	if (x->known < x->resident)
		x->known = x->resident;
	if (session_at(s, share->holder)->principal == x->principal)
		session_near(s, share->holder, session);
}

/* I11. */
void prefix_audit(const struct sched *s)
{
	uint32_t count = 0, listed = 0;
	for (uint32_t page = 0; page < pages_of_group(s, 0); page++) {
		const struct prefix *entry = prefix_at(s, page);
		if (!entry->holder)
			continue;
		count++;
		CHECK(lookup(s, page_at(s, 0, page)->principal, &entry->key) == page);
		CHECK(session_owns(s, entry->holder - 1, 0, page));
		uint32_t full = session_at(s, entry->holder - 1)->resident / s->limits.page_tokens;
		CHECK(page_at(s, 0, page)->unit < full);
	}
	for (uint32_t i = 0; i < s->bucket_count; i++)
		for (uint32_t page = *bucket_at(s, i); page != SCHED_NONE; page = prefix_at(s, page)->next)
			CHECK(++listed <= count);
	CHECK(listed == count);
	CHECK(count == s->prefix_count);
}
