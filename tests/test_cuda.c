/*
 * Goal: every kernel of kernels/cuda/ does what the scalar reference does. Method: the same operation
 * on a CPU device and on an emulated GPU, on the same buffers and pages; bits where the arithmetic is
 * the same, a bound where only the order of sums differs. Each case of a kernel under three orders of
 * threads.
 *
 * HOLDFAST_CUDA_ONLY=N runs the Nth test alone.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kernels/fp8.h"
#include "kernels/quant.h"
#include "kernels/shared.h"
#include "tests/cuda_both.h"

static const struct head_shape {
	uint32_t heads, kv_heads, head, page_tokens;
} head_shapes[] = {
	{9, 3, 64, 16}, {4, 1, 80, 32}, {14, 2, 64, 256}, {2, 2, 96, 16},
	{2, 1, 128, 64}, {8, 1, 256, 16}, {5, 1, 16, 16}, {2, 1, 512, 16},
};
enum { HEAD_SHAPES = sizeof head_shapes / sizeof head_shapes[0] };

static struct device_plan head_plan(const struct head_shape *s, enum kv_kind kv)
{
	struct device_plan p = fixture_plan();
	p.heads = s->heads;
	p.kv_heads = s->kv_heads;
	p.head = s->head;
	p.page_tokens = s->page_tokens;
	p.kv = kv;
	p.width = p.ff = p.vocab = 32;
	p.rows_max = 48;
	p.samples_max = 8;
	return p;
}

/* RoPE, norms of heads, smoothing, encoders: a page written by one is the other's, byte for byte. */
static void pages_written(void)
{
	uint64_t state = 1;
	for (uint32_t i = 0; i < HEAD_SHAPES; i++)
		for (int kv = KV_FP8; kv <= KV_F32; kv++) {
			if (less(i + (uint32_t)kv))
				continue;
			const struct fixture_options o = {.matmul_type = TYPE_F32, .embedding_type = TYPE_F32,
							  .qk_norms = (int)(i & 1), .smooth = 1,
							  .factors = (int)(i & 2),
							  .rope = i & 1 ? ROPE_HALVES : ROPE_ADJACENT};
			struct device_plan p = head_plan(&head_shapes[i], kv);
			both_open(&p, &o, i);
			const struct fixture_sequence s[2] = {{text, 200 + 5 * i, 19, 0, 0}, {text, 0, 3, 40, 0}};
			const size_t kv_floats = (size_t)22 * p.kv_heads * p.head;
			for (int order = 0; order < SEEDS; order++) {
				hook_seed(seeds[order]);
				free(both_batch(s, 2, 0, 0));
				both_fill(BUFFER_Q, (size_t)22 * p.heads * p.head, 1, &state);
				both_fill(BUFFER_K, kv_floats, kv == KV_FP8 ? 100 : 1, &state);
				both_fill(BUFFER_V, kv_floats, 1e-3f, &state);
				for (uint32_t l = 0; l < FIXTURE_LAYERS; l++) {
					EXPECT(cpu.ops->rope_write(cpu.device, &cpu.layer[l].ops) == 0);
					EXPECT(gpu.ops->rope_write(gpu.device, &gpu.layer[l].ops) == 0);
				}
				EXPECT(both_error(BUFFER_Q, (size_t)22 * p.heads * p.head) == 0);
				EXPECT(both_error(BUFFER_K, kv_floats) == 0);
				if (!EXPECT(pages_equal(0, 43)))
					printf("# shape %u kv %d\n", i, kv);
			}
			both_close();
		}
}

/* Random pages of NaN but for what was written, then attention by both. */
static double attention_error(const struct device_plan *p, const struct fixture_options *o, uint32_t phase,
			      uint32_t count, uint64_t seed)
{
	uint64_t state = seed;
	both_open(p, o, seed);
	const uint64_t bytes = ops_page_bytes(p->kv, FIXTURE_LAYERS, p->kv_heads, p->head, p->page_tokens);
	uint8_t *bad = malloc(bytes);
	memset(bad, 0xff, bytes);
	for (uint32_t i = 0; i < 40; i++) {
		CHECK(cpu.ops->page_write(cpu.device, 0, i, bad) == 0);
		CHECK(gpu.ops->page_write(gpu.device, 0, i, bad) == 0);
	}
	free(bad);
	double worst = 0;
	for (uint32_t at = 0; at < count;) {
		/* The last rows are what is looked at; those before only fill pages. */
		const uint32_t n = count - at > 40 ? 40 : count - at;
		const struct fixture_sequence s = {text, at, n, 0, 0};
		const size_t rows = (size_t)n;
		free(both_batch(&s, 1, phase, 0));
		both_fill(BUFFER_Q, rows * p->heads * p->head, 1, &state);
		both_fill(BUFFER_K, rows * p->kv_heads * p->head, 1, &state);
		both_fill(BUFFER_V, rows * p->kv_heads * p->head, 1, &state);
		for (uint32_t l = 0; l < FIXTURE_LAYERS; l++) {
			CHECK(cpu.ops->rope_write(cpu.device, &cpu.layer[l].ops) == 0);
			CHECK(gpu.ops->rope_write(gpu.device, &gpu.layer[l].ops) == 0);
		}
		at += n;
		if (at < count)
			continue;
		for (uint32_t l = 0; l < FIXTURE_LAYERS; l++) {
			EXPECT(cpu.ops->attend(cpu.device, &cpu.layer[l].ops) == 0);
			for (int order = 0; order < SEEDS; order++) {
				hook_seed(seeds[order]);
				EXPECT(gpu.ops->attend(gpu.device, &gpu.layer[l].ops) == 0);
				const double error = both_error(BUFFER_A, rows * p->heads * p->head);
				if (!(error <= worst) && !isnan(worst)) /* NaN is the worst, and stays */
					worst = error;
			}
		}
	}
	both_close();
	return worst;
}

static void attention_rows(void)
{
	for (uint32_t i = 0; i < HEAD_SHAPES; i++)
		for (int kv = KV_FP8; kv <= KV_F32; kv++) {
			if (less(i + (uint32_t)kv))
				continue;
			const struct fixture_options o = {.matmul_type = TYPE_F32, .embedding_type = TYPE_F32,
							  .smooth = 1, .window = i & 1 ? 37 : 0,
							  .softcap = i & 2 ? 3.0f : 0};
			struct device_plan p = head_plan(&head_shapes[i], kv);
			const uint32_t counts[] = {1, 530, 7, 17}; /* 530: two merges */
			p.exact = 1; /* f32 on both sides */
			const double error = attention_error(&p, &o, 1, counts[(i + kv) % 4], i * 4 + kv);
			if (!EXPECT(error < 3e-6))
				printf("# shape %u kv %d: %g\n", i, kv, error);
		}
}

/* On tensor cores q and p are rounded to bf16: 2^-9 each. */
static void attention_tiles(void)
{
	for (uint32_t i = 0; i < HEAD_SHAPES; i++)
		for (int kv = KV_FP8; kv <= KV_BF16; kv++) {
			if (less(i + (uint32_t)kv))
				continue;
			const struct fixture_options o = {.matmul_type = TYPE_F32, .embedding_type = TYPE_F32,
							  .smooth = 1, .window = i & 1 ? 37 : 0,
							  .softcap = i & 2 ? 3.0f : 0};
			const struct device_plan p = head_plan(&head_shapes[i], kv);
			const uint32_t counts[] = {33, 283, 1, 257};
			const double error = attention_error(&p, &o, 0, counts[(i + kv) % 4], i * 3 + kv);
			if (!EXPECT(error < 6e-3))
				printf("# shape %u kv %d: %g\n", i, kv, error);
		}
}

static const uint32_t all_types[] = {TYPE_F32,  TYPE_F16,  TYPE_BF16, TYPE_Q4_0, TYPE_Q4_1,
				     TYPE_Q5_0, TYPE_Q5_1, TYPE_Q8_0, TYPE_Q4_K, TYPE_Q5_K,
				     TYPE_Q6_K, TYPE_IQ4_NL, TYPE_MXFP4};
enum { TYPES = sizeof all_types / sizeof all_types[0] };

/* Every type in every precision of activations: the CPU's numbers, but for the order of sums. */
static void products(void)
{
	const uint32_t rows[] = {1, 11, 19, 41};
	for (uint32_t i = 0; i < TYPES; i++)
		for (int act = ACT_F32; act <= ACT_I8_ROW; act++) {
			struct device_plan p = fixture_plan();
			const struct fixture_options o = {.matmul_type = all_types[i],
							  .embedding_type = all_types[i], .biases = 1};
			if (less(i + (uint32_t)act))
				continue;
			const int wide = weight_type_elements(all_types[i]) == 256;
			p.heads = p.kv_heads = 1;
			p.head = wide ? 256 : 96;
			p.width = wide ? 256 : 96;
			p.ff = wide ? 256 : 32;
			p.vocab = 24;
			p.rows_max = 48;
			p.act = act;
			both_open(&p, &o, i);
			const uint32_t n = rows[(i + (uint32_t)act) % 4];
			const struct fixture_sequence s = {text, 0, n, 0, 0};
			uint64_t state = i;
			free(both_batch(&s, 1, 0, 2));
			const struct ops_layer *a = &cpu.layer[0].ops, *b = &gpu.layer[0].ops;
			/* A norm that differs in its last bit can move an integer by one step. */
			const double bound = act == ACT_F32 ? 1e-6 : act == ACT_BF16 ? 1e-4 : 1e-3;
			for (int order = 0; order < SEEDS; order++) {
				hook_seed(seeds[order]);
				both_fill(BUFFER_X, (size_t)n * p.width, 1, &state);
				EXPECT(cpu.ops->qkv(cpu.device, a) == 0 && gpu.ops->qkv(gpu.device, b) == 0);
				const double error = fmax(both_error(BUFFER_Q, (size_t)n * p.head),
							  both_error(BUFFER_V, (size_t)n * p.head));
				EXPECT(cpu.ops->gate_up(cpu.device, a) == 0 && gpu.ops->gate_up(gpu.device, b) == 0);
				const double gates = both_error(BUFFER_F, (size_t)n * p.ff);
				both_fill(BUFFER_A, (size_t)n * p.head, 1, &state);
				EXPECT(cpu.ops->output(cpu.device, a) == 0 && gpu.ops->output(gpu.device, b) == 0);
				const double back = both_error(BUFFER_X, (size_t)n * p.width);
				if (!EXPECT(error < bound) || !EXPECT(gates < bound) || !EXPECT(back < 1e-6))
					printf("# %s act %d rows %u: %g %g %g\n", weight_type_name(all_types[i]), act, n,
					       error, gates, back);
			}
			both_close();
		}
}

/* The exact group form, to the bit: integer dots of 32, fma in the order that matmul.cu states. */
static float exact_sum(const struct quant_block *w, uint32_t blocks, const float *x)
{
	float sums[8] = {0};
	for (uint32_t b = 0; b < blocks; b++) {
		float largest = 0;
		int q[32], sum = 0;
		for (int i = 0; i < 32; i++)
			largest = fabsf(x[32 * b + i]) > largest ? fabsf(x[32 * b + i]) : largest;
		const float da = largest / 127.0f, inverse = 1.0f / da;
		for (int i = 0; i < 32; i++)
			sum += q[i] = (int)rintf(x[32 * b + i] * inverse);
		const struct quant_block *k = &w[b];
		float *const acc = &sums[b / 2 % 8];
		for (uint32_t part = 0; part < 32; part += k->part) {
			int dot = 0;
			for (uint32_t i = part; i < part + k->part; i++)
				dot += k->q[i] * q[i];
			*acc = fmaf(k->d[part / k->part] * da, (float)dot, *acc);
		}
		if (!k->symmetric)
			*acc = fmaf(k->m[0], da * (float)sum, *acc);
	}
	float all = sums[0];
	for (int i = 1; i < 8; i++)
		all += sums[i];
	return all;
}

/* A row of a type as blocks of 32. */
static void blocks_of(uint32_t type, const uint8_t *row, uint32_t columns, struct quant_block *out)
{
	const uint32_t elements = weight_type_elements(type);
	for (uint32_t k = 0; k < columns; k += elements, row += weight_type_bytes(type)) {
		struct quant_block b;
		quant_unpack(type, row, &b);
		for (uint32_t i = 0; i < elements; i += 32, out++) {
			*out = b;
			memcpy(out->q, b.q + i, 32);
			for (uint32_t j = 0; j < 32 / b.part; j++) {
				out->d[j] = b.d[i / b.part + j];
				out->m[j] = b.m[i / b.part + j];
			}
		}
	}
}

static void products_exact(void)
{
	enum { WIDTH = 1280, VOCAB = 40, ROWS = 20 };
	static struct quant_block blocks[WIDTH / 32];
	for (uint32_t i = 0; i < TYPES; i++) {
		const uint32_t type = all_types[i];
		uint64_t state = 77 + i;
		struct device_plan p = fixture_plan();
		const struct fixture_options o = {.matmul_type = TYPE_F32, .embedding_type = TYPE_F32};
		if (!quant_is_integer(type))
			continue;
		p.heads = p.kv_heads = 1;
		p.head = WIDTH / 5; /* A's row is 256: the output product is not looked at */
		p.width = VOCAB;
		p.ff = WIDTH;
		p.rows_max = 32;
		p.act = ACT_I8_BLOCK;
		both_open(&p, &o, 1);
		uint8_t *data = random_weight(&state, type, (size_t)WIDTH * VOCAB, 1);
		struct weight *w = NULL;
		EXPECT(gpu.ops->weight_make(gpu.device, type, WEIGHT_MATMUL, VOCAB, WIDTH, data, &w) == 0);
		struct ops_layer l = gpu.layer[0].ops;
		l.down = w;
		const struct fixture_sequence s = {text, 0, ROWS, 0, 0};
		free(both_batch(&s, 1, 0, 0));
		both_fill(BUFFER_F, (size_t)ROWS * WIDTH, 1, &state);
		float *x = floats((size_t)ROWS * WIDTH), *zero = floats(ROWS * VOCAB), *got = floats(ROWS * VOCAB);
		CHECK(cpu.ops->buffer_read(cpu.device, BUFFER_F, 0, (size_t)ROWS * WIDTH, x) == 0);
		for (int order = 0; order < SEEDS; order++) {
			hook_seed(seeds[order]);
			CHECK(gpu.ops->buffer_write(gpu.device, BUFFER_X, 0, ROWS * VOCAB, zero) == 0);
			EXPECT(gpu.ops->down(gpu.device, &l) == 0);
			EXPECT(gpu.ops->buffer_read(gpu.device, BUFFER_X, 0, ROWS * VOCAB, got) == 0);
			uint32_t wrong = 0;
			for (uint32_t v = 0; v < VOCAB; v++) {
				const size_t at = (size_t)v * WIDTH / weight_type_elements(type);
				blocks_of(type, data + at * weight_type_bytes(type), WIDTH, blocks);
				for (uint32_t r = 0; r < ROWS; r++)
					wrong += got[r * VOCAB + v] != exact_sum(blocks, WIDTH / 32, x + (size_t)r * WIDTH);
			}
			if (!EXPECT(wrong == 0))
				printf("# %s: %u of %u\n", weight_type_name(type), wrong, ROWS * VOCAB);
		}
		gpu.ops->weight_free(gpu.device, &w);
		free(data);
		free(x);
		free(zero);
		free(got);
		both_close();
	}
}

static void step_both(const struct fixture_sequence *s, uint32_t count, int sample)
{
	free(both_batch(s, count, 0, sample));
	EXPECT(fixture_step(&cpu) == 0);
	EXPECT(fixture_step(&gpu) == 0);
}

/* Whole steps, with all that a layer may have, against the CPU's logits and samples. */
static void steps(void)
{
	for (int way = 0; way < 3; way++) {
		struct device_plan p = fixture_plan();
		if (way == 2 && less(1))
			continue;
		const struct fixture_options o = {
			.matmul_type = way == 1 ? TYPE_Q4_1 : TYPE_F32, .embedding_type = way ? TYPE_Q6_K : TYPE_F16,
			.biases = way, .qk_norms = !way, .post_norms = way == 1, .factors = way == 2,
			.rope = way ? ROPE_HALVES : ROPE_ADJACENT, .gate = way ? GATE_GELU : GATE_SILU,
			.window = way == 1 ? 5 : 0, .softcap = way ? 3.0f : 0, .logit_softcap = way ? 2.0f : 0};
		p.width = 256;
		p.rows_max = 24;
		p.samples_max = 24;
		both_open(&p, &o, 3);
		struct ops_sampled a[2], b[2];
		struct ops_fault f[2], g[2];
		const struct fixture_sequence first[2] = {{text, 0, 13, 0, 0}, {text, 0, 2, 8, 0}};
		const struct fixture_sequence then[2] = {{text, 13, 1, 0, 0}, {text, 2, 5, 8, 0}};
		hook_seed(seeds[way]);
		step_both(first, 2, 2);
		/* Again and again the same step: it writes what it wrote. */
		for (int order = 0; order < (less(1) ? 1 : SEEDS); order++) {
			hook_seed(seeds[(way + order) % SEEDS]);
			step_both(then, 2, 2);
			EXPECT(both_error(BUFFER_LOGITS, 2 * p.vocab) < 1e-5);
			EXPECT(cpu.ops->wait(cpu.device, a, f) == 0);
			EXPECT(gpu.ops->wait(gpu.device, b, g) == 0);
			for (int i = 0; i < 2; i++) {
				EXPECT_EQ(a[i].token, b[i].token);
				EXPECT(fabsf(a[i].logprob - b[i].logprob) < 1e-4f);
				EXPECT(g[i].page == (uint32_t)OPS_NONE);
			}
		}
		both_close();
	}
}

/* One row's logits, whatever the batch, the chunks and the garbage: the same bits (K1, K5). */
static void alone_or_not(enum kv_kind kv, uint32_t type)
{
	enum { COUNT = 262, VOCAB = 40 };
	static const struct { uint32_t chunk, neighbour, seed; } routes[] = {{64, 0, 0}, {23, 1, 1}, {50, 1, 99}};
	struct device_plan p = fixture_plan();
	const struct fixture_options o = {.matmul_type = type, .embedding_type = TYPE_Q8_0, .smooth = 1,
					  .window = 280, .rope = ROPE_HALVES};
	float want[VOCAB], got[VOCAB * 2];
	p.heads = 6;
	p.kv_heads = 1;
	p.head = 32;
	p.width = p.ff = 32;
	p.vocab = VOCAB;
	p.rows_max = 80;
	p.act = ACT_I8_BLOCK;
	p.kv = kv;
	for (size_t i = 0; i < sizeof routes / sizeof routes[0]; i++) {
		if (i == 1 && less(1))
			continue;
		fixture_table = ops_cuda;
		fixture_open(&gpu, &p, &o, 3);
		hook_seed(routes[i].seed);
		for (uint32_t at = 0; at < COUNT;) {
			uint32_t n = routes[i].chunk < COUNT - at ? routes[i].chunk : COUNT - at;
			if (i && at + n == COUNT && n > 1)
				n--; /* the last one alone */
			const struct fixture_sequence s[2] = {{text + 100, at, at % 5 + 1, 24, 0},
							      {text, at, n, 0, 0}};
			const uint32_t two = routes[i].neighbour;
			EXPECT_EQ(fixture_run(&gpu, s + 1 - two, 1 + two, 2, got), 0);
			at += n;
		}
		if (i == 0)
			memcpy(want, got, sizeof want);
		else if (!EXPECT(memcmp(want, got + VOCAB * routes[i].neighbour, sizeof want) == 0))
			printf("# kv %d route %zu\n", kv, i);
		fixture_close(&gpu);
	}
	EXPECT(hook_fault() == NULL);
}

static void same_bits(void)
{
	alone_or_not(KV_FP8, TYPE_Q4_1);
	if (less(1))
		return;
	alone_or_not(KV_INT8, TYPE_Q5_0);
	alone_or_not(KV_BF16, TYPE_Q8_0);
	alone_or_not(KV_F32, TYPE_F32);
}

/* Tags: the first page that is wrong, nothing of it read or written, neighbours untouched. */
static void tags(void)
{
	const struct device_plan p = fixture_plan();
	const struct fixture_options o = {.matmul_type = TYPE_Q4_1, .embedding_type = TYPE_Q8_0};
	both_open(&p, &o, 3);
	CHECK(cpu.ops->page_tags_set(cpu.device, 0, 0, 64, 1000) == 0);
	CHECK(gpu.ops->page_tags_set(gpu.device, 0, 0, 64, 1000) == 0);
	const struct fixture_sequence s[3] = {
		{text, 0, 3, 0, 1000}, {text, 600, 3, 4, 1004}, {text, 0, 9, 50, 1050}};
	struct ops_fault a[3], b[3];
	struct ops_sampled sampled[3];
	const uint64_t bytes = ops_page_bytes(p.kv, FIXTURE_LAYERS, p.kv_heads, p.head, p.page_tokens);
	uint8_t *const before = malloc(65 * bytes), *const after = before + 64 * bytes;
	CHECK(before);
	step_both(s, 3, 2);
	for (uint32_t i = 0; i < 64; i++)
		CHECK(gpu.ops->page_read(gpu.device, 0, i, before + i * bytes) == 0);
	/* Two of the second's pages, the later one first in no order: 38 and 40 are beyond a warp's 32. */
	for (uint32_t i = 40; i >= 38; i -= 2) {
		CHECK(cpu.ops->page_tags_set(cpu.device, 0, i, 1, 70 + i) == 0);
		CHECK(gpu.ops->page_tags_set(gpu.device, 0, i, 1, 70 + i) == 0);
	}
	for (int order = 0; order < SEEDS; order++) {
		hook_seed(seeds[order]);
		step_both(s, 3, 2);
		EXPECT(cpu.ops->wait(cpu.device, NULL, a) == 0 && gpu.ops->wait(gpu.device, sampled, b) == 0);
		for (int i = 0; i < 3; i++) {
			EXPECT_EQ(a[i].page, b[i].page);
			EXPECT(i != 1 || (b[i].page == 38 && b[i].group == a[i].group && b[i].found == a[i].found));
		}
		EXPECT(sampled[1].token == (uint32_t)OPS_NONE && sampled[0].token < p.vocab);
	}
	for (uint32_t i = 4; i < 50; i++) {
		CHECK(gpu.ops->page_read(gpu.device, 0, i, after) == 0);
		EXPECT(memcmp(before + i * bytes, after, bytes) == 0);
	}
	free(before);
	/* A full read of attention's zeros: rows 3 .. 5 are the second's. */
	float *zeros = floats(3 * 256);
	EXPECT(gpu.ops->buffer_read(gpu.device, BUFFER_A, 3 * 256, 3 * 256, zeros) == 0);
	for (int i = 0; i < 3 * 256; i++)
		EXPECT(zeros[i] == 0);
	free(zeros);
	both_close();
}

/* Pages move, tags count, indices are checked; and what was written by one is read by the other. */
static void pages_move(void)
{
	struct device_plan p = fixture_plan();
	const struct fixture_options o = {.matmul_type = TYPE_Q4_1, .embedding_type = TYPE_Q8_0};
	p.kv = KV_FP8;
	both_open(&p, &o, 3);
	const struct fixture_sequence s = {text, 0, 40, 0, 0};
	const uint64_t bytes = ops_page_bytes(p.kv, FIXTURE_LAYERS, p.kv_heads, p.head, p.page_tokens);
	uint8_t *page = malloc(bytes);
	uint64_t tag = 0;
	step_both(&s, 1, 2);
	for (uint32_t i = 0; i < 3; i++) { /* the GPU's pages to the CPU, and the other way, by page 30 */
		EXPECT(gpu.ops->page_read(gpu.device, 0, i, page) == 0);
		EXPECT(cpu.ops->page_write(cpu.device, 0, 30 + i, page) == 0);
		EXPECT(gpu.ops->page_copy(gpu.device, 0, i, 30 + i) == 0);
	}
	EXPECT(pages_equal(30, 3));
	EXPECT(gpu.ops->page_clear(gpu.device, 0, 31, 2) == 0 && cpu.ops->page_clear(cpu.device, 0, 31, 2) == 0);
	EXPECT(pages_equal(30, 4));
	EXPECT(gpu.ops->page_tags_set(gpu.device, 0, 5, 3, 90) == 0);
	EXPECT(gpu.ops->page_tag(gpu.device, 0, 7, &tag) == 0 && tag == 92);
	EXPECT(gpu.ops->page_tag(gpu.device, 0, 8, &tag) == 0 && tag == 0);
	EXPECT_EQ(gpu.ops->page_read(gpu.device, 1, 0, page), -ERR_OUT_OF_RANGE);
	EXPECT_EQ(gpu.ops->page_read(gpu.device, 0, 64, page), -ERR_OUT_OF_RANGE);
	EXPECT_EQ(gpu.ops->page_tags_set(gpu.device, 0, 60, 5, 1), -ERR_OUT_OF_RANGE);
	EXPECT_EQ(gpu.ops->page_copy(gpu.device, 0, 0, 64), -ERR_OUT_OF_RANGE);
	free(page);
	both_close();
}

/* This thread's CPU time. */
static uint64_t own_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Digests of pages of noise, many at once, in two groups of unlike depth, of every number of positions. */
static void digests(void)
{
	enum { PAGES = 3 };
	for (uint32_t i = 0; i < HEAD_SHAPES; i++)
		for (int kv = KV_FP8; kv <= KV_F32; kv++) {
			const struct fixture_options o = {.matmul_type = TYPE_F32, .embedding_type = TYPE_F32};
			struct device_plan p = head_plan(&head_shapes[i], kv);
			struct ops_digest a[80], b[80];
			uint64_t state = i;
			if ((i + (uint32_t)kv) % (less(1) ? 8 : 4))
				continue;
			p.group[p.group_count] = p.group[0];
			p.group[p.group_count++].layers = 1;
			both_open(&p, &o, i);
			const uint64_t bytes = ops_page_bytes(kv, FIXTURE_LAYERS, p.kv_heads, p.head, p.page_tokens);
			uint8_t *page = malloc(bytes);
			CHECK(page);
			for (uint32_t g = 0; g < 2; g++)
				for (uint32_t k = 0; k < PAGES; k++) {
					for (size_t at = 0; at < bytes; at++)
						page[at] = (uint8_t)random_next(&state);
					CHECK(cpu.ops->page_write(cpu.device, g, k, page) == 0);
					CHECK(gpu.ops->page_write(gpu.device, g, k, page) == 0);
				}
			free(page);
			/* More than go at once; each number of positions of a tile, none, and all. */
			const uint32_t count = i + (uint32_t)kv == 0 && !less(1) ? 70 : 18;
			memset(a, 0, sizeof a);
			for (uint32_t k = 0; k < count; k++) {
				a[k].group = k / 3 % 2;
				a[k].page = k % PAGES;
				a[k].tokens = k < 17 ? k : k == 17 ? p.page_tokens : random_below(&state, p.page_tokens + 1);
			}
			memcpy(b, a, sizeof b);
			EXPECT(cpu.ops->page_digests(cpu.device, a, count) == 0);
			hook_counts();
			const uint64_t from = own_ns();
			for (int order = 0; order < SEEDS; order++) {
				hook_seed(seeds[order]);
				EXPECT(gpu.ops->page_digests(gpu.device, b, count) == 0);
				if (!EXPECT(memcmp(a, b, sizeof b) == 0))
					printf("# shape %u kv %d\n", i, kv);
				memset(b[0].digest, 0, sizeof b[0].digest);
			}
			const struct hook_counts done = hook_counts();
			if (count > 64 && hook_emulated())
				printf("# %u digests: %.1f us of the host's, %u launches and %u waits\n", count,
				       (double)(own_ns() - from - done.gpu_ns) / 1e3 / SEEDS,
				       done.launches / SEEDS, done.waits / SEEDS);
			b[1].tokens = p.page_tokens + 1;
			EXPECT_EQ(gpu.ops->page_digests(gpu.device, b, 2), -ERR_OUT_OF_RANGE);
			b[1] = (struct ops_digest){.group = 2};
			EXPECT_EQ(gpu.ops->page_digests(gpu.device, b, 2), -ERR_OUT_OF_RANGE);
			EXPECT_EQ(gpu.ops->page_digests(gpu.device, b, 0), 0);
			both_close();
		}
}

/* Weights come back as they went, for every type, and are charged as predicted. */
static void weights(void)
{
	const struct device_plan p = fixture_plan();
	const struct fixture_options o = {.matmul_type = TYPE_F32, .embedding_type = TYPE_F32};
	both_open(&p, &o, 1);
	const size_t before = hook_taken();
	for (uint32_t i = 0; i < TYPES; i++) {
		enum { ROWS = 37 };
		const uint32_t type = all_types[i], columns = weight_type_elements(type) == 256 ? 512 : 96;
		uint64_t state = i;
		const size_t n = (size_t)ROWS * columns;
		uint8_t *data = random_weight(&state, type, n, 1);
		float *want = floats(n), *got = floats(n);
		struct weight *w = NULL;
		quant_decode(type, data, n, want);
		EXPECT(gpu.ops->weight_make(gpu.device, type, WEIGHT_MATMUL, ROWS, columns, data, &w) == 0);
		EXPECT(gpu.ops->weight_rows(gpu.device, w, 0, ROWS, got) == 0);
		if (!EXPECT(memcmp(want, got, n * sizeof *want) == 0))
			printf("# %s\n", weight_type_name(type));
		EXPECT_EQ(gpu.ops->weight_bytes(w), gpu.ops->weight_needs(&p, type, WEIGHT_MATMUL, ROWS, columns));
		EXPECT(!hook_emulated() || hook_taken() - before == gpu.ops->weight_bytes(w));
		gpu.ops->weight_free(gpu.device, &w);
		free(data);
		free(want);
		free(got);
	}
	EXPECT_EQ(hook_taken(), before);
	both_close();
}

/* Every code of the eight-bit kinds comes out as its value, from both kernels: a position that is alone
   in its history is the answer. A group's largest value makes its scale 1. */
static void codes(void)
{
	enum { KV_HEADS = 4, HEAD = 128, VALUES = KV_HEADS * HEAD };
	static const struct head_shape shape = {2 * KV_HEADS, KV_HEADS, HEAD, 16};
	static const struct fixture_options o = {.matmul_type = TYPE_F32, .embedding_type = TYPE_F32};
	for (int i = 0; i < 4; i++) {
		const int kv = i % 2 ? KV_INT8 : KV_FP8;
		const struct fixture_sequence s = {text, 0, 1, 0, 0};
		struct device_plan p = head_plan(&shape, kv);
		float v[VALUES], got[2 * VALUES];
		p.exact = i / 2;
		both_open(&p, &o, 1);
		free(both_batch(&s, 1, 1, 0));
		for (uint32_t k = 0; k < VALUES; k++) {
			const uint32_t code = (k / 64 * 63 + k % 64) % 256;
			const float x = kv == KV_INT8 ? (float)(code % 255) - 127 : fp8_decode((uint8_t)code);
			v[k] = k % 64 == 63 ? (kv == KV_INT8 ? 127 : 448) : isnan(x) ? 0 : x;
		}
		CHECK(gpu.ops->buffer_write(gpu.device, BUFFER_V, 0, VALUES, v) == 0);
		CHECK(gpu.ops->rope_write(gpu.device, &gpu.layer[0].ops) == 0);
		EXPECT(gpu.ops->attend(gpu.device, &gpu.layer[0].ops) == 0);
		EXPECT(gpu.ops->buffer_read(gpu.device, BUFFER_A, 0, 2 * VALUES, got) == 0);
		for (uint32_t k = 0; k < 2 * VALUES; k++)
			if (got[k] != v[k / HEAD / 2 * HEAD + k % HEAD] && !EXPECT(0))
				printf("# kv %d, exact %d: %g, not %g\n", kv, i / 2, (double)got[k],
				       (double)v[k / HEAD / 2 * HEAD + k % HEAD]);
		both_close();
	}
}

int main(void)
{
	static const struct { void (*run)(void); const char *what; } list[] = {
		{pages_written, "RoPE and the writing of pages: the CPU's bytes"},
		{attention_rows, "attention on CUDA cores"},
		{attention_tiles, "attention on tensor cores"},
		{products, "every type in every precision of activations"},
		{products_exact, "the exact group form, to the bit"},
		{steps, "whole steps against the CPU"},
		{same_bits, "chunks, neighbours and garbage change no bit"},
		{tags, "a wrong tag stops one sequence and no other"},
		{pages_move, "pages and tags"},
		{weights, "weights come back as they went"},
		{digests, "digests of pages: the CPU's"},
		{codes, "every code of an eight-bit page, to the bit"},
	};
	const char *only = getenv("HOLDFAST_CUDA_ONLY");
	if (hook_missing())
		return tap_skip_all(hook_missing());
	text_make(24);
	for (size_t i = 0; i < sizeof list / sizeof list[0]; i++)
		if (!only || (size_t)atoi(only) == i + 1)
			TAP_RUN(list[i].run, list[i].what);
	return tap_done();
}
