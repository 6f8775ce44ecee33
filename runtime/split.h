/*
 * How a model is split over ranks: which heads, which part of ff and which ids a rank has, and its
 * piece of each tensor. Products that make heads, ff or logits are split by rows, those that take heads
 * or ff in by columns, so that a layer needs two sums. A KV head that several ranks need stands on each
 * of them. Pure.
 */
#ifndef HOLDFAST_RUNTIME_SPLIT_H
#define HOLDFAST_RUNTIME_SPLIT_H

#include "runtime/model.h"
#include "runtime/wanted.h"

enum { SPLIT_RANKS_MAX = 64 };

struct split {
	uint32_t rank, ranks;
	uint32_t heads, kv_heads, head, vocab; /* of the model */
	uint32_t kv_own;    /* KV heads of a rank: kv_heads / ranks, or 1 */
	uint32_t ff, ff_unit; /* ff is cut at multiples of the unit: blocks of weights stay whole */
	uint32_t vocab_share;
};

/* -ERR_OUT_OF_RANGE with one line in reason (MODEL_REASON_MAX of room) for a number of ranks that the
   model cannot be split over. */
int split_make(const struct model *model, uint32_t ranks, uint32_t rank, struct split *out, char *reason);

/* The rank's part of a side of `count`: all of it where the side is not split. */
void split_side(const struct split *split, enum side side, uint32_t count, uint32_t *first,
		uint32_t *own);

/* What of a plan for the whole model (heads, kv_own x ranks KV heads, ff) the rank has. */
void split_plan(const struct split *split, const struct device_plan *whole, struct device_plan *own);

/* Brings the rank's piece of a tensor of the type to the front of its bytes; *rows and *columns are
   the tensor's and become the piece's. bytes may be NULL: then only they are made. */
void split_cut(const struct split *split, const struct wanted *wanted, uint32_t type, uint32_t *rows,
	       uint32_t *columns, uint8_t *bytes);

#endif
