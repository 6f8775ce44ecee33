/*
 * Between the parts of one simulated run: simulate_run.c has the clock and the clients,
 * simulate_machine.c the machine, simulate_count.c what is counted and pictured.
 */
#ifndef HOLDFAST_RUNTIME_SIMULATE_INSIDE_H
#define HOLDFAST_RUNTIME_SIMULATE_INSIDE_H

#include "runtime/simulate.h"

enum { LANES = 2 }; /* host, disk */

/* A session of the trace as the run goes on. */
struct client {
	uint32_t session;     /* the scheduler's index; SCHED_NONE before it is open */
	uint32_t turn;        /* the active one's index; SCHED_NONE */
	uint32_t next;        /* its next turn in the trace, counted from 0 */
	uint32_t history;     /* tokens that the scheduler has of it */
	uint32_t sampled, high; /* of the active turn; high: the highest position computed in it */
	uint32_t kind;        /* enum simulate_kind of the active turn */
	uint32_t picture;     /* its place in the picture; UINT32_MAX: none */
	uint64_t start_us, due_us, sent_us;
	uint64_t live_bytes;  /* its part of world.live_bytes */
	bool waited, admitted;
};

struct copy_flight {
	uint64_t copy, done_us;
};
/* Copies in flight through one lane, first in first out. */
struct lane {
	struct copy_flight *list;
	uint32_t first, count, room;
	uint64_t free_us;
};

struct world {
	const struct simulate_options *options;
	const struct trace *trace;
	struct sched_limits limits;
	struct sched *sched;
	struct effects effects;
	uint64_t now_us, end_us;
	struct chain_key *keys; /* of the turn in hand */
	struct client *clients;
	uint32_t *order;      /* heap of clients with a turn to send, by due_us, then by index */
	uint32_t order_count;
	uint32_t *turn_client, *session_client; /* by the scheduler's indices */
	/* The machine. */
	double base_ns, token_ns, knee;
	uint64_t batch, batch_done_us, batch_us;
	uint32_t entry_count;
	struct batch_entry *entries;
	struct batch_result *results;
	struct lane lanes[LANES];
	/* What is counted. */
	struct simulate_report *report;
	struct picture *picture;
	uint64_t column[ACCOUNT_COUNT][COLUMN_COUNT];
	uint64_t live_bytes;
	uint64_t *ttft, *session_us; /* room for all turns, all sessions; ttft: us * KIND_COUNT + kind */
	uint32_t ttft_count, session_us_count;
	int err;
};

const struct trace_turn *client_turn(const struct world *w, uint32_t client, uint32_t turn);

/* simulate_machine.c */
int machine_open(struct world *w);
void machine_close(struct world *w);
void machine_batch(struct world *w, const struct effect *effect);
int machine_copy(struct world *w, const struct effect *effect);
/* When the machine is next done with something; UINT64_MAX: it rests. */
uint64_t machine_due_us(const struct world *w);
/* What it is done with, as an event, and its results; call only when due. */
struct event machine_event(struct world *w);

/* simulate_count.c */
int count_open(struct world *w);
void count_close(struct world *w);
void count_time(struct world *w, uint64_t now_us); /* before each step: time goes on to now_us */
void count_step(struct world *w);                  /* after each step */
void count_end(struct world *w, uint32_t client, const struct effect *effect);
void count_first_token(struct world *w, uint32_t client);
void count_state(struct world *w, uint32_t client);
void count_finish(struct world *w);

#endif
