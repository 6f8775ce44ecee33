/*
 * Sessions as clients know them: the token history and how it came to be, the template's state, the
 * wire's id. What is resident of it is the scheduler's business.
 */
#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "runtime/events.h"
#include "runtime/forget.h"
#include "runtime/keep.h"

enum { FORCED_STRING_MAX = 65536 }; /* characters of a string argument of a forced call */

static void form_drop(struct session *s)
{
	if (s->form && --s->form->sessions == 0) {
		form_close(&s->form->form);
		free(s->form->tools);
		free(s->form->tool_length);
		free(s->form);
	}
	s->form = NULL;
}

int sessions_open(struct daemon *d)
{
	d->sessions = calloc(d->options.sessions, sizeof *d->sessions);
	if (!d->sessions)
		return -ERR_MEMORY;
	for (size_t i = 0; i < d->options.sessions; i++) {
		struct session *s = &d->sessions[i];
		s->far_token = memory_reserve(d->limits.context_tokens * sizeof *s->token);
		s->far_mark = memory_reserve(d->options.session_turns * sizeof *s->mark);
		if (!s->far_token || !s->far_mark)
			return -ERR_MEMORY;
	}
	return session_rest_open(d);
}

void sessions_close(struct daemon *d)
{
	for (size_t i = 0; d->sessions && i < d->options.sessions; i++) {
		struct session *s = &d->sessions[i];
		if (s->far_token)
			munmap(s->far_token, d->limits.context_tokens * sizeof *s->token);
		if (s->far_mark)
			munmap(s->far_mark, d->options.session_turns * sizeof *s->mark);
		form_drop(s);
	}
	session_rest_close(d);
	free(d->sessions);
	d->sessions = NULL;
}

static bool tenant_full(const struct daemon *d, uint32_t principal)
{
	const uint32_t tenant = d->principals[principal].tenant;
	const uint64_t most = d->tenants.tenant[tenant].sessions;
	uint64_t count = 0;
	for (uint32_t i = 0; most && i < d->options.sessions; i++)
		count += d->sessions[i].used && d->principals[d->sessions[i].principal].tenant == tenant;
	return most && count >= most;
}

static bool principal_full(const struct daemon *d, uint32_t principal)
{
	/* Those that an earlier process kept come back in any case: then no door is open yet. */
	const uint64_t most = d->door_count ? d->options.sessions_principal : 0;
	uint64_t count = 0;
	for (uint32_t i = 0; most && i < d->options.sessions; i++)
		count += d->sessions[i].used && d->sessions[i].principal == principal;
	return most && count >= most && !public_is(d, principal);
}

/* The limit that is reached, when there is no session for the principal. */
static uint64_t session_limit(const struct daemon *d, uint32_t principal)
{
	if (tenant_full(d, principal))
		return d->tenants.tenant[d->principals[principal].tenant].sessions;
	return principal_full(d, principal) ? d->options.sessions_principal : d->options.sessions;
}

void session_refuse(struct daemon *d, uint32_t call, uint32_t principal)
{
	const uint64_t limit = session_limit(d, principal);
	const struct wire_err err = {.code = ERR_OVERLOADED, .retry = "later", .after_ms = 1000,
				     .used = limit, .asked = 1, .limit = limit};
	call_fail_numbers(d, call, &err);
}

uint32_t session_take(struct daemon *d, uint32_t principal)
{
	if (tenant_full(d, principal) || principal_full(d, principal))
		return NONE;
	for (uint32_t i = 0; i < d->options.sessions; i++) {
		struct session *s = &d->sessions[i];
		if (s->used)
			continue;
		uint32_t *token = s->far_token;
		struct turn_mark *mark = s->far_mark;
		memset(s, 0, sizeof *s);
		s->token = s->far_token = token;
		s->mark = s->far_mark = mark;
		s->used = true;
		s->principal = principal;
		s->sched = SCHED_NONE;
		s->call = NONE;
		s->epoch = 1;
		s->touched_us = d->now_us;
		randombytes_buf(s->id.bytes, sizeof s->id.bytes);
		return i;
	}
	return NONE;
}

void session_drop(struct daemon *d, uint32_t session)
{
	struct session *s = &d->sessions[session];
	CHECK(s->used);
	turns_deferred_end(d, session, NULL);
	lower_forget(d, session);
	form_drop(s);
	session_far_release(d, s);
	s->used = false;
}

uint32_t session_find(struct daemon *d, uint32_t principal, const struct wire_id *id)
{
	for (uint32_t i = 0; i < d->options.sessions; i++) {
		const struct session *s = &d->sessions[i];
		if (s->used && !s->closing && !session_orphan(s) && s->principal == principal &&
		    memcmp(&s->id, id, sizeof *id) == 0)
			return i;
	}
	return NONE;
}

void session_cut(struct daemon *d, uint32_t session, uint32_t tokens)
{
	struct session *s = &d->sessions[session];
	CHECK(tokens <= s->history);
	bool at_start = false, within = tokens < s->history;
	while (s->mark_count && s->mark[s->mark_count - 1].start >= tokens) {
		s->mark_count--;
		s->state = s->mark[s->mark_count].before;
		at_start = s->mark[s->mark_count].start == tokens;
	}
	/* Within a turn, or in the head: whatever was being said there is closed before the next
	   message. */
	if (within && !at_start)
		s->state.open = true;
	s->history = tokens;
	lower_history_cut(d, session, tokens);
	if (s->kept_history > tokens)
		s->kept_history = tokens;
	if (s->kept_marks > s->mark_count)
		s->kept_marks = s->mark_count;
	if (s->known > tokens)
		s->known = tokens;
}

int session_tokenise(struct daemon *d, size_t *count)
{
	const size_t capacity = d->limits.context_tokens + 1;
	*count = 0;
	for (size_t i = 0; i < d->rendering.count; i++) {
		const struct segment *g = &d->rendering.segment[i];
		TRY(tokenizer_encode(d->tokenizer, d->rendering.bytes + g->at, g->length, g->special, d->ids,
				     capacity, count));
	}
	return 0;
}

void session_end_fields(const struct session *s, struct wire_end *end)
{
	end->has_sess = true;
	end->sess = s->id;
	end->epoch = s->epoch;
	end->turn = s->turn;
}

/* The events' form of what a client asks for. */
static void residency_event(struct daemon *d, const struct wire_residency_args *a, struct event *e)
{
	e->as.residency.kind = a->present ? a->kind : RESIDENCY_BEST_EFFORT;
	if (!a->present || a->kind == WIRE_BEST_EFFORT)
		return;
	const uint64_t tokens = a->tokens == WIRE_NONE ? d->limits.context_tokens : a->tokens;
	e->as.residency.bytes = a->bytes == WIRE_NONE ? sched_context_bytes(d->sched, tokens) : a->bytes;
	if (a->kind == WIRE_LEASED) {
		const uint64_t ms = a->lease_ms == WIRE_NONE ? d->options.lease_max_ms : a->lease_ms;
		e->as.residency.lease_us = (ms < d->options.lease_max_ms ? ms : d->options.lease_max_ms) * 1000;
	}
}

static const char *residency_name(uint64_t kind)
{
	return kind == RESIDENCY_PINNED ? "pinned" : kind == RESIDENCY_LEASED ? "leased" : "best_effort";
}

/* Writes {granted: {kind, bytes, lease_ms}, history?} and ends the call with it. */
static void granted_end(struct daemon *d, uint32_t call, const struct session *s, bool history)
{
	struct wire_writer w;
	wire_writer_init(&w, d->out, d->out_max);
	wire_put_map(&w, history ? 2 : 1);
	wire_put_text(&w, "granted");
	wire_put_map(&w, 3);
	wire_put_text(&w, "kind");
	wire_put_text(&w, residency_name(step_granted.kind));
	wire_put_text(&w, "bytes");
	wire_put_u64(&w, step_granted.bytes);
	wire_put_text(&w, "lease_ms");
	wire_put_u64(&w, step_granted.lease_us / 1000);
	if (history) {
		wire_put_text(&w, "history");
		wire_put_u64(&w, s->history);
	}
	struct wire_end end = {.status = {"ok", 2}, .result = {w.at, w.length}};
	session_end_fields(s, &end);
	call_end(d, call, &end);
}

static int tools_copy(struct held_form *held, const struct wire_args *a)
{
	size_t bytes = 0;
	for (uint32_t i = 0; i < a->tool_count; i++)
		bytes += a->tools[i].length;
	held->tools = malloc(bytes + 1);
	held->tool_length = calloc(a->tool_count, sizeof *held->tool_length);
	if (!held->tools || !held->tool_length)
		return -ERR_MEMORY;
	for (size_t at = 0; held->tool_count < a->tool_count; held->tool_count++) {
		const struct wire_str *tool = &a->tools[held->tool_count];
		memcpy(held->tools + at, tool->at, tool->length);
		held->tool_length[held->tool_count] = (uint32_t)tool->length;
		at += tool->length;
	}
	return 0;
}

/* Tools are kept only as what a forced call needs; their text is in the history. */
int session_tools(struct daemon *d, struct session *s, const struct wire_args *a, struct tool *tools)
{
	for (uint32_t i = 0; i < a->tool_count; i++)
		tools[i].json = (struct text){a->tools[i].at, a->tools[i].length};
	s->tools = a->tool_count > 0;
	if (!s->tools)
		return 0;
	TRY(form_names_check(tools, a->tool_count, &s->form_why));
	s->form = session_form_same(d, a);
	if (s->form) {
		s->form->sessions++;
		return 0;
	}
	if (!d->form_index)
		s->form_why = "this vocabulary can write no form";
	struct held_form *held = d->form_index ? calloc(1, sizeof *held) : NULL;
	if (!held)
		return d->form_index ? -ERR_MEMORY : 0;
	const int code = form_open(d->form_index, d->template, tools, a->tool_count, FORCED_STRING_MAX,
				   &held->form, &s->form_why);
	if (code) {
		free(held);
		/* A tool that no form can be made of is no obstacle to offering it. */
		return code == -ERR_UNSUPPORTED || code == -ERR_TOO_BIG ? 0 : code;
	}
	held->sessions = 1;
	s->form = held;
	return tools_copy(held, a);
}

int session_tools_restore(struct daemon *d, struct session *s, const uint8_t *tools, size_t bytes)
{
	static struct wire_args args;
	memset(&args, 0, sizeof args);
	while (bytes > sizeof(uint32_t) && args.tool_count < WIRE_TOOLS_MAX) {
		uint32_t length;
		memcpy(&length, tools, sizeof length);
		if (length > bytes - sizeof length)
			return -ERR_INTEGRITY;
		args.tools[args.tool_count++] = (struct wire_str){(const char *)tools + sizeof length, length};
		tools += sizeof length + length;
		bytes -= sizeof length + length;
	}
	static struct tool list[WIRE_TOOLS_MAX];
	return session_tools(d, s, &args, list) == 0 ? 0 : -ERR_INTEGRITY;
}

bool session_offers(const struct daemon *d, struct session *s)
{
	if (d->template && !s->raw)
		return true;
	s->form_why = "without a template there is neither a system prompt nor a tool";
	return false;
}

/* Renders and tokenises the head of a session into its history. */
int session_head(struct daemon *d, struct session *s, const struct wire_args *a)
{
	struct tool tools[WIRE_TOOLS_MAX];
	const struct message system = {.role = ROLE_SYSTEM, .content = {a->system.at, a->system.length}};
	size_t count = 0;
	if (!session_offers(d, s))
		return a->system.at || a->tool_count ? -ERR_BAD_ARG : 0;
	TRY(session_tools(d, s, a, tools));
	rendering_clear(&d->rendering);
	const int rendered = template_begin(d->template, &s->state, a->system.at ? &system : NULL, tools,
					    a->tool_count, &d->rendering);
	if (rendered != 0) {
		s->form_why = d->rendering.why; /* it is something else that is wrong */
		return rendered;
	}
	const int tokenised = session_tokenise(d, &count);
	if (tokenised)
		return tokenised == -ERR_TOO_BIG ? -ERR_CONTEXT_FULL : tokenised;
	uint32_t at = 0;
	const struct vocabulary *v = &d->model->vocabulary;
	if (v->add_bos && v->bos != UINT32_MAX && (count == 0 || d->ids[0] != v->bos))
		s->token[at++] = v->bos;
	if (count + at >= d->limits.context_tokens)
		return -ERR_CONTEXT_FULL;
	memcpy(s->token + at, d->ids, count * sizeof *d->ids);
	s->history = at + (uint32_t)count;
	return 0;
}

static void label_take(struct session *s, const struct wire_str *label)
{
	const size_t n = label->at && label->length <= LABEL_MAX ? label->length : 0;
	if (n)
		memcpy(s->label, label->at, n);
	s->label[n] = 0;
}

void record_session(struct daemon *d, const struct session *s, uint8_t kind)
{
	struct store_record r = {.kind = kind, .principal = s->principal, .turn = (uint32_t)s->turn};
	memcpy(r.session, s->id.bytes, sizeof r.session);
	step_record(d, &r);
}

/* Its running turn ends first; the slot is free when the scheduler says CLOSED. */
void session_end_alone(struct daemon *d, uint32_t session)
{
	struct session *s = &d->sessions[session];
	const struct event e = {
			.kind = EVENT_CLOSE, .session = s->sched, .turn = SCHED_NONE, .now_us = d->now_us};
	record_session(d, s, STORE_SESSION_CLOSE);
	keep_session_drop(d, session);
	s->closing = true;
	turns_deferred_end(d, session, NULL);
	step(d, &e, NULL);
}

void session_method_open(struct daemon *d, uint32_t call, const struct wire_call *m)
{
	struct call *c = &d->calls[call];
	const struct wire_args *a = &m->a;
	if (d->draining) {
		call_fail(d, call, ERR_DRAINING);
		return;
	}
	bool raw;
	const int refused = session_template(d, &a->template_name, &raw);
	if (refused) {
		call_fail_why(d, call, refused, d->template_why);
		return;
	}
	const uint32_t slot = session_take(d, c->principal);
	if (slot == NONE) {
		session_refuse(d, call, c->principal);
		return;
	}
	struct session *s = &d->sessions[slot];
	s->raw = raw;
	session_begin(d, call, m, slot, session_head(d, s, a));
}

/* What is wrong with the tools, where it is they that are refused. */
static struct wire_str form_why(const struct session *s, int code)
{
	const char *why = code == -ERR_BAD_ARG && !s->form ? s->form_why : NULL;
	return (struct wire_str){why, why ? strlen(why) : 0};
}

void session_begin(struct daemon *d, uint32_t call, const struct wire_call *m, uint32_t slot, int code)
{
	const struct call *c = &d->calls[call];
	const struct wire_args *a = &m->a;
	struct session *s = &d->sessions[slot];
	label_take(s, &a->label);
	if (code == 0) {
		struct event e = {.kind = EVENT_OPEN, .session = SCHED_NONE, .turn = SCHED_NONE,
				  .principal = c->principal, .now_us = d->now_us, .session_key = slot};
		residency_event(d, &a->residency, &e);
		step(d, &e, NULL);
		code = step_granted.err;
	}
	if (code != 0) {
		const struct wire_err err = {
			.code = code < 0 ? -code : code, .after_ms = WIRE_NONE,
			.used = code < 0 ? WIRE_NONE : step_granted.free_bytes,
			.asked = code < 0 ? WIRE_NONE : step_granted.asked_bytes,
			.limit = code == -ERR_CONTEXT_FULL ? d->limits.context_tokens : WIRE_NONE,
			.why = form_why(s, code)};
		session_drop(d, slot);
		call_fail_numbers(d, call, &err);
		return;
	}
	s->sched = step_granted.session;
	record_session(d, s, STORE_SESSION_OPEN);
	keep_session(d, slot);
	session_rest(d, slot);
	granted_end(d, call, s, true);
}

void session_method_fork(struct daemon *d, uint32_t call, const struct wire_call *m)
{
	const uint32_t from = d->calls[call].session;
	const struct wire_args *a = &m->a;
	struct session *parent = &d->sessions[from];
	if (session_busy(d, from)) {
		call_fail(d, call, ERR_SESSION_BUSY);
		return;
	}
	uint32_t tokens = parent->history;
	if (a->to_turn != WIRE_NONE) {
		if (a->to_turn >= parent->mark_count && a->to_turn != parent->turn) {
			call_fail(d, call, ERR_OUT_OF_RANGE);
			return;
		}
		if (a->to_turn < parent->mark_count)
			tokens = parent->mark[a->to_turn].start;
	} else if (a->tokens != WIRE_NONE) {
		if (a->tokens > parent->history) {
			call_fail(d, call, ERR_OUT_OF_RANGE);
			return;
		}
		tokens = (uint32_t)a->tokens;
	}
	const uint32_t slot = session_take(d, parent->principal);
	if (slot == NONE) {
		session_refuse(d, call, parent->principal);
		return;
	}
	struct session *s = &d->sessions[slot];
	struct event e = {.kind = EVENT_FORK, .session = parent->sched, .turn = SCHED_NONE,
			  .principal = parent->principal, .now_us = d->now_us, .session_key = slot};
	residency_event(d, &a->residency, &e);
	/* Its tokens first: the step may move its pages, and asks what they stand for. */
	s->history = parent->history;
	memcpy(s->token, parent->token, s->history * sizeof *s->token);
	step(d, &e, NULL);
	if (step_granted.err) {
		session_drop(d, slot);
		call_fail(d, call, step_granted.err);
		return;
	}
	const struct granted granted = step_granted;
	s->sched = granted.session;
	s->turn = parent->turn;
	s->state = parent->state;
	s->tools = parent->tools;
	s->raw = parent->raw;
	s->mark_count = parent->mark_count;
	s->form = parent->form;
	s->form_why = parent->form_why;
	if (s->form)
		s->form->sessions++;
	if (tokens == parent->history) {
		s->waits_since_us = parent->waits_since_us;
		s->waits_for = parent->waits_for;
		s->waits_ids = parent->waits_ids;
	}
	s->why_lost = "fork_tail";
	s->parent = a->tied ? from + 1 : 0;
	memcpy(s->mark, parent->mark, s->mark_count * sizeof *s->mark);
	label_take(s, &a->label);
	record_session(d, s, STORE_SESSION_OPEN);
	if (tokens < s->history) {
		session_rollback(d, slot, tokens);
		step_granted = granted;
	}
	keep_session(d, slot);
	session_rest(d, slot);
	granted_end(d, call, s, true);
}

void session_rollback(struct daemon *d, uint32_t session, uint32_t tokens)
{
	struct session *s = &d->sessions[session];
	struct session_view view;
	session_cut(d, session, tokens);
	if (s->turn > s->mark_count)
		s->turn = s->mark_count;
	CHECK(sched_session(d->sched, s->sched, &view) == 0);
	if (view.history <= tokens)
		return; /* What the scheduler knows is before the cut: the rest was never computed. */
	const struct event e = {.kind = EVENT_ROLLBACK, .session = s->sched, .turn = SCHED_NONE,
				.now_us = d->now_us, .as.rollback = {.tokens = tokens}};
	s->why_lost = "rolled_back"; /* unless the step knows better */
	step(d, &e, NULL);
	kv_cut(d, s->sched);
}

void session_method_rollback(struct daemon *d, uint32_t call, const struct wire_call *m)
{
	const uint32_t slot = d->calls[call].session;
	struct session *s = &d->sessions[slot];
	const struct wire_args *a = &m->a;
	if (session_busy(d, slot)) {
		call_fail(d, call, ERR_SESSION_BUSY);
		return;
	}
	if ((a->to_turn != WIRE_NONE && a->to_turn > s->mark_count) ||
	    (a->to_turn == WIRE_NONE && (a->tokens == WIRE_NONE || a->tokens > s->history))) {
		call_fail(d, call, ERR_OUT_OF_RANGE);
		return;
	}
	uint32_t tokens = (uint32_t)a->tokens;
	if (a->to_turn != WIRE_NONE)
		tokens = a->to_turn < s->mark_count ? s->mark[a->to_turn].start : s->history;
	session_rollback(d, slot, tokens);
	s->waits_since_us = s->waits_for = s->waits_ids = 0;
	keep_session(d, slot);
	struct session_view view;
	CHECK(sched_session(d->sched, s->sched, &view) == 0);
	uint8_t body[64];
	struct wire_writer w;
	wire_writer_init(&w, body, sizeof body);
	wire_put_map(&w, 2);
	wire_put_text(&w, "history");
	wire_put_u64(&w, s->history);
	wire_put_text(&w, "resident");
	wire_put_u64(&w, view.resident);
	struct wire_end end = {.status = {"ok", 2}, .result = {w.at, w.length}};
	session_end_fields(s, &end);
	call_end(d, call, &end);
}

void session_method_close(struct daemon *d, uint32_t call, const struct wire_call *m)
{
	const uint32_t slot = d->calls[call].session;
	struct session *s = &d->sessions[slot];
	struct wire_end end = {.status = {"ok", 2}};
	(void)m;
	session_end_fields(s, &end);
	d->calls[call].session = NONE;
	session_end(d, slot);
	call_end(d, call, &end);
}

void session_method_attach(struct daemon *d, uint32_t call, const struct wire_call *m)
{
	struct session *s = &d->sessions[d->calls[call].session];
	uint8_t body[32];
	struct wire_writer w;
	(void)m;
	s->epoch++; /* Whoever was attached before is fenced from now on. */
	keep_session(d, d->calls[call].session);
	wire_writer_init(&w, body, sizeof body);
	wire_put_map(&w, 1);
	wire_put_text(&w, "history");
	wire_put_u64(&w, s->history);
	struct wire_end end = {.status = {"ok", 2}, .result = {w.at, w.length}};
	session_end_fields(s, &end);
	call_end(d, call, &end);
}

void session_method_residency(struct daemon *d, uint32_t call, const struct wire_call *m)
{
	struct session *s = &d->sessions[d->calls[call].session];
	struct event e = {.kind = EVENT_RESIDENCY, .session = s->sched, .turn = SCHED_NONE, .now_us = d->now_us};
	residency_event(d, &m->a.residency, &e);
	step(d, &e, NULL);
	if (step_granted.err) {
		const struct wire_err err = {.code = step_granted.err, .after_ms = WIRE_NONE,
					     .used = step_granted.free_bytes, .asked = step_granted.asked_bytes,
					     .limit = WIRE_NONE};
		call_fail_numbers(d, call, &err);
		return;
	}
	keep_session(d, d->calls[call].session);
	granted_end(d, call, s, false);
}

static void ok_end(struct daemon *d, uint32_t call, const struct session *s)
{
	struct wire_end end = {.status = {"ok", 2}};
	session_end_fields(s, &end);
	call_end(d, call, &end);
}

void session_method_hint(struct daemon *d, uint32_t call, const struct wire_call *m)
{
	struct session *s = &d->sessions[d->calls[call].session];
	struct event e = {.kind = EVENT_HINT, .session = s->sched, .turn = SCHED_NONE, .now_us = d->now_us};
	if (session_busy(d, d->calls[call].session)) {
		call_fail(d, call, ERR_SESSION_BUSY);
		return;
	}
	e.as.hint.pause = m->a.tool_name.at || s->waits_since_us ? PAUSE_TOOL : PAUSE_HUMAN;
	e.as.hint.returns_in_us = m->a.returns_in_ms * 1000;
	if (m->a.tool_name.at) {
		uint8_t hash[crypto_generichash_BYTES_MIN];
		crypto_generichash(hash, sizeof hash, (const uint8_t *)m->a.tool_name.at,
				   m->a.tool_name.length, NULL, 0);
		memcpy(&e.as.hint.tool_key, hash, sizeof e.as.hint.tool_key);
	}
	step(d, &e, NULL);
	ok_end(d, call, s);
}

void session_method_touch(struct daemon *d, uint32_t call, const struct wire_call *m)
{
	const struct session *s = &d->sessions[d->calls[call].session];
	const struct event e = {.kind = EVENT_TOUCH, .session = s->sched, .turn = SCHED_NONE,
				.now_us = d->now_us};
	(void)m;
	step(d, &e, NULL);
	keep_session(d, d->calls[call].session);
	ok_end(d, call, s);
}

void session_method_park(struct daemon *d, uint32_t call, const struct wire_call *m)
{
	struct session *s = &d->sessions[d->calls[call].session];
	const struct wire_str *place = &m->a.place;
	struct event e = {.kind = EVENT_PARK, .session = s->sched, .turn = SCHED_NONE, .now_us = d->now_us};
	if (session_busy(d, d->calls[call].session)) {
		call_fail(d, call, ERR_SESSION_BUSY);
		return;
	}
	e.as.park.place = place->length == 4 && place->at[0] == 'h' ? PLACE_HOST
			  : place->length == 4 && place->at[0] == 'd' ? PLACE_DISK : PLACE_TOKENS;
	step_granted.err = 0;
	step(d, &e, NULL);
	if (step_granted.err)
		call_fail(d, call, step_granted.err == ERR_UNSUPPORTED ? ERR_BAD_ARG : step_granted.err);
	else
		ok_end(d, call, s);
}
