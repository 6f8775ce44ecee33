/*
 * What stays in memory between turns beyond the grants, and who gives way: the whole policy.
 *
 * A session at rest yields what lies beyond its grant, from the end of its table, one unit after
 * the other. The question is always the same: of all the units at the ends of all tables, which is
 * wanted least? POLICY_LRU says: the one of the session used least recently. POLICY_COST asks what
 * keeping it is worth.
 *
 * Keeping a unit for a time T costs T of its bytes, and pays if the session comes back meanwhile:
 * then its tokens need not be computed again. So the worth of a unit is
 *     max over T of  P(it comes back within T) / E[time until it does, or T]
 * times what its tokens cost to compute: the best rate of returns per time held that any plan of
 * giving it up later can have (an index of Gittins; with T fixed it would be a hit density, with
 * T towards 0 the hazard rate). The unit with the lowest worth goes first.
 *
 * Both terms come from what was seen. Pauses are told apart by kind: after an answer, after a tool
 * call, after another end. In each kind, by how much was sampled before it and how long the session's
 * last such pause was (long answers and slow sessions pause longer); or by the tool and the principal,
 * if a hint names the tool; or by the order of magnitude of the hint, if it says when. Each class
 * counts, for each age of a pause, the returns at that age and the time that sessions spent at it;
 * their quotient is the hazard rate. Sessions that never come back count too: they age, and only add
 * time. A class starts with a few returns spread evenly over the ages (nothing is known: the older,
 * the less likely soon, which is LRU); a smaller class leans on the class of its kind until it has
 * returns of its own.
 *
 * Lower places cost nothing but a copy back, so a unit goes down before it is dropped, if there is room,
 * or something there that is worth less.
 */
#include "sched/state.h"

enum { MOVES_MAX = 32 }; /* sessions that age in one step at most */

void retain_init(struct sched *s)
{
	chain_clear(&s->shared_rest);
	pause_init(s);
}

void retain_begin(struct sched *s, uint32_t session)
{
	struct session *x = session_at(s, session);
	CHECK(!x->pausing);
	CHECK(x->at_rest == REST_NOTHING);
	x->seen_us = x->idle_since_us = s->now_us;
	x->returns_us = x->tool_key = 0;
	x->parked = x->raise_from = 0;
	x->age = 0;
	x->class = pause_class(s, x);
	pause_put(s, session);
	if (s->limits.policy == POLICY_COST)
		pause_renew(s, x->class);
}

void retain_return(struct sched *s, uint32_t session)
{
	struct session *x = session_at(s, session);
	if (!x->pausing)
		return;
	if (s->limits.policy == POLICY_COST)
		pause_count(s, session, !x->closing);
	x->last_age[x->kind] = 1 + pause_age_of(s->now_us - x->idle_since_us);
	if (x->at_rest != REST_NOTHING)
		rest_take(s, session);
	for (uint32_t place = PLACE_HOST; place < PLACE_COUNT; place++)
		if (x->low_rest[place])
			low_take(s, session, place);
	pause_take(s, session);
	x->age = 0;
	x->class = 0;
}

/* A hint has named the tool, or the time. */
void retain_class_set(struct sched *s, uint32_t session)
{
	struct session *x = session_at(s, session);
	if (s->limits.policy != POLICY_COST || !x->pausing)
		return;
	pause_count(s, session, 0);
	pause_move(s, session, pause_class(s, x), pause_age_of(s->now_us - x->idle_since_us));
	pause_renew(s, x->class);
}

/* It pauses as if its turn had ended now; how long it has paused so far is counted, and that it did not
   return. */
void retain_touch(struct sched *s, uint32_t session)
{
	struct session *x = session_at(s, session);
	if (x->state != SESSION_IDLE)
		return;
	if (x->pausing && s->limits.policy == POLICY_COST)
		pause_count(s, session, 0);
	x->seen_us = x->idle_since_us = s->now_us;
	if (x->pausing)
		pause_move(s, session, x->class, 0);
}

/* Lets sessions grow older, the longest paused of each list first. */
static uint32_t class_age(struct sched *s, uint32_t class, uint32_t moves)
{
	struct pause_class *c = class_at(s, class);
	uint32_t done = 0;
	for (uint64_t left = c->pausing; left && done < moves; left &= left - 1) {
		uint32_t age = (uint32_t)__builtin_ctzll(left);
		while (c->pause[age].count && done < moves) {
			uint32_t session = c->pause[age].first;
			uint32_t now = pause_age_of(s->now_us - session_at(s, session)->idle_since_us);
			if (now == age)
				break;
			pause_count(s, session, 0);
			pause_move(s, session, class, now);
			done++;
		}
	}
	return done;
}

static uint64_t due_us(const struct sched *s, const struct chain *chain)
{
	if (chain->count == 0)
		return UINT64_MAX;
	uint64_t since = session_at(s, chain->first)->idle_since_us;
	return since < UINT64_MAX - s->limits.ttl_us ? since + s->limits.ttl_us : UINT64_MAX;
}

/* When the time of a session's pages is over, under POLICY_TTL. */
uint64_t retain_due_us(const struct sched *s)
{
	if (s->limits.policy != POLICY_TTL)
		return UINT64_MAX;
	uint64_t sole = due_us(s, &class_at(s, 0)->rest[PLACE_DEVICE][0]), shared = due_us(s, &s->shared_rest);
	return sole < shared ? sole : shared;
}

/* Giving. */

/* The session loses the units from `left` on; its tokens remain. */
static void session_cut(struct step *p, uint32_t session, uint32_t left, enum lost_why why)
{
	struct sched *s = p->s;
	struct session *x = session_at(s, session);
	uint32_t before = x->resident;
	CHECK(x->state != SESSION_RUNNING);
	uint64_t pages = 0;
	for (uint32_t g = 0; g < s->limits.group_count; g++)
		pages += x->units - x->low[g];
	session_units_cut(p, session, left, why);
	for (uint32_t g = 0; g < s->limits.group_count; g++)
		pages -= x->units - x->low[g];
	s->counts.pages_given_up += pages;
	effect_lost(p, session, before, why, PLACE_TOKENS);
}

/* What the last unit of the session's table is worth: the rate of its class and age, times what
   its tokens cost beside the first ones of a context. */
static uint64_t worth(const struct sched *s, const struct pause_class *c, uint32_t session)
{
	const struct session *x = session_at(s, session);
	double value = (double)c->value[x->age];
	if (s->limits.knee_tokens)
		value *= 1 + (double)x->resident / s->limits.knee_tokens;
	return value < 1e19 ? (uint64_t)value : UINT64_MAX;
}

uint64_t retain_worth(const struct sched *s, uint32_t session)
{
	return worth(s, class_at(s, session_at(s, session)->class), session);
}

/* Of all that rest and own pages alone on the place, the one whose last unit is worth least. Of each
   list only the first is looked at: it has paused longest of its age. */
static uint32_t victim(const struct sched *s, enum place place, uint64_t *least)
{
	uint32_t found = SCHED_NONE;
	uint64_t since = 0;
	for (uint32_t class = 0; class < s->class_count; class++) {
		const struct pause_class *c = class_at(s, class);
		for (uint64_t left = c->resting[place]; left; left &= left - 1) {
			uint32_t session = c->rest[place][__builtin_ctzll(left)].first;
			uint64_t value = worth(s, c, session), idle = session_at(s, session)->idle_since_us;
			if (found != SCHED_NONE && (value > *least || (value == *least && idle >= since)))
				continue;
			found = session;
			*least = value;
			since = idle;
		}
	}
	return found;
}

/* The session's last unit on a lower place is given up, and all behind it. */
static void low_drop(struct step *p, uint32_t session, enum place place)
{
	struct sched *s = p->s;
	struct session *x = session_at(s, session);
	uint32_t unit = x->units;
	while (unit > x->units - x->sole && page_at(s, 0, table_page(s, session, 0, unit - 1))->place != place)
		unit--;
	if (x->at[place] > 0 && unit > x->floor)
		session_cut(p, session, unit - 1, LOST_PRESSURE);
	rest_settle(s, session, 0);
	if (x->low_rest[place] && unit <= x->floor)
		low_take(s, session, place); /* it was granted since: not to be asked again */
}

/* To have a unit back from there takes less time than to compute it again; not known: it does. */
static int place_pays(const struct sched *s, const struct session *x, enum place place)
{
	if (s->copy_bytes_s[place] == 0 || s->prefill_ns_token == 0)
		return 1;
	double load = (double)s->unit_bytes / (double)s->copy_bytes_s[place];
	double compute = (double)s->prefill_ns_token * s->limits.page_tokens / 1e9;
	if (s->limits.knee_tokens)
		compute *= 1 + (double)x->resident / s->limits.knee_tokens;
	return load < compute;
}

static int place_is(const struct sched *s, uint32_t session, enum place place)
{
	return s->limits.policy != POLICY_NONE && s->limits.group[0].page_count[place] > 0 &&
	       place_pays(s, session_at(s, session), place);
}

/* Throws out what is worth less on the place. Returns 1 if there is room then. */
static int place_clear(struct step *p, uint32_t session, const struct cursor *at, uint64_t value,
		       enum place place)
{
	struct sched *s = p->s;
	for (int tries = 0; tries < 4 && s->limits.policy != POLICY_SWAP; tries++) {
		uint64_t least = 0;
		uint32_t other = victim(s, place, &least);
		if (other == SCHED_NONE || least > value)
			return 0;
		/* Worth the same, as all are without POLICY_COST: who was used last stays. */
		uint64_t since = session_at(s, session)->idle_since_us;
		if (least == value && session_at(s, other)->idle_since_us >= since)
			return 0;
		low_drop(p, other, place);
		if (pages_room(s, at, place))
			return 1;
	}
	return 0;
}

/* Where a unit worth so much goes from the device: to the first lower place that has room, or to the
   lowest where something worth less can be thrown out for it; else only its tokens stay. */
static enum place place_below(struct step *p, uint32_t session, const struct cursor *at, uint64_t value)
{
	struct sched *s = p->s;
	for (uint32_t place = PLACE_HOST; place < PLACE_COUNT; place++)
		if (place_is(s, session, (enum place)place) && pages_room(s, at, (enum place)place))
			return (enum place)place;
	for (uint32_t place = PLACE_DISK; place > PLACE_DEVICE; place--)
		if (place_is(s, session, (enum place)place) && place_clear(p, session, at, value, (enum place)place))
			return (enum place)place;
	return PLACE_TOKENS;
}

/* Takes units from the device, from the end of a session's table, until `wanted` are free or on their
   way to be. What finds no lower place is dropped, with all behind it. Units that others own too are
   touched only if `shared`, and only if all owners yield them. Returns how many will be free. */
static uint32_t session_give(struct step *p, uint32_t session, uint32_t wanted, int shared)
{
	struct sched *s = p->s;
	struct session *x = session_at(s, session);
	const struct pause_class *c = class_at(s, x->class);
	/* Those that it owns alone are the last ones. */
	uint32_t others = x->units - x->sole, low = shared || others < x->floor ? x->floor : others;
	uint32_t unit = x->edge, cut = x->units, gained = 0;
	for (; unit > low && gained < wanted; unit--) {
		struct cursor at = cursor_at(s, session, unit - 1);
		const struct page *page = page_at(s, 0, cursor_page(s, &at, 0));
		if (page->place != PLACE_DEVICE)
			continue;
		if (!page_yields(page))
			break;
		enum place to = cut < x->units || unit_moves(s, &at) ? PLACE_TOKENS
								    : place_below(p, session, &at, worth(s, c, session));
		if (to != PLACE_TOKENS) {
			(void)pages_move(p, session, unit - 1, to);
			x->raise_from = x->raise_from < unit - 1 ? x->raise_from : unit - 1;
			gained++;
			continue;
		}
		cut = unit - 1;
		gained += page->owners == 1;
	}
	x->edge = unit > others ? unit : others;
	if (cut < x->units)
		session_cut(p, session, cut, x->expired ? LOST_LEASE : LOST_PRESSURE);
	return gained;
}

/* The one whose hint tells the latest return; of those without one, which are told to return at
   once, the one that has paused longest. */
static uint32_t victim_hinted(const struct sched *s)
{
	uint32_t found = SCHED_NONE;
	uint64_t latest = 0;
	for (uint32_t session = class_at(s, 0)->rest[PLACE_DEVICE][0].first; session != SCHED_NONE;
	     session = session_at(s, session)->rest[PLACE_DEVICE].next) {
		const struct session *x = session_at(s, session);
		uint64_t returns = x->returns_us < UINT64_MAX - x->idle_since_us
			? x->idle_since_us + x->returns_us : UINT64_MAX;
		if (found != SCHED_NONE && returns <= latest)
			continue;
		found = session;
		latest = returns;
	}
	return found;
}

/* Pages that are still wanted, of the group that lacks most. */
static uint32_t lacking(const struct sched *s, const struct wanted *wanted)
{
	uint32_t coming = pages_coming_units(s);
	uint32_t most = wanted->units > coming ? (uint32_t)(wanted->units - coming) : 0;
	for (uint32_t g = 0; s->windowed && g < s->limits.group_count; g++) {
		coming = pages_coming(s, g);
		if (wanted->pages[g] > (uint64_t)coming + most)
			most = (uint32_t)(wanted->pages[g] - coming);
	}
	return most;
}

static void reclaim_sole(struct step *p, const struct wanted *wanted)
{
	struct sched *s = p->s;
	for (uint32_t units; (units = lacking(s, wanted)) > 0; ) {
		uint64_t least = 0;
		uint32_t session = s->limits.policy == POLICY_HINTED ? victim_hinted(s)
								    : victim(s, PLACE_DEVICE, &least);
		if (session == SCHED_NONE)
			break;
		uint32_t given = session_at(s, session)->at[PLACE_DEVICE]
			? session_give(p, session, units, 0) : 0;
		rest_settle(s, session, 0); /* a list for shares, if that is all it has */
		if (given == 0 && session_at(s, session)->at_rest == REST_SOLE) {
			rest_take(s, session); /* what it has here is granted */
			rest_put(s, session, REST_SHARED, 0);
		}
	}
}

/* What is wanted may be a page of a group with a window that the session yields, of a unit that somebody
   else does not. */
static void window_give(struct step *p, uint32_t session, const struct wanted *wanted)
{
	struct sched *s = p->s;
	const struct session *x = session_at(s, session);
	if (s->windowed && x->units > 0 && x->floor == 0 && lacking(s, wanted))
		session_cut(p, session, 0, x->expired ? LOST_LEASE : LOST_PRESSURE);
}

/* What sessions at rest share among themselves. One that has nothing to give now goes to the recent end, so
   that the next call does not meet it again first. */
static void reclaim_shared(struct step *p, const struct wanted *wanted)
{
	struct sched *s = p->s;
	uint64_t waiting = 0;
	uint32_t units;
	if (lacking(s, wanted) == 0)
		return;
	/* What is left belongs to sessions that wait, alone? Then there is no need to look through all. */
	for (uint32_t turn = s->queue.first; turn != SCHED_NONE; turn = turn_at(s, turn)->link.next) {
		const struct session *x = session_at(s, turn_at(s, turn)->session);
		if (x->state == SESSION_WAITING && x->at[PLACE_DEVICE] > x->floor)
			waiting += x->at[PLACE_DEVICE] - x->floor;
	}
	if (!s->windowed && s->yielding_units <= waiting)
		return;
	/* To make room below, others may lose what they have, and leave the list. */
	for (uint32_t visits = s->shared_rest.count;
	     visits > 0 && s->shared_rest.count && (units = lacking(s, wanted)) > 0; visits--) {
		uint32_t session = s->shared_rest.first;
		(void)session_give(p, session, units, 1);
		window_give(p, session, wanted);
		rest_take(s, session);
		rest_settle(s, session, 0);
	}
}

/* Makes what is wanted free or doomed. In this order: what idle sessions own alone, least worth
   first; what they share among themselves; what sessions with a waiting turn hold, the last in the
   queue first. */
void retain_reclaim(struct step *p, const struct wanted *wanted)
{
	struct sched *s = p->s;
	if (lacking(s, wanted) == 0)
		return;
	CHECK(wanted->units <= (uint64_t)pages_coming_units(s) + s->yielding_units);
	for (uint32_t class = 0, moves = MOVES_MAX; s->limits.policy == POLICY_COST && class < s->class_count;
	     class++)
		moves -= class_age(s, class, moves);
	reclaim_sole(p, wanted);
	reclaim_shared(p, wanted);
	reclaim_sole(p, wanted);
	uint32_t units;
	for (uint32_t turn = s->queue.last; turn != SCHED_NONE && (units = lacking(s, wanted)) > 0;
	     turn = turn_at(s, turn)->link.prev) {
		uint32_t session = turn_at(s, turn)->session;
		if (session_at(s, session)->state != SESSION_WAITING)
			continue;
		(void)session_give(p, session, units, 1);
		window_give(p, session, wanted);
	}
	CHECK(lacking(s, wanted) == 0);
}

/* All that the session may lose. */
static void session_give_all(struct step *p, uint32_t session, enum lost_why why)
{
	const struct session *x = session_at(p->s, session);
	if (x->units > x->floor)
		session_cut(p, session, x->floor, why);
	rest_settle(p->s, session, 0);
}

/* Moves the session's units that are on higher places to a lower one, from the end of its table, as far
   as there is room. */
static void session_lower(struct step *p, uint32_t session, enum place to, uint32_t floor)
{
	struct sched *s = p->s;
	const struct session *x = session_at(s, session);
	for (uint32_t unit = x->units; unit > floor; unit--) {
		struct cursor at = cursor_at(s, session, unit - 1);
		if (!pages_room(s, &at, to))
			break;
		const struct page *page = page_at(s, 0, cursor_page(s, &at, 0));
		if (page->place >= to || unit_moves(s, &at) || page->bad ||
		    (page->owners > 1 && page->yielding < page->owners))
			continue;
		(void)pages_move(p, session, unit - 1, to);
	}
	rest_settle(s, session, 0);
}

/* The session's turn is over: its pause begins. */
void retain_pause(struct step *p, uint32_t session)
{
	struct sched *s = p->s;
	retain_begin(s, session);
	if (s->limits.policy == POLICY_NONE)
		session_give_all(p, session, LOST_POLICY);
	if (s->limits.policy == POLICY_SWAP)
		session_lower(p, session, PLACE_HOST, session_at(s, session)->floor);
	rest_settle(s, session, 0);
}

/* Ahead of need: some pages of the device are kept free, by moves of what is worth least, so that who
   needs them need not wait for copies. */
static void lower_ahead(struct step *p)
{
	struct sched *s = p->s;
	struct wanted wanted = {pages_total_units(s) / 32, {0}};
	uint32_t left = AHEAD_MAX;
	uint64_t least = 0;
	for (uint32_t g = 0; s->windowed && g < s->limits.group_count; g++)
		if (window_of(s, g))
			wanted.pages[g] = window_total(s, g) / 32;
	const uint32_t *count = s->limits.group[0].page_count;
	enum place to = count[PLACE_HOST] ? PLACE_HOST : PLACE_DISK;
	if (count[to] == 0 || s->limits.policy == POLICY_NONE || s->limits.policy == POLICY_SWAP)
		return;
	while (left > 0 && lacking(s, &wanted) && s->page_free[to][0].count) {
		uint32_t session = victim(s, PLACE_DEVICE, &least);
		if (session == SCHED_NONE || !place_is(s, session, to))
			return; /* ahead of need nothing is dropped */
		uint32_t given = session_give(p, session, 1, 0);
		rest_settle(s, session, 0);
		if (given == 0)
			return;
		left--;
	}
}

/* Likewise from host to disk. */
static void disk_ahead(struct step *p)
{
	struct sched *s = p->s;
	uint32_t count = s->limits.group[0].page_count[PLACE_HOST];
	uint64_t least = 0;
	if (count == 0 || s->limits.group[0].page_count[PLACE_DISK] == 0 || s->limits.policy == POLICY_SWAP)
		return;
	/* Where a disk does not pay, the host gives up what is worth least when it must. */
	if (!place_pays(s, session_at(s, 0), PLACE_DISK))
		return;
	const struct chain *empty = &s->page_free[PLACE_HOST][0];
	for (uint32_t left = AHEAD_MAX; left > 0 && empty->count < (count + 31) / 32; left--) {
		uint32_t session = victim(s, PLACE_HOST, &least);
		if (session == SCHED_NONE)
			return;
		struct session *x = session_at(s, session);
		uint32_t unit = x->units;
		struct cursor at = {0, 0};
		for (; unit > x->units - x->sole; unit--) {
			at = cursor_at(s, session, unit - 1);
			if (page_at(s, 0, cursor_page(s, &at, 0))->place == PLACE_HOST && !unit_moves(s, &at))
				break;
		}
		if (unit > x->units - x->sole && !pages_room(s, &at, PLACE_DISK))
			return;
		if (unit > x->units - x->sole)
			(void)pages_move(p, session, unit - 1, PLACE_DISK);
		rest_settle(s, session, 0);
		if (unit == x->units - x->sole)
			return;
	}
}

/* Each step lets the pauses of one class grow older, so that no step is long. */
void retain_tick(struct step *p)
{
	struct sched *s = p->s;
	if (s->limits.policy == POLICY_COST) {
		(void)class_age(s, s->class_turn, MOVES_MAX);
		pause_renew(s, s->class_turn);
		s->class_turn = (s->class_turn + 1) % s->class_count;
	}
	while (retain_due_us(s) <= s->now_us) {
		const struct chain *sole = &class_at(s, 0)->rest[PLACE_DEVICE][0];
		uint32_t session = due_us(s, sole) <= s->now_us ? sole->first : s->shared_rest.first;
		session_give_all(p, session, LOST_POLICY);
	}
	lower_ahead(p);
	disk_ahead(p);
	raise_ahead(p);
}

void on_park(struct step *p)
{
	struct sched *s = p->s;
	uint32_t session = p->event->session, before = session_at(s, session)->resident;
	CHECK(p->event->as.park.place <= PLACE_TOKENS);
	enum place to = (enum place)p->event->as.park.place;
	if (to == PLACE_DEVICE || (to != PLACE_TOKENS && s->limits.group[0].page_count[to] == 0)) {
		struct effect *told = effect_of_session(p, EFFECT_REFUSED, session);
		told->as.residency.blocker = SCHED_NONE;
		told->as.residency.err = ERR_UNSUPPORTED;
		return;
	}
	if (to != PLACE_TOKENS) {
		session_at(s, session)->parked = 1;
		session_lower(p, session, to, 0);
		return;
	}
	pages_drop(p, session, 0, LOST_PARK);
	session_at(s, session)->resident = 0;
	rest_settle(s, session, 0);
	effect_lost(p, session, before, LOST_PARK, PLACE_TOKENS);
}
