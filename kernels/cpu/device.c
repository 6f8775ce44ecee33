/*
 * The CPU device: its life, its weights and buffers, and the table that is the door.
 */
#include "kernels/cpu/device.h"
#include "kernels/cpu/fast.h"

#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/row.h"

/* Limits of a plan, far above any model, so that no product below overflows 64 bits. */
enum {
	WIDTH_MAX = 1 << 16,
	FF_MAX = 1 << 20,
	HEADS_MAX = 1 << 12,
	VOCAB_MAX = 1 << 22,
	LAYERS_MAX = 1 << 12,
	PAGES_MAX = 1 << 28,
	ROWS_MAX = 1 << 16,
	SAMPLES_MAX = 1 << 16,
	CONTEXT_MAX = 1 << 26,
	BATCH_PAGES_MAX = 1 << 26,
	EXTRA_MAX = 1 << 30,
	RANKS_MAX = 1 << 10
};

static int within(uint32_t x, uint32_t low, uint32_t high)
{
	return x >= low && x <= high;
}

static int plan_head_valid(const struct device_plan *p)
{
	return within(p->head, 16, HEAD_MAX) && p->head % 16 == 0 &&
	       (p->head <= 96 || p->head % 64 == 0) && within(p->heads, 1, HEADS_MAX) &&
	       within(p->kv_heads, 1, p->heads) && p->heads % p->kv_heads == 0;
}

static int plan_ranks_valid(const struct device_plan *p)
{
	if (p->ranks == 1)
		return p->rank == 0;
	return within(p->ranks, 1, RANKS_MAX) && p->rank < p->ranks &&
	       within(p->vocab_share, 1, p->vocab) &&
	       (uint64_t)(p->ranks - 1) * p->vocab_share < p->vocab &&
	       (uint64_t)p->ranks * p->vocab_share >= p->vocab;
}

int plan_valid(const struct device_plan *p)
{
	if (!plan_head_valid(p) || !within(p->width, 1, WIDTH_MAX) ||
	    !within(p->ff, 1, FF_MAX) || !within(p->vocab, 1, VOCAB_MAX) ||
	    !within(p->group_count, 1, OPS_GROUP_MAX))
		return 0;
	if (p->page_tokens == 0 || p->page_tokens % 16 != 0 ||
	    OPS_PARTITION % p->page_tokens != 0)
		return 0;
	for (uint32_t g = 0; g < p->group_count; g++)
		if (!within(p->group[g].layers, 1, LAYERS_MAX) ||
		    !within(p->group[g].page_count, 1, PAGES_MAX))
			return 0;
	return within(p->rows_max, 1, ROWS_MAX) &&
	       within(p->sequences_max, 1, p->rows_max) &&
	       within(p->samples_max, 1, SAMPLES_MAX) &&
	       within(p->pages_max, 1, BATCH_PAGES_MAX) &&
	       within(p->context, 1, CONTEXT_MAX) && p->extra_bytes_max <= EXTRA_MAX &&
	       within(p->kv, KV_FP8, KV_F32) && within(p->act, ACT_AUTO, ACT_I8_ROW) &&
	       within(p->prefill, PREFILL_SAME, PREFILL_FP8) &&
	       within(p->isa, ISA_AUTO, ISA_AVX512) && p->threads <= POOL_THREADS_MAX &&
	       plan_ranks_valid(p);
}

static size_t largest(size_t a, size_t b)
{
	return a > b ? a : b;
}

/* Sizes that follow from the plan alone. */
static void sizes_set(struct device *d)
{
	const struct device_plan *p = &d->plan;
	const size_t rows = p->rows_max, queries = (size_t)p->heads * p->head;
	const size_t kv = (size_t)p->kv_heads * p->head;
	const size_t shared = (size_t)TILE_ROWS * (p->heads / p->kv_heads);
	const size_t partitions = (p->context + OPS_PARTITION - 1) / OPS_PARTITION;
	d->threads = p->threads ? p->threads : pool_cores();
	d->buffer_floats[BUFFER_X] = rows * p->width;
	d->buffer_floats[BUFFER_Q] = d->buffer_floats[BUFFER_A] = rows * queries;
	d->buffer_floats[BUFFER_K] = d->buffer_floats[BUFFER_V] = rows * kv;
	d->buffer_floats[BUFFER_F] = rows * p->ff;
	d->buffer_floats[BUFFER_LOGITS] = (size_t)p->samples_max * p->vocab;
	d->act_columns = (uint32_t)(largest(largest(p->width, p->ff), queries) + 31) / 32 *
			 32;
	d->block_bytes = batch_bytes_max(p);
	d->attend_floats = leaf_scratch_floats(TILE_ROWS, p->heads / p->kv_heads, p->head);
	/* The scaled queries, a partition's partial, the running one, the leaf's
	   own room. */
	d->thread_floats = (shared * (3 * p->head + 4) + d->attend_floats + 15) / 16 * 16;
	d->partial_count = PARTIAL_BYTES_MAX / ((p->head + 2) * sizeof(float));
	if (d->partial_count > 4 * d->threads * shared * partitions)
		d->partial_count = 4 * d->threads * shared * partitions;
	d->logit_floats = ((size_t)p->vocab * 6 + 15) / 16 * 16;
	for (uint32_t g = 0; g < p->group_count; g++) {
		d->group[g].layers = p->group[g].layers;
		d->group[g].page_count = p->group[g].page_count;
		d->group[g].page_bytes = ops_page_bytes(
			p->kv, p->group[g].layers, p->kv_heads, p->head, p->page_tokens);
	}
}

struct piece {
	void *at; /* the address of a pointer of any kind */
	size_t bytes;
	int slab;
};

/* Those of pieces_list: 19 of every device, 3 of one of several ranks. */
enum { PIECES_MAX = BUFFER_COUNT + 19 + ROPE_SETS + 3 + 2 * OPS_GROUP_MAX };

struct pieces {
	struct piece list[PIECES_MAX];
	uint32_t count;
};

static void piece_put(struct pieces *p, void *at, size_t bytes, int slab)
{
	CHECK(p->count < PIECES_MAX);
	p->list[p->count++] = (struct piece){at, bytes, slab};
}

/* Every piece of memory of a device. */
static void pieces_list(struct device *d, struct pieces *all)
{
	const struct device_plan *p = &d->plan;
	const size_t f = sizeof(float), rows = p->rows_max;
	const size_t act = largest(rows, p->samples_max) * d->act_columns;
	all->count = 0;
	for (int i = 0; i < BUFFER_COUNT; i++)
		piece_put(all, &d->buffer[i], d->buffer_floats[i] * f, 0);
	piece_put(all, &d->up, rows * p->ff * f, 0);
	piece_put(all, &d->product, rows * p->width * f, 0);
	piece_put(all, &d->act_x, act * f, 0);
	piece_put(all, &d->act_q, act, 0);
	piece_put(all, &d->act_h, p->prefill == PREFILL_BF16 ? act * sizeof *d->act_h : 0, 0);
	piece_put(all, &d->act_d, act / ACT_BLOCK * f, 0);
	piece_put(all, &d->act_s, act / ACT_BLOCK * f, 0);
	/* The last tile may be filled in part. */
	piece_put(all, &d->act_tiles, act_tile_bytes(d->act_columns, 1) *
		  ((act / d->act_columns + ACT_TILE_MOST - 1) / ACT_TILE_MOST * ACT_TILE_MOST), 0);
	piece_put(all, &d->block[0], d->block_bytes, 0);
	piece_put(all, &d->block[1], d->block_bytes, 0);
	piece_put(all, &d->tiles, rows * sizeof *d->tiles, 0);
	piece_put(all, &d->spans, rows * sizeof *d->spans, 0);
	piece_put(all, &d->faults, p->sequences_max * sizeof *d->faults, 0);
	piece_put(all, &d->sampled, p->samples_max * sizeof *d->sampled, 0);
	piece_put(all, &d->rope_frequency, HEAD_MAX / 2 * sizeof(double), 0);
	for (int i = 0; i < ROPE_SETS; i++)
		piece_put(all, &d->rope[i].turns, rows * p->head * f, 0);
	piece_put(all, &d->thread_room, d->threads * d->thread_floats * f, 0);
	piece_put(all, &d->partials, d->partial_count * (p->head + 2) * f, 0);
	piece_put(all, &d->page_room, d->threads * PAGE_ROOMS * (OPS_PARTITION / 16) * sizeof(uint8_t *), 0);
	piece_put(all, &d->logit_room, d->threads * d->logit_floats * f, 0);
	if (p->ranks > 1) {
		const size_t share = (size_t)p->samples_max * p->vocab_share * f;
		piece_put(all, &d->logit_part, share, 0);
		piece_put(all, &d->logit_all, p->ranks * share, 0);
		piece_put(all, &d->fault_all, p->ranks * p->sequences_max * sizeof *d->fault_all, 0);
	}
	for (uint32_t g = 0; g < p->group_count; g++) {
		piece_put(all, &d->group[g].pages, d->group[g].page_bytes * d->group[g].page_count, 1);
		piece_put(all, &d->group[g].tags, (size_t)8 * d->group[g].page_count, 1);
	}
	/* The number is no guess: this plan has all of them. */
	if (p->ranks > 1 && p->group_count == OPS_GROUP_MAX)
		CHECK(all->count == PIECES_MAX);
}

static int cpu_device_needs(const struct device_plan *plan, struct device_needs *out)
{
	if (!plan_valid(plan))
		return -ERR_OUT_OF_RANGE;
	struct device *d = calloc(1, sizeof *d);
	struct pieces all;
	if (!d)
		return -ERR_MEMORY;
	d->plan = *plan;
	sizes_set(d);
	*out = (struct device_needs){sizeof *d, 0};
	pieces_list(d, &all);
	for (uint32_t i = 0; i < all.count; i++)
		*(all.list[i].slab ? &out->slab_bytes : &out->workspace_bytes) += all.list[i].bytes;
	free(d);
	return 0;
}

static void cpu_device_close(struct device **device)
{
	struct device *d = *device;
	if (!d)
		return;
	struct pieces all;
	pieces_list(d, &all);
	pool_close(&d->pool);
	while (d->weights) {
		struct weight *w = d->weights;
		d->weights = w->next;
		pack_free(&d->chunks, w);
	}
	chunks_free(&d->chunks);
	for (uint32_t i = 0; i < all.count; i++) {
		void *memory;
		memcpy(&memory, all.list[i].at, sizeof memory);
		memory_give(memory, all.list[i].bytes);
	}
	free(d);
	*device = NULL;
}

static int memory_make(struct device *d)
{
	struct pieces all;
	pieces_list(d, &all);
	for (uint32_t i = 0; i < all.count; i++) {
		void *const memory = memory_take(all.list[i].bytes);
		if (!memory)
			return -ERR_MEMORY;
		memcpy(all.list[i].at, &memory, sizeof memory);
	}
	return pool_open(d->threads, &d->pool);
}

static void leaf_choose(struct device *d)
{
	leaf_init_ref(&d->leaf);
	if (d->isa >= ISA_AVX2)
		leaf_init_avx2(&d->leaf);
	if (d->isa >= ISA_AVX512)
		leaf_init_avx512(&d->leaf);
	if (d->plan.exact) {
		struct leaf scalar;
		leaf_init_ref(&scalar);
		memcpy(d->leaf.gate, scalar.gate, sizeof scalar.gate);
		d->leaf.attend = scalar.attend;
		d->leaf.exp_sum = scalar.exp_sum;
	}
	d->act = d->plan.act;
	if (d->act == ACT_AUTO)
		d->act = d->isa == ISA_SCALAR ? ACT_F32 : ACT_I8_BLOCK;
}

static int cpu_device_open(const struct device_plan *plan, struct device **out)
{
	if (!plan_valid(plan))
		return -ERR_OUT_OF_RANGE;
	if (plan->ranks > 1 && !plan->collective)
		return -ERR_BAD_ARG;
	if ((plan->isa != ISA_AUTO && !ops_isa_runs(plan->isa)) || plan->prefill > PREFILL_BF16)
		return -ERR_UNSUPPORTED;
	struct device *d = calloc(1, sizeof *d);
	if (!d)
		return -ERR_MEMORY;
	d->plan = *plan;
	d->isa = plan->isa == ISA_AUTO ? ops_isa_best() : plan->isa;
	leaf_choose(d);
	sizes_set(d);
	const int code = memory_make(d);
	if (code != 0) {
		cpu_device_close(&d);
		return code;
	}
	*out = d;
	return 0;
}

static const char *cpu_device_isa(const struct device *d)
{
	return ops_isa_name(d->isa);
}

static enum act_kind cpu_device_act(const struct device *d)
{
	return d->act;
}

static uint64_t cpu_device_beside(const struct device *d)
{
	(void)d;
	return 0;
}

static uint32_t cpu_device_threads(const struct device *d)
{
	return d->threads;
}

static int cpu_weight_make(struct device *d, uint32_t type, enum weight_use use,
			   uint32_t rows, uint32_t columns, const void *data,
			   struct weight **out)
{
	TRY(pack_make(&d->chunks, type, use, rows, columns, data, out));
	const int err = use == WEIGHT_PHASED ? given_make(d->plan.prefill, &d->chunks, *out, data) : 0;
	if (err != 0) {
		pack_free(&d->chunks, *out);
		*out = NULL;
		return err;
	}
	(*out)->next = d->weights;
	d->weights = *out;
	return 0;
}

static void cpu_weight_free(struct device *d, struct weight **weight)
{
	struct weight **at = &d->weights;
	d->rope_count = 0; /* a kept set may name it */
	while (*at && *at != *weight)
		at = &(*at)->next;
	if (*at)
		*at = (*weight)->next;
	pack_free(&d->chunks, *weight);
	*weight = NULL;
}

static uint64_t cpu_weight_bytes(const struct weight *weight)
{
	return weight->bytes + (weight->given ? weight->given->bytes : 0);
}

static uint64_t cpu_weight_needs(const struct device_plan *plan, uint32_t type, enum weight_use use,
				 uint32_t rows, uint32_t columns)
{
	return pack_bytes(type, use, rows, columns) +
	       (use == WEIGHT_PHASED ? given_bytes(plan->prefill, type, rows, columns) : 0);
}

static int cpu_weight_rows(struct device *d, const struct weight *w, uint32_t row_first,
			   uint32_t row_count, float *out)
{
	(void)d;
	if (row_first > w->rows || row_count > w->rows - row_first)
		return -ERR_OUT_OF_RANGE;
	for (uint32_t i = 0; i < row_count; i++)
		for (uint32_t k = 0; k < w->columns; k += ROW_CHUNK) {
			const uint32_t n = w->columns - k < ROW_CHUNK ? w->columns - k
								      : ROW_CHUNK;
			row_floats(w, row_first + i, k, n,
				   out + (size_t)i * w->columns + k);
		}
	return 0;
}

static int buffer_check(const struct device *d, enum ops_buffer buffer, size_t offset,
			size_t count)
{
	if ((unsigned)buffer >= BUFFER_COUNT || offset > d->buffer_floats[buffer] ||
	    count > d->buffer_floats[buffer] - offset)
		return -ERR_OUT_OF_RANGE;
	return 0;
}

static int cpu_buffer_write(struct device *d, enum ops_buffer buffer, size_t offset,
			    size_t count, const float *from)
{
	TRY(buffer_check(d, buffer, offset, count));
	memcpy(d->buffer[buffer] + offset, from, count * sizeof *from);
	return 0;
}

static int cpu_buffer_read(struct device *d, enum ops_buffer buffer, size_t offset,
			   size_t count, float *to)
{
	TRY(buffer_check(d, buffer, offset, count));
	memcpy(to, d->buffer[buffer] + offset, count * sizeof *to);
	return 0;
}

static int cpu_wait(struct device *d, struct ops_sampled *sampled, struct ops_fault *faults)
{
	if (sampled)
		memcpy(sampled, d->sampled, d->sample_count * sizeof *sampled);
	if (faults)
		memcpy(faults, d->faults, d->sequence_count * sizeof *faults);
	return 0;
}

static const struct ops table = {
	.name = "cpu",
	.device_needs = cpu_device_needs,
	.device_open = cpu_device_open,
	.device_close = cpu_device_close,
	.device_isa = cpu_device_isa,
	.device_act = cpu_device_act,
	.device_threads = cpu_device_threads,
	.weight_make = cpu_weight_make,
	.weight_free = cpu_weight_free,
	.weight_bytes = cpu_weight_bytes,
	.weight_needs = cpu_weight_needs,
	.weight_rows = cpu_weight_rows,
	.buffer_write = cpu_buffer_write,
	.buffer_read = cpu_buffer_read,
	.batch = cpu_batch,
	.tag_check = cpu_tag_check,
	.tag_skip = cpu_tag_skip,
	.embed = cpu_embed,
	.qkv = cpu_qkv,
	.rope_write = cpu_rope_write,
	.attend = cpu_attend,
	.output = cpu_output,
	.gate_up = cpu_gate_up,
	.down = cpu_down,
	.head = cpu_head,
	.sample = cpu_sample,
	.wait = cpu_wait,
	.page_tags_set = cpu_page_tags_set,
	.page_tag = cpu_page_tag,
	.page_clear = cpu_page_clear,
	.page_copy = cpu_page_copy,
	.page_read = cpu_page_read,
	.page_write = cpu_page_write,
	.page_digests = cpu_page_digests,
	.host_pin = cpu_host_pin,
	.device_beside = cpu_device_beside,
};

const struct ops *ops_cpu(void)
{
	return &table;
}

/* tests/bench/bench_leaves: what AVX2 has for 8 bits, with AVX-VNNI too, is slower than the blocks' dots, and
   so is bf16 on registers, whatever the set. */
int ops_isa_prefill(enum isa isa, enum prefill_kind kind)
{
	if (isa == ISA_AUTO)
		isa = ops_isa_best();
	CHECK(ops_isa_runs(isa));
	const unsigned wanted = kind == PREFILL_INT8 ? FAST_VNNI : kind == PREFILL_BF16 ? FAST_AMX_BF16 : 0;
	return isa == ISA_AVX512 && (fast_have_avx512() & wanted) != 0;
}

/* Four chains; each product is held, so that the compiler cannot foretell the sum. */
static uint64_t scalar_work(uint64_t rounds)
{
	uint32_t sum[4] = {1, 2, 3, 4};
	for (uint64_t i = 0; i < rounds; i++)
		for (int j = 0; j < 4; j++) {
			sum[j] = sum[j] * 3 + (uint32_t)j;
			__asm__ volatile("" : "+r"(sum[j]));
		}
	return rounds * 4;
}

uint64_t ops_isa_work(enum isa isa, enum isa_work kind, uint64_t rounds)
{
	if (isa == ISA_AUTO)
		isa = ops_isa_best();
	CHECK(ops_isa_runs(isa));
	const unsigned have = isa == ISA_AVX512 ? fast_have_avx512() : 0;
	if (kind == ISA_WORK_TILE)
		return have & FAST_AMX ? fast_work_tiles(rounds) : 0;
	if (isa < ISA_AVX2)
		return scalar_work(rounds);
	if (kind == ISA_WORK_F32)
		return isa == ISA_AVX512 ? fast_work_f32_avx512(rounds) : fast_work_f32_avx2(rounds);
	return have & FAST_VNNI ? fast_work_avx512(rounds) : fast_work_avx2(rounds);
}

const char *ops_isa_beside(enum isa isa)
{
	static const char *const avx512[16] = {
		[FAST_VNNI] = "VNNI", [FAST_VBMI] = "VBMI", [FAST_VNNI | FAST_VBMI] = "VNNI VBMI",
		[FAST_VNNI | FAST_AMX] = "VNNI AMX", [FAST_VNNI | FAST_VBMI | FAST_AMX] = "VNNI VBMI AMX",
		[FAST_VNNI | FAST_AMX | FAST_AMX_BF16] = "VNNI AMX AMX-BF16",
		[FAST_VNNI | FAST_VBMI | FAST_AMX | FAST_AMX_BF16] = "VNNI VBMI AMX AMX-BF16",
	};
	if (isa == ISA_AUTO)
		isa = ops_isa_best();
	CHECK(ops_isa_runs(isa));
	const char *const name = isa == ISA_AVX512 ? avx512[fast_have_avx512() & 15]
				 : isa == ISA_AVX2 && fast_vnni_avx2() ? "AVX-VNNI" : "";
	return name ? name : "";
}
