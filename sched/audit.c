/*
 * The audit: recounts everything and compares with what the state says. The numbers are those of
 * the invariants in state.h. It has no memory of its own, so what must be distinct is shown to be
 * so by sums: each table entry is checked against its page, and the entries are counted.
 *
 * Cost: pages + sessions * their units + turns.
 */
#include "sched/state.h"

struct tally {
	uint64_t entries, granted, promised, shared_extra, chunks, resting, pausing, free_sessions;
	uint64_t need[SCHED_GROUP_MAX], kept[SCHED_GROUP_MAX], window_granted[SCHED_GROUP_MAX];
	uint64_t moving, held; /* held: bytes of owned pages on the device */
	uint64_t column[PLACE_COUNT][COLUMN_COUNT];
};

static void chain_check(const struct sched *s, const struct chain *chain, uint32_t group, uint32_t state)
{
	uint32_t count = 0, last = SCHED_NONE;
	uint64_t doom_step = 0;
	for (uint32_t page = chain->first; page != SCHED_NONE; page = page_at(s, group, page)->next) {
		const struct page *seen = page_at(s, group, page);
		CHECK(seen->state == state);
		if (state == PAGE_DOOMED) {
			CHECK(seen->doom_step >= doom_step);
			CHECK(seen->doom_step <= s->step);
			doom_step = seen->doom_step;
		}
		last = page;
		CHECK(++count <= chain->count);
	}
	CHECK(count == chain->count);
	CHECK(last == chain->last);
}

/* I3. A tag below tag_next was given once, by a counter, so two pages with one tag can only come
   from a write gone astray. Pairs are compared where that is cheap: in the slabs of tests. */
static void tags_check(const struct sched *s, uint32_t group)
{
	enum { PAIRS_MAX = 256 };
	uint32_t count = pages_of_group(s, group);
	for (uint32_t i = 0; count <= PAIRS_MAX && i < count; i++)
		for (uint32_t k = 0; k < i; k++)
			if (page_at(s, group, i)->tag)
				CHECK(page_at(s, group, i)->tag != page_at(s, group, k)->tag);
}

/* A page in motion and the one that got its old slot know each other. */
static void moving_check(const struct sched *s, uint32_t group, uint32_t index, struct tally *sum)
{
	const struct page *page = page_at(s, group, index), *other = page_at(s, group, page->partner);
	CHECK(other->partner == index);
	CHECK(other->place != page->place);
	CHECK(other->moving || other->state == PAGE_MOVING);
	sum->moving++;
}

/* I1, I3 from the pages' side. */
static void pages_check(const struct sched *s, uint32_t group, struct tally *sum)
{
	uint32_t states[PLACE_COUNT][PAGE_QUARANTINED + 1] = {{0}};
	uint64_t bytes = s->limits.group[group].page_bytes, yielding = 0, owners = 0;
	for (uint32_t i = 0; i < pages_of_group(s, group); i++) {
		const struct page *page = page_at(s, group, i);
		uint32_t place = page->place;
		CHECK(place < PLACE_COUNT);
		CHECK(*slot_page(s, group, (enum place)place, page->slot) == i);
		CHECK(page->state <= PAGE_QUARANTINED);
		CHECK(page->state != PAGE_SHARED);
		CHECK(page->tag < s->tag_next);
		if (page->owners > 0)
			CHECK(page->yielding <= page->owners);
		CHECK(page->bad == 0 || (page->bad == PAGE_LOST && page->owners > 0));
		CHECK((page->owners > 0) == (page->state == PAGE_OWNED));
		CHECK(!page->moving || page->state == PAGE_OWNED);
		states[place][page->state]++;
		owners += page->owners;
		yielding += (uint64_t)page_yields(page);
		if (page->moving || page->state == PAGE_MOVING) {
			moving_check(s, group, i, sum);
			sum->column[place][COLUMN_MOVING] += bytes;
		}
		if (page->owners > 1 && !page->moving)
			sum->column[place][COLUMN_SHARED] += bytes;
		if (page->owners == 0)
			continue;
		CHECK(page->tag != 0);
		CHECK(page->principal < s->limits.principal_count);
		if (page->owners == 1) {
			const struct session *alone = session_at(s, page->owner_xor);
			CHECK(alone->state != SESSION_FREE);
			if (!window_of(s, group))
				CHECK(page->unit >= alone->units - alone->sole);
			CHECK(page->unit >= alone->low[group]);
			CHECK(page->unit < alone->units);
		}
		if (group == 0)
			sum->shared_extra += page->owners - 1;
		if (place == PLACE_DEVICE)
			sum->held += bytes;
	}
	for (uint32_t place = 0; place < PLACE_COUNT; place++) {
		CHECK(states[place][PAGE_FREE] == s->page_free[place][group].count);
		sum->column[place][COLUMN_FREE] += states[place][PAGE_FREE] * bytes;
		chain_check(s, &s->page_free[place][group], group, PAGE_FREE);
		if (place != PLACE_DEVICE)
			CHECK(states[place][PAGE_DOOMED] + states[place][PAGE_QUARANTINED] == 0);
	}
	CHECK(states[PLACE_DEVICE][PAGE_DOOMED] == s->page_doomed[group].count);
	CHECK(states[PLACE_DEVICE][PAGE_MOVING] == s->page_leaving[group]);
	CHECK(states[PLACE_DEVICE][PAGE_QUARANTINED] == s->page_quarantined[group]);
	if (!window_of(s, group))
		CHECK(yielding == s->yielding_units); /* these groups move in step */
	sum->entries += owners;
	sum->column[PLACE_DEVICE][COLUMN_DOOMED] +=
		((uint64_t)states[PLACE_DEVICE][PAGE_DOOMED] + states[PLACE_DEVICE][PAGE_QUARANTINED]) * bytes;
	tags_check(s, group);
	chain_check(s, &s->page_doomed[group], group, PAGE_DOOMED);
}

/* I1, I2, I4, I5 from the tables' side. */
static void table_check(const struct sched *s, uint32_t session, struct tally *sum)
{
	const struct session *x = session_at(s, session);
	uint32_t full = x->resident / s->limits.page_tokens, at_place[PLACE_COUNT] = {0};
	uint64_t here = 0;
	for (uint32_t g = 0; g < s->limits.group_count; g++) {
		struct cursor at = cursor_at(s, session, 0);
		uint32_t owners_before = 0xffffffffu;
		CHECK(x->low[g] <= x->units);
		for (; at.unit < x->units; cursor_next(s, &at)) {
			CHECK((cursor_page(s, &at, g) == SCHED_NONE) == (at.unit < x->low[g]));
			if (at.unit < x->low[g])
				continue;
			const struct page *page = page_at(s, g, cursor_page(s, &at, g));
			CHECK(page->state == PAGE_OWNED);
			CHECK(page->unit == at.unit);
			if (page->principal + 1 != s->limits.public_principal)
				CHECK(page->principal == x->principal); /* I2 */
			/* An owner may have gone on, and trimmed its share of a page with a window. */
			CHECK(window_of(s, g) || page->owners <= owners_before);
			if (!window_of(s, g) || at.unit >= x->units - x->sole)
				CHECK((page->owners == 1) == (at.unit >= x->units - x->sole));
			if (page->owners == 1) {
				CHECK(page->owner_xor == session);
				CHECK(page->yielding == (at.unit >= x->floor));
			}
			if (page->owners == 1 && g == 0)
				at_place[page->place]++;
			if (g == 0 && (page->owners > 1 || page->place == PLACE_DEVICE))
				CHECK(at.unit < x->edge);
			if (page->owners == 1 && !page->moving) {
				int runs = x->state == SESSION_RUNNING && page->place == PLACE_DEVICE;
				sum->column[page->place][runs ? COLUMN_RUNNING : COLUMN_RETAINED] +=
					s->limits.group[g].page_bytes;
				here += page->place == PLACE_DEVICE ? s->limits.group[g].page_bytes : 0;
			}
			/* It is written on: by one, and nothing of him goes to what is public. */
			if (at.unit >= full) {
				CHECK(page->owners == 1);
				CHECK(page->principal == x->principal);
			}
			if (at.unit >= x->floor)
				CHECK(page->yielding > 0);
			owners_before = page->owners;
			sum->entries--;
		}
	}
	CHECK(here == x->here_bytes);
	for (uint32_t place = 0; place < PLACE_COUNT; place++)
		CHECK(at_place[place] == x->at[place]);
}

/* Of groups with a window: what a next row must see is there, and little more. */
static void windows_check(const struct sched *s, uint32_t session, struct tally *sum)
{
	const struct session *x = session_at(s, session);
	CHECK(window_usable(s, session, x->resident) == x->resident);
	CHECK(x->outgrown <= s->windowed);
	if (s->windowed && x->state != SESSION_RUNNING)
		CHECK(x->floor == 0 || x->floor >= x->units);
	for (uint32_t g = 0; g < s->limits.group_count; g++) {
		if (!window_of(s, g)) {
			CHECK(x->low[g] == 0);
			continue;
		}
		uint32_t held = x->units - x->low[g];
		CHECK(held <= s->window_cap[g]);
		if (x->state == SESSION_RUNNING)
			CHECK(held <= turn_at(s, x->turn)->need[g]);
		sum->kept[g] += window_kept_of(x, g);
		sum->window_granted[g] += window_need(s, g, x->granted);
	}
}

static void session_check(const struct sched *s, uint32_t session, struct tally *sum)
{
	const struct session *x = session_at(s, session);
	if (x->state == SESSION_FREE) {
		sum->free_sessions++;
		CHECK(x->units == 0);
		CHECK(x->heap_at == 0);
		return;
	}
	CHECK(x->principal < s->limits.principal_count);
	CHECK(x->resident <= x->known);
	CHECK(x->known <= x->history);
	CHECK(x->history <= s->limits.context_tokens);
	CHECK(x->units <= s->context_units);
	CHECK(x->sole <= x->units);
	CHECK(x->floor == retain_floor(x));
	if (x->state == SESSION_RUNNING)
		CHECK(x->units >= units_of(s, x->resident));
	else
		CHECK(x->units == units_of(s, x->resident));
	CHECK((x->at_rest != REST_NOTHING) == (x->state == SESSION_IDLE && x->units > x->floor));
	CHECK(x->pausing >= (x->at_rest != REST_NOTHING));
	CHECK(x->edge <= x->units);
	CHECK(!x->pausing || x->state == SESSION_IDLE);
	CHECK((x->turn == SCHED_NONE) == (x->state == SESSION_IDLE));
	CHECK((x->granted > 0) == (x->residency != RESIDENCY_BEST_EFFORT));
	CHECK((x->heap_at > 0) == (x->residency == RESIDENCY_LEASED));
	CHECK(session_at(s, x->family.next)->family.prev == session);
	CHECK(session_at(s, x->family.next)->principal == x->principal);
	if (x->turn != SCHED_NONE) {
		const struct turn *t = turn_at(s, x->turn);
		CHECK(t->session == session);
		CHECK((t->state == TURN_RUNNING) == (x->state == SESSION_RUNNING));
		CHECK(x->resident < x->history); /* there is a row to compute */
		if (x->closing)
			CHECK(t->in_flight);
	}
	if (x->next_turn != SCHED_NONE) {
		CHECK(turn_at(s, x->next_turn)->session == session);
		CHECK(turn_at(s, x->next_turn)->state == TURN_WAITING);
		CHECK(turn_at(s, x->turn)->in_flight);
	}
	if (x->closing)
		CHECK(x->turn != SCHED_NONE);
	sum->resting += x->at_rest != REST_NOTHING;
	sum->pausing += x->pausing;
	sum->granted += x->granted;
	sum->chunks += (x->units + CHUNK_UNITS - 1) / CHUNK_UNITS;
	table_check(s, session, sum);
	windows_check(s, session, sum);
}

static void turns_check(const struct sched *s, struct tally *sum)
{
	uint64_t arrival = 0, admitted = 0;
	uint32_t count = 0, in_flight = 0;
	for (uint32_t turn = s->queue.first; turn != SCHED_NONE; turn = turn_at(s, turn)->link.next) {
		const struct turn *t = turn_at(s, turn);
		CHECK(t->state == TURN_WAITING);
		CHECK(t->arrival > arrival); /* I9 */
		CHECK(!t->in_flight);
		CHECK(t->promised == 0);
		arrival = t->arrival;
		CHECK(++count <= s->queue.count);
	}
	CHECK(count == s->queue.count);
	CHECK(count <= s->limits.queue_turns);
	count = 0;
	for (uint32_t turn = s->running.first; turn != SCHED_NONE; turn = turn_at(s, turn)->link.next) {
		const struct turn *t = turn_at(s, turn);
		const struct session *x = session_at(s, t->session);
		CHECK(t->state == TURN_RUNNING);
		CHECK(x->turn == turn);
		CHECK(t->admitted_us >= admitted);
		CHECK(t->sampled < t->output_max);
		CHECK(x->history == t->prompt + t->sampled);
		CHECK(principal_at(s, x->principal)->running > 0);
		uint64_t there = (uint64_t)t->origin_resident + t->origin_reloaded;
		CHECK(there + t->origin_recomputed + t->origin_fresh == t->prompt);
		/* What it holds and what it claims is what it was admitted with. */
		CHECK(x->units - t->missing + t->claim == turn_units(s, t->prompt, t->output_max));
		CHECK(t->missing <= t->claim);
		CHECK(!t->loading || !t->in_flight);
		CHECK(t->loading || t->missing + t->strays == 0);
		for (uint32_t g = 0; g < s->limits.group_count; g++)
			sum->need[g] += t->need[g];
		CHECK(t->promised <= t->claim);
		if (s->limits.growth_tokens == 0)
			CHECK(t->promised == t->claim);
		admitted = t->admitted_us;
		sum->promised += t->promised;
		in_flight += t->in_flight;
		if (t->end != END_NONE)
			CHECK(t->in_flight);
		CHECK(++count <= s->running.count);
	}
	CHECK(count == s->running.count);
	CHECK(count <= s->limits.batch_turns);
	CHECK(in_flight == (s->batch ? s->flight_count : 0));
	CHECK(s->queue.count + s->running.count + s->turn_free.count == s->limits.turn_count);
	for (uint32_t i = 0; s->batch && i < s->flight_count; i++)
		CHECK(turn_at(s, flight_at(s, i)->turn)->in_flight);
}

static void ledger_check(const struct sched *s, const struct tally *sum)
{
	uint64_t total[ACCOUNT_COUNT] = {0}, device = 0, host = 0, disk = 0, bytes = 0, granted = 0;
	uint64_t promised = ledger_promised(s);
	for (uint32_t a = 0; a < ACCOUNT_COUNT; a++)
		for (uint32_t c = 0; c < COLUMN_COUNT; c++)
			total[a] += s->ledger[a][c];
	for (uint32_t g = 0; g < s->limits.group_count; g++) {
		device += s->limits.group[g].page_bytes * s->limits.group[g].page_count[PLACE_DEVICE];
		host += s->limits.group[g].page_bytes * s->limits.group[g].page_count[PLACE_HOST];
		disk += s->limits.group[g].page_bytes * s->limits.group[g].page_count[PLACE_DISK];
	}
	CHECK(total[ACCOUNT_WEIGHTS] == s->limits.weights_bytes);
	CHECK(total[ACCOUNT_WORKSPACE] == s->limits.workspace_bytes);
	CHECK(total[ACCOUNT_STREAM] == s->limits.stream_bytes);
	CHECK(total[ACCOUNT_DEVICE] == device);
	CHECK(total[ACCOUNT_HOST] == host);
	CHECK(total[ACCOUNT_DISK] == disk);
	static const enum account account_of[PLACE_COUNT] = {ACCOUNT_DEVICE, ACCOUNT_HOST, ACCOUNT_DISK};
	CHECK(s->ledger[ACCOUNT_DEVICE][COLUMN_PROMISED] == promised);
	for (uint32_t place = 0; place < PLACE_COUNT; place++)
		for (uint32_t c = 0; c < COLUMN_COUNT; c++) {
			uint64_t kept = place == PLACE_DEVICE && c == COLUMN_FREE ? promised : 0;
			if (c != COLUMN_PROMISED)
				CHECK(s->ledger[account_of[place]][c] + kept == sum->column[place][c]);
		}
	CHECK(s->ledger[ACCOUNT_STREAM][COLUMN_RUNNING] ==
	      ((uint64_t)s->queue.count + s->running.count) * s->limits.stream_turn_bytes);
	for (uint32_t i = 0; i < s->limits.principal_count; i++) {
		bytes += principal_at(s, i)->bytes;
		granted += principal_at(s, i)->granted;
		uint32_t turn = s->running.first, first = principal_at(s, i)->first_running;
		while (turn != SCHED_NONE && session_at(s, turn_at(s, turn)->session)->principal != i)
			turn = turn_at(s, turn)->link.next;
		CHECK(first == (turn == SCHED_NONE ? 0 : turn + 1));
		CHECK((first != 0) == (principal_at(s, i)->running != 0));
		if (quota_of(s, i))
			CHECK(principal_at(s, i)->granted_bytes + principal_at(s, i)->running_bytes <= quota_of(s, i));
	}
	CHECK(bytes == sum->held);
	CHECK(granted == s->granted_units);
}

/* I9: each list holds those who belong in it, and nobody is in two. */
static void rest_check(const struct sched *s, const struct tally *sum)
{
	uint64_t resting = 0, pausing = 0;
	for (uint32_t class = 0; class < s->class_count; class++) {
		const struct pause_class *c = class_at(s, class);
		for (uint32_t age = 0; age < AGE_COUNT; age++) {
			CHECK((c->rest[PLACE_DEVICE][age].count > 0) == (int)(c->resting[PLACE_DEVICE] >> age & 1));
			CHECK((c->pause[age].count > 0) == (int)(c->pausing >> age & 1));
			resting += c->rest[PLACE_DEVICE][age].count;
			uint64_t units = 0;
			pausing += c->pause[age].count;
			for (uint32_t x = c->rest[PLACE_DEVICE][age].first; x != SCHED_NONE;
			     x = session_at(s, x)->rest[PLACE_DEVICE].next) {
				CHECK(session_at(s, x)->at_rest == REST_SOLE);
				CHECK(session_at(s, x)->class == class);
				CHECK(session_at(s, x)->age == age);
				units += session_at(s, x)->rest_units;
			}
			CHECK(units == c->units[age]);
			for (uint32_t x = c->pause[age].first; x != SCHED_NONE;
			     x = session_at(s, x)->pause_link.next) {
				CHECK(session_at(s, x)->pausing);
				CHECK(session_at(s, x)->class == class);
				CHECK(session_at(s, x)->age == age);
			}
		}
	}
	for (uint32_t x = s->shared_rest.first; x != SCHED_NONE; x = session_at(s, x)->rest[PLACE_DEVICE].next)
		CHECK(session_at(s, x)->at_rest == REST_SHARED);
	CHECK(resting + s->shared_rest.count == s->resting);
	CHECK(sum->resting == s->resting);
	CHECK(sum->pausing == pausing);
}

void sched_audit(const struct sched *s)
{
	struct tally sum = {0};
	for (uint32_t g = 0; g < s->limits.group_count; g++)
		pages_check(s, g, &sum);
	for (uint32_t session = 0; session < s->limits.session_count; session++)
		session_check(s, session, &sum);
	CHECK(sum.entries == 0); /* each owner counted by a page is one entry in a table */
	CHECK(sum.free_sessions == s->session_free.count);
	rest_check(s, &sum);
	CHECK(sum.granted == s->granted_units);
	CHECK(sum.granted <= s->grant_max);
	CHECK(sum.shared_extra == s->share_extra);
	CHECK(s->share_extra <= s->share_max);
	CHECK(sum.chunks == s->chunk_used);
	turns_check(s, &sum);
	CHECK(sum.promised == s->promised_units);
	CHECK(claim_safe(s)); /* I6 */
	for (uint32_t g = 0; g < s->limits.group_count; g++) {
		CHECK(sum.need[g] == s->window_need[g]);
		CHECK(sum.kept[g] == s->window_kept[g]);
		CHECK(sum.window_granted[g] == s->window_granted[g]);
		CHECK(s->window_granted[g] <= s->window_grant_max[g]);
	}
	CHECK(s->promised_units <= claim_cover(s));
	ledger_check(s, &sum);
	CHECK(sum.moving == 2 * (uint64_t)s->copies);
	CHECK(timer_ordered(s));
	prefix_audit(s);
}
