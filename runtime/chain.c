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

bool chains_share(const struct daemon *d)
{
	/* Where given and sampled tokens are multiplied differently, the tokens alone do not name a page. With
	   windows, who has a page need not have those before it. */
	return d->options.share && d->options.prefill == PREFILL_SAME && d->limits.group_count == 1;
}

uint32_t chain_make(struct daemon *d, const struct session *s)
{
	const uint32_t span = d->limits.page_tokens, count = s->history / span;
	const struct chain_key *before = &d->chain_root;
	if (!chains_share(d))
		return 0;
	for (uint32_t i = 0; i < count; before = &d->chain[i++]) {
		crypto_generichash_state state;
		crypto_generichash_init(&state, NULL, 0, CHAIN_BYTES);
		crypto_generichash_update(&state, (const uint8_t *)before, CHAIN_BYTES);
		crypto_generichash_update(&state, (const uint8_t *)(s->token + i * span), span * sizeof *s->token);
		crypto_generichash_final(&state, (uint8_t *)&d->chain[i], CHAIN_BYTES);
	}
	return count;
}
