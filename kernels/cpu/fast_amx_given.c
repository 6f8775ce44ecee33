/*
 * AMX: the copies for given tokens, in 8 bits with one scale a row (PACK_I8) times activations with one
 * scale a row, and in bf16. The sums of 32 weight rows and 32 activation rows stay in four tiles over all
 * columns; the packed lines are what a tile takes as they stand, and the bytes of 64 activations of 8 bits
 * meet as many lines as those of 32 in bf16. Integers are exact, and the sums of bf16 are defined as a
 * tile makes them, so the bits are those of all paths.
 */
#include "kernels/cpu/fast_amx.h"

enum { STEP = 64, BOTH = 2 * AMX_TILE }; /* STEP: bytes */

#define GIVEN_DOT(weights, acts, sum) \
	do { \
		if (halves) \
			AMX_DOT_BF16(weights, acts, sum); \
		else \
			AMX_DOT_UNSIGNED(weights, acts, sum); \
	} while (0)

/* The tile registers: sums in 0 .. 3, activations in 4 and 5, weights in 6 and 7. `second`: rows of the
   second tile of activations, which may be none. */
INLINE void given_configure(uint32_t first, uint32_t second)
{
	struct amx_config c = { .palette = 1 };

	for (int i = 0; i < 8; i++) {
		c.rows[i] = (uint8_t)(i > 5 ? 16 : i == 4 || i < 2 ? first : second);
		c.bytes[i] = c.rows[i] ? 64 : 0;
	}
	__asm__ volatile("ldtilecfg %0" ::"m"(c));
}

/* One pass over `bytes` of the contraction: one or two tiles of activations (at q, and 16 rows on) and one or
   two groups of weights, whose sums begin at 0 or are taken from where they then go: `to`, rows of the first
   tile to_stride bytes apart, those of the second group 64 bytes on. */
struct given_pass {
	const uint8_t *q, *lines;
	size_t q_stride, group_bytes, bytes, to_stride;
	uint8_t *to;
	int begin;
};

INLINE void given_dots(const struct given_pass *p, const int two_acts, const int two_groups, const int halves)
{
	const size_t stride = p->q_stride, to_stride = p->to_stride;
	const uint8_t *q = p->q, *q1 = q + AMX_TILE * stride, *lines = p->lines;
	uint8_t *const to = p->to, *const to1 = to + AMX_TILE * to_stride;

	if (p->begin) {
		AMX_ZERO(0);
		AMX_ZERO(1);
		if (two_acts) {
			AMX_ZERO(2);
			AMX_ZERO(3);
		}
	} else {
		AMX_LOAD(0, to, to_stride);
		if (two_groups)
			AMX_LOAD(1, to + 64, to_stride);
		if (two_acts)
			AMX_LOAD(2, to1, to_stride);
		if (two_acts && two_groups)
			AMX_LOAD(3, to1 + 64, to_stride);
	}
	for (size_t k = 0; k < p->bytes; k += STEP, lines += AMX_TILE * STEP) {
		AMX_LOAD(4, q + k, stride);
		AMX_LOAD(6, lines, 64);
		GIVEN_DOT(6, 4, 0);
		if (two_groups) {
			AMX_LOAD(7, lines + p->group_bytes, 64);
			GIVEN_DOT(7, 4, 1);
		}
		if (two_acts) {
			AMX_LOAD(5, q1 + k, stride);
			GIVEN_DOT(6, 5, 2);
			if (two_groups)
				GIVEN_DOT(7, 5, 3);
		}
	}
	AMX_STORE(0, to, to_stride);
	if (two_groups)
		AMX_STORE(1, to + 64, to_stride);
	if (two_acts)
		AMX_STORE(2, to1, to_stride);
	if (two_acts && two_groups)
		AMX_STORE(3, to1 + 64, to_stride);
}

INLINE void given_pass(const struct given_pass *p, int two_acts, int two_groups, const int halves)
{
	if (two_acts && two_groups)
		given_dots(p, 1, 1, halves);
	else if (two_acts)
		given_dots(p, 1, 0, halves);
	else if (two_groups)
		given_dots(p, 0, 1, halves);
	else
		given_dots(p, 0, 0, halves);
}

/* Sums of `count` activation rows, `stride` bytes apart, and one group to results. */
INLINE void given_finish(const uint8_t *sum, size_t stride, const uint8_t *group, uint32_t rows,
			 const struct act *a, uint32_t c, uint32_t count, float *out, size_t out_stride,
			 const int halves)
{
	const __mmask16 in = (__mmask16)((1u << rows) - 1);

	for (uint32_t i = 0; i < count; i++, sum += stride) {
		const __m512i x = _mm512_loadu_si512(sum);
		__m512 y = _mm512_castsi512_ps(x);

		if (!halves) {
			const size_t at = (c + i) * a->block_stride;
			const __m512i start = _mm512_set1_epi32(-128 * (int32_t)a->s[at]);
			const __m512 scale = _mm512_loadu_ps((const float *)(const void *)group);

			y = _mm512_mul_ps(_mm512_mul_ps(scale, _mm512_set1_ps(a->d[at])),
					  _mm512_cvtepi32_ps(_mm512_add_epi32(x, start)));
		}
		_mm512_mask_storeu_ps(out + (c + i) * out_stride, in, y);
	}
}

/* A lot of activation rows, at most, and of bytes of the contraction: the weights that meet them, of two
   groups, stay in the first-level cache while they pass. */
enum { GIVEN_BYTES = 768 };

INLINE void given_matmul(const struct weight *w, uint32_t group_first, uint32_t group_count,
			 const struct act *a, uint32_t c_first, uint32_t c_count, float *out,
			 size_t out_stride, const int halves)
{
	const uint8_t *acts = halves ? (const uint8_t *)a->h : (const uint8_t *)a->q;
	const size_t stride = halves ? 2 * a->h_stride : a->q_stride;
	const size_t bytes = halves ? (size_t)2 * w->columns : w->columns;
	const size_t chunks = (bytes + GIVEN_BYTES - 1) / GIVEN_BYTES;
	const size_t chunk = (bytes / STEP + chunks - 1) / chunks * STEP;
	const uint32_t g_end = group_first + group_count, c_end = c_first + c_count;
	_Alignas(64) uint8_t room[BOTH][2][64];
	uint32_t configured = 0;

	for (uint32_t g = group_first, groups; g < g_end; g += groups) {
		const uint8_t *group = w->data + g * w->group_bytes, *lines = group + (halves ? 0 : 64);
		const uint32_t row = g * PACK_ROWS, left = w->rows - row;

		groups = g_end - g < 2 ? 1 : 2;
		/* Sums lie in `out` where it has room for whole tiles, else in `room`, and then in one pass. */
		const int whole = left >= groups * PACK_ROWS;

		for (size_t k = 0; k < bytes; k += whole ? chunk : bytes)
			for (uint32_t c = c_first, count; c < c_end; c += count) {
				count = c_end - c < BOTH ? c_end - c : BOTH;
				const uint32_t first = count < AMX_TILE ? count : AMX_TILE;
				const struct given_pass p = {
					.q = acts + c * stride + k, .lines = lines + AMX_TILE * k,
					.q_stride = stride, .group_bytes = w->group_bytes,
					.bytes = !whole ? bytes : bytes - k < chunk ? bytes - k : chunk,
					.to = whole ? (uint8_t *)(out + c * out_stride + row) : room[0][0],
					.to_stride = whole ? out_stride * sizeof *out : sizeof room[0],
					.begin = k == 0 };

				if (configured != count)
					given_configure(first, count - first);
				configured = count;
				given_pass(&p, count > first, groups == 2, halves);
				for (uint32_t i = 0; !whole && i < groups; i++)
					given_finish(room[0][i], sizeof room[0], group + i * w->group_bytes,
						     left - i * PACK_ROWS < PACK_ROWS ? left - i * PACK_ROWS : PACK_ROWS,
						     a, c, count, out + row + i * PACK_ROWS, out_stride, halves);
			}
		for (uint32_t i = 0; whole && !halves && i < groups; i++) {
			float *const to = out + row + i * PACK_ROWS;

			given_finish((const uint8_t *)(to + c_first * out_stride), out_stride * sizeof *out,
				     group + i * w->group_bytes, PACK_ROWS, a, c_first, c_count, to, out_stride,
				     0);
		}
	}
	AMX_RELEASE();
}

FAST_DOT(fast_amx_row8)
{
	given_matmul(w, group_first, group_count, a, c_first, c_count, out, out_stride, 0);
}

FAST_DOT(fast_amx_bf16)
{
	given_matmul(w, group_first, group_count, a, c_first, c_count, out, out_stride, 1);
}
