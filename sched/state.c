/*
 * The tables of the block, the lists through them, and the room for effects. Knows no rule.
 */
#include "sched/state.h"

#include <string.h>

static void *table_at(const struct sched *s, uint64_t offset, uint64_t index, size_t size)
{
	/* The state is one block, and whoever holds it const only reads through the result. */
	return (char *)(uintptr_t)s + offset + index * size;
}

struct page *page_at(const struct sched *s, uint32_t group, uint32_t page)
{
	CHECK(group < s->limits.group_count);
	CHECK(page < pages_of_group(s, group));
	return table_at(s, s->at_page[group], page, sizeof(struct page));
}

uint32_t pages_of_group(const struct sched *s, uint32_t group)
{
	const uint32_t *count = s->limits.group[group].page_count;
	return count[PLACE_DEVICE] + count[PLACE_HOST] + count[PLACE_DISK];
}

/* Which page has the slot. */
uint32_t *slot_page(const struct sched *s, uint32_t group, enum place place, uint32_t slot)
{
	const uint32_t *count = s->limits.group[group].page_count;
	CHECK(group < s->limits.group_count);
	CHECK(slot < count[place]);
	for (uint32_t before = 0; before < (uint32_t)place; before++)
		slot += count[before];
	return table_at(s, s->at_slot[group], slot, sizeof(uint32_t));
}

struct session *session_at(const struct sched *s, uint32_t session)
{
	CHECK(session < s->limits.session_count);
	return table_at(s, s->at_session, session, sizeof(struct session));
}

struct turn *turn_at(const struct sched *s, uint32_t turn)
{
	CHECK(turn < s->limits.turn_count);
	return table_at(s, s->at_turn, turn, sizeof(struct turn));
}

struct principal *principal_at(const struct sched *s, uint32_t principal)
{
	CHECK(principal < s->limits.principal_count);
	return table_at(s, s->at_principal, principal, sizeof(struct principal));
}

/* A chunk is prev, next, then CHUNK_UNITS units of one page index for each group. */
static size_t chunk_words(const struct sched_limits *limits)
{
	return 2 + (size_t)CHUNK_UNITS * limits->group_count;
}

struct pause_class *class_at(const struct sched *s, uint32_t class)
{
	CHECK(class < s->class_count);
	return table_at(s, s->at_class, class, sizeof(struct pause_class));
}

uint32_t *chunk_at(const struct sched *s, uint32_t chunk)
{
	CHECK(chunk < s->chunk_count);
	return table_at(s, s->at_chunk, chunk, chunk_words(&s->limits) * sizeof(uint32_t));
}

uint32_t *heap_of(const struct sched *s)
{
	return table_at(s, s->at_heap, 0, 0);
}

struct flight *flight_at(const struct sched *s, uint32_t entry)
{
	CHECK(entry < s->limits.batch_turns);
	return table_at(s, s->at_flight, entry, sizeof(struct flight));
}

static uint64_t room(uint64_t *bytes, uint64_t count, size_t size)
{
	uint64_t at = *bytes;
	*bytes = (at + count * size + 63) & ~(uint64_t)63;
	return at;
}

size_t state_layout(struct sched *s)
{
	const struct sched_limits *l = &s->limits;
	uint64_t bytes = 0;
	uint32_t pages = 0;
	(void)room(&bytes, 1, sizeof *s);
	for (uint32_t g = 0; g < l->group_count; g++) {
		uint32_t count = pages_of_group(s, g);
		s->at_page[g] = room(&bytes, count, sizeof(struct page));
		s->at_slot[g] = room(&bytes, count, sizeof(uint32_t));
		if (g == 0 || (count < pages && !window_of(s, g)))
			pages = count;
	}
	/* Enough chunks by count: unshared entries are at most `pages`, shared ones beyond the first
	   at most share_max, and each session leaves less than one chunk unfilled. */
	s->share_max = pages <= 0x0fffffffu ? pages * SHARE_FACTOR : 0x7fffffffu;
	s->chunk_count = l->session_count + (uint32_t)(((uint64_t)pages + s->share_max) / CHUNK_UNITS) + 1;
	s->at_session = room(&bytes, l->session_count, sizeof(struct session));
	s->at_turn = room(&bytes, l->turn_count, sizeof(struct turn));
	s->at_principal = room(&bytes, l->principal_count, sizeof(struct principal));
	/* Only one policy learns; the others keep one list. */
	s->class_count = l->policy == POLICY_COST ? CLASS_TOOL + TOOL_COUNT : 1;
	s->at_class = room(&bytes, s->class_count, sizeof(struct pause_class));
	s->at_chunk = room(&bytes, s->chunk_count, chunk_words(l) * sizeof(uint32_t));
	s->at_heap = room(&bytes, (uint64_t)l->session_count + l->turn_count, sizeof(uint32_t));
	s->at_flight = room(&bytes, l->batch_turns, sizeof(struct flight));
	s->bytes = bytes;
	return bytes;
}

uint32_t units_of(const struct sched *s, uint64_t tokens)
{
	return (uint32_t)((tokens + s->limits.page_tokens - 1) / s->limits.page_tokens);
}

static struct link *link_of(struct sched *s, enum link_kind kind, uint32_t item)
{
	switch (kind) {
	case LINK_REST:
	case LINK_REST_HOST:
	case LINK_REST_DISK: return &session_at(s, item)->rest[kind - LINK_REST];
	case LINK_PAUSE: return &session_at(s, item)->pause_link;
	case LINK_GRANT: return &session_at(s, item)->grant;
	default: return &turn_at(s, item)->link;
	}
}

void chain_clear(struct chain *chain)
{
	chain->first = chain->last = SCHED_NONE;
	chain->count = 0;
}

void chain_push_last(struct sched *s, struct chain *chain, enum link_kind kind, uint32_t item)
{
	struct link *link = link_of(s, kind, item);
	link->prev = chain->last;
	link->next = SCHED_NONE;
	if (chain->last == SCHED_NONE)
		chain->first = item;
	else
		link_of(s, kind, chain->last)->next = item;
	chain->last = item;
	chain->count++;
}

void chain_push_first(struct sched *s, struct chain *chain, enum link_kind kind, uint32_t item)
{
	struct link *link = link_of(s, kind, item);
	link->prev = SCHED_NONE;
	link->next = chain->first;
	if (chain->first == SCHED_NONE)
		chain->last = item;
	else
		link_of(s, kind, chain->first)->prev = item;
	chain->first = item;
	chain->count++;
}

void chain_take(struct sched *s, struct chain *chain, enum link_kind kind, uint32_t item)
{
	struct link *link = link_of(s, kind, item);
	CHECK(chain->count > 0);
	if (link->prev == SCHED_NONE) {
		CHECK(chain->first == item);
		chain->first = link->next;
	} else {
		link_of(s, kind, link->prev)->next = link->next;
	}
	if (link->next == SCHED_NONE) {
		CHECK(chain->last == item);
		chain->last = link->prev;
	} else {
		link_of(s, kind, link->next)->prev = link->prev;
	}
	chain->count--;
	link->prev = link->next = SCHED_NONE;
}

struct effect *effect_add(struct effects *out, enum effect_kind kind)
{
	CHECK(out->count < out->capacity);
	struct effect *effect = &out->list[out->count++];
	memset(effect, 0, sizeof *effect);
	effect->kind = kind;
	effect->session = effect->turn = SCHED_NONE;
	return effect;
}

struct effect *effect_of_session(struct step *p, enum effect_kind kind, uint32_t session)
{
	const struct session *x = session_at(p->s, session);
	struct effect *effect = effect_add(p->out, kind);
	effect->session = session;
	effect->session_key = x->key;
	effect->principal = x->principal;
	return effect;
}

struct effect *effect_of_turn(struct step *p, enum effect_kind kind, uint32_t turn)
{
	const struct turn *t = turn_at(p->s, turn);
	struct effect *effect = effect_of_session(p, kind, t->session);
	effect->turn = turn;
	effect->turn_key = t->key;
	return effect;
}

void effect_lost(struct step *p, uint32_t session, uint32_t before, enum lost_why why, enum place place)
{
	const struct session *x = session_at(p->s, session);
	CHECK(x->resident <= before);
	struct effect *effect = effect_of_session(p, EFFECT_LOST, session);
	effect->as.lost.tokens_before = before;
	effect->as.lost.tokens_after = x->resident;
	effect->as.lost.why = why;
	effect->as.lost.place = place;
}
