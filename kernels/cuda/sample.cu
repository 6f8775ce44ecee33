/*
 * Logits to tokens on the device, by the steps of struct ops_sample: the CPU's sample.c in parallel,
 * with the same ties, the same cuts and the same draw.
 *
 * A block has one sample. A candidate is a token whose weight p is above 0; a cut sets weights to 0,
 * so that candidates stay in the order of their ids and nothing is sorted. A cut's last candidate is
 * found by its key's bits, from the highest, with one pass over the vocabulary for each. Sums are in
 * double, by thread and tree: fixed for a vocabulary.
 */
#include "kernels/cpu/math.h"
#include "kernels/cuda/cuda.h"

#define DROP_BELOW -60.0f

enum { SAMPLE_THREADS = 512, SAMPLE_WARPS = SAMPLE_THREADS / 32 };

struct sampling {
	const struct ops_sample *s;
	const uint8_t *block; /* the batch's, whose extras the sample points into */
	float *w, *p, *key;   /* vocab each */
	uint32_t vocab;
	double *room;         /* SAMPLE_THREADS */
	uint32_t *counts;     /* SAMPLE_WARPS */
};

/* A float's place in an order of unsigned numbers. */
__device__ static inline uint32_t rank_of(float x)
{
	const uint32_t u = float_bits(x);
	return u & 0x80000000u ? ~u : u | 0x80000000u;
}

/* NaN counts as impossible, infinity as the largest number. */
__device__ static inline float sane(float x)
{
	return x > 3.4028234e38f ? 3.4028234e38f : x >= -3.4028234e38f ? x : -INFINITY;
}

__device__ static inline double sum_all(const struct sampling *k, double x)
{
	for (int mask = 16; mask > 0; mask /= 2)
		x += warp_xor(x, mask);
	__syncthreads();
	if (threadIdx.x % WARP == 0)
		k->room[threadIdx.x / WARP] = x;
	__syncthreads();
	double sum = 0;
	for (int w = 0; w < SAMPLE_WARPS; w++)
		sum += k->room[w];
	return sum;
}

__device__ static inline uint32_t count_all(const struct sampling *k, uint32_t x)
{
	for (int mask = 16; mask > 0; mask /= 2)
		x += warp_xor(x, mask);
	__syncthreads();
	if (threadIdx.x % WARP == 0)
		k->counts[threadIdx.x / WARP] = x;
	__syncthreads();
	uint32_t sum = 0;
	for (int w = 0; w < SAMPLE_WARPS; w++)
		sum += k->counts[w];
	return sum;
}

/* The best of (rank, then lower id) over the block: packed so that the larger is better. */
__device__ static inline uint64_t best_all(const struct sampling *k, uint64_t x)
{
	for (int mask = 16; mask > 0; mask /= 2) {
		const uint64_t other = warp_xor(x, mask);
		x = other > x ? other : x;
	}
	uint64_t *const room = reinterpret_cast<uint64_t *>(k->room);
	__syncthreads();
	if (threadIdx.x % WARP == 0)
		room[threadIdx.x / WARP] = x;
	__syncthreads();
	uint64_t best = 0;
	for (int w = 0; w < SAMPLE_WARPS; w++)
		best = room[w] > best ? room[w] : best;
	return best;
}

/* The largest of `values` below `limit`; 0 if there is none that is possible. */
__device__ static inline uint64_t largest_below(const struct sampling *k, const float *values, uint64_t limit)
{
	uint64_t best = 0;
	for (uint32_t i = threadIdx.x; i < k->vocab; i += SAMPLE_THREADS) {
		if (values[i] == -INFINITY)
			continue;
		const uint64_t x = (uint64_t)rank_of(values[i]) << 32 | (0xffffffffu - i);
		if (x < limit && x > best)
			best = x;
	}
	return best_all(k, best);
}

__device__ static inline uint32_t id_of(uint64_t best)
{
	return 0xffffffffu - (uint32_t)best;
}

__device__ static inline const uint32_t *extra_at(const struct sampling *k, uint32_t at)
{
	return reinterpret_cast<const uint32_t *>(k->block + at);
}

/* Bias, penalties, mask. Pairs have ascending tokens: no two threads meet. */
__device__ static inline void change(const struct sampling *k)
{
	const struct ops_sample *const s = k->s;
	const uint32_t *pair = extra_at(k, s->bias_at);
	for (uint32_t i = threadIdx.x; i < s->bias_count; i += SAMPLE_THREADS)
		k->w[pair[2 * i]] = sane(k->w[pair[2 * i]] + float_from_bits(pair[2 * i + 1]));
	__syncthreads();
	pair = extra_at(k, s->counts_at);
	for (uint32_t i = threadIdx.x; i < s->count_count; i += SAMPLE_THREADS) {
		const uint32_t times = pair[2 * i + 1];
		float x = k->w[pair[2 * i]];
		if (times == 0)
			continue;
		x = x > 0 ? x / s->repetition : x * s->repetition;
		k->w[pair[2 * i]] = sane(x - (float)times * s->frequency - s->presence);
	}
	__syncthreads();
	const uint32_t *const mask = extra_at(k, s->mask_at);
	for (uint32_t i = threadIdx.x; s->mask_at && i < k->vocab; i += SAMPLE_THREADS)
		if (!(mask[i / 32] >> (i % 32) & 1))
			k->w[i] = -INFINITY;
	__syncthreads();
}

__device__ static inline double weight_sum(const struct sampling *k)
{
	double sum = 0;
	for (uint32_t i = threadIdx.x; i < k->vocab; i += SAMPLE_THREADS)
		sum += k->p[i];
	return sum_all(k, sum);
}

/* How many candidates have a rank of at least `least`, and their weights. */
__device__ static inline void above(const struct sampling *k, uint32_t least, uint32_t *count, double *mass)
{
	uint32_t n = 0;
	double sum = 0;
	for (uint32_t i = threadIdx.x; i < k->vocab; i += SAMPLE_THREADS)
		if (k->p[i] > 0 && rank_of(k->key[i]) >= least) {
			n++;
			sum += k->p[i];
		}
	*count = count_all(k, n);
	*mass = sum_all(k, sum);
}

/* Cuts to the best by key: at most `most`, and no more than it takes for their weights to reach
   `enough`. At least one stays. */
__device__ static inline void cut(const struct sampling *k, uint32_t most, double enough)
{
	uint32_t threshold = 0, n;
	double mass;
	for (int bit = 31; bit >= 0; bit--) {
		above(k, threshold | 1u << bit, &n, &mass);
		if (n >= most || (n > 0 && mass >= enough))
			threshold |= 1u << bit;
	}
	above(k, threshold, &n, &mass);
	if (n < most && mass < enough)
		return; /* all of them are not too many */
	n = 0;
	mass = 0;
	if (threshold < 0xffffffffu)
		above(k, threshold + 1, &n, &mass);
	/* Of those at the threshold the lower ids stay, until it is enough. */
	__syncthreads();
	if (threadIdx.x == 0) {
		uint32_t i = 0;
		for (; i < k->vocab; i++) {
			if (!(k->p[i] > 0) || rank_of(k->key[i]) != threshold)
				continue;
			n++;
			mass += k->p[i];
			if (n >= most || mass >= enough)
				break;
		}
		k->counts[0] = i;
	}
	__syncthreads();
	const uint32_t last = k->counts[0];
	for (uint32_t i = threadIdx.x; i < k->vocab; i += SAMPLE_THREADS) {
		const uint32_t rank = rank_of(k->key[i]);
		if (rank < threshold || (rank == threshold && i > last))
			k->p[i] = 0;
	}
	__syncthreads();
}

__device__ static inline void keys_set(const struct sampling *k)
{
	for (uint32_t i = threadIdx.x; i < k->vocab; i += SAMPLE_THREADS)
		k->key[i] = k->w[i];
	__syncthreads();
}

/* Locally typical: the candidates whose surprise is nearest the entropy. */
__device__ static inline void typical_cut(const struct sampling *k)
{
	const double all = weight_sum(k);
	double sum = 0;
	for (uint32_t i = threadIdx.x; i < k->vocab; i += SAMPLE_THREADS) {
		const double p = k->p[i] / all;
		sum -= p > 0 ? p * log(p) : 0;
	}
	const double entropy = sum_all(k, sum);
	for (uint32_t i = threadIdx.x; i < k->vocab; i += SAMPLE_THREADS)
		if (k->p[i] > 0)
			k->key[i] = -(float)fabs(-log(k->p[i] / all) - entropy);
	__syncthreads();
	cut(k, 0xffffffffu, k->s->typical * all);
	keys_set(k);
}

__device__ static inline void min_cut(const struct sampling *k)
{
	const uint64_t best = largest_below(k, k->p, ~(uint64_t)0);
	const float least = k->s->min_p * k->p[id_of(best)];
	__syncthreads();
	for (uint32_t i = threadIdx.x; i < k->vocab; i += SAMPLE_THREADS)
		if (k->p[i] < least)
			k->p[i] = 0;
	__syncthreads();
}

/* Philox 4x32-10 of (seed, position): see kernels/cpu/sample.c. */
__device__ static inline uint64_t philox(uint64_t seed, uint32_t position)
{
	uint32_t c0 = position, c1 = 0, c2 = 0, c3 = 0;
	uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
	for (int round = 0; round < 10; round++) {
		const uint64_t a = (uint64_t)0xd2511f53u * c0, b = (uint64_t)0xcd9e8d57u * c2;
		c0 = (uint32_t)(b >> 32) ^ c1 ^ k0;
		c1 = (uint32_t)b;
		c2 = (uint32_t)(a >> 32) ^ c3 ^ k1;
		c3 = (uint32_t)a;
		k0 += 0x9e3779b9u;
		k1 += 0xbb67ae85u;
	}
	return (uint64_t)c1 << 32 | c0;
}

/* A thread has a run of ids; the runs' sums are added in order, and the run that holds the point is
   walked. */
__device__ static inline uint32_t draw(const struct sampling *k, uint32_t position)
{
	const uint32_t run = (k->vocab + SAMPLE_THREADS - 1) / SAMPLE_THREADS;
	const uint32_t first = threadIdx.x * run, end = first + run < k->vocab ? first + run : k->vocab;
	double sum = 0;
	for (uint32_t i = first; i < end; i++)
		sum += k->p[i];
	__syncthreads();
	k->room[threadIdx.x] = sum;
	__syncthreads();
	if (threadIdx.x == 0) {
		double all = 0;
		for (int t = 0; t < SAMPLE_THREADS; t++)
			all += k->room[t];
		const double at = (double)(philox(k->s->seed, position) >> 11) * 0x1p-53 * all;
		double reached = 0;
		uint32_t t = 0, found = 0;
		while (t < SAMPLE_THREADS - 1 && at >= reached + k->room[t])
			reached += k->room[t++];
		for (uint32_t i = t * run; i < k->vocab && !(found && at < reached); i++)
			if (k->p[i] > 0) {
				found = i + 1;
				reached += k->p[i];
			}
		/* Rounding can carry the point past the last weight: then the last candidate it is. */
		for (uint32_t i = k->vocab; found == 0 && i > 0; i--)
			found = k->p[i - 1] > 0 ? i : 0;
		k->counts[0] = found - 1;
	}
	__syncthreads();
	return k->counts[0];
}

/* `best`: of k->w. */
__device__ static inline uint32_t choose(const struct sampling *k, uint64_t best, uint32_t position)
{
	const struct ops_sample *const s = k->s;
	if (best == 0)
		return OPS_NONE;
	if (s->temperature == 0)
		return id_of(best);
	const float largest = k->w[id_of(best)];
	__syncthreads();
	for (uint32_t i = threadIdx.x; i < k->vocab; i += SAMPLE_THREADS) {
		const float x = (k->w[i] - largest) / s->temperature;
		k->w[i] = x;
		k->p[i] = x >= DROP_BELOW ? exp_f32(x) : 0.0f;
	}
	__syncthreads();
	keys_set(k);
	if (s->top_k)
		cut(k, s->top_k, INFINITY);
	if (s->typical < 1)
		typical_cut(k);
	if (s->top_p < 1)
		cut(k, 0xffffffffu, s->top_p * weight_sum(k));
	if (s->min_p > 0)
		min_cut(k);
	return draw(k, position);
}

__global__ __launch_bounds__(SAMPLE_THREADS, 2) void sample(const struct sample_args a)
{
	SHARED(double, room, SAMPLE_THREADS);
	SHARED(uint32_t, counts, SAMPLE_WARPS);
	if (blockIdx.x >= STEP(a.step)->sample_count)
		return;
	const struct ops_sample *const s = STEP_SAMPLES(a.step) + blockIdx.x;
	const struct ops_row row = STEP_ROWS(a.step)[s->row];
	struct ops_sampled *const out = a.out + blockIdx.x;
	float *const work = a.work + (size_t)blockIdx.x * 3 * a.vocab;
	const struct sampling k = {s, a.step + STEP_BYTES, work, work + a.vocab, work + 2 * (size_t)a.vocab,
				   a.vocab, room, counts};
	const float *const raw = a.logits + (size_t)blockIdx.x * a.vocab;
	if (threadIdx.x == 0) {
		out->token = OPS_NONE;
		out->top_count = 0;
		out->logprob = 0;
	}
	for (uint32_t i = threadIdx.x; i < OPS_TOP_MAX; i += SAMPLE_THREADS) {
		out->top_token[i] = 0;
		out->top_logprob[i] = 0;
	}
	if (a.faults[row.sequence].page != (uint32_t)OPS_NONE)
		return;
	for (uint32_t i = threadIdx.x; i < a.vocab; i += SAMPLE_THREADS)
		k.w[i] = sane(raw[i]);
	__syncthreads();
	uint64_t best = largest_below(&k, k.w, ~(uint64_t)0);
	if (best == 0)
		return;
	const float largest = k.w[id_of(best)];
	double sum = 0;
	for (uint32_t i = threadIdx.x; i < a.vocab; i += SAMPLE_THREADS)
		sum += exp_f32(k.w[i] - largest);
	const float log_sum = largest + logf((float)sum_all(&k, sum));
	uint64_t next = best;
	for (uint32_t i = 0; i < s->top_count && next; i++) {
		if (threadIdx.x == 0) {
			out->top_count = i + 1;
			out->top_token[i] = id_of(next);
			out->top_logprob[i] = k.w[id_of(next)] - log_sum;
		}
		next = largest_below(&k, k.w, next);
	}
	__syncthreads();
	if (s->bias_count || s->count_count || s->mask_at) {
		change(&k);
		best = largest_below(&k, k.w, ~(uint64_t)0);
	}
	const uint32_t token = choose(&k, best, row.position);
	if (threadIdx.x == 0 && token != (uint32_t)OPS_NONE) {
		out->token = token;
		out->logprob = sane(raw[token]) - log_sum;
	}
}

void sample_launch(const struct sample_args *a, uint32_t samples, cudaStream_t stream)
{
	LAUNCH(sample, dim3(samples), dim3(SAMPLE_THREADS), 0, stream, *a);
}
