/*
 * AVX2: the packs of five bits, six bits, tables and K blocks times i8 blocks, eight rows in the
 * lanes of a register. Without AVX-VNNI vpmaddubsw adds two products with saturation to int16:
 *  nibbles: a whole block is at most 16 * 15 * 127 = 30480 a lane;
 *  five bits: the four products of a line's halves are at most 4 * 31 * 127 = 15748;
 *  six bits: two products are at most 2 * 63 * 127 = 16002;
 *  tables: |value| times the activation with the value's sign, at most 2 * 127 * 127 = 32258.
 */
#include "kernels/cpu/fast_tile.h"

#define DOT(x, w, q) __asm__("%{vex%} vpdpbusd %2,%1,%0" : "+x"(x) : "x"(w), "x"(q))

/* x: the block's dot, or its first half's with y the second's (PACK_K6). */
#define COLUMN_ZERO(n) \
	if ((n) < columns) { \
		const int32_t all = starts[n], begin = starts[TILE_COLUMNS + (n)]; \
		x[n] = small || (pack == PACK_T4 && !vnni) ? _mm256_setzero_si256() : \
		       _mm256_set1_epi32(pack == PACK_K6 ? begin : all); \
		if (pack == PACK_K6) \
			y[n] = _mm256_set1_epi32(all - begin); \
	}
#define COLUMN_LINE(n) \
	if ((n) < columns) { \
		const uint8_t *q = at + (n) * TILE_RECORD + 4 * l; \
		const __m256i ql = BROADCAST(q), qh = BROADCAST(q + 16); \
		if (vnni) { \
			DOT(x[n], wl, ql); \
			if (pack == PACK_K6) \
				DOT(y[n], wh, qh); \
			else \
				DOT(x[n], wh, qh); \
		} else if (small) { \
			x[n] = _mm256_add_epi16(x[n], _mm256_maddubs_epi16(wl, ql)); \
			x[n] = _mm256_add_epi16(x[n], _mm256_maddubs_epi16(wh, qh)); \
			HOLD(x[n]); \
		} else if (pack == PACK_K6) { \
			x[n] = _mm256_add_epi32(x[n], _mm256_madd_epi16(_mm256_maddubs_epi16(wl, ql), one)); \
			y[n] = _mm256_add_epi32(y[n], _mm256_madd_epi16(_mm256_maddubs_epi16(wh, qh), one)); \
			HOLD(x[n]); \
			HOLD(y[n]); \
		} else if (pack == PACK_T4) { \
			const __m256i p = _mm256_maddubs_epi16(_mm256_abs_epi8(wl), _mm256_sign_epi8(ql, wl)); \
			const __m256i r = _mm256_maddubs_epi16(_mm256_abs_epi8(wh), _mm256_sign_epi8(qh, wh)); \
			x[n] = _mm256_add_epi32(x[n], _mm256_madd_epi16(p, one)); \
			x[n] = _mm256_add_epi32(x[n], _mm256_madd_epi16(r, one)); \
			HOLD(x[n]); \
		} else { \
			const __m256i p = _mm256_maddubs_epi16(wl, ql), r = _mm256_maddubs_epi16(wh, qh); \
			x[n] = _mm256_add_epi32(x[n], _mm256_madd_epi16(_mm256_add_epi16(p, r), one)); \
			HOLD(x[n]); \
		} \
	}
#define COLUMN_BLOCK(n) \
	if ((n) < columns) { \
		const __m256 a = _mm256_set1_ps(RECORD_D(at, n)); \
		const __m256i sum = small ? _mm256_madd_epi16(x[n], one) : x[n]; \
		acc[n] = _mm256_fmadd_ps(_mm256_mul_ps(d, a), _mm256_cvtepi32_ps(sum), acc[n]); \
		if (pack == PACK_K6) \
			acc[n] = _mm256_fmadd_ps(_mm256_mul_ps(m, a), _mm256_cvtepi32_ps(y[n]), acc[n]); \
		else if (pack != PACK_T4) \
			acc[n] = _mm256_fmadd_ps(m, _mm256_set1_ps(RECORD_S(at, n)), acc[n]); \
	}

INLINE __m256 f16s(const uint8_t *p)
{
	return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
}

INLINE __m256 bytes(const uint8_t *p)
{
	return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p)));
}

INLINE __m256 signed_bytes(const uint8_t *p)
{
	return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p)));
}

/* Where block b's lines begin, and for rows 8*half and up its scales d and its minima m (PACK_K6: the
   second half's scales). */
INLINE const uint8_t *scales_of(const uint8_t *data, const uint32_t half, uint32_t b,
				const uint32_t pack, __m256 *d, __m256 *m)
{
	if (pack < PACK_K4) {
		data += (size_t)b * pack_block_bytes(pack);
		*d = pack == PACK_T4 ? _mm256_loadu_ps((const float *)(const void *)data + 8 * half) :
				       f16s(data + 16 * half);
		*m = pack == PACK_T4 ? *d : f16s(data + 32 + 16 * half);
		return data + 64;
	}
	data += (size_t)(b / 8) * 8 * pack_block_bytes(pack);
	const uint8_t *const scales = data + K_SCALES + b % 8 * 32 + 8 * half;

	*d = f16s(data + 16 * half);
	if (pack == PACK_K6) {
		*m = _mm256_mul_ps(*d, signed_bytes(scales + 16));
		*d = _mm256_mul_ps(*d, signed_bytes(scales));
		return data + K_LINES + (size_t)(b % 8) * 384;
	}
	*d = _mm256_mul_ps(*d, bytes(scales));
	*m = _mm256_sub_ps(_mm256_set1_ps(-0.0f),
			   _mm256_mul_ps(f16s(data + 32 + 16 * half), bytes(scales + 16)));
	return data + K_LINES + (size_t)(b % 8) * (pack == PACK_K5 ? 320 : 256);
}

INLINE __m256i line_at(const uint8_t *p)
{
	return _mm256_loadu_si256((const __m256i *)p);
}

INLINE void wide_block8(const uint8_t *data, const uint32_t half, const struct tile *t,
			uint32_t blocks, int first, float *out, size_t out_stride, uint32_t rows,
			const uint32_t columns, const uint32_t pack, const int vnni)
{
	const __m256i in = _mm256_cmpgt_epi32(_mm256_set1_epi32((int32_t)rows),
					      _mm256_set_epi32(7, 6, 5, 4, 3, 2, 1, 0));
	const __m256i low = _mm256_set1_epi8(15), one = _mm256_set1_epi16(1);
	const int small = pack == PACK_K4 && !vnni, fifths = pack == PACK_Q5 || pack == PACK_K5;
	/* With VNNI a table's values are made positive; the dot starts as if 128 were the zero. */
	const __m256i table = pack == PACK_T4 ?
		_mm256_broadcastsi128_si256(_mm_xor_si128(_mm_loadu_si128((const __m128i *)t->table),
							  _mm_set1_epi8((char)(vnni ? 0x80 : 0)))) : low;
	__m256 acc[4];
	const uint8_t *at = t->q;
	const int32_t *starts = t->starts;

	EACH_COLUMN(COLUMN_START)
	for (uint32_t b = 0; b < blocks; b++, at += t->step, starts += 2 * TILE_COLUMNS) {
		__m256 d, m;
		const uint8_t *lines = scales_of(data, half, b, pack, &d, &m) + 32 * half;
		__m256i x[4], y[4], fifth = low, upper0 = low, upper1 = low;

		if (half == 0) /* the other half finds them */
			tile_ahead(data, TILE_AHEAD + (size_t)b * pack_block_bytes(pack),
				   pack_block_bytes(pack));
		if (fifths) {
			fifth = line_at(lines);
			lines += 64;
		}
		if (pack == PACK_K6) {
			upper0 = line_at(lines + 256);
			upper1 = line_at(lines + 320);
		}
		EACH_COLUMN(COLUMN_ZERO)
		for (uint32_t l = 0; l < 4; l++) {
			const __m256i w = line_at(lines + 64 * l);
			__m256i wl = _mm256_and_si256(w, low);
			__m256i wh = _mm256_and_si256(_mm256_srli_epi16(w, 4), low);

			if (fifths) {
				/* Bit l and bit 4 + l come to where 16 is. */
				const __m256i mask = _mm256_set1_epi8(16);

				wl = _mm256_or_si256(wl, _mm256_and_si256(_mm256_slli_epi16(fifth, 4), mask));
				wh = _mm256_or_si256(wh, _mm256_and_si256(fifth, mask));
				fifth = _mm256_srli_epi16(fifth, 1);
			}
			if (pack == PACK_K6) {
				const __m256i mask = _mm256_set1_epi8(48);

				wl = _mm256_or_si256(wl, _mm256_and_si256(_mm256_slli_epi16(upper0, 4), mask));
				wh = _mm256_or_si256(wh, _mm256_and_si256(_mm256_slli_epi16(upper1, 4), mask));
				upper0 = _mm256_srli_epi16(upper0, 2);
				upper1 = _mm256_srli_epi16(upper1, 2);
			}
			if (pack == PACK_T4) {
				wl = _mm256_shuffle_epi8(table, wl);
				wh = _mm256_shuffle_epi8(table, wh);
			}
			EACH_COLUMN(COLUMN_LINE)
		}
		EACH_COLUMN(COLUMN_BLOCK)
	}
	EACH_COLUMN(COLUMN_END)
}

#define KERNEL(name, columns, pack, vnni) \
	static void name(const uint8_t *data, const struct tile *t, uint32_t blocks, int first, \
			 float *out, size_t out_stride, uint32_t rows) \
	{ \
		wide_block8(data, 0, t, blocks, first, out, out_stride, rows, columns, pack, vnni); \
		if (rows > 8) \
			wide_block8(data, 1, t, blocks, first, out + 8, out_stride, rows - 8, columns, \
				    pack, vnni); \
	}

#define MATMUL(name, pack, zero, vnni) \
	KERNEL(name##_1, 1, pack, vnni) \
	KERNEL(name##_2, 2, pack, vnni) \
	KERNEL(name##_4, 4, pack, vnni) \
	static tile_kernel *const name[5] = { name##_1, name##_2, name##_4 }; \
	static FAST_DOT(matmul_##name) \
	{ \
		if (a->kind != ACT_I8_BLOCK) \
			fast_dot_avx2(w, group_first, group_count, a, c_first, c_count, out, out_stride); \
		else \
			tile_matmul(name, w, zero, group_first, group_count, a, c_first, c_count, out, \
				    out_stride); \
	}

MATMUL(wide_q5, PACK_Q5, w->zero, 0)
MATMUL(wide_t4, PACK_T4, 0, 0)
MATMUL(wide_k4, PACK_K4, 0, 0)
MATMUL(wide_k5, PACK_K5, 0, 0)
MATMUL(wide_k6, PACK_K6, w->zero, 0)
MATMUL(wide_q5_vnni, PACK_Q5, w->zero, 1)
MATMUL(wide_t4_vnni, PACK_T4, 128, 1)
MATMUL(wide_k4_vnni, PACK_K4, 0, 1)
MATMUL(wide_k5_vnni, PACK_K5, 0, 1)
MATMUL(wide_k6_vnni, PACK_K6, w->zero, 1)

void fast_wide_init_avx2(struct leaf *leaf, int vnni)
{
	leaf->matmul[PACK_Q5] = vnni ? matmul_wide_q5_vnni : matmul_wide_q5;
	leaf->matmul[PACK_T4] = vnni ? matmul_wide_t4_vnni : matmul_wide_t4;
	leaf->matmul[PACK_K4] = vnni ? matmul_wide_k4_vnni : matmul_wide_k4;
	leaf->matmul[PACK_K5] = vnni ? matmul_wide_k5_vnni : matmul_wide_k5;
	leaf->matmul[PACK_K6] = vnni ? matmul_wide_k6_vnni : matmul_wide_k6;
}
