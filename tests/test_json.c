/*
 * JSON: what the standard allows is taken, all else refused; a walk finds what is there; what is
 * written is what Python writes. Method: lists by hand, every prefix of a document, random documents
 * and random bytes.
 */
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/json.h"
#include "sched/check.h"
#include "tests/draw.h"
#include "tests/tap.h"

/* An exact copy, so that a sanitizer sees a read beyond the end. */
static int check(const char *text, size_t length)
{
	char *copy = malloc(length + 1);
	struct json value;
	memcpy(copy, text, length);
	char *exact = realloc(copy, length ? length : 1);
	int code = json_check(exact, length, &value);
	free(exact);
	return code;
}

static void takes_valid(void)
{
	static const char *const good[] = {
		"null", "true", "false", "0", "-0", "12", "-1.5e+10", "1E5", "0.1", "\"\"", "\"a\"",
		" [ ] ", "{}", "[1,2]", "{\"a\":1}", "{\"a\":{\"b\":[null]}}", "\t\r\n 1 \n",
		"\"\\u00e9\\ud83d\\ude42\\\\\\/\\\"\"", "\"\xc3\xa9\xf0\x9f\x99\x82\"", "\"\\u0000\"",
		"[[],{},[{}]]", "{\"\":\"\"}", "{\"a\":1,\"a\":2}",
	};
	for (unsigned i = 0; i < sizeof good / sizeof good[0]; i++)
		if (!EXPECT(check(good[i], strlen(good[i])) == 0))
			printf("# %s\n", good[i]);
}

static void refuses_invalid(void)
{
	static const char *const bad[] = {
		"", " ", "nul", "tru", "True", "01", "+1", "-", "1.", ".5", "1e", "1e+", "0x1", "NaN",
		"Infinity", "\"", "\"a", "'a'", "\"\n\"", "\"\t\"", "\"\\x\"", "\"\\u12\"", "\"\\u12g4\"",
		"\"\\ud800\"", "\"\\ud800x\"", "\"\\ud800\\u0041\"", "\"\\udc00\"", "[", "]", "[1", "[1,",
		"[1,]", "[,1]", "[1 2]", "{", "}", "{a:1}", "{\"a\"}", "{\"a\":}", "{\"a\":1,}",
		"{\"a\" 1}", "{1:2}", "[1}", "{\"a\":1]", "1 2", "{} []", "null,", ":", ",", "\"a\" \"b\"",
		"\"\x80\"", "\"\xc0\xaf\"", "\"\xed\xa0\x80\"", "\"\xf4\x90\x80\x80\"", "\"\xc3\"", "\xff",
		"// a", "[1]/**/",
	};
	for (unsigned i = 0; i < sizeof bad / sizeof bad[0]; i++)
		if (!EXPECT(check(bad[i], strlen(bad[i])) == -ERR_BAD_ARG))
			printf("# %s\n", bad[i]);
	EXPECT_EQ(check("\"a\0b\"", 5), -ERR_BAD_ARG);
	EXPECT_EQ(check("1\0", 2), -ERR_BAD_ARG);
}

static void limits_depth(void)
{
	char text[2 * JSON_DEPTH_MAX + 2];
	memset(text, '[', JSON_DEPTH_MAX);
	memset(text + JSON_DEPTH_MAX, ']', JSON_DEPTH_MAX);
	EXPECT_EQ(check(text, 2 * JSON_DEPTH_MAX), 0);
	memset(text, '[', JSON_DEPTH_MAX + 1);
	memset(text + JSON_DEPTH_MAX + 1, ']', JSON_DEPTH_MAX + 1);
	EXPECT_EQ(check(text, 2 * JSON_DEPTH_MAX + 2), -ERR_OUT_OF_RANGE);
}

static const char document[] =
	" {\"name\": \"read\\n\\u00e9\", \"list\": [1, -2.5, [], {\"x\": null}], \"deep\":"
	"{\"a\":{\"b\":{\"c\":[true,false]}}}, \"n\":-9223372036854775808, \"e\":\"\\ud83d\\ude42\"} ";

static void scans_prefixes(void)
{
	struct json value;
	size_t whole = strlen(document) - 1;
	for (size_t n = 0; n < strlen(document); n++)
		EXPECT_EQ(json_scan(document, n, false, &value), n < whole ? JSON_PART : JSON_WHOLE);
	EXPECT_EQ(json_scan("12", 2, false, &value), JSON_PART);
	EXPECT_EQ(json_scan("12", 2, true, &value), JSON_WHOLE);
	EXPECT_EQ(json_scan("12 ", 3, false, &value), JSON_WHOLE);
	EXPECT_EQ(json_scan("{} x", 4, false, &value), JSON_WHOLE);
	EXPECT_EQ(value.length, 2);
	EXPECT_EQ(json_scan("{x", 2, false, &value), JSON_WRONG);
}

static void walks(void)
{
	struct json all, value, item, key;
	int64_t n = 0;
	char text[64];
	REQUIRE(json_check(document, strlen(document), &all) == 0);
	EXPECT_EQ(json_kind(all), JSON_OBJECT);
	REQUIRE(json_find(all, "name", &value));
	EXPECT(json_equals(value, "read\n\xc3\xa9", 7));
	EXPECT(!json_equals(value, "read\n\xc3\xa9!", 8));
	EXPECT(!json_equals(value, "read", 4));
	EXPECT_EQ(json_string(value, text), 7);
	REQUIRE(json_find(all, "e", &value));
	EXPECT(json_string(value, text) == 4 && !memcmp(text, "\xf0\x9f\x99\x82", 4));
	REQUIRE(json_find(all, "n", &value));
	EXPECT(json_integer(value, INT64_MIN, INT64_MAX, &n) && n == INT64_MIN);
	EXPECT(!json_integer(value, 0, 5, &n));
	REQUIRE(json_find(all, "list", &value));
	struct json_walk walk = json_walk(value);
	unsigned count = 0;
	for (; json_next(&walk, &key, &item); count++) {
		EXPECT_EQ(key.length, 0);
		EXPECT_EQ(json_kind(item), count < 2 ? JSON_NUMBER : count == 2 ? JSON_ARRAY :
			  JSON_OBJECT);
		EXPECT_EQ(json_integer(item, -100, 100, &n), count == 0);
	}
	EXPECT_EQ(count, 4);
	EXPECT(!json_find(all, "x", &value)); /* only in a member's member */
	EXPECT(!json_find(item, "y", &value));
	walk = json_walk(all);
	for (count = 0; json_next(&walk, &key, &item); count++)
		EXPECT(key.at[0] == '"');
	EXPECT_EQ(count, 5);
	REQUIRE(json_check("{\"a\":1,\"b\":2,\"a\":3}", 19, &all) == 0);
	REQUIRE(json_find(all, "a", &value));
	EXPECT(json_integer(value, 3, 3, &n));
	REQUIRE(json_check("18446744073709551616", 20, &all) == 0);
	EXPECT(!json_integer(all, INT64_MIN, INT64_MAX, &n));
}

/* Each pair: what comes in, what Python 3's json.dumps(json.loads(…), ensure_ascii=False) gives, but
   for floats beyond a double's range. */
static void writes_like_python(void)
{
	static const char *const pair[][2] = {
			{"{\"a\":[1,2,{\"b\":null}],\"c\":true}",
					"{\"a\": [1, 2, {\"b\": null}], \"c\": true}"},
			{" [ ]", "[]"},
			{"{ }", "{}"},
			{"[ 1 ,2 ]", "[1, 2]"},
			{"-0", "0"},
			{"-0.0", "-0.0"},
			{"1.0", "1.0"},
			{"1e5", "100000.0"},
			{"1E16", "1e+16"},
			{"123456789012345678", "123456789012345678"},
			{"1e15", "1000000000000000.0"},
			{"0.1", "0.1"},
			{"0.30000000000000004", "0.30000000000000004"},
			{"1e-4", "0.0001"},
			{"1e-5", "1e-05"},
			{"1.5e300", "1.5e+300"},
			{"1e400", "1e400"},
			{"-1E0400", "-1E0400"},
			{"2.50", "2.5"},
			{"1e-400", "0.0"},
			{"5e-324", "5e-324"},
			{"123456.789e2", "12345678.9"},
			{"0.000123456789", "0.000123456789"},
			{"\"\\u00e9\\/\\u0041\"", "\"\xc3\xa9/A\""},
			{"\"\\ud83d\\ude42\"", "\"\xf0\x9f\x99\x82\""},
			{"\"\\u0000\\u001f\\b\\f\\n\\r\\t\\\"\\\\\"",
					"\"\\u0000\\u001f\\b\\f\\n\\r\\t\\\"\\\\\""},
			{"\"\x7f<>&'\"", "\"\x7f<>&'\""},
			{"{\"a\\n\":{\"b,:\":\"[]{}\"}}", "{\"a\\n\": {\"b,:\": \"[]{}\"}}"},
	};
	for (unsigned i = 0; i < sizeof pair / sizeof pair[0]; i++) {
		struct json value;
		struct json_out out = {0};
		REQUIRE(json_check(pair[i][0], strlen(pair[i][0]), &value) == 0);
		EXPECT_EQ(json_write(value, &out), 0);
		if (!EXPECT(out.length == strlen(pair[i][1]) && !memcmp(out.bytes, pair[i][1], out.length)))
			printf("# %.*s, not %s\n", (int)out.length, out.bytes, pair[i][1]);
		free(out.bytes);
	}
	struct json_out out = {0};
	EXPECT_EQ(json_write_raw("x", 1, &out), 0);
	EXPECT_EQ(json_write_string("a\xff\"\n", 4, &out), 0);
	EXPECT(out.length == 11 && !memcmp(out.bytes, "x\"a\xef\xbf\xbd\\\"\\n\"", 11));
	free(out.bytes);
}

/* Random bytes of JSON's own alphabet: whatever is taken is written as what is taken again, and then
   stays the same. */
static void writes_stable(void)
{
	static const char *const word[] = {"{", "}", "[", "]", ",", ":", "\"a\"", "\"\\u00e9\"", "1",
					   "-2.5", "true", "null", " ", "1e5", "\"", "\\", "\"k\":"};
	unsigned taken = 0;
	for (unsigned round = 0; round < 300000; round++) {
		char text[128];
		size_t n = 0;
		struct json value, again;
		struct json_out one = {0}, two = {0};
		for (unsigned k = 1 + draw(8); k > 0; k--) {
			const char *w = word[draw(sizeof word / sizeof word[0])];
			memcpy(text + n, w, strlen(w));
			n += strlen(w);
		}
		if (json_check(text, n, &value) != 0)
			continue;
		taken++;
		REQUIRE(json_write(value, &one) == 0);
		REQUIRE(json_check(one.bytes, one.length, &again) == 0);
		REQUIRE(json_write(again, &two) == 0);
		REQUIRE(one.length == two.length && !memcmp(one.bytes, two.bytes, one.length));
		free(one.bytes);
		free(two.bytes);
	}
	printf("# %u taken\n", taken);
	EXPECT(taken > 1000);
}

int main(void)
{
	TAP_RUN(takes_valid, "valid texts are taken");
	TAP_RUN(refuses_invalid, "invalid texts are refused");
	TAP_RUN(limits_depth, "the depth has a limit");
	TAP_RUN(scans_prefixes, "a prefix is a part, never wrong");
	TAP_RUN(walks, "walks, finds, strings, integers");
	TAP_RUN(writes_like_python, "writes as Python does");
	TAP_RUN(writes_stable, "what is written is taken and written the same");
	return tap_done();
}
