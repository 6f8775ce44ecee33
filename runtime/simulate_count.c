/*
 * What is counted of a simulated run, and what its picture is made of.
 */
#include <stdlib.h>
#include <string.h>

#include "runtime/simulate_inside.h"

int count_open(struct world *w)
{
	w->ttft = malloc((w->trace->turn_count + 1) * sizeof *w->ttft);
	w->session_us = malloc((w->trace->session_count + 1) * sizeof *w->session_us);
	if (w->picture) {
		w->picture->session_count = w->trace->session_count < PICTURE_SESSIONS
			? w->trace->session_count : PICTURE_SESSIONS;
		w->picture->tokens_max = 1;
	}
	return w->ttft && w->session_us ? 0 : -ERR_MEMORY;
}

void count_close(struct world *w)
{
	free(w->ttft);
	free(w->session_us);
}

/* The picture. */

static void picture_halve(struct picture *p)
{
	for (uint32_t i = 0; i < PICTURE_SAMPLES / 2; i++) {
		for (uint32_t column = 0; column < COLUMN_COUNT; column++)
			p->column[i][column] = p->column[2 * i][column] + p->column[2 * i + 1][column];
		p->host[i] = p->host[2 * i] + p->host[2 * i + 1];
		p->disk[i] = p->disk[2 * i] + p->disk[2 * i + 1];
	}
	for (uint32_t i = PICTURE_SAMPLES / 2; i < PICTURE_SAMPLES; i++) {
		memset(p->column[i], 0, sizeof p->column[i]);
		p->host[i] = p->disk[i] = 0;
	}
	p->bucket_us *= 2;
	p->sample_count = (p->sample_count + 1) / 2;
}

static uint64_t used(const struct world *w, enum account account)
{
	uint64_t bytes = 0;
	for (uint32_t column = COLUMN_FREE + 1; column < COLUMN_COUNT; column++)
		bytes += w->column[account][column];
	return bytes;
}

/* Spreads what the ledger holds over the samples from one time to the other. */
static void picture_time(struct world *w, uint64_t from_us, uint64_t to_us)
{
	struct picture *p = w->picture;
	while (to_us / p->bucket_us >= PICTURE_SAMPLES)
		picture_halve(p);
	while (from_us < to_us) {
		const uint64_t at = from_us / p->bucket_us, edge_us = (at + 1) * p->bucket_us;
		const double us = (double)((edge_us < to_us ? edge_us : to_us) - from_us);
		for (uint32_t column = 0; column < COLUMN_COUNT; column++)
			p->column[at][column] += us * (double)w->column[ACCOUNT_DEVICE][column];
		p->host[at] += us * (double)used(w, ACCOUNT_HOST);
		p->disk[at] += us * (double)used(w, ACCOUNT_DISK);
		if (at + 1 > p->sample_count)
			p->sample_count = (uint32_t)at + 1;
		from_us = edge_us;
	}
}

static void picture_state(struct world *w, uint32_t client)
{
	const struct client *c = &w->clients[client];
	struct session_view view = {.state = SESSION_FREE};
	struct picture *p = w->picture;
	if (c->session != SCHED_NONE && sched_session(w->sched, c->session, &view) != 0)
		return;
	if (p->session[c->picture].count == p->session[c->picture].room) {
		const uint32_t room = p->session[c->picture].room ? 2 * p->session[c->picture].room : 64;
		struct picture_state *states = realloc(p->session[c->picture].states, room * sizeof *states);
		if (!states) {
			w->err = -ERR_MEMORY;
			return;
		}
		p->session[c->picture].states = states;
		p->session[c->picture].room = room;
	}
	if (view.history > p->tokens_max)
		p->tokens_max = view.history;
	p->session[c->picture].states[p->session[c->picture].count++] =
		(struct picture_state){w->now_us, view.state, view.resident, view.history};
}

void picture_close(struct picture *picture)
{
	if (!picture)
		return;
	for (uint32_t i = 0; i < PICTURE_SESSIONS; i++) {
		free(picture->session[i].states);
		picture->session[i].states = NULL;
		picture->session[i].count = picture->session[i].room = 0;
	}
}

/* Counts. */

/* Of a context at rest; of layers with a window, what those keep. */
static uint64_t context_bytes(const struct world *w, uint64_t tokens)
{
	const struct simulate_machine *m = &w->options->machine;
	uint64_t bytes = tokens * m->kv_bytes_per_token;
	if (w->limits.group_count > 1) {
		const uint64_t kept = (uint64_t)sched_window(&w->limits, 1).rest_pages * w->limits.page_tokens;
		bytes -= (tokens > kept ? tokens - kept : 0) * m->window_bytes_per_token;
	}
	return bytes;
}

/* The bytes of the client's context that are wanted: all of it in a turn, what the next prompt
   keeps in a pause, nothing after the last answer. */
static void count_live(struct world *w, uint32_t client)
{
	struct client *c = &w->clients[client];
	const struct trace_session *x = &w->trace->sessions[client];
	uint64_t tokens = 0;
	if (c->next < x->turn_count) {
		const struct trace_turn *turn = client_turn(w, client, c->next);
		tokens = c->admitted ? (uint64_t)turn->prompt + turn->completion : turn->keep;
		if (!c->admitted && tokens > c->history)
			tokens = c->history;
	}
	const uint64_t bytes = context_bytes(w, tokens);
	w->live_bytes += bytes - c->live_bytes;
	c->live_bytes = bytes;
	if (w->live_bytes > w->report->live_peak_bytes)
		w->report->live_peak_bytes = w->live_bytes;
}

void count_state(struct world *w, uint32_t client)
{
	count_live(w, client);
	if (w->picture && w->clients[client].picture != UINT32_MAX)
		picture_state(w, client);
}

void count_time(struct world *w, uint64_t now_us)
{
	const double seconds = (double)(now_us - w->now_us) / 1e6;
	for (uint32_t account = ACCOUNT_DEVICE; account <= ACCOUNT_DISK; account++)
		for (uint32_t column = 0; column < COLUMN_COUNT; column++)
			w->report->byte_seconds[account][column] +=
				seconds * (double)w->column[account][column];
	w->report->live_byte_seconds += seconds * (double)w->live_bytes;
	if (w->picture && now_us > w->now_us)
		picture_time(w, w->now_us, now_us);
}

static uint64_t fold(uint64_t hash, const void *bytes, size_t count)
{
	const char *at = bytes;
	for (; count >= 8; count -= 8, at += 8) {
		uint64_t word;
		memcpy(&word, at, 8);
		hash = (hash ^ word) * 0xff51afd7ed558ccdu;
		hash ^= hash >> 32;
	}
	for (; count > 0; count--, at++)
		hash = (hash ^ (unsigned char)*at) * 0x100000001b3u;
	return hash;
}

void count_step(struct world *w)
{
	for (uint32_t account = ACCOUNT_DEVICE; account <= ACCOUNT_DISK; account++)
		for (uint32_t column = 0; column < COLUMN_COUNT; column++)
			w->column[account][column] =
				sched_ledger(w->sched, (enum account)account, (enum column)column);
	w->report->hash = fold(w->report->hash, &w->now_us, sizeof w->now_us);
	w->report->hash = fold(w->report->hash, w->effects.list,
			       w->effects.count * sizeof *w->effects.list);
	w->report->hash = fold(w->report->hash, w->effects.entries,
			       w->effects.entry_count * sizeof *w->effects.entries);
}

void count_first_token(struct world *w, uint32_t client)
{
	const struct client *c = &w->clients[client];
	CHECK(w->ttft_count < w->trace->turn_count);
	w->ttft[w->ttft_count++] = (w->now_us - c->sent_us) * KIND_COUNT + c->kind;
}

void count_end(struct world *w, uint32_t client, const struct effect *effect)
{
	struct client *c = &w->clients[client];
	struct simulate_report *r = w->report;
	if (effect->as.end.end == END_REFUSED || effect->turn == SCHED_NONE)
		r->turns_refused++;
	else
		r->turns_answered++;
	r->tokens_new += effect->as.end.fresh;
	r->tokens_resident += effect->as.end.resident;
	r->tokens_reloaded += effect->as.end.reloaded;
	r->tokens_recomputed += effect->as.end.recomputed;
	r->tokens_sampled += effect->as.end.sampled;
	c->admitted = false;
	if (c->next + 1 < w->trace->sessions[client].turn_count)
		return;
	r->sessions_done++;
	w->session_us[w->session_us_count++] = w->now_us - c->start_us;
}

static int by_value(const void *a, const void *b)
{
	const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
	return x < y ? -1 : x > y;
}

/* The smallest value that is not below this share of all; the values are sorted. */
static uint64_t quantile(const uint64_t *values, uint32_t count, double share)
{
	const double place = share * count;
	uint32_t at = (uint32_t)place;
	if (count == 0)
		return 0;
	if ((double)at >= place && at > 0)
		at--;
	return values[at < count ? at : count - 1];
}

static struct simulate_ttft ttft_of(const uint64_t *sorted, uint32_t count)
{
	return (struct simulate_ttft){count, quantile(sorted, count, 0.5), quantile(sorted, count, 0.99)};
}

void count_finish(struct world *w)
{
	struct simulate_report *r = w->report;
	uint64_t *some = malloc((w->ttft_count + 1) * sizeof *some);
	if (!some) {
		w->err = -ERR_MEMORY;
		return;
	}
	r->span_us = w->now_us;
	r->tokens_shared = sched_counts(w->sched).tokens_shared;
	qsort(w->ttft, w->ttft_count, sizeof *w->ttft, by_value);
	for (uint32_t kind = 0; kind <= KIND_COUNT; kind++) {
		uint32_t count = 0;
		for (uint32_t i = 0; i < w->ttft_count; i++)
			if (kind == KIND_COUNT || w->ttft[i] % KIND_COUNT == kind)
				some[count++] = w->ttft[i] / KIND_COUNT;
		*(kind == KIND_COUNT ? &r->ttft_all : &r->ttft[kind]) = ttft_of(some, count);
	}
	free(some);
	qsort(w->session_us, w->session_us_count, sizeof *w->session_us, by_value);
	r->session_p50_us = quantile(w->session_us, w->session_us_count, 0.5);
	r->session_p99_us = quantile(w->session_us, w->session_us_count, 0.99);
}
