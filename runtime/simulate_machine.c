/*
 * The machine of a simulated run: how long a step and a copy take, and what they answer.
 */
#include <stdlib.h>
#include <string.h>

#include "runtime/simulate_inside.h"

int machine_open(struct world *w)
{
	const struct simulate_machine *m = &w->options->machine;
	w->token_ns = 1e9 / m->prefill_tps;
	w->base_ns = 1e9 / m->decode_tps - w->token_ns;
	if (w->base_ns < 0)
		w->base_ns = 0;
	w->knee = m->attention_knee;
	w->entries = calloc(w->limits.batch_turns, sizeof *w->entries);
	w->results = calloc(w->limits.batch_turns, sizeof *w->results);
	return w->entries && w->results ? 0 : -ERR_MEMORY;
}

void machine_close(struct world *w)
{
	free(w->entries);
	free(w->results);
	for (uint32_t i = 0; i < LANES; i++)
		free(w->lanes[i].list);
}

/* The rows' cost in units of a prefill token in an empty context. */
static double rows_cost(const struct world *w, const struct batch_entry *entry)
{
	const double rows = entry->row_count, first = entry->position_first;
	if (w->knee <= 0)
		return rows;
	return rows + (rows * first + rows * (rows - 1) / 2) / w->knee;
}

void machine_batch(struct world *w, const struct effect *effect)
{
	double ns = w->base_ns;
	CHECK(w->batch == 0);
	w->batch = effect->as.batch.batch;
	w->entry_count = effect->as.batch.entry_count;
	CHECK(w->entry_count <= w->limits.batch_turns);
	memcpy(w->entries, w->effects.entries + effect->as.batch.entry_first,
	       w->entry_count * sizeof *w->entries);
	for (uint32_t i = 0; i < w->entry_count; i++) {
		const struct batch_entry *entry = &w->entries[i];
		struct client *c = &w->clients[w->turn_client[entry->turn]];
		ns += w->token_ns * rows_cost(w, entry);
		/* Whoever computes a position twice in one turn was robbed of it. */
		w->report->forced_recomputes += entry->position_first < c->high;
		c->high = entry->position_first + entry->row_count;
	}
	w->batch_us = (uint64_t)(ns / 1000) + 1;
	w->batch_done_us = w->now_us + w->batch_us;
	w->report->busy_s += (double)w->batch_us / 1e6;
}

int machine_copy(struct world *w, const struct effect *effect)
{
	const uint32_t from = effect->as.copy.place_from, to = effect->as.copy.place_to;
	const uint32_t lower = from > to ? from : to;
	CHECK(lower == PLACE_HOST || lower == PLACE_DISK);
	struct lane *lane = &w->lanes[lower == PLACE_DISK];
	const double rate = lower == PLACE_DISK ? w->options->machine.disk_bps
						: w->options->machine.host_bps;
	const double us = (double)w->limits.group[effect->as.copy.group].page_bytes / rate * 1e6;
	if (lane->count == lane->room) {
		const uint32_t room = lane->room ? 2 * lane->room : 1024;
		struct copy_flight *list = malloc(room * sizeof *list);
		if (!list)
			return -ERR_MEMORY;
		for (uint32_t i = 0; i < lane->count; i++)
			list[i] = lane->list[(lane->first + i) % lane->room];
		free(lane->list);
		*lane = (struct lane){list, 0, lane->count, room, lane->free_us};
	}
	const uint64_t start_us = lane->free_us > w->now_us ? lane->free_us : w->now_us;
	lane->free_us = start_us + (uint64_t)us + 1;
	lane->list[(lane->first + lane->count++) % lane->room] =
		(struct copy_flight){effect->as.copy.copy, lane->free_us};
	w->report->copy_busy_s[lower] += us / 1e6;
	return 0;
}

static const struct lane *lane_due(const struct world *w)
{
	const struct lane *due = NULL;
	for (uint32_t i = 0; i < LANES; i++) {
		const struct lane *lane = &w->lanes[i];
		if (lane->count && (!due || lane->list[lane->first].done_us < due->list[due->first].done_us))
			due = lane;
	}
	return due;
}

uint64_t machine_due_us(const struct world *w)
{
	const struct lane *lane = lane_due(w);
	uint64_t due_us = lane ? lane->list[lane->first].done_us : UINT64_MAX;
	if (w->batch && w->batch_done_us < due_us)
		due_us = w->batch_done_us;
	return due_us;
}

static struct event copy_event(struct world *w)
{
	struct lane *lane = &w->lanes[lane_due(w) - w->lanes];
	struct event e = {.kind = EVENT_COPY_DONE, .session = SCHED_NONE, .turn = SCHED_NONE};
	e.as.copy.copy = lane->list[lane->first].copy;
	lane->first = (lane->first + 1) % lane->room;
	lane->count--;
	return e;
}

/* What ends a turn that has sampled all that the trace's did. */
static enum end turn_end_of(const struct trace_turn *turn)
{
	return turn->stop == TRACE_TOOL ? END_TOOL : turn->stop == TRACE_END ? END_STOP : END_LIMIT;
}

struct event machine_event(struct world *w)
{
	if (!w->batch || w->batch_done_us > machine_due_us(w))
		return copy_event(w);
	struct event e = {.kind = EVENT_BATCH_DONE, .session = SCHED_NONE, .turn = SCHED_NONE};
	e.as.batch.batch = w->batch;
	e.as.batch.measured_us = w->batch_us;
	e.as.batch.result_count = w->entry_count;
	for (uint32_t i = 0; i < w->entry_count; i++) {
		const struct batch_entry *entry = &w->entries[i];
		const uint32_t client = w->turn_client[entry->turn];
		struct client *c = &w->clients[client];
		struct batch_result *r = &w->results[i];
		*r = (struct batch_result){.turn = entry->turn, .computed = entry->row_count,
					   .sampled = entry->sample};
		if (!entry->sample)
			continue;
		const struct trace_turn *turn = client_turn(w, client, c->next);
		if (c->sampled++ == 0)
			count_first_token(w, client);
		if (c->sampled >= turn->completion)
			r->end = turn_end_of(turn);
	}
	w->batch = 0;
	return e;
}
