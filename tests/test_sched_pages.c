/*
 * The rules of the scheduler about histories, shared pages, ends and records: fork, rollback, close,
 * cancel, supersede, integrity, park, durability, tags, the ledger, groups.
 */
#include "tests/tap.h"
#include "tests/sched_rig.h"

static const struct rig_turn plain = {0, 20, 4, 1000, 0, 0};

static uint64_t device(const struct rig *r, enum column column)
{
	return sched_ledger(r->s, ACCOUNT_DEVICE, column) / 1024;
}

static void a_fork_shares_full_pages(void)
{
	struct rig r;
	struct sched_limits l = rig_limits(16);
	rig_open(&r, &l);
	uint32_t a = rig_session(&r);
	(void)rig_whole(&r, a, 0, 40, 1); /* 2 full pages and 8 tokens */
	uint32_t b = rig_fork(&r, a);
	REQUIRE(b != SCHED_NONE);
	EXPECT_EQ(rig_pages(&r, EFFECT_SHARE), 2);
	EXPECT_EQ(rig_view(&r, b).history, 41);
	EXPECT_EQ(rig_view(&r, b).resident, 32);
	EXPECT_EQ(device(&r, COLUMN_SHARED), 2);
	EXPECT_EQ(device(&r, COLUMN_RETAINED), 1);
	EXPECT_EQ(sched_principal_bytes(r.s, 0), 3 * 1024); /* shared pages count once */
	struct effect end = rig_whole(&r, b, 41, 5, 1);
	EXPECT_EQ(end.as.end.resident, 32);
	EXPECT_EQ(end.as.end.recomputed, 8); /* the parent computed them once */
	EXPECT_EQ(end.as.end.fresh, 6);
	/* The parent goes; the child keeps what they shared, now alone. */
	rig_simple(&r, EVENT_CLOSE, a);
	EXPECT_EQ(rig_pages(&r, EFFECT_FREE), 1);
	EXPECT_EQ(device(&r, COLUMN_SHARED), 0);
	EXPECT_EQ(device(&r, COLUMN_RETAINED), 3);
	rig_simple(&r, EVENT_CLOSE, b);
	EXPECT_EQ(rig_pages(&r, EFFECT_FREE), 3);
	EXPECT_EQ(device(&r, COLUMN_FREE), 16);
	rig_close(&r);
}

static void a_fork_of_a_running_session_is_refused(void)
{
	struct rig r;
	struct sched_limits l = rig_limits(16);
	rig_open(&r, &l);
	uint32_t a = rig_session(&r);
	(void)rig_turn(&r, a, plain);
	EXPECT_EQ(rig_fork(&r, a), SCHED_NONE);
	REQUIRE(rig_effect(&r, EFFECT_REFUSED, 0));
	EXPECT_EQ(rig_effect(&r, EFFECT_REFUSED, 0)->as.residency.err, ERR_SESSION_BUSY);
	EXPECT_EQ(rig_effect(&r, EFFECT_REFUSED, 0)->session_key, r.next_key - 1);
	rig_rollback(&r, a, 0);
	EXPECT_EQ(rig_effect(&r, EFFECT_REFUSED, 0)->as.residency.err, ERR_SESSION_BUSY);
	rig_park(&r, a, PLACE_TOKENS);
	EXPECT_EQ(rig_effect(&r, EFFECT_REFUSED, 0)->as.residency.err, ERR_SESSION_BUSY);
	rig_close(&r);
}

static void a_fork_of_a_waiting_session_is_refused(void)
{
	struct rig r;
	struct sched_limits l = rig_limits(4);
	rig_open(&r, &l);
	uint32_t a = rig_session(&r), b = rig_session(&r);
	struct rig_turn all = {0, 40, 20, 1000, 0, 0};
	(void)rig_turn(&r, a, all);
	(void)rig_turn(&r, b, all);
	EXPECT_EQ(rig_view(&r, b).state, SESSION_WAITING);
	EXPECT_EQ(rig_fork(&r, b), SCHED_NONE); /* its history is about to change */
	rig_close(&r);
}

/* What one session alone owns frees a page at once; what two share frees none before both give. */
static void shared_pages_give_way_last(void)
{
	struct rig r;
	struct sched_limits l = rig_limits(8);
	rig_open(&r, &l);
	uint32_t a = rig_session(&r);
	(void)rig_whole(&r, a, 0, 48, 1); /* 3 full pages */
	uint32_t b = rig_fork(&r, a), c = rig_session(&r), d = rig_session(&r);
	(void)rig_whole(&r, c, 0, 64, 1); /* 4 pages; 1 is free */
	struct rig_turn turn = {0, 48, 1, 10, 0, 0}; /* needs 2 more */
	(void)rig_turn(&r, d, turn);
	EXPECT_EQ(rig_count(&r, EFFECT_LOST), 1); /* one for the first chunk, one for the second */
	(void)rig_run(&r, rig_batch(&r));
	EXPECT_EQ(rig_view(&r, a).resident, 48); /* older, but shared */
	EXPECT_EQ(rig_view(&r, b).resident, 48);
	EXPECT_EQ(rig_view(&r, c).resident, 32);
	/* Now all but d's own must go, the shared ones with their last owner. */
	EXPECT_EQ(rig_whole(&r, d, 49, 70, 9).as.end.end, END_LIMIT);
	EXPECT_EQ(rig_view(&r, c).resident, 0);
	EXPECT_EQ(rig_view(&r, a).resident, 0);
	EXPECT_EQ(rig_view(&r, b).resident, 0);
	rig_close(&r);
}

static void sessions_are_bounded(void)
{
	struct rig r;
	struct sched_limits l = rig_limits(4);
	l.session_count = 2;
	rig_open(&r, &l);
	uint32_t a = rig_session(&r);
	EXPECT(rig_session(&r) != SCHED_NONE);
	EXPECT_EQ(rig_session(&r), SCHED_NONE);
	EXPECT_EQ(rig_effect(&r, EFFECT_REFUSED, 0)->as.residency.err, ERR_LIMIT);
	rig_simple(&r, EVENT_CLOSE, a);
	EXPECT_EQ(rig_count(&r, EFFECT_CLOSED), 1);
	EXPECT(rig_session(&r) != SCHED_NONE);
	rig_close(&r);
}

static void rollback_cuts_exactly(void)
{
	struct rig r;
	struct sched_limits l = rig_limits(16);
	rig_open(&r, &l);
	uint32_t a = rig_session(&r);
	(void)rig_whole(&r, a, 0, 60, 1); /* 60 resident, 4 pages */
	rig_rollback(&r, a, 40);
	EXPECT_EQ(rig_pages(&r, EFFECT_FREE), 1);
	EXPECT_EQ(rig_view(&r, a).resident, 40); /* its only owner keeps the page at the cut */
	rig_rollback(&r, a, 41);
	EXPECT_EQ(rig_effect(&r, EFFECT_REFUSED, 0)->as.residency.err, ERR_OUT_OF_RANGE);
	struct effect end = rig_whole(&r, a, 40, 24, 1);
	EXPECT_EQ(end.as.end.resident, 40);
	EXPECT_EQ(end.as.end.fresh, 24); /* other tokens than those that were cut */
	/* Shared now: the page at the cut may not be written, so it is given up. */
	uint32_t b = rig_fork(&r, a);
	rig_rollback(&r, b, 40);
	EXPECT_EQ(rig_view(&r, b).history, 40);
	EXPECT_EQ(rig_view(&r, b).resident, 32);
	EXPECT_EQ(rig_view(&r, a).resident, 64);
	end = rig_whole(&r, b, 40, 1, 1);
	EXPECT_EQ(end.as.end.resident, 32);
	EXPECT_EQ(end.as.end.recomputed, 8);
	EXPECT_EQ(end.as.end.fresh, 1);
	/* A full page of one owner that becomes partial is written on by that owner. */
	rig_rollback(&r, a, 60);
	EXPECT_EQ(rig_view(&r, a).resident, 60);
	rig_rollback(&r, a, 0);
	EXPECT_EQ(rig_view(&r, a).device_bytes, 0);
	rig_close(&r);
}

static void a_turn_may_add_nothing(void)
{
	struct rig r;
	struct sched_limits l = rig_limits(16);
	rig_open(&r, &l);
	uint32_t a = rig_session(&r);
	(void)rig_whole(&r, a, 0, 40, 1);
	struct effect end = rig_whole(&r, a, 41, 0, 1); /* the sampled token is left to compute */
	EXPECT_EQ(end.as.end.resident, 40);
	EXPECT_EQ(end.as.end.fresh, 1);
	end = rig_whole(&r, a, 32, 0, 1); /* all is resident: the last token is computed again */
	EXPECT_EQ(end.as.end.prompt_tokens, 32);
	EXPECT_EQ(end.as.end.resident, 31);
	EXPECT_EQ(end.as.end.recomputed, 1);
	uint32_t b = rig_fork(&r, a);
	end = rig_whole(&r, b, 32, 0, 1); /* and with the page shared, its whole page is */
	EXPECT_EQ(end.as.end.resident, 16);
	EXPECT_EQ(end.as.end.recomputed, 16);
	rig_close(&r);
}

static void every_way_to_end(void)
{
	static const enum end ends[] = {END_STOP, END_TOOL, END_FAULT};
	struct rig r;
	struct sched_limits l = rig_limits(16);
	rig_open(&r, &l);
	for (int i = 0; i < 3; i++) {
		uint32_t x = rig_session(&r);
		(void)rig_turn(&r, x, plain);
		struct rig_batch b = rig_batch(&r);
		b.results[0].end = ends[i];
		b = rig_done(&r, &b);
		REQUIRE(rig_effect(&r, EFFECT_END, 0));
		EXPECT_EQ(rig_count(&r, EFFECT_END), 1);
		EXPECT_EQ(rig_effect(&r, EFFECT_END, 0)->as.end.end, ends[i]);
		EXPECT_EQ(rig_effect(&r, EFFECT_END, 0)->as.end.err, ends[i] == END_FAULT ? ERR_INTERNAL : 0);
		EXPECT_EQ(rig_view(&r, x).pause, ends[i] == END_TOOL ? PAUSE_TOOL : PAUSE_HUMAN);
		EXPECT_EQ(rig_view(&r, x).resident, 20);
		EXPECT_EQ(rig_view(&r, x).history, 21);
	}
	EXPECT_EQ(sched_ledger(r.s, ACCOUNT_STREAM, COLUMN_RUNNING), 0);
	rig_close(&r);
}

/* Cancel and close at every point of a turn: each step of a run once. */
static void cancel_at_every_point(void)
{
	for (int close = 0; close < 2; close++) {
		for (int point = 0; point < 12; point++) {
			struct rig r;
			struct sched_limits l = rig_limits(8);
			rig_open(&r, &l);
			uint32_t x = rig_session(&r);
			struct rig_turn longer = {0, 70, 6, 1000, 0, 0};
			uint32_t turn = rig_turn(&r, x, longer), ends = 0;
			struct rig_batch b = rig_batch(&r);
			for (int i = 0; i < point && b.count; i++) {
				b = rig_done(&r, &b);
				ends += rig_count(&r, EFFECT_END);
			}
			if (ends == 0) {
				if (close)
					rig_simple(&r, EVENT_CLOSE, x);
				else
					rig_cancel(&r, turn, END_CANCEL);
				EXPECT_EQ(rig_count(&r, EFFECT_END), 0); /* the batch has it */
				b = rig_done(&r, &b);
				REQUIRE(rig_effect(&r, EFFECT_END, 0));
				EXPECT_EQ(rig_effect(&r, EFFECT_END, 0)->as.end.end, close ? END_CLOSED : END_CANCEL);
				EXPECT_EQ(rig_count(&r, EFFECT_CLOSED), (uint32_t)close);
				ends += rig_count(&r, EFFECT_END);
			}
			EXPECT_EQ(ends, 1);
			EXPECT_EQ(device(&r, COLUMN_RUNNING) + device(&r, COLUMN_PROMISED), 0);
			if (rig_view(&r, x).state != SESSION_FREE)
				rig_simple(&r, EVENT_CLOSE, x);
			EXPECT_EQ(device(&r, COLUMN_FREE), 8);
			rig_close(&r);
		}
	}
}

/* Two sessions and four pages: the first runs with all of them, and its batch is out. */
static struct rig_batch one_has_all(struct rig *r, uint32_t *other, struct rig_turn first)
{
	struct sched_limits l = rig_limits(4);
	rig_open(r, &l);
	uint32_t a = rig_session(r);
	*other = rig_session(r);
	(void)rig_turn(r, a, first);
	return rig_batch(r);
}

static void a_waiting_turn_is_cancelled_at_once(void)
{
	struct rig r;
	uint32_t b;
	struct rig_turn all = {0, 40, 20, 1000, 0, 0};
	struct rig_batch batch = one_has_all(&r, &b, all);
	uint32_t turn = rig_turn(&r, b, all);
	EXPECT_EQ(rig_view(&r, b).state, SESSION_WAITING);
	rig_cancel(&r, turn, END_CANCEL);
	REQUIRE(rig_effect(&r, EFFECT_END, 0));
	EXPECT_EQ(rig_effect(&r, EFFECT_END, 0)->as.end.prompt_tokens, 0); /* nothing was used */
	EXPECT_EQ(rig_effect(&r, EFFECT_END, 0)->as.end.history, 40);      /* but it is known */
	turn = rig_turn(&r, b, all);
	struct event e = rig_event(&r, EVENT_DRAIN);
	rig_send(&r, &e);
	REQUIRE(rig_effect(&r, EFFECT_END, 0));
	EXPECT_EQ(rig_effect(&r, EFFECT_END, 0)->as.end.end, END_DRAIN);
	EXPECT_EQ(rig_turn(&r, b, all), SCHED_NONE);
	EXPECT_EQ(rig_effect(&r, EFFECT_END, 0)->as.end.err, ERR_DRAINING);
	EXPECT_EQ(rig_session(&r), SCHED_NONE);
	EXPECT_EQ(rig_run(&r, batch).as.end.end, END_LIMIT); /* who runs may finish */
	rig_close(&r);
}

static void one_turn_supersedes_another(void)
{
	struct rig r;
	struct sched_limits l = rig_limits(8);
	rig_open(&r, &l);
	uint32_t a = rig_session(&r);
	(void)rig_turn(&r, a, plain);
	struct rig_batch b = rig_batch(&r);
	EXPECT_EQ(rig_turn(&r, a, plain), SCHED_NONE);
	EXPECT_EQ(rig_effect(&r, EFFECT_END, 0)->as.end.err, ERR_SESSION_BUSY);
	struct rig_turn other = {20, 8, 2, 1000, 1, 0};
	uint32_t second = rig_turn(&r, a, other);
	REQUIRE(second != SCHED_NONE);
	REQUIRE(rig_effect(&r, EFFECT_WAIT, 0));
	EXPECT_EQ(rig_effect(&r, EFFECT_WAIT, 0)->as.wait.why, WAIT_BATCH);
	/* A third in the same place: the second never ran. */
	uint32_t third = rig_turn(&r, a, other);
	REQUIRE(third != SCHED_NONE);
	EXPECT_EQ(rig_effect(&r, EFFECT_END, 0)->as.end.end, END_SUPERSEDED);
	EXPECT_EQ(rig_effect(&r, EFFECT_END, 0)->turn, second);
	b = rig_done(&r, &b);
	REQUIRE(rig_effect(&r, EFFECT_END, 0));
	EXPECT_EQ(rig_effect(&r, EFFECT_END, 0)->as.end.end, END_SUPERSEDED);
	EXPECT_EQ(rig_effect(&r, EFFECT_END, 0)->as.end.sampled, 1);
	EXPECT_EQ(rig_count(&r, EFFECT_ADMITTED), 1);
	struct effect end = rig_run(&r, b);
	EXPECT_EQ(end.as.end.prompt_tokens, 28); /* the token sampled meanwhile is cut */
	EXPECT_EQ(end.as.end.resident, 20);
	rig_close(&r);
}

/* The place of the one that goes is counted as free. */
static void a_full_queue_can_be_superseded(void)
{
	struct rig r;
	struct sched_limits l = rig_limits(4);
	l.queue_turns = 1;
	l.turn_count = 2;
	l.batch_turns = 1;
	l.stream_bytes = 200;
	rig_open(&r, &l);
	uint32_t a = rig_session(&r), b = rig_session(&r);
	struct rig_turn all = {0, 40, 20, 1000, 0, 0}, again = {40, 2, 3, 1000, 1, 0};
	(void)rig_turn(&r, a, all);
	uint32_t old = rig_turn(&r, b, all);
	EXPECT(rig_turn(&r, b, again) != SCHED_NONE);
	REQUIRE(rig_effect(&r, EFFECT_END, 0));
	EXPECT_EQ(rig_effect(&r, EFFECT_END, 0)->turn, old);
	EXPECT_EQ(rig_effect(&r, EFFECT_END, 0)->as.end.end, END_SUPERSEDED);
	EXPECT_EQ(rig_view(&r, b).history, 42);
	rig_close(&r);
}

/* Tables of several chunks: grown, read from the middle, shared, cut, grown again. */
static void long_tables(void)
{
	struct rig r;
	struct sched_limits l = rig_limits(400);
	l.context_tokens = 4096;
	l.batch_rows = l.chunk_tokens = 4096;
	rig_open(&r, &l);
	uint32_t a = rig_session(&r), b = rig_session(&r);
	struct page_ref refs[256];
	(void)rig_whole(&r, a, 0, 2400, 1); /* 150 pages, the first ones */
	(void)rig_whole(&r, b, 0, 16, 1);
	for (uint32_t first = 0; first < 150; first += 7) {
		EXPECT_EQ(sched_page_table(r.s, a, 0, first, 256, refs), 150 - first);
		for (uint32_t i = 0; first + i < 150; i++)
			EXPECT_EQ(refs[i].page, first + i);
	}
	rig_rollback(&r, a, 1000); /* 63 pages */
	(void)rig_whole(&r, a, 1000, 1400, 1);
	EXPECT_EQ(sched_page_table(r.s, a, 0, 60, 256, refs), 90);
	EXPECT_EQ(refs[2].page, 62);
	EXPECT_EQ(refs[3].page, 151);
	uint32_t c = rig_fork(&r, a);
	EXPECT_EQ(sched_page_table(r.s, c, 0, 100, 256, refs), 50);
	EXPECT_EQ(refs[0].page, 151 + 37);
	rig_rollback(&r, a, 10);
	EXPECT_EQ(rig_view(&r, c).resident, 2400);
	rig_simple(&r, EVENT_CLOSE, a);
	rig_simple(&r, EVENT_CLOSE, c);
	rig_simple(&r, EVENT_CLOSE, b);
	EXPECT_EQ(device(&r, COLUMN_FREE), 400);
	rig_close(&r);
}

static void deadlines_end_turns(void)
{
	struct rig r;
	uint32_t b;
	struct rig_turn all = {0, 40, 20, 1000, 0, 900}, waits = {0, 40, 20, 1000, 0, 800};
	struct rig_batch batch = one_has_all(&r, &b, all);
	(void)rig_turn(&r, b, waits);
	EXPECT_EQ(sched_deadline_us(r.s), 800);
	rig_time(&r, 850);
	REQUIRE(rig_effect(&r, EFFECT_END, 0));
	EXPECT_EQ(rig_effect(&r, EFFECT_END, 0)->as.end.err, ERR_DEADLINE);
	EXPECT_EQ(rig_effect(&r, EFFECT_END, 0)->as.end.queue_us, 850);
	EXPECT_EQ(sched_deadline_us(r.s), 900);
	rig_time(&r, 900);
	EXPECT_EQ(rig_count(&r, EFFECT_END), 0);
	EXPECT_EQ(sched_deadline_us(r.s), UINT64_MAX);
	batch = rig_done(&r, &batch);
	EXPECT_EQ(rig_effect(&r, EFFECT_END, 0)->as.end.end, END_DEADLINE);
	EXPECT_EQ(rig_effect(&r, EFFECT_END, 0)->as.end.err, ERR_DEADLINE);
	rig_close(&r);
}

static void a_bad_page_takes_all_its_owners(void)
{
	struct rig r;
	struct sched_limits l = rig_limits(16);
	rig_open(&r, &l);
	uint32_t a = rig_session(&r);
	(void)rig_whole(&r, a, 0, 64, 1);
	uint32_t b = rig_fork(&r, a), c = rig_fork(&r, a);
	struct page_ref refs[8];
	EXPECT_EQ(sched_page_table(r.s, b, 0, 1, 8, refs), 3);
	struct rig_turn turn = {65, 5, 1, 10, 0, 0}, still = {65, 5, 1, 0, 0, 0};
	(void)rig_turn(&r, c, still); /* stands still soon: no credit */
	struct rig_batch batch = rig_batch(&r);
	batch = rig_done(&r, &batch);
	EXPECT_EQ(batch.count, 0);
	(void)rig_turn(&r, b, turn);
	batch = rig_batch(&r);
	REQUIRE(batch.count == 1);
	batch.results[0].end = END_INTEGRITY;
	batch.results[0].computed = 0;
	batch.results[0].sampled = 0;
	batch.results[0].page = refs[0].page; /* the second page of all three */
	(void)rig_done(&r, &batch);
	EXPECT_EQ(rig_count(&r, EFFECT_END), 2); /* also the one that stood still */
	EXPECT_EQ(rig_effect(&r, EFFECT_END, 0)->as.end.err, ERR_INTEGRITY);
	EXPECT_EQ(rig_effect(&r, EFFECT_END, 1)->as.end.end, END_INTEGRITY);
	EXPECT_EQ(rig_pages(&r, EFFECT_QUARANTINE), 1);
	EXPECT_EQ(rig_effect(&r, EFFECT_QUARANTINE, 0)->as.run.page_first, refs[0].page);
	EXPECT_EQ(rig_effect(&r, EFFECT_QUARANTINE, 0)->as.run.tag_first, refs[0].tag);
	REQUIRE(rig_effect(&r, EFFECT_LOST, 0));
	EXPECT_EQ(rig_effect(&r, EFFECT_LOST, 0)->session, a);
	EXPECT_EQ(rig_effect(&r, EFFECT_LOST, 0)->as.lost.why, LOST_QUARANTINE);
	EXPECT_EQ(rig_effect(&r, EFFECT_LOST, 0)->as.lost.tokens_after, 16);
	EXPECT_EQ(rig_view(&r, b).resident, 16);
	struct page_view page;
	EXPECT(sched_page(r.s, 0, refs[0].page, &page) == 0 && page.state == PAGE_QUARANTINED);
	EXPECT_EQ(device(&r, COLUMN_DOOMED), 1);
	EXPECT_EQ(rig_whole(&r, b, 65, 5, 1).as.end.end, END_LIMIT);
	rig_close(&r);
}

static void park_gives_up_the_device(void)
{
	struct rig r;
	struct sched_limits l = rig_limits(8);
	rig_open(&r, &l);
	uint32_t a = rig_session(&r);
	(void)rig_whole(&r, a, 0, 40, 1);
	rig_park(&r, a, PLACE_HOST);
	REQUIRE(rig_effect(&r, EFFECT_REFUSED, 0));
	EXPECT_EQ(rig_effect(&r, EFFECT_REFUSED, 0)->as.residency.err, ERR_UNSUPPORTED);
	rig_park(&r, a, PLACE_TOKENS);
	EXPECT_EQ(rig_pages(&r, EFFECT_FREE), 3);
	EXPECT_EQ(rig_effect(&r, EFFECT_FREE, 0)->as.run.reason, LOST_PARK);
	EXPECT_EQ(rig_effect(&r, EFFECT_LOST, 0)->as.lost.tokens_before, 40);
	EXPECT_EQ(rig_view(&r, a).resident, 0);
	struct effect end = rig_whole(&r, a, 41, 1, 1);
	EXPECT_EQ(end.as.end.recomputed, 40);
	EXPECT_EQ(end.as.end.fresh, 2);
	rig_close(&r);
}

static void freed_pages_wait_for_their_record(void)
{
	struct rig r;
	struct sched_limits l = rig_limits(4);
	l.hold_until_durable = 1;
	rig_open(&r, &l);
	uint32_t a = rig_session(&r), b = rig_session(&r);
	(void)rig_whole(&r, a, 0, 60, 1); /* all 4 pages */
	struct rig_turn turn = {0, 20, 1, 10, 0, 0};
	(void)rig_turn(&r, b, turn);
	uint64_t step = r.out.step;
	EXPECT_EQ(rig_count(&r, EFFECT_ADMITTED), 1);
	EXPECT_EQ(rig_pages(&r, EFFECT_FREE), 2);
	EXPECT_EQ(rig_count(&r, EFFECT_BATCH), 0);
	EXPECT_EQ(device(&r, COLUMN_DOOMED), 2);
	rig_durable(&r, step - 1);
	EXPECT_EQ(rig_count(&r, EFFECT_BATCH), 0);
	rig_durable(&r, step);
	EXPECT_EQ(rig_count(&r, EFFECT_BATCH), 1);
	EXPECT_EQ(rig_pages(&r, EFFECT_ASSIGN), 2);
	EXPECT_EQ(rig_run(&r, rig_batch(&r)).as.end.end, END_LIMIT);
	rig_close(&r);
}

/* With records to wait for, the next page is given up before the row that needs it. */
static void pages_are_given_up_ahead(void)
{
	struct rig r;
	struct sched_limits l = rig_limits(4);
	l.hold_until_durable = 1;
	rig_open(&r, &l);
	uint32_t a = rig_session(&r), b = rig_session(&r);
	(void)rig_whole(&r, a, 0, 60, 1);
	struct rig_turn turn = {0, 10, 40, 100, 0, 0};
	(void)rig_turn(&r, b, turn);
	int stalls = 0;
	struct rig_batch batch = rig_batch(&r);
	while (rig_view(&r, b).state == SESSION_RUNNING) {
		/* Each batch's records are durable while it is computed. */
		rig_durable(&r, r.out.step);
		if (batch.count == 0) {
			stalls++;
			batch = rig_batch(&r);
			continue;
		}
		batch = rig_done(&r, &batch);
	}
	EXPECT_EQ(stalls, 1); /* the first page only */
	EXPECT_EQ(rig_view(&r, b).history, 50);
	rig_close(&r);
}

static void tags_are_never_used_again(void)
{
	struct rig r;
	struct sched_limits l = rig_limits(4);
	rig_open(&r, &l);
	uint64_t next = 1;
	for (int i = 0; i < 20; i++) {
		uint32_t x = rig_session(&r);
		(void)rig_turn(&r, x, plain);
		for (uint32_t k = 0; rig_effect(&r, EFFECT_ASSIGN, k); k++) {
			EXPECT_EQ(rig_effect(&r, EFFECT_ASSIGN, k)->as.run.tag_first, next);
			next += rig_effect(&r, EFFECT_ASSIGN, k)->as.run.page_count;
		}
		(void)rig_run(&r, rig_batch(&r));
		rig_simple(&r, EVENT_CLOSE, x);
	}
	EXPECT_EQ(next, 41);
	rig_close(&r);
}

static void groups_move_in_step(void)
{
	struct rig r;
	struct sched_limits l = rig_limits(8);
	l.group_count = 2;
	l.group[1].page_bytes = 10;
	l.group[1].page_count[PLACE_DEVICE] = 3;
	rig_open(&r, &l);
	uint32_t a = rig_session(&r);
	EXPECT_EQ(rig_whole(&r, a, 0, 48, 2).as.end.err, ERR_NO_PAGES); /* 3 units at most */
	EXPECT_EQ(rig_whole(&r, a, 0, 40, 1).as.end.end, END_LIMIT);
	struct page_ref refs[8];
	EXPECT_EQ(sched_page_table(r.s, a, 0, 0, 8, refs), 3);
	EXPECT_EQ(sched_page_table(r.s, a, 1, 2, 8, refs), 1);
	EXPECT_EQ(refs[0].page, 2);
	EXPECT_EQ(rig_view(&r, a).device_bytes, 3 * 1034);
	rig_close(&r);
}

static void small_state(void)
{
	struct sched_limits l = rig_limits(1000), more = l;
	more.group[0].page_count[PLACE_DEVICE] = 2000;
	EXPECT(sched_bytes(&more) - sched_bytes(&l) <= 1000 * 120); /* 48, 9 table entries, a key */
	more = l;
	more.session_count += 100;
	EXPECT(sched_bytes(&more) - sched_bytes(&l) <= 100 * 512);
}

int main(void)
{
	TAP_RUN(a_fork_shares_full_pages, "a fork shares the full pages and computes the tail");
	TAP_RUN(a_fork_of_a_running_session_is_refused, "fork, rollback and park ask for a session at rest");
	TAP_RUN(a_fork_of_a_waiting_session_is_refused, "a session with a waiting turn is not at rest either");
	TAP_RUN(shared_pages_give_way_last, "shared pages give way last, with their last owner");
	TAP_RUN(sessions_are_bounded, "sessions are bounded, and an index is used again after CLOSED");
	TAP_RUN(rollback_cuts_exactly, "rollback cuts exactly, and never leaves a shared page half full");
	TAP_RUN(a_turn_may_add_nothing, "a turn that appends nothing computes its last token");
	TAP_RUN(every_way_to_end, "what the runtime finds ends the turn, with the right pause");
	TAP_RUN(cancel_at_every_point, "cancel and close at every point: one END, and the pages come back");
	TAP_RUN(a_waiting_turn_is_cancelled_at_once, "a waiting turn is cancelled at once, and drained");
	TAP_RUN(one_turn_supersedes_another, "one turn supersedes another, in flight or not");
	TAP_RUN(a_full_queue_can_be_superseded, "a full queue can be superseded in");
	TAP_RUN(long_tables, "page tables of several chunks grow, shrink and are shared");
	TAP_RUN(deadlines_end_turns, "deadlines end turns, waiting and running");
	TAP_RUN(a_bad_page_takes_all_its_owners, "a bad page is quarantined and cuts all its owners");
	TAP_RUN(park_gives_up_the_device, "park to the tokens gives up the device; lower places are refused");
	TAP_RUN(freed_pages_wait_for_their_record, "freed pages wait until their record is durable");
	TAP_RUN(pages_are_given_up_ahead, "pages are given up one batch ahead of the row that needs them");
	TAP_RUN(tags_are_never_used_again, "tags count up and are never used again");
	TAP_RUN(groups_move_in_step, "page groups move in step, the smallest one decides");
	TAP_RUN(small_state, "the state is small");
	return tap_done();
}
