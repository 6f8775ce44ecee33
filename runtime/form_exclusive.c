/*
 * oneOf is anyOf where no two branches can both be true. That is shown here for the common cases:
 * other types, other constants, ranges apart, patterns apart, a property that tells them apart.
 */
#include "runtime/form_schema_inside.h"

#include <math.h>
#include <string.h>

enum { EXCLUSIVE_DEPTH_MAX = 4 };

static uint32_t kinds_of(struct json value)
{
	switch (json_kind(value)) {
	case JSON_NULL: return 1u << TYPE_NULL;
	case JSON_BOOL: return 1u << TYPE_BOOLEAN;
	case JSON_STRING: return 1u << TYPE_STRING;
	case JSON_ARRAY: return 1u << TYPE_ARRAY;
	case JSON_OBJECT: return 1u << TYPE_OBJECT;
	default: return 1u << TYPE_NUMBER | 1u << TYPE_INTEGER;
	}
}

/* The constants of a schema: their list, or one. */
static bool constants(const struct part *p, struct json *list, bool *one)
{
	*one = part_has(p, KEY_CONST);
	if (*one)
		*list = p->value[KEY_CONST];
	else if (part_has(p, KEY_ENUM) && json_kind(p->value[KEY_ENUM]) == JSON_ARRAY)
		*list = p->value[KEY_ENUM];
	else
		return false;
	return true;
}

static bool next_constant(struct json_walk *walk, bool one, bool *done, struct json list,
			  struct json *value)
{
	if (!one)
		return json_next(walk, NULL, value);
	if (*done)
		return false;
	*done = true;
	*value = list;
	return true;
}

static double real_of(struct json number)
{
	double value;
	return json_real(number, &value) ? value : (double)NAN;
}

/* Whether two values may be the same; what is not sure is. */
static bool may_equal(struct json a, struct json b)
{
	if (json_kind(a) != json_kind(b))
		return false;
	switch (json_kind(a)) {
	case JSON_STRING: return json_same(a, b);
	case JSON_BOOL: return json_true(a) == json_true(b);
	case JSON_NUMBER: return !(real_of(a) < real_of(b) || real_of(a) > real_of(b));
	default: return true;
	}
}

static bool constants_apart(const struct part *a, const struct part *b)
{
	struct json list_a, list_b, x, y;
	bool one_a, one_b, done_a = false;
	if (!constants(a, &list_a, &one_a) || !constants(b, &list_b, &one_b))
		return false;
	struct json_walk walk_a = json_walk(list_a);
	while (next_constant(&walk_a, one_a, &done_a, list_a, &x)) {
		struct json_walk walk_b = json_walk(list_b);
		bool done_b = false;
		while (next_constant(&walk_b, one_b, &done_b, list_b, &y))
			if (may_equal(x, y))
				return false;
	}
	return true;
}

/* What types a valid answer may have. */
static uint32_t types_of(struct maker *m, const struct part *p)
{
	struct json list, value;
	bool one, done = false;
	uint32_t types = (1u << TYPE_COUNT) - 1, named;
	if (part_has(p, KEY_TYPE) && part_types(m, p, &named) == 0)
		types &= named;
	if (constants(p, &list, &one)) {
		struct json_walk walk = json_walk(list);
		named = 0;
		while (next_constant(&walk, one, &done, list, &value))
			named |= kinds_of(value);
		types &= named;
	}
	return types;
}

static bool range_below(const struct part *a, const struct part *b)
{
	for (int i = 0; i < 2; i++) {
		const enum schema_key high = i ? KEY_HIGH_OPEN : KEY_HIGH;
		for (int k = 0; k < 2; k++) {
			const enum schema_key low = k ? KEY_LOW_OPEN : KEY_LOW;
			if (!part_has(a, high) || !part_has(b, low) || json_kind(a->value[high]) != JSON_NUMBER ||
			    json_kind(b->value[low]) != JSON_NUMBER)
				continue;
			const double x = real_of(a->value[high]), y = real_of(b->value[low]);
			if (x < y || (x <= y && (i || k)))
				return true;
		}
	}
	return false;
}

static bool lengths_below(struct maker *m, const struct part *a, const struct part *b,
			  enum schema_key high, enum schema_key low)
{
	const struct view of_a = {.part = {*a}, .count = 1}, of_b = {.part = {*b}, .count = 1};
	uint32_t x, y;
	return schema_count(m, &of_a, high, false, FORM_ENDLESS, &x) == 0 &&
	       schema_count(m, &of_b, low, true, 0, &y) == 0 && x < y;
}

static bool patterns_apart(struct maker *m, const struct part *a, const struct part *b)
{
	struct dfa *x = NULL, *y = NULL, *both = NULL;
	if (!part_has(a, KEY_PATTERN) || !part_has(b, KEY_PATTERN))
		return false;
	bool apart = schema_pattern(m, a->value[KEY_PATTERN], &x) == 0 &&
		     schema_pattern(m, b->value[KEY_PATTERN], &y) == 0 &&
		     dfa_both(&m->dfa, x, y, false, &both) == DFA_EMPTY;
	dfa_free(x);
	dfa_free(y);
	dfa_free(both);
	return apart;
}

static bool lists(const struct part *p, struct json key)
{
	struct json_walk walk = json_walk(p->value[KEY_REQUIRED]);
	struct json item;
	if (!part_has(p, KEY_REQUIRED) || json_kind(p->value[KEY_REQUIRED]) != JSON_ARRAY)
		return false;
	while (json_next(&walk, NULL, &item))
		if (json_kind(item) == JSON_STRING && json_same(item, key))
			return true;
	return false;
}

static bool describes(const struct part *p, struct json key, struct json *schema)
{
	struct json_walk walk;
	struct json name, value;
	if (!part_has(p, KEY_PROPERTIES) || json_kind(p->value[KEY_PROPERTIES]) != JSON_OBJECT)
		return false;
	walk = json_walk(p->value[KEY_PROPERTIES]);
	while (json_next(&walk, &name, &value)) {
		if (json_same(name, key)) {
			*schema = value;
			return true;
		}
	}
	return false;
}

/* No answer written by a has a property that b requires; or one that a or b requires has values that
   tell them apart. alone: nothing but a adds properties to what is written by it. */
static bool objects_apart(struct maker *m, const struct part *a, const struct part *b, bool alone,
			  unsigned depth)
{
	const struct part *by[2] = {a, b};
	const uint64_t more = 1ull << KEY_REF | 1ull << KEY_ALL | 1ull << KEY_ANY | 1ull << KEY_ONE |
			      1ull << KEY_PATTERNS;
	struct json key, schema, other;
	struct json_walk walk;
	const bool closed = alone && part_has(a, KEY_PROPERTIES) && !(a->present & more) &&
			    (!part_has(a, KEY_ADDITIONAL) ||
			     (json_kind(a->value[KEY_ADDITIONAL]) == JSON_BOOL && !json_true(a->value[KEY_ADDITIONAL])));
	for (int i = 0; i < 2; i++) {
		if (!part_has(by[i], KEY_REQUIRED) || json_kind(by[i]->value[KEY_REQUIRED]) != JSON_ARRAY)
			continue;
		walk = json_walk(by[i]->value[KEY_REQUIRED]);
		while (json_next(&walk, NULL, &key)) {
			if (json_kind(key) != JSON_STRING)
				continue;
			if (i == 1 && closed && !lists(a, key) && !describes(a, key, &schema))
				return true;
			if (describes(a, key, &schema) && describes(b, key, &other) &&
			    form_exclusive(m, schema, other, true, depth + 1))
				return true;
		}
	}
	return false;
}

/* Follows references that stand alone. */
static bool part_of(struct maker *m, struct json schema, struct part *p)
{
	for (unsigned i = 0; i < 16; i++) {
		if (json_kind(schema) != JSON_OBJECT || part_read(m, schema, p) != 0)
			return false;
		if (p->present != 1ull << KEY_REF)
			return true;
		if (form_resolve(m, p->value[KEY_REF], &schema) != 0)
			return false;
	}
	return false;
}

bool form_exclusive(struct maker *m, struct json a, struct json b, bool alone, unsigned depth)
{
	struct part x, y;
	if (depth > EXCLUSIVE_DEPTH_MAX || !part_of(m, a, &x) || !part_of(m, b, &y))
		return false;
	const uint32_t types_x = types_of(m, &x), types_y = types_of(m, &y), types = types_x & types_y;
	/* An answer by a schema that names no type is of what its keywords speak of. */
	const bool spoken = alone && !part_has(&x, KEY_TYPE) && part_kinds(&x);
	const uint32_t written = spoken ? types & part_kinds(&x) : types;
	if (!written || constants_apart(&x, &y))
		return true;
	const uint32_t numbers = 1u << TYPE_NUMBER | 1u << TYPE_INTEGER;
	if ((written & ~numbers) == 0)
		return range_below(&x, &y) || range_below(&y, &x);
	if (written == 1u << TYPE_STRING)
		return lengths_below(m, &x, &y, KEY_LENGTH_MAX, KEY_LENGTH_MIN) ||
		       lengths_below(m, &y, &x, KEY_LENGTH_MAX, KEY_LENGTH_MIN) || patterns_apart(m, &x, &y);
	if (written == 1u << TYPE_ARRAY)
		return lengths_below(m, &x, &y, KEY_ITEMS_MAX, KEY_ITEMS_MIN) ||
		       lengths_below(m, &y, &x, KEY_ITEMS_MAX, KEY_ITEMS_MIN);
	if (written == 1u << TYPE_OBJECT)
		return objects_apart(m, &x, &y, alone, depth);
	return false;
}
