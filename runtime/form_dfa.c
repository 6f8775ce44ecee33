/*
 * Automata: made state by state, trimmed, and combined.
 */
#include "runtime/form_dfa.h"

#include <stdlib.h>
#include <string.h>

#include "sched/check.h"

void dfa_free(struct dfa *d)
{
	if (!d)
		return;
	free(d->next);
	free(d->accept);
	free(d);
}

int dfa_spend(struct dfa_maker *m, uint64_t steps)
{
	m->budget -= (int64_t)steps;
	if (m->budget >= 0)
		return 0;
	m->reason = "the form's patterns take more than 31457280 steps: make them simpler, or fewer";
	return -ERR_TOO_BIG;
}

void dfa_classes(struct dfa_rough *r, const bool first[256])
{
	r->classes = 1;
	for (unsigned b = 0; b < 256; b++) {
		if (b > 0 && first[b])
			r->classes++;
		r->class_of[b] = (uint8_t)(r->classes - 1);
	}
}

int dfa_add(struct dfa_maker *m, struct dfa_rough *r, uint32_t *state)
{
	CHECK(r->classes > 0);
	if (r->states == DFA_STATES_MAX || (size_t)r->states * r->classes >= DFA_CELLS_MAX) {
		m->reason = "a pattern has more than 16384 states: shorten its counted repetitions";
		return -ERR_TOO_BIG;
	}
	TRY(dfa_spend(m, r->classes));
	if (r->states == r->capacity) {
		uint32_t capacity = r->capacity ? r->capacity * 2 : 16;
		uint16_t *next = realloc(r->next, (size_t)capacity * r->classes * sizeof *next);
		if (next)
			r->next = next;
		uint8_t *accept = realloc(r->accept, capacity);
		if (accept)
			r->accept = accept;
		if (!next || !accept)
			return -ERR_MEMORY;
		r->capacity = capacity;
	}
	*state = r->states++;
	memset(r->next + (size_t)*state * r->classes, 0xff, r->classes * sizeof *r->next);
	r->accept[*state] = 0;
	return 0;
}

/* Marks the states from which one that accepts can be reached: backwards along the edges, which are
   laid out in the order of where they lead. */
static int mark_live(struct dfa_maker *m, const struct dfa_rough *r, uint8_t *live)
{
	const size_t cells = (size_t)r->states * r->classes;
	uint32_t *first = calloc(r->states + 2, sizeof *first), *queue = NULL, count = 0;
	uint32_t *from = malloc((cells + 1) * sizeof *from);
	queue = malloc((r->states + 1) * sizeof *queue);
	int code = first && from && queue ? dfa_spend(m, cells * 2) : -ERR_MEMORY;
	if (code == 0) {
		for (size_t i = 0; i < cells; i++)
			if (r->next[i] != DFA_DEAD)
				first[r->next[i] + 2]++;
		for (uint32_t s = 0; s < r->states; s++)
			first[s + 2] += first[s + 1];
		for (size_t i = 0; i < cells; i++)
			if (r->next[i] != DFA_DEAD)
				from[first[r->next[i] + 1]++] = (uint32_t)(i / r->classes);
		for (uint32_t s = 0; s < r->states; s++)
			if (r->accept[s])
				live[queue[count++] = s] = 1;
		for (uint32_t at = 0; at < count; at++)
			for (uint32_t i = first[queue[at]]; i < first[queue[at] + 1]; i++)
				if (!live[from[i]])
					live[queue[count++] = from[i]] = 1;
	}
	free(first);
	free(from);
	free(queue);
	return code;
}

/* Numbers the live states that can be reached from the first. */
static uint32_t number(const struct dfa_rough *r, const uint8_t *live, uint16_t *name,
		       uint32_t *queue)
{
	uint32_t count = 1;
	memset(name, 0xff, r->states * sizeof *name);
	name[0] = 0;
	queue[0] = 0;
	for (uint32_t at = 0; at < count; at++) {
		const uint16_t *next = r->next + (size_t)queue[at] * r->classes;
		for (uint32_t c = 0; c < r->classes; c++) {
			if (next[c] == DFA_DEAD || !live[next[c]] || name[next[c]] != DFA_DEAD)
				continue;
			name[next[c]] = (uint16_t)count;
			queue[count++] = next[c];
		}
	}
	return count;
}

static int compact(const struct dfa_rough *r, const uint8_t *live, struct dfa *d)
{
	uint16_t *name = malloc(r->states * sizeof *name);
	uint32_t *queue = malloc(r->states * sizeof *queue);
	if (name && queue) {
		d->states = number(r, live, name, queue);
		d->classes = r->classes;
		memcpy(d->class_of, r->class_of, sizeof d->class_of);
		d->next = malloc((size_t)d->states * d->classes * sizeof *d->next);
		d->accept = malloc(d->states);
	}
	for (uint32_t s = 0; d->next && d->accept && s < d->states; s++) {
		const uint16_t *next = r->next + (size_t)queue[s] * r->classes;
		for (uint32_t c = 0; c < r->classes; c++)
			d->next[(size_t)s * d->classes + c] =
				next[c] == DFA_DEAD || !live[next[c]] ? DFA_DEAD : name[next[c]];
		d->accept[s] = r->accept[queue[s]];
	}
	free(name);
	free(queue);
	return d->next && d->accept ? 0 : -ERR_MEMORY;
}

int dfa_finish(struct dfa_maker *m, struct dfa_rough *r, struct dfa **out)
{
	uint8_t *live = calloc(r->states + 1, 1);
	struct dfa *d = calloc(1, sizeof *d);
	int code = live && d ? mark_live(m, r, live) : -ERR_MEMORY;
	*out = NULL;
	if (code == 0)
		code = r->states == 0 || !live[0] ? DFA_EMPTY : compact(r, live, d);
	if (code == 0)
		*out = d;
	else
		dfa_free(d);
	free(live);
	free(r->next);
	free(r->accept);
	return code;
}

/* Pairs of states by a table of open addresses. */
struct pairs {
	uint32_t *slot; /* 1 + index, 0: free */
	uint32_t mask, count;
	struct pair {
		uint32_t a, b; /* b DFA_DEAD: the other has come to nothing */
	} *pair;
};

static int pair_find(struct dfa_maker *m, struct pairs *p, struct dfa_rough *r, struct pair want,
		     uint32_t *state)
{
	uint32_t at = (want.a * 0x9e3779b1u ^ want.b * 0x85ebca77u) >> 7 & p->mask;
	for (; p->slot[at]; at = (at + 1) & p->mask) {
		const struct pair *have = &p->pair[p->slot[at] - 1];
		if (have->a == want.a && have->b == want.b) {
			*state = p->slot[at] - 1;
			return 0;
		}
	}
	TRY(dfa_add(m, r, state));
	p->pair[p->count++] = want;
	p->slot[at] = p->count;
	return 0;
}

static int product(struct dfa_maker *m, const struct dfa *a, const struct dfa *b, bool without,
		   struct pairs *p, struct dfa_rough *r)
{
	uint32_t state, sample[256];
	for (unsigned byte = 0; byte < 256; byte++)
		sample[r->class_of[byte]] = byte;
	TRY(pair_find(m, p, r, (struct pair){0, 0}, &state));
	for (uint32_t s = 0; s < r->states; s++) {
		const struct pair at = p->pair[s];
		bool in_b = at.b != DFA_DEAD && b->accept[at.b];
		r->accept[s] = a->accept[at.a] && in_b != without;
		TRY(dfa_spend(m, r->classes * 4));
		for (uint32_t c = 0; c < r->classes; c++) {
			uint8_t byte = (uint8_t)sample[c];
			struct pair to = {dfa_next(a, at.a, byte), DFA_DEAD};
			if (at.b != DFA_DEAD)
				to.b = dfa_next(b, at.b, byte);
			if (to.a == DFA_DEAD || (to.b == DFA_DEAD && !without))
				continue;
			TRY(pair_find(m, p, r, to, &state));
			r->next[(size_t)s * r->classes + c] = (uint16_t)state;
		}
	}
	return 0;
}

int dfa_both(struct dfa_maker *m, const struct dfa *a, const struct dfa *b, bool without,
	     struct dfa **out)
{
	struct dfa_rough r = {0};
	struct pairs p = {.mask = 4 * DFA_STATES_MAX - 1};
	bool first[256] = {false};
	*out = NULL;
	for (unsigned i = 1; i < 256; i++)
		first[i] = a->class_of[i] != a->class_of[i - 1] || b->class_of[i] != b->class_of[i - 1];
	dfa_classes(&r, first);
	p.slot = calloc(p.mask + 1, sizeof *p.slot);
	p.pair = malloc(DFA_STATES_MAX * sizeof *p.pair);
	int code = p.slot && p.pair ? dfa_spend(m, DFA_STATES_MAX / 4) : -ERR_MEMORY;
	if (code == 0)
		code = product(m, a, b, without, &p, &r);
	free(p.slot);
	free(p.pair);
	if (code == 0)
		return dfa_finish(m, &r, out);
	free(r.next);
	free(r.accept);
	return code;
}

int dfa_only(struct dfa_maker *m, struct dfa **d, const bool set[256])
{
	bool all = true, first[256] = {false};
	const struct dfa *from = *d;
	struct dfa_rough r = {0};
	struct dfa *out = NULL;
	int code = 0;
	for (unsigned b = 0; b < 256; b++)
		all &= set[b];
	if (all)
		return 0;
	for (unsigned b = 1; b < 256; b++)
		first[b] = from->class_of[b] != from->class_of[b - 1] || set[b] != set[b - 1];
	dfa_classes(&r, first);
	for (uint32_t s = 0, to; code == 0 && s < from->states; s++) {
		code = dfa_add(m, &r, &to);
		if (code)
			break;
		r.accept[to] = from->accept[s];
		for (unsigned b = 0; b < 256; b++)
			if (set[b])
				r.next[(size_t)to * r.classes + r.class_of[b]] = dfa_next(from, s, (uint8_t)b);
	}
	if (code == 0) {
		code = dfa_finish(m, &r, &out);
	} else {
		free(r.next);
		free(r.accept);
	}
	dfa_free(*d);
	*d = out;
	return code;
}

int dfa_texts(struct dfa_maker *m, const struct dfa_text *text, uint32_t count, struct dfa **out)
{
	struct dfa_rough r = {0};
	bool first[256] = {false};
	uint32_t state = 0;
	*out = NULL;
	for (uint32_t i = 0; i < count; i++)
		for (size_t k = 0; k < text[i].length; k++) {
			first[(uint8_t)text[i].at[k]] = true;
			first[(uint8_t)(text[i].at[k] + 1)] = true;
		}
	dfa_classes(&r, first);
	int code = dfa_add(m, &r, &state);
	for (uint32_t i = 0; code == 0 && i < count; i++) {
		uint32_t at = 0;
		for (size_t k = 0; code == 0 && k < text[i].length; k++) {
			const size_t cell = (size_t)at * r.classes + r.class_of[(uint8_t)text[i].at[k]];
			if (r.next[cell] == DFA_DEAD) {
				code = dfa_add(m, &r, &state);
				if (code == 0)
					r.next[cell] = (uint16_t)state;
			}
			at = code == 0 ? r.next[cell] : 0;
		}
		if (code == 0)
			r.accept[at] = 1;
	}
	if (code == 0)
		return dfa_finish(m, &r, out);
	free(r.next);
	free(r.accept);
	return code;
}

/* Where in a character one is, and what the first byte leads to (Unicode, table 3-7). */
enum place { BETWEEN, LAST_1, LAST_2, LAST_3, AFTER_E0, AFTER_ED, AFTER_F0, AFTER_F4, PLACES };

/* The place a byte leads to, or PLACES. */
static enum place place_next(enum place at, unsigned b)
{
	bool more = b >= 0x80 && b <= 0xbf;
	switch (at) {
	case BETWEEN:
		if (b < 0x80)
			return BETWEEN;
		if (b < 0xc2 || b > 0xf4)
			return PLACES;
		if (b < 0xe0)
			return LAST_1;
		if (b < 0xf0)
			return b == 0xe0 ? AFTER_E0 : b == 0xed ? AFTER_ED : LAST_2;
		return b == 0xf0 ? AFTER_F0 : b == 0xf4 ? AFTER_F4 : LAST_3;
	case LAST_1:
		return more ? BETWEEN : PLACES;
	case LAST_2:
		return more ? LAST_1 : PLACES;
	case LAST_3:
		return more ? LAST_2 : PLACES;
	case AFTER_E0:
		return more && b >= 0xa0 ? LAST_1 : PLACES;
	case AFTER_ED:
		return more && b < 0xa0 ? LAST_1 : PLACES;
	case AFTER_F0:
		return more && b >= 0x90 ? LAST_2 : PLACES;
	default:
		return more && b < 0x90 ? LAST_2 : PLACES;
	}
}

bool dfa_utf8(const char *text, size_t length)
{
	enum place at = BETWEEN;
	for (size_t i = 0; i < length && at != PLACES; i++)
		at = place_next(at, (uint8_t)text[i]);
	return at == BETWEEN;
}

int dfa_length(struct dfa_maker *m, uint32_t least, uint32_t most, struct dfa **out)
{
	static const uint8_t edges[] = {0x80, 0x90, 0xa0, 0xc0, 0xc2, 0xe0, 0xe1, 0xed,
					0xee, 0xf0, 0xf1, 0xf4, 0xf5};
	struct dfa_rough r = {0};
	bool first[256] = {false}, endless = most == UINT32_MAX;
	const uint32_t last = endless ? least : most;
	uint32_t state;
	int code = 0;
	*out = NULL;
	for (unsigned i = 0; i < sizeof edges; i++)
		first[edges[i]] = true;
	dfa_classes(&r, first);
	_Static_assert(DFA_STATES_MAX / PLACES == 2048, "as the reason says");
	if (last >= DFA_STATES_MAX / PLACES) {
		m->reason = "a string with a pattern has a bound beyond 2047 characters: too long a bound";
		return -ERR_TOO_BIG;
	}
	for (uint32_t s = 0; code == 0 && s < (last + 1) * PLACES; s++)
		code = dfa_add(m, &r, &state);
	for (uint32_t s = 0; code == 0 && s < (last + 1) * PLACES; s++) {
		const uint32_t count = s / PLACES;
		r.accept[s] = s % PLACES == BETWEEN && count >= least;
		for (unsigned b = 0; b < 256; b++) {
			enum place to = place_next((enum place)(s % PLACES), b);
			const uint32_t after = count + (s % PLACES == BETWEEN);
			if (to == PLACES || (after > last && !endless))
				continue;
			r.next[(size_t)s * r.classes + r.class_of[b]] =
				(uint16_t)((after > last ? last : after) * PLACES + to);
		}
	}
	if (code == 0)
		return dfa_finish(m, &r, out);
	free(r.next);
	free(r.accept);
	return code;
}
