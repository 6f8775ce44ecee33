/*
 * Goal: the GPU reads and writes the pages of a second group, whose first ones a window has left
 * behind, as the CPU does. Method: the same rows on both, with pages that are gone full of NaN and of
 * another tag; bytes of pages are equal, attention within a bound, and a tag of the group that is wrong
 * is found.
 */
#include "tests/cuda_both.h"

/* The first page of group 1 that a batch from position `first` still has: the window hides the rest. */
enum { GROUP_WINDOW = 37, GROUP_PAGE = 16, GROUP_BASE = 3 };

static uint32_t group_dropped(uint32_t first)
{
	return first + 1 > GROUP_WINDOW ? (first + 1 - GROUP_WINDOW) / GROUP_PAGE : 0;
}

/* A batch of rows from..to that has only those pages of group 1, and whose history begins at `begin`. */
static void groups_batch(uint32_t from, uint32_t to, uint32_t begin, uint32_t phase)
{
	const struct fixture_sequence s = {text, from, to - from, GROUP_BASE, 100};
	struct ops_batch *b = fixture_block(&cpu, &s, 1, 0);
	struct ops_sequence *q = (struct ops_sequence *)(void *)((uint8_t *)b + b->sequence_at);
	struct ops_row *rows = (struct ops_row *)(void *)((uint8_t *)b + b->row_at);
	const uint32_t dropped = group_dropped(from);
	q->page_first[1] += dropped;
	q->page_count[1] -= dropped;
	q->page_position[1] = dropped * GROUP_PAGE;
	q->position_first = begin;
	for (uint32_t i = 0; i < b->row_count; i++)
		rows[i].phase = phase;
	EXPECT_EQ(cpu.ops->batch(cpu.device, b), 0);
	EXPECT_EQ(gpu.ops->batch(gpu.device, b), 0);
	free(b);
}

/* Both layers' pages are written and read, the second's in group 1; the error of the second. */
static double groups_rows(uint32_t from, uint32_t to, uint64_t *state)
{
	const struct device_plan *p = &cpu.plan;
	const size_t rows = to - from;
	double worst = 0;
	both_fill(BUFFER_Q, rows * p->heads * p->head, 1, state);
	both_fill(BUFFER_K, rows * p->kv_heads * p->head, 1, state);
	both_fill(BUFFER_V, rows * p->kv_heads * p->head, 1, state);
	EXPECT(cpu.ops->tag_check(cpu.device) == 0 && gpu.ops->tag_check(gpu.device) == 0);
	for (uint32_t l = 0; l < FIXTURE_LAYERS; l++) {
		const struct ops_layer *a = &cpu.layer[l].ops, *b = &gpu.layer[l].ops;
		EXPECT(cpu.ops->rope_write(cpu.device, a) == 0 && gpu.ops->rope_write(gpu.device, b) == 0);
		EXPECT(cpu.ops->attend(cpu.device, a) == 0 && gpu.ops->attend(gpu.device, b) == 0);
		const double error = both_error(BUFFER_A, rows * p->heads * p->head);
		if (!(error <= worst) && !isnan(worst))
			worst = error;
	}
	return worst;
}

static int group_pages_equal(uint32_t first, uint32_t count)
{
	const struct device_plan *p = &cpu.plan;
	const uint64_t bytes = ops_page_bytes(p->kv, FIXTURE_LAYERS, p->kv_heads, p->head, GROUP_PAGE);
	uint8_t *a = malloc(bytes), *b = malloc(bytes);
	int equal = 1;
	CHECK(a && b);
	for (uint32_t i = first; i < first + count; i++) {
		equal &= cpu.ops->page_read(cpu.device, 1, i, a) == 0 && gpu.ops->page_read(gpu.device, 1, i, b) == 0;
		equal &= memcmp(a, b, bytes) == 0;
	}
	free(a);
	free(b);
	return equal;
}

/* The fault that both find, and that it is this page of group 1; OPS_NONE: none. */
static void groups_fault(uint32_t page, uint64_t found)
{
	struct ops_fault a, b;
	EXPECT(cpu.ops->wait(cpu.device, NULL, &a) == 0 && gpu.ops->wait(gpu.device, NULL, &b) == 0);
	EXPECT_EQ(a.page, page);
	EXPECT_EQ(b.page, page);
	EXPECT(page == (uint32_t)OPS_NONE || (b.group == 1 && b.found == found && a.group == 1));
}

/* A second group of pages, whose first ones are gone (and NaN, of another tag), a history begun late. */
static void groups(void)
{
	for (int kv = KV_FP8; kv <= KV_F32; kv++) {
		const struct fixture_options o = {.matmul_type = TYPE_F32, .embedding_type = TYPE_F32,
						  .window = GROUP_WINDOW};
		struct device_plan p = fixture_plan();
		const uint32_t cuts[] = {0, 40, 80, 97, 98, 131};
		uint64_t state = 9 + (uint64_t)kv;
		if (less((uint32_t)kv))
			continue;
		p.kv = kv;
		p.rows_max = 48;
		p.group_count = 2;
		p.group[1] = p.group[0];
		both_open(&p, &o, 2);
		const uint64_t bytes = ops_page_bytes(p.kv, FIXTURE_LAYERS, p.kv_heads, p.head, GROUP_PAGE);
		uint8_t *bad = malloc(bytes);
		CHECK(bad != NULL);
		memset(bad, 0xff, bytes);
		cpu.layer[1].ops.group = gpu.layer[1].ops.group = 1;
		for (uint32_t g = 0; g < 2; g++)
			EXPECT(cpu.ops->page_tags_set(cpu.device, g, GROUP_BASE, 20, 100) == 0 &&
			       gpu.ops->page_tags_set(gpu.device, g, GROUP_BASE, 20, 100) == 0);
		for (size_t i = 1; i < sizeof cuts / sizeof cuts[0]; i++) {
			const uint32_t gone = group_dropped(cuts[i - 1]);
			for (uint32_t k = 0; k < gone; k++) {
				CHECK(cpu.ops->page_write(cpu.device, 1, GROUP_BASE + k, bad) == 0);
				CHECK(gpu.ops->page_write(gpu.device, 1, GROUP_BASE + k, bad) == 0);
				CHECK(gpu.ops->page_tags_set(gpu.device, 1, GROUP_BASE + k, 1, 7) == 0);
			}
			hook_seed(seeds[i % SEEDS]);
			groups_batch(cuts[i - 1], cuts[i], i > 3 ? 70 : 0, i % 2);
			const double error = groups_rows(cuts[i - 1], cuts[i], &state);
			groups_fault((uint32_t)OPS_NONE, 0);
			if (!EXPECT(error < (kv == KV_F32 ? 3e-6 : 6e-3)))
				printf("# kv %d, rows from %u: %g\n", kv, cuts[i - 1], error);
			if (!EXPECT(group_pages_equal(GROUP_BASE, 12)))
				printf("# kv %d, pages after row %u\n", kv, cuts[i] - 1);
		}
		free(bad);
		/* Its own wrong tag is found, by both. */
		const uint32_t page = GROUP_BASE + 131 / GROUP_PAGE;
		CHECK(cpu.ops->page_tags_set(cpu.device, 1, page, 1, 55) == 0);
		CHECK(gpu.ops->page_tags_set(gpu.device, 1, page, 1, 55) == 0);
		groups_batch(131, 140, 0, 0);
		EXPECT(groups_rows(131, 140, &state) == 0);
		groups_fault(page, 55);
		/* And is nothing where tags are not looked at. */
		groups_batch(131, 132, 0, 1);
		EXPECT(cpu.ops->tag_skip(cpu.device) == 0 && gpu.ops->tag_skip(gpu.device) == 0);
		groups_fault((uint32_t)OPS_NONE, 0);
		both_close();
	}
}

int main(void)
{
	if (hook_missing())
		return tap_skip_all(hook_missing());
	text_make(24);
	TAP_RUN(groups, "a second group of pages, its first ones gone");
	return tap_done();
}
