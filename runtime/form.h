/*
 * The form of an answer that must be a call of one of some tools, as a mask on tokens:
 *
 *	<tool_call>\n{"name": "NAME", "arguments": {"KEY": VALUE, …}}\n</tool_call>
 *
 * with the tool's required properties in the order of its "properties" (all of them if none is
 * required). A value is a string, an integer, a number, a boolean, or one of an enum of strings;
 * a tool with any other kind is refused. Of a schema only that much is enforced: bounds, patterns
 * and the like are for the tool to check. Strings have no control characters and no escaped
 * surrogates. What follows the masks is a text that calls_parse takes, and there is always a token
 * that goes on.
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
	FORM_PROPERTIES_MAX = 64,  /* of one tool */
	FORM_ENUM_MAX = 256,       /* of one property */
	FORM_BYTES_MAX = 1 << 20,  /* of all names, keys and enums as JSON */
	FORM_STRING_BYTES_MAX = 1 << 20,
	FORM_INTEGER_DIGITS_MAX = 18, /* fits 64 bits */
	FORM_NUMBER_DIGITS_MAX = 15,  /* before the point, and after it */
	FORM_EXPONENT_DIGITS_MAX = 2
};

/* The vocabulary in the order of its bytes. Made once for a tokenizer, which it borrows; immutable
   after opening. -ERR_UNSUPPORTED: a printable ASCII character or the line's end has no token of
   its own, so that a form could come to a dead end. -ERR_MEMORY. */
struct form_index;
int form_index_open(const struct tokenizer *tokenizer, struct form_index **out);
void form_index_close(struct form_index **index);

/* Belongs to one thread (it keeps masks that it has computed). */
struct form;

/* Copied freely; means something only to its form. No padding: it is compared as bytes. */
struct form_state {
	uint32_t node, low, high, depth, count, part;
};

/* Borrows the index; tools are needed only during the call. string_bytes: the longest string value
   as JSON without its quotes, 1 to FORM_STRING_BYTES_MAX. -ERR_BAD_ARG: a tool's JSON is not one,
   its name is none that calls_parse would take, two tools have one name, there is none;
   -ERR_UNSUPPORTED: a property's type, a required property that is not described, a character that the
   vocabulary cannot write; -ERR_TOO_BIG: a limit above; -ERR_MEMORY. */
int form_open(const struct form_index *index, const struct tool *tools, uint32_t tool_count,
	      uint32_t string_bytes, struct form **out);
void form_close(struct form **form);
/* The names alone, whatever the rest is: -ERR_BAD_ARG for a tool that has none or one that no call
   could have. */
int form_names_check(const struct tool *tools, uint32_t tool_count);

struct form_state form_start(const struct form *form);
bool form_complete(const struct form *form, const struct form_state *state);
/* Goes on by the bytes of a token. False if they are not of the form; then nothing changes. */
bool form_advance(const struct form *form, struct form_state *state, const char *bytes,
		  size_t length);
/* Writes (tokenizer_count + 31) / 32 words: bit i % 32 of word i / 32 is set if token i may come
   next. A control token never may, but those that end a turn do, and nothing else, when the form is
   complete. Returns how many may; never 0. */
uint32_t form_mask(struct form *form, const struct form_state *state, uint32_t *bits);

#endif
