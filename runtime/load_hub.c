/*
 * A model as hubs have it: the keys in the making, the folder's files, and what becomes of the tensors.
 */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/load_hub.h"

int hub_refuse(struct hub *hub, int code, const char *format, ...)
{
	va_list list;
	va_start(list, format);
	vsnprintf(hub->reason, MODEL_REASON_MAX, format, list);
	va_end(list);
	return code;
}

/* ---- Keys in the making. */

void hub_put(struct hub_out *out, const void *bytes, size_t length)
{
	if (out->failed || length > GGUF_METADATA_MAX - out->length) {
		out->failed = true;
		return;
	}
	if (out->length + length > out->capacity) {
		const size_t capacity = (out->length + length) * 2;
		uint8_t *grown = realloc(out->bytes, capacity);
		if (!grown) {
			out->failed = true;
			return;
		}
		out->bytes = grown;
		out->capacity = capacity;
	}
	if (length > 0)
		memcpy(out->bytes + out->length, bytes, length);
	out->length += length;
}

void hub_put_u32(struct hub_out *out, uint32_t value)
{
	const uint8_t b[4] = {(uint8_t)value, (uint8_t)(value >> 8), (uint8_t)(value >> 16),
			      (uint8_t)(value >> 24)};
	hub_put(out, b, sizeof b);
}

void hub_put_u64(struct hub_out *out, uint64_t value)
{
	hub_put_u32(out, (uint32_t)value);
	hub_put_u32(out, (uint32_t)(value >> 32));
}

void hub_put_text(struct hub_out *out, const char *text, size_t length)
{
	hub_put_u64(out, length);
	hub_put(out, text, length);
}

void hub_key(struct hub_out *out, const char *key, uint32_t type)
{
	hub_put_text(out, key, strlen(key));
	hub_put_u32(out, type);
	out->keys++;
}

void hub_key_u32(struct hub_out *out, const char *key, uint32_t value)
{
	hub_key(out, key, GGUF_U32);
	hub_put_u32(out, value);
}

void hub_key_bool(struct hub_out *out, const char *key, bool value)
{
	hub_key(out, key, GGUF_BOOL);
	hub_put(out, value ? "\1" : "\0", 1);
}

void hub_key_text(struct hub_out *out, const char *key, const char *text, size_t length)
{
	hub_key(out, key, GGUF_STRING);
	hub_put_text(out, text, length);
}

void hub_key_array(struct hub_out *out, const char *key, uint32_t item_type, uint64_t count)
{
	hub_key(out, key, GGUF_ARRAY);
	hub_put_u32(out, item_type);
	hub_put_u64(out, count);
}

/* ---- JSON files. */

bool hub_string(struct json value, char *to, size_t room)
{
	char text[6 * (HUB_NAME_MAX + 1)];
	CHECK(room <= HUB_NAME_MAX + 1);
	if (json_kind(value) != JSON_STRING || value.length > 6 * room)
		return false;
	const size_t n = json_string(value, text);
	if (n == 0 || n >= room || memchr(text, 0, n))
		return false;
	memcpy(to, text, n);
	to[n] = 0;
	return true;
}

int hub_open_file(struct hub *hub, const char *name, bool required, int *fd, uint64_t *bytes)
{
	struct stat st;
	const char *shown = gguf_show(name, strlen(name));
	*fd = openat(hub->folder, name, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	if (*fd < 0) {
		const int number = errno, code = load_open_code(number);
		if (code == -ERR_PERMISSION)
			return hub_refuse(hub, code, "%s may not be read", shown);
		if (code == -ERR_NO_FILE)
			return required ? hub_refuse(hub, code, "%s: there is no such file", shown) : 0;
		return hub_refuse(hub, code, "%s: opening failed: errno %d", shown, number);
	}
	if (fstat(*fd, &st) != 0)
		return hub_refuse(hub, -ERR_IO, "%s: stat failed: errno %d", shown, errno);
	if (!S_ISREG(st.st_mode))
		return hub_refuse(hub, -ERR_BAD_FILE, "%s: not a regular file", shown);
	*bytes = (uint64_t)st.st_size;
	return 0;
}

int hub_file(struct hub *hub, const char *name, bool required, size_t most, struct hub_text *out)
{
	uint64_t bytes = 0;
	int fd, code = hub_open_file(hub, name, required, &fd, &bytes);
	if (fd < 0)
		return code;
	if (code == 0 && bytes > most)
		code = hub_refuse(hub, -ERR_BAD_FILE, "%s: %llu bytes, %zu are taken", name,
				  (unsigned long long)bytes, most);
	if (code == 0 && !(out->bytes = malloc((size_t)bytes + 1)))
		code = hub_refuse(hub, -ERR_MEMORY, "%s: no memory", name);
	if (code == 0 && (code = load_read(fd, 0, bytes, out->bytes)) != 0)
		hub_refuse(hub, code, "%s: reading failed", name);
	out->length = (size_t)bytes;
	close(fd);
	return code;
}

int hub_check(struct hub *hub, const char *name, const char *what, const char *text, size_t length,
	      struct json *out)
{
	const int code = json_check(text, length, out);
	if (code == -ERR_OUT_OF_RANGE)
		return hub_refuse(hub, -ERR_BAD_FILE, "%s: %s is nested deeper than %d", name, what, JSON_DEPTH_MAX);
	return code == 0 ? 0 : hub_refuse(hub, -ERR_BAD_FILE, "%s: %s is no JSON: byte %zu", name, what,
					  json_wrong_at(text, length));
}

int hub_json(struct hub *hub, const char *name, bool required, struct hub_text *out)
{
	TRY(hub_file(hub, name, required, JSON_BYTES_MAX, out));
	return out->bytes ? hub_check(hub, name, "it", out->bytes, out->length, &out->json) : 0;
}

/* ---- Tensors. */

void *hub_make(struct hub *hub, size_t bytes)
{
	if (hub->made_count == hub->made_room) {
		const uint32_t room = hub->made_room ? hub->made_room * 2 : 64;
		void **grown = realloc(hub->made, room * sizeof *grown);
		if (!grown)
			return NULL;
		hub->made = grown;
		hub->made_room = room;
	}
	void *made = calloc(1, bytes ? bytes : 1);
	if (made)
		hub->made[hub->made_count++] = made;
	return made;
}

int hub_tensor(struct hub *hub, const char *name, const struct tensor *tensor)
{
	if (hub->tensor_count == GGUF_TENSORS_MAX)
		return hub_refuse(hub, -ERR_BAD_FILE, "more than %d tensors", GGUF_TENSORS_MAX);
	if (hub->tensor_count == hub->tensor_room) {
		const uint32_t room = hub->tensor_room ? hub->tensor_room * 2 : 256;
		struct tensor *grown = realloc(hub->tensor, room * sizeof *grown);
		if (!grown)
			return hub_refuse(hub, -ERR_MEMORY, "no memory for the tensors");
		hub->tensor = grown;
		hub->tensor_room = room;
	}
	char *kept = hub_make(hub, strlen(name) + 1);
	if (!kept)
		return hub_refuse(hub, -ERR_MEMORY, "no memory for the tensors");
	memcpy(kept, name, strlen(name) + 1);
	hub->tensor[hub->tensor_count] = *tensor;
	hub->tensor[hub->tensor_count++].name = kept;
	return 0;
}

static float value_at(uint32_t type, const uint8_t *at)
{
	uint32_t bits;
	float value;
	if (type == TYPE_F32) {
		memcpy(&value, at, 4);
		return value;
	}
	const uint32_t half = (uint32_t)(at[0] | at[1] << 8);
	if (type == TYPE_BF16) {
		bits = half << 16;
		memcpy(&value, &bits, 4);
		return value;
	}
	const uint32_t exponent = half >> 10 & 31, fraction = half & 1023;
	value = ldexpf((float)(exponent ? fraction + 1024 : fraction), (exponent ? (int)exponent : 1) - 25);
	if (exponent == 31)
		value = fraction ? NAN : INFINITY;
	return half & 0x8000 ? -value : value;
}

/* Gemma's norms are stored as what is added to one. */
static int norms_raise(struct hub *hub)
{
	uint8_t stored[4 * 4096];
	for (uint32_t i = 0; i < hub->tensor_count && hub->gemma; i++) {
		struct tensor *t = &hub->tensor[i];
		if (!strstr(t->name, "norm.weight") || t->made)
			continue;
		if (t->rows != 1 || t->columns > MODEL_WIDTH_MAX)
			continue; /* of a wrong shape: refused later */
		const uint32_t size = t->type == TYPE_F32 ? 4 : 2;
		float *made = hub_make(hub, (size_t)t->columns * sizeof *made);
		if (!made)
			return hub_refuse(hub, -ERR_MEMORY, "no memory for a norm");
		for (uint32_t at = 0; at < t->columns;) {
			const uint32_t n = t->columns - at < 4096 ? t->columns - at : 4096;
			const int code = load_read(hub->fd[t->file], t->offset + (uint64_t)at * size, (uint64_t)n * size,
						   stored);
			if (code != 0)
				return hub_refuse(hub, code, "%s: reading failed", t->name);
			for (uint32_t k = 0; k < n; k++)
				made[at + k] = 1 + value_at(t->type, stored + (size_t)k * size);
			at += n;
		}
		t->type = TYPE_F32;
		t->bytes = (uint64_t)t->columns * sizeof *made;
		t->made = made;
	}
	return 0;
}

/* ---- The folder. */

/* The folder of a path that names one, or a file in one. */
static bool folder_of(const char *path, char *folder, size_t room)
{
	static const char *const ends[] = {".safetensors", "config.json", "model.safetensors.index.json"};
	struct stat st;
	const size_t n = strlen(path);
	if (n == 0 || n >= room)
		return false;
	memcpy(folder, path, n + 1);
	if (stat(path, &st) != 0)
		return false;
	if (S_ISDIR(st.st_mode))
		return true;
	for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++) {
		const size_t k = strlen(ends[i]);
		if (n < k || strcmp(path + n - k, ends[i]))
			continue;
		char *slash = strrchr(folder, '/');
		snprintf(slash ? slash + 1 : folder, 2, "%s", slash ? "" : ".");
		return true;
	}
	return false;
}

bool hub_is(const char *path)
{
	char folder[4096];
	return folder_of(path, folder, sizeof folder);
}

static int hub_read(struct hub *hub, struct gguf *g)
{
	struct hub_text text = {0};
	static const uint8_t head[] = {'G', 'G', 'U', 'F', 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0};
	hub_put(&hub->out, head, sizeof head);
	hub_put_u64(&hub->out, 0);
	int code = hub_json(hub, "config.json", true, &text);
	if (code == 0)
		code = hub_config(hub, text.json);
	free(text.bytes);
	TRY(code);
	TRY(hub_weights(hub));
	TRY(norms_raise(hub));
	TRY(hub_tokenizer(hub));
	if (hub->out.failed)
		return hub_refuse(hub, -ERR_MEMORY, "the metadata is larger than %d bytes, or there is no memory",
				  GGUF_METADATA_MAX);
	for (int i = 0; i < 8; i++)
		hub->out.bytes[sizeof head + i] = (uint8_t)(hub->out.keys >> 8 * i);
	uint8_t *bytes = hub->out.bytes;
	struct tensor *tensor = hub->tensor;
	hub->out.bytes = NULL;
	hub->tensor = NULL;
	return gguf_adopt(bytes, hub->out.length, tensor, hub->tensor_count, g, hub->reason);
}

int hub_open(const char *path, struct hub **out, struct gguf *g, char *reason)
{
	char folder[4096] = "";
	memset(g, 0, sizeof *g);
	g->fd = -1;
	g->reason = reason;
	struct hub *hub = *out = calloc(1, sizeof *hub);
	if (!hub)
		return -ERR_MEMORY;
	hub->reason = reason;
	hub->folder = -1;
	for (uint32_t i = 0; i < HUB_FILES_MAX; i++)
		hub->fd[i] = -1;
	if (!folder_of(path, folder, sizeof folder))
		return hub_refuse(hub, -ERR_NO_FILE, "there is no such folder");
	hub->folder = open(folder, O_RDONLY | O_CLOEXEC | O_DIRECTORY);
	if (hub->folder < 0) {
		const int number = errno, code = load_open_code(number);
		return code == -ERR_PERMISSION ? hub_refuse(hub, code, "the folder may not be read")
					       : hub_refuse(hub, code, "opening the folder failed: errno %d", number);
	}
	return hub_read(hub, g);
}

void hub_close(struct hub **out)
{
	struct hub *hub = *out;
	if (!hub)
		return;
	for (uint32_t i = 0; i < hub->file_count; i++) {
		if (hub->fd[i] >= 0)
			close(hub->fd[i]);
		free(hub->file_name[i]);
	}
	if (hub->folder >= 0)
		close(hub->folder);
	for (uint32_t i = 0; i < hub->made_count; i++)
		free(hub->made[i]);
	free(hub->made);
	free(hub->tensor);
	free(hub->out.bytes);
	free(hub);
	*out = NULL;
}
