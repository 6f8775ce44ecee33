/*
 * The f32 dot, multiply and add rounded apart, 16 rows in lanes: sum j of a row takes k = j, j+16, …
 * in order, then the 16 sums are added as a tree. Packed weights of other kinds are dequantised a
 * chunk at a time and shared by up to COLUMNS activation rows.
 */
#include <string.h>

#include "kernels/cpu/fast_v16.h"

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

/* Values [k, k+n) of an activation row; in `buffer` if they are made here. */
static const float *act_values(const struct act *a, uint32_t c, uint32_t k, uint32_t n,
			       float *buffer)
{
	if (a->kind != ACT_I8_BLOCK)
		return a->x + c * a->x_stride + k;
	for (uint32_t i = 0; i < n; i++) {
		const float d = a->d[c * a->block_stride + (k + i) / ACT_BLOCK];

		buffer[i] = d * (float)a->q[c * a->q_stride + k + i];
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
		const uint32_t blocks = n / ACT_BLOCK;
		const float (*y)[16] = (const float (*)[16])weights;

		if (w->pack == PACK_F32)
			y = (const float (*)[16])(const void *)data + k;
		else if (w->pack == PACK_Q4)
			unpack_q4(data + (size_t)(k / ACT_BLOCK) * 320, blocks, w->zero, weights);
		else
			unpack_q8(data + (size_t)(k / ACT_BLOCK) * 544, blocks, weights);
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
