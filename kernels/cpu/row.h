/*
 * One row of a packed weight, as floats or as integers with their scales: what the scalar
 * leaves and the look-up of rows read weights through. Private to kernels/cpu/.
 */
#ifndef HOLDFAST_KERNELS_CPU_ROW_H
#define HOLDFAST_KERNELS_CPU_ROW_H

#include "kernels/cpu/cpu.h"

/* Columns that are unpacked at a time; a multiple of the largest block. */
enum { ROW_CHUNK = 512 };

struct row_part {
	int8_t q[ROW_CHUNK];
	/* Scale and minimum of each 32 values, or of each 16 (Q6_K). */
	float d[ROW_CHUNK / 16], m[ROW_CHUNK / 16];
	uint32_t part; /* 32 or 16 */
	int symmetric; /* no minimum */
};

/* `count` (at most ROW_CHUNK) columns of a row from `first`, a multiple of ROW_CHUNK. */
void row_floats(const struct weight *w, uint32_t row, uint32_t first, uint32_t count,
		float *out);

/* The same as integers; only where quant_is_integer(w->type). */
void row_integers(const struct weight *w, uint32_t row, uint32_t first, uint32_t count,
		  struct row_part *out);

#endif
