#include "runtime/dry.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "sched/check.h"

enum { MINUS_MAX = 1000 };

/* A token that once followed a run of that length. */
struct follower {
	uint32_t token, length;
};

static int by_token(const void *a, const void *b)
{
	const struct follower *x = a, *y = b;
	if (x->token != y->token)
		return x->token < y->token ? -1 : 1;
	return (x->length < y->length) - (x->length > y->length);
}

static int by_length(const void *a, const void *b)
{
	const struct follower *x = a, *y = b;
	if (x->length != y->length)
		return x->length > y->length ? -1 : 1;
	return (x->token > y->token) - (x->token < y->token);
}

/* For each place of the window the tokens before it that are those at the history's end, up to `most`:
   the Z function of the window read backwards. */
static void runs(const uint32_t *last, uint32_t count, uint32_t most, uint16_t *run)
{
	uint32_t left = 0, right = 0; /* the match that reaches furthest is [left, right) */
	for (uint32_t k = 1; k < count; k++) {
		uint32_t n = 0;
		if (k < right) {
			n = run[k - left];
			if (n > right - k)
				n = right - k;
		}
		while (n < most && k + n < count && *(last - n) == *(last - k - n))
			n++;
		run[k] = (uint16_t)n;
		if (k + n > right) {
			left = k;
			right = k + n;
		}
	}
}

uint32_t dry_find(const struct dry *dry, const uint32_t *history, uint32_t count,
		  bool (*breaks)(const void *of, uint32_t token), const void *of,
		  struct dry_penalty *out)
{
	static struct follower found[DRY_WINDOW_MAX];
	static uint16_t run[DRY_WINDOW_MAX];
	uint32_t most = 0, kept = 0, n = 0;
	CHECK(dry->allowed > 0);
	CHECK(dry->window <= DRY_WINDOW_MAX);
	if (count > dry->window) {
		history += count - dry->window;
		count = dry->window;
	}
	while (most < count && most < DRY_RUN_MAX && !breaks(of, history[count - 1 - most]))
		most++;
	if (most < dry->allowed || !(dry->multiplier > 0))
		return 0;
	runs(history + count - 1, count, most, run);
	for (uint32_t k = 1; k < count; k++)
		if (run[k] >= dry->allowed)
			found[n++] = (struct follower){history[count - k], run[k]};
	/* Of a token that followed several runs the longest counts. */
	qsort(found, n, sizeof *found, by_token);
	for (uint32_t i = 0; i < n; i++)
		if (i == 0 || found[i].token != found[i - 1].token)
			found[kept++] = found[i];
	if (kept > DRY_TOKENS_MAX) {
		qsort(found, kept, sizeof *found, by_length);
		kept = DRY_TOKENS_MAX;
		qsort(found, kept, sizeof *found, by_token);
	}
	for (uint32_t i = 0; i < kept; i++) {
		const double minus = dry->multiplier * pow(dry->base, found[i].length - dry->allowed);
		out[i] = (struct dry_penalty){found[i].token, minus < MINUS_MAX ? (float)minus : MINUS_MAX};
	}
	return kept;
}
