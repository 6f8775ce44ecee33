/*
 * The loader as a fuzz target. As a plain program it runs every file of the folders or files that it
 * is given, by default its corpus; with --write DIR it makes the corpus. With -DFUZZ_ENGINE it is a
 * target for libFuzzer.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <sys/stat.h>

#include "runtime/model.h"
#include "runtime/tokenizer.h"
#include "tests/files.h"
#include "tests/gguf_hostile.h"
#include "tests/tap.h"

int LLVMFuzzerTestOneInput(const uint8_t *at, size_t length);

int LLVMFuzzerTestOneInput(const uint8_t *at, size_t length)
{
	char reason[MODEL_REASON_MAX];
	struct model *model;
	struct tokenizer *tokenizer;
	struct made_file f = made_open(at, length);
	int code = model_open(f.path, &model, reason);
	made_close(&f);
	if (code != 0)
		return 0;
	if (tokenizer_open(model, &tokenizer, reason) == 0) {
		uint32_t ids[96];
		size_t count = 0;
		tokenizer_encode(tokenizer, "ab <|im_end|>\xff 1", 17, true, ids, 96, &count);
		tokenizer_close(&tokenizer);
	}
	for (uint32_t i = 0; i < model->tensor_count; i++) {
		void *data = malloc(model->tensor[i].bytes);
		if (data)
			model_read(model, &model->tensor[i], data);
		free(data);
	}
	model_close(&model);
	return 0;
}

#ifndef FUZZ_ENGINE
static unsigned files;
static const char *place;

static void run_file(const char *path)
{
	size_t length;
	char *text = file_read(path, &length);
	if (!EXPECT(text != NULL))
		return;
	LLVMFuzzerTestOneInput((const uint8_t *)text, length);
	free(text);
	files++;
}

static void run_place(void)
{
	char path[4096 + 300];
	DIR *dir = opendir(place);
	struct dirent *entry;
	files = 0;
	if (!dir) {
		run_file(place);
		return;
	}
	while ((entry = readdir(dir))) {
		snprintf(path, sizeof path, "%s/%s", place, entry->d_name);
		if (entry->d_name[0] != '.')
			run_file(path);
	}
	closedir(dir);
	printf("# %u files\n", files);
	EXPECT(files > 0);
}

static void write_file(const char *dir, const char *name, struct bytes b)
{
	char path[4096];
	snprintf(path, sizeof path, "%s/%s", dir, name);
	FILE *f = fopen(path, "wb");
	if (!f || fwrite(b.at, 1, b.length, f) != b.length || fclose(f) != 0)
		perror(path);
	free(b.at);
}

int main(int argc, char **argv)
{
	char corpus[4096];
	const char *root = getenv("SRCDIR");
	if (argc == 3 && !strcmp(argv[1], "--write")) {
		static struct maker m;
		make_tiny(&m);
		write_file(argv[2], "valid", make_bytes(&m));
		for (unsigned i = 0; i < HOSTILE_COUNT; i++)
			write_file(argv[2], hostile[i].name, hostile_bytes(i));
		return 0;
	}
	snprintf(corpus, sizeof corpus, "%s/tests/corpus/load", root ? root : ".");
	place = corpus;
	if (argc < 2)
		TAP_RUN(run_place, "the corpus");
	for (int i = 1; i < argc; i++) {
		place = argv[i];
		TAP_RUN(run_place, place);
	}
	return tap_done();
}
#endif
