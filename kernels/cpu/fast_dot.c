/*
 * The f32 dot, multiply and add rounded apart, 16 rows in lanes: sum j of a row takes k = j, j+16, …
 * in order, then the 16 sums are added as a tree. Packed weights of other kinds are dequantised a
 * chunk at a time and shared by up to COLUMNS activation rows.
 */
#include <string.h>

#include "kernels/cpu/fast_v16.h"
#include "kernels/quant.h"

enum { CHUNK = 256, COLUMNS = 16 };

#ifdef FAST_AVX512
enum { LANES = 16 }; /* sums held in registers at once */
#define EACH_LANE(X) \
	X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12) X(13) X(14) X(15)
#else
enum { LANES = 4 };
#define EACH_LANE(X) X(0) X(1) X(2) X(3)
#endif

#define LANE_LOAD(j) acc[j] = v16_load(sum[first + j]);
#define LANE_STORE(j) v16_store(sum[first + j], acc[j]);
#define LANE_ADD(j) \
	acc[j] = v16_add(acc[j], v16_mul(v16_set(x[k + first + j]), v16_load(w[k + first + j])));

/* Adds x[0 .. n) times w to the sums; n a multiple of 16 but at the row's end. */
static void dot_chunk(float sum[16][16], const float *x, const float (*w)[16], uint32_t n)
{
	const uint32_t whole = n & ~15u;

	for (uint32_t first = 0; first < 16; first += LANES) {
		struct v16 acc[LANES];

		EACH_LANE(LANE_LOAD)
		for (uint32_t k = 0; k < whole; k += 16) {
			EACH_LANE(LANE_ADD)
		}
		EACH_LANE(LANE_STORE)
	}
	for (uint32_t k = whole; k < n; k++) {
		const struct v16 y = v16_mul(v16_set(x[k]), v16_load(w[k]));

		v16_store(sum[k - whole], v16_add(v16_load(sum[k - whole]), y));
	}
}

static void dot_end(float sum[16][16], float *out, uint32_t rows)
{
	for (uint32_t half = 8; half; half /= 2)
		for (uint32_t j = 0; j < half; j++)
			v16_store(sum[j], v16_add(v16_load(sum[j]), v16_load(sum[j + half])));
	memcpy(out, sum[0], rows * sizeof *out);
}

/* Blocks to f32. Products of an f16 and 8 bits are exact, so only Q4's sum is rounded. */
static void unpack_q4(const uint8_t *data, uint32_t blocks, uint32_t zero, float (*w)[16])
{
	const struct n16 low = n16_set(15), z = n16_set((int32_t)zero);

	for (uint32_t b = 0; b < blocks; b++, data += 320, w += ACT_BLOCK) {
		const struct v16 d = v16_load_f16(data);
		const struct v16 m = zero ? v16_set(0.0f) : v16_load_f16(data + 32);

		for (uint32_t g = 0; g < 4; g++) {
			struct n16 x = n16_load(data + 64 + 64 * g);

			for (uint32_t j = 0; j < 4; j++, x = n16_right(x, 8)) {
				const struct v16 a = v16_from_int(n16_sub(n16_and(x, low), z));
				const struct v16 b4 = v16_from_int(n16_sub(n16_and(n16_right(x, 4), low), z));

				v16_store(w[4 * g + j], zero ? v16_mul(d, a) : v16_fma(d, a, m));
				v16_store(w[4 * g + j + 16], zero ? v16_mul(d, b4) : v16_fma(d, b4, m));
			}
		}
	}
}

static void unpack_q8(const uint8_t *data, uint32_t blocks, float (*w)[16])
{
	for (uint32_t b = 0; b < blocks; b++, data += 544, w += ACT_BLOCK) {
		const struct v16 d = v16_load_f16(data);

		for (uint32_t g = 0; g < 8; g++) {
			struct n16 x = n16_load(data + 32 + 64 * g);

			for (uint32_t j = 0; j < 4; j++, x = n16_right(x, 8)) {
				const struct n16 u = n16_sub(n16_and(x, n16_set(255)), n16_set(128));

				v16_store(w[4 * g + j], v16_mul(d, v16_from_int(u)));
			}
		}
	}
}

static void unpack_half(const uint8_t *data, uint32_t n, uint32_t type, float (*w)[16])
{
	for (uint32_t k = 0; k < n; k++, data += 32)
		v16_store(w[k], type == TYPE_F16 ? v16_load_f16(data) : v16_load_bf16(data));
}

/* What nibbles of four lines and the bits above them make: columns 4g+j in w[4g+j]. The bits above
   are the fifth of PACK_Q5 and PACK_K5 (upper: 1 a line) or the two of PACK_K6 (upper: 2 lines). */
INLINE struct v16 unpack_one(struct n16 nibble, struct n16 above, const int32_t mask, struct v16 d,
			     struct v16 m, struct n16 zero, const int minimum)
{
	const struct n16 high = n16_left(n16_and(above, n16_set(mask)), 4);
	const struct n16 q = n16_or(n16_and(nibble, n16_set(15)), high);
	const struct v16 x = v16_from_int(n16_sub(q, zero));

	return minimum ? v16_add(v16_mul(d, x), m) : v16_mul(d, x);
}

/* Sixteen columns: nibbles `up` bits up in each byte of the lines; above: the line of fifth bits moved
   so that bit 0 is the first column's, or PACK_K6's line; step: bits from a line's to the next's. */
INLINE void unpack_half_block(const uint8_t *lines, const int up, struct n16 above, const int32_t mask,
			      struct v16 d, struct v16 m, struct n16 zero, const int minimum,
			      float (*w)[16])
{
	for (uint32_t g = 0; g < 4; g++) {
		struct n16 x = n16_load(lines + 64 * g), h = above;

		if (up)
			x = n16_right(x, 4);
		for (uint32_t j = 0; j < 4; j++, x = n16_right(x, 8), h = n16_right(h, 8))
			v16_store(w[4 * g + j], unpack_one(x, h, mask, d, m, zero, minimum));
		above = mask == 3 ? n16_right(above, 2) : n16_right(above, 1);
	}
}

static void unpack_q5(const uint8_t *data, uint32_t blocks, uint32_t zero, float (*w)[16])
{
	const struct n16 z = n16_set((int32_t)zero);

	for (uint32_t b = 0; b < blocks; b++, data += 384, w += ACT_BLOCK) {
		const struct v16 d = v16_load_f16(data), m = v16_load_f16(data + 32);
		const struct n16 fifth = n16_load(data + 64);

		unpack_half_block(data + 128, 0, fifth, 1, d, m, z, 1, w);
		unpack_half_block(data + 128, 1, n16_right(fifth, 4), 1, d, m, z, 1, w + 16);
	}
}

static void unpack_t4(const uint8_t *data, uint32_t blocks, const int8_t *table, float (*w)[16])
{
	for (uint32_t b = 0; b < blocks; b++, data += 320, w += ACT_BLOCK)
		for (uint32_t k = 0; k < ACT_BLOCK; k++)
			for (uint32_t r = 0; r < 16; r++) {
				const uint8_t x = data[64 + 64 * (k % 16 / 4) + 4 * r + k % 4];
				float d;

				memcpy(&d, data + 4 * r, 4);
				w[k][r] = d * (float)table[k < 16 ? x & 15 : x >> 4];
			}
}

static void unpack_k(const uint8_t *data, uint32_t pack, float (*w)[16])
{
	const struct v16 d = v16_load_f16(data), dmin = v16_load_f16(data + 32);
	const struct v16 none = v16_set(-0.0f); /* 0 less a product of 0 would lose its sign */
	const struct n16 z = n16_set(0);

	for (uint32_t j = 0; j < 8; j++, w += ACT_BLOCK) {
		const uint8_t *at = data + K_LINES + j * (pack == PACK_K5 ? 320 : 256);
		const uint8_t *scales = data + K_SCALES + 32 * j;
		const struct v16 dj = v16_mul(d, v16_from_int(n16_load_u8(scales)));
		const struct v16 mj = v16_sub(none, v16_mul(dmin, v16_from_int(n16_load_u8(scales + 16))));
		struct n16 fifth = z;

		if (pack == PACK_K5) {
			fifth = n16_load(at);
			at += 64;
		}
		unpack_half_block(at, 0, fifth, 1, dj, mj, z, 1, w);
		unpack_half_block(at, 1, n16_right(fifth, 4), 1, dj, mj, z, 1, w + 16);
	}
}

static void unpack_k6(const uint8_t *data, float (*w)[16])
{
	const struct v16 d = v16_load_f16(data), none = v16_set(0.0f);
	const struct n16 z = n16_set(32);

	for (uint32_t j = 0; j < 8; j++, w += ACT_BLOCK) {
		const uint8_t *at = data + K_LINES + j * 384;
		const int8_t *scales = (const int8_t *)(data + K_SCALES + 32 * j);

		for (uint32_t h = 0; h < 2; h++) {
			const struct v16 dh = v16_mul(d, v16_from_int(n16_load_i8(scales + 16 * h)));
			const struct n16 above = n16_load(at + 256 + 64 * h);

			if (h)
				unpack_half_block(at, 1, above, 3, dh, none, z, 0, w + 16);
			else
				unpack_half_block(at, 0, above, 3, dh, none, z, 0, w);
		}
	}
}

/* Columns [k, k + n) of a group as f32; k a multiple of 256. */
static void unpack(const struct weight *w, const uint8_t *group, uint32_t k, uint32_t n,
		   float (*out)[16])
{
	const uint8_t *data = group + (size_t)(k / ACT_BLOCK) * pack_block_bytes(w->pack);
	const uint32_t blocks = n / ACT_BLOCK;

	switch (w->pack) {
	case PACK_Q4:
		unpack_q4(data, blocks, w->zero, out);
		break;
	case PACK_Q8:
		unpack_q8(data, blocks, out);
		break;
	case PACK_HALF:
		unpack_half(data, n, w->type, out);
		break;
	case PACK_Q5:
		unpack_q5(data, blocks, w->zero, out);
		break;
	case PACK_T4:
		unpack_t4(data, blocks, quant_table(w->type), out);
		break;
	case PACK_K6:
		unpack_k6(data, out);
		break;
	default:
		unpack_k(data, w->pack, out);
	}
}

/* Values [k, k+n) of an activation row; in `buffer` if they are made here. */
static const float *act_values(const struct act *a, uint32_t c, uint32_t k, uint32_t n,
			       float *buffer)
{
	if (a->kind != ACT_I8_BLOCK)
		return a->x + c * a->x_stride + k;
	/* n is a multiple of 32: other columns have no blocks. */
	for (uint32_t i = 0; i < n; i += 16) {
		const struct v16 d = v16_set(a->d[c * a->block_stride + (k + i) / ACT_BLOCK]);

		v16_store(buffer + i, v16_mul(d, v16_from_int(n16_load_i8(a->q + c * a->q_stride + k + i))));
	}
	return buffer;
}

/* One group times up to COLUMNS activation rows. */
static void dot_group(const struct weight *w, uint32_t group, const struct act *a, uint32_t c,
		      uint32_t columns, float *out, size_t out_stride)
{
	const uint8_t *data = w->data + group * w->group_bytes;
	const uint32_t left = w->rows - group * PACK_ROWS;
	_Alignas(64) float sum[COLUMNS][16][16];
	_Alignas(64) float weights[CHUNK][16], values[CHUNK];

	memset(sum, 0, columns * sizeof sum[0]);
	for (uint32_t k = 0; k < w->columns; k += CHUNK) {
		const uint32_t n = w->columns - k < CHUNK ? w->columns - k : CHUNK;
		const float (*y)[16] = (const float (*)[16])weights;

		if (w->pack == PACK_F32)
			y = (const float (*)[16])(const void *)data + k;
		else
			unpack(w, data, k, n, weights);
		for (uint32_t i = 0; i < columns; i++)
			dot_chunk(sum[i], act_values(a, c + i, k, n, values), y, n);
	}
	for (uint32_t i = 0; i < columns; i++)
		dot_end(sum[i], out + (c + i) * out_stride + group * PACK_ROWS,
			left < PACK_ROWS ? left : PACK_ROWS);
}

FAST_DOT(FAST(fast_dot))
{
	for (uint32_t g = group_first; g < group_first + group_count; g++) {
		for (uint32_t c = 0; c < c_count; c += COLUMNS)
			dot_group(w, g, a, c_first + c, c_count - c < COLUMNS ? c_count - c : COLUMNS, out,
				  out_stride);
	}
}
