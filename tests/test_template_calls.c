/*
 * Calls must be found in an assistant's text, and never by half. Method: texts by hand for each
 * template's marks and for answers without marks, and every prefix of texts with calls.
 */
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/json.h"
#include "runtime/template.h"
#include "tests/tap.h"

#define CALL(name, arguments) \
	"<tool_call>\n{\"name\": \"" name "\", \"arguments\": " arguments "}\n</tool_call>"

static struct calls parse_as(const char *name, const char *text, bool final)
{
	const struct template *t;
	struct calls c;
	template_find(name, &t);
	calls_parse(t, text, strlen(text), final, &c);
	return c;
}

static struct calls parse(const char *text, bool final)
{
	return parse_as("smollm2", text, final);
}

static bool is(struct text text, const char *expected)
{
	return text.length == strlen(expected) && !memcmp(text.at, expected, text.length);
}

static void finds_calls(void)
{
	struct calls c = parse("Let me look.\n" CALL("read", "{\"p\": [1, \"</tool_call>\"]}"), true);
	EXPECT_EQ(c.state, CALLS_COMPLETE);
	EXPECT_EQ(c.count, 1);
	EXPECT_EQ(c.text_length, 13);
	EXPECT(c.call[0].name.length == 4 && !memcmp(c.call[0].name.at, "read", 4));
	EXPECT(c.call[0].arguments.length == 26 && c.call[0].arguments.at[0] == '{');
	c = parse(CALL("a", "{}") "\n" CALL("b", "{}") " and " CALL("c", "{}"), false);
	EXPECT_EQ(c.state, CALLS_COMPLETE);
	EXPECT_EQ(c.count, 3);
	EXPECT_EQ(c.text_length, 0);
	EXPECT_EQ(c.call[2].name.at[0], 'c');
	/* Without line ends, with the members turned round, with another member. */
	c = parse("<tool_call>{\"arguments\":{},\"id\":7,\"name\":\"a\"}</tool_call>", false);
	EXPECT_EQ(c.state, CALLS_COMPLETE);
	/* The closing mark is missing at the end. */
	c = parse("<tool_call>\n{\"name\": \"a\", \"arguments\": {}}\n</tool", false);
	EXPECT_EQ(c.state, CALLS_PARTIAL);
	c = parse("<tool_call>\n{\"name\": \"a\", \"arguments\": {}}\n</tool", true);
	EXPECT_EQ(c.state, CALLS_COMPLETE);
	/* A good one after a broken one. */
	c = parse("<tool_call>no" CALL("a", "{}"), false);
	EXPECT_EQ(c.state, CALLS_COMPLETE);
	EXPECT_EQ(c.text_length, 13);
	/* A broken one after a good one. */
	c = parse(CALL("a", "{}") "<tool_call>[]", true);
	EXPECT_EQ(c.state, CALLS_COMPLETE);
	EXPECT_EQ(c.count, 1);
}

static void finds_none(void)
{
	static const char *const broken[] = {
		"<tool_call>\n[]\n</tool_call>", "<tool_call>x", "<tool_call></tool_call>",
		CALL("a", "[]"), CALL("a", "\"{}\""), CALL("", "{}"), CALL("a\\n", "{}"), CALL("a", "{,}"),
		"<tool_call>{\"name\":\"a\"}</tool_call>", "<tool_call>{\"arguments\":{}}</tool_call>",
		"<tool_call>{\"name\":1,\"arguments\":{}}</tool_call>",
		"<tool_call>{\"name\":\"a\",\"arguments\":{}} x</tool_call>",
		"<tool_call>{\"name\":\"a\",\"arguments\":{}}}</tool_call>", CALL("a", "{\"x\":\"\xff\"}"),
		CALL("a234567890123456789012345678901234567890123456789012345678901234567890", "{}"),
	};
	for (unsigned i = 0; i < sizeof broken / sizeof broken[0]; i++) {
		struct calls c = parse(broken[i], false);
		if (!EXPECT(c.state == CALLS_BROKEN && c.count == 0) ||
		    !EXPECT(c.text_length == strlen(broken[i])) || !EXPECT(c.reason && c.reason[0]))
			printf("# %s\n", broken[i]);
	}
	char deep[200] = "<tool_call>{\"name\": \"a\", \"arguments\": {\"x\": ";
	memset(deep + strlen(deep), '[', 63);
	struct calls c = parse(deep, false);
	EXPECT(c.state == CALLS_BROKEN && c.reason && !strcmp(c.reason, "the JSON is nested deeper than 64"));
	EXPECT_EQ(parse("", false).state, CALLS_NONE);
	EXPECT_EQ(parse("a < b <tool_cal", false).state, CALLS_MAYBE);
	EXPECT_EQ(parse("a < b <tool_cal", false).text_length, 6);
	EXPECT_EQ(parse("a < b <tool_cal", true).state, CALLS_NONE);
	EXPECT_EQ(parse("a < b <tool_cal", true).text_length, 15);
	EXPECT_EQ(parse("a < b <tool_ca!", false).state, CALLS_NONE);
	EXPECT_EQ(parse("<tool_call>\n{\"name\": \"a", false).state, CALLS_PARTIAL);
	EXPECT_EQ(parse("<tool_call>\n{\"name\": \"a", true).state, CALLS_BROKEN);
}

/* Mistral's: a control token, then a list. */
static void finds_lists(void)
{
	static const char two[] = "Well. [TOOL_CALLS][{\"name\": \"a\", \"arguments\": {\"x\": [1]}, \"id\": "
				  "\"abcdefgh1\"}, {\"name\": \"b\", \"arguments\": {}, \"id\": \"short\"}]";
	struct calls c = parse_as("mistral", two, true);
	EXPECT_EQ(c.state, CALLS_COMPLETE);
	EXPECT_EQ(c.count, 2);
	EXPECT_EQ(c.text_length, 6);
	EXPECT(is(c.call[0].name, "a") && is(c.call[0].arguments, "{\"x\": [1]}"));
	EXPECT(is(c.call[0].id, "abcdefgh1"));
	EXPECT(is(c.call[1].name, "b") && c.call[1].id.length == 0);
	c = parse_as("mistral", two, false);
	EXPECT_EQ(c.count, 2);
	c = parse_as("mistral", "[TOOL_CALLS] {\"name\": \"a\", \"arguments\": {}}", true);
	EXPECT_EQ(c.count, 1);
	c = parse_as("mistral", "[TOOL_CALLS][{\"name\": \"a\", \"arguments\": {}}, {\"name\": \"b\"", true);
	EXPECT_EQ(c.count, 1); /* the second is cut off: not by half */
	c = parse_as("mistral", "x[TOOL_CALLS][{\"name\": \"b\"", true);
	EXPECT_EQ(c.state, CALLS_BROKEN);
	EXPECT(c.reason && strstr(c.reason, "cut off"));
	EXPECT_EQ(parse_as("mistral", "x[TOOL_CALLS][{\"name\": \"b\"", false).state, CALLS_PARTIAL);
	EXPECT_EQ(parse_as("mistral", "x[TOOL_CALLS]", false).text_length, 1);
	EXPECT_EQ(parse_as("mistral", "x[TOOL_CALLS][]", true).state, CALLS_BROKEN);
	EXPECT_EQ(parse_as("mistral", "x[TOOL_", false).state, CALLS_MAYBE);
	EXPECT_EQ(parse_as("mistral", "x[TOOL_X", false).state, CALLS_NONE);
	EXPECT_EQ(parse_as("mistral", CALL("a", "{}"), true).count, 1); /* as forced calls are written */
	EXPECT_EQ(parse("[TOOL_CALLS][{\"name\": \"a\", \"arguments\": {}}]", true).state, CALLS_NONE);
	const struct template *t;
	REQUIRE(template_find("mistral", &t) == 0);
	EXPECT(!strcmp(template_call_mark(t), "[TOOL_CALLS]"));
}

/* Llama's: the object alone, or behind python_tag, several parted by ';'. */
static void finds_rows(void)
{
	struct calls c = parse_as("llama-3.1", "{\"name\": \"a\", \"parameters\": {\"x\": 1}}", true);
	EXPECT_EQ(c.state, CALLS_COMPLETE);
	EXPECT(c.count == 1 && is(c.call[0].arguments, "{\"x\": 1}"));
	c = parse_as("llama-3.1", "<|python_tag|>{\"name\": \"a\", \"parameters\": {}}; {\"name\": \"b\", "
				  "\"parameters\": {}}", true);
	EXPECT_EQ(c.count, 2);
	c = parse_as("llama-3.1", "{\"name\": \"a\", \"parameters\": {}};{\"name\": \"b\", \"parameters\": {}}\n",
		     true);
	EXPECT_EQ(c.count, 2);
	EXPECT_EQ(c.text_length, 0);
	c = parse_as("llama-3.1", "<|python_tag|>print(1)", true);
	EXPECT_EQ(c.state, CALLS_BROKEN);
	EXPECT_EQ(c.text_length, strlen("<|python_tag|>print(1)"));
	c = parse_as("llama-3.1", "It is {\"name\": \"a\", \"parameters\": {}}", true);
	EXPECT_EQ(c.state, CALLS_NONE);
	c = parse_as("llama-3.1", "{\"name\": \"a\", \"parameters\": {}} is what I would call", true);
	EXPECT_EQ(c.state, CALLS_NONE);
}

static void finds_bare(void)
{
	static const char *const none[] = {
		"{\"name\": \"a\", \"arguments\": {}} and more", "{\"result\": 3}", "{\"name\": \"a\"}",
		"{}", "{",
		"Answer: {\"name\": \"a\", \"arguments\": {}}", "[{\"name\": \"a\", \"arguments\": {}}]",
		"{\"name\": \"a\", \"arguments\": {}}{\"name\": \"a\", \"arguments\": {}}", "```", "```json",
		"```json\n{\"name\": \"a\", \"arguments\": {}}\n``` is the call", "``` ```", " ",
		"{\"name\": \"a\", \"arg",
	};
	struct calls c = parse(" \n{\"name\": \"a\", \"arguments\": {\"p\": \"}\"}}\n", true);
	EXPECT_EQ(c.state, CALLS_COMPLETE);
	EXPECT_EQ(c.text_length, 0);
	EXPECT(c.count == 1 && is(c.call[0].name, "a") && is(c.call[0].arguments, "{\"p\": \"}\"}"));
	c = parse("```json\n{\"name\": \"a\", \"arguments\": {}}\n```", true);
	EXPECT_EQ(c.count, 1);
	c = parse("```\n{\"arguments\": {}, \"name\": \"a\"}```\n", true);
	EXPECT_EQ(c.count, 1);
	for (unsigned i = 0; i < sizeof none / sizeof none[0]; i++) {
		c = parse(none[i], true);
		if (!EXPECT(c.count == 0 && c.state == CALLS_NONE && c.text_length == strlen(none[i])))
			printf("# %s\n", none[i]);
	}
	/* While it grows it is held back, but not what is plainly something else. */
	EXPECT_EQ(parse("{\"name\": \"a\", \"arguments\": {}}", false).state, CALLS_PARTIAL);
	EXPECT_EQ(parse("{\"na", false).state, CALLS_PARTIAL);
	EXPECT_EQ(parse("{\"nb", false).state, CALLS_NONE);
	EXPECT_EQ(parse("\n", false).state, CALLS_MAYBE);
	EXPECT_EQ(parse("``", false).text_length, 0);
	EXPECT_EQ(parse("```py", false).text_length, 5);
	/* Behind other text it is text. */
	const struct template *t;
	REQUIRE(template_find("chatml", &t) == 0);
	static const char behind[] = "x{\"name\": \"a\", \"arguments\": {}}";
	calls_parse_from(t, behind, sizeof behind - 1, 1, true, &c);
	EXPECT_EQ(c.state, CALLS_NONE);
	calls_parse_from(t, "x" CALL("a", "{}"), 1 + strlen(CALL("a", "{}")), 1, true, &c);
	EXPECT(c.state == CALLS_COMPLETE && c.text_length == 1);
}

static void prefixes_never_go_back(void)
{
	static const char *const text[] = {
		"```json\n{\"name\": \"a\", \"arguments\": {}}\n```", "{\"name\": \"a\", \"arguments\": {}} ",
		"a[TOOL_CALLS] [{\"name\": \"a\", \"arguments\": {}}, {\"name\": \"b\", \"arguments\": {}}] [TOOL",
		"<|python_tag|>{\"name\": \"a\", \"parameters\": {}} ; {\"name\": \"b\", \"parameters\": {}}",
		"{\"name\": \"a\", \"arguments\": {}} x" CALL("a", "{}"),
		"Hi <b> <tool_" CALL("a", "{\"x\": \"<tool_call>\"}") "\n" CALL("b", "{\"n\": 12}") " end <",
		"<tool_call>{]" CALL("a", "{}") CALL("b", "{"), CALL("a", "{\"s\": \"\\u00e9\\\"\"}") "<tool_call>",
		"<<tool_call><tool_call>{\"name\":\"x\",\"arguments\":{}}</tool_call>",
	};
	static const char *const name[] = {"smollm2", "mistral", "llama-3.1"};
	for (unsigned i = 0; i < sizeof text / sizeof text[0] * 3; i++) {
		struct calls before = {0};
		const struct template *t;
		bool found = false;
		template_find(name[i % 3], &t);
		for (size_t n = 0; n <= strlen(text[i / 3]); n++) {
			struct calls c;
			char *exact = malloc(n + 1);
			memcpy(exact, text[i / 3], n);
			exact[n] = 0;
			calls_parse(t, exact, n, false, &c);
			if (!EXPECT(c.text_length >= before.text_length))
				printf("# %s: %.*s\n", name[i % 3], (int)n, exact);
			EXPECT(c.text_length <= n);
			EXPECT(c.count >= before.count);
			if (before.state == CALLS_COMPLETE)
				EXPECT(c.state == CALLS_COMPLETE && c.text_length == before.text_length);
			EXPECT((c.state == CALLS_COMPLETE) == (c.count > 0));
			for (uint32_t k = 0; k < c.count; k++) {
				struct json value;
				EXPECT(json_check(c.call[k].arguments.at, c.call[k].arguments.length,
						  &value) == 0);
			}
			before = c;
			calls_parse(t, exact, n, true, &c);
			EXPECT(c.state != CALLS_MAYBE && c.state != CALLS_PARTIAL);
			EXPECT((c.state == CALLS_BROKEN) == (c.reason != NULL));
			EXPECT((c.state == CALLS_COMPLETE) == (c.count > 0));
			/* What was shown while it grew is not taken back. */
			EXPECT(c.text_length >= before.text_length || c.state == CALLS_COMPLETE);
			found |= c.count > 0;
			free(exact);
		}
		/* Each is a call in some template; ChatML's blocks are in all. */
		EXPECT(found || (i / 3 >= 2 && i / 3 <= 3));
	}
}

static void many_calls_are_bounded(void)
{
	enum { MARKS = 20000 };
	char *text = malloc(MARKS * 40);
	const struct template *t;
	struct calls c;
	size_t n = 0;
	REQUIRE(text && template_find("smollm2", &t) == 0);
	for (unsigned i = 0; i < MARKS; i++)
		n += (size_t)sprintf(text + n, "<tool_call>{\"a");
	calls_parse(t, text, n, true, &c);
	EXPECT_EQ(c.state, CALLS_BROKEN);
	n = 0;
	for (unsigned i = 0; i < 20; i++)
		n += (size_t)sprintf(text + n, "%s", CALL("a", "{}"));
	calls_parse(t, text, n, true, &c);
	EXPECT_EQ(c.count, 16);
	free(text);
}

int main(void)
{
	TAP_RUN(finds_calls, "calls are found");
	TAP_RUN(finds_none, "what is not a call is text");
	TAP_RUN(finds_lists, "calls in Mistral's list");
	TAP_RUN(finds_rows, "calls as Llama writes them");
	TAP_RUN(finds_bare, "an answer that is nothing but a call");
	TAP_RUN(prefixes_never_go_back, "no prefix takes anything back");
	TAP_RUN(many_calls_are_bounded, "many marks, many calls");
	return tap_done();
}
