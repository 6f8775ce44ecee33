/*
 * Where a quantised value and its scales lie in a packed matrix, for the host that packs and for the
 * kernels that read. Private to kernels/cuda/.
 *
 * A record holds 16 rows x 64 columns: two blocks of 32. Its values come first, in the order of the
 * A fragments of mma.m16n8k32: lane 4g+t has rows g and g+8, of each block the columns 4t..4t+3 (half
 * 0) and 16+4t..16+4t+3 (half 1).
 *   4 bits   512 bytes: 16 a lane; word 2*block + high row; half 0 in low nibbles, half 1 in high ones
 *   5 bits   and 128 bytes: a word a lane; in byte i, bit 4*block + 2*high + half is the fifth
 *   6 bits   and 256 bytes: a word a lane and block; in byte i, bits 2*(2*high + half) are the upper two
 *   8 bits   1024 bytes: by block, 16 a lane; word high + 2*half
 * Then the scales, by block and g: f16 or f32 of rows g and g+8 (M: then their minima); K: bytes scale
 * of g, of g+8, minimum of g, of g+8; 6K: bytes of half 0 for g, g+8, of half 1 for g, g+8.
 * Supers, for 16 rows x 256 columns, by g: f16 scale of g, g+8 (not 6K: minimum of g, g+8).
 * Columns are padded to 64, rows to 16, with zeros.
 */
#ifndef HOLDFAST_KERNELS_CUDA_PACK_H
#define HOLDFAST_KERNELS_CUDA_PACK_H

#include "kernels/cuda/cuda.h"

#ifdef __CUDACC__
#define PACK_INLINE __host__ __device__ static inline
#else
#define PACK_INLINE static inline
#endif

enum { RECORD_ROWS = 16, RECORD_COLUMNS = 64, SUPER_COLUMNS = 256 };

PACK_INLINE constexpr int form_bits(int form)
{
	return form <= FORM_4M || form == FORM_4K ? 4
	       : form <= FORM_5M || form == FORM_5K ? 5
	       : form == FORM_6K ? 6
				 : 8;
}
/* Subtracted from the stored unsigned value. */
PACK_INLINE constexpr int form_zero(int form)
{
	return form == FORM_4 ? 8 : form == FORM_5 ? 16 : form == FORM_6K ? 32 : 0;
}
PACK_INLINE constexpr bool form_has_minimum(int form)
{
	return form == FORM_4M || form == FORM_5M || form == FORM_4K || form == FORM_5K;
}
PACK_INLINE constexpr bool form_is_float(int form)
{
	return form >= FORM_F32;
}
PACK_INLINE constexpr bool form_is_k(int form)
{
	return form == FORM_4K || form == FORM_5K || form == FORM_6K;
}
PACK_INLINE constexpr int form_value_bytes(int form)
{
	return form_bits(form) == 4 ? 512 : form_bits(form) == 5 ? 640 : form_bits(form) == 6 ? 768 : 1024;
}
PACK_INLINE constexpr int form_scale_bytes(int form)
{
	return form == FORM_4M || form == FORM_5M || form == FORM_8F ? 128 : 64;
}
PACK_INLINE constexpr int form_record_bytes(int form)
{
	return form_value_bytes(form) + form_scale_bytes(form);
}
PACK_INLINE constexpr int form_super_bytes(int form)
{
	return form == FORM_6K ? 32 : form_is_k(form) ? 64 : 0;
}

PACK_INLINE uint32_t record_columns(uint32_t columns)
{
	return (columns + RECORD_COLUMNS - 1) / RECORD_COLUMNS;
}

/* Where a value lies within its record. */
struct value_place {
	uint32_t lane, block, high, half, byte;
};
PACK_INLINE struct value_place value_place_of(uint32_t row, uint32_t column)
{
	const uint32_t r = row % 16, k = column % 32;
	struct value_place p;
	p.lane = (r % 8) * 4 + k % 16 / 4;
	p.block = column % 64 / 32;
	p.high = r / 8;
	p.half = k / 16;
	p.byte = k % 4;
	return p;
}

/* An activation's place in its row: lane t takes 16 bytes of 64 columns, of block 0 the columns
   4t.. and 16+4t.., then of block 1. */
PACK_INLINE uint32_t act_place(uint32_t column)
{
	const uint32_t k = column % 32;
	return column / 64 * 64 + k % 16 / 4 * 16 + column % 64 / 32 * 8 + k / 16 * 4 + k % 4;
}

PACK_INLINE uint16_t u16_at(const uint8_t *p)
{
	return (uint16_t)(p[0] | p[1] << 8);
}

/* The stored value, and its scale and minimum: value = d * q (+ m), as kernels/quant.h has it. */
PACK_INLINE float matrix_value(const struct matrix *w, uint32_t row, uint32_t column)
{
	const int form = (int)w->form;
	if (form_is_float(form)) {
		const size_t at = (size_t)row * w->columns + column;
		if (form == FORM_F32)
			return reinterpret_cast<const float *>(w->data)[at];
		const uint16_t h = reinterpret_cast<const uint16_t *>(w->data)[at];
		return form == FORM_F16 ? f16_decode(h) : bf16_decode(h);
	}
	const struct value_place p = value_place_of(row, column);
	const size_t tile = row / RECORD_ROWS;
	const uint8_t *record = w->data + (tile * record_columns(w->columns) + column / RECORD_COLUMNS) *
						  (size_t)form_record_bytes(form);
	const uint8_t *scale = record + form_value_bytes(form);
	const uint32_t g = p.lane / 4, bits = (uint32_t)form_bits(form);
	const uint32_t pairs = p.block * 8 + g;
	int q;
	if (bits == 8) {
		q = (int8_t)record[p.block * 512 + p.lane * 16 + (p.high + 2 * p.half) * 4 + p.byte];
	} else {
		q = record[p.lane * 16 + (2 * p.block + p.high) * 4 + p.byte] >> (4 * p.half) & 15;
		if (bits == 5)
			q |= (record[512 + p.lane * 4 + p.byte] >> (4 * p.block + 2 * p.high + p.half) & 1) << 4;
		if (bits == 6)
			q |= (record[512 + p.block * 128 + p.lane * 4 + p.byte] >>
				      (2 * (2 * p.high + p.half)) & 3) << 4;
		q -= form_zero(form);
	}
	float d, m = 0;
	if (form_is_k(form)) {
		const uint8_t *super = w->supers + (tile * ((w->columns + 255) / 256) + column / 256) *
							   (size_t)form_super_bytes(form);
		if (form == FORM_6K) {
			d = f16_decode(u16_at(super + 4 * g + 2 * p.high)) *
			    (float)(int8_t)scale[4 * pairs + 2 * p.half + p.high];
		} else {
			d = f16_decode(u16_at(super + 8 * g + 2 * p.high)) *
			    (float)scale[4 * pairs + p.high];
			m = -(f16_decode(u16_at(super + 8 * g + 4 + 2 * p.high)) *
			      (float)scale[4 * pairs + 2 + p.high]);
		}
	} else if (form == FORM_8F) {
		d = reinterpret_cast<const float *>(scale)[2 * pairs + p.high];
	} else if (form_has_minimum(form)) {
		d = f16_decode(u16_at(scale + 8 * pairs + 2 * p.high));
		m = f16_decode(u16_at(scale + 8 * pairs + 4 + 2 * p.high));
	} else {
		d = f16_decode(u16_at(scale + 4 * pairs + 2 * p.high));
	}
	return form_has_minimum(form) ? d * (float)q + m : d * (float)q;
}

/* The form of a type, FORM_COUNT if it is not taken; and the bytes of a matrix. */
enum form form_of(uint32_t type);
size_t form_bytes(enum form form, uint32_t rows, uint32_t columns, size_t *supers_at);
/* Packs from the file's rows into `to`, form_bytes of zeroed room. */
void form_pack(uint32_t type, uint32_t rows, uint32_t columns, const void *from, uint8_t *to);

#endif
