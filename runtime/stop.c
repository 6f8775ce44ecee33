/*
 * Stop strings over token boundaries: where the first one begins, and how much of the text may be
 * shown while one could still begin in its tail.
 */
#include <string.h>

#include "runtime/daemon.h"

static size_t stop_first(const struct wire_str *stop, const char *text, size_t from, size_t length)
{
	if (stop->length == 0 || length < stop->length)
		return SIZE_MAX;
	for (size_t at = from; at + stop->length <= length; at++) {
		const char *hit = memchr(text + at, stop->at[0], length - stop->length + 1 - at);
		if (!hit)
			return SIZE_MAX;
		at = (size_t)(hit - text);
		if (memcmp(hit, stop->at, stop->length) == 0)
			return at;
	}
	return SIZE_MAX;
}

size_t stop_find(const struct wire_str *stop, uint32_t count, const char *text, size_t from,
		 size_t length, size_t *hold)
{
	size_t first = SIZE_MAX;
	*hold = length;
	for (uint32_t i = 0; i < count; i++) {
		const size_t at = stop_first(&stop[i], text, from, length);
		if (at < first)
			first = at;
		/* The longest tail that is a proper beginning of this stop string. */
		size_t n = stop[i].length ? stop[i].length - 1 : 0;
		if (n > length - from)
			n = length - from;
		for (; n > 0; n--)
			if (memcmp(text + length - n, stop[i].at, n) == 0)
				break;
		if (length - n < *hold)
			*hold = length - n;
	}
	return first;
}
