/*
 * The form that an answer must have, as a mask on tokens: a call of one of some tools, JSON of a
 * schema, one of a list of choices, or a regular expression. Whoever follows the masks arrives at a
 * text of the form, and there is always a token that goes on.
 *
 * JSON is written as Python's json.dumps writes it without ASCII escapes: ", " and ": " between, no
 * other white space. Of a schema every answer is valid; not every valid answer can be written:
 * - properties come in the order of "properties", those only named in "required" after them; others
 *   only where additionalProperties or patternProperties are given, or nothing is said of properties;
 * - an integer has at most FORM_INTEGER_DIGITS_MAX digits, another number at most 15 before and after
 *   the point; with bounds it has no exponent, and 15 digits in all;
 * - a string without a pattern has at most the characters that the opener allows, and no escaped
 *   surrogates; with a pattern it has only the escapes that it needs, and the short ones;
 * - objects, arrays and what refers to them are nested at most FORM_NESTING_MAX deep.
 * Annotations ("format" among them) and unknown keywords are passed over; a keyword that restricts
 * and is not kept is refused: nothing is promised that is not held.
 *
 * Patterns are ECMA-262's regular part; a schema's "pattern" is searched for, the regular expression
 * of an answer is matched as a whole. All automata of a form share one budget of steps.
 */
#ifndef HOLDFAST_RUNTIME_FORM_H
#define HOLDFAST_RUNTIME_FORM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "runtime/template.h"
#include "runtime/tokenizer.h"

enum {
	FORM_TOOLS_MAX = 256,
	FORM_CHOICES_MAX = 4096,
	FORM_NODES_MAX = 16384,
	FORM_PARTS_MAX = 65536,     /* children, properties, alternatives: of each */
	FORM_PROPERTIES_MAX = 1024, /* of one object */
	FORM_BYTES_MAX = 1 << 20,   /* of the form's text, and of its automata's tables / 16 */
	FORM_SCHEMA_BYTES_MAX = 256 << 10,
	FORM_STRING_MAX = 1 << 20,
	FORM_NESTING_MAX = 32,
	FORM_THREADS_MAX = 32,      /* ways in which a text may be meant at once; further ones are dropped */
	FORM_BELOW_MAX = 128,
	FORM_INTEGER_DIGITS_MAX = 18, /* fits 64 bits */
	FORM_FORCED_MAX = 64        /* tokens that are told to be forced at once */
};

/* The vocabulary in the order of its bytes. Made once for a tokenizer, which it borrows; immutable
   after opening. -ERR_UNSUPPORTED: a printable ASCII character or the line's end has no token of
   its own, so that a form could come to a dead end. -ERR_MEMORY. */
struct form_index;
int form_index_open(const struct tokenizer *tokenizer, struct form_index **out);
void form_index_close(struct form_index **index);

/* Belongs to one thread (it keeps masks that it has computed). */
struct form;

/* Where a text stands: the ways in which it may be meant, each with what is open around it. Copied
   freely; means something only to its form. No padding: it is compared as bytes. */
struct form_frame {
	uint32_t node, at, count, part;
};
struct form_thread {
	struct form_frame top;
	uint32_t parent, depth;
};
struct form_below {
	struct form_frame frame;
	uint32_t parent;
};
struct form_state {
	uint32_t thread_count, below_count;
	struct form_thread thread[FORM_THREADS_MAX];
	struct form_below below[FORM_BELOW_MAX];
};

/* All openers borrow the index; the rest is needed only during the call. string_max: the most
   characters of a string where the schema says no less, 1 to FORM_STRING_MAX. On failure *out is NULL
   and *reason, if reason is not NULL, a static text. -ERR_BAD_ARG: not what it should be, or no
   answer could be of it; -ERR_UNSUPPORTED: a keyword, a kind of pattern or a character that cannot be
   kept or written; -ERR_TOO_BIG: a limit; -ERR_MEMORY. */

/* A call as the template writes it, of one of the tools, its arguments by "parameters".
   -ERR_BAD_ARG also: two tools of one name, none, a name that no call could have. */
int form_open(const struct form_index *index, const struct template *template,
	      const struct tool *tools, uint32_t tool_count, uint32_t string_max, struct form **out,
	      const char **reason);
int form_open_schema(const struct form_index *index, struct text schema, uint32_t string_max,
		     struct form **out, const char **reason);
/* The texts as they are, each of 1 to FORM_BYTES_MAX bytes. */
int form_open_choices(const struct form_index *index, const struct text *choice, uint32_t count,
		      struct form **out, const char **reason);
int form_open_regex(const struct form_index *index, struct text pattern, struct form **out,
		    const char **reason);
void form_close(struct form **form);
/* The names alone, whatever the rest is: -ERR_BAD_ARG, with a reason, for a tool that is no JSON object,
   has none or one that no call could have. */
int form_names_check(const struct tool *tools, uint32_t tool_count, const char **reason);

void form_start(const struct form *form, struct form_state *state);
/* Whether the text may end here. It may be that it can go on too. */
bool form_complete(const struct form *form, const struct form_state *state);
/* Goes on by the bytes of a token. False if they are not of the form; then nothing changes. */
bool form_advance(const struct form *form, struct form_state *state, const char *bytes,
		  size_t length);
/* Writes (tokenizer_count + 31) / 32 words: bit i % 32 of word i / 32 is set if token i may come
   next. A control token never may, but those that end a turn do where the text may end. Returns how
   many may; never 0. */
uint32_t form_mask(struct form *form, const struct form_state *state, uint32_t *bits);
/* The tokens that must come, at most FORM_FORCED_MAX; 0: there is a choice. Where only one text can
   follow they are those that the tokenizer makes of it, as far as whatever follows that text leaves
   them as they are: a token that the next characters may become a part of is left to be chosen. Where
   the text can only end, `end` (UINT32_MAX: none is told) comes after them. Or the only one that the
   mask has. Each is of the mask where it stands. The same state and end give the same tokens. */
uint32_t form_forced(struct form *form, const struct form_state *state, uint32_t end, uint32_t *ids);

#endif
