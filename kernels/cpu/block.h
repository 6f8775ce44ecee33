/*
 * Blocks of packed weights: from a file's order into a pack and back to integers. The layouts stand
 * in cpu.h. Private to kernels/cpu/. Pure; any thread.
 */
#ifndef HOLDFAST_KERNELS_CPU_BLOCK_H
#define HOLDFAST_KERNELS_CPU_BLOCK_H

#include "kernels/cpu/cpu.h"

/* The pack of a type that enters matmuls, and what is added to its integers so that none is
   negative (the K types and tables: see cpu.h). */
enum pack weight_pack(uint32_t type);
uint32_t pack_zero(uint32_t type);

/* Row r (of the group) of one block of the file, or of up to 32 values of a float type, `columns` of
   which exist, into the zeroed block at `to`. Not for PACK_RAW. */
void pack_block(const struct weight *w, const uint8_t *from, uint32_t columns, uint32_t r,
		uint8_t *to);

/* Row r's 32 columns of block `block` of a group: signed values, or unsigned ones where there are
   minima; d[1] only for PACK_K6. Returns 1 if the values are symmetric (m is not set), else 0. Not
   for PACK_RAW and the packs of floats. */
int pack_integers(const struct weight *w, const uint8_t *group, uint32_t block, uint32_t r,
		  int8_t q[32], float d[2], float *m);

#endif
