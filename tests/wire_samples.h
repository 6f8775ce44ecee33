/*
 * Valid messages by the thousand, and one door to all readers, for the tests of the wire.
 */
#ifndef HOLDFAST_TESTS_WIRE_SAMPLES_H
#define HOLDFAST_TESTS_WIRE_SAMPLES_H

#include "clients/wire.h"

enum { SAMPLE_BYTES = 64 << 10, SAMPLE_TYPES = 15 };
extern const uint8_t sample_types[SAMPLE_TYPES];

/* A small generator (splitmix64), so that a seed names a run on every machine. */
struct dice {
	uint64_t state;
};
uint64_t dice_roll(struct dice *d, uint64_t sides); /* 0 … sides-1 */

/* A random valid body of the type (of CALL, of a random method); returns its length. The strings
   of a sample live until the next. */
size_t sample_make(struct dice *d, uint8_t type, uint8_t *out, size_t capacity);

/* Reads a body as the type; if copy, writes it again into copy and sets *length. */
int sample_read(uint8_t type, const void *body, size_t bytes, const struct wire_limits *l,
	uint8_t *copy, size_t capacity, size_t *length);

#endif
