/*
 * Gemma's. Its templates know neither tools nor (Gemma 2) a system prompt: a system prompt stands
 * before the first user's text, as Gemma 3's has it; offered tools are not shown; calls and results,
 * where a client has them, are written as ChatML's.
 */
#include "runtime/template_inside.h"

#include <string.h>

static int gemma_begin(const struct template *template, const struct message *system,
		       const struct tool *tools, uint32_t tool_count, bool *begun,
		       struct rendering *out)
{
	(void)template;
	for (uint32_t i = 0; i < tool_count; i++) {
		struct json value;
		TRY(object_check(tools[i].json, &value));
	}
	TRY(rendering_own(out, "<bos>"));
	*begun = system != NULL;
	if (!system)
		return 0;
	TRY(rendering_own(out, "<start_of_turn>user\n"));
	TRY(rendering_plain(out, system->content));
	return rendering_own(out, "\n\n");
}

static int gemma_message(const struct template *template, const struct message *m, bool begun,
			 bool results, struct rendering *out)
{
	(void)template;
	if (m->role == ROLE_TOOL) {
		if (!results)
			TRY(rendering_own(out, "<start_of_turn>user"));
		return rendering_result_block(out, m->content);
	}
	if (!begun)
		TRY(rendering_own(out, m->role == ROLE_ASSISTANT ? "<start_of_turn>model\n" :
								    "<start_of_turn>user\n"));
	TRY(rendering_plain(out, text_strip(m->content)));
	for (uint32_t i = 0; i < m->call_count; i++)
		TRY(rendering_call_block(out, &m->calls[i]));
	return rendering_own(out, "<end_of_turn>\n");
}

const struct family family_gemma = {
	.control = {"<bos>", "<start_of_turn>", "<end_of_turn>"},
	.end = "<end_of_turn>",
	.line = "\n",
	.results_end = "<end_of_turn>\n",
	.head_end = "<end_of_turn>\n",
	.begin = gemma_begin,
	.message = gemma_message,
	.open = "<start_of_turn>model\n",
};
