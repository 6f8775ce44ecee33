/*
 * Pages: which are free, who owns which, under what tag, and the page table of each session.
 *
 * A table is a list of chunks from one pool. Tables only grow and shrink at their end, and a
 * shared unit is shared with all the units before it, so the units that a session owns alone are
 * the last `sole` of its table.
 *
 * A page that loses its last owner is doomed until its step is durable (or free at once, if
 * nobody asked to hold it), and quarantined if it was marked bad. Free pages are taken from the
 * one end and given back at the other: a stale reader then meets a wrong tag late, but surely.
 */
#include "sched/state.h"

static void page_push(struct sched *s, struct chain *chain, uint32_t group, uint32_t page)
{
	page_at(s, group, page)->next = SCHED_NONE;
	if (chain->last == SCHED_NONE)
		chain->first = page;
	else
		page_at(s, group, chain->last)->next = page;
	chain->last = page;
	chain->count++;
}

static uint32_t page_pop(struct sched *s, struct chain *chain, uint32_t group)
{
	uint32_t page = chain->first;
	CHECK(chain->count > 0);
	chain->first = page_at(s, group, page)->next;
	if (chain->first == SCHED_NONE)
		chain->last = SCHED_NONE;
	chain->count--;
	return page;
}

void pages_init(struct sched *s)
{
	for (uint32_t g = 0; g < s->limits.group_count; g++) {
		s->page_free[g].first = s->page_free[g].last = SCHED_NONE;
		s->page_doomed[g] = s->page_free[g];
		for (uint32_t page = 0; page < s->limits.group[g].page_count[PLACE_DEVICE]; page++)
			page_push(s, &s->page_free[g], g, page);
	}
	for (uint32_t chunk = 0; chunk < s->chunk_count; chunk++)
		chunk_at(s, chunk)[1] = chunk + 1 < s->chunk_count ? chunk + 1 : SCHED_NONE;
	s->chunk_free = 0;
}

/* Counts. */

uint32_t pages_free_units(const struct sched *s)
{
	uint32_t units = s->page_free[0].count;
	for (uint32_t g = 1; g < s->limits.group_count; g++)
		if (s->page_free[g].count < units)
			units = s->page_free[g].count;
	return units;
}

uint32_t pages_coming_units(const struct sched *s)
{
	uint32_t units = 0xffffffffu;
	for (uint32_t g = 0; g < s->limits.group_count; g++)
		if (s->page_free[g].count + s->page_doomed[g].count < units)
			units = s->page_free[g].count + s->page_doomed[g].count;
	return units;
}

uint32_t pages_total_units(const struct sched *s)
{
	uint32_t units = 0xffffffffu;
	for (uint32_t g = 0; g < s->limits.group_count; g++) {
		uint32_t left = s->limits.group[g].page_count[PLACE_DEVICE] - s->page_quarantined[g];
		if (left < units)
			units = left;
	}
	return units;
}

int page_yields(const struct page *page)
{
	return page->owners > 0 && page->yielding == page->owners;
}

/* Tables. */

struct cursor cursor_at(const struct sched *s, uint32_t session, uint32_t unit)
{
	const struct session *x = session_at(s, session);
	struct cursor at = {SCHED_NONE, unit};
	CHECK(unit <= x->units);
	if (unit == x->units)
		return at;
	uint32_t hops = unit / CHUNK_UNITS, hops_back = (x->units - 1) / CHUNK_UNITS - hops;
	if (hops <= hops_back) {
		for (at.chunk = x->chunk_first; hops > 0; hops--)
			at.chunk = chunk_at(s, at.chunk)[1];
	} else {
		for (at.chunk = x->chunk_last; hops_back > 0; hops_back--)
			at.chunk = chunk_at(s, at.chunk)[0];
	}
	return at;
}

void cursor_next(const struct sched *s, struct cursor *at)
{
	at->unit++;
	if (at->unit % CHUNK_UNITS == 0)
		at->chunk = chunk_at(s, at->chunk)[1];
}

static uint32_t *cursor_entry(const struct sched *s, const struct cursor *at, uint32_t group)
{
	return &chunk_at(s, at->chunk)[2 + at->unit % CHUNK_UNITS * s->limits.group_count + group];
}

uint32_t cursor_page(const struct sched *s, const struct cursor *at, uint32_t group)
{
	return *cursor_entry(s, at, group);
}

uint32_t table_page(const struct sched *s, uint32_t session, uint32_t group, uint32_t unit)
{
	CHECK(unit < session_at(s, session)->units);
	struct cursor at = cursor_at(s, session, unit);
	return cursor_page(s, &at, group);
}

static void table_grow(struct sched *s, struct session *x, uint32_t units)
{
	uint32_t have = (x->units + CHUNK_UNITS - 1) / CHUNK_UNITS;
	CHECK(units >= x->units);
	CHECK(units <= s->context_units);
	for (; have * CHUNK_UNITS < units; have++) {
		uint32_t chunk = s->chunk_free;
		CHECK(chunk != SCHED_NONE); /* state_layout made enough */
		s->chunk_free = chunk_at(s, chunk)[1];
		s->chunk_used++;
		chunk_at(s, chunk)[0] = x->chunk_last;
		chunk_at(s, chunk)[1] = SCHED_NONE;
		if (x->chunk_last == SCHED_NONE)
			x->chunk_first = chunk;
		else
			chunk_at(s, x->chunk_last)[1] = chunk;
		x->chunk_last = chunk;
	}
	x->units = units;
}

static void table_shrink(struct sched *s, struct session *x, uint32_t units)
{
	uint32_t have = (x->units + CHUNK_UNITS - 1) / CHUNK_UNITS;
	CHECK(units <= x->units);
	for (; have > 0 && (have - 1) * CHUNK_UNITS >= units; have--) {
		uint32_t chunk = x->chunk_last;
		x->chunk_last = chunk_at(s, chunk)[0];
		if (x->chunk_last == SCHED_NONE)
			x->chunk_first = SCHED_NONE;
		else
			chunk_at(s, x->chunk_last)[1] = SCHED_NONE;
		chunk_at(s, chunk)[1] = s->chunk_free;
		s->chunk_free = chunk;
		s->chunk_used--;
	}
	x->units = units;
}

/* Owners. */

struct run {
	enum effect_kind kind;
	uint32_t session, group, page, unit, reason;
	uint64_t tag;
};

/* Adds to the last effect if pages, tags and positions all count on, so that one record is enough. */
static void run_emit(struct step *p, const struct run *run)
{
	struct effect *last = p->out->count ? &p->out->list[p->out->count - 1] : NULL;
	uint32_t position = run->unit * p->s->limits.page_tokens;
	if (last && last->kind == run->kind && last->session == run->session &&
	    last->as.run.group == run->group && last->as.run.reason == run->reason &&
	    last->as.run.page_first + last->as.run.page_count == run->page &&
	    last->as.run.tag_first + last->as.run.page_count == run->tag &&
	    last->as.run.position_first + last->as.run.page_count * p->s->limits.page_tokens == position) {
		last->as.run.page_count++;
		return;
	}
	struct effect *effect = effect_of_session(p, run->kind, run->session);
	effect->turn = session_at(p->s, run->session)->turn;
	if (effect->turn != SCHED_NONE)
		effect->turn_key = turn_at(p->s, effect->turn)->key;
	effect->as.run.tag_first = run->tag;
	effect->as.run.group = run->group;
	effect->as.run.page_first = run->page;
	effect->as.run.page_count = 1;
	effect->as.run.position_first = position;
	effect->as.run.place = PLACE_DEVICE;
	effect->as.run.reason = run->reason;
}

/* The column of a page with this one owner. */
static enum column column_of_owner(const struct session *owner)
{
	return owner->state == SESSION_RUNNING ? COLUMN_RUNNING : COLUMN_RETAINED;
}

void pages_assign(struct step *p, uint32_t session, uint32_t units)
{
	struct sched *s = p->s;
	struct session *x = session_at(s, session);
	uint32_t first = x->units;
	CHECK(x->state == SESSION_RUNNING);
	CHECK(x->floor == FLOOR_ALL);
	CHECK(units <= pages_free_units(s));
	table_grow(s, x, first + units);
	x->sole += units;
	s->counts.pages_assigned += (uint64_t)units * s->limits.group_count;
	for (uint32_t g = 0; g < s->limits.group_count; g++) {
		struct cursor at = cursor_at(s, session, first);
		for (uint32_t i = 0; i < units; i++, cursor_next(s, &at)) {
			uint32_t index = page_pop(s, &s->page_free[g], g);
			struct page *page = page_at(s, g, index);
			CHECK(page->state == PAGE_FREE);
			CHECK(page->owners == 0);
			page->tag = s->tag_next++;
			page->next = SCHED_NONE;
			page->unit = at.unit;
			page->owners = 1;
			page->yielding = 0;
			page->owner_xor = session;
			page->principal = x->principal;
			page->state = PAGE_OWNED;
			*cursor_entry(s, &at, g) = index;
			ledger_move(s, ACCOUNT_DEVICE, COLUMN_FREE, COLUMN_RUNNING,
				    s->limits.group[g].page_bytes);
			principal_at(s, x->principal)->bytes += s->limits.group[g].page_bytes;
			struct run run = {EFFECT_ASSIGN, session, g, index, at.unit, 0, page->tag};
			run_emit(p, &run);
		}
	}
}

void pages_share(struct step *p, uint32_t from, uint32_t to, uint32_t units)
{
	struct sched *s = p->s;
	struct session *x = session_at(s, to);
	CHECK(x->units == 0);
	CHECK(x->floor == 0); /* a grant, if any, is made afterwards */
	CHECK(x->principal == session_at(s, from)->principal);
	CHECK(units <= s->share_max - s->share_extra);
	table_grow(s, x, units);
	s->share_extra += units;
	for (uint32_t g = 0; g < s->limits.group_count; g++) {
		struct cursor source = cursor_at(s, from, 0), at = cursor_at(s, to, 0);
		for (uint32_t i = 0; i < units; i++) {
			uint32_t index = cursor_page(s, &source, g);
			struct page *page = page_at(s, g, index);
			CHECK(page->state == PAGE_OWNED);
			if (page->owners == 1) {
				struct session *alone = session_at(s, page->owner_xor);
				ledger_move(s, ACCOUNT_DEVICE, column_of_owner(alone), COLUMN_SHARED,
					    s->limits.group[g].page_bytes);
				if (g == 0)
					alone->sole--;
			}
			/* Whether it is yielded as a whole does not change: the new owner yields it. */
			page->owners++;
			page->yielding++;
			page->owner_xor ^= to;
			*cursor_entry(s, &at, g) = index;
			struct run run = {EFFECT_SHARE, to, g, index, i, 0, page->tag};
			run_emit(p, &run);
			cursor_next(s, &source);
			cursor_next(s, &at);
		}
	}
}

static void page_release(struct step *p, const struct run *run)
{
	struct sched *s = p->s;
	struct page *page = page_at(s, run->group, run->page);
	uint64_t bytes = s->limits.group[run->group].page_bytes;
	struct run told = *run;
	enum column to = COLUMN_DOOMED;
	if (page->bad) {
		page->state = PAGE_QUARANTINED;
		page->bad = 0;
		s->page_quarantined[run->group]++;
		told.kind = EFFECT_QUARANTINE;
	} else if (s->limits.hold_until_durable) {
		page->state = PAGE_DOOMED;
		page->doom_step = s->step;
		page_push(s, &s->page_doomed[run->group], run->group, run->page);
	} else {
		page->state = PAGE_FREE;
		page_push(s, &s->page_free[run->group], run->group, run->page);
		to = COLUMN_FREE;
	}
	ledger_move(s, ACCOUNT_DEVICE, column_of_owner(session_at(s, run->session)), to, bytes);
	CHECK(principal_at(s, page->principal)->bytes >= bytes);
	principal_at(s, page->principal)->bytes -= bytes;
	run_emit(p, &told);
}

static void page_leave(struct step *p, const struct run *run)
{
	struct sched *s = p->s;
	struct session *x = session_at(s, run->session);
	struct page *page = page_at(s, run->group, run->page);
	int lead = run->group == 0, yielded = page_yields(page);
	CHECK(page->state == PAGE_OWNED);
	CHECK(page->owners > 0);
	CHECK(page->unit == run->unit);
	page->owners--;
	page->owner_xor ^= run->session;
	if (run->unit >= x->floor)
		page->yielding--;
	CHECK(page->yielding <= page->owners);
	if (lead) {
		s->yielding_units -= (uint32_t)yielded;
		s->yielding_units += (uint32_t)page_yields(page);
		if (page->owners == 0)
			x->sole--;
		else
			s->share_extra--;
	}
	if (page->owners == 1) {
		struct session *alone = session_at(s, page->owner_xor);
		ledger_move(s, ACCOUNT_DEVICE, COLUMN_SHARED, column_of_owner(alone),
			    s->limits.group[run->group].page_bytes);
		if (lead)
			alone->sole++;
	} else if (page->owners == 0) {
		page_release(p, run);
	}
}

void pages_drop(struct step *p, uint32_t session, uint32_t units_left, enum lost_why reason)
{
	struct sched *s = p->s;
	struct session *x = session_at(s, session);
	CHECK(units_left <= x->units);
	/* I10: the batch in flight may read any page of its sessions. */
	if (units_left < x->units && x->turn != SCHED_NONE)
		CHECK(!turn_at(s, x->turn)->in_flight);
	for (uint32_t g = 0; g < s->limits.group_count; g++) {
		struct cursor at = cursor_at(s, session, units_left);
		while (at.unit < x->units) {
			struct run run = {EFFECT_FREE, session, g, cursor_page(s, &at, g), at.unit, reason, 0};
			run.tag = page_at(s, g, run.page)->tag;
			page_leave(p, &run);
			cursor_next(s, &at);
		}
	}
	table_shrink(s, x, units_left);
}

void pages_floor_set(struct sched *s, uint32_t session, uint32_t floor)
{
	struct session *x = session_at(s, session);
	uint32_t low = floor < x->floor ? floor : x->floor, high = floor < x->floor ? x->floor : floor;
	if (high > x->units)
		high = x->units;
	for (uint32_t g = 0; g < s->limits.group_count && low < high; g++) {
		struct cursor at = cursor_at(s, session, low);
		for (; at.unit < high; cursor_next(s, &at)) {
			struct page *page = page_at(s, g, cursor_page(s, &at, g));
			if (g == 0)
				s->yielding_units -= (uint32_t)page_yields(page);
			if (floor < x->floor)
				page->yielding++;
			else
				page->yielding--;
			if (g == 0)
				s->yielding_units += (uint32_t)page_yields(page);
		}
	}
	x->floor = floor;
}

void pages_durable(struct sched *s, uint64_t step)
{
	for (uint32_t g = 0; g < s->limits.group_count; g++) {
		struct chain *doomed = &s->page_doomed[g];
		while (doomed->count && page_at(s, g, doomed->first)->doom_step <= step) {
			uint32_t page = page_pop(s, doomed, g);
			CHECK(page_at(s, g, page)->state == PAGE_DOOMED);
			page_at(s, g, page)->state = PAGE_FREE;
			page_push(s, &s->page_free[g], g, page);
			ledger_move(s, ACCOUNT_DEVICE, COLUMN_DOOMED, COLUMN_FREE,
				    s->limits.group[g].page_bytes);
		}
	}
}
