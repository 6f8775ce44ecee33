/*
 * Reads a file of the source tree or another whole, for tests.
 */
#ifndef HOLDFAST_TESTS_FILES_H
#define HOLDFAST_TESTS_FILES_H

#include <stdio.h>
#include <stdlib.h>

/* NULL if it cannot be read; free it. */
static inline char *file_read(const char *path, size_t *length)
{
	FILE *f = fopen(path, "rb");
	char *text = NULL;
	if (f && fseek(f, 0, SEEK_END) == 0) {
		*length = (size_t)ftell(f);
		rewind(f);
		text = malloc(*length + 1);
		if (text && fread(text, 1, *length, f) == *length) {
			text[*length] = 0;
		} else {
			free(text);
			text = NULL;
		}
	}
	if (f)
		fclose(f);
	return text;
}

/* Of the path under $SRCDIR, the current folder if that is unset. */
static inline char *source_read(const char *path, size_t *length)
{
	const char *root = getenv("SRCDIR");
	char whole[4096];
	snprintf(whole, sizeof whole, "%s/%s", root ? root : ".", path);
	return file_read(whole, length);
}

#endif
