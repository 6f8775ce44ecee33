/*
 * The step: the batch goes up, its operations are written down, checked as the CPU checks them,
 * launched together, and waited for once.
 */
#include <math.h>
#include <string.h>

#include "kernels/cuda/device.h"
#include "kernels/cuda/pack.h"

/* ---- the batch ---- */

static uint32_t up_to_8(uint32_t x)
{
	return (x + 7) / 8 * 8;
}

size_t step_block_bytes(const struct device_plan *p)
{
	return STEP_BYTES + (batch_bytes_max(p) + 15) / 16 * 16 + (size_t)p->rows_max * sizeof(struct unit) +
	       (p->prefill == PREFILL_SAME ? 0 : (size_t)p->rows_max * sizeof(uint32_t));
}

/* Lists of the rows by phase, behind the units. */
static void phases_make(const struct device_plan *p, struct step *s, uint8_t *base, uint32_t at)
{
	const struct ops_row *rows = STEP_ROWS(base);
	if (p->prefill == PREFILL_SAME)
		return;
	for (uint32_t phase = 0; phase < 2; phase++) {
		s->phase_at[phase] = at;
		for (uint32_t i = 0; i < s->row_count; i++) {
			if ((rows[i].phase != 0) != (phase != 0))
				continue;
			memcpy(base + STEP_BYTES + at, &i, sizeof i);
			at += sizeof i;
			s->phase_count[phase]++;
		}
	}
}

/* The kernel that takes a sequence's rows, and how many of them at once. Which one depends on the plan
   alone, never on the row's company (see attend_tile.cu for what that may do), nor on its phase: a
   token that was sampled once comes as a given one when it is computed again, and must give the same
   bits. */
static enum unit_kind unit_next(const struct device *d, uint32_t left, uint32_t *count)
{
	const struct device_plan *p = &d->plan;
	const uint32_t group = p->heads / p->kv_heads;
	*count = 1;
	if (p->kv == KV_F32 || group > GROUP_HEADS_MAX || (p->head > TILE_HEAD_MAX && group > 8) ||
	    p->exact)
		return UNIT_ROW;
	const uint32_t most = attend_vectors(UNIT_LARGE, group) / group;
	if (p->head <= TILE_HEAD_MAX)
		*count = left < most ? left : most;
	return *count == 1 ? UNIT_SMALL : UNIT_LARGE;
}

static void units_make(struct device *d, struct step *s, uint8_t *base)
{
	const struct ops_row *rows = STEP_ROWS(base);
	const struct ops_sequence *sequences = STEP_SEQUENCES(base);
	const uint32_t first = (uint32_t)((batch_bytes_max(&d->plan) + 15) / 16 * 16);
	uint32_t at = first;
	d->partitions = 1;
	for (uint32_t kind = 0; kind < UNIT_KINDS; kind++) {
		s->unit_at[kind] = at;
		s->unit_count[kind] = 0;
		for (uint32_t i = 0; i < s->sequence_count; i++) {
			const struct ops_sequence *q = &sequences[i];
			for (uint32_t row = 0, count; row < q->row_count; row += count) {
				const uint32_t r = q->row_first + row;
				if ((uint32_t)unit_next(d, q->row_count - row, &count) != kind)
					continue;
				const struct unit u = {i, r, count, rows[r].position};
				memcpy(base + STEP_BYTES + at, &u, sizeof u);
				at += sizeof u;
				s->unit_count[kind]++;
				const uint32_t last = (u.position + count - 1) / OPS_PARTITION;
				d->partitions = last + 1 > d->partitions ? last + 1 : d->partitions;
			}
		}
		d->units[kind] = s->unit_count[kind];
	}
	phases_make(&d->plan, s, base, at);
}

int cuda_batch(struct device *d, const struct ops_batch *block)
{
	if (d->lost)
		return -ERR_INTERNAL;
	uint8_t *const base = d->staging[1];
	TRY(batch_take(&d->plan, block, base + STEP_BYTES));
	/* What is under way may still read the room that becomes the next one. */
	TRY(step_settle(d));
	const struct ops_batch *b = reinterpret_cast<const struct ops_batch *>(base + STEP_BYTES);
	struct step *const s = reinterpret_cast<struct step *>(base);
	memset(s, 0, sizeof *s);
	s->row_count = b->row_count;
	s->sequence_count = b->sequence_count;
	s->page_count = b->page_count;
	s->sample_count = b->sample_count;
	s->row_at = b->row_at;
	s->sequence_at = b->sequence_at;
	s->page_at = b->page_at;
	s->sample_at = b->sample_at;
	units_make(d, s, base);
	d->staging[1] = d->staging[0];
	d->staging[0] = base;
	for (struct rope_set &r : d->rope)
		r.used = false;
	d->copied_down = false;
	d->fresh = true;
	/* The block, then the units and lists behind the room of the largest block. */
	const size_t used = STEP_BYTES + up_to_8(b->bytes);
	const size_t units_at = STEP_BYTES + s->unit_at[0];
	CUDA_TRY(d, cudaMemcpyAsync(d->block, base, used, cudaMemcpyHostToDevice, d->step));
	const size_t lists = (size_t)(s->phase_count[0] + s->phase_count[1]) * sizeof(uint32_t);
	const size_t behind = s->row_count * sizeof(struct unit) + lists;
	CUDA_TRY(d, cudaMemcpyAsync(d->block + units_at, base + units_at, behind, cudaMemcpyHostToDevice,
				    d->step));
	CUDA_TRY(d, cudaMemcpyAsync(d->faults, d->faults_none, s->sequence_count * sizeof *d->faults,
				    cudaMemcpyHostToDevice, d->step));
	if (s->sample_count)
		CUDA_TRY(d, cudaMemcpyAsync(d->sampled, d->sampled_none, s->sample_count * sizeof *d->sampled,
					    cudaMemcpyHostToDevice, d->step));
	return 0;
}

/* ---- operations, written down ---- */

static int is_vector(const struct weight *w, uint32_t columns)
{
	return w && w->vector && w->m.columns == columns;
}

static int vector_or_null(const struct weight *w, uint32_t columns)
{
	return !w || is_vector(w, columns);
}

static int is_matrix(const struct weight *w, uint32_t rows, uint32_t columns)
{
	return w && !w->vector && w->m.rows == rows && w->m.columns == columns;
}

static int call_add(struct device *d, const struct call *c)
{
	if (d->lost)
		return -ERR_INTERNAL;
	if (d->call_count == d->call_max)
		TRY(step_flush(d)); /* an unusual program: it goes on without a graph */
	d->calls[d->call_count++] = *c;
	return 0;
}

static struct call call_of(enum call_kind kind, const struct ops_layer *layer)
{
	struct call c;
	memset(&c, 0, sizeof c);
	c.kind = kind;
	if (layer)
		memcpy(&c.layer, layer, sizeof c.layer);
	return c;
}

int cuda_tag_check(struct device *d)
{
	const struct call c = call_of(CALL_TAGS, NULL);
	return call_add(d, &c);
}

int cuda_tag_skip(struct device *d)
{
	return d->lost ? -ERR_INTERNAL : 0;
}

int cuda_embed(struct device *d, const struct weight *embedding, float scale)
{
	const struct step *s = step_now(d);
	const struct device_plan *p = &d->plan;
	if (!embedding || embedding->vector || embedding->m.columns != p->width ||
	    (p->ranks > 1 && embedding->m.rows < plan_vocab_rows(p)))
		return -ERR_BAD_ARG;
	for (uint32_t i = 0; i < s->row_count; i++)
		if (STEP_ROWS(d->staging[0])[i].token >= (p->ranks > 1 ? p->vocab : embedding->m.rows))
			return -ERR_OUT_OF_RANGE;
	struct call c = call_of(CALL_EMBED, NULL);
	c.first = embedding;
	c.x = scale;
	return call_add(d, &c);
}

int cuda_qkv(struct device *d, const struct ops_layer *l)
{
	const struct device_plan *p = &d->plan;
	const uint32_t queries = p->heads * p->head, kv = p->kv_heads * p->head;
	if (!is_matrix(l->q, queries, p->width) || !is_matrix(l->k, kv, p->width) ||
	    !is_matrix(l->v, kv, p->width) || !is_vector(l->attn_norm, p->width) ||
	    !vector_or_null(l->q_bias, queries) || !vector_or_null(l->k_bias, kv) ||
	    !vector_or_null(l->v_bias, kv))
		return -ERR_BAD_ARG;
	const struct call c = call_of(CALL_QKV, l);
	return call_add(d, &c);
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

/* The set of a layer's rotary parameters; a new one's frequencies go up. */
static int rope_find(struct device *d, const struct ops_layer *l, uint32_t *index)
{
	uint32_t free_one = ROPE_SETS;
	for (uint32_t i = 0; i < ROPE_SETS; i++) {
		const struct rope_set *s = &d->rope[i];
		if (s->dims == l->rope_dims && s->dims && s->base == l->rope_base &&
		    s->scale == l->rope_scale && s->factors == l->rope_factors) {
			*index = i;
			return 0;
		}
		if (!s->dims && free_one == ROPE_SETS)
			free_one = i;
	}
	/* None is free: one that this batch does not use, or after all that uses it. */
	for (uint32_t i = 0; i < ROPE_SETS && free_one == ROPE_SETS; i++)
		if (!d->rope[i].used)
			free_one = i;
	struct rope_set *const s = &d->rope[*index = free_one == ROPE_SETS ? 0 : free_one];
	if (s->dims) { /* what is under way reads it, and so do graphs */
		TRY(step_settle(d));
		graphs_drop(d);
	}
	s->base = l->rope_base;
	s->scale = l->rope_scale;
	s->dims = l->rope_dims;
	s->factors = l->rope_factors;
	s->used = false;
	for (uint32_t i = 0; i < s->dims / 2; i++) {
		s->host[i] = s->scale * pow(s->base, -2.0 * i / s->dims);
		if (s->factors)
			s->host[i] /= s->factors->host[i];
	}
	CUDA_TRY(d, cudaMemcpyAsync(s->frequency, s->host, s->dims / 2 * sizeof *s->host,
				    cudaMemcpyHostToDevice, d->step));
	return 0;
}

int cuda_rope_write(struct device *d, const struct ops_layer *l)
{
	const uint32_t head = d->plan.head;
	TRY(layer_check(d, l));
	if (l->rope_dims > head || l->rope_dims % 2 != 0 || (unsigned)l->rope > ROPE_HALVES ||
	    !vector_or_null(l->q_norm, head) || !vector_or_null(l->k_norm, head) ||
	    !vector_or_null(l->rope_factors, l->rope_dims / 2))
		return -ERR_BAD_ARG;
	struct call c = call_of(CALL_ROPE, l);
	if (l->rope_dims == 0) /* nothing turns */
		return call_add(d, &c);
	TRY(rope_find(d, l, &c.rope));
	if (!d->rope[c.rope].used) {
		struct call turns = call_of(CALL_TURNS, NULL);
		turns.rope = c.rope;
		TRY(call_add(d, &turns));
		d->rope[c.rope].used = true;
	}
	return call_add(d, &c);
}

/* The pages must reach back to the first position that the layer's window shows. */
int cuda_attend(struct device *d, const struct ops_layer *l)
{
	const struct step *s = step_now(d);
	TRY(layer_check(d, l));
	for (uint32_t i = 0; i < s->sequence_count; i++) {
		const struct ops_sequence *q = &STEP_SEQUENCES(d->staging[0])[i];
		const uint32_t position = STEP_ROWS(d->staging[0])[q->row_first].position;
		uint32_t first = l->window && position + 1 > l->window ? position + 1 - l->window : 0;
		first = first > q->position_first ? first : q->position_first;
		if (q->page_position[l->group] > first)
			return -ERR_OUT_OF_RANGE;
	}
	const struct call c = call_of(CALL_ATTEND, l);
	return call_add(d, &c);
}

int cuda_output(struct device *d, const struct ops_layer *l)
{
	const struct device_plan *p = &d->plan;
	if (!is_matrix(l->output, p->width, p->heads * p->head) || !vector_or_null(l->post_attn_norm, p->width))
		return -ERR_BAD_ARG;
	const struct call c = call_of(CALL_OUTPUT, l);
	return call_add(d, &c);
}

int cuda_gate_up(struct device *d, const struct ops_layer *l)
{
	const struct device_plan *p = &d->plan;
	if (!is_matrix(l->gate, p->ff, p->width) || !is_matrix(l->up, p->ff, p->width) ||
	    !is_vector(l->ffn_norm, p->width) || (unsigned)l->gate_kind > GATE_GELU)
		return -ERR_BAD_ARG;
	const struct call c = call_of(CALL_GATE_UP, l);
	return call_add(d, &c);
}

int cuda_down(struct device *d, const struct ops_layer *l)
{
	const struct device_plan *p = &d->plan;
	if (!is_matrix(l->down, p->width, p->ff) || !vector_or_null(l->post_ffn_norm, p->width))
		return -ERR_BAD_ARG;
	const struct call c = call_of(CALL_DOWN, l);
	return call_add(d, &c);
}

int cuda_head(struct device *d, const struct weight *norm, float epsilon, const struct weight *head,
	      float softcap)
{
	const struct device_plan *p = &d->plan;
	if (!head || head->vector || head->m.columns != p->width || head->m.rows < plan_vocab_rows(p) ||
	    !is_vector(norm, p->width))
		return -ERR_BAD_ARG;
	if (step_now(d)->sample_count == 0)
		return 0;
	struct call c = call_of(CALL_HEAD, NULL);
	c.first = norm;
	c.second = head;
	c.x = epsilon;
	c.y = softcap;
	return call_add(d, &c);
}

int cuda_sample(struct device *d)
{
	if (step_now(d)->sample_count == 0 || d->plan.rank > 0)
		return d->lost ? -ERR_INTERNAL : 0;
	const struct call c = call_of(CALL_SAMPLE, NULL);
	return call_add(d, &c);
}
