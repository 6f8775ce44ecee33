/*
 * A schema to nodes. All schemas that apply to one place (by $ref, allOf, a branch of anyOf or oneOf)
 * are gathered in one view, and a node is made of the view, type by type.
 */
#include "runtime/form_schema_inside.h"

#include <string.h>

static const char *const key_names[KEY_COUNT] = {
	[KEY_REF] = "$ref", [KEY_ALL] = "allOf", [KEY_ANY] = "anyOf", [KEY_ONE] = "oneOf",
	[KEY_TYPE] = "type", [KEY_ENUM] = "enum", [KEY_CONST] = "const",
	[KEY_PROPERTIES] = "properties", [KEY_REQUIRED] = "required",
	[KEY_ADDITIONAL] = "additionalProperties", [KEY_PATTERNS] = "patternProperties",
	[KEY_NAMES] = "propertyNames", [KEY_PROPERTIES_MIN] = "minProperties",
	[KEY_PROPERTIES_MAX] = "maxProperties", [KEY_ITEMS] = "items", [KEY_PREFIX] = "prefixItems",
	[KEY_ITEMS_MORE] = "additionalItems", [KEY_ITEMS_MIN] = "minItems",
	[KEY_ITEMS_MAX] = "maxItems", [KEY_UNIQUE] = "uniqueItems", [KEY_LENGTH_MIN] = "minLength",
	[KEY_LENGTH_MAX] = "maxLength", [KEY_PATTERN] = "pattern", [KEY_LOW] = "minimum",
	[KEY_HIGH] = "maximum", [KEY_LOW_OPEN] = "exclusiveMinimum",
	[KEY_HIGH_OPEN] = "exclusiveMaximum", [KEY_MULTIPLE] = "multipleOf"
};

/* Keywords that restrict and are not kept. */
#define NOT_KEPT(word) "the schema has \"" word "\", which is not supported"
static const struct { const char *name, *reason;
} refused[] = {
	{"not", NOT_KEPT("not")},
	{"if", NOT_KEPT("if")},
	{"contains", NOT_KEPT("contains")},
	{"dependencies", NOT_KEPT("dependencies")},
	{"dependentRequired", NOT_KEPT("dependentRequired")},
	{"dependentSchemas", NOT_KEPT("dependentSchemas")},
	{"unevaluatedItems", NOT_KEPT("unevaluatedItems")},
	{"unevaluatedProperties", NOT_KEPT("unevaluatedProperties")},
	{"$dynamicRef", NOT_KEPT("$dynamicRef")},
	{"$recursiveRef", NOT_KEPT("$recursiveRef")},
	{"extends", NOT_KEPT("extends")},
	{"disallow", NOT_KEPT("disallow")},
	{"divisibleBy", NOT_KEPT("divisibleBy")},
};

_Static_assert(VIEW_PARTS_MAX == 8 && BRANCHES_MAX == 128 && REF_BYTES_MAX == 1024 && SCHEMA_DEPTH_MAX == 80,
	       "as the reasons say");

bool part_has(const struct part *p, enum schema_key key)
{
	return p->present >> key & 1;
}

int part_read(struct maker *m, struct json schema, struct part *p)
{
	struct json_walk walk = json_walk(schema);
	struct json key, value;
	p->present = 0;
	p->at = schema.at;
	if (json_kind(schema) != JSON_OBJECT)
		return form_fail(m, -ERR_BAD_ARG, "a schema is neither an object nor true or false");
	TRY(dfa_spend(&m->dfa, schema.length));
	while (json_next(&walk, &key, &value)) {
		for (uint32_t i = 0; i < sizeof refused / sizeof refused[0]; i++)
			if (json_equals(key, refused[i].name, strlen(refused[i].name)))
				return form_fail(m, -ERR_UNSUPPORTED, refused[i].reason);
		for (uint32_t k = 0; k < KEY_COUNT; k++) {
			if (!json_equals(key, key_names[k], strlen(key_names[k])))
				continue;
			p->value[k] = value;
			p->present |= 1ull << k;
		}
	}
	return 0;
}

/* Adds a schema to the view. `true` says nothing; `false` allows nothing. */
static int view_add(struct maker *m, struct view *v, struct json schema)
{
	if (json_kind(schema) == JSON_BOOL) {
		v->never |= !json_true(schema);
		return 0;
	}
	if (v->count == VIEW_PARTS_MAX)
		return form_fail(m, -ERR_TOO_BIG, "more than 8 schemas apply to one place");
	TRY(part_read(m, schema, &v->part[v->count]));
	v->count++;
	return 0;
}

/* The member of an object or array that a step of a pointer names. */
static bool pointer_step(struct json from, const char *name, size_t length, struct json *to)
{
	struct json_walk walk = json_walk(from);
	struct json key, value;
	uint64_t index = 0;
	bool found = false;
	if (json_kind(from) == JSON_ARRAY) {
		for (size_t i = 0; i < length; i++) {
			if (name[i] < '0' || name[i] > '9' || i > 6)
				return false;
			index = index * 10 + (uint64_t)(name[i] - '0');
		}
		for (uint64_t i = 0; length > 0 && json_next(&walk, NULL, &value); i++) {
			if (i == index) {
				*to = value;
				return true;
			}
		}
		return false;
	}
	while (json_next(&walk, &key, &value)) {
		if (walk.object && json_equals(key, name, length)) {
			*to = value;
			found = true;
		}
	}
	return found;
}

static int hex_value(char c)
{
	const char *set = "0123456789abcdef";
	const char *found = c ? strchr(set, c >= 'A' && c <= 'F' ? c | 0x20 : c) : NULL;
	return found ? (int)(found - set) : -1;
}

/* Undoes %XX, then ~0 and ~1, of one step of a pointer. */
static size_t pointer_decode(const char *from, size_t length, char *to)
{
	size_t n = 0, kept = 0;
	for (size_t i = 0; i < length; i++) {
		if (from[i] == '%' && i + 2 < length && hex_value(from[i + 1]) >= 0 && hex_value(from[i + 2]) >= 0) {
			to[n++] = (char)(hex_value(from[i + 1]) << 4 | hex_value(from[i + 2]));
			i += 2;
		} else {
			to[n++] = from[i];
		}
	}
	for (size_t i = 0; i < n; i++) {
		if (to[i] == '~' && i + 1 < n && (to[i + 1] == '0' || to[i + 1] == '1'))
			to[kept++] = to[++i] == '0' ? '~' : '/';
		else
			to[kept++] = to[i];
	}
	return kept;
}

int form_resolve(struct maker *m, struct json ref, struct json *out)
{
	char text[REF_BYTES_MAX], name[REF_BYTES_MAX];
	if (json_kind(ref) != JSON_STRING)
		return form_fail(m, -ERR_BAD_ARG, "a $ref is no string");
	if (ref.length > sizeof text)
		return form_fail(m, -ERR_TOO_BIG, "a $ref has more than 1024 bytes");
	const size_t length = json_string(ref, text);
	if (length == 0 || text[0] != '#' || (length > 1 && text[1] != '/'))
		return form_fail(m, -ERR_UNSUPPORTED, "a $ref leads out of the schema: only #, #/... is followed");
	*out = m->root;
	for (size_t at = 1; at < length;) {
		const char *slash = memchr(text + at + 1, '/', length - at - 1);
		const size_t end = slash ? (size_t)(slash - text) : length;
		const size_t n = pointer_decode(text + at + 1, end - at - 1, name);
		TRY(dfa_spend(&m->dfa, out->length));
		if (!pointer_step(*out, name, n, out))
			return form_fail(m, -ERR_BAD_ARG, "a $ref leads nowhere");
		at = end;
	}
	return 0;
}

static int make(struct maker *m, const struct view *v, uint32_t *at);

/* The node of what a reference leads to, made once: it may lead back to itself. */
static int make_ref(struct maker *m, struct json target, uint32_t *at)
{
	struct view v = {0};
	uint32_t node;
	for (uint32_t i = 0; i < m->refs; i++) {
		if (m->ref[i].at == target.at) {
			*at = m->ref[i].node;
			return 0;
		}
	}
	if (m->refs == sizeof m->ref / sizeof m->ref[0])
		return form_fail(m, -ERR_TOO_BIG, "the schema has more than 1024 references");
	TRY(form_add_node(m, (struct node){.kind = NODE_ANY}, at));
	m->ref[m->refs].at = target.at;
	m->ref[m->refs++].node = *at;
	TRY(view_add(m, &v, target));
	TRY(make(m, &v, &node));
	m->f->node[*at].first = m->f->children;
	m->f->node[*at].count = 1;
	return form_add_child(m, node);
}

/* Follows references and takes in what allOf lists, until there is nothing more. */
static int view_settle(struct maker *m, struct view *v)
{
	struct json target, item;
	for (uint32_t i = 0; i < v->count; i++) {
		if (part_has(&v->part[i], KEY_REF)) {
			TRY(form_resolve(m, v->part[i].value[KEY_REF], &target));
			v->part[i].present &= ~(1ull << KEY_REF);
			TRY(view_add(m, v, target));
		}
		if (!part_has(&v->part[i], KEY_ALL))
			continue;
		struct json_walk walk = json_walk(v->part[i].value[KEY_ALL]);
		v->part[i].present &= ~(1ull << KEY_ALL);
		if (json_kind(v->part[i].value[KEY_ALL]) != JSON_ARRAY)
			return form_fail(m, -ERR_BAD_ARG, "an allOf, anyOf or oneOf is no list");
		while (json_next(&walk, NULL, &item))
			TRY(view_add(m, v, item));
	}
	return 0;
}

/* A branch for each schema of the list, with all else that applies. */
static int make_either(struct maker *m, const struct view *v, uint32_t which, enum schema_key key,
		       uint32_t *at)
{
	const struct json list = v->part[which].value[key];
	struct json branch[BRANCHES_MAX];
	uint32_t child[BRANCHES_MAX], count = 0;
	struct json_walk walk = json_walk(list);
	if (json_kind(list) != JSON_ARRAY)
		return form_fail(m, -ERR_BAD_ARG, "an allOf, anyOf or oneOf is no list");
	while (count < BRANCHES_MAX && json_next(&walk, NULL, &branch[count]))
		count++;
	if (count == BRANCHES_MAX)
		return form_fail(m, -ERR_TOO_BIG, "an anyOf or oneOf has more than 127 branches");
	if (count == 0)
		return form_fail(m, -ERR_BAD_ARG, "an allOf, anyOf or oneOf is empty");
	bool alone = true;
	for (uint32_t i = 0; i < v->count; i++)
		alone &= (v->part[i].present & ~(1ull << KEY_ONE | 1ull << KEY_TYPE)) == 0;
	for (uint32_t i = 0; key == KEY_ONE && i < count; i++)
		for (uint32_t k = 0; k < count; k++)
			if (i != k && !form_exclusive(m, branch[i], branch[k], alone, 0))
				return form_fail(m, -ERR_UNSUPPORTED, "two branches of a oneOf may both be true: tell them "
						"apart by a const, or say anyOf");
	for (uint32_t i = 0; i < count; i++) {
		struct view one = *v;
		one.part[which].present &= ~(1ull << key);
		TRY(view_add(m, &one, branch[i]));
		TRY(make(m, &one, &child[i]));
	}
	return form_add_any(m, child, count, at);
}

static const char *const type_names[] = {"null", "boolean", "integer", "number", "string", "array", "object"};

int part_types(struct maker *m, const struct part *p, uint32_t *types)
{
	const struct json value = p->value[KEY_TYPE];
	struct json item = value;
	struct json_walk walk = json_walk(value);
	const bool list = json_kind(value) == JSON_ARRAY;
	*types = 0;
	while (!list || json_next(&walk, NULL, &item)) {
		uint32_t t = 0;
		if (json_kind(item) != JSON_STRING)
			return form_fail(m, -ERR_BAD_ARG,
					"a type is none of null, boolean, integer, number, string, array and object");
		while (t < TYPE_COUNT && !json_equals(item, type_names[t], strlen(type_names[t])))
			t++;
		if (t == TYPE_COUNT)
			return form_fail(m, -ERR_BAD_ARG,
					"a type is none of null, boolean, integer, number, string, array and object");
		/* Integers are numbers. */
		*types |= 1u << t | (t == TYPE_NUMBER ? 1u << TYPE_INTEGER : 0);
		if (!list)
			break;
	}
	return 0;
}

/* What the keywords speak of, where no type is named. */
uint32_t part_kinds(const struct part *p)
{
	static const struct { uint64_t keys; uint32_t types;
	} kinds[] = {
		{1ull << KEY_PROPERTIES | 1ull << KEY_REQUIRED | 1ull << KEY_ADDITIONAL | 1ull << KEY_PATTERNS |
		 1ull << KEY_NAMES | 1ull << KEY_PROPERTIES_MIN | 1ull << KEY_PROPERTIES_MAX, 1u << TYPE_OBJECT},
		{1ull << KEY_ITEMS | 1ull << KEY_PREFIX | 1ull << KEY_ITEMS_MIN | 1ull << KEY_ITEMS_MAX |
		 1ull << KEY_UNIQUE, 1u << TYPE_ARRAY},
		{1ull << KEY_LENGTH_MIN | 1ull << KEY_LENGTH_MAX | 1ull << KEY_PATTERN, 1u << TYPE_STRING},
		{1ull << KEY_LOW | 1ull << KEY_HIGH | 1ull << KEY_LOW_OPEN | 1ull << KEY_HIGH_OPEN |
		 1ull << KEY_MULTIPLE, 1u << TYPE_NUMBER | 1u << TYPE_INTEGER},
	};
	uint32_t types = 0;
	for (uint32_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
		if (p->present & kinds[i].keys)
			types |= kinds[i].types;
	return types;
}

static int make_enum(struct maker *m, const struct view *v, uint32_t which, uint32_t types,
		     uint32_t *at);

static int make_type(struct maker *m, const struct view *v, enum schema_type type, uint32_t *at)
{
	const uint32_t first = m->f->alternatives;
	switch (type) {
	case TYPE_NULL:
	case TYPE_BOOLEAN:
		for (int i = 0; i < (type == TYPE_NULL ? 1 : 2); i++) {
			const size_t from = m->f->text.length;
			const char *text = type == TYPE_NULL ? "null" : i ? "true" : "false";
			TRY(json_write_raw(text, strlen(text), &m->f->text));
			TRY(form_add_alternative(m, from));
		}
		return form_add_choice(m, first, at);
	case TYPE_INTEGER:
	case TYPE_NUMBER:
		return schema_number(m, v, type == TYPE_INTEGER, at);
	case TYPE_STRING:
		return schema_string(m, v, at);
	case TYPE_ARRAY:
		return schema_array(m, v, at);
	default:
		return schema_object(m, v, at);
	}
}

static int make_types(struct maker *m, const struct view *v, uint32_t types, uint32_t *at)
{
	uint32_t child[TYPE_COUNT], count = 0;
	if (types >> TYPE_NUMBER & 1)
		types &= ~(1u << TYPE_INTEGER);
	for (uint32_t t = 0; t < TYPE_COUNT; t++)
		if (types >> t & 1)
			TRY(make_type(m, v, (enum schema_type)t, &child[count++]));
	return form_add_any(m, child, count, at);
}

static int view_types(struct maker *m, const struct view *v, uint32_t *types, bool *named)
{
	uint32_t of_part, kinds = 0;
	*types = (1u << TYPE_COUNT) - 1;
	*named = false;
	for (uint32_t i = 0; i < v->count; i++) {
		kinds |= part_kinds(&v->part[i]);
		if (!part_has(&v->part[i], KEY_TYPE))
			continue;
		TRY(part_types(m, &v->part[i], &of_part));
		*types &= of_part;
		*named = true;
	}
	if (!*named && kinds)
		*types = kinds;
	return 0;
}

static int make_view(struct maker *m, const struct view *from, uint32_t *at)
{
	struct view v = *from;
	uint32_t types;
	bool named, says = false;
	TRY(view_settle(m, &v));
	if (v.never)
		return form_add_node(m, (struct node){.kind = NODE_NONE}, at);
	for (uint32_t i = 0; i < v.count; i++) {
		says |= v.part[i].present != 0;
		if (part_has(&v.part[i], KEY_ANY))
			return make_either(m, &v, i, KEY_ANY, at);
		if (part_has(&v.part[i], KEY_ONE))
			return make_either(m, &v, i, KEY_ONE, at);
	}
	if (!says)
		return form_anything(m, at);
	TRY(view_types(m, &v, &types, &named));
	for (uint32_t i = 0; i < v.count; i++)
		if (part_has(&v.part[i], KEY_ENUM) || part_has(&v.part[i], KEY_CONST))
			return make_enum(m, &v, i, named ? types : (1u << TYPE_COUNT) - 1, at);
	return make_types(m, &v, types, at);
}

static int make(struct maker *m, const struct view *from, uint32_t *at)
{
	struct json target;
	struct view *v = &(struct view){.never = from->never};
	if (m->depth == SCHEMA_DEPTH_MAX)
		return form_fail(m, -ERR_TOO_BIG, "the schema's schemas are nested deeper than 80");
	m->depth++;
	for (uint32_t i = 0; i < from->count; i++) /* what says nothing (more) is left out */
		if (from->part[i].present)
			v->part[v->count++] = from->part[i];
	/* A reference alone: so that what leads back to itself ends. */
	if (v->count == 1 && !v->never && v->part[0].present == 1ull << KEY_REF) {
		TRY(form_resolve(m, v->part[0].value[KEY_REF], &target));
		TRY(make_ref(m, target, at));
	} else {
		TRY(make_view(m, v, at));
	}
	m->depth--;
	return 0;
}

int form_schema(struct maker *m, struct json schema, uint32_t *at)
{
	struct view v = {0};
	TRY(view_add(m, &v, schema));
	return make(m, &v, at);
}

int form_anything(struct maker *m, uint32_t *at)
{
	static const char any[] =
		"{\"anyOf\":[{\"type\":[\"null\",\"boolean\",\"number\",\"string\"]},"
		"{\"type\":\"array\",\"items\":true},{\"type\":\"object\",\"additionalProperties\":true}]}";
	/* As a reference: its items are anything again. */
	return make_ref(m, (struct json){any, sizeof any - 1}, at);
}

/* --- enum and const. --- */

/* Whether the value is of one of the types. A number with a point is taken for no integer. */
static bool of_types(struct json value, uint32_t types)
{
	switch (json_kind(value)) {
	case JSON_NULL: return types >> TYPE_NULL & 1;
	case JSON_BOOL: return types >> TYPE_BOOLEAN & 1;
	case JSON_STRING: return types >> TYPE_STRING & 1;
	case JSON_ARRAY: return types >> TYPE_ARRAY & 1;
	case JSON_OBJECT: return types >> TYPE_OBJECT & 1;
	default:
		for (size_t i = 0; i < value.length; i++)
			if (strchr(".eE", value.at[i]))
				return types >> TYPE_NUMBER & 1;
		return types >> TYPE_INTEGER & 1;
	}
}

/* Whether the text can be written by a node that is a scalar. */
static bool node_takes(const struct maker *m, uint32_t node, const char *text, size_t length)
{
	struct form_thread thread[4];
	struct form_walk w = {.thread = thread, .thread_max = 4};
	struct form_thread t = {form_frame_of(m->f, node), FORM_NONE, 0};
	const enum node_kind kind = m->f->node[node].kind;
	if (kind != NODE_STRING && kind != NODE_PATTERN && kind != NODE_DFA && kind != NODE_CHOICE)
		return false;
	for (size_t i = 0; i < length; i++) {
		w.thread_count = 0;
		form_step(m->f, &w, &t, (uint8_t)text[i]);
		if (w.thread_count == 0)
			return false;
		t = thread[0];
	}
	form_step(m->f, &w, &t, FORM_END);
	return w.end;
}

/* Adds the value if all else that applies allows it. */
static int enum_value(struct maker *m, const struct view *rest, bool plain, struct json value,
		      uint32_t types)
{
	struct form *f = m->f;
	const size_t from = f->text.length;
	uint32_t node;
	if (!of_types(value, types))
		return 0;
	TRY(json_write(value, &f->text));
	const enum json_kind kind = json_kind(value);
	if (!plain && (kind == JSON_ARRAY || kind == JSON_OBJECT))
		return form_fail(m, -ERR_UNSUPPORTED,
				"an enum of objects or arrays has other keywords beside it, which is not supported");
	if (!plain && (kind == JSON_STRING || kind == JSON_NUMBER)) {
		TRY(make_type(m, rest, kind == JSON_STRING ? TYPE_STRING : TYPE_NUMBER, &node));
		if (!node_takes(m, node, f->text.bytes + from, f->text.length - from))
			return 0;
	}
	return form_add_alternative(m, from);
}

static int make_enum(struct maker *m, const struct view *v, uint32_t which, uint32_t types,
		     uint32_t *at)
{
	const enum schema_key key = part_has(&v->part[which], KEY_CONST) ? KEY_CONST : KEY_ENUM;
	const struct json list = v->part[which].value[key];
	struct view rest = *v;
	uint64_t left = 0;
	rest.part[which].present &= ~(1ull << key);
	for (uint32_t i = 0; i < rest.count; i++) {
		rest.part[i].present &= ~(1ull << KEY_TYPE);
		left |= rest.part[i].present;
		if (part_has(&rest.part[i], KEY_ENUM) || part_has(&rest.part[i], KEY_CONST))
			return form_fail(m, -ERR_UNSUPPORTED, "two enums apply to one place");
	}
	const uint32_t first = m->f->alternatives;
	struct json_walk walk = json_walk(list);
	struct json item;
	if (key == KEY_CONST) {
		TRY(enum_value(m, &rest, left == 0, list, types));
	} else {
		if (json_kind(list) != JSON_ARRAY)
			return form_fail(m, -ERR_BAD_ARG, "an enum is no list");
		if (!json_next(&(struct json_walk){walk.at, walk.end, walk.object}, NULL, &item))
			return form_fail(m, -ERR_BAD_ARG, "an enum is empty");
		while (json_next(&walk, NULL, &item))
			TRY(enum_value(m, &rest, left == 0, item, types));
	}
	return form_add_choice(m, first, at);
}
