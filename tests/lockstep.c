#include "tests/lockstep.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <sodium.h>
#include <string.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "runtime/fault.h"
#include "sched/check.h"

enum { WAIT_MS = 100, WAITS_MAX = 600 };
enum { EPOCH_S = 1700000000, UPTIME_S = 1000 };

static _Thread_local bool ours;
static uint64_t passed_us, chance;

/* The writer waits here before each commit. */
static struct {
	pthread_mutex_t lock;
	pthread_cond_t moved;
	bool open, killed;
} gate = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, false, false};

/* --- Time. --- */

int clock_gettime(clockid_t clock, struct timespec *t)
{
	if (!ours || (clock != CLOCK_MONOTONIC && clock != CLOCK_REALTIME))
		return (int)syscall(SYS_clock_gettime, clock, t);
	t->tv_sec = (time_t)((clock == CLOCK_REALTIME ? EPOCH_S : UPTIME_S) + passed_us / 1000000);
	t->tv_nsec = (long)(passed_us % 1000000) * 1000;
	return 0;
}

void lockstep_pass(uint64_t us)
{
	passed_us += us;
}

uint64_t lockstep_us(void)
{
	return passed_us;
}

/* --- Chance. --- */

static const char *chance_name(void)
{
	return "lockstep";
}

static void chance_buf(void *const at, const size_t size)
{
	uint8_t *to = at;
	if (!ours) {
		for (size_t n = 0; n < size; n += size - n < 256 ? size - n : 256)
			CHECK(getrandom(to + n, size - n < 256 ? size - n : 256, 0) > 0);
		return;
	}
	/* splitmix64 (Steele, Lea and Flood). */
	for (size_t n = 0; n < size; n += 8) {
		uint64_t z = chance += 0x9e3779b97f4a7c15;
		z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
		z = (z ^ z >> 27) * 0x94d049bb133111eb;
		z ^= z >> 31;
		memcpy(to + n, &z, size - n < 8 ? size - n : 8);
	}
}

static uint32_t chance_u32(void)
{
	uint32_t n;
	chance_buf(&n, sizeof n);
	return n;
}

void lockstep_begin(uint64_t seed)
{
	static randombytes_implementation its = {
		.implementation_name = chance_name, .random = chance_u32, .buf = chance_buf};
	ours = true;
	passed_us = 0;
	chance = seed;
	CHECK(randombytes_set_implementation(&its) == 0);
}

/* --- The log. --- */

static void gate_set(bool open, bool killed)
{
	pthread_mutex_lock(&gate.lock);
	gate.open = open;
	gate.killed = killed;
	pthread_cond_broadcast(&gate.moved);
	pthread_mutex_unlock(&gate.lock);
}

void lockstep_open(void)
{
	gate_set(false, false);
}

void lockstep_end(bool killed)
{
	gate_set(true, killed);
}

void lockstep_log(struct store *store)
{
	const uint64_t mark = store_hurry(store);
	if (store_settled(store) >= mark)
		return;
	gate_set(true, false);
	for (int i = 0; store_settled(store) < mark; i++) {
		struct pollfd written = {.fd = store_fd(store), .events = POLLIN};
		uint64_t n;
		CHECK(i < WAITS_MAX);
		CHECK(store_failed(store) == 0);
		if (poll(&written, 1, WAIT_MS) > 0 && read(written.fd, &n, sizeof n) < 0)
			CHECK(errno == EAGAIN);
	}
	gate_set(false, false);
}

long fault_pass(enum fault_point point)
{
	if (point != FAULT_COMMIT)
		return 0;
	pthread_mutex_lock(&gate.lock);
	while (!ours && !gate.open)
		pthread_cond_wait(&gate.moved, &gate.lock);
	const bool killed = gate.killed;
	pthread_mutex_unlock(&gate.lock);
	return killed ? EIO : 0;
}

/* No other faults are made. */
void fault_set(const struct fault *table, unsigned count)
{
	(void)table;
	(void)count;
}

uint32_t fault_passed(enum fault_point point)
{
	(void)point;
	return 0;
}

uint64_t fault_made(void)
{
	return 0;
}

const char *fault_name(enum fault_point point)
{
	(void)point;
	return "";
}
