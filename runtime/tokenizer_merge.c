/*
 * Byte-level BPE of one piece: symbols in a linked list, the pairs that merge in a heap, lowest rank
 * first, then leftmost. A merge takes one pair out and puts at most two in: n log n.
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

/* Notes what the symbol at `left` and the one after it would become. An entry of the heap is good
   while its rank is the one noted here: a rank stands for one pair. */
static void pair(const struct tokenizer *t, struct merger *m, uint32_t left, size_t *heap_count)
{
	m->rank[left] = NONE;
	if (m->next[left] == NONE || m->id[left] == NONE || m->id[m->next[left]] == NONE)
		return;
	const struct merge *merge = merge_slot(t, m->id[left], m->id[m->next[left]]);
	if (merge->left == NONE)
		return;
	m->rank[left] = merge->rank;
	m->product[left] = merge->product;
	heap_push(m->heap, heap_count, (uint64_t)merge->rank << 32 | left);
}

int merge_piece(const struct tokenizer *t, struct merger *m, const uint8_t *piece, size_t length,
		uint32_t *ids, size_t capacity, size_t *count)
{
	TRY(merger_room(m, length));
	uint32_t n = 0;
	size_t heap_count = 0;
	for (; n < length; n++) {
		m->id[n] = t->byte_token[piece[n]];
		m->next[n] = n + 1;
		m->previous[n] = n - 1; /* NONE for the first */
	}
	if (n == 0)
		return 0;
	m->next[n - 1] = NONE;
	for (uint32_t i = 0; i < n; i++)
		pair(t, m, i, &heap_count);
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
		pair(t, m, left, &heap_count);
		if (m->previous[left] != NONE)
			pair(t, m, m->previous[left], &heap_count);
	}
	for (uint32_t i = 0; i != NONE; i = m->next[i]) {
		/* A byte that the vocabulary has no token for keeps its neighbours apart, and is left
		   out: so does the reference. */
		if (m->id[i] == NONE)
			continue;
		if (*count == capacity)
			return -ERR_TOO_BIG;
		ids[(*count)++] = m->id[i];
	}
	return 0;
}
