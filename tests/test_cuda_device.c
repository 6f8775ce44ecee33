/*
 * Goal: the host side of the CUDA device keeps its promises. Method: the emulated runtime, which puts
 * work off until it is waited for, counts calls, and can lose its context at any of them.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/emulate_hooks.h"
#include "tests/kernels_fixture.h"
#include "tests/rank_one.h"
#include "tests/tap.h"

static uint32_t text[64];
static const struct fixture_options options = {.matmul_type = TYPE_Q4_1, .embedding_type = TYPE_Q8_0};

static struct device_plan plan_small(void)
{
	struct device_plan p = fixture_plan();
	p.width = p.ff = p.vocab = 32;
	p.heads = 2;
	p.kv_heads = 1;
	p.rows_max = 16;
	p.samples_max = 16;
	p.sequences_max = 4;
	p.context = 512;
	p.kv = KV_FP8;
	return p;
}

static void open_small(struct fixture *f)
{
	const struct device_plan p = plan_small();
	fixture_table = ops_cuda;
	fixture_open(f, &p, &options, 5);
}

/* A step waits once, takes no memory, and replays a graph; without graphs the bits are the same. */
static void one_wait(void)
{
	float graphs[32 * 10], none[32 * 10];
	for (int off = 0; off < 2; off++) {
		struct fixture f;
		setenv("HOLDFAST_CUDA_GRAPHS", off ? "off" : "on", 1);
		hook_seed(off ? 12345 : 1);
		open_small(&f);
		hook_counts();
		for (uint32_t at = 0; at < 10; at++) {
			/* Then two rows, then five: other graphs, though of as many units. */
			const struct fixture_sequence s = {text, at == 9 ? 10 : at, at < 8 ? 1 : at == 8 ? 2 : 5, 0, 0};
			struct ops_batch *b = fixture_block(&f, &s, 1, 2);
			struct ops_sampled sampled;
			struct ops_fault fault;
			EXPECT(f.ops->batch(f.device, b) == 0);
			hook_counts();
			EXPECT(fixture_step(&f) == 0);
			EXPECT(f.ops->wait(f.device, &sampled, &fault) == 0);
			EXPECT(f.ops->wait(f.device, &sampled, &fault) == 0); /* nothing new: no wait */
			const struct hook_counts c = hook_counts();
			EXPECT_EQ(c.waits, 1);
			EXPECT_EQ(c.allocations, 0);
			EXPECT_EQ(c.captures, off || (at > 0 && at < 8) ? 0 : 1);
			EXPECT_EQ(c.graph_launches, off ? 0 : 1);
			EXPECT(sampled.token < 32 && fault.page == (uint32_t)OPS_NONE);
			EXPECT(f.ops->buffer_read(f.device, BUFFER_LOGITS, 0, 32, (off ? none : graphs) + 32 * at) == 0);
			free(b);
		}
		fixture_close(&f);
	}
	unsetenv("HOLDFAST_CUDA_GRAPHS");
	hook_seed(0);
	EXPECT(memcmp(graphs, none, sizeof none) == 0);
	EXPECT(hook_fault() == NULL);
}

/* Graphs take what was said to be theirs and no more; a step that has none gives the same. */
static void graphs_room(void)
{
	const struct device_plan p = plan_small();
	const size_t nodes[] = {4 << 10, 1 << 20, 2 << 20, 1 << 30}; /* all fit, the first two do, one, none */
	float first[32 * 3], x[32 * 3];
	struct device_needs needs;
	unsigned graphs[4];
	EXPECT(ops_cuda()->device_needs(&p, &needs) == 0);
	for (int i = 0; i < 4; i++) {
		struct fixture f;
		hook_node(nodes[i]);
		open_small(&f);
		const size_t before = hook_taken();
		graphs[i] = 0;
		for (uint32_t at = 0; at < 6; at++) {
			const struct fixture_sequence s = {text, 0, 1u << at % 3, 0, 0};
			struct ops_batch *b = fixture_block(&f, &s, 1, 2);
			hook_counts();
			EXPECT(f.ops->batch(f.device, b) == 0);
			EXPECT(fixture_step(&f) == 0);
			EXPECT(f.ops->wait(f.device, NULL, NULL) == 0);
			graphs[i] += hook_counts().graph_launches;
			EXPECT(hook_taken() - before <= 64 << 20 && hook_taken() <= needs.workspace_bytes + (1 << 20) +
									       needs.slab_bytes);
			EXPECT(f.ops->buffer_read(f.device, BUFFER_LOGITS, 0, 32, x + 32 * (at % 3)) == 0);
			free(b);
			if (at >= 3)
				EXPECT(memcmp(i ? first : x, x, sizeof x) == 0);
		}
		if (i == 0)
			memcpy(first, x, sizeof x);
		fixture_close(&f);
		EXPECT_EQ(hook_taken(), 0);
	}
	EXPECT(graphs[0] == 6 && graphs[1] < 6 && graphs[1] > 0 && graphs[2] > 0 && graphs[3] == 0);
	hook_node(4 << 10);
}

/* A context that is lost at any call gives a code, never a token, and the rest can be closed. */
static void lost_anywhere(void)
{
	const struct device_plan p = plan_small();
	long at = 0;
	int opened = 0, stepped = 0, whole = 0;
	for (; !whole && at < 400; at += 1 + at / 20) {
		struct device *d = NULL;
		struct ops_sampled sampled = {.token = 7777};
		hook_lose(at);
		int code = ops_cuda()->device_open(&p, &d);
		if (code == 0) {
			struct fixture f = {.ops = ops_cuda(), .device = d, .plan = p, .options = options};
			const struct fixture_sequence s = {text, 0, 2, 0, 0};
			struct weight *w = NULL;
			static uint8_t zero[32 * 32 * 4];
			opened++;
			code = f.ops->weight_make(d, TYPE_F32, WEIGHT_BOTH, 32, 32, zero, &w);
			struct ops_batch *b = fixture_block(&f, &s, 1, 2);
			code = code ? code : f.ops->page_tags_set(d, 0, 0, 8, 0);
			code = code ? code : f.ops->batch(d, b);
			code = code ? code : f.ops->tag_check(d);
			code = code ? code : f.ops->embed(d, w, 1);
			stepped += code == 0;
			code = code ? code : f.ops->sample(d);
			code = code ? code : f.ops->wait(d, &sampled, NULL);
			whole = code == 0;
			if (!whole) {
				EXPECT_EQ(sampled.token, 7777);
				hook_lose(-1); /* whatever the driver says from now on */
				EXPECT(f.ops->wait(d, &sampled, NULL) != 0); /* and it stays lost */
				EXPECT(f.ops->batch(d, b) != 0);
			}
			free(b);
			f.ops->device_close(&d);
		} else {
			EXPECT(d == NULL);
		}
		EXPECT(code <= 0 && (whole || code == -ERR_INTERNAL || code == -ERR_UNSUPPORTED));
		hook_lose(-1);
	}
	EXPECT(whole && opened > 10 && stepped > 5);
	EXPECT_EQ(hook_taken(), 0);
}

/* One step of the fixture's; its token, or OPS_NONE and the code. */
static int step_once(struct fixture *f, float scale, struct ops_sampled *sampled)
{
	const struct fixture_sequence s = {text, 0, 2, 0, 0};
	struct ops_batch *b = fixture_block(f, &s, 1, 2);
	int code = f->ops->batch(f->device, b);
	f->layer[0].ops.attention_scale = scale;
	code = code ? code : fixture_step(f);
	code = code ? code : f->ops->wait(f->device, sampled, NULL);
	free(b);
	return code;
}

/* A driver that has no memory for one call of a step, and says so once: graphs are done without, anything
   else is the device's end, since a part of the step was not done; the next step brings none of it back. */
static void refused_anywhere(void)
{
	float want[32], got[32];
	int ended = 0, whole = 0, refused = 0;
	struct fixture f;
	for (long at = 0; whole < 2 && at < 400; at++) {
		struct ops_sampled first = {.token = 7777}, second = {.token = 7777};
		open_small(&f);
		if (at == 0) {
			EXPECT(step_once(&f, 0.25f, &first) == 0);
			EXPECT(f.ops->buffer_read(f.device, BUFFER_LOGITS, 0, 32, want) == 0);
			fixture_close(&f);
			open_small(&f);
			first.token = 7777;
		}
		hook_counts();
		hook_refuse(at);
		const int code = step_once(&f, 0.25f, &first);
		hook_refuse(-1);
		const unsigned graphs = hook_counts().graph_launches;
		if (code == 0) { /* all of it was done */
			EXPECT(f.ops->buffer_read(f.device, BUFFER_LOGITS, 0, 32, got) == 0);
			EXPECT(memcmp(got, want, sizeof got) == 0 && first.token < 32);
			refused += graphs == 0;
			whole += graphs == 1;
			EXPECT(step_once(&f, 0.25f, &second) == 0 && second.token == first.token);
		} else {
			EXPECT_EQ(code, -ERR_INTERNAL);
			EXPECT_EQ(first.token, 7777);
			EXPECT_EQ(step_once(&f, 0.25f, &second), -ERR_INTERNAL);
			EXPECT_EQ(second.token, 7777);
			ended++;
		}
		fixture_close(&f);
	}
	EXPECT(ended > 10 && refused > 0 && whole == 2);
	EXPECT_EQ(hook_taken(), 0);
	EXPECT(hook_fault() == NULL);
}

/* Calls with another number in them, in the same bucket: each has its graph. */
static void graphs_calls(void)
{
	float x[3][32];
	struct ops_sampled s;
	struct fixture f;
	open_small(&f);
	hook_counts();
	for (int i = 0; i < 3; i++) {
		EXPECT(step_once(&f, i == 1 ? 0.5f : 0.25f, &s) == 0);
		const struct hook_counts c = hook_counts();
		EXPECT(c.captures == (i < 2) && c.graph_launches == 1);
		EXPECT(f.ops->buffer_read(f.device, BUFFER_LOGITS, 0, 32, x[i]) == 0);
	}
	EXPECT(memcmp(x[0], x[2], sizeof x[0]) == 0 && memcmp(x[0], x[1], sizeof x[0]) != 0);
	fixture_close(&f);
}

/* Pages are moved on a stream of their own: what a step reads of them is what was there before it, whichever
   of the copies it was; and what is copied is what the step before has written. */
static void pages_ordered(void)
{
	enum { GIVEN = 20 };
	struct fixture f;
	float want[32], got[32];
	const struct device_plan p = plan_small();
	const uint64_t bytes = ops_page_bytes(p.kv, FIXTURE_LAYERS, p.kv_heads, p.head, p.page_tokens);
	uint8_t *const page = malloc(bytes), *const zero = calloc(1, bytes);
	struct ops_sampled sampled;
	struct ops_fault fault;
	CHECK(page && zero);
	open_small(&f);
	EXPECT(f.ops->page_tags_set(f.device, 0, 0, 32, 0) == 0);
	for (int moved = 0; moved < 2; moved++) {
		/* At pages 8, 9 ...; then from 16 on, where only a copy puts them. */
		const uint32_t at = moved ? 16 : 8;
		const struct fixture_sequence given = {text, 0, 16, 8, 8}, rest = {text, 16, GIVEN - 16, 8, 8};
		const struct fixture_sequence last = {text, GIVEN, 1, at, at};
		const struct fixture_sequence *const all[3] = {&given, &rest, &last};
		for (int i = 0; i < 3; i++) {
			struct ops_batch *b = fixture_block(&f, all[i], 1, 2);
			if (moved && i == 2)
				for (uint32_t k = 0; k < 2; k++) /* nothing has waited for the rest yet */
					EXPECT(f.ops->page_copy(f.device, 0, 8 + k, 16 + k) == 0);
			EXPECT(f.ops->batch(f.device, b) == 0);
			EXPECT(fixture_step(&f) == 0);
			free(b);
			if (moved || i > 0)
				continue;
			EXPECT(f.ops->page_read(f.device, 0, 8, page) == 0); /* of a step that nobody waited for */
			EXPECT(memcmp(page, zero, bytes) != 0);
		}
		EXPECT(f.ops->wait(f.device, &sampled, &fault) == 0);
		EXPECT(sampled.token < 32 && fault.page == (uint32_t)OPS_NONE);
		EXPECT(f.ops->buffer_read(f.device, BUFFER_LOGITS, 0, 32, moved ? got : want) == 0);
	}
	EXPECT(memcmp(want, got, sizeof want) == 0);
	EXPECT(f.ops->page_read(f.device, 0, 16, page) == 0 && memcmp(page, zero, bytes) != 0);
	EXPECT(f.ops->page_clear(f.device, 0, 16, 2) == 0);
	EXPECT(f.ops->page_read(f.device, 0, 16, page) == 0 && memcmp(page, zero, bytes) == 0);
	fixture_close(&f);
	free(page);
	free(zero);
	EXPECT(hook_fault() == NULL);
}

static void refusals(void)
{
	struct device_plan p = plan_small();
	struct device *d = NULL;
	char line[300];
	hook_machine(1, 0, 9, 1 << 30);
	EXPECT_EQ(ops_cuda_find(0, line, sizeof line), -ERR_UNSUPPORTED);
	EXPECT(strstr(line, "no CUDA driver") != NULL && strstr(line, "13.0 or later") != NULL);
	EXPECT_EQ(ops_cuda()->device_open(&p, &d), -ERR_UNSUPPORTED);
	hook_machine(1, 11080, 9, 1 << 30);
	EXPECT_EQ(ops_cuda_find(0, line, sizeof line), -ERR_UNSUPPORTED);
	EXPECT(strstr(line, "11.8") != NULL && strstr(line, "13.0") != NULL);
	hook_machine(0, 13000, 9, 1 << 30);
	EXPECT_EQ(ops_cuda_find(0, line, sizeof line), -ERR_UNSUPPORTED);
	EXPECT(strstr(line, "no CUDA device") != NULL);
	hook_machine(2, 13000, 9, 1 << 30);
	EXPECT_EQ(ops_cuda_find(1, line, sizeof line), 0);
	EXPECT_EQ(ops_cuda_find(2, line, sizeof line), -ERR_OUT_OF_RANGE);
	EXPECT(strstr(line, "no CUDA device 2") != NULL && strstr(line, "has 2") != NULL);
	p.gpu = 2;
	EXPECT_EQ(ops_cuda()->device_open(&p, &d), -ERR_OUT_OF_RANGE);
	p.gpu = 0;
	hook_machine(1, 13000, 7, 1 << 30);
	EXPECT_EQ(ops_cuda_find(0, line, sizeof line), -ERR_UNSUPPORTED);
	EXPECT(strstr(line, "7.0") != NULL && strstr(line, "8.0") != NULL);
	/* New enough, and yet there is no code for it: older than what was built for, or another generation. */
	for (int major = 8; major <= 10; major += 2) {
		hook_machine(1, 13000, major, 1 << 30);
		EXPECT_EQ(ops_cuda_find(0, line, sizeof line), -ERR_UNSUPPORTED);
		EXPECT(strstr(line, "this build is for sm_90: one") != NULL);
		EXPECT(strstr(line, major == 8 ? "--with-cuda-arch=80 " : "--with-cuda-arch=100 ") != NULL);
		EXPECT_EQ(ops_cuda()->device_open(&p, &d), -ERR_UNSUPPORTED);
	}
	hook_machine(1, 13000, 9, 4096);
	EXPECT_EQ(ops_cuda()->device_open(&p, &d), -ERR_MEMORY);
	hook_shared(16 << 10); /* less than attention takes */
	EXPECT_EQ(ops_cuda()->device_open(&p, &d), -ERR_UNSUPPORTED);
	hook_machine(1, 13000, 9, 1 << 30);
	EXPECT(strchr(line, '\n') == NULL && d == NULL);
	p.ranks = 2;
	p.vocab_share = (p.vocab + 1) / 2; /* and no collective */
	EXPECT_EQ(ops_cuda()->device_open(&p, &d), -ERR_BAD_ARG);
	p.ranks = 1;
	p.head = 24;
	EXPECT_EQ(ops_cuda()->device_open(&p, &d), -ERR_OUT_OF_RANGE);
	EXPECT_EQ(hook_taken(), 0);
}

/* The needs are what is taken. */
static void needs(void)
{
	struct device_plan p = plan_small();
	struct device_needs n;
	struct device *d = NULL;
	p.act = ACT_AUTO;
	EXPECT(ops_cuda()->device_needs(&p, &n) == 0);
	EXPECT(n.slab_bytes >= 64 * ops_page_bytes(p.kv, FIXTURE_LAYERS, 1, 64, 16));
	/* All that there can be, exactly as many as there is room for in the list. */
	struct device_plan most = p;
	struct device_needs all;
	most.group_count = OPS_GROUP_MAX;
	for (uint32_t g = 1; g < OPS_GROUP_MAX; g++)
		most.group[g] = p.group[0];
	most.ranks = 2;
	most.vocab_share = (p.vocab + 1) / 2;
	EXPECT(ops_cuda()->device_needs(&most, &all) == 0 && all.slab_bytes > 3 * n.slab_bytes);
	EXPECT(ops_cuda()->device_open(&p, &d) == 0);
	EXPECT(hook_taken() <= n.slab_bytes + n.workspace_bytes && hook_taken() > n.slab_bytes);
	EXPECT(strcmp(ops_cuda()->device_isa(d), "sm_90") == 0);
	EXPECT_EQ(ops_cuda()->device_act(d), ACT_I8_BLOCK);
	EXPECT_EQ(ops_cuda()->wait(d, NULL, NULL), 0); /* no batch yet */
	ops_cuda()->device_close(&d);
	EXPECT_EQ(hook_taken(), 0);
}

/* A refused block leaves the one before; operations that make no sense are refused as on the CPU. */
static void hostile(void)
{
	struct fixture f;
	open_small(&f);
	const struct fixture_sequence s = {text, 0, 3, 0, 0};
	struct ops_batch *b = fixture_block(&f, &s, 1, 2);
	float one[32], two[32];
	EXPECT(f.ops->batch(f.device, b) == 0);
	EXPECT(fixture_step(&f) == 0);
	EXPECT(f.ops->buffer_read(f.device, BUFFER_LOGITS, 0, 32, one) == 0);
	b->row_count = 1000;
	EXPECT_EQ(f.ops->batch(f.device, b), -ERR_OUT_OF_RANGE);
	EXPECT(fixture_step(&f) == 0);
	EXPECT(f.ops->buffer_read(f.device, BUFFER_LOGITS, 0, 32, two) == 0);
	EXPECT(memcmp(one, two, sizeof one) == 0);
	struct ops_layer l = f.layer[0].ops;
	l.layer = 2;
	EXPECT_EQ(f.ops->attend(f.device, &l), -ERR_OUT_OF_RANGE);
	EXPECT_EQ(f.ops->rope_write(f.device, &l), -ERR_OUT_OF_RANGE);
	l = f.layer[0].ops;
	l.q = l.down;
	l.gate = NULL;
	l.output = l.attn_norm;
	EXPECT_EQ(f.ops->qkv(f.device, &l), -ERR_BAD_ARG);
	EXPECT_EQ(f.ops->gate_up(f.device, &l), -ERR_BAD_ARG);
	EXPECT_EQ(f.ops->output(f.device, &l), -ERR_BAD_ARG);
	l.rope_dims = 65;
	EXPECT_EQ(f.ops->rope_write(f.device, &l), -ERR_BAD_ARG);
	EXPECT_EQ(f.ops->buffer_read(f.device, BUFFER_X, 0, 16 * 32 + 1, one), -ERR_OUT_OF_RANGE);
	free(b);
	fixture_close(&f);
}

/* What another rank has found ends the sequence here too; the lowest rank that found something has the
   word. */
static void fault_elsewhere(void)
{
	struct rank1 there = {.fault = {.page = OPS_NONE}};
	const struct collective c = rank1_collective(&there);
	const struct fixture_sequence s[2] = {{text, 0, 3, 0, 0}, {text, 0, 3, 8, 8}};
	struct device_plan p = plan_small();
	struct ops_sampled sampled[2];
	struct ops_fault faults[2];
	struct fixture f;
	p.ranks = 2;
	p.vocab_share = p.vocab / 2;
	p.collective = &c;
	fixture_table = ops_cuda;
	fixture_open(&f, &p, &options, 5);
	EXPECT(f.ops->page_tags_set(f.device, 0, 0, 16, 0) == 0);
	for (int i = 0; i < 3; i++) {
		struct ops_batch *b = fixture_block(&f, s, 2, 2);
		there.fault = i ? (struct ops_fault){.page = 9, .found = 77} : (struct ops_fault){.page = OPS_NONE};
		if (i == 2)
			EXPECT(f.ops->page_tags_set(f.device, 0, 8, 1, 99) == 0);
		EXPECT(f.ops->batch(f.device, b) == 0);
		EXPECT(fixture_step(&f) == 0);
		EXPECT(f.ops->wait(f.device, sampled, faults) == 0);
		EXPECT(faults[0].page == (uint32_t)OPS_NONE && sampled[0].token < p.vocab);
		EXPECT_EQ(faults[1].page, i == 0 ? (uint32_t)OPS_NONE : i == 1 ? 9 : 8);
		EXPECT(i == 0 || faults[1].found == (i == 1 ? 77 : 99));
		EXPECT((sampled[1].token == (uint32_t)OPS_NONE) == (i > 0));
		free(b);
	}
	/* One that is gone is the end: no token, now or later. */
	struct ops_batch *b = fixture_block(&f, s, 2, 2);
	there.gone = 1;
	EXPECT(f.ops->batch(f.device, b) == 0);
	EXPECT(fixture_step(&f) == 0);
	EXPECT_EQ(f.ops->wait(f.device, sampled, faults), -ERR_INTERNAL);
	there.gone = 0;
	EXPECT_EQ(f.ops->batch(f.device, b), -ERR_INTERNAL);
	EXPECT_EQ(f.ops->wait(f.device, sampled, faults), -ERR_INTERNAL);
	free(b);
	fixture_close(&f);
	EXPECT(hook_fault() == NULL);
}

/* Pages go straight to and from memory that is pinned, and by a room elsewhere, with the same bytes; what
   cannot be pinned is no fault of the device's. */
static void pinned_host(void)
{
	const struct device_plan p = plan_small();
	const uint64_t bytes = ops_page_bytes(p.kv, FIXTURE_LAYERS, p.kv_heads, p.head, p.page_tokens);
	uint8_t *host = malloc(4 * bytes), *other = malloc(bytes);
	CHECK(host && other);
	for (int refused = 0; refused < 2; refused++) {
		struct fixture f;
		hook_no_pin(refused);
		open_small(&f);
		const size_t before = hook_pinned();
		EXPECT_EQ(f.ops->host_pin(f.device, host, 4 * bytes), refused ? -ERR_MEMORY : 0);
		EXPECT_EQ(hook_pinned() - before, refused ? 0 : 4 * bytes);
		EXPECT_EQ(f.ops->host_pin(f.device, host, 4 * bytes), refused ? -ERR_MEMORY : -ERR_BAD_ARG);
		hook_counts();
		for (uint32_t i = 0; i < 4; i++) {
			memset(host + i * bytes, 1 + (int)i, bytes);
			EXPECT(f.ops->page_write(f.device, 0, i, host + i * bytes) == 0);
			memset(host + i * bytes, 0, bytes);
		}
		for (uint32_t i = 0; i < 4; i++) {
			EXPECT(f.ops->page_read(f.device, 0, i, host + (3 - i) * bytes) == 0);
			EXPECT_EQ(host[(3 - i) * bytes], 1 + i); /* it is there, before the next wait */
			EXPECT_EQ(host[(4 - i) * bytes - 1], 1 + i);
			EXPECT(f.ops->page_read(f.device, 0, i, other) == 0);
			EXPECT(other[0] == 1 + i && memcmp(other, host + (3 - i) * bytes, bytes) == 0);
			EXPECT(other[bytes - 1] == 1 + i);
		}
		/* One that only begins there is not all pinned. */
		uint8_t *const across = calloc(1, bytes + 64);
		CHECK(across);
		if (!refused) {
			struct fixture g;
			open_small(&g);
			EXPECT_EQ(g.ops->host_pin(g.device, across, 64), 0);
			EXPECT(g.ops->page_write(g.device, 0, 0, across) == 0);
			EXPECT(g.ops->page_read(g.device, 0, 0, across) == 0);
			fixture_close(&g);
		}
		free(across);
		EXPECT_EQ(hook_counts().pageable, 0); /* such a copy is slow, and waits */
		fixture_close(&f);
		EXPECT_EQ(hook_pinned(), 0);
	}
	hook_no_pin(0);
	free(host);
	free(other);
}

static void *other_thread(void *arg)
{
	struct fixture *f = arg;
	const struct fixture_sequence s = {text, 0, 3, 0, 0};
	struct ops_batch *b = fixture_block(f, &s, 1, 2);
	struct ops_digest digest = {.tokens = 3};
	struct ops_sampled sampled = {.token = OPS_NONE};
	EXPECT(f->ops->page_tags_set(f->device, 0, 0, 4, 0) == 0);
	EXPECT(f->ops->batch(f->device, b) == 0);
	EXPECT(fixture_step(f) == 0);
	EXPECT(f->ops->wait(f->device, &sampled, NULL) == 0);
	EXPECT(f->ops->page_digests(f->device, &digest, 1) == 0);
	EXPECT(sampled.token < 32 && digest.digest[0] != 0);
	free(b);
	return NULL;
}

/* The second GPU, opened by one thread and used by another, which has never heard of it. */
static void second_gpu(void)
{
	struct device_plan p = plan_small();
	struct fixture f;
	pthread_t thread;
	hook_machine(2, 13000, 9, 1 << 30);
	p.gpu = 1;
	fixture_table = ops_cuda;
	fixture_open(&f, &p, &options, 5);
	CHECK(pthread_create(&thread, NULL, other_thread, &f) == 0);
	pthread_join(thread, NULL);
	fixture_close(&f);
	hook_machine(1, 13000, 9, 1 << 30);
}

int main(void)
{
	for (uint32_t i = 0; i < 64; i++)
		text[i] = i * 7 % 32;
	TAP_RUN(one_wait, "one wait and no allocation a step, graphs, and the same bits without them");
	TAP_RUN(graphs_room, "graphs take the memory that was said, and no more");
	TAP_RUN(lost_anywhere, "a context lost at any call gives a code and no token");
	TAP_RUN(refused_anywhere, "no memory for a call of a step: a code and no token, or all of the step");
	TAP_RUN(graphs_calls, "a graph is of its calls alone");
	TAP_RUN(pages_ordered, "a step sees the copies before it, and copies see the step before them");
	TAP_RUN(refusals, "what is not there is refused in one line");
	TAP_RUN(needs, "what is taken is what was said");
	TAP_RUN(fault_elsewhere, "a fault on another rank is one here, and so is its end");
	TAP_RUN(pinned_host, "memory of the host's is pinned, or copies are slower");
	TAP_RUN(second_gpu, "another GPU than the first, in another thread than the first");
	TAP_RUN(hostile, "what makes no sense is refused and changes nothing");
	return tap_done();
}
