/*
 * Inside the templates: template.c renders, template_calls.c finds calls. Nobody else includes this.
 */
#ifndef HOLDFAST_RUNTIME_TEMPLATE_INSIDE_H
#define HOLDFAST_RUNTIME_TEMPLATE_INSIDE_H

#include "runtime/json.h"
#include "runtime/template.h"

#define TEMPLATE_CALL_OPEN "<tool_call>"
#define TEMPLATE_CALL_CLOSE "</tool_call>"

struct template {
	const char *name;
	const char *system; /* the default system prompt, NULL if there is none */
};

#endif
