/*
 * Page groups: layers with a sliding window have pages of their own, and a session keeps of them what
 * the window shows. How the memory is divided between the groups is in groups_share.c; here, how their
 * pages are numbered where one table is for all.
 */
#include "runtime/daemon.h"
#include "runtime/groups.h"

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
	groups_share(&d->limits, groups_context(d), bytes, turns, pages);
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
