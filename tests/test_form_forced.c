/*
 * Tokens that must come: they are those that the tokenizer makes of the whole answer, and of the masks.
 * Method: answers of several forms, as the tokenizer cuts them; at each of their places what is told to
 * be forced must be what comes there. Then walks at random over masks and forced tokens. With the plain
 * vocabulary, or that of each model whose file is in HOLDFAST_MODELS.
 */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/form.h"
#include "tests/draw.h"
#include "tests/form_vocabulary.h"
#include "tests/tap.h"

enum { IDS_MAX = 4096, WALK_MAX = 3000, END = 0xfffffff0 };

static const char *const files[] = {
	"", "SmolLM2-135M-Instruct.Q4_1.gguf", "qwen2.5-coder-0.5b.gguf", "gemma3-270m.gguf"};
static const char *file;
static struct model *model;
static struct tokenizer *tokenizer;
static struct form_index *index_;

#define READ "<tool_call>\n{\"name\": \"read_file\", \"arguments\": {\"path\": \""
#define RUN "<tool_call>\n{\"name\": \"run_shell\", \"arguments\": {\"command\": \""
#define OVER "}}\n</tool_call>"
static const char read_tool[] =
	"{\"name\":\"read_file\",\"parameters\":{\"type\":\"object\",\"properties\":{\"path\":"
	"{\"type\":\"string\"},\"first_line\":{\"type\":\"integer\"}},\"required\":[\"path\"]}}";
static const char run_tool[] =
	"{\"name\":\"run_shell\",\"parameters\":{\"type\":\"object\",\"properties\":{\"command\":"
	"{\"type\":\"string\"},\"timeout\":{\"enum\":[\"short\",\"long\"]}},\"required\":[\"command\","
	"\"timeout\"]}}";

static const struct {
	const char *schema; /* NULL: a call of one of the two tools */
	const char *answer[5];
} cases[] = {
	{NULL, {READ "stack.py\"" OVER, READ "/usr/include/a b.h\", \"first_line\": 120" OVER,
		RUN "ls -l | head\", \"timeout\": \"long\"" OVER, RUN "\", \"timeout\": \"short\"" OVER,
		READ "\xc3\xa9t\xc3\xa9.txt\"" OVER}},
	{"{\"type\":\"object\",\"properties\":{\"title\":{\"type\":\"string\"},\"year\":{\"type\":"
	 "\"integer\",\"minimum\":"
	 "1900,\"maximum\":2100},\"published_in_the_united_states\":{\"type\":\"boolean\"},\"kind\":"
	 "{\"enum\":[\"book\","
	 "\"film\",\"bookmark\"]}},\"required\":[\"title\",\"year\",\"published_in_the_united_states\","
	 "\"kind\"]}",
	 {"{\"title\": \"A history\", \"year\": 2010, \"published_in_the_united_states\":"
	 " true, \"kind\": \"book\"}",
	  "{\"title\": \"/x\", \"year\": 1999, \"published_in_the_united_states\": false, \"kind\":"
	 " \"bookmark\"}",
	  "{\"title\": \"(\\n\\\"\", \"year\": 2000, \"published_in_the_united_states\":"
	 " false, \"kind\": \"film\"}"}},
	{"{\"type\":\"array\",\"items\":{\"type\":\"object\",\"properties\":{\"latitude\":{\"type\":"
	 "\"number\"},"
	 "\"longitude\":{\"type\":\"number\"}},\"required\":[\"latitude\",\"longitude\"]},\"minItems\":"
	 "2,\"maxItems\":2}",
	 {"[{\"latitude\": 1.5, \"longitude\": -0.25}, {\"latitude\": 0, \"longitude\": 12}]"}},
	{"{\"const\":{\"a\":[1,2,{\"b\":null}],\"text\":\"Nothing else can be said here, and 12345.\"}}",
	 {"{\"a\": [1, 2, {\"b\": null}], \"text\": \"Nothing else can be said here, and 12345.\"}"}},
	{"{\"enum\":[\"yes\",\"yesterday\",\"  yes\",\"no\"]}",
	 {"\"yes\"", "\"yesterday\"", "\"  yes\"", "\"no\""}},
	{"{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"string\",\"pattern\":"
	 "\"^[A-F0-9]{4}-x$\"},\"a_longer_key\":"
	 "{\"type\":\"null\"}}}", {"{\"a\": \"AF01-x\", \"a_longer_key\":"
	 " null}", "{}", "{\"a_longer_key\": null}"}},
};
enum { CASES = sizeof cases / sizeof cases[0] };

static struct form *form_at(unsigned i)
{
	static const struct tool tools[] = {
		{{read_tool, sizeof read_tool - 1}}, {{run_tool, sizeof run_tool - 1}}};
	const struct template *template;
	const char *reason = "";
	struct form *form = NULL;
	if (template_find("qwen2.5", &template) != 0)
		return NULL;
	const struct text schema = {cases[i].schema, cases[i].schema ? strlen(cases[i].schema) : 0};
	const int code = cases[i].schema
		? form_open_schema(index_, schema, 200, &form, &reason)
		: form_open(index_, template, tools, 2, 200, &form, &reason);
	if (code != 0)
		printf("# case %u: %s\n", i, reason);
	return form;
}

static void opens(void)
{
	char path[4096], reason[MODEL_REASON_MAX] = "";
	const char *folder = getenv("HOLDFAST_MODELS");
	if (!*file) {
		unsetenv("HOLDFAST_MODEL");
		REQUIRE(vocabulary_open(&model, &tokenizer, reason) == 0);
	} else {
		if (!folder)
			TAP_SKIP("HOLDFAST_MODELS is not set");
		snprintf(path, sizeof path, "%s/%s", folder, file);
		if (access(path, R_OK) != 0)
			TAP_SKIP("the model's file is not there");
		REQUIRE(model_open(path, &model, reason) == 0);
		REQUIRE(tokenizer_open(model, &tokenizer, reason) == 0);
	}
	REQUIRE(form_index_open(tokenizer, &index_) == 0);
}

/* The answer's own tokens: how many of them are told, or -1 if one is told that is another. */
static int told(struct form *form, const char *answer, size_t *count)
{
	uint32_t ids[IDS_MAX], forced[FORM_FORCED_MAX];
	struct form_state s;
	const char *bytes;
	int told = 0;
	*count = 0;
	if (tokenizer_encode(tokenizer, answer, strlen(answer), false, ids, IDS_MAX, count) != 0)
		return -1;
	form_start(form, &s);
	for (size_t at = 0; at <= *count;) {
		const uint32_t n = form_forced(form, &s, END, forced);
		for (uint32_t i = 0; i < n; i++) {
			if (at + i == *count ? forced[i] == END : at + i < *count && forced[i] == ids[at + i])
				continue;
			printf("# %s: token %zu is %u, told is %u\n", answer, at + i,
			       at + i < *count ? ids[at + i] : END, forced[i]);
			return -1;
		}
		told += (int)n;
		if (at == *count)
			break;
		for (uint32_t i = 0; i < (n ? n : 1) && at < *count; i++, at++) {
			const size_t length = tokenizer_bytes(tokenizer, ids[at], false, &bytes);
			if (!form_advance(form, &s, bytes, length))
				return -1;
		}
	}
	return told;
}

static void are_the_tokenizers_own(void)
{
	size_t all = 0, count;
	int known = 0;
	REQUIRE(index_ != NULL);
	for (unsigned i = 0; i < CASES; i++) {
		struct form *form = form_at(i);
		REQUIRE(form != NULL);
		for (unsigned k = 0; k < 5 && cases[i].answer[k]; k++) {
			const int n = told(form, cases[i].answer[k], &count);
			EXPECT(n >= 0);
			/* Kept, and told again. */
			EXPECT_EQ(told(form, cases[i].answer[k], &count), n);
			all += count + 1;
			known += n > 0 ? n : 0;
		}
		form_close(&form);
	}
	printf("# of %zu tokens, ends among them, %d are told\n", all, known);
	EXPECT(known * 5 > (int)all * 2);
	EXPECT((size_t)known < all);
}

static uint32_t pick(const uint32_t *bits, uint32_t allowed, uint32_t length)
{
	uint32_t skip = draw(allowed), last = UINT32_MAX;
	const char *bytes;
	for (uint32_t id = 0; id < tokenizer_count(tokenizer); id++) {
		if (!(bits[id / 32] >> id % 32 & 1))
			continue;
		if (tokenizer_is_end(tokenizer, id))
			return id;
		/* Late in a walk rather what closes something. */
		if (length > 100 && tokenizer_bytes(tokenizer, id, false, &bytes) == 1 &&
		    memchr("\"]}0\\u", bytes[0], 6) && draw(2))
			return id;
		if (skip-- == 0)
			last = id;
	}
	return last;
}

/* A walk to the form's end: every token that is told is of the mask where it stands. */
static bool walk(struct form *form, uint32_t *bits)
{
	uint32_t forced[FORM_FORCED_MAX], again[FORM_FORCED_MAX];
	struct form_state s;
	const char *bytes;
	form_start(form, &s);
	for (uint32_t steps = 0; steps < WALK_MAX;) {
		uint32_t n = form_forced(form, &s, UINT32_MAX, forced);
		if (n != form_forced(form, &s, UINT32_MAX, again) || memcmp(forced, again, n * sizeof *forced))
			return false;
		const uint32_t allowed = form_mask(form, &s, bits);
		if (allowed == 1 && n == 0)
			return false; /* the only one would have been told */
		if (n == 0) {
			forced[0] = pick(bits, allowed, steps);
			n = 1;
		}
		for (uint32_t i = 0; i < n; i++, steps++) {
			if (i > 0)
				form_mask(form, &s, bits);
			if (!(bits[forced[i] / 32] >> forced[i] % 32 & 1))
				return false;
			if (tokenizer_is_end(tokenizer, forced[i]))
				return form_complete(form, &s);
			const size_t length = tokenizer_bytes(tokenizer, forced[i], false, &bytes);
			if (!form_advance(form, &s, bytes, length))
				return false;
		}
	}
	return false;
}

static void are_of_the_masks(void)
{
	REQUIRE(index_ != NULL);
	uint32_t *bits = malloc((tokenizer_count(tokenizer) + 31) / 32 * sizeof *bits);
	REQUIRE(bits != NULL);
	seed = 7;
	for (unsigned i = 0; i < CASES; i++) {
		struct form *form = form_at(i);
		REQUIRE(form != NULL);
		for (unsigned k = 0; k < (*file ? 3 : 20); k++)
			EXPECT(walk(form, bits));
		form_close(&form);
	}
	free(bits);
}

static void closes(void)
{
	form_index_close(&index_);
	tokenizer_close(&tokenizer);
	model_close(&model);
	EXPECT(model == NULL);
}

int main(void)
{
	for (unsigned i = 0; i < sizeof files / sizeof files[0]; i++) {
		file = files[i];
		printf("# %s\n", *file ? file : "a vocabulary of our own");
		TAP_RUN(opens, "a vocabulary");
		if (!index_)
			continue;
		TAP_RUN(are_the_tokenizers_own, "forced tokens are those of the whole answer");
		TAP_RUN(are_of_the_masks, "forced tokens are of the masks, and walks end");
		TAP_RUN(closes, "all is closed");
	}
	return tap_done();
}
