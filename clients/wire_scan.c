/*
 * Taking MessagePack apart: single items, and the pre-scan that must have passed before anything
 * else looks at a body. No allocation, no recursion; the work is linear in the bytes, but for the
 * keys of a map, which are compared in pairs and so are at most 32.
 */
#include <math.h>
#include <string.h>

#include "clients/item.h"

static uint64_t big(const uint8_t *at, size_t bytes)
{
	uint64_t n = 0;
	for (size_t i = 0; i < bytes; i++)
		n = n << 8 | at[i];
	return n;
}

static void item_float(const uint8_t *at, size_t bytes, struct item *out)
{
	if (bytes == 4) {
		uint32_t bits = (uint32_t)big(at, 4);
		float f;
		memcpy(&f, &bits, 4);
		out->real = (double)f;
		out->single = true;
	} else {
		uint64_t bits = big(at, 8);
		memcpy(&out->real, &bits, 8);
	}
}

static void item_signed(uint64_t n, size_t bytes, struct item *out)
{
	uint64_t sign = 1ull << (8 * bytes - 1);
	out->number = (n ^ sign) - sign;
	out->kind = out->number >> 63 ? ITEM_INT : ITEM_UINT;
}

/* What each head byte from 0xc0 to 0xdf means: its kind, and the bytes of number that follow. */
static const struct head {
	int8_t kind; /* enum item_kind; -1: refused */
	uint8_t bytes;
} heads[32] = {
	{ITEM_NIL, 0}, {-1, 0}, {ITEM_BOOL, 0}, {ITEM_BOOL, 0},
	{ITEM_BIN, 1}, {ITEM_BIN, 2}, {ITEM_BIN, 4},
	{-1, 0}, {-1, 0}, {-1, 0}, /* ext 8, 16, 32 */
	{ITEM_FLOAT, 4}, {ITEM_FLOAT, 8},
	{ITEM_UINT, 1}, {ITEM_UINT, 2}, {ITEM_UINT, 4}, {ITEM_UINT, 8},
	{ITEM_INT, 1}, {ITEM_INT, 2}, {ITEM_INT, 4}, {ITEM_INT, 8},
	{-1, 0}, {-1, 0}, {-1, 0}, {-1, 0}, {-1, 0}, /* fixext 1 to 16 */
	{ITEM_STR, 1}, {ITEM_STR, 2}, {ITEM_STR, 4},
	{ITEM_ARRAY, 2}, {ITEM_ARRAY, 4}, {ITEM_MAP, 2}, {ITEM_MAP, 4},
};

bool item_read(const uint8_t *at, size_t left, struct item *out)
{
	if (left == 0)
		return false;
	uint8_t b = at[0];
	*out = (struct item){.head = 1};
	if (b < 0x80) {
		out->kind = ITEM_UINT;
		out->number = b;
	} else if (b < 0x90) {
		out->kind = ITEM_MAP;
		out->number = b & 0x0f;
	} else if (b < 0xa0) {
		out->kind = ITEM_ARRAY;
		out->number = b & 0x0f;
	} else if (b < 0xc0) {
		out->kind = ITEM_STR;
		out->number = b & 0x1f;
	} else if (b >= 0xe0) {
		out->kind = ITEM_INT;
		out->number = (uint64_t)(int64_t)(int8_t)b;
	} else {
		const struct head *h = &heads[b - 0xc0];
		if (h->kind < 0 || left < 1u + h->bytes)
			return false;
		out->kind = (uint8_t)h->kind;
		out->head = 1u + h->bytes;
		if (h->kind == ITEM_FLOAT)
			item_float(at + 1, h->bytes, out);
		else if (h->kind == ITEM_INT)
			item_signed(big(at + 1, h->bytes), h->bytes, out);
		else if (h->kind == ITEM_BOOL)
			out->number = b & 1;
		else
			out->number = big(at + 1, h->bytes);
	}
	return true;
}

size_t item_span(const uint8_t *at, size_t left)
{
	size_t off = 0;
	uint64_t due = 1;
	while (due > 0) {
		struct item i;
		/* The value was validated, so this is ours to guarantee. */
		CHECK(item_read(at + off, left - off, &i));
		off += i.head + item_content(&i);
		CHECK(off <= left);
		due += item_elements(&i) - 1;
	}
	return off;
}

void walk_init(struct walk *w, struct wire_value container)
{
	struct item i;
	*w = (struct walk){0};
	if (!container.at || !item_read(container.at, container.length, &i))
		return;
	w->at = container.at + i.head;
	w->left = container.length - i.head;
	w->items = item_elements(&i);
}

bool walk_next(struct walk *w, struct wire_value *out)
{
	if (w->items == 0)
		return false;
	size_t span = item_span(w->at, w->left);
	*out = (struct wire_value){w->at, span};
	w->at += span;
	w->left -= span;
	w->items--;
	return true;
}

bool item_utf8(const uint8_t *at, size_t length)
{
	for (size_t i = 0; i < length;) {
		uint8_t b = at[i];
		/* The well-formed sequences of the Unicode standard, table 3-7: only the second
		   byte's range depends on the first. */
		uint8_t low = 0x80, high = 0xbf;
		size_t more;
		if (b < 0x80) {
			i++;
			continue;
		}
		if (b >= 0xc2 && b <= 0xdf) {
			more = 1;
		} else if (b >= 0xe0 && b <= 0xef) {
			more = 2;
			low = b == 0xe0 ? 0xa0 : 0x80;
			high = b == 0xed ? 0x9f : 0xbf;
		} else if (b >= 0xf0 && b <= 0xf4) {
			more = 3;
			low = b == 0xf0 ? 0x90 : 0x80;
			high = b == 0xf4 ? 0x8f : 0xbf;
		} else {
			return false;
		}
		if (length - i <= more || at[i + 1] < low || at[i + 1] > high)
			return false;
		for (size_t k = 2; k <= more; k++)
			if ((at[i + k] & 0xc0) != 0x80)
				return false;
		i += more + 1;
	}
	return true;
}

/* An open container during the scan. Keys are kept as places in the body. */
struct level {
	uint64_t due; /* items still to come, keys counted */
	bool map;
	uint32_t key_count;
	uint32_t key_at[ITEM_PAIRS_MAX];
	uint8_t key_length[ITEM_PAIRS_MAX];
};

struct scan {
	const uint8_t *body;
	size_t length, off;
	const struct wire_limits *limits;
	uint64_t nodes;
	uint64_t open; /* the sum over all levels of what is due: the bytes that must be left */
	uint32_t depth;
	struct level levels[ITEM_DEPTH_MAX];
};

static bool key_byte(uint8_t b)
{
	return (b >= 'a' && b <= 'z') || (b >= '0' && b <= '9') || b == '_' || b == '-';
}

static int scan_key(struct scan *s, struct level *l, const struct item *i)
{
	if (i->kind != ITEM_STR || i->number == 0 || i->number > ITEM_KEY_MAX)
		return -ERR_BAD_BODY;
	if (i->number > s->length - s->off)
		return -ERR_BAD_BODY;
	const uint8_t *key = s->body + s->off;
	uint8_t length = (uint8_t)i->number;
	for (size_t k = 0; k < length; k++)
		if (!key_byte(key[k]))
			return -ERR_BAD_BODY;
	for (uint32_t k = 0; k < l->key_count; k++)
		if (l->key_length[k] == length &&
		    memcmp(s->body + l->key_at[k], key, length) == 0)
			return -ERR_BAD_BODY;
	CHECK(l->key_count < ITEM_PAIRS_MAX);
	l->key_at[l->key_count] = (uint32_t)s->off;
	l->key_length[l->key_count++] = length;
	s->off += length;
	return 0;
}

static int scan_string(struct scan *s, const struct item *i)
{
	if (i->number > s->length - s->off)
		return -ERR_BAD_BODY;
	if (i->number > s->limits->string_bytes)
		return -ERR_TOO_BIG;
	if (i->kind == ITEM_STR && !item_utf8(s->body + s->off, (size_t)i->number))
		return -ERR_BAD_BODY;
	s->off += (size_t)i->number;
	return 0;
}

static int scan_container(struct scan *s, const struct item *i)
{
	uint32_t depth_max = s->limits->depth;
	if (depth_max > ITEM_DEPTH_MAX)
		depth_max = ITEM_DEPTH_MAX;
	/* Each element needs a byte, so this defeats flat and nested bombs alike. */
	s->open += item_elements(i);
	if (s->open > s->length - s->off)
		return -ERR_BAD_BODY;
	if (s->depth >= depth_max)
		return -ERR_TOO_BIG;
	if (i->kind == ITEM_MAP && i->number > ITEM_PAIRS_MAX)
		return -ERR_TOO_BIG;
	struct level *l = &s->levels[s->depth++];
	l->due = item_elements(i);
	l->map = i->kind == ITEM_MAP;
	l->key_count = 0;
	return 0;
}

static int scan_item(struct scan *s)
{
	struct item i;
	struct level *l = s->depth > 0 ? &s->levels[s->depth - 1] : NULL;
	if (!item_read(s->body + s->off, s->length - s->off, &i))
		return -ERR_BAD_BODY;
	if (++s->nodes > s->limits->nodes)
		return -ERR_TOO_BIG;
	s->off += i.head;
	s->open--;
	bool key = l && l->map && l->due % 2 == 0;
	if (l)
		l->due--;
	if (key) {
		TRY(scan_key(s, l, &i));
	} else if (i.kind == ITEM_STR || i.kind == ITEM_BIN) {
		TRY(scan_string(s, &i));
	} else if (i.kind == ITEM_ARRAY || i.kind == ITEM_MAP) {
		TRY(scan_container(s, &i));
	} else if (i.kind == ITEM_FLOAT && !isfinite(i.real)) {
		return -ERR_BAD_BODY;
	}
	return s->open > s->length - s->off ? -ERR_BAD_BODY : 0;
}

int wire_validate(const void *body, size_t length, const struct wire_limits *limits)
{
	/* Not zeroed as a whole: the levels are 5 KiB, and each is filled when it opens. */
	struct scan s;
	struct wire_limits defaults;
	wire_limits_default(&defaults);
	s.body = body;
	s.length = length;
	s.limits = limits ? limits : &defaults;
	s.off = 0;
	s.nodes = 0;
	s.open = 1;
	s.depth = 0;
	/* Places in the body are kept in 32 bits. */
	if (length > s.limits->body_bytes || length > UINT32_MAX)
		return -ERR_TOO_BIG;
	while (s.open > 0) {
		TRY(scan_item(&s));
		while (s.depth > 0 && s.levels[s.depth - 1].due == 0)
			s.depth--;
	}
	return s.off == length ? 0 : -ERR_BAD_BODY;
}
