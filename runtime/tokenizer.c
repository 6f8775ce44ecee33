/*
 * Finds control tokens in text, encodes what lies between, and turns ids back to bytes.
 */
#include "runtime/tokenizer_inside.h"

#include <stdlib.h>
#include <string.h>

enum { TEXT_BYTES_MAX = 1 << 28 }; /* of one call; three times as many still fit 32 bits */

bool token_is_control(uint8_t kind)
{
	return kind == TOKEN_CONTROL || kind == TOKEN_UNKNOWN;
}

/* The first special token of [low, high) whose byte at `depth` is at least `byte`; those that end
   before it come first. */
static uint32_t special_bound(const struct tokenizer *t, uint32_t low, uint32_t high,
			      size_t depth, unsigned byte)
{
	while (low < high) {
		uint32_t middle = low + (high - low) / 2;
		const struct special *s = &t->special[middle];
		if (s->length <= depth || (uint8_t)s->text[depth] < byte)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

/* The longest special token that the text starts with, NULL if there is none; only user-defined
   ones unless `control`. */
static const struct special *special_match(const struct tokenizer *t, const char *text,
					   size_t length, bool control)
{
	const struct special *best = NULL;
	uint32_t low = 0, high = t->special_count;
	for (size_t depth = 0; depth < length; depth++) {
		unsigned byte = (uint8_t)text[depth];
		low = special_bound(t, low, high, depth, byte);
		high = special_bound(t, low, high, depth, byte + 1);
		if (low == high)
			break;
		if (t->special[low].length == depth + 1 && (control || t->special[low].user))
			best = &t->special[low];
	}
	return best;
}

/* One piece. Most are a token whose own bytes merge into it: then nothing has to be merged. */
static int encode_piece(const struct tokenizer *t, struct merger *merger, const uint8_t *piece,
			size_t length, uint32_t *ids, size_t capacity, size_t *count)
{
	const uint32_t id = length <= t->longest ?
		map_find(t->tokens, (const char *)piece, length) : UINT32_MAX;
	uint8_t whole = WHOLE_NO;
	if (id != UINT32_MAX) {
		whole = t->pretokenizer && t->pretokenizer->whole ? WHOLE_YES :
			atomic_load_explicit(&t->whole[id], memory_order_relaxed);
	}
	if (whole == WHOLE_YES) {
		if (*count == capacity)
			return -ERR_TOO_BIG;
		ids[(*count)++] = id;
		return 0;
	}
	const size_t before = *count;
	TRY(merge_piece(t, merger, piece, length, ids, capacity, count));
	/* Whoever asks finds the same answer, so it does not matter who writes it first. */
	if (whole == WHOLE_UNKNOWN)
		atomic_store_explicit(&t->whole[id],
				      *count == before + 1 && ids[before] == id ? WHOLE_YES : WHOLE_NO,
				      memory_order_relaxed);
	return 0;
}

static int encode_pieces(const struct tokenizer *t, struct merger *merger, const uint8_t *text,
			 size_t length, uint32_t *ids, size_t capacity, size_t *count)
{
	for (size_t at = 0; at < length;) {
		size_t n = t->score ? score_split(t->score, text + at, length - at) :
				      t->pretokenizer->split(text + at, length - at);
		CHECK(n > 0);
		TRY(encode_piece(t, merger, text + at, n, ids, capacity, count));
		at += n;
	}
	return 0;
}

/* With scores: spaces become U+2581, and one may be put before the text. */
static size_t write_spaces(const struct score *score, const uint8_t *text, size_t length,
			   uint8_t *to)
{
	size_t n = 0;
	if (score->space_before) {
		memcpy(to, SCORE_SPACE, SCORE_SPACE_BYTES);
		n = SCORE_SPACE_BYTES;
	}
	for (size_t at = 0; at < length; at++) {
		if (text[at] == ' ') {
			memcpy(to + n, SCORE_SPACE, SCORE_SPACE_BYTES);
			n += SCORE_SPACE_BYTES;
		} else {
			to[n++] = text[at];
		}
	}
	return n;
}

/* Each byte that belongs to no character becomes U+FFFD: three bytes for one. */
static size_t write_characters(const uint8_t *text, size_t length, uint8_t *to)
{
	size_t n = 0;
	for (size_t at = 0; at < length;) {
		uint32_t c;
		at += character_read(text + at, length - at, &c);
		n += character_write(c, to + n);
	}
	return n;
}

static int encode_plain(const struct tokenizer *t, struct merger *merger, const uint8_t *text,
			size_t length, uint32_t *ids, size_t capacity, size_t *count)
{
	if (length == 0 || (!t->score && characters_plain(text, length)))
		return encode_pieces(t, merger, text, length, ids, capacity, count);
	size_t room = length * 3 + SCORE_SPACE_BYTES;
	if (t->score) {
		room = length + SCORE_SPACE_BYTES;
		for (size_t at = 0; at < length; at++)
			room += text[at] == ' ' ? SCORE_SPACE_BYTES - 1 : 0;
	}
	uint8_t *clean = malloc(room);
	if (!clean)
		return -ERR_MEMORY;
	const size_t n = t->score ? write_spaces(t->score, text, length, clean) :
				    write_characters(text, length, clean);
	int code = encode_pieces(t, merger, clean, n, ids, capacity, count);
	free(clean);
	return code;
}

static int encode_special(const struct tokenizer *t, struct merger *merger, const char *text,
			  size_t length, bool control, uint32_t *ids, size_t capacity,
			  size_t *count)
{
	const bool *start = control ? t->special_start : t->user_start;
	size_t from = 0;
	for (size_t at = 0; at < length;) {
		const struct special *s = NULL;
		if (start[(uint8_t)text[at]])
			s = special_match(t, text + at, length - at, control);
		if (!s) {
			at++;
			continue;
		}
		TRY(encode_plain(t, merger, (const uint8_t *)text + from, at - from, ids,
				 capacity, count));
		if (*count == capacity)
			return -ERR_TOO_BIG;
		ids[(*count)++] = s->id;
		at += s->length;
		from = at;
	}
	return encode_plain(t, merger, (const uint8_t *)text + from, length - from, ids, capacity,
			    count);
}

int tokenizer_encode(const struct tokenizer *t, const char *text, size_t length, bool special,
		     uint32_t *ids, size_t capacity, size_t *count)
{
	if (length > TEXT_BYTES_MAX)
		return -ERR_TOO_BIG;
	struct merger merger = {0};
	size_t before = *count;
	int code = special || t->user_count > 0 ?
		encode_special(t, &merger, text, length, special, ids, capacity, count) :
		encode_plain(t, &merger, (const uint8_t *)text, length, ids, capacity, count);
	merger_free(&merger);
	if (code != 0)
		*count = before;
	return code;
}

size_t tokenizer_bytes(const struct tokenizer *t, uint32_t id, bool special, const char **bytes)
{
	*bytes = t->arena;
	if (id >= t->vocabulary->count || (token_is_control(t->vocabulary->kind[id]) && !special))
		return 0;
	*bytes = t->arena + t->at[id];
	return t->at[id + 1] - t->at[id];
}

uint32_t tokenizer_count(const struct tokenizer *t)
{
	return t->vocabulary->count;
}

bool tokenizer_is_control(const struct tokenizer *t, uint32_t id)
{
	return id < t->vocabulary->count && token_is_control(t->vocabulary->kind[id]);
}

uint32_t tokenizer_find(const struct tokenizer *t, const char *text)
{
	size_t length = strlen(text);
	uint32_t low = 0, high = t->special_count;
	while (low < high) {
		uint32_t middle = low + (high - low) / 2;
		const struct special *s = &t->special[middle];
		if (bytes_compare(s->text, s->length, text, length) < 0)
			low = middle + 1;
		else
			high = middle;
	}
	if (low == t->special_count)
		return UINT32_MAX;
	const struct special *s = &t->special[low];
	return bytes_compare(s->text, s->length, text, length) == 0 ? s->id : UINT32_MAX;
}

bool tokenizer_is_end(const struct tokenizer *t, uint32_t id)
{
	return id < t->vocabulary->count && t->end[id];
}
