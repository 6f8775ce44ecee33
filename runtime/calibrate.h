/*
 * INT8's smoothing vector: K is divided by it before it is stored and q multiplied, so that no
 * value of K stands out in its group. Made once for a model file and kept.
 *
 * Per layer and KV head, one value for each rotary pair: sqrt(rms of K / rms of Q), held within a
 * factor of 64 of the layer's median, rounded to bf16. The pass that measures it is always the
 * same: a fixed short text, the scalar path, f32 activations, f32 KV.
 */
#ifndef HOLDFAST_RUNTIME_CALIBRATE_H
#define HOLDFAST_RUNTIME_CALIBRATE_H

#include <stdint.h>

#include "runtime/model.h"
#include "runtime/weights.h"

/* Fills smooth (layers x kv_heads * head, bf16) from cache_dir/HASH.smooth if that is there and
   whole; else makes it, and keeps it there by an atomic replacement. That it cannot be kept is no
   error: progress is told so. cache_dir NULL: neither read nor kept. reason has room for
   MODEL_REASON_MAX. */
int calibrate_find(const struct model *model, const char *cache_dir, uint32_t threads,
		   weights_progress *progress, void *progress_arg, uint16_t *smooth, char *reason);

/* The measure itself for one layer, from q (rows x heads * head) and k (rows x kv_heads * head)
   after RoPE; smooth gets kv_heads * head values. Rows before `skip` are left out. */
void calibrate_layer(const struct arch *arch, const float *q, const float *k, uint32_t rows,
		     uint32_t skip, uint16_t *smooth);

#endif
