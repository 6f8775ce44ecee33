/*
 * Building the block of a step (kernels/batch.h) piece by piece, in fixed room.
 *
 * Order of calls: batch_begin; for each sequence batch_sequence, then its batch_page calls (group
 * after group, ascending positions) and batch_row calls; batch_sample refers to a row already put;
 * batch_end lays the arrays out in the block. What does not fit is a broken invariant: the caller
 * has sized the builder by the same limits as the device.
 */
#ifndef HOLDFAST_RUNTIME_BATCH_H
#define HOLDFAST_RUNTIME_BATCH_H

#include <stdint.h>

#include "kernels/ops.h"

struct batch_builder; /* owns its block; made once, used for every step */

/* Limits as in the plan of the device. -ERR_MEMORY. */
int batch_builder_open(const struct device_plan *plan, struct batch_builder **out);
void batch_builder_close(struct batch_builder **builder);

void batch_begin(struct batch_builder *b);
/* Begins a sequence; returns its index. page_position: per group, where its first page begins. */
uint32_t batch_sequence(struct batch_builder *b, uint32_t slot, const uint32_t *page_position);
void batch_page(struct batch_builder *b, uint32_t group, uint32_t page, uint64_t tag);
/* Returns the row's index. */
uint32_t batch_row(struct batch_builder *b, uint32_t token, uint32_t position, uint32_t phase);
/* A sample with everything off and temperature 0, to be changed by the caller until batch_end. */
struct ops_sample *batch_sample(struct batch_builder *b, uint32_t row);
/* Room of n 32-bit words in the extra area; *at is the offset to put into the sample. */
uint32_t *batch_extra(struct batch_builder *b, uint32_t words, uint32_t *at);
const struct ops_batch *batch_end(struct batch_builder *b);

#endif
