/*
 * Text to token ids and back. Byte-level BPE with a hand-written pre-tokenizer for each known name
 * (an unknown one is refused by its name), and SentencePiece by score with byte fallback.
 *
 * Text that is UTF-8, and whose bytes all have tokens, comes back as it was; with scores U+2581
 * comes back as the space that it is written for, and a vocabulary that puts a space before text
 * gives that too. What is not UTF-8 is read as the reference implementation reads it. Byte-level:
 * each byte that belongs to no character as U+FFFD (decoding gives the three bytes EF BF BD), an
 * overlong form as the character it stands for; a byte that the vocabulary has no token for (some
 * small vocabularies lack rare control characters and the lead bytes of rare planes) gives no id.
 * With scores: every byte as its byte token, where a space that a broken character swallows is
 * U+2581 by then. Decoding is on bytes: any list of ids has its bytes, in UTF-8 or not.
 */
#ifndef HOLDFAST_RUNTIME_TOKENIZER_H
#define HOLDFAST_RUNTIME_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "runtime/model.h"

struct tokenizer; /* immutable after opening: any thread may use it */

/* Borrows model->vocabulary, which must outlive it. -ERR_UNSUPPORTED with the name in reason. */
int tokenizer_open(const struct model *model, struct tokenizer **out, char *reason);
void tokenizer_close(struct tokenizer **tokenizer);

/* Appends the ids of `length` bytes to ids[*count], up to `capacity`; nothing is added around them
   (no start token; but some vocabularies of scores put a space before a text and after each token
   found in it). User-defined tokens are found in any text, they are text that was given an id;
   control tokens only if `special` (only for text of our own templates), otherwise they stay plain
   text. Time n log n. -ERR_TOO_BIG if capacity is too small or the text longer than 256 MiB,
   -ERR_MEMORY (then *count is unchanged). A text of n bytes of UTF-8 gives at most n ids, and one
   more for a space that is put before; any other, and one whose spaces have no token, at most
   3 n + 3. */
int tokenizer_encode(const struct tokenizer *tokenizer, const char *text, size_t length,
		     bool special, uint32_t *ids, size_t capacity, size_t *count);

/* The bytes of one token, appended as plain bytes. Control tokens give their text if `special`,
   else nothing. Returns the length; *bytes lives as long as the tokenizer. Ids that do not exist
   give 0 bytes. */
size_t tokenizer_bytes(const struct tokenizer *tokenizer, uint32_t id, bool special,
		       const char **bytes);

uint32_t tokenizer_count(const struct tokenizer *tokenizer);
bool tokenizer_is_control(const struct tokenizer *tokenizer, uint32_t id);
/* The id of a control or user-defined token by its exact text; UINT32_MAX if there is none. */
uint32_t tokenizer_find(const struct tokenizer *tokenizer, const char *text);
/* A token that ends a turn: eos, eot, <|im_end|> and its like, found in the vocabulary. */
bool tokenizer_is_end(const struct tokenizer *tokenizer, uint32_t id);

/* Streaming decoder: holds back an incomplete UTF-8 character (at most 3 bytes). */
struct utf8_stream {
	uint8_t held[4];
	uint32_t count;
};
/* Appends bytes and moves what is complete to out (room for held + length); returns how much.
   Bytes that can never become a character pass through as U+FFFD when `strict`, as they are
   otherwise; with `flush` what is held is treated so too. out needs 3 times the room if strict. */
size_t utf8_stream_push(struct utf8_stream *stream, const char *bytes, size_t length, bool strict,
			bool flush, char *out);

#endif
