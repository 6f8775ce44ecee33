/*
 * The rules of the scheduler, one by one, on small slabs: pages of 16 tokens and 1,024 bytes. Each
 * step is audited. The simulator (test_sim.c) tries the same rules at random.
 */
#include "tests/tap.h"
#include "tests/sched_rig.h"

static const struct rig_turn plain = {0, 20, 4, 1000, 0, 0};

static void limits_are_checked(void)
{
	const char *field = NULL;
	struct sched_limits l = rig_limits(8);
	EXPECT(sched_limits_check(&l, &field) == 0);
#define BAD(name, value) \
	do { \
		l = rig_limits(8); \
		l.name = (value); \
		EXPECT(sched_limits_check(&l, &field) == -ERR_OUT_OF_RANGE); \
		EXPECT(field && strstr(#name, field)); \
	} while (0)
	BAD(session_count, 0);
	BAD(turn_count, 0);
	BAD(principal_count, 0);
	BAD(group_count, 0);
	BAD(group_count, 5);
	BAD(page_tokens, 0);
	BAD(page_tokens, 24);
	BAD(page_tokens, 48);
	BAD(page_tokens, 512);
	BAD(context_tokens, 1);
	BAD(batch_rows, 3);
	BAD(batch_turns, 17);
	BAD(chunk_tokens, 0);
	BAD(queue_turns, 0);
	BAD(hold_until_durable, 2);
	BAD(stream_turn_bytes, 1601);
	BAD(group[0].page_bytes, 0);
	BAD(group[0].page_count[0], 0);
#undef BAD
}

static void a_turn_runs_to_its_limit(void)
{
	struct rig r;
	struct sched_limits l = rig_limits(8);
	rig_open(&r, &l);
	uint32_t x = rig_session(&r);
	uint32_t turn = rig_turn(&r, x, plain);
	EXPECT(rig_count(&r, EFFECT_ADMITTED) == 1);
	struct rig_batch b = rig_batch(&r);
	EXPECT_EQ(b.count, 1);
	EXPECT_EQ(b.entries[0].row_count, 20);
	EXPECT_EQ(b.entries[0].sample, 1);
	EXPECT_EQ(b.entries[0].phase, PHASE_PREFILL);
	const struct effect *assign = rig_effect(&r, EFFECT_ASSIGN, 0);
	REQUIRE(assign);
	EXPECT_EQ(assign->as.run.page_count, 2); /* one run: pages, tags and positions count on */
	EXPECT_EQ(assign->as.run.tag_first, 1);
	EXPECT_EQ(assign->turn, turn);
	b = rig_done(&r, &b);
	EXPECT_EQ(b.entries[0].phase, PHASE_DECODE);
	EXPECT_EQ(b.entries[0].position_first, 20);
	EXPECT_EQ(b.entries[0].row_count, 1);
	r.now_us = 500;
	struct effect end = rig_run(&r, b);
	EXPECT_EQ(end.as.end.end, END_LIMIT);
	EXPECT_EQ(end.as.end.sampled, 4);
	EXPECT_EQ(end.as.end.history, 24);
	EXPECT_EQ(end.as.end.prompt_tokens, 20);
	EXPECT_EQ(end.as.end.fresh, 20);
	EXPECT_EQ(end.as.end.context_left, 256 - 24);
	EXPECT_EQ(end.as.end.decode_us, 500);
	EXPECT_EQ(rig_view(&r, x).resident, 23); /* the last token is sampled, not computed */
	EXPECT_EQ(rig_view(&r, x).state, SESSION_IDLE);
	/* The next turn computes that token and what is new. */
	end = rig_whole(&r, x, 24, 10, 1);
	EXPECT_EQ(end.as.end.prompt_tokens, 34);
	EXPECT_EQ(end.as.end.resident, 23);
	EXPECT_EQ(end.as.end.fresh, 11);
	EXPECT_EQ(end.as.end.recomputed, 0);
	rig_close(&r);
}

/* Tokens that are known behind a sampled one come as rows of the next batch, and count as sampled. */
static void known_tokens_follow(void)
{
	struct rig r;
	struct sched_limits l = rig_limits(8);
	rig_open(&r, &l);
	const uint32_t x = rig_session(&r);
	const struct rig_turn ask = {0, 20, 12, 9, 0, 0};
	const uint32_t turn = rig_turn(&r, x, ask);
	struct rig_batch b = rig_batch(&r);
	b.results[0].sampled = 5;
	b = rig_done(&r, &b);
	EXPECT_EQ(rig_view(&r, x).history, 25);
	REQUIRE(b.count == 1);
	EXPECT_EQ(b.entries[0].position_first, 20);
	EXPECT_EQ(b.entries[0].row_count, 5);
	EXPECT_EQ(b.entries[0].sample, 1);
	EXPECT_EQ(b.entries[0].phase, PHASE_PREFILL);
	/* All its credit: the last one waits for more, those before it do not. */
	b.results[0].sampled = 4;
	b = rig_done(&r, &b);
	REQUIRE(b.count == 1);
	EXPECT_EQ(b.entries[0].row_count, 3);
	EXPECT_EQ(b.entries[0].sample, 0);
	b = rig_done(&r, &b);
	EXPECT_EQ(b.count, 0);
	EXPECT(rig_effect(&r, EFFECT_PAUSED, 0) != NULL);
	rig_credit(&r, turn, 100);
	b = rig_batch(&r);
	REQUIRE(b.count == 1);
	EXPECT_EQ(b.entries[0].row_count, 1);
	EXPECT_EQ(b.entries[0].phase, PHASE_DECODE);
	b.results[0].sampled = 3;
	(void)rig_done(&r, &b);
	const struct effect *end = rig_effect(&r, EFFECT_END, 0);
	REQUIRE(end != NULL);
	EXPECT_EQ(end->as.end.end, END_LIMIT);
	EXPECT_EQ(end->as.end.sampled, 12);
	EXPECT_EQ(end->as.end.history, 32);
	EXPECT_EQ(rig_view(&r, x).resident, 29);
	const struct effect next = rig_whole(&r, x, 32, 5, 1);
	EXPECT_EQ(next.as.end.resident, 29);
	EXPECT_EQ(next.as.end.fresh, 8);
	rig_close(&r);
}

static void prefill_is_cut_into_chunks(void)
{
	struct rig r;
	struct sched_limits l = rig_limits(16);
	l.batch_rows = 40;
	rig_open(&r, &l);
	uint32_t a = rig_session(&r), c = rig_session(&r);
	struct rig_turn longer = {0, 100, 9, 1000, 0, 0};
	(void)rig_turn(&r, a, longer);
	struct rig_batch b = rig_batch(&r);
	EXPECT_EQ(b.entries[0].row_count, 32);
	(void)rig_turn(&r, c, longer);
	EXPECT_EQ(rig_count(&r, EFFECT_BATCH), 0); /* one in flight */
	b = rig_done(&r, &b);
	EXPECT_EQ(b.count, 2);
	EXPECT_EQ(b.entries[0].row_count, 32);
	EXPECT_EQ(b.entries[1].row_count, 8); /* what the batch has left */
	while (b.count && b.entries[0].phase == PHASE_PREFILL)
		b = rig_done(&r, &b);
	/* The decoding turn has its row whatever the other prefills. */
	EXPECT_EQ(b.count, 2);
	EXPECT_EQ(b.entries[0].row_count, 1);
	EXPECT_EQ(b.entries[1].phase, PHASE_PREFILL);
	EXPECT_EQ(b.entries[1].row_count, 32);
	rig_close(&r);
}

static void step_time_bounds_prefill(void)
{
	struct rig r;
	struct sched_limits l = rig_limits(16);
	l.step_us = 20;
	rig_open(&r, &l);
	struct event e = rig_event(&r, EVENT_RATES);
	e.as.rates.prefill_ns_token = 1000;
	e.as.rates.decode_ns_row = 1000;
	rig_send(&r, &e);
	uint32_t x = rig_session(&r);
	struct rig_turn longer = {0, 100, 9, 1000, 0, 0};
	(void)rig_turn(&r, x, longer);
	struct rig_batch b = rig_batch(&r);
	EXPECT_EQ(b.entries[0].row_count, 20);
	/* However little time is left, a page's worth is computed. */
	e.as.rates.prefill_ns_token = 1000000;
	rig_send(&r, &e);
	b = rig_done(&r, &b);
	EXPECT_EQ(b.entries[0].row_count, 16);
	rig_close(&r);
}

static void partial_results_go_on(void)
{
	struct rig r;
	struct sched_limits l = rig_limits(8);
	rig_open(&r, &l);
	uint32_t x = rig_session(&r);
	(void)rig_turn(&r, x, plain);
	struct rig_batch b = rig_batch(&r);
	b.results[0].computed = 7;
	b.results[0].sampled = 0;
	b = rig_done(&r, &b);
	EXPECT_EQ(b.entries[0].position_first, 7);
	EXPECT_EQ(b.entries[0].row_count, 13);
	EXPECT_EQ(rig_count(&r, EFFECT_ASSIGN), 0); /* the pages are there */
	b.results[0].computed = 0;
	b.results[0].sampled = 0;
	b = rig_done(&r, &b);
	EXPECT_EQ(b.entries[0].position_first, 7);
	EXPECT_EQ(rig_run(&r, b).as.end.end, END_LIMIT);
	rig_close(&r);
}

static void a_turn_without_credit_stands_still(void)
{
	struct rig r;
	struct sched_limits l = rig_limits(8);
	rig_open(&r, &l);
	uint32_t x = rig_session(&r);
	struct rig_turn none = {0, 20, 4, 0, 0, 0};
	uint32_t turn = rig_turn(&r, x, none);
	struct rig_batch b = rig_batch(&r);
	EXPECT_EQ(b.entries[0].row_count, 19); /* all but the row that samples */
	EXPECT_EQ(b.entries[0].sample, 0);
	b = rig_done(&r, &b);
	EXPECT_EQ(b.count, 0);
	EXPECT_EQ(rig_count(&r, EFFECT_PAUSED), 1);
	rig_time(&r, 10);
	EXPECT_EQ(rig_count(&r, EFFECT_PAUSED), 0); /* told once */
	EXPECT_EQ(rig_view(&r, x).state, SESSION_RUNNING);
	rig_credit(&r, turn, 1);
	b = rig_batch(&r);
	EXPECT_EQ(b.entries[0].sample, 1);
	b = rig_done(&r, &b);
	EXPECT_EQ(rig_count(&r, EFFECT_PAUSED), 1);
	rig_credit(&r, turn, 1); /* no news */
	EXPECT_EQ(rig_batch(&r).count, 0);
	rig_credit(&r, turn, 9);
	EXPECT_EQ(rig_run(&r, rig_batch(&r)).as.end.sampled, 4);
	rig_close(&r);
}

static void what_can_never_be_is_refused(void)
{
	struct rig r;
	struct sched_limits l = rig_limits(4);
	rig_open(&r, &l);
	uint32_t x = rig_session(&r);
	struct effect end = rig_whole(&r, x, 0, 256, 1);
	EXPECT_EQ(end.as.end.end, END_CONTEXT);
	EXPECT_EQ(end.as.end.err, ERR_CONTEXT_FULL);
	EXPECT_EQ(end.as.end.needed, 257);
	EXPECT_EQ(end.as.end.limit, 256);
	EXPECT_EQ(end.turn, SCHED_NONE);
	end = rig_whole(&r, x, 0, 64, 2); /* row 65 needs a fifth page */
	EXPECT_EQ(end.as.end.end, END_REFUSED);
	EXPECT_EQ(end.as.end.err, ERR_NO_PAGES);
	EXPECT_EQ(end.as.end.needed, 5 * 1024);
	EXPECT_EQ(end.as.end.limit, 4 * 1024);
	EXPECT_EQ(rig_whole(&r, x, 0, 0, 1).as.end.err, ERR_OUT_OF_RANGE);
	EXPECT_EQ(rig_whole(&r, x, 0, 4, 0).as.end.err, ERR_OUT_OF_RANGE);
	EXPECT_EQ(rig_whole(&r, x, 1, 4, 1).as.end.err, ERR_OUT_OF_RANGE);
	EXPECT_EQ(rig_whole(&r, x, 0, 0xffffffffu, 1).as.end.err, ERR_CONTEXT_FULL);
	EXPECT_EQ(rig_view(&r, x).history, 0); /* a refusal changes nothing */
	EXPECT_EQ(rig_whole(&r, x, 0, 64, 1).as.end.end, END_LIMIT);
	rig_close(&r);
}

static void the_context_ends_a_turn(void)
{
	struct rig r;
	struct sched_limits l = rig_limits(16);
	rig_open(&r, &l);
	uint32_t x = rig_session(&r);
	struct effect end = rig_whole(&r, x, 0, 250, 100);
	EXPECT_EQ(end.as.end.end, END_CONTEXT);
	EXPECT_EQ(end.as.end.err, ERR_NONE);
	EXPECT_EQ(end.as.end.sampled, 6);
	EXPECT_EQ(end.as.end.context_left, 0);
	rig_close(&r);
}

static void turns_wait_in_order(void)
{
	struct rig r;
	struct sched_limits l = rig_limits(8);
	l.queue_turns = 2;
	rig_open(&r, &l);
	uint32_t x[5];
	for (int i = 0; i < 5; i++)
		x[i] = rig_session(&r);
	struct rig_turn big = {0, 60, 30, 1000, 0, 0}; /* 6 pages */
	struct rig_turn small = {0, 10, 4, 1000, 0, 0}; /* 1 page */
	uint32_t a = rig_turn(&r, x[0], big);
	struct rig_batch batch = rig_batch(&r);
	uint32_t b = rig_turn(&r, x[1], big);
	const struct effect *wait = rig_effect(&r, EFFECT_WAIT, 0);
	REQUIRE(wait);
	EXPECT_EQ(wait->as.wait.why, WAIT_PAGES);
	EXPECT_EQ(wait->as.wait.place, 1);
	EXPECT_EQ(wait->as.wait.short_bytes, 4 * 1024);
	EXPECT_EQ(wait->as.wait.blocker, x[0]);
	/* It would fit, but nobody passes the first. */
	uint32_t c = rig_turn(&r, x[2], small);
	wait = rig_effect(&r, EFFECT_WAIT, 0);
	REQUIRE(wait);
	EXPECT_EQ(wait->as.wait.place, 2);
	struct turn_view view;
	EXPECT(sched_turn(r.s, c, &view) == 0 && view.place == 2 && !view.running);
	EXPECT_EQ(rig_turn(&r, x[3], small), SCHED_NONE);
	EXPECT_EQ(rig_effect(&r, EFFECT_END, 0)->as.end.err, ERR_OVERLOADED);
	EXPECT_EQ(rig_effect(&r, EFFECT_END, 0)->as.end.needed, 3);
	EXPECT_EQ(rig_effect(&r, EFFECT_END, 0)->as.end.limit, 2);
	(void)a;
	/* The first ends; its session is idle, and gives way for the second. */
	for (; batch.count && !rig_effect(&r, EFFECT_ADMITTED, 0);)
		batch = rig_done(&r, &batch);
	EXPECT_EQ(rig_effect(&r, EFFECT_ADMITTED, 0)->turn, b);
	EXPECT_EQ(rig_count(&r, EFFECT_ADMITTED), 2);
	(void)rig_run(&r, batch);
	EXPECT_EQ(rig_view(&r, x[1]).history, 90);
	EXPECT_EQ(rig_view(&r, x[2]).history, 14);
	rig_close(&r);
}

static void only_so_many_run_at_once(void)
{
	struct rig r;
	struct sched_limits l = rig_limits(64);
	l.batch_turns = 2;
	rig_open(&r, &l);
	for (int i = 0; i < 3; i++)
		(void)rig_turn(&r, rig_session(&r), plain);
	const struct effect *wait = rig_effect(&r, EFFECT_WAIT, 0);
	REQUIRE(wait);
	EXPECT_EQ(wait->as.wait.why, WAIT_TURNS);
	rig_close(&r);
}

static void the_oldest_idle_session_gives_way(void)
{
	struct rig r;
	struct sched_limits l = rig_limits(8);
	rig_open(&r, &l);
	uint32_t a = rig_session(&r), b = rig_session(&r), c = rig_session(&r);
	(void)rig_whole(&r, a, 0, 48, 1); /* 3 pages */
	(void)rig_whole(&r, b, 0, 48, 1);
	(void)rig_whole(&r, a, 49, 1, 1); /* now b is the oldest; a has 4 pages */
	EXPECT_EQ(rig_view(&r, a).device_bytes, 4 * 1024);
	struct rig_turn turn = {0, 40, 1, 10, 0, 0}; /* 3 pages, 1 is free */
	(void)rig_turn(&r, c, turn);
	const struct effect *lost = rig_effect(&r, EFFECT_LOST, 0);
	REQUIRE(lost);
	EXPECT_EQ(rig_count(&r, EFFECT_LOST), 1);
	EXPECT_EQ(lost->session, b);
	EXPECT_EQ(lost->as.lost.tokens_before, 48);
	EXPECT_EQ(lost->as.lost.tokens_after, 32); /* from the end, and no more than needed now */
	EXPECT_EQ(lost->as.lost.why, LOST_PRESSURE);
	(void)rig_run(&r, rig_batch(&r));
	EXPECT_EQ(rig_view(&r, a).resident, 50);
	/* What was lost is computed again, and said to be. */
	struct effect end = rig_whole(&r, b, 49, 3, 1);
	EXPECT_EQ(end.as.end.prompt_tokens, 52);
	EXPECT_EQ(end.as.end.resident + end.as.end.recomputed, 48);
	EXPECT(end.as.end.recomputed >= 16);
	EXPECT_EQ(end.as.end.fresh, 4);
	rig_close(&r);
}

static void grants_are_kept(void)
{
	struct rig r;
	struct sched_limits l = rig_limits(8);
	rig_open(&r, &l);
	uint32_t a = rig_session_as(&r, 0, RESIDENCY_PINNED, 3000, 0); /* 3 units */
	const struct effect *opened = rig_effect(&r, EFFECT_OPENED, 0);
	EXPECT_EQ(opened->as.residency.bytes, 3 * 1024);
	EXPECT_EQ(opened->as.residency.err, ERR_NONE);
	/* Half of this slab is granted at most: 4 units, 1 left. */
	uint32_t b = rig_session_as(&r, 0, RESIDENCY_PINNED, 3000, 0);
	opened = rig_effect(&r, EFFECT_OPENED, 0);
	EXPECT_EQ(opened->as.residency.bytes, 1024);
	EXPECT_EQ(opened->as.residency.asked_bytes, 3000);
	EXPECT_EQ(opened->as.residency.err, ERR_NO_PAGES);
	EXPECT_EQ(opened->as.residency.blocker, a);
	rig_residency(&r, b, RESIDENCY_BEST_EFFORT, 0, 0);
	EXPECT_EQ(rig_effect(&r, EFFECT_RESIDENCY, 0)->as.residency.bytes, 0);
	(void)rig_whole(&r, a, 0, 64, 1); /* 4 pages, 3 granted */
	(void)rig_whole(&r, b, 0, 60, 5); /* takes all that may be taken: none is needed yet */
	EXPECT_EQ(rig_view(&r, a).resident, 64);
	(void)rig_whole(&r, b, 65, 15, 1); /* 5 pages: a gives its fourth */
	EXPECT_EQ(rig_view(&r, a).resident, 48);
	/* A turn that does not fit beside the grant waits, and lets others pass. */
	uint32_t c = rig_session(&r);
	struct rig_turn big = {0, 90, 1, 10, 0, 0}; /* 6 pages */
	(void)rig_turn(&r, c, big);
	REQUIRE(rig_effect(&r, EFFECT_WAIT, 0));
	EXPECT_EQ(rig_effect(&r, EFFECT_WAIT, 0)->as.wait.blocker, a);
	EXPECT_EQ(rig_whole(&r, b, 70, 0, 1).as.end.end, END_LIMIT);
	rig_residency(&r, a, RESIDENCY_BEST_EFFORT, 0, 0);
	EXPECT_EQ(rig_count(&r, EFFECT_ADMITTED), 1);
	EXPECT_EQ(rig_run(&r, rig_batch(&r)).as.end.end, END_LIMIT);
	rig_close(&r);
}

static void quotas_are_per_principal(void)
{
	struct rig r;
	struct sched_limits l = rig_limits(64);
	l.principal_bytes = 2 * 1024 + 5;
	rig_open(&r, &l);
	(void)rig_session_as(&r, 0, RESIDENCY_PINNED, 5000, 0);
	EXPECT_EQ(rig_effect(&r, EFFECT_OPENED, 0)->as.residency.bytes, 2 * 1024);
	EXPECT_EQ(rig_effect(&r, EFFECT_OPENED, 0)->as.residency.err, ERR_LIMIT);
	uint32_t b = rig_session_as(&r, 0, RESIDENCY_PINNED, 1000, 0);
	EXPECT_EQ(rig_effect(&r, EFFECT_OPENED, 0)->as.residency.kind, RESIDENCY_BEST_EFFORT);
	rig_residency(&r, b, RESIDENCY_PINNED, 1000, 0);
	EXPECT_EQ(rig_count(&r, EFFECT_REFUSED), 1);
	(void)rig_session_as(&r, 1, RESIDENCY_PINNED, 1000, 0);
	EXPECT_EQ(rig_effect(&r, EFFECT_OPENED, 0)->as.residency.bytes, 1024);
	rig_close(&r);
}

/* What running turns may need counts with what is granted; who is short waits, with the numbers, and its
   principal's next turns behind it. */
static void quotas_count_what_runs(void)
{
	struct rig r;
	struct sched_limits l = rig_limits(64);
	const struct rig_turn large = {0, 32, 33, 0, 0, 0}, small = {0, 10, 2, 0, 0, 0};
	l.principal_bytes = 6 * 1024 + 5;
	l.public_principal = 2;
	rig_open(&r, &l);
	uint32_t a = rig_session(&r), b = rig_session(&r), c = rig_session(&r), d = rig_session(&r);
	uint32_t other = rig_session_as(&r, 1, RESIDENCY_BEST_EFFORT, 0, 0);
	(void)rig_turn(&r, a, (struct rig_turn){0, 90, 8, 1, 0, 0});
	REQUIRE(rig_effect(&r, EFFECT_END, 0));
	EXPECT_EQ(rig_effect(&r, EFFECT_END, 0)->as.end.err, ERR_NO_PAGES);
	EXPECT_EQ(rig_effect(&r, EFFECT_END, 0)->as.end.needed, 7 * 1024);
	EXPECT_EQ(rig_effect(&r, EFFECT_END, 0)->as.end.limit, 6 * 1024 + 5);
	uint32_t first = rig_turn(&r, a, large);
	EXPECT_EQ(rig_view(&r, a).state, SESSION_RUNNING);
	struct rig_batch batch = rig_batch(&r);
	uint32_t second = rig_turn(&r, b, large);
	const struct effect *wait = rig_effect(&r, EFFECT_WAIT, 0);
	REQUIRE(wait != NULL);
	EXPECT_EQ(wait->as.wait.why, WAIT_PAGES);
	EXPECT_EQ(wait->as.wait.short_bytes, 2 * 1024 - 5);
	EXPECT_EQ(wait->as.wait.blocker, a);
	(void)rig_turn(&r, c, small);
	EXPECT_EQ(rig_view(&r, c).state, SESSION_WAITING);
	(void)rig_turn(&r, other, large);
	EXPECT_EQ(rig_view(&r, other).state, SESSION_RUNNING);
	/* What is public has no quota. */
	uint32_t public = rig_session_as(&r, 1, RESIDENCY_PINNED, 8 * 1024, 0);
	EXPECT_EQ(rig_effect(&r, EFFECT_OPENED, 0)->as.residency.bytes, 8 * 1024);
	(void)rig_turn(&r, public, (struct rig_turn){0, 90, 8, 0, 0, 0});
	EXPECT_EQ(rig_view(&r, public).state, SESSION_RUNNING);
	/* Grants have what is left; the one that runs has its own anyway. */
	rig_residency(&r, d, RESIDENCY_PINNED, 5 * 1024, 0);
	REQUIRE(rig_effect(&r, EFFECT_RESIDENCY, 0));
	EXPECT_EQ(rig_effect(&r, EFFECT_RESIDENCY, 0)->as.residency.bytes, 2 * 1024);
	EXPECT_EQ(rig_effect(&r, EFFECT_RESIDENCY, 0)->as.residency.err, ERR_LIMIT);
	rig_residency(&r, a, RESIDENCY_PINNED, 5 * 1024, 0);
	EXPECT_EQ(rig_effect(&r, EFFECT_RESIDENCY, 0)->as.residency.bytes, 4 * 1024);
	rig_cancel(&r, first, END_CANCEL);
	(void)rig_done(&r, &batch);
	/* Now it would not fit if nothing ran, for what is granted: others pass it. */
	EXPECT_EQ(rig_view(&r, b).state, SESSION_WAITING);
	EXPECT_EQ(rig_view(&r, c).state, SESSION_WAITING);
	rig_residency(&r, a, RESIDENCY_PINNED, 3 * 1024, 0);
	EXPECT_EQ(rig_view(&r, b).state, SESSION_WAITING);
	EXPECT_EQ(rig_view(&r, c).state, SESSION_RUNNING);
	struct turn_view view;
	EXPECT_EQ(sched_turn(r.s, second, &view), 0);
	EXPECT_EQ(view.short_bytes, 3 * 1024 - 5);
	EXPECT_EQ(view.blocker, SCHED_NONE);
	rig_residency(&r, a, RESIDENCY_BEST_EFFORT, 0, 0);
	rig_residency(&r, d, RESIDENCY_BEST_EFFORT, 0, 0);
	EXPECT_EQ(rig_view(&r, b).state, SESSION_RUNNING);
	rig_close(&r);
}

/* Who waits for the quota is told who of its principal was admitted first, also when that one has ended;
   and what the ledger says of a principal is the sum of its sessions. */
static void quotas_name_who_runs(void)
{
	struct rig r;
	struct sched_limits l = rig_limits(64);
	const struct rig_turn small = {0, 10, 7, 0, 0, 0}, large = {0, 32, 33, 0, 0, 0};
	l.principal_bytes = 5 * 1024;
	l.batch_turns = 8;
	rig_open(&r, &l);
	uint32_t other = rig_session_as(&r, 1, RESIDENCY_BEST_EFFORT, 0, 0), own[4], turn[4];
	(void)rig_turn(&r, other, small);
	for (uint32_t i = 0; i < 4; i++)
		own[i] = rig_session(&r);
	for (uint32_t i = 0; i < 4; i++)
		turn[i] = rig_turn(&r, own[i], i < 3 ? small : large);
	struct turn_view view;
	struct principal_view all = sched_principal(r.s, 0);
	EXPECT_EQ(sched_turn(r.s, turn[3], &view), 0);
	EXPECT_EQ(view.running, 0);
	EXPECT_EQ(view.blocker, own[0]);
	EXPECT_EQ(all.running, 3);
	EXPECT_EQ(all.turns, 4);
	EXPECT_EQ(all.charged_bytes, 3 * rig_view(&r, own[1]).charged_bytes);
	EXPECT_EQ(all.quota_bytes, 5 * 1024);
	EXPECT_EQ(rig_view(&r, own[3]).charged_bytes, 0);
	/* The first two end, the later one before. */
	rig_cancel(&r, turn[1], END_CANCEL);
	EXPECT_EQ(sched_turn(r.s, turn[3], &view), 0);
	EXPECT_EQ(view.blocker, own[0]);
	EXPECT_EQ(view.short_bytes, 1024);
	rig_cancel(&r, turn[0], END_CANCEL);
	EXPECT_EQ(rig_view(&r, own[3]).state, SESSION_RUNNING);
	EXPECT_EQ(sched_principal(r.s, 0).charged_bytes, 5 * 1024);
	uint32_t last = rig_turn(&r, own[0], (struct rig_turn){0, 10, 7, 0, 0, 0});
	EXPECT_EQ(sched_turn(r.s, last, &view), 0);
	EXPECT_EQ(view.blocker, own[2]);
	rig_close(&r);
}

static void a_lease_runs_out(void)
{
	struct rig r;
	struct sched_limits l = rig_limits(8);
	rig_open(&r, &l);
	uint32_t a = rig_session_as(&r, 0, RESIDENCY_LEASED, 4096, 5000);
	EXPECT_EQ(rig_effect(&r, EFFECT_OPENED, 0)->as.residency.lease_us, 5000);
	EXPECT_EQ(sched_deadline_us(r.s), 5000);
	uint32_t b = rig_session_as(&r, 0, RESIDENCY_LEASED, 4096, 5000000);
	EXPECT_EQ(rig_effect(&r, EFFECT_OPENED, 0)->as.residency.kind, RESIDENCY_BEST_EFFORT); /* all granted */
	(void)rig_whole(&r, a, 0, 64, 1);
	(void)rig_whole(&r, b, 0, 64, 1);
	rig_time(&r, 4999);
	EXPECT_EQ(rig_count(&r, EFFECT_RESIDENCY), 0);
	rig_time(&r, 5000);
	REQUIRE(rig_effect(&r, EFFECT_RESIDENCY, 0));
	EXPECT_EQ(rig_effect(&r, EFFECT_RESIDENCY, 0)->as.residency.err, ERR_EXPIRED);
	EXPECT_EQ(rig_view(&r, a).granted_bytes, 0);
	EXPECT_EQ(rig_view(&r, a).resident, 64); /* nothing is lost before somebody needs it */
	EXPECT_EQ(sched_deadline_us(r.s), UINT64_MAX);
	struct rig_turn turn = {0, 20, 1, 10, 0, 0};
	(void)rig_turn(&r, rig_session(&r), turn);
	REQUIRE(rig_effect(&r, EFFECT_LOST, 0));
	EXPECT_EQ(rig_effect(&r, EFFECT_LOST, 0)->session, a);
	EXPECT_EQ(rig_effect(&r, EFFECT_LOST, 0)->as.lost.why, LOST_LEASE);
	rig_close(&r);
}

/* In whatever state it is. One that ran out stays out. */
static void a_touch_renews_a_lease(void)
{
	struct rig r;
	struct sched_limits l = rig_limits(8);
	rig_open(&r, &l);
	uint32_t a = rig_session_as(&r, 0, RESIDENCY_LEASED, 2048, 5000);
	r.now_us = 4000;
	rig_simple(&r, EVENT_TOUCH, a);
	EXPECT_EQ(sched_deadline_us(r.s), 9000);
	(void)rig_turn(&r, a, (struct rig_turn){0, 20, 4, 4, 0, 0});
	r.now_us = 8000;
	rig_simple(&r, EVENT_TOUCH, a);
	EXPECT_EQ(sched_deadline_us(r.s), 13000);
	EXPECT_EQ(rig_view(&r, a).granted_bytes, 2048);
	rig_time(&r, 13000);
	EXPECT_EQ(rig_count(&r, EFFECT_RESIDENCY), 1);
	rig_simple(&r, EVENT_TOUCH, a);
	EXPECT_EQ(rig_view(&r, a).granted_bytes, 0);
	EXPECT_EQ(sched_deadline_us(r.s), UINT64_MAX);
	rig_residency(&r, a, RESIDENCY_PINNED, 2048, 0);
	rig_simple(&r, EVENT_TOUCH, a);
	EXPECT_EQ(sched_deadline_us(r.s), UINT64_MAX); /* what is pinned has no end to put off */
	rig_close(&r);
}

static void a_grant_does_not_break_promises(void)
{
	struct rig r;
	struct sched_limits l = rig_limits(8);
	rig_open(&r, &l);
	uint32_t a = rig_session(&r), b = rig_session(&r);
	(void)rig_whole(&r, a, 0, 64, 1); /* 4 pages, all to be given */
	struct rig_turn turn = {0, 20, 70, 1000, 0, 0}; /* 6 pages promised: 2 of a's back it */
	(void)rig_turn(&r, b, turn);
	struct rig_batch batch = rig_batch(&r);
	EXPECT_EQ(rig_count(&r, EFFECT_ADMITTED), 1);
	rig_residency(&r, a, RESIDENCY_PINNED, 4096, 0);
	REQUIRE(rig_effect(&r, EFFECT_RESIDENCY, 0));
	EXPECT_EQ(rig_effect(&r, EFFECT_RESIDENCY, 0)->as.residency.bytes, 2 * 1024);
	EXPECT_EQ(rig_effect(&r, EFFECT_RESIDENCY, 0)->as.residency.blocker, b);
	EXPECT_EQ(rig_run(&r, batch).as.end.sampled, 70);
	EXPECT_EQ(rig_view(&r, a).resident, 32);
	rig_close(&r);
}

/* Six turns that need more than two slabs together: with a quantum they all run, whoever is short waits
   for older ones, and all finish. With promises in full two run at a time. */
static void growth_is_promised_in_quanta(void)
{
	for (uint32_t growth = 0; growth <= 16; growth += 16) {
		struct rig r;
		struct sched_limits l = rig_limits(40);
		l.growth_tokens = growth;
		l.batch_turns = 6;
		rig_open(&r, &l);
		uint32_t stalls = 0, running = 0, ended = 0;
		struct rig_batch b = {0};
		for (uint32_t i = 0; i < 6; i++) {
			struct rig_turn turn = {0, 8, 240, 240, 0, 0};
			(void)rig_turn(&r, rig_session(&r), turn);
			if (rig_batch(&r).count)
				b = rig_batch(&r);
		}
		for (uint32_t i = 0; i < 6; i++) {
			struct turn_view view;
			running += sched_turn(r.s, i, &view) == 0 && view.running;
		}
		EXPECT(running == (growth ? 6u : 2u));
		for (int bound = 0; b.count && bound < 5000; bound++) {
			b = rig_done(&r, &b);
			for (uint32_t i = 0; i < r.out.count; i++) {
				const struct effect *f = &r.out.list[i];
				ended += f->kind == EFFECT_END;
				stalls += f->kind == EFFECT_WAIT && f->as.wait.place == 0;
				if (f->kind == EFFECT_END)
					EXPECT(f->as.end.sampled == 240);
			}
		}
		EXPECT(ended == 6);
		EXPECT((stalls > 0) == (growth > 0));
		EXPECT(sched_counts(r.s).forced_recomputes == 0);
		rig_close(&r);
	}
}

int main(void)
{
	TAP_RUN(limits_are_checked, "limits without sense are refused by name");
	TAP_RUN(known_tokens_follow, "tokens known behind a sampled one are rows of the next batch");
	TAP_RUN(a_turn_runs_to_its_limit, "a turn runs to its limit, and the next computes only what is new");
	TAP_RUN(prefill_is_cut_into_chunks, "prefill is cut into chunks and never stops a decoding turn");
	TAP_RUN(step_time_bounds_prefill, "the wanted step time bounds prefill once rates are known");
	TAP_RUN(partial_results_go_on, "a batch that computed a part is taken up where it stopped");
	TAP_RUN(a_turn_without_credit_stands_still, "a turn without credit pauses, told once, and goes on");
	TAP_RUN(what_can_never_be_is_refused, "what can never be is refused with the numbers");
	TAP_RUN(the_context_ends_a_turn, "a full context ends a decoding turn");
	TAP_RUN(turns_wait_in_order, "turns wait in order, with place and what is short; the queue is bounded");
	TAP_RUN(only_so_many_run_at_once, "only batch_turns run at once");
	TAP_RUN(the_oldest_idle_session_gives_way, "the session used least recently gives way, from its end");
	TAP_RUN(grants_are_kept, "grants are clipped, kept, and passed by those that fit beside them");
	TAP_RUN(quotas_are_per_principal, "the quota is per principal");
	TAP_RUN(quotas_name_who_runs, "who waits for a quota is told whose turn was first; sums");
	TAP_RUN(quotas_count_what_runs, "the quota of bytes counts what running turns may need");
	TAP_RUN(a_lease_runs_out, "a lease runs out on time and is told");
	TAP_RUN(a_touch_renews_a_lease, "a touch lets it begin anew");
	TAP_RUN(growth_is_promised_in_quanta, "growth in quanta: more run, whoever is short waits, all finish");
	TAP_RUN(a_grant_does_not_break_promises, "a new grant takes nothing back that was promised");
	return tap_done();
}
