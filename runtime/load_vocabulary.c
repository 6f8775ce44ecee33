/*
 * The vocabulary of a file: tokens, kinds, scores, merges, the ids that mean something. Strings stay
 * where they are in the metadata; only pointers are made.
 */
#include "runtime/load.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static int short_string(struct gguf *g, const char *key, size_t room, char *to)
{
	const char *text;
	size_t length;
	TRY(gguf_string(g, key, true, &text, &length));
	if (length >= room)
		return gguf_refuse(g, -ERR_UNSUPPORTED, "%s: \"%s\" is not supported", key,
				   gguf_show(text, length));
	memcpy(to, text, length);
	to[length] = 0;
	return 0;
}

static int read_kind(struct gguf *g, struct vocabulary *v)
{
	TRY(short_string(g, "tokenizer.ggml.model", sizeof v->model, v->model));
	/* A vocabulary of scores cuts no text beforehand; what the file calls that does not matter. */
	if (!strcmp(v->model, "llama"))
		return 0;
	if (strcmp(v->model, "gpt2"))
		return gguf_refuse(g, -ERR_UNSUPPORTED,
				   "tokenizer.ggml.model: \"%s\" is not supported, \"gpt2\" and "
				   "\"llama\" are", gguf_show(v->model, strlen(v->model)));
	if (!gguf_find(g, "tokenizer.ggml.pre"))
		return gguf_refuse(g, -ERR_UNSUPPORTED,
				   "tokenizer.ggml.pre: without the key the text would be cut wrongly");
	TRY(short_string(g, "tokenizer.ggml.pre", sizeof v->pre, v->pre));
	if (!pretokenizer_known(v->pre))
		return gguf_refuse(g, -ERR_UNSUPPORTED,
				   "tokenizer.ggml.pre: \"%s\" is not supported; smollm, gpt-2, qwen2, "
				   "llama-bpe and tekken are",
				   gguf_show(v->pre, strlen(v->pre)));
	return 0;
}

/* Fills pointers and lengths of a string array whose walk the structure's reader has checked. */
static int strings(struct gguf *g, const struct gguf_value *v, const char *key,
		   const char **text, uint32_t *length)
{
	size_t at = v->at;
	for (uint64_t i = 0; i < v->count; i++) {
		uint64_t bytes = gguf_get_u64(g->bytes + at);
		if (bytes > MODEL_TOKEN_BYTES_MAX)
			return gguf_refuse(g, -ERR_BAD_FILE, "%s: item %llu has %llu bytes, %d are taken",
					   key, (unsigned long long)i, (unsigned long long)bytes,
					   MODEL_TOKEN_BYTES_MAX);
		text[i] = (const char *)g->bytes + at + 8;
		length[i] = (uint32_t)bytes;
		at += 8 + bytes;
	}
	return 0;
}

static int read_kinds(struct gguf *g, const struct gguf_value *v, uint32_t count, uint8_t *kind)
{
	if (v->count != count)
		return gguf_refuse(g, -ERR_BAD_FILE,
				   "tokenizer.ggml.token_type: %llu items for %u tokens",
				   (unsigned long long)v->count, count);
	for (uint32_t i = 0; i < count; i++) {
		uint32_t k = gguf_get_u32(g->bytes + v->at + 4 * (size_t)i);
		if (k < TOKEN_NORMAL || k > TOKEN_BYTE)
			return gguf_refuse(g, -ERR_BAD_FILE,
					   "tokenizer.ggml.token_type: token %u has kind %d, 1 to 6 are taken",
					   i, (int)k);
		kind[i] = (uint8_t)k;
	}
	return 0;
}

/* The first space after index 0 parts a merge in two; both parts have bytes. */
static int check_merges(struct gguf *g, const struct vocabulary *v)
{
	for (uint32_t i = 0; i < v->merge_count; i++) {
		uint32_t n = v->merge_length[i];
		const char *space = n > 2 ? memchr(v->merge[i] + 1, ' ', n - 2) : NULL;
		if (!space)
			return gguf_refuse(g, -ERR_BAD_FILE,
					   "tokenizer.ggml.merges: item %u is not two parts", i);
	}
	return 0;
}

/* A vocabulary of scores orders merges by them, and writes what it has no token for byte by byte: it
   needs numbers, and a token for each of the 256 bytes. */
static int check_scores(struct gguf *g, const struct vocabulary *v)
{
	bool there[256] = {false};
	for (uint32_t i = 0; i < v->count; i++) {
		unsigned byte = 0;
		if (!isfinite(v->score[i]))
			return gguf_refuse(g, -ERR_BAD_FILE,
					   "tokenizer.ggml.scores: that of token %u is no number", i);
		if (v->kind[i] != TOKEN_BYTE)
			continue;
		bool right = v->length[i] == 6 && !memcmp(v->text[i], "<0x", 3) &&
			     v->text[i][5] == '>';
		for (unsigned n = 3; right && n < 5; n++) {
			const char c = v->text[i][n];
			right = memchr("0123456789ABCDEF", c, 16) != NULL;
			byte = byte * 16 + (unsigned)(c <= '9' ? c - '0' : c - 'A' + 10);
		}
		if (!right || there[byte])
			return gguf_refuse(g, -ERR_BAD_FILE,
					   "tokenizer.ggml.tokens: token %u is a byte by its kind, and %s",
					   i, right ? "the second of that byte" : "not <0x00> to <0xFF>");
		there[byte] = true;
	}
	for (unsigned b = 0; b < 256; b++)
		if (!there[b])
			return gguf_refuse(g, -ERR_BAD_FILE,
					   "tokenizer.ggml.tokens: byte 0x%02X has no token", b);
	return 0;
}

/* Every token id that a key names must be one; the few that matter are kept. */
static int read_ids(struct gguf *g, struct vocabulary *v)
{
	static const char start[] = "tokenizer.ggml.", end[] = "_token_id";
	v->bos = v->eos = v->eot = v->unknown = v->pad = UINT32_MAX;
	/* What these families do when a file does not say. */
	v->add_space_prefix = !strcmp(v->model, "llama");
	v->add_bos = v->add_space_prefix || !strcmp(v->pre, "tekken") || !strncmp(v->pre, "llama", 5);
	for (uint32_t i = 0; i < g->value_count; i++) {
		const struct gguf_value *value = &g->value[i];
		const char *key = (const char *)g->bytes + value->key_at;
		size_t n = value->key_length;
		if (n < sizeof start + sizeof end - 2 || memcmp(key, start, sizeof start - 1) ||
		    memcmp(key + n - (sizeof end - 1), end, sizeof end - 1))
			continue;
		if (value->type != GGUF_U32)
			return gguf_refuse(g, -ERR_BAD_FILE, "%s: its type must be uint32",
					   gguf_show(key, n));
		uint32_t id = gguf_get_u32(g->bytes + value->at);
		if (id >= v->count)
			return gguf_refuse(g, -ERR_BAD_FILE, "%s: id %u, there are %u tokens",
					   gguf_show(key, n), id, v->count);
	}
	TRY(gguf_u32(g, "tokenizer.ggml.bos_token_id", false, &v->bos));
	TRY(gguf_u32(g, "tokenizer.ggml.eos_token_id", false, &v->eos));
	TRY(gguf_u32(g, "tokenizer.ggml.eot_token_id", false, &v->eot));
	TRY(gguf_u32(g, "tokenizer.ggml.unknown_token_id", false, &v->unknown));
	TRY(gguf_u32(g, "tokenizer.ggml.padding_token_id", false, &v->pad));
	TRY(gguf_bool(g, "tokenizer.ggml.add_bos_token", &v->add_bos));
	TRY(gguf_bool(g, "tokenizer.ggml.add_eos_token", &v->add_eos));
	return gguf_bool(g, "tokenizer.ggml.add_space_prefix", &v->add_space_prefix);
}

static int check_counts(struct gguf *g, const struct gguf_value *tokens,
			const struct gguf_value *merges, const struct gguf_value *scores)
{
	if (tokens->count == 0 || tokens->count > MODEL_VOCAB_MAX)
		return gguf_refuse(g, -ERR_BAD_FILE, "tokenizer.ggml.tokens: %llu items, 1 to %d are taken",
				   (unsigned long long)tokens->count, MODEL_VOCAB_MAX);
	if (merges && merges->count > MODEL_MERGES_MAX)
		return gguf_refuse(g, -ERR_BAD_FILE, "tokenizer.ggml.merges: %llu items, %d are taken",
				   (unsigned long long)merges->count, MODEL_MERGES_MAX);
	if (scores && scores->count != tokens->count)
		return gguf_refuse(g, -ERR_BAD_FILE,
				   "tokenizer.ggml.scores: %llu items for %llu tokens",
				   (unsigned long long)scores->count,
				   (unsigned long long)tokens->count);
	return 0;
}

/* The parts of the one allocation, largest alignment first. */
static int allocate(struct gguf *g, struct vocabulary *v, bool scores, size_t template_length,
		    void **memory)
{
	size_t tokens = v->count, merges = v->merge_count;
	size_t bytes = tokens * (sizeof(char *) + sizeof(float) + sizeof(uint32_t) + 1) +
		       merges * (sizeof(char *) + sizeof(uint32_t)) + template_length + 1;
	char *at = calloc(1, bytes);
	*memory = at;
	if (!at)
		return gguf_refuse(g, -ERR_MEMORY, "vocabulary: no memory for %zu bytes", bytes);
	v->text = (const char **)(void *)at;
	at += tokens * sizeof(char *);
	v->merge = (const char **)(void *)at;
	at += merges * sizeof(char *);
	v->length = (uint32_t *)(void *)at;
	at += tokens * sizeof(uint32_t);
	v->merge_length = (uint32_t *)(void *)at;
	at += merges * sizeof(uint32_t);
	if (scores)
		v->score = (float *)(void *)at;
	at += tokens * sizeof(float);
	v->kind = (uint8_t *)at;
	at += tokens;
	v->chat_template = at;
	return 0;
}

int load_vocabulary(struct gguf *g, struct model *model, void **memory)
{
	struct vocabulary *v = &model->vocabulary;
	const struct gguf_value *tokens, *merges, *scores, *kinds;
	const char *text = NULL;
	size_t length = 0;
	TRY(read_kind(g, v));
	TRY(gguf_array(g, "tokenizer.ggml.tokens", GGUF_STRING, true, &tokens));
	const bool by_score = !strcmp(v->model, "llama");
	TRY(gguf_array(g, "tokenizer.ggml.merges", GGUF_STRING, !by_score, &merges));
	TRY(gguf_array(g, "tokenizer.ggml.scores", GGUF_F32, by_score, &scores));
	if (by_score)
		merges = NULL;
	TRY(gguf_array(g, "tokenizer.ggml.token_type", GGUF_I32, true, &kinds));
	TRY(gguf_string(g, "tokenizer.chat_template", false, &text, &length));
	TRY(check_counts(g, tokens, merges, scores));
	v->count = (uint32_t)tokens->count;
	v->merge_count = merges ? (uint32_t)merges->count : 0;
	TRY(allocate(g, v, scores != NULL, length, memory));
	/* Written here once, through the one allocation; const for everybody else. */
	TRY(strings(g, tokens, "tokenizer.ggml.tokens", v->text, (uint32_t *)v->length));
	if (merges)
		TRY(strings(g, merges, "tokenizer.ggml.merges", v->merge, (uint32_t *)v->merge_length));
	TRY(read_kinds(g, kinds, v->count, (uint8_t *)v->kind));
	if (scores)
		memcpy((float *)v->score, g->bytes + scores->at, v->count * sizeof(float));
	TRY(check_merges(g, v));
	if (by_score)
		TRY(check_scores(g, v));
	if (text)
		memcpy((char *)v->chat_template, text, length);
	else
		v->chat_template = NULL;
	v->chat_template_length = length;
	return read_ids(g, v);
}
