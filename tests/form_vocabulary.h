/*
 * A vocabulary to try forms with: the default model's if HOLDFAST_MODEL names it, else one of every
 * byte and of longer tokens that lie across what a form is made of.
 */
#ifndef HOLDFAST_TESTS_FORM_VOCABULARY_H
#define HOLDFAST_TESTS_FORM_VOCABULARY_H

#include "tests/gguf_make.h"

/* The text of a token as byte-level vocabularies have it. */
static void vocabulary_token(const char *bytes, size_t length, char *to, size_t room)
{
	size_t at = 0;
	for (size_t i = 0; i < length && at + 3 < room; i++) {
		unsigned b = (uint8_t)bytes[i], other = 0x100;
		for (unsigned k = 0; k < b; k++)
			other += !((k >= 33 && k <= 126) || (k >= 161 && k <= 172) || k >= 174);
		unsigned c = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174 ? b : other;
		if (c < 0x80) {
			to[at++] = (char)c;
		} else {
			to[at++] = (char)(0xc0 | c >> 6);
			to[at++] = (char)(0x80 | (c & 0x3f));
		}
	}
	to[at] = 0;
}

static int vocabulary_open(struct model **model, struct tokenizer **tokenizer, char *reason)
{
	static const char *const more[] = {
		"\"}", "\",", "{\"", "abc ", "}}", "\": ", "00", "\", \"", "\": \"", "\": {\"", "\": [", "[{\"", "}]",
		"}, {\"",
		"], \"", "[]", "{}", "\"]", "true", "false", "null", ", ", ": ", " \"", "12", "-1", ".5", "e1",
		"\\n", "\\\"", "\\u00", "a\"", "name", "\"name\": \"", "\xc3\xa9", "\xf0\x9f\x99",
		"\xc3\xa9\xc3",
		"ab", "x-", "red", "green\"", "\"red\"", "1, 2",
		"}\n</tool_call>", "<tool_call>\n{\"name\": \"", "foo", "  "};
	enum { MORE = sizeof more / sizeof more[0], ALL = 256 + 1 + MORE };
	static struct maker m;
	static char text[ALL][64];
	static const char *token[ALL];
	static int32_t kind[ALL];
	const char *path = getenv("HOLDFAST_MODEL");
	if (path && *path) {
		TRY(model_open(path, model, reason));
		return tokenizer_open(*model, tokenizer, reason);
	}
	for (unsigned i = 0; i < ALL; i++) {
		const char byte = (char)i;
		if (i < 256)
			vocabulary_token(&byte, 1, text[i], sizeof text[i]);
		else if (i == 256)
			snprintf(text[i], sizeof text[i], "<|im_end|>");
		else
			vocabulary_token(more[i - 257], strlen(more[i - 257]), text[i], sizeof text[i]);
		token[i] = text[i];
		kind[i] = i == 256 ? 3 : 1;
	}
	make_model(&m, token, kind, ALL, NULL, 0);
	struct bytes b = make_bytes(&m);
	struct made_file f = made_open(b.at, b.length);
	int code = model_open(f.path, model, reason);
	made_close(&f);
	free(b.at);
	TRY(code);
	return tokenizer_open(*model, tokenizer, reason);
}

#endif
