/*
 * Anchors: where the chain stood, written at times to a file in another folder, so that a log that is
 * cut at its end, set back or written anew is told from the one that was. Private to the store.
 *
 * The file UUID.anchors is only appended to. Its first line says of which log it is, and then it has one
 * for each anchor:
 *
 *	log UUID
 *	anchor SEQ BOOT WALL_NS HASH SERIES INDEX MAC
 *
 * HASH is that of entry SEQ. MAC is BLAKE2b-128 of the line before it, under a key that changes with
 * each line: the next is a hash of this one, and this one is then written over. So who takes the
 * machine cannot sign anew what lies behind. The first key of a series is written once, to the file
 * UUID.SERIES.key beside the anchors, with the uuid, to be taken away to where the verifier is; without it
 * the anchors are worth what the folder's protection is worth.
 */
#ifndef HOLDFAST_RUNTIME_STORE_ANCHOR_H
#define HOLDFAST_RUNTIME_STORE_ANCHOR_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "runtime/store_disk.h"

enum { ANCHOR_KEY = 32, ANCHOR_MAC = 16, ANCHOR_LINE = 256 };

struct anchor_key {
	uint8_t bytes[ANCHOR_KEY];
	uint32_t series, index;
};

/* The writer's. */
struct store_anchor {
	int fd, key_fd;         /* -1: no anchors are made */
	uint8_t uuid[STORE_UUID]; /* whose they are */
	struct anchor_key key;  /* of the next line */
	uint64_t seq;           /* the last that is anchored */
	uint64_t at_ns;         /* when, of the monotonic clock */
	_Atomic uint64_t said;  /* seq, for others */
	_Atomic int err;        /* why the last could not be made; 0 */
	bool torn;              /* the last line was cut off: the next begins a new one */
};

/* One line of the file. */
struct anchor_line {
	uint64_t seq, wall_ns;
	uint32_t boot, series, index;
	uint8_t hash[STORE_HASH];
	bool signed_right, signed_wrong; /* neither: the key is not at hand */
	bool key_other; /* the file of its series' first key is of another log */
	bool gap; /* a line before it is gone: each has the number after the last one's */
};

/* Opens the folder's file for this store, makes it where there is none, and compares its last line
   with the log: -ERR_INTEGRITY if the log is behind it or another. dir NULL or "": no anchors. */
int anchor_open(struct store_anchor *anchor, const struct store_disk *disk, const char *dir, char *reason);
void anchor_close(struct store_anchor *anchor);
/* For readers: whether the store's file `anchor`, if there is one, is this log's. */
int anchor_key_check(const struct store_disk *disk, char *reason);
/* Appends one; on disk when it returns 0. After an error the next call tries again. */
int anchor_put(struct store_anchor *anchor, const struct store_head *head);

/* Reading: all lines, in the order of the file; for verify. */
struct anchor_reader;
/* key_dir NULL: the keys are looked for beside the anchors. -ERR_NO_FILE: no file of this store there. */
int anchor_reader_open(const char *dir, const char *key_dir, const uint8_t uuid[STORE_UUID],
		       struct anchor_reader **out, char *reason);
/* False at the end. Lines that are none are counted in *torn and passed over. */
bool anchor_reader_next(struct anchor_reader *reader, struct anchor_line *line, uint64_t *torn);
void anchor_reader_close(struct anchor_reader **reader);

/* What can be done about a file of the log's in `dir`: "anchors", "1.key". As store_cure. */
void anchor_cure(char *reason, const char *words, const char *command, const char *dir,
		 const uint8_t uuid[STORE_UUID], const char *end);

#endif
