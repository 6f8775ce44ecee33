/*
 * Long options and keys of a config file, from one table: name, kind, where the value goes, its
 * range. "--name value" and "--name=value" are the same; a switch takes no value. Values are
 * checked as they are read; a refusal is one line that names the option, the value and the range.
 *
 * A flag's `to` is changed only when its value is good.
 */
#ifndef HOLDFAST_RUNTIME_FLAGS_H
#define HOLDFAST_RUNTIME_FLAGS_H

#include <stdbool.h>
#include <stdint.h>

enum { FLAGS_REASON_MAX = 300 };

enum flag_kind {
	FLAG_SWITCH, /* bool */
	FLAG_U32,    /* uint32_t, least .. most */
	FLAG_U64,    /* uint64_t, least .. most */
	FLAG_BYTES,  /* uint64_t with an optional K, M, G or T (powers of 1024) */
	FLAG_TEXT,   /* const char *, borrowed from the arguments */
	FLAG_CHOICE  /* int: the index of the word in `words`, parted by '|' */
};

struct flag {
	const char *name; /* without the dashes */
	enum flag_kind kind;
	void *to;
	uint64_t least, most; /* numbers only; most 0: no limit but the type's */
	const char *words;    /* FLAG_CHOICE: "fp8|int8|bf16|f32" */
	const char *help;     /* one line, or NULL */
};

/* Sets one flag by name; value NULL for a switch that stands alone ("true" and "false" are taken
   too, for a config file). -ERR_BAD_ARG with one line in reason (FLAGS_REASON_MAX of room). */
int flags_set(const struct flag *flags, uint32_t count, const char *name, const char *value,
	      char *reason);
/* Reads argv[1 ..]: options in any order, and exactly positional_count other arguments into
   positional. "--" ends the options. -ERR_BAD_ARG with one line in reason. */
int flags_read(const struct flag *flags, uint32_t count, int argc, char **argv,
	       const char **positional, uint32_t positional_count, char *reason);
/* Prints the options with their ranges and help, one a line, to stdout. */
void flags_help(const struct flag *flags, uint32_t count);

#endif
