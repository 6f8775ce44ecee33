/*
 * The integer matmul's frame, the same for all instruction sets: activations of up to TILE_COLUMNS
 * rows ("columns" of the product) lie side by side, so that the inner loop has one address: as they
 * were laid when the rows were quantised (leaf.place), or are laid here, CHUNK blocks at a time.
 * Groups go in lots that stay in the second-level cache while the columns pass. Sums are carried
 * through `out`, so that chunks and tiles leave no trace in a result.
 */
#ifndef HOLDFAST_KERNELS_CPU_FAST_TILE_H
#define HOLDFAST_KERNELS_CPU_FAST_TILE_H

#include <string.h>

#include "kernels/cpu/fast_v16.h"
#include "kernels/quant.h"

/* TILE_AHEAD: bytes from the weights at work to those that are fetched for later. */
enum { TILE_COLUMNS = 16, TILE_CHUNK = 32, TILE_LOT_BYTES = 512 << 10, TILE_AHEAD = 4096 };

struct tile {
	const uint8_t *q; /* of the chunk's first block and the first column; columns are TILE_RECORD apart */
	size_t step;      /* from block to block */
	/* For each block where the integer dots start, -zero * sum of q, and after TILE_COLUMNS the part of its
	   first 16 values; looked at only by kernels whose weights have a zero, or may have. */
	const int32_t *starts;
	const int8_t *table; /* PACK_T4's 16 values */
};

/* A record of a tile: one row's block. A line of the cache that two threads write belongs to neither, so the
   parts of a row lie together: those of four rows fill whole lines. */
enum { TILE_RECORD = ACT_RECORD, RECORD_AT_D = 32, RECORD_AT_S = 36, RECORD_AT_ALL = 40, RECORD_AT_LOW = 44 };
#define RECORD_D(at, n) (*(const float *)(const void *)((at) + (n) * TILE_RECORD + RECORD_AT_D))
#define RECORD_S(at, n) (*(const float *)(const void *)((at) + (n) * TILE_RECORD + RECORD_AT_S))

/* Where a tile lies that nobody laid before, and the starts. */
struct tile_room {
	_Alignas(64) uint8_t records[TILE_CHUNK * TILE_COLUMNS * TILE_RECORD];
	int32_t starts[TILE_CHUNK * 2 * TILE_COLUMNS];
};

/* One group (16 rows at `data`, its first block of the chunk) times the tile's columns, `blocks`
   blocks. first: sums start at 0, else at out. out: of the first column; `rows` rows are written. */
typedef void tile_kernel(const uint8_t *data, const struct tile *t, uint32_t blocks, int first,
			 float *out, size_t out_stride, uint32_t rows);

/* Fetches `bytes` of the weights that lie `ahead` bytes on. What a CPU fetches by itself keeps too few lines
   under way: asked in time, a core reads weights from beyond its own caches up to half as fast again. */
INLINE void tile_ahead(const uint8_t *data, size_t ahead, const uint32_t bytes)
{
	for (uint32_t i = 0; i < bytes; i += 64)
		_mm_prefetch((const char *)data + ahead + i, _MM_HINT_T0);
}

/* The record of a block: its values, scale and sum, and the sums of all its values and of the first 16. */
INLINE void record_write(uint8_t *to, const int8_t *q, float d, float s)
{
	const __m256i x = _mm256_loadu_si256((const __m256i *)q), flip = _mm256_set1_epi8((char)0x80);
	const __m256i u = _mm256_sad_epu8(_mm256_xor_si256(x, flip), _mm256_setzero_si256());
	__m128i low = _mm256_castsi256_si128(u), all = _mm256_extracti128_si256(u, 1);

	low = _mm_add_epi32(low, _mm_srli_si128(low, 8));
	all = _mm_add_epi32(_mm_add_epi32(all, _mm_srli_si128(all, 8)), low);
	const int32_t sums[2] = { _mm_cvtsi128_si32(all) - 128 * ACT_BLOCK,
				  _mm_cvtsi128_si32(low) - 128 * (ACT_BLOCK / 2) };
	_mm256_storeu_si256((__m256i *)to, x);
	memcpy(to + RECORD_AT_D, &d, sizeof d);
	memcpy(to + RECORD_AT_S, &s, sizeof s);
	memcpy(to + RECORD_AT_ALL, sums, sizeof sums);
}

INLINE void tile_place(const int8_t *q, const float *d, const float *s, uint32_t columns, uint32_t row,
		       uint32_t rows, uint8_t *tile)
{
	tile += row * TILE_RECORD;
	for (uint32_t b = 0; b < columns / ACT_BLOCK; b++, tile += rows * TILE_RECORD)
		record_write(tile, q + b * ACT_BLOCK, d[b], s[b]);
}

/* Blocks [block, block + blocks) of `columns` rows from c, as they were laid, or laid here. zero: of the
   weights; starts: whether they are looked at. */
INLINE void tile_find(struct tile *t, struct tile_room *r, const struct act *a, uint32_t c, uint32_t columns,
		      uint32_t block, uint32_t blocks, uint32_t zero, int starts)
{
	const uint32_t rows = a->tile_rows ? a->tile_rows : columns;

	t->step = (size_t)rows * TILE_RECORD;
	t->starts = r->starts;
	if (a->tile_rows) {
		t->q = a->tiles + c / rows * act_tile_bytes(a->columns, rows) +
		       ((size_t)block * rows + c % rows) * TILE_RECORD;
	} else {
		t->q = r->records;
		for (uint32_t n = 0; n < columns; n++) {
			const size_t at = (c + n) * a->block_stride + block;

			tile_place(a->q + (c + n) * a->q_stride + (size_t)block * ACT_BLOCK, a->d + at, a->s + at,
				   blocks * ACT_BLOCK, n, rows, r->records);
		}
	}
	for (uint32_t b = 0; starts && b < blocks; b++)
		for (uint32_t n = 0; n < columns; n++) {
			int32_t sums[2];

			memcpy(sums, t->q + b * t->step + n * TILE_RECORD + RECORD_AT_ALL, sizeof sums);
			r->starts[b * 2 * TILE_COLUMNS + n] = -(int32_t)zero * sums[0];
			r->starts[b * 2 * TILE_COLUMNS + TILE_COLUMNS + n] = -(int32_t)zero * sums[1];
		}
}

/* What the kernels of a set have in common: columns that a tile can have, sums that start at 0 or where
   `out` left them (acc, first, in, out, out_stride and columns are the kernel's own). */
#ifdef FAST_AVX512
/* Inline assembly because gcc 12 keeps the accumulators of the intrinsic on the stack, which halves the
   speed; it also lets a file be compiled without VNNI in its target. */
#define DOT(t, w, p) \
	__asm__("vpdpbusd %2%{1to16%},%1,%0" : "+v"(t) : "v"(w), "m"(*(const int32_t *)(p)))

#define EACH_COLUMN(X) \
	X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12) X(13) X(14) X(15)

#define COLUMN_START(n) \
	if ((n) < columns) \
		acc[n] = first ? _mm512_setzero_ps() : _mm512_maskz_loadu_ps(in, out + (n) * out_stride);
#define COLUMN_END(n) \
	if ((n) < columns) \
		_mm512_mask_storeu_ps(out + (n) * out_stride, in, acc[n]);
#else
#define EACH_COLUMN(X) X(0) X(1) X(2) X(3)
/* Ends an expression: gcc would make a tree of a block's integer sums and spill its leaves. */
#define HOLD(x) __asm__("" : "+x"(x))
#define BROADCAST(p) _mm256_set1_epi32(*(const int32_t *)(const void *)(p))
#define COLUMN_START(n) \
	if ((n) < columns) \
		acc[n] = first ? _mm256_setzero_ps() : _mm256_maskload_ps(out + (n) * out_stride, in);
#define COLUMN_END(n) \
	if ((n) < columns) \
		_mm256_maskstore_ps(out + (n) * out_stride, in, acc[n]);
#endif

/* kernels: for 1, 2, 4, 8 and 16 columns; NULL where the set has none of that size. */
INLINE void tile_matmul(tile_kernel *const kernels[5], const struct weight *w, uint32_t zero,
			uint32_t group_first, uint32_t group_count,
			const struct act *a, uint32_t c_first, uint32_t c_count, float *out,
			size_t out_stride)
{
	const uint32_t blocks = w->columns / ACT_BLOCK;
	const size_t fit = TILE_LOT_BYTES / w->group_bytes;
	const uint32_t lot = fit < 4 ? 4 : fit > group_count ? group_count : (uint32_t)fit;
	const uint32_t group_end = group_first + group_count, c_end = c_first + c_count;
	const size_t block_bytes = pack_block_bytes(w->pack);
	struct tile t = { .table = quant_table(w->type) };
	struct tile_room r;

	for (uint32_t g0 = group_first; g0 < group_end; g0 += lot) {
		const uint32_t g1 = group_end - g0 < lot ? group_end : g0 + lot;

		for (uint32_t c = c_first, size; c < c_end; c += 1u << size) {
			const uint32_t fit_rows = a->tile_rows ? a->tile_rows - c % a->tile_rows : TILE_COLUMNS;

			for (size = 4; !kernels[size] || (1u << size) > c_end - c || (1u << size) > fit_rows;)
				size--;
			for (uint32_t b = 0; b < blocks; b += TILE_CHUNK) {
				const uint32_t n = blocks - b < TILE_CHUNK ? blocks - b : TILE_CHUNK;

				tile_find(&t, &r, a, c, 1u << size, b, n, zero, zero || w->pack != PACK_Q4);
				for (uint32_t g = g0; g < g1; g++) {
					const uint32_t left = w->rows - g * PACK_ROWS;

					kernels[size](w->data + g * w->group_bytes + b * block_bytes, &t, n,
						      b == 0, out + c * out_stride + g * PACK_ROWS,
						      out_stride, left < PACK_ROWS ? left : PACK_ROWS);
				}
			}
		}
	}
}

#endif
