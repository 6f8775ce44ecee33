/*
 * The engine: the one thread that owns the device. The loop hands it whole jobs and gets them back;
 * they share nothing else.
 *
 * Two jobs exist. The loop takes a free one, fills it, submits it; the engine sets the tags of newly
 * assigned pages, clears what must be cleared, computes the block, and gives the job back through
 * engine_done, announced on engine_fd (an eventfd, readable while any is done).
 */
#ifndef HOLDFAST_RUNTIME_ENGINE_H
#define HOLDFAST_RUNTIME_ENGINE_H

#include <stdint.h>

#include "runtime/batch.h"
#include "runtime/forward.h"

/* A run of pages that got an owner; tags count up from tag_first. clear: zero them first (they
   belonged to another principal). */
struct engine_assign {
	uint32_t group, page_first, page_count, clear;
	uint64_t tag_first;
};

struct engine_job {
	uint64_t batch;                  /* the scheduler's number; 0: no batch, only assignments */
	struct batch_builder *builder;   /* the job's own */
	const struct ops_batch *block;   /* what batch_end returned; NULL if batch is 0 */
	struct engine_assign *assign;    /* room for assign_max; counts are the loop's */
	uint32_t assign_count, assign_max;
	/* Results, valid after engine_done. */
	int err;                         /* of the whole step; then nothing below counts */
	uint64_t measured_us;
	struct ops_sampled *sampled;     /* per sample */
	struct ops_fault *faults;        /* per sequence */
};

struct engine;

/* Takes over `forward` (closed by engine_close) and starts the thread. */
int engine_open(struct forward *forward, uint32_t assign_max, struct engine **out);
void engine_close(struct engine **engine); /* waits for the job in hand */
int engine_fd(const struct engine *engine);
struct engine_job *engine_job(struct engine *engine);  /* a free job, or NULL */
void engine_submit(struct engine *engine, struct engine_job *job);
/* The next finished job, in order, or NULL; free again after engine_release. */
struct engine_job *engine_done(struct engine *engine);
void engine_release(struct engine *engine, struct engine_job *job);

#endif
