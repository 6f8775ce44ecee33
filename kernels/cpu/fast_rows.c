/*
 * Leaves over one row: norm, quantise, gates, sums, and the encoding of K and V into pages.
 */
#include <math.h>
#include <string.h>

#include "kernels/cpu/fast_v16.h"
#include "kernels/cpu/math.h"

static void norm(const float *x, const float *w, uint32_t n, float epsilon, float *out)
{
	const uint32_t whole = n & ~15u;
	struct v16 sum = v16_set(0.0f);
	uint32_t i;

	for (i = 0; i < whole; i += 16)
		sum = v16_add(sum, v16_mul(v16_load(x + i), v16_load(x + i)));
	if (i < n) {
		const struct v16 y = v16_load_part(x + i, n - i);

		sum = v16_add(sum, v16_mul(y, y));
	}
	const float r = 1.0f / sqrtf(v16_sum(sum) / (float)n + epsilon);
	const struct v16 all = v16_set(r);

	for (i = 0; i < whole; i += 16)
		v16_store(out + i, v16_mul(v16_mul(v16_load(x + i), all), v16_load(w + i)));
	for (; i < n; i++)
		out[i] = x[i] * r * w[i];
}

enum { QUANTISE_LOT = 16 }; /* blocks whose scales are divided at once */

/* The sum of both registers' bytes, signed. */
INLINE int32_t bytes_sum(__m128i a, __m128i b)
{
	const __m128i flip = _mm_set1_epi8((char)0x80), zero = _mm_setzero_si128();
	const __m128i u = _mm_add_epi32(_mm_sad_epu8(_mm_xor_si128(a, flip), zero),
					_mm_sad_epu8(_mm_xor_si128(b, flip), zero));

	return _mm_cvtsi128_si32(_mm_add_epi32(u, _mm_srli_si128(u, 8))) - 128 * ACT_BLOCK;
}

/* Up to QUANTISE_LOT blocks. */
static void quantise_lot(const float *x, uint32_t blocks, int8_t *q, float *d, float *s)
{
	_Alignas(64) float most[QUANTISE_LOT] = { 0 }, scale[QUANTISE_LOT], product[QUANTISE_LOT];
	_Alignas(64) int32_t sum[QUANTISE_LOT] = { 0 };

	for (uint32_t b = 0; b < blocks; b++) {
		const struct v16 x0 = v16_load(x + b * ACT_BLOCK), x1 = v16_load(x + b * ACT_BLOCK + 16);

		/* Of a NaN the second operand wins, so that it counts as 0. */
		most[b] = v16_largest(v16_max(v16_absolute(x0), v16_max(v16_absolute(x1), v16_set(0.0f))));
	}
	struct v16 da = v16_div(v16_load(most), v16_set(127.0f));
	const struct v16 inverse = v16_div(v16_set(1.0f), da), none = v16_set(0.0f);

	da = v16_if_less(inverse, v16_set(INFINITY), da, none);
	v16_store(most, da);
	v16_store(scale, v16_if_less(inverse, v16_set(INFINITY), inverse, none));
	for (uint32_t b = 0; b < blocks; b++, x += ACT_BLOCK, q += ACT_BLOCK) {
		const struct v16 of = v16_set(scale[b]);
		/* The least integer is what a NaN becomes. */
		const struct n16 q0 = n16_max(v16_to_int(v16_mul(v16_load(x), of)), n16_set(-127));
		const struct n16 q1 = n16_max(v16_to_int(v16_mul(v16_load(x + 16), of)), n16_set(-127));
		const __m128i p0 = n16_to_i8(q0), p1 = n16_to_i8(q1);

		_mm_storeu_si128((__m128i *)q, p0);
		_mm_storeu_si128((__m128i *)q + 1, p1);
		sum[b] = bytes_sum(p0, p1);
	}
	v16_store(product, v16_mul(da, v16_from_int(n16_load(sum))));
	memcpy(d, most, blocks * sizeof *d);
	memcpy(s, product, blocks * sizeof *s);
}

static void quantise(const float *x, uint32_t n, int8_t *q, float *d, float *s)
{
	for (uint32_t k = 0; k < n; k += QUANTISE_LOT * ACT_BLOCK) {
		const uint32_t left = (n - k) / ACT_BLOCK;

		quantise_lot(x + k, left < QUANTISE_LOT ? left : QUANTISE_LOT, q + k, d + k / ACT_BLOCK,
			     s + k / ACT_BLOCK);
	}
}

static float magnitude(const float *x, uint32_t n);

static void quantise_row(const float *x, uint32_t n, int8_t *q, float *d, float *s)
{
	const float most = magnitude(x, n);
	float da = most / 127.0f, inverse = 1.0f / da;
	int32_t sum = 0;

	if (!(inverse <= 3.402823466e38f)) {
		da = 0.0f;
		inverse = 0.0f;
	}
	const struct v16 scale = v16_set(inverse);

	for (uint32_t k = 0; k < n; k += ACT_BLOCK, x += ACT_BLOCK, q += ACT_BLOCK) {
		/* As for a block; the sum of 32 is exact in f32. */
		const struct n16 q0 = n16_max(v16_to_int(v16_mul(v16_load(x), scale)), n16_set(-127));
		const struct n16 q1 = n16_max(v16_to_int(v16_mul(v16_load(x + 16), scale)), n16_set(-127));

		_mm_storeu_si128((__m128i *)q, n16_to_i8(q0));
		_mm_storeu_si128((__m128i *)q + 1, n16_to_i8(q1));
		sum += (int32_t)v16_sum(v16_from_int(n16_add(q0, q1)));
	}
	*d = da;
	*s = (float)sum;
}

static void round_row(const float *x, uint32_t n, uint16_t *h)
{
	for (uint32_t k = 0; k < n; k += 16)
		n16_store_u16(h + k, v16_to_bf16(v16_load(x + k)));
}

/* silu(g) = g / (1 + exp(-g)); gelu's tanh form is g / (1 + exp(-2 c (g + 0.044715 g^3))),
   c = sqrt(2 / pi). The relative error is below 4e-7 times (1 + the exponent's magnitude). */
INLINE struct v16 gate_of(struct v16 g, struct v16 up, const int gelu)
{
	struct v16 e = v16_sub(v16_set(0.0f), g);

	if (gelu) {
		const struct v16 cube = v16_mul(v16_mul(v16_mul(v16_set(0.044715f), g), g), g);

		e = v16_mul(v16_set(-2 * 0.79788456f), v16_add(g, cube));
	}
	e = v16_exp(e);
	return v16_mul(v16_div(g, v16_add(v16_set(1.0f), e)), up);
}

INLINE void gate_any(const float *gate, const float *up, uint32_t n, float *out, const int gelu)
{
	uint32_t i;

	for (i = 0; i + 16 <= n; i += 16)
		v16_store(out + i, gate_of(v16_load(gate + i), v16_load(up + i), gelu));
	if (i < n)
		v16_store_part(out + i, gate_of(v16_load_part(gate + i, n - i),
						v16_load_part(up + i, n - i), gelu), n - i);
}

static void gate_silu(const float *gate, const float *up, uint32_t n, float *out)
{
	gate_any(gate, up, n, out, 0);
}

static void gate_gelu(const float *gate, const float *up, uint32_t n, float *out)
{
	gate_any(gate, up, n, out, 1);
}

static float row_max(const float *x, uint32_t n, uint32_t *at)
{
	struct v16 most = v16_set(-INFINITY);
	uint32_t i;

	for (i = 0; i + 16 <= n; i += 16)
		most = v16_max(v16_load(x + i), most);
	float best = v16_largest(most);
	for (; i < n; i++)
		best = x[i] > best ? x[i] : best;
	for (i = 0; i + 1 < n && x[i] != best;)
		i++;
	*at = n && x[i] == best ? i : 0;
	return best;
}

static float exp_sum(const float *x, uint32_t n, float max)
{
	const struct v16 most = v16_set(max);
	struct v16 sum = v16_set(0.0f);
	uint32_t i;

	for (i = 0; i + 16 <= n; i += 16)
		sum = v16_add(sum, v16_exp(v16_sub(v16_load(x + i), most)));
	if (i < n)
		sum = v16_add(sum, v16_range(v16_exp(v16_sub(v16_load_part(x + i, n - i), most)), 0,
					     (int32_t)(n - i), v16_set(0.0f)));
	return v16_sum(sum);
}

static void add(float *x, const float *y, uint32_t n)
{
	uint32_t i;

	for (i = 0; i + 16 <= n; i += 16)
		v16_store(x + i, v16_add(v16_load(x + i), v16_load(y + i)));
	for (; i < n; i++)
		x[i] += y[i];
}

/* Largest magnitude of n values; NaN counts as no larger. */
static float magnitude(const float *x, uint32_t n)
{
	struct v16 most = v16_set(0.0f);
	uint32_t i;

	for (i = 0; i + 16 <= n; i += 16)
		most = v16_max(v16_absolute(v16_load(x + i)), most);
	if (i < n)
		most = v16_max(v16_absolute(v16_load_part(x + i, n - i)), most);
	return v16_largest(most);
}

static uint32_t bits_of(float x)
{
	uint32_t u;

	memcpy(&u, &x, sizeof u);
	return u;
}

static float float_of(uint32_t u)
{
	float x;

	memcpy(&x, &u, sizeof x);
	return x;
}

/* The scale byte of n values, and what the codes are made with: 2^-e, or INT8's scale. */
static uint8_t scale_byte(enum kv_kind kv, const float *x, uint32_t n, float *factor)
{
	const float most = magnitude(x, n);

	if (kv == KV_FP8) {
		int32_t e = (int32_t)((bits_of(most) + 0x1fffff) >> 23) - 135;

		e = most == 0.0f ? 0 : e < -126 ? -126 : e;
		*factor = float_of((uint32_t)(127 - e) << 23);
		return (uint8_t)(e + 128);
	}
	int32_t byte = (int32_t)((bits_of(most / 127.0f) + 0xfffff) >> 20) - 824;

	byte = byte < 0 ? 0 : byte > 255 ? 255 : byte;
	*factor = float_of((uint32_t)(byte + 824) << 20);
	return (uint8_t)byte;
}

/* Sixteen codes of 1, 2 or 4 bytes, in the low bits of the lanes. FP8 as kernels/fp8.h has it. */
INLINE struct n16 encode(enum kv_kind kv, struct v16 x, float factor)
{
	if (kv == KV_FP8) {
		const struct v16 y = v16_mul(x, v16_set(factor));
		const struct n16 u = v16_bits(y), sign = n16_and(n16_right(u, 24), n16_set(0x80));
		const struct n16 a = n16_min(n16_and(u, n16_set(0x7fffffff)), n16_set(0x43e00000));
		const struct n16 odd = n16_and(n16_right(a, 20), n16_set(1));
		const struct n16 up = n16_add(n16_add(a, n16_set(0x7ffff)), odd);
		const struct n16 normal = n16_sub(n16_right(up, 20), n16_set(120 << 3));
		const struct v16 shifted = v16_add(n16_float(a), v16_set(16384.0f));
		const struct n16 small = n16_and(v16_bits(shifted), n16_set(0xff));

		return n16_or(sign, v16_bits(v16_if_less(n16_float(a), v16_set(0.015625f),
							 n16_float(small), n16_float(normal))));
	}
	if (kv == KV_INT8) {
		const struct v16 y = v16_max(v16_div(x, v16_set(factor)), v16_set(-127.0f));

		return n16_and(v16_to_int(v16_min(y, v16_set(127.0f))), n16_set(0xff));
	}
	const struct n16 u = v16_bits(x);

	if (kv == KV_BF16)
		return n16_right(n16_add(n16_add(u, n16_set(0x7fff)), n16_and(n16_right(u, 16), n16_set(1))),
				 16);
	return u;
}

/* The codes of n values (up to 16) go to where element `at(value)` is, in elements of the kind. */
INLINE void scatter(enum kv_kind kv, const int32_t *code, uint32_t n, uint32_t head, uint32_t token,
		    uint32_t value, const int is_v, uint8_t *block)
{
	for (uint32_t i = 0; i < n; i++) {
		const size_t at = is_v ? page_v_at(token, value + i, head) :
					 page_k_at(token, value + i, head);

		if (kv == KV_FP8 || kv == KV_INT8)
			block[at] = (uint8_t)code[i];
		else if (kv == KV_BF16)
			memcpy(block + at * 2, &code[i], 2);
		else
			memcpy(block + at * 4, &code[i], 4);
	}
}

INLINE void encode_head(enum kv_kind kv, const float *x, uint32_t head, uint32_t token,
			uint32_t page_tokens, uint8_t *block, uint8_t *scales, const int is_v)
{
	const int scaled = kv == KV_FP8 || kv == KV_INT8;
	const uint32_t values = scaled ? kv_group_values(head) : head;

	for (uint32_t group = 0; group * values < head; group++) {
		float factor = 1.0f;

		if (scaled)
			scales[group * page_tokens + token] =
				scale_byte(kv, x + group * values, values, &factor);
		for (uint32_t v = group * values; v < (group + 1) * values; v += 16) {
			const uint32_t left = (group + 1) * values - v, n = left < 16 ? left : 16;
			int32_t code[16];

			n16_store(code, encode(kv, n < 16 ? v16_load_part(x + v, n) : v16_load(x + v),
					       factor));
			scatter(kv, code, n, head, token, v, is_v, block);
		}
	}
}

static void encode_k(enum kv_kind kv, const float *k, uint32_t head, uint32_t token,
		     uint32_t page_tokens, uint8_t *block, uint8_t *scales)
{
	if (kv == KV_FP8)
		encode_head(KV_FP8, k, head, token, page_tokens, block, scales, 0);
	else
		encode_head(kv, k, head, token, page_tokens, block, scales, 0);
}

static void encode_v(enum kv_kind kv, const float *v, uint32_t head, uint32_t token,
		     uint32_t page_tokens, uint8_t *block, uint8_t *scales)
{
	if (kv == KV_FP8)
		encode_head(KV_FP8, v, head, token, page_tokens, block, scales, 1);
	else
		encode_head(kv, v, head, token, page_tokens, block, scales, 1);
}

void FAST(fast_rows_init)(struct leaf *leaf)
{
	leaf->norm = norm;
	leaf->quantise = quantise;
	leaf->quantise_row = quantise_row;
	leaf->round_row = round_row;
	leaf->gate[GATE_SILU] = gate_silu;
	leaf->gate[GATE_GELU] = gate_gelu;
	leaf->max = row_max;
	leaf->exp_sum = exp_sum;
	leaf->add = add;
	leaf->encode_k = encode_k;
	leaf->encode_v = encode_v;
}
