/*
 * The input of the program `logits`: a JSON list of {"name", "tokens": [...], "generate": n}. Other
 * keys are passed over, so that the program's own output can be given to it again.
 */
#ifndef HOLDFAST_RUNTIME_CASES_H
#define HOLDFAST_RUNTIME_CASES_H

#include <stddef.h>
#include <stdint.h>

enum { CASES_REASON_MAX = 200, CASES_BYTES_MAX = 64 << 20, CASES_DEPTH_MAX = 64 };

struct case_tokens {
	const char *name; /* as it stands in the text, between its quotes; not NUL-terminated */
	size_t name_length;
	uint32_t *tokens;
	uint32_t count, generate;
};

struct cases {
	uint32_t count;
	struct case_tokens *at;
};

/* `text` of `length` bytes must outlive the cases. -ERR_BAD_FILE with one line in reason
   (CASES_REASON_MAX of room), -ERR_MEMORY. */
int cases_read(const char *text, size_t length, struct cases *out, char *reason);
void cases_free(struct cases *cases);

#endif
