/*
 * Sixteen f32 (v16) or int32 (n16) lanes, as one register of AVX-512 or two of AVX2, so that the
 * leaves that are plain arithmetic are one text with the same bits on both.
 */
#ifndef HOLDFAST_KERNELS_CPU_FAST_V16_H
#define HOLDFAST_KERNELS_CPU_FAST_V16_H

#include <immintrin.h>
#include <math.h>

#include "kernels/cpu/fast.h"
#include "kernels/cpu/math.h"

#ifdef FAST_AVX512
struct v16 { __m512 a; };
struct n16 { __m512i a; };
#define V16_1(f, x) ((struct v16){ _mm512_##f((x).a) })
#define V16_2(f, x, y) ((struct v16){ _mm512_##f((x).a, (y).a) })
#define V16_3(f, x, y, z) ((struct v16){ _mm512_##f((x).a, (y).a, (z).a) })
#define V16_CAST(t, f, x) ((struct t){ _mm512_##f((x).a) })
#define N16_2(f, x, y) ((struct n16){ _mm512_##f((x).a, (y).a) })
#define N16_I(f, x, i) ((struct n16){ _mm512_##f((x).a, (i)) })
#else
struct v16 { __m256 a, b; };
struct n16 { __m256i a, b; };
#define V16_1(f, x) ((struct v16){ _mm256_##f((x).a), _mm256_##f((x).b) })
#define V16_2(f, x, y) ((struct v16){ _mm256_##f((x).a, (y).a), _mm256_##f((x).b, (y).b) })
#define V16_3(f, x, y, z) \
	((struct v16){ _mm256_##f((x).a, (y).a, (z).a), _mm256_##f((x).b, (y).b, (z).b) })
#define V16_CAST(t, f, x) ((struct t){ _mm256_##f((x).a), _mm256_##f((x).b) })
#define N16_2(f, x, y) ((struct n16){ _mm256_##f((x).a, (y).a), _mm256_##f((x).b, (y).b) })
#define N16_I(f, x, i) ((struct n16){ _mm256_##f((x).a, (i)), _mm256_##f((x).b, (i)) })
#endif

#define v16_add(x, y) V16_2(add_ps, x, y)
#define v16_sub(x, y) V16_2(sub_ps, x, y)
#define v16_mul(x, y) V16_2(mul_ps, x, y)
#define v16_div(x, y) V16_2(div_ps, x, y)
/* Of a NaN the second operand wins: keep the data there and it stays a NaN. */
#define v16_max(x, y) V16_2(max_ps, x, y)
#define v16_min(x, y) V16_2(min_ps, x, y)
#define v16_fma(x, y, z) V16_3(fmadd_ps, x, y, z)
#define v16_fnma(x, y, z) V16_3(fnmadd_ps, x, y, z)
#define v16_from_int(x) V16_CAST(v16, cvtepi32_ps, x)
#define v16_to_int(x) V16_CAST(n16, cvtps_epi32, x) /* to nearest, ties to even */
#define n16_add(x, y) N16_2(add_epi32, x, y)
#define n16_sub(x, y) N16_2(sub_epi32, x, y)
#define n16_max(x, y) N16_2(max_epi32, x, y)
#define n16_min(x, y) N16_2(min_epi32, x, y)
#define n16_left(x, i) N16_I(slli_epi32, x, i)
#define n16_right(x, i) N16_I(srli_epi32, x, i)
#define n16_right_signed(x, i) N16_I(srai_epi32, x, i)

#ifdef FAST_AVX512
#define v16_bits(x) V16_CAST(n16, castps_si512, x)
#define n16_float(x) V16_CAST(v16, castsi512_ps, x)
#define n16_and(x, y) N16_2(and_si512, x, y)
#define n16_or(x, y) N16_2(or_si512, x, y)
#define v16_round(x) ((struct v16){ _mm512_roundscale_ps((x).a, 8) })
#else
#define v16_bits(x) V16_CAST(n16, castps_si256, x)
#define n16_float(x) V16_CAST(v16, castsi256_ps, x)
#define n16_and(x, y) N16_2(and_si256, x, y)
#define n16_or(x, y) N16_2(or_si256, x, y)
#define v16_round(x) ((struct v16){ _mm256_round_ps((x).a, 8), _mm256_round_ps((x).b, 8) })
#endif

INLINE struct v16 v16_set(float x)
{
#ifdef FAST_AVX512
	return (struct v16){ _mm512_set1_ps(x) };
#else
	return (struct v16){ _mm256_set1_ps(x), _mm256_set1_ps(x) };
#endif
}

INLINE struct n16 n16_set(int32_t x)
{
#ifdef FAST_AVX512
	return (struct n16){ _mm512_set1_epi32(x) };
#else
	return (struct n16){ _mm256_set1_epi32(x), _mm256_set1_epi32(x) };
#endif
}

INLINE struct v16 v16_load(const float *p)
{
#ifdef FAST_AVX512
	return (struct v16){ _mm512_loadu_ps(p) };
#else
	return (struct v16){ _mm256_loadu_ps(p), _mm256_loadu_ps(p + 8) };
#endif
}

/* Holds x in a register: a compiler that sees it used four times reads memory four times, and the
   loads, not the sums, then set the pace. */
INLINE struct v16 v16_keep(struct v16 x)
{
#ifdef FAST_AVX512
	__asm__("" : "+v"(x.a));
#endif
	return x;
}

INLINE void v16_store(float *p, struct v16 x)
{
#ifdef FAST_AVX512
	_mm512_storeu_ps(p, x.a);
#else
	_mm256_storeu_ps(p, x.a);
	_mm256_storeu_ps(p + 8, x.b);
#endif
}

INLINE void n16_store(int32_t *p, struct n16 x)
{
#ifdef FAST_AVX512
	_mm512_storeu_si512(p, x.a);
#else
	_mm256_storeu_si256((__m256i *)p, x.a);
	_mm256_storeu_si256((__m256i *)(p + 8), x.b);
#endif
}

INLINE struct n16 n16_load(const void *p)
{
#ifdef FAST_AVX512
	return (struct n16){ _mm512_loadu_si512(p) };
#else
	return (struct n16){ _mm256_loadu_si256((const __m256i *)p),
			     _mm256_loadu_si256((const __m256i *)p + 1) };
#endif
}

/* Sixteen unsigned or signed bytes, widened. */
INLINE struct n16 n16_load_u8(const uint8_t *p)
{
	const __m128i x = _mm_loadu_si128((const __m128i *)p);
#ifdef FAST_AVX512
	return (struct n16){ _mm512_cvtepu8_epi32(x) };
#else
	return (struct n16){ _mm256_cvtepu8_epi32(x), _mm256_cvtepu8_epi32(_mm_srli_si128(x, 8)) };
#endif
}

INLINE struct n16 n16_load_i8(const int8_t *p)
{
	const __m128i x = _mm_loadu_si128((const __m128i *)p);
#ifdef FAST_AVX512
	return (struct n16){ _mm512_cvtepi8_epi32(x) };
#else
	return (struct n16){ _mm256_cvtepi8_epi32(x), _mm256_cvtepi8_epi32(_mm_srli_si128(x, 8)) };
#endif
}

/* Lanes to sixteen bytes, with signed saturation. */
INLINE __m128i n16_to_i8(struct n16 x)
{
#ifdef FAST_AVX512
	return _mm512_cvtsepi32_epi8(x.a);
#else
	const __m256i w = _mm256_permute4x64_epi64(_mm256_packs_epi32(x.a, x.b), 0xd8);
	return _mm_packs_epi16(_mm256_castsi256_si128(w), _mm256_extracti128_si256(w, 1));
#endif
}

/* Lanes of 0 .. 65,535 to sixteen halves. */
INLINE void n16_store_u16(uint16_t *p, struct n16 x)
{
#ifdef FAST_AVX512
	_mm256_storeu_si256((__m256i *)(void *)p, _mm512_cvtepi32_epi16(x.a));
#else
	_mm256_storeu_si256((__m256i *)(void *)p, _mm256_permute4x64_epi64(_mm256_packus_epi32(x.a, x.b), 0xd8));
#endif
}

INLINE struct v16 v16_load_f16(const void *p)
{
	const __m128i *h = p;
#ifdef FAST_AVX512
	return (struct v16){ _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)h)) };
#else
	return (struct v16){ _mm256_cvtph_ps(_mm_loadu_si128(h)),
			     _mm256_cvtph_ps(_mm_loadu_si128(h + 1)) };
#endif
}

/* t[i] of each lane's i, 0 .. 15. */
INLINE struct v16 v16_table(const float t[16], struct n16 i)
{
#ifdef FAST_AVX512
	return (struct v16){ _mm512_permutexvar_ps(i.a, _mm512_loadu_ps(t)) };
#else
	const __m256 low = _mm256_loadu_ps(t), high = _mm256_loadu_ps(t + 8);
	const __m256 a = _mm256_blendv_ps(_mm256_permutevar8x32_ps(low, i.a),
					  _mm256_permutevar8x32_ps(high, i.a),
					  _mm256_castsi256_ps(_mm256_slli_epi32(i.a, 28)));
	const __m256 b = _mm256_blendv_ps(_mm256_permutevar8x32_ps(low, i.b),
					  _mm256_permutevar8x32_ps(high, i.b),
					  _mm256_castsi256_ps(_mm256_slli_epi32(i.b, 28)));
	return (struct v16){ a, b };
#endif
}

INLINE struct v16 v16_load_bf16(const void *p)
{
	const __m128i *h = p;
#ifdef FAST_AVX512
	const __m512i x = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)h));
	return (struct v16){ _mm512_castsi512_ps(_mm512_slli_epi32(x, 16)) };
#else
	const __m256i x = _mm256_cvtepu16_epi32(_mm_loadu_si128(h));
	const __m256i y = _mm256_cvtepu16_epi32(_mm_loadu_si128(h + 1));
	return (struct v16){ _mm256_castsi256_ps(_mm256_slli_epi32(x, 16)),
			     _mm256_castsi256_ps(_mm256_slli_epi32(y, 16)) };
#endif
}

/* Lanes first .. end-1 of x, the others of `other`. */
INLINE struct v16 v16_range(struct v16 x, int32_t first, int32_t end, struct v16 other)
{
#ifdef FAST_AVX512
	const __m512i lane = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
	const __mmask16 in = _mm512_cmpge_epi32_mask(lane, _mm512_set1_epi32(first)) &
			     _mm512_cmplt_epi32_mask(lane, _mm512_set1_epi32(end));
	return (struct v16){ _mm512_mask_mov_ps(other.a, in, x.a) };
#else
	const __m256i lane = _mm256_set_epi32(7, 6, 5, 4, 3, 2, 1, 0);
	const __m256i high = _mm256_add_epi32(lane, _mm256_set1_epi32(8));
	const __m256i f = _mm256_set1_epi32(first - 1), e = _mm256_set1_epi32(end);
	const __m256i a = _mm256_and_si256(_mm256_cmpgt_epi32(lane, f), _mm256_cmpgt_epi32(e, lane));
	const __m256i b = _mm256_and_si256(_mm256_cmpgt_epi32(high, f), _mm256_cmpgt_epi32(e, high));
	return (struct v16){ _mm256_blendv_ps(other.a, x.a, _mm256_castsi256_ps(a)),
			     _mm256_blendv_ps(other.b, x.b, _mm256_castsi256_ps(b)) };
#endif
}

/* Where x < y: a, else b. */
INLINE struct v16 v16_if_less(struct v16 x, struct v16 y, struct v16 a, struct v16 b)
{
#ifdef FAST_AVX512
	return (struct v16){ _mm512_mask_mov_ps(b.a, _mm512_cmp_ps_mask(x.a, y.a, _CMP_LT_OQ), a.a) };
#else
	return (struct v16){ _mm256_blendv_ps(b.a, a.a, _mm256_cmp_ps(x.a, y.a, _CMP_LT_OQ)),
			     _mm256_blendv_ps(b.b, a.b, _mm256_cmp_ps(x.b, y.b, _CMP_LT_OQ)) };
#endif
}

/* The first `count` (0 .. 16) floats, zeros after them; nothing beyond is touched. */
INLINE struct v16 v16_load_part(const float *p, uint32_t count)
{
	float t[16] = { 0 };

	for (uint32_t i = 0; i < count; i++)
		t[i] = p[i];
	return v16_load(t);
}

INLINE void v16_store_part(float *p, struct v16 x, uint32_t count)
{
	float t[16];

	v16_store(t, x);
	for (uint32_t i = 0; i < count; i++)
		p[i] = t[i];
}

/* Lanes j and j+8 are added, j and j+4, j and j+2, j and j+1. */
INLINE float v16_sum(struct v16 x)
{
#ifdef FAST_AVX512
	const __m256 a = _mm512_castps512_ps256(x.a);
	const __m256 b = _mm512_extractf32x8_ps(x.a, 1);
#else
	const __m256 a = x.a, b = x.b;
#endif
	const __m256 s = _mm256_add_ps(a, b);
	__m128 t = _mm_add_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1));
	t = _mm_add_ps(t, _mm_movehl_ps(t, t));
	t = _mm_add_ss(t, _mm_movehdup_ps(t));
	return _mm_cvtss_f32(t);
}

INLINE float v16_largest(struct v16 x)
{
#ifdef FAST_AVX512
	const __m256 s = _mm256_max_ps(_mm512_castps512_ps256(x.a), _mm512_extractf32x8_ps(x.a, 1));
#else
	const __m256 s = _mm256_max_ps(x.a, x.b);
#endif
	__m128 t = _mm_max_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1));
	t = _mm_max_ps(t, _mm_movehl_ps(t, t));
	t = _mm_max_ss(t, _mm_movehdup_ps(t));
	return _mm_cvtss_f32(t);
}

INLINE struct v16 v16_absolute(struct v16 x)
{
	return n16_float(n16_and(v16_bits(x), n16_set(0x7fffffff)));
}

/* As bf16_normal has it, in the low halves of the lanes. No comparison with a NaN is true. */
INLINE struct n16 v16_to_bf16(struct v16 x)
{
	const struct n16 u = v16_bits(x), odd = n16_and(n16_right(u, 16), n16_set(1));
	const struct n16 up = n16_and(n16_add(u, n16_add(odd, n16_set(0x7fff))), n16_set((int32_t)0xffff0000));
	const struct v16 nan = n16_float(n16_or(u, n16_set(0x400000)));
	const struct v16 y = v16_if_less(v16_absolute(x), v16_set(INFINITY), n16_float(up),
					 v16_if_less(v16_set(0.0f), v16_absolute(x), x, nan));

	return n16_right(v16_bits(v16_if_less(v16_absolute(y), v16_set(BF16_LEAST), v16_set(0.0f), y)), 16);
}

/* e^x with a relative error below 2e-7 from -87 to 88; 0 below -87, e^88 above 88, NaN for NaN.
   Cody and Waite's split of ln 2 and a polynomial of degree 7 (Taylor's, |r| <= 0.347). */
INLINE struct v16 v16_exp(struct v16 x)
{
#ifdef FAST_AVX512
	/* Below -87 nothing of it is looked at. */
	const struct v16 c = v16_min(v16_set(88.0f), x);
#else
	const struct v16 c = v16_max(v16_set(-87.0f), v16_min(v16_set(88.0f), x));
#endif
	const struct v16 n = v16_round(v16_mul(c, v16_set(1.44269504f)));
	struct v16 r = v16_fnma(n, v16_set(0.693359375f), c);
	struct v16 p;

	r = v16_fnma(n, v16_set(-2.12194440e-4f), r);
	p = v16_fma(v16_set(1.0f / 5040), r, v16_set(1.0f / 720));
	p = v16_fma(p, r, v16_set(1.0f / 120));
	p = v16_fma(p, r, v16_set(1.0f / 24));
	p = v16_fma(p, r, v16_set(1.0f / 6));
	p = v16_fma(p, r, v16_set(0.5f));
	p = v16_fma(p, v16_mul(r, r), r);
	p = v16_add(p, v16_set(1.0f));
#ifdef FAST_AVX512
	const __mmask16 in = _mm512_cmp_ps_mask(x.a, _mm512_set1_ps(-87.0f), _CMP_NLT_UQ);

	return (struct v16){ _mm512_maskz_scalef_ps(in, p.a, n.a) };
#else
	const struct v16 scale = n16_float(n16_left(n16_add(v16_to_int(n), n16_set(127)), 23));

	return v16_if_less(x, v16_set(-87.0f), v16_set(0.0f), v16_mul(p, scale));
#endif
}

#endif
