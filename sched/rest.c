/*
 * The lists of sessions at rest, by class and age of their pause: all that pause, and those who have
 * something to give on each place. Who gives first is the policy: retain.c.
 */
#include "sched/state.h"

static void low_put(struct sched *s, uint32_t session, uint32_t place)
{
	struct session *x = session_at(s, session);
	struct pause_class *c = class_at(s, x->class);
	chain_push_last(s, &c->rest[place][x->age], (enum link_kind)(LINK_REST + place), session);
	c->resting[place] |= (uint64_t)1 << x->age;
	x->low_rest[place] = 1;
}

void low_take(struct sched *s, uint32_t session, uint32_t place)
{
	struct session *x = session_at(s, session);
	struct pause_class *c = class_at(s, x->class);
	chain_take(s, &c->rest[place][x->age], (enum link_kind)(LINK_REST + place), session);
	if (c->rest[place][x->age].count == 0)
		c->resting[place] &= ~((uint64_t)1 << x->age);
	x->low_rest[place] = 0;
}

void rest_put(struct sched *s, uint32_t session, enum rest wanted, int oldest)
{
	struct session *x = session_at(s, session);
	struct pause_class *c = class_at(s, x->class);
	struct chain *chain = wanted == REST_SOLE ? &c->rest[PLACE_DEVICE][x->age] : &s->shared_rest;
	if (oldest)
		chain_push_first(s, chain, LINK_REST, session);
	else
		chain_push_last(s, chain, LINK_REST, session);
	if (wanted == REST_SOLE) {
		c->resting[PLACE_DEVICE] |= (uint64_t)1 << x->age;
		x->rest_units = x->at[PLACE_DEVICE];
		c->units[x->age] += x->rest_units;
	}
	x->at_rest = wanted;
	s->resting++;
}

void rest_take(struct sched *s, uint32_t session)
{
	struct session *x = session_at(s, session);
	struct pause_class *c = class_at(s, x->class);
	if (x->at_rest == REST_SOLE) {
		chain_take(s, &c->rest[PLACE_DEVICE][x->age], LINK_REST, session);
		c->units[x->age] -= x->rest_units;
		if (c->rest[PLACE_DEVICE][x->age].count == 0)
			c->resting[PLACE_DEVICE] &= ~((uint64_t)1 << x->age);
	} else {
		CHECK(x->at_rest == REST_SHARED);
		chain_take(s, &s->shared_rest, LINK_REST, session);
	}
	x->at_rest = REST_NOTHING;
	s->resting--;
}

/* Puts the session into the lists of those who have something to give, or takes it out (I9). What it
   owns alone, and where, may change while it rests, by what others do: that is seen when it is its
   turn. */
void rest_settle(struct sched *s, uint32_t session, int oldest)
{
	struct session *x = session_at(s, session);
	enum rest wanted = x->at[PLACE_DEVICE] ? REST_SOLE : REST_SHARED;
	int rests = x->state == SESSION_IDLE && x->pausing;
	for (uint32_t place = PLACE_HOST; place < PLACE_COUNT; place++) {
		int low = rests && x->at[place] > 0;
		if (low && !x->low_rest[place])
			low_put(s, session, place);
		else if (!low && x->low_rest[place])
			low_take(s, session, place);
	}
	if (!rests || x->units <= x->floor)
		wanted = REST_NOTHING;
	if (wanted == REST_SOLE && x->at_rest == REST_SOLE) {
		class_at(s, x->class)->units[x->age] += (uint64_t)x->at[PLACE_DEVICE] - x->rest_units;
		x->rest_units = x->at[PLACE_DEVICE];
	}
	if (wanted == (enum rest)x->at_rest && !oldest)
		return;
	if (x->at_rest != REST_NOTHING)
		rest_take(s, session);
	if (wanted != REST_NOTHING)
		rest_put(s, session, wanted, oldest);
}

void pause_put(struct sched *s, uint32_t session)
{
	struct session *x = session_at(s, session);
	struct pause_class *c = class_at(s, x->class);
	chain_push_last(s, &c->pause[x->age], LINK_PAUSE, session);
	c->pausing |= (uint64_t)1 << x->age;
	x->pausing = 1;
}

void pause_take(struct sched *s, uint32_t session)
{
	struct session *x = session_at(s, session);
	struct pause_class *c = class_at(s, x->class);
	chain_take(s, &c->pause[x->age], LINK_PAUSE, session);
	if (c->pause[x->age].count == 0)
		c->pausing &= ~((uint64_t)1 << x->age);
	x->pausing = 0;
}

/* Moves the session to the list of the class and age that are its own now. */
void pause_move(struct sched *s, uint32_t session, uint32_t class, uint32_t age)
{
	struct session *x = session_at(s, session);
	enum rest rest = (enum rest)x->at_rest;
	uint32_t low[PLACE_COUNT] = {0, x->low_rest[PLACE_HOST], x->low_rest[PLACE_DISK]};
	if (rest != REST_NOTHING)
		rest_take(s, session);
	for (uint32_t place = PLACE_HOST; place < PLACE_COUNT; place++)
		if (low[place])
			low_take(s, session, place);
	pause_take(s, session);
	x->class = class;
	x->age = age;
	pause_put(s, session);
	for (uint32_t place = PLACE_HOST; place < PLACE_COUNT; place++)
		if (low[place])
			low_put(s, session, place);
	if (rest != REST_NOTHING)
		rest_put(s, session, rest, 0);
}
