/*
 * What comes back from lower places: a turn that was admitted, and some of whose session's units are
 * on host or disk, loads them in the order of their positions before its first row. Each takes a
 * page of the device, out of the turn's claim, as an assigned one would.
 *
 * A unit may be shared with another session that loads it too: whoever comes first begins the copy,
 * and both wait for it. So what a turn is missing is counted anew in each step until it has all.
 */
#include "sched/state.h"

static int no_tiers(const struct sched *s, const struct session *x)
{
	const uint32_t *count = s->limits.group[0].page_count;
	return x->units == 0 || count[PLACE_HOST] + count[PLACE_DISK] == 0;
}

int unit_moves(const struct sched *s, const struct cursor *at)
{
	int moves = 0;
	for (uint32_t g = 0; g < s->limits.group_count; g++)
		if (cursor_page(s, at, g) != SCHED_NONE)
			moves |= page_at(s, g, cursor_page(s, at, g))->moving;
	return moves;
}

int unit_lost(const struct sched *s, const struct cursor *at)
{
	int lost = 0;
	for (uint32_t g = 0; g < s->limits.group_count; g++)
		if (cursor_page(s, at, g) != SCHED_NONE)
			lost |= page_at(s, g, cursor_page(s, at, g))->bad == PAGE_LOST;
	return lost;
}

/* Its page of a group without a window is on the device, one of the others is not. */
static int unit_stray(const struct sched *s, const struct cursor *at)
{
	int stray = 0;
	if (!s->windowed || page_at(s, 0, cursor_page(s, at, 0))->place != PLACE_DEVICE)
		return 0;
	for (uint32_t g = 1; g < s->limits.group_count; g++)
		if (cursor_page(s, at, g) != SCHED_NONE)
			stray |= page_at(s, g, cursor_page(s, at, g))->place != PLACE_DEVICE;
	return stray;
}

uint32_t load_strays(const struct sched *s, uint32_t session)
{
	const struct session *x = session_at(s, session);
	uint32_t strays = 0;
	if (!s->windowed || no_tiers(s, x))
		return 0;
	struct cursor at = cursor_at(s, session, 0);
	for (; at.unit < x->units; cursor_next(s, &at))
		strays += (uint32_t)unit_stray(s, &at);
	return strays;
}

uint32_t load_missing(const struct sched *s, uint32_t session)
{
	const struct session *x = session_at(s, session);
	uint32_t missing = x->at[PLACE_HOST] + x->at[PLACE_DISK];
	if (no_tiers(s, x))
		return 0;
	struct cursor at = cursor_at(s, session, 0);
	for (; at.unit < x->units - x->sole; cursor_next(s, &at))
		missing += page_at(s, 0, cursor_page(s, &at, 0))->place != PLACE_DEVICE;
	return missing;
}

int load_needed(const struct sched *s, uint32_t session)
{
	const struct session *x = session_at(s, session);
	if (no_tiers(s, x))
		return 0;
	struct cursor at = cursor_at(s, session, 0);
	for (; at.unit < x->units; cursor_next(s, &at))
		if (page_at(s, 0, cursor_page(s, &at, 0))->place != PLACE_DEVICE || unit_stray(s, &at) ||
		    unit_moves(s, &at) || unit_lost(s, &at))
			return 1;
	return 0;
}

uint32_t load_tokens(const struct sched *s, uint32_t session)
{
	const struct session *x = session_at(s, session);
	uint32_t tokens = 0, span = s->limits.page_tokens;
	if (no_tiers(s, x))
		return 0;
	struct cursor at = cursor_at(s, session, 0);
	for (; at.unit < x->units; cursor_next(s, &at)) {
		uint32_t left = x->resident - at.unit * span;
		if (page_at(s, 0, cursor_page(s, &at, 0))->place != PLACE_DEVICE)
			tokens += left < span ? left : span;
	}
	return tokens;
}

/* The first unit that a failed copy has lost; the session's units if none. */
static uint32_t lost_unit(const struct sched *s, uint32_t session)
{
	const struct session *x = session_at(s, session);
	if (no_tiers(s, x))
		return x->units;
	struct cursor at = cursor_at(s, session, 0);
	while (at.unit < x->units && !unit_lost(s, &at))
		cursor_next(s, &at);
	return at.unit;
}

/* A session at rest gives up what a failed copy has lost, and says so, before its next turn. */
void load_mend(struct step *p, uint32_t session)
{
	const struct session *x = session_at(p->s, session);
	uint32_t before = x->resident, unit = lost_unit(p->s, session);
	if (unit == x->units)
		return;
	session_units_cut(p, session, unit, LOST_COPY);
	effect_lost(p, session, before, LOST_COPY, PLACE_TOKENS);
}

/* A turn whose pages were lost while they came computes them again. */
static void turn_mend(struct step *p, struct turn *t)
{
	const struct session *x = session_at(p->s, t->session);
	uint32_t before = x->resident, unit = lost_unit(p->s, t->session);
	if (unit == x->units)
		return;
	session_units_cut(p, t->session, unit, LOST_COPY);
	p->freed = 1;
	uint32_t lost = before - x->resident, part = lost < t->origin_reloaded ? lost : t->origin_reloaded;
	t->origin_reloaded -= part;
	t->origin_resident -= lost - part;
	t->origin_recomputed += lost;
	p->s->counts.tokens_reloaded -= part;
	p->s->counts.tokens_resident -= lost - part;
	p->s->counts.tokens_recomputed += lost;
}

static void claim_renew(struct sched *s, struct turn *t)
{
	const struct session *x = session_at(s, t->session);
	t->missing = load_missing(s, t->session);
	t->strays = load_strays(s, t->session);
	t->claim = turn_units(s, t->prompt, t->output_max) - (x->units - t->missing);
	if (s->limits.growth_tokens == 0 || t->promised > t->claim) {
		s->promised_units += t->claim - t->promised;
		t->promised = t->claim;
	}
}

/* Looks at the whole table: what is missing, what is on the way, what was lost. Returns 0 if the turn
   had to end. */
static int turn_look(struct step *p, uint32_t turn)
{
	struct sched *s = p->s;
	struct turn *t = turn_at(s, turn);
	const struct session *x = session_at(s, t->session);
	turn_mend(p, t);
	claim_renew(s, t);
	if (!claim_safe(s)) {
		/* What it lost it shared with one that keeps it: no page came free for it to use again. */
		s->counts.forced_recomputes++;
		p->freed = 1;
		turn_end(p, turn, END_FAULT, ERR_NO_PAGES);
		return 0;
	}
	t->loading = (uint32_t)load_needed(s, t->session);
	t->load_from = t->arriving = 0;
	/* With windows a page may be its own though others have the unit. */
	struct cursor at = cursor_at(s, t->session, s->windowed ? 0 : x->units - x->sole);
	for (; at.unit < x->units; cursor_next(s, &at))
		for (uint32_t g = 0; g < s->limits.group_count; g++) {
			if (cursor_page(s, &at, g) == SCHED_NONE)
				continue;
			const struct page *page = page_at(s, g, cursor_page(s, &at, g));
			t->arriving += page->owners == 1 && page->moving && page->place == PLACE_DEVICE;
		}
	return 1;
}

/* Makes pages come free for what is loaded. */
static void load_reclaim(struct step *p, uint32_t turn, uint32_t units)
{
	struct sched *s = p->s;
	struct wanted wanted = {units, {0}};
	for (uint32_t g = 0; s->windowed && g < s->limits.group_count; g++)
		if (window_of(s, g))
			wanted.pages[g] = window_missing(s, turn_at(s, turn)->session, g);
	retain_reclaim(p, &wanted);
}

/* Begins as many copies as there are pages for, from where the last step stopped. Returns how many of
   them are of pages that others own too. */
static uint32_t turn_load(struct step *p, uint32_t turn)
{
	struct sched *s = p->s;
	struct turn *t = turn_at(s, turn);
	const struct session *x = session_at(s, t->session);
	uint32_t wanted = t->missing < LOAD_MAX ? t->missing : LOAD_MAX, passed = 0, shared = 0;
	wanted = wanted ? claim_promise(s, turn, wanted) : 0;
	if (wanted == 0 && t->strays == 0)
		return 0;
	load_reclaim(p, turn, wanted);
	struct cursor at = cursor_at(s, t->session, t->load_from < x->units ? t->load_from : x->units);
	for (; at.unit < x->units && (wanted || t->strays); cursor_next(s, &at)) {
		int here = page_at(s, 0, cursor_page(s, &at, 0))->place == PLACE_DEVICE;
		if (here && !unit_stray(s, &at))
			continue;
		if (unit_moves(s, &at) || (!here && wanted == 0)) {
			passed = 1; /* it goes down: to be had when it has arrived */
			continue;
		}
		if (!pages_room(s, &at, PLACE_DEVICE))
			break;
		shared += !here && page_at(s, 0, cursor_page(s, &at, 0))->owners > 1;
		t->arriving += pages_move(p, t->session, at.unit, PLACE_DEVICE);
		t->loaded_step = s->step;
		if (here) {
			t->strays--;
			continue;
		}
		t->missing--;
		t->claim--;
		t->promised--;
		s->promised_units--;
		wanted--;
	}
	if (!passed)
		t->load_from = at.unit;
	return shared;
}

/* Each turn begins copies once in a step. Returns 1 if somebody who waits may fit by it: a claim became
   smaller, or pages came free. */
int load_issue(struct step *p)
{
	struct sched *s = p->s;
	uint32_t shared = 0;
	p->freed = 0;
	for (uint32_t turn = s->running.first, next; turn != SCHED_NONE; turn = next) {
		next = turn_at(s, turn)->link.next;
		/* A table is walked when there is something to see, not for each copy of a long context. */
		const struct turn *t = turn_at(s, turn);
		int look = p->look || t->admitted_step == s->step ||
			(t->missing + t->strays == 0 && t->arriving == 0);
		if (!t->loading || (look && !turn_look(p, turn)))
			continue;
		if (t->missing + t->strays && t->loaded_step != s->step)
			shared += turn_load(p, turn);
	}
	/* What one of them loads the others need not claim. */
	for (uint32_t turn = s->running.first; shared && turn != SCHED_NONE; turn = turn_at(s, turn)->link.next)
		if (turn_at(s, turn)->loading)
			claim_renew(s, turn_at(s, turn));
	return shared > 0 || p->freed;
}
