/*
 * What the readers refuse, and with which code; and the vectors of clients/README.md.
 * Method: a table of bodies, most of them one step from a good one that the table also holds.
 */
#include <stdlib.h>
#include <string.h>

#include "tests/pack.h"
#include "tests/tap.h"
#include "tests/wire_samples.h"

#define ID "#000102030405060708090a0b0c0d0e0f#"
#define TURN(a) "{'m': 'session.turn', 'sess': " ID ", 'a': {'messages': [{'role': 'user', " \
	"'content': 'x'}], " a "}}"
#define ON(m, a) "{'m': '" m "', 'sess': " ID ", 'a': {" a "}}"
#define OFF(m, a) "{'m': '" m "', 'a': {" a "}}"
#define SAID(messages) ON("session.turn", "'messages': [" messages "]")
#define DONE(results) ON("session.continue", "'results': [" results "]")
#define S64 "0123456789012345678901234567890123456789012345678901234567890123"
#define S128 S64 S64
#define S256 S128 S128

static const struct rule {
	uint8_t type;
	int code;
	const char *text;
} rules[] = {
	/* HELLO */
	{WIRE_HELLO, 0, "{'client': 'c', 'minor': 0}"},
	{WIRE_HELLO, 0, "{'client': 'c', 'minor': 7, 'caps': ['a', 'b'], 'x-mine': [1]}"},
	{WIRE_HELLO, ERR_UNKNOWN_FIELD, "{'client': 'c', 'minor': 0, 'mine': 1}"},
	{WIRE_HELLO, ERR_UNKNOWN_FIELD, "{'client': 'c', 'minor': 0, 'x': 1}"},
	{WIRE_HELLO, ERR_BAD_ARG, "{'minor': 0}"},
	{WIRE_HELLO, ERR_BAD_ARG, "{'client': 'c'}"},
	{WIRE_HELLO, ERR_BAD_ARG, "{'client': #63#, 'minor': 0}"},
	{WIRE_HELLO, ERR_BAD_ARG, "{'client': null, 'minor': 0}"},
	{WIRE_HELLO, ERR_BAD_ARG, "{'client': 'a\tb', 'minor': 0}"},
	{WIRE_HELLO, ERR_BAD_ARG, "{'client': 'c', 'minor': 0, 'caps': 'a'}"},
	{WIRE_HELLO, ERR_BAD_ARG, "{'client': 'c', 'minor': 0, 'caps': [1]}"},
	{WIRE_HELLO, ERR_OUT_OF_RANGE, "{'client': '', 'minor': 0}"},
	{WIRE_HELLO, 0, "{'client': '" S64 "', 'minor': 0}"},
	{WIRE_HELLO, ERR_OUT_OF_RANGE, "{'client': '" S64 "x', 'minor': 0}"},
	{WIRE_HELLO, ERR_OUT_OF_RANGE, "{'client': 'c', 'minor': -1}"},
	{WIRE_HELLO, ERR_OUT_OF_RANGE, "{'client': 'c', 'minor': 65536}"},
	{WIRE_HELLO, 0, "{'client': 'c', 'minor': 0, 'auth': {'scheme': 'token', 'token': 't'}}"},
	{WIRE_HELLO, ERR_BAD_ARG, "{'client': 'c', 'minor': 0, 'auth': {'scheme': 'token'}}"},
	{WIRE_HELLO, ERR_BAD_ARG, "{'client': 'c', 'minor': 0, 'auth': {'scheme': 'x', 'token': 't'}}"},
	{WIRE_HELLO, ERR_UNKNOWN_FIELD,
		"{'client': 'c', 'minor': 0, 'auth': {'scheme': 'token', 'token': 't', 'z': 1}}"},
	{WIRE_HELLO, ERR_BAD_BODY, "['c', 0]"},
	{WIRE_HELLO, ERR_BAD_BODY, "7"},
	/* Steering */
	{WIRE_WINDOW, 0, "{'op': " ID ", 'max_off': 9223372036854775807}"},
	{WIRE_WINDOW, ERR_OUT_OF_RANGE, "{'op': " ID ", 'max_off': 9223372036854775808}"},
	{WIRE_WINDOW, ERR_BAD_ARG, "{'op': #00#, 'max_off': 1}"},
	{WIRE_WINDOW, ERR_BAD_ARG, "{'op': '0123456789abcdef', 'max_off': 1}"},
	{WIRE_WINDOW, ERR_BAD_ARG, "{'op': " ID "}"},
	{WIRE_WINDOW, ERR_BAD_ARG, "{'op': " ID ", 'max_off': 1.0}"},
	{WIRE_CANCEL, 0, "{}"},
	{WIRE_CANCEL, ERR_OUT_OF_RANGE, "{'why': '" S64 "x'}"},
	{WIRE_RESUME, ERR_BAD_ARG, "{'op': " ID ", 'after_seq': 1}"},
	{WIRE_PING, 0, "{'t': 18446744073709551615}"},
	{WIRE_PING, ERR_OUT_OF_RANGE, "{'t': -1}"},
	{WIRE_PING, ERR_BAD_ARG, "{}"},
	/* CALL: its own keys */
	{WIRE_CALL, 0, "{'m': 'health'}"},
	{WIRE_CALL, 0, "{'a': {}, 'window': 0, 'm': 'health', 'x-trace': 'y'}"},
	{WIRE_CALL, ERR_BAD_ARG, "{'a': {}}"},
	{WIRE_CALL, ERR_BAD_ARG, "{'m': 'healthy'}"},
	{WIRE_CALL, ERR_BAD_ARG, "{'m': 1}"},
	{WIRE_CALL, ERR_BAD_ARG, "{'m': 'health', 'a': []}"},
	{WIRE_CALL, ERR_UNKNOWN_FIELD, "{'m': 'health', 'b': 1}"},
	{WIRE_CALL, ERR_UNKNOWN_FIELD, "{'m': 'health', 'sess': " ID "}"},
	{WIRE_CALL, ERR_UNKNOWN_FIELD, "{'m': 'health', 'turn': 1}"},
	{WIRE_CALL, ERR_UNKNOWN_FIELD, "{'m': 'health', 'epoch': 1}"},
	{WIRE_CALL, 0, "{'m': 'health', 'deadline_ms': 3600000}"},
	{WIRE_CALL, ERR_OUT_OF_RANGE, "{'m': 'health', 'deadline_ms': 3600001}"},
	{WIRE_CALL, ERR_OUT_OF_RANGE, "{'m': 'health', 'deadline_ms': 0}"},
	{WIRE_CALL, 0, "{'m': 'health', 'window': 1048576}"},
	{WIRE_CALL, ERR_OUT_OF_RANGE, "{'m': 'health', 'window': 1048577}"},
	{WIRE_CALL, ERR_OUT_OF_RANGE, "{'m': 'health', 'detach_ms': 86400001}"},
	{WIRE_CALL, ERR_BAD_ARG, "{'m': 'health', 'idem': #0011#}"},
	{WIRE_CALL, ERR_BAD_ARG, "{'m': 'health', 'deadline_ms': null}"},
	/* Arguments of another method, and missing ones */
	{WIRE_CALL, ERR_UNKNOWN_FIELD, OFF("health", "'count': 1")},
	{WIRE_CALL, 0, OFF("health", "'x-count': 1")},
	{WIRE_CALL, ERR_UNKNOWN_FIELD, TURN("'system': 's'")},
	{WIRE_CALL, ERR_UNKNOWN_FIELD, TURN("'results': []")},
	{WIRE_CALL, ERR_UNKNOWN_FIELD, OFF("session.open", "'messages': []")},
	{WIRE_CALL, ERR_BAD_ARG, "{'m': 'session.turn', 'sess': " ID "}"},
	{WIRE_CALL, ERR_BAD_ARG, OFF("session.turn", "'tokens': true")},
	{WIRE_CALL, 0, ON("session.turn", "'tokens': true")},
	{WIRE_CALL, ERR_BAD_ARG, ON("session.turn", "'tokens': false")},
	{WIRE_CALL, ERR_BAD_ARG, TURN("'tokens': true")},
	{WIRE_CALL, 0, TURN("'tokens': false")},
	{WIRE_CALL, 0, ON("session.turn", "'tokens': true, 'keep': 0")},
	{WIRE_CALL, ERR_BAD_ARG, TURN("'keep': 0")},
	{WIRE_CALL, ERR_BAD_ARG, OFF("session.close", "")},
	{WIRE_CALL, 0, ON("session.close", "")},
	{WIRE_CALL, ERR_BAD_ARG, OFF("session.forget", "")},
	{WIRE_CALL, 0, ON("session.forget", "")},
	{WIRE_CALL, ERR_BAD_ARG, ON("session.rollback", "")},
	{WIRE_CALL, 0, ON("session.rollback", "'to_tokens': 0")},
	{WIRE_CALL, 0, ON("session.rollback", "'to_turn': 3")},
	{WIRE_CALL, ERR_BAD_ARG, ON("session.rollback", "'to_turn': 3, 'to_tokens': 1")},
	{WIRE_CALL, 0, ON("session.fork", "")},
	{WIRE_CALL, ERR_BAD_ARG, ON("session.fork", "'to_turn': 3, 'to_tokens': 1")},
	{WIRE_CALL, ERR_BAD_ARG, ON("session.residency", "")},
	{WIRE_CALL, 0, ON("session.residency", "'residency': {'kind': 'pinned', 'bytes': 1}")},
	{WIRE_CALL, ERR_BAD_ARG, ON("session.residency", "'residency': {'bytes': 1}")},
	{WIRE_CALL, ERR_BAD_ARG, ON("session.residency", "'residency': {'kind': 'nailed'}")},
	{WIRE_CALL, ERR_OUT_OF_RANGE,
		ON("session.residency", "'residency': {'kind': 'leased', 'lease_ms': 604800001}")},
	{WIRE_CALL, ERR_UNKNOWN_FIELD,
		ON("session.residency", "'residency': {'kind': 'leased', 'ms': 1}")},
	{WIRE_CALL, 0, ON("session.fork", "'tied': true")},
	{WIRE_CALL, ERR_BAD_ARG, ON("session.fork", "'tied': 1")},
	{WIRE_CALL, ERR_UNKNOWN_FIELD, ON("session.rollback", "'to_turn': 1, 'tied': true")},
	{WIRE_CALL, 0, ON("session.touch", "")},
	{WIRE_CALL, ERR_BAD_ARG, OFF("session.touch", "")},
	{WIRE_CALL, ERR_BAD_ARG, ON("session.hint", "'tool': 'f'")},
	{WIRE_CALL, 0, ON("session.hint", "'tool': 'f', 'returns_in_ms': 0")},
	{WIRE_CALL, 0, ON("session.park", "'place': 'disk'")},
	{WIRE_CALL, ERR_BAD_ARG, ON("session.park", "'place': 'dis'")},
	{WIRE_CALL, ERR_BAD_ARG, ON("session.park", "")},
	{WIRE_CALL, 0, ON("pages.show", "'group': 255, 'count': 1024, 'first': 4294967295")},
	{WIRE_CALL, 0, OFF("pages.show", "")},
	{WIRE_CALL, ERR_OUT_OF_RANGE, OFF("pages.show", "'group': 256")},
	{WIRE_CALL, ERR_OUT_OF_RANGE, OFF("pages.show", "'count': 1025")},
	{WIRE_CALL, ERR_OUT_OF_RANGE, OFF("pages.show", "'count': 0")},
	{WIRE_CALL, ERR_OUT_OF_RANGE, OFF("pages.show", "'first': 4294967296")},
	{WIRE_CALL, 0, OFF("tokenize", "'text': 'a\nb', 'special': true")},
	{WIRE_CALL, ERR_UNKNOWN_FIELD, OFF("detokenize", "'text': 'a'")},
	{WIRE_CALL, 0, OFF("session.open", "'tools': ['{}'], 'system': '', 'label': ''")},
	{WIRE_CALL, ERR_OUT_OF_RANGE, OFF("session.open", "'tools': ['']")},
	{WIRE_CALL, ERR_BAD_ARG, OFF("session.open", "'tools': [{}]")},
	{WIRE_CALL, ERR_BAD_ARG, OFF("session.open", "'label': 'a\nb'")},
	{WIRE_CALL, ERR_OUT_OF_RANGE, OFF("session.open", "'template': ''")},
	/* Messages and results */
	{WIRE_CALL, ERR_BAD_ARG, SAID("")},
	{WIRE_CALL, ERR_BAD_ARG, SAID("'x'")},
	{WIRE_CALL, ERR_BAD_ARG, SAID("{'role': 'user'}")},
	{WIRE_CALL, ERR_BAD_ARG, SAID("{'content': 'x'}")},
	{WIRE_CALL, ERR_BAD_ARG, SAID("{'role': 'boss', 'content': 'x'}")},
	{WIRE_CALL, ERR_UNKNOWN_FIELD, SAID("{'role': 'user', 'content': 'x', 'text': 'y'}")},
	{WIRE_CALL, ERR_BAD_ARG, SAID("{'role': 'user', 'content': null}")},
	{WIRE_CALL, ERR_BAD_ARG, SAID("{'role': 'user', 'content': ['x']}")},
	{WIRE_CALL, 0, SAID("{'role': 'tool', 'content': '', 'tool_call_id': 'i', 'name': 'n'}")},
	{WIRE_CALL, 0, SAID("{'role': 'assistant', 'tool_calls': [{'id': 'i', 'name': 'n', "
		"'arguments': ''}]}")},
	{WIRE_CALL, ERR_BAD_ARG, SAID("{'role': 'assistant', 'tool_calls': []}")},
	{WIRE_CALL, ERR_BAD_ARG, SAID("{'role': 'user', 'content': 'x', 'tool_calls': [{'id': 'i', "
		"'name': 'n', 'arguments': ''}]}")},
	{WIRE_CALL, ERR_BAD_ARG, SAID("{'role': 'assistant', 'tool_calls': [{'id': 'i', "
		"'name': 'n'}]}")},
	{WIRE_CALL, ERR_UNKNOWN_FIELD, SAID("{'role': 'assistant', 'tool_calls': [{'id': 'i', "
		"'name': 'n', 'arguments': '', 'type': 'function'}]}")},
	{WIRE_CALL, 0, DONE("{'tool_call_id': 'i', 'content': ''}")},
	{WIRE_CALL, ERR_BAD_ARG, DONE("{'content': ''}")},
	{WIRE_CALL, ERR_BAD_ARG, DONE("{'tool_call_id': 'i'}")},
	{WIRE_CALL, ERR_UNKNOWN_FIELD, DONE("{'tool_call_id': 'i', 'content': '', 'role': 'tool'}")},
	{WIRE_CALL, ERR_BAD_ARG, DONE("")},
	{WIRE_CALL, 0, DONE("{'tool_call_id': '" S128 "', 'content': ''}")},
	{WIRE_CALL, ERR_OUT_OF_RANGE, DONE("{'tool_call_id': '" S128 "x', 'content': ''}")},
	/* Sampling: both sides of every bound */
	{WIRE_CALL, 0, TURN("'temperature': 0, 'top_p': 1, 'min_p': 0, 'typical': 1")},
	{WIRE_CALL, 0, TURN("'temperature': 100.0, 'top_p': 0.000001, 'min_p': 0.99")},
	{WIRE_CALL, ERR_OUT_OF_RANGE, TURN("'temperature': 100.1")},
	{WIRE_CALL, ERR_OUT_OF_RANGE, TURN("'temperature': -0.1")},
	{WIRE_CALL, ERR_OUT_OF_RANGE, TURN("'temperature': -1")},
	{WIRE_CALL, ERR_BAD_ARG, TURN("'temperature': '1'")},
	{WIRE_CALL, ERR_OUT_OF_RANGE, TURN("'top_p': 0")},
	{WIRE_CALL, ERR_OUT_OF_RANGE, TURN("'top_p': 0.0")},
	{WIRE_CALL, ERR_OUT_OF_RANGE, TURN("'top_p': 1.01")},
	{WIRE_CALL, ERR_OUT_OF_RANGE, TURN("'min_p': 1.0")},
	{WIRE_CALL, ERR_OUT_OF_RANGE, TURN("'min_p': -0.01")},
	{WIRE_CALL, ERR_OUT_OF_RANGE, TURN("'typical': 0")},
	{WIRE_CALL, 0, TURN("'repetition': 0.01, 'presence': -100, 'frequency': 100")},
	{WIRE_CALL, ERR_OUT_OF_RANGE, TURN("'repetition': 0.0")},
	{WIRE_CALL, ERR_OUT_OF_RANGE, TURN("'repetition': 100.1")},
	{WIRE_CALL, ERR_OUT_OF_RANGE, TURN("'presence': -100.1")},
	{WIRE_CALL, ERR_OUT_OF_RANGE, TURN("'frequency': 100.1")},
	{WIRE_CALL, 0, TURN("'seed': 18446744073709551615")},
	{WIRE_CALL, ERR_OUT_OF_RANGE, TURN("'seed': -1")},
	{WIRE_CALL, ERR_BAD_ARG, TURN("'seed': 1.5")},
	{WIRE_CALL, 0, TURN("'top_k': 1048576, 'max_tokens': 16777216, 'logprobs': 17")},
	{WIRE_CALL, ERR_OUT_OF_RANGE, TURN("'top_k': 1048577")},
	{WIRE_CALL, ERR_OUT_OF_RANGE, TURN("'top_k': 18446744073709551615")},
	{WIRE_CALL, ERR_OUT_OF_RANGE, TURN("'max_tokens': 16777217")},
	{WIRE_CALL, ERR_OUT_OF_RANGE, TURN("'logprobs': 18")},
	{WIRE_CALL, ERR_BAD_ARG, TURN("'ignore_end': 1")},
	{WIRE_CALL, ERR_BAD_ARG, TURN("'supersede': 'yes'")},
	{WIRE_CALL, 0, TURN("'tool_choice': 'none'")},
	{WIRE_CALL, ERR_BAD_ARG, TURN("'tool_choice': 'f'")},
	{WIRE_CALL, 0, TURN("'stop': ['" S256 "', '\n']")},
	{WIRE_CALL, 0, TURN("'stop': []")},
	{WIRE_CALL, ERR_OUT_OF_RANGE, TURN("'stop': ['" S256 "x']")},
	{WIRE_CALL, ERR_OUT_OF_RANGE, TURN("'stop': ['']")},
	{WIRE_CALL, ERR_BAD_ARG, TURN("'stop': 'x'")},
	{WIRE_CALL, 0, TURN("'stop': ['a','a','a','a','a','a','a','a','a','a','a','a','a','a','a',"
		"'a']")},
	{WIRE_CALL, ERR_OUT_OF_RANGE, TURN("'stop': ['a','a','a','a','a','a','a','a','a','a','a',"
		"'a','a','a','a','a','a']")},
	{WIRE_CALL, 0, TURN("'bias': [[2147483647, -1000], [0, 1000.0]]")},
	{WIRE_CALL, ERR_OUT_OF_RANGE, TURN("'bias': [[2147483648, 0]]")},
	{WIRE_CALL, ERR_OUT_OF_RANGE, TURN("'bias': [[1, 1000.5]]")},
	{WIRE_CALL, ERR_BAD_ARG, TURN("'bias': [[1]]")},
	{WIRE_CALL, ERR_BAD_ARG, TURN("'bias': [[1, 2, 3]]")},
	{WIRE_CALL, ERR_BAD_ARG, TURN("'bias': [[-1, 2]]")},
	{WIRE_CALL, ERR_BAD_ARG, TURN("'bias': {'a': 1}")},
	/* What the daemon sends: unknown keys pass, all else is a bad body */
	{WIRE_ACCEPTED, 0, "{'op': " ID ", 'dup': false, 'durable': true, 'new': [1]}"},
	{WIRE_ACCEPTED, ERR_BAD_BODY, "{'op': " ID ", 'dup': false}"},
	{WIRE_ACCEPTED, ERR_BAD_BODY, "{'op': #00#, 'dup': false, 'durable': true}"},
	{WIRE_DATA, 0, "[1, 0, null, null]"},
	{WIRE_DATA, 0, "[1, 0, null, null, 'later']"},
	{WIRE_DATA, ERR_BAD_BODY, "[1, 0, null]"},
	{WIRE_DATA, ERR_BAD_BODY, "[-1, 0, null, null]"},
	{WIRE_DATA, ERR_BAD_BODY, "[1, 65537, null, null]"},
	{WIRE_DATA, ERR_BAD_BODY, "[1, 0, #61#, null]"},
	{WIRE_DATA, ERR_BAD_BODY, "[1, 2, 'ab', [{'t': 1, 'p': 0.5}]]"},
	{WIRE_DATA, ERR_BAD_BODY, "[1, 1, 'ab', [{'t': 1}]]"},
	{WIRE_DATA, ERR_BAD_BODY, "{}"},
	{WIRE_END, 0, "{'status': 'ok', 'durable': false, 'more': 1}"},
	{WIRE_END, ERR_BAD_BODY, "{'durable': false}"},
	{WIRE_END, ERR_BAD_BODY, "{'status': 'error', 'durable': false, 'err': {'c': 99}}"},
	{WIRE_END, ERR_BAD_BODY, "{'status': 'error', 'durable': false, 'err': {'c': 700}}"},
	{WIRE_END, ERR_BAD_BODY, "{'status': 'error', 'durable': false, 'err': {}}"},
	{WIRE_END, 0, "{'status': 'error', 'durable': false, 'err': {'c': 699, 'r': 'perhaps'}}"},
	{WIRE_END, ERR_BAD_BODY, "{'status': 'x', 'durable': false, 'usage': {'prompt': -1}}"},
	{WIRE_END, ERR_BAD_BODY, "{'status': 'x', 'durable': false, 'next': [{'id': 'x'}]}"},
	{WIRE_REJECT, ERR_BAD_BODY, "{}"},
	{WIRE_WELCOME, ERR_BAD_BODY, "{'minor': 0}"},
	{WIRE_NOTE, 0, "{'op': " ID ", 'state': 'queued'}"},
	{WIRE_NOTE, ERR_BAD_BODY, "{'op': " ID ", 'state': 7}"},
	{WIRE_GOAWAY, 0, "{'why': 'drain'}"},
};

static uint8_t body[1 << 16], copy[1 << 16];

static void table(void)
{
	for (size_t i = 0; i < sizeof rules / sizeof rules[0]; i++) {
		size_t length = pack(rules[i].text, body, sizeof body);
		int code = sample_read(rules[i].type, body, length, NULL, copy, sizeof copy, NULL);
		if (!EXPECT(code == -rules[i].code))
			printf("# %d for %s\n", code, rules[i].text);
	}
}

/* Counts that are too long to be written down. */
static int many(const char *method, const char *key, const char *element, uint32_t count)
{
	struct wire_writer w;
	uint8_t one[256];
	size_t length = pack(element, one, sizeof one);
	wire_writer_init(&w, body, sizeof body);
	wire_put_map(&w, strcmp(method, "session.open") ? 3 : 2);
	wire_put_text(&w, "m");
	wire_put_text(&w, method);
	if (strcmp(method, "session.open")) {
		wire_put_text(&w, "sess");
		wire_put_bin(&w, "0123456789abcdef", 16);
	}
	wire_put_text(&w, "a");
	wire_put_map(&w, 1);
	wire_put_text(&w, key);
	wire_put_array(&w, count);
	for (uint32_t i = 0; i < count; i++)
		wire_put_value(&w, (struct wire_value){one, length});
	CHECK(!w.full);
	return sample_read(WIRE_CALL, body, w.length, NULL, copy, sizeof copy, NULL);
}

static void bounds(void)
{
	const char *said = "{'role': 'user', 'content': ''}";
	const char *calls = "{'role': 'assistant', 'tool_calls': ["
		"{'id': 'i', 'name': 'n', 'arguments': ''}, {'id': 'i', 'name': 'n', 'arguments': ''}]}";
	const char *done = "{'tool_call_id': 'i', 'content': ''}";
	EXPECT_EQ(many("session.turn", "messages", said, WIRE_MESSAGES_MAX), 0);
	EXPECT_EQ(many("session.turn", "messages", said, WIRE_MESSAGES_MAX + 1), -ERR_OUT_OF_RANGE);
	EXPECT_EQ(many("session.turn", "messages", calls, WIRE_MESSAGES_MAX / 2), 0);
	EXPECT_EQ(many("session.turn", "messages", calls, WIRE_MESSAGES_MAX / 2 + 1),
		-ERR_OUT_OF_RANGE);
	EXPECT_EQ(many("session.continue", "results", done, WIRE_MESSAGES_MAX), 0);
	EXPECT_EQ(many("session.continue", "results", done, WIRE_MESSAGES_MAX + 1),
		-ERR_OUT_OF_RANGE);
	EXPECT_EQ(many("session.open", "tools", "'{}'", WIRE_TOOLS_MAX), 0);
	EXPECT_EQ(many("session.open", "tools", "'{}'", WIRE_TOOLS_MAX + 1), -ERR_OUT_OF_RANGE);
}

/* The rows between the two marks of the README: | TYPE | hex | code | JSON |. */
static bool vector(char *line, int *rows)
{
	char *type = strtok(line, "|"), *hex = strtok(NULL, "|"), *code = strtok(NULL, "|");
	char *json = strtok(NULL, "");
	static char out[4096];
	size_t length = 0;
	if (!json)
		return false;
	for (const char *h = hex; *h; h++) {
		char two[3] = {h[0], h[1], 0};
		if (*h == ' ' || *h == '`')
			continue;
		body[length++] = (uint8_t)strtoul(two, NULL, 16);
		h++;
	}
	int got = sample_read((uint8_t)strtoul(type, NULL, 16), body, length, NULL, NULL, 0, NULL);
	(*rows)++;
	char want[64] = "";
	sscanf(code, " %63s", want);
	if (strcmp(want, err_name(got)) != 0) {
		printf("# %s: got %s, the README says %s\n", hex, err_name(got), want);
		return false;
	}
	if (got != 0)
		return true;
	wire_json((struct wire_value){body, length}, out, sizeof out);
	if (strstr(json, out))
		return true;
	printf("# %s: got %s, the README says %s\n", hex, out, json);
	return false;
}

static void vectors(void)
{
	const char *srcdir = getenv("SRCDIR");
	char path[4096], line[4096];
	int rows = 0, inside = 0;
	snprintf(path, sizeof path, "%s/clients/README.md", srcdir ? srcdir : ".");
	FILE *f = fopen(path, "r");
	REQUIRE(f != NULL);
	while (fgets(line, sizeof line, f)) {
		if (strstr(line, "<!-- vectors"))
			inside = 1;
		else if (strstr(line, "<!-- end"))
			inside = 0;
		else if (inside && strncmp(line, "| 0x", 4) == 0)
			EXPECT(vector(line, &rows));
	}
	fclose(f);
	EXPECT(rows >= 20);
}

/* A row of the headers in tests/data/ar1-talks.json: ["hex", {"type": …}] or ["hex", "error"]. */
static int header_row(const char *line)
{
	uint8_t bytes[64];
	size_t length = 0;
	unsigned type = 0, flags = 0;
	unsigned long long channel = 0, seq = 0;
	char error[32] = "";
	struct wire_header h;
	const char *at = strchr(line, '"') + 1;
	for (unsigned byte; *at != '"' && sscanf(at, "%2x", &byte) == 1; at += 2)
		bytes[length++] = (uint8_t)byte;
	const int good = sscanf(at, "\", {\"type\": %u, \"flags\": %u, \"channel\": %llu, \"seq\": %llu", &type,
				&flags, &channel, &seq) == 4;
	const int code = wire_header_read(bytes, length, &h);
	if (!good)
		return sscanf(at, "\", \"%31[a-z_]\"", error) == 1 && code < 0 && strcmp(err_name(-code), error) == 0;
	return code == 0 && h.type == type && h.flags == flags && h.channel == channel && h.seq == seq;
}

static void headers(void)
{
	const char *srcdir = getenv("SRCDIR");
	static char path[4096], line[8192];
	int rows = 0, inside = 0;
	snprintf(path, sizeof path, "%s/tests/data/ar1-talks.json", srcdir ? srcdir : ".");
	FILE *f = fopen(path, "r");
	REQUIRE(f != NULL);
	while (fgets(line, sizeof line, f)) {
		inside |= strncmp(line, "\"headers\"", 9) == 0;
		if (!inside || strncmp(line, " [\"", 3) != 0)
			continue;
		rows++;
		if (!EXPECT(header_row(line)))
			printf("# %s", line);
	}
	fclose(f);
	EXPECT(rows >= 10);
}

int main(void)
{
	TAP_RUN(table, "what is refused, and with which code");
	TAP_RUN(bounds, "counts on both sides of their bounds");
	TAP_RUN(vectors, "the vectors of clients/README.md");
	TAP_RUN(headers, "the headers of tests/data/ar1-talks.json");
	return tap_done();
}
