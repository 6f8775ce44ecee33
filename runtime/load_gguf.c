/*
 * The structure of a GGUF file, versions 2 and 3, little endian: header, typed keys, tensor
 * directory. The format is described in ggml's docs/gguf.md. Every length is compared with the
 * bytes that are left before anything is allocated or skipped; nothing is mapped, so that a file
 * that shrinks meanwhile is an error and not a signal.
 */
#include "runtime/load.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const uint8_t size_of[GGUF_TYPE_COUNT] = {
	[GGUF_U8] = 1, [GGUF_I8] = 1, [GGUF_U16] = 2, [GGUF_I16] = 2, [GGUF_U32] = 4,
	[GGUF_I32] = 4, [GGUF_F32] = 4, [GGUF_BOOL] = 1, [GGUF_U64] = 8, [GGUF_I64] = 8,
	[GGUF_F64] = 8,
};
static const char *const type_name[GGUF_TYPE_COUNT] = {
	"uint8", "int8", "uint16", "int16", "uint32", "int32", "float32", "bool", "string",
	"array", "uint64", "int64", "float64",
};

int gguf_refuse(struct gguf *g, int code, const char *format, ...)
{
	va_list list;
	va_start(list, format);
	vsnprintf(g->reason, MODEL_REASON_MAX, format, list);
	va_end(list);
	return code;
}

const char *gguf_show(const char *bytes, size_t length)
{
	enum { SHOW_MAX = 40 };
	static _Thread_local char text[4][SHOW_MAX + 4];
	static _Thread_local unsigned turn;
	char *to = text[turn++ % 4];
	size_t n = length < SHOW_MAX ? length : SHOW_MAX;
	for (size_t i = 0; i < n; i++)
		to[i] = bytes[i] >= ' ' && bytes[i] <= '~' ? bytes[i] : '?';
	memcpy(to + n, length > n ? "..." : "", length > n ? 4 : 1);
	return to;
}

uint32_t gguf_get_u32(const uint8_t *at)
{
	return (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 |
	       (uint32_t)at[3] << 24;
}

uint64_t gguf_get_u64(const uint8_t *at)
{
	return gguf_get_u32(at) | (uint64_t)gguf_get_u32(at + 4) << 32;
}

/* Makes the file's next n bytes present. `what` names the field for the refusal. */
static int need(struct gguf *g, uint64_t n, const char *what)
{
	if (n > g->file_bytes - g->at)
		return gguf_refuse(g, -ERR_BAD_FILE,
				   "%s: needs %llu bytes, the file has %llu left (cut off?)", what,
				   (unsigned long long)n,
				   (unsigned long long)(g->file_bytes - g->at));
	uint64_t end = g->at + n;
	if (end <= g->have)
		return 0;
	if (end > GGUF_METADATA_MAX)
		return gguf_refuse(g, -ERR_BAD_FILE, "%s: the metadata is larger than %d bytes",
				   what, GGUF_METADATA_MAX);
	uint64_t capacity = g->capacity ? g->capacity : 1 << 16;
	while (capacity < end)
		capacity *= 2;
	if (capacity > g->file_bytes)
		capacity = g->file_bytes;
	if (capacity > g->capacity) {
		uint8_t *bytes = realloc(g->bytes, capacity);
		if (!bytes)
			return gguf_refuse(g, -ERR_MEMORY, "metadata: no memory for %llu bytes",
					   (unsigned long long)capacity);
		g->bytes = bytes;
		g->capacity = capacity;
	}
	while (g->have < g->capacity) {
		ssize_t got = pread(g->fd, g->bytes + g->have, g->capacity - g->have,
				    (off_t)g->have);
		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0)
			return gguf_refuse(g, -ERR_IO, "reading at byte %zu failed: errno %d",
					   g->have, errno);
		if (got == 0)
			return gguf_refuse(g, -ERR_BAD_FILE,
					   "%s: the file was cut off while it was read", what);
		g->have += (size_t)got;
	}
	return 0;
}

static int take_u32(struct gguf *g, const char *what, uint32_t *out)
{
	TRY(need(g, 4, what));
	*out = gguf_get_u32(g->bytes + g->at);
	g->at += 4;
	return 0;
}

static int take_u64(struct gguf *g, const char *what, uint64_t *out)
{
	TRY(need(g, 8, what));
	*out = gguf_get_u64(g->bytes + g->at);
	g->at += 8;
	return 0;
}

/* Leaves the place of a string's bytes in *at. */
static int take_string(struct gguf *g, const char *what, size_t *at, uint64_t *length)
{
	TRY(take_u64(g, what, length));
	TRY(need(g, *length, what));
	*at = g->at;
	g->at += *length;
	return 0;
}

static int take_array(struct gguf *g, struct gguf_value *v, const char *key)
{
	TRY(take_u32(g, key, &v->item_type));
	TRY(take_u64(g, key, &v->count));
	if (v->item_type == GGUF_ARRAY)
		return gguf_refuse(g, -ERR_BAD_FILE, "%s: an array of arrays is not taken", key);
	if (v->item_type >= GGUF_TYPE_COUNT)
		return gguf_refuse(g, -ERR_BAD_FILE, "%s: item type %u is none of 0..%d", key,
				   v->item_type, GGUF_TYPE_COUNT - 1);
	v->at = g->at;
	uint64_t left = g->file_bytes - g->at;
	uint64_t least = v->item_type == GGUF_STRING ? 8 : size_of[v->item_type];
	if (v->count > left / least)
		return gguf_refuse(g, -ERR_BAD_FILE,
				   "%s: %llu items need more than the %llu bytes left", key,
				   (unsigned long long)v->count, (unsigned long long)left);
	if (v->item_type != GGUF_STRING) {
		TRY(need(g, v->count * least, key));
		g->at += v->count * least;
		return 0;
	}
	for (uint64_t i = 0; i < v->count; i++) {
		size_t at;
		uint64_t length;
		TRY(take_string(g, key, &at, &length));
	}
	return 0;
}

static int take_value(struct gguf *g, uint32_t index)
{
	struct gguf_value *v = &g->value[index];
	uint64_t length;
	TRY(take_string(g, "key", &v->key_at, &length));
	if (length == 0 || length > GGUF_KEY_BYTES_MAX)
		return gguf_refuse(g, -ERR_BAD_FILE,
				   "key %u: its name has %llu bytes, 1 to %d are taken", index,
				   (unsigned long long)length, GGUF_KEY_BYTES_MAX);
	v->key_length = (uint32_t)length;
	const char *key = gguf_show((const char *)g->bytes + v->key_at, length);
	TRY(take_u32(g, key, &v->type));
	v->at = g->at;
	if (v->type >= GGUF_TYPE_COUNT)
		return gguf_refuse(g, -ERR_BAD_FILE, "%s: type %u is none of 0..%d", key, v->type,
				   GGUF_TYPE_COUNT - 1);
	if (v->type == GGUF_STRING)
		return take_string(g, key, &v->at, &v->count);
	if (v->type == GGUF_ARRAY)
		return take_array(g, v, key);
	TRY(need(g, size_of[v->type], key));
	g->at += size_of[v->type];
	if (v->type == GGUF_BOOL && g->bytes[v->at] > 1)
		return gguf_refuse(g, -ERR_BAD_FILE, "%s: the bool %u is neither 0 nor 1", key,
				   g->bytes[v->at]);
	return 0;
}

/* Shape and type of one tensor; offset as stored, relative to the data. */
static int take_tensor(struct gguf *g, uint32_t index)
{
	struct tensor *t = &g->tensor[index];
	uint64_t length, dimension[GGUF_DIMENSIONS_MAX] = {1, 1, 1, 1};
	uint32_t dimensions, elements, block;
	TRY(take_string(g, "tensor name", &g->name_at[index], &length));
	if (length == 0 || length > GGUF_NAME_BYTES_MAX)
		return gguf_refuse(g, -ERR_BAD_FILE,
				   "tensor %u: its name has %llu bytes, 1 to %d are taken", index,
				   (unsigned long long)length, GGUF_NAME_BYTES_MAX);
	g->name_length[index] = (uint32_t)length;
	const char *name = gguf_show((const char *)g->bytes + g->name_at[index], length);
	TRY(take_u32(g, name, &dimensions));
	if (dimensions == 0 || dimensions > GGUF_DIMENSIONS_MAX)
		return gguf_refuse(g, -ERR_BAD_FILE, "%s: %u dimensions, 1 to %d are taken", name,
				   dimensions, GGUF_DIMENSIONS_MAX);
	uint64_t rows = 1;
	for (uint32_t i = 0; i < dimensions; i++) {
		TRY(take_u64(g, name, &dimension[i]));
		if (dimension[i] == 0 || dimension[i] > UINT32_MAX)
			return gguf_refuse(g, -ERR_BAD_FILE, "%s: dimension %u is %llu, 1 to %u are taken",
					   name, i, (unsigned long long)dimension[i], UINT32_MAX);
		if (i > 0 && (__builtin_mul_overflow(rows, dimension[i], &rows) ||
			      rows > UINT32_MAX))
			return gguf_refuse(g, -ERR_BAD_FILE, "%s: more than %u rows", name,
					   UINT32_MAX);
	}
	TRY(take_u32(g, name, &t->type));
	TRY(take_u64(g, name, &t->offset));
	const char *type = gguf_type_block(t->type, &elements, &block);
	if (!type)
		return gguf_refuse(g, -ERR_BAD_FILE, "%s: there is no tensor type %u", name, t->type);
	if (elements == 0)
		return gguf_refuse(g, -ERR_UNSUPPORTED, "%s: tensor type %s is not supported", name,
				   type);
	if (dimension[0] % elements)
		return gguf_refuse(g, -ERR_BAD_FILE, "%s: rows of %llu are no multiple of %s's %u",
				   name, (unsigned long long)dimension[0], type, elements);
	t->columns = (uint32_t)dimension[0];
	t->rows = (uint32_t)rows;
	if (__builtin_mul_overflow(dimension[0] / elements * block, rows, &t->bytes))
		return gguf_refuse(g, -ERR_BAD_FILE, "%s: its size overflows", name);
	return 0;
}

/* A parallel array with room for one more, doubled when it is full, so that a count that the file
   only claims costs nothing. NULL if there is no memory; then the old one is as it was. */
static void *room(void *array, size_t size, uint32_t count, uint64_t total)
{
	if (count & (count - 1) || (count > 0 && count < 64))
		return array;
	uint64_t next = count == 0 ? 64 : (uint64_t)count * 2;
	if (next > total && total > count && total > 64)
		next = total;
	char *grown = realloc(array, next * size);
	if (grown)
		memset(grown + count * size, 0, (next - count) * size);
	return grown;
}

static int values_room(struct gguf *g, uint64_t total)
{
	void *value = room(g->value, sizeof *g->value, g->value_count, total);
	if (!value)
		return gguf_refuse(g, -ERR_MEMORY, "keys: no memory");
	g->value = value;
	return 0;
}

static int tensors_room(struct gguf *g, uint64_t total)
{
	void *tensor = room(g->tensor, sizeof *g->tensor, g->tensor_count, total);
	if (tensor)
		g->tensor = tensor;
	void *at = room(g->name_at, sizeof *g->name_at, g->tensor_count, total);
	if (at)
		g->name_at = at;
	void *length = room(g->name_length, sizeof *g->name_length, g->tensor_count, total);
	if (length)
		g->name_length = length;
	if (!tensor || !at || !length)
		return gguf_refuse(g, -ERR_MEMORY, "tensors: no memory");
	return 0;
}

static int read_counts(struct gguf *g, uint64_t *tensors, uint64_t *values)
{
	enum { TENSOR_LEAST = 8 + 1 + 4 + 8 + 4 + 8, VALUE_LEAST = 8 + 1 + 4 + 1 };
	uint32_t version;
	TRY(need(g, 4, "magic"));
	if (memcmp(g->bytes, "GGUF", 4))
		return gguf_refuse(g, -ERR_BAD_FILE, "magic: not a GGUF file");
	g->at = 4;
	TRY(take_u32(g, "version", &version));
	if ((version & 0xffff) == 0)
		return gguf_refuse(g, -ERR_BAD_FILE, "version: %u, a big-endian file is not taken",
				   version);
	if (version != 2 && version != 3)
		return gguf_refuse(g, -ERR_UNSUPPORTED, "version: %u, 2 and 3 are supported",
				   version);
	TRY(take_u64(g, "tensor count", tensors));
	TRY(take_u64(g, "key count", values));
	uint64_t left = g->file_bytes - g->at;
	if (*tensors > left / TENSOR_LEAST || *tensors > GGUF_TENSORS_MAX)
		return gguf_refuse(g, -ERR_BAD_FILE,
				   "tensor count: %llu, the file has room for %llu and %d are taken",
				   (unsigned long long)*tensors,
				   (unsigned long long)(left / TENSOR_LEAST), GGUF_TENSORS_MAX);
	if (*values > left / VALUE_LEAST || *values > GGUF_KEYS_MAX)
		return gguf_refuse(g, -ERR_BAD_FILE,
				   "key count: %llu, the file has room for %llu and %d are taken",
				   (unsigned long long)*values,
				   (unsigned long long)(left / VALUE_LEAST), GGUF_KEYS_MAX);
	return 0;
}

static int index_keys(struct gguf *g)
{
	/* What was read ahead is given back. After this the bytes no longer move: from here on
	   strings are pointers. */
	uint8_t *exact = realloc(g->bytes, g->at);
	if (exact)
		g->bytes = exact;
	g->have = g->capacity = g->at;
	TRY(map_open(g->value_count, &g->keys));
	for (uint32_t i = 0; i < g->value_count; i++) {
		const struct gguf_value *v = &g->value[i];
		const char *key = (const char *)g->bytes + v->key_at;
		if (!map_add(g->keys, key, v->key_length, i))
			return gguf_refuse(g, -ERR_BAD_FILE, "%s: the key is there twice",
					   gguf_show(key, v->key_length));
	}
	return 0;
}

static int index_names(struct gguf *g)
{
	TRY(map_open(g->tensor_count, &g->names));
	enum { STRIDE = GGUF_NAME_BYTES_MAX + 1 };
	g->name_text = calloc((size_t)g->tensor_count + 1, STRIDE);
	if (!g->name_text)
		return gguf_refuse(g, -ERR_MEMORY, "tensor names: no memory");
	for (uint32_t i = 0; i < g->tensor_count; i++) {
		char *name = g->name_text + (size_t)i * STRIDE;
		memcpy(name, g->bytes + g->name_at[i], g->name_length[i]);
		if (memchr(name, 0, g->name_length[i]))
			return gguf_refuse(g, -ERR_BAD_FILE, "tensor %u: its name has a NUL", i);
		g->tensor[i].name = name;
		if (!map_add(g->names, name, g->name_length[i], i))
			return gguf_refuse(g, -ERR_BAD_FILE, "%s: the tensor is there twice",
					   gguf_show(name, g->name_length[i]));
	}
	return 0;
}

static int by_offset(const void *a, const void *b)
{
	const struct tensor *x = *(const struct tensor *const *)a;
	const struct tensor *y = *(const struct tensor *const *)b;
	return (x->offset > y->offset) - (x->offset < y->offset);
}

/* Overlapping tensors would let a small file ask for any amount of memory. */
static int check_overlap(struct gguf *g)
{
	if (g->tensor_count == 0)
		return 0;
	const struct tensor **order = malloc(g->tensor_count * sizeof *order);
	if (!order)
		return gguf_refuse(g, -ERR_MEMORY, "tensors: no memory");
	for (uint32_t i = 0; i < g->tensor_count; i++)
		order[i] = &g->tensor[i];
	qsort(order, g->tensor_count, sizeof *order, by_offset);
	int code = 0;
	for (uint32_t i = 1; i < g->tensor_count && code == 0; i++)
		if (order[i]->offset < order[i - 1]->offset + order[i - 1]->bytes)
			code = gguf_refuse(g, -ERR_BAD_FILE, "%s: its data overlaps that of %s",
					   gguf_show(order[i]->name, strlen(order[i]->name)),
					   gguf_show(order[i - 1]->name, strlen(order[i - 1]->name)));
	free(order);
	return code;
}

static int place_tensors(struct gguf *g)
{
	uint32_t alignment = 32;
	TRY(gguf_u32(g, "general.alignment", false, &alignment));
	if (alignment == 0 || alignment & (alignment - 1) || alignment > GGUF_ALIGNMENT_MAX)
		return gguf_refuse(g, -ERR_BAD_FILE,
				   "general.alignment: %u is no power of two up to %d", alignment,
				   GGUF_ALIGNMENT_MAX);
	/* at <= GGUF_METADATA_MAX, so this cannot overflow. */
	g->data_at = (g->at + alignment - 1) & ~(uint64_t)(alignment - 1);
	uint64_t data_bytes = g->data_at < g->file_bytes ? g->file_bytes - g->data_at : 0;
	for (uint32_t i = 0; i < g->tensor_count; i++) {
		struct tensor *t = &g->tensor[i];
		const char *name = gguf_show(t->name, strlen(t->name));
		if (t->offset % alignment)
			return gguf_refuse(g, -ERR_BAD_FILE,
					   "%s: offset %llu is no multiple of the alignment %u", name,
					   (unsigned long long)t->offset, alignment);
		if (t->offset > data_bytes || t->bytes > data_bytes - t->offset)
			return gguf_refuse(g, -ERR_BAD_FILE,
					   "%s: offset %llu and %llu bytes, the data has %llu (cut off?)",
					   name, (unsigned long long)t->offset,
					   (unsigned long long)t->bytes,
					   (unsigned long long)data_bytes);
		t->offset += g->data_at;
	}
	return check_overlap(g);
}

int load_open_code(int number)
{
	switch (number) {
	case EACCES:
	case EPERM:
		return -ERR_PERMISSION;
	case ENOENT:
	case ENOTDIR:
	case ENAMETOOLONG:
	case ELOOP:
		return -ERR_NO_FILE;
	default:
		return -ERR_IO;
	}
}

static int open_file(const char *path, struct gguf *g)
{
	struct stat st;
	/* Without O_NONBLOCK the opening of a pipe would wait for its writer. */
	g->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	if (g->fd < 0) {
		const int number = errno, code = load_open_code(number);
		if (code == -ERR_PERMISSION)
			return gguf_refuse(g, code, "the file may not be read");
		if (code == -ERR_NO_FILE)
			return gguf_refuse(g, code, "there is no such file");
		return gguf_refuse(g, code, "opening failed: errno %d", number);
	}
	if (fstat(g->fd, &st) != 0)
		return gguf_refuse(g, -ERR_IO, "stat failed: errno %d", errno);
	if (!S_ISREG(st.st_mode))
		return gguf_refuse(g, -ERR_BAD_FILE, "not a regular file");
	g->file_bytes = (uint64_t)st.st_size;
	return 0;
}

static int read_structure(struct gguf *g)
{
	uint64_t tensors = 0, values = 0;
	TRY(read_counts(g, &tensors, &values));
	for (; g->value_count < values; g->value_count++) {
		TRY(values_room(g, values));
		TRY(take_value(g, g->value_count));
	}
	for (; g->tensor_count < tensors; g->tensor_count++) {
		TRY(tensors_room(g, tensors));
		TRY(take_tensor(g, g->tensor_count));
	}
	g->metadata_bytes = g->at;
	return index_keys(g);
}

int gguf_open(const char *path, struct gguf *g, char *reason)
{
	memset(g, 0, sizeof *g);
	g->fd = -1;
	g->reason = reason;
	TRY(open_file(path, g));
	TRY(read_structure(g));
	TRY(index_names(g));
	return place_tensors(g);
}

int gguf_adopt(uint8_t *bytes, size_t length, struct tensor *tensor, uint32_t tensor_count,
	       struct gguf *g, char *reason)
{
	g->reason = reason;
	g->bytes = bytes;
	g->have = g->capacity = length;
	g->file_bytes = length;
	int code = read_structure(g);
	/* The keys told of no tensors. */
	g->tensor = tensor;
	g->tensor_count = tensor_count;
	TRY(code);
	TRY(map_open(tensor_count, &g->names));
	for (uint32_t i = 0; i < tensor_count; i++)
		if (!map_add(g->names, tensor[i].name, strlen(tensor[i].name), i))
			return gguf_refuse(g, -ERR_BAD_FILE, "%s: the tensor is there twice",
					   gguf_show(tensor[i].name, strlen(tensor[i].name)));
	return 0;
}

void gguf_close(struct gguf *g)
{
	if (g->fd >= 0)
		close(g->fd);
	g->fd = -1;
	free(g->bytes);
	free(g->value);
	free(g->tensor);
	free(g->name_at);
	free(g->name_length);
	free(g->name_text);
	map_close(&g->keys);
	map_close(&g->names);
}

const struct gguf_value *gguf_find(const struct gguf *g, const char *key)
{
	uint32_t index = map_find(g->keys, key, strlen(key));
	return index == UINT32_MAX ? NULL : &g->value[index];
}

/* The value of a key that must have the type; *out is NULL if it is missing and need not be
   there. */
static int typed(struct gguf *g, const char *key, uint32_t type, bool required,
		 const struct gguf_value **out)
{
	*out = gguf_find(g, key);
	if (!*out)
		return required ? gguf_refuse(g, -ERR_BAD_FILE, "%s: the key is missing", key) : 0;
	if ((*out)->type == type)
		return 0;
	return gguf_refuse(g, -ERR_BAD_FILE, "%s: its type is %s, it must be %s", key,
			   type_name[(*out)->type], type_name[type]);
}

int gguf_u32(struct gguf *g, const char *key, bool required, uint32_t *out)
{
	const struct gguf_value *v;
	TRY(typed(g, key, GGUF_U32, required, &v));
	if (v)
		*out = gguf_get_u32(g->bytes + v->at);
	return 0;
}

int gguf_u16(struct gguf *g, const char *key, bool required, uint32_t *out)
{
	const struct gguf_value *v;
	TRY(typed(g, key, GGUF_U16, required, &v));
	if (v)
		*out = (uint32_t)(g->bytes[v->at] | g->bytes[v->at + 1] << 8);
	return 0;
}

int gguf_array(struct gguf *g, const char *key, uint32_t item_type, bool required,
		const struct gguf_value **out)
{
	*out = gguf_find(g, key);
	if (!*out)
		return required ? gguf_refuse(g, -ERR_BAD_FILE, "%s: the key is missing", key) : 0;
	const bool array = (*out)->type == GGUF_ARRAY;
	if (array && (*out)->item_type == item_type)
		return 0;
	return gguf_refuse(g, -ERR_BAD_FILE, "%s: its type is %s%s, it must be an array of %s", key,
			   array ? "an array of " : "", type_name[array ? (*out)->item_type : (*out)->type],
			   type_name[item_type]);
}

int gguf_f32(struct gguf *g, const char *key, bool required, float *out)
{
	const struct gguf_value *v;
	TRY(typed(g, key, GGUF_F32, required, &v));
	if (v)
		memcpy(out, g->bytes + v->at, sizeof *out);
	return 0;
}

int gguf_bool(struct gguf *g, const char *key, bool *out)
{
	const struct gguf_value *v;
	TRY(typed(g, key, GGUF_BOOL, false, &v));
	if (v)
		*out = g->bytes[v->at] != 0;
	return 0;
}

int gguf_string(struct gguf *g, const char *key, bool required, const char **out, size_t *length)
{
	const struct gguf_value *v;
	TRY(typed(g, key, GGUF_STRING, required, &v));
	if (v) {
		*out = (const char *)g->bytes + v->at;
		*length = v->count;
	}
	return 0;
}
