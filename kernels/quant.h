/*
 * The stored weight types, dequantised by plain C: what the numbers of a file mean, and the
 * oracle for every faster path. The layouts and formulas are those of the GGUF format.
 * Pure; any thread.
 *
 * Per value the arithmetic is fixed: value = d * q, or d * q + m with the product rounded
 * before the sum; for the K types d is d*sc and m is -(dmin*mn), each rounded to f32 once.
 */
#ifndef HOLDFAST_KERNELS_QUANT_H
#define HOLDFAST_KERNELS_QUANT_H

#include <stddef.h>
#include <stdint.h>

#include "kernels/ops.h"

enum { QUANT_PARTS = 16 }; /* scales of a block at most */

/* One block as integers and scales: value[k] = d[p] * q[k] + m[p] with p = k / part. With
   `symmetric` m is not used; without, q is not negative. */
struct quant_block {
	int8_t q[256];
	float d[QUANT_PARTS], m[QUANT_PARTS];
	uint32_t part; /* values that share a scale: 16 or 32 */
	int symmetric;
};

/* Whether the type is made of integers that quant_unpack gives (the others are floats). */
int quant_is_integer(uint32_t type);

/* The sixteen values of a type made of indices into a table, IQ4_NL or MXFP4; NULL for the others. */
const int8_t *quant_table(uint32_t type);

/* The eight 6-bit scales and minima of a block of Q4_K or Q5_K. */
void quant_k_scales(const uint8_t *block, uint8_t scale[8], uint8_t minimum[8]);

/* One block of an integer type. */
void quant_unpack(uint32_t type, const uint8_t *block, struct quant_block *out);

/* `count` values, whole blocks, from `data` (any alignment). The type must be one of
   weight_type_elements' and count a multiple of its elements. */
void quant_decode(uint32_t type, const uint8_t *data, size_t count, float *out);

/* 0, or -ERR_BAD_FILE if any scale (or value, for the float types) is not finite. */
int quant_check(uint32_t type, const uint8_t *data, size_t count);

#endif
