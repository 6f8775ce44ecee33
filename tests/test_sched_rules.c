/*
 * What breaks a rule aborts. Each breach of the caller's duties (R1 .. R5 of sched/sched.h), and each
 * of a number of planted faults in the state, must end a child process; without the breach the
 * same child must live.
 */
#include "tests/tap.h"
#include "tests/sched_rig.h"
#include "sched/state.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

typedef void breach(struct rig *r, struct rig_batch *b, uint32_t session, uint32_t turn);

/* One running turn, with its batch in flight, beside an idle fork of an idle session, and one with
   a grant. Returns whether the child was aborted. */
static int aborts(breach *act)
{
	fflush(stdout);
	pid_t child = fork();
	if (child == 0) {
		struct rlimit none = {0, 0};
		struct rig r;
		struct sched_limits l = rig_limits(32);
		int null = open("/dev/null", O_WRONLY);
		(void)dup2(null, 2);
		(void)setrlimit(RLIMIT_CORE, &none);
		rig_open(&r, &l);
		r.now_us = 100;
		uint32_t idle = rig_session(&r), session = rig_session(&r);
		(void)rig_whole(&r, idle, 0, 40, 1);
		(void)rig_fork(&r, idle);
		(void)rig_session_as(&r, 0, RESIDENCY_LEASED, 2048, 500);
		(void)rig_session_as(&r, 0, RESIDENCY_LEASED, 1024, 600);
		struct rig_turn turn = {0, 50, 9, 100, 0, 0};
		uint32_t index = rig_turn(&r, session, turn);
		struct rig_batch b = rig_batch(&r);
		act(&r, &b, session, index);
		_exit(0);
	}
	int status = 0;
	(void)waitpid(child, &status, 0);
	return WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT;
}

static void well(struct rig *r, struct rig_batch *b, uint32_t session, uint32_t turn)
{
	(void)session;
	(void)turn;
	sched_audit(r->s);
	(void)rig_done(r, b);
}

#define BREACH(name, body) \
	static void name(struct rig *r, struct rig_batch *b, uint32_t session, uint32_t turn) \
	{ \
		(void)session; \
		(void)turn; \
		body; \
		(void)rig_done(r, b); \
	}

BREACH(time_back, r->now_us = 99)
BREACH(other_batch, b->batch++)
BREACH(no_results, b->count = 0)
BREACH(other_turn, b->results[0].turn++)
BREACH(too_many_rows, b->results[0].computed++)
BREACH(sample_unasked, b->results[0].sampled = 1)
BREACH(too_many_samples, {
	while (!b->entries[0].sample)
		*b = rig_done(r, b);
	b->results[0].sampled = 10;
})
BREACH(unknown_end, b->results[0].end = END_FAULT + 1)
BREACH(refused_end, b->results[0].end = END_REFUSED)
BREACH(foreign_page, (b->results[0].end = END_INTEGRITY, b->results[0].page = 0))
BREACH(dead_session, rig_simple(r, EVENT_CLOSE, 7))
BREACH(no_session, rig_simple(r, EVENT_CLOSE, 8))
BREACH(dead_turn, rig_cancel(r, turn + 1, END_CANCEL))
BREACH(no_end, rig_cancel(r, turn, END_NONE))
BREACH(dead_credit, rig_credit(r, turn + 1, 5))
BREACH(copy_done, rig_simple(r, EVENT_COPY_DONE, SCHED_NONE))
BREACH(future_record, rig_durable(r, r->out.step + 1))
BREACH(unknown_event, rig_simple(r, EVENT_KIND_COUNT, SCHED_NONE))
BREACH(small_room, (r->out.capacity = 1, rig_time(r, 200)))
BREACH(twice_done, { struct rig_batch again = *b; (void)rig_done(r, b); *b = again; })

static void breaches_abort(void)
{
	breach *const all[] = {time_back, other_batch, no_results, other_turn, too_many_rows, sample_unasked,
		too_many_samples, unknown_end, refused_end, foreign_page, dead_session, no_session, dead_turn, no_end,
		dead_credit, copy_done, future_record, unknown_event, small_room, twice_done};
	EXPECT(!aborts(well));
	for (unsigned i = 0; i < sizeof all / sizeof all[0]; i++)
		if (!EXPECT(aborts(all[i])))
			printf("# breach %u did not abort\n", i);
}

/* A fault planted in the state must be found by the audit alone. */
#define PLANT(name, body) \
	static void name(struct rig *r, struct rig_batch *b, uint32_t session, uint32_t turn) \
	{ \
		struct sched *s = r->s; \
		struct session *x = session_at(s, session); \
		struct turn *t = turn_at(s, turn); \
		struct page *page = page_at(s, 0, table_page(s, session, 0, 1)); \
		struct page *shared = page_at(s, 0, table_page(s, 0, 0, 0)); \
		(void)x, (void)t, (void)page, (void)shared, (void)b; \
		body; \
		sched_audit(s); \
	}

PLANT(plant_nothing, (void)s)
PLANT(plant_tag, page->tag = 0)
PLANT(plant_tag_twice, page->tag = shared->tag)
PLANT(plant_tag_future, page->tag = s->tag_next)
PLANT(plant_owner, page->owner_xor = 0)
PLANT(plant_owners, page->owners++)
PLANT(plant_shared_less, shared->owners--)
PLANT(plant_yielding, shared->yielding--)
PLANT(plant_unit, page->unit++)
PLANT(plant_principal, page->principal = 1)
PLANT(plant_state, page->state = PAGE_FREE)
PLANT(plant_bad, page->bad = 1)
PLANT(plant_sole, x->sole--)
PLANT(plant_resident, session_at(s, 0)->resident = 10)
PLANT(plant_history, x->history++)
PLANT(plant_known, x->known = x->history + 1)
PLANT(plant_floor, session_at(s, 0)->floor = 1)
PLANT(plant_lru, session_at(s, 0)->at_rest = 0)
PLANT(plant_promise, t->promised++)
PLANT(plant_promised, s->promised_units--)
PLANT(plant_yielding_units, s->yielding_units++)
PLANT(plant_granted, s->granted_units++)
PLANT(plant_chunks, s->chunk_used++)
PLANT(plant_ledger, (s->ledger[ACCOUNT_DEVICE][COLUMN_FREE]--, s->ledger[ACCOUNT_DEVICE][COLUMN_RUNNING]++))
PLANT(plant_stream, (s->ledger[ACCOUNT_STREAM][COLUMN_FREE]--, s->ledger[ACCOUNT_STREAM][COLUMN_RUNNING]++))
PLANT(plant_host, s->ledger[ACCOUNT_HOST][COLUMN_FREE]++)
PLANT(plant_bytes, principal_at(s, 0)->bytes++)
PLANT(plant_free_count, s->page_free[PLACE_DEVICE][0].count--)
#define FIRST_FREE s->page_free[PLACE_DEVICE][0].first
PLANT(plant_free_loop, page_at(s, 0, FIRST_FREE)->next = FIRST_FREE)
PLANT(plant_timer, (session_at(s, 3)->lease_until_us = 5000))
PLANT(plant_flight, t->in_flight = 0)
PLANT(plant_family, session_at(s, 0)->family.next = 1)

static void faults_are_found(void)
{
	breach *const all[] = {plant_tag, plant_tag_twice, plant_tag_future, plant_owner, plant_owners,
		plant_shared_less, plant_yielding, plant_unit, plant_principal, plant_state, plant_bad, plant_sole,
		plant_resident, plant_history, plant_known, plant_floor, plant_lru, plant_promise, plant_promised,
		plant_yielding_units, plant_granted, plant_chunks, plant_ledger, plant_stream, plant_host,
		plant_bytes, plant_free_count, plant_free_loop, plant_timer, plant_flight, plant_family};
	EXPECT(!aborts(plant_nothing));
	for (unsigned i = 0; i < sizeof all / sizeof all[0]; i++)
		if (!EXPECT(aborts(all[i])))
			printf("# fault %u was not found\n", i);
}

/* The entries kept for shared pages are bounded: a fork that finds none computes instead. */
static void sharing_is_bounded(void)
{
	struct rig r;
	struct sched_limits l = rig_limits(1);
	l.session_count = 12;
	rig_open(&r, &l);
	uint32_t first = rig_session(&r), last = SCHED_NONE;
	(void)rig_whole(&r, first, 0, 16, 1);
	for (int i = 0; i < SHARE_FACTOR + 2; i++) {
		last = rig_fork(&r, first);
		REQUIRE(last != SCHED_NONE);
		EXPECT_EQ(rig_view(&r, last).resident, i < SHARE_FACTOR ? 16 : 0);
		EXPECT_EQ(rig_view(&r, last).history, 17);
	}
	rig_rollback(&r, last, 10);
	struct effect end = rig_whole(&r, last, 10, 1, 1);
	EXPECT_EQ(end.as.end.end, END_LIMIT);
	EXPECT_EQ(end.as.end.recomputed, 10);
	EXPECT_EQ(rig_view(&r, first).resident, 0);
	rig_close(&r);
}

/* Equal state and equal event: a copied block goes the same way, wherever it lies. */
static void a_copy_goes_the_same_way(void)
{
	struct rig r, copy;
	struct sched_limits l = rig_limits(16);
	rig_open(&r, &l);
	rig_open(&copy, &l);
	uint32_t a = rig_session(&r);
	(void)rig_whole(&r, a, 0, 60, 3);
	(void)rig_fork(&r, a);
	memcpy(copy.s, r.s, sched_bytes(&l));
	copy.next_key = r.next_key;
	EXPECT(sched_hash(copy.s) == sched_hash(r.s));
	(void)rig_whole(&r, 1, 63, 40, 5);
	EXPECT(sched_hash(copy.s) != sched_hash(r.s));
	(void)rig_whole(&copy, 1, 63, 40, 5);
	EXPECT(sched_hash(copy.s) == sched_hash(r.s));
	rig_close(&r);
	rig_close(&copy);
}

int main(void)
{
	TAP_RUN(breaches_abort, "a breach of the caller's duties aborts");
	TAP_RUN(faults_are_found, "the audit finds planted faults");
	TAP_RUN(sharing_is_bounded, "sharing is bounded, and a fork beyond it computes");
	TAP_RUN(a_copy_goes_the_same_way, "a copied block goes the same way");
	return tap_done();
}
