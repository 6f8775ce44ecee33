/*
 * Times of a bench, in microseconds: their percentiles, and those of several slices of it.
 */
#ifndef HOLDFAST_TESTS_BENCH_SAMPLES_H
#define HOLDFAST_TESTS_BENCH_SAMPLES_H

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/draw.h"

enum { SAMPLES_MAX = 4000000, FIRSTS_MAX = 8192, SLICES = 8 };

static double *samples;
static uint32_t sample_count;
/* Of each step's tokens the one that was read first; and when those that were last read were made. */
static double firsts[FIRSTS_MAX], newest;
static uint32_t first_count;

static inline void sample_add(double seconds)
{
	if (sample_count < SAMPLES_MAX)
		samples[sample_count++] = seconds * 1e6;
}

/* A token that was made then is read now. Those of one step are made within much less than a step. */
static inline void token_add(double at)
{
	const double t = now() - at;
	if (at > newest + 0.001 && first_count < FIRSTS_MAX)
		firsts[first_count++] = t * 1e6;
	newest = at > newest ? at : newest;
	sample_add(t);
}

static inline int smaller(const void *a, const void *b)
{
	const double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

static inline double percentile(double p)
{
	return sample_count ? samples[(uint32_t)(p * (sample_count - 1))] : NAN;
}

/* Of a slice: p10, p50, p99, and p50 of each step's first. */
struct slice {
	double p10, p50, p99, first;
};

static inline struct slice slice_take(void)
{
	qsort(firsts, first_count, sizeof *firsts, smaller);
	return (struct slice){percentile(0.1), percentile(0.5), percentile(0.99), firsts[first_count / 2]};
}

static inline int by_p50(const void *a, const void *b)
{
	return smaller(&((const struct slice *)a)->p50, &((const struct slice *)b)->p50);
}

static inline struct slice slice_say(const char *what, struct slice of[SLICES])
{
	qsort(of, SLICES, sizeof *of, by_p50);
	const struct slice m = of[SLICES / 2];
	printf("  %s: p10 %.0f us, p50 %.0f us (%.0f to %.0f), p99 %.0f us; the first of a step: p50 %.0f us\n",
	       what, m.p10, m.p50, of[0].p50, of[SLICES - 1].p50, m.p99, m.first);
	return m;
}

#endif
