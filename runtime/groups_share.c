/*
 * How memory is divided between the groups, on a daemon and in the planner.
 *
 * The rule: both groups give out together when all contexts have the length that they are divided
 * for (a quarter of what a session may have, if --kv-context names none). Such a context has its units
 * in group 0 and, at rest, rest_pages in group 1; and each turn that runs needs turn_pages. So with c
 * contexts, of which min(c, --turns) run, c * (units + rest) + min(c, turns) * (turn - rest) pages are
 * the bytes that there are. Shorter contexts run out of group 1 first, longer ones of group 0.
 */
#include "runtime/groups.h"

static uint64_t least(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

void groups_share(const struct sched_limits *l, uint64_t tokens, uint64_t bytes, uint64_t turns,
		  uint64_t pages[2])
{
	pages[0] = bytes / l->group[0].page_bytes;
	pages[1] = 0;
	if (l->group_count == 1)
		return;
	const struct sched_window w = sched_window(l, 1);
	const double units = (double)((tokens + l->page_tokens - 1) / l->page_tokens);
	const double rest = units < w.rest_pages ? units : w.rest_pages;
	const double turn = units < w.turn_pages ? units : w.turn_pages;
	const double window_bytes = (double)l->group[1].page_bytes;
	const double one = units * (double)l->group[0].page_bytes + rest * window_bytes;
	const double more = (turn - rest) * window_bytes;
	double contexts = (double)bytes / (one + more), runs = contexts;
	if (contexts > (double)turns) {
		runs = (double)turns;
		contexts = ((double)bytes - runs * more) / one;
	}
	pages[1] = (uint64_t)(contexts * rest + runs * (turn - rest));
	/* One turn of any length can run, where that leaves half to the others. */
	if (pages[1] < w.turn_pages)
		pages[1] = least(w.turn_pages, bytes / 2 / l->group[1].page_bytes);
	if (pages[1] == 0)
		pages[1] = bytes >= l->group[0].page_bytes + l->group[1].page_bytes;
	if (pages[1] > least((uint64_t)w.turn_pages * l->session_count, 1u << 24))
		pages[1] = least((uint64_t)w.turn_pages * l->session_count, 1u << 24);
	pages[0] = (bytes - pages[1] * l->group[1].page_bytes) / l->group[0].page_bytes;
	if (pages[1] == 0)
		pages[0] = 0; /* neither is of use alone */
}
