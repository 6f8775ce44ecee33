/*
 * The bounds of a machine and the work of a step, as bench --roofline reports them: figures that can be
 * done by hand, and measurements that are plausible for anything that runs this program.
 */
#include <string.h>

#include "runtime/program.h"
#include "runtime/roofline.h"
#include "runtime/weights.h"
#include "tests/tap.h"
#include "tests/tiny.h"

static void machine(void)
{
	struct roofline r;
	EXPECT_EQ(roofline_measure(ISA_AUTO, 0, &r), -ERR_OUT_OF_RANGE);
	EXPECT_EQ(roofline_measure(ISA_AUTO, ROOFLINE_THREADS_MAX + 1, &r), -ERR_OUT_OF_RANGE);
	REQUIRE(roofline_measure(ISA_AUTO, 1, &r) == 0);
	printf("# %.1f GB/s, %.1f G multiply-adds/s\n", r.bytes_per_s * 1e-9, r.macs_per_s * 1e-9);
	EXPECT(r.bytes_per_s > 1e8 && r.bytes_per_s < 1e13);
	EXPECT(r.macs_per_s > 1e8 && r.macs_per_s < 1e13);
	EXPECT(r.f32_per_s > 1e8 && r.f32_per_s < 1e13);
	/* Tiles are where AMX is, and nowhere else. */
	EXPECT((strstr(ops_isa_beside(ISA_AUTO), "AMX") != NULL) == (r.tile_per_s > 0));
}

static void sets(void)
{
	/* What a set does in a round is fixed, so that the timing alone says how fast it is. */
	EXPECT_EQ(ops_isa_work(ISA_SCALAR, ISA_WORK_DOT, 10), 40);
	if (ops_isa_runs(ISA_AVX2))
		EXPECT_EQ(ops_isa_work(ISA_AVX2, ISA_WORK_DOT, 10), 3200);
	if (ops_isa_runs(ISA_AVX2))
		EXPECT_EQ(ops_isa_work(ISA_AVX2, ISA_WORK_F32, 10), 800);
	EXPECT_EQ(ops_isa_work(ISA_SCALAR, ISA_WORK_TILE, 10), 0);
	const enum isa best = ops_isa_best();
	EXPECT_EQ(ops_isa_work(best, ISA_WORK_DOT, 20), 2 * ops_isa_work(best, ISA_WORK_DOT, 10));
}

/* Of the tiny model, by hand: q and o, k and v, gate, up and down in each layer; the head once. */
static void work(void)
{
	char folder[64] = "/tmp/holdfast-roofline-XXXXXX", path[100], reason[MODEL_REASON_MAX] = "";
	const uint64_t q = TINY_WIDTH * TINY_HEADS * TINY_HEAD, k = TINY_WIDTH * TINY_KV_HEADS * TINY_HEAD;
	const uint64_t layer = 2 * q + 2 * k + 3 * TINY_WIDTH * TINY_FF;
	struct model *model = NULL;
	struct forward *forward = NULL;
	struct forward_options o;
	struct weights_work w;
	REQUIRE(mkdtemp(folder) != NULL);
	snprintf(path, sizeof path, "%s/tiny.gguf", folder);
	REQUIRE(tiny_write(path, 1) == 0);
	REQUIRE(model_open(path, &model, reason) == 0);
	forward_options_default(&o);
	o.page_count = 1;
	o.threads = 1;
	REQUIRE(forward_open(model, &o, &forward, reason) == 0);
	weights_work(model, forward_ops(forward), forward_plan(forward), &w);
	EXPECT_EQ(w.layer_macs, TINY_LAYERS * layer);
	EXPECT_EQ(w.head_macs, (uint64_t)TINY_VOCAB * TINY_WIDTH);
	EXPECT_EQ(w.part[STEP_QKV].macs, TINY_LAYERS * (q + 2 * k));
	EXPECT_EQ(w.part[STEP_OUTPUT].macs, TINY_LAYERS * q);
	EXPECT_EQ(w.part[STEP_GATE_UP].macs, 2 * TINY_LAYERS * TINY_WIDTH * TINY_FF);
	EXPECT_EQ(w.part[STEP_DOWN].macs, TINY_LAYERS * TINY_WIDTH * TINY_FF);
	EXPECT_EQ(w.part[STEP_HEAD].macs, w.head_macs);
	EXPECT_EQ(w.part[STEP_ATTEND].macs + w.part[STEP_ATTEND].bytes, 0);
	/* The embedding is the head here, so nothing is only looked up. */
	EXPECT_EQ(w.bytes, forward_weights_bytes(forward));
	forward_close(&forward);
	model_close(&model);
	tiny_remove(folder);
}

int main(void)
{
	TAP_RUN(machine, "what the machine can do");
	TAP_RUN(sets, "a round of each instruction set");
	TAP_RUN(work, "the work of a step");
	return tap_done();
}
