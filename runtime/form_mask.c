/*
 * States, and the vocabulary held against them. A trie is walked with a level of threads for each
 * byte: what tokens share is stepped once, and what begins with a byte that is not of the form is
 * passed over. Masks are kept by state.
 */
#include "runtime/form_inside.h"

#include <stdlib.h>
#include <string.h>

enum {
	THREADS = (FORM_TOKEN_BYTES_MAX + 2) * FORM_THREADS_MAX,
	BELOWS = FORM_BELOW_MAX + (FORM_TOKEN_BYTES_MAX + 2) * 2 * FORM_THREADS_MAX
};

int form_walk_open(struct form_walk *w)
{
	w->thread = malloc(THREADS * sizeof *w->thread);
	w->below = malloc(BELOWS * sizeof *w->below);
	w->thread_max = THREADS;
	w->below_max = BELOWS;
	return w->thread && w->below ? 0 : -ERR_MEMORY;
}

/* The state as the first level. */
struct form_level form_load(struct form_walk *w, const struct form_state *s)
{
	memcpy(w->thread, s->thread, s->thread_count * sizeof *w->thread);
	memcpy(w->below, s->below, s->below_count * sizeof *w->below);
	w->thread_count = s->thread_count;
	w->below_count = s->below_count;
	return (struct form_level){0, s->thread_count, s->below_count};
}

/* The level that a byte leads to, put behind `from`; false: none. */
bool form_next(const struct form *f, struct form_walk *w, const struct form_level *from,
	       struct form_level *to, int byte)
{
	w->first = w->thread_count = from->end;
	w->below_count = from->below;
	for (uint32_t i = from->first; i < from->end; i++) {
		const struct form_thread t = w->thread[i];
		form_step(f, w, &t, byte);
	}
	*to = (struct form_level){w->first, w->thread_count, w->below_count};
	return w->thread_count > w->first;
}

/* Copies what is below a thread, each frame once; false: no room. */
static bool below_copy(const struct form_walk *w, struct form_state *s, uint32_t from, uint32_t *to)
{
	uint32_t chain[FORM_NESTING_MAX + 1], count = 0;
	for (; from != FORM_NONE; from = w->below[from].parent) {
		CHECK(count <= FORM_NESTING_MAX);
		chain[count++] = from;
	}
	for (*to = FORM_NONE; count > 0; count--) {
		const struct form_below b = {w->below[chain[count - 1]].frame, *to};
		uint32_t at = 0;
		while (at < s->below_count && memcmp(&s->below[at], &b, sizeof b))
			at++;
		if (at == FORM_BELOW_MAX)
			return false;
		s->below[at] = b;
		if (at == s->below_count)
			s->below_count++;
		*to = at;
	}
	return true;
}

/* The level as a state of its own. The first thread always has room. */
static void store(const struct form_walk *w, const struct form_level *l, struct form_state *s)
{
	s->thread_count = s->below_count = 0;
	for (uint32_t i = l->first; i < l->end; i++) {
		struct form_thread t = w->thread[i];
		const uint32_t before = s->below_count;
		if (below_copy(w, s, w->thread[i].parent, &t.parent))
			s->thread[s->thread_count++] = t;
		else
			s->below_count = before;
	}
	CHECK(s->thread_count > 0);
}

void form_start(const struct form *form, struct form_state *state)
{
	struct form_walk w = form->walk;
	w.thread_count = w.below_count = w.first = 0;
	form_enter(form, &w, form->root, FORM_NONE, 0, FORM_ADD);
	const struct form_level l = {0, w.thread_count, w.below_count};
	store(&w, &l, state);
}

bool form_complete(const struct form *form, const struct form_state *state)
{
	struct form_walk w = form->walk;
	struct form_level l = form_load(&w, state), to;
	w.end = false;
	form_next(form, &w, &l, &to, FORM_END);
	return w.end;
}

bool form_advance(const struct form *form, struct form_state *state, const char *bytes,
		  size_t length)
{
	struct form_walk w = form->walk;
	struct form_state s = *state;
	for (size_t i = 0; i < length;) {
		struct form_level l = form_load(&w, &s), to;
		/* What has no room in a state is dropped behind a token, as the mask drops nothing within one. */
		for (size_t n = 0; n < FORM_TOKEN_BYTES_MAX && i < length; n++, l = to)
			if (!form_next(form, &w, &l, &to, (uint8_t)bytes[i++]))
				return false;
		store(&w, &l, &s);
	}
	*state = s;
	return true;
}

static void mark(const struct form_index *index, const struct trie_node *n, uint32_t *bits)
{
	for (uint32_t i = 0; i < n->count; i++) {
		const uint32_t id = index->order[n->first + i];
		bits[id / 32] |= 1u << id % 32;
	}
}

static void walk_trie(const struct form *f, struct form_walk *w, const struct trie *trie,
		      struct form_level *level, uint32_t *bits)
{
	for (uint32_t i = 0; i < trie->count;) {
		const struct trie_node *n = &trie->node[i];
		if (!form_next(f, w, &level[n->depth - 1], &level[n->depth], n->byte)) {
			i = n->skip;
			continue;
		}
		mark(f->index, n, bits);
		i++;
	}
}

/* The most plain characters that some thread can take in a string it is in; 0: none is in one. */
static uint32_t plain_room(const struct form *f, const struct form_state *s)
{
	uint32_t most = 0;
	for (uint32_t i = 0; i < s->thread_count; i++) {
		const struct form_frame *top = &s->thread[i].top;
		if (!form_inside_string(f, top))
			continue;
		const uint32_t high = f->node[top->node].high;
		const uint32_t room = high == FORM_ENDLESS ? FORM_ENDLESS : high - top->count;
		most = room > most ? room : most;
	}
	return most;
}

static void mask_make(struct form *f, const struct form_state *s, uint32_t *bits)
{
	static const struct form_level zero;
	const struct form_index *index = f->index;
	struct form_level level[FORM_TOKEN_BYTES_MAX + 1] = {zero};
	const uint32_t room = plain_room(f, s);
	memset(bits, 0, index->words * sizeof *bits);
	level[0] = form_load(&f->walk, s);
	walk_trie(f, &f->walk, &index->rest, level, bits);
	/* A plain token that one string has room for may come, whatever the other threads say. */
	if (room >= index->longest) {
		for (uint32_t i = 0; i < index->words; i++)
			bits[i] |= index->plain_bits[i];
		return;
	}
	for (uint32_t i = 0; room > 0 && i < index->plain_count; i++)
		if (index->plain_length[i] <= room)
			bits[index->plain_id[i] / 32] |= 1u << index->plain_id[i] % 32;
	/* The others, unless there is nothing but that string. */
	if (room == 0 || s->thread_count > 1) {
		level[0] = form_load(&f->walk, s);
		walk_trie(f, &f->walk, &index->plain, level, bits);
	}
}

static void mask_ends(const struct form *form, uint32_t *bits)
{
	const struct tokenizer *t = form->index->tokenizer;
	for (uint32_t id = 0; id < tokenizer_count(t); id++)
		if (tokenizer_is_end(t, id))
			bits[id / 32] |= 1u << id % 32;
}

/* A count as far as the next token can tell: what it cannot reach does not matter. */
static uint32_t count_of(const struct form *f, uint32_t count, uint32_t least, uint32_t most)
{
	if (count < least)
		return count;
	return most == FORM_ENDLESS || (uint64_t)count + f->index->longest < most ? least : count;
}

static void frame_settle(const struct form *f, struct form_frame *s)
{
	const struct node *n = &f->node[s->node];
	if (n->kind == NODE_STRING)
		s->count = count_of(f, s->count, n->low, n->high);
	else if (n->kind == NODE_ARRAY)
		s->count = count_of(f, s->count, (n->low > n->count ? n->low : n->count) + 1, n->high);
	else if (n->kind == NODE_OBJECT && n->low <= 1 && n->high == FORM_ENDLESS)
		s->count = s->count > 0;
}

static uint32_t count_bits(const uint32_t *bits, uint32_t words)
{
	uint32_t count = 0;
	for (uint32_t i = 0; i < words; i++)
		count += (uint32_t)__builtin_popcount(bits[i]);
	return count;
}

static uint32_t hash_of(const struct form_state *s)
{
	const uint32_t *word = (const uint32_t *)(const void *)s->thread;
	uint32_t hash = 0x811c9dc5;
	for (uint32_t i = 0; i < s->thread_count * (sizeof s->thread[0] / 4); i++)
		hash = (hash ^ word[i]) * 0x01000193;
	word = (const uint32_t *)(const void *)s->below;
	for (uint32_t i = 0; i < s->below_count * (sizeof s->below[0] / 4); i++)
		hash = (hash ^ word[i]) * 0x01000193;
	return hash ^ hash >> 15;
}

uint32_t form_settle(const struct form *f, struct form_state *s)
{
	for (uint32_t i = 0; i < s->thread_count; i++)
		frame_settle(f, &s->thread[i].top);
	for (uint32_t i = 0; i < s->below_count; i++)
		frame_settle(f, &s->below[i].frame);
	return hash_of(s);
}

bool form_same(const struct form_state *a, const struct form_state *b)
{
	return a->thread_count == b->thread_count && a->below_count == b->below_count &&
	       !memcmp(a->thread, b->thread, a->thread_count * sizeof a->thread[0]) &&
	       !memcmp(a->below, b->below, a->below_count * sizeof a->below[0]);
}

/* The place where the state's mask is kept, or that of the mask that was not used for longest. */
static uint32_t place_of(struct form *form, const struct form_state *key, uint32_t hash, bool *found)
{
	uint32_t oldest = 0;
	*found = false;
	for (uint32_t i = 0; i < FORM_KEPT; i++) {
		if (form->kept[i].allowed && form->kept[i].hash == hash && form_same(&form->kept[i].key, key)) {
			*found = true;
			return i;
		}
		if (form->kept[i].used < form->kept[oldest].used)
			oldest = i;
	}
	return oldest;
}

uint32_t form_mask(struct form *form, const struct form_state *state, uint32_t *bits)
{
	const uint32_t words = form->index->words;
	struct form_state key = *state;
	bool found;
	const uint32_t hash = form_settle(form, &key), at = place_of(form, &key, hash, &found);
	if (!form->kept[at].bits)
		form->kept[at].bits = malloc(words * sizeof *bits);
	/* Without memory the mask is made where it is wanted, and not kept. */
	uint32_t *kept = form->kept[at].bits ? form->kept[at].bits : bits;
	if (!found) {
		mask_make(form, &key, kept);
		if (form_complete(form, &key))
			mask_ends(form, kept);
		form->kept[at].key = key;
		form->kept[at].hash = hash;
		form->kept[at].allowed = count_bits(kept, words);
	}
	const uint32_t allowed = form->kept[at].allowed;
	CHECK(allowed > 0);
	form->kept[at].used = ++form->uses;
	if (kept == bits)
		form->kept[at].allowed = 0;
	else
		memcpy(bits, kept, words * sizeof *bits);
	return allowed;
}
