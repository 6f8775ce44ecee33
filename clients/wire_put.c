/*
 * Writing single values, by MessagePack-c's packer into a buffer that does not grow.
 */
#include <msgpack/pack.h>
#include <string.h>

#include "clients/wire.h"

static int put_bytes(void *data, const char *bytes, size_t length)
{
	struct wire_writer *w = data;
	if (w->full || length > w->capacity - w->length) {
		w->full = true;
		return -1;
	}
	if (length > 0)
		memcpy(w->at + w->length, bytes, length);
	w->length += length;
	return 0;
}

static msgpack_packer put_packer(struct wire_writer *w)
{
	return (msgpack_packer){.data = w, .callback = put_bytes};
}

void wire_writer_init(struct wire_writer *w, void *buffer, size_t capacity)
{
	*w = (struct wire_writer){.at = buffer, .capacity = capacity};
}

void wire_put_nil(struct wire_writer *w)
{
	msgpack_packer p = put_packer(w);
	msgpack_pack_nil(&p);
}

void wire_put_bool(struct wire_writer *w, bool value)
{
	msgpack_packer p = put_packer(w);
	if (value)
		msgpack_pack_true(&p);
	else
		msgpack_pack_false(&p);
}

void wire_put_u64(struct wire_writer *w, uint64_t value)
{
	msgpack_packer p = put_packer(w);
	msgpack_pack_uint64(&p, value);
}

void wire_put_i64(struct wire_writer *w, int64_t value)
{
	msgpack_packer p = put_packer(w);
	msgpack_pack_int64(&p, value);
}

void wire_put_f32(struct wire_writer *w, float value)
{
	msgpack_packer p = put_packer(w);
	msgpack_pack_float(&p, value);
}

void wire_put_f64(struct wire_writer *w, double value)
{
	msgpack_packer p = put_packer(w);
	msgpack_pack_double(&p, value);
}

/* Lengths have at most 32 bits in MessagePack; what is longer cannot fit any writer's limit. */
static bool put_fits(struct wire_writer *w, size_t length)
{
	if (length > UINT32_MAX)
		w->full = true;
	return !w->full;
}

void wire_put_str(struct wire_writer *w, const char *at, size_t length)
{
	msgpack_packer p = put_packer(w);
	if (!put_fits(w, length))
		return;
	msgpack_pack_str(&p, length);
	put_bytes(w, at, length);
}

void wire_put_text(struct wire_writer *w, const char *text)
{
	wire_put_str(w, text, strlen(text));
}

void wire_put_bin(struct wire_writer *w, const void *at, size_t length)
{
	msgpack_packer p = put_packer(w);
	if (!put_fits(w, length))
		return;
	msgpack_pack_bin(&p, length);
	put_bytes(w, at, length);
}

void wire_put_array(struct wire_writer *w, uint32_t count)
{
	msgpack_packer p = put_packer(w);
	msgpack_pack_array(&p, count);
}

void wire_put_map(struct wire_writer *w, uint32_t pairs)
{
	msgpack_packer p = put_packer(w);
	msgpack_pack_map(&p, pairs);
}

void wire_put_value(struct wire_writer *w, struct wire_value value)
{
	if (value.at)
		put_bytes(w, (const char *)value.at, value.length);
	else
		wire_put_nil(w);
}
