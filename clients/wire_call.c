/*
 * CALL: its own keys, and the arguments of all methods in one table that says which method takes
 * which.
 */
#include <string.h>

#include "clients/field.h"

#define NEEDED .flags = FIELD_NEEDED
#define M(method) (1u << METHOD_##method)
#define TURNS (M(SESSION_TURN) | M(SESSION_CONTINUE))

_Static_assert(METHOD_COUNT <= 32, "methods are bits of 32");

/* --- Messages and results. --- */

static const char *const roles[] = {"system", "user", "assistant", "tool", NULL};

static const struct field message_fields[] = {
	{"role", FIELD_CHOICE, NEEDED, offsetof(struct wire_message, role), .names = roles},
	{"content", FIELD_TEXT, .at = offsetof(struct wire_message, content)},
	{.key = "tool_calls", .kind = FIELD_SKIP},
	{"tool_call_id", FIELD_NAME, .at = offsetof(struct wire_message, tool_call_id),
		.low = 1, .high = WIRE_TOOL_NAME_MAX},
	{"name", FIELD_NAME, .at = offsetof(struct wire_message, name),
		.low = 1, .high = WIRE_TOOL_NAME_MAX},
};
TABLE(message_table, message_fields, true);

static const struct field result_fields[] = {
	{"tool_call_id", FIELD_NAME, NEEDED, offsetof(struct wire_message, tool_call_id),
		.low = 1, .high = WIRE_TOOL_NAME_MAX},
	{"name", FIELD_NAME, .at = offsetof(struct wire_message, name),
		.low = 1, .high = WIRE_TOOL_NAME_MAX},
	{"content", FIELD_TEXT, NEEDED, offsetof(struct wire_message, content)},
};
TABLE(result_table, result_fields, true);

static int message_read(struct wire_value v, struct wire_args *a, struct wire_message *m)
{
	TRY(fields_read(v, &message_table, 0, m, NULL));
	struct wire_value calls = wire_find(v, "tool_calls");
	m->call_first = a->call_count;
	if (calls.at) {
		uint32_t room = WIRE_MESSAGES_MAX - a->call_count;
		if (m->role != WIRE_ASSISTANT)
			return -ERR_BAD_ARG;
		TRY(field_calls_read(calls, a->calls + a->call_count,
			room < WIRE_CALLS_MAX ? room : WIRE_CALLS_MAX, &m->call_count, true));
		a->call_count += m->call_count;
	}
	/* Only an assistant that did nothing but call tools may have said nothing. */
	if (!m->content.at && m->call_count == 0)
		return -ERR_BAD_ARG;
	return 0;
}

static int elements(struct wire_value v, uint32_t max, uint32_t *count)
{
	if (!wire_get_array(v, count))
		return -ERR_BAD_ARG;
	return *count > max ? -ERR_OUT_OF_RANGE : 0;
}

static int messages_read(struct wire_value v, void *message)
{
	struct wire_args *a = message;
	struct wire_value one;
	struct walk w;
	uint32_t count;
	TRY(elements(v, WIRE_MESSAGES_MAX, &count));
	walk_init(&w, v);
	while (walk_next(&w, &one)) {
		struct wire_message *m = &a->messages[a->message_count++];
		*m = (struct wire_message){0};
		TRY(message_read(one, a, m));
	}
	return count == 0 ? -ERR_BAD_ARG : 0;
}

static int results_read(struct wire_value v, void *message)
{
	struct wire_args *a = message;
	struct wire_value one;
	struct walk w;
	uint32_t count;
	TRY(elements(v, WIRE_MESSAGES_MAX, &count));
	walk_init(&w, v);
	while (walk_next(&w, &one)) {
		struct wire_message *m = &a->messages[a->message_count++];
		*m = (struct wire_message){.role = WIRE_TOOL};
		TRY(fields_read(one, &result_table, 0, m, NULL));
	}
	return count == 0 ? -ERR_BAD_ARG : 0;
}

static bool messages_present(const void *message)
{
	return ((const struct wire_args *)message)->message_count > 0;
}

static void message_write(struct wire_writer *w, const struct wire_args *a,
	const struct wire_message *m)
{
	CHECK(m->role <= WIRE_TOOL);
	wire_put_map(w, 1u + (m->content.at != NULL) + (m->call_count > 0) +
		(m->tool_call_id.at != NULL) + (m->name.at != NULL));
	wire_put_text(w, "role");
	wire_put_text(w, roles[m->role]);
	if (m->content.at) {
		wire_put_text(w, "content");
		wire_put_str(w, m->content.at, m->content.length);
	}
	if (m->call_count > 0) {
		CHECK(m->call_first + m->call_count <= WIRE_MESSAGES_MAX);
		wire_put_text(w, "tool_calls");
		field_calls_write(w, a->calls + m->call_first, m->call_count);
	}
	if (m->tool_call_id.at) {
		wire_put_text(w, "tool_call_id");
		wire_put_str(w, m->tool_call_id.at, m->tool_call_id.length);
	}
	if (m->name.at) {
		wire_put_text(w, "name");
		wire_put_str(w, m->name.at, m->name.length);
	}
}

static void messages_write(struct wire_writer *w, const void *message)
{
	const struct wire_args *a = message;
	CHECK(a->message_count <= WIRE_MESSAGES_MAX);
	wire_put_array(w, a->message_count);
	for (uint32_t i = 0; i < a->message_count; i++)
		message_write(w, a, &a->messages[i]);
}

static void results_write(struct wire_writer *w, const void *message)
{
	const struct wire_args *a = message;
	CHECK(a->message_count <= WIRE_MESSAGES_MAX);
	wire_put_array(w, a->message_count);
	for (uint32_t i = 0; i < a->message_count; i++)
		fields_write(w, &result_table, 0, &a->messages[i]);
}

/* --- Lists of other things. --- */

static int strings_read(struct wire_value v, struct wire_str *out, uint32_t max, uint64_t high,
	uint32_t *count)
{
	struct wire_value one;
	struct walk w;
	uint32_t n;
	TRY(elements(v, max, &n));
	walk_init(&w, v);
	for (*count = 0; walk_next(&w, &one); (*count)++)
		TRY(field_string(one, 1, high, false, &out[*count]));
	return 0;
}

static void strings_write(struct wire_writer *w, const struct wire_str *s, uint32_t count)
{
	wire_put_array(w, count);
	for (uint32_t i = 0; i < count; i++)
		wire_put_str(w, s[i].at, s[i].length);
}

static int tools_read(struct wire_value v, void *message)
{
	struct wire_args *a = message;
	return strings_read(v, a->tools, WIRE_TOOLS_MAX, 0, &a->tool_count);
}

static bool tools_present(const void *message)
{
	return ((const struct wire_args *)message)->tool_count > 0;
}

static void tools_write(struct wire_writer *w, const void *message)
{
	const struct wire_args *a = message;
	CHECK(a->tool_count <= WIRE_TOOLS_MAX);
	strings_write(w, a->tools, a->tool_count);
}

static int stop_read(struct wire_value v, void *message)
{
	struct wire_sampling *s = &((struct wire_args *)message)->sampling;
	return strings_read(v, s->stop, WIRE_STOPS_MAX, WIRE_STOP_MAX, &s->stop_count);
}

static bool stop_present(const void *message)
{
	return ((const struct wire_args *)message)->sampling.stop_count > 0;
}

static void stop_write(struct wire_writer *w, const void *message)
{
	const struct wire_sampling *s = &((const struct wire_args *)message)->sampling;
	CHECK(s->stop_count <= WIRE_STOPS_MAX);
	strings_write(w, s->stop, s->stop_count);
}

static int stop_tokens_read(struct wire_value v, void *message)
{
	struct wire_sampling *s = &((struct wire_args *)message)->sampling;
	struct wire_value one;
	struct walk w;
	uint32_t count;
	TRY(elements(v, WIRE_STOPS_MAX, &count));
	walk_init(&w, v);
	for (s->stop_token_count = 0; walk_next(&w, &one); s->stop_token_count++) {
		uint64_t token;
		if (!wire_get_u64(one, &token))
			return -ERR_BAD_ARG;
		if (token > INT32_MAX)
			return -ERR_OUT_OF_RANGE;
		s->stop_token[s->stop_token_count] = (uint32_t)token;
	}
	return 0;
}

static bool stop_tokens_present(const void *message)
{
	return ((const struct wire_args *)message)->sampling.stop_token_count > 0;
}

static void stop_tokens_write(struct wire_writer *w, const void *message)
{
	const struct wire_sampling *s = &((const struct wire_args *)message)->sampling;
	CHECK(s->stop_token_count <= WIRE_STOPS_MAX);
	wire_put_array(w, s->stop_token_count);
	for (uint32_t i = 0; i < s->stop_token_count; i++)
		wire_put_u64(w, s->stop_token[i]);
}

static int choices_read(struct wire_value v, void *message)
{
	struct wire_args *a = message;
	return strings_read(v, a->choices, WIRE_CHOICES_MAX, WIRE_CHOICE_MAX, &a->choice_count);
}

static bool choices_present(const void *message)
{
	return ((const struct wire_args *)message)->choice_count > 0;
}

static void choices_write(struct wire_writer *w, const void *message)
{
	const struct wire_args *a = message;
	CHECK(a->choice_count <= WIRE_CHOICES_MAX);
	strings_write(w, a->choices, a->choice_count);
}

static int bias_read(struct wire_value v, void *message)
{
	struct wire_sampling *s = &((struct wire_args *)message)->sampling;
	struct wire_value one;
	struct walk w;
	uint32_t count, parts;
	TRY(elements(v, WIRE_BIAS_MAX, &count));
	walk_init(&w, v);
	for (s->bias_count = 0; walk_next(&w, &one); s->bias_count++) {
		uint64_t token;
		double add;
		if (!wire_get_array(one, &parts) || parts != 2 ||
		    !wire_get_u64(wire_at(one, 0), &token) ||
		    !wire_get_f64(wire_at(one, 1), &add))
			return -ERR_BAD_ARG;
		if (token > INT32_MAX || add < -1000.0 || add > 1000.0)
			return -ERR_OUT_OF_RANGE;
		s->bias[s->bias_count].token = (uint32_t)token;
		s->bias[s->bias_count].add = add;
	}
	return 0;
}

static bool bias_present(const void *message)
{
	return ((const struct wire_args *)message)->sampling.bias_count > 0;
}

static void bias_write(struct wire_writer *w, const void *message)
{
	const struct wire_sampling *s = &((const struct wire_args *)message)->sampling;
	CHECK(s->bias_count <= WIRE_BIAS_MAX);
	wire_put_array(w, s->bias_count);
	for (uint32_t i = 0; i < s->bias_count; i++) {
		wire_put_array(w, 2);
		wire_put_u64(w, s->bias[i].token);
		wire_put_f64(w, s->bias[i].add);
	}
}

static int course_read(struct wire_value v, void *message)
{
	return wire_get_bin(v, &((struct wire_args *)message)->course) ? 0 : -ERR_BAD_ARG;
}

static bool course_present(const void *message)
{
	return ((const struct wire_args *)message)->course.at != NULL;
}

static void course_write(struct wire_writer *w, const void *message)
{
	const struct wire_args *a = message;
	wire_put_bin(w, a->course.at, a->course.length);
}

/* --- The arguments. --- */

static const char *const residencies[] = {"best_effort", "leased", "pinned", NULL};
static const char *const tool_choices[] = {"auto", "none", "required", NULL};
static const char *const places[] = {"host", "disk", "tokens", NULL};

#define AT(member) .at = offsetof(struct wire_residency_args, member)
static const struct field residency_fields[] = {
	{"kind", FIELD_CHOICE, NEEDED, AT(kind), .names = residencies},
	{"bytes", FIELD_U64, AT(bytes), .high = WIRE_U64_MAX, .absent = WIRE_NONE},
	{"tokens", FIELD_U64, AT(tokens), .high = INT32_MAX, .absent = WIRE_NONE},
	{"lease_ms", FIELD_U64, AT(lease_ms), .high = WIRE_LEASE_MS_MAX, .absent = WIRE_NONE},
};
#undef AT
TABLE(residency_table, residency_fields, true);

#define AT(member) .at = offsetof(struct wire_args, member)
#define REAL(low, high, off) .real_low = low, .real_high = high, .real_absent = off
#define RESIDENCY FIELD_MAP, AT(residency), .table = &residency_table, \
	.has = offsetof(struct wire_args, residency.present) + 1
static const struct field args_fields[] = {
	{"system", FIELD_TEXT, AT(system), .methods = M(SESSION_OPEN)},
	{"template", FIELD_NAME, AT(template_name), .low = 1, .high = WIRE_NAME_MAX,
		.methods = M(SESSION_OPEN) | M(SESSION_IMPORT)},
	{"label", FIELD_NAME, AT(label), .high = WIRE_NAME_MAX,
		.methods = M(SESSION_OPEN) | M(SESSION_FORK) | M(SESSION_IMPORT)},
	{"tools", FIELD_OTHER, .methods = M(SESSION_OPEN) | M(SESSION_IMPORT), .read = tools_read,
		.present = tools_present, .write = tools_write},
	{"residency", RESIDENCY,
		.methods = M(SESSION_OPEN) | M(SESSION_FORK) | M(SESSION_IMPORT)},
	{"residency", RESIDENCY, NEEDED, .methods = M(SESSION_RESIDENCY)},
	{"messages", FIELD_OTHER, .methods = M(SESSION_TURN), .read = messages_read,
		.present = messages_present, .write = messages_write},
	{"results", FIELD_OTHER, .methods = M(SESSION_CONTINUE), .read = results_read,
		.present = messages_present, .write = results_write},
	{"tokens", FIELD_BOOL, AT(tokens_in_blob), .methods = TURNS},
	{"keep", FIELD_U64, AT(keep), .high = INT32_MAX, .absent = WIRE_NONE, .methods = TURNS},
	{"tool_choice", FIELD_CHOICE, AT(tool_choice), .names = tool_choices, .methods = TURNS},
	{"supersede", FIELD_BOOL, AT(supersede), .methods = TURNS},
	{"max_tokens", FIELD_U32, AT(sampling.max_tokens), .high = WIRE_MAX_TOKENS_MAX,
		.methods = TURNS},
	{"temperature", FIELD_REAL, AT(sampling.temperature), REAL(0, 100, 0), .methods = TURNS},
	{"top_p", FIELD_REAL, FIELD_ABOVE, AT(sampling.top_p), REAL(0, 1, 1), .methods = TURNS},
	{"min_p", FIELD_REAL, AT(sampling.min_p), REAL(0, 0.999999, 0), .methods = TURNS},
	{"typical", FIELD_REAL, FIELD_ABOVE, AT(sampling.typical), REAL(0, 1, 1),
		.methods = TURNS},
	{"top_k", FIELD_U32, AT(sampling.top_k), .high = WIRE_TOP_K_MAX, .methods = TURNS},
	{"repetition", FIELD_REAL, AT(sampling.repetition), REAL(0.01, 100, 1),
		.methods = TURNS},
	{"presence", FIELD_REAL, AT(sampling.presence), REAL(-100, 100, 0), .methods = TURNS},
	{"frequency", FIELD_REAL, AT(sampling.frequency), REAL(-100, 100, 0), .methods = TURNS},
	{"dry", FIELD_REAL, AT(sampling.dry), REAL(0, 100, 0), .methods = TURNS},
	{"dry_base", FIELD_REAL, AT(sampling.dry_base), REAL(1, 100, 1.75), .methods = TURNS},
	{"dry_allowed", FIELD_U32, AT(sampling.dry_allowed), .low = 1, .high = WIRE_DRY_ALLOWED_MAX,
		.absent = WIRE_DRY_ALLOWED, .methods = TURNS},
	{"dry_last", FIELD_U32, AT(sampling.dry_last), .low = 1, .high = WIRE_DRY_LAST_MAX,
		.absent = WIRE_DRY_LAST, .methods = TURNS},
	{"seed", FIELD_U64, AT(sampling.seed), .methods = TURNS},
	{"logprobs", FIELD_U32, AT(sampling.logprobs), .high = WIRE_LOGPROBS_MAX,
		.methods = TURNS},
	{"stop", FIELD_OTHER, .methods = TURNS, .read = stop_read, .present = stop_present,
		.write = stop_write},
	{"stop_tokens", FIELD_OTHER, .methods = TURNS, .read = stop_tokens_read,
		.present = stop_tokens_present, .write = stop_tokens_write},
	{"bias", FIELD_OTHER, .methods = TURNS, .read = bias_read, .present = bias_present,
		.write = bias_write},
	{"ignore_end", FIELD_BOOL, AT(sampling.ignore_end), .methods = TURNS},
	{"schema", FIELD_TEXT, AT(schema), .low = 1, .high = WIRE_SCHEMA_MAX, .methods = TURNS},
	{"regex", FIELD_TEXT, AT(regex), .high = WIRE_REGEX_MAX, .methods = TURNS},
	{"choices", FIELD_OTHER, .has = offsetof(struct wire_args, has_choices) + 1, .methods = TURNS,
		.read = choices_read, .present = choices_present, .write = choices_write},
	{"to_tokens", FIELD_U64, AT(tokens), .high = INT32_MAX, .absent = WIRE_NONE,
		.methods = M(SESSION_FORK) | M(SESSION_ROLLBACK)},
	{"to_turn", FIELD_U64, AT(to_turn), .high = WIRE_U64_MAX, .absent = WIRE_NONE,
		.methods = M(SESSION_FORK) | M(SESSION_ROLLBACK)},
	{"tied", FIELD_BOOL, AT(tied), .methods = M(SESSION_FORK)},
	{"returns_in_ms", FIELD_U64, NEEDED, AT(returns_in_ms), .high = WIRE_LEASE_MS_MAX,
		.methods = M(SESSION_HINT)},
	{"tool", FIELD_NAME, AT(tool_name), .low = 1, .high = WIRE_TOOL_NAME_MAX,
		.methods = M(SESSION_HINT)},
	{"place", FIELD_NAME, NEEDED, AT(place), .names = places, .methods = M(SESSION_PARK)},
	{"first", FIELD_U64, AT(first), .high = UINT32_MAX,
		.methods = M(SESSION_LIST) | M(PAGES_SHOW) | M(LEDGER_SHOW)},
	{"first", FIELD_U64, AT(first), .high = WIRE_U64_MAX, .methods = M(EVENTS_REPLAY)},
	{"count", FIELD_U64, AT(count), .low = 1, .high = WIRE_COUNT_MAX,
		.absent = WIRE_COUNT_DEFAULT,
		.methods = M(SESSION_LIST) | M(PAGES_SHOW) | M(EVENTS_REPLAY) | M(LEDGER_SHOW)},
	{"principal", FIELD_NAME, AT(principal), .low = 1, .high = WIRE_NAME_MAX,
		.methods = M(EVENTS_REPLAY)},
	{"group", FIELD_U64, AT(group), .high = WIRE_GROUP_MAX, .absent = WIRE_NONE,
		.methods = M(PAGES_SHOW)},
	{"course", FIELD_OTHER, NEEDED, .methods = M(SESSION_IMPORT), .read = course_read,
		.present = course_present, .write = course_write},
	{"turn", FIELD_U64, AT(at_turn), .high = WIRE_U64_MAX, .absent = WIRE_NONE,
		.methods = M(SESSION_IMPORT)},
	{"waits", FIELD_BOOL, AT(waits), .methods = M(SESSION_IMPORT)},
	{"text", FIELD_TEXT, AT(text), .methods = M(TOKENIZE)},
	{"special", FIELD_BOOL, AT(special), .methods = M(TOKENIZE)},
};
#undef AT
TABLE(args_table, args_fields, true);

static int disagree(const char *text, const char **why)
{
	*why = text;
	return -ERR_BAD_ARG;
}

/* What a table of single fields cannot say. */
static int args_agree(enum wire_method method, const struct wire_args *a, const char **why)
{
	bool said = a->message_count > 0, to = a->tokens != WIRE_NONE;
	switch (method) {
	case METHOD_SESSION_TURN:
	case METHOD_SESSION_CONTINUE:
		if (said == a->tokens_in_blob)
			return disagree(method == METHOD_SESSION_TURN ? "either messages or tokens" :
				"either results or tokens", why);
		if (a->has_choices && a->choice_count == 0)
			return disagree("choices is empty", why);
		if ((a->schema.at != NULL) + (a->regex.at != NULL) + (a->choice_count > 0) +
				(a->tool_choice == TOOL_REQUIRED) > 1)
			return disagree("of schema, regex, choices and a required tool_choice one at most", why);
		return a->keep == WIRE_NONE || a->tokens_in_blob ? 0 : disagree("keep without tokens", why);
	case METHOD_SESSION_ROLLBACK:
		return to != (a->to_turn != WIRE_NONE) ? 0 : disagree("either to_tokens or to_turn", why);
	case METHOD_SESSION_FORK:
		return !to || a->to_turn == WIRE_NONE ? 0 :
			disagree("of to_tokens and to_turn one at most", why);
	default:
		return 0;
	}
}

/* --- The call. --- */

static int method_read(struct wire_value v, void *message)
{
	struct wire_str s;
	if (!wire_get_str(v, &s))
		return -ERR_BAD_ARG;
	enum wire_method method = wire_method_find(s.at, s.length);
	((struct wire_call *)message)->method = (uint8_t)method;
	return method == METHOD_COUNT ? -ERR_BAD_ARG : 0;
}

static void method_write(struct wire_writer *w, const void *message)
{
	wire_put_text(w, wire_method_name(((const struct wire_call *)message)->method));
}

static void args_write(struct wire_writer *w, const void *message)
{
	const struct wire_call *m = message;
	fields_write(w, &args_table, 1u << m->method, &m->a);
}

static bool args_present(const void *message)
{
	return message != NULL;
}

/* The arguments need the method, which may stand behind them: they are read after the table. */
static int args_read(struct wire_value v, void *message)
{
	uint32_t pairs;
	(void)message;
	return wire_get_map(v, &pairs) ? 0 : -ERR_BAD_ARG;
}

#define AT(member) .at = offsetof(struct wire_call, member)
#define HAS(member) .has = offsetof(struct wire_call, member) + 1
static const struct field call_fields[] = {
	{"m", FIELD_OTHER, NEEDED, .read = method_read, .write = method_write},
	{"idem", FIELD_ID, AT(idem), HAS(has_idem)},
	{"sess", FIELD_ID, AT(sess), HAS(has_sess)},
	{"epoch", FIELD_U64, AT(epoch), .high = WIRE_U64_MAX, .absent = WIRE_NONE},
	{"turn", FIELD_U64, AT(turn), .high = WIRE_U64_MAX, .absent = WIRE_NONE},
	{"deadline_ms", FIELD_U64, AT(deadline_ms), .low = 1, .high = WIRE_DEADLINE_MS_MAX,
		.absent = WIRE_NONE},
	{"window", FIELD_U64, AT(window), .high = WIRE_WINDOW_MAX,
		.absent = WIRE_WINDOW_DEFAULT},
	{"detach_ms", FIELD_U64, AT(detach_ms), .high = WIRE_DETACH_MS_MAX,
		.absent = WIRE_NONE},
	{"a", FIELD_OTHER, .read = args_read, .present = args_present, .write = args_write},
};
#undef AT
TABLE(call_table, call_fields, true);

/* Methods that work on a session, and those that may name one. */
#define ON_SESSION (TURNS | M(SESSION_FORK) | M(SESSION_ROLLBACK) | M(SESSION_CLOSE) | \
	M(SESSION_SHOW) | M(SESSION_ATTACH) | M(SESSION_RESIDENCY) | M(SESSION_HINT) | \
	M(SESSION_PARK) | M(SESSION_TOUCH) | M(SESSION_EXPORT) | M(SESSION_FORGET))
#define MAY_NAME (ON_SESSION | M(PAGES_SHOW))

static int call_agrees(struct wire_call *m)
{
	uint32_t bit = 1u << m->method;
	if ((ON_SESSION & bit) && !m->has_sess)
		return disagree("sess", &m->why);
	if (m->has_sess && !(MAY_NAME & bit))
		return -ERR_UNKNOWN_FIELD;
	if ((m->epoch != WIRE_NONE || m->turn != WIRE_NONE) && !(ON_SESSION & bit))
		return -ERR_UNKNOWN_FIELD;
	return args_agree(m->method, &m->a, &m->why);
}

void wire_call_init(struct wire_call *m, enum wire_method method)
{
	/* Messages, tools and the like are behind counts of 0, and need not be cleared; but what
	   a caller sees of this struct in a debugger should not be somebody else's. */
	memset(m, 0, sizeof *m);
	m->method = (uint8_t)method;
	m->epoch = m->turn = m->deadline_ms = m->detach_ms = WIRE_NONE;
	m->window = WIRE_WINDOW_DEFAULT;
	m->a.keep = m->a.tokens = m->a.to_turn = m->a.returns_in_ms = m->a.group =
		m->a.at_turn = WIRE_NONE;
	m->a.count = WIRE_COUNT_DEFAULT;
	m->a.residency.bytes = m->a.residency.tokens = m->a.residency.lease_ms = WIRE_NONE;
	m->a.sampling.top_p = m->a.sampling.typical = m->a.sampling.repetition = 1;
	m->a.sampling.dry_base = 1.75;
	m->a.sampling.dry_allowed = WIRE_DRY_ALLOWED;
	m->a.sampling.dry_last = WIRE_DRY_LAST;
}

int wire_read_call(const void *body, size_t length, const struct wire_limits *l,
	struct wire_call *out)
{
	wire_call_init(out, METHOD_COUNT);
	TRY(fields_read_body(body, length, l, &call_table, out, &out->why));
	struct wire_value args = wire_find((struct wire_value){body, length}, "a");
	/* Without arguments, those that are needed are missed all the same. */
	static const uint8_t none[] = {0x80};
	if (!args.at)
		args = (struct wire_value){none, sizeof none};
	TRY(fields_read(args, &args_table, 1u << out->method, &out->a, &out->why));
	return call_agrees(out);
}

int wire_write_call(struct wire_writer *w, const struct wire_call *m)
{
	CHECK(m->method < METHOD_COUNT);
	return fields_write_body(w, &call_table, m);
}
