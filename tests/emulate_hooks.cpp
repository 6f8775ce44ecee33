#include "tests/emulate_hooks.h"

#include "kernels/cuda/gpu.h"

int hook_emulated(void)
{
	return 1;
}

const char *hook_missing(void)
{
	return NULL;
}

void hook_seed(uint64_t seed)
{
	emulate_seed(seed);
}

const char *hook_fault(void)
{
	return emulate_fault();
}

void hook_lose(long calls)
{
	emulate_runtime_lose(calls);
}

void hook_refuse(long calls)
{
	emulate_runtime_refuse(calls);
}

struct hook_counts hook_counts(void)
{
	const emulate_counts c = emulate_runtime_counts();
	struct hook_counts out = {c.allocations, c.waits, c.launches, c.graph_launches, c.captures, c.pageable,
				  c.gpu_ns};
	return out;
}

void hook_machine(int devices, int driver, int major, size_t memory_bytes)
{
	const emulate_machine machine = {devices, driver, major, 0, memory_bytes, 0, 0};
	emulate_runtime_machine(&machine);
}

void hook_shared(size_t bytes)
{
	const emulate_machine machine = {1, 13000, 9, 0, (size_t)1 << 30, bytes, 0};
	emulate_runtime_machine(&machine);
}

void hook_node(size_t bytes)
{
	emulate_runtime_node(bytes);
}

void hook_no_pin(int refused)
{
	emulate_runtime_no_pin(refused != 0);
}

size_t hook_pinned(void)
{
	return emulate_runtime_pinned();
}

size_t hook_taken(void)
{
	return emulate_runtime_taken();
}
