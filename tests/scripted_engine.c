#include "tests/scripted_engine.h"

#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "runtime/engine.h"

enum { JOBS = 4, FIRST = 97, LETTERS = 26, HALF = 3 + 0xc3 /* tiny.h's token of that byte */ };

struct scripted scripted;

struct engine {
	struct forward *forward;
	struct engine_job job[JOBS];
	bool busy[JOBS];
	/* In order; indices of jobs. */
	uint32_t work[JOBS], done[JOBS];
	uint32_t work_count, done_count;
	int fd;
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t more;
	bool threaded, stop;
	uint64_t turns;
};

uint32_t scripted_token(uint32_t token, uint32_t position)
{
	uint32_t h = token * 2654435761u ^ position * 40503u;
	h ^= h >> 13;
	if (scripted.halves && h % 8 == 0)
		return HALF;
	return FIRST + h % LETTERS;
}

static uint64_t now_us(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}

/* The first token from the usual one on that the mask allows. */
static uint32_t allowed(const struct ops_batch *b, const struct ops_sample *s, uint32_t token, uint32_t vocab)
{
	if (!s->mask_at)
		return token;
	const uint32_t *mask = (const void *)((const char *)b + s->mask_at);
	for (uint32_t i = 0; i < vocab; i++) {
		const uint32_t t = (token + i) % vocab;
		if (mask[t / 32] >> t % 32 & 1)
			return t;
	}
	return OPS_NONE;
}

static void batch_run(struct engine *e, struct engine_job *job)
{
	const struct ops_batch *b = job->block;
	const struct ops_row *rows = (const void *)((const char *)b + b->row_at);
	const struct ops_sequence *sequences = (const void *)((const char *)b + b->sequence_at);
	const struct ops_sample *samples = (const void *)((const char *)b + b->sample_at);
	const uint32_t vocab = forward_plan(e->forward)->vocab;
	for (uint32_t i = 0; i < b->sequence_count; i++) {
		job->faults[i] = (struct ops_fault){.page = OPS_NONE};
		const struct ops_page *pages = (const void *)((const char *)b + b->page_at);
		if (scripted.faults && ++e->turns % scripted.faults == 0 && sequences[i].page_count[0])
			job->faults[i] = (struct ops_fault){.page = pages[sequences[i].page_first[0]].page, .found = 1};
	}
	for (uint32_t i = 0; i < b->sample_count; i++) {
		const struct ops_row *row = &rows[samples[i].row];
		memset(&job->sampled[i], 0, sizeof job->sampled[i]);
		job->sampled[i].token = allowed(b, &samples[i], scripted_token(row->token, row->position), vocab);
		job->sampled[i].logprob = -1.0f;
		if (scripted.on_sample)
			scripted.on_sample(sequences[row->sequence].slot, row->position);
	}
	scripted.batches++;
	scripted.rows += b->row_count;
}

static void job_run(struct engine *e, struct engine_job *job)
{
	const uint64_t start = now_us();
	job->err = 0;
	for (uint32_t i = 0; i < job->copy_count; i++)
		job->copy[i].err = scripted.copy_fails && ++e->turns % scripted.copy_fails == 0 ? ERR_INTEGRITY : 0;
	for (uint32_t i = 0; i < job->digest_count; i++)
		job->digest[i].state = DIGEST_GONE;
	if (job->batch)
		batch_run(e, job);
	job->measured_us = now_us() - start + 1 + scripted.measured_us;
}

/* Told outside of the lock: who is woken wants it at once. */
static void done_put(struct engine *e, uint32_t index)
{
	const uint64_t one = 1;
	pthread_mutex_lock(&e->lock);
	e->done[e->done_count++] = index;
	pthread_mutex_unlock(&e->lock);
	ssize_t n = write(e->fd, &one, sizeof one);
	CHECK(n == sizeof one);
}

static void *main_loop(void *at)
{
	struct engine *e = at;
	uint64_t next = now_us();
	pthread_mutex_lock(&e->lock);
	while (!e->stop) {
		if (!e->work_count) {
			pthread_cond_wait(&e->more, &e->lock);
			continue;
		}
		const uint32_t index = e->work[0];
		memmove(e->work, e->work + 1, --e->work_count * sizeof *e->work);
		pthread_mutex_unlock(&e->lock);
		const uint64_t t = now_us();
		next = next + scripted.step_us > t ? next + scripted.step_us : t;
		const struct timespec rest = {.tv_sec = (time_t)((next - t) / 1000000),
					      .tv_nsec = (long)((next - t) % 1000000) * 1000};
		nanosleep(&rest, NULL);
		job_run(e, &e->job[index]);
		done_put(e, index);
		pthread_mutex_lock(&e->lock);
	}
	pthread_mutex_unlock(&e->lock);
	return NULL;
}

int engine_open(struct forward *forward, uint32_t assign_max, uint32_t digest_max, uint32_t copy_max,
		struct engine **out)
{
	const struct device_plan *plan = forward_plan(forward);
	struct engine *e = *out = calloc(1, sizeof *e);
	CHECK(e);
	e->forward = forward;
	e->fd = eventfd(0, EFD_CLOEXEC | EFD_SEMAPHORE | EFD_NONBLOCK);
	for (uint32_t i = 0; i < JOBS; i++) {
		struct engine_job *job = &e->job[i];
		job->assign_max = assign_max;
		job->digest_max = digest_max;
		job->copy_max = copy_max;
		job->assign = calloc(assign_max + 1, sizeof *job->assign);
		job->digest = calloc(digest_max + 1, sizeof *job->digest);
		job->copy = calloc(copy_max + 1, sizeof *job->copy);
		job->sampled = calloc(plan->samples_max, sizeof *job->sampled);
		job->faults = calloc(plan->sequences_max, sizeof *job->faults);
		CHECK(job->assign && job->digest && job->copy && job->sampled && job->faults);
		CHECK(batch_builder_open(plan, &job->builder) == 0);
	}
	pthread_mutex_init(&e->lock, NULL);
	pthread_cond_init(&e->more, NULL);
	e->threaded = scripted.step_us > 0;
	if (e->threaded)
		CHECK(pthread_create(&e->thread, NULL, main_loop, e) == 0);
	return 0;
}

void engine_close(struct engine **out)
{
	struct engine *e = *out;
	if (e->threaded) {
		pthread_mutex_lock(&e->lock);
		e->stop = true;
		pthread_cond_signal(&e->more);
		pthread_mutex_unlock(&e->lock);
		pthread_join(e->thread, NULL);
	}
	for (uint32_t i = 0; i < JOBS; i++) {
		struct engine_job *job = &e->job[i];
		batch_builder_close(&job->builder);
		free(job->assign);
		free(job->digest);
		free(job->copy);
		free(job->sampled);
		free(job->faults);
	}
	close(e->fd);
	pthread_mutex_destroy(&e->lock);
	pthread_cond_destroy(&e->more);
	forward_close(&e->forward);
	free(e);
	*out = NULL;
}

int engine_fd(const struct engine *e)
{
	return e->fd;
}

struct engine_job *engine_job(struct engine *e)
{
	for (uint32_t i = 0; i < JOBS; i++) {
		if (e->busy[i])
			continue;
		struct engine_job *job = &e->job[i];
		e->busy[i] = true;
		job->batch = 0;
		job->block = NULL;
		job->assign_count = job->poke_count = job->digest_count = job->copy_count = 0;
		return job;
	}
	return NULL;
}

uint32_t engine_spare(const struct engine *e)
{
	uint32_t spare = 0;
	for (uint32_t i = 0; i < JOBS; i++)
		spare += !e->busy[i];
	return spare;
}

void engine_submit(struct engine *e, struct engine_job *job)
{
	if (!e->threaded) {
		job_run(e, job);
		done_put(e, (uint32_t)(job - e->job));
		return;
	}
	pthread_mutex_lock(&e->lock);
	e->work[e->work_count++] = (uint32_t)(job - e->job);
	pthread_mutex_unlock(&e->lock);
	pthread_cond_signal(&e->more);
}

struct engine_job *engine_done(struct engine *e)
{
	uint64_t n;
	if (read(e->fd, &n, sizeof n) != sizeof n)
		return NULL;
	pthread_mutex_lock(&e->lock);
	const uint32_t index = e->done[0];
	memmove(e->done, e->done + 1, --e->done_count * sizeof *e->done);
	pthread_mutex_unlock(&e->lock);
	return &e->job[index];
}

void engine_release(struct engine *e, struct engine_job *job)
{
	e->busy[job - e->job] = false;
}
