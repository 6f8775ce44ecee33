/*
 * AMX: packed weights times i8 blocks, when the activation rows are many. A tile instruction makes
 * the integer dots of 16 weight rows and up to 16 activation rows over a block in one go; they go
 * through memory to the registers where the block's scales are applied, as everywhere else. The
 * integers are exact and the sums are taken in the same order, so the bits are those of all paths.
 *
 * Weights are unpacked to signed bytes once for all activation rows. PACK_K6 is not here: two scales
 * a block cost what the tiles save.
 */
#define _GNU_SOURCE
#include "kernels/cpu/fast_amx.h"
#include "kernels/cpu/fast_lines.h"
#include "kernels/cpu/fast_tile.h"

#include <cpuid.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "kernels/quant.h"

/* Activation rows ("columns" of the product) of a tile, and of a call's lot; blocks of a chunk: the
   unpacked weights of a group and the scales of a lot stay in the first-level cache. */
enum { AMX_TILES = 4, AMX_CHUNK = 32, AMX_RING = 4, AMX_AHEAD = 2 };

/* What a chunk needs beside the activations. */
struct amx_room {
	_Alignas(64) int8_t w[AMX_CHUNK][8][64];
	float scale[AMX_CHUNK][2][16]; /* d, m of the weights */
	float d[AMX_TILES][AMX_CHUNK][AMX_TILE], s[AMX_TILES][AMX_CHUNK][AMX_TILE];
	int32_t sum[AMX_RING][AMX_TILE][16];
};

/* Tiles for `columns` activation rows and a block of weights: sums in 0, activations in 4, weights in 6. */
INLINE void amx_configure(uint32_t columns)
{
	struct amx_config c = { .palette = 1 };

	c.rows[0] = (uint8_t)columns;
	c.bytes[0] = 64;
	c.rows[4] = (uint8_t)columns;
	c.bytes[4] = ACT_BLOCK;
	c.rows[6] = ACT_BLOCK / 4;
	c.bytes[6] = 64;
	__asm__ volatile("ldtilecfg %0" ::"m"(c));
}

#define AMX_EACH(X) \
	X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12) X(13) X(14) X(15)
#define AMX_START(n) \
	if ((n) < columns) \
		acc[n] = first || (n) >= count ? _mm512_setzero_ps() : \
						 _mm512_maskz_loadu_ps(in, out + (n) * out_stride);
#define AMX_END(n) \
	if ((n) < columns && (n) < count) \
		_mm512_mask_storeu_ps(out + (n) * out_stride, in, acc[n]);
#define AMX_COLUMN(n) \
	if ((n) < columns) { \
		acc[n] = _mm512_fmadd_ps(_mm512_mul_ps(scale, _mm512_set1_ps(d[n])), \
					 _mm512_cvtepi32_ps(_mm512_load_si512(x[n])), acc[n]); \
		if (minimum) \
			acc[n] = _mm512_fmadd_ps(least, _mm512_set1_ps(s[n]), acc[n]); \
	}

/* The integer dots of block b, into the ring. They are made AMX_AHEAD blocks before they are read: what
   a tile stored is seen by a load only when the store has left the pipeline. */
INLINE void amx_dots(struct amx_room *r, const int8_t *q, size_t q_stride, uint32_t b)
{
	AMX_LOAD(4, q + (size_t)b * ACT_BLOCK, q_stride);
	AMX_LOAD(6, r->w[b], 64);
	AMX_ZERO(0);
	AMX_DOT(6, 4, 0);
	AMX_STORE(0, r->sum[b % AMX_RING], 64);
}

#define AMX_FETCH(n) \
	if ((n) < lines) \
		_mm_prefetch((const char *)next + 64 * (n), _MM_HINT_T0);

/* One group times `count` of the tile's columns, which are q, stride bytes apart. columns: a constant,
   count or more; minimum: blocks have one. next: weights to fetch meanwhile, `lines` lines for each block;
   all at once they would fill what the CPU has under way, and the loads between them would wait. */
INLINE void amx_block16(struct amx_room *r, uint32_t tile, const int8_t *q, size_t q_stride,
			uint32_t blocks, uint32_t count, int first, float *out, size_t out_stride,
			uint32_t rows, const uint8_t *next, uint32_t lines, const uint32_t columns,
			const int minimum)
{
	const __mmask16 in = (__mmask16)((1u << rows) - 1);
	__m512 acc[AMX_TILE];

	AMX_EACH(AMX_START)
	for (uint32_t b = 0; b < AMX_AHEAD; b++)
		if (b < blocks)
			amx_dots(r, q, q_stride, b);
	for (uint32_t b = 0; b < blocks; b++) {
		const __m512 scale = _mm512_load_ps(r->scale[b][0]), least = _mm512_load_ps(r->scale[b][1]);
		const float *d = r->d[tile][b], *s = r->s[tile][b];
		const int32_t (*x)[16] = (const int32_t (*)[16])r->sum[b % AMX_RING];

		if (b + AMX_AHEAD < blocks)
			amx_dots(r, q, q_stride, b + AMX_AHEAD);
		AMX_FETCH(0) AMX_FETCH(1) AMX_FETCH(2) AMX_FETCH(3) AMX_FETCH(4)
		AMX_FETCH(5) AMX_FETCH(6) AMX_FETCH(7) AMX_FETCH(8)
		next += 64 * lines;
		AMX_EACH(AMX_COLUMN)
	}
	AMX_EACH(AMX_END)
}

typedef void amx_kernel(struct amx_room *r, uint32_t tile, const int8_t *q, size_t q_stride,
			uint32_t blocks, uint32_t count, int first, float *out, size_t out_stride,
			uint32_t rows, const uint8_t *next, uint32_t lines);

#define AMX_KERNEL(name, columns, minimum) \
	static void name(struct amx_room *r, uint32_t tile, const int8_t *q, size_t q_stride, \
			 uint32_t blocks, uint32_t count, int first, float *out, \
			 size_t out_stride, uint32_t rows, const uint8_t *next, uint32_t lines) \
	{ \
		amx_block16(r, tile, q, q_stride, blocks, count, first, out, out_stride, rows, next, \
			    lines, columns, minimum); \
	}
#define AMX_KERNELS(name, minimum) \
	AMX_KERNEL(name##_4, 4, minimum) \
	AMX_KERNEL(name##_8, 8, minimum) \
	AMX_KERNEL(name##_12, 12, minimum) \
	AMX_KERNEL(name##_16, 16, minimum) \
	static amx_kernel *const name[4] = { name##_4, name##_8, name##_12, name##_16 };
AMX_KERNELS(amx_plain, 0)
AMX_KERNELS(amx_least, 1)

#define AMX_LINE(g) _mm512_store_si512(r->w[i][g], _mm512_sub_epi8(l.w[g], zero));

/* Blocks [b, b + n) of a group, as signed bytes. */
INLINE void amx_unpack(struct amx_room *r, const uint8_t *data, uint32_t b, uint32_t n, uint32_t zeros,
		       const uint32_t pack, __m512i table)
{
	const __m512i zero = _mm512_set1_epi8((char)zeros);

	for (uint32_t i = 0; i < n; i++) {
		const struct lines l = lines_of(data, b + i, pack, table);

		LINES_EACH(AMX_LINE)
		_mm512_store_ps(r->scale[i][0], l.d);
		_mm512_store_ps(r->scale[i][1], l.m);
	}
}

/* The scales of the activation rows, block by block; those of no row are 0. */
static void amx_scales(struct amx_room *r, const struct act *a, uint32_t c, uint32_t count, uint32_t b,
		       uint32_t blocks)
{
	for (uint32_t tile = 0; tile * AMX_TILE < count; tile++)
		for (uint32_t n = 0; n < AMX_TILE; n++) {
			const int is = tile * AMX_TILE + n < count;
			const size_t at = (c + (is ? tile * AMX_TILE + n : 0)) * a->block_stride + b;

			for (uint32_t i = 0; i < blocks; i++) {
				r->d[tile][i][n] = is ? a->d[at + i] : 0.0f;
				r->s[tile][i][n] = is ? a->s[at + i] : 0.0f;
			}
		}
}

/* Up to AMX_TILES tiles of columns. */
INLINE void amx_lot(struct amx_room *r, const struct weight *w, uint32_t zero, const uint32_t pack,
		    uint32_t group_first, uint32_t group_count, const struct act *a, uint32_t c,
		    uint32_t c_count, float *out, size_t out_stride)
{
	const uint32_t blocks = w->columns / ACT_BLOCK, chunks = (blocks + AMX_CHUNK - 1) / AMX_CHUNK;
	const uint32_t chunk = (blocks + chunks - 1) / chunks;
	const int minimum = (pack == PACK_Q4 || pack == PACK_Q5) ? !zero : pack == PACK_K4 || pack == PACK_K5;
	amx_kernel *const *kernels = minimum ? amx_least : amx_plain;
	const __m512i table = pack == PACK_T4 ? lines_table(quant_table(w->type)) : _mm512_setzero_si512();
	const uint32_t block_bytes = pack_block_bytes(pack), lines = (block_bytes + 63) / 64;
	uint32_t configured = 0;

	for (uint32_t b = 0; b < blocks; b += chunk) {
		const uint32_t n = blocks - b < chunk ? blocks - b : chunk;

		amx_scales(r, a, c, c_count, b, n);
		for (uint32_t g = group_first; g < group_first + group_count; g++) {
			const uint32_t left = w->rows - g * PACK_ROWS;

			const uint8_t *data = w->data + g * w->group_bytes;

			amx_unpack(r, data, b, n, zero, pack, table);
			for (uint32_t at = 0; at < c_count; at += AMX_TILE) {
				const uint32_t count = c_count - at < AMX_TILE ? c_count - at : AMX_TILE;

				if (count != configured)
					amx_configure(configured = count);
				kernels[(count - 1) / 4](r, at / AMX_TILE,
							 a->q + (c + at) * a->q_stride + (size_t)b * ACT_BLOCK,
							 a->q_stride, n, count, b == 0,
							 out + (c + at) * out_stride + g * PACK_ROWS, out_stride,
							 left < PACK_ROWS ? left : PACK_ROWS,
							 data + w->group_bytes + b * block_bytes,
							 at == 0 ? lines : 0);
			}
		}
	}
}

/* Fewer activation rows than this are left to the registers, which need no way through memory: the CPU
   has half its f32 throughput while tiles are at work, and the unpacked weights must pay. */
enum { AMX_FEWEST = 32 };

INLINE void amx_matmul(matmul_leaf *few, uint32_t zero, const uint32_t pack, const struct weight *w,
		       uint32_t group_first, uint32_t group_count, const struct act *a,
		       uint32_t c_first, uint32_t c_count, float *out, size_t out_stride)
{
	const uint32_t most = AMX_TILE * AMX_TILES;
	struct amx_room r;
	uint32_t c = 0;

	while (a->kind == ACT_I8_BLOCK && c_count - c >= AMX_FEWEST) {
		const uint32_t n = c_count - c < most ? c_count - c : most;

		amx_lot(&r, w, zero, pack, group_first, group_count, a, c_first + c, n, out, out_stride);
		c += n;
	}
	if (c) /* What a switch of threads would have to save is gone. */
		AMX_RELEASE();
	if (c < c_count)
		few(w, group_first, group_count, a, c_first + c, c_count - c, out, out_stride);
}

#define AMX_MATMUL(name, pack, zero) \
	static FAST_DOT(amx_##name) \
	{ \
		amx_matmul(fast_##name##_avx512, zero, pack, w, group_first, group_count, a, c_first, \
			   c_count, out, out_stride); \
	}
AMX_MATMUL(q4, PACK_Q4, w->zero)
AMX_MATMUL(q8, PACK_Q8, 128)
AMX_MATMUL(q5, PACK_Q5, w->zero)
AMX_MATMUL(t4, PACK_T4, 128)
AMX_MATMUL(k4, PACK_K4, 0)
AMX_MATMUL(k5, PACK_K5, 0)

int fast_amx_ready(void)
{
	enum { TILES_SAVED = 3 << 17, PERMIT = 0x1023, TILE_DATA = 18, TILE_AND_INT8 = 3 << 24 };
	uint32_t a, b, c, d, high;

	if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (d & TILE_AND_INT8) != TILE_AND_INT8)
		return 0;
	__asm__ volatile("xgetbv" : "=a"(a), "=d"(high) : "c"(0));
	/* Linux gives the tiles to a process that asks (arch_prctl, ARCH_REQ_XCOMP_PERM). */
	return (a & TILES_SAVED) == TILES_SAVED && syscall(SYS_arch_prctl, PERMIT, TILE_DATA) == 0;
}

int fast_amx_bf16_ready(void)
{
	enum { TILE_BF16 = 1 << 22, BF16 = 1 << 5 };
	uint32_t a, b, c, d, more;

	/* The conversion to bf16 on registers is asked for too: a hypervisor may hide one and show the other. */
	return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & TILE_BF16) &&
	       __get_cpuid_count(7, 1, &more, &b, &c, &d) && (more & BF16) && fast_amx_ready();
}

/* Four sums in turn, of full tiles of zeros: what is in them takes no time. */
uint64_t fast_work_tiles(uint64_t rounds)
{
	struct amx_config c = { .palette = 1 };

	for (int i = 0; i < 8; i++) {
		c.rows[i] = AMX_TILE;
		c.bytes[i] = 64;
	}
	__asm__ volatile("ldtilecfg %0" ::"m"(c));
	for (uint64_t i = 0; i < rounds; i++) {
		AMX_DOT(6, 4, 0);
		AMX_DOT(7, 4, 1);
		AMX_DOT(6, 5, 2);
		AMX_DOT(7, 5, 3);
	}
	AMX_RELEASE();
	return rounds * 4 * AMX_TILE * AMX_TILE * 64;
}

void fast_amx_init(struct leaf *leaf)
{
	leaf->place_most = AMX_FEWEST - 1; /* tiles of AMX take rows as they come */
	leaf->matmul[PACK_Q4] = amx_q4;
	leaf->matmul[PACK_Q8] = amx_q8;
	leaf->matmul[PACK_Q5] = amx_q5;
	leaf->matmul[PACK_T4] = amx_t4;
	leaf->matmul[PACK_K4] = amx_k4;
	leaf->matmul[PACK_K5] = amx_k5;
	leaf->matmul[PACK_I8] = fast_amx_row8;
}
