/*
 * The tables of all messages but CALL, and their readers and writers.
 */
#include <string.h>

#include "clients/field.h"

#define U64_RANGE .high = WIRE_U64_MAX, .absent = WIRE_NONE
#define NEEDED .flags = FIELD_NEEDED

/* A member of the struct that TYPE names, while a table is written. */
#define AT(member) .at = offsetof(struct TYPE, member)
#define HAS(member) .has = offsetof(struct TYPE, member) + 1

/* --- Tool calls, in END and in the messages of a CALL. --- */

#define TYPE wire_tool_call
static const struct field call_fields[] = {
	{"id", FIELD_NAME, NEEDED, AT(id), .low = 1, .high = WIRE_TOOL_NAME_MAX},
	{"name", FIELD_NAME, NEEDED, AT(name), .low = 1, .high = WIRE_TOOL_NAME_MAX},
	{"arguments", FIELD_TEXT, NEEDED, AT(arguments)},
};
#undef TYPE
TABLE(call_strict, call_fields, true);
TABLE(call_lenient, call_fields, false);

int field_calls_read(struct wire_value array, struct wire_tool_call *out, uint32_t max,
	uint32_t *count, bool strict)
{
	struct wire_value v;
	struct walk w;
	uint32_t elements;
	if (!wire_get_array(array, &elements))
		return -ERR_BAD_ARG;
	if (elements > max)
		return -ERR_OUT_OF_RANGE;
	walk_init(&w, array);
	for (*count = 0; walk_next(&w, &v); (*count)++)
		TRY(fields_read(v, strict ? &call_strict : &call_lenient, 0, &out[*count], NULL));
	return 0;
}

void field_calls_write(struct wire_writer *w, const struct wire_tool_call *calls,
	uint32_t count)
{
	wire_put_array(w, count);
	for (uint32_t i = 0; i < count; i++)
		fields_write(w, &call_strict, 0, &calls[i]);
}

/* --- HELLO, WELCOME. --- */

static int caps_read(struct wire_value v, void *message)
{
	struct wire_value cap;
	struct wire_str s;
	struct walk w;
	uint32_t count;
	(void)message;
	/* Version 1.0 has no capabilities; their form is held to all the same. */
	if (!wire_get_array(v, &count))
		return -ERR_BAD_ARG;
	if (count > WIRE_NAME_MAX)
		return -ERR_OUT_OF_RANGE;
	walk_init(&w, v);
	while (walk_next(&w, &cap))
		TRY(field_string(cap, 1, WIRE_NAME_MAX, true, &s));
	return 0;
}

static bool always(const void *message)
{
	return message != NULL;
}

static void caps_write(struct wire_writer *w, const void *message)
{
	(void)message;
	wire_put_array(w, 0);
}

struct auth {
	struct wire_str scheme, token;
};
static const char *const schemes[] = {"token", NULL};
#define TYPE auth
static const struct field auth_fields[] = {
	{"scheme", FIELD_NAME, NEEDED, AT(scheme), .names = schemes},
	{"token", FIELD_NAME, NEEDED, AT(token), .low = 1, .high = WIRE_TOKEN_MAX},
};
#undef TYPE
TABLE(auth_table, auth_fields, true);

static int auth_read(struct wire_value v, void *message)
{
	struct auth a;
	TRY(fields_read(v, &auth_table, 0, &a, NULL));
	((struct wire_hello *)message)->token = a.token;
	return 0;
}

static bool auth_present(const void *message)
{
	return ((const struct wire_hello *)message)->token.at != NULL;
}

static void auth_write(struct wire_writer *w, const void *message)
{
	struct auth a = {{"token", 5}, ((const struct wire_hello *)message)->token};
	fields_write(w, &auth_table, 0, &a);
}

#define TYPE wire_hello
static const struct field hello_fields[] = {
	{"client", FIELD_NAME, NEEDED, AT(client), .low = 1, .high = WIRE_NAME_MAX},
	{"minor", FIELD_U32, NEEDED, AT(minor), .high = UINT16_MAX},
	{"caps", FIELD_OTHER, .read = caps_read, .present = always, .write = caps_write},
	{"auth", FIELD_OTHER, .read = auth_read, .present = auth_present, .write = auth_write},
	{"act_as", FIELD_NAME, AT(act_as), .low = 1, .high = WIRE_NAME_MAX},
};
#undef TYPE
TABLE(hello_table, hello_fields, true);

/* The limits stand in a map of their own on the wire, and not in the struct. */
#define TYPE wire_welcome
static const struct field limits_fields[] = {
	{"frame", FIELD_U64, NEEDED, AT(frame_max), U64_RANGE},
	{"inflight", FIELD_U64, NEEDED, AT(inflight_max), U64_RANGE},
	{"window", FIELD_U64, NEEDED, AT(window_max), U64_RANGE},
	{"depth", FIELD_U64, NEEDED, AT(depth_max), U64_RANGE},
};
TABLE(limits_table, limits_fields, false);
static const struct field welcome_fields[] = {
	{"minor", FIELD_U32, NEEDED, AT(minor), .high = UINT16_MAX},
	{"boot", FIELD_ID, NEEDED, AT(boot)},
	{"principal", FIELD_NAME, NEEDED, AT(principal), .high = 4 * WIRE_NAME_MAX},
	{"limits", FIELD_MAP, NEEDED, .at = 0, .table = &limits_table},
	{"hb_ms", FIELD_U64, NEEDED, AT(hb_ms), U64_RANGE},
	{"caps", FIELD_OTHER, .read = caps_read, .present = always, .write = caps_write},
};
#undef TYPE
TABLE(welcome_table, welcome_fields, false);

/* --- What steers a call. --- */

#define TYPE wire_window
static const struct field window_fields[] = {
	{"op", FIELD_ID, NEEDED, AT(op)},
	{"max_off", FIELD_U64, NEEDED, AT(max_off), U64_RANGE},
};
#undef TYPE
TABLE(window_table, window_fields, true);

#define TYPE wire_cancel
static const struct field cancel_fields[] = {
	{"op", FIELD_ID, AT(op), HAS(has_op)},
	{"why", FIELD_NAME, AT(why), .high = WIRE_NAME_MAX},
};
#undef TYPE
TABLE(cancel_table, cancel_fields, true);

#define TYPE wire_resume
static const struct field resume_fields[] = {
	{"op", FIELD_ID, NEEDED, AT(op)},
	{"after_seq", FIELD_U64, NEEDED, AT(after_seq), U64_RANGE},
	{"window", FIELD_U64, NEEDED, AT(window), .high = WIRE_U64_MAX},
};
#undef TYPE
TABLE(resume_table, resume_fields, true);

#define TYPE wire_ack
static const struct field ack_fields[] = {
	{"op", FIELD_ID, NEEDED, AT(op)},
	{"seq", FIELD_U64, NEEDED, AT(seq), U64_RANGE},
};
#undef TYPE
TABLE(ack_table, ack_fields, true);

#define TYPE wire_ping
static const struct field ping_fields[] = {
	{"t", FIELD_U64, NEEDED, AT(t)},
};
#undef TYPE
TABLE(ping_table, ping_fields, true);

/* --- ACCEPTED, DATA, NOTE. --- */

#define TYPE wire_accepted
static const struct field accepted_fields[] = {
	{"op", FIELD_ID, NEEDED, AT(op)},
	{"dup", FIELD_BOOL, NEEDED, AT(dup)},
	{"durable", FIELD_BOOL, NEEDED, AT(durable)},
};
#undef TYPE
TABLE(accepted_table, accepted_fields, false);

#define TYPE wire_note
static const struct field note_fields[] = {
	{"op", FIELD_ID, NEEDED, AT(op)},
	{"state", FIELD_NAME, NEEDED, AT(state), .high = WIRE_NAME_MAX},
	{"done", FIELD_U64, AT(done), U64_RANGE},
	{"total", FIELD_U64, AT(total), U64_RANGE},
	{"place", FIELD_U64, AT(place), U64_RANGE},
	{"short_by", FIELD_U64, AT(short_by), U64_RANGE},
	{"eta_ms", FIELD_U64, AT(eta_ms), U64_RANGE},
};
#undef TYPE
TABLE(note_table, note_fields, false);

/* --- Errors, END, REJECT, GOAWAY. --- */

static const char *const retries[] = {"no", "same", "later", "resume", NULL};

static int code_read(struct wire_value v, void *message)
{
	uint64_t n;
	if (!wire_get_u64(v, &n) || n < 100 || n > 699)
		return -ERR_BAD_BODY;
	((struct wire_err *)message)->code = (int)n;
	return 0;
}

static void code_write(struct wire_writer *w, const void *message)
{
	wire_put_u64(w, (uint64_t)((const struct wire_err *)message)->code);
}

static void name_write(struct wire_writer *w, const void *message)
{
	wire_put_text(w, err_name(((const struct wire_err *)message)->code));
}

static void text_write(struct wire_writer *w, const void *message)
{
	wire_put_text(w, err_text(((const struct wire_err *)message)->code));
}

/* Names and texts of codes are ours to know; what a peer says about them is not taken over. */
static int text_read(struct wire_value v, void *message)
{
	struct wire_str s;
	(void)message;
	return field_string(v, 0, 256, false, &s);
}

static int retry_read(struct wire_value v, void *message)
{
	struct wire_str s;
	TRY(field_string(v, 0, WIRE_NAME_MAX, true, &s));
	/* A word of a later version is as careful as "no". */
	((struct wire_err *)message)->retry = retries[0];
	for (int i = 0; retries[i]; i++)
		if (strlen(retries[i]) == s.length && memcmp(retries[i], s.at, s.length) == 0)
			((struct wire_err *)message)->retry = retries[i];
	return 0;
}

/* What is said of a code where the message does not say it itself: what passes by waiting, passes. */
static const char *retry_of(int code)
{
	switch (code) {
	case ERR_LIMIT:
	case ERR_SESSION_BUSY:
	case ERR_OVERLOADED:
	case ERR_DRAINING:
	case ERR_AUDIT_STALLED:
	case ERR_LOG_FULL:
	case ERR_DEVICE:
		return "later";
	case ERR_INTERNAL:
	case ERR_INTEGRITY:
		return "same";
	default:
		return "no";
	}
}

static void retry_write(struct wire_writer *w, const void *message)
{
	const struct wire_err *err = message;
	wire_put_text(w, err->retry ? err->retry : retry_of(err->code));
}

#define TYPE wire_err
static const struct field err_fields[] = {
	{"c", FIELD_OTHER, NEEDED, .read = code_read, .write = code_write},
	{"n", FIELD_OTHER, .read = text_read, .present = always, .write = name_write},
	{"t", FIELD_OTHER, .read = text_read, .present = always, .write = text_write},
	{"r", FIELD_OTHER, .read = retry_read, .present = always, .write = retry_write},
	{"after_ms", FIELD_U64, AT(after_ms), U64_RANGE},
	{"used", FIELD_U64, AT(used), U64_RANGE},
	{"asked", FIELD_U64, AT(asked), U64_RANGE},
	{"limit", FIELD_U64, AT(limit), U64_RANGE},
	{"why", FIELD_NAME, AT(why), .low = 1, .high = WIRE_WHY_MAX},
};
#undef TYPE
TABLE(err_table, err_fields, false);

#define TYPE wire_usage
#define COUNT(key, member) {key, FIELD_U64, AT(member), U64_RANGE}
static const struct field usage_fields[] = {
	COUNT("prompt", prompt), COUNT("resident", resident), COUNT("reloaded", reloaded),
	COUNT("recomputed", recomputed), COUNT("new", fresh), COUNT("sampled", sampled),
	COUNT("history", history), COUNT("context_left", context_left),
	COUNT("queue_us", queue_us), COUNT("prefill_us", prefill_us),
	COUNT("decode_us", decode_us), COUNT("tool_us", tool_us),
	COUNT("diverged_at", diverged_at),
	{"forced", FIELD_U64, AT(forced), .high = WIRE_U64_MAX},
	{"diverged_why", FIELD_NAME, AT(diverged_why), .high = WIRE_NAME_MAX},
};
#undef COUNT
#undef TYPE
TABLE(usage_table, usage_fields, false);

static bool end_err_present(const void *message)
{
	return ((const struct wire_end *)message)->err.code != 0;
}

static int next_read(struct wire_value v, void *message)
{
	struct wire_end *m = message;
	return field_calls_read(v, m->calls, WIRE_CALLS_MAX, &m->call_count, false);
}

static bool next_present(const void *message)
{
	return ((const struct wire_end *)message)->call_count > 0;
}

static void next_write(struct wire_writer *w, const void *message)
{
	const struct wire_end *m = message;
	CHECK(m->call_count <= WIRE_CALLS_MAX);
	field_calls_write(w, m->calls, m->call_count);
}

#define TYPE wire_end
static const struct field end_fields[] = {
	{"status", FIELD_NAME, NEEDED, AT(status), .low = 1, .high = WIRE_NAME_MAX},
	{"err", FIELD_MAP, AT(err), .table = &err_table, .present = end_err_present},
	{"usage", FIELD_MAP, AT(usage), HAS(usage.present), .table = &usage_table},
	{"turn", FIELD_U64, AT(turn), U64_RANGE},
	{"epoch", FIELD_U64, AT(epoch), U64_RANGE},
	{"sess", FIELD_ID, AT(sess), HAS(has_sess)},
	{"next", FIELD_OTHER, .read = next_read, .present = next_present, .write = next_write},
	{"r", FIELD_VALUE, AT(result)},
	{"durable", FIELD_BOOL, NEEDED, AT(durable)},
};
#undef TYPE
TABLE(end_table, end_fields, false);

#define TYPE wire_reject
static const struct field reject_fields[] = {
	{"err", FIELD_MAP, NEEDED, AT(err), .table = &err_table},
};
#undef TYPE
TABLE(reject_table, reject_fields, false);

#define TYPE wire_goaway
static const struct field goaway_fields[] = {
	{"why", FIELD_NAME, NEEDED, AT(why), .high = WIRE_NAME_MAX},
	{"deadline_ms", FIELD_U64, AT(deadline_ms), U64_RANGE},
	{"retry_ms", FIELD_U64, AT(retry_ms), U64_RANGE},
};
#undef TYPE
TABLE(goaway_table, goaway_fields, false);

/* --- What is not there, before anything is read. --- */

static void err_init(struct wire_err *e)
{
	*e = (struct wire_err){
		.retry = "no", .after_ms = WIRE_NONE,
		.used = WIRE_NONE, .asked = WIRE_NONE, .limit = WIRE_NONE,
	};
}

void wire_end_init(struct wire_end *m)
{
	*m = (struct wire_end){.turn = WIRE_NONE, .epoch = WIRE_NONE};
	err_init(&m->err);
	m->usage.tool_us = m->usage.diverged_at = WIRE_NONE;
}

void wire_note_init(struct wire_note *m)
{
	*m = (struct wire_note){
		.done = WIRE_NONE, .total = WIRE_NONE, .place = WIRE_NONE,
		.short_by = WIRE_NONE, .eta_ms = WIRE_NONE,
	};
}

void wire_reject_init(struct wire_reject *m)
{
	err_init(&m->err);
}

static void hello_init(struct wire_hello *m) { *m = (struct wire_hello){0}; }
static void welcome_init(struct wire_welcome *m) { *m = (struct wire_welcome){0}; }
static void accepted_init(struct wire_accepted *m) { *m = (struct wire_accepted){0}; }
static void window_init(struct wire_window *m) { *m = (struct wire_window){0}; }
static void cancel_init(struct wire_cancel *m) { *m = (struct wire_cancel){0}; }
static void resume_init(struct wire_resume *m) { *m = (struct wire_resume){0}; }
static void ack_init(struct wire_ack *m) { *m = (struct wire_ack){0}; }
static void ping_init(struct wire_ping *m) { *m = (struct wire_ping){0}; }
#define end_init wire_end_init
#define note_init wire_note_init
#define reject_init wire_reject_init
static void goaway_init(struct wire_goaway *m)
{
	*m = (struct wire_goaway){.deadline_ms = WIRE_NONE, .retry_ms = WIRE_NONE};
}

/* The reader and the writer of a message that is one table. */
#define MESSAGE(name) \
	int wire_read_##name(const void *body, size_t length, const struct wire_limits *l, \
		struct wire_##name *out) \
	{ \
		name##_init(out); \
		return fields_read_body(body, length, l, &name##_table, out, NULL); \
	} \
	int wire_write_##name(struct wire_writer *w, const struct wire_##name *m) \
	{ \
		return fields_write_body(w, &name##_table, m); \
	}

MESSAGE(hello)
MESSAGE(welcome)
MESSAGE(accepted)
MESSAGE(window)
MESSAGE(cancel)
MESSAGE(resume)
MESSAGE(ack)
MESSAGE(ping)
MESSAGE(end)
MESSAGE(note)
MESSAGE(reject)
MESSAGE(goaway)

int wire_write_bye(struct wire_writer *w)
{
	wire_put_map(w, 0);
	return w->full ? -ERR_TOO_BIG : 0;
}
