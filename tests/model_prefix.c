/*
 * The model's part about shared prefixes. The hash of a page's last token covers all before it, so it
 * is the page's chain key; what may be shared is judged by what the pages hold, not by keys.
 */
#include "tests/model.h"

#include <string.h>

/* Tokens of a turn: its own, or those of a script, which are the same whenever they follow on the same. */
uint64_t model_token(uint64_t before, uint64_t turn_key, uint32_t position)
{
	uint64_t script = turn_key >> 32;
	uint64_t own = script ? script << 20 : turn_key << 8;
	return (before + own + position) * 0x9e3779b97f4a7c15u;
}

/* The keys of the full pages of the prompt that the event, a TURN, would make; returns how many. */
uint32_t model_keys(const struct model *m, const struct event *e, struct chain_key *keys)
{
	const struct model_session *x = &m->session[e->session];
	uint64_t prompt = (uint64_t)e->as.turn.keep + e->as.turn.append, token = 0;
	uint32_t count = 0, span = m->limits.page_tokens;
	if (e->as.turn.keep > x->history || prompt > m->limits.context_tokens)
		return 0;
	for (uint32_t i = 0; i < prompt; i++) {
		token = i < e->as.turn.keep ? x->token[i] : model_token(token, e->turn_key, i);
		if (i % span == span - 1)
			keys[count++] = (struct chain_key){token, ~token * 3};
	}
	return count;
}

static int found_by(const struct model *m, uint32_t owner, uint32_t principal)
{
	return owner == principal || owner + 1 == m->limits.public_principal;
}

/* SHARE outside of a fork: full pages of the principal, which hold the tokens that stand at their place in
   the session's prompt, in place of what it had there. */
static void prefix_share(struct model *m, const struct effect *f)
{
	struct model_session *x = &m->session[f->session];
	uint32_t g = f->as.run.group, span = m->limits.page_tokens, first = f->as.run.position_first / span;
	if (x->turn == SCHED_NONE || m->turn[x->turn].running)
		model_fail(m, "SHARE with a session that has no waiting turn");
	if (first > x->unit_count[g])
		model_fail(m, "SHARE leaves a gap");
	if (x->unit_count[g] > first)
		x->unit_count[g] = first; /* what it shared with others before goes without an effect */
	for (uint32_t i = 0; i < f->as.run.page_count && first + i < SIM_UNITS; i++) {
		uint32_t id = model_id(f->as.run.place, f->as.run.page_first + i), unit = x->unit_count[g]++;
		const struct model_page *page = &m->page[g][id];
		x->unit[g][unit] = id;
		if (page->state != PAGE_OWNED || page->tag != f->as.run.tag_first + i)
			model_fail(m, "SHARE of a page that nobody owns, or with another tag");
		if (!found_by(m, page->principal, x->principal))
			model_fail(m, "SHARE between principals");
		if ((unit + 1) * span >= x->history)
			model_fail(m, "SHARE leaves nothing to compute");
		for (uint32_t k = 0; k < span && (unit + 1) * span < x->history; k++) {
			if (page->slot[k] != x->token[unit * span + k])
				model_fail(m, "SHARE of a page with other tokens");
			x->ever[unit * span + k] = 1;
		}
	}
	if (g == 0)
		x->resident = x->unit_count[0] * span;
	m->shared += f->as.run.page_count;
}

void model_share(struct model *m, const struct effect *f)
{
	struct model_session *x = &m->session[f->session];
	uint32_t g = f->as.run.group;
	if (m->event.kind != EVENT_FORK || x->turn != SCHED_NONE) {
		prefix_share(m, f);
		return;
	}
	const struct model_session *parent = &m->session[m->event.session];
	for (uint32_t i = 0; i < f->as.run.page_count; i++) {
		uint32_t unit = x->unit_count[g]++, page = model_id(f->as.run.place, f->as.run.page_first + i);
		if (unit != f->as.run.position_first / m->limits.page_tokens + i || parent->unit[g][unit] != page)
			model_fail(m, "SHARE of another page than the parent's");
		if ((unit + 1) * m->limits.page_tokens > parent->resident)
			model_fail(m, "SHARE of a page that is not full");
		if (m->page[g][page].tag != f->as.run.tag_first + i)
			model_fail(m, "SHARE names another tag");
		x->unit[g][unit] = page;
	}
}

/* As many of the principal's turns run as may; more is a fault. */
int model_at_quota(const struct model *m, uint32_t principal)
{
	uint32_t running = 0, most = m->limits.principal_turns;
	for (uint32_t i = 0; i < MODEL_TURNS; i++)
		running += m->turn[i].live && m->turn[i].running &&
			m->session[m->turn[i].session].principal == principal;
	return most > 0 && running >= most;
}

/* What is public has none. */
uint64_t model_quota(const struct model *m, uint32_t principal)
{
	return principal + 1 == m->limits.public_principal ? 0 : m->limits.principal_bytes;
}

/* Would the turn exceed its principal's quota of bytes: beside what is granted to its other sessions, and, if
   `running`, what their running turns may need? */
int model_quota_short(const struct model *m, const struct model_turn *t, int running)
{
	uint32_t principal = m->session[t->session].principal;
	uint64_t most = model_quota(m, principal), bytes = 0;
	for (uint32_t i = 0; i < SIM_SESSIONS; i++) {
		const struct model_session *x = &m->session[i];
		if (!x->open || x->principal != principal)
			continue;
		const struct model_turn *its = i == t->session ? t
			: running && x->turn != SCHED_NONE && m->turn[x->turn].running ? &m->turn[x->turn] : NULL;
		uint32_t units = model_granted(m, x), needs = its ? model_turn_units(m, its) : 0;
		bytes += model_bytes(m, units > needs ? units : needs);
	}
	return most > 0 && bytes > most;
}

/* Is a running turn about to compute what the turn needs, and told both its keys? Then it may wait for that,
   and others may pass it. */
int model_awaits(const struct model *m, const struct model_turn *t)
{
	const struct model_session *x = &m->session[t->session];
	uint32_t span = m->limits.page_tokens;
	for (uint32_t i = 0; i < MODEL_TURNS && !model_windowed(m); i++) {
		const struct model_turn *o = &m->turn[i];
		const struct model_session *y = &m->session[o->session];
		if (!o->live || !o->running || !found_by(m, y->principal, x->principal))
			continue;
		uint32_t unit = y->resident / span, end = (unit + 1) * span;
		if (end <= x->resident || (end >= o->keep + o->append && o->sampled >= o->credit))
			continue;
		if (unit < t->key_first || unit >= t->key_end || unit < o->key_first || unit >= o->key_end)
			continue;
		if (end < x->history && end <= y->history && x->token[end - 1] == y->token[end - 1])
			return 1;
	}
	return 0;
}
