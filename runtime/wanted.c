/*
 * The tensors of an architecture. The names are llama.cpp's; which of them a layer has follows from
 * the architecture's flags.
 */
#include "runtime/wanted.h"

#include <stdio.h>
#include <string.h>

#include "runtime/load.h"

/* The sides of a tensor, as the architecture gives them. */
enum side { SIDE_ONE, SIDE_WIDTH, SIDE_QUERY, SIDE_KEY, SIDE_FF, SIDE_HEAD };
/* When a layer has the tensor. */
enum when { WHEN_ALWAYS, WHEN_QKV_BIAS, WHEN_QK_NORM, WHEN_POST_NORMS };

struct place {
	const char *name; /* within "blk.N." */
	size_t at;        /* in struct ops_layer */
	enum weight_use use;
	enum side rows, columns;
	enum when when;
};

#define AT(field) offsetof(struct ops_layer, field)
static const struct place places[] = {
	{"attn_norm.weight", AT(attn_norm), WEIGHT_VECTOR, SIDE_ONE, SIDE_WIDTH, WHEN_ALWAYS},
	{"attn_q.weight", AT(q), WEIGHT_PHASED, SIDE_QUERY, SIDE_WIDTH, WHEN_ALWAYS},
	{"attn_k.weight", AT(k), WEIGHT_PHASED, SIDE_KEY, SIDE_WIDTH, WHEN_ALWAYS},
	{"attn_v.weight", AT(v), WEIGHT_PHASED, SIDE_KEY, SIDE_WIDTH, WHEN_ALWAYS},
	{"attn_q.bias", AT(q_bias), WEIGHT_VECTOR, SIDE_ONE, SIDE_QUERY, WHEN_QKV_BIAS},
	{"attn_k.bias", AT(k_bias), WEIGHT_VECTOR, SIDE_ONE, SIDE_KEY, WHEN_QKV_BIAS},
	{"attn_v.bias", AT(v_bias), WEIGHT_VECTOR, SIDE_ONE, SIDE_KEY, WHEN_QKV_BIAS},
	{"attn_q_norm.weight", AT(q_norm), WEIGHT_VECTOR, SIDE_ONE, SIDE_HEAD, WHEN_QK_NORM},
	{"attn_k_norm.weight", AT(k_norm), WEIGHT_VECTOR, SIDE_ONE, SIDE_HEAD, WHEN_QK_NORM},
	{"attn_output.weight", AT(output), WEIGHT_PHASED, SIDE_WIDTH, SIDE_QUERY, WHEN_ALWAYS},
	{"post_attention_norm.weight", AT(post_attn_norm), WEIGHT_VECTOR, SIDE_ONE, SIDE_WIDTH,
	 WHEN_POST_NORMS},
	{"ffn_norm.weight", AT(ffn_norm), WEIGHT_VECTOR, SIDE_ONE, SIDE_WIDTH, WHEN_ALWAYS},
	{"ffn_gate.weight", AT(gate), WEIGHT_PHASED, SIDE_FF, SIDE_WIDTH, WHEN_ALWAYS},
	{"ffn_up.weight", AT(up), WEIGHT_PHASED, SIDE_FF, SIDE_WIDTH, WHEN_ALWAYS},
	{"ffn_down.weight", AT(down), WEIGHT_PHASED, SIDE_WIDTH, SIDE_FF, WHEN_ALWAYS},
	{"post_ffw_norm.weight", AT(post_ffn_norm), WEIGHT_VECTOR, SIDE_ONE, SIDE_WIDTH,
	 WHEN_POST_NORMS},
};
enum { PLACE_COUNT = sizeof places / sizeof places[0] };

static uint32_t side_of(const struct arch *arch, enum side side)
{
	switch (side) {
	case SIDE_ONE: return 1;
	case SIDE_WIDTH: return arch->width;
	case SIDE_QUERY: return arch->heads * arch->head;
	case SIDE_KEY: return arch->kv_heads * arch->head;
	case SIDE_FF: return arch->ff;
	case SIDE_HEAD: return arch->head;
	}
	return 0; /* no such side */
}

static bool place_used(const struct arch *arch, const struct place *place)
{
	switch (place->when) {
	case WHEN_ALWAYS: return true;
	case WHEN_QKV_BIAS: return arch->qkv_bias;
	case WHEN_QK_NORM: return arch->qk_norm;
	case WHEN_POST_NORMS: return arch->post_norms;
	}
	return false; /* no such condition */
}

uint32_t wanted_count(const struct arch *arch)
{
	return WANTED_LAYERS + arch->layers * PLACE_COUNT;
}

void wanted_at(const struct arch *arch, uint32_t number, struct wanted *out)
{
	static const char *const names[WANTED_LAYERS] = {"token_embd.weight", "output.weight",
							 "output_norm.weight", "rope_freqs.weight"};
	*out = (struct wanted){.used = true, .use = WEIGHT_VECTOR, .rows = 1,
			       .columns = arch->width};
	if (number >= WANTED_LAYERS) {
		const struct place *p = &places[(number - WANTED_LAYERS) % PLACE_COUNT];
		out->layer = (number - WANTED_LAYERS) / PLACE_COUNT;
		snprintf(out->name, sizeof out->name, "blk.%u.%s", out->layer, p->name);
		out->use = p->use;
		out->rows = side_of(arch, p->rows);
		out->columns = side_of(arch, p->columns);
		out->used = place_used(arch, p);
		out->at = p->at;
		return;
	}
	snprintf(out->name, sizeof out->name, "%s", names[number]);
	if (number == WANTED_EMBEDDING || number == WANTED_HEAD) {
		out->rows = arch->vocab;
		out->padded = true;
	}
	if (number == WANTED_EMBEDDING)
		out->use = arch->tied ? WEIGHT_BOTH : WEIGHT_LOOKUP;
	if (number == WANTED_HEAD) {
		out->use = WEIGHT_MATMUL;
		out->used = !arch->tied;
	}
	if (number == WANTED_ROPE_FACTORS) {
		out->columns = arch->rope_dims / 2;
		out->optional = true;
	}
}

static int tensor_check(const struct tensor *t, const struct wanted *w, char *reason)
{
	uint32_t elements = 0, bytes = 0;
	const char *type = gguf_type_block(t->type, &elements, &bytes);
	const bool rows_right = t->rows == w->rows ||
				(w->padded && t->rows > w->rows && t->rows <= MODEL_VOCAB_MAX);
	if (t->columns != w->columns || !rows_right) {
		snprintf(reason, MODEL_REASON_MAX, "%s: it has %u rows of %u, %u of %u are needed",
			 w->name, t->rows, t->columns, w->rows, w->columns);
		return -ERR_BAD_FILE;
	}
	if (w->use == WEIGHT_VECTOR && elements != 1) {
		snprintf(reason, MODEL_REASON_MAX, "%s: a vector of type %s is not supported",
			 w->name, type);
		return -ERR_UNSUPPORTED;
	}
	return 0;
}

/* By its parts and not by trying every number: a file may have very many strange ones. */
static bool is_wanted(const struct arch *arch, const char *name)
{
	struct wanted w;
	unsigned layer;
	int end = 0;
	for (uint32_t i = 0; i < WANTED_LAYERS; i++) {
		wanted_at(arch, i, &w);
		if (w.used && !strcmp(w.name, name))
			return true;
	}
	if (sscanf(name, "blk.%3u.%n", &layer, &end) != 1 || end == 0 || layer >= arch->layers)
		return false;
	for (uint32_t i = 0; i < PLACE_COUNT; i++)
		if (place_used(arch, &places[i]) && !strcmp(name + end, places[i].name))
			return true;
	return false;
}

/* Names the first tensor that the architecture has no place for: it would be left out of the
   sums. */
static int stray_refuse(const struct model *model, char *reason)
{
	for (uint32_t i = 0; i < model->tensor_count; i++) {
		const char *name = model->tensor[i].name;
		if (is_wanted(&model->arch, name))
			continue;
		snprintf(reason, MODEL_REASON_MAX, "%s: the architecture %s has no such tensor here",
			 gguf_show(name, strlen(name)), model->arch.name);
		return -ERR_UNSUPPORTED;
	}
	snprintf(reason, MODEL_REASON_MAX, "tensors: their names do not agree with the layers");
	return -ERR_BAD_FILE;
}

int wanted_check(const struct model *model, char *reason)
{
	const struct arch *arch = &model->arch;
	uint32_t seen = 0;
	for (uint32_t i = 0; i < wanted_count(arch); i++) {
		struct wanted w;
		wanted_at(arch, i, &w);
		const struct tensor *t = w.used ? model_tensor(model, w.name) : NULL;
		if (w.used && !t && !w.optional) {
			snprintf(reason, MODEL_REASON_MAX, "%s: the tensor is missing", w.name);
			return -ERR_BAD_FILE;
		}
		if (!t)
			continue;
		TRY(tensor_check(t, &w, reason));
		seen++;
	}
	return seen == model->tensor_count ? 0 : stray_refuse(model, reason);
}
