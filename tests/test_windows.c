/*
 * Window layers with pages of their own: a session that keeps only what its windows show gives, bit for
 * bit, what one gives that keeps all.
 *
 * The truth is computed with one group of pages, in one way. Then the same tokens are computed with two
 * groups, where the window layers' pages are a ring: page u of a session lies in place u modulo the
 * ring, which is just large enough for a chunk and what its first row sees. So what no row can see is
 * gone, written over and under another tag. In chunks of several sizes, and after a fork and a rollback
 * inside the window.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/program.h"
#include "tests/tap.h"
#include "tests/tiny.h"

enum { LENGTH_MAX = 1200, TOP = 4, SESSIONS = 2, SPAN = 16 };

static char folder[64];
static bool sanitized;

struct plan {
	const struct model *model;
	enum isa isa;
	enum kv_kind kv;
	uint32_t length, chunk; /* chunk: the largest */
	uint32_t every;         /* rows that are sampled: one of so many, and the last of a chunk */
};

static uint32_t units(uint32_t tokens)
{
	return (tokens + SPAN - 1) / SPAN;
}

static uint32_t pages_of(const struct plan *p)
{
	return units(p->length) + 1;
}

static uint32_t ring_of(const struct plan *p)
{
	return units(p->model->arch.window + p->chunk) + 1;
}

static int open_run(const struct plan *p, bool grouped, struct run *run)
{
	struct forward_options o;
	forward_options_default(&o);
	o.kv = p->kv;
	o.isa = p->isa;
	o.threads = 2;
	o.page_count = pages_of(p) * SESSIONS;
	o.window_pages = grouped ? ring_of(p) * SESSIONS : 0;
	o.sequences_max = SESSIONS;
	o.samples_max = 64;
	o.rows_max = p->chunk + 1;
	o.context = p->length + SPAN;
	o.cache_dir = folder;
	return run_open("test", p->model, &o, run);
}

/* Each page of the ring has the tag of the unit that lies there. */
static uint64_t tag_of(uint32_t session, uint32_t unit)
{
	return 1000 * (session + 1) + unit;
}

static int sequence(const struct plan *p, struct run *run, bool grouped, uint32_t session, uint32_t from,
		    uint32_t to)
{
	const struct ops *ops = forward_ops(run->forward);
	const uint32_t window = p->model->arch.window, ring = ring_of(p), last = units(to);
	const uint32_t low = grouped && from + 1 > window ? (from + 1 - window) / SPAN : 0;
	const uint32_t start[OPS_GROUP_MAX] = {0, low * SPAN};
	CHECK(!grouped || last - low <= ring);
	batch_sequence(run->builder, session, start);
	for (uint32_t u = 0; u < last; u++) {
		const uint32_t page = session * pages_of(p) + u;
		TRY(ops->page_tags_set(forward_device(run->forward), 0, page, 1, tag_of(session, u)));
		batch_page(run->builder, 0, page, tag_of(session, u));
	}
	for (uint32_t u = low; grouped && u < last; u++) {
		const uint32_t page = session * ring + u % ring;
		/* Only pages that begin with this chunk get a new tag. */
		if (u * SPAN >= from)
			TRY(ops->page_tags_set(forward_device(run->forward), 1, page, 1, tag_of(session, u)));
		batch_page(run->builder, 1, page, tag_of(session, u));
	}
	return 0;
}

/* Rows [from, to) of a session in one step. */
static int step(const struct plan *p, struct run *run, bool grouped, uint32_t session,
		const uint32_t *tokens, uint32_t from, uint32_t to, struct ops_sampled *out)
{
	uint32_t at[64], count = 0;
	batch_begin(run->builder);
	TRY(sequence(p, run, grouped, session, from, to));
	for (uint32_t i = from; i < to; i++) {
		const uint32_t row = batch_row(run->builder, tokens[i], i, 0);
		if (i % p->every && i + 1 < to)
			continue;
		batch_sample(run->builder, row)->top_count = TOP;
		at[count++] = i;
	}
	TRY(run_step(run));
	for (uint32_t i = 0; i < count; i++)
		out[at[i]] = run->sampled[i];
	return 0;
}

static int history(const struct plan *p, struct run *run, bool grouped, uint32_t session,
		   const uint32_t *tokens, uint32_t from, uint32_t to, uint32_t chunk,
		   struct ops_sampled *out)
{
	for (uint32_t at = from; at < to; at += chunk)
		TRY(step(p, run, grouped, session, tokens, at, to - at < chunk ? to : at + chunk, out));
	return 0;
}

static uint32_t compared;

static bool same(const struct plan *p, const struct ops_sampled *a, const struct ops_sampled *b,
		 uint32_t from, uint32_t to)
{
	for (uint32_t i = from; i < to; i++) {
		if (i % p->every)
			continue;
		compared++;
		if (a[i].token == b[i].token && memcmp(&a[i].logprob, &b[i].logprob, sizeof a[i].logprob) == 0 &&
		    memcmp(a[i].top_token, b[i].top_token, TOP * 4) == 0 &&
		    memcmp(a[i].top_logprob, b[i].top_logprob, TOP * 4) == 0)
			continue;
		printf("# position %u: token %u (%.9g), it should be %u (%.9g)\n", i, a[i].token,
		       (double)a[i].logprob, b[i].token, (double)b[i].logprob);
		return false;
	}
	return true;
}

/* Copies what a fork shares, in both groups. */
static int fork_pages(const struct plan *p, struct run *run, uint32_t tokens)
{
	const struct ops *ops = forward_ops(run->forward);
	struct device *device = forward_device(run->forward);
	const uint32_t ring = ring_of(p);
	for (uint32_t u = 0; u < units(tokens); u++)
		TRY(ops->page_copy(device, 0, u, pages_of(p) + u));
	for (uint32_t u = 0; u < ring; u++)
		TRY(ops->page_copy(device, 1, u, ring + u));
	const uint32_t low = units(tokens) > ring ? units(tokens) - ring : 0;
	for (uint32_t u = low; u < units(tokens); u++)
		TRY(ops->page_tags_set(device, 1, ring + u % ring, 1, tag_of(1, u)));
	return 0;
}

static void windows(const struct plan *p)
{
	static uint32_t tokens[LENGTH_MAX], wrong[LENGTH_MAX];
	static struct ops_sampled truth[LENGTH_MAX], out[LENGTH_MAX];
	const uint32_t vocab = p->model->arch.vocab, few = p->length < 900 ? 7 : 33;
	const uint32_t middle = p->length * 3 / 4 / SPAN * SPAN, back = 24;
	struct run run;
	for (uint32_t i = 0; i < LENGTH_MAX; i++) {
		tokens[i] = 3 + (i * i * 31 + i * 7 + 5) % (vocab < 5000 ? vocab - 3 : 5000);
		wrong[i] = 3 + (i * 17 + 2) % 200;
	}
	REQUIRE(open_run(p, false, &run) == 0);
	EXPECT_EQ(history(p, &run, false, 0, tokens, 0, p->length, p->chunk, truth), 0);
	run_close(&run);
	REQUIRE(open_run(p, true, &run) == 0);
	EXPECT(forward_plan(run.forward)->group_count == 2);
	const uint32_t chunks[] = {p->chunk, few};
	for (unsigned i = 0; i < 2; i++) {
		memset(out, 0, sizeof out);
		EXPECT_EQ(history(p, &run, true, 0, tokens, 0, p->length, chunks[i], out), 0);
		EXPECT(same(p, out, truth, 0, p->length));
	}
	/* A fork takes other tokens, goes back inside what it has, and then takes the same. */
	EXPECT_EQ(history(p, &run, true, 0, tokens, 0, middle, p->chunk, out), 0);
	EXPECT_EQ(fork_pages(p, &run, middle), 0);
	EXPECT_EQ(history(p, &run, true, 1, wrong, middle, middle + back, few, out), 0);
	memset(out + middle, 0, (LENGTH_MAX - middle) * sizeof *out);
	EXPECT_EQ(history(p, &run, true, 0, tokens, middle, p->length, few, out), 0);
	EXPECT(same(p, out, truth, middle, p->length));
	memset(out + middle, 0, (LENGTH_MAX - middle) * sizeof *out);
	EXPECT_EQ(history(p, &run, true, 1, tokens, middle, p->length, few, out), 0);
	EXPECT(same(p, out, truth, middle, p->length));
	/* A page that is gone is not there to be read: its tag is another's. */
	batch_begin(run.builder);
	const uint32_t start[OPS_GROUP_MAX] = {0};
	batch_sequence(run.builder, 0, start);
	for (uint32_t u = 0; u < units(p->length); u++)
		batch_page(run.builder, 0, u, tag_of(0, u));
	for (uint32_t u = 0; u < units(p->length); u++)
		batch_page(run.builder, 1, u % ring_of(p), tag_of(0, u));
	batch_row(run.builder, tokens[p->length - 1], p->length - 1, 0);
	EXPECT_EQ(run_step(&run), -ERR_INTEGRITY);
	run_close(&run);
}

static struct model *model_of(const char *path)
{
	char reason[MODEL_REASON_MAX] = "";
	struct model *model = NULL;
	if (model_open(path, &model, reason) != 0)
		printf("# %s: %s\n", path, reason);
	return model;
}

static void tiny_of(const char *family)
{
	char path[120];
	const uint32_t before = compared;
	snprintf(path, sizeof path, "%s/%s.gguf", folder, family);
	REQUIRE(tiny_write_family(path, 3, tiny_family(family), 0) == 0);
	struct model *model = model_of(path);
	REQUIRE(model != NULL);
	EXPECT(forward_windowed(model));
	for (int kv = KV_FP8; kv <= KV_F32; kv++)
		for (int isa = ISA_SCALAR; isa <= ISA_AVX512; isa++) {
			const bool best = isa == (int)ops_isa_best();
			if (!ops_isa_runs((enum isa)isa) || (sanitized && (!best || kv > KV_INT8)) || (!best && kv % 3))
				continue;
			windows(&(struct plan){.model = model, .isa = (enum isa)isa, .kv = (enum kv_kind)kv,
					       .length = best ? 600 : 300, .chunk = 56, .every = 1});
		}
	EXPECT(compared - before > (sanitized ? 2000 : 5000));
	model_close(&model);
}

static void tiny(void)
{
	tiny_of("gemma3");
}

/* Its first layer keeps all. */
static void all_layers(void)
{
	tiny_of("mistral");
}

/* Past two windows of 512. */
static void real(void)
{
	const char *const dir = getenv("HOLDFAST_MODELS");
	char path[4096];
	snprintf(path, sizeof path, "%s/gemma3-270m.gguf", dir ? dir : "");
	if (sanitized || access(path, R_OK) != 0)
		TAP_SKIP("gemma3-270m is not in HOLDFAST_MODELS, or a sanitized run");
	struct model *model = model_of(path);
	REQUIRE(model != NULL);
	const char *long_run = getenv("HOLDFAST_LONG");
	windows(&(struct plan){.model = model, .isa = ops_isa_best(), .kv = KV_FP8,
			       .length = long_run ? 1152 : 704, .chunk = 64, .every = 16});
	model_close(&model);
}

/* What has no windows has one group. */
static void refused(void)
{
	char path[120], reason[MODEL_REASON_MAX] = "";
	struct forward *forward = NULL;
	struct forward_options o;
	snprintf(path, sizeof path, "%s/llama.gguf", folder);
	REQUIRE(tiny_write_family(path, 3, tiny_family("llama"), 0) == 0);
	struct model *model = model_of(path);
	REQUIRE(model != NULL);
	EXPECT(!forward_windowed(model));
	forward_options_default(&o);
	o.window_pages = 8;
	EXPECT_EQ(forward_open(model, &o, &forward, reason), -ERR_OUT_OF_RANGE);
	EXPECT(forward == NULL && strstr(reason, "window"));
	model_close(&model);
}

int main(void)
{
	sanitized = getenv("HOLDFAST_SANITIZED") != NULL;
	snprintf(folder, sizeof folder, "/tmp/hf-windows-XXXXXX");
	if (!mkdtemp(folder))
		return 1;
	TAP_RUN(tiny, "a tiny gemma with pages of its windows alone gives the same bits");
	TAP_RUN(all_layers, "so does one whose layers all have a window");
	TAP_RUN(real, "so does the real one, past its window");
	TAP_RUN(refused, "models without windows have one group");
	tiny_remove(folder);
	return tap_done();
}
