/*
 * A map that is full at each of the places where the writer meets it: an entry, the head, the removing of
 * what was archived. Nothing is there in part, what is new is refused, and what can be archived is, from the
 * room that is left. LMDB's own answers are replaced by functions of this program that stand before them.
 */
#include "config.h"

#include <dlfcn.h>
#include <lmdb.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "tests/store_dir.h"

enum place { NOWHERE, ENTRY, HEAD, DROP };
static _Atomic enum place where;
static atomic_uint left;    /* times that it will be full there */
static atomic_uint met;     /* times that it was */
static atomic_uint real;    /* times that LMDB said so by itself */

static bool full(enum place at)
{
	if (atomic_load(&where) != at || atomic_load(&left) == 0)
		return false;
	atomic_fetch_sub(&left, 1);
	atomic_fetch_add(&met, 1);
	return true;
}

int mdb_put(MDB_txn *txn, MDB_dbi dbi, MDB_val *key, MDB_val *data, unsigned flags)
{
	static int (*next)(MDB_txn *, MDB_dbi, MDB_val *, MDB_val *, unsigned);
	if (next == NULL)
		*(void **)&next = dlsym(RTLD_NEXT, "mdb_put");
	const bool head = key->mv_size == 4 && memcmp(key->mv_data, "head", 4) == 0;
	if (full(flags & MDB_APPEND ? ENTRY : head ? HEAD : NOWHERE))
		return MDB_MAP_FULL;
	const int rc = next(txn, dbi, key, data, flags);
	atomic_fetch_add(&real, rc == MDB_MAP_FULL);
	return rc;
}

int mdb_del(MDB_txn *txn, MDB_dbi dbi, MDB_val *key, MDB_val *data)
{
	static int (*next)(MDB_txn *, MDB_dbi, MDB_val *, MDB_val *);
	if (next == NULL)
		*(void **)&next = dlsym(RTLD_NEXT, "mdb_del");
	return full(DROP) ? MDB_MAP_FULL : next(txn, dbi, key, data);
}

enum { HISTORY = 40, SEGMENT = 16 };

static struct store_options options(void)
{
	struct store_options o = dir_options();
	o.history_entries = HISTORY;
	o.segment_entries = SEGMENT;
	return o;
}

/* Each step has something kept beside its entry, so that both are there or neither. */
static int play_step(struct store *s, uint64_t step)
{
	const struct store_key key = {.bytes = {(uint8_t)step, (uint8_t)(step >> 8)}, .length = 2};
	TRY(store_keep(s, TABLE_TURN, &key, false, NULL, &step, sizeof step));
	return push_step(s, step);
}

static bool kept(struct store *s, uint64_t step)
{
	struct store_key key = {.bytes = {(uint8_t)step, (uint8_t)(step >> 8)}, .length = 2};
	uint64_t value = 0;
	size_t bytes = sizeof value;
	return store_kept(s, TABLE_TURN, &key, &value, &bytes) == 0 && value == step;
}

/* The last of the steps that are there: all before it are, whole and in order. 0: there are others. */
static uint64_t steps_there(uint64_t least, uint64_t most)
{
	for (uint64_t last = least; last <= most; last++)
		if (steps_wrong(last) == 0)
			return last;
	return 0;
}

static void for_a_while(void)
{
	struct store *s;
	struct store_verified v;
	const struct store_options o = options();
	for (enum place p = ENTRY; p <= DROP; p++) {
		bool refused = false, archived_not = false;
		REQUIRE(store_open(&o, &s, store_reason, &store_warning) == 0);
		atomic_store(&met, 0);
		for (uint64_t step = 1; step <= 150; step++) {
			if (step == 50) {
				atomic_store(&where, p);
				atomic_store(&left, p == DROP ? 1 : 3);
			}
			EXPECT_EQ(play_step(s, step), 0);
			for (unsigned i = 0; i < 5000 && store_durable(s) < step; i++) {
				refused |= store_waits(s) && store_space(s) == -ERR_DISK_FULL;
				wait_ms(1);
			}
			archived_not |= store_archive_failed(s) == -ERR_DISK_FULL;
		}
		EXPECT_EQ(atomic_load(&met), p == DROP ? 1 : 3);
		/* What is new waits for an entry's room; and for that of an archived one's removal nobody does. */
		EXPECT_EQ(refused, p != DROP);
		EXPECT(p != DROP || archived_not);
		EXPECT_EQ(store_durable(s), 150);
		EXPECT_EQ(store_failed(s), 0);
		EXPECT_EQ(store_close(&s), 0);
		atomic_store(&where, NOWHERE);
		EXPECT_EQ(steps_wrong(150), 0);
		EXPECT(dir_sound(&v));
		/* The next process moves what this one could not. */
		REQUIRE(store_open(&o, &s, store_reason, &store_warning) == 0);
		for (unsigned i = 0; i < 5000 && store_archived(s) + HISTORY + SEGMENT < store_seq(s); i++)
			wait_ms(1);
		if (!EXPECT(store_archived(s) + HISTORY + SEGMENT >= store_seq(s)))
			printf("# %llu of %llu are archived, error %d\n", (unsigned long long)store_archived(s),
			       (unsigned long long)store_seq(s), store_archive_failed(s));
		EXPECT_EQ(store_close(&s), 0);
		EXPECT_EQ(steps_wrong(150), 0);
		EXPECT(dir_sound(&v));
		dir_drop();
		dir_make(true);
	}
}

/* It stays full, and the process is killed then. */
static void and_killed(void)
{
	volatile uint64_t *said = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	REQUIRE(said != MAP_FAILED);
	const struct store_options o = options();
	for (enum place p = ENTRY; p <= DROP; p++) {
		struct store *s;
		struct store_verified v;
		*said = 0;
		fflush(stdout);
		const pid_t pid = fork();
		REQUIRE(pid >= 0);
		if (pid == 0) {
			if (store_open(&o, &s, store_reason, &store_warning) != 0)
				_exit(1);
			for (uint64_t step = 1; step <= 400; step++) {
				if (step == 70) {
					atomic_store(&where, p);
					atomic_store(&left, UINT32_MAX);
				}
				if (play_step(s, step) != 0)
					_exit(1);
				for (unsigned i = 0; i < 5000 && store_durable(s) < step && !store_waits(s); i++)
					wait_ms(1);
				*said = store_durable(s);
				if (store_waits(s) || store_archive_failed(s) == -ERR_DISK_FULL)
					raise(SIGKILL);
			}
			_exit(2);
		}
		int status;
		REQUIRE(waitpid(pid, &status, 0) == pid);
		EXPECT(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
		EXPECT(dir_sound(&v));
		const uint64_t last = steps_there(*said, *said + 1);
		EXPECT(last >= 69);
		REQUIRE(store_open(&o, &s, store_reason, &store_warning) == 0);
		EXPECT(kept(s, last) && !kept(s, last + 1));
		EXPECT_EQ(play_step(s, last + 1), 0);
		EXPECT(durable_wait(s, last + 1));
		EXPECT_EQ(store_close(&s), 0);
		EXPECT_EQ(steps_wrong(last + 1), 0);
		dir_drop();
		dir_make(true);
	}
	munmap((void *)said, 4096);
}

/* Until the map is really full; how many steps are durable then. */
static uint64_t fill(const struct store_options *o)
{
	struct store *s;
	uint64_t step = 1;
	if (store_open(o, &s, store_reason, &store_warning) != 0)
		return 0;
	for (; step < 100000 && !store_waits(s) && push_step(s, step) == 0; step++)
		for (unsigned i = 0; i < 2000 && store_durable(s) < step && !store_waits(s); i++)
			wait_ms(1);
	EXPECT(store_waits(s));
	/* As long as it waits: that the disk has room is found out in between, and is not the map's room. */
	for (unsigned i = 0; i < 80 && EXPECT(store_space(s) == -ERR_DISK_FULL); i++)
		wait_ms(10);
	const uint64_t durable = store_durable(s);
	EXPECT_EQ(store_close(&s), -ERR_DISK_FULL);
	return durable;
}

/* By hand, with the daemon gone: `holdfast audit archive`. */
static void archived_by_hand(void)
{
	struct store *s;
	struct store_verified v;
	struct store_options o = dir_options();
	uint64_t moved;
	o.map_bytes = 1 << 20;
	const uint64_t last = fill(&o);
	REQUIRE(last > 500);
	EXPECT(dir_sound(&v));
	EXPECT_EQ(store_archive(store_dir, 100, &moved, store_reason), 0);
	EXPECT(moved > 500);
	REQUIRE(store_open(&o, &s, store_reason, &store_warning) == 0);
	EXPECT_EQ(store_space(s), 0);
	for (uint64_t step = last + 1; step <= last + 100; step++)
		EXPECT_EQ(push_step(s, step), 0);
	EXPECT(durable_wait(s, last + 100));
	EXPECT_EQ(store_close(&s), 0);
	EXPECT_EQ(steps_wrong(last + 100), 0);
	EXPECT(dir_sound(&v));
}

/* By the writer itself, of which a batch finds the map full before it has looked at its space: what is in the
   ring is larger than what is left. */
static void archived_at(unsigned steps, bool slowly)
{
	static uint8_t value[40000];
	struct store *s;
	struct store_verified v;
	struct store_options o = options();
	/* Longer than the writer waits for a piece before it does something else. */
	const struct fault slow = {.point = FAULT_SEGMENT, .at = 1, .wait_ms = 70, .every = 64};
	o.map_bytes = 1 << 20;
	o.history_entries = 64;
	o.segment_entries = 32;
	o.commit_records = 1024; /* large ones, however slowly they are pushed */
	o.commit_ms = 100;
	REQUIRE(store_open(&o, &s, store_reason, &store_warning) == 0);
	atomic_store(&real, 0);
	/* Most of the map has something else in it. */
	for (uint8_t i = 0; i < 18; i++) {
		const struct store_key key = {.bytes = {0xff, i, 1}, .length = 3};
		EXPECT_EQ(store_keep(s, TABLE_TURN, &key, false, NULL, value, sizeof value), 0);
	}
	if (slowly)
		fault_set(&slow, 1);
	for (uint64_t step = 1; step <= steps; step++)
		REQUIRE(push_step(s, step) == 0);
	if (!slowly) /* else the stop finds most of it still to be done */
		EXPECT(durable_wait(s, steps));
	printf("# the map was full %u times; %llu of %llu entries are in segments\n", atomic_load(&real),
	       (unsigned long long)store_archived(s), (unsigned long long)store_seq(s));
	EXPECT(slowly || atomic_load(&real) > 0);
	EXPECT_EQ(store_failed(s), 0);
	EXPECT_EQ(store_close(&s), 0);
	fault_set(NULL, 0);
	EXPECT(atomic_load(&real) > 0);
	EXPECT_EQ(steps_wrong(steps), 0);
	EXPECT(dir_sound(&v));
}

static void archived_in_time(void)
{
	archived_at(getenv("HOLDFAST_SANITIZED") ? 3000 : 6000, false);
}

static void archived_slowly(void)
{
	archived_at(1500, true);
}

int main(void)
{
	setvbuf(stdout, NULL, _IOLBF, 0); /* nothing is left in it for a child to print again */
	dir_run(for_a_while, "full at an entry, the head, an archived entry's removal: all is there afterwards");
	dir_run(and_killed, "and killed then: no entry without what belongs to it");
	dir_run(archived_by_hand, "a full map is emptied by hand, and the log goes on in it");
	dir_run(archived_in_time, "a map that is full is emptied by the writer, from what is left of it");
	dir_run(archived_slowly, "the same beside a slow folder: a stop waits for the room that comes");
	return tap_done();
}
