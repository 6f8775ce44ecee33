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
 * Arithmetic is in double: additions, multiplications and quotients in one order, so it is the same
 * on every machine that has IEEE 754 and does not fuse.
 */
#include "sched/state.h"

enum {
	RETURN_ONE = 16,  /* one return in the counts */
	LEAN_RETURNS = 30, /* a tool's class leans on its kind's by so many returns */
	MOVES_MAX = 32,   /* sessions that age in one step at most */
	EDGE_US = 16000   /* the age 0 ends here */
};

/* Ages: 0 to 16 ms, then 16 to 24, 24 to 32, 32 to 48, … The last one has no end. */

static uint64_t age_begins_us(uint32_t age)
{
	if (age == 0)
		return 0;
	uint64_t base = (uint64_t)EDGE_US << ((age - 1) / 2);
	return (age - 1) % 2 ? base + base / 2 : base;
}

static uint32_t age_of(uint64_t us)
{
	if (us < EDGE_US)
		return 0;
	if (us >= age_begins_us(AGE_COUNT - 1))
		return AGE_COUNT - 1;
	uint32_t age = 1 + 2 * (63 - (uint32_t)__builtin_clzll(us / EDGE_US));
	return us < age_begins_us(age + 1) ? age : age + 1;
}

/* Classes. */

static void class_expose(struct pause_class *c, uint64_t from_us, uint64_t to_us, uint32_t weight)
{
	for (uint32_t age = age_of(from_us); from_us < to_us; age++) {
		uint64_t end = age + 1 < AGE_COUNT ? age_begins_us(age + 1) : UINT64_MAX;
		if (end > to_us)
			end = to_us;
		c->exposure_us[age] += (end - from_us) * weight;
		from_us = end;
	}
}

static void class_count_return(struct pause_class *c, uint32_t age, uint32_t weight)
{
	if (c->returns[age] < 0xffffffffu - weight)
		c->returns[age] += weight;
	c->seen += weight;
	c->news += weight;
}

static void class_open(struct pause_class *c)
{
	for (uint32_t age = 0; age < AGE_COUNT; age++) {
		chain_clear(&c->pause[age]);
		chain_clear(&c->rest[age]);
	}
}

static uint64_t hint_us(uint32_t hint)
{
	return (uint64_t)1000000 << (2 * hint);
}

void retain_init(struct sched *s)
{
	chain_clear(&s->shared_rest);
	for (uint32_t i = 0; i < s->class_count; i++)
		class_open(class_at(s, i));
	if (s->limits.policy != POLICY_COST)
		return;
	for (uint32_t i = 0; i < CLASS_TRAIT; i++) {
		struct pause_class *c = class_at(s, i);
		c->cut[0] = c->cut[1] = AGE_COUNT;
		for (uint32_t age = 0; age < AGE_COUNT; age++) {
			class_expose(c, 0, age_begins_us(age), 1);
			class_count_return(c, age, 1);
		}
		/* A hint is believed like eight returns around its time. */
		for (uint32_t k = 1; i >= CLASS_HINT && k <= 4; k++) {
			uint64_t us = hint_us(i - CLASS_HINT) / 4 * k;
			class_expose(c, 0, us, 2 * RETURN_ONE);
			class_count_return(c, age_of(us), 2 * RETURN_ONE);
		}
	}
}

/* The class of a tool: found by name, made if there is room, else the class of all tools. */
static uint32_t class_of_tool(struct sched *s, uint32_t principal, uint64_t tool_key)
{
	uint64_t name = (tool_key ^ ((uint64_t)principal + 1) * 0x9e3779b97f4a7c15u) * 0xff51afd7ed558ccdu;
	name |= 1;
	for (uint32_t probe = 0; probe < 8; probe++) {
		uint32_t class = CLASS_TOOL + (uint32_t)((name >> 32) + probe) % TOOL_COUNT;
		struct pause_class *c = class_at(s, class);
		if (c->name == 0)
			c->name = name;
		if (c->name == name)
			return class;
	}
	return PAUSE_TOOL;
}

/* What is seen of the turn before the pause: how much it sampled, and how long the last pause of the
   kind was, beside the others of its kind. */
static uint32_t class_of_traits(const struct sched *s, const struct session *x)
{
	const struct pause_class *kind = class_at(s, x->kind);
	uint32_t size = 0, last = 0;
	while (size + 1 < SIZE_COUNT && x->sampled >= 64u << (2 * size))
		size++;
	if (x->last_age[x->kind]) {
		uint32_t age = x->last_age[x->kind] - 1;
		last = 1 + (age >= kind->cut[0]) + (age >= kind->cut[1]);
	}
	return CLASS_TRAIT + (x->kind * SIZE_COUNT + size) * LAST_COUNT + last;
}

static uint32_t class_choose(struct sched *s, const struct session *x)
{
	if (s->limits.policy != POLICY_COST)
		return 0;
	if (x->returns_us) {
		uint32_t hint = 0;
		while (hint + 1 < HINT_COUNT && hint_us(hint) < x->returns_us)
			hint++;
		return CLASS_HINT + hint;
	}
	if (x->pause == PAUSE_TOOL && x->tool_key)
		return class_of_tool(s, x->principal, x->tool_key);
	return class_of_traits(s, x);
}

/* The class that a class leans on while it has seen little; itself if none. */
static uint32_t class_parent(uint32_t class)
{
	if (class >= CLASS_TOOL)
		return PAUSE_TOOL;
	return class >= CLASS_TRAIT ? (class - CLASS_TRAIT) / (SIZE_COUNT * LAST_COUNT) : class;
}

/* The ages of which at least half of those that get there return within wait_us_max. */
static uint64_t expected_ages(const struct sched *s, const double *hits)
{
	uint64_t ages = 0;
	double left = 1;
	for (uint32_t from = 0; from < AGE_COUNT; left -= hits[from++]) {
		double back = 0;
		for (uint32_t age = from; age < AGE_COUNT; age++) {
			if (age > from && age_begins_us(age) - age_begins_us(from) >= s->limits.wait_us_max)
				break;
			back += hits[age];
		}
		if (2 * back >= left)
			ages |= (uint64_t)1 << from;
	}
	return ages;
}

/* The worth of a unit at each age, of one return a second as 2^32. */
static void class_value(struct sched *s, uint32_t class)
{
	struct pause_class *c = class_at(s, class);
	const struct pause_class *base = class_at(s, class_parent(class));
	double hits[AGE_COUNT], held[AGE_COUNT], left = 1;
	double lean = base == c ? 0 : LEAN_RETURNS * RETURN_ONE / (double)base->seen;
	for (uint32_t age = 0; age < AGE_COUNT; age++) {
		double returns = c->returns[age] + lean * base->returns[age];
		double exposure = (double)c->exposure_us[age] + lean * (double)base->exposure_us[age] + 1;
		double width = age + 1 < AGE_COUNT
			? (double)(age_begins_us(age + 1) - age_begins_us(age)) : (double)age_begins_us(age);
		double rate = returns / exposure * width;
		hits[age] = left * rate / (1 + rate);
		held[age] = left * width / (1 + rate);
		left -= hits[age];
	}
	for (uint32_t from = 0; from < AGE_COUNT; from++) {
		double best = 0, sum_hits = 0, sum_held = 0;
		for (uint32_t age = from; age < AGE_COUNT; age++) {
			sum_hits += hits[age];
			sum_held += held[age];
			if (sum_hits > best * sum_held)
				best = sum_hits / sum_held;
		}
		c->value[from] = (uint64_t)(best * 1e6 * 4294967296.0);
	}
	c->expected = expected_ages(s, hits);
	uint64_t sum = 0;
	c->cut[0] = c->cut[1] = AGE_COUNT;
	for (uint32_t age = AGE_COUNT; age-- > 0;) {
		sum += c->returns[age];
		c->cut[0] = 2 * sum >= c->seen ? c->cut[0] : age;
		c->cut[1] = 8 * sum >= c->seen ? c->cut[1] : age;
	}
	c->news = 0;
	c->base_seen = base->seen;
}

/* Values anew when a sixteenth of what is known of the class, or of its kind, is news. One class a step,
   and the one that a pause begins in: no step is long. */
static void class_renew(struct sched *s, uint32_t class)
{
	const struct pause_class *c = class_at(s, class), *base = class_at(s, class_parent(class));
	if (c->base_seen == 0 || c->news * 16 > c->seen || (base->seen - c->base_seen) * 16 > base->seen)
		class_value(s, class);
}

/* Units that sessions own alone whose pause is of an age at which they probably come back before a
   turn that waits would be due. */
uint64_t retain_expected_units(const struct sched *s)
{
	uint64_t units = 0;
	for (uint32_t class = 0; class < s->class_count; class++) {
		const struct pause_class *c = class_at(s, class);
		for (uint64_t left = c->resting & c->expected; left; left &= left - 1)
			units += c->units[__builtin_ctzll(left)];
	}
	return units;
}

/* Lists. */

static void rest_put(struct sched *s, uint32_t session, enum rest wanted, int oldest)
{
	struct session *x = session_at(s, session);
	struct pause_class *c = class_at(s, x->class);
	struct chain *chain = wanted == REST_SOLE ? &c->rest[x->age] : &s->shared_rest;
	if (oldest)
		chain_push_first(s, chain, LINK_REST, session);
	else
		chain_push_last(s, chain, LINK_REST, session);
	if (wanted == REST_SOLE) {
		c->resting |= (uint64_t)1 << x->age;
		x->rest_units = x->sole;
		c->units[x->age] += x->rest_units;
	}
	x->at_rest = wanted;
	s->resting++;
}

static void rest_take(struct sched *s, uint32_t session)
{
	struct session *x = session_at(s, session);
	struct pause_class *c = class_at(s, x->class);
	if (x->at_rest == REST_SOLE) {
		chain_take(s, &c->rest[x->age], LINK_REST, session);
		c->units[x->age] -= x->rest_units;
		if (c->rest[x->age].count == 0)
			c->resting &= ~((uint64_t)1 << x->age);
	} else {
		CHECK(x->at_rest == REST_SHARED);
		chain_take(s, &s->shared_rest, LINK_REST, session);
	}
	x->at_rest = REST_NOTHING;
	s->resting--;
}

/* Puts the session into the list of those who have something to give, or takes it out (I9). What it
   owns alone may change while it rests, by what others do: that is seen when it is its turn. */
void retain_settle(struct sched *s, uint32_t session, int oldest)
{
	struct session *x = session_at(s, session);
	enum rest wanted = x->sole ? REST_SOLE : REST_SHARED;
	if (x->state != SESSION_IDLE || x->units <= x->floor)
		wanted = REST_NOTHING;
	if (wanted == REST_SOLE && x->at_rest == REST_SOLE) {
		class_at(s, x->class)->units[x->age] += (uint64_t)x->sole - x->rest_units;
		x->rest_units = x->sole;
	}
	if (wanted == (enum rest)x->at_rest && !oldest)
		return;
	if (x->at_rest != REST_NOTHING)
		rest_take(s, session);
	if (wanted != REST_NOTHING)
		rest_put(s, session, wanted, oldest);
}

static void pause_put(struct sched *s, uint32_t session)
{
	struct session *x = session_at(s, session);
	struct pause_class *c = class_at(s, x->class);
	chain_push_last(s, &c->pause[x->age], LINK_PAUSE, session);
	c->pausing |= (uint64_t)1 << x->age;
	x->pausing = 1;
}

static void pause_take(struct sched *s, uint32_t session)
{
	struct session *x = session_at(s, session);
	struct pause_class *c = class_at(s, x->class);
	chain_take(s, &c->pause[x->age], LINK_PAUSE, session);
	if (c->pause[x->age].count == 0)
		c->pausing &= ~((uint64_t)1 << x->age);
	x->pausing = 0;
}

/* Counts the part of the pause that was not counted yet, for its class and for its kind's. */
static void pause_count(struct sched *s, uint32_t session, int returned)
{
	struct session *x = session_at(s, session);
	static const uint64_t most = (uint64_t)1 << 40; /* twelve days; sums stay far from 64 bits */
	uint64_t from = x->seen_us - x->idle_since_us, to = s->now_us - x->idle_since_us;
	from = from < most ? from : most;
	to = to < most ? to : most;
	uint32_t classes[2] = {x->class, class_parent(x->class)};
	for (uint32_t i = 0; i < (classes[0] == classes[1] ? 1u : 2u); i++) {
		struct pause_class *c = class_at(s, classes[i]);
		class_expose(c, from, to, RETURN_ONE);
		if (returned)
			class_count_return(c, age_of(to), RETURN_ONE);
	}
	x->seen_us = s->now_us;
}

/* Moves the session to the list of the class and age that are its own now. */
static void pause_move(struct sched *s, uint32_t session, uint32_t class, uint32_t age)
{
	struct session *x = session_at(s, session);
	enum rest rest = (enum rest)x->at_rest;
	if (rest != REST_NOTHING)
		rest_take(s, session);
	pause_take(s, session);
	x->class = class;
	x->age = age;
	pause_put(s, session);
	if (rest != REST_NOTHING)
		rest_put(s, session, rest, 0);
}

void retain_begin(struct sched *s, uint32_t session)
{
	struct session *x = session_at(s, session);
	CHECK(!x->pausing);
	CHECK(x->at_rest == REST_NOTHING);
	x->seen_us = x->idle_since_us = s->now_us;
	x->returns_us = x->tool_key = 0;
	x->age = 0;
	x->class = class_choose(s, x);
	pause_put(s, session);
	if (s->limits.policy == POLICY_COST)
		class_renew(s, x->class);
}

void retain_return(struct sched *s, uint32_t session)
{
	struct session *x = session_at(s, session);
	if (!x->pausing)
		return;
	if (s->limits.policy == POLICY_COST)
		pause_count(s, session, !x->closing);
	x->last_age[x->kind] = 1 + age_of(s->now_us - x->idle_since_us);
	if (x->at_rest != REST_NOTHING)
		rest_take(s, session);
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
	pause_move(s, session, class_choose(s, x), age_of(s->now_us - x->idle_since_us));
	class_renew(s, x->class);
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
			uint32_t now = age_of(s->now_us - session_at(s, session)->idle_since_us);
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
	uint64_t sole = due_us(s, &class_at(s, 0)->rest[0]), shared = due_us(s, &s->shared_rest);
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
	s->counts.pages_given_up += (uint64_t)(x->units - left) * s->limits.group_count;
	pages_drop(p, session, left, why);
	if (x->resident > left * s->limits.page_tokens)
		x->resident = left * s->limits.page_tokens;
	effect_lost(p, session, before, why, PLACE_TOKENS);
}

/* Takes units from the end of a session's table until `wanted` have lost their last owner. Shared
   units are touched only if `shared`, and only if all their owners yield them: giving up one's
   own share of a page that another keeps would free nothing. */
static uint32_t session_give(struct step *p, uint32_t session, uint32_t wanted, int shared)
{
	const struct sched *s = p->s;
	const struct session *x = session_at(s, session);
	uint32_t left = x->units, gained = 0;
	for (; left > x->floor && gained < wanted; left--) {
		if (left > x->units - x->sole) {
			gained++;
			continue;
		}
		if (!shared || !page_yields(page_at(s, 0, table_page(s, session, 0, left - 1))))
			break;
	}
	if (left < x->units)
		session_cut(p, session, left, x->expired ? LOST_LEASE : LOST_PRESSURE);
	return gained;
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

/* Of all that rest and own pages alone, the one whose last unit is worth least. Of each list only
   the first is looked at: it has paused longest of its age. */
static uint32_t victim(const struct sched *s)
{
	uint32_t found = SCHED_NONE;
	uint64_t least = 0, since = 0;
	for (uint32_t class = 0; class < s->class_count; class++) {
		const struct pause_class *c = class_at(s, class);
		for (uint64_t left = c->resting; left; left &= left - 1) {
			uint32_t session = c->rest[__builtin_ctzll(left)].first;
			uint64_t value = worth(s, c, session), idle = session_at(s, session)->idle_since_us;
			if (found != SCHED_NONE && (value > least || (value == least && idle >= since)))
				continue;
			found = session;
			least = value;
			since = idle;
		}
	}
	return found;
}

/* The one whose hint tells the latest return; of those without one, which are told to return at
   once, the one that has paused longest. */
static uint32_t victim_hinted(const struct sched *s)
{
	uint32_t found = SCHED_NONE;
	uint64_t latest = 0;
	for (uint32_t session = class_at(s, 0)->rest[0].first; session != SCHED_NONE;
	     session = session_at(s, session)->rest.next) {
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

static uint32_t reclaim_sole(struct step *p, uint32_t units)
{
	struct sched *s = p->s;
	uint32_t gained = 0;
	while (gained < units) {
		uint32_t session = s->limits.policy == POLICY_HINTED ? victim_hinted(s) : victim(s);
		if (session == SCHED_NONE)
			break;
		if (session_at(s, session)->sole)
			gained += session_give(p, session, units - gained, 0);
		retain_settle(s, session, 0); /* a list for shares, if that is all it has */
	}
	return gained;
}

/* Makes `units` more units free or doomed. In this order: what idle sessions own alone, least worth
   first; what they share among themselves; what sessions with a waiting turn hold, the last in the
   queue first. A session that has nothing to give now goes to the recent end, so that the next call
   does not meet it again first. */
void retain_reclaim(struct step *p, uint32_t units)
{
	struct sched *s = p->s;
	CHECK(units <= s->yielding_units);
	for (uint32_t class = 0, moves = MOVES_MAX; s->limits.policy == POLICY_COST && class < s->class_count;
	     class++)
		moves -= class_age(s, class, moves);
	uint32_t gained = reclaim_sole(p, units);
	for (uint32_t visits = s->shared_rest.count; visits > 0 && gained < units; visits--) {
		uint32_t session = s->shared_rest.first;
		gained += session_give(p, session, units - gained, 1);
		rest_take(s, session);
		retain_settle(s, session, 0);
	}
	gained += gained < units ? reclaim_sole(p, units - gained) : 0;
	for (uint32_t turn = s->queue.last; turn != SCHED_NONE && gained < units;
	     turn = turn_at(s, turn)->link.prev) {
		uint32_t session = turn_at(s, turn)->session;
		if (session_at(s, session)->state == SESSION_WAITING)
			gained += session_give(p, session, units - gained, 1);
	}
	CHECK(gained == units);
}

/* All that the session may lose. */
static void session_give_all(struct step *p, uint32_t session, enum lost_why why)
{
	const struct session *x = session_at(p->s, session);
	if (x->units > x->floor)
		session_cut(p, session, x->floor, why);
	retain_settle(p->s, session, 0);
}

/* The session's turn is over: its pause begins. */
void retain_pause(struct step *p, uint32_t session)
{
	struct sched *s = p->s;
	retain_begin(s, session);
	if (s->limits.policy == POLICY_NONE)
		session_give_all(p, session, LOST_POLICY);
	retain_settle(s, session, 0);
}

/* Each step lets the pauses of one class grow older, so that no step is long. */
void retain_tick(struct step *p)
{
	struct sched *s = p->s;
	if (s->limits.policy == POLICY_COST) {
		(void)class_age(s, s->class_turn, MOVES_MAX);
		class_renew(s, s->class_turn);
		s->class_turn = (s->class_turn + 1) % s->class_count;
	}
	while (retain_due_us(s) <= s->now_us) {
		const struct chain *sole = &class_at(s, 0)->rest[0];
		uint32_t session = due_us(s, sole) <= s->now_us ? sole->first : s->shared_rest.first;
		session_give_all(p, session, LOST_POLICY);
	}
}

void on_park(struct step *p)
{
	struct sched *s = p->s;
	uint32_t session = p->event->session, before = session_at(s, session)->resident;
	CHECK(p->event->as.park.place <= PLACE_TOKENS);
	if (p->event->as.park.place != PLACE_TOKENS) {
		struct effect *told = effect_of_session(p, EFFECT_REFUSED, session);
		told->as.residency.blocker = SCHED_NONE;
		told->as.residency.err = ERR_UNSUPPORTED;
		return;
	}
	pages_drop(p, session, 0, LOST_PARK);
	session_at(s, session)->resident = 0;
	retain_settle(s, session, 0);
	effect_lost(p, session, before, LOST_PARK, PLACE_TOKENS);
}
