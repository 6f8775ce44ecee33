/*
 * Forms opened and closed; the parts that they are made of.
 */
#include "runtime/form_inside.h"

#include <stdlib.h>
#include <string.h>

int form_fail(struct maker *m, int code, const char *reason)
{
	m->dfa.reason = reason;
	return code;
}

/* Makes room for one more in an array of `count`, which doubles at powers of two. */
static int room(struct maker *m, void *array, uint32_t count, uint32_t max, size_t size)
{
	void **at = array;
	if (count == max)
		return form_fail(m, -ERR_TOO_BIG,
				"the form has too many parts (16384 nodes, 65536 of each other kind)");
	if (count & (count - 1))
		return 0;
	void *grown = realloc(*at, (count ? 2 * (size_t)count : 1) * size);
	if (!grown)
		return -ERR_MEMORY;
	*at = grown;
	return 0;
}

int form_add_node(struct maker *m, struct node node, uint32_t *at)
{
	struct form *f = m->f;
	TRY(room(m, &f->node, f->nodes, FORM_NODES_MAX, sizeof *f->node));
	*at = f->nodes;
	f->node[f->nodes++] = node;
	return 0;
}

int form_add_child(struct maker *m, uint32_t node)
{
	struct form *f = m->f;
	TRY(room(m, &f->child, f->children, FORM_PARTS_MAX, sizeof *f->child));
	f->child[f->children++] = node;
	return 0;
}

int form_add_property(struct maker *m, struct property p)
{
	struct form *f = m->f;
	TRY(room(m, &f->property, f->properties, FORM_PARTS_MAX, sizeof *f->property));
	f->property[f->properties++] = p;
	return 0;
}

int form_add_extra(struct maker *m, struct extra e)
{
	struct form *f = m->f;
	TRY(room(m, &f->extra, f->extras, FORM_PARTS_MAX, sizeof *f->extra));
	f->extra[f->extras++] = e;
	return 0;
}

int form_check_text(struct maker *m, size_t at)
{
	const struct form *f = m->f;
	if (f->text.length > FORM_BYTES_MAX)
		return form_fail(m, -ERR_TOO_BIG, "the form has more than 1048576 bytes of text");
	for (size_t i = at; i < f->text.length; i++)
		if (!f->index->single[(uint8_t)f->text.bytes[i]])
			return form_fail(m, -ERR_UNSUPPORTED, "the vocabulary lacks a character of the form");
	return 0;
}

int form_add_alternative(struct maker *m, size_t at)
{
	struct form *f = m->f;
	TRY(form_check_text(m, at));
	TRY(room(m, &f->alternative, f->alternatives, FORM_PARTS_MAX, sizeof *f->alternative));
	f->alternative[f->alternatives++] = (struct alternative){at, (uint32_t)(f->text.length - at)};
	return 0;
}

int form_add_dfa(struct maker *m, enum node_kind kind, int code, struct dfa *d, uint32_t *at)
{
	struct form *f = m->f;
	bool only[256];
	if (code == DFA_EMPTY)
		return form_add_node(m, (struct node){.kind = NODE_NONE}, at);
	if (code != 0)
		return code;
	/* In a string what is below 0x80 can always be written, as it is or escaped. */
	for (unsigned b = 0; b < 256; b++)
		only[b] = f->index->single[b] || (kind == NODE_PATTERN && b < 0x7f);
	code = dfa_only(&m->dfa, &d, only);
	if (code != 0)
		return form_add_dfa(m, kind, code, NULL, at);
	code = room(m, &f->dfa, f->dfas, FORM_NODES_MAX, sizeof *f->dfa);
	if (code != 0) {
		dfa_free(d);
		return code;
	}
	f->dfa[f->dfas++] = d;
	return form_add_node(m, (struct node){.kind = kind, .dfa = d}, at);
}

struct sorting {
	const char *text;
	struct alternative a;
};

static int compare(const void *a, const void *b)
{
	const struct sorting *x = a, *y = b;
	uint32_t n = x->a.length < y->a.length ? x->a.length : y->a.length;
	int order = n ? memcmp(x->text + x->a.at, y->text + y->a.at, n) : 0;
	return order ? order : (x->a.length > y->a.length) - (x->a.length < y->a.length);
}

int form_add_choice(struct maker *m, uint32_t first, uint32_t *at)
{
	struct form *f = m->f;
	const uint32_t count = f->alternatives - first;
	uint32_t kept = 0;
	if (count == 0)
		return form_add_node(m, (struct node){.kind = NODE_NONE}, at);
	struct sorting *s = malloc(count * sizeof *s);
	if (!s)
		return -ERR_MEMORY;
	for (uint32_t i = 0; i < count; i++)
		s[i] = (struct sorting){f->text.bytes, f->alternative[first + i]};
	qsort(s, count, sizeof *s, compare);
	for (uint32_t i = 0; i < count; i++)
		if (i == 0 || compare(&s[i - 1], &s[i]) != 0)
			f->alternative[first + kept++] = s[i].a;
	free(s);
	f->alternatives = first + kept;
	return form_add_node(m, (struct node){.kind = NODE_CHOICE, .first = first, .count = kept}, at);
}

int form_add_any(struct maker *m, const uint32_t *child, uint32_t count, uint32_t *at)
{
	const uint32_t first = m->f->children;
	if (count == 1) {
		*at = child[0];
		return 0;
	}
	for (uint32_t i = 0; i < count; i++)
		TRY(form_add_child(m, child[i]));
	return form_add_node(m, (struct node){.kind = NODE_ANY, .first = first, .count = count}, at);
}

static uint32_t more(uint32_t a, uint32_t b)
{
	return a > b ? a : b;
}

static uint32_t object_height(const struct form *f, const struct node *n)
{
	uint32_t high = 0, required = 0;
	for (uint32_t i = 0; i < n->count; i++)
		required += f->property[n->first + i].required;
	for (uint32_t i = 0; i < n->count; i++) {
		const struct property *p = &f->property[n->first + i];
		if (p->required || required < n->low)
			high = more(high, f->node[p->value].height);
	}
	for (uint32_t i = 0; i < n->extra_count && required < n->low; i++) {
		high = more(high, f->node[f->extra[n->extra + i].key].height);
		high = more(high, f->node[f->extra[n->extra + i].value].height);
	}
	if (required > n->high || n->low > n->high || (n->low > n->count && n->extra_count == 0))
		return FORM_HEIGHT_NONE;
	return high + 1;
}

static uint32_t height_of(const struct form *f, const struct node *n)
{
	uint32_t high = n->kind == NODE_ANY ? FORM_HEIGHT_NONE : 0, item;
	switch (n->kind) {
	case NODE_NONE:
		return FORM_HEIGHT_NONE;
	case NODE_ANY:
		for (uint32_t i = 0; i < n->count; i++) {
			item = f->node[f->child[n->first + i]].height;
			high = item < high ? item : high;
		}
		return high;
	case NODE_SEQUENCE:
		for (uint32_t i = 0; i < n->count; i++)
			high = more(high, f->node[f->child[n->first + i]].height);
		return high + 1;
	case NODE_ARRAY:
		for (uint32_t i = 0; i < n->low && i <= n->count; i++) {
			item = i < n->count ? f->child[n->first + i] : n->other;
			high = more(high, item == FORM_NONE ? FORM_HEIGHT_NONE : f->node[item].height);
		}
		return n->low > n->high ? FORM_HEIGHT_NONE : high + 1;
	case NODE_OBJECT:
		return object_height(f, n);
	default:
		return 0;
	}
}

/* The least that each node needs, from nothing known down to what does not change any more. */
static int heights(struct maker *m)
{
	struct form *f = m->f;
	bool changed = true;
	for (uint32_t i = 0; i < f->nodes; i++)
		f->node[i].height = FORM_HEIGHT_NONE;
	while (changed) {
		changed = false;
		TRY(dfa_spend(&m->dfa, f->nodes + f->properties + f->children));
		for (uint32_t i = f->nodes; i-- > 0;) {
			const uint32_t height = height_of(f, &f->node[i]);
			if (height < f->node[i].height) {
				f->node[i].height = height;
				changed = true;
			}
		}
	}
	return 0;
}

/* An alternative that is alternatives itself is replaced by them, each once: so that entering a node
   never comes back to it. */
static int flatten(struct maker *m, uint32_t node, uint32_t *mark, uint32_t *stack)
{
	struct form *f = m->f;
	const uint32_t first = f->children;
	uint32_t top = 0;
	stack[top++] = node;
	mark[node] = node + 1;
	while (top > 0) {
		const struct node n = f->node[stack[--top]];
		TRY(dfa_spend(&m->dfa, n.count + 1));
		for (uint32_t i = n.count; i-- > 0;) {
			const uint32_t child = f->child[n.first + i];
			if (mark[child] == node + 1)
				continue;
			mark[child] = node + 1;
			if (f->node[child].kind == NODE_ANY)
				stack[top++] = child;
			else
				TRY(form_add_child(m, child));
		}
	}
	f->node[node].extra = first; /* until all are done */
	f->node[node].extra_count = f->children - first;
	return 0;
}

static int flatten_all(struct maker *m)
{
	struct form *f = m->f;
	uint32_t *mark = calloc(f->nodes, sizeof *mark), *stack = malloc(f->nodes * sizeof *stack);
	int code = mark && stack ? 0 : -ERR_MEMORY;
	for (uint32_t i = 0; code == 0 && i < f->nodes; i++)
		if (f->node[i].kind == NODE_ANY)
			code = flatten(m, i, mark, stack);
	for (uint32_t i = 0; code == 0 && i < f->nodes; i++) {
		if (f->node[i].kind != NODE_ANY)
			continue;
		f->node[i].first = f->node[i].extra;
		f->node[i].count = f->node[i].extra_count;
	}
	free(mark);
	free(stack);
	return code;
}

/* Nothing is of the form. Where each part that nothing is of has no number that is short enough, it is
   a limit of ours, and said so. */
static int nothing(struct maker *m)
{
	const struct form *f = m->f;
	uint32_t none = 0, digits = 0;
	for (uint32_t i = 0; i < f->nodes; i++) {
		none += f->node[i].kind == NODE_NONE;
		digits += f->node[i].kind == NODE_NONE && f->node[i].low == NONE_DIGITS;
	}
	if (none > 0 && none == digits)
		return form_fail(m, -ERR_UNSUPPORTED, "a number's bounds leave only numbers of more digits than are "
			"written (integers 18, others 15)");
	return form_fail(m, -ERR_BAD_ARG, "no answer can be of this form");
}

static int finish(struct maker *m, uint32_t root)
{
	struct form *f = m->f;
	f->root = root;
	TRY(flatten_all(m));
	TRY(heights(m));
	if (f->node[root].height >= FORM_HEIGHT_NONE)
		return nothing(m);
	if (f->node[root].height > FORM_NESTING_MAX)
		return form_fail(m, -ERR_TOO_BIG, "the form is nested deeper than 32");
	f->kept = calloc(FORM_KEPT, sizeof *f->kept);
	return f->kept ? form_walk_open(&f->walk) : -ERR_MEMORY;
}

_Static_assert(JSON_DEPTH_MAX == 64 && FORM_NESTING_MAX == 32 && FORM_NODES_MAX == 16384 &&
	       FORM_PARTS_MAX == 65536 && FORM_BYTES_MAX == 1048576 && FORM_SCHEMA_BYTES_MAX == 262144 &&
	       FORM_PROPERTIES_MAX == 1024 && FORM_BUDGET == 31457280 && DFA_STATES_MAX == 16384 &&
	       PATTERN_BYTES_MAX == 16384 && PATTERN_NODES_MAX == 32768 && PATTERN_DEPTH_MAX == 64 &&
	       PATTERN_REPEAT_MAX == 1024, "as the reasons say");

static int schema_root(struct maker *m, struct text schema, uint32_t *root)
{
	if (schema.length > FORM_SCHEMA_BYTES_MAX)
		return form_fail(m, -ERR_TOO_BIG, "the schema has more than 262144 bytes");
	const int code = json_check(schema.at, schema.length, &m->root);
	if (code == -ERR_OUT_OF_RANGE)
		return form_fail(m, -ERR_TOO_BIG, "the schema's JSON is nested deeper than 64");
	if (code != 0)
		return form_fail(m, -ERR_BAD_ARG, "the schema is not JSON");
	return form_schema(m, m->root, root);
}

struct opening {
	const struct template *template;
	const struct tool *tools;
	const struct text *texts;
	uint32_t count;
	enum { OPEN_TOOLS, OPEN_SCHEMA, OPEN_CHOICES, OPEN_REGEX } what;
};

static int build(struct maker *m, const struct opening *o, uint32_t *root)
{
	struct form *f = m->f;
	struct dfa *d;
	int code;
	switch (o->what) {
	case OPEN_SCHEMA:
		return schema_root(m, o->texts[0], root);
	case OPEN_REGEX:
		code = dfa_pattern(&m->dfa, o->texts[0].at, o->texts[0].length, false, &d);
		return form_add_dfa(m, NODE_DFA, code, d, root);
	case OPEN_CHOICES:
		for (uint32_t i = 0; i < o->count; i++) {
			const size_t from = f->text.length;
			if (o->texts[i].length == 0)
				return form_fail(m, -ERR_BAD_ARG, "a choice is empty");
			if (o->texts[i].length > FORM_BYTES_MAX - from)
				return form_fail(m, -ERR_TOO_BIG, "the form has more than 1048576 bytes of text");
			TRY(json_write_raw(o->texts[i].at, o->texts[i].length, &f->text));
			TRY(form_add_alternative(m, from));
		}
		return form_add_choice(m, 0, root);
	default:
		return form_tools(m, o->template, o->tools, o->count, root);
	}
}

static int open_form(const struct form_index *index, const struct opening *o, uint32_t string_max,
		     struct form **out, const char **reason)
{
	struct form *f = calloc(1, sizeof *f);
	struct maker *m = calloc(1, sizeof *m);
	uint32_t root = 0;
	int code = -ERR_MEMORY;
	CHECK(string_max > 0);
	CHECK(string_max <= FORM_STRING_MAX);
	if (f && m) {
		f->index = index;
		f->string_max = string_max;
		m->f = f;
		m->dfa.budget = FORM_BUDGET;
		code = o->count == 0 ? form_fail(m, -ERR_BAD_ARG, "there is nothing to choose from") :
		       o->count > (o->what == OPEN_TOOLS ? FORM_TOOLS_MAX : FORM_CHOICES_MAX) ?
		       form_fail(m, -ERR_TOO_BIG, "there is too much to choose from") : build(m, o, &root);
		if (code == 0)
			code = finish(m, root);
	}
	if (reason)
		*reason = code == 0 ? NULL : m && m->dfa.reason ? m->dfa.reason : "there is no memory";
	free(m);
	if (code != 0)
		form_close(&f);
	*out = f;
	return code;
}

int form_open(const struct form_index *index, const struct template *template,
	      const struct tool *tools, uint32_t tool_count, uint32_t string_max, struct form **out,
	      const char **reason)
{
	const struct opening o = {.template = template, .tools = tools, .count = tool_count, .what = OPEN_TOOLS};
	return open_form(index, &o, string_max, out, reason);
}

int form_open_schema(const struct form_index *index, struct text schema, uint32_t string_max,
		     struct form **out, const char **reason)
{
	const struct opening o = {.texts = &schema, .count = 1, .what = OPEN_SCHEMA};
	return open_form(index, &o, string_max, out, reason);
}

int form_open_choices(const struct form_index *index, const struct text *choice, uint32_t count,
		      struct form **out, const char **reason)
{
	const struct opening o = {.texts = choice, .count = count, .what = OPEN_CHOICES};
	return open_form(index, &o, 1, out, reason);
}

int form_open_regex(const struct form_index *index, struct text pattern, struct form **out,
		    const char **reason)
{
	const struct opening o = {.texts = &pattern, .count = 1, .what = OPEN_REGEX};
	return open_form(index, &o, 1, out, reason);
}

void form_close(struct form **form)
{
	struct form *f = *form;
	if (!f)
		return;
	for (uint32_t i = 0; i < f->dfas; i++)
		dfa_free(f->dfa[i]);
	for (uint32_t i = 0; f->kept && i < FORM_KEPT; i++)
		free(f->kept[i].bits);
	free(f->kept);
	free(f->forced);
	free(f->dfa);
	free(f->text.bytes);
	free(f->node);
	free(f->alternative);
	free(f->property);
	free(f->extra);
	free(f->child);
	free(f->walk.thread);
	free(f->walk.below);
	free(f);
	*form = NULL;
}
