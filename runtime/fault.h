/*
 * Failures made on purpose. The table is empty but in tests and under --inject; then a point in the
 * code that is passed costs one load.
 *
 * Thread: the table is set before the threads that pass its points; passing is for any thread.
 */
#ifndef HOLDFAST_RUNTIME_FAULT_H
#define HOLDFAST_RUNTIME_FAULT_H

#include <stdbool.h>
#include <stdint.h>

enum fault_point {
	FAULT_STATFS,     /* the code is the file system's magic number instead */
	FAULT_PUT,        /* an entry goes into a transaction */
	FAULT_COMMIT,     /* before a transaction is committed */
	FAULT_COMMITTED,  /* after it */
	FAULT_ROW,        /* an owner row is written; any code: with a wrong tag */
	FAULT_CREATED,    /* a new store is whole but for its name */
	FAULT_TIER_WRITE, /* a page goes to the disk tier; code -1: only half of it is written */
	FAULT_TIER_READ,  /* ... or comes back; code -1: one bit of it is turned */
	FAULT_ACCEPTED,   /* a call is on record, its ACCEPTED not yet sent */
	FAULT_STEP,       /* the scheduler has spoken, its effects are not carried out */
	FAULT_BATCH,      /* a batch came back from the device */
	FAULT_SEGMENT,    /* old entries go into a file of the archive */
	FAULT_DROP,       /* ... and out of the log, before that is committed */
	FAULT_ANCHOR,     /* an anchor is written */
	FAULT_RESERVE,    /* head-room is asked of the disk */
	FAULT_KEY,        /* a session's key is written, or all of them are */
	FAULT_KEYS,       /* the keys of sessions are flushed */
	FAULT_FORGET,     /* a session's key is written over, nothing else of its end is on disk */
	FAULT_MARK,       /* where a DATA ends is written, before it is sent */
	FAULT_INDEX,      /* a row of the index goes into a transaction */
	FAULT_COUNT
};

enum { FAULT_TABLE_MAX = 32, FAULT_HALF = -1 };

/* The at-th passing of the point (from 1), and each `every`-th after it (0: none), fails with the
   code: an errno, or what the point says. With code 0 it only takes wait_ms longer. crash: the
   process ends there by SIGKILL. */
struct fault {
	enum fault_point point;
	uint32_t at;
	long code;
	uint32_t wait_ms, every;
	bool crash;
};

void fault_set(const struct fault *table, unsigned count);
/* 0, or the code with which this passing of the point shall fail. */
long fault_pass(enum fault_point point);
uint32_t fault_passed(enum fault_point point);
uint64_t fault_made(void); /* how many were made so far */
const char *fault_name(enum fault_point point);

#endif
