/*
 * Who goes first: warm turns before cold ones, with a bound; principals by what they got; short
 * prompts before long ones; and a step that does not take longer than was wanted.
 */
#include "tests/tap.h"
#include "tests/sched_rig.h"

static const struct effect *told(const struct rig *r, enum effect_kind kind, uint32_t session)
{
	for (uint32_t i = 0; i < r->out.count; i++)
		if (r->out.list[i].kind == kind && r->out.list[i].session == session)
			return &r->out.list[i];
	return NULL;
}

static uint32_t send_turn(struct rig *r, uint32_t session, uint32_t append, uint32_t output)
{
	struct rig_turn turn = {rig_view(r, session).history, append, output, output, 0, 0};
	return rig_turn(r, session, turn);
}

/* One turn runs at a time; a warm turn that comes later than a cold one goes before it, but not
   when the cold one has waited long enough. */
static void warm_before_cold(void)
{
	for (int late = 0; late < 2; late++) {
		struct rig r;
		struct sched_limits l = rig_limits(32);
		l.batch_turns = 1;
		l.wait_us_max = 1000;
		rig_open(&r, &l);
		r.now_us = 5000;
		uint32_t warm = rig_session(&r), cold = rig_session(&r), first = rig_session(&r);
		(void)rig_whole(&r, warm, 0, 40, 2);
		(void)send_turn(&r, first, 8, 4);
		struct rig_batch b = rig_batch(&r);
		(void)send_turn(&r, cold, 40, 2);
		(void)send_turn(&r, warm, 2, 2);
		r.now_us += late ? 1000 : 999;
		while (b.count && !told(&r, EFFECT_ADMITTED, warm) && !told(&r, EFFECT_ADMITTED, cold))
			b = rig_done(&r, &b);
		EXPECT((told(&r, EFFECT_ADMITTED, cold) != NULL) == late);
		EXPECT((told(&r, EFFECT_ADMITTED, warm) != NULL) == !late);
		rig_close(&r);
	}
}

/* The batch in flight, of a prompt, and those that follow took so long. */
static void batches_took(struct rig *r, uint64_t prompt_us, uint64_t decode_us)
{
	uint64_t us = prompt_us;
	for (struct rig_batch b = rig_batch(r); b.count > 0; b = rig_batch(r)) {
		struct event e = rig_event(r, EVENT_BATCH_DONE);
		e.as.batch.batch = b.batch;
		e.as.batch.result_count = b.count;
		e.as.batch.measured_us = us;
		us = decode_us;
		sched_step(r->s, &e, NULL, b.results, &r->out);
		sched_audit(r->s);
	}
}

/* Twelve pages, given up by what they cost. */
static void open_cost(struct rig *r)
{
	struct sched_limits l = rig_limits(12);
	l.policy = POLICY_COST;
	l.wait_us_max = 100000000;
	rig_open(r, &l);
}

/* A session that has 8 pages of 12 and is expected back, on a machine where a turn's prompt and each row
   after it took so long; beside it one whose turn is in the batch, and one that had none. */
struct three {
	uint32_t expected, busy, cold;
	struct rig_batch batch;
};

static struct three beside_one_expected(struct rig *r, uint32_t output, uint64_t prompt_us,
					uint64_t decode_us)
{
	open_cost(r);
	r->now_us = 100000000;
	struct three t = {.expected = rig_session(r), .busy = rig_session(r), .cold = rig_session(r)};
	(void)send_turn(r, t.expected, 30, output);
	batches_took(r, prompt_us, decode_us);
	r->now_us = 200000000;
	(void)rig_whole(r, t.expected, 0, 120, 2);
	(void)send_turn(r, t.busy, 30, 2);
	t.batch = rig_batch(r);
	return t;
}

/* A cold turn does not drive out a session that is expected back, while the machine has no time to
   spare; when it has waited long enough it does. The wait tells what is short, and the deadline when it
   is due. */
static void cold_turns_wait_for_those_expected(void)
{
	struct rig r;
	const struct three t = beside_one_expected(&r, 2, 200000000, 200000000);
	EXPECT(t.batch.count == 1);
	uint32_t turn = send_turn(&r, t.cold, 60, 2);
	const struct effect *wait = told(&r, EFFECT_WAIT, t.cold);
	EXPECT(wait && wait->as.wait.why == WAIT_PAGES);
	EXPECT(wait && wait->as.wait.short_bytes == 2 * 1024);
	struct turn_view view;
	EXPECT(sched_turn(r.s, turn, &view) == 0 && view.place == 1 && view.eta_us >= r.now_us);
	EXPECT(sched_deadline_us(r.s) == 300000000);
	rig_time(&r, 299999999);
	EXPECT(!told(&r, EFFECT_ADMITTED, t.cold));
	rig_time(&r, 300000000);
	EXPECT(told(&r, EFFECT_ADMITTED, t.cold) != NULL);
	EXPECT(rig_run(&r, t.batch).kind == EFFECT_END);
	EXPECT(rig_view(&r, t.expected).resident < 120);
	rig_close(&r);
}

/* A machine that only samples has time to spare for prompts, however busy it is. */
static void sampling_is_no_load(void)
{
	struct rig r;
	const struct three t = beside_one_expected(&r, 8, 1000, 30000000);
	EXPECT(t.batch.count == 1);
	(void)send_turn(&r, t.cold, 60, 2);
	EXPECT(told(&r, EFFECT_ADMITTED, t.cold) != NULL);
	rig_close(&r);
}

/* Nothing else to do: then it need not wait. */
static void an_idle_machine_takes_them(void)
{
	struct rig r;
	open_cost(&r);
	uint32_t a = rig_session(&r), cold = rig_session(&r);
	(void)rig_whole(&r, a, 0, 120, 2);
	EXPECT(rig_whole(&r, cold, 0, 90, 2).as.end.end == END_LIMIT);
	rig_close(&r);
}

/* One principal has six turns waiting, another one comes last with one: it is the second to run. */
static void principals_take_turns(void)
{
	struct rig r;
	struct sched_limits l = rig_limits(64);
	l.batch_turns = 1;
	l.wait_us_max = 1000000000;
	rig_open(&r, &l);
	r.now_us = 1;
	uint32_t many[6], other;
	struct rig_batch b = {0};
	for (int i = 0; i < 6; i++) {
		many[i] = rig_session_as(&r, 0, RESIDENCY_BEST_EFFORT, 0, 0);
		(void)send_turn(&r, many[i], 30, 2);
		b = rig_batch(&r).count ? rig_batch(&r) : b;
	}
	other = rig_session_as(&r, 1, RESIDENCY_BEST_EFFORT, 0, 0);
	(void)send_turn(&r, other, 30, 2);
	int ended = 0;
	while (b.count && !told(&r, EFFECT_ADMITTED, other)) {
		b = rig_done(&r, &b);
		ended += (int)rig_count(&r, EFFECT_END);
	}
	EXPECT(ended == 1);
	rig_close(&r);
}

/* A long prompt has begun; a short one comes and goes first. The long one ages, and then it does. */
static void short_prompts_first(void)
{
	struct rig r;
	struct sched_limits l = rig_limits(64);
	l.batch_rows = l.chunk_tokens = 16;
	rig_open(&r, &l);
	uint32_t large = rig_session(&r), small = rig_session(&r);
	(void)send_turn(&r, large, 200, 2);
	struct rig_batch b = rig_batch(&r);
	(void)send_turn(&r, small, 30, 2);
	b = rig_done(&r, &b);
	EXPECT(b.count == 1 && b.entries[0].session == small);
	b = rig_done(&r, &b);
	EXPECT(b.count == 2 && b.entries[0].session == small && b.entries[0].row_count == 14);
	EXPECT(b.entries[1].session == large && b.entries[1].row_count == 2);
	(void)rig_run(&r, b);
	/* 168 microseconds of work (1 a token while no rate is known) are worth four times that in waiting. */
	for (int late = 0; late < 2; late++) {
		uint32_t old = rig_session(&r), young = rig_session(&r);
		(void)send_turn(&r, old, 200, 2);
		b = rig_batch(&r);
		r.now_us += late ? 4 * 170 : 4 * 100;
		(void)send_turn(&r, young, 16, 2);
		b = rig_done(&r, &b);
		EXPECT(b.entries[0].session == (late ? old : young));
		(void)rig_run(&r, b);
		rig_simple(&r, EVENT_CLOSE, old);
		rig_simple(&r, EVENT_CLOSE, young);
	}
	rig_close(&r);
}

/* A machine of 1,000 us a step, 500 a decoding row and 100 a row of prefill. */
static uint64_t took(const struct rig_batch *b)
{
	uint64_t us = 1000;
	for (uint32_t i = 0; i < b->count; i++)
		us += b->entries[i].phase == PHASE_DECODE ? 500 : 100 * (uint64_t)b->entries[i].row_count;
	return us;
}

/* The batch is done after so long; the next. */
static struct rig_batch batch_after(struct rig *r, const struct rig_batch *b, uint64_t us)
{
	struct event e = rig_event(r, EVENT_BATCH_DONE);
	r->now_us = e.now_us = r->now_us + us;
	e.as.batch.batch = b->batch;
	e.as.batch.result_count = b->count;
	e.as.batch.measured_us = us;
	sched_step(r->s, &e, NULL, b->results, &r->out);
	return rig_batch(r);
}

/* Two streams decode; a prompt of 3,000 tokens comes. No step may then take more than twice what they
   alone took (but for the first, when nothing is known), and the prompt is done in few steps. */
static void a_long_prompt_beside_streams(void)
{
	struct rig r;
	struct sched_limits l = rig_limits(400);
	l.context_tokens = 4000;
	l.batch_rows = l.chunk_tokens = 512;
	l.step_us = SCHED_STEP_AUTO;
	rig_open(&r, &l);
	uint64_t worst = 0, steps = 0;
	int sent = 0;
	(void)send_turn(&r, rig_session(&r), 4, 900);
	struct rig_batch b = rig_batch(&r);
	(void)send_turn(&r, rig_session(&r), 4, 900);
	uint32_t large = rig_session(&r);
	for (int step = 0; b.count && step < 500; step++) {
		uint64_t us = took(&b);
		int prefill = 0;
		for (uint32_t i = 0; i < b.count; i++)
			prefill |= b.entries[i].session == large && b.entries[i].phase == PHASE_PREFILL;
		steps += (uint64_t)prefill;
		if (prefill && steps > 8 && us > worst)
			worst = us;
		b = batch_after(&r, &b, us);
		sched_audit(r.s);
		if (step == 20 && !sent++) {
			struct rig_turn turn = {0, 3000, 2, 2, 0, 0};
			(void)rig_turn(&r, large, turn);
		}
	}
	EXPECT(steps > 100); /* 3000 rows at 15 or so a step */
	EXPECT(steps < 260);
	EXPECT(worst <= 2 * 2000);
	rig_close(&r);
}

/* A machine whose rows of a prompt cost more the further on they are, by attention. */
struct machine {
	uint64_t base_us, decode_us, row_us, knee;
};

static uint64_t took_far(const struct machine *m, const struct rig_batch *b)
{
	double us = (double)m->base_us;
	for (uint32_t i = 0; i < b->count; i++) {
		double rows = b->entries[i].row_count, at = b->entries[i].position_first + rows / 2;
		us += b->entries[i].phase == PHASE_DECODE ? (double)m->decode_us
			: rows * (double)m->row_us * (1 + at / (double)m->knee);
	}
	return (uint64_t)us;
}

static int by_size(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
	return (x > y) - (x < y);
}

/* Sixteen streams; a prompt of 100,000 tokens beside them. The time between two tokens of a stream, at the
   99th hundredth, is at most twice what it was without; and the prompt gets what that leaves. */
static void as_long_as_agents_have_it(const struct machine *m)
{
	enum { STREAMS = 16, PROMPT = 100000, ALONE = 2000, STEPS = 120000 };
	static uint64_t alone[ALONE], beside[STEPS];
	struct rig r;
	struct sched_limits l = rig_limits(1 << 17);
	l.context_tokens = 1 << 17;
	l.growth_tokens = 256;
	l.stream_turn_bytes = 0;
	l.batch_turns = STREAMS + 1;
	l.batch_rows = l.chunk_tokens = 2048;
	l.session_count = l.turn_count = l.queue_turns = 32;
	l.step_us = SCHED_STEP_AUTO;
	rig_open(&r, &l);
	struct rig_batch b = {0};
	for (int i = 0; i < STREAMS; i++) {
		(void)send_turn(&r, rig_session(&r), 4, 120000);
		b = b.count ? b : rig_batch(&r);
	}
	uint32_t large = rig_session(&r), count = 0;
	for (int step = -16; b.count && count < STEPS; step++) {
		uint64_t us = took_far(m, &b);
		if (step >= 0 && step < ALONE)
			alone[step] = us;
		if (step >= ALONE)
			beside[count++] = us;
		b = batch_after(&r, &b, us);
		if (told(&r, EFFECT_END, large))
			break;
		if (step == ALONE - 2)
			REQUIRE(rig_turn(&r, large, (struct rig_turn){0, PROMPT, 1, 1, 0, 0}) != SCHED_NONE);
	}
	qsort(alone, ALONE, sizeof *alone, by_size);
	qsort(beside, count, sizeof *beside, by_size);
	uint64_t p99 = count ? beside[count * 99 / 100] : 0, was = alone[ALONE * 99 / 100], sum = 0;
	for (uint32_t i = 0; i < count; i++)
		sum += beside[i];
	printf("# %u steps; between tokens p99 %.1f ms, alone %.1f; the prompt took %.0f s\n", count,
	       (double)p99 / 1e3, (double)was / 1e3, (double)sum / 1e6);
	EXPECT(count > 0 && count < STEPS);
	EXPECT(p99 <= 2 * was);
	/* A quarter of the time was the prompt's, at the least. */
	EXPECT((double)sum >= 1.25 * (double)count * (double)alone[0]);
	sched_audit(r.s);
	rig_close(&r);
}

static void the_longest_prompt_beside_streams(void)
{
	/* An 8-billion model on one large GPU; and a small one on a few cores, where attention is most. */
	static const struct machine machines[] = {{9000, 60, 50, 32768}, {1000, 500, 100, 2000}};
	as_long_as_agents_have_it(&machines[0]);
	as_long_as_agents_have_it(&machines[1]);
}

/* One principal has `crowd` sessions, each of which asks again as soon as it was answered; another has one.
   The 99th hundredth of the other's times to its first token. */
static uint64_t beside_a_crowd(uint32_t crowd, uint32_t quota, uint64_t *longest_us)
{
	enum { TURNS = 16 };
	uint64_t ttft[100], sent_us = 0, due_us = 1;
	const uint32_t wanted = getenv("HOLDFAST_SANITIZED") ? 20 : 100;
	struct rig r;
	struct sched_limits l = rig_limits(2000);
	l.session_count = l.turn_count = l.queue_turns = 1002;
	l.batch_turns = TURNS;
	l.principal_turns = quota;
	l.stream_turn_bytes = 0;
	l.growth_tokens = 64;
	l.wait_us_max = 1000000000;
	rig_open(&r, &l);
	uint32_t one = rig_session_as(&r, 1, RESIDENCY_BEST_EFFORT, 0, 0), count = 0;
	struct rig_batch b = {0};
	for (uint32_t i = 0; i < crowd; i++) {
		(void)send_turn(&r, rig_session(&r), 150, 50);
		b = b.count ? b : rig_batch(&r);
	}
	*longest_us = 0;
	while (count < wanted) {
		if (due_us && r.now_us >= due_us) {
			sent_us = r.now_us;
			due_us = 0;
			(void)rig_turn(&r, one, (struct rig_turn){0, 100, 20, 20, 0, 0});
			b = b.count ? b : rig_batch(&r);
		}
		if (b.count == 0) {
			r.now_us = due_us;
			continue;
		}
		const uint64_t us = took(&b);
		*longest_us = us > *longest_us ? us : *longest_us;
		for (uint32_t i = 0; i < b.count; i++)
			if (b.entries[i].session == one && b.results[i].sampled && sent_us) {
				ttft[count++] = r.now_us + us - sent_us;
				sent_us = 0;
			}
		b = batch_after(&r, &b, us);
		uint32_t again[TURNS], ends = 0;
		for (uint32_t i = 0; i < r.out.count; i++)
			if (r.out.list[i].kind == EFFECT_END && r.out.list[i].session == one)
				due_us = r.now_us + 7000;
			else if (r.out.list[i].kind == EFFECT_END)
				again[ends++] = r.out.list[i].session;
		for (uint32_t i = 0; i < ends; i++) {
			(void)rig_turn(&r, again[i], (struct rig_turn){0, 150, 50, 50, 0, 0});
			b = b.count ? b : rig_batch(&r);
		}
	}
	qsort(ttft, count, sizeof *ttft, by_size);
	rig_close(&r);
	return ttft[count * 99 / 100];
}

/* Who is served least is the next to run and to be computed. With a quota of turns a place is free for
   him: he waits for the step in flight, and computes in steps that others decode in. Without, also for the
   first of the running turns to end: at most as long as one takes, of 150 and 50 tokens here. */
static void a_crowd_is_not_felt_next_door(void)
{
	uint64_t step_us, with_us;
	const uint64_t alone = beside_a_crowd(0, 0, &with_us), quota = beside_a_crowd(1000, 15, &step_us);
	const uint64_t none = beside_a_crowd(1000, 0, &with_us);
	printf("# first token, p99: alone %.1f ms; beside 1,000 sessions %.1f with a quota of turns, %.1f "
	       "without; a step takes up to %.1f\n", (double)alone / 1e3, (double)quota / 1e3, (double)none / 1e3,
	       (double)step_us / 1e3);
	EXPECT(quota <= 5 * step_us); /* one in flight, and its 100 tokens in steps of 32 of a turn */
	EXPECT(none <= (50 + 5 + 5) * with_us);
}

int main(void)
{
	TAP_RUN(warm_before_cold, "a warm turn goes before a cold one, until that has waited long enough");
	TAP_RUN(cold_turns_wait_for_those_expected, "a cold turn waits for those expected back, with a bound");
	TAP_RUN(sampling_is_no_load, "but not for a machine that only samples");
	TAP_RUN(an_idle_machine_takes_them, "an idle machine takes a cold turn at once");
	TAP_RUN(principals_take_turns, "a principal with one turn is not behind all of another's");
	TAP_RUN(a_crowd_is_not_felt_next_door, "nor is it behind a thousand sessions, beyond a bound");
	TAP_RUN(short_prompts_first, "short prompts first, and long ones age");
	TAP_RUN(a_long_prompt_beside_streams, "a long prompt beside streams: no step takes twice as long");
	TAP_RUN(the_longest_prompt_beside_streams, "nor with 100,000 tokens beside sixteen, to the end of it");
	return tap_done();
}
