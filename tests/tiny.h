/*
 * A whole model file, tiny and random, written by the test that needs one: three layers of width 64,
 * every weight type that must be taken, a byte vocabulary, in each of the architectures. It says
 * nothing sensible, but computes as a real one does.
 */
#ifndef HOLDFAST_TESTS_TINY_H
#define HOLDFAST_TESTS_TINY_H

#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/ops.h"

enum {
	TINY_LAYERS = 3, TINY_WIDTH = 64, TINY_HEADS = 4, TINY_KV_HEADS = 2, TINY_HEAD = 16,
	TINY_FF = 256, TINY_CONTEXT = 1024, TINY_CONTROLS = 3, TINY_MERGES = 2,
	TINY_VOCAB = TINY_CONTROLS + 256 + TINY_MERGES, TINY_TENSORS_MAX = 64
};

/* What sets the families apart. Windows are shorter than a partition of attention, and of three
   layers the last one of gemma3 has none. */
struct tiny_family {
	const char *name, *arch;
	uint32_t heads, kv_heads, head, window, period;
	int bias, qk_norm, post_norms, untied, rope_factors;
	float rope_base, head_softcap, attention_softcap;
};
static const struct tiny_family tiny_families[] = {
	{"llama", "llama", TINY_HEADS, TINY_KV_HEADS, TINY_HEAD, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0},
	{"llama3", "llama", 4, 1, 16, 0, 0, 0, 0, 0, 1, 1, 500000, 0, 0},
	{"mistral", "llama", 8, 4, 32, 40, 0, 0, 0, 0, 1, 0, 1000000, 0, 0},
	{"qwen2", "qwen2", 6, 2, 16, 0, 0, 1, 0, 0, 1, 0, 1000000, 0, 0},
	{"qwen3", "qwen3", 4, 2, 128, 0, 0, 0, 1, 0, 0, 0, 1000000, 0, 0},
	{"gemma3", "gemma3", 4, 1, 256, 40, 3, 0, 1, 1, 0, 0, 1000000, 30, 50},
};
enum { TINY_FAMILIES = sizeof tiny_families / sizeof tiny_families[0] };

static inline const struct tiny_family *tiny_family(const char *name)
{
	for (unsigned i = 0; i < TINY_FAMILIES; i++)
		if (strcmp(tiny_families[i].name, name) == 0)
			return &tiny_families[i];
	return NULL;
}

struct tiny_tensor {
	char name[64];
	uint32_t type, rows, columns;
	uint64_t bytes, offset;
};

struct tiny {
	FILE *file;
	const struct tiny_family *family;
	uint64_t random, keys;
	int plain; /* 1: no quantised weights; 2: none in blocks of 256, so that ff can be cut */
	uint32_t count;
	struct tiny_tensor tensor[TINY_TENSORS_MAX];
};

static inline uint32_t tiny_random(struct tiny *t)
{
	t->random = t->random * 6364136223846793005u + 1442695040888963407u;
	return (uint32_t)(t->random >> 33);
}

static inline void tiny_u32(struct tiny *t, uint32_t x)
{
	fwrite(&x, sizeof x, 1, t->file);
}

static inline void tiny_u64(struct tiny *t, uint64_t x)
{
	fwrite(&x, sizeof x, 1, t->file);
}

static inline void tiny_bytes(struct tiny *t, const char *bytes, size_t length)
{
	tiny_u64(t, length);
	fwrite(bytes, 1, length, t->file);
}

static inline void tiny_key(struct tiny *t, const char *key, uint32_t type)
{
	tiny_bytes(t, key, strlen(key));
	tiny_u32(t, type);
	t->keys++;
}

static inline void tiny_number(struct tiny *t, const char *key, uint32_t x)
{
	tiny_key(t, key, 4);
	tiny_u32(t, x);
}

static inline void tiny_real(struct tiny *t, const char *key, float x)
{
	tiny_key(t, key, 6);
	fwrite(&x, sizeof x, 1, t->file);
}

static inline void tiny_text(struct tiny *t, const char *key, const char *x)
{
	tiny_key(t, key, 8);
	tiny_bytes(t, x, strlen(x));
}

/* Keys under the family's name. */
static inline void tiny_own_number(struct tiny *t, const char *key, uint32_t x)
{
	char name[64];
	snprintf(name, sizeof name, "%s.%s", t->family->arch, key);
	tiny_number(t, name, x);
}

static inline void tiny_own_real(struct tiny *t, const char *key, float x)
{
	char name[64];
	snprintf(name, sizeof name, "%s.%s", t->family->arch, key);
	if (x != 0)
		tiny_real(t, name, x);
}

/* GPT-2's printable form of a byte, as UTF-8. */
static inline size_t tiny_printable(uint32_t byte, char *to)
{
	uint32_t code = byte, others = 0;
	for (uint32_t b = 0; b <= byte; b++) {
		const int own = (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
		if (!own && b == byte)
			code = 0x100 + others;
		others += !own;
	}
	if (code < 0x80) {
		to[0] = (char)code;
		return 1;
	}
	to[0] = (char)(0xc0 | code >> 6);
	to[1] = (char)(0x80 | (code & 0x3f));
	return 2;
}

static inline void tiny_vocabulary(struct tiny *t)
{
	static const char *const controls[TINY_CONTROLS] = {"<|endoftext|>", "<|im_start|>",
							    "<|im_end|>"};
	tiny_text(t, "tokenizer.ggml.model", "gpt2");
	tiny_text(t, "tokenizer.ggml.pre", "smollm");
	tiny_key(t, "tokenizer.ggml.tokens", 9);
	tiny_u32(t, 8);
	tiny_u64(t, TINY_VOCAB);
	for (uint32_t i = 0; i < TINY_CONTROLS; i++)
		tiny_bytes(t, controls[i], strlen(controls[i]));
	for (uint32_t b = 0; b < 256; b++) {
		char form[2];
		tiny_bytes(t, form, tiny_printable(b, form));
	}
	tiny_bytes(t, "th", 2);
	tiny_bytes(t, "the", 3);
	tiny_key(t, "tokenizer.ggml.token_type", 9);
	tiny_u32(t, 5);
	tiny_u64(t, TINY_VOCAB);
	for (uint32_t i = 0; i < TINY_VOCAB; i++)
		tiny_u32(t, i < TINY_CONTROLS ? 3 : 1);
	tiny_key(t, "tokenizer.ggml.merges", 9);
	tiny_u32(t, 8);
	tiny_u64(t, TINY_MERGES);
	tiny_bytes(t, "t h", 3);
	tiny_bytes(t, "th e", 4);
	tiny_number(t, "tokenizer.ggml.bos_token_id", 1);
	tiny_number(t, "tokenizer.ggml.eos_token_id", 2);
}

static inline void tiny_add(struct tiny *t, const char *name, uint32_t type, uint32_t rows,
			    uint32_t columns)
{
	struct tiny_tensor *x = &t->tensor[t->count++];
	const struct tiny_tensor *last = t->count > 1 ? x - 1 : NULL;
	snprintf(x->name, sizeof x->name, "%s", name);
	if (t->plain == 2 && weight_type_elements(type) > 32)
		type = TYPE_Q8_0;
	if (t->plain == 1 && weight_type_elements(type) > 1)
		type = t->count % 3 == 0 ? TYPE_F32 : t->count % 3 == 1 ? TYPE_F16 : TYPE_BF16;
	x->type = type;
	x->rows = rows;
	x->columns = columns;
	x->bytes = (uint64_t)rows * columns / weight_type_elements(type) * weight_type_bytes(type);
	x->offset = last ? (last->offset + last->bytes + 31) / 32 * 32 : 0;
}

static inline void tiny_layers(struct tiny *t)
{
	/* One row a layer: q, k, v, output, gate, up, down. The K types need 256 columns. */
	static const uint32_t types[TINY_LAYERS][7] = {
		{TYPE_Q4_1, TYPE_Q4_0, TYPE_Q5_0, TYPE_Q8_0, TYPE_Q4_1, TYPE_Q4_1, TYPE_Q4_K},
		{TYPE_Q5_1, TYPE_F16, TYPE_BF16, TYPE_Q4_1, TYPE_Q5_0, TYPE_Q5_1, TYPE_Q5_K},
		{TYPE_F32, TYPE_Q8_0, TYPE_IQ4_NL, TYPE_MXFP4, TYPE_BF16, TYPE_F16, TYPE_Q6_K},
	};
	const struct tiny_family *f = t->family;
	const uint32_t q = f->heads * f->head, kv = f->kv_heads * f->head;
	const struct {
		const char *name;
		uint32_t rows, columns;
	} places[7] = {
		{"attn_q", q, TINY_WIDTH},       {"attn_k", kv, TINY_WIDTH},
		{"attn_v", kv, TINY_WIDTH},      {"attn_output", TINY_WIDTH, q},
		{"ffn_gate", TINY_FF, TINY_WIDTH}, {"ffn_up", TINY_FF, TINY_WIDTH},
		{"ffn_down", TINY_WIDTH, TINY_FF},
	};
	const struct {
		const char *name;
		int there;
		uint32_t columns;
	} vectors[9] = {
		{"attn_norm.weight", 1, TINY_WIDTH},     {"ffn_norm.weight", 1, TINY_WIDTH},
		{"attn_q.bias", f->bias, q},             {"attn_k.bias", f->bias, kv},
		{"attn_v.bias", f->bias, kv},            {"attn_q_norm.weight", f->qk_norm, f->head},
		{"attn_k_norm.weight", f->qk_norm, f->head},
		{"post_attention_norm.weight", f->post_norms, TINY_WIDTH},
		{"post_ffw_norm.weight", f->post_norms, TINY_WIDTH},
	};
	char name[64];
	for (uint32_t i = 0; i < TINY_LAYERS; i++) {
		for (uint32_t k = 0; k < 9; k++) {
			snprintf(name, sizeof name, "blk.%u.%s", i, vectors[k].name);
			if (vectors[k].there)
				tiny_add(t, name, TYPE_F32, 1, vectors[k].columns);
		}
		for (uint32_t k = 0; k < 7; k++) {
			snprintf(name, sizeof name, "blk.%u.%s.weight", i, places[k].name);
			tiny_add(t, name, types[i][k], places[k].rows, places[k].columns);
		}
	}
}

/* Random content of one block, with scales of a sensible size. */
static inline void tiny_block(struct tiny *t, uint32_t type, int norm, uint8_t *to)
{
	const uint32_t bytes = weight_type_bytes(type);
	const float value = norm ? 1.0f + (float)(tiny_random(t) % 200) / 1000.0f
				 : (float)((int)(tiny_random(t) % 2001) - 1000) / 5000.0f;
	uint32_t bits;
	memcpy(&bits, &value, sizeof bits);
	for (uint32_t i = 0; i < bytes; i++)
		to[i] = (uint8_t)tiny_random(t);
	const uint16_t small = (uint16_t)(0x2200 + tiny_random(t) % 0x300); /* about 0.015 */
	const uint16_t tiny = (uint16_t)(0x0c00 + tiny_random(t) % 0x300);  /* about 0.0003 */
	const uint16_t least = (uint16_t)(0xa800 + tiny_random(t) % 0x400); /* about -0.04 */
	const uint16_t half = (uint16_t)((tiny_random(t) & 0x8000) + 0x2800 + tiny_random(t) % 0x800);
	switch (type) {
	case TYPE_F32: memcpy(to, &value, 4); break;
	case TYPE_BF16: to[0] = (uint8_t)(bits >> 16); to[1] = (uint8_t)(bits >> 24); break;
	case TYPE_F16: memcpy(to, &half, 2); break;
	case TYPE_Q4_K: case TYPE_Q5_K: memcpy(to, &tiny, 2); memcpy(to + 2, &tiny, 2); break;
	case TYPE_Q6_K: memcpy(to + 208, &tiny, 2); break;
	case TYPE_IQ4_NL: memcpy(to, &tiny, 2); break;
	case TYPE_MXFP4: to[0] = (uint8_t)(119 + to[0] % 3); break; /* 2^-9 to 2^-7 of what reaches 12 */
	case TYPE_Q4_1: case TYPE_Q5_1: memcpy(to, &small, 2); memcpy(to + 2, &least, 2); break;
	default: memcpy(to, &small, 2); break;
	}
}

static inline void tiny_content(struct tiny *t, long data)
{
	uint8_t block[256];
	for (uint32_t i = 0; i < t->count; i++) {
		const struct tiny_tensor *x = &t->tensor[i];
		while (ftell(t->file) < data + (long)x->offset)
			fputc(0, t->file);
		const uint64_t blocks = (uint64_t)x->rows * x->columns / weight_type_elements(x->type);
		for (uint64_t k = 0; k < blocks; k++) {
			tiny_block(t, x->type, x->rows == 1, block);
			/* Codes of Q8_0 use their whole range, so its scale is smaller. */
			if (x->type == TYPE_Q8_0)
				block[1] -= 0x0c;
			fwrite(block, 1, weight_type_bytes(x->type), t->file);
		}
	}
}

static inline void tiny_keys(struct tiny *t)
{
	const struct tiny_family *f = t->family;
	tiny_text(t, "general.architecture", f->arch);
	tiny_text(t, "general.name", "tiny");
	tiny_own_number(t, "block_count", TINY_LAYERS);
	tiny_own_number(t, "context_length", TINY_CONTEXT);
	tiny_own_number(t, "embedding_length", TINY_WIDTH);
	tiny_own_number(t, "feed_forward_length", TINY_FF);
	tiny_own_number(t, "attention.head_count", f->heads);
	tiny_own_number(t, "attention.head_count_kv", f->kv_heads);
	tiny_own_number(t, "rope.dimension_count", f->head);
	tiny_own_real(t, "attention.layer_norm_rms_epsilon", 1e-5f);
	if (f != tiny_families)
		tiny_own_number(t, "attention.key_length", f->head);
	if (f->window)
		tiny_own_number(t, "attention.sliding_window", f->window);
	if (f->period)
		tiny_own_number(t, "attention.sliding_window_pattern", f->period);
	tiny_own_real(t, "rope.freq_base", f->rope_base);
	tiny_own_real(t, "final_logit_softcapping", f->head_softcap);
	tiny_own_real(t, "attn_logit_softcapping", f->attention_softcap);
	tiny_vocabulary(t);
}

static inline void tiny_directory(struct tiny *t)
{
	for (uint32_t i = 0; i < t->count; i++) {
		const struct tiny_tensor *x = &t->tensor[i];
		tiny_bytes(t, x->name, strlen(x->name));
		tiny_u32(t, x->rows == 1 ? 1 : 2);
		tiny_u64(t, x->columns);
		if (x->rows > 1)
			tiny_u64(t, x->rows);
		tiny_u32(t, x->type);
		tiny_u64(t, x->offset);
	}
	while (ftell(t->file) % 32 != 0)
		fputc(0, t->file);
}

/* Writes the file. 0, or -1 if that failed. */
static inline int tiny_write_family(const char *path, uint64_t seed,
				    const struct tiny_family *family, int plain)
{
	static struct tiny tiny;
	struct tiny *t = &tiny;
	memset(t, 0, sizeof *t);
	t->file = fopen(path, "wb");
	if (!t->file)
		return -1;
	t->random = seed;
	t->family = family;
	t->plain = plain;
	tiny_add(t, "token_embd.weight", TYPE_Q8_0, TINY_VOCAB, TINY_WIDTH);
	tiny_add(t, "output_norm.weight", TYPE_F32, 1, TINY_WIDTH);
	if (family->untied)
		tiny_add(t, "output.weight", TYPE_Q5_1, TINY_VOCAB, TINY_WIDTH);
	if (family->rope_factors)
		tiny_add(t, "rope_freqs.weight", TYPE_F32, 1, family->head / 2);
	tiny_layers(t);
	fwrite("GGUF", 1, 4, t->file);
	tiny_u32(t, 3);
	tiny_u64(t, t->count);
	const long keys_at = ftell(t->file);
	tiny_u64(t, 0);
	tiny_keys(t);
	const long end_of_keys = ftell(t->file);
	fseek(t->file, keys_at, SEEK_SET);
	tiny_u64(t, t->keys);
	fseek(t->file, end_of_keys, SEEK_SET);
	tiny_directory(t);
	tiny_content(t, ftell(t->file));
	const struct tiny_tensor *last = &t->tensor[t->count - 1];
	for (uint64_t end = last->bytes; end % 32 != 0; end++)
		fputc(0, t->file);
	const int bad = ferror(t->file);
	return fclose(t->file) != 0 || bad ? -1 : 0;
}

static inline int tiny_write(const char *path, uint64_t seed)
{
	return tiny_write_family(path, seed, tiny_families, 0);
}

/* Removes a test's folder and the files in it. */
static inline void tiny_remove(const char *folder)
{
	char path[512];
	DIR *dir = opendir(folder);
	for (struct dirent *e; dir && (e = readdir(dir));) {
		if (e->d_name[0] == '.')
			continue;
		snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
		unlink(path);
	}
	if (dir)
		closedir(dir);
	rmdir(folder);
}

#endif
