/*
 * Opens a model file: structure, vocabulary, architecture, then the hash that names it. Keeps the
 * file open, so that model_read reads the file that was checked even if the path now leads
 * elsewhere.
 */
#include "runtime/load.h"

#include <errno.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { HASH_SAMPLE_BYTES = 4096 };

struct private {
	struct gguf gguf;
	void *vocabulary;
};

/* Reads `bytes` at `offset`, whole or not at all. */
static int read_at(int fd, uint64_t offset, uint64_t bytes, uint8_t *to)
{
	while (bytes > 0) {
		size_t piece = bytes < 1 << 30 ? (size_t)bytes : 1 << 30;
		ssize_t got = pread(fd, to, piece, (off_t)offset);
		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0)
			return -ERR_IO;
		if (got == 0)
			return -ERR_BAD_FILE;
		to += got;
		offset += (uint64_t)got;
		bytes -= (uint64_t)got;
	}
	return 0;
}

/* Metadata whole, then the size, then start, middle and end of each tensor: two files that differ
   in training differ in every tensor, and reading all would cost what loading costs. */
static int hash_file(const struct gguf *g, uint8_t hash[32])
{
	crypto_generichash_state state;
	uint8_t sample[HASH_SAMPLE_BYTES], size[8];
	crypto_generichash_init(&state, NULL, 0, 32);
	crypto_generichash_update(&state, g->bytes, g->metadata_bytes);
	for (unsigned i = 0; i < 8; i++)
		size[i] = (uint8_t)(g->file_bytes >> 8 * i);
	crypto_generichash_update(&state, size, sizeof size);
	for (uint32_t i = 0; i < g->tensor_count; i++) {
		const struct tensor *t = &g->tensor[i];
		uint64_t n = t->bytes < sizeof sample ? t->bytes : sizeof sample;
		const uint64_t at[3] = {0, (t->bytes - n) / 2, t->bytes - n};
		for (unsigned k = 0; k < (t->bytes > sizeof sample ? 3 : 1); k++) {
			TRY(read_at(g->fd, t->offset + at[k], n, sample));
			crypto_generichash_update(&state, sample, n);
		}
	}
	crypto_generichash_final(&state, hash, 32);
	return 0;
}

static int read_title(struct gguf *g, struct model *model)
{
	const char *name = "";
	size_t length = 0;
	TRY(gguf_string(g, "general.name", false, &name, &length));
	if (length > sizeof model->title - 1)
		length = sizeof model->title - 1;
	for (size_t i = 0; i < length; i++)
		model->title[i] = name[i] >= ' ' && name[i] <= '~' ? name[i] : '?';
	return 0;
}

static int fill(struct model *model, struct gguf *g, void **vocabulary)
{
	TRY(load_vocabulary(g, model, vocabulary));
	TRY(load_arch(g, model));
	TRY(read_title(g, model));
	model->tensor = g->tensor;
	model->tensor_count = g->tensor_count;
	model->file_bytes = g->file_bytes;
	for (uint32_t i = 0; i < g->tensor_count; i++)
		model->parameters += (uint64_t)g->tensor[i].rows * g->tensor[i].columns;
	int code = hash_file(g, model->hash);
	if (code == -ERR_IO)
		return gguf_refuse(g, code, "reading the tensors failed: errno %d", errno);
	if (code != 0)
		return gguf_refuse(g, code, "the file was cut off while it was read");
	return 0;
}

int model_open(const char *path, struct model **out, char *reason)
{
	*out = NULL;
	reason[0] = 0;
	struct model *model = calloc(1, sizeof *model);
	struct private *private = calloc(1, sizeof *private);
	if (!model || !private || sodium_init() < 0) {
		free(model);
		free(private);
		snprintf(reason, MODEL_REASON_MAX, "no memory for a model");
		return -ERR_MEMORY;
	}
	private->gguf.fd = -1;
	model->private = private;
	int code;
	if (strlen(path) >= sizeof model->path) {
		snprintf(reason, MODEL_REASON_MAX, "the path is longer than %zu bytes",
			 sizeof model->path - 1);
		code = -ERR_NO_FILE;
		goto out;
	}
	memcpy(model->path, path, strlen(path) + 1);
	code = gguf_open(path, &private->gguf, reason);
	if (code == 0)
		/* What identifies the architecture is looked at first, since a foreign one has
		   a vocabulary of its own kind too. */
		code = load_arch_name(&private->gguf);
	if (code == 0)
		code = fill(model, &private->gguf, &private->vocabulary);
	if (code == -ERR_MEMORY && !reason[0])
		snprintf(reason, MODEL_REASON_MAX, "no memory");
out:
	if (code != 0)
		model_close(&model);
	*out = model;
	return code;
}

void model_close(struct model **model)
{
	if (!*model)
		return;
	struct private *private = (*model)->private;
	gguf_close(&private->gguf);
	free(private->vocabulary);
	free(private);
	free(*model);
	*model = NULL;
}

const struct tensor *model_tensor(const struct model *model, const char *name)
{
	const struct private *private = model->private;
	uint32_t index = map_find(private->gguf.names, name, strlen(name));
	return index == UINT32_MAX ? NULL : &model->tensor[index];
}

int model_read(const struct model *model, const struct tensor *tensor, void *to)
{
	const struct private *private = model->private;
	return read_at(private->gguf.fd, tensor->offset, tensor->bytes, to);
}
