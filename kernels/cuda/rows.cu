/*
 * What is done to rows between the products: embedding, norms, gates, quantising, RoPE with the
 * writing of pages, and the comparison of tags. Bandwidth and launches bind here, not arithmetic.
 */
#include "kernels/cpu/math.h"
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/pack.h"

enum { ROW_THREADS = 256, ROW_WARPS = ROW_THREADS / 32, ROPE_WARPS = 4 };

__device__ static inline float gate_value(uint32_t kind, float g, float up)
{
	if (kind == GATE_SILU)
		return g / (1.0f + exp_f32(-g)) * up;
	/* g/2 (1 + tanh u) = g / (1 + exp(-2u)) with u = sqrt(2/pi) (g + 0.044715 g^3). */
	const float u = 0.79788456f * (g + 0.044715f * g * g * g);
	return g / (1.0f + exp_f32(-2.0f * u)) * up;
}

/* The block's sum of one value a thread: a tree in each warp, then the warps in order. The barrier
   before lets `room` (ROW_WARPS floats) be used again. */
__device__ static inline float block_sum(float x, float *room)
{
	for (int mask = 16; mask > 0; mask /= 2)
		x += warp_xor(x, mask);
	__syncthreads();
	if (threadIdx.x % WARP == 0)
		room[threadIdx.x / WARP] = x;
	__syncthreads();
	float sum = room[0];
	for (int w = 1; w < ROW_WARPS; w++)
		sum += room[w];
	return sum;
}

__device__ static inline float block_max(float x, float *room)
{
	for (int mask = 16; mask > 0; mask /= 2)
		x = fmaxf(x, warp_xor(x, mask));
	__syncthreads();
	if (threadIdx.x % WARP == 0)
		room[threadIdx.x / WARP] = x;
	__syncthreads();
	float largest = room[0];
	for (int w = 1; w < ROW_WARPS; w++)
		largest = fmaxf(largest, room[w]);
	return largest;
}

__global__ __launch_bounds__(ROW_THREADS) void embed(const struct embed_args a)
{
	const uint32_t row = blockIdx.x;
	if (row >= STEP(a.step)->row_count)
		return;
	const uint32_t token = STEP_ROWS(a.step)[row].token;
	float *const x = a.x + (size_t)row * a.w.columns;
	for (uint32_t k = threadIdx.x; k < a.w.columns; k += ROW_THREADS)
		x[k] = token - a.first < a.count ? matrix_value(&a.w, token - a.first, k) * a.scale : 0.0f;
}

/* One row to its norm's factor: 1 / sqrt(mean of squares + epsilon). */
__device__ static inline float norm_factor(const float *x, uint32_t n, float epsilon, float *room)
{
	float sum = 0;
	for (uint32_t k = threadIdx.x; k < n; k += ROW_THREADS)
		sum += x[k] * x[k];
	return 1.0f / sqrtf(block_sum(sum, room) / (float)n + epsilon);
}

/* One block of 32 columns by a warp, to 8 bits: the arithmetic of kernels/cpu/cpu.h, exactly.
   as_floats: what the integers stand for, for weights that are no integers. */
__device__ static inline void quantise_block(float x, uint32_t column, uint32_t row,
					     const struct act_rows *to, bool as_floats)
{
	const int lane = threadIdx.x % WARP;
	float largest = fabsf(x) > 0 ? fabsf(x) : 0; /* NaN counts as no larger */
	for (int mask = 16; mask > 0; mask /= 2)
		largest = fmaxf(largest, warp_xor(largest, mask));
	float da = largest / 127.0f, inverse = 1.0f / da;
	if (!(inverse <= 3.4028234e38f))
		da = inverse = 0;
	float y = x * inverse;
	y = y >= -127.0f ? y : -127.0f;
	y = y <= 127.0f ? y : 127.0f;
	const int v = (int)((y + 12582912.0f) - 12582912.0f);
	int sum = v;
	for (int mask = 16; mask > 0; mask /= 2)
		sum += warp_xor(sum, mask);
	if (as_floats) {
		to->x[(size_t)row * to->stride + column] = da * (float)v;
		return;
	}
	to->q[(size_t)row * to->stride + act_place(column)] = (int8_t)v;
	if (lane == 0) {
		const size_t at = (size_t)row * (to->stride / 32) + column / 32;
		to->d[at] = da;
		to->s[at] = da * (float)sum;
	}
}

/* One value of the row that enters. */
__device__ static inline float enter_value(const struct enter_args *a, float *x, const float *up, float r,
					   uint32_t k)
{
	if (k >= a->columns)
		return 0;
	if (up) {
		x[k] = gate_value(a->gate, x[k], up[k]);
		return x[k];
	}
	return a->norm ? x[k] * r * a->norm[k] : x[k];
}

/* A row in the precision of given tokens, from its floats: each thread from those that it wrote. */
__device__ static inline void given_round(const struct enter_args *a, uint32_t row, const float *x,
					  float largest, float *room)
{
	const size_t at = (size_t)row * a->columns;
	float inverse = 1;
	if (a->given == PREFILL_BF16) {
		for (uint32_t k = threadIdx.x; k < a->columns; k += ROW_THREADS)
			reinterpret_cast<uint16_t *>(a->bytes)[at + k] = bf16_encode(x[k]);
		return;
	}
	const float d = row_scale(a->given, block_max(largest, room), &inverse);
	if (threadIdx.x == 0)
		a->scales[row] = d;
	for (uint32_t k = threadIdx.x; k < a->columns; k += ROW_THREADS)
		a->bytes[at + k] = a->given == PREFILL_INT8 ? (uint8_t)row_integer(x[k] * inverse)
							    : fp8_encode(x[k] / d);
}

__global__ __launch_bounds__(ROW_THREADS) void enter(const struct enter_args a)
{
	SHARED(float, room, ROW_WARPS);
	const uint32_t row = blockIdx.x;
	if (row >= rows_number(a.step, a.rows))
		return;
	const size_t from = row_from(a.step, a.rows, row);
	/* Only the gate writes it back. */
	float *const x = const_cast<float *>(a.x) + from * a.columns;
	const float *const up = a.up ? a.up + from * a.columns : NULL;
	const float r = a.norm ? norm_factor(x, a.columns, a.epsilon, room) : 1.0f;
	float *const to = a.to.x + (size_t)row * a.to.stride;
	if (a.kind == ACT_AUTO) {
		for (uint32_t k = threadIdx.x; k < a.columns; k += ROW_THREADS)
			enter_value(&a, x, up, r, k);
		return;
	}
	if (a.kind == ACT_I8_BLOCK) {
		for (uint32_t k = threadIdx.x; k < a.to.stride; k += ROW_THREADS) {
			if (k / 64 * 64 >= a.columns) /* the same for a warp: 32 columns of one block */
				break;
			quantise_block(enter_value(&a, x, up, r, k), k, row, &a.to,
				       a.floats != 0);
		}
		return;
	}
	float largest = 0;
	for (uint32_t k = threadIdx.x; k < a.columns; k += ROW_THREADS) {
		const float y = enter_value(&a, x, up, r, k);
		to[k] = a.kind == ACT_BF16 ? bf16_decode(bf16_encode(y)) : y;
		largest = fabsf(y) > largest ? fabsf(y) : largest;
	}
	if (a.given != PREFILL_SAME) {
		given_round(&a, row, to, largest, room);
		return;
	}
	if (a.kind != ACT_I8_ROW)
		return;
	const float d = block_max(largest, room) / 127.0f, inverse = 1.0f / d;
	for (uint32_t k = threadIdx.x; k < a.columns; k += ROW_THREADS) {
		const float q = (to[k] * inverse + 12582912.0f) - 12582912.0f;
		to[k] = inverse <= 3.4028234e38f ? d * q : 0.0f;
	}
}

__global__ __launch_bounds__(ROW_THREADS) void post_norm(const struct post_args a)
{
	SHARED(float, room, ROW_WARPS);
	const uint32_t row = blockIdx.x;
	if (row >= STEP(a.step)->row_count)
		return;
	const float *const y = a.y + (size_t)row * a.width;
	if (!a.norm) { /* a sum of several ranks that has no norm */
		for (uint32_t k = threadIdx.x; k < a.width; k += ROW_THREADS)
			a.x[(size_t)row * a.width + k] += y[k];
		return;
	}
	const float r = norm_factor(y, a.width, a.epsilon, room);
	for (uint32_t k = threadIdx.x; k < a.width; k += ROW_THREADS)
		a.x[(size_t)row * a.width + k] += y[k] * r * a.norm[k];
}

/* cos and sin of an angle of any size below 2^30, rounded to f32 once. The angle is brought within
   pi/4 by three parts of pi/2; the polynomials are Taylor's, off by less than 1e-17. Double, so that
   the result is the CPU's but in one case of about 2^29. */
__device__ static inline void turn_of(double angle, float *c, float *s)
{
	const double n = rint(angle * 0.63661977236758134308);
	double r = fma(n, -1.5707963267948966, angle);
	r = fma(n, -6.123233995736766e-17, r);
	r = fma(n, 1.4973849048591833e-33, r);
	const double x = r * r;
	double sine = 1.0 / 355687428096000.0, cosine = -1.0 / 6402373705728000.0;
	sine = fma(sine, x, -1.0 / 1307674368000.0);
	sine = fma(sine, x, 1.0 / 6227020800.0);
	sine = fma(sine, x, -1.0 / 39916800.0);
	sine = fma(sine, x, 1.0 / 362880.0);
	sine = fma(sine, x, -1.0 / 5040.0);
	sine = fma(sine, x, 1.0 / 120.0);
	sine = fma(sine, x, -1.0 / 6.0);
	sine = fma(sine * x, r, r);
	cosine = fma(cosine, x, 1.0 / 20922789888000.0);
	cosine = fma(cosine, x, -1.0 / 87178291200.0);
	cosine = fma(cosine, x, 1.0 / 479001600.0);
	cosine = fma(cosine, x, -1.0 / 3628800.0);
	cosine = fma(cosine, x, 1.0 / 40320.0);
	cosine = fma(cosine, x, -1.0 / 720.0);
	cosine = fma(cosine, x, 1.0 / 24.0);
	cosine = fma(cosine, x, -0.5);
	cosine = fma(cosine, x, 1.0);
	const int quarter = (int)(int64_t)n & 3;
	const double first = quarter & 1 ? sine : cosine, second = quarter & 1 ? cosine : sine;
	*c = (float)(quarter == 1 || quarter == 2 ? -first : first);
	*s = (float)(quarter >= 2 ? -second : second);
}

__global__ __launch_bounds__(ROW_THREADS) void turns(const struct turns_args a)
{
	const uint32_t row = blockIdx.x, pairs = a.dims / 2;
	if (row >= STEP(a.step)->row_count)
		return;
	const double position = STEP_ROWS(a.step)[row].position;
	float *const to = a.turns + (size_t)row * a.dims;
	for (uint32_t i = threadIdx.x; i < pairs; i += ROW_THREADS)
		turn_of(position * a.frequency[i], to + i, to + pairs + i);
}

/* The norm of one head's values in `x` (shared), by the scalar reference's 16 lanes. */
__device__ static inline void head_norm(float *x, const float *w, uint32_t head, float epsilon)
{
	const int lane = threadIdx.x % WARP;
	float sum = 0;
	for (uint32_t k = lane % 16; k < head; k += 16)
		sum += x[k] * x[k];
	for (int mask = 8; mask > 0; mask /= 2)
		sum += warp_xor(sum, mask);
	const float r = 1.0f / sqrtf(sum / (float)head + epsilon);
	warp_sync();
	for (uint32_t k = lane; k < head; k += WARP)
		x[k] = x[k] * r * w[k];
	warp_sync();
}

__device__ static inline void head_turn(float *x, const float *turns, uint32_t dims, uint32_t kind)
{
	const uint32_t half = dims / 2;
	for (uint32_t i = threadIdx.x % WARP; i < half; i += WARP) {
		float *const first = kind == ROPE_HALVES ? x + i : x + 2 * i;
		float *const second = kind == ROPE_HALVES ? x + half + i : x + 2 * i + 1;
		const float c = turns[i], s = turns[half + i], xa = *first, xb = *second;
		*first = xa * c - xb * s;
		*second = xa * s + xb * c;
	}
	warp_sync();
}

/* One head's K or V of one token into its page. */
__device__ static inline void head_encode(const struct rope_args *a, const float *x, uint32_t token,
					  bool is_v, uint8_t *block, uint8_t *scales)
{
	const int lane = threadIdx.x % WARP;
	const uint32_t head = a->head, values = kv_group_values(head);
	const enum kv_kind kv = (enum kv_kind)a->kv;
	if (kv == KV_F32 || kv == KV_BF16) {
		for (uint32_t d = lane; d < head; d += WARP) {
			const size_t at = is_v ? page_v_at(token, d, head) : page_k_at(token, d, head);
			if (kv == KV_F32)
				reinterpret_cast<float *>(block)[at] = x[d];
			else
				reinterpret_cast<uint16_t *>(block)[at] = bf16_encode(x[d]);
		}
		return;
	}
	for (uint32_t first = 0; first < head; first += values) {
		float largest = 0;
		for (uint32_t d = first + lane; d < first + values; d += WARP)
			largest = fabsf(x[d]) > largest ? fabsf(x[d]) : largest;
		for (int mask = 16; mask > 0; mask /= 2)
			largest = fmaxf(largest, warp_xor(largest, mask));
		const uint8_t byte = kv_scale_byte(kv, float_bits(largest));
		const float scale = kv_scale_value(kv, byte), inverse = 1.0f / scale;
		if (lane == 0)
			scales[first / values * a->page_tokens + token] = byte;
		for (uint32_t d = first + lane; d < first + values; d += WARP)
			block[is_v ? page_v_at(token, d, head) : page_k_at(token, d, head)] =
				kv_encode_8(kv, x[d], scale, inverse);
	}
}

/* A warp has one head of q, of k or of v of one row. */
__global__ __launch_bounds__(32 * ROPE_WARPS) void rope_write(const struct rope_args a)
{
	SHARED(float, room, ROPE_WARPS * KV_HEAD_MAX);
	const uint32_t row = blockIdx.x, index = blockIdx.y * ROPE_WARPS + threadIdx.x / WARP;
	if (row >= STEP(a.step)->row_count || index >= a.heads + 2 * a.kv_heads)
		return; /* whole warps, and no barrier of the block follows */
	const int lane = threadIdx.x % WARP;
	const bool is_q = index < a.heads, is_v = index >= a.heads + a.kv_heads;
	const uint32_t h = is_q ? index : (index - a.heads) % a.kv_heads;
	float *const x = room + threadIdx.x / WARP * KV_HEAD_MAX;
	const float *const from = is_q ? a.q + ((size_t)row * a.heads + h) * a.head
				       : (is_v ? a.v : a.k) + ((size_t)row * a.kv_heads + h) * a.head;
	for (uint32_t d = lane; d < a.head; d += WARP)
		x[d] = from[d];
	warp_sync();
	if (!is_v) {
		const float *const norm = is_q ? a.q_norm : a.k_norm;
		if (norm)
			head_norm(x, norm, a.head, a.epsilon);
		head_turn(x, a.turns + (size_t)row * a.dims, a.dims, a.rope);
		float *const back = (is_q ? a.q : a.k) + (from - (is_q ? a.q : a.k));
		for (uint32_t d = lane; d < a.head; d += WARP)
			back[d] = x[d];
	}
	const struct ops_row r = STEP_ROWS(a.step)[row];
	if (is_q || a.faults[r.sequence].page != (uint32_t)OPS_NONE)
		return;
	if (!is_v && a.smooth && a.kv == KV_INT8) {
		for (uint32_t d = lane; d < a.head; d += WARP)
			x[d] = x[d] / a.smooth[h * a.head + d];
		warp_sync();
	}
	const struct ops_sequence *const s = STEP_SEQUENCES(a.step) + r.sequence;
	const uint32_t at = r.position - s->page_position[a.group];
	const uint32_t page = STEP_PAGES(a.step)[s->page_first[a.group] + at / a.page_tokens].page;
	uint8_t *const base = a.pages + a.page_bytes * page;
	const size_t lines = (size_t)kv_group_count(a.head) * a.page_tokens;
	head_encode(&a, x, at % a.page_tokens, is_v, base + a.block + (2 * h + is_v) * a.block_bytes,
		    base + a.scales + (2 * h + is_v) * lines);
}

/* A warp has one sequence; its pages by 32 at a time, in the order in which the first fault counts. */
__global__ __launch_bounds__(ROW_THREADS) void tags_check(const struct tags_args a)
{
	const uint32_t sequence = blockIdx.x * ROW_WARPS + threadIdx.x / WARP;
	const int lane = threadIdx.x % WARP;
	if (sequence >= STEP(a.step)->sequence_count)
		return;
	const struct ops_sequence *const s = STEP_SEQUENCES(a.step) + sequence;
#pragma unroll /* so that the arrays are indexed by constants, and stay in the arguments */
	for (uint32_t g = 0; g < OPS_GROUP_MAX; g++) {
		if (g >= a.group_count)
			return;
		const struct ops_page *const p = STEP_PAGES(a.step) + s->page_first[g];
		for (uint32_t first = 0; first < s->page_count[g]; first += WARP) {
			const uint32_t i = first + lane;
			const bool there = i < s->page_count[g];
			const uint64_t found = there ? a.tags[g][p[i].page] : 0;
			const unsigned wrong = warp_ballot(there && found != p[i].tag);
			if (!wrong)
				continue;
			/* The first lane that is wrong. */
			if (wrong >> lane & 1 && (wrong & ((1u << lane) - 1)) == 0) {
				struct ops_fault *const f = a.faults + sequence;
				f->page = p[i].page;
				f->group = g;
				f->found = found;
			}
			return;
		}
	}
}

void embed_launch(const struct embed_args *a, uint32_t rows, cudaStream_t stream)
{
	LAUNCH(embed, dim3(rows), dim3(ROW_THREADS), 0, stream, *a);
}

void turns_launch(const struct turns_args *a, uint32_t rows, cudaStream_t stream)
{
	LAUNCH(turns, dim3(rows), dim3(ROW_THREADS), 0, stream, *a);
}

void enter_launch(const struct enter_args *a, uint32_t rows, cudaStream_t stream)
{
	LAUNCH(enter, dim3(rows), dim3(ROW_THREADS), 0, stream, *a);
}

void post_launch(const struct post_args *a, uint32_t rows, cudaStream_t stream)
{
	LAUNCH(post_norm, dim3(rows), dim3(ROW_THREADS), 0, stream, *a);
}

void rope_launch(const struct rope_args *a, uint32_t rows, cudaStream_t stream)
{
	const uint32_t vectors = a->heads + 2 * a->kv_heads;
	LAUNCH(rope_write, dim3(rows, (vectors + ROPE_WARPS - 1) / ROPE_WARPS), dim3(32 * ROPE_WARPS), 0,
	       stream, *a);
}

void tags_launch(const struct tags_args *a, uint32_t sequences, cudaStream_t stream)
{
	LAUNCH(tags_check, dim3((sequences + ROW_WARPS - 1) / ROW_WARPS), dim3(ROW_THREADS), 0, stream, *a);
}
