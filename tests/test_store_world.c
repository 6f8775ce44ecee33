/*
 * What else a log meets: two last words at once, and a kill while they are made entries; a flush that
 * does not come back for a while; a process of another name space; a copy made under load; crafted
 * files.
 */
#include "config.h"

#include <fcntl.h>
#include <lmdb.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/wait.h>

#include "tests/store_dir.h"

/* Two threads find something at once, as often as the file has places. */
enum { ROUNDS = BEACON_SLOTS / 2 };
static struct store *said_store;
static atomic_uint said_ready;

static void *say(void *arg)
{
	struct store_last_word word = {.reason = REASON_TAG, .page = (uint32_t)(uintptr_t)arg, .expected = 5,
				       .found = 6};
	for (unsigned round = 1; round <= ROUNDS; round++, word.page += 2) {
		atomic_fetch_add(&said_ready, 1);
		while (atomic_load(&said_ready) < 2 * round)
			;
		store_beacon(said_store, &word);
	}
	return NULL;
}

/* In a child, which ends there without a close. */
static void two_words(void)
{
	pthread_t thread[2];
	if (dir_open(&said_store) != 0 || push_step(said_store, 1) != 0)
		_exit(1);
	for (uintptr_t i = 0; i < 2; i++)
		if (pthread_create(&thread[i], NULL, say, (void *)i) != 0)
			_exit(1);
	for (unsigned i = 0; i < 2; i++)
		pthread_join(thread[i], NULL);
	raise(SIGKILL);
}

static void killed_opening(void)
{
	struct store *s;
	/* The entries are in the transaction, or it is committed. */
	for (enum fault_point p = FAULT_COMMIT; p <= FAULT_COMMITTED; p++) {
		fflush(stdout);
		const pid_t pid = fork();
		CHECK(pid >= 0);
		if (pid == 0) {
			const struct fault fault = {.point = p, .at = 1, .crash = true};
			fault_set(&fault, 1);
			(void)dir_open(&s);
			_exit(0);
		}
		int status = 0;
		EXPECT(waitpid(pid, &status, 0) == pid && WIFSIGNALED(status));
	}
}

/* Pages of which an incident says what a beacon said, as bits; how many such incidents. */
static unsigned words_heard(unsigned *count)
{
	struct store_reader *r;
	static struct store_read_entry e;
	unsigned pages = 0;
	*count = 0;
	if (!EXPECT(store_reader_open(store_dir, &r, store_reason) == 0))
		return 0;
	for (uint64_t seq = 1; seq <= store_reader_last(r); seq++) {
		EXPECT_EQ(store_reader_entry(r, seq, &e), 0);
		for (uint32_t i = 0; i < e.count; i++)
			if (e.records[i].kind == STORE_INCIDENT && e.records[i].reason == REASON_BEACON) {
				pages |= 1u << e.records[i].page_first;
				(*count)++;
			}
	}
	store_reader_close(&r);
	return pages;
}

/* The file of last words, read or written. */
static bool words_file(uint8_t *bytes, size_t size, bool put)
{
	const int fd = open(dir_path("beacon"), put ? O_WRONLY : O_RDONLY);
	const ssize_t n = put ? write(fd, bytes, size) : read(fd, bytes, size);
	close(fd);
	return n == (ssize_t)size;
}

static void last_words(void)
{
	static uint8_t said[1 << 16], left[sizeof said], none[sizeof said];
	fflush(stdout);
	const pid_t pid = fork();
	REQUIRE(pid >= 0);
	if (pid == 0)
		two_words();
	int status;
	unsigned count;
	REQUIRE(waitpid(pid, &status, 0) == pid);
	EXPECT(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
	REQUIRE(words_file(said, sizeof said, false));
	killed_opening();
	/* As a kill after the commit leaves it, before the file is cleared. */
	REQUIRE(words_file(said, sizeof said, true));
	struct store *s;
	struct store_verified v;
	for (unsigned i = 0; i < 3; i++) {
		REQUIRE(dir_open(&s) == 0);
		EXPECT_EQ(store_close(&s), 0);
	}
	EXPECT_EQ(words_heard(&count), (1u << BEACON_SLOTS) - 1);
	EXPECT_EQ(count, BEACON_SLOTS);
	EXPECT(words_file(left, sizeof left, false) && memcmp(left, none, sizeof none) == 0);
	EXPECT(dir_sound(&v));
}

/* A flush that takes a second: the loop pushes on until the ring is full, is told so, and never waits. */
static void flush_stalls(void)
{
	struct store *s;
	struct store_verified v;
	const uint32_t ms = 1000;
	const struct fault fault = {.point = FAULT_COMMIT, .at = 3, .wait_ms = ms};
	REQUIRE(dir_open(&s) == 0);
	fault_set(&fault, 1);
	uint64_t step = 0, slowest = 0;
	unsigned stalled = 0;
	for (unsigned i = 0; i < 2 || (stalled == 0 && i < 100000); i++) {
		struct timespec a, b;
		const struct store_record r = {.kind = STORE_FREE, .page_first = i % 8, .page_count = 1};
		clock_gettime(CLOCK_MONOTONIC, &a);
		int err = store_push(s, &r);
		const struct store_record end = step_end(step + 1);
		if (err == 0)
			err = store_push(s, &end);
		clock_gettime(CLOCK_MONOTONIC, &b);
		const uint64_t took = (uint64_t)(b.tv_sec - a.tv_sec) * 1000000000u + (uint64_t)b.tv_nsec -
				      (uint64_t)a.tv_nsec;
		slowest = took > slowest ? took : slowest;
		stalled += err == -ERR_AUDIT_STALLED;
		step += err == 0;
		if (i < 2)
			durable_wait(s, step);
	}
	EXPECT(stalled > 0);
	EXPECT_EQ(step, 2 + 1024 / 2); /* what the ring holds, and no more */
	EXPECT(slowest < ms * 1000000ull / 2);
	EXPECT_EQ(store_durable(s), 2);
	/* When the disk answers all of it is written, and it goes on. */
	EXPECT(durable_wait(s, step));
	EXPECT_EQ(push_step(s, step + 1), 0);
	EXPECT(durable_wait(s, step + 1));
	EXPECT_EQ(store_close(&s), 0);
	EXPECT(dir_sound(&v));
	EXPECT_EQ(v.entries, step + 1 + 2); /* and the boot and the end */
}

static int opens_inside(const char *none)
{
	struct store *other;
	(void)none;
	if (unshare(CLONE_NEWPID) != 0)
		return 77;
	const pid_t inside = fork(); /* process 1 there */
	if (inside == 0)
		_exit(getpid() == 1 && dir_open(&other) == -ERR_IN_USE ? 0 : 1);
	int status;
	return inside > 0 && waitpid(inside, &status, 0) == inside && WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

/* Process numbers mean nothing to it. */
static void name_space(void)
{
	struct store *s;
	REQUIRE(dir_open(&s) == 0);
	const pid_t pid = dir_child("opens inside", "");
	int status;
	REQUIRE(waitpid(pid, &status, 0) == pid);
	if (WIFEXITED(status) && WEXITSTATUS(status) == 77)
		printf("# no other name space can be had here\n");
	else
		EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	EXPECT_EQ(push_step(s, 1), 0);
	EXPECT(durable_wait(s, 1));
	EXPECT_EQ(store_close(&s), 0);
}

/* LMDB's own copy, as its tool makes it, into a folder of its own. */
static int copies(const char *to)
{
	MDB_env *env;
	return mdb_env_create(&env) == 0 && mdb_env_set_maxdbs(env, 16) == 0 &&
	       mdb_env_open(env, store_dir, MDB_RDONLY, 0600) == 0 && mdb_env_copy2(env, to, 0) == 0 ? 0 : 1;
}

static bool copy_made(const char *to)
{
	const pid_t pid = dir_child("copies", to);
	int status;
	return waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

/* Steps as fast as they can be, and then one at a time, until the copy is made. */
static atomic_bool copy_over;
static uint64_t pushed;

static void *push_many(void *arg)
{
	struct store *s = arg;
	while (pushed < 3000 || !atomic_load(&copy_over)) {
		if (push_step(s, pushed + 1) != 0)
			return s;
		pushed++;
		if (pushed > 3000 && !durable_wait(s, pushed))
			return s;
	}
	return NULL;
}

static void copied_under_load(void)
{
	char mine[256], copy[400], command[1200];
	struct store *s;
	struct store_verified v;
	pthread_t thread;
	void *wrong;
	REQUIRE(dir_open(&s) == 0);
	snprintf(mine, sizeof mine, "%s", store_dir);
	snprintf(copy, sizeof copy, "%s copy", store_dir);
	REQUIRE(mkdir(copy, 0700) == 0);
	REQUIRE(pthread_create(&thread, NULL, push_many, s) == 0);
	EXPECT(durable_wait(s, 200));
	EXPECT(copy_made(copy));
	/* The writer says what is durable a moment after it is. */
	EXPECT(durable_wait(s, store_durable(s) + 1));
	const uint64_t then = store_durable(s);
	atomic_store(&copy_over, true);
	pthread_join(thread, &wrong);
	EXPECT(wrong == NULL);
	EXPECT(durable_wait(s, pushed));
	EXPECT_EQ(store_close(&s), 0);
	/* Beside data.mdb a folder needs what says whose it is, and the keys of its sessions. */
	snprintf(command, sizeof command, "cp -p '%s/uuid' '%s/keys' '%s/'", mine, mine, copy);
	EXPECT(system(command) == 0);
	snprintf(store_dir, sizeof store_dir, "%.250s", copy);
	EXPECT(dir_sound(&v));
	EXPECT(v.entries >= 200 && v.entries <= then + 10);
	EXPECT_EQ(dir_try(), 0); /* it begins where the copy was made */
	EXPECT(dir_sound(&v));
	/* Without one of them it is refused, and says what is missing. */
	unlink(dir_path("uuid"));
	EXPECT(dir_try() != 0);
	EXPECT(dir_says("uuid"));
	dir_drop();
	snprintf(store_dir, sizeof store_dir, "%s", mine);
	EXPECT(dir_sound(&v));
}

/* What the known crafted files do: numbers of the file's pages that lead where nothing is. In each page one
   of its numbers becomes one that is far too large, 0, or that of another page. */
static void crafted(void)
{
	static uint8_t data[1 << 20], was[1 << 20];
	static const uint64_t values[] = {0, 1, 0xffff, 0xfffffff0, 0x7fffffffffffffff};
	static const unsigned fields[] = {0, 8, 10, 12, 14, 16, 18, 20, 24, 32, 40, 48, 56, 64, 72, 80, 88, 96,
					  104, 112, 120,
					  128, 136, 144};
	struct store *s;
	REQUIRE(dir_open(&s) == 0);
	for (uint64_t step = 1; step <= 60; step++)
		EXPECT_EQ(push_step(s, step), 0);
	EXPECT_EQ(store_close(&s), 0);
	int fd = open(dir_path("data.mdb"), O_RDONLY);
	const ssize_t bytes = read(fd, was, sizeof was);
	close(fd);
	REQUIRE(bytes > 8 * 4096);
	unsigned tried = 0, refused = 0;
	store_walk_cpu_s = 5; /* a file of 60 steps takes milliseconds */
	const unsigned stride = getenv("HOLDFAST_SANITIZED") ? 23 : 7;
	const size_t pages = (size_t)bytes / 4096;
	const size_t cases = pages * (sizeof fields / sizeof fields[0]) * (sizeof values / sizeof values[0]);
	for (size_t i = 0; i < cases; i++) {
		const size_t page = i % pages, field = fields[i / pages % (sizeof fields / sizeof fields[0])];
		if (i % stride != 0 && field != 12) /* how much a page has: a search leaps by it */
			continue;
		const uint64_t value = values[i % (sizeof values / sizeof values[0])];
		memcpy(data, was, (size_t)bytes);
		memcpy(data + page * 4096 + field, &value, field < 24 && field > 8 ? 2 : 8);
		fd = open(dir_path("data.mdb"), O_WRONLY | O_TRUNC);
		REQUIRE(fd >= 0 && write(fd, data, (size_t)bytes) == bytes);
		close(fd);
		tried++;
		struct store_verified v;
		refused += store_verify(store_dir, &v, store_reason) != 0;
	}
	printf("# %u of %u crafted files refused\n", refused, tried);
	EXPECT(refused > tried / 8);
	fd = open(dir_path("data.mdb"), O_WRONLY | O_TRUNC);
	REQUIRE(fd >= 0 && write(fd, was, (size_t)bytes) == bytes);
	close(fd);
	EXPECT_EQ(dir_try(), 0);
}

int main(int argc, char **argv)
{
	static const struct dir_job jobs[] = {{"opens inside", opens_inside}, {"copies", copies}};
	dir_jobs(argc, argv, jobs, sizeof jobs / sizeof jobs[0]);
	setvbuf(stdout, NULL, _IOLBF, 0); /* nothing is left in it for a child to print again */
	dir_run(last_words, "two last words at once, and kills while they become entries: each is one, once");
	dir_run(flush_stalls, "a flush that does not come back: pushing never waits, and has a bound");
	dir_run(name_space, "a second opener of another name space is refused");
	dir_run(copied_under_load, "a copy under load is whole up to where it was made, and opens");
	dir_run(crafted, "crafted numbers in any page crash a child at most");
	return tap_done();
}
