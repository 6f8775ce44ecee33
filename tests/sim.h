/*
 * The simulator: the real scheduler against a plain model of it, one event at a time.
 *
 * The model knows nothing of how the scheduler works. It keeps the tokens of each session as a list
 * of hashes (each token's hash covers all before it), and for each page slot the hash of the token
 * whose K and V were written there. It follows the effects, holds each of them against the rules,
 * and after each step compares every view. A row is right if all positions before it hold what
 * this session's history says: a page that was lost, shared wrongly, or handed on too early shows.
 */
#ifndef HOLDFAST_TESTS_SIM_H
#define HOLDFAST_TESTS_SIM_H

#include "sched/sched.h"

struct sim_report {
	uint64_t hash;         /* of the scheduler's state at the end */
	uint64_t effects_hash; /* of all effects and entries told */
	uint64_t steps, faults, shared, simulated_us;
	uint64_t seen[EFFECT_KIND_COUNT], ended[END_FAULT + 1];
	const char *failure;   /* NULL, or the rule that did not hold */
	uint64_t failure_step;
};

/* A recorded run: limits, events, and the results beside them. */
struct sim_trace {
	struct sched_limits limits;
	struct event *events;
	struct batch_result *results; /* of all BATCH_DONE, one after the other */
	struct chain_key *keys;       /* of all TURN, likewise */
	uint64_t *who;                /* of each event: the key of its session, or turn */
	uint32_t event_count, event_capacity, result_count, result_capacity, key_count, key_capacity;
};

/* How a run is made otherwise than usual; all zero: not at all. */
struct sim_options {
	uint32_t storm; /* faults of so many in 1000 batch entries and copies, whatever the seed says */
	int (*planted)(const struct effects *out); /* a rule that does not hold when this returns 1 */
};

/* Runs `steps` random events drawn from the seed, then stops the faults and sees everything through.
   `trace` may be NULL; else it receives what was sent, and is freed by sim_trace_free. */
void sim_run(uint64_t seed, uint32_t steps, const struct sim_options *options, struct sim_trace *trace,
	     struct sim_report *out);
/* Makes a failing trace shorter, as long as it fails by the same rule: leaves out events, and what makes no
   sense without them. Returns how many are left; the trace is then only these. */
uint32_t sim_shrink(struct sim_trace *trace, const struct sim_options *options, const char *rule);
/* One line for each event. */
void sim_print(const struct sim_trace *trace);
/* Of a trace from which events may be missing: each that still makes sense is sent, batches and copies are
   answered in order. The rule that fails, or NULL. */
const char *sim_try(const struct sim_trace *trace, const unsigned char *left_out,
		    const struct sim_options *options);
/* Feeds a trace to a fresh scheduler; returns the hash of its effects, and of its state. */
uint64_t sim_replay(const struct sim_trace *trace, uint64_t *state_hash);
void sim_trace_free(struct sim_trace *trace);


#endif
