/*
 * The streaming decoder of tokenizer.h. What is well-formed is Unicode's table 3-7; a broken form
 * becomes one U+FFFD for each longest part of it that could have begun a character.
 */
#include "runtime/tokenizer.h"

#include <string.h>

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
