/*
 * What comes up before it is asked for: when the device has room, the sessions at rest whose pages on
 * lower places are worth most (retain.c: the rate of their return, times what they cost) have them back,
 * so that their turns need not wait for copies. A hint that tells when a session will be back, and what
 * was learned of its pauses, make its worth rise before that time.
 *
 * Only room that is free is used for it, and some is left; few copies are in flight, so that a turn that
 * loads does not wait behind them. What was parked stays where it is until its session's next turn.
 */
#include "sched/state.h"

enum {
	ROOM_PART = 16,    /* one unit in so many stays free */
	FLIGHT_MAX = 8,    /* copies in flight, with those of others, beyond which none is begun */
	LOOKS_MAX = 4,     /* sessions of a list that are looked at */
	WALK_MAX = 256     /* units that are passed in one step */
};

static int raise_wants(const struct sched *s, uint32_t session)
{
	const struct session *x = session_at(s, session);
	return !x->parked && x->raise_from < x->units;
}

/* Of all that rest and have units alone on the place, the one that is worth most. */
static uint32_t best(const struct sched *s, enum place place, uint64_t *most)
{
	uint32_t found = SCHED_NONE;
	for (uint32_t class = 0; class < s->class_count; class++) {
		const struct pause_class *c = class_at(s, class);
		for (uint64_t left = c->resting[place]; left; left &= left - 1) {
			uint32_t looks = 0, at = c->rest[place][__builtin_ctzll(left)].first;
			while (at != SCHED_NONE && ++looks < LOOKS_MAX && !raise_wants(s, at))
				at = session_at(s, at)->rest[place].next;
			if (at == SCHED_NONE || !raise_wants(s, at))
				continue;
			uint64_t value = retain_worth(s, at);
			if (found != SCHED_NONE && value <= *most)
				continue;
			found = at;
			*most = value;
		}
	}
	return found;
}

/* More is free than must stay so, in each group. */
static int room_left(const struct sched *s, uint32_t room)
{
	for (uint32_t g = 0; g < s->limits.group_count; g++) {
		uint64_t stays = window_of(s, g) ? window_total(s, g) / ROOM_PART + window_promised(s, g) : room;
		if (s->page_free[PLACE_DEVICE][g].count <= stays)
			return 0;
	}
	return 1;
}

/* Moves units of the session up, in the order of their positions, from where the last step stopped. */
static void session_raise(struct step *p, uint32_t session, uint32_t *left, uint32_t room)
{
	struct sched *s = p->s;
	struct session *x = session_at(s, session);
	struct cursor at = cursor_at(s, session, x->raise_from);
	uint32_t walked = 0;
	for (; at.unit < x->units && *left > 0 && walked < WALK_MAX; cursor_next(s, &at), walked++) {
		const struct page *page = page_at(s, 0, cursor_page(s, &at, 0));
		if (page->place == PLACE_DEVICE || unit_moves(s, &at) || page->bad)
			continue;
		if (!room_left(s, room))
			break;
		/* Where somebody keeps it, it is not to be had again for those who run (I6). */
		if (page->yielding < page->owners && claim_slack(s) == 0)
			break;
		p->look |= page->owners > 1; /* a turn that loads need not load this one */
		(void)pages_move(p, session, at.unit, PLACE_DEVICE);
		s->counts.pages_raised += s->limits.group_count;
		(*left)--;
	}
	x->raise_from = at.unit;
	rest_settle(s, session, 0);
}

void raise_ahead(struct step *p)
{
	struct sched *s = p->s;
	const uint32_t *count = s->limits.group[0].page_count;
	uint32_t room = pages_total_units(s) / ROOM_PART + 1 + s->promised_units;
	if (count[PLACE_HOST] + count[PLACE_DISK] == 0 || s->limits.policy != POLICY_COST || s->draining)
		return;
	uint32_t left = s->copies < FLIGHT_MAX ? FLIGHT_MAX - s->copies : 0;
	while (left > 0 && s->queue.count == 0 && room_left(s, room)) {
		uint64_t most[PLACE_COUNT] = {0};
		uint32_t host = best(s, PLACE_HOST, &most[PLACE_HOST]), disk = best(s, PLACE_DISK, &most[PLACE_DISK]);
		uint32_t session = host == SCHED_NONE || (disk != SCHED_NONE && most[PLACE_DISK] > most[PLACE_HOST])
			? disk : host;
		if (session == SCHED_NONE)
			return;
		uint32_t before = session_at(s, session)->raise_from;
		session_raise(p, session, &left, room);
		if (session_at(s, session)->raise_from == before)
			return;
	}
}
