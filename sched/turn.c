/*
 * Turns: arrival, refusal, end. A turn that arrives is refused before anything is changed, or
 * accepted; once accepted it has exactly one END, told by turn_finish alone.
 */
#include "sched/state.h"

#include <string.h>

/* Units that the turn may ever fill. The last token that it samples is not computed in it. */
uint32_t turn_units(const struct sched *s, uint64_t prompt, uint32_t output_max)
{
	uint64_t last = prompt + output_max;
	if (last > s->limits.context_tokens)
		last = s->limits.context_tokens;
	CHECK(last > prompt);
	return units_of(s, last - 1);
}

int end_err(enum end end)
{
	switch (end) {
	case END_DEADLINE: return ERR_DEADLINE;
	case END_DRAIN: return ERR_DRAINING;
	case END_INTEGRITY: return ERR_INTEGRITY;
	case END_FAULT: return ERR_INTERNAL;
	default: return ERR_NONE;
	}
}

/* END. */

static void end_times(const struct sched *s, const struct turn *t, struct effect *told)
{
	uint64_t admitted = t->state == TURN_RUNNING ? t->admitted_us : s->now_us;
	uint64_t first = t->sampled ? t->first_us : s->now_us;
	told->as.end.queue_us = admitted - t->arrived_us;
	told->as.end.prefill_us = first - admitted;
	told->as.end.decode_us = s->now_us - first;
}

static void end_tell(struct step *p, uint32_t turn, enum end end, int err)
{
	const struct turn *t = turn_at(p->s, turn);
	const struct session *x = session_at(p->s, t->session);
	struct effect *told = effect_of_turn(p, EFFECT_END, turn);
	told->as.end.end = end;
	told->as.end.err = (uint32_t)err;
	/* A turn that never ran has used nothing of its prompt: the numbers stay 0. */
	if (t->state == TURN_RUNNING) {
		told->as.end.prompt_tokens = t->prompt;
		told->as.end.resident = t->origin_resident;
		told->as.end.reloaded = t->origin_reloaded;
		told->as.end.recomputed = t->origin_recomputed;
		told->as.end.fresh = t->origin_fresh;
	}
	told->as.end.sampled = t->sampled;
	told->as.end.history = x->history;
	told->as.end.context_left = p->s->limits.context_tokens - x->history;
	end_times(p->s, t, told);
}

/* The principal's running turns are one less: the next in their order is its first now, if this one was.
   One walk for a turn that ends, so that those who wait are told without one who holds what they lack. */
static void running_leave(struct sched *s, uint32_t turn, struct principal *owner)
{
	CHECK(owner->running > 0);
	owner->running--;
	if (owner->first_running != turn + 1)
		return;
	uint32_t next = owner->running ? turn_at(s, turn)->link.next : SCHED_NONE;
	while (next != SCHED_NONE &&
	       principal_at(s, session_at(s, turn_at(s, next)->session)->principal) != owner)
		next = turn_at(s, next)->link.next;
	CHECK((next == SCHED_NONE) == (owner->running == 0));
	owner->first_running = next == SCHED_NONE ? 0 : next + 1;
}

/* A running turn gives back its promise and the pages that it did not fill. */
static void turn_stop(struct step *p, uint32_t turn)
{
	struct sched *s = p->s;
	struct turn *t = turn_at(s, turn);
	struct session *x = session_at(s, t->session);
	CHECK(!t->in_flight);
	quota_end(s, t->session);
	running_leave(s, turn, principal_at(s, x->principal));
	chain_take(s, &s->running, LINK_TURN, turn);
	CHECK(s->promised_units >= t->promised);
	s->promised_units -= t->promised;
	t->promised = t->claim = t->missing = t->loading = t->strays = 0;
	window_release(s, t);
	pages_drop(p, t->session, units_of(s, x->resident), 0);
	x->outgrown = s->windowed && x->units > x->granted;
	ledger_move(s, ACCOUNT_DEVICE, COLUMN_RUNNING, COLUMN_RETAINED, x->here_bytes);
	x->state = SESSION_IDLE;
	pages_floor_set(s, t->session, retain_floor(x));
}

static void turn_finish(struct step *p, uint32_t turn, enum end end, int err)
{
	struct sched *s = p->s;
	struct turn *t = turn_at(s, turn);
	uint32_t session = t->session;
	struct session *x = session_at(s, session);
	CHECK(t->state != TURN_FREE);
	CHECK(end != END_NONE);
	if (t->state == TURN_RUNNING)
		turn_stop(p, turn);
	else
		chain_take(s, &s->queue, LINK_TURN, turn);
	end_tell(p, turn, end, err);
	if (x->turn == turn) {
		x->turn = SCHED_NONE;
		x->state = SESSION_IDLE;
		x->pause = end == END_TOOL ? PAUSE_TOOL : PAUSE_HUMAN;
		x->kind = end == END_TOOL ? 1 : end == END_STOP ? 0 : 2;
		x->sampled = t->sampled;
	} else {
		CHECK(x->next_turn == turn);
		x->next_turn = SCHED_NONE;
	}
	s->counts.turns_ended++;
	s->counts.tokens_sampled += t->sampled;
	ledger_move(s, ACCOUNT_STREAM, COLUMN_RUNNING, COLUMN_FREE, s->limits.stream_turn_bytes);
	timer_clear_deadline(s, turn);
	order_leave(s, x->principal);
	memset(t, 0, sizeof *t);
	chain_push_last(s, &s->turn_free, LINK_TURN, turn);
}

/* The turn becomes the session's: what it does not keep is cut, what it appends is known. */
static void turn_take_over(struct step *p, uint32_t turn)
{
	struct sched *s = p->s;
	const struct turn *t = turn_at(s, turn);
	struct session *x = session_at(s, t->session);
	CHECK(x->turn == SCHED_NONE);
	load_mend(p, t->session);
	retain_return(s, t->session);
	x->turn = turn;
	x->state = SESSION_WAITING;
	session_history_cut(p, t->session, t->keep);
	x->history = t->prompt;
	/* Something must be left to compute, or there would be nothing to sample from. */
	session_resident_cut(p, t->session, t->prompt - 1);
	/* What was sampled since the last turn has its keys only now. */
	prefix_enter(s, turn, 0, x->resident / s->limits.page_tokens);
	rest_settle(s, t->session, 0);
}

void turn_end(struct step *p, uint32_t turn, enum end end, int err)
{
	struct sched *s = p->s;
	uint32_t session = turn_at(s, turn)->session;
	struct session *x = session_at(s, session);
	turn_finish(p, turn, end, err);
	if (x->turn != SCHED_NONE)
		return; /* It was the one that waited for the other. */
	uint32_t next = x->next_turn;
	x->next_turn = SCHED_NONE;
	if (x->closing) {
		CHECK(next == SCHED_NONE);
		session_close(p, session);
	} else if (next != SCHED_NONE) {
		turn_take_over(p, next);
	} else if (p->superseded != session) {
		retain_pause(p, session);
	}
}

/* A waiting turn that no empty slab could hold any more. */
void turn_refuse_pages(struct step *p, uint32_t turn, uint64_t needed, uint64_t limit)
{
	uint32_t at = p->out->count;
	turn_end(p, turn, END_REFUSED, ERR_NO_PAGES);
	/* A waiting turn has nothing to free first, so its END is the first effect of its end. */
	CHECK(p->out->list[at].kind == EFFECT_END);
	p->out->list[at].as.end.needed = needed;
	p->out->list[at].as.end.limit = limit;
}

/* Ends the turn now or, if the batch in flight has it, when the batch is done. What was asked
   first stands; only what the device found (INTEGRITY, FAULT) goes before it. */
void turn_end_soon(struct step *p, uint32_t turn, enum end end, int err)
{
	struct turn *t = turn_at(p->s, turn);
	CHECK(t->state != TURN_FREE);
	if (!t->in_flight) {
		turn_end(p, turn, end, err);
		return;
	}
	if (t->end == END_NONE) {
		t->end = end;
		t->err = (uint32_t)err;
	}
}

/* Arrival. */

struct refusal {
	enum end end;
	int err;
	uint64_t needed, limit;
};

/* What is freed when the turns that this one supersedes end at once. */
struct room {
	uint32_t slots, places;
};

static struct room room_of_superseded(const struct sched *s, const struct session *x)
{
	struct room room = {0, 0};
	if (x->next_turn != SCHED_NONE) {
		room.slots++;
		room.places++;
	}
	if (x->turn != SCHED_NONE && !turn_at(s, x->turn)->in_flight) {
		room.slots++;
		room.places += turn_at(s, x->turn)->state == TURN_WAITING;
	}
	return room;
}

static struct refusal refused(enum end end, int err, uint64_t needed, uint64_t limit)
{
	struct refusal refusal = {end, err, needed, limit};
	return refusal;
}

/* Decides, and changes nothing. The order is: can it be at all, then, is it possible now. */
static struct refusal turn_refusal(const struct sched *s, const struct event *e)
{
	const struct session *x = session_at(s, e->session);
	uint64_t prompt = (uint64_t)e->as.turn.keep + e->as.turn.append;
	if (x->closing)
		return refused(END_REFUSED, ERR_GONE, 0, 0);
	if (s->draining)
		return refused(END_REFUSED, ERR_DRAINING, 0, 0);
	if (x->turn != SCHED_NONE && !e->as.turn.supersede)
		return refused(END_REFUSED, ERR_SESSION_BUSY, 0, 0);
	if (e->as.turn.keep > x->history)
		return refused(END_REFUSED, ERR_OUT_OF_RANGE, e->as.turn.keep, x->history);
	if (prompt == 0 || e->as.turn.output_max == 0)
		return refused(END_REFUSED, ERR_OUT_OF_RANGE, 1, 0);
	if (prompt + 1 > s->limits.context_tokens)
		return refused(END_CONTEXT, ERR_CONTEXT_FULL, prompt + 1, s->limits.context_tokens);
	uint64_t needed, limit;
	uint32_t units = turn_units(s, prompt, e->as.turn.output_max);
	if (!window_fits(s, units, &needed, &limit))
		return refused(END_REFUSED, ERR_NO_PAGES, needed, limit);
	uint64_t quota = quota_of(s, x->principal);
	if (quota && window_bytes(s, units) > quota)
		return refused(END_REFUSED, ERR_NO_PAGES, window_bytes(s, units), quota);
	struct room room = room_of_superseded(s, x);
	uint32_t waiting = s->queue.count - room.places;
	if (waiting >= s->limits.queue_turns)
		return refused(END_REFUSED, ERR_OVERLOADED, (uint64_t)waiting + 1, s->limits.queue_turns);
	if (s->turn_free.count + room.slots == 0)
		return refused(END_REFUSED, ERR_OVERLOADED, (uint64_t)s->limits.turn_count + 1, s->limits.turn_count);
	uint64_t stream = s->ledger[ACCOUNT_STREAM][COLUMN_FREE] + room.slots * s->limits.stream_turn_bytes;
	if (stream < s->limits.stream_turn_bytes)
		return refused(END_REFUSED, ERR_OVERLOADED, s->limits.stream_turn_bytes, stream);
	return refused(END_NONE, ERR_NONE, 0, 0);
}

/* A refused turn never had an index: its END names the session and the key. */
static void refusal_tell(struct step *p, const struct refusal *refusal)
{
	const struct session *x = session_at(p->s, p->event->session);
	struct effect *told = effect_of_session(p, EFFECT_END, p->event->session);
	told->turn_key = p->event->turn_key;
	told->as.end.end = refusal->end;
	told->as.end.err = (uint32_t)refusal->err;
	told->as.end.history = x->history;
	told->as.end.context_left = p->s->limits.context_tokens - x->history;
	told->as.end.needed = refusal->needed;
	told->as.end.limit = refusal->limit;
}

static uint32_t turn_take(struct step *p)
{
	struct sched *s = p->s;
	const struct event *e = p->event;
	uint32_t turn = s->turn_free.first;
	chain_take(s, &s->turn_free, LINK_TURN, turn);
	struct turn *t = turn_at(s, turn);
	CHECK(t->state == TURN_FREE);
	t->key = e->turn_key;
	t->state = TURN_WAITING;
	t->session = e->session;
	t->arrival = s->arrival_next++;
	t->arrived_us = s->now_us;
	t->keep = e->as.turn.keep;
	t->prompt = e->as.turn.keep + e->as.turn.append;
	t->output_max = e->as.turn.output_max;
	t->credit = e->as.turn.credit;
	t->blocker = SCHED_NONE;
	prefix_keys_take(p, turn);
	order_arrive(s, session_at(s, e->session)->principal);
	chain_push_last(s, &s->queue, LINK_TURN, turn);
	ledger_move(s, ACCOUNT_STREAM, COLUMN_FREE, COLUMN_RUNNING, s->limits.stream_turn_bytes);
	if (e->as.turn.deadline_us) {
		t->deadline_us = e->as.turn.deadline_us;
		timer_set_deadline(s, turn);
	}
	return turn;
}

void on_turn(struct step *p)
{
	struct sched *s = p->s;
	struct session *x = session_at(s, p->event->session);
	struct refusal refusal = turn_refusal(s, p->event);
	if (p->event->as.turn.chain_count) {
		uint64_t keyed = (uint64_t)p->event->as.turn.chain_first + p->event->as.turn.chain_count;
		uint64_t prompt = (uint64_t)p->event->as.turn.keep + p->event->as.turn.append;
		CHECK(p->keys != NULL);
		CHECK(keyed * s->limits.page_tokens <= prompt); /* keys are of full pages of the prompt */
	}
	s->counts.turns_arrived++;
	if (refusal.end != END_NONE) {
		s->counts.turns_refused++;
		refusal_tell(p, &refusal);
		return;
	}
	if (x->next_turn != SCHED_NONE)
		turn_end(p, x->next_turn, END_SUPERSEDED, ERR_NONE);
	p->superseded = p->event->session;
	if (x->turn != SCHED_NONE)
		turn_end_soon(p, x->turn, END_SUPERSEDED, ERR_NONE);
	p->superseded = SCHED_NONE;
	uint32_t turn = turn_take(p);
	if (x->turn == SCHED_NONE)
		turn_take_over(p, turn);
	else
		x->next_turn = turn;
}

void turn_run(struct step *p, uint32_t turn, uint32_t units)
{
	struct sched *s = p->s;
	struct turn *t = turn_at(s, turn);
	struct session *x = session_at(s, t->session);
	CHECK(t->state == TURN_WAITING);
	CHECK(x->turn == turn);
	CHECK(x->history == t->prompt);
	CHECK(x->resident < t->prompt);
	CHECK(units >= x->units);
	uint32_t known = x->known > x->resident ? x->known : x->resident;
	t->origin_reloaded = load_tokens(s, t->session);
	t->origin_resident = x->resident - t->origin_reloaded;
	t->origin_recomputed = known - x->resident;
	t->origin_fresh = t->prompt - known;
	s->counts.turns_admitted++;
	s->counts.tokens_resident += t->origin_resident;
	s->counts.tokens_recomputed += t->origin_recomputed;
	s->counts.tokens_fresh += t->origin_fresh;
	chain_take(s, &s->queue, LINK_TURN, turn);
	chain_push_last(s, &s->running, LINK_TURN, turn);
	if (principal_at(s, x->principal)->running++ == 0)
		principal_at(s, x->principal)->first_running = turn + 1;
	t->state = TURN_RUNNING;
	t->admitted_us = s->now_us;
	t->admitted_step = s->step;
	t->missing = load_missing(s, t->session);
	t->strays = load_strays(s, t->session);
	window_reserve(s, t, units);
	t->loading = (uint32_t)load_needed(s, t->session);
	t->claim = units - (x->units - t->missing);
	t->promised = claim_quantum(s, t->prompt, x->units - t->missing, t->claim);
	ledger_move(s, ACCOUNT_DEVICE, COLUMN_RETAINED, COLUMN_RUNNING, x->here_bytes);
	x->state = SESSION_RUNNING;
	quota_begin(s, t->session);
	pages_floor_set(s, t->session, FLOOR_ALL);
	s->promised_units += t->promised;
	s->counts.tokens_reloaded += t->origin_reloaded;
	CHECK(claim_safe(s)); /* I6 */
	(void)effect_of_turn(p, EFFECT_ADMITTED, turn);
}

void on_cancel(struct step *p)
{
	uint32_t end = p->event->as.cancel.end;
	CHECK(end > END_NONE);
	CHECK(end <= END_FAULT);
	CHECK(end != END_REFUSED);
	CHECK(end != END_INTEGRITY);
	turn_end_soon(p, p->event->turn, (enum end)end, (int)p->event->as.cancel.err);
}

void on_credit(struct step *p)
{
	struct turn *t = turn_at(p->s, p->event->turn);
	CHECK(t->state != TURN_FREE);
	if (p->event->as.credit.tokens > t->credit)
		t->credit = p->event->as.credit.tokens;
	if (t->credit > t->sampled)
		t->paused = 0;
}

/* Nothing more is admitted: those who wait are told at once, those who run may finish. */
void on_drain(struct step *p)
{
	struct sched *s = p->s;
	s->draining = 1;
	while (s->queue.first != SCHED_NONE)
		turn_end(p, s->queue.first, END_DRAIN, ERR_DRAINING);
}
