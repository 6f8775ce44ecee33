/*
 * A node of one type: numbers, strings, arrays.
 */
#include "runtime/form_schema_inside.h"

#include <stdlib.h>
#include <string.h>

int schema_count(struct maker *m, const struct view *v, enum schema_key key, bool largest,
		 uint32_t absent, uint32_t *out)
{
	bool found = false;
	int64_t n;
	*out = absent;
	for (uint32_t i = 0; i < v->count; i++) {
		if (!part_has(&v->part[i], key))
			continue;
		if (!json_integer(v->part[i].value[key], 0, UINT32_MAX - 1, &n))
			return form_fail(m, -ERR_BAD_ARG,
					"a length or number of items is no whole number from 0 to 4294967294");
		if (!found || (largest ? (uint32_t)n > *out : (uint32_t)n < *out))
			*out = (uint32_t)n;
		found = true;
	}
	return 0;
}

/* Adds a bound; exclusive ones of draft 4 are true or false beside it. */
static int bound_add(struct maker *m, const struct part *p, bool low, struct number_bounds *b)
{
	const enum schema_key key = low ? KEY_LOW : KEY_HIGH, open_key = low ? KEY_LOW_OPEN : KEY_HIGH_OPEN;
	const bool has_open = part_has(p, open_key), old = has_open && json_kind(p->value[open_key]) == JSON_BOOL;
	for (int i = 0; i < 2; i++) {
		if (i == 0 ? !part_has(p, key) : !has_open || old)
			continue;
		const struct json value = p->value[i == 0 ? key : open_key];
		if (json_kind(value) != JSON_NUMBER)
			return form_fail(m, -ERR_BAD_ARG, "a bound in the schema is no number");
		uint32_t *count = low ? &b->lows : &b->highs;
		if (*count == sizeof b->low / sizeof b->low[0])
			return form_fail(m, -ERR_TOO_BIG, "more than 8 schemas apply to one place");
		(low ? b->low : b->high)[*count] = value;
		(low ? b->low_open : b->high_open)[*count] = i == 1 || (old && json_true(p->value[open_key]));
		++*count;
	}
	return 0;
}

int schema_number(struct maker *m, const struct view *v, bool integer, uint32_t *at)
{
	struct number_bounds b = {0};
	int64_t one;
	for (uint32_t i = 0; i < v->count; i++) {
		const struct part *p = &v->part[i];
		TRY(bound_add(m, p, true, &b));
		TRY(bound_add(m, p, false, &b));
		if (part_has(p, KEY_MULTIPLE) && !(integer && json_integer(p->value[KEY_MULTIPLE], 1, 1, &one)))
			return form_fail(m, -ERR_UNSUPPORTED,
					"the schema has \"multipleOf\", which is not supported but as 1 of an integer");
	}
	return form_number(m, integer, &b, at);
}

int schema_pattern(struct maker *m, struct json pattern, struct dfa **out)
{
	*out = NULL;
	if (json_kind(pattern) != JSON_STRING)
		return form_fail(m, -ERR_BAD_ARG, "a pattern is no string");
	char *text = malloc(pattern.length);
	if (!text)
		return -ERR_MEMORY;
	int code = dfa_pattern(&m->dfa, text, json_string(pattern, text), true, out);
	free(text);
	return code;
}

/* *all and one; both are taken. */
static int both(struct maker *m, struct dfa **all, struct dfa *one)
{
	struct dfa *a = *all;
	int code = 0;
	*all = one;
	if (a) {
		code = dfa_both(&m->dfa, a, one, false, all);
		dfa_free(a);
		dfa_free(one);
	}
	return code;
}

int schema_string(struct maker *m, const struct view *v, uint32_t *at)
{
	struct dfa *all = NULL, *one;
	uint32_t low, high;
	int code = 0;
	TRY(schema_count(m, v, KEY_LENGTH_MIN, true, 0, &low));
	TRY(schema_count(m, v, KEY_LENGTH_MAX, false, FORM_ENDLESS, &high));
	for (uint32_t i = 0; code == 0 && i < v->count; i++) {
		if (!part_has(&v->part[i], KEY_PATTERN))
			continue;
		code = schema_pattern(m, v->part[i].value[KEY_PATTERN], &one);
		if (code == 0)
			code = both(m, &all, one);
	}
	if (code == 0 && all && (low > 0 || high != FORM_ENDLESS)) {
		code = low > high ? DFA_EMPTY : dfa_length(&m->dfa, low, high, &one);
		if (code == 0)
			code = both(m, &all, one);
	}
	if (code != 0) {
		dfa_free(all);
		all = NULL;
	}
	if (code != 0 || all)
		return form_add_dfa(m, NODE_PATTERN, code, all, at);
	if (low > high)
		return form_add_node(m, (struct node){.kind = NODE_NONE}, at);
	if (low > m->f->string_max)
		return form_fail(m, -ERR_TOO_BIG, "a minLength is more than strings without a pattern may have");
	if (high > m->f->string_max)
		high = m->f->string_max;
	return form_add_node(m, (struct node){.kind = NODE_STRING, .low = low, .high = high}, at);
}

/* The schema under a key that may stand in one place only. False: there is none. */
static int only(struct maker *m, const struct view *v, enum schema_key key, bool *found,
		struct json *out)
{
	*found = false;
	for (uint32_t i = 0; i < v->count; i++) {
		if (!part_has(&v->part[i], key))
			continue;
		if (*found)
			return form_fail(m, -ERR_UNSUPPORTED, "two schemas speak of the items of one array");
		*found = true;
		*out = v->part[i].value[key];
	}
	return 0;
}

static int unique_check(struct maker *m, const struct view *v, uint32_t high)
{
	for (uint32_t i = 0; i < v->count; i++) {
		if (!part_has(&v->part[i], KEY_UNIQUE))
			continue;
		if (json_kind(v->part[i].value[KEY_UNIQUE]) != JSON_BOOL)
			return form_fail(m, -ERR_BAD_ARG, "uniqueItems is neither true nor false");
		if (json_true(v->part[i].value[KEY_UNIQUE]) && high > 1)
			return form_fail(m, -ERR_UNSUPPORTED,
					"the schema has \"uniqueItems\", which is not supported but for one item at most");
	}
	return 0;
}

int schema_array(struct maker *m, const struct view *v, uint32_t *at)
{
	struct node node = {.kind = NODE_ARRAY};
	struct json items = {"true", 4}, prefix = {"[]", 2}, more = items, item;
	bool has_items, has_prefix, found;
	uint32_t child[BRANCHES_MAX];
	TRY(schema_count(m, v, KEY_ITEMS_MIN, true, 0, &node.low));
	TRY(schema_count(m, v, KEY_ITEMS_MAX, false, FORM_ENDLESS, &node.high));
	TRY(unique_check(m, v, node.high));
	TRY(only(m, v, KEY_ITEMS, &has_items, &items));
	TRY(only(m, v, KEY_PREFIX, &has_prefix, &prefix));
	TRY(only(m, v, KEY_ITEMS_MORE, &found, &more));
	if (has_items && json_kind(items) == JSON_ARRAY) { /* before 2020 */
		if (has_prefix)
			return form_fail(m, -ERR_BAD_ARG, "items is a list beside prefixItems");
		prefix = items;
		items = more;
	}
	if (json_kind(prefix) != JSON_ARRAY)
		return form_fail(m, -ERR_BAD_ARG, "prefixItems is no list");
	struct json_walk walk = json_walk(prefix);
	while (json_next(&walk, NULL, &item)) {
		if (node.count == BRANCHES_MAX)
			return form_fail(m, -ERR_TOO_BIG, "prefixItems has more than 128 schemas");
		TRY(form_schema(m, item, &child[node.count++]));
	}
	node.other = FORM_NONE;
	if (node.high > node.count && (json_kind(items) != JSON_BOOL || json_true(items)))
		TRY(form_schema(m, items, &node.other));
	node.first = m->f->children;
	for (uint32_t i = 0; i < node.count; i++)
		TRY(form_add_child(m, child[i]));
	return form_add_node(m, node, at);
}
