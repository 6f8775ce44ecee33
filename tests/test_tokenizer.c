/*
 * Merges, control tokens, capacity and the streaming decoder, on small vocabularies made here. Method:
 * what can be said by hand; a plain quadratic merger as the second opinion, for merges and for
 * scores; random bytes; long texts of the awkward kinds in proportion to their length.
 */
#define _GNU_SOURCE
#include <time.h>

#include "runtime/tokenizer.h"
#include "tests/gguf_make.h"
#include "tests/draw.h"
#include "tests/long_text.h"
#include "tests/tap.h"

static char reason[MODEL_REASON_MAX];
static struct model *small_model;
static struct tokenizer *small;

/* The bytes of a list of ids; free the result. */
static char *decode(const struct tokenizer *t, const uint32_t *ids, size_t count, bool special,
		    size_t *length)
{
	struct bytes b = {0};
	put(&b, "", 1);
	b.length = 0;
	for (size_t i = 0; i < count; i++) {
		const char *at;
		size_t n = tokenizer_bytes(t, ids[i], special, &at);
		put(&b, at, n);
	}
	*length = b.length;
	return (char *)b.at;
}

/* The printable form of a byte, as vocabulary files have it. */
static size_t printable_form(unsigned byte, char *to)
{
	unsigned c = byte, other = 0x100;
	for (unsigned b = 0; b < 256; b++) {
		bool own = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
		if (b == byte && !own)
			c = other;
		other += !own;
	}
	if (c < 0x80) {
		to[0] = (char)c;
		return 1;
	}
	to[0] = (char)(0xc0 | c >> 6);
	to[1] = (char)(0x80 | (c & 0x3f));
	return 2;
}

enum { SMALL_MERGES = 12, SMALL_COUNT = 256 + SMALL_MERGES + 4 };
/* In order of rank; their products are tokens 256 and up. */
static const char *const small_merge[SMALL_MERGES] = {
	"a a", "b c", "aa aa", "a b", "\xc4\xa0 a", "c c", "ab c", "aaaa aaaa", "bc c",
	"\xc4\x8a \xc4\x8a", "\xc4\xa0 \xc4\xa0", "\xc3\xaf \xc2\xbf",
};

static struct tokenizer *open_small(void)
{
	static struct maker m;
	static char text[SMALL_COUNT][24];
	static const char *token[SMALL_COUNT];
	static int32_t kind[SMALL_COUNT];
	for (unsigned i = 0; i < SMALL_COUNT; i++) {
		token[i] = text[i];
		kind[i] = 1;
		if (i < 256) {
			text[i][printable_form(i, text[i])] = 0;
		} else if (i < 256 + SMALL_MERGES) {
			const char *merge = small_merge[i - 256], *space = strchr(merge + 1, ' ');
			snprintf(text[i], sizeof text[i], "%.*s%s", (int)(space - merge), merge,
				 space + 1);
		}
	}
	strcpy(text[SMALL_COUNT - 4], "<|im_end|>");
	strcpy(text[SMALL_COUNT - 3], "<|im_end|>x");
	strcpy(text[SMALL_COUNT - 2], "<|im");
	strcpy(text[SMALL_COUNT - 1], "<tool>");
	kind[SMALL_COUNT - 4] = kind[SMALL_COUNT - 3] = kind[SMALL_COUNT - 2] = 3;
	kind[SMALL_COUNT - 1] = 4;
	make_model(&m, token, kind, SMALL_COUNT, small_merge, SMALL_MERGES);
	make_u32(&m, "tokenizer.ggml.eos_token_id", SMALL_COUNT - 2);
	struct bytes b = make_bytes(&m);
	struct made_file f = made_open(b.at, b.length);
	int code = model_open(f.path, &small_model, reason);
	if (code == 0)
		code = tokenizer_open(small_model, &small, reason);
	if (code != 0)
		printf("# %s\n", reason);
	made_close(&f);
	free(b.at);
	return small;
}

static void opens_small(void)
{
	REQUIRE(open_small() != NULL);
	EXPECT_EQ(tokenizer_count(small), SMALL_COUNT);
	EXPECT(tokenizer_is_control(small, SMALL_COUNT - 4));
	EXPECT(!tokenizer_is_control(small, SMALL_COUNT - 1));
	EXPECT(!tokenizer_is_control(small, 97));
	EXPECT(!tokenizer_is_control(small, UINT32_MAX));
	EXPECT_EQ(tokenizer_find(small, "<|im_end|>"), SMALL_COUNT - 4);
	EXPECT_EQ(tokenizer_find(small, "<tool>"), SMALL_COUNT - 1);
	EXPECT_EQ(tokenizer_find(small, "<|im_"), UINT32_MAX);
	EXPECT_EQ(tokenizer_find(small, ""), UINT32_MAX);
	EXPECT_EQ(tokenizer_find(small, "a"), UINT32_MAX);
	EXPECT(tokenizer_is_end(small, SMALL_COUNT - 2)); /* eos */
	EXPECT(tokenizer_is_end(small, SMALL_COUNT - 4)); /* by its text */
	EXPECT(!tokenizer_is_end(small, SMALL_COUNT - 1));
	EXPECT(!tokenizer_is_end(small, UINT32_MAX));
}

static bool encodes(const struct tokenizer *t, const char *text, bool special,
		    const uint32_t *expected, size_t expected_count)
{
	uint32_t ids[256];
	size_t count = 0;
	if (tokenizer_encode(t, text, strlen(text), special, ids, 256, &count) != 0)
		return false;
	bool same = count == expected_count && !memcmp(ids, expected, count * sizeof *ids);
	for (size_t i = 0; !same && i < count; i++)
		printf("# %zu: %u\n", i, ids[i]);
	return same;
}

#define ENCODES(text, special, ...) \
	EXPECT(encodes(small, text, special, (const uint32_t[]){__VA_ARGS__}, \
		       sizeof((const uint32_t[]){__VA_ARGS__}) / sizeof(uint32_t)))

static void merges_by_rank(void)
{
	REQUIRE(small != NULL);
	ENCODES("aaa", false, 256, 'a');            /* leftmost of equals */
	ENCODES("aaaaaaaa", false, 263);
	ENCODES("abc", false, 'a', 257);            /* b c ranks before a b */
	ENCODES("abcc", false, 'a', 264);
	ENCODES("ab", false, 259);
	ENCODES(" a", false, 260);
	ENCODES("  a", false, ' ', 260);            /* the last space goes with the word */
	ENCODES("a  ", false, 'a', 266);
	ENCODES("\n\n\na", false, 265, '\n', 'a');
	ENCODES("a1 2", false, 'a', '1', ' ', '2'); /* digits stand alone */
	ENCODES("a's", false, 'a', '\'', 's');
}

/* With some vocabularies a piece that is a token is that token, whatever its merges make of it; ids of the
   rest are made by merges alone. */
static void whole_pieces(void)
{
	static const struct { const char *pre; bool whole;
	} all[] = {{"gpt-2", false}, {"qwen2", false}, {"smollm", false}, {"llama-bpe", true}, {"tekken", true}};
	enum { COUNT = 256 + 3 };
	static const char *const merge[] = {"a b"};
	static char text[256][3];
	static const char *token[COUNT] = {[256] = "ab", "zq", "<|end|>"};
	static int32_t kind[COUNT] = {[256] = 1, 1, 3};
	for (unsigned i = 0; i < 256; i++) {
		text[i][printable_form(i, text[i])] = 0;
		token[i] = text[i];
		kind[i] = 1;
	}
	for (unsigned i = 0; i < sizeof all / sizeof all[0]; i++) {
		static struct maker m;
		struct model *model = NULL;
		struct tokenizer *t = NULL;
		make_model(&m, token, kind, COUNT, merge, 1);
		make_u32(&m, "tokenizer.ggml.eos_token_id", COUNT - 1);
		make_string(&m, "tokenizer.ggml.pre", all[i].pre);
		struct bytes b = make_bytes(&m);
		struct made_file f = made_open(b.at, b.length);
		REQUIRE(model_open(f.path, &model, reason) == 0 && tokenizer_open(model, &t, reason) == 0);
		if (all[i].whole)
			EXPECT(encodes(t, "zq", false, (const uint32_t[]){257}, 1));
		else
			EXPECT(encodes(t, "zq", false, (const uint32_t[]){'z', 'q'}, 2));
		/* A token that is not the whole of its piece is made by merges alone, everywhere. */
		EXPECT(encodes(t, "zqb", false, (const uint32_t[]){'z', 'q', 'b'}, 3));
		EXPECT(encodes(t, "ab", false, (const uint32_t[]){256}, 1));
		tokenizer_close(&t);
		model_close(&model);
		made_close(&f);
		free(b.at);
	}
}

static void finds_special(void)
{
	enum { END = SMALL_COUNT - 4, END_X, IM, TOOL };
	REQUIRE(small != NULL);
	ENCODES("<|im_end|>", true, END);
	ENCODES("<|im_end|>x<|im_end|>", true, END_X, END); /* the longest */
	ENCODES("<|im_", true, IM, '_');
	ENCODES("<<|im<tool>", true, '<', IM, TOOL);
	/* A user-defined token is text that was given an id. */
	ENCODES("<|im<tool>a", false, '<', '|', 'i', 'm', TOOL, 'a');
	ENCODES("<tool", true, '<', 't', 'o', 'o', 'l');
	ENCODES("<|im", false, '<', '|', 'i', 'm');
	ENCODES("a<|im_end|>a", true, 'a', END, 'a'); /* no merge across */
	const char *at;
	EXPECT_EQ(tokenizer_bytes(small, END, false, &at), 0);
	EXPECT_EQ(tokenizer_bytes(small, END, true, &at), 10);
	EXPECT(!memcmp(at, "<|im_end|>", 10));
	EXPECT_EQ(tokenizer_bytes(small, TOOL, false, &at), 6);
	EXPECT_EQ(tokenizer_bytes(small, SMALL_COUNT, true, &at), 0);
	EXPECT_EQ(tokenizer_bytes(small, UINT32_MAX, true, &at), 0);
}

/* Texts of more than 256 MiB, of which no byte is read; and vocabularies that are none of those known. */
static void refuses_what_it_has_not(void)
{
	const size_t bytes = (256 << 20) + 1;
	uint32_t id;
	size_t count = 0;
	struct tokenizer *t;
	REQUIRE(small != NULL);
	char *text = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	REQUIRE(text != MAP_FAILED);
	EXPECT_EQ(tokenizer_encode(small, text, bytes, false, &id, 1, &count), -ERR_TOO_BIG);
	EXPECT_EQ(count, 0);
	munmap(text, bytes);
	static struct model other;
	snprintf(other.vocabulary.model, sizeof other.vocabulary.model, "gpt2");
	snprintf(other.vocabulary.pre, sizeof other.vocabulary.pre, "n\no");
	EXPECT_EQ(tokenizer_open(&other, &t, reason), -ERR_UNSUPPORTED);
	EXPECT(t == NULL && strstr(reason, "\"gpt2\" with \"n?o\""));
	snprintf(other.vocabulary.model, sizeof other.vocabulary.model, "bert");
	snprintf(other.vocabulary.pre, sizeof other.vocabulary.pre, "gpt-2");
	EXPECT_EQ(tokenizer_open(&other, &t, reason), -ERR_UNSUPPORTED);
	EXPECT(t == NULL && strstr(reason, "\"bert\" with \"gpt-2\""));
}

static void keeps_to_capacity(void)
{
	uint32_t ids[8] = {7, 7, 7, 7, 7, 7, 7, 7};
	size_t count = 1;
	REQUIRE(small != NULL);
	EXPECT_EQ(tokenizer_encode(small, "a1b2", 4, false, ids, 4, &count), -ERR_TOO_BIG);
	EXPECT_EQ(count, 1);
	EXPECT_EQ(ids[4], 7);
	EXPECT_EQ(tokenizer_encode(small, "a1b2", 4, false, ids, 5, &count), 0);
	EXPECT_EQ(count, 5);
	EXPECT_EQ(ids[0], 7);
	EXPECT_EQ(tokenizer_encode(small, "<|im_end|>", 10, true, ids, 5, &count), -ERR_TOO_BIG);
	EXPECT_EQ(tokenizer_encode(small, "", 0, true, ids, 5, &count), 0);
	EXPECT_EQ(count, 5);
}

/* The rule as it is written down, in quadratic time: the lowest rank first, then leftmost. */
static size_t merge_plainly(const char *text, size_t length, uint32_t *ids)
{
	static const char *const plain[SMALL_MERGES] = {
		"a a", "b c", "aa aa", "a b", "  a", "c c", "ab c", "aaaa aaaa", "bc c",
		"\n \n", "   ", "\xef \xbf"};
	char part[64][16];
	size_t count = length;
	for (size_t i = 0; i < length; i++) {
		part[i][0] = text[i];
		part[i][1] = 0;
	}
	for (unsigned rank = 0; rank < SMALL_MERGES;) {
		size_t at = count;
		const char *space = strchr(plain[rank] + 1, ' ');
		size_t left = (size_t)(space - plain[rank]);
		for (size_t i = 0; i + 1 < count && at == count; i++)
			if (strlen(part[i]) == left && !memcmp(part[i], plain[rank], left) &&
			    !strcmp(part[i + 1], space + 1))
				at = i;
		if (at == count) {
			rank++;
			continue;
		}
		size_t have = strlen(part[at]), more = strlen(part[at + 1]);
		for (size_t i = 0; i <= more; i++)
			part[at][have + i] = part[at + 1][i];
		memmove(part[at + 1], part[at + 2], (count - at - 2) * sizeof part[0]);
		count--;
		rank = 0;
	}
	for (size_t i = 0; i < count; i++) {
		ids[i] = (uint8_t)part[i][0];
		for (unsigned k = 0; part[i][1] && k < SMALL_MERGES; k++) {
			const char *space = strchr(plain[k] + 1, ' ');
			size_t left = (size_t)(space - plain[k]);
			if (!memcmp(part[i], plain[k], left) && !strcmp(part[i] + left, space + 1))
				ids[i] = 256 + k;
		}
	}
	return count;
}

static void merges_as_written(void)
{
	REQUIRE(small != NULL);
	for (unsigned round = 0; round < 20000; round++) {
		char text[64];
		uint32_t ids[64], expected[64];
		size_t n = 1 + draw(48), count = 0;
		for (size_t i = 0; i < n; i++)
			text[i] = "aaabbcc"[draw(7)];
		REQUIRE(tokenizer_encode(small, text, n, false, ids, 64, &count) == 0);
		size_t expected_count = merge_plainly(text, n, expected);
		REQUIRE(count == expected_count);
		REQUIRE(!memcmp(ids, expected, count * sizeof *ids));
	}
}

/* What decoding must give back: the text itself if it is UTF-8, else with U+FFFD. */
static void small_comes_back(void)
{
	REQUIRE(small != NULL);
	for (unsigned round = 0; round < 5000; round++) {
		char text[64], out[200];
		uint32_t ids[192];
		size_t n = draw(64), count = 0, length;
		for (size_t i = 0; i < n; i++)
			text[i] = (char)draw(draw(2) ? 128 : 256);
		REQUIRE(tokenizer_encode(small, text, n, draw(2), ids, 192, &count) == 0);
		char *back = decode(small, ids, count, true, &length);
		struct utf8_stream s = {0};
		size_t clean = utf8_stream_push(&s, text, n, false, true, out);
		REQUIRE(clean == n && !memcmp(out, text, n));
		s = (struct utf8_stream){0};
		clean = utf8_stream_push(&s, text, n, true, true, out);
		if (clean == n && !memcmp(out, text, n))
			REQUIRE(length == n && !memcmp(back, text, n));
		/* Whatever came in, what comes out encodes to itself. */
		uint32_t again[192];
		size_t again_count = 0;
		REQUIRE(tokenizer_encode(small, back, length, true, again, 192, &again_count) == 0);
		free(back);
	}
}

enum { SCORED_NORMAL = 20, SCORED_COUNT = 3 + SCORED_NORMAL + 256 + 2 };
static const char *const scored_text[SCORED_NORMAL] = {
	"\xe2\x96\x81", "a", "b", "c", "aa", "ab", "\xe2\x96\x81" "a", "abc", "bc", "aaaa", "\xc3\xa9",
	"\xe2\x96\x81\xe2\x96\x81", "caa", "b\xc3\xa9", "\xe2\x96\x81" "ab", "cb", "bcc", "cc", "\xe4\xb8\xad",
	"aab"};
/* Some alike: then the leftmost pair is first. */
static const float scored_score[SCORED_NORMAL] = {0, 0, 0, 0, -1, -2, -3, -1.5f, -2, -4, 0, -5, -2, -6,
						  -1, -3, -0.5f, -3, 0, -7};
static struct model *scored_model;
static struct tokenizer *scored;

static struct tokenizer *open_scored(bool space_before)
{
	static struct maker m;
	static char text[SCORED_COUNT][24];
	static const char *token[SCORED_COUNT];
	static int32_t kind[SCORED_COUNT];
	struct bytes *scores;
	for (unsigned i = 0; i < SCORED_COUNT; i++) {
		token[i] = text[i];
		kind[i] = i < 3 || i == SCORED_COUNT - 2 ? 3 : i < 3 + SCORED_NORMAL ? 1 : 6;
		if (i >= 3 && i < 3 + SCORED_NORMAL)
			snprintf(text[i], sizeof text[i], "%s", scored_text[i - 3]);
		else if (i >= 3 + SCORED_NORMAL)
			snprintf(text[i], sizeof text[i], "<0x%02X>", i - 3 - SCORED_NORMAL);
	}
	snprintf(text[0], sizeof text[0], "<pad>");
	snprintf(text[1], sizeof text[1], "<eos>");
	snprintf(text[2], sizeof text[2], "ac"); /* a control token whose text could be merged */
	snprintf(text[SCORED_COUNT - 2], sizeof text[0], "<end>");
	snprintf(text[SCORED_COUNT - 1], sizeof text[0], "\n\n");
	kind[SCORED_COUNT - 1] = 4;
	make_model(&m, token, kind, SCORED_COUNT, small_merge, 0);
	make_string(&m, "tokenizer.ggml.model", "llama");
	scores = make_array(&m, "tokenizer.ggml.scores", 6, SCORED_COUNT);
	for (unsigned i = 0; i < SCORED_COUNT; i++)
		put(scores, &(float){i >= 3 && i < 3 + SCORED_NORMAL ? scored_score[i - 3] : -1000}, 4);
	put(&make_key(&m, "tokenizer.ggml.add_space_prefix", 7)->value, &(uint8_t){space_before}, 1);
	struct bytes b = make_bytes(&m);
	struct made_file f = made_open(b.at, b.length);
	tokenizer_close(&scored);
	model_close(&scored_model);
	int code = model_open(f.path, &scored_model, reason);
	if (code == 0)
		code = tokenizer_open(scored_model, &scored, reason);
	if (code != 0)
		printf("# %s\n", reason);
	made_close(&f);
	free(b.at);
	return scored;
}

/* By the rule as it is written down: of all neighbours whose text together is a token, those of the
   highest score, then the leftmost. Symbols of `text`, already with U+2581. */
static size_t score_plainly(const char *text, size_t length, uint32_t *ids)
{
	struct {
		size_t at, length;
	} part[200];
	size_t count = 0, made = 0;
	for (size_t at = 0; at < length; count++) {
		const uint8_t c = (uint8_t)text[at];
		part[count].at = at;
		part[count].length = c < 0xc0 ? 1 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : 4;
		if (part[count].length > length - at)
			part[count].length = length - at;
		at += part[count].length;
	}
	for (;;) {
		size_t best = count;
		float score = -1e9f;
		for (size_t i = 0; i + 1 < count; i++)
			for (unsigned k = 0; k < SCORED_NORMAL; k++)
				if (strlen(scored_text[k]) == part[i].length + part[i + 1].length &&
				    !memcmp(scored_text[k], text + part[i].at, strlen(scored_text[k])) &&
				    scored_score[k] > score) {
					score = scored_score[k];
					best = i;
				}
		if (best == count)
			break;
		part[best].length += part[best + 1].length;
		memmove(&part[best + 1], &part[best + 2], (count - best - 2) * sizeof part[0]);
		count--;
	}
	for (size_t i = 0; i < count; i++) {
		unsigned k = 0;
		while (k < SCORED_NORMAL && (strlen(scored_text[k]) != part[i].length ||
					     memcmp(scored_text[k], text + part[i].at, part[i].length)))
			k++;
		for (size_t b = 0; b < part[i].length && k == SCORED_NORMAL; b++)
			ids[made++] = 3 + SCORED_NORMAL + (uint8_t)text[part[i].at + b];
		if (k < SCORED_NORMAL)
			ids[made++] = 3 + k;
	}
	return made;
}

static void scores_as_written(void)
{
	static const char *const bits[] = {"a", "a", "b", "c", "\xe2\x96\x81", "\xc3\xa9", "\xe4\xb8\xad",
					   "\xc3", "\xff", "z", "\xf0"};
	REQUIRE(open_scored(false) != NULL);
	for (unsigned round = 0; round < 20000; round++) {
		char text[128], plain[200];
		uint32_t ids[400], expected[400];
		size_t n = 0, count = 0;
		for (unsigned i = 1 + draw(30); i > 0; i--) {
			const char *bit = bits[draw(draw(3) ? 6 : 11)];
			memcpy(plain + n, bit, strlen(bit));
			n += strlen(bit);
		}
		/* Spaces for most of the U+2581, where they are whole characters. */
		size_t length = 0;
		for (size_t i = 0; i < n;) {
			if (n - i >= 3 && !memcmp(plain + i, "\xe2\x96\x81", 3) && draw(4)) {
				text[length++] = ' ';
				i += 3;
			} else {
				text[length++] = plain[i++];
			}
		}
		REQUIRE(tokenizer_encode(scored, text, length, false, ids, 400, &count) == 0);
		REQUIRE(count == score_plainly(plain, n, expected));
		REQUIRE(!memcmp(ids, expected, count * sizeof *ids));
	}
}

static void scores_by_hand(void)
{
	enum { A = 4, B, C, AA, BYTE = 3 + SCORED_NORMAL, LINES = SCORED_COUNT - 1 };
	uint32_t ids[8];
	size_t count = 0;
	const char *at;
	REQUIRE(open_scored(false) != NULL);
#define SCORES(text, special, ...) \
	EXPECT(encodes(scored, text, special, (const uint32_t[]){__VA_ARGS__}, \
		       sizeof((const uint32_t[]){__VA_ARGS__}) / sizeof(uint32_t)))
	SCORES("a a", false, A, 9);            /* "a" and " a" */
	SCORES("z", false, BYTE + 'z');        /* byte by byte */
	SCORES("ac", false, A, C);             /* the text of a control token is text */
	SCORES("ac", true, 2);
	SCORES("a\n\na", false, A, LINES, A);  /* user-defined tokens are found in any text */
	EXPECT_EQ(tokenizer_bytes(scored, 9, false, &at), 2);
	EXPECT(!memcmp(at, " a", 2));
	EXPECT_EQ(tokenizer_bytes(scored, BYTE + 0xff, false, &at), 1);
	EXPECT_EQ((uint8_t)*at, 0xff);
	EXPECT_EQ(tokenizer_encode(scored, "zz", 2, false, ids, 1, &count), -ERR_TOO_BIG);
	EXPECT_EQ(count, 0);
	REQUIRE(open_scored(true) != NULL);
	SCORES("a", false, 9);
	SCORES("a\n\na", false, 9, LINES, 9);  /* after a token that was found, too */
	EXPECT_EQ(tokenizer_encode(scored, "", 0, false, ids, 8, &count), 0);
	EXPECT_EQ(count, 0);
}

static void streams_utf8(void)
{
	static const char text[] = "a\xc3\xa9\xe2\x82\xac\xf0\x9f\x99\x82z";
	struct utf8_stream s = {0};
	char out[64];
	size_t n = 0;
	for (size_t i = 0; i < sizeof text - 1; i++) {
		size_t before = n;
		n += utf8_stream_push(&s, text + i, 1, true, false, out + n);
		/* Only whole characters come out. */
		EXPECT(n == before || ((uint8_t)out[before] & 0xc0) != 0x80);
	}
	EXPECT(n == sizeof text - 1 && !memcmp(out, text, n));
	EXPECT_EQ(s.count, 0);
	EXPECT_EQ(utf8_stream_push(&s, "\xf0\x9f\x99", 3, true, false, out), 0);
	EXPECT_EQ(utf8_stream_push(&s, "", 0, true, true, out), 3);
	EXPECT(!memcmp(out, "\xef\xbf\xbd", 3));
	EXPECT_EQ(utf8_stream_push(&s, "\xf0\x9f\x99", 3, false, true, out), 3);
	EXPECT(!memcmp(out, "\xf0\x9f\x99", 3));
	/* Overlong, surrogate, too large, lone: as many U+FFFD as Unicode says. */
	EXPECT_EQ(utf8_stream_push(&s, "\xc0\xaf", 2, true, true, out), 6);
	EXPECT_EQ(utf8_stream_push(&s, "\xed\xa0\x80", 3, true, true, out), 9);
	EXPECT_EQ(utf8_stream_push(&s, "\xf4\x90\x80\x80", 4, true, true, out), 12);
	EXPECT_EQ(utf8_stream_push(&s, "\xe2\x82" "A\x80", 4, true, true, out), 7);
	EXPECT(!memcmp(out, "\xef\xbf\xbd" "A\xef\xbf\xbd", 7));
}

static void long_texts_are_fast(void)
{
	char *text = malloc(LONG);
	uint32_t *ids = malloc(LONG_IDS * sizeof *ids);
	REQUIRE(small && text && ids);
	for (int special = 0; special < 2; special++)
		long_texts(small, special, text, ids);
	free(text);
	free(ids);
}

int main(void)
{
	TAP_RUN(opens_small, "a vocabulary of bytes and twelve merges");
	TAP_RUN(merges_by_rank, "merges and pieces by hand");
	TAP_RUN(whole_pieces, "a piece that is a token, by the vocabulary's rule");
	TAP_RUN(finds_special, "control tokens only where they are meant");
	TAP_RUN(refuses_what_it_has_not, "too long a text, and unknown vocabularies");
	TAP_RUN(keeps_to_capacity, "capacity is kept to, and nothing changes on refusal");
	TAP_RUN(merges_as_written, "the heap merges as the plain rule does");
	TAP_RUN(small_comes_back, "random bytes come back");
	TAP_RUN(scores_by_hand, "scores: spaces, bytes, control and user-defined tokens");
	TAP_RUN(scores_as_written, "scores merge as the plain rule does");
	TAP_RUN(streams_utf8, "the stream gives whole characters");
	TAP_RUN(long_texts_are_fast, "a megabyte of anything is quick");
	tokenizer_close(&small);
	tokenizer_close(&scored);
	model_close(&scored_model);
	model_close(&small_model);
	return tap_done();
}
