/*
 * What the tests, in C, may ask of the emulated GPU.
 */
#ifndef HOLDFAST_TESTS_EMULATE_HOOKS_H
#define HOLDFAST_TESTS_EMULATE_HOOKS_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The order of threads and blocks, from now on. */
void hook_seed(uint64_t seed);
/* The first fault since the last call, or NULL. */
const char *hook_fault(void);
/* The runtime call after so many fails, and all after it; negative: none. */
void hook_lose(long calls);
struct hook_counts {
	unsigned allocations, waits, launches, graph_launches, captures;
};
struct hook_counts hook_counts(void);
/* What the machine is said to be. */
void hook_machine(int devices, int driver, int major, size_t memory_bytes);
/* What a graph takes of the device's memory for each node. */
void hook_node(size_t bytes);
size_t hook_taken(void);

#ifdef __cplusplus
}
#endif

#endif
