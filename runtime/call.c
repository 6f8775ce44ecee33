/*
 * Accepted calls: a slot for each, its stream out, its credit, and exactly one END.
 *
 * A turn's text and tokens stay in the slot from first to last, so that what is sent is only a
 * matter of two positions. Nothing is sent while the scheduler's effects are carried out: effects
 * change slots, call_flush sends.
 */
#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "runtime/fault.h"
#include "runtime/forget.h"
#include "runtime/keep.h"

enum { DATA_TOKENS_MAX = 128, DATA_TEXT_MAX = 16384, END_BODY_BYTES = 160 * 1024, UNMARKED_US = 100000 };

/* Address space only: pages that are never touched cost nothing. */
void *memory_reserve(size_t bytes)
{
	void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	return p == MAP_FAILED ? NULL : p;
}

void memory_release(void *at, size_t bytes)
{
	munmap(at, bytes);
}

/* The slot's touched memory goes back, so that one large turn does not stay in memory for ever. */
static void release(void *at, size_t bytes)
{
	madvise(at, bytes, MADV_DONTNEED);
}

int calls_open(struct daemon *d)
{
	const size_t n = d->options.calls, context = d->limits.context_tokens;
	d->end_max = END_BODY_BYTES;
	d->idem_count = (uint32_t)n * 4;
	d->calls_top = 0;
	d->calls = calloc(n, sizeof *d->calls);
	d->idem = calloc(d->idem_count, sizeof *d->idem);
	if (!d->calls || !d->idem)
		return -ERR_MEMORY;
	for (size_t i = 0; i < n; i++) {
		struct call *c = &d->calls[i];
		c->text = memory_reserve(d->text_max);
		c->token = memory_reserve(context * sizeof *c->token);
		c->text_end = memory_reserve(context * sizeof *c->text_end);
		c->logprob = memory_reserve(context * sizeof *c->logprob);
		c->alternatives = memory_reserve(context * sizeof *c->alternatives);
		c->sent = memory_reserve(context * sizeof *c->sent);
		c->end_body = memory_reserve(d->end_max);
		if (!c->text || !c->token || !c->text_end || !c->logprob || !c->alternatives || !c->sent ||
		    !c->end_body)
			return -ERR_MEMORY;
	}
	return 0;
}

void calls_close(struct daemon *d)
{
	const size_t context = d->limits.context_tokens;
	for (uint32_t i = 0; d->calls && i < d->options.calls; i++) {
		struct call *c = &d->calls[i];
		if (c->text)
			munmap(c->text, d->text_max);
		if (c->token)
			munmap(c->token, context * sizeof *c->token);
		if (c->text_end)
			munmap(c->text_end, context * sizeof *c->text_end);
		if (c->logprob)
			munmap(c->logprob, context * sizeof *c->logprob);
		if (c->alternatives)
			munmap(c->alternatives, context * sizeof *c->alternatives);
		if (c->sent)
			munmap(c->sent, context * sizeof *c->sent);
		if (c->end_body)
			munmap(c->end_body, d->end_max);
	}
	free(d->calls);
	free(d->idem);
	d->calls = NULL;
	d->idem = NULL;
}

int idem_find(const struct daemon *d, uint32_t principal, const struct wire_id *key,
	      const uint8_t body_hash[16], struct wire_id *op)
{
	for (uint32_t i = 0; i < d->idem_count; i++) {
		const struct idem *e = &d->idem[i];
		if (!e->used || e->principal != principal || memcmp(&e->key, key, sizeof *key) != 0)
			continue;
		if (memcmp(e->body_hash, body_hash, sizeof e->body_hash) != 0)
			return -ERR_IDEM_MISMATCH;
		*op = e->op;
		return 1;
	}
	return 0;
}

void idem_keep(struct daemon *d, uint32_t call, const struct wire_id *key, const uint8_t body_hash[16])
{
	struct call *c = &d->calls[call];
	c->idem = d->idem_next;
	c->keyed = true;
	struct idem *e = &d->idem[d->idem_next];
	d->idem_next = (d->idem_next + 1) % d->idem_count;
	e->used = true;
	e->principal = c->principal;
	e->key = *key;
	e->op = c->op;
	memcpy(e->body_hash, body_hash, sizeof e->body_hash);
}

void call_idem_forget(struct daemon *d, uint32_t call)
{
	struct call *c = &d->calls[call];
	if (c->idem == NONE)
		return;
	struct idem *e = &d->idem[c->idem];
	/* Unless a newer key has its place. */
	if (e->used && memcmp(&e->op, &c->op, sizeof e->op) == 0) {
		e->used = false;
		if (c->accept_mark)
			keep_idem_drop(d, c->principal, &e->key);
	}
	c->accept_mark = 0;
	c->idem = NONE;
	c->keyed = false;
}

void call_reset(struct daemon *d, uint32_t call)
{
	struct call *c = &d->calls[call];
	const struct call old = *c;
	CHECK(c->state == CALL_FREE);
	if (call >= d->calls_top)
		d->calls_top = call + 1;
	memset(c, 0, sizeof *c);
	c->generation = old.generation + 1;
	c->text = old.text;
	c->token = old.token;
	c->text_end = old.text_end;
	c->logprob = old.logprob;
	c->alternatives = old.alternatives;
	c->sent = old.sent;
	c->end_body = old.end_body;
	c->state = CALL_ENDED; /* until it has become a turn */
	c->peer = c->session = c->sched = c->idem = NONE;
}

uint32_t call_take(struct daemon *d, uint32_t peer, uint64_t channel, const struct wire_call *m)
{
	const uint32_t principal = d->peers[peer].principal;
	const uint32_t tenant = d->principals[principal].tenant;
	const uint64_t tenant_most = d->tenants.tenant[tenant].calls;
	uint32_t slot = NONE, mine = 0, kept = 0;
	uint64_t all = 0;
	for (uint32_t i = 0; i < d->calls_top; i++) {
		const struct call *c = &d->calls[i];
		if (c->state == CALL_FREE && slot == NONE)
			slot = i;
		if (c->state != CALL_FREE && c->principal == principal)
			*(call_kept(c) ? &kept : &mine) += 1;
		all += c->state != CALL_FREE && !call_kept(c) && d->principals[c->principal].tenant == tenant;
	}
	if (slot == NONE && d->calls_top < d->options.calls)
		slot = d->calls_top;
	/* Turns do not take the places of those who look or close. */
	const uint64_t most = d->options.calls_principal * (method_is_turn(m->method) ? 1 : 2);
	if (mine >= most || (tenant_most && all >= tenant_most))
		return NONE;
	/* Ended ones that are only kept give way, each principal's to itself first. */
	if (slot == NONE || kept >= d->options.calls_principal)
		slot = call_reclaim(d, principal, kept > 0);
	if (slot == NONE)
		return NONE;
	struct call *c = &d->calls[slot];
	call_reset(d, slot);
	c->peer = peer;
	c->principal = principal;
	c->channel = channel;
	c->method = m->method;
	c->window = m->window < d->options.window_max ? m->window : d->options.window_max;
	c->deadline_us = m->deadline_ms == WIRE_NONE ? 0 : d->now_us + m->deadline_ms * 1000;
	const uint64_t detach_ms = m->detach_ms != WIRE_NONE ? m->detach_ms
				   : m->has_idem ? d->options.detach_ms : 0;
	c->detach_us = (detach_ms < d->options.detach_max_ms ? detach_ms : d->options.detach_max_ms) * 1000;
	c->progress_us = c->began_us = d->now_us;
	d->stats.calls++;
	c->note_us = d->now_us + d->options.note_ms * 1000;
	randombytes_buf(c->op.bytes, sizeof c->op.bytes);
	d->peers[peer].calls++;
	return slot;
}

void call_free(struct daemon *d, uint32_t call)
{
	struct call *c = &d->calls[call];
	CHECK(c->state == CALL_ENDED);
	if (c->peer != NONE) {
		CHECK(d->peers[c->peer].calls > 0);
		d->peers[c->peer].calls--;
	}
	if (c->text_length > c->text_used)
		c->text_used = c->text_length;
	if (c->forgotten)
		forget_slot(d, c);
	if (c->text_used > 4096 || c->blob_length > 4096)
		release(c->text, d->text_max);
	if (c->end_length > 4096)
		release(c->end_body, d->end_max);
	if (c->sampled > 1024) {
		const size_t context = d->limits.context_tokens;
		release(c->token, context * sizeof *c->token);
		release(c->text_end, context * sizeof *c->text_end);
		release(c->logprob, context * sizeof *c->logprob);
		release(c->sent, context * sizeof *c->sent);
	}
	if (c->sampled && c->sampling.logprobs > 1)
		release(c->alternatives, d->limits.context_tokens * sizeof *c->alternatives);
	turn_form_drop(c);
	c->state = CALL_FREE;
	c->peer = NONE;
	while (d->calls_top && d->calls[d->calls_top - 1].state == CALL_FREE)
		d->calls_top--;
}

uint32_t call_of_op(struct daemon *d, uint32_t principal, const struct wire_id *op)
{
	for (uint32_t i = 0; i < d->calls_top; i++)
		if (d->calls[i].state != CALL_FREE && d->calls[i].principal == principal &&
		    memcmp(&d->calls[i].op, op, sizeof *op) == 0)
			return i;
	return NONE;
}

uint32_t call_of_channel(struct daemon *d, uint32_t peer, uint64_t channel)
{
	for (uint32_t i = 0; i < d->calls_top; i++)
		if (d->calls[i].state != CALL_FREE && d->calls[i].peer == peer && d->calls[i].channel == channel)
			return i;
	return NONE;
}

/* Where the DATA behind `from` ends that may be sent within the credit. False: there is none. */
static bool data_cut(const struct call *c, struct sent_mark from, struct sent_mark *next)
{
	size_t most = c->visible < c->window ? c->visible : (size_t)c->window;
	if (most > from.bytes + DATA_TEXT_MAX)
		most = from.bytes + DATA_TEXT_MAX;
	/* What had no credit when the turn ended goes token by token: then its cuts need not be kept. */
	const uint32_t tokens_most = from.tokens + (c->cut ? 1 : DATA_TOKENS_MAX);
	uint32_t t = from.tokens;
	*next = from;
	while (t < c->sampled && t < tokens_most && c->text_end[t] <= most)
		t++;
	next->tokens = t;
	if (t > from.tokens)
		next->bytes = c->text_end[t - 1];
	/* Over: what is left is tokens whose text is not shown, or is shown in part. */
	if (c->state == CALL_ENDED && t < c->sampled && t < tokens_most && c->text_end[t] > c->visible &&
	    most >= c->visible) {
		next->bytes = (uint32_t)c->visible;
		while (t < c->sampled && t < from.tokens + DATA_TOKENS_MAX)
			t++;
		next->tokens = t;
	}
	return next->tokens > from.tokens;
}

static void data_made(struct call *c, struct sent_mark mark)
{
	c->sent[c->seq_made++] = mark;
	c->made_tokens = mark.tokens;
}

/* An answer is kept with its cuts, so they are made before it is. */
static void rest_cut(struct daemon *d, uint32_t call)
{
	struct call *c = &d->calls[call];
	struct sent_mark at = {0, 0};
	if (c->seq_made)
		at = c->sent[c->seq_made - 1];
	while (data_cut(c, at, &at)) {
		(void)keep_sent(d, call, c->seq_made + 1, &at);
		data_made(c, at);
	}
	c->cut = true;
}

void call_end(struct daemon *d, uint32_t call, struct wire_end *end)
{
	struct call *c = &d->calls[call];
	struct wire_writer w;
	CHECK(c->end_length == 0);
	wire_writer_init(&w, c->end_body, d->end_max);
	if (wire_write_end(&w, end) != 0) {
		/* A result that is too large for one body: the numbers say so. */
		const struct wire_end small = {
			.status = {"error", 5}, .turn = WIRE_NONE, .epoch = WIRE_NONE,
			.err = {.code = ERR_TOO_BIG, .after_ms = WIRE_NONE, .used = WIRE_NONE,
				.asked = WIRE_NONE, .limit = d->end_max}};
		wire_writer_init(&w, c->end_body, d->end_max);
		CHECK(wire_write_end(&w, &small) == 0);
	}
	c->end_length = w.length;
	c->state = CALL_ENDED;
	rest_cut(d, call);
	keep_call_end(d, call);
	if (c->peer == NONE)
		call_settled(d, call);
}

void call_fail_numbers(struct daemon *d, uint32_t call, const struct wire_err *err)
{
	struct wire_end end = {.status = {"error", 5}, .err = *err, .turn = WIRE_NONE, .epoch = WIRE_NONE};
	call_idem_forget(d, call);
	const uint32_t session = d->calls[call].session;
	if (session != NONE && d->sessions[session].used)
		session_end_fields(&d->sessions[session], &end);
	call_end(d, call, &end);
}

void call_fail_why(struct daemon *d, uint32_t call, int code, const char *why)
{
	const struct wire_err err = {.code = code < 0 ? -code : code, .after_ms = WIRE_NONE, .used = WIRE_NONE,
				     .asked = WIRE_NONE, .limit = WIRE_NONE, .why = {why, why ? strlen(why) : 0}};
	call_fail_numbers(d, call, &err);
}

void call_fail(struct daemon *d, uint32_t call, int code)
{
	call_fail_why(d, call, code, NULL);
}

/* The log-probabilities of tokens [first, last) into the tail of d->out; absent if not asked for. */
static struct wire_value logprobs_write(struct daemon *d, const struct call *c, uint32_t first,
					uint32_t last)
{
	const size_t half = d->out_max / 2;
	struct wire_writer w;
	if (!c->sampling.logprobs)
		return (struct wire_value){NULL, 0};
	wire_writer_init(&w, d->out + half, half);
	wire_put_array(&w, last - first);
	for (uint32_t i = first; i < last; i++) {
		const struct ops_sampled *s = &c->alternatives[i];
		const uint32_t top = c->sampling.logprobs > 1 ? s->top_count : 0;
		wire_put_map(&w, top ? 3 : 2);
		wire_put_text(&w, "t");
		wire_put_u64(&w, c->token[i]);
		wire_put_text(&w, "p");
		wire_put_f32(&w, c->logprob[i]);
		if (!top)
			continue;
		wire_put_text(&w, "top");
		wire_put_array(&w, top);
		for (uint32_t k = 0; k < top; k++) {
			wire_put_array(&w, 2);
			wire_put_u64(&w, s->top_token[k]);
			wire_put_f32(&w, s->top_logprob[k]);
		}
	}
	CHECK(!w.full);
	return (struct wire_value){w.at, w.length};
}

/* Up to which token, and which byte, the next DATA may go. False: nothing may be sent now. */
static bool data_next(const struct call *c, struct sent_mark *next)
{
	if (c->seq == c->seq_made)
		return data_cut(c, (struct sent_mark){c->sent_tokens, (uint32_t)c->sent_bytes}, next);
	/* What was sent before goes out again as it was. After a restart it may not have been computed yet. */
	*next = c->sent[c->seq];
	return next->tokens <= c->sampled && next->bytes <= c->visible && next->bytes <= c->window;
}

/* Everything was sent, or nothing more can be: it ended after a restart, before it was where it had been. */
static bool data_over(const struct call *c)
{
	if (c->seq == c->seq_made)
		return c->sent_tokens >= c->sampled;
	return c->sent[c->seq].tokens > c->sampled || c->sent[c->seq].bytes > c->visible;
}

static int data_send(struct daemon *d, struct call *c, struct sent_mark next)
{
	struct wire_writer w;
	const struct wire_data m = {
		.off = next.bytes,
		.n_tokens = next.tokens - c->sent_tokens,
		.text = {c->text + c->sent_bytes, next.bytes - c->sent_bytes},
		.logprobs = logprobs_write(d, c, c->sent_tokens, next.tokens)};
	wire_writer_init(&w, d->out, d->out_max / 2);
	CHECK(wire_write_data(&w, &m) == 0);
	TRY(peer_send(d, c->peer, WIRE_DATA, c->channel, c->seq + 1, d->out, w.length,
		      c->token + c->sent_tokens, (size_t)m.n_tokens * 4));
	if (c->seq == c->seq_made)
		data_made(c, next);
	d->stats.data++;
	d->stats.data_bytes += next.bytes - c->sent_bytes;
	c->seq++;
	c->sent_tokens = next.tokens;
	c->sent_bytes = next.bytes;
	c->progress_us = d->now_us;
	return 0;
}

static int accepted_send(struct daemon *d, struct call *c)
{
	uint8_t body[64];
	struct wire_writer w;
	const struct wire_accepted m = {.op = c->op, .dup = c->dup, .durable = c->accept_mark != 0};
	if (m.durable)
		(void)fault_pass(FAULT_ACCEPTED);
	wire_writer_init(&w, body, sizeof body);
	CHECK(wire_write_accepted(&w, &m) == 0);
	TRY(peer_send(d, c->peer, WIRE_ACCEPTED, c->channel, 0, body, w.length, NULL, 0));
	c->accepted_sent = true;
	return 0;
}

/* What is said must be on disk first, and is not yet. */
static bool not_on_disk(const struct daemon *d, uint64_t mark)
{
	return d->store && mark > store_settled(d->store);
}

bool call_waits_for_log(const struct daemon *d, const struct call *c)
{
	return (!c->accepted_sent && not_on_disk(d, c->accept_mark)) || not_on_disk(d, c->hold_mark);
}

/* A reader who has it can come back for the next one, whatever happens: its end is on record, by itself or
   with the whole answer. */
static bool data_kept(struct daemon *d, struct call *c, struct sent_mark next)
{
	return (c->state == CALL_ENDED && !not_on_disk(d, c->hold_mark)) ||
	       keep_sent(d, (uint32_t)(c - d->calls), c->seq + 1, &next);
}

static int flush_all(struct daemon *d, struct call *c, bool *over)
{
	struct sent_mark next;
	/* One that waits for the turn before it has not begun: nothing of it is on disk. */
	if (c->state == CALL_DEFERRED || (!c->accepted_sent && not_on_disk(d, c->accept_mark)))
		return 0;
	if (!c->accepted_sent)
		TRY(accepted_send(d, c));
	c->unmarked = false;
	while (!c->dropped && data_next(c, &next)) {
		c->unmarked = !data_kept(d, c, next);
		if (c->unmarked)
			return 0;
		TRY(data_send(d, c, next));
	}
	if (not_on_disk(d, c->hold_mark))
		return 0;
	/* END comes after all of the text, unless nobody wants it: it needs no credit of its own. */
	if (c->state != CALL_ENDED || c->end_length == 0 || (!c->dropped && !data_over(c)))
		return 0;
	TRY(peer_send(d, c->peer, WIRE_END, c->channel, c->seq + 1, c->end_body, c->end_length,
		      c->blob_length ? c->text : NULL, c->blob_length));
	*over = true;
	return 0;
}

void call_flush(struct daemon *d, uint32_t call)
{
	struct call *c = &d->calls[call];
	bool over = false;
	if (c->state == CALL_FREE || c->peer == NONE)
		return;
	if (d->peers[c->peer].congested && d->now_us < d->peers[c->peer].retry_us)
		return;
	const int code = flush_all(d, c, &over);
	if (code == -ERR_CLOSED)
		peer_gone(d, c->peer);
	else if (over)
		call_settled(d, call);
	else if (c->state == CALL_RUNNING)
		call_credit(d, call);
}

void calls_flush(struct daemon *d)
{
	for (uint32_t i = 0; i < d->calls_top; i++)
		if (d->calls[i].state != CALL_FREE)
			call_flush(d, i);
}

void call_window(struct daemon *d, uint32_t call, uint64_t max_off)
{
	struct call *c = &d->calls[call];
	const uint64_t most = c->sent_bytes + d->options.window_max;
	if (max_off > most)
		max_off = most;
	if (max_off > c->window) {
		c->window = max_off;
		c->progress_us = d->now_us;
	}
	call_flush(d, call);
}

void call_credit(struct daemon *d, uint32_t call)
{
	struct call *c = &d->calls[call];
	/* After a restart its reader may have more than was computed again. */
	const size_t unread = c->text_length > c->sent_bytes ? c->text_length - c->sent_bytes : 0;
	const size_t room = unread < d->options.stream_bytes ? d->options.stream_bytes - unread : 0;
	const uint32_t whole = (uint32_t)(d->options.stream_bytes / d->token_bytes_max) + 1;
	const uint32_t credit = c->sampled + (uint32_t)(room / d->token_bytes_max);
	/* Seldom: half of the room is left before the scheduler hears of more. */
	if (c->state != CALL_RUNNING || c->sched == NONE || credit <= c->credit ||
	    c->credit - c->sampled > whole / 2)
		return;
	c->credit = credit;
	const struct event e = {.kind = EVENT_CREDIT, .session = SCHED_NONE, .turn = c->sched,
				.now_us = d->now_us, .as.credit.tokens = credit};
	step(d, &e, NULL);
}

void call_cancel(struct daemon *d, uint32_t call, enum end end)
{
	struct call *c = &d->calls[call];
	if (c->state != CALL_RUNNING || c->sched == NONE)
		return;
	const struct event e = {.kind = EVENT_CANCEL, .session = SCHED_NONE, .turn = c->sched,
				.now_us = d->now_us, .as.cancel = {.end = end}};
	step(d, &e, NULL);
}

static void note_send(struct daemon *d, struct call *c)
{
	uint8_t body[256];
	struct wire_writer w;
	struct turn_view view;
	/* Nothing comes before ACCEPTED. */
	if (!c->accepted_sent || c->sched == NONE || sched_turn(d->sched, c->sched, &view) != 0)
		return;
	const bool decoding = view.running && view.sampled > 0 && !c->paused;
	if (decoding)
		return; /* DATA says it */
	const char *state = !view.running ? "queued" : c->paused ? "paused" : "prefilling";
	const struct wire_note m = {
		.op = c->op, .state = {state, strlen(state)},
		.done = view.computed, .total = view.prompt,
		.place = view.running ? WIRE_NONE : view.place,
		.short_by = view.running ? WIRE_NONE : view.short_bytes,
		.eta_ms = WIRE_NONE};
	wire_writer_init(&w, body, sizeof body);
	CHECK(wire_write_note(&w, &m) == 0);
	if (peer_send(d, c->peer, WIRE_NOTE, c->channel, 0, body, w.length, NULL, 0) == -ERR_CLOSED)
		peer_gone(d, c->peer);
}

/* The END of a turn whose text is not read says so, beside what it says already. */
static void end_slow(struct daemon *d, struct call *c)
{
	static struct wire_end end;
	struct wire_writer w;
	CHECK(wire_read_end(c->end_body, c->end_length, &d->wire, &end) == 0);
	end.err = (struct wire_err){.code = ERR_SLOW_CONSUMER, .after_ms = WIRE_NONE, .used = c->sent_bytes,
				    .asked = c->visible, .limit = c->window};
	wire_writer_init(&w, d->out, d->out_max);
	if (wire_write_end(&w, &end) != 0 || w.length > d->end_max)
		return;
	memcpy(c->end_body, w.at, w.length);
	c->end_length = w.length;
}

/* The disk has no room for where its next DATA ends: tried again now and then. False: the call is gone. */
static bool unmarked_tick(struct daemon *d, uint32_t call, uint64_t *next)
{
	struct call *c = &d->calls[call];
	call_flush(d, call);
	if (c->state == CALL_FREE || c->peer == NONE)
		return false;
	if (*next > d->now_us + UNMARKED_US)
		*next = d->now_us + UNMARKED_US;
	return true;
}

uint64_t calls_tick(struct daemon *d)
{
	uint64_t next = UINT64_MAX;
	/* A client that is busy with what it read is silent too; one that died cannot be sent to. */
	const uint64_t silence_us = (3 * d->options.heartbeat_ms + d->options.stall_ms) * 1000;
	for (uint32_t i = 0; i < d->calls_top; i++) {
		struct call *c = &d->calls[i];
		if (c->state == CALL_FREE)
			continue;
		if (c->peer == NONE) {
			const uint64_t forget = call_detached_tick(d, i);
			next = forget < next ? forget : next;
			continue;
		}
		struct peer *p = &d->peers[c->peer];
		if (d->now_us - p->seen_us > silence_us) {
			peer_gone(d, c->peer);
			continue;
		}
		if (next > p->seen_us + silence_us + 1)
			next = p->seen_us + silence_us + 1;
		if (p->congested && d->now_us >= p->retry_us)
			p->congested = false;
		else if (p->congested && p->retry_us < next)
			next = p->retry_us;
		/* There is nothing that its reader could take: that time is not his. */
		if (c->state == CALL_DEFERRED || call_waits_for_log(d, c) || c->unmarked)
			c->progress_us = d->now_us;
		if (c->unmarked && !unmarked_tick(d, i, &next))
			continue;
		if (c->state == CALL_RUNNING) {
			if (d->now_us >= c->note_us) {
				c->note_us = d->now_us + d->options.note_ms * 1000;
				note_send(d, c);
			}
			if (c->note_us < next)
				next = c->note_us;
			/* A reader that does not take what is there holds pages that others wait for. */
			if (c->paused && c->text_length > c->sent_bytes &&
			    d->now_us >= c->progress_us + d->options.stall_ms * 1000)
				call_cancel(d, i, END_SLOW);
			continue;
		}
		/* The END of an ended turn goes out without the rest that nobody reads; who does not even
		   take that is gone. */
		uint64_t stalled = c->progress_us + d->options.stall_ms * 1000;
		if (d->now_us >= stalled && !c->dropped) {
			if (c->end_length && c->sent_tokens < c->sampled)
				end_slow(d, c);
			c->dropped = true;
			call_flush(d, i);
			if (c->state == CALL_FREE || c->peer == NONE)
				continue;
		}
		stalled += c->dropped ? d->options.stall_ms * 1000 : 0;
		if (d->now_us >= stalled)
			peer_gone(d, c->peer);
		else if (stalled < next)
			next = stalled;
	}
	return next;
}
