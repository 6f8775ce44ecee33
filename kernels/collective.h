/*
 * What a device asks of its fellows when a model is split over several ranks. Every rank makes the
 * calls in the same order with the same sizes. A device gets them with its plan; who the ranks
 * are (threads, processes, machines) and how bytes travel is for whoever fills this struct. Each
 * returns 0, or -ERR_INTERNAL when a rank is gone: then the device is lost on all of them.
 *
 * A sum is taken element by element in the order of the ranks, whatever the count and however it is
 * cut, so that it has the same bits on every rank, in every batch and at every run (K1).
 *
 * Compiles as C11 and as C++17.
 */
#ifndef HOLDFAST_KERNELS_COLLECTIVE_H
#define HOLDFAST_KERNELS_COLLECTIVE_H

#include <stddef.h>

struct collective {
	void *self;
	/* x = ((x of rank 0 + x of rank 1) + x of rank 2) + ... */
	int (*sum)(void *self, float *x, size_t count);
	/* all: `bytes` of each rank, in the order of the ranks. */
	int (*gather)(void *self, const void *mine, size_t bytes, void *all);
	/* Rank 0's bytes to all. */
	int (*broadcast)(void *self, void *bytes, size_t count);
	/* Whether all ranks live: 0, or -ERR_INTERNAL. Alone, at any moment. */
	int (*alive)(void *self);
};

#endif
