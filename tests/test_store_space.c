/*
 * The store when space is short: a map that must grow under way, a disk without room, readers that
 * stay. Nothing that was pushed is lost, new work is told to wait, and when there is room it goes on by
 * itself.
 */
#include "config.h"

#include <errno.h>
#include <fcntl.h>
#include <lmdb.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/statvfs.h>
#include <sys/wait.h>

#include "tests/store_dir.h"

static off_t file_size(const char *name)
{
	struct stat st;
	return stat(dir_path(name), &st) == 0 ? st.st_size : -1;
}

/* While it grows, values are read by the same thread that pushes, as the loop does. */
static void map_grows(void)
{
	static uint8_t value[3000], back[4096];
	struct store *s;
	struct store_options o = dir_options();
	o.map_begin = 1 << 20;
	REQUIRE(store_open(&o, &s, store_reason, &store_warning) == 0);
	const unsigned values = getenv("HOLDFAST_SANITIZED") ? 2000 : 6000;
	uint32_t wrong = 0;
	for (uint32_t i = 1; i <= values; i++) {
		struct store_key key = {.length = 4};
		memcpy(key.bytes, &i, 4);
		memset(value, (int)(i % 251), sizeof value);
		while (store_keep_room(s) < 2 * sizeof value)
			wait_ms(1);
		REQUIRE(store_keep(s, TABLE_TURN, &key, false, NULL, value, sizeof value) == 0);
		REQUIRE(push_step(s, i) == 0);
		if (i % 16)
			continue;
		size_t bytes = sizeof back;
		const uint32_t before = i / 2 + 1;
		memcpy(key.bytes, &before, 4);
		const int code = store_kept(s, TABLE_TURN, &key, back, &bytes);
		wrong += code != -ERR_NOT_FOUND && (code != 0 || back[7] != before % 251);
	}
	EXPECT_EQ(wrong, 0);
	EXPECT(durable_wait(s, values));
	EXPECT_EQ(store_space(s), 0);
	EXPECT_EQ(store_close(&s), 0);
	EXPECT(file_size("data.mdb") > 4 << 20);
	EXPECT_EQ(steps_wrong(values), 0);
	struct store_verified v;
	EXPECT(dir_sound(&v));
}

/* A batch that no map of the moment can take: it is grown and the batch tried again. */
static void batch_too_large(void)
{
	static uint8_t value[1 << 20];
	struct store *s;
	struct store_options o = dir_options();
	struct store_key key = {.bytes = {1}, .length = 1};
	o.map_begin = 1 << 20;
	REQUIRE(store_open(&o, &s, store_reason, &store_warning) == 0);
	memset(value, 7, sizeof value);
	for (uint8_t i = 0; i < 4; i++) {
		key.bytes[0] = i;
		REQUIRE(store_keep(s, TABLE_TURN, &key, false, NULL, value, sizeof value) == 0);
	}
	REQUIRE(push_step(s, 1) == 0);
	EXPECT(durable_wait(s, 1));
	EXPECT_EQ(store_close(&s), 0);
	EXPECT_EQ(steps_wrong(1), 0);
}

/* Each kind of write refuses for a while: nothing is lost, new work is refused meanwhile. */
static void refused_for_a_while(void)
{
	static const struct fault faults[] = {
		{FAULT_COMMIT, 3, ENOSPC, 0, 0, false}, {FAULT_COMMIT, 4, MDB_MAP_FULL, 0, 0, false},
		{FAULT_PUT, 4, MDB_MAP_FULL, 0, 0, false}, {FAULT_PUT, 5, ENOSPC, 0, 0, false},
		{FAULT_COMMIT, 2, EDQUOT, 0, 0, false},
	};
	for (unsigned i = 0; i < sizeof faults / sizeof faults[0]; i++) {
		struct store *s;
		bool waited = false;
		fault_set(&faults[i], 1);
		REQUIRE(dir_open(&s) == 0);
		for (uint64_t step = 1; step <= 40; step++) {
			EXPECT_EQ(push_step(s, step), 0);
			for (unsigned k = 0; k < 5000 && store_durable(s) < step; k++) {
				waited |= store_waits(s) && store_space(s) == -ERR_DISK_FULL;
				wait_ms(1);
			}
		}
		EXPECT(waited);
		EXPECT_EQ(fault_made(), 1);
		EXPECT_EQ(store_durable(s), 40);
		EXPECT_EQ(store_failed(s), 0);
		EXPECT_EQ(store_close(&s), 0);
		fault_set(NULL, 0);
		EXPECT_EQ(steps_wrong(40), 0);
		dir_drop();
		dir_make(true);
	}
}

/* The head-room cannot be had, and then it can. */
static void headroom_refused(void)
{
	struct store *s;
	static const struct fault refuse[] = {
		{FAULT_RESERVE, 1, ENOSPC, 0, 0, false}, {FAULT_RESERVE, 2, ENOSPC, 0, 0, false},
	};
	fault_set(refuse, 2);
	REQUIRE(dir_open(&s) == 0);
	EXPECT_EQ(store_space(s), -ERR_DISK_FULL);
	EXPECT(!store_waits(s));
	EXPECT_EQ(push_step(s, 1), 0);
	EXPECT(durable_wait(s, 1)); /* what runs is written */
	for (unsigned i = 0; i < 5000 && store_space(s) != 0; i++)
		wait_ms(1);
	EXPECT_EQ(store_space(s), 0); /* an idle store asks again by itself */
	EXPECT_EQ(fault_passed(FAULT_RESERVE), 3);
	EXPECT_EQ(store_close(&s), 0);
}

static bool fill_disk(void)
{
	static uint8_t block[4096];
	const int fd = open(dir_path("mine"), O_WRONLY | O_CREAT | O_APPEND, 0600);
	while (write(fd, block, sizeof block) == (ssize_t)sizeof block)
		;
	close(fd);
	return fd >= 0;
}

/* A real disk that is full: told at once, what runs has its head-room, then the writer waits; space
   comes back, and all that was pushed is there. */
static void disk_full(void)
{
	if (geteuid() != 0 || mount("tmpfs", store_dir, "tmpfs", 0, "size=2m,mode=0700") != 0)
		TAP_SKIP("needs the right to mount a small tmpfs");
	struct store *s;
	uint64_t step = 1, within = 0;
	REQUIRE(dir_open(&s) == 0);
	EXPECT(store_warning != NULL && strstr(store_warning, "tmpfs") != NULL);
	EXPECT_EQ(push_step(s, step), 0);
	EXPECT(durable_wait(s, step));
	EXPECT_EQ(store_space(s), 0);
	EXPECT(fill_disk());
	while (step < 20000 && !store_waits(s) && store_failed(s) == 0) {
		REQUIRE(push_step(s, ++step) == 0);
		for (unsigned i = 0; i < 3000 && store_durable(s) < step && !store_waits(s); i++)
			wait_ms(1);
		within += store_space(s) == -ERR_DISK_FULL && store_durable(s) == step;
	}
	printf("# %llu steps within the head-room after the disk was full\n", (unsigned long long)within);
	EXPECT(within > 20);
	EXPECT(store_waits(s));
	EXPECT_EQ(store_space(s), -ERR_DISK_FULL);
	unlink(dir_path("mine"));
	EXPECT(durable_wait(s, step));
	for (unsigned i = 0; i < 5000 && store_space(s) != 0; i++)
		wait_ms(1);
	EXPECT_EQ(store_space(s), 0);
	EXPECT(!store_waits(s));
	/* Full again, and closed, and opened: the start has its place in the head-room. */
	EXPECT(fill_disk());
	EXPECT_EQ(store_close(&s), 0);
	REQUIRE(dir_open(&s) == 0);
	EXPECT_EQ(push_step(s, 1), 0);
	EXPECT(durable_wait(s, 1));
	EXPECT_EQ(store_close(&s), 0);
	struct store_verified v;
	EXPECT(dir_sound(&v));
	EXPECT_EQ(v.entries, step + 5); /* two boots, two ends, and the step of the last */
	EXPECT_EQ(umount(store_dir), 0);
}

/* Until it is killed, when it has said whether it could read. */
static int reader_told(const char *fd, bool read)
{
	const char word = read ? 'y' : 'n';
	CHECK(write(atoi(fd), &word, 1) == 1);
	for (;;)
		pause();
	return 0;
}

/* Reads as every question does, and then takes its time over what it was given. */
static int reader_pauses(const char *fd)
{
	struct store_reader *r;
	static struct store_read_entry e;
	return reader_told(fd, store_reader_open(store_dir, &r, store_reason) == 0 &&
				       store_reader_entry(r, 1, &e) == 0);
}

/* A program that knows nothing of ours: it stays in its transaction. */
static int reader_stays(const char *fd)
{
	MDB_env *env;
	MDB_txn *txn;
	return reader_told(fd, store_open_reading(store_dir, 1ull << 30, true, &env, store_reason) == 0 &&
				       mdb_txn_begin(env, NULL, MDB_RDONLY, &txn) == 0);
}

/* In a child, beside the writer; it lives until it is killed. */
static pid_t reader_begin(const char *how, int *ready)
{
	int fds[2];
	char number[16];
	CHECK(pipe(fds) == 0);
	snprintf(number, sizeof number, "%d", fds[1]);
	const pid_t pid = dir_child(how, number);
	close(fds[1]);
	*ready = fds[0];
	return pid;
}

/* Grows by so much when the same rows are written over and over. */
static off_t growth(struct store *s, uint64_t *step, unsigned steps)
{
	static const uint8_t value[1500];
	const off_t before = file_size("data.mdb");
	for (unsigned i = 0; i < steps; i++) {
		struct store_key key = {.bytes = {(uint8_t)(i % 8)}, .length = 1};
		const struct store_record end = step_end(++*step);
		EXPECT_EQ(store_keep(s, TABLE_TURN, &key, false, NULL, value, sizeof value), 0);
		EXPECT_EQ(push_wait(s, &end), 0);
		durable_wait(s, *step);
	}
	return file_size("data.mdb") - before;
}

static void reader_end(pid_t pid, int ready)
{
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
	close(ready);
}

static void readers(void)
{
	struct store *s;
	struct store_options o = dir_options();
	uint64_t step = 0;
	int ready;
	char word = 0;
	o.readers_ms = 50;
	REQUIRE(store_open(&o, &s, store_reason, &store_warning) == 0);
	growth(s, &step, 50);
	pid_t pid = reader_begin("pauses", &ready);
	REQUIRE(read(ready, &word, 1) == 1);
	EXPECT_EQ(word, 'y');
	const off_t paused = growth(s, &step, 200);
	wait_ms(60);
	growth(s, &step, 2);
	EXPECT_EQ(store_reader_stays(s), 0);
	reader_end(pid, ready);
	pid = reader_begin("stays", &ready);
	REQUIRE(read(ready, &word, 1) == 1);
	EXPECT_EQ(word, 'y');
	const off_t held = growth(s, &step, 200);
	wait_ms(60);
	growth(s, &step, 2);
	EXPECT_EQ(store_reader_stays(s), (uint32_t)pid); /* named while it stays */
	reader_end(pid, ready);
	wait_ms(60);
	growth(s, &step, 20);
	wait_ms(60);
	growth(s, &step, 20);
	EXPECT_EQ(store_reader_stays(s), 0);
	/* Its place in the table of readers is free again, and so are the pages. */
	const off_t after = growth(s, &step, 200);
	printf("# 200 commits: %lld bytes with a reader that stays, %lld when it is dead, %lld with one that "
	       "pauses\n", (long long)held, (long long)after, (long long)paused);
	EXPECT(held > 200 * 4096);
	EXPECT(paused < held / 8);
	EXPECT(after < held / 8);
	EXPECT_EQ(store_close(&s), 0);
}

/* What a reader that stays costs has a bound: it is ended, and the file grows no more. */
static void reader_ended(void)
{
	struct store *s;
	uint64_t step = 0;
	int ready, status = 0;
	char word = 0;
	struct store_options o = dir_options();
	o.readers_ms = 20;
	o.reader_stay_ms = 200;
	REQUIRE(store_open(&o, &s, store_reason, &store_warning) == 0);
	growth(s, &step, 50);
	const pid_t pid = reader_begin("stays", &ready);
	REQUIRE(read(ready, &word, 1) == 1);
	EXPECT_EQ(word, 'y');
	const uint64_t from = store_clock_ns(CLOCK_MONOTONIC);
	growth(s, &step, 100);
	EXPECT_EQ(waitpid(pid, &status, WNOHANG), 0);
	pid_t gone = 0;
	for (unsigned i = 0; i < 2000 && gone == 0; i++) {
		growth(s, &step, 1);
		wait_ms(2);
		gone = waitpid(pid, &status, WNOHANG);
	}
	EXPECT_EQ(gone, pid);
	EXPECT(store_clock_ns(CLOCK_MONOTONIC) - from >= o.reader_stay_ms * 1000000ull); /* not before its time */
	EXPECT(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
	EXPECT_EQ(store_reader_ended(s), (uint32_t)pid);
	if (gone != pid)
		kill(pid, SIGKILL);
	close(ready);
	wait_ms(60);
	growth(s, &step, 20);
	EXPECT(growth(s, &step, 200) < 200 * 4096);
	EXPECT_EQ(store_reader_stays(s), 0);
	EXPECT_EQ(store_close(&s), 0);
}

static int reads_on(const char *none)
{
	struct store_reader *r;
	static struct store_read_entry e;
	(void)none;
	if (store_reader_open(store_dir, &r, store_reason) != 0)
		return 1;
	/* It does something with what it finds: on a busy machine it is then sent to wait there, and
	   not in the middle of a look. */
	for (unsigned i = 1; store_reader_entry(r, 1, &e) == 0 && e.kind == STORE_BOOT; i++)
		if (i % 8 == 0)
			usleep(200);
	return 2;
}

/* A reader that goes on lets go of what it read, many times a second. */
static void reader_moves(void)
{
	struct store *s;
	uint64_t step = 0;
	struct store_options o = dir_options();
	o.readers_ms = 20;
	REQUIRE(store_open(&o, &s, store_reason, &store_warning) == 0);
	growth(s, &step, 30);
	const pid_t pid = dir_child("reads", "");
	wait_ms(100);
	/* With one that stays it would be some 20,000 bytes a commit, as above. */
	const unsigned commits = getenv("HOLDFAST_SANITIZED") ? 1500 : 4000;
	const off_t grew = growth(s, &step, commits);
	printf("# %u commits beside a reader: %lld bytes\n", commits, (long long)grew);
	EXPECT(grew < (off_t)commits * 20000 / 3);
	kill(pid, SIGKILL);
	int status;
	waitpid(pid, &status, 0);
	EXPECT(WIFSIGNALED(status)); /* it read to the end */
	EXPECT_EQ(store_close(&s), 0);
}

static int verifies(const char *entries)
{
	struct store_verified v;
	const int code = store_verify(store_dir, &v, store_reason);
	if (code != 0)
		printf("# %s\n", store_reason);
	return code == 0 && v.entries >= (uint64_t)atoi(entries) ? 0 : 1;
}

/* verify beside a writer, over more entries than one transaction may see. */
static void verified_beside(void)
{
	struct store *s;
	const struct store_options o = dir_options();
	REQUIRE(store_open(&o, &s, store_reason, &store_warning) == 0);
	uint64_t step = 1;
	for (; step <= 10000; step++)
		REQUIRE(push_step(s, step) == 0);
	durable_wait(s, step - 1);
	const pid_t pid = dir_child("verifies", "10001");
	int status = -1;
	while (waitpid(pid, &status, WNOHANG) == 0)
		push_step(s, ++step);
	EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	EXPECT_EQ(store_close(&s), 0);
}

/* An entry that is looked at takes its time: the walk goes through segments, and the entries of a daemon
   that goes on moving them, for longer than anyone may stay in a transaction. */
static int entry_slow(void *arg, uint64_t seq, const uint8_t hash[STORE_HASH], char *reason)
{
	(void)hash;
	(void)reason;
	if (seq % 8 == 0)
		usleep(4000);
	++*(uint64_t *)arg;
	return 0;
}

static int walk_slowly(const char *none)
{
	struct store_disk disk;
	struct store_walk walk;
	uint64_t seen = 0;
	bool live;
	(void)none;
	int code = store_disk_lock(store_dir, &disk, &live, store_reason);
	if (code == 0 && live)
		code = store_open_reading(store_dir, 1ull << 30, true, &disk.env, store_reason);
	const struct store_watch watch = {entry_slow, &seen, store_dir, true};
	if (code == 0)
		code = store_walk_all(disk.env, disk.uuid, &watch, &walk, store_reason);
	if (code != 0)
		printf("# %s\n", store_reason);
	return code == 0 && live && walk.archived.seq >= 1800 && seen == walk.head.seq ? 0 : 1;
}

/* verify of a log with segments, beside a daemon that ends who stays. */
static void verified_slowly(void)
{
	struct store *s;
	struct store_options o = dir_options();
	o.history_entries = 200;
	o.segment_entries = 64;
	o.readers_ms = 20;
	o.reader_stay_ms = 400;
	REQUIRE(store_open(&o, &s, store_reason, &store_warning) == 0);
	uint64_t step = 1;
	for (; step <= 2200; step++)
		REQUIRE(push_step(s, step) == 0);
	for (unsigned i = 0; i < 5000 && store_archived(s) < 1800; i++)
		wait_ms(1);
	const pid_t pid = dir_child("walks slowly", "");
	int status = -1;
	while (waitpid(pid, &status, WNOHANG) == 0) {
		push_step(s, step++);
		wait_ms(1);
	}
	EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	EXPECT_EQ(store_reader_ended(s), 0);
	EXPECT_EQ(store_close(&s), 0);
}

static int keep_wait(struct store *s, uint32_t number, const void *value, size_t bytes)
{
	struct store_key key = {.length = sizeof number};
	memcpy(key.bytes, &number, sizeof number);
	int err = store_keep(s, TABLE_TURN, &key, false, NULL, value, bytes);
	for (unsigned i = 0; i < 10000 && err == -ERR_AUDIT_STALLED; i++) {
		wait_ms(1);
		err = store_keep(s, TABLE_TURN, &key, false, NULL, value, bytes);
	}
	return err;
}

static int verifies_rows(const char *none)
{
	int bad = 0;
	(void)none;
	for (unsigned i = 0; i < 8; i++) {
		struct store_verified v;
		const int code = store_verify(store_dir, &v, store_reason);
		if (code != 0)
			printf("# %s\n", store_reason);
		bad += code != 0 || v.rows < 39 * 256;
	}
	return bad != 0;
}

/* verify beside a writer that changes rows and values, of which there are more than one transaction sees. */
static void verified_rows(void)
{
	struct store *s;
	const struct store_options o = dir_options();
	REQUIRE(store_open(&o, &s, store_reason, &store_warning) == 0);
	enum { VALUES = 10000, RUNS = 40 };
	struct store_record end = step_end(0);
	struct store_record run = {.kind = STORE_ASSIGN, .session = {1}, .page_count = 256, .tag_first = 1};
	for (uint32_t i = 0; i < VALUES; i++) {
		REQUIRE(keep_wait(s, i, &i, sizeof i) == 0);
		end.step++;
		if (i % 256 == 255 && i / 256 < RUNS) {
			run.page_first = i / 256 * 256;
			run.tag_first += 256;
			EXPECT_EQ(push_wait(s, &run), 0);
		}
		EXPECT_EQ(push_wait(s, &end), 0);
	}
	EXPECT(durable_wait(s, end.step));
	const pid_t pid = dir_child("verifies rows", "");
	int status = -1;
	for (uint32_t i = 0; waitpid(pid, &status, WNOHANG) == 0; i++) {
		/* Rows come and change, values go and come. */
		EXPECT_EQ(keep_wait(s, i * 37 % VALUES, i % 3 ? &i : NULL, i % 3 ? sizeof i : 0), 0);
		struct store_record page = {.kind = STORE_ASSIGN, .session = {2}, .page_count = 1,
					    .page_first = 20000 + i, .tag_first = 1000000 + i};
		EXPECT_EQ(push_wait(s, &page), 0);
		end.step++;
		EXPECT_EQ(push_wait(s, &end), 0);
	}
	EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	EXPECT_EQ(store_close(&s), 0);
	struct store_verified v;
	EXPECT(dir_sound(&v));
}

static void in_dir(void (*test)(void), const char *what)
{
	dir_make(true);
	TAP_RUN(test, what);
	(void)umount2(store_dir, MNT_DETACH); /* of a test that ended early */
	dir_drop();
}

int main(int argc, char **argv)
{
	static const struct dir_job jobs[] = {
		{"pauses", reader_pauses}, {"stays", reader_stays}, {"reads", reads_on}, {"verifies", verifies},
		{"walks slowly", walk_slowly}, {"verifies rows", verifies_rows},
	};
	dir_jobs(argc, argv, jobs, sizeof jobs / sizeof jobs[0]);
	setvbuf(stdout, NULL, _IOLBF, 0); /* nothing is left in it for a child to print again */
	in_dir(map_grows, "the map grows while it is written and read");
	in_dir(batch_too_large, "a batch larger than the map is tried again in a larger one");
	in_dir(refused_for_a_while, "no space at a put or a commit: it waits, and nothing is lost");
	in_dir(headroom_refused, "without head-room it says so, writes what runs, and asks again");
	in_dir(disk_full, "a disk that is full, and then is not");
	in_dir(readers, "a reader that stays is named; a dead one, and one that pauses, hold nothing");
	in_dir(reader_ended, "a reader that stays for too long is ended");
	in_dir(reader_moves, "a reader that goes on holds nothing up");
	in_dir(verified_beside, "verify beside a writer, in many transactions");
	in_dir(verified_slowly, "verify of segments takes its time, and is not ended for it");
	in_dir(verified_rows, "verify beside a writer of rows and values, in many transactions");
	return tap_done();
}
