/*
 * Attention over INT8 pages in pairs of bf16 (cpu.h), on registers: of each 32 values of the head, or 32
 * positions, those with an even place and those with an odd one are summed apart, then both are added.
 * First the sums of many rows over a decoded chunk, then those of one row that takes K and V from the
 * page, as fast_few.h has it for the other kinds. Queries and weights come rounded.
 */
#ifndef HOLDFAST_KERNELS_CPU_FAST_PAIRS_H
#define HOLDFAST_KERNELS_CPU_FAST_PAIRS_H

#include "kernels/cpu/fast_few.h"

enum { PAIR_BLOCK = 32 };

INLINE struct v16 v16_rounded(struct v16 x)
{
	return n16_float(n16_left(v16_to_bf16(x), 16));
}

/* ---- a decoded chunk ---- */

#define PAIR_ZERO(i, j) \
	if ((i) < queries && (j) < tiles) \
		acc[i][j] = v16_set(0.0f);
#define PAIR_START(i, j) \
	if ((i) < queries && (j) < tiles) \
		even[i][j] = odd[i][j] = v16_set(0.0f);
#define PAIR_FMA(i, j) \
	if ((i) < queries && (j) < tiles) { \
		even[i][j] = v16_fma(v16_set(q[i][v]), x[j], even[i][j]); \
		odd[i][j] = v16_fma(v16_set(q[i][v + 1]), y[j], odd[i][j]); \
	}
#define PAIR_END(i, j) \
	if ((i) < queries && (j) < tiles) \
		acc[i][j] = v16_add(acc[i][j], v16_add(even[i][j], odd[i][j]));
#define PAIR_OUT(i, j) \
	if ((i) < queries && (j) < tiles) { \
		float *to = out + (i) * OPS_PARTITION + 16 * (j); \
		const struct v16 s = v16_load(scale + 16 * (j)); \
		v16_store(to, g ? v16_fma(acc[i][j], s, v16_load(to)) : v16_mul(acc[i][j], s)); \
	}
#define PAIR_K(j) \
	if ((j) < tiles) { \
		x[j] = v16_keep(v16_load(k + 16 * (j))); \
		y[j] = v16_keep(v16_load(k + CHUNK_TOKENS + 16 * (j))); \
	}
#define PAIR_TWO(X, i) X(i, 0) X(i, 1)
#define PAIR_ALL(X) PAIR_TWO(X, 0) PAIR_TWO(X, 1) PAIR_TWO(X, 2) PAIR_TWO(X, 3)

/* Scores of queries x tiles of 16 tokens. k: values of the first, CHUNK_TOKENS apart; scale: of the first
   group; out: of the first query, OPS_PARTITION apart. */
INLINE void pair_scores(const float *k, const float *scale, const float *const q[4], uint32_t groups,
			uint32_t values, float *out, const uint32_t queries, const uint32_t tiles)
{
	uint32_t v = 0;

	for (uint32_t g = 0; g < groups; g++, scale += CHUNK_TOKENS) {
		struct v16 acc[4][2], even[4][2], odd[4][2], x[2], y[2];

		PAIR_ALL(PAIR_ZERO)
		for (const uint32_t end = v + values; v < end;) {
			PAIR_ALL(PAIR_START)
			for (const uint32_t stop = v + PAIR_BLOCK; v < stop; v += 2, k += 2 * CHUNK_TOKENS) {
				PAIR_K(0)
				PAIR_K(1)
				PAIR_ALL(PAIR_FMA)
			}
			PAIR_ALL(PAIR_END)
		}
		PAIR_ALL(PAIR_OUT)
	}
}

#define PAIR_SCORE(n) \
	static void pair_scores_##n(const float *k, const float *scale, const float *const q[4], \
				    uint32_t groups, uint32_t values, uint32_t count, float *out) \
	{ \
		for (; count >= 32; count -= 32, k += 32, scale += 32, out += 32) \
			pair_scores(k, scale, q, groups, values, out, n, 2); \
		if (count) \
			pair_scores(k, scale, q, groups, values, out, n, 1); \
	}
PAIR_SCORE(1)
PAIR_SCORE(2)
PAIR_SCORE(3)
PAIR_SCORE(4)

/* By queries; count: tokens, a multiple of 16. */
typedef void pair_score_function(const float *k, const float *scale, const float *const q[4], uint32_t groups,
				 uint32_t values, uint32_t count, float *out);
static pair_score_function *const pair_score[] = { NULL, pair_scores_1, pair_scores_2, pair_scores_3,
						   pair_scores_4 };

#define PAIR_SUM_START(i, r) \
	if ((i) < queries && (r) < registers) \
		even[i][r] = odd[i][r] = v16_set(0.0f);
#define PAIR_SUM_END(i, r) \
	if ((i) < queries && (r) < registers) { \
		float *to = sum + (i) * head + 16 * (r); \
		v16_store(to, v16_add(v16_load(to), v16_add(even[i][r], odd[i][r]))); \
	}
#define PAIR_EVEN(i, r) \
	if ((i) < queries && (r) < registers) \
		even[i][r] = v16_fma(v16_set(p[(i) * CHUNK_TOKENS + t]), x[r], even[i][r]);
#define PAIR_ODD(i, r) \
	if ((i) < queries && (r) < registers) \
		odd[i][r] = v16_fma(v16_set(p[(i) * CHUNK_TOKENS + t]), x[r], odd[i][r]);
#define PAIR_V(r) \
	if ((r) < registers) \
		x[r] = v16_keep(v16_load(from + 16 * (r)));
#define PAIR_SUMS(X) EACH_FEW(X, 0) EACH_FEW(X, 1) EACH_FEW(X, 2) EACH_FEW(X, 3)
#define PAIR_TOKEN(X) \
	do { \
		const float *from = v + (size_t)t * head; \
		struct v16 x[4]; \
		EACH_TILE(PAIR_V) \
		PAIR_SUMS(X) \
	} while (0)

/* Adds tokens [t, end) of the chunk, all of one block of positions, to 16 * registers sums. */
INLINE void pair_values(const float *v, const float *p, uint32_t t, uint32_t end, uint32_t head, float *sum,
			const uint32_t queries, const uint32_t registers)
{
	struct v16 even[4][4], odd[4][4];

	PAIR_SUMS(PAIR_SUM_START)
	if (t % 2) {
		PAIR_TOKEN(PAIR_ODD);
		t++;
	}
	for (; t + 1 < end; t++) {
		PAIR_TOKEN(PAIR_EVEN);
		t++;
		PAIR_TOKEN(PAIR_ODD);
	}
	if (t < end)
		PAIR_TOKEN(PAIR_EVEN);
	PAIR_SUMS(PAIR_SUM_END)
}

#define PAIR_VALUE(n) \
	static void pair_values_##n(const float *v, const float *p, uint32_t t, uint32_t end, uint32_t head, \
				    uint32_t count, float *sum) \
	{ \
		enum { REGISTERS = (n) < 4 ? 4 : 2 }; \
		for (uint32_t stop; t < end; t = stop) { \
			uint32_t i = 0; \
			stop = (t / PAIR_BLOCK + 1) * PAIR_BLOCK < end ? (t / PAIR_BLOCK + 1) * PAIR_BLOCK : end; \
			for (; i + 16 * REGISTERS <= count; i += 16 * REGISTERS) \
				pair_values(v + i, p, t, stop, head, sum + i, n, REGISTERS); \
			for (; i < count; i += 32) \
				pair_values(v + i, p, t, stop, head, sum + i, n, 2); \
		} \
	}
PAIR_VALUE(1)
PAIR_VALUE(2)
PAIR_VALUE(3)
PAIR_VALUE(4)

/* By queries; tokens [t, end) of the chunk, p CHUNK_TOKENS apart, count values (a multiple of 32). */
typedef void pair_value_function(const float *v, const float *p, uint32_t t, uint32_t end, uint32_t head,
				 uint32_t count, float *sum);
static pair_value_function *const pair_value[] = { NULL, pair_values_1, pair_values_2, pair_values_3,
						   pair_values_4 };

/* ---- one row, from the page ---- */

#define FEW_PAIR_START(n, i) even[n][i] = odd[n][i] = v16_set(0.0f);
#define FEW_PAIR_STARTS(n) EACH_FEW(FEW_PAIR_START, n)
#define FEW_PAIR(n, i) \
	if ((i) < queries) { \
		even[n][i] = v16_fma(v16_set(q[i][v]), x.x[0], even[n][i]); \
		odd[n][i] = v16_fma(v16_set(q[i][v + 1]), x.x[1], odd[n][i]); \
		even[n][i] = v16_fma(v16_set(q[i][v + 2]), x.x[2], even[n][i]); \
		odd[n][i] = v16_fma(v16_set(q[i][v + 3]), x.x[3], odd[n][i]); \
	}
#define FEW_PAIRS(n) \
	if ((n) < tiles) { \
		const struct quad x = quad_int8(p[n] + v * 16); \
		_mm_prefetch((const char *)next[n] + v * 16, _MM_HINT_T0); \
		_mm_prefetch((const char *)far[n] + v * 16, _MM_HINT_T1); \
		EACH_FEW(FEW_PAIR, n) \
	}
#define FEW_PAIR_END(n, i) acc[n][i] = v16_add(acc[n][i], v16_add(even[n][i], odd[n][i]));
#define FEW_PAIR_ENDS(n) \
	if ((n) < tiles) { \
		EACH_FEW(FEW_PAIR_END, n) \
	}

/* Scores of `queries` queries and `tiles` tiles from token t; next: tiles to fetch. */
INLINE void few_pair_scores(const struct attend_job *j, const float *const q[4], uint32_t t,
			    const uint8_t *const next[FEW_TILES], uint32_t groups, float *out,
			    const uint32_t queries, const uint32_t tiles)
{
	const enum kv_kind kv = KV_INT8;
	const uint32_t values = j->head / groups;
	const uint8_t *p[FEW_TILES], *far[FEW_TILES];
	uint32_t v = 0;

	EACH_TILE(FEW_TILE)
	for (uint32_t g = 0; g < groups; g++) {
		struct v16 acc[FEW_TILES][4], even[FEW_TILES][4], odd[FEW_TILES][4];

		EACH_TILE(FEW_ZEROS)
		for (const uint32_t end = v + values; v < end;) {
			EACH_TILE(FEW_PAIR_STARTS)
			for (const uint32_t stop = v + PAIR_BLOCK; v < stop; v += 4) {
				EACH_TILE(FEW_PAIRS)
			}
			EACH_TILE(FEW_PAIR_ENDS)
		}
		EACH_TILE(FEW_OUTS)
	}
}

#define FEW_PAIR_WEIGHT(i) \
	if ((i) < queries) \
		v16_store(w[i], v16_rounded(v16_mul(v16_load(scores + (i) * OPS_PARTITION + at), s)));
#define FEW_EVEN(r, i) \
	if ((i) < queries) { \
		const struct v16 y = v16_set(w[i][t]); \
		even[i][r] = v16_fma(y, x.x[0], even[i][r]); \
		even[i][r + 1] = v16_fma(y, x.x[2], even[i][r + 1]); \
	}
#define FEW_ODD(r, i) \
	if ((i) < queries) { \
		const struct v16 y = v16_set(w[i][t + 1]); \
		odd[i][r] = v16_fma(y, x.x[1], odd[i][r]); \
		odd[i][r + 1] = v16_fma(y, x.x[3], odd[i][r + 1]); \
	}
#define FEW_PAIR_VALUES(r) \
	if ((r) < registers) { \
		const struct quad x = quad_int8(p + 32 * (r)); \
		_mm_prefetch((const char *)next + 32 * (r), _MM_HINT_T0); \
		_mm_prefetch((const char *)far + 32 * (r), _MM_HINT_T1); \
		if (whole || at + t >= first) { \
			EACH_FEW(FEW_EVEN, r) \
		} \
		if (whole || (at + t + 1 >= first && at + t + 1 < end)) { \
			EACH_FEW(FEW_ODD, r) \
		} \
	}

/* One tile of tokens at `at`, of which only those in [first, end) are seen. */
#define FEW_PAIR_TILE(is_whole) \
	do { \
		const int whole = (is_whole); \
		for (uint32_t t = 0; t < 16; t += 2, p += 2 * head, next += 2 * head, far += 2 * head) { \
			if (!whole && (at + t + 1 < first || at + t >= end)) \
				continue; \
			FEW_PAIR_VALUES(0) \
			FEW_PAIR_VALUES(2) \
		} \
	} while (0)

/* Adds tokens [first, end) of the partition to 16 * `registers` sums of `queries` heads from value
   `value`, whose scale is the page's group `scale`; scores: of the partition's first token. */
INLINE void few_pair_values(const struct attend_job *j, const float *scores, uint32_t first, uint32_t end,
			    uint32_t value, uint32_t scale, float *sum, const uint32_t queries,
			    const uint32_t registers)
{
	const uint32_t head = j->head;

	for (uint32_t at = first & ~15u; at < end;) {
		struct v16 even[4][4], odd[4][4];

		PAIR_SUMS(PAIR_SUM_START)
		for (const uint32_t stop = (at / PAIR_BLOCK + 1) * PAIR_BLOCK; at < stop && at < end; at += 16) {
			const uint8_t *p = tile_at(j, at, j->v_offset) + (size_t)value * 2;
			const uint8_t *next = at + 16 < end ?
						      tile_at(j, at + 16, j->v_offset) + (size_t)value * 2 : p;
			const uint8_t *far = tile_ahead_of(j, at, j->v_offset) + (size_t)value * 2;
			const struct v16 s = tile_scales(j, KV_INT8, at, scale);
			_Alignas(64) float w[4][16];

			EACH_TILE(FEW_PAIR_WEIGHT)
			if (at >= first && at + 16 <= end)
				FEW_PAIR_TILE(1);
			else
				FEW_PAIR_TILE(0);
		}
		PAIR_SUMS(PAIR_SUM_END)
	}
}

/* As fast_few.h has them; the values' tokens [first, end) need not be whole tiles. */
#define FEW_PAIR_BOTH(n) \
	static void few_pair_score_##n(const struct attend_job *j, const float *const q[4], uint32_t t, \
				       uint32_t end, uint32_t groups, float *out) \
	{ \
		enum { LOT = (n) < 3 ? FEW_TILES : FEW_TILES / 2 }; \
		const uint8_t *next[FEW_TILES]; \
		for (; t + 16 * LOT <= end; t += 16 * LOT) { \
			for (uint32_t i = 0; i < LOT; i++) { \
				const uint32_t k = t + 16 * (LOT + i); \
				next[i] = k < end ? tile_at(j, k, 0) : tile_at(j, t + 16 * i, j->v_offset); \
			} \
			few_pair_scores(j, q, t, next, groups, out + t, n, LOT); \
		} \
		for (; t < end; t += 16) { \
			next[0] = tile_at(j, t, j->v_offset); \
			few_pair_scores(j, q, t, next, groups, out + t, n, 1); \
		} \
	} \
	static void few_pair_value_##n(const struct attend_job *j, const float *scores, uint32_t first, \
				       uint32_t end, uint32_t groups, float *sum) \
	{ \
		enum { REGISTERS = (n) < 4 ? 4 : 2 }; \
		const uint32_t values = j->head / groups; \
		uint32_t v = 0; \
		for (; v % values + 16 * REGISTERS <= values && v < j->head; v += 16 * REGISTERS) \
			few_pair_values(j, scores, first, end, v, groups + v / values, sum + v, n, REGISTERS); \
		for (; v < j->head; v += 32) \
			few_pair_values(j, scores, first, end, v, groups + v / values, sum + v, n, 2); \
	}
FEW_PAIR_BOTH(1)
FEW_PAIR_BOTH(2)
FEW_PAIR_BOTH(3)
FEW_PAIR_BOTH(4)

static few_score_function *const few_pair_score[] = {
	NULL, few_pair_score_1, few_pair_score_2, few_pair_score_3, few_pair_score_4
};
static few_value_function *const few_pair_value[] = {
	NULL, few_pair_value_1, few_pair_value_2, few_pair_value_3, few_pair_value_4
};

#endif
