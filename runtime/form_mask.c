/*
 * The vocabulary held against a form. The tokens are walked in the order of their bytes with a stack
 * of states, one a byte: what two tokens share is stepped once, and after a byte that is not of the
 * form all tokens that share it are passed over.
 */
#include "runtime/form_inside.h"

#include <stdlib.h>
#include <string.h>

struct sorted {
	const char *bytes;
	uint32_t length, id;
};

static int by_bytes(const void *a, const void *b)
{
	const struct sorted *x = a, *y = b;
	uint32_t n = x->length < y->length ? x->length : y->length;
	int order = memcmp(x->bytes, y->bytes, n);
	if (order)
		return order;
	return x->length != y->length ? (x->length > y->length) - (x->length < y->length) :
					(x->id > y->id) - (x->id < y->id);
}

static void fill(struct form_index *index, struct sorted *sorted)
{
	for (uint32_t id = 0; id < tokenizer_count(index->tokenizer); id++) {
		const char *bytes;
		size_t n = tokenizer_bytes(index->tokenizer, id, false, &bytes);
		if (n == 0 || n > UINT16_MAX || tokenizer_is_control(index->tokenizer, id) ||
		    tokenizer_is_end(index->tokenizer, id))
			continue;
		sorted[index->count++] = (struct sorted){bytes, (uint32_t)n, id};
		if (n > index->longest)
			index->longest = (uint32_t)n;
		if (n == 1)
			index->single[(uint8_t)bytes[0]] = true;
	}
	qsort(sorted, index->count, sizeof *sorted, by_bytes);
	for (uint32_t i = 0; i < index->count; i++) {
		uint32_t n = 0;
		while (i > 0 && n < sorted[i].length && n < sorted[i - 1].length &&
		       sorted[i].bytes[n] == sorted[i - 1].bytes[n])
			n++;
		index->order[i] = sorted[i].id;
		index->common[i] = (uint16_t)n;
	}
}

int form_index_open(const struct tokenizer *tokenizer, struct form_index **out)
{
	uint32_t count = tokenizer_count(tokenizer);
	struct form_index *index = calloc(1, sizeof *index);
	struct sorted *sorted = malloc(count * sizeof *sorted);
	int code = -ERR_MEMORY;
	*out = index;
	if (!index || !sorted)
		goto out;
	index->tokenizer = tokenizer;
	index->order = malloc(count * sizeof *index->order);
	index->common = malloc(count * sizeof *index->common);
	if (!index->order || !index->common)
		goto out;
	fill(index, sorted);
	code = index->single['\n'] ? 0 : -ERR_UNSUPPORTED;
	for (unsigned b = 0x20; b < 0x7f; b++)
		if (!index->single[b])
			code = -ERR_UNSUPPORTED;
	for (unsigned b = 0x80; b < 0xc0; b++)
		index->ascii_only |= !index->single[b];
	/* A form that is complete needs a token that ends the turn. */
	bool end = false;
	for (uint32_t id = 0; id < count; id++)
		end |= tokenizer_is_end(tokenizer, id);
	if (!end)
		code = -ERR_UNSUPPORTED;
out:
	free(sorted);
	if (code != 0)
		form_index_close(out);
	return code;
}

void form_index_close(struct form_index **index)
{
	if (!*index)
		return;
	free((*index)->order);
	free((*index)->common);
	free(*index);
	*index = NULL;
}

static uint32_t mask_ends(const struct form *form, uint32_t *bits)
{
	const struct tokenizer *t = form->index->tokenizer;
	uint32_t allowed = 0;
	for (uint32_t id = 0; id < tokenizer_count(t); id++) {
		if (!tokenizer_is_end(t, id))
			continue;
		bits[id / 32] |= 1u << id % 32;
		allowed++;
	}
	return allowed;
}

static uint32_t mask_tokens(const struct form *form, uint32_t *bits)
{
	const struct form_index *index = form->index;
	struct form_state *stack = form->stack;
	uint32_t valid = 0, allowed = 0; /* stack[0..valid] stand after that many bytes */
	for (uint32_t i = 0; i < index->count; i++) {
		const char *bytes;
		uint32_t common = index->common[i];
		if (common > valid)
			continue;
		size_t n = tokenizer_bytes(index->tokenizer, index->order[i], false, &bytes);
		for (valid = common; valid < n; valid++) {
			stack[valid + 1] = stack[valid];
			if (!form_step(form, &stack[valid + 1], (uint8_t)bytes[valid]))
				break;
		}
		if (valid < n)
			continue;
		bits[index->order[i] / 32] |= 1u << index->order[i] % 32;
		allowed++;
	}
	return allowed;
}

/* The state as far as the next token can tell: how long a string is does not matter while no token
   can reach its limit. */
static struct form_state key_of(const struct form *form, const struct form_state *state)
{
	struct form_state key = *state;
	uint64_t reach = (uint64_t)state->count + form->index->longest;
	if (form->node[state->node].kind == NODE_STRING && reach <= form->string_bytes)
		key.count = 0;
	return key;
}

uint32_t form_mask(struct form *form, const struct form_state *state, uint32_t *bits)
{
	struct form_state key = key_of(form, state);
	uint32_t hash = 0x811c9dc5;
	const uint32_t field[] = {key.node, key.low, key.high, key.depth, key.count, key.part};
	for (unsigned i = 0; i < sizeof field / sizeof field[0]; i++)
		hash = (hash ^ field[i]) * 0x01000193;
	uint32_t slot = (hash ^ hash >> 16) % FORM_KEPT;
	uint32_t *kept = form->kept_bits + (size_t)slot * form->words;
	if (form->kept[slot].allowed == 0 || memcmp(&form->kept[slot].key, &key, sizeof key)) {
		memset(kept, 0, form->words * sizeof *kept);
		form->stack[0] = key;
		form->kept[slot].key = key;
		form->kept[slot].allowed = form_complete(form, state) ? mask_ends(form, kept) :
									 mask_tokens(form, kept);
	}
	CHECK(form->kept[slot].allowed > 0);
	memcpy(bits, kept, form->words * sizeof *bits);
	return form->kept[slot].allowed;
}
