/*
 * The index of the log: marks gathered by the writer, put as rows, found again, and made again to compare.
 */
#include "config.h"

#include "runtime/store_index.h"

#include <stdlib.h>
#include <string.h>

#include "runtime/fault.h"
#include "runtime/store_disk.h"
#include "runtime/store_read.h"
#include "sched/check.h"

uint32_t index_of_session(const uint8_t id[16])
{
	return store_crc_more(store_crc_more(~0u, "s", 1), id, 16);
}

uint32_t index_of_page(uint32_t group, uint32_t level, uint64_t cell)
{
	const uint64_t name[2] = {(uint64_t)group << 32 | level, cell};
	return store_crc_more(store_crc_more(~0u, "p", 1), name, sizeof name);
}

uint32_t index_of_kind(uint8_t kind)
{
	return store_crc_more(store_crc_more(~0u, "k", 1), &kind, 1);
}

static bool session_named(const struct store_record *r)
{
	static const uint8_t none[16];
	return r->kind != STORE_CONFIG && (r->kind != STORE_AUTH || r->reason > AUTH_USER) &&
	       memcmp(r->session, none, sizeof none) != 0;
}

/* A run lies in one or two cells of a size that it would fill. */
static uint32_t index_of_run(const struct store_record *r, uint32_t *out)
{
	uint32_t level = INDEX_LEVEL_LEAST;
	const uint64_t first = r->page_first, last = first + r->page_count - 1;
	while (level < INDEX_LEVEL_MOST && r->page_count > 1ull << level)
		level++;
	out[0] = index_of_page(r->group, level, first >> level);
	if (first >> level == last >> level)
		return 1;
	out[1] = index_of_page(r->group, level, last >> level);
	return 2;
}

uint32_t index_of_record(const struct store_record *r, uint32_t out[INDEX_RECORD])
{
	uint32_t n = 0;
	if (session_named(r))
		out[n++] = index_of_session(r->session);
	if (r->kind >= STORE_ASSIGN && r->kind <= STORE_QUARANTINE && r->place == 0 && r->page_count > 0)
		n += index_of_run(r, out + n);
	if (r->kind == STORE_INCIDENT || r->kind == STORE_CONFIG || r->kind == STORE_FORGET ||
	    r->kind == STORE_ARCHIVE || r->kind == STORE_AUTH)
		out[n++] = index_of_kind(r->kind);
	CHECK(n <= INDEX_RECORD);
	return n;
}

static uint32_t index_of_entry(const struct store_read_entry *e, uint32_t *out)
{
	uint32_t n = 0;
	if (e->kind == STORE_BOOT)
		out[n++] = index_of_kind(STORE_BOOT);
	for (uint32_t i = 0; i < e->count; i++)
		n += index_of_record(&e->records[i], out + n);
	return n;
}
enum { ENTRY_MARKS = STORE_ENTRY_RECORDS * INDEX_RECORD + 1 };

static int by_value(const void *a, const void *b)
{
	const uint64_t *x = a, *y = b;
	return (*x > *y) - (*x < *y);
}

/* Sorted, and each once: a session may be in an entry with several records. */
static uint32_t marks_sort(uint64_t *mark, uint32_t count)
{
	uint32_t kept = 0;
	qsort(mark, count, sizeof *mark, by_value);
	for (uint32_t i = 0; i < count; i++)
		if (kept == 0 || mark[kept - 1] != mark[i])
			mark[kept++] = mark[i];
	return kept;
}

static uint32_t row_crc(const struct index_head *head, const void *marks)
{
	struct index_head copy = *head;
	copy.crc = 0;
	return ~store_crc_more(store_crc_more(~0u, &copy, sizeof copy), marks, head->count * sizeof(uint64_t));
}

int index_head_read(const void *value, size_t bytes, struct index_head *head)
{
	if (bytes < sizeof *head)
		return -ERR_BAD_FILE;
	memcpy(head, value, sizeof *head);
	return head->first > 0 && head->last >= head->first && head->last - head->first <= UINT32_MAX / 2 &&
	       head->count == (bytes - sizeof *head) / sizeof(uint64_t) && bytes % sizeof(uint64_t) == 0 ?
		       0 : -ERR_BAD_FILE;
}

static uint64_t mark_at(const void *value, uint32_t i)
{
	uint64_t mark;
	memcpy(&mark, (const uint8_t *)value + sizeof(struct index_head) + i * sizeof mark, sizeof mark);
	return mark;
}

bool index_row_sound(const void *value, size_t bytes)
{
	struct index_head head;
	if (index_head_read(value, bytes, &head) != 0 ||
	    head.crc != row_crc(&head, (const uint8_t *)value + sizeof head))
		return false;
	for (uint32_t i = 0; i < head.count; i++)
		if ((i > 0 && mark_at(value, i) <= mark_at(value, i - 1)) ||
		    (uint32_t)mark_at(value, i) > head.last - head.first)
			return false;
	return true;
}

bool index_row_find(MDB_txn *txn, MDB_dbi dbi, uint64_t seq, MDB_val *row, struct index_head *head,
		    uint64_t *next)
{
	MDB_cursor *cursor;
	MDB_val key = {sizeof seq, &seq};
	uint64_t first = 0;
	bool covered = false;
	*next = UINT64_MAX;
	if (mdb_cursor_open(txn, dbi, &cursor) != 0)
		return false;
	/* The row that begins at seq, or behind it; the one before that may cover it. */
	int rc = mdb_cursor_get(cursor, &key, row, MDB_SET_RANGE);
	if (rc == 0 && key.mv_size == sizeof first)
		memcpy(&first, key.mv_data, sizeof first);
	if (rc == 0 && first > seq)
		*next = first;
	if (rc == MDB_NOTFOUND || first != seq)
		rc = mdb_cursor_get(cursor, &key, row, rc == 0 ? MDB_PREV : MDB_LAST);
	if (rc == 0 && key.mv_size == sizeof first) {
		memcpy(&first, key.mv_data, sizeof first);
		covered = index_head_read(row->mv_data, row->mv_size, head) == 0 && head->first == first &&
			  head->first <= seq && seq <= head->last;
	}
	mdb_cursor_close(cursor);
	return covered;
}

/* How many marks are less than that one. */
static uint32_t marks_below(const void *value, const struct index_head *head, uint64_t mark)
{
	uint32_t low = 0, high = head->count;
	while (low < high) {
		const uint32_t middle = low + (high - low) / 2;
		if (mark_at(value, middle) < mark)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

bool index_row_seek(const void *value, const struct index_head *head, const uint32_t *hash, uint32_t count,
		    uint64_t seq, bool back, uint64_t *found)
{
	bool any = false;
	CHECK(head->first <= seq && seq <= head->last);
	for (uint32_t i = 0; i < count; i++) {
		const uint64_t wanted = (uint64_t)hash[i] << 32 | (seq - head->first);
		uint32_t at = marks_below(value, head, back ? wanted + 1 : wanted);
		if (back ? at == 0 : at == head->count)
			continue;
		const uint64_t mark = mark_at(value, back ? at - 1 : at), entry = head->first + (uint32_t)mark;
		if (mark >> 32 != hash[i] || entry > head->last)
			continue;
		if (any && (back ? entry <= *found : entry >= *found))
			continue;
		*found = entry;
		any = true;
	}
	return any;
}

int index_row_check(const void *value, const struct index_head *head, uint64_t from, uint64_t to,
		    const struct index_source *source, uint64_t *at)
{
	struct store_read_entry *e = malloc(sizeof *e);
	uint32_t *hash = malloc(ENTRY_MARKS * sizeof *hash), i = 0, wanted = 0, count = 0;
	uint64_t *mark = NULL, room = 0;
	int code = e && hash ? 0 : -ERR_MEMORY;
	for (uint64_t seq = from; code == 0 && seq <= to; seq++) {
		const uint8_t *bytes;
		size_t size;
		*at = seq;
		code = source->entry(source->arg, seq, &bytes, &size);
		if (code == 0)
			code = store_entry_read(bytes, size, seq, e);
		const uint32_t n = code == 0 ? index_of_entry(e, hash) : 0;
		if (code == 0 && count + n > room) {
			room = (count + n) * 2;
			uint64_t *more = realloc(mark, room * sizeof *mark);
			mark = more ? more : mark;
			code = more ? 0 : -ERR_MEMORY;
		}
		for (uint32_t k = 0; code == 0 && k < n; k++)
			mark[count++] = (uint64_t)hash[k] << 32 | (seq - head->first);
	}
	count = code == 0 ? marks_sort(mark, count) : 0;
	for (; code == 0 && i < head->count; i++) {
		const uint64_t one = mark_at(value, i), entry = head->first + (uint32_t)one;
		if (entry < from || entry > to)
			continue;
		*at = entry;
		if (wanted == count || mark[wanted++] != one)
			code = -ERR_INTEGRITY;
	}
	if (code == 0 && wanted != count) {
		*at = head->first + (uint32_t)mark[wanted];
		code = -ERR_INTEGRITY;
	}
	free(mark);
	free(hash);
	free(e);
	return code;
}

/* The writer's. */

void index_add(struct store_index *index, uint64_t seq, const uint32_t *hash, uint32_t count)
{
	CHECK(seq == index->next);
	index->next = seq + 1;
	if (count > index->room - index->count)
		index->full = true;
	for (uint32_t i = 0; i < count && !index->full; i++)
		index->mark[index->count++] = (uint64_t)hash[i] << 32 | (uint32_t)seq;
}

static struct index_head row_make(struct store_index *index, uint32_t count, uint64_t last)
{
	struct index_head head = {.first = index->first, .last = last};
	for (uint32_t i = 0; i < count; i++) {
		const uint32_t distance = (uint32_t)index->mark[i] - (uint32_t)head.first;
		index->sorted[i] = (index->mark[i] & ~0xffffffffull) | distance;
	}
	head.count = marks_sort(index->sorted, count);
	head.crc = row_crc(&head, index->sorted);
	return head;
}

bool index_pending(struct store_index *index, struct index_head *head, const uint64_t **marks)
{
	if (index->full_kept || index->next_kept == index->first)
		return false;
	*head = row_make(index, index->count_kept, index->next_kept - 1);
	*marks = index->sorted;
	return true;
}

static int row_put(struct store_index *index, MDB_txn *txn, MDB_dbi dbi)
{
	const struct index_head head = row_make(index, index->count, index->next - 1);
	uint64_t first = head.first;
	MDB_val key = {sizeof first, &first};
	MDB_val value = {sizeof head + head.count * sizeof index->sorted[0], NULL};
	int rc = (int)fault_pass(FAULT_INDEX);
	if (rc == 0)
		rc = mdb_put(txn, dbi, &key, &value, MDB_APPEND | MDB_RESERVE);
	index->refused = rc == MDB_MAP_FULL;
	if (rc != 0)
		return store_code(rc);
	memcpy(value.mv_data, &head, sizeof head);
	memcpy((uint8_t *)value.mv_data + sizeof head, index->sorted, head.count * sizeof index->sorted[0]);
	return 0;
}

void index_again(struct store_index *index)
{
	index->count = index->count_kept;
	index->next = index->next_kept;
	index->full = index->full_kept;
	index->put = 0;
	index->put_next = index->first;
}

int index_begin(struct store_index *index, MDB_txn *txn, MDB_dbi dbi, bool all)
{
	index_again(index);
	const bool due = index->count >= INDEX_MARKS || index->next - index->first >= INDEX_ENTRIES ||
			 index->full;
	if (index->next == index->first || (!due && !all))
		return 0;
	if (!index->full)
		TRY(row_put(index, txn, dbi));
	index->put = index->count;
	index->put_next = index->next;
	index->full = false; /* of what follows */
	return 0;
}

bool index_skip(struct store_index *index)
{
	const bool skip = index->refused;
	index->refused = false;
	index->full_kept = index->full_kept || skip;
	return skip;
}

void index_commit(struct store_index *index)
{
	if (index->put_next != index->first) {
		index->count -= index->put;
		memmove(index->mark, index->mark + index->put, index->count * sizeof *index->mark);
		index->first = index->put_next;
		index->put = 0;
	}
	index->full_kept = index->full;
	index->count_kept = index->count;
	index->next_kept = index->next;
}

/* Entries that a killed process had not put into a row. */
static int marks_again(struct store_index *index, MDB_txn *txn, const struct store_disk *disk)
{
	struct store_read_entry *e = malloc(sizeof *e);
	uint32_t *hash = malloc(ENTRY_MARKS * sizeof *hash);
	int code = e && hash ? 0 : -ERR_MEMORY;
	for (uint64_t seq = index->first; code == 0 && seq <= disk->head.seq; seq++) {
		MDB_val key = {sizeof seq, &seq}, value;
		const int rc = mdb_get(txn, disk->audit, &key, &value);
		code = rc != 0 ? store_code(rc) : store_entry_read(value.mv_data, value.mv_size, seq, e);
		/* It is for verify, and for who asks for it, to say so: the start has looked at the chain only. */
		const bool crafted = rc == 0 && code == -ERR_BAD_FILE;
		if (crafted) {
			index_add(index, seq, hash, 0);
			index->full = true;
			code = 0;
		} else if (code == 0) {
			index_add(index, seq, hash, index_of_entry(e, hash));
		}
	}
	free(hash);
	free(e);
	return code;
}

int index_open(struct store_index *index, const struct store_disk *disk, uint32_t marks_room)
{
	MDB_txn *txn;
	MDB_val row;
	struct index_head head;
	uint64_t next;
	*index = (struct store_index){.room = INDEX_MARKS + marks_room};
	index->mark = malloc(index->room * sizeof *index->mark);
	index->sorted = malloc(index->room * sizeof *index->sorted);
	if (!index->mark || !index->sorted)
		return -ERR_MEMORY;
	const int rc = mdb_txn_begin(disk->env, NULL, MDB_RDONLY, &txn);
	if (rc != 0)
		return store_code(rc);
	/* What is behind the last row; the walk has seen that none goes beyond the head. */
	uint64_t from = 1;
	MDB_cursor *cursor;
	MDB_val key;
	if (mdb_cursor_open(txn, disk->index, &cursor) == 0) {
		if (mdb_cursor_get(cursor, &key, &row, MDB_LAST) == 0 &&
		    index_head_read(row.mv_data, row.mv_size, &head) == 0)
			from = head.last + 1;
		mdb_cursor_close(cursor);
	}
	from = from <= disk->archived.seq ? disk->archived.seq + 1 : from;
	next = disk->head.seq + 1;
	index->first = from <= next && next - from <= INDEX_AGAIN ? from : next;
	index->next = index->first;
	int code = marks_again(index, txn, disk);
	mdb_txn_abort(txn);
	if (index->full) { /* more than a transaction may add: these go without */
		index->count = 0;
		index->first = index->next;
		index->full = false;
	}
	index->put_next = index->first;
	index_commit(index);
	return code;
}

void index_close(struct store_index *index)
{
	free(index->mark);
	free(index->sorted);
	*index = (struct store_index){0};
}
