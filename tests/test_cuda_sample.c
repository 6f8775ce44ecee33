/*
 * Goal: sampling on the GPU is the CPU's. Method: the same logits and the same wishes, everything that
 * may be asked for by turns, many logits equal; the tokens must be the same.
 */
#include "tests/cuda_both.h"

/* A sample with everything that may be asked for, by turns. */
static struct ops_sample sample_make(uint64_t *state, uint32_t i)
{
	struct ops_sample s = {.row = 0, .temperature = 1, .top_p = 1, .typical = 1, .repetition = 1};
	s.seed = random_next(state);
	s.temperature = i % 5 == 0 ? 0 : 0.3f + (float)(i % 7) / 3;
	s.top_count = i % 3 == 0 ? i % (OPS_TOP_MAX + 1) : 0;
	s.top_k = i % 4 == 1 ? 1 + i % 50 : 0;
	s.top_p = i % 4 == 2 ? 0.1f + 0.1f * (float)(i % 9) : 1;
	s.typical = i % 6 == 3 ? 0.7f : 1;
	s.min_p = i % 7 == 3 ? 0.05f : 0;
	if (i % 2) {
		s.repetition = 1.2f;
		s.presence = 0.3f;
		s.frequency = 0.2f;
	}
	return s;
}

/* The extras of a sample: counts, biases, a mask. */
static void extras_make(uint64_t *state, uint8_t *base, const struct ops_batch *b, uint32_t vocab, uint32_t i,
			struct ops_sample *s)
{
	uint32_t *word = (uint32_t *)(void *)(base + b->extra_at);
	uint32_t at = b->extra_at;
	if (i % 2) {
		s->counts_at = at;
		for (uint32_t t = i % 3; t < vocab; t += 3 + i % 5, s->count_count++, at += 8) {
			*word++ = t;
			*word++ = random_below(state, 4);
		}
	}
	if (i % 3 == 1) {
		s->bias_at = at;
		for (uint32_t t = 1; t < vocab; t += 7, s->bias_count++, at += 8) {
			const float x = t % 2 ? 2.0f : -INFINITY;
			*word++ = t;
			memcpy(word++, &x, 4);
		}
	}
	if (i % 5 == 2) {
		s->mask_at = at;
		for (uint32_t w = 0; w < (vocab + 31) / 32; w++)
			*word++ = i % 10 == 2 && i > 30 ? 0 : 0x5555ff0fu; /* one mask allows nothing */
	}
}

static void sampling(void)
{
	enum { COUNT = 60, VOCAB = 777 };
	struct device_plan p = fixture_plan();
	const struct fixture_options o = {.matmul_type = TYPE_F32, .embedding_type = TYPE_F32};
	static float logits[VOCAB];
	uint64_t state = 5;
	uint32_t differ = 0, drawn = 0;
	p.vocab = VOCAB;
	p.rows_max = p.samples_max = 1;
	p.sequences_max = 1;
	p.extra_bytes_max = 16384;
	both_open(&p, &o, 1);
	for (uint32_t i = 0; i < COUNT; i++) {
		const struct fixture_sequence q = {text, i, 1, 0, 0};
		struct ops_batch *b = fixture_block(&cpu, &q, 1, 1);
		struct ops_sampled x, y;
		*block_samples(b) = sample_make(&state, i);
		extras_make(&state, (uint8_t *)b, b, VOCAB, i, block_samples(b));
		for (uint32_t k = 0; k < VOCAB; k++) {
			logits[k] = (float)random_below(&state, 40) / 4; /* many are equal */
			if (i % 11 == 5)
				logits[k] = k % 5 ? logits[k] * 10 : k % 2 ? NAN : INFINITY;
		}
		hook_seed(seeds[i % SEEDS]);
		if (!EXPECT(cpu.ops->batch(cpu.device, b) == 0 && gpu.ops->batch(gpu.device, b) == 0))
			break;
		EXPECT(cpu.ops->buffer_write(cpu.device, BUFFER_LOGITS, 0, VOCAB, logits) == 0);
		EXPECT(gpu.ops->buffer_write(gpu.device, BUFFER_LOGITS, 0, VOCAB, logits) == 0);
		EXPECT(cpu.ops->sample(cpu.device) == 0 && gpu.ops->sample(gpu.device) == 0);
		EXPECT(cpu.ops->wait(cpu.device, &x, NULL) == 0 && gpu.ops->wait(gpu.device, &y, NULL) == 0);
		drawn += x.token != (uint32_t)OPS_NONE;
		differ += x.token != y.token;
		EXPECT(!(fabsf(x.logprob - y.logprob) > 1e-4f));
		EXPECT_EQ(x.top_count, y.top_count);
		for (uint32_t k = 0; k < x.top_count; k++)
			EXPECT(x.top_token[k] == y.top_token[k] && fabsf(x.top_logprob[k] - y.top_logprob[k]) < 1e-4f);
		if (x.token != y.token)
			printf("# sample %u: %u and %u\n", i, x.token, y.token);
		free(b);
	}
	EXPECT(differ == 0 && drawn > COUNT / 2);
	both_close();
}

int main(void)
{
	if (hook_missing())
		return tap_skip_all(hook_missing());
	TAP_RUN(sampling, "sampling: the CPU's tokens");
	return tap_done();
}
