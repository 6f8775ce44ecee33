/*
 * Grants: what a session was promised to keep between its turns, pinned or leased.
 *
 * A grant is a number of units of a session: its first `granted` units stay while it waits. Grants
 * are counted on the principal's quota and all together (grant_max), whether pages are there yet
 * or not. What lies beyond a grant is best effort: see retain.c.
 *
 * Where groups have windows, the head of a context is of no use without its own windows, which are
 * gone. So a grant there keeps a whole context of up to so many units; one that has outgrown it is
 * best effort as a whole, until it is granted more or is cut back.
 */
#include "sched/state.h"

uint32_t retain_floor(const struct session *x)
{
	return x->state == SESSION_RUNNING ? FLOOR_ALL : x->outgrown ? 0 : x->granted;
}

/* The session, other than this one, that has held a grant longest. */
uint32_t retain_blocker(const struct sched *s, uint32_t session)
{
	uint32_t first = s->grants.first;
	if (first == session)
		first = session_at(s, first)->grant.next;
	return first;
}

/* Bytes that the principal may have; 0: any. What is public is the operator's own. */
uint64_t quota_of(const struct sched *s, uint32_t principal)
{
	return principal + 1 == s->limits.public_principal ? 0 : s->limits.principal_bytes;
}

/* What the session's running turn may need beyond its grant: all that it will ever have, and not only what it
   has by now, so that it never has to stand still for its principal's quota. */
static uint64_t beyond_grant(const struct sched *s, uint32_t session)
{
	const struct session *x = session_at(s, session);
	if (x->state != SESSION_RUNNING)
		return 0;
	const struct turn *t = turn_at(s, x->turn);
	uint32_t units = turn_units(s, t->prompt, t->output_max);
	return units > x->granted ? window_bytes(s, units) - window_bytes(s, x->granted) : 0;
}

/* What the quota of its principal is charged with for the session. */
uint64_t quota_charged(const struct sched *s, uint32_t session)
{
	return window_bytes(s, session_at(s, session)->granted) + beyond_grant(s, session);
}

/* The same for all the principal's sessions but this one. */
static uint64_t charged_beside(const struct sched *s, uint32_t session)
{
	const struct session *x = session_at(s, session);
	const struct principal *owner = principal_at(s, x->principal);
	uint64_t own = quota_charged(s, session);
	CHECK(owner->granted_bytes + owner->running_bytes >= own);
	return owner->granted_bytes + owner->running_bytes - own;
}

/* The bytes by which a turn of so many units would exceed its principal's quota; `never`: it would even if
   none of its other turns ran, for what is granted to them. */
uint64_t quota_short(const struct sched *s, uint32_t session, uint32_t units, int *never)
{
	const struct session *x = session_at(s, session);
	uint64_t most = quota_of(s, x->principal);
	uint64_t own = window_bytes(s, units > x->granted ? units : x->granted);
	*never = 0;
	if (most == 0)
		return 0;
	uint64_t granted = principal_at(s, x->principal)->granted_bytes - window_bytes(s, x->granted);
	uint64_t beside = charged_beside(s, session);
	*never = granted + own > most;
	return beside + own > most ? beside + own - most : 0;
}

/* The session's turn begins to run, or is about to end. */
void quota_begin(struct sched *s, uint32_t session)
{
	principal_at(s, session_at(s, session)->principal)->running_bytes += beyond_grant(s, session);
}

void quota_end(struct sched *s, uint32_t session)
{
	struct principal *owner = principal_at(s, session_at(s, session)->principal);
	uint64_t bytes = beyond_grant(s, session);
	CHECK(owner->running_bytes >= bytes);
	owner->running_bytes -= bytes;
}

static void grant_set(struct sched *s, uint32_t session, enum residency kind, uint32_t units)
{
	struct session *x = session_at(s, session);
	struct principal *owner = principal_at(s, x->principal);
	CHECK(kind != RESIDENCY_BEST_EFFORT || units == 0);
	quota_end(s, session);
	s->granted_units += units - x->granted;
	owner->granted += units - x->granted;
	owner->granted_bytes += window_bytes(s, units) - window_bytes(s, x->granted);
	for (uint32_t g = 0; s->windowed && g < s->limits.group_count; g++)
		if (window_of(s, g))
			s->window_granted[g] += (uint64_t)window_need(s, g, units) - window_need(s, g, x->granted);
	if (x->granted && !units)
		chain_take(s, &s->grants, LINK_GRANT, session);
	if (!x->granted && units)
		chain_push_last(s, &s->grants, LINK_GRANT, session);
	x->granted = units;
	quota_begin(s, session);
	x->residency = kind;
	timer_clear_lease(s, session);
	x->lease_until_us = 0;
}

static void lease_begin(struct sched *s, uint32_t session, uint64_t lease_us)
{
	struct session *x = session_at(s, session);
	x->lease_us = lease_us;
	x->lease_until_us = lease_us < UINT64_MAX - s->now_us ? s->now_us + lease_us : UINT64_MAX - 1;
	timer_set_lease(s, session);
}

/* The lease that runs begins anew. */
void lease_renew(struct sched *s, uint32_t session)
{
	const struct session *x = session_at(s, session);
	if (x->lease_until_us == 0 || x->closing)
		return;
	timer_clear_lease(s, session);
	lease_begin(s, session, x->lease_us);
}

void retain_release(struct sched *s, uint32_t session)
{
	struct session *x = session_at(s, session);
	grant_set(s, session, RESIDENCY_BEST_EFFORT, 0);
	pages_floor_set(s, session, retain_floor(x));
}

struct offer {
	uint32_t units, blocker;
	int err;
};

/* The most units, of at most a whole context, that take no more than so many bytes. */
static uint32_t units_within(const struct sched *s, uint64_t bytes)
{
	uint32_t units = window_units(s, bytes);
	return window_bytes(s, units) > bytes ? units - 1 : units;
}

uint32_t sched_tokens_most(const struct sched *s, uint32_t session)
{
	const uint64_t quota = quota_of(s, session_at(s, session)->principal);
	const uint64_t tokens = quota ? (uint64_t)units_within(s, quota) * s->limits.page_tokens : UINT64_MAX;
	return tokens < s->limits.context_tokens ? (uint32_t)tokens : s->limits.context_tokens;
}

/* How many of the wanted units the quotas allow, the session's present grant counted as returned. */
static struct offer offer_by_quota(const struct sched *s, uint32_t session, uint64_t wanted)
{
	const struct session *x = session_at(s, session);
	uint64_t others = s->granted_units - x->granted;
	uint64_t left = s->grant_max > others ? s->grant_max - others : 0;
	struct offer offer = {0, SCHED_NONE, ERR_NONE};
	if (wanted > left) {
		wanted = left;
		offer.blocker = retain_blocker(s, session);
		offer.err = ERR_NO_PAGES;
	}
	for (uint32_t g = 0; s->windowed && g < s->limits.group_count; g++) {
		if (!window_of(s, g))
			continue;
		others = s->window_granted[g] - window_need(s, g, x->granted);
		left = s->window_grant_max[g] > others ? s->window_grant_max[g] - others : 0;
		if (wanted > left && left < s->window_cap[g]) {
			wanted = left;
			offer.blocker = retain_blocker(s, session);
			offer.err = ERR_NO_PAGES;
		}
	}
	if (quota_of(s, x->principal)) {
		uint64_t mine = charged_beside(s, session), most = quota_of(s, x->principal);
		left = most > mine ? most - mine : 0;
		left = units_within(s, left);
		if (wanted > left) {
			wanted = left;
			offer.blocker = SCHED_NONE;
			offer.err = ERR_LIMIT;
		}
	}
	offer.units = (uint32_t)wanted;
	return offer;
}

/* A session at rest yields its pages to admitted turns; a grant may take back only what their
   promises leave (I6). Returns the highest floor, up to `wanted`, that this allows. */
static uint32_t floor_affordable(const struct sched *s, uint32_t session, uint32_t wanted)
{
	const struct session *x = session_at(s, session);
	if (x->state == SESSION_RUNNING) {
		/* Later turns count on what this one gives back. What it shares it gives back to nobody. */
		uint32_t kept = x->granted > x->units - x->sole ? x->granted : x->units - x->sole;
		uint64_t more = claim_slack_after(s, x->turn);
		return wanted <= kept || wanted - kept <= more ? wanted : kept + (uint32_t)more;
	}
	if (wanted <= x->floor || x->floor >= x->units)
		return wanted;
	if (s->windowed && wanted < x->units)
		return wanted; /* it keeps nothing yet */
	for (uint32_t g = 0; s->windowed && g < s->limits.group_count; g++)
		if (window_of(s, g) && x->units - x->low[g] > window_slack(s, g))
			return 0;
	uint64_t slack = claim_slack(s);
	struct cursor at = cursor_at(s, session, x->floor);
	for (; at.unit < x->units && at.unit < wanted; cursor_next(s, &at)) {
		if (!page_yields(page_at(s, 0, cursor_page(s, &at, 0))))
			continue;
		if (slack == 0)
			return at.unit;
		slack--;
	}
	return wanted;
}

/* Decides what the session gets of what the event asks, makes it so, and fills in what is told.
   Returns 0, or why nothing at all could be granted; then the session keeps what it had. */
static int grant_decide(struct step *p, uint32_t session, struct effect *told)
{
	struct sched *s = p->s;
	struct session *x = session_at(s, session);
	uint32_t kind = p->event->as.residency.kind;
	uint64_t lease_us = p->event->as.residency.lease_us;
	uint64_t wanted = window_units(s, p->event->as.residency.bytes);
	struct offer offer = {0, SCHED_NONE, ERR_NONE};
	CHECK(kind <= RESIDENCY_PINNED);
	if (wanted == 0)
		wanted = s->context_units; /* 0 asks for a whole context */
	if (lease_us == 0 || lease_us > s->limits.lease_us_max)
		lease_us = s->limits.lease_us_max; /* 0 asks for the longest */
	told->as.residency.asked_bytes = p->event->as.residency.bytes;
	told->as.residency.blocker = SCHED_NONE;
	if (kind == RESIDENCY_LEASED && lease_us == 0)
		offer.err = ERR_UNSUPPORTED;
	else if (kind != RESIDENCY_BEST_EFFORT) {
		offer = offer_by_quota(s, session, wanted);
		uint32_t units = floor_affordable(s, session, offer.units);
		if (units < offer.units) {
			offer.err = ERR_NO_PAGES;
			offer.units = units;
			offer.blocker = s->running.first == SCHED_NONE
				? SCHED_NONE : turn_at(s, s->running.first)->session;
		}
	}
	told->as.residency.err = (uint32_t)offer.err;
	told->as.residency.blocker = offer.blocker;
	if (kind == RESIDENCY_BEST_EFFORT || offer.units > 0) {
		grant_set(s, session, kind, offer.units);
		x->expired = 0;
		x->outgrown = s->windowed && x->units > x->granted;
		pages_floor_set(s, session, retain_floor(x));
		if (kind == RESIDENCY_LEASED)
			lease_begin(s, session, lease_us);
		offer.err = ERR_NONE;
	}
	told->as.residency.kind = x->residency;
	told->as.residency.bytes = window_bytes(s, x->granted);
	told->as.residency.lease_us = x->lease_until_us ? x->lease_until_us - s->now_us : 0;
	told->as.residency.free_bytes = claim_slack(s) * s->unit_bytes;
	rest_settle(s, session, 0);
	return offer.err;
}

/* For OPEN and FORK: what cannot be granted does not refuse the session. */
void retain_open(struct step *p, uint32_t session, struct effect *told)
{
	(void)grant_decide(p, session, told);
}

void on_residency(struct step *p)
{
	uint32_t session = p->event->session;
	struct effect *told = effect_of_session(p, EFFECT_RESIDENCY, session);
	if (session_at(p->s, session)->closing) {
		told->kind = EFFECT_REFUSED;
		told->as.residency.err = ERR_GONE;
		told->as.residency.blocker = SCHED_NONE;
		told->as.residency.asked_bytes = p->event->as.residency.bytes;
		return;
	}
	if (grant_decide(p, session, told) != 0)
		told->kind = EFFECT_REFUSED;
}

void retain_expire(struct step *p, uint32_t session)
{
	struct session *x = session_at(p->s, session);
	uint64_t held = window_bytes(p->s, x->granted);
	CHECK(x->residency == RESIDENCY_LEASED);
	retain_release(p->s, session);
	x->expired = 1;
	/* It rests since before its lease ran out, so it gives way before those that came later. */
	rest_settle(p->s, session, 1);
	struct effect *told = effect_of_session(p, EFFECT_RESIDENCY, session);
	told->as.residency.kind = RESIDENCY_BEST_EFFORT;
	told->as.residency.blocker = SCHED_NONE;
	told->as.residency.asked_bytes = held;
	told->as.residency.free_bytes = claim_slack(p->s) * p->s->unit_bytes;
	told->as.residency.err = ERR_EXPIRED;
}
