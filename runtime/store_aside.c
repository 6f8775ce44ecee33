/*
 * A thread that does one piece of work at a time, for the store.
 */
#include "config.h"

#include "runtime/store_aside.h"

#include <signal.h>
#include <time.h>

#include "runtime/store_disk.h"
#include "sched/check.h"

static void *aside_run(void *arg)
{
	struct aside *a = arg;
	pthread_mutex_lock(&a->mutex);
	for (;;) {
		while (!a->busy && !a->stop)
			pthread_cond_wait(&a->wake, &a->mutex);
		if (!a->busy)
			break;
		pthread_mutex_unlock(&a->mutex);
		a->work(a->arg);
		pthread_mutex_lock(&a->mutex);
		a->busy = false;
		pthread_cond_broadcast(&a->wake);
	}
	pthread_mutex_unlock(&a->mutex);
	return NULL;
}

int aside_open(struct aside *a, void (*work)(void *arg), void *arg)
{
	sigset_t all, before;
	pthread_condattr_t attr;
	*a = (struct aside){.work = work, .arg = arg};
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_mutex_init(&a->mutex, NULL);
	pthread_cond_init(&a->wake, &attr);
	pthread_condattr_destroy(&attr);
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	a->started = pthread_create(&a->thread, NULL, aside_run, a) == 0;
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (a->started)
		return 0;
	pthread_cond_destroy(&a->wake);
	pthread_mutex_destroy(&a->mutex);
	return -ERR_MEMORY;
}

void aside_ask(struct aside *a)
{
	pthread_mutex_lock(&a->mutex);
	CHECK(!a->busy);
	a->busy = true;
	a->since_ns = store_clock_ns(CLOCK_MONOTONIC);
	pthread_cond_broadcast(&a->wake);
	pthread_mutex_unlock(&a->mutex);
}

uint64_t aside_since_ns(struct aside *a)
{
	pthread_mutex_lock(&a->mutex);
	const uint64_t since = a->busy ? a->since_ns : 0;
	pthread_mutex_unlock(&a->mutex);
	return since;
}

bool aside_wait(struct aside *a, uint32_t ms)
{
	struct timespec until;
	const uint64_t end = store_clock_ns(CLOCK_MONOTONIC) + ms * 1000000ull;
	until.tv_sec = (time_t)(end / 1000000000);
	until.tv_nsec = (long)(end % 1000000000);
	pthread_mutex_lock(&a->mutex);
	int rc = 0;
	while (a->busy && rc == 0)
		rc = pthread_cond_timedwait(&a->wake, &a->mutex, &until);
	const bool idle = !a->busy;
	pthread_mutex_unlock(&a->mutex);
	return idle;
}

bool aside_close(struct aside *a)
{
	if (!a->started)
		return true;
	pthread_mutex_lock(&a->mutex);
	a->stop = true;
	const bool hangs = a->busy;
	pthread_cond_broadcast(&a->wake);
	pthread_mutex_unlock(&a->mutex);
	if (hangs)
		return false;
	pthread_join(a->thread, NULL);
	pthread_cond_destroy(&a->wake);
	pthread_mutex_destroy(&a->mutex);
	a->started = false;
	return true;
}
