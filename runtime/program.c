/*
 * The common part of the programs logits, perplexity and bench.
 */
#include "runtime/program.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

void program_flags(struct program_options *options, struct flag *flags)
{
	*options = (struct program_options){.kv = KV_FP8, .isa = ISA_AUTO, .act = ACT_AUTO,
					    .chunk = 512, .page_tokens = 16, .tensor_parallel = 1};
	/* The words stand in the order of the enums. */
	const struct flag table[] = {
		{"kv", FLAG_CHOICE, &options->kv, 0, 0, "fp8|int8|bf16|f32", "precision of K and V"},
		{"device", FLAG_TEXT, &options->device, 0, 0, NULL, "cpu, cuda or cuda:N"},
		{"isa", FLAG_CHOICE, &options->isa, 0, 0, "auto|scalar|avx2|avx512",
		 "instruction set"},
		{"act", FLAG_CHOICE, &options->act, 0, 0, "auto|f32|bf16|i8|i8-row",
		 "precision of what enters a matmul"},
		{"prefill-weights", FLAG_CHOICE, &options->prefill, 0, 0, "same|int8|bf16|fp8",
		 "weights of given tokens: the file's, or a copy in 8 bits a row or in bf16; a GPU also has fp8"},
		{"threads", FLAG_U32, &options->threads, 0, 256, NULL, "threads; 0: all cores"},
		{"chunk", FLAG_U32, &options->chunk, 1, PROGRAM_CHUNK_MAX, NULL,
		 "tokens of one step"},
		{"page-tokens", FLAG_U32, &options->page_tokens, 16, OPS_PARTITION, NULL,
		 "tokens of a page: 16, 32, 64, 128 or 256"},
		{"tensor-parallel", FLAG_U32, &options->tensor_parallel, 1, SPLIT_RANKS_MAX, NULL,
		 "ranks that the model is split over"},
		{"help", FLAG_SWITCH, &options->help, 0, 0, NULL, "this list"},
	};
	_Static_assert(sizeof table / sizeof table[0] == PROGRAM_FLAGS, "as many as there are");
	memcpy(flags, table, sizeof table);
}

int program_arguments(int argc, char **argv, const struct flag *flags, uint32_t flag_count,
		      const struct program_options *options, const char *usage, const char **path)
{
	char reason[FLAGS_REASON_MAX];
	const int err = flags_read(flags, flag_count, argc, argv, path, 1, reason);
	if (options->help) {
		printf("holdfastd %s %s\n", argv[0], usage);
		flags_help(flags, flag_count);
		return 0;
	}
	if (err == 0)
		return -1;
	program_fail(argv[0], "%s", reason);
	fprintf(stderr, "usage: holdfastd %s %s\n", argv[0], usage);
	return 2;
}

void program_forward_options(const struct program_options *options, struct forward_options *out)
{
	forward_options_default(out);
	out->kv = (enum kv_kind)options->kv;
	out->isa = (enum isa)options->isa;
	out->device = options->device;
	out->act = (enum act_kind)options->act;
	out->prefill = (enum prefill_kind)options->prefill;
	out->threads = options->threads;
	out->page_tokens = options->page_tokens;
	out->ranks_count = options->tensor_parallel;
	out->rows_max = options->chunk;
	out->cache_dir = program_cache_dir();
	out->progress = program_progress;
}

int program_fail(const char *name, const char *format, ...)
{
	va_list arguments;
	va_start(arguments, format);
	fprintf(stderr, "holdfastd: %s: ", name);
	vfprintf(stderr, format, arguments);
	fputc('\n', stderr);
	va_end(arguments);
	return 1;
}

void program_progress(void *arg, const char *what, uint64_t done, uint64_t total)
{
	static uint64_t shown_ns;
	(void)arg;
	if (!isatty(STDERR_FILENO) || total == 0)
		return;
	const uint64_t now = program_now_ns();
	if (done < total && now - shown_ns < 100000000)
		return;
	shown_ns = now;
	fprintf(stderr, "\r%s: %3.0f %%\033[K", what, 100.0 * (double)done / (double)total);
	if (done >= total)
		fputs("\r\033[K", stderr);
	fflush(stderr);
}

const char *program_cache_dir(void)
{
	static char dir[4096];
	const char *base = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
	int n;
	if (base && base[0] == '/')
		n = snprintf(dir, sizeof dir, "%s/holdfast", base);
	else if (home && home[0] == '/')
		n = snprintf(dir, sizeof dir, "%s/.cache/holdfast", home);
	else
		return NULL;
	return n < (int)sizeof dir ? dir : NULL;
}

int program_read(const char *path, size_t bytes_max, char **out, size_t *length)
{
	FILE *file = fopen(path, "rb");
	if (!file)
		return errno == ENOENT ? -ERR_NO_FILE : errno == EACCES ? -ERR_PERMISSION : -ERR_IO;
	struct stat st;
	if (fstat(fileno(file), &st) == 0 && S_ISDIR(st.st_mode)) {
		fclose(file);
		return -ERR_BAD_FILE;
	}
	size_t room = 65536, have = 0;
	char *bytes = malloc(room + 1);
	int err = bytes ? 0 : -ERR_MEMORY;
	while (err == 0) {
		const size_t n = fread(bytes + have, 1, room - have, file);
		have += n;
		if (have > bytes_max)
			err = -ERR_TOO_BIG;
		else if (n == 0 || feof(file))
			break;
		else if (have == room) {
			char *more = realloc(bytes, 2 * room + 1);
			if (!more)
				err = -ERR_MEMORY;
			else
				bytes = more;
			room *= 2;
		}
	}
	if (err == 0 && ferror(file))
		err = -ERR_IO;
	fclose(file);
	if (err != 0) {
		free(bytes);
		return err;
	}
	bytes[have] = '\0';
	*out = bytes;
	*length = have;
	return 0;
}

int program_read_fail(const char *name, const char *path, int err)
{
	return program_fail(name, "%s: %s", path, err == -ERR_BAD_FILE ? "is a folder" : err_text(err));
}

uint64_t program_now_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

static const char *rank_name;

static void rank_say(const char *line)
{
	program_fail(rank_name, "%s", line);
}

/* Refused before anything is started, if the model cannot be split so. */
static int run_ranks(const char *name, const struct model *model, struct forward_options *options,
		     struct run *run)
{
	char reason[MODEL_REASON_MAX] = "";
	struct forward_needs needs;
	struct ranks_place place;
	int err = forward_needs(model, options, &needs, reason);
	if (err == 0)
		err = ranks_place(options->ranks_count, &place, reason);
	if (err == 0)
		err = ranks_start(options->ranks_count, &run->ranks, reason);
	if (err != 0)
		return program_fail(name, "%s: %s", model->path, reason[0] ? reason : err_text(err));
	options->ranks = run->ranks;
	if (ranks_rank(run->ranks) == 0)
		return 0;
	rank_name = name;
	const int done = forward_rank_main(model, options, place.launched ? rank_say : NULL);
	ranks_close(&run->ranks);
	_exit(done);
}

int run_open(const char *name, const struct model *model, const struct forward_options *given,
	     struct run *run)
{
	char reason[MODEL_REASON_MAX] = "";
	struct forward_options own = *given, *options = &own;
	*run = (struct run){0};
	if (options->ranks_count > 1 && !options->ranks && run_ranks(name, model, options, run) != 0)
		return 1;
	int err = forward_open(model, options, &run->forward, reason);
	if (err != 0) {
		run_close(run);
		return program_fail(name, "%s: %s", model->path, reason[0] ? reason : err_text(err));
	}
	run->sampled = calloc(options->samples_max, sizeof *run->sampled);
	run->faults = calloc(options->sequences_max, sizeof *run->faults);
	if (!run->sampled || !run->faults ||
	    batch_builder_open(forward_plan(run->forward), &run->builder) != 0) {
		run_close(run);
		return program_fail(name, "no memory for a batch of %u rows", options->rows_max);
	}
	return 0;
}

void run_close(struct run *run)
{
	batch_builder_close(&run->builder);
	free(run->sampled);
	free(run->faults);
	forward_close(&run->forward);
	ranks_close(&run->ranks);
	*run = (struct run){0};
}

uint32_t run_put(struct run *run, const struct run_sequence *sequence, const uint32_t *tokens,
		 uint32_t count, uint32_t position)
{
	const uint32_t page_tokens = forward_plan(run->forward)->page_tokens;
	const uint32_t page_start = sequence->position_first / page_tokens;
	const uint32_t start[OPS_GROUP_MAX] = {page_start * page_tokens};
	batch_sequence(run->builder, sequence->page_first, start);
	batch_first(run->builder, sequence->position_first);
	for (uint32_t i = 0; i <= (position + count - 1) / page_tokens - page_start; i++)
		batch_page(run->builder, 0, sequence->page_first + i, sequence->tag_first + i);
	uint32_t row_first = 0;
	for (uint32_t i = 0; i < count; i++) {
		const uint32_t row = batch_row(run->builder, tokens[i], position + i, run->phase);
		if (i == 0)
			row_first = row;
	}
	return row_first;
}

int run_tags(struct run *run, const struct run_sequence *sequence, uint32_t page_count)
{
	return forward_ops(run->forward)
		->page_tags_set(forward_device(run->forward), 0, sequence->page_first, page_count,
				sequence->tag_first);
}

int run_step(struct run *run)
{
	const struct ops_batch *block = batch_end(run->builder);
	TRY(forward_step(run->forward, block, run->sampled, run->faults));
	for (uint32_t i = 0; i < block->sequence_count; i++)
		if (run->faults[i].page != OPS_NONE)
			return -ERR_INTEGRITY;
	return 0;
}

int run_chunk(struct run *run, const struct run_sequence *sequence, const uint32_t *tokens,
	      uint32_t count, uint32_t position, uint32_t sample_from)
{
	batch_begin(run->builder);
	const uint32_t row = run_put(run, sequence, tokens, count, position);
	for (uint32_t i = sample_from; i < count; i++)
		batch_sample(run->builder, row + i);
	return run_step(run);
}
