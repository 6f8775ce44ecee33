/*
 * The pool. Everything turns on one 64-bit ticket: the number of the job in the upper half,
 * the next item in the lower one.
 *
 * A worker reads the ticket, then the job's fields, then takes an item by comparing and
 * exchanging the ticket. If that succeeds the ticket has not changed in between, so the
 * fields were those of this job: before the caller writes the fields of another it closes
 * the ticket, and no ticket ever comes back. So a worker that comes late finds nothing to
 * take and can do no harm, and the caller need not wait for it.
 */
#define _GNU_SOURCE
#include "kernels/cpu/pool.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

#include "sched/check.h"

enum { SPINS = 2000, YIELDS = 64, RUN_NS = 2500 * 1000 };
#define CLOSED 0xffffffffu

struct worker {
	struct pool *pool;
	uint32_t thread;
	pthread_t id;
	uint64_t looked_ns, ran_ns; /* when it last asked how long it had run, and the answer */
};

struct pool {
	uint32_t threads, started;
	_Alignas(64) _Atomic uint64_t ticket;
	_Alignas(64) _Atomic uint32_t done; /* items of the open job that are finished */
	/* The open job. Atomic because a late worker may read while they are written. */
	_Alignas(64) _Atomic(pool_function *) function;
	_Atomic(void *) argument;
	_Atomic uint32_t count;
	_Alignas(64) _Atomic uint32_t sleepers;
	_Atomic uint32_t stop;
	pthread_mutex_t mutex;
	pthread_cond_t wake;
	struct worker workers[POOL_THREADS_MAX];
};

static void pause_briefly(void)
{
	__builtin_ia32_pause();
}

static uint64_t clock_ns(clockid_t id)
{
	struct timespec t;
	clock_gettime(id, &t);
	return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

/* Between two items. A worker that has run for long is soon made to stop for what else wants its core, and if
   that came within an item, all would wait for it. It stops here of itself. */
static void breathe(struct worker *w)
{
	const uint64_t now = clock_ns(CLOCK_MONOTONIC);
	if (now - w->looked_ns < RUN_NS)
		return;
	const uint64_t ran = clock_ns(CLOCK_THREAD_CPUTIME_ID);
	w->looked_ns = now;
	if (ran - w->ran_ns < RUN_NS)
		return;
	w->ran_ns = ran;
	sched_yield();
}

/* Takes and runs items of the open job until there is none; how many it ran. */
static uint32_t items_run(struct pool *p, uint32_t thread)
{
	uint32_t ran = 0;
	uint64_t ticket = atomic_load_explicit(&p->ticket, memory_order_acquire);
	while ((uint32_t)ticket != CLOSED) {
		if (thread)
			breathe(&p->workers[thread]);
		pool_function *const function =
			atomic_load_explicit(&p->function, memory_order_relaxed);
		void *const argument = atomic_load_explicit(&p->argument,
							    memory_order_relaxed);
		const uint32_t item = (uint32_t)ticket;
		if (item >= atomic_load_explicit(&p->count, memory_order_relaxed))
			break;
		if (!atomic_compare_exchange_weak_explicit(&p->ticket, &ticket, ticket + 1,
							   memory_order_acq_rel,
							   memory_order_acquire))
			continue;
		function(argument, item, thread);
		atomic_fetch_add_explicit(&p->done, 1, memory_order_release);
		ran++;
		ticket = atomic_load_explicit(&p->ticket, memory_order_acquire);
	}
	return ran;
}

static int job_changed(struct pool *p, uint32_t seen)
{
	const uint64_t ticket = atomic_load(&p->ticket);
	return ((uint32_t)(ticket >> 32) != seen && (uint32_t)ticket != CLOSED) ||
	       atomic_load(&p->stop);
}

static void job_wait(struct pool *p, uint32_t seen)
{
	for (int i = 0; i < SPINS; i++) {
		if (job_changed(p, seen))
			return;
		pause_briefly();
	}
	for (int i = 0; i < YIELDS; i++) {
		if (job_changed(p, seen))
			return;
		sched_yield();
	}
	pthread_mutex_lock(&p->mutex);
	/* Counted before the last look; the caller looks at the count after it has opened a
	   job. Both are sequentially consistent, so one of the two sees the other. */
	atomic_fetch_add(&p->sleepers, 1);
	while (!job_changed(p, seen))
		pthread_cond_wait(&p->wake, &p->mutex);
	atomic_fetch_sub(&p->sleepers, 1);
	pthread_mutex_unlock(&p->mutex);
}

static void *worker_main(void *argument)
{
	struct worker *w = argument;
	struct pool *p = w->pool;
	uint32_t seen = 0;
	while (job_wait(p, seen), !atomic_load(&p->stop)) {
		seen = (uint32_t)(atomic_load(&p->ticket) >> 32);
		items_run(p, w->thread);
	}
	return NULL;
}

static void sleepers_wake(struct pool *p)
{
	if (atomic_load(&p->sleepers) == 0)
		return;
	pthread_mutex_lock(&p->mutex);
	pthread_cond_broadcast(&p->wake);
	pthread_mutex_unlock(&p->mutex);
}

uint32_t pool_cores(void)
{
	cpu_set_t set;
	if (sched_getaffinity(0, sizeof set, &set) != 0)
		return 1;
	const int count = CPU_COUNT(&set);
	return count < 1 ? 1
	       : count > POOL_THREADS_MAX ? POOL_THREADS_MAX
					  : (uint32_t)count;
}

int pool_open(uint32_t threads, struct pool **out)
{
	CHECK(threads >= 1 && threads <= POOL_THREADS_MAX);
	struct pool *p = aligned_alloc(64, sizeof *p);
	if (!p)
		return -ERR_MEMORY;
	p->threads = threads;
	p->started = 0;
	atomic_init(&p->ticket, CLOSED);
	atomic_init(&p->done, 0);
	atomic_init(&p->function, NULL);
	atomic_init(&p->argument, NULL);
	atomic_init(&p->count, 0);
	atomic_init(&p->sleepers, 0);
	atomic_init(&p->stop, 0);
	pthread_mutex_init(&p->mutex, NULL);
	pthread_cond_init(&p->wake, NULL);
	for (uint32_t i = 1; i < threads; i++) {
		struct worker *w = &p->workers[i];
		w->pool = p;
		w->thread = i;
		w->looked_ns = w->ran_ns = 0;
		if (pthread_create(&w->id, NULL, worker_main, w) != 0) {
			pool_close(&p);
			return -ERR_MEMORY;
		}
		p->started = i;
	}
	*out = p;
	return 0;
}

void pool_close(struct pool **pool)
{
	struct pool *p = *pool;
	if (!p)
		return;
	atomic_store(&p->stop, 1);
	sleepers_wake(p);
	for (uint32_t i = 1; i <= p->started; i++)
		pthread_join(p->workers[i].id, NULL);
	pthread_cond_destroy(&p->wake);
	pthread_mutex_destroy(&p->mutex);
	free(p);
	*pool = NULL;
}

uint32_t pool_threads(const struct pool *pool)
{
	return pool->threads;
}

void pool_run(struct pool *p, pool_function *function, void *argument, uint32_t count)
{
	CHECK(count < CLOSED - POOL_THREADS_MAX);
	if (p->threads == 1 || count <= 1) {
		for (uint32_t i = 0; i < count; i++)
			function(argument, i, 0);
		return;
	}
	/* The ticket is closed here (by pool_open, or below), so no item can be taken. */
	const uint32_t job =
		(uint32_t)(atomic_load_explicit(&p->ticket, memory_order_relaxed) >> 32) +
		1;
	atomic_store_explicit(&p->function, function, memory_order_relaxed);
	atomic_store_explicit(&p->argument, argument, memory_order_relaxed);
	atomic_store_explicit(&p->count, count, memory_order_relaxed);
	atomic_store_explicit(&p->done, 0, memory_order_relaxed);
	atomic_store(&p->ticket, (uint64_t)job << 32);
	sleepers_wake(p);
	items_run(p, 0);
	for (uint32_t i = 0; atomic_load_explicit(&p->done, memory_order_acquire) < count;
	     i++) {
		if (i < SPINS)
			pause_briefly();
		else
			sched_yield();
	}
	atomic_store_explicit(&p->ticket, (uint64_t)job << 32 | CLOSED,
			      memory_order_release);
}
