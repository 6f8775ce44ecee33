/*
 * A model on a device: its weights packed, its layers as data, and one step of the forward pass.
 * Used by the engine's thread and, without a daemon, by the programs logits, perplexity and bench.
 */
#ifndef HOLDFAST_RUNTIME_FORWARD_H
#define HOLDFAST_RUNTIME_FORWARD_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/ops.h"
#include "runtime/model.h"
#include "runtime/ranks.h"

enum integrity { INTEGRITY_OFF, INTEGRITY_CHECK, INTEGRITY_ABORT };

struct forward_options {
	enum kv_kind kv;
	enum act_kind act;
	enum prefill_kind prefill;
	enum isa isa;
	const char *device; /* "cpu" (or NULL), or "cuda" or "cuda:N" */
	enum integrity integrity;
	uint32_t threads;     /* 0: all cores */
	uint32_t page_tokens; /* default 16 */
	uint32_t page_count;  /* of the slab */
	/* 0: one group of pages, of all layers. Else window layers have pages of their own, group 1, and
	   so many of them; for models of which forward_windowed is true. (If all have a window, the first
	   is in group 0.) */
	uint32_t window_pages;
	uint32_t rows_max, sequences_max, samples_max; /* of one step */
	uint32_t context;     /* at most the model's; 0: the model's */
	uint32_t ranks_count; /* the model is split over so many; 0 or 1: not */
	uint32_t start_seconds; /* most that a library between ranks may take to start; 0: as long as all live */
	struct ranks *ranks;  /* started; may be NULL for forward_needs. Borrowed */
	const char *cache_dir; /* where INT8's smoothing vector is kept; NULL: not kept */
	/* Called now and then while loading, from the calling thread; may be NULL. */
	void (*progress)(void *arg, const char *what, uint64_t done, uint64_t total);
	void *progress_arg;
};
void forward_options_default(struct forward_options *options);

struct forward_needs {
	uint64_t weights_bytes, workspace_bytes, slab_bytes, page_bytes;
	uint64_t window_page_bytes; /* of group 1; 0 if there is none */
};

/* Some of its layers can have pages of a window. */
bool forward_windowed(const struct model *model);
/* How many layers those are. */
uint32_t forward_window_layers(const struct model *model);

struct forward; /* one thread at a time */

/* The table and the GPU that a device's name stands for; the GPU is not asked. -ERR_BAD_ARG for no such
   name, -ERR_UNSUPPORTED for one that the build has not, with a line in *reason. */
int forward_device_find(const char *name, const struct ops **ops, uint32_t *gpu, char *reason);
/* Whether it can be used, and the memory that it has left: 0 for the CPU, or if it does not say. `apart`:
   asked in a process of its own, since a process that has used CUDA cannot start ranks that use it.
   -ERR_UNSUPPORTED or -ERR_OUT_OF_RANGE for one that is not here; then *reason (MODEL_REASON_MAX) says
   what was found and what is needed, in one line. */
int forward_device_look(const char *name, bool apart, uint64_t *left, char *reason);

/* What it would take, of all ranks together, from the file's directory alone; page_count may be 0. With
   several ranks *reason (MODEL_REASON_MAX) says why they cannot be. */
int forward_needs(const struct model *model, const struct forward_options *options,
		  struct forward_needs *out, char *reason);
/* Borrows the model until closed. reason has room for MODEL_REASON_MAX. For KV_INT8 it finds the
   smoothing vector in cache_dir by the model's hash, or makes it (one stated pass: see
   runtime/README.md) and keeps it. */
int forward_open(const struct model *model, const struct forward_options *options,
		 struct forward **out, char *reason);
void forward_close(struct forward **forward);

const struct ops *forward_ops(const struct forward *forward);
struct device *forward_device(struct forward *forward);
const struct device_plan *forward_plan(const struct forward *forward);
/* From the next step on; for those who compare. */
void forward_integrity_set(struct forward *forward, enum integrity integrity);
uint64_t forward_weights_bytes(const struct forward *forward);
/* Identity of the precision plan: KV kind, activations, the weights of given tokens, page layout,
   smoothing: 16 bytes. */
void forward_plan_hash(const struct forward *forward, uint8_t out[16]);

/* On a rank that is not the first: does what rank 0 does, until it ends. 0 when it closed its device;
   else this rank is of no more use. */
int forward_follow(struct forward *forward);
/* The whole life of such a rank; its exit code. `say` is given the line of what only this rank has to
   say, and may be NULL. */
int forward_rank_main(const struct model *model, const struct forward_options *options,
		      void (*say)(const char *line));
/* The rank that is gone, or -1; `look` asks the system. Any thread. */
int forward_rank_gone(struct forward *forward, bool look);

/* What a step is made of, in its order, and nanoseconds of each. */
enum step_part {
	STEP_BATCH, STEP_TAGS, STEP_EMBED, STEP_QKV, STEP_ROPE, STEP_ATTEND, STEP_OUTPUT, STEP_GATE_UP,
	STEP_DOWN, STEP_HEAD, STEP_SAMPLE, STEP_PARTS
};
struct step_clock {
	uint64_t ns[STEP_PARTS];
	uint64_t last;
};
/* Steps from now on add to *clock, which is borrowed; NULL: none does. Of a device that works later than
   it is told the times are those of the telling. */
void forward_clock(struct forward *forward, struct step_clock *clock);

/* Computes one block: tag check, embedding, layers, head on the sampled rows, sampling. sampled has
   sample_count entries, faults sequence_count; either may be NULL. */
int forward_step(struct forward *forward, const struct ops_batch *block,
		 struct ops_sampled *sampled, struct ops_fault *faults);

#endif
