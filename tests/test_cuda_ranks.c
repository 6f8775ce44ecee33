/*
 * Several emulated GPUs that split a model, a process for each. Goal: they give what CPU ranks and one
 * GPU give, and the same bits however a history is cut; a rank that ends is noticed. Method: tiny models
 * of each family; gathers go through the host, as they do where NCCL is not. With NCCL all but the one
 * call that gathers is the same.
 */
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/program.h"
#include "tests/emulate_hooks.h"
#include "tests/tap.h"
#include "tests/tiny.h"

enum { ROWS = 24, TOP = 4 };

static char folder[64];

static struct forward_options options_of(const char *device, uint32_t ranks)
{
	struct forward_options o;
	forward_options_default(&o);
	o.device = device;
	o.ranks_count = ranks;
	o.kv = KV_FP8;
	o.act = ACT_F32;
	o.threads = 1;
	o.page_count = 8;
	o.sequences_max = 2;
	o.rows_max = o.samples_max = 2 * ROWS;
	o.context = 64;
	o.cache_dir = folder;
	return o;
}

static struct model *model_of(const char *family, int plain)
{
	char path[160], reason[MODEL_REASON_MAX];
	struct model *model = NULL;
	snprintf(path, sizeof path, "%s/%s-%d.gguf", folder, family, plain);
	CHECK(tiny_write_family(path, 5, tiny_family(family), plain) == 0);
	CHECK(model_open(path, &model, reason) == 0);
	return model;
}

static const struct run_sequence own = {.page_first = 0, .tag_first = 1};
static uint32_t tokens[ROWS];

/* The history in steps of `chunk`, and the logits of its last row. */
static int history(struct run *run, uint32_t chunk, struct ops_sampled *out, float *logits)
{
	TRY(run_tags(run, &own, 8));
	uint32_t last = 0;
	for (uint32_t at = 0; at < ROWS; at += chunk) {
		const uint32_t n = ROWS - at < chunk ? ROWS - at : chunk;
		batch_begin(run->builder);
		const uint32_t row = run_put(run, &own, tokens + at, n, at);
		for (uint32_t i = 0; i < n; i++)
			batch_sample(run->builder, row + i)->top_count = TOP;
		TRY(run_step(run));
		memcpy(out + at, run->sampled, n * sizeof *out);
		last = n - 1;
	}
	return forward_ops(run->forward)->buffer_read(forward_device(run->forward), BUFFER_LOGITS,
						       (size_t)last * TINY_VOCAB, TINY_VOCAB, logits);
}

/* As if this process had not used CUDA: else what it starts could not. */
static void fresh(void)
{
	hook_machine(4, 13000, 9, (size_t)1 << 30);
}

static float difference(const float *a, const float *b)
{
	float most = 0, error = 0;
	for (uint32_t k = 0; k < TINY_VOCAB; k++) {
		most = fmaxf(most, fabsf(a[k]));
		error = fabsf(a[k] - b[k]) <= error ? error : fabsf(a[k] - b[k]); /* NaN stays */
	}
	return error / most;
}

static void agree(void)
{
	static const struct {
		const char *family;
		uint32_t ranks;
		int plain;
	} list[] = {{"mistral", 4, 2}, {"llama3", 4, 1}, {"qwen2", 2, 1}, {"gemma3", 2, 2}};
	static struct ops_sampled cut[ROWS], whole[ROWS], other[ROWS];
	for (unsigned i = 0; i < sizeof list / sizeof list[0]; i++) {
		if (i % 2 && getenv("HOLDFAST_SANITIZED"))
			continue;
		struct model *model = model_of(list[i].family, list[i].plain);
		float gpu[TINY_VOCAB], again[TINY_VOCAB], cpu[TINY_VOCAB], one[TINY_VOCAB];
		struct forward_options o = options_of("cuda", list[i].ranks);
		struct run run;
		fresh();
		for (uint32_t k = 0; k < ROWS; k++)
			tokens[k] = 3 + (k * k * 31 + k * 7 + 5) % (model->arch.vocab - 3);
		hook_seed(i + 1); /* of all ranks; then this one goes on in another order */
		REQUIRE(run_open("test", model, &o, &run) == 0);
		EXPECT_EQ(history(&run, ROWS, whole, gpu), 0);
		hook_seed(0);
		EXPECT_EQ(history(&run, 5, cut, again), 0);
		hook_seed(12345);
		EXPECT_EQ(history(&run, 1, cut, again), 0); /* a graph is made, and serves */
		EXPECT(memcmp(gpu, again, sizeof gpu) == 0);
		for (uint32_t k = 0; k < ROWS; k++)
			EXPECT(whole[k].token == cut[k].token &&
			       memcmp(&whole[k].logprob, &cut[k].logprob, 4) == 0);
		run_close(&run);
		o.device = "cpu";
		REQUIRE(run_open("test", model, &o, &run) == 0);
		EXPECT_EQ(history(&run, ROWS, other, cpu), 0);
		run_close(&run);
		o = options_of("cuda", 1);
		REQUIRE(run_open("test", model, &o, &run) == 0);
		EXPECT_EQ(history(&run, ROWS, other, one), 0);
		run_close(&run);
		printf("# %s over %u: %.2g from CPU ranks, %.2g from one GPU\n", list[i].family, list[i].ranks,
		       (double)difference(cpu, gpu), (double)difference(one, gpu));
		/* bf16 in attention's products, and a page's eight bits where a rounding falls otherwise. */
		EXPECT(difference(cpu, gpu) < 0.02f);
		EXPECT(difference(one, gpu) < 0.02f);
		EXPECT(hook_fault() == NULL);
		model_close(&model);
	}
}

/* Pages that have other tags than the batch says are at fault on both; the next step is sound again.
   (A fault on one alone: test_cuda_device.c.) */
static void fault(void)
{
	struct model *model = model_of("mistral", 2);
	const struct forward_options o = options_of("cuda", 2);
	struct ops_sampled out[ROWS];
	float logits[TINY_VOCAB], again[TINY_VOCAB];
	struct run run;
	fresh();
	REQUIRE(run_open("test", model, &o, &run) == 0);
	EXPECT_EQ(history(&run, ROWS, out, logits), 0);
	const struct run_sequence wrong = {.page_first = 0, .tag_first = 7};
	EXPECT_EQ(run_chunk(&run, &wrong, tokens, 4, 0, 3), -ERR_INTEGRITY);
	EXPECT_EQ(run.faults[0].found, 1);
	EXPECT_EQ(run.sampled[0].token, OPS_NONE);
	EXPECT_EQ(history(&run, ROWS, out, again), 0);
	EXPECT(memcmp(logits, again, sizeof logits) == 0);
	run_close(&run);
	model_close(&model);
}

/* A GPU that is lost on one rank is lost for all. */
static void lost(void)
{
	struct model *model = model_of("mistral", 2);
	const struct forward_options o = options_of("cuda", 2);
	struct ops_sampled out[ROWS];
	float logits[TINY_VOCAB];
	struct run run;
	fresh();
	REQUIRE(run_open("test", model, &o, &run) == 0);
	EXPECT_EQ(history(&run, ROWS, out, logits), 0);
	EXPECT_EQ(forward_rank_gone(run.forward, true), -1);
	hook_lose(5); /* here: the other rank is a process of its own */
	EXPECT_EQ(run_chunk(&run, &own, tokens, 4, 0, 3), -ERR_INTERNAL);
	EXPECT_EQ(run_chunk(&run, &own, tokens, 4, 0, 3), -ERR_INTERNAL);
	EXPECT(forward_rank_gone(run.forward, true) >= 0);
	hook_lose(-1);
	run_close(&run);
	model_close(&model);
}

int main(void)
{
	snprintf(folder, sizeof folder, "/tmp/hf-cuda-ranks-XXXXXX");
	if (!mkdtemp(folder))
		return 1;
	TAP_RUN(agree, "GPU ranks give what CPU ranks and one GPU give, in any cut");
	TAP_RUN(fault, "a fault passes");
	TAP_RUN(lost, "a GPU that is lost is the end of all ranks");
	tiny_remove(folder);
	return tap_done();
}
