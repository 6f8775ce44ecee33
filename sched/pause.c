/*
 * What is learned of pauses: which class a pause is of, how often and how soon pauses of a class end,
 * and what keeping a page for one is worth. See retain.c, whose policy this serves.
 *
 * Arithmetic is in double: additions, multiplications and quotients in one order, so it is the same
 * on every machine that has IEEE 754 and does not fuse.
 */
#include "sched/state.h"

enum {
	RETURN_ONE = 16,   /* one return in the counts */
	LEAN_RETURNS = 30, /* a smaller class leans on its kind's by so many returns */
	EDGE_US = 16000    /* the age 0 ends here */
};

/* Ages: 0 to 16 ms, then 16 to 24, 24 to 32, 32 to 48, … The last one has no end. */

static uint64_t age_begins_us(uint32_t age)
{
	if (age == 0)
		return 0;
	uint64_t base = (uint64_t)EDGE_US << ((age - 1) / 2);
	return (age - 1) % 2 ? base + base / 2 : base;
}

uint32_t pause_age_of(uint64_t us)
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
	for (uint32_t age = pause_age_of(from_us); from_us < to_us; age++) {
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
		for (uint32_t place = 0; place < PLACE_COUNT; place++)
			chain_clear(&c->rest[place][age]);
	}
}

static uint64_t hint_us(uint32_t hint)
{
	return (uint64_t)1000000 << (2 * hint);
}

void pause_init(struct sched *s)
{
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
			class_count_return(c, pause_age_of(us), 2 * RETURN_ONE);
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

uint32_t pause_class(struct sched *s, const struct session *x)
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

/* Of all pauses: how many end at each age, and the time that is spent at it. */
static void class_hits(const struct sched *s, uint32_t class, double hits[AGE_COUNT], double held[AGE_COUNT])
{
	const struct pause_class *c = class_at(s, class), *base = class_at(s, class_parent(class));
	double left = 1;
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
}

/* The worth of a unit at each age, of one return a second as 2^32. */
static void class_value(struct sched *s, uint32_t class)
{
	struct pause_class *c = class_at(s, class);
	double hits[AGE_COUNT], held[AGE_COUNT];
	class_hits(s, class, hits, held);
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
	c->base_seen = class_at(s, class_parent(class))->seen;
}

/* When half of those that have paused so long are back. */
uint64_t sched_return_us(const struct sched *s, uint32_t session, uint64_t now_us)
{
	const struct session *x = session_at(s, session);
	double hits[AGE_COUNT], held[AGE_COUNT], left = 1, back = 0;
	if (x->state != SESSION_IDLE || !x->pausing)
		return UINT64_MAX;
	const uint64_t paused = now_us > x->idle_since_us ? now_us - x->idle_since_us : 0;
	if (x->returns_us > paused)
		return x->idle_since_us + x->returns_us;
	if (s->limits.policy != POLICY_COST)
		return UINT64_MAX;
	const uint32_t from = pause_age_of(paused);
	class_hits(s, x->class, hits, held);
	for (uint32_t age = 0; age < from; age++)
		left -= hits[age];
	for (uint32_t age = from; age + 1 < AGE_COUNT; age++) {
		back += hits[age];
		if (2 * back >= left)
			return x->idle_since_us + age_begins_us(age + 1);
	}
	return UINT64_MAX;
}

/* Values anew when a sixteenth of what is known of the class, or of its kind, is news. One class a step,
   and the one that a pause begins in: no step is long. */
void pause_renew(struct sched *s, uint32_t class)
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
		for (uint64_t left = c->resting[PLACE_DEVICE] & c->expected; left; left &= left - 1)
			units += c->units[__builtin_ctzll(left)];
	}
	return units;
}

/* Counts the part of the pause that was not counted yet, for its class and for its kind's. */
void pause_count(struct sched *s, uint32_t session, int returned)
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
			class_count_return(c, pause_age_of(to), RETURN_ONE);
	}
	x->seen_us = s->now_us;
}
