#include "tests/pack.h"

#include <stdlib.h>
#include <string.h>

#include "clients/wire.h"

static void skip(const char **at)
{
	while (**at == ' ' || **at == '\n' || **at == '\t' || **at == ',' || **at == ':')
		(*at)++;
}

static uint8_t nibble(char c)
{
	CHECK((c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'));
	return (uint8_t)(c <= '9' ? c - '0' : c - 'a' + 10);
}

static void pack_bytes(const char **at, struct wire_writer *w)
{
	uint8_t bytes[256];
	size_t length = 0;
	for ((*at)++; **at != '#'; *at += 2) {
		CHECK(length < sizeof bytes);
		bytes[length++] = (uint8_t)(nibble((*at)[0]) << 4 | nibble((*at)[1]));
	}
	(*at)++;
	wire_put_bin(w, bytes, length);
}

static void pack_number(const char **at, struct wire_writer *w)
{
	size_t length = strspn(*at, "+-0123456789.e");
	CHECK(length > 0);
	if (strcspn(*at, ".e") < length)
		wire_put_f64(w, strtod(*at, NULL));
	else if (**at == '-')
		wire_put_i64(w, strtoll(*at, NULL, 10));
	else
		wire_put_u64(w, strtoull(*at, NULL, 10));
	*at += length;
}

static void pack_one(const char **at, struct wire_writer *w);

static void pack_many(const char **at, struct wire_writer *w, char end)
{
	/* The count is not known before the end: the elements are packed beside, then copied. */
	uint8_t *room = malloc(w->capacity);
	struct wire_writer inner;
	uint32_t count = 0;
	CHECK(room != NULL);
	wire_writer_init(&inner, room, w->capacity);
	for ((*at)++, skip(at); **at != end; skip(at), count++)
		pack_one(at, &inner);
	(*at)++;
	if (end == ']')
		wire_put_array(w, count);
	else
		wire_put_map(w, count / 2);
	CHECK(inner.length <= w->capacity - w->length);
	memcpy(w->at + w->length, room, inner.length);
	w->length += inner.length;
	free(room);
}

static void pack_one(const char **at, struct wire_writer *w)
{
	skip(at);
	if (**at == '{' || **at == '[') {
		pack_many(at, w, **at == '{' ? '}' : ']');
	} else if (**at == '\'') {
		const char *end = strchr(*at + 1, '\'');
		CHECK(end != NULL);
		wire_put_str(w, *at + 1, (size_t)(end - *at - 1));
		*at = end + 1;
	} else if (**at == '#') {
		pack_bytes(at, w);
	} else if (strncmp(*at, "true", 4) == 0 || strncmp(*at, "null", 4) == 0) {
		if (**at == 't')
			wire_put_bool(w, true);
		else
			wire_put_nil(w);
		*at += 4;
	} else if (strncmp(*at, "false", 5) == 0) {
		wire_put_bool(w, false);
		*at += 5;
	} else {
		pack_number(at, w);
	}
}

size_t pack(const char *text, uint8_t *out, size_t capacity)
{
	struct wire_writer w;
	wire_writer_init(&w, out, capacity);
	pack_one(&text, &w);
	skip(&text);
	CHECK(*text == 0);
	CHECK(!w.full);
	return w.length;
}
