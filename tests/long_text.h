/*
 * A long text must take time in proportion to its length. Method: one unit repeated to 1 MiB against the
 * same to an eighth of it, in processor time, so that neither another program nor the machine's speed
 * matters. How many milliseconds it is tests/bench/bench_tokenizer says, and holds to a bound.
 */
#ifndef HOLDFAST_TESTS_LONG_TEXT_H
#define HOLDFAST_TESTS_LONG_TEXT_H

#include <string.h>
#include <time.h>

#include "runtime/tokenizer.h"
#include "tests/tap.h"

enum { LONG = 1 << 20, LONG_PART = LONG / 8, LONG_IDS = 3 * LONG + 3, LONG_TRIES = 5 };

static const char *const long_unit[] = {"a", " ", "\n ", "=\"", "\xff", "\xe4\xb8\xad", "1",
					"    return x[i] + 1; // no\n", "<|im_end"};

static double long_spent(void)
{
	struct timespec t;
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Seconds of the processor for the text's first `length` bytes; ids has room for LONG_IDS. */
static double long_encode(const struct tokenizer *t, const char *text, size_t length, bool special,
			  uint32_t *ids, size_t *count)
{
	const double start = long_spent();
	*count = 0;
	EXPECT_EQ(tokenizer_encode(t, text, length, special, ids, LONG_IDS, count), 0);
	return long_spent() - start;
}

/* Every unit. Eight times the text may take 16 times as long, for what the caches do; quadratic is 64.
   What is found beyond is looked at again, since a cache is shared with who else runs. */
static void long_texts(const struct tokenizer *t, bool special, char *text, uint32_t *ids)
{
	for (unsigned u = 0; u < sizeof long_unit / sizeof long_unit[0]; u++) {
		double part = 1e9, whole = 1e9;
		size_t count = 0, fewer;
		for (size_t i = 0; i < LONG; i++)
			text[i] = long_unit[u][i % strlen(long_unit[u])];
		for (unsigned i = 0; i < LONG_TRIES && (i == 0 || whole > 16 * part); i++) {
			const double one = long_encode(t, text, LONG_PART, special, ids, &fewer);
			part = one < part ? one : part;
			const double all = long_encode(t, text, LONG, special, ids, &count);
			whole = all < whole ? all : whole;
		}
		printf("# 1 MiB of unit %u: %zu ids in %.0f ms, %.1f times an eighth of it\n", u, count, whole * 1e3,
		       whole / part);
		EXPECT(whole <= 16 * part);
		EXPECT(whole < 10); /* of the processor, in a build that a sanitizer makes slow too */
		EXPECT(count > fewer);
	}
}

#endif
