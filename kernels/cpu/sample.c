/*
 * Logits to tokens: the steps of struct ops_sample, in its order.
 *
 * Candidates are cut by keys that never tie: of equal values the lower id comes first. Each
 * cut leaves the candidates in ascending ids, so the draw does not depend on how a cut was
 * found. What is smaller than e^-60 of the largest is dropped before: all of it together is
 * far below the 2^-53 that a draw can tell apart.
 *
 * The draw: Philox 4x32-10 (Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as
 * easy as 1, 2, 3", 2011) with the seed as its key and (position, 0, 0, 0) as its counter;
 * the first 53 bits of its output over 2^53 pick a point of the candidates' sum.
 *
 * Alternatives are the largest of the raw logits, as `logprob` is: before bias, penalties
 * and mask.
 */
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("O3") /* the passes over the vocabulary become vectors */
#endif

#include <math.h>
#include <string.h>

#include "kernels/cpu/device.h"
#include "kernels/cpu/math.h"

#define DROP_BELOW -60.0f

struct candidate {
	float key; /* smaller is better */
	uint32_t id;
};

struct work {
	struct device *d;
	const struct ops_sample *s;
	uint32_t vocab;
	float *w, *p; /* vocab floats: logits; weights, the largest about 1 */
	struct candidate *list, *heap;
	uint32_t count;
};

static int better(struct candidate a, struct candidate b)
{
	return a.key < b.key || (a.key == b.key && a.id < b.id);
}

static void sift(struct candidate *heap, uint32_t count, uint32_t at)
{
	for (;;) {
		uint32_t child = 2 * at + 1;
		if (child >= count)
			return;
		if (child + 1 < count && better(heap[child + 1], heap[child]))
			child++;
		if (!better(heap[child], heap[at]))
			return;
		const struct candidate swap = heap[at];
		heap[at] = heap[child];
		heap[child] = swap;
		at = child;
	}
}

static void heap_make(struct candidate *heap, uint32_t count)
{
	for (uint32_t i = count / 2; i-- > 0;)
		sift(heap, count, i);
}

static uint64_t philox(uint64_t seed, uint32_t position)
{
	uint32_t c[4] = {position, 0, 0, 0};
	uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
	for (int round = 0; round < 10; round++) {
		const uint64_t a = (uint64_t)0xd2511f53u * c[0],
			       b = (uint64_t)0xcd9e8d57u * c[2];
		const uint32_t next[4] = {(uint32_t)(b >> 32) ^ c[1] ^ k0, (uint32_t)b,
					  (uint32_t)(a >> 32) ^ c[3] ^ k1, (uint32_t)a};
		memcpy(c, next, sizeof c);
		k0 += 0x9e3779b9u;
		k1 += 0xbb67ae85u;
	}
	return (uint64_t)c[1] << 32 | c[0];
}

/* NaN counts as impossible, infinity as the largest number. */
static float sane(float x)
{
	return x > 3.4028234e38f ? 3.4028234e38f : x >= -3.4028234e38f ? x : -INFINITY;
}

/* The logits were written by all threads, so most lie beyond this one's caches: they are asked for 4 KiB
   ahead, since the CPU by itself keeps too few lines under way. */
static void sane_all(const float *raw, float *out, uint32_t n)
{
	enum { LINE = 16, AHEAD = 1024 };
	uint32_t i = 0;
	for (; i + LINE <= n; i += LINE) {
		__builtin_prefetch(raw + (i + AHEAD < n ? i + AHEAD : i));
		for (uint32_t k = i; k < i + LINE; k++)
			out[k] = sane(raw[k]);
	}
	for (; i < n; i++)
		out[i] = sane(raw[i]);
}

static const uint32_t *extra_at(const struct device *d, uint32_t at)
{
	return (const uint32_t *)(const void *)(d->block[0] + at);
}

static void bias_add(const struct work *k)
{
	const uint32_t *pair = extra_at(k->d, k->s->bias_at);
	for (uint32_t i = 0; i < k->s->bias_count; i++, pair += 2) {
		float added;
		memcpy(&added, pair + 1, sizeof added);
		k->w[pair[0]] = sane(k->w[pair[0]] + added);
	}
}

static void penalise(const struct work *k)
{
	const struct ops_sample *s = k->s;
	const uint32_t *pair = extra_at(k->d, s->counts_at);
	for (uint32_t i = 0; i < s->count_count; i++, pair += 2) {
		float *const w = k->w + pair[0];
		if (pair[1] == 0)
			continue;
		*w = *w > 0 ? *w / s->repetition : *w * s->repetition;
		*w = sane(*w - (float)pair[1] * s->frequency - s->presence);
	}
}

static void mask_apply(const struct work *k)
{
	const uint32_t *mask = extra_at(k->d, k->s->mask_at);
	for (uint32_t i = 0; i < k->vocab; i++)
		if (!(mask[i / 32] >> (i % 32) & 1))
			k->w[i] = -INFINITY;
}

/* The largest raw logits with their log-probabilities, in order. */
static void alternatives(const struct work *k, float log_sum, struct ops_sampled *out)
{
	struct candidate top[OPS_TOP_MAX];
	uint32_t count = 0;
	for (uint32_t i = 0; i < k->vocab; i++) {
		const struct candidate c = {-k->w[i], i};
		if (k->w[i] == -INFINITY ||
		    (count == k->s->top_count && !better(c, top[count - 1])))
			continue;
		uint32_t at = count < k->s->top_count ? count++ : count - 1;
		for (; at > 0 && better(c, top[at - 1]); at--)
			top[at] = top[at - 1];
		top[at] = c;
	}
	out->top_count = count;
	for (uint32_t i = 0; i < count; i++) {
		out->top_token[i] = top[i].id;
		out->top_logprob[i] = k->w[top[i].id] - log_sum;
	}
}

static void keep_until(struct work *k, struct candidate last)
{
	uint32_t kept = 0;
	for (uint32_t i = 0; i < k->count; i++)
		if (!better(last, k->list[i]))
			k->list[kept++] = k->list[i];
	k->count = kept;
}

static double weight_sum(const struct work *k)
{
	double sum = 0;
	for (uint32_t i = 0; i < k->count; i++)
		sum += k->p[k->list[i].id];
	return sum;
}

enum { DIGIT_VALUES = 1 << 11 };

/* In the order of the keys, none of which is below 0. */
static uint32_t key_bits(struct candidate c)
{
	uint32_t bits;
	memcpy(&bits, &c.key, sizeof bits);
	return bits & 0x7fffffff;
}

/* What those of `from` weigh whose keys have the bits of `known` from `high` on, by the digit from `low`
   up to there. They go to `to`, which may be `from`, in their order, if it is not NULL. */
static uint32_t digit_weights(const struct work *k, const struct candidate *from, uint32_t count,
			      uint32_t known, uint32_t high, uint32_t low, struct candidate *to, double *weight)
{
	/* Two of each, so that one sum seldom waits for the one before. */
	double two[2][DIGIT_VALUES] = {0};
	const uint32_t mask = (1u << (high - low)) - 1;
	uint32_t kept = 0;
	for (uint32_t i = 0; i < count; i++) {
		const uint32_t key = key_bits(from[i]);
		if ((key ^ known) >> high != 0)
			continue;
		two[kept % 2][key >> low & mask] += k->p[from[i].id];
		if (to)
			to[kept] = from[i];
		kept++;
	}
	for (uint32_t i = 0; i < DIGIT_VALUES; i++)
		weight[i] = two[0][i] + two[1][i];
	return kept;
}

/* Cuts to the best by key: no more than it takes for their weights, none of them 0, to reach `enough`. At
   least one stays. The key of the last is found digit by digit, and those that have it stay by their ids. */
static void cut(struct work *k, double enough)
{
	static const uint32_t bounds[] = {31, 20, 9, 0};
	double weight[DIGIT_VALUES], before = 0;
	const struct candidate *from = k->list;
	uint32_t count = k->count, key = 0;
	for (int i = 0; i < 3; i++) {
		count = digit_weights(k, from, count, key, bounds[i], bounds[i + 1], i ? k->heap : NULL, weight);
		from = i ? k->heap : k->list;
		double reached = before;
		uint32_t last = 0;
		for (uint32_t at = 0; at < DIGIT_VALUES && (reached < enough || weight[last] == 0); at++) {
			if (weight[at] == 0)
				continue;
			last = at;
			before = reached;
			reached += weight[at];
		}
		key |= last << bounds[i + 1];
	}
	struct candidate last = from[0];
	for (uint32_t i = 0; i < count; i++) {
		if (key_bits(from[i]) != key)
			continue;
		last = from[i];
		before += k->p[last.id];
		if (before >= enough)
			break;
	}
	keep_until(k, last);
}

static void top_p_cut(struct work *k)
{
	cut(k, k->s->top_p * weight_sum(k));
}

/* The same candidate in the opposite order. */
static struct candidate mirror(struct candidate c)
{
	return (struct candidate){-c.key, ~c.id};
}

/* Cuts to the best `most`, of more. The heap holds the best so far, the worst of them at its head: nearly all
   others are refused by one comparison. */
static void top_cut(struct work *k, uint32_t most)
{
	for (uint32_t i = 0; i < most; i++)
		k->heap[i] = mirror(k->list[i]);
	heap_make(k->heap, most);
	for (uint32_t i = most; i < k->count; i++) {
		const struct candidate c = mirror(k->list[i]);
		if (better(k->heap[0], c)) {
			k->heap[0] = c;
			sift(k->heap, most, 0);
		}
	}
	keep_until(k, mirror(k->heap[0]));
}

/* Locally typical: the candidates whose surprise is nearest the entropy. */
static void typical_cut(struct work *k)
{
	const double sum = weight_sum(k);
	double entropy = 0;
	for (uint32_t i = 0; i < k->count; i++) {
		const double p = k->p[k->list[i].id] / sum;
		entropy -= p > 0 ? p * log(p) : 0;
	}
	for (uint32_t i = 0; i < k->count; i++) {
		const double p = k->p[k->list[i].id] / sum;
		k->list[i].key = (float)fabs(-log(p) - entropy);
	}
	cut(k, k->s->typical * sum);
	for (uint32_t i = 0; i < k->count; i++)
		k->list[i].key = -k->w[k->list[i].id];
}

static void min_cut(struct work *k)
{
	float largest = 0;
	uint32_t kept = 0;
	for (uint32_t i = 0; i < k->count; i++)
		largest = k->p[k->list[i].id] > largest ? k->p[k->list[i].id] : largest;
	for (uint32_t i = 0; i < k->count; i++)
		if (k->p[k->list[i].id] >= k->s->min_p * largest)
			k->list[kept++] = k->list[i];
	k->count = kept;
}

/* Candidates from the logits, `largest` being the largest. */
static void candidates_make(struct work *k, float largest)
{
	k->count = 0;
	for (uint32_t i = 0; i < k->vocab; i++)
		k->w[i] = (k->w[i] - largest) / k->s->temperature;
	for (uint32_t i = 0; i < k->vocab; i++)
		if (k->w[i] >= DROP_BELOW)
			k->list[k->count++] = (struct candidate){-k->w[i], i};
}

/* The candidates' weights. */
static void weights_make(struct work *k)
{
	if (k->count < k->vocab / 16) { /* one by one; of many it is quicker to take all in a row */
		for (uint32_t i = 0; i < k->count; i++)
			k->p[k->list[i].id] = exp_f32(k->w[k->list[i].id]);
		return;
	}
	for (uint32_t i = 0; i < k->vocab; i++)
		k->p[i] = exp_f32(k->w[i]);
}

static uint32_t draw(const struct work *k)
{
	const uint64_t random = philox(k->s->seed, k->d->rows[k->s->row].position);
	const double at = (double)(random >> 11) * 0x1p-53 * weight_sum(k);
	double reached = 0;
	for (uint32_t i = 0; i + 1 < k->count; i++) {
		reached += k->p[k->list[i].id];
		if (at < reached)
			return k->list[i].id;
	}
	return k->list[k->count - 1].id;
}

/* `largest` and its place are those of k->w. */
static uint32_t choose(struct work *k, float largest, uint32_t at)
{
	if (largest == -INFINITY)
		return OPS_NONE;
	if (k->s->temperature == 0)
		return at;
	candidates_make(k, largest);
	if (k->s->top_k && k->s->top_k < k->count)
		top_cut(k, k->s->top_k);
	weights_make(k);
	if (k->s->typical < 1)
		typical_cut(k);
	if (k->s->top_p < 1)
		top_p_cut(k);
	if (k->s->min_p > 0)
		min_cut(k);
	return draw(k);
}

static void sample_item(void *argument, uint32_t item, uint32_t thread)
{
	struct device *d = argument;
	struct ops_sampled *out = &d->sampled[item];
	struct work k = {.d = d, .s = &d->samples[item], .vocab = d->plan.vocab};
	const float *raw = d->buffer[BUFFER_LOGITS] + (size_t)item * k.vocab;
	uint32_t at;
	*out = (struct ops_sampled){.token = OPS_NONE};
	if (!row_sound(d, k.s->row))
		return;
	k.w = d->logit_room + thread * d->logit_floats;
	k.p = k.w + k.vocab;
	k.list = (struct candidate *)(void *)(k.p + k.vocab);
	k.heap = k.list + k.vocab;
	sane_all(raw, k.w, k.vocab);
	float largest = d->leaf.max(k.w, k.vocab, &at);
	if (largest == -INFINITY)
		return;
	const float log_sum = largest + logf(d->leaf.exp_sum(k.w, k.vocab, largest));
	if (k.s->top_count)
		alternatives(&k, log_sum, out);
	if (k.s->bias_count)
		bias_add(&k);
	if (k.s->count_count)
		penalise(&k);
	if (k.s->mask_at)
		mask_apply(&k);
	if (k.s->bias_count || k.s->count_count || k.s->mask_at)
		largest = d->leaf.max(k.w, k.vocab, &at);
	out->token = choose(&k, largest, at);
	if (out->token != OPS_NONE)
		out->logprob = sane(raw[out->token]) - log_sum;
}

int cpu_sample(struct device *d)
{
	if (d->plan.rank == 0)
		pool_run(d->pool, sample_item, d, d->sample_count);
	return 0;
}
