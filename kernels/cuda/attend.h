/*
 * What the attention kernels share: which positions a row sees, where its tiles lie, how partials are
 * merged. Private to kernels/cuda/.
 *
 * The definition is that of every device: partitions of 256 absolute positions, each with a maximum,
 * a sum and weighted values, merged in ascending order by fold_factors. Whether partials are stored
 * and merged by a kernel of their own, or folded one after the other by the block that made them,
 * depends on the load; the sums do not.
 */
#ifndef HOLDFAST_KERNELS_CUDA_ATTEND_H
#define HOLDFAST_KERNELS_CUDA_ATTEND_H

#include "kernels/cpu/math.h"
#include "kernels/cuda/cuda.h"

enum {
	ATTEND_THREADS = 128,
	ATTEND_WARPS = 4,
	TILE_TOKENS = 16,
	TILES = OPS_PARTITION / TILE_TOKENS,
	SCORES = OPS_PARTITION + 8 /* floats of a row of scores: the pad spreads rows over the banks */
};

/* Bytes 2i and 2i+1 of a word in the upper bytes of two halves. */
__device__ static inline unsigned bytes_apart(unsigned word, int i)
{
	return byte_permute(word, 0, i ? 0x3424 : 0x1404);
}

/* Both halves, bf16, times 2^120; subnormal ones too. */
__device__ static inline unsigned pair_raised(unsigned pair)
{
	return fma_bf16_pair(pair, 0x7b807b80u, 0x80008000u);
}

/* Bytes 2i and 2i+1 of a word as a pair of bf16, exactly. It is most of what a value costs: README.md
   counts its instructions. */
template <int KV> __device__ static inline unsigned bytes_pair(unsigned word, int i)
{
	if (KV == KV_INT8)
		return bf16_pair((float)(int8_t)(word >> (16 * i)), (float)(int8_t)(word >> (16 * i + 8)));
	/* Sign, exponent and mantissa moved make an exponent that is 120 too small; the products are exact. */
	const unsigned apart = bytes_apart(word, i);
	return pair_raised((apart & 0x80008000u) | (apart >> 4 & 0x07f007f0u));
}

/* The first position that a row at `position` sees. */
__device__ static inline uint32_t seen_from(const struct attend_args *a, const struct ops_sequence *s,
					    uint32_t position)
{
	const uint32_t first = a->window && position + 1 > a->window ? position + 1 - a->window : 0;
	return first > s->position_first ? first : s->position_first;
}

/* Within a partition: the positions from .. to-1 that a row sees; from >= to: none. */
__device__ static inline void seen_within(uint32_t first, uint32_t position, uint32_t base, uint32_t *from,
					  uint32_t *to)
{
	*from = first > base ? first - base : 0;
	*from = *from < OPS_PARTITION ? *from : (uint32_t)OPS_PARTITION;
	*to = position + 1 > base ? position + 1 - base : 0;
	*to = *to < OPS_PARTITION ? *to : (uint32_t)OPS_PARTITION;
}

/* The K tile of 16 positions from `position`, and their K scales. Before the sequence's first page,
   which no row sees, that page stands in. */
struct tile_at {
	const uint8_t *k, *scales;
};
__device__ static inline struct tile_at tile_find(const struct attend_args *a, const struct ops_sequence *s,
						  uint32_t position, uint32_t kv_head, uint32_t value_bytes)
{
	const uint32_t first = s->page_position[a->group];
	uint32_t index = position < first ? 0 : (position - first) / a->page_tokens;
	if (index >= s->page_count[a->group])
		index = s->page_count[a->group] - 1; /* beyond the last row: not read */
	const uint32_t page = STEP_PAGES(a->step)[s->page_first[a->group] + index].page;
	const uint32_t token = position % a->page_tokens;
	const uint8_t *const base = a->pages + a->page_bytes * page;
	struct tile_at at;
	at.k = base + a->block + (size_t)(2 * kv_head) * a->block_bytes + (size_t)token * a->head * value_bytes;
	at.scales = base + a->scales + (size_t)(2 * kv_head) * kv_group_count(a->head) * a->page_tokens + token;
	return at;
}

/* Merging a partial whose maximum is `m` into one whose is *to: the factors of what is there and of
   what comes. 0 if what comes saw nothing and changes nothing. */
__device__ static inline bool fold_factors(float *to, float m, float *keep, float *add)
{
	if (m == -INFINITY)
		return false;
	const float most = *to > m ? *to : m;
	*keep = exp_f32(*to - most);
	*add = exp_f32(m - most);
	*to = most;
	return true;
}

/* Turns 256 scores of one query vector into weights, by one warp; -infinity is what is not seen. */
__device__ static inline void scores_weigh(float *s, float *m, float *l)
{
	const int lane = threadIdx.x % WARP;
	float largest = -INFINITY, sum = 0;
	for (int i = 0; i < OPS_PARTITION / WARP; i++)
		largest = fmaxf(largest, s[lane + WARP * i]);
	for (int mask = 16; mask > 0; mask /= 2)
		largest = fmaxf(largest, warp_xor(largest, mask));
	for (int i = 0; i < OPS_PARTITION / WARP; i++) {
		const float x = s[lane + WARP * i];
		const float p = x == -INFINITY ? 0.0f : exp_f32(x - largest);
		s[lane + WARP * i] = p;
		sum += p;
	}
	for (int mask = 16; mask > 0; mask /= 2)
		sum += warp_xor(sum, mask);
	if (lane == 0) {
		*m = largest;
		*l = sum;
	}
}

__device__ static inline float score_cap(float x, float cap)
{
	return cap > 0 ? cap * tanhf(x / cap) : x;
}

/* Stored partials: of each unit, KV head and partition `vectors` maxima, sums, then values. */
__device__ static inline float *partial_at(const struct attend_args *a, uint32_t unit, uint32_t kv_head,
					   uint32_t partition, uint32_t vectors)
{
	const size_t size = (size_t)vectors * (a->head + 2);
	return a->partials + (((size_t)unit * a->kv_heads + kv_head) * a->partitions + partition) * size;
}

/* Where a unit's query vector goes: its row's head. */
__device__ static inline float *attended(const struct attend_args *a, const struct unit *u, uint32_t kv_head,
					 uint32_t vector)
{
	const uint32_t shared = a->heads / a->kv_heads;
	const size_t row = u->row_first + vector / shared;
	return a->out + (row * a->heads + kv_head * shared + vector % shared) * a->head;
}

/* The same place in Q. */
__device__ static inline const float *query(const struct attend_args *a, const struct unit *u,
					    uint32_t kv_head, uint32_t vector)
{
	return a->q + (attended(a, u, kv_head, vector) - a->out);
}

__device__ static inline float query_value(const struct attend_args *a, const float *q, uint32_t kv_head,
					   uint32_t d)
{
	const float x = a->smooth && a->kv == KV_INT8 ? q[d] * a->smooth[kv_head * a->head + d] : q[d];
	return x * a->scale;
}

/* Zeros for a sequence at fault; whether it was one. */
__device__ static inline bool unit_refuse(const struct attend_args *a, const struct unit *u, uint32_t kv_head)
{
	if (a->faults[u->sequence].page == (uint32_t)OPS_NONE)
		return false;
	const uint32_t vectors = u->row_count * (a->heads / a->kv_heads);
	for (uint32_t e = threadIdx.x; e < vectors * a->head; e += ATTEND_THREADS)
		attended(a, u, kv_head, e / a->head)[e % a->head] = 0;
	return true;
}

/* The partitions that a unit sees, first and last. */
__device__ static inline void unit_partitions(const struct attend_args *a, const struct unit *u,
					      uint32_t *first, uint32_t *last)
{
	const struct ops_sequence *const s = STEP_SEQUENCES(a->step) + u->sequence;
	*first = seen_from(a, s, u->position) / OPS_PARTITION;
	*last = (u->position + u->row_count - 1) / OPS_PARTITION;
}

void attend_row_launch(const struct attend_args *a, enum kv_kind kv, dim3 grid, size_t shared,
		       cudaStream_t stream);
void attend_tile_launch(const struct attend_args *a, enum kv_kind kv, dim3 grid, size_t shared,
			cudaStream_t stream);
size_t attend_row_bytes(uint32_t head, uint32_t group);
size_t attend_tile_bytes(enum kv_kind kv, uint32_t head, uint32_t vectors);
cudaError_t attend_row_prepare(enum kv_kind kv, uint32_t head, uint32_t group);
cudaError_t attend_tile_prepare(enum kv_kind kv, uint32_t head, uint32_t vectors);

#endif
