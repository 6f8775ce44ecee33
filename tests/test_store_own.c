/*
 * Who has which page, as the log has it: runs of pages that were given together are one row, and what differs
 * in anything is not; a row that is damaged is found where its pages are met with again. And when something
 * was: at the end of its step, whenever it was written.
 */
#include "config.h"

#include "runtime/store_inside.h"
#include "tests/store_dir.h"

static struct store_reader *reader;
static struct store_read_entry entry;

static int push_record(struct store *s, uint64_t step, struct store_record r)
{
	const struct store_record end = step_end(step);
	TRY(push_wait(s, &r));
	return push_wait(s, &end);
}

static struct store_record given(uint32_t page, uint32_t count, uint64_t tag, uint32_t position)
{
	return (struct store_record){.kind = STORE_ASSIGN, .principal = 3, .session = {7}, .turn = 2,
				     .page_first = page, .page_count = count, .tag_first = tag,
				     .position_first = position};
}

static void row_is(uint32_t page, uint64_t tag, uint32_t position, uint32_t state)
{
	struct store_row row;
	REQUIRE(store_reader_row(reader, 0, 0, page, &row) == 0);
	EXPECT_EQ(row.tag, tag);
	EXPECT_EQ(row.position, position);
	EXPECT_EQ(row.state, state);
}

/* The number of rows of a value, as it lies there. */
static uint32_t runs_of(uint64_t begin)
{
	MDB_env *env;
	MDB_txn *txn;
	MDB_dbi own;
	MDB_val key = {sizeof begin, &begin}, value = {0, NULL};
	EXPECT(store_open_reading(store_dir, 1 << 30, false, &env, store_reason) == 0);
	EXPECT(mdb_txn_begin(env, NULL, MDB_RDONLY, &txn) == 0 &&
	       mdb_dbi_open(txn, "own", MDB_INTEGERKEY, &own) == 0 && mdb_get(txn, own, &key, &value) == 0);
	mdb_txn_abort(txn);
	mdb_env_close(env);
	return (uint32_t)(value.mv_size / sizeof(struct store_own));
}

static void runs(void)
{
	struct store *s;
	struct store_record r;
	REQUIRE(dir_open(&s) == 0);
	/* 40 pages in one go; then two that have tags one after the other, and stand for places far apart. */
	EXPECT_EQ(push_record(s, 1, given(4, 40, 100, 0)), 0);
	EXPECT_EQ(push_record(s, 2, given(64, 1, 200, 0)), 0);
	EXPECT_EQ(push_record(s, 3, given(65, 1, 201, 512)), 0);
	r = given(64, 2, 200, 0);
	r.kind = STORE_FREE;
	EXPECT_EQ(push_record(s, 4, r), 0);
	/* One in the middle goes. */
	r = given(20, 1, 116, 0);
	r.kind = STORE_FREE;
	EXPECT_EQ(push_record(s, 5, r), 0);
	EXPECT_EQ(store_close(&s), 0);
	EXPECT_EQ(runs_of(0), 1);
	EXPECT_EQ(runs_of(16), 3);
	EXPECT_EQ(runs_of(32), 1);
	EXPECT_EQ(runs_of(64), 2);
	struct store_verified v;
	REQUIRE(dir_sound(&v));
	EXPECT_EQ(v.rows, 42);
	REQUIRE(store_reader_open(store_dir, &reader, store_reason) == 0);
	for (uint32_t i = 0; i < 40; i++)
		row_is(4 + i, 100 + i, 16 * i, i == 16 ? STORE_ROW_FREE : STORE_ROW_OWNED);
	row_is(64, 200, 0, STORE_ROW_FREE);
	row_is(65, 201, 512, STORE_ROW_FREE);
	struct store_row row;
	EXPECT_EQ(store_reader_row(reader, 0, 0, 3, &row), -ERR_NOT_FOUND);
	EXPECT_EQ(store_reader_row(reader, 0, 0, 66, &row), -ERR_NOT_FOUND);
	EXPECT_EQ(store_reader_row(reader, 0, 1, 4, &row), -ERR_NOT_FOUND);
	store_reader_close(&reader);
}

/* A row that says something else than was written: an incident of the next entry that meets with it. */
static void damaged(void)
{
	struct store *s;
	struct store_verified v;
	const struct fault wrong = {.point = FAULT_ROW, .at = 1, .code = 1};
	uint32_t incidents = 0;
	fault_set(&wrong, 1);
	REQUIRE(dir_open(&s) == 0);
	EXPECT_EQ(push_record(s, 1, given(4, 8, 100, 0)), 0);
	EXPECT(durable_wait(s, 1));
	EXPECT_EQ(store_conflicts(s), 0);
	EXPECT_EQ(push_record(s, 2, given(14, 1, 200, 0)), 0); /* beside it */
	EXPECT(durable_wait(s, 2));
	EXPECT_EQ(store_conflicts(s), 1);
	EXPECT_EQ(store_close(&s), 0);
	fault_set(NULL, 0);
	REQUIRE(store_reader_open(store_dir, &reader, store_reason) == 0);
	EXPECT_EQ(store_reader_entry(reader, 3, &entry), 0);
	for (uint32_t i = 0; i < entry.count; i++)
		incidents += entry.records[i].kind == STORE_INCIDENT && entry.records[i].reason == REASON_ROW &&
			     entry.records[i].page_first == 14;
	EXPECT_EQ(incidents, 1);
	/* Nothing of what was damaged is believed, and what is known since is right. */
	row_is(14, 200, 0, STORE_ROW_OWNED);
	struct store_row row;
	EXPECT_EQ(store_reader_row(reader, 0, 0, 5, &row), -ERR_NOT_FOUND);
	store_reader_close(&reader);
	EXPECT(dir_sound(&v));
	/* One that nobody meets with again is found by the next start, which refuses the folder. */
	fault_set(&wrong, 1);
	REQUIRE(dir_open(&s) == 0);
	EXPECT_EQ(push_record(s, 1, given(40, 2, 300, 0)), 0);
	EXPECT_EQ(store_close(&s), 0);
	fault_set(NULL, 0);
	EXPECT_EQ(dir_try(), -ERR_INTEGRITY);
	EXPECT(dir_says("the owners of page 32 of group 0"));
}

/* While a commit takes its time two steps end, one of them in several entries. */
static void times(void)
{
	struct store *s;
	const struct fault slow = {.point = FAULT_COMMIT, .at = 2, .wait_ms = 300};
	fault_set(&slow, 1);
	REQUIRE(dir_open(&s) == 0);
	EXPECT_EQ(push_step(s, 1), 0);
	wait_ms(50);
	const uint64_t before = store_clock_ns(CLOCK_MONOTONIC);
	EXPECT_EQ(push_step(s, 2), 0);
	const uint64_t between = store_clock_ns(CLOCK_MONOTONIC);
	for (uint32_t i = 0; i < 200; i++) {
		const struct store_record r = given(i, 1, 1000 + i, 0);
		EXPECT_EQ(push_wait(s, &r), 0);
	}
	const struct store_record end = step_end(3);
	EXPECT_EQ(push_wait(s, &end), 0);
	const uint64_t pushed = store_clock_ns(CLOCK_MONOTONIC);
	EXPECT_EQ(store_close(&s), 0);
	fault_set(NULL, 0);
	REQUIRE(store_reader_open(store_dir, &reader, store_reason) == 0);
	uint64_t mono = 0, wall = 0;
	uint32_t parts = 0;
	for (uint64_t seq = 1; seq <= store_reader_last(reader); seq++) {
		REQUIRE(store_reader_entry(reader, seq, &entry) == 0);
		EXPECT(entry.mono_ns >= mono && entry.wall_ns >= wall);
		mono = entry.mono_ns;
		wall = entry.wall_ns;
		parts += entry.partial;
		if (entry.kind == STORE_STEP_END && !entry.partial && entry.step == 2)
			EXPECT(mono >= before && mono <= between);
	}
	EXPECT(parts > 0);
	EXPECT(pushed - before < 250000000ull); /* else the test says nothing */
	EXPECT_EQ(store_reader_ordered(reader, 1), store_reader_last(reader) + 1);
	store_reader_close(&reader);
}

/* A step of very many records, each of another kind of run: its parts all bear the time of its end, which is
   looked for once and not for each of them. */
static void step_large(void)
{
	enum { RECORDS = 20000 };
	struct store *s;
	struct store_options o = dir_options();
	o.ring_records = 32768;
	REQUIRE(store_open(&o, &s, store_reason, &store_warning) == 0);
	for (uint32_t i = 0; i < RECORDS; i++) {
		const struct store_record r = {.kind = STORE_CONFIG, .reason = CONFIG_RELOAD, .turn = i};
		REQUIRE(store_push(s, &r) == 0);
	}
	const struct store_record end = step_end(1);
	EXPECT_EQ(store_push(s, &end), 0);
	EXPECT(durable_wait(s, 1));
	printf("# %llu records passed in search of the end of %u\n", (unsigned long long)s->looked, RECORDS);
	EXPECT(s->looked > 0 && s->looked <= RECORDS);
	EXPECT_EQ(store_close(&s), 0);
	REQUIRE(store_reader_open(store_dir, &reader, store_reason) == 0);
	uint32_t count = 0;
	uint64_t wall = 0, wrong = 0;
	for (uint64_t seq = 2; seq < store_reader_last(reader); seq++) {
		EXPECT_EQ(store_reader_entry(reader, seq, &entry), 0);
		for (uint32_t i = 0; i < entry.count; i++)
			wrong += entry.records[i].turn != count++;
		wrong += wall != 0 && entry.wall_ns != wall;
		wall = entry.wall_ns;
	}
	EXPECT_EQ(count, RECORDS);
	EXPECT_EQ(wrong, 0);
	store_reader_close(&reader);
}

int main(void)
{
	dir_run(runs, "runs of pages are one row, and what differs is not");
	dir_run(damaged, "a damaged row is met with: an incident, and nothing of it is believed");
	dir_run(times, "an entry bears the time of its step, and none seems to go back");
	dir_run(step_large, "a step of 20,000 records: its end is looked for once");
	return tap_done();
}
