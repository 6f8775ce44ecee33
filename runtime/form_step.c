/*
 * The byte automaton: what may come next in a literal, a choice, a string, a number.
 */
#include "runtime/form_inside.h"

#include <string.h>

enum string_part {
	STRING_START, STRING_INSIDE, STRING_ESCAPE, STRING_HEX_1, STRING_HEX_2, STRING_HEX_2_LOW,
	STRING_HEX_3, STRING_HEX_4,
	/* Inside a character: how many bytes are to come, or what the second byte is bound to. */
	STRING_MORE_1, STRING_MORE_2, STRING_MORE_3, STRING_E0, STRING_ED, STRING_F0, STRING_F4
};

enum number_part {
	NUMBER_START, NUMBER_MINUS, NUMBER_ZERO, NUMBER_DIGITS, NUMBER_POINT, NUMBER_FRACTION,
	NUMBER_E, NUMBER_E_SIGN, NUMBER_EXPONENT
};

void form_enter(const struct form *form, struct form_state *s, uint32_t node)
{
	const struct node *n = &form->node[node];
	*s = (struct form_state){.node = node, .low = n->first, .high = n->first + n->count};
}

/* The first of [low, high) whose byte at depth is at least `byte`. All share what is before. */
static uint32_t bound(const struct form *form, uint32_t low, uint32_t high, uint32_t depth,
		      unsigned byte)
{
	while (low < high) {
		uint32_t middle = low + (high - low) / 2;
		const struct alternative *a = &form->alternative[middle];
		if ((uint8_t)form->text.bytes[a->at + depth] < byte)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

static bool step_choice(const struct form *form, struct form_state *s, uint8_t byte)
{
	s->low = bound(form, s->low, s->high, s->depth, byte);
	s->high = bound(form, s->low, s->high, s->depth, byte + 1u);
	if (s->low == s->high)
		return false;
	s->depth++;
	const struct alternative *a = &form->alternative[s->low];
	if (a->length == s->depth)
		form_enter(form, s, a->next);
	return true;
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
static bool step_inside(const struct form *form, struct form_state *s, uint8_t byte)
{
	if (byte == '"') {
		form_enter(form, s, form->node[s->node].next);
		return true;
	}
	/* Only here is the length looked at, so that what is begun can be ended. */
	if (byte < 0x20 || s->count >= form->string_bytes)
		return false;
	s->count++;
	if (byte == '\\')
		s->part = STRING_ESCAPE;
	else if (byte >= 0x80)
		s->part = form->index->ascii_only ? STRING_START : part_of_lead(byte);
	return s->part != STRING_START;
}

static bool step_escape(struct form_state *s, uint8_t byte)
{
	enum string_part part = s->part;
	s->count++;
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

static bool step_more(struct form_state *s, uint8_t byte)
{
	uint8_t least = 0x80, most = 0xbf;
	enum string_part part = s->part;
	s->count++;
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

static bool step_string(const struct form *form, struct form_state *s, uint8_t byte)
{
	if (s->part == STRING_START) {
		s->part = STRING_INSIDE;
		return byte == '"';
	}
	if (s->part == STRING_INSIDE)
		return step_inside(form, s, byte);
	return s->part < STRING_MORE_1 ? step_escape(s, byte) : step_more(s, byte);
}

/* The part of a number that a byte leads to; NUMBER_START: it does not belong to it. */
static enum number_part number_next(const struct form_state *s, bool integer, uint8_t byte)
{
	enum number_part part = s->part;
	uint32_t most = integer ? FORM_INTEGER_DIGITS_MAX : FORM_NUMBER_DIGITS_MAX;
	bool e = (byte | 0x20) == 'e' && !integer, point = byte == '.' && !integer;
	switch (part) {
	case NUMBER_START:
		if (byte == '-')
			return NUMBER_MINUS;
		/* fall through */
	case NUMBER_MINUS:
		return byte == '0' ? NUMBER_ZERO : is_digit(byte) ? NUMBER_DIGITS : NUMBER_START;
	case NUMBER_DIGITS:
		if (is_digit(byte) && s->count < most)
			return NUMBER_DIGITS;
		/* fall through */
	case NUMBER_ZERO:
		return point ? NUMBER_POINT : e ? NUMBER_E : NUMBER_START;
	case NUMBER_FRACTION:
		if (e)
			return NUMBER_E;
		/* fall through */
	case NUMBER_POINT:
		return is_digit(byte) && s->count < FORM_NUMBER_DIGITS_MAX ? NUMBER_FRACTION :
									      NUMBER_START;
	case NUMBER_E:
		if (byte == '+' || byte == '-')
			return NUMBER_E_SIGN;
		/* fall through */
	default:
		return is_digit(byte) && s->count < FORM_EXPONENT_DIGITS_MAX ? NUMBER_EXPONENT :
										NUMBER_START;
	}
}

static bool step_number(const struct form *form, struct form_state *s, uint8_t byte)
{
	const struct node *n = &form->node[s->node];
	enum number_part part = s->part;
	enum number_part next = number_next(s, n->kind == NODE_INTEGER, byte);
	if (next != NUMBER_START) {
		s->count = !is_digit(byte) ? 0 : next == part ? s->count + 1 : 1;
		s->part = next;
		return true;
	}
	/* A number ends where something else comes, which is the next node's first byte. */
	if (part != NUMBER_ZERO && part != NUMBER_DIGITS && part != NUMBER_FRACTION &&
	    part != NUMBER_EXPONENT)
		return false;
	form_enter(form, s, n->next);
	return step_choice(form, s, byte);
}

bool form_step(const struct form *form, struct form_state *s, uint8_t byte)
{
	switch (form->node[s->node].kind) {
	case NODE_CHOICE:
		return step_choice(form, s, byte);
	case NODE_STRING:
		return step_string(form, s, byte);
	case NODE_INTEGER:
	case NODE_NUMBER:
		return step_number(form, s, byte);
	default:
		return false;
	}
}

struct form_state form_start(const struct form *form)
{
	struct form_state s;
	form_enter(form, &s, 0);
	return s;
}

bool form_complete(const struct form *form, const struct form_state *state)
{
	return form->node[state->node].kind == NODE_END;
}

bool form_advance(const struct form *form, struct form_state *state, const char *bytes,
		  size_t length)
{
	struct form_state s = *state;
	for (size_t i = 0; i < length; i++)
		if (!form_step(form, &s, (uint8_t)bytes[i]))
			return false;
	*state = s;
	return true;
}
