/*
 * Patterns to automata: parsed into a tree, laid out as states with alternatives (Thompson), made
 * certain by sets of states (form_sets.c). Each is bounded, and what can grow spends from the form's
 * budget.
 */
#include "runtime/form_regex_inside.h"

#include <stdlib.h>
#include <string.h>

#include "runtime/unicode.h"

static int fail(struct regex *x, int code, const char *reason)
{
	x->m->reason = reason;
	return code;
}

/* There is always room: each byte of a pattern makes one part at most, but an opening parenthesis, which
   makes two where its closing makes none. Left over are the groups that are open at once, the two parts
   that stand around the whole pattern, and the one of a search. */
static int add_tree(struct regex *x, struct tree tree, uint32_t *at)
{
	_Static_assert(PATTERN_BYTES_MAX + PATTERN_DEPTH_MAX + 3 <= PATTERN_NODES_MAX, "a part for each byte");
	CHECK(x->trees < PATTERN_NODES_MAX);
	*at = x->trees;
	x->tree[x->trees++] = tree;
	return 0;
}

static int add_range(struct regex *x, uint32_t low, uint32_t high)
{
	if (x->ranges == PATTERN_NODES_MAX)
		return fail(x, -ERR_TOO_BIG, "a pattern has more than 32768 parts, its repetitions written out");
	x->range[x->ranges++] = (struct range){low, high};
	return 0;
}

static int range_order(const void *a, const void *b)
{
	const struct range *x = a, *y = b;
	return (x->low > y->low) - (x->low < y->low);
}

/* Puts the ranges from `first` on in order, joins those that touch, turns them round if asked. */
static int ranges_settle(struct regex *x, uint32_t first, bool negated)
{
	uint32_t count = x->ranges - first, kept = 0, from = 0;
	struct range *r = x->range + first;
	qsort(r, count, sizeof *r, range_order);
	for (uint32_t i = 0; i < count; i++) {
		if (kept > 0 && r[i].low <= r[kept - 1].high + 1) {
			if (r[i].high > r[kept - 1].high)
				r[kept - 1].high = r[i].high;
		} else {
			r[kept++] = r[i];
		}
	}
	x->ranges = first + kept;
	if (!negated)
		return 0;
	for (uint32_t i = 0; i < kept; i++) {
		const struct range one = r[i];
		if (one.low > from)
			TRY(add_range(x, from, one.low - 1));
		from = one.high + 1;
	}
	if (from <= CHARACTER_MAX)
		TRY(add_range(x, from, CHARACTER_MAX));
	memmove(r, r + kept, (x->ranges - first - kept) * sizeof *r);
	x->ranges -= kept;
	return 0;
}

/* \d \w \s and, in capitals, what they leave out. */
static int add_named(struct regex *x, char name)
{
	static const struct range digit[] = {{'0', '9'}};
	static const struct range word[] = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
	static const struct range space[] = {{9, 13}, {32, 32}, {0xa0, 0xa0}, {0x1680, 0x1680},
					     {0x2000, 0x200a}, {0x2028, 0x2029}, {0x202f, 0x202f},
					     {0x205f, 0x205f}, {0x3000, 0x3000}, {0xfeff, 0xfeff}};
	const struct range *set = (name | 0x20) == 'd' ? digit : (name | 0x20) == 'w' ? word : space;
	const uint32_t count = (name | 0x20) == 'd' ? 1 : (name | 0x20) == 'w' ? 4 : 10;
	uint32_t from = 0;
	for (uint32_t i = 0; i < count; i++) {
		if (name & 0x20)
			TRY(add_range(x, set[i].low, set[i].high));
		else if (set[i].low > from)
			TRY(add_range(x, from, set[i].low - 1));
		from = set[i].high + 1;
	}
	return name & 0x20 ? 0 : add_range(x, from, CHARACTER_MAX);
}

/* The character at *at of UTF-8 that is known to be well-formed. */
static uint32_t character(const char **at)
{
	uint8_t first = (uint8_t)*(*at)++;
	unsigned more = first < 0xc0 ? 0 : first < 0xe0 ? 1 : first < 0xf0 ? 2 : 3;
	uint32_t c = more == 0 ? first : first & (0x3fu >> more);
	for (; more > 0; more--)
		c = c << 6 | ((uint8_t)*(*at)++ & 0x3fu);
	return c;
}

static int hex(struct regex *x, unsigned digits, uint32_t *c)
{
	for (*c = 0; digits > 0; digits--, x->at++) {
		const char *set = "0123456789abcdef", *found;
		if (x->at == x->end || !*x->at)
			return fail(x, -ERR_BAD_ARG, "a pattern's escape is not whole: \\xHH, \\uHHHH or \\u{H...} is");
		found = strchr(set, *x->at >= 'A' && *x->at <= 'F' ? *x->at | 0x20 : *x->at);
		if (!found)
			return fail(x, -ERR_BAD_ARG, "a pattern's escape is not whole: \\xHH, \\uHHHH or \\u{H...} is");
		*c = *c << 4 | (uint32_t)(found - set);
	}
	return 0;
}

/* \u: four digits, or in braces as many as it takes. */
static int unicode_escape(struct regex *x, uint32_t *c)
{
	if (x->at < x->end && *x->at == '{') {
		const char *close = memchr(x->at, '}', (size_t)(x->end - x->at));
		if (!close || close - x->at < 2 || close - x->at > 7)
			return fail(x, -ERR_BAD_ARG, "a pattern's escape is not whole: \\xHH, \\uHHHH or \\u{H...} is");
		x->at++;
		TRY(hex(x, (unsigned)(close - x->at), c));
		x->at++;
	} else {
		uint32_t low;
		TRY(hex(x, 4, c));
		if (*c >= 0xd800 && *c < 0xdc00 && x->end - x->at >= 6 && x->at[0] == '\\' && x->at[1] == 'u') {
			x->at += 2;
			TRY(hex(x, 4, &low));
			if (low < 0xdc00 || low > 0xdfff)
				return fail(x, -ERR_BAD_ARG, "a pattern has half a surrogate pair");
			*c = 0x10000 + ((*c - 0xd800) << 10) + (low - 0xdc00);
		}
	}
	if (*c > CHARACTER_MAX || (*c >= 0xd800 && *c <= 0xdfff))
		return fail(x, -ERR_BAD_ARG, "a pattern has half a surrogate pair");
	return 0;
}

/* What stands after a backslash: a set (*set, its ranges are added) or a character. */
static int escape(struct regex *x, bool in_class, bool *set, uint32_t *c)
{
	static const char from[] = "fnrtv", to[] = "\f\n\r\t\v";
	*set = false;
	if (x->at == x->end)
		return fail(x, -ERR_BAD_ARG, "a pattern ends in a backslash");
	char e = *x->at;
	const char *known = e ? strchr(from, e) : NULL;
	if (e && strchr("dwsDWS", e)) {
		x->at++;
		*set = true;
		return add_named(x, e);
	}
	if ((uint8_t)e < 0x80)
		x->at++;
	if (known)
		*c = (uint8_t)to[known - from];
	else if (e == 'x')
		return hex(x, 2, c);
	else if (e == 'u')
		return unicode_escape(x, c);
	else if (e == '0' && (x->at == x->end || *x->at < '0' || *x->at > '9'))
		*c = 0;
	else if (e == 'b' && in_class)
		*c = 8;
	else if (e >= '0' && e <= '9')
		return fail(x, -ERR_UNSUPPORTED, "a pattern looks back at what it matched, which is not supported");
	else if (e == 'p' || e == 'P')
		return fail(x, -ERR_UNSUPPORTED,
				"a pattern names a property of characters (\\p), which is not supported: list them");
	else if (e == 'b' || e == 'B')
		return fail(x, -ERR_UNSUPPORTED, "a pattern asks for a word's edge (\\b), which is not supported");
	else if ((e >= 'a' && e <= 'z') || (e >= 'A' && e <= 'Z'))
		return fail(x, -ERR_BAD_ARG,
				"a pattern has an unknown escape: a letter that means nothing after a backslash");
	else
		*c = (uint8_t)e < 0x80 ? (uint8_t)e : character(&x->at);
	return 0;
}

/* One end of a range in brackets. */
static int class_item(struct regex *x, bool *set, uint32_t *c)
{
	if (x->at == x->end)
		return fail(x, -ERR_BAD_ARG, "a pattern's bracket is not closed");
	if (*x->at == '\\') {
		x->at++;
		return escape(x, true, set, c);
	}
	*set = false;
	*c = character(&x->at);
	return 0;
}

static int parse_class(struct regex *x, uint32_t *out)
{
	const uint32_t first = x->ranges;
	bool negated = x->at < x->end && *x->at == '^', set, set_high;
	uint32_t low, high;
	x->at += negated;
	for (;;) {
		if (x->at < x->end && *x->at == ']')
			break;
		TRY(class_item(x, &set, &low));
		if (x->end - x->at >= 2 && x->at[0] == '-' && x->at[1] != ']') {
			x->at++;
			TRY(class_item(x, &set_high, &high));
			if (set || set_high || high < low)
				return fail(x, -ERR_BAD_ARG, "a pattern's range is the wrong way round");
			TRY(add_range(x, low, high));
		} else if (!set) {
			TRY(add_range(x, low, low));
		}
	}
	x->at++;
	TRY(ranges_settle(x, first, negated));
	return add_tree(x, (struct tree){.kind = TREE_CLASS, .last = NONE_NODE, .before = NONE_NODE,
					 .least = first, .most = x->ranges - first}, out);
}

static int class_of(struct regex *x, uint32_t first, uint32_t *out)
{
	return add_tree(x, (struct tree){.kind = TREE_CLASS, .last = NONE_NODE, .before = NONE_NODE,
					 .least = first, .most = x->ranges - first}, out);
}

static int parse_either(struct regex *x, uint32_t *out);

/* What follows an opening parenthesis. */
static int parse_group(struct regex *x, uint32_t *out)
{
	if (x->at < x->end && *x->at == '?') {
		const char *name = x->at + 2;
		if (x->end - x->at >= 2 && x->at[1] == ':') {
			x->at += 2;
		} else if (x->end - x->at >= 3 && x->at[1] == '<' && *name != '=' && *name != '!') {
			name = memchr(x->at, '>', (size_t)(x->end - x->at));
			if (!name)
				return fail(x, -ERR_BAD_ARG, "a pattern's group has no name");
			x->at = name + 1;
		} else {
			return fail(x, -ERR_UNSUPPORTED,
					"a pattern looks ahead or behind, or sets flags, which is not supported");
		}
	}
	if (++x->depth > PATTERN_DEPTH_MAX)
		return fail(x, -ERR_TOO_BIG, "a pattern's groups are nested deeper than 64");
	TRY(parse_either(x, out));
	x->depth--;
	if (x->at == x->end)
		return fail(x, -ERR_BAD_ARG, "a pattern's group is not closed");
	x->at++;
	return 0;
}

static int parse_atom(struct regex *x, uint32_t *out)
{
	const uint32_t first = x->ranges;
	const struct tree edge = {.last = NONE_NODE, .before = NONE_NODE};
	uint32_t c;
	bool set = false;
	switch (*x->at) {
	case '(':
		x->at++;
		return parse_group(x, out);
	case '[':
		x->at++;
		return parse_class(x, out);
	case '^':
	case '$':
		TRY(add_tree(x, edge, out));
		x->tree[*out].kind = *x->at++ == '^' ? TREE_BEGIN : TREE_END;
		return 0;
	case '*':
	case '+':
	case '?':
	case '{':
		return fail(x, -ERR_BAD_ARG, "a pattern repeats nothing");
	case '.':
		x->at++;
		TRY(add_range(x, '\n', '\n'));
		TRY(add_range(x, '\r', '\r'));
		TRY(add_range(x, 0x2028, 0x2029));
		TRY(ranges_settle(x, first, true));
		return class_of(x, first, out);
	case '\\':
		x->at++;
		TRY(escape(x, false, &set, &c));
		break;
	default:
		c = character(&x->at);
	}
	if (!set)
		TRY(add_range(x, c, c));
	return class_of(x, first, out);
}

static int count_read(struct regex *x, uint32_t *count)
{
	const char *start = x->at;
	for (*count = 0; x->at < x->end && *x->at >= '0' && *x->at <= '9'; x->at++) {
		*count = *count * 10 + (uint32_t)(*x->at - '0');
		if (*count > PATTERN_REPEAT_MAX)
			return fail(x, -ERR_TOO_BIG, "a pattern repeats a part more than 1024 times");
	}
	return x->at > start ? 0 : fail(x, -ERR_BAD_ARG,
			"a pattern's repetition is none of {n}, {n,} and {n,m} with n up to m");
}

/* * + ? {n} {n,} {n,m}, each with a ? that says nothing here. False: there is none. */
static int parse_repeat(struct regex *x, bool *found, uint32_t *least, uint32_t *most)
{
	char c = x->at < x->end ? *x->at : 0;
	*found = c && strchr("*+?{", c);
	if (!*found)
		return 0;
	x->at++;
	*least = c == '+';
	*most = c == '?' ? 1 : ENDLESS;
	if (c == '{') {
		TRY(count_read(x, least));
		*most = *least;
		if (x->at < x->end && *x->at == ',') {
			x->at++;
			*most = ENDLESS;
			if (x->at < x->end && *x->at != '}')
				TRY(count_read(x, most));
		}
		if (x->at == x->end || *x->at != '}' || *most < *least)
			return fail(x, -ERR_BAD_ARG,
					"a pattern's repetition is none of {n}, {n,} and {n,m} with n up to m");
		x->at++;
	}
	if (x->at < x->end && *x->at == '?')
		x->at++;
	return 0;
}

static int parse_list(struct regex *x, uint32_t *out)
{
	uint32_t last = NONE_NODE, one, least, most;
	bool found;
	TRY(add_tree(x, (struct tree){.kind = TREE_LIST, .before = NONE_NODE}, out));
	while (x->at < x->end && *x->at != '|' && *x->at != ')') {
		TRY(parse_atom(x, &one));
		TRY(parse_repeat(x, &found, &least, &most));
		if (found) {
			enum tree_kind kind = x->tree[one].kind;
			if (kind == TREE_BEGIN || kind == TREE_END)
				return fail(x, -ERR_BAD_ARG, "a pattern repeats nothing");
			TRY(add_tree(x, (struct tree){TREE_REPEAT, one, NONE_NODE, least, most}, &one));
		}
		x->tree[one].before = last;
		last = one;
	}
	x->tree[*out].last = last;
	return 0;
}

static int parse_either(struct regex *x, uint32_t *out)
{
	uint32_t last, one;
	TRY(add_tree(x, (struct tree){.kind = TREE_EITHER, .before = NONE_NODE}, out));
	TRY(parse_list(x, &last));
	while (x->at < x->end && *x->at == '|') {
		x->at++;
		TRY(parse_list(x, &one));
		x->tree[one].before = last;
		last = one;
	}
	x->tree[*out].last = last;
	return 0;
}

static int add_step(struct regex *x, struct nstep step, uint32_t *at)
{
	if (x->steps == PATTERN_NODES_MAX)
		return fail(x, -ERR_TOO_BIG, "a pattern has more than 32768 parts, its repetitions written out");
	TRY(dfa_spend(x->m, 1));
	*at = x->steps;
	x->step[x->steps++] = step;
	return 0;
}

static int add_either(struct regex *x, uint32_t a, uint32_t *to)
{
	if (*to == NONE_NODE) {
		*to = a;
		return 0;
	}
	return add_step(x, (struct nstep){.kind = STEP_SPLIT, .a = a, .b = *to}, to);
}

/* A range whose ends have as many bytes, cut so that each piece is a range in each byte. */
static int lay_range(struct regex *x, uint32_t low, uint32_t high, uint32_t next, uint32_t *to)
{
	static const uint32_t ends[] = {0x7f, 0x7ff, 0xd7ff, 0xffff};
	while (low <= high) {
		uint8_t a[4], b[4];
		uint32_t top = high, state = next;
		if (low >= 0xd800 && low <= 0xdfff) { /* no characters */
			low = 0xe000;
			continue;
		}
		for (unsigned i = 0; i < 4; i++)
			if (low <= ends[i] && top > ends[i])
				top = ends[i];
		for (unsigned bits = 18; bits >= 6; bits -= 6) {
			uint32_t part = (1u << bits) - 1;
			if ((low & ~part) == (top & ~part) || top < 0x80)
				continue;
			if (low & part)
				top = low | part;
			else if ((top & part) != part)
				top = (top & ~part) - 1;
		}
		size_t n = character_write(low, a);
		character_write(top, b);
		for (size_t i = n; i-- > 0;)
			TRY(add_step(x, (struct nstep){STEP_BYTE, a[i], b[i], state, 0}, &state));
		TRY(add_either(x, state, to));
		low = top + 1;
	}
	return 0;
}

/* Lays out a part so that what follows it is `next`; *to is where it begins. NONE_NODE: it matches
   nothing at all (an empty class). */
static int lay(struct regex *x, uint32_t at, uint32_t next, uint32_t *to)
{
	const struct tree t = x->tree[at];
	uint32_t one, loop;
	*to = next;
	switch (t.kind) {
	case TREE_EMPTY:
		return 0;
	case TREE_BEGIN:
	case TREE_END:
		return add_step(x, (struct nstep){.kind = t.kind == TREE_BEGIN ? STEP_BEGIN : STEP_END,
						  .a = next}, to);
	case TREE_CLASS:
		*to = NONE_NODE;
		for (uint32_t i = 0; i < t.most; i++)
			TRY(lay_range(x, x->range[t.least + i].low, x->range[t.least + i].high, next, to));
		if (*to == NONE_NODE) /* a byte that is none */
			return add_step(x, (struct nstep){STEP_BYTE, 1, 0, next, 0}, to);
		return 0;
	case TREE_LIST:
		for (one = t.last; one != NONE_NODE; one = x->tree[one].before)
			TRY(lay(x, one, *to, to));
		return 0;
	case TREE_EITHER:
		*to = NONE_NODE;
		for (one = t.last; one != NONE_NODE; one = x->tree[one].before) {
			TRY(lay(x, one, next, &loop));
			TRY(add_either(x, loop, to));
		}
		return 0;
	default:
		if (t.most == ENDLESS) {
			TRY(add_step(x, (struct nstep){.kind = STEP_SPLIT, .b = next}, &loop));
			TRY(lay(x, t.last, loop, &one));
			x->step[loop].a = one;
			*to = loop;
		}
		for (uint32_t i = t.least; t.most != ENDLESS && i < t.most; i++) {
			TRY(lay(x, t.last, *to, &one));
			TRY(add_step(x, (struct nstep){.kind = STEP_SPLIT, .a = one, .b = next}, to));
		}
		for (uint32_t i = 0; i < t.least; i++)
			TRY(lay(x, t.last, *to, to));
		return 0;
	}
}

/* Parses, lays out between "any character" loops if it is searched for, makes certain. */
static int pattern(struct regex *x, bool search, struct dfa **out)
{
	uint32_t tree, any = 0, last, start, loop;
	TRY(parse_either(x, &tree));
	if (x->at < x->end)
		return fail(x, -ERR_BAD_ARG, "a pattern's group is not opened");
	TRY(add_step(x, (struct nstep){.kind = STEP_MATCH}, &last));
	if (search) {
		const uint32_t first = x->ranges;
		TRY(add_range(x, 0, CHARACTER_MAX));
		TRY(class_of(x, first, &any));
		TRY(add_step(x, (struct nstep){.kind = STEP_SPLIT, .b = last}, &loop));
		TRY(lay(x, any, loop, &x->step[loop].a));
		last = loop;
	}
	TRY(lay(x, tree, last, &start));
	if (search) {
		TRY(add_step(x, (struct nstep){.kind = STEP_SPLIT, .b = start}, &loop));
		TRY(lay(x, any, loop, &x->step[loop].a));
		start = loop;
	}
	return regex_make_certain(x, start, out);
}

int dfa_pattern(struct dfa_maker *m, const char *text, size_t length, bool search,
		struct dfa **out)
{
	struct regex x = {.m = m, .at = text, .end = text + length};
	int code = -ERR_MEMORY;
	*out = NULL;
	if (length > PATTERN_BYTES_MAX) {
		m->reason = "a pattern has more than 16384 bytes";
		return -ERR_TOO_BIG;
	}
	if (!dfa_utf8(text, length)) {
		m->reason = "a pattern is not UTF-8";
		return -ERR_BAD_ARG;
	}
	x.tree = malloc(PATTERN_NODES_MAX * sizeof *x.tree);
	x.range = malloc(PATTERN_NODES_MAX * sizeof *x.range);
	x.step = malloc(PATTERN_NODES_MAX * sizeof *x.step);
	if (x.tree && x.range && x.step)
		code = pattern(&x, search, out);
	free(x.tree);
	free(x.range);
	free(x.step);
	return code;
}
