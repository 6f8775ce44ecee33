/*
 * Inside the forms: form_build.c makes a form of tools, form_step.c goes through it byte by byte,
 * form_mask.c through the vocabulary. Nobody else includes this.
 */
#ifndef HOLDFAST_RUNTIME_FORM_INSIDE_H
#define HOLDFAST_RUNTIME_FORM_INSIDE_H

#include "runtime/form.h"
#include "runtime/json.h"

struct form_index {
	const struct tokenizer *tokenizer;
	uint32_t count;       /* tokens with bytes that are not control tokens */
	uint32_t *order;      /* their ids, sorted by bytes */
	uint16_t *common;     /* how many bytes each shares with the one before */
	uint32_t longest;
	bool single[256];     /* there is a token of this byte alone */
	bool ascii_only;      /* a character once begun could not be ended: none is begun */
};

enum node_kind { NODE_END, NODE_CHOICE, NODE_STRING, NODE_INTEGER, NODE_NUMBER };

struct node {
	enum node_kind kind;
	uint32_t first, count; /* of a choice: its alternatives, sorted, none a prefix of another */
	uint32_t next;         /* of the others */
};

struct alternative {
	size_t at;  /* in the form's text */
	uint32_t length, next;
};

enum { FORM_KEPT = 32 }; /* masks kept: more than the states that a call comes back to */

struct form {
	const struct form_index *index;
	uint32_t string_bytes;
	struct json_out text;
	struct node *node;
	uint32_t node_count, node_capacity;
	struct alternative *alternative;
	uint32_t alternative_count, alternative_capacity;
	uint32_t words;
	struct {
		struct form_state key;
		uint32_t allowed; /* 0: free */
	} kept[FORM_KEPT];
	uint32_t *kept_bits;      /* FORM_KEPT x words */
	struct form_state *stack; /* longest + 1 */
};

/* Goes on by one byte; false: not of the form, *s is then undefined. */
bool form_step(const struct form *form, struct form_state *s, uint8_t byte);
/* Stands at the beginning of a node. */
void form_enter(const struct form *form, struct form_state *s, uint32_t node);

#endif
