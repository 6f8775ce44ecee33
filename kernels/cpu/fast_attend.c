/*
 * Attention of one partition for one KV head. K and V are decoded to f32 in chunks of 64 tokens
 * that stay in the first-level cache and serve up to QUERIES query vectors; there is one form for
 * decoding and for prefill. What a query gets depends on nothing but its own range:
 *  score: one sum over the values in ascending order (per group of a scale, times the scale);
 *  sum of weights: 16 lanes by position modulo 16, then the tree of the f32 dot;
 *  values: one sum over the query's positions in ascending order, none outside its range touched.
 * With AVX-512 INT8 is summed in pairs instead (cpu.h, fast_pairs.h), many rows by AMX where it is.
 */
#include <math.h>
#include <string.h>

#ifdef FAST_AVX512
#include "kernels/cpu/fast_amx_attend.h"
#endif
#include "kernels/cpu/fast_pages.h"

enum { QUERIES = 96 }; /* query vectors that share a decoded chunk, or one row's if more */

#define EACH_QUERY(X) X(0) X(1) X(2) X(3)

/* Of 16 tokens, of 16 values: registers at once per query. */
#ifdef FAST_AVX512
enum { TILES = 4, VECTORS = 4 };
#define AT_ONCE(queries, most) (most)
#define EACH_OF(X, i) X(i, 0) X(i, 1) X(i, 2) X(i, 3)
#else
/* Two with up to three queries: twelve sums hide the latency that six do not. */
enum { TILES = 2, VECTORS = 2 };
#define AT_ONCE(queries, most) ((queries) < 4 ? (most) : 1)
#define EACH_OF(X, i) X(i, 0) X(i, 1)
#endif

/* A block of query rows at work: what lies where in the scratch. */
struct work {
	const struct attend_job *job;
	uint32_t row, rows;       /* of the job's rows */
	uint32_t low, high;       /* positions that any of them sees */
	uint32_t groups, values;  /* of a scale */
	int pairs, tiles;         /* sums in pairs of bf16; by AMX, if it pays */
	const float *q;           /* of the block's first row: the job's, or rounded */
	size_t q_row_stride;
	float *rounded;
	float *tokens;            /* K or V of a chunk */
	float *scales;            /* [group][CHUNK_TOKENS] */
	float *weights;           /* [4][CHUNK_TOKENS]: weights times V's scale */
	float *scores;            /* [row][head][OPS_PARTITION] */
	float *sums;              /* [row][head][head values], in the order of page_value */
};

/* A head of 16, 48 or 80 values: of V its last 16 are half a load. It is decoded from a copy with nothing
   behind it, and fills one register a token, values 0-3 and 8-11 before the others. */
#define TAIL_DECODER(kind, size) \
	static void v_tail_##kind(const uint8_t *p, uint32_t head, float *v) \
	{ \
		_Alignas(64) uint8_t last[64 * (size)] = { 0 }; \
		for (uint32_t t = 0; t < 16; t += 2, p += 32 * (size), v += head + 16) { \
			struct quad q; \
			for (uint32_t i = 32; i < head; i += 32, p += 64 * (size), v += 32) { \
				q = quad_##kind(p); \
				v16_store(v, q.x[0]); \
				v16_store(v + head, q.x[1]); \
				v16_store(v + 16, q.x[2]); \
				v16_store(v + head + 16, q.x[3]); \
			} \
			memcpy(last, p, 32 * (size)); \
			q = quad_##kind(last); \
			v16_store(v, v16_lower(q.x[0], q.x[2])); \
			v16_store(v + head, v16_lower(q.x[1], q.x[3])); \
		} \
	}

/* The first eight lanes of both. */
INLINE struct v16 v16_lower(struct v16 x, struct v16 y)
{
#ifdef FAST_AVX512
	return (struct v16){ _mm512_insertf32x8(x.a, _mm512_castps512_ps256(y.a), 1) };
#else
	return (struct v16){ x.a, y.a };
#endif
}

TAIL_DECODER(fp8, 1)
TAIL_DECODER(int8, 1)
TAIL_DECODER(bf16, 2)
TAIL_DECODER(f32, 4)

static tile_decoder *const v_tail_decoders[] = { v_tail_fp8, v_tail_int8, v_tail_bf16, v_tail_f32 };

/* Decodes the chunk at position `at`, as far as it is seen. */
static void chunk_load(const struct work *w, uint32_t at, int is_v)
{
	const struct attend_job *j = w->job;
	const uint32_t size = j->kv == KV_F32 ? 4 : j->kv == KV_BF16 ? 2 : 1;
	const uint32_t end = w->high < at + CHUNK_TOKENS ? w->high : at + CHUNK_TOKENS;
	const int scaled = j->kv == KV_FP8 || j->kv == KV_INT8;

	for (uint32_t t = (w->low > at ? w->low : at) & ~15u; t < end; t += 16) {
		const uint32_t page = t / j->page_tokens, within = t % j->page_tokens;
		const uint8_t *tile = j->pages[page] + (size_t)within * j->head * size;

#ifndef FAST_AVX512
		if (j->rows == 1)
			tile_ask(j, t, size, is_v);
#endif
		if (is_v)
			(j->head % 32 ? v_tail_decoders : v_decoders)[j->kv](tile + j->v_offset, j->head,
									      w->tokens + (t - at) * j->head);
		else
			k_decoders[j->kv](tile, j->head, w->tokens + (t - at));
		for (uint32_t g = 0; g < w->groups; g++) {
			struct v16 s = v16_set(1.0f);

			if (scaled)
				s = page_scales(j->kv, j->scales[page] + within +
							       (g + (is_v ? w->groups : 0)) * j->page_tokens);
			v16_store(w->scales + g * CHUNK_TOKENS + (t - at), s);
		}
	}
}

#define SCORE_ZERO(i, j) \
	if ((i) < queries && (j) < tiles) \
		acc[i][j] = v16_set(0.0f);
#define SCORE_K(i, j) \
	if ((j) < tiles) \
		x[j] = v16_keep(v16_load(k + 16 * (j)));
#define SCORE_FMA(i, j) \
	if ((i) < queries && (j) < tiles) \
		acc[i][j] = v16_fma(y, x[j], acc[i][j]);
#define SCORE_STEP(i) \
	if ((i) < queries) { \
		const struct v16 y = v16_set(q[i][v]); \
		EACH_OF(SCORE_FMA, i) \
	}
#define SCORE_END(i, j) \
	if ((i) < queries && (j) < tiles) { \
		float *to = out + (i) * OPS_PARTITION + 16 * (j); \
		const struct v16 s = v16_load(scale + 16 * (j)); \
		v16_store(to, g ? v16_fma(acc[i][j], s, v16_load(to)) : v16_mul(acc[i][j], s)); \
	}
#ifdef FAST_AVX512
#define SCORE_SUMS struct v16 acc[4][TILES], x[TILES]
#define SCORE_ALL \
	EACH_OF(SCORE_K, 0) \
	EACH_QUERY(SCORE_STEP)
#else
/* One register of K at a time, or there is no room beside the sums. */
#define SCORE_HALF(part, j) \
	if ((j) < tiles) { \
		const __m256 z = _mm256_loadu_ps(k + 16 * (j) + ((part) ? 8 : 0)); \
		EACH_QUERY(SCORE_HALF_##part##_##j) \
	}
#define SCORE_HALF_OF(i, j, half) \
	if ((i) < queries && (j) < tiles) \
		acc[i][j].half = _mm256_fmadd_ps(_mm256_set1_ps(q[i][v]), z, acc[i][j].half);
#define SCORE_HALF_0_0(i) SCORE_HALF_OF(i, 0, a)
#define SCORE_HALF_1_0(i) SCORE_HALF_OF(i, 0, b)
#define SCORE_HALF_0_1(i) SCORE_HALF_OF(i, 1, a)
#define SCORE_HALF_1_1(i) SCORE_HALF_OF(i, 1, b)
#define SCORE_SUMS struct v16 acc[4][TILES]
#define SCORE_ALL SCORE_HALF(0, 0) SCORE_HALF(1, 0) SCORE_HALF(0, 1) SCORE_HALF(1, 1)
#endif
#define SCORE_ZEROS(i) EACH_OF(SCORE_ZERO, i)
#define SCORE_ENDS(i) EACH_OF(SCORE_END, i)

/* Scores of queries x tiles; q: the queries' values, out: of the first, OPS_PARTITION apart. */
INLINE void score_some(const struct work *w, const float *const q[4], uint32_t first, float *out,
		       const uint32_t queries, const uint32_t tiles)
{
	const float *k = w->tokens + first, *scale = w->scales + first;
	uint32_t v = 0;

	for (uint32_t g = 0; g < w->groups; g++, scale += CHUNK_TOKENS) {
		SCORE_SUMS;

		EACH_QUERY(SCORE_ZEROS)
		for (uint32_t end = v + w->values; v < end; v++, k += CHUNK_TOKENS) {
			SCORE_ALL
		}
		EACH_QUERY(SCORE_ENDS)
	}
}

#define SCORE(n) \
	static void score_##n(const struct work *w, const float *const q[4], uint32_t first, \
			      uint32_t end, float *out) \
	{ \
		enum { SOME = AT_ONCE(n, TILES) }; \
		for (; first + 16 * SOME <= end; first += 16 * SOME, out += 16 * SOME) \
			score_some(w, q, first, out, n, SOME); \
		for (; first < end; first += 16, out += 16) \
			score_some(w, q, first, out, n, 1); \
	}
SCORE(1)
SCORE(2)
SCORE(3)
SCORE(4)

static void scores(const struct work *w)
{
	static void (*const some[])(const struct work *, const float *const *, uint32_t, uint32_t,
				    float *) = { NULL, score_1, score_2, score_3, score_4 };
	const struct attend_job *j = w->job;
	const uint32_t count = w->rows * j->heads;

	for (uint32_t at = w->low & ~(CHUNK_TOKENS - 1u); at < w->high; at += CHUNK_TOKENS) {
		const uint32_t first = w->low > at ? (w->low - at) & ~15u : 0;
		const uint32_t end = w->high - at < CHUNK_TOKENS ? w->high - at : CHUNK_TOKENS;

		chunk_load(w, at, 0);
		for (uint32_t i = 0; i < count; i += 4) {
			const uint32_t n = count - i < 4 ? count - i : 4;
			const float *q[4];

			for (uint32_t u = 0; u < n; u++)
				q[u] = w->q + (i + u) / j->heads * w->q_row_stride +
				       (size_t)((i + u) % j->heads) * j->head;
#ifdef FAST_AVX512
			if (w->pairs) {
				pair_score[n](w->tokens + first, w->scales + first, q, w->groups, w->values,
					      (end - first + 15) & ~15u,
					      w->scores + (size_t)i * OPS_PARTITION + at + first);
				continue;
			}
#endif
			some[n](w, q, first, end, w->scores + (size_t)i * OPS_PARTITION + at + first);
		}
	}
}

/* cap * tanh(x / cap); |x| / cap is held within 9, where tanh is 1 in f32. */
static struct v16 soften(struct v16 x, float cap)
{
	const struct v16 y = v16_max(v16_set(-9.0f), v16_min(v16_set(9.0f), v16_div(x, v16_set(cap))));
	const struct v16 e = v16_exp(v16_add(y, y));

	return v16_mul(v16_set(cap), v16_div(v16_sub(e, v16_set(1.0f)), v16_add(e, v16_set(1.0f))));
}

/* Scores of one query to weights in place; what is out of range within its tiles becomes 0. */
static void weigh(float *s, uint32_t from, uint32_t to, float cap, float *m, float *l)
{
	const uint32_t first = from & ~15u;
	const struct v16 none = v16_set(-INFINITY), zero = v16_set(0.0f);
	struct v16 most = none, sum = zero;

	for (uint32_t t = first; t < to; t += 16) {
		struct v16 x = v16_load(s + t);

		if (cap != 0.0f) {
			x = soften(x, cap);
			v16_store(s + t, x);
		}
		if (t < from || t + 16 > to)
			x = v16_range(x, (int32_t)from - (int32_t)t, (int32_t)(to - t), none);
		most = v16_max(x, most);
	}
	*m = v16_largest(most);
	most = v16_set(*m);
	for (uint32_t t = first; t < to; t += 16) {
		struct v16 x = v16_exp(v16_sub(v16_load(s + t), most));

		if (t < from || t + 16 > to)
			x = v16_range(x, (int32_t)from - (int32_t)t, (int32_t)(to - t), zero);
		v16_store(s + t, x);
		sum = v16_add(sum, x);
	}
	*l = v16_sum(sum);
}

#define VALUE_LOAD(i, j) \
	if ((i) < queries && (j) < vectors) \
		acc[i][j] = v16_load(sum + (i) * head + 16 * (j));
#define VALUE_V(i, j) \
	if ((j) < vectors) \
		x[j] = v16_keep(v16_load(v + 16 * (j)));
#define VALUE_FMA(i, j) \
	if ((i) < queries && (j) < vectors) \
		acc[i][j] = v16_fma(y, x[j], acc[i][j]);
#define VALUE_STEP(i) \
	if ((i) < queries) { \
		const struct v16 y = v16_set(p[(i) * CHUNK_TOKENS + t]); \
		EACH_OF(VALUE_FMA, i) \
	}
#define VALUE_STORE(i, j) \
	if ((i) < queries && (j) < vectors) \
		v16_store(sum + (i) * head + 16 * (j), acc[i][j]);
#ifdef FAST_AVX512
#define VALUE_SUMS struct v16 acc[4][VECTORS], x[VECTORS]
#define VALUE_ALL \
	EACH_OF(VALUE_V, 0) \
	EACH_QUERY(VALUE_STEP)
#else
#define VALUE_HALF(part, j) \
	if ((j) < vectors) { \
		const __m256 z = _mm256_loadu_ps(v + 16 * (j) + ((part) ? 8 : 0)); \
		EACH_QUERY(VALUE_HALF_##part##_##j) \
	}
#define VALUE_HALF_OF(i, j, half) \
	if ((i) < queries && (j) < vectors) \
		acc[i][j].half = _mm256_fmadd_ps(_mm256_set1_ps(p[(i) * CHUNK_TOKENS + t]), z, acc[i][j].half);
#define VALUE_HALF_0_0(i) VALUE_HALF_OF(i, 0, a)
#define VALUE_HALF_1_0(i) VALUE_HALF_OF(i, 0, b)
#define VALUE_HALF_0_1(i) VALUE_HALF_OF(i, 1, a)
#define VALUE_HALF_1_1(i) VALUE_HALF_OF(i, 1, b)
#define VALUE_SUMS struct v16 acc[4][VECTORS]
#define VALUE_ALL VALUE_HALF(0, 0) VALUE_HALF(1, 0) VALUE_HALF(0, 1) VALUE_HALF(1, 1)
#endif
#define VALUE_LOADS(i) EACH_OF(VALUE_LOAD, i)
#define VALUE_STORES(i) EACH_OF(VALUE_STORE, i)

/* Adds tokens [t, end) of the chunk to `vectors` registers of the sums of `queries` heads. */
INLINE void values_some(const float *v, const float *p, uint32_t t, uint32_t end, uint32_t head,
			float *sum, const uint32_t queries, const uint32_t vectors)
{
	VALUE_SUMS;

	EACH_QUERY(VALUE_LOADS)
	for (v += (size_t)t * head; t < end; t++, v += head) {
		VALUE_ALL
	}
	EACH_QUERY(VALUE_STORES)
}

#define VALUES(n) \
	static void values_##n(const float *v, const float *p, uint32_t t, uint32_t end, \
			       uint32_t head, uint32_t count, float *sum) \
	{ \
		enum { SOME = AT_ONCE(n, VECTORS) }; \
		uint32_t i = 0; \
		for (; i + 16 * SOME <= count; i += 16 * SOME) \
			values_some(v + i, p, t, end, head, sum + i, n, SOME); \
		for (; i < count; i += 16) \
			values_some(v + i, p, t, end, head, sum + i, n, 1); \
	}
VALUES(1)
VALUES(2)
VALUES(3)
VALUES(4)

/* One row's heads, tokens [t, end) of the chunk at position `at`. */
static void values_row(const struct work *w, uint32_t row, uint32_t at, uint32_t t, uint32_t end)
{
	static void (*const some[])(const float *, const float *, uint32_t, uint32_t, uint32_t,
				    uint32_t, float *) = { NULL, values_1, values_2, values_3, values_4 };
	const struct attend_job *j = w->job;

	for (uint32_t h = 0; h < j->heads; h += 4) {
		const uint32_t n = j->heads - h < 4 ? j->heads - h : 4;
		const float *s = w->scores + (size_t)(row * j->heads + h) * OPS_PARTITION + at;
		float *sum = w->sums + (size_t)(row * j->heads + h) * j->head;

		for (uint32_t g = 0; g < w->groups; g++) {
			for (uint32_t i = 0; i < n; i++)
				for (uint32_t u = t & ~15u; u < end; u += 16) {
					struct v16 x = v16_mul(v16_load(s + i * OPS_PARTITION + u),
							       v16_load(w->scales + g * CHUNK_TOKENS + u));
#ifdef FAST_AVX512
					if (w->pairs)
						x = v16_rounded(x);
#endif
					v16_store(w->weights + i * CHUNK_TOKENS + u, x);
				}
#ifdef FAST_AVX512
			if (w->pairs) {
				pair_value[n](w->tokens + g * w->values, w->weights, t, end, j->head, w->values,
					      sum + g * w->values);
				continue;
			}
#endif
			some[n](w->tokens + g * w->values, w->weights, t, end, j->head, w->values,
				sum + g * w->values);
		}
	}
}

static void values(const struct work *w)
{
	const struct attend_job *j = w->job;

	memset(w->sums, 0, sizeof(float) * w->rows * j->heads * j->head);
	for (uint32_t at = w->low & ~(CHUNK_TOKENS - 1u); at < w->high; at += CHUNK_TOKENS) {
		chunk_load(w, at, 1);
		for (uint32_t r = 0; r < w->rows; r++) {
			const uint32_t from = j->from[w->row + r], to = j->to[w->row + r];
			const uint32_t first = from > at ? from : at;
			const uint32_t end = to < at + CHUNK_TOKENS ? to : at + CHUNK_TOKENS;

			if (first < end)
				values_row(w, r, at, first - at, end - at);
		}
	}
}

#ifdef FAST_AVX512
/* Whether one row takes the way of fast_few.h: its values where those of a scale make whole registers there,
   its scores also where they do not, but for INT8, of which that file has no sums in f32. */
static int is_few(const struct work *w, int is_v)
{
	return w->rows == 1 && w->job->heads <= FEW_HEADS &&
	       (w->values % 32 == 0 || (!is_v && w->job->kv != KV_INT8));
}

static void few_scores_all(const struct work *w)
{
	const struct attend_job *j = w->job;

	for (uint32_t h = 0; h < j->heads; h += FEW_QUERIES) {
		const uint32_t n = j->heads - h < FEW_QUERIES ? j->heads - h : FEW_QUERIES;
		const float *q[FEW_QUERIES];

		for (uint32_t u = 0; u < n; u++)
			q[u] = w->q + (size_t)(h + u) * j->head;
		(w->pairs ? few_pair_score[n] : few_score[j->kv][n])(
			j, q, w->low & ~15u, w->high, w->groups, w->scores + (size_t)h * OPS_PARTITION);
	}
}

/* Tokens [first, end) of one tile, of which others are not seen. */
static void few_part(const struct work *w, uint32_t first, uint32_t end)
{
	const uint32_t at = first & ~(CHUNK_TOKENS - 1u);
	struct work part = *w;

	part.low = first;
	part.high = end;
	chunk_load(&part, at, 1);
	values_row(&part, 0, at, first - at, end - at);
}

static void few_values_all(const struct work *w)
{
	const struct attend_job *j = w->job;
	const uint32_t end = w->high & ~15u;
	uint32_t first = w->low;

	memset(w->sums, 0, sizeof(float) * j->heads * j->head);
	for (uint32_t h = 0; w->pairs && h < j->heads; h += FEW_QUERIES)
		few_pair_value[j->heads - h < FEW_QUERIES ? j->heads - h : FEW_QUERIES](
			j, w->scores + (size_t)h * OPS_PARTITION, first, w->high, w->groups,
			w->sums + (size_t)h * j->head);
	if (w->pairs)
		return;
	if (first % 16) {
		const uint32_t next = (first + 15) & ~15u;

		few_part(w, first, next < w->high ? next : w->high);
		first = next;
	}
	for (uint32_t h = 0; first < end && h < j->heads; h += FEW_QUERIES)
		few_value[j->kv][j->heads - h < FEW_QUERIES ? j->heads - h : FEW_QUERIES](
			j, w->scores + (size_t)h * OPS_PARTITION, first, end, w->groups,
			w->sums + (size_t)h * j->head);
	if (first < w->high && end < w->high)
		few_part(w, end, w->high);
}
#endif

static void work_scores(const struct work *w)
{
#ifdef FAST_AVX512
	if (is_few(w, 0)) {
		few_scores_all(w);
		return;
	}
#endif
	scores(w);
}

static void work_values(const struct work *w)
{
#ifdef FAST_AVX512
	if (is_few(w, 1)) {
		few_values_all(w);
		return;
	}
#endif
	values(w);
}

/* Scores to weights, and each query's maximum and sum. */
static void work_weigh(const struct work *w)
{
	const struct attend_job *j = w->job;

	for (uint32_t i = 0; i < w->rows * j->heads; i++) {
		const uint32_t row = w->row + i / j->heads, at = w->row * j->heads + i;

		j->m[at] = -INFINITY;
		j->l[at] = 0.0f;
		if (j->from[row] < j->to[row])
			weigh(w->scores + (size_t)i * OPS_PARTITION, j->from[row], j->to[row], j->softcap,
			      &j->m[at], &j->l[at]);
	}
}

static void work_out(const struct work *w)
{
	const struct attend_job *j = w->job;

	for (uint32_t i = 0; i < w->rows * j->heads; i++) {
		const float *sum = w->sums + (size_t)i * j->head;
		float *o = j->o + ((size_t)w->row * j->heads + i) * j->head;

		uint32_t v = 0;

		for (; v + 32 <= j->head; v += 32) {
#ifdef FAST_AVX512
			/* In both registers four lanes are four values, of every other four. */
			const __m512 a = _mm512_loadu_ps(sum + v), b = _mm512_loadu_ps(sum + v + 16);
			const __m512 x = _mm512_shuffle_f32x4(a, b, 0x44), y = _mm512_shuffle_f32x4(a, b, 0xee);

			_mm512_storeu_ps(o + v, _mm512_shuffle_f32x4(x, x, 0xd8));
			_mm512_storeu_ps(o + v + 16, _mm512_shuffle_f32x4(y, y, 0xd8));
#else
			for (uint32_t k = v; k < v + 32; k += 4)
				_mm_storeu_ps(o + page_value(k / 16, k % 16), _mm_loadu_ps(sum + k));
#endif
		}
		for (uint32_t k = 0; v < j->head && k < 16; k += 4) /* values 0-3, 8-11, 4-7 and 12-15 */
			_mm_storeu_ps(o + v + (k * 2 % 16 + k / 8 * 4), _mm_loadu_ps(sum + v + k));
	}
}

#ifdef FAST_AVX512
/* The block's queries, rounded. */
static void queries_round(struct work *w)
{
	const struct attend_job *j = w->job;
	const uint32_t n = j->heads * j->head;

	for (uint32_t r = 0; r < w->rows; r++)
		for (uint32_t i = 0; i < n; i += 16)
			v16_store(w->rounded + (size_t)r * n + i,
				  v16_rounded(v16_load(w->q + r * w->q_row_stride + i)));
	w->q = w->rounded;
	w->q_row_stride = n;
}

/* The block by AMX. */
static void block_tiles(const struct work *w)
{
	const struct attend_job *j = w->job;
	struct work rows = *w;
	/* The scratch of the way on registers is free: only the rounded queries are kept. */
	struct amx_work a = { .job = j, .row = w->row, .count = w->rows * j->heads,
			      .low = w->low, .high = w->high, .groups = w->groups, .values = w->values, .q = w->q };

	amx_work_place(&a, w->tokens);
	amx_attend_configure();
	amx_scores(&a);
	rows.scores = a.scores;
	rows.sums = a.sums;
	work_weigh(&rows);
	amx_values(&a);
	AMX_RELEASE();
	work_out(&rows);
}
#endif

static void block(struct work *w)
{
	const struct attend_job *j = w->job;

	w->low = UINT32_MAX;
	w->high = 0;
	for (uint32_t r = w->row; r < w->row + w->rows; r++) {
		if (j->from[r] < j->to[r]) {
			w->low = j->from[r] < w->low ? j->from[r] : w->low;
			w->high = j->to[r] > w->high ? j->to[r] : w->high;
		}
	}
	w->q = j->q + w->row * j->q_row_stride;
	w->q_row_stride = j->q_row_stride;
#ifdef FAST_AVX512
	if (w->pairs)
		queries_round(w);
	if (w->tiles && w->rows > 1 && w->high) {
		block_tiles(w);
		return;
	}
#endif
	if (w->high)
		work_scores(w);
	work_weigh(w);
	if (w->high)
		work_values(w);
	else
		memset(w->sums, 0, sizeof(float) * w->rows * j->heads * j->head);
	work_out(w);
}

INLINE void attend_with(const struct attend_job *j, const int tiles)
{
	const int scaled = j->kv == KV_FP8 || j->kv == KV_INT8;
	const uint32_t fit = j->heads < QUERIES ? QUERIES / j->heads : 1;
	const uint32_t block_rows = fit < j->rows ? fit : j->rows;
	const uint32_t groups = scaled ? kv_group_count(j->head) : 1;
	struct work w = { .job = j, .groups = groups, .values = j->head / groups };

#ifdef FAST_AVX512
	w.pairs = j->kv == KV_INT8 && j->head % 32 == 0;
	w.tiles = tiles && w.pairs;
#else
	(void)tiles;
#endif
	w.rounded = j->scratch;
	w.tokens = w.rounded + (w.pairs ? (size_t)block_rows * j->heads * j->head : 0);
	w.scales = w.tokens + (size_t)CHUNK_TOKENS * j->head;
	w.weights = w.scales + CHUNK_TOKENS * groups;
	w.scores = w.weights + 4 * CHUNK_TOKENS;
	w.sums = w.scores + (size_t)block_rows * j->heads * OPS_PARTITION;
	for (; w.row < j->rows; w.row += block_rows) {
		w.rows = j->rows - w.row < block_rows ? j->rows - w.row : block_rows;
		block(&w);
	}
}

static void attend(const struct attend_job *j)
{
	attend_with(j, 0);
}

#ifdef FAST_AVX512
static void attend_tiles(const struct attend_job *j)
{
	attend_with(j, 1);
}

void fast_amx_attend_init(struct leaf *leaf)
{
	leaf->attend = attend_tiles;
}
#endif

void FAST(fast_attend_init)(struct leaf *leaf)
{
	leaf->attend = attend;
}
