/*
 * Weights times activations.
 *
 * matmul_i8: quantised weights in their exact group form, activations in 8 bits with a scale for
 * each 32. The products of a block of 32 are summed as integers by mma.m16n8k32 (Q6_K: two halves
 * by m16n8k16), which is exact; then acc = fma(d * da, dot, acc), and with a minimum acc = fma(m, s,
 * acc). A block of 8 warps has 16 rows; warp w sums the pairs of blocks w, w + 8, ... in ascending
 * order, and the eight sums are added in the order of the warps. So a result does not depend on how
 * many tokens there are, or on NT, which only says how many tiles of 8 tokens a thread block takes.
 *
 * matmul_float: any weights, activations in f32. A warp has one row; lane l sums columns l, l + 32,
 * ... with fma, and the lanes are added in a tree.
 */
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/pack.h"
#include "kernels/cuda/product.h"

enum { FLOAT_TOKENS = 8 };

__device__ static inline float half_low(unsigned pair)
{
	return f16_decode((uint16_t)(pair & 0xffff));
}
__device__ static inline float half_high(unsigned pair)
{
	return f16_decode((uint16_t)(pair >> 16));
}

/* Four unsigned bytes below 128 minus ZERO, as four signed bytes: the upper bit keeps the borrow
   within its byte. */
template <int ZERO> __device__ static inline unsigned bytes_centre(unsigned x)
{
	return ZERO == 0 ? x : ((x | 0x80808080u) - ZERO * 0x01010101u) ^ 0x80808080u;
}

/* The A fragments of a record's two blocks: a[block][high + 2 * half]. */
template <int F>
__device__ static inline void record_values(const uint8_t *record, int lane, unsigned a[2][4])
{
	if (form_bits(F) == 8) {
		for (int block = 0; block < 2; block++) {
			const uint4 v = load_vector<uint4>(record + block * 512 + lane * 16);
			a[block][0] = v.x;
			a[block][1] = v.y;
			a[block][2] = v.z;
			a[block][3] = v.w;
		}
		return;
	}
	const uint4 v = load_vector<uint4>(record + lane * 16);
	const unsigned word[4] = {v.x, v.y, v.z, v.w};
	unsigned upper[2] = {0, 0};
	if (form_bits(F) == 5)
		upper[0] = load_vector<unsigned>(record + 512 + lane * 4);
	if (form_bits(F) == 6) {
		upper[0] = load_vector<unsigned>(record + 512 + lane * 4);
		upper[1] = load_vector<unsigned>(record + 640 + lane * 4);
	}
#pragma unroll
	for (int block = 0; block < 2; block++)
#pragma unroll
		for (int i = 0; i < 4; i++) {
			const int high = i & 1, half = i >> 1;
			unsigned x = word[2 * block + high] >> (4 * half) & 0x0f0f0f0fu;
			if (form_bits(F) == 5)
				x |= (upper[0] >> (4 * block + 2 * high + half) & 0x01010101u) << 4;
			if (form_bits(F) == 6)
				x |= (upper[block] >> (2 * (2 * high + half)) & 0x03030303u) << 4;
			a[block][i] = bytes_centre<form_zero(F)>(x);
		}
}

/* Of rows g and g+8: d[block][high][half] (the halves differ for Q6_K only) and m[block][high]. */
template <int F>
__device__ static inline void record_scales(const uint8_t *scale, const uint8_t *super, int g,
					    float d[2][2][2], float m[2][2])
{
#pragma unroll
	for (int block = 0; block < 2; block++) {
		const int pairs = block * 8 + g;
		if (F == FORM_8F) {
			const uint2 v = load_vector<uint2>(scale + 8 * pairs);
			d[block][0][0] = float_from_bits(v.x);
			d[block][1][0] = float_from_bits(v.y);
		} else if (F == FORM_4M || F == FORM_5M) {
			const uint2 v = load_vector<uint2>(scale + 8 * pairs);
			d[block][0][0] = half_low(v.x);
			d[block][1][0] = half_high(v.x);
			m[block][0] = half_low(v.y);
			m[block][1] = half_high(v.y);
		} else if (F == FORM_4K || F == FORM_5K) {
			const unsigned v = load_vector<unsigned>(scale + 4 * pairs);
			const uint2 s = load_vector<uint2>(super + 8 * g);
			d[block][0][0] = half_low(s.x) * (float)(v & 0xff);
			d[block][1][0] = half_high(s.x) * (float)(v >> 8 & 0xff);
			m[block][0] = -(half_low(s.y) * (float)(v >> 16 & 0xff));
			m[block][1] = -(half_high(s.y) * (float)(v >> 24));
		} else if (F == FORM_6K) {
			const unsigned v = load_vector<unsigned>(scale + 4 * pairs);
			const unsigned s = load_vector<unsigned>(super + 4 * g);
			d[block][0][0] = half_low(s) * (float)(int8_t)(v & 0xff);
			d[block][1][0] = half_high(s) * (float)(int8_t)(v >> 8 & 0xff);
			d[block][0][1] = half_low(s) * (float)(int8_t)(v >> 16 & 0xff);
			d[block][1][1] = half_high(s) * (float)(int8_t)(v >> 24);
		} else {
			const unsigned v = load_vector<unsigned>(scale + 4 * pairs);
			d[block][0][0] = half_low(v);
			d[block][1][0] = half_high(v);
		}
	}
}

/* acc of rows g, g+8 and tokens 2t, 2t+1 after one block of 32. */
template <int F>
__device__ static inline void block_add(const unsigned a[4], const unsigned b[2], const float d[2][2],
					const float m[2], const float da[2], const float s[2], float acc[4])
{
	if (F == FORM_6K) {
#pragma unroll
		for (int half = 0; half < 2; half++) {
			int c[4] = {0, 0, 0, 0};
			mma_s8_k16(c, a + 2 * half, b[half]);
#pragma unroll
			for (int i = 0; i < 4; i++)
				acc[i] = fmaf(d[i >> 1][half] * da[i & 1], (float)c[i], acc[i]);
		}
		return;
	}
	int c[4] = {0, 0, 0, 0};
	mma_s8_k32(c, a, b);
#pragma unroll
	for (int i = 0; i < 4; i++) {
		acc[i] = fmaf(d[i >> 1][0] * da[i & 1], (float)c[i], acc[i]);
		if (form_has_minimum(F))
			acc[i] = fmaf(m[i >> 1], s[i & 1], acc[i]);
	}
}

template <int F, int NT>
__global__ __launch_bounds__(32 * MATMUL_WARPS) void matmul_i8(const struct matmul_args a)
{
	SHARED(float, sums, MATMUL_WARPS * NT * 8 * 16);
	const uint32_t count = rows_number(a.step, a.rows), first = blockIdx.y * 8 * NT;
	if (first >= count)
		return;
	uint32_t tile = blockIdx.x;
	const struct product *p = &a.product[product_find(a.product, a.product_count, RECORD_ROWS, &tile)];
	const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, g = lane / 4, t = lane % 4;
	const uint32_t records = record_columns(p->w.columns), supers = (p->w.columns + 255) / 256;
	const uint8_t *record = p->w.data + (size_t)tile * records * form_record_bytes(F);
	const uint8_t *super = p->w.supers + (size_t)tile * supers * form_super_bytes(F);
	const size_t blocks = a.act.stride / 32;
	float acc[NT][4];
#pragma unroll
	for (int n = 0; n < NT; n++)
		acc[n][0] = acc[n][1] = acc[n][2] = acc[n][3] = 0;
#pragma unroll 2
	for (uint32_t r = warp; r < records; r += MATMUL_WARPS) {
		unsigned values[2][4];
		float d[2][2][2], m[2][2];
		const uint8_t *here = record + (size_t)r * form_record_bytes(F);
		record_values<F>(here, lane, values);
		record_scales<F>(here + form_value_bytes(F), super + (size_t)(r / 4) * form_super_bytes(F), g,
				 d, m);
#pragma unroll
		for (int n = 0; n < NT; n++) {
			const uint32_t token = first + n * 8;
			const uint4 q = load_vector<uint4>(a.act.q + (size_t)(token + g) * a.act.stride + r * 64 +
							   t * 16);
			const unsigned b[2][2] = {{q.x, q.y}, {q.z, q.w}};
			const size_t at = (token + 2 * t) * blocks + 2 * r;
			const uint2 d0 = load_vector<uint2>(a.act.d + at);
			const uint2 d1 = load_vector<uint2>(a.act.d + at + blocks);
			const float da[2][2] = {{float_from_bits(d0.x), float_from_bits(d1.x)},
						{float_from_bits(d0.y), float_from_bits(d1.y)}};
			float s[2][2] = {{0, 0}, {0, 0}};
			if (form_has_minimum(F)) {
				const uint2 s0 = load_vector<uint2>(a.act.s + at);
				const uint2 s1 = load_vector<uint2>(a.act.s + at + blocks);
				s[0][0] = float_from_bits(s0.x);
				s[0][1] = float_from_bits(s1.x);
				s[1][0] = float_from_bits(s0.y);
				s[1][1] = float_from_bits(s1.y);
			}
#pragma unroll
			for (int block = 0; block < 2; block++)
				block_add<F>(values[block], b[block], d[block], m[block], da[block], s[block],
					     acc[n]);
		}
	}
#pragma unroll
	for (int n = 0; n < NT; n++)
#pragma unroll
		for (int i = 0; i < 4; i++)
			sums[((warp * NT + n) * 8 + 2 * t + (i & 1)) * 16 + g + 8 * (i >> 1)] = acc[n][i];
	__syncthreads();
	for (uint32_t e = threadIdx.x; e < NT * 8 * 16; e += 32 * MATMUL_WARPS) {
		const uint32_t token = first + e / 16, row = tile * RECORD_ROWS + e % 16;
		if (token >= count || row >= p->w.rows)
			continue;
		float sum = sums[e];
		for (int w = 1; w < MATMUL_WARPS; w++)
			sum += sums[w * NT * 128 + e];
		product_store(p, row_to(a.step, a.rows, token), row, sum);
	}
}

__global__ __launch_bounds__(32 * MATMUL_WARPS) void matmul_float(const struct matmul_args a)
{
	const uint32_t count = rows_number(a.step, a.rows), first = blockIdx.y * FLOAT_TOKENS;
	if (first >= count)
		return;
	uint32_t tile = blockIdx.x;
	const struct product *p = &a.product[product_find(a.product, a.product_count, MATMUL_WARPS, &tile)];
	const int lane = threadIdx.x % WARP;
	const uint32_t row = tile * MATMUL_WARPS + threadIdx.x / WARP;
	if (row >= p->w.rows) /* the same for the whole warp, and no barrier follows */
		return;
	float acc[FLOAT_TOKENS];
#pragma unroll
	for (int n = 0; n < FLOAT_TOKENS; n++)
		acc[n] = 0;
	for (uint32_t k = lane; k < p->w.columns; k += WARP) {
		const float w = matrix_value(&p->w, row, k);
#pragma unroll
		for (int n = 0; n < FLOAT_TOKENS; n++)
			acc[n] = fmaf(w, a.act.x[(size_t)(first + n) * a.act.stride + k], acc[n]);
	}
#pragma unroll
	for (int n = 0; n < FLOAT_TOKENS; n++) {
		for (int mask = 16; mask > 0; mask /= 2)
			acc[n] += warp_xor(acc[n], mask);
		if (lane == 0 && first + n < count)
			product_store(p, row_to(a.step, a.rows, first + n), row, acc[n]);
	}
}

template <int F> static void matmul_form(const struct matmul_args *a, uint32_t tiles, uint32_t rows,
					 cudaStream_t stream)
{
	const dim3 block(32 * MATMUL_WARPS);
	if (rows <= 8)
		LAUNCH(INSTANCE(matmul_i8<F, 1>), dim3(tiles, 1), block, 0, stream, *a);
	else if (rows <= 16)
		LAUNCH(INSTANCE(matmul_i8<F, 2>), dim3(tiles, 1), block, 0, stream, *a);
	else
		LAUNCH(INSTANCE(matmul_i8<F, 4>), dim3(tiles, (rows + 31) / 32), block, 0, stream, *a);
}

void matmul_launch(const struct matmul_args *a, uint32_t act, uint32_t rows, cudaStream_t stream)
{
	const uint32_t form = a->product[0].w.form;
	const bool integer = act == ACT_I8_BLOCK && !form_is_float((int)form);
	const uint32_t size = integer ? (uint32_t)RECORD_ROWS : (uint32_t)MATMUL_WARPS;
	const uint32_t tiles = product_tiles(a->product, a->product_count, size);
	if (!integer) {
		const uint32_t y = (rows + FLOAT_TOKENS - 1) / FLOAT_TOKENS;
		LAUNCH(matmul_float, dim3(tiles, y), dim3(32 * MATMUL_WARPS), 0, stream, *a);
		return;
	}
	switch (form) {
	case FORM_4: matmul_form<FORM_4>(a, tiles, rows, stream); break;
	case FORM_4M: matmul_form<FORM_4M>(a, tiles, rows, stream); break;
	case FORM_5: matmul_form<FORM_5>(a, tiles, rows, stream); break;
	case FORM_5M: matmul_form<FORM_5M>(a, tiles, rows, stream); break;
	case FORM_8: matmul_form<FORM_8>(a, tiles, rows, stream); break;
	case FORM_8F: matmul_form<FORM_8F>(a, tiles, rows, stream); break;
	case FORM_4K: matmul_form<FORM_4K>(a, tiles, rows, stream); break;
	case FORM_5K: matmul_form<FORM_5K>(a, tiles, rows, stream); break;
	case FORM_6K: matmul_form<FORM_6K>(a, tiles, rows, stream); break;
	}
}

/* One warp a row. e4m3 and 8 bits: the row over its largest / 448 or / 127, which is kept beside. */
__global__ __launch_bounds__(256) void dequantise(const struct dequantise_args a)
{
	const uint32_t row = blockIdx.x * 8 + threadIdx.x / WARP;
	const int lane = threadIdx.x % WARP;
	if (row >= a.row_count)
		return;
	const size_t at = (size_t)row * a.w.columns;
	float scale = 1, inverse = 1;
	if (a.to == DEQUANTISE_FP8 || a.to == DEQUANTISE_I8) {
		float largest = 0;
		for (uint32_t k = lane; k < a.w.columns; k += WARP)
			largest = fmaxf(largest, fabsf(matrix_value(&a.w, a.row_first + row, k)));
		for (int mask = 16; mask > 0; mask /= 2)
			largest = fmaxf(largest, warp_xor(largest, mask));
		scale = row_scale(a.to == DEQUANTISE_I8 ? PREFILL_INT8 : PREFILL_FP8, largest, &inverse);
		if (lane == 0)
			a.scales[row] = scale;
	}
	for (uint32_t k = lane; k < a.w.columns; k += WARP) {
		const float x = matrix_value(&a.w, a.row_first + row, k);
		if (a.to == DEQUANTISE_F32)
			static_cast<float *>(a.out)[at + k] = x;
		else if (a.to == DEQUANTISE_BF16)
			static_cast<uint16_t *>(a.out)[at + k] = bf16_encode(x);
		else if (a.to == DEQUANTISE_I8)
			static_cast<int8_t *>(a.out)[at + k] = row_integer(x * inverse);
		else
			static_cast<uint8_t *>(a.out)[at + k] = fp8_encode(x / scale);
	}
}

void dequantise_launch(const struct dequantise_args *a, cudaStream_t stream)
{
	LAUNCH(dequantise, dim3((a->row_count + 7) / 8), dim3(256), 0, stream, *a);
}
