/*
 * The programs that need no daemon, by name, for tests and measurements: as holdfastd dispatches
 * them, without the daemon.
 */
#include <stdio.h>
#include <string.h>

#include "runtime/inspect.h"
#include "runtime/program.h"

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		int (*main)(int argc, char **argv);
	} commands[] = {
		{"logits", logits_main},
		{"perplexity", perplexity_main},
		{"bench", bench_main},
		{"inspect", inspect_main},
		{"tokenize", tokenize_main},
	};
	for (size_t i = 0; argc > 1 && i < sizeof commands / sizeof commands[0]; i++)
		if (strcmp(argv[1], commands[i].name) == 0)
			return commands[i].main(argc - 1, argv + 1);
	fprintf(stderr, "usage: programs logits|perplexity|bench|inspect|tokenize …\n");
	return 2;
}
