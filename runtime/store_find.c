/*
 * Questions by the index: which entries to look at. What the index says of stretches is believed here, and
 * proven by `verify`; what it says nothing of is looked at entry by entry.
 */
#include "config.h"

#include <string.h>

#include "runtime/store_read_inside.h"
#include "sched/check.h"

void store_want_session(struct store_wanted *wanted, const uint8_t id[16])
{
	*wanted = (struct store_wanted){
		.count = 1, .hash = {index_of_session(id)}, .bytes = id, .byte_count = 16};
}

static void want(struct store_wanted *wanted, uint32_t hash)
{
	CHECK(wanted->count < STORE_WANTED);
	wanted->hash[wanted->count++] = hash;
	wanted->bytes = NULL;
}

void store_want_page(struct store_wanted *wanted, uint32_t group, uint32_t page)
{
	for (uint32_t level = INDEX_LEVEL_LEAST; level <= INDEX_LEVEL_MOST; level++)
		want(wanted, index_of_page(group, level, (uint64_t)page >> level));
}

void store_want_kind(struct store_wanted *wanted, uint8_t kind)
{
	want(wanted, index_of_kind(kind));
}

uint64_t store_reader_passed(const struct store_reader *reader)
{
	return reader->passed;
}

/* Each entry from seq to `to`, for the bytes. */
static int scan(struct store_reader *r, uint64_t seq, uint64_t to, const void *bytes, size_t count,
		uint64_t *found)
{
	const uint8_t *entry;
	size_t length;
	for (uint32_t i = 1; seq <= to; seq++, i++) {
		if (i % LOOKS_MAX == 0) {
			reader_look_end(r);
			TRY(reader_look_begin(r));
		}
		TRY(reader_entry_find(r, seq, &entry, &length));
		r->passed++;
		if (memmem(entry, length, bytes, count) == NULL)
			continue;
		*found = seq;
		return 0;
	}
	return -ERR_NOT_FOUND;
}

int store_reader_find(struct store_reader *reader, uint64_t seq, const void *bytes, size_t count,
		      uint64_t *found)
{
	TRY(reader_look_begin(reader));
	seq = seq < reader->first ? reader->first : seq;
	const int err = scan(reader, seq, reader->walk.head.seq, bytes, count, found);
	reader_look_end(reader);
	return err;
}

/* A stretch around seq that a row covers, or that none does. */
struct stretch {
	uint64_t first, last;
	const void *row; /* NULL: none */
	struct index_head head;
};

/* Rows never change, so one is looked through once. What a damaged one says is not believed: its entries are
   looked at. */
static bool row_sound(const void *row, size_t bytes, uint64_t first, uint64_t *sound)
{
	if (*sound != first && !index_row_sound(row, bytes))
		return false;
	*sound = first;
	return true;
}

static void stretch_in_segment(struct store_reader *r, uint64_t seq, struct stretch *out)
{
	struct index_head head;
	const uint8_t *row;
	uint64_t at = 0, before;
	if (r->rows.bytes == NULL || seq < r->rows.first || seq > r->rows.last) {
		segment_rows_close(&r->rows);
		if (segment_rows_open(r->disk.dir, r->disk.uuid, seq, &r->rows) != 0)
			return; /* where the entry itself is looked for, it is said */
	}
	out->first = before = r->rows.first;
	out->last = r->rows.last;
	while (segment_row_next(&r->rows, &at, &row, &head)) {
		if (head.first > seq) {
			out->last = head.first - 1;
			break;
		}
		if (head.last >= seq) {
			out->row = row_sound(row, sizeof head + head.count * sizeof(uint64_t), head.first,
					     &r->sound_archived) ? row : NULL;
			out->head = head;
			out->first = head.first > before ? head.first : before;
			out->last = head.last < out->last ? head.last : out->last;
			return;
		}
		out->first = head.last + 1;
	}
}

static void stretch_find(struct store_reader *r, uint64_t seq, struct stretch *out)
{
	MDB_val row;
	uint64_t next;
	*out = (struct stretch){.first = seq, .last = seq};
	if (seq <= r->walk.archived.seq) {
		stretch_in_segment(r, seq, out);
		if (out->last > r->walk.archived.seq)
			out->last = r->walk.archived.seq;
		return;
	}
	out->last = r->walk.head.seq;
	if (!r->indexed)
		return;
	if (index_row_find(r->txn, r->index, seq, &row, &out->head, &next)) {
		out->row = row_sound(row.mv_data, row.mv_size, out->head.first, &r->sound) ? row.mv_data : NULL;
		out->first = out->head.first > r->walk.archived.seq ? out->head.first : r->walk.archived.seq + 1;
		next = out->head.last + 1;
	}
	if (next - 1 < out->last)
		out->last = next - 1;
}

static int seek(struct store_reader *r, const struct store_wanted *w, uint64_t seq, bool back,
		uint64_t *found)
{
	while (seq >= r->first && seq > 0 && seq <= r->walk.head.seq) {
		struct stretch s;
		stretch_find(r, seq, &s);
		if (s.row != NULL) {
			if (index_row_seek(s.row, &s.head, w->hash, w->count, seq, back, found) && *found >= s.first &&
			    *found <= s.last)
				return 0;
		} else if (w->bytes == NULL || back) {
			*found = seq;
			return 0;
		} else {
			const int code = scan(r, seq, s.last, w->bytes, w->byte_count, found);
			if (code != -ERR_NOT_FOUND)
				return code;
		}
		seq = back ? s.first - 1 : s.last + 1;
	}
	return -ERR_NOT_FOUND;
}

int store_reader_seek(struct store_reader *reader, const struct store_wanted *wanted, uint64_t seq, bool back,
		      uint64_t *found)
{
	static const uint8_t nobody[16];
	const uint64_t last = reader->walk.head.seq;
	/* No session: the records that have none are not those of one. */
	if (wanted->bytes && wanted->byte_count == sizeof nobody &&
	    memcmp(wanted->bytes, nobody, sizeof nobody) == 0)
		return -ERR_NOT_FOUND;
	if (back ? seq > last : seq < reader->first)
		seq = back ? last : reader->first;
	TRY(reader_look_begin(reader));
	const int err = seek(reader, wanted, seq, back, found);
	reader_look_end(reader);
	return err;
}
