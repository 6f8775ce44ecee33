/*
 * Attention of one row on CUDA cores, in f32 (variant A): up to four query heads share what is read.
 *
 * A block has one row, one KV head, and one partition or all in turn. Scores: a warp takes a tile of
 * 16 positions; lane 4c+t reads 16 values, four of positions 4t..4t+3 from place 4c of the head. Sums
 * of a lane ascend over the head, then the eight lanes are added in a tree. Values: a thread has 8
 * places of the head and every n-th pair of positions; the n sums are added in order.
 */
#include "kernels/cuda/attend.h"

/* 16 values as they lie, without their scales. */
template <int KV> __device__ static inline void values_load(const uint8_t *at, float out[16])
{
	if (KV == KV_F32 || KV == KV_BF16) {
#pragma unroll
		for (int i = 0; i < (KV == KV_F32 ? 4 : 2); i++) {
			const uint4 v = load_vector<uint4>(at + 16 * i);
			const unsigned word[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
			for (int k = 0; k < 4; k++) {
				if (KV == KV_F32) {
					out[4 * i + k] = float_from_bits(word[k]);
				} else {
					out[8 * i + 2 * k] = float_from_bits(word[k] << 16);
					out[8 * i + 2 * k + 1] = float_from_bits(word[k] & 0xffff0000u);
				}
			}
		}
		return;
	}
	const uint4 v = load_vector<uint4>(at);
	const unsigned word[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
	for (int i = 0; i < 16; i++) {
		const unsigned c = word[i / 4] >> (8 * (i % 4)) & 0xff;
		/* FP8 as f32 with an exponent 120 too small; the product is exact. */
		out[i] = KV == KV_FP8 ? float_from_bits((c & 0x80) << 24 | (c & 0x7f) << 20) * 0x1p120f
				      : (float)(int8_t)c;
	}
}

template <int KV> __device__ static inline bool has_scales()
{
	return KV == KV_FP8 || KV == KV_INT8;
}

struct row_room {
	float *q;      /* G x head */
	float *scores; /* G x SCORES */
	float *sums;   /* of the values: groups x G x head */
	struct tile_at *tiles;
};

/* The scores of one tile by one warp. */
template <int KV, int G>
__device__ static inline void tile_scores(const struct attend_args *a, const struct row_room *r,
					  uint32_t tile, uint32_t from, uint32_t to)
{
	const int lane = threadIdx.x % WARP, place = lane / 4, four = lane % 4;
	const uint32_t head = a->head, bytes = kv_value_bytes((enum kv_kind)KV);
	float sum[4][G];
	for (int i = 0; i < 4; i++)
#pragma unroll
		for (int h = 0; h < G; h++)
			sum[i][h] = 0;
	const uint32_t values = kv_group_values(head);
	for (uint32_t first = 0; first < head; first += values) {
		float part[4][G];
#pragma unroll
		for (int i = 0; i < 4; i++)
#pragma unroll
			for (int h = 0; h < G; h++)
				part[i][h] = 0;
		for (uint32_t d = first + 4 * place; d < first + values; d += 32) {
			float k[16];
			values_load<KV>(r->tiles[tile].k + (size_t)(d / 4 * 64 + four * 16) * bytes, k);
#pragma unroll
			for (int h = 0; h < G; h++) {
				const float4 q = load_vector<float4>(r->q + h * head + d);
#pragma unroll
				for (int i = 0; i < 4; i++) {
					float x = fmaf(q.x, k[2 * i], part[i][h]);
					x = fmaf(q.y, k[2 * i + 1], x);
					x = fmaf(q.z, k[8 + 2 * i], x);
					part[i][h] = fmaf(q.w, k[8 + 2 * i + 1], x);
				}
			}
		}
		unsigned scales = 0;
		if (has_scales<KV>())
			scales = load_vector<unsigned>(r->tiles[tile].scales + first / values * a->page_tokens +
						       4 * four);
#pragma unroll
		for (int i = 0; i < 4; i++) {
			const float s = has_scales<KV>()
						? kv_scale_value((enum kv_kind)KV, (uint8_t)(scales >> (8 * i)))
						: 1.0f;
#pragma unroll
			for (int h = 0; h < G; h++)
				sum[i][h] = fmaf(part[i][h], s, sum[i][h]);
		}
	}
#pragma unroll
	for (int i = 0; i < 4; i++)
#pragma unroll
		for (int h = 0; h < G; h++) {
			float x = sum[i][h];
			for (int mask = 4; mask < WARP; mask *= 2)
				x += warp_xor(x, mask);
			const uint32_t t = tile * TILE_TOKENS + 4 * four + i;
			if (place == 0)
				r->scores[h * SCORES + t] = t >= from && t < to ? score_cap(x, a->softcap)
										: -INFINITY;
		}
}

/* The weighted values of the partition into r->sums, one thread's share. */
template <int KV, int G>
__device__ static inline void values_add(const struct attend_args *a, const struct row_room *r, uint32_t from,
					 uint32_t to)
{
	const uint32_t head = a->head, chunks = head / 8, groups = ATTEND_THREADS / chunks;
	const uint32_t chunk = threadIdx.x % chunks, group = threadIdx.x / chunks;
	const uint32_t bytes = kv_value_bytes((enum kv_kind)KV);
	const uint32_t line = (8 * chunk) / kv_group_values(head) + kv_group_count(head);
	float sum[8][G];
#pragma unroll
	for (int i = 0; i < 8; i++)
#pragma unroll
		for (int h = 0; h < G; h++)
			sum[i][h] = 0;
	if (group >= groups)
		return;
	for (uint32_t pair = from / 2 + group; 2 * pair < to; pair += groups) {
		const struct tile_at *const tile = r->tiles + pair / 8;
		float v[16];
		values_load<KV>(tile->k + a->block_bytes + (size_t)(pair % 8 * 2 * head + 16 * chunk) * bytes, v);
#pragma unroll
		for (int i = 0; i < 2; i++) {
			const uint32_t t = 2 * pair + i;
			if (t < from || t >= to)
				continue;
			const float s = has_scales<KV>()
						? kv_scale_value((enum kv_kind)KV,
								 tile->scales[line * a->page_tokens + t % TILE_TOKENS])
						: 1.0f;
#pragma unroll
			for (int h = 0; h < G; h++) {
				const float p = r->scores[h * SCORES + t] * s;
#pragma unroll
				for (int k = 0; k < 8; k++)
					sum[k][h] = fmaf(p, v[2 * k + i], sum[k][h]);
			}
		}
	}
#pragma unroll
	for (int h = 0; h < G; h++)
#pragma unroll
		for (int k = 0; k < 8; k++)
			r->sums[((size_t)group * G + h) * head + 8 * chunk + k] = sum[k][h];
}

/* The partition's values, added up over the groups, to where they go: stored, or into A. There each
   thread keeps its own elements, and reckons the factors for itself. */
template <int G>
__device__ static inline void values_keep(const struct attend_args *a, const struct row_room *r,
					  const struct unit *u, uint32_t kv_head, uint32_t vector,
					  const float *marks, float *stored, bool begins)
{
	const uint32_t head = a->head, shared = a->heads / a->kv_heads;
	const uint32_t groups = ATTEND_THREADS / (head / 8);
	for (uint32_t e = threadIdx.x; e < G * head; e += ATTEND_THREADS) {
		const uint32_t h = e / head, d = e % head;
		float sum = r->sums[(size_t)h * head + d];
		for (uint32_t i = 1; i < groups; i++)
			sum += r->sums[((size_t)i * G + h) * head + d];
		if (stored) {
			stored[2 * shared + (vector + h) * head + d] = sum;
			if (d == 0) {
				stored[vector + h] = marks[h];
				stored[shared + vector + h] = marks[G + h];
			}
			continue;
		}
		float *const out = attended(a, u, kv_head, vector + h) + d;
		float m = marks[2 * G + h], keep, add;
		if (begins)
			*out = sum;
		else if (fold_factors(&m, marks[h], &keep, &add))
			*out = *out * keep + sum * add;
	}
}

template <int KV, int G>
__global__ __launch_bounds__(ATTEND_THREADS, KV == KV_F32 ? 3 : 4) void attend_row(const struct attend_args a)
{
	SHARED_DYNAMIC(float, room);
	SHARED(struct tile_at, tiles, TILES);
	SHARED(float, marks, 4 * G); /* m, l of the partition; m, l of all */
	if (blockIdx.x >= STEP(a.step)->unit_count[UNIT_ROW])
		return;
	const struct unit u = STEP_UNITS(a.step, UNIT_ROW)[blockIdx.x];
	/* Groups of more than four heads are taken by several blocks. */
	const uint32_t shared = a.heads / a.kv_heads, parts = (shared + 3) / 4;
	const uint32_t kv_head = blockIdx.y / parts, vector = blockIdx.y % parts * 4;
	const uint32_t heads = shared - vector < 4 ? shared - vector : 4;
	const uint32_t head = a.head;
	const int warp = threadIdx.x / WARP;
	uint32_t first, last;
	unit_partitions(&a, &u, &first, &last);
	if (a.partials && first + blockIdx.z > last)
		return;
	if (unit_refuse(&a, &u, kv_head) || heads != G)
		return;
	const struct ops_sequence *const s = STEP_SEQUENCES(a.step) + u.sequence;
	const struct row_room r = {room, room + G * head, room + G * (head + SCORES), tiles};
	for (uint32_t e = threadIdx.x; e < G * head; e += ATTEND_THREADS)
		r.q[e] = query_value(&a, query(&a, &u, kv_head, vector + e / head), kv_head, e % head);
	const uint32_t begin = a.partials ? first + blockIdx.z : first, end = a.partials ? begin : last;
	for (uint32_t p = begin; p <= end; p++) {
		uint32_t from, to;
		seen_within(seen_from(&a, s, u.position), u.position, p * OPS_PARTITION, &from, &to);
		__syncthreads(); /* what is there was read */
		if (threadIdx.x < TILES)
			tiles[threadIdx.x] = tile_find(&a, s, p * OPS_PARTITION + threadIdx.x * TILE_TOKENS,
						       kv_head, kv_value_bytes((enum kv_kind)KV));
		for (uint32_t e = threadIdx.x; e < G * SCORES; e += ATTEND_THREADS)
			r.scores[e] = -INFINITY;
		__syncthreads();
		for (uint32_t t = from / TILE_TOKENS + warp; t * TILE_TOKENS < to; t += ATTEND_WARPS)
			tile_scores<KV, G>(&a, &r, t, from, to);
		__syncthreads();
		if (warp < G)
			scores_weigh(r.scores + warp * SCORES, marks + warp, marks + G + warp);
		__syncthreads();
		values_add<KV, G>(&a, &r, from, to);
		__syncthreads();
		values_keep<G>(&a, &r, &u, kv_head, vector, marks,
			       a.partials ? partial_at(&a, blockIdx.x, kv_head, p - first, shared) : NULL,
			       p == begin);
		__syncthreads();
		if (threadIdx.x < G) {
			float *const m = marks + 2 * G + threadIdx.x, *const l = m + G;
			float keep, add;
			if (p == begin) {
				*m = marks[threadIdx.x];
				*l = marks[G + threadIdx.x];
			} else if (fold_factors(m, marks[threadIdx.x], &keep, &add)) {
				*l = *l * keep + marks[G + threadIdx.x] * add;
			}
		}
	}
	__syncthreads();
	if (a.partials)
		return;
	for (uint32_t e = threadIdx.x; e < G * head; e += ATTEND_THREADS) {
		const float l = marks[3 * G + e / head];
		attended(&a, &u, kv_head, vector + e / head)[e % head] *= l > 0 ? 1.0f / l : 0.0f;
	}
}

size_t attend_row_bytes(uint32_t head, uint32_t group)
{
	const uint32_t g = group < 4 ? group : 4, groups = ATTEND_THREADS / (head / 8);
	return sizeof(float) * g * (head + SCORES + groups * head);
}

template <int KV> static void row_heads(const struct attend_args *a, dim3 grid, size_t shared,
					cudaStream_t stream)
{
	const uint32_t group = a->heads / a->kv_heads;
	/* A group of 6 is 4 and 2: the block that has the other number leaves at once. */
	if (group >= 4)
		LAUNCH(INSTANCE(attend_row<KV, 4>), grid, dim3(ATTEND_THREADS), shared, stream, *a);
	switch (group % 4) {
	case 1:
		LAUNCH(INSTANCE(attend_row<KV, 1>), grid, dim3(ATTEND_THREADS), shared, stream, *a);
		break;
	case 2:
		LAUNCH(INSTANCE(attend_row<KV, 2>), grid, dim3(ATTEND_THREADS), shared, stream, *a);
		break;
	case 3:
		LAUNCH(INSTANCE(attend_row<KV, 3>), grid, dim3(ATTEND_THREADS), shared, stream, *a);
		break;
	}
}

void attend_row_launch(const struct attend_args *a, enum kv_kind kv, dim3 grid, size_t shared,
		       cudaStream_t stream)
{
	switch (kv) {
	case KV_FP8: row_heads<KV_FP8>(a, grid, shared, stream); break;
	case KV_INT8: row_heads<KV_INT8>(a, grid, shared, stream); break;
	case KV_BF16: row_heads<KV_BF16>(a, grid, shared, stream); break;
	case KV_F32: row_heads<KV_F32>(a, grid, shared, stream); break;
	}
}

template <int KV> static cudaError_t row_prepare(int bytes)
{
	const cudaFuncAttribute most = cudaFuncAttributeMaxDynamicSharedMemorySize;
	cudaError_t error = cudaFuncSetAttribute(attend_row<KV, 1>, most, bytes);
	if (error == cudaSuccess)
		error = cudaFuncSetAttribute(attend_row<KV, 2>, most, bytes);
	if (error == cudaSuccess)
		error = cudaFuncSetAttribute(attend_row<KV, 3>, most, bytes);
	return error == cudaSuccess ? cudaFuncSetAttribute(attend_row<KV, 4>, most, bytes) : error;
}

cudaError_t attend_row_prepare(enum kv_kind kv, uint32_t head, uint32_t group)
{
	const int bytes = (int)attend_row_bytes(head, group);
	switch (kv) {
	case KV_FP8: return row_prepare<KV_FP8>(bytes);
	case KV_INT8: return row_prepare<KV_INT8>(bytes);
	case KV_BF16: return row_prepare<KV_BF16>(bytes);
	case KV_F32: break;
	}
	return row_prepare<KV_F32>(bytes);
}
