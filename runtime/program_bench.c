/*
 * holdfastd bench: tokens a second of decode at three batch sizes and two lengths of context, of prefill,
 * of decode on one long context, and of a turn on a resident one. A figure is the best of many short
 * slices, since a machine that is shared only ever makes a slice slower.
 *
 * The contexts are real pages: 512 tokens are prefilled, and their pages copied over and over into
 * each sequence's own until its context is full. What the pages say does not change the time.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/program.h"
#include "runtime/roofline.h"
#include "runtime/weights.h"

enum {
	BENCH_PREFILL = 512,
	BENCH_SEQUENCES = 32,
	BENCH_CONTEXT = 2048,
	BENCH_STEPS = 4,               /* of a decode slice; the context is set back after it */
	BENCH_SLOW_NS = 100000000,     /* a step that takes longer is a slice of its own */
	BENCH_FIGURES = 9,
	BENCH_TILE_ROWS = 32,          /* with fewer rows tiles are not used */
	BENCH_FAR = BENCH_CONTEXT - BENCH_PREFILL,
	BENCH_LONG = 8000, /* of the first sequence, over pages that are others' at other times */
	BENCH_TURN = 300, BENCH_RESIDENT = 6000
};

struct bench {
	struct program_options options;
	const char *name, *only;
	uint32_t seconds;
	bool json, print, rates; /* rates: only the figures that bench_rates gives */
	bool roofline;
	struct roofline machine;
	struct weights_work work;
	uint64_t kv_bytes, window_bytes; /* of a token: in all layers, in those with a window */
	uint32_t window_tokens;
	const struct model *model;
	struct run run;
	uint32_t sequence_pages;
	uint32_t tokens[BENCH_PREFILL];
	double figure[BENCH_FIGURES + 1];
	struct step_clock clock;                 /* of the slice at work */
	double part_ns[BENCH_FIGURES + 1][STEP_PARTS]; /* of one step of the best slice */
};

struct figure {
	const char *name;
	uint32_t batch, context; /* batch 0: prefill */
	uint32_t rows; /* of one slice: its batch, or what is prefilled */
};
static const struct figure figures[BENCH_FIGURES + 1] = {
	{"decode_b1_c128", 1, 128, 1},   {"decode_b8_c128", 8, 128, 8},   {"decode_b32_c128", 32, 128, 32},
	{"decode_b1_c2048", 1, 2048, 1}, {"decode_b8_c2048", 8, 2048, 8}, {"decode_b32_c2048", 32, 2048, 32},
	{"prefill_512", 0, 0, BENCH_PREFILL},
	{"decode_b1_c8000", 1, BENCH_LONG, 1},
	{"turn_300_c6000", 0, BENCH_RESIDENT, BENCH_TURN},
	{"prefill_512_far", 0, BENCH_FAR, BENCH_PREFILL}, /* for bench_rates alone */
};

/* Their places in the table above. */
enum { FIGURE_DECODE = 0, FIGURE_PREFILL = 6, FIGURE_PREFILL_FAR = BENCH_FIGURES };

static struct run_sequence bench_sequence(const struct bench *b, uint32_t index)
{
	return (struct run_sequence){.page_first = index * b->sequence_pages,
				     .tag_first = 1 + (uint64_t)index * b->sequence_pages};
}

static int bench_prefill(struct bench *b, uint32_t position, uint32_t rows)
{
	const struct run_sequence s = bench_sequence(b, 0);
	b->run.phase = 0;
	for (uint32_t at = 0; at < rows; at += b->options.chunk) {
		const uint32_t left = rows - at;
		const uint32_t count = left < b->options.chunk ? left : b->options.chunk;
		/* Only the last token of a prompt is sampled. */
		TRY(run_chunk(&b->run, &s, b->tokens + at, count, position + at,
			      count == left ? count - 1 : count));
	}
	return 0;
}

/* Fills every page of every sequence from those of the prefill. */
static int bench_fill(struct bench *b)
{
	const struct ops *ops = forward_ops(b->run.forward);
	struct device *device = forward_device(b->run.forward);
	const uint32_t filled = BENCH_PREFILL / b->options.page_tokens;
	for (uint32_t i = 0; i < BENCH_SEQUENCES; i++) {
		const struct run_sequence s = bench_sequence(b, i);
		TRY(run_tags(&b->run, &s, b->sequence_pages));
		for (uint32_t k = 0; k < b->sequence_pages; k++)
			if (i > 0 || k >= filled)
				TRY(ops->page_copy(device, 0, k % filled, s.page_first + k));
		program_progress(NULL, "filling pages", i + 1, BENCH_SEQUENCES);
	}
	return 0;
}

static int bench_decode(struct bench *b, uint32_t batch, uint32_t position)
{
	batch_begin(b->run.builder);
	b->run.phase = 1;
	for (uint32_t i = 0; i < batch; i++) {
		const struct run_sequence s = bench_sequence(b, i);
		const uint32_t token = b->tokens[(i + position) % BENCH_PREFILL];
		batch_sample(b->run.builder, run_put(&b->run, &s, &token, 1, position));
	}
	return run_step(&b->run);
}

static int bench_figure(struct bench *b, uint32_t index)
{
	const struct figure *f = &figures[index];
	const uint64_t end = program_now_ns() + (uint64_t)b->seconds * 1000000000;
	uint64_t best = UINT64_MAX; /* of one step */
	uint32_t steps = 1;
	forward_clock(b->run.forward, b->roofline ? &b->clock : NULL);
	for (;;) {
		b->clock = (struct step_clock){0};
		const uint64_t start = program_now_ns();
		for (uint32_t i = 0; i < steps; i++)
			TRY(f->batch ? bench_decode(b, f->batch, f->context + i)
				     : bench_prefill(b, f->context, f->rows));
		const uint64_t now = program_now_ns(), each = (now - start) / steps;
		for (int k = 0; k < STEP_PARTS && each < best; k++)
			b->part_ns[index][k] = (double)b->clock.ns[k] / steps;
		if (each < best)
			best = each;
		if (now >= end)
			break;
		steps = f->batch && each < BENCH_SLOW_NS ? BENCH_STEPS : 1;
	}
	b->figure[index] = f->rows * 1e9 / (double)best;
	return 0;
}

static int bench_run(struct bench *b)
{
	/* Common ids of any vocabulary, all different in a window: the work is the same for each. */
	for (uint32_t i = 0; i < BENCH_PREFILL; i++)
		b->tokens[i] = (i * 37 + 11) % b->model->arch.vocab;
	const struct run_sequence s = bench_sequence(b, 0);
	TRY(run_tags(&b->run, &s, b->sequence_pages));
	TRY(bench_prefill(b, 0, BENCH_PREFILL));
	TRY(bench_fill(b));
	const uint32_t count = b->rates ? BENCH_FIGURES + 1 : BENCH_FIGURES;
	for (uint32_t i = 0; i < count; i++) {
		program_progress(NULL, figures[i].name, i, count);
		if (b->only && strcmp(b->only, figures[i].name) != 0)
			continue;
		if (b->rates && i != FIGURE_DECODE && i != FIGURE_PREFILL && i != FIGURE_PREFILL_FAR)
			continue;
		const uint32_t beyond = figures[i].batch ? BENCH_STEPS : figures[i].rows;
		if (figures[i].context + beyond <= b->model->arch.context)
			TRY(bench_figure(b, i));
	}
	program_progress(NULL, "bench", 1, 1);
	return 0;
}

/* Positions that a row sees on average, and those whose K and V a step reads, of a layer that shows `window`
   positions (0: all). A prompt's K and V are read once. */
static void bench_seen(const struct figure *f, uint32_t window, double *seen, double *read)
{
	double sum = 0;
	for (uint32_t i = 0; i < f->rows; i++) {
		const uint32_t context = f->batch ? f->context : f->context + i;
		sum += window && window < context ? window : context;
	}
	*seen = sum / f->rows;
	*read = f->batch ? sum : f->context + f->rows;
	if (!f->batch && window && window + f->rows < *read)
		*read = window + f->rows;
}

/* What a part of a figure's step reads and multiplies: weights once and times its rows; or, of attention, K
   and V of each context, with every head. 0 and 0 for the parts that do neither. */
static void bench_part(const struct bench *b, const struct figure *f, int part, double *bytes, double *macs)
{
	const struct arch *a = &b->model->arch;
	const double windowed = b->kv_bytes ? (double)b->window_bytes / (double)b->kv_bytes : 0;
	double seen, read, seen_window, read_window;
	*bytes = (double)b->work.part[part].bytes;
	*macs = (double)b->work.part[part].macs * (part == STEP_HEAD && !f->batch ? 1 : f->rows);
	if (part != STEP_ATTEND)
		return;
	bench_seen(f, 0, &seen, &read);
	bench_seen(f, b->window_tokens, &seen_window, &read_window);
	*bytes = (double)b->kv_bytes * (read * (1 - windowed) + read_window * windowed);
	*macs = 2.0 * a->layers * a->heads * a->head * f->rows *
		(seen * (1 - windowed) + seen_window * windowed);
}

/* Multiply-adds a second that bound a part: attention's are of f32; the others' of 8 bits, by tiles where the
   machine has them and the rows are enough for them. */
static double bench_peak(const struct bench *b, const struct figure *f, int part)
{
	const int many = f->rows >= BENCH_TILE_ROWS && (f->batch || part != STEP_HEAD);
	if (part == STEP_ATTEND)
		return b->machine.f32_per_s;
	return many && b->machine.tile_per_s > 0 ? b->machine.tile_per_s : b->machine.macs_per_s;
}

/* The least seconds that a figure's step can take, by its bytes and by its multiply-adds. */
static void bench_bound(const struct bench *b, const struct figure *f, double *bytes_s, double *macs_s)
{
	*bytes_s = *macs_s = 0;
	for (int k = 0; k < STEP_PARTS; k++) {
		double bytes, macs;
		bench_part(b, f, k, &bytes, &macs);
		*bytes_s += bytes / b->machine.bytes_per_s;
		*macs_s += macs / bench_peak(b, f, k);
	}
}

static const char *const part_names[STEP_PARTS] = {
	"batch", "tags", "embed", "qkv", "rope_write", "attend", "output", "gate_up", "down", "head", "sample"
};

/* A figure's step, part by part: what it takes, and what is left of it at the nearer of its two bounds. */
static void bench_print_parts(const struct bench *b, uint32_t index)
{
	double total = 0;
	for (int k = 0; k < STEP_PARTS; k++)
		total += b->part_ns[index][k];
	printf(b->json ? "\"parts\":{" : "%s, a step\n  %-10s %10s %7s %8s %9s %6s %8s\n", figures[index].name,
	       "part", "us", "share", "GB/s", "G macs/s", "bound", "reached");
	for (int k = 0; k < STEP_PARTS; k++) {
		const double ns = b->part_ns[index][k];
		double bytes, macs;
		bench_part(b, &figures[index], k, &bytes, &macs);
		const double by_bytes = bytes / b->machine.bytes_per_s;
		const double by_macs = macs / bench_peak(b, &figures[index], k);
		const double least = 1e9 * (by_bytes > by_macs ? by_bytes : by_macs);
		if (b->json)
			printf("%s\"%s\":{\"us\":%.4g,\"bound_us\":%.4g,\"by\":\"%s\"}", k ? "," : "",
			       part_names[k], ns * 1e-3, least * 1e-3,
			       least <= 0 ? "" : by_bytes > by_macs ? "bytes" : "sums");
		else if (least > 0 && ns > 0)
			printf("  %-10s %10.1f %6.1f%% %8.1f %9.1f %6s %7.1f%%\n", part_names[k], ns * 1e-3,
			       100 * ns / total, bytes / ns, macs / ns, by_bytes > by_macs ? "bytes" : "sums",
			       100 * least / ns);
		else
			printf("  %-10s %10.1f %6.1f%%\n", part_names[k], ns * 1e-3, 100 * ns / total);
	}
	if (b->json)
		printf("}");
}

/* One line a figure: what bounds it, and how near to the bound it is. */
static void bench_print_roofline(const struct bench *b)
{
	const struct roofline *const m = &b->machine;
	if (!b->json)
		printf("memory %.1f GB/s, multiply-adds on registers %.0f G/s in 8 bits, %.0f in f32, %.0f by "
		       "tiles; all threads\n%-18s %12s %12s %8s\n", m->bytes_per_s * 1e-9, m->macs_per_s * 1e-9,
		       m->f32_per_s * 1e-9, m->tile_per_s * 1e-9, "bound, tokens/s", "by bytes", "by sums",
		       "reached");
	else
		printf("\"bytes_per_s\":%.4g,\"macs_per_s\":%.4g,\"f32_per_s\":%.4g,\"tile_per_s\":%.4g,"
		       "\"roofline\":{", m->bytes_per_s, m->macs_per_s, m->f32_per_s, m->tile_per_s);
	bool any = false;
	for (uint32_t i = 0; i < BENCH_FIGURES; i++) {
		double bytes_s, macs_s;
		if (b->figure[i] <= 0)
			continue;
		bench_bound(b, &figures[i], &bytes_s, &macs_s);
		const double rows = figures[i].rows;
		const double least = bytes_s > macs_s ? bytes_s : macs_s, share = b->figure[i] * least / rows;
		if (b->json)
			printf("%s\"%s\":{\"bytes\":%.6g,\"macs\":%.6g,\"reached\":%.4g,", any ? "," : "",
			       figures[i].name, rows / bytes_s, rows / macs_s, share);
		else
			printf("%-18s %12.1f %12.1f %7.1f%%\n", figures[i].name, rows / bytes_s, rows / macs_s,
			       100 * share);
		if (b->json) {
			bench_print_parts(b, i);
			printf("}");
		}
		any = true;
	}
	for (uint32_t i = 0; i < BENCH_FIGURES && !b->json; i++)
		if (b->figure[i] > 0)
			bench_print_parts(b, i);
	if (b->json)
		printf("},");
}

static void bench_print(const struct bench *b)
{
	const struct ops *ops = forward_ops(b->run.forward);
	struct device *device = forward_device(b->run.forward);
	const char *isa = ops->device_isa(device);
	if (b->json)
		printf("{");
	for (uint32_t i = 0; i < BENCH_FIGURES; i++) {
		if (!b->json && b->figure[i] > 0)
			printf("%-18s %9.1f tokens/s\n", figures[i].name, b->figure[i]);
		/* A context that the model does not have has no figure. */
		if (b->json && b->figure[i] > 0)
			printf("\"%s\":%.6g,", figures[i].name, b->figure[i]);
		else if (b->json)
			printf("\"%s\":null,", figures[i].name);
	}
	if (b->roofline)
		bench_print_roofline(b);
	/* Of a CPU, what it has beside the set's name; a GPU's name says all. */
	const bool cpu = strcmp(ops->name, "cpu") == 0;
	const char *beside = cpu ? ops_isa_beside((enum isa)b->options.isa) : "";
	if (b->json)
		printf("\"isa\":\"%s\",\"isa_beside\":\"%s\",\"threads\":%u}\n", isa, beside,
		       ops->device_threads(device));
	else
		printf("%-18s %s%s%s, %u threads\n", "isa", isa, beside[0] ? " with " : "", beside,
		       ops->device_threads(device));
}

/* The machine's bounds, with the threads and the instruction set of the run; 0 or an exit code. */
static int bench_roofline(struct bench *b)
{
	const struct ops *ops = forward_ops(b->run.forward);
	const struct device *device = forward_device(b->run.forward);
	enum isa isa = (enum isa)b->options.isa;
	if (isa == ISA_AUTO)
		isa = ops_isa_best();
	weights_work(b->model, ops, forward_plan(b->run.forward), &b->work);
	const int err = roofline_measure(isa, ops->device_threads(device), &b->machine);
	return err == 0 ? 0 : program_fail(b->name, "the machine's bounds: %s", err_text(err));
}

static uint64_t token_bytes(const struct bench *b, uint32_t layers)
{
	const struct arch *a = &b->model->arch;
	const uint32_t span = b->options.page_tokens;
	return ops_page_bytes((enum kv_kind)b->options.kv, layers, a->kv_heads, a->head, span) / span;
}

/* Opens the model and fills in the figures; 0, or the exit code of a failure that was told. */
static int bench_model(struct bench *b, const char *path)
{
	char reason[MODEL_REASON_MAX];
	struct model *model = NULL;
	struct forward_options options;
	if (model_open(path, &model, reason) != 0)
		return program_fail(b->name, "%s: %s", path, reason);
	int code = 1;
	if (model->arch.context < BENCH_PREFILL) {
		program_fail(b->name, "the model's context is %u, %d are needed", model->arch.context,
			     BENCH_PREFILL);
		goto out;
	}
	b->model = model;
	b->sequence_pages = BENCH_CONTEXT / b->options.page_tokens + 1;
	program_forward_options(&b->options, &options);
	options.sequences_max = options.samples_max = BENCH_SEQUENCES;
	if (options.rows_max < BENCH_SEQUENCES)
		options.rows_max = BENCH_SEQUENCES;
	options.page_count = b->sequence_pages * BENCH_SEQUENCES;
	if (run_open(b->name, model, &options, &b->run) != 0)
		goto out;
	const int err = bench_run(b);
	code = err == 0 ? 0 : program_fail(b->name, "%s", err_text(err));
	b->kv_bytes = token_bytes(b, model->arch.layers);
	b->window_tokens = forward_windowed(model) ? model->arch.window : 0;
	b->window_bytes = b->window_tokens ? token_bytes(b, forward_window_layers(model)) : 0;
	if (code == 0 && b->roofline)
		code = bench_roofline(b);
	if (code == 0 && b->print)
		bench_print(b);
	run_close(&b->run);
out:
	model_close(&model);
	return code;
}

int bench_main(int argc, char **argv)
{
	struct bench *b = calloc(1, sizeof *b);
	struct flag flags[PROGRAM_FLAGS + 4];
	const char *path = NULL;
	if (!b)
		return program_fail(argv[0], "no memory");
	b->name = argv[0];
	b->seconds = 4;
	b->print = true;
	program_flags(&b->options, flags);
	flags[PROGRAM_FLAGS] = (struct flag){"json", FLAG_SWITCH, &b->json, 0, 0, NULL,
					     "figures as JSON"};
	flags[PROGRAM_FLAGS + 1] = (struct flag){"seconds", FLAG_U32, &b->seconds, 1, 600, NULL,
						 "for each figure"};
	flags[PROGRAM_FLAGS + 2] = (struct flag){"only", FLAG_TEXT, &b->only, 0, 0, NULL,
						 "this figure alone, by its name"};
	flags[PROGRAM_FLAGS + 3] = (struct flag){"roofline", FLAG_SWITCH, &b->roofline, 0, 0, NULL,
						 "measure this machine's bounds, and say how near each is"};
	int code = program_arguments(argc, argv, flags, PROGRAM_FLAGS + 4, &b->options,
				     "MODEL [option …]", &path);
	bool known = !b->only;
	for (uint32_t i = 0; i < BENCH_FIGURES && !known; i++)
		known = strcmp(b->only, figures[i].name) == 0;
	if (code < 0 && !known) {
		program_fail(b->name, "--only: there is no such figure; the first is %s", figures[0].name);
		code = 2;
	}
	if (code < 0)
		code = bench_model(b, path);
	free(b);
	return code;
}

int bench_rates(const char *name, const char *path, struct bench_rates *out)
{
	struct bench *b = calloc(1, sizeof *b);
	struct flag flags[PROGRAM_FLAGS];
	if (!b)
		return program_fail(name, "no memory");
	b->name = name;
	b->seconds = 1;
	b->rates = true;
	program_flags(&b->options, flags);
	const int code = bench_model(b, path);
	if (code == 0)
		*out = (struct bench_rates){.kv_bytes_per_token = b->kv_bytes,
					    .window_bytes_per_token = b->window_bytes,
					    .window_tokens = b->window_tokens,
					    .prefill_tps = b->figure[FIGURE_PREFILL],
					    .decode_tps = b->figure[FIGURE_DECODE],
					    .prefill_far_tps = b->figure[FIGURE_PREFILL_FAR],
					    .far_tokens = BENCH_FAR};
	free(b);
	return code;
}
