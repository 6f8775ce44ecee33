/*
 * The table of failures made on purpose, and the counting of what passes each point.
 */
#include "config.h"

#include "runtime/fault.h"

#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>

#include "sched/check.h"

static struct {
	struct fault table[FAULT_TABLE_MAX];
	_Atomic unsigned count;
	_Atomic uint32_t passed[FAULT_COUNT];
	_Atomic uint64_t made;
} faults;

void fault_set(const struct fault *table, unsigned count)
{
	CHECK(count <= FAULT_TABLE_MAX);
	if (count > 0)
		memcpy(faults.table, table, count * sizeof *table);
	for (unsigned i = 0; i < FAULT_COUNT; i++)
		atomic_store(&faults.passed[i], 0);
	atomic_store(&faults.made, 0);
	atomic_store(&faults.count, count);
}

static bool fires(const struct fault *f, enum fault_point point, uint32_t at)
{
	if (f->point != point || at < f->at)
		return false;
	return at == f->at || (f->every && (at - f->at) % f->every == 0);
}

long fault_pass(enum fault_point point)
{
	const unsigned count = atomic_load_explicit(&faults.count, memory_order_acquire);
	if (count == 0)
		return 0;
	const uint32_t at = atomic_fetch_add(&faults.passed[point], 1) + 1;
	for (unsigned i = 0; i < count; i++) {
		const struct fault *f = &faults.table[i];
		if (!fires(f, point, at))
			continue;
		atomic_fetch_add(&faults.made, 1);
		if (f->crash)
			raise(SIGKILL);
		struct timespec t = {f->wait_ms / 1000, (long)(f->wait_ms % 1000) * 1000000};
		nanosleep(&t, NULL);
		return f->code;
	}
	return 0;
}

uint32_t fault_passed(enum fault_point point)
{
	return atomic_load(&faults.passed[point]);
}

uint64_t fault_made(void)
{
	return atomic_load(&faults.made);
}

const char *fault_name(enum fault_point point)
{
	static const char *const names[FAULT_COUNT] = {
		"statfs", "put", "commit", "committed", "row", "created", "tier-write", "tier-read", "accepted",
		"step", "batch", "segment", "drop", "anchor", "reserve", "key",
		"keys", "forget", "mark", "index",
	};
	return (unsigned)point < FAULT_COUNT ? names[point] : "";
}
