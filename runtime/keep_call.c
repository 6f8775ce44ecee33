/*
 * Calls, kept and found again: idempotency keys, turns that run, answers. A turn that ran when the
 * process ended runs again from its first token, and gives the same tokens: sampling is a function
 * of the logits, the parameters, the seed and the position.
 */
#include <sodium.h>
#include <stdio.h>
#include <string.h>

#include "runtime/fault.h"
#include "runtime/keep.h"

enum {
	CALL_VERSION = 3, SWEEP_MAX = 64, SWEEP_EVERY_US = 1000000,
	KEYLESS_MS = 30000 /* an answer that no key names is kept so long, and its detach time */
};
enum {
	FLAG_KEYED = 1, FLAG_TOOLS = 2, FLAG_FORCED = 4, FLAG_IGNORE_END = 8, FLAG_ENDED = 16, FLAG_TURN = 32,
	FLAG_ANEW = 64 /* its stream is not that of before a power cut */
};

/* Then, of a turn that runs: stop strings, stop tokens, biases, the source of its form. Of an answer: END's
   body, the third frame, token ids, ends of text, log-probabilities, alternatives if there are any, marks
   of DATA, text. */
struct kept_call {
	uint32_t version, principal, slot, flags;
	uint8_t session[16], method, form_kind, reserved[2];
	uint32_t prompt, keep, output_max, form_bytes;
	uint64_t detach_us, deadline_ms, window;
	uint32_t max_tokens, top_k, logprobs, stop_count;
	double temperature, top_p, min_p, typical, repetition, presence, frequency, dry, dry_base;
	uint32_t dry_allowed, dry_last;
	uint64_t seed;
	uint32_t bias_count, sampled, seq_made, alternatives;
	uint32_t stop_token_count, kernel_boot; /* of when it began */
	uint64_t end_length, blob_length, text_length;
	uint16_t stop_length[WIRE_STOPS_MAX];
};

struct kept_idem {
	uint8_t hash[16], op[16];
	uint64_t expires_ms;
};

/* Idempotency. */

static void idem_key(struct store_key *key, uint32_t principal, const struct wire_id *id)
{
	key->length = 0;
	keep_key_u32(key, principal);
	keep_key_add(key, id->bytes, sizeof id->bytes);
}

/* Sorted by time, then which table and which key. */
static void expires_put(struct daemon *d, uint64_t at_ms, uint8_t table, const struct store_key *of)
{
	struct store_key key = {.length = 0};
	keep_key_u32(&key, (uint32_t)(at_ms >> 32));
	keep_key_u32(&key, (uint32_t)at_ms);
	keep_key_add(&key, &table, 1);
	keep_key_add(&key, of->bytes, of->length);
	keep_put(d, TABLE_EXPIRES, &key, NULL, "", 0);
}

void keep_idem(struct daemon *d, uint32_t call, const struct wire_id *id, const uint8_t hash[16])
{
	struct call *c = &d->calls[call];
	struct store_key key;
	if (!d->store)
		return;
	struct kept_idem value = {.expires_ms = keep_wall_ms() + d->options.idem_ms};
	memcpy(value.hash, hash, sizeof value.hash);
	memcpy(value.op, c->op.bytes, sizeof value.op);
	idem_key(&key, c->principal, id);
	keep_put(d, TABLE_IDEM, &key, NULL, &value, sizeof value);
	expires_put(d, value.expires_ms, TABLE_IDEM, &key);
	c->accept_mark = store_hurry(d->store);
}

void keep_idem_drop(struct daemon *d, uint32_t principal, const struct wire_id *id)
{
	struct store_key key;
	if (!d->store)
		return;
	idem_key(&key, principal, id);
	keep_put(d, TABLE_IDEM, &key, NULL, NULL, 0);
}

static const char the_log[] = "the disk of the audit log"; /* what is not in memory is read from there */

static int call_row(struct daemon *d, const struct wire_id *op, struct kept_call *row, size_t *bytes)
{
	struct store_key key;
	*bytes = KEEP_SCRATCH_BYTES;
	keep_key(&key, op->bytes, sizeof op->bytes);
	guard_begin(d->guard, the_log);
	const int code = store_kept(d->store, TABLE_CALL, &key, d->scratch, bytes);
	guard_end(d->guard);
	TRY(code);
	if (*bytes < sizeof *row)
		return -ERR_INTEGRITY;
	memcpy(row, d->scratch, sizeof *row);
	return row->version == CALL_VERSION ? 0 : -ERR_UNSUPPORTED;
}

int keep_idem_find(struct daemon *d, uint32_t principal, const struct wire_id *id, const uint8_t hash[16],
		   struct wire_id *op)
{
	struct store_key key;
	struct kept_idem value;
	struct kept_call row;
	size_t bytes = sizeof value;
	if (!d->store)
		return 0;
	idem_key(&key, principal, id);
	guard_begin(d->guard, the_log);
	const int code = store_kept(d->store, TABLE_IDEM, &key, &value, &bytes);
	guard_end(d->guard);
	if (code != 0 || bytes != sizeof value || value.expires_ms < keep_wall_ms())
		return 0;
	memcpy(op->bytes, value.op, sizeof op->bytes);
	/* Reserved, and the process ended before anything came of it: it was never begun. */
	if (call_of_op(d, principal, op) == NONE && call_row(d, op, &row, &bytes) != 0)
		return 0;
	return memcmp(value.hash, hash, sizeof value.hash) == 0 ? 1 : -ERR_IDEM_MISMATCH;
}

/* Calls. */

struct put {
	uint8_t *at;
	size_t length;
	bool full;
};

static void put(struct put *p, const void *bytes, size_t length)
{
	if (p->full || length > KEEP_SCRATCH_BYTES - p->length) {
		p->full = true;
		return;
	}
	if (length)
		memcpy(p->at + p->length, bytes, length);
	p->length += length;
}

static void row_fill(const struct daemon *d, uint32_t call, struct kept_call *row)
{
	const struct call *c = &d->calls[call];
	const struct wire_sampling *s = &c->sampling;
	memset(row, 0, sizeof *row);
	row->version = CALL_VERSION;
	row->principal = c->principal;
	row->slot = call;
	row->method = c->method;
	row->form_kind = c->own_kind;
	row->form_bytes = c->own_bytes;
	row->flags = (c->keyed ? FLAG_KEYED : 0) | (c->tools ? FLAG_TOOLS : 0) | (c->forced ? FLAG_FORCED : 0) |
		     (s->ignore_end ? FLAG_IGNORE_END : 0) | (c->kept ? FLAG_TURN : 0) |
		     (c->anew ? FLAG_ANEW : 0);
	row->kernel_boot = d->kernel_boot;
	memcpy(row->session, c->owner.bytes, sizeof row->session);
	row->prompt = c->prompt;
	row->keep = c->keep;
	row->output_max = c->output_max;
	row->detach_us = c->detach_us;
	row->window = c->window;
	const uint64_t left_us = c->deadline_us > d->now_us ? c->deadline_us - d->now_us : 0;
	if (c->deadline_us)
		row->deadline_ms = keep_wall_ms() + left_us / 1000;
	row->max_tokens = s->max_tokens;
	row->top_k = s->top_k;
	row->logprobs = s->logprobs;
	row->stop_count = s->stop_count;
	row->temperature = s->temperature;
	row->top_p = s->top_p;
	row->min_p = s->min_p;
	row->typical = s->typical;
	row->repetition = s->repetition;
	row->presence = s->presence;
	row->frequency = s->frequency;
	row->dry = s->dry;
	row->dry_base = s->dry_base;
	row->dry_allowed = s->dry_allowed;
	row->dry_last = s->dry_last;
	row->seed = s->seed;
	row->bias_count = s->bias_count;
	row->stop_token_count = s->stop_token_count;
	for (uint32_t i = 0; i < s->stop_count; i++)
		row->stop_length[i] = (uint16_t)s->stop[i].length;
}

static void call_put(struct daemon *d, uint32_t call, const struct put *p)
{
	struct store_key key;
	if (p->full) {
		log_say(LOG_NOTICE, "an answer is too large to be kept; after a restart it is gone");
		return;
	}
	keep_key(&key, d->calls[call].op.bytes, sizeof d->calls[call].op.bytes);
	static const struct wire_id none;
	const struct wire_id *owner = &d->calls[call].owner;
	keep_put(d, TABLE_CALL, &key, memcmp(owner, &none, sizeof none) ? owner : NULL, p->at, p->length);
}

void keep_call_begin(struct daemon *d, uint32_t call)
{
	struct call *c = &d->calls[call];
	struct kept_call row;
	struct put p = {.at = d->scratch};
	if (!d->store)
		return;
	c->kept = true;
	row_fill(d, call, &row);
	put(&p, &row, sizeof row);
	for (uint32_t i = 0; i < c->sampling.stop_count; i++)
		put(&p, c->sampling.stop[i].at, c->sampling.stop[i].length);
	put(&p, c->sampling.stop_token, c->sampling.stop_token_count * sizeof c->sampling.stop_token[0]);
	put(&p, c->sampling.bias, c->sampling.bias_count * sizeof c->sampling.bias[0]);
	put(&p, c->own_source, c->own_bytes);
	call_put(d, call, &p);
	keep_session(d, c->session);
}

void keep_call_end(struct daemon *d, uint32_t call)
{
	struct call *c = &d->calls[call];
	struct kept_call row;
	struct store_key key;
	struct put p = {.at = d->scratch};
	if (!d->store || (!c->kept && !c->accept_mark) || c->forgotten)
		return;
	row_fill(d, call, &row);
	row.flags |= FLAG_ENDED;
	row.sampled = c->sampled;
	row.seq_made = (uint32_t)c->seq_made;
	row.alternatives = c->sampled && c->sampling.logprobs > 1;
	row.end_length = c->end_length;
	row.blob_length = c->blob_length;
	row.text_length = c->blob_length ? 0 : c->text_length;
	put(&p, &row, sizeof row);
	put(&p, c->end_body, c->end_length);
	put(&p, c->text, c->blob_length);
	put(&p, c->token, c->sampled * sizeof *c->token);
	put(&p, c->text_end, c->sampled * sizeof *c->text_end);
	put(&p, c->logprob, c->sampled * sizeof *c->logprob);
	put(&p, c->alternatives, row.alternatives ? c->sampled * sizeof *c->alternatives : 0);
	put(&p, c->sent, c->seq_made * sizeof *c->sent);
	put(&p, c->text, row.text_length);
	call_put(d, call, &p);
	keep_key(&key, c->op.bytes, sizeof c->op.bytes);
	const uint64_t keep_ms = c->keyed ? d->options.idem_ms : KEYLESS_MS + c->detach_us / 1000;
	expires_put(d, keep_wall_ms() + keep_ms, TABLE_CALL, &key);
}

void keep_call_drop(struct daemon *d, uint32_t call)
{
	const struct call *c = &d->calls[call];
	struct store_key key;
	if (!d->store || !c->kept || c->keyed)
		return;
	keep_key(&key, c->op.bytes, sizeof c->op.bytes);
	keep_put(d, TABLE_CALL, &key, NULL, NULL, 0);
	/* Until the removal is on disk a reader of the disk would find it. */
	d->forgotten[d->forgotten_next++ % (sizeof d->forgotten / sizeof d->forgotten[0])] = c->op;
}

static bool forgotten(const struct daemon *d, const struct wire_id *op)
{
	for (size_t i = 0; i < sizeof d->forgotten / sizeof d->forgotten[0]; i++)
		if (memcmp(&d->forgotten[i], op, sizeof *op) == 0)
			return true;
	return false;
}

/* The start of a slot that was one before. */
static void slot_begin(struct daemon *d, uint32_t slot, const struct kept_call *row, const struct wire_id *op)
{
	struct call *c = &d->calls[slot];
	call_reset(d, slot);
	c->state = CALL_ENDED;
	c->principal = row->principal;
	c->method = row->method;
	c->op = *op;
	memcpy(c->owner.bytes, row->session, sizeof c->owner.bytes);
	c->keyed = row->flags & FLAG_KEYED;
	c->tools = row->flags & FLAG_TOOLS;
	c->kept = row->flags & FLAG_TURN;
	c->restarted = true;
	c->anew = row->flags & FLAG_ANEW;
	c->detach_us = row->detach_us;
	c->window = row->window;
	c->progress_us = d->now_us;
	c->note_us = d->now_us + d->options.note_ms * 1000;
}

struct take {
	const uint8_t *at;
	size_t left;
	bool bad;
};

static void take(struct take *t, void *to, size_t length)
{
	if (t->bad || length > t->left) {
		t->bad = true;
		return;
	}
	if (length)
		memcpy(to, t->at, length);
	t->at += length;
	t->left -= length;
}

static int answer_fill(struct daemon *d, uint32_t slot, const struct kept_call *row, size_t bytes)
{
	struct call *c = &d->calls[slot];
	struct take t = {d->scratch + sizeof *row, bytes - sizeof *row, false};
	const uint32_t n = row->sampled, context = d->limits.context_tokens;
	if (n > context || row->seq_made > context || row->end_length > d->end_max ||
	    row->text_length > d->text_max || row->blob_length > d->text_max)
		return -ERR_INTEGRITY;
	take(&t, c->end_body, row->end_length);
	take(&t, c->text, row->blob_length);
	take(&t, c->token, n * sizeof *c->token);
	take(&t, c->text_end, n * sizeof *c->text_end);
	take(&t, c->logprob, n * sizeof *c->logprob);
	take(&t, c->alternatives, row->alternatives ? n * sizeof *c->alternatives : 0);
	take(&t, c->sent, row->seq_made * sizeof *c->sent);
	take(&t, c->text, row->text_length);
	if (t.bad || t.left)
		return -ERR_INTEGRITY;
	c->sampled = n;
	c->sampling.logprobs = row->logprobs;
	c->end_length = row->end_length;
	c->blob_length = row->blob_length;
	c->text_length = c->visible = c->text_used = row->blob_length ? 0 : row->text_length;
	c->seq_made = row->seq_made;
	c->made_tokens = c->seq_made ? c->sent[c->seq_made - 1].tokens : 0;
	c->seq = c->seq_made;
	c->cut = true;
	return 0;
}

uint32_t keep_call_revive(struct daemon *d, uint32_t principal, const struct wire_id *op)
{
	struct kept_call row;
	size_t bytes;
	if (!d->store || forgotten(d, op) || call_row(d, op, &row, &bytes) != 0 || !(row.flags & FLAG_ENDED) ||
	    row.principal != principal)
		return NONE;
	uint32_t slot = NONE;
	for (uint32_t i = 0; i < d->options.calls && slot == NONE; i++)
		if (d->calls[i].state == CALL_FREE)
			slot = i;
	if (slot == NONE)
		slot = call_reclaim(d, principal, false);
	if (slot == NONE)
		return NONE;
	slot_begin(d, slot, &row, op);
	if (answer_fill(d, slot, &row, bytes) != 0) {
		d->calls[slot].sampled = 0;
		call_free(d, slot);
		return NONE;
	}
	call_settled(d, slot);
	return d->calls[slot].state == CALL_FREE ? NONE : slot;
}

static int sampling_fill(struct call *c, const struct kept_call *row, struct take *t)
{
	struct wire_sampling *s = &c->sampling;
	size_t at = 0;
	s->max_tokens = row->max_tokens;
	s->temperature = row->temperature;
	s->top_p = row->top_p;
	s->min_p = row->min_p;
	s->typical = row->typical;
	s->top_k = row->top_k;
	s->repetition = row->repetition;
	s->presence = row->presence;
	s->frequency = row->frequency;
	s->dry = row->dry;
	s->dry_base = row->dry_base;
	s->dry_allowed = row->dry_allowed;
	s->dry_last = row->dry_last;
	s->seed = row->seed;
	s->logprobs = row->logprobs;
	s->ignore_end = row->flags & FLAG_IGNORE_END;
	if (row->stop_count > WIRE_STOPS_MAX || row->bias_count > WIRE_BIAS_MAX ||
	    row->stop_token_count > WIRE_STOPS_MAX)
		return -ERR_INTEGRITY;
	for (uint32_t i = 0; i < row->stop_count; i++) {
		const size_t length = row->stop_length[i];
		if (length > sizeof c->stop_bytes - at)
			return -ERR_INTEGRITY;
		take(t, c->stop_bytes + at, length);
		s->stop[i] = (struct wire_str){c->stop_bytes + at, length};
		at += length;
	}
	s->stop_count = row->stop_count;
	take(t, s->stop_token, row->stop_token_count * sizeof s->stop_token[0]);
	s->stop_token_count = row->stop_token_count;
	take(t, s->bias, row->bias_count * sizeof s->bias[0]);
	s->bias_count = row->bias_count;
	return t->bad ? -ERR_INTEGRITY : 0;
}

static int form_fill(struct daemon *d, struct call *c, const struct kept_call *row, struct take *t)
{
	if (row->form_kind == OWN_NONE)
		return 0;
	if (row->form_bytes > t->left)
		return -ERR_INTEGRITY;
	return turn_form_restore(d, c, row->form_kind, t->at, row->form_bytes);
}

int keep_call_restart(struct daemon *d, uint32_t session, const struct wire_id *op)
{
	struct session *s = &d->sessions[session];
	struct kept_call row;
	size_t bytes;
	/* Its END was made in a step that is on disk with the session's row, or it runs. */
	if (call_row(d, op, &row, &bytes) != 0 || (row.flags & FLAG_ENDED) || row.slot >= d->options.calls ||
	    d->calls[row.slot].state != CALL_FREE || s->mark_count == 0 || row.prompt != s->history) {
		log_say(LOG_ERROR, "a turn that ran cannot be taken up again: its session is as before its answer");
		return 0;
	}
	struct call *c = &d->calls[row.slot];
	struct take t = {d->scratch + sizeof row, bytes - sizeof row, false};
	slot_begin(d, row.slot, &row, op);
	const int bad = sampling_fill(c, &row, &t) || form_fill(d, c, &row, &t);
	c->session = session;
	c->prompt = row.prompt;
	c->keep = row.keep;
	c->output_max = row.output_max;
	c->forced = row.flags & FLAG_FORCED;
	c->tool_us = WIRE_NONE;
	/* Its reader has time to come back. */
	const uint64_t least = d->options.detach_ms * 1000;
	c->detach_us = c->detach_us > least ? c->detach_us : least;
	c->forget_us = d->now_us + c->detach_us + 1;
	if (row.deadline_ms) {
		const uint64_t now = keep_wall_ms();
		c->deadline_us = d->now_us + (row.deadline_ms > now ? (row.deadline_ms - now) * 1000 : 1);
	}
	s->known = s->mark[s->mark_count - 1].start;
	c->anew = c->anew || row.kernel_boot != d->kernel_boot;
	if (!c->anew)
		keep_marks_restore(d, row.slot);
	if (bad || d->restore_other || (c->forced && !c->own && !s->form))
		turn_restart_fail(d, row.slot);
	else
		turn_restart(d, row.slot);
	return 0;
}

uint64_t keep_sweep(struct daemon *d)
{
	struct store_key key = {.length = 0};
	const uint64_t now = keep_wall_ms();
	uint8_t none[8];
	if (!d->store || d->now_us < d->swept_us + SWEEP_EVERY_US || !step_room(d))
		return d->store ? d->swept_us + 60 * (uint64_t)SWEEP_EVERY_US : UINT64_MAX;
	d->swept_us = d->now_us;
	/* The keys of sessions whose answers are past their time: with them goes what was kept. */
	const uint64_t keep_ms = d->options.idem_ms + d->options.detach_max_ms + KEYLESS_MS;
	(void)store_owners_sweep(d->store, now > keep_ms ? now - keep_ms : 0);
	for (uint32_t i = 0; i < SWEEP_MAX; i++) {
		size_t bytes = sizeof none;
		guard_begin(d->guard, the_log);
		const int code = store_kept_next(d->store, TABLE_EXPIRES, &key, none, &bytes);
		guard_end(d->guard);
		if (code != 0 || key.length < 9)
			return d->swept_us + 60 * (uint64_t)SWEEP_EVERY_US;
		uint64_t at = 0;
		for (unsigned k = 0; k < 8; k++)
			at = at << 8 | key.bytes[k];
		if (at > now)
			return d->swept_us + 60 * (uint64_t)SWEEP_EVERY_US;
		struct store_key of;
		keep_key(&of, key.bytes + 9, key.length - 9);
		if (key.bytes[8] == TABLE_IDEM || key.bytes[8] == TABLE_CALL)
			keep_put(d, (enum store_table)key.bytes[8], &of, NULL, NULL, 0);
		keep_put(d, TABLE_EXPIRES, &key, NULL, NULL, 0);
		keep_key_add(&key, "", 1);
	}
	return d->swept_us + SWEEP_EVERY_US;
}
