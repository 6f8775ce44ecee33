/*
 * Finite automata over bytes: what the strings, numbers and patterns of a form are made of. Made
 * within a budget of steps that all automata of a form share, so that no pattern can take long or
 * grow large, whatever it says. Inside the forms only.
 *
 * A state is a number; 0 is where one starts. No state is a dead end: from each there is a way to
 * one that accepts.
 */
#ifndef HOLDFAST_RUNTIME_FORM_DFA_H
#define HOLDFAST_RUNTIME_FORM_DFA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
	DFA_STATES_MAX = 16384,     /* of one automaton */
	DFA_CELLS_MAX = 4 << 20,    /* states x byte classes, of one automaton */
	DFA_DEAD = 0xffff,          /* no state */
	PATTERN_BYTES_MAX = 16384,
	PATTERN_NODES_MAX = 32768,  /* parts of a pattern, and states before they are made certain */
	PATTERN_DEPTH_MAX = 64,     /* groups in groups */
	PATTERN_REPEAT_MAX = 1024,  /* a counted repetition */
	FORM_BUDGET = 30 << 20      /* steps to make all automata of a form */
};

struct dfa {
	uint32_t states, classes;
	uint8_t class_of[256];
	uint16_t *next;   /* states x classes */
	uint8_t *accept;  /* a byte a state */
};

/* What is left of the steps, and why it was not enough or not right: static text, NULL if none. */
struct dfa_maker {
	int64_t budget;
	const char *reason;
};

void dfa_free(struct dfa *d);

static inline uint16_t dfa_next(const struct dfa *d, uint32_t state, uint8_t byte)
{
	return d->next[(size_t)state * d->classes + d->class_of[byte]];
}

/* All below: 0; -ERR_BAD_ARG, -ERR_UNSUPPORTED, -ERR_TOO_BIG with a reason; -ERR_MEMORY. On failure
   *out is NULL. An automaton that accepts nothing is not made: DFA_EMPTY, *out NULL. */
enum { DFA_EMPTY = 1 };

/* The texts that a pattern matches: as a whole, or (search) somewhere in them. The syntax is the part
   of ECMA-262's that is regular: literals, ., classes, \d \w \s and their like, escapes, groups,
   alternatives, repetitions, ^ and $. Characters are Unicode's, texts are UTF-8. */
int dfa_pattern(struct dfa_maker *m, const char *pattern, size_t length, bool search,
		struct dfa **out);
/* Texts of UTF-8 of so many characters; most UINT32_MAX: without end. */
int dfa_length(struct dfa_maker *m, uint32_t least, uint32_t most, struct dfa **out);
/* Exactly these texts. */
struct dfa_text {
	const char *at;
	size_t length;
};
int dfa_texts(struct dfa_maker *m, const struct dfa_text *text, uint32_t count, struct dfa **out);
/* What both accept, or (without) what a accepts and b does not. */
int dfa_both(struct dfa_maker *m, const struct dfa *a, const struct dfa *b, bool without,
	     struct dfa **out);
/* *d without the bytes that are not in the set; it is replaced, or freed if nothing is left. */
int dfa_only(struct dfa_maker *m, struct dfa **d, const bool set[256]);

/* An automaton that is being made: states are added, then it is finished. */
struct dfa_rough {
	uint32_t states, classes, capacity;
	uint8_t class_of[256];
	uint16_t *next;
	uint8_t *accept;
};
/* The classes must stand. *state: the new one, all ways dead. */
int dfa_add(struct dfa_maker *m, struct dfa_rough *r, uint32_t *state);
/* Takes the memory of r, whatever it returns. Drops what cannot be reached or cannot accept. */
int dfa_finish(struct dfa_maker *m, struct dfa_rough *r, struct dfa **out);
/* Classes from a set of first bytes: each begins a new one. */
void dfa_classes(struct dfa_rough *r, const bool first[256]);

/* Whether the bytes are UTF-8. */
bool dfa_utf8(const char *text, size_t length);
/* Takes steps from the budget. */
int dfa_spend(struct dfa_maker *m, uint64_t steps);

#endif
