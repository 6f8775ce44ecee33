/*
 * Where in the log something of a session, of a page, or of a rare kind is, so that a question reads only
 * the entries that answer it. Inside of runtime/store*.c and of tests.
 *
 * A row of the table `index` covers a stretch of entries, without a gap: its key is the first of them, its
 * value a struct index_head and the marks, in ascending order: a hash of what it is in the upper half, the
 * entry's distance from the first in the lower. A row is put when INDEX_ENTRIES or INDEX_MARKS are
 * together, in one piece and never changed, so that it costs eight bytes or so a mark and no second write.
 * Entries of no row (the newest, and those of a log from before there was an index) are looked at one by
 * one. A segment carries copies of the rows of its entries, between those and their places.
 *
 * The index can say too much (two names with one hash) and that costs a look; what it leaves out is not
 * found. So `verify` makes each row again from its entries.
 */
#ifndef HOLDFAST_RUNTIME_STORE_INDEX_H
#define HOLDFAST_RUNTIME_STORE_INDEX_H

#include <lmdb.h>

#include "runtime/store.h"

enum {
	INDEX_ENTRIES = 1024, INDEX_MARKS = 8192,
	INDEX_RECORD = 4,     /* marks of one record, at most */
	INDEX_LEVEL_LEAST = 4, INDEX_LEVEL_MOST = 32, /* of cells of pages: 2^level of them */
	INDEX_AGAIN = 16384,  /* entries that are taken up at a start; of more, only new ones are marked */
};

struct index_head {
	uint64_t first, last;
	uint32_t count, crc; /* of marks; crc: over all of the row with crc as 0 */
};
_Static_assert(sizeof(struct index_head) == 24, "no holes in what is stored");

/* What of a record is marked; returns how many. */
uint32_t index_of_record(const struct store_record *r, uint32_t out[INDEX_RECORD]);
uint32_t index_of_session(const uint8_t id[16]);
uint32_t index_of_page(uint32_t group, uint32_t level, uint64_t cell);
uint32_t index_of_kind(uint8_t kind);

/* The writer's marks that are in no row yet. A transaction that is given up takes its marks along: the next
   begin forgets them. */
struct store_index {
	uint64_t first, next;       /* entries first to next - 1 are marked */
	uint64_t next_kept;         /* as of the last commit */
	uint32_t count, count_kept, room;
	uint32_t put;               /* of them, in this transaction's row */
	uint64_t put_next;
	bool full, full_kept;       /* there was no room: this stretch gets no row */
	bool refused;               /* the row of the last begin found no pages in one piece */
	uint64_t *mark, *sorted;    /* mark: hash << 32 | the lower half of seq */
};
struct store_disk;
/* marks_room: what a transaction may add, beside INDEX_MARKS. Takes up what a killed process left. */
int index_open(struct store_index *index, const struct store_disk *disk, uint32_t marks_room);
void index_close(struct store_index *index);
/* In a new transaction, one of these. begin: what is together becomes a row; all: also when it is little. */
void index_again(struct store_index *index);
int index_begin(struct store_index *index, MDB_txn *txn, MDB_dbi dbi, bool all);
void index_commit(struct store_index *index);
/* A row needs pages in one piece and the log does not. True: that was wanting, and from the next begin on the
   stretch goes without a row: its entries are only slower to find. */
bool index_skip(struct store_index *index);
/* Between transactions: what would be the row of what is in none yet; *marks live until the next call. */
bool index_pending(struct store_index *index, struct index_head *head, const uint64_t **marks);
void index_add(struct store_index *index, uint64_t seq, const uint32_t *hash, uint32_t count);

/* A value as it lies in a table or segment: 0, and *head is right within itself; marks are not looked at. */
int index_head_read(const void *value, size_t bytes, struct index_head *head);
/* All of it: order, bounds, crc. */
bool index_row_sound(const void *value, size_t bytes);
/* The row of the table that covers seq, or *next: the first entry from seq on that is covered. False: not
   covered. */
bool index_row_find(MDB_txn *txn, MDB_dbi dbi, uint64_t seq, MDB_val *row, struct index_head *head,
		    uint64_t *next);
/* The first marked entry from seq on in a row, or the last up to it; false: none. */
bool index_row_seek(const void *value, const struct index_head *head, const uint32_t *hash, uint32_t count,
		    uint64_t seq, bool back, uint64_t *found);
/* Whether a row's marks of entries from `from` to `to` are what those entries have. entry: gives the bytes
   of one; a code of it ends the check, and is returned. -ERR_INTEGRITY: it is not so, of *at. */
struct index_source {
	int (*entry)(void *arg, uint64_t seq, const uint8_t **bytes, size_t *count);
	void *arg;
};
int index_row_check(const void *value, const struct index_head *head, uint64_t from, uint64_t to,
		    const struct index_source *source, uint64_t *at);

#endif
