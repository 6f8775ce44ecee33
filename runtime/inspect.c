/*
 * `holdfastd inspect` and `holdfastd tokenize`.
 */
#include "runtime/inspect.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/json.h"
#include "runtime/load.h"
#include "runtime/tokenizer.h"

enum { INPUT_BYTES_MAX = 256 << 20 };

static int fail(const char *command, const char *what)
{
	fprintf(stderr, "holdfastd: %s: %s\n", command, what);
	return 1;
}

/* Asked for, it is data and goes to stdout; else it is what was wrong. */
static int usage(int argc, char **argv, const char *text)
{
	for (int i = 1; i < argc; i++)
		if (strcmp(argv[i], "--help") == 0) {
			printf("usage: holdfastd %s %s", argv[0], text);
			return fflush(stdout) == 0 ? 0 : fail(argv[0], "writing to stdout failed");
		}
	fprintf(stderr, "usage: holdfastd %s %.*s\n", argv[0], (int)strcspn(text, "\n"), text);
	return 2;
}

/* An option's bit for each argument that begins with "--", the path for the other. */
static int arguments(int argc, char **argv, const char *const *option, unsigned option_count,
		     unsigned *set, const char **path)
{
	*set = 0;
	*path = NULL;
	for (int i = 1; i < argc; i++) {
		unsigned k = 0;
		if (strncmp(argv[i], "--", 2)) {
			if (*path)
				return -ERR_BAD_ARG;
			*path = argv[i];
			continue;
		}
		while (k < option_count && strcmp(argv[i], option[k]))
			k++;
		if (k == option_count)
			return -ERR_BAD_ARG;
		*set |= 1u << k;
	}
	return *path ? 0 : -ERR_BAD_ARG;
}

static struct model *open_model(const char *command, const char *path)
{
	char reason[MODEL_REASON_MAX];
	struct model *model;
	int code = model_open(path, &model, reason);
	if (code != 0)
		fprintf(stderr, "holdfastd: %s: %s: %s\n", command,
			gguf_show(path, strlen(path)), reason);
	return model;
}

/* FP8 with its scales, as the kernels lay a page out. */
static uint64_t kv_bytes_per_token(const struct arch *a)
{
	return ops_page_bytes(KV_FP8, a->layers, a->kv_heads, a->head, 16) / 16;
}

/* Tensors by type, in the order of the types' numbers. */
static void print_types(const struct model *model, bool json)
{
	enum { TYPES_MAX = 64 };
	uint32_t count[TYPES_MAX] = {0}, elements, bytes;
	const char *between = "";
	for (uint32_t i = 0; i < model->tensor_count; i++)
		if (model->tensor[i].type < TYPES_MAX)
			count[model->tensor[i].type]++;
	for (uint32_t type = 0; type < TYPES_MAX; type++) {
		if (count[type] == 0)
			continue;
		printf(json ? "%s\"%s\":%u" : "%s%s %u", between,
		       gguf_type_block(type, &elements, &bytes), count[type]);
		between = json ? "," : ", ";
	}
}

int inspect_main(int argc, char **argv)
{
	static const char *const option[] = {"--json"};
	unsigned set;
	const char *path;
	if (arguments(argc, argv, option, 1, &set, &path) != 0)
		return usage(argc, argv, "MODEL [--json]\n"
			     "what a model file holds, and what a token of it costs in pages\n\n"
			     "  --json      as JSON\n"
			     "  --help      this text\n");
	struct model *model = open_model(argv[0], path);
	if (!model)
		return 1;
	const struct arch *a = &model->arch;
	bool json = set & 1;
	printf(json ? "{\"architecture\":\"%s\",\"layers\":%u,\"width\":%u,\"heads\":%u,"
		      "\"kv_heads\":%u,\"head\":%u,\"vocab\":%u,\"context\":%u,\"parameters\":%" PRIu64
		      ",\"bytes\":%" PRIu64 ",\"types\":{" :
		      "architecture        %s\nlayers              %u\nwidth               %u\n"
		      "heads               %u\nkv_heads            %u\nhead                %u\n"
		      "vocab               %u\ncontext             %u\nparameters          %" PRIu64
		      "\nbytes               %" PRIu64 "\ntypes               ",
	       a->name, a->layers, a->width, a->heads, a->kv_heads, a->head, a->vocab, a->context,
	       model->parameters, model->file_bytes);
	print_types(model, json);
	printf(json ? "},\"kv_bytes_per_token\":%" PRIu64 "}\n" :
		      "\nkv_bytes_per_token  %" PRIu64 "\n", kv_bytes_per_token(a));
	model_close(&model);
	return fflush(stdout) == 0 ? 0 : fail(argv[0], "writing to stdout failed");
}

/* All of stdin; free it. NULL with the reason said. */
static char *read_input(const char *command, size_t *length)
{
	size_t capacity = 1 << 16;
	char *text = malloc(capacity);
	*length = 0;
	while (text) {
		*length += fread(text + *length, 1, capacity - *length, stdin);
		if (*length < capacity)
			break;
		char *grown = capacity < INPUT_BYTES_MAX ? realloc(text, capacity * 2) : NULL;
		if (!grown)
			free(text);
		text = grown;
		capacity *= 2;
	}
	if (!text) {
		fail(command, "stdin has more than 268435456 bytes, or there is no memory for it");
	} else if (ferror(stdin)) {
		fail(command, "reading stdin failed");
		free(text);
		text = NULL;
	}
	return text;
}

static int encode(const char *command, const struct tokenizer *t, const char *text,
		  size_t length, bool special)
{
	size_t count = 0, capacity = length * 3 + 3;
	uint32_t *ids = malloc(capacity * sizeof *ids);
	int code = ids ? tokenizer_encode(t, text, length, special, ids, capacity, &count) :
			 -ERR_MEMORY;
	if (code == 0) {
		putchar('[');
		for (size_t i = 0; i < count; i++)
			printf(i > 0 ? ", %u" : "%u", ids[i]);
		printf("]\n");
	}
	free(ids);
	return code == 0 ? 0 : fail(command, err_text(code));
}

static int decode(const char *command, const struct tokenizer *t, const char *text,
		  size_t length)
{
	struct json list, item;
	if (json_check(text, length, &list) != 0 || json_kind(list) != JSON_ARRAY)
		return fail(command, "stdin is not a JSON list of ids");
	struct json_walk walk = json_walk(list);
	while (json_next(&walk, NULL, &item)) {
		int64_t id;
		const char *bytes;
		if (!json_integer(item, 0, (int64_t)tokenizer_count(t) - 1, &id)) {
			fprintf(stderr, "holdfastd: %s: an item is no id from 0 to %u\n", command,
				tokenizer_count(t) - 1);
			return 1;
		}
		size_t n = tokenizer_bytes(t, (uint32_t)id, true, &bytes);
		fwrite(bytes, 1, n, stdout);
	}
	return 0;
}

int tokenize_main(int argc, char **argv)
{
	static const char *const option[] = {"--special", "--decode"};
	char reason[MODEL_REASON_MAX];
	unsigned set;
	const char *path;
	if (arguments(argc, argv, option, 2, &set, &path) != 0)
		return usage(argc, argv, "MODEL [--special] [--decode] < INPUT\n"
			     "the ids of the text on standard input, as a JSON list\n\n"
			     "  --special   control tokens are recognised\n"
			     "  --decode    the way back: a JSON list of ids to bytes\n"
			     "  --help      this text\n");
	struct model *model = open_model(argv[0], path);
	if (!model)
		return 1;
	struct tokenizer *t = NULL;
	char *text = NULL;
	size_t length;
	int status = 1;
	if (tokenizer_open(model, &t, reason) != 0)
		fail(argv[0], reason);
	else if ((text = read_input(argv[0], &length)))
		status = set & 2 ? decode(argv[0], t, text, length) :
				   encode(argv[0], t, text, length, set & 1);
	if (fflush(stdout) != 0 || ferror(stdout))
		status = fail(argv[0], "writing to stdout failed");
	free(text);
	tokenizer_close(&t);
	model_close(&model);
	return status;
}
