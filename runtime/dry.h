/*
 * DRY ("do not repeat yourself"): what would go on with a run of tokens that has been before is made
 * less likely, by more for each token that the run is longer. Pure.
 *
 * The run is the end of the history; it ends at a token with a line's end, a colon, a quote or an
 * asterisk in it, so that the form of a text is not held against it. (The method is by p-e-w, in
 * text-generation-webui's pull request 5677; the formula is taken from there.)
 */
#ifndef HOLDFAST_RUNTIME_DRY_H
#define HOLDFAST_RUNTIME_DRY_H

#include <stdbool.h>
#include <stdint.h>

enum {
	DRY_WINDOW_MAX = 8192,  /* tokens of the history that are looked at */
	DRY_RUN_MAX = 256,      /* a longer run counts as this long */
	DRY_TOKENS_MAX = 256    /* tokens that are made less likely; of more, those by the most */
};

struct dry {
	double multiplier;  /* 0: off */
	double base;        /* at least 1 */
	uint32_t allowed;   /* a run shorter than this costs nothing; 1 at least */
	uint32_t window;    /* 1 to DRY_WINDOW_MAX */
};

struct dry_penalty {
	uint32_t token;
	float minus; /* above 0, at most 1000 */
};

/* The penalties for what may follow the history, by ascending tokens; returns how many, at most
   DRY_TOKENS_MAX. breaks: whether a token ends a run; called with `of`. */
uint32_t dry_find(const struct dry *dry, const uint32_t *history, uint32_t count,
		  bool (*breaks)(const void *of, uint32_t token), const void *of,
		  struct dry_penalty *out);

#endif
