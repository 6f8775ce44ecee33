/*
 * config.json as GGUF's keys. What a field means and defaults to is as in transformers' configuration
 * and modeling files.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/load_hub.h"

static const double pi = 3.14159265358979323846;

struct config {
	struct hub *hub;
	struct json json;
};

/* A member that is there and not null. */
static bool has(const struct config *c, const char *field, struct json *value)
{
	return json_find(c->json, field, value) && json_kind(*value) != JSON_NULL;
}

static int count_field(const struct config *c, const char *field, bool required, const char *key)
{
	struct json value;
	int64_t number;
	char name[64];
	if (!has(c, field, &value))
		return required ? hub_refuse(c->hub, -ERR_BAD_FILE, "config.json: %s is missing", field) : 0;
	if (!json_integer(value, 1, INT32_MAX, &number))
		return hub_refuse(c->hub, -ERR_BAD_FILE, "config.json: %s is no number from 1 to %d", field,
				  INT32_MAX);
	snprintf(name, sizeof name, "%s.%s", c->hub->family->name, key);
	hub_key_u32(&c->hub->out, name, (uint32_t)number);
	return 0;
}

/* A JSON number that was checked; its text ends where the number does. */
static bool real_of(struct json value, double *out)
{
	char text[64];
	if (json_kind(value) != JSON_NUMBER || value.length >= sizeof text)
		return false;
	memcpy(text, value.at, value.length);
	text[value.length] = 0;
	*out = strtod(text, NULL);
	return isfinite(*out);
}

static int real_value(const struct config *c, struct json value, const char *field, const char *key)
{
	double number;
	char name[64];
	if (!real_of(value, &number))
		return hub_refuse(c->hub, -ERR_BAD_FILE, "config.json: %s is no number", field);
	const float narrow = (float)number;
	uint32_t bits;
	memcpy(&bits, &narrow, sizeof bits);
	snprintf(name, sizeof name, "%s.%s", c->hub->family->name, key);
	hub_key(&c->hub->out, name, GGUF_F32);
	hub_put_u32(&c->hub->out, bits);
	return 0;
}

static int real_field(const struct config *c, const char *field, bool required, const char *key)
{
	struct json value;
	if (has(c, field, &value))
		return real_value(c, value, field, key);
	return required ? hub_refuse(c->hub, -ERR_BAD_FILE, "config.json: %s is missing", field) : 0;
}

static bool true_field(const struct config *c, const char *field)
{
	struct json value;
	return has(c, field, &value) && json_kind(value) == JSON_BOOL && json_true(value);
}

static int type_find(const struct config *c)
{
	static const struct {
		const char *type, *family;
	} types[] = {{"llama", "llama"}, {"mistral", "llama"}, {"qwen2", "qwen2"}, {"qwen3", "qwen3"},
		     {"gemma3_text", "gemma3"}};
	struct json value;
	char name[64] = "";
	if (!has(c, "model_type", &value) || !hub_string(value, name, sizeof name))
		return hub_refuse(c->hub, -ERR_BAD_FILE, "config.json: model_type is missing");
	for (size_t i = 0; i < sizeof types / sizeof types[0]; i++)
		if (!strcmp(name, types[i].type))
			c->hub->family = family_find(types[i].family, strlen(types[i].family));
	if (!c->hub->family)
		return hub_refuse(c->hub, -ERR_UNSUPPORTED,
				  "config.json: model_type \"%s\" is not supported; llama, mistral, qwen2, "
				  "qwen3 and gemma3_text are", gguf_show(name, strlen(name)));
	c->hub->gemma = !strcmp(c->hub->family->name, "gemma3");
	return 0;
}

/* What would change the arithmetic and is not computed here. */
static int absent_check(const struct config *c)
{
	static const char *const fields[] = {"quantization_config", "num_local_experts", "num_experts"};
	struct json value;
	char name[40] = "";
	for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++)
		if (has(c, fields[i], &value))
			return hub_refuse(c->hub, -ERR_UNSUPPORTED, "config.json: %s is not supported",
					  fields[i]);
	if (true_field(c, "mlp_bias"))
		return hub_refuse(c->hub, -ERR_UNSUPPORTED, "config.json: mlp_bias is not supported");
	const char *act = c->hub->gemma ? "gelu_pytorch_tanh" : "silu";
	if ((has(c, "hidden_activation", &value) || has(c, "hidden_act", &value)) &&
	    (!hub_string(value, name, sizeof name) || strcmp(name, act)))
		return hub_refuse(c->hub, -ERR_UNSUPPORTED, "config.json: activation \"%s\", only %s is supported",
				  gguf_show(name, strlen(name)), act);
	return 0;
}

static int window_read(const struct config *c)
{
	struct json value;
	const bool qwen = !strncmp(c->hub->family->name, "qwen", 4);
	if (qwen && !true_field(c, "use_sliding_window"))
		return 0;
	TRY(count_field(c, "sliding_window", false, "attention.sliding_window"));
	if (!c->hub->gemma)
		return 0;
	int64_t period = 6, layers = 0;
	if (has(c, "sliding_window_pattern", &value) || has(c, "_sliding_window_pattern", &value)) {
		if (!json_integer(value, 1, MODEL_LAYERS_MAX, &period))
			return hub_refuse(c->hub, -ERR_BAD_FILE,
					  "config.json: sliding_window_pattern is not 1 to %d",
					  MODEL_LAYERS_MAX);
		hub_key_u32(&c->hub->out, "gemma3.attention.sliding_window_pattern", (uint32_t)period);
	}
	if (!has(c, "layer_types", &value) || json_kind(value) != JSON_ARRAY)
		return 0;
	struct json item;
	struct json_walk walk = json_walk(value);
	while (json_next(&walk, NULL, &item)) {
		const bool local = ++layers % period != 0;
		const char *want = local ? "sliding_attention" : "full_attention";
		if (!json_equals(item, want, strlen(want)))
			return hub_refuse(c->hub, -ERR_UNSUPPORTED,
					  "config.json: layer_types: layer %lld is not %s, one in %lld is full",
					  (long long)layers, want, (long long)period);
	}
	return 0;
}

/* Llama 3.1's factors: what they do is in transformers' modeling_rope_utils.py. */
static int factors_make(const struct config *c, const struct config *scaling, double base, uint32_t head)
{
	static const char *const fields[4] = {"factor", "low_freq_factor", "high_freq_factor",
					      "original_max_position_embeddings"};
	struct json value;
	double f[4];
	for (int i = 0; i < 4; i++)
		if (!has(scaling, fields[i], &value) || !real_of(value, &f[i]) || !(f[i] > 0) || f[i] > 1e9)
			return hub_refuse(c->hub, -ERR_BAD_FILE, "config.json: rope_scaling: %s is no number above 0",
					  fields[i]);
	if (!(f[2] > f[1]))
		return hub_refuse(c->hub, -ERR_BAD_FILE,
				  "config.json: rope_scaling: high_freq_factor is not above low_freq_factor");
	struct tensor t = {.type = TYPE_F32, .rows = 1, .columns = head / 2,
			   .bytes = (uint64_t)(head / 2) * sizeof(float)};
	float *made = hub_make(c->hub, t.bytes);
	if (!made)
		return hub_refuse(c->hub, -ERR_MEMORY, "no memory");
	for (uint32_t i = 0; i < head / 2; i++) {
		const double length = 2 * pi * pow(base, 2.0 * i / head);
		const double smooth = (f[3] / length - f[1]) / (f[2] - f[1]);
		double factor = 1; /* short waves stay */
		if (length > f[3] / f[1])
			factor = f[0];
		else if (length >= f[3] / f[2])
			factor = 1 / ((1 - smooth) / f[0] + smooth);
		made[i] = (float)factor;
	}
	t.made = made;
	return hub_tensor(c->hub, "rope_freqs.weight", &t);
}

static int rope_read(const struct config *c, uint32_t head)
{
	struct config inner = {.hub = c->hub};
	struct json value;
	char kind[32] = "default", key[64];
	double base = 10000;
	TRY(real_field(c, "rope_theta", false, "rope.freq_base"));
	if (has(c, "rope_theta", &value))
		real_of(value, &base);
	if (c->hub->gemma)
		TRY(real_field(c, "rope_local_base_freq", false, "rope.freq_base_swa"));
	if (!has(c, "rope_scaling", &inner.json))
		return 0;
	if ((has(&inner, "rope_type", &value) || has(&inner, "type", &value)) &&
	    !hub_string(value, kind, sizeof kind))
		return hub_refuse(c->hub, -ERR_BAD_FILE, "config.json: rope_scaling: no rope_type");
	if (!strcmp(kind, "default"))
		return 0;
	if (!strcmp(kind, "llama3"))
		return factors_make(c, &inner, base, head);
	if (strcmp(kind, "linear"))
		return hub_refuse(c->hub, -ERR_UNSUPPORTED, "config.json: rope_scaling: \"%s\" is not supported",
				  gguf_show(kind, strlen(kind)));
	snprintf(key, sizeof key, "%s.rope.scaling.type", c->hub->family->name);
	hub_key_text(&c->hub->out, key, "linear", 6);
	return real_field(&inner, "factor", true, "rope.scaling.factor");
}

/* The size of a head, for what must be known here; what is wrong in it is found by the reader of the
   keys. */
static uint32_t head_of(const struct config *c)
{
	struct json value;
	int64_t head = 0, width = 0, heads = 1;
	if (has(c, "head_dim", &value) && json_integer(value, 1, MODEL_HEAD_MAX, &head))
		return (uint32_t)head;
	if (has(c, "hidden_size", &value))
		json_integer(value, 1, MODEL_WIDTH_MAX, &width);
	if (has(c, "num_attention_heads", &value))
		json_integer(value, 1, MODEL_WIDTH_MAX, &heads);
	return (uint32_t)(width / heads) & ~1u;
}

/* An id, or the first of a list; UINT32_MAX: none. */
static uint32_t id_field(const struct config *c, const char *field)
{
	struct json value;
	int64_t id;
	if (!has(c, field, &value))
		return UINT32_MAX;
	if (json_kind(value) == JSON_ARRAY) {
		struct json_walk walk = json_walk(value);
		if (!json_next(&walk, NULL, &value))
			return UINT32_MAX;
	}
	return json_integer(value, 0, INT32_MAX, &id) ? (uint32_t)id : UINT32_MAX;
}

int hub_config(struct hub *hub, struct json json)
{
	const struct config config = {hub, json}, *c = &config;
	struct json value;
	double scalar;
	if (json_kind(json) != JSON_OBJECT)
		return hub_refuse(hub, -ERR_BAD_FILE, "config.json: it is no object");
	TRY(type_find(c));
	TRY(absent_check(c));
	hub_key_text(&hub->out, "general.architecture", hub->family->name, strlen(hub->family->name));
	TRY(count_field(c, "num_hidden_layers", true, "block_count"));
	TRY(count_field(c, "hidden_size", true, "embedding_length"));
	TRY(count_field(c, "intermediate_size", true, "feed_forward_length"));
	TRY(count_field(c, "max_position_embeddings", true, "context_length"));
	TRY(count_field(c, "num_attention_heads", true, "attention.head_count"));
	TRY(count_field(c, "num_key_value_heads", false, "attention.head_count_kv"));
	TRY(count_field(c, "head_dim", false, "attention.key_length"));
	TRY(count_field(c, "vocab_size", false, "vocab_size"));
	TRY(real_field(c, "rms_norm_eps", true, "attention.layer_norm_rms_epsilon"));
	if (hub->family->softcaps) {
		TRY(real_field(c, "attn_logit_softcapping", false, "attn_logit_softcapping"));
		TRY(real_field(c, "final_logit_softcapping", false, "final_logit_softcapping"));
	}
	TRY(window_read(c));
	TRY(rope_read(c, head_of(c)));
	if (has(c, "query_pre_attn_scalar", &value)) {
		if (!real_of(value, &scalar) || !(scalar > 0))
			return hub_refuse(hub, -ERR_BAD_FILE, "config.json: query_pre_attn_scalar is no number above 0");
		hub->attention_scale = (float)(1 / sqrt(scalar));
	}
	/* Gemma's is tied unless the file says otherwise, the others' is not. */
	hub->tied_stated = has(c, "tie_word_embeddings", &value);
	hub->tied = hub->tied_stated ? true_field(c, "tie_word_embeddings") : hub->gemma;
	hub->bos = id_field(c, "bos_token_id");
	hub->eos = id_field(c, "eos_token_id");
	return 0;
}
