/*
 * Inside the tokenizer: tokenizer.c opens and decodes, tokenizer_split.c cuts text into pieces,
 * tokenizer_merge.c merges a piece's symbols. Nobody else includes this.
 */
#ifndef HOLDFAST_RUNTIME_TOKENIZER_INSIDE_H
#define HOLDFAST_RUNTIME_TOKENIZER_INSIDE_H

#include "runtime/map.h"
#include "runtime/tokenizer.h"

/* Cuts off the first piece of text[0..length), length > 0: returns its length, 1 to length. A
   pre-tokenizer's pieces may depend on what follows, so the whole rest is given. */
typedef size_t split_fn(const uint8_t *text, size_t length);
struct pretokenizer {
	const char *name;
	split_fn *split;
};
const struct pretokenizer *pretokenizer_find(const char *name);

/* Reads one character; returns its length. A byte that starts none gives U+FFFD and length 1, as
   does a form that stands for more than U+10FFFF. Overlong forms and surrogates are taken for what
   their bits say: this is how the reference implementation reads, see tokenizer.h. */
size_t character_read(const uint8_t *text, size_t length, uint32_t *character);
/* The length that it has, 1 to 4, written to `to`. */
size_t character_write(uint32_t character, uint8_t *to);
/* Whether the text is what character_write would write: neither broken nor overlong. */
bool characters_plain(const uint8_t *text, size_t length);

/* Two adjacent tokens and what they become. */
struct merge {
	uint32_t left, right; /* UINT32_MAX: a free slot */
	uint32_t rank, product;
};

struct special {
	const char *text;
	uint32_t length, id;
};

struct tokenizer {
	const struct vocabulary *vocabulary;
	const struct pretokenizer *pretokenizer;
	struct map *tokens;       /* from decoded bytes to id, without control tokens */
	uint32_t byte_token[256]; /* UINT32_MAX: the vocabulary has none for this byte */
	uint64_t seed;
	uint32_t merge_mask;
	struct merge *merge;      /* open addressing, at most half full */
	char *arena;              /* the tokens' bytes, one after another */
	size_t *at;               /* count + 1 places in the arena */
	struct special *special;  /* control and user-defined tokens, sorted by their bytes */
	uint32_t special_count;
	bool special_start[256];  /* bytes that begin one */
	uint8_t *end;             /* per id: ends a turn */
};

/* The slot of the pair, or the free one where it would go: then the two do not merge. */
struct merge *merge_slot(const struct tokenizer *t, uint32_t left, uint32_t right);

/* Memory for merging pieces, grown as needed and kept between the pieces of a text. */
struct merger {
	size_t capacity;
	uint32_t *id, *next, *previous, *rank, *product;
	uint64_t *heap;
};
void merger_free(struct merger *merger);
/* Appends the ids of one piece: at most `length`. -ERR_TOO_BIG, -ERR_MEMORY. */
int merge_piece(const struct tokenizer *t, struct merger *merger, const uint8_t *piece,
		size_t length, uint32_t *ids, size_t capacity, size_t *count);

#endif
