/*
 * A real GPU below the tests of kernels/cuda/: what they ask of an emulated one has no answer here. For
 * tests/gpu.sh.
 */
#define _GNU_SOURCE
#include <sys/wait.h>
#include <unistd.h>

#include "kernels/ops.h"
#include "tests/emulate_hooks.h"

int hook_emulated(void)
{
	return 0;
}

/* Asked in a process of its own: what has spoken to a driver cannot be forked, and a test does that. */
const char *hook_missing(void)
{
	static char reason[200] = "this build has no CUDA";
	int ends[2], status = 1;
	if (!ops_cuda() || pipe(ends) != 0)
		return reason;
	const pid_t pid = fork();
	if (pid == 0) {
		const int code = ops_cuda_find(0, reason, sizeof reason);
		_exit(write(ends[1], reason, sizeof reason) != (ssize_t)sizeof reason || code != 0);
	}
	close(ends[1]);
	if (pid < 0 || read(ends[0], reason, sizeof reason) != (ssize_t)sizeof reason ||
	    waitpid(pid, &status, 0) != pid)
		status = 1;
	close(ends[0]);
	return status == 0 ? NULL : reason;
}

void hook_seed(uint64_t seed)
{
	(void)seed;
}

const char *hook_fault(void)
{
	return NULL;
}

size_t hook_taken(void)
{
	return 0;
}

struct hook_counts hook_counts(void)
{
	return (struct hook_counts){0};
}
