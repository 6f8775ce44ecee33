/*
 * The scalar leaves: the definition of the arithmetic (cpu.h), in plain C. Attention and
 * the encoders are in ref_attend.c.
 *
 * The 16 lanes of the f32 dot are held in four vectors of four, which is what any x86-64
 * has; the sums are those of the definition whatever the width.
 */
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("O3")
#endif

#include "kernels/cpu/ref.h"

#include <math.h>
#include <string.h>

#include "kernels/cpu/math.h"
#include "kernels/cpu/row.h"
#include "kernels/quant.h"

enum {
	LANES = 16,
	C_TILE = 32
}; /* activation rows that share one unpacking of a weight row */

typedef float v4 __attribute__((vector_size(16)));

static v4 v4_at(const float *p)
{
	v4 v;
	memcpy(&v, p, sizeof v);
	return v;
}

/* Goes on with the 16 lanes over n more products; n is a multiple of 16 but at the very
   end. */
static void dot_lanes(const float *a, const float *w, uint32_t n, float *lanes)
{
	v4 s0 = v4_at(lanes), s1 = v4_at(lanes + 4), s2 = v4_at(lanes + 8),
	   s3 = v4_at(lanes + 12);
	uint32_t k = 0;
	for (; k + LANES <= n; k += LANES) {
		s0 += v4_at(a + k) * v4_at(w + k);
		s1 += v4_at(a + k + 4) * v4_at(w + k + 4);
		s2 += v4_at(a + k + 8) * v4_at(w + k + 8);
		s3 += v4_at(a + k + 12) * v4_at(w + k + 12);
	}
	memcpy(lanes, &s0, sizeof s0);
	memcpy(lanes + 4, &s1, sizeof s1);
	memcpy(lanes + 8, &s2, sizeof s2);
	memcpy(lanes + 12, &s3, sizeof s3);
	for (uint32_t j = 0; k + j < n; j++)
		lanes[j] += a[k + j] * w[k + j];
}

static float lanes_sum(const float *lanes)
{
	float s[8];
	for (int j = 0; j < 8; j++)
		s[j] = lanes[j] + lanes[j + 8];
	for (int j = 0; j < 4; j++)
		s[j] += s[j + 4];
	return (s[0] + s[2]) + (s[1] + s[3]);
}

/* The activation's own values, or those that its integers stand for. */
static const float *act_floats(const struct act *a, uint32_t c, uint32_t first,
			       uint32_t count, float *room)
{
	if (a->kind == ACT_F32)
		return a->x + c * a->x_stride + first;
	const int8_t *q = a->q + c * a->q_stride + first;
	const float *d = a->d + c * a->block_stride + first / ACT_BLOCK;
	for (uint32_t k = 0; k < count; k++)
		room[k] = d[k / ACT_BLOCK] * (float)q[k];
	return room;
}

static void row_f32(const struct weight *w, uint32_t row, const struct act *a,
		    uint32_t c_first, uint32_t c_count, float *out, size_t out_stride)
{
	float lanes[C_TILE][LANES], values[ROW_CHUNK], room[ROW_CHUNK];
	memset(lanes, 0, c_count * sizeof lanes[0]);
	for (uint32_t k = 0; k < w->columns; k += ROW_CHUNK) {
		const uint32_t n = w->columns - k < ROW_CHUNK ? w->columns - k : ROW_CHUNK;
		row_floats(w, row, k, n, values);
		for (uint32_t c = 0; c < c_count; c++)
			dot_lanes(act_floats(a, c_first + c, k, n, room), values, n,
				  lanes[c]);
	}
	for (uint32_t c = 0; c < c_count; c++)
		out[(c_first + c) * out_stride + row] = lanes_sum(lanes[c]);
}

static int dot_i8(const int8_t *a, const int8_t *b, uint32_t n)
{
	int sum = 0;
	for (uint32_t i = 0; i < n; i++)
		sum += a[i] * b[i];
	return sum;
}

/* One block of 32 columns of one row with one activation row. */
static float block_i8(const struct row_part *p, uint32_t block, const int8_t *q, float da,
		      float s, float acc)
{
	const int8_t *w = p->q + 32 * block;
	if (p->part == 16) {
		acc = fmaf(p->d[2 * block] * da, (float)dot_i8(w, q, 16), acc);
		return fmaf(p->d[2 * block + 1] * da, (float)dot_i8(w + 16, q + 16, 16),
			    acc);
	}
	acc = fmaf(p->d[block] * da, (float)dot_i8(w, q, 32), acc);
	return p->symmetric ? acc : fmaf(p->m[block], s, acc);
}

static void row_i8(const struct weight *w, uint32_t row, const struct act *a,
		   uint32_t c_first, uint32_t c_count, float *out, size_t out_stride)
{
	float acc[C_TILE] = {0};
	struct row_part part;
	for (uint32_t k = 0; k < w->columns; k += ROW_CHUNK) {
		const uint32_t n = w->columns - k < ROW_CHUNK ? w->columns - k : ROW_CHUNK;
		row_integers(w, row, k, n, &part);
		for (uint32_t c = 0; c < c_count; c++) {
			const int8_t *q = a->q + (c_first + c) * a->q_stride + k;
			const size_t at = (c_first + c) * a->block_stride + k / ACT_BLOCK;
			for (uint32_t b = 0; b < n / ACT_BLOCK; b++)
				acc[c] = block_i8(&part, b, q + 32 * b, a->d[at + b],
						  a->s[at + b], acc[c]);
		}
	}
	for (uint32_t c = 0; c < c_count; c++)
		out[(c_first + c) * out_stride + row] = acc[c];
}

static void ref_matmul(const struct weight *w, uint32_t group_first, uint32_t group_count,
		       const struct act *a, uint32_t c_first, uint32_t c_count, float *out,
		       size_t out_stride)
{
	const uint32_t first = group_first * PACK_ROWS,
		       end = first + group_count * PACK_ROWS;
	const uint32_t last = end < w->rows ? end : w->rows;
	const int integer = a->kind == ACT_I8_BLOCK && quant_is_integer(w->type);
	for (uint32_t c = 0; c < c_count; c += C_TILE) {
		const uint32_t n = c_count - c < C_TILE ? c_count - c : C_TILE;
		for (uint32_t row = first; row < last; row++)
			(integer ? row_i8 : row_f32)(w, row, a, c_first + c, n, out,
						     out_stride);
	}
}

static void ref_norm(const float *x, const float *w, uint32_t n, float epsilon, float *out)
{
	float lanes[LANES] = {0};
	dot_lanes(x, x, n, lanes);
	const float r = 1.0f / sqrtf(lanes_sum(lanes) / (float)n + epsilon);
	for (uint32_t i = 0; i < n; i++)
		out[i] = x[i] * r * w[i];
}

/* Values to integers with one scale, as cpu.h has it; the scale, and the sum of the integers. */
static float ref_round(const float *x, uint32_t n, int8_t *q, int *sum)
{
	float largest = 0;
	for (uint32_t i = 0; i < n; i++) {
		const float a = fabsf(x[i]);
		largest = a > largest ? a : largest;
	}
	float da = largest / 127.0f, inverse = 1.0f / da;
	if (!(inverse <= 3.4028234e38f)) /* FLT_MAX: infinite, or NaN */
		da = inverse = 0;
	*sum = 0;
	for (uint32_t i = 0; i < n; i++) {
		float y = x[i] * inverse;
		y = y >= -127.0f ? y : -127.0f; /* also NaN, which must not be cast */
		y = y <= 127.0f ? y : 127.0f;
		const int v = (int)((y + 12582912.0f) - 12582912.0f); /* nearest even */
		q[i] = (int8_t)v;
		*sum += v;
	}
	return da;
}

static void ref_quantise(const float *x, uint32_t n, int8_t *q, float *d, float *s)
{
	for (uint32_t k = 0; k < n; k += ACT_BLOCK) {
		int sum;
		d[k / ACT_BLOCK] = ref_round(x + k, ACT_BLOCK, q + k, &sum);
		s[k / ACT_BLOCK] = d[k / ACT_BLOCK] * (float)sum;
	}
}

static void ref_quantise_row(const float *x, uint32_t n, int8_t *q, float *d, float *s)
{
	int sum;
	*d = ref_round(x, n, q, &sum);
	*s = (float)sum;
}

/* PACK_I8 with a scale for each activation row. */
static void ref_matmul_row8(const struct weight *w, uint32_t group_first, uint32_t group_count,
			    const struct act *a, uint32_t c_first, uint32_t c_count, float *out,
			    size_t out_stride)
{
	const uint32_t end = (group_first + group_count) * PACK_ROWS;
	for (uint32_t row = group_first * PACK_ROWS; row < end && row < w->rows; row++) {
		const uint8_t *group = w->data + row / PACK_ROWS * w->group_bytes;
		const uint8_t *line = group + 64 + row % PACK_ROWS * 4;
		float d;
		memcpy(&d, group + row % PACK_ROWS * 4, 4);
		for (uint32_t c = c_first; c < c_first + c_count; c++) {
			const int8_t *q = a->q + c * a->q_stride;
			int sum = 0;
			for (uint32_t k = 0; k < w->columns; k++)
				sum += (line[k / 4 * 64 + k % 4] - 128) * q[k];
			out[c * out_stride + row] = d * a->d[c * a->block_stride] * (float)sum;
		}
	}
}

static void ref_round_row(const float *x, uint32_t n, uint16_t *h)
{
	for (uint32_t i = 0; i < n; i++)
		h[i] = bf16_normal(x[i]);
}

/* Two values that lie side by side, widened. */
static void bf16_pair(const void *from, float pair[2])
{
	uint16_t h[2];
	memcpy(h, from, sizeof h);
	pair[0] = bf16_decode(h[0]);
	pair[1] = bf16_decode(h[1]);
}

/* PACK_BF16: 16 rows of a line side by side. */
static void ref_matmul_bf16(const struct weight *w, uint32_t group_first, uint32_t group_count,
			    const struct act *a, uint32_t c_first, uint32_t c_count, float *out,
			    size_t out_stride)
{
	for (uint32_t g = group_first; g < group_first + group_count; g++)
		for (uint32_t c = c_first; c < c_first + c_count; c++) {
			const uint8_t *line = w->data + g * w->group_bytes;
			float acc[PACK_ROWS] = {0}, even[PACK_ROWS] = {0}, odd[PACK_ROWS] = {0};
			for (uint32_t k = 0; k < w->columns; k += 2, line += 4 * PACK_ROWS) {
				float x[2], v[2];
				bf16_pair(a->h + c * a->h_stride + k, x);
				for (uint32_t r = 0; r < PACK_ROWS; r++) {
					bf16_pair(line + 4 * r, v);
					even[r] += v[0] * x[0];
					odd[r] += v[1] * x[1];
				}
				for (uint32_t r = 0; r < PACK_ROWS && k % 32 == 30; r++) {
					acc[r] += even[r] + odd[r];
					even[r] = odd[r] = 0;
				}
			}
			const uint32_t row = g * PACK_ROWS, left = w->rows - row;
			memcpy(out + c * out_stride + row, acc,
			       (left < PACK_ROWS ? left : PACK_ROWS) * sizeof *acc);
		}
}

static void ref_silu(const float *gate, const float *up, uint32_t n, float *out)
{
	for (uint32_t i = 0; i < n; i++)
		out[i] = gate[i] / (1.0f + exp_f32(-gate[i])) * up[i];
}

/* g/2 (1 + tanh u) = g / (1 + exp(-2u)) with u = sqrt(2/pi) (g + 0.044715 g^3). */
static void ref_gelu(const float *gate, const float *up, uint32_t n, float *out)
{
	for (uint32_t i = 0; i < n; i++) {
		const float g = gate[i], u = 0.79788456f * (g + 0.044715f * g * g * g);
		out[i] = g / (1.0f + exp_f32(-2.0f * u)) * up[i];
	}
}

static float ref_max(const float *x, uint32_t n, uint32_t *at)
{
	float lanes[LANES];
	for (int j = 0; j < LANES; j++)
		lanes[j] = -INFINITY;
	uint32_t k = 0;
	for (; k + LANES <= n; k += LANES)
		for (uint32_t j = 0; j < LANES; j++)
			lanes[j] = x[k + j] > lanes[j] ? x[k + j] : lanes[j];
	for (uint32_t j = 0; k + j < n; j++)
		lanes[j] = x[k + j] > lanes[j] ? x[k + j] : lanes[j];
	float largest = lanes[0];
	for (int j = 1; j < LANES; j++)
		largest = lanes[j] > largest ? lanes[j] : largest;
	*at = 0;
	for (uint32_t i = 0; i < n; i++)
		if (x[i] == largest) {
			*at = i;
			break;
		}
	return largest;
}

static float ref_exp_sum(const float *x, uint32_t n, float max)
{
	float lanes[LANES] = {0};
	uint32_t k = 0;
	for (; k + LANES <= n; k += LANES)
		for (uint32_t j = 0; j < LANES; j++)
			lanes[j] += exp_f32(x[k + j] - max);
	for (uint32_t j = 0; k + j < n; j++)
		lanes[j] += exp_f32(x[k + j] - max);
	return lanes_sum(lanes);
}

static void ref_add(float *x, const float *y, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		x[i] += y[i];
}

void leaf_init_ref(struct leaf *leaf)
{
	leaf->name = "scalar";
	for (int pack = 0; pack < PACK_COUNT; pack++)
		leaf->matmul[pack] = ref_matmul;
	leaf->matmul[PACK_I8] = ref_matmul_row8;
	leaf->matmul[PACK_BF16] = ref_matmul_bf16;
	leaf->norm = ref_norm;
	leaf->quantise = ref_quantise;
	leaf->quantise_row = ref_quantise_row;
	leaf->round_row = ref_round_row;
	leaf->gate[GATE_SILU] = ref_silu;
	leaf->gate[GATE_GELU] = ref_gelu;
	leaf->attend = ref_attend;
	leaf->encode_k = ref_encode_k;
	leaf->encode_v = ref_encode_v;
	leaf->max = ref_max;
	leaf->exp_sum = ref_exp_sum;
	leaf->add = ref_add;
}
