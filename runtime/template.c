/*
 * The list of templates, and what all have in common: segments, and what the history still owes
 * before the next message. The texts are those that the models were trained on.
 */
#include "runtime/template_inside.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/tokenizer_inside.h"
#include "runtime/unicode.h"

_Static_assert(JSON_DEPTH_MAX == 64, "as the reasons say");

#define SYSTEM_SMOLLM "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
#define SYSTEM_QWEN25 "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."
#define SYSTEM_QWEN2 "You are a helpful assistant."

static const struct template templates[] = {
	/* SmolLM2's own template knows no tools; with tools this is Qwen2.5's form. */
	{"smollm2", &family_chatml, SYSTEM_SMOLLM, false},
	{"chatml", &family_chatml, NULL, false},
	{"qwen2", &family_chatml, SYSTEM_QWEN2, false},
	{"qwen2.5", &family_chatml, SYSTEM_QWEN25, false},
	{"qwen3", &family_chatml, NULL, false},
	{"llama-3", &family_llama, NULL, false},
	{"llama-3.1", &family_llama, NULL, true},
	{"mistral", &family_mistral, NULL, false},
	{"gemma", &family_gemma, NULL, false},
};

/* How a model's own template is told: by a text in it; the first row that fits counts. */
static const struct {
	const char *text, *also, *name;
} told[] = {
	{"<|im_start|>", SYSTEM_SMOLLM, "smollm2"},
	{"<|im_start|>", SYSTEM_QWEN25, "qwen2.5"},
	{"<|im_start|>", "<|im_start|>system\\n" SYSTEM_QWEN2 "<|im_end|>", "qwen2"},
	{"<|im_start|>", "</think>", "qwen3"},
	{"<|im_start|>", "<|im_end|>", "chatml"},
	{"<|start_header_id|>", "Cutting Knowledge Date", "llama-3.1"},
	{"<|start_header_id|>", "<|eot_id|>", "llama-3"},
	{"[AVAILABLE_TOOLS]", "[INST]\"", "mistral"},
	{"<start_of_turn>", "<end_of_turn>", "gemma"},
};

void rendering_init(struct rendering *rendering)
{
	memset(rendering, 0, sizeof *rendering);
}

void rendering_clear(struct rendering *rendering)
{
	rendering->length = 0;
	rendering->count = 0;
	rendering->why = NULL;
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

int rendering_own(struct rendering *out, const char *text)
{
	return add(out, text, strlen(text), true);
}

int rendering_plain(struct rendering *out, struct text text)
{
	return add(out, text.at, text.length, false);
}

/* What Python takes for white space: White_Space, and four separators of ASCII. */
static bool python_space(uint32_t c)
{
	return (c >= 0x1c && c <= 0x1f) || unicode_kind(c) == UNICODE_SPACE;
}

struct text text_strip(struct text text)
{
	const uint8_t *at = (const uint8_t *)text.at;
	size_t from = 0, end = text.length;
	uint32_t c;
	while (from < end) {
		const size_t n = character_read(at + from, end - from, &c);
		if (!python_space(c))
			break;
		from += n;
	}
	while (end > from) {
		size_t last = end - 1;
		while (last > from && end - last < 4 && (at[last] & 0xc0) == 0x80)
			last--;
		if (character_read(at + last, end - last, &c) != end - last || !python_space(c))
			break;
		end = last;
	}
	return (struct text){text.at + from, end - from};
}

int object_check(struct text text, struct json *value)
{
	const int code = json_check(text.at, text.length, value);
	if (code == 0)
		return json_kind(*value) == JSON_OBJECT ? 0 : -ERR_BAD_ARG;
	return code == -ERR_OUT_OF_RANGE ? -ERR_BAD_ARG : code;
}

int rendering_object(struct rendering *out, struct text object)
{
	struct json value;
	struct json_out text = {0};
	TRY(object_check(object, &value));
	int code = json_write(value, &text);
	if (code == 0)
		code = add(out, text.bytes, text.length, false);
	free(text.bytes);
	return code;
}

int call_json(const struct tool_call *call, const char *key, bool more, struct json_out *text)
{
	struct json arguments;
	TRY(object_check(call->arguments, &arguments));
	TRY(json_write_raw("{\"name\": ", 9, text));
	TRY(json_write_string(call->name.at, call->name.length, text));
	TRY(json_write_raw(", \"", 3, text));
	TRY(json_write_raw(key, strlen(key), text));
	TRY(json_write_raw("\": ", 3, text));
	TRY(json_write(arguments, text));
	return more ? 0 : json_write_raw("}", 1, text);
}

int rendering_call_block(struct rendering *out, const struct tool_call *call)
{
	struct json_out text = {0};
	int code = call_json(call, "arguments", false, &text);
	if (code == 0)
		code = rendering_own(out, "\n" TEMPLATE_CALL_OPEN "\n");
	if (code == 0)
		code = add(out, text.bytes, text.length, false);
	if (code == 0)
		code = rendering_own(out, "\n" TEMPLATE_CALL_CLOSE);
	free(text.bytes);
	return code;
}

int rendering_result_block(struct rendering *out, struct text content)
{
	TRY(rendering_own(out, "\n<tool_response>\n"));
	TRY(rendering_plain(out, content));
	return rendering_own(out, "\n</tool_response>");
}

/* What must be rendered before a message: it may go on with what is open. */
static int settle(const struct family *family, struct template_state *state, bool results, bool user,
		  struct rendering *out)
{
	if (state->open) {
		TRY(rendering_own(out, family->end));
		state->line_open = true;
	}
	/* A state may come from another daemon: what this family never leaves open, it need not close. */
	if (state->calls_open && !results && family->results_end)
		TRY(rendering_own(out, family->results_end));
	if (state->line_open)
		TRY(rendering_own(out, family->line));
	if (state->head_open && !user && family->head_end)
		TRY(rendering_own(out, family->head_end));
	state->open = state->line_open = false;
	state->head_open = state->head_open && user;
	state->calls_open = state->calls_open && results;
	return 0;
}

static int one_message(const struct template *template, struct template_state *state,
		       const struct message *m, struct rendering *out)
{
	const struct family *family = template->family;
	const bool results = m->role == ROLE_TOOL;
	TRY(settle(family, state, results, m->role == ROLE_USER, out));
	const int code = family->message(template, m, state->head_open, state->calls_open, out);
	if (code == -ERR_BAD_ARG && !out->why)
		out->why = "a call's arguments are no JSON object, or nested deeper than 64";
	TRY(code);
	state->message_count++;
	state->last_role = (uint8_t)m->role;
	state->calls_open = results && family->results_end;
	state->head_open = false;
	return 0;
}

int template_begin(const struct template *template, struct template_state *state,
		   const struct message *system, const struct tool *tools, uint32_t tool_count,
		   struct rendering *out)
{
	size_t length = out->length, count = out->count;
	bool begun = false;
	int code = template->family->begin(template, system, tools, tool_count, &begun, out);
	if (code != 0) {
		if (code == -ERR_BAD_ARG)
			out->why = "a tool is no JSON object, or nested deeper than 64";
		out->length = length;
		out->count = count;
		return code;
	}
	memset(state, 0, sizeof *state);
	state->tools = tool_count > 0;
	state->head_open = begun;
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
	if (state->open)
		return 0;
	size_t length = out->length, segments = out->count;
	struct template_state after = *state;
	int code = settle(template->family, &after, false, false, out);
	if (code == 0)
		code = rendering_own(out, template->family->open);
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
	CHECK(state->open);
	state->open = !end_mark_sampled;
	state->line_open = end_mark_sampled && template->family->line[0];
}

bool template_is_end_mark(const struct template *template, const struct tokenizer *tokenizer,
			  uint32_t token)
{
	const struct family *family = template->family;
	return token == tokenizer_find(tokenizer, family->end) ||
	       (family->end_other && token == tokenizer_find(tokenizer, family->end_other));
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

const char *template_missing(const struct template *template, const struct model *model)
{
	const struct family *family = template->family;
	for (unsigned i = 0; i < sizeof family->control / sizeof family->control[0]; i++)
		if (family->control[i] && !has_control(&model->vocabulary, family->control[i]))
			return family->control[i];
	return NULL;
}

int template_of_model(const struct model *model, const struct template **out, char *reason)
{
	const char *own = model->vocabulary.chat_template;
	*out = NULL;
	if (!own) {
		snprintf(reason, MODEL_REASON_MAX, "tokenizer.chat_template: the file has none");
		return -ERR_UNSUPPORTED;
	}
	for (unsigned i = 0; i < sizeof told / sizeof told[0] && !*out; i++)
		if (strstr(own, told[i].text) && strstr(own, told[i].also))
			CHECK(template_find(told[i].name, out) == 0);
	if (!*out) {
		snprintf(reason, MODEL_REASON_MAX, "tokenizer.chat_template: it is none of those that are known");
		return -ERR_UNSUPPORTED;
	}
	const char *missing = template_missing(*out, model);
	if (missing) {
		snprintf(reason, MODEL_REASON_MAX,
			 "tokenizer.ggml.tokens: %s is no control token, the template \"%s\" needs it", missing,
			 (*out)->name);
		*out = NULL;
		return -ERR_UNSUPPORTED;
	}
	return 0;
}

const char *template_names(unsigned index)
{
	return index < sizeof templates / sizeof templates[0] ? templates[index].name : NULL;
}
