/*
 * The engine: the one thread that owns the device. The loop hands it whole jobs and gets them back;
 * they share nothing else.
 *
 * Four jobs exist: one is being filled, one has a batch, two may be of those without one. The loop
 * takes a free one, fills it, submits it; the engine sets the tags of newly
 * assigned pages, clears what must be cleared, computes the block, and gives the job back through
 * engine_done, announced on engine_fd (an eventfd, readable while any is done).
 */
#ifndef HOLDFAST_RUNTIME_ENGINE_H
#define HOLDFAST_RUNTIME_ENGINE_H

#include <stdint.h>

#include "runtime/batch.h"
#include "runtime/forward.h"

/* A run of pages that got an owner; tags count up from tag_first, which is 0 where they got none and are
   only zeroed. clear: zero them first (they
   belonged to another principal). */
struct engine_assign {
	uint32_t group, page_first, page_count, clear;
	uint64_t tag_first;
};

/* A digest of a full page: made, or compared with the one that was made when it was filled. A page
   that is not what it was loses its tag, so that no batch reads it, this one's included. */
enum digest_state { DIGEST_MADE, DIGEST_SAME, DIGEST_OTHER, DIGEST_GONE /* it bears another tag */ };
struct engine_digest {
	uint32_t group, page;
	uint64_t tag;
	uint64_t want[2]; /* 0, 0: it is to be made */
	uint64_t got[2];  /* the result, and its enum digest_state */
	uint32_t state, reserved;
};

/* A page to or from host memory. The digest of its first `tokens` positions goes along. */
struct engine_sum {
	uint64_t digest[2];
	uint32_t tokens, reserved;
};
enum { ENGINE_LATE_MS = 50 };
struct engine_copy {
	uint64_t copy, tag;      /* the scheduler's number; up: the page's new tag */
	uint32_t group, page, up, tokens;
	uint32_t stage;          /* the loop's own: what the bytes are of */
	uint32_t skip, late;     /* 1: nothing is moved, it takes ENGINE_LATE_MS longer; on purpose */
	int err;                 /* the result: an enum err, or 0 */
	struct engine_sum *sum;  /* beside the bytes; both the engine's until the job is done */
	uint8_t *bytes;
};

/* A fault on purpose: see runtime/inject.h. */
enum poke_kind {
	POKE_TAG,  /* the page's tag is turned by value */
	POKE_GIVE, /* it becomes value */
	POKE_TAKE, /* it becomes value and the page is cleared */
	POKE_BIT   /* bit `value` of the page, counted around, is turned */
};
struct engine_poke {
	uint32_t kind, group, page, reserved;
	uint64_t value;
};
enum { ENGINE_POKES = 64 };

struct engine_job {
	uint64_t batch;                  /* the scheduler's number; 0: no batch, only what is below */
	struct batch_builder *builder;   /* the job's own */
	const struct ops_batch *block;   /* what batch_end returned; NULL if batch is 0 */
	struct engine_assign *assign;    /* room for assign_max; counts are the loop's */
	uint32_t assign_count, assign_max;
	struct engine_copy *copy;        /* after the assignments; room for copy_max */
	uint32_t copy_count, copy_max;
	struct engine_poke poke[ENGINE_POKES]; /* after the assignments */
	uint32_t poke_count;
	struct engine_digest *digest;    /* after the pokes, before the batch; room for digest_max */
	uint32_t digest_count, digest_max;
	struct ops_digest *sums;         /* the engine's own */
	/* Results, valid after engine_done. */
	int err;                         /* of the whole step; then nothing below counts */
	uint64_t measured_us;
	struct ops_sampled *sampled;     /* per sample */
	struct ops_fault *faults;        /* per sequence */
};

struct engine;

/* Takes over `forward` (closed by engine_close) and starts the thread. A refused call (-ERR_MEMORY,
   -ERR_IO) leaves `forward` with the caller. */
int engine_open(struct forward *forward, uint32_t assign_max, uint32_t digest_max, uint32_t copy_max,
		struct engine **out);
void engine_close(struct engine **engine); /* waits for the job in hand */
int engine_fd(const struct engine *engine);
/* A free job, empty, now the caller's until engine_release; NULL if there is none. */
struct engine_job *engine_job(struct engine *engine);
uint32_t engine_spare(const struct engine *engine); /* how many are free */
void engine_submit(struct engine *engine, struct engine_job *job);
/* The next finished job, in order, or NULL; free again after engine_release. */
struct engine_job *engine_done(struct engine *engine);
void engine_release(struct engine *engine, struct engine_job *job);

#endif
