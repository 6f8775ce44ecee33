/*
 * The CPU device's own state, and what its files share: device.c (life, weights, buffers),
 * pack.c (weights into memory), batch.c (the block's checks), step.c (matmuls and norms),
 * attend.c (RoPE, pages' rows, attention), pages.c (pages and tags), sample.c (logits to
 * tokens). Private to kernels/cpu/.
 *
 * Every buffer is sized by the plan at device_open; a step allocates nothing.
 */
#ifndef HOLDFAST_KERNELS_CPU_DEVICE_H
#define HOLDFAST_KERNELS_CPU_DEVICE_H

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/pool.h"

enum {
	TILE_ROWS = 16, /* rows of one sequence that attention takes together */
	SPAN_ROWS = 64, /* activation rows of a matmul's item */
	GIVEN_SPAN_ROWS = 256, /* the same with a copy for given tokens: it is wide, and read less often so */
	GIVEN_COLUMNS_MAX = 1 << 16, /* of a copy in 8 bits for given tokens: its sums fit 32 bits */
	ROPE_SETS = 4, /* distinct rotary parameters kept for a batch */
	HEAD_MAX = KV_HEAD_MAX,
	PAGE_ROOMS = 3, /* of a partition: its pages, their scales, the pages of the next one */
	PARTIAL_BYTES_MAX =
		16 << 20 /* of stored partials; beyond it partitions are folded in turn */
};

/* Rows of one sequence whose positions share a tile of 16 tokens: no two tiles of a
   sequence write the same tile of a page, and each lies within one partition. */
struct tile {
	uint32_t sequence, row_first, row_count;
};

/* Up to SPAN_ROWS or GIVEN_SPAN_ROWS rows of one phase that enter a matmul together. */
struct span {
	uint32_t first, count, given;
};

/* cos and sin of every row of the batch for one set of parameters. */
struct rope_set {
	float base, scale;
	uint32_t dims;
	const struct weight *factors;
	float *turns; /* rows x {cos, sin} x dims/2 */
};

struct group {
	uint32_t layers, page_count;
	uint64_t page_bytes;
	uint8_t *pages;
	uint64_t *tags;
};

struct device {
	struct device_plan plan;
	struct leaf leaf;
	struct pool *pool;
	enum isa isa;
	enum act_kind act;
	uint32_t threads;
	struct group group[OPS_GROUP_MAX];
	struct chunk *chunks; /* of weights */
	struct weight *weights; /* all that were made and not freed */

	float *buffer[BUFFER_COUNT];
	size_t buffer_floats[BUFFER_COUNT];
	float *up;      /* rows x ff */
	float *product; /* rows x width, before a post norm */
	/* Activations that enter a matmul: f32 rows, i8 blocks or rows, bf16 rows. */
	float *act_x, *act_d, *act_s;
	int8_t *act_q;
	uint16_t *act_h; /* only with PREFILL_BF16 */
	uint8_t *act_tiles; /* the 8-bit blocks as the leaf lays them */
	uint32_t act_columns; /* room of a row */

	/* The current batch: a copy of the block, and one being checked. */
	uint8_t *block[2];
	size_t block_bytes;
	const struct ops_row *rows;
	const struct ops_sequence *sequences;
	const struct ops_page *pages;
	const struct ops_sample *samples;
	uint32_t row_count, sequence_count, page_count, sample_count;
	struct tile *tiles;
	uint32_t tile_count;
	/* The rows by phase; all of them are as sampled ones where given tokens have no copy. */
	struct span *spans;
	uint32_t span_count;
	struct ops_fault *faults;
	struct ops_sampled *sampled;

	struct rope_set rope[ROPE_SETS];
	uint32_t rope_count;
	double *rope_frequency; /* HEAD_MAX / 2 */

	/* Attention: per thread room, and stored partials. */
	float *thread_room;
	size_t thread_floats, attend_floats; /* of a thread; the leaf's part of it */
	float *partials;
	size_t partial_count; /* records of head + 2 floats */
	const uint8_t **page_room; /* per thread PAGE_ROOMS x OPS_PARTITION/16 pointers */

	/* Sampling: per thread. */
	float *logit_room; /* vocab x (2 floats and 2 candidates) */
	size_t logit_floats;

	/* Several ranks: this rank's logits, those of all, and all ranks' faults. */
	float *logit_part, *logit_all;
	struct ops_fault *fault_all;
};

/* Memory: zeroed, aligned to 64, with 64 bytes to spare behind; NULL if there is none.
   Large pieces are aligned to 2 MiB and may get huge pages. */
void *memory_take(size_t bytes);
void memory_give(void *memory, size_t bytes);

/* Large pieces of memory that hold many weights each, so that small matrices lie in huge pages too:
   a token reads them all, and with a page of 4 KiB for each few rows the walks of the page tables
   would take longer than the reads. */
struct chunk {
	struct chunk *next;
	uint8_t *at;
	size_t bytes, used;
	uint32_t weights; /* that lie in it; with the last one it is given back */
};
/* *chunks: the device's list; chunks NULL: the weight gets memory of its own. */
int pack_make(struct chunk **chunks, uint32_t type, enum weight_use use, uint32_t rows,
	      uint32_t columns, const void *data, struct weight **out);
void chunks_free(struct chunk **chunks);
uint64_t pack_bytes(uint32_t type, enum weight_use use, uint32_t rows, uint32_t columns);
void pack_free(struct chunk **chunks, struct weight *w); /* and its copy for given tokens */
/* The copy of a weight for given tokens, from the data that the weight was made of; none where the
   columns do not allow it, and then given_bytes is 0. */
int given_make(enum prefill_kind kind, struct chunk **chunks, struct weight *w, const void *data);
uint64_t given_bytes(enum prefill_kind kind, uint32_t type, uint32_t rows, uint32_t columns);

static inline const float *weight_floats(const struct weight *w)
{
	return (const float *)(const void *)w->data;
}

static inline int is_vector(const struct weight *w, uint32_t columns)
{
	return w && w->pack == PACK_RAW && w->type == TYPE_F32 && w->rows == 1 &&
	       w->columns == columns;
}

int cpu_batch(struct device *d, const struct ops_batch *block);

int cpu_tag_check(struct device *d);
int cpu_tag_skip(struct device *d);
int cpu_page_tags_set(struct device *d, uint32_t group, uint32_t page_first,
		      uint32_t page_count, uint64_t tag_first);
int cpu_page_tag(struct device *d, uint32_t group, uint32_t page, uint64_t *tag);
int cpu_page_clear(struct device *d, uint32_t group, uint32_t page_first,
		   uint32_t page_count);
int cpu_page_copy(struct device *d, uint32_t group, uint32_t from, uint32_t to);
int cpu_page_read(struct device *d, uint32_t group, uint32_t page, void *to);
int cpu_page_write(struct device *d, uint32_t group, uint32_t page, const void *from);
int cpu_page_digests(struct device *d, struct ops_digest *list, uint32_t count);
int cpu_host_pin(struct device *d, void *memory, size_t bytes);

int cpu_embed(struct device *d, const struct weight *embedding, float scale);
int cpu_qkv(struct device *d, const struct ops_layer *layer);
int cpu_rope_write(struct device *d, const struct ops_layer *layer);
int cpu_attend(struct device *d, const struct ops_layer *layer);
int cpu_output(struct device *d, const struct ops_layer *layer);
int cpu_gate_up(struct device *d, const struct ops_layer *layer);
int cpu_down(struct device *d, const struct ops_layer *layer);
int cpu_head(struct device *d, const struct weight *norm, float epsilon,
	     const struct weight *head, float softcap);
int cpu_sample(struct device *d);

/* Whether the row's sequence may touch pages (K4). */
static inline int row_sound(const struct device *d, uint32_t row)
{
	return d->faults[d->rows[row].sequence].page == OPS_NONE;
}

#endif
