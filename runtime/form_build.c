/*
 * Makes a form of tools: the first node is a choice among the tools' openings, each up to its first
 * value; then value, literal, value, literal to the end.
 */
#include "runtime/form_inside.h"

#include <stdlib.h>
#include <string.h>

#include "runtime/template_inside.h"

static const char head[] = TEMPLATE_CALL_OPEN "\n{\"name\": \"";
static const char middle[] = "\", \"arguments\": {";
static const char foot[] = "}}\n" TEMPLATE_CALL_CLOSE;

/* A tool as read. */
struct plan {
	struct json name;
	struct json key[FORM_PROPERTIES_MAX], schema[FORM_PROPERTIES_MAX];
	uint32_t count;
};

static int add_node(struct form *f, struct node node, uint32_t *index)
{
	if (f->node_count == f->node_capacity) {
		uint32_t capacity = f->node_capacity ? f->node_capacity * 2 : 32;
		struct node *grown = realloc(f->node, capacity * sizeof *grown);
		if (!grown)
			return -ERR_MEMORY;
		f->node = grown;
		f->node_capacity = capacity;
	}
	*index = f->node_count;
	f->node[f->node_count++] = node;
	return 0;
}

/* An alternative of the text from `at` to the text's end. */
static int add_alternative(struct form *f, size_t at, uint32_t next)
{
	if (f->alternative_count == f->alternative_capacity) {
		uint32_t capacity = f->alternative_capacity ? f->alternative_capacity * 2 : 32;
		struct alternative *grown = realloc(f->alternative, capacity * sizeof *grown);
		if (!grown)
			return -ERR_MEMORY;
		f->alternative = grown;
		f->alternative_capacity = capacity;
	}
	if (f->text.length > FORM_BYTES_MAX)
		return -ERR_TOO_BIG;
	for (size_t i = at; i < f->text.length; i++)
		if (!f->index->single[(uint8_t)f->text.bytes[i]])
			return -ERR_UNSUPPORTED;
	f->alternative[f->alternative_count++] =
		(struct alternative){at, (uint32_t)(f->text.length - at), next};
	return 0;
}

static int put(struct form *f, const char *text)
{
	return json_write_raw(text, strlen(text), &f->text);
}

static int put_key(struct form *f, struct json key, bool first)
{
	if (!first)
		TRY(put(f, ", "));
	TRY(json_write(key, &f->text));
	return put(f, ": ");
}

/* Whether the key is in the list of strings. */
static bool in_list(struct json list, struct json key)
{
	struct json_walk walk = json_walk(list);
	struct json item;
	while (json_next(&walk, NULL, &item))
		if (json_kind(item) == JSON_STRING && json_same(item, key))
			return true;
	return false;
}

/* A required property must be among those whose kind is known. */
static int check_required(struct json required, struct json properties)
{
	struct json_walk walk = json_walk(required);
	struct json item, key, schema;
	if (json_kind(required) != JSON_ARRAY)
		return -ERR_BAD_ARG;
	while (json_next(&walk, NULL, &item)) {
		struct json_walk members = json_walk(properties);
		bool found = false;
		if (json_kind(item) != JSON_STRING)
			return -ERR_BAD_ARG;
		while (!found && json_next(&members, &key, &schema))
			found = json_same(item, key);
		if (!found)
			return -ERR_UNSUPPORTED;
	}
	return 0;
}

static int plan_properties(struct json parameters, struct plan *plan)
{
	struct json properties = {"{}", 2}, required = {"[]", 2}, key, schema, type;
	if (json_kind(parameters) != JSON_OBJECT)
		return -ERR_BAD_ARG;
	if (json_find(parameters, "type", &type) &&
	    (json_kind(type) != JSON_STRING || !json_equals(type, "object", 6)))
		return -ERR_UNSUPPORTED;
	json_find(parameters, "properties", &properties);
	json_find(parameters, "required", &required);
	if (json_kind(properties) != JSON_OBJECT)
		return -ERR_BAD_ARG;
	TRY(check_required(required, properties));
	struct json_walk walk = json_walk(required);
	bool all = !json_next(&walk, NULL, &key);
	walk = json_walk(properties);
	while (json_next(&walk, &key, &schema)) {
		if (!all && !in_list(required, key))
			continue;
		if (json_kind(schema) != JSON_OBJECT)
			return -ERR_BAD_ARG;
		if (plan->count == FORM_PROPERTIES_MAX)
			return -ERR_TOO_BIG;
		for (uint32_t i = 0; i < plan->count; i++)
			if (json_same(plan->key[i], key))
				return -ERR_BAD_ARG;
		plan->key[plan->count] = key;
		plan->schema[plan->count++] = schema;
	}
	return 0;
}

/* The function of a tool and its name, which is as calls_parse reads names: with its quotes, 1 to 64
   bytes, none of them escaped. A name that it would not take could be offered and never called. */
static int tool_name(struct text text, struct json *function, struct json *name)
{
	struct json tool;
	TRY(json_check(text.at, text.length, &tool));
	if (json_kind(tool) != JSON_OBJECT)
		return -ERR_BAD_ARG;
	if (!json_find(tool, "function", function))
		*function = tool;
	if (json_kind(*function) != JSON_OBJECT || !json_find(*function, "name", name) ||
	    json_kind(*name) != JSON_STRING)
		return -ERR_BAD_ARG;
	if (name->length < 3 || name->length > 66 || memchr(name->at, '\\', name->length))
		return -ERR_BAD_ARG;
	return 0;
}

int form_names_check(const struct tool *tools, uint32_t tool_count)
{
	struct json function, name;
	for (uint32_t i = 0; i < tool_count; i++)
		TRY(tool_name(tools[i].json, &function, &name));
	return 0;
}

static int plan_tool(struct text text, struct plan *plan)
{
	struct json function, parameters;
	memset(plan, 0, sizeof *plan);
	TRY(tool_name(text, &function, &plan->name));
	if (!json_find(function, "parameters", &parameters))
		return 0;
	return plan_properties(parameters, plan);
}

static int compare(const char *text, const struct alternative *a, const struct alternative *b)
{
	uint32_t n = a->length < b->length ? a->length : b->length;
	int order = memcmp(text + a->at, text + b->at, n);
	return order ? order : (a->length > b->length) - (a->length < b->length);
}

/* Insertion sort: there are at most FORM_ENUM_MAX or FORM_TOOLS_MAX, and qsort has no place for the
   text. Returns how many are left when doubles are dropped. */
static uint32_t sort(const struct form *f, struct alternative *a, uint32_t count)
{
	uint32_t kept = 0;
	for (uint32_t i = 0; i < count; i++) {
		struct alternative one = a[i];
		uint32_t at = kept;
		while (at > 0 && compare(f->text.bytes, &a[at - 1], &one) > 0)
			at--;
		if (at > 0 && compare(f->text.bytes, &a[at - 1], &one) == 0)
			continue;
		memmove(&a[at + 1], &a[at], (kept - at) * sizeof *a);
		a[at] = one;
		kept++;
	}
	return kept;
}

static int add_enum(struct form *f, struct json list, struct node *node)
{
	struct json item;
	if (json_kind(list) != JSON_ARRAY)
		return -ERR_BAD_ARG;
	node->kind = NODE_CHOICE;
	node->first = f->alternative_count;
	struct json_walk walk = json_walk(list);
	while (json_next(&walk, NULL, &item)) {
		size_t at = f->text.length;
		if (json_kind(item) != JSON_STRING)
			return -ERR_UNSUPPORTED;
		if (f->alternative_count - node->first == FORM_ENUM_MAX)
			return -ERR_TOO_BIG;
		TRY(json_write(item, &f->text));
		TRY(add_alternative(f, at, node->next));
	}
	if (f->alternative_count == node->first)
		return -ERR_BAD_ARG;
	node->count = sort(f, f->alternative + node->first, f->alternative_count - node->first);
	return 0;
}

static int add_boolean(struct form *f, struct node *node)
{
	node->kind = NODE_CHOICE;
	node->first = f->alternative_count;
	node->count = 2;
	for (int i = 0; i < 2; i++) {
		size_t at = f->text.length;
		TRY(put(f, i ? "true" : "false"));
		TRY(add_alternative(f, at, node->next));
	}
	return 0;
}

/* The node of a value; its literal comes right after it. */
static int add_value(struct form *f, struct json schema)
{
	struct json type, list;
	struct node node = {.next = f->node_count + 1};
	bool typed = json_find(schema, "type", &type);
	uint32_t ignored;
	if (typed && json_kind(type) != JSON_STRING)
		return -ERR_UNSUPPORTED;
	bool string = !typed || json_equals(type, "string", 6);
	if (string && json_find(schema, "enum", &list))
		TRY(add_enum(f, list, &node));
	else if (!typed || json_find(schema, "enum", &list))
		return -ERR_UNSUPPORTED;
	else if (string)
		node.kind = NODE_STRING;
	else if (json_equals(type, "integer", 7))
		node.kind = NODE_INTEGER;
	else if (json_equals(type, "number", 6))
		node.kind = NODE_NUMBER;
	else if (json_equals(type, "boolean", 7))
		TRY(add_boolean(f, &node));
	else
		return -ERR_UNSUPPORTED;
	return add_node(f, node, &ignored);
}

/* The literal from a value to the next one, or to the end. */
static int add_literal(struct form *f, const struct plan *plan, uint32_t property)
{
	bool last = property + 1 == plan->count;
	struct node node = {.kind = NODE_CHOICE, .first = f->alternative_count, .count = 1};
	size_t at = f->text.length;
	uint32_t ignored;
	if (last)
		TRY(put(f, foot));
	else
		TRY(put_key(f, plan->key[property + 1], false));
	TRY(add_alternative(f, at, last ? 1 : f->node_count + 1));
	return add_node(f, node, &ignored);
}

/* The tool's opening, up to its first value. Where it leads is filled in later. */
static int add_opening(struct form *f, const struct plan *plan)
{
	size_t at = f->text.length;
	TRY(put(f, head));
	TRY(json_write_raw(plan->name.at + 1, plan->name.length - 2, &f->text));
	TRY(put(f, middle));
	if (plan->count > 0)
		TRY(put_key(f, plan->key[0], true));
	else
		TRY(put(f, foot));
	return add_alternative(f, at, 1);
}

static int build(struct form *f, const struct tool *tools, uint32_t tool_count, struct plan *plan)
{
	uint32_t ignored;
	TRY(add_node(f, (struct node){.kind = NODE_CHOICE, .count = tool_count}, &ignored));
	TRY(add_node(f, (struct node){.kind = NODE_END}, &ignored));
	for (uint32_t i = 0; i < tool_count; i++) {
		TRY(plan_tool(tools[i].json, plan));
		TRY(add_opening(f, plan));
	}
	for (uint32_t i = 0; i < tool_count; i++) {
		TRY(plan_tool(tools[i].json, plan));
		if (plan->count > 0)
			f->alternative[i].next = f->node_count;
		for (uint32_t k = 0; k < plan->count; k++) {
			TRY(add_value(f, plan->schema[k]));
			TRY(add_literal(f, plan, k));
		}
	}
	if (sort(f, f->alternative, tool_count) < tool_count)
		return -ERR_BAD_ARG;
	/* Two tools of one name may differ in what follows it. Names have no quotes inside. */
	for (uint32_t i = 1; i < tool_count; i++) {
		const char *a = f->text.bytes + f->alternative[i - 1].at + sizeof head - 1;
		const char *b = f->text.bytes + f->alternative[i].at + sizeof head - 1;
		uint32_t n = 0;
		while (a[n] != '"' && a[n] == b[n])
			n++;
		if (a[n] == b[n])
			return -ERR_BAD_ARG;
	}
	return 0;
}

int form_open(const struct form_index *index, const struct tool *tools, uint32_t tool_count,
	      uint32_t string_bytes, struct form **out)
{
	*out = NULL;
	if (tool_count == 0)
		return -ERR_BAD_ARG;
	if (tool_count > FORM_TOOLS_MAX)
		return -ERR_TOO_BIG;
	CHECK(string_bytes > 0);
	CHECK(string_bytes <= FORM_STRING_BYTES_MAX);
	struct form *f = calloc(1, sizeof *f);
	struct plan *plan = malloc(sizeof *plan);
	int code = -ERR_MEMORY;
	if (f && plan) {
		f->index = index;
		f->string_bytes = string_bytes;
		f->words = (tokenizer_count(index->tokenizer) + 31) / 32;
		f->kept_bits = malloc((size_t)FORM_KEPT * f->words * sizeof *f->kept_bits);
		f->stack = malloc((index->longest + 1) * sizeof *f->stack);
		if (f->kept_bits && f->stack)
			code = build(f, tools, tool_count, plan);
	}
	free(plan);
	if (code != 0)
		form_close(&f);
	*out = f;
	return code;
}

void form_close(struct form **form)
{
	struct form *f = *form;
	if (!f)
		return;
	free(f->text.bytes);
	free(f->node);
	free(f->alternative);
	free(f->kept_bits);
	free(f->stack);
	free(f);
	*form = NULL;
}
