/*
 * A pool of threads that runs the items of one loop. The caller takes part, so a pool of
 * one has no thread of its own, and a call never waits for a worker that sleeps: it waits
 * only for items that a worker has taken. Idle workers spin briefly, then yield, then
 * sleep.
 *
 * One caller at a time. Which thread runs an item is not determined; results must not
 * depend on it.
 */
#ifndef HOLDFAST_KERNELS_CPU_POOL_H
#define HOLDFAST_KERNELS_CPU_POOL_H

#include <stdint.h>

enum { POOL_THREADS_MAX = 256 };

struct pool;

typedef void pool_function(void *argument, uint32_t item, uint32_t thread);

/* The cores that this process may run on. */
uint32_t pool_cores(void);

/* 0 or -ERR_MEMORY. threads: 1 .. POOL_THREADS_MAX, the caller included. */
int pool_open(uint32_t threads, struct pool **out);
void pool_close(struct pool **pool);
uint32_t pool_threads(const struct pool *pool);

/* Calls function(argument, item, thread) once for each item 0 .. count-1 and returns when
   all are done. thread: 0 (the caller) .. threads-1; no two items run at once with the
   same. */
void pool_run(struct pool *pool, pool_function *function, void *argument, uint32_t count);

#endif
