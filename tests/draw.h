/*
 * Chance that repeats (Marsaglia's xorshift of 64 bits), and a clock, for tests. Each program has its own
 * state and may set `seed` at its start.
 */
#ifndef HOLDFAST_TESTS_DRAW_H
#define HOLDFAST_TESTS_DRAW_H

#include <stdint.h>
#include <time.h>

static uint64_t seed = 88172645463325252;

/* 0 .. below - 1. */
static inline uint32_t draw(uint32_t below)
{
	seed ^= seed << 13;
	seed ^= seed >> 7;
	seed ^= seed << 17;
	return (uint32_t)(seed >> 20) % below;
}

/* Seconds. */
static inline double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

#endif
