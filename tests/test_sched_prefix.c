/*
 * Pages of other sessions, found by their chain keys: who may have them, when a turn waits for them, and
 * when they are found no more. Method: turns of one session computed, another one's with the same keys
 * sent, and effects, origins and ledger looked at; the audit after every step.
 */
#include "tests/tap.h"
#include "tests/sched_rig.h"
#include "sched/state.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

enum { UNITS = 16 };

/* The keys of a text: equal up to unit `same` for all of them, then the text's own. */
static uint32_t turn_keyed(struct rig *r, uint32_t session, struct rig_turn turn, uint64_t text,
			   uint32_t same)
{
	struct chain_key keys[UNITS];
	struct event e = rig_turn_event(r, session, turn);
	e.as.turn.chain_count = (turn.keep + turn.append) / 16;
	for (uint32_t i = 0; i < e.as.turn.chain_count; i++)
		keys[i] = (struct chain_key){i, i < same ? 0 : text};
	return rig_turn_send(r, &e, keys);
}

static struct effect whole_keyed(struct rig *r, uint32_t session, uint32_t append, uint64_t text,
				 uint32_t same)
{
	struct rig_turn turn = {rig_view(r, session).history, append, 1, 1, 0, 0};
	(void)turn_keyed(r, session, turn, text, same);
	return rig_run(r, rig_batch(r));
}

/* Three principals, of whom the last one's pages are public. */
static void open_public(struct rig *r)
{
	struct sched_limits l = rig_limits(32);
	l.principal_count = l.public_principal = 3;
	rig_open(r, &l);
}

static uint32_t session_of(struct rig *r, uint32_t principal)
{
	return rig_session_as(r, principal, RESIDENCY_BEST_EFFORT, 0, 0);
}

static uint64_t device(const struct rig *r, enum column column)
{
	return sched_ledger(r->s, ACCOUNT_DEVICE, column) / 1024;
}

static void found_and_shared(void)
{
	struct rig r;
	struct sched_limits l = rig_limits(32);
	rig_open(&r, &l);
	uint32_t a = rig_session(&r), b = rig_session(&r), c = rig_session(&r);
	struct effect end = whole_keyed(&r, a, 70, 1, 0);
	EXPECT_EQ(end.as.end.fresh, 70);
	/* Four full pages are the same; of the fifth there is no key, and it has other tokens. */
	(void)turn_keyed(&r, b, (struct rig_turn){0, 75, 1, 1, 0, 0}, 1, 0);
	EXPECT_EQ(rig_pages(&r, EFFECT_SHARE), 4);
	EXPECT_EQ(device(&r, COLUMN_SHARED), 4);
	end = rig_run(&r, rig_batch(&r));
	EXPECT_EQ(end.as.end.resident, 64);
	EXPECT_EQ(end.as.end.fresh, 11);
	EXPECT_EQ(sched_counts(r.s).tokens_shared, 64);
	EXPECT_EQ(device(&r, COLUMN_RETAINED), 2);
	EXPECT_EQ(sched_principal_bytes(r.s, 0), 6 * 1024); /* shared pages count once */
	/* A text of whole pages: one is left to compute. And one that goes on in another way. */
	end = whole_keyed(&r, c, 64, 1, 0);
	EXPECT_EQ(end.as.end.resident, 48);
	rig_rollback(&r, c, 0);
	end = whole_keyed(&r, c, 64, 2, 2);
	EXPECT_EQ(end.as.end.resident, 0); /* its first keys are others than text 1's */
	rig_simple(&r, EVENT_CLOSE, a);
	rig_rollback(&r, c, 0);
	end = whole_keyed(&r, c, 75, 1, 0);
	EXPECT_EQ(end.as.end.resident, 64);
	rig_simple(&r, EVENT_CLOSE, b);
	rig_simple(&r, EVENT_CLOSE, c);
	EXPECT_EQ(device(&r, COLUMN_FREE), 32);
	/* Nobody has it any more. */
	a = rig_session(&r);
	EXPECT_EQ(whole_keyed(&r, a, 70, 1, 0).as.end.resident, 0);
	rig_close(&r);
}

static void of_one_principal(void)
{
	struct rig r;
	open_public(&r);
	uint32_t a = session_of(&r, 0), b = session_of(&r, 1), p = session_of(&r, 2);
	(void)whole_keyed(&r, a, 70, 1, 0);
	EXPECT_EQ(whole_keyed(&r, b, 70, 1, 0).as.end.resident, 0);
	/* Nor does the public one find what is not its own; but what it has, all do. */
	EXPECT_EQ(whole_keyed(&r, p, 70, 1, 0).as.end.resident, 0);
	rig_simple(&r, EVENT_CLOSE, a);
	rig_simple(&r, EVENT_CLOSE, b);
	uint64_t bytes = sched_principal_bytes(r.s, 2);
	a = session_of(&r, 0);
	b = session_of(&r, 1);
	EXPECT_EQ(whole_keyed(&r, a, 100, 1, 0).as.end.resident, 64);
	EXPECT_EQ(whole_keyed(&r, b, 100, 1, 0).as.end.resident, 64); /* not a's two more */
	EXPECT_EQ(sched_principal_bytes(r.s, 2), bytes);
	EXPECT_EQ(sched_principal_bytes(r.s, 0), 3 * 1024);
	/* A public page that is bad is everybody's loss, whoever finds it. */
	uint32_t c = session_of(&r, 1);
	(void)turn_keyed(&r, c, (struct rig_turn){0, 70, 1, 1, 0, 0}, 1, 0);
	struct rig_batch batch = rig_batch(&r);
	struct page_ref ref;
	EXPECT_EQ(sched_page_table(r.s, c, 0, 1, 1, &ref), 1);
	batch.results[0] = (struct batch_result){.turn = batch.entries[0].turn, .end = END_INTEGRITY,
						 .page = ref.page};
	(void)rig_done(&r, &batch);
	EXPECT_EQ(rig_effect(&r, EFFECT_END, 0)->as.end.end, END_INTEGRITY);
	EXPECT_EQ(rig_view(&r, c).resident, 16);
	EXPECT_EQ(rig_pages(&r, EFFECT_QUARANTINE), 1);
	EXPECT_EQ(rig_count(&r, EFFECT_LOST), 3);
	EXPECT_EQ(rig_view(&r, a).resident, 16);
	EXPECT_EQ(rig_view(&r, b).resident, 16);
	EXPECT_EQ(rig_view(&r, p).resident, 16);
	rig_close(&r);
}

/* A turn that begins as a running one does waits for it, and computes its own. */
static void waits_for_the_first(void)
{
	struct rig r;
	struct sched_limits l = rig_limits(64);
	l.batch_rows = l.chunk_tokens = 32;
	rig_open(&r, &l);
	uint32_t a = rig_session(&r), b = rig_session(&r), c = session_of(&r, 1);
	struct rig_turn turn = {0, 100, 1, 1, 0, 0};
	(void)turn_keyed(&r, a, turn, 1, 4);
	struct rig_batch batch = rig_batch(&r);
	uint32_t second = turn_keyed(&r, b, turn, 2, 4);
	const struct effect *wait = rig_effect(&r, EFFECT_WAIT, 0);
	REQUIRE(wait != NULL);
	EXPECT_EQ(wait->as.wait.why, WAIT_PREFIX);
	EXPECT_EQ(wait->as.wait.blocker, a);
	/* Another principal's turn passes it. */
	(void)turn_keyed(&r, c, turn, 3, 4);
	EXPECT_EQ(rig_count(&r, EFFECT_ADMITTED), 1);
	batch = rig_done(&r, &batch);
	EXPECT_EQ(rig_count(&r, EFFECT_ADMITTED), 0); /* two units of the four are there */
	batch = rig_done(&r, &batch);
	batch = rig_done(&r, &batch);
	while (batch.count && rig_view(&r, b).state != SESSION_RUNNING)
		batch = rig_done(&r, &batch);
	EXPECT_EQ(rig_view(&r, b).resident, 64); /* what they have in common, and no more */
	struct effect end = rig_run(&r, batch);
	(void)end;
	struct turn_view view;
	EXPECT(sched_turn(r.s, second, &view) != 0);
	EXPECT_EQ(sched_counts(r.s).tokens_fresh, 100 + 36 + 100);
	rig_close(&r);
}

/* Two sessions: the first one's turn is in the batch, the second one's waits for what both begin with. */
struct pair {
	uint32_t first, turn, second;
	struct rig_batch batch;
};

static struct pair one_waits(struct rig *r, uint32_t append, uint32_t credit)
{
	struct pair p = {.first = rig_session(r), .second = rig_session(r)};
	p.turn = turn_keyed(r, p.first, (struct rig_turn){0, append, 1, credit, 0, 0}, 1, 4);
	p.batch = rig_batch(r);
	(void)turn_keyed(r, p.second, (struct rig_turn){0, 110, 1, 1, 0, 0}, 1, 4);
	const struct effect *wait = rig_effect(r, EFFECT_WAIT, 0);
	EXPECT(wait && wait->as.wait.why == WAIT_PREFIX && wait->as.wait.blocker == p.first);
	return p;
}

static void waits_no_longer(void)
{
	struct rig r;
	struct sched_limits l = rig_limits(64);
	for (int how = 0; how < 2; how++) {
		rig_open(&r, &l);
		const struct pair p = one_waits(&r, how == 1 ? 64 : 100, how != 1);
		if (how == 0) { /* the other is gone */
			rig_cancel(&r, p.turn, END_CANCEL);
			EXPECT(rig_view(&r, p.second).state != SESSION_WAITING);
			(void)rig_done(&r, &p.batch);
		} else { /* its stream has no room: the last row that both have is not computed */
			(void)rig_run(&r, p.batch);
		}
		EXPECT(rig_view(&r, p.second).state != SESSION_WAITING);
		rig_close(&r);
	}
}

static void stays(struct rig_batch *batch, uint32_t session)
{
	for (uint32_t i = 0; i < batch->count; i++)
		if (batch->entries[i].session == session)
			batch->results[i].computed = batch->results[i].sampled = 0;
}

/* Another prompt of 32 tokens, by which session `still` is passed meanwhile. */
static void passed(struct rig *r, struct rig_batch *batch, uint32_t principal, uint32_t still)
{
	const struct rig_turn turn = {0, 32, 1, 1, 0, 0};
	(void)rig_turn(r, session_of(r, principal), turn);
	stays(batch, still);
	*batch = rig_done(r, batch);
}

/* Nor does it wait for one that is passed by other prompts again and again: twice its own 110 rows of others
   end the wait. What it saw the other compute prolongs it: once 32 rows, so by 8 * 32. Prompts of another
   principal count for nothing. */
static void waits_no_longer_than_work(void)
{
	struct rig r;
	struct sched_limits l = rig_limits(128);
	l.session_count = l.turn_count = l.batch_turns = l.queue_turns = 32;
	l.stream_bytes = 3200;
	for (int how = 0; how < 3; how++) {
		rig_open(&r, &l);
		struct pair p = one_waits(&r, 100, 1);
		EXPECT_EQ(p.batch.entries[0].row_count, 32);
		if (how == 1)
			p.batch = rig_done(&r, &p.batch);
		uint32_t most = how == 1 ? 220 + 8 * 32 : 220, rows = how == 1 ? 32 : 0, i = 0;
		passed(&r, &p.batch, how == 2, p.first);
		for (; i < 16 && rig_view(&r, p.second).state == SESSION_WAITING; i++) {
			EXPECT(how == 2 || rows < most);
			passed(&r, &p.batch, how == 2, p.first);
			rows += 32;
		}
		EXPECT(how == 2 ? i == 16 : rows >= most);
		EXPECT_EQ(rig_view(&r, p.second).resident, how == 1 ? 32 : 0);
		rig_close(&r);
	}
}

/* A machine that is slower than its rates say ends no wait, however much slower. */
static void waits_for_a_slow_machine(void)
{
	struct rig r;
	struct sched_limits l = rig_limits(64);
	l.batch_rows = l.chunk_tokens = 8;
	rig_open(&r, &l);
	rig_rate(&r, 10000);
	struct pair p = one_waits(&r, 100, 1);
	for (uint32_t i = 0; rig_view(&r, p.second).state == SESSION_WAITING && i < 20; i++) {
		EXPECT_EQ(rig_view(&r, p.second).resident, 0);
		EXPECT_EQ(rig_view(&r, p.first).resident, 8 * i);
		rig_time(&r, r.now_us + 1000000000);
		p.batch = rig_done(&r, &p.batch);
	}
	EXPECT_EQ(rig_view(&r, p.second).resident, 96);
	rig_close(&r);
}

/* For a public turn, too; not for one of other tokens, nor does what is public wait for others. */
static void waits_for_whom(void)
{
	struct rig r;
	open_public(&r);
	uint32_t p = session_of(&r, 2), a = session_of(&r, 0), b = session_of(&r, 0), q = session_of(&r, 2);
	const struct rig_turn turn = {0, 100, 1, 1, 0, 0};
	(void)turn_keyed(&r, p, turn, 1, 0);
	struct rig_batch batch = rig_batch(&r);
	(void)turn_keyed(&r, a, turn, 1, 0);
	const struct effect *wait = rig_effect(&r, EFFECT_WAIT, 0);
	EXPECT(wait && wait->as.wait.why == WAIT_PREFIX && wait->as.wait.blocker == p);
	(void)turn_keyed(&r, b, turn, 2, 0);
	EXPECT_EQ(rig_view(&r, b).state, SESSION_RUNNING);
	(void)turn_keyed(&r, q, turn, 2, 0);
	EXPECT_EQ(rig_view(&r, q).state, SESSION_RUNNING);
	(void)rig_run(&r, batch);
	rig_close(&r);
}

/* Nor for what has been computed and is not found: another page had its place, and is gone. */
static void waits_for_nothing_lost(void)
{
	struct rig r;
	struct sched_limits l = rig_limits(128);
	l.session_count = l.turn_count = l.batch_turns = l.queue_turns = 32;
	l.stream_bytes = 3200;
	rig_open(&r, &l);
	struct pair p = one_waits(&r, 100, 1);
	for (int i = 0; i < 20 && rig_view(&r, p.second).state == SESSION_WAITING; i++)
		passed(&r, &p.batch, 0, p.first);
	while (p.batch.count && rig_view(&r, p.first).state == SESSION_RUNNING)
		p.batch = rig_done(&r, &p.batch);
	rig_simple(&r, EVENT_CLOSE, p.first);
	EXPECT(rig_view(&r, p.second).resident >= 64);
	EXPECT_EQ(rig_view(&r, p.second).state, SESSION_RUNNING);
	uint32_t third = rig_session(&r);
	(void)turn_keyed(&r, third, (struct rig_turn){0, 64, 1, 1, 0, 0}, 1, 4);
	EXPECT_EQ(rig_view(&r, third).state, SESSION_RUNNING);
	EXPECT_EQ(rig_view(&r, third).resident, 0);
	(void)rig_run(&r, p.batch);
	rig_close(&r);
}

/* But once for each unit: who computes it again, since the first one's is gone, brings no more time. */
static void waits_once_for_a_unit(void)
{
	struct rig r;
	struct sched_limits l = rig_limits(128);
	l.session_count = l.turn_count = l.batch_turns = l.queue_turns = 32;
	l.stream_bytes = 3200;
	rig_open(&r, &l);
	uint32_t slow = rig_session(&r), first = rig_session(&r), b = rig_session(&r);
	(void)turn_keyed(&r, slow, (struct rig_turn){0, 100, 1, 1, 0, 0}, 1, 4);
	struct rig_batch batch = rig_batch(&r);
	(void)turn_keyed(&r, first, (struct rig_turn){0, 100, 1, 1, 0, 0}, 1, 4);
	for (int i = 0; i < 20 && rig_view(&r, first).state == SESSION_WAITING; i++)
		passed(&r, &batch, 0, slow); /* until it passes the other, too */
	for (int i = 0; i < 20 && rig_view(&r, first).resident < 32; i++) {
		stays(&batch, slow);
		batch = rig_done(&r, &batch);
	}
	EXPECT_EQ(rig_view(&r, first).resident, 32);
	(void)turn_keyed(&r, b, (struct rig_turn){0, 110, 1, 1, 0, 0}, 1, 4);
	EXPECT_EQ(rig_effect(&r, EFFECT_WAIT, 0)->as.wait.blocker, first);
	/* Its pages turn out to be bad. */
	struct page_ref ref;
	EXPECT_EQ(sched_page_table(r.s, first, 0, 0, 1, &ref), 1);
	uint32_t at = 0;
	while (at < batch.count && batch.entries[at].session != first)
		at++;
	REQUIRE(at < batch.count);
	stays(&batch, slow);
	batch.results[at] = (struct batch_result){.turn = batch.entries[at].turn, .end = END_INTEGRITY,
						  .page = ref.page};
	batch = rig_done(&r, &batch);
	EXPECT_EQ(rig_view(&r, first).resident, 0);
	EXPECT_EQ(rig_view(&r, b).state, SESSION_WAITING);
	batch = rig_done(&r, &batch);
	EXPECT_EQ(rig_view(&r, slow).resident, 32);
	for (uint32_t rows = 32; rows < 220; rows += 32) {
		EXPECT_EQ(rig_view(&r, b).state, SESSION_WAITING);
		passed(&r, &batch, 0, slow);
	}
	passed(&r, &batch, 0, slow);
	EXPECT_EQ(rig_view(&r, b).state, SESSION_RUNNING);
	rig_close(&r);
}

/* Not for one that is further behind than the turn itself: it would have to catch up first. */
static void waits_for_none_behind(void)
{
	struct rig r;
	struct sched_limits l = rig_limits(64);
	rig_open(&r, &l);
	uint32_t a = rig_session(&r), b = rig_session(&r);
	(void)rig_whole(&r, b, 0, 70, 1); /* without keys: nobody finds it */
	rig_rollback(&r, b, 70);
	(void)turn_keyed(&r, a, (struct rig_turn){0, 110, 1, 1, 0, 0}, 1, 0);
	struct rig_batch batch = rig_batch(&r);
	EXPECT_EQ(rig_view(&r, a).resident, 0);
	(void)turn_keyed(&r, b, (struct rig_turn){70, 40, 1, 1, 0, 0}, 1, 0);
	EXPECT_EQ(rig_view(&r, b).state, SESSION_RUNNING);
	(void)rig_run(&r, batch);
	rig_close(&r);
}

/* Nor for one whose promise an older turn has taken back: that is a want of pages. The oldest turn stands
   still for its reader, and may still need five pages of twelve. The next one grows; the third computes
   its prompt, a row at a time, and loses the promise of its last page to that. */
static void waits_for_none_that_stands_still(void)
{
	struct rig r;
	struct sched_limits l = rig_limits(12);
	l.growth_tokens = l.chunk_tokens = 16;
	rig_open(&r, &l);
	uint32_t s[4];
	for (int i = 0; i < 4; i++)
		s[i] = rig_session(&r);
	(void)rig_turn(&r, s[0], (struct rig_turn){0, 16, 65, 1, 0, 0});
	struct rig_batch batch = rig_batch(&r);
	(void)rig_turn(&r, s[1], (struct rig_turn){0, 16, 81, 100, 0, 0});
	(void)turn_keyed(&r, s[2], (struct rig_turn){0, 64, 1, 1, 0, 0}, 1, 0);
	EXPECT_EQ(rig_view(&r, s[2]).state, SESSION_RUNNING);
	(void)turn_keyed(&r, s[3], (struct rig_turn){0, 80, 1, 1, 0, 0}, 1, 0);
	EXPECT_EQ(rig_effect(&r, EFFECT_WAIT, 0)->as.wait.why, WAIT_PREFIX);
	uint32_t why = SCHED_NONE;
	for (int i = 0; i < 60 && batch.count; i++) {
		for (uint32_t k = 0; k < batch.count; k++)
			if (batch.entries[k].session == s[2] && batch.results[k].computed > 1) {
				batch.results[k].computed = 1;
				batch.results[k].sampled = 0;
			}
		batch = rig_done(&r, &batch);
		for (uint32_t k = 0; rig_effect(&r, EFFECT_WAIT, k); k++)
			if (rig_effect(&r, EFFECT_WAIT, k)->session == s[3])
				why = rig_effect(&r, EFFECT_WAIT, k)->as.wait.why;
	}
	EXPECT_EQ(rig_view(&r, s[2]).resident, 48);
	EXPECT_EQ(rig_view(&r, s[3]).state, SESSION_WAITING);
	EXPECT_EQ(why, WAIT_PAGES);
	rig_close(&r);
}

/* What is not full any more, or was given up, or has other tokens, is not found. */
static void found_no_more(void)
{
	struct rig r;
	struct sched_limits l = rig_limits(32);
	rig_open(&r, &l);
	uint32_t a = rig_session(&r), b = rig_session(&r);
	(void)whole_keyed(&r, a, 70, 1, 0);
	rig_rollback(&r, a, 40); /* into the third page, which a writes on */
	(void)rig_whole(&r, a, 40, 30, 1);
	(void)turn_keyed(&r, b, (struct rig_turn){0, 75, 1, 1, 0, 0}, 1, 0);
	EXPECT_EQ(rig_run(&r, rig_batch(&r)).as.end.resident, 32);
	rig_park(&r, a, PLACE_TOKENS);
	rig_park(&r, b, PLACE_TOKENS);
	uint32_t c = rig_session(&r);
	EXPECT_EQ(whole_keyed(&r, c, 70, 1, 0).as.end.resident, 0);
	/* A shared page at the cut is given up, and the other's stays. */
	uint32_t d = rig_session(&r), e = rig_session(&r);
	EXPECT_EQ(whole_keyed(&r, d, 75, 1, 0).as.end.resident, 64);
	rig_rollback(&r, d, 40);
	EXPECT_EQ(rig_view(&r, d).resident, 32);
	EXPECT_EQ(whole_keyed(&r, e, 75, 1, 0).as.end.resident, 64);
	rig_close(&r);
}

/* Of three the one that was first leaves, and then the next: what the last has is still found. */
static void another_holds(void)
{
	struct rig r;
	struct sched_limits l = rig_limits(32);
	rig_open(&r, &l);
	uint32_t s[4];
	for (int i = 0; i < 4; i++)
		s[i] = rig_session(&r);
	for (int i = 0; i < 3; i++)
		(void)whole_keyed(&r, s[i], 70, 1, 0);
	for (int i = 0; i < 2; i++) {
		rig_simple(&r, EVENT_CLOSE, s[i]);
		EXPECT_EQ(whole_keyed(&r, s[3], 75, 1, 0).as.end.resident, 64);
		rig_rollback(&r, s[3], 0);
	}
	rig_close(&r);
}

/* What a session has itself gives way for a longer prefix, with grants and without. */
static void own_part_gives_way(void)
{
	struct rig r;
	struct sched_limits l = rig_limits(32);
	for (int pinned = 0; pinned < 2; pinned++) {
		rig_open(&r, &l);
		uint32_t a = rig_session(&r), b = rig_session(&r);
		if (pinned)
			rig_residency(&r, b, RESIDENCY_PINNED, 3 * 1024, 0);
		struct rig_turn small = {0, 40, 1, 1, 0, 0};
		(void)rig_turn(&r, b, small); /* without keys */
		(void)rig_run(&r, rig_batch(&r));
		rig_rollback(&r, b, 40);
		(void)whole_keyed(&r, a, 100, 1, 0);
		(void)turn_keyed(&r, b, (struct rig_turn){40, 60, 1, 1, 0, 0}, 1, 0);
		EXPECT_EQ(rig_pages(&r, EFFECT_FREE), 3);
		EXPECT_EQ(rig_pages(&r, EFFECT_SHARE), 6);
		struct effect end = rig_run(&r, rig_batch(&r));
		EXPECT_EQ(end.as.end.resident, 96);
		EXPECT_EQ(end.as.end.recomputed, 0);
		EXPECT_EQ(device(&r, COLUMN_FREE), 32 - 8);
		rig_close(&r);
	}
}

/* A public page that only one user has any more, cut within: what he writes on there would be public. */
static void public_is_not_written_on(void)
{
	struct rig r;
	open_public(&r);
	uint32_t p = session_of(&r, 2), a = session_of(&r, 0), b = session_of(&r, 1);
	(void)whole_keyed(&r, p, 70, 1, 0);
	EXPECT_EQ(whole_keyed(&r, a, 70, 1, 0).as.end.resident, 64);
	rig_simple(&r, EVENT_CLOSE, p);
	rig_rollback(&r, a, 40);
	EXPECT_EQ(rig_view(&r, a).resident, 32);
	(void)turn_keyed(&r, a, (struct rig_turn){40, 40, 1, 1, 0, 0}, 2, 0);
	(void)rig_run(&r, rig_batch(&r));
	EXPECT_EQ(sched_principal_bytes(r.s, 2), 2 * 1024);
	EXPECT_EQ(whole_keyed(&r, b, 80, 2, 0).as.end.resident, 0);
	rig_close(&r);
}

static void found_on_host(void)
{
	struct rig r;
	struct sched_limits l = rig_limits(16);
	l.group[0].page_count[PLACE_HOST] = 16;
	rig_open(&r, &l);
	uint32_t a = rig_session(&r), b = rig_session(&r);
	(void)whole_keyed(&r, a, 70, 1, 0);
	rig_park(&r, a, PLACE_HOST);
	(void)rig_copies_done(&r); /* at rest: what moves is not shared */
	EXPECT_EQ(sched_ledger(r.s, ACCOUNT_HOST, COLUMN_RETAINED) / 1024, 5);
	(void)turn_keyed(&r, b, (struct rig_turn){0, 75, 1, 1, 0, 0}, 1, 0);
	EXPECT_EQ(rig_pages(&r, EFFECT_SHARE), 4);
	EXPECT_EQ(rig_copies_done(&r), 4);
	struct effect end = rig_run(&r, rig_batch(&r));
	EXPECT_EQ(end.as.end.reloaded, 64);
	EXPECT_EQ(end.as.end.fresh, 11);
	rig_close(&r);
}

static void fault_plant(int fault)
{
	struct rig r;
	struct sched_limits l = rig_limits(32);
	rig_open(&r, &l);
	uint32_t a = rig_session(&r), b = rig_session(&r);
	(void)whole_keyed(&r, a, 70, 1, 0);
	struct prefix *entry = prefix_at(r.s, table_page(r.s, a, 0, 1));
	struct event e = rig_event(&r, EVENT_TURN);
	struct chain_key key = {1, 1};
	e.session = b;
	e.as.turn.append = 15;
	e.as.turn.output_max = e.as.turn.chain_count = 1;
	switch (fault) {
	case 1: entry->key.lo++; break;
	case 2: entry->holder = b + 1; break;
	case 3: entry->holder = 0; break;
	case 4: r.s->prefix_count++; break;
	case 5: session_at(r.s, a)->resident = 30; break;
	case 6: sched_step(r.s, &e, &key, NULL, &r.out); break;
	default: break;
	}
	sched_audit(r.s);
}

/* Planted faults in the table, and keys that are of no full page. */
static int aborts(int fault)
{
	int status = 0;
	(void)fflush(stdout);
	pid_t child = fork();
	if (child == 0) {
		(void)!freopen("/dev/null", "w", stderr);
		fault_plant(fault);
		_exit(0);
	}
	(void)waitpid(child, &status, 0);
	return WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT;
}

static void faults(void)
{
	EXPECT(!aborts(0));
	for (int fault = 1; fault <= 6; fault++)
		if (!EXPECT(aborts(fault)))
			printf("# fault %d\n", fault);
}

int main(void)
{
	TAP_RUN(found_and_shared, "full pages with one key are shared, and live as long as one has them");
	TAP_RUN(of_one_principal, "nobody else finds them; what is public is found by all, and lost by all");
	TAP_RUN(waits_for_the_first, "a turn waits for what a running one computes, others pass it");
	TAP_RUN(waits_no_longer, "it does not wait for one that is gone, or needs credit");
	TAP_RUN(waits_no_longer_than_work, "nor for one that others pass for too long");
	TAP_RUN(waits_for_a_slow_machine, "a slow machine ends no wait");
	TAP_RUN(waits_once_for_a_unit, "once for each unit");
	TAP_RUN(waits_for_whom, "for whom it waits");
	TAP_RUN(waits_for_nothing_lost, "it does not wait for what is computed and not found");
	TAP_RUN(waits_for_none_behind, "it does not wait for one that is behind");
	TAP_RUN(waits_for_none_that_stands_still, "nor for one that stands still");
	TAP_RUN(found_no_more, "what was cut, written on or given up is not found");
	TAP_RUN(another_holds, "who leaves hands over what others have too");
	TAP_RUN(own_part_gives_way, "what a session has itself gives way for more");
	TAP_RUN(public_is_not_written_on, "what is public stays so, and nothing else becomes it");
	TAP_RUN(found_on_host, "a prefix on host is shared and loaded");
	TAP_RUN(faults, "planted faults are found, keys of no page abort");
	return tap_done();
}
