/*
 * The copy in bf16 (PACK_BF16) times rows in bf16, on registers: both are widened, which is exact, and
 * summed as cpu.h has it. The activations of a tile are laid side by side in f32, so that the loop has
 * one address; beyond a chunk of columns the sums wait in `out`.
 */
#include "kernels/cpu/fast_tile.h"
#include "kernels/fp8.h"

#ifdef FAST_AVX512
enum { BF16_COLUMNS = 8 };
#else
enum { BF16_COLUMNS = 2 };
#endif
enum { BF16_CHUNK = 512 };

#define BF16_START(n) \
	if ((n) < columns) \
		even[n] = odd[n] = v16_set(0.0f);
#define BF16_LINE(n) \
	if ((n) < columns) { \
		even[n] = v16_fma(v16_set(x[2 * (n)]), w0, even[n]); \
		odd[n] = v16_fma(v16_set(x[2 * (n) + 1]), w1, odd[n]); \
	}
#define BF16_END(n) \
	if ((n) < columns) \
		v16_store(acc[n], v16_add(v16_load(acc[n]), v16_add(even[n], odd[n])));

/* One group (16 rows at `lines`) times n columns of the tile at x; out: of the first row. */
INLINE void bf16_some(const float *x, const uint8_t *lines, uint32_t n, int first, float *out,
		      size_t out_stride, uint32_t rows, const uint32_t columns)
{
	float acc[TILE_COLUMNS][PACK_ROWS];

	memset(acc, 0, columns * sizeof acc[0]);

	for (uint32_t c = 0; c < columns && !first; c++)
		memcpy(acc[c], out + c * out_stride, rows * sizeof *out);
	for (uint32_t k = 0; k < n; k += 32) {
		struct v16 even[TILE_COLUMNS], odd[TILE_COLUMNS];

		EACH_COLUMN(BF16_START)
		for (uint32_t i = 0; i < 16; i++, lines += 64, x += 2 * columns) {
			const struct n16 pair = n16_load(lines);
			const struct v16 w0 = n16_float(n16_left(pair, 16));
			const struct v16 w1 = n16_float(n16_and(pair, n16_set((int32_t)0xffff0000)));

			EACH_COLUMN(BF16_LINE)
		}
		EACH_COLUMN(BF16_END)
	}
	for (uint32_t c = 0; c < columns; c++)
		memcpy(out + c * out_stride, acc[c], rows * sizeof *out);
}

typedef void bf16_kernel(const float *x, const uint8_t *lines, uint32_t n, int first, float *out,
			 size_t out_stride, uint32_t rows);

#define BF16_KERNEL(columns) \
	static void bf16_##columns(const float *x, const uint8_t *lines, uint32_t n, int first, float *out, \
				   size_t out_stride, uint32_t rows) \
	{ \
		bf16_some(x, lines, n, first, out, out_stride, rows, columns); \
	}
BF16_KERNEL(1)
BF16_KERNEL(2)
#ifdef FAST_AVX512
BF16_KERNEL(4)
BF16_KERNEL(8)
static bf16_kernel *const bf16[] = { bf16_1, bf16_2, bf16_4, bf16_8 };
#else
static bf16_kernel *const bf16[] = { bf16_1, bf16_2 };
#endif

/* [k / 2][column][2] */
static void bf16_fill(float *x, const struct act *a, uint32_t c, uint32_t columns, uint32_t k, uint32_t n)
{
	for (uint32_t i = 0; i < columns; i++) {
		const uint16_t *h = a->h + (c + i) * a->h_stride + k;

		for (uint32_t j = 0; j < n; j++)
			x[(j / 2 * columns + i) * 2 + j % 2] = bf16_decode(h[j]);
	}
}

FAST_DOT(FAST(fast_bf16))
{
	float x[BF16_CHUNK * BF16_COLUMNS];

	for (uint32_t c = c_first, size; c < c_first + c_count; c += 1u << size) {
		for (size = sizeof bf16 / sizeof bf16[0] - 1; (1u << size) > c_first + c_count - c;)
			size--;
		for (uint32_t k = 0; k < w->columns; k += BF16_CHUNK) {
			const uint32_t n = w->columns - k < BF16_CHUNK ? w->columns - k : BF16_CHUNK;

			bf16_fill(x, a, c, 1u << size, k, n);
			for (uint32_t g = group_first; g < group_first + group_count; g++) {
				const uint32_t row = g * PACK_ROWS, left = w->rows - row;

				bf16[size](x, w->data + g * w->group_bytes + (size_t)32 * k, n, k == 0,
					   out + c * out_stride + row, out_stride,
					   left < PACK_ROWS ? left : PACK_ROWS);
			}
		}
	}
}
