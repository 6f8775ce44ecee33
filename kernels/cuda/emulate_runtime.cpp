/*
 * The stand-in's streams: queues of closures that run when something waits for them.
 */
#include "kernels/cuda/emulate_runtime.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <deque>
#include <map>
#include <string>
#include <vector>

#ifdef EMULATE_WATCHED
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(at, bytes) ((void)(at), (void)(bytes))
#define ASAN_UNPOISON_MEMORY_REGION(at, bytes) ((void)(at), (void)(bytes))
#endif

struct emulate_event {
	emulate_stream *stream; /* where it was last recorded */
	unsigned long records, done; /* how often it was, and how many of them have come */
};

struct emulate_action {
	std::function<void()> run;
	emulate_event *waits;   /* not NULL: runs when that has come */
	unsigned long records;
};

struct emulate_stream {
	std::deque<emulate_action> queue;
	emulate_graph *capture;
	int device;
};

struct emulate_graph {
	std::vector<std::function<void()>> nodes;
	size_t bytes = 0; /* of the device's memory, once it can be launched */
};

namespace {

emulate_machine machine = {1, 13000, 9, 0, (size_t)1 << 30, 0, 0};
emulate_counts counts;
/* The device's memory: pages of their own, the bytes at their end, behind them one that nobody may touch. */
struct region {
	uint8_t *pages;
	size_t page_bytes, bytes; /* page_bytes without the guard */
};
enum { GUARD_BYTES = 4096, ALIGN = 256 };
std::map<void *, region> taken;
int opened; /* what runs on the GPU, or copies, may touch it; the host may not */
std::map<const uint8_t *, size_t> pinned; /* host memory */
bool pin_refused, busy;
size_t taken_bytes, node_bytes = 4 << 10;
long calls_left = -1, refuse_left = -1;
bool (*lose_asked)();
bool lost;
cudaError_t last;
thread_local int current; /* the thread's device */
pid_t user; /* the process that called first; 0: none has */

/* Every function begins with it. */
cudaError_t enter()
{
	if ((calls_left >= 0 && calls_left-- == 0) || (lose_asked && lose_asked()))
		lost = true;
	if (lost || emulate_faulted())
		return cudaErrorLaunchFailure;
	if (refuse_left >= 0 && refuse_left-- == 0)
		return cudaErrorMemoryAllocation;
	/* What is forked from a process that has used CUDA cannot use it. */
	if (user == 0)
		user = getpid();
	return user == getpid() ? cudaSuccess : cudaErrorInitializationError;
}

cudaError_t keep(cudaError_t error)
{
	if (error != cudaSuccess)
		last = error;
	return error;
}

#define ENTER() \
	do { \
		const cudaError_t entered = enter(); \
		if (entered != cudaSuccess) \
			return keep(entered); \
	} while (0)

void regions_protect(int how)
{
	for (const auto &one : taken)
		mprotect(one.second.pages, one.second.page_bytes, how);
}

struct device_turn {
	device_turn()
	{
		if (opened++ == 0)
			regions_protect(PROT_READ | PROT_WRITE);
	}
	~device_turn()
	{
		if (--opened == 0)
			regions_protect(PROT_NONE);
	}
};

/* Runs what is queued, or only until an event has come: no more than must have happened. */
void stream_drain(emulate_stream *s, const emulate_event *until, unsigned long records)
{
	while (!s->queue.empty() && !emulate_faulted() && !(until && until->done >= records)) {
		const emulate_action a = s->queue.front();
		s->queue.pop_front();
		if (a.waits && a.waits->done < a.records && a.waits->stream != s)
			stream_drain(a.waits->stream, a.waits, a.records);
		if (a.run)
			a.run();
	}
}

uint64_t thread_ns()
{
	struct timespec t;
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* All that is queued: the GPU's part of the time. */
void stream_run(emulate_stream *s)
{
	const uint64_t from = thread_ns();
	{
		const device_turn turn;
		stream_drain(s, NULL, 0);
	}
	counts.gpu_ns += thread_ns() - from;
}

bool is_pinned(const void *at, size_t bytes)
{
	const uint8_t *const p = static_cast<const uint8_t *>(at);
	auto i = pinned.upper_bound(p);
	return i != pinned.begin() && (--i, p + bytes <= i->first + i->second);
}

void put(emulate_stream *s, std::function<void()> run)
{
	if (s->capture)
		s->capture->nodes.push_back(std::move(run));
	else
		s->queue.push_back(emulate_action{std::move(run), NULL, 0});
}

} // namespace

const char *cudaGetErrorString(cudaError_t error)
{
	switch (error) {
	case cudaSuccess: return "no error";
	case cudaErrorInvalidValue: return "invalid argument";
	case cudaErrorMemoryAllocation: return "out of memory";
	case cudaErrorInitializationError: return "initialization error";
	case cudaErrorInsufficientDriver: return "the driver is too old";
	case cudaErrorNoDevice: return "no device";
	case cudaErrorNotReady: return "not ready";
	case cudaErrorInvalidDevice: return "no such device";
	case cudaErrorLaunchFailure: return "launch failure";
	}
	return "unknown";
}

cudaError_t cudaGetLastError()
{
	const cudaError_t error = lost || emulate_faulted() ? cudaErrorLaunchFailure : last;
	last = cudaSuccess;
	return error;
}

cudaError_t cudaDriverGetVersion(int *version)
{
	*version = machine.driver;
	return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *version)
{
	*version = 13000;
	return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int *count)
{
	ENTER();
	*count = 0;
	if (machine.driver < 13000)
		return keep(cudaErrorInsufficientDriver);
	if (machine.devices == 0)
		return keep(cudaErrorNoDevice);
	*count = machine.devices;
	return cudaSuccess;
}

cudaError_t cudaSetDevice(int device)
{
	ENTER();
	if (device < 0 || device >= machine.devices)
		return keep(cudaErrorInvalidDevice);
	current = device;
	return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp *out, int device)
{
	ENTER();
	if (device < 0 || device >= machine.devices)
		return keep(cudaErrorInvalidDevice);
	*out = cudaDeviceProp{"emulated", machine.memory_bytes,
			      machine.shared_bytes ? machine.shared_bytes : 227 << 10, machine.major, machine.minor, 4};
	return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total)
{
	ENTER();
	*free_bytes = machine.memory_bytes - taken_bytes;
	*total = machine.memory_bytes;
	return cudaSuccess;
}

cudaError_t cudaMalloc(void **out, size_t bytes)
{
	ENTER();
	counts.allocations++;
	if (bytes > machine.memory_bytes - taken_bytes ||
	    (machine.largest_bytes && bytes > machine.largest_bytes))
		return keep(cudaErrorMemoryAllocation);
	const size_t whole = (bytes + ALIGN - 1) / ALIGN * ALIGN;
	region r = {NULL, (whole + GUARD_BYTES - 1) / GUARD_BYTES * GUARD_BYTES, bytes};
	void *const pages = mmap(NULL, r.page_bytes + GUARD_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (pages == MAP_FAILED)
		return keep(cudaErrorMemoryAllocation);
	r.pages = static_cast<uint8_t *>(pages);
	uint8_t *const p = r.pages + r.page_bytes - whole;
	mprotect(r.pages, r.page_bytes, PROT_READ | PROT_WRITE);
	memset(p, 0xff, bytes); /* a GPU's is not zeroed either */
	ASAN_POISON_MEMORY_REGION(p + bytes, whole - bytes);
	if (!opened)
		mprotect(r.pages, r.page_bytes, PROT_NONE);
	taken[p] = r;
	taken_bytes += bytes;
	*out = p;
	return cudaSuccess;
}

cudaError_t cudaFree(void *memory)
{
	const auto at = taken.find(memory);
	if (at != taken.end()) {
		const region r = at->second;
		taken_bytes -= r.bytes;
		taken.erase(at);
		ASAN_UNPOISON_MEMORY_REGION(memory, (r.bytes + ALIGN - 1) / ALIGN * ALIGN);
		munmap(r.pages, r.page_bytes + GUARD_BYTES);
	}
	return cudaSuccess;
}

cudaError_t cudaMallocHost(void **out, size_t bytes)
{
	ENTER();
	counts.allocations++;
	*out = malloc(bytes ? bytes : 1);
	if (*out)
		pinned[static_cast<uint8_t *>(*out)] = bytes;
	return *out ? cudaSuccess : keep(cudaErrorMemoryAllocation);
}

cudaError_t cudaFreeHost(void *memory)
{
	pinned.erase(static_cast<uint8_t *>(memory));
	free(memory);
	return cudaSuccess;
}

cudaError_t cudaHostRegister(void *memory, size_t bytes, unsigned)
{
	ENTER();
	if (pin_refused)
		return keep(cudaErrorMemoryAllocation);
	pinned[static_cast<uint8_t *>(memory)] = bytes;
	return cudaSuccess;
}

cudaError_t cudaHostUnregister(void *memory)
{
	pinned.erase(static_cast<uint8_t *>(memory));
	return cudaSuccess;
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, cudaMemcpyKind)
{
	ENTER();
	const device_turn turn;
	memcpy(to, from, bytes);
	return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind kind,
			    cudaStream_t stream)
{
	ENTER();
	if (kind != cudaMemcpyDeviceToDevice)
		counts.pageable += !is_pinned(kind == cudaMemcpyDeviceToHost ? to : from, bytes);
	put(stream, [to, from, bytes] { memmove(to, from, bytes); });
	return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t stream)
{
	ENTER();
	put(stream, [to, value, bytes] { memset(to, value, bytes); });
	return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned)
{
	ENTER();
	*out = new emulate_stream{{}, NULL, current};
	return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
	delete stream->capture;
	delete stream;
	return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
	ENTER();
	if (stream->capture)
		return keep(cudaErrorInvalidValue);
	counts.waits++;
	stream_run(stream);
	return keep(enter());
}

/* Not an error to keep. */
cudaError_t cudaStreamQuery(cudaStream_t stream)
{
	ENTER();
	if (busy)
		return cudaErrorNotReady;
	stream_run(stream);
	return keep(enter());
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void *argument)
{
	ENTER();
	put(stream, [function, argument] { function(argument); });
	return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned)
{
	ENTER();
	if (stream->capture)
		return keep(cudaErrorInvalidValue);
	if (event->done < event->records)
		stream->queue.push_back(emulate_action{{}, event, event->records});
	return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode)
{
	ENTER();
	counts.captures++;
	stream->capture = new emulate_graph;
	return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *out)
{
	emulate_graph *const graph = stream->capture;
	stream->capture = NULL;
	const cudaError_t error = enter();
	*out = error == cudaSuccess ? graph : NULL;
	if (error != cudaSuccess)
		delete graph;
	return keep(error);
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned)
{
	ENTER();
	*out = new emulate_event{NULL, 0, 0};
	return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
	delete event;
	return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
	ENTER();
	if (stream->capture)
		return keep(cudaErrorInvalidValue);
	const unsigned long record = ++event->records;
	event->stream = stream;
	stream->queue.push_back(emulate_action{[event, record] {
						       event->done = record;
					       },
					       NULL, 0});
	return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *out, cudaGraph_t graph, unsigned long long)
{
	ENTER();
	const size_t bytes = node_bytes * graph->nodes.size();
	if (bytes > machine.memory_bytes - taken_bytes)
		return keep(cudaErrorMemoryAllocation);
	*out = new emulate_graph(*graph);
	(*out)->bytes = bytes;
	taken_bytes += bytes;
	return cudaSuccess;
}

cudaError_t cudaGraphUpload(cudaGraphExec_t, cudaStream_t)
{
	ENTER();
	return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
	delete graph;
	return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec)
{
	taken_bytes -= exec->bytes;
	delete exec;
	return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream)
{
	ENTER();
	if (stream->device != current)
		return keep(cudaErrorInvalidValue);
	counts.graph_launches++;
	put(stream, [exec] {
		for (const std::function<void()> &node : exec->nodes)
			if (!emulate_faulted())
				node();
	});
	return cudaSuccess;
}

void emulate_launch(const char *name, dim3 grid, dim3 block, size_t shared_bytes,
		    cudaStream_t stream, std::function<void()> body)
{
	if (keep(enter()) != cudaSuccess || keep(stream->device == current ? cudaSuccess : cudaErrorInvalidValue))
		return;
	counts.launches++;
	const std::string kept = name;
	put(stream, [=] { emulate_run(kept.c_str(), grid, block, shared_bytes, body); });
}

void emulate_runtime_machine(const emulate_machine *is)
{
	machine = *is;
	user = 0;
}

void emulate_runtime_lose(long calls)
{
	calls_left = calls;
	lost = false;
	last = cudaSuccess;
}

void emulate_runtime_refuse(long calls)
{
	refuse_left = calls;
}

void emulate_runtime_lose_when(bool (*asked)())
{
	lose_asked = asked;
}

emulate_counts emulate_runtime_counts()
{
	const emulate_counts now = counts;
	counts = emulate_counts{};
	return now;
}

void emulate_runtime_node(size_t bytes)
{
	node_bytes = bytes;
}

void emulate_runtime_busy(bool is)
{
	busy = is;
}

void emulate_runtime_no_pin(bool refused)
{
	pin_refused = refused;
}

size_t emulate_runtime_pinned()
{
	size_t sum = 0;
	for (const auto &one : pinned)
		sum += one.second;
	return sum;
}

size_t emulate_runtime_taken()
{
	return taken_bytes;
}
