/*
 * How ranks part. Goal: at the end of rank 0 none leaves before all have closed their devices, whether it
 * came to the end first or last; and one that hangs keeps the others for a named time only, in its close
 * and where rank 0 tells of the end. Method: ranks as threads in shared memory, over a table whose devices
 * are nothing but a pause; what hangs waits until the others have left.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

#include "runtime/ranks.h"
#include "tests/tap.h"

enum { CLOSERS = 4, LAST = CLOSERS - 1, LIMIT_MS = 300, LONG_MS = 20 * 1000 };
enum hang { NONE, AT_CLOSE, AT_END }; /* of LAST */

struct device {
	uint32_t rank;
};

struct closer {
	pthread_t thread;
	struct ranks *ranks;
	struct ranks_room *room;
	enum hang hang;
	int end;         /* of ranks_next */
	uint32_t closed; /* how many had when this one left */
	bool alone;      /* LAST: the others left while it hung */
};

static atomic_uint closed, left;

static void pause_ms(long ms)
{
	const struct timespec pause = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000 * 1000};
	nanosleep(&pause, NULL);
}

static int slow_open(const struct device_plan *plan, struct device **out)
{
	*out = malloc(sizeof **out);
	CHECK(*out);
	(*out)->rank = plan->rank;
	return 0;
}

/* It takes its time. */
static void slow_close(struct device **device)
{
	pause_ms(30);
	atomic_fetch_add(&closed, 1);
	free(*device);
	*device = NULL;
}

static bool others_left(uint32_t count)
{
	for (uint32_t i = 0; i < LONG_MS / 10 && atomic_load(&left) < count; i++)
		pause_ms(10);
	return atomic_load(&left) >= count;
}

static void *closer_main(void *arg)
{
	struct closer *c = arg;
	static const struct ops slow = {.device_open = slow_open, .device_close = slow_close};
	const uint32_t rank = ranks_rank(c->ranks);
	const struct split split = {.ranks = CLOSERS, .rank = rank, .ff = CLOSERS, .ff_unit = 1};
	const struct device_plan plan = {.collective = ranks_collective(c->ranks), .rank = rank, .ranks = CLOSERS,
					 .heads = CLOSERS, .kv_heads = CLOSERS};
	const struct ops *ops = ranks_ops(c->ranks, &split, &slow);
	const struct ops_batch *block;
	struct device *d = NULL;
	ranks_goodbye_limit(c->ranks, c->hang == NONE ? LONG_MS : LIMIT_MS);
	CHECK(ops->device_open(&plan, &d) == 0);
	ranks_ready(c->ranks);
	if (rank == LAST && c->hang == AT_END) {
		c->alone = others_left(1); /* rank 0; the system tells the rest of its end */
		ranks_lose(c->room, 0);
	}
	c->end = rank > 0 ? ranks_next(c->ranks, d, &block) : RANKS_END;
	if (rank == LAST && c->hang == AT_CLOSE)
		c->alone = others_left(LAST);
	pause_ms(10 * (long)rank); /* they come to the end one after another, too */
	ops->device_close(&d);
	c->closed = atomic_load(&closed);
	atomic_fetch_add(&left, 1);
	return NULL;
}

static void part(struct closer *c, enum hang hang)
{
	struct ranks_room *room;
	atomic_store(&closed, 0);
	atomic_store(&left, 0);
	CHECK(ranks_room_open(CLOSERS, &room) == 0);
	for (uint32_t i = 0; i < CLOSERS; i++) {
		c[i] = (struct closer){.room = room, .hang = hang};
		CHECK(ranks_join(room, i, &c[i].ranks) == 0);
	}
	for (uint32_t i = 0; i < CLOSERS; i++)
		CHECK(pthread_create(&c[i].thread, NULL, closer_main, &c[i]) == 0);
	for (uint32_t i = 0; i < CLOSERS; i++)
		pthread_join(c[i].thread, NULL);
	if (hang == NONE)
		for (uint32_t i = 0; i < CLOSERS; i++)
			EXPECT_EQ(ranks_gone(c[i].ranks, true), -1);
	for (uint32_t i = 0; i < CLOSERS; i++)
		ranks_close(&c[i].ranks);
	ranks_room_close(&room);
}

static void together(void)
{
	struct closer c[CLOSERS];
	part(c, NONE);
	for (uint32_t i = 0; i < CLOSERS; i++) {
		EXPECT_EQ(c[i].end, RANKS_END);
		EXPECT_EQ(c[i].closed, CLOSERS);
	}
}

static void hangs_in_close(void)
{
	struct closer c[CLOSERS];
	part(c, AT_CLOSE);
	EXPECT(c[LAST].alone);
	for (uint32_t i = 0; i < CLOSERS; i++)
		EXPECT_EQ(c[i].end, RANKS_END);
}

/* Rank 0 goes without them; they learn that it has. */
static void hangs_before(void)
{
	struct closer c[CLOSERS];
	part(c, AT_END);
	EXPECT(c[LAST].alone);
	for (uint32_t i = 1; i < CLOSERS; i++)
		EXPECT_EQ(c[i].end, -ERR_INTERNAL);
}

int main(void)
{
	TAP_RUN(together, "no rank leaves before all have closed");
	TAP_RUN(hangs_in_close, "one that hangs in its close keeps the others for a time");
	TAP_RUN(hangs_before, "one that hangs where the end is told keeps rank 0 for a time");
	return tap_done();
}
