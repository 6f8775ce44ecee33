/*
 * What must be known about a character: its kind, from a table that is generated (unicode.py), and how
 * it is written.
 */
#ifndef HOLDFAST_RUNTIME_UNICODE_H
#define HOLDFAST_RUNTIME_UNICODE_H

#include <stddef.h>
#include <stdint.h>

/* Writes the character as UTF-8, 1 to 4 bytes; returns how many. A surrogate is written as its bits
   say. In utf8.c. */
size_t character_write(uint32_t character, uint8_t *to);

/* General categories N and M, the property White_Space, and letters: Lu and Lt, Ll, and the others. */
enum unicode_kind {
	UNICODE_OTHER, UNICODE_LETTER, UNICODE_NUMBER, UNICODE_SPACE, UNICODE_UPPER, UNICODE_LOWER,
	UNICODE_MARK
};

extern const char unicode_version[]; /* "15.1.0" */
extern const unsigned unicode_run_count;
extern const uint32_t unicode_run[];

/* Characters above U+10FFFF are UNICODE_OTHER. */
static inline enum unicode_kind unicode_kind(uint32_t character)
{
	unsigned low = 0, high = unicode_run_count;
	if (character > 0x10ffff)
		return UNICODE_OTHER;
	while (high - low > 1) {
		unsigned middle = (low + high) / 2;
		if (unicode_run[middle] >> 3 <= character)
			low = middle;
		else
			high = middle;
	}
	return (enum unicode_kind)(unicode_run[low] & 7);
}

#endif
