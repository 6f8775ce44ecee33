/*
 * The ledger: bytes of each account by column, double entry. ledger_move is the only verb: what
 * leaves a column enters another one of the same account, so an account's sum never changes (I7).
 *
 * PROMISED is settled at the end of each step only: it is the part of the promises that free pages
 * back, min(free, promised) in each group. The rest of the promises is backed by retained and
 * doomed pages, which stay in their columns until they are given up. Within a step, promised bytes
 * stand in FREE.
 */
#include "sched/state.h"

void ledger_move(struct sched *s, enum account account, enum column from, enum column to, uint64_t bytes)
{
	CHECK(account < ACCOUNT_COUNT);
	CHECK(from < COLUMN_COUNT);
	CHECK(to < COLUMN_COUNT);
	CHECK(s->ledger[account][from] >= bytes);
	s->ledger[account][from] -= bytes;
	s->ledger[account][to] += bytes;
}

void ledger_open(struct sched *s)
{
	const struct sched_limits *l = &s->limits;
	static const enum account of_place[PLACE_COUNT] = {ACCOUNT_DEVICE, ACCOUNT_HOST, ACCOUNT_DISK};
	for (uint32_t g = 0; g < l->group_count; g++)
		for (uint32_t place = 0; place < PLACE_COUNT; place++)
			s->ledger[of_place[place]][COLUMN_FREE] +=
				l->group[g].page_bytes * l->group[g].page_count[place];
	s->ledger[ACCOUNT_WEIGHTS][COLUMN_FREE] = l->weights_bytes;
	s->ledger[ACCOUNT_WORKSPACE][COLUMN_FREE] = l->workspace_bytes;
	s->ledger[ACCOUNT_STREAM][COLUMN_FREE] = l->stream_bytes;
	/* Weights and workspace are in use from the first to the last step. */
	ledger_move(s, ACCOUNT_WEIGHTS, COLUMN_FREE, COLUMN_RUNNING, l->weights_bytes);
	ledger_move(s, ACCOUNT_WORKSPACE, COLUMN_FREE, COLUMN_RUNNING, l->workspace_bytes);
}

uint64_t ledger_promised(const struct sched *s)
{
	uint64_t bytes = 0;
	for (uint32_t g = 0; g < s->limits.group_count; g++) {
		uint64_t units = s->page_free[PLACE_DEVICE][g].count;
		uint64_t promised = window_of(s, g) ? window_promised(s, g) : s->promised_units;
		if (units > promised)
			units = promised;
		bytes += units * s->limits.group[g].page_bytes;
	}
	return bytes;
}

void ledger_settle(struct sched *s)
{
	CHECK(s->ledger[ACCOUNT_DEVICE][COLUMN_PROMISED] == 0);
	ledger_move(s, ACCOUNT_DEVICE, COLUMN_FREE, COLUMN_PROMISED, ledger_promised(s));
}

void ledger_unsettle(struct sched *s)
{
	ledger_move(s, ACCOUNT_DEVICE, COLUMN_PROMISED, COLUMN_FREE,
		    s->ledger[ACCOUNT_DEVICE][COLUMN_PROMISED]);
}
