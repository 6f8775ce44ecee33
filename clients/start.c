/*
 * The callback form: a call in a thread of ours, which ends with it. Calls on one handle still run one
 * after the other.
 */
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <time.h>

#include "clients/link.h"

enum { CANCEL_EVERY_NS = 20000000 };

typedef int run_fn(struct hf_client *c, struct hf_session *s, const struct hf_turn *t,
	const struct hf_stream *stream, struct hf_end *end);

/* A call that runs in a thread of ours. */
struct started {
	struct hf_client *c;
	run_fn *run;
	struct hf_session *s;
	const struct hf_turn *turn;
	struct hf_stream stream;
	hf_on_end *on_end;
	void *data;
};

static void *started_run(void *argument)
{
	struct started *job = argument;
	struct hf_client *c = job->c;
	struct hf_end end;
	job->run(c, job->s, job->turn, &job->stream, &end);
	job->on_end(job->data, &end);
	free(job);
	pthread_mutex_lock(&c->count_lock);
	c->started--;
	pthread_cond_broadcast(&c->counted);
	pthread_mutex_unlock(&c->count_lock);
	return NULL;
}

static int start(const struct started *what)
{
	struct started *job = malloc(sizeof *job);
	sigset_t all, before;
	pthread_t thread;
	pthread_attr_t detached;
	if (!what->c || !what->on_end)
		return free(job), -ERR_BAD_ARG;
	if (!job)
		return -ERR_MEMORY;
	*job = *what;
	pthread_mutex_lock(&job->c->count_lock);
	job->c->started++;
	pthread_mutex_unlock(&job->c->count_lock);
	/* The program's signals are for its own threads. */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	pthread_attr_init(&detached);
	pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
	const int failed = pthread_create(&thread, &detached, started_run, job);
	pthread_attr_destroy(&detached);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (!failed)
		return 0;
	pthread_mutex_lock(&job->c->count_lock);
	job->c->started--;
	pthread_mutex_unlock(&job->c->count_lock);
	free(job);
	return -ERR_MEMORY;
}

int hf_session_turn_start(struct hf_client *c, struct hf_session *s, const struct hf_turn *t,
	const struct hf_stream *stream, hf_on_end *on_end, void *data)
{
	const struct started job = {c, hf_session_turn, s, t,
		stream ? *stream : (struct hf_stream){0}, on_end, data};
	return start(&job);
}

int hf_session_continue_start(struct hf_client *c, struct hf_session *s, const struct hf_turn *t,
	const struct hf_stream *stream, hf_on_end *on_end, void *data)
{
	const struct started job = {c, hf_session_continue, s, t,
		stream ? *stream : (struct hf_stream){0}, on_end, data};
	return start(&job);
}

void started_wait(struct hf_client *c)
{
	pthread_mutex_lock(&c->count_lock);
	while (c->started > 0) {
		struct timespec until;
		/* Again and again: the next may just have begun, after it heard of no cancel. */
		hf_cancel(c);
		clock_gettime(CLOCK_REALTIME, &until);
		until.tv_nsec += CANCEL_EVERY_NS;
		until.tv_sec += until.tv_nsec / 1000000000;
		until.tv_nsec %= 1000000000;
		pthread_cond_timedwait(&c->counted, &c->count_lock, &until);
	}
	pthread_mutex_unlock(&c->count_lock);
}
