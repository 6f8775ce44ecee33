/*
 * Bodies written as text in tests: JSON with 'single quotes' for strings, #hex# for bytes, and
 * numbers with a point as f64. What is not of this form ends the test program.
 */
#ifndef HOLDFAST_TESTS_PACK_H
#define HOLDFAST_TESTS_PACK_H

#include <stddef.h>
#include <stdint.h>

size_t pack(const char *text, uint8_t *out, size_t capacity);

#endif
