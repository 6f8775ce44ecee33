/*
 * The same model on a CPU device and on an emulated GPU, for the tests of kernels/cuda/.
 */
#ifndef HOLDFAST_TESTS_CUDA_BOTH_H
#define HOLDFAST_TESTS_CUDA_BOTH_H

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/emulate_hooks.h"
#include "tests/kernels_fixture.h"
#include "tests/tap.h"

static const uint64_t seeds[] = {0, 1, 12345};
enum { SEEDS = 3 };

/* A model on both devices. */
static struct fixture cpu, gpu;

static inline void both_open(const struct device_plan *plan, const struct fixture_options *o, uint64_t seed)
{
	fixture_table = ops_cpu;
	fixture_open(&cpu, plan, o, seed);
	fixture_table = ops_cuda;
	fixture_open(&gpu, plan, o, seed);
}

static inline void both_close(void)
{
	fixture_close(&cpu);
	fixture_close(&gpu);
	const char *fault = hook_fault();
	if (!EXPECT(fault == NULL))
		printf("# %s\n", fault);
}

static inline float *floats(size_t n)
{
	float *p = calloc(n ? n : 1, sizeof *p);
	CHECK(p != NULL);
	return p;
}

/* The same random values into a buffer of both. */
static inline void both_fill(enum ops_buffer buffer, size_t n, float size, uint64_t *state)
{
	float *x = floats(n);
	for (size_t i = 0; i < n; i++)
		x[i] = random_normal(state) * size;
	CHECK(cpu.ops->buffer_write(cpu.device, buffer, 0, n, x) == 0);
	CHECK(gpu.ops->buffer_write(gpu.device, buffer, 0, n, x) == 0);
	free(x);
}

/* Root of the mean squared difference over that of the values; NaN fails any bound. */
static inline double both_error(enum ops_buffer buffer, size_t n)
{
	float *a = floats(n), *b = floats(n);
	double sum = 0, size = 0;
	CHECK(cpu.ops->buffer_read(cpu.device, buffer, 0, n, a) == 0);
	if (gpu.ops->buffer_read(gpu.device, buffer, 0, n, b) != 0)
		sum = NAN;
	for (size_t i = 0; i < n; i++) {
		sum += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
		size += (double)a[i] * a[i];
	}
	free(a);
	free(b);
	return sum == 0 ? 0 : sqrt(sum / size);
}

static inline struct ops_batch *both_batch(const struct fixture_sequence *s, uint32_t count, uint32_t phase,
				    int sample)
{
	struct ops_batch *b = fixture_block(&cpu, s, count, sample);
	struct ops_row *rows = (struct ops_row *)(void *)((uint8_t *)b + b->row_at);
	for (uint32_t i = 0; i < b->row_count; i++)
		rows[i].phase = phase;
	CHECK(cpu.ops->batch(cpu.device, b) == 0);
	CHECK(gpu.ops->batch(gpu.device, b) == 0);
	return b;
}

static uint32_t text[1024];

static inline void text_make(uint32_t vocab)
{
	uint64_t state = 4;
	for (size_t i = 0; i < sizeof text / sizeof text[0]; i++)
		text[i] = random_below(&state, vocab);
}

/* Pages of both, byte for byte. */
static inline int pages_equal(uint32_t first, uint32_t count)
{
	const struct device_plan *p = &cpu.plan;
	const uint64_t bytes = ops_page_bytes(p->kv, FIXTURE_LAYERS, p->kv_heads, p->head, p->page_tokens);
	uint8_t *a = malloc(bytes), *b = malloc(bytes);
	int equal = 1;
	CHECK(a && b);
	for (uint32_t i = first; i < first + count; i++) {
		equal &= cpu.ops->page_read(cpu.device, 0, i, a) == 0;
		equal &= gpu.ops->page_read(gpu.device, 0, i, b) == 0;
		equal &= memcmp(a, b, bytes) == 0;
	}
	free(a);
	free(b);
	return equal;
}

/* Under sanitizers one case of four is enough. */
static inline int less(uint32_t i)
{
	return getenv("HOLDFAST_SANITIZED") != NULL && i % 4 != 0;
}

#endif
