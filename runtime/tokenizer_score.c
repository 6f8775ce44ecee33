/*
 * SentencePiece by score: a text is one piece of symbols, of which the two whose text together is
 * the token of the highest score merge first. The rule is that of the public library sentencepiece
 * (its BPE models) as llama.cpp applies it, which the reference ids come from.
 */
#include "runtime/tokenizer_inside.h"

#include <stdlib.h>
#include <string.h>

size_t score_symbol(const uint8_t *text, size_t length)
{
	const uint8_t first = text[0];
	const size_t n = first < 0xc0 ? 1 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
	return n < length ? n : length;
}

static unsigned symbol_kind(const uint8_t *text, size_t length)
{
	if (text[0] < 0x80)
		return text[0];
	return length == SCORE_SPACE_BYTES && !memcmp(text, SCORE_SPACE, length) ? ' ' : SCORE_OTHER;
}

size_t score_split(const struct score *score, const uint8_t *text, size_t length)
{
	size_t n = score_symbol(text, length), at = 0;
	unsigned kind = symbol_kind(text, n);
	do {
		at += n;
		if (at == length)
			break;
		const unsigned before = kind;
		n = score_symbol(text + at, length - at);
		kind = symbol_kind(text + at, n);
		if (!score->beside[before][kind])
			break;
	} while (true);
	return at;
}

struct ranked {
	float score;
	uint32_t id;
};

static int by_score(const void *a, const void *b)
{
	const struct ranked *x = a, *y = b;
	return (x->score < y->score) - (x->score > y->score);
}

int score_open(const struct vocabulary *v, struct score **out)
{
	struct score *score = calloc(1, sizeof *score + v->count * sizeof score->rank[0]);
	struct ranked *ranked = malloc(v->count * sizeof *ranked);
	int code = score && ranked ? 0 : -ERR_MEMORY;
	*out = score;
	for (uint32_t i = 0; i < v->count && code == 0; i++) {
		const uint8_t *text = (const uint8_t *)v->text[i];
		size_t n = 0;
		ranked[i] = (struct ranked){v->score[i], i};
		for (size_t at = 0; v->kind[i] == TOKEN_NORMAL && at + n < v->length[i];) {
			const unsigned before = n ? symbol_kind(text + at, n) : SCORE_KINDS;
			at += n;
			n = score_symbol(text + at, v->length[i] - at);
			if (before < SCORE_KINDS)
				score->beside[before][symbol_kind(text + at, n)] = true;
		}
	}
	if (code == 0) {
		qsort(ranked, v->count, sizeof *ranked, by_score);
		for (uint32_t i = 0, rank = 0; i < v->count; i++) {
			rank += i > 0 && ranked[i].score < ranked[i - 1].score;
			score->rank[ranked[i].id] = rank;
		}
		score->space_before = v->add_space_prefix;
	}
	free(ranked);
	return code;
}
