/*
 * One MessagePack item: its first bytes taken apart. The pre-scan, the readers and the access
 * functions all stand on item_read, so that there is one place that knows the format (of the
 * specification in msgpack/msgpack, spec.md). Private to clients/.
 */
#ifndef HOLDFAST_CLIENTS_ITEM_H
#define HOLDFAST_CLIENTS_ITEM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "clients/wire.h"

/* The hard bound on depth, whatever the limits say: room for it is on the stack. */
enum { ITEM_DEPTH_MAX = 32, ITEM_PAIRS_MAX = 32, ITEM_KEY_MAX = 32 };

enum item_kind {
	ITEM_NIL, ITEM_BOOL, ITEM_UINT, ITEM_INT, ITEM_FLOAT, ITEM_STR, ITEM_BIN, ITEM_ARRAY,
	ITEM_MAP
};

struct item {
	uint8_t kind;    /* enum item_kind; ITEM_INT is below zero, ITEM_UINT is not */
	bool single;     /* of ITEM_FLOAT: it was an f32 */
	size_t head;     /* bytes before the content or the elements */
	uint64_t number; /* the value of NIL to INT (as two's complement), a length, or a count */
	double real;     /* of ITEM_FLOAT */
};

/* False if the bytes end inside the head, for 0xc1 and for extension types. The content of strings
   may lie outside the buffer: the pre-scan asks. */
bool item_read(const uint8_t *at, size_t left, struct item *out);

/* The bytes of the content of a string; 0 for all else. */
static inline size_t item_content(const struct item *i)
{
	return i->kind == ITEM_STR || i->kind == ITEM_BIN ? (size_t)i->number : 0;
}

/* The items that a container holds; 0 for all else. */
static inline uint64_t item_elements(const struct item *i)
{
	return i->kind == ITEM_ARRAY ? i->number : i->kind == ITEM_MAP ? 2 * i->number : 0;
}

/* The bytes of the validated value at the start of the buffer, with all that is in it. */
size_t item_span(const uint8_t *at, size_t left);

/* Strict UTF-8: no overlong forms, no surrogates, nothing above U+10FFFF. */
bool item_utf8(const uint8_t *at, size_t length);

/* Walks over the elements of a validated container: of a map, keys and values in turn. */
struct walk {
	const uint8_t *at;
	size_t left;
	uint64_t items;
};
void walk_init(struct walk *w, struct wire_value container);
bool walk_next(struct walk *w, struct wire_value *out);

#endif
