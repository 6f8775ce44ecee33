/*
 * Files that are not this log's: each of the folder's files, its segments, its anchors and their keys are
 * exchanged with those of another log, are gone, or are put back as they were. A start refuses each by its
 * name, verify says the same, and with the right file all is as it was. And a log of the version before is
 * brought forward, so that a program of that version refuses it.
 */
#include "config.h"

#include <errno.h>
#include <fcntl.h>
#include <lmdb.h>

#include "runtime/store_archive.h"
#include "tests/store_dir.h"

enum { LOGS = 2, STEPS = 80, HISTORY = 20, SEGMENT = 16, PATH_MAX_ = 600, OWNED_MAX = 128 };
static struct log {
	char dir[256], second[300], uuid[2 * STORE_UUID + 1];
} logs[LOGS];

static struct store_options options(const struct log *l)
{
	struct store_options o = dir_options();
	o.dir = l->dir;
	o.anchor_dir = l->second;
	o.anchor_entries = 4;
	o.history_entries = HISTORY;
	o.segment_entries = SEGMENT;
	return o;
}

static void file_of(char path[PATH_MAX_], const struct log *l, const char *name)
{
	/* A name with a point in front lies in the second folder, behind the log's uuid. */
	const bool second = name[0] == '.';
	snprintf(path, PATH_MAX_, "%s/%s%s", second ? l->second : l->dir, second ? l->uuid : "", name);
}

static void swap_files(const char *a, const char *b)
{
	char aside[PATH_MAX_ + 8];
	snprintf(aside, sizeof aside, "%s.aside", a);
	EXPECT(rename(a, aside) == 0 && rename(b, a) == 0 && rename(aside, b) == 0);
}

static void swap(const char *name)
{
	char a[PATH_MAX_], b[PATH_MAX_];
	file_of(a, &logs[0], name);
	file_of(b, &logs[1], name);
	swap_files(a, b);
}

/* What a start says; of one that begins *heard: the last words that it found. */
static int started(const struct log *l, unsigned *heard)
{
	struct store *s;
	const struct store_options o = options(l);
	store_reason[0] = 0;
	const int code = store_open(&o, &s, store_reason, &store_warning);
	if (code != 0)
		return code;
	*heard = store_heard(s);
	return store_close(&s);
}

static int verified(const struct log *l)
{
	struct store_verified v;
	const struct store_verify what = {.dir = l->dir, .anchor_dir = l->second};
	store_reason[0] = 0;
	return store_verify_all(&what, &v, store_reason);
}

static bool filled(struct log *l, const char *name, uint8_t who)
{
	struct store *s;
	const struct store_last_word word = {.reason = REASON_TAG, .page = who};
	snprintf(l->dir, sizeof l->dir, "%.200s%s", store_dir, name);
	snprintf(l->second, sizeof l->second, "%s.second", l->dir);
	const struct store_options o = options(l);
	if (store_open(&o, &s, store_reason, &store_warning) != 0)
		return false;
	for (uint64_t step = 1; step <= STEPS; step++) {
		const struct store_key key = {.bytes = {who}, .length = 1};
		const uint8_t owner[16] = {who, (uint8_t)step};
		EXPECT_EQ(store_keep(s, TABLE_TURN, &key, false, owner, &who, 1), 0);
		EXPECT_EQ(push_step(s, step), 0);
		durable_wait(s, step);
	}
	for (unsigned i = 0; i < 5000 && store_archived(s) + HISTORY + SEGMENT < store_seq(s); i++)
		wait_ms(1);
	uint8_t uuid[16];
	store_uuid(s, uuid);
	for (unsigned i = 0; i < 16; i++)
		snprintf(l->uuid + 2 * i, 3, "%02x", uuid[i]);
	store_beacon(s, &word);
	return store_close(&s) == 0;
}

static bool both(void)
{
	return EXPECT(filled(&logs[0], "", 1)) && EXPECT(filled(&logs[1], " other", 2));
}

static void drop(void)
{
	char command[1600];
	snprintf(command, sizeof command, "rm -r '%s' '%s' '%s' '%s'", logs[0].dir, logs[0].second, logs[1].dir,
		 logs[1].second);
	EXPECT(system(command) == 0);
}

static void exchanged(void)
{
	static const struct { const char *name, *says; bool verify_only; } cases[] = {
		{"beacon", "'beacon' is of another log", false},
		{"data.mdb", "two different logs", false},
		{"uuid", "two different logs", false},
		{"keys", "'keys' is of another log", false},
		{"anchor", "'anchor' is of another log", false},
		{"archive/00000000000000000017-00000000000000000032.seg",
		 "00000000000000000017-00000000000000000032.seg' is of another log", false},
		{".anchors", ".anchors' is of another log", false},
		{".1.key", "key of series 1 of its anchors is of another log", true},
	};
	unsigned heard = 9;
	REQUIRE(both());
	for (unsigned i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		swap(cases[i].name);
		for (unsigned k = 0; k < LOGS; k++) {
			EXPECT_EQ(verified(&logs[k]), -ERR_INTEGRITY);
			EXPECT(dir_says(cases[i].says));
			if (!cases[i].verify_only) {
				EXPECT_EQ(started(&logs[k], &heard), -ERR_INTEGRITY);
				EXPECT(dir_says(cases[i].says));
			}
		}
		swap(cases[i].name);
		for (unsigned k = 0; k < LOGS; k++) {
			EXPECT_EQ(verified(&logs[k]), 0);
			EXPECT_EQ(started(&logs[k], &heard), 0);
			EXPECT_EQ(heard, i == 0); /* what was said last was not lost meanwhile */
		}
	}
	drop();
}

/* Within one log; and one that is cut. */
static void segments(void)
{
	char a[PATH_MAX_], b[PATH_MAX_];
	unsigned heard;
	REQUIRE(both());
	file_of(a, &logs[0], "archive/00000000000000000001-00000000000000000016.seg");
	file_of(b, &logs[0], "archive/00000000000000000017-00000000000000000032.seg");
	swap_files(a, b);
	EXPECT_EQ(started(&logs[0], &heard), -ERR_INTEGRITY);
	EXPECT(dir_says("has other entries than its name says"));
	EXPECT_EQ(verified(&logs[0]), -ERR_INTEGRITY);
	EXPECT(dir_says("has other entries than its name says"));
	swap_files(a, b);
	EXPECT_EQ(started(&logs[0], &heard), 0);
	/* Taken elsewhere, from the oldest on, it is no fault. */
	EXPECT(rename(a, b) == 0 && unlink(b) == 0);
	EXPECT_EQ(started(&logs[0], &heard), 0);
	EXPECT_EQ(verified(&logs[0]), 0);
	file_of(a, &logs[0], "archive/00000000000000000033-00000000000000000048.seg");
	EXPECT(truncate(a, 40) == 0);
	EXPECT_EQ(started(&logs[0], &heard), -ERR_INTEGRITY);
	EXPECT(dir_says("is not a segment"));
	EXPECT_EQ(verified(&logs[0]), -ERR_INTEGRITY);
	drop();
}

/* As a version before wrote them, without a word of whose they are: the hashes tell. */
static void anchors_bare(void)
{
	char from[PATH_MAX_], to[PATH_MAX_], command[3000];
	unsigned heard;
	REQUIRE(both());
	file_of(from, &logs[1], ".anchors");
	file_of(to, &logs[0], ".anchors");
	snprintf(command, sizeof command, "cp '%s' '%s.own' && tail -n +2 '%s' > '%s'", to, to, from, to);
	EXPECT(system(command) == 0);
	EXPECT_EQ(started(&logs[0], &heard), -ERR_INTEGRITY);
	EXPECT(dir_says("anchored"));
	/* Also where the entry lies in a segment by now. */
	snprintf(command, sizeof command, "sed -n 3p '%s' > '%s'", from, to);
	EXPECT(system(command) == 0);
	EXPECT_EQ(started(&logs[0], &heard), -ERR_INTEGRITY);
	EXPECT(dir_says("was written anew"));
	/* Our own of before are taken, and go on. */
	snprintf(command, sizeof command, "tail -n +2 '%s.own' > '%s'", to, to);
	EXPECT(system(command) == 0);
	EXPECT_EQ(started(&logs[0], &heard), 0);
	EXPECT_EQ(verified(&logs[0]), 0);
	drop();
}

/* The owners as a version before had them: a value for each page, without a word of runs. */
static bool owners_of_before(MDB_txn *txn, bool wrong)
{
	static struct store_own rows[OWNED_MAX];
	static uint64_t number[OWNED_MAX];
	struct store_own runs[OWN_PAGES];
	MDB_cursor *cursor;
	MDB_dbi own;
	MDB_val key, value;
	uint32_t count = 0;
	if (mdb_dbi_open(txn, "own", MDB_INTEGERKEY, &own) != 0 || mdb_cursor_open(txn, own, &cursor) != 0)
		return false;
	while (mdb_cursor_get(cursor, &key, &value, MDB_NEXT) == 0) {
		uint64_t begin;
		memcpy(&begin, key.mv_data, sizeof begin);
		const uint32_t n = store_own_runs(&value, begin, runs);
		for (uint32_t i = 0; i < n; i++)
			for (uint16_t k = 0; k < runs[i].count && count < OWNED_MAX; k++) {
				struct store_own *row = &rows[count];
				*row = runs[i];
				row->tag += k;
				row->position += k * row->span;
				number[count++] = begin + runs[i].first + k;
				row->span = row->first = row->count = 0;
				row->crc = store_crc(number[count - 1], row);
			}
	}
	mdb_cursor_close(cursor);
	bool right = count > 60 && mdb_drop(txn, own, 0) == 0;
	rows[count / 2].tag ^= wrong;
	for (uint32_t i = 0; right && i < count; i++) {
		key = (MDB_val){sizeof number[i], &number[i]};
		value = (MDB_val){sizeof rows[i], &rows[i]};
		right = mdb_put(txn, own, &key, &value, 0) == 0;
	}
	return right;
}

static bool schema_is(const char *dir, uint32_t set, bool wrong, uint32_t *found)
{
	MDB_env *env;
	MDB_txn *txn;
	MDB_dbi meta;
	MDB_val key = {6, "schema"}, value;
	bool right = mdb_env_create(&env) == 0 && mdb_env_set_maxdbs(env, 16) == 0 &&
		     mdb_env_open(env, dir, MDB_NOTLS, 0600) == 0 && mdb_txn_begin(env, NULL, 0, &txn) == 0 &&
		     mdb_dbi_open(txn, "meta", 0, &meta) == 0 && mdb_get(txn, meta, &key, &value) == 0 &&
		     value.mv_size == sizeof *found;
	if (right)
		memcpy(found, value.mv_data, sizeof *found);
	value = (MDB_val){sizeof set, &set};
	if (right && set != 0)
		right = mdb_put(txn, meta, &key, &value, 0) == 0 && owners_of_before(txn, wrong);
	right = right && mdb_txn_commit(txn) == 0;
	mdb_env_close(env);
	return right;
}

static uint64_t owners(const struct log *l)
{
	struct store_verified v;
	return store_verify(l->dir, &v, store_reason) == 0 ? v.rows : UINT64_MAX;
}

static bool uuid_version(const char *path, char set, char *found)
{
	char line[80] = {0};
	const int fd = open(path, O_RDWR);
	bool right = fd >= 0 && read(fd, line, sizeof line - 1) > 20 && strchr(line, ' ') != NULL;
	const off_t at = right ? strchr(line, ' ') - line + 1 : 0;
	*found = line[at];
	if (right && set)
		right = pwrite(fd, &set, 1, at) == 1;
	close(fd);
	return right;
}

static void brought_forward(void)
{
	char uuid[PATH_MAX_], beacon[PATH_MAX_], said;
	uint32_t schema;
	unsigned heard = 0;
	REQUIRE(both());
	file_of(uuid, &logs[0], "uuid");
	file_of(beacon, &logs[0], "beacon");
	REQUIRE(uuid_version(uuid, '2', &said) && said == '5');
	REQUIRE(schema_is(logs[0].dir, 2, false, &schema) && schema == 5);
	REQUIRE(truncate(beacon, BEACON_SLOTS * 4096) == 0);
	EXPECT_EQ(verified(&logs[0]), 0);
	EXPECT_EQ(owners(&logs[0]), 67);
	/* Cut off in between, it is taken up again. */
	const struct fault fault = {.point = FAULT_CREATED, .at = 1, .code = EIO};
	fault_set(&fault, 1);
	EXPECT_EQ(started(&logs[0], &heard), -ERR_IO);
	fault_set(NULL, 0);
	EXPECT(uuid_version(uuid, 0, &said) && said == '2');
	EXPECT_EQ(started(&logs[0], &heard), 0);
	EXPECT_EQ(heard, 1);
	EXPECT(uuid_version(uuid, 0, &said) && said == '5');
	EXPECT(schema_is(logs[0].dir, 0, false, &schema) && schema == 5);
	EXPECT_EQ(verified(&logs[0]), 0);
	/* Owners of before were void, and those of now are as they are now. */
	EXPECT_EQ(owners(&logs[0]), 0);
	struct store *s;
	const struct store_options o = options(&logs[0]);
	REQUIRE(store_open(&o, &s, store_reason, &store_warning) == 0);
	EXPECT_EQ(push_step(s, 3), 0);
	EXPECT_EQ(store_close(&s), 0);
	EXPECT_EQ(owners(&logs[0]), 4);
	drop();
}

/* What would be brought forward must be whole. */
static void forward_not(void)
{
	char uuid[PATH_MAX_], said;
	uint32_t schema;
	unsigned heard;
	REQUIRE(both());
	file_of(uuid, &logs[0], "uuid");
	REQUIRE(uuid_version(uuid, '3', &said) && schema_is(logs[0].dir, 3, true, &schema));
	for (unsigned i = 0; i < 2; i++) {
		EXPECT_EQ(i ? started(&logs[0], &heard) : verified(&logs[0]), -ERR_INTEGRITY);
		EXPECT(dir_says("the owners of page"));
	}
	EXPECT(schema_is(logs[0].dir, 0, false, &schema) && schema == 3);
	drop();
}

static void words_whose(void)
{
	char beacon[PATH_MAX_];
	unsigned heard;
	REQUIRE(both());
	/* A file of words that does not say whose it is is one of a version before; now it is not ours. */
	file_of(beacon, &logs[1], "beacon");
	REQUIRE(truncate(beacon, BEACON_SLOTS * 4096) == 0);
	EXPECT_EQ(started(&logs[1], &heard), -ERR_INTEGRITY);
	EXPECT(dir_says("'beacon' does not say of which log it is"));
	EXPECT_EQ(verified(&logs[1]), -ERR_INTEGRITY);
	/* One without words is one whose making was cut off. */
	REQUIRE(truncate(beacon, 0) == 0);
	EXPECT_EQ(started(&logs[1], &heard), 0);
	EXPECT_EQ(verified(&logs[1]), 0);
	drop();
}

/* Of an older state of the same log, or gone. */
static void older(void)
{
	char keys[PATH_MAX_], command[3000];
	unsigned heard;
	REQUIRE(both());
	const struct log *l = &logs[0];
	file_of(keys, l, "keys");
	snprintf(command, sizeof command, "cp -p '%s' '%s.old'", keys, keys);
	struct store *s;
	const struct store_options o = options(l);
	const struct store_key key = {.bytes = {3}, .length = 1};
	const uint8_t owner[16] = {3}, three = 3;
	uint8_t value = 0;
	size_t bytes = 1;
	REQUIRE(system(command) == 0 && store_open(&o, &s, store_reason, &store_warning) == 0);
	EXPECT_EQ(store_keep(s, TABLE_TURN, &key, false, owner, &three, 1), 0);
	EXPECT_EQ(push_step(s, 1), 0);
	EXPECT_EQ(store_close(&s), 0);
	snprintf(command, sizeof command, "mv '%s' '%s.new'; cp -p '%s.old' '%s'", keys, keys, keys, keys);
	EXPECT(system(command) == 0);
	EXPECT_EQ(started(l, &heard), -ERR_INTEGRITY);
	EXPECT(dir_says("'keys' is an older one"));
	EXPECT_EQ(verified(l), -ERR_INTEGRITY);
	EXPECT(dir_says("'keys' is an older one"));
	unlink(keys);
	EXPECT_EQ(started(l, &heard), -ERR_NO_FILE);
	EXPECT(dir_says("'keys' cannot be used"));
	/* Chain, owners and anchors are verified without them, and it is said. */
	struct store_verified v;
	const struct store_verify what = {.dir = l->dir, .anchor_dir = l->second};
	EXPECT_EQ(store_verify_all(&what, &v, store_reason), 0);
	EXPECT(v.keyless && v.anchored > 0 && v.entries > STEPS && v.rows > 0);
	EXPECT(access(keys, F_OK) != 0); /* nothing is made anew */
	snprintf(command, sizeof command, "mv '%s.new' '%s'", keys, keys);
	EXPECT(system(command) == 0);
	EXPECT_EQ(store_verify_all(&what, &v, store_reason), 0);
	EXPECT(!v.keyless);
	REQUIRE(store_open(&o, &s, store_reason, &store_warning) == 0);
	EXPECT_EQ(store_kept(s, TABLE_TURN, &key, &value, &bytes), 0);
	EXPECT_EQ(value, 3);
	EXPECT_EQ(store_close(&s), 0);
	drop();
}

static void in_dir(void (*test)(void), const char *what)
{
	dir_make(true);
	rmdir(store_dir); /* the logs make theirs */
	TAP_RUN(test, what);
	fault_set(NULL, 0);
}

int main(void)
{
	in_dir(exchanged, "each file of two logs exchanged: refused by its name, by a start and by verify");
	in_dir(segments, "segments of one log exchanged, taken elsewhere, cut");
	in_dir(anchors_bare, "anchors of another log that do not say whose they are: their hashes tell");
	in_dir(older, "keys of an older state, and none");
	in_dir(brought_forward, "a log of the version before is brought forward, cut off or not");
	in_dir(forward_not, "... unless it is damaged");
	in_dir(words_whose, "last words that do not say of which log they are");
	return tap_done();
}
