/*
 * From the names of GGUF to the layers of kernels/ops.h. The names are llama.cpp's; which of them a
 * layer has follows from the architecture's flags.
 */
#include "runtime/weights.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The sides of a tensor, as the architecture gives them. */
enum side { SIDE_ONE, SIDE_WIDTH, SIDE_QUERY, SIDE_KEY, SIDE_FF, SIDE_HEAD, SIDE_VOCAB };
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
	{"attn_q.weight", AT(q), WEIGHT_MATMUL, SIDE_QUERY, SIDE_WIDTH, WHEN_ALWAYS},
	{"attn_k.weight", AT(k), WEIGHT_MATMUL, SIDE_KEY, SIDE_WIDTH, WHEN_ALWAYS},
	{"attn_v.weight", AT(v), WEIGHT_MATMUL, SIDE_KEY, SIDE_WIDTH, WHEN_ALWAYS},
	{"attn_q.bias", AT(q_bias), WEIGHT_VECTOR, SIDE_ONE, SIDE_QUERY, WHEN_QKV_BIAS},
	{"attn_k.bias", AT(k_bias), WEIGHT_VECTOR, SIDE_ONE, SIDE_KEY, WHEN_QKV_BIAS},
	{"attn_v.bias", AT(v_bias), WEIGHT_VECTOR, SIDE_ONE, SIDE_KEY, WHEN_QKV_BIAS},
	{"attn_q_norm.weight", AT(q_norm), WEIGHT_VECTOR, SIDE_ONE, SIDE_HEAD, WHEN_QK_NORM},
	{"attn_k_norm.weight", AT(k_norm), WEIGHT_VECTOR, SIDE_ONE, SIDE_HEAD, WHEN_QK_NORM},
	{"attn_output.weight", AT(output), WEIGHT_MATMUL, SIDE_WIDTH, SIDE_QUERY, WHEN_ALWAYS},
	{"post_attention_norm.weight", AT(post_attn_norm), WEIGHT_VECTOR, SIDE_ONE, SIDE_WIDTH,
	 WHEN_POST_NORMS},
	{"ffn_norm.weight", AT(ffn_norm), WEIGHT_VECTOR, SIDE_ONE, SIDE_WIDTH, WHEN_ALWAYS},
	{"ffn_gate.weight", AT(gate), WEIGHT_MATMUL, SIDE_FF, SIDE_WIDTH, WHEN_ALWAYS},
	{"ffn_up.weight", AT(up), WEIGHT_MATMUL, SIDE_FF, SIDE_WIDTH, WHEN_ALWAYS},
	{"ffn_down.weight", AT(down), WEIGHT_MATMUL, SIDE_WIDTH, SIDE_FF, WHEN_ALWAYS},
	{"post_ffw_norm.weight", AT(post_ffn_norm), WEIGHT_VECTOR, SIDE_ONE, SIDE_WIDTH,
	 WHEN_POST_NORMS},
};
enum { PLACE_COUNT = sizeof places / sizeof places[0], EXTRA_TENSORS = 4 };

static uint32_t side_of(const struct arch *arch, enum side side)
{
	switch (side) {
	case SIDE_ONE: return 1;
	case SIDE_WIDTH: return arch->width;
	case SIDE_QUERY: return arch->heads * arch->head;
	case SIDE_KEY: return arch->kv_heads * arch->head;
	case SIDE_FF: return arch->ff;
	case SIDE_HEAD: return arch->head;
	case SIDE_VOCAB: return arch->vocab;
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

/* One tensor that the model must have: by number, so that loading and predicting walk one list.
   Numbers 0 .. 3 are embedding, head, last norm, rope factors; then the places layer by layer. */
struct wanted {
	char name[64];
	enum weight_use use;
	uint32_t rows, columns;
	bool used, optional;
	bool padded; /* the tensor may have more rows: ids that do not exist */
};

static void weights_wanted(const struct arch *arch, uint32_t number, struct wanted *out)
{
	*out = (struct wanted){.used = true, .use = WEIGHT_VECTOR, .rows = 1,
			       .columns = arch->width};
	if (number >= EXTRA_TENSORS) {
		const struct place *p = &places[(number - EXTRA_TENSORS) % PLACE_COUNT];
		snprintf(out->name, sizeof out->name, "blk.%u.%s",
			 (number - EXTRA_TENSORS) / PLACE_COUNT, p->name);
		out->use = p->use;
		out->rows = side_of(arch, p->rows);
		out->columns = side_of(arch, p->columns);
		out->used = place_used(arch, p);
		return;
	}
	static const char *const names[EXTRA_TENSORS] = {"token_embd.weight", "output.weight",
							 "output_norm.weight", "rope_freqs.weight"};
	snprintf(out->name, sizeof out->name, "%s", names[number]);
	if (number < 2) {
		out->rows = arch->vocab;
		out->padded = true;
	}
	if (number == 0)
		out->use = arch->tied ? WEIGHT_BOTH : WEIGHT_LOOKUP;
	if (number == 1) {
		out->use = WEIGHT_MATMUL;
		out->used = !arch->tied;
	}
	if (number == 3) {
		out->columns = arch->rope_dims / 2;
		out->optional = true;
	}
}

static uint32_t weights_count(const struct arch *arch)
{
	return EXTRA_TENSORS + arch->layers * PLACE_COUNT;
}

/* The tensor of a wanted one; NULL if there is none, or not of that shape: then *reason is set. */
static const struct tensor *weights_tensor(const struct model *model, const struct wanted *wanted,
					   char *reason)
{
	const struct tensor *tensor = model_tensor(model, wanted->name);
	if (!tensor) {
		snprintf(reason, MODEL_REASON_MAX, "tensor %s is missing", wanted->name);
		return NULL;
	}
	if (tensor->columns == wanted->columns &&
	    (tensor->rows == wanted->rows || (wanted->padded && tensor->rows > wanted->rows)))
		return tensor;
	snprintf(reason, MODEL_REASON_MAX, "tensor %s is %u x %u, it must be %u x %u", wanted->name,
		 tensor->rows, tensor->columns, wanted->rows, wanted->columns);
	return NULL;
}

static void weights_put(struct weights *w, uint32_t number, struct weight *weight)
{
	if (number == 0)
		w->embedding = weight;
	if (number == 1)
		w->head = weight;
	if (number == 2)
		w->norm = weight;
	if (number == 3)
		w->rope_factors = weight;
	if (number < EXTRA_TENSORS)
		return;
	char *layer = (char *)&w->layer[(number - EXTRA_TENSORS) / PLACE_COUNT];
	const struct place *p = &places[(number - EXTRA_TENSORS) % PLACE_COUNT];
	memcpy(layer + p->at, &weight, sizeof weight);
}

static int weights_keep(struct weights *w, struct weight *weight)
{
	CHECK(w->made_count < w->made_max);
	w->made[w->made_count++] = weight;
	w->bytes += w->ops->weight_bytes(weight);
	return 0;
}

/* What of a layer is not a tensor. */
static void layer_init(const struct arch *arch, uint32_t index, struct ops_layer *layer)
{
	const bool local = arch->window > 0 && arch->window_period > 0 &&
			   (index + 1) % arch->window_period != 0;
	*layer = (struct ops_layer){
		.group = 0,
		.layer = index,
		.window = local ? arch->window : 0,
		.rope_dims = arch->rope_dims,
		.rope = arch->rope,
		.gate_kind = arch->gate,
		.rope_base = local && arch->rope_base_local > 0 ? arch->rope_base_local
								: arch->rope_base,
		.rope_scale = arch->rope_scale,
		.epsilon = arch->epsilon,
		.attention_scale = arch->attention_scale,
		.attention_softcap = arch->attention_softcap,
	};
}

static int weights_load(const struct model *model, struct weights *w, uint8_t *buffer,
			weights_progress *progress, void *progress_arg, char *reason)
{
	const uint32_t count = weights_count(&model->arch);
	uint64_t done = 0;
	for (uint32_t i = 0; i < count; i++) {
		struct wanted wanted;
		weights_wanted(&model->arch, i, &wanted);
		if (!wanted.used || (wanted.optional && !model_tensor(model, wanted.name)))
			continue;
		const struct tensor *tensor = weights_tensor(model, &wanted, reason);
		if (!tensor)
			return -ERR_BAD_FILE;
		struct weight *weight = NULL;
		int err = model_read(model, tensor, buffer);
		if (err == 0)
			err = w->ops->weight_make(w->device, tensor->type, wanted.use, tensor->rows,
						  tensor->columns, buffer, &weight);
		if (err != 0) {
			snprintf(reason, MODEL_REASON_MAX, "tensor %s: %s", wanted.name,
				 err_text(err));
			return err;
		}
		weights_keep(w, weight);
		weights_put(w, i, weight);
		done += tensor->bytes;
		if (progress)
			progress(progress_arg, "weights", done, model->file_bytes);
	}
	if (progress)
		progress(progress_arg, "weights", model->file_bytes, model->file_bytes);
	return 0;
}

int weights_open(const struct model *model, const struct ops *ops, struct device *device,
		 weights_progress *progress, void *progress_arg, struct weights *out, char *reason)
{
	const struct arch *arch = &model->arch;
	uint64_t largest = 1;
	for (uint32_t i = 0; i < model->tensor_count; i++)
		if (model->tensor[i].bytes > largest)
			largest = model->tensor[i].bytes;
	*out = (struct weights){.ops = ops, .device = device, .layer_count = arch->layers};
	out->made_max = weights_count(arch) + arch->layers; /* and a smoothing vector a layer */
	out->made = calloc(out->made_max, sizeof *out->made);
	out->layer = calloc(arch->layers, sizeof *out->layer);
	uint8_t *buffer = malloc(largest);
	int err = -ERR_MEMORY;
	if (!out->made || !out->layer || !buffer) {
		snprintf(reason, MODEL_REASON_MAX, "no memory for the largest tensor, %llu bytes",
			 (unsigned long long)largest);
		goto out;
	}
	for (uint32_t i = 0; i < arch->layers; i++)
		layer_init(arch, i, &out->layer[i]);
	err = weights_load(model, out, buffer, progress, progress_arg, reason);
	if (err != 0)
		goto out;
	if (arch->tied)
		out->head = out->embedding;
	for (uint32_t i = 0; i < arch->layers; i++)
		out->layer[i].rope_factors = out->rope_factors;
out:
	free(buffer);
	if (err != 0)
		weights_close(out);
	return err;
}

int weights_smooth(struct weights *weights, uint32_t layer, const uint16_t *values, uint32_t count)
{
	struct weight *weight = NULL;
	CHECK(layer < weights->layer_count);
	TRY(weights->ops->weight_make(weights->device, TYPE_BF16, WEIGHT_VECTOR, 1, count, values,
				      &weight));
	weights_keep(weights, weight);
	weights->layer[layer].smooth = weight;
	return 0;
}

void weights_close(struct weights *weights)
{
	for (uint32_t i = 0; i < weights->made_count; i++)
		weights->ops->weight_free(weights->device, &weights->made[i]);
	free(weights->made);
	free(weights->layer);
	*weights = (struct weights){0};
}

uint64_t weights_bytes(const struct model *model, const struct ops *ops,
		       const struct device_plan *plan)
{
	const uint32_t count = weights_count(&model->arch);
	uint64_t bytes = 0;
	for (uint32_t i = 0; i < count; i++) {
		struct wanted wanted;
		weights_wanted(&model->arch, i, &wanted);
		const struct tensor *tensor = model_tensor(model, wanted.name);
		if (wanted.used && !tensor && !wanted.optional)
			return 0;
		if (wanted.used && tensor)
			bytes += ops->weight_needs(plan, tensor->type, wanted.use, tensor->rows,
						   tensor->columns);
	}
	if (plan->kv == KV_INT8)
		bytes += model->arch.layers *
			 ops->weight_needs(plan, TYPE_BF16, WEIGHT_VECTOR, 1,
					   model->arch.kv_heads * model->arch.head);
	return bytes;
}
