/*
 * holdfastd logits: the argmax and the largest logits at every given position, the log-probability
 * of the given tokens, and a greedy continuation; to compare with another implementation.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "runtime/cases.h"
#include "runtime/program.h"

enum { TOP_MAX = 100 };

struct logits {
	struct program_options options;
	const char *tokens_path;
	uint32_t top;
	struct run run;
	uint32_t vocab;
	float *row;           /* vocab logits */
	uint32_t order[TOP_MAX];
};

/* The `top` largest of the row, the lower id first among equals. */
static void top_find(struct logits *l)
{
	uint32_t have = 0;
	for (uint32_t id = 0; id < l->vocab; id++) {
		if (have == l->top && !(l->row[id] > l->row[l->order[have - 1]]))
			continue;
		uint32_t at = have < l->top ? have++ : have - 1;
		for (; at > 0 && l->row[id] > l->row[l->order[at - 1]]; at--)
			l->order[at] = l->order[at - 1];
		l->order[at] = id;
	}
}

static double row_log_sum(const struct logits *l, double peak)
{
	double sum = 0;
	for (uint32_t i = 0; i < l->vocab; i++)
		sum += exp(l->row[i] - peak);
	return log(sum) + peak;
}

static void print_row(const struct logits *l)
{
	printf("{\"argmax\":%u,\"top\":[", l->order[0]);
	for (uint32_t i = 0; i < l->top; i++)
		printf("%s[%u,%.5f]", i ? "," : "", l->order[i], (double)l->row[l->order[i]]);
	printf("]}");
}

static int read_row(struct logits *l, uint32_t sample)
{
	return forward_ops(l->run.forward)
		->buffer_read(forward_device(l->run.forward), BUFFER_LOGITS,
			      (size_t)sample * l->vocab, l->vocab, l->row);
}

/* All rows of the given tokens; *next is the first token of the continuation. */
static int case_rows(struct logits *l, const struct run_sequence *s, const struct case_tokens *c,
		     uint32_t *next)
{
	double logprob = 0;
	printf("\"rows\":[");
	for (uint32_t at = 0; at < c->count; at += l->options.chunk) {
		const uint32_t count = c->count - at < l->options.chunk ? c->count - at
									: l->options.chunk;
		TRY(run_chunk(&l->run, s, c->tokens + at, count, at, 0));
		for (uint32_t i = 0; i < count; i++) {
			TRY(read_row(l, i));
			top_find(l);
			if (at + i > 0)
				printf(",");
			print_row(l);
			if (at + i + 1 < c->count)
				logprob += l->row[c->tokens[at + i + 1]] -
					   row_log_sum(l, l->row[l->order[0]]);
		}
		*next = l->order[0];
		program_progress(NULL, "logits", at + count, c->count);
	}
	printf("],\"logprob\":%.4f,", logprob);
	return 0;
}

static int case_run(struct logits *l, const struct case_tokens *c, uint64_t tag_first)
{
	const struct run_sequence s = {.tag_first = tag_first};
	const uint32_t page_tokens = l->options.page_tokens;
	uint32_t next = 0;
	TRY(run_tags(&l->run, &s, (c->count + c->generate + page_tokens - 1) / page_tokens));
	printf("{\"name\":\"%.*s\",\"tokens\":[", (int)c->name_length, c->name);
	for (uint32_t i = 0; i < c->count; i++)
		printf("%s%u", i ? "," : "", c->tokens[i]);
	printf("],");
	TRY(case_rows(l, &s, c, &next));
	printf("\"greedy\":[");
	for (uint32_t i = 0; i < c->generate; i++) {
		printf("%s%u", i ? "," : "", next);
		if (i + 1 == c->generate)
			break;
		TRY(run_chunk(&l->run, &s, &next, 1, c->count + i, 0));
		next = l->run.sampled[0].token;
	}
	printf("]}");
	return 0;
}

/* Ids and lengths against the model; *longest in tokens. */
static int cases_check(const struct cases *cases, const struct model *model, const char *name,
		       uint32_t *longest)
{
	*longest = 1;
	for (uint32_t i = 0; i < cases->count; i++) {
		const struct case_tokens *c = &cases->at[i];
		const uint64_t length = (uint64_t)c->count + c->generate;
		if (length > model->arch.context)
			return program_fail(name, "case %u: %llu tokens, the model's context is %u",
					    i, (unsigned long long)length, model->arch.context);
		for (uint32_t k = 0; k < c->count; k++)
			if (c->tokens[k] >= model->arch.vocab)
				return program_fail(name, "case %u: token %u, the model has %u", i,
						    c->tokens[k], model->arch.vocab);
		if (length > *longest)
			*longest = (uint32_t)length;
	}
	return 0;
}

static int logits_run(struct logits *l, const char *name, const struct model *model,
		      const struct cases *cases)
{
	struct forward_options options;
	uint32_t longest = 0;
	if (cases_check(cases, model, name, &longest) != 0)
		return 1;
	program_forward_options(&l->options, &options);
	if (l->options.chunk > longest)
		options.rows_max = longest;
	options.sequences_max = 1;
	options.samples_max = options.rows_max;
	options.context = longest;
	options.page_count = (longest + l->options.page_tokens - 1) / l->options.page_tokens;
	l->vocab = model->arch.vocab;
	if (l->top > l->vocab)
		l->top = l->vocab;
	if (run_open(name, model, &options, &l->run) != 0)
		return 1;
	int code = 0;
	l->row = calloc(l->vocab, sizeof *l->row);
	if (!l->row)
		code = program_fail(name, "no memory");
	uint64_t tag = 1;
	for (uint32_t i = 0; code == 0 && i < cases->count; i++) {
		fputs(i ? "," : "[", stdout);
		const int err = case_run(l, &cases->at[i], tag);
		if (err != 0)
			code = program_fail(name, "case %u: %s", i, err_text(err));
		tag += options.page_count;
	}
	if (code == 0)
		puts(cases->count ? "]" : "[]");
	free(l->row);
	run_close(&l->run);
	return code;
}

int logits_main(int argc, char **argv)
{
	struct logits l = {.top = 5};
	struct flag flags[PROGRAM_FLAGS + 2];
	const char *path = NULL;
	char reason[MODEL_REASON_MAX], *text = NULL;
	size_t length = 0;
	struct model *model = NULL;
	struct cases cases = {0};
	program_flags(&l.options, flags);
	flags[PROGRAM_FLAGS] = (struct flag){"tokens", FLAG_TEXT, &l.tokens_path, 0, 0, NULL,
					     "JSON list of {\"name\",\"tokens\",\"generate\"}"};
	flags[PROGRAM_FLAGS + 1] = (struct flag){"top", FLAG_U32, &l.top, 1, TOP_MAX, NULL,
						 "largest logits to show"};
	int code = program_arguments(argc, argv, flags, PROGRAM_FLAGS + 2, &l.options,
				     "MODEL --tokens FILE [option …]", &path);
	if (code >= 0)
		return code;
	if (!l.tokens_path) {
		program_fail(argv[0], "--tokens is needed");
		return 2;
	}
	int err = program_read(l.tokens_path, CASES_BYTES_MAX, &text, &length);
	if (err != 0)
		return program_read_fail(argv[0], l.tokens_path, err);
	code = 1;
	if (cases_read(text, length, &cases, reason) != 0)
		program_fail(argv[0], "%s: %s", l.tokens_path, reason);
	else if ((err = model_open(path, &model, reason)) != 0)
		program_fail(argv[0], "%s: %s", path, reason);
	else
		code = logits_run(&l, argv[0], model, &cases);
	cases_free(&cases);
	free(text);
	model_close(&model);
	return code;
}
