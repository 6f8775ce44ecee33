/*
 * Traces: the file line by line in bounded memory, what was met, and at the end the turns of each
 * session put together.
 */
#include "runtime/trace.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "runtime/trace_inside.h"
#include "sched/check.h"

int trace_refuse(struct trace_reader *r, const char *field, const char *format, ...)
{
	char text[TRACE_REASON_MAX - 100];
	va_list arguments;
	va_start(arguments, format);
	vsnprintf(text, sizeof text, format, arguments);
	va_end(arguments);
	snprintf(r->reason, TRACE_REASON_MAX, "line %" PRIu64 ": %.60s%s%s", r->line, field,
		 field[0] ? ": " : "", text);
	return -ERR_BAD_FILE;
}

/* Doubles the room of an array when it is full. */
static int array_grow(void **array, uint32_t count, uint32_t *room, size_t size)
{
	if (count < *room)
		return 0;
	const uint32_t more = *room ? 2 * *room : 1024;
	void *bytes = realloc(*array, more * size);
	if (!bytes)
		return -ERR_MEMORY;
	*array = bytes;
	*room = more;
	return 0;
}

int trace_add_session(struct trace_reader *r, int64_t start_ms, uint32_t *index)
{
	void *array = r->sessions;
	if (r->session_count == TRACE_SESSIONS_MAX) {
		(void)trace_refuse(r, "session", "more than %d sessions", TRACE_SESSIONS_MAX);
		return -ERR_TOO_BIG;
	}
	TRY(array_grow(&array, r->session_count, &r->session_room, sizeof *r->sessions));
	r->sessions = array;
	*index = r->session_count++;
	r->sessions[*index] = (struct trace_open_session){.start_ms = start_ms, .last_at_ms = start_ms};
	return 0;
}

int trace_add_id(struct trace_reader *r, uint64_t id)
{
	void *array = r->ids;
	TRY(array_grow(&array, r->id_count, &r->id_room, sizeof *r->ids));
	r->ids = array;
	r->ids[r->id_count++] = id;
	return 0;
}

int trace_add_turn(struct trace_reader *r, uint32_t session, int64_t at_ms, int64_t answered_ms,
		   const struct trace_turn *turn)
{
	void *array = r->met;
	if (r->met_count == TRACE_TURNS_MAX) {
		(void)trace_refuse(r, "turns", "more than %d turns", TRACE_TURNS_MAX);
		return -ERR_TOO_BIG;
	}
	TRY(array_grow(&array, r->met_count, &r->met_room, sizeof *r->met));
	r->met = array;
	struct trace_open_session *x = &r->sessions[session];
	struct trace_met *met = &r->met[r->met_count++];
	*met = (struct trace_met){*turn, at_ms, answered_ms, session};
	met->turn.at_ms = at_ms - x->start_ms;
	/* At least one token of a prompt is computed, or there would be no row to sample from. */
	if (met->turn.keep > x->history)
		met->turn.keep = x->history;
	if (met->turn.keep >= met->turn.prompt)
		met->turn.keep = met->turn.prompt - 1;
	x->history = turn->prompt + turn->completion;
	x->last_at_ms = at_ms;
	x->turn_count++;
	return 0;
}

static uint32_t table_slot(const struct trace_table *table, uint64_t key)
{
	uint64_t hash = (key + 1) * 0x9e3779b97f4a7c15u;
	uint32_t slot = (uint32_t)(hash >> 32) & (table->room - 1);
	while (table->values[slot] != UINT32_MAX && table->keys[slot] != key)
		slot = (slot + 1) & (table->room - 1);
	return slot;
}

uint32_t trace_find(const struct trace_table *table, uint64_t key)
{
	return table->room ? table->values[table_slot(table, key)] : UINT32_MAX;
}

static int table_grow(struct trace_table *table)
{
	struct trace_table more = {.count = table->count, .room = table->room ? 2 * table->room : 4096};
	more.keys = malloc(more.room * sizeof *more.keys);
	more.values = malloc(more.room * sizeof *more.values);
	if (!more.keys || !more.values) {
		free(more.keys);
		free(more.values);
		return -ERR_MEMORY;
	}
	memset(more.values, 0xff, more.room * sizeof *more.values);
	for (uint32_t i = 0; i < table->room; i++) {
		if (table->values[i] == UINT32_MAX)
			continue;
		const uint32_t slot = table_slot(&more, table->keys[i]);
		more.keys[slot] = table->keys[i];
		more.values[slot] = table->values[i];
	}
	free(table->keys);
	free(table->values);
	*table = more;
	return 0;
}

int trace_put(struct trace_table *table, uint64_t key, uint32_t value)
{
	if (table->count >= table->room / 2)
		TRY(table_grow(table));
	const uint32_t slot = table_slot(table, key);
	table->count += table->values[slot] == UINT32_MAX;
	table->keys[slot] = key;
	table->values[slot] = value;
	return 0;
}

/* Puts the turns of each session together, in the order in which they were met, and gives each
   turn the pause after it. */
static int trace_gather(struct trace_reader *r, struct trace *out)
{
	out->sessions = calloc(r->session_count, sizeof *out->sessions);
	out->turns = calloc(r->met_count, sizeof *out->turns);
	if (!out->sessions || !out->turns)
		return -ERR_MEMORY;
	out->session_count = r->session_count;
	out->turn_count = r->met_count;
	out->has_starts = r->format == TRACE_MOONCAKE || r->format == TRACE_HOLDFAST;
	int64_t first_ms = r->sessions[0].start_ms;
	for (uint32_t i = 0, at = 0; i < r->session_count; i++) {
		if (r->sessions[i].start_ms < first_ms)
			first_ms = r->sessions[i].start_ms;
		out->sessions[i].turn_first = at;
		at += r->sessions[i].turn_count;
	}
	for (uint32_t i = 0; i < r->session_count; i++)
		out->sessions[i].start_ms = r->sessions[i].start_ms - first_ms;
	for (uint32_t i = 0; i < r->met_count; i++) {
		const struct trace_met *met = &r->met[i];
		struct trace_session *x = &out->sessions[met->session];
		struct trace_turn *turn = &out->turns[x->turn_first + x->turn_count];
		*turn = met->turn;
		if (x->turn_count > 0) {
			/* Where no one tells when the answer came, the whole time between two arrivals
			   counts as a pause. Until here pause_ms had the time of the answer. */
			struct trace_turn *before = turn - 1;
			const int64_t from = before->pause_ms >= 0 ? before->at_ms + before->pause_ms
								   : before->at_ms;
			before->pause_ms = turn->at_ms > from ? turn->at_ms - from : 0;
		}
		turn->pause_ms = met->answered_ms >= met->at_ms ? met->answered_ms - met->at_ms : -1;
		x->turn_count++;
	}
	for (uint32_t i = 0; i < r->session_count; i++)
		out->turns[out->sessions[i].turn_first + out->sessions[i].turn_count - 1].pause_ms = 0;
	return 0;
}

/* The file in blocks, and of it one line in a buffer that grows up to TRACE_LINE_MAX. */
struct lines {
	FILE *file;
	char block[65536];
	size_t at, end; /* what of the block is not used yet */
	char *bytes;
	size_t length, room;
};

static int line_append(struct trace_reader *r, struct lines *l, size_t count)
{
	if (count == 0)
		return 0; /* an empty line; there may be no buffer yet */
	if (l->length + count > TRACE_LINE_MAX)
		return trace_refuse(r, "", "longer than %d bytes", TRACE_LINE_MAX);
	if (l->length + count > l->room) {
		const size_t room = 2 * (l->length + count);
		char *bytes = realloc(l->bytes, room);
		if (!bytes)
			return -ERR_MEMORY;
		l->bytes = bytes;
		l->room = room;
	}
	memcpy(l->bytes + l->length, l->block + l->at, count);
	l->length += count;
	l->at += count;
	return 0;
}

/* Reads up to the next line feed, which is left out; *more tells whether there was a line. */
static int line_read(struct trace_reader *r, struct lines *l, int *more)
{
	l->length = 0;
	*more = 0;
	for (;;) {
		if (l->at == l->end) {
			l->at = 0;
			l->end = fread(l->block, 1, sizeof l->block, l->file);
			if (l->end == 0)
				return ferror(l->file) ? -ERR_IO : 0;
		}
		*more = 1;
		const char *from = l->block + l->at, *feed = memchr(from, '\n', l->end - l->at);
		TRY(line_append(r, l, feed ? (size_t)(feed - from) : l->end - l->at));
		if (feed) {
			l->at++;
			return 0;
		}
	}
}

static int line_is_blank(const struct lines *l)
{
	for (size_t i = 0; i < l->length; i++)
		if (l->bytes[i] != ' ' && l->bytes[i] != '\t' && l->bytes[i] != '\r')
			return 0;
	return 1;
}

static int trace_read(struct trace_reader *r, FILE *file, uint64_t bytes,
		      void (*progress)(void *, const char *, uint64_t, uint64_t), void *arg)
{
	static struct lines lines; /* large, and one trace is read at a time */
	uint64_t done = 0;
	int err = 0, more = 1;
	lines = (struct lines){.file = file};
	while (err == 0) {
		struct json value;
		r->line++;
		err = line_read(r, &lines, &more);
		if (err != 0 || !more)
			break;
		done += lines.length + 1;
		if (line_is_blank(&lines))
			continue;
		if (json_check(lines.bytes, lines.length, &value) != 0)
			err = trace_refuse(r, "", "is not JSON");
		else if (json_kind(value) != JSON_OBJECT)
			err = trace_refuse(r, "", "is not an object");
		else
			err = trace_line(r, value);
		if (progress && r->line % 256 == 0 && done < bytes)
			progress(arg, "reading the trace", done, bytes);
	}
	if (progress && bytes)
		progress(arg, "reading the trace", bytes, bytes);
	free(lines.bytes);
	if (err == 0 && r->met_count == 0)
		err = trace_refuse(r, "", "the file ends without a turn");
	return err;
}

int trace_open(const char *path, enum trace_format format,
	       void (*progress)(void *arg, const char *what, uint64_t done, uint64_t total), void *arg,
	       struct trace *out, char *reason)
{
	struct trace_reader r = {.format = format, .reason = reason};
	struct stat st;
	int err;
	*out = (struct trace){0};
	reason[0] = '\0';
	FILE *file = fopen(path, "rb");
	if (!file)
		err = errno == ENOENT ? -ERR_NO_FILE : errno == EACCES ? -ERR_PERMISSION : -ERR_IO;
	else if (fstat(fileno(file), &st) != 0)
		err = -ERR_IO;
	else if (S_ISDIR(st.st_mode)) {
		snprintf(reason, TRACE_REASON_MAX, "is a folder");
		err = -ERR_BAD_FILE;
	} else
		err = trace_read(&r, file, (uint64_t)st.st_size, progress, arg);
	if (err == 0)
		err = trace_gather(&r, out);
	out->ids = r.ids;
	if (err != 0)
		trace_close(out);
	if (err != 0 && !reason[0])
		snprintf(reason, TRACE_REASON_MAX, "%s", err_text(err));
	if (file)
		fclose(file);
	free(r.met);
	free(r.sessions);
	free(r.table.keys);
	free(r.table.values);
	return err;
}

void trace_close(struct trace *trace)
{
	free(trace->sessions);
	free(trace->turns);
	free(trace->ids);
	*trace = (struct trace){0};
}

int trace_write_turn(FILE *file, uint64_t session, int64_t t_ms, int64_t answer_ms,
		     const struct trace_turn *turn)
{
	static const char *const stops[] = {"tool", "end", "other"};
	CHECK(turn->stop <= TRACE_OTHER);
	return fprintf(file,
		       "{\"t_ms\":%" PRId64 ",\"session\":%" PRIu64 ",\"prompt\":%u,\"kept\":%u,"
		       "\"completion\":%u,\"stop\":\"%s\",\"answer_ms\":%" PRId64 "}\n",
		       t_ms, session, turn->prompt, turn->keep, turn->completion, stops[turn->stop],
		       answer_ms);
}
