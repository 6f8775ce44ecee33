/*
 * A device on the shapes of an 8B-class model, two layers of it with weights of chance: what the hot
 * operations reach of the copy bandwidth that is measured beside them, and what FP8 pages are worth
 * against BF16 ones. Lines of JSON; a "target" is a figure that a GPU ought to reach, and whether it
 * did. None of them is an error.
 *
 *	bench_gpu DEVICE [--small]
 *
 * DEVICE is cpu, cuda or cuda:N. --small: shapes and counts for a machine that has no time.
 */
#define _GNU_SOURCE
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tests/kernels_fixture.h"

static int small;
static const struct ops *ops;
static uint32_t gpu;
static double copy_bytes_s;
static uint32_t text[1 << 16];

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void must(int code, const char *what)
{
	if (code == 0)
		return;
	fprintf(stderr, "bench_gpu: %s: code %d\n", what, code);
	exit(1);
}

/* At least, or at most, so much. */
static void target(const char *what, double value, double least, double most)
{
	printf("{\"figure\": \"target\", \"what\": \"%s\", \"value\": %.4f, \"target\": %.4f, "
	       "\"reached\": %s}\n",
	       what, value, most < 1e9 ? most : least, value >= least && value <= most ? "true" : "false");
	fflush(stdout);
}

static struct device_plan plan_of(enum kv_kind kv, uint32_t sequences, uint32_t rows, uint32_t context)
{
	struct device_plan p = fixture_plan();
	const uint32_t page = 64;
	p.width = small ? 128 : 4096;
	p.heads = small ? 4 : 32;
	p.kv_heads = small ? 2 : 8;
	p.head = small ? 32 : 128;
	p.ff = small ? 256 : 14336;
	p.vocab = small ? 512 : 128256;
	p.page_tokens = page;
	p.kv = kv;
	p.act = ACT_AUTO;
	p.isa = ISA_AUTO;
	p.threads = 0;
	p.gpu = gpu;
	p.rows_max = rows;
	p.sequences_max = p.samples_max = sequences;
	p.context = context;
	p.group_count = 1;
	p.group[0].layers = FIXTURE_LAYERS;
	p.group[0].page_count = sequences * ((context + page - 1) / page);
	p.pages_max = p.group[0].page_count;
	return p;
}

/* ---- a model that nobody has to check ---- */

/* Q4_0 of chance: one piece, from which every matrix takes what it needs. */
static const uint8_t *chance(size_t bytes)
{
	static uint8_t *data;
	static size_t made;
	uint64_t state = 7;
	if (bytes > made) {
		free(data);
		data = malloc(bytes);
		must(data == NULL, "memory");
		for (size_t i = 0; i < bytes; i++)
			data[i] = i % 18 == 0 ? 0 : i % 18 == 1 ? 0x20 : (uint8_t)random_next(&state);
		made = bytes;
	}
	return data;
}

static struct weight *matrix(struct fixture *f, enum weight_use use, uint32_t rows, uint32_t columns)
{
	struct weight *w;
	const uint8_t *data = chance((size_t)rows * columns / 32 * 18);
	must(f->ops->weight_make(f->device, TYPE_Q4_0, use, rows, columns, data, &w), "a weight");
	return w;
}

static struct weight *ones(struct fixture *f, uint32_t columns)
{
	float *x = malloc(columns * sizeof *x);
	struct weight *w;
	must(x == NULL, "memory");
	for (uint32_t i = 0; i < columns; i++)
		x[i] = 1;
	must(f->ops->weight_make(f->device, TYPE_F32, WEIGHT_VECTOR, 1, columns, x, &w), "a vector");
	free(x);
	return w;
}

static void model_open(struct fixture *f, const struct device_plan *p)
{
	const uint32_t queries = p->heads * p->head, kv = p->kv_heads * p->head;
	memset(f, 0, sizeof *f);
	f->ops = ops;
	f->plan = *p;
	must(ops->device_open(p, &f->device), "the device");
	f->embedding.packed = matrix(f, WEIGHT_BOTH, p->vocab, p->width);
	f->norm.packed = ones(f, p->width);
	for (uint32_t i = 0; i < FIXTURE_LAYERS; i++) {
		struct ops_layer *l = &f->layer[i].ops;
		l->layer = i;
		l->attn_norm = l->ffn_norm = f->norm.packed;
		l->q = matrix(f, WEIGHT_PHASED, queries, p->width);
		l->k = matrix(f, WEIGHT_PHASED, kv, p->width);
		l->v = matrix(f, WEIGHT_PHASED, kv, p->width);
		l->output = matrix(f, WEIGHT_PHASED, p->width, queries);
		l->gate = matrix(f, WEIGHT_PHASED, p->ff, p->width);
		l->up = matrix(f, WEIGHT_PHASED, p->ff, p->width);
		l->down = matrix(f, WEIGHT_PHASED, p->width, p->ff);
		l->rope_dims = p->head;
		l->rope = ROPE_HALVES;
		l->rope_base = 500000;
		l->rope_scale = 1;
		l->epsilon = 1e-5f;
		l->attention_scale = 0.08838835f;
	}
	must(ops->page_tags_set(f->device, 0, 0, p->group[0].page_count, 0), "tags");
}

static void model_close(struct fixture *f)
{
	ops->device_close(&f->device); /* its weights with it */
}

/* `count` sequences with `rows` rows each, the last of which is at `context` - 1. */
static void batch_set(struct fixture *f, uint32_t count, uint32_t context, uint32_t rows, uint32_t phase)
{
	static struct fixture_sequence s[256];
	const uint32_t pages = (f->plan.context + f->plan.page_tokens - 1) / f->plan.page_tokens;
	for (uint32_t i = 0; i < count; i++)
		s[i] = (struct fixture_sequence){text, context - rows, rows, i * pages, (uint64_t)i * pages};
	struct ops_batch *b = fixture_block(f, s, count, 2);
	struct ops_row *row = (struct ops_row *)(void *)((uint8_t *)b + b->row_at);
	for (uint32_t i = 0; i < b->row_count; i++)
		row[i].phase = phase;
	must(ops->batch(f->device, b), "a batch");
	free(b);
}

/* ---- figures ---- */

typedef int operation(struct fixture *f);

/* Seconds of one call: the best of some slices of `many` calls. */
static double seconds_of(struct fixture *f, operation *run, uint32_t many)
{
	double best = 1e9;
	many = small ? 1 : many;
	for (int slice = 0; slice < (small ? 2 : 6); slice++) {
		const double start = now();
		for (uint32_t i = 0; i < many; i++)
			must(run(f), "an operation");
		must(ops->wait(f->device, NULL, NULL), "a wait");
		const double took = (now() - start) / many;
		best = took < best ? took : best;
	}
	return best;
}

static int step_run(struct fixture *f)
{
	return fixture_step(f);
}

/* Without layers. */
static int ends_run(struct fixture *f)
{
	int code = ops->tag_check(f->device);
	code = code ? code : ops->embed(f->device, f->embedding.packed, 1);
	code = code ? code : ops->head(f->device, f->norm.packed, 1e-5f, f->embedding.packed, 0);
	return code ? code : ops->sample(f->device);
}

static int tags_run(struct fixture *f)
{
	return ops->tag_check(f->device);
}

static int attend_run(struct fixture *f)
{
	for (uint32_t i = 0; i < FIXTURE_LAYERS; i++) {
		const int code = ops->attend(f->device, &f->layer[i].ops);
		if (code != 0)
			return code;
	}
	return 0;
}

static int products_run(struct fixture *f)
{
	for (uint32_t i = 0; i < FIXTURE_LAYERS; i++) {
		const struct ops_layer *l = &f->layer[i].ops;
		int code = ops->qkv(f->device, l);
		code = code ? code : ops->output(f->device, l);
		code = code ? code : ops->gate_up(f->device, l);
		code = code ? code : ops->down(f->device, l);
		if (code != 0)
			return code;
	}
	return 0;
}

static int copy_run(struct fixture *f)
{
	return ops->page_copy(f->device, 0, 0, 1);
}

/* A page of very many layers, copied. */
static void copy_measure(void)
{
	struct device_plan p = plan_of(KV_BF16, 1, 1, 64);
	struct fixture f = {.ops = ops};
	p.group[0].layers = small ? 64 : 512;
	p.group[0].page_count = p.pages_max = 2;
	f.plan = p;
	must(ops->device_open(&p, &f.device), "the device");
	const double bytes = (double)ops_page_bytes(p.kv, p.group[0].layers, p.kv_heads, p.head, p.page_tokens);
	double best = 1e9;
	for (int slice = 0; slice < 6; slice++) {
		const uint32_t many = small ? 2 : 32;
		uint64_t tag;
		const double start = now();
		for (uint32_t i = 0; i < many; i++)
			must(copy_run(&f), "a copy");
		must(ops->page_tag(f.device, 0, 0, &tag), "a tag"); /* waits */
		const double took = (now() - start) / many;
		best = took < best ? took : best;
	}
	copy_bytes_s = 2 * bytes / best;
	printf("{\"figure\": \"copy\", \"bytes\": %.0f, \"GB_s\": %.1f}\n", bytes, copy_bytes_s / 1e9);
	model_close(&f);
}

static const char *kv_name(enum kv_kind kv)
{
	return kv == KV_FP8 ? "fp8" : "bf16";
}

static void decode_measure(enum kv_kind kv, uint32_t batch, uint32_t context)
{
	const struct device_plan p = plan_of(kv, batch, batch, context);
	struct fixture f;
	model_open(&f, &p);
	batch_set(&f, batch, context, 1, 1);
	const double step = seconds_of(&f, step_run, 4), ends = seconds_of(&f, ends_run, 4);
	const double attend = seconds_of(&f, attend_run, 16) / FIXTURE_LAYERS;
	const double tags = seconds_of(&f, tags_run, 16);
	const double products = seconds_of(&f, products_run, 8) / FIXTURE_LAYERS;
	const double kv_bytes = (double)batch * context * p.kv_heads *
				(kv == KV_FP8 ? 2.0 * p.head * (1 + 1.0 / 64) : 4.0 * p.head);
	const struct ops_layer *l = &f.layer[0].ops;
	const struct weight *const all[] = {l->q, l->k, l->v, l->output, l->gate, l->up, l->down};
	double weights = 0;
	for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
		weights += (double)ops->weight_bytes(all[i]);
	const double whole = ends + 32.0 / FIXTURE_LAYERS * (step - ends);
	printf("{\"figure\": \"decode\", \"kv\": \"%s\", \"batch\": %u, \"context\": %u, \"kv_MB\": %.2f, "
	       "\"attention_us\": %.2f, \"attention_of_copy\": %.3f, \"products_us\": %.2f, "
	       "\"products_of_copy\": %.3f, \"tags_of_step\": %.4f, \"step_ms_of_32_layers\": %.3f, "
	       "\"tokens_s\": %.1f}\n",
	       kv_name(kv), batch, context, kv_bytes / 1e6, 1e6 * attend, kv_bytes / attend / copy_bytes_s,
	       1e6 * products, weights / products / copy_bytes_s, tags / whole, 1e3 * whole, batch / whole);
	fflush(stdout);
	char what[100];
	snprintf(what, sizeof what, "decode attention over %.0f MB of %s, of the copy bandwidth", kv_bytes / 1e6,
		 kv_name(kv));
	if (kv_bytes >= 64e6)
		target(what, kv_bytes / attend / copy_bytes_s, 0.8, 1e9);
	snprintf(what, sizeof what, "tag check of %u of %u positions, %s, of a step", batch, context,
		 kv_name(kv));
	target(what, tags / whole, 0, 0.01);
	snprintf(what, sizeof what, "4-bit weights at batch 1, %u positions, %s, of the copy bandwidth", context,
		 kv_name(kv));
	if (batch == 1)
		target(what, weights / products / copy_bytes_s, 0.6, 1e9);
	static double fp8_step; /* FP8 comes first */
	if (batch == 1 && kv == KV_FP8)
		fp8_step = whole;
	else if (batch == 1)
		target("loss of output speed with FP8 pages, one at once", 1 - whole / fp8_step, -1e9, 0.09);
	model_close(&f);
}

static void prefill_measure(enum prefill_kind kind, uint32_t rows)
{
	static const char *const names[] = {"same", "int8", "bf16", "fp8"};
	struct device_plan p = plan_of(KV_FP8, 1, rows, rows);
	struct fixture f;
	if (ops == ops_cpu() && kind > PREFILL_INT8)
		return;
	p.prefill = kind;
	model_open(&f, &p);
	batch_set(&f, 1, rows, rows, 0);
	const double products = seconds_of(&f, products_run, 2) / FIXTURE_LAYERS;
	const double rows_out = 2.0 * p.heads * p.head + 2.0 * p.kv_heads * p.head + 3.0 * p.ff;
	const double work = 2.0 * rows * p.width * rows_out;
	printf("{\"figure\": \"prefill\", \"weights\": \"%s\", \"device\": \"%s\", \"rows\": %u, "
	       "\"products_us\": %.1f, \"TFLOP_s\": %.3f}\n",
	       names[kind], ops->device_isa(f.device), rows, 1e6 * products, work / products / 1e12);
	fflush(stdout);
	model_close(&f);
}

/* What a gigabyte of pages of 32 layers holds. */
static void resident_print(void)
{
	const struct device_plan p = plan_of(KV_FP8, 1, 1, 64);
	double tokens[2];
	for (int i = 0; i < 2; i++)
		tokens[i] = 1e9 * p.page_tokens / (double)ops_page_bytes(i ? KV_BF16 : KV_FP8, 32, p.kv_heads, p.head,
									 p.page_tokens);
	printf("{\"figure\": \"resident\", \"fp8_tokens_GB\": %.0f, \"bf16_tokens_GB\": %.0f, \"ratio\": %.3f}\n",
	       tokens[0], tokens[1], tokens[0] / tokens[1]);
	/* In two decimals: the layout's own 1.969 is 1.97 of them. */
	const double ratio = floor(100 * tokens[0] / tokens[1] + 0.5) / 100;
	target("positions that FP8 pages hold by BF16", ratio, 1.97, 1e9);
}

/* Digests of pages of 32 layers: of one, and of as many as go at once. */
static void digest_measure(uint32_t pages)
{
	static struct ops_digest list[64];
	struct device_plan p = plan_of(KV_FP8, 1, 1, 64);
	struct device *d = NULL;
	p.page_tokens = 16;
	p.group[0].layers = small ? FIXTURE_LAYERS : 32;
	p.group[0].page_count = p.pages_max = 64;
	must(ops->device_open(&p, &d), "the device");
	const double bytes = (double)ops_page_bytes(p.kv, p.group[0].layers, p.kv_heads, p.head, p.page_tokens);
	double best = 1e9;
	for (uint32_t i = 0; i < pages; i++)
		list[i] = (struct ops_digest){.page = i, .tokens = p.page_tokens};
	for (int slice = 0; slice < 4; slice++) {
		const double start = now();
		must(ops->page_digests(d, list, pages), "digests");
		const double took = now() - start;
		best = took < best ? took : best;
	}
	printf("{\"figure\": \"digest\", \"pages\": %u, \"page_bytes\": %.0f, \"ms\": %.4f, "
	       "\"GB_s\": %.3f}\n", pages, bytes, 1e3 * best, pages * bytes / best / 1e9);
	ops->device_close(&d);
}

int main(int argc, char **argv)
{
	static const uint32_t batches[] = {1, 8, 32, 64};
	char reason[200] = "this build has no CUDA";
	small = argc == 3 && strcmp(argv[2], "--small") == 0;
	if (argc < 2 || argc > 3 || (argc == 3 && !small)) {
		fprintf(stderr, "usage: bench_gpu cpu|cuda[:N] [--small]\n");
		return 2;
	}
	ops = ops_cpu();
	if (strncmp(argv[1], "cuda", 4) == 0) {
		gpu = argv[1][4] == ':' ? (uint32_t)strtoul(argv[1] + 5, NULL, 10) : 0;
		ops = ops_cuda();
		if (!ops || ops_cuda_find(gpu, reason, sizeof reason) != 0) {
			fprintf(stderr, "bench_gpu: %s\n", reason);
			return 1;
		}
	}
	for (size_t i = 0; i < sizeof text / sizeof text[0]; i++)
		text[i] = (uint32_t)(i * 31 % 509);
	copy_measure();
	resident_print();
	for (size_t i = 0; i < sizeof batches / sizeof batches[0]; i++)
		for (int kv = KV_FP8; kv <= KV_BF16; kv += KV_BF16 - KV_FP8)
			decode_measure((enum kv_kind)kv, batches[i], small ? 100 : 2048);
	decode_measure(KV_FP8, 1, small ? 300 : 32768);
	digest_measure(1);
	digest_measure(64);
	for (int kind = PREFILL_SAME; kind <= PREFILL_FP8; kind++)
		prefill_measure((enum prefill_kind)kind, small ? 48 : 512);
	return 0;
}
