/*
 * Chain keys: the name of each full page of a history, by which the scheduler finds a page of another
 * session that holds the same. A key is BLAKE2b-128 over the key before it and the page's tokens. The
 * first stands on a root over a secret of this process, the model's hash, the plan's (precision of
 * pages and activations, kernels) and the page's size: nobody outside can make a key or look for two
 * histories with one, and no page of another model or precision has the same.
 *
 * Whose a page is does not go into its key: the scheduler keeps principals apart, since what an
 * operator names as public is found by all.
 *
 * Where given and sampled tokens are multiplied differently (--prefill-weights) a page is named by
 * both: which token each is, and how it came.
 *
 * Keys are made anew for each turn, from the history itself. That is a microsecond for four pages,
 * and what is shared can never be another history's because a note of it was not kept in step.
 */
#include <sodium.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/daemon.h"

enum { CHAIN_BYTES = 16, SECRET_BYTES = 32 };
_Static_assert(sizeof(struct chain_key) == CHAIN_BYTES, "a key is the hash as it comes");

static void root_make(struct daemon *d)
{
	uint8_t secret[SECRET_BYTES], plan[16];
	const uint32_t span = d->limits.page_tokens;
	crypto_generichash_state state;
	randombytes_buf(secret, sizeof secret);
	forward_plan_hash(d->forward, plan);
	crypto_generichash_init(&state, secret, sizeof secret, CHAIN_BYTES);
	crypto_generichash_update(&state, d->model->hash, sizeof d->model->hash);
	crypto_generichash_update(&state, plan, sizeof plan);
	crypto_generichash_update(&state, (const uint8_t *)&span, sizeof span);
	crypto_generichash_final(&state, (uint8_t *)&d->chain_root, CHAIN_BYTES);
	sodium_memzero(secret, sizeof secret);
}

int chains_open(struct daemon *d)
{
	root_make(d);
	d->chain = calloc(d->limits.context_tokens / d->limits.page_tokens + 1, sizeof *d->chain);
	return d->chain ? 0 : -ERR_MEMORY;
}

/* How many of the session's turns begin at or before the position. */
static uint32_t turns_begun(const struct session *s, uint32_t at)
{
	uint32_t low = 0, high = s->mark_count;
	while (low < high) {
		const uint32_t middle = (low + high) / 2;
		if (s->mark[middle].start <= at)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

void session_phases(const struct session *s, uint32_t first, uint32_t count, uint8_t *out)
{
	uint32_t turn = turns_begun(s, first);
	for (uint32_t i = 0; i < count; i++) {
		while (turn < s->mark_count && s->mark[turn].start <= first + i)
			turn++;
		out[i] = turn > 0 && first + i >= s->mark[turn - 1].output;
	}
}

const uint8_t *session_phases_named(const struct daemon *d, const struct session *s, uint32_t first,
				    uint32_t count, uint8_t *room)
{
	if (d->options.prefill == PREFILL_SAME)
		return NULL;
	session_phases(s, first, count, room);
	return room;
}

uint32_t chain_make(struct daemon *d, const struct session *s)
{
	const uint32_t span = d->limits.page_tokens, count = s->history / span;
	const struct chain_key *before = &d->chain_root;
	if (!d->options.share)
		return 0;
	for (uint32_t i = 0; i < count; before = &d->chain[i++]) {
		uint8_t room[OPS_PARTITION];
		const uint8_t *phases = session_phases_named(d, s, i * span, span, room);
		crypto_generichash_state state;
		crypto_generichash_init(&state, NULL, 0, CHAIN_BYTES);
		crypto_generichash_update(&state, (const uint8_t *)before, CHAIN_BYTES);
		crypto_generichash_update(&state, (const uint8_t *)(s->token + i * span), span * sizeof *s->token);
		if (phases)
			crypto_generichash_update(&state, phases, span);
		crypto_generichash_final(&state, (uint8_t *)&d->chain[i], CHAIN_BYTES);
	}
	return count;
}
