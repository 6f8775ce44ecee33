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
	uint32_t event_count, event_capacity, result_count, result_capacity, key_count, key_capacity;
};

/* Runs `steps` random events drawn from the seed, then stops the faults and sees everything through.
   `trace` may be NULL; else it receives what was sent, and is freed by sim_trace_free. */
void sim_run(uint64_t seed, uint32_t steps, struct sim_trace *trace, struct sim_report *out);
/* Feeds a trace to a fresh scheduler; returns the hash of its effects, and of its state. */
uint64_t sim_replay(const struct sim_trace *trace, uint64_t *state_hash);
void sim_trace_free(struct sim_trace *trace);


#endif
