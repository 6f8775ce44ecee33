/*
 * ChatML, in the form of Qwen's templates: "# Tools" in the system message, <tool_call> blocks in the
 * assistant's, <tool_response> blocks in a user's. The templates differ in their default system
 * prompt. Qwen3's own drops the thoughts of earlier turns when it renders a conversation anew; here
 * nothing is rendered anew, and what was thought stays.
 */
#include "runtime/template_inside.h"

#include <string.h>

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

static int chatml_begin(const struct template *template, const struct message *system,
			const struct tool *tools, uint32_t tool_count, bool *begun,
			struct rendering *out)
{
	struct text content = {NULL, 0};
	*begun = false;
	if (system)
		content = system->content;
	else if (template->system)
		content = (struct text){template->system, strlen(template->system)};
	else if (tool_count == 0)
		return 0;
	TRY(rendering_own(out, "<|im_start|>system\n"));
	TRY(rendering_plain(out, content));
	if (tool_count == 0)
		return rendering_own(out, "<|im_end|>\n");
	if (system || template->system)
		TRY(rendering_own(out, "\n\n"));
	TRY(rendering_own(out, tools_head));
	for (uint32_t i = 0; i < tool_count; i++) {
		TRY(rendering_own(out, "\n"));
		TRY(rendering_object(out, tools[i].json));
	}
	return rendering_own(out, tools_foot);
}

static int chatml_assistant(const struct message *m, struct rendering *out)
{
	TRY(rendering_own(out, "<|im_start|>assistant"));
	if (m->content.length > 0 || m->call_count == 0) {
		TRY(rendering_own(out, "\n"));
		TRY(rendering_plain(out, m->content));
	}
	for (uint32_t i = 0; i < m->call_count; i++)
		TRY(rendering_call_block(out, &m->calls[i]));
	return rendering_own(out, "<|im_end|>\n");
}

static int chatml_message(const struct template *template, const struct message *m, bool begun,
			  bool results, struct rendering *out)
{
	(void)template;
	(void)begun;
	if (m->role == ROLE_ASSISTANT)
		return chatml_assistant(m, out);
	if (m->role == ROLE_TOOL) {
		if (!results)
			TRY(rendering_own(out, "<|im_start|>user"));
		return rendering_result_block(out, m->content);
	}
	TRY(rendering_own(out, m->role == ROLE_SYSTEM ? "<|im_start|>system\n" : "<|im_start|>user\n"));
	TRY(rendering_plain(out, m->content));
	return rendering_own(out, "<|im_end|>\n");
}

const struct family family_chatml = {
	.control = {"<|im_start|>", "<|im_end|>"},
	.end = "<|im_end|>",
	.line = "\n",
	.results_end = "<|im_end|>\n",
	.begin = chatml_begin,
	.message = chatml_message,
	.open = "<|im_start|>assistant\n",
};
