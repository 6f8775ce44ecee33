/*
 * Mistral's, in the form of Mistral-Nemo. The original puts tools and system prompt before the last
 * user's message, wherever that is, and so changes what stood; here they stand at the head, before
 * the first, and stay.
 */
#include "runtime/template_inside.h"

#include <stdlib.h>
#include <string.h>

enum { ID_CHARACTERS = 9 }; /* of a call's id, as the model writes them */

static int mistral_begin(const struct template *template, const struct message *system,
			 const struct tool *tools, uint32_t tool_count, bool *begun,
			 struct rendering *out)
{
	(void)template;
	TRY(rendering_own(out, "<s>"));
	for (uint32_t i = 0; i < tool_count; i++) {
		TRY(rendering_own(out, i == 0 ? "[AVAILABLE_TOOLS][" : ", "));
		TRY(rendering_object(out, tools[i].json));
	}
	if (tool_count > 0)
		TRY(rendering_own(out, "][/AVAILABLE_TOOLS]"));
	*begun = system != NULL;
	if (!system)
		return 0;
	TRY(rendering_own(out, "[INST]"));
	TRY(rendering_plain(out, system->content));
	return rendering_own(out, "\n\n");
}

/* An id as the model knows them: nine letters and digits. Of a longer one the last nine. */
static size_t short_id(struct text id, char *to)
{
	size_t n = 0;
	for (size_t i = id.length; i > 0 && n < ID_CHARACTERS; i--) {
		const char c = id.at[i - 1];
		if ((c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'))
			to[n++] = c;
	}
	for (size_t i = 0; i < n / 2; i++) {
		const char c = to[i];
		to[i] = to[n - 1 - i];
		to[n - 1 - i] = c;
	}
	return n;
}

static int mistral_call(const struct tool_call *call, bool first, struct rendering *out)
{
	struct json_out text = {0};
	char id[ID_CHARACTERS];
	const size_t n = short_id(call->id, id);
	int code = first ? 0 : json_write_raw(", ", 2, &text);
	if (code == 0)
		code = call_json(call, "arguments", true, &text);
	if (code == 0)
		code = json_write_raw(", \"id\": \"", 9, &text);
	if (code == 0)
		code = json_write_raw(id, n, &text);
	if (code == 0)
		code = json_write_raw("\"}", 2, &text);
	if (code == 0)
		code = rendering_plain(out, (struct text){text.bytes, text.length});
	free(text.bytes);
	return code;
}

static int mistral_message(const struct template *template, const struct message *m, bool begun,
			   bool results, struct rendering *out)
{
	char id[ID_CHARACTERS];
	(void)template;
	(void)results;
	switch (m->role) {
	case ROLE_ASSISTANT:
		TRY(rendering_plain(out, m->content));
		if (m->call_count > 0)
			TRY(rendering_own(out, TEMPLATE_CALLS_MARK "["));
		for (uint32_t i = 0; i < m->call_count; i++)
			TRY(mistral_call(&m->calls[i], i == 0, out));
		return rendering_own(out, m->call_count > 0 ? "]</s>" : "</s>");
	case ROLE_TOOL:
		TRY(rendering_own(out, "[TOOL_RESULTS]{\"content\": "));
		TRY(rendering_plain(out, m->content));
		TRY(rendering_own(out, ", \"call_id\": \""));
		TRY(rendering_plain(out, (struct text){id, short_id(m->call_id, id)}));
		return rendering_own(out, "\"}[/TOOL_RESULTS]");
	default:
		/* It has no later system messages: one is said as a user. */
		if (!begun)
			TRY(rendering_own(out, "[INST]"));
		TRY(rendering_plain(out, m->content));
		return rendering_own(out, "[/INST]");
	}
}

const struct family family_mistral = {
	.control = {"<s>", "</s>", "[INST]", "[/INST]"},
	.end = "</s>",
	.line = "",
	.head_end = "[/INST]",
	.begin = mistral_begin,
	.message = mistral_message,
	.open = "",
};
