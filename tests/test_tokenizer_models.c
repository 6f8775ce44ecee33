/*
 * Every tokenizer against somebody else's: ids against those of llama.cpp for each model whose file is
 * there, pieces of the pre-tokenizers against the patterns run by Python's package regex. Method: the
 * fixtures of tests/data; then, with each model, random text that must come back and long texts in
 * proportion to their length.
 */
#define _GNU_SOURCE
#include <time.h>

#include "runtime/json.h"
#include "runtime/tokenizer_inside.h"
#include "tests/files.h"
#include "tests/gguf_make.h"
#include "tests/draw.h"
#include "tests/long_text.h"
#include "tests/tap.h"

enum { ROOM = 1 << 16 };

static struct {
	const char *name, *reference;
	uint32_t count;
	const char *end;
} const models[] = {
	{"SmolLM2-135M-Instruct.Q4_1.gguf", "tests/data/tokens-smollm2-135m.json", 49152, "<|im_end|>"},
	{"qwen2.5-coder-0.5b.gguf", "tests/data/tokens-qwen2.5-coder-0.5b.json", 151936, "<|im_end|>"},
	{"gemma3-270m.gguf", "tests/data/tokens-gemma3-270m.json", 262144, "<end_of_turn>"},
};

static unsigned chosen;
static char reason[MODEL_REASON_MAX];
static struct model *model;
static struct tokenizer *t;

static void opens(void)
{
	char path[4096];
	const char *folder = getenv("HOLDFAST_MODELS"), *first = getenv("HOLDFAST_MODEL");
	if (!folder && (chosen > 0 || !first || !*first))
		TAP_SKIP("HOLDFAST_MODELS is not set");
	if (folder)
		snprintf(path, sizeof path, "%s/%s", folder, models[chosen].name);
	else
		snprintf(path, sizeof path, "%s", first);
	if (access(path, R_OK) != 0)
		TAP_SKIP("the model's file is not there");
	int code = model_open(path, &model, reason);
	if (code == 0) {
		const double start = now();
		code = tokenizer_open(model, &t, reason);
		printf("# tables built in %.0f ms\n", (now() - start) * 1e3);
	}
	if (code != 0)
		printf("# %s\n", reason);
	REQUIRE(code == 0);
	EXPECT_EQ(tokenizer_count(t), models[chosen].count);
	EXPECT(tokenizer_is_end(t, tokenizer_find(t, models[chosen].end)));
}

static size_t read_ids(struct json list, uint32_t *ids)
{
	struct json_walk walk = json_walk(list);
	struct json item;
	int64_t id;
	size_t count = 0;
	while (json_next(&walk, NULL, &item))
		if (json_integer(item, 0, UINT32_MAX, &id))
			ids[count++] = (uint32_t)id;
	return count;
}

static size_t read_text(struct json entry, char *text)
{
	struct json value;
	if (json_find(entry, "text", &value))
		return json_string(value, text);
	if (!json_find(entry, "hex", &value))
		return 0;
	size_t n = 0;
	for (size_t i = 1; i + 2 < value.length; i += 2) {
		char pair[3] = {value.at[i], value.at[i + 1], 0};
		text[n++] = (char)strtoul(pair, NULL, 16);
	}
	return n;
}

static size_t decode(const uint32_t *ids, size_t count, bool special, char *to)
{
	size_t length = 0;
	for (size_t i = 0; i < count; i++) {
		const char *at;
		size_t n = tokenizer_bytes(t, ids[i], special, &at);
		memcpy(to + length, at, n);
		length += n;
	}
	return length;
}

static void ids_equal_reference(void)
{
	static char text[ROOM];
	static uint32_t ids[ROOM], expected[ROOM];
	size_t length;
	struct json all, entry, list;
	unsigned entries = 0, wrong = 0;
	if (!t)
		TAP_SKIP("the model's file is not there");
	char *file = source_read(models[chosen].reference, &length);
	REQUIRE(file != NULL);
	REQUIRE(json_check(file, length, &all) == 0);
	struct json_walk walk = json_walk(all);
	for (; json_next(&walk, NULL, &entry); entries++) {
		const size_t n = read_text(entry, text);
		REQUIRE(json_find(entry, "ids", &list));
		for (int special = 0; special < 2; special++) {
			size_t count = 0;
			if (special)
				json_find(entry, "ids_special", &list);
			const size_t expected_count = read_ids(list, expected);
			REQUIRE(tokenizer_encode(t, text, n, special, ids, ROOM, &count) == 0);
			if (count == expected_count && !memcmp(ids, expected, count * sizeof *ids))
				continue;
			printf("# entry %u, special %d\n", entries, special);
			wrong++;
		}
	}
	EXPECT_EQ(entries, 184);
	EXPECT_EQ(wrong, 0);
	free(file);
}

/* A long text: HOLDFAST_REFERENCE names a folder with eval.txt, and the ids of it in tokens/. */
static void long_ids_equal_reference(void)
{
	const char *const folder = getenv("HOLDFAST_REFERENCE");
	char path[4096];
	size_t n = 0, length = 0, count = 0, from = 0;
	struct json list;
	if (!t || !folder)
		TAP_SKIP(t ? "HOLDFAST_REFERENCE is not set" : "the model's file is not there");
	snprintf(path, sizeof path, "%s/eval.txt", folder);
	char *text = file_read(path, &n);
	snprintf(path, sizeof path, "%s/tokens/eval-%s", folder, strchr(models[chosen].reference, '-') + 1);
	char *file = file_read(path, &length);
	REQUIRE(text && file && json_check(file, length, &list) == 0);
	uint32_t *ids = malloc((n + 1) * sizeof *ids), *expected = malloc(length * sizeof *expected);
	REQUIRE(ids && expected);
	const size_t expected_count = read_ids(list, expected);
	EXPECT_EQ(tokenizer_encode(t, text, n, false, ids, n + 1, &count), 0);
	/* Some begin with a token that stands for the text's start. */
	if (expected_count == count + 1 && tokenizer_is_control(t, expected[0]))
		from = 1;
	printf("# %zu ids\n", count);
	EXPECT(count > 10000 && expected_count - from == count);
	EXPECT(!memcmp(ids, expected + from, count * sizeof *ids));
	free(ids);
	free(expected);
	free(text);
	free(file);
}

/* Random text that is UTF-8 comes back, however it is shown: no part of the stream but the last ends
   in half a character. */
static void text_comes_back(void)
{
	static const char *const pieces[] = {
		"a", "Hello", " ", "  ", "\n", "\t", "\r\n", "1", "42", "'s", "'LL", "\xc3\xa9",
		"\xe4\xb8\xad", "\xf0\x9f\x99\x82", "\xc2\xa0", "\xe2\x80\x83", "\xcc\x81", "{\"",
		"::", "<|im_end|>", "_", "\\n", "\xe0\xa4\xb5", "\xef\xbf\xbd", "\xc2\x85",
		"<tool_call>", "<end_of_turn>", "\n\n\n", "\t\t", "<table>", "[INST]", "<0x41>", "<s>",
	};
	const unsigned rounds = getenv("HOLDFAST_SANITIZED") ? 500 : 5000;
	if (!t)
		TAP_SKIP("the model's file is not there");
	for (unsigned round = 0; round < rounds; round++) {
		static char text[2048], back[8192], shown[8192];
		static uint32_t ids[8192];
		size_t n = 0, count = 0, length = 0;
		for (unsigned i = draw(60); i > 0; i--) {
			const char *piece = pieces[draw(sizeof pieces / sizeof pieces[0])];
			memcpy(text + n, piece, strlen(piece));
			n += strlen(piece);
		}
		const bool special = draw(2);
		REQUIRE(tokenizer_encode(t, text, n, special, ids, n, &count) == 0);
		REQUIRE(decode(ids, count, special, back) == n);
		REQUIRE(!memcmp(back, text, n));
		struct utf8_stream stream = {0};
		for (size_t i = 0; i < count; i++) {
			const char *at;
			const size_t bytes = tokenizer_bytes(t, ids[i], special, &at), from = length;
			length += utf8_stream_push(&stream, at, bytes, true, false, shown + length);
			/* A character's first byte comes first, and its last one last. */
			REQUIRE(from == length || ((uint8_t)shown[from] & 0xc0) != 0x80);
		}
		REQUIRE(length == n && stream.count == 0 && !memcmp(shown, text, n));
	}
}

/* Control tokens are never made of text, whatever it says. */
static void text_makes_no_control(void)
{
	if (!t)
		TAP_SKIP("the model's file is not there");
	for (uint32_t id = 0; id < tokenizer_count(t); id += tokenizer_is_control(t, id) ? 1 : 7) {
		const char *at;
		uint32_t ids[3 * 512 + 3];
		size_t count = 0;
		const size_t n = tokenizer_bytes(t, id, true, &at);
		if (n > 512)
			continue;
		REQUIRE(tokenizer_encode(t, at, n, false, ids, 3 * 512 + 3, &count) == 0);
		for (size_t i = 0; i < count; i++)
			REQUIRE(!tokenizer_is_control(t, ids[i]));
	}
}

static void long_texts_are_fast(void)
{
	static char text[LONG];
	if (!t)
		TAP_SKIP("the model's file is not there");
	uint32_t *ids = malloc(LONG_IDS * sizeof *ids);
	REQUIRE(ids != NULL);
	long_texts(t, true, text, ids);
	free(ids);
}

static void closes(void)
{
	tokenizer_close(&t);
	model_close(&model);
	EXPECT(!t && !model);
}

static void pieces_equal_patterns(void)
{
	static const char *const names[] = {"gpt-2", "qwen2", "llama-bpe", "tekken"};
	static char text[ROOM];
	static uint32_t expected[ROOM];
	size_t length;
	struct json all, entry, pieces, list;
	unsigned entries = 0;
	char *file = source_read("tests/data/splits.json", &length);
	REQUIRE(file != NULL);
	REQUIRE(json_check(file, length, &all) == 0);
	struct json_walk walk = json_walk(all);
	for (; json_next(&walk, NULL, &entry); entries++) {
		const size_t n = read_text(entry, text);
		REQUIRE(json_find(entry, "pieces", &pieces));
		for (unsigned i = 0; i < sizeof names / sizeof names[0]; i++) {
			const struct pretokenizer *p = pretokenizer_find(names[i]);
			REQUIRE(p && json_find(pieces, names[i], &list));
			const size_t count = read_ids(list, expected);
			size_t k = 0;
			for (size_t at = 0; at < n; k++) {
				const size_t piece = p->split((const uint8_t *)text + at, n - at);
				if (k >= count || piece != expected[k])
					break;
				at += piece;
			}
			if (!EXPECT(k == count))
				printf("# entry %u, %s, piece %zu\n", entries, names[i], k);
		}
	}
	EXPECT(entries > 300);
	free(file);
}

int main(void)
{
	TAP_RUN(pieces_equal_patterns, "pieces are those of the patterns");
	for (chosen = 0; chosen < sizeof models / sizeof models[0]; chosen++) {
		printf("# %s\n", models[chosen].name);
		TAP_RUN(opens, "a model's vocabulary");
		TAP_RUN(ids_equal_reference, "ids equal those of the reference");
		TAP_RUN(long_ids_equal_reference, "and those of a long text");
		TAP_RUN(text_comes_back, "random text comes back, in whole characters");
		TAP_RUN(text_makes_no_control, "no text becomes a control token");
		TAP_RUN(long_texts_are_fast, "a megabyte of anything is quick");
		TAP_RUN(closes, "closed");
	}
	return tap_done();
}
