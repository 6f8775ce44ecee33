/*
 * A node of an object: its properties in order, and the keys that are none of them.
 */
#include "runtime/form_schema_inside.h"

#include <stdlib.h>
#include <string.h>

/* An object in the making. */
struct plan {
	uint32_t count, required;
	struct {
		struct json key, schema;
		bool required, named; /* named: only by "required" */
	} property[FORM_PROPERTIES_MAX];
	uint32_t value[FORM_PROPERTIES_MAX];
	struct json additional; /* at NULL: not said */
	const struct part *keys;  /* the part that has patternProperties, or NULL */
	struct json names;        /* propertyNames; at NULL: not said */
	bool speaks;              /* something is said of properties */
};

static int plan_find(const struct plan *p, struct json key, uint32_t *at)
{
	for (*at = 0; *at < p->count; ++*at)
		if (json_same(p->property[*at].key, key))
			return 1;
	return 0;
}

static int plan_add(struct maker *m, struct plan *p, struct json key, struct json schema, bool named)
{
	if (p->count == FORM_PROPERTIES_MAX)
		return form_fail(m, -ERR_TOO_BIG, "an object has more than 1024 properties");
	p->property[p->count].key = key;
	p->property[p->count].schema = schema;
	p->property[p->count].required = p->property[p->count].named = named;
	p->count++;
	return 0;
}

static int plan_properties(struct maker *m, const struct part *part, struct plan *p)
{
	struct json key, schema;
	struct json_walk walk = json_walk(part->value[KEY_PROPERTIES]);
	uint32_t at;
	p->speaks = true;
	if (json_kind(part->value[KEY_PROPERTIES]) != JSON_OBJECT)
		return form_fail(m, -ERR_BAD_ARG, "properties is no object");
	while (json_next(&walk, &key, &schema)) {
		TRY(dfa_spend(&m->dfa, p->count + 1));
		if (plan_find(p, key, &at))
			return form_fail(m, -ERR_UNSUPPORTED, "a property is described twice");
		TRY(plan_add(m, p, key, schema, false));
	}
	return 0;
}

static int plan_required(struct maker *m, const struct part *part, struct plan *p)
{
	struct json key;
	struct json_walk walk = json_walk(part->value[KEY_REQUIRED]);
	uint32_t at;
	if (json_kind(part->value[KEY_REQUIRED]) != JSON_ARRAY)
		return form_fail(m, -ERR_BAD_ARG, "required is no list of names");
	while (json_next(&walk, NULL, &key)) {
		if (json_kind(key) != JSON_STRING)
			return form_fail(m, -ERR_BAD_ARG, "required is no list of names");
		TRY(dfa_spend(&m->dfa, p->count + 1));
		if (!plan_find(p, key, &at))
			TRY(plan_add(m, p, key, (struct json){"true", 4}, true));
		p->property[at].required = true;
	}
	return 0;
}

/* Whether names, which are strings, may be of a propertyNames schema's type. */
static bool names_are_strings(struct json names)
{
	struct json type, one;
	if (json_kind(names) != JSON_OBJECT || !json_find(names, "type", &type))
		return true;
	if (json_kind(type) == JSON_STRING)
		return json_equals(type, "string", 6);
	struct json_walk walk = json_walk(type);
	while (json_kind(type) == JSON_ARRAY && json_next(&walk, NULL, &one))
		if (json_kind(one) == JSON_STRING && json_equals(one, "string", 6))
			return true;
	return false;
}

/* Gathers what all parts say. What closes an object or speaks of all its keys sees only the
   properties beside it, so that it may stand in one part only. */
static int plan_make(struct maker *m, const struct view *v, struct plan *p)
{
	uint32_t described = 0, closing = 0;
	memset(p, 0, sizeof *p);
	for (uint32_t i = 0; i < v->count; i++) {
		const struct part *part = &v->part[i];
		if (part_has(part, KEY_PROPERTIES)) {
			TRY(plan_properties(m, part, p));
			described++;
		}
		if (part_has(part, KEY_ADDITIONAL) || part_has(part, KEY_PATTERNS)) {
			closing++;
			described += !part_has(part, KEY_PROPERTIES);
			if (part_has(part, KEY_ADDITIONAL))
				p->additional = part->value[KEY_ADDITIONAL];
			if (part_has(part, KEY_PATTERNS))
				p->keys = part;
			if (p->keys == part && json_kind(part->value[KEY_PATTERNS]) != JSON_OBJECT)
				return form_fail(m, -ERR_BAD_ARG, "patternProperties is no object");
		}
		if (part_has(part, KEY_NAMES)) {
			if (p->names.at)
				return form_fail(m, -ERR_UNSUPPORTED, "two schemas speak of the names of one object");
			p->names = part->value[KEY_NAMES];
			if (!names_are_strings(p->names))
				return form_fail(m, -ERR_UNSUPPORTED, "propertyNames has a type that no name has");
		}
	}
	if (closing > 0 && described > 1)
		return form_fail(m, -ERR_UNSUPPORTED, "two schemas speak of the properties of one object");
	for (uint32_t i = 0; i < v->count; i++)
		if (part_has(&v->part[i], KEY_REQUIRED))
			TRY(plan_required(m, &v->part[i], p));
	return 0;
}

/* The automaton of all keys but the listed properties. */
static int other_keys(struct maker *m, const struct plan *p, struct dfa **out)
{
	struct dfa_text *text = calloc(p->count + 1, sizeof *text);
	struct dfa *all = NULL, *listed = NULL;
	int code = text ? 0 : -ERR_MEMORY;
	*out = NULL;
	for (uint32_t i = 0; code == 0 && i < p->count; i++) {
		char *to = malloc(p->property[i].key.length);
		text[i].at = to;
		if (to)
			text[i].length = json_string(p->property[i].key, to);
		else
			code = -ERR_MEMORY;
	}
	if (code == 0)
		code = dfa_length(&m->dfa, 0, FORM_ENDLESS, &all);
	if (code == 0 && p->count > 0)
		code = dfa_texts(&m->dfa, text, p->count, &listed);
	if (code == 0 && p->count > 0) {
		code = dfa_both(&m->dfa, all, listed, true, out);
	} else if (code == 0) {
		*out = all;
		all = NULL;
	}
	for (uint32_t i = 0; text && i < p->count; i++)
		free((char *)text[i].at);
	free(text);
	dfa_free(all);
	dfa_free(listed);
	return code;
}

/* *all is replaced by what both accept, or by all without one. An empty one is left NULL. */
static int narrow(struct maker *m, struct dfa **all, const struct dfa *one, bool without)
{
	struct dfa *before = *all;
	*all = NULL;
	if (!before)
		return 0;
	int code = dfa_both(&m->dfa, before, one, without, all);
	dfa_free(before);
	return code == DFA_EMPTY ? 0 : code;
}

/* Keys by a propertyNames schema: only what makes an automaton, or true. */
static int narrow_names(struct maker *m, struct json names, struct dfa **all)
{
	struct part p;
	struct dfa *one;
	uint32_t low, high;
	if (json_kind(names) == JSON_BOOL && json_true(names))
		return 0;
	TRY(part_read(m, names, &p));
	const uint64_t known = 1ull << KEY_PATTERN | 1ull << KEY_LENGTH_MIN | 1ull << KEY_LENGTH_MAX;
	if ((p.present & ~(known | 1ull << KEY_TYPE)) != 0)
		return form_fail(m, -ERR_UNSUPPORTED,
				"propertyNames says more than a pattern and lengths, which is not supported");
	struct view v = {.part = {p}, .count = 1};
	TRY(schema_count(m, &v, KEY_LENGTH_MIN, true, 0, &low));
	TRY(schema_count(m, &v, KEY_LENGTH_MAX, false, FORM_ENDLESS, &high));
	if (part_has(&p, KEY_PATTERN)) {
		TRY(schema_pattern(m, p.value[KEY_PATTERN], &one));
		int code = narrow(m, all, one, false);
		dfa_free(one);
		TRY(code);
	}
	if (low > 0 || high != FORM_ENDLESS) {
		TRY(dfa_length(&m->dfa, low, high, &one));
		int code = narrow(m, all, one, false);
		dfa_free(one);
		TRY(code);
	}
	return 0;
}

static int extra_add(struct maker *m, struct dfa *keys, struct json schema, struct extra *list,
		     uint32_t *count)
{
	if (*count == BRANCHES_MAX) {
		dfa_free(keys);
		return form_fail(m, -ERR_TOO_BIG, "patternProperties has more than 128 patterns");
	}
	TRY(form_add_dfa(m, NODE_PATTERN, 0, keys, &list[*count].key));
	TRY(form_schema(m, schema, &list[*count].value));
	++*count;
	return 0;
}

/* patternProperties: keys of one pattern each, none of two. What they match is taken out of *left. */
static int pattern_keys(struct maker *m, const struct part *part, struct dfa **left,
			struct extra *list, uint32_t *count)
{
	struct json pattern, schema;
	struct json_walk walk = json_walk(part->value[KEY_PATTERNS]);
	while (json_next(&walk, &pattern, &schema)) {
		struct dfa *one, *keys = NULL;
		int code = schema_pattern(m, pattern, &one);
		if (code == DFA_EMPTY)
			continue;
		TRY(code);
		if (*left)
			code = dfa_both(&m->dfa, *left, one, false, &keys);
		if (code == 0)
			code = narrow(m, left, one, true);
		dfa_free(one);
		if (code == 0 && keys && !(json_kind(schema) == JSON_BOOL && !json_true(schema)))
			code = extra_add(m, keys, schema, list, count);
		else
			dfa_free(keys);
		if (code != DFA_EMPTY)
			TRY(code);
	}
	return 0;
}

/* A pattern that matches a listed property would have a say in its value; two patterns may not both
   match a key. Both are refused. */
static int patterns_apart(struct maker *m, const struct plan *p)
{
	struct json pattern, schema;
	struct json_walk walk = json_walk(p->keys->value[KEY_PATTERNS]);
	struct dfa *all = NULL;
	int code = 0;
	while (code == 0 && json_next(&walk, &pattern, &schema)) {
		struct dfa *one, *shared = NULL;
		code = schema_pattern(m, pattern, &one);
		if (code == DFA_EMPTY) {
			code = 0;
			continue;
		}
		for (uint32_t i = 0; code == 0 && i < p->count; i++) {
			char *text = malloc(p->property[i].key.length);
			struct dfa_text t = {text, text ? json_string(p->property[i].key, text) : 0};
			uint32_t state = 0;
			for (size_t k = 0; k < t.length && state != DFA_DEAD; k++)
				state = dfa_next(one, state, (uint8_t)text[k]);
			if (!text)
				code = -ERR_MEMORY;
			else if (state != DFA_DEAD && one->accept[state])
				code = form_fail(m, -ERR_UNSUPPORTED,
						 "a property's name matches a pattern of patternProperties");
			free(text);
		}
		if (code == 0 && all) {
			code = dfa_both(&m->dfa, all, one, false, &shared);
			code = code == 0 ? form_fail(m, -ERR_UNSUPPORTED,
						     "two patterns of patternProperties match one name") :
			       code == DFA_EMPTY ? 0 : code;
			dfa_free(shared);
		}
		dfa_free(all);
		all = one;
	}
	dfa_free(all);
	return code;
}

/* Whether keys beside the listed ones may come. Where nothing is said of properties, any may. */
static bool open_object(const struct plan *p)
{
	if (p->additional.at)
		return json_kind(p->additional) != JSON_BOOL || json_true(p->additional);
	return !p->speaks && p->count == 0 && !p->keys;
}

static int extras_make(struct maker *m, const struct plan *p, struct extra *list, uint32_t *count)
{
	struct dfa *left;
	const struct json any = {"true", 4};
	int code = 0;
	*count = 0;
	if (!open_object(p) && !p->keys)
		return 0;
	if (p->count == 0 && !p->names.at && !p->keys) { /* any key at all: a string like others */
		const struct node key = {.kind = NODE_STRING, .high = m->f->string_max};
		TRY(form_add_node(m, key, &list[0].key));
		*count = 1;
		return form_schema(m, p->additional.at ? p->additional : any, &list[0].value);
	}
	code = other_keys(m, p, &left);
	if (code == 0 && p->names.at)
		code = narrow_names(m, p->names, &left);
	if (code == 0 && p->keys)
		code = patterns_apart(m, p);
	if (code == 0 && p->keys)
		code = pattern_keys(m, p->keys, &left, list, count);
	if (code == 0 && left && open_object(p)) {
		code = extra_add(m, left, p->additional.at ? p->additional : any, list, count);
		left = NULL;
	}
	dfa_free(left);
	return code == DFA_EMPTY ? 0 : code;
}

/* The schemas of listed keys that propertyNames does not allow are false. */
static int names_check(struct maker *m, struct plan *p)
{
	struct dfa *names = NULL;
	if (!p->names.at)
		return 0;
	int code = dfa_length(&m->dfa, 0, FORM_ENDLESS, &names);
	if (code == 0)
		code = narrow_names(m, p->names, &names);
	for (uint32_t i = 0; code == 0 && i < p->count; i++) {
		char *text = malloc(p->property[i].key.length);
		const size_t length = text ? json_string(p->property[i].key, text) : 0;
		uint32_t state = names ? 0 : DFA_DEAD;
		for (size_t k = 0; k < length && state != DFA_DEAD; k++)
			state = dfa_next(names, state, (uint8_t)text[k]);
		if (!text)
			code = -ERR_MEMORY;
		else if (state == DFA_DEAD || !names->accept[state])
			p->property[i].schema = (struct json){"false", 5};
		free(text);
	}
	dfa_free(names);
	return code == DFA_EMPTY ? 0 : code;
}

/* A key that is only required is described by what is said of all others. */
static struct json schema_of(const struct plan *p, uint32_t i)
{
	if (p->property[i].named && p->additional.at)
		return p->additional;
	return p->property[i].schema;
}

/* Duplicates among other keys cannot be told, so that only what is listed counts for minProperties. */
static int least_check(struct maker *m, const struct plan *p, struct node *node, uint32_t *extras)
{
	uint32_t required = 0;
	for (uint32_t i = 0; i < p->count; i++)
		required += p->property[i].required;
	if (node->low <= required || node->low <= 1 || *extras == 0)
		return 0;
	if (p->count < node->low)
		return form_fail(m, -ERR_UNSUPPORTED, "minProperties is more than the properties described");
	*extras = 0;
	return 0;
}

static int object(struct maker *m, const struct view *v, struct plan *p, uint32_t *at)
{
	struct node node = {.kind = NODE_OBJECT};
	struct extra list[BRANCHES_MAX];
	struct form *f = m->f;
	uint32_t required = 0;
	TRY(plan_make(m, v, p));
	TRY(schema_count(m, v, KEY_PROPERTIES_MIN, true, 0, &node.low));
	TRY(schema_count(m, v, KEY_PROPERTIES_MAX, false, FORM_ENDLESS, &node.high));
	TRY(extras_make(m, p, list, &node.extra_count));
	TRY(names_check(m, p));
	TRY(least_check(m, p, &node, &node.extra_count));
	for (uint32_t i = 0; i < p->count; i++)
		TRY(form_schema(m, schema_of(p, i), &p->value[i]));
	node.first = f->properties;
	node.count = p->count;
	for (uint32_t i = 0; i < p->count; i++) {
		struct property one = {.at = f->text.length, .value = p->value[i], .required_before = required,
				       .required = p->property[i].required};
		required += one.required;
		TRY(json_write_raw(", ", 2, &f->text));
		TRY(json_write(p->property[i].key, &f->text));
		TRY(json_write_raw(": ", 2, &f->text));
		TRY(form_check_text(m, one.at));
		one.length = (uint32_t)(f->text.length - one.at);
		TRY(form_add_property(m, one));
	}
	node.extra = f->extras;
	for (uint32_t i = 0; i < node.extra_count; i++)
		TRY(form_add_extra(m, list[i]));
	return form_add_node(m, node, at);
}

int schema_object(struct maker *m, const struct view *v, uint32_t *at)
{
	struct plan *p = malloc(sizeof *p);
	if (!p)
		return -ERR_MEMORY;
	int code = object(m, v, p, at);
	free(p);
	return code;
}
