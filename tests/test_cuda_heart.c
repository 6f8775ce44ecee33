/*
 * Goal: the heart on the GPU: continued equals recomputed, bit for bit. Method: tests/heart.h with
 * `--device cuda`, on random models of every architecture and every precision of K and V, on the GPU
 * that is linked: the emulated one, or a real one in tests/gpu_heart, which takes longer histories and
 * the model that HOLDFAST_MODEL names.
 */
#include "tests/emulate_hooks.h"
#include "tests/heart.h"
#include "tests/tiny.h"

static char folder[64];

static struct model *family_open(unsigned i)
{
	char path[120], reason[MODEL_REASON_MAX] = "";
	struct model *model = NULL;
	snprintf(path, sizeof path, "%s/%s.gguf", folder, tiny_families[i].name);
	if (tiny_write_family(path, 3, &tiny_families[i], 0) != 0 || model_open(path, &model, reason) != 0)
		printf("# %s: %s\n", path, reason);
	return model;
}

static void heart_of(const struct model *model, enum kv_kind kv, uint32_t length)
{
	hook_seed(kv);
	heart(&(struct setup){.model = model, .device = "cuda", .isa = ISA_AUTO, .kv = kv, .length = length,
			      .brief = hook_emulated(), .one = hook_emulated()});
	const char *const fault = hook_fault();
	if (!EXPECT(fault == NULL))
		printf("# %s\n", fault);
}

/* A history over one page and a window; on a real GPU over more than a partition too. */
static void kinds(void)
{
	struct model *model = family_open(0);
	const int less = getenv("HOLDFAST_SANITIZED") != NULL;
	REQUIRE(model != NULL);
	for (int kv = KV_FP8; kv <= KV_F32; kv++)
		heart_of(model, (enum kv_kind)kv, !hook_emulated() ? 290 : kv == KV_FP8 && !less ? 24 : 12);
	model_close(&model);
}

static void families(void)
{
	if (getenv("HOLDFAST_SANITIZED"))
		TAP_SKIP("with sanitizers one architecture will do");
	for (unsigned i = 1; i < TINY_FAMILIES; i++) {
		struct model *model = family_open(i);
		REQUIRE(model != NULL);
		heart_of(model, KV_FP8, !hook_emulated() ? 290 : tiny_families[i].window ? 42 : 12);
		model_close(&model);
	}
}

static void real(void)
{
	const char *const path = getenv("HOLDFAST_MODEL");
	char reason[MODEL_REASON_MAX] = "";
	struct model *model = NULL;
	if (hook_emulated())
		TAP_SKIP("too much for an emulated GPU");
	if (!path || !*path)
		TAP_SKIP("HOLDFAST_MODEL is not set");
	REQUIRE(model_open(path, &model, reason) == 0);
	heart_of(model, KV_FP8, 290);
	heart_of(model, KV_INT8, 290);
	model_close(&model);
}

int main(void)
{
	if (hook_missing())
		return tap_skip_all(hook_missing());
	snprintf(folder, sizeof folder, "/tmp/holdfast-heart-XXXXXX");
	if (!mkdtemp(folder))
		return 1;
	heart_cache = folder;
	TAP_RUN(kinds, "continued is recomputed on the GPU, every precision of K and V");
	TAP_RUN(families, "the same on tiny models of every architecture");
	TAP_RUN(real, "the same on a real model");
	tiny_remove(folder);
	return tap_done();
}
