/*
 * A model on a device. The step is a straight list of operations: which kernel an operation takes,
 * and on how many threads, is the device's own affair.
 */
#define _GNU_SOURCE
#include "runtime/forward.h"

#include <errno.h>
#include <sched.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "runtime/calibrate.h"
#include "runtime/weights.h"

/* Biases of a sampled row that a batch has room for. */
enum { FORWARD_BIAS_MAX = 1024 };
/* Of the page bytes, what is computed from them, and their digests; raised when one changes: kept pages are
   void then. */
enum { FORWARD_LAYOUT = 4 };

struct forward {
	const struct model *model;
	const struct ops *ops;
	struct device *device;
	struct device_plan plan;
	struct weights weights;
	enum integrity integrity;
	uint8_t plan_hash[16];
	struct ranks *ranks; /* NULL: one */
	struct split split;
	uint64_t weights_bytes; /* of all ranks */
	struct step_clock *clock; /* NULL: none */
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
	*ops = ops_cuda();
	return *ops ? 0 : ops_cuda_find(*gpu, reason, MODEL_REASON_MAX);
}

/* What a process of its own found out. */
struct look {
	int code;
	uint64_t left;
	char reason[MODEL_REASON_MAX];
};

static void gpu_look(uint32_t gpu, struct look *out)
{
	uint64_t total;
	out->code = ops_cuda_find(gpu, out->reason, sizeof out->reason);
	if (out->code == 0 && ops_cuda_memory(gpu, &out->left, &total) != 0)
		out->left = 0;
}

static int gpu_look_apart(uint32_t gpu, struct look *out)
{
	int ends[2];
	if (pipe(ends) != 0)
		return -ERR_IO;
	const pid_t pid = fork();
	if (pid == 0) {
		gpu_look(gpu, out);
		_exit(write(ends[1], out, sizeof *out) == (ssize_t)sizeof *out ? 0 : 1);
	}
	close(ends[1]);
	/* Less than a pipe takes at once; nothing, if the driver ends the process. */
	ssize_t got = -1;
	while (pid > 0 && (got = read(ends[0], out, sizeof *out)) < 0 && errno == EINTR)
		;
	const bool whole = got == (ssize_t)sizeof *out;
	close(ends[0]);
	while (pid > 0 && waitpid(pid, NULL, 0) < 0 && errno == EINTR)
		;
	return whole ? 0 : -ERR_IO;
}

int forward_device_look(const char *name, bool apart, uint64_t *left, char *reason)
{
	const struct ops *ops;
	struct look look = {0};
	uint32_t gpu;
	*left = 0;
	TRY(forward_device_find(name, &ops, &gpu, reason));
	if (ops == ops_cpu())
		return 0;
	snprintf(reason, MODEL_REASON_MAX, "no process could look for the GPU, or the driver ended it");
	if (apart)
		TRY(gpu_look_apart(gpu, &look));
	else
		gpu_look(gpu, &look);
	*left = look.left;
	snprintf(reason, MODEL_REASON_MAX, "%s", look.reason);
	return look.code;
}

static uint32_t least(uint32_t a, uint32_t b)
{
	return a < b ? a : b;
}

/* Ranks of one machine share its cores. */
static uint32_t rank_threads(const struct forward_options *options)
{
	cpu_set_t set;
	const uint32_t beside = options->ranks ? ranks_local_count(options->ranks) : options->ranks_count;
	if (options->threads || beside < 2 || sched_getaffinity(0, sizeof set, &set) != 0)
		return options->threads;
	const uint32_t each = (uint32_t)CPU_COUNT(&set) / beside;
	return each ? each : 1;
}

static uint32_t window_layers(const struct arch *arch)
{
	uint32_t count = 0;
	for (uint32_t i = 0; i < arch->layers; i++)
		count += weights_group_of(arch, i);
	return count;
}

bool forward_windowed(const struct model *model)
{
	return window_layers(&model->arch) > 0;
}

uint32_t forward_window_layers(const struct model *model)
{
	return window_layers(&model->arch);
}

/* -ERR_OUT_OF_RANGE for what the model cannot do. split: NULL for one rank. */
static int forward_plan_make(const struct model *model, const struct forward_options *options,
			     const struct split *split, struct device_plan *plan, char *reason)
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
	if (options->window_pages && windows == 0) {
		snprintf(reason, MODEL_REASON_MAX, "none of its layers can have pages of a window");
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
		.width = arch->width, .heads = arch->heads,
		/* A KV head that stands on several ranks is counted so often. */
		.kv_heads = split ? split->kv_own * split->ranks : arch->kv_heads,
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
		.threads = rank_threads(options),
		.rank = split ? split->rank : 0, .ranks = split ? split->ranks : 1,
		.vocab_share = split ? split->vocab_share : 0,
		.collective = options->ranks ? ranks_collective(options->ranks) : NULL,
		.start_seconds = options->start_seconds,
	};
	return 0;
}

/* NULL in *split for one rank; else how the model is split, in room. */
static int forward_split(const struct model *model, const struct forward_options *options,
			 struct split *room, const struct split **split, char *reason)
{
	const uint32_t count = options->ranks ? ranks_count(options->ranks) : options->ranks_count;
	*split = NULL;
	if (count < 2)
		return 0;
	*split = room;
	return split_make(model, count, options->ranks ? ranks_rank(options->ranks) : 0, room, reason);
}

static int ranks_needs(const struct ops *ops, const struct split *split, const struct device_plan *plan,
		       struct device_needs *out)
{
	struct split one = *split;
	*out = (struct device_needs){0};
	for (one.rank = 0; one.rank < one.ranks; one.rank++) {
		struct device_plan own;
		struct device_needs needs;
		split_plan(&one, plan, &own);
		TRY(ops->device_needs(&own, &needs));
		out->workspace_bytes += needs.workspace_bytes;
		out->slab_bytes += needs.slab_bytes;
	}
	return 0;
}

int forward_needs(const struct model *model, const struct forward_options *options,
		  struct forward_needs *out, char *reason)
{
	const struct ops *ops;
	const struct arch *arch = &model->arch;
	struct forward_options one = *options;
	struct device_plan plan;
	struct device_needs needs;
	struct split room;
	const struct split *split;
	if (one.page_count == 0)
		one.page_count = 1; /* a device has a page; the slab is left out below */
	reason[0] = '\0';
	TRY(forward_split(model, &one, &room, &split, reason));
	TRY(forward_plan_make(model, &one, split, &plan, reason));
	TRY(forward_device_find(options->device, &ops, &plan.gpu, reason));
	TRY(split ? ranks_needs(ops, split, &plan, &needs) : ops->device_needs(&plan, &needs));
	out->weights_bytes = weights_bytes(model, split, ops, &plan);
	if (out->weights_bytes == 0)
		return -ERR_BAD_FILE;
	out->workspace_bytes = needs.workspace_bytes;
	out->slab_bytes = options->page_count ? needs.slab_bytes : 0;
	out->page_bytes = ops_page_bytes(options->kv, plan.group[0].layers, plan.kv_heads, arch->head,
					 options->page_tokens);
	out->window_page_bytes = plan.group_count > 1
		? ops_page_bytes(options->kv, plan.group[1].layers, plan.kv_heads, arch->head,
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
	const uint32_t given[] = {UINT32_MAX - 1, forward->plan.prefill};
	crypto_generichash_state state;
	crypto_generichash_init(&state, NULL, 0, sizeof forward->plan_hash);
	crypto_generichash_update(&state, (const uint8_t *)facts, sizeof facts);
	/* A page of several ranks is another thing, and so are its sums. */
	const uint32_t many[] = {UINT32_MAX, forward->plan.ranks};
	if (forward->plan.ranks > 1)
		crypto_generichash_update(&state, (const uint8_t *)many, sizeof many);
	if (windows)
		crypto_generichash_update(&state, (const uint8_t *)&windows, sizeof windows);
	if (forward->plan.prefill != PREFILL_SAME)
		crypto_generichash_update(&state, (const uint8_t *)given, sizeof given);
	/* Whose the sums are: in bf16 and fp8 their order is a library's. */
	const char *const isa = forward->ops->device_isa(forward->device);
	if (forward->plan.prefill > PREFILL_INT8)
		crypto_generichash_update(&state, (const uint8_t *)isa, strlen(isa));
	if (smooth)
		crypto_generichash_update(&state, (const uint8_t *)smooth, count * sizeof *smooth);
	crypto_generichash_final(&state, forward->plan_hash, sizeof forward->plan_hash);
}

/* The vector of all KV heads, made or read by rank 0. */
static int smooth_find(struct forward *f, const struct forward_options *options, uint16_t *smooth,
		       size_t total, char *reason)
{
	int err = 0;
	if (!f->ranks || ranks_rank(f->ranks) == 0)
		err = calibrate_find(f->model, options->cache_dir, options->threads, options->progress,
				     options->progress_arg, smooth, reason);
	if (!f->ranks)
		return err;
	const struct collective *c = ranks_collective(f->ranks);
	TRY(ranks_agree(f->ranks, err, reason, MODEL_REASON_MAX));
	return c->broadcast(c->self, smooth, total * sizeof *smooth);
}

static int device_make(struct forward *f, char *reason)
{
	const int err = f->ops->device_open(&f->plan, &f->device);
	struct device_needs needs = {0};
	if (err == 0)
		return 0;
	f->ops->device_needs(&f->plan, &needs);
	snprintf(reason, MODEL_REASON_MAX,
		 "the device cannot be opened (%s): workspace %.1f MiB, KV pages %.1f MiB%s", err_text(err),
		 (double)needs.workspace_bytes / (1 << 20), (double)needs.slab_bytes / (1 << 20),
		 err == -ERR_MEMORY ? "; lower --kv-memory, --batch-rows or --context" : "");
	return err;
}

/* Smoothing comes before the weights: making it takes a device of its own for a while. */
static int forward_load(struct forward *f, const struct forward_options *options, char *reason)
{
	const struct arch *arch = &f->model->arch;
	const struct split *split = f->ranks ? &f->split : NULL;
	const uint32_t count = arch->kv_heads * arch->head;
	const size_t total = (size_t)arch->layers * count;
	uint32_t first = 0, own = count;
	uint16_t *smooth = NULL;
	int err = 0;
	if (options->kv == KV_INT8) {
		smooth = calloc(total, sizeof *smooth);
		CHECK(smooth || !f->ranks); /* the others wait for it */
		err = smooth ? smooth_find(f, options, smooth, total, reason) : -ERR_MEMORY;
	}
	if (err == 0)
		err = device_make(f, reason);
	if (err == 0)
		err = weights_open(f->model, split, f->ops, f->device, options->progress,
				   options->progress_arg, &f->weights, reason);
	if (err == 0 && f->plan.group_count > 1)
		weights_group(&f->model->arch, &f->weights);
	if (split)
		split_side(split, SIDE_KEY, count, &first, &own);
	for (uint32_t i = 0; err == 0 && smooth && i < arch->layers; i++)
		err = weights_smooth(&f->weights, i, smooth + (size_t)i * count + first, own);
	if (err == 0)
		forward_plan_hash_make(f, smooth, total);
	free(smooth);
	return err;
}

/* What all ranks must have alike: the first things they say to one another. */
static int ranks_meet(struct forward *f, int err, char *reason)
{
	struct {
		uint8_t model[32];
		uint32_t facts[14];
	} same = {.facts = {f->plan.kv, f->plan.act, f->plan.page_tokens, f->plan.group[0].page_count,
			    f->plan.rows_max, f->plan.sequences_max, f->plan.samples_max, f->plan.context,
			    f->plan.pages_max, f->integrity, f->ops != ops_cpu(), f->plan.extra_bytes_max,
			    f->plan.group[1].page_count, f->plan.prefill}};
	memcpy(same.model, f->model->hash, sizeof same.model);
	TRY(ranks_agree(f->ranks, err, reason, MODEL_REASON_MAX));
	TRY(ranks_same(f->ranks, same.model, sizeof same.model, "model file", reason, MODEL_REASON_MAX));
	return ranks_same(f->ranks, same.facts, sizeof same.facts, "set of options", reason,
			  MODEL_REASON_MAX);
}

static int forward_begin(struct forward *f, const struct forward_options *options, char *reason)
{
	const struct split *split;
	TRY(forward_split(f->model, options, &f->split, &split, reason));
	TRY(forward_plan_make(f->model, options, split, &f->plan, reason));
	TRY(forward_device_find(options->device, &f->ops, &f->plan.gpu, reason));
	if (f->ops != ops_cpu()) {
		f->plan.gpu += f->ranks ? ranks_local(f->ranks) : 0;
		TRY(ops_cuda_find(f->plan.gpu, reason, MODEL_REASON_MAX));
	}
	if (options->isa != ISA_AUTO && !ops_isa_runs(options->isa)) {
		snprintf(reason, MODEL_REASON_MAX, "this machine does not run %s",
			 ops_isa_name(options->isa));
		return -ERR_UNSUPPORTED;
	}
	if (options->prefill > PREFILL_BF16 && f->ops == ops_cpu()) {
		snprintf(reason, MODEL_REASON_MAX, "the CPU has no copy of the weights in fp8 for given tokens; "
			 "--prefill-weights int8 or bf16, or a GPU");
		return -ERR_UNSUPPORTED;
	}
	f->weights_bytes = weights_bytes(f->model, split, f->ops, &f->plan);
	return 0;
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
	f->ranks = options->ranks && ranks_count(options->ranks) > 1 ? options->ranks : NULL;
	int err = forward_begin(f, options, reason);
	if (f->ranks)
		err = ranks_meet(f, err, reason);
	if (err == 0 && f->ranks)
		f->ops = ranks_ops(f->ranks, &f->split, f->ops);
	if (err == 0) {
		err = forward_load(f, options, reason);
		if (f->ranks)
			err = ranks_agree(f->ranks, err, reason, MODEL_REASON_MAX);
		/* Options that are alike can still mean another plan: what is fast here may not be there. */
		if (err == 0 && f->ranks)
			err = ranks_same(f->ranks, f->plan_hash, sizeof f->plan_hash, "precision plan", reason,
					 MODEL_REASON_MAX);
	}
	if (err == 0 && f->ranks)
		ranks_ready(f->ranks);
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

void forward_integrity_set(struct forward *forward, enum integrity integrity)
{
	forward->integrity = integrity;
}

uint64_t forward_weights_bytes(const struct forward *forward)
{
	return forward->ranks ? forward->weights_bytes : forward->weights.bytes;
}

void forward_plan_hash(const struct forward *forward, uint8_t out[16])
{
	memcpy(out, forward->plan_hash, sizeof forward->plan_hash);
}

void forward_clock(struct forward *forward, struct step_clock *clock)
{
	forward->clock = clock;
}

static uint64_t clock_now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

/* The time since the part before goes to this one. Returns what the part returned. */
static int part_done(struct step_clock *clock, enum step_part part, int code)
{
	if (clock) {
		const uint64_t now = clock_now();
		clock->ns[part] += now - clock->last;
		clock->last = now;
	}
	return code;
}

static int step_layers(struct forward *forward, struct step_clock *clock)
{
	const struct ops *ops = forward->ops;
	struct device *device = forward->device;
	for (uint32_t i = 0; i < forward->weights.layer_count; i++) {
		const struct ops_layer *layer = &forward->weights.layer[i];
		TRY(part_done(clock, STEP_QKV, ops->qkv(device, layer)));
		TRY(part_done(clock, STEP_ROPE, ops->rope_write(device, layer)));
		TRY(part_done(clock, STEP_ATTEND, ops->attend(device, layer)));
		TRY(part_done(clock, STEP_OUTPUT, ops->output(device, layer)));
		TRY(part_done(clock, STEP_GATE_UP, ops->gate_up(device, layer)));
		TRY(part_done(clock, STEP_DOWN, ops->down(device, layer)));
	}
	return 0;
}

static int step_run(struct forward *forward, const struct ops_batch *block,
		    struct ops_sampled *sampled, struct ops_fault *faults)
{
	const struct ops *ops = forward->ops;
	struct device *device = forward->device;
	const struct weights *w = &forward->weights;
	const struct arch *arch = &forward->model->arch;
	struct step_clock *const clock = forward->clock;
	if (clock)
		clock->last = clock_now();
	TRY(part_done(clock, STEP_BATCH, ops->batch(device, block)));
#ifndef FORWARD_NO_TAGS /* only in tests/bench/forward_bare.c */
	TRY(part_done(clock, STEP_TAGS, forward->integrity == INTEGRITY_OFF ? ops->tag_skip(device)
									  : ops->tag_check(device)));
#endif
	TRY(part_done(clock, STEP_EMBED, ops->embed(device, w->embedding, arch->embedding_scale)));
	TRY(step_layers(forward, clock));
	if (block->sample_count > 0) {
		TRY(part_done(clock, STEP_HEAD,
			      ops->head(device, w->norm, arch->epsilon, w->head, arch->head_softcap)));
		TRY(part_done(clock, STEP_SAMPLE, ops->sample(device)));
	}
	return ops->wait(device, sampled, faults);
}

int forward_step(struct forward *forward, const struct ops_batch *block,
		 struct ops_sampled *sampled, struct ops_fault *faults)
{
	const int err = step_run(forward, block, sampled, faults);
	/* A block that is refused is refused on every rank at the same place. Whatever else stops one
	   stops all: the others would wait for what does not come. */
	if (err == 0 || !forward->ranks || err == -ERR_OUT_OF_RANGE || err == -ERR_BAD_ARG)
		return err;
	return ranks_give_up(forward->ranks);
}

int forward_follow(struct forward *forward)
{
	for (;;) {
		const struct ops_batch *block = NULL;
		const int next = ranks_next(forward->ranks, forward->device, &block);
		if (next < 0 || next == RANKS_END)
			return next < 0 ? next : 0;
		if (next == RANKS_DONE)
			continue;
		const int err = forward_step(forward, block, NULL, NULL);
		if (err != 0 && err != -ERR_OUT_OF_RANGE && err != -ERR_BAD_ARG)
			return err;
	}
}

int forward_rank_main(const struct model *model, const struct forward_options *options,
		      void (*say)(const char *line))
{
	char reason[MODEL_REASON_MAX] = "";
	struct forward_options own = *options;
	struct forward *f = NULL;
	own.progress = NULL; /* rank 0 shows it */
	int err = forward_open(model, &own, &f, reason);
	if (err == 0)
		err = forward_follow(f);
	else if (say)
		say(reason[0] ? reason : err_text(err));
	forward_close(&f);
	return err == 0 ? 0 : 1;
}

int forward_rank_gone(struct forward *forward, bool look)
{
	return forward->ranks ? ranks_gone(forward->ranks, look) : -1;
}
