/*
 * The loader must take what is valid and refuse all else with the field and the value, never crash,
 * never ask for much memory. Method: a small valid file, each check's own twist of it
 * (gguf_hostile.h), every length it can be cut to, and seeded mutations under a time bound.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <math.h>
#include <sys/stat.h>
#include <time.h>

#include "runtime/load_hub.h"
#include "runtime/model.h"
#include "runtime/tokenizer.h"
#include "tests/gguf_hostile.h"
#include "tests/tap.h"

static char reason[MODEL_REASON_MAX];
static struct maker maker;

static int open_bytes(const void *at, size_t length, struct model **model)
{
	struct made_file f = made_open(at, length);
	memset(reason, 'x', sizeof reason);
	int code = model_open(f.path, model, reason);
	made_close(&f);
	return code;
}

static bool printable(void)
{
	size_t n = strnlen(reason, sizeof reason);
	for (size_t i = 0; i < n; i++)
		if (reason[i] < ' ' || reason[i] > '~')
			return false;
	return n < sizeof reason;
}

/* want: layers, width, heads, KV heads, head, ff, vocab, context. */
static void expect_sizes(const struct arch *a, const uint32_t want[8])
{
	const uint32_t got[8] = {a->layers, a->width, a->heads, a->kv_heads, a->head, a->ff, a->vocab,
		a->context};
	for (int i = 0; i < 8; i++)
		EXPECT_EQ(got[i], want[i]);
}

static void takes_the_valid(void)
{
	struct model *m;
	make_tiny(&maker);
	struct bytes b = make_bytes(&maker);
	int code = open_bytes(b.at, b.length, &m);
	if (code != 0)
		printf("# %s\n", reason);
	REQUIRE(code == 0);
	EXPECT(!strcmp(m->arch.name, "llama"));
	EXPECT(!strcmp(m->title, "a small one"));
	expect_sizes(&m->arch, (const uint32_t[]){1, 32, 2, 1, 16, 64, 5, 128});
	EXPECT_EQ(m->arch.rope, ROPE_ADJACENT);
	EXPECT_EQ(m->arch.gate, GATE_SILU);
	EXPECT_EQ(m->arch.rope_dims, 16);
	EXPECT(m->arch.rope_base == 10000 && m->arch.rope_scale == 1);
	EXPECT(fabsf(m->arch.attention_scale - 0.25f) < 1e-7f);
	EXPECT(m->arch.embedding_scale == 1 && m->arch.epsilon == 1e-5f);
	EXPECT(m->arch.tied && !m->arch.qkv_bias && !m->arch.qk_norm && !m->arch.post_norms);
	EXPECT_EQ(m->arch.window, 0);
	EXPECT_EQ(m->tensor_count, 11);
	EXPECT_EQ(m->file_bytes, b.length);
	EXPECT_EQ(m->vocabulary.count, 5);
	EXPECT_EQ(m->vocabulary.merge_count, 1);
	EXPECT_EQ(m->vocabulary.eos, UINT32_MAX);
	EXPECT(m->vocabulary.length[3] == 2 && !memcmp(m->vocabulary.text[3], "ab", 2));
	EXPECT(m->vocabulary.chat_template == NULL);
	const struct tensor *t = model_tensor(m, "blk.0.ffn_down.weight");
	REQUIRE(t != NULL);
	EXPECT(t->rows == 32 && t->columns == 64 && t->bytes == 32 * 2 * 20 && t->type == 3);
	EXPECT(model_tensor(m, "blk.0.ffn_down.bias") == NULL);
	uint8_t *data = malloc(t->bytes);
	EXPECT_EQ(model_read(m, t, data), 0);
	EXPECT(!memcmp(data, b.at + t->offset, t->bytes));
	free(data);
	model_close(&m);
	EXPECT(m == NULL);
	model_close(&m);
	free(b.at);
}

static void takes_options(void)
{
	struct model *m;
	make_tiny(&maker);
	maker.version = 2;
	maker.alignment = 64;
	make_u32(&maker, "general.alignment", 64);
	make_u32(&maker, "llama.attention.key_length", 16);
	make_u32(&maker, "llama.rope.dimension_count", 8);
	make_f32(&maker, "llama.rope.freq_base", 5e5f);
	make_string(&maker, "llama.rope.scaling.type", "linear");
	make_f32(&maker, "llama.rope.scaling.factor", 4);
	make_u32(&maker, "tokenizer.ggml.eos_token_id", 0);
	make_string(&maker, "tokenizer.chat_template", "{{ messages }}");
	put(make_array(&maker, "tokenizer.ggml.scores", 6, 5), (float[5]){1, 2, 3, 4, 5}, 20);
	make_tensor(&maker, "output.weight", 1, 32, 5);
	make_tensor(&maker, "rope_freqs.weight", 0, 4, 0);
	make_tensor(&maker, "blk.0.attn_q.bias", 0, 32, 0);
	make_tensor(&maker, "blk.0.attn_k.bias", 30, 16, 0);
	make_tensor(&maker, "blk.0.attn_v.bias", 1, 16, 0);
	struct bytes b = make_bytes(&maker);
	int code = open_bytes(b.at, b.length, &m);
	if (code != 0)
		printf("# %s\n", reason);
	free(b.at);
	REQUIRE(code == 0);
	EXPECT(!m->arch.tied && m->arch.qkv_bias);
	EXPECT_EQ(m->arch.rope_dims, 8);
	EXPECT(m->arch.rope_base == 5e5f && m->arch.rope_scale == 0.25f);
	EXPECT_EQ(m->vocabulary.eos, 0);
	EXPECT(m->vocabulary.score && m->vocabulary.score[4] == 5);
	EXPECT(!strcmp(m->vocabulary.chat_template, "{{ messages }}"));
	EXPECT_EQ(m->vocabulary.chat_template_length, 14);
	model_close(&m);
}

/* A vocabulary padded in the embedding: the ids beyond it do not exist. */
static void takes_padding(void)
{
	struct model *m;
	make_tiny(&maker);
	struct made_tensor *t = make_find(&maker, "token_embd.weight");
	t->dimension[1] = 8;
	t->bytes = 8 * 34;
	struct bytes b = make_bytes(&maker);
	REQUIRE(open_bytes(b.at, b.length, &m) == 0);
	EXPECT_EQ(m->arch.vocab, 5);
	EXPECT_EQ(model_tensor(m, "token_embd.weight")->rows, 8);
	model_close(&m);
	free(b.at);
}

static unsigned hostile_index;

static void refuses_hostile(void)
{
	const struct hostile *h = &hostile[hostile_index];
	struct model *m = (struct model *)&maker;
	struct bytes b = hostile_bytes(hostile_index);
	int code = open_bytes(b.at, b.length, &m);
	EXPECT_EQ(code, h->code);
	EXPECT(m == NULL);
	EXPECT(printable());
	if (!EXPECT(strstr(reason, h->word) != NULL) || code != h->code)
		printf("# %s\n", reason);
	model_close(&m);
	free(b.at);
}

static void expect_refused(struct bytes *b, size_t length, const char *word)
{
	struct model *m;
	struct made_file f = made_open(b->at, b->length);
	REQUIRE(length == 0 || ftruncate(f.fd, (off_t)length) == 0);
	EXPECT_EQ(model_open(f.path, &m, reason), -ERR_BAD_FILE);
	if (!EXPECT(strstr(reason, word) != NULL))
		printf("# %s\n", reason);
	EXPECT(m == NULL);
	made_close(&f);
	free(b->at);
}

/* What is much is in the file, as a hole, or as many empty strings. */
static void refuses_too_much(void)
{
	make_tiny(&maker);
	put_u64(&make_key(&maker, "x", 8)->value, 256 << 20);
	struct bytes b = make_bytes(&maker);
	expect_refused(&b, 600 << 20, "x: the metadata is larger than 268435456 bytes");
	const uint64_t merges = (1 << 21) + 1;
	uint8_t *empty = calloc(merges, 8);
	REQUIRE(empty != NULL);
	make_tiny(&maker);
	put(make_array(&maker, "tokenizer.ggml.merges", 8, merges), empty, merges * 8);
	free(empty);
	b = make_bytes(&maker);
	expect_refused(&b, 0, "merges: 2097153 items, 2097152 are taken");
}

/* A name of any length and of any bytes. */
static void takes_long_titles(void)
{
	struct model *m;
	char title[400];
	memset(title, 'n', sizeof title - 1);
	title[0] = '\x1b';
	title[sizeof title - 1] = 0;
	make_tiny(&maker);
	make_string(&maker, "general.name", title);
	struct bytes b = make_bytes(&maker);
	REQUIRE(open_bytes(b.at, b.length, &m) == 0);
	EXPECT_EQ(strlen(m->title), sizeof m->title - 1);
	EXPECT(m->title[0] == '?' && !strncmp(m->title + 1, title + 1, sizeof m->title - 2));
	model_close(&m);
	free(b.at);
}

static void refuses_every_cut(void)
{
	make_tiny(&maker);
	struct bytes b = make_bytes(&maker);
	for (size_t n = 0; n < b.length; n++) {
		struct model *m;
		int code = open_bytes(b.at, n, &m);
		/* The last tensor's end is the file's end, so each cut loses something. */
		if (!EXPECT(code == -ERR_BAD_FILE))
			break;
	}
	free(b.at);
}

static void reads_fail_when_cut_later(void)
{
	make_tiny(&maker);
	struct bytes b = make_bytes(&maker);
	struct made_file f = made_open(b.at, b.length);
	struct model *m;
	uint8_t to[4096];
	REQUIRE(model_open(f.path, &m, reason) == 0);
	const struct tensor *t = model_tensor(m, "blk.0.ffn_down.weight");
	EXPECT_EQ(ftruncate(f.fd, (off_t)b.length - 1), 0);
	EXPECT_EQ(model_read(m, t, to), -ERR_BAD_FILE);
	model_close(&m);
	made_close(&f);
	free(b.at);
}

static void hash_tells_files_apart(void)
{
	struct model *a, *b, *c;
	make_tiny(&maker);
	struct bytes x = make_bytes(&maker);
	REQUIRE(open_bytes(x.at, x.length, &a) == 0);
	REQUIRE(open_bytes(x.at, x.length, &b) == 0);
	x.at[x.length - 1] ^= 1;
	REQUIRE(open_bytes(x.at, x.length, &c) == 0);
	EXPECT(!memcmp(a->hash, b->hash, 32));
	EXPECT(memcmp(a->hash, c->hash, 32));
	model_close(&a);
	model_close(&b);
	model_close(&c);
	free(x.at);
}

static void refuses_places(void)
{
	struct model *m;
	char deep[5000], path[] = "/tmp/holdfast-test-XXXXXX";
	EXPECT_EQ(model_open("/nonexistent/model.gguf", &m, reason), -ERR_NO_FILE);
	EXPECT_EQ(model_open("/", &m, reason), -ERR_NO_FILE); /* a folder without config.json */
	EXPECT_EQ(model_open("/dev/null", &m, reason), -ERR_BAD_FILE);
	memset(deep, 'a', sizeof deep - 1);
	deep[sizeof deep - 1] = 0;
	EXPECT_EQ(model_open(deep, &m, reason), -ERR_NO_FILE);
	int fd = mkstemp(path);
	REQUIRE(fd >= 0);
	close(fd);
	unlink(path);
	REQUIRE(mkfifo(path, 0600) == 0);
	EXPECT_EQ(model_open(path, &m, reason), -ERR_BAD_FILE); /* and does not wait */
	unlink(path);
}

/* A folder that goes away between the look at the path and its opening. */
static void refuses_a_lost_folder(void)
{
	char path[] = "/tmp/holdfast-test-XXXXXX";
	struct hub *hub;
	struct gguf g;
	REQUIRE(mkdtemp(path) != NULL);
	EXPECT(hub_is(path));
	EXPECT_EQ(rmdir(path), 0);
	EXPECT_EQ(hub_open(path, &hub, &g, reason), -ERR_NO_FILE);
	EXPECT(!strcmp(reason, "there is no such folder"));
	hub_close(&hub);
	EXPECT(hub == NULL);
}

static uint64_t seed = 0x9e3779b97f4a7c15;

static uint64_t draw(uint64_t below)
{
	seed ^= seed << 13;
	seed ^= seed >> 7;
	seed ^= seed << 17;
	return (seed >> 11) % below;
}

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void mutate(uint8_t *at, size_t length)
{
	static const uint64_t odd[] = {0, 1, 2, 31, 32, 33, 255, 256, 65535, 0x7fffffff, 0x80000000,
				       0xffffffff, 0x7fffffffffffffff, 0xffffffffffffffff};
	for (uint64_t n = 1 + draw(4); n > 0; n--) {
		size_t place = draw(length);
		uint64_t value = odd[draw(sizeof odd / sizeof odd[0])];
		size_t size = 1u << draw(4);
		if (size > length - place)
			size = 1;
		if (draw(3) == 0)
			at[place] ^= (uint8_t)(1 << draw(8));
		else
			memcpy(at + place, &value, size);
	}
}

static void survives_mutations(void)
{
	enum { ROUNDS = 20000 };
	double end = now() + 3;
	unsigned taken = 0, rounds = 0;
	make_tiny(&maker);
	struct bytes b = make_bytes(&maker);
	uint8_t *copy = malloc(b.length);
	for (; rounds < ROUNDS && now() < end; rounds++) {
		struct model *m;
		memcpy(copy, b.at, b.length);
		/* Mostly the metadata: what is wrong in the data is the kernels' affair. */
		mutate(copy, draw(8) ? 1200 : b.length);
		int code = open_bytes(copy, b.length, &m);
		if (code != 0) {
			if (!EXPECT(code == -ERR_BAD_FILE || code == -ERR_UNSUPPORTED) ||
			    !EXPECT(reason[0] && printable()))
				break;
			continue;
		}
		struct tokenizer *t;
		taken++;
		EXPECT_EQ(tokenizer_open(m, &t, reason), 0);
		tokenizer_close(&t);
		for (uint32_t i = 0; i < m->tensor_count; i++) {
			uint8_t *data = malloc(m->tensor[i].bytes);
			EXPECT_EQ(model_read(m, &m->tensor[i], data), 0);
			free(data);
		}
		model_close(&m);
	}
	printf("# %u mutations, %u taken\n", rounds, taken);
	EXPECT(rounds > 100);
	EXPECT(taken > 0);
	EXPECT(taken < rounds);
	free(copy);
	free(b.at);
}

static void takes_the_real_one(void)
{
	const char *path = getenv("HOLDFAST_MODEL");
	struct model *m;
	if (!path || !*path)
		TAP_SKIP("HOLDFAST_MODEL is not set");
	int code = model_open(path, &m, reason);
	if (code != 0)
		printf("# %s\n", reason);
	REQUIRE(code == 0);
	expect_sizes(&m->arch, (const uint32_t[]){30, 576, 9, 3, 64, 1536, 49152, 8192});
	EXPECT(m->arch.rope_base == 100000);
	EXPECT_EQ(m->parameters, 134515008);
	EXPECT_EQ(m->file_bytes, 98362432);
	EXPECT_EQ(m->tensor_count, 272);
	EXPECT(m->arch.tied);
	model_close(&m);
}

int main(void)
{
	TAP_RUN(takes_the_valid, "a small valid file is taken, its fields are right");
	TAP_RUN(takes_options, "optional keys and tensors, version 2, another alignment");
	TAP_RUN(takes_padding, "an embedding with more rows than tokens");
	for (hostile_index = 0; hostile_index < HOSTILE_COUNT; hostile_index++)
		TAP_RUN(refuses_hostile, hostile[hostile_index].name);
	TAP_RUN(takes_long_titles, "a long name is cut");
	TAP_RUN(refuses_too_much, "too much metadata, too many merges");
	TAP_RUN(refuses_every_cut, "a file cut off at any byte is refused");
	TAP_RUN(reads_fail_when_cut_later, "a file cut off after opening is an error, not a signal");
	TAP_RUN(hash_tells_files_apart, "the hash depends on content only");
	TAP_RUN(refuses_places, "no file, a folder, a pipe, a path too long");
	TAP_RUN(refuses_a_lost_folder, "a folder that goes away meanwhile");
	TAP_RUN(survives_mutations, "mutations are taken or refused, nothing else");
	TAP_RUN(takes_the_real_one, "the default model");
	return tap_done();
}
