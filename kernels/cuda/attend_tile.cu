/*
 * Attention on tensor cores (variant B): up to 8 * NT query vectors, of one row or of several rows of
 * a sequence, that share a KV head. Decoding and prefill are the same arithmetic: a query vector is
 * a column of mma.m16n8k16, and columns know nothing of each other, so neither NT nor the company
 * changes a result.
 *
 * A block has one unit, one KV head, and one partition or all in turn. K and V come to shared memory
 * by async copies, 64 positions at a time, four times K, then four times V. Scores: a warp takes 16
 * positions as the rows of A; K in bf16 (exact for FP8 and INT8), the scale after. Values: O^T = V^T
 * P^T; warp w has the places 8g+2w and 8g+2w+1 of each 64 of the head, positions ascend. P times V's
 * scale is rounded to bf16, sums are f32.
 *
 * What no row of the unit sees counts as zero before it is multiplied: it may be NaN.
 */
#include "kernels/cuda/attend.h"

enum { CHUNK_TOKENS = 64, CHUNKS = OPS_PARTITION / CHUNK_TOKENS, CHUNK_TILES = CHUNK_TOKENS / TILE_TOKENS };

/* Two pairs that lie together: 4 bytes of an 8-bit kind, 8 of bf16. */
template <int KV>
__device__ static inline void pairs_load(const uint8_t *at, unsigned *first, unsigned *second)
{
	if (KV == KV_BF16) {
		const uint2 v = load_vector<uint2>(at);
		*first = v.x;
		*second = v.y;
	} else {
		const unsigned v = load_vector<unsigned>(at);
		*first = bytes_pair<KV>(v, 0);
		*second = bytes_pair<KV>(v, 1);
	}
}

template <int KV> __device__ static inline float tile_scale(uint8_t byte)
{
	return KV == KV_BF16 ? 1.0f : kv_scale_value((enum kv_kind)KV, byte);
}

/* Shared memory of a block. */
struct tile_room {
	uint16_t *q;        /* vectors x q_stride, bf16 */
	float *scores;      /* vectors x SCORES */
	float *o;           /* vectors x head: the running values */
	float *m, *l;       /* of the partition, then of all: 2 x vectors */
	float *keep, *add;  /* factors of the next merge */
	uint32_t *from, *to;
	uint8_t *stage;     /* two chunks */
	uint32_t stage_bytes;
	struct tile_at *tiles;
	uint32_t q_stride;
};

__device__ static inline struct tile_room room_of(uint8_t *at, uint32_t head, uint32_t bytes,
						  uint32_t vectors)
{
	struct tile_room r;
	r.q_stride = head + 8; /* rows of q in different banks */
	r.stage = at;
	r.stage_bytes = CHUNK_TOKENS * head * bytes;
	r.tiles = reinterpret_cast<struct tile_at *>(at + 2 * CHUNK_TOKENS * head * bytes);
	r.scores = reinterpret_cast<float *>(r.tiles + TILES);
	r.o = r.scores + vectors * SCORES;
	r.m = r.o + vectors * head;
	r.l = r.m + 2 * vectors;
	r.keep = r.l + 2 * vectors;
	r.add = r.keep + vectors;
	r.from = reinterpret_cast<uint32_t *>(r.add + vectors);
	r.to = r.from + vectors;
	r.q = reinterpret_cast<uint16_t *>(r.to + vectors);
	return r;
}

size_t attend_tile_bytes(enum kv_kind kv, uint32_t head, uint32_t vectors)
{
	return 2 * CHUNK_TOKENS * head * kv_value_bytes(kv) + TILES * sizeof(struct tile_at) +
	       vectors * (SCORES * 4 + head * 4 + 8 * 4 + (head + 8) * 2);
}

/* Copies a chunk's tiles that some row sees: of K, or of V. */
__device__ static inline void chunk_fetch(const struct tile_room *r, uint32_t chunk, uint32_t tile_bytes,
					  size_t v_offset, uint32_t low, uint32_t high)
{
	const bool is_v = chunk >= CHUNKS;
	uint8_t *const to = r->stage + chunk % 2 * r->stage_bytes;
	for (uint32_t i = 0; i < CHUNK_TILES; i++) {
		const uint32_t tile = chunk % CHUNKS * CHUNK_TILES + i;
		if (tile < low || tile >= high)
			continue;
		const uint8_t *const from = r->tiles[tile].k + (is_v ? v_offset : 0);
		for (uint32_t b = threadIdx.x * 16; b < tile_bytes; b += ATTEND_THREADS * 16)
			copy_async_16(to + i * tile_bytes + b, from + b);
	}
}

/* Scores of one tile of 16 positions, lying at k, for all vectors; row g of A is position 2g, row g+8
   position 2g+1. */
template <int KV, int NT>
__device__ static inline void chunk_scores(const struct attend_args *a, const struct tile_room *r,
					   const uint8_t *k, uint32_t tile)
{
	const int lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
	const uint32_t head = a->head, values = kv_group_values(head), bytes = KV == KV_BF16 ? 2 : 1;
	float sum[NT][4];
#pragma unroll
	for (int n = 0; n < NT; n++)
		sum[n][0] = sum[n][1] = sum[n][2] = sum[n][3] = 0;
	for (uint32_t first = 0; first < head; first += values) {
		float part[NT][4];
#pragma unroll
		for (int n = 0; n < NT; n++)
			part[n][0] = part[n][1] = part[n][2] = part[n][3] = 0;
#pragma unroll 4
		for (uint32_t d = first; d < first + values; d += 16) {
			/* The four values from place d + 4t, of two positions: two pairs each. */
			const uint8_t *const at = k + (size_t)(d * 16 + t * 64 + g / 2 * 16 + g % 2 * 4) * bytes;
			unsigned x[4];
			pairs_load<KV>(at, &x[0], &x[1]);
			pairs_load<KV>(at + 8 * bytes, &x[2], &x[3]);
#pragma unroll
			for (int n = 0; n < NT; n++) {
				const uint2 q = load_vector<uint2>(r->q + (n * 8 + g) * r->q_stride + d + 4 * t);
				const unsigned y[2] = {q.x, q.y};
				mma_bf16(part[n], x, y);
			}
		}
		const uint8_t *const scales = r->tiles[tile].scales + first / values * a->page_tokens + 2 * g;
		const float s0 = KV == KV_BF16 ? 1.0f : tile_scale<KV>(scales[0]);
		const float s1 = KV == KV_BF16 ? 1.0f : tile_scale<KV>(scales[1]);
#pragma unroll
		for (int n = 0; n < NT; n++)
#pragma unroll
			for (int i = 0; i < 4; i++)
				sum[n][i] = fmaf(part[n][i], i < 2 ? s0 : s1, sum[n][i]);
	}
#pragma unroll
	for (int n = 0; n < NT; n++)
#pragma unroll
		for (int i = 0; i < 4; i++) {
			const uint32_t vector = n * 8 + 2 * t + (i & 1);
			const uint32_t token = tile * TILE_TOKENS + 2 * g + (i >> 1);
			const bool seen = token >= r->from[vector] && token < r->to[vector];
			r->scores[vector * SCORES + token] = seen ? score_cap(sum[n][i], a->softcap) : -INFINITY;
		}
}

/* The positions of a pair within low .. high-1, as a mask of its halves. */
__device__ static inline unsigned pair_mask(uint32_t token, uint32_t low, uint32_t high)
{
	return (token >= low && token < high ? 0xffffu : 0) |
	       (token + 1 >= low && token + 1 < high ? 0xffff0000u : 0);
}

/* Where a head has one or two groups of scales, a partition's weights are multiplied with V's and rounded
   once, for all warps: the weights of positions 2i and 2i+1 become the pair for the first 64 places of the
   head, and that for the next. */
template <int MT> __device__ static inline bool packed()
{
	return MT <= 2;
}

template <int KV, int NT>
__device__ static inline void weights_pack(const struct attend_args *a, const struct tile_room *r,
					   uint32_t tile_low, uint32_t tile_high)
{
	const uint32_t token = 2 * threadIdx.x, tile = token / TILE_TOKENS;
	const uint32_t groups = kv_group_count(a->head);
	static_assert(2 * ATTEND_THREADS == OPS_PARTITION, "a pair a thread");
	if (tile < tile_low || tile >= tile_high)
		return;
	float s[2][2] = {{1, 1}, {1, 1}};
	for (uint32_t j = 0; KV != KV_BF16 && j < 2; j++) {
		const uint32_t line = groups + (groups > 1 ? j : 0);
		const uint8_t *const scales =
			r->tiles[tile].scales + line * a->page_tokens + token % TILE_TOKENS;
		s[j][0] = tile_scale<KV>(scales[0]);
		s[j][1] = tile_scale<KV>(scales[1]);
	}
	for (uint32_t v = 0; v < NT * 8; v++) {
		uint2 *const at = reinterpret_cast<uint2 *>(r->scores + v * SCORES + token);
		const uint2 p = load_vector<uint2>(at);
		const float p0 = float_from_bits(p.x), p1 = float_from_bits(p.y);
		at->x = bf16_pair(p0 * s[0][0], p1 * s[0][1]);
		at->y = bf16_pair(p0 * s[1][0], p1 * s[1][1]);
	}
}

/* Adds one tile's weighted values: acc[j] has places 64j + 8g + 2 warp (rows g) and the next (g+8). WHOLE:
   all of its positions are within low .. high-1. */
template <int KV, int NT, int MT, bool WHOLE>
__device__ static inline void chunk_values(const struct attend_args *a, const struct tile_room *r,
					   const uint8_t *v, uint32_t tile, uint32_t low, uint32_t high,
					   float acc[MT][NT][4])
{
	const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, g = lane / 4, t = lane % 4;
	const uint32_t head = a->head, bytes = KV == KV_BF16 ? 2 : 1, first = tile * TILE_TOKENS;
	const uint32_t groups = kv_group_count(head), token = first + 2 * t;
	uint2 y0[NT], y1[NT];
#pragma unroll
	for (int n = 0; packed<MT>() && n < NT; n++) {
		const float *const p = r->scores + (n * 8 + g) * SCORES + token;
		y0[n] = load_vector<uint2>(p);
		y1[n] = load_vector<uint2>(p + 8);
	}
#pragma unroll
	for (int j = 0; j < MT; j++) {
		const uint32_t d = 64 * j + 8 * g + 2 * warp;
		if (64u * j >= head)
			break;
		unsigned x[4] = {0, 0, 0, 0};
		if (d < head) {
			const uint8_t *const at = v + (size_t)(t * 2 * head + 2 * d) * bytes;
			pairs_load<KV>(at, &x[0], &x[1]);
			pairs_load<KV>(at + (size_t)8 * head * bytes, &x[2], &x[3]);
		}
		if (!WHOLE) {
			const unsigned mask0 = pair_mask(token, low, high), mask1 = pair_mask(token + 8, low, high);
			x[0] &= mask0;
			x[1] &= mask0;
			x[2] &= mask1;
			x[3] &= mask1;
		}
		float s[4] = {1, 1, 1, 1};
		if (KV != KV_BF16 && !packed<MT>()) {
			const uint32_t line = groups + (groups > 1 ? j : 0);
			const uint8_t *const scales = r->tiles[tile].scales + line * a->page_tokens + 2 * t;
			s[0] = tile_scale<KV>(scales[0]);
			s[1] = tile_scale<KV>(scales[1]);
			s[2] = tile_scale<KV>(scales[8]);
			s[3] = tile_scale<KV>(scales[9]);
		}
#pragma unroll
		for (int n = 0; n < NT; n++) {
			if (packed<MT>()) {
				const unsigned y[2] = {j ? y0[n].y : y0[n].x, j ? y1[n].y : y1[n].x};
				mma_bf16(acc[j][n], x, y);
				continue;
			}
			const float *const p = r->scores + (n * 8 + g) * SCORES + token;
			const uint2 p0 = load_vector<uint2>(p), p1 = load_vector<uint2>(p + 8);
			const unsigned y[2] = {
				bf16_pair(float_from_bits(p0.x) * s[0], float_from_bits(p0.y) * s[1]),
				bf16_pair(float_from_bits(p1.x) * s[2], float_from_bits(p1.y) * s[3])};
			mma_bf16(acc[j][n], x, y);
		}
	}
}

/* A chunk of tiles from `tile` on. */
template <int KV, int NT, int MT>
__device__ static inline void tiles_values(const struct attend_args *a, const struct tile_room *r,
					   const uint8_t *stage, uint32_t tile, uint32_t low, uint32_t high,
					   float acc[MT][NT][4])
{
	const uint32_t bytes = TILE_TOKENS * a->head * (KV == KV_BF16 ? 2 : 1), end = tile + CHUNK_TILES;
	if (tile * TILE_TOKENS >= low && end * TILE_TOKENS <= high) {
#pragma unroll 2
		for (; tile < end; tile++, stage += bytes)
			chunk_values<KV, NT, MT, true>(a, r, stage, tile, low, high, acc);
		return;
	}
#pragma unroll 1
	for (; tile < end; tile++, stage += bytes)
		if ((tile + 1) * TILE_TOKENS > low && tile * TILE_TOKENS < high)
			chunk_values<KV, NT, MT, false>(a, r, stage, tile, low, high, acc);
}

/* The partition's values to where they go: stored, first, or merged with what is there. */
template <int NT, int MT>
__device__ static inline void values_keep(const struct attend_args *a, const struct tile_room *r,
					  float *stored, bool begins, uint32_t vectors, const float acc[MT][NT][4])
{
	const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, g = lane / 4, t = lane % 4;
#pragma unroll
	for (int j = 0; j < MT; j++)
#pragma unroll
		for (int n = 0; n < NT; n++)
#pragma unroll
			for (int i = 0; i < 4; i++) {
				const uint32_t d = 64 * j + 8 * g + 2 * warp + (i >> 1);
				const uint32_t vector = n * 8 + 2 * t + (i & 1);
				if (d >= a->head || vector >= vectors)
					continue;
				float *const o = (stored ? stored + 2 * vectors : r->o) + vector * a->head + d;
				if (stored || begins)
					*o = acc[j][n][i];
				else if (r->add[vector] >= 0) /* negative: it saw nothing */
					*o = *o * r->keep[vector] + acc[j][n][i] * r->add[vector];
			}
}

/* Factors of the merge, and the running maximum and sum, a thread a vector. */
__device__ static inline void marks_fold(const struct tile_room *r, uint32_t room, uint32_t v, bool begins)
{
	float *const m = r->m + room + v, *const l = r->l + room + v;
	if (begins) {
		*m = r->m[v];
		*l = r->l[v];
	} else if (fold_factors(m, r->m[v], &r->keep[v], &r->add[v])) {
		*l = *l * r->keep[v] + r->l[v] * r->add[v];
	} else {
		r->add[v] = -1;
	}
}

/* One partition: scores, weights, values; acc holds the values at the end. */
template <int KV, int NT, int MT>
__device__ static inline void partition_attend(const struct attend_args *a, const struct tile_room *r,
					       uint32_t low, uint32_t high, float acc[MT][NT][4])
{
	const int warp = threadIdx.x / WARP;
	const uint32_t tile_bytes = TILE_TOKENS * a->head * (KV == KV_BF16 ? 2 : 1);
	const uint32_t tile_low = low / TILE_TOKENS, tile_high = (high + TILE_TOKENS - 1) / TILE_TOKENS;
	chunk_fetch(r, 0, tile_bytes, a->block_bytes, tile_low, tile_high);
	copy_commit();
	for (uint32_t chunk = 0; chunk < 2 * CHUNKS; chunk++) {
		if (chunk + 1 < 2 * CHUNKS)
			chunk_fetch(r, chunk + 1, tile_bytes, a->block_bytes, tile_low, tile_high);
		copy_commit();
		copy_wait<1>();
		__syncthreads();
		if (chunk == CHUNKS) {
			for (uint32_t v = warp; v < NT * 8; v += ATTEND_WARPS)
				scores_weigh(r->scores + v * SCORES, r->m + v, r->l + v);
			__syncthreads();
			if (packed<MT>()) {
				weights_pack<KV, NT>(a, r, tile_low, tile_high);
				__syncthreads();
			}
		}
		const uint32_t tile = chunk % CHUNKS * CHUNK_TILES;
		const uint8_t *const stage = r->stage + chunk % 2 * r->stage_bytes;
		if (chunk < CHUNKS) {
			if (tile + warp >= tile_low && tile + warp < tile_high)
				chunk_scores<KV, NT>(a, r, stage + warp * tile_bytes, tile + warp);
		} else {
			tiles_values<KV, NT, MT>(a, r, stage, tile, low, high, acc);
		}
		__syncthreads(); /* the next copy but one goes where this chunk was */
	}
	copy_wait<0>();
}

template <int KV, int NT, int MT>
__global__ __launch_bounds__(ATTEND_THREADS, NT > 1 ? 2 : MT > 4 ? 3 : 5)
void attend_tile(const struct attend_args a)
{
	SHARED_DYNAMIC(uint8_t, room);
	if (blockIdx.x >= STEP(a.step)->unit_count[a.kind])
		return;
	const struct unit u = STEP_UNITS(a.step, a.kind)[blockIdx.x];
	const uint32_t kv_head = blockIdx.y, vectors = u.row_count * (a.heads / a.kv_heads);
	uint32_t first, last;
	unit_partitions(&a, &u, &first, &last);
	if (a.partials && first + blockIdx.z > last)
		return;
	if (unit_refuse(&a, &u, kv_head))
		return;
	const struct ops_sequence *const s = STEP_SEQUENCES(a.step) + u.sequence;
	const struct tile_room r = room_of(room, a.head, KV == KV_BF16 ? 2 : 1, NT * 8);
	for (uint32_t e = threadIdx.x; e < NT * 8 * a.head; e += ATTEND_THREADS) {
		const uint32_t v = e / a.head, d = e % a.head;
		const float x = v < vectors ? query_value(&a, query(&a, &u, kv_head, v), kv_head, d) : 0.0f;
		r.q[v * r.q_stride + d] = bf16_encode(x);
	}
	const uint32_t begin = a.partials ? first + blockIdx.z : first, end = a.partials ? begin : last;
	for (uint32_t p = begin; p <= end; p++) {
		const uint32_t base = p * OPS_PARTITION;
		uint32_t low, high;
		seen_within(seen_from(&a, s, u.position), u.position + u.row_count - 1, base, &low, &high);
		__syncthreads(); /* what is there was read */
		if (threadIdx.x < TILES)
			r.tiles[threadIdx.x] = tile_find(&a, s, base + threadIdx.x * TILE_TOKENS, kv_head,
							 KV == KV_BF16 ? 2 : 1);
		if (threadIdx.x < NT * 8) {
			const uint32_t position = u.position + threadIdx.x / (a.heads / a.kv_heads);
			seen_within(seen_from(&a, s, position), position, base, r.from + threadIdx.x,
				    r.to + threadIdx.x);
			if (threadIdx.x >= vectors)
				r.to[threadIdx.x] = 0;
		}
		for (uint32_t e = threadIdx.x; e < NT * 8 * SCORES; e += ATTEND_THREADS)
			r.scores[e] = -INFINITY;
		__syncthreads();
		float acc[MT][NT][4];
#pragma unroll
		for (int j = 0; j < MT; j++)
#pragma unroll
			for (int n = 0; n < NT; n++)
				acc[j][n][0] = acc[j][n][1] = acc[j][n][2] = acc[j][n][3] = 0;
		partition_attend<KV, NT, MT>(&a, &r, low, high, acc);
		float *const stored = a.partials ? partial_at(&a, blockIdx.x, kv_head, p - first,
							      attend_vectors(a.kind, a.heads / a.kv_heads))
						 : NULL;
		if (stored && threadIdx.x < vectors) {
			stored[threadIdx.x] = r.m[threadIdx.x];
			stored[vectors + threadIdx.x] = r.l[threadIdx.x];
		}
		if (!stored && threadIdx.x < NT * 8)
			marks_fold(&r, NT * 8, threadIdx.x, p == begin);
		__syncthreads();
		values_keep<NT, MT>(&a, &r, stored, p == begin, vectors, acc);
	}
	if (a.partials)
		return;
	__syncthreads();
	for (uint32_t e = threadIdx.x; e < vectors * a.head; e += ATTEND_THREADS) {
		const float l = r.l[NT * 8 + e / a.head];
		attended(&a, &u, kv_head, e / a.head)[e % a.head] = r.o[e] * (l > 0 ? 1.0f / l : 0.0f);
	}
}

/* One function of the kernel's instances: launches it, or asks for its shared memory. */
struct tile_use {
	const struct attend_args *args;
	dim3 grid;
	cudaStream_t stream;
	size_t bytes;
	cudaError_t error;
};

template <int KV, int NT, int MT> static void tile_do(struct tile_use *u)
{
	if (u->args)
		LAUNCH(INSTANCE(attend_tile<KV, NT, MT>), u->grid, dim3(ATTEND_THREADS), u->bytes, u->stream,
		       *u->args);
	else
		u->error = cudaFuncSetAttribute(attend_tile<KV, NT, MT>,
						cudaFuncAttributeMaxDynamicSharedMemorySize, (int)u->bytes);
}

template <int KV> static void tile_pick(struct tile_use *u, uint32_t head, uint32_t vectors)
{
	const bool few = vectors <= 8;
	if (head <= 64)
		few ? tile_do<KV, 1, 1>(u) : tile_do<KV, 4, 1>(u);
	else if (head <= 128)
		few ? tile_do<KV, 1, 2>(u) : tile_do<KV, 4, 2>(u);
	else if (head <= 256)
		few ? tile_do<KV, 1, 4>(u) : tile_do<KV, 4, 4>(u);
	else
		tile_do<KV, 1, 8>(u);
}

static void tile_use_it(struct tile_use *u, enum kv_kind kv, uint32_t head, uint32_t vectors)
{
	switch (kv) {
	case KV_FP8: tile_pick<KV_FP8>(u, head, vectors); break;
	case KV_INT8: tile_pick<KV_INT8>(u, head, vectors); break;
	default: tile_pick<KV_BF16>(u, head, vectors);
	}
}

void attend_tile_launch(const struct attend_args *a, enum kv_kind kv, dim3 grid, size_t shared,
			cudaStream_t stream)
{
	struct tile_use u = {a, grid, stream, shared, cudaSuccess};
	tile_use_it(&u, kv, a->head, attend_vectors(a->kind, a->heads / a->kv_heads));
}

cudaError_t attend_tile_prepare(enum kv_kind kv, uint32_t head, uint32_t vectors)
{
	const size_t bytes = attend_tile_bytes(kv, head, vectors <= 8 ? 8 : 32);
	struct tile_use u = {NULL, dim3(1), NULL, bytes, cudaSuccess};
	tile_use_it(&u, kv, head, vectors);
	return u.error;
}
