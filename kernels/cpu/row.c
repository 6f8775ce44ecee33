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

static float f16_at(const uint8_t *p)
{
	uint16_t v;
	memcpy(&v, p, sizeof v);
	return f16_decode(v);
}

static const uint8_t *group_block(const struct weight *w, uint32_t row, uint32_t column)
{
	const size_t block_bytes = w->pack == PACK_Q4 ? 320 : w->pack == PACK_Q8 ? 544 : 2048;
	return w->data + (size_t)(row / PACK_ROWS) * w->group_bytes + column / 32 * block_bytes;
}

/* The 16 bytes of row r in a PACK_Q4 block, and the 32 of a PACK_Q8 one, together. */
static void gather(const uint8_t *lines, uint32_t r, uint32_t line_count, uint8_t *out)
{
	for (uint32_t g = 0; g < line_count; g++)
		memcpy(out + 4 * g, lines + 64 * g + 4 * r, 4);
}

static void q4_floats(const uint8_t *block, uint32_t r, int zero, float *restrict out)
{
	const float d = f16_at(block + 2 * r), m = f16_at(block + 32 + 2 * r);
	uint8_t b[16];
	gather(block + 64, r, 4, b);
	for (int i = 0; i < 16; i++)
		out[i] = d * (float)((b[i] & 15) - zero) + m;
	for (int i = 0; i < 16; i++)
		out[16 + i] = d * (float)((b[i] >> 4) - zero) + m;
}

static void q8_floats(const uint8_t *block, uint32_t r, float *restrict out)
{
	const float d = f16_at(block + 2 * r);
	uint8_t b[32];
	gather(block + 32, r, 8, b);
	for (int i = 0; i < 32; i++)
		out[i] = d * (float)(b[i] - 128);
}

static void f32_floats(const uint8_t *block, uint32_t r, uint32_t count, float *restrict out)
{
	const float *from = (const float *)(const void *)block;
	for (uint32_t i = 0; i < count; i++)
		out[i] = from[16 * i + r];
}

static const uint8_t *raw_at(const struct weight *w, uint32_t row, uint32_t column)
{
	return w->data + row * w->row_bytes +
	       (size_t)(column / weight_type_elements(w->type)) * weight_type_bytes(w->type);
}

void row_floats(const struct weight *w, uint32_t row, uint32_t first, uint32_t count, float *out)
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

static void raw_integers(const struct weight *w, uint32_t row, uint32_t first, uint32_t count,
			 struct row_part *out)
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
			gather(block + 32, r, 8, b);
			for (int i = 0; i < 32; i++)
				q[i] = (int8_t)(b[i] - 128);
			continue;
		}
		out->m[k / 32] = f16_at(block + 32 + 2 * r);
		gather(block + 64, r, 4, b);
		for (int i = 0; i < 16; i++) {
			q[i] = (int8_t)((b[i] & 15) - (int)w->zero);
			q[i + 16] = (int8_t)((b[i] >> 4) - (int)w->zero);
		}
	}
}
