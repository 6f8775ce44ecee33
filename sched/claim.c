/*
 * Claims: what running turns may still need, and why each of them can get it.
 *
 * A running turn has a *claim*: the units that it may still fill at most. A part of it is
 * *promised*: the rest of its prompt and a quantum of growth (growth_tokens; all of its output if
 * that is 0). A promise can be used at any time; the rest of a claim must be promised first, and
 * may have to wait for older turns to end, as in the banker's algorithm.
 *
 * Let A be the units that are free, doomed or yielded, and number the running turns in the order
 * of their admission. I6, for each k:
 *
 *     A + (what turns 1 .. k-1 give back when they end)
 *         >= (the claim of k) + (what is promised to turns k+1 and on)
 *
 * So turn 1 can have its whole claim now, whatever the younger ones do with their promises; when it
 * has ended, turn 2 can; and so on. What is left over in this inequality is the *slack* of k. It
 * falls only by what is promised to younger turns, and by what is taken out of A by others: both
 * are done only as far as the slack of every turn concerned allows.
 *
 * What a turn gives back is counted low: the units that nobody shares and that no grant keeps.
 *
 * All this is about the groups without a window. What a turn needs of the others is reserved when it
 * is admitted: see window.c.
 */
#include "sched/state.h"

uint64_t claim_cover(const struct sched *s)
{
	return (uint64_t)pages_coming_units(s) + s->yielding_units;
}

/* What A will have gained when the turn has had its whole claim and has ended. */
static int64_t claim_return(const struct sched *s, const struct turn *t)
{
	const struct session *x = session_at(s, t->session);
	uint32_t have = x->units - t->missing, most = have + t->claim;
	uint32_t kept = x->granted < most ? x->granted : most;
	if (kept < x->units - x->sole)
		kept = x->units - x->sole;
	return (int64_t)have - kept;
}

/* The least slack of the turns from `from` on, up to but without `to` (SCHED_NONE: to the last), when
   all before are counted. INT64_MAX if there are none. */
static int64_t slack_least(const struct sched *s, uint32_t from, uint32_t to)
{
	int64_t cover = (int64_t)claim_cover(s), younger = s->promised_units, least = INT64_MAX;
	int counts = 0;
	for (uint32_t at = s->running.first; at != SCHED_NONE && at != to; at = turn_at(s, at)->link.next) {
		const struct turn *t = turn_at(s, at);
		younger -= t->promised;
		counts = counts || at == from;
		if (counts && cover - t->claim - younger < least)
			least = cover - t->claim - younger;
		cover += claim_return(s, t);
	}
	return least;
}

int claim_safe(const struct sched *s)
{
	return window_safe(s) && slack_least(s, s->running.first, SCHED_NONE) >= 0;
}

/* Units that may be taken out of A by somebody who gives nothing back. */
uint64_t claim_slack(const struct sched *s)
{
	int64_t least = slack_least(s, s->running.first, SCHED_NONE);
	CHECK(least >= 0); /* I6 */
	return s->running.count ? (uint64_t)least : claim_cover(s);
}

/* Units that the running turn's session may keep when it ends, beyond those that it would now. */
uint64_t claim_slack_after(const struct sched *s, uint32_t turn)
{
	uint32_t next = turn_at(s, turn)->link.next;
	int64_t least = next == SCHED_NONE ? INT64_MAX : slack_least(s, next, SCHED_NONE);
	CHECK(least >= 0);
	return (uint64_t)least;
}

/* Could a turn with this claim run, of which `now` is promised at once, and of whose session's units
   `taken` count as yielded now? If not, returns how many units are short. */
uint64_t claim_missing(const struct sched *s, uint64_t claim, uint64_t now, uint64_t taken)
{
	int64_t least = slack_least(s, s->running.first, SCHED_NONE), in_the_end = (int64_t)claim_cover(s);
	for (uint32_t at = s->running.first; at != SCHED_NONE; at = turn_at(s, at)->link.next)
		in_the_end += claim_return(s, turn_at(s, at));
	int64_t missing = (int64_t)(claim + taken) - in_the_end;
	if (s->running.count && (int64_t)(now + taken) - least > missing)
		missing = (int64_t)(now + taken) - least;
	return missing > 0 ? (uint64_t)missing : 0;
}

/* The part of a claim that is promised at once: to the end of what is known, and a quantum beyond. */
uint32_t claim_quantum(const struct sched *s, uint32_t tokens, uint32_t units, uint32_t claim)
{
	if (s->limits.growth_tokens == 0)
		return claim;
	uint32_t reach = units_of(s, (uint64_t)tokens + s->limits.growth_tokens);
	uint32_t now = reach > units ? reach - units : 0;
	return now < claim ? now : claim;
}

/* Takes promises back, the turn admitted last first, but none of `turn` or of one before it. */
static uint64_t promises_take_back(struct sched *s, uint32_t turn, uint64_t units)
{
	uint64_t taken = 0;
	for (uint32_t at = s->running.last; at != turn && taken < units; at = turn_at(s, at)->link.prev) {
		struct turn *t = turn_at(s, at);
		uint64_t part = t->promised < units - taken ? t->promised : units - taken;
		t->promised -= (uint32_t)part;
		s->promised_units -= (uint32_t)part;
		taken += part;
	}
	return taken;
}

/* Makes sure that the turn is promised `wanted` units, or as many as older turns can spare; returns
   how many of the wanted are. The turn admitted first always gets them all. */
uint32_t claim_promise(struct sched *s, uint32_t turn, uint32_t wanted)
{
	struct turn *t = turn_at(s, turn);
	CHECK(wanted <= t->claim);
	if (wanted <= t->promised)
		return wanted;
	/* A whole quantum again, if nobody has to stand back for it; what is needed now in any case. */
	const struct session *x = session_at(s, t->session);
	uint32_t quantum = claim_quantum(s, x->history, x->units - t->missing, t->claim);
	uint32_t more = wanted - t->promised;
	int64_t spare = turn == s->running.first ? INT64_MAX : slack_least(s, s->running.first, turn);
	CHECK(spare >= 0);
	if (quantum > wanted && quantum - t->promised <= spare)
		more = quantum - t->promised;
	if (more > spare)
		spare += (int64_t)promises_take_back(s, turn, (uint64_t)(more - spare));
	if (more > spare)
		more = (uint32_t)spare;
	t->promised += more;
	s->promised_units += more;
	return t->promised < wanted ? t->promised : wanted;
}

/* Pages were lost for good. Promises that are not covered any more are taken back, the last first.
   Returns a turn that must end because its claim is not either, or SCHED_NONE. */
uint32_t claim_excess(struct sched *s)
{
	while (!claim_safe(s)) {
		if (!window_safe(s))
			return s->running.last;
		int64_t missing = -slack_least(s, s->running.first, SCHED_NONE);
		if (promises_take_back(s, SCHED_NONE, (uint64_t)missing) == 0)
			return s->running.last;
	}
	return SCHED_NONE;
}
