/*
 * The tensors of a model on a device: packed weights, and the layers as data. Private to forward.c
 * and calibrate.c, which make devices of different plans from one file.
 */
#ifndef HOLDFAST_RUNTIME_WEIGHTS_H
#define HOLDFAST_RUNTIME_WEIGHTS_H

#include <stdint.h>

#include "kernels/ops.h"
#include "runtime/forward.h"
#include "runtime/model.h"
#include "runtime/split.h"

typedef void weights_progress(void *arg, const char *what, uint64_t done, uint64_t total);

struct weights {
	const struct ops *ops;
	struct device *device; /* borrowed; outlives the weights */
	struct weight *embedding, *head, *norm; /* head is the embedding where it is tied */
	struct weight *rope_factors;
	uint32_t layer_count;
	struct ops_layer *layer;
	uint64_t bytes; /* of all packed weights */
	uint32_t made_count, made_max;
	struct weight **made; /* each once, for closing */
};

/* Reads every tensor that the architecture names, checks its shape, packs it, or the rank's piece of
   it: split is NULL for one rank, here and below. -ERR_BAD_FILE with
   the tensor's name in reason (MODEL_REASON_MAX of room) if one is missing or of another shape;
   what model_read and weight_make return otherwise. progress may be NULL. */
int weights_open(const struct model *model, const struct split *split, const struct ops *ops,
		 struct device *device, weights_progress *progress, void *progress_arg,
		 struct weights *out, char *reason);
void weights_close(struct weights *weights);
/* The layer's window; 0: it sees every position. */
uint32_t weights_window(const struct arch *arch, uint32_t layer);
/* Where the layer's pages are, if there are two groups: 1 for layers with a window, 0 for the others. Where
   all have one the first keeps all its pages, in group 0, which is never empty. */
uint32_t weights_group_of(const struct arch *arch, uint32_t layer);
/* Makes it so; before, all are in 0. */
void weights_group(const struct arch *arch, struct weights *weights);
/* One more vector of a layer that is not in the file: INT8's smoothing, bf16. */
int weights_smooth(struct weights *weights, uint32_t layer, const uint16_t *values, uint32_t count);

/* Bytes of all packed weights, of all ranks together, from the file's directory alone; equal to what
   weights_open makes. 0 for a file that lacks a tensor. */
uint64_t weights_bytes(const struct model *model, const struct split *split, const struct ops *ops,
		       const struct device_plan *plan);

/* What a step reads of the packed weights, whatever its rows (all but what is looked up by row), and
   the multiply-adds of one row through all layers and of one through the head. Attention is not in it.
   part: the same of the matmuls of each part of a step (enum step_part). */
struct weights_work {
	uint64_t bytes, layer_macs, head_macs;
	struct { uint64_t bytes, macs; } part[STEP_PARTS];
};
void weights_work(const struct model *model, const struct ops *ops, const struct device_plan *plan,
		  struct weights_work *out);

#endif
