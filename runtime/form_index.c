/*
 * The vocabulary as two tries, made once: tokens of whole characters that a string can have as they
 * are (most of any vocabulary), which inside a string need no walk, and all others.
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

/* How many characters the bytes are, if a string can have them unescaped; else 0. */
static uint32_t plain_characters(const char *bytes, uint32_t length)
{
	char quoted[FORM_TOKEN_BYTES_MAX + 2];
	struct json value;
	uint32_t count = 0;
	quoted[0] = quoted[length + 1] = '"';
	memcpy(quoted + 1, bytes, length);
	if (memchr(bytes, '"', length) || memchr(bytes, '\\', length) ||
	    json_check(quoted, length + 2, &value) != 0)
		return 0;
	for (uint32_t i = 0; i < length; i++)
		count += ((uint8_t)bytes[i] & 0xc0) != 0x80;
	return count;
}

/* The tokens, sorted; those that are plain are put behind the others if `plain` is not NULL. */
static uint32_t gather(struct form_index *index, struct sorted *sorted)
{
	const struct tokenizer *t = index->tokenizer;
	uint32_t count = 0;
	for (uint32_t id = 0; id < tokenizer_count(t); id++) {
		const char *bytes;
		size_t n = tokenizer_bytes(t, id, false, &bytes);
		if (n == 0 || n > FORM_TOKEN_BYTES_MAX || tokenizer_is_control(t, id) || tokenizer_is_end(t, id))
			continue;
		sorted[count++] = (struct sorted){bytes, (uint32_t)n, id};
		if (n > index->longest)
			index->longest = (uint32_t)n;
		if (n == 1)
			index->single[(uint8_t)bytes[0]] = true;
	}
	return count;
}

/* The bytes that a token does not share with the one before it. */
static uint32_t shared(const struct sorted *a, const struct sorted *b)
{
	uint32_t n = 0;
	while (n < a->length && n < b->length && a->bytes[n] == b->bytes[n])
		n++;
	return n;
}

static int trie_make(struct trie *trie, const struct sorted *sorted, uint32_t count, uint32_t *order)
{
	uint32_t path[FORM_TOKEN_BYTES_MAX + 1], depth = 0, nodes = 0;
	for (uint32_t i = 0; i < count; i++)
		nodes += sorted[i].length - (i ? shared(&sorted[i], &sorted[i - 1]) : 0);
	trie->node = malloc((nodes + 1) * sizeof *trie->node);
	if (!trie->node)
		return -ERR_MEMORY;
	for (uint32_t i = 0; i < count; i++) {
		const uint32_t common = i ? shared(&sorted[i], &sorted[i - 1]) : 0;
		for (; depth > common; depth--)
			trie->node[path[depth]].skip = trie->count;
		for (; depth < sorted[i].length; trie->count++) {
			path[++depth] = trie->count;
			trie->node[trie->count] = (struct trie_node){
				.first = i, .depth = (uint16_t)depth, .byte = (uint8_t)sorted[i].bytes[depth - 1]};
		}
		struct trie_node *last = &trie->node[path[depth]];
		order[i] = sorted[i].id;
		/* Tokens of equal bytes lie side by side. */
		if (last->count == 0)
			last->first = i;
		if (last->count < UINT8_MAX)
			last->count++;
	}
	for (; depth > 0; depth--)
		trie->node[path[depth]].skip = trie->count;
	return 0;
}

static int by_id(const void *a, const void *b)
{
	const struct sorted *x = a, *y = b;
	return (x->id > y->id) - (x->id < y->id);
}

/* Keeps the plain ones, by id, with their lengths in characters. */
static int plain_keep(struct form_index *index, struct sorted *plain, uint32_t count)
{
	index->plain_bits = calloc(index->words, sizeof *index->plain_bits);
	index->plain_id = malloc((count + 1) * sizeof *index->plain_id);
	index->plain_length = malloc((count + 1) * sizeof *index->plain_length);
	if (!index->plain_bits || !index->plain_id || !index->plain_length)
		return -ERR_MEMORY;
	qsort(plain, count, sizeof *plain, by_id);
	for (uint32_t i = 0; i < count; i++) {
		index->plain_id[i] = plain[i].id;
		index->plain_length[i] = (uint16_t)plain_characters(plain[i].bytes, plain[i].length);
		index->plain_bits[plain[i].id / 32] |= 1u << plain[i].id % 32;
	}
	index->plain_count = count;
	return 0;
}

static int fill(struct form_index *index, struct sorted *all, struct sorted *plain)
{
	const uint32_t count = gather(index, all);
	uint32_t rest = 0, plains = 0;
	for (unsigned b = 0x80; b < 0xc0; b++)
		index->ascii_only |= !index->single[b];
	for (uint32_t i = 0; i < count; i++) {
		bool is_plain = plain_characters(all[i].bytes, all[i].length) > 0;
		for (uint32_t k = 0; index->ascii_only && k < all[i].length; k++)
			is_plain &= (uint8_t)all[i].bytes[k] < 0x80;
		if (is_plain)
			plain[plains++] = all[i];
		else
			all[rest++] = all[i];
	}
	qsort(all, rest, sizeof *all, by_bytes);
	qsort(plain, plains, sizeof *plain, by_bytes);
	TRY(trie_make(&index->rest, all, rest, index->order));
	TRY(trie_make(&index->plain, plain, plains, index->order + rest));
	for (uint32_t i = 0; i < index->plain.count; i++)
		index->plain.node[i].first += rest;
	return plain_keep(index, plain, plains);
}

int form_index_open(const struct tokenizer *tokenizer, struct form_index **out)
{
	const uint32_t count = tokenizer_count(tokenizer);
	struct form_index *index = calloc(1, sizeof *index);
	struct sorted *all = malloc((count + 1) * sizeof *all), *plain = malloc((count + 1) * sizeof *plain);
	int code = -ERR_MEMORY;
	bool end = false;
	*out = index;
	if (!index || !all || !plain)
		goto out;
	index->tokenizer = tokenizer;
	index->words = (count + 31) / 32;
	index->order = malloc((count + 1) * sizeof *index->order);
	if (!index->order)
		goto out;
	code = fill(index, all, plain);
	if (code != 0)
		goto out;
	if (!index->single['\n'])
		code = -ERR_UNSUPPORTED;
	for (unsigned b = 0x20; b < 0x7f; b++)
		if (!index->single[b])
			code = -ERR_UNSUPPORTED;
	/* A form that is complete needs a token that ends the turn. */
	for (uint32_t id = 0; id < count; id++)
		end |= tokenizer_is_end(tokenizer, id);
	if (!end)
		code = -ERR_UNSUPPORTED;
out:
	free(all);
	free(plain);
	if (code != 0)
		form_index_close(out);
	return code;
}

void form_index_close(struct form_index **index)
{
	struct form_index *x = *index;
	if (!x)
		return;
	free(x->order);
	free(x->plain.node);
	free(x->rest.node);
	free(x->plain_bits);
	free(x->plain_id);
	free(x->plain_length);
	free(x);
	*index = NULL;
}
