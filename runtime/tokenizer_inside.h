/*
 * Inside the tokenizer: tokenizer_open.c makes the tables, tokenizer.c encodes and decodes,
 * tokenizer_split.c and tokenizer_score.c cut text into pieces, tokenizer_merge.c merges a piece's
 * symbols. Nobody else includes this.
 */
#ifndef HOLDFAST_RUNTIME_TOKENIZER_INSIDE_H
#define HOLDFAST_RUNTIME_TOKENIZER_INSIDE_H

#include <stdatomic.h>

#include "runtime/map.h"
#include "runtime/tokenizer.h"
#include "runtime/unicode.h"

/* Cuts off the first piece of text[0..length), length > 0: returns its length, 1 to length. A
   pre-tokenizer's pieces may depend on what follows, so the whole rest is given. */
typedef size_t split_fn(const uint8_t *text, size_t length);
struct pretokenizer {
	const char *name;
	split_fn *split;
	bool whole; /* a piece that is a token is that token, whatever merges would make of it */
};
const struct pretokenizer *pretokenizer_find(const char *name);

/* Reads one character; returns its length. A byte that starts none gives U+FFFD and length 1, as
   does a form that stands for more than U+10FFFF. Overlong forms and surrogates are taken for what
   their bits say: this is how the reference implementation reads, see tokenizer.h. */
size_t character_read(const uint8_t *text, size_t length, uint32_t *character);
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
	bool user; /* found in any text; the others only where control tokens are meant */
};

/* SentencePiece writes a space as U+2581. */
#define SCORE_SPACE "\xe2\x96\x81"
enum { SCORE_SPACE_BYTES = 3 };

/* The kinds of symbols that adjacency is known of: ASCII each its own, ' ' for U+2581, all others
   one. */
enum { SCORE_OTHER = 128, SCORE_KINDS };

/* What only a vocabulary of scores has. */
struct score {
	/* Whether some token has the two next to each other. Where no token has, no merge can cross:
	   the text can be cut there, and its pieces are words instead of the whole text. */
	bool beside[SCORE_KINDS][SCORE_KINDS];
	bool space_before; /* a space is put before text */
	uint32_t rank[];   /* per token: 0 is the highest score; equal scores have equal ranks */
};
/* The length of the symbol at the start: by its first byte alone, as SentencePiece's reader. */
size_t score_symbol(const uint8_t *text, size_t length);
/* Cuts off the first piece, as a split_fn. */
size_t score_split(const struct score *score, const uint8_t *text, size_t length);
/* Ranks and neighbours; the vocabulary has scores, all finite. -ERR_MEMORY. */
int score_open(const struct vocabulary *vocabulary, struct score **out);

/* Whether a token's own bytes merge into it: asked once, when a piece has those bytes. */
enum { WHOLE_UNKNOWN, WHOLE_YES, WHOLE_NO };

struct tokenizer {
	const struct vocabulary *vocabulary;
	const struct pretokenizer *pretokenizer; /* or */
	struct score *score;                     /* the other is NULL */
	struct map *tokens;       /* from bytes (with scores: as the file has them) to id, without
				     control, user-defined and byte tokens */
	uint32_t byte_token[256]; /* UINT32_MAX: the vocabulary has none for this byte */
	uint32_t longest;         /* bytes of the longest key of `tokens` */
	_Atomic uint8_t *whole;   /* per id: WHOLE_ */
	uint64_t seed;
	uint32_t merge_mask;
	struct merge *merge;      /* open addressing, at most half full; NULL with scores */
	char *arena;              /* the tokens' bytes, one after another */
	size_t *at;               /* count + 1 places in the arena */
	struct special *special;  /* control and user-defined tokens, sorted by their bytes */
	uint32_t special_count, user_count;
	bool special_start[256], user_start[256]; /* bytes that begin one */
	uint8_t *end;             /* per id: ends a turn */
};

bool token_is_control(uint8_t kind);
/* Below, at or above 0, as memcmp; of two that begin alike the shorter is first. */
int bytes_compare(const char *a, size_t a_length, const char *b, size_t b_length);

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
