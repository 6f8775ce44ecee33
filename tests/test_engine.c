/*
 * The engine's thread: jobs go in, are computed in order, come back; the descriptor tells when; the
 * answers are those of the same steps computed without it.
 */
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "runtime/engine.h"
#include "runtime/program.h"
#include "tests/tap.h"
#include "tests/tiny.h"

enum { STEPS = 200, ASSIGN_MAX = 4, CONTEXT = STEPS + 16, PAGES = CONTEXT / 16 + 1 };

static struct model *model;
static char folder[64];

static int forward_tiny(struct forward **out)
{
	struct forward_options o;
	char reason[MODEL_REASON_MAX];
	forward_options_default(&o);
	o.threads = 1;
	o.page_count = PAGES;
	o.rows_max = 16;
	o.sequences_max = o.samples_max = 2;
	o.context = CONTEXT;
	return forward_open(model, &o, out, reason);
}

static uint32_t token_at(uint32_t i)
{
	return 3 + i * 17 % 200;
}

static void step_put(struct batch_builder *b, uint32_t position)
{
	const uint32_t start[OPS_GROUP_MAX] = {0};
	batch_begin(b);
	batch_sequence(b, 0, start);
	for (uint32_t i = 0; i <= position / 16; i++)
		batch_page(b, 0, i, 100 + i);
	batch_sample(b, batch_row(b, token_at(position), position, 0));
}

/* The same steps on this thread. */
static void plain(struct ops_sampled *out)
{
	struct forward *f = NULL;
	struct batch_builder *b = NULL;
	REQUIRE(forward_tiny(&f) == 0);
	REQUIRE(batch_builder_open(forward_plan(f), &b) == 0);
	EXPECT_EQ(forward_ops(f)->page_tags_set(forward_device(f), 0, 0, PAGES, 100), 0);
	for (uint32_t i = 0; i < STEPS; i++) {
		step_put(b, i);
		EXPECT_EQ(forward_step(f, batch_end(b), &out[i], NULL), 0);
	}
	batch_builder_close(&b);
	forward_close(&f);
}

static bool readable(const struct engine *e, int wait_ms)
{
	struct pollfd p = {.fd = engine_fd(e), .events = POLLIN};
	return poll(&p, 1, wait_ms) == 1;
}

static void in_order(void)
{
	static struct ops_sampled truth[STEPS], got[STEPS];
	struct forward *f = NULL;
	struct engine *e = NULL;
	struct engine_job *job;
	REQUIRE(model != NULL);
	plain(truth);
	REQUIRE(forward_tiny(&f) == 0);
	REQUIRE(engine_open(f, ASSIGN_MAX, 8, &e) == 0);
	EXPECT(engine_done(e) == NULL);
	EXPECT(!readable(e, 0));
	uint32_t put = 0, done = 0;
	while (done < STEPS) {
		while (put < STEPS && (job = engine_job(e)) != NULL) {
			/* Pages come with the step that first needs them, tags in the same job. */
			if (put % 16 == 0)
				job->assign[job->assign_count++] = (struct engine_assign){
					.page_first = put / 16, .page_count = 1, .clear = 1,
					.tag_first = 100 + put / 16};
			step_put(job->builder, put);
			job->block = batch_end(job->builder);
			job->batch = ++put;
			engine_submit(e, job);
		}
		EXPECT(engine_job(e) == NULL || put == STEPS);
		REQUIRE(readable(e, 10000));
		while ((job = engine_done(e)) != NULL) {
			EXPECT_EQ(job->batch, done + 1);
			EXPECT_EQ(job->err, 0);
			EXPECT_EQ(job->faults[0].page, OPS_NONE);
			got[done++] = job->sampled[0];
			engine_release(e, job);
		}
	}
	for (uint32_t i = 0; i < STEPS; i++)
		EXPECT(got[i].token == truth[i].token &&
		       memcmp(&got[i].logprob, &truth[i].logprob, sizeof got[i].logprob) == 0);
	EXPECT(!readable(e, 0));
	engine_close(&e);
	EXPECT(e == NULL);
}

/* An assignment alone; a block that the device refuses; a page whose tag is another's. */
static void odd_jobs(void)
{
	struct forward *f = NULL;
	struct engine *e = NULL;
	REQUIRE(model != NULL);
	REQUIRE(forward_tiny(&f) == 0);
	REQUIRE(engine_open(f, ASSIGN_MAX, 8, &e) == 0);
	struct engine_job *job = engine_job(e);
	REQUIRE(job != NULL);
	job->assign[job->assign_count++] =
		(struct engine_assign){.page_count = PAGES, .tag_first = 100};
	engine_submit(e, job);
	REQUIRE(readable(e, 10000));
	REQUIRE(engine_done(e) == job);
	EXPECT_EQ(job->err, 0);
	engine_release(e, job);

	job = engine_job(e);
	REQUIRE(job != NULL);
	EXPECT_EQ(job->assign_count, 0);
	job->assign[job->assign_count++] =
		(struct engine_assign){.page_first = PAGES, .page_count = 1, .tag_first = 1};
	engine_submit(e, job);
	REQUIRE(readable(e, 10000));
	REQUIRE(engine_done(e) == job);
	EXPECT_EQ(job->err, -ERR_OUT_OF_RANGE);
	engine_release(e, job);

	job = engine_job(e);
	REQUIRE(job != NULL);
	job->assign[job->assign_count++] =
		(struct engine_assign){.page_first = 0, .page_count = 1, .tag_first = 999};
	step_put(job->builder, 0);
	job->block = batch_end(job->builder);
	job->batch = 1;
	engine_submit(e, job);
	REQUIRE(readable(e, 10000));
	REQUIRE(engine_done(e) == job);
	EXPECT_EQ(job->err, 0);
	EXPECT_EQ(job->faults[0].page, 0);
	EXPECT_EQ(job->faults[0].found, 999);
	EXPECT_EQ(job->sampled[0].token, OPS_NONE);
	engine_release(e, job);
	engine_close(&e);
}

/* Closing with jobs in hand and in the queue waits and leaks nothing; idle costs no time. */
static void closes(void)
{
	struct forward *f = NULL;
	struct engine *e = NULL;
	struct timespec before, after, pause = {.tv_nsec = 200000000};
	REQUIRE(model != NULL);
	REQUIRE(forward_tiny(&f) == 0);
	REQUIRE(engine_open(f, ASSIGN_MAX, 8, &e) == 0);
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &before);
	nanosleep(&pause, NULL);
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &after);
	const long long idle_us = (after.tv_sec - before.tv_sec) * 1000000LL +
				  (after.tv_nsec - before.tv_nsec) / 1000;
	EXPECT(idle_us < 20000); /* a tenth of the pause: the thread's start is in it */
	for (int i = 0; i < 2; i++) {
		struct engine_job *job = engine_job(e);
		REQUIRE(job != NULL);
		job->assign[job->assign_count++] =
			(struct engine_assign){.page_count = PAGES, .tag_first = 100};
		step_put(job->builder, 0);
		job->block = batch_end(job->builder);
		job->batch = 1 + i;
		engine_submit(e, job);
	}
	engine_close(&e);
	EXPECT(e == NULL);
	engine_close(&e);
}

int main(void)
{
	char path[100], reason[MODEL_REASON_MAX] = "";
	snprintf(folder, sizeof folder, "/tmp/holdfast-engine-XXXXXX");
	if (!mkdtemp(folder))
		return 1;
	snprintf(path, sizeof path, "%s/tiny.gguf", folder);
	if (tiny_write(path, 2) == 0 && model_open(path, &model, reason) != 0)
		printf("# %s\n", reason);
	TAP_RUN(in_order, "jobs come back in order with the plain path's answers");
	TAP_RUN(odd_jobs, "assignments alone, refused ones, foreign tags");
	TAP_RUN(closes, "closing waits, being idle costs nothing");
	model_close(&model);
	tiny_remove(folder);
	return tap_done();
}
