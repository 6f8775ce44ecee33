/*
 * One piece: symbols in a linked list, the pairs that merge in a heap, lowest rank first, then
 * leftmost. A merge takes one pair out and puts at most two in: n log n.
 */
#include "runtime/tokenizer_inside.h"

#include <stdlib.h>
#include <string.h>

enum { NONE = UINT32_MAX };

static uint64_t mix(uint64_t x)
{
	/* The finaliser of MurmurHash3. */
	x = (x ^ x >> 33) * 0xff51afd7ed558ccdu;
	x = (x ^ x >> 33) * 0xc4ceb9fe1a85ec53u;
	return x ^ x >> 33;
}

struct merge *merge_slot(const struct tokenizer *t, uint32_t left, uint32_t right)
{
	uint32_t i = (uint32_t)mix(((uint64_t)left << 32 | right) + t->seed) & t->merge_mask;
	while (t->merge[i].left != NONE &&
	       (t->merge[i].left != left || t->merge[i].right != right))
		i = (i + 1) & t->merge_mask;
	return &t->merge[i];
}

void merger_free(struct merger *m)
{
	free(m->id);
	free(m->heap);
	memset(m, 0, sizeof *m);
}

static int merger_room(struct merger *m, size_t length)
{
	if (length <= m->capacity)
		return 0;
	size_t capacity = length < 256 ? 256 : length;
	merger_free(m);
	m->id = malloc(capacity * 5 * sizeof *m->id);
	/* One entry a pair at first; each merge takes one and puts two, and there are fewer
	   merges than symbols: at most twice as many at a time. */
	m->heap = malloc(capacity * 2 * sizeof *m->heap);
	if (!m->id || !m->heap) {
		merger_free(m);
		return -ERR_MEMORY;
	}
	m->next = m->id + capacity;
	m->previous = m->next + capacity;
	m->rank = m->previous + capacity;
	m->product = m->rank + capacity;
	m->capacity = capacity;
	return 0;
}

static void heap_push(uint64_t *heap, size_t *count, uint64_t entry)
{
	size_t at = (*count)++;
	while (at > 0 && heap[(at - 1) / 2] > entry) {
		heap[at] = heap[(at - 1) / 2];
		at = (at - 1) / 2;
	}
	heap[at] = entry;
}

static uint64_t heap_pop(uint64_t *heap, size_t *count)
{
	uint64_t top = heap[0], entry = heap[--*count];
	size_t at = 0, n = *count;
	for (;;) {
		size_t child = 2 * at + 1;
		if (child >= n)
			break;
		if (child + 1 < n && heap[child + 1] < heap[child])
			child++;
		if (heap[child] >= entry)
			break;
		heap[at] = heap[child];
		at = child;
	}
	if (n > 0)
		heap[at] = entry;
	return top;
}

/* The token that the symbols at `left` and after it become by their text together. */
static uint32_t pair_by_score(const struct tokenizer *t, const struct merger *m,
			      const uint8_t *piece, size_t length, uint32_t left, uint32_t *rank)
{
	const uint32_t after = m->next[m->next[left]];
	const size_t bytes = (after == NONE ? length : after) - left;
	if (bytes > t->longest)
		return NONE;
	const uint32_t id = map_find(t->tokens, (const char *)piece + left, bytes);
	*rank = id == NONE ? NONE : t->score->rank[id];
	return id;
}

/* Notes what the symbol at `left` and the one after it would become. An entry of the heap is good
   while its rank is the one noted here: of a rank that two pairs share, the later one is noted. */
static void pair(const struct tokenizer *t, struct merger *m, const uint8_t *piece, size_t length,
		 uint32_t left, size_t *heap_count)
{
	uint32_t product, rank;
	m->rank[left] = NONE;
	if (m->next[left] == NONE)
		return;
	if (t->score) {
		product = pair_by_score(t, m, piece, length, left, &rank);
		if (product == NONE)
			return;
	} else {
		if (m->id[left] == NONE || m->id[m->next[left]] == NONE)
			return;
		const struct merge *merge = merge_slot(t, m->id[left], m->id[m->next[left]]);
		if (merge->left == NONE)
			return;
		product = merge->product;
		rank = merge->rank;
	}
	m->rank[left] = rank;
	m->product[left] = product;
	heap_push(m->heap, heap_count, (uint64_t)rank << 32 | left);
}

/* A symbol stands at the index of its first byte. */
static void symbols(const struct tokenizer *t, struct merger *m, const uint8_t *piece,
		    size_t length)
{
	uint32_t before = NONE;
	for (uint32_t at = 0; at < length;) {
		uint32_t n = 1;
		if (t->score) {
			n = (uint32_t)score_symbol(piece + at, length - at);
			m->id[at] = map_find(t->tokens, (const char *)piece + at, n);
		} else {
			m->id[at] = t->byte_token[piece[at]];
		}
		m->previous[at] = before;
		before = at;
		at += n;
		m->next[before] = at < length ? at : NONE;
	}
}

/* Appends the ids of what is left. A byte that a vocabulary of merges has no token for is left out:
   so does the reference. With scores a symbol without token is written byte by byte. */
static int collect(const struct tokenizer *t, const struct merger *m, const uint8_t *piece,
		   size_t length, uint32_t *ids, size_t capacity, size_t *count)
{
	for (uint32_t i = 0; i != NONE; i = m->next[i]) {
		const size_t end = m->next[i] == NONE ? length : m->next[i];
		size_t n = m->id[i] != NONE ? 1 : t->score ? end - i : 0;
		if (n > capacity - *count)
			return -ERR_TOO_BIG;
		for (size_t k = 0; k < n; k++)
			ids[(*count)++] = m->id[i] != NONE ? m->id[i] : t->byte_token[piece[i + k]];
	}
	return 0;
}

int merge_piece(const struct tokenizer *t, struct merger *m, const uint8_t *piece, size_t length,
		uint32_t *ids, size_t capacity, size_t *count)
{
	if (length == 0)
		return 0;
	TRY(merger_room(m, length));
	size_t heap_count = 0;
	symbols(t, m, piece, length);
	for (uint32_t i = 0; i != NONE; i = m->next[i])
		pair(t, m, piece, length, i, &heap_count);
	while (heap_count > 0) {
		uint64_t top = heap_pop(m->heap, &heap_count);
		uint32_t left = (uint32_t)top;
		if (m->rank[left] != top >> 32)
			continue;
		uint32_t right = m->next[left];
		m->id[left] = m->product[left];
		m->rank[right] = NONE;
		m->next[left] = m->next[right];
		if (m->next[right] != NONE)
			m->previous[m->next[right]] = left;
		pair(t, m, piece, length, left, &heap_count);
		if (m->previous[left] != NONE)
			pair(t, m, piece, length, m->previous[left], &heap_count);
	}
	return collect(t, m, piece, length, ids, capacity, count);
}
