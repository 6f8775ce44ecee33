/*
 * How fast text becomes ids on one core: bench_tokenizer MODEL [FILE …]. Each file is read, repeated to
 * 16 MiB and encoded whole, best of several; then awkward texts of 1 MiB each. Exit code 1: a file of
 * ASCII is slower than 10 MB/s, or an awkward text than half a second.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "runtime/tokenizer.h"

enum { TEXT_BYTES = 16 << 20, AWKWARD_BYTES = 1 << 20, ROUNDS = 5 };

static char text[TEXT_BYTES];
static uint32_t ids[3 * AWKWARD_BYTES > TEXT_BYTES ? 3 * AWKWARD_BYTES : TEXT_BYTES];

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int slow;

static void measure(const struct tokenizer *t, const char *what, size_t length, double seconds_max)
{
	double best = 1e9;
	size_t count = 0;
	for (int round = 0; round < ROUNDS; round++) {
		count = 0;
		const double start = now();
		if (tokenizer_encode(t, text, length, false, ids, sizeof ids / sizeof *ids, &count))
			abort();
		const double s = now() - start;
		best = s < best ? s : best;
	}
	printf("%-32s %7.1f MB/s  %8.2f ms/MB  %.2f bytes an id\n", what, (double)length / best * 1e-6,
	       best * 1e9 / (double)length, (double)length / (double)count);
	slow |= best > seconds_max;
}

static bool is_ascii(size_t length)
{
	for (size_t i = 0; i < length; i++)
		if ((unsigned char)text[i] > 0x7f)
			return false;
	return true;
}

static void fill(const char *unit, size_t unit_length, size_t length)
{
	for (size_t i = 0; i < length; i++)
		text[i] = unit[i % unit_length];
}

int main(int argc, char **argv)
{
	static const char *const awkward[] = {"a", " ", "\n ", "=\"", "\xff", "\xe4\xb8\xad", "1",
					      "\xc3\xa9t\xc3\xa9 "};
	char reason[MODEL_REASON_MAX];
	struct model *model;
	struct tokenizer *t;
	if (argc < 2 || model_open(argv[1], &model, reason) != 0) {
		fprintf(stderr, "usage: bench_tokenizer MODEL [FILE ...]\n");
		return 2;
	}
	const double start = now();
	if (tokenizer_open(model, &t, reason) != 0)
		return 1;
	printf("tables in %.0f ms\n", (now() - start) * 1e3);
	for (int i = 2; i < argc; i++) {
		FILE *f = fopen(argv[i], "rb");
		char *unit = malloc(TEXT_BYTES);
		const size_t n = f && unit ? fread(unit, 1, TEXT_BYTES, f) : 0;
		if (n == 0)
			return 1;
		fclose(f);
		fill(unit, n, TEXT_BYTES);
		free(unit);
		const char *name = strrchr(argv[i], '/');
		measure(t, name ? name + 1 : argv[i], TEXT_BYTES, is_ascii(TEXT_BYTES) ? TEXT_BYTES / 10e6 : 1e9);
	}
	for (size_t i = 0; i < sizeof awkward / sizeof awkward[0]; i++) {
		char what[32];
		fill(awkward[i], strlen(awkward[i]), AWKWARD_BYTES);
		snprintf(what, sizeof what, "1 MiB of text %zu", i);
		measure(t, what, AWKWARD_BYTES, 0.5);
	}
	tokenizer_close(&t);
	model_close(&model);
	return slow;
}
