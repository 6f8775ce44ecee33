/*
 * The leaves of every instruction set that runs here, each against the scalar ones: bit for
 * bit where cpu.h says EXACT, within a stated bound elsewhere. The scalar ones are held to
 * formulas written here. Outputs lie between guard values, which nobody may touch.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/device.h"
#include "kernels/cpu/fast.h"
#include "kernels/fp8.h"
#include "kernels/quant.h"
#include "tests/kernels_fixture.h"
#include "tests/leaves.h"
#include "tests/matmuls.h"
#include "tests/tap.h"

enum { C_MAX = 40 };

static void matmul_case(uint32_t type, uint32_t rows, uint32_t columns, enum weight_use use)
{
	static const uint32_t parts[][2] = {{0, 1}, {3, 2},  {1, 3},  {0, 4},  {2, 7},
					    {0, 8}, {5, 16}, {1, 17}, {0, 33}, {0, 40}};
	struct act a = act_make(columns, C_MAX);
	uint8_t *data = random_weight(&seed, type, (size_t)rows * columns, 0.2f);
	float *want = take((size_t)C_MAX * rows);
	struct weight *w;
	CHECK(pack_make(NULL, type, use, rows, columns, data, &w) == 0);
	for (int kind = ACT_F32; kind <= ACT_I8_BLOCK; kind += ACT_I8_BLOCK - ACT_F32) {
		if (kind == ACT_I8_BLOCK && columns % 32)
			continue;
		a.kind = (uint32_t)kind;
		for (uint32_t c = 0; c < C_MAX; c++)
			for (uint32_t r = 0; r < rows; r++)
				want[c * rows + r] = expected(type, data, r, &a, c);
		for (int isa = ISA_SCALAR; isa <= ISA_AVX512 && ops_isa_runs(isa); isa++)
			for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
				matmul_judge(&leaves[isa], w, &a, (rows + PACK_ROWS - 1) / PACK_ROWS / 2,
					     parts[i][0], parts[i][1], want, rows + i % 3);
	}
	pack_free(NULL, w);
	free(data), free(want), act_free(&a);
}

static void matmuls(void)
{
	static const uint32_t shapes[][2] = {{1, 32}, {16, 64}, {15, 96},
					     {33, 160}, {17, 576}, {48, 544}};
	for (uint32_t type = 0; type < 40; type++)
		for (uint32_t i = 0; weight_type_elements(type) && i < 6; i++)
			matmul_case(type, shapes[i][0],
				    weight_type_elements(type) == 256 ? 256 * (1 + i % 3)
								      : shapes[i][1],
				    WEIGHT_MATMUL);
	matmul_case(TYPE_Q4_1, 17, 1056,
		    WEIGHT_LOOKUP); /* PACK_RAW of a type that has a pack */
	matmul_case(TYPE_Q8_0, 17, 1056, WEIGHT_LOOKUP);
	matmul_case(TYPE_F32, 19, 77, WEIGHT_MATMUL); /* no multiple of 32 */
	matmul_case(TYPE_F16, 19, 45, WEIGHT_MATMUL);
	matmul_case(TYPE_BF16, 3, 1, WEIGHT_MATMUL);
}

static void norms(void)
{
	static const uint32_t sizes[] = {1, 15, 16, 17, 64, 80, 576, 1000, 1536};
	for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
		const uint32_t n = sizes[i];
		float *x = take(n), *w = take(n), *want = take(n);
		for (uint32_t k = 0; k < 2 * n; k++)
			(k < n ? x : w)[k % n] = random_normal(&seed);
		const float r = 1.0f / sqrtf(dot_f32(x, x, n) / (float)n + 1e-5f);
		for (uint32_t k = 0; k < n; k++) {
			const volatile float y = x[k] * r;
			want[k] = y * w[k];
		}
		for (int isa = ISA_SCALAR; isa <= ISA_AVX512 && ops_isa_runs(isa); isa++) {
			float *memory = guarded(n), *out = memory + GUARD;
			leaves[isa].norm(x, w, n, 1e-5f, out);
			EXPECT(memcmp(out, want, n * 4) == 0 && out[-1] == GUARD_VALUE &&
			       out[n] == GUARD_VALUE);
			memcpy(out, x, n * 4);
			leaves[isa].norm(out, w, n, 1e-5f, out);
			EXPECT(memcmp(out, want, n * 4) == 0);
			free(memory);
		}
		free(x), free(w), free(want);
	}
}

static void quantising(void)
{
	enum { MOST = 32 * 37 };
	static const int blocks[] = {1, 12, 15, 16, 17, 32, 37}; /* lots of 16, whole and not */
	float x[MOST];
	for (int k = 0; k < MOST; k++)
		x[k] = random_normal(&seed) * ldexpf(1, k / 32 % 12 * 9 - 40);
	memset(x, 0, 32 * sizeof *x);
	for (int k = 32; k < 64; k++) /* the largest is 127, so the halves are ties */
		x[k] = k == 32 ? 127 : (float)(k - 48) + 0.5f;
	for (int k = 64; k < 96; k++)
		x[k] = 1e-42f; /* 1/da is not finite */
	for (size_t i = 0; i < 3 * sizeof blocks / sizeof blocks[0]; i++) {
		const int isa = ISA_SCALAR + (int)(i % 3), N = 32 * blocks[i / 3];
		if (!ops_isa_runs(isa))
			continue;
		int8_t q[MOST + 64];
		float d[MOST / 32 + 2], s[MOST / 32 + 2];
		memset(q, 77, sizeof q);
		d[0] = s[0] = d[N / 32 + 1] = s[N / 32 + 1] = GUARD_VALUE;
		leaves[isa].quantise(x, N, q + 32, d + 1, s + 1);
		EXPECT(q[31] == 77 && q[N + 32] == 77);
		EXPECT(d[0] + s[0] + d[N / 32 + 1] + s[N / 32 + 1] == 4 * GUARD_VALUE);
		for (int b = 0; b < N / 32; b++) {
			float most = 0, da, inverse;
			int sum = 0, wrong = 0;
			for (int k = 0; k < 32; k++)
				most = fmaxf(most, fabsf(x[32 * b + k]));
			da = most / 127;
			inverse = 1 / da;
			if (isinf(inverse))
				da = inverse = 0;
			for (int k = 0; k < 32; k++) {
				const float want = nearbyintf(x[32 * b + k] * inverse);
				wrong += q[32 + 32 * b + k] != (int)want;
				sum += (int)want;
			}
			EXPECT_EQ(wrong, 0);
			EXPECT(d[1 + b] == da && s[1 + b] == da * (float)sum);
		}
	}
}

/* exp within 4 units in the last place gives silu within 1e-6; gelu's exponent has the
   rounding of its argument besides, up to 2 * 40 * 2^-23. */
static void gates(void)
{
	enum { N = 203 };
	float gate[N], up[N], whole[N];
	for (int i = 0; i < N; i++) {
		gate[i] = i < 100 ? (float)(i - 50) : random_normal(&seed) * 3;
		up[i] = random_normal(&seed);
	}
	for (int isa = ISA_SCALAR; isa <= ISA_AVX512 && ops_isa_runs(isa); isa++)
		for (int kind = GATE_SILU; kind <= GATE_GELU; kind++) {
			const double bound = kind == GATE_SILU ? 1e-6 : 2e-5;
			leaves[isa].gate[kind](gate, up, N, whole);
			for (int i = 0; i < N; i++) {
				const double g = gate[i];
				const double u = 0.7978845608028654 *
						 (g + 0.044715 * g * g * g);
				double want = kind == GATE_SILU ? g / (1 + exp(-g))
								: g / (1 + exp(-2 * u));
				want *= up[i];
				if (!EXPECT(fabs(whole[i] - want) <=
					    bound * fabs(want) + 1e-30))
					printf("# %s %g: %g not %g\n", ops_isa_name(isa), g,
					       whole[i], want);
			}
			for (int i = 0; i < N; i += 13) { /* alone, and in place */
				float x[3] = {GUARD_VALUE, gate[i], GUARD_VALUE};
				leaves[isa].gate[kind](x + 1, up + i, 1, x + 1);
				EXPECT(memcmp(x + 1, whole + i, 4) == 0);
				EXPECT(x[0] == GUARD_VALUE && x[2] == GUARD_VALUE);
			}
		}
}

static void maxima_and_sums(void)
{
	static const uint32_t sizes[] = {1, 7, 16, 31, 100, 4099};
	for (int isa = ISA_SCALAR; isa <= ISA_AVX512 && ops_isa_runs(isa); isa++)
		for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
			const uint32_t n = sizes[i];
			float *x = take(n), *y = take(n + 2), most = -INFINITY;
			double sum = 0;
			uint32_t at, where = 0;
			for (uint32_t k = 0; k < n;
			     k++) { /* few values, so many are equal */
				x[k] = (float)(int)random_below(&seed, 40) - 60;
				if (x[k] > most) {
					most = x[k];
					where = k;
				}
			}
			for (uint32_t k = 0; k < n; k++)
				sum += exp((double)x[k] - most);
			EXPECT(leaves[isa].max(x, n, &at) == most && at == where);
			/* 4 units for exp, and the rounding of n/16 sums. */
			EXPECT(fabs(leaves[isa].exp_sum(x, n, most) / sum - 1) <
			       (n / 16 + 8) * 0x1p-23);
			y[n] = GUARD_VALUE;
			leaves[isa].add(y, x, n);
			leaves[isa].add(y, x, n);
			for (uint32_t k = 0; k < n; k++)
				EXPECT(y[k] == 2 * x[k]);
			EXPECT(y[n] == GUARD_VALUE);
			free(x), free(y);
		}
}

/* Attention of one partition from the page's bytes, in double. */
static void attend_expected(const struct attend_job *j, uint32_t i, uint32_t h,
			    const float *k, const float *v, double *m, double *l, double *o)
{
	double s[OPS_PARTITION];
	*m = -INFINITY, *l = 0;
	memset(o, 0, j->head * sizeof *o);
	for (uint32_t t = j->from[i]; t < j->to[i]; t++) {
		s[t] = 0;
		for (uint32_t d = 0; d < j->head; d++)
			s[t] += (double)j->q[i * j->q_row_stride + h * j->head + d] *
				k[t * j->head + d];
		if (j->softcap > 0)
			s[t] = j->softcap * tanh(s[t] / j->softcap);
		*m = s[t] > *m ? s[t] : *m;
	}
	for (uint32_t t = j->from[i]; t < j->to[i]; t++) {
		*l += exp(s[t] - *m);
		for (uint32_t d = 0; d < j->head; d++)
			o[d] += exp(s[t] - *m) * v[t * j->head + d];
	}
}

/* Pages with K and V of every position of a partition, and what reads back. */
struct pages_case {
	uint8_t *memory[OPS_PARTITION / 16];
	const uint8_t *page[OPS_PARTITION / 16], *scales[OPS_PARTITION / 16];
	size_t block;
	float *k, *v;
};

static void pages_make(struct pages_case *p, int kv, uint32_t head, uint32_t page_tokens,
		       uint32_t tokens)
{
	const size_t lines = (size_t)kv_group_count(head) * page_tokens;
	const uint32_t size = kv_value_bytes(kv);
	p->block = (size_t)head * page_tokens * size;
	p->k = take((size_t)OPS_PARTITION * head);
	p->v = take((size_t)OPS_PARTITION * head);
	for (uint32_t i = 0; i < OPS_PARTITION / page_tokens; i++) {
		p->memory[i] = (uint8_t *)take((2 * p->block + 2 * lines) / 4 + 1);
		memset(p->memory[i], 0xff,
		       2 * p->block + 2 * lines); /* NaN beyond the tokens */
		if (tokens % 2) /* and scales that no number has */
			memset(p->memory[i] + 2 * p->block, 0, 2 * lines);
		p->page[i] = p->memory[i];
		p->scales[i] = p->memory[i] + 2 * p->block;
	}
	for (uint32_t t = 0; t < tokens; t++)
		for (int is_v = 0; is_v < 2; is_v++) {
			uint8_t *block = p->memory[t / page_tokens] + (is_v ? p->block : 0);
			uint8_t *scales = p->memory[t / page_tokens] + 2 * p->block +
					  (is_v ? lines : 0);
			float *x = (is_v ? p->v : p->k) + (size_t)t * head;
			const uint32_t at = t % page_tokens;
			for (uint32_t d = 0; d < head; d++)
				x[d] = random_normal(&seed);
			(is_v ? leaves[ISA_SCALAR].encode_v : leaves[ISA_SCALAR].encode_k)(
				kv, x, head, at, page_tokens, block, scales);
			for (uint32_t d = 0; d < head; d++) {
				const uint8_t *from = block + size * (is_v ? page_v_at(at, d, head)
									   : page_k_at(at, d, head));
				const uint8_t byte = scales[d / kv_group_values(head) * page_tokens + at];
				uint16_t h;
				memcpy(&h, from, kv == KV_BF16 ? 2 : 1);
				if (kv == KV_FP8)
					x[d] = fp8_decode(*from) * ldexpf(1, byte - 128);
				else if (kv == KV_INT8)
					x[d] = (float)(int8_t)*from *
					       (8 + (float)(byte % 8)) / 8 *
					       ldexpf(1, byte / 8 - 24);
				else if (kv == KV_BF16)
					x[d] = bf16_decode(h);
			}
		}
}

/* A score of 64 .. 256 products of size 1 is off by some 1e-6, a weight by as much of
   itself, and so are sum and values: 2e-5 of the largest value leaves room for the longest
   head. */
#define ATTEND_BOUND 2e-5

static double rounded(double x)
{
	return bf16_decode(bf16_encode((float)x));
}

/* The exact result for query vector x where queries and weights are rounded to bf16, as INT8 in pairs has it:
   its maximum and sum, and between what two bounds its values are, before they are divided by the sum. A
   weight that is as near to the middle of two bf16 as f32 is inexact may be either. */
static void pairs_expected(const struct attend_job *j, uint32_t x, const struct pages_case *p, double *m,
			   double *l, double *low, double *high)
{
	const uint32_t i = x / j->heads, head = j->head, values = kv_group_values(head);
	float q[256];
	struct attend_job one = *j;
	for (uint32_t d = 0; d < head; d++)
		q[d] = (float)rounded(j->q[i * j->q_row_stride + (size_t)(x % j->heads) * head + d]);
	one.q = q;
	one.q_row_stride = 0;
	attend_expected(&one, i, 0, p->k, p->v, m, l, low);
	for (uint32_t d = 0; d < head; d++)
		low[d] = high[d] = 0;
	for (uint32_t t = j->from[i]; t < j->to[i]; t++) {
		const uint8_t *scales = j->scales[t / j->page_tokens] + t % j->page_tokens;
		double s = 0, a = 0, b = 0, scale = 1;
		for (uint32_t d = 0; d < head; d++)
			s += (double)q[d] * p->k[t * head + d];
		s = exp((j->softcap > 0 ? j->softcap * tanh(s / j->softcap) : s) - *m);
		for (uint32_t d = 0; d < head; d++) {
			if (d % values == 0) {
				scale = kv_scale_value(KV_INT8, scales[(head + d) / values * j->page_tokens]);
				a = rounded(s * scale * (1 - ATTEND_BOUND)) / scale;
				b = rounded(s * scale * (1 + ATTEND_BOUND)) / scale;
			}
			low[d] += (p->v[t * head + d] < 0 ? b : a) * p->v[t * head + d];
			high[d] += (p->v[t * head + d] < 0 ? a : b) * p->v[t * head + d];
		}
	}
}

/* What AVX-512 computes of INT8 is the text of ref_pairs.c, bit for bit; and that is the exact result for
   rounded queries and weights, off by no more than what the other kinds are of theirs. */
static void attend_pairs(const struct leaf *leaf, struct attend_job *j, const struct pages_case *p)
{
	const uint32_t vectors = j->rows * j->heads, size = 2 + j->head;
	float *memory[2];
	for (int i = 0; i < 2; i++) {
		memory[i] = guarded(vectors * size);
		j->m = memory[i] + GUARD;
		j->l = j->m + vectors;
		j->o = j->l + vectors;
		if (i == 0)
			leaf->attend(j);
		else
			ref_attend_pairs(j);
		EXPECT(memory[i][GUARD - 1] == GUARD_VALUE && memory[i][GUARD + vectors * size] == GUARD_VALUE);
	}
	if (!EXPECT(memcmp(memory[0] + GUARD, memory[1] + GUARD, vectors * size * sizeof(float)) == 0))
		printf("# pairs: %s head %u heads %u page %u rows %u\n", leaf->name, j->head, j->heads,
		       j->page_tokens, j->rows);
	for (uint32_t x = 0; x < vectors; x++) {
		double m, l, low[256], high[256], worst = 0;
		pairs_expected(j, x, p, &m, &l, low, high);
		for (uint32_t d = 0; d < j->head && l > 0; d++)
			worst = fmax(worst, fmax(low[d] - j->o[x * j->head + d], j->o[x * j->head + d] - high[d]) / l);
		const int good = l > 0 ? fabs(j->m[x] - m) < ATTEND_BOUND * (1 + fabs(m)) &&
						 fabs(j->l[x] / l - 1) < 10 * ATTEND_BOUND &&
						 worst < 4 * ATTEND_BOUND
				       : j->m[x] == -INFINITY && j->l[x] == 0 && j->o[x * j->head] == 0;
		if (!EXPECT(good))
			printf("# pairs: head %u heads %u page %u rows %u: m %g %g l %g %g worst %g\n", j->head,
			       j->heads, j->page_tokens, j->rows, j->m[x], m, j->l[x], l, worst);
	}
	free(memory[0]), free(memory[1]);
}

/* Whether the leaf sums INT8 in pairs. */
static int is_pairs(int isa, const struct attend_job *j)
{
	return isa == ISA_AVX512 && j->kv == KV_INT8 && j->head % 32 == 0 &&
	       (fast_have_avx512() & FAST_VBMI);
}

static void attend_judge(int isa, struct attend_job *j, const struct pages_case *p)
{
	const uint32_t vectors = j->rows * j->heads;
	float *memory = guarded(vectors * (2 + j->head) + 2 * GUARD);
	double m, l, o[256];
	j->m = memory + GUARD;
	j->l = j->m + vectors + GUARD;
	j->o = j->l + vectors + GUARD;
	leaves[isa].attend(j);
	for (uint32_t x = 0; x < vectors; x++) {
		attend_expected(j, x / j->heads, x % j->heads, p->k, p->v, &m, &l, o);
		double worst = 0;
		for (uint32_t d = 0; d < j->head && l > 0; d++)
			worst = fmax(worst,
				     fabs(j->o[x * j->head + d] / j->l[x] - o[d] / l));
		const int good = l > 0 ? fabs(j->m[x] - m) < ATTEND_BOUND * (1 + fabs(m)) &&
						 fabs(j->l[x] / l - 1) <
							 10 * ATTEND_BOUND &&
						 worst < 4 * ATTEND_BOUND
				       : j->m[x] == -INFINITY && j->l[x] == 0 &&
						 j->o[x * j->head] == 0;
		if (!EXPECT(good))
			printf("# %s kv %d head %u page %u rows %u: m %g %g l %g %g worst "
			       "%g\n",
			       ops_isa_name(isa), j->kv, j->head, j->page_tokens, j->rows,
			       j->m[x], m, j->l[x], l, worst);
	}
	EXPECT(memory[GUARD - 1] == GUARD_VALUE && j->m[vectors] == GUARD_VALUE &&
	       j->l[vectors] == GUARD_VALUE && j->o[vectors * j->head] == GUARD_VALUE);
	free(memory);
}

/* Rows of a block, each alone: the same bits (K1), though the leaf may go another way. */
static void attend_alone(const struct attend_job *all, const struct leaf *leaf)
{
	const uint32_t vectors = all->rows * all->heads, size = 2 + all->head;
	float *one = take((size_t)vectors * size), *many = take((size_t)vectors * size);
	struct attend_job j = *all;
	j.m = many;
	j.l = j.m + vectors;
	j.o = j.l + vectors;
	leaf->attend(&j);
	j.rows = 1;
	for (uint32_t i = 0; i < all->rows; i++) {
		j.q = all->q + i * all->q_row_stride;
		j.from = all->from + i;
		j.to = all->to + i;
		j.m = one + i * all->heads;
		j.l = one + vectors + i * all->heads;
		j.o = one + 2 * vectors + (size_t)i * all->heads * all->head;
		leaf->attend(&j);
	}
	if (!EXPECT(memcmp(one, many, sizeof(float) * vectors * size) == 0))
		printf("# %s kv %d head %u heads %u page %u\n", leaf->name, all->kv, all->head,
		       all->heads, all->page_tokens);
	free(one), free(many);
}

/* 0 where the set at AVX-512's place has no VBMI. */
static int pairs_wanted = 1;

static void attend_case(int kv, uint32_t head, uint32_t heads, uint32_t page_tokens,
			uint32_t tokens, uint32_t rows, float softcap)
{
	struct pages_case p;
	uint32_t from[16], to[16];
	float *q = take((size_t)rows * heads * head + 16);
	pages_make(&p, kv, head, page_tokens, tokens);
	for (uint32_t i = 0; i < rows * heads * head; i++)
		q[i] = random_normal(&seed) / sqrtf((float)head);
	for (uint32_t i = 0; i < rows;
	     i++) { /* the last rows see all; some see a window, one nothing */
		to[i] = tokens + i >= rows ? tokens + i + 1 - rows : 0;
		from[i] = i % 3 == 1 && to[i] > 5 ? to[i] - 5 : 0;
		if (i == 4)
			from[i] = to[i] = 7;
	}
	struct attend_job j = {.kv = kv, .head = head, .page_tokens = page_tokens, .token_count = tokens,
			       .pages = p.page, .v_offset = p.block, .scales = p.scales, .q = q,
			       .q_row_stride = heads * head, .rows = rows, .heads = heads,
			       .from = from, .to = to, .softcap = softcap};
	j.scratch = take(leaf_scratch_floats(rows, heads, head));
	for (int isa = ISA_SCALAR; isa <= ISA_AVX512 && ops_isa_runs(isa); isa++) {
		if (pairs_wanted && is_pairs(isa, &j))
			attend_pairs(&leaves[isa], &j, &p);
		else
			attend_judge(isa, &j, &p);
		attend_alone(&j, &leaves[isa]);
	}
	for (uint32_t i = 0; i < OPS_PARTITION / page_tokens; i++)
		free(p.memory[i]);
	free(j.scratch), free(p.k), free(p.v), free(q);
}

/* Every number of heads that share a KV head, on either side of what the leaves take at once. Under
   sanitizers the same code on fewer rows and tokens will do. */
static void attention_heads(void)
{
	const int sanitized = getenv("HOLDFAST_SANITIZED") != NULL;
	for (int kv = KV_FP8; kv <= KV_F32; kv++)
		for (uint32_t heads = 1; heads <= 9; heads++)
			for (uint32_t head = 32; head <= 128; head += 32)
				attend_case(kv, head, heads, heads % 2 ? 16 : 64,
					    sanitized ? 67 : 201, sanitized ? 3 : 16, 0);
	for (uint32_t heads = 1; heads <= 9; heads++)
		for (uint32_t head = 64; head <= 128; head += 64)
			for (uint32_t rows = 1; rows <= 16; rows += 15)
				attend_case(KV_INT8, head, heads, 16, sanitized ? 41 : 135, rows, 0);
}

static void attention(void)
{
	static const struct {
		uint32_t head, heads, page_tokens, tokens, rows;
		float softcap;
	} c[] = {{64, 3, 16, 1, 1, 0}, {64, 4, 32, 37, 7, 5}, {64, 3, 256, 256, 16, 0}, {80, 4, 32, 37, 7, 5},
		 {96, 1, 16, 100, 16, 0}, {128, 7, 64, 255, 1, 30}, {256, 4, 16, 130, 5, 0},
		 {16, 2, 128, 17, 3, 0},  {64, 9, 32, 64, 16, 0}};
	for (int kv = KV_FP8; kv <= KV_F32; kv++)
		for (size_t i = 0; i < sizeof c / sizeof c[0]; i++)
			attend_case(kv, c[i].head, c[i].heads, c[i].page_tokens,
				    c[i].tokens, c[i].rows, c[i].softcap);
}

/* Heads whose last 16 values are half of what is loaded at once. */
static void attention_tails(void)
{
	for (int kv = KV_FP8; kv <= KV_F32; kv++)
		for (uint32_t head = 16; head <= 80; head += 32)
			for (uint32_t heads = 1; heads <= 9; heads += 4)
				for (uint32_t rows = 1; rows <= 5; rows += 4)
					attend_case(kv, head, heads, heads % 2 ? 16 : 64, 67, rows, 0);
}

/* The same on a CPU with AVX-VNNI as on one without. */
static void matmuls_plain(void)
{
	if (!ops_isa_runs(ISA_AVX2))
		TAP_SKIP("no AVX2 here");
	fast_plain_avx2(&leaves[ISA_AVX2]);
	matmuls();
}

/* The leaves of every subset at AVX-512's place. */
static void matmuls_subsets(void)
{
	if (!ops_isa_runs(ISA_AVX512))
		TAP_SKIP("no AVX-512 here");
	const int sanitized = getenv("HOLDFAST_SANITIZED") != NULL;
	for (size_t i = 0; i < SUBSETS; i++) {
		if (subsets[i] & ~fast_have_avx512()) {
			printf("# SKIP the CPU lacks some of %#x\n", subsets[i]);
			continue;
		}
		leaf_init_ref(&leaves[ISA_AVX512]);
		fast_init_avx512(&leaves[ISA_AVX512], subsets[i]);
		matmuls();
		norms();
		quantising();
		pairs_wanted = (subsets[i] & FAST_VBMI) != 0;
		attend_case(KV_FP8, 64, 3, 16, 201, 1, 0);
		attend_case(KV_INT8, 64, 3, 16, 201, 1, 0);
		attend_case(KV_INT8, 64, 3, 16, 201, 16, 0);
		for (uint32_t head = 48; head <= 256 && !sanitized; head += head < 96 ? 16 : head)
			for (int kv = KV_FP8; kv <= KV_F32; kv++)
				attend_case(kv, head, 4, 32, 133, kv % 2 ? 7 : 1, kv % 2 ? 5 : 0);
		pairs_wanted = 1;
	}
}

/* What this machine's leaves were judged above; here it is said of those that no test saw. */
static void tiles(void)
{
	if (!ops_isa_runs(ISA_AVX512) || !(fast_have_avx512() & FAST_AMX))
		TAP_SKIP("no AMX here: fast_amx.c, fast_amx_given.c and fast_amx_attend.h were not judged");
	if (!(fast_have_avx512() & FAST_AMX_BF16))
		TAP_SKIP("no bf16 tiles here: those of fast_amx_given.c and fast_amx_attend.h were not judged");
}

int main(void)
{
	leaves_make();
	printf("# best here: %s\n", ops_isa_name(ops_isa_best()));
	TAP_RUN(matmuls, "matmuls of every type, pack and kind of activation, bit for bit");
	TAP_RUN(norms, "norms, bit for bit");
	TAP_RUN(quantising, "activation blocks, bit for bit");
	TAP_RUN(gates, "gates");
	TAP_RUN(maxima_and_sums, "maxima, sums of exp, additions");
	TAP_RUN(attention, "attention within a partition; a row alone as among others, bit for bit");
	TAP_RUN(attention_heads, "attention of 1 to 9 heads");
	TAP_RUN(attention_tails, "attention of heads of 16, 48 and 80");
	TAP_RUN(matmuls_plain, "matmuls of AVX2 without AVX-VNNI, bit for bit");
	TAP_RUN(matmuls_subsets, "AVX-512 without VNNI, without VBMI, without AMX, bit for bit");
	TAP_RUN(tiles, "AMX's leaves are among those above");
	return tap_done();
}
