/*
 * What the tests of leaves share: the leaves of every instruction set, and memory between guard values, which
 * nobody may touch.
 */
#ifndef HOLDFAST_TESTS_LEAVES_H
#define HOLDFAST_TESTS_LEAVES_H

#include <stdlib.h>

#include "kernels/cpu/cpu.h"
#include "sched/check.h"

enum { GUARD = 64 };
#define GUARD_VALUE -12345.0f

static struct leaf leaves[ISA_AVX512 + 1];

/* Those that do not run here are the scalar ones. */
static inline void leaves_make(void)
{
	for (int isa = ISA_SCALAR; isa <= ISA_AVX512; isa++) {
		leaf_init_ref(&leaves[isa]);
		if (isa >= ISA_AVX2 && ops_isa_runs(ISA_AVX2))
			leaf_init_avx2(&leaves[isa]);
		if (isa >= ISA_AVX512 && ops_isa_runs(ISA_AVX512))
			leaf_init_avx512(&leaves[isa]);
	}
}

static inline float *take(size_t count)
{
	float *p = calloc(count + 16, sizeof *p);
	CHECK(p != NULL);
	return p;
}

static inline float *guarded(size_t count)
{
	float *p = take(count += 2 * GUARD);
	while (count > 0)
		p[--count] = GUARD_VALUE;
	return p;
}

#endif
