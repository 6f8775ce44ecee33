/*
 * Two queues of jobs under one lock, one thread that takes from them, and a list of what is done with
 * an eventfd beside it.
 */
#define _GNU_SOURCE
#include "runtime/disk.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "sched/check.h"

struct jobs {
	struct disk_job *first, *last;
};

struct disk {
	struct tier *tier;
	pthread_t thread;
	pthread_mutex_t mutex; /* over all that follows */
	pthread_cond_t wake;
	struct jobs urgent, queue, done;
	const struct disk_job *hand;
	uint64_t began_us;
	bool started, stop;
	int fd;
};

static uint64_t disk_now_us(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}

static void jobs_put(struct jobs *jobs, struct disk_job *job)
{
	job->next = NULL;
	if (jobs->last)
		jobs->last->next = job;
	else
		jobs->first = job;
	jobs->last = job;
}

static struct disk_job *jobs_take(struct jobs *jobs)
{
	struct disk_job *job = jobs->first;
	if (!job)
		return NULL;
	jobs->first = job->next;
	if (!jobs->first)
		jobs->last = NULL;
	return job;
}

static void disk_tell(const struct disk *disk)
{
	const uint64_t one = 1;
	ssize_t n;
	do
		n = write(disk->fd, &one, sizeof one);
	while (n < 0 && errno == EINTR);
	CHECK(n == sizeof one);
}

static void job_do(struct disk *disk, struct disk_job *job)
{
	job->why = NULL;
	switch (job->verb) {
	case DISK_PUT:
		job->err = tier_put(disk->tier, job->group, job->slot, &job->proof, job->bytes);
		break;
	case DISK_GET:
		if (job->harm)
			tier_harm(disk->tier, job->group, job->slot, job->harm);
		job->err = tier_get(disk->tier, job->group, job->slot, &job->proof, job->bytes, &job->why);
		break;
	default:
		job->err = tier_drop(disk->tier, job->group, job->slot);
	}
	if (job->err && !job->why)
		job->why = err_text(job->err);
}

static void *disk_main(void *arg)
{
	struct disk *disk = arg;
	pthread_mutex_lock(&disk->mutex);
	for (;;) {
		struct disk_job *job = disk->stop ? NULL : jobs_take(&disk->urgent);
		if (!job && !disk->stop)
			job = jobs_take(&disk->queue);
		if (!job && disk->stop)
			break;
		if (!job) {
			pthread_cond_wait(&disk->wake, &disk->mutex);
			continue;
		}
		disk->hand = job;
		disk->began_us = disk_now_us();
		pthread_mutex_unlock(&disk->mutex);
		job_do(disk, job);
		pthread_mutex_lock(&disk->mutex);
		job->took_us = disk_now_us() - disk->began_us;
		disk->hand = NULL;
		disk->began_us = 0;
		jobs_put(&disk->done, job);
		disk_tell(disk);
	}
	pthread_mutex_unlock(&disk->mutex);
	return NULL;
}

int disk_open(struct tier *tier, struct disk **out)
{
	struct disk *disk = calloc(1, sizeof *disk);
	sigset_t all, before;
	*out = NULL;
	if (!disk)
		return -ERR_MEMORY;
	disk->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (disk->fd < 0) {
		free(disk);
		return -ERR_IO;
	}
	pthread_mutex_init(&disk->mutex, NULL);
	pthread_cond_init(&disk->wake, NULL);
	disk->tier = tier;
	/* Signals are the loop's. */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	disk->started = pthread_create(&disk->thread, NULL, disk_main, disk) == 0;
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (!disk->started) {
		close(disk->fd);
		free(disk);
		return -ERR_MEMORY;
	}
	*out = disk;
	return 0;
}

int disk_close(struct disk **out, uint32_t wait_ms)
{
	static struct disk *left_behind; /* its thread may still write to it */
	struct disk *disk = *out;
	struct timespec until;
	if (!disk)
		return 0;
	*out = NULL;
	pthread_mutex_lock(&disk->mutex);
	disk->stop = true;
	pthread_cond_signal(&disk->wake);
	pthread_mutex_unlock(&disk->mutex);
	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += wait_ms / 1000;
	until.tv_nsec += (long)(wait_ms % 1000) * 1000000;
	until.tv_sec += until.tv_nsec / 1000000000;
	until.tv_nsec %= 1000000000;
	if (pthread_timedjoin_np(disk->thread, NULL, &until) != 0) {
		left_behind = disk;
		CHECK(left_behind != NULL);
		return -ERR_IO;
	}
	tier_close(&disk->tier);
	close(disk->fd);
	pthread_cond_destroy(&disk->wake);
	pthread_mutex_destroy(&disk->mutex);
	free(disk);
	return 0;
}

int disk_fd(const struct disk *disk)
{
	return disk->fd;
}

void disk_submit(struct disk *disk, struct disk_job *job, bool urgent)
{
	pthread_mutex_lock(&disk->mutex);
	jobs_put(urgent ? &disk->urgent : &disk->queue, job);
	pthread_cond_signal(&disk->wake);
	pthread_mutex_unlock(&disk->mutex);
}

struct disk_job *disk_done(struct disk *disk)
{
	uint64_t count;
	/* Emptied before the list is looked at, so that nothing is missed. */
	ssize_t n = read(disk->fd, &count, sizeof count);
	(void)n;
	pthread_mutex_lock(&disk->mutex);
	struct disk_job *job = jobs_take(&disk->done);
	pthread_mutex_unlock(&disk->mutex);
	return job;
}

void disk_cancel(struct disk *disk)
{
	struct disk_job *job;
	struct jobs kept = {NULL, NULL};
	bool any = false;
	pthread_mutex_lock(&disk->mutex);
	while ((job = jobs_take(&disk->urgent)) || (job = jobs_take(&disk->queue))) {
		if (job->verb == DISK_DROP) {
			jobs_put(&kept, job);
			continue;
		}
		job->err = -ERR_IO;
		job->why = "the disk does not answer";
		job->took_us = 0;
		jobs_put(&disk->done, job);
		any = true;
	}
	disk->queue = kept;
	pthread_mutex_unlock(&disk->mutex);
	if (any)
		disk_tell(disk);
}

uint64_t disk_busy_us(struct disk *disk, const struct disk_job **job)
{
	pthread_mutex_lock(&disk->mutex);
	const uint64_t began_us = disk->began_us;
	*job = disk->hand;
	pthread_mutex_unlock(&disk->mutex);
	return began_us;
}
