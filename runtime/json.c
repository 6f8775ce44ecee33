/*
 * The checker is a state machine over bytes with one bit a level for "object or array", so that a
 * depth of 64 is one word and nothing recurses.
 */
#include "runtime/json.h"

#include <stdlib.h>
#include <string.h>

#include "runtime/unicode.h"
#include "sched/check.h"

static bool is_space(char c)
{
	return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

static bool is_digit(char c)
{
	return c >= '0' && c <= '9';
}

static const char *skip_space(const char *at, const char *end)
{
	while (at < end && is_space(*at))
		at++;
	return at;
}

/* Each reader below takes a token that begins at *at, leaves *at behind it, and says whether it is
   whole, cut off by the end of the text, or wrong. */

static enum json_scan read_literal(const char **at, const char *end, const char *literal)
{
	for (; *literal; literal++, ++*at) {
		if (*at == end)
			return JSON_PART;
		if (**at != *literal)
			return JSON_WRONG;
	}
	return JSON_WHOLE;
}

static enum json_scan read_digits(const char **at, const char *end)
{
	const char *start = *at;
	while (*at < end && is_digit(**at))
		++*at;
	if (*at > start)
		return JSON_WHOLE;
	return *at == end ? JSON_PART : JSON_WRONG;
}

static enum json_scan read_number(const char **at, const char *end, bool final)
{
	enum json_scan scan;
	if (**at == '-')
		++*at;
	if (*at < end && **at == '0')
		++*at;
	else if ((scan = read_digits(at, end)) != JSON_WHOLE)
		return scan;
	if (*at < end && **at == '.') {
		++*at;
		if ((scan = read_digits(at, end)) != JSON_WHOLE)
			return scan;
	}
	if (*at < end && (**at == 'e' || **at == 'E')) {
		++*at;
		if (*at < end && (**at == '+' || **at == '-'))
			++*at;
		if ((scan = read_digits(at, end)) != JSON_WHOLE)
			return scan;
	}
	return *at == end && !final ? JSON_PART : JSON_WHOLE;
}

static int hex_value(char c)
{
	if (is_digit(c))
		return c - '0';
	c = (char)(c | 0x20);
	return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* The four hexadecimal digits of an escape. */
static enum json_scan read_hex(const char **at, const char *end, uint32_t *value)
{
	*value = 0;
	for (unsigned i = 0; i < 4; i++, ++*at) {
		if (*at == end)
			return JSON_PART;
		int digit = hex_value(**at);
		if (digit < 0)
			return JSON_WRONG;
		*value = *value << 4 | (uint32_t)digit;
	}
	return JSON_WHOLE;
}

/* An escape, *at at its backslash. Half a surrogate pair is wrong: it is no character. */
static enum json_scan read_escape(const char **at, const char *end, uint32_t *character)
{
	static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
	enum json_scan scan;
	uint32_t low;
	if (++*at == end)
		return JSON_PART;
	char c = *(*at)++;
	const char *known = c ? strchr(from, c) : NULL;
	if (known) {
		*character = (uint8_t)to[known - from];
		return JSON_WHOLE;
	}
	if (c != 'u')
		return JSON_WRONG;
	if ((scan = read_hex(at, end, character)) != JSON_WHOLE)
		return scan;
	if (*character < 0xd800 || *character > 0xdfff)
		return JSON_WHOLE;
	if (*character > 0xdbff)
		return JSON_WRONG;
	if ((scan = read_literal(at, end, "\\u")) != JSON_WHOLE)
		return scan;
	if ((scan = read_hex(at, end, &low)) != JSON_WHOLE)
		return scan;
	if (low < 0xdc00 || low > 0xdfff)
		return JSON_WRONG;
	*character = 0x10000 + ((*character - 0xd800) << 10) + (low - 0xdc00);
	return JSON_WHOLE;
}

/* One well-formed character above U+007F (Unicode, table 3-7). */
static enum json_scan read_character(const char **at, const char *end)
{
	uint8_t first = (uint8_t)**at, least = 0x80, most = 0xbf;
	if (first < 0xc2 || first > 0xf4)
		return JSON_WRONG;
	unsigned more = first < 0xe0 ? 1 : first < 0xf0 ? 2 : 3;
	if (first == 0xe0)
		least = 0xa0;
	if (first == 0xed)
		most = 0x9f;
	if (first == 0xf0)
		least = 0x90;
	if (first == 0xf4)
		most = 0x8f;
	for (++*at; more > 0; more--, ++*at) {
		if (*at == end)
			return JSON_PART;
		uint8_t byte = (uint8_t)**at;
		if (byte < least || byte > most)
			return JSON_WRONG;
		least = 0x80;
		most = 0xbf;
	}
	return JSON_WHOLE;
}

static enum json_scan read_string(const char **at, const char *end)
{
	enum json_scan scan = JSON_WHOLE;
	uint32_t character;
	for (++*at; *at < end;) {
		uint8_t c = (uint8_t)**at;
		if (c == '"') {
			++*at;
			return JSON_WHOLE;
		}
		if (c < 0x20)
			return JSON_WRONG;
		if (c == '\\')
			scan = read_escape(at, end, &character);
		else if (c >= 0x80)
			scan = read_character(at, end);
		else
			++*at;
		if (scan != JSON_WHOLE)
			return scan;
	}
	return JSON_PART;
}

static enum json_scan read_scalar(const char **at, const char *end, bool final)
{
	switch (**at) {
	case '"':
		return read_string(at, end);
	case 't':
		return read_literal(at, end, "true");
	case 'f':
		return read_literal(at, end, "false");
	case 'n':
		return read_literal(at, end, "null");
	default:
		if (**at == '-' || is_digit(**at))
			return read_number(at, end, final);
		return JSON_WRONG;
	}
}

/* What may come next in the text. */
enum expect { A_VALUE, A_VALUE_OR_END, A_KEY, A_KEY_OR_END, A_COLON, A_COMMA_OR_END };

struct nesting {
	uint64_t objects; /* bit 0: the innermost is an object */
	unsigned depth;
};

/* A bracket or brace that opens or closes. */
static enum json_scan read_bracket(char c, struct nesting *in, enum expect *expect)
{
	if (c == '{' || c == '[') {
		if (in->depth == JSON_DEPTH_MAX)
			return JSON_DEEP;
		in->depth++;
		in->objects = in->objects << 1 | (c == '{');
		*expect = c == '{' ? A_KEY_OR_END : A_VALUE_OR_END;
		return JSON_WHOLE;
	}
	if (in->depth == 0 || (in->objects & 1) != (c == '}'))
		return JSON_WRONG;
	in->depth--;
	in->objects >>= 1;
	*expect = A_COMMA_OR_END;
	return JSON_WHOLE;
}

static enum json_scan read_token(const char **at, const char *end, bool final,
				 struct nesting *in, enum expect *expect)
{
	char c = **at;
	bool value = *expect == A_VALUE || *expect == A_VALUE_OR_END;
	if (((c == '{' || c == '[') && value) ||
	    ((c == '}' || c == ']') && (*expect == A_COMMA_OR_END || *expect == A_KEY_OR_END ||
					*expect == A_VALUE_OR_END))) {
		++*at;
		return read_bracket(c, in, expect);
	}
	if (value) {
		*expect = A_COMMA_OR_END;
		return read_scalar(at, end, final);
	}
	if ((*expect == A_KEY || *expect == A_KEY_OR_END) && c == '"') {
		*expect = A_COLON;
		return read_string(at, end);
	}
	if (*expect == A_COLON && c == ':') {
		++*at;
		*expect = A_VALUE;
		return JSON_WHOLE;
	}
	if (*expect == A_COMMA_OR_END && c == ',' && in->depth > 0) {
		++*at;
		*expect = in->objects & 1 ? A_KEY : A_VALUE;
		return JSON_WHOLE;
	}
	return JSON_WRONG;
}

/* *stopped: behind what was read. */
static enum json_scan scan_from(const char *text, size_t length, bool final, struct json *out,
		const char **stopped)
{
	const char *end = text + length, *at = skip_space(text, end);
	struct nesting in = {0};
	enum expect expect = A_VALUE;
	enum json_scan scan = JSON_WHOLE;
	out->at = at;
	do {
		at = skip_space(at, end);
		scan = at == end ? JSON_PART : read_token(&at, end, final, &in, &expect);
	} while (scan == JSON_WHOLE && in.depth > 0);
	out->length = (size_t)(at - out->at);
	*stopped = at;
	return scan;
}

enum json_scan json_scan(const char *text, size_t length, bool final, struct json *out)
{
	const char *stopped;
	return scan_from(text, length, final, out, &stopped);
}

size_t json_wrong_at(const char *text, size_t length)
{
	const char *stopped;
	struct json value;
	if (scan_from(text, length, true, &value, &stopped) == JSON_WHOLE)
		stopped = skip_space(stopped, text + length);
	return (size_t)(stopped - text);
}

int json_check(const char *text, size_t length, struct json *out)
{
	if (length > JSON_BYTES_MAX)
		return -ERR_TOO_BIG;
	const enum json_scan scan = json_scan(text, length, true, out);
	if (scan != JSON_WHOLE)
		return scan == JSON_DEEP ? -ERR_OUT_OF_RANGE : -ERR_BAD_ARG;
	const char *end = text + length;
	return skip_space(out->at + out->length, end) == end ? 0 : -ERR_BAD_ARG;
}

enum json_kind json_kind(struct json value)
{
	CHECK(value.length > 0);
	switch (value.at[0]) {
	case '{': return JSON_OBJECT;
	case '[': return JSON_ARRAY;
	case '"': return JSON_STRING;
	case 'n': return JSON_NULL;
	case 't':
	case 'f': return JSON_BOOL;
	default: return JSON_NUMBER;
	}
}

bool json_true(struct json value)
{
	return value.at[0] == 't';
}

struct json_walk json_walk(struct json value)
{
	enum json_kind kind = json_kind(value);
	if (kind != JSON_OBJECT && kind != JSON_ARRAY)
		return (struct json_walk){value.at, value.at, false};
	return (struct json_walk){value.at + 1, value.at + value.length - 1, kind == JSON_OBJECT};
}

/* The end of the valid value that begins at `at`. */
static const char *value_end(const char *at, const char *end)
{
	unsigned depth = 0;
	do {
		at = skip_space(at, end);
		if (*at == '"') {
			for (at++; *at != '"'; at++)
				at += *at == '\\';
			at++;
		} else if (*at == '{' || *at == '[' || *at == '}' || *at == ']') {
			depth += *at == '{' || *at == '[' ? 1 : UINT32_MAX;
			at++;
		} else if (*at == ',' || *at == ':') {
			at++;
		} else {
			while (at < end && !is_space(*at) && !strchr(",:]}", *at))
				at++;
		}
	} while (depth > 0);
	return at;
}

bool json_next(struct json_walk *walk, struct json *key, struct json *value)
{
	walk->at = skip_space(walk->at, walk->end);
	if (walk->at < walk->end && *walk->at == ',')
		walk->at = skip_space(walk->at + 1, walk->end);
	if (walk->at >= walk->end)
		return false;
	struct json name = {walk->at, 0};
	if (walk->object) {
		walk->at = value_end(walk->at, walk->end);
		name.length = (size_t)(walk->at - name.at);
		walk->at = skip_space(walk->at, walk->end);
		walk->at = skip_space(walk->at + 1, walk->end);
	}
	if (key)
		*key = name;
	value->at = walk->at;
	walk->at = value_end(walk->at, walk->end);
	value->length = (size_t)(walk->at - value->at);
	return true;
}

bool json_find(struct json object, const char *key, struct json *value)
{
	struct json_walk walk = json_walk(object);
	struct json name, member;
	bool found = false;
	while (walk.object && json_next(&walk, &name, &member)) {
		if (!json_equals(name, key, strlen(key)))
			continue;
		*value = member;
		found = true;
	}
	return found;
}

/* Takes the next piece of a valid string: its bytes in form, which has room for 4. *at moves on;
   returns 0 at the end. */
static size_t string_piece(const char **at, const char *end, char form[4])
{
	if (*at == end)
		return 0;
	if (**at != '\\') {
		form[0] = *(*at)++;
		return 1;
	}
	uint32_t c;
	CHECK(read_escape(at, end, &c) == JSON_WHOLE);
	return character_write(c, (uint8_t *)form);
}

bool json_equals(struct json value, const char *text, size_t length)
{
	if (json_kind(value) != JSON_STRING)
		return false;
	const char *at = value.at + 1, *end = value.at + value.length - 1;
	char form[4];
	size_t done = 0, n;
	while ((n = string_piece(&at, end, form)) > 0) {
		if (n > length - done || memcmp(form, text + done, n))
			return false;
		done += n;
	}
	return done == length;
}

bool json_same(struct json a, struct json b)
{
	CHECK(json_kind(a) == JSON_STRING);
	CHECK(json_kind(b) == JSON_STRING);
	const char *at[2] = {a.at + 1, b.at + 1};
	const char *end[2] = {a.at + a.length - 1, b.at + b.length - 1};
	char form[2][4];
	size_t have[2] = {0}, used[2] = {0};
	for (;;) {
		for (int i = 0; i < 2; i++) {
			if (used[i] < have[i])
				continue;
			have[i] = string_piece(&at[i], end[i], form[i]);
			used[i] = 0;
		}
		if (have[0] == 0 || have[1] == 0)
			return have[0] == have[1];
		if (form[0][used[0]++] != form[1][used[1]++])
			return false;
	}
}

size_t json_string(struct json string, char *to)
{
	CHECK(json_kind(string) == JSON_STRING);
	const char *at = string.at + 1, *end = string.at + string.length - 1;
	char form[4];
	size_t done = 0, n;
	while ((n = string_piece(&at, end, form)) > 0) {
		memcpy(to + done, form, n);
		done += n;
	}
	return done;
}

bool json_integer(struct json number, int64_t least, int64_t most, int64_t *out)
{
	if (json_kind(number) != JSON_NUMBER)
		return false;
	bool negative = number.at[0] == '-';
	int64_t value = 0;
	for (size_t i = negative; i < number.length; i++) {
		if (!is_digit(number.at[i]) || __builtin_mul_overflow(value, 10, &value) ||
		    __builtin_sub_overflow(value, number.at[i] - '0', &value))
			return false;
	}
	/* Gathered below zero, where there is one more. */
	if (!negative && __builtin_sub_overflow((int64_t)0, value, &value))
		return false;
	*out = value;
	return value >= least && value <= most;
}

bool json_real(struct json number, double *out)
{
	char text[JSON_REAL_BYTES + 1];
	if (json_kind(number) != JSON_NUMBER || number.length > JSON_REAL_BYTES)
		return false;
	memcpy(text, number.at, number.length); /* strtod looks for an end */
	text[number.length] = 0;
	*out = strtod(text, NULL);
	return true;
}
