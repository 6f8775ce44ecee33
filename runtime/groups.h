/*
 * How memory is divided between the layers that see all positions and those with a window.
 */
#ifndef HOLDFAST_RUNTIME_GROUPS_H
#define HOLDFAST_RUNTIME_GROUPS_H

#include "sched/sched.h"

/* Pages of each group in so many bytes, for contexts of so many tokens of which `turns` run; of limits whose
   sessions, page size and bytes of a page are set. */
void groups_share(const struct sched_limits *limits, uint64_t tokens, uint64_t bytes, uint64_t turns,
		  uint64_t pages[2]);

#endif
