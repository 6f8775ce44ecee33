/*
 * The architecture as data, from a file's keys, and its tensors held against it. One architecture is
 * taken: "llama". What a key means and defaults to is as in ggml's docs/gguf.md.
 */
#include "runtime/load.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static int count_key(struct gguf *g, const char *key, bool required, uint32_t limit,
		     uint32_t *out)
{
	TRY(gguf_u32(g, key, required, out));
	if (*out == 0 || *out > limit)
		return gguf_refuse(g, -ERR_BAD_FILE, "%s: %u, 1 to %u are taken", key, *out, limit);
	return 0;
}

static int real_key(struct gguf *g, const char *key, bool required, double least, double most,
		    float *out)
{
	TRY(gguf_f32(g, key, required, out));
	if (!(*out >= least && *out <= most))
		return gguf_refuse(g, -ERR_BAD_FILE, "%s: %g, %g to %g are taken", key,
				   (double)*out, least, most);
	return 0;
}

/* Split files carry a count; one of 1 is a whole file. */
static int check_split(struct gguf *g)
{
	const struct gguf_value *v = gguf_find(g, "split.count");
	if (!v)
		return 0;
	if (v->type != GGUF_U16)
		return gguf_refuse(g, -ERR_BAD_FILE, "split.count: its type must be uint16");
	unsigned count = (unsigned)(g->bytes[v->at] | g->bytes[v->at + 1] << 8);
	if (count > 1)
		return gguf_refuse(g, -ERR_UNSUPPORTED,
				   "split.count: a model split into %u files is not supported",
				   count);
	return 0;
}

int load_arch_name(struct gguf *g)
{
	const char *name;
	size_t length;
	TRY(gguf_string(g, "general.architecture", true, &name, &length));
	if (length != 5 || memcmp(name, "llama", 5))
		return gguf_refuse(g, -ERR_UNSUPPORTED,
				   "general.architecture: \"%s\" is not supported, \"llama\" is",
				   gguf_show(name, length));
	return check_split(g);
}

static int read_heads(struct gguf *g, struct arch *a)
{
	TRY(count_key(g, "llama.attention.head_count", true, MODEL_HEADS_MAX, &a->heads));
	a->kv_heads = a->heads;
	TRY(count_key(g, "llama.attention.head_count_kv", false, a->heads, &a->kv_heads));
	if (a->heads % a->kv_heads)
		return gguf_refuse(g, -ERR_BAD_FILE,
				   "llama.attention.head_count_kv: %u does not divide %u heads",
				   a->kv_heads, a->heads);
	if (!gguf_find(g, "llama.attention.key_length") && a->width % a->heads)
		return gguf_refuse(g, -ERR_BAD_FILE,
				   "llama.attention.head_count: %u does not divide the width %u",
				   a->heads, a->width);
	a->head = a->width / a->heads;
	TRY(count_key(g, "llama.attention.key_length", false, MODEL_HEAD_MAX, &a->head));
	uint32_t value = a->head;
	TRY(gguf_u32(g, "llama.attention.value_length", false, &value));
	if (value != a->head)
		return gguf_refuse(g, -ERR_UNSUPPORTED,
				   "llama.attention.value_length: %u, other than the key's %u is not supported",
				   value, a->head);
	if (a->head % 2)
		return gguf_refuse(g, -ERR_BAD_FILE, "llama.attention.key_length: %u is odd",
				   a->head);
	a->attention_scale = (float)(1.0 / sqrt(a->head));
	return 0;
}

static int read_rope(struct gguf *g, struct arch *a)
{
	const char *kind = "none";
	size_t length = 4;
	float factor = 1;
	a->rope = ROPE_ADJACENT;
	a->rope_dims = a->head;
	TRY(count_key(g, "llama.rope.dimension_count", false, a->head, &a->rope_dims));
	if (a->rope_dims % 2)
		return gguf_refuse(g, -ERR_BAD_FILE, "llama.rope.dimension_count: %u is odd",
				   a->rope_dims);
	a->rope_base = 10000;
	TRY(real_key(g, "llama.rope.freq_base", false, 1, 1e12, &a->rope_base));
	TRY(gguf_string(g, "llama.rope.scaling.type", false, &kind, &length));
	bool none = length == 4 && !memcmp(kind, "none", 4);
	if (!none && (length != 6 || memcmp(kind, "linear", 6)))
		return gguf_refuse(g, -ERR_UNSUPPORTED,
				   "llama.rope.scaling.type: \"%s\" is not supported",
				   gguf_show(kind, length));
	TRY(real_key(g, "llama.rope.scale_linear", false, 1e-6, 1e6, &factor));
	TRY(real_key(g, "llama.rope.scaling.factor", false, 1e-6, 1e6, &factor));
	bool old = gguf_find(g, "llama.rope.scale_linear") != NULL;
	a->rope_scale = none && !old ? 1 : 1 / factor;
	return 0;
}

/* What would change the arithmetic and is not computed here is refused by its key. */
static int check_absent(struct gguf *g, const struct arch *a)
{
	uint32_t experts = 0, window = 0;
	TRY(gguf_u32(g, "llama.expert_count", false, &experts));
	if (experts > 0)
		return gguf_refuse(g, -ERR_UNSUPPORTED,
				   "llama.expert_count: a mixture of %u experts is not supported",
				   experts);
	TRY(gguf_u32(g, "llama.attention.sliding_window", false, &window));
	if (window > 0 && window < a->context)
		return gguf_refuse(g, -ERR_UNSUPPORTED,
				   "llama.attention.sliding_window: a window of %u is not supported",
				   window);
	return 0;
}

static int read_keys(struct gguf *g, struct arch *a)
{
	memcpy(a->name, "llama", 6);
	TRY(count_key(g, "llama.block_count", true, MODEL_LAYERS_MAX, &a->layers));
	TRY(count_key(g, "llama.embedding_length", true, MODEL_WIDTH_MAX, &a->width));
	TRY(count_key(g, "llama.feed_forward_length", true, MODEL_FF_MAX, &a->ff));
	TRY(count_key(g, "llama.context_length", true, MODEL_CONTEXT_MAX, &a->context));
	TRY(real_key(g, "llama.attention.layer_norm_rms_epsilon", true, 1e-12, 1, &a->epsilon));
	TRY(read_heads(g, a));
	TRY(read_rope(g, a));
	a->gate = GATE_SILU;
	a->embedding_scale = 1;
	return check_absent(g, a);
}

/* One tensor that the architecture knows. */
struct need {
	const char *name; /* "%s" in front of it is the layer's "blk.N." */
	uint32_t rows, columns;
	bool vector;   /* not quantised */
	bool optional;
};

/* Counts in *seen the tensors that are there. */
static int check_tensor(struct gguf *g, const struct need *need, const char *prefix,
			uint32_t *seen)
{
	char name[GGUF_NAME_BYTES_MAX + 1];
	uint32_t elements = 0, bytes = 0;
	snprintf(name, sizeof name, "%s%s", prefix, need->name);
	uint32_t index = map_find(g->names, name, strlen(name));
	if (index == UINT32_MAX) {
		if (need->optional)
			return 0;
		return gguf_refuse(g, -ERR_BAD_FILE, "%s: the tensor is missing", name);
	}
	const struct tensor *t = &g->tensor[index];
	if (t->rows != need->rows || t->columns != need->columns)
		return gguf_refuse(g, -ERR_BAD_FILE, "%s: it has %u rows of %u, %u of %u are needed",
				   name, t->rows, t->columns, need->rows, need->columns);
	const char *type = gguf_type_block(t->type, &elements, &bytes);
	if (need->vector && elements != 1)
		return gguf_refuse(g, -ERR_UNSUPPORTED, "%s: a vector of type %s is not supported",
				   name, type);
	++*seen;
	return 0;
}

static int check_layers(struct gguf *g, const struct arch *a, uint32_t *seen)
{
	uint32_t q = a->heads * a->head, kv = a->kv_heads * a->head;
	bool bias = a->qkv_bias;
	const struct need needs[] = {
		{"attn_norm.weight", 1, a->width, true, false},
		{"attn_q.weight", q, a->width, false, false},
		{"attn_k.weight", kv, a->width, false, false},
		{"attn_v.weight", kv, a->width, false, false},
		{"attn_q.bias", 1, q, true, !bias},
		{"attn_k.bias", 1, kv, true, !bias},
		{"attn_v.bias", 1, kv, true, !bias},
		{"attn_output.weight", a->width, q, false, false},
		{"ffn_norm.weight", 1, a->width, true, false},
		{"ffn_gate.weight", a->ff, a->width, false, false},
		{"ffn_up.weight", a->ff, a->width, false, false},
		{"ffn_down.weight", a->width, a->ff, false, false},
	};
	for (uint32_t layer = 0; layer < a->layers; layer++) {
		char prefix[32];
		snprintf(prefix, sizeof prefix, "blk.%u.", layer);
		for (unsigned i = 0; i < sizeof needs / sizeof needs[0]; i++)
			TRY(check_tensor(g, &needs[i], prefix, seen));
	}
	return 0;
}

/* Names the first tensor that no architecture key accounts for: it would be left out of the sums. */
static int refuse_stray(struct gguf *g, const struct arch *a)
{
	static const char *const known[] = {
		"attn_norm.weight", "attn_q.weight", "attn_k.weight", "attn_v.weight",
		"attn_q.bias", "attn_k.bias", "attn_v.bias", "attn_output.weight",
		"ffn_norm.weight", "ffn_gate.weight", "ffn_up.weight", "ffn_down.weight",
	};
	static const char *const top[] = {"token_embd.weight", "output_norm.weight",
					  "output.weight", "rope_freqs.weight"};
	for (uint32_t i = 0; i < g->tensor_count; i++) {
		const char *name = g->tensor[i].name;
		bool taken = false;
		unsigned layer;
		int end = 0;
		for (unsigned k = 0; k < sizeof top / sizeof top[0]; k++)
			taken |= !strcmp(name, top[k]);
		if (sscanf(name, "blk.%3u.%n", &layer, &end) == 1 && end > 0 && layer < a->layers)
			for (unsigned k = 0; k < sizeof known / sizeof known[0]; k++)
				taken |= !strcmp(name + end, known[k]);
		if (!taken)
			return gguf_refuse(g, -ERR_UNSUPPORTED,
					   "%s: the architecture llama has no such tensor here",
					   gguf_show(name, strlen(name)));
	}
	return gguf_refuse(g, -ERR_BAD_FILE, "tensors: their names do not agree with the layers");
}

int load_arch(struct gguf *g, struct model *model)
{
	struct arch *a = &model->arch;
	uint32_t seen = 0, rows = 0;
	TRY(read_keys(g, a));
	a->vocab = model->vocabulary.count;
	uint32_t embedding = map_find(g->names, "token_embd.weight", 17);
	if (embedding != UINT32_MAX)
		rows = g->tensor[embedding].rows;
	/* Rows may be padded beyond the vocabulary; such ids do not exist. */
	if (embedding != UINT32_MAX && (rows < a->vocab || rows > MODEL_VOCAB_MAX))
		return gguf_refuse(g, -ERR_BAD_FILE,
				   "token_embd.weight: %u rows, the vocabulary has %u and %d are taken",
				   rows, a->vocab, MODEL_VOCAB_MAX);
	uint32_t stated = rows;
	TRY(gguf_u32(g, "llama.vocab_size", false, &stated));
	if (embedding != UINT32_MAX && stated != rows && stated != a->vocab)
		return gguf_refuse(g, -ERR_BAD_FILE,
				   "llama.vocab_size: %u, the embedding has %u rows", stated, rows);
	a->tied = map_find(g->names, "output.weight", 13) == UINT32_MAX;
	a->qkv_bias = map_find(g->names, "blk.0.attn_q.bias", 17) != UINT32_MAX;
	const struct need needs[] = {
		{"token_embd.weight", rows, a->width, false, false},
		{"output_norm.weight", 1, a->width, true, false},
		{"output.weight", rows, a->width, false, true},
		{"rope_freqs.weight", 1, a->rope_dims / 2, true, true},
	};
	for (unsigned i = 0; i < sizeof needs / sizeof needs[0]; i++)
		TRY(check_tensor(g, &needs[i], "", &seen));
	TRY(check_layers(g, a, &seen));
	return seen == g->tensor_count ? 0 : refuse_stray(g, a);
}
