/*
 * What is added to a turn's logits: the biases that the client named, and what DRY takes off, as one
 * list by ascending tokens.
 */
#include <string.h>

#include "runtime/daemon.h"
#include "runtime/dry.h"

_Static_assert((int)WIRE_DRY_LAST_MAX <= (int)DRY_WINDOW_MAX, "what the wire lets through");

/* A run of tokens ends where a text's form begins. */
static bool breaks(const void *of, uint32_t token)
{
	const char *bytes;
	const size_t n = tokenizer_bytes(of, token, false, &bytes);
	for (size_t i = 0; i < n; i++)
		if (strchr("\n:\"*", bytes[i]))
			return true;
	return n == 0;
}

void turn_bias(struct daemon *d, uint32_t call, struct batch_builder *b, struct ops_sample *sample)
{
	static struct dry_penalty penalty[DRY_TOKENS_MAX];
	const struct call *c = &d->calls[call];
	const struct session *s = &d->sessions[c->session];
	const struct wire_sampling *w = &c->sampling;
	const struct dry dry = {w->dry, w->dry_base, w->dry_allowed, w->dry_last};
	uint32_t penalties = 0, i = 0, k = 0, count = 0;
	struct {
		uint32_t token;
		float add;
	} merged[WIRE_BIAS_MAX + DRY_TOKENS_MAX];
	if (w->dry > 0)
		penalties = dry_find(&dry, s->token, s->history, breaks, d->tokenizer, penalty);
	while (i < w->bias_count || k < penalties) {
		const uint32_t x = i < w->bias_count ? w->bias[i].token : UINT32_MAX;
		const uint32_t y = k < penalties ? penalty[k].token : UINT32_MAX;
		merged[count].token = x < y ? x : y;
		merged[count].add = x <= y ? (float)w->bias[i++].add : 0;
		if (y <= x)
			merged[count].add -= penalty[k++].minus;
		count++;
	}
	if (count == 0)
		return;
	memcpy(batch_extra(b, count * 2, &sample->bias_at), merged, count * sizeof merged[0]);
	sample->bias_count = count;
}
