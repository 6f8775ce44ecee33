/*
 * Sessions: their life, their history, and what of it is resident. Cuts never leave a page that is
 * partly filled, and shared or of another principal (I5): such a page is given up, and its tokens
 * computed again.
 */
#include "sched/state.h"

#include <string.h>

/* Cuts what is resident to at most `tokens`. The page at the cut stays if nobody else owns it: its
   only owner may write on in it, unless it is public, and would stay so. */
void session_resident_cut(struct step *p, uint32_t session, uint32_t tokens)
{
	struct sched *s = p->s;
	struct session *x = session_at(s, session);
	uint32_t part = tokens % s->limits.page_tokens;
	if (tokens >= x->resident)
		return;
	if (part) {
		uint32_t page = table_page(s, session, 0, tokens / s->limits.page_tokens);
		if (page_at(s, 0, page)->owners > 1 || page_at(s, 0, page)->principal != x->principal)
			tokens -= part;
		else
			prefix_remove(s, page); /* it is not full any more */
	}
	uint32_t before = x->resident, usable = window_usable(s, session, tokens);
	pages_drop(p, session, units_of(s, usable), 0);
	x->resident = usable;
	if (usable < tokens)
		effect_lost(p, session, before, LOST_WINDOW, PLACE_TOKENS);
}

/* Likewise to so many units; tokens beyond what is resident have no part in it. */
void session_units_cut(struct step *p, uint32_t session, uint32_t units, enum lost_why why)
{
	struct sched *s = p->s;
	struct session *x = session_at(s, session);
	uint64_t tokens = (uint64_t)units * s->limits.page_tokens;
	uint32_t left = tokens < x->resident ? (uint32_t)tokens : x->resident;
	uint32_t usable = window_usable(s, session, left);
	pages_drop(p, session, usable < left ? 0 : units, why);
	x->resident = usable;
}

void session_history_cut(struct step *p, uint32_t session, uint32_t tokens)
{
	struct session *x = session_at(p->s, session);
	CHECK(tokens <= x->history);
	x->history = tokens;
	if (x->known > tokens)
		x->known = tokens;
	session_resident_cut(p, session, tokens);
}

int session_owns(const struct sched *s, uint32_t session, uint32_t group, uint32_t page)
{
	const struct page *wanted = page_at(s, group, page);
	return wanted->owners > 0 && wanted->unit < session_at(s, session)->units &&
	       table_page(s, session, group, wanted->unit) == page;
}

static void session_refuse(struct step *p, int err, const struct session *near, uint32_t session)
{
	struct effect *effect = effect_add(p->out, EFFECT_REFUSED);
	effect->session = session;
	effect->session_key = near ? near->key : p->event->session_key;
	effect->principal = near ? near->principal : p->event->principal;
	effect->as.residency.kind = p->event->kind == EVENT_PARK || p->event->kind == EVENT_ROLLBACK
		? RESIDENCY_BEST_EFFORT : p->event->as.residency.kind;
	effect->as.residency.blocker = SCHED_NONE;
	effect->as.residency.err = (uint32_t)err;
	if (p->event->kind == EVENT_OPEN || p->event->kind == EVENT_FORK || p->event->kind == EVENT_RESIDENCY)
		effect->as.residency.asked_bytes = p->event->as.residency.bytes;
}

/* FORK, ROLLBACK and PARK ask for a session at rest. */
void on_busy(struct step *p)
{
	const struct session *x = session_at(p->s, p->event->session);
	/* A refused fork has no session of its own: the key is the one it asked for. */
	int fork = p->event->kind == EVENT_FORK;
	session_refuse(p, ERR_SESSION_BUSY, fork ? NULL : x, fork ? SCHED_NONE : p->event->session);
}

static int open_refusal(const struct sched *s)
{
	if (s->draining)
		return ERR_DRAINING;
	return s->session_free.count == 0 ? ERR_LIMIT : ERR_NONE;
}

/* The ring of a principal's sessions. */

static void ring_put(struct sched *s, uint32_t before, uint32_t session)
{
	struct session *x = session_at(s, session), *near = session_at(s, before);
	x->family.next = near->family.next;
	x->family.prev = before;
	session_at(s, near->family.next)->family.prev = session;
	near->family.next = session;
}

static void ring_take(struct sched *s, uint32_t session)
{
	struct session *x = session_at(s, session);
	session_at(s, x->family.prev)->family.next = x->family.next;
	session_at(s, x->family.next)->family.prev = x->family.prev;
	x->family.prev = x->family.next = session;
}

/* Puts the session beside the one that it shares with. */
void session_near(struct sched *s, uint32_t near, uint32_t session)
{
	CHECK(near != session);
	CHECK(session_at(s, near)->principal == session_at(s, session)->principal);
	ring_take(s, session);
	ring_put(s, near, session);
}

static uint32_t session_take(struct step *p, uint32_t principal)
{
	struct sched *s = p->s;
	uint32_t session = s->session_free.first;
	chain_take(s, &s->session_free, LINK_REST, session);
	struct session *x = session_at(s, session);
	memset(x, 0, sizeof *x);
	x->key = p->event->session_key;
	x->principal = principal;
	x->state = SESSION_IDLE;
	x->turn = x->next_turn = SCHED_NONE;
	x->chunk_first = x->chunk_last = SCHED_NONE;
	x->family.prev = x->family.next = session;
	x->idle_since_us = s->now_us;
	struct principal *owner = principal_at(s, principal);
	owner->session_count++;
	if (owner->member)
		ring_put(s, owner->member - 1, session);
	owner->member = session + 1;
	return session;
}

void on_open(struct step *p)
{
	CHECK(p->event->principal < p->s->limits.principal_count);
	int err = open_refusal(p->s);
	if (err) {
		session_refuse(p, err, NULL, SCHED_NONE);
		return;
	}
	uint32_t session = session_take(p, p->event->principal);
	retain_open(p, session, effect_of_session(p, EFFECT_OPENED, session));
}

void on_fork(struct step *p)
{
	struct sched *s = p->s;
	uint32_t from = p->event->session;
	struct session *parent = session_at(s, from);
	int err = open_refusal(s);
	if (err) {
		session_refuse(p, err, NULL, SCHED_NONE);
		return;
	}
	uint32_t session = session_take(p, parent->principal);
	struct session *x = session_at(s, session);
	x->history = parent->history;
	x->known = parent->known;
	session_near(s, from, session);
	/* Full pages only. Where the entries for sharing give out, the child computes the rest. */
	uint32_t units = parent->resident / s->limits.page_tokens;
	if (units > s->share_max - s->share_extra)
		units = s->share_max - s->share_extra;
	if (window_usable(s, from, units * s->limits.page_tokens) == 0)
		units = 0;
	struct effect *opened = effect_of_session(p, EFFECT_OPENED, session);
	pages_share(p, from, session, units);
	x->resident = units * s->limits.page_tokens;
	x->pause = parent->pause;
	retain_begin(s, session);
	retain_open(p, session, opened);
}

void on_rollback(struct step *p)
{
	struct session *x = session_at(p->s, p->event->session);
	uint32_t tokens = p->event->as.rollback.tokens;
	if (tokens > x->history) {
		session_refuse(p, ERR_OUT_OF_RANGE, x, p->event->session);
		return;
	}
	session_history_cut(p, p->event->session, tokens);
	rest_settle(p->s, p->event->session, 0);
}

void on_hint(struct step *p)
{
	struct session *x = session_at(p->s, p->event->session);
	CHECK(p->event->as.hint.pause <= PAUSE_TOOL);
	x->pause = p->event->as.hint.pause;
	x->tool_key = p->event->as.hint.tool_key;
	x->returns_us = p->event->as.hint.returns_in_us;
	retain_class_set(p->s, p->event->session);
}

void on_touch(struct step *p)
{
	lease_renew(p->s, p->event->session);
	retain_touch(p->s, p->event->session);
}

void session_close(struct step *p, uint32_t session)
{
	struct sched *s = p->s;
	struct session *x = session_at(s, session);
	CHECK(x->turn == SCHED_NONE);
	CHECK(x->next_turn == SCHED_NONE);
	CHECK(x->state == SESSION_IDLE);
	pages_drop(p, session, 0, 0);
	x->resident = 0;
	retain_release(s, session);
	retain_return(s, session);
	CHECK(x->at_rest == REST_NOTHING);
	struct principal *owner = principal_at(s, x->principal);
	CHECK(owner->session_count > 0);
	owner->session_count--;
	owner->member = owner->session_count ? x->family.next + 1 : 0;
	ring_take(s, session);
	(void)effect_of_session(p, EFFECT_CLOSED, session);
	memset(x, 0, sizeof *x);
	chain_push_last(s, &s->session_free, LINK_REST, session);
}

void on_close(struct step *p)
{
	struct session *x = session_at(p->s, p->event->session);
	uint32_t turn = x->turn, next = x->next_turn;
	if (x->closing)
		return; /* It ends with the batch in flight. */
	x->closing = 1;
	if (next != SCHED_NONE)
		turn_end(p, next, END_CLOSED, end_err(END_CLOSED));
	if (turn != SCHED_NONE)
		turn_end_soon(p, turn, END_CLOSED, end_err(END_CLOSED)); /* closes, now or later */
	else
		session_close(p, p->event->session);
}
