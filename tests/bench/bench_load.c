/*
 * What a start cannot do without, with none of the loading code: bench_load MODEL reads the whole file once
 * with read(2), and gives each tensor's bytes once to the device's public weight_make. Where the tensors
 * lie is asked beforehand; their bytes come into memory between, and neither is counted. Seconds of both
 * as JSON. tests/bench/load.py drops the file from the cache or not, and holds the daemon's start against it.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "kernels/ops.h"
#include "runtime/model.h"

enum { BLOCK = 4 << 20 };

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static enum weight_use use_of(const struct model *model, const struct tensor *t)
{
	if (t->rows == 1)
		return WEIGHT_VECTOR;
	if (strcmp(t->name, "token_embd.weight") == 0)
		return model->arch.tied ? WEIGHT_BOTH : WEIGHT_LOOKUP;
	return strcmp(t->name, "output.weight") == 0 ? WEIGHT_MATMUL : WEIGHT_PHASED;
}

/* Seconds in weight_make; negative: one was refused, or there is no memory. The weights end with the process,
   as they do in a daemon. */
static double pack(const struct model *model)
{
	const struct device_plan plan = {
		.width = model->arch.width, .heads = model->arch.heads, .kv_heads = model->arch.kv_heads,
		.head = model->arch.head, .ff = model->arch.ff, .vocab = model->arch.vocab, .page_tokens = 16,
		.group_count = 1, .group = {{model->arch.layers, 1}}, .rows_max = 16, .sequences_max = 1,
		.samples_max = 1, .pages_max = 16, .context = 256, .ranks = 1};
	struct device *device = NULL;
	double spent = 0;
	uint64_t largest = 1;
	for (uint32_t i = 0; i < model->tensor_count; i++)
		largest = model->tensor[i].bytes > largest ? model->tensor[i].bytes : largest;
	void *bytes = malloc(largest);
	if (!bytes || ops_cpu()->device_open(&plan, &device) != 0)
		return -1;
	for (uint32_t i = 0; i < model->tensor_count; i++) {
		const struct tensor *t = &model->tensor[i];
		struct weight *weight;
		if (model_read(model, t, bytes) != 0)
			return -1;
		const double start = now();
		if (ops_cpu()->weight_make(device, t->type, use_of(model, t), t->rows, t->columns, bytes,
					   &weight) != 0)
			return -1;
		spent += now() - start;
	}
	free(bytes);
	return spent;
}

int main(int argc, char **argv)
{
	char reason[MODEL_REASON_MAX] = "", *block = malloc(BLOCK);
	struct model *model = NULL;
	const int file = argc == 2 ? open(argv[1], O_RDONLY | O_CLOEXEC) : -1;
	if (file < 0 || !block) {
		fprintf(stderr, "usage: bench_load MODEL\n");
		return 2;
	}
	const double start = now();
	ssize_t n;
	double bytes = 0;
	while ((n = read(file, block, BLOCK)) > 0)
		bytes += (double)n;
	const double have_read = now();
	if (n < 0 || model_open(argv[1], &model, reason) != 0) {
		fprintf(stderr, "%s\n", n < 0 ? "reading failed" : reason);
		return 1;
	}
	const double packed = pack(model);
	printf("{\"bytes\": %.0f, \"read_s\": %.3f, \"pack_s\": %.3f}\n", bytes, have_read - start, packed);
	return packed < 0;
}
