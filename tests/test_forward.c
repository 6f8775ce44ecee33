/*
 * Goal: what is computed again is what was computed, on every path of the CPU. Method: tests/heart.h, on
 * random models of every architecture and on real ones. Besides: what a model takes of memory, what it
 * refuses, what a foreign page does, and the smoothing of K.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/calibrate.h"
#include "tests/heart.h"
#include "tests/tiny.h"

static char folder[64];
static bool sanitized; /* it looks at memory, so the same code on less will do */

static struct model *tiny_model;

static void tiny_all(enum isa isa)
{
	if (!ops_isa_runs(isa))
		TAP_SKIP("this machine does not run it");
	REQUIRE(tiny_model != NULL);
	for (int kv = KV_FP8; kv <= KV_F32; kv++)
		heart(&(struct setup){.model = tiny_model, .isa = isa, .kv = (enum kv_kind)kv,
				      .length = sanitized && kv != KV_FP8 ? 48 : 290,
				      .brief = sanitized});
}

static void tiny_scalar(void)
{
	tiny_all(ISA_SCALAR);
}

static void tiny_avx2(void)
{
	tiny_all(ISA_AVX2);
}

static void tiny_avx512(void)
{
	tiny_all(ISA_AVX512);
}

/* The other architectures: windows shorter than a partition, norms of q and k, post norms, biases,
   heads of 128 and 256. The best path, and the scalar one on less. */
static void families(void)
{
	for (unsigned i = 1; i < TINY_FAMILIES; i++) {
		char path[120], reason[MODEL_REASON_MAX] = "";
		struct model *model = NULL;
		snprintf(path, sizeof path, "%s/%s.gguf", folder, tiny_families[i].name);
		REQUIRE(tiny_write_family(path, 3, &tiny_families[i], 0) == 0);
		if (model_open(path, &model, reason) != 0)
			printf("# %s: %s\n", tiny_families[i].name, reason);
		REQUIRE(model != NULL);
		for (int kv = KV_FP8; kv <= KV_INT8; kv++)
			heart(&(struct setup){.model = model, .isa = ops_isa_best(),
					      .kv = (enum kv_kind)kv, .brief = true, .one = kv == KV_INT8,
					      .length = sanitized && kv != KV_FP8 ? 48 : 290});
		heart(&(struct setup){.model = model, .isa = ISA_SCALAR, .kv = KV_F32, .brief = true,
				      .one = true, .length = 80});
		model_close(&model);
	}
}

/* The real model, on each path that runs: a history over more than one partition on the best one,
   shorter ones on those that are slow. */
static void real_all(void)
{
	static const uint32_t lengths[] = {[ISA_SCALAR] = 16, [ISA_AVX2] = 64, [ISA_AVX512] = 64};
	const char *path = getenv("HOLDFAST_MODEL");
	char reason[MODEL_REASON_MAX];
	struct model *model = NULL;
	if (!path || !*path)
		TAP_SKIP("HOLDFAST_MODEL is not set");
	REQUIRE(model_open(path, &model, reason) == 0);
	for (int isa = ISA_SCALAR; isa <= ISA_AVX512; isa++)
		if (ops_isa_runs((enum isa)isa) && (!sanitized || isa == (int)ops_isa_best()))
			heart(&(struct setup){.model = model, .isa = (enum isa)isa, .kv = KV_FP8,
					      .length = sanitized ? 16
							: isa == (int)ops_isa_best() ? 270
										     : lengths[isa],
					      .brief = true, .one = sanitized});
	model_close(&model);
}

/* The others, where they are there; with sanitizers the one above will do. HOLDFAST_HEART=1: on every
   path, and on the best one in every precision of K and V a history over more than one partition, with
   Gemma over its window of 512. */
static void real_other(const char *name, uint32_t longest)
{
	const char *const dir = getenv("HOLDFAST_MODELS");
	static const uint32_t lengths[] = {[ISA_SCALAR] = 0, [ISA_AVX2] = 24, [ISA_AVX512] = 24};
	static const uint32_t all[] = {[ISA_SCALAR] = 16, [ISA_AVX2] = 64, [ISA_AVX512] = 64};
	const bool whole = getenv("HOLDFAST_HEART") != NULL;
	char path[4096], reason[MODEL_REASON_MAX];
	struct model *model = NULL;
	if (sanitized)
		TAP_SKIP("with sanitizers the default model will do");
	snprintf(path, sizeof path, "%s/%s.gguf", dir ? dir : "", name);
	if (access(path, R_OK) != 0)
		TAP_SKIP("it is not in HOLDFAST_MODELS: ./bootstrap model fetches it");
	REQUIRE(model_open(path, &model, reason) == 0);
	for (int isa = ISA_SCALAR; isa <= ISA_AVX512; isa++) {
		const bool best = isa == (int)ops_isa_best();
		const uint32_t length = best ? (whole ? longest : 64) : whole ? all[isa] : lengths[isa];
		const int kv_last = best && whole ? KV_F32 : KV_FP8;
		for (int kv = KV_FP8; ops_isa_runs((enum isa)isa) && length > 0 && kv <= kv_last; kv++)
			heart(&(struct setup){.model = model, .isa = (enum isa)isa, .kv = (enum kv_kind)kv,
					      .length = length, .brief = true, .one = true});
	}
	model_close(&model);
}

static void real_qwen(void)
{
	real_other("qwen2.5-coder-0.5b", 270);
}

static void real_gemma(void)
{
	real_other("gemma3-270m", 720);
}

static void needs_agree(void)
{
	REQUIRE(tiny_model != NULL);
	for (int kv = KV_FP8; kv <= KV_F32; kv++) {
		struct forward_options o;
		struct forward_needs needs, none;
		struct forward *f = NULL;
		char reason[MODEL_REASON_MAX];
		forward_options_default(&o);
		o.kv = (enum kv_kind)kv;
		o.threads = 1;
		o.page_count = 10;
		o.cache_dir = folder;
		EXPECT_EQ(forward_needs(tiny_model, &o, &needs, reason), 0);
		REQUIRE(forward_open(tiny_model, &o, &f, reason) == 0);
		EXPECT_EQ(needs.weights_bytes, forward_weights_bytes(f));
		EXPECT_EQ(needs.page_bytes, ops_page_bytes(o.kv, TINY_LAYERS, TINY_KV_HEADS, TINY_HEAD,
							   o.page_tokens));
		EXPECT(needs.slab_bytes >= 10 * needs.page_bytes);
		o.page_count = 0;
		EXPECT_EQ(forward_needs(tiny_model, &o, &none, reason), 0);
		EXPECT_EQ(none.slab_bytes, 0);
		EXPECT_EQ(none.weights_bytes, needs.weights_bytes);
		forward_close(&f);
	}
}

static void refuses(void)
{
	struct forward_options o;
	struct forward *f = NULL;
	char reason[MODEL_REASON_MAX] = "";
	REQUIRE(tiny_model != NULL);
	forward_options_default(&o);
	o.context = TINY_CONTEXT + 1;
	EXPECT_EQ(forward_open(tiny_model, &o, &f, reason), -ERR_OUT_OF_RANGE);
	EXPECT(f == NULL && strstr(reason, "1025") && strstr(reason, "1024"));
	o.context = 0;
	o.page_tokens = 24;
	EXPECT_EQ(forward_open(tiny_model, &o, &f, reason), -ERR_OUT_OF_RANGE);
	EXPECT(strstr(reason, "24") != NULL);
}

/* A foreign page ends that sequence and leaves its neighbour alone; without the check it does not. */
static void tags_matter(void)
{
	const struct setup s = {.model = tiny_model, .isa = ISA_SCALAR, .kv = KV_FP8, .threads = 1,
				.page_tokens = 16, .length = 40};
	const uint32_t tokens[3] = {5, 6, 7};
	struct run run;
	REQUIRE(tiny_model != NULL);
	REQUIRE(setup_open(&s, &run) == 0);
	const struct run_sequence own = sequence_at(0);
	struct run_sequence foreign = sequence_at(1);
	foreign.tag_first += 1000;
	batch_begin(run.builder);
	batch_sample(run.builder, run_put(&run, &own, tokens, 3, 0) + 2);
	batch_sample(run.builder, run_put(&run, &foreign, tokens, 3, 0) + 2);
	EXPECT_EQ(run_step(&run), -ERR_INTEGRITY);
	EXPECT_EQ(run.faults[0].page, OPS_NONE);
	EXPECT_EQ(run.faults[1].page, PAGES);
	EXPECT_EQ(run.faults[1].found, 1 + PAGES);
	EXPECT(run.sampled[0].token != OPS_NONE);
	EXPECT_EQ(run.sampled[1].token, OPS_NONE);
	run_close(&run);
}

/* The measure on figures that can be done in the head: rms of K 4 and 1, of Q 1 and 4, so 2 and 1/2;
   a dead pair is held within a factor of 64 of the median; both halves of a pair are equal. */
static void smoothing_measured(void)
{
	struct arch arch = {.heads = 2, .kv_heads = 1, .head = 16, .rope_dims = 16};
	float q[4 * 32], k[4 * 16];
	uint16_t smooth[16];
	for (int halves = 0; halves < 2; halves++) {
		arch.rope = halves ? ROPE_HALVES : ROPE_ADJACENT;
		for (uint32_t i = 0; i < 4 * 16; i++) {
			const uint32_t value = i % 16, pair = halves ? value % 8 : value / 2;
			/* The first row is left out, so what is in it does not count. */
			k[i] = i < 16 ? 1e6f : pair == 7 ? 0 : pair < 4 ? 4 : -1;
			for (uint32_t h = 0; h < 2; h++)
				q[i / 16 * 32 + h * 16 + value] = pair < 4 ? 1 : 4;
		}
		calibrate_layer(&arch, q, k, 4, 1, smooth);
		for (uint32_t value = 0; value < 16; value++) {
			const uint32_t pair = halves ? value % 8 : value / 2;
			/* bf16 of 2, 1/2 and 2/64: the median of 2, 2, 2, 2, 1/2, 1/2, 1/2 is 2. */
			EXPECT_EQ(smooth[value], pair == 7 ? 0x3d00 : pair < 4 ? 0x4000 : 0x3f00);
		}
	}
}

static int int8_hash(const char *cache, uint8_t hash[16])
{
	struct forward_options o;
	struct forward *f = NULL;
	char reason[MODEL_REASON_MAX];
	forward_options_default(&o);
	o.kv = KV_INT8;
	o.threads = 1;
	o.page_count = 4;
	o.cache_dir = cache;
	TRY(forward_open(tiny_model, &o, &f, reason));
	forward_plan_hash(f, hash);
	forward_close(&f);
	return 0;
}

/* The vector is kept, taken again, and made anew when the file is not whole. */
static void smoothing_kept(void)
{
	char cache[100], path[300], name[70] = "";
	uint8_t made[16], found[16], none[16];
	REQUIRE(tiny_model != NULL);
	snprintf(cache, sizeof cache, "%s/cache", folder);
	for (int i = 0; i < 32; i++)
		snprintf(name + 2 * i, 3, "%02x", tiny_model->hash[i]);
	snprintf(path, sizeof path, "%s/%s.smooth", cache, name);
	EXPECT_EQ(int8_hash(cache, made), 0);
	EXPECT_EQ(int8_hash(NULL, none), 0);
	EXPECT(memcmp(made, none, 16) == 0);
	REQUIRE(access(path, R_OK) == 0);
	EXPECT_EQ(int8_hash(cache, found), 0);
	EXPECT(memcmp(made, found, 16) == 0);
	for (long at = 0; at < 300; at += 37) {
		FILE *file = fopen(path, "r+b");
		REQUIRE(file != NULL);
		fseek(file, at, SEEK_SET);
		const int c = fgetc(file);
		fseek(file, at, SEEK_SET);
		fputc(c ^ 0x55, file);
		fclose(file);
		EXPECT_EQ(int8_hash(cache, found), 0);
		EXPECT(memcmp(made, found, 16) == 0);
	}
	EXPECT_EQ(truncate(path, 50), 0);
	EXPECT_EQ(int8_hash(cache, found), 0);
	EXPECT(memcmp(made, found, 16) == 0);
	/* A folder that cannot be made is no error. */
	snprintf(path, sizeof path, "%s/tiny.gguf/cache", folder);
	EXPECT_EQ(int8_hash(path, found), 0);
	tiny_remove(cache);
}

int main(void)
{
	char path[100], reason[MODEL_REASON_MAX] = "";
	sanitized = getenv("HOLDFAST_SANITIZED") != NULL;
	snprintf(folder, sizeof folder, "/tmp/holdfast-forward-XXXXXX");
	if (!mkdtemp(folder))
		return 1;
	heart_cache = folder;
	snprintf(path, sizeof path, "%s/tiny.gguf", folder);
	if (tiny_write(path, 1) == 0 && model_open(path, &tiny_model, reason) != 0)
		printf("# %s\n", reason);
	TAP_RUN(tiny_scalar, "continued is recomputed, all weight types and KV kinds, scalar");
	TAP_RUN(tiny_avx2, "the same on AVX2");
	TAP_RUN(tiny_avx512, "the same on AVX-512");
	TAP_RUN(families, "the same on tiny models of every architecture");
	TAP_RUN(needs_agree, "what a model will take is what it takes");
	TAP_RUN(refuses, "what the model cannot do is refused with the numbers");
	TAP_RUN(tags_matter, "a foreign page ends its sequence and no other");
	TAP_RUN(smoothing_measured, "the smoothing vector of known figures");
	TAP_RUN(smoothing_kept, "the smoothing vector is kept, and made anew when it is broken");
	TAP_RUN(real_all, "continued is recomputed with the real model on every path");
	TAP_RUN(real_qwen, "the same with qwen2.5-coder-0.5b");
	TAP_RUN(real_gemma, "the same with gemma3-270m");
	model_close(&tiny_model);
	tiny_remove(folder);
	return tap_done();
}
