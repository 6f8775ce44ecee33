/*
 * Recorded traffic: sessions of turns as counts and times, never text. Read from a file of lines of
 * JSON in one of four formats, all checked strictly; written by a daemon in our own.
 *
 * Formats, a line each:
 *  weka      a session: {"session","turns":[[t_ms, prompt, kept, completion, stop], …]}, t_ms since
 *            the session's first request, stop "t" tool, "e" end of turn, "o" other;
 *  swebench  a session: {"session","turns":[{"reply_ms","prompt_tokens","completion_tokens",
 *            "tool_ms"}, …]}, reply_ms since the session's first reply, tool_ms the pause after it;
 *  mooncake  a request: {"timestamp","input_length","output_length","hash_ids"}, ids of prefix
 *            blocks of 512 tokens. A request continues the session whose last one it extends;
 *  holdfast  a turn: {"t_ms","session","prompt","kept","completion","stop","answer_ms"}, as
 *            trace_write_turn writes it; t_ms of its arrival since the recording began, answer_ms
 *            from there to its end; stop "tool", "end" or "other". Turns stand in the order of
 *            their ends; those of one session in the order of their arrivals.
 * Members that are not named are passed over. Times may have a fraction, which is cut.
 */
#ifndef HOLDFAST_RUNTIME_TRACE_H
#define HOLDFAST_RUNTIME_TRACE_H

#include <stdint.h>
#include <stdio.h>

enum trace_format { TRACE_SWEBENCH, TRACE_WEKA, TRACE_MOONCAKE, TRACE_HOLDFAST };

enum {
	TRACE_REASON_MAX = 300,
	TRACE_LINE_MAX = 16 << 20,       /* bytes of a line */
	TRACE_SESSIONS_MAX = 1 << 20,
	TRACE_TURNS_MAX = 1 << 22,
	TRACE_TOKENS_MAX = (1 << 26) - 1 /* of one prompt, of one answer */
};
#define TRACE_MS_MAX ((int64_t)1 << 40) /* about 35 years */

/* Why the answer ended, and so what the session waits for. */
enum trace_stop { TRACE_TOOL, TRACE_END, TRACE_OTHER };

enum { TRACE_BLOCK = 512 };

struct trace_turn {
	int64_t at_ms;    /* arrival since the session's first */
	int64_t pause_ms; /* from the answer to the next arrival; of the last turn 0 */
	uint32_t prompt;  /* tokens, at least 1 */
	uint32_t keep;    /* of those the ones that the history before has as a prefix */
	uint32_t completion;
	uint32_t stop;    /* enum trace_stop */
	uint32_t id_first, id_count; /* of the trace's ids: of the prompt's blocks, where it has such */
};

struct trace_session {
	int64_t start_ms; /* since the trace's first session; 0 where the format has no such time */
	uint32_t turn_first, turn_count;
};

struct trace {
	struct trace_session *sessions;
	struct trace_turn *turns; /* those of one session stand together, in order */
	uint64_t *ids; /* each names TRACE_BLOCK tokens and all before them in their prompt */
	uint32_t session_count, turn_count;
	int has_starts; /* 1: start_ms is the trace's own */
};

/* Reads a whole file. On refusal returns -ERR_… and one line with line and field in reason
   (TRACE_REASON_MAX of room); *out is then empty. progress(arg, "reading", bytes, of) may be NULL.
   Holds what it read, nothing of the text but one line. */
int trace_open(const char *path, enum trace_format format,
	       void (*progress)(void *arg, const char *what, uint64_t done, uint64_t total), void *arg,
	       struct trace *out, char *reason);
void trace_close(struct trace *trace);

/* One turn of our own format, with the line's end. Returns what fprintf does. */
int trace_write_turn(FILE *file, uint64_t session, int64_t t_ms, int64_t answer_ms,
		     const struct trace_turn *turn);

#endif
