/*
 * Places below the device: pages go down instead of being lost, and come back before the turn's first
 * row; parking; failed copies; what the ledger shows meanwhile.
 */
#include "tests/tap.h"
#include "tests/sched_rig.h"

static struct rig open_tiers(uint32_t device, uint32_t host, uint32_t disk, enum policy policy)
{
	struct rig r;
	struct sched_limits l = rig_limits(device);
	l.policy = policy;
	l.group[0].page_count[PLACE_HOST] = host;
	l.group[0].page_count[PLACE_DISK] = disk;
	rig_open(&r, &l);
	return r;
}

/* Copies told and not answered yet. */
static struct effect copies[256];
static uint32_t copy_count;

static struct rig_batch note(struct rig *r)
{
	for (uint32_t i = 0; i < r->out.count; i++)
		if (r->out.list[i].kind == EFFECT_COPY && copy_count < 256)
			copies[copy_count++] = r->out.list[i];
	return rig_batch(r);
}

/* Answers the oldest copy; returns the batch that the step issued. */
static struct rig_batch copy_done(struct rig *r, int err)
{
	struct event e = rig_event(r, EVENT_COPY_DONE);
	e.as.copy.copy = copies[0].as.copy.copy;
	e.as.copy.err = (uint32_t)err;
	memmove(copies, copies + 1, --copy_count * sizeof copies[0]);
	rig_send(r, &e);
	return note(r);
}

/* Sends a turn and sees it through, copies included; returns its END. */
static struct effect whole(struct rig *r, uint32_t session, uint32_t append, uint32_t output)
{
	struct rig_turn turn = {rig_view(r, session).history, append, output, output, 0, 0};
	struct effect end;
	memset(&end, 0, sizeof end);
	(void)rig_turn(r, session, turn);
	struct rig_batch b = note(r);
	for (int bound = 0; bound < 10000 && (b.count || copy_count); bound++) {
		if (b.count) {
			(void)rig_done(r, &b);
			b = note(r);
		} else {
			b = copy_done(r, 0);
		}
		if (rig_effect(r, EFFECT_END, 0))
			end = *rig_effect(r, EFFECT_END, 0);
	}
	return end;
}

static void down_and_up(void)
{
	struct rig r = open_tiers(8, 8, 0, POLICY_LRU);
	uint32_t a = rig_session(&r), b = rig_session(&r);
	EXPECT(whole(&r, a, 90, 2).as.end.end == END_LIMIT); /* 6 pages */
	EXPECT(whole(&r, b, 80, 2).as.end.end == END_LIMIT); /* 6 pages: 4 of a's go down */
	EXPECT(rig_view(&r, a).resident == 91);
	EXPECT(rig_view(&r, a).lower_bytes >= 4 * 1024);
	EXPECT(sched_ledger(r.s, ACCOUNT_HOST, COLUMN_RETAINED) == rig_view(&r, a).lower_bytes);
	EXPECT(rig_view(&r, b).lower_bytes == 0);
	uint64_t away = rig_view(&r, a).lower_bytes / 1024;
	struct effect end = whole(&r, a, 1, 2);
	EXPECT(end.as.end.recomputed == 0);
	EXPECT(end.as.end.fresh == 2); /* with the last sampled one */
	EXPECT(end.as.end.reloaded == (away - 1) * 16 + 91 % 16);
	EXPECT(end.as.end.resident == 91 - end.as.end.reloaded);
	EXPECT(rig_view(&r, a).lower_bytes == 0);
	EXPECT(sched_counts(r.s).tokens_reloaded == end.as.end.reloaded);
	rig_close(&r);
}

/* A turn has no row before its last page is there, and what it waits for is not free for others. */
static void no_row_before_the_copy(void)
{
	struct rig r = open_tiers(8, 8, 0, POLICY_LRU);
	uint32_t a = rig_session(&r);
	(void)whole(&r, a, 60, 2);
	rig_park(&r, a, PLACE_HOST);
	EXPECT(rig_count(&r, EFFECT_COPY) == 4);
	EXPECT(sched_ledger(r.s, ACCOUNT_HOST, COLUMN_MOVING) == 4 * 1024);
	EXPECT(sched_ledger(r.s, ACCOUNT_DEVICE, COLUMN_MOVING) == 4 * 1024);
	(void)note(&r);
	while (copy_count)
		(void)copy_done(&r, 0);
	EXPECT(sched_ledger(r.s, ACCOUNT_DEVICE, COLUMN_FREE) == 8 * 1024);
	struct rig_turn turn = {61, 4, 2, 2, 0, 0};
	(void)rig_turn(&r, a, turn);
	struct rig_batch b = note(&r);
	EXPECT(copy_count == 4);
	for (int i = 0; i < 4; i++) {
		EXPECT(b.count == 0);
		EXPECT(copies[0].as.copy.place_from == PLACE_HOST && copies[0].as.copy.place_to == PLACE_DEVICE);
		b = copy_done(&r, 0);
	}
	EXPECT(b.count == 1);
	EXPECT(rig_run(&r, b).as.end.reloaded == 61);
	rig_close(&r);
}

/* A copy back fails: the turn computes from there on, and says so. One down fails: told with LOST. */
static void failed_copies(void)
{
	struct rig r = open_tiers(8, 8, 0, POLICY_LRU);
	uint32_t a = rig_session(&r);
	(void)whole(&r, a, 60, 2);
	rig_park(&r, a, PLACE_HOST);
	(void)note(&r);
	while (copy_count)
		(void)copy_done(&r, 0);
	struct rig_turn turn = {61, 4, 2, 2, 0, 0};
	(void)rig_turn(&r, a, turn);
	struct rig_batch b = note(&r);
	(void)copy_done(&r, 0);
	b = copy_done(&r, ERR_INTEGRITY); /* the second page */
	while (copy_count) {
		struct rig_batch next = copy_done(&r, 0);
		b = next.count ? next : b;
	}
	struct effect end = rig_run(&r, b);
	EXPECT(end.as.end.end == END_LIMIT);
	EXPECT(end.as.end.reloaded == 16);
	EXPECT(end.as.end.recomputed == 45);
	EXPECT(end.as.end.fresh == 4);
	rig_park(&r, a, PLACE_HOST);
	(void)note(&r);
	while (copy_count)
		(void)copy_done(&r, ERR_IO);
	struct rig_turn again = {rig_view(&r, a).history, 1, 2, 2, 0, 0};
	(void)rig_turn(&r, a, again);
	const struct effect *lost = rig_effect(&r, EFFECT_LOST, 0);
	EXPECT(lost && lost->as.lost.why == LOST_COPY && lost->as.lost.tokens_after == 0);
	EXPECT(rig_run(&r, rig_batch(&r)).as.end.recomputed == 66);
	rig_close(&r);
}

/* One that could begin no copy, for want of pages, begins in the same step if a younger one gives some up:
   nothing else need come that would ask it again. */
static void loads_what_another_lost(void)
{
	struct rig r = open_tiers(8, 16, 0, POLICY_LRU);
	uint32_t a = rig_session(&r), b = rig_session(&r), other = rig_session(&r);
	for (int i = 0; i < 2; i++) {
		(void)whole(&r, i ? b : a, 60, 2);
		rig_park(&r, i ? b : a, PLACE_HOST);
		(void)note(&r);
		while (copy_count)
			(void)copy_done(&r, 0);
	}
	(void)whole(&r, other, 60, 2);
	uint32_t gone = rig_turn(&r, b, (struct rig_turn){61, 3, 1, 1, 0, 0});
	(void)note(&r);
	REQUIRE(copy_count == 4); /* up, into the last free pages */
	rig_cancel(&r, gone, END_CANCEL);
	(void)rig_turn(&r, a, (struct rig_turn){61, 3, 1, 1, 0, 0});
	(void)note(&r);
	REQUIRE(copy_count == 8); /* four of the other go down, for a */
	(void)rig_turn(&r, b, (struct rig_turn){61, 3, 1, 1, 0, 0});
	EXPECT_EQ(rig_count(&r, EFFECT_ADMITTED), 1);
	(void)note(&r);
	(void)copy_done(&r, 0);
	EXPECT_EQ(rig_count(&r, EFFECT_COPY), 0);
	struct rig_batch batch = copy_done(&r, ERR_IO); /* b's second page, and what stands behind it */
	EXPECT_EQ(rig_count(&r, EFFECT_COPY), 1);
	EXPECT(rig_effect(&r, EFFECT_COPY, 0) && rig_effect(&r, EFFECT_COPY, 0)->session == a);
	for (int bound = 0; bound < 100 && (batch.count || copy_count); bound++) {
		if (batch.count) {
			(void)rig_done(&r, &batch);
			batch = note(&r);
		} else {
			batch = copy_done(&r, 0);
		}
	}
	EXPECT_EQ(rig_view(&r, a).resident, 64);
	EXPECT_EQ(rig_view(&r, b).resident, 64);
	rig_close(&r);
}

/* What is worth least leaves the host for the disk, or for good when there is none. */
static void lower_places_fill(void)
{
	for (uint32_t disk = 0; disk <= 32; disk += 32) {
		struct rig r = open_tiers(8, 4, disk, POLICY_LRU);
		uint32_t x[4];
		for (int i = 0; i < 4; i++) {
			r.now_us += 1000;
			x[i] = rig_session(&r);
			EXPECT(whole(&r, x[i], 90, 2).as.end.end == END_LIMIT);
		}
		EXPECT((rig_view(&r, x[0]).resident == 91) == (disk > 0));
		EXPECT((sched_ledger(r.s, ACCOUNT_DISK, COLUMN_RETAINED) > 0) == (disk > 0));
		struct effect end = whole(&r, x[0], 1, 1);
		EXPECT(end.as.end.end == END_LIMIT);
		EXPECT((end.as.end.recomputed == 0) == (disk > 0));
		rig_close(&r);
	}
}

static void swap_moves_at_once(void)
{
	struct rig r = open_tiers(8, 6, 0, POLICY_SWAP);
	uint32_t a = rig_session(&r), b = rig_session(&r);
	(void)whole(&r, a, 60, 2);
	EXPECT(rig_view(&r, a).lower_bytes == 4 * 1024);
	(void)whole(&r, b, 60, 2);
	EXPECT(rig_view(&r, b).lower_bytes == 2 * 1024); /* as far as there is room */
	EXPECT(whole(&r, a, 1, 1).as.end.reloaded == 61);
	rig_close(&r);
}

/* Shared pages go down once, for all their owners. */
static void shared_pages_go_down(void)
{
	struct rig r = open_tiers(8, 8, 0, POLICY_LRU);
	uint32_t a = rig_session(&r);
	(void)whole(&r, a, 64, 1);
	uint32_t child = rig_fork(&r, a), other = rig_session(&r);
	EXPECT(rig_view(&r, child).resident == 64);
	EXPECT(whole(&r, other, 120, 1).as.end.end == END_LIMIT);
	EXPECT(rig_view(&r, a).resident == 64 && rig_view(&r, child).resident == 64);
	EXPECT(sched_ledger(r.s, ACCOUNT_HOST, COLUMN_SHARED) > 0);
	EXPECT(whole(&r, child, 1, 1).as.end.recomputed == 0);
	EXPECT(whole(&r, a, 1, 1).as.end.recomputed == 0);
	rig_close(&r);
}

/* Pages found at the start are a session's as if they had gone down; another that shares them has them
   by a fork, cut where they part. */
static void found_with(enum policy policy)
{
	struct rig r = open_tiers(8, 0, 16, policy);
	int stays = policy == POLICY_LRU; /* else it comes up by itself, as far as there is room */
	uint32_t a = rig_session(&r);
	for (uint32_t i = 0; i < 4; i++) {
		rig_found(&r, a, 11 - 3 * i, i < 3 ? 16 : 5); /* slots in no order */
		(void)note(&r);
		const struct effect *told = rig_effect(&r, EFFECT_ASSIGN, 0);
		EXPECT(told && told->as.run.place == PLACE_DISK && told->as.run.page_first == 11 - 3 * i);
	}
	EXPECT(rig_view(&r, a).history == 53 && rig_view(&r, a).resident == 53);
	EXPECT(!stays || rig_view(&r, a).lower_bytes == 4 * 1024);
	EXPECT(!stays || sched_ledger(r.s, ACCOUNT_DISK, COLUMN_RETAINED) == 4 * 1024);
	uint32_t b = rig_fork(&r, a);
	(void)note(&r);
	rig_rollback(&r, b, 32);
	(void)note(&r);
	rig_found(&r, b, 0, 16);
	(void)note(&r);
	EXPECT(!stays || sched_ledger(r.s, ACCOUNT_DISK, COLUMN_SHARED) == 2 * 1024);
	EXPECT(!stays || sched_ledger(r.s, ACCOUNT_DISK, COLUMN_RETAINED) == 3 * 1024);
	struct effect end = whole(&r, b, 1, 1);
	EXPECT(stays ? end.as.end.reloaded == 48 : end.as.end.reloaded + end.as.end.resident == 48);
	EXPECT(end.as.end.fresh == 1 && end.as.end.recomputed == 0);
	end = whole(&r, a, 3, 2);
	EXPECT(end.as.end.reloaded + end.as.end.resident == 53 && end.as.end.fresh == 3);
	while (copy_count)
		(void)copy_done(&r, 0);
	rig_close(&r);
}

/* What a session keeps whatever comes is not brought up where a turn that runs counts on the room. */
static void kept_below(void)
{
	struct rig r;
	struct sched_limits l = rig_limits(8);
	l.policy = POLICY_COST;
	l.growth_tokens = 16;
	l.group[0].page_count[PLACE_DISK] = 8;
	rig_open(&r, &l);
	uint32_t a = rig_session_as(&r, 0, RESIDENCY_PINNED, 3 * 1024, 0), b = rig_session(&r);
	(void)rig_turn(&r, b, (struct rig_turn){0, 16, 81, 100, 0, 0}); /* may fill six pages, has promised two */
	struct rig_batch batch = rig_batch(&r);
	for (uint32_t i = 0; i < 3; i++)
		rig_found(&r, a, i, 16);
	EXPECT_EQ(rig_view(&r, a).lower_bytes, 1024); /* two of three came up */
	EXPECT(rig_run(&r, batch).as.end.end == END_LIMIT);
	rig_close(&r);
}

static void found_at_the_start(void)
{
	found_with(POLICY_LRU);
	found_with(POLICY_COST);
}

/* Parked to the disk, a session has nothing left on the device or the host. */
static void parked_from_both(void)
{
	struct rig r = open_tiers(8, 3, 16, POLICY_LRU);
	uint32_t a = rig_session(&r), b = rig_session(&r);
	(void)whole(&r, a, 60, 2);
	(void)whole(&r, b, 80, 2);
	EXPECT(sched_ledger(r.s, ACCOUNT_HOST, COLUMN_RETAINED) > 0);
	rig_park(&r, a, PLACE_DISK);
	(void)note(&r);
	while (copy_count)
		(void)copy_done(&r, 0);
	EXPECT(rig_view(&r, a).lower_bytes == 4 * 1024);
	EXPECT(sched_ledger(r.s, ACCOUNT_DISK, COLUMN_RETAINED) >= 4 * 1024);
	struct effect end = whole(&r, a, 1, 1);
	EXPECT(end.as.end.reloaded == 61 && end.as.end.recomputed == 0);
	rig_close(&r);
}

/* A disk that is slower than computing is not used, and nothing is given up ahead of need for it. */
static void slow_disk(void)
{
	for (int slow = 0; slow < 2; slow++) {
		struct rig r = open_tiers(32, 0, 32, POLICY_LRU);
		uint32_t a = rig_session(&r), b = rig_session(&r);
		struct event e = rig_event(&r, EVENT_RATES);
		e.as.rates.prefill_ns_token = 1000000; /* 16 ms a page */
		e.as.rates.copy_bytes_s[PLACE_DISK] = slow ? 1024 * 50 : 1024 * 70;
		rig_send(&r, &e);
		(void)whole(&r, a, 250, 2);
		(void)whole(&r, b, 240, 2); /* 31 of 32 */
		EXPECT(rig_view(&r, a).resident == 251);
		EXPECT(whole(&r, b, 10, 2).as.end.end == END_LIMIT);
		(void)whole(&r, rig_session(&r), 60, 2);
		EXPECT((rig_view(&r, a).lower_bytes > 0) == !slow);
		EXPECT((rig_view(&r, a).resident == 251) == !slow);
		rig_close(&r);
	}
}

/* With room on the device, what is expected back first comes up before its turn, and then waits for
   nothing; what was parked stays down. */
static void up_before_the_turn(void)
{
	struct rig r = open_tiers(40, 40, 0, POLICY_COST);
	uint32_t a = rig_session(&r), b = rig_session(&r), c = rig_session(&r), big = rig_session(&r);
	(void)whole(&r, a, 90, 2);
	(void)whole(&r, b, 90, 2);
	(void)whole(&r, c, 90, 2);
	(void)whole(&r, big, 250, 2);
	uint32_t more[2];
	for (int i = 0; i < 2; i++) {
		more[i] = rig_session(&r);
		(void)whole(&r, more[i], 250, 2);
	}
	EXPECT(rig_view(&r, a).lower_bytes == 6 * 1024 || rig_view(&r, b).lower_bytes == 6 * 1024);
	rig_park(&r, c, PLACE_HOST);
	(void)note(&r);
	struct event e = rig_event(&r, EVENT_HINT);
	e.session = b;
	e.as.hint.pause = PAUSE_TOOL;
	e.as.hint.returns_in_us = 2000000;
	rig_send(&r, &e);
	e.session = a;
	e.as.hint.returns_in_us = UINT64_MAX / 4;
	rig_send(&r, &e);
	while (copy_count)
		(void)copy_done(&r, 0);
	/* Room for b and a part of a: a slab's sixteenth stays free. */
	r.now_us += 1500000;
	for (int i = 0; i < 128; i++) { /* each step looks at the ages of one class */
		e = rig_event(&r, EVENT_TIMER);
		rig_send(&r, &e);
		(void)note(&r);
	}
	e = rig_event(&r, EVENT_CLOSE);
	e.session = more[0];
	rig_send(&r, &e);
	(void)note(&r);
	for (int i = 0; i < 200; i++) {
		if (copy_count) {
			(void)copy_done(&r, 0);
			continue;
		}
		e = rig_event(&r, EVENT_DURABLE);
		e.as.durable.step = r.out.step;
		rig_send(&r, &e);
		(void)note(&r);
	}
	EXPECT(sched_counts(r.s).pages_raised >= 6);
	EXPECT(rig_view(&r, b).lower_bytes == 0);
	EXPECT(rig_view(&r, c).lower_bytes == 6 * 1024);
	struct effect end = whole(&r, b, 1, 1);
	EXPECT(end.as.end.reloaded == 0 && end.as.end.recomputed == 0 && end.as.end.resident == 91);
	rig_close(&r);
}

int main(void)
{
	TAP_RUN(down_and_up, "pages go down instead of being lost, and come back");
	TAP_RUN(no_row_before_the_copy, "no row before the last copy; the ledger shows what moves");
	TAP_RUN(failed_copies, "a failed copy costs a computation, and is told");
	TAP_RUN(loads_what_another_lost, "who had no page to load into has one that another gives up");
	TAP_RUN(lower_places_fill, "host gives way to disk, and without one to nothing");
	TAP_RUN(swap_moves_at_once, "swap moves whole contexts, first come first served");
	TAP_RUN(shared_pages_go_down, "shared pages go down for all their owners");
	TAP_RUN(found_at_the_start, "what is found on the disk is loaded; a fork shares it");
	TAP_RUN(slow_disk, "a place that is slower than computing is not used");
	TAP_RUN(up_before_the_turn, "what is expected back comes up before its turn");
	TAP_RUN(kept_below, "not where it would take from turns that run");
	TAP_RUN(parked_from_both, "a parked session leaves the device and the host");
	return tap_done();
}
