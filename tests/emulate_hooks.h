/*
 * What the tests, in C, may ask of the GPU that is linked: the emulated one (emulate_hooks.cpp), or a real
 * one (gpu_hooks.c), which has no order of threads to choose, says no fault and counts nothing.
 */
#ifndef HOLDFAST_TESTS_EMULATE_HOOKS_H
#define HOLDFAST_TESTS_EMULATE_HOOKS_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Whether it is the emulated one; and why there is none: NULL if there is one. */
int hook_emulated(void);
const char *hook_missing(void);
/* The order of threads and blocks, from now on. */
void hook_seed(uint64_t seed);
/* The first fault since the last call, or NULL. */
const char *hook_fault(void);
/* The runtime call after so many fails, and all after it; negative: none. */
void hook_lose(long calls);
/* That one alone, for want of memory. */
void hook_refuse(long calls);
struct hook_counts {
	unsigned allocations, waits, launches, graph_launches, captures;
	unsigned pageable; /* copies from or to host memory that is not pinned */
	uint64_t gpu_ns; /* of the caller's CPU time, what a GPU would have done */
};
struct hook_counts hook_counts(void);
/* What the machine is said to be. */
void hook_machine(int devices, int driver, int major, size_t memory_bytes);
/* The usual one, but for the shared memory that a block can have; 0: as usual. */
void hook_shared(size_t bytes);
/* What a graph takes of the device's memory for each node. */
void hook_node(size_t bytes);
size_t hook_taken(void);
/* Whether host memory cannot be pinned; and its bytes that are. */
void hook_no_pin(int refused);
size_t hook_pinned(void);

#ifdef __cplusplus
}
#endif

#endif
