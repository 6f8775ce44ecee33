/*
 * A model's tensors, cut for ranks. A cut never goes through a block of weights that share a scale, so
 * every rank packs exactly the values of the file.
 */
#include "runtime/split.h"

#include <stdio.h>
#include <string.h>

static int split_refuse(char *reason, uint32_t ranks, const char *why)
{
	snprintf(reason, MODEL_REASON_MAX, "the model cannot be split over %u ranks: %s", ranks, why);
	return -ERR_OUT_OF_RANGE;
}

/* The largest block of the layers' `down` (it is cut by columns); all blocks divide one another. */
static uint32_t ff_unit_of(const struct model *model)
{
	uint32_t unit = 32; /* activations have a scale for each 32 */
	for (uint32_t i = 0; i < model->arch.layers; i++) {
		char name[64];
		snprintf(name, sizeof name, "blk.%u.ffn_down.weight", i);
		const struct tensor *t = model_tensor(model, name);
		const uint32_t elements = t ? weight_type_elements(t->type) : 0;
		unit = elements > unit ? elements : unit;
	}
	return unit;
}

/* The first layer's output whose blocks a rank's heads would cut; NULL if there is none. */
static const struct tensor *output_cut(const struct model *model, uint32_t columns)
{
	for (uint32_t i = 0; i < model->arch.layers; i++) {
		char name[64];
		snprintf(name, sizeof name, "blk.%u.attn_output.weight", i);
		const struct tensor *t = model_tensor(model, name);
		if (t && weight_type_elements(t->type) && columns % weight_type_elements(t->type) != 0)
			return t;
	}
	return NULL;
}

int split_make(const struct model *model, uint32_t ranks, uint32_t rank, struct split *out, char *reason)
{
	const struct arch *a = &model->arch;
	char why[200];
	*out = (struct split){.rank = rank, .ranks = ranks, .heads = a->heads, .kv_heads = a->kv_heads,
			      .head = a->head, .ff = a->ff, .vocab = a->vocab,
			      .kv_own = a->kv_heads / ranks ? a->kv_heads / ranks : 1,
			      .ff_unit = ff_unit_of(model), .vocab_share = (a->vocab + ranks - 1) / ranks};
	if (a->heads % ranks != 0) {
		snprintf(why, sizeof why, "it has %u heads, and %u does not divide them", a->heads, ranks);
		return split_refuse(reason, ranks, why);
	}
	if (a->kv_heads % ranks != 0 && ranks % a->kv_heads != 0) {
		snprintf(why, sizeof why, "it has %u KV heads; the number must divide them or be a multiple",
			 a->kv_heads);
		return split_refuse(reason, ranks, why);
	}
	if ((a->ff + out->ff_unit - 1) / out->ff_unit < ranks) {
		snprintf(why, sizeof why, "its ff of %u can be cut at multiples of %u only", a->ff,
			 out->ff_unit);
		return split_refuse(reason, ranks, why);
	}
	const struct tensor *cut = output_cut(model, a->heads / ranks * a->head);
	if (cut) {
		snprintf(why, sizeof why, "%.60s has blocks of %u columns, a rank's heads have %u", cut->name,
			 weight_type_elements(cut->type), a->heads / ranks * a->head);
		return split_refuse(reason, ranks, why);
	}
	if ((uint64_t)(ranks - 1) * out->vocab_share >= a->vocab)
		return split_refuse(reason, ranks, "its vocabulary is too small");
	return 0;
}

void split_side(const struct split *s, enum side side, uint32_t count, uint32_t *first, uint32_t *own)
{
	const uint32_t units = (s->ff + s->ff_unit - 1) / s->ff_unit;
	uint32_t end = count;
	*first = 0;
	switch (side) {
	case SIDE_QUERY:
		*first = s->heads / s->ranks * s->rank * s->head;
		end = *first + s->heads / s->ranks * s->head;
		break;
	case SIDE_KEY: /* of a KV head that stands on several ranks, each of them has the same */
		*first = (uint32_t)((uint64_t)s->kv_heads * s->rank / s->ranks) * s->head;
		end = *first + s->kv_own * s->head;
		break;
	case SIDE_FF:
		*first = (uint32_t)((uint64_t)units * s->rank / s->ranks) * s->ff_unit;
		end = (uint32_t)((uint64_t)units * (s->rank + 1) / s->ranks) * s->ff_unit;
		end = end < s->ff ? end : s->ff;
		break;
	case SIDE_VOCAB:
		*first = s->vocab_share * s->rank;
		end = s->vocab - *first > s->vocab_share ? *first + s->vocab_share : s->vocab;
		break;
	case SIDE_ONE: case SIDE_WIDTH: case SIDE_HEAD:
		break;
	}
	*own = end - *first;
}

void split_plan(const struct split *s, const struct device_plan *whole, struct device_plan *own)
{
	uint32_t first;
	*own = *whole;
	own->rank = s->rank;
	own->heads = whole->heads / s->ranks;
	own->kv_heads = whole->kv_heads / s->ranks;
	split_side(s, SIDE_FF, s->ff, &first, &own->ff);
}

void split_cut(const struct split *s, const struct wanted *wanted, uint32_t type, uint32_t *rows,
	       uint32_t *columns, uint8_t *bytes)
{
	const size_t elements = weight_type_elements(type), block = weight_type_bytes(type);
	const size_t row_bytes = *columns / elements * block;
	uint32_t row, column;
	split_side(s, wanted->row_side, *rows, &row, rows);
	split_side(s, wanted->column_side, *columns, &column, columns);
	CHECK(column % elements == 0);
	CHECK(*columns % elements == 0);
	const size_t own_bytes = *columns / elements * block;
	if (!bytes) /* only the sizes are wanted */
		return;
	const uint8_t *from = bytes + row * row_bytes + column / elements * block;
	for (uint32_t i = 0; i < *rows; i++)
		memmove(bytes + i * own_bytes, from + i * row_bytes, own_bytes);
}
