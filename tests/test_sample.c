/*
 * Logits to tokens: each step of struct ops_sample against what it must do, exactly where
 * it is exact, by frequencies where it draws. The seeds are fixed, so a run either passes
 * always or never.
 */
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "tests/kernels_fixture.h"
#include "tests/tap.h"

enum { VOCAB = 100, DRAWS = 4000, AT_ONCE = 100 };

static struct fixture f;
static float logits[VOCAB];
static uint32_t text[8] = {1, 2, 3, 4, 5, 6, 7, 8};

static struct ops_sample plain(void)
{
	return (struct ops_sample){.row = 0, .temperature = 1, .top_p = 1, .typical = 1,
				   .repetition = 1};
}

/* Samples `count` times with seeds seed, seed+1 ...; `extra`: words of the extra area. */
static int draw(struct ops_sample s, uint32_t count, const uint32_t *extra, uint32_t words,
		struct ops_sampled *out)
{
	const struct fixture_sequence q = {text, 0, 4, 0, 0};
	struct fixture_sequence many[1] = {q};
	struct ops_batch *b = fixture_block(&f, many, 1, 0);
	struct ops_batch *grown = calloc(1, b->bytes + count * sizeof s);
	CHECK(grown != NULL && count <= f.plan.samples_max);
	memcpy(grown, b, b->extra_at);
	free(b);
	b = grown;
	b->sample_at = b->extra_at;
	b->sample_count = count;
	b->extra_at = (b->sample_at + count * (uint32_t)sizeof s + 7) / 8 * 8;
	b->bytes = b->extra_at + f.plan.extra_bytes_max;
	if (words)
		memcpy((uint8_t *)b + b->extra_at, extra, 4 * words);
	/* The caller gives places from the start of the extras, plus 1 so that 0
	   is none. */
	s.mask_at = s.mask_at ? b->extra_at + s.mask_at - 1 : 0;
	s.counts_at = s.counts_at ? b->extra_at + s.counts_at - 1 : 0;
	s.bias_at = s.bias_at ? b->extra_at + s.bias_at - 1 : 0;
	for (uint32_t i = 0; i < count; i++) {
		block_samples(b)[i] = s;
		block_samples(b)[i].seed = s.seed + i;
	}
	int code = f.ops->batch(f.device, b);
	free(b);
	TRY(code);
	for (uint32_t i = 0; i < count; i++)
		TRY(f.ops->buffer_write(f.device, BUFFER_LOGITS, (size_t)i * VOCAB, VOCAB,
					logits));
	TRY(f.ops->sample(f.device));
	return f.ops->wait(f.device, out, NULL);
}

static void logits_make(uint64_t seed)
{
	for (int i = 0; i < VOCAB; i++)
		logits[i] = 2 * random_normal(&seed);
}

static struct ops_sampled draw_one(struct ops_sample s, const uint32_t *extra,
				   uint32_t words)
{
	struct ops_sampled out = {.token = 12345};
	EXPECT_EQ(draw(s, 1, extra, words, &out), 0);
	return out;
}

static double log_sum(void)
{
	double sum = 0;
	for (int i = 0; i < VOCAB; i++)
		sum += isnan(logits[i]) ? 0 : exp(logits[i]);
	return log(sum);
}

static void greedy(void)
{
	struct ops_sample s = plain();
	s.temperature = 0;
	logits_make(1);
	logits[70] = logits[30] = logits[90] = 9;
	struct ops_sampled out = draw_one(s, NULL, 0);
	EXPECT_EQ(out.token, 30); /* the lowest of equals */
	EXPECT(fabs(out.logprob - (9 - log_sum())) < 1e-5);
	logits[5] = NAN;
	logits[6] = -NAN;
	out = draw_one(s, NULL, 0);
	EXPECT_EQ(out.token, 30);
	EXPECT(fabs(out.logprob - (9 - log_sum())) < 1e-5);
	logits[41] = INFINITY;
	EXPECT_EQ(draw_one(s, NULL, 0).token, 41);
	for (int i = 0; i < VOCAB; i++)
		logits[i] = i % 2 ? NAN : -INFINITY;
	EXPECT(draw_one(s, NULL, 0).token == (uint32_t)OPS_NONE);
}

static void alternatives(void)
{
	struct ops_sample s = plain();
	uint32_t mask[4] = {0x1000, 0, 0, 0};
	logits_make(2);
	logits[3] = logits[97] = 11;
	logits[4] = NAN;
	s.top_count = OPS_TOP_MAX;
	s.mask_at = 1;
	const struct ops_sampled out = draw_one(s, mask, 4);
	EXPECT_EQ(out.token,
		  12); /* the mask leaves one; the alternatives are those of the model */
	EXPECT(fabs(out.logprob - (logits[12] - log_sum())) < 1e-5);
	EXPECT_EQ(out.top_count, OPS_TOP_MAX);
	EXPECT(out.top_token[0] == 3 && out.top_token[1] == 97);
	for (uint32_t i = 0; i < out.top_count; i++) {
		uint32_t above = 0;
		for (uint32_t k = 0; k < VOCAB; k++)
			above += logits[k] > logits[out.top_token[i]] ||
				 (logits[k] == logits[out.top_token[i]] &&
				  k < out.top_token[i]);
		EXPECT_EQ(above, i);
		EXPECT(fabs(out.top_logprob[i] - (logits[out.top_token[i]] - log_sum())) <
		       1e-5);
	}
}

/* Frequencies of DRAWS draws. */
static void count_draws(struct ops_sample s, const uint32_t *extra, uint32_t words,
			uint32_t *times)
{
	static struct ops_sampled out[AT_ONCE];
	memset(times, 0, VOCAB * sizeof *times);
	for (uint32_t at = 0; at < DRAWS; at += AT_ONCE) {
		s.seed = 1000 + at;
		if (!EXPECT(draw(s, AT_ONCE, extra, words, out) == 0))
			return;
		for (uint32_t i = 0; i < AT_ONCE; i++)
			if (EXPECT(out[i].token < VOCAB))
				times[out[i].token]++;
	}
}

/* Chi-square of the draws against p (not normalised); tokens of p 0 must not have come. Its
   mean is the number of cells less one, its deviation the root of twice that: five
   deviations are allowed. */
static void judge(const uint32_t *times, const double *p, const char *what)
{
	double sum = 0, chi = 0, rest = 0, rest_times = 0;
	int cells = 0;
	for (int i = 0; i < VOCAB; i++)
		sum += p[i];
	for (int i = 0; i < VOCAB; i++) {
		const double want = p[i] / sum * DRAWS;
		if (!EXPECT(p[i] > 0 || times[i] == 0))
			printf("# %s: %d came %u times\n", what, i, times[i]);
		if (want < 8) { /* rare ones together */
			rest += want;
			rest_times += times[i];
			continue;
		}
		chi += (times[i] - want) * (times[i] - want) / want;
		cells++;
	}
	if (rest > 8) {
		chi += (rest_times - rest) * (rest_times - rest) / rest;
		cells++;
	}
	const double free_cells = cells > 1 ? cells - 1 : 1;
	if (!EXPECT(chi < free_cells + 5 * sqrt(2 * free_cells)))
		printf("# %s: chi-square %g of %d cells\n", what, chi, cells);
}

static void weights(double temperature, double *p)
{
	for (int i = 0; i < VOCAB; i++)
		p[i] = exp(logits[i] / temperature);
}

static int rank_of(const double *p, int i)
{
	int rank = 0;
	for (int k = 0; k < VOCAB; k++)
		rank += p[k] > p[i] || (p[k] == p[i] && k < i);
	return rank;
}

static void temperatures(void)
{
	static const float t[] = {0.3f, 1, 2.5f, 100};
	uint32_t times[VOCAB];
	double p[VOCAB];
	struct ops_sample s = plain();
	logits_make(3);
	for (int i = 0; i < 4; i++) {
		s.temperature = t[i];
		count_draws(s, NULL, 0, times);
		weights(t[i], p);
		judge(times, p, "temperature");
	}
}

static void top_k(void)
{
	uint32_t times[VOCAB];
	double p[VOCAB], cut[VOCAB];
	struct ops_sample s = plain();
	s.temperature = 3;
	logits_make(4);
	for (int i = 0; i < VOCAB; i += 3)
		logits[i] = 1.5f; /* many equal at the edge */
	weights(3, p);
	for (uint32_t k = 1; k <= 21; k += 10) {
		s.top_k = k;
		count_draws(s, NULL, 0, times);
		for (int i = 0; i < VOCAB; i++)
			cut[i] = rank_of(p, i) < (int)k ? p[i] : 0;
		judge(times, cut, "top_k");
	}
}

/* The smallest set of the best whose share reaches top_p, of those that are in. */
static void nucleus(const double *p, double share, double *out)
{
	double sum = 0, reached = 0;
	for (int i = 0; i < VOCAB; i++)
		sum += p[i];
	memset(out, 0, VOCAB * sizeof *out);
	for (int rank = 0; rank < VOCAB && reached < share * sum; rank++)
		for (int i = 0; i < VOCAB; i++)
			if (rank_of(p, i) == rank) {
				out[i] = p[i];
				reached += p[i];
			}
}

static void top_p_and_min_p(void)
{
	uint32_t times[VOCAB];
	double p[VOCAB], cut[VOCAB];
	struct ops_sample s = plain();
	logits_make(5);
	for (int i = 0; i < 3; i++) {
		s.top_p = 0.2f + 0.3f * (float)i;
		count_draws(s, NULL, 0, times);
		weights(1, p);
		nucleus(p, s.top_p, cut);
		judge(times, cut, "top_p");
	}
	s.top_p = 1;
	s.min_p = 0.1f;
	count_draws(s, NULL, 0, times);
	double most = 0;
	for (int i = 0; i < VOCAB; i++)
		most = fmax(most, p[i]);
	for (int i = 0; i < VOCAB; i++)
		cut[i] = p[i] >= 0.1 * most ? p[i] : 0;
	judge(times, cut, "min_p");
	/* A share that is reached exactly by equals: four of eight. */
	for (int i = 0; i < VOCAB; i++)
		logits[i] = i % 10 == 1 && i < 80 ? 0 : -INFINITY;
	s.min_p = 0;
	s.top_p = 0.5f;
	count_draws(s, NULL, 0, times);
	for (int i = 0; i < VOCAB; i++)
		cut[i] = i % 10 == 1 && i < 40;
	judge(times, cut, "top_p of equals");
	/* Light ones that together are most of it: one of 50, and 85 of 99 of 1, to reach 0.9 of 149. */
	for (int i = 0; i < VOCAB; i++)
		logits[i] = i == 20 ? logf(50) : 0;
	s.top_p = 0.9f;
	count_draws(s, NULL, 0, times);
	for (int i = 0; i < VOCAB; i++)
		cut[i] = i == 20 ? 50 : i < 86;
	judge(times, cut, "top_p of many light ones");
	/* Light ones that are needed though they are half of the mean: one of 80 and 10 of 99 of 1. */
	logits[20] = logf(80);
	s.top_p = 0.5f;
	count_draws(s, NULL, 0, times);
	for (int i = 0; i < VOCAB; i++)
		cut[i] = i == 20 ? 80 : i < 10;
	judge(times, cut, "top_p that needs some of the light ones");
}

static void typical(void)
{
	uint32_t times[VOCAB];
	double p[VOCAB], key[VOCAB], cut[VOCAB] = {0}, sum = 0, entropy = 0, reached = 0;
	struct ops_sample s = plain();
	logits_make(6);
	logits[50] = 7; /* so likely that it is not typical */
	weights(1, p);
	for (int i = 0; i < VOCAB; i++)
		sum += p[i];
	for (int i = 0; i < VOCAB; i++)
		entropy -= p[i] / sum * log(p[i] / sum);
	for (int i = 0; i < VOCAB; i++)
		key[i] = -fabs(-log(p[i] / sum) - entropy);
	s.typical = 0.3f;
	for (int rank = 0; reached < 0.3f * sum; rank++)
		for (int i = 0; i < VOCAB; i++)
			if (rank_of(key, i) == rank) {
				cut[i] = p[i];
				reached += p[i];
			}
	count_draws(s, NULL, 0, times);
	judge(times, cut, "typical");
}

static void bias_penalties_mask(void)
{
	struct ops_sample s = plain();
	uint32_t extra[4 + 6 + 6] = {0xffffffff, 0xffffffff, 0xffffffff, 0xf};
	const float up = 20, ban = -INFINITY;
	s.temperature = 0;
	logits_make(7);
	logits[10] = 8, logits[20] = 6, logits[30] = 5.5f, logits[40] = -3;
	extra[4] = 10, extra[5] = 3, extra[6] = 20, extra[7] = 1, extra[8] = 30,
	extra[9] = 0;
	s.counts_at = 1 + 16, s.count_count = 3;
	EXPECT_EQ(draw_one(s, extra, 16).token, 10); /* counts without penalties */
	s.repetition = 1.25f; /* 6.4, 4.8, 5.5 */
	EXPECT_EQ(draw_one(s, extra, 16).token, 10);
	s.repetition = 1.5f; /* 5.33, 4, 5.5 */
	EXPECT_EQ(draw_one(s, extra, 16).token, 30);
	s.repetition = 1, s.frequency = 0.7f; /* 5.9, 5.3, 5.5 */
	EXPECT_EQ(draw_one(s, extra, 16).token, 10);
	s.frequency = 0.9f; /* 5.3, 5.1, 5.5 */
	EXPECT_EQ(draw_one(s, extra, 16).token, 30);
	s.frequency = 0, s.presence = 2.6f;
	EXPECT_EQ(draw_one(s, extra, 16).token, 30);
	s.presence = 0, s.counts_at = 0, s.count_count = 0;
	memcpy(extra + 11, &ban, 4), memcpy(extra + 13, &up, 4);
	extra[10] = 10, extra[12] = 40;
	s.bias_at = 1 + 40, s.bias_count = 2;
	const struct ops_sampled out = draw_one(s, extra, 16);
	EXPECT_EQ(out.token, 40);
	EXPECT(fabs(out.logprob - (-3 - log_sum())) < 1e-5); /* of the raw logits */
	s.bias_count = 1;
	EXPECT_EQ(draw_one(s, extra, 16).token, 20);
	s.mask_at = 1;
	extra[0] &= ~(1u << 20);
	EXPECT_EQ(draw_one(s, extra, 16).token, 30);
	/* A repetition penalty makes a negative logit smaller too. */
	extra[0] = extra[1] = extra[2] = extra[3] = 0;
	extra[0] = 1u << 10, extra[1] = 1u << 8; /* 10 and 40 */
	logits[10] = -3.5f;
	s.bias_count = 0, s.bias_at = 0, s.counts_at = 1 + 16, s.count_count = 1,
	s.repetition = 2;
	extra[4] = 40, extra[5] = 1;
	EXPECT_EQ(draw_one(s, extra, 16).token, 10);
	extra[0] = extra[1] = extra[2] = extra[3] = 0;
	EXPECT(draw_one(s, extra, 16).token == (uint32_t)OPS_NONE);
	s.temperature = 1, s.top_k = 5, s.top_p = 0.5f, s.typical = 0.5f, s.min_p = 0.1f;
	EXPECT(draw_one(s, extra, 16).token == (uint32_t)OPS_NONE);
}

/* The same seed and position give the same token, whatever stands beside. */
/* All steps at once, plainly: logits, what is added, what was counted, what is allowed; then weights in
   double precision, cut in the order of struct ops_sample. */
static void plain_model(const struct ops_sample *s, const double *added, const uint32_t *times,
			const bool *allowed, double *p)
{
	double w[VOCAB], sum = 0, largest = -INFINITY;
	for (int i = 0; i < VOCAB; i++) {
		w[i] = (double)logits[i] + added[i];
		if (times[i]) {
			w[i] = w[i] > 0 ? w[i] / (double)s->repetition : w[i] * (double)s->repetition;
			w[i] -= times[i] * (double)s->frequency + (double)s->presence;
		}
		if (!allowed[i])
			w[i] = -INFINITY;
		largest = fmax(largest, w[i]);
	}
	for (int i = 0; i < VOCAB; i++)
		p[i] = exp((w[i] - largest) / (double)s->temperature);
	if (s->top_k) {
		double all[VOCAB];
		memcpy(all, p, sizeof all);
		for (int i = 0; i < VOCAB; i++)
			if (rank_of(all, i) >= (int)s->top_k)
				p[i] = 0;
	}
	if (s->typical < 1) {
		double key[VOCAB], entropy = 0, kept[VOCAB], reached = 0;
		for (int i = 0; i < VOCAB; i++)
			sum += p[i];
		for (int i = 0; i < VOCAB; i++)
			entropy -= p[i] > 0 ? p[i] / sum * log(p[i] / sum) : 0;
		for (int i = 0; i < VOCAB; i++) /* the nearest is the largest */
			key[i] = p[i] > 0 ? 1000 - fabs(-log(p[i] / sum) - entropy) : -1;
		memset(kept, 0, sizeof kept);
		for (int rank = 0; rank < VOCAB && (rank == 0 || reached < (double)s->typical * sum); rank++)
			for (int i = 0; i < VOCAB; i++)
				if (rank_of(key, i) == rank && key[i] >= 0)
					reached += kept[i] = p[i];
		memcpy(p, kept, sizeof kept);
	}
	if (s->top_p < 1) {
		double out[VOCAB];
		nucleus(p, (double)s->top_p, out);
		memcpy(p, out, sizeof out);
	}
	largest = 0;
	for (int i = 0; i < VOCAB; i++)
		largest = fmax(largest, p[i]);
	for (int i = 0; i < VOCAB; i++)
		if (p[i] < (double)s->min_p * largest)
			p[i] = 0;
}

static uint64_t dice_seed;

static uint32_t dice(uint32_t below)
{
	dice_seed = dice_seed * 6364136223846793005u + 1442695040888963407u;
	return (uint32_t)(dice_seed >> 33) % below;
}

/* Parameters of all kinds together, each on or off. */
static void everything_at_once(void)
{
	enum { PLACES = 40, EXTRA = 4 * PLACES + 4 };
	for (uint32_t round = 0; round < 24; round++) {
		struct ops_sample s = plain();
		uint32_t extra[EXTRA] = {0}, times[VOCAB] = {0}, came[VOCAB];
		double added[VOCAB] = {0}, p[VOCAB];
		bool allowed[VOCAB];
		dice_seed = round + 1;
		logits_make(100 + round);
		s.temperature = 0.5f + (float)dice(20) / 10;
		s.top_k = dice(2) ? 5 + dice(60) : 0;
		s.typical = dice(2) ? 0.3f + (float)dice(60) / 100 : 1;
		s.top_p = dice(2) ? 0.5f + (float)dice(45) / 100 : 1;
		s.min_p = dice(2) ? (float)dice(20) / 100 : 0;
		s.repetition = 1 + (float)dice(10) / 10;
		s.presence = (float)dice(20) / 10 - 1;
		s.frequency = (float)dice(10) / 10 - 0.5f;
		for (uint32_t i = 0; i < PLACES; i++) {
			const uint32_t token = 2 * i + dice(2);
			const float add = (float)dice(60) / 10 - 3;
			extra[2 * i] = extra[2 * PLACES + 2 * i] = token;
			memcpy(&extra[2 * i + 1], &add, sizeof add);
			extra[2 * PLACES + 2 * i + 1] = times[token] = dice(5);
			added[token] = (double)add;
		}
		s.bias_at = 1;
		s.bias_count = PLACES;
		s.counts_at = 1 + 8 * PLACES;
		s.count_count = PLACES;
		s.mask_at = 1 + 16 * PLACES;
		for (uint32_t i = 0; i < VOCAB; i++) {
			allowed[i] = i == 7 || dice(4) > 0;
			extra[4 * PLACES + i / 32] |= (uint32_t)allowed[i] << i % 32;
		}
		count_draws(s, extra, EXTRA, came);
		plain_model(&s, added, times, allowed, p);
		judge(came, p, "everything at once");
	}
}

static void draws_repeat(void)
{
	static struct ops_sampled many[AT_ONCE], one;
	struct ops_sample s = plain();
	int other = 0, row = 0;
	logits_make(8);
	s.seed = 5;
	REQUIRE(draw(s, AT_ONCE, NULL, 0, many) == 0);
	for (uint32_t i = 0; i < AT_ONCE; i += 7) {
		s.seed = 5 + i;
		s.row = 0;
		REQUIRE(draw(s, 1, NULL, 0, &one) == 0);
		EXPECT(memcmp(&one, &many[i], sizeof one) == 0);
		other += one.token != many[0].token;
		s.row = 1; /* another position */
		REQUIRE(draw(s, 1, NULL, 0, &one) == 0);
		row += one.token != many[i].token;
	}
	EXPECT(other > 0 && row > 0);
}

int main(void)
{
	struct device_plan p = fixture_plan();
	const struct fixture_options o = {.matmul_type = TYPE_F32,
					  .embedding_type = TYPE_F32};
	p.vocab = VOCAB;
	p.threads = 2;
	fixture_open(&f, &p, &o, 1);
	TAP_RUN(greedy, "the largest, the lowest of equals, and NaN");
	TAP_RUN(alternatives, "alternatives and log-probabilities of the raw logits");
	TAP_RUN(temperatures, "the distribution at four temperatures");
	TAP_RUN(top_k, "top_k, with equals at the edge");
	TAP_RUN(top_p_and_min_p, "top_p and min_p");
	TAP_RUN(typical, "typical");
	TAP_RUN(bias_penalties_mask, "bias, penalties and mask, and nothing allowed");
	TAP_RUN(everything_at_once, "all parameters together, against a plain model in double precision");
	TAP_RUN(draws_repeat, "a draw depends on seed and position alone");
	fixture_close(&f);
	return tap_done();
}
