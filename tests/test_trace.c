/*
 * Goal: a trace says exactly what its file says, and what is wrong is refused with line and field.
 * Method: files of a few lines in each format, and the same with one fault each.
 */
#include "runtime/trace.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "sched/check.h"
#include "tests/tap.h"

static char path[] = "/tmp/hf-trace-XXXXXX", reason[TRACE_REASON_MAX];

static int read_bytes(enum trace_format format, const char *text, size_t length, struct trace *out)
{
	FILE *file = fopen(path, "wb");
	if (!file || fwrite(text, 1, length, file) != length || fclose(file) != 0)
		return 1;
	return trace_open(path, format, NULL, NULL, out, reason);
}

static int read_text(enum trace_format format, const char *text, struct trace *out)
{
	return read_bytes(format, text, strlen(text), out);
}

/* Whether the text is refused, with these words in the reason. */
static int refused(enum trace_format format, const char *text, const char *words)
{
	struct trace trace;
	const int err = read_text(format, text, &trace);
	if (err < 0 && strstr(reason, words) && !trace.turns && !trace.sessions)
		return 1;
	printf("# %s\n# gave %d, \"%s\"; wanted \"%s\"\n", text, err, reason, words);
	trace_close(&trace);
	return 0;
}

static void expect_turn(const struct trace *t, uint32_t index, struct trace_turn want)
{
	const struct trace_turn *turn = &t->turns[index];
	EXPECT_EQ(turn->at_ms, want.at_ms);
	EXPECT_EQ(turn->pause_ms, want.pause_ms);
	EXPECT_EQ(turn->prompt, want.prompt);
	EXPECT_EQ(turn->keep, want.keep);
	EXPECT_EQ(turn->completion, want.completion);
	EXPECT_EQ(turn->stop, want.stop);
}

static void weka(void)
{
	struct trace t;
	REQUIRE(read_text(TRACE_WEKA,
			  "{\"session\":\"a\",\"turns\":[[5,100,64,7,\"t\"],[9005,300,64,8,\"e\"],"
			  "[19005.5,301,301,0,\"o\"]]}\n"
			  "\n{\"turns\":[[0,1,0,1,\"e\"]],\"other\":null}", &t) == 0);
	EXPECT_EQ(t.session_count, 2);
	EXPECT_EQ(t.turn_count, 4);
	EXPECT_EQ(t.has_starts, 0);
	EXPECT_EQ(t.sessions[1].turn_first, 3);
	/* Nothing was there before the first prompt, whatever it says; one token is always computed. */
	expect_turn(&t, 0, (struct trace_turn){0, 9000, 100, 0, 7, TRACE_TOOL, 0, 0});
	expect_turn(&t, 1, (struct trace_turn){9000, 10000, 300, 64, 8, TRACE_END, 0, 0});
	expect_turn(&t, 2, (struct trace_turn){19000, 0, 301, 300, 0, TRACE_OTHER, 0, 0});
	trace_close(&t);
}

static void swebench(void)
{
	struct trace t;
	REQUIRE(read_text(TRACE_SWEBENCH,
			  "{\"turns\":[{\"reply_ms\":0,\"prompt_tokens\":10,\"completion_tokens\":5,"
			  "\"tool_ms\":100},{\"reply_ms\":700,\"prompt_tokens\":40,\"completion_tokens\":6,"
			  "\"tool_ms\":2000},{\"reply_ms\":1000,\"prompt_tokens\":20,"
			  "\"completion_tokens\":1,\"tool_ms\":null}]}", &t) == 0);
	expect_turn(&t, 0, (struct trace_turn){0, 100, 10, 0, 5, TRACE_TOOL, 0, 0});
	/* A tool cannot return after the reply to its result. */
	expect_turn(&t, 1, (struct trace_turn){100, 300, 40, 15, 6, TRACE_TOOL, 0, 0});
	expect_turn(&t, 2, (struct trace_turn){1000, 0, 20, 19, 1, TRACE_TOOL, 0, 0});
	trace_close(&t);
}

static void mooncake(void)
{
	struct trace t;
	/* The third goes on with the first; the second shares only the system prompt's block. */
	REQUIRE(read_text(TRACE_MOONCAKE,
			  "{\"timestamp\":10,\"input_length\":1300,\"output_length\":20,\"hash_ids\":[0,1,2]}\n"
			  "{\"timestamp\":20,\"input_length\":1200,\"output_length\":30,\"hash_ids\":[0,5,6]}\n"
			  "{\"timestamp\":70,\"input_length\":1900,\"output_length\":1,\"hash_ids\":[0,1,7,8]}\n"
			  "{\"timestamp\":90,\"input_length\":2100,\"output_length\":1,"
			  "\"hash_ids\":[0,1,7,9,10]}\n", &t) == 0);
	EXPECT_EQ(t.session_count, 2);
	EXPECT_EQ(t.has_starts, 1);
	EXPECT_EQ(t.sessions[0].turn_count, 3);
	EXPECT_EQ(t.sessions[1].start_ms, 10);
	expect_turn(&t, 0, (struct trace_turn){0, 60, 1300, 0, 20, TRACE_END, 0, 0});
	expect_turn(&t, 1, (struct trace_turn){60, 20, 1900, 1024, 1, TRACE_END, 0, 0});
	expect_turn(&t, 2, (struct trace_turn){80, 0, 2100, 1536, 1, TRACE_END, 0, 0});
	expect_turn(&t, 3, (struct trace_turn){0, 0, 1200, 0, 30, TRACE_END, 0, 0});
	trace_close(&t);
}

static void holdfast(void)
{
	const struct trace_turn turns[] = {{0, 0, 50, 0, 9, TRACE_TOOL, 0, 0}, {0, 0, 80, 59, 3, TRACE_END, 0, 0},
					   {0, 0, 30, 0, 2, TRACE_OTHER, 0, 0}};
	struct trace t;
	FILE *file = fopen(path, "wb");
	REQUIRE(file != NULL);
	EXPECT(trace_write_turn(file, 7, 1000, 400, &turns[0]) > 0);
	EXPECT(trace_write_turn(file, 9, 1200, 300, &turns[2]) > 0);
	EXPECT(trace_write_turn(file, 7, 2000, 150, &turns[1]) > 0);
	REQUIRE(fclose(file) == 0);
	REQUIRE(trace_open(path, TRACE_HOLDFAST, NULL, NULL, &t, reason) == 0);
	EXPECT_EQ(t.session_count, 2);
	EXPECT_EQ(t.has_starts, 1);
	EXPECT_EQ(t.sessions[1].start_ms, 200);
	expect_turn(&t, 0, (struct trace_turn){0, 600, 50, 0, 9, TRACE_TOOL, 0, 0});
	expect_turn(&t, 1, (struct trace_turn){1000, 0, 80, 59, 3, TRACE_END, 0, 0});
	expect_turn(&t, 2, (struct trace_turn){0, 0, 30, 0, 2, TRACE_OTHER, 0, 0});
	trace_close(&t);
}

static void refuses_lines(void)
{
	EXPECT(refused(TRACE_WEKA, "", "without a turn"));
	EXPECT(refused(TRACE_WEKA, "\n \n", "without a turn"));
	EXPECT(refused(TRACE_WEKA, "{\"turns\":[[0,1,0,1,\"e\"]]}\n{\"turns\":[[0,1,0,1,\"e\"]]",
		       "line 2: is not JSON"));
	EXPECT(refused(TRACE_WEKA, "\xff\xfe", "line 1: is not JSON"));
	EXPECT(refused(TRACE_WEKA, "[]", "line 1: is not an object"));
	EXPECT(refused(TRACE_SWEBENCH, "{}", "line 1: turns: is missing"));
	EXPECT(refused(TRACE_WEKA, "{\"turns\":3}", "line 1: turns: not a list"));
	EXPECT(refused(TRACE_WEKA, "{\"turns\":[]}", "line 1: turns: no turn"));
	EXPECT(refused(TRACE_SWEBENCH, "{\"turns\":[[0,1,0,1,\"e\"]]}", "turns: [0] is not an object"));
	struct trace t;
	EXPECT(read_bytes(TRACE_WEKA, "{\"turns\":[[0,1,0,1,\"e\"]]}\0\n", 27, &t) < 0);
	EXPECT(trace_open("/nonexistent/trace", TRACE_WEKA, NULL, NULL, &t, reason) == -ERR_NO_FILE);
	EXPECT(trace_open("/tmp", TRACE_WEKA, NULL, NULL, &t, reason) == -ERR_BAD_FILE);
	EXPECT(strstr(reason, "is a folder") != NULL);
}

static void refuses_fields(void)
{
	static const struct {
		enum trace_format format;
		const char *text, *words;
	} faults[] = {
		{TRACE_WEKA, "{\"turns\":[[0,9,0,1,\"t\"],[5,-1,0,1,\"t\"]]}",
		 "line 1: turns[1].prompt: not a count"},
		{TRACE_WEKA, "{\"turns\":[[0,0,0,1,\"t\"]]}", "turns[0].prompt: a prompt of no tokens"},
		{TRACE_WEKA, "{\"turns\":[[0,9,10,1,\"t\"]]}", "turns[0].kept: more than the prompt"},
		{TRACE_WEKA, "{\"turns\":[[0,9,0,1.5,\"t\"]]}", "turns[0].completion: not a count"},
		{TRACE_WEKA, "{\"turns\":[[0,9,0,1,\"x\"]]}", "turns[0].stop: not one of t, e, o"},
		{TRACE_WEKA, "{\"turns\":[[0,9,0,1]]}", "turns[0].stop: is missing"},
		{TRACE_WEKA, "{\"turns\":[[0,9,0,1,\"t\",1]]}", "not a list of 5"},
		{TRACE_WEKA, "{\"turns\":[[7,9,0,1,\"t\"],[6,9,0,1,\"t\"]]}",
		 "turns[1].t_ms: time runs backwards"},
		{TRACE_WEKA, "{\"turns\":[[1e300,9,0,1,\"t\"]]}", "turns[0].t_ms: not a time"},
		{TRACE_WEKA, "{\"turns\":[[-1,9,0,1,\"t\"]]}", "turns[0].t_ms: not a time"},
		{TRACE_WEKA, "{\"turns\":[[0,67108864,0,1,\"t\"]]}", "turns[0].prompt: not a count"},
		{TRACE_WEKA, "{\"turns\":[[\"0\",9,0,1,\"t\"]]}", "turns[0].t_ms: not a number"},
		{TRACE_SWEBENCH, "{\"turns\":[{\"prompt_tokens\":1,\"completion_tokens\":1,\"tool_ms\":1}]}",
		 "turns[0].reply_ms: is missing"},
		{TRACE_SWEBENCH, "{\"turns\":[{\"reply_ms\":9,\"prompt_tokens\":1,\"completion_tokens\":1,"
		 "\"tool_ms\":-5}]}", "turns[0].tool_ms: not a time"},
		{TRACE_SWEBENCH, "{\"turns\":[{\"reply_ms\":9,\"prompt_tokens\":1,\"completion_tokens\":1,"
		 "\"tool_ms\":0},{\"reply_ms\":8,\"prompt_tokens\":1,\"completion_tokens\":1,\"tool_ms\":0}]}",
		 "turns[1].reply_ms: time runs backwards"},
		{TRACE_MOONCAKE, "{\"timestamp\":9,\"input_length\":1,\"output_length\":1,\"hash_ids\":[1]}\n"
		 "{\"timestamp\":8,\"input_length\":1,\"output_length\":1,\"hash_ids\":[1]}",
		 "line 2: timestamp: time runs backwards"},
		{TRACE_MOONCAKE, "{\"timestamp\":9,\"input_length\":1,\"output_length\":1,\"hash_ids\":[-1]}",
		 "hash_ids: not a count"},
		{TRACE_MOONCAKE, "{\"timestamp\":9,\"input_length\":1,\"output_length\":1,\"hash_ids\":1}",
		 "hash_ids: not a list"},
		{TRACE_HOLDFAST, "{\"t_ms\":1,\"session\":1,\"prompt\":5,\"kept\":6,\"completion\":1,"
		 "\"stop\":\"end\",\"answer_ms\":1}", "kept: more than the prompt"},
		{TRACE_HOLDFAST, "{\"t_ms\":5,\"session\":1,\"prompt\":5,\"kept\":0,\"completion\":1,"
		 "\"stop\":\"end\",\"answer_ms\":1}\n{\"t_ms\":4,\"session\":1,\"prompt\":5,\"kept\":0,"
		 "\"completion\":1,\"stop\":\"end\",\"answer_ms\":1}", "line 2: t_ms: time runs backwards"},
	};
	for (unsigned i = 0; i < sizeof faults / sizeof faults[0]; i++)
		EXPECT(refused(faults[i].format, faults[i].text, faults[i].words));
}

static void refuses_long_lines(void)
{
	const size_t length = TRACE_LINE_MAX + 100;
	char *text = malloc(length);
	struct trace t;
	REQUIRE(text != NULL);
	memset(text, ' ', length);
	/* As long as it may be, then one byte more. */
	static const char turn[] = "{\"turns\":[[0,1,0,1,\"e\"]]}";
	memcpy(text, turn, strlen(turn));
	EXPECT_EQ(read_bytes(TRACE_WEKA, text, TRACE_LINE_MAX, &t), 0);
	trace_close(&t);
	EXPECT(read_bytes(TRACE_WEKA, text, TRACE_LINE_MAX + 1, &t) < 0);
	EXPECT(strstr(reason, "line 1: longer than") != NULL);
	free(text);
}

int main(void)
{
	const int file = mkstemp(path);
	if (file < 0)
		return 1;
	close(file);
	TAP_RUN(weka, "a coding trace");
	TAP_RUN(swebench, "an agent's trace");
	TAP_RUN(mooncake, "a chat service's trace: requests become sessions");
	TAP_RUN(holdfast, "our own format, written and read");
	TAP_RUN(refuses_lines, "lines that are none are refused");
	TAP_RUN(refuses_fields, "fields that are wrong are refused with line and name");
	TAP_RUN(refuses_long_lines, "a line has a longest length");
	unlink(path);
	return tap_done();
}
