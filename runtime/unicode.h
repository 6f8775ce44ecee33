/*
 * What a pre-tokenizer must know about a character. The table is generated (unicode.py).
 */
#ifndef HOLDFAST_RUNTIME_UNICODE_H
#define HOLDFAST_RUNTIME_UNICODE_H

#include <stdint.h>

/* General categories L and N, and the property White_Space. */
enum unicode_kind { UNICODE_OTHER, UNICODE_LETTER, UNICODE_NUMBER, UNICODE_SPACE };

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
		if (unicode_run[middle] >> 2 <= character)
			low = middle;
		else
			high = middle;
	}
	return (enum unicode_kind)(unicode_run[low] & 3);
}

#endif
