/*
 * Rates of the matmul leaves on one core: best of many slices, in multiply-adds a second.
 *
 *	bench_leaf [rows columns]
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kernels/cpu/device.h"
#include "tests/kernels_fixture.h"

enum { ROWS_MAX = 64 };

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static double rate(const struct leaf *leaf, const struct weight *w, const struct act *a,
		   uint32_t c_count, float *out)
{
	const uint32_t groups = (w->rows + PACK_ROWS - 1) / PACK_ROWS;
	double best = 1e9;
	const double end = now() + 0.5;
	while (now() < end) {
		const double start = now();
		leaf->matmul[w->pack](w, 0, groups, a, 0, c_count, out, w->rows);
		const double took = now() - start;
		best = took < best ? took : best;
	}
	return (double)w->rows * w->columns * c_count / best * 1e-9;
}

int main(int argc, char **argv)
{
	static const uint32_t types[] = {TYPE_Q4_1, TYPE_Q8_0, TYPE_F32};
	const uint32_t rows = argc > 2 ? (uint32_t)strtoul(argv[1], NULL, 10) : 1536;
	const uint32_t columns = argc > 2 ? (uint32_t)strtoul(argv[2], NULL, 10) : 576;
	uint64_t seed = 1;
	float *x = calloc((size_t)ROWS_MAX * columns, 4), *out = calloc((size_t)ROWS_MAX * rows, 4);
	float *d = calloc((size_t)ROWS_MAX * columns / 32, 4), *s = calloc((size_t)ROWS_MAX * columns / 32, 4);
	int8_t *q = calloc(ROWS_MAX, columns);
	if (!x || !out || !d || !s || !q || columns % 32)
		return 1;
	for (size_t i = 0; i < (size_t)ROWS_MAX * columns; i++)
		x[i] = random_normal(&seed);
	for (int isa = ISA_SCALAR; isa <= ISA_AVX512 && ops_isa_runs(isa); isa++) {
		struct leaf leaf;
		leaf_init_ref(&leaf);
		if (isa >= ISA_AVX2)
			leaf_init_avx2(&leaf);
		if (isa >= ISA_AVX512)
			leaf_init_avx512(&leaf);
		for (uint32_t c = 0; c < ROWS_MAX; c++)
			leaf.quantise(x + (size_t)c * columns, columns, q + (size_t)c * columns,
				      d + (size_t)c * columns / 32, s + (size_t)c * columns / 32);
		for (size_t t = 0; t < sizeof types / sizeof types[0]; t++) {
			uint8_t *data = random_weight(&seed, types[t], (size_t)rows * columns, 1);
			struct weight *w;
			if (pack_make(types[t], WEIGHT_MATMUL, rows, columns, data, &w) != 0)
				return 1;
			for (uint32_t c = 1; c <= ROWS_MAX; c *= 8)
				for (int kind = ACT_F32; kind <= ACT_I8_BLOCK; kind += 2) {
					const struct act a = {kind, columns, x, columns, q, columns, d, s,
							      columns / 32};
					printf("%-7s %-5s %-8s rows %2u: %7.2f GMAC/s\n", ops_isa_name(isa),
					       weight_type_name(types[t]),
					       kind == ACT_F32 ? "f32" : "i8 block", c,
					       rate(&leaf, w, &a, c, out));
				}
			pack_free(w);
			free(data);
		}
	}
	return 0;
}
