/*
 * The messages of the wire. Method: each field written and read back against values given by hand;
 * the rules as a table of bodies and codes; random valid messages, whole, cut at every byte, and
 * mutated, with MessagePack-c's own unpacker as the second opinion on all that is accepted.
 */
#include <msgpack.h>
#include <stdlib.h>
#include <string.h>

#include "tests/pack.h"
#include "tests/tap.h"
#include "tests/wire_samples.h"

static uint8_t body[SAMPLE_BYTES], copy[SAMPLE_BYTES];
static char json[4 * SAMPLE_BYTES];

/* --- The second opinion. --- */

static bool same_bytes(const void *a, size_t a_length, const void *b, size_t b_length)
{
	return a_length == b_length && (a_length == 0 || memcmp(a, b, a_length) == 0);
}

static bool same_number(const msgpack_object *o, struct wire_value v)
{
	uint64_t n;
	double f;
	if (o->type == MSGPACK_OBJECT_POSITIVE_INTEGER)
		return wire_get_u64(v, &n) && n == o->via.u64;
	if (wire_get_u64(v, &n) || !wire_get_f64(v, &f))
		return false;
	if (o->type == MSGPACK_OBJECT_NEGATIVE_INTEGER)
		return !(f < (double)o->via.i64 || f > (double)o->via.i64);
	return !(f < o->via.f64 || f > o->via.f64);
}

static bool same(const msgpack_object *o, struct wire_value v)
{
	struct wire_str s;
	struct wire_bin b;
	uint32_t n;
	bool yes;
	switch (o->type) {
	case MSGPACK_OBJECT_NIL:
		return v.length == 1 && v.at[0] == 0xc0;
	case MSGPACK_OBJECT_BOOLEAN:
		return wire_get_bool(v, &yes) && yes == o->via.boolean;
	case MSGPACK_OBJECT_STR:
		return wire_get_str(v, &s) &&
			same_bytes(s.at, s.length, o->via.str.ptr, o->via.str.size);
	case MSGPACK_OBJECT_BIN:
		return wire_get_bin(v, &b) &&
			same_bytes(b.at, b.length, o->via.bin.ptr, o->via.bin.size);
	case MSGPACK_OBJECT_ARRAY:
		if (!wire_get_array(v, &n) || n != o->via.array.size)
			return false;
		for (uint32_t i = 0; i < n; i++)
			if (!same(&o->via.array.ptr[i], wire_at(v, i)))
				return false;
		return true;
	case MSGPACK_OBJECT_MAP:
		if (!wire_get_map(v, &n) || n != o->via.map.size)
			return false;
		for (uint32_t i = 0; i < n; i++) {
			char key[40] = {0};
			const msgpack_object_kv *kv = &o->via.map.ptr[i];
			if (kv->key.type != MSGPACK_OBJECT_STR || kv->key.via.str.size > 32)
				return false;
			memcpy(key, kv->key.via.str.ptr, kv->key.via.str.size);
			if (!same(&kv->val, wire_find(v, key)))
				return false;
		}
		return true;
	case MSGPACK_OBJECT_EXT:
		return false;
	default:
		return same_number(o, v);
	}
}

/* What the pre-scan accepts, MessagePack-c must unpack whole and to the same values. */
static bool agreed(const uint8_t *at, size_t length)
{
	msgpack_unpacked u;
	size_t off = 0;
	msgpack_unpacked_init(&u);
	bool good = msgpack_unpack_next(&u, (const char *)at, length, &off) ==
		MSGPACK_UNPACK_SUCCESS && off == length &&
		same(&u.data, (struct wire_value){at, length});
	msgpack_unpacked_destroy(&u);
	return good;
}

/* --- Each field. --- */

static bool wrote(const char *want)
{
	struct wire_value v = {body, 0};
	v.length = pack(want, copy, sizeof copy);
	struct wire_value w = {copy, v.length};
	static char other[sizeof json];
	wire_json(w, other, sizeof other);
	if (strcmp(json, other) == 0)
		return true;
	printf("# %s\n# %s\n", json, other);
	return false;
}

#define ID_A {{0xa0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}}
#define HEX_A "#a00102030405060708090a0b0c0d0e0f#"
#define STR(literal) {(literal), sizeof(literal) - 1}

/* Writes m, compares with the text, reads it back into out. */
#define ROUND(name, m, text) \
	struct wire_writer w_; \
	wire_writer_init(&w_, body, sizeof body); \
	REQUIRE(wire_write_##name(&w_, &(m)) == 0); \
	wire_json((struct wire_value){body, w_.length}, json, sizeof json); \
	EXPECT(wrote(text)); \
	REQUIRE(wire_read_##name(body, w_.length, NULL, &out) == 0)

static bool is(struct wire_str s, const char *text)
{
	return s.at && s.length == strlen(text) && memcmp(s.at, text, s.length) == 0;
}

static bool is_a(struct wire_id id)
{
	struct wire_id a = ID_A;
	return memcmp(&id, &a, sizeof a) == 0;
}

static void hello_fields(void)
{
	struct wire_hello m = {STR("me"), 3, STR("secret"), STR("them")}, out;
	ROUND(hello, m, "{'client': 'me', 'minor': 3, 'caps': [], 'auth': {'scheme': 'token', "
		"'token': 'secret'}, 'act_as': 'them'}");
	EXPECT(is(out.client, "me") && is(out.token, "secret") && is(out.act_as, "them"));
	EXPECT_EQ(out.minor, 3);
}

static void welcome_fields(void)
{
	struct wire_welcome m = {1, ID_A, STR("uid:7"), 2, 3, 4, 5, 6}, out;
	ROUND(welcome, m, "{'minor': 1, 'boot': " HEX_A ", 'principal': 'uid:7', 'limits': {"
		"'frame': 2, 'inflight': 3, 'window': 4, 'depth': 5}, 'hb_ms': 6, 'caps': []}");
	EXPECT(is_a(out.boot) && is(out.principal, "uid:7"));
	EXPECT(out.minor == 1 && out.frame_max == 2 && out.inflight_max == 3);
	EXPECT(out.window_max == 4 && out.depth_max == 5 && out.hb_ms == 6);
}

static void window_fields(void)
{
	struct wire_window m = {ID_A, 9}, out;
	ROUND(window, m, "{'op': " HEX_A ", 'max_off': 9}");
	EXPECT(is_a(out.op) && out.max_off == 9);
}

static void cancel_fields(void)
{
	struct wire_cancel m = {true, ID_A, STR("user")}, out;
	ROUND(cancel, m, "{'op': " HEX_A ", 'why': 'user'}");
	EXPECT(out.has_op && is_a(out.op) && is(out.why, "user"));
	m = (struct wire_cancel){0};
	wire_writer_init(&w_, body, sizeof body);
	EXPECT_EQ(wire_write_cancel(&w_, &m), 0);
	EXPECT_EQ(wire_read_cancel(body, w_.length, NULL, &out), 0);
	EXPECT(!out.has_op && !out.why.at);
}

static void resume_fields(void)
{
	struct wire_resume m = {ID_A, 5, 6}, out;
	ROUND(resume, m, "{'op': " HEX_A ", 'after_seq': 5, 'window': 6}");
	EXPECT(is_a(out.op) && out.after_seq == 5 && out.window == 6);
}

static void ack_fields(void)
{
	struct wire_ack m = {ID_A, 5}, out;
	ROUND(ack, m, "{'op': " HEX_A ", 'seq': 5}");
	EXPECT(is_a(out.op) && out.seq == 5);
}

static void ping_fields(void)
{
	struct wire_ping m = {UINT64_MAX}, out;
	ROUND(ping, m, "{'t': 18446744073709551615}");
	EXPECT(out.t == UINT64_MAX);
}

static void accepted_fields(void)
{
	struct wire_accepted m = {ID_A, true, false}, out;
	ROUND(accepted, m, "{'op': " HEX_A ", 'dup': true, 'durable': false}");
	EXPECT(is_a(out.op) && out.dup && !out.durable);
}

static void data_fields(void)
{
	static const uint8_t p[] = {0x91, 0x82, 0xa1, 't', 7, 0xa1, 'p', 0xff};
	struct wire_data m = {9, 1, STR("text"), {p, sizeof p}}, out;
	ROUND(data, m, "[9, 1, 'text', [{'t': 7, 'p': -1}]]");
	EXPECT(out.off == 9 && out.n_tokens == 1 && is(out.text, "text"));
	EXPECT(out.logprobs.at && out.logprobs.length == sizeof p);
	m = (struct wire_data){.off = 1};
	wire_writer_init(&w_, body, sizeof body);
	EXPECT_EQ(wire_write_data(&w_, &m), 0);
	EXPECT(w_.length == 5 && memcmp(body, "\x94\x01\x00\xc0\xc0", 5) == 0);
	EXPECT_EQ(wire_read_data(body, w_.length, NULL, &out), 0);
	EXPECT(!out.text.at && !out.logprobs.at);
}

static void end_fields(void)
{
	static const uint8_t r[] = {0x81, 0xa1, 'x', 1};
	static struct wire_end m, out;
	wire_end_init(&m);
	m = (struct wire_end){
		.status = STR("tool_wait"),
		.err = {404, "later", 1, 2, 3, 4, {0}},
		.usage = {true, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, STR("new")},
		.turn = 5, .epoch = 6, .has_sess = true, .sess = ID_A,
		.call_count = 1, .calls = {{STR("c1"), STR("f"), STR("{}")}},
		.result = {r, sizeof r}, .durable = true,
	};
	ROUND(end, m, "{'status': 'tool_wait', 'err': {'c': 404, 'n': 'context_full', "
		"'t': 'the turn does not fit the context', 'r': 'later', 'after_ms': 1, 'used': 2, "
		"'asked': 3, 'limit': 4}, 'usage': {'prompt': 1, 'resident': 2, 'reloaded': 3, "
		"'recomputed': 4, 'new': 5, 'sampled': 6, 'history': 7, 'context_left': 8, "
		"'queue_us': 9, 'prefill_us': 10, 'decode_us': 11, 'tool_us': 12, "
		"'diverged_at': 13, 'diverged_why': 'new'}, 'turn': 5, 'epoch': 6, 'sess': " HEX_A
		", 'next': [{'id': 'c1', 'name': 'f', 'arguments': '{}'}], 'r': {'x': 1}, "
		"'durable': true}");
	EXPECT(is(out.status, "tool_wait") && out.err.code == 404);
	EXPECT(strcmp(out.err.retry, "later") == 0);
	EXPECT(memcmp(&out.err.after_ms, &m.err.after_ms, 4 * sizeof(uint64_t)) == 0);
	EXPECT(out.usage.present && is(out.usage.diverged_why, "new"));
	EXPECT(memcmp(&out.usage.prompt, &m.usage.prompt, 13 * sizeof(uint64_t)) == 0);
	EXPECT(out.turn == 5 && out.epoch == 6 && out.has_sess && is_a(out.sess) && out.durable);
	REQUIRE(out.call_count == 1);
	EXPECT(is(out.calls[0].id, "c1") && is(out.calls[0].name, "f"));
	EXPECT(is(out.calls[0].arguments, "{}") && out.result.length == sizeof r);
}

static void end_absent(void)
{
	static struct wire_end m, out;
	wire_end_init(&m);
	m.status = (struct wire_str)STR("ok");
	ROUND(end, m, "{'status': 'ok', 'durable': false}");
	EXPECT(out.err.code == 0 && !out.usage.present && out.turn == WIRE_NONE);
	EXPECT(out.epoch == WIRE_NONE && !out.has_sess && out.call_count == 0 && !out.result.at);
}

static void note_fields(void)
{
	struct wire_note m = {ID_A, STR("queued"), 1, 2, 3, 4, 5}, out;
	ROUND(note, m, "{'op': " HEX_A ", 'state': 'queued', 'done': 1, 'total': 2, 'place': 3, "
		"'short_by': 4, 'eta_ms': 5}");
	EXPECT(is_a(out.op) && is(out.state, "queued"));
	EXPECT(memcmp(&out.done, &m.done, 5 * sizeof(uint64_t)) == 0);
}

static void other_fields(void)
{
	struct wire_goaway m = {STR("drain"), 1, WIRE_NONE}, out;
	ROUND(goaway, m, "{'why': 'drain', 'deadline_ms': 1}");
	EXPECT(is(out.why, "drain") && out.deadline_ms == 1 && out.retry_ms == WIRE_NONE);
	struct wire_reject r, back;
	wire_reject_init(&r);
	r.err.code = ERR_BAD_TYPE;
	wire_writer_init(&w_, body, sizeof body);
	EXPECT_EQ(wire_write_reject(&w_, &r), 0);
	EXPECT_EQ(wire_read_reject(body, w_.length, NULL, &back), 0);
	EXPECT(back.err.code == ERR_BAD_TYPE && back.err.after_ms == WIRE_NONE);
	wire_writer_init(&w_, body, sizeof body);
	EXPECT_EQ(wire_write_bye(&w_), 0);
	EXPECT(w_.length == 1 && body[0] == 0x80);
}

static void turn_fields(void)
{
	static struct wire_call m, out;
	wire_call_init(&m, METHOD_SESSION_TURN);
	m.has_idem = m.has_sess = true;
	m.idem = m.sess = (struct wire_id)ID_A;
	m.epoch = 1, m.turn = 2, m.deadline_ms = 3, m.window = 4, m.detach_ms = 5;
	struct wire_args *a = &m.a;
	a->message_count = 2, a->call_count = 1;
	a->messages[0] = (struct wire_message){WIRE_USER, STR("hi"), 0, 0, {0}, STR("n")};
	a->messages[1] = (struct wire_message){WIRE_ASSISTANT, {0}, 0, 1, STR("t"), {0}};
	a->calls[0] = (struct wire_tool_call){STR("c"), STR("f"), STR("{}")};
	a->tool_choice = TOOL_REQUIRED, a->supersede = true;
	a->sampling = (struct wire_sampling){.max_tokens = 6, .temperature = 0.5, .top_p = 0.25,
		.min_p = 0.125, .typical = 0.75, .top_k = 7, .repetition = 1.5, .presence = -1.5,
		.frequency = 2.5, .dry = 0.5, .dry_base = 1.5, .dry_allowed = 3, .dry_last = 4,
		.seed = UINT64_MAX, .logprobs = 8, .stop_count = 1,
		.stop = {STR("s")}, .bias_count = 1, .bias = {{9, -2.5}}, .ignore_end = true};
	ROUND(call, m, "{'m': 'session.turn', 'idem': " HEX_A ", 'sess': " HEX_A ", 'epoch': 1, "
		"'turn': 2, 'deadline_ms': 3, 'window': 4, 'detach_ms': 5, 'a': {'messages': ["
		"{'role': 'user', 'content': 'hi', 'name': 'n'}, {'role': 'assistant', 'tool_calls': ["
		"{'id': 'c', 'name': 'f', 'arguments': '{}'}], 'tool_call_id': 't'}], "
		"'tool_choice': 'required', 'supersede': true, 'max_tokens': 6, 'temperature': 0.5, "
		"'top_p': 0.25, 'min_p': 0.125, 'typical': 0.75, 'top_k': 7, 'repetition': 1.5, "
		"'presence': -1.5, 'frequency': 2.5, 'dry': 0.5, 'dry_base': 1.5, 'dry_allowed': 3, "
		"'dry_last': 4, 'seed': 18446744073709551615, 'logprobs': 8, "
		"'stop': ['s'], 'bias': [[9, -2.5]], 'ignore_end': true}}");
	EXPECT(out.method == METHOD_SESSION_TURN && out.has_idem && out.has_sess);
	EXPECT(is_a(out.idem) && is_a(out.sess) && out.epoch == 1 && out.turn == 2);
	EXPECT(out.deadline_ms == 3 && out.window == 4 && out.detach_ms == 5);
	EXPECT(out.a.message_count == 2 && out.a.messages[0].role == WIRE_USER);
	EXPECT(is(out.a.messages[0].content, "hi") && is(out.a.messages[0].name, "n"));
	EXPECT(!out.a.messages[1].content.at && out.a.messages[1].call_count == 1);
	EXPECT(is(out.a.messages[1].tool_call_id, "t") && is(out.a.calls[0].name, "f"));
	const struct wire_sampling *s = &out.a.sampling;
	EXPECT(out.a.tool_choice == TOOL_REQUIRED && out.a.supersede && s->max_tokens == 6);
	EXPECT(memcmp(&s->temperature, &a->sampling.temperature, 4 * sizeof(double)) == 0);
	EXPECT(memcmp(&s->repetition, &a->sampling.repetition, 5 * sizeof(double)) == 0);
	EXPECT(s->dry_allowed == 3 && s->dry_last == 4);
	EXPECT(s->seed == UINT64_MAX && s->logprobs == 8 && s->top_k == 7 && s->ignore_end);
	EXPECT(s->stop_count == 1 && is(s->stop[0], "s") && s->bias_count == 1);
	EXPECT(s->bias[0].token == 9 && memcmp(&s->bias[0].add, &(double){-2.5}, 8) == 0);
}

/* Each form by itself is taken, two are not. */
static void turn_forms(void)
{
	static struct wire_call m, out;
	struct wire_writer w;
	for (unsigned forms = 0; forms < 16; forms++) {
		wire_call_init(&m, METHOD_SESSION_CONTINUE);
		m.has_sess = true;
		m.sess = (struct wire_id)ID_A;
		m.a.message_count = 1;
		m.a.messages[0] = (struct wire_message){WIRE_TOOL, STR("x"), 0, 0, STR("t"), {0}};
		m.a.schema = forms & 1 ? (struct wire_str)STR("{}") : (struct wire_str){0};
		m.a.regex = forms & 2 ? (struct wire_str)STR("") : (struct wire_str){0};
		m.a.choice_count = forms & 4 ? 2 : 0;
		m.a.choices[0] = (struct wire_str)STR("a");
		m.a.choices[1] = (struct wire_str)STR("bc");
		m.a.tool_choice = forms & 8 ? TOOL_REQUIRED : TOOL_AUTO;
		wire_writer_init(&w, body, sizeof body);
		EXPECT_EQ(wire_write_call(&w, &m), 0);
		EXPECT_EQ(wire_read_call(body, w.length, NULL, &out), forms & (forms - 1) ? -ERR_BAD_ARG : 0);
		EXPECT((out.why != NULL) == ((forms & (forms - 1)) != 0));
		EXPECT(out.why == NULL || strstr(out.why, "one at most") != NULL);
		if (forms == 1)
			EXPECT(is(out.a.schema, "{}") && !out.a.regex.at && out.a.choice_count == 0);
		if (forms == 2)
			EXPECT(out.a.regex.at && out.a.regex.length == 0 && !out.a.schema.at);
		if (forms == 4)
			EXPECT(out.a.choice_count == 2 && is(out.a.choices[1], "bc"));
	}
}

/* --- Many. --- */

static void rounds(void)
{
	struct dice d = {1};
	for (int i = 0; i < 6000; i++) {
		uint8_t type = sample_types[i % SAMPLE_TYPES];
		size_t again = 0, length = sample_make(&d, type, body, sizeof body);
		REQUIRE(sample_read(type, body, length, NULL, copy, sizeof copy, &again) == 0);
		if (!EXPECT(again == length && memcmp(body, copy, length) == 0))
			printf("# type %02x of %zu bytes came back as %zu\n", type, length, again);
		REQUIRE(agreed(body, length));
	}
}

static void cuts(void)
{
	struct dice d = {2};
	for (int i = 0; i < 20 * SAMPLE_TYPES; i++) {
		uint8_t type = sample_types[i % SAMPLE_TYPES];
		size_t length = sample_make(&d, type, body, sizeof body);
		for (size_t cut = 0; cut < length; cut++) {
			uint8_t *own = malloc(cut > 0 ? cut : 1);
			CHECK(own != NULL);
			memcpy(own, body, cut);
			int code = sample_read(type, own, cut, NULL, NULL, 0, NULL);
			free(own);
			REQUIRE(code == -ERR_BAD_BODY);
		}
		/* A byte too many, and a buffer a byte too small to write it. */
		body[length] = 0;
		EXPECT_EQ(sample_read(type, body, length + 1, NULL, NULL, 0, NULL), -ERR_BAD_BODY);
		EXPECT_EQ(sample_read(type, body, length, NULL, copy, length - 1, NULL), -ERR_TOO_BIG);
	}
}

static void mutants(void)
{
	struct dice d = {3};
	unsigned accepted = 0, refused = 0;
	for (int i = 0; i < 60000; i++) {
		uint8_t type = sample_types[dice_roll(&d, SAMPLE_TYPES)];
		size_t length = sample_make(&d, type, body, sizeof body);
		for (uint64_t k = 1 + dice_roll(&d, 4); k > 0; k--) {
			static const uint8_t odd[] = {0x80, 0x90, 0xa0, 0xc0, 0xc1, 0xc4, 0xca, 0xcb,
				0xcf, 0xd9, 0xdc, 0xdd, 0xde, 0xdf, 0xff, 0x7f, 0x00};
			size_t at = dice_roll(&d, length);
			if (dice_roll(&d, 2))
				body[at] = odd[dice_roll(&d, sizeof odd)];
			else
				body[at] = (uint8_t)(body[at] ^ (1u << dice_roll(&d, 8)));
		}
		uint8_t *own = malloc(length);
		CHECK(own != NULL);
		memcpy(own, body, length);
		int code = wire_validate(own, length, NULL), read = 0;
		REQUIRE(code == 0 || code == -ERR_BAD_BODY || code == -ERR_TOO_BIG);
		if (code == 0) {
			accepted++;
			REQUIRE(agreed(own, length));
			wire_json((struct wire_value){own, length}, json, sizeof json);
		}
		refused += code != 0;
		read = sample_read(type, own, length, NULL, copy, sizeof copy, NULL);
		REQUIRE(code == 0 || read == code);
		free(own);
	}
	EXPECT(accepted > 5000 && refused > 5000);
	printf("# %u accepted, %u refused\n", accepted, refused);
}

int main(void)
{
	TAP_RUN(hello_fields, "HELLO field by field");
	TAP_RUN(welcome_fields, "WELCOME field by field");
	TAP_RUN(window_fields, "WINDOW field by field");
	TAP_RUN(cancel_fields, "CANCEL field by field");
	TAP_RUN(resume_fields, "RESUME field by field");
	TAP_RUN(ack_fields, "ACK field by field");
	TAP_RUN(ping_fields, "PING field by field");
	TAP_RUN(accepted_fields, "ACCEPTED field by field");
	TAP_RUN(data_fields, "DATA field by field");
	TAP_RUN(end_fields, "END field by field");
	TAP_RUN(end_absent, "END with nothing but its status");
	TAP_RUN(note_fields, "NOTE field by field");
	TAP_RUN(other_fields, "GOAWAY, REJECT, BYE");
	TAP_RUN(turn_fields, "a CALL of session.turn field by field");
	TAP_RUN(turn_forms, "each form of an answer, and only one");
	TAP_RUN(rounds, "6,000 random messages come back byte for byte");
	TAP_RUN(cuts, "messages cut at every byte, and a byte too long");
	TAP_RUN(mutants, "60,000 mutants: accepted only if MessagePack-c agrees");
	return tap_done();
}
