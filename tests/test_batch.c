/*
 * The builder of a step's block: that what was put is where the header says, that offsets of extras
 * survive the laying out, and that the device takes the block. Options from a table, and the reader
 * of the program logits' input, beside it.
 */
#include <string.h>

#include "runtime/batch.h"
#include "runtime/cases.h"
#include "runtime/flags.h"
#include "tests/tap.h"

static const struct device_plan plan = {
	.width = 64, .heads = 4, .kv_heads = 2, .head = 16, .ff = 64, .vocab = 100,
	.page_tokens = 16, .group_count = 2,
	.group = {{2, 8}, {1, 8}},
	.rows_max = 6, .sequences_max = 3, .samples_max = 3, .pages_max = 8, .context = 64,
	.extra_bytes_max = 64, .kv = KV_F32, .act = ACT_F32, .isa = ISA_SCALAR, .threads = 1,
	.ranks = 1,
};

static void lays_out(void)
{
	const uint32_t start[OPS_GROUP_MAX] = {0, 16};
	struct batch_builder *b = NULL;
	uint32_t mask_at, bias_at;
	REQUIRE(batch_builder_open(&plan, &b) == 0);
	for (int again = 0; again < 2; again++) {
		batch_begin(b);
		EXPECT_EQ(batch_sequence(b, 7, start), 0);
		batch_page(b, 0, 1, 101);
		batch_page(b, 0, 2, 102);
		batch_page(b, 1, 3, 103);
		batch_row(b, 11, 16, 0);
		EXPECT_EQ(batch_row(b, 12, 17, 1), 1);
		EXPECT_EQ(batch_sequence(b, 8, start), 1);
		batch_page(b, 0, 4, 104);
		batch_page(b, 0, 5, 105);
		batch_page(b, 1, 6, 106);
		batch_row(b, 13, 20, 0);
		struct ops_sample *s = batch_sample(b, 2);
		uint32_t *mask = batch_extra(b, 4, &mask_at);
		memset(mask, 0xff, 16);
		mask[0] = 5;
		s->mask_at = mask_at;
		uint32_t *bias = batch_extra(b, 2, &bias_at);
		bias[0] = 9;
		bias[1] = 0x3f800000;
		s->bias_at = bias_at;
		s->bias_count = 1;
		const struct ops_batch *block = batch_end(b);
		const char *base = (const char *)block;
		const struct ops_row *row = (const void *)(base + block->row_at);
		const struct ops_sequence *sequence = (const void *)(base + block->sequence_at);
		const struct ops_page *page = (const void *)(base + block->page_at);
		const struct ops_sample *sample = (const void *)(base + block->sample_at);
		EXPECT_EQ(block->row_count, 3);
		EXPECT_EQ(block->page_count, 6);
		EXPECT_EQ(row[2].token, 13);
		EXPECT_EQ(row[1].phase, 1);
		EXPECT_EQ(row[2].sequence, 1);
		EXPECT_EQ(sequence[0].page_first[1], 2);
		EXPECT_EQ(sequence[0].page_count[0], 2);
		EXPECT_EQ(sequence[1].page_first[0], 3);
		EXPECT_EQ(sequence[1].page_first[1], 5);
		EXPECT_EQ(sequence[1].page_position[1], 16);
		EXPECT_EQ(page[5].tag, 106);
		EXPECT_EQ(*(const uint32_t *)(const void *)(base + sample[0].mask_at), 5);
		EXPECT_EQ(*(const uint32_t *)(const void *)(base + sample[0].bias_at), 9);
		EXPECT(sample[0].top_p == 1.0f);
		EXPECT(block->row_at % 8 == 0 && block->extra_at % 8 == 0);
		EXPECT_EQ(block->bytes, block->extra_at + 24);
	}
	struct device *device = NULL;
	EXPECT_EQ(ops_cpu()->device_open(&plan, &device), 0);
	EXPECT_EQ(ops_cpu()->batch(device, batch_end(b)), 0);
	ops_cpu()->device_close(&device);
	batch_builder_close(&b);
	EXPECT(b == NULL);
}

static void reads_flags(void)
{
	uint32_t count = 3;
	uint64_t bytes = 0;
	int choice = 0;
	bool on = false;
	const char *word = NULL, *path[1] = {NULL};
	char reason[FLAGS_REASON_MAX];
	const struct flag flags[] = {
		{"count", FLAG_U32, &count, 1, 10, NULL, NULL},
		{"bytes", FLAG_BYTES, &bytes, 0, 0, NULL, NULL},
		{"kind", FLAG_CHOICE, &choice, 0, 0, "one|two|three", NULL},
		{"on", FLAG_SWITCH, &on, 0, 0, NULL, NULL},
		{"word", FLAG_TEXT, &word, 0, 0, NULL, NULL},
	};
	char *good[] = {"x", "--count=4", "file", "--kind", "two", "--on", "--bytes", "3G",
			"--word", "-y"};
	EXPECT_EQ(flags_read(flags, 5, 10, good, path, 1, reason), 0);
	EXPECT_EQ(count, 4);
	EXPECT_EQ(bytes, (uint64_t)3 << 30);
	EXPECT_EQ(choice, 1);
	EXPECT(on);
	EXPECT(word && strcmp(word, "-y") == 0);
	EXPECT(path[0] && strcmp(path[0], "file") == 0);
	static const char *const bad[][2] = {
		{"count", "0"}, {"count", "11"}, {"count", "-1"}, {"count", " 4"}, {"count", "4x"},
		{"count", ""}, {"count", "99999999999999999999"}, {"bytes", "3X"}, {"bytes", "3KK"},
		{"bytes", "99999999999999T"}, {"kind", "tw"}, {"kind", "two|three"}, {"kind", ""},
		{"on", "perhaps"}, {"none", "1"}, {"count", NULL},
	};
	for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
		reason[0] = '\0';
		if (!EXPECT(flags_set(flags, 5, bad[i][0], bad[i][1], reason) == -ERR_BAD_ARG))
			printf("# %s %s\n", bad[i][0], bad[i][1] ? bad[i][1] : "");
		EXPECT(reason[0] != '\0' && strchr(reason, '\n') == NULL);
	}
	EXPECT_EQ(count, 4);
	char *two[] = {"x", "a", "b"}, *none[] = {"x"};
	EXPECT_EQ(flags_read(flags, 5, 3, two, path, 1, reason), -ERR_BAD_ARG);
	EXPECT_EQ(flags_read(flags, 5, 1, none, path, 1, reason), -ERR_BAD_ARG);
}

static void reads_cases(void)
{
	static const char good[] =
		" [ {\"name\":\"a \\\"b\\\"\",\"rows\":[{\"top\":[[1,-2.5e3],[2,null]]},\"]\"],"
		"\"tokens\":[1, 22,333],\"logprob\":-1.5,\"generate\":7}, {\"tokens\":[0]}]\n";
	static const char *const bad[] = {
		"", "[", "{}", "[{}]", "[{\"tokens\":[]}]", "[{\"tokens\":[1]", "[{\"tokens\":[1]}",
		"[{\"tokens\":[-1]}]", "[{\"tokens\":[1.5]}]", "[{\"tokens\":[4294967295]}]",
		"[{\"tokens\":[1]}] x", "[{\"tokens\":[1],}]", "[{\"x\":[[[[}", "[{\"name\":\"a\n\"}]",
		"[{\"tokens\":[1],\"generate\":\"7\"}]", "[{\"tokens\":[1 2]}]", "[{\"x\":]",
	};
	struct cases cases;
	char reason[CASES_REASON_MAX];
	REQUIRE(cases_read(good, strlen(good), &cases, reason) == 0);
	EXPECT_EQ(cases.count, 2);
	EXPECT_EQ(cases.at[0].count, 3);
	EXPECT_EQ(cases.at[0].tokens[2], 333);
	EXPECT_EQ(cases.at[0].generate, 7);
	EXPECT_EQ(cases.at[0].name_length, 7);
	EXPECT_EQ(cases.at[1].tokens[0], 0);
	cases_free(&cases);
	for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
		if (!EXPECT(cases_read(bad[i], strlen(bad[i]), &cases, reason) == -ERR_BAD_FILE))
			printf("# %s\n", bad[i]);
	}
	/* Cut anywhere, it is refused, and nothing is kept (a leak checker sees that). */
	for (size_t n = 0; n < sizeof good - 3; n++)
		EXPECT(cases_read(good, n, &cases, reason) == -ERR_BAD_FILE);
	char deep[200];
	memset(deep, '[', sizeof deep);
	memcpy(deep, "[{\"x\":", 6);
	EXPECT(cases_read(deep, sizeof deep, &cases, reason) == -ERR_BAD_FILE);
}

int main(void)
{
	TAP_RUN(lays_out, "a block holds what was put, and the device takes it");
	TAP_RUN(reads_flags, "options are read and refused by their table");
	TAP_RUN(reads_cases, "the input of logits is read and refused");
	return tap_done();
}
