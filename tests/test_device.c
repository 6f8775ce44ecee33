/*
 * Around the step: plans, the checks of a batch block, pages, tags, digests, buffers.
 */
#define _GNU_SOURCE
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/cpu.h"
#include "tests/kernels_fixture.h"
#include "tests/tap.h"

static const struct fixture_options options = {.matmul_type = TYPE_Q4_1,
					       .embedding_type = TYPE_Q8_0};
static uint32_t text[64];

static struct fixture open_plain(enum kv_kind kv)
{
	struct fixture f;
	struct device_plan p = fixture_plan();
	p.kv = kv;
	p.page_tokens = 32;
	p.group[0].page_count = 24;
	p.extra_bytes_max = 1024;
	p.threads = 2;
	p.context = 500; /* no multiple of anything */
	fixture_open(&f, &p, &options, 1);
	for (uint32_t i = 0; i < 64; i++)
		text[i] = (i * 37 + 5) % p.vocab;
	return f;
}

static void plans(void)
{
	struct device_needs needs = {0};
	struct device *d = NULL;
	struct device_plan good = fixture_plan(), p = good;
	EXPECT_EQ(ops_cpu()->device_needs(&p, &needs), 0);
	EXPECT(needs.slab_bytes == 64 * (ops_page_bytes(KV_F32, 2, 2, 64, 16) + 8));
	EXPECT(needs.workspace_bytes > 160 * 64 * 4);
#define REFUSED(change, code) \
	do { \
		p = good; \
		change; \
		EXPECT_EQ(ops_cpu()->device_open(&p, &d), -(code)); \
		EXPECT(d == NULL); \
	} while (0)
	REFUSED(p.width = 0, ERR_OUT_OF_RANGE);
	REFUSED(p.width = 0xffffffff, ERR_OUT_OF_RANGE);
	REFUSED(p.head = 100, ERR_OUT_OF_RANGE);
	REFUSED(p.head = 112, ERR_OUT_OF_RANGE);
	REFUSED(p.head = 1024, ERR_OUT_OF_RANGE);
	REFUSED(p.kv_heads = 3, ERR_OUT_OF_RANGE);
	REFUSED(p.kv_heads = 0, ERR_OUT_OF_RANGE);
	REFUSED(p.page_tokens = 48, ERR_OUT_OF_RANGE);
	REFUSED(p.page_tokens = 0, ERR_OUT_OF_RANGE);
	REFUSED(p.page_tokens = 8, ERR_OUT_OF_RANGE);
	REFUSED(p.group_count = 5, ERR_OUT_OF_RANGE);
	REFUSED(p.group[0].page_count = 0, ERR_OUT_OF_RANGE);
	REFUSED(p.rows_max = 0, ERR_OUT_OF_RANGE);
	REFUSED(p.sequences_max = p.rows_max + 1, ERR_OUT_OF_RANGE);
	REFUSED(p.vocab = 0xffffffff, ERR_OUT_OF_RANGE);
	REFUSED(p.threads = 100000, ERR_OUT_OF_RANGE);
	REFUSED(p.kv = 9, ERR_OUT_OF_RANGE);
	REFUSED(p.ranks = 0, ERR_OUT_OF_RANGE);
	REFUSED(p.rank = 1, ERR_OUT_OF_RANGE);
	REFUSED(p.ranks = 2, ERR_OUT_OF_RANGE);
	REFUSED((p.ranks = 2, p.vocab_share = p.vocab), ERR_OUT_OF_RANGE);
	REFUSED((p.ranks = 3, p.vocab_share = p.vocab / 4), ERR_OUT_OF_RANGE);
	REFUSED((p.ranks = 2, p.vocab_share = (p.vocab + 1) / 2), ERR_BAD_ARG); /* and no collective */
	/* Every piece of memory that a device can have, exactly as many as there is room for in its list. */
	p = good;
	p.group_count = OPS_GROUP_MAX;
	for (uint32_t g = 1; g < OPS_GROUP_MAX; g++)
		p.group[g] = p.group[0];
	p.ranks = 2;
	p.vocab_share = (p.vocab + 1) / 2;
	EXPECT_EQ(ops_cpu()->device_needs(&p, &needs), 0);
	EXPECT(needs.slab_bytes == OPS_GROUP_MAX * 64 * (ops_page_bytes(KV_F32, 2, 2, 64, 16) + 8));
	/* FP8 with its scales: 11,700 bytes a token for 30 layers, 3 KV heads of 64. */
	EXPECT_EQ(ops_page_bytes(KV_FP8, 30, 3, 64, 16), 16 * 11700);
	EXPECT_EQ(ops_page_bytes(KV_INT8, 1, 1, 256, 16), 16 * 2 * 260);
	EXPECT_EQ(ops_page_bytes(KV_BF16, 2, 3, 80, 32), 32 * 2 * 2 * 3 * 80 * 2);
	EXPECT(ops_isa_runs(ISA_SCALAR) && ops_isa_runs(ISA_AUTO) &&
	       ops_isa_runs(ops_isa_best()));
	EXPECT(strcmp(ops_isa_name(ISA_AVX2), "avx2") == 0);
	p = good;
	p.isa = ISA_AUTO;
	p.act = ACT_AUTO;
	p.threads = 0;
	REQUIRE(ops_cpu()->device_open(&p, &d) == 0);
	EXPECT(strcmp(ops_cpu()->device_isa(d), ops_isa_name(ops_isa_best())) == 0);
	EXPECT(ops_cpu()->device_act(d) ==
	       (ops_isa_best() == ISA_SCALAR ? ACT_F32 : ACT_I8_BLOCK));
	EXPECT(ops_cpu()->device_threads(d) >= 1);
	ops_cpu()->device_close(&d);
	EXPECT(d == NULL);
}

/* A block with two sequences, and places in it by name. */
struct parts {
	struct ops_batch *b;
	struct ops_row *row;
	struct ops_sequence *sequence;
	struct ops_page *page;
	struct ops_sample *sample;
};

static struct parts parts_make(const struct fixture *f)
{
	const struct fixture_sequence s[2] = {{text, 0, 40, 0, 0}, {text, 30, 3, 4, 0}};
	struct parts p = {.b = fixture_block(f, s, 2, 2)};
	uint8_t *base = (uint8_t *)p.b;
	p.row = (struct ops_row *)(void *)(base + p.b->row_at);
	p.sequence = (struct ops_sequence *)(void *)(base + p.b->sequence_at);
	p.page = (struct ops_page *)(void *)(base + p.b->page_at);
	p.sample = block_samples(p.b);
	return p;
}

/* Moves the second sequence's three rows, and its pages under them. */
static void tail_move(struct parts *p, uint32_t position)
{
	p->sequence[1].page_position[0] = position / 32 * 32;
	for (uint32_t i = 0; i < 3; i++)
		p->row[40 + i].position = position + i;
}

static void refusals(void)
{
	struct fixture f = open_plain(KV_FP8);
	struct parts p;
	uint32_t before = 0;
#define BAD(change) \
	do { \
		p = parts_make(&f); \
		change; \
		if (!EXPECT(f.ops->batch(f.device, p.b) == -ERR_OUT_OF_RANGE)) \
			printf("# %s\n", #change); \
		free(p.b); \
		before++; \
	} while (0)
	p = parts_make(&f);
	EXPECT_EQ(f.ops->batch(f.device, p.b), 0);
	free(p.b);
	BAD(p.b->bytes = 8);
	BAD(p.b->bytes = 0xfffffff8);
	BAD(p.b->bytes = p.b->sample_at + 8);
	BAD(p.b->row_count = 0);
	BAD(p.b->row_count = 42);
	BAD(p.b->row_count = 44);
	BAD(p.b->row_count = 0xffffffff);
	BAD(p.b->sequence_count = 1);
	BAD(p.b->sequence_count = 9);
	BAD(p.b->page_count = 3);
	BAD(p.b->sample_count = 161);
	BAD(p.b->row_at += 4);
	BAD(p.b->row_at = 0);
	BAD(p.b->page_at = 0xfffffff8);
	BAD(p.b->extra_at = p.b->bytes + 8);
	BAD(p.row[3].token = 100);
	BAD(p.row[3].position++);
	BAD(p.row[3].sequence = 1);
	BAD(p.row[3].phase = 2);
	BAD(p.sequence[0].row_first = 1);
	BAD(p.sequence[1].row_first = 0xffffffff);
	BAD(p.sequence[1].row_count = 0);
	BAD(p.sequence[0].page_count[0] = 1);
	BAD(p.sequence[0].page_count[0] = 0);
	BAD(p.sequence[0].page_count[0] = 0xffffffff);
	BAD(p.sequence[0].page_first[0] = 3);
	BAD(p.sequence[0].page_count[1] = 1);
	BAD(p.sequence[0].page_position[0] = 16);
	BAD(p.sequence[0].page_position[0] = 32);
	BAD(p.page[2].page = 24);
	BAD(p.page[2].group = 1);
	BAD(for (uint32_t i = 40; i < 43; i++) p.row[i].position += 500);
	/* The last page reaches beyond the context of 500; a row must not. */
	BAD(tail_move(&p, 498));
	p = parts_make(&f);
	tail_move(&p, 497);
	EXPECT_EQ(f.ops->batch(f.device, p.b), 0);
	free(p.b);
	BAD(p.sample[0].row = 43);
	BAD(p.sample[0].top_count = 17);
	BAD(p.sample[0].temperature = NAN);
	BAD(p.sample[0].temperature = -1);
	BAD(p.sample[0].top_p = 0);
	BAD(p.sample[0].min_p = 1);
	BAD(p.sample[0].typical = NAN);
	BAD(p.sample[0].repetition = 0);
	BAD(p.sample[0].frequency = INFINITY);
	BAD(p.sample[0].mask_at = 8);
	BAD(p.sample[0].mask_at = p.b->extra_at + 4);
	BAD(p.sample[0].mask_at = p.b->bytes - 8);
	BAD((p.sample[0].counts_at = p.b->extra_at, p.sample[0].count_count = 200));
	BAD((p.sample[0].bias_at = p.b->extra_at, p.sample[0].bias_count = 2));
	BAD((p.sample[0].counts_at = 8, p.sample[0].count_count = 1));
	EXPECT(before > 40);
	fixture_close(&f);
}

/* A refused block leaves the one before it current. */
static void refusal_changes_nothing(void)
{
	struct fixture f = open_plain(KV_FP8);
	struct parts p = parts_make(&f);
	struct ops_sampled first[2], second[2];
	REQUIRE(f.ops->batch(f.device, p.b) == 0);
	REQUIRE(fixture_step(&f) == 0);
	REQUIRE(f.ops->wait(f.device, first, NULL) == 0);
	p.row[42].token = 99;
	p.sample[1].top_count = 17;
	REQUIRE(f.ops->batch(f.device, p.b) == -ERR_OUT_OF_RANGE);
	REQUIRE(fixture_step(&f) == 0);
	REQUIRE(f.ops->wait(f.device, second, NULL) == 0);
	EXPECT(memcmp(first, second, sizeof first) == 0);
	free(p.b);
	fixture_close(&f);
}

/* Random damage to a good block: it is refused, or the step is harmless. The sanitizers
   watch. */
static void damage(void)
{
	static const uint32_t values[] = {
		0,    1, 2, 7, 8, 15,
		16,   24, 31, 64, 100, 255,
		4096, 0x7fc00000, 0x7fffffff, 0x80000000, 0xfffffff8, 0xffffffff};
	struct fixture f = open_plain(KV_INT8);
	uint64_t seed = 4;
	int taken = 0, refused = 0;
	for (int round = 0; round < 3000; round++) {
		struct parts p = parts_make(&f);
		const uint32_t words = p.b->extra_at / 4;
		uint32_t *w = (uint32_t *)(void *)p.b;
		p.sample[0].temperature = 1;
		p.sample[0].mask_at = p.b->extra_at;
		memset((uint8_t *)p.b + p.b->extra_at, 0xaa, 64);
		for (uint32_t i = 0; i <= random_below(&seed, 3); i++) {
			const uint32_t at =
				1 + random_below(&seed, words - 1); /* the size is right */
			w[at] = random_below(&seed, 2) ? values[random_below(&seed, 18)]
						       : w[at] + random_below(&seed, 5) - 2;
		}
		/* Exactly as large as it says, so that a look beyond it is seen. */
		struct ops_batch *exact = malloc(p.b->bytes);
		CHECK(exact != NULL);
		memcpy(exact, p.b, p.b->bytes);
		const int code = f.ops->batch(f.device, exact);
		free(exact), free(p.b);
		EXPECT(code == 0 || code == -ERR_OUT_OF_RANGE);
		code == 0 ? taken++ : refused++;
		if (code == 0 &&
		    taken % 4 == 0) { /* a gap before the pages is found by attend */
			const int step = fixture_step(&f);
			EXPECT(step == 0 || step == -ERR_OUT_OF_RANGE);
		}
	}
	printf("# %d taken, %d refused\n", taken, refused);
	EXPECT(taken > 100 && refused > 1000);
	fixture_close(&f);
}

static void pages(void)
{
	struct fixture f = open_plain(KV_FP8);
	const size_t bytes = ops_page_bytes(KV_FP8, 2, 2, 64, 32);
	uint8_t *a = malloc(bytes), *b = calloc(1, bytes);
	uint64_t seed = 1, tag;
	REQUIRE(a && b);
	for (size_t i = 0; i < bytes; i++)
		a[i] = (uint8_t)random_next(&seed);
	EXPECT_EQ(f.ops->page_write(f.device, 0, 23, a), 0);
	EXPECT_EQ(f.ops->page_copy(f.device, 0, 23, 7), 0);
	EXPECT_EQ(f.ops->page_read(f.device, 0, 7, b), 0);
	EXPECT(memcmp(a, b, bytes) == 0);
	EXPECT_EQ(f.ops->page_clear(f.device, 0, 7, 1), 0);
	EXPECT_EQ(f.ops->page_read(f.device, 0, 7, b), 0);
	EXPECT(b[0] == 0 && memcmp(b, b + 1, bytes - 1) == 0);
	EXPECT_EQ(f.ops->page_read(f.device, 0, 23, b), 0);
	EXPECT(memcmp(a, b, bytes) == 0);
	EXPECT_EQ(f.ops->page_tags_set(f.device, 0, 20, 4, 900), 0);
	EXPECT(f.ops->page_tag(f.device, 0, 23, &tag) == 0 && tag == 903);
	EXPECT(f.ops->page_tag(f.device, 0, 19, &tag) == 0 && tag == 0);
	EXPECT_EQ(f.ops->page_tags_set(f.device, 0, 20, 5, 900), -ERR_OUT_OF_RANGE);
	EXPECT_EQ(f.ops->page_tags_set(f.device, 0, 0xffffffff, 2, 900), -ERR_OUT_OF_RANGE);
	EXPECT_EQ(f.ops->page_tag(f.device, 1, 0, &tag), -ERR_OUT_OF_RANGE);
	EXPECT_EQ(f.ops->page_copy(f.device, 0, 0, 24), -ERR_OUT_OF_RANGE);
	EXPECT_EQ(f.ops->page_clear(f.device, 0, 23, 2), -ERR_OUT_OF_RANGE);
	EXPECT_EQ(f.ops->page_read(f.device, 4, 0, b), -ERR_OUT_OF_RANGE);
	EXPECT_EQ(f.ops->page_write(f.device, 0, 24, b), -ERR_OUT_OF_RANGE);
	free(a), free(b);
	fixture_close(&f);
}

/* Which positions a byte of a page belongs to, by the layout: its digest changes
   with it. */
static void digests(void)
{
	for (int kv = KV_FP8; kv <= KV_F32; kv++) {
		struct fixture f = open_plain(kv);
		const uint32_t size = kv == KV_F32 ? 4 : kv == KV_BF16 ? 2 : 1;
		const size_t bytes = ops_page_bytes(kv, 2, 2, 64, 32),
			     block = 64 * 32 * size;
		uint8_t *a = malloc(bytes);
		uint64_t seed = 3, want[2], got[2];
		int wrong = 0;
		REQUIRE(a);
		for (size_t i = 0; i < bytes; i++)
			a[i] = (uint8_t)random_next(&seed);
		for (int round = 0; round < 400; round++) {
			const uint32_t tokens = random_below(&seed, 33),
				       token = random_below(&seed, 32);
			const uint32_t index = random_below(&seed, 8),
				       value = random_below(&seed, 64);
			const size_t place = index % 2 ? page_v_at(token, value, 64)
						       : page_k_at(token, value, 64);
			size_t at = index * block + place * size +
				    random_below(&seed, size);
			if (kv <= KV_INT8 && round % 4 == 0)
				at = 8 * block + index * 32 + token;
			CHECK(f.ops->page_write(f.device, 0, 2, a) == 0);
			EXPECT_EQ(ops_page_digest(f.ops, f.device, 0, 2, tokens, want), 0);
			a[at] ^= (uint8_t)(1 << round % 8);
			CHECK(f.ops->page_write(f.device, 0, 3, a) == 0);
			EXPECT_EQ(ops_page_digest(f.ops, f.device, 0, 3, tokens, got), 0);
			wrong += (memcmp(want, got, sizeof want) != 0) != (token < tokens);
		}
		EXPECT_EQ(wrong, 0);
		EXPECT_EQ(ops_page_digest(f.ops, f.device, 0, 2, 33, got), -ERR_OUT_OF_RANGE);
		free(a);
		fixture_close(&f);
	}
}

/* A thread's whole stack, so that it can be looked through when the thread is gone. */
enum { STACK_BYTES = 1 << 20, PIECE = 24 };
static struct fixture *digested;

static void *digest_thread(void *arg)
{
	uint64_t digest[2];
	return ops_page_digest(digested->ops, digested->device, 0, 2, 21, digest) == 0 ? arg : NULL;
}

/* Of a page that was digested nothing is left on the stack, what is of no whole tile neither. */
static void nothing_left(void)
{
	if (getenv("HOLDFAST_SANITIZED"))
		TAP_SKIP("a sanitizer has a say in stacks");
	for (int kv = KV_FP8; kv <= KV_F32; kv++) {
		struct fixture f = open_plain((enum kv_kind)kv);
		const uint64_t bytes = ops_page_bytes(f.plan.kv, FIXTURE_LAYERS, f.plan.kv_heads, f.plan.head, 32);
		uint8_t *const page = malloc(bytes), *const stack = aligned_alloc(4096, STACK_BYTES);
		uint64_t state = 9;
		pthread_attr_t attributes;
		pthread_t thread;
		void *done = NULL;
		unsigned left = 0;
		REQUIRE(page && stack);
		for (uint64_t i = 0; i < bytes; i++)
			page[i] = (uint8_t)random_next(&state);
		EXPECT_EQ(f.ops->page_write(f.device, 0, 2, page), 0);
		digested = &f;
		memset(stack, 0, STACK_BYTES);
		pthread_attr_init(&attributes);
		REQUIRE(pthread_attr_setstack(&attributes, stack, STACK_BYTES) == 0);
		REQUIRE(pthread_create(&thread, &attributes, digest_thread, stack) == 0);
		pthread_join(thread, &done);
		EXPECT(done == stack);
		for (uint64_t i = 0; i + PIECE <= bytes; i += PIECE)
			left += memmem(stack, STACK_BYTES, page + i, PIECE) != NULL;
		EXPECT_EQ(left, 0);
		pthread_attr_destroy(&attributes);
		free(page);
		free(stack);
		fixture_close(&f);
	}
}

static void buffers(void)
{
	struct fixture f = open_plain(KV_FP8);
	float x[4] = {1, 2, 3, 4}, y[4] = {0};
	const size_t all = 160 * 64;
	EXPECT_EQ(f.ops->buffer_write(f.device, BUFFER_X, all - 4, 4, x), 0);
	EXPECT_EQ(f.ops->buffer_read(f.device, BUFFER_X, all - 4, 4, y), 0);
	EXPECT(memcmp(x, y, sizeof x) == 0);
	EXPECT_EQ(f.ops->buffer_write(f.device, BUFFER_X, all - 3, 4, x),
		  -ERR_OUT_OF_RANGE);
	EXPECT_EQ(f.ops->buffer_read(f.device, BUFFER_X, SIZE_MAX, 4, y),
		  -ERR_OUT_OF_RANGE);
	EXPECT_EQ(f.ops->buffer_read(f.device, BUFFER_COUNT, 0, 1, y), -ERR_OUT_OF_RANGE);
	EXPECT_EQ(f.ops->buffer_read(f.device, BUFFER_X, all - 4, 4, y), 0);
	EXPECT(memcmp(x, y, sizeof x) == 0);
	/* Every slot is filled. */
	const void *const *slot = (const void *const *)(const void *)f.ops;
	for (size_t i = 0; i < sizeof *f.ops / sizeof *slot; i++)
		EXPECT(slot[i] != NULL);
	fixture_close(&f);
}

/* Layers and weights that do not fit are refused before anything is read. */
static void wrong_layers(void)
{
	struct fixture f = open_plain(KV_FP8);
	struct parts p = parts_make(&f);
	REQUIRE(f.ops->batch(f.device, p.b) == 0);
	free(p.b);
	struct ops_layer l = f.layer[0].ops;
	l.layer = 2;
	EXPECT_EQ(f.ops->rope_write(f.device, &l), -ERR_OUT_OF_RANGE);
	EXPECT_EQ(f.ops->attend(f.device, &l), -ERR_OUT_OF_RANGE);
	l = f.layer[0].ops;
	l.group = 1;
	EXPECT_EQ(f.ops->attend(f.device, &l), -ERR_OUT_OF_RANGE);
	l = f.layer[0].ops;
	l.rope_dims = 66;
	EXPECT_EQ(f.ops->rope_write(f.device, &l), -ERR_BAD_ARG);
	l = f.layer[0].ops;
	l.q = l.k;
	EXPECT_EQ(f.ops->qkv(f.device, &l), -ERR_BAD_ARG);
	l.q = NULL;
	EXPECT_EQ(f.ops->qkv(f.device, &l), -ERR_BAD_ARG);
	l = f.layer[0].ops;
	l.down = l.gate;
	EXPECT_EQ(f.ops->down(f.device, &l), -ERR_BAD_ARG);
	l.up = l.q;
	EXPECT_EQ(f.ops->gate_up(f.device, &l), -ERR_BAD_ARG);
	EXPECT_EQ(f.ops->embed(f.device, l.q, 1), 0); /* 256 rows of the right width */
	EXPECT_EQ(f.ops->embed(f.device, l.output, 1), -ERR_BAD_ARG);
	EXPECT_EQ(f.ops->head(f.device, f.norm.packed, 1e-5f, l.k, 0), 0);
	EXPECT_EQ(f.ops->head(f.device, f.norm.packed, 1e-5f, l.output, 0), -ERR_BAD_ARG);
	fixture_close(&f);
}

int main(void)
{
	TAP_RUN(plans, "plans, sizes, instruction sets");
	TAP_RUN(refusals, "bad blocks are refused");
	TAP_RUN(refusal_changes_nothing, "a refused block leaves the one before it");
	TAP_RUN(damage, "damaged blocks are refused or harmless");
	TAP_RUN(pages, "pages and tags");
	TAP_RUN(digests, "a digest covers the first positions and nothing else");
	TAP_RUN(nothing_left, "nothing of a page is left of its digest");
	TAP_RUN(buffers, "buffers, collectives of one, a full table");
	TAP_RUN(wrong_layers, "layers that do not fit the plan");
	return tap_done();
}
