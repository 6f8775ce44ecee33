/*
 * Page events a second that the audit log sustains: assignments in runs of R pages, S runs a step,
 * pushed as fast as the ring takes them for T seconds, until all is durable. One line a case, with
 * the bytes of file that an event costs. Then 100,000 events a second, in runs of 16, at that pace: what
 * processor time they take, of the whole process.
 *
 * bench_store SECONDS does only that last.
 *
 * bench_store DIR RECORDS makes a log of so many records there, and says how long its start takes.
 */
#include "config.h"

#include "tests/store_dir.h"

static double now(void)
{
	return (double)store_clock_ns(CLOCK_MONOTONIC) * 1e-9;
}

/* In a folder of its own; NULL, with a word, if that cannot be. */
static struct store *opened(void)
{
	struct store *s = NULL;
	struct store_options o;
	dir_make(false);
	store_options_default(&o);
	o.dir = store_dir;
	if (store_open(&o, &s, store_reason, &store_warning) != 0)
		fprintf(stderr, "%s\n", store_reason);
	return s;
}

static void bench(uint32_t run, uint32_t runs, double seconds)
{
	struct store *s = opened();
	if (s == NULL)
		return;
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

static double cpu_s(void)
{
	return (double)store_clock_ns(CLOCK_PROCESS_CPUTIME_ID) * 1e-9;
}

/* At a pace: runs given and taken in turns, a step every TICK_MS. */
static void paced(double seconds)
{
	enum { RUN = 16, EVENTS_S = 100000, TICK_MS = 10, RUNS = EVENTS_S / RUN * TICK_MS / 1000,
	       OWNERS = 65536 };
	struct store *s = opened();
	if (s == NULL)
		return;
	const double begun = now(), cpu = cpu_s();
	const uint64_t steps = (uint64_t)(seconds * 1000 / TICK_MS), first = store_seq(s);
	uint64_t tag = 1;
	for (uint64_t step = 1; step <= steps; step++) {
		const bool gives = step & 1;
		for (uint32_t i = 0; i < RUNS; i++) {
			const struct store_record r = {
				.kind = gives ? STORE_ASSIGN : STORE_FREE, .principal = 1, .turn = 3, .session = {1, 2},
				.page_first = (uint32_t)((step - 1) / 2 * RUNS + i) * RUN % OWNERS, .page_count = RUN,
				.tag_first = gives ? tag + i * RUN : tag - (RUNS - i) * RUN};
			if (push_wait(s, &r) != 0)
				break;
		}
		tag += gives ? RUNS * RUN : 0;
		const struct store_record end = step_end(step);
		if (push_wait(s, &end) != 0)
			break;
		const double next = begun + (double)step * TICK_MS / 1000, left = next - now();
		if (left > 0)
			nanosleep(&(struct timespec){.tv_nsec = (long)(left * 1e9)}, NULL);
	}
	durable_wait(s, steps);
	const double took = now() - begun, used = (cpu_s() - cpu) / took;
	const long cores = sysconf(_SC_NPROCESSORS_ONLN);
	const bool right = store_conflicts(s) == 0 && store_seq(s) - first == steps;
	const int err = store_close(&s);
	printf("%9.0f page events/s in runs of 16: %.1f ms of processor time a second, %.2f %% of %ld cores%s\n",
	       (double)(steps * RUNS * RUN) / took, 1000 * used, 100 * used / (double)cores, cores,
	       err || !right ? " (FAILED)" : "");
	dir_drop();
}

/* What the log has little of, among a million: a session in one record of ten thousand, an incident in one of
   fifty thousand, and a page that is given at the start and shared at the end. */
static int rare(struct store *s, uint64_t made, uint64_t records, uint64_t tag)
{
	enum { LONE_PAGE = 100000 };
	struct store_record r = {.kind = STORE_ASSIGN, .page_first = LONE_PAGE, .page_count = 1,
				 .tag_first = 1ull << 60, .principal = 2, .session = {9, 9}};
	if (made == 0 && push_wait(s, &r) != 0)
		return 1;
	r.kind = STORE_SHARE;
	if (made + 16 >= records && push_wait(s, &r) != 0)
		return 1;
	if (made % 10000 < 16) {
		r = (struct store_record){.kind = STORE_TURN_END, .session = {1, 3}, .principal = 1,
					  .turn = (uint32_t)(made / 10000 + 1)};
		if (push_wait(s, &r) != 0)
			return 1;
	}
	if (made % 50000 < 16) {
		r = (struct store_record){.kind = STORE_INCIDENT, .reason = REASON_TAG, .page_count = 1,
					  .page_first = (uint32_t)(made % 256), .tag_first = tag, .session = {1, 2}};
		return push_wait(s, &r) != 0;
	}
	return 0;
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
		if (rare(s, made - RECORDS, records, tag) != 0 || push_wait(s, &end) != 0)
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
	if (argc == 2) {
		paced(atof(argv[1]));
		return 0;
	}
	bench(1, 16, 3);
	bench(16, 1, 3);
	bench(16, 16, 3);
	bench(64, 16, 3);
	paced(3);
	return 0;
}
