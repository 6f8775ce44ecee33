/*
 * How long a step of the scheduler takes: bench_sched [SESSIONS [UNITS_EACH [EVENTS]]], by default
 * 10,000 sessions that hold 100 pages each, all of a slab of 1,000,000 and a bit, so that every new
 * page is taken from somebody. Then turns come at random; each step is timed by itself. All that is
 * done three times, the same each time, and of each step the shortest counts: so what is told is the
 * step's own, not that of whoever took the processor meanwhile. Goal: p99 under 20 microseconds, and no
 * growth with the number of sessions at rest.
 */
#include "sched/sched.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { SPAN = 16, RUNNING = 16, ROUNDS = 3 };

static struct sched *s;
static struct effects out;
static uint64_t now_us = 1, key;
static struct batch_entry flight[RUNNING];
static uint32_t flight_count;
static uint64_t batch;
static uint32_t *times[EVENT_KIND_COUNT], counts[EVENT_KIND_COUNT], room;

static uint64_t clock_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

static void send(struct event *e, const struct batch_result *results, int timed)
{
	e->now_us = now_us;
	uint64_t start = clock_ns();
	sched_step(s, e, NULL, results, &out);
	uint64_t took = clock_ns() - start;
	if (timed && counts[e->kind] < room) {
		uint32_t *least = &times[e->kind][counts[e->kind]++];
		*least = took < *least ? (uint32_t)took : *least;
	}
	for (uint32_t i = 0; i < out.count; i++) {
		if (out.list[i].kind != EFFECT_BATCH)
			continue;
		batch = out.list[i].as.batch.batch;
		flight_count = out.list[i].as.batch.entry_count;
		memcpy(flight, out.entries, flight_count * sizeof *flight);
	}
}

static struct event event(enum event_kind kind, uint32_t session)
{
	struct event e;
	memset(&e, 0, sizeof e);
	e.kind = kind;
	e.session = session;
	e.turn = SCHED_NONE;
	return e;
}

static void answer(int timed)
{
	struct batch_result results[RUNNING];
	struct event e = event(EVENT_BATCH_DONE, SCHED_NONE);
	memset(results, 0, sizeof results);
	for (uint32_t i = 0; i < flight_count; i++) {
		results[i].turn = flight[i].turn;
		results[i].computed = flight[i].row_count;
		results[i].sampled = flight[i].sample;
	}
	e.as.batch.batch = batch;
	e.as.batch.result_count = flight_count;
	e.as.batch.measured_us = 1000;
	now_us += 1000;
	batch = 0;
	send(&e, results, timed);
}

static void turn(uint32_t session, uint32_t append, int timed)
{
	struct session_view view;
	struct event e = event(EVENT_TURN, session);
	if (sched_session(s, session, &view) != 0 || view.turn != SCHED_NONE)
		return;
	e.turn_key = ++key;
	/* Contexts stay as long as they are: what is appended replaces the end. */
	e.as.turn.keep = view.history > append ? view.history - append - 4 : 0;
	e.as.turn.append = append;
	e.as.turn.output_max = e.as.turn.credit = 4;
	send(&e, NULL, timed);
}

static int by_time(const void *a, const void *b)
{
	return *(const uint32_t *)a < *(const uint32_t *)b ? -1 : *(const uint32_t *)a > *(const uint32_t *)b;
}

static void tell(const char *name, uint32_t *list, uint32_t count)
{
	qsort(list, count, sizeof *list, by_time);
	printf("%-12s %8u steps: p50 %6.2f us, p99 %6.2f us, p99.9 %7.2f us, longest %8.2f us\n", name, count,
	       list[count / 2] * 1e-3, list[count - 1 - count / 100] * 1e-3,
	       list[count - 1 - count / 1000] * 1e-3, list[count - 1] * 1e-3);
}

static void limits_fill(struct sched_limits *l, uint32_t sessions, uint32_t units)
{
	memset(l, 0, sizeof *l);
	l->session_count = sessions;
	l->turn_count = 4 * RUNNING;
	l->principal_count = 4;
	l->group_count = 1;
	l->page_tokens = SPAN;
	l->context_tokens = 2 * units * SPAN;
	l->batch_rows = 4096;
	l->chunk_tokens = 4096;
	l->batch_turns = RUNNING;
	l->queue_turns = 2 * RUNNING;
	l->growth_tokens = 64;
	l->wait_us_max = 300000000;
	l->step_us = SCHED_STEP_AUTO;
	l->group[0].page_bytes = 1 << 20;
	l->group[0].page_count[PLACE_DEVICE] = sessions * units;
}

/* The same events each time. */
static void round_run(void *block, const struct sched_limits *limits, uint32_t units, uint32_t events)
{
	uint64_t random = 1;
	now_us = 1;
	key = batch = 0;
	memset(counts, 0, sizeof counts);
	s = sched_init(block, limits);
	for (uint32_t i = 0; i < limits->session_count; i++) {
		struct event e = event(EVENT_OPEN, SCHED_NONE);
		e.session_key = i;
		e.principal = i % 4;
		send(&e, NULL, 0);
		turn(i, units * SPAN, 0);
		while (batch)
			answer(0);
	}
	for (uint32_t i = 0; i < events; i++) {
		random = random * 6364136223846793005u + 1442695040888963407u;
		now_us += random >> 50;
		if (batch && random >> 62)
			answer(1);
		else
			turn((uint32_t)(random >> 33) % limits->session_count, 20, 1);
	}
	sched_audit(s);
}

int main(int argc, char **argv)
{
	const uint32_t sessions = argc > 1 ? (uint32_t)atol(argv[1]) : 10000;
	const uint32_t units = argc > 2 ? (uint32_t)atol(argv[2]) : 100;
	const uint32_t events = argc > 3 ? (uint32_t)atol(argv[3]) : 200000;
	struct sched_limits limits;
	const char *field = "";
	limits_fill(&limits, sessions, units);
	if (sched_limits_check(&limits, &field) != 0) {
		printf("%s is out of range\n", field);
		return 2;
	}
	room = events;
	for (int kind = 0; kind < EVENT_KIND_COUNT; kind++) {
		times[kind] = malloc(room * sizeof **times);
		memset(times[kind], 0xff, room * sizeof **times);
	}
	size_t bytes = sched_bytes(&limits);
	out.capacity = sched_effect_max(&limits);
	out.list = calloc(out.capacity, sizeof *out.list);
	out.entry_capacity = RUNNING;
	out.entries = calloc(RUNNING, sizeof *out.entries);
	void *block = aligned_alloc(64, bytes);
	for (int i = 0; i < ROUNDS; i++)
		round_run(block, &limits, units, events);
	limits.group[0].page_count[PLACE_DEVICE] += sessions * units;
	printf("%u sessions, %u pages, %.1f MiB of state; each page more %.1f bytes\n", sessions,
	       sessions * units, (double)bytes / 1048576,
	       (double)(sched_bytes(&limits) - bytes) / (sessions * units));
	tell("turn", times[EVENT_TURN], counts[EVENT_TURN]);
	tell("batch done", times[EVENT_BATCH_DONE], counts[EVENT_BATCH_DONE]);
	return 0;
}
