/*
 * Pre-tokenizers: hand-written scanners, each for one pattern. The alternatives are tried in the
 * pattern's order, each takes as much as it can.
 *
 * smollm: first every number character (\p{N}) is a piece alone; then, between them, the pattern of
 * GPT-2, 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S), where what no
 * alternative takes (one white space before other text) is a piece too.
 */
#include "runtime/load.h"
#include "runtime/tokenizer_inside.h"
#include "runtime/unicode.h"

#include <string.h>

size_t character_read(const uint8_t *text, size_t length, uint32_t *character)
{
	uint8_t first = text[0];
	size_t n = first < 0x80 ? 1 : first < 0xc0 ? 0 : first < 0xe0 ? 2 : first < 0xf0 ? 3 :
		   first < 0xf8 ? 4 : 0;
	if (n == 1) {
		*character = first;
		return 1;
	}
	*character = 0xfffd;
	if (n == 0 || n > length)
		return 1;
	uint32_t value = first & (0x7fu >> n);
	for (size_t i = 1; i < n; i++) {
		if ((text[i] & 0xc0) != 0x80)
			return 1;
		value = value << 6 | (text[i] & 0x3fu);
	}
	if (value > 0x10ffff)
		return 1;
	*character = value;
	return n;
}

size_t character_write(uint32_t c, uint8_t *to)
{
	if (c < 0x80) {
		to[0] = (uint8_t)c;
		return 1;
	}
	size_t n = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
	for (size_t i = n - 1; i > 0; i--) {
		to[i] = (uint8_t)(0x80 | (c & 0x3f));
		c >>= 6;
	}
	to[0] = (uint8_t)(0xf00u >> n | c);
	return n;
}

bool characters_plain(const uint8_t *text, size_t length)
{
	for (size_t at = 0; at < length;) {
		uint32_t c;
		uint8_t form[4];
		if (text[at] < 0x80) {
			at++;
			continue;
		}
		size_t n = character_read(text + at, length - at, &c);
		if (n == 1 || character_write(c, form) != n)
			return false;
		at += n;
	}
	return true;
}

/* Where the text stands: the character there, its kind and length; length 0 at the end. */
struct place {
	uint32_t character;
	enum unicode_kind kind;
	size_t length;
};

static struct place look(const uint8_t *text, size_t length, size_t at)
{
	struct place p = {0};
	if (at >= length)
		return p;
	p.length = character_read(text + at, length - at, &p.character);
	if (p.character >= 0x80)
		p.kind = unicode_kind(p.character);
	else if ((p.character | 0x20) - 'a' < 26u)
		p.kind = UNICODE_LETTER;
	else if (p.character - '0' < 10u)
		p.kind = UNICODE_NUMBER;
	else if (p.character == ' ' || p.character - '\t' < 5u)
		p.kind = UNICODE_SPACE;
	return p;
}

/* The end of the run of one kind that begins at `at`. */
static size_t run(const uint8_t *text, size_t length, size_t at, enum unicode_kind kind)
{
	for (;;) {
		struct place p = look(text, length, at);
		if (p.length == 0 || p.kind != kind)
			return at;
		at += p.length;
	}
}

/* The length of a contraction at the start, 0 if there is none. Case counts. */
static size_t contraction(const uint8_t *text, size_t length)
{
	if (length < 2 || text[0] != '\'')
		return 0;
	if (memchr("stmd", text[1], 4))
		return 2;
	if (length > 2 && (!memcmp(text + 1, "re", 2) || !memcmp(text + 1, "ve", 2) ||
			   !memcmp(text + 1, "ll", 2)))
		return 3;
	return 0;
}

static size_t split_smollm(const uint8_t *text, size_t length)
{
	struct place first = look(text, length, 0);
	if (first.kind == UNICODE_NUMBER)
		return first.length;
	size_t n = contraction(text, length);
	if (n > 0)
		return n;
	struct place body = first;
	size_t at = 0;
	if (first.character == ' ') {
		at = 1;
		body = look(text, length, 1);
	}
	/* A number after the space was cut off by the first pass. */
	if (body.length > 0 && (body.kind == UNICODE_LETTER || body.kind == UNICODE_OTHER))
		return run(text, length, at, body.kind);
	/* White space: all of it before a number (there the first pass ended the text) or at the
	   end, else all but its last character, which is left for what follows or stands alone. */
	size_t last = 0;
	for (at = 0;;) {
		struct place p = look(text, length, at);
		if (p.length == 0 || p.kind == UNICODE_NUMBER)
			return at;
		if (p.kind != UNICODE_SPACE)
			return last > 0 ? last : at;
		last = at;
		at += p.length;
	}
}

static const struct pretokenizer pretokenizers[] = {
	{"smollm", split_smollm},
};

const struct pretokenizer *pretokenizer_find(const char *name)
{
	for (unsigned i = 0; i < sizeof pretokenizers / sizeof pretokenizers[0]; i++)
		if (!strcmp(pretokenizers[i].name, name))
			return &pretokenizers[i];
	return NULL;
}

bool pretokenizer_known(const char *name)
{
	return pretokenizer_find(name) != NULL;
}
