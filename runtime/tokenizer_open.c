/*
 * Opens a vocabulary: tokens by their bytes, merges or scores, control tokens, ends of turns.
 * The printable form that GGUF keeps byte-level tokens in (GPT-2's: each byte as one printable
 * character) is undone here; after that all is bytes.
 */
#include "runtime/load.h"
#include "runtime/tokenizer_inside.h"

#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PRINTABLE_COUNT = 0x144 }; /* characters of the printable form are below this */

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

static bool special_kind(uint8_t kind)
{
	return token_is_control(kind) || kind == TOKEN_USER;
}

int bytes_compare(const char *a, size_t a_length, const char *b, size_t b_length)
{
	int order = memcmp(a, b, a_length < b_length ? a_length : b_length);
	return order ? order : (a_length > b_length) - (a_length < b_length);
}

static int by_text(const void *a, const void *b)
{
	const struct special *x = a, *y = b;
	int order = bytes_compare(x->text, x->length, y->text, y->length);
	return order ? order : (x->id > y->id) - (x->id < y->id);
}

static void special_add(struct tokenizer *t, const char *text, uint32_t id)
{
	const struct vocabulary *v = t->vocabulary;
	const bool user = v->kind[id] == TOKEN_USER;
	if (v->length[id] == 0)
		return;
	t->special[t->special_count++] = (struct special){text, v->length[id], id, user};
	t->special_start[(uint8_t)text[0]] = true;
	t->user_start[(uint8_t)text[0]] |= user;
	t->user_count += user;
}

/* The bytes of a token of scores: U+2581 is a space. */
static size_t spaces_undo(const char *text, size_t length, char *to)
{
	size_t count = 0;
	for (size_t at = 0; at < length;) {
		if (length - at >= SCORE_SPACE_BYTES &&
		    !memcmp(text + at, SCORE_SPACE, SCORE_SPACE_BYTES)) {
			to[count++] = ' ';
			at += SCORE_SPACE_BYTES;
		} else {
			to[count++] = text[at++];
		}
	}
	return count;
}

/* Decodes a token that is neither control nor user-defined to `to`, and makes it found by its
   text. Of two tokens with the same bytes the first counts. */
static size_t open_token(struct tokenizer *t, const int16_t *byte_of, uint32_t id, char *to)
{
	const struct vocabulary *v = t->vocabulary;
	const char *key = v->text[id];
	size_t n = v->length[id], key_length = n;
	if (!t->score) {
		key_length = n = printable_undo(byte_of, v->text[id], n, to);
		key = to;
	} else if (v->kind[id] == TOKEN_BYTE) {
		/* "<0xHH>", checked. */
		to[0] = (char)strtoul((const char[]){key[3], key[4], 0}, NULL, 16);
		t->byte_token[(uint8_t)to[0]] = id;
		return 1;
	} else {
		n = spaces_undo(v->text[id], n, to);
	}
	if (key_length == 0)
		return 0;
	map_add(t->tokens, key, key_length, id);
	if (key_length > t->longest)
		t->longest = (uint32_t)key_length;
	return n;
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
	t->whole = calloc(v->count, sizeof *t->whole);
	if (!t->arena || !t->at || !t->special || !t->whole)
		return -ERR_MEMORY;
	TRY(map_open(v->count, &t->tokens));
	for (uint32_t i = 0; i < v->count; i++) {
		t->at[i] = at;
		if (special_kind(v->kind[i])) {
			memcpy(t->arena + at, v->text[i], v->length[i]);
			special_add(t, t->arena + at, i);
			at += v->length[i];
		} else {
			at += open_token(t, byte_of, i, t->arena + at);
		}
	}
	t->at[v->count] = at;
	qsort(t->special, t->special_count, sizeof *t->special, by_text);
	for (unsigned b = 0; b < 256 && !t->score; b++)
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
		if (id != UINT32_MAX && token_is_control(v->kind[id]))
			t->end[id] = 1;
	}
	return 0;
}

static int open_tables(struct tokenizer *t, bool scores)
{
	int16_t byte_of[PRINTABLE_COUNT];
	printable_table(byte_of);
	if (scores)
		TRY(score_open(t->vocabulary, &t->score));
	TRY(open_tokens(t, byte_of));
	if (!scores)
		TRY(open_merges(t, byte_of));
	return open_ends(t);
}

int tokenizer_open(const struct model *model, struct tokenizer **out, char *reason)
{
	*out = NULL;
	reason[0] = 0;
	const struct vocabulary *v = &model->vocabulary;
	const bool scores = !strcmp(v->model, "llama");
	const struct pretokenizer *pretokenizer = scores ? NULL : pretokenizer_find(v->pre);
	if (!scores && (strcmp(v->model, "gpt2") || !pretokenizer)) {
		snprintf(reason, MODEL_REASON_MAX, "tokenizer \"%s\" with \"%s\" is not supported",
			 gguf_show(v->model, strlen(v->model)), gguf_show(v->pre, strlen(v->pre)));
		return -ERR_UNSUPPORTED;
	}
	CHECK(!scores || v->score); /* load_vocabulary.c refuses a file without */
	struct tokenizer *t = calloc(1, sizeof *t);
	int code = -ERR_MEMORY;
	if (t && sodium_init() >= 0) {
		t->vocabulary = v;
		t->pretokenizer = pretokenizer;
		code = open_tables(t, scores);
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
	free(t->score);
	free((void *)t->whole);
	free(t->merge);
	free(t->arena);
	free(t->at);
	free(t->special);
	free(t->end);
	free(t);
	*tokenizer = NULL;
}
