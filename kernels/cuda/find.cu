/*
 * Whether there is a GPU that can be used: asked before anything is taken.
 */
#include <stdio.h>

#include "kernels/cuda/gpu.h"
#include "kernels/ops.h"

enum { MAJOR_LEAST = 8 };

/* The GPUs that this build has code for: 10 times the compute capability, times 10. Code for one runs on
   those of its generation that are not older. */
#ifdef __CUDA_ARCH_LIST__
static const int built[] = {__CUDA_ARCH_LIST__};
#else
static const int built[] = {900};
#endif
enum { BUILT = sizeof built / sizeof built[0] };

static bool has_code(int major, int minor)
{
	for (int i = 0; i < BUILT; i++)
		if (built[i] / 100 == major && built[i] / 10 % 10 <= minor)
			return true;
	return false;
}

/* "sm_80, sm_90" */
static void built_say(char *out, size_t room)
{
	size_t at = 0;
	for (int i = 0; i < BUILT && at < room; i++)
		at += (size_t)snprintf(out + at, room - at, "%ssm_%d", i ? ", " : "", built[i] / 10);
}

int ops_cuda_find(uint32_t index, char *reason, size_t room)
{
	int count = 0, driver = 0, runtime = 0;
	char names[64];
	struct cudaDeviceProp is;
	cudaRuntimeGetVersion(&runtime);
	const cudaError_t error = cudaGetDeviceCount(&count);
	cudaGetLastError();
	if (cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0) {
		snprintf(reason, room, "no CUDA driver is here; one for CUDA %d.0 or later is needed",
			 runtime / 1000);
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
	built_say(names, sizeof names);
	if (!has_code(is.major, is.minor)) {
		snprintf(reason, room,
			 "CUDA device %u (%.60s) is sm_%d%d; this build is for %s: one configured with "
			 "--with-cuda-arch=%d%d is needed", index, is.name, is.major, is.minor, names, is.major,
			 is.minor);
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
