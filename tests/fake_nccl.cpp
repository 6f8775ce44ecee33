/*
 * A stand-in for NCCL, as kernels/cuda/nccl.cu loads it: the same few functions, on the emulated stream,
 * for rank 0 of two; what comes of rank 1 is zeros, and it can only wait. FAKE_NCCL says what is wrong with
 * it: old, refuse (to start), missing (a rank: the start never ends), slow (it takes a while, and so does
 * each gather), fail (each gather fails in the background), hang (each gather's kernel waits for ever),
 * ends late, never or badly.
 */
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/emulate_runtime.h"

namespace {

struct config {
	size_t size;
	unsigned magic, version;
	int blocking;
};
struct id {
	char bytes[128];
};
struct communicator {
	int polls;  /* until it is ready; negative: never */
	int result;
	void *memory; /* what it takes of the GPU's */
};

int alive;

bool is(const char *fault)
{
	const char *const mode = getenv("FAKE_NCCL");
	return mode && strcmp(mode, fault) == 0;
}

} // namespace

extern "C" {

/* Communicators that were neither destroyed nor aborted. */
int fake_nccl_alive()
{
	return alive;
}
int ncclGetVersion(int *out)
{
	*out = is("old") ? 21304 : 22809;
	return 0;
}
int ncclGetUniqueId(struct id *out)
{
	memset(out, 7, sizeof *out);
	return 0;
}
int ncclCommInitRankConfig(void **out, int ranks, struct id id, int rank, struct config *config)
{
	if (ranks != 2 || (rank != 0 && !is("missing")) || id.bytes[127] != 7 || is("refuse"))
		return 4;
	if (config->magic != 0xcafebeef || config->size < 20 || config->version < 21400 || config->blocking != 0)
		return 4;
	communicator *const c = new communicator{is("missing") ? -1 : is("slow") ? 1500 : 0, 0, NULL};
	cudaMalloc(&c->memory, 1 << 20);
	*out = c;
	alive++;
	return c->polls ? 7 : 0;
}
int ncclCommGetAsyncError(void *comm, int *out)
{
	communicator *const c = static_cast<communicator *>(comm);
	if (c->polls > 0)
		c->polls--;
	*out = c->polls ? 7 : c->result;
	return 0;
}
int ncclAllGather(const void *mine, void *all, size_t bytes, int type, void *comm, cudaStream_t stream)
{
	communicator *const c = static_cast<communicator *>(comm);
	if (type != 0 || c->polls)
		return 5;
	cudaMemcpyAsync(all, mine, bytes, cudaMemcpyDeviceToDevice, stream);
	cudaMemsetAsync(static_cast<uint8_t *>(all) + bytes, 0, bytes, stream);
	emulate_runtime_busy(is("hang"));
	c->polls = is("slow") || is("fail") ? 1010 : 0;
	c->result = is("fail") ? 6 : 0;
	return c->polls ? 7 : 0;
}
int ncclCommFinalize(void *comm)
{
	communicator *const c = static_cast<communicator *>(comm);
	c->polls = is("ends late") ? 1510 : is("ends never") ? -1 : 0;
	c->result = is("ends badly") ? 6 : 0;
	return c->polls ? 7 : c->result;
}
int ncclCommDestroy(void *comm)
{
	cudaFree(static_cast<communicator *>(comm)->memory);
	delete static_cast<communicator *>(comm);
	alive--;
	return 0;
}
int ncclCommAbort(void *comm)
{
	emulate_runtime_busy(false);
	return ncclCommDestroy(comm);
}
}
