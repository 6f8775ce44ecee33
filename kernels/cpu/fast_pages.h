/*
 * Pages to f32: a tile of 16 tokens, of K as [value][64 tokens], of V as [token][head] with the
 * values of each 32 in the order of `page_value`. The layout keeps pairs along the contraction
 * axis, so that 64 elements fall apart into four registers without a sum across lanes.
 *
 * 64 elements are, in each 128-bit lane of bytes, four places (tokens of K, values of V) times two
 * pairs; unpacking low and high puts the first pairs and the second pairs of 16 places in dwords.
 */
#ifndef HOLDFAST_KERNELS_CPU_FAST_PAGES_H
#define HOLDFAST_KERNELS_CPU_FAST_PAGES_H

#include "kernels/cpu/fast_v16.h"

enum { CHUNK_TOKENS = 64 };

/* The first and second elements of the first pairs, then of the second pairs. */
struct quad { struct v16 x[4]; };

/* Value within a head of lane `lane` of V's register `j`. */
static inline uint32_t page_value(uint32_t j, uint32_t lane)
{
	return (j / 2) * 32 + (lane / 4) * 8 + (j & 1) * 4 + lane % 4;
}

INLINE struct quad quad_bf16_pairs(struct n16 a, struct n16 b)
{
	const struct n16 high = n16_set((int32_t)0xffff0000);

	return (struct quad){ { n16_float(n16_left(a, 16)), n16_float(n16_and(a, high)),
				n16_float(n16_left(b, 16)), n16_float(n16_and(b, high)) } };
}

INLINE struct quad quad_int8(const uint8_t *p)
{
	const struct n16 x = n16_load(p);
	const struct n16 a = N16_2(unpacklo_epi8, x, x), b = N16_2(unpackhi_epi8, x, x);

	return (struct quad){ { v16_from_int(n16_right_signed(n16_left(a, 16), 24)),
				v16_from_int(n16_right_signed(a, 24)),
				v16_from_int(n16_right_signed(n16_left(b, 16), 24)),
				v16_from_int(n16_right_signed(b, 24)) } };
}

#ifdef FAST_AVX512

/* The bf16 of e4m3 codes 0 .. 127: low and high bytes. */
#define LOW_ROW \
	0x00, 0x10, 0x20, 0x30, 0x40, 0x50, 0x60, 0x70, 0x80, 0x90, 0xa0, 0xb0, 0xc0, 0xd0, 0xe0
#define ROW16(x) x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x
static const _Alignas(64) uint8_t fp8_low[128] = {
	0x00, 0x00, 0x80, 0xc0, 0x00, 0x20, 0x40, 0x60, 0x80, 0x90, 0xa0, 0xb0, 0xc0, 0xd0, 0xe0, 0xf0,
	LOW_ROW, 0xf0, LOW_ROW, 0xf0, LOW_ROW, 0xf0, LOW_ROW, 0xf0,
	LOW_ROW, 0xf0, LOW_ROW, 0xf0, LOW_ROW, 0xc0
};
static const _Alignas(64) uint8_t fp8_high[128] = {
	0x00, 0x3b, 0x3b, 0x3b, 0x3c, 0x3c, 0x3c, 0x3c, 0x3c, 0x3c, 0x3c, 0x3c, 0x3c, 0x3c, 0x3c, 0x3c,
	ROW16(0x3d), ROW16(0x3e), ROW16(0x3f), ROW16(0x40), ROW16(0x41), ROW16(0x42),
	0x43, 0x43, 0x43, 0x43, 0x43, 0x43, 0x43, 0x43, 0x43, 0x43, 0x43, 0x43, 0x43, 0x43, 0x43, 0x7f
};

enum { FP8_EXTRA = 0 }; /* what quad_fp8 leaves to the scale, as a power of two */

/* VBMI's lookup in 128 bytes, as assembly so that the file needs no VBMI in its target. */
INLINE __m512i lookup(__m512i x, const uint8_t *table)
{
	const __m512i low = _mm512_load_si512(table), high = _mm512_load_si512(table + 64);

	__asm__("vpermi2b %2,%1,%0" : "+v"(x) : "v"(low), "v"(high));
	return x;
}

/* 64 codes to bf16 by tables of the low and high bytes of 128 sizes; the sign is that of `sign`'s byte. The
   first and the second pairs of 16 places. */
INLINE void codes_bf16(__m512i size, __m512i sign, const uint8_t *low, const uint8_t *high, __m512i *first,
		       __m512i *second)
{
	const __m512i l = lookup(size, low);
	const __m512i h = _mm512_ternarylogic_epi32(lookup(size, high), sign, _mm512_set1_epi8((char)0x80), 0xf8);

	*first = _mm512_unpacklo_epi8(l, h);
	*second = _mm512_unpackhi_epi8(l, h);
}

INLINE struct quad quad_fp8(const uint8_t *p)
{
	const __m512i x = _mm512_loadu_si512(p);
	struct n16 first, second;

	codes_bf16(x, x, fp8_low, fp8_high, &first.a, &second.a);
	return quad_bf16_pairs(first, second);
}

INLINE struct quad quad_bf16(const uint8_t *p)
{
	const __m512i x = _mm512_loadu_si512(p), y = _mm512_loadu_si512(p + 64);

	return quad_bf16_pairs((struct n16){ _mm512_shuffle_i32x4(x, y, 0x88) },
			       (struct n16){ _mm512_shuffle_i32x4(x, y, 0xdd) });
}

INLINE struct quad quad_f32(const uint8_t *p)
{
	/* Each register: places 4i .. 4i+3, first pairs then second pairs. */
	const __m512 a = _mm512_loadu_ps(p), b = _mm512_loadu_ps(p + 64);
	const __m512 c = _mm512_loadu_ps(p + 128), d = _mm512_loadu_ps(p + 192);
	const __m512i first = _mm512_set_epi32(30, 28, 26, 24, 14, 12, 10, 8, 22, 20, 18, 16, 6, 4, 2, 0);
	const __m512i second = _mm512_add_epi32(first, _mm512_set1_epi32(1));
	/* First pairs of a and b (8 places), then their second pairs. */
	const __m512 e0 = _mm512_permutex2var_ps(a, first, b), o0 = _mm512_permutex2var_ps(a, second, b);
	const __m512 e1 = _mm512_permutex2var_ps(c, first, d), o1 = _mm512_permutex2var_ps(c, second, d);

	return (struct quad){ { { _mm512_shuffle_f32x4(e0, e1, 0x44) }, { _mm512_shuffle_f32x4(o0, o1, 0x44) },
				{ _mm512_shuffle_f32x4(e0, e1, 0xee) },
				{ _mm512_shuffle_f32x4(o0, o1, 0xee) } } };
}

#else

enum { FP8_EXTRA = 8 };

/* Asks for what one row reads after a tile of K, its V, or after one of V, the K of the job that
   follows: pages lie far apart, so the CPU does not guess where the next begins. */
INLINE void tile_ask(const struct attend_job *j, uint32_t t, uint32_t size, int is_v)
{
	const size_t within = (size_t)(t % j->page_tokens) * j->head * size;
	const uint32_t page = t / j->page_tokens;

	if (is_v && t >= j->next_count)
		return;
	const uint8_t *p = is_v ? j->next[page] + within : j->pages[page] + within + j->v_offset;

	for (uint32_t i = 0; i < 16 * j->head * size; i += 64)
		_mm_prefetch((const char *)p + i, _MM_HINT_T1);
}

/* A code's bits, shifted into an f16, are its value times 2^-8. The bytes are put in order first,
   which is one shuffle for 32 of them; of floats it would be four. */
INLINE void half_fp8(const uint8_t *p, __m256 out[4])
{
	const __m256i apart = _mm256_setr_epi8(0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15,
					       0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15);
	const __m256i x = _mm256_shuffle_epi8(_mm256_loadu_si256((const __m256i *)p), apart);
	/* Elements 1 and 2 of eight places, then elements 3 and 4. */
	const __m256i y = _mm256_permutevar8x32_epi32(x, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
	const __m256i zero = _mm256_setzero_si256(), keep = _mm256_set1_epi16((short)0xbfff);
	const __m256i a = _mm256_and_si256(_mm256_srai_epi16(_mm256_unpacklo_epi8(zero, y), 1), keep);
	const __m256i b = _mm256_and_si256(_mm256_srai_epi16(_mm256_unpackhi_epi8(zero, y), 1), keep);

	out[0] = _mm256_cvtph_ps(_mm256_castsi256_si128(a));
	out[1] = _mm256_cvtph_ps(_mm256_castsi256_si128(b));
	out[2] = _mm256_cvtph_ps(_mm256_extracti128_si256(a, 1));
	out[3] = _mm256_cvtph_ps(_mm256_extracti128_si256(b, 1));
}

INLINE struct quad quad_fp8(const uint8_t *p)
{
	__m256 a[4], b[4];

	half_fp8(p, a);
	half_fp8(p + 32, b);
	return (struct quad){ { { a[0], b[0] }, { a[1], b[1] }, { a[2], b[2] }, { a[3], b[3] } } };
}

INLINE struct quad quad_bf16(const uint8_t *p)
{
	const __m256i *q = (const __m256i *)p;
	const __m256i a = _mm256_loadu_si256(q), b = _mm256_loadu_si256(q + 1);
	const __m256i c = _mm256_loadu_si256(q + 2), d = _mm256_loadu_si256(q + 3);
	const struct n16 first = { _mm256_permute2x128_si256(a, b, 0x20),
				   _mm256_permute2x128_si256(c, d, 0x20) };
	const struct n16 second = { _mm256_permute2x128_si256(a, b, 0x31),
				    _mm256_permute2x128_si256(c, d, 0x31) };

	return quad_bf16_pairs(first, second);
}

/* Registers of four places each: pairs to first and second elements of eight places. */
INLINE void halves_f32(const uint8_t *p, __m256 *first, __m256 *second)
{
	const __m256 a = _mm256_loadu_ps((const float *)(const void *)p);
	const __m256 b = _mm256_loadu_ps((const float *)(const void *)(p + 64));
	const __m256d e = _mm256_castps_pd(_mm256_shuffle_ps(a, b, 0x88));
	const __m256d o = _mm256_castps_pd(_mm256_shuffle_ps(a, b, 0xdd));

	*first = _mm256_castpd_ps(_mm256_permute4x64_pd(e, 0xd8));
	*second = _mm256_castpd_ps(_mm256_permute4x64_pd(o, 0xd8));
}

INLINE struct quad quad_f32(const uint8_t *p)
{
	struct quad q;

	halves_f32(p, &q.x[0].a, &q.x[1].a);
	halves_f32(p + 128, &q.x[0].b, &q.x[1].b);
	halves_f32(p + 32, &q.x[2].a, &q.x[3].a);
	halves_f32(p + 160, &q.x[2].b, &q.x[3].b);
	return q;
}

#endif

/* K of a tile at `p` goes to k[value * CHUNK_TOKENS ..]; V's to v[token * head ..]. */
#define DECODER(kind, size) \
	static void k_##kind(const uint8_t *p, uint32_t head, float *k) \
	{ \
		for (uint32_t i = 0; i < head; i += 4, p += 64 * size, k += 4 * CHUNK_TOKENS) { \
			const struct quad q = quad_##kind(p); \
			v16_store(k, q.x[0]); \
			v16_store(k + CHUNK_TOKENS, q.x[1]); \
			v16_store(k + 2 * CHUNK_TOKENS, q.x[2]); \
			v16_store(k + 3 * CHUNK_TOKENS, q.x[3]); \
		} \
	} \
	static void v_##kind(const uint8_t *p, uint32_t head, float *v) \
	{ \
		for (uint32_t t = 0; t < 16; t += 2, v += head) { \
			for (uint32_t i = 0; i < head; i += 32, p += 64 * size, v += 32) { \
				const struct quad q = quad_##kind(p); \
				v16_store(v, q.x[0]); \
				v16_store(v + head, q.x[1]); \
				v16_store(v + 16, q.x[2]); \
				v16_store(v + head + 16, q.x[3]); \
			} \
		} \
	}

DECODER(fp8, 1)
DECODER(int8, 1)
DECODER(bf16, 2)
DECODER(f32, 4)

typedef void tile_decoder(const uint8_t *p, uint32_t head, float *to);

static tile_decoder *const k_decoders[] = { k_fp8, k_int8, k_bf16, k_f32 };
static tile_decoder *const v_decoders[] = { v_fp8, v_int8, v_bf16, v_f32 };

/* Sixteen scale bytes; see cpu.h. */
INLINE struct v16 page_scales(enum kv_kind kv, const uint8_t *p)
{
	const struct n16 byte = n16_load_u8(p);

	if (kv == KV_INT8)
		return n16_float(n16_left(n16_add(byte, n16_set(824)), 20));
	return n16_float(n16_left(n16_min(n16_add(byte, n16_set(FP8_EXTRA - 1)), n16_set(254)), 23));
}

#endif
