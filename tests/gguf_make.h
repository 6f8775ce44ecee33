/*
 * Model files for tests, made in memory: a small valid llama file as records, which a test twists
 * before they become bytes, and a path under which the loader can open them.
 */
#ifndef HOLDFAST_TESTS_GGUF_MAKE_H
#define HOLDFAST_TESTS_GGUF_MAKE_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

struct bytes {
	uint8_t *at;
	size_t length, capacity;
};

static inline void put(struct bytes *b, const void *from, size_t n)
{
	if (b->length + n > b->capacity) {
		b->capacity = (b->length + n) * 2 + 64;
		b->at = realloc(b->at, b->capacity);
		if (!b->at)
			abort();
	}
	if (n > 0)
		memcpy(b->at + b->length, from, n);
	b->length += n;
}

static inline void put_u32(struct bytes *b, uint32_t v) { put(b, &v, 4); }
static inline void put_u64(struct bytes *b, uint64_t v) { put(b, &v, 8); }
static inline void put_string(struct bytes *b, const char *s)
{
	put_u64(b, strlen(s));
	put(b, s, strlen(s));
}

struct made_key {
	char name[64];
	uint64_t name_length; /* as stated in the file */
	uint32_t type;
	struct bytes value;
};

struct made_tensor {
	char name[80];
	uint64_t name_length;
	uint32_t dimensions, type;
	uint64_t dimension[5], offset, bytes; /* offset UINT64_MAX: where it falls */
};

struct maker {
	char magic[5];
	uint32_t version, alignment;
	uint64_t key_claim, tensor_claim, cut; /* UINT64_MAX: the truth; cut: bytes of the file */
	uint32_t key_count, tensor_count;
	struct made_key key[64];
	struct made_tensor tensor[64];
};

static inline struct made_key *make_key(struct maker *m, const char *name, uint32_t type)
{
	struct made_key *k = NULL;
	for (uint32_t i = 0; i < m->key_count; i++)
		if (!strcmp(m->key[i].name, name))
			k = &m->key[i];
	if (!k)
		k = &m->key[m->key_count++];
	snprintf(k->name, sizeof k->name, "%s", name);
	k->name_length = strlen(name);
	k->type = type;
	k->value.length = 0;
	return k;
}

static inline void make_drop(struct maker *m, const char *name)
{
	for (uint32_t i = 0; i < m->key_count; i++) {
		if (strcmp(m->key[i].name, name))
			continue;
		free(m->key[i].value.at);
		m->key_count--;
		memmove(&m->key[i], &m->key[i + 1], (m->key_count - i) * sizeof m->key[0]);
		memset(&m->key[m->key_count], 0, sizeof m->key[0]);
		return;
	}
	abort();
}

static inline void make_u32(struct maker *m, const char *name, uint32_t v)
{
	put_u32(&make_key(m, name, 4)->value, v);
}

static inline void make_f32(struct maker *m, const char *name, float v)
{
	put(&make_key(m, name, 6)->value, &v, 4);
}

static inline void make_string(struct maker *m, const char *name, const char *v)
{
	put_string(&make_key(m, name, 8)->value, v);
}

/* An array's head; the items follow in ->value. */
static inline struct bytes *make_array(struct maker *m, const char *name, uint32_t type,
				       uint64_t count)
{
	struct made_key *k = make_key(m, name, 9);
	put_u32(&k->value, type);
	put_u64(&k->value, count);
	return &k->value;
}

static inline void make_strings(struct maker *m, const char *name, const char *const *v,
				uint64_t count)
{
	struct bytes *b = make_array(m, name, 8, count);
	for (uint64_t i = 0; i < count; i++)
		put_string(b, v[i]);
}

static inline struct made_tensor *make_find(struct maker *m, const char *name)
{
	for (uint32_t i = 0; i < m->tensor_count; i++)
		if (!strcmp(m->tensor[i].name, name))
			return &m->tensor[i];
	abort();
}

static inline struct made_tensor *make_tensor(struct maker *m, const char *name, uint32_t type,
					      uint64_t columns, uint64_t rows)
{
	struct made_tensor *t = &m->tensor[m->tensor_count++];
	memset(t, 0, sizeof *t);
	snprintf(t->name, sizeof t->name, "%s", name);
	t->name_length = strlen(name);
	t->type = type;
	t->dimensions = rows == 0 ? 1 : 2;
	t->dimension[0] = columns;
	t->dimension[1] = rows == 0 ? 1 : rows;
	t->offset = UINT64_MAX;
	uint64_t n = columns * t->dimension[1];
	t->bytes = type == 0 ? n * 4 : type == 1 || type == 30 ? n * 2 : type == 8 ? n / 32 * 34 :
		   n / 32 * 20;
	return t;
}

enum { MADE_WIDTH = 32, MADE_HEADS = 2, MADE_KV = 1, MADE_HEAD = 16, MADE_FF = 64 };

/* A valid file: one layer, width 32, F32, Q8_0 and Q4_1, the given vocabulary. */
static inline void make_model(struct maker *m, const char *const *token, const int32_t *kind,
			      uint32_t token_count, const char *const *merge, uint32_t merge_count)
{
	memset(m, 0, sizeof *m);
	memcpy(m->magic, "GGUF", 5);
	m->version = 3;
	m->alignment = 32;
	m->key_claim = m->tensor_claim = m->cut = UINT64_MAX;
	make_string(m, "general.architecture", "llama");
	make_string(m, "general.name", "a small one");
	make_u32(m, "llama.block_count", 1);
	make_u32(m, "llama.context_length", 128);
	make_u32(m, "llama.embedding_length", MADE_WIDTH);
	make_u32(m, "llama.feed_forward_length", MADE_FF);
	make_u32(m, "llama.attention.head_count", MADE_HEADS);
	make_u32(m, "llama.attention.head_count_kv", MADE_KV);
	make_f32(m, "llama.attention.layer_norm_rms_epsilon", 1e-5f);
	make_string(m, "tokenizer.ggml.model", "gpt2");
	make_string(m, "tokenizer.ggml.pre", "smollm");
	make_strings(m, "tokenizer.ggml.tokens", token, token_count);
	put(make_array(m, "tokenizer.ggml.token_type", 5, token_count), kind, 4 * token_count);
	make_strings(m, "tokenizer.ggml.merges", merge, merge_count);
	make_tensor(m, "token_embd.weight", 8, MADE_WIDTH, token_count);
	make_tensor(m, "output_norm.weight", 0, MADE_WIDTH, 0);
	make_tensor(m, "blk.0.attn_norm.weight", 0, MADE_WIDTH, 0);
	make_tensor(m, "blk.0.attn_q.weight", 3, MADE_WIDTH, MADE_HEADS * MADE_HEAD);
	make_tensor(m, "blk.0.attn_k.weight", 3, MADE_WIDTH, MADE_KV * MADE_HEAD);
	make_tensor(m, "blk.0.attn_v.weight", 3, MADE_WIDTH, MADE_KV * MADE_HEAD);
	make_tensor(m, "blk.0.attn_output.weight", 3, MADE_HEADS * MADE_HEAD, MADE_WIDTH);
	make_tensor(m, "blk.0.ffn_norm.weight", 0, MADE_WIDTH, 0);
	make_tensor(m, "blk.0.ffn_gate.weight", 3, MADE_WIDTH, MADE_FF);
	make_tensor(m, "blk.0.ffn_up.weight", 3, MADE_WIDTH, MADE_FF);
	make_tensor(m, "blk.0.ffn_down.weight", 3, MADE_FF, MADE_WIDTH);
}

/* The same with the smallest vocabulary that shows everything. */
static inline void make_tiny(struct maker *m)
{
	static const char *const token[] = {"<|im_end|>", "a", "b", "ab", "\xc4\xa0"};
	static const int32_t kind[] = {3, 1, 1, 1, 1};
	static const char *const merge[] = {"a b"};
	make_model(m, token, kind, 5, merge, 1);
}

/* The same model as another family: its keys under the family's name, its own tensors added. */
static inline void make_family(struct maker *m, const char *family)
{
	make_string(m, "general.architecture", family);
	for (uint32_t i = 0; i < m->key_count; i++) {
		char rest[48];
		if (strncmp(m->key[i].name, "llama.", 6))
			continue;
		snprintf(rest, sizeof rest, "%.47s", m->key[i].name + 6);
		snprintf(m->key[i].name, sizeof m->key[i].name, "%.12s.%.47s", family, rest);
		m->key[i].name_length = strlen(m->key[i].name);
	}
	if (!strcmp(family, "qwen2")) {
		make_tensor(m, "blk.0.attn_q.bias", 0, MADE_HEADS * MADE_HEAD, 0);
		make_tensor(m, "blk.0.attn_k.bias", 0, MADE_KV * MADE_HEAD, 0);
		make_tensor(m, "blk.0.attn_v.bias", 0, MADE_KV * MADE_HEAD, 0);
	}
	if (!strcmp(family, "qwen3") || !strcmp(family, "gemma3")) {
		make_tensor(m, "blk.0.attn_q_norm.weight", 0, MADE_HEAD, 0);
		make_tensor(m, "blk.0.attn_k_norm.weight", 0, MADE_HEAD, 0);
	}
	if (!strcmp(family, "gemma3")) {
		make_tensor(m, "blk.0.post_attention_norm.weight", 0, MADE_WIDTH, 0);
		make_tensor(m, "blk.0.post_ffw_norm.weight", 0, MADE_WIDTH, 0);
	}
}

/* The file's bytes; frees the records. */
static inline struct bytes make_bytes(struct maker *m)
{
	struct bytes b = {0};
	put(&b, m->magic, 4);
	put_u32(&b, m->version);
	put_u64(&b, m->tensor_claim == UINT64_MAX ? m->tensor_count : m->tensor_claim);
	put_u64(&b, m->key_claim == UINT64_MAX ? m->key_count : m->key_claim);
	for (uint32_t i = 0; i < m->key_count; i++) {
		put_u64(&b, m->key[i].name_length);
		put(&b, m->key[i].name, strlen(m->key[i].name));
		put_u32(&b, m->key[i].type);
		put(&b, m->key[i].value.at, m->key[i].value.length);
		free(m->key[i].value.at);
	}
	uint64_t at = 0;
	for (uint32_t i = 0; i < m->tensor_count; i++) {
		struct made_tensor *t = &m->tensor[i];
		at = (at + m->alignment - 1) / m->alignment * m->alignment;
		put_u64(&b, t->name_length);
		put(&b, t->name, strlen(t->name));
		put_u32(&b, t->dimensions);
		for (uint32_t d = 0; d < t->dimensions && d < 5; d++)
			put_u64(&b, t->dimension[d]);
		put_u32(&b, t->type);
		put_u64(&b, t->offset == UINT64_MAX ? at : t->offset);
		at += t->bytes;
	}
	at += (b.length + m->alignment - 1) / m->alignment * m->alignment;
	while (b.length < at)
		put(&b, &(uint8_t){(uint8_t)(b.length * 37)}, 1);
	if (b.length > m->cut)
		b.length = m->cut;
	return b;
}

/* A path at which the bytes can be opened, until made_close. */
struct made_file {
	int fd;
	char path[64];
};

static inline struct made_file made_open(const void *at, size_t length)
{
	struct made_file f = {.fd = memfd_create("model", MFD_CLOEXEC)};
	if (f.fd < 0 || write(f.fd, at, length) != (ssize_t)length)
		abort();
	snprintf(f.path, sizeof f.path, "/proc/self/fd/%d", f.fd);
	return f;
}

static inline void made_close(struct made_file *f)
{
	close(f->fd);
}

#endif
