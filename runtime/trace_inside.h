/*
 * Between trace.c, which reads lines and keeps what was read, and trace_format.c, which knows what
 * a line says.
 */
#ifndef HOLDFAST_RUNTIME_TRACE_INSIDE_H
#define HOLDFAST_RUNTIME_TRACE_INSIDE_H

#include "runtime/json.h"
#include "runtime/trace.h"

/* A turn as it was met, before turns are put together by session. */
struct trace_met {
	struct trace_turn turn;
	int64_t at_ms, answered_ms; /* on the trace's clock; answered_ms < at_ms: not known */
	uint32_t session;
};

/* A session that is still met, and what is known of its last turn. */
struct trace_open_session {
	uint64_t name;                   /* holdfast: its number */
	int64_t start_ms, last_at_ms;
	uint32_t turn_count, history;    /* history: tokens after the last answer */
	uint32_t id_count;               /* mooncake: full blocks of the last prompt */
	uint64_t tail;                   /* mooncake: the last of them */
};

/* An open-addressed table from a 64-bit key to a session's index. */
struct trace_table {
	uint64_t *keys;
	uint32_t *values; /* UINT32_MAX: free */
	uint32_t count, room; /* room: a power of two */
};

struct trace_reader {
	enum trace_format format;
	uint64_t line;
	char *reason;
	struct trace_met *met;
	struct trace_open_session *sessions;
	uint64_t *ids;
	uint32_t met_count, met_room, session_count, session_room, id_count, id_room;
	int64_t last_ms; /* mooncake: of the line before */
	struct trace_table table;
};

/* One line with the field's name: "line 7: prompt: …". Returns -ERR_BAD_FILE. */
__attribute__((format(printf, 3, 4))) int trace_refuse(struct trace_reader *r, const char *field,
						      const char *format, ...);
/* -ERR_MEMORY, or -ERR_TOO_BIG with the reason. */
int trace_add_session(struct trace_reader *r, int64_t start_ms, uint32_t *index);
int trace_add_turn(struct trace_reader *r, uint32_t session, int64_t at_ms, int64_t answered_ms,
		   const struct trace_turn *turn);
int trace_add_id(struct trace_reader *r, uint64_t id);
/* UINT32_MAX if the key is not there. */
uint32_t trace_find(const struct trace_table *table, uint64_t key);
int trace_put(struct trace_table *table, uint64_t key, uint32_t value);

/* What one line of the format says. */
int trace_line(struct trace_reader *r, struct json line);

#endif
