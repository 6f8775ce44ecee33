/*
 * What was written down, launched: each operation's kernels with the grids of the step's bucket, as a
 * graph where one serves; and the one wait.
 */
#include <stdio.h>
#include <string.h>

#include "kernels/cuda/device.h"
#include "kernels/cuda/pack.h"

/* A bucket: counts rounded up, so that few graphs serve all steps. */
struct bucket {
	uint32_t rows, samples, sequences, units[UNIT_KINDS], partitions, phases[2];
};

static uint32_t rounded(uint32_t x, uint32_t most)
{
	uint32_t power = 1;
	while (power < x)
		power *= 2;
	return x == 0 ? 0 : power < most ? power : most;
}

static struct bucket bucket_of(const struct device *d)
{
	const struct device_plan *p = &d->plan;
	const struct step *s = step_now(d);
	struct bucket b;
	b.rows = rounded(s->row_count, p->rows_max);
	b.samples = rounded(s->sample_count, p->samples_max);
	b.sequences = rounded(s->sequence_count, p->sequences_max);
	for (uint32_t kind = 0; kind < UNIT_KINDS; kind++)
		b.units[kind] = rounded(d->units[kind], p->rows_max);
	for (uint32_t phase = 0; phase < 2; phase++)
		b.phases[phase] = rounded(s->phase_count[phase], p->rows_max);
	b.partitions = rounded(d->partitions, (p->context + OPS_PARTITION - 1) / OPS_PARTITION);
	return b;
}

/* The precision in which a matrix's activations enter. A block has 32 columns; what is not made of
   blocks takes them as they are. */
static enum act_kind act_of(const struct device *d, const struct matrix *m)
{
	if (d->act != ACT_I8_BLOCK)
		return d->act;
	return m->columns % 32 != 0 ? ACT_F32 : ACT_I8_BLOCK;
}

struct run {
	struct device *d;
	const struct bucket *b;
	const struct ops_layer *l;
};

static uint32_t bucket_rows(const struct bucket *b, enum row_set set)
{
	return set == ROWS_ALL ? b->rows : set == ROWS_SAMPLED ? b->samples : b->phases[set - ROWS_GIVEN];
}

/* The rows that enter a product, normed or not. */
struct entry {
	const float *x;
	uint32_t columns;
	const struct weight *norm;
	float epsilon;
};

static struct enter_args entry_args(const struct device *d, const struct entry *e, enum row_set set)
{
	struct enter_args a;
	memset(&a, 0, sizeof a);
	a.step = d->block;
	a.x = e->x;
	a.columns = e->columns;
	a.rows = set;
	a.norm = e->norm ? e->norm->vector : NULL;
	a.epsilon = e->epsilon;
	a.to = d->enter;
	return a;
}

static struct product product_of(const struct weight *w, const struct weight *bias, float *out)
{
	const struct product p = {w->m, w->copy, bias ? bias->vector : NULL, out, NULL, w->m.rows, 0};
	return p;
}

/* The products of one entry: those of one form together, each form by a launch of its own. Where two
   forms take activations in different precision, both are made in turn. */
static void products_set_run(const struct run *r, const struct product *list, uint32_t count,
			     const struct entry *e, enum row_set set)
{
	struct device *d = r->d;
	const uint32_t rows = bucket_rows(r->b, set);
	int entered = -1;
	for (uint32_t done = 0; rows > 0 && done < count;) {
		const enum act_kind kind = act_of(d, &list[done].w);
		struct matmul_args a;
		memset(&a, 0, sizeof a);
		a.step = d->block;
		a.act = d->enter;
		a.rows = set;
		while (done < count && a.product_count < PRODUCTS_MAX &&
		       (a.product_count == 0 || (list[done].w.form == a.product[0].w.form &&
						 act_of(d, &list[done].w) == kind)))
			a.product[a.product_count++] = list[done++];
		const uint32_t floats = kind == ACT_I8_BLOCK && form_is_float((int)a.product[0].w.form);
		if (entered != (int)(2 * kind + floats)) {
			struct enter_args enter = entry_args(d, e, set);
			enter.kind = (uint32_t)kind;
			enter.floats = floats;
			enter_launch(&enter, rows, d->step);
		}
		entered = (int)(2 * kind + floats);
		matmul_launch(&a, kind, rows, d->step);
	}
}

/* Given tokens, with the copies: a library's sums where it has the shape, else own kernels. */
static void products_given_run(const struct run *r, const struct product *list, uint32_t count,
			       const struct entry *e)
{
	struct device *d = r->d;
	const uint32_t rows = r->b->phases[0];
	struct enter_args enter = entry_args(d, e, ROWS_GIVEN);
	struct given_args a;
	if (rows == 0)
		return;
	enter.kind = ACT_F32;
	enter.given = d->plan.prefill;
	enter.bytes = d->given_x;
	enter.scales = d->given_scales;
	enter_launch(&enter, rows, d->step);
	memset(&a, 0, sizeof a);
	a.step = d->block;
	a.x = d->given_x;
	a.scales = d->given_scales;
	a.sums = d->given_sums;
	a.columns = e->columns;
	a.kind = d->plan.prefill;
	for (uint32_t i = 0; i < count; i++) {
		if (!blas_run(d, &list[i], d->given_x, rows, d->given_sums)) {
			a.product[a.product_count++] = list[i];
			continue;
		}
		struct given_args one = a;
		one.product_count = 1;
		one.product[0] = list[i];
		given_finish_launch(&one, rows, d->step);
	}
	if (a.product_count)
		given_launch(&a, rows, d->step);
}

/* Those of one entry have equal columns, so all have a copy for given tokens, or none. */
static void products_run(const struct run *r, const struct product *list, uint32_t count,
			 const struct entry *e, enum row_set set)
{
	if (set != ROWS_ALL || !list[0].copy.data) {
		products_set_run(r, list, count, e, set);
		return;
	}
	products_given_run(r, list, count, e);
	products_set_run(r, list, count, e, ROWS_LATER);
}

static void qkv_run(const struct run *r)
{
	struct device *d = r->d;
	const struct entry e = {d->buffer[BUFFER_X], d->plan.width, r->l->attn_norm, r->l->epsilon};
	const struct product list[3] = {product_of(r->l->q, r->l->q_bias, d->buffer[BUFFER_Q]),
				  product_of(r->l->k, r->l->k_bias, d->buffer[BUFFER_K]),
				  product_of(r->l->v, r->l->v_bias, d->buffer[BUFFER_V])};
	products_run(r, list, 3, &e, ROWS_ALL);
}

static void turns_run(const struct run *r, const struct rope_set *set)
{
	const struct turns_args a = {r->d->block, set->frequency, set->dims, set->turns};
	if (set->dims)
		turns_launch(&a, r->b->rows, r->d->step);
}

static void rope_run(const struct run *r, const struct rope_set *set)
{
	struct device *d = r->d;
	const struct device_plan *p = &d->plan;
	const struct ops_layer *l = r->l;
	const struct page_place at = page_place_of(p, l->group, l->layer, 0);
	const struct rope_args a = {
		d->block, d->buffer[BUFFER_Q], d->buffer[BUFFER_K], d->buffer[BUFFER_V], set->turns,
		l->q_norm ? l->q_norm->vector : NULL, l->k_norm ? l->k_norm->vector : NULL,
		l->smooth ? l->smooth->vector : NULL, d->faults, d->group[l->group].pages,
		d->group[l->group].page_bytes, at.block, at.block_bytes, at.scales, l->epsilon, p->heads,
		p->kv_heads, p->head, l->rope_dims, (uint32_t)l->rope, (uint32_t)p->kv, p->page_tokens, l->group};
	rope_launch(&a, r->b->rows, d->step);
}

static void attend_run(const struct run *r)
{
	struct device *d = r->d;
	const struct device_plan *p = &d->plan;
	const struct ops_layer *l = r->l;
	const struct page_place at = page_place_of(p, l->group, l->layer, 0);
	for (uint32_t kind = 0; kind < UNIT_KINDS; kind++) {
		const struct grid_of grid = {r->b->rows, r->b->units[kind], r->b->partitions};
		if (grid.units == 0)
			continue;
		const size_t floats = (size_t)grid.units * p->kv_heads * grid.partitions *
				      attend_vectors(kind, p->heads / p->kv_heads) * (p->head + 2);
		/* Side by side where there is room for the partials; else one after the other. */
		const bool stored = grid.partitions > 1 && floats <= d->partial_floats;
		const struct attend_args a = {
			d->block, d->buffer[BUFFER_Q], d->buffer[BUFFER_A], stored ? d->partials : NULL,
			grid.partitions, l->smooth ? l->smooth->vector : NULL, d->faults,
			d->group[l->group].pages, d->group[l->group].page_bytes, at.block, at.block_bytes,
			at.scales, l->attention_scale, l->attention_softcap, p->heads, p->kv_heads, p->head,
			p->page_tokens, l->group, l->window, (uint32_t)p->kv, kind};
		attend_launch(&a, p->kv, &grid, d->step);
	}
}

/* X += [post norm](from times w). */
static void project_back(const struct run *r, const float *from, uint32_t columns, const struct weight *w,
			 const struct weight *norm)
{
	struct device *d = r->d;
	struct product p = product_of(w, NULL, d->product);
	const bool split = d->plan.ranks > 1;
	p.residual = norm || split ? NULL : d->buffer[BUFFER_X];
	const struct entry e = {from, columns, NULL, 0};
	products_run(r, &p, 1, &e, ROWS_ALL);
	if (split)
		ranks_sum_run(d, d->product, (size_t)r->b->rows * d->plan.width);
	if (!norm && !split)
		return;
	const struct post_args a = {d->block, d->product, norm ? norm->vector : NULL, r->l->epsilon,
				    d->plan.width, d->buffer[BUFFER_X]};
	post_launch(&a, r->b->rows, d->step);
}

static void gate_run(const struct run *r)
{
	struct device *d = r->d;
	const struct entry e = {d->buffer[BUFFER_X], d->plan.width, r->l->ffn_norm, r->l->epsilon};
	const struct entry gated = {d->buffer[BUFFER_F], d->plan.ff, NULL, 0};
	const struct product list[2] = {product_of(r->l->gate, NULL, d->buffer[BUFFER_F]),
				  product_of(r->l->up, NULL, d->up)};
	products_run(r, list, 2, &e, ROWS_ALL);
	struct enter_args a = entry_args(d, &gated, ROWS_ALL);
	a.up = d->up;
	a.gate = (uint32_t)r->l->gate_kind;
	a.kind = ACT_AUTO;
	enter_launch(&a, r->b->rows, d->step);
}

static void head_run(const struct run *r, const struct call *c)
{
	struct device *d = r->d;
	struct product p = product_of(c->second, NULL, d->buffer[BUFFER_LOGITS]);
	p.w.rows = p.stride = plan_vocab_rows(&d->plan);
	p.softcap = c->y;
	if (d->plan.ranks > 1) {
		p.out = d->rank_part;
		p.stride = d->plan.vocab_share;
	}
	const struct entry e = {d->buffer[BUFFER_X], d->plan.width, c->first, c->x};
	products_run(r, &p, 1, &e, ROWS_SAMPLED);
	if (d->plan.ranks > 1)
		ranks_logits_run(d, r->b->samples);
}

static void call_run(struct device *d, const struct bucket *b, const struct call *c)
{
	const struct run r = {d, b, &c->layer};
	switch ((enum call_kind)c->kind) {
	case CALL_TAGS: {
		struct tags_args a;
		a.step = d->block;
		a.group_count = d->plan.group_count;
		a.faults = d->faults;
		for (uint32_t g = 0; g < OPS_GROUP_MAX; g++)
			a.tags[g] = d->group[g].tags;
		tags_launch(&a, b->sequences, d->step);
		if (d->plan.ranks > 1)
			ranks_faults_run(d, b->sequences);
		return;
	}
	case CALL_EMBED: {
		const struct device_plan *p = &d->plan;
		const struct embed_args a = {d->block, c->first->m, c->x, d->buffer[BUFFER_X],
					     plan_vocab_first(p), p->ranks > 1 ? plan_vocab_rows(p)
									       : c->first->m.rows};
		embed_launch(&a, b->rows, d->step);
		if (p->ranks > 1)
			ranks_sum_run(d, d->buffer[BUFFER_X], (size_t)b->rows * p->width);
		return;
	}
	case CALL_QKV: qkv_run(&r); return;
	case CALL_TURNS: turns_run(&r, &d->rope[c->rope]); return;
	case CALL_ROPE: rope_run(&r, &d->rope[c->rope]); return;
	case CALL_ATTEND: attend_run(&r); return;
	case CALL_OUTPUT:
		project_back(&r, d->buffer[BUFFER_A], d->plan.heads * d->plan.head, c->layer.output,
			     c->layer.post_attn_norm);
		return;
	case CALL_GATE_UP: gate_run(&r); return;
	case CALL_DOWN:
		project_back(&r, d->buffer[BUFFER_F], d->plan.ff, c->layer.down, c->layer.post_ffn_norm);
		return;
	case CALL_HEAD: head_run(&r, c); return;
	case CALL_SAMPLE: {
		const struct sample_args a = {d->block, d->buffer[BUFFER_LOGITS], d->faults, d->sample_work,
					      d->sampled, d->plan.vocab};
		sample_launch(&a, b->samples, d->step);
		return;
	}
	}
}

/* What the graph was made of. */
static struct call *graph_calls(const struct device *d, uint32_t graph)
{
	return d->calls + (size_t)d->call_max * (1 + graph);
}

static void calls_run(struct device *d, const struct bucket *b)
{
	for (uint32_t i = 0; i < d->call_count; i++)
		call_run(d, b, &d->calls[i]);
}

/* What was launched lacks a part: no token may come of it. */
static int step_failed(struct device *d)
{
	fprintf(stderr, "cuda: cuBLASLt refuses a product that it took before\n");
	d->lost = true;
	return -ERR_INTERNAL;
}

static int graph_make(struct device *d, const struct bucket *b, const struct graph_key *key)
{
	cudaGraph_t graph;
	struct graph *const g = &d->graphs[d->graph_count];
	CUDA_TRY(d, cudaStreamBeginCapture(d->step, cudaStreamCaptureModeThreadLocal));
	calls_run(d, b);
	CUDA_TRY(d, cudaStreamEndCapture(d->step, &graph));
	if (d->failed) {
		cudaGraphDestroy(graph);
		return step_failed(d);
	}
	size_t before = 0, after = 0, all;
	cudaMemGetInfo(&before, &all);
	cudaError_t error = cudaGraphInstantiate(&g->exec, graph, 0);
	const bool made = error == cudaSuccess;
	cudaGraphDestroy(graph); /* what was instantiated stays */
	if (made)
		error = cudaGraphUpload(g->exec, d->step);
	const bool room = error != cudaErrorMemoryAllocation;
	if (!error || !room)
		error = cudaMemGetInfo(&after, &all);
	const size_t took = before > after ? before - after : 0;
	if (!error && room && took <= GRAPH_ROOM_BYTES - d->graph_bytes) {
		d->graph_bytes += took;
		g->key = *key;
		memcpy(graph_calls(d, d->graph_count), d->calls, d->call_count * sizeof *d->calls);
		d->graph_count++;
		return 0;
	}
	if (made)
		cudaGraphExecDestroy(g->exec);
	CUDA_TRY(d, error);
	/* No room: from here on what has no graph runs without one. */
	cudaGetLastError();
	d->graphs_full = true;
	return 0;
}

void graphs_drop(struct device *d)
{
	for (uint32_t i = 0; i < d->graph_count; i++)
		cudaGraphExecDestroy(d->graphs[i].exec);
	d->graph_count = 0;
	d->graph_bytes = 0;
	d->graphs_full = false;
}

/* The graph of this program in this bucket, made if there is none. */
static int graph_find(struct device *d, const struct bucket *b, struct graph **out)
{
	struct graph_key key;
	memset(&key, 0, sizeof key);
	key.rows = b->rows;
	key.samples = b->samples;
	key.sequences = b->sequences;
	memcpy(key.units, b->units, sizeof key.units);
	key.partitions = b->partitions;
	memcpy(key.phases, b->phases, sizeof key.phases);
	key.calls = d->call_count;
	*out = NULL;
	for (uint32_t i = 0; i < d->graph_count; i++)
		if (memcmp(&d->graphs[i].key, &key, sizeof key) == 0 &&
		    memcmp(graph_calls(d, i), d->calls, d->call_count * sizeof *d->calls) == 0) {
			*out = &d->graphs[i];
			return 0;
		}
	if (d->graph_count == GRAPHS_MAX || d->graphs_full)
		return 0;
	TRY(graph_make(d, b, &key));
	if (!d->graphs_full)
		*out = &d->graphs[d->graph_count - 1];
	return 0;
}

static int calls_launch(struct device *d)
{
	const struct bucket b = bucket_of(d);
	struct graph *graph = NULL;
	if (d->fresh && !d->graphs_off && b.rows <= GRAPH_ROWS_MAX)
		TRY(graph_find(d, &b, &graph));
	d->fresh = false;
	if (graph)
		CUDA_TRY(d, cudaGraphLaunch(graph->exec, d->step));
	else
		calls_run(d, &b);
	CUDA_TRY(d, cudaGetLastError());
	return d->failed ? step_failed(d) : 0;
}

int step_flush(struct device *d)
{
	if (d->lost)
		return -ERR_INTERNAL;
	/* Which GPU is current is a thread's own, and this one may not be the one that opened the device. */
	CUDA_TRY(d, cudaSetDevice((int)d->plan.gpu));
	if (step_now(d)->row_count == 0) /* no batch yet: there is nothing to compute */
		d->call_count = 0;
	if (d->call_count == 0)
		return 0;
	const int code = calls_launch(d);
	/* Launched or not, they are this batch's and not the next one's. */
	d->call_count = 0;
	d->copied_down = false;
	return code;
}

int step_settle(struct device *d)
{
	TRY(step_flush(d));
	return ranks_wait(d);
}

int cuda_wait(struct device *d, struct ops_sampled *sampled, struct ops_fault *faults)
{
	const struct step *s = step_now(d);
	TRY(step_flush(d));
	if (!d->copied_down) {
		CUDA_TRY(d, cudaMemcpyAsync(d->host_faults, d->faults, s->sequence_count * sizeof *faults,
					    cudaMemcpyDeviceToHost, d->step));
		if (s->sample_count)
			CUDA_TRY(d, cudaMemcpyAsync(d->host_sampled, d->sampled,
						    s->sample_count * sizeof *sampled, cudaMemcpyDeviceToHost,
						    d->step));
		TRY(ranks_wait(d));
		d->copied_down = true;
	}
	if (sampled)
		memcpy(sampled, d->host_sampled, s->sample_count * sizeof *sampled);
	if (faults)
		memcpy(faults, d->host_faults, s->sequence_count * sizeof *faults);
	return 0;
}
