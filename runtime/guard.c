/*
 * The guard's thread sleeps while the loop waits for nothing, and looks a few times before the end is due.
 */
#include "config.h"

#include "runtime/guard.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <time.h>

#include "sched/check.h"

enum { LOOK_MS = 1000, LOOKS = 8 /* before the end is due; and without anything to see, before it sleeps */ };

struct guard {
	void (*silent)(void *arg, const char *what, uint64_t waited_ms);
	void *arg;
	uint64_t ms;
	uint32_t look_ms;
	_Atomic(const char *) what; /* NULL: the loop waits for nothing */
	_Atomic uint32_t turn;      /* counts beginnings */
	_Atomic bool looks;         /* the thread wakes by itself */
	bool stop;                  /* under mutex */
	pthread_mutex_t mutex;
	pthread_cond_t wake;
	pthread_t thread;
};

/* One look's time at most counts for each: in time that this process stood still the disk had none either. */
static bool look(struct guard *g, uint32_t *turn, uint64_t *waited_ms, unsigned *quiet)
{
	/* Of this turn only if no other has begun when both are known. */
	uint32_t now = atomic_load(&g->turn);
	const char *what = atomic_load(&g->what);
	if (now != atomic_load(&g->turn))
		now = *turn - 1;
	*quiet = now == *turn && what == NULL ? *quiet + 1 : 0;
	*waited_ms = now == *turn && what != NULL ? *waited_ms + g->look_ms : 0;
	*turn = now;
	if (*waited_ms >= g->ms) {
		g->silent(g->arg, what, *waited_ms);
		return false;
	}
	return true;
}

static void *guard_run(void *arg)
{
	struct guard *g = arg;
	uint32_t turn = 0;
	uint64_t waited_ms = 0;
	unsigned quiet = 0;
	pthread_mutex_lock(&g->mutex);
	while (!g->stop) {
		if (quiet >= LOOKS) {
			atomic_store(&g->looks, false);
			/* What began just before is seen by who began it, or here. */
			if (atomic_load(&g->turn) == turn)
				pthread_cond_wait(&g->wake, &g->mutex);
			atomic_store(&g->looks, true);
			quiet = 0;
			continue;
		}
		struct timespec until;
		clock_gettime(CLOCK_MONOTONIC, &until);
		until.tv_sec += g->look_ms / 1000;
		until.tv_nsec += (long)(g->look_ms % 1000) * 1000000;
		if (until.tv_nsec >= 1000000000) {
			until.tv_nsec -= 1000000000;
			until.tv_sec++;
		}
		pthread_cond_timedwait(&g->wake, &g->mutex, &until);
		if (!g->stop && !look(g, &turn, &waited_ms, &quiet))
			break;
	}
	pthread_mutex_unlock(&g->mutex);
	return NULL;
}

int guard_open(uint64_t ms, void (*silent)(void *arg, const char *what, uint64_t waited_ms), void *arg,
	       struct guard **out)
{
	sigset_t all, before;
	pthread_condattr_t attr;
	*out = NULL;
	if (ms == 0)
		return 0;
	struct guard *g = calloc(1, sizeof *g);
	if (g == NULL)
		return -ERR_MEMORY;
	const uint64_t each = ms / LOOKS + 1;
	*g = (struct guard){.silent = silent, .arg = arg, .ms = ms,
			    .look_ms = (uint32_t)(each < LOOK_MS ? each : LOOK_MS), .looks = true};
	pthread_mutex_init(&g->mutex, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&g->wake, &attr);
	pthread_condattr_destroy(&attr);
	/* Signals are the loop's. */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	const bool started = pthread_create(&g->thread, NULL, guard_run, g) == 0;
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (started) {
		*out = g;
		return 0;
	}
	pthread_cond_destroy(&g->wake);
	pthread_mutex_destroy(&g->mutex);
	free(g);
	return -ERR_MEMORY;
}

void guard_close(struct guard **guard)
{
	struct guard *g = *guard;
	if (g == NULL)
		return;
	*guard = NULL;
	pthread_mutex_lock(&g->mutex);
	g->stop = true;
	pthread_cond_signal(&g->wake);
	pthread_mutex_unlock(&g->mutex);
	pthread_join(g->thread, NULL);
	pthread_cond_destroy(&g->wake);
	pthread_mutex_destroy(&g->mutex);
	free(g);
}

void guard_begin(struct guard *guard, const char *what)
{
	if (guard == NULL)
		return;
	atomic_store(&guard->turn, atomic_load_explicit(&guard->turn, memory_order_relaxed) + 1);
	atomic_store(&guard->what, what);
	if (atomic_load(&guard->looks))
		return;
	pthread_mutex_lock(&guard->mutex);
	pthread_cond_signal(&guard->wake);
	pthread_mutex_unlock(&guard->mutex);
}

void guard_end(struct guard *guard)
{
	if (guard != NULL)
		atomic_store_explicit(&guard->what, NULL, memory_order_release);
}
