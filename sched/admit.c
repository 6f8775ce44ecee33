/*
 * Admission, in order of arrival. README.md has the rules and the argument why an admitted turn
 * can always finish, and why no turn that fits beside the grants waits forever.
 */
#include "sched/state.h"

struct answer {
	int admitted, passed; /* passed: those behind need not wait for it */
	enum wait_why why;
	uint32_t blocker;
	uint64_t short_units;
};

/* Units of the session that count as yielded now and would not once it runs. */
static uint32_t units_taken_back(const struct sched *s, uint32_t session)
{
	const struct session *x = session_at(s, session);
	uint32_t units = 0;
	struct cursor at = cursor_at(s, session, x->floor < x->units ? x->floor : x->units);
	for (; at.unit < x->units; cursor_next(s, &at))
		units += (uint32_t)page_yields(page_at(s, 0, cursor_page(s, &at, 0)));
	return units;
}

/* Asks whether the turn could run now with its promise in full; changes nothing. */
static struct answer admit_ask(const struct sched *s, uint32_t turn, uint32_t units)
{
	const struct turn *t = turn_at(s, turn);
	const struct session *x = session_at(s, t->session);
	struct answer answer = {0, 0, WAIT_PAGES, SCHED_NONE, 0};
	if (x->turn != turn) {
		/* It supersedes a turn of the batch in flight, and is not the session's yet. */
		answer.why = WAIT_BATCH;
		answer.passed = 1;
		answer.blocker = t->session;
		return answer;
	}
	if (s->running.count == s->limits.batch_turns) {
		answer.why = WAIT_TURNS;
		answer.blocker = turn_at(s, s->running.first)->session;
		return answer;
	}
	CHECK(units >= x->units);
	uint64_t slack = pages_slack_units(s), needed = units - x->units;
	if (needed <= slack)
		needed += units_taken_back(s, t->session); /* a walk, so only if it can matter */
	if (needed <= slack) {
		answer.admitted = 1;
		return answer;
	}
	answer.short_units = needed - slack;
	/* Would it fit if every running turn had ended? If not, grants stand in its way; those are
	   kept for as long as they were given, so the queue does not stand still for it. */
	uint64_t others = s->granted_units - x->granted;
	answer.passed = units + others > pages_total_units(s);
	if (answer.passed)
		answer.blocker = retain_blocker(s, t->session);
	else if (s->running.first != SCHED_NONE)
		answer.blocker = turn_at(s, s->running.first)->session;
	return answer;
}

/* Tells why a turn waits: when it arrives, and when the reason is another one. */
static void wait_tell(struct step *p, uint32_t turn, uint32_t place, const struct answer *answer)
{
	struct turn *t = turn_at(p->s, turn);
	t->blocker = answer->blocker;
	t->short_bytes = answer->short_units * p->s->unit_bytes;
	p->s->counts.turns_waited += !t->waits;
	if (t->waits && t->wait_why == answer->why)
		return;
	t->waits = 1;
	t->wait_why = answer->why;
	struct effect *told = effect_of_turn(p, EFFECT_WAIT, turn);
	told->as.wait.why = answer->why;
	told->as.wait.place = place;
	told->as.wait.blocker = answer->blocker;
	told->as.wait.short_bytes = t->short_bytes;
}

void admit_waiting(struct step *p)
{
	struct sched *s = p->s;
	uint32_t place = 1, next;
	int open = 1; /* nobody before stands for his right to be first */
	for (uint32_t turn = s->queue.first; turn != SCHED_NONE; turn = next) {
		struct turn *t = turn_at(s, turn);
		struct answer answer = {0, 0, WAIT_TURNS, SCHED_NONE, 0};
		uint32_t units = turn_units(s, t->prompt, t->output_max), total = pages_total_units(s);
		next = t->link.next;
		if (units > total) {
			/* Pages were quarantined since it arrived. */
			turn_refuse_pages(p, turn, units * s->unit_bytes, total * s->unit_bytes);
			continue;
		}
		if (open)
			answer = admit_ask(s, turn, units);
		else
			answer.blocker = turn_at(s, t->link.prev)->session;
		if (answer.admitted) {
			turn_run(p, turn, units);
			continue;
		}
		wait_tell(p, turn, place++, &answer);
		open = open && answer.passed;
	}
}
