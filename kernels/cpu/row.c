/*
 * Unpacking rows. The inner loops are plain so that the compiler makes vectors of them.
 */
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("O3")
#endif

#include "kernels/cpu/row.h"

#include <string.h>

#include "kernels/cpu/block.h"
#include "kernels/fp8.h"
#include "kernels/quant.h"

static const uint8_t *group_at(const struct weight *w, uint32_t row)
{
	return w->data + (size_t)(row / PACK_ROWS) * w->group_bytes;
}

/* Row r's 32 columns of a block of PACK_F32 or PACK_HALF. */
static void block_floats(const struct weight *w, const uint8_t *block, uint32_t r, uint32_t count,
			 float *restrict out)
{
	for (uint32_t i = 0; i < count; i++) {
		const uint32_t at = i * PACK_ROWS + r;
		uint16_t half;

		if (w->pack == PACK_F32) {
			memcpy(out + i, block + 4 * at, 4);
			continue;
		}
		memcpy(&half, block + 2 * at, 2);
		out[i] = w->type == TYPE_F16 ? f16_decode(half) : bf16_decode(half);
	}
}

/* Values from integers: the product is rounded before the sum. */
static void integer_floats(const struct weight *w, const uint8_t *group, uint32_t block, uint32_t r,
			   float *restrict out)
{
	int8_t q[32];
	float d[2], m = 0;
	const int symmetric = pack_integers(w, group, block, r, q, d, &m);

	if (w->pack != PACK_K6)
		d[1] = d[0];
	if (symmetric)
		for (int i = 0; i < 32; i++)
			out[i] = d[i / 16] * (float)q[i];
	else
		for (int i = 0; i < 32; i++)
			out[i] = d[0] * (float)q[i] + m;
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
		const uint32_t block = (first + k) / 32, n = count - k < 32 ? count - k : 32;

		if (w->pack == PACK_F32 || w->pack == PACK_HALF)
			block_floats(w, group_at(w, row) + (size_t)block * pack_block_bytes(w->pack), r, n,
				     out + k);
		else
			integer_floats(w, group_at(w, row), block, r, out + k);
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
	out->part = w->pack == PACK_K6 ? 16 : 32;
	for (uint32_t k = 0; k < count; k += 32)
		out->symmetric = pack_integers(w, group_at(w, row), (first + k) / 32, r, out->q + k,
					       out->d + k / out->part, out->m + k / 32);
}
