/*
 * Leases and deadlines in one binary heap of indices, soonest first. An item below session_count
 * is the lease of that session, another one the deadline of turn item - session_count. Equal times
 * are ordered by item, so that the order does not depend on the heap's past.
 */
#include "sched/state.h"

static uint64_t item_us(const struct sched *s, uint32_t item)
{
	if (item < s->limits.session_count)
		return session_at(s, item)->lease_until_us;
	return turn_at(s, item - s->limits.session_count)->deadline_us;
}

static uint32_t *item_place(const struct sched *s, uint32_t item)
{
	if (item < s->limits.session_count)
		return &session_at(s, item)->heap_at;
	return &turn_at(s, item - s->limits.session_count)->heap_at;
}

static int item_before(const struct sched *s, uint32_t a, uint32_t b)
{
	uint64_t at = item_us(s, a), bt = item_us(s, b);
	return at != bt ? at < bt : a < b;
}

static void heap_put(struct sched *s, uint32_t at, uint32_t item)
{
	heap_of(s)[at] = item;
	*item_place(s, item) = at + 1;
}

static void heap_rise(struct sched *s, uint32_t at)
{
	const uint32_t *heap = heap_of(s);
	uint32_t item = heap[at];
	while (at > 0 && item_before(s, item, heap[(at - 1) / 2])) {
		heap_put(s, at, heap[(at - 1) / 2]);
		at = (at - 1) / 2;
	}
	heap_put(s, at, item);
}

static void heap_sink(struct sched *s, uint32_t at)
{
	const uint32_t *heap = heap_of(s);
	uint32_t item = heap[at];
	for (;;) {
		uint32_t child = 2 * at + 1;
		if (child >= s->heap_count)
			break;
		if (child + 1 < s->heap_count && item_before(s, heap[child + 1], heap[child]))
			child++;
		if (!item_before(s, heap[child], item))
			break;
		heap_put(s, at, heap[child]);
		at = child;
	}
	heap_put(s, at, item);
}

static void heap_add(struct sched *s, uint32_t item)
{
	CHECK(*item_place(s, item) == 0);
	CHECK(s->heap_count < s->limits.session_count + s->limits.turn_count);
	heap_put(s, s->heap_count, item);
	s->heap_count++;
	heap_rise(s, s->heap_count - 1);
}

static void heap_take(struct sched *s, uint32_t item)
{
	uint32_t at = *item_place(s, item);
	if (at == 0)
		return;
	at--;
	CHECK(heap_of(s)[at] == item);
	*item_place(s, item) = 0;
	s->heap_count--;
	if (at == s->heap_count)
		return;
	heap_put(s, at, heap_of(s)[s->heap_count]);
	heap_rise(s, at);
	heap_sink(s, at);
}

void timer_set_lease(struct sched *s, uint32_t session)
{
	heap_add(s, session);
}

void timer_set_deadline(struct sched *s, uint32_t turn)
{
	heap_add(s, s->limits.session_count + turn);
}

void timer_clear_lease(struct sched *s, uint32_t session)
{
	heap_take(s, session);
}

void timer_clear_deadline(struct sched *s, uint32_t turn)
{
	heap_take(s, s->limits.session_count + turn);
}

uint64_t timer_soonest_us(const struct sched *s)
{
	return s->heap_count ? item_us(s, heap_of(s)[0]) : UINT64_MAX;
}

int timer_due(const struct sched *s, uint32_t *session, uint32_t *turn)
{
	if (s->heap_count == 0 || timer_soonest_us(s) > s->now_us)
		return 0;
	uint32_t item = heap_of(s)[0];
	int lease = item < s->limits.session_count;
	*session = lease ? item : SCHED_NONE;
	*turn = lease ? SCHED_NONE : item - s->limits.session_count;
	return 1;
}

int timer_ordered(const struct sched *s)
{
	for (uint32_t at = 0; at < s->heap_count; at++) {
		if (*item_place(s, heap_of(s)[at]) != at + 1)
			return 0;
		if (at > 0 && item_before(s, heap_of(s)[at], heap_of(s)[(at - 1) / 2]))
			return 0;
	}
	return 1;
}
