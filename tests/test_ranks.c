/*
 * A model split over ranks. Goal: N ranks give what one rank gives within a stated bound, and the same
 * bits at every run, whatever the cut into steps and the neighbours; pages, tags and digests are kept on
 * every rank; a fault on one is a fault on all; a rank that ends is noticed and the rest goes on to its
 * end. Method: ranks as threads over the shared memory that processes use, tiny models of each family.
 */
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "runtime/program.h"
#include "runtime/ranks.h"
#include "tests/tap.h"
#include "tests/tiny.h"

enum { RANKS = 8, LENGTH = 290, PAGES = 20, TOP = 4 };

static char folder[64];
static bool sanitized;

struct member {
	pthread_t thread;
	const struct model *model;
	struct forward_options options;
	struct forward *forward;
	struct ranks *ranks;
	int code;
	char reason[MODEL_REASON_MAX];
};

struct group {
	struct ranks_room *room;
	uint32_t count;
	struct member member[RANKS];
	struct run run; /* rank 0 */
};

static void *member_main(void *arg)
{
	struct member *m = arg;
	m->code = forward_open(m->model, &m->options, &m->forward, m->reason);
	if (m->code == 0)
		m->code = forward_follow(m->forward);
	forward_close(&m->forward);
	return NULL;
}

static struct forward_options options_of(enum kv_kind kv, enum act_kind act)
{
	struct forward_options o;
	forward_options_default(&o);
	o.kv = kv;
	o.act = act;
	o.threads = 1;
	o.page_count = 2 * PAGES;
	o.sequences_max = 2;
	o.rows_max = o.samples_max = 300;
	o.context = 310;
	o.cache_dir = folder;
	return o;
}

static int group_open(struct group *g, const struct model *model, const struct forward_options *options,
		      uint32_t count)
{
	*g = (struct group){.count = count};
	struct forward_options o = *options;
	CHECK(ranks_room_open(count, &g->room) == 0);
	for (uint32_t i = 0; i < count; i++) {
		struct member *m = &g->member[i];
		CHECK(ranks_join(g->room, i, &m->ranks) == 0);
		m->model = model;
		m->options = o;
		m->options.ranks = m->ranks;
		if (i > 0)
			CHECK(pthread_create(&m->thread, NULL, member_main, m) == 0);
	}
	o.ranks = g->member[0].ranks;
	return run_open("test", model, &o, &g->run);
}

static void group_close(struct group *g)
{
	run_close(&g->run);
	for (uint32_t i = 0; i < g->count; i++) {
		if (i > 0)
			pthread_join(g->member[i].thread, NULL);
		ranks_close(&g->member[i].ranks);
	}
	ranks_room_close(&g->room);
}

static struct run_sequence sequence_at(uint32_t index)
{
	return (struct run_sequence){.page_first = index * PAGES, .tag_first = 1 + index * PAGES};
}

static int tags(struct run *run)
{
	for (uint32_t i = 0; i < 2; i++) {
		const struct run_sequence q = sequence_at(i);
		TRY(run_tags(run, &q, PAGES));
	}
	return 0;
}

/* The history in steps of `chunk`, with a neighbour of another length and other tokens if wanted. */
static int history(struct run *run, const uint32_t *tokens, uint32_t length, uint32_t chunk, bool neighbour,
		   struct ops_sampled *out)
{
	const struct run_sequence own = sequence_at(0), other = sequence_at(1);
	for (uint32_t at = 0; at < length; at += chunk) {
		const uint32_t n = length - at < chunk ? length - at : chunk;
		batch_begin(run->builder);
		if (neighbour)
			run_put(run, &other, tokens + (length - at - n), n < 3 ? n : 3, at % 200);
		const uint32_t row = run_put(run, &own, tokens + at, n, at);
		for (uint32_t i = 0; i < n; i++)
			batch_sample(run->builder, row + i)->top_count = TOP;
		TRY(run_step(run));
		memcpy(out + at, run->sampled, n * sizeof *out);
	}
	return 0;
}

static bool same(const struct ops_sampled *a, const struct ops_sampled *b, uint32_t length)
{
	for (uint32_t i = 0; i < length; i++)
		if (a[i].token != b[i].token || memcmp(&a[i].logprob, &b[i].logprob, sizeof a[i].logprob) != 0 ||
		    memcmp(a[i].top_token, b[i].top_token, TOP * 4) != 0 ||
		    memcmp(a[i].top_logprob, b[i].top_logprob, TOP * 4) != 0) {
			printf("# position %u: token %u (%.9g), it should be %u (%.9g)\n", i, a[i].token,
			       (double)a[i].logprob, b[i].token, (double)b[i].logprob);
			return false;
		}
	return true;
}

static void tokens_make(const struct model *model, uint32_t *tokens)
{
	for (uint32_t i = 0; i < LENGTH; i++)
		tokens[i] = 3 + (i * i * 31 + i * 7 + 5) % (model->arch.vocab - 3);
}

static struct model *model_of(const char *family, int plain)
{
	char path[160], reason[MODEL_REASON_MAX];
	struct model *model = NULL;
	snprintf(path, sizeof path, "%s/%s-%d.gguf", folder, family, plain);
	CHECK(tiny_write_family(path, 11, tiny_family(family), plain) == 0);
	if (model_open(path, &model, reason) != 0)
		printf("# %s: %s\n", family, reason);
	CHECK(model);
	return model;
}

/* The logits of the last of 40 rows, all of them. */
static int logits_of(struct run *run, const uint32_t *tokens, float *logits, uint32_t vocab)
{
	const struct run_sequence own = sequence_at(0);
	TRY(tags(run));
	TRY(run_chunk(run, &own, tokens, 40, 0, 39));
	return forward_ops(run->forward)
		->buffer_read(forward_device(run->forward), BUFFER_LOGITS, 0, vocab, logits);
}

/* What is split: which family, over how many, in what weights. Where there are fewer KV heads than
   ranks they stand on several. */
static const struct {
	const char *family;
	uint32_t ranks;
	int plain;
} splits[] = {
	{"mistral", 2, 2}, {"mistral", 4, 2}, {"mistral", 8, 2}, /* 8 heads, 4 KV heads, a window */
	{"llama", 2, 2}, {"llama", 4, 1}, {"llama3", 4, 1},
	{"qwen2", 2, 1}, {"qwen3", 2, 2}, {"qwen3", 4, 2}, {"gemma3", 4, 2}, {"gemma3", 2, 2},
};
enum { SPLITS = sizeof splits / sizeof splits[0] };

/* In f32 throughout only the order of sums differs: a few units of the last place a layer. */
static void within_bound(void)
{
	for (uint32_t i = 0; i < SPLITS; i++) {
		struct model *model = model_of(splits[i].family, splits[i].plain);
		const struct forward_options o = options_of(KV_F32, ACT_F32);
		const uint32_t vocab = model->arch.vocab;
		uint32_t tokens[LENGTH];
		float one[TINY_VOCAB], many[TINY_VOCAB], most = 0, error = 0;
		struct group g;
		struct run run;
		tokens_make(model, tokens);
		REQUIRE(run_open("test", model, &o, &run) == 0);
		EXPECT_EQ(logits_of(&run, tokens, one, vocab), 0);
		const uint32_t greedy = run.sampled[0].token;
		run_close(&run);
		REQUIRE(group_open(&g, model, &o, splits[i].ranks) == 0);
		EXPECT_EQ(logits_of(&g.run, tokens, many, vocab), 0);
		EXPECT_EQ(g.run.sampled[0].token, greedy);
		group_close(&g);
		for (uint32_t k = 0; k < vocab; k++) {
			most = fmaxf(most, fabsf(one[k]));
			error = fmaxf(error, fabsf(one[k] - many[k]));
		}
		printf("# %s over %u: %.2g of %.3g\n", splits[i].family, splits[i].ranks, (double)error,
		       (double)most);
		EXPECT(error <= 2e-5f * most);
		for (uint32_t k = 1; k < splits[i].ranks; k++)
			EXPECT_EQ(g.member[k].code, 0);
		model_close(&model);
	}
}

/* Continued equals recomputed at N ranks: every cut, with and without a neighbour, and again from the
   start with other ranks. */
static void heart(const char *family, uint32_t ranks, enum kv_kind kv)
{
	static const uint32_t chunks[] = {300, 64, 7, 1};
	static struct ops_sampled truth[LENGTH], out[LENGTH];
	struct model *model = model_of(family, 2);
	const struct forward_options o = options_of(kv, ACT_AUTO);
	const uint32_t length = sanitized ? 48 : LENGTH;
	uint32_t tokens[LENGTH];
	tokens_make(model, tokens);
	for (uint32_t round = 0; round < 2; round++) {
		struct group g;
		REQUIRE(group_open(&g, model, &o, ranks) == 0);
		EXPECT_EQ(tags(&g.run), 0);
		for (uint32_t i = 0; i < 4; i++) {
			EXPECT_EQ(history(&g.run, tokens, length, chunks[i], i > 0, round + i ? out : truth), 0);
			if ((round + i) && !EXPECT(same(out, truth, length)))
				printf("# %s over %u, chunks of %u, round %u\n", family, ranks, chunks[i],
				       round);
		}
		group_close(&g);
	}
	model_close(&model);
}

static void hearts(void)
{
	heart("mistral", 4, KV_FP8);
	heart("llama", 2, KV_INT8);
	if (!sanitized)
		heart("gemma3", 4, KV_FP8);
}

/* A list of any length: each digest is what the page's alone is. One that is refused, of the third
   message, is behind what was done everywhere. */
static void digests(const struct ops *ops, struct device *d)
{
	enum { LIST = 75 }; /* more than two messages' */
	static struct ops_digest list[LIST];
	for (uint32_t i = 0; i < LIST; i++)
		list[i] = (struct ops_digest){.page = i * 7 % (2 * PAGES), .tokens = 1 + i % 16};
	EXPECT_EQ(ops->page_digests(d, list, LIST), 0);
	for (uint32_t i = 0; i < LIST; i++) {
		uint64_t one[2];
		EXPECT_EQ(ops_page_digest(ops, d, 0, list[i].page, list[i].tokens, one), 0);
		EXPECT(memcmp(one, list[i].digest, sizeof one) == 0);
	}
	list[LIST - 1].page = 2 * PAGES;
	EXPECT_EQ(ops->page_digests(d, list, LIST), -ERR_OUT_OF_RANGE);
}

/* A page is all ranks' pieces: read, written elsewhere and tagged there it serves as before; its
   digest is that of its bytes, and changes with one bit on any rank. */
static void pages(void)
{
	struct model *model = model_of("mistral", 2);
	const struct forward_options o = options_of(KV_FP8, ACT_AUTO);
	static struct ops_sampled before[LENGTH], after[LENGTH];
	uint32_t tokens[LENGTH];
	struct group g;
	tokens_make(model, tokens);
	REQUIRE(group_open(&g, model, &o, 4) == 0);
	const struct ops *ops = forward_ops(g.run.forward);
	struct device *d = forward_device(g.run.forward);
	const struct device_plan *plan = forward_plan(g.run.forward);
	const uint64_t bytes = ops_page_bytes(plan->kv, plan->group[0].layers, plan->kv_heads, plan->head,
					      plan->page_tokens);
	uint8_t *page = malloc(bytes), *other = malloc(bytes);
	uint64_t digest[2], moved[2];
	EXPECT_EQ(bytes, 16 * 2 * TINY_LAYERS * 4 * (32 + 1));
	EXPECT_EQ(tags(&g.run), 0);
	EXPECT_EQ(history(&g.run, tokens, 48, 64, false, before), 0);
	/* The three pages go to the second sequence's places; the first's are cleared. */
	for (uint32_t i = 0; i < 3; i++) {
		EXPECT_EQ(ops->page_read(d, 0, i, page), 0);
		EXPECT_EQ(ops_page_digest(ops, d, 0, i, 16, digest), 0);
		EXPECT_EQ(ops->page_write(d, 0, PAGES + i, page), 0);
		EXPECT_EQ(ops_page_digest(ops, d, 0, PAGES + i, 16, moved), 0);
		EXPECT(memcmp(digest, moved, sizeof digest) == 0);
		EXPECT_EQ(ops->page_copy(d, 0, PAGES + i, PAGES + 4 + i), 0);
		EXPECT_EQ(ops->page_read(d, 0, PAGES + 4 + i, other), 0);
		EXPECT(memcmp(page, other, bytes) == 0);
		EXPECT_EQ(ops->page_clear(d, 0, i, 1), 0);
	}
	for (uint32_t rank = 0; rank < 4; rank++) {
		memcpy(other, page, bytes);
		other[bytes / 4 * rank + 5] ^= 1;
		EXPECT_EQ(ops->page_write(d, 0, PAGES + 10, other), 0);
		EXPECT_EQ(ops_page_digest(ops, d, 0, PAGES + 10, 16, moved), 0);
		EXPECT(memcmp(digest, moved, sizeof digest) != 0);
	}
	digests(ops, d);
	const struct run_sequence there = sequence_at(1);
	EXPECT_EQ(run_chunk(&g.run, &there, tokens + 47, 1, 47, 0), 0);
	EXPECT_EQ(g.run.sampled[0].token, before[47].token);
	EXPECT(memcmp(&g.run.sampled[0].logprob, &before[47].logprob, 4) == 0);
	/* What is refused on rank 0 is told to nobody, and all goes on. */
	EXPECT_EQ(ops->page_tags_set(d, 0, 2 * PAGES, 1, 9), -ERR_OUT_OF_RANGE);
	EXPECT_EQ(ops->page_write(d, 1, 0, page), -ERR_OUT_OF_RANGE);
	EXPECT_EQ(ops_page_digest(ops, d, 0, 2 * PAGES, 16, digest), -ERR_OUT_OF_RANGE);
	struct ops_batch bad = {.bytes = sizeof bad, .row_count = 1};
	EXPECT_EQ(forward_step(g.run.forward, &bad, NULL, NULL), -ERR_OUT_OF_RANGE);
	EXPECT_EQ(history(&g.run, tokens, 48, 64, false, after), 0);
	EXPECT(same(after, before, 48));
	group_close(&g);
	free(page);
	free(other);
	model_close(&model);
}

/* A tag that is wrong on one rank alone ends that sequence on all of them, and its neighbour does not
   notice. */
static void fault_on_one(void)
{
	struct model *model = model_of("mistral", 2);
	const struct forward_options o = options_of(KV_FP8, ACT_AUTO);
	uint32_t tokens[LENGTH];
	struct group g;
	const struct run_sequence first = sequence_at(0), second = sequence_at(1);
	tokens_make(model, tokens);
	REQUIRE(group_open(&g, model, &o, 4) == 0);
	EXPECT_EQ(tags(&g.run), 0);
	EXPECT_EQ(run_chunk(&g.run, &first, tokens, 40, 0, 39), 0);
	const struct ops_sampled right = g.run.sampled[0];
	for (uint32_t rank = 0; rank < 4; rank++) {
		struct forward *f = rank ? g.member[rank].forward : g.run.forward;
		uint64_t digest[2];
		/* After a digest the others have done all, and wait: their devices may be touched. */
		EXPECT_EQ(ops_page_digest(forward_ops(g.run.forward), forward_device(g.run.forward), 0, 0, 16,
								  digest), 0);
		if (rank)
			EXPECT_EQ(forward_ops(f)->page_tags_set(forward_device(f), 0, PAGES + 1, 1, 77), 0);
		batch_begin(g.run.builder);
		const uint32_t bad = run_put(&g.run, &second, tokens, 40, 0);
		const uint32_t good = run_put(&g.run, &first, tokens + 39, 1, 39);
		batch_sample(g.run.builder, bad + 39);
		batch_sample(g.run.builder, good);
		EXPECT_EQ(forward_step(g.run.forward, batch_end(g.run.builder), g.run.sampled, g.run.faults), 0);
		EXPECT_EQ(g.run.faults[0].page, rank ? PAGES + 1 : OPS_NONE);
		EXPECT_EQ(g.run.faults[0].found, rank ? 77 : 0);
		EXPECT_EQ(g.run.faults[1].page, OPS_NONE);
		EXPECT_EQ(g.run.sampled[0].token == OPS_NONE, rank != 0);
		EXPECT_EQ(g.run.sampled[1].token, right.token);
		EXPECT(memcmp(&g.run.sampled[1].logprob, &right.logprob, 4) == 0);
		EXPECT_EQ(tags(&g.run), 0);
	}
	group_close(&g);
	model_close(&model);
}

/* Rank 2 ends: whoever waits for it is told soon, everyone ends, and nothing hangs. */
static void lost(void)
{
	struct model *model = model_of("mistral", 2);
	const struct forward_options o = options_of(KV_FP8, ACT_AUTO);
	uint32_t tokens[LENGTH];
	struct group g;
	const struct run_sequence own = sequence_at(0);
	tokens_make(model, tokens);
	REQUIRE(group_open(&g, model, &o, 4) == 0);
	EXPECT_EQ(tags(&g.run), 0);
	EXPECT_EQ(run_chunk(&g.run, &own, tokens, 40, 0, 39), 0);
	EXPECT_EQ(forward_rank_gone(g.run.forward, true), -1);
	ranks_lose(g.room, 2);
	const time_t began = time(NULL);
	EXPECT_EQ(run_chunk(&g.run, &own, tokens, 40, 0, 39), -ERR_INTERNAL);
	EXPECT_EQ(run_chunk(&g.run, &own, tokens, 40, 0, 39), -ERR_INTERNAL);
	EXPECT(time(NULL) - began <= 2);
	EXPECT_EQ(forward_rank_gone(g.run.forward, false), 2);
	group_close(&g);
	for (uint32_t i = 1; i < 4; i++)
		EXPECT_EQ(g.member[i].code, -ERR_INTERNAL);
	model_close(&model);
}

/* One line, with the number that is in the way. */
static void refused(void)
{
	static const struct {
		const char *family;
		uint32_t ranks;
		int plain;
		const char *says;
	} list[] = {
		{"mistral", 3, 2, "8 heads, and 3 does not divide"},
		{"qwen2", 3, 1, "2 KV heads"},
		{"llama", 2, 0, "multiples of 256"},
		{"llama", 4, 2, "blocks of 32 columns, a rank's heads have 16"},
	};
	for (unsigned i = 0; i < sizeof list / sizeof list[0]; i++) {
		struct model *model = model_of(list[i].family, list[i].plain);
		char reason[MODEL_REASON_MAX] = "";
		struct forward_options o = options_of(KV_FP8, ACT_AUTO);
		struct forward_needs needs;
		o.ranks_count = list[i].ranks;
		EXPECT_EQ(forward_needs(model, &o, &needs, reason), -ERR_OUT_OF_RANGE);
		if (!EXPECT(strstr(reason, list[i].says) && !strchr(reason, '\n')))
			printf("# %s\n", reason);
		model_close(&model);
	}
}

/* Ranks that were not given the same find out before they load anything; what one cannot do is told
   by all. */
static void disagree(void)
{
	struct model *model = model_of("mistral", 2), *other = model_of("qwen3", 2);
	static const char *const says[] = {
		"rank 1 has another model file", "rank 1 has another set of options",
		"rank 1: this machine does not run", "rank 1 has another set of options",
		"rank 1 has another precision plan",
	};
	/* The last: what is fast on rank 1 is not what is fast on rank 0. */
	for (uint32_t round = 0; round < (ops_isa_best() > ISA_SCALAR ? 5 : 4); round++) {
		struct forward_options o = options_of(KV_FP8, ACT_AUTO);
		struct group g = {.count = 2};
		char reason[MODEL_REASON_MAX] = "";
		struct forward *f = NULL;
		struct member *m = &g.member[1];
		REQUIRE(ranks_room_open(2, &g.room) == 0);
		for (uint32_t i = 0; i < 2; i++)
			CHECK(ranks_join(g.room, i, &g.member[i].ranks) == 0);
		m->model = round == 0 ? other : model;
		m->options = o;
		m->options.context -= round == 1;
		m->options.isa = round == 2 ? (enum isa)(ISA_AVX512 + 1) : round == 4 ? ISA_SCALAR : ISA_AUTO;
		m->options.prefill = round == 3 ? PREFILL_INT8 : PREFILL_SAME;
		m->options.ranks = m->ranks;
		o.ranks = g.member[0].ranks;
		CHECK(pthread_create(&m->thread, NULL, member_main, m) == 0);
		EXPECT(forward_open(model, &o, &f, reason) < 0);
		if (!EXPECT(strstr(reason, says[round]) != NULL))
			printf("# round %u: %s\n", round, reason);
		pthread_join(m->thread, NULL);
		EXPECT(m->code < 0);
		for (uint32_t i = 0; i < 2; i++)
			ranks_close(&g.member[i].ranks);
		ranks_room_close(&g.room);
	}
	model_close(&model);
	model_close(&other);
}

/* The plan says how many; the ledger is told what all ranks take. */
static void identity(void)
{
	struct model *model = model_of("mistral", 2);
	uint8_t hash[4][16];
	for (uint32_t n = 1; n <= 4; n *= 2) {
		struct forward_options o = options_of(KV_FP8, ACT_AUTO);
		struct forward_needs needs;
		char reason[MODEL_REASON_MAX];
		struct group g;
		o.ranks_count = n;
		EXPECT_EQ(forward_needs(model, &o, &needs, reason), 0);
		o.ranks_count = 1;
		if (n == 1)
			REQUIRE(run_open("test", model, &o, &g.run) == 0);
		else
			REQUIRE(group_open(&g, model, &o, n) == 0);
		forward_plan_hash(g.run.forward, hash[n - 1]);
		EXPECT_EQ(forward_weights_bytes(g.run.forward), needs.weights_bytes);
		EXPECT_EQ(needs.page_bytes, 16 * 2 * TINY_LAYERS * 4 * (32 + 1));
		if (n == 1)
			run_close(&g.run);
		else
			group_close(&g);
	}
	EXPECT(memcmp(hash[0], hash[1], 16) != 0);
	EXPECT(memcmp(hash[1], hash[3], 16) != 0);
	model_close(&model);
}

/* A sum is in the order of the ranks to the bit, however long; a gather and a broadcast are whole. */
struct caller {
	pthread_t thread;
	struct ranks *ranks;
	bool good;
};
enum { SUMMED = 300001 };

static float term(uint32_t rank, uint32_t i)
{
	return (float)((int)(i * 2654435761u >> 8) % 1000 - 500) * (rank % 2 ? 1e-4f : 3e3f) + (float)rank;
}

static void *caller_main(void *arg)
{
	struct caller *c = arg;
	const struct collective *k = ranks_collective(c->ranks);
	const uint32_t rank = ranks_rank(c->ranks), count = ranks_count(c->ranks);
	float *x = malloc(SUMMED * sizeof *x), *all = malloc(count * SUMMED * sizeof *all);
	c->good = true;
	for (uint32_t n = 1; n <= SUMMED; n = n * 60 + 1) {
		for (uint32_t i = 0; i < n; i++)
			x[i] = term(rank, i);
		c->good = c->good && k->gather(k->self, x, n * sizeof *x, all) == 0 &&
			  k->sum(k->self, x, n) == 0;
		for (uint32_t i = 0; i < n; i++) {
			float sum = term(0, i);
			for (uint32_t r = 1; r < count; r++)
				sum += term(r, i);
			c->good = c->good && memcmp(&sum, &x[i], 4) == 0;
			for (uint32_t r = 0; r < count; r++) {
				const float want = term(r, i);
				c->good = c->good && memcmp(&want, &all[(size_t)r * n + i], 4) == 0;
			}
			x[i] = term(rank, i + 7);
		}
		c->good = c->good && k->broadcast(k->self, x, n * sizeof *x) == 0;
		for (uint32_t i = 0; i < n; i++)
			c->good = c->good && x[i] == term(0, i + 7);
	}
	free(x);
	free(all);
	return NULL;
}

static void collective(void)
{
	struct caller c[3];
	struct ranks_room *room;
	REQUIRE(ranks_room_open(3, &room) == 0);
	for (uint32_t i = 0; i < 3; i++) {
		CHECK(ranks_join(room, i, &c[i].ranks) == 0);
		CHECK(pthread_create(&c[i].thread, NULL, caller_main, &c[i]) == 0);
	}
	for (uint32_t i = 0; i < 3; i++) {
		pthread_join(c[i].thread, NULL);
		EXPECT(c[i].good);
		ranks_close(&c[i].ranks);
	}
	ranks_room_close(&room);
}

int main(void)
{
	snprintf(folder, sizeof folder, "/tmp/hf-ranks-XXXXXX");
	if (!mkdtemp(folder))
		return 1;
	sanitized = getenv("HOLDFAST_SANITIZED") != NULL;
	TAP_RUN(collective, "a sum has the order of the ranks, in any length");
	TAP_RUN(refused, "what cannot be split is refused in one line");
	TAP_RUN(within_bound, "logits of N ranks are those of one within 2e-5 of the largest, greedy equal");
	TAP_RUN(hearts, "continued equals recomputed at N ranks, and at the next start");
	TAP_RUN(pages, "pages move, copy and are digested on all ranks");
	TAP_RUN(fault_on_one, "a wrong tag on one rank is a fault on all");
	TAP_RUN(lost, "a rank that ends is noticed by all");
	TAP_RUN(disagree, "ranks that were not given the same refuse to begin");
	TAP_RUN(identity, "the plan's identity has the number of ranks");
	tiny_remove(folder);
	return tap_done();
}
