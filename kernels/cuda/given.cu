/*
 * Given tokens with weights of their own (plan.prefill): rows of activations times a copy of the
 * weights, both row after row in one precision, INT8, BF16 or e4m3. These are the own kernels; where
 * cuBLASLt is (blas.cu) it makes the sums, and given_finish takes them from there.
 *
 * A warp has 16 weight rows and NT tiles of 8 tokens. Lane 4g+t loads 16 bytes at a time, bytes 16t ..
 * of each 64, of rows g and g+8 and of token g, so the columns of a product are in another order than
 * the fragments' own, the same for both sides. INT8 is summed as integers, which is exact, so it is
 * cuBLASLt's and the CPU's to the bit; e4m3 is widened to bf16. A token is a column of the product, and
 * columns know nothing of each other: NT is only speed.
 */
#include "kernels/cuda/product.h"
#include "kernels/fp8.h"

enum { GIVEN_WARPS = 8, GIVEN_ROWS = 16 * GIVEN_WARPS, FINISH_THREADS = 256 };

template <int KIND> struct sum_of {
	typedef float type;
};
template <> struct sum_of<PREFILL_INT8> {
	typedef int type;
};

/* Four e4m3 as two pairs of bf16, exactly. */
__device__ static inline void widen(unsigned x, unsigned out[2])
{
#pragma unroll
	for (int i = 0; i < 2; i++) {
		const unsigned low = float_bits(fp8_decode((uint8_t)(x >> (16 * i) & 0xff)));
		const unsigned high = float_bits(fp8_decode((uint8_t)(x >> (16 * i + 8) & 0xff)));
		out[i] = low >> 16 | (high & 0xffff0000u);
	}
}

/* c += 16 bytes of two rows of weights times 16 bytes of a token, for each of 4 lanes. */
template <int KIND>
__device__ static inline void given_step(const unsigned u[4], const unsigned v[4], const unsigned x[4],
					 typename sum_of<KIND>::type c[4])
{
	if constexpr (KIND == PREFILL_FP8) {
#pragma unroll
		for (int i = 0; i < 4; i++) {
			unsigned wide[3][2];
			widen(u[i], wide[0]);
			widen(v[i], wide[1]);
			widen(x[i], wide[2]);
			const unsigned a[4] = {wide[0][0], wide[1][0], wide[0][1], wide[1][1]};
			mma_bf16(c, a, wide[2]);
		}
	} else {
#pragma unroll
		for (int i = 0; i < 4; i += 2) {
			const unsigned a[4] = {u[i], v[i], u[i + 1], v[i + 1]};
			if constexpr (KIND == PREFILL_INT8)
				mma_s8_k32(c, a, x + i);
			else
				mma_bf16(c, a, x + i);
		}
	}
}

__device__ static inline void words_load(const uint8_t *from, unsigned word[4])
{
	const uint4 v = load_vector<uint4>(from);
	word[0] = v.x;
	word[1] = v.y;
	word[2] = v.z;
	word[3] = v.w;
}

__device__ static inline void given_store(const struct given_args *a, const struct product *p, uint32_t token,
					  uint32_t row, float sum)
{
	if (a->kind != PREFILL_BF16)
		sum = p->copy.scales[row] * a->scales[token] * sum;
	product_store(p, row_to(a->step, ROWS_GIVEN, token), row, sum);
}

template <int KIND, int NT>
__global__ __launch_bounds__(32 * GIVEN_WARPS) void given_product(const struct given_args a)
{
	const uint32_t count = rows_number(a.step, ROWS_GIVEN), first = blockIdx.y * 8 * NT;
	uint32_t tile = blockIdx.x;
	const struct product *p = &a.product[product_find(a.product, a.product_count, GIVEN_ROWS, &tile)];
	const int lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
	const uint32_t row = tile * GIVEN_ROWS + threadIdx.x / WARP * 16, last = p->w.rows - 1;
	if (first >= count || row > last) /* the same for the whole warp, and no barrier follows */
		return;
	const size_t bytes = (size_t)a.columns * given_element(KIND);
	const uint32_t low = row + g < last ? row + g : last, high = row + g + 8 < last ? row + g + 8 : last;
	const uint8_t *w0 = p->copy.data + low * bytes + 16 * t, *w1 = p->copy.data + high * bytes + 16 * t;
	const uint8_t *x = a.x + (first + g) * bytes + 16 * t;
	typename sum_of<KIND>::type acc[NT][4];
#pragma unroll
	for (int n = 0; n < NT; n++)
		acc[n][0] = acc[n][1] = acc[n][2] = acc[n][3] = 0;
	for (size_t k = 0; k < bytes; k += 64) {
		unsigned u[4], v[4], y[4];
		words_load(w0 + k, u);
		words_load(w1 + k, v);
#pragma unroll
		for (int n = 0; n < NT; n++) {
			words_load(x + n * 8 * bytes + k, y);
			given_step<KIND>(u, v, y, acc[n]);
		}
	}
#pragma unroll
	for (int n = 0; n < NT; n++)
#pragma unroll
		for (int i = 0; i < 4; i++) {
			const uint32_t token = first + n * 8 + 2 * t + (i & 1), at = row + g + 8 * (i >> 1);
			if (token < count && at <= last)
				given_store(&a, p, token, at, (float)acc[n][i]);
		}
}

__global__ __launch_bounds__(FINISH_THREADS) void given_finish(const struct given_args a)
{
	const uint32_t token = blockIdx.y, row = blockIdx.x * FINISH_THREADS + threadIdx.x;
	const struct product *const p = &a.product[0];
	if (token >= rows_number(a.step, ROWS_GIVEN) || row >= p->w.rows)
		return;
	const size_t at = (size_t)token * p->w.rows + row;
	given_store(&a, p, token, row,
		    a.kind == PREFILL_INT8 ? (float)static_cast<const int *>(a.sums)[at]
					   : static_cast<const float *>(a.sums)[at]);
}

template <int KIND> static void given_kind(const struct given_args *a, uint32_t rows, cudaStream_t stream)
{
	const uint32_t tiles = product_tiles(a->product, a->product_count, GIVEN_ROWS);
	const dim3 block(32 * GIVEN_WARPS);
	if (rows <= 8)
		LAUNCH(INSTANCE(given_product<KIND, 1>), dim3(tiles, 1), block, 0, stream, *a);
	else
		LAUNCH(INSTANCE(given_product<KIND, 4>), dim3(tiles, (rows + 31) / 32), block, 0, stream, *a);
}

void given_launch(const struct given_args *a, uint32_t rows, cudaStream_t stream)
{
	switch (a->kind) {
	case PREFILL_INT8: given_kind<PREFILL_INT8>(a, rows, stream); break;
	case PREFILL_BF16: given_kind<PREFILL_BF16>(a, rows, stream); break;
	case PREFILL_FP8: given_kind<PREFILL_FP8>(a, rows, stream); break;
	}
}

void given_finish_launch(const struct given_args *a, uint32_t rows, cudaStream_t stream)
{
	LAUNCH(given_finish, dim3((a->product[0].w.rows + FINISH_THREADS - 1) / FINISH_THREADS, rows),
	       dim3(FINISH_THREADS), 0, stream, *a);
}
