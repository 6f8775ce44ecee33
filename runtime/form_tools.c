/*
 * A call of one of some tools, as each template writes it.
 */
#include "runtime/form_inside.h"

#include <string.h>

#include "runtime/template_inside.h"

/* What stands before a call's name, between name and arguments, and after them. */
struct call_form {
	const char *open, *middle, *close;
};

/* Where a template's own calls begin with a control token they are forced in ChatML's form, which is
   read everywhere. */
static const struct call_form *call_form(const struct template *template)
{
	static const struct call_form tagged = {TEMPLATE_CALL_OPEN "\n{\"name\": \"", "\", \"arguments\": ",
						"}\n" TEMPLATE_CALL_CLOSE};
	static const struct call_form llama = {"{\"name\": \"", "\", \"parameters\": ", "}"};
	const char *name = template_name(template);
	return strncmp(name, "llama", 5) == 0 ? &llama : &tagged;
}

/* A choice of one. */
static int literal(struct maker *m, const char *text, size_t length, uint32_t *at)
{
	const size_t from = m->f->text.length;
	const uint32_t first = m->f->alternatives;
	TRY(json_write_raw(text, length, &m->f->text));
	TRY(form_add_alternative(m, from));
	return form_add_choice(m, first, at);
}

_Static_assert(JSON_DEPTH_MAX == 64, "as the reason below says");

/* The function of a tool and its name, which is as calls_parse reads names: with its quotes, 1 to 64
   bytes, none of them escaped. A name that it would not take could be offered and never called.
   NULL, or what is wrong. */
static const char *tool_name(struct text text, struct json *function, struct json *name)
{
	struct json tool;
	const int code = json_check(text.at, text.length, &tool);
	if (code == -ERR_OUT_OF_RANGE)
		return "a tool's JSON is nested deeper than 64";
	if (code != 0 || json_kind(tool) != JSON_OBJECT)
		return "a tool is no JSON object";
	if (!json_find(tool, "function", function))
		*function = tool;
	if (json_kind(*function) != JSON_OBJECT || !json_find(*function, "name", name) ||
	    json_kind(*name) != JSON_STRING)
		return "a tool has no name";
	if (name->length < 3 || name->length > 66 || memchr(name->at, '\\', name->length))
		return "a tool's name is empty, longer than 64 bytes or has escapes";
	return NULL;
}

int form_names_check(const struct tool *tools, uint32_t tool_count, const char **reason)
{
	struct json function, name;
	*reason = NULL;
	for (uint32_t i = 0; i < tool_count && !*reason; i++)
		*reason = tool_name(tools[i].json, &function, &name);
	return *reason ? -ERR_BAD_ARG : 0;
}

/* The arguments of a tool: an object, whatever else its schema would allow. */
static int arguments(struct maker *m, struct json function, uint32_t *at)
{
	static const char none[] = "{\"type\":\"object\",\"additionalProperties\":false}";
	struct json parameters = {none, sizeof none - 1}, type;
	json_find(function, "parameters", &parameters);
	if (json_kind(parameters) == JSON_NULL)
		parameters = (struct json){none, sizeof none - 1};
	if (json_kind(parameters) != JSON_OBJECT)
		return form_fail(m, -ERR_BAD_ARG, "a tool's parameters are no schema, which is an object");
	if (json_find(parameters, "type", &type) &&
	    (json_kind(type) != JSON_STRING || !json_equals(type, "object", 6)))
		return form_fail(m, -ERR_UNSUPPORTED, "a tool's parameters do not have the type object");
	if (parameters.length > FORM_SCHEMA_BYTES_MAX)
		return form_fail(m, -ERR_TOO_BIG, "the schema has more than 262144 bytes");
	m->root = parameters;
	m->refs = 0;
	TRY(form_schema(m, parameters, at));
	if (!json_find(parameters, "type", &type) && m->f->node[*at].kind != NODE_OBJECT)
		return form_fail(m, -ERR_UNSUPPORTED, "a tool's parameters do not have the type object");
	return 0;
}

/* Opening with the name, arguments, end. */
static int tool_node(struct maker *m, const struct call_form *call, struct text tool, uint32_t *at)
{
	struct form *f = m->f;
	struct json function, name;
	uint32_t child[3];
	const char *wrong = tool_name(tool, &function, &name);
	if (wrong)
		return form_fail(m, -ERR_BAD_ARG, wrong);
	const size_t from = f->text.length;
	const uint32_t first = f->alternatives;
	TRY(json_write_raw(call->open, strlen(call->open), &f->text));
	TRY(json_write_raw(name.at + 1, name.length - 2, &f->text));
	TRY(json_write_raw(call->middle, strlen(call->middle), &f->text));
	TRY(form_add_alternative(m, from));
	TRY(form_add_choice(m, first, &child[0]));
	TRY(arguments(m, function, &child[1]));
	if (call->close[0])
		TRY(literal(m, call->close, strlen(call->close), &child[2]));
	const uint32_t count = call->close[0] ? 3 : 2, children = f->children;
	for (uint32_t i = 0; i < count; i++)
		TRY(form_add_child(m, child[i]));
	return form_add_node(m, (struct node){.kind = NODE_SEQUENCE, .first = children, .count = count}, at);
}

static int names_differ(struct maker *m, const struct tool *tools, uint32_t count)
{
	struct json function, a, b;
	for (uint32_t i = 0; i < count; i++)
		for (uint32_t k = 0; k < i; k++)
			if (!tool_name(tools[i].json, &function, &a) &&
			    !tool_name(tools[k].json, &function, &b) && json_same(a, b))
				return form_fail(m, -ERR_BAD_ARG, "two tools have one name");
	return 0;
}

int form_tools(struct maker *m, const struct template *template, const struct tool *tools,
	       uint32_t count, uint32_t *at)
{
	uint32_t child[FORM_TOOLS_MAX];
	const struct call_form *call = call_form(template);
	for (uint32_t i = 0; i < count; i++)
		TRY(tool_node(m, call, tools[i].json, &child[i]));
	TRY(names_differ(m, tools, count));
	return form_add_any(m, child, count, at);
}
