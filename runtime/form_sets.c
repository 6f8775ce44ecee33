/*
 * A pattern made certain: each state of the automaton is the set of the places where the text so far
 * may have led.
 */
#include "runtime/form_regex_inside.h"

#include <stdlib.h>
#include <string.h>

/* Sets of states, each once. */
struct sets {
	uint32_t *pool; /* the members, one set after the other */
	size_t used, capacity;
	uint32_t *first, *slot; /* first: DFA_STATES_MAX + 1; slot: 1 + index, 0: free */
	uint32_t count;
	uint32_t *mark, *stack, *list, generation, length;
};

enum { SLOTS = 4 * DFA_STATES_MAX };

static void reach(struct sets *s, uint32_t at, uint32_t *top)
{
	if (s->mark[at] == s->generation)
		return;
	s->mark[at] = s->generation;
	s->stack[(*top)++] = at;
}

/* Adds to the list what can be reached without a byte. */
static int closure(struct regex *x, struct sets *s, uint32_t from, bool begin, bool end)
{
	uint32_t top = 0;
	reach(s, from, &top);
	while (top > 0) {
		const uint32_t at = s->stack[--top];
		const struct nstep *n = &x->step[at];
		TRY(dfa_spend(x->m, 1));
		if (n->kind == STEP_SPLIT) {
			reach(s, n->a, &top);
			reach(s, n->b, &top);
		} else if (n->kind == STEP_BEGIN) {
			if (begin)
				reach(s, n->a, &top);
		} else if (n->kind == STEP_END && end) {
			reach(s, n->a, &top);
		} else {
			s->list[s->length++] = at;
		}
	}
	return 0;
}

static int u32_order(const void *a, const void *b)
{
	const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
	return (x > y) - (x < y);
}

/* The state of the set in the list. */
static int set_find(struct regex *x, struct sets *s, struct dfa_rough *r, uint32_t *state)
{
	uint64_t hash = 0xcbf29ce484222325;
	const size_t bytes = s->length * sizeof *s->list;
	qsort(s->list, s->length, sizeof *s->list, u32_order);
	for (uint32_t i = 0; i < s->length; i++)
		hash = (hash ^ s->list[i]) * 0x100000001b3;
	uint32_t at = (uint32_t)(hash >> 20) % SLOTS;
	for (; s->slot[at]; at = (at + 1) % SLOTS) {
		const uint32_t k = s->slot[at] - 1;
		if (s->first[k + 1] - s->first[k] == s->length &&
		    memcmp(s->pool + s->first[k], s->list, bytes) == 0) {
			*state = k;
			return 0;
		}
	}
	TRY(dfa_add(x->m, r, state));
	TRY(dfa_spend(x->m, s->length));
	if (s->used + s->length > s->capacity) {
		size_t capacity = s->capacity * 2 + s->length + 1024;
		uint32_t *pool = realloc(s->pool, capacity * sizeof *pool);
		if (!pool)
			return -ERR_MEMORY;
		s->pool = pool;
		s->capacity = capacity;
	}
	if (s->length > 0)
		memcpy(s->pool + s->used, s->list, bytes);
	s->used += s->length;
	s->slot[at] = ++s->count;
	s->first[s->count] = (uint32_t)s->used;
	return 0;
}

/* Whether a text may end in the state. */
static int accepts(struct regex *x, struct sets *s, uint32_t state, uint8_t *out)
{
	s->generation++;
	s->length = 0;
	for (uint32_t i = s->first[state]; i < s->first[state + 1]; i++)
		TRY(closure(x, s, s->pool[i], false, true));
	for (uint32_t i = 0; i < s->length; i++)
		*out |= x->step[s->list[i]].kind == STEP_MATCH;
	return 0;
}

static int certain(struct regex *x, struct sets *s, uint32_t start, struct dfa_rough *r)
{
	bool first[257] = {false};
	uint32_t state, sample[256];
	for (uint32_t i = 0; i < x->steps; i++)
		if (x->step[i].kind == STEP_BYTE)
			first[x->step[i].low] = first[x->step[i].high + 1] = true;
	dfa_classes(r, first);
	for (unsigned b = 0; b < 256; b++)
		sample[r->class_of[b]] = b;
	s->generation = 1;
	TRY(closure(x, s, start, true, false));
	TRY(set_find(x, s, r, &state));
	for (uint32_t at = 0; at < r->states; at++) {
		TRY(accepts(x, s, at, &r->accept[at]));
		for (uint32_t c = 0; c < r->classes; c++) {
			s->generation++;
			s->length = 0;
			TRY(dfa_spend(x->m, s->first[at + 1] - s->first[at]));
			for (uint32_t i = s->first[at]; i < s->first[at + 1]; i++) {
				const struct nstep *n = &x->step[s->pool[i]];
				if (n->kind == STEP_BYTE && sample[c] >= n->low && sample[c] <= n->high)
					TRY(closure(x, s, n->a, false, false));
			}
			if (s->length == 0)
				continue;
			TRY(set_find(x, s, r, &state));
			r->next[(size_t)at * r->classes + c] = (uint16_t)state;
		}
	}
	return 0;
}

int regex_make_certain(struct regex *x, uint32_t start, struct dfa **out)
{
	struct sets s = {0};
	struct dfa_rough r = {0};
	int code = -ERR_MEMORY;
	s.first = calloc(DFA_STATES_MAX + 2, sizeof *s.first);
	s.slot = calloc(SLOTS, sizeof *s.slot);
	s.mark = calloc(x->steps + 1, sizeof *s.mark);
	s.stack = malloc((x->steps + 1) * sizeof *s.stack);
	s.list = malloc((x->steps + 1) * sizeof *s.list);
	if (s.first && s.slot && s.mark && s.stack && s.list)
		code = certain(x, &s, start, &r);
	free(s.pool);
	free(s.first);
	free(s.slot);
	free(s.mark);
	free(s.stack);
	free(s.list);
	if (code == 0)
		return dfa_finish(x->m, &r, out);
	free(r.next);
	free(r.accept);
	return code;
}
