/*
 * The calibration pass, and the file that keeps its result.
 */
#include "runtime/calibrate.h"

#include <errno.h>
#include <math.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/batch.h"
#include "runtime/tokenizer.h"

/* Raised when the text, the pass or the formula changes: kept vectors of another version are made
   anew. */
enum { CALIBRATE_VERSION = 2 };
/* The first tokens are attention sinks, with values like no others. */
enum { CALIBRATE_TOKENS = 512, CALIBRATE_SKIP = 4 };
static const float limit = 64.0f; /* some pairs are dead: no factor beyond this from the median */

/* Prose, code, numbers, markup and a tool's output: what the contexts of an agent are made of. */
static const char text[] =
	"The harbour master keeps a ledger of every boat that lies at the quay: who owns it, "
	"when it came in, how long it may stay, and what is owed. When a storm is near she does "
	"not ask which boat is the newest, but which can safely be moved.\n\n"
	"static int ledger_move(struct ledger *l, uint32_t from, uint32_t to, uint64_t bytes)\n"
	"{\n\tif (l->column[from] < bytes)\n\t\treturn -1;\n"
	"\tl->column[from] -= bytes;\n\tl->column[to] += bytes;\n\treturn 0;\n}\n\n"
	"$ ls -l src\n-rw-r--r-- 1 user user 4096 Mar 12 09:41 ledger.c\n"
	"{\"name\": \"read_file\", \"arguments\": {\"path\": \"src/ledger.c\", "
	"\"lines\": [1, 40]}}\n\n"
	"## Results\n| run | tokens | seconds |\n|---|---|---|\n| 1 | 2048 | 3.75 |\n\n"
	"Why does the test fail? Because the total was 17.5 and not 18, as the report says.\n";

static uint16_t bf16_of(float x)
{
	uint32_t bits;
	memcpy(&bits, &x, sizeof bits);
	return (uint16_t)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

static int compare_doubles(const void *a, const void *b)
{
	const double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

/* The other value of a rotary pair; values that do not turn pair among themselves. */
static uint32_t pair_other(const struct arch *arch, uint32_t value)
{
	const uint32_t half = arch->rope_dims / 2;
	if (arch->rope == ROPE_ADJACENT || value >= arch->rope_dims)
		return value ^ 1;
	return value < half ? value + half : value - half;
}

/* Mean over rows and `count` heads of the square of value a plus that of its pair. */
static double pair_power(const struct arch *arch, const float *x, uint32_t stride, uint32_t rows,
			 uint32_t skip, uint32_t count, uint32_t value)
{
	const uint32_t other = pair_other(arch, value);
	double sum = 0;
	for (uint32_t r = skip; r < rows; r++)
		for (uint32_t h = 0; h < count; h++) {
			const double a = x[(size_t)r * stride + h * arch->head + value];
			const double b = x[(size_t)r * stride + h * arch->head + other];
			/* In the order of the places, so that both values of a pair get one sum. */
			sum += value < other ? a * a + b * b : b * b + a * a;
		}
	return sum / ((double)(rows - skip) * count);
}

void calibrate_layer(const struct arch *arch, const float *q, const float *k, uint32_t rows,
		     uint32_t skip, uint16_t *smooth)
{
	const uint32_t n = arch->kv_heads * arch->head, group = arch->heads / arch->kv_heads;
	double *s = calloc(2 * (size_t)n, sizeof *s), *sorted = s + n;
	CHECK(s);
	CHECK(rows > skip);
	uint32_t good = 0;
	for (uint32_t i = 0; i < n; i++) {
		const uint32_t head = i / arch->head, value = i % arch->head;
		const double power_k =
			pair_power(arch, k + head * arch->head, n, rows, skip, 1, value);
		const double power_q = pair_power(arch, q + (size_t)head * group * arch->head,
						  arch->heads * arch->head, rows, skip, group,
						  value);
		s[i] = sqrt(sqrt(power_k) / fmax(sqrt(power_q), 1e-30));
		if (isfinite(s[i]) && s[i] > 0)
			sorted[good++] = s[i];
	}
	qsort(sorted, good, sizeof *sorted, compare_doubles);
	const double middle = good ? (sorted[(good - 1) / 2] + sorted[good / 2]) / 2 : 1;
	for (uint32_t i = 0; i < n; i++) {
		double value = isfinite(s[i]) ? s[i] : middle;
		value = fmin(fmax(value, middle / limit), middle * limit);
		smooth[i] = bf16_of((float)value);
	}
	free(s);
}

/* The pass has a device of its own: the plan is the same whatever the caller's is. */
struct pass {
	const struct model *model;
	const struct ops *ops;
	struct device *device;
	struct weights weights;
	struct batch_builder *builder;
	float *q, *k;
	uint32_t rows;
};

static int pass_tokens(const struct model *model, uint32_t *ids, uint32_t *count, char *reason)
{
	struct tokenizer *tokenizer = NULL;
	size_t length = 0;
	TRY(tokenizer_open(model, &tokenizer, reason));
	/* No more ids than bytes, and one for the start. */
	uint32_t *all = calloc(sizeof text + 1, sizeof *all);
	int err = all ? 0 : -ERR_MEMORY;
	if (err == 0 && model->vocabulary.add_bos && model->vocabulary.bos < model->arch.vocab)
		all[length++] = model->vocabulary.bos;
	if (err == 0)
		err = tokenizer_encode(tokenizer, text, sizeof text - 1, false, all, sizeof text,
				       &length);
	if (err == 0) {
		*count = length < CALIBRATE_TOKENS ? (uint32_t)length : CALIBRATE_TOKENS;
		if (*count > model->arch.context)
			*count = model->arch.context;
		memcpy(ids, all, *count * sizeof *ids);
		if (*count <= CALIBRATE_SKIP)
			err = -ERR_UNSUPPORTED;
	}
	if (err != 0)
		snprintf(reason, MODEL_REASON_MAX, "the calibration text has no tokens: %s",
			 err_text(err));
	free(all);
	tokenizer_close(&tokenizer);
	return err;
}

static int pass_open(const struct model *model, uint32_t threads, uint32_t rows,
		     weights_progress *progress, void *progress_arg, struct pass *p, char *reason)
{
	const struct arch *arch = &model->arch;
	const uint32_t pages = (rows + 15) / 16;
	const struct device_plan plan = {
		.width = arch->width, .heads = arch->heads, .kv_heads = arch->kv_heads,
		.head = arch->head, .ff = arch->ff, .vocab = arch->vocab,
		.page_tokens = 16,
		.group_count = 1,
		.group[0] = {.layers = arch->layers, .page_count = pages},
		.rows_max = rows, .sequences_max = 1, .samples_max = 1, .pages_max = pages,
		.context = rows, .extra_bytes_max = 8,
		/* The same bits whatever machine makes the vector. */
		.kv = KV_F32, .act = ACT_F32, .isa = ISA_AUTO, .exact = 1,
		.threads = threads, .rank = 0, .ranks = 1,
	};
	p->rows = rows;
	p->q = calloc((size_t)rows * arch->heads * arch->head, sizeof *p->q);
	p->k = calloc((size_t)rows * arch->kv_heads * arch->head, sizeof *p->k);
	if (!p->q || !p->k)
		return -ERR_MEMORY;
	TRY(batch_builder_open(&plan, &p->builder));
	TRY(p->ops->device_open(&plan, &p->device));
	TRY(p->ops->page_tags_set(p->device, 0, 0, pages, 1));
	return weights_open(model, NULL, p->ops, p->device, progress, progress_arg, &p->weights, reason);
}

static void pass_close(struct pass *p)
{
	weights_close(&p->weights);
	if (p->device)
		p->ops->device_close(&p->device);
	batch_builder_close(&p->builder);
	free(p->q);
	free(p->k);
}

static int pass_layer(struct pass *p, uint32_t index, uint16_t *smooth)
{
	const struct arch *arch = &p->model->arch;
	const struct ops *ops = p->ops;
	const struct ops_layer *layer = &p->weights.layer[index];
	TRY(ops->qkv(p->device, layer));
	TRY(ops->rope_write(p->device, layer));
	TRY(ops->wait(p->device, NULL, NULL));
	const size_t q_count = (size_t)p->rows * arch->heads * arch->head;
	const size_t k_count = (size_t)p->rows * arch->kv_heads * arch->head;
	TRY(ops->buffer_read(p->device, BUFFER_Q, 0, q_count, p->q));
	TRY(ops->buffer_read(p->device, BUFFER_K, 0, k_count, p->k));
	calibrate_layer(arch, p->q, p->k, p->rows, CALIBRATE_SKIP, smooth);
	TRY(ops->attend(p->device, layer));
	TRY(ops->output(p->device, layer));
	TRY(ops->gate_up(p->device, layer));
	return ops->down(p->device, layer);
}

static int pass_run(struct pass *p, const uint32_t *ids, weights_progress *progress,
		    void *progress_arg, uint16_t *smooth)
{
	const struct arch *arch = &p->model->arch;
	const uint32_t start[OPS_GROUP_MAX] = {0};
	batch_begin(p->builder);
	batch_sequence(p->builder, 0, start);
	for (uint32_t i = 0; i < (p->rows + 15) / 16; i++)
		batch_page(p->builder, 0, i, 1 + i);
	for (uint32_t i = 0; i < p->rows; i++)
		batch_row(p->builder, ids[i], i, 0);
	TRY(p->ops->batch(p->device, batch_end(p->builder)));
	TRY(p->ops->tag_check(p->device));
	TRY(p->ops->embed(p->device, p->weights.embedding, arch->embedding_scale));
	for (uint32_t i = 0; i < arch->layers; i++) {
		TRY(pass_layer(p, i, smooth + (size_t)i * arch->kv_heads * arch->head));
		if (progress)
			progress(progress_arg, "smoothing", i + 1, arch->layers);
	}
	return p->ops->wait(p->device, NULL, NULL);
}

static int calibrate_make(const struct model *model, uint32_t threads, weights_progress *progress,
			  void *progress_arg, uint16_t *smooth, char *reason)
{
	struct pass p = {.model = model, .ops = ops_cpu()};
	uint32_t ids[CALIBRATE_TOKENS], count = 0;
	TRY(pass_tokens(model, ids, &count, reason));
	snprintf(reason, MODEL_REASON_MAX, "the calibration pass failed");
	int err = pass_open(model, threads, count, progress, progress_arg, &p, reason);
	if (err == 0)
		err = pass_run(&p, ids, progress, progress_arg, smooth);
	pass_close(&p);
	return err;
}

/* The file: this header, the values, and a BLAKE2b-256 of both. */
struct kept {
	char magic[8];
	uint32_t version, layers, values, reserved;
	uint8_t model[32];
};
enum { KEPT_SUM = 32 };

static void kept_sum(const struct kept *head, const uint16_t *smooth, size_t bytes, uint8_t *sum)
{
	crypto_generichash_state state;
	crypto_generichash_init(&state, NULL, 0, KEPT_SUM);
	crypto_generichash_update(&state, (const uint8_t *)head, sizeof *head);
	crypto_generichash_update(&state, (const uint8_t *)smooth, bytes);
	crypto_generichash_final(&state, sum, KEPT_SUM);
}

static void kept_head(const struct model *model, struct kept *head)
{
	*head = (struct kept){.magic = "HFSMOOTH", .version = CALIBRATE_VERSION,
			      .layers = model->arch.layers,
			      .values = model->arch.kv_heads * model->arch.head};
	memcpy(head->model, model->hash, sizeof head->model);
}

static int kept_path(const struct model *model, const char *dir, const char *end, char *path,
		     size_t room)
{
	char hex[2 * sizeof model->hash + 1];
	sodium_bin2hex(hex, sizeof hex, model->hash, sizeof model->hash);
	const int n = snprintf(path, room, "%s/%s.smooth%s", dir, hex, end);
	return n > 0 && (size_t)n < room ? 0 : -ERR_OUT_OF_RANGE;
}

/* 0 only for a whole file of this model and version. */
static int kept_read(const struct model *model, const char *dir, uint16_t *smooth)
{
	char path[4096];
	struct kept head, want;
	uint8_t sum[KEPT_SUM], found[KEPT_SUM];
	const size_t bytes = (size_t)model->arch.layers * model->arch.kv_heads * model->arch.head *
			     sizeof *smooth;
	TRY(kept_path(model, dir, "", path, sizeof path));
	FILE *file = fopen(path, "rb");
	if (!file)
		return -ERR_NO_FILE;
	kept_head(model, &want);
	bool good = fread(&head, sizeof head, 1, file) == 1 &&
		    memcmp(&head, &want, sizeof head) == 0 && fread(smooth, bytes, 1, file) == 1 &&
		    fread(found, sizeof found, 1, file) == 1 && fgetc(file) == EOF;
	fclose(file);
	if (!good)
		return -ERR_BAD_FILE;
	kept_sum(&head, smooth, bytes, sum);
	return memcmp(sum, found, sizeof sum) == 0 ? 0 : -ERR_BAD_FILE;
}

/* Makes the folder and those above it. */
static int folder_make(const char *dir)
{
	char path[4096];
	const size_t n = strlen(dir);
	if (n == 0 || n >= sizeof path)
		return -ERR_OUT_OF_RANGE;
	memcpy(path, dir, n + 1);
	for (size_t i = 1; i <= n; i++) {
		if (path[i] != '/' && path[i] != '\0')
			continue;
		path[i] = '\0';
		if (mkdir(path, 0700) != 0 && errno != EEXIST)
			return -ERR_IO;
		path[i] = i < n ? '/' : '\0';
	}
	return 0;
}

static int kept_write(const struct model *model, const char *dir, const uint16_t *smooth)
{
	char path[4096], draft[4096], end[40];
	struct kept head;
	uint8_t sum[KEPT_SUM];
	const size_t bytes = (size_t)model->arch.layers * model->arch.kv_heads * model->arch.head *
			     sizeof *smooth;
	snprintf(end, sizeof end, ".%ld", (long)getpid());
	TRY(folder_make(dir));
	TRY(kept_path(model, dir, "", path, sizeof path));
	TRY(kept_path(model, dir, end, draft, sizeof draft));
	kept_head(model, &head);
	kept_sum(&head, smooth, bytes, sum);
	FILE *file = fopen(draft, "wb");
	if (!file)
		return -ERR_IO;
	bool good = fwrite(&head, sizeof head, 1, file) == 1 &&
		    fwrite(smooth, bytes, 1, file) == 1 &&
		    fwrite(sum, sizeof sum, 1, file) == 1 && fflush(file) == 0 &&
		    fsync(fileno(file)) == 0;
	good = fclose(file) == 0 && good;
	if (good && rename(draft, path) == 0)
		return 0;
	unlink(draft);
	return -ERR_IO;
}

int calibrate_find(const struct model *model, const char *cache_dir, uint32_t threads,
		   weights_progress *progress, void *progress_arg, uint16_t *smooth, char *reason)
{
	if (cache_dir && kept_read(model, cache_dir, smooth) == 0)
		return 0;
	TRY(calibrate_make(model, threads, progress, progress_arg, smooth, reason));
	if (cache_dir && kept_write(model, cache_dir, smooth) != 0 && progress)
		progress(progress_arg, "smoothing vector cannot be kept in the cache folder", 1, 1);
	return 0;
}
