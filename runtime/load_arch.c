/*
 * The architecture as data, from a GGUF file's keys: what a family of models always has is a row of
 * a table, the rest are numbers in the file. What a key means and defaults to is as in ggml's
 * docs/gguf.md and llama.cpp's loader.
 */
#include "runtime/load.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* Mistral's files call themselves llama. Gemma's larger models scale q.k by the width; the number
   of layers tells them apart, since the file has no key for it. */
static const struct family families[] = {
	{.name = "llama", .rope = ROPE_ADJACENT, .gate = GATE_SILU, .bias = BIAS_MAYBE,
	 .windows = WINDOWS_ALL},
	{.name = "qwen2", .rope = ROPE_HALVES, .gate = GATE_SILU, .bias = BIAS_ALWAYS},
	{.name = "qwen3", .rope = ROPE_HALVES, .gate = GATE_SILU, .bias = BIAS_NEVER, .qk_norm = true},
	{.name = "gemma3", .rope = ROPE_HALVES, .gate = GATE_GELU, .bias = BIAS_NEVER, .qk_norm = true,
	 .post_norms = true, .scaled = true, .softcaps = true, .windows = WINDOWS_PERIOD},
};
enum { GEMMA3_PERIOD = 6, GEMMA3_LAYERS_BY_WIDTH = 62 };

const struct family *family_find(const char *name, size_t length)
{
	for (unsigned i = 0; i < sizeof families / sizeof families[0]; i++)
		if (strlen(families[i].name) == length && !memcmp(families[i].name, name, length))
			return &families[i];
	return NULL;
}

/* The keys of one file, under its family's name. */
struct keys {
	struct gguf *g;
	const struct family *family;
	char name[96];
};

static const char *key_of(struct keys *k, const char *suffix)
{
	snprintf(k->name, sizeof k->name, "%s.%s", k->family->name, suffix);
	return k->name;
}

static int count_key(struct keys *k, const char *suffix, bool required, uint32_t limit,
		     uint32_t *out)
{
	const char *key = key_of(k, suffix);
	TRY(gguf_u32(k->g, key, required, out));
	if (*out == 0 || *out > limit)
		return gguf_refuse(k->g, -ERR_BAD_FILE, "%s: %u, 1 to %u are taken", key, *out,
				   limit);
	return 0;
}

static int real_key(struct keys *k, const char *suffix, bool required, double least, double most,
		    float *out)
{
	const char *key = key_of(k, suffix);
	TRY(gguf_f32(k->g, key, required, out));
	if (!(*out >= least && *out <= most))
		return gguf_refuse(k->g, -ERR_BAD_FILE, "%s: %g, %g to %g are taken", key,
				   (double)*out, least, most);
	return 0;
}

static bool has_key(struct keys *k, const char *suffix)
{
	return gguf_find(k->g, key_of(k, suffix)) != NULL;
}

int load_arch_name(struct gguf *g)
{
	const char *name;
	size_t length;
	TRY(gguf_string(g, "general.architecture", true, &name, &length));
	if (!family_find(name, length))
		return gguf_refuse(g, -ERR_UNSUPPORTED,
				   "general.architecture: \"%s\" is not supported; llama, qwen2, qwen3 "
				   "and gemma3 are", gguf_show(name, length));
	return 0;
}

static int read_heads(struct keys *k, struct arch *a)
{
	TRY(count_key(k, "attention.head_count", true, MODEL_HEADS_MAX, &a->heads));
	a->kv_heads = a->heads;
	TRY(count_key(k, "attention.head_count_kv", false, a->heads, &a->kv_heads));
	if (a->heads % a->kv_heads)
		return gguf_refuse(k->g, -ERR_BAD_FILE, "%s: %u does not divide %u heads",
				   key_of(k, "attention.head_count_kv"), a->kv_heads, a->heads);
	if (!has_key(k, "attention.key_length") && a->width % a->heads)
		return gguf_refuse(k->g, -ERR_BAD_FILE, "%s: %u does not divide the width %u",
				   key_of(k, "attention.head_count"), a->heads, a->width);
	a->head = a->width / a->heads;
	TRY(count_key(k, "attention.key_length", false, MODEL_HEAD_MAX, &a->head));
	uint32_t value = a->head;
	TRY(gguf_u32(k->g, key_of(k, "attention.value_length"), false, &value));
	if (value != a->head)
		return gguf_refuse(k->g, -ERR_UNSUPPORTED,
				   "%s: %u, other than the key's %u is not supported",
				   key_of(k, "attention.value_length"), value, a->head);
	if (a->head % 2)
		return gguf_refuse(k->g, -ERR_BAD_FILE, "%s: %u is odd",
				   key_of(k, "attention.key_length"), a->head);
	const bool by_width = k->family->windows == WINDOWS_PERIOD &&
			      a->layers == GEMMA3_LAYERS_BY_WIDTH;
	a->attention_scale = (float)(1.0 / sqrt(by_width ? (double)a->width / a->heads : a->head));
	return 0;
}

static int read_rope(struct keys *k, struct arch *a)
{
	const char *kind = "none";
	size_t length = 4;
	float factor = 1;
	a->rope_dims = a->head;
	TRY(count_key(k, "rope.dimension_count", false, a->head, &a->rope_dims));
	if (a->rope_dims % 2)
		return gguf_refuse(k->g, -ERR_BAD_FILE, "%s: %u is odd",
				   key_of(k, "rope.dimension_count"), a->rope_dims);
	a->rope_base = 10000;
	TRY(real_key(k, "rope.freq_base", false, 1, 1e12, &a->rope_base));
	TRY(gguf_string(k->g, key_of(k, "rope.scaling.type"), false, &kind, &length));
	bool none = length == 4 && !memcmp(kind, "none", 4);
	if (!none && (length != 6 || memcmp(kind, "linear", 6)))
		return gguf_refuse(k->g, -ERR_UNSUPPORTED, "%s: \"%s\" is not supported",
				   key_of(k, "rope.scaling.type"), gguf_show(kind, length));
	TRY(real_key(k, "rope.scale_linear", false, 1e-6, 1e6, &factor));
	TRY(real_key(k, "rope.scaling.factor", false, 1e-6, 1e6, &factor));
	a->rope_scale = none && !has_key(k, "rope.scale_linear") ? 1 : 1 / factor;
	return 0;
}

/* A window that is as long as the context is none. */
static int read_window(struct keys *k, struct arch *a)
{
	uint32_t window = 0, period = k->family->windows == WINDOWS_PERIOD ? GEMMA3_PERIOD : UINT32_MAX;
	TRY(gguf_u32(k->g, key_of(k, "attention.sliding_window"), false, &window));
	if (window == 0 || window >= a->context)
		return 0;
	if (k->family->windows == WINDOWS_NONE)
		return gguf_refuse(k->g, -ERR_UNSUPPORTED, "%s: a window of %u is not supported here",
				   key_of(k, "attention.sliding_window"), window);
	TRY(count_key(k, "attention.sliding_window_pattern", false, UINT32_MAX, &period));
	a->window = window;
	a->window_period = period;
	if (k->family->windows == WINDOWS_PERIOD) {
		a->rope_base_local = 10000;
		TRY(real_key(k, "rope.freq_base_swa", false, 1, 1e12, &a->rope_base_local));
	}
	return 0;
}

/* What would change the arithmetic and is not computed here is refused by its key. */
static int check_absent(struct keys *k)
{
	static const char *const softcaps[] = {"attn_logit_softcapping", "final_logit_softcapping"};
	uint32_t experts = 0;
	TRY(gguf_u32(k->g, key_of(k, "expert_count"), false, &experts));
	if (experts > 0)
		return gguf_refuse(k->g, -ERR_UNSUPPORTED, "%s: a mixture of %u experts is not supported",
				   key_of(k, "expert_count"), experts);
	for (unsigned i = 0; i < 2 && !k->family->softcaps; i++)
		if (has_key(k, softcaps[i]))
			return gguf_refuse(k->g, -ERR_UNSUPPORTED, "%s: it is not supported here",
					   k->name);
	return 0;
}

static int read_keys(struct keys *k, struct arch *a)
{
	family_init(k->family, a);
	TRY(count_key(k, "block_count", true, MODEL_LAYERS_MAX, &a->layers));
	TRY(count_key(k, "embedding_length", true, MODEL_WIDTH_MAX, &a->width));
	TRY(count_key(k, "feed_forward_length", true, MODEL_FF_MAX, &a->ff));
	TRY(count_key(k, "context_length", true, MODEL_CONTEXT_MAX, &a->context));
	TRY(real_key(k, "attention.layer_norm_rms_epsilon", true, 1e-12, 1, &a->epsilon));
	TRY(read_heads(k, a));
	TRY(read_rope(k, a));
	TRY(read_window(k, a));
	if (k->family->softcaps) {
		TRY(real_key(k, "attn_logit_softcapping", false, 0, 1e6, &a->attention_softcap));
		TRY(real_key(k, "final_logit_softcapping", false, 0, 1e6, &a->head_softcap));
	}
	a->embedding_scale = k->family->scaled ? (float)sqrt(a->width) : 1;
	return check_absent(k);
}

void family_init(const struct family *family, struct arch *a)
{
	*a = (struct arch){.rope = family->rope, .gate = family->gate, .rope_scale = 1,
			   .embedding_scale = 1, .qk_norm = family->qk_norm,
			   .post_norms = family->post_norms};
	snprintf(a->name, sizeof a->name, "%s", family->name);
}

void family_tensors(const struct family *family, struct model *model)
{
	struct arch *a = &model->arch;
	a->vocab = model->vocabulary.count;
	a->tied = !model_tensor(model, "output.weight");
	a->qkv_bias = family->bias == BIAS_ALWAYS ||
		      (family->bias == BIAS_MAYBE && model_tensor(model, "blk.0.attn_q.bias"));
}

int load_arch(struct gguf *g, struct model *model)
{
	struct arch *a = &model->arch;
	struct keys k = {.g = g};
	const char *name;
	size_t length;
	TRY(gguf_string(g, "general.architecture", true, &name, &length));
	k.family = family_find(name, length);
	TRY(read_keys(&k, a));
	family_tensors(k.family, model);
	const struct tensor *embedding = model_tensor(model, "token_embd.weight");
	/* Rows may be padded beyond the vocabulary; such ids do not exist. */
	uint32_t rows = embedding ? embedding->rows : a->vocab, stated = rows;
	TRY(gguf_u32(g, key_of(&k, "vocab_size"), false, &stated));
	if (stated != rows && stated != a->vocab)
		return gguf_refuse(g, -ERR_BAD_FILE, "%s: %u, the embedding has %u rows",
				   key_of(&k, "vocab_size"), stated, rows);
	return wanted_check(model, g->reason);
}
