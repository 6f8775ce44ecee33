/*
 * exp in f32, plain C that a compiler can turn into vectors: the same bits for a value
 * wherever it stands in an array; and bf16 as the copy for given tokens has it. Private to kernels/.
 */
#ifndef HOLDFAST_KERNELS_CPU_MATH_H
#define HOLDFAST_KERNELS_CPU_MATH_H

#include "kernels/fp8.h"

/* Within 2 ulp for -87 <= x <= 88; below it gives 0, above it stays at exp(88); NaN gives
   0. x = n ln2 + r with |r| <= ln2 / 2, ln2 in two parts so that n ln2 is nearly exact; the
   Taylor polynomial of degree 7 is off by less than r^8 / 8! = 5e-9. */
FP8_INLINE float exp_f32(float x)
{
	const float low = x >= -87.0f ? 1.0f : 0.0f;
	x = x >= -87.0f ? x : -87.0f;
	x = x > 88.0f ? 88.0f : x;
	const float n = (x * 1.44269504f + 12582912.0f) - 12582912.0f;
	const float r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
	float p = 1.0f / 5040;
	p = p * r + 1.0f / 720;
	p = p * r + 1.0f / 120;
	p = p * r + 1.0f / 24;
	p = p * r + 1.0f / 6;
	p = p * r + 0.5f;
	p = p * r + 1.0f;
	p = p * r + 1.0f;
	return p * float_from_bits((uint32_t)((int32_t)n + 127) << 23) * low;
}

/* To bf16, nearest even; below BF16_LEAST it is 0 (cpu.h says why). */
#define BF16_LEAST 0x1p-55f

FP8_INLINE uint16_t bf16_normal(float x)
{
	const uint16_t h = bf16_encode(x);
	return (h & 0x7fff) < (127 - 55) << 7 ? 0 : h;
}

#endif
