/*
 * The index of the log: a question looks at the entries that answer it, whatever became of the process that
 * wrote them; each answer is compared with one that reads everything. A log of before the index is brought
 * forward, and an index that was changed is refused or found.
 */
#include "config.h"

#include <errno.h>
#include <sys/wait.h>

#include "tests/store_dir.h"

enum { PAGES = 640, SESSIONS = 50 };

static struct store_reader *reader;
static struct store_read_entry entry;

static void id_of(uint32_t who, uint8_t out[16])
{
	memset(out, 0, 16);
	out[0] = 9;
	memcpy(out + 1, &who, sizeof who);
}

/* A step gives two runs of pages and takes them again, for two of the sessions; one more session is in every
   fiftieth, and an incident in one of a thousand. */
static int play_step(struct store *s, uint64_t step)
{
	for (uint32_t i = 0; i < 4; i++) {
		struct store_record r = {.kind = i < 2 ? STORE_ASSIGN : STORE_FREE, .turn = 3,
					 .page_first = ((uint32_t)step * 2 + i % 2) * 8 % PAGES,
					 .page_count = 1 + (uint32_t)step % 6, .tag_first = (step * 2 + i % 2) * 8};
		id_of((uint32_t)(step * 2 + i % 2) % SESSIONS + (step % 50 == 0 ? 1000 : 0), r.session);
		TRY(push_wait(s, &r));
	}
	if (step % 1000 == 500) {
		const struct store_record r = {.kind = STORE_INCIDENT, .page_first = (uint32_t)step};
		TRY(push_wait(s, &r));
	}
	const struct store_record end = step_end(step);
	return push_wait(s, &end);
}

static bool play(const struct store_options *o, uint64_t first, uint64_t last, bool close)
{
	struct store *s;
	if (store_open(o, &s, store_reason, &store_warning) != 0) {
		printf("# %s\n", store_reason);
		return false;
	}
	for (uint64_t step = first; step <= last; step++)
		if (play_step(s, step) != 0)
			return false;
	if (!durable_wait(s, last))
		return false;
	return !close || store_close(&s) == 0;
}

static int job_play(const char *argument)
{
	const struct store_options o = dir_options();
	const uint64_t first = strtoull(argument, NULL, 10);
	_exit(play(&o, first, first + 1499, false) ? 0 : 1); /* not closed */
}

static bool answers(const struct store_wanted *w)
{
	for (uint32_t i = 0; i < entry.count; i++) {
		uint32_t hash[INDEX_RECORD];
		const uint32_t n = index_of_record(&entry.records[i], hash);
		for (uint32_t k = 0; k < n; k++)
			for (uint32_t h = 0; h < w->count; h++)
				if (hash[k] == w->hash[h])
					return true;
	}
	return false;
}

/* Forwards and backwards, against reading everything. looked: how many entries the question took. */
static void compare(const struct store_wanted *w, uint64_t *found, uint64_t *looked)
{
	static uint8_t right[200000];
	uint64_t seq = 0, counted = 0, back = store_reader_last(reader) + 1;
	REQUIRE(back < sizeof right);
	memset(right, 0, sizeof right);
	for (uint64_t s = store_reader_first(reader); s <= store_reader_last(reader); s++) {
		EXPECT_EQ(store_reader_entry(reader, s, &entry), 0);
		right[s] = answers(w);
		counted += right[s];
	}
	*found = *looked = 0;
	const uint64_t passed = store_reader_passed(reader);
	while (store_reader_seek(reader, w, seq + 1, false, &seq) == 0) {
		++*looked;
		EXPECT_EQ(store_reader_entry(reader, seq, &entry), 0);
		*found += answers(w);
	}
	*looked += store_reader_passed(reader) - passed;
	EXPECT_EQ(*found, counted);
	uint64_t behind = 0;
	while (back > 1 && store_reader_seek(reader, w, back - 1, true, &back) == 0)
		behind += right[back];
	EXPECT_EQ(behind, counted);
}

/* A session that is in one entry of fifty or so, a page, and incidents. share: of the entries, in
   thousandths, that may be looked at beside those that answer. */
static void questions(uint64_t share)
{
	struct store_wanted w;
	uint8_t id[16];
	uint64_t found, looked;
	REQUIRE(store_reader_open(store_dir, &reader, store_reason) == 0);
	const uint64_t all = store_reader_last(reader) - store_reader_first(reader) + 1;
	const uint64_t more = all * share / 1000 + 2;
	id_of(1000, id);
	store_want_session(&w, id);
	compare(&w, &found, &looked);
	EXPECT(found > 0 && looked <= found + more);
	printf("# of %u entries: session %u, looked at %u", (unsigned)all, (unsigned)found, (unsigned)looked);
	id_of(77777, id);
	store_want_session(&w, id);
	compare(&w, &found, &looked);
	EXPECT(found == 0 && looked <= more);
	w.count = 0;
	store_want_page(&w, 0, 321);
	compare(&w, &found, &looked);
	EXPECT(found > 0 && looked <= found + more);
	printf("; page %u, %u", (unsigned)found, (unsigned)looked);
	w.count = 0;
	store_want_kind(&w, STORE_INCIDENT);
	compare(&w, &found, &looked);
	EXPECT(found > 0 && looked <= found + more);
	printf("; incidents %u, %u\n", (unsigned)found, (unsigned)looked);
	store_reader_close(&reader);
}

static void closed(void)
{
	struct store_verified v;
	const struct store_options o = dir_options();
	REQUIRE(play(&o, 1, 6000, true));
	questions(1);
	REQUIRE(dir_sound(&v));
	EXPECT_EQ(v.indexed, v.entries - 1); /* the end of the process is behind it */
	REQUIRE(play(&o, 6001, 6100, true));
	questions(2);
	REQUIRE(dir_sound(&v));
	EXPECT_EQ(v.indexed, v.entries - 1);
}

/* What the dead had not put into rows is taken up. */
static void killed(void)
{
	struct store_verified v;
	const struct store_options o = dir_options();
	for (unsigned i = 0; i < 3; i++) {
		char first[16];
		int status = 0;
		snprintf(first, sizeof first, "%u", 1 + i * 1500);
		const pid_t pid = dir_child("play", first);
		EXPECT(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0);
	}
	questions(400);
	REQUIRE(play(&o, 4501, 4600, true));
	questions(1);
	REQUIRE(dir_sound(&v));
	EXPECT_EQ(v.indexed, v.entries - 1);
}

static void in_segments(void)
{
	struct store_verified v;
	struct store_options o = dir_options();
	o.history_entries = 700;
	o.segment_entries = 900;
	REQUIRE(play(&o, 1, 5000, true));
	REQUIRE(play(&o, 5001, 6000, true));
	questions(1);
	REQUIRE(dir_sound(&v));
	EXPECT(v.archived > 1800);
	EXPECT_EQ(v.indexed, v.entries - 1);
	uint64_t moved;
	REQUIRE(store_archive(store_dir, 10, &moved, store_reason) == 0);
	questions(2);
	REQUIRE(dir_sound(&v));
	EXPECT(v.indexed >= v.entries - 3);
}

/* Transactions that are given up, for want of room, take no mark along and leave none behind. */
static void given_up(void)
{
	struct store_verified v;
	struct store_options o = dir_options();
	struct fault faults[] = {{FAULT_COMMIT, 3, ENOSPC, 0, 0, false},
				 {FAULT_PUT, 700, MDB_MAP_FULL, 0, 0, false},
				 {FAULT_COMMIT, 8, ENOSPC, 0, 0, false}, {FAULT_PUT, 2500, ENOSPC, 0, 0, false}};
	fault_set(faults, 4);
	REQUIRE(play(&o, 1, 4000, true));
	EXPECT_EQ(fault_made(), 4);
	fault_set(NULL, 0);
	questions(1);
	REQUIRE(dir_sound(&v));
	EXPECT_EQ(v.indexed, v.entries - 1);
}

/* A row needs pages in one piece: where the map has none, its entries go without, and the log goes on. */
static void no_piece(void)
{
	struct store_verified v;
	struct store_options o = dir_options();
	struct fault faults[] = {{FAULT_INDEX, 2, MDB_MAP_FULL, 0, 0, false}};
	fault_set(faults, 1);
	REQUIRE(play(&o, 1, 4000, true));
	EXPECT_EQ(fault_made(), 1);
	fault_set(NULL, 0);
	questions(400); /* of them are in no row */
	REQUIRE(dir_sound(&v));
	EXPECT(v.indexed < v.entries - 1);
}

/* Opens data.mdb to write, as nobody should. */
static MDB_txn *open_writing(MDB_env **env, MDB_dbi *index)
{
	MDB_txn *txn = NULL;
	CHECK(mdb_env_create(env) == 0 && mdb_env_set_mapsize(*env, 512 << 20) == 0 &&
	      mdb_env_set_maxdbs(*env, STORE_DBS_MAX) == 0 && mdb_env_open(*env, store_dir, 0, 0600) == 0 &&
	      mdb_txn_begin(*env, NULL, 0, &txn) == 0 && mdb_dbi_open(txn, "index", MDB_INTEGERKEY, index) == 0);
	return txn;
}

enum change { WHOLE, NO_ROW, BAD_CRC, MARK_GONE, MARK_MORE, BEYOND, SHORT, OUT_OF_ORDER, OVERLAPS };

static void row_change(enum change what)
{
	MDB_env *env;
	MDB_dbi index;
	MDB_cursor *cursor;
	MDB_val key, value;
	static uint8_t row[4 << 20];
	struct index_head head;
	MDB_txn *txn = open_writing(&env, &index);
	REQUIRE(mdb_cursor_open(txn, index, &cursor) == 0 &&
		mdb_cursor_get(cursor, &key, &value, MDB_FIRST) == 0 && value.mv_size + 8 < sizeof row);
	uint64_t first, *mark = (uint64_t *)(void *)(row + sizeof head);
	memcpy(&first, key.mv_data, sizeof first);
	memcpy(row, value.mv_data, value.mv_size);
	size_t bytes = value.mv_size;
	memcpy(&head, row, sizeof head);
	if (what == MARK_GONE) {
		head.count--;
		memmove(mark + 3, mark + 4, (head.count - 3) * sizeof *mark);
	} else if (what == MARK_MORE) {
		mark[head.count] = mark[head.count - 1] + (1ull << 32);
		head.count++;
	} else if (what == BEYOND) {
		head.last += 1u << 30;
	} else if (what == OUT_OF_ORDER) {
		const uint64_t swap = mark[5];
		mark[5] = mark[6];
		mark[6] = swap;
	} else if (what == OVERLAPS) {
		first = head.first += 1;
	}
	bytes = sizeof head + head.count * sizeof *mark - (what == SHORT ? 3 : 0);
	head.crc = 0;
	head.crc = ~store_crc_more(store_crc_more(~0u, &head, sizeof head), mark, head.count * sizeof *mark);
	head.crc ^= what == BAD_CRC;
	memcpy(row, &head, sizeof head);
	key = (MDB_val){sizeof first, &first};
	value = (MDB_val){bytes, row};
	if (what == NO_ROW)
		EXPECT_EQ(mdb_cursor_del(cursor, 0), 0);
	mdb_cursor_close(cursor);
	if (what != NO_ROW)
		EXPECT_EQ(mdb_put(txn, index, &key, &value, 0), 0);
	EXPECT_EQ(mdb_txn_commit(txn), 0);
	mdb_env_close(env);
}

/* One that is wrong within itself is refused, one that lies is found by verify; one that is gone is slow. */
static void changed(void)
{
	static const struct { enum change what; int opens, verifies; const char *words; } cases[] = {
		{BAD_CRC, -ERR_INTEGRITY, -ERR_INTEGRITY, "the index from entry 1 on is damaged"},
		{SHORT, -ERR_INTEGRITY, -ERR_INTEGRITY, "damaged"},
		{OUT_OF_ORDER, -ERR_INTEGRITY, -ERR_INTEGRITY, "damaged"},
		{BEYOND, -ERR_INTEGRITY, -ERR_INTEGRITY, "damaged"},
		{OVERLAPS, -ERR_INTEGRITY, -ERR_INTEGRITY, "damaged"},
		{MARK_GONE, 0, -ERR_INTEGRITY, "the index does not say of entry"},
		{MARK_MORE, 0, -ERR_INTEGRITY, "the index does not say of entry"}, {NO_ROW, 0, 0, ""},
	};
	struct store_verified v;
	const struct store_options o = dir_options();
	for (unsigned i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		REQUIRE(play(&o, 1, 2500, true));
		row_change(cases[i].what);
		EXPECT_EQ(store_verify(store_dir, &v, store_reason), cases[i].verifies);
		EXPECT(cases[i].verifies == 0 || dir_says(cases[i].words));
		EXPECT_EQ(dir_try(), cases[i].opens);
		EXPECT(cases[i].opens == 0 || dir_says(cases[i].words));
		if (cases[i].what == NO_ROW)
			questions(990);
		dir_drop();
		dir_make(true);
	}
}

/* In a segment: what is at stake is that nothing crashes and verify finds it. */
static void segment_changed(void)
{
	struct store_verified v;
	uint64_t moved;
	char path[512] = "";
	const struct store_options o = dir_options();
	REQUIRE(play(&o, 1, 2500, true) && store_archive(store_dir, 0, &moved, store_reason) == 0);
	DIR *d = opendir(dir_path("archive"));
	for (struct dirent *e; d != NULL && (e = readdir(d)) != NULL;)
		if (strstr(e->d_name, ".seg") != NULL)
			snprintf(path, sizeof path, "%.300s/%.100s", dir_path("archive"), e->d_name);
	closedir(d);
	struct stat st;
	REQUIRE(stat(path, &st) == 0);
	/* The rows lie before the places: a byte of each eighth of what may be rows. */
	const long places = (long)(moved + 1) * 8, end = (long)st.st_size - places;
	unsigned found = 0;
	for (long at = end - 8; at > end - 40000; at -= 2503) {
		FILE *file = fopen(path, "r+b");
		REQUIRE(file != NULL && fseek(file, at, SEEK_SET) == 0);
		const int byte = fgetc(file);
		fseek(file, at, SEEK_SET);
		fputc(byte ^ 0x10, file);
		fclose(file);
		found += store_verify(store_dir, &v, store_reason) == -ERR_INTEGRITY &&
			 dir_says("the index from entry");
		struct store_wanted w;
		uint8_t id[16];
		uint64_t seq = 0;
		id_of(3, id);
		store_want_session(&w, id);
		REQUIRE(store_reader_open(store_dir, &reader, store_reason) == 0);
		while (store_reader_seek(reader, &w, seq + 1, false, &seq) == 0)
			;
		store_reader_close(&reader);
		file = fopen(path, "r+b");
		fseek(file, at, SEEK_SET);
		fputc(byte, file);
		fclose(file);
	}
	EXPECT_EQ(found, 16);
	REQUIRE(dir_sound(&v));
}

/* A log of before the index: all is read, and what is new is found by it. */
static void brought_forward(void)
{
	MDB_env *env;
	MDB_dbi index, meta;
	struct store_verified v;
	const struct store_options o = dir_options();
	/* More than a start takes up. */
	REQUIRE(play(&o, 1, INDEX_AGAIN + 100, true));
	MDB_txn *txn = open_writing(&env, &index);
	uint32_t four = 4;
	MDB_val key = {6, "schema"}, value = {sizeof four, &four};
	EXPECT(mdb_drop(txn, index, 1) == 0 && mdb_dbi_open(txn, "meta", 0, &meta) == 0 &&
	       mdb_put(txn, meta, &key, &value, 0) == 0 && mdb_txn_commit(txn) == 0);
	mdb_env_close(env);
	char line[128] = "";
	FILE *file = fopen(dir_path("uuid"), "r+");
	REQUIRE(file != NULL && fgets(line, sizeof line, file) != NULL &&
		strncmp(line, "holdfast-audit 5 ", 17) == 0);
	line[15] = '4';
	rewind(file);
	fputs(line, file);
	fclose(file);
	REQUIRE(dir_sound(&v));
	EXPECT_EQ(v.indexed, 0);
	REQUIRE(play(&o, INDEX_AGAIN + 101, INDEX_AGAIN + 1600, true));
	REQUIRE(dir_sound(&v));
	EXPECT_EQ(v.indexed, 1500 + 1);
	questions(990);
}

/* Rows, cells and kinds that only a crafted file has. */
static void crafted(void)
{
	struct index_head head = {.first = 1, .last = 10, .count = 0};
	uint8_t row[64] = {0};
	uint64_t found;
	memcpy(row, &head, sizeof head);
	EXPECT_EQ(index_head_read(row, sizeof head, &head), 0);
	EXPECT(!index_row_seek(row, &head, (uint32_t[]){5}, 1, 3, false, &found));
	EXPECT(!index_row_seek(row, &head, (uint32_t[]){5}, 1, 3, true, &found));
	for (size_t n = 0; n < sizeof row; n++)
		if (n != sizeof head)
			EXPECT(index_head_read(row, n, &head) != 0);
	uint32_t hash[INDEX_RECORD];
	const struct store_record huge = {.kind = STORE_FREE, .page_first = UINT32_MAX,
					  .page_count = UINT32_MAX, .session = {1}};
	EXPECT_EQ(index_of_record(&huge, hash), 3);
	const struct store_record lower = {.kind = STORE_FREE, .place = 1, .page_count = 4};
	EXPECT_EQ(index_of_record(&lower, hash), 0);
	const struct store_record stranger = {.kind = STORE_AUTH, .reason = AUTH_KEY, .session = {1}};
	EXPECT(index_of_record(&stranger, hash) == 1 && hash[0] == index_of_kind(STORE_AUTH));
}

int main(int argc, char **argv)
{
	static const struct dir_job jobs[] = {{"play", job_play}};
	dir_jobs(argc, argv, jobs, 1);
	dir_run(closed, "a question looks at what answers it, and at little else");
	dir_run(killed, "what a killed process left is in the index after the next start");
	dir_run(in_segments, "segments carry their part of the index");
	dir_run(given_up, "transactions that are given up leave nothing in it");
	dir_run(no_piece, "a row for which there are no pages in one piece is left out, and the log goes on");
	dir_run(changed, "an index that was changed is refused or found");
	dir_run(segment_changed, "... in a segment too");
	dir_run(brought_forward, "a log of before the index is brought forward");
	dir_run(crafted, "rows that only a crafted file has");
	return tap_done();
}
