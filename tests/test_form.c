/*
 * Whoever follows the masks must arrive at a call, and never be stuck. Method: texts by hand that
 * are of a form and that are not; masks compared with every token tried by itself; random walks over
 * the masks, each of which must end in a text that calls_parse takes whole, with arguments that are
 * JSON of the tool's keys and kinds.
 */
#define _GNU_SOURCE
#include <time.h>

#include "runtime/form.h"
#include "runtime/json.h"
#include "sched/check.h"
#include "tests/form_vocabulary.h"
#include "tests/draw.h"
#include "tests/tap.h"

static struct model *model;
static struct tokenizer *tokenizer;
static struct form_index *index_;
static const struct template *template;

struct made_vocabulary {
	struct model *model;
	struct tokenizer *tokenizer;
	struct form_index *index;
};

static const char read_tool[] =
	"{\"type\":\"function\",\"function\":{\"name\":\"read\",\"parameters\":{\"type\":\"object\","
	"\"properties\":{\"path\":{\"type\":\"string\"},\"limit\":{\"type\":\"integer\"},"
	"\"extra\":{\"type\":\"object\"}},\"required\":[\"limit\",\"path\"]}}}";
static const char all_tool[] =
	"{\"name\":\"reader\",\"parameters\":{\"properties\":{\"a \\\"b\\\"\":{\"type\":\"number\"},"
	"\"on\":{\"type\":\"boolean\"},\"mode\":{\"enum\":[\"r\",\"rw\",\"\\u00e9\\n\",\"r\"]},"
	"\"s\":{\"type\":\"string\"},\"i\":{\"type\":\"integer\",\"minimum\":1}}}}";
static const char none_tool[] = "{\"type\":\"function\",\"function\":{\"name\":\"list\"}}";
static const char numbers_tool[] =
	"{\"name\":\"n\",\"parameters\":{\"properties\":{\"x\":{\"type\":\"number\"},\"i\":"
	"{\"type\":\"integer\"}}}}";

static struct form *form_of(const char *const *text, uint32_t count, uint32_t string_bytes)
{
	struct tool tool[8];
	struct form *form;
	for (uint32_t i = 0; i < count; i++)
		tool[i].json = (struct text){text[i], strlen(text[i])};
	const char *reason;
	int code = form_open(index_, template, tool, count, string_bytes, &form, &reason);
	if (code != 0)
		printf("# %s: %s\n", err_name(code), reason);
	return form;
}

#define FORM(bytes, ...) \
	form_of((const char *const[]){__VA_ARGS__}, \
		sizeof((const char *const[]){__VA_ARGS__}) / sizeof(char *), bytes)

static void opens(void)
{
	char reason[MODEL_REASON_MAX] = "";
	int code = vocabulary_open(&model, &tokenizer, reason);
	if (code != 0)
		printf("# %s\n", reason);
	REQUIRE(code == 0);
	REQUIRE(template_find("smollm2", &template) == 0);
	double start = now();
	REQUIRE(form_index_open(tokenizer, &index_) == 0);
	printf("# index of %u tokens in %.0f ms\n", tokenizer_count(tokenizer), (now() - start) * 1e3);
}

static bool takes(struct form *form, const char *text, bool whole)
{
	struct form_state s;
	form_start(form, &s);
	return form_advance(form, &s, text, strlen(text)) && form_complete(form, &s) == whole;
}

#define READ(limit, path) "<tool_call>\n{\"name\": \"read\", \"arguments\": {\"path\": " path \
	", \"limit\": " limit "}}\n</tool_call>"

static void takes_the_form(void)
{
	REQUIRE(index_ != NULL);
	struct form *f = FORM(16, read_tool, all_tool, none_tool);
	REQUIRE(f != NULL);
	EXPECT(takes(f, READ("0", "\"\""), true));
	EXPECT(takes(f, READ("-12", "\"a b\\n\\\"\\u00e9\xc3\xa9\""), true));
	EXPECT(takes(f, READ("123456789012345678", "\"\xf0\x9f\x99\x82\""), true));
	EXPECT(takes(f, "<tool_call>\n{\"name\": \"list\", \"arguments\": {}}\n</tool_call>", true));
	EXPECT(takes(f, "<tool_call>\n{\"name\": \"reader\", \"arguments\": {\"a \\\"b\\\"\": -1.5e+3, "
			"\"on\": true, \"mode\": \"\xc3\xa9\\n\", \"s\": \"\", \"i\": 7}}\n</tool_call>", true));
	EXPECT(takes(f, "<tool_call>\n{\"name\": \"re", false));
	EXPECT(takes(f, "", false));
	EXPECT(!takes(f, READ("01", "\"\""), true));
	EXPECT(!takes(f, READ("-", "\"\""), true));
	EXPECT(!takes(f, READ("1.5", "\"\""), true));
	EXPECT(!takes(f, READ("1234567890123456789", "\"\""), true));
	EXPECT(!takes(f, READ("1", "\"\n\""), true));
	EXPECT(!takes(f, READ("1", "\"\\ud83d\\ude42\""), true));
	EXPECT(!takes(f, READ("1", "\"\\x\""), true));
	EXPECT(!takes(f, READ("1", "\"\xc0\xaf\""), true));
	EXPECT(!takes(f, READ("1", "\"\xed\xa0\x80\""), true));
	EXPECT(takes(f, READ("1", "\"1234567890123456\""), true));
	EXPECT(!takes(f, READ("1", "\"12345678901234567\""), true));
	EXPECT(!takes(f, READ("1", "\"\"") " ", true));
	EXPECT(!takes(f, " <tool_call>", false));
	EXPECT(!takes(f, "<tool_call>\n{\"name\": \"reads", false));
	form_close(&f);
	EXPECT(f == NULL);
	form_close(&f);
	f = FORM(16, numbers_tool);
	REQUIRE(f != NULL);
	static const char *const good[] = {
			"0", "-0", "0.5", "1e5", "1E-05", "123456789012345.123456789012345e99"};
	static const char *const bad[] = {"", "00", "1.", ".5", "1e", "1e+", "1e123", "+1", "--1", "1.2.3",
					  "1234567890123456", "0.1234567890123456", "1e1.5", "0x1"};
	char text[256];
	for (unsigned i = 0; i < sizeof good / sizeof good[0] + sizeof bad / sizeof bad[0]; i++) {
		bool is_good = i < sizeof good / sizeof good[0];
		const char *number = is_good ? good[i] : bad[i - sizeof good / sizeof good[0]];
		snprintf(text, sizeof text, "<tool_call>\n{\"name\": \"n\", \"arguments\": {\"x\": %s, \"i\": "
			 "1}}\n</tool_call>", number);
		if (!EXPECT(takes(f, text, true) == is_good))
			printf("# %s\n", number);
	}
	form_close(&f);
}

static void refuses_tools(void)
{
#define PROPERTY(schema) "{\"name\":\"x\",\"parameters\":{\"properties\":{\"p\":" schema "}}}"
	static const struct { const char *tool; int code;
	} bad[] = {
			{"", -ERR_BAD_ARG},
			{"[]", -ERR_BAD_ARG},
			{"{}", -ERR_BAD_ARG},
			{"{\"name\":1}", -ERR_BAD_ARG},
			{"{\"function\":7}", -ERR_BAD_ARG},
			{"{\"name\":\"\"}", -ERR_BAD_ARG},
			{"{\"name\":\"a\\\"b\"}", -ERR_BAD_ARG},
			{"{\"name\":\"x\",\"parameters\":[]}", -ERR_BAD_ARG},
			{"{\"name\":\"x\",\"parameters\":{\"type\":\"array\"}}", -ERR_UNSUPPORTED},
			{"{\"name\":\"x\",\"parameters\":{\"enum\":[1]}}", -ERR_UNSUPPORTED},
			{"{\"name\":\"x\",\"parameters\":{\"properties\":[]}}", -ERR_BAD_ARG},
			{"{\"name\":\"x\",\"parameters\":{\"required\":\"p\"}}", -ERR_BAD_ARG},
			{"{\"name\":\"x\",\"parameters\":{\"required\":[1]}}", -ERR_BAD_ARG},
			{PROPERTY("1"), -ERR_BAD_ARG},
			{PROPERTY("{\"not\":{}}"), -ERR_UNSUPPORTED},
			{PROPERTY("{\"anyOf\":[]}"), -ERR_BAD_ARG},
			{PROPERTY("{\"type\":\"text\"}"), -ERR_BAD_ARG},
			{PROPERTY("{\"enum\":[]}"), -ERR_BAD_ARG},
			{PROPERTY("{\"enum\":\"a\"}"), -ERR_BAD_ARG},
			{PROPERTY("{\"type\":\"string\",\"pattern\":\"(\"}"), -ERR_BAD_ARG},
			{"{\"name\":\"x\",\"parameters\":{\"properties\":{\"p\":false},\"required\":[\"p\"]}}",
					-ERR_BAD_ARG},
			{"{\"name\":\"x\",\"parameters\":{\"properties\":{\"p\":{\"type\":\"string\"},"
			 "\"\\u0070\":"
			 "{\"type\":\"string\"}}}}",
					-ERR_UNSUPPORTED},
	};
	struct form *f = (struct form *)&seed;
	REQUIRE(index_ != NULL);
	for (unsigned i = 0; i < sizeof bad / sizeof bad[0]; i++) {
		const struct tool tool = {{bad[i].tool, strlen(bad[i].tool)}};
		int code = form_open(index_, template, &tool, 1, 64, &f, NULL);
		if (!EXPECT(code == bad[i].code))
			printf("# %s: %s\n", bad[i].tool, err_name(code));
		EXPECT(f == NULL);
	}
	static const char again[] = "{\"name\":\"list\",\"parameters\":{\"properties\":{\"p\":{\"type\":"
				    "\"string\"}}}}";
	const struct tool two[2] = {{{none_tool, sizeof none_tool - 1}}, {{again, sizeof again - 1}}};
	const char *reason = "";
	EXPECT_EQ(form_open(index_, template, two, 2, 64, &f, &reason), -ERR_BAD_ARG);
	EXPECT(strcmp(reason, "two tools have one name") == 0);
	EXPECT_EQ(form_open_regex(index_, (struct text){"\xff", 1}, &f, &reason), -ERR_BAD_ARG);
	EXPECT(f == NULL && strcmp(reason, "a pattern is not UTF-8") == 0);
	EXPECT_EQ(form_open(index_, template, two, 0, 64, &f, NULL), -ERR_BAD_ARG);
	EXPECT_EQ(form_open(index_, template, two, FORM_TOOLS_MAX + 1, 64, &f, NULL), -ERR_TOO_BIG);
}

static const char *refused_regex(const char *piece, unsigned times)
{
	static char text[40000];
	struct form *f;
	const char *reason = "";
	size_t n = 0;
	for (unsigned i = 0; i < times; i++)
		n += (size_t)snprintf(text + n, sizeof text - n, "%s", piece);
	EXPECT_EQ(form_open_regex(index_, (struct text){text, n}, &f, &reason), -ERR_TOO_BIG);
	EXPECT(f == NULL);
	return reason;
}

/* What is too much, of what can be much. */
static void refuses_too_much(void)
{
	static char large[700000], deep[16384];
	struct form *f;
	const char *reason = "";
	memset(large, 'a', sizeof large);
	const struct text two[2] = {{large, sizeof large}, {large, sizeof large - 1}};
	EXPECT_EQ(form_open_choices(index_, two, 2, &f, &reason), -ERR_TOO_BIG);
	EXPECT(!strcmp(reason, "the form has more than 1048576 bytes of text"));
	EXPECT(!strcmp(refused_regex("\\W", 8000), "a pattern has more than 32768 parts, its repetitions "
			"written out"));
	EXPECT(!strcmp(refused_regex("a{1000}", 2000), "a pattern has more than 32768 parts, its repetitions "
			"written out"));
	EXPECT(!strcmp(refused_regex("a", 16384), "a pattern has more than 16384 states: shorten its counted "
			"repetitions"));
	EXPECT(!strcmp(refused_regex("a+", 8192), "the form's patterns take more than 31457280 steps: make "
			"them simpler, or fewer"));
	size_t n = (size_t)snprintf(deep, sizeof deep, "{\"$ref\":\"#/$defs/d0\",\"$defs\":{");
	for (unsigned i = 0; i < 100; i++)
		n += (size_t)snprintf(deep + n, sizeof deep - n,
				      "\"d%u\":{\"items\":{\"$ref\":\"#/$defs/d%u\"},\"type\":\"array\"},", i,
				      i + 1);
	n += (size_t)snprintf(deep + n, sizeof deep - n, "\"d100\":{\"type\":\"null\"}}}");
	EXPECT_EQ(form_open_schema(index_, (struct text){deep, n}, 64, &f, &reason), -ERR_TOO_BIG);
	if (!EXPECT(!strcmp(reason, "the schema's schemas are nested deeper than 80")))
		printf("# %s\n", reason);
	n = (size_t)snprintf(large, sizeof large,
			     "{\"name\":\"x\",\"parameters\":{\"type\":\"object\",\"description\":\"");
	memset(large + n, 'd', FORM_SCHEMA_BYTES_MAX);
	n += FORM_SCHEMA_BYTES_MAX;
	n += (size_t)snprintf(large + n, sizeof large - n, "\"}}");
	const struct tool tool = {{large, n}};
	EXPECT_EQ(form_open(index_, template, &tool, 1, 64, &f, &reason), -ERR_TOO_BIG);
	EXPECT(!strcmp(reason, "the schema has more than 262144 bytes"));
}

/* A vocabulary of each byte by itself but `lacking` (256: none is), and of one control token. */
static int index_of_bytes(unsigned lacking, const char *control, struct made_vocabulary *v)
{
	static struct maker m;
	static char text[257][8];
	const char *token[257];
	int32_t kind[257];
	char reason[MODEL_REASON_MAX];
	uint32_t count = 0;
	for (unsigned i = 0; i < 256; i++) {
		const char byte = (char)i;
		if (i == lacking)
			continue;
		vocabulary_token(&byte, 1, text[i], sizeof text[i]);
		kind[count] = 1;
		token[count++] = text[i];
	}
	kind[count] = 3;
	token[count++] = control;
	make_model(&m, token, kind, count, NULL, 0);
	struct bytes b = make_bytes(&m);
	struct made_file f = made_open(b.at, b.length);
	memset(v, 0, sizeof *v);
	CHECK(model_open(f.path, &v->model, reason) == 0);
	CHECK(tokenizer_open(v->model, &v->tokenizer, reason) == 0);
	made_close(&f);
	free(b.at);
	return form_index_open(v->tokenizer, &v->index);
}

static void vocabulary_close(struct made_vocabulary *v)
{
	form_index_close(&v->index);
	tokenizer_close(&v->tokenizer);
	model_close(&v->model);
}

/* Without some character that is always needed, or without a token that ends, there could be a dead end. */
static void refuses_vocabulary(void)
{
	static const struct { unsigned lacking; const char *control; int code;
	} one[] = {
			{256, "<|im_end|>", 0}, {0xc3, "<|im_end|>", 0}, {'\t', "<|im_end|>", 0},
			{'\n', "<|im_end|>", -ERR_UNSUPPORTED}, {' ', "<|im_end|>", -ERR_UNSUPPORTED},
			{'~', "<|im_end|>", -ERR_UNSUPPORTED}, {256, "<|im_start|>", -ERR_UNSUPPORTED}};
	struct made_vocabulary v;
	for (unsigned i = 0; i < sizeof one / sizeof one[0]; i++) {
		EXPECT_EQ(index_of_bytes(one[i].lacking, one[i].control, &v), one[i].code);
		EXPECT((v.index != NULL) == (one[i].code == 0));
		vocabulary_close(&v);
	}
}

/* What a form's own text needs and the vocabulary cannot write. */
static void refuses_lacking(void)
{
	static const char choice[] = "caf\xc3\xa9", schema[] = "{\"enum\":[\"caf\\u00e9\"]}";
	struct made_vocabulary v;
	struct form *f;
	const char *reason = "";
	REQUIRE(index_of_bytes(0xc3, "<|im_end|>", &v) == 0);
	const struct text two[2] = {{"tea", 3}, {choice, sizeof choice - 1}};
	EXPECT_EQ(form_open_choices(v.index, two, 2, &f, &reason), -ERR_UNSUPPORTED);
	EXPECT(f == NULL && !strcmp(reason, "the vocabulary lacks a character of the form"));
	form_close(&f);
	EXPECT_EQ(form_open_choices(v.index, two, 1, &f, &reason), 0);
	form_close(&f);
	reason = "";
	EXPECT_EQ(form_open_schema(v.index, (struct text){schema, sizeof schema - 1}, 64, &f, &reason),
		  -ERR_UNSUPPORTED);
	EXPECT(f == NULL && !strcmp(reason, "the vocabulary lacks a character of the form"));
	form_close(&f);
	vocabulary_close(&v);
	REQUIRE(index_of_bytes(256, "<|im_end|>", &v) == 0);
	EXPECT_EQ(form_open_choices(v.index, two, 2, &f, &reason), 0);
	form_close(&f);
	vocabulary_close(&v);
}

/* The mask as it is defined: every token tried by itself. */
static void mask_plainly(struct form *form, const struct form_state *state, uint32_t *bits)
{
	uint32_t count = tokenizer_count(tokenizer);
	memset(bits, 0, (count + 31) / 32 * sizeof *bits);
	for (uint32_t id = 0; id < count; id++) {
		const char *bytes;
		struct form_state s = *state;
		size_t n = tokenizer_bytes(tokenizer, id, false, &bytes);
		bool end = tokenizer_is_end(tokenizer, id), ok;
		if (form_complete(form, state))
			ok = end;
		else
			ok = !end && n > 0 && !tokenizer_is_control(tokenizer, id) &&
			     form_advance(form, &s, bytes, n);
		bits[id / 32] |= (uint32_t)ok << id % 32;
	}
}

static bool allowed(const uint32_t *bits, uint32_t id)
{
	return bits[id / 32] >> id % 32 & 1;
}

/* A random token of the mask; one in four times, of those that are one byte, so that numbers and
   strings end. */
static uint32_t pick(const uint32_t *bits, uint32_t count)
{
	uint32_t words = (count + 31) / 32, at = draw(words * 32);
	bool short_one = draw(4) == 0;
	for (uint32_t i = 0; i < 2 * words * 32; i++) {
		uint32_t id = (at + i) % (words * 32);
		const char *bytes;
		if (!allowed(bits, id))
			continue;
		if (short_one && i < words * 32 && tokenizer_bytes(tokenizer, id, false, &bytes) != 1)
			continue;
		return id;
	}
	return UINT32_MAX;
}

static char *walk(struct form *form, bool compare, size_t *length)
{
	uint32_t count = tokenizer_count(tokenizer), words = (count + 31) / 32;
	uint32_t *bits = malloc(words * sizeof *bits), *plain = malloc(words * sizeof *bits);
	struct bytes text = {0};
	struct form_state s;
	form_start(form, &s);
	while (text.length < 1 << 20) {
		const char *bytes;
		form_mask(form, &s, bits);
		if (compare) {
			mask_plainly(form, &s, plain);
			EXPECT(!memcmp(bits, plain, words * sizeof *bits));
		}
		uint32_t id = pick(bits, count);
		if (!EXPECT(id < count) || tokenizer_is_end(tokenizer, id))
			break;
		size_t n = tokenizer_bytes(tokenizer, id, false, &bytes);
		EXPECT(form_advance(form, &s, bytes, n));
		put(&text, bytes, n);
	}
	EXPECT(form_complete(form, &s));
	free(bits);
	free(plain);
	*length = text.length;
	return (char *)text.at;
}

static void masks_as_defined(void)
{
	REQUIRE(index_ != NULL);
	struct form *f = FORM(24, read_tool, all_tool, none_tool, numbers_tool);
	REQUIRE(f != NULL);
	for (unsigned i = 0; i < 5; i++) {
		size_t length;
		free(walk(f, true, &length));
	}
	form_close(&f);
}

/* More ways at once than a state has room for what is open around them: 31 arrays of arrays, five deep, and
   one whose innermost is empty. Some are dropped; but what the mask allows goes on. */
static void more_ways_than_room(void)
{
	static const char around[] = "{\"type\":\"array\",\"minItems\":1,\"items\":";
	static char schema[32 * 512];
	size_t at = (size_t)sprintf(schema, "{\"anyOf\":[");
	const char *reason = "", *bytes;
	struct form *form;
	REQUIRE(index_ != NULL);
	for (int i = 0; i < 32; i++) {
		for (int depth = 0; depth < (i > 0 ? 5 : 4); depth++)
			at += (size_t)sprintf(schema + at, "%s", around);
		at += (size_t)sprintf(schema + at,
				      i > 0 ? "{\"const\":%d}}" : "{\"type\":\"array\",\"maxItems\":0}", i);
		at += (size_t)sprintf(schema + at, i < 31 ? "}}}}," : "}}}}]}");
	}
	int code = form_open_schema(index_, (struct text){schema, at}, 20, &form, &reason);
	if (code != 0)
		printf("# %s\n", reason);
	REQUIRE(code == 0);
	const uint32_t words = (tokenizer_count(tokenizer) + 31) / 32;
	uint32_t *bits = malloc(words * sizeof *bits), tried = 0, longer = 0;
	REQUIRE(bits != NULL);
	struct form_state s, after;
	form_start(form, &s);
	for (int depth = 0; depth < 5; depth++) {
		form_mask(form, &s, bits);
		for (uint32_t id = 0; id < tokenizer_count(tokenizer); id++) {
			if (!(bits[id / 32] >> id % 32 & 1))
				continue;
			const size_t n = tokenizer_bytes(tokenizer, id, false, &bytes);
			after = s;
			tried++;
			longer += n > 1;
			if (!EXPECT(form_advance(form, &after, bytes, n)))
				printf("# depth %d: '%.*s'\n", depth, (int)n, bytes);
		}
		EXPECT(form_advance(form, &s, "[", 1));
	}
	EXPECT(tried > 5 && longer > 0);
	free(bits);
	form_close(&form);
}

static void check_arguments(struct text text)
{
	struct json all, value;
	REQUIRE(json_check(text.at, text.length, &all) == 0);
	if (json_find(all, "path", &value)) {
		EXPECT_EQ(json_kind(value), JSON_STRING);
		EXPECT(json_find(all, "limit", &value) && json_kind(value) == JSON_NUMBER);
		EXPECT(!json_find(all, "extra", &value) || json_kind(value) == JSON_OBJECT);
	} else if (json_find(all, "mode", &value)) {
		EXPECT(json_equals(value, "r", 1) || json_equals(value, "rw", 2) ||
		       json_equals(value, "\xc3\xa9\n", 3));
		int64_t n;
		EXPECT(!json_find(all, "a \"b\"", &value) || json_kind(value) == JSON_NUMBER);
		EXPECT(!json_find(all, "on", &value) || json_kind(value) == JSON_BOOL);
		EXPECT(!json_find(all, "s", &value) || json_kind(value) == JSON_STRING);
		EXPECT(!json_find(all, "i", &value) || json_integer(value, 1, INT64_MAX, &n));
	} else if (!json_find(all, "x", &value) && !json_find(all, "i", &value)) {
		EXPECT(!json_find(all, "extra", &value));
	}
}

static void walks_end_in_calls(void)
{
	enum { WALKS = 120 };
	const struct template *t;
	REQUIRE(index_ != NULL);
	REQUIRE(template_find("smollm2", &t) == 0);
	static const uint32_t room[] = {1, 7, 200};
	size_t longest = 0;
	for (unsigned i = 0; i < 3; i++) {
		struct form *f = FORM(room[i], read_tool, all_tool, none_tool, numbers_tool);
		REQUIRE(f != NULL);
		for (unsigned k = 0; k < WALKS / 3; k++) {
			struct calls calls;
			size_t length;
			char *text = walk(f, false, &length);
			calls_parse(t, text, length, false, &calls);
			if (!EXPECT(calls.state == CALLS_COMPLETE && calls.count == 1))
				printf("# %.*s\n", (int)length, text);
			EXPECT_EQ(calls.text_length, 0);
			if (calls.count == 1)
				check_arguments(calls.call[0].arguments);
			if (length > longest)
				longest = length;
			free(text);
		}
		form_close(&f);
	}
	printf("# longest call: %zu bytes\n", longest);
}

static void masks_are_fast(void)
{
	REQUIRE(index_ != NULL);
	struct form *f = FORM(4096, read_tool, all_tool, none_tool);
	REQUIRE(f != NULL);
	static const char start[] = "<tool_call>\n{\"name\": \"read\", \"arguments\": {\"path\": \"";
	uint32_t *bits = malloc((tokenizer_count(tokenizer) + 31) / 32 * sizeof *bits);
	struct form_state s;
	form_start(f, &s);
	REQUIRE(form_advance(f, &s, start, sizeof start - 1));
	double begin = now();
	form_mask(f, &s, bits);
	double first = now() - begin, least = 1;
	for (unsigned i = 0; i < 1000; i++) {
		form_advance(f, &s, "a", 1);
		begin = now();
		form_mask(f, &s, bits);
		double each = now() - begin;
		least = each < least ? each : least;
	}
	printf("# in a string: first %.0f us, then %.1f us\n", first * 1e6, least * 1e6);
	EXPECT(least < 0.001);
	free(bits);
	form_close(&f);
}

int main(void)
{
	TAP_RUN(opens, "a vocabulary in order");
	TAP_RUN(takes_the_form, "texts of the form, and others");
	TAP_RUN(refuses_tools, "tools that have no form are refused");
	TAP_RUN(refuses_too_much, "too much text, too many parts, too deep, too long");
	TAP_RUN(refuses_vocabulary, "a vocabulary that lacks a character or an end is refused");
	TAP_RUN(refuses_lacking, "a form with a character that the vocabulary lacks is refused");
	TAP_RUN(masks_as_defined, "masks are what each token by itself gives");
	TAP_RUN(more_ways_than_room, "what a mask allows goes on, also where ways are dropped");
	TAP_RUN(walks_end_in_calls, "every walk over the masks ends in a call");
	TAP_RUN(masks_are_fast, "a mask takes well under a millisecond");
	form_index_close(&index_);
	tokenizer_close(&tokenizer);
	model_close(&model);
	return tap_done();
}
