/*
 * The pool: every item once, no thread number twice at a time, no work left behind, no CPU
 * when idle.
 */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kernels/cpu/pool.h"
#include "sched/check.h"
#include "tests/tap.h"

enum { ITEMS_MAX = 1000 };

struct record {
	_Atomic uint32_t ran[ITEMS_MAX];
	_Atomic uint32_t busy[8];
	_Atomic uint32_t clashes;
	uint64_t value[ITEMS_MAX]; /* plain memory: the thread sanitizer watches the
				      hand-over */
	uint64_t input;
};

static void item(void *argument, uint32_t i, uint32_t thread)
{
	struct record *r = argument;
	if (atomic_fetch_add(&r->busy[thread], 1) != 0)
		atomic_fetch_add(&r->clashes, 1);
	atomic_fetch_add(&r->ran[i], 1);
	r->value[i] = r->input + i;
	atomic_fetch_sub(&r->busy[thread], 1);
}

static void every_item_once(void)
{
	for (uint32_t threads = 1; threads <= 5; threads++) {
		static struct record r;
		struct pool *p = NULL;
		int wrong = 0;
		REQUIRE(pool_open(threads, &p) == 0);
		EXPECT_EQ(pool_threads(p), threads);
		for (uint32_t round = 0; round < 2000; round++) {
			const uint32_t count = round % 50 == 0 ? ITEMS_MAX : round % 7;
			memset(&r, 0, sizeof r);
			r.input = round * 1000003ull;
			pool_run(p, item, &r, count);
			for (uint32_t i = 0; i < ITEMS_MAX; i++)
				wrong += r.ran[i] != (i < count) ||
					 (i < count && r.value[i] != r.input + i);
			wrong += r.clashes != 0;
		}
		EXPECT_EQ(wrong, 0);
		pool_close(&p);
		EXPECT(p == NULL);
	}
}

static double process_seconds(void)
{
	struct timespec t;
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void wait_ms(long ms)
{
	nanosleep(&(struct timespec){ms / 1000, ms % 1000 * 1000000}, NULL);
}

static void idle_is_idle(void)
{
	static struct record r;
	struct pool *p = NULL;
	REQUIRE(pool_open(3, &p) == 0);
	for (int i = 0; i < 20; i++) { /* also: workers that sleep are woken */
		memset(&r, 0, sizeof r);
		pool_run(p, item, &r, 64);
		wait_ms(5);
	}
	/* The thread sanitizer has a thread of its own that wakes now and then. And on a busy machine a
	   worker may be late to sleep: one quiet window of a few will do. */
	const double most = getenv("HOLDFAST_SANITIZED") ? 0.1 : 0.003;
	double taken = 1;
	for (int i = 0; i < 10 && taken >= most; i++) {
		wait_ms(100);
		const double before = process_seconds();
		wait_ms(300);
		taken = process_seconds() - before;
	}
	EXPECT(taken < most);
	pool_close(&p);
}

static _Atomic uint32_t threads_seen;

static void slow_item(void *argument, uint32_t i, uint32_t thread)
{
	(void)argument, (void)i;
	atomic_fetch_or(&threads_seen, 1u << thread);
	nanosleep(&(struct timespec){0, 2000000}, NULL);
}

static void all_take_part(void)
{
	struct pool *p = NULL;
	REQUIRE(pool_open(3, &p) == 0);
	EXPECT(pool_cores() >= 1);
	atomic_store(&threads_seen, 0);
	for (int i = 0; i < 50 && atomic_load(&threads_seen) != 7; i++)
		pool_run(p, slow_item, NULL, 30);
	EXPECT_EQ(atomic_load(&threads_seen), 7);
	pool_close(&p);
	pool_close(&p); /* closing nothing is nothing */
}

int main(void)
{
	TAP_RUN(every_item_once, "every item runs once, and its work is seen");
	TAP_RUN(idle_is_idle, "a pool without work takes no time");
	TAP_RUN(all_take_part, "every thread takes part");
	return tap_done();
}
