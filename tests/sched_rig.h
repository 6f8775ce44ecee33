/*
 * A rig for tests of the scheduler: its block, room for effects, and short verbs that send one
 * event each. Every verb audits afterwards. Include once per program; all of it is static.
 */
#ifndef HOLDFAST_TESTS_SCHED_RIG_H
#define HOLDFAST_TESTS_SCHED_RIG_H

#include "sched/sched.h"

#include <stdlib.h>
#include <string.h>

struct rig {
	struct sched *s;
	struct sched_limits limits;
	struct effects out;
	uint64_t now_us;
	uint64_t next_key;
};

static inline struct sched_limits rig_limits(uint32_t pages)
{
	struct sched_limits l;
	memset(&l, 0, sizeof l);
	l.session_count = 8;
	l.turn_count = 16;
	l.principal_count = 2;
	l.group_count = 1;
	l.page_tokens = 16;
	l.context_tokens = 256;
	l.batch_rows = 64;
	l.chunk_tokens = 32;
	l.batch_turns = 4;
	l.queue_turns = 8;
	l.weights_bytes = 1000;
	l.workspace_bytes = 500;
	l.stream_bytes = 1600;
	l.stream_turn_bytes = 100;
	l.lease_us_max = 1000000;
	l.policy = POLICY_LRU;
	l.group[0].page_bytes = 1024;
	l.group[0].page_count[PLACE_DEVICE] = pages;
	return l;
}

static inline void rig_open(struct rig *r, const struct sched_limits *limits)
{
	const char *field = NULL;
	memset(r, 0, sizeof *r);
	r->limits = *limits;
	if (sched_limits_check(limits, &field) != 0) {
		(void)fprintf(stderr, "rig: limit %s\n", field);
		abort();
	}
	size_t bytes = sched_bytes(limits);
	r->s = sched_init(aligned_alloc(64, bytes), limits);
	r->out.capacity = sched_effect_max(limits);
	r->out.list = calloc(r->out.capacity, sizeof *r->out.list);
	r->out.entry_capacity = limits->batch_turns;
	r->out.entries = calloc(r->out.entry_capacity, sizeof *r->out.entries);
	r->next_key = 1;
	sched_audit(r->s);
}

static inline void rig_close(struct rig *r)
{
	free(r->s);
	free(r->out.list);
	free(r->out.entries);
	memset(r, 0, sizeof *r);
}

static inline struct event rig_event(struct rig *r, enum event_kind kind)
{
	struct event e;
	memset(&e, 0, sizeof e);
	e.kind = kind;
	e.session = e.turn = SCHED_NONE;
	e.now_us = r->now_us;
	return e;
}

static inline void rig_send(struct rig *r, const struct event *e)
{
	sched_step(r->s, e, NULL, NULL, &r->out);
	sched_audit(r->s);
}

/* The n-th effect of a kind in the last step, or NULL. */
static inline const struct effect *rig_effect(const struct rig *r, enum effect_kind kind, uint32_t n)
{
	for (uint32_t i = 0; i < r->out.count; i++)
		if (r->out.list[i].kind == kind && n-- == 0)
			return &r->out.list[i];
	return NULL;
}

static inline uint32_t rig_count(const struct rig *r, enum effect_kind kind)
{
	uint32_t count = 0;
	while (rig_effect(r, kind, count))
		count++;
	return count;
}

static inline uint32_t rig_pages(const struct rig *r, enum effect_kind kind)
{
	uint32_t pages = 0;
	for (uint32_t i = 0; i < r->out.count; i++)
		if (r->out.list[i].kind == kind)
			pages += r->out.list[i].as.run.page_count;
	return pages;
}

/* Opens a session with a residency; returns its index, or SCHED_NONE if it was refused. */
static inline uint32_t rig_session_as(struct rig *r, uint32_t principal, enum residency kind, uint64_t bytes,
				      uint64_t lease_us)
{
	struct event e = rig_event(r, EVENT_OPEN);
	e.principal = principal;
	e.session_key = r->next_key++;
	e.as.residency.kind = kind;
	e.as.residency.bytes = bytes;
	e.as.residency.lease_us = lease_us;
	rig_send(r, &e);
	const struct effect *opened = rig_effect(r, EFFECT_OPENED, 0);
	return opened ? opened->session : SCHED_NONE;
}

static inline uint32_t rig_session(struct rig *r)
{
	return rig_session_as(r, 0, RESIDENCY_BEST_EFFORT, 0, 0);
}

static inline uint32_t rig_fork(struct rig *r, uint32_t session)
{
	struct event e = rig_event(r, EVENT_FORK);
	e.session = session;
	e.session_key = r->next_key++;
	rig_send(r, &e);
	const struct effect *opened = rig_effect(r, EFFECT_OPENED, 0);
	return opened ? opened->session : SCHED_NONE;
}

static inline struct session_view rig_view(const struct rig *r, uint32_t session)
{
	struct session_view view;
	memset(&view, 0, sizeof view);
	if (sched_session(r->s, session, &view) != 0)
		view.state = SESSION_FREE;
	return view;
}

struct rig_turn {
	uint32_t keep, append, output_max, credit, supersede;
	uint64_t deadline_us;
};

static inline struct event rig_turn_event(struct rig *r, uint32_t session, struct rig_turn turn)
{
	struct event e = rig_event(r, EVENT_TURN);
	e.session = session;
	e.turn_key = r->next_key++;
	e.as.turn.keep = turn.keep;
	e.as.turn.append = turn.append;
	e.as.turn.output_max = turn.output_max;
	e.as.turn.credit = turn.credit;
	e.as.turn.supersede = turn.supersede;
	e.as.turn.deadline_us = turn.deadline_us;
	return e;
}

/* Sends a TURN with its keys, or none; returns its index, or SCHED_NONE if it was refused. */
static inline uint32_t rig_turn_send(struct rig *r, const struct event *e, const struct chain_key *keys)
{
	struct turn_view view;
	sched_step(r->s, e, keys, NULL, &r->out);
	sched_audit(r->s);
	for (uint32_t i = 0; i < r->limits.turn_count; i++)
		if (sched_turn(r->s, i, &view) == 0 && view.key == e->turn_key)
			return i;
	return SCHED_NONE;
}

static inline uint32_t rig_turn(struct rig *r, uint32_t session, struct rig_turn turn)
{
	const struct event e = rig_turn_event(r, session, turn);
	return rig_turn_send(r, &e, NULL);
}

/* The entries of the batch in flight, kept while other events are sent. */
struct rig_batch {
	uint64_t batch;
	uint32_t count;
	struct batch_entry entries[32];
	struct batch_result results[32];
};

/* The batch that the last step issued, with results that say: all went well. */
static inline struct rig_batch rig_batch(const struct rig *r)
{
	struct rig_batch b;
	const struct effect *batch = rig_effect(r, EFFECT_BATCH, 0);
	memset(&b, 0, sizeof b);
	if (!batch)
		return b;
	b.batch = batch->as.batch.batch;
	b.count = batch->as.batch.entry_count;
	for (uint32_t i = 0; i < b.count; i++) {
		b.entries[i] = r->out.entries[i];
		b.results[i].turn = b.entries[i].turn;
		b.results[i].computed = b.entries[i].row_count;
		b.results[i].sampled = b.entries[i].sample;
	}
	return b;
}

/* Answers a batch; returns the one that the same step issued next (count 0 if none). */
static inline struct rig_batch rig_done(struct rig *r, const struct rig_batch *b)
{
	struct event e = rig_event(r, EVENT_BATCH_DONE);
	e.as.batch.batch = b->batch;
	e.as.batch.result_count = b->count;
	sched_step(r->s, &e, NULL, b->results, &r->out);
	sched_audit(r->s);
	return rig_batch(r);
}

/* Answers batches until none is issued; keeps the last END seen. */
static inline struct effect rig_run(struct rig *r, struct rig_batch b)
{
	struct effect end;
	memset(&end, 0, sizeof end);
	for (int bound = 0; b.count > 0 && bound < 100000; bound++) {
		b = rig_done(r, &b);
		if (rig_effect(r, EFFECT_END, 0))
			end = *rig_effect(r, EFFECT_END, 0);
	}
	return end;
}

/* A whole turn on a quiet scheduler: arrival to END. */
static inline struct effect rig_whole(struct rig *r, uint32_t session, uint32_t keep, uint32_t append,
				      uint32_t output_max)
{
	struct rig_turn turn = {keep, append, output_max, output_max, 0, 0};
	(void)rig_turn(r, session, turn);
	struct effect refused;
	memset(&refused, 0, sizeof refused);
	if (rig_effect(r, EFFECT_END, 0))
		refused = *rig_effect(r, EFFECT_END, 0);
	struct effect end = rig_run(r, rig_batch(r));
	return end.kind == EFFECT_END ? end : refused;
}

static inline void rig_simple(struct rig *r, enum event_kind kind, uint32_t session)
{
	struct event e = rig_event(r, kind);
	e.session = session;
	rig_send(r, &e);
}

static inline void rig_cancel(struct rig *r, uint32_t turn, enum end end)
{
	struct event e = rig_event(r, EVENT_CANCEL);
	e.turn = turn;
	e.as.cancel.end = end;
	rig_send(r, &e);
}

static inline void rig_credit(struct rig *r, uint32_t turn, uint32_t tokens)
{
	struct event e = rig_event(r, EVENT_CREDIT);
	e.turn = turn;
	e.as.credit.tokens = tokens;
	rig_send(r, &e);
}

static inline void rig_rollback(struct rig *r, uint32_t session, uint32_t tokens)
{
	struct event e = rig_event(r, EVENT_ROLLBACK);
	e.session = session;
	e.as.rollback.tokens = tokens;
	rig_send(r, &e);
}

static inline void rig_residency(struct rig *r, uint32_t session, enum residency kind, uint64_t bytes,
				 uint64_t lease_us)
{
	struct event e = rig_event(r, EVENT_RESIDENCY);
	e.session = session;
	e.as.residency.kind = kind;
	e.as.residency.bytes = bytes;
	e.as.residency.lease_us = lease_us;
	rig_send(r, &e);
}

static inline void rig_park(struct rig *r, uint32_t session, enum place place)
{
	struct event e = rig_event(r, EVENT_PARK);
	e.session = session;
	e.as.park.place = place;
	rig_send(r, &e);
}

/* What computing a token of a prompt takes, as if it were measured. */
static inline void rig_rate(struct rig *r, uint64_t prefill_ns_token)
{
	struct event e = rig_event(r, EVENT_RATES);
	e.as.rates.prefill_ns_token = prefill_ns_token;
	rig_send(r, &e);
}

/* Page `slot` of the disk is found to hold what comes next in the session's history. */
static inline void rig_found(struct rig *r, uint32_t session, uint32_t slot, uint32_t tokens)
{
	struct event e = rig_event(r, EVENT_FOUND);
	e.session = session;
	e.as.found.slot[0] = slot;
	e.as.found.tokens = tokens;
	rig_send(r, &e);
}

/* Every copy that the last step told is done; returns how many there were. */
static inline uint32_t rig_copies_done(struct rig *r)
{
	uint64_t copies[128];
	uint32_t count = rig_count(r, EFFECT_COPY);
	for (uint32_t i = 0; i < count; i++)
		copies[i] = rig_effect(r, EFFECT_COPY, i)->as.copy.copy;
	for (uint32_t i = 0; i < count; i++) {
		struct event e = rig_event(r, EVENT_COPY_DONE);
		e.as.copy.copy = copies[i];
		rig_send(r, &e);
	}
	return count;
}

static inline void rig_durable(struct rig *r, uint64_t step)
{
	struct event e = rig_event(r, EVENT_DURABLE);
	e.as.durable.step = step;
	rig_send(r, &e);
}

static inline void rig_time(struct rig *r, uint64_t now_us)
{
	r->now_us = now_us;
	rig_simple(r, EVENT_TIMER, SCHED_NONE);
}

#endif
