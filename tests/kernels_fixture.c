#include "tests/kernels_fixture.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/fp8.h"
#include "kernels/quant.h"

uint64_t random_next(uint64_t *state)
{
	uint64_t z = *state += 0x9e3779b97f4a7c15u;
	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
	return z ^ (z >> 31);
}

float random_normal(uint64_t *state)
{
	double sum = -6;
	for (int i = 0; i < 12; i++)
		sum += (double)(random_next(state) >> 11) * 0x1p-53;
	return (float)sum;
}

uint32_t random_below(uint64_t *state, uint32_t limit)
{
	return (uint32_t)(random_next(state) % limit);
}

/* The same tests judge another device when they are built for it. */
#ifndef FIXTURE_OPS
#define FIXTURE_OPS ops_cpu
#endif
const struct ops *(*fixture_table)(void) = FIXTURE_OPS;

static void *take(size_t bytes)
{
	void *p = calloc(1, bytes ? bytes : 1);
	CHECK(p != NULL);
	return p;
}

static void put_f16(uint8_t *at, float x)
{
	const uint16_t h = f16_encode(x);
	memcpy(at, &h, 2);
}

/* Scales so that the values of the block have about the wanted size. */
static void random_scales(uint64_t *state, uint32_t type, uint8_t *b, float size)
{
	const float jitter = 0.5f + (float)random_below(state, 1000) / 1000.0f;
	const float spread = size * jitter;
	switch (type) {
	case TYPE_Q4_0: case TYPE_IQ4_NL:
		put_f16(b, type == TYPE_Q4_0 ? spread / 4 : spread / 64);
		break;
	case TYPE_Q4_1:
		put_f16(b, spread / 4);
		put_f16(b + 2, -2 * spread);
		break;
	case TYPE_Q5_0:
		put_f16(b, spread / 8);
		break;
	case TYPE_Q5_1:
		put_f16(b, spread / 8);
		put_f16(b + 2, -2 * spread);
		break;
	case TYPE_Q8_0:
		put_f16(b, spread / 64);
		break;
	case TYPE_Q4_K: case TYPE_Q5_K:
		put_f16(b, spread / 31 / (type == TYPE_Q4_K ? 4 : 8));
		put_f16(b + 2, 2 * spread / 31);
		break;
	case TYPE_Q6_K:
		put_f16(b + 208, spread / 64 / 16);
		break;
	case TYPE_MXFP4:
		b[0] = (uint8_t)(127 + (int)floorf(log2f(spread / 2)));
		break;
	}
}

uint8_t *random_weight(uint64_t *state, uint32_t type, size_t count, float size)
{
	const uint32_t elements = weight_type_elements(type),
		       bytes = weight_type_bytes(type);
	uint8_t *data = take(count / elements * bytes), *b = data;
	for (size_t k = 0; k < count; k += elements, b += bytes) {
		const float x = random_normal(state) * size;
		const uint16_t h = type == TYPE_F16 ? f16_encode(x) : bf16_encode(x);
		for (uint32_t i = 0; i < bytes; i++)
			b[i] = (uint8_t)random_next(state);
		if (type == TYPE_F32)
			memcpy(b, &x, 4);
		else if (type == TYPE_F16 || type == TYPE_BF16)
			memcpy(b, &h, 2);
		else
			random_scales(state, type, b, size);
	}
	return data;
}

static struct fixture_weight weight_open(struct fixture *f, uint64_t *state, uint32_t type,
					 enum weight_use use, uint32_t rows,
					 uint32_t columns, float size, float centre)
{
	struct fixture_weight w = {.rows = rows, .columns = columns};
	const size_t count = (size_t)rows * columns;
	uint8_t *data = random_weight(state, type, count, size);
	w.values = take(count * sizeof *w.values);
	quant_decode(type, data, count, w.values);
	if (centre != 0) { /* vectors only, in F32 */
		for (size_t i = 0; i < count; i++)
			w.values[i] = fabsf(w.values[i] + centre) + 0.1f;
		memcpy(data, w.values, 4 * count);
	}
	CHECK(f->ops->weight_make(f->device, type, use, rows, columns, data, &w.packed) ==
	      0);
	free(data);
	return w;
}

struct device_plan fixture_plan(void)
{
	return (struct device_plan){
		.width = 64, .heads = 4, .kv_heads = 2, .head = 64, .ff = 96, .vocab = 100,
		.page_tokens = 16, .group_count = 1, .group = {{FIXTURE_LAYERS, 64}},
		.rows_max = 160, .sequences_max = 8, .samples_max = 160, .pages_max = 128,
		.context = 1024, .extra_bytes_max = 4096, .kv = KV_F32, .act = ACT_F32,
		.isa = ISA_SCALAR, .threads = 1, .ranks = 1};
}

static struct fixture_weight matrix(struct fixture *f, uint64_t *state, uint32_t rows,
				    uint32_t columns)
{
	return weight_open(f, state, f->options.matmul_type, WEIGHT_PHASED, rows, columns,
			   1.0f / sqrtf((float)columns), 0);
}

static struct fixture_weight vector(struct fixture *f, uint64_t *state, uint32_t n,
				    float centre)
{
	return weight_open(f, state, TYPE_F32, WEIGHT_VECTOR, 1, n, 0.3f, centre);
}

/* One value per rotary pair, alike for both. */
static struct fixture_weight smoothing(struct fixture *f, uint64_t *state)
{
	const uint32_t head = f->plan.head, n = f->plan.kv_heads * head;
	struct fixture_weight w = vector(f, state, n, 1);
	for (uint32_t i = 0; i < n; i++) {
		const uint32_t k = i % head;
		const uint32_t pair = f->options.rope == ROPE_ADJACENT ? k / 2 * 2
								       : k % (head / 2);
		w.values[i] = w.values[i / head * head + pair];
	}
	f->ops->weight_free(f->device, &w.packed);
	CHECK(f->ops->weight_make(f->device, TYPE_F32, WEIGHT_VECTOR, 1, n, w.values,
				  &w.packed) == 0);
	return w;
}

static void layer_open(struct fixture *f, uint32_t index, uint64_t *state)
{
	const struct device_plan *p = &f->plan;
	const struct fixture_options *o = &f->options;
	const uint32_t queries = p->heads * p->head, kv = p->kv_heads * p->head;
	struct fixture_layer *l = &f->layer[index];
	l->attn_norm = vector(f, state, p->width, 1);
	l->q = matrix(f, state, queries, p->width);
	l->k = matrix(f, state, kv, p->width);
	l->v = matrix(f, state, kv, p->width);
	l->output = matrix(f, state, p->width, queries);
	l->ffn_norm = vector(f, state, p->width, 1);
	l->gate = matrix(f, state, p->ff, p->width);
	l->up = matrix(f, state, p->ff, p->width);
	l->down = matrix(f, state, p->width, p->ff);
	if (o->biases) {
		l->q_bias = vector(f, state, queries, 0);
		l->k_bias = vector(f, state, kv, 0);
		l->v_bias = vector(f, state, kv, 0);
	}
	if (o->qk_norms) {
		l->q_norm = vector(f, state, p->head, 1);
		l->k_norm = vector(f, state, p->head, 1);
	}
	if (o->post_norms) {
		l->post_attn = vector(f, state, p->width, 1);
		l->post_ffn = vector(f, state, p->width, 1);
	}
	if (o->smooth)
		l->smooth = smoothing(f, state);
	if (o->factors)
		l->factors = vector(f, state, p->head / 2, 1);
	l->ops = (struct ops_layer){
		l->attn_norm.packed,
		l->q.packed,
		l->k.packed,
		l->v.packed,
		l->q_bias.packed,
		l->k_bias.packed,
		l->v_bias.packed,
		l->q_norm.packed,
		l->k_norm.packed,
		l->output.packed,
		l->post_attn.packed,
		l->ffn_norm.packed,
		l->gate.packed,
		l->up.packed,
		l->down.packed,
		l->post_ffn.packed,
		l->smooth.packed,
		l->factors.packed,
		.group = 0,
		.layer = index,
		.window = index % 2 ? o->window : 0,
		.rope_dims = p->head,
		.rope = o->rope,
		.gate_kind = o->gate,
		.rope_base = index % 2 ? 10000.0f : 500000.0f,
		.rope_scale = 1,
		.epsilon = 1e-5f,
		.attention_scale = o->attention_size != 0 ? o->attention_size
							  : 1.0f / sqrtf((float)p->head),
		.attention_softcap = o->softcap};
}

void fixture_open(struct fixture *f, const struct device_plan *plan,
		  const struct fixture_options *options, uint64_t seed)
{
	*f = (struct fixture){.ops = fixture_table(), .plan = *plan, .options = *options};
	const int code = f->ops->device_open(plan, &f->device);
	if (code != 0)
		printf("# device_open: %s\n", err_name(code));
	CHECK(code == 0);
	f->embedding = weight_open(f, &seed, options->embedding_type, WEIGHT_BOTH,
				   plan->vocab, plan->width, 1, 0);
	f->norm = vector(f, &seed, plan->width, 1);
	for (uint32_t i = 0; i < FIXTURE_LAYERS; i++)
		layer_open(f, i, &seed);
}

static void weight_close(struct fixture *f, struct fixture_weight *w)
{
	free(w->values);
	if (w->packed)
		f->ops->weight_free(f->device, &w->packed);
}

void fixture_close(struct fixture *f)
{
	weight_close(f, &f->embedding);
	weight_close(f, &f->norm);
	for (uint32_t i = 0; i < FIXTURE_LAYERS; i++) {
		struct fixture_layer *l = &f->layer[i];
		struct fixture_weight *all[] = {
			&l->attn_norm, &l->q, &l->k, &l->v, &l->q_bias,
			&l->k_bias,    &l->v_bias,   &l->q_norm, &l->k_norm, &l->output,
			&l->post_attn, &l->ffn_norm, &l->gate, &l->up,     &l->down,
			&l->post_ffn,  &l->smooth,   &l->factors};
		for (size_t k = 0; k < sizeof all / sizeof all[0]; k++)
			weight_close(f, all[k]);
	}
	f->ops->device_close(&f->device);
}

static uint32_t pages_of(const struct fixture *f, const struct fixture_sequence *s)
{
	return (s->first + s->count + f->plan.page_tokens - 1) / f->plan.page_tokens;
}

static void sequence_fill(const struct fixture *f, uint8_t *base, uint32_t index,
			  const struct fixture_sequence *from, uint32_t *row,
			  uint32_t *page)
{
	const struct ops_batch *b = (const struct ops_batch *)(const void *)base;
	struct ops_sequence *s = (struct ops_sequence *)(void *)(base + b->sequence_at) +
				 index;
	struct ops_row *rows = (struct ops_row *)(void *)(base + b->row_at);
	struct ops_page *pages = (struct ops_page *)(void *)(base + b->page_at);
	s->row_first = *row;
	s->row_count = from->count;
	for (uint32_t i = 0; i < from->count; i++)
		rows[(*row)++] = (struct ops_row){from->tokens[from->first + i],
						  from->first + i, index,
						  (from->first + i) / 5 % 2};
	for (uint32_t g = 0; g < f->plan.group_count; g++) {
		s->page_first[g] = *page;
		s->page_count[g] = pages_of(f, from);
		for (uint32_t i = 0; i < s->page_count[g]; i++)
			pages[(*page)++] = (struct ops_page){from->page + i, g,
							     from->tag + i};
	}
}

struct ops_batch *fixture_block(const struct fixture *f,
				const struct fixture_sequence *sequences, uint32_t count,
				int sample)
{
	uint32_t rows = 0, pages = 0, row = 0, page = 0;
	for (uint32_t i = 0; i < count; i++) {
		rows += sequences[i].count;
		pages += pages_of(f, &sequences[i]) * f->plan.group_count;
	}
	const uint32_t samples = sample == 1 ? rows : sample == 2 ? count : 0;
	struct ops_batch b = {.row_count = rows,
			      .sequence_count = count,
			      .page_count = pages,
			      .sample_count = samples,
			      .row_at = sizeof b};
	b.sequence_at = b.row_at + rows * (uint32_t)sizeof(struct ops_row);
	b.page_at = (b.sequence_at + count * (uint32_t)sizeof(struct ops_sequence) + 7) /
		    8 * 8;
	b.sample_at = b.page_at + pages * (uint32_t)sizeof(struct ops_page);
	b.extra_at = (b.sample_at + samples * (uint32_t)sizeof(struct ops_sample) + 7) / 8 *
		     8;
	b.bytes = b.extra_at + f->plan.extra_bytes_max;
	uint8_t *base = take(b.bytes);
	memcpy(base, &b, sizeof b);
	for (uint32_t i = 0; i < count; i++)
		sequence_fill(f, base, i, &sequences[i], &row, &page);
	struct ops_sample *s = block_samples((struct ops_batch *)(void *)base);
	const struct ops_sequence *q =
		(const struct ops_sequence *)(void *)(base + b.sequence_at);
	for (uint32_t i = 0; i < samples; i++)
		s[i] = (struct ops_sample){
			.row = sample == 1 ? i : q[i].row_first + q[i].row_count - 1,
			.top_count = 1, .top_p = 1, .typical = 1, .repetition = 1};
	return (struct ops_batch *)(void *)base;
}

struct ops_sample *block_samples(struct ops_batch *block)
{
	return (struct ops_sample *)(void *)((uint8_t *)block + block->sample_at);
}

int fixture_step(struct fixture *f)
{
	TRY(f->ops->tag_check(f->device));
	TRY(f->ops->embed(f->device, f->embedding.packed, 1.0f));
	for (uint32_t i = 0; i < FIXTURE_LAYERS; i++) {
		const struct ops_layer *l = &f->layer[i].ops;
		TRY(f->ops->qkv(f->device, l));
		TRY(f->ops->rope_write(f->device, l));
		TRY(f->ops->attend(f->device, l));
		TRY(f->ops->output(f->device, l));
		TRY(f->ops->gate_up(f->device, l));
		TRY(f->ops->down(f->device, l));
	}
	TRY(f->ops->head(f->device, f->norm.packed, 1e-5f, f->embedding.packed,
			 f->options.logit_softcap));
	return f->ops->sample(f->device);
}

int fixture_run(struct fixture *f, const struct fixture_sequence *sequences, uint32_t count,
		int sample, float *out)
{
	struct ops_batch *block = fixture_block(f, sequences, count, sample);
	const uint32_t samples = block->sample_count;
	int code = f->ops->batch(f->device, block);
	free(block);
	TRY(code);
	TRY(fixture_step(f));
	return out ? f->ops->buffer_read(f->device, BUFFER_LOGITS, 0,
					 (size_t)samples * f->plan.vocab, out)
		   : 0;
}
