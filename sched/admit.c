/*
 * Admission. README.md has the rules and the argument why an admitted turn can always finish, and
 * why no turn that fits beside the grants waits forever.
 */
#include "sched/state.h"

enum outcome { ADMIT_RUNS, ADMIT_PASSED, ADMIT_WAITS };

struct answer {
	int admitted, passed; /* passed: those behind need not wait for it */
	int stands; /* those of its principal must, if it is due: its principal's quota would do for it alone */
	enum wait_why why;
	uint32_t blocker;
	uint64_t short_bytes;
	struct share share; /* with this prefix of another session; units 0: with none */
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

/* The principal has as many turns running as it may. */
static int at_quota(const struct sched *s, uint32_t principal)
{
	uint32_t most = s->limits.principal_turns, running = principal_at(s, principal)->running;
	CHECK(most == 0 || running <= most);
	return most > 0 && running == most;
}

/* A running turn of the principal, of those the one admitted first; its session. */
static uint32_t running_of(const struct sched *s, uint32_t principal)
{
	uint32_t first = principal_at(s, principal)->first_running;
	return first ? turn_at(s, first - 1)->session : SCHED_NONE;
}

/* What the turn needs beside what its session has, or beside the prefix that it takes in its place. */
static struct need need_of(const struct sched *s, uint32_t turn, uint32_t units, const struct share *share)
{
	/* What it would take back itself is a walk, and left to the caller. */
	const struct turn *t = turn_at(s, turn);
	const struct session *x = session_at(s, t->session);
	struct need need = {0, 0, 0, SCHED_NONE, 0};
	uint32_t have = share->units - share->missing;
	if (share->units) {
		need.taken = share->yielded;
		need.loser = share->loser;
		need.loss = share->loss;
	} else {
		have = x->units - load_missing(s, t->session);
	}
	need.claim = units - have;
	need.now = claim_quantum(s, t->prompt, have, units - have);
	return need;
}

/* The unit that the turn would compute first. */
static uint32_t prefix_next(const struct sched *s, uint32_t turn, const struct share *share)
{
	const struct session *x = session_at(s, turn_at(s, turn)->session);
	return share->units ? share->units : x->resident / s->limits.page_tokens;
}

/* Rows of prompts that were computed for the turn's principal, and for the public one. */
static uint64_t prompt_rows(const struct sched *s, uint32_t turn)
{
	uint32_t own = session_at(s, turn_at(s, turn)->session)->principal, public = s->limits.public_principal;
	uint64_t rows = principal_at(s, own)->prompt_rows;
	return rows + (public && public != own + 1 ? principal_at(s, public - 1)->prompt_rows : 0);
}

/* Until when it waits for a prefix at most, by the rows of prompts that are computed: for twice as many as
   its own has, and for each unit that others compute meanwhile, once, for eight times as many as that has. */
static uint64_t prefix_until(const struct sched *s, uint32_t turn, uint32_t next)
{
	const struct turn *t = turn_at(s, turn);
	if (t->prefix_until == 0)
		return prompt_rows(s, turn) + 2 * (uint64_t)(t->prompt - session_at(s, t->session)->resident);
	uint32_t more = next > t->prefix_next ? next - t->prefix_next : 0;
	return t->prefix_until + 8 * (uint64_t)more * s->limits.page_tokens;
}

/* A prefix that another turn is computing is there sooner than if this one began with it, too: the other
   is at it. But it may be passed by other prompts, so there is an end to this. A slow machine is none: what
   this one began would be as slow, and make the other slower. */
static uint32_t prefix_blocker(const struct sched *s, uint32_t turn, uint32_t next)
{
	int ended = turn_at(s, turn)->prefix_until && prompt_rows(s, turn) >= prefix_until(s, turn, next);
	return ended ? SCHED_NONE : prefix_coming(s, turn, next);
}

/* The turn waits for its principal's quota of bytes, or for one of its principal that does, and is due. */
static int quota_waits(const struct sched *s, uint32_t turn)
{
	const struct turn *t = turn_at(s, turn);
	int never;
	return quota_short(s, t->session, turn_units(s, t->prompt, t->output_max), &never) != 0 ||
	       principal_at(s, session_at(s, t->session)->principal)->short_asks == s->asks;
}

/* And what for. */
static int quota_ask(const struct sched *s, uint32_t turn, uint32_t units, struct answer *answer)
{
	const struct turn *t = turn_at(s, turn);
	uint32_t principal = session_at(s, t->session)->principal;
	int never;
	uint64_t missing = quota_short(s, t->session, units, &never);
	if (missing == 0 && principal_at(s, principal)->short_asks != s->asks)
		return 0;
	answer->why = missing ? WAIT_PAGES : WAIT_TURNS;
	answer->short_bytes = missing;
	answer->passed = 1;
	answer->stands = missing > 0 && !never;
	answer->blocker = never ? SCHED_NONE : running_of(s, principal);
	return 1;
}

/* Asks whether the turn could run now with its promise in full; changes nothing. */
static struct answer admit_ask(const struct sched *s, uint32_t turn, uint32_t units)
{
	const struct turn *t = turn_at(s, turn);
	const struct session *x = session_at(s, t->session);
	struct answer answer = {0, 0, 0, WAIT_PAGES, SCHED_NONE, 0, {SCHED_NONE, 0, 0, 0, SCHED_NONE, 0}};
	const struct share none = answer.share;
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
	if (at_quota(s, x->principal)) {
		answer.why = WAIT_TURNS;
		answer.passed = 1;
		return answer;
	}
	if (quota_ask(s, turn, units, &answer))
		return answer;
	CHECK(units >= x->units);
	if (t->key_end > t->key_first)
		answer.share = prefix_find(s, turn);
	uint32_t coming = prefix_blocker(s, turn, prefix_next(s, turn, &answer.share));
	if (coming != SCHED_NONE) {
		answer.why = WAIT_PREFIX;
		answer.passed = 1;
		answer.blocker = coming;
		return answer;
	}
	struct need need = need_of(s, turn, units, &answer.share);
	uint64_t missing = claim_missing(s, &need);
	int never;
	if (missing > 0 && answer.share.units) {
		answer.share = none;
		need = need_of(s, turn, units, &none);
		missing = claim_missing(s, &need);
	}
	if (missing == 0 && answer.share.units == 0) { /* a walk, so only if it can matter */
		need.taken = units_taken_back(s, t->session);
		missing = claim_missing(s, &need);
	}
	answer.short_bytes = missing * s->unit_bytes + window_short(s, t->session, units, &never);
	if (answer.short_bytes == 0) {
		answer.admitted = 1;
		return answer;
	}
	/* Would it fit if every running turn had ended? If not, grants stand in its way; those are
	   kept for as long as they were given, so the queue does not stand still for it. */
	uint64_t others = s->granted_units - x->granted;
	answer.passed = never || units + others > pages_total_units(s);
	if (answer.passed)
		answer.blocker = retain_blocker(s, t->session);
	else if (s->running.first != SCHED_NONE)
		answer.blocker = turn_at(s, s->running.first)->session;
	return answer;
}

/* A turn of which most must be computed waits while it would drive out sessions that are expected
   back before it would be due anyway: they would only come to wait in its place. But a machine that
   has time to spare may as well compute again. */
static void admit_gate(struct sched *s, uint32_t turn, uint32_t units, struct answer *answer)
{
	if (!answer->admitted || s->limits.policy != POLICY_COST)
		return;
	if (!order_loaded(s))
		return;
	struct need need = need_of(s, turn, units, &answer->share);
	if (answer->share.units == 0)
		need.taken = units_taken_back(s, turn_at(s, turn)->session);
	need.taken += retain_expected_units(s);
	answer->short_bytes = claim_missing(s, &need) * s->unit_bytes;
	answer->admitted = answer->short_bytes == 0;
	answer->passed = 0;
	s->gated = s->gated || !answer->admitted;
	answer->blocker = s->running.first != SCHED_NONE ? turn_at(s, s->running.first)->session : SCHED_NONE;
}

/* When the turn may run, by what the running ones may still need at most, the oldest first. */
uint64_t admit_eta_us(const struct sched *s, uint32_t turn)
{
	const struct turn *t = turn_at(s, turn);
	uint64_t missing = t->short_bytes / s->unit_bytes, eta = s->now_us;
	if (s->running.first == SCHED_NONE || (t->waits && t->wait_why == WAIT_BATCH))
		return eta;
	for (uint32_t at = s->running.first; at != SCHED_NONE; at = turn_at(s, at)->link.next) {
		const struct turn *r = turn_at(s, at);
		const struct session *x = session_at(s, r->session);
		uint64_t rows = x->history - x->resident, left = r->output_max - r->sampled;
		uint64_t done = s->now_us + rows * (s->prefill_ns_token / 1000) + left * s->decode_us;
		eta = done > eta ? done : eta;
		if (x->sole >= missing)
			break;
		missing -= x->sole;
	}
	return eta;
}

/* Tells why a turn waits: when it arrives, and when the reason is another one. */
static void wait_tell(struct step *p, uint32_t turn, uint32_t place, const struct answer *answer)
{
	struct turn *t = turn_at(p->s, turn);
	t->blocker = answer->blocker;
	t->short_bytes = answer->short_bytes;
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
	told->as.wait.eta_us = admit_eta_us(p->s, turn);
}

/* Pages were quarantined since it arrived: it can never fit any more. */
static void refuse_too_large(struct step *p)
{
	struct sched *s = p->s;
	uint64_t needed, limit;
	uint32_t next;
	for (uint32_t turn = s->queue.first; turn != SCHED_NONE; turn = next) {
		const struct turn *t = turn_at(s, turn);
		uint32_t units = turn_units(s, t->prompt, t->output_max);
		next = t->link.next;
		if (!window_fits(s, units, &needed, &limit))
			turn_refuse_pages(p, turn, needed, limit);
	}
}

static int admit_try(struct step *p, uint32_t turn, int gated, int due)
{
	struct sched *s = p->s;
	struct turn *t = turn_at(s, turn);
	uint32_t units = turn_units(s, t->prompt, t->output_max);
	struct answer answer = admit_ask(s, turn, units);
	if (gated)
		admit_gate(s, turn, units, &answer);
	if (answer.why == WAIT_PREFIX) {
		uint32_t awaited = prefix_next(s, turn, &answer.share);
		t->prefix_until = prefix_until(s, turn, awaited);
		t->prefix_next = awaited > t->prefix_next ? awaited : t->prefix_next;
	}
	t->prefix_units = answer.share.units;
	t->asked = s->asks;
	t->answer_why = answer.why;
	t->blocker = answer.blocker;
	t->short_bytes = answer.short_bytes;
	if (due && answer.stands)
		principal_at(s, session_at(s, t->session)->principal)->short_asks = s->asks;
	if (answer.admitted && answer.share.units)
		prefix_take(p, turn, &answer.share);
	if (answer.admitted)
		turn_run(p, turn, units);
	return answer.admitted ? ADMIT_RUNS : answer.passed ? ADMIT_PASSED : ADMIT_WAITS;
}

/* Those who have waited long enough, in order of arrival; with wait_us_max 0, all. Returns 0 if one of
   them stands for his right to be first. */
static int admit_due(struct step *p)
{
	struct sched *s = p->s;
	uint32_t next;
	for (uint32_t turn = s->queue.first; turn != SCHED_NONE && order_due(s, turn); turn = next) {
		next = turn_at(s, turn)->link.next;
		int outcome = admit_try(p, turn, 0, 1);
		if (outcome == ADMIT_RUNS)
			s->forced_us = s->now_us;
		if (outcome == ADMIT_WAITS)
			return 0;
	}
	return 1;
}

/* The next to be asked: warm or not, of the principal served least, the one that came first. */
static uint32_t candidate(const struct sched *s, int warm)
{
	uint32_t found = SCHED_NONE;
	uint64_t work = 0;
	for (uint32_t turn = s->queue.first; turn != SCHED_NONE; turn = turn_at(s, turn)->link.next) {
		const struct turn *t = turn_at(s, turn);
		uint32_t principal = session_at(s, t->session)->principal;
		uint64_t its = principal_at(s, principal)->work;
		if (at_quota(s, principal) || quota_waits(s, turn))
			continue;
		if (t->asked == s->asks || order_warm(s, turn) != warm || (found != SCHED_NONE && its >= work))
			continue;
		found = turn;
		work = its;
	}
	return found;
}

/* The turn was asked, and waits for pages that another one computes: that is no want of room. */
static int prefix_awaited(const struct sched *s, uint32_t turn)
{
	return turn_at(s, turn)->answer_why == WAIT_PREFIX;
}

/* Before their time: turns whose context is there first, and of the others as many as do not harm
   them. A turn that does not fit is passed by others of its kind; a few, so that no step is long. */
static void admit_early(struct step *p)
{
	enum { FAILURES_MAX = 8, COMING_MAX = 32 };
	struct sched *s = p->s;
	uint32_t turn, failures = 0, coming = 0;
	while (failures < FAILURES_MAX && coming < COMING_MAX && (turn = candidate(s, 1)) != SCHED_NONE) {
		int fails = admit_try(p, turn, 0, 0) != ADMIT_RUNS, waits = fails && prefix_awaited(s, turn);
		coming += (uint32_t)waits;
		failures += (uint32_t)(fails && !waits);
	}
	if (failures)
		return;
	while (failures < FAILURES_MAX && coming < COMING_MAX && (turn = candidate(s, 0)) != SCHED_NONE) {
		int outcome = admit_try(p, turn, 1, 0), waits = outcome != ADMIT_RUNS && prefix_awaited(s, turn);
		if (outcome == ADMIT_WAITS)
			return;
		coming += (uint32_t)waits;
		failures += (uint32_t)(outcome != ADMIT_RUNS && !waits);
	}
}

/* May be called again in one step, when pages came free. */
void admit_waiting(struct step *p)
{
	struct sched *s = p->s;
	s->gated = 0;
	s->asks++;
	if (s->queue.count == 0)
		return;
	refuse_too_large(p);
	if (admit_due(p) && s->limits.wait_us_max)
		admit_early(p);
}

/* Tells those who wait even so, once in a step. */
void admit_tell(struct step *p)
{
	struct sched *s = p->s;
	uint32_t place = 1, before = SCHED_NONE;
	for (uint32_t turn = s->queue.first; turn != SCHED_NONE; turn = turn_at(s, turn)->link.next) {
		const struct turn *t = turn_at(s, turn);
		struct answer answer = {0, 0, 0, WAIT_TURNS, before, 0, {SCHED_NONE, 0, 0, 0, SCHED_NONE, 0}};
		if (t->asked == s->asks) {
			answer.why = (enum wait_why)t->answer_why;
			answer.blocker = t->blocker;
			answer.short_bytes = t->short_bytes;
		} else {
			(void)quota_ask(s, turn, turn_units(s, t->prompt, t->output_max), &answer);
		}
		wait_tell(p, turn, place++, &answer);
		before = t->session;
	}
}
