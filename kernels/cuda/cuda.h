/*
 * What the kernels of this folder work on: the step on the device, packed weights, activations, and
 * the arguments of each kernel. Private to kernels/cuda/.
 *
 * A step's block on the device is a struct step, then the batch block as it was checked, then lists
 * that were made from it on the host. Kernels are launched with grids of a bucket, at least as large
 * as the step, and read the counts from the block: a captured graph serves every step of its bucket.
 */
#ifndef HOLDFAST_KERNELS_CUDA_CUDA_H
#define HOLDFAST_KERNELS_CUDA_CUDA_H

#include "kernels/cuda/gpu.h"
#include "kernels/shared.h"

/* ---- the step ---- */

/* Attention's units by the kernel that takes them. */
enum unit_kind {
	UNIT_ROW,   /* one row, on CUDA cores, in f32: exact plans, F32 pages */
	UNIT_SMALL, /* one row, on tensor cores */
	UNIT_LARGE, /* rows of one sequence, on tensor cores */
	UNIT_KINDS
};

struct unit {
	uint32_t sequence, row_first, row_count;
	uint32_t position; /* of its first row */
};

enum { STEP_BYTES = 256 }; /* room of struct step; the block follows */

struct step {
	uint32_t row_count, sequence_count, page_count, sample_count;
	uint32_t row_at, sequence_at, page_at, sample_at; /* from the block's start */
	uint32_t unit_at[UNIT_KINDS], unit_count[UNIT_KINDS];
	uint32_t phase_at[2], phase_count[2]; /* given tokens, sampled ones; none without plan.prefill */
};

/* Which of the step's rows an operation is about. */
enum row_set {
	ROWS_ALL,
	ROWS_SAMPLED, /* those that are sampled from; their results lie in the order of the samples */
	ROWS_GIVEN,   /* plan.prefill: rows of phase 0 */
	ROWS_LATER    /* and the others */
};

#define STEP(base) (reinterpret_cast<const struct step *>(base))
#define STEP_ARRAY(type, base, offset) (reinterpret_cast<const type *>((base) + STEP_BYTES + (offset)))
#define STEP_ROWS(base) STEP_ARRAY(struct ops_row, base, STEP(base)->row_at)
#define STEP_SEQUENCES(base) STEP_ARRAY(struct ops_sequence, base, STEP(base)->sequence_at)
#define STEP_PAGES(base) STEP_ARRAY(struct ops_page, base, STEP(base)->page_at)
#define STEP_SAMPLES(base) STEP_ARRAY(struct ops_sample, base, STEP(base)->sample_at)
#define STEP_PHASE(base, phase) STEP_ARRAY(uint32_t, base, STEP(base)->phase_at[phase])
#define STEP_UNITS(base, kind) STEP_ARRAY(struct unit, base, STEP(base)->unit_at[kind])

FP8_INLINE uint32_t rows_number(const uint8_t *base, uint32_t set)
{
	return set == ROWS_ALL ? STEP(base)->row_count
	       : set == ROWS_SAMPLED ? STEP(base)->sample_count
				     : STEP(base)->phase_count[set - ROWS_GIVEN];
}
/* The row of the batch that the set's i-th is; and the row that its results go to. */
FP8_INLINE uint32_t row_from(const uint8_t *base, uint32_t set, uint32_t i)
{
	return set == ROWS_ALL ? i
	       : set == ROWS_SAMPLED ? STEP_SAMPLES(base)[i].row
				     : STEP_PHASE(base, set - ROWS_GIVEN)[i];
}
FP8_INLINE uint32_t row_to(const uint8_t *base, uint32_t set, uint32_t i)
{
	return set <= ROWS_SAMPLED ? i : STEP_PHASE(base, set - ROWS_GIVEN)[i];
}

/* Query vectors of a unit of the kind, at most; `group` heads share a KV head (32 at most). */
FP8_INLINE uint32_t attend_vectors(uint32_t kind, uint32_t group)
{
	return kind == UNIT_LARGE ? 32 / group * group : group;
}

/* ---- weights ---- */

/* How a matrix lies in memory (pack.h has the places). Quantised ones as integers of 4, 5, 6 or 8
   bits with the file's own scales: nothing is rounded again. */
enum form {
	FORM_4, FORM_4M,   /* f16 scale for each 32; M: and f16 minimum */
	FORM_5, FORM_5M,
	FORM_8,            /* Q8_0, and IQ4_NL's values */
	FORM_8F,           /* f32 scale: MXFP4 */
	FORM_4K, FORM_5K,  /* 6-bit scales and minima for each 32, f16 ones for each 256 */
	FORM_6K,           /* 8-bit scales for each 16, f16 for each 256 */
	FORM_F32, FORM_F16, FORM_BF16, /* row after row */
	FORM_COUNT
};

struct matrix {
	const uint8_t *data;
	const uint8_t *supers; /* K forms: the f16 scales of 256 */
	uint32_t rows, columns;
	uint32_t form;
};

/* ---- activations that enter a product ---- */

struct act_rows {
	float *x;      /* f32 rows, columns apart by `stride` */
	int8_t *q;     /* bytes in the order of a fragment (pack.h), rows `stride` apart */
	float *d, *s;  /* for each 32 columns, rows stride/32 apart */
	uint32_t stride; /* a multiple of 64 */
};

enum { ACT_PAD = 64 }; /* rows of room beyond the most: a tile of tokens is read whole */

/* ---- arguments ---- */

struct embed_args {
	const uint8_t *step;
	struct matrix w;
	float scale;
	float *x;
	uint32_t first, count; /* the rows that the matrix has; others give zeros */
};

struct turns_args {
	const uint8_t *step;
	const double *frequency; /* dims/2 */
	uint32_t dims;
	float *turns; /* rows x {cos, sin} x dims/2 */
};

struct enter_args {
	const uint8_t *step;
	const float *x;     /* rows of `columns` */
	uint32_t columns;
	uint32_t rows;      /* enum row_set */
	const float *norm;  /* NULL: none */
	float epsilon;
	const float *up;    /* not NULL: x is gated with it, and the result kept in x */
	uint32_t gate;
	uint32_t kind;      /* enum act_kind; AUTO: they do not enter, only the gate is wanted */
	uint32_t floats;    /* 1, with I8_BLOCK: the rounded values go to x */
	struct act_rows to;
	uint32_t given;     /* enum prefill_kind: not SAME: rounded so to `bytes`, rows of `columns`, with */
	uint8_t *bytes;     /* a scale each; `kind` is F32 */
	float *scales;
};

struct post_args {
	const uint8_t *step;
	const float *y, *norm;
	float epsilon;
	uint32_t width;
	float *x;
};

struct rope_args {
	const uint8_t *step;
	float *q, *k;
	const float *v;
	const float *turns;
	const float *q_norm, *k_norm, *smooth; /* NULL: none */
	const struct ops_fault *faults;
	uint8_t *pages;
	uint64_t page_bytes, block, block_bytes, scales; /* of KV head 0; others follow */
	float epsilon;
	uint32_t heads, kv_heads, head, dims, rope, kv, page_tokens, group;
};

enum { PRODUCTS_MAX = 3, MATMUL_WARPS = 8 };

/* A matrix for given tokens: row after row in the plan's precision, a scale for each but for BF16. */
struct given_copy {
	const uint8_t *data; /* NULL: there is none */
	const float *scales;
};

struct product {
	struct matrix w;
	struct given_copy copy;
	const float *bias;  /* NULL: none */
	float *out;
	float *residual;    /* not NULL: += out; rows as out's */
	uint32_t stride;
	float softcap;      /* 0: none */
};

struct matmul_args {
	const uint8_t *step;
	struct act_rows act;
	uint32_t rows; /* enum row_set */
	uint32_t product_count;
	struct product product[PRODUCTS_MAX];
};

/* The rows of given tokens times the copies. */
struct given_args {
	const uint8_t *step;
	const uint8_t *x;    /* rows of `columns` in the copies' precision, GIVEN_PAD of them to spare */
	const float *scales; /* of the rows; none with BF16 */
	const void *sums;    /* what a library made: rows of the one product's; int32 with INT8, else f32 */
	uint32_t columns, kind; /* enum prefill_kind */
	uint32_t product_count;
	struct product product[PRODUCTS_MAX];
};
enum { GIVEN_PAD = 64, GIVEN_COLUMNS = 64, GIVEN_COLUMNS_MAX = 1 << 16 };

FP8_INLINE uint32_t given_element(uint32_t kind)
{
	return kind == PREFILL_BF16 ? 2 : 1;
}
/* A row's scale from its largest magnitude: with INT8 exactly the CPU's, and *inverse with it. */
FP8_INLINE float row_scale(uint32_t kind, float largest, float *inverse)
{
	float d = largest / (kind == PREFILL_INT8 ? 127.0f : 448.0f);
	*inverse = 1.0f / d;
	if (!(*inverse <= 3.4028234e38f))
		*inverse = d = kind == PREFILL_INT8 ? 0.0f : 1.0f;
	return d;
}
/* The nearest even integer, within 8 bits. */
FP8_INLINE int8_t row_integer(float y)
{
	y = y >= -127.0f ? y : -127.0f;
	y = y <= 127.0f ? y : 127.0f;
	return (int8_t)((y + 12582912.0f) - 12582912.0f);
}

struct attend_args {
	const uint8_t *step;
	const float *q;
	float *out;      /* A */
	float *partials; /* NULL: partitions are folded in turn */
	uint32_t partitions; /* room for each unit and KV head, when they are stored */
	const float *smooth; /* NULL: none */
	const struct ops_fault *faults;
	const uint8_t *pages;
	uint64_t page_bytes, block, block_bytes, scales;
	float scale, softcap;
	uint32_t heads, kv_heads, head, page_tokens, group, window, kv, kind;
};

struct tags_args {
	const uint8_t *step;
	const uint64_t *tags[OPS_GROUP_MAX];
	uint32_t group_count;
	struct ops_fault *faults;
};

struct sample_args {
	const uint8_t *step;
	const float *logits;
	const struct ops_fault *faults;
	float *work;     /* samples x 3 x vocab floats */
	struct ops_sampled *out;
	uint32_t vocab;
};

/* What came of a gather, put together. */
struct ranks_args {
	const uint8_t *step;
	const float *all; /* `count` of each rank: floats, or faults */
	float *x;
	struct ops_fault *faults;
	size_t count;
	uint32_t ranks, vocab, share;
};

struct dequantise_args {
	struct matrix w;
	uint32_t row_first, row_count;
	void *out;     /* row_count x columns: f32, bf16, e4m3 or int8 */
	float *scales; /* the last two: one for each row */
	uint32_t to;   /* enum dequantise_to */
};
enum dequantise_to { DEQUANTISE_F32, DEQUANTISE_BF16, DEQUANTISE_FP8, DEQUANTISE_I8 };

/* A page of a list of digests, and its digest. */
struct digest_page {
	const uint8_t *page;
	size_t scales; /* where they begin */
	uint32_t blocks, tokens;
	uint64_t digest[2];
};

struct digest_args {
	struct digest_page *list;
	uint64_t *digests; /* of blocks: blocks_most of each page */
	size_t block_bytes;
	uint32_t blocks_most, head, size, lines, page_tokens; /* size: of a value */
};

/* ---- what launches them; grids as of a bucket of `rows` ---- */

struct grid_of {
	uint32_t rows;       /* at least the step's */
	uint32_t units;      /* of the kind */
	uint32_t partitions; /* at least those of any unit */
};

void embed_launch(const struct embed_args *a, uint32_t rows, cudaStream_t stream);
void turns_launch(const struct turns_args *a, uint32_t rows, cudaStream_t stream);
void enter_launch(const struct enter_args *a, uint32_t rows, cudaStream_t stream);
void post_launch(const struct post_args *a, uint32_t rows, cudaStream_t stream);
void rope_launch(const struct rope_args *a, uint32_t rows, cudaStream_t stream);
/* The products' forms are one form, or all floats. */
void matmul_launch(const struct matmul_args *a, uint32_t act, uint32_t rows, cudaStream_t stream);
/* `rows`: of the bucket. The first makes sums and all, the second takes a library's sums. */
void given_launch(const struct given_args *a, uint32_t rows, cudaStream_t stream);
void given_finish_launch(const struct given_args *a, uint32_t rows, cudaStream_t stream);
void attend_launch(const struct attend_args *a, enum kv_kind kv, const struct grid_of *grid,
		   cudaStream_t stream);
void tags_launch(const struct tags_args *a, uint32_t sequences, cudaStream_t stream);
void sample_launch(const struct sample_args *a, uint32_t samples, cudaStream_t stream);
void digest_launch(const struct digest_args *a, uint32_t pages, cudaStream_t stream);
void dequantise_launch(const struct dequantise_args *a, cudaStream_t stream);
/* Once for each device: kernels that need more shared memory than is given unasked. */
cudaError_t attend_prepare(enum kv_kind kv, uint32_t head, uint32_t group, size_t shared_most);
size_t attend_shared_bytes(enum kv_kind kv, uint32_t head, uint32_t kind, uint32_t group);

#endif
