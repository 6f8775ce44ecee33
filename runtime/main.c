/*
 * holdfastd: the daemon, and the programs that need none. The first argument chooses.
 */
#include <stdio.h>
#include <string.h>

#include "runtime/audit.h"
#include "runtime/daemon.h"
#include "runtime/inspect.h"
#include "runtime/program.h"
#include "runtime/selftest.h"
#include "runtime/simulate.h"

struct program {
	const char *name;
	int (*main)(int argc, char **argv);
};

static const struct program programs[] = {
	{"inspect", inspect_main},       {"tokenize", tokenize_main}, {"logits", logits_main},
	{"perplexity", perplexity_main}, {"bench", bench_main},
	{"selftest", selftest_main},     {"audit", audit_main},
	{"simulate", simulate_main},
};

/* A program that could not write its results has failed, whatever it thought. */
static int written(const char *name, int code)
{
	if ((fflush(stdout) == 0 && !ferror(stdout)) || code != 0)
		return code;
	fprintf(stderr, "holdfastd: %s: writing to stdout failed\n", name);
	return 1;
}

int main(int argc, char **argv)
{
	static struct options options;
	for (unsigned i = 0; argc > 1 && i < sizeof programs / sizeof programs[0]; i++)
		if (strcmp(argv[1], programs[i].name) == 0)
			return written(programs[i].name, programs[i].main(argc - 1, argv + 1));
	const int code = options_read(argc, argv, &options);
	if (code)
		return code < 0 ? 0 : code;
	const int done = daemon_run(&options);
	return options.check ? written("--check", done) : done;
}
