/*
 * The leaves alone on one core: giga multiply-adds a second of the matmuls, tokens a second of
 * attention, gigabytes or values a second of the rest. Best of many short slices, in thread CPU
 * time, so that neighbours hardly show.
 *
 *	bench_leaves [amx|avx512|avx2|plain|scalar ...]
 *	bench_leaves sample
 *
 * Where AMX is, `avx512` is without it and `amx` with it; `plain` is AVX2 without AVX-VNNI. `sample`: one
 * sample of 262,144 logits, by what is asked of it.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "kernels/cpu/device.h"
#include "kernels/cpu/fast.h"
#include "tests/kernels_fixture.h"

#define HUGE_BYTES ((size_t)2 << 20)

enum { COLUMNS_MAX = 512, SLICES = 7, HEAD = 64, HEADS = 3, PAGE = 64, CONTEXT = 2048 };

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void *room(size_t bytes)
{
	const size_t align = bytes > HUGE_BYTES ? HUGE_BYTES : 64;
	void *p = aligned_alloc(align, (bytes + 64 + align) / align * align);

	if (p && bytes > HUGE_BYTES)
		madvise(p, bytes, MADV_HUGEPAGE); /* as the device does */
	if (!p) {
		fprintf(stderr, "bench_leaves: no memory for %zu bytes\n", bytes);
		exit(1);
	}
	memset(p, 0, bytes);
	return p;
}

static uint32_t seed = 1;

static float noise(void)
{
	seed = seed * 1664525 + 1013904223;
	return (float)(int32_t)seed / 2147483648.0f;
}

/* Seconds of one call: the best of SLICES slices of at least 4 ms each. */
#define BEST(seconds, call) \
	do { \
		seconds = 1e9; \
		for (int slice_ = 0; slice_ < SLICES; slice_++) { \
			const double start_ = now(); \
			double end_; \
			uint32_t calls_ = 0; \
			do { \
				call; \
				calls_++; \
				end_ = now(); \
			} while (end_ - start_ < 0.004); \
			if ((end_ - start_) / calls_ < seconds) \
				seconds = (end_ - start_) / calls_; \
		} \
	} while (0)

/* Bytes of 0x38 to 0x3f make numbers of middling size, wherever a type has its scales: tiny ones would
   be slow for a reason that no model has. */
static struct weight *weight_of(uint32_t type, uint32_t rows, uint32_t columns)
{
	const size_t bytes = (size_t)rows * columns / weight_type_elements(type) * weight_type_bytes(type);
	uint8_t *data = room(bytes);
	struct weight *w = NULL;

	for (size_t i = 0; i < bytes; i++) {
		noise();
		data[i] = (uint8_t)(0x38 | (seed >> 20 & 7));
	}
	if (pack_make(NULL, type, WEIGHT_MATMUL, rows, columns, data, &w) != 0) {
		fprintf(stderr, "bench_leaves: no weight of %u x %u\n", rows, columns);
		exit(1);
	}
	free(data);
	return w;
}

static void bench_matmul(const struct leaf *leaf, const char *name, uint32_t type, enum act_kind kind,
			 uint32_t rows, uint32_t columns)
{
	static const uint32_t counts[] = { 1, 2, 4, 8, 16, 32, 64, 512 };
	struct weight *w = weight_of(type, rows, columns);
	const size_t blocks = columns / ACT_BLOCK;
	float *x = room(sizeof(float) * COLUMNS_MAX * columns);
	float *d = room(sizeof(float) * COLUMNS_MAX * blocks);
	float *s = room(sizeof(float) * COLUMNS_MAX * blocks);
	int8_t *q = room((size_t)COLUMNS_MAX * columns);
	float *out = room(sizeof(float) * COLUMNS_MAX * rows);
	const struct act a = { .kind = kind, .columns = columns, .x = x, .x_stride = columns, .q = q,
			       .q_stride = columns, .d = d, .s = s, .block_stride = blocks };

	for (size_t i = 0; i < (size_t)COLUMNS_MAX * columns; i++)
		x[i] = noise();
	for (size_t c = 0; c < COLUMNS_MAX; c++)
		leaf->quantise(x + c * columns, columns, q + c * columns, d + c * blocks, s + c * blocks);
	printf("%-7s %-9s %6u x %-5u", leaf->name, name, rows, columns);
	for (uint32_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
		double t;

		if ((double)rows * columns * counts[i] > 4e9) {
			printf("%9s", "-");
			continue;
		}
		BEST(t, leaf->matmul[w->pack](w, 0, rows / PACK_ROWS, &a, 0, counts[i], out, rows));
		printf("%9.1f", (double)rows * columns * counts[i] / t * 1e-9);
	}
	printf("\n");
	pack_free(NULL, w);
	free(x);
	free(d);
	free(s);
	free(q);
	free(out);
}

/* The copy for given tokens, of a Q4_1: rows of activations with one scale, or in bf16. */
static void bench_given(const struct leaf *leaf, enum prefill_kind kind, uint32_t rows, uint32_t columns)
{
	const enum pack pack = kind == PREFILL_INT8 ? PACK_I8 : PACK_BF16;
	static const uint32_t counts[] = { 1, 2, 4, 8, 16, 32, 64, 512 };
	const size_t bytes = (size_t)rows * columns / 32 * 20;
	uint8_t *data = room(bytes);
	struct weight *w = weight_of(TYPE_Q4_1, rows, columns);
	float *x = room(sizeof(float) * columns), *d = room(sizeof(float) * COLUMNS_MAX);
	float *s = room(sizeof(float) * COLUMNS_MAX), *out = room(sizeof(float) * COLUMNS_MAX * rows);
	int8_t *q = room((size_t)COLUMNS_MAX * columns);
	uint16_t *h = room((size_t)COLUMNS_MAX * columns * sizeof *h);
	const struct act a = { .kind = kind == PREFILL_INT8 ? ACT_I8_ROW : ACT_BF16, .columns = columns,
			       .q = q, .q_stride = columns, .d = d, .s = s, .block_stride = 1, .h = h,
			       .h_stride = columns };

	memset(data, 0x39, bytes);
	if (given_make(kind, NULL, w, data) != 0 || !w->given)
		exit(1);
	for (size_t c = 0; c < COLUMNS_MAX; c++) {
		for (uint32_t k = 0; k < columns; k++)
			x[k] = noise();
		leaf->quantise_row(x, columns, q + c * columns, d + c, s + c);
		leaf->round_row(x, columns, h + c * columns);
	}
	printf("%-7s %-9s %6u x %-5u", leaf->name, kind == PREFILL_INT8 ? "copy i8" : "copy bf16", rows, columns);
	for (uint32_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
		double t;

		BEST(t, leaf->matmul[pack](w->given, 0, rows / PACK_ROWS, &a, 0, counts[i], out, rows));
		printf("%9.1f", (double)rows * columns * counts[i] / t * 1e-9);
	}
	printf("\n");
	pack_free(NULL, w);
	free(data);
	free(x);
	free(d);
	free(s);
	free(out);
	free(q);
	free(h);
}

/* Attention of `rows` rows that all see the whole context, one KV head. */
static void bench_attend(const struct leaf *leaf, enum kv_kind kv, uint32_t rows)
{
	static const char *const names[] = { "fp8", "int8", "bf16", "f32" };
	const size_t block = (size_t)PAGE * HEAD * (kv == KV_F32 ? 4 : kv == KV_BF16 ? 2 : 1);
	const uint8_t *pages[CONTEXT / PAGE], *scales[CONTEXT / PAGE];
	const uint32_t per = OPS_PARTITION / PAGE;
	uint32_t from[16] = { 0 }, to[16];
	float q[16 * HEADS * HEAD], m[16 * HEADS], l[16 * HEADS], o[16 * HEADS * HEAD], x[HEAD];
	struct attend_job job = { .kv = kv, .head = HEAD, .page_tokens = PAGE,
				  .token_count = OPS_PARTITION, .v_offset = block, .q = q,
				  .q_row_stride = HEADS * HEAD, .rows = rows, .heads = HEADS,
				  .from = from, .to = to, .m = m, .l = l, .o = o };
	double t;

	job.scratch = room(sizeof(float) * leaf_scratch_floats(rows, HEADS, HEAD));
	for (uint32_t i = 0; i < 16; i++)
		to[i] = OPS_PARTITION;
	for (uint32_t i = 0; i < rows * HEADS * HEAD; i++)
		q[i] = noise();
	for (uint32_t p = 0; p < CONTEXT / PAGE; p++) {
		uint8_t *page = room(2 * block), *scale = room((size_t)2 * PAGE);

		for (uint32_t token = 0; token < PAGE; token++) {
			for (uint32_t i = 0; i < HEAD; i++)
				x[i] = noise();
			leaf->encode_k(kv, x, HEAD, token, PAGE, page, scale);
			leaf->encode_v(kv, x, HEAD, token, PAGE, page + block, scale + PAGE);
		}
		pages[p] = page;
		scales[p] = scale;
	}
	BEST(t, for (uint32_t p = 0; p < CONTEXT / PAGE; p += per) {
		job.pages = pages + p;
		job.scales = scales + p;
		leaf->attend(&job);
	});
	printf("%-7s attend %-4s rows %2u, %d heads of %d: %8.1f M tokens/s of a KV head"
	       " (%.1f GMAC/s)\n", leaf->name, names[kv], rows, HEADS, HEAD, CONTEXT / t * 1e-6,
	       2.0 * CONTEXT * HEADS * HEAD * rows / t * 1e-9);
	for (uint32_t p = 0; p < CONTEXT / PAGE; p++) {
		free((void *)(uintptr_t)pages[p]);
		free((void *)(uintptr_t)scales[p]);
	}
	free(job.scratch);
}

static void bench_rows(const struct leaf *leaf)
{
	enum { N = 1536, LOGITS = 49152 };
	float *x = room(sizeof(float) * LOGITS), *y = room(sizeof(float) * LOGITS);
	float *d = room(sizeof(float) * N), *s = room(sizeof(float) * N);
	int8_t *q = room(N);
	uint8_t *page = room((size_t)PAGE * HEAD), *scale = room(PAGE);
	double norm, quantise, silu, add, encode, max, sum;
	uint32_t at;

	for (uint32_t i = 0; i < LOGITS; i++)
		x[i] = y[i] = noise();
	BEST(norm, leaf->norm(x, y, N, 1e-5f, d));
	BEST(quantise, leaf->quantise(x, N, q, d, s));
	BEST(silu, leaf->gate[GATE_SILU](x, y, N, d));
	BEST(add, leaf->add(y, x, N));
	BEST(encode, (leaf->encode_k(KV_FP8, x, HEAD, 5, PAGE, page, scale),
		      leaf->encode_v(KV_FP8, x, HEAD, 5, PAGE, page, scale)));
	BEST(max, leaf->max(x, LOGITS, &at));
	BEST(sum, leaf->exp_sum(x, LOGITS, 1.0f));
	printf("%-7s G values/s: norm %.2f, quantise %.2f, silu %.2f, add %.2f, encode fp8 %.2f,"
	       " max %.2f, exp_sum %.2f\n", leaf->name, N / norm * 1e-9, N / quantise * 1e-9,
	       N / silu * 1e-9, N / add * 1e-9, 2 * HEAD / encode * 1e-9, LOGITS / max * 1e-9,
	       LOGITS / sum * 1e-9);
	free(x);
	free(y);
	free(d);
	free(s);
	free(q);
	free(page);
	free(scale);
}

static void bench(const struct leaf *leaf)
{
	printf("%-7s %-9s %6s   %-5s%9d%9d%9d%9d%9d%9d%9d%9d columns, GMAC/s\n", "leaf", "weights", "rows",
	       "", 1, 2, 4, 8, 16, 32, 64, 512);
	bench_matmul(leaf, "Q4_1", TYPE_Q4_1, ACT_I8_BLOCK, 576, 576);
	bench_matmul(leaf, "Q4_1", TYPE_Q4_1, ACT_I8_BLOCK, 1536, 576);
	bench_matmul(leaf, "Q4_1", TYPE_Q4_1, ACT_I8_BLOCK, 576, 1536);
	for (uint32_t type = 0; type < 40; type++)
		if (weight_type_elements(type))
			bench_matmul(leaf, weight_type_name(type), type, ACT_I8_BLOCK, 1536, 768);
	bench_matmul(leaf, "Q8_0", TYPE_Q8_0, ACT_I8_BLOCK, 49152, 576);
	bench_given(leaf, PREFILL_INT8, 1536, 768);
	bench_given(leaf, PREFILL_BF16, 1536, 768);
	bench_matmul(leaf, "F32", TYPE_F32, ACT_F32, 576, 576);
	bench_matmul(leaf, "Q4_1 f32", TYPE_Q4_1, ACT_F32, 576, 576);
	for (int kv = KV_FP8; kv <= KV_F32; kv++) {
		bench_attend(leaf, (enum kv_kind)kv, 1);
		bench_attend(leaf, (enum kv_kind)kv, 16);
	}
	bench_rows(leaf);
}

/* One row's sample on one thread, of normally distributed logits. */
static void bench_sample(void)
{
	enum { VOCAB = 262144 };
	static const struct {
		const char *name;
		float temperature, top_p;
		uint32_t top_k, top_count;
	} wanted[] = { { "greedy", 0, 1, 0, 0 }, { "greedy, five alternatives", 0, 1, 0, 5 },
		       { "temperature 1", 1, 1, 0, 0 }, { "top_k 40", 1, 1, 40, 0 },
		       { "top_k 40, top_p 0.9", 1, 0.9f, 40, 0 }, { "top_p 0.9", 1, 0.9f, 0, 0 } };
	const struct fixture_options options = { .matmul_type = TYPE_Q4_1, .embedding_type = TYPE_Q8_0 };
	const uint32_t token = 1;
	const struct fixture_sequence sequence = { &token, 0, 1, 0, 1 };
	struct device_plan plan = fixture_plan();
	float *logits = room(sizeof(float) * VOCAB);
	uint64_t state = 7;
	struct fixture f;

	plan.vocab = VOCAB;
	plan.width = plan.ff = 32;
	plan.samples_max = plan.rows_max = plan.sequences_max = 1;
	plan.isa = ISA_AUTO;
	fixture_open(&f, &plan, &options, 1);
	for (uint32_t i = 0; i < VOCAB; i++)
		logits[i] = 3 * random_normal(&state);
	for (uint32_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++) {
		struct ops_batch *block = fixture_block(&f, &sequence, 1, 2);
		struct ops_sample *s = block_samples(block);
		double t;

		s->temperature = wanted[i].temperature;
		s->top_p = wanted[i].top_p;
		s->top_k = wanted[i].top_k;
		s->top_count = wanted[i].top_count;
		s->seed = 1;
		if (f.ops->batch(f.device, block) != 0 ||
		    f.ops->buffer_write(f.device, BUFFER_LOGITS, 0, VOCAB, logits) != 0)
			exit(1);
		BEST(t, f.ops->sample(f.device));
		printf("%-7s sample of %d, %-26s %8.3f ms\n", ops_isa_name(ops_isa_best()), VOCAB, wanted[i].name,
		       1e3 * t);
		free(block);
	}
	fixture_close(&f);
	free(logits);
}

int main(int argc, char **argv)
{
	static void (*const init[])(struct leaf *) = { leaf_init_ref, leaf_init_avx2, leaf_init_avx2,
						       leaf_init_avx512, leaf_init_avx512 };
	static const char *const names[] = { "scalar", "plain", "avx2", "avx512", "amx" };
	const int vnni = ops_isa_runs(ISA_AVX512) && __builtin_cpu_supports("avx512vnni");
	const int avx2 = ops_isa_runs(ISA_AVX2);
	const int runs[] = { 1, avx2, avx2, ops_isa_runs(ISA_AVX512), vnni && fast_amx_ready() };

	if (argc == 2 && !strcmp(argv[1], "sample")) {
		bench_sample();
		return 0;
	}
	for (int i = 4; i >= 0; i--) {
		int wanted = argc < 2 && i > 0;
		struct leaf leaf;

		for (int a = 1; a < argc; a++)
			wanted |= !strcmp(argv[a], names[i]);
		if (!wanted || !runs[i])
			continue;
		leaf_init_ref(&leaf);
		if (i)
			init[i](&leaf);
		if (i == 1)
			fast_plain_avx2(&leaf);
		if (i == 3)
			fast_init_avx512(&leaf, fast_have_avx512() & ~(unsigned)(FAST_AMX | FAST_AMX_BF16));
		leaf.name = names[i];
		bench(&leaf);
	}
	return 0;
}
