/*
 * AVX2: packed weights times i8 blocks, eight rows (half a group) in the lanes of a register.
 * vpmaddubsw adds two products of an unsigned and a signed byte with saturation to int16:
 *  Q4: nibbles; 8 x 2 products of at most 15 * 128 are 30720, so a whole block is summed in int16.
 *  Q8: |weight| times the activation with the weight's sign; two products are at most
 *      2 * 128 * 127, as activations are -127 .. 127.
 * A weight's lines are outer and the columns inner: sixteen registers hold no more.
 */
#include <cpuid.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/fast_tile.h"

INLINE __m256i lanes_below(uint32_t rows)
{
	return _mm256_cmpgt_epi32(_mm256_set1_epi32((int32_t)rows),
				  _mm256_set_epi32(7, 6, 5, 4, 3, 2, 1, 0));
}

#define COLUMN_SCALE(n, x) \
	acc[n] = _mm256_fmadd_ps(_mm256_mul_ps(d, _mm256_set1_ps(RECORD_D(at, n))), \
				 _mm256_cvtepi32_ps(x), acc[n]);

#define COLUMN_Q4_ZERO(n) \
	if ((n) < columns) \
		x[n] = _mm256_setzero_si256();
#define COLUMN_Q4_LINE(n) \
	if ((n) < columns) { \
		const uint8_t *q = at + (n) * TILE_RECORD + 4 * LINE; \
		x[n] = _mm256_add_epi16(x[n], _mm256_maddubs_epi16(wl, BROADCAST(q))); \
		x[n] = _mm256_add_epi16(x[n], _mm256_maddubs_epi16(wh, BROADCAST(q + 16))); \
		HOLD(x[n]); \
	}
#define COLUMN_Q4_BLOCK(n) \
	if ((n) < columns) { \
		__m256i y = _mm256_madd_epi16(x[n], one); \
		if (zero) \
			y = _mm256_add_epi32(y, _mm256_set1_epi32(starts[n])); \
		COLUMN_SCALE(n, y) \
		if (minimum) \
			acc[n] = _mm256_fmadd_ps(m, _mm256_set1_ps(RECORD_S(at, n)), acc[n]); \
	}
#define Q4_LINE \
	{ \
		const __m256i w = _mm256_load_si256((const __m256i *)(data + 64 + 64 * LINE)); \
		const __m256i wl = _mm256_and_si256(w, low); \
		const __m256i wh = _mm256_and_si256(_mm256_srli_epi16(w, 4), low); \
		EACH_COLUMN(COLUMN_Q4_LINE) \
	}

/* data: of the half group, so that line l begins at 64 + 64*l and the scales at -16*half. */
INLINE void q4_block8(const uint8_t *data, const uint8_t *scales, const struct tile *t,
		      uint32_t blocks, int first, float *out, size_t out_stride, uint32_t rows,
		      const uint32_t columns, const int zero, const int minimum)
{
	const __m256i in = lanes_below(rows), low = _mm256_set1_epi8(15), one = _mm256_set1_epi16(1);
	__m256 acc[4];
	const uint8_t *at = t->q;
	const int32_t *starts = t->starts;

	EACH_COLUMN(COLUMN_START)
	for (uint32_t b = 0; b < blocks;
	     b++, data += 320, scales += 320, at += t->step, starts += 2 * TILE_COLUMNS) {
		const __m256 d = _mm256_cvtph_ps(_mm_load_si128((const __m128i *)scales));
		const __m256 m = _mm256_cvtph_ps(_mm_load_si128((const __m128i *)scales + 2));
		__m256i x[4];

		tile_ahead(scales, TILE_AHEAD, 320);
		EACH_COLUMN(COLUMN_Q4_ZERO)
#define LINE 0
		Q4_LINE
#undef LINE
#define LINE 1
		Q4_LINE
#undef LINE
#define LINE 2
		Q4_LINE
#undef LINE
#define LINE 3
		Q4_LINE
#undef LINE
		EACH_COLUMN(COLUMN_Q4_BLOCK)
	}
	EACH_COLUMN(COLUMN_END)
}

#define COLUMN_Q8_START(n) \
	if ((n) < columns) \
		x[n] = _mm256_setzero_si256();
#define COLUMN_Q8_LINE(n) \
	if ((n) < columns) { \
		const __m256i q = BROADCAST(at + (n) * TILE_RECORD + 4 * l); \
		const __m256i p = _mm256_maddubs_epi16(size, _mm256_sign_epi8(q, w)); \
		x[n] = _mm256_add_epi32(x[n], _mm256_madd_epi16(p, one)); \
		HOLD(x[n]); \
	}
#define COLUMN_Q8_BLOCK(n) \
	if ((n) < columns) \
		COLUMN_SCALE(n, x[n])

INLINE void q8_block8(const uint8_t *data, const uint8_t *scales, const struct tile *t,
		      uint32_t blocks, int first, float *out, size_t out_stride, uint32_t rows,
		      const uint32_t columns)
{
	const __m256i in = lanes_below(rows), one = _mm256_set1_epi16(1);
	const __m256i flip = _mm256_set1_epi8((char)0x80);
	__m256 acc[4];
	const uint8_t *at = t->q;
	const int32_t *starts = t->starts;

	EACH_COLUMN(COLUMN_START)
	for (uint32_t b = 0; b < blocks;
	     b++, data += 544, scales += 544, at += t->step, starts += 2 * TILE_COLUMNS) {
		const __m256 d = _mm256_cvtph_ps(_mm_load_si128((const __m128i *)scales));
		__m256i x[4];

		tile_ahead(scales, TILE_AHEAD, 544);
		EACH_COLUMN(COLUMN_Q8_START)
		for (uint32_t l = 0; l < 8; l++) {
			const __m256i u = _mm256_load_si256((const __m256i *)(data + 32 + 64 * l));
			const __m256i w = _mm256_xor_si256(u, flip), size = _mm256_abs_epi8(w);

			EACH_COLUMN(COLUMN_Q8_LINE)
		}
		EACH_COLUMN(COLUMN_Q8_BLOCK)
	}
	EACH_COLUMN(COLUMN_END)
}

/* AVX-VNNI's dot in 256 bits, on CPUs that have it: the block form of fast_avx512.c. Assembly, so
   that the file needs no such target. */
#define DOT(x, w, p) \
	__asm__("%{vex%} vpdpbusd %2,%1,%0" : "+x"(x) : "x"(w), "x"(BROADCAST(p)))
#define COLUMN_DOT_START(n) \
	if ((n) < columns) \
		x[n] = zero ? _mm256_set1_epi32(starts[n]) : _mm256_setzero_si256();
#define COLUMN_DOT_Q4(n) \
	if ((n) < columns) { \
		const uint8_t *q = at + (n) * TILE_RECORD + 4 * l; \
		DOT(x[n], wl, q); \
		DOT(x[n], wh, q + 16); \
	}
#define COLUMN_DOT_Q8(n) \
	if ((n) < columns) \
		DOT(x[n], w, at + (n) * TILE_RECORD + 4 * l);
#define COLUMN_DOT_END(n) \
	if ((n) < columns) { \
		COLUMN_SCALE(n, x[n]) \
		if (minimum) \
			acc[n] = _mm256_fmadd_ps(m, _mm256_set1_ps(RECORD_S(at, n)), acc[n]); \
	}

INLINE void q4_dot8(const uint8_t *data, const uint8_t *scales, const struct tile *t,
		    uint32_t blocks, int first, float *out, size_t out_stride, uint32_t rows,
		    const uint32_t columns, const int zero, const int minimum)
{
	const __m256i in = lanes_below(rows), low = _mm256_set1_epi8(15);
	__m256 acc[4];
	const uint8_t *at = t->q;
	const int32_t *starts = t->starts;

	EACH_COLUMN(COLUMN_START)
	for (uint32_t b = 0; b < blocks;
	     b++, data += 320, scales += 320, at += t->step, starts += 2 * TILE_COLUMNS) {
		const __m256 d = _mm256_cvtph_ps(_mm_load_si128((const __m128i *)scales));
		const __m256 m = _mm256_cvtph_ps(_mm_load_si128((const __m128i *)scales + 2));
		__m256i x[4];

		tile_ahead(scales, TILE_AHEAD, 320);
		EACH_COLUMN(COLUMN_DOT_START)
		for (uint32_t l = 0; l < 4; l++) {
			const __m256i w = _mm256_load_si256((const __m256i *)(data + 64 + 64 * l));
			const __m256i wl = _mm256_and_si256(w, low);
			const __m256i wh = _mm256_and_si256(_mm256_srli_epi16(w, 4), low);

			EACH_COLUMN(COLUMN_DOT_Q4)
		}
		EACH_COLUMN(COLUMN_DOT_END)
	}
	EACH_COLUMN(COLUMN_END)
}

INLINE void q8_dot8(const uint8_t *data, const uint8_t *scales, const struct tile *t,
		    uint32_t blocks, int first, float *out, size_t out_stride, uint32_t rows,
		    const uint32_t columns)
{
	const __m256i in = lanes_below(rows);
	const int zero = 1, minimum = 0;
	__m256 acc[4];
	const uint8_t *at = t->q;
	const int32_t *starts = t->starts;

	EACH_COLUMN(COLUMN_START)
	for (uint32_t b = 0; b < blocks;
	     b++, data += 544, scales += 544, at += t->step, starts += 2 * TILE_COLUMNS) {
		const __m256 d = _mm256_cvtph_ps(_mm_load_si128((const __m128i *)scales)), m = d;
		__m256i x[4];

		tile_ahead(scales, TILE_AHEAD, 544);
		EACH_COLUMN(COLUMN_DOT_START)
		for (uint32_t l = 0; l < 8; l++) {
			const __m256i w = _mm256_load_si256((const __m256i *)(data + 32 + 64 * l));

			EACH_COLUMN(COLUMN_DOT_Q8)
		}
		EACH_COLUMN(COLUMN_DOT_END)
	}
	EACH_COLUMN(COLUMN_END)
}

#define KERNEL(name, base, ...) \
	static void name(const uint8_t *data, const struct tile *t, uint32_t blocks, int first, \
			 float *out, size_t out_stride, uint32_t rows) \
	{ \
		base(data, data, t, blocks, first, out, out_stride, rows, __VA_ARGS__); \
		if (rows > 8) \
			base(data + 32, data + 16, t, blocks, first, out + 8, out_stride, rows - 8, \
			     __VA_ARGS__); \
	}
#define KERNELS(name, base, ...) \
	KERNEL(name##_1, base, 1 __VA_ARGS__) \
	KERNEL(name##_2, base, 2 __VA_ARGS__) \
	KERNEL(name##_4, base, 4 __VA_ARGS__) \
	static tile_kernel *const name[5] = { name##_1, name##_2, name##_4 };
#define COMMA ,

KERNELS(q4_0, q4_block8, COMMA 1 COMMA 0)
KERNELS(q4_1, q4_block8, COMMA 0 COMMA 1)
KERNELS(q8_0, q8_block8)
KERNELS(q4_0_vnni, q4_dot8, COMMA 1 COMMA 0)
KERNELS(q4_1_vnni, q4_dot8, COMMA 0 COMMA 1)
KERNELS(q8_0_vnni, q8_dot8)

/* One slot: `kernels` for the integer form, f32 rows as in fast_dot.c. */
#define MATMUL(name, kernels, zero) \
	static void name(const struct weight *w, uint32_t group_first, uint32_t group_count, \
			 const struct act *a, uint32_t c_first, uint32_t c_count, float *out, \
			 size_t out_stride) \
	{ \
		if (a->kind != ACT_I8_BLOCK) \
			fast_dot_avx2(w, group_first, group_count, a, c_first, c_count, out, \
				      out_stride); \
		else \
			tile_matmul(kernels, w, zero, group_first, group_count, a, \
				    c_first, c_count, out, out_stride); \
	}

MATMUL(matmul_q4, w->zero ? q4_0 : q4_1, w->zero)
MATMUL(matmul_q8, q8_0, 128)
MATMUL(matmul_q4_vnni, w->zero ? q4_0_vnni : q4_1_vnni, w->zero)
MATMUL(matmul_q8_vnni, q8_0_vnni, 128)

int fast_vnni_avx2(void)
{
	const char *const told = getenv("HOLDFAST_AVX_VNNI");
	uint32_t a = 0, b, c, d;

	if (told && strcmp(told, "off") == 0)
		return 0;
	/* AVX-VNNI: leaf 7, subleaf 1 of CPUID, bit 4 of EAX. Its state is AVX's own. */
	return __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a >> 4 & 1);
}

#define EACH_CHAIN(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9)
#define WORK_START(n) acc[n] = _mm256_set1_epi32(n);
#define WORK_DOT(n) __asm__ volatile("%{vex%} vpdpbusd %1,%1,%0" : "+x"(acc[n]) : "x"(w));
/* As the nibbles' kernel has it: a product of bytes and an addition of 16 bits. */
#define WORK_PLAIN(n) \
	__asm__ volatile("vpmaddubsw %1,%1,%%ymm15\n\tvpaddw %%ymm15,%0,%0" : "+x"(acc[n]) : "x"(w) : "xmm15");

uint64_t fast_work_avx2(uint64_t rounds)
{
	const __m256i w = _mm256_set1_epi8(3);
	const int vnni = fast_vnni_avx2();
	__m256i acc[10];

	EACH_CHAIN(WORK_START)
	if (vnni) {
		for (uint64_t i = 0; i < rounds; i++) {
			EACH_CHAIN(WORK_DOT)
		}
	} else {
		for (uint64_t i = 0; i < rounds; i++) {
			EACH_CHAIN(WORK_PLAIN)
		}
	}
	return rounds * 10 * 32;
}

#define WORK_F32_START(n) sum[n] = _mm256_set1_ps((float)(n));
#define WORK_F32(n) __asm__ volatile("vfmadd231ps %1,%1,%0" : "+x"(sum[n]) : "x"(x));

uint64_t fast_work_f32_avx2(uint64_t rounds)
{
	const __m256 x = _mm256_set1_ps(0.5f);
	__m256 sum[10];

	EACH_CHAIN(WORK_F32_START)
	for (uint64_t i = 0; i < rounds; i++) {
		EACH_CHAIN(WORK_F32)
	}
	return rounds * 10 * 8;
}

void fast_plain_avx2(struct leaf *leaf)
{
	leaf->place = tile_place;
	leaf->tile_rows = 4;
	leaf->place_most = UINT32_MAX;
	leaf->matmul[PACK_Q4] = matmul_q4;
	leaf->matmul[PACK_Q8] = matmul_q8;
	leaf->matmul[PACK_I8] = fast_row8_avx2;
	leaf->matmul[PACK_BF16] = fast_bf16_avx2;
	fast_wide_init_avx2(leaf, 0);
}

void leaf_init_avx2(struct leaf *leaf)
{
	leaf->name = "avx2";
	fast_plain_avx2(leaf);
	if (fast_vnni_avx2()) {
		leaf->matmul[PACK_Q4] = matmul_q4_vnni;
		leaf->matmul[PACK_Q8] = matmul_q8_vnni;
		leaf->matmul[PACK_I8] = fast_row8_vnni_avx2;
		fast_wide_init_avx2(leaf, 1);
	}
	leaf->matmul[PACK_F32] = leaf->matmul[PACK_HALF] = fast_dot_avx2;
	fast_rows_init_avx2(leaf);
	fast_attend_init_avx2(leaf);
}
