/*
 * What --integrity check costs a decode step: steps with it and without it in turns, in one process and
 * one run, at batch 1, 8 and 32 with 2,048 tokens of context each. Of each pair of neighbouring slices
 * the ratio is taken, so that a machine that changes its speed changes both; the median of the ratios is
 * the figure, and beside it that of pairs of which both were without: what the measuring itself is worth.
 * And what the two slots of the table take by themselves.
 *
 * bench_integrity MODEL [SECONDS each]
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/load.h"
#include "runtime/program.h"
#include "sched/check.h"

enum { CONTEXT = 2048, SEQUENCES = 32, PREFILL = 512, PAGE = 16, PAIRS_MAX = 4096, CALLS = 100000 };

struct bench {
	struct run run;
	uint32_t tokens[PREFILL], pages; /* pages: of one sequence */
};

static struct run_sequence sequence(const struct bench *b, uint32_t i)
{
	return (struct run_sequence){.page_first = i * b->pages, .tag_first = 1 + (uint64_t)i * b->pages};
}

/* The first sequence's pages, copied into all. */
static int fill(struct bench *b)
{
	const struct ops *ops = forward_ops(b->run.forward);
	struct device *device = forward_device(b->run.forward);
	const struct run_sequence first = sequence(b, 0);
	TRY(run_tags(&b->run, &first, b->pages));
	for (uint32_t at = 0; at < PREFILL; at += 128)
		TRY(run_chunk(&b->run, &first, b->tokens + at, 128, at, 128));
	for (uint32_t i = 0; i < SEQUENCES; i++) {
		const struct run_sequence s = sequence(b, i);
		TRY(run_tags(&b->run, &s, b->pages));
		for (uint32_t k = 0; k < b->pages; k++)
			if (i > 0 || k >= PREFILL / PAGE)
				TRY(ops->page_copy(device, 0, k % (PREFILL / PAGE), s.page_first + k));
	}
	return 0;
}

static int step(struct bench *b, uint32_t batch)
{
	batch_begin(b->run.builder);
	for (uint32_t i = 0; i < batch; i++) {
		const struct run_sequence s = sequence(b, i);
		batch_sample(b->run.builder, run_put(&b->run, &s, &b->tokens[i], 1, CONTEXT));
	}
	return run_step(&b->run);
}

static int slice(struct bench *b, uint32_t batch, enum integrity how, uint64_t *ns)
{
	forward_integrity_set(b->run.forward, how);
	const uint64_t start = program_now_ns();
	for (uint32_t i = 0; i < 2; i++)
		TRY(step(b, batch));
	*ns = program_now_ns() - start;
	return 0;
}

static int compare(const void *a, const void *b)
{
	const double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

static double median(double *list, uint32_t count)
{
	qsort(list, count, sizeof *list, compare);
	return list[count / 2];
}

static int measure(struct bench *b, uint32_t batch, double seconds)
{
	static double cost[PAIRS_MAX], noise[PAIRS_MAX];
	const uint64_t end = program_now_ns() + (uint64_t)(seconds * 1e9);
	uint32_t n = 0;
	uint64_t off_best = UINT64_MAX, check_best = UINT64_MAX;
	for (; n < PAIRS_MAX && (n < 8 || program_now_ns() < end); n++) {
		uint64_t ns[3];
		/* In turns, so that neither is always the first. */
		static const enum integrity order[2][3] = {
			{INTEGRITY_OFF, INTEGRITY_CHECK, INTEGRITY_OFF}, {INTEGRITY_CHECK, INTEGRITY_OFF, INTEGRITY_OFF},
		};
		for (unsigned k = 0; k < 3; k++)
			TRY(slice(b, batch, order[n % 2][k], &ns[k]));
		const uint64_t check = ns[n % 2 ? 0 : 1], off = ns[n % 2 ? 1 : 0], again = ns[2];
		cost[n] = (double)check / (double)off - 1;
		noise[n] = (double)again / (double)off - 1;
		off_best = off < off_best ? off : off_best;
		check_best = check < check_best ? check : check_best;
	}
	printf("batch %2u, context %d: %7.2f ms a step; check costs %+.2f %% (median of %u pairs; best against "
	       "best %+.2f %%); off against off %+.2f %%\n", batch, CONTEXT, (double)off_best / 2e6,
	       100 * median(cost, n), n, 100 * ((double)check_best / (double)off_best - 1),
	       100 * median(noise, n));
	return 0;
}

/* The slots alone, on the last step's batch. */
static int slots(struct bench *b)
{
	const struct ops *ops = forward_ops(b->run.forward);
	struct device *device = forward_device(b->run.forward);
	for (unsigned k = 0; k < 2; k++) {
		const uint64_t start = program_now_ns();
		for (uint32_t i = 0; i < CALLS; i++)
			TRY(k ? ops->tag_check(device) : ops->tag_skip(device));
		printf("%s alone, 32 sequences of %u pages: %.0f ns\n", k ? "check" : "off", b->pages,
		       (double)(program_now_ns() - start) / CALLS);
	}
	return 0;
}

int main(int argc, char **argv)
{
	static struct bench b;
	struct model *model;
	struct forward_options o;
	char reason[MODEL_REASON_MAX];
	if (argc < 2) {
		fprintf(stderr, "usage: bench_integrity MODEL [SECONDS each]\n");
		return 2;
	}
	if (model_open(argv[1], &model, reason) != 0) {
		fprintf(stderr, "%s\n", reason);
		return 1;
	}
	b.pages = CONTEXT / PAGE + 1;
	for (uint32_t i = 0; i < PREFILL; i++)
		b.tokens[i] = (i * 37 + 11) % model->arch.vocab;
	forward_options_default(&o);
	o.page_tokens = PAGE;
	o.page_count = SEQUENCES * b.pages;
	o.rows_max = 128;
	o.sequences_max = o.samples_max = 128;
	o.context = CONTEXT + PAGE;
	int code = run_open("bench_integrity", model, &o, &b.run);
	if (code == 0) {
		code = fill(&b);
		static const uint32_t batches[] = {1, 8, 32};
		for (unsigned i = 0; i < 3 && code == 0; i++)
			code = measure(&b, batches[i], argc > 2 ? atof(argv[2]) : 10);
		if (code == 0)
			code = slots(&b);
		if (code)
			fprintf(stderr, "bench_integrity: %s\n", err_text(code));
		run_close(&b.run);
	}
	model_close(&model);
	return code != 0;
}
