/*
 * A turn: from messages to tokens, token by token back to text, and to its END.
 *
 * What may refuse changes nothing: the messages are rendered and tokenised beside the session, and
 * only a turn that fits is appended to its history.
 */
#include <float.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/keep.h"

/* What the wire lets through, the device takes: a bad sample would end its neighbours' step too. */
_Static_assert(WIRE_LOGPROBS_MAX - 1 <= OPS_TOP_MAX, "alternatives that the device can give");

/* What a turn adds, ready to be appended. */
struct addition {
	struct template_state state;
	uint32_t keep, count; /* history tokens that stay; d->ids[0 .. count) follow */
	const char *why;      /* of -ERR_BAD_ARG; static text, NULL: nothing more is known */
};

static int messages_render(struct daemon *d, const struct wire_args *a, struct template_state *state)
{
	static struct tool_call calls[WIRE_MESSAGES_MAX];
	static struct message messages[WIRE_MESSAGES_MAX];
	static const enum role roles[] = {ROLE_SYSTEM, ROLE_USER, ROLE_ASSISTANT, ROLE_TOOL};
	for (uint32_t i = 0; i < a->call_count; i++) {
		const struct wire_tool_call *c = &a->calls[i];
		calls[i] = (struct tool_call){{c->id.at, c->id.length}, {c->name.at, c->name.length},
					      {c->arguments.at, c->arguments.length}};
	}
	for (uint32_t i = 0; i < a->message_count; i++) {
		const struct wire_message *m = &a->messages[i];
		messages[i] = (struct message){
			.role = roles[m->role], .content = {m->content.at, m->content.length},
			.calls = calls + m->call_first, .call_count = m->call_count,
			.call_id = {m->tool_call_id.at, m->tool_call_id.length},
			.name = {m->name.at, m->name.length}};
	}
	rendering_clear(&d->rendering);
	TRY(template_append(d->template, state, messages, a->message_count, &d->rendering));
	return template_open_turn(d->template, state, &d->rendering);
}

static int blob_tokens(struct daemon *d, const uint8_t *blob, size_t length, size_t *count)
{
	if (length % 4 != 0)
		return -ERR_BAD_ARG;
	*count = length / 4;
	if (*count > d->limits.context_tokens)
		return -ERR_TOO_BIG;
	for (size_t i = 0; i < *count; i++) {
		const uint8_t *p = blob + i * 4;
		d->ids[i] = (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
		if (d->ids[i] >= d->model->arch.vocab)
			return -ERR_OUT_OF_RANGE;
	}
	return 0;
}

/* Fills the addition without touching the session. */
static int addition_make(struct daemon *d, const struct session *s, const struct wire_call *m,
			 const uint8_t *blob, size_t blob_length, struct addition *out)
{
	const struct wire_args *a = &m->a;
	size_t count = 0;
	out->state = s->state;
	out->keep = s->history;
	out->why = NULL;
	if (a->tokens_in_blob) {
		TRY(blob_tokens(d, blob, blob_length, &count));
		if (a->keep != WIRE_NONE && a->keep > s->history)
			return -ERR_OUT_OF_RANGE;
		if (a->keep != WIRE_NONE)
			out->keep = (uint32_t)a->keep;
	} else {
		if (!d->template || s->raw) {
			out->why = "without a template there are no messages: send tokens";
			return -ERR_BAD_ARG;
		}
		const int code = messages_render(d, a, &out->state);
		out->why = d->rendering.why;
		TRY(code);
		TRY(session_tokenise(d, &count));
	}
	out->count = (uint32_t)count;
	if (out->keep + out->count > 0)
		return 0;
	out->why = "the session would have no token";
	return -ERR_BAD_ARG;
}

static int bias_order(const void *a, const void *b)
{
	const uint32_t *x = a, *y = b; /* the token is each entry's first member */
	return (*x > *y) - (*x < *y);
}

/* The device wants biases by ascending tokens of the vocabulary, each once; stops are of it too. */
static int tokens_check(const struct daemon *d, struct wire_sampling *s)
{
	qsort(s->bias, s->bias_count, sizeof s->bias[0], bias_order);
	for (uint32_t i = 0; i < s->stop_token_count; i++)
		if (s->stop_token[i] >= d->model->arch.vocab)
			return ERR_OUT_OF_RANGE;
	for (uint32_t i = 0; i < s->bias_count; i++) {
		if (s->bias[i].token >= d->model->arch.vocab)
			return ERR_OUT_OF_RANGE;
		if (i > 0 && s->bias[i].token == s->bias[i - 1].token)
			return ERR_BAD_ARG;
	}
	return 0;
}

static void context_full(struct daemon *d, uint32_t call, uint64_t used, uint64_t asked)
{
	const struct wire_err err = {.code = ERR_CONTEXT_FULL, .retry = "no", .after_ms = WIRE_NONE,
				     .used = used, .asked = asked, .limit = d->limits.context_tokens};
	call_fail_numbers(d, call, &err);
}

static void sampling_take(struct call *c, const struct wire_sampling *from)
{
	size_t at = 0;
	c->sampling = *from;
	for (uint32_t i = 0; i < from->stop_count; i++) {
		CHECK(at + from->stop[i].length <= sizeof c->stop_bytes);
		memcpy(c->stop_bytes + at, from->stop[i].at, from->stop[i].length);
		c->sampling.stop[i].at = c->stop_bytes + at;
		at += from->stop[i].length;
	}
}

/* What may be sampled when the client names no limit: to the context's end, or to what all pages, or its
   principal's quota of them, hold (the last token needs none). */
static uint32_t output_most(const struct daemon *d, uint32_t session, uint32_t prompt)
{
	const struct sched_group *window = &d->limits.group[1];
	uint64_t pages = d->limits.group[0].page_count[PLACE_DEVICE];
	if (window->window_tokens && window->page_count[PLACE_DEVICE] < sched_window(&d->limits, 1).turn_pages &&
	    window->page_count[PLACE_DEVICE] < pages)
		pages = window->page_count[PLACE_DEVICE];
	const uint64_t quota = sched_tokens_most(d->sched, session), all = pages * d->limits.page_tokens;
	const uint64_t slab = quota < all ? quota : all;
	const uint32_t left = d->limits.context_tokens - prompt;
	return slab <= prompt || slab - prompt + 1 >= left ? left : (uint32_t)(slab - prompt + 1);
}

static void undo_take(struct daemon *d, uint32_t call, uint32_t cut)
{
	const struct session *s = &d->sessions[d->calls[call].session];
	struct undo *u = &d->undo;
	u->call = call;
	u->history = s->history;
	u->mark_count = s->mark_count;
	u->turn = s->turn;
	u->state = s->state;
	u->cut = cut;
	memcpy(u->token, s->token + cut, (s->history - cut) * sizeof *u->token);
	/* Of the marks only the one that the new turn's mark will lie on is written over. */
	uint32_t left = s->mark_count;
	while (left && s->mark[left - 1].start >= cut && cut < s->history)
		left--;
	u->mark = s->mark[left];
}

static void undo_do(struct daemon *d, struct session *s)
{
	const struct undo *u = &d->undo;
	s->mark[s->mark_count - 1] = u->mark;
	s->history = u->history;
	s->mark_count = u->mark_count;
	s->turn = u->turn;
	s->state = u->state;
	memcpy(s->token + u->cut, u->token, (u->history - u->cut) * sizeof *u->token);
}

/* The session is appended to and the scheduler hears of the turn. */
static void turn_start(struct daemon *d, uint32_t call, const struct wire_args *a,
		       const struct addition *add)
{
	struct call *c = &d->calls[call];
	struct session *s = &d->sessions[c->session];
	struct session_view view;
	CHECK(sched_session(d->sched, s->sched, &view) == 0);
	session_wake(s);
	undo_take(d, call, add->keep);
	if (add->keep < s->history) {
		session_cut(d, c->session, add->keep);
		s->turn = s->turn < s->mark_count ? s->turn : s->mark_count;
		s->why_lost = "rolled_back";
	}
	CHECK(s->mark_count < d->options.session_turns);
	s->mark[s->mark_count++] = (struct turn_mark){
		.start = s->history, .output = s->history + add->count, .before = s->state};
	memcpy(s->token + s->history, d->ids, add->count * sizeof *d->ids);
	s->history += add->count;
	s->state = add->state;
	s->call = call;
	const uint32_t left = output_most(d, s->sched, s->history);
	const uint32_t asked = a->sampling.max_tokens;
	const uint32_t output_max =
		asked && asked < d->limits.context_tokens - s->history ? asked : left;
	c->state = CALL_RUNNING;
	c->prompt = s->history;
	c->keep = add->keep;
	c->output_max = output_max;
	c->tools = s->tools && a->tool_choice != TOOL_NONE && !c->own;
	c->forced = a->tool_choice == TOOL_REQUIRED || c->own;
	if (c->forced)
		turn_form_start(d, c);
	sampling_take(c, &a->sampling);
	c->credit = (uint32_t)(d->options.stream_bytes / d->token_bytes_max) + 1;
	/* A head that was never computed is the scheduler's with this turn. */
	const uint32_t kept = add->keep < view.history ? add->keep : view.history;
	c->tool_us = s->waits_since_us ? d->now_us - s->waits_since_us : WIRE_NONE;
	const struct event e = {
		.kind = EVENT_TURN, .session = s->sched, .turn = SCHED_NONE, .now_us = d->now_us,
		.turn_key = (uint64_t)c->generation << 32 | call,
		.as.turn = {.keep = kept, .append = s->history - kept, .output_max = output_max,
			    .chain_count = chain_make(d, s), .credit = c->credit, .deadline_us = c->deadline_us}};
	step(d, &e, NULL);
	d->undo.call = NONE;
	if (c->state != CALL_RUNNING)
		return;
	s->waits_since_us = s->waits_for = s->waits_ids = 0;
	/* And its beginning before the first of its tokens is sent: it can be asked for after a kill. */
	keep_call_begin(d, call);
	if (d->store)
		c->accept_mark = store_hurry(d->store);
}

void turn_restart(struct daemon *d, uint32_t call)
{
	struct call *c = &d->calls[call];
	struct session *s = &d->sessions[c->session];
	session_wake(s);
	s->call = call;
	c->state = CALL_RUNNING;
	if (c->forced)
		turn_form_start(d, c);
	c->credit = (uint32_t)(d->options.stream_bytes / d->token_bytes_max) + 1;
	/* What of it was found on the disk is the scheduler's history already. */
	struct session_view view;
	CHECK(sched_session(d->sched, s->sched, &view) == 0);
	const struct event e = {
		.kind = EVENT_TURN, .session = s->sched, .turn = SCHED_NONE, .now_us = d->now_us,
		.turn_key = (uint64_t)c->generation << 32 | call,
		.as.turn = {.keep = view.history, .append = s->history - view.history,
			    .output_max = c->output_max, .credit = c->credit, .chain_count = chain_make(d, s),
			    .deadline_us = c->deadline_us}};
	step(d, &e, NULL);
}

void turn_restart_fail(struct daemon *d, uint32_t call)
{
	struct call *c = &d->calls[call];
	struct session *s = &d->sessions[c->session];
	/* As if it had never been asked for: what it added is cut. */
	const uint32_t start = s->mark[s->mark_count - 1].start;
	struct session_view view;
	session_cut(d, c->session, start);
	if (sched_session(d->sched, s->sched, &view) == 0 && view.history > start) {
		const struct event e = {.kind = EVENT_ROLLBACK, .session = s->sched, .turn = SCHED_NONE,
					.now_us = d->now_us, .as.rollback = {.tokens = start}};
		step(d, &e, NULL);
	}
	c->sampling.stop_count = c->sampling.stop_token_count = c->sampling.bias_count = 0;
	call_fail(d, call, ERR_RESTARTED);
	keep_session(d, c->session);
}

/* The turn's own form, if it asks for one; false: the call has failed, and its END says why. */
static bool form_take(struct daemon *d, uint32_t call, const struct wire_args *a)
{
	struct call *c = &d->calls[call];
	const char *reason = NULL;
	const int code = turn_form_take(d, c, a, &reason);
	if (code == 0)
		return true;
	turn_form_drop(c);
	call_fail_why(d, call, code == -ERR_MEMORY ? ERR_MEMORY : ERR_BAD_ARG, reason);
	return false;
}

/* Each call of the turn has one result: NULL, or what is wrong. Where nobody knows how many there are, or
   their ids, what comes is taken. */
static const char *results_wrong(const struct session *s, const struct wire_call *m)
{
	const struct wire_args *a = &m->a;
	uint32_t ids = 0;
	if (m->method != METHOD_SESSION_CONTINUE || a->tokens_in_blob || !s->waits_for)
		return NULL;
	for (uint32_t i = 0; i < a->message_count; i++) {
		const struct wire_str *x = &a->messages[i].tool_call_id;
		ids = turn_ids_add(ids, x);
		for (uint32_t k = 0; k < i; k++) {
			const struct wire_str *y = &a->messages[k].tool_call_id;
			if (x->length == y->length && memcmp(x->at, y->at, x->length) == 0)
				return "a call of the turn has two results";
		}
	}
	if (a->message_count != s->waits_for)
		return "each call of the turn needs one result";
	return s->waits_ids && ids != s->waits_ids ? "a result is of no call of the turn" : NULL;
}

static void results_refuse(struct daemon *d, uint32_t call, const struct session *s, uint64_t given,
			   const char *why)
{
	const struct wire_err err = {.code = ERR_BAD_ARG, .retry = "no", .after_ms = WIRE_NONE, .used = WIRE_NONE,
				     .asked = given, .limit = s->waits_for, .why = {why, strlen(why)}};
	call_fail_numbers(d, call, &err);
}

void turn_method(struct daemon *d, uint32_t call, const struct wire_call *m, const void *body,
		 size_t length, const uint8_t *blob, size_t blob_length)
{
	struct call *c = &d->calls[call];
	struct session *s = &d->sessions[c->session];
	const struct wire_args *a = &m->a;
	const bool busy = session_busy(d, c->session);
	struct addition add;
	int code = 0;
	if (d->draining)
		code = ERR_DRAINING;
	else if (m->method == METHOD_SESSION_CONTINUE && !s->waits_since_us && !busy)
		code = ERR_TURN_CONFLICT;
	else if (busy && !a->supersede)
		code = ERR_SESSION_BUSY;
	else
		code = tokens_check(d, &d->message.a.sampling);
	if (code) {
		call_fail(d, call, code);
		return;
	}
	if (a->tool_choice == TOOL_REQUIRED && !s->form) {
		call_fail_why(d, call, ERR_BAD_ARG, s->form_why ? s->form_why : "the session has no tools");
		return;
	}
	if (s->mark_count == d->options.session_turns) {
		const struct wire_err err = {.code = ERR_LIMIT, .retry = "no", .after_ms = WIRE_NONE,
					     .used = s->mark_count, .asked = 1, .limit = d->options.session_turns};
		call_fail_numbers(d, call, &err);
		return;
	}
	if (busy) {
		/* The running turn ends first, at the next step's end at the latest. One that waits as well was sent
		   before this one, and does not begin after it. */
		if (length + blob_length > d->text_max) {
			call_fail(d, call, ERR_TOO_BIG);
			return;
		}
		turns_deferred_end(d, c->session, "superseded");
		c->state = CALL_DEFERRED;
		d->deferred = true;
		c->text_used = length + blob_length;
		c->deferred_body = length;
		c->deferred_blob = blob_length;
		memcpy(c->text, body, length);
		if (blob_length)
			memcpy(c->text + length, blob, blob_length);
		if (s->call != NONE)
			call_cancel(d, s->call, END_SUPERSEDED);
		return;
	}
	const char *wrong = results_wrong(s, m);
	if (wrong) {
		results_refuse(d, call, s, a->message_count, wrong);
		return;
	}
	if (!form_take(d, call, a))
		return;
	code = addition_make(d, s, m, blob, blob_length, &add);
	if (code == -ERR_TOO_BIG)
		context_full(d, call, s->history, d->limits.context_tokens + 1);
	else if (code)
		call_fail_why(d, call, code, add.why);
	else if (add.keep + add.count + 1 > d->limits.context_tokens)
		context_full(d, call, add.keep, add.count + 1);
	else
		turn_start(d, call, a, &add);
}

bool session_busy(const struct daemon *d, uint32_t session)
{
	bool waits = false;
	for (uint32_t i = 0; d->deferred && !waits && i < d->calls_top; i++)
		waits = d->calls[i].state == CALL_DEFERRED && d->calls[i].session == session;
	return waits || d->sessions[session].call != NONE;
}

void turns_deferred_end(struct daemon *d, uint32_t session, const char *status)
{
	for (uint32_t i = 0; i < d->calls_top; i++) {
		struct call *c = &d->calls[i];
		if (c->state != CALL_DEFERRED || c->session != session)
			continue;
		c->state = CALL_ENDED;
		c->session = NONE;
		if (status) {
			struct wire_end end = {.status = {status, strlen(status)}, .turn = WIRE_NONE, .epoch = WIRE_NONE};
			call_end(d, i, &end);
		} else {
			call_fail(d, i, ERR_NOT_FOUND);
		}
	}
}

void turns_deferred(struct daemon *d)
{
	const bool any = d->deferred;
	d->deferred = false;
	for (uint32_t i = 0; any && i < d->calls_top; i++) {
		struct call *c = &d->calls[i];
		if (c->state != CALL_DEFERRED)
			continue;
		d->deferred = true; /* at least until the next look */
		struct session *s = c->session == NONE ? NULL : &d->sessions[c->session];
		if (s && s->used && s->call != NONE)
			continue;
		/* Its beginning is on record too, or it waits on. */
		if (!step_room(d))
			return;
		c->state = CALL_ENDED;
		int code = wire_read_call(c->text, c->deferred_body, &d->wire, &d->message) ? ERR_INTERNAL : 0;
		/* Much may have happened to the session meanwhile: it is looked up again by its id. */
		if (!code)
			code = method_session_check(d, i, &d->message);
		if (code)
			call_fail(d, i, code);
		else
			turn_method(d, i, &d->message, c->text, c->deferred_body,
				    c->deferred_blob ? (uint8_t *)c->text + c->deferred_body : NULL,
				    c->deferred_blob);
	}
}

/* A double above zero may round to none. */
static float above_zero(double x)
{
	return x < FLT_MIN ? FLT_MIN : (float)x;
}

void turn_sample(struct daemon *d, uint32_t call, struct batch_builder *b, struct ops_sample *sample)
{
	struct call *c = &d->calls[call];
	const struct wire_sampling *s = &c->sampling;
	sample->temperature = (float)s->temperature;
	sample->top_p = above_zero(s->top_p);
	sample->min_p = (float)s->min_p;
	sample->typical = above_zero(s->typical);
	sample->top_k = s->top_k;
	sample->repetition = (float)s->repetition;
	sample->presence = (float)s->presence;
	sample->frequency = (float)s->frequency;
	sample->seed = s->seed;
	sample->top_count = s->logprobs > 1 ? s->logprobs - 1 : 0;
	turn_bias(d, call, b, sample);
	if (s->repetition != 1 || s->presence != 0 || s->frequency != 0)
		turn_counts(d, call, b, sample);
	if (c->forced) {
		const uint32_t words = (d->model->arch.vocab + 31) / 32;
		uint32_t *bits = batch_extra(b, words, &sample->mask_at);
		memset(bits, 0, words * sizeof *bits);
		turn_form_mask(d, c, bits);
	}
}

static int u32_order(const void *a, const void *b)
{
	const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
	return (x > y) - (x < y);
}

/* How often each token was sampled in this turn, ascending; what penalties are counted on. */
void turn_counts(struct daemon *d, uint32_t call, struct batch_builder *b, struct ops_sample *sample)
{
	const struct call *c = &d->calls[call];
	uint32_t pairs = 0;
	if (!c->sampled)
		return;
	memcpy(d->ids, c->token, c->sampled * sizeof *d->ids);
	qsort(d->ids, c->sampled, sizeof *d->ids, u32_order);
	for (uint32_t i = 0; i < c->sampled; i++)
		pairs += i == 0 || d->ids[i] != d->ids[i - 1];
	uint32_t *at = batch_extra(b, pairs * 2, &sample->counts_at);
	sample->count_count = pairs;
	for (uint32_t i = 0, n = 0; i < c->sampled; n++) {
		const uint32_t token = d->ids[i];
		uint32_t times = 0;
		for (; i < c->sampled && d->ids[i] == token; i++)
			times++;
		at[n * 2] = token;
		at[n * 2 + 1] = times;
	}
}

static int code_of(const struct daemon *d, const struct effect *e)
{
	switch (e->as.end.end) {
	case END_CONTEXT: return ERR_CONTEXT_FULL;
	case END_DEADLINE: return ERR_DEADLINE;
	case END_SLOW: return ERR_SLOW_CONSUMER;
	case END_INTEGRITY: return ERR_INTEGRITY;
	case END_FAULT: return d->device_lost ? ERR_DEVICE : ERR_INTERNAL;
	case END_REFUSED: return e->as.end.err ? (int)e->as.end.err : ERR_NO_PAGES;
	default: return 0;
	}
}

static void usage_fill(struct wire_usage *u, const struct effect *e, const struct call *c,
		       const struct session *s)
{
	u->present = true;
	u->prompt = e->as.end.prompt_tokens;
	u->resident = e->as.end.resident;
	u->reloaded = e->as.end.reloaded;
	u->recomputed = e->as.end.recomputed;
	u->fresh = e->as.end.fresh;
	u->sampled = e->as.end.sampled;
	u->history = e->as.end.history;
	u->context_left = e->as.end.context_left;
	u->queue_us = e->as.end.queue_us;
	u->prefill_us = e->as.end.prefill_us;
	u->decode_us = e->as.end.decode_us;
	u->tool_us = c->tool_us;
	u->forced = c->forced_tokens;
	/* What an earlier process had computed is not new, though this scheduler never saw it. */
	const uint64_t had = u->resident + u->reloaded + u->recomputed;
	const uint64_t again = s->known > had ? (s->known - had < u->fresh ? s->known - had : u->fresh) : 0;
	u->recomputed += again;
	u->fresh -= again;
	const uint64_t there = u->resident + u->reloaded;
	u->diverged_at = there < u->prompt ? there : WIRE_NONE;
	if (u->diverged_at != WIRE_NONE) {
		const char *why = !u->recomputed ? "new" : s->why_lost ? s->why_lost : "evicted";
		u->diverged_why = (struct wire_str){why, strlen(why)};
	}
}

static void record_end(struct daemon *d, const struct call *c, const struct session *s,
		       const struct effect *e)
{
	struct store_record r = {.kind = STORE_TURN_END, .principal = s->principal, .turn = (uint32_t)s->turn,
				 .position_first = e->as.end.prompt_tokens,
				 .page_first = e->as.end.resident,
				 .group = e->as.end.recomputed,
				 .tag_first = (uint64_t)e->as.end.reloaded << 32 | e->as.end.fresh,
				 .value = {e->as.end.sampled, e->as.end.end}};
	memcpy(r.session, s->id.bytes, sizeof r.session);
	memcpy(r.op, c->op.bytes, sizeof r.op);
	step_record(d, &r);
}

void turn_over(struct daemon *d, uint32_t call, const struct effect *e)
{
	static struct wire_end end;
	char ids[WIRE_CALLS_MAX][TURN_ID_ROOM];
	struct call *c = &d->calls[call];
	struct session *s = &d->sessions[c->session];
	const bool refused = e->as.end.end == END_REFUSED;
	/* Refused on arrival: then it never was. One that waited and can no longer fit has been said. */
	memset(&end, 0, sizeof end);
	CHECK(s->call == call);
	s->call = NONE;
	c->sched = NONE;
	c->state = CALL_ENDED;
	if (refused && d->undo.call == call) {
		undo_do(d, s);
		call_idem_forget(d, call);
	} else {
		if (e->as.end.history < s->history) {
			s->history = e->as.end.history;
			lower_history_cut(d, c->session, s->history);
		}
		const bool marked = d->template && c->sampled &&
			template_is_end_mark(d->template, d->tokenizer, c->token[c->sampled - 1]);
		/* A turn of raw tokens opened nothing. */
		if (d->template && s->state.open)
			template_turn_over(d->template, &s->state, marked);
		/* Half a character at the end is shown as what it is; a call's text stays as it was parsed. */
		if (e->as.end.end != END_TOOL)
			c->text_length += utf8_stream_push(&c->utf8, "", 0, true, true, c->text + c->text_length);
		if (c->sampled)
			c->text_end[c->sampled - 1] = (uint32_t)c->text_length;
		c->visible = c->text_length;
		s->turn++;
		if (e->as.end.history < s->kept_history)
			s->kept_history = e->as.end.history;
		record_end(d, c, s, e);
	}
	if (e->as.end.end == END_TOOL) {
		turn_calls_fill(d, c, &end, ids);
		s->waits_since_us = d->now_us;
		s->waits_for = end.call_count;
		s->waits_ids = 0;
		for (uint32_t i = 0; i < end.call_count; i++)
			s->waits_ids = turn_ids_add(s->waits_ids, &end.calls[i].id);
	} else if (!refused) {
		turn_no_call_fill(d, c, &end);
	}
	const char *status = turn_status(e->as.end.end);
	metrics_end(d, c, e);
	if (!refused)
		traffic_turn(d, c, s, e);
	end.status = (struct wire_str){status, strlen(status)};
	end.err = (struct wire_err){.code = code_of(d, e), .after_ms = WIRE_NONE, .used = WIRE_NONE,
				    .asked = WIRE_NONE, .limit = WIRE_NONE};
	if (e->as.end.needed || e->as.end.limit) {
		end.err.asked = e->as.end.needed;
		end.err.limit = e->as.end.limit;
	}
	usage_fill(&end.usage, e, c, s);
	if (!refused) {
		s->why_lost = NULL;
		s->known = 0;
	}
	session_end_fields(s, &end);
	/* The turn, and an incident that ended it, are on disk before the client hears of it. */
	end.durable = d->store && c->kept;
	if (!refused)
		keep_session(d, c->session);
	if (end.durable)
		c->hold_mark = store_hurry(d->store) + 1;
	turn_form_drop(c);
	session_rest(d, c->session);
	call_end(d, call, &end);
}
