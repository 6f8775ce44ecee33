/*
 * Conversations as the text the model was trained on, append-only: a message's rendering adds
 * segments and never changes what was rendered before.
 *
 * A rendering is a list of segments: text of our own, in which control tokens are meant, and text
 * of users and tools, in which they are not. The two are tokenised apart (tokenizer_encode with
 * special true and false), so that no user text can ever become a control token.
 */
#ifndef HOLDFAST_RUNTIME_TEMPLATE_H
#define HOLDFAST_RUNTIME_TEMPLATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "runtime/tokenizer.h"

enum role { ROLE_SYSTEM, ROLE_USER, ROLE_ASSISTANT, ROLE_TOOL };

/* Strings are borrowed, length beside, not NUL-terminated. */
struct text {
	const char *at;
	size_t length;
};

struct tool_call {
	struct text id, name;
	struct text arguments; /* JSON text */
};

struct message {
	enum role role;
	struct text content;
	const struct tool_call *calls; /* ROLE_ASSISTANT */
	uint32_t call_count;
	struct text call_id;           /* ROLE_TOOL: which call this answers; may be empty */
	struct text name;              /* ROLE_TOOL: the tool's name; may be empty */
};

struct tool {
	struct text json; /* the whole tool object as JSON text, compact or not: {"type":"function",…} */
};

/* What a segment is made of grows in one buffer; segments index into it. */
struct segment {
	size_t at, length;
	bool special;
};
struct rendering {
	char *bytes;
	size_t length, capacity;
	struct segment *segment;
	size_t count, segment_capacity;
	const char *why; /* the last -ERR_BAD_ARG: what is wrong; static text */
};
void rendering_init(struct rendering *rendering);
void rendering_clear(struct rendering *rendering); /* keeps the memory */
void rendering_free(struct rendering *rendering);

struct template; /* static data */

enum { RENDERING_BYTES_MAX = 256 << 20 };

/* By name ("smollm2", "qwen2.5", "llama-3.1"), or from what the model's own template looks like.
   -ERR_UNSUPPORTED with a reason. */
int template_find(const char *name, const struct template **out);
int template_of_model(const struct model *model, const struct template **out, char *reason);
const char *template_name(const struct template *template);
/* The names in order; NULL after the last. */
const char *template_names(unsigned index);
/* A control token that it writes and the model's vocabulary does not have; NULL: there is none. */
const char *template_missing(const struct template *template, const struct model *model);

/* Where a conversation stands, for a template that must know. Zero at the start of a session. */
struct template_state {
	uint32_t message_count;
	uint8_t last_role; /* enum role of the last message, when message_count > 0 */
	bool open;         /* the assistant's turn is open: its end mark has not been rendered */
	bool tools;        /* tools were offered */
	bool line_open;    /* its end mark was sampled; the line's end after it is not rendered yet */
	bool calls_open;   /* tool results are being gathered in one block */
	bool head_open;    /* the head began the first user's turn, with a system prompt or tools */
};

/* Appends the head of a session: system prompt and tools (either may be absent). A template that
   has a default system prompt renders it here. -ERR_BAD_ARG (a tool's JSON is not an object; out->why),
   -ERR_TOO_BIG, -ERR_MEMORY; then nothing is changed. May be called once, first. */
int template_begin(const struct template *template, struct template_state *state,
		   const struct message *system, const struct tool *tools, uint32_t tool_count,
		   struct rendering *out);
/* Appends messages. What the history still owes comes first: the end mark of an assistant's turn
   that ended by a limit or stop string, or the line's end after an end mark that was sampled.
   Results of tools that follow each other share one block, which stays open until something else
   follows. -ERR_BAD_ARG (a call's arguments are not a JSON object, or the template writes one call a
   message and there are more; out->why), -ERR_TOO_BIG, -ERR_MEMORY; then nothing is changed. */
int template_append(const struct template *template, struct template_state *state,
		    const struct message *messages, uint32_t count, struct rendering *out);
/* Appends what opens the assistant's turn ("<|im_start|>assistant\n"; Mistral's has nothing), after
   what is owed. If the turn is open still, it goes on and nothing is appended. */
int template_open_turn(const struct template *template, struct template_state *state,
		       struct rendering *out);
/* Whether the token is the template's own end mark (<|im_end|> and its like). */
bool template_is_end_mark(const struct template *template, const struct tokenizer *tokenizer,
			  uint32_t token);
/* Tells the state that the assistant's turn is over: with the template's own end mark as its last
   sampled token, or not (also if another token ended it). */
void template_turn_over(const struct template *template, struct template_state *state,
			bool end_mark_sampled);

/* Finds the tool calls in an assistant's text. For streaming it is called with all the turn's text so
   far. What is a call, one or several:
   <tool_call>{"name":…,"arguments":{…}}</tool_call>, white space between, in every template;
   [TOOL_CALLS][{"name":…,"arguments":{…},"id":…}, …], in Mistral's;
   <|python_tag|>{"name":…,"parameters":{…}}; …, in Llama's;
   an answer that is nothing but such an object (in Llama's: or several), or nothing but one in a fence
   of three backquotes: small models leave the marks away. "parameters" stands for "arguments" in all. */
enum calls_state { CALLS_NONE, CALLS_MAYBE, CALLS_PARTIAL, CALLS_COMPLETE, CALLS_BROKEN };
struct calls {
	enum calls_state state;
	size_t text_length; /* bytes before the first call's mark: what is plain text */
	uint32_t count;     /* complete calls */
	struct tool_call call[16]; /* pointing into the text; id empty but for Mistral's nine characters */
	const char *reason; /* BROKEN: why; static text, NULL otherwise */
};
/* final: no more text will come. MAYBE: the text ends in what could begin a mark. BROKEN: a mark
   whose content is not a call; then it is plain text, never half a call. COMPLETE: one call at least;
   a further one that is not complete, or broken, is not counted, and no more than 16 are. A name has
   1 to 64 bytes and no escapes. A last call that lacks only its closing mark counts when final; an
   answer without marks is a call only when final. As text grows, COMPLETE stays, count and text_length
   never fall. Time linear in the length. */
void calls_parse(const struct template *template, const char *text, size_t length, bool final,
		 struct calls *out);
/* The same where nothing before `from` begins a call: MAYBE, PARTIAL and COMPLETE are never NONE of a
   shorter text. With from > 0 the answer has begun otherwise, and an object without marks is text. */
void calls_parse_from(const struct template *template, const char *text, size_t length, size_t from,
		      bool final, struct calls *out);
/* The mark that may be a control token of its own: its text must be in what is parsed. */
const char *template_call_mark(const struct template *template);

#endif
