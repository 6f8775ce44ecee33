/*
 * The nodes of a machine whose memory is not equally near to all cores. Items of work are taken by
 * whichever thread is free, so no thread has weights or pages of its own: these are laid over all
 * nodes in turn, and all threads together read with what all nodes give. Private to kernels/cpu/.
 */
#ifndef HOLDFAST_KERNELS_CPU_NODES_H
#define HOLDFAST_KERNELS_CPU_NODES_H

#include <stddef.h>
#include <stdint.h>

#define NODES_PATH "/sys/devices/system/node/has_memory"

/* The nodes with memory, a bit each, of the list in the file; those from 64 on are left out, and a list
   that makes no sense, or none, is 0. */
uint64_t nodes_read(const char *path);

/* Lays memory that nobody has touched over the nodes, page by page. It aims at speed alone: 0, or
   -ERR_UNSUPPORTED where the system would not, or the process was started with a policy of its own (numactl):
   then the memory lies as that says, or where it is first touched. `at` is at the start of a page. */
int nodes_spread(uint64_t nodes, void *at, size_t bytes);

#endif
