/*
 * The emulated GPU of tests/emulated_daemon, which is holdfastd with it in a real one's place: what it
 * is said to be, and when it fails, stands in the environment. HOLDFAST_EMULATE_LOSE=FILE: it is lost
 * at the first call after the file is there. HOLDFAST_EMULATE_MACHINE=DEVICES,DRIVER,MAJOR,BYTES,
 * and, where they are not as usual, SHARED and LARGEST (emulate_runtime.h).
 */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "kernels/cuda/emulate_runtime.h"

static const char *lose_at;

static bool lost()
{
	return access(lose_at, F_OK) == 0;
}

__attribute__((constructor)) static void machine_set()
{
	emulate_machine m = {1, 13000, 9, 0, (size_t)1 << 30, 0, 0};
	const char *text = getenv("HOLDFAST_EMULATE_MACHINE");
	if (text && sscanf(text, "%d,%d,%d,%zu,%zu,%zu", &m.devices, &m.driver, &m.major, &m.memory_bytes,
			   &m.shared_bytes, &m.largest_bytes) < 4)
		abort();
	emulate_runtime_machine(&m);
	lose_at = getenv("HOLDFAST_EMULATE_LOSE");
	emulate_runtime_lose_when(lose_at ? lost : NULL);
}
