/*
 * What the tests of the store share: a folder that goes away at the end, and the opening of a store
 * in it.
 */
#ifndef HOLDFAST_TESTS_STORE_DIR_H
#define HOLDFAST_TESTS_STORE_DIR_H

#include <dirent.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "runtime/fault.h"
#include "runtime/store_disk.h"
#include "runtime/store_read.h"
#include "sched/check.h"
#include "tests/tap.h"

static char store_dir[256];
static char store_reason[STORE_REASON_MAX];
static const char *store_warning;

static inline const char *dir_path(const char *name)
{
	static char path[4][512];
	static unsigned at;
	at = (at + 1) % 4;
	snprintf(path[at], sizeof path[at], "%s/%s", store_dir, name);
	return path[at];
}

/* A folder with a space in its name: in memory, where a busy disk does not make the test slow, or
   on the disk that the build is on. */
static inline void dir_make(bool memory)
{
	snprintf(store_dir, sizeof store_dir, "%sstore test.XXXXXX",
		 memory && access("/dev/shm", W_OK) == 0 ? "/dev/shm/" : "");
	CHECK(mkdtemp(store_dir) != NULL);
}

/* A folder in it, with the files in that. */
static inline void dir_empty(const char *name)
{
	char path[1024];
	DIR *d = opendir(dir_path(name));
	for (struct dirent *e; d != NULL && (e = readdir(d)) != NULL;) {
		snprintf(path, sizeof path, "%.500s/%.300s", dir_path(name), e->d_name);
		unlink(path);
	}
	if (d != NULL)
		closedir(d);
	rmdir(dir_path(name));
}

static inline void dir_drop(void)
{
	static const char *const names[] = {"lock", "uuid", "uuid.new", "data.mdb", "lock.mdb", "mine",
		"beacon", "pages", "anchor", "keys"};
	chmod(store_dir, 0700);
	for (unsigned i = 0; i < sizeof names / sizeof names[0]; i++)
		unlink(dir_path(names[i]));
	dir_empty("archive");
	dir_empty("second");
	rmdir(store_dir);
	fault_set(NULL, 0);
}

static inline struct store_options dir_options(void)
{
	struct store_options o;
	store_options_default(&o);
	o.dir = store_dir;
	o.map_bytes = 256 << 20;
	o.ring_records = 1024;
	o.headroom_bytes = 256 << 10;
	o.pace_ms = 0;
	return o;
}

static inline int dir_open(struct store **out)
{
	struct store_options o = dir_options();
	store_reason[0] = 0;
	return store_open(&o, out, store_reason, &store_warning);
}

/* Opens and closes; what store_open said. A refusal has one line of reason. */
static inline int dir_try(void)
{
	struct store *s;
	int err = dir_open(&s);
	if (err == 0)
		EXPECT_EQ(store_close(&s), 0);
	else
		EXPECT(strlen(store_reason) > 20 && strchr(store_reason, '\n') == NULL);
	return err;
}

static inline bool dir_says(const char *words)
{
	if (strstr(store_reason, words) != NULL)
		return true;
	printf("# the reason was: %s\n", store_reason);
	return false;
}

static inline bool dir_sound(struct store_verified *v)
{
	int err = store_verify(store_dir, v, store_reason);
	if (err != 0)
		printf("# verify: %s: %s\n", err_name(err), store_reason);
	return err == 0;
}

/*
 * A child beside threads of ours begins anew, by exec: a fork alone copies locks whose owners it does not
 * copy, and the allocator of a sanitizer then waits for one for ever. It runs this program with the name of
 * a job, and ends with what that returns.
 */
struct dir_job {
	const char *name;
	int (*run)(const char *argument);
};

static inline pid_t dir_child(const char *name, const char *argument)
{
	fflush(stdout);
	const pid_t pid = fork();
	CHECK(pid >= 0);
	if (pid == 0) {
		execl("/proc/self/exe", "job", name, store_dir, argument, (char *)NULL);
		_exit(98);
	}
	return pid;
}

/* First in main: does not return in such a child. */
static inline void dir_jobs(int argc, char **argv, const struct dir_job *jobs, unsigned count)
{
	if (argc != 4 || strcmp(argv[0], "job") != 0)
		return;
	snprintf(store_dir, sizeof store_dir, "%s", argv[2]);
	for (unsigned i = 0; i < count; i++)
		if (strcmp(argv[1], jobs[i].name) == 0) {
			const int code = jobs[i].run(argv[3]);
			fflush(stdout);
			_exit(code);
		}
	_exit(97);
}

static inline struct store_record step_end(uint64_t step)
{
	return (struct store_record){.kind = STORE_STEP_END, .step = step};
}

static inline void wait_ms(uint32_t ms)
{
	struct timespec t = {ms / 1000, (long)(ms % 1000) * 1000000};
	nanosleep(&t, NULL);
}

/* False after ten seconds, or when the writer failed. */
static inline bool durable_wait(struct store *s, uint64_t step)
{
	for (unsigned i = 0; i < 50000 && store_durable(s) < step && store_failed(s) == 0; i++) {
		struct timespec t = {0, 200000};
		nanosleep(&t, NULL);
	}
	return store_durable(s) >= step;
}

/* A push that waits for room, as the loop would, but ten seconds at most. */
static inline int push_wait(struct store *s, const struct store_record *r)
{
	int err = store_push(s, r);
	for (unsigned i = 0; i < 10000 && err == -ERR_AUDIT_STALLED; i++) {
		wait_ms(1);
		err = store_push(s, r);
	}
	return err;
}

static inline int push_step(struct store *s, uint64_t step)
{
	struct store_record r = {.kind = STORE_ASSIGN, .principal = 7, .page_first = (uint32_t)step % 64,
				 .page_count = 4, .tag_first = step * 8, .session = {1, 2, 3}};
	TRY(push_wait(s, &r));
	r = step_end(step);
	return push_wait(s, &r);
}

/* Every step from 1 to last, once and in order; the entries' records say so. */
static inline uint32_t steps_wrong(uint64_t last)
{
	struct store_reader *reader;
	static struct store_read_entry e;
	uint64_t next = 1;
	uint32_t wrong = 0;
	if (store_reader_open(store_dir, &reader, store_reason) != 0)
		return 1;
	for (uint64_t seq = store_reader_first(reader); seq <= store_reader_last(reader); seq++) {
		wrong += store_reader_entry(reader, seq, &e) != 0;
		if (e.kind == STORE_STEP_END && e.count > 0 && e.records[0].kind == STORE_ASSIGN && !e.partial)
			wrong += e.step != next++;
	}
	store_reader_close(&reader);
	return wrong + (next != last + 1);
}

/* A test in a folder of its own. */
static inline void dir_run(void (*test)(void), const char *what)
{
	dir_make(true);
	TAP_RUN(test, what);
	dir_drop();
}

#endif
