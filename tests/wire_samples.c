#include "tests/wire_samples.h"

#include <string.h>

const uint8_t sample_types[SAMPLE_TYPES] = {
	WIRE_HELLO, WIRE_CALL, WIRE_WINDOW, WIRE_CANCEL, WIRE_RESUME, WIRE_ACK, WIRE_PING,
	WIRE_WELCOME, WIRE_ACCEPTED, WIRE_DATA, WIRE_END, WIRE_NOTE, WIRE_GOAWAY, WIRE_REJECT,
	WIRE_PONG,
};

uint64_t dice_roll(struct dice *d, uint64_t sides)
{
	uint64_t z = d->state += 0x9e3779b97f4a7c15u;
	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
	z = (z ^ z >> 27) * 0x94d049bb133111ebu;
	z ^= z >> 31;
	return sides > 0 ? z % sides : z;
}

/* Strings of the running sample. */
static char pool[256 << 10];
static size_t pool_used;

static struct wire_str text(struct dice *d, size_t low, size_t high)
{
	static const char *const letters[] = {
		"a", "Z", "0", " ", "\n", "\"", "\\", "\x01", "\x7f", "é", "漢", "😀", "\xef\xbf\xbf"
	};
	size_t want = low + dice_roll(d, high - low + 1), length = 0;
	char *at = pool + pool_used;
	while (length < want) {
		const char *l = letters[dice_roll(d, sizeof letters / sizeof letters[0])];
		size_t bytes = strlen(l);
		if (length + bytes > want)
			l = "x", bytes = 1;
		memcpy(at + length, l, bytes);
		length += bytes;
	}
	pool_used += length;
	CHECK(pool_used < sizeof pool);
	return (struct wire_str){at, length};
}

static struct wire_str name(struct dice *d, size_t low, size_t high)
{
	struct wire_str s = text(d, low, high);
	for (size_t i = 0; i < s.length; i++)
		if ((unsigned char)s.at[i] < 0x20 || s.at[i] == 0x7f)
			pool[(size_t)(s.at - pool) + i] = '_';
	return s;
}

static struct wire_str maybe(struct dice *d, size_t low, size_t high)
{
	return dice_roll(d, 2) ? name(d, low, high) : (struct wire_str){NULL, 0};
}

static uint64_t number(struct dice *d, uint64_t high)
{
	/* All sizes alike, not all numbers. */
	uint64_t n = dice_roll(d, 0) >> dice_roll(d, 64);
	return n > high ? high : n;
}

static uint64_t optional(struct dice *d, uint64_t high)
{
	return dice_roll(d, 2) ? number(d, high) : WIRE_NONE;
}

static struct wire_id id(struct dice *d)
{
	struct wire_id i;
	for (size_t k = 0; k < sizeof i.bytes; k++)
		i.bytes[k] = (uint8_t)dice_roll(d, 256);
	return i;
}

static double real(struct dice *d, double low, double high)
{
	return low + (high - low) * ((double)dice_roll(d, 1 << 30) / (double)(1 << 30));
}

static void calls(struct dice *d, struct wire_tool_call *c, uint32_t count)
{
	for (uint32_t i = 0; i < count; i++)
		c[i] = (struct wire_tool_call){name(d, 1, 20), name(d, 1, 128), text(d, 0, 40)};
}

static void make_messages(struct dice *d, struct wire_args *a, bool results)
{
	a->message_count = 1 + (uint32_t)dice_roll(d, 6);
	for (uint32_t i = 0; i < a->message_count; i++) {
		struct wire_message *m = &a->messages[i];
		*m = (struct wire_message){.role = WIRE_TOOL, .content = text(d, 0, 60)};
		m->name = maybe(d, 1, 20);
		m->tool_call_id = results ? name(d, 1, 20) : maybe(d, 1, 20);
		if (results)
			continue;
		m->role = (uint8_t)dice_roll(d, 4);
		m->call_first = a->call_count;
		if (m->role == WIRE_ASSISTANT) {
			m->call_count = (uint32_t)dice_roll(d, 4);
			calls(d, a->calls + a->call_count, m->call_count);
			a->call_count += m->call_count;
			if (m->call_count > 0 && dice_roll(d, 2))
				m->content = (struct wire_str){NULL, 0};
		}
	}
}

static void make_sampling(struct dice *d, struct wire_sampling *s)
{
	s->max_tokens = (uint32_t)number(d, WIRE_MAX_TOKENS_MAX);
	s->temperature = real(d, 0, 100);
	s->top_p = real(d, 0.001, 1);
	s->min_p = real(d, 0, 1);
	s->typical = real(d, 0.001, 1);
	s->top_k = (uint32_t)number(d, WIRE_TOP_K_MAX);
	s->repetition = real(d, 0.01, 100);
	s->presence = real(d, -100, 100);
	s->frequency = real(d, -100, 100);
	s->dry = real(d, 0, 100);
	s->dry_base = real(d, 1, 100);
	s->dry_allowed = 1 + (uint32_t)dice_roll(d, WIRE_DRY_ALLOWED_MAX);
	s->dry_last = 1 + (uint32_t)dice_roll(d, WIRE_DRY_LAST_MAX);
	s->seed = dice_roll(d, 0);
	s->logprobs = (uint32_t)dice_roll(d, WIRE_LOGPROBS_MAX + 1);
	s->stop_count = (uint32_t)dice_roll(d, WIRE_STOPS_MAX + 1);
	for (uint32_t i = 0; i < s->stop_count; i++)
		s->stop[i] = text(d, 1, WIRE_STOP_MAX);
	s->bias_count = (uint32_t)dice_roll(d, 8);
	for (uint32_t i = 0; i < s->bias_count; i++) {
		s->bias[i].token = (uint32_t)dice_roll(d, 150000);
		s->bias[i].add = real(d, -1000, 1000);
	}
	s->ignore_end = dice_roll(d, 2);
}

/* One form at most, and none with a call that is required. */
static void make_form(struct dice *d, struct wire_args *a)
{
	const uint64_t which = a->tool_choice == TOOL_REQUIRED ? 0 : dice_roll(d, 6);
	if (which == 1)
		a->schema = text(d, 1, 300);
	else if (which == 2)
		a->regex = text(d, 0, 300);
	else if (which == 3)
		a->choice_count = 1 + (uint32_t)dice_roll(d, 6);
	for (uint32_t i = 0; i < a->choice_count; i++)
		a->choices[i] = text(d, 1, 50);
}

static void make_args(struct dice *d, struct wire_call *m)
{
	struct wire_args *a = &m->a;
	static const char *const places[] = {"host", "disk", "tokens"};
	const char *place = places[dice_roll(d, 3)];
	switch ((enum wire_method)m->method) {
	case METHOD_SESSION_TURN:
	case METHOD_SESSION_CONTINUE:
		a->tokens_in_blob = dice_roll(d, 4) == 0;
		if (a->tokens_in_blob)
			a->keep = optional(d, INT32_MAX);
		else
			make_messages(d, a, m->method == METHOD_SESSION_CONTINUE);
		a->tool_choice = (uint8_t)dice_roll(d, 3);
		a->supersede = dice_roll(d, 2);
		make_sampling(d, &a->sampling);
		make_form(d, a);
		break;
	case METHOD_SESSION_OPEN:
		a->system = text(d, 0, 300);
		a->template_name = maybe(d, 1, WIRE_NAME_MAX);
		a->tool_count = (uint32_t)dice_roll(d, 6);
		for (uint32_t i = 0; i < a->tool_count; i++)
			a->tools[i] = text(d, 1, 200);
		a->label = maybe(d, 0, WIRE_NAME_MAX);
		break;
	case METHOD_SESSION_RESIDENCY:
		a->residency = (struct wire_residency_args){
			true, (uint8_t)dice_roll(d, 3), optional(d, WIRE_U64_MAX),
			optional(d, INT32_MAX), optional(d, WIRE_LEASE_MS_MAX),
		};
		break;
	case METHOD_SESSION_ROLLBACK:
		if (dice_roll(d, 2))
			a->tokens = number(d, INT32_MAX);
		else
			a->to_turn = number(d, WIRE_U64_MAX);
		break;
	case METHOD_SESSION_HINT:
		a->returns_in_ms = number(d, WIRE_LEASE_MS_MAX);
		a->tool_name = maybe(d, 1, WIRE_TOOL_NAME_MAX);
		break;
	case METHOD_SESSION_PARK:
		a->place = (struct wire_str){place, strlen(place)};
		break;
	case METHOD_PAGES_SHOW:
		a->group = optional(d, WIRE_GROUP_MAX);
		a->first = number(d, UINT32_MAX);
		a->count = 1 + dice_roll(d, WIRE_COUNT_MAX);
		break;
	case METHOD_TOKENIZE:
		a->text = text(d, 0, 300);
		a->special = dice_roll(d, 2);
		break;
	case METHOD_SESSION_IMPORT: {
		const struct wire_str course = text(d, 0, 300);
		a->course = (struct wire_bin){(const uint8_t *)course.at, course.length};
		a->at_turn = optional(d, WIRE_U64_MAX);
		a->waits = dice_roll(d, 2);
		break;
	}
	default:
		break;
	}
}

static int make_call(struct dice *d, struct wire_writer *w)
{
	static struct wire_call m;
	enum wire_method method = (enum wire_method)dice_roll(d, METHOD_COUNT);
	wire_call_init(&m, method);
	m.has_idem = dice_roll(d, 2);
	m.idem = id(d);
	m.sess = id(d);
	m.has_sess = (method >= METHOD_SESSION_TURN && method <= METHOD_SESSION_PARK &&
		method != METHOD_SESSION_LIST) || method == METHOD_PAGES_SHOW ||
		method == METHOD_SESSION_EXPORT || method == METHOD_SESSION_FORGET ||
		method == METHOD_SESSION_TOUCH;
	if (m.has_sess && method != METHOD_PAGES_SHOW) {
		m.epoch = optional(d, WIRE_U64_MAX);
		m.turn = optional(d, WIRE_U64_MAX);
	}
	m.deadline_ms = dice_roll(d, 2) ? 1 + dice_roll(d, WIRE_DEADLINE_MS_MAX) : WIRE_NONE;
	m.detach_ms = optional(d, WIRE_DETACH_MS_MAX);
	m.window = number(d, WIRE_WINDOW_MAX);
	make_args(d, &m);
	return wire_write_call(w, &m);
}

static void make_err(struct dice *d, struct wire_err *e)
{
	static const char *const retries[] = {"no", "same", "later", "resume"};
	e->code = 100 + (int)dice_roll(d, 600);
	e->retry = retries[dice_roll(d, 4)];
	e->after_ms = optional(d, WIRE_U64_MAX);
	e->used = optional(d, WIRE_U64_MAX);
	e->asked = optional(d, WIRE_U64_MAX);
	e->limit = optional(d, WIRE_U64_MAX);
}

static int make_end(struct dice *d, struct wire_writer *w)
{
	static struct wire_end m;
	static const uint8_t result[] = {0x82, 0xa1, 'a', 0x93, 1, 2, 0xc0, 0xa1, 'b', 0xc4, 1, 255};
	wire_end_init(&m);
	m.status = name(d, 1, WIRE_NAME_MAX);
	if (dice_roll(d, 2))
		make_err(d, &m.err);
	if (dice_roll(d, 2)) {
		uint64_t *n = &m.usage.prompt;
		m.usage.present = true;
		for (int i = 0; i < 13; i++)
			n[i] = i < 11 ? number(d, WIRE_U64_MAX) : optional(d, WIRE_U64_MAX);
		m.usage.diverged_why = maybe(d, 0, WIRE_NAME_MAX);
	}
	m.turn = optional(d, WIRE_U64_MAX);
	m.epoch = optional(d, WIRE_U64_MAX);
	m.has_sess = dice_roll(d, 2);
	m.sess = id(d);
	m.call_count = (uint32_t)dice_roll(d, 5);
	calls(d, m.calls, m.call_count);
	if (dice_roll(d, 2))
		m.result = (struct wire_value){result, sizeof result};
	m.durable = dice_roll(d, 2);
	return wire_write_end(w, &m);
}

static int make_data(struct dice *d, struct wire_writer *w)
{
	static uint8_t buffer[4096];
	struct wire_data m = {.off = number(d, WIRE_U64_MAX), .n_tokens = (uint32_t)dice_roll(d, 9)};
	struct wire_writer l;
	if (dice_roll(d, 4))
		m.text = text(d, 0, 80);
	if (dice_roll(d, 2)) {
		wire_writer_init(&l, buffer, sizeof buffer);
		wire_put_array(&l, m.n_tokens);
		for (uint32_t i = 0; i < m.n_tokens; i++) {
			wire_put_map(&l, 2);
			wire_put_text(&l, "t");
			wire_put_u64(&l, dice_roll(d, 150000));
			wire_put_text(&l, "p");
			wire_put_f32(&l, (float)real(d, -30, 0));
		}
		m.logprobs = (struct wire_value){buffer, l.length};
	}
	return wire_write_data(w, &m);
}

static int make_small(struct dice *d, uint8_t type, struct wire_writer *w)
{
	uint64_t a = number(d, WIRE_U64_MAX), b = number(d, WIRE_U64_MAX);
	switch (type) {
	case WIRE_WINDOW:
		return wire_write_window(w, &(struct wire_window){id(d), a});
	case WIRE_CANCEL:
		return wire_write_cancel(w,
			&(struct wire_cancel){dice_roll(d, 2), id(d), maybe(d, 0, WIRE_NAME_MAX)});
	case WIRE_RESUME:
		return wire_write_resume(w, &(struct wire_resume){id(d), a, b});
	case WIRE_ACK:
		return wire_write_ack(w, &(struct wire_ack){id(d), a});
	case WIRE_ACCEPTED:
		return wire_write_accepted(w,
			&(struct wire_accepted){id(d), dice_roll(d, 2), dice_roll(d, 2)});
	case WIRE_GOAWAY:
		return wire_write_goaway(w,
			&(struct wire_goaway){name(d, 0, WIRE_NAME_MAX), a, optional(d, b)});
	default:
		return wire_write_ping(w, &(struct wire_ping){dice_roll(d, 0)});
	}
}

static int make_other(struct dice *d, uint8_t type, struct wire_writer *w)
{
	struct wire_welcome welcome;
	struct wire_note note;
	struct wire_reject reject;
	switch (type) {
	case WIRE_HELLO:
		return wire_write_hello(w, &(struct wire_hello){name(d, 1, WIRE_NAME_MAX),
			(uint32_t)number(d, UINT16_MAX), maybe(d, 1, WIRE_TOKEN_MAX),
			maybe(d, 1, WIRE_NAME_MAX)});
	case WIRE_WELCOME:
		welcome = (struct wire_welcome){(uint32_t)number(d, UINT16_MAX), id(d),
			name(d, 0, 100), number(d, WIRE_U64_MAX), number(d, WIRE_U64_MAX),
			number(d, WIRE_U64_MAX), number(d, WIRE_U64_MAX), number(d, WIRE_U64_MAX)};
		return wire_write_welcome(w, &welcome);
	case WIRE_NOTE:
		note = (struct wire_note){id(d), name(d, 0, WIRE_NAME_MAX), optional(d, WIRE_U64_MAX),
			optional(d, WIRE_U64_MAX), optional(d, WIRE_U64_MAX),
			optional(d, WIRE_U64_MAX), optional(d, WIRE_U64_MAX)};
		return wire_write_note(w, &note);
	case WIRE_REJECT:
		wire_reject_init(&reject);
		make_err(d, &reject.err);
		return wire_write_reject(w, &reject);
	default:
		return make_small(d, type, w);
	}
}

size_t sample_make(struct dice *d, uint8_t type, uint8_t *out, size_t capacity)
{
	struct wire_writer w;
	int code;
	pool_used = 0;
	wire_writer_init(&w, out, capacity);
	if (type == WIRE_CALL)
		code = make_call(d, &w);
	else if (type == WIRE_END)
		code = make_end(d, &w);
	else if (type == WIRE_DATA)
		code = make_data(d, &w);
	else
		code = make_other(d, type, &w);
	CHECK(code == 0);
	return w.length;
}

static int read_any(uint8_t type, const void *body, size_t bytes, const struct wire_limits *l,
	uint8_t *copy, struct wire_writer *out)
{
	struct wire_writer w = *out;
	int code = 0;
	switch (type) {
#define SAMPLE(TYPE, name) \
	case TYPE: { \
		static struct wire_##name m; \
		code = wire_read_##name(body, bytes, l, &m); \
		if (code == 0 && copy) \
			code = wire_write_##name(&w, &m); \
		break; \
	}
	SAMPLE(WIRE_HELLO, hello)
	SAMPLE(WIRE_CALL, call)
	SAMPLE(WIRE_WINDOW, window)
	SAMPLE(WIRE_CANCEL, cancel)
	SAMPLE(WIRE_RESUME, resume)
	SAMPLE(WIRE_ACK, ack)
	SAMPLE(WIRE_PING, ping)
	SAMPLE(WIRE_PONG, ping)
	SAMPLE(WIRE_WELCOME, welcome)
	SAMPLE(WIRE_ACCEPTED, accepted)
	SAMPLE(WIRE_DATA, data)
	SAMPLE(WIRE_END, end)
	SAMPLE(WIRE_NOTE, note)
	SAMPLE(WIRE_GOAWAY, goaway)
	SAMPLE(WIRE_REJECT, reject)
	default:
		return -ERR_BAD_TYPE;
	}
	*out = w;
	return code;
}

int sample_read(uint8_t type, const void *body, size_t bytes, const struct wire_limits *l,
	uint8_t *copy, size_t capacity, size_t *length)
{
	struct wire_writer w;
	wire_writer_init(&w, copy, capacity);
	int code = read_any(type, body, bytes, l, copy, &w);
	if (length)
		*length = w.length;
	return code;
}
