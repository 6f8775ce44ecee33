/*
 * The forward pass in double, written from its definition and not from the code it judges:
 * one sequence, all positions, nothing quantised but the weights.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/kernels_fixture.h"

static double *room(size_t count)
{
	double *p = calloc(count, sizeof *p);
	CHECK(p != NULL);
	return p;
}

static void times(const struct fixture_weight *w, const struct fixture_weight *bias,
		  const double *x, double *out)
{
	for (uint32_t r = 0; r < w->rows; r++) {
		out[r] = bias && bias->values ? bias->values[r] : 0;
		for (uint32_t k = 0; k < w->columns; k++)
			out[r] += (double)w->values[(size_t)r * w->columns + k] * x[k];
	}
}

static void normed(const struct fixture_weight *w, const double *x, uint32_t n, double *out)
{
	double sum = 0;
	for (uint32_t i = 0; i < n; i++)
		sum += x[i] * x[i];
	const double r = 1 / sqrt(sum / n + 1e-5);
	for (uint32_t i = 0; i < n; i++)
		out[i] = x[i] * r * w->values[i];
}

static void turn(const struct fixture_layer *l, uint32_t head, uint32_t position, double *x)
{
	for (uint32_t i = 0; i < head / 2; i++) {
		double angle = position * pow(l->ops.rope_base, -2.0 * i / head);
		if (l->factors.values)
			angle = position * pow(l->ops.rope_base, -2.0 * i / head) /
				l->factors.values[i];
		const int adjacent = l->ops.rope == ROPE_ADJACENT;
		double *a = x + (adjacent ? 2 * i : i),
		       *b = x + (adjacent ? 2 * i + 1 : i + head / 2);
		const double u = *a * cos(angle) - *b * sin(angle);
		*b = *a * sin(angle) + *b * cos(angle);
		*a = u;
	}
}

/* One query vector over the positions it sees. */
static void attend_one(const struct fixture *f, const struct fixture_layer *l,
		       const double *q, const double *k, const double *v, uint32_t kv_head,
		       uint32_t position, double *out)
{
	const uint32_t head = f->plan.head, stride = f->plan.kv_heads * head;
	const uint32_t window = l->ops.window;
	double *s = room(position + 1), sum = 0, most = -INFINITY;
	const uint32_t first = window && position + 1 > window ? position + 1 - window : 0;
	for (uint32_t t = first; t <= position; t++) {
		for (uint32_t i = 0; i < head; i++)
			s[t] += q[i] * k[(size_t)t * stride + kv_head * head + i];
		s[t] *= l->ops.attention_scale;
		if (l->ops.attention_softcap > 0)
			s[t] = l->ops.attention_softcap *
			       tanh(s[t] / l->ops.attention_softcap);
		most = s[t] > most ? s[t] : most;
	}
	for (uint32_t t = first; t <= position; t++)
		sum += s[t] = exp(s[t] - most);
	memset(out, 0, head * sizeof *out);
	for (uint32_t t = first; t <= position; t++)
		for (uint32_t i = 0; i < head; i++)
			out[i] += s[t] / sum * v[(size_t)t * stride + kv_head * head + i];
	free(s);
}

static double gated(enum gate_kind kind, double g)
{
	if (kind == GATE_SILU)
		return g / (1 + exp(-g));
	return 0.5 * g *
	       (1 + tanh(sqrt(2 / 3.14159265358979323846) * (g + 0.044715 * g * g * g)));
}

static void residual(double *x, double *y, const struct fixture_weight *norm, uint32_t n)
{
	if (norm->values)
		normed(norm, y, n, y);
	for (uint32_t i = 0; i < n; i++)
		x[i] += y[i];
}

struct rooms {
	double *h, *q, *k, *v, *a, *g, *u, *y;
};

static void attention(const struct fixture *f, const struct fixture_layer *l,
		      uint32_t count, double *x, struct rooms *m)
{
	const struct device_plan *p = &f->plan;
	const uint32_t queries = p->heads * p->head, kv = p->kv_heads * p->head;
	for (uint32_t t = 0; t < count; t++) {
		double *q = m->q + (size_t)t * queries, *k = m->k + (size_t)t * kv;
		normed(&l->attn_norm, x + (size_t)t * p->width, p->width, m->h);
		times(&l->q, &l->q_bias, m->h, q);
		times(&l->k, &l->k_bias, m->h, k);
		times(&l->v, &l->v_bias, m->h, m->v + (size_t)t * kv);
		for (uint32_t i = 0; i < p->heads; i++) {
			if (l->q_norm.values)
				normed(&l->q_norm, q + i * p->head, p->head,
				       q + i * p->head);
			turn(l, p->head, t, q + i * p->head);
		}
		for (uint32_t i = 0; i < p->kv_heads; i++) {
			if (l->k_norm.values)
				normed(&l->k_norm, k + i * p->head, p->head,
				       k + i * p->head);
			turn(l, p->head, t, k + i * p->head);
		}
	}
	for (uint32_t t = 0; t < count; t++) {
		for (uint32_t i = 0; i < p->heads; i++)
			attend_one(f, l, m->q + (size_t)t * queries + i * p->head, m->k,
				   m->v, i / (p->heads / p->kv_heads), t,
				   m->a + i * p->head);
		times(&l->output, NULL, m->a, m->y);
		residual(x + (size_t)t * p->width, m->y, &l->post_attn, p->width);
	}
}

static void feed(const struct fixture *f, const struct fixture_layer *l, double *x,
		 struct rooms *m)
{
	normed(&l->ffn_norm, x, f->plan.width, m->h);
	times(&l->gate, NULL, m->h, m->g);
	times(&l->up, NULL, m->h, m->u);
	for (uint32_t i = 0; i < f->plan.ff; i++)
		m->g[i] = gated(l->ops.gate_kind, m->g[i]) * m->u[i];
	times(&l->down, NULL, m->g, m->y);
	residual(x, m->y, &l->post_ffn, f->plan.width);
}

void fixture_model(const struct fixture *f, const uint32_t *tokens, uint32_t count,
		   double *logits)
{
	const struct device_plan *p = &f->plan;
	const size_t queries = (size_t)p->heads * p->head,
		     kv = (size_t)p->kv_heads * p->head;
	double *x = room((size_t)count * p->width);
	struct rooms m = {room(p->width),   room(count * queries), room(count * kv),
			  room(count * kv), room(queries), room(p->ff),
			  room(p->ff), room(p->width)};
	for (uint32_t t = 0; t < count; t++)
		for (uint32_t i = 0; i < p->width; i++)
			x[(size_t)t * p->width + i] =
				f->embedding.values[(size_t)tokens[t] * p->width + i];
	for (uint32_t i = 0; i < FIXTURE_LAYERS; i++) {
		attention(f, &f->layer[i], count, x, &m);
		for (uint32_t t = 0; t < count; t++)
			feed(f, &f->layer[i], x + (size_t)t * p->width, &m);
	}
	for (uint32_t t = 0; t < count; t++) {
		normed(&f->norm, x + (size_t)t * p->width, p->width, m.h);
		times(&f->embedding, NULL, m.h, logits + (size_t)t * p->vocab);
		const double cap = f->options.logit_softcap;
		for (uint32_t i = 0; cap > 0 && i < p->vocab; i++)
			logits[(size_t)t * p->vocab + i] =
				cap * tanh(logits[(size_t)t * p->vocab + i] / cap);
	}
	double *all[] = {x, m.h, m.q, m.k, m.v, m.a, m.g, m.u, m.y};
	for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
		free(all[i]);
}
