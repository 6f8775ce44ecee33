/*
 * A small stand-in for the CUDA runtime, for the host side of this folder under emulation: the same
 * names and meanings, in the few functions that it uses. What is asynchronous on a GPU is put off
 * here until something waits for it, so a missing wait shows: a copy reads its source when it runs,
 * not when it is asked for, and the blocking copy waits for nothing. Device memory can be touched by what
 * runs on a stream and by copies; a host that does ends the process, and so does who goes beyond an
 * allocation's end.
 *
 * Faults can be planted: emulate_runtime_*. One thread of the process at a time.
 */
#ifndef HOLDFAST_KERNELS_CUDA_EMULATE_RUNTIME_H
#define HOLDFAST_KERNELS_CUDA_EMULATE_RUNTIME_H

#include "kernels/cuda/emulate.h"

enum cudaError_t {
	cudaSuccess = 0,
	cudaErrorInvalidValue = 1,
	cudaErrorMemoryAllocation = 2,
	cudaErrorInitializationError = 3,
	cudaErrorInsufficientDriver = 35,
	cudaErrorNoDevice = 100,
	cudaErrorInvalidDevice = 101,
	cudaErrorNotReady = 600,
	cudaErrorLaunchFailure = 719
};
enum cudaMemcpyKind { cudaMemcpyHostToDevice = 1, cudaMemcpyDeviceToHost, cudaMemcpyDeviceToDevice };
enum { cudaStreamNonBlocking = 1, cudaEventDisableTiming = 2 };
enum cudaStreamCaptureMode { cudaStreamCaptureModeThreadLocal = 1 };
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize = 8 };

struct emulate_stream;
struct emulate_event;
struct emulate_graph;
typedef emulate_stream *cudaStream_t;
typedef emulate_event *cudaEvent_t;
typedef emulate_graph *cudaGraph_t;
typedef emulate_graph *cudaGraphExec_t;

struct cudaDeviceProp {
	char name[256];
	size_t totalGlobalMem, sharedMemPerBlockOptin;
	int major, minor, multiProcessorCount;
};

const char *cudaGetErrorString(cudaError_t error);
cudaError_t cudaGetLastError();
cudaError_t cudaDriverGetVersion(int *version);
cudaError_t cudaRuntimeGetVersion(int *version);
cudaError_t cudaGetDeviceCount(int *count);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaGetDeviceProperties(cudaDeviceProp *out, int device);
cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total);
cudaError_t cudaMalloc(void **out, size_t bytes);
cudaError_t cudaFree(void *memory);
cudaError_t cudaMallocHost(void **out, size_t bytes);
cudaError_t cudaFreeHost(void *memory);
enum { cudaHostRegisterDefault = 0 };
cudaError_t cudaHostRegister(void *memory, size_t bytes, unsigned flags);
cudaError_t cudaHostUnregister(void *memory);
cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, cudaMemcpyKind kind);
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind kind,
			    cudaStream_t stream);
cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t stream);
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned flags);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaStreamQuery(cudaStream_t stream);
typedef void (*cudaHostFn_t)(void *argument);
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void *argument);
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags);
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode);
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *out);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned flags);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *out, cudaGraph_t graph, unsigned long long flags);
cudaError_t cudaGraphUpload(cudaGraphExec_t exec, cudaStream_t stream);
cudaError_t cudaGraphDestroy(cudaGraph_t graph);
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec);
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream);
template <class F> cudaError_t cudaFuncSetAttribute(F, cudaFuncAttribute, int)
{
	return cudaSuccess;
}

void emulate_launch(const char *name, dim3 grid, dim3 block, size_t shared_bytes,
		    cudaStream_t stream, std::function<void()> body);

/* What the machine is said to have; nobody has used it yet. */
struct emulate_machine {
	int devices, driver, major, minor;
	size_t memory_bytes;
	size_t shared_bytes; /* of a block, at most; 0: 227 KiB */
	size_t largest_bytes; /* that one call is given; 0: all there is */
};
void emulate_runtime_machine(const emulate_machine *machine);
/* The call after `calls` more fails, and from then on every one, as after a lost context. Negative:
   none does; a lost context is forgotten. */
void emulate_runtime_lose(long calls);
/* The call after `calls` more is refused for want of memory, and none after it. Negative: none is. */
void emulate_runtime_refuse(long calls);
/* Asked at every call: true loses the context for good. NULL: nobody is asked. */
void emulate_runtime_lose_when(bool (*asked)());
/* What was done since it was last asked. */
struct emulate_counts {
	unsigned allocations, waits, launches, graph_launches, captures;
	unsigned pageable; /* copies from or to host memory that is not pinned */
	uint64_t gpu_ns; /* of the waiting thread's CPU time, what a GPU would have done */
};
emulate_counts emulate_runtime_counts();
/* What a graph takes of the device's memory for each of its nodes; 4 KiB unless it is said. */
void emulate_runtime_node(size_t bytes);
/* What is queued does not get on. */
void emulate_runtime_busy(bool is);
/* Whether host memory cannot be pinned; and its bytes that are. */
void emulate_runtime_no_pin(bool refused);
size_t emulate_runtime_pinned();
/* Device bytes that are taken now. */
size_t emulate_runtime_taken();

#endif
