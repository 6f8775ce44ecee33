/*
 * Inside the CPU device: packed weights, quantised activations, and the table of leaves, the inner
 * functions that exist once per instruction set. Private to kernels/cpu/.
 *
 * A leaf works on plain memory: no device, no threads, no allocation. device.c cuts the work among
 * threads and calls leaves; ref.c fills the whole table first, then the vector files write over the
 * slots they have. The cut never changes a sum: a leaf computes whole results.
 *
 * The arithmetic is fixed, so that a path is the same bits on every instruction set where it is
 * marked EXACT:
 *  f32 dot (EXACT): 16 lanes; lane j adds a[k]*w[k] for k = j, j+16, … in order, multiply and add
 *      rounded apart; then lanes j and j+8 are added, j and j+4, j and j+2, j and j+1.
 *  i8 block (EXACT): per block of 32 in ascending order, with the integer dot exact,
 *      Q4_0, Q5_0, Q8_0, IQ4_NL, MXFP4:  acc = fma(d*da, dot, acc)   dot over the signed weight
 *      values (of the table, for the last two)
 *      Q4_1, Q5_1, Q4_K, Q5_K: acc = fma(d*da, dot, acc); acc = fma(m, s, acc)   dot over unsigned
 *      values, m the block's minimum (for the K types d = d*sc and m = -dmin*mn, each rounded to
 *      f32 once); Q6_K: two halves of 16, each acc = fma(d*sc*da, dot_half, acc).
 *      d, da, m, s are f32; d*da is rounded before the fma. Other types: the f32 dot over the
 *      dequantised activation da*q and the dequantised weight.
 *  activation block: da = max|x|/127, q = round to nearest even of x * (1/da), s = da * (float)(sum
 *      of q). Where da is 0 or so small that 1/da is not finite, da, s and every q are 0.
 *  i8 row (EXACT): PACK_I8 with ACT_I8_ROW: (d*da) * (float)dot, the dot over the whole row. An
 *      activation row as a block, of all its columns; s is the sum of q, not multiplied.
 *  bf16 (EXACT): PACK_BF16 with ACT_BF16: for each 32 columns in ascending order two sums from 0, one of
 *      the products of the even columns and one of the odd ones, in order; then acc += even + odd. That
 *      is what AMX's tdpbf16ps does. A product of two bf16 is exact in f32, so a fused multiply-add and
 *      one apart are the same. Values are rounded to nearest even, and what is then below 2^-55 is 0: no
 *      product or sum is subnormal, which some instructions take for 0 and some do not.
 *  attention over INT8 pages, of AVX-512 with VBMI (ref_pairs.c is its text in C, to the bit): the query
 *      and the weights (each times V's scale) are rounded to bf16, K and V are bf16 as they stand, and
 *      sums are those of bf16 above: a score over each 32 values of the head, and what a scale's values
 *      give times the scale; values over each 32 positions of the partition, those that a row does not
 *      see left out. So a tile of AMX serves many rows, and one row takes registers. Rounding is off by
 *      2^-9 at most.
 *  norm: r = 1 / sqrt(sum / (float)n + epsilon); out = (x * r) * w, each step rounded to f32.
 *  8-bit K and V: the scale bytes as below, from bits; FP8 takes x * 2^-e (exact), INT8 the quotient
 *      x / scale, rounded to nearest even and held within -127 .. 127.
 *  Input that is not finite may give any value, but never a fault; NaN counts as no larger.
 */
#ifndef HOLDFAST_KERNELS_CPU_CPU_H
#define HOLDFAST_KERNELS_CPU_CPU_H

#include <stddef.h>
#include <stdint.h>

#include "kernels/ops.h"
#include "kernels/shared.h"

enum { PACK_ROWS = 16, ACT_BLOCK = 32, ACT_TILE_MOST = 16 /* rows of a tile */ };

/* How a weight lies in memory. Rows are padded to PACK_ROWS with zero weights; a "group" is 16
   rows. Within a group the columns go in blocks of 32, each block contiguous:
   PACK_Q4   320 bytes: f16 d[16], f16 m[16], then 4 lines of 64 bytes; in line g, byte r*4+j: low
             nibble is column 4g+j, high nibble column 16+4g+j, of row r (0 .. 15).
             Q4_1 as it stands; Q4_0 with m unused (0) and `zero` 8.
   PACK_Q8   544 bytes: f16 d[16], then 8 lines of 64 bytes; in line g, byte r*4+j is column 4g+j
             of row r, as q + 128 (unsigned).
   PACK_F32  2048 bytes: f32 [32][16]: column after column, 16 rows each.
   PACK_RAW  rows as they stand in the file, one after the other; any type.
   PACK_HALF 1024 bytes: F16 or BF16 [32][16].
   PACK_Q5   384 bytes: f16 d[16], f16 m[16]; a line of fifth bits: bit g of byte r*4+j belongs to
             column 4g+j of row r; then 4 lines of nibbles as in PACK_Q4. Q5_1; Q5_0 with m 0 and
             `zero` 16.
   PACK_T4   320 bytes: f32 d[16], then 4 lines of nibbles, indices into quant_table(type). IQ4_NL,
             MXFP4.
   The K types in blocks of 256 columns:
   PACK_K4   2368 bytes: f16 d[16], f16 dmin[16], then for each 32 columns sc[16] and mn[16] (bytes),
             then for each 32 columns 4 lines of nibbles. Q4_K.
   PACK_K5   2880 bytes: the same, a line of fifth bits before each 4 lines of nibbles. Q5_K.
   PACK_K6   3392 bytes: f16 d[16], 32 unused, then for each 16 columns sc[16] (signed bytes), then for
             each 32 columns 4 lines of nibbles and 2 of what is above them: in line h, bits 2g and
             2g+1 of byte r*4+j belong to column 16h+4g+j. Q6_K with `zero` 32.
   The copies for given tokens, of any type and not in blocks:
   PACK_I8   PREFILL_INT8, columns a multiple of 64: f32 d[16], then for each 4 columns a line of 64
             bytes, as PACK_Q8's. d is the row's largest magnitude / 127, a value q = nearest even of
             w * (1/d), all as for an activation row.
   PACK_BF16 PREFILL_BF16, columns a multiple of 32: for each 2 columns a line of 64 bytes, in it [row][2]. */
enum pack {
	PACK_Q4, PACK_Q8, PACK_F32, PACK_RAW, PACK_HALF, PACK_Q5, PACK_T4, PACK_K4, PACK_K5, PACK_K6,
	PACK_I8, PACK_BF16,
	PACK_COUNT
};

enum { K_COLUMNS = 256, K_SCALES = 64, K_LINES = 320 }; /* offsets of scales and lines in a K block */

/* Bytes of 32 columns (of the K types: the eighth part of a block); 0 for PACK_RAW. */
static inline uint32_t pack_block_bytes(uint32_t pack)
{
	static const uint16_t bytes[PACK_COUNT] = {
		[PACK_Q4] = 320, [PACK_Q8] = 544, [PACK_F32] = 2048, [PACK_HALF] = 1024, [PACK_Q5] = 384,
		[PACK_T4] = 320, [PACK_K4] = 296, [PACK_K5] = 360, [PACK_K6] = 424,
	};
	return bytes[pack];
}

struct weight {
	uint32_t type;    /* enum weight_type */
	uint32_t pack;    /* enum pack */
	uint32_t rows, columns;
	uint32_t zero;    /* subtracted from the unsigned integers as they are packed */
	size_t row_bytes;   /* PACK_RAW: of one row */
	size_t group_bytes; /* the others: of one group of 16 rows */
	size_t bytes;
	uint8_t *data;      /* aligned to 64 */
	struct weight *given; /* the same for given tokens; NULL: these take this one */
	struct chunk *chunk; /* what it lies in; NULL: memory of its own */
	struct weight *next; /* of its device's */
};

/* Rows of activations, in the precision of the path. With ACT_F32 only x is used. */
struct act {
	/* ACT_F32 or ACT_I8_BLOCK (the two others are made into f32 rows); for PACK_I8 only ACT_I8_ROW: d and
	   s of a row are then the first of its block_stride; for PACK_BF16 only ACT_BF16. */
	uint32_t kind;
	uint32_t columns;
	const float *x; size_t x_stride;        /* floats */
	const int8_t *q; size_t q_stride;       /* bytes; column order as in x */
	const uint16_t *h; size_t h_stride;     /* ACT_BF16: values */
	const float *d, *s; size_t block_stride; /* one per block of 32; floats per row */
	/* ACT_I8_BLOCK: the same once more, as leaf.place lays it, in tiles of so many rows; 0: not laid. */
	const uint8_t *tiles;
	uint32_t tile_rows;
};

/* Bytes of a tile: for each block and row a record of 32 values, d, s, and the sums of all values and of the
   first 16. */
enum { ACT_RECORD = 48 };
static inline size_t act_tile_bytes(uint32_t columns, uint32_t tile_rows)
{
	return (size_t)columns / ACT_BLOCK * tile_rows * ACT_RECORD;
}

/* One partition of attention for one sequence and one KV head: `rows` query rows x `heads` query
   heads that share the KV head. Everything is within one partition. */
struct attend_job {
	enum kv_kind kv;
	uint32_t head;         /* values of a head */
	uint32_t page_tokens;
	uint32_t token_count;  /* positions of the partition that exist: 1 .. OPS_PARTITION */
	const uint8_t *const *pages; /* page base + the offset of this layer and KV head's K block */
	size_t v_offset;       /* from there to its V block */
	const uint8_t *const *scales; /* per page, this layer and KV head's K scales; V's follow K's */
	const float *q;        /* rows x heads x head, times attention_scale (and smoothing) */
	size_t q_row_stride;   /* floats from row to row; heads are head apart */
	uint32_t rows, heads;
	/* Row i sees the partition's positions from[i] .. to[i]-1; from[i] >= to[i]: none. */
	const uint32_t *from, *to;
	float softcap;
	/* K blocks of the job that this thread is likely to take next, and how many of its positions exist:
	   they may be fetched ahead. NULL and 0: not known. */
	const uint8_t *const *next;
	uint32_t next_count;
	/* Partials, rows x heads (x head): maximum (-inf if none seen), sum, weighted values. */
	float *m, *l, *o;
	float *scratch; /* leaf_scratch_floats() of room, of this thread */
};

struct leaf {
	const char *name;
	/* out[c*out_stride + row] for rows of groups [group_first, +group_count) and activation rows
	   [c_first, +c_count); rows beyond weight->rows are not written. Indexed by pack; each takes
	   both kinds of act. */
	void (*matmul[PACK_COUNT])(const struct weight *w, uint32_t group_first,
				   uint32_t group_count, const struct act *a, uint32_t c_first,
				   uint32_t c_count, float *out, size_t out_stride);
	/* out = x * w / sqrt(mean(x^2) + epsilon); the sum of squares as the f32 dot; out may
	   be x. EXACT. */
	void (*norm)(const float *x, const float *w, uint32_t n, float epsilon, float *out);
	/* One row to i8 blocks; n a multiple of 32. EXACT. */
	void (*quantise)(const float *x, uint32_t n, int8_t *q, float *d, float *s);
	/* One row of i8 blocks to row `row` of a tile of `rows`; NULL: the leaf does not want it. The integer
	   matmuls lay rows side by side, and what is laid here once every item would lay again. */
	void (*place)(const int8_t *q, const float *d, const float *s, uint32_t columns, uint32_t row,
		      uint32_t rows, uint8_t *tile);
	uint32_t tile_rows; /* of a tile, at most */
	uint32_t place_most; /* with more rows than these it is not wanted */
	/* The same with one scale for the row: *d, and the sum of q in *s. EXACT. */
	void (*quantise_row)(const float *x, uint32_t n, int8_t *q, float *d, float *s);
	/* One row to bf16, for PACK_BF16; n a multiple of 32, h not in x. EXACT. */
	void (*round_row)(const float *x, uint32_t n, uint16_t *h);
	/* out = silu(gate) * up, and gelu (tanh form); out may be gate. An element's bits do not
	   depend on where it stands. */
	void (*gate[2])(const float *gate, const float *up, uint32_t n, float *out);
	void (*attend)(const struct attend_job *job);
	/* Encode one head's values (n of them) of one token into page bytes: K at offsets of
	   page_k_at, V of page_v_at, and its scale bytes (8-bit kinds). EXACT. */
	void (*encode_k)(enum kv_kind kv, const float *k, uint32_t head, uint32_t token,
			 uint32_t page_tokens, uint8_t *block, uint8_t *scales);
	void (*encode_v)(enum kv_kind kv, const float *v, uint32_t head, uint32_t token,
			 uint32_t page_tokens, uint8_t *block, uint8_t *scales);
	/* Largest value and its first index; and sum of exp(x - max), in 16 lanes as the f32 dot. */
	float (*max)(const float *x, uint32_t n, uint32_t *at);
	float (*exp_sum)(const float *x, uint32_t n, float max);
	/* rows of x += y. */
	void (*add)(float *x, const float *y, uint32_t n);
};

/* Floats that attend may use of job->scratch for any job with these sizes. */
size_t leaf_scratch_floats(uint32_t rows, uint32_t heads, uint32_t head);

void leaf_init_ref(struct leaf *leaf);
/* Attention over INT8 pages as AVX-512 does it; head a multiple of 32. */
void ref_attend_pairs(const struct attend_job *job);
void leaf_init_avx2(struct leaf *leaf);
void leaf_init_avx512(struct leaf *leaf); /* F, BW, VL, DQ at least; VNNI if the CPU has it */

#endif
