/*
 * Nodes: what Linux says of them, and mbind by its number, so that no library is needed.
 */
#define _GNU_SOURCE
#include "kernels/cpu/nodes.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "sched/check.h"

enum { NODES_MAX = 64, INTERLEAVE = 3 }; /* MPOL_INTERLEAVE */

/* "0-3,8" and the like. */
static uint64_t list_read(const char *at)
{
	uint64_t nodes = 0;
	for (;; at++) {
		char *end;
		if (*at < '0' || *at > '9')
			return 0;
		const unsigned long first = strtoul(at, &end, 10);
		unsigned long last = first;
		if (*end == '-') {
			at = end + 1;
			if (*at < '0' || *at > '9')
				return 0;
			last = strtoul(at, &end, 10);
		}
		if (last < first)
			return 0;
		for (unsigned long i = first; i <= last && i < NODES_MAX; i++)
			nodes |= 1ull << i;
		at = end;
		if (*at != ',')
			return *at == '\n' || *at == '\0' ? nodes : 0;
	}
}

uint64_t nodes_read(const char *path)
{
	char list[512];
	FILE *const file = fopen(path, "re");
	if (!file)
		return 0;
	const char *const line = fgets(list, sizeof list, file);
	fclose(file);
	return line ? list_read(line) : 0;
}

/* Nobody said where memory of this process is to lie (numactl, a service's policy). */
static bool policy_free(void)
{
	int policy = -1;
	return syscall(SYS_get_mempolicy, &policy, NULL, 0, NULL, 0) == 0 && policy == 0;
}

int nodes_spread(uint64_t nodes, void *at, size_t bytes)
{
	const unsigned long mask = nodes;
	if (!policy_free())
		return -ERR_UNSUPPORTED;
	/* The kernel takes one bit less than it is told of. */
	return syscall(SYS_mbind, at, bytes, INTERLEAVE, &mask, NODES_MAX + 1, 0) == 0 ? 0 : -ERR_UNSUPPORTED;
}
