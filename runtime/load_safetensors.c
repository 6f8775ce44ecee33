/*
 * The directory of safetensors files: eight bytes of length, then JSON of that length, then the data.
 * The format is described in the safetensors project's README. Each tensor gets the name that GGUF has
 * for it. Every length is compared with the file before it is believed; the data has no hole and no
 * overlap, so that a small file cannot ask for much memory.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/load_hub.h"

enum { LENGTH_BYTES = 8 };

struct part { /* one tensor of one file */
	uint64_t begin, end;
	struct json key; /* its name, as the header has it */
};

/* A layer's tensors, hub's name and GGUF's. Gemma's second norm stands after the attention. */
static const struct {
	const char *hub, *gguf, *gemma;
} names[] = {
	{"input_layernorm.weight", "attn_norm.weight", NULL},
	{"self_attn.q_proj.weight", "attn_q.weight", NULL},
	{"self_attn.k_proj.weight", "attn_k.weight", NULL},
	{"self_attn.v_proj.weight", "attn_v.weight", NULL},
	{"self_attn.q_proj.bias", "attn_q.bias", NULL},
	{"self_attn.k_proj.bias", "attn_k.bias", NULL},
	{"self_attn.v_proj.bias", "attn_v.bias", NULL},
	{"self_attn.o_proj.weight", "attn_output.weight", NULL},
	{"self_attn.q_norm.weight", "attn_q_norm.weight", NULL},
	{"self_attn.k_norm.weight", "attn_k_norm.weight", NULL},
	{"post_attention_layernorm.weight", "ffn_norm.weight", "post_attention_norm.weight"},
	{"pre_feedforward_layernorm.weight", "ffn_norm.weight", NULL},
	{"post_feedforward_layernorm.weight", "post_ffw_norm.weight", NULL},
	{"mlp.gate_proj.weight", "ffn_gate.weight", NULL},
	{"mlp.up_proj.weight", "ffn_up.weight", NULL},
	{"mlp.down_proj.weight", "ffn_down.weight", NULL},
};

/* GGUF's name; false if a forward pass has no use for it (a head that is the embedding again, a
   table of frequencies that older files kept). What is not known keeps its own, and is refused by
   it later. */
static bool name_map(const struct hub *hub, const char *name, char *out, size_t room)
{
	unsigned layer;
	int end = 0;
	const size_t n = strlen(name);
	static const char table[] = ".rotary_emb.inv_freq";
	snprintf(out, room, "%s", name);
	if (n > sizeof table && !strcmp(name + n - (sizeof table - 1), table))
		return false;
	if (!strcmp(name, "model.embed_tokens.weight"))
		snprintf(out, room, "token_embd.weight");
	else if (!strcmp(name, "model.norm.weight"))
		snprintf(out, room, "output_norm.weight");
	else if (!strcmp(name, "lm_head.weight"))
		snprintf(out, room, "output.weight");
	else if (sscanf(name, "model.layers.%3u.%n", &layer, &end) == 1 && end > 0)
		for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
			if (!strcmp(name + end, names[i].hub))
				snprintf(out, room, "blk.%u.%s", layer,
					 hub->gemma && names[i].gemma ? names[i].gemma
								      : names[i].gguf);
	return !(hub->tied && !strcmp(name, "lm_head.weight"));
}

static int take_type(struct hub *hub, const char *name, struct json entry, struct tensor *t,
		     uint32_t *size)
{
	static const struct {
		const char *name;
		uint32_t type, size;
	} types[] = {{"F32", TYPE_F32, 4}, {"F16", TYPE_F16, 2}, {"BF16", TYPE_BF16, 2}};
	struct json value;
	char text[16];
	if (!json_find(entry, "dtype", &value) || json_kind(value) != JSON_STRING)
		return hub_refuse(hub, -ERR_BAD_FILE, "%s: it has no dtype, as a string", name);
	const bool short_enough = hub_string(value, text, sizeof text);
	for (size_t i = 0; short_enough && i < sizeof types / sizeof types[0]; i++)
		if (!strcmp(text, types[i].name)) {
			t->type = types[i].type;
			*size = types[i].size;
			return 0;
		}
	return hub_refuse(hub, -ERR_UNSUPPORTED, "%s: dtype %s is not supported; F32, F16 and BF16 are",
			  name, gguf_show(value.at, value.length));
}

static int take_shape(struct hub *hub, const char *name, struct json entry, struct tensor *t)
{
	struct json value, item;
	int64_t side[2] = {1, 1};
	unsigned count = 0;
	if (!json_find(entry, "shape", &value) || json_kind(value) != JSON_ARRAY)
		return hub_refuse(hub, -ERR_BAD_FILE, "%s: it has no shape, as a list", name);
	struct json_walk walk = json_walk(value);
	while (json_next(&walk, NULL, &item)) {
		if (count == 2)
			return hub_refuse(hub, -ERR_UNSUPPORTED, "%s: shape %s has more than 2 dimensions", name,
					  gguf_show(value.at, value.length));
		if (!json_integer(item, 1, UINT32_MAX, &side[count++]))
			return hub_refuse(hub, -ERR_BAD_FILE, "%s: dimension %s is not 1 to %u", name,
					  gguf_show(item.at, item.length), UINT32_MAX);
	}
	if (count == 0)
		return hub_refuse(hub, -ERR_BAD_FILE, "%s: its shape has no dimensions", name);
	t->rows = count == 1 ? 1 : (uint32_t)side[0];
	t->columns = (uint32_t)side[count - 1];
	return 0;
}

/* Offsets are within the data, and as many bytes as type and shape make. */
static int take_place(struct hub *hub, const char *name, struct json entry, uint32_t size,
		      uint64_t data_bytes, struct tensor *t, struct part *part)
{
	struct json value, item;
	int64_t at[2] = {0, 0};
	unsigned count = 0;
	if (!json_find(entry, "data_offsets", &value) || json_kind(value) != JSON_ARRAY)
		return hub_refuse(hub, -ERR_BAD_FILE, "%s: it has no data_offsets, as a list", name);
	struct json_walk walk = json_walk(value);
	while (json_next(&walk, NULL, &item))
		if (count >= 2 || !json_integer(item, 0, INT64_MAX, &at[count++]))
			count = 3;
	if (count != 2)
		return hub_refuse(hub, -ERR_BAD_FILE, "%s: data_offsets %s are not two numbers from 0 on", name,
				  gguf_show(value.at, value.length));
	part->begin = (uint64_t)at[0];
	part->end = (uint64_t)at[1];
	/* Each side is below 2^32, so their product is below 2^64; times 4 it may not be. */
	const uint64_t values = (uint64_t)t->rows * t->columns;
	if (__builtin_mul_overflow(values, size, &t->bytes))
		return hub_refuse(hub, -ERR_BAD_FILE,
				  "%s: %u x %u values of %u bytes overflow 64 bits", name, t->rows,
				  t->columns, size);
	if (part->begin > part->end)
		return hub_refuse(hub, -ERR_BAD_FILE, "%s: data_offsets run backwards, from %llu to %llu", name,
				  (unsigned long long)part->begin, (unsigned long long)part->end);
	if (part->end > data_bytes)
		return hub_refuse(hub, -ERR_BAD_FILE,
				  "%s: bytes %llu to %llu, the file's data has %llu (cut off?)", name,
				  (unsigned long long)part->begin, (unsigned long long)part->end,
				  (unsigned long long)data_bytes);
	if (part->end - part->begin != t->bytes)
		return hub_refuse(hub, -ERR_BAD_FILE, "%s: %llu bytes for %u x %u values of %u", name,
				  (unsigned long long)(part->end - part->begin), t->rows, t->columns,
				  size);
	return 0;
}

static int by_begin(const void *a, const void *b)
{
	const struct part *x = a, *y = b;
	return x->begin != y->begin ? (x->begin > y->begin) - (x->begin < y->begin)
				    : (x->end > y->end) - (x->end < y->end);
}

/* The parts follow each other from the first byte to the last, as the format demands. */
static int parts_check(struct hub *hub, uint32_t file, struct part *parts, uint32_t count,
		       uint64_t data_bytes)
{
	uint64_t end = 0;
	if (count > 0)
		qsort(parts, count, sizeof *parts, by_begin);
	for (uint32_t i = 0; i < count; i++) {
		const char *file_name = gguf_show(hub->file_name[file], strlen(hub->file_name[file]));
		const char *name = gguf_show(parts[i].key.at, parts[i].key.length);
		if (parts[i].begin < end)
			return hub_refuse(hub, -ERR_BAD_FILE,
					  "%s: %s overlaps %s: it begins at byte %llu of the data, the other ends "
					  "at %llu", file_name, name, gguf_show(parts[i - 1].key.at, parts[i - 1].key.length),
					  (unsigned long long)parts[i].begin, (unsigned long long)end);
		if (parts[i].begin > end)
			return hub_refuse(hub, -ERR_BAD_FILE,
					  "%s: a hole before %s: it begins at byte %llu of the data, what is "
					  "before ends at %llu", file_name, name, (unsigned long long)parts[i].begin,
					  (unsigned long long)end);
		end = parts[i].end;
	}
	if (end != data_bytes)
		return hub_refuse(hub, -ERR_BAD_FILE, "%s: %llu bytes of data, its tensors have %llu",
				  gguf_show(hub->file_name[file], strlen(hub->file_name[file])),
				  (unsigned long long)data_bytes, (unsigned long long)end);
	return 0;
}

static int take_entry(struct hub *hub, uint32_t file, struct json key, struct json entry,
		      uint64_t data_at, struct part *part)
{
	char name[128], own[GGUF_NAME_BYTES_MAX + 1];
	struct tensor t = {.file = file};
	uint32_t size = 0;
	if (!hub_string(key, name, sizeof name))
		return hub_refuse(hub, -ERR_BAD_FILE, "%s: a tensor's name that is not 1 to %zu bytes",
				  gguf_show(hub->file_name[file], strlen(hub->file_name[file])),
				  sizeof name - 1);
	const char *shown = gguf_show(name, strlen(name));
	if (json_kind(entry) != JSON_OBJECT)
		return hub_refuse(hub, -ERR_BAD_FILE, "%s: it is not described by an object", shown);
	TRY(take_type(hub, shown, entry, &t, &size));
	TRY(take_shape(hub, shown, entry, &t));
	TRY(take_place(hub, shown, entry, size, hub->file_bytes[file] - data_at, &t, part));
	t.offset = data_at + part->begin;
	if (!name_map(hub, name, own, sizeof own))
		return 0;
	return hub_tensor(hub, own, &t);
}

static int take_header(struct hub *hub, uint32_t file, struct json header, uint64_t data_at)
{
	struct json key, entry;
	uint32_t count = 0, room = 0;
	struct part *parts = NULL;
	int code = 0;
	if (json_kind(header) != JSON_OBJECT)
		return hub_refuse(hub, -ERR_BAD_FILE, "%s: its header is no JSON object",
				  hub->file_name[file]);
	struct json_walk walk = json_walk(header);
	while (code == 0 && json_next(&walk, &key, &entry)) {
		if (json_equals(key, "__metadata__", 12))
			continue;
		if (count == GGUF_TENSORS_MAX) {
			code = hub_refuse(hub, -ERR_BAD_FILE, "%s: more than %d tensors",
					  hub->file_name[file], GGUF_TENSORS_MAX);
			break;
		}
		if (count == room) {
			room = room ? room * 2 : 256;
			struct part *grown = realloc(parts, room * sizeof *parts);
			if (!grown) {
				code = hub_refuse(hub, -ERR_MEMORY, "no memory for the tensors");
				break;
			}
			parts = grown;
		}
		parts[count].key = key;
		code = take_entry(hub, file, key, entry, data_at, &parts[count++]);
	}
	if (code == 0)
		code = parts_check(hub, file, parts, count, hub->file_bytes[file] - data_at);
	free(parts);
	return code;
}

/* Opens a file of weights under its plain name and takes its directory. */
static int file_take(struct hub *hub, const char *name)
{
	uint8_t head[LENGTH_BYTES];
	struct json header;
	const uint32_t file = hub->file_count;
	const char *shown = gguf_show(name, strlen(name));
	if (file == HUB_FILES_MAX)
		return hub_refuse(hub, -ERR_UNSUPPORTED, "more than %d files of weights",
				  HUB_FILES_MAX);
	hub->file_name[file] = strdup(name);
	hub->fd[file] = -1;
	hub->file_count++;
	if (!hub->file_name[file])
		return hub_refuse(hub, -ERR_MEMORY, "no memory");
	TRY(hub_open_file(hub, name, true, &hub->fd[file], &hub->file_bytes[file]));
	if (hub->file_bytes[file] < LENGTH_BYTES)
		return hub_refuse(hub, -ERR_BAD_FILE, "%s: %llu bytes, a header needs 8 (cut off?)", shown,
				  (unsigned long long)hub->file_bytes[file]);
	int code = load_read(hub->fd[file], 0, sizeof head, head);
	if (code != 0)
		return hub_refuse(hub, code, "%s: reading failed", shown);
	const uint64_t length = gguf_get_u64(head);
	if (length > JSON_BYTES_MAX || length > hub->file_bytes[file] - LENGTH_BYTES)
		return hub_refuse(hub, -ERR_BAD_FILE,
				  "%s: a header of %llu bytes, the file has %llu and %d are taken", shown,
				  (unsigned long long)length,
				  (unsigned long long)hub->file_bytes[file] - LENGTH_BYTES, JSON_BYTES_MAX);
	char *text = malloc(length + 1);
	if (!text)
		return hub_refuse(hub, -ERR_MEMORY, "no memory for a header of %llu bytes",
				  (unsigned long long)length);
	code = load_read(hub->fd[file], LENGTH_BYTES, length, text);
	if (code != 0)
		code = hub_refuse(hub, code, "%s: reading the header failed", shown);
	else
		code = hub_check(hub, shown, "its header", text, length, &header);
	if (code == 0)
		code = take_header(hub, file, header, LENGTH_BYTES + length);
	free(text);
	return code;
}

/* A name within the folder: no path, nothing hidden. */
static bool name_plain(const char *name)
{
	static const char end[] = ".safetensors";
	const size_t n = strlen(name);
	return n > sizeof end - 1 && !strcmp(name + n - (sizeof end - 1), end) && name[0] != '.' &&
	       !strchr(name, '/');
}

/* Every tensor of the map is in the file that the map names. */
static int map_check(struct hub *hub, struct json map)
{
	struct json key, value;
	char name[128], own[GGUF_NAME_BYTES_MAX + 1], file[HUB_NAME_MAX + 1];
	struct map *found;
	int code = map_open(hub->tensor_count, &found);
	for (uint32_t i = 0; code == 0 && i < hub->tensor_count; i++)
		/* Of two alike gguf_adopt tells. */
		map_add(found, hub->tensor[i].name, strlen(hub->tensor[i].name), i);
	struct json_walk walk = json_walk(map);
	while (code == 0 && json_next(&walk, &key, &value)) {
		if (!hub_string(key, name, sizeof name) || !hub_string(value, file, sizeof file) ||
		    !name_map(hub, name, own, sizeof own))
			continue; /* looked at before, or of no use */
		const uint32_t at = map_find(found, own, strlen(own));
		if (at == UINT32_MAX || strcmp(hub->file_name[hub->tensor[at].file], file))
			code = hub_refuse(hub, -ERR_BAD_FILE, "weight_map: %s is not in %s",
					  gguf_show(name, strlen(name)), gguf_show(file, strlen(file)));
	}
	map_close(&found);
	return code;
}

static int index_take(struct hub *hub, struct json index)
{
	struct json map, key, value;
	char name[HUB_NAME_MAX + 1];
	if (!json_find(index, "weight_map", &map) || json_kind(map) != JSON_OBJECT)
		return hub_refuse(hub, -ERR_BAD_FILE,
				  "model.safetensors.index.json: it has no weight_map, as an object");
	struct json_walk walk = json_walk(map);
	for (uint32_t count = 0; json_next(&walk, &key, &value); count++) {
		if (count == GGUF_TENSORS_MAX)
			return hub_refuse(hub, -ERR_BAD_FILE, "weight_map: more than %d tensors",
					  GGUF_TENSORS_MAX);
		if (!hub_string(value, name, sizeof name) || !name_plain(name))
			return hub_refuse(hub, -ERR_BAD_FILE, "weight_map: %s is in %s, which is not a plain name in the "
					  "folder that ends in .safetensors", gguf_show(key.at, key.length),
					  gguf_show(value.at, value.length));
		bool taken = false;
		for (uint32_t i = 0; i < hub->file_count; i++)
			taken = taken || !strcmp(hub->file_name[i], name);
		if (!taken)
			TRY(file_take(hub, name));
	}
	return map_check(hub, map);
}

int hub_weights(struct hub *hub)
{
	struct hub_text index = {0};
	if (faccessat(hub->folder, "model.safetensors.index.json", F_OK, 0) != 0)
		return file_take(hub, "model.safetensors");
	int code = hub_json(hub, "model.safetensors.index.json", true, &index);
	if (code == 0)
		code = index_take(hub, index.json);
	free(index.bytes);
	return code;
}
