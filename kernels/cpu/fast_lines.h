/*
 * AVX-512: a packed block's eight lines as whole bytes, and its scales. What is made here is what
 * the integer dots of every kernel multiply, so it stands once.
 */
#ifndef HOLDFAST_KERNELS_CPU_FAST_LINES_H
#define HOLDFAST_KERNELS_CPU_FAST_LINES_H

#include "kernels/cpu/fast_v16.h"

/* Line g, byte r*4+j: column 4g+j of row r, as an unsigned number. Scales d and minima m of sixteen
   rows (PACK_K6: those of the first and the second half). */
struct lines {
	__m512i w[8];
	__m512 d, m;
};

INLINE __m512 lines_f16(const uint8_t *p)
{
	return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
}

INLINE __m512 lines_u8(const uint8_t *p)
{
	return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p)));
}

INLINE __m512 lines_i8(const uint8_t *p)
{
	return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p)));
}

/* Of a table all values are made positive: 128 is then the zero. */
INLINE __m512i lines_table(const int8_t *table)
{
	return _mm512_broadcast_i32x4(_mm_xor_si128(_mm_loadu_si128((const __m128i *)table),
						    _mm_set1_epi8((char)0x80)));
}

/* Where block b's lines begin; its scales and minima. */
INLINE const uint8_t *lines_scales(const uint8_t *data, uint32_t b, const uint32_t pack, __m512 *d,
				   __m512 *m)
{
	if (pack < PACK_K4) {
		data += (size_t)b * pack_block_bytes(pack);
		*d = pack == PACK_T4 ? _mm512_loadu_ps((const float *)(const void *)data) :
				       lines_f16(data);
		*m = pack == PACK_T4 || pack == PACK_Q8 ? *d : lines_f16(data + 32);
		return data + (pack == PACK_Q8 ? 32 : 64);
	}
	data += (size_t)(b / 8) * 8 * pack_block_bytes(pack);
	const uint8_t *const scales = data + K_SCALES + b % 8 * 32;

	*d = lines_f16(data);
	if (pack == PACK_K6) {
		*m = _mm512_mul_ps(*d, lines_i8(scales + 16));
		*d = _mm512_mul_ps(*d, lines_i8(scales));
		return data + K_LINES + (size_t)(b % 8) * 384;
	}
	*d = _mm512_mul_ps(*d, lines_u8(scales));
	*m = _mm512_sub_ps(_mm512_set1_ps(-0.0f),
			   _mm512_mul_ps(lines_f16(data + 32), lines_u8(scales + 16)));
	return data + K_LINES + (size_t)(b % 8) * (pack == PACK_K5 ? 320 : 256);
}

#define LINES_LOW _mm512_set1_epi8(15)
/* The line of fifth bits, for columns 4g .. 4g+3; or those of a line of two bits. */
#define LINES_FIFTH(x, g) \
	_mm512_and_si512((g) < 4 ? _mm512_slli_epi16(x, (g) < 4 ? 4 - (g) : 0) : \
				   _mm512_srli_epi16(x, (g) < 4 ? 0 : (g) - 4), \
			 _mm512_set1_epi8(16))
#define LINES_UPPER(x, g) \
	_mm512_and_si512((g) < 2 ? _mm512_slli_epi16(x, (g) < 2 ? 4 - 2 * (g) : 0) : \
				   _mm512_srli_epi16(x, (g) < 2 ? 0 : 2 * (g) - 4), \
			 _mm512_set1_epi8(48))
#define LINES_NIBBLES(g) \
	{ \
		const __m512i x = _mm512_loadu_si512(at + 64 * (g)); \
		l.w[g] = _mm512_and_si512(x, LINES_LOW); \
		l.w[(g) + 4] = _mm512_and_si512(_mm512_srli_epi16(x, 4), LINES_LOW); \
	}
#define LINES_OR_FIFTH(g) l.w[g] = _mm512_or_si512(l.w[g], LINES_FIFTH(fifth, g));
#define LINES_OR_UPPER(g) \
	l.w[g] = _mm512_or_si512(l.w[g], LINES_UPPER(y, g)); \
	l.w[(g) + 4] = _mm512_or_si512(l.w[(g) + 4], LINES_UPPER(z, g));
#define LINES_LOAD(g) l.w[g] = _mm512_loadu_si512(at + 64 * (g));
#define LINES_LOOK_UP(g) l.w[g] = _mm512_shuffle_epi8(table, l.w[g]);
#define LINES_EACH4(X) X(0) X(1) X(2) X(3)
#define LINES_EACH(X) LINES_EACH4(X) X(4) X(5) X(6) X(7)

/* table: PACK_T4's, as lines_table makes it. */
INLINE struct lines lines_of(const uint8_t *data, uint32_t b, const uint32_t pack, __m512i table)
{
	struct lines l;
	const uint8_t *at = lines_scales(data, b, pack, &l.d, &l.m);

	if (pack == PACK_Q8) {
		LINES_EACH(LINES_LOAD)
		return l;
	}
	const int fifths = pack == PACK_Q5 || pack == PACK_K5;
	const __m512i fifth = fifths ? _mm512_loadu_si512(at) : _mm512_setzero_si512();

	at += fifths ? 64 : 0;
	LINES_EACH4(LINES_NIBBLES)
	if (fifths) {
		LINES_EACH(LINES_OR_FIFTH)
	}
	if (pack == PACK_K6) {
		const __m512i y = _mm512_loadu_si512(at + 256), z = _mm512_loadu_si512(at + 320);

		LINES_EACH4(LINES_OR_UPPER)
	}
	if (pack == PACK_T4) {
		LINES_EACH(LINES_LOOK_UP)
	}
	return l;
}

#endif
