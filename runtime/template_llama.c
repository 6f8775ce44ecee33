/*
 * Llama 3 and 3.1: headers around roles; tools stand before the text of the first user's message,
 * whose turn the head of a session begins for that; a result is a JSON string of the role ipython.
 */
#include "runtime/template_inside.h"

#include <stdlib.h>
#include <string.h>

#define HEADER(role) "<|start_header_id|>" role "<|end_header_id|>\n\n"
enum { INDENT = 4 };

static const char tools_head[] =
	"Given the following functions, please respond with a JSON for a function call with its proper "
	"arguments that best answers the given prompt.\n\n"
	"Respond in the format {\"name\": function name, \"parameters\": dictionary of argument name and "
	"its value}.Do not use variables.\n\n";
/* The dates are those that the model's template has when it is given none. */
static const char dates[] = "Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n";

static int line(struct json_out *to, unsigned depth)
{
	TRY(json_write_raw("\n", 1, to));
	for (unsigned i = 0; i < depth; i++)
		TRY(json_write_raw("    ", INDENT, to));
	return 0;
}

/* What json_write wrote, as Python's json.dumps(indent=4) writes it. */
static int indent(const struct json_out *from, struct json_out *to)
{
	unsigned depth = 0;
	bool string = false;
	for (size_t i = 0; i < from->length; i++) {
		const char c = from->bytes[i];
		const bool opens = !string && (c == '{' || c == '[');
		if (!string && (c == '}' || c == ']'))
			TRY(line(to, --depth));
		TRY(json_write_raw(&c, 1, to));
		if (string && c == '\\') {
			i++; /* What is escaped ends no string. */
			TRY(json_write_raw(from->bytes + i, 1, to));
		} else if (c == '"') {
			string = !string;
		} else if (opens && (from->bytes[i + 1] == '}' || from->bytes[i + 1] == ']')) {
			i++; /* An empty one stays on its line. */
			TRY(json_write_raw(from->bytes + i, 1, to));
		} else if (opens) {
			TRY(line(to, ++depth));
		} else if (!string && c == ',') {
			i++; /* The space after it. */
			TRY(line(to, depth));
		}
	}
	return 0;
}

static int llama_tool(const struct tool *tool, struct rendering *out)
{
	struct json value;
	struct json_out flat = {0}, text = {0};
	TRY(object_check(tool->json, &value));
	int code = json_write(value, &flat);
	if (code == 0)
		code = indent(&flat, &text);
	if (code == 0)
		code = rendering_plain(out, (struct text){text.bytes, text.length});
	free(flat.bytes);
	free(text.bytes);
	return code == 0 ? rendering_own(out, "\n\n") : code;
}

static int llama_begin(const struct template *template, const struct message *system,
		       const struct tool *tools, uint32_t tool_count, bool *begun,
		       struct rendering *out)
{
	TRY(rendering_own(out, "<|begin_of_text|>"));
	if (template->dates || system) {
		TRY(rendering_own(out, HEADER("system")));
		if (tool_count > 0 && template->dates)
			TRY(rendering_own(out, "Environment: ipython\n"));
		if (template->dates)
			TRY(rendering_own(out, dates));
		if (system)
			TRY(rendering_plain(out, text_strip(system->content)));
		TRY(rendering_own(out, "<|eot_id|>"));
	}
	*begun = tool_count > 0;
	if (tool_count == 0)
		return 0;
	TRY(rendering_own(out, HEADER("user")));
	TRY(rendering_own(out, tools_head));
	for (uint32_t i = 0; i < tool_count; i++)
		TRY(llama_tool(&tools[i], out));
	return 0;
}

static int llama_call(const struct tool_call *call, struct rendering *out)
{
	struct json_out text = {0};
	int code = call_json(call, "parameters", false, &text);
	if (code == 0)
		code = rendering_plain(out, (struct text){text.bytes, text.length});
	free(text.bytes);
	return code;
}

static int llama_result(struct text content, struct rendering *out)
{
	struct json_out text = {0};
	int code = json_write_string(content.at, content.length, &text);
	if (code == 0)
		code = rendering_plain(out, (struct text){text.bytes, text.length});
	free(text.bytes);
	return code;
}

static int llama_message(const struct template *template, const struct message *m, bool begun,
			 bool results, struct rendering *out)
{
	static const char *const header[] = {HEADER("system"), HEADER("user"), HEADER("assistant"),
					     HEADER("ipython")};
	(void)template;
	(void)results;
	/* As the original: one call a message, and no text beside it. */
	if (m->call_count > 1) {
		out->why = "this model's template writes one call a message: send each call as a message of its own";
		return -ERR_BAD_ARG;
	}
	if (!begun)
		TRY(rendering_own(out, header[m->role]));
	if (m->role == ROLE_TOOL)
		TRY(llama_result(m->content, out));
	else if (m->call_count > 0)
		TRY(llama_call(&m->calls[0], out));
	else
		TRY(rendering_plain(out, text_strip(m->content)));
	return rendering_own(out, "<|eot_id|>");
}

const struct family family_llama = {
	.control = {"<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"},
	.end = "<|eot_id|>",
	.end_other = "<|eom_id|>",
	.line = "",
	.head_end = "<|eot_id|>",
	.begin = llama_begin,
	.message = llama_message,
	.open = HEADER("assistant"),
};
