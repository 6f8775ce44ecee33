/*
 * Weights of 8 bits with one scale a row (PACK_I8) times activations with one scale a row. Nothing
 * but integer dots in the loop over the columns: the scales come once, at its end. Sixteen rows in a
 * register with AVX-512 and VNNI, half of them with AVX2. The activations of a tile are laid side by
 * side, four bytes each, so that the loop has one address.
 *
 * Beyond ROW8_CHUNK columns the integer sums wait in `out`, as their bits.
 */
#include <string.h>

#include "kernels/cpu/fast_tile.h"

#ifdef FAST_AVX512
enum { ROW8_LANES = 16, ROW8_COLUMNS = 16 };
#else
enum { ROW8_LANES = 8, ROW8_COLUMNS = 4 };
#endif
enum { ROW8_CHUNK = 2048, ROW8_ZERO = 128 };

/* What a tile of columns and a chunk of the contraction have in common. */
struct row8 {
	int32_t q[ROW8_CHUNK / 4 * ROW8_COLUMNS]; /* [k / 4][column] */
	float d[ROW8_COLUMNS];
	int32_t start[ROW8_COLUMNS]; /* -zero * the sum of the row's q */
	uint32_t lines;
	int first, last;
	size_t out_stride;
};

/* `rows` rows of ROW8_LANES at `lines` and `scale` times the tile; out: of the first row and column. */
typedef void row8_kernel(const struct row8 *t, const uint8_t *lines, const float *scale, float *out,
			 uint32_t rows);

static void row8_fill(struct row8 *t, const struct act *a, uint32_t c, uint32_t columns, uint32_t k,
		      uint32_t n)
{
	for (uint32_t i = 0; i < columns; i++) {
		const int8_t *q = a->q + (c + i) * a->q_stride + k;

		t->d[i] = a->d[(c + i) * a->block_stride];
		t->start[i] = -ROW8_ZERO * (int32_t)a->s[(c + i) * a->block_stride];
		for (uint32_t line = 0; line < n / 4; line++)
			memcpy(&t->q[line * columns + i], q + 4 * line, 4);
	}
	t->lines = n / 4;
}

#ifdef FAST_AVX512
#define ROW8_START(n) \
	if ((n) < columns) \
		acc[n] = t->first ? _mm512_set1_epi32(t->start[n]) : \
				    _mm512_maskz_loadu_epi32(in, out + (n) * t->out_stride);
#define ROW8_LINE(n) \
	if ((n) < columns) \
		DOT(acc[n], w, q + (n));
#define ROW8_END(n) \
	if ((n) < columns) { \
		const __m512 x = _mm512_mul_ps(_mm512_mul_ps(d, _mm512_set1_ps(t->d[n])), \
					       _mm512_cvtepi32_ps(acc[n])); \
		_mm512_mask_storeu_epi32(out + (n) * t->out_stride, in, \
					 t->last ? _mm512_castps_si512(x) : acc[n]); \
	}

INLINE void row8_some(const struct row8 *t, const uint8_t *lines, const float *scale, float *out,
		      uint32_t rows, const uint32_t columns)
{
	const __mmask16 in = (__mmask16)((1u << rows) - 1);
	const __m512 d = _mm512_loadu_ps(scale);
	const int32_t *q = t->q;
	__m512i acc[16];

	EACH_COLUMN(ROW8_START)
	for (uint32_t i = 0; i < t->lines; i++, lines += 64, q += columns) {
		const __m512i w = _mm512_loadu_si512(lines);

		EACH_COLUMN(ROW8_LINE)
	}
	EACH_COLUMN(ROW8_END)
}
#else
#define ROW8_START(n) \
	if ((n) < columns) \
		acc[n] = !t->first ? _mm256_maskload_epi32((const int *)(const void *)(out + (n) * t->out_stride), \
							   in) : \
			 vnni ? _mm256_set1_epi32(t->start[n]) : _mm256_setzero_si256();
#define ROW8_VNNI(n) \
	if ((n) < columns) \
		__asm__("%{vex%} vpdpbusd %2,%1,%0" : "+x"(acc[n]) : "x"(w), "x"(BROADCAST(q + (n))));
/* |weight| times the activation with the weight's sign: two products are at most 2 * 127 * 127. */
#define ROW8_PLAIN(n) \
	if ((n) < columns) { \
		const __m256i x = _mm256_sign_epi8(BROADCAST(q + (n)), w); \
		acc[n] = _mm256_add_epi32(acc[n], _mm256_madd_epi16(_mm256_maddubs_epi16(most, x), one)); \
		HOLD(acc[n]); \
	}
#define ROW8_END(n) \
	if ((n) < columns) { \
		const __m256 x = _mm256_mul_ps(_mm256_mul_ps(d, _mm256_set1_ps(t->d[n])), \
					       _mm256_cvtepi32_ps(acc[n])); \
		_mm256_maskstore_ps(out + (n) * t->out_stride, in, \
				    t->last ? x : _mm256_castsi256_ps(acc[n])); \
	}

INLINE void row8_some(const struct row8 *t, const uint8_t *lines, const float *scale, float *out,
		      uint32_t rows, const uint32_t columns, const int vnni)
{
	const __m256i lane = _mm256_set_epi32(7, 6, 5, 4, 3, 2, 1, 0);
	const __m256i in = _mm256_cmpgt_epi32(_mm256_set1_epi32((int32_t)rows), lane);
	const __m256i one = _mm256_set1_epi16(1), zero = _mm256_set1_epi8((char)ROW8_ZERO);
	const __m256 d = _mm256_loadu_ps(scale);
	const int32_t *q = t->q;
	__m256i acc[4];

	EACH_COLUMN(ROW8_START)
	for (uint32_t i = 0; i < t->lines; i++, lines += 64, q += columns) {
		__m256i w = _mm256_loadu_si256((const __m256i *)lines);

		if (vnni) {
			EACH_COLUMN(ROW8_VNNI)
		} else {
			w = _mm256_xor_si256(w, zero);
			const __m256i most = _mm256_abs_epi8(w);

			EACH_COLUMN(ROW8_PLAIN)
		}
	}
	EACH_COLUMN(ROW8_END)
}
#endif

#define ROW8_KERNEL(name, columns, ...) \
	static void name(const struct row8 *t, const uint8_t *lines, const float *scale, float *out, \
			 uint32_t rows) \
	{ \
		row8_some(t, lines, scale, out, rows, columns __VA_ARGS__); \
	}
#define COMMA ,
#ifdef FAST_AVX512
ROW8_KERNEL(row8_1, 1)
ROW8_KERNEL(row8_2, 2)
ROW8_KERNEL(row8_4, 4)
ROW8_KERNEL(row8_8, 8)
ROW8_KERNEL(row8_16, 16)
static row8_kernel *const row8[5] = { row8_1, row8_2, row8_4, row8_8, row8_16 };
#else
ROW8_KERNEL(row8_1, 1, COMMA 0)
ROW8_KERNEL(row8_2, 2, COMMA 0)
ROW8_KERNEL(row8_4, 4, COMMA 0)
ROW8_KERNEL(row8_vnni_1, 1, COMMA 1)
ROW8_KERNEL(row8_vnni_2, 2, COMMA 1)
ROW8_KERNEL(row8_vnni_4, 4, COMMA 1)
static row8_kernel *const row8[3] = { row8_1, row8_2, row8_4 };
static row8_kernel *const row8_vnni[3] = { row8_vnni_1, row8_vnni_2, row8_vnni_4 };
#endif

/* sizes: log2 of the widest kernel. */
INLINE void row8_matmul(row8_kernel *const *kernels, uint32_t sizes, const struct weight *w,
			uint32_t group_first, uint32_t group_count, const struct act *a,
			uint32_t c_first, uint32_t c_count, float *out, size_t out_stride)
{
	struct row8 t;

	t.out_stride = out_stride;
	for (uint32_t c = c_first, size; c < c_first + c_count; c += 1u << size) {
		for (size = sizes; (1u << size) > c_first + c_count - c;)
			size--;
		for (uint32_t k = 0; k < w->columns; k += ROW8_CHUNK) {
			const uint32_t n = w->columns - k < ROW8_CHUNK ? w->columns - k : ROW8_CHUNK;

			row8_fill(&t, a, c, 1u << size, k, n);
			t.first = k == 0;
			t.last = k + n == w->columns;
			for (uint32_t row = group_first * PACK_ROWS;
			     row < (group_first + group_count) * PACK_ROWS && row < w->rows; row += ROW8_LANES) {
				const uint8_t *group = w->data + row / PACK_ROWS * w->group_bytes;
				const uint32_t within = row % PACK_ROWS, left = w->rows - row;

				kernels[size](&t, group + 64 + (size_t)16 * k + (size_t)4 * within,
					      (const float *)(const void *)group + within,
					      out + c * out_stride + row, left < ROW8_LANES ? left : ROW8_LANES);
			}
		}
	}
}

FAST_DOT(FAST(fast_row8))
{
#ifdef FAST_AVX512
	row8_matmul(row8, 4, w, group_first, group_count, a, c_first, c_count, out, out_stride);
#else
	row8_matmul(row8, 2, w, group_first, group_count, a, c_first, c_count, out, out_stride);
#endif
}

#ifndef FAST_AVX512
FAST_DOT(fast_row8_vnni_avx2)
{
	row8_matmul(row8_vnni, 2, w, group_first, group_count, a, c_first, c_count, out, out_stride);
}
#endif
