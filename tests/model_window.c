/*
 * The part of the plain model that is about windows: what stays, what is needed, what it takes.
 */
#include "tests/model.h"

int model_window(const struct model *m, uint32_t g)
{
	return m->limits.group[g].window_tokens > 0;
}

int model_windowed(const struct model *m)
{
	int windowed = 0;
	for (uint32_t g = 0; g < m->limits.group_count; g++)
		windowed |= model_window(m, g);
	return windowed;
}

/* Tokens that stay behind the end of what is resident: the window, and a quarter or a page more. */
static uint32_t keep(const struct model *m, uint32_t g)
{
	uint32_t window = m->limits.group[g].window_tokens;
	return window / 4 > m->limits.page_tokens ? window + window / 4 : window + m->limits.page_tokens;
}

uint32_t model_need(const struct model *m, uint32_t g, uint32_t units)
{
	uint32_t rows = m->limits.chunk_tokens < m->limits.batch_rows ? m->limits.chunk_tokens
								      : m->limits.batch_rows;
	uint32_t most = model_units(m, (uint64_t)keep(m, g) + rows) + 1;
	return units < most ? units : most;
}

uint32_t model_low(const struct model *m, uint32_t g, uint32_t resident)
{
	if (!model_window(m, g) || resident <= keep(m, g))
		return 0;
	return (resident - keep(m, g)) / m->limits.page_tokens;
}

uint32_t model_usable(const struct model *m, const struct model_session *x, uint32_t tokens)
{
	for (uint32_t g = 0; g < m->limits.group_count; g++) {
		uint32_t first = x->low[g] * m->limits.page_tokens, window = m->limits.group[g].window_tokens;
		/* The next row is at `tokens`, and sees `window` positions with its own. */
		if (model_window(m, g) && first > 0 && first + window > tokens + 1)
			return 0;
	}
	return tokens;
}

uint64_t model_bytes(const struct model *m, uint32_t units)
{
	uint64_t bytes = 0;
	for (uint32_t g = 0; g < m->limits.group_count; g++)
		bytes += m->limits.group[g].page_bytes * (model_window(m, g) ? model_need(m, g, units) : units);
	return bytes;
}

uint32_t model_granted(const struct model *m, const struct model_session *x)
{
	uint32_t units = 0;
	while (model_bytes(m, units) < x->granted_bytes)
		units++;
	return units;
}

uint32_t model_floor(const struct model *m, const struct model_session *x)
{
	return x->outgrown ? 0 : model_granted(m, x);
}

uint32_t model_held(const struct model *m, const struct model_session *x, uint32_t g)
{
	uint32_t held = 0;
	(void)m;
	for (uint32_t u = x->low[g]; u < x->unit_count[g]; u++)
		held += x->unit[g][u] < SIM_PAGES;
	return held;
}

uint32_t model_total(const struct model *m, uint32_t g)
{
	uint32_t total = m->limits.group[g].page_count[PLACE_DEVICE], bad = 0;
	for (uint32_t i = 0; i < total; i++)
		bad += m->page[g][i].state == PAGE_QUARANTINED;
	return total - bad;
}

static const struct model_turn *running(const struct model *m, uint32_t session)
{
	uint32_t turn = m->session[session].turn;
	return turn != SCHED_NONE && m->turn[turn].running ? &m->turn[turn] : NULL;
}

uint64_t model_reserved(const struct model *m, uint32_t g)
{
	uint64_t pages = 0;
	for (uint32_t i = 0; i < SIM_SESSIONS; i++) {
		const struct model_session *x = &m->session[i];
		const struct model_turn *t = x->open ? running(m, i) : NULL;
		if (t)
			pages += model_need(m, g, model_turn_units(m, t));
		else if (x->open && model_floor(m, x) > 0)
			pages += x->unit_count[g] - x->low[g];
	}
	return pages;
}

uint64_t model_left(const struct model *m, uint32_t g)
{
	uint64_t pages = 0;
	for (uint32_t i = 0; i < SIM_SESSIONS; i++) {
		const struct model_turn *t = m->session[i].open ? running(m, i) : NULL;
		if (t)
			pages += model_need(m, g, model_turn_units(m, t)) - model_held(m, &m->session[i], g);
	}
	return pages;
}

/* What a running turn needs is there beside what others need and keep, and nobody has more. */
void model_windows_after(struct model *m)
{
	uint32_t runs = 0;
	for (uint32_t i = 0; i < SIM_SESSIONS; i++)
		runs += m->session[i].open && running(m, i);
	for (uint32_t g = 0; g < m->limits.group_count; g++) {
		if (!model_window(m, g))
			continue;
		if (runs && model_reserved(m, g) > model_total(m, g))
			model_fail(m, "a window's pages are not there for all that may need them");
		for (uint32_t i = 0; i < SIM_SESSIONS; i++) {
			const struct model_session *x = &m->session[i];
			const struct model_turn *t = x->open ? running(m, i) : NULL;
			uint32_t units = x->unit_count[0], most = units;
			if (t)
				most = model_turn_units(m, t);
			if (x->open && x->unit_count[g] - x->low[g] > model_need(m, g, most))
				model_fail(m, "a session has more pages of a window than it needs");
			if (x->open && x->unit_count[g] != units)
				model_fail(m, "the groups do not end at the same unit");
		}
	}
}
