/*
 * The disk tier's own thread: it puts pages into the tier, gets them back and drops them, so that
 * nobody else ever waits for the disk. What is read goes before what is written.
 *
 * A job is the caller's memory: the caller's until disk_submit, the thread's until disk_done gives it
 * back. Jobs of one slot that are not urgent keep their order.
 */
#ifndef HOLDFAST_RUNTIME_DISK_H
#define HOLDFAST_RUNTIME_DISK_H

#include <stdbool.h>
#include <stdint.h>

#include "runtime/tier.h"

enum disk_verb { DISK_PUT, DISK_GET, DISK_DROP };

struct disk_job {
	enum disk_verb verb;
	uint32_t group, slot;    /* of the tier */
	struct tier_proof proof; /* PUT: what will stand there; GET: what is expected */
	uint8_t *bytes;          /* PUT, GET */
	uint32_t harm;           /* GET: 1: a bit of the slot is turned in the file first, on purpose */
	/* Results. */
	int err;
	const char *why;         /* static text, if err */
	uint64_t took_us;
	struct disk_job *next;   /* the thread's */
};

struct disk;

/* Takes over the tier (closed by disk_close) and starts the thread. A refused call leaves it. */
int disk_open(struct tier *tier, struct disk **out);
/* Ends after the job in hand; what is queued is not done. A thread that the disk does not let go is
   left behind after wait_ms, with all that it works on (-ERR_IO). */
int disk_close(struct disk **disk, uint32_t wait_ms);
int disk_fd(const struct disk *disk); /* an eventfd: readable while a job is done */
/* urgent: before all that is not; no other job of the slot may be queued then. */
void disk_submit(struct disk *disk, struct disk_job *job, bool urgent);
struct disk_job *disk_done(struct disk *disk); /* or NULL */
/* Takes back what was not begun: PUT and GET are done with -ERR_IO. */
void disk_cancel(struct disk *disk);
/* Since when the thread is at the job in hand; 0: it is idle. *job: which. */
uint64_t disk_busy_us(struct disk *disk, const struct disk_job **job);

#endif
