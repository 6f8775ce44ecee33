/*
 * holdfastd: the daemon, and the programs that need none. The first argument chooses.
 */
#include <stdio.h>
#include <string.h>

#include "runtime/daemon.h"
#include "runtime/inspect.h"
#include "runtime/program.h"
#include "runtime/simulate.h"

struct program {
	const char *name;
	int (*main)(int argc, char **argv);
};

static const struct program programs[] = {
	{"inspect", inspect_main},       {"tokenize", tokenize_main}, {"logits", logits_main},
	{"perplexity", perplexity_main}, {"bench", bench_main},
	{"simulate", simulate_main},
};

int main(int argc, char **argv)
{
	static struct options options;
	for (unsigned i = 0; argc > 1 && i < sizeof programs / sizeof programs[0]; i++)
		if (strcmp(argv[1], programs[i].name) == 0)
			return programs[i].main(argc - 1, argv + 1);
	const int code = options_read(argc, argv, &options);
	if (code)
		return code < 0 ? 0 : code;
	return daemon_run(&options);
}
