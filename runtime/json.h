/*
 * JSON text: checked strictly (RFC 8259), then walked in place. Nothing is copied but by json_string
 * and json_write; nothing recurses; what is deeper or longer than the limits is refused.
 *
 * A struct json is one value's text without white space around it. Only json_check and json_scan
 * look at text that is not known to be valid; all else may be called only with what they, or a walk
 * of it, gave.
 */
#ifndef HOLDFAST_RUNTIME_JSON_H
#define HOLDFAST_RUNTIME_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { JSON_DEPTH_MAX = 64, JSON_BYTES_MAX = 64 << 20 };

enum json_kind { JSON_NULL, JSON_BOOL, JSON_NUMBER, JSON_STRING, JSON_ARRAY, JSON_OBJECT };

struct json {
	const char *at; /* borrowed */
	size_t length;
};

/* Checks that the text is one value, with white space around it at most. -ERR_BAD_ARG: it is not
   (also: not UTF-8, half a surrogate pair in an escape); -ERR_OUT_OF_RANGE: it is nested deeper than
   JSON_DEPTH_MAX, whatever comes after that; -ERR_TOO_BIG: longer than JSON_BYTES_MAX. */
int json_check(const char *text, size_t length, struct json *out);

/* Where a text that json_check refuses as no JSON stops being one: the first byte that cannot be, or the
   end. */
size_t json_wrong_at(const char *text, size_t length);

/* What a text begins with: a whole value (then *out has it; a number at the end of the text may go
   on and counts as whole only if `final`), the beginning of one, none, or one that is nested deeper
   than JSON_DEPTH_MAX. White space before it is skipped. */
enum json_scan { JSON_WHOLE, JSON_PART, JSON_WRONG, JSON_DEEP };
enum json_scan json_scan(const char *text, size_t length, bool final, struct json *out);

enum json_kind json_kind(struct json value);
bool json_true(struct json value);

/* Walks the members of an object (key is a string value) or the items of an array (key is empty).
   key may be NULL. Any other kind has none. */
struct json_walk {
	const char *at, *end;
	bool object;
};
struct json_walk json_walk(struct json value);
bool json_next(struct json_walk *walk, struct json *key, struct json *value);

/* The last member of that key, as Python and JavaScript have it; false if there is none, or the
   value is no object. */
bool json_find(struct json object, const char *key, struct json *value);

/* Whether a value is the string of that text, escapes undone. */
bool json_equals(struct json value, const char *text, size_t length);
/* Whether two string values are the same, however they are escaped. */
bool json_same(struct json a, struct json b);
/* The string's bytes, escapes undone, into `to`, which has room for string.length; returns how
   many. They may have NULs. */
size_t json_string(struct json string, char *to);
/* False if the number is no integer in the range. */
bool json_integer(struct json number, int64_t least, int64_t most, int64_t *out);
/* The double that is nearest; infinite beyond their range. False if it is no number, or one of more than
   JSON_REAL_BYTES, which is more digits than any double has. */
enum { JSON_REAL_BYTES = 400 };
bool json_real(struct json number, double *out);

/* A growing buffer. */
struct json_out {
	char *bytes; /* free() it */
	size_t length, capacity;
};
/* Appends the value as Python's json.dumps(value, ensure_ascii=False) writes what json.loads read:
   ", " and ": " between, characters as they are, floats in their shortest form (beyond a double's
   range as they came). -ERR_MEMORY, -ERR_TOO_BIG. What is there already stays. */
int json_write(struct json value, struct json_out *out);
/* Appends a string value made of the bytes. Not UTF-8: U+FFFD for what is not. */
int json_write_string(const char *text, size_t length, struct json_out *out);
/* Appends bytes as they are. */
int json_write_raw(const char *bytes, size_t length, struct json_out *out);

#endif
