/*
 * Opens a vocabulary for byte-level BPE, finds control tokens in text, and turns ids back to bytes.
 * The printable form that GGUF keeps tokens in (GPT-2's: each byte as one printable character) is
 * undone when the tokenizer is opened; after that all is bytes.
 */
#include "runtime/load.h"
#include "runtime/tokenizer_inside.h"

#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
	TEXT_BYTES_MAX = 1 << 28, /* of one call; three times as many still fit 32 bits */
	PRINTABLE_COUNT = 0x144   /* characters of the printable form are below this */
};

/* Which byte a character of the printable form stands for; -1: none. Bytes that are printable in
   Latin-1 stand for themselves, the others for 0x100 and up, in order. */
static void printable_table(int16_t byte_of[PRINTABLE_COUNT])
{
	int16_t next = 0x100;
	for (unsigned i = 0; i < PRINTABLE_COUNT; i++)
		byte_of[i] = -1;
	for (int16_t b = 0; b < 256; b++) {
		bool own = (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
		byte_of[own ? b : next++] = b;
	}
}

/* Undoes the printable form; to has room for length. What is not of that form stays. */
static size_t printable_undo(const int16_t *byte_of, const char *text, size_t length, char *to)
{
	size_t count = 0;
	for (size_t at = 0; at < length;) {
		uint32_t c;
		size_t n = character_read((const uint8_t *)text + at, length - at, &c);
		if (c < PRINTABLE_COUNT && byte_of[c] >= 0) {
			to[count++] = (char)byte_of[c];
		} else {
			memcpy(to + count, text + at, n);
			count += n;
		}
		at += n;
	}
	return count;
}

static bool control_kind(uint8_t kind)
{
	return kind == TOKEN_CONTROL || kind == TOKEN_UNKNOWN;
}

static bool special_kind(uint8_t kind)
{
	return control_kind(kind) || kind == TOKEN_USER;
}

static int compare(const char *a, size_t a_length, const char *b, size_t b_length)
{
	int order = memcmp(a, b, a_length < b_length ? a_length : b_length);
	return order ? order : (a_length > b_length) - (a_length < b_length);
}

static int by_text(const void *a, const void *b)
{
	const struct special *x = a, *y = b;
	int order = compare(x->text, x->length, y->text, y->length);
	return order ? order : (x->id > y->id) - (x->id < y->id);
}

/* Decodes every token into the arena and fills the tables from bytes to ids. */
static int open_tokens(struct tokenizer *t, const int16_t *byte_of)
{
	const struct vocabulary *v = t->vocabulary;
	size_t total = 0, specials = 0, at = 0;
	for (uint32_t i = 0; i < v->count; i++) {
		total += v->length[i];
		specials += special_kind(v->kind[i]);
	}
	t->arena = malloc(total + 1);
	t->at = malloc(((size_t)v->count + 1) * sizeof *t->at);
	t->special = malloc((specials + 1) * sizeof *t->special);
	if (!t->arena || !t->at || !t->special)
		return -ERR_MEMORY;
	TRY(map_open(v->count, &t->tokens));
	for (uint32_t i = 0; i < v->count; i++) {
		t->at[i] = at;
		if (special_kind(v->kind[i])) {
			memcpy(t->arena + at, v->text[i], v->length[i]);
			if (v->length[i] > 0) {
				t->special[t->special_count++] = (struct special){
					t->arena + at, v->length[i], i};
				t->special_start[(uint8_t)v->text[i][0]] = true;
			}
			at += v->length[i];
			continue;
		}
		size_t n = printable_undo(byte_of, v->text[i], v->length[i], t->arena + at);
		/* Of two tokens with the same bytes the first counts. */
		if (n > 0)
			map_add(t->tokens, t->arena + at, n, i);
		at += n;
	}
	t->at[v->count] = at;
	qsort(t->special, t->special_count, sizeof *t->special, by_text);
	for (unsigned b = 0; b < 256; b++)
		t->byte_token[b] = map_find(t->tokens, &(const char){(char)b}, 1);
	return 0;
}

/* Merges become pairs of ids. One whose parts or product are no tokens can never be used. */
static int open_merges(struct tokenizer *t, const int16_t *byte_of)
{
	const struct vocabulary *v = t->vocabulary;
	char text[MODEL_TOKEN_BYTES_MAX];
	uint32_t slots = 16;
	while (slots / 2 < v->merge_count)
		slots *= 2;
	t->merge = malloc(slots * sizeof *t->merge);
	if (!t->merge)
		return -ERR_MEMORY;
	memset(t->merge, 0xff, slots * sizeof *t->merge);
	t->merge_mask = slots - 1;
	randombytes_buf(&t->seed, sizeof t->seed);
	for (uint32_t rank = 0; rank < v->merge_count; rank++) {
		const char *merge = v->merge[rank];
		size_t length = v->merge_length[rank];
		const char *space = memchr(merge + 1, ' ', length - 1);
		size_t head = (size_t)(space - merge);
		size_t left_bytes = printable_undo(byte_of, merge, head, text);
		size_t right_bytes = printable_undo(byte_of, space + 1, length - head - 1,
						    text + left_bytes);
		uint32_t left = map_find(t->tokens, text, left_bytes);
		uint32_t right = map_find(t->tokens, text + left_bytes, right_bytes);
		uint32_t product = map_find(t->tokens, text, left_bytes + right_bytes);
		if (left == UINT32_MAX || right == UINT32_MAX || product == UINT32_MAX)
			continue;
		struct merge *slot = merge_slot(t, left, right);
		if (slot->left == UINT32_MAX)
			*slot = (struct merge){left, right, rank, product};
	}
	return 0;
}

/* Texts of control tokens that end a turn or a text, in the families of models that are known. */
static const char *const end_texts[] = {
	"<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|end_of_text|>", "<end_of_turn>",
	"<|end|>", "<|eom_id|>",
};

static int open_ends(struct tokenizer *t)
{
	const struct vocabulary *v = t->vocabulary;
	t->end = calloc(v->count, 1);
	if (!t->end)
		return -ERR_MEMORY;
	if (v->eos != UINT32_MAX)
		t->end[v->eos] = 1;
	if (v->eot != UINT32_MAX)
		t->end[v->eot] = 1;
	for (unsigned i = 0; i < sizeof end_texts / sizeof end_texts[0]; i++) {
		uint32_t id = tokenizer_find(t, end_texts[i]);
		if (id != UINT32_MAX && control_kind(v->kind[id]))
			t->end[id] = 1;
	}
	return 0;
}

int tokenizer_open(const struct model *model, struct tokenizer **out, char *reason)
{
	*out = NULL;
	reason[0] = 0;
	const struct vocabulary *v = &model->vocabulary;
	const struct pretokenizer *pretokenizer = pretokenizer_find(v->pre);
	if (strcmp(v->model, "gpt2") || !pretokenizer) {
		snprintf(reason, MODEL_REASON_MAX, "tokenizer \"%s\" with \"%s\" is not supported",
			 gguf_show(v->model, strlen(v->model)), gguf_show(v->pre, strlen(v->pre)));
		return -ERR_UNSUPPORTED;
	}
	struct tokenizer *t = calloc(1, sizeof *t);
	int16_t byte_of[PRINTABLE_COUNT];
	int code = -ERR_MEMORY;
	printable_table(byte_of);
	if (t && sodium_init() >= 0) {
		t->vocabulary = v;
		t->pretokenizer = pretokenizer;
		code = open_tokens(t, byte_of);
		if (code == 0)
			code = open_merges(t, byte_of);
		if (code == 0)
			code = open_ends(t);
	}
	if (code != 0) {
		snprintf(reason, MODEL_REASON_MAX, "no memory for the tokenizer");
		tokenizer_close(&t);
	}
	*out = t;
	return code;
}

void tokenizer_close(struct tokenizer **tokenizer)
{
	struct tokenizer *t = *tokenizer;
	if (!t)
		return;
	map_close(&t->tokens);
	free(t->merge);
	free(t->arena);
	free(t->at);
	free(t->special);
	free(t->end);
	free(t);
	*tokenizer = NULL;
}

/* The first special token of [low, high) whose byte at `depth` is at least `byte`; those that end
   before it come first. */
static uint32_t special_bound(const struct tokenizer *t, uint32_t low, uint32_t high,
			      size_t depth, unsigned byte)
{
	while (low < high) {
		uint32_t middle = low + (high - low) / 2;
		const struct special *s = &t->special[middle];
		if (s->length <= depth || (uint8_t)s->text[depth] < byte)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

/* The longest special token that the text starts with, NULL if there is none. */
static const struct special *special_match(const struct tokenizer *t, const char *text,
					   size_t length)
{
	const struct special *best = NULL;
	uint32_t low = 0, high = t->special_count;
	for (size_t depth = 0; depth < length; depth++) {
		unsigned byte = (uint8_t)text[depth];
		low = special_bound(t, low, high, depth, byte);
		high = special_bound(t, low, high, depth, byte + 1);
		if (low == high)
			break;
		if (t->special[low].length == depth + 1)
			best = &t->special[low];
	}
	return best;
}

static int encode_pieces(const struct tokenizer *t, struct merger *merger, const uint8_t *text,
			 size_t length, uint32_t *ids, size_t capacity, size_t *count)
{
	for (size_t at = 0; at < length;) {
		size_t n = t->pretokenizer->split(text + at, length - at);
		CHECK(n > 0);
		TRY(merge_piece(t, merger, text + at, n, ids, capacity, count));
		at += n;
	}
	return 0;
}

static int encode_plain(const struct tokenizer *t, struct merger *merger, const uint8_t *text,
			size_t length, uint32_t *ids, size_t capacity, size_t *count)
{
	if (characters_plain(text, length))
		return encode_pieces(t, merger, text, length, ids, capacity, count);
	/* Each byte that belongs to no character becomes U+FFFD: three bytes for one. */
	uint8_t *clean = malloc(length * 3);
	size_t clean_length = 0;
	if (!clean)
		return -ERR_MEMORY;
	for (size_t at = 0; at < length;) {
		uint32_t c;
		at += character_read(text + at, length - at, &c);
		clean_length += character_write(c, clean + clean_length);
	}
	int code = encode_pieces(t, merger, clean, clean_length, ids, capacity, count);
	free(clean);
	return code;
}

static int encode_special(const struct tokenizer *t, struct merger *merger, const char *text,
			  size_t length, uint32_t *ids, size_t capacity, size_t *count)
{
	size_t from = 0;
	for (size_t at = 0; at < length;) {
		const struct special *s = NULL;
		if (t->special_start[(uint8_t)text[at]])
			s = special_match(t, text + at, length - at);
		if (!s) {
			at++;
			continue;
		}
		TRY(encode_plain(t, merger, (const uint8_t *)text + from, at - from, ids,
				 capacity, count));
		if (*count == capacity)
			return -ERR_TOO_BIG;
		ids[(*count)++] = s->id;
		at += s->length;
		from = at;
	}
	return encode_plain(t, merger, (const uint8_t *)text + from, length - from, ids, capacity,
			    count);
}

int tokenizer_encode(const struct tokenizer *t, const char *text, size_t length, bool special,
		     uint32_t *ids, size_t capacity, size_t *count)
{
	if (length > TEXT_BYTES_MAX)
		return -ERR_TOO_BIG;
	struct merger merger = {0};
	size_t before = *count;
	int code = special ?
		encode_special(t, &merger, text, length, ids, capacity, count) :
		encode_plain(t, &merger, (const uint8_t *)text, length, ids, capacity, count);
	merger_free(&merger);
	if (code != 0)
		*count = before;
	return code;
}

size_t tokenizer_bytes(const struct tokenizer *t, uint32_t id, bool special, const char **bytes)
{
	*bytes = t->arena;
	if (id >= t->vocabulary->count || (control_kind(t->vocabulary->kind[id]) && !special))
		return 0;
	*bytes = t->arena + t->at[id];
	return t->at[id + 1] - t->at[id];
}

uint32_t tokenizer_count(const struct tokenizer *t)
{
	return t->vocabulary->count;
}

bool tokenizer_is_control(const struct tokenizer *t, uint32_t id)
{
	return id < t->vocabulary->count && control_kind(t->vocabulary->kind[id]);
}

uint32_t tokenizer_find(const struct tokenizer *t, const char *text)
{
	size_t length = strlen(text);
	uint32_t low = 0, high = t->special_count;
	while (low < high) {
		uint32_t middle = low + (high - low) / 2;
		const struct special *s = &t->special[middle];
		if (compare(s->text, s->length, text, length) < 0)
			low = middle + 1;
		else
			high = middle;
	}
	if (low == t->special_count)
		return UINT32_MAX;
	const struct special *s = &t->special[low];
	return compare(s->text, s->length, text, length) == 0 ? s->id : UINT32_MAX;
}

bool tokenizer_is_end(const struct tokenizer *t, uint32_t id)
{
	return id < t->vocabulary->count && t->end[id];
}
