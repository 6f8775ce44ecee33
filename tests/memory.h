/*
 * What this process holds of memory that is no file's, for tests that look for growth.
 */
#ifndef HOLDFAST_TESTS_MEMORY_H
#define HOLDFAST_TESTS_MEMORY_H

#include <stdio.h>

static inline double anonymous_mib(void)
{
	char line[256];
	double kib = 0;
	FILE *file = fopen("/proc/self/status", "r");
	while (file && fgets(line, sizeof line, file))
		if (sscanf(line, "RssAnon: %lf kB", &kib) == 1)
			break;
	if (file)
		fclose(file);
	return kib / 1024;
}

#endif
