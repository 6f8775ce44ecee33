/*
 * The store when the world is against it: folders that are not ours, files that are damaged, disks
 * that are full or broken, logs that were changed. Each is refused in one line with the cause, the
 * daemon's process lives, and nothing that was there is touched.
 */
#include "config.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include "tests/store_dir.h"

/* A store with some steps in it. */
static bool fill(uint64_t steps)
{
	struct store *s;
	if (dir_open(&s) != 0)
		return false;
	for (uint64_t step = 1; step <= steps; step++)
		if (push_step(s, step) != 0)
			return false;
	return store_close(&s) == 0;
}

static void put_file(const char *name, const void *bytes, size_t count)
{
	int fd = open(dir_path(name), O_WRONLY | O_CREAT | O_TRUNC, 0600);
	CHECK(fd >= 0);
	CHECK(write(fd, bytes, count) == (ssize_t)count);
	close(fd);
}

static off_t file_size(const char *name)
{
	struct stat st;
	return stat(dir_path(name), &st) == 0 ? st.st_size : -1;
}

static void folders(void)
{
	struct store_options o = dir_options();
	struct store *s;
	o.dir = dir_path("absent/store");
	EXPECT_EQ(store_open(&o, &s, store_reason, &store_warning), -ERR_NO_FILE);
	put_file("mine", "x", 1);
	o.dir = dir_path("mine");
	EXPECT_EQ(store_open(&o, &s, store_reason, &store_warning), -ERR_BAD_FILE);
	EXPECT(dir_says("is not a folder"));
	EXPECT_EQ(dir_try(), -ERR_BAD_FILE);
	EXPECT(dir_says("no log of ours"));
	struct store_verified none;
	EXPECT_EQ(store_verify(store_dir, &none, store_reason), -ERR_NO_FILE);
	EXPECT_EQ(file_size("lock"), -1);
	EXPECT_EQ(file_size("data.mdb"), -1);
	unlink(dir_path("mine"));
	CHECK(chmod(store_dir, 0750) == 0);
	EXPECT_EQ(dir_try(), -ERR_PERMISSION);
	EXPECT(dir_says("mode 0750") && dir_says("chmod 0700"));
	CHECK(chmod(store_dir, 0700) == 0);
	EXPECT_EQ(dir_try(), 0);
	struct store_verified v;
	EXPECT_EQ(store_verify("no such folder", &v, store_reason), -ERR_NO_FILE);
}

static void options(void)
{
	struct store *s;
	struct store_options o = dir_options();
	o.ring_records = 1000;
	EXPECT_EQ(store_open(&o, &s, store_reason, &store_warning), -ERR_OUT_OF_RANGE);
	EXPECT(dir_says("1000"));
	o = dir_options();
	o.map_bytes = 4096;
	EXPECT_EQ(store_open(&o, &s, store_reason, &store_warning), -ERR_OUT_OF_RANGE);
	o = dir_options();
	o.page_tokens = 0;
	EXPECT_EQ(store_open(&o, &s, store_reason, &store_warning), -ERR_OUT_OF_RANGE);
	o = dir_options();
	o.dir = "";
	EXPECT_EQ(store_open(&o, &s, store_reason, &store_warning), -ERR_BAD_ARG);
}

/* As another user where this is root; every call that needs to write is then refused. */
static void permission(void)
{
	REQUIRE(fill(3));
	fflush(stdout);
	pid_t pid = fork();
	REQUIRE(pid >= 0);
	if (pid == 0) {
		struct store *s;
		bool root = geteuid() == 0;
		if (chmod(store_dir, 0500) != 0 || chmod(dir_path("lock"), 0400) != 0)
			_exit(9);
		char give[320];
		snprintf(give, sizeof give, "chown -R 65534:65534 '%s'", store_dir);
		if (root && (system(give) != 0 || setgid(65534) != 0 || setuid(65534) != 0))
			_exit(77);
		if (dir_open(&s) != -ERR_PERMISSION)
			_exit(1);
		/* What it says mends it. */
		const char *command = strstr(store_reason, ", run: chmod -R u+rwX '");
		_exit(command != NULL && system(command + 7) == 0 && dir_try() == 0 ? 0 : 2);
	}
	int status;
	REQUIRE(waitpid(pid, &status, 0) == pid);
	EXPECT(WIFEXITED(status));
	if (WEXITSTATUS(status) == 77)
		TAP_SKIP("cannot become another user here");
	EXPECT_EQ(WEXITSTATUS(status), 0);
}

static void read_only(void)
{
	if (geteuid() == 0)
		TAP_SKIP("root writes to a folder of mode 0500");
	CHECK(chmod(store_dir, 0500) == 0);
	EXPECT_EQ(dir_try(), -ERR_PERMISSION);
}

/* What lies in data.mdb's place, and what must be said. */
static void damaged(void)
{
	char bytes[16384];
	REQUIRE(fill(50));
	off_t whole = file_size("data.mdb");
	int fd = open(dir_path("data.mdb"), O_RDONLY);
	char *copy = malloc((size_t)whole);
	REQUIRE(fd >= 0 && copy != NULL && read(fd, copy, (size_t)whole) == whole);
	close(fd);
	put_file("data.mdb", "", 0);
	EXPECT_EQ(dir_try(), -ERR_BAD_FILE);
	EXPECT(dir_says("0 bytes"));
	EXPECT_EQ(file_size("data.mdb"), 0);
	unlink(dir_path("data.mdb"));
	EXPECT_EQ(dir_try(), -ERR_BAD_FILE);
	EXPECT(dir_says("gone"));
	EXPECT_EQ(file_size("data.mdb"), -1);
	memset(bytes, 0xa5, sizeof bytes);
	put_file("data.mdb", bytes, sizeof bytes);
	EXPECT_EQ(dir_try(), -ERR_BAD_FILE);
	for (off_t size = 4096; size < whole; size += 4096) {
		struct store_verified v;
		put_file("data.mdb", copy, (size_t)size);
		int err = store_verify(store_dir, &v, store_reason);
		EXPECT_EQ(file_size("data.mdb"), size);
		/* The pages at the end may be free ones: then nothing was lost, and nothing else will do. */
		if (err == 0 && size > whole / 2)
			EXPECT(v.entries == 52 && v.clean);
		else
			EXPECT_EQ(dir_try(), -ERR_BAD_FILE);
		if (err != 0)
			EXPECT_EQ(file_size("data.mdb"), size);
	}
	put_file("data.mdb", copy, (size_t)whole);
	EXPECT_EQ(dir_try(), 0);
	free(copy);
}

/* A byte at a time over the whole file, seeded: the daemon's process must live through all, and
   what it accepts must verify or be named as changed. */
static void garbled(void)
{
	REQUIRE(fill(20));
	off_t whole = file_size("data.mdb");
	int fd = open(dir_path("data.mdb"), O_RDONLY);
	uint8_t *copy = malloc((size_t)whole), *bad = malloc((size_t)whole);
	REQUIRE(fd >= 0 && copy != NULL && bad != NULL && read(fd, copy, (size_t)whole) == whole);
	close(fd);
	uint64_t seed = 12345;
	unsigned refused = 0, rounds = getenv("HOLDFAST_SANITIZED") ? 100 : 400;
	for (unsigned i = 0; i < rounds; i++) {
		memcpy(bad, copy, (size_t)whole);
		for (unsigned k = 0; k < 8; k++) {
			seed = seed * 6364136223846793005u + 1442695040888963407u;
			/* Half of them in the two meta pages and the page headers, where it hurts. */
			uint64_t at = (seed >> 20) % (uint64_t)whole;
			if (k & 1)
				at = at / 4096 * 4096 + at % 160;
			bad[at] ^= (uint8_t)(1 + (seed >> 56) % 255);
		}
		put_file("data.mdb", bad, (size_t)whole);
		struct store_verified v;
		int err = store_verify(store_dir, &v, store_reason);
		EXPECT(err == 0 || err == -ERR_BAD_FILE || err == -ERR_INTEGRITY ||
		       err == -ERR_UNSUPPORTED || err == -ERR_DISK_FULL || err == -ERR_IO ||
		       err == -ERR_MEMORY);
		refused += err != 0;
	}
	printf("# %u of %u garbled files refused\n", refused, rounds);
	EXPECT(refused > rounds / 3);
	free(copy);
	free(bad);
}

static void versions(void)
{
	REQUIRE(fill(3));
	char line[128] = {0};
	int fd = open(dir_path("uuid"), O_RDONLY);
	REQUIRE(fd >= 0 && read(fd, line, sizeof line - 1) > 0);
	close(fd);
	char *digit = strchr(line, ' ') + 1;
	for (*digit = '1'; *digit <= '6'; *digit = *digit == '1' ? '6' : '7') {
		char words[16];
		snprintf(words, sizeof words, "version %c", *digit);
		put_file("uuid", line, strlen(line));
		EXPECT_EQ(dir_try(), -ERR_UNSUPPORTED);
		EXPECT(dir_says(words) && dir_says("reads version 5"));
	}
	*digit = '5';
	digit[2] = digit[2] == 'a' ? 'b' : 'a';
	put_file("uuid", line, strlen(line));
	EXPECT_EQ(dir_try(), -ERR_INTEGRITY);
	EXPECT(dir_says("two different logs"));
	put_file("uuid", "hello", 5);
	EXPECT_EQ(dir_try(), -ERR_BAD_FILE);
	unlink(dir_path("uuid"));
	EXPECT_EQ(dir_try(), -ERR_BAD_FILE);
	EXPECT(dir_says("no log of ours"));
}

/* Edits the closed store as someone with the right to the file could. */
struct edit { const char *table, *name; uint64_t number; unsigned at; bool drop; };

static bool edit(const struct edit *e)
{
	MDB_env *env;
	MDB_txn *txn;
	MDB_dbi dbi;
	uint8_t bytes[STORE_VALUE_MAX];
	MDB_val key = {sizeof e->number, (void *)&e->number}, value;
	if (e->name != NULL)
		key = (MDB_val){strlen(e->name), (void *)e->name};
	int rc = mdb_env_create(&env);
	mdb_env_set_maxdbs(env, 8);
	if (rc == 0)
		rc = mdb_env_open(env, store_dir, MDB_NOTLS, 0600);
	if (rc == 0)
		rc = mdb_txn_begin(env, NULL, 0, &txn);
	if (rc == 0)
		rc = mdb_dbi_open(txn, e->table, e->name ? 0 : MDB_INTEGERKEY, &dbi);
	if (rc == 0)
		rc = mdb_get(txn, dbi, &key, &value);
	if (rc == 0 && e->drop) {
		rc = mdb_del(txn, dbi, &key, NULL);
	} else if (rc == 0) {
		memcpy(bytes, value.mv_data, value.mv_size);
		bytes[e->at] ^= 1;
		value.mv_data = bytes;
		rc = mdb_put(txn, dbi, &key, &value, 0);
	}
	if (rc == 0)
		rc = mdb_txn_commit(txn);
	mdb_env_close(env);
	return rc == 0;
}

static void tampered(void)
{
	/* fill(20): boot is entry 1, the steps 2 to 21, shutdown 22. */
	static const struct { struct edit edit; int err; const char *says; } cases[] = {
		{{"audit", NULL, 22, 60, false}, -ERR_INTEGRITY, "entry 22: its hash"},
		{{"audit", NULL, 7, 3, false}, -ERR_INTEGRITY, "entry 7: its hash"},
		{{"audit", NULL, 7, 4, false}, -ERR_INTEGRITY, "entry 7: its header"},
		{{"audit", NULL, 1, 50, false}, -ERR_INTEGRITY, "entry 1: its hash"},
		{{"audit", NULL, 22, 0, true}, -ERR_INTEGRITY, "entry 22: it is not there"},
		{{"audit", NULL, 9, 0, true}, -ERR_INTEGRITY, "entry 9: it is not there"},
		{{"own", NULL, 0, 9, false}, -ERR_INTEGRITY, "owners of page 0 of group 0"},
		{{"own", NULL, 16, 2 * 64 + 62, false}, -ERR_INTEGRITY, "owners of page 16 of group 0"},
		{{"meta", "head", 0, 20, false}, -ERR_INTEGRITY, "the head's"},
		{{"meta", "schema", 0, 1, false}, -ERR_UNSUPPORTED, "version 261"},
		{{"meta", "uuid", 0, 4, false}, -ERR_INTEGRITY, "two different logs"},
	};
	for (unsigned i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		REQUIRE(fill(20));
		REQUIRE(edit(&cases[i].edit));
		EXPECT_EQ(dir_try(), cases[i].err);
		EXPECT(dir_says(cases[i].says));
		struct store_verified v;
		EXPECT_EQ(store_verify(store_dir, &v, store_reason), cases[i].err);
		dir_drop();
		dir_make(true);
	}
}

/* The writer meets an error: it says so, takes nothing more, and the store is as before. */
static void writer_fails(const struct fault *fault, int expected)
{
	struct store *s;
	fault_set(fault, 1);
	REQUIRE(dir_open(&s) == 0);
	EXPECT_EQ(push_step(s, 1), 0);
	EXPECT(durable_wait(s, 1));
	uint64_t step = 2;
	for (; step < 200000 && push_step(s, step) == 0; step++)
		if (step < 100)
			durable_wait(s, step);
	EXPECT_EQ(store_failed(s), expected);
	EXPECT_EQ(push_step(s, step), expected);
	struct pollfd p = {.fd = store_fd(s), .events = POLLIN};
	EXPECT_EQ(poll(&p, 1, 0), 1);
	uint64_t durable = store_durable(s);
	EXPECT(durable >= 1);
	EXPECT(durable < step);
	EXPECT_EQ(store_close(&s), expected);
	fault_set(NULL, 0);
	struct store_verified v;
	REQUIRE(dir_sound(&v));
	EXPECT(!v.clean);
	EXPECT_EQ(v.entries, durable + 1);
	EXPECT_EQ(dir_try(), 0);
}

static void injected(void)
{
	static const struct { struct fault fault; int err; } cases[] = {
		{{FAULT_COMMIT, 3, EIO, 0, 0, false}, -ERR_IO},
		{{FAULT_PUT, 6, MDB_KEYEXIST, 0, 0, false}, -ERR_INTEGRITY},
		{{FAULT_COMMIT, 6, MDB_PANIC, 0, 0, false}, -ERR_IO},
	};
	for (unsigned i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		writer_fails(&cases[i].fault, cases[i].err);
		dir_drop();
		dir_make(true);
	}
	/* At the boot's own record there is no store to speak of. */
	struct store *s;
	struct fault first = {FAULT_COMMIT, 1, ENOSPC, 0, 0, false};
	fault_set(&first, 1);
	EXPECT_EQ(dir_open(&s), -ERR_DISK_FULL);
	EXPECT(dir_says("cannot record the boot"));
	fault_set(NULL, 0);
	EXPECT_EQ(dir_try(), 0);
	struct fault last = {FAULT_COMMIT, 2, EIO, 0, 0, false};
	fault_set(&last, 1);
	REQUIRE(dir_open(&s) == 0);
	EXPECT_EQ(store_close(&s), -ERR_IO);
}

/* A map that fills up: the alarm at 80 %, the refusal at 95 %; at its end the writer waits, and what is
   there stays. */
static void map_full(void)
{
	struct store *s;
	struct store_options o = dir_options();
	o.map_bytes = 1 << 20;
	REQUIRE(store_open(&o, &s, store_reason, &store_warning) == 0);
	unsigned seen_limit = 0, seen_full = 0;
	uint64_t step = 1;
	for (; step < 100000 && !store_waits(s) && push_step(s, step) == 0; step++) {
		for (unsigned i = 0; i < 2000 && store_durable(s) < step && !store_waits(s); i++)
			wait_ms(1);
		seen_limit += store_space(s) == -ERR_LIMIT;
		seen_full += store_space(s) == -ERR_DISK_FULL;
	}
	EXPECT(seen_limit > 0);
	EXPECT(seen_full > 0);
	EXPECT(store_waits(s));
	EXPECT_EQ(store_failed(s), 0);
	uint64_t durable = store_durable(s);
	EXPECT_EQ(store_close(&s), -ERR_DISK_FULL);
	struct store_verified v;
	REQUIRE(dir_sound(&v));
	EXPECT_EQ(v.entries, durable + 1);
	EXPECT_EQ(dir_try(), 0);
}

/* A real limit of the system; the signal is ignored, as the daemon ignores it. */
static void file_limit(void)
{
	fflush(stdout);
	pid_t pid = fork();
	REQUIRE(pid >= 0);
	if (pid == 0) {
		struct store *s;
		struct rlimit limit = {300000, 300000};
		signal(SIGXFSZ, SIG_IGN);
		if (dir_open(&s) != 0 || setrlimit(RLIMIT_FSIZE, &limit) != 0)
			_exit(9);
		for (uint64_t step = 1; step < 200000 && !store_waits(s) && push_step(s, step) == 0; step++)
			for (unsigned i = 0; i < 1000 && step % 8 == 0 && store_durable(s) < step && !store_waits(s); i++)
				wait_ms(1);
		/* A write that the limit cuts in two is EIO to LMDB. */
		int err = store_close(&s);
		_exit(err == -ERR_DISK_FULL || err == -ERR_IO ? 0 : 1);
	}
	int status;
	REQUIRE(waitpid(pid, &status, 0) == pid);
	EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	struct store_verified v;
	REQUIRE(dir_sound(&v));
	EXPECT(v.entries > 100);
	EXPECT_EQ(dir_try(), 0);
}

static void file_systems(void)
{
	static const struct { long magic; int err; const char *says; } cases[] = {
		{0x6969, -ERR_UNSUPPORTED, "NFS"}, {0x517b, -ERR_UNSUPPORTED, "SMB"},
		{0x01021997, -ERR_UNSUPPORTED, "9P"}, {0x00c36400, -ERR_UNSUPPORTED, "Ceph"},
		{0x794c7630, 0, "overlay"}, {0x01021994, 0, "tmpfs"}, {0xef53, 0, NULL},
	};
	for (unsigned i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		struct fault fault = {FAULT_STATFS, 1, cases[i].magic, 0, 0, false};
		fault_set(&fault, 1);
		EXPECT_EQ(dir_try(), cases[i].err);
		if (cases[i].err != 0)
			EXPECT(dir_says(cases[i].says) && dir_says("must lie on a local disk") && dir_says(", run: "
				"findmnt"));
		else if (cases[i].says == NULL)
			EXPECT(store_warning == NULL);
		else
			EXPECT(store_warning != NULL && strstr(store_warning, cases[i].says) != NULL);
	}
}

/* Cut off before its last step, the making of a store is taken up again. */
static void half_made(void)
{
	struct store *s;
	struct fault fault = {FAULT_CREATED, 1, EIO, 0, 0, false};
	fault_set(&fault, 1);
	EXPECT_EQ(dir_open(&s), -ERR_IO);
	fault_set(NULL, 0);
	EXPECT(file_size("uuid.new") > 0);
	EXPECT_EQ(file_size("uuid"), -1);
	EXPECT_EQ(dir_try(), 0);
	EXPECT(file_size("uuid") > 0);
	EXPECT_EQ(file_size("uuid.new"), -1);
	/* Cut off before the first table was written. */
	unlink(dir_path("data.mdb"));
	CHECK(rename(dir_path("uuid"), dir_path("uuid.new")) == 0);
	put_file("data.mdb", "", 0);
	EXPECT_EQ(dir_try(), 0);
	struct store_verified v;
	REQUIRE(dir_sound(&v));
	EXPECT_EQ(v.entries, 2);
}

int main(void)
{
	setvbuf(stdout, NULL, _IOLBF, 0); /* nothing is left in it for a child to print again */
	dir_run(folders, "a folder that is absent, a file, another's or open to others is refused");
	dir_run(options, "options out of range are refused");
	dir_run(permission, "a folder of another user is refused");
	dir_run(read_only, "a folder that cannot be written to is refused");
	dir_run(damaged, "data.mdb gone, empty, foreign or cut at any page is refused and left alone");
	dir_run(garbled, "garbled files crash a child at most");
	dir_run(versions, "another version, another log's uuid, no uuid: refused");
	dir_run(tampered, "a changed or missing entry, row or head is found");
	dir_run(injected, "a commit or put that fails ends the writer and harms nothing");
	dir_run(map_full, "a map fills up: alarm, refusal, end");
	dir_run(file_limit, "a file size limit is a full disk, not a signal");
	dir_run(file_systems, "network file systems are refused; overlay and tmpfs warned of");
	dir_run(half_made, "the making of a store, cut off, is taken up again");
	return tap_done();
}
