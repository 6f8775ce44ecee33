/*
 * Who goes first: between principals, between waiting turns, between prompts in a batch, and how
 * much prompt a step may bear.
 *
 * Between principals: each has a virtual time, the rows computed for it. Whoever has the least goes
 * first. A principal that comes back after a rest starts at the least of those that are active, so
 * that rest earns no credit. One with a thousand turns has one virtual time, like one with one turn.
 *
 * Between prompts of one principal: the one with the least left to compute, less a quarter of the
 * time since its admission (both in microseconds, once the rate is known). So a short prompt goes
 * before a long one, but a long one is not passed for more than about four times its own time.
 *
 * How much: the rows of prefill in a step are found by trying. A step that took longer than wanted
 * makes them fewer, in proportion; one that used them all and was quicker makes them more, by an
 * eighth. With SCHED_STEP_AUTO, what is wanted is nearly twice what a step without prefill takes.
 */
#include "sched/state.h"

enum {
	FORCED_PARTS = 4,
	AGE_PART = 4,
	LOAD_ALL = 1024,
	LOAD_HIGH = 512,        /* from here on the machine has no time to spare, */
	LOAD_PROMPTS = 64,      /* if prompts take so much of it */
	LOAD_WINDOW_US = 8000000,
	LOAD_WINDOWS = 8        /* over so many the load is smoothed */
};

static uint64_t work_least(const struct sched *s)
{
	uint64_t least = UINT64_MAX;
	const struct chain *lists[2] = {&s->running, &s->queue};
	for (int i = 0; i < 2; i++) {
		uint32_t left = 256; /* so many are enough to see who is active */
		for (uint32_t at = lists[i]->first; at != SCHED_NONE && left > 0; at = turn_at(s, at)->link.next) {
			uint64_t work = principal_at(s, session_at(s, turn_at(s, at)->session)->principal)->work;
			least = work < least ? work : least;
			left--;
		}
	}
	return least;
}

void order_arrive(struct sched *s, uint32_t principal)
{
	struct principal *owner = principal_at(s, principal);
	if (owner->active++ > 0)
		return;
	uint64_t least = work_least(s);
	if (least != UINT64_MAX && least > s->work_least)
		s->work_least = least;
	if (owner->work < s->work_least)
		owner->work = s->work_least;
}

void order_leave(struct sched *s, uint32_t principal)
{
	struct principal *owner = principal_at(s, principal);
	CHECK(owner->active > 0);
	owner->active--;
}

void order_work(struct sched *s, uint32_t principal, uint32_t rows)
{
	principal_at(s, principal)->work += rows;
}

/* Microseconds of prefill that the turn has left, less what its waiting is worth. */
static int64_t prefill_key(const struct sched *s, const struct turn *t)
{
	const struct session *x = session_at(s, t->session);
	static const uint64_t most = (uint64_t)1 << 50;
	uint64_t rate = s->prefill_ns_token ? s->prefill_ns_token : 1000;
	uint64_t rows = x->history - x->resident, waited = s->now_us - t->admitted_us;
	uint64_t work = rate < most / (rows + 1) ? rows * rate / 1000 : most;
	return (int64_t)work - (int64_t)((waited < most ? waited : most) / AGE_PART);
}

/* The running turn whose prompt is to be computed next, of those without mark `passed` in `planned`;
   SCHED_NONE if there is none. */
uint32_t order_prefill(const struct sched *s, uint64_t passed)
{
	uint32_t found = SCHED_NONE;
	uint64_t work = 0;
	int64_t key = 0;
	for (uint32_t at = s->running.first; at != SCHED_NONE; at = turn_at(s, at)->link.next) {
		const struct turn *t = turn_at(s, at);
		if (t->planned == passed)
			continue;
		uint64_t its = principal_at(s, session_at(s, t->session)->principal)->work;
		int64_t left = prefill_key(s, t);
		if (found != SCHED_NONE && (its > work || (its == work && left >= key)))
			continue;
		found = at;
		work = its;
		key = left;
	}
	return found;
}

static uint64_t step_wanted_us(const struct sched *s, uint32_t decode_rows)
{
	if (s->limits.step_us != SCHED_STEP_AUTO)
		return s->limits.step_us;
	return decode_rows ? s->decode_us + s->decode_us * 3 / 4 : 0;
}

/* Counts windows that are over into the load. */
static void load_pass(struct sched *s)
{
	uint64_t windows = (s->now_us - s->load_from_us) / LOAD_WINDOW_US;
	s->load_from_us += windows * LOAD_WINDOW_US;
	uint64_t left = windows < 8 * LOAD_WINDOWS ? windows : 8 * LOAD_WINDOWS;
	for (int kind = 0; kind < LOAD_KINDS; kind++) {
		struct load *load = &s->load[kind];
		for (uint64_t i = 0; i < left; i++) {
			/* A batch longer than a window fills the following ones, too. */
			uint64_t busy = load->busy_us < LOAD_WINDOW_US ? load->busy_us : LOAD_WINDOW_US;
			load->busy_us -= busy;
			load->share += (uint32_t)(busy * LOAD_ALL / LOAD_WINDOW_US);
			load->share -= load->share / LOAD_WINDOWS;
		}
		if (windows > left)
			load->share = 0;
	}
}

/* Of late, the machine computed much of the time, and prompts are a part of that: then what is computed
   again makes others wait. */
int order_loaded(struct sched *s)
{
	load_pass(s);
	return s->load[LOAD_OF_ALL].share >= LOAD_HIGH * LOAD_WINDOWS &&
	       s->load[LOAD_OF_PROMPTS].share >= LOAD_PROMPTS * LOAD_WINDOWS;
}

/* As many rows as fit into what the decoding turns leave of the wanted time, by what the last ones took: at
   the end of a long context that may be one. Where a step has no such time, since they alone take longer, or
   since nobody decodes and the step itself does, fewer rows would not help: a page's worth then. */
static void prefill_fit(struct sched *s, uint64_t wanted_us, uint64_t measured_us, uint64_t others_us)
{
	uint64_t left = wanted_us > others_us ? wanted_us - others_us : 0, rows = s->prefill_planned;
	uint64_t spent = measured_us > others_us ? measured_us - others_us : 1;
	uint64_t least = others_us && left ? 1 : s->limits.page_tokens, most = s->limits.batch_rows;
	uint64_t grown = s->prefill_rows + s->prefill_rows / 8 + 1, fit = rows * left / spent;
	if (measured_us <= wanted_us && rows < s->prefill_rows)
		return; /* they were fewer than there was room for */
	fit = fit < grown ? fit : grown;
	fit = fit < most ? fit : most;
	s->prefill_rows = (uint32_t)(fit > least ? fit : least);
}

/* What the batch that is done took, and what follows for the next. */
void order_measure(struct sched *s, uint64_t measured_us)
{
	uint32_t decode = 0;
	for (uint32_t i = 0; i < s->flight_count; i++)
		decode += flight_at(s, i)->phase == PHASE_DECODE;
	if (measured_us == 0)
		return; /* not measured */
	if (measured_us > UINT32_MAX)
		measured_us = UINT32_MAX;
	load_pass(s);
	uint64_t others = decode ? s->decode_us : 0;
	s->load[LOAD_OF_ALL].busy_us += measured_us;
	if (s->prefill_planned && measured_us > others)
		s->load[LOAD_OF_PROMPTS].busy_us += measured_us - others;
	if (s->prefill_planned == 0) {
		s->decode_us = s->decode_us ? (7 * s->decode_us + measured_us) / 8 : measured_us;
		return;
	}
	uint64_t wanted = step_wanted_us(s, decode);
	if (wanted > 0 && s->prefill_rows > 0)
		prefill_fit(s, wanted < UINT32_MAX ? wanted : UINT32_MAX, measured_us, others);
}

/* Prefill rows that the wanted step time leaves. */
uint32_t order_prefill_rows(struct sched *s, uint32_t decode_rows)
{
	uint32_t rows = s->limits.batch_rows - decode_rows;
	uint64_t wanted = step_wanted_us(s, decode_rows), us_max = UINT64_MAX / 1000;
	if (s->limits.step_us == 0 || (s->limits.step_us == SCHED_STEP_AUTO && wanted == 0))
		return rows;
	if (s->prefill_rows == 0) {
		/* The first guess is by the rates, if they are known. */
		uint64_t budget = (wanted < us_max ? wanted : us_max) * 1000;
		uint64_t decode = s->decode_ns_row < UINT64_MAX / (decode_rows + 1)
			? s->decode_ns_row * decode_rows : UINT64_MAX;
		uint64_t fit = s->limits.batch_rows;
		if (s->prefill_ns_token)
			fit = budget > decode ? (budget - decode) / s->prefill_ns_token : 0;
		fit = fit < s->limits.page_tokens ? s->limits.page_tokens : fit;
		s->prefill_rows = fit < s->limits.batch_rows ? (uint32_t)fit : s->limits.batch_rows;
	}
	return s->prefill_rows < rows ? s->prefill_rows : rows;
}

/* Waiting turns. */

/* Most of what the turn needs is there. */
int order_warm(const struct sched *s, uint32_t turn)
{
	const struct turn *t = turn_at(s, turn);
	const struct session *x = session_at(s, t->session);
	uint32_t there = t->prefix_units * s->limits.page_tokens;
	there = x->resident > there ? x->resident : there;
	return there >= t->prompt - there;
}

static uint64_t turn_due_us(const struct sched *s, const struct turn *t)
{
	uint64_t wait = s->limits.wait_us_max;
	uint64_t due = t->arrived_us < UINT64_MAX - wait ? t->arrived_us + wait : UINT64_MAX;
	uint64_t next = s->forced_us < UINT64_MAX - wait ? s->forced_us + wait / FORCED_PARTS : UINT64_MAX;
	return due > next ? due : next;
}

/* The turn has waited long enough, and so has the last one that had. */
int order_due(const struct sched *s, uint32_t turn)
{
	return s->limits.wait_us_max == 0 || turn_due_us(s, turn_at(s, turn)) <= s->now_us;
}

/* When the first of those in the queue that are not due will be; or when the load is next looked at, if a
   turn waits for that and no batch will bring a step. */
uint64_t order_due_us(const struct sched *s)
{
	if (s->queue.count == 0 || s->limits.wait_us_max == 0 || s->draining)
		return UINT64_MAX;
	/* One that is due and does not fit beside the grants of others stands before others that do. */
	uint64_t due = UINT64_MAX;
	for (uint32_t at = s->queue.first; at != SCHED_NONE && due == UINT64_MAX; at = turn_at(s, at)->link.next)
		if (turn_due_us(s, turn_at(s, at)) > s->now_us)
			due = turn_due_us(s, turn_at(s, at));
	if (s->gated && s->batch == 0 && s->load_from_us + LOAD_WINDOW_US < due)
		due = s->load_from_us + LOAD_WINDOW_US;
	return due > s->now_us ? due : UINT64_MAX;
}
