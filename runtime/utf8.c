/*
 * Characters as the tokenizer reads them, and the streaming decoder of tokenizer.h. There, what is
 * well-formed is Unicode's table 3-7; a broken form becomes one U+FFFD for each longest part of it
 * that could have begun a character.
 */
#include "runtime/tokenizer_inside.h"

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

/* How many bytes the character that the first byte begins has; 0: it begins none. */
static uint32_t length_of(uint8_t first)
{
	if (first < 0x80)
		return 1;
	if (first < 0xc2 || first > 0xf4)
		return 0;
	return first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
}

/* Whether the byte can follow what is held. The second byte's range keeps out overlong forms,
   surrogates and what is above U+10FFFF. */
static bool follows(const struct utf8_stream *s, uint8_t byte)
{
	uint8_t least = 0x80, most = 0xbf;
	if (s->count == 1) {
		if (s->held[0] == 0xe0)
			least = 0xa0;
		if (s->held[0] == 0xed)
			most = 0x9f;
		if (s->held[0] == 0xf0)
			least = 0x90;
		if (s->held[0] == 0xf4)
			most = 0x8f;
	}
	return byte >= least && byte <= most;
}

static size_t give_broken(struct utf8_stream *s, bool strict, char *out)
{
	size_t n = s->count;
	if (strict) {
		memcpy(out, "\xef\xbf\xbd", 3);
		n = 3;
	} else {
		memcpy(out, s->held, n);
	}
	s->count = 0;
	return n;
}

size_t utf8_stream_push(struct utf8_stream *s, const char *bytes, size_t length, bool strict,
			bool flush, char *out)
{
	size_t n = 0;
	for (size_t i = 0; i < length; i++) {
		uint8_t byte = (uint8_t)bytes[i];
		if (s->count > 0 && !follows(s, byte))
			n += give_broken(s, strict, out + n);
		s->held[s->count++] = byte;
		uint32_t whole = length_of(s->held[0]);
		if (whole == 0) {
			n += give_broken(s, strict, out + n);
		} else if (s->count == whole) {
			memcpy(out + n, s->held, whole);
			n += whole;
			s->count = 0;
		}
	}
	if (flush && s->count > 0)
		n += give_broken(s, strict, out + n);
	return n;
}
