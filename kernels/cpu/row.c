/*
 * Unpacking rows. The inner loops are plain so that the compiler makes vectors of them.
 */
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("O3")
#endif

#include "kernels/cpu/row.h"

#include <string.h>

#include "kernels/fp8.h"
#include "kernels/quant.h"

typedef uint32_t v4u __attribute__((vector_size(16)));

static float f16_at(const uint8_t *p)
{
	uint16_t v;
	memcpy(&v, p, sizeof v);
	return f16_decode(v);
}

static const uint8_t *group_block(const struct weight *w, uint32_t row, uint32_t column)
{
	const size_t block_bytes = w->pack == PACK_Q4 ? 320
				   : w->pack == PACK_Q8 ? 544
							: 2048;
	return w->data + (size_t)(row / PACK_ROWS) * w->group_bytes +
	       column / 32 * block_bytes;
}

/* Row r's 32 bytes of a PACK_Q8 block, together. */
static void gather(const uint8_t *lines, uint32_t r, uint8_t *out)
{
	for (uint32_t g = 0; g < 8; g++)
		memcpy(out + 4 * g, lines + 64 * g + 4 * r, 4);
}

/* Row r's 32 nibbles as bytes. In a register: four small stores read back as one load would
   stall. */
static void q4_nibbles(const uint8_t *lines, uint32_t r, uint8_t *q)
{
	uint32_t b[4];
	for (int g = 0; g < 4; g++)
		memcpy(&b[g], lines + 64 * g + 4 * r, 4);
	const v4u v = {b[0], b[1], b[2], b[3]}, low = v & 0x0f0f0f0f,
		  high = v >> 4 & 0x0f0f0f0f;
	memcpy(q, &low, sizeof low);
	memcpy(q + 16, &high, sizeof high);
}

static void q4_floats(const uint8_t *block, uint32_t r, int zero, float *restrict out)
{
	const float d = f16_at(block + 2 * r), m = f16_at(block + 32 + 2 * r);
	uint8_t q[32];
	q4_nibbles(block + 64, r, q);
	for (int i = 0; i < 32; i++)
		out[i] = d * (float)(q[i] - zero) + m;
}

static void q8_floats(const uint8_t *block, uint32_t r, float *restrict out)
{
	const float d = f16_at(block + 2 * r);
	uint8_t b[32];
	gather(block + 32, r, b);
	for (int i = 0; i < 32; i++)
		out[i] = d * (float)(b[i] - 128);
}

static void f32_floats(const uint8_t *block, uint32_t r, uint32_t count,
		       float *restrict out)
{
	const float *from = (const float *)(const void *)block;
	for (uint32_t i = 0; i < count; i++)
		out[i] = from[16 * i + r];
}

static const uint8_t *raw_at(const struct weight *w, uint32_t row, uint32_t column)
{
	return w->data + row * w->row_bytes +
	       (size_t)(column / weight_type_elements(w->type)) *
		       weight_type_bytes(w->type);
}

void row_floats(const struct weight *w, uint32_t row, uint32_t first, uint32_t count,
		float *out)
{
	const uint32_t r = row % PACK_ROWS;
	if (w->pack == PACK_RAW) {
		quant_decode(w->type, raw_at(w, row, first), count, out);
		return;
	}
	for (uint32_t k = 0; k < count; k += 32) {
		const uint8_t *block = group_block(w, row, first + k);
		if (w->pack == PACK_Q4)
			q4_floats(block, r, (int)w->zero, out + k);
		else if (w->pack == PACK_Q8)
			q8_floats(block, r, out + k);
		else
			f32_floats(block, r, count - k < 32 ? count - k : 32, out + k);
	}
}

static void raw_integers(const struct weight *w, uint32_t row, uint32_t first,
			 uint32_t count, struct row_part *out)
{
	const uint32_t elements = weight_type_elements(w->type);
	const uint8_t *data = raw_at(w, row, first);
	struct quant_block b;
	for (uint32_t k = 0; k < count; k += elements, data += weight_type_bytes(w->type)) {
		quant_unpack(w->type, data, &b);
		memcpy(out->q + k, b.q, elements);
		for (uint32_t j = 0; j < elements / b.part; j++) {
			out->d[k / b.part + j] = b.d[j];
			out->m[k / b.part + j] = b.symmetric ? 0 : b.m[j];
		}
		out->part = b.part;
		out->symmetric = b.symmetric;
	}
}

void row_integers(const struct weight *w, uint32_t row, uint32_t first, uint32_t count,
		  struct row_part *out)
{
	const uint32_t r = row % PACK_ROWS;
	if (w->pack == PACK_RAW) {
		raw_integers(w, row, first, count, out);
		return;
	}
	out->part = 32;
	out->symmetric = w->type != TYPE_Q4_1;
	for (uint32_t k = 0; k < count; k += 32) {
		const uint8_t *block = group_block(w, row, first + k);
		int8_t *restrict q = out->q + k;
		uint8_t b[32];
		out->d[k / 32] = f16_at(block + 2 * r);
		if (w->pack == PACK_Q8) {
			gather(block + 32, r, b);
			for (int i = 0; i < 32; i++)
				q[i] = (int8_t)(b[i] - 128);
			continue;
		}
		out->m[k / 32] = f16_at(block + 32 + 2 * r);
		q4_nibbles(block + 64, r, b);
		for (int i = 0; i < 32; i++)
			q[i] = (int8_t)(b[i] - (int)w->zero);
	}
}
