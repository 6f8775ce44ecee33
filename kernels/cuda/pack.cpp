/*
 * Weights from a file's blocks into records (pack.h), on the host.
 */
#include "kernels/cuda/pack.h"

#include <stdlib.h>

#include "kernels/quant.h"

enum form form_of(uint32_t type)
{
	switch (type) {
	case TYPE_Q4_0: return FORM_4;
	case TYPE_Q4_1: return FORM_4M;
	case TYPE_Q5_0: return FORM_5;
	case TYPE_Q5_1: return FORM_5M;
	case TYPE_Q8_0: case TYPE_IQ4_NL: return FORM_8;
	case TYPE_MXFP4: return FORM_8F;
	case TYPE_Q4_K: return FORM_4K;
	case TYPE_Q5_K: return FORM_5K;
	case TYPE_Q6_K: return FORM_6K;
	case TYPE_F32: return FORM_F32;
	case TYPE_F16: return FORM_F16;
	case TYPE_BF16: return FORM_BF16;
	}
	return FORM_COUNT;
}

size_t form_bytes(enum form form, uint32_t rows, uint32_t columns, size_t *supers_at)
{
	*supers_at = 0;
	if (form_is_float(form))
		return (size_t)rows * columns * (form == FORM_F32 ? 4 : 2);
	const size_t tiles = ((size_t)rows + RECORD_ROWS - 1) / RECORD_ROWS;
	*supers_at = tiles * record_columns(columns) * (size_t)form_record_bytes(form);
	return *supers_at + tiles * ((columns + 255) / 256) * (size_t)form_super_bytes(form);
}

static void value_put(int form, uint8_t *record, const struct value_place *p, uint32_t value)
{
	const int bits = form_bits(form);
	if (bits == 8) {
		record[p->block * 512 + p->lane * 16 + (p->high + 2 * p->half) * 4 + p->byte] = (uint8_t)value;
		return;
	}
	record[p->lane * 16 + (2 * p->block + p->high) * 4 + p->byte] |=
		(uint8_t)((value & 15) << (4 * p->half));
	if (bits == 5)
		record[512 + p->lane * 4 + p->byte] |=
			(uint8_t)((value >> 4) << (4 * p->block + 2 * p->high + p->half));
	if (bits == 6)
		record[512 + p->block * 128 + p->lane * 4 + p->byte] |=
			(uint8_t)((value >> 4) << (2 * (2 * p->high + p->half)));
}

/* The scale and minimum of 32 columns; sub: which 32 of a K block. */
static void scale_put(uint32_t type, uint8_t *scale, uint32_t pairs, uint32_t high, const uint8_t *block,
		      const struct quant_block *b, uint32_t sub)
{
	uint8_t scales[8], minima[8];
	switch (form_of(type)) {
	case FORM_4K: case FORM_5K:
		quant_k_scales(block, scales, minima);
		scale[4 * pairs + high] = scales[sub];
		scale[4 * pairs + 2 + high] = minima[sub];
		return;
	case FORM_6K:
		scale[4 * pairs + high] = block[192 + 2 * sub];
		scale[4 * pairs + 2 + high] = block[192 + 2 * sub + 1];
		return;
	case FORM_8F:
		memcpy(scale + 4 * (2 * pairs + high), &b->d[0], 4);
		return;
	case FORM_4M: case FORM_5M:
		memcpy(scale + 8 * pairs + 2 * high, block, 2);
		memcpy(scale + 8 * pairs + 4 + 2 * high, block + 2, 2);
		return;
	default:
		memcpy(scale + 4 * pairs + 2 * high, block, 2);
	}
}

static void super_put(uint32_t type, uint8_t *super, uint32_t row, const uint8_t *block)
{
	const uint32_t g = row % 8, high = row % 16 / 8;
	if (type == TYPE_Q6_K) {
		memcpy(super + 4 * g + 2 * high, block + 208, 2);
		return;
	}
	memcpy(super + 8 * g + 2 * high, block, 2);
	memcpy(super + 8 * g + 4 + 2 * high, block + 2, 2);
}

void form_pack(uint32_t type, uint32_t rows, uint32_t columns, const void *from, uint8_t *to)
{
	const enum form form = form_of(type);
	size_t supers_at;
	const size_t bytes = form_bytes(form, rows, columns, &supers_at);
	if (form_is_float(form)) {
		memcpy(to, from, bytes);
		return;
	}
	const uint32_t elements = weight_type_elements(type), block_bytes = weight_type_bytes(type);
	const uint8_t *block = static_cast<const uint8_t *>(from);
	struct quant_block b = {};
	for (uint32_t row = 0; row < rows; row++)
		for (uint32_t first = 0; first < columns; first += elements, block += block_bytes) {
			const size_t tile = row / RECORD_ROWS;
			quant_unpack(type, block, &b);
			for (uint32_t k = 0; k < elements; k++) {
				const uint32_t column = first + k;
				uint8_t *record = to + (tile * record_columns(columns) + column / 64) *
							       (size_t)form_record_bytes(form);
				const struct value_place p = value_place_of(row, column);
				value_put(form, record, &p, (uint8_t)(b.q[k] + form_zero(form)));
				if (k % 32 == 0)
					scale_put(type, record + form_value_bytes(form),
						  p.block * 8 + p.lane / 4, p.high, block, &b, k / 32);
			}
			if (form_is_k(form))
				super_put(type, to + supers_at + (tile * ((columns + 255) / 256) + first / 256) *
									 (size_t)form_super_bytes(form),
					  row, block);
		}
}
