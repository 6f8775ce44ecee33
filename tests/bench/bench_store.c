/*
 * Page events a second that the audit log sustains: assignments in runs of R pages, S runs a step,
 * pushed as fast as the ring takes them for T seconds, until all is durable. One line a case, with
 * the bytes of file that an event costs.
 */
#include "config.h"

#include "tests/store_dir.h"

static double now(void)
{
	return (double)store_clock_ns(CLOCK_MONOTONIC) * 1e-9;
}

static void bench(uint32_t run, uint32_t runs, double seconds)
{
	struct store *s;
	struct store_options o;
	dir_make(false);
	store_options_default(&o);
	o.dir = store_dir;
	if (store_open(&o, &s, store_reason, &store_warning) != 0) {
		fprintf(stderr, "%s\n", store_reason);
		return;
	}
	const double start = now();
	uint64_t step = 0, tag = 1;
	uint32_t page = 0;
	while (now() - start < seconds) {
		step++;
		for (uint32_t i = 0; i < runs; i++) {
			struct store_record r = {
				.kind = step & 1 ? STORE_ASSIGN : STORE_FREE, .page_first = page,
				.page_count = run, .tag_first = tag, .principal = 1, .session = {1, 2},
				.turn = 3, .position_first = 512,
			};
			page = (page * 5 + 16411) % 65536;
			tag += run;
			if (push_wait(s, &r) != 0)
				break;
		}
		struct store_record end = step_end(step);
		if (push_wait(s, &end) != 0)
			break;
	}
	durable_wait(s, step);
	const double took = now() - start;
	const int err = store_close(&s);
	struct stat st;
	stat(dir_path("data.mdb"), &st);
	const double events = (double)step * runs * run;
	printf("runs of %2u, %2u a step: %9.0f page events/s, %7.0f steps/s, %5.1f bytes of file an "
	       "event%s\n", run, runs, events / took, (double)step / took,
	       (double)st.st_size / events, err ? " (FAILED)" : "");
	dir_drop();
}

int main(void)
{
	bench(1, 16, 3);
	bench(16, 1, 3);
	bench(16, 16, 3);
	bench(64, 16, 3);
	return 0;
}
