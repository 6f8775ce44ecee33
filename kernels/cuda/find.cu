/*
 * Whether there is a GPU that can be used: asked before anything is taken.
 */
#include <stdio.h>

#include "kernels/cuda/gpu.h"
#include "kernels/ops.h"

enum { DRIVER_LEAST = 12000, MAJOR_LEAST = 8 };

int ops_cuda_find(uint32_t index, char *reason, size_t room)
{
	int count = 0, driver = 0, runtime = 0;
	struct cudaDeviceProp is;
	cudaRuntimeGetVersion(&runtime);
	const cudaError_t error = cudaGetDeviceCount(&count);
	cudaGetLastError();
	if (cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0) {
		snprintf(reason, room, "no CUDA driver is here; one for CUDA %d.%d or later is needed",
			 DRIVER_LEAST / 1000, DRIVER_LEAST % 1000 / 10);
		return -ERR_UNSUPPORTED;
	}
	if (error == cudaErrorInsufficientDriver) {
		snprintf(reason, room, "the driver is for CUDA %d.%d; this build needs one for CUDA %d.%d",
			 driver / 1000, driver % 1000 / 10, runtime / 1000, runtime % 1000 / 10);
		return -ERR_UNSUPPORTED;
	}
	if (error != cudaSuccess || count == 0) {
		snprintf(reason, room, "no CUDA device is found (%s)", cudaGetErrorString(error));
		return -ERR_UNSUPPORTED;
	}
	if (index >= (uint32_t)count) {
		snprintf(reason, room, "there is no CUDA device %u; this machine has %d, counted from 0",
			 index, count);
		return -ERR_OUT_OF_RANGE;
	}
	if (cudaGetDeviceProperties(&is, (int)index) != cudaSuccess) {
		snprintf(reason, room, "CUDA device %u does not say what it is", index);
		return -ERR_UNSUPPORTED;
	}
	if (is.major < MAJOR_LEAST) {
		snprintf(reason, room,
			 "CUDA device %u (%.60s) has compute capability %d.%d; 8.0 or later is needed", index,
			 is.name, is.major, is.minor);
		return -ERR_UNSUPPORTED;
	}
	snprintf(reason, room, "%.60s, compute capability %d.%d", is.name, is.major, is.minor);
	return 0;
}

int ops_cuda_memory(uint32_t index, uint64_t *free_bytes, uint64_t *total_bytes)
{
	size_t left = 0, all = 0;
	if (cudaSetDevice((int)index) != cudaSuccess || cudaMemGetInfo(&left, &all) != cudaSuccess)
		return -ERR_UNSUPPORTED;
	*free_bytes = left;
	*total_bytes = all;
	return 0;
}
