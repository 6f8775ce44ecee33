/*
 * What a start cannot do without: bench_load MODEL reads the file once, as plain bytes, and makes the
 * packed weights of it once, with the device's own operations; seconds of both as JSON. tests/bench/load.py
 * holds the daemon's start against that.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "runtime/forward.h"
#include "runtime/model.h"

enum { BLOCK = 4 << 20 };

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

int main(int argc, char **argv)
{
	char reason[MODEL_REASON_MAX] = "", *block = malloc(BLOCK);
	struct forward_options options;
	struct forward *forward = NULL;
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
	forward_options_default(&options);
	options.page_count = options.sequences_max = options.samples_max = 1;
	options.rows_max = 16;
	options.context = 256;
	if (model_open(argv[1], &model, reason) != 0 || forward_open(model, &options, &forward, reason) != 0) {
		fprintf(stderr, "%s\n", reason);
		return 1;
	}
	const double packed = now();
	printf("{\"bytes\": %.0f, \"read_s\": %.3f, \"pack_s\": %.3f}\n", bytes, have_read - start,
	       packed - have_read);
	forward_close(&forward);
	model_close(&model);
	close(file);
	free(block);
	return n < 0;
}
