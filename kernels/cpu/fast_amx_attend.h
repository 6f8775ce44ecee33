/*
 * Attention over INT8 pages with AMX, for the rows of a prompt: K and V of the partition become bf16 in the
 * order in which a tile takes them, queries and weights rows of bf16. The sums are those of fast_pairs.h to
 * the bit (cpu.h), so a row that comes alone may take that.
 */
#ifndef HOLDFAST_KERNELS_CPU_FAST_AMX_ATTEND_H
#define HOLDFAST_KERNELS_CPU_FAST_AMX_ATTEND_H

#include "kernels/cpu/fast_amx.h"
#include "kernels/cpu/fast_pairs.h"

enum {
	TILE_BYTES = 1024 /* 16 lines of 64 bytes */
};

/* What a block of query rows needs. Padded to whole tiles of queries. */
struct amx_work {
	const struct attend_job *job;
	uint32_t row;                 /* the block's first, of the job's */
	uint32_t count, padded;       /* query vectors */
	uint32_t low, high;           /* positions that any row sees */
	uint32_t groups, values;      /* of a scale */
	const float *q;               /* [count][head], rounded */
	float *scores;                /* [padded][OPS_PARTITION] */
	float *sums;                  /* [padded][head], in the order of page_value */
	float *tiles;                 /* 4 of 16 x 16 */
	float *scales;                /* [OPS_PARTITION], V's of a group */
	uint16_t *queries, *weights;  /* [padded][head], [padded][OPS_PARTITION] */
	uint8_t *kv;                  /* tiles of the partition: 32 values x 16 positions, or the other way */
};

/* Lays all that into the scratch, of which leaf_scratch_floats gives enough for as many queries. */
INLINE void amx_work_place(struct amx_work *w, float *scratch)
{
	const uint32_t head = w->job->head;
	float *at = (float *)(((uintptr_t)scratch + 63) & ~(uintptr_t)63);

	w->padded = (w->count + AMX_TILE - 1) / AMX_TILE * AMX_TILE;
	w->tiles = at;
	w->scales = at += 4 * TILE_BYTES / sizeof *at;
	w->scores = at += OPS_PARTITION;
	w->sums = at += (size_t)w->padded * OPS_PARTITION;
	at += (size_t)w->padded * head;
	w->queries = (uint16_t *)(void *)at;
	w->weights = w->queries + (size_t)w->padded * head;
	w->kv = (uint8_t *)(w->weights + (size_t)w->padded * OPS_PARTITION);
}

/* All tiles whole: sums in 0 .. 3, queries or weights in 4, K or V in 5 to 7. */
INLINE void amx_attend_configure(void)
{
	struct amx_config c = { .palette = 1 };

	for (int i = 0; i < 8; i++) {
		c.rows[i] = AMX_TILE;
		c.bytes[i] = 64;
	}
	__asm__ volatile("ldtilecfg %0" ::"m"(c));
}

/* The bf16 of 0 .. 127: low and high bytes. */
static const _Alignas(64) uint8_t int8_low[128] = {
	0x00, 0x80, 0x00, 0x40, 0x80, 0xa0, 0xc0, 0xe0, 0x00, 0x10, 0x20, 0x30, 0x40, 0x50, 0x60, 0x70,
	0x80, 0x88, 0x90, 0x98, 0xa0, 0xa8, 0xb0, 0xb8, 0xc0, 0xc8, 0xd0, 0xd8, 0xe0, 0xe8, 0xf0, 0xf8,
	0x00, 0x04, 0x08, 0x0c, 0x10, 0x14, 0x18, 0x1c, 0x20, 0x24, 0x28, 0x2c, 0x30, 0x34, 0x38, 0x3c,
	0x40, 0x44, 0x48, 0x4c, 0x50, 0x54, 0x58, 0x5c, 0x60, 0x64, 0x68, 0x6c, 0x70, 0x74, 0x78, 0x7c,
	0x80, 0x82, 0x84, 0x86, 0x88, 0x8a, 0x8c, 0x8e, 0x90, 0x92, 0x94, 0x96, 0x98, 0x9a, 0x9c, 0x9e,
	0xa0, 0xa2, 0xa4, 0xa6, 0xa8, 0xaa, 0xac, 0xae, 0xb0, 0xb2, 0xb4, 0xb6, 0xb8, 0xba, 0xbc, 0xbe,
	0xc0, 0xc2, 0xc4, 0xc6, 0xc8, 0xca, 0xcc, 0xce, 0xd0, 0xd2, 0xd4, 0xd6, 0xd8, 0xda, 0xdc, 0xde,
	0xe0, 0xe2, 0xe4, 0xe6, 0xe8, 0xea, 0xec, 0xee, 0xf0, 0xf2, 0xf4, 0xf6, 0xf8, 0xfa, 0xfc, 0xfe
};
static const _Alignas(64) uint8_t int8_high[128] = {
	0x00, 0x3f, 0x40, 0x40, 0x40, 0x40, 0x40, 0x40, 0x41, 0x41, 0x41, 0x41, 0x41, 0x41, 0x41, 0x41,
	ROW16(0x41), ROW16(0x42), ROW16(0x42), ROW16(0x42), ROW16(0x42), ROW16(0x42), ROW16(0x42)
};

/* 64 values to bf16: the first and the second pairs of 16 places. */
INLINE void amx_decode(const uint8_t *p, __m512i *first, __m512i *second)
{
	const __m512i x = _mm512_loadu_si512(p);

	codes_bf16(_mm512_abs_epi8(x), x, int8_low, int8_high, first, second);
}

/* Tiles [positions / 16][head / 32], each 16 lines of pairs of values. */
INLINE void amx_load_k(const struct amx_work *w)
{
	const struct attend_job *j = w->job;

	for (uint32_t t = w->low & ~15u; t < w->high; t += 16) {
		const uint8_t *p = tile_at(j, t, 0);
		uint8_t *to = w->kv + (size_t)t * j->head * 2;

		for (uint32_t v = 0; v < j->head; v += 4, p += 64, to += 128) {
			__m512i first, second;

			amx_decode(p, &first, &second);
			_mm512_store_si512(to, first);
			_mm512_store_si512(to + 64, second);
		}
	}
}

/* Tiles [positions / 32][head / 16], each 16 lines of pairs of positions. Pairs that no row sees are 0, since
   their page may not exist; of what else is not seen the weights are 0, and no value is a NaN. */
INLINE void amx_load_v(const struct amx_work *w)
{
	const struct attend_job *j = w->job;
	const uint32_t from = w->low & ~(PAIR_BLOCK - 1u), to = (w->high + PAIR_BLOCK - 1) & ~(PAIR_BLOCK - 1u);

	for (uint32_t t = from; t < to; t += 2) {
		uint8_t *out = w->kv + (size_t)(t & ~(PAIR_BLOCK - 1u)) * j->head * 2 + t % PAIR_BLOCK / 2 * 64;
		const uint8_t *p = NULL;

		if (t + 1 >= w->low && t < w->high)
			p = tile_at(j, t & ~15u, j->v_offset) + (size_t)(t % 16) * j->head;

		for (uint32_t v = 0; v < j->head; v += 32, out += 2 * TILE_BYTES) {
			__m512i first = _mm512_setzero_si512(), second = first;

			if (p) {
				amx_decode(p, &first, &second);
				p += 64;
			}
			_mm512_store_si512(out, first);
			_mm512_store_si512(out + TILE_BYTES, second);
		}
	}
}

/* 16 queries, their first 32 values at `a` and every 32 more 64 bytes on, times 64 positions. */
INLINE void amx_score(const struct amx_work *w, const uint8_t *a, const uint8_t *b, uint32_t values)
{
	const size_t stride = (size_t)w->job->head * 2, next = (size_t)w->job->head * 32;

	AMX_ZERO(0);
	AMX_ZERO(1);
	AMX_ZERO(2);
	AMX_ZERO(3);
	for (uint32_t v = 0; v < values; v += PAIR_BLOCK, a += 64, b += TILE_BYTES) {
		AMX_LOAD(4, a, stride);
		AMX_LOAD(5, b, 64);
		AMX_DOT_BF16(5, 4, 0);
		AMX_LOAD(6, b + next, 64);
		AMX_DOT_BF16(6, 4, 1);
		AMX_LOAD(7, b + 2 * next, 64);
		AMX_DOT_BF16(7, 4, 2);
		AMX_LOAD(5, b + 3 * next, 64);
		AMX_DOT_BF16(5, 4, 3);
	}
	AMX_STORE(0, w->tiles, 64);
	AMX_STORE(1, w->tiles + 256, 64);
	AMX_STORE(2, w->tiles + 512, 64);
	AMX_STORE(3, w->tiles + 768, 64);
}

/* Scores of all queries. Four tiles of positions at a time: what lies beyond the last is not looked at. */
INLINE void amx_scores(const struct amx_work *w)
{
	const struct attend_job *j = w->job;
	const uint32_t head = j->head;

	amx_load_k(w);
	for (uint32_t i = 0; i < w->count; i++)
		for (uint32_t v = 0; v < head; v += 16)
			n16_store_u16(w->queries + (size_t)i * head + v,
				      n16_right(v16_bits(v16_load(w->q + (size_t)i * head + v)), 16));
	for (uint32_t i = 0; i < w->count; i += AMX_TILE) {
		const uint32_t rows = w->count - i < AMX_TILE ? w->count - i : AMX_TILE;

		for (uint32_t t = w->low & ~63u; t < w->high; t += 64)
			for (uint32_t g = 0; g < w->groups; g++) {
				const size_t value = (size_t)g * w->values;

				amx_score(w, (const uint8_t *)(w->queries + (size_t)i * head + value),
					  w->kv + (size_t)t * head * 2 + value / PAIR_BLOCK * TILE_BYTES, w->values);
				for (uint32_t n = 0; n < 4 && t + 16 * n < w->high; n++) {
					const struct v16 s = t + 16 * n < (w->low & ~15u) ?
								     v16_set(0.0f) :
								     tile_scales(j, KV_INT8, t + 16 * n, g);
					const float *from = w->tiles + 256 * n;
					float *out = w->scores + (size_t)i * OPS_PARTITION + t + 16 * n;

					for (uint32_t r = 0; r < rows; r++, from += 16, out += OPS_PARTITION)
						v16_store(out, g ? v16_fma(v16_load(from), s, v16_load(out)) :
								   v16_mul(v16_load(from), s));
				}
			}
	}
}

/* Two registers to bf16, as bf16_normal has it of what is not negative. */
INLINE __m512i amx_round(struct v16 a, struct v16 b)
{
	/* What rounds up to BF16_LEAST is not below it. */
	const __m512 least = _mm512_set1_ps(0x1.ffp-56f);
	const __m512 x = _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(a.a, least, _CMP_NLT_UQ), a.a);
	const __m512 y = _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(b.a, least, _CMP_NLT_UQ), b.a);
	__m512i out;

	__asm__("vcvtne2ps2bf16 %1,%2,%0" : "=v"(out) : "v"(x), "v"(y));
	return out;
}

/* A row's weights times V's scales; 0 where it does not see. */
INLINE void amx_weigh(const struct amx_work *w, uint32_t i)
{
	const struct attend_job *j = w->job;
	const uint32_t row = w->row + i / j->heads, from = j->from[row] & ~15u;
	const uint32_t to = j->from[row] < j->to[row] ? j->to[row] : 0;
	const float *s = w->scores + (size_t)i * OPS_PARTITION;
	uint16_t *out = w->weights + (size_t)i * OPS_PARTITION;

	for (uint32_t t = w->low & ~(PAIR_BLOCK - 1u); t < w->high; t += PAIR_BLOCK) {
		struct v16 x[2];

		for (uint32_t n = 0; n < 2; n++) {
			const uint32_t at = t + 16 * n;

			x[n] = at < from || at >= to ? v16_set(0.0f) :
						       v16_mul(v16_load(s + at), v16_load(w->scales + at));
		}
		_mm512_storeu_si512(out + t, amx_round(x[0], x[1]));
	}
}

/* Sums of 16 queries and `columns` (1 .. 4) tiles of values over positions [from, to). */
INLINE void amx_sum(const struct amx_work *w, const uint16_t *a, const uint8_t *b, uint32_t from, uint32_t to,
		    float *out, const uint32_t columns)
{
	const size_t next = (size_t)w->job->head * 64, stride = w->job->head * sizeof *out;

	AMX_ZERO(0);
	AMX_ZERO(1);
	AMX_ZERO(2);
	AMX_ZERO(3);
	for (uint32_t t = from; t < to; t += PAIR_BLOCK) {
		const uint8_t *p = b + t / PAIR_BLOCK * next;

		AMX_LOAD(4, a + t, OPS_PARTITION * sizeof *a);
		AMX_LOAD(5, p, 64);
		AMX_DOT_BF16(5, 4, 0);
		AMX_LOAD(6, p + TILE_BYTES, 64);
		AMX_DOT_BF16(6, 4, 1);
		if (columns > 2) {
			AMX_LOAD(7, p + 2 * TILE_BYTES, 64);
			AMX_DOT_BF16(7, 4, 2);
			AMX_LOAD(5, p + 3 * TILE_BYTES, 64);
			AMX_DOT_BF16(5, 4, 3);
		}
	}
	AMX_STORE(0, out, stride);
	AMX_STORE(1, out + 16, stride);
	if (columns > 2) {
		AMX_STORE(2, out + 32, stride);
		AMX_STORE(3, out + 48, stride);
	}
}

/* Values of all queries, of which scores holds the weights. */
INLINE void amx_values(const struct amx_work *w)
{
	const uint32_t from = w->low & ~(PAIR_BLOCK - 1u), head = w->job->head;

	amx_load_v(w);
	for (uint32_t g = 0; g < w->groups; g++) {
		for (uint32_t t = w->low & ~15u; t < w->high; t += 16) /* beyond, it is not read */
			v16_store(w->scales + t, tile_scales(w->job, KV_INT8, t, w->groups + g));
		for (uint32_t i = 0; i < w->count; i++)
			amx_weigh(w, i);
		for (uint32_t i = 0; i < w->count; i += AMX_TILE)
			for (uint32_t v = g * w->values, n; v < (g + 1) * w->values; v += n) {
				const uint16_t *a = w->weights + (size_t)i * OPS_PARTITION;
				const uint8_t *b = w->kv + v / 16 * TILE_BYTES;
				float *out = w->sums + (size_t)i * head + v;

				n = (g + 1) * w->values - v < 64 ? 32 : 64;
				if (n == 64)
					amx_sum(w, a, b, from, w->high, out, 4);
				else
					amx_sum(w, a, b, from, w->high, out, 2);
			}
	}
}

#endif
