/*
 * The other rank of two, for tests of rank 0 alone: it adds nothing to a sum.
 */
#ifndef HOLDFAST_TESTS_RANK_ONE_H
#define HOLDFAST_TESTS_RANK_ONE_H

#include <string.h>

#include "kernels/ops.h"

struct rank1 {
	struct ops_fault fault; /* what it has found of the second of two sequences */
	int gone; /* no gather comes to an end */
	int late; /* it has answered, and is gone since */
};

static inline int rank1_gather(void *self, const void *mine, size_t bytes, void *all)
{
	const struct rank1 *r = self;
	struct ops_fault said[2] = {{.page = OPS_NONE}, r->fault};
	if (r->gone)
		return -ERR_INTERNAL;
	memcpy(all, mine, bytes);
	memset((uint8_t *)all + bytes, 0, bytes);
	if (bytes == sizeof(int)) /* how its opening went: as this one's */
		memcpy((uint8_t *)all + bytes, mine, bytes);
	if (bytes == sizeof said) /* no sum is so short, nor are logits */
		memcpy((uint8_t *)all + bytes, said, bytes);
	return 0;
}

static inline int rank1_broadcast(void *self, void *bytes, size_t count)
{
	(void)self, (void)bytes, (void)count;
	return 0;
}

static inline int rank1_lives(void *self)
{
	const struct rank1 *r = self;
	return r->gone || r->late ? -ERR_INTERNAL : 0;
}

static inline struct collective rank1_collective(struct rank1 *there)
{
	return (struct collective){.self = there, .gather = rank1_gather, .broadcast = rank1_broadcast,
				   .alive = rank1_lives};
}

#endif
