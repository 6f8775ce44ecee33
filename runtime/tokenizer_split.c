/*
 * Pre-tokenizers: hand-written scanners, each for one pattern. The alternatives are tried in the
 * pattern's order, each takes as much as it can. In all of them \s is White_Space and a contraction
 * is 's 't 'm 'd 're 've 'll.
 *
 * gpt-2: CONTRACTION| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
 *
 * smollm: first every number character (\p{N}) is a piece alone; then, between them, the pattern of
 * gpt-2.
 *
 * llama-bpe: (?i:CONTRACTION)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|
 *	\s*[\r\n]+|\s+(?!\S)|\s+
 *
 * qwen2: the same with \p{N} for \p{N}{1,3}.
 *
 * tekken: no contractions; words end where a capital follows a small letter. With
 * U = [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}] and W = [\p{Ll}\p{Lm}\p{Lo}\p{M}]:
 *	[^\r\n\p{L}\p{N}]?U*W+|[^\r\n\p{L}\p{N}]?U+W*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|
 *	\s*[\r\n]+|\s+(?!\S)|\s+
 *
 * The cases that (?i:) ignores are those of ASCII: the long s is no s.
 */
#include "runtime/load.h"
#include "runtime/tokenizer_inside.h"
#include "runtime/unicode.h"

#include <string.h>

/* Sets of kinds, a bit each. */
enum {
	SPACES = 1 << UNICODE_SPACE,
	NUMBERS = 1 << UNICODE_NUMBER,
	CAPITALS = 1 << UNICODE_UPPER,
	SMALL = 1 << UNICODE_LOWER,
	CASELESS = 1 << UNICODE_LETTER,
	MARKS = 1 << UNICODE_MARK,
	LETTERS = CAPITALS | SMALL | CASELESS,
	OTHERS = 1 << UNICODE_OTHER | MARKS, /* [^\s\p{L}\p{N}] */
	WORD_HEAD = CAPITALS | CASELESS | MARKS,
	WORD_TAIL = SMALL | CASELESS | MARKS
};

/* Where the text stands: the character there, its kind's bit and its length; both 0 at the end. */
struct place {
	uint32_t character;
	unsigned bit;
	size_t length;
};

static struct place look(const uint8_t *text, size_t length, size_t at)
{
	enum unicode_kind kind = UNICODE_OTHER;
	struct place p = {0};
	if (at >= length)
		return p;
	p.length = character_read(text + at, length - at, &p.character);
	if (p.character >= 0x80)
		kind = unicode_kind(p.character);
	else if (p.character - 'a' < 26u)
		kind = UNICODE_LOWER;
	else if (p.character - 'A' < 26u)
		kind = UNICODE_UPPER;
	else if (p.character - '0' < 10u)
		kind = UNICODE_NUMBER;
	else if (p.character == ' ' || p.character - '\t' < 5u)
		kind = UNICODE_SPACE;
	p.bit = 1u << kind;
	return p;
}

/* The end of the run of a set's characters that begins at `at`. */
static size_t run(const uint8_t *text, size_t length, size_t at, unsigned set)
{
	for (;;) {
		struct place p = look(text, length, at);
		if (!(p.bit & set))
			return at;
		at += p.length;
	}
}

static uint8_t small_letter(uint8_t c)
{
	return c >= 'A' && c <= 'Z' ? (uint8_t)(c + ('a' - 'A')) : c;
}

/* The length of a contraction at the start, 0 if there is none. */
static size_t contraction(const uint8_t *text, size_t length, bool any_case)
{
	if (length < 2 || text[0] != '\'')
		return 0;
	const uint8_t a = any_case ? small_letter(text[1]) : text[1];
	if (memchr("stmd", a, 4))
		return 2;
	if (length < 3)
		return 0;
	const uint8_t b = any_case ? small_letter(text[2]) : text[2];
	return (a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l') ? 3 : 0;
}

/* White space at the start: all of it at the text's end (or before a character of `stop`), else
   all but its last character, which is left for what follows or stands alone. */
static size_t spaces(const uint8_t *text, size_t length, unsigned stop)
{
	size_t last = 0, at = 0;
	for (;;) {
		struct place p = look(text, length, at);
		if (p.length == 0 || (p.bit & stop))
			return at;
		if (p.bit != SPACES)
			return last > 0 ? last : at;
		last = at;
		at += p.length;
	}
}

static size_t split_old(const uint8_t *text, size_t length, bool numbers_apart)
{
	struct place first = look(text, length, 0), body = first;
	if (numbers_apart && first.bit == NUMBERS)
		return first.length;
	size_t n = contraction(text, length, false), at = 0;
	if (n > 0)
		return n;
	if (first.character == ' ') {
		at = 1;
		body = look(text, length, 1);
	}
	if (body.bit & LETTERS)
		return run(text, length, at, LETTERS);
	if (body.bit & OTHERS)
		return run(text, length, at, OTHERS);
	if (body.bit == NUMBERS && !numbers_apart)
		return run(text, length, at, NUMBERS);
	/* Where numbers stand apart the first pass ended the text before them. */
	return spaces(text, length, numbers_apart ? NUMBERS : 0);
}

static size_t split_smollm(const uint8_t *text, size_t length)
{
	return split_old(text, length, true);
}

static size_t split_gpt2(const uint8_t *text, size_t length)
{
	return split_old(text, length, false);
}

static bool line_end(uint32_t character)
{
	return character == '\r' || character == '\n';
}

/* What the newer patterns have in common after words and contractions. */
static size_t split_rest(const uint8_t *text, size_t length, unsigned digits, bool slash)
{
	struct place p = look(text, length, 0);
	size_t at = 0, end = 0;
	if (p.bit == NUMBERS) {
		for (unsigned i = 0; i < digits && p.bit == NUMBERS; i++) {
			at += p.length;
			p = look(text, length, at);
		}
		return at;
	}
	if (p.character == ' ') {
		at = 1;
		p = look(text, length, 1);
	}
	if (p.bit & OTHERS) {
		at = run(text, length, at, OTHERS);
		while (at < length && (line_end(text[at]) || (slash && text[at] == '/')))
			at++;
		return at;
	}
	/* White space up to its last line's end, if it has one. */
	for (at = 0, p = look(text, length, 0); p.bit == SPACES; p = look(text, length, at)) {
		at += p.length;
		if (line_end(p.character))
			end = at;
	}
	return end > 0 ? end : spaces(text, length, 0);
}

static size_t split_new(const uint8_t *text, size_t length, unsigned digits)
{
	size_t n = contraction(text, length, true);
	if (n > 0)
		return n;
	struct place first = look(text, length, 0);
	if (first.bit & LETTERS)
		return run(text, length, 0, LETTERS);
	if (first.bit != NUMBERS && !line_end(first.character) &&
	    (look(text, length, first.length).bit & LETTERS))
		return run(text, length, first.length, LETTERS);
	return split_rest(text, length, digits, false);
}

static size_t split_qwen2(const uint8_t *text, size_t length)
{
	return split_new(text, length, 1);
}

static size_t split_llama(const uint8_t *text, size_t length)
{
	return split_new(text, length, 3);
}

/* U*W+ from `at`: its end, or 0. A head that no tail follows gives its last caseless part back. */
static size_t word_small(const uint8_t *text, size_t length, size_t at)
{
	size_t end = at, tail = 0;
	for (;;) {
		struct place p = look(text, length, end);
		if (!(p.bit & WORD_HEAD))
			break;
		end += p.length;
		if (p.bit & WORD_TAIL)
			tail = end;
	}
	size_t small = run(text, length, end, WORD_TAIL);
	return small > end ? small : tail;
}

/* U+W* from `at`: its end, or 0. */
static size_t word_capital(const uint8_t *text, size_t length, size_t at)
{
	size_t end = run(text, length, at, WORD_HEAD);
	return end > at ? run(text, length, end, WORD_TAIL) : 0;
}

static size_t split_tekken(const uint8_t *text, size_t length)
{
	struct place first = look(text, length, 0);
	const bool before = !(first.bit & (LETTERS | NUMBERS)) && !line_end(first.character);
	size_t n = before ? word_small(text, length, first.length) : 0;
	if (n == 0)
		n = word_small(text, length, 0);
	if (n == 0 && before)
		n = word_capital(text, length, first.length);
	if (n == 0)
		n = word_capital(text, length, 0);
	return n > 0 ? n : split_rest(text, length, 1, true);
}

/* By GGUF's names; the last ones of a row are other names for the same. */
static const struct pretokenizer pretokenizers[] = {
	{"smollm", split_smollm, false}, {"gpt-2", split_gpt2, false},
	{"qwen2", split_qwen2, false}, {"deepseek-r1-qwen", split_qwen2, false},
	{"llama-bpe", split_llama, true}, {"llama-v3", split_llama, true},
	{"llama3", split_llama, true}, {"tekken", split_tekken, true},
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
