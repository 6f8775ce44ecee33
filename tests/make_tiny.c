/*
 * Writes the tiny random model of tests/tiny.h: make_tiny PATH SEED [FAMILY [plain|cut]].
 */
#include "tests/tiny.h"

int main(int argc, char **argv)
{
	const struct tiny_family *family = tiny_family(argc >= 4 ? argv[3] : "llama");
	if (argc < 3 || argc > 5 || !family) {
		fprintf(stderr, "usage: make_tiny PATH SEED [FAMILY [plain|cut]]; families:");
		for (unsigned i = 0; i < TINY_FAMILIES; i++)
			fprintf(stderr, " %s", tiny_families[i].name);
		fprintf(stderr, "\n");
		return 2;
	}
	const uint64_t seed = strtoull(argv[2], NULL, 10);
	return tiny_write_family(argv[1], seed, family,
				 argc < 5 ? 0 : argv[4][0] == 'c' ? 2 : 1) == 0 ? 0 : 1;
}
