/*
 * Forms for a script: a request a line on stdin, an answer a line on stdout, both JSON.
 *
 *	{"kind": "schema" | "regex" | "choices", "text": …, "walks": n, "seed": n, "string_max": n,
 *	 "accept": [text …]}
 *	{"code": "ok", "texts": [text …], "accepts": [whole: bool …]}
 *	{"code": "unsupported", "reason": …}
 *
 * A walk takes tokens at random from each mask; a text is tried whole, byte by byte, and cut into tokens
 * of the vocabulary at random: each of these must be of the masks.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/form.h"
#include "runtime/json.h"
#include "sched/check.h"
#include "tests/form_vocabulary.h"

enum { LINE_MAX_BYTES = 4 << 20, TEXT_MAX = 1 << 20, LIVELY_BYTES = 400 };

static struct tokenizer *tokenizer;
static struct form_index *index_;
static uint32_t *bits;
static uint64_t seed;

static uint32_t draw(uint32_t below)
{
	seed = seed * 6364136223846793005u + 1442695040888963407u;
	return (uint32_t)(seed >> 33) % below;
}

static bool allowed(uint32_t id)
{
	return bits[id / 32] >> id % 32 & 1;
}

/* One of the mask; late: one that is short, and rather one that closes something. */
static uint32_t pick(uint32_t allowed_count, bool late)
{
	static const char close[] = "\"]}0\\u";
	const uint32_t count = tokenizer_count(tokenizer);
	uint32_t best = UINT32_MAX, shorts = 0, skip = draw(allowed_count);
	const bool closing = draw(2) == 0;
	const char *bytes;
	for (uint32_t id = 0; id < count; id++) {
		if (!allowed(id))
			continue;
		if (!late && skip-- == 0)
			return id;
		if (!late)
			continue;
		if (tokenizer_is_end(tokenizer, id))
			return id;
		size_t n = tokenizer_bytes(tokenizer, id, false, &bytes);
		if (closing && n == 1 && bytes[0] && strchr(close, bytes[0]) && draw(4) > 0)
			return id;
		if (best == UINT32_MAX || (n == 1 && draw(++shorts) == 0))
			best = id;
	}
	return best;
}

/* A walk; its length, or SIZE_MAX if it did not end. */
static size_t walk(struct form *form, char *text)
{
	struct form_state s;
	size_t length = 0;
	form_start(form, &s);
	for (unsigned steps = 0; steps < 40000; steps++) {
		const char *bytes;
		const uint32_t count = form_mask(form, &s, bits);
		const uint32_t id = pick(count, length > LIVELY_BYTES || draw(8) == 0);
		if (tokenizer_is_end(tokenizer, id)) {
			CHECK(form_complete(form, &s));
			return length;
		}
		const size_t n = tokenizer_bytes(tokenizer, id, false, &bytes);
		if (length + n > TEXT_MAX)
			return SIZE_MAX;
		/* What a mask allows is of the form. */
		CHECK(form_advance(form, &s, bytes, n));
		memcpy(text + length, bytes, n);
		length += n;
	}
	return SIZE_MAX;
}

/* Cuts the text into tokens, bytes (way 0), as long as can be (1), or of any length; each must be of
   the mask. */
static bool takes(struct form *form, const char *text, size_t length, unsigned way)
{
	const uint32_t count = tokenizer_count(tokenizer);
	struct form_state s;
	form_start(form, &s);
	for (size_t at = 0; at < length;) {
		uint32_t chosen = UINT32_MAX, seen = 0;
		size_t taken = 0;
		for (uint32_t id = 0; id < count; id++) {
			const char *bytes;
			const size_t n = tokenizer_bytes(tokenizer, id, false, &bytes);
			if (n == 0 || n > length - at || memcmp(bytes, text + at, n) ||
			    tokenizer_is_control(tokenizer, id))
				continue;
			if (way == 0 ? n == 1 : way == 1 ? n > taken : draw(++seen) == 0) {
				chosen = id;
				taken = n;
			}
		}
		if (chosen == UINT32_MAX)
			return false;
		form_mask(form, &s, bits);
		struct form_state after = s;
		const bool goes_on = form_advance(form, &after, text + at, taken);
		/* The mask and the bytes must say the same. */
		CHECK(goes_on == allowed(chosen));
		if (!goes_on)
			return false;
		s = after;
		at += taken;
	}
	form_mask(form, &s, bits);
	for (uint32_t id = 0; id < count; id++)
		if (tokenizer_is_end(tokenizer, id) && allowed(id))
			return form_complete(form, &s);
	return false;
}

/* 0: no cut is taken; 1: every; 2: some. */
static int takes_all_ways(struct form *form, const char *text, size_t length)
{
	unsigned yes = 0;
	for (unsigned way = 0; way < 5; way++)
		yes += takes(form, text, length, way);
	return yes == 0 ? 0 : yes == 5 ? 1 : 2;
}

static int64_t number(struct json object, const char *key, int64_t absent)
{
	struct json value;
	int64_t n;
	return json_find(object, key, &value) && json_integer(value, 0, INT64_MAX, &n) ? n : absent;
}

static int open_form(struct json request, struct form **form, const char **reason)
{
	static struct text choice[FORM_CHOICES_MAX];
	struct json kind, text, item;
	CHECK(json_find(request, "kind", &kind) && json_find(request, "text", &text));
	char *room = malloc(text.length + 1), *at = room;
	int code;
	CHECK(room);
	if (json_equals(kind, "choices", 7)) {
		uint32_t count = 0;
		struct json_walk w = json_walk(text);
		while (json_next(&w, NULL, &item)) {
			choice[count].at = at;
			choice[count].length = json_string(item, at);
			at += choice[count++].length;
		}
		code = form_open_choices(index_, choice, count, form, reason);
	} else {
		const struct text one = {room, json_string(text, room)};
		if (json_equals(kind, "schema", 6))
			code = form_open_schema(index_, one, (uint32_t)number(request, "string_max", 200), form, reason);
		else
			code = form_open_regex(index_, one, form, reason);
	}
	free(room);
	return code;
}

static void answer(struct json request, char *text)
{
	struct json_out out = {0};
	struct json accept, item;
	struct form *form;
	const char *reason;
	const int code = open_form(request, &form, &reason);
	if (code != 0) {
		CHECK(reason);
		printf("{\"code\": \"%s\", \"reason\": ", err_name(code));
		json_write_string(reason, strlen(reason), &out);
		printf("%.*s}\n", (int)out.length, out.bytes);
		free(out.bytes);
		return;
	}
	seed = (uint64_t)number(request, "seed", 1) * 977;
	printf("{\"code\": \"ok\", \"texts\": [");
	for (int64_t i = 0, n = number(request, "walks", 0); i < n; i++) {
		const size_t length = walk(form, text);
		out.length = 0;
		if (length == SIZE_MAX)
			json_write_raw("null", 4, &out);
		else
			json_write_string(text, length, &out);
		printf("%s%.*s", i ? ", " : "", (int)out.length, out.bytes);
	}
	printf("], \"accepts\": [");
	if (json_find(request, "accept", &accept)) {
		struct json_walk w = json_walk(accept);
		for (bool first = true; json_next(&w, NULL, &item); first = false) {
			const size_t length = json_string(item, text);
			printf("%s%d", first ? "" : ", ", takes_all_ways(form, text, length));
		}
	}
	printf("]}\n");
	free(out.bytes);
	form_close(&form);
}

int main(void)
{
	struct model *model;
	char reason[MODEL_REASON_MAX];
	char *line = malloc(LINE_MAX_BYTES), *text = malloc(TEXT_MAX);
	if (!line || !text || vocabulary_open(&model, &tokenizer, reason) != 0 ||
	    form_index_open(tokenizer, &index_) != 0)
		return 1;
	bits = malloc((tokenizer_count(tokenizer) + 31) / 32 * sizeof *bits);
	while (bits && fgets(line, LINE_MAX_BYTES, stdin)) {
		struct json request;
		if (json_check(line, strlen(line), &request) != 0)
			return 1;
		answer(request, text);
		fflush(stdout);
	}
	free(bits);
	free(line);
	free(text);
	form_index_close(&index_);
	tokenizer_close(&tokenizer);
	model_close(&model);
	return 0;
}
