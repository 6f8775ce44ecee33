/*
 * The engine's thread. Jobs go to it and come back through two queues with a place for each, each with one
 * writer and one reader; an eventfd beside each counts what is in it. Whoever takes from a queue
 * takes from its counter first, so a place is never read before it was written, and the thread
 * sleeps in read(2) when there is nothing to do.
 */
#define _GNU_SOURCE
#include "runtime/engine.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

/* One that is filled, one with a batch, and two with copies alone: one of them beside the next batch. */
enum { ENGINE_JOBS = 4 };

struct queue {
	struct engine_job *place[ENGINE_JOBS];
	atomic_uint written; /* free-running; a place is index % ENGINE_JOBS */
	unsigned taken;      /* the reader's own */
	int fd;
};

struct engine {
	struct forward *forward;
	pthread_t thread;
	bool started;
	atomic_bool stop;
	struct queue work, done;
	struct engine_job job[ENGINE_JOBS];
	bool busy[ENGINE_JOBS]; /* the loop's own: not free */
	uint8_t *page;          /* room for one, for faults on purpose */
	uint64_t page_bytes;
};

static void queue_put(struct queue *queue, struct engine_job *job)
{
	const unsigned at = atomic_load_explicit(&queue->written, memory_order_relaxed);
	const uint64_t one = 1;
	queue->place[at % ENGINE_JOBS] = job;
	atomic_store_explicit(&queue->written, at + 1, memory_order_release);
	ssize_t n;
	do
		n = write(queue->fd, &one, sizeof one);
	while (n < 0 && errno == EINTR);
	CHECK(n == sizeof one);
}

/* Takes one from the counter; false if it is empty and the descriptor does not block. */
static bool queue_signal(struct queue *queue)
{
	uint64_t one;
	ssize_t n;
	do
		n = read(queue->fd, &one, sizeof one);
	while (n < 0 && errno == EINTR);
	if (n < 0)
		CHECK(errno == EAGAIN);
	return n == sizeof one;
}

static struct engine_job *queue_take(struct queue *queue)
{
	const unsigned written = atomic_load_explicit(&queue->written, memory_order_acquire);
	CHECK(written != queue->taken);
	return queue->place[queue->taken++ % ENGINE_JOBS];
}

static uint64_t engine_now_us(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}

static int engine_assign(struct forward *forward, const struct engine_assign *a)
{
	const struct ops *ops = forward_ops(forward);
	struct device *device = forward_device(forward);
	/* Content first: a page never bears its new tag over its old owner's bytes. */
	if (a->clear)
		TRY(ops->page_clear(device, a->group, a->page_first, a->page_count));
	if (a->tag_first == 0)
		return 0;
	return ops->page_tags_set(device, a->group, a->page_first, a->page_count, a->tag_first);
}

static int engine_poke(struct engine *engine, const struct engine_poke *p)
{
	const struct ops *ops = forward_ops(engine->forward);
	struct device *device = forward_device(engine->forward);
	uint64_t tag = 0;
	switch (p->kind) {
	case POKE_TAG:
		TRY(ops->page_tag(device, p->group, p->page, &tag));
		return ops->page_tags_set(device, p->group, p->page, 1, tag ^ p->value);
	case POKE_TAKE:
		TRY(ops->page_clear(device, p->group, p->page, 1));
		return ops->page_tags_set(device, p->group, p->page, 1, p->value);
	case POKE_GIVE:
		return ops->page_tags_set(device, p->group, p->page, 1, p->value);
	default:
		TRY(ops->page_read(device, p->group, p->page, engine->page));
		engine->page[p->value / 8 % engine->page_bytes] ^= (uint8_t)(1u << (p->value % 8));
		return ops->page_write(device, p->group, p->page, engine->page);
	}
}

/* All that the job asks for, at once: a GPU makes many in the time of one. */
static int engine_digests(struct engine *engine, struct engine_job *job)
{
	const struct ops *ops = forward_ops(engine->forward);
	struct device *device = forward_device(engine->forward);
	const uint32_t tokens = forward_plan(engine->forward)->page_tokens;
	uint32_t count = 0;
	for (uint32_t i = 0; i < job->digest_count; i++) {
		struct engine_digest *d = &job->digest[i];
		uint64_t tag;
		TRY(ops->page_tag(device, d->group, d->page, &tag));
		d->state = tag == d->tag ? DIGEST_MADE : DIGEST_GONE;
		if (d->state == DIGEST_MADE)
			job->sums[count++] = (struct ops_digest){.group = d->group, .page = d->page, .tokens = tokens};
	}
	TRY(ops->page_digests(device, job->sums, count));
	count = 0;
	for (uint32_t i = 0; i < job->digest_count; i++) {
		struct engine_digest *d = &job->digest[i];
		if (d->state == DIGEST_GONE)
			continue;
		memcpy(d->got, job->sums[count++].digest, sizeof d->got);
		if (d->want[0] == 0 && d->want[1] == 0)
			continue;
		d->state = d->want[0] == d->got[0] && d->want[1] == d->got[1] ? DIGEST_SAME : DIGEST_OTHER;
		/* No tag is 0. */
		if (d->state == DIGEST_OTHER)
			TRY(ops->page_tags_set(device, d->group, d->page, 1, 0));
	}
	return 0;
}

/* Before the digests: what goes up is written. */
static int copy_begin(struct engine *engine, struct engine_copy *c)
{
	if (c->late)
		nanosleep(&(struct timespec){.tv_nsec = ENGINE_LATE_MS * 1000000L}, NULL);
	if (!c->up)
		c->sum->tokens = c->tokens;
	if (c->sum->tokens > forward_plan(engine->forward)->page_tokens)
		return -ERR_OUT_OF_RANGE;
	if (!c->up)
		return 0;
	const struct ops *ops = forward_ops(engine->forward);
	return ops->page_write(forward_device(engine->forward), c->group, c->page, c->bytes);
}

/* After them: what goes down is read, what went up is compared and owned. */
static int copy_end(struct engine *engine, struct engine_copy *c, const uint64_t digest[2])
{
	const struct ops *ops = forward_ops(engine->forward);
	struct device *device = forward_device(engine->forward);
	if (!c->up) {
		memcpy(c->sum->digest, digest, sizeof c->sum->digest);
		return c->skip ? 0 : ops->page_read(device, c->group, c->page, c->bytes);
	}
	if (memcmp(digest, c->sum->digest, sizeof c->sum->digest) != 0)
		return -ERR_INTEGRITY;
	return ops->page_tags_set(device, c->group, c->page, 1, c->tag);
}

/* What fails here is the copy, not the step. No two copies share a page. */
static void engine_copies(struct engine *engine, struct engine_job *job)
{
	uint32_t count = 0;
	for (uint32_t i = 0; i < job->copy_count; i++) {
		struct engine_copy *c = &job->copy[i];
		c->err = -copy_begin(engine, c);
		if (c->err == 0)
			job->sums[count++] = (struct ops_digest){.group = c->group, .page = c->page,
								 .tokens = c->sum->tokens};
	}
	const int code = forward_ops(engine->forward)->page_digests(forward_device(engine->forward), job->sums,
								    count);
	count = 0;
	for (uint32_t i = 0; i < job->copy_count; i++) {
		struct engine_copy *c = &job->copy[i];
		if (c->err == 0)
			c->err = code ? -code : -copy_end(engine, c, job->sums[count++].digest);
	}
}

static int engine_compute(struct engine *engine, struct engine_job *job)
{
	for (uint32_t i = 0; i < job->assign_count; i++)
		TRY(engine_assign(engine->forward, &job->assign[i]));
	engine_copies(engine, job);
	for (uint32_t i = 0; i < job->poke_count; i++)
		TRY(engine_poke(engine, &job->poke[i]));
	TRY(engine_digests(engine, job));
	if (job->batch == 0)
		return 0;
	return forward_step(engine->forward, job->block, job->sampled, job->faults);
}

static void *engine_main(void *arg)
{
	struct engine *engine = arg;
	for (;;) {
		queue_signal(&engine->work);
		if (atomic_load_explicit(&engine->stop, memory_order_acquire))
			return NULL;
		struct engine_job *job = queue_take(&engine->work);
		const uint64_t start_us = engine_now_us();
		job->err = engine_compute(engine, job);
		job->measured_us = engine_now_us() - start_us;
		queue_put(&engine->done, job);
	}
}

static int job_open(struct engine_job *job, const struct device_plan *plan, uint32_t assign_max,
		    uint32_t digest_max, uint32_t copy_max)
{
	job->copy_max = copy_max;
	job->copy = calloc(copy_max ? copy_max : 1, sizeof *job->copy);
	job->digest_max = digest_max;
	job->digest = calloc(digest_max ? digest_max : 1, sizeof *job->digest);
	const uint32_t sums = digest_max > copy_max ? digest_max : copy_max;
	job->sums = calloc(sums ? sums : 1, sizeof *job->sums);
	job->assign_max = assign_max;
	job->assign = calloc(assign_max ? assign_max : 1, sizeof *job->assign);
	job->sampled = calloc(plan->samples_max, sizeof *job->sampled);
	job->faults = calloc(plan->sequences_max, sizeof *job->faults);
	if (!job->assign || !job->sampled || !job->faults || !job->digest || !job->copy ||
	    !job->sums)
		return -ERR_MEMORY;
	return batch_builder_open(plan, &job->builder);
}

static void job_close(struct engine_job *job)
{
	batch_builder_close(&job->builder);
	free(job->assign);
	free(job->digest);
	free(job->sums);
	free(job->copy);
	free(job->sampled);
	free(job->faults);
}

/* Signals are the loop's: the new thread takes none. */
static int engine_start(struct engine *engine)
{
	sigset_t all, before;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	engine->started = pthread_create(&engine->thread, NULL, engine_main, engine) == 0;
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return engine->started ? 0 : -ERR_MEMORY;
}

int engine_open(struct forward *forward, uint32_t assign_max, uint32_t digest_max, uint32_t copy_max,
		struct engine **out)
{
	const struct device_plan *plan = forward_plan(forward);
	struct engine *engine = calloc(1, sizeof *engine);
	if (!engine)
		return -ERR_MEMORY;
	engine->work.fd = eventfd(0, EFD_CLOEXEC | EFD_SEMAPHORE);
	engine->done.fd = eventfd(0, EFD_CLOEXEC | EFD_SEMAPHORE | EFD_NONBLOCK);
	for (uint32_t g = 0; g < plan->group_count; g++) {
		const uint64_t bytes = ops_page_bytes(plan->kv, plan->group[g].layers, plan->kv_heads, plan->head,
						      plan->page_tokens);
		engine->page_bytes = bytes > engine->page_bytes ? bytes : engine->page_bytes;
	}
	engine->page = malloc(engine->page_bytes);
	int err = !engine->page ? -ERR_MEMORY : engine->work.fd < 0 || engine->done.fd < 0 ? -ERR_IO : 0;
	for (uint32_t i = 0; err == 0 && i < ENGINE_JOBS; i++)
		err = job_open(&engine->job[i], plan, assign_max, digest_max, copy_max);
	engine->forward = forward;
	if (err == 0)
		err = engine_start(engine);
	*out = engine;
	if (err != 0) {
		engine->forward = NULL; /* a refused call leaves it with the caller */
		engine_close(out);
	}
	return err;
}

void engine_close(struct engine **out)
{
	struct engine *engine = *out;
	if (!engine)
		return;
	if (engine->started) {
		const uint64_t one = 1;
		atomic_store_explicit(&engine->stop, true, memory_order_release);
		ssize_t n = write(engine->work.fd, &one, sizeof one);
		CHECK(n == sizeof one);
		pthread_join(engine->thread, NULL);
	}
	for (uint32_t i = 0; i < ENGINE_JOBS; i++)
		job_close(&engine->job[i]);
	if (engine->work.fd >= 0)
		close(engine->work.fd);
	if (engine->done.fd >= 0)
		close(engine->done.fd);
	forward_close(&engine->forward);
	free(engine->page);
	free(engine);
	*out = NULL;
}

int engine_fd(const struct engine *engine)
{
	return engine->done.fd;
}

static uint32_t job_index(const struct engine *engine, const struct engine_job *job)
{
	const ptrdiff_t index = job - engine->job;
	CHECK(index >= 0);
	CHECK(index < ENGINE_JOBS);
	return (uint32_t)index;
}

struct engine_job *engine_job(struct engine *engine)
{
	for (uint32_t i = 0; i < ENGINE_JOBS; i++) {
		if (engine->busy[i])
			continue;
		struct engine_job *job = &engine->job[i];
		engine->busy[i] = true;
		job->batch = 0;
		job->block = NULL;
		job->assign_count = job->poke_count = job->digest_count = job->copy_count = 0;
		return job;
	}
	return NULL;
}

uint32_t engine_spare(const struct engine *engine)
{
	uint32_t spare = 0;
	for (uint32_t i = 0; i < ENGINE_JOBS; i++)
		spare += !engine->busy[i];
	return spare;
}

void engine_submit(struct engine *engine, struct engine_job *job)
{
	CHECK(engine->busy[job_index(engine, job)]);
	CHECK(job->assign_count <= job->assign_max);
	CHECK((job->batch == 0) == (job->block == NULL));
	queue_put(&engine->work, job);
}

struct engine_job *engine_done(struct engine *engine)
{
	return queue_signal(&engine->done) ? queue_take(&engine->done) : NULL;
}

void engine_release(struct engine *engine, struct engine_job *job)
{
	CHECK(engine->busy[job_index(engine, job)]);
	engine->busy[job_index(engine, job)] = false;
}
