/*
 * Ranks of one machine meet in shared memory. Each has a slot of two halves, used in turn: a rank
 * writes its piece, all wait for one another, all read. The half that is written next was last read
 * before the wait that is just over, so one wait is enough for each call.
 *
 * Who waits looks for a while and then sleeps; from time to time it asks whether the others live.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "runtime/ranks_inside.h"

enum {
	HALF_BYTES = 1 << 20,
	LOOKS = 200,           /* before it sleeps: the others may be on this core */
	ASK_NS = 50 * 1000 * 1000
};

struct ranks_room {
	uint32_t count;
	size_t bytes;
	atomic_uint arrived, phase;
	atomic_uint gone; /* rank + 1 */
	_Alignas(64) uint8_t slot[];
};

static uint8_t *half_at(struct ranks_room *room, uint32_t rank, uint32_t turn)
{
	return room->slot + ((size_t)rank * 2 + turn % 2) * HALF_BYTES;
}

int ranks_room_open(uint32_t count, struct ranks_room **out)
{
	const size_t bytes = sizeof **out + (size_t)count * 2 * HALF_BYTES;
	struct ranks_room *room =
		mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (room == MAP_FAILED)
		return -ERR_MEMORY;
	room->count = count;
	room->bytes = bytes;
	*out = room;
	return 0;
}

void ranks_room_close(struct ranks_room **room)
{
	if (*room)
		munmap(*room, (*room)->bytes);
	*room = NULL;
}

static void phase_wake(struct ranks_room *room)
{
	syscall(SYS_futex, &room->phase, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

void ranks_lose(struct ranks_room *room, uint32_t rank)
{
	unsigned none = 0;
	atomic_compare_exchange_strong(&room->gone, &none, rank + 1);
	phase_wake(room);
}

/* 0, or the code for a rank that is gone. */
static int room_sound(struct ranks *r)
{
	const unsigned gone = atomic_load(&r->room->gone);
	return gone ? ranks_lost(r, gone - 1) : 0;
}

/* The same, but the system is asked. Who came to this wait as the last and has ended since was there. */
static int room_look(struct ranks *r, unsigned phase)
{
	const int lost = ranks_look(r);
	if (lost < 0 || atomic_load(&r->room->phase) != phase)
		return 0;
	ranks_lose(r->room, (uint32_t)lost);
	return ranks_lost(r, (uint32_t)lost);
}

static int64_t now_ms(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (int64_t)t.tv_sec * 1000 + t.tv_nsec / (1000 * 1000);
}

void room_patience(struct ranks *r, uint32_t ms)
{
	r->until_ms = now_ms() + ms;
}

/* Waits until all are here. */
static int room_meet(struct ranks *r)
{
	struct ranks_room *room = r->room;
	const struct timespec ask = {.tv_nsec = ASK_NS};
	TRY(room_sound(r));
	const unsigned phase = atomic_load(&room->phase);
	if (atomic_fetch_add(&room->arrived, 1) + 1 == room->count) {
		atomic_store(&room->arrived, 0);
		atomic_fetch_add(&room->phase, 1);
		phase_wake(room);
		return 0;
	}
	for (uint32_t i = 0; i < LOOKS; i++) {
		if (atomic_load(&room->phase) != phase)
			return 0;
		__builtin_ia32_pause();
	}
	while (atomic_load(&room->phase) == phase) {
		TRY(room_sound(r));
		if (syscall(SYS_futex, &room->phase, FUTEX_WAIT, phase, &ask, NULL, 0) != 0 &&
		    errno == ETIMEDOUT) {
			TRY(room_look(r, phase));
			if (r->until_ms && now_ms() >= r->until_ms)
				return -ERR_TIMEOUT;
		}
	}
	return 0;
}

static int room_sum(void *self, float *x, size_t count)
{
	struct ranks *r = self;
	const size_t most = HALF_BYTES / sizeof *x;
	for (size_t at = 0; at < count; at += most) {
		const size_t n = count - at < most ? count - at : most;
		memcpy(half_at(r->room, r->rank, r->turn), x + at, n * sizeof *x);
		TRY(room_meet(r));
		memcpy(x + at, half_at(r->room, 0, r->turn), n * sizeof *x);
		for (uint32_t k = 1; k < r->count; k++) {
			const float *y = (const float *)(const void *)half_at(r->room, k, r->turn);
			for (size_t i = 0; i < n; i++)
				x[at + i] += y[i];
		}
		r->turn++;
	}
	return 0;
}

static int room_gather(void *self, const void *mine, size_t bytes, void *all)
{
	struct ranks *r = self;
	for (size_t at = 0; at < bytes; at += HALF_BYTES) {
		const size_t n = bytes - at < HALF_BYTES ? bytes - at : HALF_BYTES;
		memcpy(half_at(r->room, r->rank, r->turn), (const uint8_t *)mine + at, n);
		TRY(room_meet(r));
		for (uint32_t k = 0; k < r->count; k++)
			memcpy((uint8_t *)all + k * bytes + at, half_at(r->room, k, r->turn), n);
		r->turn++;
	}
	return 0;
}

static int room_broadcast(void *self, void *bytes, size_t count)
{
	struct ranks *r = self;
	for (size_t at = 0; at < count; at += HALF_BYTES) {
		const size_t n = count - at < HALF_BYTES ? count - at : HALF_BYTES;
		if (r->rank == 0)
			memcpy(half_at(r->room, 0, r->turn), (uint8_t *)bytes + at, n);
		TRY(room_meet(r));
		if (r->rank != 0)
			memcpy((uint8_t *)bytes + at, half_at(r->room, 0, r->turn), n);
		r->turn++;
	}
	return 0;
}

void room_collective(struct ranks *r)
{
	r->collective = (struct collective){r, room_sum, room_gather, room_broadcast, ranks_alive};
}

int ranks_join(struct ranks_room *room, uint32_t rank, struct ranks **out)
{
	struct ranks *r = calloc(1, sizeof *r);
	if (!r)
		return -ERR_MEMORY;
	r->rank = r->local = rank;
	r->count = r->local_count = room->count;
	r->room = room;
	for (uint32_t i = 0; i < SPLIT_RANKS_MAX; i++)
		r->fd[i] = -1;
	room_collective(r);
	*out = r;
	return 0;
}
