/*
 * The fuzz target of the wire as a plain program: each file of the corpus, as it stands and mutated
 * with fixed seeds, goes through the pre-scan and every reader, and what is accepted must be
 * unpacked alike by MessagePack-c. With LIBFUZZER defined it is a target for that engine.
 * HOLDFAST_FUZZ_WIRE=N: so many inputs in all, at least.
 */
#include <dirent.h>
#include <msgpack.h>
#include <stdlib.h>
#include <string.h>

#include "tests/tap.h"
#include "tests/wire_samples.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static uint8_t copy[1 << 20], again[1 << 20];
	static char json[4 << 20];
	struct wire_header h;
	wire_header_read(data, size < WIRE_HEADER_BYTES ? size : WIRE_HEADER_BYTES, &h);
	int code = wire_validate(data, size, NULL);
	if (code == 0) {
		msgpack_unpacked u;
		size_t off = 0;
		msgpack_unpacked_init(&u);
		CHECK(msgpack_unpack_next(&u, (const char *)data, size, &off) ==
			MSGPACK_UNPACK_SUCCESS);
		CHECK(off == size);
		msgpack_unpacked_destroy(&u);
		wire_json((struct wire_value){data, size}, json, sizeof json);
	}
	for (int i = 0; i < SAMPLE_TYPES; i++) {
		size_t first = 0, second = 0;
		int read = sample_read(sample_types[i], data, size, NULL, copy, sizeof copy, &first);
		CHECK(code == 0 || read == code);
		if (read != 0)
			continue;
		/* What was read and written is read again, and written the same. */
		CHECK(sample_read(sample_types[i], copy, first, NULL, again, sizeof again,
			&second) == 0);
		CHECK(first == second);
		CHECK(memcmp(copy, again, first) == 0);
	}
	return 0;
}

#ifndef LIBFUZZER
enum { MUTANTS = 200, FILES_LEAST = 30 };
static int files;
static unsigned long long inputs;

static void one(const uint8_t *data, size_t size)
{
	uint8_t *own = malloc(size > 0 ? size : 1);
	CHECK(own != NULL);
	inputs++;
	memcpy(own, data, size);
	LLVMFuzzerTestOneInput(own, size);
	free(own);
}

static void corpus(void)
{
	static uint8_t data[1 << 16], mutant[1 << 16];
	const char *srcdir = getenv("SRCDIR");
	const char *asked = getenv("HOLDFAST_FUZZ_WIRE");
	const unsigned long long most = asked ? strtoull(asked, NULL, 10) / FILES_LEAST / 2 : 0;
	char path[4096];
	snprintf(path, sizeof path, "%s/tests/corpus/wire", srcdir ? srcdir : ".");
	DIR *d = opendir(path);
	REQUIRE(d != NULL);
	struct dice dice = {4};
	for (struct dirent *e; (e = readdir(d));) {
		char file[4096 + 256];
		snprintf(file, sizeof file, "%s/%s", path, e->d_name);
		FILE *f = e->d_name[0] == '.' ? NULL : fopen(file, "rb");
		if (!f)
			continue;
		size_t size = fread(data, 1, sizeof data, f);
		fclose(f);
		files++;
		one(data, size);
		for (unsigned long long i = 0; size > 0 && (i < MUTANTS || i < most); i++) {
			memcpy(mutant, data, size);
			for (uint64_t k = 1 + dice_roll(&dice, 4); k > 0; k--)
				mutant[dice_roll(&dice, size)] = (uint8_t)dice_roll(&dice, 256);
			one(mutant, 1 + dice_roll(&dice, size));
			one(mutant, size);
		}
	}
	closedir(d);
	EXPECT(files >= FILES_LEAST);
	printf("# %d files, %llu inputs\n", files, inputs);
}

int main(int argc, char **argv)
{
	static uint8_t data[1 << 20];
	/* Files on the command line: to look at a finding. */
	for (int i = 1; i < argc; i++) {
		FILE *f = fopen(argv[i], "rb");
		if (f) {
			one(data, fread(data, 1, sizeof data, f));
			fclose(f);
		}
	}
	if (argc > 1)
		return 0;
	TAP_RUN(corpus, "the corpus of the wire, and 400 mutants of each file");
	return tap_done();
}
#endif
