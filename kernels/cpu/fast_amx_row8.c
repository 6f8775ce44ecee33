/*
 * AMX: weights of 8 bits with one scale a row (PACK_I8) times activations with one scale a row. The
 * sums of 32 weight rows and 32 activation rows stay in four tiles over all columns; the packed lines
 * are what a tile takes as they stand. The integers are exact, so the bits are those of all paths.
 */
#include "kernels/cpu/fast_amx.h"

enum { STEP = 64, BOTH = 2 * AMX_TILE };

/* The tile registers: sums in 0 .. 3, activations in 4 and 5, weights in 6 and 7. `second`: rows of the
   second tile of activations, which may be none. */
INLINE void row8_configure(uint32_t first, uint32_t second)
{
	struct amx_config c = { .palette = 1 };

	for (int i = 0; i < 8; i++) {
		c.rows[i] = (uint8_t)(i > 5 ? 16 : i == 4 || i < 2 ? first : second);
		c.bytes[i] = c.rows[i] ? 64 : 0;
	}
	__asm__ volatile("ldtilecfg %0" ::"m"(c));
}

/* Integer sums of one or two tiles of activations (q, and 16 rows on) and one or two groups. */
INLINE void row8_sums(int32_t sum[4][AMX_TILE][16], const int8_t *q, size_t stride, const uint8_t *w,
		      size_t group_bytes, uint32_t columns, const int two_acts, const int two_groups)
{
	const int8_t *q1 = q + AMX_TILE * stride;

	AMX_ZERO(0);
	AMX_ZERO(1);
	if (two_acts) {
		AMX_ZERO(2);
		AMX_ZERO(3);
	}
	for (uint32_t k = 0; k < columns; k += STEP) {
		const uint8_t *lines = w + (size_t)16 * k;

		AMX_LOAD(4, q + k, stride);
		AMX_LOAD(6, lines, 64);
		AMX_DOT_UNSIGNED(6, 4, 0);
		if (two_groups) {
			AMX_LOAD(7, lines + group_bytes, 64);
			AMX_DOT_UNSIGNED(7, 4, 1);
		}
		if (two_acts) {
			AMX_LOAD(5, q1 + k, stride);
			AMX_DOT_UNSIGNED(6, 5, 2);
			if (two_groups)
				AMX_DOT_UNSIGNED(7, 5, 3);
		}
	}
	AMX_STORE(0, sum[0]);
	if (two_groups)
		AMX_STORE(1, sum[1]);
	if (two_acts)
		AMX_STORE(2, sum[2]);
	if (two_acts && two_groups)
		AMX_STORE(3, sum[3]);
}

/* Sums of one tile of activations and one group to results. */
static void row8_finish(int32_t (*sum)[16], const uint8_t *group, uint32_t rows, const struct act *a,
			uint32_t c, uint32_t count, float *out, size_t out_stride)
{
	const __mmask16 in = (__mmask16)((1u << rows) - 1);
	const __m512 scale = _mm512_loadu_ps((const float *)(const void *)group);

	for (uint32_t i = 0; i < count; i++) {
		const size_t at = (c + i) * a->block_stride;
		const __m512i start = _mm512_set1_epi32(-128 * (int32_t)a->s[at]);
		const __m512i x = _mm512_add_epi32(_mm512_load_si512(sum[i]), start);

		_mm512_mask_storeu_ps(out + (c + i) * out_stride, in,
				      _mm512_mul_ps(_mm512_mul_ps(scale, _mm512_set1_ps(a->d[at])),
						    _mm512_cvtepi32_ps(x)));
	}
}

FAST_DOT(fast_amx_row8)
{
	_Alignas(64) int32_t sum[4][AMX_TILE][16];
	uint32_t configured = 0;

	for (uint32_t c = c_first, count; c < c_first + c_count; c += count) {
		count = c_first + c_count - c < BOTH ? c_first + c_count - c : BOTH;
		const uint32_t first = count < AMX_TILE ? count : AMX_TILE, second = count - first;
		const int8_t *q = a->q + c * a->q_stride;

		if (configured != count)
			row8_configure(first, second);
		configured = count;
		for (uint32_t g = group_first, groups; g < group_first + group_count; g += groups) {
			const uint8_t *group = w->data + g * w->group_bytes;

			groups = group_first + group_count - g < 2 ? 1 : 2;
			if (second && groups == 2)
				row8_sums(sum, q, a->q_stride, group + 64, w->group_bytes, w->columns, 1, 1);
			else if (second)
				row8_sums(sum, q, a->q_stride, group + 64, w->group_bytes, w->columns, 1, 0);
			else if (groups == 2)
				row8_sums(sum, q, a->q_stride, group + 64, w->group_bytes, w->columns, 0, 1);
			else
				row8_sums(sum, q, a->q_stride, group + 64, w->group_bytes, w->columns, 0, 0);
			for (uint32_t i = 0; i < groups; i++, group += w->group_bytes) {
				const uint32_t row = (g + i) * PACK_ROWS, left = w->rows - row;
				const uint32_t rows = left < PACK_ROWS ? left : PACK_ROWS;

				row8_finish(sum[i], group, rows, a, c, first, out + row, out_stride);
				row8_finish(sum[2 + i], group, rows, a, c + first, second, out + row, out_stride);
			}
		}
	}
	AMX_RELEASE();
}
