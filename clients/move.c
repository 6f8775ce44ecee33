/*
 * A session as tokens and settings, from one daemon to another.
 */
#include <stdlib.h>
#include <string.h>

#include "clients/item.h"
#include "clients/link.h"

int hf_session_export(struct hf_client *c, struct hf_session *s, struct hf_end *end)
{
	HOLD(c);
	struct wire_call *m = client_begin(c, held, METHOD_SESSION_EXPORT, s, end);
	if (!m)
		return end->code;
	m->epoch = m->turn = WIRE_NONE; /* to look is not to write */
	return call_run(c, NULL, 0, NULL, end);
}

static int tools_take(struct wire_args *a, struct wire_value tools)
{
	struct wire_value one;
	struct walk w;
	uint32_t count;
	if (!tools.at)
		return 0;
	if (!wire_get_array(tools, &count) || count > WIRE_TOOLS_MAX)
		return -ERR_BAD_ARG;
	walk_init(&w, tools);
	while (walk_next(&w, &one))
		if (!wire_get_str(one, &a->tools[a->tool_count++]))
			return -ERR_BAD_ARG;
	return 0;
}

/* What an export gave; keys that are not known are passed over. */
static int settings_take(struct wire_args *a, struct wire_value v)
{
	struct wire_value turn = wire_find(v, "turn"), waits = wire_find(v, "waits");
	if (!wire_get_bin(wire_find(v, "course"), &a->course) ||
	    (turn.at && !wire_get_u64(turn, &a->at_turn)) || (waits.at && !wire_get_bool(waits, &a->waits)))
		return -ERR_BAD_ARG;
	wire_get_str(wire_find(v, "template"), &a->template_name);
	wire_get_str(wire_find(v, "label"), &a->label);
	return tools_take(a, wire_find(v, "tools"));
}

int hf_session_import(struct hf_client *c, const uint8_t *settings, size_t bytes, const uint32_t *ids,
	size_t count, struct hf_session *out, struct hf_end *end)
{
	HOLD(c);
	struct wire_call *m = client_begin(c, held, METHOD_SESSION_IMPORT, NULL, end);
	const struct wire_value v = {settings, bytes};
	uint32_t pairs;
	*out = (struct hf_session){.epoch = HF_NONE, .turn = HF_NONE};
	if (!m)
		return end->code;
	if (!settings || wire_validate(settings, bytes, &c->limits) != 0 || !wire_get_map(v, &pairs) ||
	    settings_take(&m->a, v) != 0)
		return end_fail(end, -ERR_BAD_ARG);
	if (count > 0 && !ids)
		return end_fail(end, -ERR_BAD_ARG);
	if (count > c->limits.blob_bytes / 4)
		return end_fail(end, -ERR_TOO_BIG);
	uint8_t *blob = malloc(count * 4 + 1);
	if (!blob)
		return end_fail(end, -ERR_MEMORY);
	for (size_t i = 0; i < count * 4; i++)
		blob[i] = (uint8_t)(ids[i / 4] >> 8 * (i % 4));
	call_run(c, blob, count * 4, NULL, end);
	free(blob);
	return client_opened(out, end);
}
