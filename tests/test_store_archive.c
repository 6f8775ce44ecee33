/*
 * Segments and anchors. Old entries move into files, beside the writer and without it, whatever the
 * moment at which that is cut off, and the log reads as before. Anchors in a second folder tell a log
 * that was cut, set back or written anew from the one that was.
 */
#include "config.h"

#include <errno.h>
#include <fcntl.h>
#include <lmdb.h>
#include <signal.h>
#include <sys/wait.h>

#include "runtime/store_inside.h"
#include "tests/store_dir.h"

static char anchors[300];

static struct store_options options(uint64_t history, uint32_t segment)
{
	struct store_options o = dir_options();
	o.history_entries = history;
	o.segment_entries = segment;
	o.anchor_dir = anchors[0] ? anchors : NULL;
	o.anchor_ms = 20;
	o.anchor_entries = 16;
	return o;
}

static bool play(const struct store_options *o, uint64_t first, uint64_t last)
{
	struct store *s;
	if (store_open(o, &s, store_reason, &store_warning) != 0) {
		printf("# %s\n", store_reason);
		return false;
	}
	for (uint64_t step = first; step <= last; step++)
		if (push_step(s, step) != 0 || (step % 32 == 0 && !durable_wait(s, step)))
			return false;
	durable_wait(s, last);
	const uint64_t keep = o->history_entries + o->segment_entries;
	for (unsigned i = 0; i < 20000 && o->history_entries && store_archived(s) + keep < store_seq(s); i++)
		wait_ms(1);
	return store_close(&s) == 0;
}

/* One hash of everything that a reader sees, and how many entries that is. */
static uint64_t read_all(uint64_t *first, uint64_t *count)
{
	struct store_reader *r;
	static struct store_read_entry e;
	uint64_t sum = 0;
	*count = 0;
	if (!EXPECT(store_reader_open(store_dir, &r, store_reason) == 0))
		return 0;
	*first = store_reader_first(r);
	for (uint64_t seq = *first; seq <= store_reader_last(r); seq++, ++*count) {
		EXPECT_EQ(store_reader_entry(r, seq, &e), 0);
		sum = sum * 1099511628211u + e.wall_ns + e.step * 31 + e.kind + e.count;
	}
	store_reader_close(&r);
	return sum;
}

static unsigned segment_count(void)
{
	unsigned count = 0;
	DIR *d = opendir(dir_path("archive"));
	for (struct dirent *e; d != NULL && (e = readdir(d)) != NULL;)
		count += strstr(e->d_name, ".seg") != NULL;
	if (d != NULL)
		closedir(d);
	return count;
}

static void offline(void)
{
	struct store_verified v;
	uint64_t first, count, again, moved;
	const struct store_options o = options(0, ARCHIVE_SEGMENT);
	REQUIRE(play(&o, 1, 300));
	const uint64_t before = read_all(&first, &count);
	EXPECT_EQ(first, 1);
	REQUIRE(store_archive(store_dir, 50, &moved, store_reason) == 0);
	EXPECT_EQ(moved, 302 - 50);
	REQUIRE(dir_sound(&v));
	EXPECT_EQ(v.archived, 252);
	EXPECT_EQ(v.first, 1);
	EXPECT_EQ(v.entries, 303); /* the move is an entry too */
	EXPECT(v.clean);
	struct store_reader *r;
	uint64_t found, wall;
	const uint8_t session[16] = {1, 2, 3};
	REQUIRE(store_reader_open(store_dir, &r, store_reason) == 0);
	EXPECT_EQ(store_reader_find(r, 1, session, sizeof session, &found), 0);
	EXPECT_EQ(found, 2);
	EXPECT_EQ(store_reader_find(r, 250, session, sizeof session, &found), 0);
	EXPECT_EQ(found, 250);
	EXPECT_EQ(store_reader_wall(r, 252, &wall), 0);
	store_reader_close(&r);
	/* All as it was, and one more. */
	static struct store_read_entry e;
	REQUIRE(store_reader_open(store_dir, &r, store_reason) == 0);
	uint64_t sum = 0;
	for (uint64_t seq = 1; seq <= 302; seq++) {
		EXPECT_EQ(store_reader_entry(r, seq, &e), 0);
		sum = sum * 1099511628211u + e.wall_ns + e.step * 31 + e.kind + e.count;
	}
	EXPECT_EQ(store_reader_entry(r, 303, &e), 0);
	EXPECT(e.count == 1 && e.records[0].kind == STORE_ARCHIVE && e.records[0].value[0] == 1 &&
	       e.records[0].value[1] == 252);
	store_reader_close(&r);
	EXPECT(sum == before);
	REQUIRE(play(&o, 1, 100));
	EXPECT_EQ(store_archive(store_dir, 0, &moved, store_reason), 0);
	EXPECT_EQ(moved, 303 + 102 - 252);
	EXPECT_EQ(store_archive(store_dir, 10, &moved, store_reason), 0);
	EXPECT_EQ(moved, 0);
	REQUIRE(dir_sound(&v));
	again = read_all(&first, &count);
	EXPECT(first == 1 && count == v.entries && again != 0);
	EXPECT_EQ(store_archive("no such folder", 0, &moved, store_reason), -ERR_NO_FILE);
}

static void online(void)
{
	struct store_verified v;
	uint64_t first, count;
	struct stat with, without;
	struct store_options o = options(100, 64);
	REQUIRE(play(&o, 1, 3000));
	REQUIRE(dir_sound(&v));
	EXPECT(v.archived >= 2500);
	EXPECT_EQ(v.archived % 64, 0);
	EXPECT(segment_count() - v.archived / 64 <= 1); /* the next may be on its way */
	read_all(&first, &count);
	EXPECT(first == 1 && count == v.entries && count > 3000);
	CHECK(stat(dir_path("data.mdb"), &with) == 0);
	dir_drop();
	dir_make(true);
	o.history_entries = 0;
	REQUIRE(play(&o, 1, 3000));
	CHECK(stat(dir_path("data.mdb"), &without) == 0);
	printf("# data.mdb: %lld bytes with segments, %lld without\n", (long long)with.st_size,
	       (long long)without.st_size);
	EXPECT(with.st_size < without.st_size / 2);
}

/* The folder of segments cannot be written: the log goes on, says so, and moves them later. */
static void segments_refused(void)
{
	static const long codes[] = {ENOSPC, EIO};
	for (unsigned i = 0; i < 2; i++) {
		struct store *s;
		const struct fault fault = {FAULT_SEGMENT, 5 + i, codes[i], 0, 0, false};
		const struct store_options o = options(50, 32);
		fault_set(&fault, 1);
		REQUIRE(store_open(&o, &s, store_reason, &store_warning) == 0);
		int seen = 0;
		for (uint64_t step = 1; step <= 300; step++) {
			EXPECT_EQ(push_step(s, step), 0);
			durable_wait(s, step);
			seen = store_archive_failed(s) ? store_archive_failed(s) : seen;
		}
		EXPECT_EQ(seen, i ? -ERR_IO : -ERR_DISK_FULL);
		EXPECT_EQ(segment_count(), 0);
		EXPECT_EQ(store_close(&s), 0);
		fault_set(NULL, 0);
		struct store_verified v;
		REQUIRE(dir_sound(&v));
		REQUIRE(play(&o, 1, 300));
		REQUIRE(dir_sound(&v));
		EXPECT(v.archived > 300);
		dir_drop();
		dir_make(true);
	}
}

/* Killed at the n-th write of a segment, and before the n-th dropping is committed. */
static void killed(void)
{
	const struct store_options o = options(50, 32);
	uint64_t first, count, last = 0;
	for (unsigned i = 0; i < 12; i++) {
		fflush(stdout);
		const pid_t pid = fork();
		REQUIRE(pid >= 0);
		if (pid == 0) {
			/* In turns at a write of a segment and at a dropping, later each time. */
			const struct fault fault = {.point = i % 2 ? FAULT_DROP : FAULT_SEGMENT,
						    .at = i % 2 ? i : 1 + i * 7, .crash = true};
			fault_set(&fault, 1);
			_exit(play(&o, 1, 400) ? 0 : 1);
		}
		int status;
		REQUIRE(waitpid(pid, &status, 0) == pid);
		EXPECT(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
		struct store_verified v;
		REQUIRE(dir_sound(&v));
		read_all(&first, &count);
		EXPECT(first == 1 && count == v.entries && count > last);
		last = count;
	}
	REQUIRE(play(&o, 1, 400));
	struct store_verified v;
	REQUIRE(dir_sound(&v));
	EXPECT(v.archived > last);
	EXPECT(segment_count() - v.archived / 32 <= 1);
}

static bool byte_turn(const char *path, off_t at)
{
	uint8_t byte;
	const int fd = open(path, O_RDWR);
	const bool done = fd >= 0 && pread(fd, &byte, 1, at) == 1 && (byte ^= 1, pwrite(fd, &byte, 1, at) == 1);
	if (fd >= 0)
		close(fd);
	return done;
}

static const char *segment_file(unsigned n)
{
	static char path[600];
	snprintf(path, sizeof path, "%s/%020u-%020u.seg", dir_path("archive"), n * 32 + 1, n * 32 + 32);
	return path;
}

static void segments_damaged(void)
{
	const struct store_options o = options(50, 32);
	struct store_verified v;
	uint64_t first, count;
	char aside[600];
	struct stat st;
	REQUIRE(play(&o, 1, 300));
	REQUIRE(dir_sound(&v));
	const uint64_t archived = v.archived;
	/* A bit, anywhere in the entries. */
	REQUIRE(stat(segment_file(3), &st) == 0);
	for (off_t at = 80; at < st.st_size - 300; at += 331) {
		REQUIRE(byte_turn(segment_file(3), at));
		EXPECT_EQ(store_verify(store_dir, &v, store_reason), -ERR_INTEGRITY);
		EXPECT(dir_says("entry "));
		REQUIRE(byte_turn(segment_file(3), at));
	}
	/* Cut off. */
	snprintf(aside, sizeof aside, "%s", dir_path("mine"));
	REQUIRE(truncate(segment_file(4), 1000) == 0);
	EXPECT_EQ(store_verify(store_dir, &v, store_reason), -ERR_INTEGRITY);
	EXPECT(dir_says("entry 129"));
	/* Gone, and all before with it: what is there is whole, and it says what is not. */
	REQUIRE(unlink(segment_file(4)) == 0);
	EXPECT_EQ(store_verify(store_dir, &v, store_reason), 0);
	EXPECT_EQ(v.first, 161);
	EXPECT_EQ(v.archived, archived);
	read_all(&first, &count);
	EXPECT(first == 161 && count == v.entries - 160);
	REQUIRE(play(&o, 1, 100));
	EXPECT_EQ(store_verify(store_dir, &v, store_reason), 0);
	EXPECT(v.archived > archived);
}

/* Anchors. */

static bool anchored(struct store_verified *v, int expected)
{
	const struct store_verify what = {.dir = store_dir, .anchor_dir = anchors};
	store_reason[0] = 0;
	const int code = store_verify_all(&what, v, store_reason);
	if (code != expected)
		printf("# verify: %s: %s\n", err_name(code), store_reason);
	return code == expected;
}

static const char *anchor_file(const char *end)
{
	static char path[900];
	DIR *d = opendir(anchors);
	path[0] = 0;
	for (struct dirent *e; d != NULL && (e = readdir(d)) != NULL;)
		if (strlen(e->d_name) > strlen(end) && strcmp(e->d_name + strlen(e->d_name) - strlen(end), end) == 0)
			snprintf(path, sizeof path, "%s/%.255s", anchors, e->d_name);
	if (d != NULL)
		closedir(d);
	return path;
}

static void anchors_agree(void)
{
	struct store_verified v;
	const struct store_options o = options(0, 64);
	for (unsigned i = 0; i < 3; i++) {
		REQUIRE(play(&o, 1, 200));
		REQUIRE(anchored(&v, 0));
		EXPECT_EQ(v.anchored, v.entries); /* closed: nothing is left unanchored */
		EXPECT(v.anchors > 3 * (i + 1));
		EXPECT_EQ(v.signed_right, v.anchors);
	}
	/* With its key taken away only the hashes are compared. */
	char key[900], away[910];
	snprintf(key, sizeof key, "%s", anchor_file(".1.key"));
	snprintf(away, sizeof away, "%s.away", key);
	REQUIRE(key[0] && rename(key, away) == 0);
	REQUIRE(anchored(&v, 0));
	EXPECT_EQ(v.signed_right, 0);
	EXPECT_EQ(v.anchored, v.entries);
	REQUIRE(rename(away, key) == 0);
	/* The key that the store still has signs none of the lines that are there. */
	uint8_t held[200], first[80] = {0};
	int fd = open(dir_path("anchor"), O_RDONLY);
	REQUIRE(fd >= 0 && read(fd, held, sizeof held) > 0);
	close(fd);
	fd = open(key, O_RDONLY);
	REQUIRE(fd >= 0 && read(fd, first, sizeof first - 1) >= 64);
	close(fd);
	uint8_t begun[32];
	for (unsigned i = 0; i < 32; i++)
		REQUIRE(sscanf((char *)first + 2 * i, "%2hhx", &begun[i]) == 1);
	EXPECT(memmem(held, sizeof held, begun, sizeof begun) == NULL);
	/* Segments are anchored as the rest. */
	uint64_t moved;
	REQUIRE(store_archive(store_dir, 20, &moved, store_reason) == 0);
	REQUIRE(anchored(&v, 0));
	EXPECT_EQ(v.anchored, v.entries - 1);
	REQUIRE(play(&o, 1, 10));
	REQUIRE(anchored(&v, 0));
	EXPECT_EQ(v.anchored, v.entries);
}

static bool file_copy(const char *from, const char *to)
{
	char command[2000];
	snprintf(command, sizeof command, "cp '%s' '%s'", from, to);
	return system(command) == 0;
}

/* Set back to an old copy; or the end cut off. The daemon does not start on it, and verify says where. */
static void set_back(void)
{
	struct store_verified v;
	struct store *s;
	char now[600];
	const struct store_options o = options(0, 64);
	REQUIRE(play(&o, 1, 100));
	REQUIRE(file_copy(dir_path("data.mdb"), dir_path("mine")));
	REQUIRE(play(&o, 1, 100));
	snprintf(now, sizeof now, "%s", dir_path("pages"));
	REQUIRE(file_copy(dir_path("data.mdb"), now));
	REQUIRE(file_copy(dir_path("mine"), dir_path("data.mdb")));
	EXPECT(dir_sound(&v)); /* the chain alone does not tell */
	EXPECT(anchored(&v, -ERR_INTEGRITY));
	EXPECT(dir_says("ends at entry 102, but entry "));
	EXPECT_EQ(v.anchored, 102);
	EXPECT_EQ(store_open(&o, &s, store_reason, &store_warning), -ERR_INTEGRITY);
	EXPECT(dir_says("its end was cut off"));
	REQUIRE(file_copy(now, dir_path("data.mdb")));
	REQUIRE(play(&o, 1, 10));
	EXPECT(anchored(&v, 0));
}

/* The whole folder, copied while the log is open: the copy would go on with the same anchors. */
static void copied(void)
{
	char mine[256], copy[400], command[2000];
	struct store *s, *t;
	const struct store_options o = options(0, 64);
	REQUIRE(store_open(&o, &s, store_reason, &store_warning) == 0);
	REQUIRE(push_step(s, 1) == 0);
	EXPECT(durable_wait(s, 1));
	snprintf(mine, sizeof mine, "%s", store_dir);
	snprintf(copy, sizeof copy, "%s copy", store_dir);
	snprintf(command, sizeof command, "cp -a '%s' '%s' && rm -f '%s/lock'", mine, copy, copy);
	REQUIRE(system(command) == 0);
	struct store_options other = o;
	other.dir = copy;
	EXPECT_EQ(store_open(&other, &t, store_reason, &store_warning), -ERR_IN_USE);
	EXPECT(dir_says("a copy of it, runs already"));
	EXPECT_EQ(store_close(&s), 0);
	/* Later it is an old copy. */
	EXPECT_EQ(store_open(&other, &t, store_reason, &store_warning), -ERR_INTEGRITY);
	EXPECT(dir_says("an old copy was put in its place"));
	/* Without anchors nothing tells it from the first: it goes on by itself. */
	other.anchor_dir = NULL;
	REQUIRE(store_open(&other, &t, store_reason, &store_warning) == 0);
	EXPECT_EQ(store_close(&t), 0);
	snprintf(command, sizeof command, "rm -r '%s'", copy);
	EXPECT(system(command) == 0);
	struct store_verified v;
	EXPECT(anchored(&v, 0));
}

/* Written anew by one who knows how: every hash from an entry on is right again. */
static bool forge(uint64_t from)
{
	MDB_env *env;
	MDB_txn *txn;
	MDB_dbi audit, meta;
	struct store_head head;
	uint8_t hash[STORE_HASH], value[STORE_VALUE_MAX];
	MDB_val key, v;
	bool right = mdb_env_create(&env) == 0 && mdb_env_set_maxdbs(env, 16) == 0 &&
		     mdb_env_open(env, store_dir, MDB_NOTLS, 0600) == 0 && mdb_txn_begin(env, NULL, 0, &txn) == 0 &&
		     mdb_dbi_open(txn, "audit", MDB_INTEGERKEY, &audit) == 0 &&
		     mdb_dbi_open(txn, "meta", 0, &meta) == 0;
	key = (MDB_val){4, (void *)"head"};
	right = right && mdb_get(txn, meta, &key, &v) == 0;
	if (!right)
		return false;
	memcpy(&head, v.mv_data, sizeof head);
	for (uint64_t seq = from - 1; right && seq <= head.seq; seq++) {
		key = (MDB_val){sizeof seq, &seq};
		right = mdb_get(txn, audit, &key, &v) == 0;
		const size_t hashed = v.mv_size - STORE_HASH;
		memcpy(value, v.mv_data, v.mv_size);
		if (seq == from)
			value[8] ^= 1;
		if (seq >= from) {
			store_hash(value + hashed, hash, value, hashed);
			v.mv_data = value;
			right = right && mdb_put(txn, audit, &key, &v, 0) == 0;
		}
		memcpy(hash, value + hashed, STORE_HASH);
	}
	memcpy(head.hash, hash, STORE_HASH);
	key = (MDB_val){4, (void *)"head"};
	v = (MDB_val){sizeof head, &head};
	right = right && mdb_put(txn, meta, &key, &v, 0) == 0 && mdb_txn_commit(txn) == 0;
	mdb_env_close(env);
	return right;
}

static void written_anew(void)
{
	struct store_verified v;
	struct store *s;
	const struct store_options o = options(0, 64);
	REQUIRE(play(&o, 1, 200));
	REQUIRE(forge(100));
	EXPECT(dir_sound(&v));
	EXPECT(anchored(&v, -ERR_INTEGRITY));
	EXPECT(dir_says("it is not the one that was anchored"));
	EXPECT(v.anchored >= 60 && v.anchored < 100);
	EXPECT_EQ(store_open(&o, &s, store_reason, &store_warning), -ERR_INTEGRITY);
	EXPECT(dir_says("was written anew"));
}

/* The anchors themselves, by one who has the folder but not the keys of the past. */
static void anchors_changed(void)
{
	struct store_verified v;
	const struct store_options o = options(0, 64);
	REQUIRE(play(&o, 1, 200));
	REQUIRE(anchored(&v, 0));
	char path[900];
	snprintf(path, sizeof path, "%s", anchor_file(".anchors"));
	/* A digit of a hash; and a line that is made none. Before them stands whose they are. */
	char text[250] = {0};
	int fd = open(path, O_RDONLY);
	REQUIRE(fd >= 0 && read(fd, text, sizeof text - 1) > 200 && memcmp(text, "log ", 4) == 0);
	close(fd);
	const unsigned begun = (unsigned)(strchr(text, '\n') - text) + 1;
	unsigned at = begun, space = 0;
	for (; space < 4; at++)
		space += text[at] == ' ';
	while (text[at] < '0' || text[at] > '9')
		at++;
	REQUIRE(byte_turn(path, at));
	EXPECT(anchored(&v, -ERR_INTEGRITY));
	EXPECT(dir_says("not signed with its key"));
	REQUIRE(byte_turn(path, at));
	const off_t second = strchr(text + begun, '\n') - text + 1;
	REQUIRE(byte_turn(path, second));
	EXPECT(anchored(&v, -ERR_INTEGRITY));
	EXPECT(dir_says("is gone"));
	REQUIRE(byte_turn(path, second));
	REQUIRE(anchored(&v, 0));
	/* A line that was cut off by the power: the next one is whole again. */
	fd = open(path, O_WRONLY | O_APPEND);
	REQUIRE(fd >= 0 && write(fd, text + begun, 100) == 100);
	close(fd);
	REQUIRE(play(&o, 1, 50));
	REQUIRE(anchored(&v, 0));
	EXPECT_EQ(v.torn, 1);
	EXPECT_EQ(v.anchored, v.entries);
	EXPECT_EQ(v.signed_right, v.anchors);
	/* The store's own key is gone: a new series, both are checked. */
	unlink(dir_path("anchor"));
	REQUIRE(play(&o, 1, 50));
	REQUIRE(anchored(&v, 0));
	EXPECT_EQ(v.signed_right, v.anchors);
	EXPECT(strlen(anchor_file(".2.key")) > 0);
}

static void anchors_refused(void)
{
	struct store *s;
	struct store_verified v;
	int err;
	struct store_options o = options(0, 64);
	const struct fault faults[] = {
		{FAULT_ANCHOR, 2, EIO, 0, 0, false}, {FAULT_ANCHOR, 3, ENOSPC, 0, 0, false},
	};
	fault_set(faults, 2);
	REQUIRE(store_open(&o, &s, store_reason, &store_warning) == 0);
	int seen = 0;
	for (uint64_t step = 1; step <= 100; step++) {
		EXPECT_EQ(push_step(s, step), 0);
		durable_wait(s, step);
		wait_ms(1);
		(void)store_anchored(s, &err);
		seen = err ? err : seen;
	}
	EXPECT(seen == -ERR_IO || seen == -ERR_DISK_FULL);
	/* An idle store anchors what is left, and the fault is over. */
	for (unsigned i = 0; i < 3000 && store_anchored(s, &err) < store_seq(s); i++)
		wait_ms(1);
	EXPECT_EQ(store_anchored(s, &err), store_seq(s));
	EXPECT_EQ(err, 0);
	EXPECT_EQ(store_close(&s), 0);
	fault_set(NULL, 0);
	EXPECT(anchored(&v, 0));
	o.anchor_dir = store_dir;
	EXPECT_EQ(store_open(&o, &s, store_reason, &store_warning), -ERR_BAD_ARG);
	EXPECT(dir_says("the log's own folder"));
	o.anchor_dir = "/dev/null";
	EXPECT_EQ(store_open(&o, &s, store_reason, &store_warning), -ERR_BAD_FILE);
	EXPECT(dir_says("not a folder"));
	const struct store_verify what = {.dir = store_dir, .anchor_dir = "/dev"};
	EXPECT_EQ(store_verify_all(&what, &v, store_reason), -ERR_NO_FILE);
}

/* A folder of segments that does not answer: what is recorded meanwhile is durable,
	and the move is ended when
   it answers again. */
static void archive_hangs(void)
{
	struct store *s;
	struct store_verified v;
	const struct store_options o = options(20, 16);
	const struct fault fault = {FAULT_SEGMENT, 2, 0, 3000, 0, false};
	uint64_t step = 0, beside = 0;
	fault_set(&fault, 1);
	REQUIRE(store_open(&o, &s, store_reason, &store_warning) == 0);
	while (step < 200 && fault_made() == 0) {
		EXPECT_EQ(push_step(s, ++step), 0);
		durable_wait(s, step);
	}
	EXPECT_EQ(fault_made(), 1);
	while (beside < 20) {
		EXPECT_EQ(push_step(s, ++step), 0);
		durable_wait(s, step);
		if (aside_since_ns(&s->third) == 0)
			break;
		beside++;
	}
	EXPECT(beside > 0);
	EXPECT(beside < 20 || store_archived(s) == 0);
	for (unsigned i = 0; i < 20000 && store_archived(s) + 36 < store_seq(s); i++)
		wait_ms(1);
	EXPECT(store_archived(s) + 36 >= store_seq(s));
	EXPECT_EQ(store_archive_failed(s), 0);
	EXPECT_EQ(store_close(&s), 0);
	REQUIRE(dir_sound(&v));
	EXPECT(v.archived > 0);
	EXPECT_EQ(steps_wrong(step), 0);
}

static void in_dir(void (*test)(void), bool anchor, const char *what)
{
	dir_make(true);
	snprintf(anchors, sizeof anchors, "%s.anchors", anchor ? store_dir : "");
	if (!anchor)
		anchors[0] = 0;
	TAP_RUN(test, what);
	while (anchors[0] && anchor_file(".key")[0])
		unlink(anchor_file(".key"));
	if (anchors[0])
		unlink(anchor_file(".anchors"));
	rmdir(anchors);
	dir_drop();
}

int main(void)
{
	setvbuf(stdout, NULL, _IOLBF, 0); /* nothing is left in it for a child to print again */
	in_dir(offline, false, "a closed log: old entries go to a segment, and all reads as before");
	in_dir(online, false, "the writer moves them by itself, and the file stays small");
	in_dir(segments_refused, false, "segments that cannot be written are made later");
	in_dir(archive_hangs, false, "a folder of segments that does not answer holds nothing up");
	in_dir(killed, false, "kill -9 while entries move: each is in one place at least");
	in_dir(segments_damaged, false, "segments that are damaged, cut off or elsewhere");
	in_dir(anchors_agree, true, "anchors: up to the end of a closed log, signed by keys that are gone");
	in_dir(set_back, true, "a log that was set back or cut is refused, and verify says where");
	in_dir(copied, true, "a copy of the folder does not run beside it, nor in its place");
	in_dir(written_anew, true, "a log written anew is found by its anchors alone");
	in_dir(anchors_changed, true, "anchors that were changed, cut off, or signed anew");
	in_dir(anchors_refused, true, "a second place that fails holds nothing up");
	return tap_done();
}
