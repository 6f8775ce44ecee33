/*
 * The matmul operations of a step: embed, qkv, output, gate_up, down, head.
 *
 * Each is two loops over the pool: the rows that enter are normed and brought to the
 * precision of the path, then the product is computed in items of (some groups of weight
 * rows) x (some activation rows). What follows a product element by element (bias,
 * residual, gate, softcap) is done by the item that made the elements, so it costs no loop
 * of its own.
 */
#include <math.h>
#include <string.h>

#include "kernels/cpu/device.h"
#include "kernels/cpu/row.h"
#include "kernels/fp8.h"

enum {
	ITEMS_PER_THREAD = 8, /* so that a slow thread is waited for briefly */
	ITEMS_OF_FEW = 4, /* of up to FEW_ROWS rows: weights fetched ahead of an item's end are lost */
	FEW_ROWS = 16,
	ROWS_INLINE = 2,      /* so few rows are cheaper to prepare than to hand out */
	ROWS_ITEM = 4,        /* prepared by an item: one alone is hardly worth its taking */
	PRODUCTS_MAX = 3
};

/* Rows that enter a matmul. */
struct entry {
	struct device *d;
	const float *x;
	size_t x_stride;
	const uint32_t *pick; /* NULL, or the row of x for each */
	size_t pick_stride;   /* in uint32_t */
	const float *norm;    /* NULL: none */
	float epsilon;
	uint32_t columns, count;
	int phased; /* rows of given tokens are for copies of the weights */
	enum act_kind kind;
	uint32_t tile_rows; /* 0: rows are not laid in tiles */
};

static void round_rows(enum act_kind kind, float *x, uint32_t n)
{
	if (kind == ACT_BF16) {
		for (uint32_t i = 0; i < n; i++)
			x[i] = bf16_decode(bf16_encode(x[i]));
		return;
	}
	/* ACT_I8_ROW: one scale for the row; the values that the integers stand for. */
	float largest = 0;
	for (uint32_t i = 0; i < n; i++) {
		const float a = fabsf(x[i]);
		largest = a > largest ? a : largest;
	}
	const float d = largest / 127.0f, inverse = 1.0f / d;
	for (uint32_t i = 0; i < n; i++) {
		const float q = (x[i] * inverse + 12582912.0f) - 12582912.0f;
		x[i] = inverse <= 3.4028234e38f ? d * q : 0.0f;
	}
}

static void entry_row(const struct entry *e, uint32_t item)
{
	struct device *d = e->d;
	const size_t from = e->pick ? e->pick[item * e->pick_stride] : item;
	const float *x = e->x + from * e->x_stride;
	float *const room = d->act_x + (size_t)item * d->act_columns;
	if (e->norm) {
		d->leaf.norm(x, e->norm, e->columns, e->epsilon, room);
		x = room;
	}
	if (e->phased && d->rows[item].phase == 0 && d->plan.prefill == PREFILL_BF16) {
		d->leaf.round_row(x, e->columns, d->act_h + (size_t)item * d->act_columns);
		return;
	}
	if (e->phased && d->rows[item].phase == 0) {
		const size_t at = (size_t)item * (d->act_columns / ACT_BLOCK);
		d->leaf.quantise_row(x, e->columns, d->act_q + (size_t)item * d->act_columns,
				     d->act_d + at, d->act_s + at);
		return;
	}
	if (e->kind == ACT_I8_BLOCK) {
		const size_t at = (size_t)item * (d->act_columns / ACT_BLOCK);
		int8_t *const q = d->act_q + (size_t)item * d->act_columns;
		d->leaf.quantise(x, e->columns, q, d->act_d + at, d->act_s + at);
		if (e->tile_rows)
			d->leaf.place(q, d->act_d + at, d->act_s + at, e->columns, item % e->tile_rows, e->tile_rows,
				      d->act_tiles + item / e->tile_rows * act_tile_bytes(e->columns, e->tile_rows));
		return;
	}
	if (x != room)
		memcpy(room, x, e->columns * sizeof *x);
	if (e->kind != ACT_F32)
		round_rows(e->kind, room, e->columns);
}

static void entry_item(void *argument, uint32_t item, uint32_t thread)
{
	const struct entry *e = argument;
	const uint32_t first = item * ROWS_ITEM, left = e->count - first;
	(void)thread;
	for (uint32_t i = 0; i < ROWS_ITEM && i < left; i++)
		entry_row(e, first + i);
}

/* As many as the leaf's largest tile, or as the rows there are fill. */
static uint32_t tile_rows_of(const struct leaf *leaf, uint32_t count)
{
	uint32_t rows = 1;
	if (!leaf->place || count > leaf->place_most)
		return 0;
	while (rows < count && rows < leaf->tile_rows)
		rows *= 2;
	return rows;
}

/* Prepares the rows in e and describes them for the leaves. */
static struct act entry_prepare(struct entry *e)
{
	struct device *d = e->d;
	/* A block has 32 columns; what is not made of blocks enters as it is. */
	e->kind = d->act == ACT_I8_BLOCK && e->columns % ACT_BLOCK != 0 ? ACT_F32 : d->act;
	e->tile_rows = e->kind == ACT_I8_BLOCK ? tile_rows_of(&d->leaf, e->count) : 0;
	struct act a = {.kind = e->kind == ACT_I8_BLOCK ? ACT_I8_BLOCK : ACT_F32,
			.columns = e->columns,
			.x = d->act_x, .x_stride = d->act_columns,
			.q = d->act_q, .q_stride = d->act_columns,
			.h = d->act_h, .h_stride = d->act_columns,
			.d = d->act_d, .s = d->act_s,
			.block_stride = d->act_columns / ACT_BLOCK,
			.tiles = d->act_tiles, .tile_rows = e->tile_rows};
	if (!e->norm && !e->pick && !e->phased && e->kind == ACT_F32) {
		a.x = e->x;
		a.x_stride = e->x_stride;
		return a;
	}
	if (e->count <= ROWS_INLINE)
		for (uint32_t i = 0; i < e->count; i++)
			entry_row(e, i);
	else
		pool_run(d->pool, entry_item, e, (e->count + ROWS_ITEM - 1) / ROWS_ITEM);
	return a;
}

/* out[c][row] = w times activation row c, then one of what may follow. */
struct product {
	struct weight w; /* a copy: the head's rows may be fewer */
	const float *bias;
	float *out;
	size_t stride;
	float *residual;       /* += out; same stride */
	const struct weight *up; /* out = gate(out) * (up times the same) */
	enum gate_kind gate;
	float softcap;
};

struct matmul {
	struct device *d;
	struct act a;
	uint32_t c_count;
	int phased; /* the rows are the batch's, some of them of given tokens that have their own weights */
	struct product product[PRODUCTS_MAX];
	uint32_t product_count;
	uint32_t chunk;                 /* groups of an item */
	uint32_t chunks[PRODUCTS_MAX];  /* of each product */
	uint32_t chunk_count;
};

static void product_finish(struct device *d, const struct product *p, uint32_t c,
			   uint32_t row, uint32_t n)
{
	float *const out = p->out + c * p->stride + row;
	if (p->bias)
		d->leaf.add(out, p->bias + row, n);
	if (p->residual)
		d->leaf.add(p->residual + c * p->stride + row, out, n);
	if (p->up)
		d->leaf.gate[p->gate](out, d->up + c * p->stride + row, n, out);
	if (p->softcap > 0)
		for (uint32_t i = 0; i < n; i++)
			out[i] = p->softcap * tanhf(out[i] / p->softcap);
}

static uint32_t groups_of(const struct weight *w)
{
	return (w->rows + PACK_ROWS - 1) / PACK_ROWS;
}

/* The rows of an item: a span of the batch's, or SPAN_ROWS of what enters. */
static struct span matmul_span(const struct matmul *m, uint32_t index)
{
	if (m->phased)
		return m->d->spans[index];
	const uint32_t first = index * SPAN_ROWS, left = m->c_count - first;
	return (struct span){first, left < SPAN_ROWS ? left : SPAN_ROWS, 0};
}

static void multiply(const struct matmul *m, const struct weight *w, const struct span *s,
		     uint32_t group_first, uint32_t group_count, float *out, size_t stride)
{
	struct act a = m->a;
	if (s->given) {
		w = w->given;
		a.kind = w->pack == PACK_BF16 ? ACT_BF16 : ACT_I8_ROW;
	}
	m->d->leaf.matmul[w->pack](w, group_first, group_count, &a, s->first, s->count, out, stride);
}

static void matmul_item(void *argument, uint32_t item, uint32_t thread)
{
	const struct matmul *m = argument;
	const struct span s = matmul_span(m, item / m->chunk_count);
	uint32_t chunk = item % m->chunk_count, i = 0;
	(void)thread;
	while (chunk >= m->chunks[i])
		chunk -= m->chunks[i++];
	const struct product *p = &m->product[i];
	const uint32_t first = chunk * m->chunk, groups = groups_of(&p->w);
	const uint32_t count = groups - first < m->chunk ? groups - first : m->chunk;
	multiply(m, &p->w, &s, first, count, p->out, p->stride);
	if (p->up)
		multiply(m, p->up, &s, first, count, m->d->up, p->stride);
	const uint32_t row = first * PACK_ROWS, end = row + count * PACK_ROWS;
	for (uint32_t k = s.first; k < s.first + s.count; k++)
		product_finish(m->d, p, k, row, (end < p->w.rows ? end : p->w.rows) - row);
}

static void matmul_run(struct matmul *m)
{
	uint32_t groups = 0;
	for (uint32_t i = 0; i < m->product_count; i++)
		groups += groups_of(&m->product[i].w);
	/* With many activation rows their number makes the items, and each takes many groups: what
	   an item does once for its activations is done less often. */
	const uint32_t times = m->phased ? m->d->span_count : (m->c_count + SPAN_ROWS - 1) / SPAN_ROWS;
	const uint32_t items = pool_threads(m->d->pool) == 1
				       ? 1
				       : m->d->threads * (m->c_count > FEW_ROWS ? ITEMS_PER_THREAD : ITEMS_OF_FEW);
	const uint32_t parts = (items + times - 1) / times;
	m->chunk = (groups + parts - 1) / parts;
	m->chunk_count = 0;
	for (uint32_t i = 0; i < m->product_count; i++) {
		m->chunks[i] = (groups_of(&m->product[i].w) + m->chunk - 1) / m->chunk;
		m->chunk_count += m->chunks[i];
	}
	pool_run(m->d->pool, matmul_item, m, times * m->chunk_count);
}

static int is_matrix(const struct weight *w, uint32_t rows, uint32_t columns)
{
	return w && w->rows == rows && w->columns == columns;
}

static int vector_or_null(const struct weight *w, uint32_t columns)
{
	return !w || is_vector(w, columns);
}

static void product_add(struct matmul *m, const struct weight *w, const struct weight *bias,
			enum ops_buffer out)
{
	m->product[m->product_count++] =
		(struct product){.w = *w, .bias = bias ? weight_floats(bias) : NULL,
				 .out = m->d->buffer[out], .stride = w->rows};
}

/* Every row of the batch from a buffer, normed if norm is not NULL, for weights like w: those of one
   operation have equal columns, so all have a copy for given tokens, or none. */
static void rows_enter(struct matmul *m, enum ops_buffer from, uint32_t columns,
		       const struct weight *norm, float epsilon, const struct weight *w)
{
	struct device *const d = m->d;
	struct entry e = {.d = d,
			  .x = d->buffer[from],
			  .x_stride = columns,
			  .columns = columns,
			  .norm = norm ? weight_floats(norm) : NULL,
			  .epsilon = epsilon,
			  .count = d->row_count,
			  .phased = w->given != NULL};
	m->phased = e.phased;
	m->a = entry_prepare(&e);
}

/* Rows of the width, summed over the ranks. */
static int rows_sum(struct device *d, float *rows)
{
	const struct collective *c = d->plan.collective;
	return c->sum(c->self, rows, (size_t)d->row_count * d->plan.width);
}

int cpu_embed(struct device *d, const struct weight *embedding, float scale)
{
	const struct device_plan *p = &d->plan;
	const uint32_t width = p->width, first = plan_vocab_first(p), own = plan_vocab_rows(p);
	if (!embedding || embedding->columns != width || (p->ranks > 1 && embedding->rows < own))
		return -ERR_BAD_ARG;
	for (uint32_t i = 0; i < d->row_count; i++)
		if (d->rows[i].token >= (p->ranks > 1 ? p->vocab : embedding->rows))
			return -ERR_OUT_OF_RANGE;
	for (uint32_t i = 0; i < d->row_count; i++) {
		float *const x = d->buffer[BUFFER_X] + (size_t)i * width;
		const uint32_t row = d->rows[i].token - first; /* one that is not ours is beyond all */
		if (p->ranks > 1 && row >= own) {
			memset(x, 0, width * sizeof *x);
			continue;
		}
		for (uint32_t k = 0; k < width; k += ROW_CHUNK)
			row_floats(embedding, row, k,
				   width - k < ROW_CHUNK ? width - k : ROW_CHUNK, x + k);
		for (uint32_t k = 0; k < width; k++)
			x[k] *= scale;
	}
	return p->ranks > 1 ? rows_sum(d, d->buffer[BUFFER_X]) : 0;
}

int cpu_qkv(struct device *d, const struct ops_layer *l)
{
	const struct device_plan *p = &d->plan;
	const uint32_t queries = p->heads * p->head, kv = p->kv_heads * p->head;
	if (!is_matrix(l->q, queries, p->width) || !is_matrix(l->k, kv, p->width) ||
	    !is_matrix(l->v, kv, p->width) || !is_vector(l->attn_norm, p->width) ||
	    !vector_or_null(l->q_bias, queries) || !vector_or_null(l->k_bias, kv) ||
	    !vector_or_null(l->v_bias, kv))
		return -ERR_BAD_ARG;
	struct matmul m = {.d = d, .c_count = d->row_count};
	rows_enter(&m, BUFFER_X, p->width, l->attn_norm, l->epsilon, l->q);
	product_add(&m, l->q, l->q_bias, BUFFER_Q);
	product_add(&m, l->k, l->k_bias, BUFFER_K);
	product_add(&m, l->v, l->v_bias, BUFFER_V);
	matmul_run(&m);
	return 0;
}

struct post {
	struct device *d;
	const float *norm; /* NULL: none */
	float epsilon;
};

static void post_row(void *argument, uint32_t item, uint32_t thread)
{
	const struct post *p = argument;
	const uint32_t width = p->d->plan.width;
	float *const y = p->d->product + (size_t)item * width;
	float *const room = p->d->act_x + (size_t)item * p->d->act_columns;
	(void)thread;
	if (p->norm)
		p->d->leaf.norm(y, p->norm, width, p->epsilon, room);
	p->d->leaf.add(p->d->buffer[BUFFER_X] + (size_t)item * width, p->norm ? room : y, width);
}

/* X += [post norm](from times w). */
static int project_back(struct device *d, enum ops_buffer from, uint32_t columns,
			const struct weight *w, const struct weight *norm, float epsilon)
{
	const uint32_t width = d->plan.width;
	const int split = d->plan.ranks > 1;
	if (!is_matrix(w, width, columns) || !vector_or_null(norm, width))
		return -ERR_BAD_ARG;
	struct matmul m = {.d = d, .c_count = d->row_count, .product_count = 1};
	rows_enter(&m, from, columns, NULL, 0, w);
	m.product[0] = (struct product){.w = *w, .out = d->product, .stride = width,
					.residual = norm || split ? NULL : d->buffer[BUFFER_X]};
	matmul_run(&m);
	if (split)
		TRY(rows_sum(d, d->product));
	if (norm || split) {
		struct post post = {d, norm ? weight_floats(norm) : NULL, epsilon};
		pool_run(d->pool, post_row, &post, d->row_count);
	}
	return 0;
}

int cpu_output(struct device *d, const struct ops_layer *l)
{
	return project_back(d, BUFFER_A, d->plan.heads * d->plan.head, l->output,
			    l->post_attn_norm, l->epsilon);
}

int cpu_down(struct device *d, const struct ops_layer *l)
{
	return project_back(d, BUFFER_F, d->plan.ff, l->down, l->post_ffn_norm, l->epsilon);
}

int cpu_gate_up(struct device *d, const struct ops_layer *l)
{
	const struct device_plan *p = &d->plan;
	if (!is_matrix(l->gate, p->ff, p->width) || !is_matrix(l->up, p->ff, p->width) ||
	    !is_vector(l->ffn_norm, p->width) || (unsigned)l->gate_kind > GATE_GELU)
		return -ERR_BAD_ARG;
	struct matmul m = {.d = d, .c_count = d->row_count};
	rows_enter(&m, BUFFER_X, p->width, l->ffn_norm, l->epsilon, l->gate);
	product_add(&m, l->gate, NULL, BUFFER_F);
	m.product[0].up = l->up;
	m.product[0].gate = l->gate_kind;
	matmul_run(&m);
	return 0;
}

/* Each rank's columns of the logits, put together on rank 0, which samples. */
static int logits_gather(struct device *d)
{
	const struct device_plan *p = &d->plan;
	const struct collective *c = p->collective;
	const size_t share = p->vocab_share, part = d->sample_count * share;
	TRY(c->gather(c->self, d->logit_part, part * sizeof(float), d->logit_all));
	for (size_t r = 0; p->rank == 0 && r < p->ranks; r++)
		for (uint32_t i = 0; i < d->sample_count; i++) {
			const size_t left = p->vocab - r * share;
			memcpy(d->buffer[BUFFER_LOGITS] + (size_t)i * p->vocab + r * share,
			       d->logit_all + r * part + i * share,
			       (left < share ? left : share) * sizeof(float));
		}
	return 0;
}

int cpu_head(struct device *d, const struct weight *norm, float epsilon,
	     const struct weight *head, float softcap)
{
	const struct device_plan *p = &d->plan;
	const uint32_t rows = plan_vocab_rows(p);
	if (!head || head->columns != p->width || head->rows < rows ||
	    !is_vector(norm, p->width))
		return -ERR_BAD_ARG;
	if (d->sample_count == 0)
		return 0;
	struct entry e = {.d = d,
			  .x = d->buffer[BUFFER_X],
			  .x_stride = p->width,
			  .pick = &d->samples[0].row,
			  .pick_stride = sizeof *d->samples / sizeof(uint32_t),
			  .norm = weight_floats(norm),
			  .epsilon = epsilon,
			  .columns = p->width,
			  .count = d->sample_count};
	struct matmul m = {.d = d, .c_count = d->sample_count};
	m.a = entry_prepare(&e);
	product_add(&m, head, NULL, BUFFER_LOGITS);
	if (p->ranks > 1)
		m.product[0].out = d->logit_part;
	m.product[0].w.rows = rows;
	m.product[0].stride = p->ranks > 1 ? p->vocab_share : p->vocab;
	m.product[0].softcap = softcap;
	matmul_run(&m);
	return p->ranks > 1 ? logits_gather(d) : 0;
}
