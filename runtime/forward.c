/*
 * A model on a device. The step is a straight list of operations: which kernel an operation takes,
 * and on how many threads, is the device's own affair.
 */
#include "runtime/forward.h"

#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/calibrate.h"
#include "runtime/weights.h"

/* Biases of a sampled row that a batch has room for. */
enum { FORWARD_BIAS_MAX = 1024 };
/* Of the page bytes; raised when their layout changes, so that kept pages are void. */
enum { FORWARD_LAYOUT = 1 };

struct forward {
	const struct model *model;
	const struct ops *ops;
	struct device *device;
	struct device_plan plan;
	struct weights weights;
	enum integrity integrity;
	uint8_t plan_hash[16];
};

void forward_options_default(struct forward_options *options)
{
	*options = (struct forward_options){
		.kv = KV_FP8,
		.act = ACT_AUTO,
		.isa = ISA_AUTO,
		.integrity = INTEGRITY_CHECK,
		.page_tokens = 16,
		.page_count = 512,
		.rows_max = 512,
		.sequences_max = 64,
		.samples_max = 64,
	};
}

int forward_device_find(const char *name, const struct ops **ops, uint32_t *gpu, char *reason)
{
	*gpu = 0;
	*ops = ops_cpu();
	if (!name || strcmp(name, "cpu") == 0)
		return 0;
	char *end = NULL;
	const unsigned long number = strncmp(name, "cuda:", 5) == 0 && name[5] >= '0' && name[5] <= '9'
					     ? strtoul(name + 5, &end, 10)
					     : 0;
	if (strcmp(name, "cuda") != 0 && (!end || *end != '\0' || number > 1023)) {
		snprintf(reason, MODEL_REASON_MAX, "the device must be cpu, cuda or cuda:N");
		return -ERR_BAD_ARG;
	}
	*gpu = (uint32_t)number;
	TRY(ops_cuda_find(*gpu, reason, MODEL_REASON_MAX));
	*ops = ops_cuda();
	return 0;
}

static uint32_t least(uint32_t a, uint32_t b)
{
	return a < b ? a : b;
}

static uint32_t window_layers(const struct arch *arch)
{
	uint32_t count = 0;
	for (uint32_t i = 0; i < arch->layers; i++)
		count += weights_window(arch, i) > 0;
	return count;
}

bool forward_windowed(const struct model *model)
{
	const uint32_t count = window_layers(&model->arch);
	return count > 0 && count < model->arch.layers;
}

/* -ERR_OUT_OF_RANGE for what the model cannot do. */
static int forward_plan_make(const struct model *model, const struct forward_options *options,
			     struct device_plan *plan, char *reason)
{
	const struct arch *arch = &model->arch;
	const uint32_t context = options->context ? options->context : arch->context;
	if (context > arch->context) {
		snprintf(reason, MODEL_REASON_MAX, "a context of %u is more than the model's %u",
			 context, arch->context);
		return -ERR_OUT_OF_RANGE;
	}
	if (options->page_tokens == 0 || options->page_tokens % 16 != 0 ||
	    OPS_PARTITION % options->page_tokens != 0) {
		snprintf(reason, MODEL_REASON_MAX,
			 "pages of %u tokens: it must be 16, 32, 64, 128 or 256",
			 options->page_tokens);
		return -ERR_OUT_OF_RANGE;
	}
	const uint32_t most = (context - 1) / options->page_tokens + 2;
	const uint32_t pages = least(most, options->page_count) + least(most, options->window_pages);
	const uint32_t windows = options->window_pages ? window_layers(arch) : 0;
	if (options->window_pages && (windows == 0 || windows == arch->layers)) {
		snprintf(reason, MODEL_REASON_MAX, "not some of its layers have a window, but %s",
			 windows ? "all" : "none");
		return -ERR_OUT_OF_RANGE;
	}
	/* A sampled row may bring a mask, the counts of every token so far, and biases. */
	const uint64_t extra = ((uint64_t)arch->vocab + 63) / 64 * 8 +
			       8 * (uint64_t)least(context, arch->vocab) + 8 * FORWARD_BIAS_MAX;
	const uint64_t extra_bytes = extra * options->samples_max;
	const uint64_t pages_max = (uint64_t)pages * options->sequences_max;
	if (extra_bytes > INT32_MAX || pages_max > INT32_MAX / sizeof(struct ops_page)) {
		snprintf(reason, MODEL_REASON_MAX,
			 "a batch of %u sequences of %u tokens is too large",
			 options->sequences_max, context);
		return -ERR_OUT_OF_RANGE;
	}
	*plan = (struct device_plan){
		.width = arch->width, .heads = arch->heads, .kv_heads = arch->kv_heads,
		.head = arch->head, .ff = arch->ff, .vocab = arch->vocab,
		.page_tokens = options->page_tokens,
		.group_count = windows ? 2 : 1,
		.group[0] = {.layers = arch->layers - windows, .page_count = options->page_count},
		.group[1] = {.layers = windows, .page_count = options->window_pages},
		.rows_max = options->rows_max,
		.sequences_max = options->sequences_max,
		.samples_max = options->samples_max,
		.pages_max = (uint32_t)pages_max,
		.context = context,
		.extra_bytes_max = (uint32_t)extra_bytes,
		.kv = options->kv, .act = options->act, .prefill = options->prefill, .isa = options->isa,
		.threads = options->threads,
		.rank = 0, .ranks = 1,
	};
	return 0;
}

int forward_needs(const struct model *model, const struct forward_options *options,
		  struct forward_needs *out)
{
	const struct ops *ops;
	const struct arch *arch = &model->arch;
	struct forward_options one = *options;
	struct device_plan plan;
	struct device_needs needs;
	char reason[MODEL_REASON_MAX];
	if (one.page_count == 0)
		one.page_count = 1; /* a device has a page; the slab is left out below */
	TRY(forward_plan_make(model, &one, &plan, reason));
	TRY(forward_device_find(options->device, &ops, &plan.gpu, reason));
	TRY(ops->device_needs(&plan, &needs));
	out->weights_bytes = weights_bytes(model, ops, &plan);
	if (out->weights_bytes == 0)
		return -ERR_BAD_FILE;
	out->workspace_bytes = needs.workspace_bytes;
	out->slab_bytes = options->page_count ? needs.slab_bytes : 0;
	out->page_bytes = ops_page_bytes(options->kv, plan.group[0].layers, arch->kv_heads, arch->head,
					 options->page_tokens);
	out->window_page_bytes = plan.group_count > 1
		? ops_page_bytes(options->kv, plan.group[1].layers, arch->kv_heads, arch->head,
				 options->page_tokens) : 0;
	return 0;
}

static void forward_plan_hash_make(struct forward *forward, const uint16_t *smooth,
				   size_t count)
{
	const uint32_t facts[] = {FORWARD_LAYOUT, forward->plan.kv,
				  forward->ops->device_act(forward->device),
				  forward->plan.page_tokens};
	const uint32_t windows = forward->plan.group[1].layers;
	/* Named only where it is not the file's, so that pages that were kept before stay good. */
	const uint32_t given[] = {UINT32_MAX, forward->plan.prefill};
	crypto_generichash_state state;
	crypto_generichash_init(&state, NULL, 0, sizeof forward->plan_hash);
	crypto_generichash_update(&state, (const uint8_t *)facts, sizeof facts);
	if (windows)
		crypto_generichash_update(&state, (const uint8_t *)&windows, sizeof windows);
	if (forward->plan.prefill != PREFILL_SAME)
		crypto_generichash_update(&state, (const uint8_t *)given, sizeof given);
	if (smooth)
		crypto_generichash_update(&state, (const uint8_t *)smooth, count * sizeof *smooth);
	crypto_generichash_final(&state, forward->plan_hash, sizeof forward->plan_hash);
}

/* Smoothing comes before the weights: making it takes a device of its own for a while. */
static int forward_load(struct forward *f, const struct forward_options *options, char *reason)
{
	const struct arch *arch = &f->model->arch;
	const uint32_t count = arch->kv_heads * arch->head;
	const size_t total = (size_t)arch->layers * count;
	uint16_t *smooth = NULL;
	int err = 0;
	if (options->kv == KV_INT8) {
		smooth = calloc(total, sizeof *smooth);
		err = smooth ? calibrate_find(f->model, options->cache_dir, options->threads,
					      options->progress, options->progress_arg, smooth,
					      reason)
			     : -ERR_MEMORY;
		if (err != 0)
			goto out;
	}
	err = f->ops->device_open(&f->plan, &f->device);
	if (err != 0) {
		struct device_needs needs = {0};
		f->ops->device_needs(&f->plan, &needs);
		snprintf(reason, MODEL_REASON_MAX,
			 "the device cannot be opened (%s): workspace %llu MiB, KV pages %llu MiB",
			 err_text(err), (unsigned long long)(needs.workspace_bytes >> 20),
			 (unsigned long long)(needs.slab_bytes >> 20));
		goto out;
	}
	err = weights_open(f->model, f->ops, f->device, options->progress, options->progress_arg,
			   &f->weights, reason);
	if (err == 0 && f->plan.group_count > 1)
		weights_group(&f->weights);
	for (uint32_t i = 0; err == 0 && smooth && i < arch->layers; i++)
		err = weights_smooth(&f->weights, i, smooth + (size_t)i * count, count);
	if (err == 0)
		forward_plan_hash_make(f, smooth, total);
out:
	free(smooth);
	return err;
}

int forward_open(const struct model *model, const struct forward_options *options,
		 struct forward **out, char *reason)
{
	if (sodium_init() < 0)
		return -ERR_INTERNAL;
	struct forward *f = calloc(1, sizeof *f);
	snprintf(reason, MODEL_REASON_MAX, "no memory");
	if (!f)
		return -ERR_MEMORY;
	f->model = model;
	f->integrity = options->integrity;
	int err = forward_plan_make(model, options, &f->plan, reason);
	if (err == 0)
		err = forward_device_find(options->device, &f->ops, &f->plan.gpu, reason);
	if (err == 0 && options->isa != ISA_AUTO && !ops_isa_runs(options->isa)) {
		snprintf(reason, MODEL_REASON_MAX, "this machine does not run %s",
			 ops_isa_name(options->isa));
		err = -ERR_UNSUPPORTED;
	}
	if (err == 0 && options->prefill != PREFILL_SAME && f->ops != ops_cpu()) {
		snprintf(reason, MODEL_REASON_MAX, "only the CPU has a copy of the weights for given tokens");
		err = -ERR_UNSUPPORTED;
	}
	if (err == 0)
		err = forward_load(f, options, reason);
	*out = f;
	if (err != 0)
		forward_close(out);
	return err;
}

void forward_close(struct forward **forward)
{
	struct forward *f = *forward;
	if (!f)
		return;
	weights_close(&f->weights);
	if (f->device)
		f->ops->device_close(&f->device);
	free(f);
	*forward = NULL;
}

const struct ops *forward_ops(const struct forward *forward)
{
	return forward->ops;
}

struct device *forward_device(struct forward *forward)
{
	return forward->device;
}

const struct device_plan *forward_plan(const struct forward *forward)
{
	return &forward->plan;
}

uint64_t forward_weights_bytes(const struct forward *forward)
{
	return forward->weights.bytes;
}

void forward_plan_hash(const struct forward *forward, uint8_t out[16])
{
	memcpy(out, forward->plan_hash, sizeof forward->plan_hash);
}

int forward_step(struct forward *forward, const struct ops_batch *block,
		 struct ops_sampled *sampled, struct ops_fault *faults)
{
	const struct ops *ops = forward->ops;
	struct device *device = forward->device;
	const struct weights *w = &forward->weights;
	const struct arch *arch = &forward->model->arch;
	TRY(ops->batch(device, block));
	TRY(forward->integrity == INTEGRITY_OFF ? ops->tag_skip(device) : ops->tag_check(device));
	TRY(ops->embed(device, w->embedding, arch->embedding_scale));
	for (uint32_t i = 0; i < w->layer_count; i++) {
		const struct ops_layer *layer = &w->layer[i];
		TRY(ops->qkv(device, layer));
		TRY(ops->rope_write(device, layer));
		TRY(ops->attend(device, layer));
		TRY(ops->output(device, layer));
		TRY(ops->gate_up(device, layer));
		TRY(ops->down(device, layer));
	}
	if (block->sample_count > 0) {
		TRY(ops->head(device, w->norm, arch->epsilon, w->head, arch->head_softcap));
		TRY(ops->sample(device));
	}
	return ops->wait(device, sampled, faults);
}
