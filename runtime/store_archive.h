/*
 * Segments: old entries, moved out of data.mdb into files that never change again, in the folder
 * `archive` of the store. Private to the store.
 *
 * The file FIRST-LAST.seg (20 digits each) has a head, then each entry as a u32 length and its bytes
 * as they lay in data.mdb, then the place of each entry in the file as u64, then their count. The
 * chain goes on through it: the head has the hash before the first entry. It is written as a `.part`,
 * flushed, read back entry by entry, and renamed; only then are the entries taken out of data.mdb, a
 * few thousand a transaction, each of which moves `archived` (seq and hash) of the table meta. Whatever
 * the moment at which it is cut off, an entry is in one place at least.
 */
#ifndef HOLDFAST_RUNTIME_STORE_ARCHIVE_H
#define HOLDFAST_RUNTIME_STORE_ARCHIVE_H

#include <stdbool.h>
#include <stdint.h>

#include "runtime/store_disk.h"

enum { ARCHIVE_SEGMENT = 16384 }; /* entries of a segment, at most */

enum archive_state { ARCHIVE_IDLE, ARCHIVE_BEGIN, ARCHIVE_COPY, ARCHIVE_SEAL, ARCHIVE_DROP };

/* One move in progress; the writer's, but while `works`. The folder may lie in a place of its own, which may
   not answer: what is done there is done by archive_work alone, on any one thread, and the log is read and
   written by archive_step alone. */
struct store_archive {
	enum archive_state state;
	bool works;                 /* archive_work is to be called, or runs */
	bool resumed;               /* its: a segment has the entries already */
	int code;                   /* its: how it went */
	char *dir;                  /* the log's folder, and which log; its own, as work may outlive the log */
	uint8_t uuid[STORE_UUID];
	uint8_t before[STORE_HASH]; /* of the entry before `first` */
	uint8_t *held;              /* what goes to the file next */
	uint64_t held_bytes, held_room, puts; /* puts: that it came in */
	uint64_t part[2];           /* of the file that is open: its first and last entry */
	uint64_t first, last, next; /* of the segment; the next entry to copy */
	int fd;
	uint64_t bytes;             /* of the file so far */
	uint64_t *place;            /* ARCHIVE_SEGMENT of them */
	uint8_t hash[STORE_HASH];   /* of the entry before next */
	uint64_t moved;             /* entries moved since the start */
};

/* Leftovers of a move that was cut off are put in order: a `.part` is removed. */
int archive_open(struct store_archive *archive, const struct store_disk *disk);
void archive_close(struct store_archive *archive);
/* Begins to move entries up to `last`, at most a segment. */
void archive_begin(struct store_archive *archive, const struct store_disk *disk, uint64_t last);
/* What the step before left to be done in the folder, which may take any time. Nothing where !works. */
void archive_work(struct store_archive *archive);
/* One piece of the move; not while there is work to be done. The last one is an entry of the log itself, and
   takes *head with it; clean: what the head says of the process. *over: it is done. On an error the move is
   given up and can be begun again. */
int archive_step(struct store_archive *archive, struct store_disk *disk, struct store_head *head, bool clean,
		 bool *over);
/* Closed, without a daemon: everything but the last `keep` entries. */
int archive_all(struct store_disk *disk, uint64_t keep, uint64_t *moved);

/* store_segment.c: names, and reading. */
enum { SEGMENT_PATH = 3200 };
struct segment_head {
	char magic[8];
	uint8_t uuid[STORE_UUID], before[STORE_HASH];
	uint64_t first, last;
};
_Static_assert(sizeof(struct segment_head) == 72, "no holes in what is written");
extern const char segment_magic[8];
void segment_path(char out[SEGMENT_PATH], const char *dir, uint64_t first, uint64_t last, const char *end);
bool segment_name(const char *name, const char *end, uint64_t *first, uint64_t *last);
struct segment {
	uint64_t first, last;
	uint8_t *bytes;       /* the file */
	uint64_t size;
	const uint8_t *place; /* of each entry: u64, not aligned */
};
/* The segment that has entry seq. -ERR_NOT_FOUND: none. -ERR_BAD_FILE: not whole. */
int segment_open(const char *dir, const uint8_t uuid[STORE_UUID], uint64_t seq, struct segment *out);
void segment_close(struct segment *segment);
/* An entry of it, and the hash before its first one. */
int segment_entry(const struct segment *segment, uint64_t seq, const uint8_t **bytes, uint32_t *length);
void segment_before(const struct segment *segment, uint8_t hash[STORE_HASH]);
/* The rows of the index that a segment carries; none in one of before there was an index. segment_rows_of:
   of one that is open, whose memory they are. */
struct segment_rows {
	uint64_t first, last; /* the segment's entries */
	uint8_t *bytes;
	uint64_t size;
};
int segment_rows_open(const char *dir, const uint8_t uuid[STORE_UUID], uint64_t seq,
		      struct segment_rows *out);
int segment_rows_of(const struct segment *segment, struct segment_rows *out);
void segment_rows_close(struct segment_rows *rows);
/* From *at on; false: there is no more, or it is none. */
bool segment_row_next(const struct segment_rows *rows, uint64_t *at, const uint8_t **row,
		      struct index_head *head);
/* What each says of itself: of this log, and of the entries that its name says. Its entries are verify's. */
int segments_check(const char *dir, const uint8_t uuid[STORE_UUID], char *reason);
/* The first entry from which on segments follow each other without a gap up to seq; seq + 1: none. */
uint64_t segments_first(const char *dir, uint64_t seq);

#endif
