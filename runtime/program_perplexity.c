/*
 * holdfastd perplexity: how well the model foretells a text under a precision plan, and how far the
 * plan's next-token distribution is from another plan's.
 *
 * Windows of N tokens, one after the other or further apart; the second half of each is scored:
 * positions N/2 .. N-1, foretold by the rows before them. Rows are computed in chunks, so that memory
 * is that of a chunk's logits, whatever the window.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/program.h"
#include "runtime/tokenizer.h"

/* Scored rows of one step: each has a whole row of logits. */
enum { SCORED_MAX = 128, TEXT_BYTES_MAX = 256 << 20, KV_NONE = -1 };

struct perplexity {
	struct program_options options;
	const char *name, *text_path;
	uint32_t window, windows, shift, stride;
	int against;
	bool json;
	const struct model *model;
	uint32_t *ids;
	size_t id_count;
	struct run run, other; /* other: the plan to compare with */
	float *row, *other_row;
	/* Results. */
	double nll, other_nll;
	uint32_t scored, same;
	double *divergence; /* per scored token */
};

static double row_log_sum(const float *row, uint32_t n, uint32_t *largest)
{
	uint32_t at = 0;
	for (uint32_t i = 1; i < n; i++)
		if (row[i] > row[at])
			at = i;
	double sum = 0;
	const double peak = row[at];
	for (uint32_t i = 0; i < n; i++)
		sum += exp(row[i] - peak);
	*largest = at;
	return log(sum) + peak;
}

static int row_read(const struct perplexity *p, struct run *run, uint32_t sample, float *row)
{
	return forward_ops(run->forward)
		->buffer_read(forward_device(run->forward), BUFFER_LOGITS,
			      (size_t)sample * p->model->arch.vocab, p->model->arch.vocab, row);
}

static int row_score(struct perplexity *p, uint32_t sample, uint32_t target)
{
	const uint32_t vocab = p->model->arch.vocab;
	uint32_t largest = 0, other_largest = 0;
	TRY(row_read(p, &p->run, sample, p->row));
	const double norm = row_log_sum(p->row, vocab, &largest);
	p->nll += norm - p->row[target];
	if (p->against != KV_NONE) {
		TRY(row_read(p, &p->other, sample, p->other_row));
		const double other = row_log_sum(p->other_row, vocab, &other_largest);
		double sum = 0;
		for (uint32_t i = 0; i < vocab; i++) {
			const double log_other = p->other_row[i] - other;
			sum += exp(log_other) * (log_other - (p->row[i] - norm));
		}
		p->divergence[p->scored] = sum;
		p->same += largest == other_largest;
		p->other_nll += other - p->other_row[target];
	}
	p->scored++;
	return 0;
}

/* The window's tokens: with a start token first where the model wants one. */
static uint32_t window_tokens(const struct perplexity *p)
{
	const struct vocabulary *v = &p->model->vocabulary;
	return p->window - (v->add_bos && v->bos != UINT32_MAX);
}

static void window_fill(const struct perplexity *p, uint32_t index, uint32_t *tokens)
{
	const uint32_t body = window_tokens(p);
	if (body < p->window)
		tokens[0] = p->model->vocabulary.bos;
	memcpy(tokens + p->window - body, p->ids + (size_t)index * p->stride, body * sizeof *tokens);
}

static int window_run(struct perplexity *p, uint32_t index, const uint32_t *tokens)
{
	const uint32_t pages = forward_plan(p->run.forward)->group[0].page_count;
	const struct run_sequence s = {.position_first = p->shift,
				       .tag_first = 1 + (uint64_t)index * pages};
	const uint32_t scored_from = p->window / 2 - 1, end = p->window - 1;
	TRY(run_tags(&p->run, &s, pages));
	if (p->against != KV_NONE)
		TRY(run_tags(&p->other, &s, pages));
	for (uint32_t at = 0; at < end;) {
		uint32_t count = end - at;
		if (count > p->options.chunk)
			count = p->options.chunk;
		if (at < scored_from && count > scored_from - at)
			count = scored_from - at;
		if (at >= scored_from && count > SCORED_MAX)
			count = SCORED_MAX;
		const uint32_t sample_from = at < scored_from ? count : 0;
		TRY(run_chunk(&p->run, &s, tokens + at, count, p->shift + at, sample_from));
		if (p->against != KV_NONE)
			TRY(run_chunk(&p->other, &s, tokens + at, count, p->shift + at,
				      sample_from));
		for (uint32_t i = sample_from; i < count; i++)
			TRY(row_score(p, i, tokens[at + i + 1]));
		at += count;
		program_progress(NULL, "perplexity", (uint64_t)index * end + at,
				 (uint64_t)p->windows * end);
	}
	return 0;
}

static int compare_doubles(const void *a, const void *b)
{
	const double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

static void print_results(struct perplexity *p)
{
	const double nll = p->nll / p->scored;
	double mean = 0, p99 = 0;
	if (p->against != KV_NONE) {
		for (uint32_t i = 0; i < p->scored; i++)
			mean += p->divergence[i] / p->scored;
		qsort(p->divergence, p->scored, sizeof *p->divergence, compare_doubles);
		p99 = p->divergence[(uint32_t)(0.99 * (p->scored - 1) + 0.5)];
	}
	const double same = (double)p->same / p->scored, other = p->other_nll / p->scored;
	if (p->json) {
		printf("{\"tokens\":%u,\"nll\":%.9g,\"perplexity\":%.9g", p->scored, nll, exp(nll));
		if (p->against != KV_NONE)
			printf(",\"kl_mean\":%.6g,\"kl_p99\":%.6g,\"same_top1\":%.6g"
			       ",\"against_nll\":%.9g,\"against_perplexity\":%.9g",
			       mean, p99, same, other, exp(other));
		printf("}\n");
		return;
	}
	printf("tokens scored   %u\nnll             %.5f\nperplexity      %.4f\n", p->scored, nll,
	       exp(nll));
	if (p->against != KV_NONE)
		printf("KL mean         %.6f\nKL 99 %%         %.6f\nsame first      %.4f\n"
		       "the other's     %.4f\n", mean, p99, same, exp(other));
}

static int text_read(struct perplexity *p)
{
	char reason[MODEL_REASON_MAX], *text = NULL;
	size_t length = 0;
	struct tokenizer *tokenizer = NULL;
	int err = program_read(p->text_path, TEXT_BYTES_MAX, &text, &length);
	if (err != 0)
		return program_read_fail(p->name, p->text_path, err);
	p->ids = malloc((length + 1) * sizeof *p->ids);
	err = p->ids ? tokenizer_open(p->model, &tokenizer, reason) : -ERR_MEMORY;
	if (err == 0)
		err = tokenizer_encode(tokenizer, text, length, false, p->ids, length + 1,
				       &p->id_count);
	tokenizer_close(&tokenizer);
	free(text);
	if (err != 0)
		return program_fail(p->name, "%s: %s", p->text_path, err_text(err));
	const uint32_t body = window_tokens(p);
	if (p->stride == 0)
		p->stride = body;
	const uint32_t most = p->id_count < body ? 0 : (uint32_t)((p->id_count - body) / p->stride) + 1;
	if (most == 0)
		return program_fail(p->name, "%s has %zu tokens, a window is %u", p->text_path,
				    p->id_count, p->window);
	if (p->windows == 0 || p->windows > most)
		p->windows = most;
	return 0;
}

static int plans_open(struct perplexity *p)
{
	struct forward_options options;
	const uint32_t page_tokens = p->options.page_tokens, vocab = p->model->arch.vocab;
	program_forward_options(&p->options, &options);
	options.rows_max = p->options.chunk > SCORED_MAX ? p->options.chunk : SCORED_MAX;
	options.sequences_max = 1;
	options.samples_max = SCORED_MAX;
	options.context = p->shift + p->window;
	/* One more, since a window may begin within a page. */
	options.page_count = (p->window + page_tokens - 1) / page_tokens + 1;
	p->row = calloc(2 * (size_t)vocab, sizeof *p->row);
	p->other_row = p->row + vocab;
	p->divergence = calloc((size_t)p->windows * (p->window - p->window / 2),
			       sizeof *p->divergence);
	if (!p->row || !p->divergence)
		return program_fail(p->name, "no memory");
	if (run_open(p->name, p->model, &options, &p->run) != 0)
		return 1;
	if (p->against == KV_NONE)
		return 0;
	options.kv = (enum kv_kind)p->against;
	return run_open(p->name, p->model, &options, &p->other);
}

static int perplexity_run(struct perplexity *p)
{
	uint32_t *tokens = NULL;
	if ((uint64_t)p->shift + p->window > p->model->arch.context)
		return program_fail(p->name, "positions up to %llu, the model's context is %u",
				    (unsigned long long)p->shift + p->window,
				    p->model->arch.context);
	int code = text_read(p);
	if (code == 0)
		code = plans_open(p);
	if (code == 0 && !(tokens = calloc(p->window, sizeof *tokens)))
		code = program_fail(p->name, "no memory");
	for (uint32_t i = 0; code == 0 && i < p->windows; i++) {
		window_fill(p, i, tokens);
		const int err = window_run(p, i, tokens);
		if (err != 0)
			code = program_fail(p->name, "window %u: %s", i, err_text(err));
	}
	if (code == 0)
		print_results(p);
	run_close(&p->run);
	run_close(&p->other);
	free(tokens);
	free(p->ids);
	free(p->row);
	free(p->divergence);
	return code;
}

int perplexity_main(int argc, char **argv)
{
	struct perplexity p = {.name = argv[0], .window = 1024, .against = KV_NONE};
	struct flag flags[PROGRAM_FLAGS + 7];
	const char *path = NULL;
	char reason[MODEL_REASON_MAX];
	struct model *model = NULL;
	program_flags(&p.options, flags);
	const struct flag own[7] = {
		{"text", FLAG_TEXT, &p.text_path, 0, 0, NULL, "the text to foretell"},
		{"window", FLAG_U32, &p.window, 4, 1 << 20, NULL, "tokens of a window"},
		{"windows", FLAG_U32, &p.windows, 1, 1 << 20, NULL, "how many; default: all"},
		{"stride", FLAG_U32, &p.stride, 1, 1 << 20, NULL,
		 "tokens from one window's start to the next; default: the window"},
		{"against", FLAG_CHOICE, &p.against, 0, 0, "fp8|int8|bf16|f32",
		 "compare with this precision of K and V (--act auto is f32 then)"},
		{"shift", FLAG_U32, &p.shift, 0, 1 << 30, NULL, "position where windows start"},
		{"json", FLAG_SWITCH, &p.json, 0, 0, NULL, "results as JSON"},
	};
	memcpy(flags + PROGRAM_FLAGS, own, sizeof own);
	const int code = program_arguments(argc, argv, flags, PROGRAM_FLAGS + 7, &p.options,
					   "MODEL --text FILE [option …]", &path);
	if (code >= 0)
		return code;
	if (!p.text_path) {
		program_fail(argv[0], "--text is needed");
		return 2;
	}
	if (model_open(path, &model, reason) != 0)
		return program_fail(argv[0], "%s: %s", path, reason);
	/* The steps of quantised activations hide a small change of K and V behind their own noise:
	   the divergence of two precisions of KV is that of full activations, unless asked. */
	if (p.against != KV_NONE && p.options.act == ACT_AUTO)
		p.options.act = ACT_F32;
	p.model = model;
	const int result = perplexity_run(&p);
	model_close(&model);
	return result;
}
