/*
 * What a mask costs: bench_form MODEL. For each of some forms a walk of a few hundred tokens is
 * taken twice: the first time each new state's mask is made, the second time it is mostly found. Each
 * mean is held against a decode step of the model alone, with a context of 128. Exit code 1: where the state
 * was seen before they take more than 3 % of a step, or a millisecond.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "runtime/form.h"
#include "runtime/program.h"
#include "sched/check.h"

static double step_s;

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int by_value(const void *a, const void *b)
{
	const double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

static int slow;

static void report(const char *what, double *t, size_t n, bool seen)
{
	double sum = 0;
	for (size_t i = 0; i < n; i++)
		sum += t[i];
	slow |= seen && (sum / (double)n > 0.03 * step_s || sum / (double)n > 1e-3);
	qsort(t, n, sizeof *t, by_value);
	printf("  %-8s %4zu masks: mean %8.1f us, median %8.1f us, most %8.1f us; mean of a step %.3f %%\n",
	       what, n, sum / (double)n * 1e6, t[n / 2] * 1e6, t[n - 1] * 1e6, sum / (double)n / step_s * 100);
}

/* Goes along a text by the longest tokens, timing each mask. */
static void follow(struct form *form, const struct tokenizer *t, const char *text, const char *what)
{
	static uint32_t ids[4096];
	static double taken[4097];
	uint32_t *bits = malloc((tokenizer_count(t) + 31) / 32 * sizeof *bits);
	struct form_state s;
	size_t count = 0, n = 0;
	CHECK(bits);
	CHECK(tokenizer_encode(t, text, strlen(text), false, ids, 4096, &count) == 0);
	form_start(form, &s);
	for (size_t i = 0; i <= count; i++) {
		const char *bytes;
		const double start = now();
		form_mask(form, &s, bits);
		taken[n++] = now() - start;
		if (i == count)
			break;
		const size_t length = tokenizer_bytes(t, ids[i], false, &bytes);
		CHECK(form_advance(form, &s, bytes, length));
	}
	report(what, taken, n, strcmp(what, "again") == 0);
	free(bits);
}

int main(int argc, char **argv)
{
	static const struct { const char *name, *schema, *text;
	} forms[] = {
		{"an object of strings and numbers",
		 "{\"type\":\"object\",\"properties\":{\"title\":{\"type\":\"string\"},\"year\":"
		 "{\"type\":\"integer\",\"minimum\":1900,\"maximum\":2100},\"tags\":{\"type\":\"array\","
		 "\"items\":{\"type\":\"string\",\"maxLength\":30}},\"kind\":{\"enum\":[\"book\",\"film\"]}},"
		 "\"required\":[\"title\",\"year\"]}",
		 "{\"title\": \"A history of the world in a hundred objects, told by those who made them\", "
		 "\"year\": 2010, \"tags\": [\"history\", \"objects\", \"the world as it was\", \"museums\"], "
		 "\"kind\": \"book\"}"},
		{"strings with patterns",
		 "{\"type\":\"object\",\"properties\":{\"date\":{\"type\":\"string\",\"pattern\":"
		 "\"^\\\\d{4}-\\\\d{2}-\\\\d{2}$\"},\"mail\":{\"type\":\"string\",\"pattern\":"
		 "\"^[a-z.]+@[a-z]+[.](com|org)$\"},\"words\":{\"type\":\"string\",\"pattern\":"
		 "\"^[A-Za-z ,.]*$\"}}}",
		 "{\"date\": \"2024-01-31\", \"mail\": \"somebody.else@example.org\", \"words\": \"It was the "
		 "best of times, it was the worst of times, it was the age of wisdom.\"}"},
		{"any JSON", "true",
		 "{\"a\": [1, 2, {\"b\": \"some text of a few words\", \"c\": [null, true, -1.5e3]}], "
		 "\"d\": {\"e\": []}}"},
	};
	struct model *model;
	struct tokenizer *t;
	struct form_index *index;
	char reason[MODEL_REASON_MAX];
	if (argc < 2 || model_open(argv[1], &model, reason) != 0 || tokenizer_open(model, &t, reason) != 0) {
		fprintf(stderr, "usage: bench_form MODEL\n");
		return 2;
	}
	struct bench_rates rates;
	if (bench_rates("bench_form", argv[1], &rates) != 0)
		return 1;
	step_s = 1 / rates.decode_tps;
	printf("a decode step alone takes %.1f ms\n", step_s * 1e3);
	double start = now();
	CHECK(form_index_open(t, &index) == 0);
	printf("%u tokens, index in %.0f ms\n", tokenizer_count(t), (now() - start) * 1e3);
	for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++) {
		struct form *form;
		const struct text schema = {forms[i].schema, strlen(forms[i].schema)};
		start = now();
		CHECK(form_open_schema(index, schema, 65536, &form, NULL) == 0);
		printf("%s: made in %.2f ms\n", forms[i].name, (now() - start) * 1e3);
		follow(form, t, forms[i].text, "first");
		follow(form, t, forms[i].text, "again");
		form_close(&form);
	}
	form_index_close(&index);
	tokenizer_close(&t);
	model_close(&model);
	return slow;
}
