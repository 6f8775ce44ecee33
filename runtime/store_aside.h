/*
 * A thread for what the store does in a place that may not answer, so that the log goes on meanwhile.
 * One piece of work at a time. Private to the store.
 */
#ifndef HOLDFAST_RUNTIME_STORE_ASIDE_H
#define HOLDFAST_RUNTIME_STORE_ASIDE_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

struct aside {
	void (*work)(void *arg);
	void *arg;
	pthread_t thread;
	pthread_mutex_t mutex;
	pthread_cond_t wake;
	/* Under mutex. */
	bool started, stop, busy;
	uint64_t since_ns; /* when the work in hand was asked for, of the monotonic clock */
};

/* 0 or -ERR_MEMORY. `arg` is the thread's from aside_ask until it is idle again. It takes no signals. */
int aside_open(struct aside *aside, void (*work)(void *arg), void *arg);
/* Only while it is idle. */
void aside_ask(struct aside *aside);
/* 0: idle; else since when it is not, of the monotonic clock. */
uint64_t aside_since_ns(struct aside *aside);
/* Waits until it is idle; false: it is not after so long. */
bool aside_wait(struct aside *aside, uint32_t ms);
/* Ends the thread. False: it hangs in its work; then it, and all that it may touch, must be left alone until
   the process ends. */
bool aside_close(struct aside *aside);

#endif
