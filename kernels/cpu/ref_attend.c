/*
 * The scalar leaves over pages: attention within one partition, and the encoders of K and
 * V.
 *
 * A partition is read in tiles of 16 tokens; a tile is decoded once to f32 and used by
 * every query row and head of the job. A score is the sum over the head's values in
 * ascending order; a weighted value the sum over the visible tokens in ascending order; the
 * sum of exp in 16 lanes, a token in lane token % 16. None of it depends on the other rows,
 * or on tokens that a row does not see.
 */
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("O3")
#endif

#include <math.h>
#include <string.h>

#include "kernels/cpu/math.h"
#include "kernels/cpu/ref.h"

enum { TILE = 16 };

typedef float v4 __attribute__((vector_size(16)));

static v4 v4_at(const float *p)
{
	v4 v;
	memcpy(&v, p, sizeof v);
	return v;
}

static v4 v4_all(float x)
{
	return (v4){x, x, x, x};
}

/* Scores of the job, then two tiles, and what vector leaves may want in their place. */
size_t leaf_scratch_floats(uint32_t rows, uint32_t heads, uint32_t head)
{
	return (size_t)rows * heads * (OPS_PARTITION + head + 64) +
	       2 * (size_t)OPS_PARTITION * head + 8192;
}

/* The values of one tile in the order of the page, without their scales. */
static void tile_values(enum kv_kind kv, const uint8_t *from, uint32_t count,
			float *restrict out)
{
	switch (kv) {
	case KV_FP8: /* as f32 with an exponent 120 too small; the product is exact */
		for (uint32_t i = 0; i < count; i++) {
			const uint32_t c = from[i];
			out[i] = float_from_bits((c & 0x80) << 24 | (c & 0x7f) << 20) *
				 0x1p120f;
		}
		break;
	case KV_INT8:
		for (uint32_t i = 0; i < count; i++)
			out[i] = (float)(int8_t)from[i];
		break;
	case KV_BF16:
		for (uint32_t i = 0; i < count; i++) {
			uint16_t h;
			memcpy(&h, from + 2 * i, 2);
			out[i] = bf16_decode(h);
		}
		break;
	case KV_F32:
		memcpy(out, from, 4 * (size_t)count);
		break;
	}
}

/* Scales of 16 tokens of one group; `scales` is that group's first byte. */
static void tile_scales(enum kv_kind kv, const uint8_t *scales, uint32_t token, float *out)
{
	for (uint32_t t = 0; t < TILE; t++)
		out[t] = kv_scale_value(kv, scales[token + t]);
}

/* K of one tile as [value][token], scaled. */
static void tile_k(const struct attend_job *j, uint32_t tile, float *raw,
		   float *restrict out)
{
	const uint32_t at = tile * TILE, page = at / j->page_tokens,
		       token = at % j->page_tokens;
	const uint32_t head = j->head, values = kv_group_values(head);
	const float *from = raw;
	tile_values(j->kv, j->pages[page] + (size_t)token * head * kv_value_bytes(j->kv),
		    TILE * head, raw);
	for (uint32_t d = 0; d < head; d += 4)
		for (uint32_t t = 0; t < TILE; t += 4)
			for (uint32_t pair = 0; pair < 2; pair++)
				for (uint32_t i = 0; i < 4; i++, from += 2) {
					out[(d + 2 * pair) * TILE + t + i] = from[0];
					out[(d + 2 * pair + 1) * TILE + t + i] = from[1];
				}
	if (j->kv != KV_FP8 && j->kv != KV_INT8)
		return;
	for (uint32_t g = 0; g * values < head; g++) {
		float scale[TILE];
		tile_scales(j->kv, j->scales[page] + g * j->page_tokens, token, scale);
		for (uint32_t d = g * values; d < (g + 1) * values; d++)
			for (uint32_t t = 0; t < TILE; t++)
				out[d * TILE + t] *= scale[t];
	}
}

/* V of one tile as [token][value], scaled. */
static void tile_v(const struct attend_job *j, uint32_t tile, float *raw,
		   float *restrict out)
{
	const uint32_t at = tile * TILE, page = at / j->page_tokens,
		       token = at % j->page_tokens;
	const uint32_t head = j->head, values = kv_group_values(head);
	const float *from = raw;
	tile_values(j->kv,
		    j->pages[page] + j->v_offset + (size_t)token * head * kv_value_bytes(j->kv),
		    TILE * head, raw);
	for (uint32_t t = 0; t < TILE; t += 2)
		for (uint32_t d = 0; d < head; d++, from += 2) {
			out[t * head + d] = from[0];
			out[(t + 1) * head + d] = from[1];
		}
	if (j->kv != KV_FP8 && j->kv != KV_INT8)
		return;
	for (uint32_t g = 0; g * values < head; g++) {
		float scale[TILE];
		tile_scales(j->kv,
			    j->scales[page] + (kv_group_count(head) + g) * j->page_tokens,
			    token, scale);
		for (uint32_t t = 0; t < TILE; t++)
			for (uint32_t d = g * values; d < (g + 1) * values; d++)
				out[t * head + d] *= scale[t];
	}
}

/* Scores of 16 tokens for one query vector. */
static void tile_scores(const float *q, const float *k, uint32_t head, float *out)
{
	v4 s0 = v4_all(0), s1 = s0, s2 = s0, s3 = s0;
	for (uint32_t d = 0; d < head; d++, k += TILE) {
		const v4 x = v4_all(q[d]);
		s0 += x * v4_at(k);
		s1 += x * v4_at(k + 4);
		s2 += x * v4_at(k + 8);
		s3 += x * v4_at(k + 12);
	}
	memcpy(out, &s0, sizeof s0);
	memcpy(out + 4, &s1, sizeof s1);
	memcpy(out + 8, &s2, sizeof s2);
	memcpy(out + 12, &s3, sizeof s3);
}

/* Turns scores into weights: 0 where the row does not see. */
static void weigh(float *s, uint32_t from, uint32_t to, float softcap, float *m, float *l)
{
	const uint32_t first = from / TILE * TILE, end = (to + TILE - 1) / TILE * TILE;
	float largest = -INFINITY, lanes[TILE] = {0}, sum[8];
	for (uint32_t t = first; t < end; t++) {
		if (t < from || t >= to)
			s[t] = -INFINITY;
		else if (softcap > 0)
			s[t] = softcap * tanhf(s[t] / softcap);
		largest = s[t] > largest ? s[t] : largest;
	}
	for (uint32_t t = first; t < end; t += TILE)
		for (uint32_t i = 0; i < TILE; i++) {
			s[t + i] = exp_f32(s[t + i] - largest);
			lanes[i] += s[t + i];
		}
	for (int i = 0; i < 8; i++)
		sum[i] = lanes[i] + lanes[i + 8];
	for (int i = 0; i < 4; i++)
		sum[i] += sum[i + 4];
	*m = largest;
	*l = (sum[0] + sum[2]) + (sum[1] + sum[3]);
}

static void add_values(const float *p, const float *v, uint32_t from, uint32_t to,
		       uint32_t head, float *o)
{
	for (uint32_t d = 0; d < head; d += 4) {
		v4 sum = v4_at(o + d);
		for (uint32_t t = from; t < to; t++)
			sum += v4_all(p[t]) * v4_at(v + t * head + d);
		memcpy(o + d, &sum, sizeof sum);
	}
}

/* First and one past the last position that any row sees. */
static void job_range(const struct attend_job *j, uint32_t *from, uint32_t *to)
{
	*from = OPS_PARTITION;
	*to = 0;
	for (uint32_t i = 0; i < j->rows; i++) {
		if (j->from[i] >= j->to[i])
			continue;
		*from = j->from[i] < *from ? j->from[i] : *from;
		*to = j->to[i] > *to ? j->to[i] : *to;
	}
}

static uint32_t clamp(uint32_t x, uint32_t low, uint32_t high)
{
	return x < low ? low : x > high ? high : x;
}

void ref_attend(const struct attend_job *j)
{
	const uint32_t head = j->head;
	float *raw = j->scratch, *tile = raw + TILE * head, *scores = tile + TILE * head;
	uint32_t first, end;
	job_range(j, &first, &end);
	for (uint32_t b = first / TILE; b * TILE < end; b++) {
		tile_k(j, b, raw, tile);
		for (uint32_t i = 0; i < j->rows; i++)
			for (uint32_t h = 0; h < j->heads; h++)
				tile_scores(
					j->q + i * j->q_row_stride + h * head, tile, head,
					scores +
						(size_t)(i * j->heads + h) * OPS_PARTITION +
						b * TILE);
	}
	for (uint32_t x = 0; x < j->rows * j->heads; x++) {
		const uint32_t i = x / j->heads;
		memset(j->o + (size_t)x * head, 0, head * sizeof *j->o);
		if (j->from[i] < j->to[i]) {
			weigh(scores + (size_t)x * OPS_PARTITION, j->from[i], j->to[i],
			      j->softcap, j->m + x, j->l + x);
		} else {
			j->m[x] = -INFINITY;
			j->l[x] = 0;
		}
	}
	for (uint32_t b = first / TILE; b * TILE < end; b++) {
		tile_v(j, b, raw, tile);
		for (uint32_t x = 0; x < j->rows * j->heads; x++) {
			const uint32_t i = x / j->heads, low = b * TILE;
			if (j->from[i] >= j->to[i])
				continue;
			const uint32_t from = clamp(j->from[i], low, low + TILE) - low;
			const uint32_t to = clamp(j->to[i], low, low + TILE) - low;
			add_values(scores + (size_t)x * OPS_PARTITION + low, tile, from, to,
				   head, j->o + (size_t)x * head);
		}
	}
}

static uint32_t bits_max(const float *x, uint32_t n)
{
	float largest = 0;
	for (uint32_t i = 0; i < n; i++) {
		const float a = fabsf(x[i]);
		largest = a > largest ? a : largest;
	}
	return float_bits(largest);
}

static void encode(enum kv_kind kv, const float *x, uint32_t head, uint32_t token,
		   uint32_t page_tokens, uint8_t *block, uint8_t *scales,
		   size_t (*place)(uint32_t, uint32_t, uint32_t))
{
	const uint32_t values = kv_group_values(head);
	if (kv == KV_F32 || kv == KV_BF16) {
		for (uint32_t d = 0; d < head; d++) {
			const size_t at = place(token, d, head);
			const uint16_t h = bf16_encode(x[d]);
			if (kv == KV_F32)
				memcpy(block + 4 * at, x + d, 4);
			else
				memcpy(block + 2 * at, &h, 2);
		}
		return;
	}
	for (uint32_t g = 0; g * values < head; g++) {
		const uint8_t byte = kv_scale_byte(kv, bits_max(x + g * values, values));
		const float scale = kv_scale_value(kv, byte), inverse = 1.0f / scale;
		scales[g * page_tokens + token] = byte;
		for (uint32_t d = g * values; d < (g + 1) * values; d++)
			block[place(token, d, head)] = kv_encode_8(kv, x[d], scale, inverse);
	}
}

void ref_encode_k(enum kv_kind kv, const float *k, uint32_t head, uint32_t token,
		  uint32_t page_tokens, uint8_t *block, uint8_t *scales)
{
	encode(kv, k, head, token, page_tokens, block, scales, page_k_at);
}

void ref_encode_v(enum kv_kind kv, const float *v, uint32_t head, uint32_t token,
		  uint32_t page_tokens, uint8_t *block, uint8_t *scales)
{
	encode(kv, v, head, token, page_tokens, block, scales, page_v_at);
}
