/*
 * The first frame, the limits, and the names of the methods.
 */
#include "clients/wire.h"

#include <string.h>

void wire_limits_default(struct wire_limits *limits)
{
	*limits = (struct wire_limits){
		.body_bytes = 256 << 10, .blob_bytes = 1 << 20, .depth = 16, .nodes = 20000,
		.string_bytes = 256 << 10,
	};
}

static uint64_t header_get(const uint8_t *at, size_t bytes)
{
	uint64_t n = 0;
	for (size_t i = 0; i < bytes; i++)
		n = n << 8 | at[i];
	return n;
}

static void header_put(uint8_t *at, size_t bytes, uint64_t n)
{
	for (size_t i = bytes; i > 0; i--, n >>= 8)
		at[i - 1] = (uint8_t)n;
}

int wire_header_read(const void *frame, size_t length, struct wire_header *out)
{
	const uint8_t *f = frame;
	if (length != WIRE_HEADER_BYTES || f[0] != 'A' || f[1] != 'R')
		return -ERR_BAD_FRAMES;
	/* The version before what only this version defines: a later one may use more bits. */
	if (f[2] != WIRE_MAJOR)
		return -ERR_VERSION;
	uint64_t flags = header_get(f + 4, 2);
	if ((flags & ~(uint64_t)WIRE_FLAG_BLOB) != 0 || header_get(f + 6, 2) != 0)
		return -ERR_BAD_FRAMES;
	*out = (struct wire_header){
		.type = f[3], .flags = (uint16_t)flags,
		.channel = header_get(f + 8, 8), .seq = header_get(f + 16, 8),
	};
	return 0;
}

void wire_header_write(const struct wire_header *header, uint8_t out[WIRE_HEADER_BYTES])
{
	CHECK((header->flags & ~WIRE_FLAG_BLOB) == 0);
	out[0] = 'A';
	out[1] = 'R';
	out[2] = WIRE_MAJOR;
	out[3] = header->type;
	header_put(out + 4, 2, header->flags);
	header_put(out + 6, 2, 0);
	header_put(out + 8, 8, header->channel);
	header_put(out + 16, 8, header->seq);
}

static const char *const method_names[METHOD_COUNT] = {
	[METHOD_SESSION_OPEN] = "session.open",
	[METHOD_SESSION_TURN] = "session.turn",
	[METHOD_SESSION_CONTINUE] = "session.continue",
	[METHOD_SESSION_FORK] = "session.fork",
	[METHOD_SESSION_ROLLBACK] = "session.rollback",
	[METHOD_SESSION_CLOSE] = "session.close",
	[METHOD_SESSION_LIST] = "session.list",
	[METHOD_SESSION_SHOW] = "session.show",
	[METHOD_SESSION_ATTACH] = "session.attach",
	[METHOD_SESSION_RESIDENCY] = "session.residency",
	[METHOD_SESSION_HINT] = "session.hint",
	[METHOD_SESSION_PARK] = "session.park",
	[METHOD_LEDGER_SHOW] = "ledger.show",
	[METHOD_PAGES_SHOW] = "pages.show",
	[METHOD_MODEL_SHOW] = "model.show",
	[METHOD_TOKENIZE] = "tokenize",
	[METHOD_DETOKENIZE] = "detokenize",
	[METHOD_HEALTH] = "health",
	[METHOD_METRICS] = "metrics",
	[METHOD_SESSION_EXPORT] = "session.export",
	[METHOD_SESSION_IMPORT] = "session.import",
	[METHOD_SESSION_FORGET] = "session.forget",
	[METHOD_EVENTS_REPLAY] = "events.replay",
	[METHOD_SESSION_TOUCH] = "session.touch",
};

enum wire_method wire_method_find(const char *at, size_t length)
{
	for (int m = 0; m < METHOD_COUNT; m++)
		if (strlen(method_names[m]) == length && memcmp(method_names[m], at, length) == 0)
			return (enum wire_method)m;
	return METHOD_COUNT;
}

const char *wire_method_name(enum wire_method method)
{
	CHECK((unsigned)method < METHOD_COUNT);
	return method_names[method];
}
