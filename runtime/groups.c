/*
 * Page groups: layers with a sliding window have pages of their own, and a session keeps of them what
 * the window shows. Here is how the memory is divided between the groups, and how their pages are
 * numbered where one table is for all.
 *
 * The rule: both groups give out together when all contexts have the length that --kv-context names (a
 * quarter of what a session may have, if it names none). Such a context has its units in group 0 and, at
 * rest, rest_pages in group 1; and each turn that runs needs turn_pages. So with c contexts, of which
 * min(c, --turns) run, c * (units + rest) + min(c, turns) * (turn - rest) pages are the bytes that
 * there are. Shorter contexts run out of group 1 first, longer ones of group 0.
 */
#include "runtime/daemon.h"

static uint64_t least(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

bool groups_wanted(const struct daemon *d)
{
	struct sched_limits l = d->limits;
	if (d->options.windows != 0 || !forward_windowed(d->model))
		return false;
	/* A session that never gives up a page gains nothing. */
	l.group[1].window_tokens = d->model->arch.window;
	const uint32_t units = (l.context_tokens + l.page_tokens - 1) / l.page_tokens;
	return sched_window(&l, 1).turn_pages < units;
}

uint64_t groups_context(const struct daemon *d)
{
	const struct sched_limits *l = &d->limits;
	const uint64_t asked = d->options.kv_context ? d->options.kv_context : l->context_tokens / 4;
	const uint64_t tokens = asked > l->page_tokens ? asked : l->page_tokens;
	return least(tokens, l->context_tokens);
}

void groups_split(const struct daemon *d, uint64_t bytes, uint64_t turns, uint64_t pages[2])
{
	const struct sched_limits *l = &d->limits;
	pages[0] = bytes / l->group[0].page_bytes;
	pages[1] = 0;
	if (l->group_count == 1)
		return;
	const struct sched_window w = sched_window(l, 1);
	const double units = (double)((groups_context(d) + l->page_tokens - 1) / l->page_tokens);
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
	if (pages[1] > least((uint64_t)w.turn_pages * d->options.sessions, 1u << 24))
		pages[1] = least((uint64_t)w.turn_pages * d->options.sessions, 1u << 24);
	pages[0] = (bytes - pages[1] * l->group[1].page_bytes) / l->group[0].page_bytes;
	if (pages[1] == 0)
		pages[0] = 0; /* neither is of use alone */
}

double groups_contexts(const struct daemon *d, uint64_t tokens)
{
	const struct sched_limits *l = &d->limits;
	const double units = (double)((tokens + l->page_tokens - 1) / l->page_tokens);
	double contexts = l->group[0].page_count[PLACE_DEVICE] / units;
	if (l->group_count > 1) {
		const double rest = sched_window(l, 1).rest_pages;
		const double other = l->group[1].page_count[PLACE_DEVICE] / (units < rest ? units : rest);
		contexts = other < contexts ? other : contexts;
	}
	return contexts;
}

uint64_t groups_bytes(const struct daemon *d, enum place place)
{
	uint64_t bytes = 0;
	for (uint32_t g = 0; g < d->limits.group_count; g++)
		bytes += d->limits.group[g].page_count[place] * d->limits.group[g].page_bytes;
	return bytes;
}

uint32_t pages_number(const struct daemon *d, enum place place, uint32_t group, uint32_t page)
{
	CHECK(group < d->limits.group_count);
	CHECK(page < d->limits.group[group].page_count[place]);
	for (uint32_t g = 0; g < group; g++)
		page += d->limits.group[g].page_count[place];
	return page;
}

uint32_t pages_count(const struct daemon *d, enum place place)
{
	uint32_t count = 0;
	for (uint32_t g = 0; g < d->limits.group_count; g++)
		count += d->limits.group[g].page_count[place];
	return count;
}

uint32_t pages_group(const struct daemon *d, enum place place, uint32_t *number)
{
	uint32_t g = 0;
	while (*number >= d->limits.group[g].page_count[place]) {
		*number -= d->limits.group[g++].page_count[place];
		CHECK(g < d->limits.group_count);
	}
	return g;
}
