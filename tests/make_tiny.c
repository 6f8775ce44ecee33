/*
 * Writes the tiny random model of tests/tiny.h: make_tiny PATH SEED.
 */
#include "tests/tiny.h"

int main(int argc, char **argv)
{
	if (argc != 3) {
		fprintf(stderr, "usage: make_tiny PATH SEED\n");
		return 2;
	}
	return tiny_write(argv[1], strtoull(argv[2], NULL, 10)) == 0 ? 0 : 1;
}
