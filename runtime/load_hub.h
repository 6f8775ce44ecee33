/*
 * Inside the loader: a folder as model hubs have it (config.json, tokenizer.json, safetensors) told as
 * the keys of a GGUF file, so that one reader checks both. load_hub.c puts it together,
 * load_hub_config.c reads config.json, load_safetensors.c the weights' directory,
 * load_hub_tokenizer.c the tokenizer. Nobody else includes this but load.c and its test.
 */
#ifndef HOLDFAST_RUNTIME_LOAD_HUB_H
#define HOLDFAST_RUNTIME_LOAD_HUB_H

#include "runtime/json.h"
#include "runtime/load.h"

enum {
	HUB_FILES_MAX = 256, /* of weights: each is an open descriptor */
	HUB_NAME_MAX = 255,  /* bytes of a file's name */
	HUB_TOKENS_MAX = MODEL_VOCAB_MAX
};

/* Keys of a GGUF file in the making. */
struct hub_out {
	uint8_t *bytes;
	size_t length, capacity;
	uint64_t keys;
	bool failed; /* no memory: all further puts do nothing */
};
void hub_put(struct hub_out *out, const void *bytes, size_t length);
void hub_put_u32(struct hub_out *out, uint32_t value);
void hub_put_u64(struct hub_out *out, uint64_t value);
void hub_put_text(struct hub_out *out, const char *text, size_t length);
/* Begins a key; its value is put next. */
void hub_key(struct hub_out *out, const char *key, uint32_t type);
void hub_key_u32(struct hub_out *out, const char *key, uint32_t value);
void hub_key_bool(struct hub_out *out, const char *key, bool value);
void hub_key_text(struct hub_out *out, const char *key, const char *text, size_t length);
void hub_key_array(struct hub_out *out, const char *key, uint32_t item_type, uint64_t count);

/* A file of the folder, whole. */
struct hub_text {
	char *bytes;
	size_t length;
	struct json json;
};

struct hub {
	char *reason;
	int folder;
	struct hub_out out;
	const struct family *family;
	bool gemma, tied;
	float attention_scale;  /* 0: as the family has it */
	uint32_t bos, eos;      /* of config.json; UINT32_MAX: none */
	uint32_t file_count;
	int fd[HUB_FILES_MAX];
	char *file_name[HUB_FILES_MAX];
	uint64_t file_bytes[HUB_FILES_MAX];
	/* What goes into struct gguf. */
	struct tensor *tensor;
	uint32_t tensor_count, tensor_room;
	/* Bytes of tensors that the loader makes itself. */
	uint32_t made_count, made_room;
	void **made;
};

int hub_refuse(struct hub *hub, int code, const char *format, ...)
	__attribute__((format(printf, 3, 4)));
/* Opens a file of the folder, which must be a regular one; what is opened is the caller's even if it is not.
   *fd is -1 if it cannot be opened, and that is no refusal where it is only not there and not required. */
int hub_open_file(struct hub *hub, const char *name, bool required, int *fd, uint64_t *bytes);
/* Reads a file of at most `most` bytes; *out is zero, and free(out->bytes) due in any case. A file that is
   not there is refused if required; else out->bytes stays NULL. */
int hub_file(struct hub *hub, const char *name, bool required, size_t most, struct hub_text *out);
/* A text must be JSON: a file's, or (what) a part of it. */
int hub_check(struct hub *hub, const char *name, const char *what, const char *text, size_t length,
	      struct json *out);
/* hub_file of one that must be JSON. */
int hub_json(struct hub *hub, const char *name, bool required, struct hub_text *out);
/* The string in quotes, at most `room` - 1 bytes (room: at most HUB_NAME_MAX + 1), NUL after it; false if it
   is no string, longer, empty, or has a NUL. */
bool hub_string(struct json value, char *to, size_t room);

/* config.json as keys, and what the other parts must know of it. */
int hub_config(struct hub *hub, struct json json);

/* The weights: model.safetensors, or the files that the index names. Fills tensor[]. */
int hub_weights(struct hub *hub);
/* One tensor under GGUF's name; taken over as it is. -ERR_MEMORY. */
int hub_tensor(struct hub *hub, const char *name, const struct tensor *tensor);
/* Room for a made tensor's bytes, that lives as long as the hub. NULL: no memory. */
void *hub_make(struct hub *hub, size_t bytes);

/* tokenizer.json and tokenizer_config.json as keys. */
int hub_tokenizer(struct hub *hub);

/* Whether the path is a folder, or names one's config.json or safetensors. */
bool hub_is(const char *path);
/* Reads a folder: *out describes the files, *g the keys and the tensors. hub_close is due in any
   case, after gguf_close. */
int hub_open(const char *path, struct hub **out, struct gguf *g, char *reason);
void hub_close(struct hub **hub);

#endif
