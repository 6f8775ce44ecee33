/*
 * A reader for one shape of JSON. Values it has no use for are passed over with a bounded depth.
 */
#include "runtime/cases.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sched/check.h"

struct reader {
	const char *text;
	size_t at, length;
	char *reason;
};

static int refuse(const struct reader *r, const char *what)
{
	snprintf(r->reason, CASES_REASON_MAX, "byte %zu: %s is expected", r->at, what);
	return -ERR_BAD_FILE;
}

static char peek(struct reader *r)
{
	while (r->at < r->length && strchr(" \t\r\n", r->text[r->at]) && r->text[r->at])
		r->at++;
	return r->at < r->length ? r->text[r->at] : '\0';
}

static bool take(struct reader *r, char c)
{
	if (peek(r) != c || r->at >= r->length)
		return false;
	r->at++;
	return true;
}

/* The bytes between a string's quotes, escapes as they stand. */
static int read_string(struct reader *r, const char **at, size_t *length)
{
	if (!take(r, '"'))
		return refuse(r, "a string");
	const size_t from = r->at;
	for (; r->at < r->length && r->text[r->at] != '"'; r->at++) {
		if ((unsigned char)r->text[r->at] < 0x20)
			return refuse(r, "no control character");
		if (r->text[r->at] == '\\' && r->at + 1 < r->length)
			r->at++;
	}
	if (r->at >= r->length)
		return refuse(r, "the end of a string");
	*at = r->text + from;
	*length = r->at++ - from;
	return 0;
}

static int read_number(struct reader *r, uint32_t *out)
{
	uint64_t n = 0;
	char c = peek(r);
	if (c < '0' || c > '9')
		return refuse(r, "a number from 0 on");
	for (; r->at < r->length && r->text[r->at] >= '0' && r->text[r->at] <= '9'; r->at++) {
		n = 10 * n + (uint64_t)(r->text[r->at] - '0');
		if (n >= UINT32_MAX)
			return refuse(r, "a number of 32 bits");
	}
	if (r->at < r->length && strchr(".eE", r->text[r->at]) && r->text[r->at])
		return refuse(r, "a whole number");
	*out = (uint32_t)n;
	return 0;
}

static int read_tokens(struct reader *r, struct case_tokens *c)
{
	uint32_t room = 0;
	free(c->tokens); /* of two lists in one case the last counts */
	c->tokens = NULL;
	c->count = 0;
	if (!take(r, '['))
		return refuse(r, "a list of token ids");
	if (take(r, ']'))
		return 0;
	do {
		if (c->count == room) {
			room = room ? 2 * room : 64;
			uint32_t *more = realloc(c->tokens, room * sizeof *more);
			if (!more)
				return -ERR_MEMORY;
			c->tokens = more;
		}
		TRY(read_number(r, &c->tokens[c->count]));
		c->count++;
	} while (take(r, ','));
	return take(r, ']') ? 0 : refuse(r, "a comma or the list's end");
}

/* Passes over any value: brackets are counted, strings respected, the rest not judged. */
static int skip_value(struct reader *r)
{
	uint32_t depth = 0;
	const char *at;
	size_t length;
	do {
		char c = peek(r);
		if (c == '\0')
			return refuse(r, "a value");
		if (c == '"') {
			TRY(read_string(r, &at, &length));
			continue;
		}
		if (c == '[' || c == '{') {
			if (++depth > CASES_DEPTH_MAX)
				return refuse(r, "less nesting");
		} else if (c == ']' || c == '}') {
			if (depth == 0)
				return refuse(r, "a value");
			depth--;
		} else if (depth == 0) {
			while (r->at < r->length && !strchr(",]} \t\r\n", r->text[r->at]))
				r->at++;
			return 0;
		}
		r->at++;
	} while (depth > 0);
	return 0;
}

static int read_case(struct reader *r, struct case_tokens *c)
{
	if (!take(r, '{'))
		return refuse(r, "an object");
	if (take(r, '}'))
		return refuse(r, "\"tokens\"");
	do {
		const char *key;
		size_t length;
		TRY(read_string(r, &key, &length));
		if (!take(r, ':'))
			return refuse(r, "a colon");
		if (length == 4 && memcmp(key, "name", 4) == 0)
			TRY(read_string(r, &c->name, &c->name_length));
		else if (length == 6 && memcmp(key, "tokens", 6) == 0)
			TRY(read_tokens(r, c));
		else if (length == 8 && memcmp(key, "generate", 8) == 0)
			TRY(read_number(r, &c->generate));
		else
			TRY(skip_value(r));
	} while (take(r, ','));
	if (!take(r, '}'))
		return refuse(r, "a comma or the object's end");
	return c->count > 0 ? 0 : refuse(r, "\"tokens\" with at least one id");
}

int cases_read(const char *text, size_t length, struct cases *out, char *reason)
{
	struct reader r = {.text = text, .length = length, .reason = reason};
	uint32_t room = 0;
	int err = 0;
	*out = (struct cases){0};
	snprintf(reason, CASES_REASON_MAX, "no memory");
	if (!take(&r, '[')) {
		err = refuse(&r, "a list of cases");
	} else if (!take(&r, ']')) {
		do {
			if (out->count == room) {
				room = room ? 2 * room : 16;
				struct case_tokens *more = realloc(out->at, room * sizeof *more);
				if (!more) {
					err = -ERR_MEMORY;
					break;
				}
				out->at = more;
			}
			out->at[out->count] = (struct case_tokens){.name = ""};
			err = read_case(&r, &out->at[out->count++]);
		} while (err == 0 && take(&r, ','));
		if (err == 0 && !take(&r, ']'))
			err = refuse(&r, "a comma or the list's end");
	}
	if (err == 0) {
		peek(&r);
		if (r.at != r.length)
			err = refuse(&r, "nothing after the list");
	}
	if (err != 0)
		cases_free(out);
	return err;
}

void cases_free(struct cases *cases)
{
	for (uint32_t i = 0; i < cases->count; i++)
		free(cases->at[i].tokens);
	free(cases->at);
	*cases = (struct cases){0};
}
