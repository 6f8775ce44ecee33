/*
 * How attention is cut: one long context is read by all threads, and what a window does not show is not
 * touched. The leaf is taken by a hook that looks at the jobs and then lets it do its work.
 */
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "kernels/cpu/device.h"
#include "tests/kernels_fixture.h"
#include "tests/tap.h"

enum { PATIENCE_S = 30 }; /* for threads that never come */

static void (*leaf_attend)(const struct attend_job *job);
static atomic_uint jobs, threads_seen, threads_wanted, round_now;
static _Thread_local unsigned round_seen;

static void attend_counted(const struct attend_job *job)
{
	atomic_fetch_add(&jobs, 1);
	leaf_attend(job);
}

/* A job waits until as many threads as wanted have one. */
static void attend_together(const struct attend_job *job)
{
	const time_t start = time(NULL);
	if (round_seen != atomic_load(&round_now)) {
		round_seen = atomic_load(&round_now);
		atomic_fetch_add(&threads_seen, 1);
	}
	while (atomic_load(&threads_seen) < atomic_load(&threads_wanted) && time(NULL) - start < PATIENCE_S)
		sched_yield();
	if (atomic_load(&threads_seen) < atomic_load(&threads_wanted))
		atomic_store(&threads_wanted, 0); /* they have been waited for once */
	attend_counted(job);
}

static void hook(struct fixture *f, void (*function)(const struct attend_job *))
{
	leaf_attend = f->device->leaf.attend;
	f->device->leaf.attend = function;
	atomic_store(&jobs, 0);
}

/* One batch of `rows` rows that end at position `end`, on pages whose tags are right. */
static void run_at(struct fixture *f, uint32_t end, uint32_t rows)
{
	uint32_t *tokens = malloc(end * sizeof *tokens);
	CHECK(tokens != NULL);
	for (uint32_t i = 0; i < end; i++)
		tokens[i] = 1;
	CHECK(f->ops->page_tags_set(f->device, 0, 0, f->plan.group[0].page_count, 1000) == 0);
	const struct fixture_sequence s = {tokens, end - rows, rows, 0, 1000};
	EXPECT_EQ(fixture_run(f, &s, 1, 2, NULL), 0);
	free(tokens);
}

/* The partials of one row need little room, so even with many heads to a KV head a long context is cut. */
static void long_context(void)
{
	static const struct {
		uint32_t heads, head, end, rows, threads;
	} c[] = {{3, 64, 1024, 1, 4}, {3, 64, 700, 1, 2}, {32, 128, 20000, 1, 4}, {32, 128, 20000, 16, 2}};
	for (size_t i = 0; i < sizeof c / sizeof c[0]; i++) {
		struct fixture f;
		struct device_plan p = fixture_plan();
		const struct fixture_options o = {.matmul_type = TYPE_Q4_1, .embedding_type = TYPE_Q8_0};
		p.heads = c[i].heads;
		p.kv_heads = 1;
		p.head = c[i].head;
		p.kv = KV_FP8;
		p.isa = ISA_AUTO;
		p.threads = c[i].threads;
		p.page_tokens = 256;
		p.context = 20480;
		p.pages_max = p.group[0].page_count = 80;
		fixture_open(&f, &p, &o, 3);
		hook(&f, attend_together);
		atomic_store(&threads_seen, 0);
		/* Sixteen rows of so many heads do not fit the room of stored partials; then one thread must do. */
		atomic_store(&threads_wanted, c[i].rows == 1 ? c[i].threads : 1);
		atomic_fetch_add(&round_now, 1);
		run_at(&f, c[i].end, c[i].rows);
		if (!EXPECT(atomic_load(&threads_wanted) > 0))
			printf("# %u of %u threads at %u tokens\n", atomic_load(&threads_seen), c[i].threads, c[i].end);
		EXPECT_EQ(atomic_load(&jobs), FIXTURE_LAYERS * ((c[i].end + 255) / 256));
		fixture_close(&f);
	}
}

/* The memory of pages that lie before the window cannot be read: who touches one dies. */
static void windows(void)
{
	static const struct {
		uint32_t window, end, rows, partitions;
	} c[] = {{100, 2000, 1, 1}, {300, 2000, 1, 2}, {300, 1808, 16, 3}, {256, 1792, 1, 1}};
	for (int isa = ISA_SCALAR; isa <= ISA_AVX512 && ops_isa_runs((enum isa)isa); isa++)
		for (size_t i = 0; i < sizeof c / sizeof c[0]; i++)
			for (int kv = KV_FP8; kv <= KV_F32; kv++) {
				struct fixture f;
				struct device_plan p = fixture_plan();
				const struct fixture_options o = {.matmul_type = TYPE_Q4_1, .embedding_type = TYPE_Q8_0};
				p.kv = kv;
				p.isa = (enum isa)isa;
				p.threads = 2;
				p.page_tokens = 64;
				p.context = 2048;
				p.group[0].page_count = 32;
				fixture_open(&f, &p, &o, 3);
				for (uint32_t l = 0; l < FIXTURE_LAYERS; l++)
					f.layer[l].ops.window = c[i].window;
				hook(&f, attend_counted);
				const struct group *g = &f.device->group[0];
				const size_t unit = (size_t)sysconf(_SC_PAGESIZE);
				const size_t unseen = (c[i].end - c[i].rows + 1 - c[i].window) / p.page_tokens;
				uint8_t *const first = g->pages + (unit - (uintptr_t)g->pages % unit) % unit;
				const size_t bytes = (size_t)(g->pages + unseen * g->page_bytes - first) / unit * unit;
				CHECK(mprotect(first, bytes, PROT_NONE) == 0);
				run_at(&f, c[i].end, c[i].rows);
				CHECK(mprotect(first, bytes, PROT_READ | PROT_WRITE) == 0);
				EXPECT_EQ(atomic_load(&jobs), FIXTURE_LAYERS * p.kv_heads * c[i].partitions);
				fixture_close(&f);
			}
}

int main(void)
{
	TAP_RUN(long_context, "one long context is read by all threads");
	TAP_RUN(windows, "pages before a window are not touched");
	return tap_done();
}
