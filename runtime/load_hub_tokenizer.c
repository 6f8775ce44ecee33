/*
 * tokenizer.json as GGUF's keys: tokens by their ids, their kinds, merges (or, for a vocabulary with
 * byte fallback, scores in the merges' order), and what cuts text beforehand, known by its pattern. The
 * format is that of Hugging Face's tokenizers library. What the keys say is checked by load_vocabulary.c.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/load_hub.h"

enum { TEMPLATE_BYTES_MAX = 1 << 20 };

struct token {
	char *text; /* in the arena */
	uint32_t length, kind;
	float score;
};

struct tables {
	struct hub *hub;
	struct token *token; /* by id; text NULL: no such id */
	uint32_t count;      /* the largest id, and one */
	char *arena;         /* as large as the file: texts are shorter than what they are made of */
	size_t used;
	bool scores;         /* SentencePiece */
	struct map *ids;     /* by text */
	/* A field that is not what it should be, and what it is not; NULL: none was met. */
	const char *wrong, *wrong_as;
};

/* The patterns of the pre-tokenizers that are known, by which their tokenizer.json cuts text. */
static const struct {
	const char *pattern, *pre;
} patterns[] = {
	{"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*"
	 "|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+", "llama-bpe"},
	{"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*"
	 "|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+", "qwen2"},
	{"[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+"
	 "|[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*|\\p{N}"
	 "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+", "tekken"},
};

static bool is(struct json object, const char *field, const char *text)
{
	struct json value;
	return json_find(object, field, &value) && json_equals(value, text, strlen(text));
}

/* What is neither is noted, and refused in the end. */
static bool is_true(struct tables *t, struct json object, const char *field, bool otherwise)
{
	struct json value;
	if (!json_find(object, field, &value) || json_kind(value) == JSON_NULL)
		return otherwise;
	if (json_kind(value) == JSON_BOOL)
		return json_true(value);
	t->wrong = field;
	t->wrong_as = "neither true nor false";
	return otherwise;
}

/* Keeps a string's bytes in the arena. */
static char *keep(struct tables *t, struct json string, uint32_t *length)
{
	char *at = t->arena + t->used;
	*length = (uint32_t)json_string(string, at);
	t->used += *length;
	return at;
}

/* A token that is found in the text as it is (Gemma's runs of spaces) is written with U+2581 for each space,
   as the others are that the normaliser's text is made of. Returns the new length. */
static uint32_t spaces_back(char *text, uint32_t length)
{
	uint32_t n = 0;
	for (uint32_t i = 0; i < length;) {
		const bool space = length - i >= 3 && memcmp(text + i, "\xe2\x96\x81", 3) == 0;
		text[n++] = space ? ' ' : text[i];
		i += space ? 3 : 1;
	}
	return n;
}

static int token_put(struct tables *t, struct json text, struct json id_value, uint32_t kind)
{
	int64_t id;
	if (json_kind(text) != JSON_STRING)
		return hub_refuse(t->hub, -ERR_BAD_FILE, "tokenizer.json: an added token's content is %s, no string",
				  gguf_show(text.at, text.length));
	if (!json_integer(id_value, 0, HUB_TOKENS_MAX - 1, &id))
		return hub_refuse(t->hub, -ERR_BAD_FILE, "tokenizer.json: the id of %s is %s, not 0 to %d",
				  gguf_show(text.at, text.length), gguf_show(id_value.at, id_value.length),
				  HUB_TOKENS_MAX - 1);
	struct token *token = &t->token[id];
	if (token->text && kind == TOKEN_NORMAL)
		return hub_refuse(t->hub, -ERR_BAD_FILE,
				  "tokenizer.json: id %lld is there twice, of %s and of %s", (long long)id,
				  gguf_show(token->text, token->length), gguf_show(text.at, text.length));
	token->text = keep(t, text, &token->length);
	token->kind = kind;
	if (kind == TOKEN_USER && t->scores)
		token->length = spaces_back(token->text, token->length);
	if (t->count <= id)
		t->count = (uint32_t)id + 1;
	return 0;
}

/* An added token that takes the spaces beside it, or is found only as a word of its own: texts around it
   would get other ids. */
static int added_check(struct tables *t, struct json item, struct json content)
{
	static const char *const flags[] = {"lstrip", "rstrip", "single_word"};
	for (size_t i = 0; i < sizeof flags / sizeof flags[0]; i++)
		if (is_true(t, item, flags[i], false))
			return hub_refuse(t->hub, -ERR_UNSUPPORTED,
					  "tokenizer.json: added token %s has %s true, which is not supported",
					  gguf_show(content.at, content.length), flags[i]);
	return 0;
}

static int vocabulary_take(struct tables *t, struct json model, struct json root)
{
	struct json vocab, added, key, value, item, content, id;
	if (!json_find(model, "vocab", &vocab) || json_kind(vocab) != JSON_OBJECT)
		return hub_refuse(t->hub, -ERR_BAD_FILE, "tokenizer.json: model has no vocab, as an object");
	struct json_walk walk = json_walk(vocab);
	while (json_next(&walk, &key, &value))
		TRY(token_put(t, key, value, TOKEN_NORMAL));
	/* They may stand in vocab too, and then with the same id. */
	if (json_find(root, "added_tokens", &added)) {
		walk = json_walk(added);
		while (json_next(&walk, NULL, &item)) {
			if (!json_find(item, "content", &content) || !json_find(item, "id", &id))
				return hub_refuse(t->hub, -ERR_BAD_FILE,
						  "tokenizer.json: added token %s has no content or no id",
						  gguf_show(item.at, item.length));
			TRY(added_check(t, item, content));
			TRY(token_put(t, content, id,
				      is_true(t, item, "special", false) ? TOKEN_CONTROL : TOKEN_USER));
		}
	}
	if (t->count == 0)
		return hub_refuse(t->hub, -ERR_BAD_FILE, "tokenizer.json: the vocab is empty");
	TRY(map_open(t->count, &t->ids));
	for (uint32_t i = 0; i < t->count; i++) {
		struct token *token = &t->token[i];
		if (!token->text)
			continue;
		map_add(t->ids, token->text, token->length, i);
		if (t->scores && token->kind == TOKEN_NORMAL && token->length == 6 &&
		    !memcmp(token->text, "<0x", 3) && token->text[5] == '>')
			token->kind = TOKEN_BYTE;
	}
	return 0;
}

static void tokens_write(struct tables *t)
{
	struct hub_out *out = &t->hub->out;
	hub_key_array(out, "tokenizer.ggml.tokens", GGUF_STRING, t->count);
	for (uint32_t i = 0; i < t->count; i++) {
		char hole[32];
		/* An id without a token needs a text that nothing else has. */
		const int n = snprintf(hole, sizeof hole, "[hole %u]", i);
		if (t->token[i].text)
			hub_put_text(out, t->token[i].text, t->token[i].length);
		else
			hub_put_text(out, hole, (size_t)n);
	}
	hub_key_array(out, "tokenizer.ggml.token_type", GGUF_I32, t->count);
	for (uint32_t i = 0; i < t->count; i++)
		hub_put_u32(out, t->token[i].text ? t->token[i].kind : TOKEN_UNUSED);
}

/* A merge as "a b", or as a pair; `joined` gets a NUL-free "a b". */
static int merge_text(struct tables *t, struct json merge, uint32_t number, char **joined,
		      uint32_t *length)
{
	struct json part[2], item;
	unsigned parts = 0;
	const size_t before = t->used;
	if (json_kind(merge) == JSON_STRING) {
		*joined = keep(t, merge, length);
		if (*length > 2 && memchr(*joined + 1, ' ', *length - 2))
			return 0;
		parts = 3;
	}
	struct json_walk walk = json_walk(merge);
	while (json_kind(merge) == JSON_ARRAY && parts < 3 && json_next(&walk, NULL, &item))
		if (parts == 2 || json_kind(part[parts++] = item) != JSON_STRING)
			parts = 3;
	if (parts != 2)
		return hub_refuse(t->hub, -ERR_BAD_FILE, "tokenizer.json: merge %u is %s, not two parts", number,
				  gguf_show(merge.at, merge.length));
	uint32_t first, second;
	keep(t, part[0], &first);
	t->arena[t->used++] = ' ';
	keep(t, part[1], &second);
	*joined = t->arena + before;
	*length = first + 1 + second;
	return 0;
}

/* The merged token's score is the merge's place, so that merging by score takes the same way. */
static void merge_score(struct tables *t, char *text, uint32_t length, uint32_t number)
{
	char *space = length > 2 ? memchr(text + 1, ' ', length - 2) : NULL;
	if (!space)
		return; /* a pair of which one is empty */
	memmove(space, space + 1, (size_t)(text + length - space - 1));
	const uint32_t id = map_find(t->ids, text, length - 1);
	if (id != UINT32_MAX && t->token[id].score < -1e8f)
		t->token[id].score = -(float)number;
}

static int merges_take(struct tables *t, struct json model)
{
	struct hub_out *out = &t->hub->out;
	struct json merges, item;
	uint64_t count = 0;
	uint32_t number = 0;
	if (!json_find(model, "merges", &merges) || json_kind(merges) != JSON_ARRAY)
		return hub_refuse(t->hub, -ERR_BAD_FILE, "tokenizer.json: model has no merges, as a list");
	struct json_walk walk = json_walk(merges);
	while (json_next(&walk, NULL, &item))
		count++;
	if (count > MODEL_MERGES_MAX)
		return hub_refuse(t->hub, -ERR_BAD_FILE, "tokenizer.json: %llu merges, %d are taken",
				  (unsigned long long)count, MODEL_MERGES_MAX);
	if (!t->scores)
		hub_key_array(out, "tokenizer.ggml.merges", GGUF_STRING, count);
	const size_t before = t->used;
	for (walk = json_walk(merges); json_next(&walk, NULL, &item); number++) {
		char *text = NULL;
		uint32_t length = 0;
		TRY(merge_text(t, item, number, &text, &length));
		if (t->scores)
			merge_score(t, text, length, number);
		else
			hub_put_text(out, text, length);
		t->used = before; /* its bytes are copied, or looked at */
	}
	if (!t->scores)
		return 0;
	hub_key_array(out, "tokenizer.ggml.scores", GGUF_F32, t->count);
	for (uint32_t i = 0; i < t->count; i++) {
		uint32_t bits;
		memcpy(&bits, &t->token[i].score, sizeof bits);
		hub_put_u32(out, bits);
	}
	return 0;
}

/* Which known one the cutting is; NULL if none. */
static const char *pre_find(struct tables *t, struct json root)
{
	struct json pre, list, item, pattern, regex;
	bool digits = false, bytes = false, bytes_cut = false;
	const char *found = NULL;
	if (!json_find(root, "pre_tokenizer", &pre))
		return NULL;
	const bool sequence = is(pre, "type", "Sequence") && json_find(pre, "pretokenizers", &list);
	struct json_walk walk = json_walk(list = sequence ? list : pre);
	while (sequence ? json_next(&walk, NULL, &item) : (item = pre, true)) {
		if (is(item, "type", "ByteLevel")) {
			bytes = true;
			bytes_cut = is_true(t, item, "use_regex", true);
		} else if (is(item, "type", "Digits")) {
			digits = is_true(t, item, "individual_digits", false);
			if (!digits)
				return NULL;
		} else if (is(item, "type", "Split")) {
			if (found || !json_find(item, "pattern", &pattern) ||
			    !json_find(pattern, "Regex", &regex))
				return NULL;
			for (size_t i = 0; i < sizeof patterns / sizeof patterns[0]; i++)
				if (json_equals(regex, patterns[i].pattern, strlen(patterns[i].pattern)))
					found = patterns[i].pre;
			if (!found)
				return NULL;
		} else {
			return NULL;
		}
		if (!sequence)
			break;
	}
	if (!bytes || (found && (digits || bytes_cut)))
		return NULL;
	return found ? found : !bytes_cut ? NULL : digits ? "smollm" : "gpt-2";
}

/* One step of a normaliser. NFC is passed over, as llama.cpp does: text is cut as it came. A vocabulary of
   scores has a space put before, and U+2581 for spaces. */
static int step_check(const struct tables *t, struct json step)
{
	struct json part, text;
	const bool spaces = is(step, "type", "Replace") && json_find(step, "pattern", &part) &&
			    is(part, "String", " ") && is(step, "content", "\xe2\x96\x81");
	const bool before = is(step, "type", "Prepend") && is(step, "prepend", "\xe2\x96\x81");
	if (is(step, "type", "NFC") || (t->scores && (before || spaces)))
		return 0;
	if (!json_find(step, "type", &text))
		text = step;
	return hub_refuse(t->hub, -ERR_UNSUPPORTED,
			  "tokenizer.json: its normalizer has a step %s that is not supported; NFC is, "
			  "and with byte_fallback Prepend of U+2581 and Replace of spaces by it",
			  gguf_show(text.at, text.length));
}

/* What else would give other ids and is not done here, but for NFC. */
static int rest_check(struct tables *t, struct json model, struct json root, const char *pre)
{
	static const char *const absent[] = {"continuing_subword_prefix", "end_of_word_suffix", "dropout"};
	struct json value, item;
	double number;
	for (size_t i = 0; i < sizeof absent / sizeof absent[0]; i++)
		if (json_find(model, absent[i], &value) && json_kind(value) != JSON_NULL &&
		    !json_equals(value, "", 0) && !(json_real(value, &number) && number >= 0 && number <= 0))
			return hub_refuse(t->hub, -ERR_UNSUPPORTED,
					  "tokenizer.json: its model has %s %s, which is not supported",
					  absent[i], gguf_show(value.at, value.length));
	/* These two's are looked up whole before they are merged. */
	const bool whole = !strcmp(pre, "llama-bpe") || !strcmp(pre, "tekken");
	if (is_true(t, model, "ignore_merges", whole) && !whole)
		return hub_refuse(t->hub, -ERR_UNSUPPORTED,
				  "tokenizer.json: its model has ignore_merges true, which is supported with the "
				  "pre_tokenizers of llama-bpe and tekken only");
	if (!json_find(root, "normalizer", &value) || json_kind(value) == JSON_NULL)
		return 0;
	if (!is(value, "type", "Sequence") || !json_find(value, "normalizers", &value))
		return step_check(t, value);
	struct json_walk walk = json_walk(value);
	while (json_next(&walk, NULL, &item))
		TRY(step_check(t, item));
	return 0;
}

/* Whether a space is put before text: by a normaliser that prepends, or by Metaspace. */
static bool space_before(struct tables *t, struct json root)
{
	struct json part, list, item, scheme;
	if (json_find(root, "normalizer", &part)) {
		if (is(part, "type", "Prepend"))
			return true;
		if (json_find(part, "normalizers", &list)) {
			struct json_walk walk = json_walk(list);
			while (json_next(&walk, NULL, &item))
				if (is(item, "type", "Prepend"))
					return true;
		}
	}
	if (!json_find(root, "pre_tokenizer", &part) || !is(part, "type", "Metaspace"))
		return false;
	if (json_find(part, "prepend_scheme", &scheme))
		return !json_equals(scheme, "never", 5);
	return is_true(t, part, "add_prefix_space", true);
}

/* A token that a field names by its text, as a string or in "content". */
static uint32_t named(struct tables *t, struct json config, const char *field)
{
	struct json value;
	char text[256];
	if (!json_find(config, field, &value) || json_kind(value) == JSON_NULL)
		return UINT32_MAX;
	json_find(value, "content", &value);
	if (hub_string(value, text, sizeof text))
		return map_find(t->ids, text, strlen(text));
	t->wrong = field;
	t->wrong_as = "no token's text, nor has it one as content";
	return UINT32_MAX;
}

static void id_write(const struct tables *t, const char *key, uint32_t id)
{
	if (id < t->count)
		hub_key_u32(&t->hub->out, key, id);
}

/* The template: chat_template.jinja, or a field that is a string or a list of named ones. */
static int template_take(struct tables *t, struct json config)
{
	struct json value, item, first = {0};
	struct hub_text own = {0};
	int code = hub_file(t->hub, "chat_template.jinja", false, TEMPLATE_BYTES_MAX - 1, &own);
	if (code == 0 && !own.bytes && json_find(config, "chat_template", &value)) {
		struct json_walk walk = json_walk(value);
		while (json_kind(value) == JSON_ARRAY && json_next(&walk, NULL, &item))
			if (is(item, "name", "default") || !first.at)
				json_find(item, "template", &first);
		if (json_kind(value) == JSON_ARRAY && first.at)
			value = first;
		if (json_kind(value) != JSON_STRING && json_kind(value) != JSON_NULL) {
			t->wrong = "chat_template";
			t->wrong_as = "no text, nor a list of named ones";
		}
		if (json_kind(value) == JSON_STRING) {
			own.bytes = malloc(value.length + 1);
			if (own.bytes)
				own.length = json_string(value, own.bytes);
			else
				code = hub_refuse(t->hub, -ERR_MEMORY, "no memory for the template");
		}
	}
	if (code == 0 && own.bytes)
		hub_key_text(&t->hub->out, "tokenizer.chat_template", own.bytes, own.length);
	free(own.bytes);
	return code;
}

/* Whether the post-processor puts a token before the text. */
static bool token_before(struct json root)
{
	struct json post, list, item, single;
	if (!json_find(root, "post_processor", &post))
		return false;
	struct json_walk walk;
	if (json_find(post, "processors", &list)) {
		walk = json_walk(list);
		while (json_next(&walk, NULL, &item))
			if (is(item, "type", "TemplateProcessing"))
				post = item;
	}
	if (!is(post, "type", "TemplateProcessing") || !json_find(post, "single", &single))
		return false;
	walk = json_walk(single);
	return json_next(&walk, NULL, &item) && json_find(item, "SpecialToken", &list);
}

static int config_take(struct tables *t, struct json root)
{
	struct hub_text config = {0};
	int code = hub_json(t->hub, "tokenizer_config.json", false, &config);
	if (code == 0) {
		const struct json json = config.bytes ? config.json : (struct json){"{}", 2};
		uint32_t bos = named(t, json, "bos_token"), eos = named(t, json, "eos_token");
		id_write(t, "tokenizer.ggml.bos_token_id", bos == UINT32_MAX ? t->hub->bos : bos);
		id_write(t, "tokenizer.ggml.eos_token_id", eos == UINT32_MAX ? t->hub->eos : eos);
		id_write(t, "tokenizer.ggml.unknown_token_id", named(t, json, "unk_token"));
		id_write(t, "tokenizer.ggml.padding_token_id", named(t, json, "pad_token"));
		hub_key_bool(&t->hub->out, "tokenizer.ggml.add_bos_token",
			     is_true(t, json, "add_bos_token", token_before(root)));
		if (t->scores)
			hub_key_bool(&t->hub->out, "tokenizer.ggml.add_space_prefix", space_before(t, root));
		code = template_take(t, json);
	}
	free(config.bytes);
	return code;
}

static int tables_fill(struct tables *t, struct json root)
{
	struct json model;
	struct hub *hub = t->hub;
	if (!json_find(root, "model", &model) || !is(model, "type", "BPE"))
		return hub_refuse(hub, -ERR_UNSUPPORTED,
				  "tokenizer.json: its model's type is no BPE, only that is supported");
	t->scores = is_true(t, model, "byte_fallback", false);
	const char *pre = t->scores ? "default" : pre_find(t, root);
	if (!pre)
		return hub_refuse(hub, -ERR_UNSUPPORTED,
				  "tokenizer.json: its pre_tokenizer is none that is known: those of smollm, "
				  "gpt-2, qwen2, llama-bpe and tekken are");
	TRY(rest_check(t, model, root, pre));
	for (uint32_t i = 0; i < HUB_TOKENS_MAX; i++)
		t->token[i].score = -1e9f;
	const char *kind = t->scores ? "llama" : "gpt2";
	hub_key_text(&hub->out, "tokenizer.ggml.model", kind, strlen(kind));
	hub_key_text(&hub->out, "tokenizer.ggml.pre", pre, strlen(pre));
	TRY(vocabulary_take(t, model, root));
	TRY(merges_take(t, model));
	tokens_write(t);
	return config_take(t, root);
}

int hub_tokenizer(struct hub *hub)
{
	struct hub_text text = {0};
	struct tables t = {.hub = hub};
	int code = hub_json(hub, "tokenizer.json", true, &text);
	if (code == 0) {
		t.token = calloc(HUB_TOKENS_MAX, sizeof *t.token);
		/* A string's text is shorter than its JSON; a pair's space takes the place of a quote. */
		t.arena = malloc(text.json.length + 1);
		code = t.token && t.arena ? tables_fill(&t, text.json)
					  : hub_refuse(hub, -ERR_MEMORY, "tokenizer.json: no memory");
	}
	if (code == 0 && t.wrong)
		code = hub_refuse(hub, -ERR_BAD_FILE,
				  "tokenizer.json or tokenizer_config.json: %s is %s", t.wrong, t.wrong_as);
	map_close(&t.ids);
	free(t.token);
	free(t.arena);
	free(text.bytes);
	return code;
}
