/*
 * Who has which page, in the table `own`: runs of pages, since pages are given and taken in runs. A value is
 * read as the rows of its pages, changed, and put together again.
 */
#include "config.h"

#include <string.h>

#include "runtime/fault.h"
#include "runtime/store_disk.h"
#include "runtime/store_read.h"
#include "sched/check.h"

uint32_t store_crc(uint64_t key, const struct store_own *run)
{
	struct store_own copy = *run;
	copy.crc = 0;
	return ~store_crc_more(store_crc_more(~0u, &key, sizeof key), &copy, sizeof copy);
}

uint32_t store_own_runs(const MDB_val *value, uint64_t key, struct store_own runs[OWN_PAGES])
{
	const size_t count = value->mv_size / sizeof *runs;
	uint32_t from = 0;
	if (count == 0 || count > OWN_PAGES || value->mv_size % sizeof *runs != 0)
		return 0;
	memcpy(runs, value->mv_data, value->mv_size);
	for (size_t i = 0; i < count; i++) {
		if (runs[i].crc != store_crc(key, &runs[i]) || runs[i].first < from || runs[i].count == 0 ||
		    runs[i].first + runs[i].count > OWN_PAGES)
			return 0;
		from = runs[i].first + runs[i].count;
	}
	return (uint32_t)count;
}

/* What a record makes of a page's row. A row of this boot keeps its owner when it is shared, freed
   or quarantined; where there is none, the record says all that is known. */
static void row_change(struct store_own *row, bool known, const struct store_record *record,
		       uint32_t i, uint32_t page_tokens)
{
	if (record->kind == STORE_ASSIGN || !known) {
		row->principal = record->principal;
		memcpy(row->session, record->session, sizeof row->session);
		row->tag = record->tag_first + i;
		row->turn = record->turn;
		row->position = record->position_first + i * page_tokens;
		row->span = page_tokens;
	}
	switch (record->kind) {
	case STORE_ASSIGN: row->state = STORE_ROW_OWNED; break;
	case STORE_SHARE: row->state = STORE_ROW_SHARED; break;
	case STORE_FREE: row->state = STORE_ROW_FREE; break;
	default: row->state = STORE_ROW_QUARANTINED; break;
	}
}

static void conflict_note(struct store_conflict *conflict, const struct store_record *record, uint32_t i,
			  uint64_t found)
{
	if (conflict->count++ > 0)
		return;
	conflict->page = record->page_first + i;
	conflict->expected = record->tag_first + i;
	conflict->found = found;
}

/* Whether a row is of this boot. An assignment looks too: a page that has an owner is not given to
   another. */
static bool row_known(const struct store_own *row, const struct store_record *record, uint32_t i,
		      uint32_t boot, struct store_conflict *conflict)
{
	if (row->boot != boot)
		return false;
	const bool held = row->state == STORE_ROW_OWNED || row->state == STORE_ROW_SHARED;
	if (record->kind == STORE_ASSIGN ? held : row->tag != record->tag_first + i)
		conflict_note(conflict, record, i, row->tag);
	return record->kind != STORE_ASSIGN;
}

/* The rows of the value's pages; boot 0: there is none. Of a value that is not whole nothing is believed. */
static int rows_read(MDB_cursor *own, uint64_t begin, struct store_own rows[OWN_PAGES], bool *there,
		     const struct store_record *record, uint32_t i, struct store_conflict *conflict)
{
	struct store_own runs[OWN_PAGES];
	MDB_val key = {sizeof begin, &begin}, value;
	const int rc = mdb_cursor_get(own, &key, &value, MDB_SET);
	*there = rc == 0;
	memset(rows, 0, OWN_PAGES * sizeof *rows);
	if (rc != 0)
		return rc == MDB_NOTFOUND ? 0 : store_code(rc);
	const uint32_t count = store_own_runs(&value, begin, runs);
	if (count == 0)
		conflict_note(conflict, record, i, 0);
	for (uint32_t r = 0; r < count; r++)
		for (uint32_t k = 0; k < runs[r].count; k++) {
			struct store_own *row = &rows[runs[r].first + k];
			*row = runs[r];
			row->tag += k;
			row->position += k * row->span;
		}
	return 0;
}

static bool run_goes_on(const struct store_own *run, const struct store_own *row)
{
	return row->tag == run->tag + run->count && row->last_seq == run->last_seq && row->state == run->state &&
	       row->boot == run->boot && row->principal == run->principal && row->turn == run->turn &&
	       row->position == run->position + run->count * run->span && row->span == run->span &&
	       memcmp(row->session, run->session, sizeof run->session) == 0;
}

static int rows_write(MDB_cursor *own, uint64_t begin, const struct store_own rows[OWN_PAGES], bool there)
{
	struct store_own runs[OWN_PAGES];
	uint32_t count = 0;
	for (uint16_t k = 0; k < OWN_PAGES; k++) {
		struct store_own *last = &runs[count - (count > 0)];
		if (rows[k].boot == 0)
			continue;
		if (count > 0 && last->first + last->count == k && run_goes_on(last, &rows[k])) {
			last->count++;
			continue;
		}
		runs[count] = rows[k];
		runs[count].first = k;
		runs[count++].count = 1;
	}
	for (uint32_t r = 0; r < count; r++) {
		runs[r].crc = store_crc(begin, &runs[r]);
		if (fault_pass(FAULT_ROW))
			runs[r].tag ^= 1ull << (runs[r].first % 48);
	}
	MDB_val key = {sizeof begin, &begin}, value = {count * sizeof runs[0], runs};
	return store_code_of(mdb_cursor_put(own, &key, &value, there ? MDB_CURRENT : 0));
}

int store_put_rows(MDB_cursor *own, const struct store_record *record, uint32_t boot, uint64_t seq,
		   uint32_t page_tokens, struct store_conflict *conflict)
{
	struct store_own rows[OWN_PAGES];
	if (record->kind < STORE_ASSIGN || record->kind > STORE_QUARANTINE)
		return 0;
	CHECK(record->place < 256);
	CHECK(record->group < 256);
	const uint64_t place = (uint64_t)record->place << 56 | (uint64_t)record->group << 48;
	const uint64_t first = place + record->page_first;
	for (uint32_t i = 0; i < record->page_count;) {
		const uint64_t begin = (first + i) / OWN_PAGES * OWN_PAGES;
		bool there;
		TRY(rows_read(own, begin, rows, &there, record, i, conflict));
		for (uint64_t k = first + i - begin; k < OWN_PAGES && i < record->page_count; k++, i++) {
			const bool known = row_known(&rows[k], record, i, boot, conflict);
			row_change(&rows[k], known, record, i, page_tokens);
			rows[k].boot = boot;
			rows[k].last_seq = seq;
		}
		TRY(rows_write(own, begin, rows, there));
	}
	return 0;
}
