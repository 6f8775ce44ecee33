/*
 * AVX-512 with VNNI: the packs of five bits, six bits, tables and K blocks times i8 blocks. As in
 * fast_avx512.c a block's eight lines are unpacked once for all columns of the tile; here with bits
 * above the nibbles, and scales that a K block holds for each 32 or 16 columns.
 */
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
		const int8_t *q = t->q + (at + (n)) * ACT_BLOCK; \
		const __m512 a = _mm512_set1_ps(t->d[at + (n)]); \
		if (pack == PACK_K6) { \
			__m512i x = _mm512_set1_epi32(t->low[at + (n)]); \
			__m512i y = _mm512_set1_epi32(t->start[at + (n)] - t->low[at + (n)]); \
			COLUMN_DOTS(n, x, y) \
			acc[n] = _mm512_fmadd_ps(_mm512_mul_ps(d, a), _mm512_cvtepi32_ps(x), acc[n]); \
			acc[n] = _mm512_fmadd_ps(_mm512_mul_ps(m, a), _mm512_cvtepi32_ps(y), acc[n]); \
		} else { \
			__m512i x = _mm512_set1_epi32(t->start[at + (n)]); \
			COLUMN_DOTS(n, x, x) \
			acc[n] = _mm512_fmadd_ps(_mm512_mul_ps(d, a), _mm512_cvtepi32_ps(x), acc[n]); \
			if (pack != PACK_T4) \
				acc[n] = _mm512_fmadd_ps(m, _mm512_set1_ps(t->s[at + (n)]), acc[n]); \
		} \
	}

INLINE __m512 f16s(const uint8_t *p)
{
	return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
}

INLINE __m512 bytes(const uint8_t *p)
{
	return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p)));
}

INLINE __m512 signed_bytes(const uint8_t *p)
{
	return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p)));
}

/* Where block b's lines begin, its scales d and its minima m (PACK_K6: the second half's scales). */
INLINE const uint8_t *scales_of(const uint8_t *data, uint32_t b, const uint32_t pack, __m512 *d,
				__m512 *m)
{
	if (pack < PACK_K4) {
		data += (size_t)b * pack_block_bytes(pack);
		*d = pack == PACK_T4 ? _mm512_loadu_ps((const float *)(const void *)data) : f16s(data);
		*m = pack == PACK_T4 ? *d : f16s(data + 32);
		return data + 64;
	}
	data += (size_t)(b / 8) * 8 * pack_block_bytes(pack);
	const uint8_t *const scales = data + K_SCALES + b % 8 * 32;

	*d = f16s(data);
	if (pack == PACK_K6) {
		*m = _mm512_mul_ps(*d, signed_bytes(scales + 16));
		*d = _mm512_mul_ps(*d, signed_bytes(scales));
		return data + K_LINES + (size_t)(b % 8) * 384;
	}
	*d = _mm512_mul_ps(*d, bytes(scales));
	*m = _mm512_sub_ps(_mm512_set1_ps(-0.0f), _mm512_mul_ps(f16s(data + 32), bytes(scales + 16)));
	return data + K_LINES + (size_t)(b % 8) * (pack == PACK_K5 ? 320 : 256);
}

/* The line of fifth bits, for columns 4g .. 4g+3; or those of a line of two bits. */
#define FIFTH(x, g) \
	_mm512_and_si512((g) < 4 ? _mm512_slli_epi16(x, (g) < 4 ? 4 - (g) : 0) : \
				   _mm512_srli_epi16(x, (g) < 4 ? 0 : (g) - 4), \
			 _mm512_set1_epi8(16))
#define UPPER(x, g) \
	_mm512_and_si512((g) < 2 ? _mm512_slli_epi16(x, (g) < 2 ? 4 - 2 * (g) : 0) : \
				   _mm512_srli_epi16(x, (g) < 2 ? 0 : 2 * (g) - 4), \
			 _mm512_set1_epi8(48))
#define HIGH_NIBBLE(x) _mm512_and_si512(_mm512_srli_epi16(x, 4), low)

INLINE void wide_block16(const uint8_t *data, const struct tile *t, uint32_t blocks, int first,
			 float *out, size_t out_stride, uint32_t rows, const uint32_t columns,
			 const uint32_t pack)
{
	const __mmask16 in = (__mmask16)((1u << rows) - 1);
	const __m512i low = _mm512_set1_epi8(15);
	/* Of a table all values are made positive; the dot starts as if 128 were the zero. */
	const __m512i table = pack == PACK_T4 ?
		_mm512_broadcast_i32x4(_mm_xor_si128(_mm_loadu_si128((const __m128i *)t->table),
						     _mm_set1_epi8((char)0x80))) : low;
	__m512 acc[16];
	uint32_t at = 0;

	EACH_COLUMN(COLUMN_START)
	for (uint32_t b = 0; b < blocks; b++, at += columns) {
		__m512 d, m;
		const uint8_t *lines = scales_of(data, b, pack, &d, &m);
		const int fifths = pack == PACK_Q5 || pack == PACK_K5;
		const __m512i fifth = fifths ? _mm512_loadu_si512(lines) : low;

		lines += fifths ? 64 : 0;
		const __m512i x0 = _mm512_loadu_si512(lines), x1 = _mm512_loadu_si512(lines + 64);
		const __m512i x2 = _mm512_loadu_si512(lines + 128), x3 = _mm512_loadu_si512(lines + 192);
		__m512i w0 = _mm512_and_si512(x0, low), w1 = _mm512_and_si512(x1, low);
		__m512i w2 = _mm512_and_si512(x2, low), w3 = _mm512_and_si512(x3, low);
		__m512i w4 = HIGH_NIBBLE(x0), w5 = HIGH_NIBBLE(x1), w6 = HIGH_NIBBLE(x2), w7 = HIGH_NIBBLE(x3);

		if (fifths) {
			w0 = _mm512_or_si512(w0, FIFTH(fifth, 0)), w1 = _mm512_or_si512(w1, FIFTH(fifth, 1));
			w2 = _mm512_or_si512(w2, FIFTH(fifth, 2)), w3 = _mm512_or_si512(w3, FIFTH(fifth, 3));
			w4 = _mm512_or_si512(w4, FIFTH(fifth, 4)), w5 = _mm512_or_si512(w5, FIFTH(fifth, 5));
			w6 = _mm512_or_si512(w6, FIFTH(fifth, 6)), w7 = _mm512_or_si512(w7, FIFTH(fifth, 7));
		}
		if (pack == PACK_K6) {
			const __m512i y = _mm512_loadu_si512(lines + 256), z = _mm512_loadu_si512(lines + 320);

			w0 = _mm512_or_si512(w0, UPPER(y, 0)), w1 = _mm512_or_si512(w1, UPPER(y, 1));
			w2 = _mm512_or_si512(w2, UPPER(y, 2)), w3 = _mm512_or_si512(w3, UPPER(y, 3));
			w4 = _mm512_or_si512(w4, UPPER(z, 0)), w5 = _mm512_or_si512(w5, UPPER(z, 1));
			w6 = _mm512_or_si512(w6, UPPER(z, 2)), w7 = _mm512_or_si512(w7, UPPER(z, 3));
		}
		if (pack == PACK_T4) {
			w0 = _mm512_shuffle_epi8(table, w0), w1 = _mm512_shuffle_epi8(table, w1);
			w2 = _mm512_shuffle_epi8(table, w2), w3 = _mm512_shuffle_epi8(table, w3);
			w4 = _mm512_shuffle_epi8(table, w4), w5 = _mm512_shuffle_epi8(table, w5);
			w6 = _mm512_shuffle_epi8(table, w6), w7 = _mm512_shuffle_epi8(table, w7);
		}
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

#define MATMUL(name, pack, zero) \
	KERNEL(name##_1, 1, pack) \
	KERNEL(name##_2, 2, pack) \
	KERNEL(name##_4, 4, pack) \
	KERNEL(name##_8, 8, pack) \
	WIDEST(name, pack) \
	static tile_kernel *const name[5] = { name##_1, name##_2, name##_4, name##_8, WIDEST_OF(name) }; \
	static FAST_DOT(matmul_##name) \
	{ \
		if (a->kind != ACT_I8_BLOCK) \
			fast_dot_avx512(w, group_first, group_count, a, c_first, c_count, out, \
					out_stride); \
		else \
			tile_matmul(name, w, zero, group_first, group_count, a, c_first, c_count, out, \
				    out_stride); \
	}

MATMUL(wide_q5, PACK_Q5, w->zero)
MATMUL(wide_t4, PACK_T4, 128)
MATMUL(wide_k4, PACK_K4, 0)
MATMUL(wide_k5, PACK_K5, 0)
MATMUL(wide_k6, PACK_K6, w->zero)

void fast_wide_init_avx512(struct leaf *leaf)
{
	leaf->matmul[PACK_Q5] = matmul_wide_q5;
	leaf->matmul[PACK_T4] = matmul_wide_t4;
	leaf->matmul[PACK_K4] = matmul_wide_k4;
	leaf->matmul[PACK_K5] = matmul_wide_k5;
	leaf->matmul[PACK_K6] = matmul_wide_k6;
}
