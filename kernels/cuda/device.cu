/*
 * The CUDA device: its life, its weights and buffers, and the table that is the door.
 *
 * One piece of the GPU's memory and one of pinned memory hold all that a step needs; weights are
 * taken one by one while a model is loaded. A step takes none, but for the graphs it captures, whose
 * memory is the driver's, within a room that is charged.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/device.h"
#include "kernels/cuda/pack.h"
#include "kernels/quant.h"

enum { PIECE_ALIGN = 256 };

static int memory_refused()
{
	cudaGetLastError(); /* it is not kept */
	return -ERR_MEMORY;
}

/* No memory is asked for in a step, but for graphs, and launch.cu sees to that. So a driver that says there
   is none could not do a part of the step: what was computed is not whole, like after any other error. */
int cuda_error(struct device *d, cudaError_t error)
{
	if (error == cudaErrorMemoryAllocation && d && !d->opened)
		return memory_refused();
	if (d && !d->lost) {
		d->lost = true;
		fprintf(stderr, "cuda: %s\n", cudaGetErrorString(error));
	}
	return -ERR_INTERNAL;
}

/* ---- what a plan takes ---- */

static size_t largest(size_t a, size_t b)
{
	return a > b ? a : b;
}

static bool plan_fits(const struct device_plan *p)
{
	return plan_valid(p) && p->head % 16 == 0;
}

static void sizes_set(struct device *d)
{
	const struct device_plan *p = &d->plan;
	const size_t rows = p->rows_max, queries = (size_t)p->heads * p->head;
	const size_t kv = (size_t)p->kv_heads * p->head;
	const size_t partitions = (p->context + OPS_PARTITION - 1) / OPS_PARTITION;
	d->buffer_floats[BUFFER_X] = rows * p->width;
	d->buffer_floats[BUFFER_Q] = d->buffer_floats[BUFFER_A] = rows * queries;
	d->buffer_floats[BUFFER_K] = d->buffer_floats[BUFFER_V] = rows * kv;
	d->buffer_floats[BUFFER_F] = rows * p->ff;
	d->buffer_floats[BUFFER_LOGITS] = (size_t)p->samples_max * p->vocab;
	d->enter.stride = (uint32_t)((largest(largest(p->width, p->ff), queries) + 63) / 64 * 64);
	d->block_bytes = step_block_bytes(p);
	d->partial_floats = PARTIAL_BYTES_MAX / sizeof(float);
	const size_t all = rows * p->heads * partitions * (p->head + 2);
	d->partial_floats = all < d->partial_floats ? all : d->partial_floats;
	d->call_max = 16;
	for (uint32_t g = 0; g < p->group_count; g++) {
		d->group[g].layers = p->group[g].layers;
		d->group[g].page_count = p->group[g].page_count;
		d->group[g].page_bytes =
			ops_page_bytes(p->kv, p->group[g].layers, p->kv_heads, p->head, p->page_tokens);
		d->page_room_bytes = largest(d->page_room_bytes, d->group[g].page_bytes);
		d->blocks_most = (uint32_t)largest(d->blocks_most, page_blocks(p, g));
		d->call_max += 7 * p->group[g].layers;
	}
	d->page_room_bytes = largest(d->page_room_bytes, 1 << 16);
}

struct piece {
	void *at; /* the address of a pointer of any kind */
	size_t bytes;
	bool pinned, slab;
};
/* Those of pieces_list: 20 of every device, 4 of one of several ranks, 4 for given tokens. */
enum { PIECES_MAX = BUFFER_COUNT + 20 + 3 * ROPE_SETS + 4 + 4 + 2 * OPS_GROUP_MAX };

static uint32_t pieces_list(struct device *d, struct piece *list)
{
	const struct device_plan *p = &d->plan;
	const size_t f = sizeof(float), rows = p->rows_max;
	const size_t act = (largest(rows, p->samples_max) + ACT_PAD) * d->enter.stride;
	const size_t faults = p->sequences_max * sizeof(struct ops_fault);
	const size_t sampled = p->samples_max * sizeof(struct ops_sampled);
	uint32_t n = 0;
	const auto put = [&](void *at, size_t bytes, bool pinned, bool slab) {
		CHECK(n < PIECES_MAX);
		list[n++] = piece{at, (bytes + PIECE_ALIGN - 1) / PIECE_ALIGN * PIECE_ALIGN, pinned, slab};
	};
	for (int i = 0; i < BUFFER_COUNT; i++)
		put(&d->buffer[i], d->buffer_floats[i] * f, false, false);
	put(&d->up, rows * p->ff * f, false, false);
	put(&d->product, rows * p->width * f, false, false);
	put(&d->enter.x, act * f, false, false);
	put(&d->enter.q, act, false, false);
	put(&d->enter.d, act / 32 * f, false, false);
	put(&d->enter.s, act / 32 * f, false, false);
	put(&d->partials, d->partial_floats * f, false, false);
	put(&d->sample_work, (size_t)p->samples_max * 3 * p->vocab * f, false, false);
	put(&d->faults, faults, false, false);
	put(&d->sampled, sampled, false, false);
	put(&d->block, d->block_bytes, false, false);
	put(&d->digest_list, DIGESTS_MAX * sizeof *d->digest_list, false, false);
	put(&d->digests, (size_t)DIGESTS_MAX * d->blocks_most * 16, false, false);
	for (int i = 0; i < ROPE_SETS; i++) {
		put(&d->rope[i].frequency, KV_HEAD_MAX / 2 * sizeof(double), false, false);
		put(&d->rope[i].turns, rows * p->head * f, false, false);
		put(&d->rope[i].host, KV_HEAD_MAX / 2 * sizeof(double), true, false);
	}
	put(&d->staging[0], d->block_bytes, true, false);
	put(&d->staging[1], d->block_bytes, true, false);
	put(&d->host_faults, faults, true, false);
	put(&d->faults_none, faults, true, false);
	put(&d->host_sampled, sampled, true, false);
	put(&d->sampled_none, sampled, true, false);
	put(&d->page_room, d->page_room_bytes, true, false);
	if (p->ranks > 1) {
		const size_t piece = ranks_piece_bytes(p);
		put(&d->rank_all, p->ranks * piece, false, false);
		put(&d->rank_part, (size_t)p->samples_max * p->vocab_share * f, false, false);
		if (!nccl_found()) {
			put(&d->rank_host, piece, true, false);
			put(&d->rank_host_all, p->ranks * piece, true, false);
		}
	}
	if (p->prefill != PREFILL_SAME) {
		const size_t given = rows + GIVEN_PAD;
		put(&d->given_x, given * d->enter.stride * given_element(p->prefill), false, false);
		put(&d->given_scales, given * f, false, false);
		if (blas_found()) {
			put(&d->given_sums, largest(blas_sums_bytes(p), 1 << 12), false, false);
			put(&d->blas_room, BLAS_ROOM_BYTES, false, false);
		}
	}
	for (uint32_t g = 0; g < p->group_count; g++) {
		put(&d->group[g].pages, d->group[g].page_bytes * d->group[g].page_count, false, true);
		put(&d->group[g].tags, (size_t)8 * d->group[g].page_count, false, true);
	}
	/* The number is no guess: this plan has all of them. */
	if (p->ranks > 1 && p->group_count == OPS_GROUP_MAX && !nccl_found() && p->prefill != PREFILL_SAME &&
	    blas_found())
		CHECK(n == PIECES_MAX);
	return n;
}

static size_t pieces_sum(const struct piece *list, uint32_t n, bool pinned)
{
	size_t sum = 0;
	for (uint32_t i = 0; i < n; i++)
		sum += list[i].pinned == pinned ? list[i].bytes : 0;
	return sum;
}

static struct device *device_sized(const struct device_plan *plan)
{
	struct device *d = static_cast<struct device *>(calloc(1, sizeof *d));
	if (!d)
		return NULL;
	d->plan = *plan;
	sizes_set(d);
	return d;
}

static int cuda_device_needs(const struct device_plan *plan, struct device_needs *out)
{
	struct piece list[PIECES_MAX];
	if (!plan_fits(plan))
		return -ERR_OUT_OF_RANGE;
	struct device *d = device_sized(plan);
	if (!d)
		return -ERR_MEMORY;
	const uint32_t n = pieces_list(d, list);
	out->slab_bytes = out->workspace_bytes = 0;
	for (uint32_t i = 0; i < n; i++)
		*(list[i].slab ? &out->slab_bytes : &out->workspace_bytes) += list[i].bytes;
	out->workspace_bytes += GRAPH_ROOM_BYTES;
	free(d);
	return 0;
}

/* ---- life ---- */

static void weight_drop(struct weight *w)
{
	*w->link = w->next;
	if (w->next)
		w->next->link = w->link;
	cudaFree(w->memory);
	free(w->host);
	free(w);
}

static void cuda_device_close(struct device **device)
{
	struct device *d = *device;
	if (!d)
		return;
	if (!d->lost && d->step)
		cudaStreamSynchronize(d->step);
	d->call_count = 0;
	ranks_close(d);
	blas_close(d);
	while (d->weights)
		weight_drop(d->weights);
	graphs_drop(d);
	if (d->stepped)
		cudaEventDestroy(d->stepped);
	if (d->copied)
		cudaEventDestroy(d->copied);
	if (d->step)
		cudaStreamDestroy(d->step);
	if (d->copy)
		cudaStreamDestroy(d->copy);
	if (d->pinned)
		cudaHostUnregister(d->pinned);
	cudaFree(d->slab);
	cudaFreeHost(d->host);
	free(d->calls);
	free(d);
	*device = NULL;
}

static int memory_make(struct device *d)
{
	struct piece list[PIECES_MAX];
	const uint32_t n = pieces_list(d, list);
	const size_t host_bytes = pieces_sum(list, n, true), bytes = pieces_sum(list, n, false);
	CUDA_TRY(d, cudaMalloc(reinterpret_cast<void **>(&d->slab), bytes));
	CUDA_TRY(d, cudaMallocHost(reinterpret_cast<void **>(&d->host), host_bytes));
	/* The step's, and each graph's. */
	d->calls = static_cast<struct call *>(calloc((size_t)d->call_max * (1 + GRAPHS_MAX), sizeof *d->calls));
	if (!d->calls)
		return -ERR_MEMORY;
	memset(d->host, 0, host_bytes);
	uint8_t *at[2] = {d->slab, d->host};
	for (uint32_t i = 0; i < n; i++) {
		memcpy(list[i].at, &at[list[i].pinned], sizeof(void *));
		at[list[i].pinned] += list[i].bytes;
	}
	/* All of it: pages and tags begin as zeros, as on the CPU. */
	CUDA_TRY(d, cudaMemsetAsync(d->slab, 0, bytes, d->step));
	CUDA_TRY(d, cudaStreamSynchronize(d->step));
	for (uint32_t i = 0; i < d->plan.sequences_max; i++)
		d->faults_none[i].page = OPS_NONE;
	for (uint32_t i = 0; i < d->plan.samples_max; i++)
		d->sampled_none[i].token = OPS_NONE;
	return 0;
}

static int device_begin(struct device *d)
{
	struct cudaDeviceProp is;
	const struct device_plan *p = &d->plan;
	CUDA_TRY(d, cudaSetDevice((int)p->gpu));
	CUDA_TRY(d, cudaGetDeviceProperties(&is, (int)p->gpu));
	snprintf(d->name, sizeof d->name, "sm_%d%d", is.major, is.minor);
	d->shared_most = (uint32_t)is.sharedMemPerBlockOptin;
	const cudaError_t error =
		attend_prepare(p->kv, p->head, p->heads / p->kv_heads, d->shared_most);
	if (error == cudaErrorInvalidValue) {
		static const char *const kinds[] = {"fp8", "int8", "bf16", "f32"};
		fprintf(stderr,
			"cuda: attention over %s pages with heads of %u values, %u to a KV head, needs more shared "
			"memory than the %u bytes a block has on this GPU; pages of another kind (--kv) may fit\n",
			kinds[p->kv], p->head, p->heads / p->kv_heads, d->shared_most);
		return -ERR_UNSUPPORTED;
	}
	CUDA_TRY(d, error);
	CUDA_TRY(d, cudaStreamCreateWithFlags(&d->step, cudaStreamNonBlocking));
	CUDA_TRY(d, cudaStreamCreateWithFlags(&d->copy, cudaStreamNonBlocking));
	CUDA_TRY(d, cudaEventCreateWithFlags(&d->stepped, cudaEventDisableTiming));
	CUDA_TRY(d, cudaEventCreateWithFlags(&d->copied, cudaEventDisableTiming));
	d->major = is.major;
	return memory_make(d);
}

/* e4m3 is in its products from sm_89 on; what it wants of the scales there was not asked. */
static int library_open(struct device *d)
{
	if (d->plan.prefill == PREFILL_SAME)
		return 0;
	if (d->plan.prefill == PREFILL_FP8 && d->major < 9) {
		fprintf(stderr, "cuda: cuBLASLt is not asked for e4m3 on %s; given tokens take own kernels\n",
			d->name);
		return 0;
	}
	return blas_open(d);
}

static size_t memory_left()
{
	size_t left = 0, all;
	cudaMemGetInfo(&left, &all);
	return left;
}

static int cuda_device_open(const struct device_plan *plan, struct device **out)
{
	char reason[200];
	if (!plan_fits(plan))
		return -ERR_OUT_OF_RANGE;
	if (plan->ranks > 1 && !plan->collective)
		return -ERR_BAD_ARG;
	TRY(ops_cuda_find(plan->gpu, reason, sizeof reason));
	struct device *d = device_sized(plan);
	if (!d)
		return -ERR_MEMORY;
	d->act = plan->act == ACT_AUTO ? ACT_I8_BLOCK : plan->act;
	d->graphs_off = getenv("HOLDFAST_CUDA_GRAPHS") && strcmp(getenv("HOLDFAST_CUDA_GRAPHS"), "off") == 0;
	int code = device_begin(d);
	const size_t before = code == 0 ? memory_left() : 0;
	if (code == 0)
		code = library_open(d);
	if (plan->ranks > 1)
		code = ranks_open(d, code);
	const size_t after = code == 0 ? memory_left() : 0;
	d->beside = before > after ? before - after : 0;
	if (code != 0) {
		cuda_device_close(&d);
		return code;
	}
	d->opened = true;
	*out = d;
	return 0;
}

static const char *cuda_device_isa(const struct device *d)
{
	return d->name;
}

static enum act_kind cuda_device_act(const struct device *d)
{
	return d->act;
}

/* Of the host: one submits, none computes. */
static uint32_t cuda_device_threads(const struct device *d)
{
	(void)d;
	return 1;
}

static uint64_t cuda_device_beside(const struct device *d)
{
	return d->beside;
}

/* ---- weights ---- */

static int weight_check(uint32_t type, enum weight_use use, uint32_t rows, uint32_t columns, const void *data)
{
	const uint32_t elements = weight_type_elements(type);
	if (elements == 0 || form_of(type) == FORM_COUNT || (use == WEIGHT_VECTOR && elements != 1))
		return -ERR_UNSUPPORTED;
	if (rows == 0 || columns == 0 || columns % elements != 0 || rows > 1u << 28 || columns > 1u << 28 ||
	    (use == WEIGHT_VECTOR && rows != 1))
		return -ERR_OUT_OF_RANGE;
	return quant_check(type, static_cast<const uint8_t *>(data), (size_t)rows * columns);
}

static void cuda_weight_free(struct device *d, struct weight **weight)
{
	struct weight *w = *weight;
	if (!w)
		return;
	/* What was written down may name it; a graph may, and a set of turns. */
	step_settle(d);
	graphs_drop(d);
	for (struct rope_set &r : d->rope) /* its frequencies are on the GPU: settled above */
		if (r.factors == w)
			r.dims = 0;
	weight_drop(w);
	*weight = NULL;
}

static size_t place_up(size_t bytes)
{
	return (bytes + PIECE_ALIGN - 1) / PIECE_ALIGN * PIECE_ALIGN;
}

static uint64_t cuda_weight_needs(const struct device_plan *plan, uint32_t type, enum weight_use use,
				  uint32_t rows, uint32_t columns)
{
	size_t supers_at;
	if (weight_type_elements(type) == 0)
		return 0;
	if (use == WEIGHT_VECTOR)
		return (uint64_t)rows * columns * 4;
	const size_t own = form_bytes(form_of(type), rows, columns, &supers_at);
	const size_t given = given_bytes(plan, use, rows, columns);
	return given ? place_up(own) + given : own;
}

static int cuda_weight_make(struct device *d, uint32_t type, enum weight_use use, uint32_t rows,
			    uint32_t columns, const void *data, struct weight **out)
{
	if (d->lost)
		return -ERR_INTERNAL;
	TRY(weight_check(type, use, rows, columns, data));
	size_t supers_at = 0;
	const bool vector = use == WEIGHT_VECTOR;
	const size_t bytes = cuda_weight_needs(&d->plan, type, use, rows, columns);
	const size_t own = vector ? bytes : form_bytes(form_of(type), rows, columns, &supers_at);
	struct weight *w = static_cast<struct weight *>(calloc(1, sizeof *w));
	uint8_t *packed = static_cast<uint8_t *>(calloc(1, own));
	if (!w || !packed) {
		free(w);
		free(packed);
		return -ERR_MEMORY;
	}
	if (vector)
		quant_decode(type, static_cast<const uint8_t *>(data), columns, reinterpret_cast<float *>(packed));
	else
		form_pack(type, rows, columns, data, packed);
	w->type = type;
	w->use = use;
	w->bytes = bytes;
	cudaError_t error = cudaMalloc(&w->memory, bytes);
	if (error == cudaSuccess)
		error = cudaMemcpy(w->memory, packed, own, cudaMemcpyHostToDevice);
	w->m.data = static_cast<uint8_t *>(w->memory);
	w->m.supers = w->m.data + supers_at;
	w->m.rows = rows;
	w->m.columns = columns;
	w->m.form = vector ? (uint32_t)FORM_F32 : (uint32_t)form_of(type);
	w->host = reinterpret_cast<float *>(packed);
	if (vector)
		w->vector = static_cast<float *>(w->memory);
	else
		free(packed);
	if (!vector)
		w->host = NULL;
	if (error != cudaSuccess) {
		cudaFree(w->memory);
		free(w->host);
		free(w);
		return error == cudaErrorMemoryAllocation ? memory_refused() : cuda_error(d, error);
	}
	w->next = d->weights;
	w->link = &d->weights;
	if (w->next)
		w->next->link = &w->next;
	d->weights = w;
	d->opened = false; /* the weight is dropped, so no memory is no loss yet */
	const int code = bytes > own ? given_make(d, w, place_up(own)) : 0;
	d->opened = true;
	if (code != 0)
		weight_drop(w);
	else
		*out = w;
	return code;
}

static uint64_t cuda_weight_bytes(const struct weight *w)
{
	return w->bytes;
}

/* Read back and decoded on the host: the same function as the kernels'. */
static int cuda_weight_rows(struct device *d, const struct weight *w, uint32_t row_first, uint32_t row_count,
			    float *out)
{
	if (row_first > w->m.rows || row_count > w->m.rows - row_first)
		return -ERR_OUT_OF_RANGE;
	TRY(step_settle(d));
	/* The whole of it, but for the copy. */
	const size_t bytes = w->copy.data ? (size_t)(w->copy.data - w->m.data) : w->bytes;
	uint8_t *packed = static_cast<uint8_t *>(malloc(bytes));
	if (!packed)
		return -ERR_MEMORY;
	const cudaError_t error = cudaMemcpy(packed, w->memory, bytes, cudaMemcpyDeviceToHost);
	struct matrix m = w->m;
	m.supers = packed + (m.supers - m.data);
	m.data = packed;
	for (uint32_t i = 0; error == cudaSuccess && i < row_count; i++)
		for (uint32_t k = 0; k < m.columns; k++)
			out[(size_t)i * m.columns + k] = matrix_value(&m, row_first + i, k);
	free(packed);
	CUDA_TRY(d, error);
	return 0;
}

/* ---- buffers ---- */

static int buffer_check(const struct device *d, enum ops_buffer buffer, size_t offset, size_t count)
{
	if ((unsigned)buffer >= BUFFER_COUNT || offset > d->buffer_floats[buffer] ||
	    count > d->buffer_floats[buffer] - offset)
		return -ERR_OUT_OF_RANGE;
	return 0;
}

static int cuda_buffer_write(struct device *d, enum ops_buffer buffer, size_t offset, size_t count,
			     const float *from)
{
	TRY(buffer_check(d, buffer, offset, count));
	TRY(step_settle(d));
	CUDA_TRY(d, cudaMemcpy(d->buffer[buffer] + offset, from, count * sizeof *from, cudaMemcpyHostToDevice));
	return 0;
}

static int cuda_buffer_read(struct device *d, enum ops_buffer buffer, size_t offset, size_t count, float *to)
{
	TRY(buffer_check(d, buffer, offset, count));
	TRY(step_settle(d));
	CUDA_TRY(d, cudaMemcpy(to, d->buffer[buffer] + offset, count * sizeof *to, cudaMemcpyDeviceToHost));
	return 0;
}

static struct ops table_make()
{
	struct ops t;
	t.name = "cuda";
	t.device_needs = cuda_device_needs;
	t.device_open = cuda_device_open;
	t.device_close = cuda_device_close;
	t.device_isa = cuda_device_isa;
	t.device_act = cuda_device_act;
	t.device_threads = cuda_device_threads;
	t.device_beside = cuda_device_beside;
	t.weight_make = cuda_weight_make;
	t.weight_free = cuda_weight_free;
	t.weight_bytes = cuda_weight_bytes;
	t.weight_needs = cuda_weight_needs;
	t.weight_rows = cuda_weight_rows;
	t.buffer_write = cuda_buffer_write;
	t.buffer_read = cuda_buffer_read;
	t.batch = cuda_batch;
	t.tag_check = cuda_tag_check;
	t.tag_skip = cuda_tag_skip;
	t.embed = cuda_embed;
	t.qkv = cuda_qkv;
	t.rope_write = cuda_rope_write;
	t.attend = cuda_attend;
	t.output = cuda_output;
	t.gate_up = cuda_gate_up;
	t.down = cuda_down;
	t.head = cuda_head;
	t.sample = cuda_sample;
	t.wait = cuda_wait;
	t.page_tags_set = cuda_page_tags_set;
	t.page_tag = cuda_page_tag;
	t.page_clear = cuda_page_clear;
	t.page_copy = cuda_page_copy;
	t.page_read = cuda_page_read;
	t.page_write = cuda_page_write;
	t.page_digests = cuda_page_digests;
	t.host_pin = cuda_host_pin;
	return t;
}

const struct ops *ops_cuda(void)
{
	static const struct ops table = table_make();
	return &table;
}
