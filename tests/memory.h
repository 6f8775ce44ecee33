/*
 * What this process holds of memory that is no file's, for tests that look for growth.
 */
#ifndef HOLDFAST_TESTS_MEMORY_H
#define HOLDFAST_TESTS_MEMORY_H

#include <malloc.h>
#include <stddef.h>
#include <stdio.h>

/* The address sanitizer's own count, where that is the allocator. */
__attribute__((weak)) size_t __sanitizer_get_current_allocated_bytes(void);

/* Bytes that were allocated and not freed; 0 where the C library cannot tell. */
static inline double heap_bytes(void)
{
	if (__sanitizer_get_current_allocated_bytes)
		return (double)__sanitizer_get_current_allocated_bytes();
#if defined(__GLIBC__) && __GLIBC_PREREQ(2, 33)
	const struct mallinfo2 m = mallinfo2();
	return (double)m.uordblks + (double)m.hblkhd;
#else
	return 0;
#endif
}

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
