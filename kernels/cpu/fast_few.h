/*
 * Attention of one row: K and V go from the page straight into the sums, without a stop in memory,
 * since so few queries share what is decoded. The sums are those of fast_attend.c, in the same
 * order; those of INT8 are in fast_pairs.h. A tile of the next lot is fetched while one is at work, and one
 * of the next job from beyond the caches: pages lie far apart, so the CPU does not guess where the next
 * begins.
 */
#ifndef HOLDFAST_KERNELS_CPU_FAST_FEW_H
#define HOLDFAST_KERNELS_CPU_FAST_FEW_H

#include "kernels/cpu/fast_pages.h"

enum {
	FEW_QUERIES = 4,  /* that share a decoded register */
	FEW_HEADS = 8,    /* of a KV head, at most; with more the decoding is worth keeping */
	FEW_TILES = 4     /* of K at once; half of them for queries that would fill the registers */
};

INLINE uint32_t kv_size(enum kv_kind kv)
{
	return kv == KV_F32 ? 4 : kv == KV_BF16 ? 2 : 1;
}

INLINE struct quad quad_of(enum kv_kind kv, const uint8_t *p)
{
	return kv == KV_FP8    ? quad_fp8(p)
	       : kv == KV_BF16 ? quad_bf16(p)
			       : quad_f32(p);
}

/* Where the tile with token `t` of the partition is: its K (or V), and its first scale byte. */
INLINE const uint8_t *tile_at(const struct attend_job *j, uint32_t t, size_t offset)
{
	const size_t within = (size_t)(t % j->page_tokens) * j->head * kv_size(j->kv);

	return j->pages[t / j->page_tokens] + offset + within;
}

/* The same of the job after this one, as far as it goes; else some address that does no harm. */
INLINE const uint8_t *tile_ahead_of(const struct attend_job *j, uint32_t t, size_t offset)
{
	if (t >= j->next_count)
		return tile_at(j, t, offset);
	return j->next[t / j->page_tokens] + offset + (size_t)(t % j->page_tokens) * j->head * kv_size(j->kv);
}

INLINE struct v16 tile_scales(const struct attend_job *j, enum kv_kind kv, uint32_t t, uint32_t group)
{
	if (kv != KV_FP8 && kv != KV_INT8)
		return v16_set(1.0f);
	return page_scales(kv, j->scales[t / j->page_tokens] + t % j->page_tokens +
				       group * j->page_tokens);
}

/* Spelled out, not loops: an array that is indexed by a loop's variable stays in memory with compilers
   that unroll late. */
#define EACH_FEW(X, n) X(n, 0) X(n, 1) X(n, 2) X(n, 3)
#define EACH_TILE(X) X(0) X(1) X(2) X(3)
#define FEW_TILE(n) \
	if ((n) < tiles) { \
		p[n] = tile_at(j, t + 16 * (n), 0); \
		far[n] = tile_ahead_of(j, t + 16 * (n), 0); \
	}
#define FEW_ZERO(n, i) acc[n][i] = v16_set(0.0f);
#define FEW_ZEROS(n) EACH_FEW(FEW_ZERO, n)
#define FEW_SCORE(n, i) \
	if ((i) < queries) { \
		acc[n][i] = v16_fma(v16_set(q[i][v]), x.x[0], acc[n][i]); \
		acc[n][i] = v16_fma(v16_set(q[i][v + 1]), x.x[1], acc[n][i]); \
		acc[n][i] = v16_fma(v16_set(q[i][v + 2]), x.x[2], acc[n][i]); \
		acc[n][i] = v16_fma(v16_set(q[i][v + 3]), x.x[3], acc[n][i]); \
	}
#define FEW_SCORES(n) \
	if ((n) < tiles) { \
		const struct quad x = quad_of(kv, p[n] + at); \
		_mm_prefetch((const char *)next[n] + at, _MM_HINT_T0); \
		_mm_prefetch((const char *)far[n] + at, _MM_HINT_T1); \
		EACH_FEW(FEW_SCORE, n) \
	}
#define FEW_OUT(n, i) \
	if ((i) < queries) { \
		float *to = out + (i) * OPS_PARTITION + 16 * (n); \
		v16_store(to, g ? v16_fma(acc[n][i], s, v16_load(to)) : v16_mul(acc[n][i], s)); \
	}
#define FEW_OUTS(n) \
	if ((n) < tiles) { \
		const struct v16 s = tile_scales(j, kv, t + 16 * (n), g); \
		EACH_FEW(FEW_OUT, n) \
	}

/* Scores of `queries` queries and `tiles` tiles from token t; next: tiles to fetch. */
INLINE void few_scores(const struct attend_job *j, const float *const q[4], uint32_t t,
		       const uint8_t *const next[FEW_TILES], uint32_t groups, float *out,
		       const enum kv_kind kv, const uint32_t queries, const uint32_t tiles)
{
	const uint32_t size = kv_size(kv), values = j->head / groups;
	const uint8_t *p[FEW_TILES], *far[FEW_TILES];
	size_t at = 0;
	uint32_t v = 0;

	EACH_TILE(FEW_TILE)
	for (uint32_t g = 0; g < groups; g++) {
		struct v16 acc[FEW_TILES][4];

		EACH_TILE(FEW_ZEROS)
		for (uint32_t end = v + values; v < end; v += 4, at += 64 * size) {
			EACH_TILE(FEW_SCORES)
		}
		EACH_TILE(FEW_OUTS)
	}
}

#define FEW_LOAD(i, r) \
	if ((i) < queries && (r) < registers) \
		acc[i][r] = v16_load(sum + (i) * head + 16 * (r));
#define FEW_LOADS(i) EACH_FEW(FEW_LOAD, i)
#define FEW_WEIGHT(i) \
	if ((i) < queries) \
		v16_store(w[i], v16_mul(v16_load(scores + (i) * OPS_PARTITION + at), s));
#define FEW_VALUE(r, i) \
	if ((i) < queries) { \
		const struct v16 even = v16_set(w[i][t]), odd = v16_set(w[i][t + 1]); \
		acc[i][r] = v16_fma(even, x.x[0], acc[i][r]); \
		acc[i][r + 1] = v16_fma(even, x.x[2], acc[i][r + 1]); \
		acc[i][r] = v16_fma(odd, x.x[1], acc[i][r]); \
		acc[i][r + 1] = v16_fma(odd, x.x[3], acc[i][r + 1]); \
	}
#define FEW_VALUES(r) \
	if ((r) < registers) { \
		const struct quad x = quad_of(kv, p + 32 * (r) * size); \
		_mm_prefetch((const char *)next + 32 * (r) * size, _MM_HINT_T0); \
		_mm_prefetch((const char *)far + 32 * (r) * size, _MM_HINT_T1); \
		EACH_FEW(FEW_VALUE, r) \
	}
#define FEW_STORE(i, r) \
	if ((i) < queries && (r) < registers) \
		v16_store(sum + (i) * head + 16 * (r), acc[i][r]);
#define FEW_STORES(i) EACH_FEW(FEW_STORE, i)

/* Adds the tiles of tokens [first, end) to 16 * `registers` sums of `queries` heads from value
   `value`, whose scale is the page's group `scale`; scores: of the partition's first token. */
INLINE void few_values(const struct attend_job *j, const float *scores, uint32_t first, uint32_t end,
		       uint32_t value, uint32_t scale, float *sum, const enum kv_kind kv,
		       const uint32_t queries, const uint32_t registers)
{
	const uint32_t size = kv_size(kv), head = j->head;
	struct v16 acc[4][4];

	EACH_TILE(FEW_LOADS)
	for (uint32_t at = first; at < end; at += 16) {
		const uint8_t *p = tile_at(j, at, j->v_offset) + (size_t)value * 2 * size;
		const uint8_t *next = at + 16 < end ? tile_at(j, at + 16, j->v_offset) +
							      (size_t)value * 2 * size :
						      p;
		const uint8_t *far = tile_ahead_of(j, at, j->v_offset) + (size_t)value * 2 * size;
		const struct v16 s = tile_scales(j, kv, at, scale);
		_Alignas(64) float w[4][16];

		EACH_TILE(FEW_WEIGHT)
		for (uint32_t t = 0; t < 16;
		     t += 2, p += 2 * head * size, next += 2 * head * size, far += 2 * head * size) {
			FEW_VALUES(0)
			FEW_VALUES(2)
		}
	}
	EACH_TILE(FEW_STORES)
}

/* Tokens [first, end), whole tiles, of the partition. */
typedef void few_score_function(const struct attend_job *j, const float *const q[4], uint32_t first,
				uint32_t end, uint32_t groups, float *out);
typedef void few_value_function(const struct attend_job *j, const float *scores, uint32_t first,
				uint32_t end, uint32_t groups, float *sum);

#define FEW(kind, KIND, n) \
	static void few_score_##kind##_##n(const struct attend_job *j, const float *const q[4], \
					   uint32_t t, uint32_t end, uint32_t groups, float *out) \
	{ \
		enum { LOT = (n) < ((KIND) == KV_FP8 ? 3 : 4) ? FEW_TILES : FEW_TILES / 2 }; \
		const uint8_t *next[FEW_TILES]; \
		for (; t + 16 * LOT <= end; t += 16 * LOT) { \
			for (uint32_t i = 0; i < LOT; i++) { \
				const uint32_t k = t + 16 * (LOT + i); \
				next[i] = k < end ? tile_at(j, k, 0) : \
						    tile_at(j, t + 16 * i, j->v_offset); \
			} \
			few_scores(j, q, t, next, groups, out + t, KIND, n, LOT); \
		} \
		for (; t < end; t += 16) { \
			next[0] = tile_at(j, t, j->v_offset); \
			few_scores(j, q, t, next, groups, out + t, KIND, n, 1); \
		} \
	} \
	static void few_value_##kind##_##n(const struct attend_job *j, const float *scores, \
					   uint32_t first, uint32_t end, uint32_t groups, float *sum) \
	{ \
		const uint32_t values = j->head / groups; \
		uint32_t v = 0; \
		for (; v % values + 64 <= values && v < j->head; v += 64) \
			few_values(j, scores, first, end, v, groups + v / values, sum + v, KIND, n, 4); \
		for (; v < j->head; v += 32) \
			few_values(j, scores, first, end, v, groups + v / values, sum + v, KIND, n, 2); \
	}
#define FEW_KIND(kind, KIND) \
	FEW(kind, KIND, 1) FEW(kind, KIND, 2) FEW(kind, KIND, 3) FEW(kind, KIND, 4)
#define FEW_NAMES(name, kind) \
	{ NULL, name##_##kind##_1, name##_##kind##_2, name##_##kind##_3, name##_##kind##_4 }
FEW_KIND(fp8, KV_FP8)
FEW_KIND(bf16, KV_BF16)
FEW_KIND(f32, KV_F32)

/* By kind, INT8 apart, and number of queries. */
static few_score_function *const few_score[4][FEW_QUERIES + 1] = {
	[KV_FP8] = FEW_NAMES(few_score, fp8), [KV_BF16] = FEW_NAMES(few_score, bf16),
	[KV_F32] = FEW_NAMES(few_score, f32)
};
static few_value_function *const few_value[4][FEW_QUERIES + 1] = {
	[KV_FP8] = FEW_NAMES(few_value, fp8), [KV_BF16] = FEW_NAMES(few_value, bf16),
	[KV_F32] = FEW_NAMES(few_value, f32)
};

#endif
