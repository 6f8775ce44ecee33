/*
 * Sizes, names, checks and dequantisers of the stored weight types.
 */
#include "kernels/quant.h"

#include <string.h>

#include "kernels/fp8.h"

struct type_entry {
	uint32_t type, elements, bytes;
	const char *name;
};

static const struct type_entry types[] = {
	{TYPE_F32, 1, 4, "F32"},       {TYPE_F16, 1, 2, "F16"},
	{TYPE_BF16, 1, 2, "BF16"},     {TYPE_Q4_0, 32, 18, "Q4_0"},
	{TYPE_Q4_1, 32, 20, "Q4_1"},   {TYPE_Q5_0, 32, 22, "Q5_0"},
	{TYPE_Q5_1, 32, 24, "Q5_1"},   {TYPE_Q8_0, 32, 34, "Q8_0"},
	{TYPE_Q4_K, 256, 144, "Q4_K"}, {TYPE_Q5_K, 256, 176, "Q5_K"},
	{TYPE_Q6_K, 256, 210, "Q6_K"}, {TYPE_IQ4_NL, 32, 18, "IQ4_NL"},
	{TYPE_MXFP4, 32, 17, "MXFP4"},
};

static const int8_t iq4_values[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
				      1,    13,   25,  38,  53,  69,  89,  113};
/* Twice the e2m1 values; the scale is halved to match. */
static const int8_t mxfp4_values[16] = {0, 1,  2,  3,  4,  6,  8,  12,
					0, -1, -2, -3, -4, -6, -8, -12};
/* The largest exponent byte at which 12 * 2^(e - 128) is finite. */
enum { MXFP4_EXPONENT_MAX = 252 };

static const struct type_entry *type_find(uint32_t type)
{
	for (size_t i = 0; i < sizeof types / sizeof types[0]; i++)
		if (types[i].type == type)
			return &types[i];
	return NULL;
}

uint32_t weight_type_elements(uint32_t type)
{
	const struct type_entry *e = type_find(type);
	return e ? e->elements : 0;
}

uint32_t weight_type_bytes(uint32_t type)
{
	const struct type_entry *e = type_find(type);
	return e ? e->bytes : 0;
}

const char *weight_type_name(uint32_t type)
{
	const struct type_entry *e = type_find(type);
	return e ? e->name : NULL;
}

static uint16_t u16_at(const uint8_t *p)
{
	uint16_t v;
	memcpy(&v, p, sizeof v);
	return v;
}

static uint32_t u32_at(const uint8_t *p)
{
	uint32_t v;
	memcpy(&v, p, sizeof v);
	return v;
}

static float f16_at(const uint8_t *p)
{
	return f16_decode(u16_at(p));
}

int quant_is_integer(uint32_t type)
{
	switch (type) {
	case TYPE_Q4_0: case TYPE_Q4_1: case TYPE_Q5_0: case TYPE_Q5_1: case TYPE_Q8_0:
	case TYPE_Q4_K: case TYPE_Q5_K: case TYPE_Q6_K: case TYPE_IQ4_NL: case TYPE_MXFP4:
		return 1;
	}
	return 0;
}

const int8_t *quant_table(uint32_t type)
{
	return type == TYPE_IQ4_NL ? iq4_values : type == TYPE_MXFP4 ? mxfp4_values : NULL;
}

/* 32 nibbles: the low ones are the first 16 values. */
static void nibbles(const uint8_t *from, int zero, int8_t *q)
{
	for (int i = 0; i < 16; i++) {
		q[i] = (int8_t)((from[i] & 15) - zero);
		q[i + 16] = (int8_t)((from[i] >> 4) - zero);
	}
}

static void fifth_bits(uint32_t bits, int8_t *q)
{
	for (int i = 0; i < 32; i++)
		q[i] = (int8_t)(q[i] + (((bits >> i) & 1) << 4));
}

/* The 6-bit scale and minimum of sub-block j of a K block. */
static void k_scale(const uint8_t *s, int j, int *scale, int *minimum)
{
	if (j < 4) {
		*scale = s[j] & 63;
		*minimum = s[j + 4] & 63;
	} else {
		*scale = (s[j + 4] & 15) | ((s[j - 4] >> 6) << 4);
		*minimum = (s[j + 4] >> 4) | ((s[j] >> 6) << 4);
	}
}

void quant_k_scales(const uint8_t *block, uint8_t scale[8], uint8_t minimum[8])
{
	for (int j = 0; j < 8; j++) {
		int s, m;
		k_scale(block + 4, j, &s, &m);
		scale[j] = (uint8_t)s;
		minimum[j] = (uint8_t)m;
	}
}

/* Q4_K (high NULL) and Q5_K. */
static void unpack_k(const uint8_t *block, const uint8_t *high, const uint8_t *low,
		     struct quant_block *out)
{
	const float d = f16_at(block), dmin = f16_at(block + 2);
	for (int j = 0; j < 8; j++) {
		int scale, minimum;
		k_scale(block + 4, j, &scale, &minimum);
		out->d[j] = d * (float)scale;
		out->m[j] = -(dmin * (float)minimum);
		for (int i = 0; i < 32; i++) {
			const int byte = low[32 * (j / 2) + i];
			int q = j & 1 ? byte >> 4 : byte & 15;
			if (high)
				q += ((high[i] >> j) & 1) << 4;
			out->q[32 * j + i] = (int8_t)q;
		}
	}
}

static void unpack_q6_k(const uint8_t *block, struct quant_block *out)
{
	const float d = f16_at(block + 208);
	for (int half = 0; half < 2; half++) {
		const uint8_t *ql = block + 64 * half, *qh = block + 128 + 32 * half;
		int8_t *q = out->q + 128 * half;
		for (int i = 0; i < 32; i++) {
			q[i] = (int8_t)(((ql[i] & 15) | ((qh[i] & 3) << 4)) - 32);
			q[i + 32] =
				(int8_t)(((ql[i + 32] & 15) | (((qh[i] >> 2) & 3) << 4)) -
					 32);
			q[i + 64] =
				(int8_t)(((ql[i] >> 4) | (((qh[i] >> 4) & 3) << 4)) - 32);
			q[i + 96] =
				(int8_t)(((ql[i + 32] >> 4) | ((qh[i] >> 6) << 4)) - 32);
		}
	}
	for (int j = 0; j < 16; j++)
		out->d[j] = d * (float)(int8_t)block[192 + j];
}

static void unpack_table(const int8_t *table, const uint8_t *from, int8_t *q)
{
	for (int i = 0; i < 16; i++) {
		q[i] = table[from[i] & 15];
		q[i + 16] = table[from[i] >> 4];
	}
}

/* 2^(e - 128); below e = 2 it is a subnormal. */
static float mxfp4_scale(uint8_t e)
{
	return float_from_bits(e < 2 ? 0x00200000u << e : (uint32_t)(e - 1) << 23);
}

void quant_unpack(uint32_t type, const uint8_t *block, struct quant_block *out)
{
	out->part = type == TYPE_Q6_K ? 16 : 32;
	out->symmetric = type != TYPE_Q4_1 && type != TYPE_Q5_1 && type != TYPE_Q4_K &&
			 type != TYPE_Q5_K;
	switch (type) {
	case TYPE_Q4_K:
		unpack_k(block, NULL, block + 16, out);
		return;
	case TYPE_Q5_K:
		unpack_k(block, block + 16, block + 48, out);
		return;
	case TYPE_Q6_K:
		unpack_q6_k(block, out);
		return;
	case TYPE_MXFP4:
		out->d[0] = mxfp4_scale(block[0]);
		unpack_table(mxfp4_values, block + 1, out->q);
		return;
	}
	out->d[0] = f16_at(block);
	switch (type) {
	case TYPE_Q4_0:
		nibbles(block + 2, 8, out->q);
		break;
	case TYPE_Q4_1:
		out->m[0] = f16_at(block + 2);
		nibbles(block + 4, 0, out->q);
		break;
	case TYPE_Q5_0:
		nibbles(block + 6, 16, out->q);
		fifth_bits(u32_at(block + 2), out->q);
		break;
	case TYPE_Q5_1:
		out->m[0] = f16_at(block + 2);
		nibbles(block + 8, 0, out->q);
		fifth_bits(u32_at(block + 4), out->q);
		break;
	case TYPE_Q8_0:
		memcpy(out->q, block + 2, 32);
		break;
	case TYPE_IQ4_NL:
		unpack_table(iq4_values, block + 2, out->q);
		break;
	default:
		CHECK(0);
	}
}

static void decode_integer(uint32_t type, const uint8_t *block, float *out)
{
	struct quant_block b;
	const uint32_t elements = weight_type_elements(type);
	quant_unpack(type, block, &b);
	for (uint32_t k = 0; k < elements; k += b.part) {
		const float d = b.d[k / b.part];
		if (b.symmetric) {
			for (uint32_t i = k; i < k + b.part; i++)
				out[i] = d * (float)b.q[i];
		} else {
			const float m = b.m[k / b.part];
			for (uint32_t i = k; i < k + b.part; i++)
				out[i] = d * (float)b.q[i] + m;
		}
	}
}

void quant_decode(uint32_t type, const uint8_t *data, size_t count, float *out)
{
	const struct type_entry *t = type_find(type);
	CHECK(t && count % t->elements == 0);
	if (type == TYPE_F32) {
		memcpy(out, data, 4 * count);
		return;
	}
	for (size_t k = 0; k < count; k += t->elements, data += t->bytes) {
		if (type == TYPE_F16)
			out[k] = f16_at(data);
		else if (type == TYPE_BF16)
			out[k] = bf16_decode(u16_at(data));
		else
			decode_integer(type, data, out + k);
	}
}

static int f16_finite(const uint8_t *p)
{
	return (u16_at(p) & 0x7c00) != 0x7c00;
}

static int block_finite(uint32_t type, const uint8_t *block)
{
	switch (type) {
	case TYPE_F32:
		return (u32_at(block) & 0x7f800000) != 0x7f800000;
	case TYPE_BF16:
		return (u16_at(block) & 0x7f80) != 0x7f80;
	case TYPE_Q4_1: case TYPE_Q5_1: case TYPE_Q4_K: case TYPE_Q5_K:
		return f16_finite(block) && f16_finite(block + 2);
	case TYPE_Q6_K:
		return f16_finite(block + 208);
	case TYPE_MXFP4:
		return block[0] <= MXFP4_EXPONENT_MAX;
	}
	return f16_finite(block);
}

int quant_check(uint32_t type, const uint8_t *data, size_t count)
{
	const struct type_entry *t = type_find(type);
	CHECK(t && count % t->elements == 0);
	for (size_t k = 0; k < count; k += t->elements, data += t->bytes)
		if (!block_finite(type, data))
			return -ERR_BAD_FILE;
	return 0;
}
