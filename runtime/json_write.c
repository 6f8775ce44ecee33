/*
 * JSON out, in the form that chat templates were trained on: Python's json.dumps with
 * ensure_ascii=False.
 */
#include "runtime/json.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/tokenizer.h"

int json_write_raw(const char *bytes, size_t length, struct json_out *out)
{
	if (length > JSON_BYTES_MAX - out->length)
		return -ERR_TOO_BIG;
	if (out->length + length > out->capacity) {
		size_t capacity = out->capacity ? out->capacity : 256;
		while (capacity < out->length + length)
			capacity *= 2;
		char *grown = realloc(out->bytes, capacity);
		if (!grown)
			return -ERR_MEMORY;
		out->bytes = grown;
		out->capacity = capacity;
	}
	if (length > 0)
		memcpy(out->bytes + out->length, bytes, length);
	out->length += length;
	return 0;
}

static int write_escaped(const char *text, size_t length, struct json_out *out)
{
	static const char from[] = "\"\\\b\f\n\r\t", to[] = "\"\\bfnrt";
	TRY(json_write_raw("\"", 1, out));
	for (size_t i = 0, start = 0; i <= length; i++) {
		char escape[8];
		bool end = i == length;
		if (!end && (uint8_t)text[i] >= 0x20 && text[i] != '"' && text[i] != '\\')
			continue;
		TRY(json_write_raw(text + start, i - start, out));
		start = i + 1;
		if (end)
			break;
		const char *known = text[i] ? strchr(from, text[i]) : NULL;
		if (known)
			snprintf(escape, sizeof escape, "\\%c", to[known - from]);
		else
			snprintf(escape, sizeof escape, "\\u%04x", (unsigned)(uint8_t)text[i]);
		TRY(json_write_raw(escape, strlen(escape), out));
	}
	return json_write_raw("\"", 1, out);
}

int json_write_string(const char *text, size_t length, struct json_out *out)
{
	if (length > JSON_BYTES_MAX / 3)
		return -ERR_TOO_BIG;
	char *clean = malloc(length * 3 + 1);
	if (!clean)
		return -ERR_MEMORY;
	struct utf8_stream stream = {0};
	size_t n = utf8_stream_push(&stream, text, length, true, true, clean);
	int code = write_escaped(clean, n, out);
	free(clean);
	return code;
}

static int write_string(struct json string, struct json_out *out)
{
	char *plain = malloc(string.length);
	if (!plain)
		return -ERR_MEMORY;
	int code = write_escaped(plain, json_string(string, plain), out);
	free(plain);
	return code;
}

/* Python's repr of a float: the shortest digits that read back as the same, in plain notation for
   exponents of -4 to 15. */
static int write_float(double value, struct json_out *out)
{
	char digits[40], text[64];
	for (int precision = 0; precision < 17; precision++) {
		snprintf(digits, sizeof digits, "%.*e", precision, value);
		if (strtod(digits, NULL) == value)
			break;
	}
	/* digits is now [-]d[.ddd]e±dd. */
	char *e = strchr(digits, 'e');
	int exponent = atoi(e + 1);
	if (exponent >= -4 && exponent < 16) {
		char *point = strchr(digits, '.');
		int decimals = point ? (int)(e - point) - 1 : 0;
		decimals = decimals > exponent ? decimals - exponent : 1;
		snprintf(text, sizeof text, "%.*f", decimals, value);
		return json_write_raw(text, strlen(text), out);
	}
	TRY(json_write_raw(digits, (size_t)(e - digits), out));
	snprintf(text, sizeof text, "e%c%02d", exponent < 0 ? '-' : '+', abs(exponent));
	return json_write_raw(text, strlen(text), out);
}

static int write_number(struct json number, struct json_out *out)
{
	double value = 0;
	bool integer = true;
	for (size_t i = 0; i < number.length; i++)
		integer &= !strchr(".eE", number.at[i]);
	if (integer && number.length == 2 && !memcmp(number.at, "-0", 2))
		return json_write_raw("0", 1, out);
	/* A float of more digits than any double has keeps its own form, and so does one too large
	   for a double: Python would write Infinity, which is not JSON. */
	if (integer || !json_real(number, &value) || isinf(value))
		return json_write_raw(number.at, number.length, out);
	return write_float(value, out);
}

int json_write(struct json value, struct json_out *out)
{
	/* The tokens of a valid value need no nesting: each is written as it comes, white space
	   dropped and put back after ',' and ':'. */
	const char *at = value.at, *end = value.at + value.length;
	while (at < end) {
		struct json token = {at, 1};
		switch (*at) {
		case ' ': case '\t': case '\n': case '\r':
			break;
		case ',':
			TRY(json_write_raw(", ", 2, out));
			break;
		case ':':
			TRY(json_write_raw(": ", 2, out));
			break;
		case '{': case '}': case '[': case ']':
			TRY(json_write_raw(at, 1, out));
			break;
		case '"':
			while (at[token.length] != '"')
				token.length += at[token.length] == '\\' ? 2 : 1;
			token.length++;
			TRY(write_string(token, out));
			break;
		default:
			while (at + token.length < end && !strchr(" \t\n\r,:]}", at[token.length]))
				token.length++;
			if (json_kind(token) == JSON_NUMBER)
				TRY(write_number(token, out));
			else
				TRY(json_write_raw(at, token.length, out));
		}
		at += token.length;
	}
	return 0;
}
