/*
 * AVX-512 with VNNI: packed weights times i8 blocks. Sixteen rows in the lanes of a register, the
 * activation's dword broadcast straight from memory, the eight lines of a block unpacked once for
 * all columns of the tile.
 */
#include "kernels/cpu/fast_tile.h"

#define COLUMN_BLOCK(n) \
	if ((n) < columns) { \
		const uint8_t *q = at + (n) * TILE_RECORD; \
		__m512i x = zero ? _mm512_set1_epi32(starts[n]) : _mm512_setzero_si512(); \
		DOT(x, w0, q); \
		DOT(x, w1, q + 4); \
		DOT(x, w2, q + 8); \
		DOT(x, w3, q + 12); \
		DOT(x, w4, q + 16); \
		DOT(x, w5, q + 20); \
		DOT(x, w6, q + 24); \
		DOT(x, w7, q + 28); \
		acc[n] = _mm512_fmadd_ps(_mm512_mul_ps(d, _mm512_set1_ps(RECORD_D(at, n))), \
					 _mm512_cvtepi32_ps(x), acc[n]); \
		if (minimum) \
			acc[n] = _mm512_fmadd_ps(m, _mm512_set1_ps(RECORD_S(at, n)), acc[n]); \
	}

/* zero: the dot has a start; minimum: blocks have one. Both and `columns` are constants. */
INLINE void q4_block16(const uint8_t *data, const struct tile *t, uint32_t blocks, int first,
		       float *out, size_t out_stride, uint32_t rows, const uint32_t columns,
		       const int zero, const int minimum)
{
	const __mmask16 in = (__mmask16)((1u << rows) - 1);
	const __m512i low = _mm512_set1_epi8(15);
	__m512 acc[16];
	const uint8_t *at = t->q;
	const int32_t *starts = t->starts;

	EACH_COLUMN(COLUMN_START)
	for (uint32_t b = 0; b < blocks; b++, data += 320, at += t->step, starts += 2 * TILE_COLUMNS) {
		tile_ahead(data, TILE_AHEAD, 320);
		const __m512 d = _mm512_cvtph_ps(_mm256_load_si256((const __m256i *)data));
		const __m512 m = _mm512_cvtph_ps(_mm256_load_si256((const __m256i *)data + 1));
		const __m512i x0 = _mm512_load_si512(data + 64), x1 = _mm512_load_si512(data + 128);
		const __m512i x2 = _mm512_load_si512(data + 192), x3 = _mm512_load_si512(data + 256);
		const __m512i w0 = _mm512_and_si512(x0, low), w1 = _mm512_and_si512(x1, low);
		const __m512i w2 = _mm512_and_si512(x2, low), w3 = _mm512_and_si512(x3, low);
		const __m512i w4 = _mm512_and_si512(_mm512_srli_epi16(x0, 4), low);
		const __m512i w5 = _mm512_and_si512(_mm512_srli_epi16(x1, 4), low);
		const __m512i w6 = _mm512_and_si512(_mm512_srli_epi16(x2, 4), low);
		const __m512i w7 = _mm512_and_si512(_mm512_srli_epi16(x3, 4), low);

		EACH_COLUMN(COLUMN_BLOCK)
	}
	EACH_COLUMN(COLUMN_END)
}

INLINE void q8_block16(const uint8_t *data, const struct tile *t, uint32_t blocks, int first,
		       float *out, size_t out_stride, uint32_t rows, const uint32_t columns)
{
	const __mmask16 in = (__mmask16)((1u << rows) - 1);
	const int zero = 1, minimum = 0;
	__m512 acc[16];
	const uint8_t *at = t->q;
	const int32_t *starts = t->starts;

	EACH_COLUMN(COLUMN_START)
	for (uint32_t b = 0; b < blocks; b++, data += 544, at += t->step, starts += 2 * TILE_COLUMNS) {
		tile_ahead(data, TILE_AHEAD, 544);
		const __m512 d = _mm512_cvtph_ps(_mm256_load_si256((const __m256i *)data)), m = d;
		const __m512i w0 = _mm512_loadu_si512(data + 32), w1 = _mm512_loadu_si512(data + 96);
		const __m512i w2 = _mm512_loadu_si512(data + 160), w3 = _mm512_loadu_si512(data + 224);
		const __m512i w4 = _mm512_loadu_si512(data + 288), w5 = _mm512_loadu_si512(data + 352);
		const __m512i w6 = _mm512_loadu_si512(data + 416), w7 = _mm512_loadu_si512(data + 480);

		EACH_COLUMN(COLUMN_BLOCK)
	}
	EACH_COLUMN(COLUMN_END)
}

#define KERNEL(name, base, ...) \
	static void name(const uint8_t *data, const struct tile *t, uint32_t blocks, int first, \
			 float *out, size_t out_stride, uint32_t rows) \
	{ \
		base(data, t, blocks, first, out, out_stride, rows, __VA_ARGS__); \
	}
#define KERNELS(name, base, ...) \
	KERNEL(name##_1, base, 1 __VA_ARGS__) \
	KERNEL(name##_2, base, 2 __VA_ARGS__) \
	KERNEL(name##_4, base, 4 __VA_ARGS__) \
	KERNEL(name##_8, base, 8 __VA_ARGS__) \
	KERNEL(name##_16, base, 16 __VA_ARGS__) \
	static tile_kernel *const name[5] = { name##_1, name##_2, name##_4, name##_8, name##_16 };
#define COMMA ,

KERNELS(q4_0, q4_block16, COMMA 1 COMMA 0)
KERNELS(q4_1, q4_block16, COMMA 0 COMMA 1)
KERNELS(q8_0, q8_block16)

FAST_DOT(fast_q4_avx512)
{
	if (a->kind != ACT_I8_BLOCK)
		fast_dot_avx512(w, group_first, group_count, a, c_first, c_count, out, out_stride);
	else
		tile_matmul(w->zero ? q4_0 : q4_1, w, w->zero, group_first, group_count, a, c_first,
			    c_count, out, out_stride);
}

FAST_DOT(fast_q8_avx512)
{
	if (a->kind != ACT_I8_BLOCK)
		fast_dot_avx512(w, group_first, group_count, a, c_first, c_count, out, out_stride);
	else
		tile_matmul(q8_0, w, 128, group_first, group_count, a, c_first, c_count, out,
			    out_stride);
}

#define WORK_START(n) acc[n] = _mm512_set1_epi32(n);
#define WORK(n) __asm__ volatile("vpdpbusd %1,%1,%0" : "+v"(acc[n]) : "v"(w));

/* Sixteen chains hide the instruction's latency. */
uint64_t fast_work_avx512(uint64_t rounds)
{
	const __m512i w = _mm512_set1_epi8(3);
	__m512i acc[16];

	EACH_COLUMN(WORK_START)
	for (uint64_t i = 0; i < rounds; i++) {
		EACH_COLUMN(WORK)
	}
	return rounds * 16 * 64;
}

#define WORK_F32_START(n) acc[n] = _mm512_set1_ps((float)(n));
#define WORK_F32(n) __asm__ volatile("vfmadd231ps %1,%1,%0" : "+v"(acc[n]) : "v"(x));

uint64_t fast_work_f32_avx512(uint64_t rounds)
{
	const __m512 x = _mm512_set1_ps(0.5f);
	__m512 acc[16];

	EACH_COLUMN(WORK_F32_START)
	for (uint64_t i = 0; i < rounds; i++) {
		EACH_COLUMN(WORK_F32)
	}
	return rounds * 16 * 16;
}

unsigned fast_have_avx512(void)
{
	unsigned have = 0;

	__builtin_cpu_init();
	if (__builtin_cpu_supports("avx512vbmi"))
		have |= FAST_VBMI;
	if (__builtin_cpu_supports("avx512vnni"))
		have |= FAST_VNNI | (fast_amx_ready() ? FAST_AMX : 0);
	if (fast_amx_bf16_ready())
		have |= FAST_AMX_BF16;
	return have;
}

void fast_plain_avx512(struct leaf *leaf)
{
	leaf->place = tile_place;
	leaf->tile_rows = TILE_COLUMNS;
	leaf->place_most = UINT32_MAX;
	leaf->matmul[PACK_Q4] = fast_q4_avx512;
	leaf->matmul[PACK_Q8] = fast_q8_avx512;
	leaf->matmul[PACK_I8] = fast_row8_avx512;
	leaf->matmul[PACK_BF16] = fast_bf16_avx512;
	fast_wide_init_avx512(leaf);
}

void fast_init_avx512(struct leaf *leaf, unsigned have)
{
	/* A CPU with AVX-512 has all of AVX2; what needs an extension that it lacks stays there. */
	leaf_init_avx2(leaf);
	if (!(have & FAST_VNNI))
		fast_plain_avx2(leaf); /* no CPU has the 256-bit form alone beside AVX-512 */
	leaf->name = "avx512";
	leaf->matmul[PACK_F32] = leaf->matmul[PACK_HALF] = fast_dot_avx512;
	leaf->matmul[PACK_BF16] = fast_bf16_avx512;
	fast_rows_init_avx512(leaf);
	if (have & FAST_VBMI)
		fast_attend_init_avx512(leaf);
	if (have & FAST_VBMI && have & FAST_AMX_BF16)
		fast_amx_attend_init(leaf);
	if (have & FAST_VNNI) {
		fast_plain_avx512(leaf);
		if (have & FAST_AMX)
			fast_amx_init(leaf);
	}
	if (have & FAST_AMX_BF16)
		leaf->matmul[PACK_BF16] = fast_amx_bf16;
}

void leaf_init_avx512(struct leaf *leaf)
{
	fast_init_avx512(leaf, fast_have_avx512());
}
