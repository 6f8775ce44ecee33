/*
 * Opens a model: structure, vocabulary, architecture, then the hash that names it. Keeps its files
 * open, so that model_read reads the file that was checked even if the path now leads
 * elsewhere.
 */
#include "runtime/load_hub.h"

#include <errno.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { HASH_SAMPLE_BYTES = 4096 };

/* model->tensor and the names are the first file's own, or with several files made of all. */
struct private {
	struct gguf *gguf; /* one for each file */
	struct hub *hub;   /* of a folder, which has one gguf without a file; or NULL */
	uint32_t file_count;
	struct map *names;
	struct tensor *tensor; /* NULL with one file */
	void *vocabulary;
};

int load_read(int fd, uint64_t offset, uint64_t bytes, void *out)
{
	uint8_t *to = out;
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
static void hash_size(crypto_generichash_state *state, uint64_t bytes)
{
	uint8_t size[8];
	for (unsigned i = 0; i < 8; i++)
		size[i] = (uint8_t)(bytes >> 8 * i);
	crypto_generichash_update(state, size, sizeof size);
}

static int file_of(const struct private *p, const struct tensor *t)
{
	return p->hub ? p->hub->fd[t->file] : p->gguf[t->file].fd;
}

static int hash_tensors(const struct private *p, const struct tensor *tensor, uint32_t count,
			crypto_generichash_state *state)
{
	uint8_t sample[HASH_SAMPLE_BYTES];
	for (uint32_t i = 0; i < count; i++) {
		const struct tensor *t = &tensor[i];
		if (t->made) {
			crypto_generichash_update(state, t->made, t->bytes);
			continue;
		}
		uint64_t n = t->bytes < sizeof sample ? t->bytes : sizeof sample;
		const uint64_t at[3] = {0, (t->bytes - n) / 2, t->bytes - n};
		for (unsigned k = 0; k < (t->bytes > sizeof sample ? 3 : 1); k++) {
			TRY(load_read(file_of(p, t), t->offset + at[k], n, sample));
			crypto_generichash_update(state, sample, n);
		}
	}
	return 0;
}

static int hash_model(const struct model *model, struct private *p, uint8_t hash[32])
{
	crypto_generichash_state state;
	uint32_t done = 0;
	int code = 0;
	crypto_generichash_init(&state, NULL, 0, 32);
	for (uint32_t i = 0; i < p->file_count && code == 0; i++) {
		const struct gguf *g = &p->gguf[i];
		crypto_generichash_update(&state, g->bytes, g->metadata_bytes);
		hash_size(&state, g->file_bytes);
		code = hash_tensors(p, model->tensor + done, g->tensor_count, &state);
		done += g->tensor_count;
	}
	if (code == -ERR_IO)
		return gguf_refuse(p->gguf, code, "reading the tensors failed: errno %d", errno);
	if (code != 0)
		return gguf_refuse(p->gguf, code, "the file was cut off while it was read");
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

/* The tensors of several files as those of one. */
static int join(struct model *model, struct private *p)
{
	uint32_t count = 0;
	for (uint32_t i = 0; i < p->file_count; i++)
		count += p->gguf[i].tensor_count;
	p->tensor = calloc((size_t)count + 1, sizeof *p->tensor);
	if (!p->tensor || map_open(count, &p->names) != 0)
		return gguf_refuse(p->gguf, -ERR_MEMORY, "tensors: no memory");
	for (uint32_t i = 0; i < p->file_count; i++) {
		const struct gguf *g = &p->gguf[i];
		for (uint32_t k = 0; k < g->tensor_count; k++) {
			struct tensor *t = &p->tensor[model->tensor_count];
			*t = g->tensor[k];
			t->file = i;
			if (!map_add(p->names, t->name, strlen(t->name), model->tensor_count))
				return gguf_refuse(p->gguf, -ERR_BAD_FILE, "%s: the tensor is in two files",
						   gguf_show(t->name, strlen(t->name)));
			model->tensor_count++;
		}
		model->file_bytes += g->file_bytes;
	}
	model->tensor = p->tensor;
	return 0;
}

static int open_files(struct model *model, struct private *p, char *reason)
{
	p->gguf = calloc(1, sizeof *p->gguf);
	if (!p->gguf)
		return -ERR_MEMORY;
	p->gguf->fd = -1;
	p->file_count = 1;
	if (hub_is(model->path)) {
		TRY(hub_open(model->path, &p->hub, p->gguf, reason));
		model->tensor = p->gguf->tensor;
		model->tensor_count = p->gguf->tensor_count;
		for (uint32_t i = 0; i < p->hub->file_count; i++)
			model->file_bytes += p->hub->file_bytes[i];
		return 0;
	}
	TRY(gguf_open(model->path, p->gguf, reason));
	/* What identifies the architecture is looked at first, since a foreign one has a vocabulary
	   of its own kind too. */
	TRY(load_arch_name(p->gguf));
	uint32_t count;
	TRY(split_count(p->gguf, &count));
	if (count == 1) {
		model->tensor = p->gguf->tensor;
		model->tensor_count = p->gguf->tensor_count;
		model->file_bytes = p->gguf->file_bytes;
		return 0;
	}
	struct gguf *all = realloc(p->gguf, count * sizeof *all);
	if (!all)
		return -ERR_MEMORY;
	p->gguf = all;
	for (; p->file_count < count; p->file_count++)
		all[p->file_count] = (struct gguf){.fd = -1};
	TRY(split_open(model->path, all, count));
	return join(model, p);
}

static int fill(struct model *model, struct private *p)
{
	struct gguf *g = p->gguf;
	TRY(load_vocabulary(g, model, &p->vocabulary));
	TRY(load_arch(g, model));
	if (p->hub) {
		/* Hubs keep the halves of a head apart, in llama's files too. */
		model->arch.rope = ROPE_HALVES;
		if (p->hub->attention_scale > 0)
			model->arch.attention_scale = p->hub->attention_scale;
	}
	TRY(read_title(g, model));
	for (uint32_t i = 0; i < model->tensor_count; i++)
		model->parameters += (uint64_t)model->tensor[i].rows * model->tensor[i].columns;
	return hash_model(model, p, model->hash);
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
	model->private = private;
	int code;
	if (strlen(path) >= sizeof model->path) {
		snprintf(reason, MODEL_REASON_MAX, "the path is longer than %zu bytes",
			 sizeof model->path - 1);
		code = -ERR_NO_FILE;
		goto out;
	}
	memcpy(model->path, path, strlen(path) + 1);
	code = open_files(model, private, reason);
	if (code == 0)
		code = fill(model, private);
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
	for (uint32_t i = 0; i < private->file_count; i++)
		gguf_close(&private->gguf[i]);
	hub_close(&private->hub);
	free(private->gguf);
	free(private->tensor);
	map_close(&private->names);
	free(private->vocabulary);
	free(private);
	free(*model);
	*model = NULL;
}

const struct tensor *model_tensor(const struct model *model, const char *name)
{
	const struct private *private = model->private;
	uint32_t index = map_find(private->names ? private->names : private->gguf->names, name,
				  strlen(name));
	return index == UINT32_MAX ? NULL : &model->tensor[index];
}

int model_read(const struct model *model, const struct tensor *tensor, void *to)
{
	const struct private *private = model->private;
	if (tensor->made) {
		memcpy(to, tensor->made, tensor->bytes);
		return 0;
	}
	return load_read(file_of(private, tensor), tensor->offset, tensor->bytes, to);
}
