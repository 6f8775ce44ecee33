/*
 * Who ends with whom: a fork that was tied to its parent is closed when that is, and so are its own tied
 * forks; a parent that is forgotten takes them along. And the end of sessions that nobody names any more.
 */
#include <string.h>

#include "runtime/events.h"
#include "runtime/forget.h"

enum { REAP_EVERY_US = 250000 };

/* In `parent`: it is gone, and the session will be, as soon as the log has room. Nobody finds it any more. */
enum { ORPHAN = NONE, ORPHAN_FORGOTTEN = NONE - 1 };

bool session_orphan(const struct session *s)
{
	return s->parent >= ORPHAN_FORGOTTEN;
}

/* What is to be forgotten is so on the disk at once, whenever its turn to end comes. */
static void orphan_make(struct daemon *d, uint32_t session, bool forgotten)
{
	d->sessions[session].parent = forgotten ? ORPHAN_FORGOTTEN : ORPHAN;
	d->orphans++;
	if (forgotten)
		session_unkeep(d, session);
}

static void expired_note(struct daemon *d, const struct session *s)
{
	d->expired[d->expired_count++ % EXPIRED_MAX] = (struct expired){s->principal, s->id};
}

bool session_expired(const struct daemon *d, uint32_t principal, const struct wire_id *id)
{
	const uint64_t known = d->expired_count < EXPIRED_MAX ? d->expired_count : EXPIRED_MAX;
	for (uint64_t i = 0; i < known; i++)
		if (d->expired[i].principal == principal && memcmp(&d->expired[i].id, id, sizeof *id) == 0)
			return true;
	return false;
}

/* All that hangs on the session. Each is looked at once, however deep they hang: what was looked at and is
   no orphan does not. */
static void tied_mark(struct daemon *d, uint32_t session)
{
	const bool forgotten = d->sessions[session].forgets;
	const bool expired = session_expired(d, d->sessions[session].principal, &d->sessions[session].id);
	const uint64_t look = ++d->family_looks;
	for (uint32_t i = 0; i < d->options.sessions; i++) {
		struct session *s = &d->sessions[i];
		if (i == session || !s->used || s->closing || s->parent == 0 || session_orphan(s))
			continue;
		uint32_t top = i, next;
		while (top != session && d->sessions[top].parent != 0 && d->sessions[top].looked != look &&
		       !session_orphan(&d->sessions[top]))
			top = d->sessions[top].parent - 1;
		const bool tied = top == session || session_orphan(&d->sessions[top]);
		for (uint32_t at = i; at != top; at = next) {
			next = d->sessions[at].parent - 1;
			d->sessions[at].looked = look;
			if (!tied)
				continue;
			orphan_make(d, at, forgotten);
			if (expired)
				expired_note(d, &d->sessions[at]);
		}
	}
}

void session_orphan_make(struct daemon *d, uint32_t session, bool forgotten)
{
	orphan_make(d, session, forgotten);
	tied_mark(d, session);
}

static void orphans_end(struct daemon *d)
{
	static bool inside; /* what ends one asks for all that hangs on it */
	if (inside)
		return;
	inside = true;
	for (uint32_t i = 0; i < d->options.sessions && d->orphans > 0 && step_room(d); i++) {
		struct session *s = &d->sessions[i];
		if (!s->used || s->closing || !session_orphan(s))
			continue;
		d->orphans--;
		if (s->parent == ORPHAN_FORGOTTEN)
			session_forget(d, i);
		else
			session_end_alone(d, i);
	}
	inside = false;
}

void session_end(struct daemon *d, uint32_t session)
{
	tied_mark(d, session);
	session_end_alone(d, session);
	orphans_end(d);
}

/* A turn that runs is no pause, and who works for a session that waits for it uses that too. */
static void tied_touch(struct daemon *d)
{
	for (uint32_t i = 0; i < d->options.sessions; i++) {
		struct session *s = &d->sessions[i];
		if (!s->used || s->closing || session_orphan(s))
			continue;
		if (s->call != NONE)
			s->touched_us = d->now_us;
		/* Above one that was named later all were, or will be when it is its turn. */
		for (uint32_t up = s->parent; up != 0 && d->sessions[up - 1].touched_us < s->touched_us;
		     up = d->sessions[up - 1].parent)
			d->sessions[up - 1].touched_us = s->touched_us;
	}
}

uint64_t sessions_reap(struct daemon *d)
{
	const uint64_t idle_us = d->options.session_idle_ms * 1000;
	uint64_t next = UINT64_MAX;
	const uint64_t ttl_us = d->options.history_ttl_ms * 1000;
	if (!step_room(d))
		return UINT64_MAX;
	orphans_end(d);
	if (!idle_us && !ttl_us)
		return UINT64_MAX;
	if (d->now_us < d->reaped_us + REAP_EVERY_US)
		return d->reaped_us + REAP_EVERY_US;
	d->reaped_us = d->now_us;
	tied_touch(d);
	for (uint32_t i = 0; i < d->options.sessions; i++) {
		struct session *s = &d->sessions[i];
		if (!s->used || s->closing || session_orphan(s) || public_is(d, s->principal))
			continue;
		const uint64_t least = !ttl_us || (idle_us && idle_us < ttl_us) ? idle_us : ttl_us;
		if (d->now_us < s->touched_us + least) {
			if (s->touched_us + least < next)
				next = s->touched_us + least;
			continue;
		}
		const struct event_part idle = {"idle_ms", NULL, (d->now_us - s->touched_us) / 1000};
		event_say(d, s, "expired", &idle, 1);
		expired_note(d, s);
		if (least == ttl_us)
			session_forget(d, i);
		else
			session_end(d, i);
		if (!step_room(d))
			break;
	}
	return next > d->now_us + REAP_EVERY_US ? next : d->now_us + REAP_EVERY_US;
}
