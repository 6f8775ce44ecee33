/*
 * Inside the templates: template.c keeps the list and what all have in common, template_chatml.c,
 * template_llama.c, template_mistral.c and template_gemma.c render, template_calls.c finds calls.
 * Nobody else includes this (but form_tools.c, for the marks of a call).
 */
#ifndef HOLDFAST_RUNTIME_TEMPLATE_INSIDE_H
#define HOLDFAST_RUNTIME_TEMPLATE_INSIDE_H

#include "runtime/json.h"
#include "runtime/template.h"

#define TEMPLATE_CALL_OPEN "<tool_call>"
#define TEMPLATE_CALL_CLOSE "</tool_call>"
#define TEMPLATE_CALLS_MARK "[TOOL_CALLS]"
#define TEMPLATE_PYTHON_TAG "<|python_tag|>"

/* How a family writes. The functions append; what they leave half done on failure is taken back by
   template.c. */
struct family {
	const char *control[4];  /* tokens that the vocabulary must have as control tokens */
	const char *end;         /* the mark that ends an assistant's turn */
	const char *end_other;   /* another that may be sampled instead, NULL if there is none */
	const char *line;        /* what follows the end mark */
	const char *results_end; /* closes a block of tool results; NULL: each result is closed itself */
	const char *head_end;    /* closes a user's turn that the head began and no user's message filled */
	/* The head of a session; true through *begun: a user's turn was begun in it. */
	int (*begin)(const struct template *template, const struct message *system,
		     const struct tool *tools, uint32_t tool_count, bool *begun,
		     struct rendering *out);
	/* One message; begun: it is the user's, and its turn was begun by the head; results: it is a
	   tool's, and a block of results is open. */
	int (*message)(const struct template *template, const struct message *m, bool begun,
		       bool results, struct rendering *out);
	const char *open;        /* opens the assistant's turn */
};

struct template {
	const char *name;
	const struct family *family;
	const char *system; /* the default system prompt, NULL if there is none */
	bool dates;         /* llama: the head has the dates */
};

extern const struct family family_chatml, family_llama, family_mistral, family_gemma;

/* Text of our own, in which control tokens are meant; text of others, in which they are not. */
int rendering_own(struct rendering *out, const char *text);
int rendering_plain(struct rendering *out, struct text text);
/* The text without white space around it, as Python's str.strip has it. */
struct text text_strip(struct text text);
/* -ERR_BAD_ARG: it is no JSON object, or nested too deep, which is as wrong as any. */
int object_check(struct text text, struct json *value);
/* A JSON value, which must be an object, as json_write has it: one plain segment. -ERR_BAD_ARG. */
int rendering_object(struct rendering *out, struct text object);
/* Appends {"name": …, KEY: …} of a call to a JSON text; more: the last brace is left out. */
int call_json(const struct tool_call *call, const char *key, bool more, struct json_out *text);
/* The blocks that ChatML's templates and Gemma's have in common. */
int rendering_call_block(struct rendering *out, const struct tool_call *call);
int rendering_result_block(struct rendering *out, struct text content);

#endif
