/*
 * From the tensors of a file to the layers of kernels/ops.h.
 */
#include "runtime/weights.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/wanted.h"

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

static void weights_put(struct weights *w, uint32_t number, const struct wanted *wanted,
			struct weight *weight)
{
	if (number == WANTED_EMBEDDING)
		w->embedding = weight;
	if (number == WANTED_HEAD)
		w->head = weight;
	if (number == WANTED_NORM)
		w->norm = weight;
	if (number == WANTED_ROPE_FACTORS)
		w->rope_factors = weight;
	if (number >= WANTED_LAYERS)
		memcpy((char *)&w->layer[wanted->layer] + wanted->at, &weight, sizeof weight);
}

static int weights_keep(struct weights *w, struct weight *weight)
{
	CHECK(w->made_count < w->made_max);
	w->made[w->made_count++] = weight;
	w->bytes += w->ops->weight_bytes(weight);
	return 0;
}

uint32_t weights_window(const struct arch *arch, uint32_t layer)
{
	const bool local = arch->window > 0 && arch->window_period > 0 &&
			   (layer + 1) % arch->window_period != 0;
	return local ? arch->window : 0;
}

uint32_t weights_group_of(const struct arch *arch, uint32_t layer)
{
	const bool all = arch->window_period > arch->layers;
	return weights_window(arch, layer) > 0 && !(all && layer == 0);
}

void weights_group(const struct arch *arch, struct weights *w)
{
	uint32_t count[2] = {0, 0};
	for (uint32_t i = 0; i < w->layer_count; i++) {
		w->layer[i].group = weights_group_of(arch, i);
		w->layer[i].layer = count[w->layer[i].group]++;
	}
}

/* What of a layer is not a tensor. */
static void layer_init(const struct arch *arch, uint32_t index, struct ops_layer *layer)
{
	const uint32_t window = weights_window(arch, index);
	const bool local = window > 0;
	const bool own_base = local && arch->rope_base_local > 0;
	*layer = (struct ops_layer){
		.group = 0,
		.layer = index,
		.window = window,
		.rope_dims = arch->rope_dims,
		.rope = arch->rope,
		.gate_kind = arch->gate,
		.rope_base = own_base ? arch->rope_base_local : arch->rope_base,
		.rope_scale = own_base ? 1 : arch->rope_scale,
		.epsilon = arch->epsilon,
		.attention_scale = arch->attention_scale,
		.attention_softcap = arch->attention_softcap,
	};
}

static int weights_load(const struct model *model, const struct split *split, struct weights *w,
			uint8_t *buffer, weights_progress *progress, void *progress_arg, char *reason)
{
	const uint32_t count = wanted_count(&model->arch);
	uint64_t done = 0;
	for (uint32_t i = 0; i < count; i++) {
		struct wanted wanted;
		wanted_at(&model->arch, i, &wanted);
		if (!wanted.used || (wanted.optional && !model_tensor(model, wanted.name)))
			continue;
		const struct tensor *tensor = weights_tensor(model, &wanted, reason);
		if (!tensor)
			return -ERR_BAD_FILE;
		struct weight *weight = NULL;
		uint32_t rows = tensor->rows, columns = tensor->columns;
		int err = model_read(model, tensor, buffer);
		if (err == 0 && split)
			split_cut(split, &wanted, tensor->type, &rows, &columns, buffer);
		if (err == 0)
			err = w->ops->weight_make(w->device, tensor->type, wanted.use, rows, columns,
						  buffer, &weight);
		if (err != 0) {
			snprintf(reason, MODEL_REASON_MAX, "tensor %s: %s", wanted.name,
				 err_text(err));
			return err;
		}
		weights_keep(w, weight);
		weights_put(w, i, &wanted, weight);
		done += tensor->bytes;
		if (progress)
			progress(progress_arg, "weights", done, model->file_bytes);
	}
	if (progress)
		progress(progress_arg, "weights", model->file_bytes, model->file_bytes);
	return 0;
}

int weights_open(const struct model *model, const struct split *split, const struct ops *ops,
		 struct device *device, weights_progress *progress, void *progress_arg,
		 struct weights *out, char *reason)
{
	const struct arch *arch = &model->arch;
	uint64_t largest = 1;
	for (uint32_t i = 0; i < model->tensor_count; i++)
		if (model->tensor[i].bytes > largest)
			largest = model->tensor[i].bytes;
	*out = (struct weights){.ops = ops, .device = device, .layer_count = arch->layers};
	out->made_max = wanted_count(arch) + arch->layers; /* and a smoothing vector a layer */
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
	err = weights_load(model, split, out, buffer, progress, progress_arg, reason);
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

/* Of one rank, or of the one there is. */
static uint64_t rank_bytes(const struct model *model, const struct split *split, const struct ops *ops,
			   const struct device_plan *plan)
{
	const uint32_t count = wanted_count(&model->arch);
	uint64_t bytes = 0;
	for (uint32_t i = 0; i < count; i++) {
		struct wanted wanted;
		wanted_at(&model->arch, i, &wanted);
		const struct tensor *tensor = model_tensor(model, wanted.name);
		if (wanted.used && !tensor && !wanted.optional)
			return 0;
		if (!wanted.used || !tensor)
			continue;
		uint32_t rows = tensor->rows, columns = tensor->columns;
		if (split)
			split_cut(split, &wanted, tensor->type, &rows, &columns, NULL);
		bytes += ops->weight_needs(plan, tensor->type, wanted.use, rows, columns);
	}
	if (plan->kv == KV_INT8)
		bytes += model->arch.layers *
			 ops->weight_needs(plan, TYPE_BF16, WEIGHT_VECTOR, 1,
					   (split ? split->kv_own : model->arch.kv_heads) * model->arch.head);
	return bytes;
}

uint64_t weights_bytes(const struct model *model, const struct split *split, const struct ops *ops,
		       const struct device_plan *plan)
{
	uint64_t bytes = 0;
	if (!split)
		return rank_bytes(model, NULL, ops, plan);
	struct split one = *split;
	for (one.rank = 0; one.rank < one.ranks; one.rank++) {
		const uint64_t own = rank_bytes(model, &one, ops, plan);
		if (own == 0)
			return 0;
		bytes += own;
	}
	return bytes;
}

/* The part of a step that multiplies with a layer's tensor. */
static enum step_part part_of(const struct wanted *wanted)
{
	switch (wanted->at) {
	case offsetof(struct ops_layer, output): return STEP_OUTPUT;
	case offsetof(struct ops_layer, gate):
	case offsetof(struct ops_layer, up): return STEP_GATE_UP;
	case offsetof(struct ops_layer, down): return STEP_DOWN;
	default: return STEP_QKV;
	}
}

void weights_work(const struct model *model, const struct ops *ops, const struct device_plan *plan,
		  struct weights_work *out)
{
	const uint32_t count = wanted_count(&model->arch);
	*out = (struct weights_work){0};
	for (uint32_t i = 0; i < count; i++) {
		struct wanted wanted;
		wanted_at(&model->arch, i, &wanted);
		const struct tensor *tensor = model_tensor(model, wanted.name);
		if (!wanted.used || !tensor || wanted.use == WEIGHT_LOOKUP)
			continue;
		/* What a token that was sampled reads: not the copy for given ones. */
		const uint64_t bytes =
			ops->weight_needs(plan, tensor->type,
					  wanted.use == WEIGHT_PHASED ? WEIGHT_MATMUL : wanted.use,
					  tensor->rows, tensor->columns);
		const enum step_part part = i < WANTED_LAYERS ? STEP_HEAD : part_of(&wanted);
		out->bytes += bytes;
		const uint64_t macs = (uint64_t)tensor->rows * tensor->columns;
		if (wanted.use != WEIGHT_VECTOR) {
			out->part[part].bytes += bytes;
			out->part[part].macs += macs;
		}
		/* The head, or the embedding that is tied to it. */
		if (i < WANTED_LAYERS && (wanted.use == WEIGHT_MATMUL || wanted.use == WEIGHT_BOTH))
			out->head_macs += macs;
		else if (wanted.use == WEIGHT_PHASED)
			out->layer_macs += macs;
	}
}
