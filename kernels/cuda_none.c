/*
 * The CUDA device of a build without it. Linked where nothing before it defines these.
 */
#include <stdio.h>

#include "kernels/ops.h"

const struct ops *ops_cuda(void)
{
	return NULL;
}

int ops_cuda_find(uint32_t gpu, char *reason, size_t room)
{
	(void)gpu;
	snprintf(reason, room, "this build has no CUDA: configure found no nvcc (see --with-cuda)");
	return -ERR_UNSUPPORTED;
}

int ops_cuda_memory(uint32_t gpu, uint64_t *free_bytes, uint64_t *total_bytes)
{
	(void)gpu;
	*free_bytes = *total_bytes = 0;
	return -ERR_UNSUPPORTED;
}
