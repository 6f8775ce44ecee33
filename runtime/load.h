/*
 * Inside the loader: what a model's files say, before anything is made of it. load_gguf.c reads the
 * structure (header, keys, tensor directory), load_split.c finds the files of a split model, load_hub.c
 * reads a folder of safetensors, load_arch.c the architecture, load_vocabulary.c the vocabulary; load.c
 * puts the model together. Nobody else includes this.
 */
#ifndef HOLDFAST_RUNTIME_LOAD_H
#define HOLDFAST_RUNTIME_LOAD_H

#include "runtime/map.h"
#include "runtime/model.h"
#include "runtime/wanted.h"

/* What is taken of a file. Each is far above any known model, and each bounds memory or time. */
enum {
	GGUF_METADATA_MAX = 256 << 20, /* header, keys and directory */
	GGUF_KEYS_MAX = 65536,
	GGUF_KEY_BYTES_MAX = 1024,
	GGUF_TENSORS_MAX = 65536,
	GGUF_NAME_BYTES_MAX = 63, /* the format's own: 64 with a NUL */
	GGUF_DIMENSIONS_MAX = 4,
	GGUF_ALIGNMENT_MAX = 1 << 20,
	GGUF_SPLIT_MAX = 256, /* files of one model: each is an open descriptor */
	MODEL_WIDTH_MAX = 65536,
	MODEL_FF_MAX = 1 << 20,
	MODEL_HEADS_MAX = 1024,
	MODEL_HEAD_MAX = 1024,
	MODEL_VOCAB_MAX = 1 << 20,
	MODEL_MERGES_MAX = 1 << 21,
	MODEL_TOKEN_BYTES_MAX = 4096,
	MODEL_CONTEXT_MAX = 1 << 20
};

enum gguf_type {
	GGUF_U8, GGUF_I8, GGUF_U16, GGUF_I16, GGUF_U32, GGUF_I32, GGUF_F32, GGUF_BOOL, GGUF_STRING,
	GGUF_ARRAY, GGUF_U64, GGUF_I64, GGUF_F64, GGUF_TYPE_COUNT
};

struct gguf_value {
	size_t key_at, at; /* offsets in the file: of the key's bytes, of the (first) value */
	uint32_t key_length;
	uint32_t type, item_type; /* enum gguf_type; item_type of an array */
	uint64_t count; /* items of an array, bytes of a string */
};

struct gguf {
	int fd;
	uint64_t file_bytes;
	char *reason; /* the caller's; see model_open */
	uint8_t *bytes; /* the file's first `have` bytes: at least the metadata when it is read */
	size_t have, at, capacity;
	uint32_t value_count, tensor_count;
	struct gguf_value *value;
	struct tensor *tensor;
	size_t *name_at;
	uint32_t *name_length;
	size_t metadata_bytes; /* where the directory ends */
	uint64_t data_at;      /* where the tensors' data starts */
	struct map *keys, *names;
	char *name_text; /* the tensors' names with NULs */
};

/* Reads `bytes` at `offset`, whole or not at all: -ERR_BAD_FILE if the file ends before, -ERR_IO. */
int load_read(int fd, uint64_t offset, uint64_t bytes, void *out);
/* What an opening that failed with errno means: -ERR_PERMISSION, -ERR_NO_FILE, or -ERR_IO. */
int load_open_code(int number);
/* Says why, in printable ASCII, and returns the code. */
int gguf_refuse(struct gguf *g, int code, const char *format, ...)
	__attribute__((format(printf, 3, 4)));
/* A short printable form of bytes from the file: at most 40 of them, others as '?'. The result is
   in one of four static buffers of the calling thread. */
const char *gguf_show(const char *bytes, size_t length);

/* Opens the file and reads the structure; *g is zeroed first, and gguf_close is due in any case. */
int gguf_open(const char *path, struct gguf *g, char *reason);
/* The same of keys in memory, and of tensors that lie elsewhere: both are taken over, and their
   names are borrowed until gguf_close. *g is zero but for fd and reason. */
int gguf_adopt(uint8_t *bytes, size_t length, struct tensor *tensor, uint32_t tensor_count,
	       struct gguf *g, char *reason);
void gguf_close(struct gguf *g);

/* The value of a key, NULL if there is none. */
const struct gguf_value *gguf_find(const struct gguf *g, const char *key);
/* Typed access. A key of another type is refused; a missing one leaves *out as it is, and is
   refused if `required`. */
int gguf_u32(struct gguf *g, const char *key, bool required, uint32_t *out);
int gguf_u16(struct gguf *g, const char *key, bool required, uint32_t *out);
int gguf_f32(struct gguf *g, const char *key, bool required, float *out);
int gguf_bool(struct gguf *g, const char *key, bool *out);
int gguf_string(struct gguf *g, const char *key, bool required, const char **out,
		size_t *length);

/* An array of the item type; NULL if it is missing and need not be there. */
int gguf_array(struct gguf *g, const char *key, uint32_t item_type, bool required,
		const struct gguf_value **out);

/* Name and block of a tensor type as the format numbers it. NULL if there is no such type (or no
   longer). *elements is 0 for a type that is known and not taken. */
const char *gguf_type_block(uint32_t type, uint32_t *elements, uint32_t *bytes);

uint32_t gguf_get_u32(const uint8_t *at);
uint64_t gguf_get_u64(const uint8_t *at);

/* How many files the model is split into, said by its first; refuses one that is not the first. */
int split_count(struct gguf *g, uint32_t *count);
/* Opens parts[1] and so on, whose room is zeroed but for fd, -1; parts[0] is open. */
int split_open(const char *path, struct gguf *parts, uint32_t count);

/* What all models of an architecture have in common. */
struct family {
	const char *name; /* as GGUF has it */
	enum rope_kind rope;
	enum gate_kind gate;
	enum { BIAS_NEVER, BIAS_MAYBE, BIAS_ALWAYS } bias; /* on q, k and v */
	/* Which layers a window that the file states is of. */
	enum { WINDOWS_NONE, WINDOWS_ALL, WINDOWS_PERIOD } windows;
	bool qk_norm, post_norms, softcaps;
	bool scaled; /* the embedding, by the root of the width */
};

/* NULL if there is none of that name. */
const struct family *family_find(const char *name, size_t length);
/* Sets what follows from the family, and zero elsewhere. */
void family_init(const struct family *family, struct arch *arch);
/* Sets what follows from the tensors: vocab, tied, biases. */
void family_tensors(const struct family *family, struct model *model);

/* Refuses another architecture by its name. */
int load_arch_name(struct gguf *g);
/* Fills model->arch from keys and checks that every tensor the architecture needs is there in the
   right shape, and no other. The model's tensors are in place, vocabulary.count is known. */
int load_arch(struct gguf *g, struct model *model);
/* Fills model->vocabulary; *memory is one allocation for all of it. */
int load_vocabulary(struct gguf *g, struct model *model, void **memory);

/* Whether the pre-tokenizer of that name is known (tokenizer_split.c). */
bool pretokenizer_known(const char *name);

#endif
