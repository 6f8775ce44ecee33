/*
 * Inside the reading of schemas. Nobody else includes this.
 */
#ifndef HOLDFAST_RUNTIME_FORM_SCHEMA_INSIDE_H
#define HOLDFAST_RUNTIME_FORM_SCHEMA_INSIDE_H

#include "runtime/form_inside.h"

enum { VIEW_PARTS_MAX = 8, BRANCHES_MAX = 128, REF_BYTES_MAX = 1024, SCHEMA_DEPTH_MAX = 80 };

enum schema_key {
	KEY_REF, KEY_ALL, KEY_ANY, KEY_ONE, KEY_TYPE, KEY_ENUM, KEY_CONST, KEY_PROPERTIES, KEY_REQUIRED,
	KEY_ADDITIONAL, KEY_PATTERNS, KEY_NAMES, KEY_PROPERTIES_MIN, KEY_PROPERTIES_MAX, KEY_ITEMS,
	KEY_PREFIX, KEY_ITEMS_MORE, KEY_ITEMS_MIN, KEY_ITEMS_MAX, KEY_UNIQUE, KEY_LENGTH_MIN,
	KEY_LENGTH_MAX, KEY_PATTERN, KEY_LOW, KEY_HIGH, KEY_LOW_OPEN, KEY_HIGH_OPEN, KEY_MULTIPLE,
	KEY_COUNT
};

enum schema_type {
	TYPE_NULL, TYPE_BOOLEAN, TYPE_INTEGER, TYPE_NUMBER, TYPE_STRING, TYPE_ARRAY, TYPE_OBJECT, TYPE_COUNT
};

/* A schema that is an object, its keywords found. */
struct part {
	const char *at;
	uint64_t present;
	struct json value[KEY_COUNT];
};

/* All schemas that apply to one place. */
struct view {
	struct part part[VIEW_PARTS_MAX];
	uint32_t count;
	bool never; /* one of them is false */
};

bool part_has(const struct part *p, enum schema_key key);
/* Refuses what restricts and is not kept. */
int part_read(struct maker *m, struct json schema, struct part *p);
/* Bits of the types that "type" names; NUMBER always with INTEGER. */
int part_types(struct maker *m, const struct part *p, uint32_t *types);
/* Bits of the types that its other keywords speak of. */
uint32_t part_kinds(const struct part *p);

/* form_schema_types.c: a node of one type. */
int schema_number(struct maker *m, const struct view *v, bool integer, uint32_t *at);
int schema_string(struct maker *m, const struct view *v, uint32_t *at);
int schema_array(struct maker *m, const struct view *v, uint32_t *at);
/* form_schema_object.c */
int schema_object(struct maker *m, const struct view *v, uint32_t *at);
/* The largest (or smallest) of the integers under the key; `absent` if there is none. */
int schema_count(struct maker *m, const struct view *v, enum schema_key key, bool largest,
		 uint32_t absent, uint32_t *out);
/* An automaton of a schema's pattern. */
int schema_pattern(struct maker *m, struct json pattern, struct dfa **out);

#endif
