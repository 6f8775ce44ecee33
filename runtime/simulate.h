/*
 * The planner: recorded traffic through the real scheduler, with a model of the machine in place of
 * the engine. Simulated time only; equal options and trace give equal effects and equal figures.
 *
 * The machine. A step of rows at positions p costs base + sum of a * (1 + p / knee): `a` is the time
 * of a prefill token in an empty context, base what a step of one row costs beyond that, and `knee`
 * the context at which attention costs a token as much as the weights do. Copies to and from host
 * and disk each go through one lane of a fixed rate, in order, beside the computing.
 */
#ifndef HOLDFAST_RUNTIME_SIMULATE_H
#define HOLDFAST_RUNTIME_SIMULATE_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "runtime/trace.h"
#include "sched/sched.h"

int simulate_main(int argc, char **argv);

enum simulate_loop { LOOP_OPEN, LOOP_CLOSED };

/* A machine: bytes of a token's K and V, rates a second, the knee in tokens (0: none). */
struct simulate_machine {
	uint64_t kv_bytes_per_token;
	uint64_t window_bytes_per_token; /* of those, in layers that see the last window_tokens only; 0: none */
	uint32_t window_tokens;
	double prefill_tps, decode_tps, attention_knee, host_bps, disk_bps;
};

struct simulate_options {
	struct simulate_machine machine;
	uint64_t memory_bytes, host_bytes, disk_bytes;
	uint32_t page_tokens, turns, batch_rows, chunk, growth, step_ms, output_max, wait_s;
	enum policy policy;
	bool clairvoyant;     /* POLICY_HINTED, and exact hints */
	uint64_t ttl_us;
	double arrivals_h;    /* sessions an hour; 0: as the trace has them */
	double hours;         /* simulated at most; 0: to the end */
	enum simulate_loop loop;
	uint64_t seed;
	bool apart;           /* sessions share no pages, though the trace's ids would name them */
	bool stop_on_recompute; /* for the search: the first recomputed token ends the run */
	void (*progress)(void *arg, const char *what, uint64_t done, uint64_t total);
	void *progress_arg;
};

/* Who a turn comes from: a new session, a tool, a person, or neither is known. */
enum simulate_kind { KIND_NEW, KIND_TOOL, KIND_PERSON, KIND_OTHER, KIND_COUNT };

enum { WAIT_COUNT = WAIT_COPY + 1, PICTURE_SAMPLES = 720, PICTURE_SESSIONS = 40 };

struct simulate_ttft {
	uint64_t count, p50_us, p99_us;
};

struct simulate_report {
	uint64_t turns, turns_answered, turns_refused, turns_waited, sessions, sessions_done;
	uint64_t waited[WAIT_COUNT]; /* turns that waited, by the first reason told */
	uint64_t tokens_shared; /* of those resident or reloaded: found in other sessions */
	uint64_t tokens_new, tokens_resident, tokens_reloaded, tokens_recomputed, tokens_sampled;
	uint64_t forced_recomputes, steps, hash, span_us;
	struct simulate_ttft ttft[KIND_COUNT], ttft_all;
	uint64_t session_p50_us, session_p99_us, wait_max_us;
	double byte_seconds[ACCOUNT_COUNT][COLUMN_COUNT];
	double busy_s, copy_busy_s[PLACE_COUNT]; /* of the engine; of the lanes to host and disk */
	/* Bytes of contexts that will be wanted again, or are in work, averaged over the span. */
	double live_byte_seconds;
	uint64_t live_peak_bytes;
	bool recomputed; /* with stop_on_recompute: it was ended by one */
};

/* What the picture is made of: the ledger over time, and some sessions. */
struct picture_state {
	uint64_t at_us;
	uint32_t state, resident, history; /* state: enum session_state; SESSION_FREE before and after */
};
struct picture {
	uint64_t bucket_us; /* of one sample; doubles as the run goes on */
	uint32_t sample_count;
	double column[PICTURE_SAMPLES][COLUMN_COUNT], host[PICTURE_SAMPLES], disk[PICTURE_SAMPLES];
	uint32_t session_count, tokens_max;
	struct {
		struct picture_state *states;
		uint32_t count, room;
	} session[PICTURE_SESSIONS];
};

/* Limits of the scheduler that these options and this trace ask for. -ERR_OUT_OF_RANGE with one
   line in reason (TRACE_REASON_MAX of room). */
int simulate_limits(const struct simulate_options *options, const struct trace *trace,
		    struct sched_limits *out, char *reason);
/* Runs it. picture may be NULL; otherwise it is filled and picture_close frees it. -ERR_MEMORY, or
   as simulate_limits. */
int simulate_run(const struct simulate_options *options, const struct trace *trace,
		 struct simulate_report *report, struct picture *picture, char *reason);
void picture_close(struct picture *picture);

/* The least device memory at which this run recomputes nothing, within 2 %. */
int simulate_search(const struct simulate_options *options, const struct trace *trace,
		    uint64_t *bytes, char *reason);

void simulate_print_json(const struct simulate_options *options, const char *policy,
			 const struct simulate_report *report, uint64_t least_bytes);
void simulate_print_table(const struct simulate_options *options, const char *policy,
			  const struct simulate_report *report, uint64_t least_bytes);
/* -ERR_IO. */
int simulate_svg(const char *path, const struct simulate_options *options, const char *policy,
		 const struct simulate_report *report, const struct picture *picture);

#endif
