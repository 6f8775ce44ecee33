/*
 * The wire, below the messages: the first frame, every rule of the pre-scan, access, JSON.
 * Method: bodies made by hand, one for each rule and each side of each bound. All are read from
 * blocks of their own length, so that a sanitizer sees a byte read beyond.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "clients/wire.h"
#include "tests/pack.h"
#include "tests/tap.h"

static int scan(const void *bytes, size_t length, const struct wire_limits *l)
{
	uint8_t *own = malloc(length > 0 ? length : 1);
	CHECK(own != NULL);
	memcpy(own, bytes, length);
	int code = wire_validate(own, length, l);
	free(own);
	return code;
}

/* The bytes of a string literal, without its NUL. */
#define SCAN(literal) scan((literal), sizeof(literal) - 1, NULL)

static int scan_text(const char *text)
{
	static uint8_t body[8192];
	size_t length = pack(text, body, sizeof body);
	return scan(body, length, NULL);
}

static void header_round(void)
{
	struct wire_header h = {WIRE_DATA, WIRE_FLAG_BLOB, 0x0102030405060708, 0x1112131415161718};
	static const uint8_t want[WIRE_HEADER_BYTES] = {
		'A', 'R', 1, 0x83, 0, 1, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8,
		0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18,
	};
	uint8_t f[WIRE_HEADER_BYTES];
	struct wire_header out;
	wire_header_write(&h, f);
	EXPECT(memcmp(f, want, sizeof f) == 0);
	EXPECT_EQ(wire_header_read(f, sizeof f, &out), 0);
	EXPECT_EQ(out.type, h.type);
	EXPECT_EQ(out.flags, h.flags);
	EXPECT_EQ(out.channel, h.channel);
	EXPECT_EQ(out.seq, h.seq);
}

static void header_refuses(void)
{
	static const struct { size_t at; uint8_t value; int code; } bad[] = {
		{0, 'a', ERR_BAD_FRAMES}, {1, 'r', ERR_BAD_FRAMES}, {2, 0, ERR_VERSION},
		{2, 2, ERR_VERSION}, {4, 1, ERR_BAD_FRAMES}, {5, 2, ERR_BAD_FRAMES},
		{5, 3, ERR_BAD_FRAMES}, {5, 0x80, ERR_BAD_FRAMES}, {6, 1, ERR_BAD_FRAMES},
		{7, 1, ERR_BAD_FRAMES},
	};
	struct wire_header h = {.type = WIRE_PING}, out;
	uint8_t f[WIRE_HEADER_BYTES + 1] = {0};
	for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
		wire_header_write(&h, f);
		f[bad[i].at] = bad[i].value;
		EXPECT_EQ(wire_header_read(f, WIRE_HEADER_BYTES, &out), -bad[i].code);
	}
	wire_header_write(&h, f);
	for (size_t length = 0; length <= sizeof f; length++)
		EXPECT_EQ(wire_header_read(f, length, &out),
			length == WIRE_HEADER_BYTES ? 0 : -ERR_BAD_FRAMES);
}

static void bombs(void)
{
	EXPECT_EQ(SCAN("\xdd\xff\xff\xff\xff"), -ERR_BAD_BODY);
	EXPECT_EQ(SCAN("\xdd\x0f\xff\xff\xff"), -ERR_BAD_BODY);
	EXPECT_EQ(SCAN("\xdf\x0f\xff\xff\xff"), -ERR_BAD_BODY);
	EXPECT_EQ(SCAN("\xdf\xff\xff\xff\xff"), -ERR_BAD_BODY);
	EXPECT_EQ(SCAN("\xdc\xff\xff"), -ERR_BAD_BODY);
	EXPECT_EQ(SCAN("\xde\x80\x00"), -ERR_BAD_BODY);
	EXPECT_EQ(SCAN("\xdb\xff\xff\xff\xff"), -ERR_BAD_BODY);
	EXPECT_EQ(SCAN("\xc6\xff\xff\xff\xff"), -ERR_BAD_BODY);
	/* Nested heads, each of which alone would be plausible: ten arrays of 200 in 1,000 bytes. */
	uint8_t nested[1000] = {0};
	for (int i = 0; i < 10; i++)
		memcpy(nested + 3 * i, "\xdc\x00\xc8", 3);
	EXPECT_EQ(scan(nested, sizeof nested, NULL), -ERR_BAD_BODY);
	/* The sum is what counts: 4 open arrays of 200 with 203 bytes each side of the bound. */
	memset(nested, 0, sizeof nested);
	for (int i = 0; i < 4; i++)
		memcpy(nested + 3 * i, "\xdc\x00\xc8", 3);
	EXPECT_EQ(scan(nested, 4 * 3 + 4 * 200 - 3, NULL), 0);
	EXPECT_EQ(scan(nested, 4 * 3 + 4 * 200 - 4, NULL), -ERR_BAD_BODY);
	EXPECT_EQ(scan(nested, 4 * 3 + 4 * 200 - 2, NULL), -ERR_BAD_BODY);
}

static int scan_depth(uint32_t depth, const struct wire_limits *l)
{
	uint8_t *body = malloc(depth + 1);
	CHECK(body != NULL);
	memset(body, 0x91, depth);
	body[depth] = 0xc0;
	int code = scan(body, depth + 1, l);
	free(body);
	return code;
}

static void depths(void)
{
	struct wire_limits l;
	wire_limits_default(&l);
	EXPECT_EQ(scan_depth(1, NULL), 0);
	EXPECT_EQ(scan_depth(16, NULL), 0);
	EXPECT_EQ(scan_depth(17, NULL), -ERR_TOO_BIG);
	EXPECT_EQ(scan_depth(33, NULL), -ERR_TOO_BIG);
	EXPECT_EQ(scan_depth(100000, NULL), -ERR_TOO_BIG);
	l.depth = 1000;
	EXPECT_EQ(scan_depth(32, &l), 0);
	EXPECT_EQ(scan_depth(33, &l), -ERR_TOO_BIG);
	l.depth = 0;
	EXPECT_EQ(scan("\xc0", 1, &l), 0);
	EXPECT_EQ(scan("\x90", 1, &l), -ERR_TOO_BIG);
	/* Empty containers count as well; siblings do not. */
	l.depth = 1;
	EXPECT_EQ(scan("\x92\x90\x90", 3, &l), -ERR_TOO_BIG);
	l.depth = 2;
	EXPECT_EQ(scan("\x92\x90\x80", 3, &l), 0);
}

static void counts(void)
{
	struct wire_limits l;
	static uint8_t body[300000];
	wire_limits_default(&l);
	l.nodes = 5;
	EXPECT_EQ(scan("\x94\x01\x02\x03\x04", 5, &l), 0);
	EXPECT_EQ(scan("\x95\x01\x02\x03\x04\x05", 6, &l), -ERR_TOO_BIG);
	EXPECT_EQ(scan("\x82\xa1" "a\x01\xa1" "b\x02", 7, &l), 0);
	wire_limits_default(&l);
	memcpy(body, "\xdd\x00\x00\x4e\x1f", 5); /* 19,999 elements and their array */
	EXPECT_EQ(scan(body, 5 + 19999, NULL), 0);
	body[4] = 0x20;
	EXPECT_EQ(scan(body, 5 + 20000, NULL), -ERR_TOO_BIG);
	l.string_bytes = 3;
	EXPECT_EQ(scan("\xa3" "abc", 4, &l), 0);
	EXPECT_EQ(scan("\xa4" "abcd", 5, &l), -ERR_TOO_BIG);
	EXPECT_EQ(scan("\xc4\x03" "abc", 5, &l), 0);
	EXPECT_EQ(scan("\xc4\x04" "abcd", 6, &l), -ERR_TOO_BIG);
	wire_limits_default(&l);
	size_t most = l.body_bytes;
	body[0] = 0xc6;
	body[1] = 0;
	body[2] = (uint8_t)((most - 5) >> 16);
	body[3] = (uint8_t)((most - 5) >> 8);
	body[4] = (uint8_t)(most - 5);
	EXPECT_EQ(scan(body, most, NULL), 0);
	EXPECT_EQ(scan(body, most + 1, NULL), -ERR_TOO_BIG);
}

static void keys(void)
{
	EXPECT_EQ(scan_text("{'a': 1, 'b': 2, 'a-_9': 3}"), 0);
	EXPECT_EQ(scan_text("{'a': 1, 'a': 1}"), -ERR_BAD_BODY);
	EXPECT_EQ(scan_text("{'a': {'b': 1, 'c': 2, 'b': 3}}"), -ERR_BAD_BODY);
	EXPECT_EQ(scan_text("{'a': {'a': 1}, 'b': {'a': 1}}"), 0);
	EXPECT_EQ(scan_text("{'a': {'b': 1}, 'b': 2, 'a': 3}"), -ERR_BAD_BODY);
	/* The same key in another legal encoding is the same key. */
	EXPECT_EQ(SCAN("\x82\xa1" "a\x01\xd9\x01" "a\x02"), -ERR_BAD_BODY);
	EXPECT_EQ(scan_text("{'A': 1}"), -ERR_BAD_BODY);
	EXPECT_EQ(scan_text("{'a b': 1}"), -ERR_BAD_BODY);
	EXPECT_EQ(scan_text("{'a.b': 1}"), -ERR_BAD_BODY);
	EXPECT_EQ(scan_text("{'': 1}"), -ERR_BAD_BODY);
	EXPECT_EQ(SCAN("\x81\xa1\x00\x01"), -ERR_BAD_BODY);
	EXPECT_EQ(scan_text("{'é': 1}"), -ERR_BAD_BODY);
	EXPECT_EQ(scan_text("{'abcdefghijklmnopqrstuvwxyz012345': 1}"), 0);
	EXPECT_EQ(scan_text("{'abcdefghijklmnopqrstuvwxyz0123456': 1}"), -ERR_BAD_BODY);
	EXPECT_EQ(scan_text("{1: 1}"), -ERR_BAD_BODY);
	EXPECT_EQ(scan_text("{null: 1}"), -ERR_BAD_BODY);
	EXPECT_EQ(scan_text("{#61#: 1}"), -ERR_BAD_BODY);
	EXPECT_EQ(scan_text("{{}: 1}"), -ERR_BAD_BODY);
	EXPECT_EQ(scan_text("{[]: 1}"), -ERR_BAD_BODY);
	uint8_t many[256], *at = many;
	for (int pairs = 32; pairs <= 33; pairs++) {
		at = many;
		*at++ = 0xde;
		*at++ = 0;
		*at++ = (uint8_t)pairs;
		for (int i = 0; i < pairs; i++) {
			*at++ = 0xa2;
			*at++ = (uint8_t)('a' + i / 26);
			*at++ = (uint8_t)('a' + i % 26);
			*at++ = 1;
		}
		EXPECT_EQ(scan(many, (size_t)(at - many), NULL), pairs == 32 ? 0 : -ERR_TOO_BIG);
	}
}

static void kinds(void)
{
	EXPECT_EQ(SCAN(""), -ERR_BAD_BODY);
	EXPECT_EQ(SCAN("\xc0\xc0"), -ERR_BAD_BODY);
	EXPECT_EQ(SCAN("\x80\x00"), -ERR_BAD_BODY);
	EXPECT_EQ(SCAN("\xc1"), -ERR_BAD_BODY);
	EXPECT_EQ(SCAN("\x91\xc1"), -ERR_BAD_BODY);
	EXPECT_EQ(SCAN("\xd4\xff\x00"), -ERR_BAD_BODY);
	EXPECT_EQ(SCAN("\xd5\x01\x00\x00"), -ERR_BAD_BODY);
	EXPECT_EQ(SCAN("\xd6\xff\x00\x00\x00\x00"), -ERR_BAD_BODY); /* a timestamp */
	EXPECT_EQ(SCAN("\xd7\x01\x00\x00\x00\x00\x00\x00\x00\x00"), -ERR_BAD_BODY);
	EXPECT_EQ(SCAN("\xd8\x01" "0123456789abcdef"), -ERR_BAD_BODY);
	EXPECT_EQ(SCAN("\xc7\x01\x01\x00"), -ERR_BAD_BODY);
	EXPECT_EQ(SCAN("\xc8\x00\x01\x01\x00"), -ERR_BAD_BODY);
	EXPECT_EQ(SCAN("\xc9\x00\x00\x00\x01\x01\x00"), -ERR_BAD_BODY);
	EXPECT_EQ(SCAN("\xca\x7f\xc0\x00\x00"), -ERR_BAD_BODY);                 /* NaN */
	EXPECT_EQ(SCAN("\xca\x7f\x80\x00\x00"), -ERR_BAD_BODY);                 /* Inf */
	EXPECT_EQ(SCAN("\xca\xff\x80\x00\x00"), -ERR_BAD_BODY);                 /* -Inf */
	EXPECT_EQ(SCAN("\xcb\x7f\xf8\x00\x00\x00\x00\x00\x01"), -ERR_BAD_BODY); /* NaN */
	EXPECT_EQ(SCAN("\xcb\x7f\xf0\x00\x00\x00\x00\x00\x00"), -ERR_BAD_BODY); /* Inf */
	EXPECT_EQ(SCAN("\xcb\x7f\xef\xff\xff\xff\xff\xff\xff"), 0);
	EXPECT_EQ(SCAN("\xca\x7f\x7f\xff\xff"), 0);
	for (int b = 0; b < 256; b++) {
		/* Every head alone: only what needs nothing more is whole. */
		uint8_t one = (uint8_t)b;
		bool whole = b <= 0x80 || b == 0x90 || b == 0xa0 || b == 0xc0 || b == 0xc2 ||
			b == 0xc3 || b >= 0xe0;
		EXPECT_EQ(scan(&one, 1, NULL), whole ? 0 : -ERR_BAD_BODY);
	}
}

static void utf8(void)
{
	static const struct { const char *bytes; bool good; } table[] = {
		{"plain", true}, {"\xc2\x80", true}, {"\xdf\xbf", true}, {"\xe0\xa0\x80", true},
		{"\xed\x9f\xbf", true}, {"\xee\x80\x80", true}, {"\xef\xbf\xbf", true},
		{"\xf0\x90\x80\x80", true}, {"\xf4\x8f\xbf\xbf", true},
		{"\x80", false}, {"\xbf", false}, {"\xc0\x80", false}, {"\xc1\xbf", false},
		{"\xe0\x80\x80", false}, {"\xe0\x9f\xbf", false}, {"\xf0\x80\x80\x80", false},
		{"\xf0\x8f\xbf\xbf", false}, {"\xed\xa0\x80", false}, {"\xed\xbf\xbf", false},
		{"\xf4\x90\x80\x80", false}, {"\xf5\x80\x80\x80", false}, {"\xff", false},
		{"\xfe", false}, {"\xc2", false}, {"\xe2\x82", false}, {"\xf0\x9f\x98", false},
		{"\xc2 ", false}, {"\xe2\x82 ", false}, {"\xe2 \xac", false}, {"\xf0\x9f\x98 ", false},
		{"a\xc2\x80" "b", true}, {"a\xc2\xc2\x80", false}, {"\xe2\x82\xac\xac", false},
	};
	for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
		uint8_t body[16] = {(uint8_t)(0xa0 | strlen(table[i].bytes))};
		memcpy(body + 1, table[i].bytes, strlen(table[i].bytes));
		int code = scan(body, 1 + strlen(table[i].bytes), NULL);
		if (!EXPECT(code == (table[i].good ? 0 : -ERR_BAD_BODY)))
			printf("# row %zu\n", i);
	}
	/* A sequence must not be finished by what stands behind the string. */
	EXPECT_EQ(SCAN("\x92\xa1\xc2\x80"), -ERR_BAD_BODY);
	EXPECT_EQ(SCAN("\xa1\x00"), 0); /* NUL is a character of text; names refuse it */
}

/* Encodes a code point by the definition, to hold the table above to all of them. */
static void utf8_all(void)
{
	int wrong = 0;
	for (uint32_t c = 0; c < 0x200000; c++) {
		uint8_t b[5] = {0};
		size_t n = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
		static const uint8_t lead[5] = {0, 0, 0xc0, 0xe0, 0xf0};
		uint32_t rest = c;
		for (size_t i = n; i > 1; i--, rest >>= 6)
			b[i] = (uint8_t)(0x80 | (rest & 0x3f));
		b[1] = (uint8_t)(lead[n] | rest);
		b[0] = (uint8_t)(0xa0 | n);
		bool good = c <= 0x10ffff && (c < 0xd800 || c > 0xdfff);
		wrong += (wire_validate(b, n + 1, NULL) == 0) != good;
	}
	EXPECT_EQ(wrong, 0);
}

/* Every legal encoding of one number is that number. */
static void numbers(void)
{
	static const struct { const char *bytes; size_t length; double value; } table[] = {
		{"\x05", 1, 5}, {"\xcc\x05", 2, 5}, {"\xcd\x00\x05", 3, 5},
		{"\xce\x00\x00\x00\x05", 5, 5}, {"\xcf\x00\x00\x00\x00\x00\x00\x00\x05", 9, 5},
		{"\xd0\x05", 2, 5}, {"\xd1\x00\x05", 3, 5}, {"\xd2\x00\x00\x00\x05", 5, 5},
		{"\xd3\x00\x00\x00\x00\x00\x00\x00\x05", 9, 5},
		{"\xff", 1, -1}, {"\xe0", 1, -32}, {"\xd0\xff", 2, -1}, {"\xd0\x80", 2, -128},
		{"\xd1\xff\xff", 3, -1}, {"\xd2\x80\x00\x00\x00", 5, -2147483648.0},
		{"\xd3\xff\xff\xff\xff\xff\xff\xff\xff", 9, -1},
		{"\xca\x40\xa0\x00\x00", 5, 5}, {"\xcb\xc0\x14\x00\x00\x00\x00\x00\x00", 9, -5},
	};
	for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
		struct wire_value v = {(const uint8_t *)table[i].bytes, table[i].length};
		uint64_t n = 77;
		double f = 0;
		EXPECT_EQ(scan(v.at, v.length, NULL), 0);
		bool whole = table[i].value >= 0 && v.at[0] != 0xca && v.at[0] != 0xcb;
		EXPECT_EQ(wire_get_u64(v, &n), whole);
		EXPECT_EQ(n, whole ? (uint64_t)table[i].value : 77u);
		EXPECT(wire_get_f64(v, &f));
		EXPECT(!(f < table[i].value || f > table[i].value));
	}
	struct wire_value most = {(const uint8_t *)"\xcf\xff\xff\xff\xff\xff\xff\xff\xff", 9};
	uint64_t n = 0;
	EXPECT(wire_get_u64(most, &n));
	EXPECT(n == UINT64_MAX);
}

static void shortest(void)
{
	static const struct { uint64_t n; const char *bytes; size_t length; } table[] = {
		{0, "\x00", 1}, {127, "\x7f", 1}, {128, "\xcc\x80", 2}, {255, "\xcc\xff", 2},
		{256, "\xcd\x01\x00", 3}, {65535, "\xcd\xff\xff", 3},
		{65536, "\xce\x00\x01\x00\x00", 5}, {UINT32_MAX, "\xce\xff\xff\xff\xff", 5},
		{1ull << 32, "\xcf\x00\x00\x00\x01\x00\x00\x00\x00", 9},
		{UINT64_MAX, "\xcf\xff\xff\xff\xff\xff\xff\xff\xff", 9},
	};
	uint8_t out[300];
	struct wire_writer w;
	for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
		wire_writer_init(&w, out, sizeof out);
		wire_put_u64(&w, table[i].n);
		EXPECT_EQ(w.length, table[i].length);
		EXPECT(memcmp(out, table[i].bytes, table[i].length) == 0);
		wire_writer_init(&w, out, sizeof out);
		if (table[i].n <= INT64_MAX)
			wire_put_i64(&w, (int64_t)table[i].n);
		EXPECT(table[i].n > INT64_MAX || w.length == table[i].length);
	}
	static const struct { size_t length; uint8_t head[3]; size_t heads; } strings[] = {
		{0, {0xa0}, 1}, {31, {0xbf}, 1}, {32, {0xd9, 32}, 2}, {255, {0xd9, 255}, 2},
		{256, {0xda, 1, 0}, 3},
	};
	for (size_t i = 0; i < sizeof strings / sizeof strings[0]; i++) {
		char text[256];
		memset(text, 'x', sizeof text);
		wire_writer_init(&w, out, sizeof out);
		wire_put_str(&w, text, strings[i].length);
		EXPECT_EQ(w.length, strings[i].heads + strings[i].length);
		EXPECT(memcmp(out, strings[i].head, strings[i].heads) == 0);
	}
}

static void full(void)
{
	/* A writer of every capacity: it never writes beyond, and once full stays full. */
	for (size_t capacity = 0; capacity <= 12; capacity++) {
		uint8_t out[16];
		struct wire_writer w;
		memset(out, 0xee, sizeof out);
		wire_writer_init(&w, out, capacity);
		wire_put_map(&w, 1);
		wire_put_text(&w, "key");
		wire_put_text(&w, "value");
		wire_put_nil(&w);
		EXPECT_EQ(w.full, capacity < 12);
		EXPECT(w.length <= capacity);
		for (size_t i = capacity; i < sizeof out; i++)
			EXPECT_EQ(out[i], 0xee);
		size_t length = w.length;
		wire_put_nil(&w);
		EXPECT(w.full);
		EXPECT_EQ(w.length, length);
	}
}

static void access(void)
{
	static uint8_t body[512];
	struct wire_value v = {body, 0};
	v.length = pack("{'a': [1, 'two', {'x': #beef#}], 'b': true, 'ab': null}", body, sizeof body);
	REQUIRE(wire_validate(v.at, v.length, NULL) == 0);
	uint32_t n = 0;
	uint64_t one = 0;
	bool yes = false;
	struct wire_str s = {0};
	struct wire_bin b = {0};
	EXPECT(wire_get_map(v, &n) && n == 3);
	EXPECT(wire_get_array(wire_find(v, "a"), &n) && n == 3);
	EXPECT(wire_get_u64(wire_at(wire_find(v, "a"), 0), &one) && one == 1);
	EXPECT(wire_get_str(wire_at(wire_find(v, "a"), 1), &s) && s.length == 3);
	EXPECT(s.at && memcmp(s.at, "two", 3) == 0);
	EXPECT(wire_get_bin(wire_find(wire_at(wire_find(v, "a"), 2), "x"), &b) && b.length == 2);
	EXPECT(b.at && b.at[0] == 0xbe);
	EXPECT(wire_get_bool(wire_find(v, "b"), &yes) && yes);
	EXPECT(wire_find(v, "c").at == NULL);
	EXPECT(wire_find(wire_find(v, "a"), "x").at == NULL);
	EXPECT(wire_at(wire_find(v, "a"), 3).at == NULL);
	EXPECT(wire_at(v, 0).at == NULL);
	struct wire_value none = {NULL, 0};
	EXPECT(!wire_get_u64(none, &one) && !wire_get_map(none, &n) && !wire_get_str(none, &s));
	EXPECT(!wire_get_str(wire_find(v, "b"), &s) && !wire_get_bin(wire_find(v, "b"), &b));
	EXPECT(wire_find(none, "a").at == NULL && wire_at(none, 0).at == NULL);
}

static void json(void)
{
	static uint8_t body[512];
	struct wire_value v = {body, 0};
	char out[512];
	v.length = pack("{'a': [1, -2, 'q\"\\\n\tü', {}, []], 'b': {'c': #00ff#, 'd': 0.5}, "
		"'e': null, 'f': false, 'g': 3.0, 'h': 1e300}", body, sizeof body);
	REQUIRE(wire_validate(v.at, v.length, NULL) == 0);
	const char *want = "{\"a\":[1,-2,\"q\\\"\\\\\\n\\u0009ü\",{},[]],\"b\":{\"c\":\"00ff\","
		"\"d\":0.5},\"e\":null,\"f\":false,\"g\":3.0,\"h\":1.0000000000000001e+300}";
	size_t length = wire_json(v, out, sizeof out);
	EXPECT_EQ(length, strlen(want));
	if (!EXPECT(strcmp(out, want) == 0))
		printf("# %s\n", out);
	for (size_t capacity = 0; capacity <= length + 1; capacity++) {
		memset(out, 'Z', sizeof out);
		EXPECT_EQ(wire_json(v, out, capacity), length);
		EXPECT(out[capacity] == 'Z');
		size_t kept = capacity > length ? length : capacity > 0 ? capacity - 1 : 0;
		EXPECT(memcmp(out, want, kept) == 0);
		EXPECT(capacity == 0 || out[kept] == 0);
	}
}

static void methods(void)
{
	for (int m = 0; m < METHOD_COUNT; m++) {
		const char *name = wire_method_name((enum wire_method)m);
		EXPECT_EQ(wire_method_find(name, strlen(name)), m);
		EXPECT_EQ(wire_method_find(name, strlen(name) - 1), METHOD_COUNT);
	}
	EXPECT_EQ(wire_method_find("", 0), METHOD_COUNT);
	EXPECT_EQ(wire_method_find("session.opens", 13), METHOD_COUNT);
}

static void endpoints(void)
{
	char out[200];
	setenv("HOLDFAST_ENDPOINT", "ipc:///somewhere", 1);
	setenv("XDG_RUNTIME_DIR", "/run/user/7", 1);
	EXPECT_EQ(wire_default_endpoint(out, sizeof out), 0);
	EXPECT(strcmp(out, "ipc:///somewhere") == 0);
	EXPECT_EQ(wire_default_endpoint(out, 16), -ERR_TOO_BIG);
	EXPECT_EQ(wire_default_endpoint(out, 17), 0);
	setenv("HOLDFAST_ENDPOINT", "", 1);
	EXPECT_EQ(wire_default_endpoint(out, sizeof out), 0);
	EXPECT(strcmp(out, "ipc:///run/user/7/holdfast.sock") == 0);
	unsetenv("XDG_RUNTIME_DIR");
	EXPECT_EQ(wire_default_endpoint(out, sizeof out), 0);
	EXPECT(strncmp(out, "ipc:///tmp/holdfast-", 20) == 0);
}

int main(void)
{
	TAP_RUN(header_round, "the first frame, byte by byte");
	TAP_RUN(header_refuses, "what the first frame must not be");
	TAP_RUN(bombs, "counts that the bytes cannot hold, flat and nested");
	TAP_RUN(depths, "depth on both sides of its bound");
	TAP_RUN(counts, "nodes, strings and bodies on both sides of their bounds");
	TAP_RUN(keys, "keys of maps: form, length, number, duplicates");
	TAP_RUN(kinds, "extension types, 0xc1, NaN, infinities, every head alone");
	TAP_RUN(utf8, "well-formed and ill-formed UTF-8");
	TAP_RUN(utf8_all, "every code point, and those that are none");
	TAP_RUN(numbers, "every encoding of a number");
	TAP_RUN(shortest, "the shortest encodings are written");
	TAP_RUN(full, "a full writer stays full and inside its buffer");
	TAP_RUN(access, "values by key and index");
	TAP_RUN(json, "JSON, whole and cut");
	TAP_RUN(methods, "methods by name");
	TAP_RUN(endpoints, "the default endpoint");
	return tap_done();
}
