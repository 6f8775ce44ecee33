/*
 * What must come. From a state the bytes are followed that have no other beside them; the tokenizer
 * makes tokens of that text, and those are kept that it makes of it whatever comes behind.
 *
 * "Whatever" is tried: the text with each byte behind it that may follow, with what must follow that,
 * and with some characters of more bytes. What all of them have in common at their start is kept.
 */
#include "runtime/form_inside.h"

#include <stdlib.h>
#include <string.h>

enum {
	TEXT_MAX = 512,   /* bytes that are followed */
	AFTER_MAX = 24,   /* bytes that are followed behind each byte of a choice */
	AFTER_FEW = 32,   /* no more bytes than these: then what must follow each is looked at */
	CUT_BYTES = 64,   /* left to be looked at later where the text was cut at TEXT_MAX */
	IDS_MAX = TEXT_MAX + AFTER_MAX + 8
};

/* Which bytes may come next. */
enum { NEXT_MANY = -1, NEXT_ENDS = -2 };

/* One thread in the middle of the only text that it can be of. */
static int choice_next(const struct form *f, const struct form_state *s)
{
	const struct form_frame *top = &s->thread[0].top;
	if (s->thread_count != 1 || f->node[top->node].kind != NODE_CHOICE || top->count - top->at != 1 ||
	    top->part >= f->alternative[top->at].length)
		return NEXT_MANY;
	return (uint8_t)f->text.bytes[f->alternative[top->at].at + top->part];
}

/* The byte that must come; NEXT_ENDS: none can; NEXT_MANY: several, or one or the end. Two printable
   characters are what a choice mostly begins with, so these are tried first. */
static int only_next(const struct form *f, const struct form_state *s)
{
	struct form_walk w = f->walk;
	struct form_level to;
	int found = choice_next(f, s);
	if (found >= 0)
		return found;
	const struct form_level from = form_load(&w, s);
	found = NEXT_ENDS;
	for (unsigned i = 0; i < 256; i++) {
		const int byte = (int)((i + ' ') & 0xff);
		if (!form_next(f, &w, &from, &to, byte))
			continue;
		if (found >= 0)
			return NEXT_MANY;
		found = byte;
	}
	if (found == NEXT_ENDS)
		return NEXT_ENDS;
	return form_complete(f, s) ? NEXT_MANY : found;
}

/* Follows what must come from the state on, up to max bytes; returns how many. *ends: nothing can
   follow. The state is then the one behind them. */
static size_t follow(const struct form *f, struct form_state *s, char *text, size_t max, bool *ends)
{
	size_t n = 0;
	*ends = false;
	while (n < max) {
		const int byte = only_next(f, s);
		*ends = byte == NEXT_ENDS;
		if (byte < 0)
			break;
		text[n] = (char)byte;
		CHECK(form_advance(f, s, text + n, 1));
		n++;
	}
	return n;
}

static size_t encode(const struct form *f, const char *text, size_t length, uint32_t *ids)
{
	size_t count = 0;
	const int code = tokenizer_encode(f->index->tokenizer, text, length, false, ids, IDS_MAX, &count);
	return code == 0 ? count : 0;
}

/* Of the first `common` tokens those that the longer text begins with too. */
static size_t in_common(const struct form *f, const uint32_t *ids, size_t common, const char *text,
			size_t length)
{
	uint32_t other[IDS_MAX];
	const size_t count = encode(f, text, length, other);
	size_t i = 0;
	while (i < common && i < count && ids[i] == other[i])
		i++;
	return i;
}

/* Tries the text with what may stand behind it. `text` has room for AFTER_MAX bytes more. */
static size_t try_after(const struct form *f, const struct form_state *s, char *text, size_t length,
			const uint32_t *ids, size_t common)
{
	static const char *const more[] = {"\xc3\xa9", "\xe4\xb8\xad", "\xe2\x80\x9c", "\xf0\x9f\x99\x82"};
	uint8_t next[256];
	unsigned count = 0;
	struct form_walk w = f->walk;
	struct form_level to;
	const struct form_level from = form_load(&w, s);
	for (unsigned byte = 0; byte < 0x80; byte++)
		if (form_next(f, &w, &from, &to, (int)byte))
			next[count++] = (uint8_t)byte;
	for (unsigned i = 0; i < count && common > 0; i++) {
		struct form_state after = *s;
		size_t behind = 1;
		bool ends;
		text[length] = (char)next[i];
		CHECK(form_advance(f, &after, text + length, 1));
		if (count <= AFTER_FEW)
			behind += follow(f, &after, text + length + 1, AFTER_MAX - 1, &ends);
		common = in_common(f, ids, common, text, length + behind);
	}
	for (unsigned i = 0; i < sizeof more / sizeof more[0] && common > 0; i++) {
		struct form_state after = *s;
		const size_t behind = strlen(more[i]);
		if (!form_advance(f, &after, more[i], behind))
			continue;
		memcpy(text + length, more[i], behind);
		common = in_common(f, ids, common, text, length + behind);
	}
	return common;
}

/* Of the first `count` tokens those whose bytes are the text's up to `most`, and that the form takes from
   the state on: a vocabulary may put a space before a text, and what is dropped for want of room behind each
   byte need not be what is dropped behind a token. */
static size_t taken(const struct form *f, struct form_state s, const char *text, size_t most,
		    const uint32_t *ids, size_t count)
{
	const struct tokenizer *t = f->index->tokenizer;
	size_t at = 0;
	for (size_t i = 0; i < count; i++) {
		const char *bytes;
		const size_t n = tokenizer_bytes(t, ids[i], false, &bytes);
		if (n == 0 || n > FORM_TOKEN_BYTES_MAX || n > most - at || memcmp(text + at, bytes, n) ||
		    tokenizer_is_control(t, ids[i]) || tokenizer_is_end(t, ids[i]) ||
		    !form_advance(f, &s, bytes, n))
			return i;
		at += n;
	}
	return count;
}

/* The only one of the mask; false: there are more. */
static bool only_token(struct form *f, const struct form_state *s, uint32_t *id)
{
	uint32_t *bits = malloc(f->index->words * sizeof *bits), at = 0;
	const bool only = bits && form_mask(f, s, bits) == 1;
	if (only) {
		while (bits[at] == 0)
			at++;
		*id = at * 32 + (uint32_t)__builtin_ctz(bits[at]);
	}
	free(bits);
	return only;
}

static uint32_t forced_make(struct form *f, const struct form_state *s, uint32_t end, uint32_t *out)
{
	char text[TEXT_MAX + AFTER_MAX];
	uint32_t ids[IDS_MAX];
	struct form_state at = *s;
	bool ends;
	const size_t length = follow(f, &at, text, TEXT_MAX, &ends);
	size_t count = encode(f, text, length, ids);
	count = taken(f, *s, text, length == TEXT_MAX ? length - CUT_BYTES : length, ids, count);
	/* Behind the end there is a mark, which no text grows into. */
	if (!ends && length < TEXT_MAX)
		count = try_after(f, &at, text, length, ids, count);
	const bool whole = count < FORM_FORCED_MAX;
	if (!whole)
		count = FORM_FORCED_MAX;
	memcpy(out, ids, count * sizeof *out);
	size_t bytes = 0;
	for (size_t i = 0; i < count; i++) {
		const char *ignored;
		bytes += tokenizer_bytes(f->index->tokenizer, ids[i], false, &ignored);
	}
	if (ends && whole && bytes == length && end != UINT32_MAX)
		out[count++] = end;
	if (count == 0 && only_token(f, s, &out[0]))
		count = 1;
	return (uint32_t)count;
}

uint32_t form_forced(struct form *form, const struct form_state *state, uint32_t end, uint32_t *ids)
{
	struct form_state key = *state;
	struct form_forced *place = NULL;
	/* Most states are inside of a string or a number: told at once. */
	if (only_next(form, &key) == NEXT_MANY)
		return 0;
	const uint32_t hash = form_settle(form, &key);
	if (!form->forced)
		form->forced = calloc(FORM_FORCED_KEPT, sizeof *form->forced);
	for (uint32_t i = 0; form->forced && i < FORM_FORCED_KEPT; i++) {
		struct form_forced *k = &form->forced[i];
		if (k->used && k->hash == hash && k->end == end && form_same(&k->key, &key)) {
			k->used = ++form->uses;
			memcpy(ids, k->id, k->count * sizeof *ids);
			return k->count;
		}
		if (!place || k->used < place->used)
			place = k;
	}
	const uint32_t count = forced_make(form, &key, end, ids);
	if (place) {
		*place = (struct form_forced){.key = key, .hash = hash, .end = end, .count = count,
					      .used = ++form->uses};
		memcpy(place->id, ids, count * sizeof *ids);
	}
	return count;
}
