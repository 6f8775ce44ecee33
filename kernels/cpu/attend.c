/*
 * RoPE, the writing of pages, and attention over them.
 *
 * Attention is a fold over partitions in ascending order (K2). With many units of work
 * (tiles of rows x KV heads) a thread takes a unit and folds its partitions one after the
 * other, so a unit needs room for two partials however long the context is. With few units
 * (decoding few sequences over a long context) the partitions are computed side by side,
 * stored, and folded after: the same sums in the same order. If the stored partials would
 * not fit their room (PARTIAL_BYTES_MAX), the first way is taken.
 */
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("O3") /* the inner loops are plain, to become vectors */
#endif

#include <math.h>
#include <string.h>

#include "kernels/cpu/device.h"
#include "kernels/cpu/math.h"

static uint32_t least(uint32_t a, uint32_t b)
{
	return a < b ? a : b;
}

static void rope_fill(struct device *d, struct rope_set *set)
{
	const uint32_t pairs = set->dims / 2;
	for (uint32_t i = 0; i < pairs; i++) {
		const double power = -2.0 * i / set->dims;
		d->rope_frequency[i] = set->scale * pow(set->base, power);
		if (set->factors)
			d->rope_frequency[i] /= weight_floats(set->factors)[i];
	}
	for (uint32_t r = 0; r < d->row_count; r++) {
		float *const turns = set->turns + (size_t)r * set->dims;
		for (uint32_t i = 0; i < pairs; i++) {
			const double angle = d->rows[r].position * d->rope_frequency[i];
			turns[i] = (float)cos(angle);
			turns[pairs + i] = (float)sin(angle);
		}
	}
}

/* The turns of the batch's rows for a layer, made once per batch for each set of
   parameters. */
static const struct rope_set *rope_find(struct device *d, const struct ops_layer *l)
{
	for (uint32_t i = 0; i < d->rope_count; i++) {
		const struct rope_set *s = &d->rope[i];
		if (s->base == l->rope_base && s->scale == l->rope_scale &&
		    s->dims == l->rope_dims && s->factors == l->rope_factors)
			return s;
	}
	if (d->rope_count == ROPE_SETS)
		d->rope_count = 0;
	struct rope_set *s = &d->rope[d->rope_count++];
	s->base = l->rope_base;
	s->scale = l->rope_scale;
	s->dims = l->rope_dims;
	s->factors = l->rope_factors;
	rope_fill(d, s);
	return s;
}

/* a' = a cos - b sin, b' = a sin + b cos of a pair. */
static void rope_turn(float *x, const float *restrict turns, uint32_t dims,
		      enum rope_kind kind)
{
	const uint32_t half = dims / 2;
	const float *restrict c = turns, *restrict s = turns + half;
	if (kind == ROPE_HALVES) {
		float *restrict a = x, *restrict b = x + half;
		for (uint32_t i = 0; i < half; i++) {
			const float xa = a[i], xb = b[i];
			a[i] = xa * c[i] - xb * s[i];
			b[i] = xa * s[i] + xb * c[i];
		}
		return;
	}
	for (uint32_t i = 0; i < half; i++) {
		const float xa = x[2 * i], xb = x[2 * i + 1];
		x[2 * i] = xa * c[i] - xb * s[i];
		x[2 * i + 1] = xa * s[i] + xb * c[i];
	}
}

struct rope_job {
	struct device *d;
	const struct ops_layer *l;
	const struct rope_set *set;
};

static void heads_turn(const struct rope_job *j, float *x, uint32_t heads, uint32_t row,
		       const struct weight *norm)
{
	struct device *d = j->d;
	const uint32_t head = d->plan.head;
	const float *turns = j->set->turns + (size_t)row * j->set->dims;
	for (uint32_t h = 0; h < heads; h++, x += head) {
		if (norm)
			d->leaf.norm(x, weight_floats(norm), head, j->l->epsilon, x);
		rope_turn(x, turns, j->set->dims, j->l->rope);
	}
}

static void row_write(const struct rope_job *j, uint32_t row, uint32_t sequence)
{
	struct device *d = j->d;
	const struct device_plan *p = &d->plan;
	const struct ops_sequence *s = &d->sequences[sequence];
	const uint32_t g = j->l->group, at = d->rows[row].position - s->page_position[g];
	const uint32_t page = d->pages[s->page_first[g] + at / p->page_tokens].page;
	const uint32_t token = at % p->page_tokens;
	uint8_t *const base = d->group[g].pages + d->group[g].page_bytes * page;
	const size_t lines = (size_t)kv_group_count(p->head) * p->page_tokens;
	for (uint32_t h = 0; h < p->kv_heads; h++) {
		const size_t from = ((size_t)row * p->kv_heads + h) * p->head;
		const struct page_place at_page = page_place_of(p, g, j->l->layer, h);
		const float *k = d->buffer[BUFFER_K] + from,
			    *v = d->buffer[BUFFER_V] + from;
		float smoothed[HEAD_MAX];
		if (j->l->smooth && p->kv == KV_INT8) {
			for (uint32_t i = 0; i < p->head; i++)
				smoothed[i] = k[i] /
					      weight_floats(j->l->smooth)[h * p->head + i];
			k = smoothed;
		}
		d->leaf.encode_k(p->kv, k, p->head, token, p->page_tokens,
				 base + at_page.block, base + at_page.scales);
		d->leaf.encode_v(p->kv, v, p->head, token, p->page_tokens,
				 base + at_page.block + at_page.block_bytes,
				 base + at_page.scales + lines);
	}
}

static void rope_item(void *argument, uint32_t item, uint32_t thread)
{
	const struct rope_job *j = argument;
	struct device *d = j->d;
	const struct device_plan *p = &d->plan;
	const struct tile *t = &d->tiles[item];
	(void)thread;
	for (uint32_t row = t->row_first; row < t->row_first + t->row_count; row++) {
		heads_turn(j, d->buffer[BUFFER_Q] + (size_t)row * p->heads * p->head,
			   p->heads, row, j->l->q_norm);
		heads_turn(j, d->buffer[BUFFER_K] + (size_t)row * p->kv_heads * p->head,
			   p->kv_heads, row, j->l->k_norm);
		if (row_sound(d, row))
			row_write(j, row, t->sequence);
	}
}

/* The layer's place in the pages, and its vectors. */
static int layer_check(const struct device *d, const struct ops_layer *l)
{
	const struct device_plan *p = &d->plan;
	if (l->group >= p->group_count || l->layer >= p->group[l->group].layers)
		return -ERR_OUT_OF_RANGE;
	if (l->smooth && !is_vector(l->smooth, p->kv_heads * p->head))
		return -ERR_BAD_ARG;
	return 0;
}

int cpu_rope_write(struct device *d, const struct ops_layer *l)
{
	const uint32_t head = d->plan.head;
	TRY(layer_check(d, l));
	if (l->rope_dims > head || l->rope_dims % 2 != 0 ||
	    (unsigned)l->rope > ROPE_HALVES || (l->q_norm && !is_vector(l->q_norm, head)) ||
	    (l->k_norm && !is_vector(l->k_norm, head)) ||
	    (l->rope_factors && !is_vector(l->rope_factors, l->rope_dims / 2)))
		return -ERR_BAD_ARG;
	struct rope_job j = {d, l, rope_find(d, l)};
	pool_run(d->pool, rope_item, &j, d->tile_count);
	return 0;
}

/* A partial: maximum, sum and weighted values of each query vector of a unit. */
struct partial {
	float *m, *l, *o;
};

static struct partial partial_at(float *memory, uint32_t vectors)
{
	return (struct partial){memory, memory + vectors, memory + 2 * vectors};
}

struct attend_all {
	struct device *d;
	const struct ops_layer *l;
	uint32_t shared;     /* query heads of a KV head */
	uint32_t partitions; /* stored side by side; 0: folded in turn */
	uint32_t rows;       /* of the largest tile: what a stored partial has room for */
	uint32_t units;
};

/* A unit of attention: a tile of rows, one KV head. */
struct unit {
	const struct tile *tile;
	uint32_t kv_head, vectors;
	uint32_t first, last; /* partitions that any row sees */
};

static uint32_t position_first(const struct ops_layer *l, const struct ops_sequence *s,
			       uint32_t position)
{
	const uint32_t window = l->window && position + 1 > l->window ? position + 1 - l->window : 0;
	return window > s->position_first ? window : s->position_first;
}

static struct unit unit_of(const struct attend_all *a, uint32_t index)
{
	const struct device *d = a->d;
	const struct tile *t = &d->tiles[index / d->plan.kv_heads];
	const uint32_t low = d->rows[t->row_first].position;
	return (struct unit){t, index % d->plan.kv_heads, t->row_count * a->shared,
			     position_first(a->l, &d->sequences[t->sequence], low) / OPS_PARTITION,
			     (low + t->row_count - 1) / OPS_PARTITION};
}

/* The unit's queries, smoothed and scaled, into the thread's room. */
static void queries_scale(const struct attend_all *a, const struct unit *u, float *out)
{
	const struct device *d = a->d;
	const uint32_t head = d->plan.head, n = a->shared * head;
	const float *smooth = a->l->smooth && d->plan.kv == KV_INT8
				      ? weight_floats(a->l->smooth) + u->kv_head * head
				      : NULL;
	for (uint32_t i = 0; i < u->tile->row_count; i++) {
		const float *q = d->buffer[BUFFER_Q] +
				 ((size_t)(u->tile->row_first + i) * d->plan.heads +
				  u->kv_head * a->shared) * head;
		for (uint32_t k = 0; k < n; k++, out++)
			*out = (smooth ? q[k] * smooth[k % head] : q[k]) *
			       a->l->attention_scale;
	}
}

/* Where the K block of a partition's page i lies, and in *scales its scales. Where the partition begins
   before the sequence's first page its place is taken by that page: no row sees those positions. */
static const uint8_t *page_find(const struct attend_all *a, const struct unit *u, uint32_t partition,
				uint32_t i, const struct page_place *at, const uint8_t **scales)
{
	const struct device *d = a->d;
	const uint32_t tokens = d->plan.page_tokens, position = partition * OPS_PARTITION + i * tokens;
	const struct ops_sequence *s = &d->sequences[u->tile->sequence];
	const struct group *g = &d->group[a->l->group];
	const uint32_t first = s->page_position[a->l->group];
	const uint32_t index = position < first ? 0 : (position - first) / tokens;
	const uint32_t page = d->pages[s->page_first[a->l->group] + index].page;
	const uint8_t *const base = g->pages + g->page_bytes * page;
	*scales = base + at->scales;
	return base + at->block;
}

/* Positions of the partition that exist for the unit. */
static uint32_t partition_tokens(const struct attend_all *a, const struct unit *u, uint32_t partition)
{
	return least(a->d->rows[u->tile->row_first].position + u->tile->row_count -
			     partition * OPS_PARTITION,
		     OPS_PARTITION);
}

enum { PARTITION_PAGES = OPS_PARTITION / 16 };

/* The pages of one partition, into the thread's room. */
static void pages_set(const struct attend_all *a, const struct unit *u, uint32_t partition,
		      struct attend_job *job, const uint8_t **pages)
{
	const struct device_plan *p = &a->d->plan;
	const struct page_place at = page_place_of(p, a->l->group, a->l->layer, u->kv_head);
	const uint32_t count = (job->token_count + p->page_tokens - 1) / p->page_tokens;
	const uint8_t **const scales = pages + PARTITION_PAGES;
	for (uint32_t i = 0; i < count; i++)
		pages[i] = page_find(a, u, partition, i, &at, &scales[i]);
	job->pages = pages;
	job->scales = scales;
	job->v_offset = at.block_bytes;
}

/* A partition of a unit. */
struct part {
	const struct unit *unit; /* NULL: none */
	uint32_t index;
};

/* The pages of what this thread is likely to do after the job, where few rows share what is fetched. */
static void next_set(const struct attend_all *a, struct part next, struct attend_job *job,
		     const uint8_t **pages)
{
	const struct device_plan *p = &a->d->plan;
	const uint8_t *scales;
	if (!next.unit || job->rows > 1 || next.unit->tile->row_count > 1 ||
	    !row_sound(a->d, next.unit->tile->row_first))
		return;
	const struct page_place at = page_place_of(p, a->l->group, a->l->layer, next.unit->kv_head);
	job->next_count = partition_tokens(a, next.unit, next.index);
	for (uint32_t i = 0; i * p->page_tokens < job->next_count; i++)
		pages[i] = page_find(a, next.unit, next.index, i, &at, &scales);
	job->next = pages;
}

static void partition_attend(const struct attend_all *a, const struct unit *u,
			     uint32_t partition, uint32_t thread, const float *q,
			     struct partial out, struct part next)
{
	struct device *d = a->d;
	const uint32_t base = partition * OPS_PARTITION, head = d->plan.head;
	const uint32_t low = d->rows[u->tile->row_first].position;
	uint32_t from[TILE_ROWS], to[TILE_ROWS];
	for (uint32_t i = 0; i < u->tile->row_count; i++) {
		const uint32_t first =
			position_first(a->l, &d->sequences[u->tile->sequence], low + i);
		from[i] = first > base ? least(first - base, OPS_PARTITION) : 0;
		to[i] = least(low + i + 1 - base, OPS_PARTITION);
	}
	float *const room = d->thread_room + thread * d->thread_floats;
	struct attend_job job = {
		.kv = d->plan.kv, .head = head, .page_tokens = d->plan.page_tokens,
		.token_count = partition_tokens(a, u, partition),
		.q = q, .q_row_stride = (size_t)a->shared * head,
		.rows = u->tile->row_count, .heads = a->shared, .from = from, .to = to,
		.softcap = a->l->attention_softcap, .m = out.m, .l = out.l, .o = out.o,
		.scratch = room + d->thread_floats - d->attend_floats};
	const uint8_t **const pages = d->page_room + (size_t)thread * PAGE_ROOMS * PARTITION_PAGES;
	pages_set(a, u, partition, &job, pages);
	next_set(a, next, &job, pages + 2 * PARTITION_PAGES);
	d->leaf.attend(&job);
}

/* to = to merged with from, which is of later positions. What saw nothing
   changes nothing. */
static void partial_merge(struct partial to, struct partial from, uint32_t vectors,
			  uint32_t head)
{
	for (uint32_t x = 0; x < vectors; x++, to.o += head, from.o += head) {
		if (from.m[x] == -INFINITY)
			continue;
		const float m = to.m[x] > from.m[x] ? to.m[x] : from.m[x];
		const float a = exp_f32(to.m[x] - m), b = exp_f32(from.m[x] - m);
		to.m[x] = m;
		to.l[x] = to.l[x] * a + from.l[x] * b;
		for (uint32_t i = 0; i < head; i++)
			to.o[i] = to.o[i] * a + from.o[i] * b;
	}
}

static void unit_finish(const struct attend_all *a, const struct unit *u, struct partial p)
{
	struct device *d = a->d;
	const uint32_t head = d->plan.head;
	for (uint32_t x = 0; x < u->vectors; x++) {
		const size_t row = u->tile->row_first + x / a->shared;
		float *const out = d->buffer[BUFFER_A] + (row * d->plan.heads +
				   u->kv_head * a->shared + x % a->shared) * head;
		const float scale = p.l[x] > 0 ? 1.0f / p.l[x] : 0.0f;
		for (uint32_t i = 0; i < head; i++)
			out[i] = p.o[(size_t)x * head + i] * scale;
	}
}

/* A sequence at fault gets zeros: nothing of a page, and nothing of an earlier batch. */
static int unit_refuse(const struct attend_all *a, const struct unit *u)
{
	if (row_sound(a->d, u->tile->row_first))
		return 0;
	const uint32_t n = a->shared * a->d->plan.head;
	for (uint32_t i = 0; i < u->tile->row_count; i++)
		memset(a->d->buffer[BUFFER_A] +
			       ((size_t)(u->tile->row_first + i) * a->d->plan.kv_heads +
				u->kv_head) *
				       n,
		       0, n * sizeof(float));
	return 1;
}

static void unit_item(void *argument, uint32_t item, uint32_t thread)
{
	const struct attend_all *a = argument;
	const struct unit u = unit_of(a, item);
	if (unit_refuse(a, &u))
		return;
	const uint32_t head = a->d->plan.head, size = u.vectors * (head + 2);
	float *const q = a->d->thread_room + thread * a->d->thread_floats;
	const struct partial all = partial_at(q + u.vectors * head, u.vectors);
	const struct partial one = partial_at(q + u.vectors * head + size, u.vectors);
	/* The other threads take the items between. */
	const uint32_t then = item + a->d->threads;
	const struct unit after = unit_of(a, then < a->units ? then : item);
	const struct part end = {then < a->units ? &after : NULL, after.first};
	queries_scale(a, &u, q);
	for (uint32_t i = u.first; i <= u.last; i++) {
		const struct part next = {&u, i + 1};
		partition_attend(a, &u, i, thread, q, i == u.first ? all : one, i < u.last ? next : end);
		if (i > u.first)
			partial_merge(all, one, u.vectors, head);
	}
	unit_finish(a, &u, all);
}

static struct partial stored(const struct attend_all *a, uint32_t unit, uint32_t index,
			     uint32_t vectors)
{
	const size_t size = (size_t)a->rows * a->shared * (a->d->plan.head + 2);
	return partial_at(a->d->partials + ((size_t)unit * a->partitions + index) * size,
			  vectors);
}

static void partition_item(void *argument, uint32_t item, uint32_t thread)
{
	const struct attend_all *a = argument;
	const uint32_t unit = item / a->partitions, index = item % a->partitions;
	const struct unit u = unit_of(a, unit);
	if (u.first + index > u.last || !row_sound(a->d, u.tile->row_first))
		return;
	float *const q = a->d->thread_room + thread * a->d->thread_floats;
	const uint32_t then = item + a->d->threads, then_unit = then / a->partitions;
	const struct unit after = unit_of(a, then_unit < a->units ? then_unit : unit);
	const uint32_t then_index = after.first + then % a->partitions;
	const struct part next = {then_unit < a->units && then_index <= after.last ? &after : NULL,
				  then_index};
	queries_scale(a, &u, q);
	partition_attend(a, &u, u.first + index, thread, q, stored(a, unit, index, u.vectors), next);
}

static void fold_units(const struct attend_all *a, uint32_t count)
{
	for (uint32_t i = 0; i < count; i++) {
		const struct unit u = unit_of(a, i);
		if (unit_refuse(a, &u))
			continue;
		const struct partial all = stored(a, i, 0, u.vectors);
		for (uint32_t k = 1; k <= u.last - u.first; k++)
			partial_merge(all, stored(a, i, k, u.vectors), u.vectors,
				      a->d->plan.head);
		unit_finish(a, &u, all);
	}
}

/* The pages must reach back to the first position that the layer's window shows. */
static int windows_check(const struct device *d, const struct ops_layer *l)
{
	for (uint32_t i = 0; i < d->sequence_count; i++) {
		const struct ops_sequence *s = &d->sequences[i];
		if (s->page_position[l->group] >
		    position_first(l, s, d->rows[s->row_first].position))
			return -ERR_OUT_OF_RANGE;
	}
	return 0;
}

int cpu_attend(struct device *d, const struct ops_layer *l)
{
	TRY(layer_check(d, l));
	TRY(windows_check(d, l));
	const uint32_t units = d->tile_count * d->plan.kv_heads;
	struct attend_all a = {d, l, d->plan.heads / d->plan.kv_heads, 0, 0, units};
	uint32_t most = 1;
	for (uint32_t i = 0; i < d->tile_count; i++) {
		const struct unit u = unit_of(&a, i * d->plan.kv_heads);
		most = u.last - u.first + 1 > most ? u.last - u.first + 1 : most;
		a.rows = u.tile->row_count > a.rows ? u.tile->row_count : a.rows;
	}
	if (d->threads > 1 && most > 1 && units < 4 * d->threads &&
	    (size_t)units * most * a.rows * a.shared <= d->partial_count)
		a.partitions = most;
	if (a.partitions == 0) {
		pool_run(d->pool, unit_item, &a, units);
		return 0;
	}
	pool_run(d->pool, partition_item, &a, units * a.partitions);
	fold_units(&a, units);
	return 0;
}
