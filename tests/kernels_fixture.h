/*
 * What the tests of kernels/ share: random numbers, stored weights of any type, a small
 * model on a device beside the same weights in double, and batch blocks.
 */
#ifndef HOLDFAST_TESTS_KERNELS_FIXTURE_H
#define HOLDFAST_TESTS_KERNELS_FIXTURE_H

#include <stddef.h>
#include <stdint.h>

#include "kernels/ops.h"

/* splitmix64 (Steele, Lea and Flood 2014). */
uint64_t random_next(uint64_t *state);
float random_normal(uint64_t *state); /* about: the sum of 12 uniforms */
uint32_t random_below(uint64_t *state, uint32_t limit);

/* Random valid data of a type, `count` values with a spread of about `size`; freed by the
   caller. */
uint8_t *random_weight(uint64_t *state, uint32_t type, size_t count, float size);

/* One weight: on the device, and what it means. */
struct fixture_weight {
	struct weight *packed;
	float *values;
	uint32_t rows, columns;
};

enum { FIXTURE_LAYERS = 2 };

struct fixture_layer {
	struct fixture_weight attn_norm, q, k, v, q_bias, k_bias, v_bias, q_norm, k_norm,
		output, post_attn, ffn_norm, gate, up, down, post_ffn, smooth, factors;
	struct ops_layer ops;
};

struct fixture_options {
	uint32_t matmul_type, embedding_type;
	int biases, qk_norms, post_norms, smooth, factors;
	uint32_t window; /* of odd layers */
	float softcap, logit_softcap;
	enum rope_kind rope;
	enum gate_kind gate;
	float attention_size; /* factor of q.k; 0: 1/sqrt(head) */
};

struct fixture {
	const struct ops *ops;
	struct device *device;
	struct device_plan plan;
	struct fixture_options options;
	struct fixture_weight embedding, norm;
	struct fixture_layer layer[FIXTURE_LAYERS];
};

/* Whose devices fixture_open opens; the CPU's, unless built otherwise. */
extern const struct ops *(*fixture_table)(void);

/* A plan with small sizes that tests then change. */
struct device_plan fixture_plan(void);

/* Aborts if the device cannot be opened: the tests have no way on. The same seed, shapes
   and options give the same weights whatever isa, act, kv and threads are. */
void fixture_open(struct fixture *f, const struct device_plan *plan,
		  const struct fixture_options *options, uint64_t seed);
void fixture_close(struct fixture *f);

/* One sequence of a batch: tokens of positions first .. first+count-1, on pages page,
   page+1, … of group 0 (and of each other group), the first of which is at position 0. */
struct fixture_sequence {
	const uint32_t *tokens; /* of the whole sequence, by position */
	uint32_t first, count, page;
	uint64_t tag; /* of its first page, counting up */
};

/* A block of sequences with every row sampled (greedy, one alternative) if `sample` is 1,
   or only each sequence's last if 2. Freed by the caller. */
struct ops_batch *fixture_block(const struct fixture *f,
				const struct fixture_sequence *sequences, uint32_t count,
				int sample);
struct ops_sample *block_samples(struct ops_batch *block);

/* The whole step on the current batch; the first code that is not 0. */
int fixture_step(struct fixture *f);

/* Batch and step; out gets samples x vocab logits if not NULL. */
int fixture_run(struct fixture *f, const struct fixture_sequence *sequences, uint32_t count,
		int sample, float *out);

/* Logits of every position of one sequence, in double, nothing quantised but
   the weights. */
void fixture_model(const struct fixture *f, const uint32_t *tokens, uint32_t count,
		   double *logits);

#endif
