/*
 * The loader's other families, and models split into several files. Method: the small valid llama file
 * made into each family, and cut into files by hand; each way in which the files can disagree has its
 * refusal.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <math.h>

#include "runtime/model.h"
#include "sched/check.h"
#include "tests/gguf_make.h"
#include "tests/tap.h"
#include "tests/tiny.h"

static char reason[MODEL_REASON_MAX];
static struct maker maker;

static struct model *open_maker(void)
{
	struct model *m;
	struct bytes b = make_bytes(&maker);
	struct made_file f = made_open(b.at, b.length);
	if (model_open(f.path, &m, reason) != 0)
		printf("# %s\n", reason);
	made_close(&f);
	free(b.at);
	return m;
}

static void takes_mistral(void)
{
	make_tiny(&maker);
	make_u32(&maker, "llama.attention.sliding_window", 100);
	struct model *m = open_maker();
	REQUIRE(m != NULL);
	EXPECT_EQ(m->arch.window, 100);
	for (uint32_t i = 0; i < MODEL_LAYERS_MAX; i++)
		EXPECT((i + 1) % m->arch.window_period != 0);
	EXPECT(m->arch.rope_base_local == 0);
	model_close(&m);
	make_tiny(&maker);
	make_u32(&maker, "llama.attention.sliding_window", 128);
	m = open_maker();
	REQUIRE(m != NULL);
	EXPECT_EQ(m->arch.window, 0); /* as long as the context */
	model_close(&m);
}

static void takes_qwen(void)
{
	make_tiny(&maker);
	make_family(&maker, "qwen2");
	struct model *m = open_maker();
	REQUIRE(m != NULL);
	EXPECT(!strcmp(m->arch.name, "qwen2") && m->arch.qkv_bias && !m->arch.qk_norm);
	EXPECT(m->arch.rope == ROPE_HALVES && m->arch.gate == GATE_SILU && !m->arch.post_norms);
	model_close(&m);
	make_tiny(&maker);
	make_family(&maker, "qwen3");
	m = open_maker();
	REQUIRE(m != NULL);
	EXPECT(!strcmp(m->arch.name, "qwen3") && !m->arch.qkv_bias && m->arch.qk_norm);
	EXPECT(m->arch.rope == ROPE_HALVES && m->arch.embedding_scale == 1);
	model_close(&m);
}

static void takes_gemma(void)
{
	make_tiny(&maker);
	make_family(&maker, "gemma3");
	make_u32(&maker, "gemma3.attention.sliding_window", 64);
	make_f32(&maker, "gemma3.rope.freq_base", 1e6f);
	make_string(&maker, "gemma3.rope.scaling.type", "linear");
	make_f32(&maker, "gemma3.rope.scaling.factor", 8);
	make_f32(&maker, "gemma3.final_logit_softcapping", 30);
	struct model *m = open_maker();
	REQUIRE(m != NULL);
	const struct arch *a = &m->arch;
	EXPECT(a->qk_norm && a->post_norms && !a->qkv_bias && a->gate == GATE_GELU);
	EXPECT(a->window == 64 && a->window_period == 6 && a->rope == ROPE_HALVES);
	EXPECT(a->rope_base == 1e6f && a->rope_base_local == 10000 && a->rope_scale == 0.125f);
	EXPECT(fabsf(a->embedding_scale - sqrtf(32)) < 1e-6f);
	EXPECT(a->head_softcap == 30 && a->attention_softcap == 0);
	EXPECT(fabsf(a->attention_scale - 0.25f) < 1e-7f);
	model_close(&m);
}

/* ---- Split models. */

enum { FILES = 3 };
static char folder[64];

static void part_name(char *out, size_t room, unsigned part, unsigned count)
{
	snprintf(out, room, "%s/split-%05u-of-%05u.gguf", folder, part + 1, count);
}

static void put_u16(struct maker *m, const char *key, unsigned value)
{
	const uint8_t bytes[2] = {(uint8_t)value, (uint8_t)(value >> 8)};
	put(&make_key(m, key, 2)->value, bytes, 2);
}

/* One file of three: the first has all keys, each has a third of the tensors. */
static void make_part(struct maker *m, unsigned part)
{
	static struct maker all;
	make_tiny(&all);
	*m = all;
	m->tensor_count = 0;
	for (uint32_t i = part; i < all.tensor_count; i += FILES)
		m->tensor[m->tensor_count++] = all.tensor[i];
	if (part > 0) {
		for (uint32_t i = 0; i < m->key_count; i++)
			free(m->key[i].value.at);
		memset(m->key, 0, sizeof m->key);
		m->key_count = 0;
	}
	put_u16(m, "split.no", part);
	put_u16(m, "split.count", FILES);
	put_u32(&make_key(m, "split.tensors.count", 5)->value, all.tensor_count);
}

static void write_bytes(struct bytes *b, unsigned part)
{
	char path[128];
	part_name(path, sizeof path, part, FILES);
	FILE *f = fopen(path, "wb");
	if (!f || fwrite(b->at, 1, b->length, f) != b->length || fclose(f) != 0)
		abort();
	free(b->at);
}

static void write_part(struct maker *m, unsigned part)
{
	struct bytes b = make_bytes(m);
	write_bytes(&b, part);
}

static void write_all(void)
{
	for (unsigned i = 0; i < FILES; i++) {
		make_part(&maker, i);
		write_part(&maker, i);
	}
}

static int open_first(struct model **model)
{
	char path[128];
	part_name(path, sizeof path, 0, FILES);
	return model_open(path, model, reason);
}

static void takes_split(void)
{
	struct model *split, *other;
	write_all();
	REQUIRE(open_first(&split) == 0);
	make_tiny(&maker);
	struct bytes b = make_bytes(&maker);
	EXPECT_EQ(split->tensor_count, 11);
	EXPECT(split->file_bytes > b.length);
	uint32_t files = 0;
	for (uint32_t i = 0; i < split->tensor_count; i++) {
		uint8_t to[4096];
		const struct tensor *t = model_tensor(split, split->tensor[i].name);
		REQUIRE(t == &split->tensor[i] && t->bytes <= sizeof to);
		files |= 1u << t->file;
		EXPECT_EQ(model_read(split, t, to), 0);
		/* What make_bytes fills the data with tells a place in its own file. */
		EXPECT_EQ(to[0], (uint8_t)(t->offset * 37));
	}
	EXPECT_EQ(files, 7);
	/* One changed byte in the last file is another model. */
	make_part(&maker, 2);
	struct bytes last = make_bytes(&maker);
	last.at[last.length - 1] ^= 1;
	write_bytes(&last, 2);
	REQUIRE(open_first(&other) == 0);
	EXPECT(memcmp(split->hash, other->hash, 32) != 0);
	model_close(&other);
	model_close(&split);
	free(b.at);
}

static void expect_refusal(int code, const char *word)
{
	struct model *m;
	EXPECT_EQ(open_first(&m), code);
	if (!EXPECT(strstr(reason, word) != NULL))
		printf("# %s\n", reason);
	model_close(&m);
}

/* A part with so many tensors of eight numbers. */
static void write_many(unsigned part, uint32_t tensors)
{
	make_part(&maker, part);
	maker.tensor_count = 0;
	maker.tensor_claim = tensors;
	maker.alignment = 1; /* what follows is not data yet */
	struct bytes b = make_bytes(&maker);
	for (uint32_t i = 0; i < tensors; i++) {
		char name[16];
		snprintf(name, sizeof name, "t%u-%u", part, i);
		put_string(&b, name);
		put_u32(&b, 1);
		put_u64(&b, 8);
		put_u32(&b, 0);
		put_u64(&b, 32ull * i);
	}
	while (b.length % 32 != 0)
		put(&b, "", 1);
	for (uint32_t i = 0; i < 4 * tensors; i++)
		put_u64(&b, 0);
	write_bytes(&b, part);
}

static void refuses_keys_of_split(void)
{
	struct model *m;
	write_all();
	make_part(&maker, 0);
	make_u32(&maker, "split.count", FILES);
	write_part(&maker, 0);
	expect_refusal(-ERR_BAD_FILE, "split.count: its type is uint32, it must be uint16");
	make_part(&maker, 0);
	make_f32(&maker, "split.tensors.count", 11);
	write_part(&maker, 0);
	expect_refusal(-ERR_BAD_FILE, "split.tensors.count: its type must be int32");
	make_part(&maker, 0);
	make_drop(&maker, "split.tensors.count");
	write_part(&maker, 0);
	EXPECT_EQ(open_first(&m), 0);
	model_close(&m);
	write_many(1, 40000);
	write_many(2, 30000);
	expect_refusal(-ERR_BAD_FILE, "tensor count: 70004 in all, 65536 are taken");
}

static void refuses_split(void)
{
	char path[128], other[128];
	struct model *m;
	write_all();
	part_name(path, sizeof path, 1, FILES);
	EXPECT_EQ(model_open(path, &m, reason), -ERR_BAD_FILE); /* not the first: no keys */
	unlink(path);
	expect_refusal(-ERR_NO_FILE, "file 2 of 3: there is no such file");
	make_part(&maker, 2);
	write_part(&maker, 1);
	expect_refusal(-ERR_BAD_FILE, "calls itself 3 of 3");
	make_part(&maker, 1);
	put_u16(&maker, "split.count", 4);
	write_part(&maker, 1);
	expect_refusal(-ERR_BAD_FILE, "2 of 4");
	make_part(&maker, 1);
	make_drop(&maker, "split.no");
	write_part(&maker, 1);
	expect_refusal(-ERR_BAD_FILE, "split.no: the key is missing");
	make_part(&maker, 1);
	maker.cut = 70;
	write_part(&maker, 1);
	expect_refusal(-ERR_BAD_FILE, "file 2 of 3");
	make_part(&maker, 1);
	snprintf(maker.tensor[0].name, sizeof maker.tensor[0].name, "token_embd.weight");
	maker.tensor[0].name_length = 17;
	write_part(&maker, 1);
	expect_refusal(-ERR_BAD_FILE, "in two files");
	make_part(&maker, 1);
	maker.tensor_count--;
	write_part(&maker, 1);
	expect_refusal(-ERR_BAD_FILE, "split.tensors.count: 11");
	make_part(&maker, 0);
	put_u16(&maker, "split.no", 1);
	write_part(&maker, 0);
	expect_refusal(-ERR_BAD_FILE, "file 2 of 3, the first one");
	make_part(&maker, 0);
	put_u16(&maker, "split.count", 300);
	write_part(&maker, 0);
	expect_refusal(-ERR_UNSUPPORTED, "300 files");
	make_part(&maker, 0);
	write_part(&maker, 0);
	part_name(path, sizeof path, 0, FILES);
	snprintf(other, sizeof other, "%s/other.gguf", folder);
	EXPECT_EQ(rename(path, other), 0);
	EXPECT_EQ(model_open(other, &m, reason), -ERR_BAD_FILE);
	EXPECT(strstr(reason, "-00001-of-00003.gguf") != NULL);
}

int main(void)
{
	snprintf(folder, sizeof folder, "/tmp/holdfast-split-XXXXXX");
	if (!mkdtemp(folder))
		return 99;
	TAP_RUN(takes_mistral, "llama with a window in every layer");
	TAP_RUN(takes_qwen, "qwen2 and qwen3");
	TAP_RUN(takes_gemma, "gemma3");
	TAP_RUN(takes_split, "a model in three files");
	TAP_RUN(refuses_keys_of_split, "keys of a split that say nothing, and too many tensors in all");
	TAP_RUN(refuses_split, "files that do not belong together are refused");
	tiny_remove(folder);
	return tap_done();
}
