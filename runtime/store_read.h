/*
 * Reads a store: entries, owner rows, and whether the whole of it is sound. Where no daemon holds it,
 * its lock is taken as long as it is open, and a file that crashes its reader is found by a child
 * first, as at the daemon's start. Beside a running daemon it is read through LMDB's own table of
 * readers, in short transactions, so that it neither holds the writer up nor lets the file grow.
 */
#ifndef HOLDFAST_RUNTIME_STORE_READ_H
#define HOLDFAST_RUNTIME_STORE_READ_H

#include "runtime/store.h"

struct store_reader;
int store_reader_open(const char *dir, struct store_reader **out, char *reason);
/* Without looking through all that is there first: in a child, which is all that a crafted file can end. */
int store_reader_open_unseen(const char *dir, struct store_reader **out, char *reason);
void store_reader_close(struct store_reader **reader);
/* The first entry's number, segments included; what an entry's clock said, without taking it apart; the
   next entry from seq on that has those bytes in it (-ERR_NOT_FOUND: none), found by looking at each. */
uint64_t store_reader_first(const struct store_reader *reader);
int store_reader_wall(struct store_reader *reader, uint64_t seq, uint64_t *wall_ns);
int store_reader_find(struct store_reader *reader, uint64_t seq, const void *bytes, size_t count,
		      uint64_t *found);
/* What is looked for by the index: entries with any of these. */
enum { STORE_WANTED = 40 };
struct store_wanted {
	uint32_t count, hash[STORE_WANTED];
	const uint8_t *bytes; /* what such an entry has in it; NULL: that cannot be said */
	size_t byte_count;
};
void store_want_session(struct store_wanted *wanted, const uint8_t id[16]); /* id: the caller's, stays */
/* Each adds to what is there. */
void store_want_page(struct store_wanted *wanted, uint32_t group, uint32_t page);
/* BOOT, INCIDENT, CONFIG, FORGET, ARCHIVE, AUTH. */
void store_want_kind(struct store_wanted *wanted, uint8_t kind);
/* The next entry from seq on that may have it, or (back) the last up to seq. Where there is no index that is
   each entry, or each with the bytes. -ERR_NOT_FOUND: none. */
int store_reader_seek(struct store_reader *reader, const struct store_wanted *wanted, uint64_t seq, bool back,
		      uint64_t *found);
uint64_t store_reader_passed(const struct store_reader *reader); /* entries that were searched for bytes */
/* One past the last of the entries from seq on in which the clock does not go back. */
uint64_t store_reader_ordered(const struct store_reader *reader, uint64_t seq);
uint32_t store_reader_page_tokens(const struct store_reader *reader); /* of the last boot */
uint64_t store_reader_last(const struct store_reader *reader); /* the last entry's number, 0: none */
uint32_t store_reader_boot(const struct store_reader *reader); /* the last boot's number */
bool store_reader_clean(const struct store_reader *reader);    /* ended by store_close */

enum { STORE_ENTRY_RECORDS = 264 }; /* 4,000 bytes of body, 15 for the shortest record */

struct store_read_entry {
	uint64_t seq, mono_ns, wall_ns;
	uint32_t boot;
	uint8_t kind;          /* STORE_BOOT, STORE_SHUTDOWN, or STORE_STEP_END for a step */
	bool partial, unclean; /* the step goes on in the next entry; the boot before ended hard */
	uint64_t step;         /* of a step that is whole; SHUTDOWN: the last durable one */
	uint32_t count;
	struct store_record records[STORE_ENTRY_RECORDS];
	char config[STORE_CONFIG_MAX + 1]; /* of a boot: what it was started with */
};
/* -ERR_NOT_FOUND: no such number. -ERR_BAD_FILE: the entry does not decode. */
int store_reader_entry(struct store_reader *reader, uint64_t seq,
		       struct store_read_entry *out);

/* An entry from its bytes. */
int store_entry_read(const uint8_t *bytes, size_t count, uint64_t seq, struct store_read_entry *out);

enum store_row_state { STORE_ROW_FREE, STORE_ROW_OWNED, STORE_ROW_SHARED, STORE_ROW_QUARANTINED };
struct store_row {
	uint32_t boot, principal, turn, position, state; /* another boot than the last: void */
	uint8_t session[16];
	uint64_t tag, last_seq;
};
int store_reader_row(const struct store_reader *reader, uint32_t place, uint32_t group,
		     uint64_t page, struct store_row *out);

/* Every entry's hash, segments included, every row's crc, the head; and every anchor, where they are
   named. reason says the first fault. */
struct store_verify {
	const char *dir;
	const char *anchor_dir; /* NULL: no anchors are looked at */
	const char *key_dir;    /* where the first keys of the anchors are; NULL: beside them */
};
struct store_verified {
	uint64_t entries, rows;
	uint64_t first;    /* the first entry that was there: segments before it were taken elsewhere */
	uint64_t indexed;  /* entries that the index speaks of; it says what they do */
	uint64_t archived; /* entries up to this one lie in segments */
	uint64_t anchored; /* up to which entry an anchor vouches; also when the chain is broken behind it */
	uint64_t anchors, signed_right, torn; /* lines; of them with the right signature; that are none */
	uint32_t boot;
	bool clean;
	bool keyless; /* the file `keys` is not there: no session can be read, and no start takes the folder */
};
int store_verify_all(const struct store_verify *what, struct store_verified *out, char *reason);
int store_verify(const char *dir, struct store_verified *out, char *reason); /* without anchors */
/* Moves all but the last `keep` entries to segments. No daemon may hold the log. */
int store_archive(const char *dir, uint64_t keep, uint64_t *moved, char *reason);

#endif
