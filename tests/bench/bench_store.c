/*
 * Page events a second that the audit log sustains: assignments in runs of R pages, S runs a step,
 * pushed as fast as the ring takes them for T seconds, until all is durable. One line a case, with
 * the bytes of file that an event costs.
 *
 * bench_store DIR RECORDS makes a log of so many records there, and says how long its start takes.
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

/* A log of so many records in a folder that stays, for questions to it; and how long its next start takes,
   with all that is verified there. */
static int make(const char *dir, uint64_t records)
{
	enum { RECORDS = 16, RUN = 16, SESSIONS = 500 };
	struct store *s;
	struct store_options o;
	store_options_default(&o);
	o.dir = dir;
	uint64_t step = 0, tag = 1, made = 0;
	if (store_open(&o, &s, store_reason, &store_warning) != 0) {
		fprintf(stderr, "%s\n", store_reason);
		return 1;
	}
	while (made < records) {
		const struct store_record end = step_end(++step);
		for (uint32_t i = 0; i < RECORDS; i++, made++, tag += RUN) {
			const uint32_t who = (uint32_t)(made * 7919 % SESSIONS);
			struct store_record r = {
				.kind = step & 1 ? STORE_ASSIGN : STORE_FREE, .page_first = i * RUN, .page_count = RUN,
				.tag_first = step & 1 ? tag : tag - RECORDS * RUN, .principal = 1,
				.session = {1, 2, (uint8_t)who, (uint8_t)(who >> 8)}, .turn = (uint32_t)step};
			if (push_wait(s, &r) != 0)
				return 1;
		}
		if (push_wait(s, &end) != 0)
			return 1;
	}
	durable_wait(s, step);
	if (store_close(&s) != 0)
		return 1;
	const double start = now();
	if (store_open(&o, &s, store_reason, &store_warning) != 0)
		return 1;
	printf("%llu records in %llu entries: start, with what is verified there: %.2f s\n",
	       (unsigned long long)made, (unsigned long long)step, now() - start);
	return store_close(&s) != 0;
}

int main(int argc, char **argv)
{
	if (argc == 3)
		return make(argv[1], strtoull(argv[2], NULL, 10));
	bench(1, 16, 3);
	bench(16, 1, 3);
	bench(16, 16, 3);
	bench(64, 16, 3);
	return 0;
}
