/*
 * What one line of each trace format says. Each field is looked up by name, checked for its kind
 * and range, and refused with its name.
 */
#include "runtime/trace_inside.h"

#include <stdlib.h>
#include <string.h>

#include "sched/check.h"


/* A field of a turn in a list, for a refusal: "turns[3].prompt". */
struct field {
	char name[60];
};

static struct field field_in(uint32_t turn, const char *name)
{
	struct field field;
	snprintf(field.name, sizeof field.name, "turns[%u].%s", turn, name);
	return field;
}

static int count_read(struct trace_reader *r, struct json value, const char *field, int64_t most,
		      int64_t *out)
{
	if (json_kind(value) != JSON_NUMBER)
		return trace_refuse(r, field, "not a number");
	if (!json_integer(value, 0, most, out))
		return trace_refuse(r, field, "not a count in 0 .. %lld", (long long)most);
	return 0;
}

/* Milliseconds, in whole; a fraction is cut. */
static int time_read(struct trace_reader *r, struct json value, const char *field, int64_t *out)
{
	char text[64];
	if (json_kind(value) != JSON_NUMBER)
		return trace_refuse(r, field, "not a number");
	if (json_integer(value, 0, TRACE_MS_MAX, out))
		return 0;
	if (value.length < sizeof text) {
		memcpy(text, value.at, value.length);
		text[value.length] = '\0';
		const double ms = strtod(text, NULL);
		if (ms >= 0 && ms <= (double)TRACE_MS_MAX) {
			*out = (int64_t)ms;
			return 0;
		}
	}
	return trace_refuse(r, field, "not a time in 0 .. %lld ms", (long long)TRACE_MS_MAX);
}

static int member(struct trace_reader *r, struct json object, const char *key, const char *field,
		  struct json *value)
{
	if (!json_find(object, key, value))
		return trace_refuse(r, field, "is missing");
	return 0;
}

static int member_count(struct trace_reader *r, struct json object, const char *key,
			const char *field, uint32_t *out)
{
	struct json value;
	int64_t n;
	TRY(member(r, object, key, field, &value));
	TRY(count_read(r, value, field, TRACE_TOKENS_MAX, &n));
	*out = (uint32_t)n;
	return 0;
}

static int member_time(struct trace_reader *r, struct json object, const char *key,
		       const char *field, int64_t *out)
{
	struct json value;
	TRY(member(r, object, key, field, &value));
	return time_read(r, value, field, out);
}

static int prompt_check(struct trace_reader *r, const char *field, uint32_t prompt)
{
	return prompt ? 0 : trace_refuse(r, field, "a prompt of no tokens");
}

/* The word's index in a list of words; refused if it is none of them. */
static int stop_read(struct trace_reader *r, struct json value, const char *field,
		     const char *const words[3], uint32_t *out)
{
	for (uint32_t i = 0; i < 3; i++) {
		if (json_kind(value) == JSON_STRING &&
		    json_equals(value, words[i], strlen(words[i]))) {
			*out = i;
			return 0;
		}
	}
	return trace_refuse(r, field, "not one of %s, %s, %s", words[0], words[1], words[2]);
}

static int turns_of(struct trace_reader *r, struct json line, struct json *turns)
{
	TRY(member(r, line, "turns", "turns", turns));
	if (json_kind(*turns) != JSON_ARRAY)
		return trace_refuse(r, "turns", "not a list");
	return 0;
}

/* weka */

static int weka_turn(struct trace_reader *r, uint32_t session, uint32_t index, struct json list)
{
	static const char *const names[] = {"t_ms", "prompt", "kept", "completion", "stop"};
	static const char *const stops[] = {"t", "e", "o"};
	struct trace_turn turn = {0};
	struct json value;
	int64_t at_ms = 0, n = 0;
	uint32_t place = 0;
	if (json_kind(list) != JSON_ARRAY)
		return trace_refuse(r, "turns", "[%u] is not a list of 5", index);
	for (struct json_walk walk = json_walk(list); json_next(&walk, NULL, &value); place++) {
		if (place > 4)
			return trace_refuse(r, "turns", "[%u] is not a list of 5", index);
		const struct field field = field_in(index, names[place]);
		if (place == 0)
			TRY(time_read(r, value, field.name, &at_ms));
		else if (place == 4)
			TRY(stop_read(r, value, field.name, stops, &turn.stop));
		else
			TRY(count_read(r, value, field.name, TRACE_TOKENS_MAX, &n));
		if (place == 1)
			turn.prompt = (uint32_t)n;
		else if (place == 2)
			turn.keep = (uint32_t)n;
		else if (place == 3)
			turn.completion = (uint32_t)n;
	}
	if (place < 5)
		return trace_refuse(r, field_in(index, names[place]).name, "is missing");
	TRY(prompt_check(r, field_in(index, "prompt").name, turn.prompt));
	if (turn.keep > turn.prompt)
		return trace_refuse(r, field_in(index, "kept").name, "more than the prompt");
	if (index == 0)
		r->sessions[session].start_ms = at_ms;
	else if (at_ms < r->sessions[session].last_at_ms)
		return trace_refuse(r, field_in(index, "t_ms").name, "time runs backwards");
	return trace_add_turn(r, session, at_ms, -1, &turn);
}

static int weka_line(struct trace_reader *r, struct json line)
{
	struct json turns, item;
	uint32_t session, index = 0;
	TRY(turns_of(r, line, &turns));
	TRY(trace_add_session(r, 0, &session));
	for (struct json_walk walk = json_walk(turns); json_next(&walk, NULL, &item); index++)
		TRY(weka_turn(r, session, index, item));
	/* Its start was read from its first turn; the trace has no clock common to all sessions. */
	r->sessions[session].start_ms = 0;
	return index ? 0 : trace_refuse(r, "turns", "no turn");
}

/* swebench */

static int swebench_turn(struct trace_reader *r, uint32_t session, uint32_t index, struct json item,
			 int64_t *reply_ms, int64_t *tool_ms)
{
	/* An agent's history only grows: all of it that the next prompt can have is kept. */
	struct trace_turn turn = {.keep = TRACE_TOKENS_MAX, .stop = TRACE_TOOL};
	struct json tool;
	const int64_t before_ms = *reply_ms, ready_ms = *reply_ms + *tool_ms;
	if (json_kind(item) != JSON_OBJECT)
		return trace_refuse(r, "turns", "[%u] is not an object", index);
	TRY(member_time(r, item, "reply_ms", field_in(index, "reply_ms").name, reply_ms));
	TRY(member_count(r, item, "prompt_tokens", field_in(index, "prompt_tokens").name,
			 &turn.prompt));
	TRY(member_count(r, item, "completion_tokens", field_in(index, "completion_tokens").name,
			 &turn.completion));
	/* null where no tool ran: after the last reply. */
	TRY(member(r, item, "tool_ms", field_in(index, "tool_ms").name, &tool));
	*tool_ms = 0;
	if (json_kind(tool) != JSON_NULL)
		TRY(time_read(r, tool, field_in(index, "tool_ms").name, tool_ms));
	TRY(prompt_check(r, field_in(index, "prompt_tokens").name, turn.prompt));
	if (index > 0 && *reply_ms < before_ms)
		return trace_refuse(r, field_in(index, "reply_ms").name, "time runs backwards");
	/* The first request's time is not in the trace: its reply's stands for it. */
	const int64_t at_ms = index > 0 && ready_ms < *reply_ms ? ready_ms : *reply_ms;
	if (index == 0)
		r->sessions[session].start_ms = at_ms;
	return trace_add_turn(r, session, at_ms, *reply_ms, &turn);
}

static int swebench_line(struct trace_reader *r, struct json line)
{
	struct json turns, item;
	uint32_t session, index = 0;
	int64_t reply_ms = 0, tool_ms = 0;
	TRY(turns_of(r, line, &turns));
	TRY(trace_add_session(r, 0, &session));
	for (struct json_walk walk = json_walk(turns); json_next(&walk, NULL, &item); index++)
		TRY(swebench_turn(r, session, index, item, &reply_ms, &tool_ms));
	r->sessions[session].start_ms = 0; /* as above */
	return index ? 0 : trace_refuse(r, "turns", "no turn");
}

/* mooncake */

/* The session that this prompt goes on with: the one whose last prompt's full blocks all stand at
   this one's beginning. An id names a block with all that is before it, so the last of them is
   enough; the deepest is right. */
static int mooncake_session(struct trace_reader *r, struct json ids, uint32_t *session,
			    uint32_t *id_count, uint64_t *last_full, uint32_t *keep)
{
	struct json value;
	int64_t id, before = -1;
	uint32_t at = 0;
	*session = UINT32_MAX;
	for (struct json_walk walk = json_walk(ids); json_next(&walk, NULL, &value); at++) {
		TRY(count_read(r, value, "hash_ids", INT64_MAX, &id));
		TRY(trace_add_id(r, (uint64_t)id));
		const uint32_t found = trace_find(&r->table, (uint64_t)id);
		if (found != UINT32_MAX && r->sessions[found].id_count == at + 1 &&
		    r->sessions[found].tail == (uint64_t)id) {
			*session = found;
			*keep = (at + 1) * TRACE_BLOCK;
		}
		/* The last block is rarely full, and then has another id in the next prompt. */
		if (before >= 0)
			*last_full = (uint64_t)before;
		before = id;
	}
	*id_count = at > 0 ? at - 1 : 0;
	return 0;
}

static int mooncake_line(struct trace_reader *r, struct json line)
{
	struct trace_turn turn = {.stop = TRACE_END};
	struct json ids;
	uint32_t session, full, keep = 0;
	uint64_t last_full = 0;
	int64_t at_ms;
	TRY(member_time(r, line, "timestamp", "timestamp", &at_ms));
	TRY(member_count(r, line, "input_length", "input_length", &turn.prompt));
	TRY(member_count(r, line, "output_length", "output_length", &turn.completion));
	TRY(member(r, line, "hash_ids", "hash_ids", &ids));
	TRY(prompt_check(r, "input_length", turn.prompt));
	if (json_kind(ids) != JSON_ARRAY)
		return trace_refuse(r, "hash_ids", "not a list");
	if (at_ms < r->last_ms)
		return trace_refuse(r, "timestamp", "time runs backwards");
	r->last_ms = at_ms;
	turn.id_first = r->id_count;
	TRY(mooncake_session(r, ids, &session, &full, &last_full, &keep));
	if (session == UINT32_MAX)
		TRY(trace_add_session(r, at_ms, &session));
	turn.keep = keep;
	turn.id_count = r->id_count - turn.id_first;
	TRY(trace_add_turn(r, session, at_ms, -1, &turn));
	/* A first block alone is a system prompt that many share; it names no session. */
	r->sessions[session].id_count = full > 1 ? full : 0;
	r->sessions[session].tail = last_full;
	return full > 1 ? trace_put(&r->table, last_full, session) : 0;
}

/* holdfast */

static int holdfast_line(struct trace_reader *r, struct json line)
{
	static const char *const stops[] = {"tool", "end", "other"};
	struct trace_turn turn = {0};
	struct json value;
	int64_t at_ms, answer_ms, name;
	TRY(member_time(r, line, "t_ms", "t_ms", &at_ms));
	TRY(member_time(r, line, "answer_ms", "answer_ms", &answer_ms));
	TRY(member(r, line, "session", "session", &value));
	TRY(count_read(r, value, "session", INT64_MAX, &name));
	TRY(member_count(r, line, "prompt", "prompt", &turn.prompt));
	TRY(member_count(r, line, "kept", "kept", &turn.keep));
	TRY(member_count(r, line, "completion", "completion", &turn.completion));
	TRY(member(r, line, "stop", "stop", &value));
	TRY(stop_read(r, value, "stop", stops, &turn.stop));
	TRY(prompt_check(r, "prompt", turn.prompt));
	if (turn.keep > turn.prompt)
		return trace_refuse(r, "kept", "more than the prompt");
	uint32_t session = trace_find(&r->table, (uint64_t)name);
	if (session == UINT32_MAX) {
		TRY(trace_add_session(r, at_ms, &session));
		TRY(trace_put(&r->table, (uint64_t)name, session));
	}
	if (at_ms < r->sessions[session].last_at_ms)
		return trace_refuse(r, "t_ms", "time runs backwards in its session");
	return trace_add_turn(r, session, at_ms, at_ms + answer_ms, &turn);
}

int trace_line(struct trace_reader *r, struct json line)
{
	static int (*const readers[])(struct trace_reader *, struct json) = {
		[TRACE_SWEBENCH] = swebench_line,
		[TRACE_WEKA] = weka_line,
		[TRACE_MOONCAKE] = mooncake_line,
		[TRACE_HOLDFAST] = holdfast_line,
	};
	return readers[r->format](r, line);
}
