/*
 * A pattern in the making: form_regex.c parses it and lays it out, form_sets.c makes it certain.
 * Nobody else includes this.
 */
#ifndef HOLDFAST_RUNTIME_FORM_REGEX_INSIDE_H
#define HOLDFAST_RUNTIME_FORM_REGEX_INSIDE_H

#include "runtime/form_dfa.h"
#include "sched/check.h"

enum { CHARACTER_MAX = 0x10ffff, NONE_NODE = 0xffffffff, ENDLESS = 0xffffffff };

enum tree_kind { TREE_EMPTY, TREE_CLASS, TREE_LIST, TREE_EITHER, TREE_REPEAT, TREE_BEGIN, TREE_END };

/* The children of a list or of alternatives hang together from the last to the first. */
struct tree {
	enum tree_kind kind;
	uint32_t last, before; /* last child; the sibling before this one */
	uint32_t least, most;  /* REPEAT; of CLASS: its first range and how many */
};

struct range {
	uint32_t low, high;
};

enum step_kind { STEP_BYTE, STEP_SPLIT, STEP_BEGIN, STEP_END, STEP_MATCH };
struct nstep {
	enum step_kind kind;
	uint8_t low, high;
	uint32_t a, b;
};

struct regex {
	struct dfa_maker *m;
	const char *at, *end;
	struct tree *tree;
	struct range *range;
	struct nstep *step;
	uint32_t trees, ranges, steps, depth;
};

/* The automaton of the steps from `start` on. */
int regex_make_certain(struct regex *x, uint32_t start, struct dfa **out);

#endif
