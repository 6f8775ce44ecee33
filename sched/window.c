/*
 * Groups with a window: their layers see the last window_tokens positions only, so a running session
 * gives up the pages that no row to come can see.
 *
 * What stays is the window and a quarter more (a page at least): so far back a cut finds all that its
 * next row must see. A cut below that leaves nothing of use: to make the lost pages again, each window
 * layer would need those of the layers below it one window further back, and so on; so the session
 * loses all its pages, and its tokens are computed again from the first. A fork may begin anywhere in
 * the same span. README.md has the rule, and what it costs.
 *
 * How much a turn needs of such a group is known when it arrives, and small: at most what lies between
 * the first position that its first row of a step sees, less the quarter, and its last row. So it is
 * reserved in full when the turn is admitted (`need`), and no promise grows afterwards. Let `kept` be
 * the pages of sessions at rest that are granted. I6 for such a group, while a turn runs:
 *
 *     (the need of all running turns) + kept <= the group's pages that are not quarantined
 *
 * A running session has no more pages than its need. So while one of them has less, there is a page
 * that no running and no granted session has: it is free, on its way to be, or its owners yield it.
 */
#include "sched/state.h"

int window_of(const struct sched *s, uint32_t group)
{
	return s->limits.group[group].window_tokens != 0;
}

/* Tokens that stay behind what is resident. */
static uint64_t window_keep(const struct sched_limits *l, uint32_t group)
{
	uint32_t window = l->group[group].window_tokens, more = window / 4;
	return (uint64_t)window + (more > l->page_tokens ? more : l->page_tokens);
}

static uint32_t pages_within(uint64_t tokens, const struct sched_limits *l)
{
	uint64_t context = ((uint64_t)l->context_tokens + l->page_tokens - 1) / l->page_tokens;
	/* One page more, since neither end need be at a page's edge. */
	uint64_t pages = (tokens + l->page_tokens - 1) / l->page_tokens + 1;
	return (uint32_t)(pages < context ? pages : context);
}

struct sched_window sched_window(const struct sched_limits *l, uint32_t group)
{
	uint32_t rows = l->chunk_tokens < l->batch_rows ? l->chunk_tokens : l->batch_rows;
	struct sched_window w = {pages_within(window_keep(l, group) + rows, l),
				 pages_within(window_keep(l, group), l)};
	return w;
}

void window_init(struct sched *s)
{
	const struct sched_limits *l = &s->limits;
	for (uint32_t g = 0; g < l->group_count; g++) {
		if (!window_of(s, g))
			continue;
		s->windowed = 1;
		s->window_cap[g] = sched_window(l, g).turn_pages;
		/* Grants leave room for one turn, or for half of a slab smaller than two. */
		uint32_t total = window_total(s, g), beside = total - total / 2;
		s->window_grant_max[g] = total - (s->window_cap[g] < beside ? s->window_cap[g] : beside);
	}
}

/* Pages of the group that `units` units of a session have at most. */
uint32_t window_need(const struct sched *s, uint32_t group, uint32_t units)
{
	return units < s->window_cap[group] ? units : s->window_cap[group];
}

uint32_t window_total(const struct sched *s, uint32_t group)
{
	return s->limits.group[group].page_count[PLACE_DEVICE] - s->page_quarantined[group];
}

/* What so many units of one session take at most, in bytes. Groups without a window move in step. */
uint64_t window_bytes(const struct sched *s, uint64_t units)
{
	uint64_t bytes = units * s->unit_bytes;
	uint32_t most = units < s->context_units ? (uint32_t)units : s->context_units;
	for (uint32_t g = 0; s->windowed && g < s->limits.group_count; g++)
		if (window_of(s, g))
			bytes += window_need(s, g, most) * s->limits.group[g].page_bytes;
	return bytes;
}

/* The fewest units, of at most a whole context, that take so many bytes. */
uint32_t window_units(const struct sched *s, uint64_t bytes)
{
	uint32_t low = 0, high = s->context_units;
	while (low < high) {
		uint32_t middle = low + (high - low) / 2;
		if (window_bytes(s, middle) < bytes)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

/* Of the first `tokens` tokens that are resident, those that a next row finds all it must see after:
   all, or none. */
uint32_t window_usable(const struct sched *s, uint32_t session, uint32_t tokens)
{
	const struct session *x = session_at(s, session);
	for (uint32_t g = 0; s->windowed && g < s->limits.group_count; g++) {
		uint64_t needed = (uint64_t)x->low[g] * s->limits.page_tokens + s->limits.group[g].window_tokens;
		if (x->low[g] > 0 && needed > (uint64_t)tokens + 1)
			return 0;
	}
	return tokens;
}

/* Pages of the group that the session has on the device. */
uint32_t window_held(const struct sched *s, uint32_t session, uint32_t group)
{
	const struct session *x = session_at(s, session);
	uint32_t held = x->units - x->low[group];
	return held - window_missing(s, session, group);
}

/* Those that it has elsewhere. */
uint32_t window_missing(const struct sched *s, uint32_t session, uint32_t group)
{
	const struct session *x = session_at(s, session);
	const uint32_t *count = s->limits.group[group].page_count;
	uint32_t missing = 0;
	if (count[PLACE_HOST] + count[PLACE_DISK] == 0)
		return 0;
	struct cursor at = cursor_at(s, session, x->low[group]);
	for (; at.unit < x->units; cursor_next(s, &at))
		missing += page_at(s, group, cursor_page(s, &at, group))->place != PLACE_DEVICE;
	return missing;
}

/* Of what running turns need, what they do not have yet. */
uint64_t window_promised(const struct sched *s, uint32_t group)
{
	uint64_t pages = 0;
	for (uint32_t turn = s->running.first; turn != SCHED_NONE; turn = turn_at(s, turn)->link.next)
		pages += turn_at(s, turn)->need[group] - window_held(s, turn_at(s, turn)->session, group);
	return pages;
}

/* Pages that are neither needed nor kept. */
uint64_t window_slack(const struct sched *s, uint32_t group)
{
	uint64_t used = s->window_need[group] + s->window_kept[group], total = window_total(s, group);
	return used < total ? total - used : 0;
}

int window_safe(const struct sched *s)
{
	for (uint32_t g = 0; s->windowed && s->running.count && g < s->limits.group_count; g++)
		if (window_of(s, g) && s->window_need[g] + s->window_kept[g] > window_total(s, g))
			return 0;
	return 1;
}

/* Could a turn of the session run that has so many units in the end? If not, tells in bytes how much is
   short, and in *ever whether it would be if nothing ran. */
uint64_t window_short(const struct sched *s, uint32_t session, uint32_t units, int *ever)
{
	uint64_t bytes = 0;
	*ever = 0;
	for (uint32_t g = 0; s->windowed && g < s->limits.group_count; g++) {
		if (!window_of(s, g))
			continue;
		uint64_t kept = s->window_kept[g] - window_kept_of(session_at(s, session), g);
		uint64_t alone = window_need(s, g, units) + kept, total = window_total(s, g);
		if (alone > total)
			*ever = 1;
		if (alone + s->window_need[g] > total)
			bytes += (alone + s->window_need[g] - total) * s->limits.group[g].page_bytes;
	}
	return bytes;
}

/* Could an empty slab hold it? If not, what the first group that is too small would need, in bytes. */
int window_fits(const struct sched *s, uint32_t units, uint64_t *needed, uint64_t *limit)
{
	uint32_t total = pages_total_units(s);
	*needed = units * s->unit_bytes;
	*limit = total * s->unit_bytes;
	if (units > total)
		return 0;
	for (uint32_t g = 0; s->windowed && g < s->limits.group_count; g++) {
		if (!window_of(s, g) || window_need(s, g, units) <= window_total(s, g))
			continue;
		*needed = window_need(s, g, units) * s->limits.group[g].page_bytes;
		*limit = window_total(s, g) * s->limits.group[g].page_bytes;
		return 0;
	}
	return 1;
}

void window_reserve(struct sched *s, struct turn *t, uint32_t units)
{
	for (uint32_t g = 0; s->windowed && g < s->limits.group_count; g++)
		if (window_of(s, g))
			s->window_need[g] += t->need[g] = window_need(s, g, units);
}

void window_release(struct sched *s, struct turn *t)
{
	for (uint32_t g = 0; s->windowed && g < s->limits.group_count; g++) {
		CHECK(s->window_need[g] >= t->need[g]);
		s->window_need[g] -= t->need[g];
		t->need[g] = 0;
	}
}

/* Pages that the session keeps from everybody while it rests. */
uint32_t window_kept_of(const struct session *x, uint32_t group)
{
	return x->floor > 0 && x->floor != FLOOR_ALL ? x->units - x->low[group] : 0;
}

/* Counts them, or not any more; `sign` is 1 or -1. */
void window_kept_count(struct sched *s, const struct session *x, int sign)
{
	for (uint32_t g = 0; s->windowed && g < s->limits.group_count; g++)
		if (window_of(s, g))
			s->window_kept[g] += sign > 0 ? window_kept_of(x, g) : -(uint64_t)window_kept_of(x, g);
}

/* The batch is done: what no row to come can see goes. */
void window_trim(struct step *p, uint32_t session)
{
	struct sched *s = p->s;
	const struct session *x = session_at(s, session);
	for (uint32_t g = 0; s->windowed && g < s->limits.group_count; g++) {
		uint64_t keep = window_keep(&s->limits, g);
		if (!window_of(s, g) || x->resident <= keep)
			continue;
		uint32_t low = (uint32_t)((x->resident - keep) / s->limits.page_tokens);
		if (low > x->low[g])
			pages_trim(p, session, g, low);
	}
}
