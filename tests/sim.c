/*
 * The simulator's world: draws limits and weights from a seed, sends random events, answers
 * batches with partial results and faults, and at the end stops the faults and sees it through.
 */
#include "tests/sim.h"
#include "tests/model.h"

#include <stdlib.h>
#include <string.h>

struct world {
	uint64_t rng, now_us, next_key, durable;
	uint32_t weight[EVENT_KIND_COUNT], weight_sum, faults, calm, wants_drain, known;
	uint32_t scripted, keyed; /* how often a turn has tokens that others have too, and tells its keys */
	struct model *m;
	struct sched *s;
	struct sched_limits limits;
	struct effects out;
	struct sim_trace *trace;
	struct sim_report *report;
	struct sim_options options;
};

static uint64_t draw(struct world *w)
{
	w->rng += 0x9e3779b97f4a7c15u;
	uint64_t z = w->rng;
	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
	return z ^ (z >> 31);
}

static uint32_t below(struct world *w, uint64_t bound)
{
	return bound ? (uint32_t)(draw(w) % bound) : 0;
}

static int chance(struct world *w, uint32_t of_1000)
{
	return below(w, 1000) < of_1000;
}

static void limits_draw(struct world *w)
{
	struct sched_limits *l = &w->limits;
	memset(l, 0, sizeof *l);
	l->session_count = 1 + below(w, SIM_SESSIONS);
	l->turn_count = 2 + below(w, SIM_TURNS - 1);
	l->principal_count = 1 + below(w, 3);
	l->group_count = chance(w, 250) ? 2 : 1;
	l->page_tokens = chance(w, 700) ? 16 : 32;
	/* Some contexts are long enough for page tables of several chunks. */
	uint32_t wide = (uint32_t)chance(w, 150);
	l->context_tokens = 20 + below(w, wide ? SIM_CONTEXT - 20 : 236);
	l->batch_turns = 1 + below(w, l->turn_count);
	l->batch_rows = l->batch_turns + below(w, wide ? 900 : 96);
	l->chunk_tokens = 1 + below(w, wide ? 600 : 64);
	l->queue_turns = 1 + below(w, 8);
	l->growth_tokens = chance(w, 500) ? 0 : 1 + below(w, 64);
	l->hold_until_durable = below(w, 2);
	l->step_us = chance(w, 200) ? SCHED_STEP_AUTO : below(w, 2) * 100;
	l->weights_bytes = 12345;
	l->stream_turn_bytes = 10;
	l->stream_bytes = 10 * (1 + below(w, SIM_TURNS));
	l->lease_us_max = chance(w, 900) ? 20000 : 0;
	uint32_t tiers = below(w, 3);
	for (uint32_t g = 0; g < l->group_count; g++) {
		l->group[g].page_bytes = 100 + g;
		uint32_t most = wide ? SIM_PAGES : chance(w, 500) ? 12 : 63;
		l->group[g].page_count[PLACE_DEVICE] = 1 + below(w, most);
		if (tiers > 0)
			l->group[g].page_count[PLACE_HOST] = 1 + below(w, SIM_LOW - 1);
		if (tiers > 1)
			l->group[g].page_count[PLACE_DISK] = 1 + below(w, SIM_LOW - 1);
	}
	l->policy = chance(w, 500) ? POLICY_COST : below(w, POLICY_COUNT);
	l->wait_us_max = below(w, 2) * below(w, 20000);
	l->ttl_us = below(w, 5000);
	l->knee_tokens = below(w, 2) * 100;
	l->public_principal = chance(w, 300) ? 1 + below(w, l->principal_count) : 0;
	l->principal_turns = below(w, 4);
	l->principal_bytes = below(w, 2) * 100 * (1 + below(w, 64));
}

/* Every third world has a group with a window. Drawn aside, so that the others stay what they were. */
static void windows_draw(const struct world *w, uint64_t seed, struct sched_limits *l)
{
	struct world aside = *w;
	aside.rng ^= 0x57494e444f57;
	if (seed % 3 != 0)
		return;
	if (l->group_count == 1) {
		l->group_count = 2;
		l->group[1] = l->group[0];
		l->group[1].page_bytes += 7;
		for (uint32_t place = 0; place < PLACE_COUNT; place++)
			if (l->group[1].page_count[place] && l->group[1].page_count[place] < SIM_PAGES / 2)
				l->group[1].page_count[place] = 1 + below(&aside, l->group[1].page_count[place] + 8);
	}
	l->group[1].window_tokens = 1 + below(&aside, chance(&aside, 700) ? 64 : 400);
	/* Mostly, what the window needs is there. */
	if (chance(&aside, 700) && l->group[1].page_count[PLACE_DEVICE] < 16)
		l->group[1].page_count[PLACE_DEVICE] += 12;
}

/* Swarm: each run leaves some kinds of event out, and likes some others. */
static void weights_draw(struct world *w)
{
	static const uint32_t usual[EVENT_KIND_COUNT] = {
		[EVENT_OPEN] = 10, [EVENT_FORK] = 8, [EVENT_TURN] = 40, [EVENT_CANCEL] = 8, [EVENT_CREDIT] = 30,
		[EVENT_ROLLBACK] = 8, [EVENT_CLOSE] = 4, [EVENT_RESIDENCY] = 8, [EVENT_HINT] = 2, [EVENT_PARK] = 3,
		[EVENT_BATCH_DONE] = 90, [EVENT_COPY_DONE] = 60, [EVENT_DURABLE] = 40,
		[EVENT_TIMER] = 8, [EVENT_RATES] = 1, [EVENT_FOUND] = 10,
	};
	for (uint32_t kind = 0; kind <= EVENT_FOUND; kind++) {
		uint32_t factor = below(w, 4);
		if (kind == EVENT_OPEN || kind == EVENT_TURN || kind == EVENT_BATCH_DONE || kind == EVENT_DURABLE ||
		    kind == EVENT_COPY_DONE)
			factor++;
		w->weight[kind] = usual[kind] * factor;
		w->weight_sum += w->weight[kind];
	}
	w->faults = below(w, 3) * 20;
	w->scripted = below(w, 4) * 300;
	w->keyed = below(w, 4) * 320;
	w->wants_drain = chance(w, 150);
}

static void fold(uint64_t *hash, const void *bytes, size_t count)
{
	const unsigned char *at = bytes;
	for (size_t i = 0; i < count; i++)
		*hash = (*hash ^ at[i]) * 0x100000001b3u;
}

static uint64_t effects_fold(uint64_t hash, const struct effects *out)
{
	fold(&hash, out->list, out->count * sizeof *out->list);
	fold(&hash, out->entries, out->entry_count * sizeof *out->entries);
	return hash;
}

static void trace_add(struct sim_trace *t, const struct model *m, const struct event *e,
		      const struct chain_key *keys, const struct batch_result *results)
{
	uint32_t key_count = e->kind == EVENT_TURN ? e->as.turn.chain_count : 0;
	if (t->key_count + key_count > t->key_capacity) {
		t->key_capacity = 2 * t->key_capacity + SIM_UNITS;
		t->keys = realloc(t->keys, t->key_capacity * sizeof *t->keys);
	}
	if (key_count)
		memcpy(t->keys + t->key_count, keys, key_count * sizeof *keys);
	t->key_count += key_count;
	uint32_t count = e->kind == EVENT_BATCH_DONE ? e->as.batch.result_count : 0;
	if (t->event_count == t->event_capacity) {
		t->event_capacity = t->event_capacity ? 2 * t->event_capacity : 1024;
		t->events = realloc(t->events, t->event_capacity * sizeof *t->events);
		t->who = realloc(t->who, t->event_capacity * sizeof *t->who);
	}
	if (t->result_count + count > t->result_capacity) {
		t->result_capacity = 2 * t->result_capacity + 1024;
		t->results = realloc(t->results, t->result_capacity * sizeof *t->results);
	}
	t->who[t->event_count] = e->session != SCHED_NONE ? m->session[e->session].key
		: e->turn != SCHED_NONE ? m->turn[model_turn_by_index(m, e->turn)].key : 0;
	t->events[t->event_count++] = *e;
	if (count)
		memcpy(t->results + t->result_count, results, count * sizeof *results);
	t->result_count += count;
}

static void effects_open(struct effects *out, const struct sched_limits *limits)
{
	memset(out, 0, sizeof *out);
	out->capacity = sched_effect_max(limits);
	out->list = calloc(out->capacity, sizeof *out->list);
	out->entry_capacity = limits->batch_turns;
	out->entries = calloc(out->entry_capacity, sizeof *out->entries);
}

static struct event event_make(const struct world *w, enum event_kind kind)
{
	struct event e;
	memset(&e, 0, sizeof e);
	e.kind = kind;
	e.now_us = w->now_us;
	e.session = e.turn = SCHED_NONE;
	return e;
}

static void send_keyed(struct world *w, const struct event *e, const struct chain_key *keys,
		       const struct batch_result *results)
{
	if (w->m->failure)
		return;
	if (w->trace)
		trace_add(w->trace, w->m, e, keys, results);
	sched_step(w->s, e, keys, results, &w->out);
	sched_audit(w->s);
	model_event(w->m, e, results, &w->out);
	model_after(w->m, &w->out);
	if (w->options.planted && w->options.planted(&w->out))
		model_fail(w->m, "planted");
	w->report->effects_hash = effects_fold(w->report->effects_hash, &w->out);
	w->report->steps++;
	for (uint32_t i = 0; i < w->out.count; i++) {
		w->report->seen[w->out.list[i].kind]++;
		if (w->out.list[i].kind == EFFECT_END)
			w->report->ended[w->out.list[i].as.end.end]++;
	}
	if (w->m->failure)
		w->report->failure_step = w->report->steps;
}

static void send(struct world *w, const struct event *e, const struct batch_result *results)
{
	send_keyed(w, e, NULL, results);
}

/* A session that is open, drawn fairly; SCHED_NONE if there is none. */
static uint32_t session_draw(struct world *w)
{
	uint32_t seen = 0, found = SCHED_NONE;
	for (uint32_t i = 0; i < w->limits.session_count; i++)
		if (w->m->session[i].open && below(w, ++seen) == 0)
			found = i;
	return found;
}

static uint32_t turn_draw(struct world *w)
{
	uint32_t seen = 0, found = SCHED_NONE;
	for (uint32_t i = 0; i < MODEL_TURNS; i++)
		if (w->m->turn[i].live && w->m->turn[i].index != SCHED_NONE && below(w, ++seen) == 0)
			found = i;
	return found;
}

static void residency_draw(struct world *w, struct event *e)
{
	e->as.residency.kind = below(w, 3);
	e->as.residency.bytes = chance(w, 100) ? UINT64_MAX : below(w, 2000);
	e->as.residency.lease_us = chance(w, 100) ? UINT64_MAX : below(w, 30000);
}

static void turn_make(struct world *w, struct event *e)
{
	const struct model_session *x = &w->m->session[e->session];
	uint32_t history = x->history;
	e->turn_key = ++w->next_key;
	e->as.turn.keep = chance(w, 800) ? history : below(w, history + 1 + (uint32_t)chance(w, 50));
	e->as.turn.append = chance(w, 100) ? 0 : below(w, chance(w, 300) ? w->limits.context_tokens + 2 : 40);
	e->as.turn.output_max = chance(w, 30) ? 0 : 1 + below(w, chance(w, 300) ? 300 : 20);
	e->as.turn.credit = chance(w, 700) ? 1000 : below(w, 4);
	e->as.turn.supersede = (uint32_t)chance(w, 300);
	if (chance(w, 50))
		e->as.turn.deadline_us = w->now_us + below(w, 5000);
	if (chance(w, 5))
		e->as.turn.append = 0xffffffffu;
	if (!chance(w, w->scripted))
		return;
	/* As others do: from the start, or going on. */
	e->turn_key |= (uint64_t)(1 + below(w, 2)) << 32;
	if (chance(w, 600)) {
		e->as.turn.keep = 0;
		e->as.turn.append = 1 + below(w, w->limits.context_tokens);
	}
}

/* With the keys of its prompt, or of a part. */
static void turn_send(struct world *w, struct event *e)
{
	struct chain_key keys[SIM_UNITS];
	uint32_t count = chance(w, w->keyed) ? model_keys(w->m, e, keys) : 0, first = 0;
	if (count && chance(w, 200)) {
		first = below(w, count);
		count = first + 1 + below(w, count - first);
	}
	e->as.turn.chain_first = count ? first : 0;
	e->as.turn.chain_count = count - first;
	send_keyed(w, e, keys + first, NULL);
}

/* A page of the entry's session, for a result that says it did not match. */
static void integrity_draw(struct world *w, const struct batch_entry *entry, struct batch_result *r)
{
	struct page_ref refs[SIM_UNITS];
	r->group = below(w, w->limits.group_count);
	uint32_t first = sched_page_first(w->s, entry->session, r->group);
	uint32_t count = sched_page_table(w->s, entry->session, r->group, first, SIM_UNITS, refs);
	r->page = refs[below(w, count)].page;
	r->end = END_INTEGRITY;
	r->computed = chance(w, 500) ? 0 : r->computed;
	r->sampled = 0;
}

/* Tokens behind a sampled one that are known without sampling, as many as there is room for; in one
   world of eight. Chance is looked at and not drawn, so that the others stay as they are. */
static uint32_t known_draw(const struct world *w, const struct batch_entry *entry)
{
	const struct model_turn *t = &w->m->turn[model_turn_by_index(w->m, entry->turn)];
	uint32_t room = w->limits.context_tokens - w->m->session[t->session].history, most = 8;
	if (room > t->output_max - t->sampled)
		room = t->output_max - t->sampled;
	if (room > t->credit - t->sampled)
		room = t->credit - t->sampled;
	const uint32_t look = (uint32_t)(w->rng >> 40) + entry->position_first;
	return w->known && look % 4 == 0 && room > 1 ? look / 4 % (room < most ? room : most) : 0;
}

static void batch_answer(struct world *w)
{
	struct batch_result results[SIM_TURNS];
	struct event e = event_make(w, EVENT_BATCH_DONE);
	uint32_t rows = 0;
	memset(results, 0, sizeof results);
	for (uint32_t i = 0; i < w->m->entry_count; i++) {
		const struct batch_entry *entry = &w->m->entries[i];
		struct batch_result *r = &results[i];
		uint32_t faults = w->calm ? 0 : w->faults;
		r->turn = entry->turn;
		r->computed = chance(w, faults) ? below(w, entry->row_count + 1) : entry->row_count;
		r->sampled = entry->sample && r->computed == entry->row_count;
		r->sampled += r->sampled ? known_draw(w, entry) : 0;
		rows += r->computed;
		w->report->faults += r->computed < entry->row_count;
		/* Pages that are quarantined do not come back: a few of them, or there is soon nothing to do. */
		if (chance(w, w->options.storm ? 2 : faults / 4)) {
			integrity_draw(w, entry, r);
			w->report->faults++;
		} else if (chance(w, faults)) {
			r->end = END_FAULT;
			w->report->faults++;
			r->sampled = chance(w, 500) ? r->sampled : 0;
		} else if (r->sampled && chance(w, 60)) {
			r->end = chance(w, 500) ? END_STOP : END_TOOL;
			r->sampled = chance(w, 300) ? 0 : r->sampled;
		}
	}
	w->now_us += 20 + rows;
	e.now_us = w->now_us;
	e.as.batch.batch = w->m->batch;
	e.as.batch.result_count = w->m->entry_count;
	e.as.batch.measured_us = 20 + rows;
	send(w, &e, results);
}

/* One of the copies in flight is done, or has failed. */
static void copy_answer(struct world *w)
{
	struct event e = event_make(w, EVENT_COPY_DONE);
	uint32_t seen = 0;
	for (uint32_t i = 0; i < SIM_COPIES; i++)
		if (w->m->copy[i].id && below(w, ++seen) == 0)
			e.as.copy.copy = w->m->copy[i].id;
	if (seen == 0)
		return;
	e.as.copy.err = !w->calm && chance(w, w->faults) ? ERR_IO : 0;
	w->report->faults += e.as.copy.err != 0;
	send(w, &e, NULL);
}

static void durable_send(struct world *w, int all)
{
	struct event e = event_make(w, EVENT_DURABLE);
	uint64_t behind = w->m->step - w->durable;
	w->durable += all ? behind : below(w, behind + 1);
	e.as.durable.step = w->durable;
	send(w, &e, NULL);
}

static void turn_event_send(struct world *w, enum event_kind kind)
{
	static const uint32_t ends[] = {END_CANCEL, END_SLOW, END_STOP, END_TOOL, END_DRAIN};
	struct event e = event_make(w, kind);
	uint32_t turn = turn_draw(w);
	if (turn == SCHED_NONE)
		return;
	e.turn = w->m->turn[turn].index;
	if (kind == EVENT_CANCEL)
		e.as.cancel.end = ends[below(w, 5)];
	else
		e.as.credit.tokens = w->m->turn[turn].sampled + below(w, 8);
	send(w, &e, NULL);
}

/* A page of the disk proves to be the next one of a session that rests, if there is such a session. */
static int found_make(struct world *w, struct event *e)
{
	const struct model_session *x = &w->m->session[e->session];
	uint32_t span = w->limits.page_tokens, room = w->limits.context_tokens - x->history;
	if (model_windowed(w->m))
		return 0;
	if (x->turn != SCHED_NONE || x->closing || x->resident != x->history || x->history % span || room < 2)
		return 0;
	for (uint32_t g = 0; g < w->limits.group_count; g++) {
		uint32_t seen = 0;
		for (uint32_t i = 0; i < w->limits.group[g].page_count[PLACE_DISK]; i++)
			if (w->m->page[g][model_id(PLACE_DISK, i)].state == PAGE_FREE && below(w, ++seen) == 0)
				e->as.found.slot[g] = i;
		if (seen == 0)
			return 0;
	}
	e->as.found.tokens = chance(w, 700) ? span : 1 + below(w, span);
	if (e->as.found.tokens >= room)
		e->as.found.tokens = room - 1;
	return 1;
}

static void session_event_send(struct world *w, enum event_kind kind)
{
	struct event e = event_make(w, kind);
	e.session = session_draw(w);
	if (e.session == SCHED_NONE)
		return;
	switch (kind) {
	case EVENT_FORK:
		e.session_key = ++w->next_key;
		residency_draw(w, &e);
		break;
	case EVENT_TURN:
		turn_make(w, &e);
		turn_send(w, &e);
		return;
	case EVENT_ROLLBACK:
		e.as.rollback.tokens = below(w, w->m->session[e.session].history + 2);
		break;
	case EVENT_RESIDENCY: residency_draw(w, &e); break;
	case EVENT_HINT:
		e.as.hint.pause = below(w, 2);
		e.as.hint.tool_key = below(w, 5);
		e.as.hint.returns_in_us = chance(w, 300) ? draw(w) >> below(w, 64) : 0;
		break;
	case EVENT_PARK: e.as.park.place = below(w, PLACE_TOKENS + 1); break;
	case EVENT_FOUND:
		if (!found_make(w, &e))
			return;
		break;
	default: break;
	}
	/* Some hints say no more than that the session is wanted; drawn like this, a seed stays what it was. */
	if (kind == EVENT_HINT && e.as.hint.tool_key == 4) {
		memset(&e.as, 0, sizeof e.as);
		e.kind = EVENT_TOUCH;
	}
	send(w, &e, NULL);
}

static void random_event(struct world *w)
{
	uint32_t at = below(w, w->weight_sum), kind = 0;
	while (at >= w->weight[kind])
		at -= w->weight[kind++];
	w->now_us += below(w, 100);
	struct event e = event_make(w, (enum event_kind)kind);
	switch (kind) {
	case EVENT_OPEN:
		e.session_key = ++w->next_key;
		e.principal = below(w, w->limits.principal_count);
		residency_draw(w, &e);
		send(w, &e, NULL);
		break;
	case EVENT_BATCH_DONE:
		if (w->m->batch)
			batch_answer(w);
		break;
	case EVENT_DURABLE: durable_send(w, 0); break;
	case EVENT_COPY_DONE: copy_answer(w); break;
	case EVENT_TIMER:
		if (sched_deadline_us(w->s) != UINT64_MAX && sched_deadline_us(w->s) > w->now_us && chance(w, 500))
			w->now_us = e.now_us = sched_deadline_us(w->s);
		send(w, &e, NULL);
		break;
	case EVENT_RATES:
		e.as.rates.prefill_ns_token = below(w, 5000);
		e.as.rates.decode_ns_row = below(w, 5000);
		e.as.rates.copy_bytes_s[PLACE_HOST] = chance(w, 500) ? 0 : draw(w) >> below(w, 64);
		e.as.rates.copy_bytes_s[PLACE_DISK] = chance(w, 500) ? 0 : draw(w) >> below(w, 64);
		send(w, &e, NULL);
		break;
	case EVENT_CANCEL:
	case EVENT_CREDIT: turn_event_send(w, (enum event_kind)kind); break;
	default: session_event_send(w, (enum event_kind)kind); break;
	}
}

/* Everybody reads, records become durable, batches succeed: all turns that can run must end. */
static void see_through(struct world *w)
{
	/* Without a batch, two records may have to become durable before there is one: that of what was
	   given up before, and that of what is given up for the rest. */
	uint64_t before = 0;
	for (uint32_t round = 0, idle = 0, late = 0; round < 20000 && idle < 3 && !w->m->failure; round++) {
		uint64_t live = 0;
		for (uint32_t i = 0; i < MODEL_TURNS; i++) {
			const struct model_turn *t = &w->m->turn[i];
			live += t->live;
			if (!t->live || t->credit >= 1000)
				continue;
			struct event e = event_make(w, EVENT_CREDIT);
			e.turn = t->index;
			e.as.credit.tokens = 1000;
			send(w, &e, NULL);
			idle = 0;
		}
		if (live == 0)
			return;
		if (live != before)
			late = 0;
		before = live;
		durable_send(w, 1);
		idle++;
		for (; w->m->copies && !w->m->failure; idle = 0)
			copy_answer(w);
		if (sched_deadline_us(w->s) != UINT64_MAX && idle == 2 && late < 3) {
			/* Whoever waits for its time to come, sees it come. */
			late++;
			w->now_us += w->limits.wait_us_max;
			struct event e = event_make(w, EVENT_TIMER);
			send(w, &e, NULL);
			idle = 0;
		}
		if (w->m->batch) {
			batch_answer(w);
			idle = 0;
		}
	}
}

static void liveness(struct world *w)
{
	w->calm = 1;
	see_through(w);
	/* Whoever still waits must have no room beside the grants. */
	for (uint32_t i = 0; i < MODEL_TURNS && !w->m->failure; i++)
		if (w->m->turn[i].live && (w->m->turn[i].running || model_fits_beside(w->m, &w->m->turn[i])))
			model_fail(w->m, "liveness: a turn is not answered");
	for (uint32_t i = 0; i < w->limits.session_count && !w->m->failure; i++) {
		struct event e = event_make(w, EVENT_RESIDENCY);
		e.session = i;
		if (w->m->session[i].open)
			send(w, &e, NULL);
		see_through(w);
	}
	if (w->m->failure)
		return;
	for (uint32_t i = 0; i < MODEL_TURNS; i++)
		if (w->m->turn[i].live)
			model_fail(w->m, "liveness: a turn is not answered without grants");
	while (w->m->copies && !w->m->failure)
		copy_answer(w);
	durable_send(w, 1);
	uint64_t doomed = 0;
	for (uint32_t g = 0; g < w->limits.group_count; g++)
		for (uint32_t i = 0; i < w->limits.group[g].page_count[PLACE_DEVICE]; i++)
			doomed += w->m->page[g][i].state == PAGE_DOOMED;
	if (doomed || sched_ledger(w->s, ACCOUNT_DEVICE, COLUMN_RUNNING) ||
	    sched_ledger(w->s, ACCOUNT_DEVICE, COLUMN_PROMISED))
		model_fail(w->m, "liveness: pages are not free, retained or quarantined");
	for (uint32_t i = 0; i < w->limits.session_count && !w->m->failure; i++) {
		struct event e = event_make(w, EVENT_CLOSE);
		e.session = i;
		if (w->m->session[i].open)
			send(w, &e, NULL);
	}
	if (sched_ledger(w->s, ACCOUNT_DEVICE, COLUMN_RETAINED) ||
	    sched_ledger(w->s, ACCOUNT_DEVICE, COLUMN_SHARED) ||
	    sched_ledger(w->s, ACCOUNT_HOST, COLUMN_RETAINED) ||
	    sched_ledger(w->s, ACCOUNT_HOST, COLUMN_SHARED) ||
	    sched_ledger(w->s, ACCOUNT_DISK, COLUMN_RETAINED) ||
	    sched_ledger(w->s, ACCOUNT_DISK, COLUMN_SHARED))
		model_fail(w->m, "liveness: pages are left after the last session");
	if (sched_deadline_us(w->s) != UINT64_MAX)
		model_fail(w->m, "liveness: a timer runs with nobody there");
}

void sim_run(uint64_t seed, uint32_t steps, const struct sim_options *options, struct sim_trace *trace,
	     struct sim_report *out)
{
	struct world w;
	memset(&w, 0, sizeof w);
	memset(out, 0, sizeof *out);
	if (options)
		w.options = *options;
	w.rng = seed * 0x2545f4914f6cdd1du + 1;
	w.known = seed % 8 == 3;
	w.report = out;
	w.trace = trace;
	limits_draw(&w);
	windows_draw(&w, seed, &w.limits);
	weights_draw(&w);
	if (w.options.storm)
		w.faults = w.options.storm;
	if (trace) {
		memset(trace, 0, sizeof *trace);
		trace->limits = w.limits;
	}
	w.s = sched_init(aligned_alloc(64, sched_bytes(&w.limits)), &w.limits);
	effects_open(&w.out, &w.limits);
	w.m = malloc(sizeof *w.m);
	model_open(w.m, w.s, &w.limits);
	for (uint32_t i = 0; i < steps && !w.m->failure; i++)
		random_event(&w);
	if (w.wants_drain) {
		struct event e = event_make(&w, EVENT_DRAIN);
		send(&w, &e, NULL);
	}
	if (!w.m->failure)
		liveness(&w);
	out->hash = sched_hash(w.s);
	out->simulated_us = w.now_us;
	out->failure = w.m->failure;
	out->shared = w.m->shared;
	free(w.m);
	free(w.s);
	free(w.out.list);
	free(w.out.entries);
}

uint64_t sim_replay(const struct sim_trace *trace, uint64_t *state_hash)
{
	struct effects out;
	uint64_t hash = 0;
	uint32_t result = 0, key = 0;
	effects_open(&out, &trace->limits);
	struct sched *s = sched_init(aligned_alloc(64, sched_bytes(&trace->limits)), &trace->limits);
	for (uint32_t i = 0; i < trace->event_count; i++) {
		const struct event *e = &trace->events[i];
		sched_step(s, e, trace->keys + key, trace->results + result, &out);
		if (e->kind == EVENT_TURN)
			key += e->as.turn.chain_count;
		if (e->kind == EVENT_BATCH_DONE)
			result += e->as.batch.result_count;
		hash = effects_fold(hash, &out);
	}
	*state_hash = sched_hash(s);
	free(s);
	free(out.list);
	free(out.entries);
	return hash;
}

void sim_trace_free(struct sim_trace *trace)
{
	free(trace->events);
	free(trace->results);
	free(trace->keys);
	free(trace->who);
	memset(trace, 0, sizeof *trace);
}
