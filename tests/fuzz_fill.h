/*
 * Arguments of calls, drawn by chance: what tests/fuzz_loop.c sends.
 */
#ifndef HOLDFAST_TESTS_FUZZ_FILL_H
#define HOLDFAST_TESTS_FUZZ_FILL_H

#include <string.h>

#include "clients/wire.h"
#include "tests/draw.h"

static const char *const tool = "{\"name\":\"ls\",\"parameters\":{\"type\":\"object\",\"properties\":{},"
				"\"required\":[]}}";

/* Arguments of a turn, of text or tokens. */
static size_t turn_fill(struct wire_call *m, uint32_t *ids)
{
	struct wire_args *a = &m->a;
	size_t count = 0;
	a->sampling.max_tokens = 1 + draw(draw(4) ? 12 : 200);
	a->sampling.ignore_end = draw(2);
	a->sampling.logprobs = draw(4) == 0;
	a->supersede = draw(4) == 0;
	if (draw(6) == 0)
		a->tool_choice = TOOL_REQUIRED;
	if (m->method == METHOD_SESSION_CONTINUE && draw(3)) {
		a->message_count = 1;
		a->messages[0] = (struct wire_message){.role = WIRE_TOOL, .content = {"ok", 2},
						       .tool_call_id = {"c", 1}};
	} else if (m->method == METHOD_SESSION_TURN && draw(4) == 0) {
		a->message_count = 1;
		a->messages[0] = (struct wire_message){.role = WIRE_USER, .content = {"ab cd", 5}};
	} else {
		a->tokens_in_blob = true;
		a->tool_choice = 0;
		count = 1 + draw(draw(3) ? 20 : 150);
		for (size_t i = 0; i < count; i++)
			ids[i] = 97 + draw(26);
		if (draw(3) == 0)
			a->keep = draw(120);
	}
	return count;
}

static void args_fill(struct wire_call *m)
{
	struct wire_args *a = &m->a;
	switch (m->method) {
	case METHOD_SESSION_OPEN:
		if (draw(3))
			a->template_name = (struct wire_str){"none", 4};
		else if (draw(2)) {
			a->tool_count = 1;
			a->tools[0] = (struct wire_str){tool, strlen(tool)};
		}
		/* fallthrough */
	case METHOD_SESSION_FORK:
	case METHOD_SESSION_RESIDENCY:
		a->residency.present = m->method == METHOD_SESSION_RESIDENCY || draw(3) == 0;
		a->residency.kind = (uint8_t)draw(3);
		a->residency.bytes = draw(40000);
		a->residency.lease_ms = draw(2000);
		if (m->method == METHOD_SESSION_FORK && draw(2))
			a->tokens = draw(60);
		a->tied = m->method == METHOD_SESSION_FORK && draw(3) == 0;
		break;
	case METHOD_SESSION_ROLLBACK:
		*(draw(2) ? &a->tokens : &a->to_turn) = draw(80);
		break;
	case METHOD_SESSION_HINT: a->returns_in_ms = draw(5000); break;
	case METHOD_SESSION_PARK: {
		static const struct wire_str places[] = {{"host", 4}, {"tokens", 6}, {"disk", 4}};
		a->place = places[draw(3)];
		break;
	}
	case METHOD_EVENTS_REPLAY:
		a->first = draw(100);
		a->count = 1 + draw(300);
		break;
	case METHOD_TOKENIZE: a->text = (struct wire_str){"some text", 9}; break;
	default: break;
	}
}

#endif
