/*
 * The operations of a step against a plain model in double (kernels_model.c), and the rules
 * K1 to K5.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/kernels_fixture.h"
#include "tests/tap.h"

enum { TOKENS_MAX = 700 };

static uint32_t text[TOKENS_MAX];
static const char *worst_isa = "";

static void text_make(uint64_t seed, uint32_t vocab)
{
	for (uint32_t i = 0; i < TOKENS_MAX; i++)
		text[i] = random_below(&seed, vocab);
}

static void *take(size_t bytes)
{
	void *p = calloc(1, bytes);
	CHECK(p != NULL);
	return p;
}

/* Runs `count` tokens in chunks and gathers all logits. */
static int run_chunks(struct fixture *f, const uint32_t *tokens, uint32_t count,
		      uint32_t chunk, uint32_t page, float *out)
{
	for (uint32_t at = 0; at < count; at += chunk) {
		const uint32_t n = count - at < chunk ? count - at : chunk;
		const struct fixture_sequence s = {tokens, at, n, page, 0};
		TRY(fixture_run(f, &s, 1, 1, out + (size_t)at * f->plan.vocab));
	}
	return 0;
}

/* Root of the mean squared error over that of the values. */
static double error_of(const float *got, const double *want, size_t n)
{
	double sum = 0, size = 0;
	for (size_t i = 0; i < n; i++) {
		sum += (got[i] - want[i]) * (got[i] - want[i]);
		size += want[i] * want[i];
	}
	return sqrt(sum / size);
}

/* The tags of the fixture's pages are 0 from the start, and the sequences' too: see
   fixture_block. */
static void pages_tag(struct fixture *f)
{
	for (uint32_t i = 0; i < f->plan.group[0].page_count; i++)
		CHECK(f->ops->page_tags_set(f->device, 0, i, 1, i % 64) == 0);
}

/* The CPU's instruction sets are judged one after the other against what the model says once; another device
   has none. Those above the best one do not run here, and main says so. */
static int isa_last(void)
{
	return fixture_table == ops_cpu ? ISA_AVX512 : ISA_SCALAR;
}

/* The largest error of all sets; *least: the smallest. */
static double run_against_model_of(struct device_plan p, const struct fixture_options *o, uint32_t count,
				   uint32_t chunk, double *least)
{
	const size_t n = (size_t)count * p.vocab;
	float *got = take(n * sizeof *got);
	double *want = take(n * sizeof *want), most = 0;
	*least = INFINITY;
	text_make(11, p.vocab);
	/* Under sanitizers the first and the best: what is between is judged in the plain build, and its memory
	   by the tests of leaves. */
	const int sanitized = getenv("HOLDFAST_SANITIZED") != NULL;
	for (int isa = ISA_SCALAR; isa <= isa_last() && ops_isa_runs((enum isa)isa); isa++) {
		struct fixture f;
		double error = INFINITY;
		if (sanitized && isa > ISA_SCALAR && isa < isa_last() && ops_isa_runs((enum isa)(isa + 1)))
			continue;
		p.isa = (enum isa)isa;
		fixture_open(&f, &p, o, 7);
		pages_tag(&f);
		if (EXPECT(run_chunks(&f, text, count, chunk, 0, got) == 0)) {
			if (isa == ISA_SCALAR)
				fixture_model(&f, text, count, want);
			error = error_of(got, want, n);
		}
		if (!(error <= most)) {
			most = error;
			worst_isa = ops_isa_name((enum isa)isa);
		}
		*least = error < *least ? error : *least;
		fixture_close(&f);
	}
	free(got);
	free(want);
	return most;
}

static double run_against_model(const struct device_plan *plan, const struct fixture_options *o,
				uint32_t count, uint32_t chunk)
{
	double least;
	return run_against_model_of(*plan, o, count, chunk, &least);
}

/* f32 throughout: what is left is rounding, about 1e-7 times the square root of the sums'
   length. */
#define ROUNDING 3e-6

static void shapes(void)
{
	static const struct {
		uint32_t heads, kv_heads, head, page_tokens, rows, width, ff;
	} shape[] = {
		{9, 3, 64, 16, 1, 96, 64},    {4, 1, 80, 32, 7, 64, 96},
		{14, 2, 64, 256, 16, 128, 160}, {2, 2, 96, 16, 133, 64, 64},
		{2, 1, 128, 32, 133, 32, 32}, {4, 1, 256, 16, 7, 64, 96},
		{4, 4, 16, 64, 33, 32, 32},
	};
	for (size_t i = 0; i < sizeof shape / sizeof shape[0]; i++)
		for (int way = 0; way < 2; way++) {
			struct device_plan p = fixture_plan();
			struct fixture_options o = {
				.matmul_type = way ? TYPE_Q4_1 : TYPE_F32,
				.embedding_type = way ? TYPE_Q8_0 : TYPE_F32,
				.biases = way,
				.qk_norms = !way,
				.post_norms = way,
				.factors = !way,
				.rope = way ? ROPE_HALVES : ROPE_ADJACENT,
				.gate = way ? GATE_GELU : GATE_SILU,
				.window = way ? 5 : 0,
				.softcap = way ? 3.0f : 0,
				.logit_softcap = way ? 2.0f : 0};
			p.heads = shape[i].heads;
			p.kv_heads = shape[i].kv_heads;
			p.head = shape[i].head;
			p.page_tokens = shape[i].page_tokens;
			p.width = shape[i].width;
			p.ff = shape[i].ff;
			p.threads = 1 + (uint32_t)i % 3;
			const double error = run_against_model(&p, &o, shape[i].rows, 160);
			if (!EXPECT(error < ROUNDING))
				printf("# %s shape %zu way %d: %g\n", worst_isa, i, way, error);
		}
}

static struct device_plan narrow_plan(void)
{
	struct device_plan p = fixture_plan();
	p.heads = 3;
	p.kv_heads = 1;
	p.width = p.ff = 32;
	p.vocab = 40;
	return p;
}

static void partition_edges(void)
{
	static const uint32_t counts[] = {255, 256, 257, 511, 513};
	struct device_plan p = narrow_plan();
	struct fixture_options o = {.matmul_type = TYPE_Q8_0, .embedding_type = TYPE_F16,
				    .window = 300, .rope = ROPE_HALVES};
	for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
		p.threads = 1 + (uint32_t)i % 2;
		const double error = run_against_model(&p, &o, counts[i], 100);
		if (!EXPECT(error < ROUNDING))
			printf("# %s %u tokens: %g\n", worst_isa, counts[i], error);
	}
}

static void weight_types(void)
{
	static const uint32_t types[] = {TYPE_F32,  TYPE_F16,  TYPE_BF16, TYPE_Q4_0,
					 TYPE_Q4_1, TYPE_Q5_0, TYPE_Q5_1, TYPE_Q8_0,
					 TYPE_Q4_K, TYPE_Q5_K, TYPE_Q6_K, TYPE_IQ4_NL,
					 TYPE_MXFP4};
	for (size_t i = 0; i < sizeof types / sizeof types[0]; i++)
		for (int act = ACT_F32; act <= ACT_I8_ROW; act++) {
			struct device_plan p = fixture_plan();
			const struct fixture_options o = {.matmul_type = types[i],
							  .embedding_type = types[i]};
			p.width = p.ff = 256;
			p.act = act;
			/* bf16 has 8 bits and i8 about 7 below the largest of its block or
			   row; four matmuls a layer add theirs. */
			static const double bounds[] = {[ACT_F32] = ROUNDING,
							[ACT_BF16] = 1e-2,
							[ACT_I8_BLOCK] = 5e-2,
							[ACT_I8_ROW] = 8e-2};
			const double bound = bounds[act];
			double least;
			const double error = run_against_model_of(p, &o, 7, 160, &least);
			if (!EXPECT(error < bound) ||
			    !EXPECT(act == ACT_F32 || least > ROUNDING))
				printf("# %s %s act %d: %g\n", worst_isa, weight_type_name(types[i]), act,
				       error);
		}
}

/* Columns that are no multiple of 32, which only the float types can have. */
static void odd_columns(void)
{
	static const uint32_t types[] = {TYPE_F32, TYPE_F16, TYPE_BF16};
	for (size_t i = 0; i < 3; i++)
		for (int act = ACT_F32; act <= ACT_I8_ROW; act++) {
			struct device_plan p = fixture_plan();
			const struct fixture_options o = {.matmul_type = types[i],
							  .embedding_type = types[i]};
			p.width = 77;
			p.ff = 45;
			p.vocab = 51;
			p.act = act;
			EXPECT(run_against_model(&p, &o, 7, 160) <
			       (act == ACT_F32 ? ROUNDING : 8e-2));
		}
}

static void kv_kinds(void)
{
	/* e4m3 has a step of 1/8 at worst, int8 1/127 of the largest, bf16 1/256. */
	static const double bounds[] = {[KV_FP8] = 8e-2, [KV_INT8] = 3e-2, [KV_BF16] = 1e-2,
					[KV_F32] = ROUNDING};
	for (int kv = KV_FP8; kv <= KV_F32; kv++)
		for (uint32_t head = 64; head <= 256; head *= 2) {
			struct device_plan p = narrow_plan();
			const struct fixture_options o = {.matmul_type = TYPE_F32,
							  .embedding_type = TYPE_F32,
							  .smooth = 1};
			p.kv = kv;
			p.head = head;
			p.page_tokens = 32;
			double least;
			const double error = run_against_model_of(p, &o, 90, 31, &least);
			if (!EXPECT(error < bounds[kv]) ||
			    !EXPECT(kv == KV_F32 || least > ROUNDING))
				printf("# %s kv %d head %u: %g\n", worst_isa, kv, head, error);
		}
}

/* Logits of the last `last` of `count` tokens, the rest in chunks of `chunk`, the last ones
   one by one if `single`, with a neighbour of other tokens in every batch
   if `neighbour`. */
struct route {
	uint32_t threads, chunk;
	int single, neighbour, garbage;
};

static void route_run(struct device_plan p, const struct fixture_options *o,
		      const struct route *r, uint32_t count, uint32_t last, float *out)
{
	struct fixture f;
	p.threads = r->threads;
	fixture_open(&f, &p, o, 3);
	pages_tag(&f);
	if (r->garbage) {
		const uint64_t bytes = ops_page_bytes(p.kv, FIXTURE_LAYERS, p.kv_heads,
						      p.head, p.page_tokens);
		uint8_t *bad = take(bytes);
		memset(bad, 0xff, bytes); /* NaN in every format */
		for (uint32_t i = 0; i < p.group[0].page_count; i++)
			CHECK(f.ops->page_write(f.device, 0, i, bad) == 0);
		free(bad);
	}
	uint32_t other[TOKENS_MAX], done = 0;
	for (uint32_t i = 0; i < TOKENS_MAX; i++)
		other[i] = (text[i] * 7 + i) % p.vocab;
	for (uint32_t at = 0; at < count;) {
		uint32_t n = r->single && at >= count - last ? 1 : r->chunk;
		if (at < count - last && n > count - last - at)
			n = count - last - at;
		n = n < count - at ? n : count - at;
		/* The neighbour comes first and is of another length, so rows move. */
		const uint32_t other_count = at % 16 ? 3 : 1;
		const struct fixture_sequence s[2] = {{other, at, other_count, 64, 0},
						      {text, at, n, 0, 0}};
		float *logits = take((size_t)p.samples_max * p.vocab * sizeof *logits);
		EXPECT_EQ(fixture_run(&f, r->neighbour ? s : s + 1, r->neighbour ? 2 : 1, 1,
				      logits),
			  0);
		if (at >= count - last) {
			memcpy(out + (size_t)done * p.vocab,
			       logits + (r->neighbour ? other_count * p.vocab : 0),
			       (size_t)n * p.vocab * sizeof *out);
			done += n;
		}
		free(logits);
		at += n;
	}
	EXPECT_EQ(done, last);
	fixture_close(&f);
}

static void same_bits(void)
{
	static const struct route routes[] = {
		{1, 150, 0, 0, 0}, {2, 150, 0, 0, 1}, {3, 37, 0, 0, 0}, {1, 1, 1, 0, 0},
		{2, 64, 1, 1, 0},  {3, 150, 1, 1, 1},
	};
	enum { COUNT = 530, LAST = 6 };
	for (int isa = ISA_SCALAR; isa <= ISA_AVX512 && ops_isa_runs(isa); isa++)
		for (int turn = KV_FP8; turn <= KV_F32 + 2; turn++) {
			/* The last two: given tokens with weights of their own. */
			const int given = turn > KV_F32, kv = given ? KV_FP8 : turn;
			struct device_plan p = narrow_plan();
			const struct fixture_options o = {.matmul_type = kv % 2 ? TYPE_Q4_1
										: TYPE_Q8_0,
							  .embedding_type = TYPE_Q8_0,
							  .smooth = 1,
							  .window = 280,
							  .rope = ROPE_HALVES};
			float want[LAST * 40], got[LAST * 40];
			p.kv = kv;
			p.isa = isa;
			p.act = kv == KV_BF16 ? ACT_F32 : ACT_I8_BLOCK;
			p.group[0].page_count = 128;
			if (given) {
				p.prefill = turn == KV_F32 + 1 ? PREFILL_INT8 : PREFILL_BF16;
				p.width = 64;
			}
			text_make(5, p.vocab);
			route_run(p, &o, &routes[0], COUNT, LAST, want);
			for (size_t i = 1; i < sizeof routes / sizeof routes[0]; i++) {
				route_run(p, &o, &routes[i], COUNT, LAST, got);
				if (!EXPECT(memcmp(want, got, sizeof want) == 0))
					printf("# isa %d kv %d given %d route %zu\n", isa, kv, given, i);
			}
			/* The copy is not the file's weights. */
			if (given) {
				p.prefill = PREFILL_SAME;
				route_run(p, &o, &routes[0], COUNT, LAST, got);
				EXPECT(memcmp(want, got, sizeof want) != 0);
			}
		}
}

static void faults_stay_alone(void)
{
	struct fixture f;
	const struct device_plan p = fixture_plan();
	const struct fixture_options o = {.matmul_type = TYPE_Q4_1,
					  .embedding_type = TYPE_Q8_0};
	fixture_open(&f, &p, &o, 3);
	text_make(5, p.vocab);
	CHECK(f.ops->page_tags_set(f.device, 0, 0, 64, 1000) == 0);
	const struct fixture_sequence s[3] = {
		{text, 0, 20, 0, 1000}, {text, 0, 33, 8, 1008}, {text, 0, 9, 16, 1016}};
	float alone[100], together[300];
	uint64_t before[2], after[2];
	struct ops_sampled sampled[3];
	struct ops_fault faults[3];
	REQUIRE(fixture_run(&f, s, 1, 2, alone) == 0);
	REQUIRE(f.ops->page_tags_set(f.device, 0, 9, 2, 77) ==
		0); /* the second's second and third */
	REQUIRE(ops_page_digest(f.ops, f.device, 0, 8, 16, before) == 0);
	REQUIRE(fixture_run(&f, s, 3, 2, together) == 0);
	REQUIRE(f.ops->wait(f.device, sampled, faults) == 0);
	REQUIRE(ops_page_digest(f.ops, f.device, 0, 8, 16, after) == 0);
	EXPECT(memcmp(alone, together, sizeof alone) == 0);
	EXPECT(memcmp(before, after, sizeof before) == 0);
	EXPECT(faults[0].page == OPS_NONE && faults[2].page == OPS_NONE);
	EXPECT(faults[1].page == 9 && faults[1].group == 0 && faults[1].found == 77);
	EXPECT(sampled[0].token < 100 && sampled[2].token < 100);
	EXPECT(sampled[1].token == (uint32_t)OPS_NONE);
	/* The next batch starts without faults. */
	REQUIRE(fixture_run(&f, s + 2, 1, 2, NULL) == 0);
	REQUIRE(f.ops->wait(f.device, NULL, faults) == 0);
	EXPECT(faults[0].page == OPS_NONE);
	fixture_close(&f);
}

/* An exact plan gives the scalar path's bits on every instruction set. */
static void exact_plan(void)
{
	enum { COUNT = 70 };
	static const uint32_t types[] = {TYPE_Q4_1, TYPE_Q5_0, TYPE_Q4_K, TYPE_Q8_0, TYPE_F16};
	text_make(5, 96);
	for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
		struct device_plan p = fixture_plan();
		const struct fixture_options o = {.matmul_type = types[i], .embedding_type = TYPE_Q8_0,
						  .biases = 1, .qk_norms = 1, .post_norms = 1, .window = 40,
						  .softcap = 40, .gate = i % 2 ? GATE_GELU : GATE_SILU};
		float *out[2];
		p.width = p.ff = 256; /* of the K types, too */
		p.act = ACT_F32;
		for (int isa = ISA_SCALAR; isa <= ISA_AVX512; isa++) {
			struct fixture f;
			if (!ops_isa_runs((enum isa)isa))
				continue;
			p.isa = (enum isa)isa;
			p.exact = isa != ISA_SCALAR;
			fixture_open(&f, &p, &o, 3);
			pages_tag(&f);
			float *const got = out[p.exact] = take(COUNT * p.vocab * sizeof(float));
			EXPECT_EQ(run_chunks(&f, text, COUNT, 33, 0, got), 0);
			if (p.exact) {
				EXPECT(memcmp(got, out[0], COUNT * p.vocab * sizeof(float)) == 0);
				free(got);
			}
			fixture_close(&f);
		}
		free(out[0]);
	}
}

/* More threads than cores, and than items; HOLDFAST_THREADS_ALL: every count up to 64. */
static void many_threads(void)
{
	enum { COUNT = 90, LAST = 3, MOST = 64 };
	const int all = getenv("HOLDFAST_THREADS_ALL") != NULL;
	const struct fixture_options o = {.matmul_type = TYPE_Q4_1, .embedding_type = TYPE_Q8_0,
					  .rope = ROPE_HALVES};
	struct device_plan p = narrow_plan();
	float want[LAST * 40], got[LAST * 40];
	p.isa = ISA_AUTO;
	p.act = ACT_I8_BLOCK;
	p.group[0].page_count = 128;
	text_make(6, p.vocab);
	for (uint32_t threads = 1; threads <= MOST; threads += all || threads < 4 ? 1 : threads - 1) {
		const struct route r = {threads, 40, 1, 1, 0};
		route_run(p, &o, &r, COUNT, LAST, threads == 1 ? want : got);
		if (threads > 1 && !EXPECT(memcmp(want, got, sizeof want) == 0))
			printf("# %u threads\n", threads);
	}
	const struct route r = {MOST, 40, 1, 1, 0};
	route_run(p, &o, &r, COUNT, LAST, got);
	EXPECT(memcmp(want, got, sizeof want) == 0);
}

/* A line for each set that was left out, so that nobody takes silence for a judgement. */
static void sets_here(void)
{
	for (int isa = ISA_SCALAR; isa <= isa_last(); isa++)
		if (!ops_isa_runs((enum isa)isa))
			printf("# SKIP %s: this machine does not run it\n", ops_isa_name((enum isa)isa));
	if (isa_last() > ISA_SCALAR && !ops_isa_runs(ISA_AVX512))
		TAP_SKIP("this machine does not run all instruction sets");
}

int main(void)
{
	TAP_RUN(sets_here, "the instruction sets that are judged");
	TAP_RUN(shapes, "shapes, norms, biases, windows, caps and both kinds of RoPE");
	TAP_RUN(partition_edges, "sequences that end around the edges of partitions");
	TAP_RUN(weight_types, "every weight type in every precision of activations");
	TAP_RUN(odd_columns, "float weights whose columns are no multiple of 32");
	TAP_RUN(kv_kinds, "every kind of KV");
	TAP_RUN(same_bits, "threads, chunks, neighbours and garbage change no bit");
	TAP_RUN(many_threads, "1 to 64 threads, the same bits");
	TAP_RUN(faults_stay_alone, "a wrong tag stops one sequence and no other");
	TAP_RUN(exact_plan, "an exact plan gives the same bits on every instruction set");
	return tap_done();
}
