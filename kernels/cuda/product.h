/*
 * What every kernel that multiplies ends with: a sum's way to where it belongs. Private to
 * kernels/cuda/.
 */
#ifndef HOLDFAST_KERNELS_CUDA_PRODUCT_H
#define HOLDFAST_KERNELS_CUDA_PRODUCT_H

#include "kernels/cuda/cuda.h"

__device__ static inline void product_store(const struct product *p, uint32_t token, uint32_t row, float sum)
{
	const size_t at = (size_t)token * p->stride + row;
	if (p->bias)
		sum += p->bias[row];
	if (p->softcap > 0)
		sum = p->softcap * tanhf(sum / p->softcap);
	p->out[at] = sum;
	if (p->residual)
		p->residual[at] += sum;
}

/* Finds the product that a tile of `size` rows belongs to. */
__device__ static inline int product_find(const struct product *list, uint32_t count, uint32_t size,
					  uint32_t *tile)
{
	int i = 0;
	for (; i < (int)count - 1; i++) {
		const uint32_t tiles = (list[i].w.rows + size - 1) / size;
		if (*tile < tiles)
			break;
		*tile -= tiles;
	}
	return i;
}

static inline uint32_t product_tiles(const struct product *list, uint32_t count, uint32_t size)
{
	uint32_t tiles = 0;
	for (uint32_t i = 0; i < count; i++)
		tiles += (list[i].w.rows + size - 1) / size;
	return tiles;
}

#endif
