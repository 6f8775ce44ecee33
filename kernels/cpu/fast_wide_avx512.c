/*
 * AVX-512 with VNNI: the packs of five bits, six bits, tables and K blocks times i8 blocks. As in
 * fast_avx512.c a block's eight lines are unpacked once for all columns of the tile; here with bits
 * above the nibbles, and scales that a K block holds for each 32 or 16 columns.
 */
#include "kernels/cpu/fast_lines.h"
#include "kernels/cpu/fast_tile.h"

#define COLUMN_DOTS(n, x, y) \
	DOT(x, w0, q); \
	DOT(x, w1, q + 4); \
	DOT(x, w2, q + 8); \
	DOT(x, w3, q + 12); \
	DOT(y, w4, q + 16); \
	DOT(y, w5, q + 20); \
	DOT(y, w6, q + 24); \
	DOT(y, w7, q + 28);
#define COLUMN_BLOCK(n) \
	if ((n) < columns) { \
		const uint8_t *q = at + (n) * TILE_RECORD; \
		const __m512 a = _mm512_set1_ps(RECORD_D(at, n)); \
		if (pack == PACK_K6) { \
			__m512i x = _mm512_set1_epi32(starts[TILE_COLUMNS + (n)]); \
			__m512i y = _mm512_set1_epi32(starts[n] - starts[TILE_COLUMNS + (n)]); \
			COLUMN_DOTS(n, x, y) \
			acc[n] = _mm512_fmadd_ps(_mm512_mul_ps(d, a), _mm512_cvtepi32_ps(x), acc[n]); \
			acc[n] = _mm512_fmadd_ps(_mm512_mul_ps(m, a), _mm512_cvtepi32_ps(y), acc[n]); \
		} else { \
			__m512i x = _mm512_set1_epi32(starts[n]); \
			COLUMN_DOTS(n, x, x) \
			acc[n] = _mm512_fmadd_ps(_mm512_mul_ps(d, a), _mm512_cvtepi32_ps(x), acc[n]); \
			if (pack != PACK_T4) \
				acc[n] = _mm512_fmadd_ps(m, _mm512_set1_ps(RECORD_S(at, n)), acc[n]); \
		} \
	}

INLINE void wide_block16(const uint8_t *data, const struct tile *t, uint32_t blocks, int first,
			 float *out, size_t out_stride, uint32_t rows, const uint32_t columns,
			 const uint32_t pack)
{
	const __mmask16 in = (__mmask16)((1u << rows) - 1);
	/* A table's zero is 128: the dot starts as if that were the zero. */
	const __m512i table = pack == PACK_T4 ? lines_table(t->table) : _mm512_setzero_si512();
	__m512 acc[16];
	const uint8_t *at = t->q;
	const int32_t *starts = t->starts;

	EACH_COLUMN(COLUMN_START)
	for (uint32_t b = 0; b < blocks; b++, at += t->step, starts += 2 * TILE_COLUMNS) {
		tile_ahead(data, TILE_AHEAD + (size_t)b * pack_block_bytes(pack), pack_block_bytes(pack));
		const struct lines l = lines_of(data, b, pack, table);
		const __m512 d = l.d, m = l.m;
		const __m512i w0 = l.w[0], w1 = l.w[1], w2 = l.w[2], w3 = l.w[3];
		const __m512i w4 = l.w[4], w5 = l.w[5], w6 = l.w[6], w7 = l.w[7];

		EACH_COLUMN(COLUMN_BLOCK)
	}
	EACH_COLUMN(COLUMN_END)
}

#define KERNEL(name, columns, pack) \
	static void name(const uint8_t *data, const struct tile *t, uint32_t blocks, int first, \
			 float *out, size_t out_stride, uint32_t rows) \
	{ \
		wide_block16(data, t, blocks, first, out, out_stride, rows, columns, pack); \
	}
/* clang keeps more constants in registers than are left beside sixteen columns, and spills sums. */
#ifdef __clang__
#define WIDEST(name, pack)
#define WIDEST_OF(name) NULL
#else
#define WIDEST(name, pack) KERNEL(name##_16, 16, pack)
#define WIDEST_OF(name) name##_16
#endif

#define MATMUL(name, pack, zero, function) \
	KERNEL(name##_1, 1, pack) \
	KERNEL(name##_2, 2, pack) \
	KERNEL(name##_4, 4, pack) \
	KERNEL(name##_8, 8, pack) \
	WIDEST(name, pack) \
	static tile_kernel *const name[5] = { name##_1, name##_2, name##_4, name##_8, WIDEST_OF(name) }; \
	FAST_DOT(function) \
	{ \
		if (a->kind != ACT_I8_BLOCK) \
			fast_dot_avx512(w, group_first, group_count, a, c_first, c_count, out, \
					out_stride); \
		else \
			tile_matmul(name, w, zero, group_first, group_count, a, c_first, c_count, out, \
				    out_stride); \
	}

MATMUL(wide_q5, PACK_Q5, w->zero, fast_q5_avx512)
MATMUL(wide_t4, PACK_T4, 128, fast_t4_avx512)
MATMUL(wide_k4, PACK_K4, 0, fast_k4_avx512)
MATMUL(wide_k5, PACK_K5, 0, fast_k5_avx512)
MATMUL(wide_k6, PACK_K6, w->zero, fast_k6_avx512)

void fast_wide_init_avx512(struct leaf *leaf)
{
	leaf->matmul[PACK_Q5] = fast_q5_avx512;
	leaf->matmul[PACK_T4] = fast_t4_avx512;
	leaf->matmul[PACK_K4] = fast_k4_avx512;
	leaf->matmul[PACK_K5] = fast_k5_avx512;
	leaf->matmul[PACK_K6] = fast_k6_avx512;
}
