/*
 * The batch: one flat, pointer-free block that says what a step computes. The same for the CPU, a
 * GPU and every rank of several. Included by kernels/ops.h, which is the door.
 *
 * All offsets are bytes from the start of the block, multiples of 8. Rows of one sequence are
 * contiguous, in ascending positions without a gap. Compiles as C11 and as C++17.
 */
#ifndef HOLDFAST_KERNELS_BATCH_H
#define HOLDFAST_KERNELS_BATCH_H

#include <stdint.h>

enum { OPS_GROUP_MAX = 4, OPS_TOP_MAX = 16, OPS_NONE = 0xffffffff };

struct ops_batch {
	uint32_t bytes; /* of the whole block, this header included */
	uint32_t row_count, sequence_count, page_count, sample_count;
	uint32_t row_at, sequence_at, page_at, sample_at; /* arrays of the structs below */
	uint32_t extra_at; /* masks, counts and biases that samples point into */
	uint32_t reserved[6];
};

struct ops_row {
	uint32_t token, position;
	uint32_t sequence; /* index into the sequences */
	uint32_t phase;    /* 0 given token, 1 sampled token: which precision plan applies */
};

struct ops_sequence {
	uint32_t slot; /* the runtime's number for it, for messages only */
	uint32_t row_first, row_count;
	/* Per group: its pages in the page array, and the token position where the first begins. */
	uint32_t page_first[OPS_GROUP_MAX], page_count[OPS_GROUP_MAX];
	uint32_t page_position[OPS_GROUP_MAX];
	/* The first position that exists: what a first page holds before it is not seen. 0 for a
	   sequence with all its history. */
	uint32_t position_first;
};

struct ops_page {
	uint32_t page, group;
	uint64_t tag; /* the tag that the turn expects */
};

/* How one row's logits become a token. The steps, in this order: bias, penalties, mask; then the
   log-sum-exp for `logprob` is that of the raw logits, before all of them; then, for temperature
   above 0: divide by it, top_k, typical, top_p, min_p, draw. Temperature 0 takes the largest; of
   equals the lowest id. The draw's randomness is a pure function of (seed, position). */
struct ops_sample {
	uint32_t row;       /* index into the rows */
	uint32_t top_count; /* alternatives wanted with their log-probabilities, <= OPS_TOP_MAX */
	uint64_t seed;
	float temperature;  /* 0 .. 100 */
	float top_p;        /* (0, 1]; 1 is off */
	float min_p;        /* [0, 1); 0 is off */
	float typical;      /* (0, 1]; 1 is off */
	uint32_t top_k;     /* 0 is off */
	float repetition, presence, frequency; /* 1, 0, 0 are off; need counts */
	uint32_t mask_at;   /* 0: none; else vocab bits, 32 a word, 1 = allowed */
	uint32_t counts_at, count_count; /* pairs {u32 token, u32 times}, ascending tokens */
	uint32_t bias_at, bias_count;    /* pairs {u32 token, f32 added}, ascending tokens */
	uint32_t reserved;
};

/* What came out. */
struct ops_sampled {
	uint32_t token;     /* OPS_NONE: nothing was allowed, or the row's sequence is at fault */
	uint32_t top_count;
	float logprob;      /* of token, under the raw logits, natural */
	uint32_t top_token[OPS_TOP_MAX];
	float top_logprob[OPS_TOP_MAX];
};

/* Per sequence: the first page whose tag was not the expected one. */
struct ops_fault {
	uint32_t page;  /* OPS_NONE: all agreed */
	uint32_t group;
	uint64_t found; /* the tag beside the page */
};

#endif
