/*
 * What the programs that need no daemon share: their common options, opening a model with a line of
 * progress, one token sequence run through the forward pass in chunks, and numbers as JSON.
 *
 * Each program is a function like main(): argv[0] is the command's name; the result is the exit
 * code: 0 done, 1 failed, 2 used wrongly.
 */
#ifndef HOLDFAST_RUNTIME_PROGRAM_H
#define HOLDFAST_RUNTIME_PROGRAM_H

#include <stdbool.h>
#include <stdint.h>

#include "runtime/batch.h"
#include "runtime/flags.h"
#include "runtime/forward.h"

int logits_main(int argc, char **argv);
int perplexity_main(int argc, char **argv);
int bench_main(int argc, char **argv);

/* What a short bench of a model says, with the default options; a rate is 0 where the model's context
   is too short for it. 0, or the exit code of a failure that was told. */
struct bench_rates {
	uint64_t kv_bytes_per_token;
	uint64_t window_bytes_per_token; /* of those, in layers that see the last window_tokens only */
	uint32_t window_tokens;
	double decode_tps;                   /* tokens a second, alone */
	double prefill_tps, prefill_far_tps; /* from nothing; behind far_tokens that are there */
	uint32_t far_tokens;
};
int bench_rates(const char *name, const char *path, struct bench_rates *out);

/* The common options, as flags store them. */
struct program_options {
	int kv, isa, act, prefill;
	const char *device;
	uint32_t threads, chunk, page_tokens, tensor_parallel;
	bool help;
};
enum { PROGRAM_FLAGS = 10, PROGRAM_CHUNK_MAX = 4096 };
/* Sets the defaults and writes the table's first PROGRAM_FLAGS entries. */
void program_flags(struct program_options *options, struct flag *flags);
/* Reads the arguments: the model's path and what the flags say. -1: go on; else the exit code. */
int program_arguments(int argc, char **argv, const struct flag *flags, uint32_t flag_count,
		      const struct program_options *options, const char *usage, const char **path);
/* forward_options from the common ones. */
void program_forward_options(const struct program_options *options, struct forward_options *out);

/* One line on stderr: "holdfastd: NAME: …". Returns 1, the exit code of a failure. */
__attribute__((format(printf, 2, 3))) int program_fail(const char *name, const char *format, ...);
/* A line that is written over, on a terminal's stderr only; done == total ends it. */
void program_progress(void *arg, const char *what, uint64_t done, uint64_t total);
/* $XDG_CACHE_HOME/holdfast, or ~/.cache/holdfast; NULL if neither is set. Static room. */
const char *program_cache_dir(void);
/* A whole file, NUL behind it, freed by the caller. -ERR_NO_FILE, -ERR_IO, -ERR_TOO_BIG, …;
   -ERR_BAD_FILE: it is a folder. */
int program_read(const char *path, size_t bytes_max, char **out, size_t *length);
/* As program_fail, for what program_read returned. */
int program_read_fail(const char *name, const char *path, int err);
uint64_t program_now_ns(void);

/* A forward pass with a builder and room for results. */
struct run {
	struct ranks *ranks; /* NULL: one */
	struct forward *forward;
	struct batch_builder *builder;
	struct ops_sampled *sampled;
	struct ops_fault *faults;
	uint32_t phase; /* of the rows that are put: 0 given tokens, 1 sampled ones */
};
/* Says on stderr what is wrong, and returns non-zero, if it cannot be opened. With several ranks the
   others are started here, and do not come back from it. */
int run_open(const char *name, const struct model *model, const struct forward_options *options,
	     struct run *run);
void run_close(struct run *run);

/* A token sequence in the pages from page_first on, tags from tag_first on. */
struct run_sequence {
	uint32_t page_first, position_first;
	uint64_t tag_first;
};
/* Puts a sequence with rows for tokens[0 .. count) at `position` on into the builder (between
   batch_begin and batch_end). Returns the first row's index. */
uint32_t run_put(struct run *run, const struct run_sequence *sequence, const uint32_t *tokens,
		 uint32_t count, uint32_t position);
/* Sets the tags of all pages of the sequence. */
int run_tags(struct run *run, const struct run_sequence *sequence, uint32_t page_count);
/* Computes what was put. A fault of any sequence is -ERR_INTEGRITY. */
int run_step(struct run *run);
/* One chunk of one sequence; the rows from sample_from on are sampled. */
int run_chunk(struct run *run, const struct run_sequence *sequence, const uint32_t *tokens,
	      uint32_t count, uint32_t position, uint32_t sample_from);

#endif
