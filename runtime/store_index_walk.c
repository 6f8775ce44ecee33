/*
 * The index, looked through: each row within itself at a start, in the child that a crafted file may crash;
 * and by `verify` against the entries that it speaks of.
 */
#include "config.h"

#include <string.h>

#include "runtime/store_archive.h"
#include "runtime/store_disk.h"
#include "runtime/store_read.h"
#include "sched/check.h"

enum { BREATHE = 8 }; /* rows of one transaction beside a daemon: some milliseconds */

static int refuse_row(char *reason, uint64_t first)
{
	return store_refuse(reason, -ERR_INTEGRITY, "audit log: the index from entry %llu on is damaged: its "
			"rows must be whole and in order", (unsigned long long)first);
}

static int refuse_mark(char *reason, uint64_t seq)
{
	return store_refuse(reason, -ERR_INTEGRITY, "audit log: the index does not say of entry %llu what the "
			"entry says: the log was changed", (unsigned long long)seq);
}

/* No table: of a version before it. */
static int table_open(MDB_txn *txn, MDB_dbi *index, MDB_cursor **cursor)
{
	int rc = mdb_dbi_open(txn, "index", MDB_INTEGERKEY, index);
	if (rc == 0)
		rc = mdb_cursor_open(txn, *index, cursor);
	return rc;
}

static int breathe(MDB_txn *txn, MDB_cursor *cursor)
{
	mdb_txn_reset(txn);
	const int rc = mdb_txn_renew(txn);
	return rc == 0 ? mdb_cursor_renew(txn, cursor) : rc;
}

int index_walk(MDB_txn *txn, uint64_t last, bool live, char *reason)
{
	MDB_dbi index;
	MDB_cursor *cursor = NULL;
	MDB_val key, row;
	uint64_t from = 1, seen = 0;
	int rc = table_open(txn, &index, &cursor);
	if (rc == MDB_NOTFOUND)
		return 0;
	bool right = rc == 0;
	for (rc = right ? mdb_cursor_get(cursor, &key, &row, MDB_FIRST) : rc; rc == 0 && right;) {
		struct index_head head;
		uint64_t first = 0;
		if (key.mv_size == sizeof first)
			memcpy(&first, key.mv_data, sizeof first);
		right = index_row_sound(row.mv_data, row.mv_size) &&
			index_head_read(row.mv_data, row.mv_size, &head) == 0 && head.first == first && first >= from &&
			(live || head.last <= last);
		if (!right)
			break;
		from = head.last + 1;
		first++; /* the row behind this one, wherever that begins */
		key = (MDB_val){sizeof first, &first};
		rc = live && ++seen % BREATHE == 0 ? breathe(txn, cursor) : 0;
		rc = rc == 0 ? mdb_cursor_get(cursor, &key, &row, MDB_SET_RANGE) : rc;
	}
	if (cursor)
		mdb_cursor_close(cursor);
	return right && rc == MDB_NOTFOUND ? 0 : refuse_row(reason, from);
}

struct source {
	MDB_txn *txn;
	MDB_dbi audit;
	const struct segment *segment;
};

static int entry_of_table(void *arg, uint64_t seq, const uint8_t **bytes, size_t *count)
{
	const struct source *s = arg;
	MDB_val key = {sizeof seq, &seq}, value;
	const int rc = mdb_get(s->txn, s->audit, &key, &value);
	if (rc != 0)
		return rc == MDB_NOTFOUND ? -ERR_NOT_FOUND : store_code(rc);
	*bytes = value.mv_data;
	*count = value.mv_size;
	return 0;
}

static int entry_of_segment(void *arg, uint64_t seq, const uint8_t **bytes, size_t *count)
{
	const struct source *s = arg;
	uint32_t length;
	TRY(segment_entry(s->segment, seq, bytes, &length));
	*count = length;
	return 0;
}

int index_verify(MDB_txn *txn, uint64_t archived, uint64_t last, bool live, uint64_t *indexed, char *reason)
{
	struct source s = {.txn = txn};
	const struct index_source source = {entry_of_table, &s};
	MDB_dbi index;
	MDB_cursor *cursor;
	MDB_val row;
	uint64_t seq = archived + 1, at = seq;
	int rc = table_open(txn, &index, &cursor), code = 0;
	if (rc == MDB_NOTFOUND)
		return 0;
	if (rc == 0)
		rc = mdb_dbi_open(txn, "audit", MDB_INTEGERKEY, &s.audit);
	if (rc != 0)
		return refuse_row(reason, seq);
	mdb_cursor_close(cursor);
	for (uint32_t seen = 1; code == 0 && seq <= last; seen++) {
		struct index_head head;
		uint64_t next;
		if (live && seen % BREATHE == 0) {
			mdb_txn_reset(txn);
			if (mdb_txn_renew(txn) != 0)
				return refuse_row(reason, seq);
		}
		if (!index_row_find(txn, index, seq, &row, &head, &next)) {
			seq = next;
			continue;
		}
		const uint64_t to = head.last < last ? head.last : last;
		code = index_row_check(row.mv_data, &head, seq, to, &source, &at);
		if (code == 0)
			*indexed += to - seq + 1;
		/* Moved to a segment by the daemon that runs beside, since the walk began. */
		if (code == -ERR_NOT_FOUND && live)
			code = 0;
		seq = head.last + 1;
	}
	return code == -ERR_MEMORY ? store_refuse(reason, code, "audit log: no memory") :
	       code != 0 ? refuse_mark(reason, at) : 0;
}

int index_verify_segment(const struct segment *segment, uint64_t until, uint64_t *indexed, char *reason)
{
	struct source s = {.segment = segment};
	const struct index_source source = {entry_of_segment, &s};
	struct segment_rows rows;
	struct index_head head;
	const uint8_t *row;
	uint64_t at = 0, seq = segment->first, wrong = seq;
	if (segment_rows_of(segment, &rows) != 0)
		return refuse_row(reason, segment->first);
	while (segment_row_next(&rows, &at, &row, &head)) {
		const uint64_t from = head.first > segment->first ? head.first : segment->first;
		uint64_t to = head.last < segment->last ? head.last : segment->last;
		to = to < until ? to : until;
		if (from < seq || !index_row_sound(row, sizeof head + head.count * sizeof(uint64_t)))
			return refuse_row(reason, from);
		if (from > to)
			continue;
		if (index_row_check(row, &head, from, to, &source, &wrong) != 0)
			return refuse_mark(reason, wrong);
		*indexed += to - from + 1;
		seq = to + 1;
	}
	return at == rows.size ? 0 : refuse_row(reason, seq);
}
