/*
 * Retention: what each policy keeps between turns, and that POLICY_COST learns from what it sees.
 */
#include "tests/tap.h"
#include "tests/sched_rig.h"

static struct rig open_as(enum policy policy, uint32_t pages)
{
	struct rig r;
	struct sched_limits l = rig_limits(pages);
	l.policy = policy;
	l.ttl_us = 5000000;
	rig_open(&r, &l);
	return r;
}

/* A turn that ends at once, with a tool call or without; then time passes. */
static void turn_as(struct rig *r, uint32_t session, uint32_t append, enum end end)
{
	struct rig_turn turn = {rig_view(r, session).history, append, 4, 4, 0, 0};
	(void)rig_turn(r, session, turn);
	struct rig_batch b = rig_batch(r);
	while (b.count && !b.results[0].sampled)
		b = rig_done(r, &b);
	if (b.count) {
		b.results[0].end = end;
		b = rig_done(r, &b);
	}
	EXPECT(b.count == 0);
}

/* Sessions that call a tool come back in half a second, those of people in a minute. */
static void learn(struct rig *r)
{
	uint32_t tool = rig_session(r), human = rig_session(r);
	for (int i = 0; i < 15; i++) {
		turn_as(r, tool, 1, END_TOOL);
		r->now_us += 500000;
		turn_as(r, human, 1, END_STOP);
		if (i % 3 == 2)
			r->now_us += 60000000;
		rig_simple(r, EVENT_TIMER, SCHED_NONE);
	}
	rig_simple(r, EVENT_CLOSE, tool);
	rig_simple(r, EVENT_CLOSE, human);
}

/* Which of two goes: one that called a tool, and one of a person used since. */
static void who_gives_way(enum policy policy, int tool_goes)
{
	struct rig r = open_as(policy, 6);
	learn(&r);
	uint32_t tool = rig_session(&r), human = rig_session(&r), third = rig_session(&r);
	turn_as(&r, tool, 32, END_TOOL);
	r.now_us += 100000;
	turn_as(&r, human, 32, END_STOP);
	r.now_us += 100000;
	turn_as(&r, third, 60, END_TOOL);
	EXPECT((rig_view(&r, tool).resident < 32) == tool_goes);
	EXPECT((rig_view(&r, human).resident < 32) == !tool_goes);
	rig_close(&r);
}

static void cost_keeps_who_comes_back(void)
{
	who_gives_way(POLICY_LRU, 1);
	who_gives_way(POLICY_COST, 0);
}

/* The same two pauses; one was told to last an hour. */
static void a_hint_is_believed(void)
{
	for (int hinted = 0; hinted < 2; hinted++) {
		struct rig r = open_as(POLICY_COST, 6);
		uint32_t first = rig_session(&r), second = rig_session(&r), third = rig_session(&r);
		turn_as(&r, first, 32, END_TOOL);
		turn_as(&r, second, 32, END_TOOL);
		struct event e = rig_event(&r, EVENT_HINT);
		e.session = second;
		e.as.hint.pause = PAUSE_TOOL;
		e.as.hint.returns_in_us = hinted ? 3600000000 : 0;
		rig_send(&r, &e);
		turn_as(&r, third, 60, END_TOOL);
		EXPECT((rig_view(&r, hinted ? second : first).resident < 32));
		EXPECT((rig_view(&r, hinted ? first : second).resident == 32));
		rig_close(&r);
	}
}

/* When a session is back: what its hint says, or what was seen of others like it; else nobody knows. */
static void when_it_is_back(void)
{
	for (int learns = 0; learns < 2; learns++) {
		struct rig r = open_as(learns ? POLICY_COST : POLICY_LRU, 6);
		uint32_t both = rig_session(&r), tool = rig_session(&r), human = rig_session(&r);
		for (int i = 0; i < 40; i++) { /* half a second for a tool, a minute for a person */
			turn_as(&r, both, 1, END_TOOL);
			r.now_us += 500000;
			turn_as(&r, both, 1, END_STOP);
			r.now_us += 60000000;
			if (i % 8 == 7)
				rig_rollback(&r, both, 0);
		}
		EXPECT(sched_return_us(r.s, tool, r.now_us) == UINT64_MAX);
		turn_as(&r, tool, 4, END_TOOL);
		turn_as(&r, human, 4, END_STOP);
		const uint64_t quick = sched_return_us(r.s, tool, r.now_us);
		const uint64_t slow = sched_return_us(r.s, human, r.now_us);
		EXPECT((quick == UINT64_MAX) == !learns && (slow == UINT64_MAX) == !learns);
		if (learns) {
			EXPECT(quick >= r.now_us + 250000 && quick <= r.now_us + 1100000);
			EXPECT(slow >= r.now_us + 30000000 && slow <= r.now_us + 130000000);
			/* Past its usual time it is expected later, and never in the past. */
			const uint64_t late = r.now_us + 20000000;
			EXPECT(sched_return_us(r.s, tool, late) > late);
		}
		struct event e = rig_event(&r, EVENT_HINT);
		e.session = tool;
		e.as.hint.pause = PAUSE_TOOL;
		e.as.hint.returns_in_us = 90000000;
		rig_send(&r, &e);
		EXPECT(sched_return_us(r.s, tool, r.now_us) == rig_view(&r, tool).idle_since_us + 90000000);
		rig_close(&r);
	}
}

/* Two tools of one principal, one quick and one slow: told apart by name. */
static void tools_are_told_apart(void)
{
	struct rig r = open_as(POLICY_COST, 6);
	uint32_t session[2];
	for (int round = 0; round < 50; round++) {
		for (uint64_t tool = 0; tool < 2; tool++) {
			uint32_t x = rig_session(&r);
			turn_as(&r, x, 1, END_TOOL);
			struct event e = rig_event(&r, EVENT_HINT);
			e.session = x;
			e.as.hint.pause = PAUSE_TOOL;
			e.as.hint.tool_key = 77 + tool;
			rig_send(&r, &e);
			r.now_us += tool ? 200000000 : 300000;
			turn_as(&r, x, 1, END_STOP);
			rig_simple(&r, EVENT_CLOSE, x);
		}
	}
	for (uint64_t tool = 0; tool < 2; tool++) {
		session[tool] = rig_session(&r);
		turn_as(&r, session[tool], 32, END_TOOL);
		struct event e = rig_event(&r, EVENT_HINT);
		e.session = session[tool];
		e.as.hint.pause = PAUSE_TOOL;
		e.as.hint.tool_key = 77 + tool;
		rig_send(&r, &e);
	}
	r.now_us += 50000;
	turn_as(&r, rig_session(&r), 60, END_TOOL);
	EXPECT(rig_view(&r, session[0]).resident == 32);
	EXPECT(rig_view(&r, session[1]).resident < 32);
	rig_close(&r);
}

static void fixed_times(void)
{
	struct rig r = open_as(POLICY_TTL, 8);
	uint32_t a = rig_session(&r), b = rig_session(&r);
	turn_as(&r, a, 20, END_TOOL);
	r.now_us = 1000000;
	turn_as(&r, b, 20, END_TOOL);
	EXPECT(sched_deadline_us(r.s) == 5000000);
	rig_time(&r, 4999999);
	EXPECT(rig_view(&r, a).resident == 20);
	rig_time(&r, 5000000);
	EXPECT(rig_view(&r, a).resident == 0);
	EXPECT(rig_effect(&r, EFFECT_LOST, 0) && rig_effect(&r, EFFECT_LOST, 0)->as.lost.why == LOST_POLICY);
	EXPECT(rig_view(&r, b).resident == 20);
	rig_time(&r, 6000000);
	EXPECT(rig_view(&r, b).resident == 0);
	rig_close(&r);
	r = open_as(POLICY_NONE, 8);
	a = rig_session_as(&r, 0, RESIDENCY_PINNED, 1024, 0);
	turn_as(&r, a, 40, END_TOOL);
	EXPECT(rig_view(&r, a).resident == 16); /* what is pinned stays */
	struct effect end = rig_whole(&r, a, 41, 1, 1);
	EXPECT(end.as.end.resident == 16);
	EXPECT(end.as.end.recomputed == 24);
	struct sched_counts counts = sched_counts(r.s);
	EXPECT(counts.turns_admitted == 2);
	EXPECT(counts.tokens_recomputed == 24);
	EXPECT(counts.tokens_resident == 16);
	EXPECT(counts.forced_recomputes == 0);
	rig_close(&r);
}

/* Which of two goes, when the one used before the other was touched since. */
static void touched_stays(enum policy policy)
{
	struct rig r = open_as(policy, 6);
	uint32_t touched = rig_session(&r), other = rig_session(&r);
	turn_as(&r, touched, 32, END_TOOL);
	r.now_us += 1000000;
	turn_as(&r, other, 32, END_TOOL);
	r.now_us += 1000000;
	rig_simple(&r, EVENT_TOUCH, touched);
	EXPECT(rig_view(&r, touched).idle_since_us == r.now_us);
	rig_simple(&r, EVENT_TOUCH, touched); /* and again: no other than once */
	EXPECT(r.out.count == 0);
	r.now_us += 1000000;
	turn_as(&r, rig_session(&r), 60, END_TOOL);
	EXPECT(rig_view(&r, touched).resident == 32);
	EXPECT(rig_view(&r, other).resident < 32);
	rig_close(&r);
}

static void touch(void)
{
	touched_stays(POLICY_LRU);
	touched_stays(POLICY_COST);
	struct rig r = open_as(POLICY_TTL, 8);
	uint32_t a = rig_session(&r);
	turn_as(&r, a, 20, END_TOOL);
	r.now_us = 4000000;
	rig_simple(&r, EVENT_TOUCH, a);
	EXPECT(sched_deadline_us(r.s) == 9000000);
	rig_time(&r, 8999999);
	EXPECT(rig_view(&r, a).resident == 20);
	rig_time(&r, 9000000);
	EXPECT(rig_view(&r, a).resident == 0);
	/* One that runs is in use anyway; one that never ran has no pause. */
	rig_simple(&r, EVENT_TOUCH, rig_session(&r));
	(void)rig_turn(&r, a, (struct rig_turn){0, 20, 4, 4, 0, 0});
	rig_simple(&r, EVENT_TOUCH, a);
	EXPECT(r.out.count == 0);
	rig_close(&r);
}

/* With a knee, the tail of a long context is worth more than that of a short one. */
static void attention_counts(void)
{
	for (uint32_t knee = 0; knee < 2; knee++) {
		struct rig r;
		struct sched_limits l = rig_limits(9);
		l.policy = POLICY_COST;
		l.knee_tokens = knee * 50;
		rig_open(&r, &l);
		uint32_t large = rig_session(&r), small = rig_session(&r);
		turn_as(&r, large, 80, END_TOOL);
		r.now_us += 1000;
		turn_as(&r, small, 32, END_STOP);
		turn_as(&r, rig_session(&r), 40, END_TOOL);
		EXPECT((rig_view(&r, large).resident == 80) == (knee == 1));
		EXPECT((rig_view(&r, small).resident == 32) == (knee == 0));
		rig_close(&r);
	}
}

int main(void)
{
	TAP_RUN(cost_keeps_who_comes_back, "what comes back soon is kept, once it was seen to");
	TAP_RUN(a_hint_is_believed, "a hint of a late return gives way first");
	TAP_RUN(tools_are_told_apart, "tools are told apart by name");
	TAP_RUN(when_it_is_back, "when a session is expected back");
	TAP_RUN(fixed_times, "ttl keeps for so long, none keeps what is granted");
	TAP_RUN(touch, "a session that was touched pauses as if its turn had just ended");
	TAP_RUN(attention_counts, "with a knee the tail of a long context is worth more");
	return tap_done();
}
