/*
 * Attention over INT8 pages in pairs of bf16: the scalar text of what AVX-512 and AMX do (cpu.h), to the
 * bit. It serves tests; the scalar device keeps to f32 (ref_attend.c), of which this is off by the
 * rounding of queries and weights.
 */
#include <math.h>
#include <string.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/math.h"

enum { BLOCK = 32 }; /* of the contraction: values of K, positions of V */

static float rounded(float x)
{
	return bf16_decode(bf16_normal(x));
}

/* The vector files' exp: fused where they fuse. */
static float exp_fused(float x)
{
	const float low = 88.0f < x ? 88.0f : x, c = -87.0f > low ? -87.0f : low;
	const float n = rintf(c * 1.44269504f);
	const float r = fmaf(-n, -2.12194440e-4f, fmaf(-n, 0.693359375f, c));
	float p = fmaf(1.0f / 5040, r, 1.0f / 720);

	p = fmaf(p, r, 1.0f / 120);
	p = fmaf(p, r, 1.0f / 24);
	p = fmaf(p, r, 1.0f / 6);
	p = fmaf(p, r, 0.5f);
	p = fmaf(p, r * r, r) + 1.0f;
	return x < -87.0f ? 0.0f : p * float_from_bits((uint32_t)((int32_t)n + 127) << 23);
}

static float soften(float x, float cap)
{
	const float most = 9.0f < x / cap ? 9.0f : x / cap, y = -9.0f > most ? -9.0f : most;
	const float e = exp_fused(y + y);

	return cap * ((e - 1.0f) / (e + 1.0f));
}

/* A stored value without its scale, and the scale of position t. */
static float value(const struct attend_job *j, uint32_t t, uint32_t d, int is_v)
{
	const uint8_t *const block = j->pages[t / j->page_tokens] + (is_v ? j->v_offset : 0);
	const uint32_t at = t % j->page_tokens;

	return (int8_t)block[is_v ? page_v_at(at, d, j->head) : page_k_at(at, d, j->head)];
}

static float scale(const struct attend_job *j, uint32_t t, uint32_t group, int is_v)
{
	const uint32_t line = group + (is_v ? kv_group_count(j->head) : 0);

	return kv_scale_value(KV_INT8, j->scales[t / j->page_tokens][line * j->page_tokens + t % j->page_tokens]);
}

static float score(const struct attend_job *j, const float *q, uint32_t t)
{
	const uint32_t values = kv_group_values(j->head);
	float out = 0;

	for (uint32_t d = 0; d < j->head; d += values) {
		float acc = 0;

		for (uint32_t b = d; b < d + values; b += BLOCK) {
			float sum[2] = { 0, 0 };

			for (uint32_t i = b; i < b + BLOCK; i++)
				sum[i % 2] = fmaf(rounded(q[i]), value(j, t, i, 0), sum[i % 2]);
			acc = acc + (sum[0] + sum[1]);
		}
		out = d ? fmaf(acc, scale(j, t, d / values, 0), out) : acc * scale(j, t, 0, 0);
	}
	return out;
}

/* Scores to weights; their sum in 16 lanes by position and the tree of the f32 dot. */
static void weigh(float *s, uint32_t from, uint32_t to, float *m, float *l)
{
	float lane[16] = { 0 };

	*m = -INFINITY;
	for (uint32_t t = from; t < to; t++)
		*m = s[t] > *m ? s[t] : *m;
	for (uint32_t t = from; t < to; t++) {
		s[t] = exp_fused(s[t] - *m);
		lane[t % 16] += s[t];
	}
	for (uint32_t step = 8; step > 0; step /= 2)
		for (uint32_t i = 0; i < step; i++)
			lane[i] += lane[i + step];
	*l = lane[0];
}

static float weighted(const struct attend_job *j, const float *p, uint32_t from, uint32_t to, uint32_t d)
{
	const uint32_t group = d / kv_group_values(j->head);
	float acc = 0;

	for (uint32_t b = from & ~(BLOCK - 1u); b < to; b += BLOCK) {
		float sum[2] = { 0, 0 };

		for (uint32_t t = b < from ? from : b; t < b + BLOCK && t < to; t++)
			sum[t % 2] = fmaf(rounded(p[t] * scale(j, t, group, 1)), value(j, t, d, 1), sum[t % 2]);
		acc = acc + (sum[0] + sum[1]);
	}
	return acc;
}

void ref_attend_pairs(const struct attend_job *j)
{
	for (uint32_t x = 0; x < j->rows * j->heads; x++) {
		const uint32_t i = x / j->heads, from = j->from[i], to = j->to[i];
		const float *q = j->q + i * j->q_row_stride + (size_t)(x % j->heads) * j->head;
		float s[OPS_PARTITION];

		j->m[x] = -INFINITY;
		j->l[x] = 0.0f;
		memset(j->o + (size_t)x * j->head, 0, j->head * sizeof *j->o);
		if (from >= to)
			continue;
		for (uint32_t t = from; t < to; t++) {
			s[t] = score(j, q, t);
			if (j->softcap != 0.0f)
				s[t] = soften(s[t], j->softcap);
		}
		weigh(s, from, to, &j->m[x], &j->l[x]);
		for (uint32_t d = 0; d < j->head; d++)
			j->o[(size_t)x * j->head + d] = weighted(j, s, from, to, d);
	}
}
