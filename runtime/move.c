/*
 * session.export and session.import: a session as tokens and settings, never as pages, to move it
 * from one daemon to another of the same model. What is imported is computed again, and says the same.
 *
 * How the history came to be travels as `course`: for each turn 16 bytes, little-endian: where it
 * began, where its output began, and the template's state before it; and once more for the end, with how
 * many results are waited for, and, where its output would begin, of which calls (turn_ids_add; the
 * history's length: not known). What comes in is as hostile as any argument.
 */
#include <stdlib.h>
#include <string.h>

#include "runtime/daemon.h"

enum { COURSE_BYTES = 16 };
enum { COURSE_OPEN = 1 << 8, COURSE_TOOLS = 1 << 9, COURSE_LINE = 1 << 10, COURSE_CALLS = 1 << 11,
	COURSE_HEAD = 1 << 12, COURSE_ROLE = 3,
	COURSE_WAITS_SHIFT = 16, COURSE_WAITS = 0x1f << COURSE_WAITS_SHIFT,
	COURSE_ALL = COURSE_OPEN | COURSE_TOOLS | COURSE_LINE | COURSE_CALLS | COURSE_HEAD | COURSE_ROLE };

/* What is not written here would be lost on the way. */
_Static_assert(sizeof(struct template_state) == 12, "the template's state is what course holds");

static void u32_put(uint8_t *to, uint32_t value)
{
	for (int i = 0; i < 4; i++)
		to[i] = (uint8_t)(value >> 8 * i);
}

static uint32_t u32_get(const uint8_t *from)
{
	return (uint32_t)from[0] | (uint32_t)from[1] << 8 | (uint32_t)from[2] << 16 | (uint32_t)from[3] << 24;
}

static void course_put(uint8_t *to, uint32_t start, uint32_t output, const struct template_state *s)
{
	u32_put(to, start);
	u32_put(to + 4, output);
	u32_put(to + 8, s->message_count);
	u32_put(to + 12, s->last_role | (s->open ? COURSE_OPEN : 0u) | (s->tools ? COURSE_TOOLS : 0u) |
				 (s->line_open ? COURSE_LINE : 0u) | (s->calls_open ? COURSE_CALLS : 0u) |
				 (s->head_open ? COURSE_HEAD : 0u));
}

static int course_get(const uint8_t *from, bool last, struct turn_mark *out)
{
	const uint32_t flags = u32_get(from + 12) & (last ? ~(uint32_t)COURSE_WAITS : UINT32_MAX);
	if (flags & ~(uint32_t)COURSE_ALL)
		return -ERR_BAD_ARG;
	*out = (struct turn_mark){
		.start = u32_get(from), .output = u32_get(from + 4),
		.before = {.message_count = u32_get(from + 8), .last_role = flags & COURSE_ROLE,
			   .open = flags & COURSE_OPEN, .tools = flags & COURSE_TOOLS,
			   .line_open = flags & COURSE_LINE, .calls_open = flags & COURSE_CALLS,
			   .head_open = flags & COURSE_HEAD}};
	return out->before.message_count > INT32_MAX ? -ERR_OUT_OF_RANGE : 0;
}

void session_method_export(struct daemon *d, uint32_t call, const struct wire_call *m)
{
	struct call *c = &d->calls[call];
	const struct session *s = &d->sessions[c->session];
	const size_t course = ((size_t)s->mark_count + 1) * COURSE_BYTES;
	struct wire_writer w;
	(void)m;
	if (session_busy(d, c->session)) {
		call_fail(d, call, ERR_SESSION_BUSY);
		return;
	}
	if ((size_t)s->history * 4 > d->options.blob_bytes || course > d->options.body_bytes / 2) {
		call_fail(d, call, ERR_TOO_BIG);
		return;
	}
	uint8_t *at = (uint8_t *)c->text;
	for (uint32_t i = 0; i < s->history; i++)
		u32_put(at + (size_t)i * 4, s->token[i]);
	c->blob_length = (size_t)s->history * 4;
	/* Behind it, in the same slot: from there it is copied into END. */
	uint8_t *bytes = at + c->blob_length;
	for (uint32_t i = 0; i < s->mark_count; i++)
		course_put(bytes + (size_t)i * COURSE_BYTES, s->mark[i].start, s->mark[i].output, &s->mark[i].before);
	uint8_t *last = bytes + course - COURSE_BYTES;
	course_put(last, s->history, s->waits_ids ? s->waits_ids : s->history, &s->state);
	u32_put(last + 12, u32_get(last + 12) | s->waits_for << COURSE_WAITS_SHIFT);
	c->text_used = c->blob_length + course;
	const struct held_form *held = s->form;
	wire_writer_init(&w, d->out, d->out_max);
	wire_put_map(&w, 5 + (held ? 1 : 0));
	wire_put_text(&w, "template");
	wire_put_text(&w, s->raw || !d->template ? "none" : template_name(d->template));
	wire_put_text(&w, "label");
	wire_put_text(&w, s->label);
	wire_put_text(&w, "turn");
	wire_put_u64(&w, s->turn);
	wire_put_text(&w, "waits");
	wire_put_bool(&w, s->waits_since_us != 0);
	wire_put_text(&w, "course");
	wire_put_bin(&w, bytes, course);
	if (held) {
		wire_put_text(&w, "tools");
		wire_put_array(&w, held->tool_count);
		for (uint32_t i = 0, from = 0; i < held->tool_count; from += held->tool_length[i++])
			wire_put_str(&w, held->tools + from, held->tool_length[i]);
	}
	struct wire_end end = {.status = {"ok", 2}, .result = {w.at, w.length}};
	session_end_fields(s, &end);
	if (w.full) {
		c->blob_length = 0;
		call_fail(d, call, ERR_TOO_BIG);
		return;
	}
	call_end(d, call, &end);
}

static int tokens_take(struct daemon *d, struct session *s, const uint8_t *blob, size_t length)
{
	if (length == 0 || length % 4 != 0)
		return -ERR_BAD_ARG;
	if (length / 4 >= d->limits.context_tokens)
		return -ERR_CONTEXT_FULL;
	for (size_t i = 0; i < length / 4; i++) {
		const uint32_t id = u32_get(blob + i * 4);
		if (id >= d->model->arch.vocab)
			return -ERR_OUT_OF_RANGE;
		s->token[i] = id;
	}
	s->history = (uint32_t)(length / 4);
	return 0;
}

static int course_take(struct daemon *d, struct session *s, const struct wire_args *a)
{
	const size_t count = a->course.length / COURSE_BYTES;
	uint32_t before = 0;
	if (count == 0 || a->course.length % COURSE_BYTES != 0)
		return -ERR_BAD_ARG;
	if (count - 1 > d->options.session_turns)
		return -ERR_LIMIT;
	for (size_t i = 0; i < count; i++) {
		struct turn_mark mark;
		const uint8_t *from = a->course.at + i * COURSE_BYTES;
		TRY(course_get(from, i + 1 == count, &mark));
		if (i + 1 == count && a->waits) {
			s->waits_for = (u32_get(from + 12) & COURSE_WAITS) >> COURSE_WAITS_SHIFT;
			if (s->waits_for && mark.output != s->history)
				s->waits_ids = mark.output;
			mark.output = s->waits_ids ? s->history : mark.output;
		}
		if (mark.start < before || mark.output < mark.start || mark.output > s->history)
			return -ERR_OUT_OF_RANGE;
		before = mark.output;
		if (i + 1 < count) {
			s->mark[s->mark_count++] = mark;
			continue;
		}
		if (mark.start != s->history)
			return -ERR_OUT_OF_RANGE;
		s->state = mark.before;
	}
	return s->waits_for > WIRE_CALLS_MAX ? -ERR_OUT_OF_RANGE : 0;
}

void session_method_import(struct daemon *d, uint32_t call, const struct wire_call *m, const uint8_t *blob,
			   size_t blob_length)
{
	struct tool tools[WIRE_TOOLS_MAX];
	const struct wire_args *a = &m->a;
	bool raw;
	int code = d->draining ? -ERR_DRAINING : session_template(d, &a->template_name, &raw);
	if (code) {
		call_fail_why(d, call, code, d->draining ? NULL : d->template_why);
		return;
	}
	const uint32_t slot = session_take(d, d->calls[call].principal);
	if (slot == NONE) {
		session_refuse(d, call, d->calls[call].principal);
		return;
	}
	struct session *s = &d->sessions[slot];
	s->raw = raw;
	code = tokens_take(d, s, blob, blob ? blob_length : 0);
	if (code == 0)
		code = course_take(d, s, a);
	if (code == 0 && a->tool_count)
		code = session_offers(d, s) ? session_tools(d, s, a, tools) : -ERR_BAD_ARG;
	s->tools = s->state.tools || a->tool_count > 0;
	s->turn = a->at_turn == WIRE_NONE ? s->mark_count : a->at_turn;
	s->waits_since_us = a->waits ? d->now_us : 0;
	s->why_lost = "imported";
	session_begin(d, call, m, slot, code);
}
