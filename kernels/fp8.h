/*
 * The small floating formats, one value at a time: FP8 (e4m3), f16, bf16. The definition
 * that every vector path is held to. Compiles as C11 and as C++17; no state, no failure.
 *
 * e4m3: 1 sign, 4 exponent (bias 7), 3 mantissa bits; subnormals k * 2^-9; largest 448
 * (0x7e); no infinity; 0x7f and 0xff are NaN. (The format of the OCP 8-bit floating point
 * specification.)
 */
#ifndef HOLDFAST_KERNELS_FP8_H
#define HOLDFAST_KERNELS_FP8_H

#include <stdint.h>
#include <string.h>

/* Both for the host and for a GPU. */
#ifdef __CUDACC__
#define FP8_INLINE __host__ __device__ static inline
#else
#define FP8_INLINE static inline
#endif

FP8_INLINE uint32_t float_bits(float x)
{
	uint32_t u;
	memcpy(&u, &x, sizeof u);
	return u;
}

FP8_INLINE float float_from_bits(uint32_t u)
{
	float x;
	memcpy(&x, &u, sizeof x);
	return x;
}

/* Nearest, ties to even; what is beyond 448, infinity too, is held at 448. NaN
   gives NaN. */
FP8_INLINE uint8_t fp8_encode(float x)
{
	const uint32_t u = float_bits(x), sign = (u >> 24) & 0x80;
	uint32_t a = u & 0x7fffffff;
	if (a > 0x7f800000)
		return (uint8_t)(sign | 0x7f);
	if (a > 0x43e00000) /* 448 */
		a = 0x43e00000;
	if (a <
	    0x3c800000) { /* 2^-6: below it, steps of 2^-9, and 16384 is 2^14: ulp 2^-9 */
		const float shifted = float_from_bits(a) + 16384.0f;
		return (uint8_t)(sign | (float_bits(shifted) & 0xff));
	}
	a += 0x7ffff + ((a >> 20) & 1);
	return (uint8_t)(sign | ((a >> 20) - (120u << 3)));
}

FP8_INLINE float fp8_decode(uint8_t code)
{
	const uint32_t sign = (uint32_t)(code & 0x80) << 24, low = code & 0x7f;
	if (low == 0x7f)
		return float_from_bits(sign | 0x7fc00000);
	if (low < 8) { /* k * 2^-9, exact */
		const float x = (float)low * 0.001953125f;
		return float_from_bits(sign | float_bits(x));
	}
	return float_from_bits(sign | ((low + (120u << 3)) << 20));
}

FP8_INLINE float f16_decode(uint16_t h)
{
	const uint32_t sign = (uint32_t)(h & 0x8000) << 16, low = h & 0x7fff;
	if (low >= 0x7c00)
		return float_from_bits(sign | 0x7f800000 | ((low & 0x3ff) << 13));
	/* Shifted into place the exponent is 112 too small; the product is exact,
	   subnormals too. */
	const float x = float_from_bits(low << 13) * 0x1p112f;
	return float_from_bits(sign | float_bits(x));
}

/* Nearest, ties to even; overflows to infinity. */
FP8_INLINE uint16_t f16_encode(float x)
{
	const uint32_t u = float_bits(x), sign = (u >> 16) & 0x8000;
	uint32_t a = u & 0x7fffffff;
	if (a > 0x7f800000)
		return (uint16_t)(sign | 0x7e00);
	if (a >= 0x477ff000) /* 65520 */
		return (uint16_t)(sign | 0x7c00);
	if (a < 0x38800000) { /* 2^-14: below it, steps of 2^-24, and 0.5 has that ulp */
		const float shifted = float_from_bits(a) + 0.5f;
		return (uint16_t)(sign | (float_bits(shifted) - 0x3f000000));
	}
	a += 0xfff + ((a >> 13) & 1);
	return (uint16_t)(sign | ((a - (112u << 23)) >> 13));
}

FP8_INLINE float bf16_decode(uint16_t h)
{
	return float_from_bits((uint32_t)h << 16);
}

FP8_INLINE uint16_t bf16_encode(float x)
{
	const uint32_t u = float_bits(x);
	if ((u & 0x7fffffff) > 0x7f800000)
		return (uint16_t)((u >> 16) | 0x40);
	return (uint16_t)((u + 0x7fff + ((u >> 16) & 1)) >> 16);
}

#endif
