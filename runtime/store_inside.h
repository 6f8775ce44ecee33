/*
 * The open store, shared by the files of its writer: store.c (the ring, the door), store_write.c (the
 * thread and its transactions), store_room.c (space: map, disk, readers), store_anchor.c,
 * store_archive.c. Only those and tests include this.
 */
#ifndef HOLDFAST_RUNTIME_STORE_INSIDE_H
#define HOLDFAST_RUNTIME_STORE_INSIDE_H

#include <pthread.h>
#include <stdatomic.h>

#include "runtime/store_archive.h"
#include "runtime/store_aside.h"
#include "runtime/store_anchor.h"
#include "runtime/store_disk.h"
#include "runtime/store_vault.h"

/* In the ring beside the records: a value that is kept. value[0]: where its head lies. */
enum { KIND_KEPT = STORE_KIND_COUNT };

/* What of the space is taken, and what is to be had. The writer's, but for `state`. */
struct store_room {
	uint64_t map_bytes;      /* now; grows up to options.map_bytes */
	uint64_t used;           /* bytes of data.mdb that LMDB has ever used */
	uint64_t reserved;       /* up to this byte of the file the blocks are there */
	bool reserves;           /* the file system can reserve */
	bool disk_full;          /* the head-room could not be had */
	bool batch_waits;        /* a batch had no room, on the disk or in the map */
	uint64_t looked_ns, readers_ns; /* when the disk was asked; when readers were looked at */
	_Atomic int state;       /* what store_space says */
	_Atomic uint32_t reader; /* the process of a reader that stays too long; 0: none */
	uint64_t reader_txn, reader_ns; /* its transaction, and since when it was seen there */
	_Atomic uint32_t ended;  /* the process of the last reader that was ended; 0: none */
};

struct store {
	struct store_disk disk;
	/* Bytes of what is kept on its way; positions count up for ever, a value never goes around. */
	uint8_t *keep;
	uint64_t keep_head;         /* the loop's */
	_Atomic uint64_t keep_tail; /* the writer's */
	struct store_options options;
	struct store_record *ring;
	uint64_t mask;
	uint32_t boot;
	int event_fd;
	pthread_t thread;
	pthread_mutex_t mutex; /* for sleeping only; the ring's numbers are atomic */
	pthread_cond_t wake;
	bool stop;             /* under mutex */
	/* Held by who reads in a transaction of this process, and by who moves the map: LMDB does not
	   look for the one when it does the other. */
	pthread_mutex_t map;
	/* Positions count up for ever. head, whole: the loop's; tail: the writer's. whole is the
	   position after the last STEP_END. */
	_Atomic uint64_t head, whole, tail;
	_Atomic uint64_t wanted; /* somebody waits for what is before it */
	uint64_t looked;         /* the writer's: records passed in search of a step's end */
	_Atomic bool keys_due;   /* keys are to be written though nothing is recorded */
	_Atomic bool gathers;    /* the writer wakes by itself for what nobody waits for */
	uint64_t gather_ns;      /* the writer's: until when what is pending is gathered; 0: nothing is */
	uint64_t paced_ns;       /* the writer's: until when it gathers that */
	_Atomic uint64_t durable;
	_Atomic int failed;
	_Atomic bool waits;    /* the writer waits for space */
	_Atomic uint64_t conflicts, said_seq, said_hash[STORE_HASH / 8];
	_Atomic unsigned beacons;
	unsigned heard;
	struct store_entry entry;    /* the writer's */
	struct store_index index;    /* the writer's, as disk.marks */
	struct vault *vault;         /* the loop's, but for its flush */
	struct store_room room;
	/* The anchors lie in a second place: its thread writes them, so that nothing waits for that. Idle, it and
	   `anchor` are the writer's; after the writer's end the closer's. */
	struct store_anchor anchor;
	struct aside second;
	struct store_head second_head; /* that is to be anchored */
	bool settled, second_left, third_left; /* the closer's: the writer has ended; these do not answer */
	/* The folder `archive` may lie in a place of its own too: as above, with `archive`. */
	struct aside third;
	struct store_archive archive;
	uint64_t archive_next_ns;    /* after a failure: not before */
	_Atomic int archive_err;
	_Atomic uint64_t archived;   /* disk.archived.seq, for others */
};

/* store_write.c */
struct batch {
	MDB_txn *txn;
	MDB_cursor *own;
	struct store_head head;
	uint64_t at, step; /* step: the last one closed */
	uint64_t no_end;   /* up to here no step is closed, from `at` on: looked through once */
	uint64_t keep_at;  /* keep's bytes are free up to here, once this is on disk */
	size_t bytes;
	uint32_t conflicts;
	bool open;         /* a part of the step in hand was put already */
	bool changed;
	bool last;         /* of this process: what is marked becomes a row */
	bool bare;         /* without a row, which waits for the next, or for the next start */
};
int store_batch_begin(const struct store *s, struct batch *b);
int store_batch_commit(const struct store *s, struct batch *b, bool clean);
void store_head_take(struct store *s, const struct store_head *head);
void store_announce(const struct store *s);
int store_writer_start(struct store *s);
/* False: it has not ended after ms; 0: it is waited for without an end. */
bool store_writer_stop(struct store *s, uint32_t ms);
/* Asks for an anchor of the log's head; false: the last is still being written. */
bool store_anchor_ask(struct store *s);
/* A deadline for pthread_cond_timedwait on `wake`. */
void store_deadline(struct timespec *t, uint64_t ns);

/* store_room.c. From the writer, between its transactions. */
int room_open(struct store *s);
/* Looks at the space after a commit: reserves, grows the map, sets `state`. */
void room_look(struct store *s);
/* After a transaction that found no room: true if there is more now. */
bool room_more(struct store *s);
/* What is done at times: the disk that was full is asked again, stale readers are let go. Returns when to
   be called next, in ns of the monotonic clock; UINT64_MAX: when something was written. */
uint64_t room_chores(struct store *s, uint64_t now_ns);

#endif
