/*
 * Byte by byte: what may come next in a choice, an automaton, a string, an array, an object.
 */
#include "runtime/form_inside.h"

#include <string.h>

enum string_part {
	STRING_START, STRING_INSIDE, STRING_ESCAPE, STRING_HEX_1, STRING_HEX_2, STRING_HEX_2_LOW,
	STRING_HEX_3, STRING_HEX_4,
	/* Inside a character: how many bytes are to come, or what the second byte is bound to. */
	STRING_MORE_1, STRING_MORE_2, STRING_MORE_3, STRING_E0, STRING_ED, STRING_F0, STRING_F4,
	STRING_CLOSED
};

/* A string with a pattern. An escape by number is only for what has no other: \u00XX below 0x20. */
enum pattern_part {
	PATTERN_START, PATTERN_INSIDE, PATTERN_ESCAPE, PATTERN_U, PATTERN_U0, PATTERN_U00, PATTERN_U000,
	PATTERN_U001, PATTERN_CLOSED
};

/* Of an array: `at` is not used, `count` is the items with the one that is gone through. */
enum array_part { ARRAY_START, ARRAY_EMPTY, ARRAY_AFTER, ARRAY_SPACE, ARRAY_CLOSED };

/* Of an object: `part` is how much of a key's text has been seen, `at` the first property that may
   come and, above, one whose text has begun so; `count` those that have come. Or: */
enum object_part { OBJECT_START = 0x80000000, OBJECT_CLOSED, OBJECT_COLON, OBJECT_SPACE };
enum { COMMA_BYTES = 2 };

struct form_frame form_frame_of(const struct form *f, uint32_t node)
{
	const struct node *n = &f->node[node];
	struct form_frame s = {.node = node};
	if (n->kind == NODE_CHOICE) {
		s.at = n->first;
		s.count = n->first + n->count;
	} else if (n->kind == NODE_OBJECT) {
		s.part = OBJECT_START;
	}
	return s;
}

bool form_inside_string(const struct form *f, const struct form_frame *frame)
{
	return f->node[frame->node].kind == NODE_STRING && frame->part == STRING_INSIDE;
}

/* Adds a thread to the level in the making, once. */
static void add(struct form_walk *w, const struct form_thread *t)
{
	for (uint32_t i = w->first; i < w->thread_count; i++)
		if (memcmp(&w->thread[i], t, sizeof *t) == 0)
			return;
	if (w->thread_count - w->first == FORM_THREADS_MAX || w->thread_count == w->thread_max)
		return;
	w->thread[w->thread_count++] = *t;
}

/* FORM_NONE: no room. */
static uint32_t push(struct form_walk *w, struct form_frame frame, uint32_t parent)
{
	const struct form_below b = {frame, parent};
	for (uint32_t i = w->below_count; i > 0 && i + 8 > w->below_count; i--)
		if (memcmp(&w->below[i - 1], &b, sizeof b) == 0)
			return i - 1;
	if (w->below_count == w->below_max)
		return FORM_NONE;
	w->below[w->below_count] = b;
	return w->below_count++;
}

static bool may_end(const struct form *f, const struct form_frame *s)
{
	const struct node *n = &f->node[s->node];
	switch (n->kind) {
	case NODE_CHOICE:
		return f->alternative[s->at].length == s->part;
	case NODE_DFA:
		return n->dfa->accept[s->at];
	case NODE_STRING:
		return s->part == STRING_CLOSED;
	case NODE_PATTERN:
		return s->part == PATTERN_CLOSED;
	case NODE_ARRAY:
		return s->part == ARRAY_CLOSED;
	case NODE_OBJECT:
		return s->part == OBJECT_CLOSED;
	default:
		return false;
	}
}

static void emit(const struct form *f, struct form_walk *w, const struct form_thread *t, int byte)
{
	if (byte == FORM_ADD)
		add(w, t);
	else
		form_step(f, w, t, byte);
}

void form_enter(const struct form *f, struct form_walk *w, uint32_t node, uint32_t parent,
		uint32_t depth, int byte)
{
	const struct node *n = &f->node[node];
	if (depth + n->height > FORM_NESTING_MAX)
		return;
	if (n->kind == NODE_ANY) {
		for (uint32_t i = 0; i < n->count; i++)
			form_enter(f, w, f->child[n->first + i], parent, depth, byte);
	} else if (n->kind == NODE_SEQUENCE) {
		uint32_t at = push(w, (struct form_frame){.node = node, .at = 1}, parent);
		if (at != FORM_NONE)
			form_enter(f, w, f->child[n->first], at, depth + 1, byte);
	} else {
		emit(f, w, &(struct form_thread){form_frame_of(f, node), parent, depth}, byte);
	}
}

/* A frame has ended: what is below it goes on. */
static void leave(const struct form *f, struct form_walk *w, uint32_t parent, uint32_t depth,
		  int byte)
{
	while (parent != FORM_NONE) {
		const struct form_below b = w->below[parent];
		const struct node *n = &f->node[b.frame.node];
		if (n->kind != NODE_SEQUENCE) {
			emit(f, w, &(struct form_thread){b.frame, b.parent, depth - 1}, byte);
			return;
		}
		if (b.frame.at < n->count) {
			struct form_frame next = b.frame;
			next.at++;
			uint32_t at = push(w, next, b.parent);
			if (at != FORM_NONE)
				form_enter(f, w, f->child[n->first + b.frame.at], at, depth, byte);
			return;
		}
		parent = b.parent;
		depth--;
	}
	if (byte == FORM_END)
		w->end = true;
}

/* The first of [low, high) whose byte at depth is at least `byte`. All share what is before. */
static uint32_t bound(const struct form *f, uint32_t low, uint32_t high, uint32_t depth,
		      unsigned byte)
{
	while (low < high) {
		uint32_t middle = low + (high - low) / 2;
		const struct alternative *a = &f->alternative[middle];
		if ((uint8_t)f->text.bytes[a->at + depth] < byte)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

static bool step_choice(const struct form *f, struct form_frame *s, uint8_t byte)
{
	/* Of those that share what has been seen, one that has ended is the first. */
	uint32_t low = s->at + (f->alternative[s->at].length == s->part);
	s->at = bound(f, low, s->count, s->part, byte);
	s->count = bound(f, s->at, s->count, s->part, byte + 1u);
	s->part++;
	return s->at < s->count;
}

static bool is_digit(uint8_t byte)
{
	return byte >= '0' && byte <= '9';
}

static bool is_hex(uint8_t byte)
{
	return is_digit(byte) || ((byte | 0x20) >= 'a' && (byte | 0x20) <= 'f');
}

/* The state after the first byte of a character above U+007F; STRING_START: it begins none. */
static enum string_part part_of_lead(uint8_t byte)
{
	if (byte < 0xc2 || byte > 0xf4)
		return STRING_START;
	if (byte < 0xe0)
		return STRING_MORE_1;
	if (byte < 0xf0)
		return byte == 0xe0 ? STRING_E0 : byte == 0xed ? STRING_ED : STRING_MORE_2;
	return byte == 0xf0 ? STRING_F0 : byte == 0xf4 ? STRING_F4 : STRING_MORE_3;
}

/* A byte at a character's boundary inside a string. */
static bool step_inside(const struct form *f, struct form_frame *s, uint8_t byte)
{
	const struct node *n = &f->node[s->node];
	if (byte == '"') {
		s->part = STRING_CLOSED;
		return s->count >= n->low;
	}
	/* Only here is the length looked at, so that what is begun can be ended. */
	if (byte < 0x20 || s->count >= n->high)
		return false;
	s->count++;
	if (byte == '\\')
		s->part = STRING_ESCAPE;
	else if (byte >= 0x80)
		s->part = f->index->ascii_only ? STRING_START : part_of_lead(byte);
	return s->part != STRING_START;
}

static bool step_escape(struct form_frame *s, uint8_t byte)
{
	enum string_part part = s->part;
	switch (part) {
	case STRING_ESCAPE:
		s->part = byte == 'u' ? STRING_HEX_1 : STRING_INSIDE;
		return byte && strchr("\"\\/bfnrtu", byte);
	case STRING_HEX_1:
		/* D8 to DF would begin half a surrogate pair. */
		s->part = (byte | 0x20) == 'd' ? STRING_HEX_2_LOW : STRING_HEX_2;
		return is_hex(byte);
	case STRING_HEX_2_LOW:
		s->part = STRING_HEX_3;
		return byte >= '0' && byte <= '7';
	case STRING_HEX_2:
		s->part = STRING_HEX_3;
		return is_hex(byte);
	case STRING_HEX_3:
		s->part = STRING_HEX_4;
		return is_hex(byte);
	default:
		s->part = STRING_INSIDE;
		return is_hex(byte);
	}
}

static bool step_more(struct form_frame *s, uint8_t byte)
{
	uint8_t least = 0x80, most = 0xbf;
	enum string_part part = s->part;
	s->part = part == STRING_MORE_1 ? STRING_INSIDE :
		  part == STRING_MORE_3 || part == STRING_F0 || part == STRING_F4 ?
		  STRING_MORE_2 : STRING_MORE_1;
	if (part == STRING_E0)
		least = 0xa0;
	if (part == STRING_ED)
		most = 0x9f;
	if (part == STRING_F0)
		least = 0x90;
	if (part == STRING_F4)
		most = 0x8f;
	return byte >= least && byte <= most;
}

static bool step_string(const struct form *f, struct form_frame *s, uint8_t byte)
{
	if (s->part == STRING_START) {
		s->part = STRING_INSIDE;
		return byte == '"';
	}
	if (s->part == STRING_INSIDE)
		return step_inside(f, s, byte);
	if (s->part == STRING_CLOSED)
		return false;
	return s->part < STRING_MORE_1 ? step_escape(s, byte) : step_more(s, byte);
}

static bool step_dfa(const struct dfa *d, struct form_frame *s, uint8_t byte)
{
	const uint16_t next = dfa_next(d, s->at, byte);
	s->at = next;
	return next != DFA_DEAD;
}

static const char short_escapes[] = "\"\\/bfnrt", short_meant[] = "\"\\/\b\f\n\r\t";

/* Whether one of the control characters of [low, high) may come. */
static bool control_fits(const struct dfa *d, uint32_t state, unsigned low, unsigned high)
{
	for (unsigned c = low; c < high; c++)
		if (dfa_next(d, state, (uint8_t)c) != DFA_DEAD)
			return true;
	return false;
}

static bool step_pattern_escape(const struct dfa *d, struct form_frame *s, uint8_t byte)
{
	const char *known = byte ? strchr(short_escapes, byte) : NULL;
	if (byte == 'u') {
		s->part = PATTERN_U;
		return control_fits(d, s->at, 0, 0x20);
	}
	s->part = PATTERN_INSIDE;
	return known && step_dfa(d, s, (uint8_t)short_meant[known - short_escapes]);
}

static bool step_pattern(const struct dfa *d, struct form_frame *s, uint8_t byte)
{
	enum pattern_part part = s->part;
	unsigned digit = is_digit(byte) ? byte - 0u - '0' : (byte | 0x20u) - 'a' + 10;
	switch (part) {
	case PATTERN_START:
		s->part = PATTERN_INSIDE;
		return byte == '"';
	case PATTERN_INSIDE:
		if (byte == '"') {
			s->part = PATTERN_CLOSED;
			return d->accept[s->at];
		}
		if (byte != '\\')
			return byte >= 0x20 && step_dfa(d, s, byte);
		s->part = PATTERN_ESCAPE;
		for (unsigned i = 0; i < sizeof short_meant - 1; i++)
			if (dfa_next(d, s->at, (uint8_t)short_meant[i]) != DFA_DEAD)
				return true;
		return control_fits(d, s->at, 0, 0x20);
	case PATTERN_ESCAPE:
		return step_pattern_escape(d, s, byte);
	case PATTERN_U:
	case PATTERN_U0:
		s->part++;
		return byte == '0';
	case PATTERN_U00:
		s->part = byte == '1' ? PATTERN_U001 : PATTERN_U000;
		return (byte == '0' || byte == '1') &&
		       control_fits(d, s->at, digit * 16, digit * 16 + 16);
	case PATTERN_U000:
	case PATTERN_U001:
		s->part = PATTERN_INSIDE;
		return is_hex(byte) && step_dfa(d, s, (uint8_t)(digit + (part == PATTERN_U001 ? 16 : 0)));
	default:
		return false;
	}
}

/* The node of the item of that number; FORM_NONE: there can be none. */
static uint32_t item_node(const struct form *f, const struct node *n, uint32_t item)
{
	return item < n->count ? f->child[n->first + item] : n->other;
}

/* Whether another item may come in an array at that depth. */
static bool item_fits(const struct form *f, const struct node *n, uint32_t count, uint32_t depth)
{
	if (count >= n->high)
		return false;
	uint32_t node = item_node(f, n, count);
	return node != FORM_NONE && depth + 1 + f->node[node].height <= FORM_NESTING_MAX;
}

static void item_enter(const struct form *f, struct form_walk *w, const struct form_thread *t)
{
	const struct node *n = &f->node[t->top.node];
	const struct form_frame after = {t->top.node, 0, t->top.count + 1, ARRAY_AFTER};
	uint32_t at = push(w, after, t->parent);
	if (at != FORM_NONE)
		form_enter(f, w, item_node(f, n, t->top.count), at, t->depth + 1, FORM_ADD);
}

static void step_array(const struct form *f, struct form_walk *w, struct form_thread *t,
		       uint8_t byte)
{
	const struct node *n = &f->node[t->top.node];
	struct form_frame *s = &t->top;
	enum array_part part = s->part;
	if (part == ARRAY_START && byte == '[') {
		if (item_fits(f, n, 0, t->depth))
			item_enter(f, w, t);
		s->part = ARRAY_EMPTY;
		if (n->low == 0)
			add(w, t);
	} else if ((part == ARRAY_EMPTY || (part == ARRAY_AFTER && s->count >= n->low)) && byte == ']') {
		s->part = ARRAY_CLOSED;
		add(w, t);
	} else if (part == ARRAY_AFTER && byte == ',' && item_fits(f, n, s->count, t->depth)) {
		s->part = ARRAY_SPACE;
		add(w, t);
	} else if (part == ARRAY_SPACE && byte == ' ') {
		item_enter(f, w, t);
	}
}

/* Whether the property may come next, `from` being the first that may: what is passed over is not
   required, its value has room, and the count can still come right. */
static bool property_fits(const struct form *f, const struct form_thread *t, uint32_t from,
			  uint32_t j)
{
	const struct node *n = &f->node[t->top.node];
	const struct property *p = &f->property[n->first], *last = &p[n->count - 1];
	const uint32_t required = last->required_before + last->required;
	if (p[j].required_before != p[from].required_before)
		return false;
	if (t->depth + 1 + f->node[p[j].value].height > FORM_NESTING_MAX)
		return false;
	const uint64_t count = (uint64_t)t->top.count + 1;
	const uint64_t most = n->extra_count ? UINT64_MAX : count + (n->count - j - 1);
	return most >= n->low && count + required - p[j].required_before - p[j].required <= n->high;
}

/* No required property is left from `from` on. */
static bool all_there(const struct form *f, const struct node *n, uint32_t from)
{
	const struct property *p = &f->property[n->first];
	return from == n->count || p[n->count - 1].required_before + p[n->count - 1].required ==
					   p[from].required_before;
}

static bool extra_fits(const struct form *f, const struct form_thread *t, uint32_t from, uint32_t i)
{
	const struct node *n = &f->node[t->top.node];
	const struct extra *x = &f->extra[n->extra + i];
	return all_there(f, n, from) && t->top.count < n->high &&
	       t->depth + 1 + f->node[x->key].height <= FORM_NESTING_MAX &&
	       t->depth + 1 + f->node[x->value].height <= FORM_NESTING_MAX;
}

/* A byte of a key's text: the properties whose texts go on so share one thread. */
static void step_key(const struct form *f, struct form_walk *w, struct form_thread *t, uint8_t byte)
{
	const struct node *n = &f->node[t->top.node];
	const struct property *p = &f->property[n->first];
	const uint32_t from = t->top.at & 0xffff, seen = t->top.at >> 16, part = t->top.part;
	for (uint32_t j = from; j < n->count && p[j].required_before == p[from].required_before; j++) {
		const char *text = f->text.bytes + p[j].at;
		if (part >= p[j].length || (uint8_t)text[part] != byte ||
		    memcmp(text, f->text.bytes + p[seen].at, part) || !property_fits(f, t, from, j))
			continue;
		if (part + 1 < p[j].length) {
			t->top.at = from | j << 16;
			t->top.part++;
			add(w, t);
			return;
		}
		const struct form_frame after = {t->top.node, (j + 1) | (j + 1 < n->count ? j + 1 : 0) << 16,
						 t->top.count + 1, 0};
		uint32_t at = push(w, after, t->parent);
		if (at != FORM_NONE)
			form_enter(f, w, p[j].value, at, t->depth + 1, FORM_ADD);
		return;
	}
}

/* A key that is none of the properties': its comma, then its string in a frame of its own. */
static void step_extra(const struct form *f, struct form_walk *w, const struct form_thread *t,
		       uint8_t byte)
{
	const struct node *n = &f->node[t->top.node];
	const uint32_t from = t->top.at & 0xffff;
	for (uint32_t i = 0; i < n->extra_count; i++) {
		if (!extra_fits(f, t, from, i))
			continue;
		if (t->top.part < COMMA_BYTES) {
			struct form_thread next = *t;
			if (byte != ", "[t->top.part])
				return;
			next.top.at = n->count;
			next.top.part++;
			add(w, &next);
			return;
		}
		const struct form_frame colon = {t->top.node, i, t->top.count + 1, OBJECT_COLON};
		uint32_t at = push(w, colon, t->parent);
		if (at != FORM_NONE)
			form_enter(f, w, f->extra[n->extra + i].key, at, t->depth + 1, byte);
	}
}

static void step_object(const struct form *f, struct form_walk *w, struct form_thread *t,
			uint8_t byte)
{
	const struct node *n = &f->node[t->top.node];
	struct form_frame *s = &t->top;
	if (s->part == OBJECT_START) {
		s->part = COMMA_BYTES;
		if (byte == '{')
			add(w, t);
	} else if (s->part == OBJECT_COLON) {
		s->part = OBJECT_SPACE;
		if (byte == ':')
			add(w, t);
	} else if (s->part == OBJECT_SPACE && byte == ' ') {
		const struct form_frame after = {s->node, n->count, s->count, 0};
		uint32_t at = push(w, after, t->parent);
		if (at != FORM_NONE)
			form_enter(f, w, f->extra[n->extra + s->at].value, at, t->depth + 1, FORM_ADD);
	} else if (s->part < OBJECT_START) {
		const bool between = s->part == 0 || (s->part == COMMA_BYTES && s->count == 0);
		if (byte == '}' && between) {
			if (!all_there(f, n, s->at & 0xffff) || s->count < n->low)
				return;
			s->part = OBJECT_CLOSED;
			add(w, t);
			return;
		}
		if (s->part <= COMMA_BYTES)
			step_extra(f, w, t, byte);
		if ((s->at & 0xffff) < n->count)
			step_key(f, w, t, byte);
	}
}

void form_step(const struct form *f, struct form_walk *w, const struct form_thread *t, int byte)
{
	struct form_thread next = *t;
	bool goes_on = false;
	switch (byte == FORM_END ? NODE_NONE : f->node[t->top.node].kind) {
	case NODE_CHOICE:
		goes_on = step_choice(f, &next.top, (uint8_t)byte);
		break;
	case NODE_DFA:
		goes_on = step_dfa(f->node[t->top.node].dfa, &next.top, (uint8_t)byte);
		break;
	case NODE_STRING:
		goes_on = step_string(f, &next.top, (uint8_t)byte);
		break;
	case NODE_PATTERN:
		goes_on = step_pattern(f->node[t->top.node].dfa, &next.top, (uint8_t)byte);
		break;
	case NODE_ARRAY:
		step_array(f, w, &next, (uint8_t)byte);
		break;
	case NODE_OBJECT:
		step_object(f, w, &next, (uint8_t)byte);
		break;
	default:
		break;
	}
	if (goes_on)
		add(w, &next);
	if (may_end(f, &t->top))
		leave(f, w, t->parent, t->depth, byte);
}
