/*
 * Inside the forms. form_open.c and form_schema.c make nodes, form_number.c the automata of bounds,
 * form_step.c goes through them byte by byte, form_index.c and form_mask.c through the vocabulary,
 * form_forced.c along what can only go on in one way.
 * Nobody else includes this.
 *
 * A form is a graph of nodes. A scalar is gone through in one frame; an object, an array and a
 * sequence stay below, in a stack, while one of their parts is gone through. Where several nodes may
 * begin there are several threads, each of which can be brought to its end: that is what no dead end
 * rests on, and why an automaton is trimmed, a byte without a token of its own is left out, and a
 * node is entered only where the nesting that it needs is left.
 */
#ifndef HOLDFAST_RUNTIME_FORM_INSIDE_H
#define HOLDFAST_RUNTIME_FORM_INSIDE_H

#include "runtime/form.h"
#include "runtime/form_dfa.h"
#include "runtime/json.h"
#include "sched/check.h"

enum {
	FORM_NONE = 0xffffffff,
	FORM_ENDLESS = 0xffffffff,
	FORM_HEIGHT_NONE = 255,     /* no text at all is of the node */
	FORM_TOKEN_BYTES_MAX = 256, /* a longer token is in no form */
	FORM_KEPT = 64,             /* masks kept: more than the states that an answer comes back to */
	FORM_FORCED_KEPT = 32       /* states in which something must come, kept with what must */
};

/* Tokens in the order of their bytes: nodes in the order of a walk, the children after the parent. */
struct trie_node {
	uint32_t skip;  /* the next node that is not below this one */
	uint32_t first; /* into `order`: tokens that end here */
	uint16_t depth;
	uint8_t byte, count;
};
struct trie {
	struct trie_node *node;
	uint32_t count;
};

struct form_index {
	const struct tokenizer *tokenizer;
	uint32_t words;
	uint32_t *order;
	/* Tokens of whole characters that a string can have unescaped, and all others. */
	struct trie plain, rest;
	uint32_t *plain_bits;
	uint32_t *plain_id, plain_count; /* in the order of their ids */
	uint16_t *plain_length;          /* in characters */
	uint32_t longest;
	bool single[256];     /* there is a token of this byte alone */
	bool ascii_only;      /* a character once begun could not be ended: none is begun */
};

enum node_kind {
	NODE_NONE,    /* low: NONE_DIGITS, or 0 */
	NODE_CHOICE,  /* first, count: alternatives, sorted */
	NODE_DFA,     /* a text of the automaton */
	NODE_STRING,  /* low, high: characters */
	NODE_PATTERN, /* a string whose characters are a text of the automaton */
	NODE_ARRAY,   /* first, count: children, of the first items; other: the rest; low, high: items */
	NODE_OBJECT,  /* first, count: properties; extra, extra_count: others; low, high: properties */
	NODE_ANY,     /* first, count: children, one of which */
	NODE_SEQUENCE /* first, count: children, one after the other */
};

/* Why nothing is of a node, where it is not that its schema contradicts itself. */
enum { NONE_DIGITS = 1 }; /* there are numbers, but none as short as is written */

struct node {
	enum node_kind kind;
	uint32_t first, count, low, high, other, extra, extra_count;
	uint32_t height; /* frames that must find room below, to bring it to its end */
	const struct dfa *dfa;
};

struct alternative {
	size_t at; /* in the form's text */
	uint32_t length;
};

/* `, "key": ` in the form's text, and the value's node. */
struct property {
	size_t at;
	uint32_t length, value;
	uint32_t required_before; /* of those before it in its object */
	bool required;
};

/* Keys of a node, which is a PATTERN or a STRING, with values of another. */
struct extra {
	uint32_t key, value;
};

/* Threads of all levels of a walk, one behind the other; what is below is shared among levels. */
struct form_walk {
	struct form_thread *thread;
	struct form_below *below;
	uint32_t thread_count, thread_max, below_count, below_max;
	uint32_t first; /* of the level in the making */
	bool end;
};

struct form {
	const struct form_index *index;
	uint32_t string_max, root;
	struct json_out text;
	struct node *node;
	struct alternative *alternative;
	struct property *property;
	struct extra *extra;
	uint32_t *child;
	struct dfa **dfa;
	uint32_t nodes, alternatives, properties, extras, children, dfas;
	struct {
		struct form_state key;
		uint32_t allowed; /* 0: free */
		uint32_t hash;
		uint64_t used;    /* when last, by `uses` */
		uint32_t *bits;
	} *kept;
	struct form_forced *forced; /* FORM_FORCED_KEPT of them; NULL until one is wanted */
	uint64_t uses;
	struct form_walk walk;
};

/* What must come in a state; see form_forced.c. */
struct form_forced {
	struct form_state key;
	uint32_t hash, end, count;
	uint64_t used; /* 0: free */
	uint32_t id[FORM_FORCED_MAX];
};

/* A form in the making. */
struct maker {
	struct form *f;
	struct dfa_maker dfa;
	struct json root; /* of the schema in hand */
	uint32_t depth;
	struct {
		const char *at;
		uint32_t node;
	} ref[1024]; /* what references lead to */
	uint32_t refs;
};

int form_fail(struct maker *m, int code, const char *reason);

/* form_open.c: parts. All: 0, -ERR_TOO_BIG with a reason, -ERR_MEMORY. */
int form_add_node(struct maker *m, struct node node, uint32_t *at);
int form_add_child(struct maker *m, uint32_t node);
int form_add_property(struct maker *m, struct property p);
int form_add_extra(struct maker *m, struct extra e);
/* The form's text from `at` on can be written. */
int form_check_text(struct maker *m, size_t at);
/* The form's text from `at` on is an alternative. -ERR_UNSUPPORTED: a byte without a token. */
int form_add_alternative(struct maker *m, size_t at);
/* Takes d, which may be NULL with code DFA_EMPTY: a node of the kind, or of none. Another code is
   returned as it is. */
int form_add_dfa(struct maker *m, enum node_kind kind, int code, struct dfa *d, uint32_t *at);
/* A node of alternatives from `first` on: sorted, doubles dropped. */
int form_add_choice(struct maker *m, uint32_t first, uint32_t *at);
int form_add_any(struct maker *m, const uint32_t *child, uint32_t count, uint32_t *at);

/* form_schema.c: the node of a schema. */
int form_schema(struct maker *m, struct json schema, uint32_t *at);
/* The node of any JSON value. */
int form_anything(struct maker *m, uint32_t *at);
/* form_exclusive.c: whether no answer that is written by schema a can be valid by schema b. alone:
   nothing else applies to the place. depth: 0. */
bool form_exclusive(struct maker *m, struct json a, struct json b, bool alone, unsigned depth);
/* What a reference leads to; -ERR_BAD_ARG, -ERR_UNSUPPORTED. */
int form_resolve(struct maker *m, struct json ref, struct json *out);

/* form_tools.c: the node of a call of one of the tools. */
int form_tools(struct maker *m, const struct template *template, const struct tool *tools,
	       uint32_t count, uint32_t *at);

/* form_number.c */
struct number_bounds {
	struct json low[8], high[8]; /* numbers */
	bool low_open[8], high_open[8];
	uint32_t lows, highs;
};
int form_number(struct maker *m, bool integer, const struct number_bounds *b, uint32_t *at);

/* form_step.c */
enum { FORM_ADD = -1, FORM_END = -2 };
void form_enter(const struct form *f, struct form_walk *w, uint32_t node, uint32_t parent,
		uint32_t depth, int byte);
/* Adds to the level in the making where a thread leads by a byte; FORM_END: whether it may end. */
void form_step(const struct form *f, struct form_walk *w, const struct form_thread *t, int byte);
/* The frame of a node that has just begun. */
struct form_frame form_frame_of(const struct form *f, uint32_t node);
/* A string in whose inside one is, at a character's boundary. */
bool form_inside_string(const struct form *f, const struct form_frame *frame);

/* form_mask.c: the memory of walks, and the levels of one: what a level begins and ends at. */
int form_walk_open(struct form_walk *w);
struct form_level {
	uint32_t first, end, below;
};
/* The state as the first level. */
struct form_level form_load(struct form_walk *w, const struct form_state *s);
/* The level that a byte leads to, put behind `from`; false: none. FORM_END: sets w->end if the text
   may end. */
bool form_next(const struct form *f, struct form_walk *w, const struct form_level *from,
	       struct form_level *to, int byte);
/* Makes counts alike that the next token cannot tell apart; a hash of what is left. */
uint32_t form_settle(const struct form *f, struct form_state *s);
bool form_same(const struct form_state *a, const struct form_state *b);

#endif
