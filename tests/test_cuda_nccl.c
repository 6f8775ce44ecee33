/*
 * Goal: NCCL between the ranks never makes one wait for ever. Method: a stand-in for the library
 * (fake_nccl.cpp) on the emulated GPU, which is slow, refuses, misses a rank, or hangs; each is a code and a
 * line within the time that was given. What it gathers is what goes through the host.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "tests/emulate_hooks.h"
#include "tests/kernels_fixture.h"
#include "tests/rank_one.h"
#include "tests/tap.h"

static uint32_t text[64];
static const struct fixture_options options = {.matmul_type = TYPE_Q4_1, .embedding_type = TYPE_Q8_0};
static struct rank1 there = {.fault = {.page = OPS_NONE}};
static int (*library_alive)(void);

static struct collective collective;

static struct device_plan plan_two(void)
{
	struct device_plan p = fixture_plan();
	p.width = p.ff = p.vocab = 32;
	p.heads = 2;
	p.kv_heads = 1;
	p.rows_max = p.samples_max = 16;
	p.sequences_max = 4;
	p.context = 512;
	p.kv = KV_FP8;
	p.ranks = 2;
	p.vocab_share = 16;
	p.collective = &collective;
	p.start_seconds = 1;
	return p;
}

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* What stderr says while a device is opened and closed: its last line, and the code of the opening. */
static int opened(const char *mode, char line[300])
{
	const struct device_plan p = plan_two();
	struct device *d = NULL;
	FILE *const words = tmpfile();
	const int before = dup(2);
	CHECK(words && before >= 0);
	setenv("FAKE_NCCL", mode, 1);
	fflush(stderr);
	dup2(fileno(words), 2);
	const int code = ops_cuda()->device_open(&p, &d);
	EXPECT((code == 0) == (d != NULL));
	if (d)
		ops_cuda()->device_close(&d);
	fflush(stderr);
	dup2(before, 2);
	close(before);
	rewind(words);
	line[0] = 0;
	while (fgets(line, 300, words) != NULL)
		continue;
	fclose(words);
	EXPECT_EQ(library_alive(), 0);
	EXPECT_EQ(hook_taken(), 0);
	return code;
}

static void starts(void)
{
	char line[300];
	double from = now();
	EXPECT_EQ(opened("", line), 0);
	EXPECT_EQ(opened("slow", line), 0);
	EXPECT_EQ(opened("refuse", line), -ERR_INTERNAL);
	EXPECT(strstr(line, "NCCL fails between the ranks") != NULL);
	from = now();
	EXPECT_EQ(opened("missing", line), -ERR_TIMEOUT);
	EXPECT(strstr(line, "not ready between 2 ranks after 1 seconds (--ranks-start-seconds)") != NULL);
	EXPECT(now() - from >= 1 && now() - from < 10);
	/* One that goes when the start is under way is not waited for. */
	there.late = 1;
	EXPECT_EQ(opened("missing", line), -ERR_INTERNAL);
	EXPECT(strstr(line, "a rank is gone") != NULL);
	there.late = 0;
}

/* The end of a device that served is quiet, however NCCL ends, also beside a rank that left first. */
static void closes(void)
{
	static const char *const modes[] = {"", "ends late", "ends badly", "ends never"};
	char line[300];
	for (unsigned i = 0; i < 4; i++) {
		const double from = now();
		EXPECT_EQ(opened(modes[i], line), 0);
		EXPECT(line[0] == 0 && now() - from < 10);
		if (line[0])
			printf("# \"%s\": %s", modes[i], line);
	}
	there.late = 1;
	EXPECT_EQ(opened("ends late", line), 0);
	EXPECT(line[0] == 0);
	there.late = 0;
}

/* A step; the code of the wait. */
static int stepped(struct fixture *f, struct ops_sampled *sampled)
{
	const struct fixture_sequence s = {text, 0, 3, 0, 0};
	struct ops_batch *b = fixture_block(f, &s, 1, 2);
	int code = f->ops->batch(f->device, b);
	code = code ? code : fixture_step(f);
	code = code ? code : f->ops->wait(f->device, sampled, NULL);
	free(b);
	return code;
}

/* What NCCL gathers is what the host's way does, with graphs and without, slow or not. */
static void sums(void)
{
	const struct device_plan p = plan_two();
	float first[32] = {0}, x[32];
	struct ops_sampled one, again;
	for (int slow = 0; slow < 2; slow++)
		for (int off = 0; off < 2; off++) {
			struct fixture f;
			setenv("FAKE_NCCL", slow ? "slow" : "", 1);
			setenv("HOLDFAST_CUDA_GRAPHS", off ? "off" : "on", 1);
			fixture_table = ops_cuda;
			fixture_open(&f, &p, &options, 5);
			EXPECT(strstr(f.ops->device_isa(f.device), "NCCL 22809") != NULL);
			EXPECT_EQ(f.ops->device_beside(f.device), 1 << 20);
			for (int k = 0; k < 2; k++) {
				EXPECT_EQ(stepped(&f, slow || off || k ? &again : &one), 0);
				EXPECT(f.ops->buffer_read(f.device, BUFFER_LOGITS, 0, 32, x) == 0);
				if (slow || off || k)
					EXPECT(memcmp(first, x, sizeof x) == 0 && again.token == one.token);
				else
					memcpy(first, x, sizeof x);
			}
			fixture_close(&f);
			EXPECT_EQ(library_alive(), 0);
		}
	unsetenv("HOLDFAST_CUDA_GRAPHS");
	EXPECT(first[0] != 0 && hook_fault() == NULL);
}

/* A gather that fails or never ends is a code, and no token, now or later. */
static void ends(void)
{
	static const char *const modes[] = {"fail", "hang"};
	const struct device_plan p = plan_two();
	for (int i = 0; i < 4; i++) {
		struct ops_sampled sampled = {.token = 7777};
		struct fixture f;
		setenv("FAKE_NCCL", "", 1);
		setenv("HOLDFAST_CUDA_GRAPHS", i / 2 ? "off" : "on", 1);
		fixture_table = ops_cuda;
		fixture_open(&f, &p, &options, 5);
		setenv("FAKE_NCCL", modes[i % 2], 1);
		there.late = i % 2;
		EXPECT_EQ(stepped(&f, &sampled), -ERR_INTERNAL);
		EXPECT_EQ(library_alive(), 0);
		there.late = 0;
		setenv("FAKE_NCCL", "", 1);
		EXPECT_EQ(stepped(&f, &sampled), -ERR_INTERNAL);
		EXPECT_EQ(sampled.token, 7777);
		fixture_close(&f);
		EXPECT_EQ(hook_taken(), 0);
	}
	unsetenv("HOLDFAST_CUDA_GRAPHS");
}

int main(void)
{
	const char *build = getenv("BUILDDIR");
	char path[4200];
	snprintf(path, sizeof path, "%s/tests/fake_nccl.so", build ? build : ".");
	setenv("HOLDFAST_NCCL", path, 1);
	collective = rank1_collective(&there);
	void *library = dlopen(path, RTLD_NOW);
	CHECK(library);
	void *const found = dlsym(library, "fake_nccl_alive");
	CHECK(found);
	memcpy(&library_alive, &found, sizeof found);
	for (uint32_t i = 0; i < 64; i++)
		text[i] = i * 7 % 32;
	TAP_RUN(starts, "a start that is refused, or misses a rank, is a code in time");
	TAP_RUN(closes, "an end is quiet, and soon");
	TAP_RUN(sums, "what NCCL gathers is the same with graphs and without, slow or not");
	TAP_RUN(ends, "a gather that fails or hangs is a code and no token");
	return tap_done();
}
