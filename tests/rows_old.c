/*
 * Rows of sessions as programs of before wrote them: rows_old STATE VERSION SESSIONS makes every row of a
 * closed daemon's log one of that version, cut where that version's struct ended. Prints how many.
 */
#include "config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/options.h"
#include "runtime/records.h"
#include "runtime/store.h"
#include "sched/check.h"

/* As they stood in the program then. */
struct row_1 {
	uint32_t version, principal;
	uint64_t epoch, turn, touched_ms;
	uint32_t history, mark_count, flags, residency;
	uint64_t residency_bytes, lease_us;
	struct template_state state;
	char label[LABEL_MAX + 1];
	uint8_t op[16];
};
struct row_2 {
	uint32_t version, principal;
	uint64_t epoch, turn, touched_ms;
	uint32_t history, mark_count, flags, residency;
	uint64_t residency_bytes, lease_us;
	struct template_state state;
	char label[LABEL_MAX + 1];
	uint8_t op[16];
	uint8_t parent[16];
};

int main(int argc, char **argv)
{
	struct store_options options;
	struct store *store;
	struct store_key key = {.length = 0};
	char reason[STORE_REASON_MAX];
	const char *warning;
	uint8_t row[4096];
	unsigned count = 0;
	if (argc != 4)
		return 2;
	const uint32_t version = (uint32_t)atoi(argv[2]);
	store_options_default(&options);
	options.dir = argv[1];
	options.owners = (uint32_t)atoi(argv[3]);
	if (store_open(&options, &store, reason, &warning) != 0) {
		fprintf(stderr, "%s\n", reason);
		return 1;
	}
	for (;; count++) {
		size_t bytes = sizeof row;
		if (store_kept_next(store, TABLE_SESSION, &key, row, &bytes) != 0)
			break;
		memcpy(row, &version, sizeof version);
		bytes = version == 1 ? sizeof(struct row_1) : sizeof(struct row_2);
		CHECK(store_keep(store, TABLE_SESSION, &key, false, key.bytes, row, bytes) == 0);
		key.bytes[key.length++] = 0;
	}
	const struct store_record end = {.kind = STORE_STEP_END, .step = 1};
	CHECK(store_push(store, &end) == 0);
	CHECK(store_close(&store) == 0);
	printf("%u\n", count);
	return 0;
}
