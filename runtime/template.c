/*
 * ChatML, in the form of Qwen2.5's template: "# Tools" in the system message, <tool_call> blocks in
 * the assistant's, <tool_response> blocks in a user's. The templates differ in their default system
 * prompt. The texts are those that the models were trained on.
 */
#include "runtime/template_inside.h"

#include <stdlib.h>
#include <string.h>

static const struct template templates[] = {
	/* The model's own template knows no tools; with tools this is Qwen2.5's form. */
	{"smollm2", "You are a helpful AI assistant named SmolLM, trained by Hugging Face"},
	{"chatml", NULL},
};

static const char tools_head[] =
	"# Tools\n\n"
	"You may call one or more functions to assist with the user query.\n\n"
	"You are provided with function signatures within <tools></tools> XML tags:\n"
	"<tools>";
static const char tools_foot[] =
	"\n</tools>\n\n"
	"For each function call, return a json object with function name and arguments within "
	"<tool_call></tool_call> XML tags:\n"
	"<tool_call>\n"
	"{\"name\": <function-name>, \"arguments\": <args-json-object>}\n"
	"</tool_call><|im_end|>\n";

void rendering_init(struct rendering *rendering)
{
	memset(rendering, 0, sizeof *rendering);
}

void rendering_clear(struct rendering *rendering)
{
	rendering->length = 0;
	rendering->count = 0;
}

void rendering_free(struct rendering *rendering)
{
	free(rendering->bytes);
	free(rendering->segment);
	rendering_init(rendering);
}

static int rendering_room(struct rendering *out, size_t length)
{
	if (length > RENDERING_BYTES_MAX - out->length)
		return -ERR_TOO_BIG;
	if (out->length + length > out->capacity) {
		size_t capacity = out->capacity ? out->capacity : 1024;
		while (capacity < out->length + length)
			capacity *= 2;
		char *bytes = realloc(out->bytes, capacity);
		if (!bytes)
			return -ERR_MEMORY;
		out->bytes = bytes;
		out->capacity = capacity;
	}
	if (out->count == out->segment_capacity) {
		size_t capacity = out->segment_capacity ? out->segment_capacity * 2 : 32;
		struct segment *segment = realloc(out->segment, capacity * sizeof *segment);
		if (!segment)
			return -ERR_MEMORY;
		out->segment = segment;
		out->segment_capacity = capacity;
	}
	return 0;
}

/* One segment. Neighbours are never joined: where one ends must not depend on how a conversation
   was cut into calls, since each is tokenised by itself. */
static int add(struct rendering *out, const char *bytes, size_t length, bool special)
{
	if (length == 0)
		return 0;
	TRY(rendering_room(out, length));
	memcpy(out->bytes + out->length, bytes, length);
	out->segment[out->count++] = (struct segment){out->length, length, special};
	out->length += length;
	return 0;
}

/* Text of our own. */
static int own(struct rendering *out, const char *text)
{
	return add(out, text, strlen(text), true);
}

static int plain(struct rendering *out, struct text text)
{
	return add(out, text.at, text.length, false);
}

static int one_tool(const struct tool *tool, struct rendering *out)
{
	struct json value;
	struct json_out text = {0};
	TRY(json_check(tool->json.at, tool->json.length, &value));
	if (json_kind(value) != JSON_OBJECT)
		return -ERR_BAD_ARG;
	int code = json_write(value, &text);
	if (code == 0)
		code = own(out, "\n");
	if (code == 0)
		code = add(out, text.bytes, text.length, false);
	free(text.bytes);
	return code;
}

static int begin(const struct template *template, const struct message *system,
		 const struct tool *tools, uint32_t tool_count, struct rendering *out)
{
	struct text content = {NULL, 0};
	if (system)
		content = system->content;
	else if (template->system)
		content = (struct text){template->system, strlen(template->system)};
	else if (tool_count == 0)
		return 0;
	TRY(own(out, "<|im_start|>system\n"));
	TRY(plain(out, content));
	if (tool_count == 0)
		return own(out, "<|im_end|>\n");
	if (system || template->system)
		TRY(own(out, "\n\n"));
	TRY(own(out, tools_head));
	for (uint32_t i = 0; i < tool_count; i++)
		TRY(one_tool(&tools[i], out));
	return own(out, tools_foot);
}

/* {"name": …, "arguments": …} as one plain segment between the marks. */
static int one_call(const struct template *template, const struct tool_call *call,
		    struct rendering *out)
{
	struct json arguments;
	struct json_out text = {0};
	(void)template;
	TRY(json_check(call->arguments.at, call->arguments.length, &arguments));
	if (json_kind(arguments) != JSON_OBJECT)
		return -ERR_BAD_ARG;
	int code = json_write_raw("{\"name\": ", 9, &text);
	if (code == 0)
		code = json_write_string(call->name.at, call->name.length, &text);
	if (code == 0)
		code = json_write_raw(", \"arguments\": ", 15, &text);
	if (code == 0)
		code = json_write(arguments, &text);
	if (code == 0)
		code = json_write_raw("}", 1, &text);
	if (code == 0)
		code = own(out, "\n" TEMPLATE_CALL_OPEN "\n");
	if (code == 0)
		code = add(out, text.bytes, text.length, false);
	if (code == 0)
		code = own(out, "\n" TEMPLATE_CALL_CLOSE);
	free(text.bytes);
	return code;
}

static int one_assistant(const struct template *template, const struct message *m,
			 struct rendering *out)
{
	TRY(own(out, "<|im_start|>assistant"));
	if (m->content.length > 0 || m->call_count == 0) {
		TRY(own(out, "\n"));
		TRY(plain(out, m->content));
	}
	for (uint32_t i = 0; i < m->call_count; i++)
		TRY(one_call(template, &m->calls[i], out));
	return own(out, "<|im_end|>\n");
}

/* What must be rendered before anything but (results) a further result of a tool. */
static int settle(struct template_state *state, bool results, struct rendering *out)
{
	if (state->open || (state->calls_open && !results))
		TRY(own(out, "<|im_end|>\n"));
	if (state->line_open)
		TRY(own(out, "\n"));
	state->open = state->line_open = false;
	state->calls_open = state->calls_open && results;
	return 0;
}

static int one_message(const struct template *template, struct template_state *state,
		       const struct message *m, struct rendering *out)
{
	TRY(settle(state, m->role == ROLE_TOOL, out));
	state->message_count++;
	state->last_role = (uint8_t)m->role;
	if (m->role == ROLE_ASSISTANT)
		return one_assistant(template, m, out);
	if (m->role == ROLE_TOOL) {
		if (!state->calls_open)
			TRY(own(out, "<|im_start|>user"));
		state->calls_open = true;
		TRY(own(out, "\n<tool_response>\n"));
		TRY(plain(out, m->content));
		return own(out, "\n</tool_response>");
	}
	TRY(own(out, m->role == ROLE_SYSTEM ? "<|im_start|>system\n" : "<|im_start|>user\n"));
	TRY(plain(out, m->content));
	return own(out, "<|im_end|>\n");
}

int template_begin(const struct template *template, struct template_state *state,
		   const struct message *system, const struct tool *tools, uint32_t tool_count,
		   struct rendering *out)
{
	size_t length = out->length, count = out->count;
	int code = begin(template, system, tools, tool_count, out);
	if (code != 0) {
		out->length = length;
		out->count = count;
		return code;
	}
	memset(state, 0, sizeof *state);
	state->tools = tool_count > 0;
	return 0;
}

int template_append(const struct template *template, struct template_state *state,
		    const struct message *messages, uint32_t count, struct rendering *out)
{
	size_t length = out->length, segments = out->count;
	struct template_state after = *state;
	int code = 0;
	for (uint32_t i = 0; i < count && code == 0; i++)
		code = one_message(template, &after, &messages[i], out);
	if (code != 0) {
		out->length = length;
		out->count = segments;
		return code;
	}
	*state = after;
	return 0;
}

int template_open_turn(const struct template *template, struct template_state *state,
		       struct rendering *out)
{
	(void)template;
	if (state->open)
		return 0;
	size_t length = out->length, segments = out->count;
	struct template_state after = *state;
	int code = settle(&after, false, out);
	if (code == 0)
		code = own(out, "<|im_start|>assistant\n");
	if (code != 0) {
		out->length = length;
		out->count = segments;
		return code;
	}
	after.open = true;
	after.message_count++;
	after.last_role = ROLE_ASSISTANT;
	*state = after;
	return 0;
}

void template_turn_over(const struct template *template, struct template_state *state,
			bool end_mark_sampled)
{
	(void)template;
	CHECK(state->open);
	state->open = !end_mark_sampled;
	state->line_open = end_mark_sampled;
}

int template_find(const char *name, const struct template **out)
{
	for (unsigned i = 0; i < sizeof templates / sizeof templates[0]; i++) {
		*out = &templates[i];
		if (!strcmp(templates[i].name, name))
			return 0;
	}
	*out = NULL;
	return -ERR_UNSUPPORTED;
}

const char *template_name(const struct template *template)
{
	return template->name;
}

static bool has_control(const struct vocabulary *v, const char *text)
{
	size_t length = strlen(text);
	for (uint32_t i = 0; i < v->count; i++)
		if (v->kind[i] == TOKEN_CONTROL && v->length[i] == length &&
		    !memcmp(v->text[i], text, length))
			return true;
	return false;
}

int template_of_model(const struct model *model, const struct template **out, char *reason)
{
	const struct vocabulary *v = &model->vocabulary;
	const char *own_template = v->chat_template;
	const char *why = NULL;
	*out = NULL;
	if (!own_template)
		why = "tokenizer.chat_template: the file has none; name a template";
	else if (!strstr(own_template, "<|im_start|>"))
		why = "tokenizer.chat_template: it is not ChatML, others are not supported";
	else if (!has_control(v, "<|im_start|>") || !has_control(v, "<|im_end|>"))
		why = "tokenizer.ggml.tokens: the control tokens of ChatML are missing";
	if (why) {
		memcpy(reason, why, strlen(why) + 1);
		return -ERR_UNSUPPORTED;
	}
	return template_find(strstr(own_template, templates[0].system) ? "smollm2" : "chatml", out);
}
