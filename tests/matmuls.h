/*
 * What the tests of the matmul leaves share: activations, what cpu.h says that a product is, and a judge of
 * one leaf's results and of the guard values around them.
 */
#ifndef HOLDFAST_TESTS_MATMULS_H
#define HOLDFAST_TESTS_MATMULS_H

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/device.h"
#include "kernels/cpu/fast.h"
#include "kernels/quant.h"
#include "tests/kernels_fixture.h"
#include "tests/leaves.h"
#include "tests/tap.h"

/* What CPUs with AVX-512 have beside it, from Skylake-X's nothing on. */
static const unsigned subsets[] = {0, FAST_VBMI, FAST_VNNI, FAST_VNNI | FAST_VBMI};
enum { SUBSETS = sizeof subsets / sizeof subsets[0] };

static uint64_t seed = 99;

/* Activations in both forms, `rows` rows. */
static struct act act_make(uint32_t columns, uint32_t rows)
{
	struct act a = {.columns = columns,
			.x_stride = columns + 3,
			.q_stride = (columns + 31) / 32 * 32,
			.block_stride = (columns + 31) / 32 + 1};
	float *x = take(rows * a.x_stride), *d = take(rows * a.block_stride);
	float *s = take(rows * a.block_stride);
	int8_t *q = (int8_t *)(void *)take(rows * a.q_stride);
	for (uint32_t c = 0; c < rows; c++) {
		for (uint32_t k = 0; k < columns; k++)
			x[c * a.x_stride + k] = random_normal(&seed) *
						(c % 7 == 6 && k < 32 ? 0 : 1);
		if (columns % 32 == 0)
			leaves[ISA_SCALAR].quantise(
				x + c * a.x_stride, columns, q + c * a.q_stride,
				d + c * a.block_stride, s + c * a.block_stride);
	}
	a.x = x, a.q = q, a.d = d, a.s = s;
	return a;
}

static void act_free(struct act *a)
{
	free((void *)a->x), free((void *)a->q), free((void *)a->d), free((void *)a->s);
}

/* The f32 dot of cpu.h. */
static float dot_f32(const float *a, const float *w, uint32_t n)
{
	float lane[16] = {0};
	for (uint32_t k = 0; k < n; k++) {
		const volatile float product = a[k] * w[k];
		lane[k % 16] += product;
	}
	for (int step = 8; step >= 1; step /= 2)
		for (int j = 0; j < step; j++)
			lane[j] += lane[j + step];
	return lane[0];
}

/* The i8 block sum of cpu.h for one row of raw data. */
static float dot_i8(uint32_t type, const uint8_t *row, const struct act *a, uint32_t c)
{
	const uint32_t elements = weight_type_elements(type);
	float acc = 0;
	struct quant_block b;
	for (uint32_t k = 0; k < a->columns;
	     k += elements, row += weight_type_bytes(type)) {
		quant_unpack(type, row, &b);
		for (uint32_t i = 0; i < elements; i += b.part) {
			const uint32_t at = (k + i) / 32;
			const volatile float scale = b.d[i / b.part] *
						     a->d[c * a->block_stride + at];
			int sum = 0;
			for (uint32_t j = 0; j < b.part; j++)
				sum += b.q[i + j] * a->q[c * a->q_stride + k + i + j];
			acc = fmaf(scale, (float)sum, acc);
			if (!b.symmetric)
				acc = fmaf(b.m[i / b.part], a->s[c * a->block_stride + at],
					   acc);
		}
	}
	return acc;
}

/* What cpu.h says that row `row` times activation row c is. */
static float expected(uint32_t type, const uint8_t *data, uint32_t row, const struct act *a,
		      uint32_t c)
{
	const size_t bytes = a->columns / weight_type_elements(type) *
			     weight_type_bytes(type);
	if (a->kind == ACT_I8_BLOCK && quant_is_integer(type))
		return dot_i8(type, data + row * bytes, a, c);
	float *w = take(a->columns), *x = take(a->columns);
	quant_decode(type, data + row * bytes, a->columns, w);
	for (uint32_t k = 0; k < a->columns; k++)
		x[k] = a->kind == ACT_F32 ? a->x[c * a->x_stride + k]
					  : a->d[c * a->block_stride + k / 32] *
						    (float)a->q[c * a->q_stride + k];
	const float sum = dot_f32(x, w, a->columns);
	free(w), free(x);
	return sum;
}

/* The rows of `a` laid in tiles, as a step lays them: half of the calls as many to a tile as the leaf takes,
   the others fewer, in no step with who calls. The rows that fill up the last tile are not written. */
static uint8_t *act_laid(const struct leaf *leaf, struct act *a, uint32_t rows)
{
	static uint32_t turn;
	uint32_t of = leaf->tile_rows;
	turn = turn * 1664525 + 1013904223;
	for (uint32_t i = turn >> 31 ? 0 : (turn >> 24) % 5; i && of > 1; i--)
		of /= 2;
	const size_t bytes = act_tile_bytes(a->columns, of);
	uint8_t *tiles = (uint8_t *)(void *)take(((rows + of - 1) / of * bytes + 3) / 4);
	for (uint32_t c = 0; c < rows; c++)
		leaf->place(a->q + c * a->q_stride, a->d + c * a->block_stride, a->s + c * a->block_stride,
			    a->columns, c % of, of, tiles + c / of * bytes);
	a->tiles = tiles;
	a->tile_rows = of;
	return tiles;
}

/* Runs one leaf on activation rows c_first .. , the first `split` groups apart, and looks at results and
   guards; `want` has the rows of a product of c_first + c_count rows at least. */
static void matmul_judge_one(const struct leaf *leaf, const struct weight *w, const struct act *a,
			     uint32_t split, uint32_t c_first, uint32_t c_count, const float *want,
			     size_t stride)
{
	const size_t size = (c_first + c_count + 1) * stride;
	float *memory = guarded(size), *out = memory + GUARD;
	const uint32_t groups = (w->rows + PACK_ROWS - 1) / PACK_ROWS;
	int wrong = 0, touched = 0;
	if (split)
		leaf->matmul[w->pack](w, 0, split, a, c_first, c_count, out, stride);
	leaf->matmul[w->pack](w, split, groups - split, a, c_first, c_count, out,
			      stride);
	for (size_t i = 0; i < size + 2 * GUARD; i++) {
		const size_t c = (i - GUARD) / stride, row = (i - GUARD) % stride;
		const int inside = i >= GUARD && c >= c_first && c < c_first + c_count &&
				   row < w->rows;
		if (inside)
			wrong += memcmp(memory + i, want + c * w->rows + row, 4) != 0;
		else
			touched += memory[i] != GUARD_VALUE;
	}
	if (wrong || touched) {
		printf("# %s %s %s %ux%u c %u+%u: %d wrong, %d guards touched\n",
		       leaf->name, weight_type_name(w->type),
		       a->kind == ACT_F32 ? "f32" : "i8", w->rows, w->columns, c_first,
		       c_count, wrong, touched);
		tap_failed = 1;
	}
	free(memory);
}

/* The same, with the rows as they are and with them laid in tiles. */
static void matmul_judge(const struct leaf *leaf, const struct weight *w, const struct act *a, uint32_t split,
			 uint32_t c_first, uint32_t c_count, const float *want, size_t stride)
{
	struct act laid = *a;
	matmul_judge_one(leaf, w, a, split, c_first, c_count, want, stride);
	if (!leaf->place || a->kind != ACT_I8_BLOCK || a->columns % ACT_BLOCK)
		return;
	uint8_t *tiles = act_laid(leaf, &laid, c_first + c_count);
	matmul_judge_one(leaf, w, &laid, split, c_first, c_count, want, stride);
	free(tiles);
}

#endif
