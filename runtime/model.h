/*
 * A model, read and checked: what architecture it is, where its tensors lie, its vocabulary. load*.c
 * fill it from GGUF files, or from a folder of safetensors as hubs have them. Everything in a file is
 * taken as hostile: a refusal names the field, the value found and the limit.
 */
#ifndef HOLDFAST_RUNTIME_MODEL_H
#define HOLDFAST_RUNTIME_MODEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/ops.h"

enum { MODEL_LAYERS_MAX = 512, MODEL_REASON_MAX = 400 };

/* The architecture as data for the forward pass. */
struct arch {
	char name[32]; /* "llama", "qwen2" */
	uint32_t layers, width, heads, kv_heads, head, ff, vocab, context;
	enum rope_kind rope;
	enum gate_kind gate;
	uint32_t rope_dims;
	float rope_base, rope_scale;
	float rope_base_local;    /* of window layers, which then have no scale; 0: the same */
	float epsilon;
	float attention_scale, attention_softcap, head_softcap, embedding_scale;
	uint32_t window;          /* of window layers; 0: there are none */
	uint32_t window_period;   /* layer i has a window unless (i + 1) % period == 0; 0: none has */
	bool qkv_bias, qk_norm, post_norms;
	bool tied;                /* the head is the embedding */
};

struct tensor {
	const char *name;  /* lives as long as the model */
	uint32_t type;     /* enum weight_type */
	uint32_t rows, columns; /* 1 x n for a vector */
	uint64_t offset, bytes; /* in the file */
	uint32_t file;     /* which file of a split model */
	const void *made;  /* not as a file has it: its bytes; NULL: they are in the file */
};

/* Token kinds as GGUF numbers them. */
enum token_kind { TOKEN_NORMAL = 1, TOKEN_UNKNOWN, TOKEN_CONTROL, TOKEN_USER, TOKEN_UNUSED, TOKEN_BYTE };

struct vocabulary {
	char model[32], pre[32]; /* "gpt2", "smollm" */
	uint32_t count;
	const char **text;       /* as stored in the file; not NUL-terminated, see length */
	const uint32_t *length;
	const float *score;      /* NULL if the file has none */
	const uint8_t *kind;     /* enum token_kind */
	uint32_t merge_count;
	const char **merge;      /* "a b" */
	const uint32_t *merge_length;
	uint32_t bos, eos, eot, unknown, pad; /* UINT32_MAX: none */
	bool add_bos, add_eos, add_space_prefix;
	const char *chat_template; /* NULL if none; NUL-terminated */
	size_t chat_template_length;
};

struct model {
	char path[4096];
	char title[128];        /* general.name, made printable */
	struct arch arch;
	struct vocabulary vocabulary;
	uint32_t tensor_count;
	struct tensor *tensor;
	uint64_t parameters, file_bytes;
	uint8_t hash[32];       /* BLAKE2b-256 over metadata and tensor directory and sampled data:
							   identifies the file */
	void *private;          /* load.c's memory */
};

/* Opens, checks and describes a file, a split model by its first file, or a folder with config.json;
   reads no weights but what hashing needs. On refusal *reason (room for MODEL_REASON_MAX) says field,
   value and limit, in printable ASCII, without the file's own bytes beyond a short sanitised name.
   -ERR_NO_FILE, -ERR_PERMISSION, -ERR_IO, -ERR_BAD_FILE, -ERR_UNSUPPORTED (valid, but an
   architecture, type or tokenizer that is not taken: by name), -ERR_MEMORY. */
int model_open(const char *path, struct model **out, char *reason);
void model_close(struct model **model);
/* NULL if there is none of that name. */
const struct tensor *model_tensor(const struct model *model, const char *name);
/* Reads a tensor's bytes as its type has them, `bytes` of them, into `to`. -ERR_IO, -ERR_BAD_FILE
   (cut off). */
int model_read(const struct model *model, const struct tensor *tensor, void *to);

#endif
