/*
 * The door of the kernels: one always-full table of operations, and what they work on.
 *
 * A device holds weights (packed as it likes), a slab of KV pages with a tag beside each, and a
 * workspace of named buffers. The step's operations are submitted in order and work on the current
 * batch (kernels/batch.h), whose counts, positions, pages and tags they read from the device's copy
 * of the block; `wait` is the only point where a result is known. On the CPU an operation is
 * complete when its submission returns; no caller may count on that.
 *
 * What holds on every device and every path, and what the tests keep:
 *  K1  A row's result does not depend on the other rows, on how rows are cut into batches, on the
 *      number of threads, or on which kernel was chosen for the shape.
 *  K2  Attention is defined over partitions of OPS_PARTITION absolute positions: each gives a
 *      partial (maximum, sum, weighted values), merged in ascending order.
 *  K3  K and V are read only through the page's own precision, in prefill as in decode.
 *  K4  A sequence whose tags do not agree reads and writes no page in this step; its neighbours
 *      are not affected.
 *  K5  No byte outside the valid positions of a page enters a result.
 *  K6  With several ranks each holds its heads, its part of ff and of the vocabulary. Every rank is
 *      given the same batch and the same operations in the same order; embed, output and down sum over
 *      the ranks, head gathers, and a sequence that is at fault on one rank is so on all.
 *
 * Thread: one at a time per device. Errors: 0 or a negative code of sched/check.h. A device that
 * has returned -ERR_INTERNAL is lost: close it. Compiles as C11 and as C++17.
 */
#ifndef HOLDFAST_KERNELS_OPS_H
#define HOLDFAST_KERNELS_OPS_H

#include <stddef.h>
#include <stdint.h>

#include "kernels/batch.h"
#include "kernels/collective.h"
#include "sched/check.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { OPS_PARTITION = 256 };

/* Types of stored weights; the numbers are GGUF's. */
enum weight_type {
	TYPE_F32 = 0, TYPE_F16 = 1, TYPE_Q4_0 = 2, TYPE_Q4_1 = 3, TYPE_Q5_0 = 6, TYPE_Q5_1 = 7,
	TYPE_Q8_0 = 8, TYPE_Q4_K = 12, TYPE_Q5_K = 13, TYPE_Q6_K = 14, TYPE_IQ4_NL = 20,
	TYPE_BF16 = 30, TYPE_MXFP4 = 39
};

/* Elements and bytes of a block of the type, and its name; 0 / NULL if the type is not taken. */
uint32_t weight_type_elements(uint32_t type);
uint32_t weight_type_bytes(uint32_t type);
const char *weight_type_name(uint32_t type);

enum kv_kind { KV_FP8, KV_INT8, KV_BF16, KV_F32 };
/* Precision of the activations that enter a matmul. AUTO: what is fast on the path. */
enum act_kind { ACT_AUTO, ACT_F32, ACT_BF16, ACT_I8_BLOCK, ACT_I8_ROW };
/* What the rows of given tokens (ops_row.phase 0) multiply with, in the layers' matmuls. INT8: a second
   copy of the weights in 8 bits with a scale a row, and activations in 8 bits with a scale a row; a
   row of a sampled token, and the head, take the file's weights. BF16 (without scales) and FP8 (e4m3
   with a scale a row) the same, where a device has them: device_isa then names whose sums they are. */
enum prefill_kind { PREFILL_SAME, PREFILL_INT8, PREFILL_BF16, PREFILL_FP8 };
enum isa { ISA_AUTO, ISA_SCALAR, ISA_AVX2, ISA_AVX512 };
enum gate_kind { GATE_SILU, GATE_GELU };
enum rope_kind { ROPE_ADJACENT, ROPE_HALVES }; /* pairs (2i, 2i+1), or (i, i + head/2) */

/* Bytes of one page of a group: layers x 2 x kv_heads x head x page_tokens values and, for the
   two 8-bit kinds, their scale bytes (one per token, K or V, KV head and 64 values; a head of up
   to 96 is one). kernels/README.md has the layout. */
uint64_t ops_page_bytes(enum kv_kind kv, uint32_t layers, uint32_t kv_heads, uint32_t head,
			uint32_t page_tokens);

/* Everything a device must know to make its memory. */
struct device_plan {
	uint32_t width, heads, kv_heads, head, ff, vocab; /* head: values of one head */
	uint32_t page_tokens; /* multiple of 16, divides OPS_PARTITION */
	uint32_t group_count;
	struct { uint32_t layers, page_count; } group[OPS_GROUP_MAX];
	uint32_t rows_max, sequences_max, samples_max; /* of one batch */
	uint32_t pages_max; /* entries of one batch's page array */
	uint32_t context;   /* positions, for the rope tables */
	uint32_t extra_bytes_max; /* of one batch's masks, counts and biases */
	enum kv_kind kv;
	enum act_kind act;
	enum prefill_kind prefill; /* -ERR_UNSUPPORTED from a device that has no such copy */
	enum isa isa;
	uint32_t threads; /* 0: all cores */
	uint32_t gpu;     /* which one, of several; the CPU has no use for it */
	/* Not 0: only what is the same bits on every instruction set is done fast, so that a step on
	   f32 activations gives what the scalar path gives. */
	uint32_t exact;
	uint32_t rank, ranks; /* 0 and 1 for one */
	/* Several ranks: heads, kv_heads and ff are this rank's; vocab is the whole, of which rank r has
	   the rows from r * vocab_share on, vocab_share of them or what is left. Results of sample are
	   rank 0's alone. The collective is borrowed. 0 and NULL for one rank. */
	uint32_t vocab_share;
	const struct collective *collective;
	uint32_t start_seconds; /* most that a library between the ranks may take; 0: as long as all live */
};

struct device_needs {
	uint64_t workspace_bytes, slab_bytes;
};

struct device; /* opaque */
struct weight; /* opaque, packed by its device; freed with it or by weight_free */

enum weight_use {
	WEIGHT_VECTOR, /* norm weights, biases, smoothing: rows 1, type F32, F16 or BF16 */
	WEIGHT_MATMUL,
	WEIGHT_PHASED, /* a layer's matmul: rows of both phases enter it */
	WEIGHT_LOOKUP, /* rows are looked up */
	WEIGHT_BOTH    /* a tied embedding */
};

/* One layer as data. NULL where the architecture has none. */
struct ops_layer {
	const struct weight *attn_norm, *q, *k, *v, *q_bias, *k_bias, *v_bias, *q_norm, *k_norm;
	const struct weight *output, *post_attn_norm;
	const struct weight *ffn_norm, *gate, *up, *down, *post_ffn_norm;
	/* INT8 only: 1 x (kv_heads * head); K is divided by it before it is stored and q multiplied,
	   after RoPE; equal within a rotary pair. */
	const struct weight *smooth;
	const struct weight *rope_factors; /* 1 x head/2: divides each pair's frequency */
	uint32_t group, layer; /* whose pages, and which layer within them */
	uint32_t window;       /* 0: every position up to its own; else only the last `window` */
	uint32_t rope_dims;    /* leading values of a head that turn; the head itself in most models */
	enum rope_kind rope;
	enum gate_kind gate_kind;
	float rope_base, rope_scale; /* angle = position * rope_scale * base^(-2i/rope_dims) */
	float epsilon;
	float attention_scale; /* factor of q.k, 1/sqrt(head) in most models */
	float attention_softcap; /* 0: none */
};

/* The workspace's buffers, f32, row after row; for tests, calibration and the logits program. */
enum ops_buffer {
	BUFFER_X,      /* rows x width: the residual stream */
	BUFFER_Q,      /* rows x heads*head, after rope_write roped (not scaled, not smoothed) */
	BUFFER_K,      /* rows x kv_heads*head, after rope_write roped (not smoothed) */
	BUFFER_V,      /* rows x kv_heads*head */
	BUFFER_A,      /* rows x heads*head: what attention gives */
	BUFFER_F,      /* rows x ff: gate * up */
	BUFFER_LOGITS, /* samples x vocab */
	BUFFER_COUNT
};

/* A digest of 128 bits of a page's first `tokens` positions (kernels/README.md), asked for and made. */
struct ops_digest {
	uint32_t group, page, tokens, reserved;
	uint64_t digest[2];
};

struct ops {
	const char *name;

	/* Memory needs of a plan, without making anything. -ERR_OUT_OF_RANGE if it makes no sense. */
	int (*device_needs)(const struct device_plan *plan, struct device_needs *out);
	int (*device_open)(const struct device_plan *plan, struct device **out);
	void (*device_close)(struct device **device);
	/* What runs: "avx512", "avx2", "scalar"; the activations in use; threads. */
	const char *(*device_isa)(const struct device *device);
	enum act_kind (*device_act)(const struct device *device);
	uint32_t (*device_threads)(const struct device *device);
	/* Bytes that libraries took of the device's memory when it was opened, as measured; device_needs does
	   not know them. */
	uint64_t (*device_beside)(const struct device *device);

	/* Packs rows x columns (columns contiguous: the contraction axis) from `data`, which may be
	   freed afterwards. -ERR_UNSUPPORTED for the type, -ERR_BAD_FILE for a scale that is not
	   finite, -ERR_MEMORY. */
	int (*weight_make)(struct device *device, uint32_t type, enum weight_use use, uint32_t rows,
			   uint32_t columns, const void *data, struct weight **out);
	void (*weight_free)(struct device *device, struct weight **weight);
	uint64_t (*weight_bytes)(const struct weight *weight);
	/* What weight_bytes of such a weight will be on a device of the plan, without making it; 0 if
	   the type is not taken. */
	uint64_t (*weight_needs)(const struct device_plan *plan, uint32_t type, enum weight_use use,
				 uint32_t rows, uint32_t columns);
	/* Dequantises rows back to f32 on the host; synchronous. */
	int (*weight_rows)(struct device *device, const struct weight *weight, uint32_t row_first,
			   uint32_t row_count, float *out);

	/* Synchronous, between steps. offset and count in floats. */
	int (*buffer_write)(struct device *device, enum ops_buffer buffer, size_t offset,
			    size_t count, const float *from);
	int (*buffer_read)(struct device *device, enum ops_buffer buffer, size_t offset,
			   size_t count, float *to);

	/* Copies the block and makes it the current batch; checks every count, offset and index in
	   it against the plan first (-ERR_OUT_OF_RANGE, nothing changed). Clears faults. */
	int (*batch)(struct device *device, const struct ops_batch *block);
	/* Compares all expected tags with those beside the pages; see K4. tag_skip is the no-op for
	   --integrity off. */
	int (*tag_check)(struct device *device);
	int (*tag_skip)(struct device *device);

	/* X = embedding[token] * scale. */
	int (*embed)(struct device *device, const struct weight *embedding, float scale);
	/* Q, K, V = norm(X) times q, k, v, plus biases. */
	int (*qkv)(struct device *device, const struct ops_layer *layer);
	/* Norms of q and k if any, RoPE, encode K and V, write them to the pages of each row. */
	int (*rope_write)(struct device *device, const struct ops_layer *layer);
	/* A = attention of Q over the pages. */
	int (*attend)(struct device *device, const struct ops_layer *layer);
	/* X += [post norm](A times output). */
	int (*output)(struct device *device, const struct ops_layer *layer);
	/* F = gate(norm(X) times gate) * (norm(X) times up). */
	int (*gate_up)(struct device *device, const struct ops_layer *layer);
	/* X += [post norm](F times down). */
	int (*down)(struct device *device, const struct ops_layer *layer);
	/* LOGITS = norm(X of the sampled rows) times head; ids of `vocab` and above do not exist.
	   softcap 0: none. */
	int (*head)(struct device *device, const struct weight *norm, float epsilon,
		    const struct weight *head, float softcap);
	int (*sample)(struct device *device);
	/* Waits for all that was submitted. sampled: sample_count entries, faults: sequence_count;
	   either may be NULL. */
	int (*wait)(struct device *device, struct ops_sampled *sampled, struct ops_fault *faults);

	/* Pages. Synchronous, between steps; indices within the plan (-ERR_OUT_OF_RANGE). A tag is
	   set at assignment, counting up over the run. */
	int (*page_tags_set)(struct device *device, uint32_t group, uint32_t page_first,
			     uint32_t page_count, uint64_t tag_first);
	int (*page_tag)(struct device *device, uint32_t group, uint32_t page, uint64_t *tag);
	int (*page_clear)(struct device *device, uint32_t group, uint32_t page_first,
			  uint32_t page_count);
	int (*page_copy)(struct device *device, uint32_t group, uint32_t from, uint32_t to);
	int (*page_read)(struct device *device, uint32_t group, uint32_t page, void *to);
	int (*page_write)(struct device *device, uint32_t group, uint32_t page, const void *from);
	/* Makes the digests of a list; all of it is checked first. */
	int (*page_digests)(struct device *device, struct ops_digest *list, uint32_t count);
	/* Host memory that pages will be read to and written from, once a device; it outlives the device. A
	   refusal (-ERR_MEMORY) costs speed and nothing else. */
	int (*host_pin)(struct device *device, void *memory, size_t bytes);
};

/* Of one page. */
static inline int ops_page_digest(const struct ops *ops, struct device *device, uint32_t group, uint32_t page,
				  uint32_t tokens, uint64_t digest[2])
{
	struct ops_digest one = {group, page, tokens, 0, {0, 0}};
	const int code = ops->page_digests(device, &one, 1);
	digest[0] = one.digest[0];
	digest[1] = one.digest[1];
	return code;
}

/* The CPU's table. Every slot is filled. */
const struct ops *ops_cpu(void);

/* CUDA's table, NULL in a build without it. Whether a GPU can be used: 0 with what it is in reason,
   or -ERR_UNSUPPORTED or -ERR_OUT_OF_RANGE with one line on what was found and what is needed. And
   its memory; -ERR_UNSUPPORTED. */
const struct ops *ops_cuda(void);
int ops_cuda_find(uint32_t gpu, char *reason, size_t room);
int ops_cuda_memory(uint32_t gpu, uint64_t *free_bytes, uint64_t *total_bytes);

/* The best instruction set of this machine, and whether one can run. */
enum isa ops_isa_best(void);
int ops_isa_runs(enum isa isa);
const char *ops_isa_name(enum isa isa);
/* Whether this machine's CPU, under the set, multiplies faster with the kind's copy than with the file's
   weights. The set must run here; ISA_AUTO is the best. */
int ops_isa_prefill(enum isa isa, enum prefill_kind kind);

/* What the set has here beside its name, as "VNNI VBMI AMX"; "" for nothing. For people: no result and no
   page depends on it. */
const char *ops_isa_beside(enum isa isa);

/* Does `rounds` rounds of the instruction set's fastest multiply-adds of a kind on registers, and says how
   many they were: timed, it is the bound that no product of the kind can pass. In 8 bits, in f32 (of
   attention), and in 8 bits by tiles; 0 where the machine has none. The set must run here; ISA_AUTO is the
   best. Any thread. */
enum isa_work { ISA_WORK_DOT, ISA_WORK_F32, ISA_WORK_TILE };
uint64_t ops_isa_work(enum isa isa, enum isa_work kind, uint64_t rounds);

#ifdef __cplusplus
}
#endif

#endif
