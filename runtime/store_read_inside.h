/*
 * An open reader of the log, shared by store_read.c (opening, entries, rows), store_find.c (questions by the
 * index) and store_verify.c. Only those include this.
 */
#ifndef HOLDFAST_RUNTIME_STORE_READ_INSIDE_H
#define HOLDFAST_RUNTIME_STORE_READ_INSIDE_H

#include "runtime/store_archive.h"
#include "runtime/store_disk.h"
#include "runtime/store_read.h"

struct store_reader {
	struct store_disk disk;
	struct store_walk walk;
	MDB_txn *txn;
	MDB_dbi audit, own, index;
	bool indexed;     /* there is the table `index` */
	struct segment segment;   /* the one that was asked for last */
	struct segment_rows rows; /* ... for its rows */
	uint64_t first;   /* the first entry that is there */
	uint64_t sound, sound_archived; /* the row that was looked through last, by its first entry; 0: none */
	uint64_t passed;  /* entries that were searched for some bytes */
	bool live;        /* a daemon runs beside */
	uint32_t page_tokens;
	struct store_backs backs;
};

enum { LOOKS_MAX = 4096 }; /* entries that are passed over in one transaction: some milliseconds */

/* Beside a daemon no transaction outlasts a call: old pages of the file are free again for the writer,
   however long the caller takes with what it was given. */
int reader_look_begin(const struct store_reader *r);
void reader_look_end(const struct store_reader *r);
/* All but the transaction of questions. */
int reader_open(const char *dir, bool unseen, struct store_reader **out, char *reason);
/* An entry, wherever it lies; what is given out lives until look_end. */
int reader_entry_find(struct store_reader *r, uint64_t seq, const uint8_t **bytes, size_t *count);

#endif
