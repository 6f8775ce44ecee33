/*
 * Blocks of packed weights. A row's 32 integers are spread over lines of 64 bytes, four to a row in
 * each, so that a register of a line holds sixteen rows' next four columns.
 */
#include "kernels/cpu/block.h"

#include <string.h>

#include "kernels/fp8.h"
#include "kernels/quant.h"

typedef uint32_t v4u __attribute__((vector_size(16)));

enum { LINE = 64 };

enum pack weight_pack(uint32_t type)
{
	switch (type) {
	case TYPE_Q4_0: case TYPE_Q4_1:
		return PACK_Q4;
	case TYPE_Q5_0: case TYPE_Q5_1:
		return PACK_Q5;
	case TYPE_Q8_0:
		return PACK_Q8;
	case TYPE_Q4_K:
		return PACK_K4;
	case TYPE_Q5_K:
		return PACK_K5;
	case TYPE_Q6_K:
		return PACK_K6;
	case TYPE_IQ4_NL: case TYPE_MXFP4:
		return PACK_T4;
	case TYPE_F16: case TYPE_BF16:
		return PACK_HALF;
	case TYPE_F32:
		return PACK_F32;
	}
	return PACK_RAW;
}

uint32_t pack_zero(uint32_t type)
{
	return type == TYPE_Q4_0 ? 8 : type == TYPE_Q5_0 ? 16 : type == TYPE_Q6_K ? 32 : 0;
}

/* ---- Into a pack. q: 32 values of row r, not negative. */

/* The low four bits of columns i and 16 + i share a byte. */
static void nibbles_put(const int8_t *q, uint32_t r, uint8_t *lines)
{
	for (uint32_t i = 0; i < 16; i++)
		lines[LINE * (i / 4) + 4 * r + i % 4] = (uint8_t)((q[i] & 15) | (q[i + 16] & 15) << 4);
}

static void fifths_put(const int8_t *q, uint32_t r, uint8_t *line)
{
	for (uint32_t i = 0; i < 32; i++)
		line[4 * r + i % 4] |= (uint8_t)((q[i] >> 4 & 1) << i / 4);
}

static void uppers_put(const int8_t *q, uint32_t r, uint8_t *lines)
{
	for (uint32_t i = 0; i < 32; i++)
		lines[LINE * (i / 16) + 4 * r + i % 4] |= (uint8_t)((q[i] >> 4 & 3) << i % 16 / 4 * 2);
}

static void q4_put(const uint8_t *from, uint32_t type, uint32_t r, uint8_t *to)
{
	const uint8_t *nibbles = from + (type == TYPE_Q4_1 ? 4 : 2);

	memcpy(to + 2 * r, from, 2);
	if (type == TYPE_Q4_1)
		memcpy(to + 32 + 2 * r, from + 2, 2);
	/* The file's byte i holds columns i and 16 + i: byte r*4 + i%4 of line i/4 here. */
	for (uint32_t g = 0; g < 4; g++)
		memcpy(to + LINE + LINE * g + 4 * r, nibbles + 4 * g, 4);
}

static void q8_put(const uint8_t *from, uint32_t r, uint8_t *to)
{
	memcpy(to + 2 * r, from, 2);
	for (uint32_t k = 0; k < 32; k++)
		to[32 + LINE * (k / 4) + 4 * r + k % 4] = (uint8_t)(from[2 + k] ^ 0x80);
}

static void q5_put(const uint8_t *from, uint32_t type, uint32_t r, uint8_t *to)
{
	struct quant_block b;

	quant_unpack(type, from, &b);
	if (type == TYPE_Q5_0)
		for (int i = 0; i < 32; i++)
			b.q[i] = (int8_t)(b.q[i] + 16);
	memcpy(to + 2 * r, from, 2);
	if (type == TYPE_Q5_1)
		memcpy(to + 32 + 2 * r, from + 2, 2);
	fifths_put(b.q, r, to + LINE);
	nibbles_put(b.q, r, to + 2 * LINE);
}

static void t4_put(const uint8_t *from, uint32_t type, uint32_t r, uint8_t *to)
{
	const uint8_t *nibbles = from + (type == TYPE_IQ4_NL ? 2 : 1);
	struct quant_block b;

	quant_unpack(type, from, &b);
	memcpy(to + 4 * r, &b.d[0], 4);
	for (uint32_t g = 0; g < 4; g++)
		memcpy(to + LINE + LINE * g + 4 * r, nibbles + 4 * g, 4);
}

static void k_put(const uint8_t *from, uint32_t type, uint32_t r, uint8_t *to)
{
	const uint32_t lines = type == TYPE_Q5_K ? 5 * LINE : 4 * LINE;
	uint8_t scale[8], minimum[8];
	struct quant_block b;

	quant_unpack(type, from, &b);
	quant_k_scales(from, scale, minimum);
	memcpy(to + 2 * r, from, 2);
	memcpy(to + 32 + 2 * r, from + 2, 2);
	for (uint32_t j = 0; j < 8; j++) {
		uint8_t *at = to + K_LINES + j * lines;

		to[K_SCALES + 32 * j + r] = scale[j];
		to[K_SCALES + 32 * j + 16 + r] = minimum[j];
		if (type == TYPE_Q5_K)
			fifths_put(b.q + 32 * j, r, at);
		nibbles_put(b.q + 32 * j, r, at + lines - 4 * LINE);
	}
}

static void k6_put(const uint8_t *from, uint32_t r, uint8_t *to)
{
	struct quant_block b;

	quant_unpack(TYPE_Q6_K, from, &b);
	memcpy(to + 2 * r, from + 208, 2);
	for (uint32_t j = 0; j < 16; j++)
		to[K_SCALES + 16 * j + r] = from[192 + j];
	for (int i = 0; i < 256; i++)
		b.q[i] = (int8_t)(b.q[i] + 32);
	for (uint32_t j = 0; j < 8; j++) {
		nibbles_put(b.q + 32 * j, r, to + K_LINES + j * 6 * LINE);
		uppers_put(b.q + 32 * j, r, to + K_LINES + j * 6 * LINE + 4 * LINE);
	}
}

void pack_block(const struct weight *w, const uint8_t *from, uint32_t columns, uint32_t r,
		uint8_t *to)
{
	const uint32_t size = w->pack == PACK_F32 ? 4 : 2;

	switch (w->pack) {
	case PACK_Q4:
		q4_put(from, w->type, r, to);
		return;
	case PACK_Q8:
		q8_put(from, r, to);
		return;
	case PACK_Q5:
		q5_put(from, w->type, r, to);
		return;
	case PACK_T4:
		t4_put(from, w->type, r, to);
		return;
	case PACK_K4: case PACK_K5:
		k_put(from, w->type, r, to);
		return;
	case PACK_K6:
		k6_put(from, r, to);
		return;
	}
	for (uint32_t k = 0; k < 32 && k < columns; k++)
		memcpy(to + size * (k * PACK_ROWS + r), from + size * k, size);
}

/* ---- Out of a pack. */

static float f16_at(const uint8_t *p)
{
	uint16_t v;

	memcpy(&v, p, sizeof v);
	return f16_decode(v);
}

/* Row r's 32 bytes of a PACK_Q8 block, together. */
static void bytes_get(const uint8_t *lines, uint32_t r, int8_t *q)
{
	for (uint32_t g = 0; g < 8; g++)
		memcpy(q + 4 * g, lines + LINE * g + 4 * r, 4);
	for (int i = 0; i < 32; i++)
		q[i] = (int8_t)(q[i] ^ -128);
}

/* Row r's 32 nibbles as bytes. In a register: four small stores read back as one load would
   stall. */
static void nibbles_get(const uint8_t *lines, uint32_t r, int8_t *q)
{
	uint32_t b[4];

	for (int g = 0; g < 4; g++)
		memcpy(&b[g], lines + LINE * g + 4 * r, 4);
	const v4u v = {b[0], b[1], b[2], b[3]}, low = v & 0x0f0f0f0f, high = v >> 4 & 0x0f0f0f0f;
	memcpy(q, &low, sizeof low);
	memcpy(q + 16, &high, sizeof high);
}

static void fifths_get(const uint8_t *line, uint32_t r, int8_t *q)
{
	for (uint32_t i = 0; i < 32; i++)
		q[i] = (int8_t)(q[i] | (line[4 * r + i % 4] >> i / 4 & 1) << 4);
}

static void uppers_get(const uint8_t *lines, uint32_t r, int8_t *q)
{
	for (uint32_t i = 0; i < 32; i++)
		q[i] = (int8_t)(q[i] | (lines[LINE * (i / 16) + 4 * r + i % 4] >> i % 16 / 4 * 2 & 3) << 4);
}

static int k_get(const uint8_t *block, uint32_t pack, uint32_t j, uint32_t r, int8_t *q, float *d,
		 float *m)
{
	const uint32_t lines = pack == PACK_K5 ? 5 * LINE : 4 * LINE;
	const uint8_t *at = block + K_LINES + j * lines, *scales = block + K_SCALES + 32 * j;

	d[0] = f16_at(block + 2 * r) * (float)scales[r];
	*m = -(f16_at(block + 32 + 2 * r) * (float)scales[16 + r]);
	nibbles_get(at + lines - 4 * LINE, r, q);
	if (pack == PACK_K5)
		fifths_get(at, r, q);
	return 0;
}

static int k6_get(const uint8_t *block, uint32_t j, uint32_t r, int8_t *q, float *d)
{
	const uint8_t *at = block + K_LINES + j * 6 * LINE, *scales = block + K_SCALES + 32 * j;

	d[0] = f16_at(block + 2 * r) * (float)(int8_t)scales[r];
	d[1] = f16_at(block + 2 * r) * (float)(int8_t)scales[16 + r];
	nibbles_get(at, r, q);
	uppers_get(at + 4 * LINE, r, q);
	for (int i = 0; i < 32; i++)
		q[i] = (int8_t)(q[i] - 32);
	return 1;
}

int pack_integers(const struct weight *w, const uint8_t *group, uint32_t block, uint32_t r,
		  int8_t q[32], float d[2], float *m)
{
	const uint8_t *at = group + (size_t)block * pack_block_bytes(w->pack);

	if (w->pack >= PACK_K4) {
		at = group + (size_t)(block / 8) * 8 * pack_block_bytes(w->pack);
		return w->pack == PACK_K6 ? k6_get(at, block % 8, r, q, d) :
					    k_get(at, w->pack, block % 8, r, q, d, m);
	}
	if (w->pack == PACK_T4) {
		const int8_t *table = quant_table(w->type);

		memcpy(d, at + 4 * r, 4);
		nibbles_get(at + LINE, r, q);
		for (int i = 0; i < 32; i++)
			q[i] = table[q[i]];
		return 1;
	}
	d[0] = f16_at(at + 2 * r);
	if (w->pack == PACK_Q8) {
		bytes_get(at + 32, r, q);
		return 1;
	}
	*m = f16_at(at + 32 + 2 * r);
	nibbles_get(at + (w->pack == PACK_Q5 ? 2 * LINE : LINE), r, q);
	if (w->pack == PACK_Q5)
		fifths_get(at + LINE, r, q);
	for (int i = 0; i < 32; i++)
		q[i] = (int8_t)(q[i] - (int)w->zero);
	return w->zero != 0;
}
