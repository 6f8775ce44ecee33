/*
 * What --integrity check costs a decode step: steps with it and without it in turns, in one process and
 * one run, at batch 1, 8 and 32 with 2,048 tokens of context each. Each slice with it is held against the
 * mean of the two without beside it, so that a machine that changes its speed changes both; the median of
 * these ratios is the figure, with the bounds between which it lies at 95 %, and beside it that of
 * neighbours of which both were without: what the measuring itself is worth. The same of `off` against a
 * step that was compiled without the slot (forward_bare.c). And what the two slots of the table take by
 * themselves.
 *
 * With DIR, the same of the audit log instead, which is written there: steps whose pages are recorded as the
 * daemon records them, and steps beside which 100,000 page events a second are, in runs of 16. What a slice
 * pushed is on the disk before the next one begins; the wait for that is not counted, the writer's work is.
 * (bench_store says what processor time the log takes of those 100,000 by itself.)
 *
 * bench_integrity MODEL [SECONDS each] [DIR, or ""] [BATCH, or 0] [PAIRS]
 *
 * With PAIRS so many slices with it are measured, however long that takes. Each line ends in a verdict, and
 * the worst is the exit code: 0, the upper bound is below 1 % (of `off`: 0 lies within the bounds); 3, 1 %
 * lies within them: more pairs, or a quieter machine; 4, it costs 1 % or more (of `off`: something). 1: an
 * error.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "runtime/load.h"
#include "runtime/program.h"
#include "runtime/store.h"
#include "sched/check.h"

enum { CONTEXT = 2048, SEQUENCES = 32, PREFILL = 512, PAGE = 16, PAIRS_MAX = 4096, CALLS = 100000,
       EVENTS_S = 100000, RUN = 16, LOG_SLICE_MS = 150, OWNERS = 65536 };

/* forward_bare.c */
int forward_step_bare(struct forward *forward, const struct ops_batch *block, struct ops_sampled *sampled,
		      struct ops_fault *faults);

/* BARE: compiled without the slot. OFF and CHECK: of the tags. Those of the log are with the tags checked. */
enum mode { MODE_BARE, MODE_OFF, MODE_CHECK, MODE_LOG, MODE_LOG_EVENTS };

struct bench {
	struct run run;
	uint32_t tokens[PREFILL], pages; /* pages: of one sequence */
	uint32_t steps;                  /* of a slice */
	struct store *store;
	uint64_t step, tag, step_ns;     /* step_ns: what one takes, about */
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

static int step(struct bench *b, uint32_t batch, enum mode how)
{
	batch_begin(b->run.builder);
	for (uint32_t i = 0; i < batch; i++) {
		const struct run_sequence s = sequence(b, i);
		batch_sample(b->run.builder, run_put(&b->run, &s, &b->tokens[i], 1, CONTEXT));
	}
	/* As run_step does, so that both do the same around it. */
	const struct ops_batch *block = batch_end(b->run.builder);
	TRY(how == MODE_BARE ? forward_step_bare(b->run.forward, block, b->run.sampled, b->run.faults) :
			       forward_step(b->run.forward, block, b->run.sampled, b->run.faults));
	for (uint32_t i = 0; i < block->sequence_count; i++)
		if (b->run.faults[i].page != OPS_NONE)
			return -ERR_INTEGRITY;
	return 0;
}

static int push(struct bench *b, const struct store_record *r)
{
	int code;
	while ((code = store_push(b->store, r)) == -ERR_AUDIT_STALLED)
		nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
	return code;
}

/* A step's page events: each sequence gets a page every 16 tokens; or runs, given and taken in turns. */
static int record(struct bench *b, uint32_t batch, enum mode how)
{
	struct store_record r = {.kind = STORE_ASSIGN, .principal = 1, .turn = 3, .page_count = 1};
	b->step++;
	if (how == MODE_LOG_EVENTS) {
		const uint64_t runs = b->step_ns * EVENTS_S / RUN / 1000000000 + 1;
		r.kind = b->step & 1 ? STORE_ASSIGN : STORE_FREE;
		r.page_count = RUN;
		for (uint64_t i = 0; i < runs; i++) {
			r.page_first = (uint32_t)((b->step / 2 * runs + i) * RUN % OWNERS);
			r.tag_first = b->step & 1 ? b->tag + i * RUN : b->tag - (runs - i) * RUN;
			TRY(push(b, &r));
		}
		b->tag += b->step & 1 ? runs * RUN : 0;
	}
	for (uint32_t i = 0; i < batch && how == MODE_LOG; i++) {
		if ((b->step + i) % PAGE)
			continue;
		r.session[0] = (uint8_t)i;
		r.page_first = (uint32_t)(b->tag % OWNERS);
		r.tag_first = b->tag++;
		TRY(push(b, &r));
	}
	r = (struct store_record){.kind = STORE_STEP_END, .step = b->step};
	return push(b, &r);
}

static int slice(struct bench *b, uint32_t batch, enum mode how, uint64_t *ns)
{
	forward_integrity_set(b->run.forward, how <= MODE_OFF ? INTEGRITY_OFF : INTEGRITY_CHECK);
	/* Of the log's slices the first half is not counted: the writer lags behind by what it gathers. */
	uint64_t start = program_now_ns();
	for (uint32_t i = 0; i < (b->store ? 2 * b->steps : b->steps); i++) {
		if (i == b->steps)
			start = program_now_ns();
		TRY(step(b, batch, how));
		if (how >= MODE_LOG)
			TRY(record(b, batch, how));
	}
	*ns = program_now_ns() - start;
	b->step_ns = *ns / b->steps;
	while (b->store && store_settled(b->store) < store_mark(b->store) && store_failed(b->store) == 0)
		nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
	return 0;
}

static int compare(const void *a, const void *b)
{
	const double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

enum verdict { UNDER = 0, OPEN = 3, OVER = 4 };
static const double most = 0.01;

/* The median in percent, and the two of the list between which that of all such pairs lies at 95 %. */
static void median_put(const char *what, double *list, uint32_t count, double bounds[2])
{
	const double half = 0.98 * sqrt(count);
	qsort(list, count, sizeof *list, compare);
	const uint32_t low = count / 2 > half ? (uint32_t)(count / 2 - half) : 0;
	const uint32_t high = (uint32_t)(count / 2 + half) < count ? (uint32_t)(count / 2 + half) : count - 1;
	printf("%s %+.2f %% (%+.2f to %+.2f)", what, 100 * list[count / 2], 100 * list[low], 100 * list[high]);
	bounds[0] = list[low];
	bounds[1] = list[high];
}

static enum verdict judged(const double bounds[2], enum mode with)
{
	if (with == MODE_OFF)
		return bounds[0] > 0 ? OVER : UNDER;
	return bounds[1] < most ? UNDER : bounds[0] >= most ? OVER : OPEN;
}

static int measure(struct bench *b, uint32_t batch, double seconds, uint32_t pairs, enum mode with,
		   const char *what, enum verdict *worst)
{
	const enum mode without = with == MODE_OFF ? MODE_BARE : with == MODE_CHECK ? MODE_OFF : MODE_CHECK;
	static double cost[PAIRS_MAX], noise[PAIRS_MAX];
	const uint64_t end = program_now_ns() + (uint64_t)(seconds * 1e9);
	uint32_t n = 0;
	uint64_t off_best = UINT64_MAX, with_best = UINT64_MAX, off, one, next;
	double bounds[2], none[2];
	b->steps = 2;
	TRY(slice(b, batch, without, &off));
	if (with >= MODE_LOG)
		b->steps = 2 + (uint32_t)(LOG_SLICE_MS * 1000000ull / b->step_ns);
	TRY(slice(b, batch, without, &off));
	for (; n < PAIRS_MAX && (pairs ? n < pairs : n < 8 || program_now_ns() < end); n++, off = next) {
		TRY(slice(b, batch, with, &one));
		TRY(slice(b, batch, without, &next));
		cost[n] = 2 * (double)one / ((double)off + (double)next) - 1;
		noise[n] = (double)next / (double)off - 1;
		off_best = off < off_best ? off : off_best;
		with_best = one < with_best ? one : with_best;
	}
	printf("batch %2u, context %d: %6.2f ms a step; %s: ", batch, CONTEXT,
	       (double)off_best / 1e6 / b->steps, what);
	median_put("it costs", cost, n, bounds);
	printf(", best against best %+.2f %%; ", 100 * ((double)with_best / (double)off_best - 1));
	median_put("without against without", noise, n, none);
	const enum verdict verdict = judged(bounds, with);
	printf("; %u pairs of %u steps: %s\n", n, b->steps, with == MODE_OFF ?
	       verdict == UNDER ? "no difference is seen" : "A DIFFERENCE" :
	       verdict == UNDER ? "below 1 %" : verdict == OPEN ? "not decided" : "NOT BELOW 1 %");
	fflush(stdout);
	*worst = verdict > *worst ? verdict : *worst;
	return 0;
}

/* The slots alone, on the last step's batch. */
static int slots(struct bench *b, uint32_t batch)
{
	const struct ops *ops = forward_ops(b->run.forward);
	struct device *device = forward_device(b->run.forward);
	for (unsigned k = 0; k < 2; k++) {
		const uint64_t start = program_now_ns();
		for (uint32_t i = 0; i < CALLS; i++)
			TRY(k ? ops->tag_check(device) : ops->tag_skip(device));
		printf("%s alone, %u sequences of %u pages: %.0f ns\n", k ? "check" : "off", batch, b->pages,
		       (double)(program_now_ns() - start) / CALLS);
	}
	return 0;
}

static int measures(struct bench *b, double seconds, const char *dir, uint32_t only, uint32_t pairs,
		    enum verdict *worst)
{
	static const uint32_t batches[] = {1, 8, 32};
	static const struct { enum mode with; const char *what; } cases[] = {
		{MODE_CHECK, "check"}, {MODE_OFF, "off, against a build without"}, {MODE_LOG, "the log"},
		{MODE_LOG_EVENTS, "the log of 100,000 events a second"},
	};
	for (unsigned i = 0; i < 6; i++) {
		const uint32_t batch = batches[i / 2];
		const unsigned k = i % 2 + (dir ? 2 : 0);
		if (only == 0 || only == batch)
			TRY(measure(b, batch, seconds, pairs, cases[k].with, cases[k].what, worst));
	}
	return dir ? 0 : slots(b, only ? only : batches[2]);
}

static int opened(struct bench *b, const char *dir)
{
	struct store_options o;
	char reason[STORE_REASON_MAX];
	const char *warning;
	store_options_default(&o);
	o.dir = dir;
	const int code = store_open(&o, &b->store, reason, &warning);
	if (code != 0)
		fprintf(stderr, "%s\n", reason);
	return code;
}

int main(int argc, char **argv)
{
	static struct bench b = {.tag = 1};
	struct model *model;
	struct forward_options o;
	char reason[MODEL_REASON_MAX];
	enum verdict worst = UNDER;
	if (argc < 2) {
		fprintf(stderr, "usage: bench_integrity MODEL [SECONDS each] [DIR, or \"\"] [BATCH] [PAIRS]\n");
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
		const char *dir = argc > 3 && argv[3][0] ? argv[3] : NULL;
		code = fill(&b);
		if (code == 0 && dir)
			code = opened(&b, dir);
		if (code == 0)
			code = measures(&b, argc > 2 ? atof(argv[2]) : 10, dir, argc > 4 ? (uint32_t)atoi(argv[4]) : 0,
					argc > 5 ? (uint32_t)atoi(argv[5]) : 0, &worst);
		const int closed = b.store ? store_close(&b.store) : 0;
		code = code ? code : closed;
		if (code)
			fprintf(stderr, "bench_integrity: %s\n", err_text(code));
		run_close(&b.run);
	}
	model_close(&model);
	return code != 0 ? 1 : (int)worst;
}
