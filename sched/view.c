/*
 * Views of the state, for those who must show it or carry it out. They change nothing.
 */
#include "sched/state.h"

#include <string.h>

const struct sched_limits *sched_limits_of(const struct sched *s)
{
	return &s->limits;
}

uint64_t sched_ledger(const struct sched *s, enum account account, enum column column)
{
	CHECK(account < ACCOUNT_COUNT);
	CHECK(column < COLUMN_COUNT);
	return s->ledger[account][column];
}

static enum column column_of(const struct sched *s, const struct page *page)
{
	if (page->moving || page->state == PAGE_MOVING)
		return COLUMN_MOVING;
	if (page->state == PAGE_FREE)
		return COLUMN_FREE;
	if (page->state != PAGE_OWNED)
		return COLUMN_DOOMED;
	if (page->owners > 1)
		return COLUMN_SHARED;
	return page->place == PLACE_DEVICE && session_at(s, page->owner_xor)->state == SESSION_RUNNING
		? COLUMN_RUNNING : COLUMN_RETAINED;
}

void sched_pages(const struct sched *s, uint32_t group, uint64_t out[PLACE_COUNT][COLUMN_COUNT])
{
	static const enum account account_of[PLACE_COUNT] = {ACCOUNT_DEVICE, ACCOUNT_HOST, ACCOUNT_DISK};
	CHECK(group < s->limits.group_count);
	memset(out, 0, PLACE_COUNT * sizeof *out);
	if (s->limits.group_count == 1) {
		for (uint32_t place = 0; place < PLACE_COUNT; place++)
			for (uint32_t c = 0; c < COLUMN_COUNT; c++)
				out[place][c] = s->ledger[account_of[place]][c] / s->limits.group[0].page_bytes;
		return;
	}
	for (uint32_t i = 0; i < pages_of_group(s, group); i++) {
		const struct page *page = page_at(s, group, i);
		out[page->place][column_of(s, page)]++;
	}
	/* As the ledger is settled: of the promises what free pages back. */
	const uint64_t promised = window_of(s, group) ? window_promised(s, group) : s->promised_units;
	uint64_t *device = out[PLACE_DEVICE];
	device[COLUMN_PROMISED] = promised < device[COLUMN_FREE] ? promised : device[COLUMN_FREE];
	device[COLUMN_FREE] -= device[COLUMN_PROMISED];
}

int sched_session(const struct sched *s, uint32_t session, struct session_view *out)
{
	if (session >= s->limits.session_count || session_at(s, session)->state == SESSION_FREE)
		return -ERR_NOT_FOUND;
	const struct session *x = session_at(s, session);
	memset(out, 0, sizeof *out);
	out->key = x->key;
	out->principal = x->principal;
	out->state = x->state;
	out->turn = x->turn;
	out->pause = x->pause;
	out->history = x->history;
	out->resident = x->resident;
	out->residency = x->residency;
	out->granted_bytes = window_bytes(s, x->granted);
	out->charged_bytes = quota_charged(s, session);
	out->lease_until_us = x->lease_until_us;
	uint64_t away = load_missing(s, session);
	out->device_bytes = (x->units - away) * s->unit_bytes;
	out->lower_bytes = away * s->unit_bytes;
	for (uint32_t g = 0; s->windowed && g < s->limits.group_count; g++) {
		if (!window_of(s, g))
			continue;
		out->device_bytes += window_held(s, session, g) * s->limits.group[g].page_bytes;
		out->lower_bytes += window_missing(s, session, g) * s->limits.group[g].page_bytes;
	}
	out->idle_since_us = x->idle_since_us;
	return 0;
}

int sched_turn(const struct sched *s, uint32_t turn, struct turn_view *out)
{
	if (turn >= s->limits.turn_count || turn_at(s, turn)->state == TURN_FREE)
		return -ERR_NOT_FOUND;
	const struct turn *t = turn_at(s, turn);
	const struct session *x = session_at(s, t->session);
	memset(out, 0, sizeof *out);
	out->key = t->key;
	out->session = t->session;
	out->running = t->state == TURN_RUNNING;
	for (uint32_t at = turn; !out->running && at != SCHED_NONE; at = turn_at(s, at)->link.prev)
		out->place++;
	out->wait_why = t->wait_why;
	out->blocker = t->blocker;
	out->short_bytes = t->short_bytes;
	out->eta_us = out->running ? 0 : admit_eta_us(s, turn);
	out->prompt = t->prompt;
	/* Of the prompt and of what was sampled; a turn that is not its session's yet has none. */
	out->computed = x->turn == turn ? x->resident : 0;
	out->sampled = t->sampled;
	out->output_max = t->output_max;
	out->credit = t->credit;
	out->claim_bytes = t->claim * s->unit_bytes;
	out->promised_bytes = t->promised * s->unit_bytes;
	for (uint32_t g = 0; s->windowed && out->running && g < s->limits.group_count; g++) {
		uint64_t left = window_of(s, g) ? t->need[g] - window_held(s, t->session, g) : 0;
		out->claim_bytes += left * s->limits.group[g].page_bytes;
		out->promised_bytes += left * s->limits.group[g].page_bytes;
	}
	return 0;
}

uint32_t sched_page_table(const struct sched *s, uint32_t session, uint32_t group,
			  uint32_t first_page, uint32_t count, struct page_ref *out)
{
	CHECK(group < s->limits.group_count);
	uint32_t units = session_at(s, session)->units;
	if (first_page >= units)
		return 0;
	if (count > units - first_page)
		count = units - first_page;
	struct cursor at = cursor_at(s, session, first_page);
	for (uint32_t i = 0; i < count; i++, cursor_next(s, &at)) {
		out[i].page = cursor_page(s, &at, group);
		if (out[i].page == SCHED_NONE) {
			out[i] = (struct page_ref){SCHED_NONE, PLACE_TOKENS, 0};
			continue;
		}
		out[i].place = page_at(s, group, out[i].page)->place;
		out[i].tag = page_at(s, group, out[i].page)->tag;
		out[i].page = page_at(s, group, out[i].page)->slot;
	}
	return count;
}

uint32_t sched_page_first(const struct sched *s, uint32_t session, uint32_t group)
{
	CHECK(group < s->limits.group_count);
	return session_at(s, session)->low[group];
}

int sched_page(const struct sched *s, uint32_t group, uint32_t page, struct page_view *out)
{
	if (group >= s->limits.group_count || page >= s->limits.group[group].page_count[PLACE_DEVICE])
		return -ERR_NOT_FOUND;
	const struct page *seen = page_at(s, group, *slot_page(s, group, PLACE_DEVICE, page));
	memset(out, 0, sizeof *out);
	out->tag = seen->tag;
	out->state = seen->moving ? PAGE_MOVING : seen->owners > 1 ? PAGE_SHARED : seen->state;
	out->principal = seen->principal;
	out->owners = seen->owners;
	out->position = seen->owners ? seen->unit * s->limits.page_tokens : 0;
	out->session = seen->owners == 1 ? seen->owner_xor : SCHED_NONE;
	return 0;
}

uint64_t sched_context_bytes(const struct sched *s, uint64_t tokens)
{
	if (tokens > s->limits.context_tokens)
		tokens = s->limits.context_tokens;
	return window_bytes(s, units_of(s, tokens));
}

struct sched_counts sched_counts(const struct sched *s)
{
	return s->counts;
}

uint64_t sched_headroom(const struct sched *s, uint32_t *turns)
{
	*turns = s->limits.batch_turns - s->running.count;
	uint64_t bytes = claim_slack(s) * s->unit_bytes;
	for (uint32_t g = 0; s->windowed && g < s->limits.group_count; g++)
		if (window_of(s, g))
			bytes += window_slack(s, g) * s->limits.group[g].page_bytes;
	return bytes;
}

struct principal_view sched_principal(const struct sched *s, uint32_t principal)
{
	const struct principal *owner = principal_at(s, principal);
	struct principal_view view = {owner->bytes, owner->granted_bytes, 0, quota_of(s, principal),
				      owner->session_count, owner->active, owner->running, 0};
	view.charged_bytes = owner->granted_bytes + owner->running_bytes;
	CHECK(view.running <= view.turns);
	return view;
}

uint64_t sched_principal_bytes(const struct sched *s, uint32_t principal)
{
	return principal_at(s, principal)->bytes;
}
