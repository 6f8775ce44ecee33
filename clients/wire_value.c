/*
 * Looking into values that were validated: single values, elements by key and index, and JSON.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "clients/item.h"

static bool value_item(struct wire_value v, struct item *out)
{
	return v.at && item_read(v.at, v.length, out);
}

bool wire_get_u64(struct wire_value v, uint64_t *out)
{
	struct item i;
	if (!value_item(v, &i) || i.kind != ITEM_UINT)
		return false;
	*out = i.number;
	return true;
}

bool wire_get_f64(struct wire_value v, double *out)
{
	struct item i;
	if (!value_item(v, &i))
		return false;
	/* A writer may put 1 where 1.0 is meant; many libraries do. */
	if (i.kind == ITEM_FLOAT)
		*out = i.real;
	else if (i.kind == ITEM_UINT)
		*out = (double)i.number;
	else if (i.kind == ITEM_INT)
		*out = (double)(int64_t)i.number;
	else
		return false;
	return true;
}

bool wire_get_bool(struct wire_value v, bool *out)
{
	struct item i;
	if (!value_item(v, &i) || i.kind != ITEM_BOOL)
		return false;
	*out = i.number != 0;
	return true;
}

bool wire_get_str(struct wire_value v, struct wire_str *out)
{
	struct item i;
	if (!value_item(v, &i) || i.kind != ITEM_STR)
		return false;
	*out = (struct wire_str){(const char *)v.at + i.head, (size_t)i.number};
	return true;
}

bool wire_get_bin(struct wire_value v, struct wire_bin *out)
{
	struct item i;
	if (!value_item(v, &i) || i.kind != ITEM_BIN)
		return false;
	*out = (struct wire_bin){v.at + i.head, (size_t)i.number};
	return true;
}

static bool value_count(struct wire_value v, uint8_t kind, uint32_t *out)
{
	struct item i;
	if (!value_item(v, &i) || i.kind != kind)
		return false;
	*out = (uint32_t)i.number;
	return true;
}

bool wire_get_array(struct wire_value v, uint32_t *count)
{
	return value_count(v, ITEM_ARRAY, count);
}

bool wire_get_map(struct wire_value v, uint32_t *pairs)
{
	return value_count(v, ITEM_MAP, pairs);
}

struct wire_value wire_find(struct wire_value map, const char *key)
{
	struct wire_value none = {NULL, 0}, name, value;
	size_t length = strlen(key);
	struct walk w;
	uint32_t pairs;
	if (!wire_get_map(map, &pairs))
		return none;
	walk_init(&w, map);
	while (walk_next(&w, &name) && walk_next(&w, &value)) {
		struct wire_str s;
		if (wire_get_str(name, &s) && s.length == length &&
		    memcmp(s.at, key, length) == 0)
			return value;
	}
	return none;
}

struct wire_value wire_at(struct wire_value array, uint32_t index)
{
	struct wire_value none = {NULL, 0}, value;
	struct walk w;
	uint32_t count;
	if (!wire_get_array(array, &count) || index >= count)
		return none;
	walk_init(&w, array);
	while (walk_next(&w, &value))
		if (index-- == 0)
			return value;
	return none;
}

/* JSON. Text is cut at the capacity, but counted to the end. */
struct json {
	char *out;
	size_t length, capacity;
};

static void json_put(struct json *j, const char *at, size_t length)
{
	if (j->length < j->capacity) {
		size_t room = j->capacity - j->length;
		memcpy(j->out + j->length, at, length < room ? length : room);
	}
	j->length += length;
}

static void json_text(struct json *j, const char *text)
{
	json_put(j, text, strlen(text));
}

static void json_string(struct json *j, const char *at, size_t length)
{
	json_text(j, "\"");
	for (size_t i = 0; i < length; i++) {
		uint8_t b = (uint8_t)at[i];
		char escape[8];
		if (b == '"' || b == '\\') {
			snprintf(escape, sizeof escape, "\\%c", b);
			json_text(j, escape);
		} else if (b == '\n') {
			json_text(j, "\\n");
		} else if (b < 0x20 || b == 0x7f) {
			/* DEL too: the text may end in a terminal. */
			snprintf(escape, sizeof escape, "\\u%04x", b);
			json_text(j, escape);
		} else {
			json_put(j, at + i, 1);
		}
	}
	json_text(j, "\"");
}

static void json_hex(struct json *j, const uint8_t *at, size_t length)
{
	json_text(j, "\"");
	for (size_t i = 0; i < length; i++) {
		char two[3];
		snprintf(two, sizeof two, "%02x", at[i]);
		json_put(j, two, 2);
	}
	json_text(j, "\"");
}

static void json_real(struct json *j, const struct item *i)
{
	char text[40], point[2] = ".";
	/* 9 and 17 digits bring every f32 and f64 back. */
	snprintf(text, sizeof text, "%.*g", i->single ? 9 : 17, i->real);
	bool whole = true;
	for (const char *c = text; *c; c++) {
		if ((*c >= '0' && *c <= '9') || *c == '-' || *c == '+' || *c == 'e') {
			whole = whole && *c != 'e';
			json_put(j, c, 1);
		} else {
			/* The locale's decimal point, whatever it is, of however many bytes. */
			json_text(j, point);
			point[0] = 0;
			whole = false;
		}
	}
	if (whole)
		json_text(j, ".0");
}

static void json_leaf(struct json *j, const uint8_t *at, const struct item *i)
{
	char text[24];
	switch (i->kind) {
	case ITEM_NIL:
		json_text(j, "null");
		break;
	case ITEM_BOOL:
		json_text(j, i->number ? "true" : "false");
		break;
	case ITEM_UINT:
		snprintf(text, sizeof text, "%" PRIu64, i->number);
		json_text(j, text);
		break;
	case ITEM_INT:
		snprintf(text, sizeof text, "%" PRId64, (int64_t)i->number);
		json_text(j, text);
		break;
	case ITEM_FLOAT:
		json_real(j, i);
		break;
	case ITEM_STR:
		json_string(j, (const char *)at + i->head, (size_t)i->number);
		break;
	default:
		json_hex(j, at + i->head, (size_t)i->number);
	}
}

size_t wire_json(struct wire_value v, char *out, size_t capacity)
{
	/* One byte is kept for the NUL. */
	struct json j = {out, 0, capacity > 0 ? capacity - 1 : 0};
	struct { uint64_t due; bool map, first; } levels[ITEM_DEPTH_MAX];
	uint32_t depth = 0;
	struct item i;
	if (!v.at)
		json_text(&j, "null");
	for (size_t off = 0; v.at && off < v.length;) {
		CHECK(item_read(v.at + off, v.length - off, &i));
		if (depth > 0) {
			bool value = levels[depth - 1].map && levels[depth - 1].due % 2 == 1;
			if (value)
				json_text(&j, ":");
			else if (!levels[depth - 1].first)
				json_text(&j, ",");
			levels[depth - 1].first = false;
			levels[depth - 1].due--;
		}
		if (i.kind == ITEM_ARRAY || i.kind == ITEM_MAP) {
			CHECK(depth < ITEM_DEPTH_MAX);
			json_text(&j, i.kind == ITEM_MAP ? "{" : "[");
			levels[depth].due = item_elements(&i);
			levels[depth].map = i.kind == ITEM_MAP;
			levels[depth++].first = true;
		} else {
			json_leaf(&j, v.at + off, &i);
		}
		off += i.head + item_content(&i);
		while (depth > 0 && levels[depth - 1].due == 0)
			json_text(&j, levels[--depth].map ? "}" : "]");
	}
	if (capacity > 0)
		out[j.length < j.capacity ? j.length : j.capacity] = 0;
	return j.length;
}
