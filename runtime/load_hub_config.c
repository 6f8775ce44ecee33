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
	const char *where; /* "" or the name of a part of the file, with a colon */
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
		return required ? hub_refuse(c->hub, -ERR_BAD_FILE,
					     "config.json: %s%s is missing", c->where, field) : 0;
	if (!json_integer(value, 1, INT32_MAX, &number))
		return hub_refuse(c->hub, -ERR_BAD_FILE,
				  "config.json: %s%s: %s is no number from 1 to %d", c->where, field,
				  gguf_show(value.at, value.length), INT32_MAX);
	snprintf(name, sizeof name, "%s.%s", c->hub->family->name, key);
	hub_key_u32(&c->hub->out, name, (uint32_t)number);
	return 0;
}

static bool real_of(struct json value, double *out)
{
	return json_real(value, out) && isfinite(*out);
}

static int real_value(const struct config *c, struct json value, const char *field, const char *key)
{
	double number;
	char name[64];
	if (!real_of(value, &number))
		return hub_refuse(c->hub, -ERR_BAD_FILE, "config.json: %s%s: %s is no number", c->where, field,
				  gguf_show(value.at, value.length));
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
	return required ? hub_refuse(c->hub, -ERR_BAD_FILE, "config.json: %s%s is missing", c->where, field) : 0;
}

/* What is said, or else what *out is. */
static int flag_field(const struct config *c, const char *field, bool *out)
{
	struct json value;
	if (!has(c, field, &value))
		return 0;
	if (json_kind(value) != JSON_BOOL)
		return hub_refuse(c->hub, -ERR_BAD_FILE, "config.json: %s: %s is neither true nor false", field,
				  gguf_show(value.at, value.length));
	*out = json_true(value);
	return 0;
}

static int type_find(const struct config *c)
{
	static const struct {
		const char *type, *family;
	} types[] = {{"llama", "llama"}, {"mistral", "llama"}, {"qwen2", "qwen2"}, {"qwen3", "qwen3"},
		     {"gemma3_text", "gemma3"}};
	struct json value;
	char name[64] = "";
	if (!has(c, "model_type", &value))
		return hub_refuse(c->hub, -ERR_BAD_FILE, "config.json: model_type is missing");
	if (!hub_string(value, name, sizeof name))
		return hub_refuse(c->hub, -ERR_BAD_FILE, "config.json: model_type: %s is no string of 1 to %zu bytes",
				  gguf_show(value.at, value.length), sizeof name - 1);
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
	static const char *const flags[] = {"mlp_bias", "use_bidirectional_attention"};
	struct json value;
	char name[40] = "";
	for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++)
		if (has(c, fields[i], &value))
			return hub_refuse(c->hub, -ERR_UNSUPPORTED, "config.json: %s is not supported",
					  fields[i]);
	for (size_t i = 0; i < sizeof flags / sizeof flags[0]; i++) {
		bool said = false;
		TRY(flag_field(c, flags[i], &said));
		if (said)
			return hub_refuse(c->hub, -ERR_UNSUPPORTED, "config.json: %s is not supported", flags[i]);
	}
	const char *act = c->hub->gemma ? "gelu_pytorch_tanh" : "silu";
	if ((has(c, "hidden_activation", &value) || has(c, "hidden_act", &value)) &&
	    (!hub_string(value, name, sizeof name) || strcmp(name, act)))
		return hub_refuse(c->hub, -ERR_UNSUPPORTED, "config.json: activation %s, only %s is supported",
				  gguf_show(value.at, value.length), act);
	return 0;
}

/* Which layers have a window follows from another field: all but one in `period`. A list of them must say
   the same. */
static int layers_check(const struct config *c, int64_t period, const char *field)
{
	struct json value, item, count;
	int64_t layers = 0;
	if (!has(c, "layer_types", &value))
		return 0;
	struct json_walk walk = json_walk(value);
	while (json_kind(value) == JSON_ARRAY && json_next(&walk, NULL, &item)) {
		const bool local = ++layers % period != 0;
		const char *want = local ? "sliding_attention" : "full_attention";
		if (!json_equals(item, want, strlen(want)))
			return hub_refuse(c->hub, -ERR_UNSUPPORTED,
					  "config.json: layer_types: layer %lld is not %s, as %s has it",
					  (long long)layers, want, field);
	}
	if (has(c, "num_hidden_layers", &count) && !json_integer(count, layers, layers, &layers))
		return hub_refuse(c->hub, -ERR_BAD_FILE,
				  "config.json: layer_types is no list of num_hidden_layers, %s, names",
				  gguf_show(count.at, count.length));
	return 0;
}

/* Gemma's window is in all layers but one in a period; the others' is in all layers or in none. */
static int window_read(const struct config *c)
{
	enum { ALL_FULL = 1 };
	struct json value;
	bool used = strncmp(c->hub->family->name, "qwen", 4) != 0;
	if (!used)
		TRY(flag_field(c, "use_sliding_window", &used));
	if (!used)
		return layers_check(c, ALL_FULL, "use_sliding_window");
	TRY(count_field(c, "sliding_window", c->hub->gemma, "attention.sliding_window"));
	if (!c->hub->gemma) {
		struct json length;
		int64_t window = 0, context = 0;
		if (!has(c, "sliding_window", &value))
			return layers_check(c, ALL_FULL, "no sliding_window");
		/* One as long as the context is none, and then all kinds of layers are the same (load_arch.c). */
		if (json_integer(value, 1, INT32_MAX, &window) && has(c, "max_position_embeddings", &length) &&
		    json_integer(length, 1, INT32_MAX, &context) && window >= context)
			return 0;
		return layers_check(c, INT64_MAX, "sliding_window");
	}
	int64_t period = 6;
	if (has(c, "sliding_window_pattern", &value) || has(c, "_sliding_window_pattern", &value)) {
		if (!json_integer(value, 1, MODEL_LAYERS_MAX, &period))
			return hub_refuse(c->hub, -ERR_BAD_FILE,
					  "config.json: sliding_window_pattern: %s is no number from 1 to %d",
					  gguf_show(value.at, value.length), MODEL_LAYERS_MAX);
		hub_key_u32(&c->hub->out, "gemma3.attention.sliding_window_pattern", (uint32_t)period);
	}
	return layers_check(c, period, "sliding_window_pattern");
}

/* Llama 3.1's factors: what they do is in transformers' modeling_rope_utils.py. */
static int factors_make(const struct config *c, const struct config *rope, double base, uint32_t head)
{
	static const char *const fields[4] = {"factor", "low_freq_factor", "high_freq_factor",
					      "original_max_position_embeddings"};
	struct json value;
	double f[4];
	for (int i = 0; i < 4; i++)
		if (!has(rope, fields[i], &value) || !real_of(value, &f[i]) || !(f[i] > 0) || f[i] > 1e9)
			return hub_refuse(c->hub, -ERR_BAD_FILE, "config.json: %s%s is no number above 0, up to 1e9",
					  rope->where, fields[i]);
	if (!(f[2] > f[1]))
		return hub_refuse(c->hub, -ERR_BAD_FILE,
				  "config.json: %shigh_freq_factor %g is not above low_freq_factor %g", rope->where,
				  f[2], f[1]);
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

/* rope_parameters is one RoPE, or has one for each kind of layer, and then for both. */
static int rope_apart(const struct config *c, struct config *rope, struct config *local)
{
	struct json key, value, full = {0}, sliding = {0};
	bool apart = false;
	struct json_walk walk = json_walk(rope->json);
	while (json_next(&walk, &key, &value)) {
		const bool object = json_kind(value) == JSON_OBJECT;
		if (json_equals(key, "full_attention", 14))
			full = object ? value : (struct json){0};
		else if (json_equals(key, "sliding_attention", 17))
			sliding = object ? value : (struct json){0};
		else if (!object)
			continue; /* what the one RoPE says of itself */
		apart = true;
	}
	if (!apart)
		return 0;
	if (!full.at || !sliding.at)
		return hub_refuse(c->hub, -ERR_BAD_FILE,
				  "config.json: rope_parameters: full_attention and sliding_attention are not two objects");
	rope->json = full;
	rope->where = "rope_parameters: full_attention: ";
	local->json = sliding;
	local->where = "rope_parameters: sliding_attention: ";
	return 0;
}

/* What RoPE does in the layers that see all: rope_scaling with the base beside it, or rope_parameters with
   the base in it, which newer files have. In *local what window layers do, if it is said apart; at NULL
   otherwise. */
static int rope_find(const struct config *c, struct config *rope, struct config *local)
{
	struct json value;
	const bool newer = has(c, "rope_parameters", &rope->json), older = has(c, "rope_scaling", &value);
	if (newer && older)
		return hub_refuse(c->hub, -ERR_BAD_FILE,
				  "config.json: rope_parameters and rope_scaling: one of the two is taken");
	rope->where = newer ? "rope_parameters: " : "rope_scaling: ";
	if (older)
		rope->json = value;
	if (!newer && !older)
		rope->json = (struct json){"{}", 2};
	if (json_kind(rope->json) != JSON_OBJECT)
		return hub_refuse(c->hub, -ERR_BAD_FILE, "config.json: %s%s is no object", rope->where,
				  gguf_show(rope->json.at, rope->json.length));
	return newer ? rope_apart(c, rope, local) : 0;
}

/* The kind of scaling. */
static int rope_kind(const struct config *rope, char *kind, size_t room)
{
	struct json value;
	snprintf(kind, room, "default");
	if ((has(rope, "rope_type", &value) || has(rope, "type", &value)) && !hub_string(value, kind, room))
		return hub_refuse(rope->hub, -ERR_BAD_FILE, "config.json: %srope_type: %s is no name", rope->where,
				  gguf_show(value.at, value.length));
	return 0;
}

/* What would turn a part of a head only is refused. */
static int rope_whole(const struct config *where)
{
	struct json value;
	double part;
	if (has(where, "partial_rotary_factor", &value) && !(real_of(value, &part) && part >= 1 && part <= 1))
		return hub_refuse(where->hub, -ERR_UNSUPPORTED,
				  "config.json: %spartial_rotary_factor: %s is not supported, only 1", where->where,
				  gguf_show(value.at, value.length));
	return 0;
}

/* RoPE in window layers; `base` is that of the others. */
static int rope_local(const struct config *c, const struct config *local, double base)
{
	struct json value;
	char kind[32];
	double own;
	if (!local->json.at)
		return c->hub->gemma ? real_field(c, "rope_local_base_freq", false, "rope.freq_base_swa") : 0;
	TRY(rope_whole(local));
	TRY(rope_kind(local, kind, sizeof kind));
	if (strcmp(kind, "default"))
		return hub_refuse(c->hub, -ERR_UNSUPPORTED, "config.json: %s\"%s\" is not supported, only default",
				  local->where, gguf_show(kind, strlen(kind)));
	if (c->hub->gemma)
		return real_field(local, "rope_theta", true, "rope.freq_base_swa");
	if (has(local, "rope_theta", &value) && !(real_of(value, &own) && own >= base && own <= base))
		return hub_refuse(c->hub, -ERR_UNSUPPORTED,
				  "config.json: %srope_theta: %s is not supported, only that of the other layers",
				  local->where, gguf_show(value.at, value.length));
	return 0;
}

static int rope_read(const struct config *c, uint32_t head)
{
	struct config rope = {.hub = c->hub}, local = {.hub = c->hub};
	struct json value;
	char kind[32], key[64];
	double base = 10000;
	TRY(rope_find(c, &rope, &local));
	TRY(rope_whole(c));
	TRY(rope_whole(&rope));
	const struct config *of_base = has(&rope, "rope_theta", &value) ? &rope : c;
	TRY(real_field(of_base, "rope_theta", c->hub->gemma, "rope.freq_base"));
	if (has(of_base, "rope_theta", &value))
		real_of(value, &base);
	TRY(rope_local(c, &local, base));
	TRY(rope_kind(&rope, kind, sizeof kind));
	if (!strcmp(kind, "default"))
		return 0;
	if (!strcmp(kind, "llama3"))
		return factors_make(c, &rope, base, head);
	if (strcmp(kind, "linear"))
		return hub_refuse(c->hub, -ERR_UNSUPPORTED,
				  "config.json: %s\"%s\" is not supported; default, linear and llama3 are",
				  rope.where, gguf_show(kind, strlen(kind)));
	snprintf(key, sizeof key, "%s.rope.scaling.type", c->hub->family->name);
	hub_key_text(&c->hub->out, key, "linear", 6);
	return real_field(&rope, "factor", true, "rope.scaling.factor");
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
static int id_field(const struct config *c, const char *field, uint32_t *out)
{
	struct json value;
	int64_t id;
	*out = UINT32_MAX;
	if (!has(c, field, &value))
		return 0;
	struct json_walk walk = json_walk(value);
	if (json_kind(value) == JSON_ARRAY && !json_next(&walk, NULL, &value))
		return 0;
	if (!json_integer(value, 0, INT32_MAX, &id))
		return hub_refuse(c->hub, -ERR_BAD_FILE, "config.json: %s: %s is no id from 0 to %d", field,
				  gguf_show(value.at, value.length), INT32_MAX);
	*out = (uint32_t)id;
	return 0;
}

int hub_config(struct hub *hub, struct json json)
{
	const struct config config = {hub, json, ""}, *c = &config;
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
			return hub_refuse(hub, -ERR_BAD_FILE,
					  "config.json: query_pre_attn_scalar: %s is no number above 0",
					  gguf_show(value.at, value.length));
		hub->attention_scale = (float)(1 / sqrt(scalar));
	}
	/* Gemma's is tied unless the file says otherwise, the others' is not. */
	hub->tied = hub->gemma;
	TRY(flag_field(c, "tie_word_embeddings", &hub->tied));
	TRY(id_field(c, "bos_token_id", &hub->bos));
	return id_field(c, "eos_token_id", &hub->eos);
}
