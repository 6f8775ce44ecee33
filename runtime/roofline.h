/*
 * What this machine can do at most, measured: bytes a second from memory and multiply-adds a second on
 * registers. Used by bench to say how far from its bounds a figure is.
 */
#ifndef HOLDFAST_RUNTIME_ROOFLINE_H
#define HOLDFAST_RUNTIME_ROOFLINE_H

#include <stdint.h>

#include "kernels/ops.h"

struct roofline {
	double bytes_per_s; /* all threads reading ROOFLINE_BYTES that no cache holds */
	/* All threads, on registers: multiply-adds of the instruction set in 8 bits, in f32, and in 8 bits by
	   tiles, 0 where there are none. */
	double macs_per_s, f32_per_s, tile_per_s;
};

enum { ROOFLINE_BYTES = 512 << 20, ROOFLINE_THREADS_MAX = 256 };

/* Best of several slices each; takes two or three seconds. Makes `threads` threads and ends them.
   -ERR_MEMORY, or -ERR_OUT_OF_RANGE for more threads than ROOFLINE_THREADS_MAX. */
int roofline_measure(enum isa isa, uint32_t threads, struct roofline *out);

#endif
