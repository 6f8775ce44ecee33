/*
 * The machine's bounds. Every slice starts all threads together and ends with the last, as a step does.
 */
#include "runtime/roofline.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Slices are short, so that some fall between what else the machine does. Each reads the next eighth:
   what it reads was last read seven eighths ago, and no cache holds so much. */
enum { SLICES = 32, PARTS = 8, WORK_ROUNDS = 200000 };

struct slice {
	enum isa isa;
	enum isa_work work;
	const uint64_t *words; /* NULL: multiply-adds are measured */
	size_t count;
	uint64_t result; /* multiply-adds done; or a sum, so that the reading is not left out */
	pthread_t thread;
};

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

typedef uint64_t words8 __attribute__((vector_size(64), aligned(64)));

/* Four chains of a cache line each: the loads are far apart enough to have many under way. */
static uint64_t read_all(const uint64_t *words, size_t count)
{
	const words8 *line = (const words8 *)(const void *)words;
	words8 sum[4] = {{0}, {0}, {0}, {0}};
	const size_t quarter = count / 8 / 4;
	for (size_t i = 0; i < quarter; i++)
		for (size_t j = 0; j < 4; j++)
			sum[j] += line[i + j * quarter];
	sum[0] += sum[1] + sum[2] + sum[3];
	return sum[0][0] ^ sum[0][1] ^ sum[0][2] ^ sum[0][3] ^ sum[0][4] ^ sum[0][5] ^ sum[0][6] ^
	       sum[0][7];
}

static void *slice_run(void *argument)
{
	struct slice *s = argument;
	s->result = s->words ? read_all(s->words, s->count) : ops_isa_work(s->isa, s->work, WORK_ROUNDS);
	return NULL;
}

/* Seconds until all have ended; what could not get a thread of its own runs on this one. */
static double slices_run(struct slice *slice, uint32_t threads)
{
	bool own[ROOFLINE_THREADS_MAX] = {false};
	const double start = now();
	for (uint32_t i = 1; i < threads; i++)
		own[i] = pthread_create(&slice[i].thread, NULL, slice_run, &slice[i]) == 0;
	slice_run(&slice[0]);
	for (uint32_t i = 1; i < threads; i++) {
		if (own[i])
			pthread_join(slice[i].thread, NULL);
		else
			slice_run(&slice[i]);
	}
	return now() - start;
}

int roofline_measure(enum isa isa, uint32_t threads, struct roofline *out)
{
	struct slice slice[ROOFLINE_THREADS_MAX];
	*out = (struct roofline){0};
	if (threads == 0 || threads > ROOFLINE_THREADS_MAX)
		return -ERR_OUT_OF_RANGE;
	uint64_t *words = aligned_alloc(2 << 20, ROOFLINE_BYTES);
	if (!words)
		return -ERR_MEMORY;
	memset(words, 1, ROOFLINE_BYTES);
	const size_t part = ROOFLINE_BYTES / sizeof *words / PARTS, share = part / threads / 32 * 32;
	static const enum isa_work kinds[] = {ISA_WORK_DOT, ISA_WORK_F32, ISA_WORK_TILE};
	double *const best[] = {&out->bytes_per_s, &out->macs_per_s, &out->f32_per_s, &out->tile_per_s};
	for (int k = 0; k < 4 * SLICES; k++) {
		const int what = k % 4; /* memory, then each kind */
		const uint64_t *from = words + k / 4 % PARTS * part;
		for (uint32_t i = 0; i < threads; i++)
			slice[i] = (struct slice){.isa = isa, .words = what ? NULL : from + i * share,
						  .work = kinds[what ? what - 1 : 0], .count = share};
		const double seconds = slices_run(slice, threads);
		double done = what ? 0 : (double)share * sizeof *words * threads;
		for (uint32_t i = 0; i < threads && what; i++)
			done += (double)slice[i].result;
		if (done / seconds > *best[what])
			*best[what] = done / seconds;
	}
	free(words);
	return 0;
}
