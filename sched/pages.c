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

uint32_t page_pop(struct sched *s, struct chain *chain, uint32_t group)
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
		uint32_t page = 0;
		chain_clear(&s->page_doomed[g]);
		for (uint32_t place = 0; place < PLACE_COUNT; place++) {
			chain_clear(&s->page_free[place][g]);
			for (uint32_t slot = 0; slot < s->limits.group[g].page_count[place]; slot++, page++) {
				page_at(s, g, page)->place = (uint8_t)place;
				page_at(s, g, page)->slot = slot;
				*slot_page(s, g, (enum place)place, slot) = page;
				page_push(s, &s->page_free[place][g], g, page);
			}
		}
	}
	for (uint32_t chunk = 0; chunk < s->chunk_count; chunk++)
		chunk_at(s, chunk)[1] = chunk + 1 < s->chunk_count ? chunk + 1 : SCHED_NONE;
	s->chunk_free = 0;
}

/* Counts. */

uint32_t pages_free_units(const struct sched *s)
{
	uint32_t units = s->page_free[PLACE_DEVICE][0].count;
	for (uint32_t g = 1; g < s->limits.group_count; g++) /* with a window or not */
		if (s->page_free[PLACE_DEVICE][g].count < units)
			units = s->page_free[PLACE_DEVICE][g].count;
	return units;
}

uint32_t pages_coming(const struct sched *s, uint32_t group)
{
	return s->page_free[PLACE_DEVICE][group].count + s->page_doomed[group].count + s->page_leaving[group];
}

uint32_t pages_coming_units(const struct sched *s)
{
	uint32_t units = 0xffffffffu;
	for (uint32_t g = 0; g < s->limits.group_count; g++)
		if (!window_of(s, g) && pages_coming(s, g) < units)
			units = pages_coming(s, g);
	return units;
}

int pages_room(const struct sched *s, const struct cursor *at, enum place place)
{
	for (uint32_t g = 0; g < s->limits.group_count; g++) {
		uint32_t page = cursor_page(s, at, g);
		if (page != SCHED_NONE && page_at(s, g, page)->place != place &&
		    s->page_free[place][g].count == 0)
			return 0;
	}
	return 1;
}

uint32_t pages_total_units(const struct sched *s)
{
	uint32_t units = 0xffffffffu;
	for (uint32_t g = 0; g < s->limits.group_count; g++)
		if (!window_of(s, g) && window_total(s, g) < units)
			units = window_total(s, g);
	return units;
}

int page_yields(const struct page *page)
{
	return page->place == PLACE_DEVICE && page->owners > 0 && page->yielding == page->owners;
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

uint32_t *cursor_entry(const struct sched *s, const struct cursor *at, uint32_t group)
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

void table_grow(struct sched *s, struct session *x, uint32_t units)
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

/* Adds to the last effect if pages, tags and positions all count on, so that one record is enough. */
void run_emit(struct step *p, const struct run *run)
{
	struct effect *last = p->out->count ? &p->out->list[p->out->count - 1] : NULL;
	const struct page *page = page_at(p->s, run->group, run->page);
	uint32_t position = run->unit * p->s->limits.page_tokens;
	if (last && last->kind == run->kind && last->session == run->session &&
	    last->as.run.group == run->group && last->as.run.reason == run->reason &&
	    last->as.run.place == page->place &&
	    last->as.run.page_first + last->as.run.page_count == page->slot &&
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
	effect->as.run.page_first = page->slot;
	effect->as.run.page_count = 1;
	effect->as.run.position_first = position;
	effect->as.run.place = page->place;
	effect->as.run.reason = run->reason;
}

static const enum account account_of[PLACE_COUNT] = {ACCOUNT_DEVICE, ACCOUNT_HOST, ACCOUNT_DISK};

static enum column column_of(const struct sched *s, const struct page *page)
{
	if (page->moving)
		return COLUMN_MOVING;
	if (page->owners > 1)
		return COLUMN_SHARED;
	return page->place == PLACE_DEVICE && session_at(s, page->owner_xor)->state == SESSION_RUNNING
		? COLUMN_RUNNING : COLUMN_RETAINED;
}

/* Counts a page with one owner for it, or not any more; `sign` is 1 or -1. */
void sole_count(struct sched *s, uint32_t group, const struct page *page, int sign)
{
	struct session *x = session_at(s, page->owner_xor);
	uint64_t bytes = s->limits.group[group].page_bytes;
	CHECK(page->owners == 1);
	if (group == 0)
		x->at[page->place] += (uint32_t)sign;
	if (group == 0 && page->place == PLACE_DEVICE && sign > 0 && x->edge <= page->unit)
		x->edge = page->unit + 1;
	if (page->place == PLACE_DEVICE && !page->moving)
		x->here_bytes += sign > 0 ? bytes : -bytes;
}

static void device_bytes(struct sched *s, const struct page *page, uint32_t group, int sign)
{
	uint64_t bytes = s->limits.group[group].page_bytes, *sum = &principal_at(s, page->principal)->bytes;
	if (page->place != PLACE_DEVICE)
		return;
	CHECK(sign > 0 || *sum >= bytes);
	*sum += sign > 0 ? bytes : -bytes;
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
			uint32_t index = page_pop(s, &s->page_free[PLACE_DEVICE][g], g);
			struct page *page = page_at(s, g, index);
			CHECK(page->state == PAGE_FREE);
			CHECK(page->owners == 0);
			page->tag = s->tag_next++;
			page->unit = at.unit;
			page->owners = 1;
			page->yielding = 0;
			page->owner_xor = session;
			page->principal = x->principal;
			page->state = PAGE_OWNED;
			*cursor_entry(s, &at, g) = index;
			CHECK(page->place == PLACE_DEVICE);
			ledger_move(s, ACCOUNT_DEVICE, COLUMN_FREE, COLUMN_RUNNING,
				    s->limits.group[g].page_bytes);
			device_bytes(s, page, g, 1);
			sole_count(s, g, page, 1);
			struct run run = {EFFECT_ASSIGN, session, g, index, at.unit, 0, page->tag};
			run_emit(p, &run);
		}
	}
}

void pages_share(struct step *p, uint32_t from, uint32_t to, uint32_t units)
{
	struct sched *s = p->s;
	struct session *x = session_at(s, to), *holder = session_at(s, from);
	uint32_t first = x->units;
	CHECK(x->sole == 0); /* so owners of a unit stay among those of the unit before it */
	CHECK(units - first <= s->share_max - s->share_extra);
	table_grow(s, x, units);
	x->edge = units;
	holder->edge = holder->edge > units ? holder->edge : units;
	s->share_extra += units - first;
	for (uint32_t g = 0; g < s->limits.group_count; g++) {
		struct cursor source = cursor_at(s, from, first), at = cursor_at(s, to, first);
		if (first == 0)
			x->low[g] = units ? holder->low[g] : 0;
		for (uint32_t i = first; i < units; i++, cursor_next(s, &source), cursor_next(s, &at)) {
			uint32_t index = cursor_page(s, &source, g);
			*cursor_entry(s, &at, g) = index;
			if (index == SCHED_NONE)
				continue;
			struct page *page = page_at(s, g, index);
			CHECK(page->state == PAGE_OWNED);
			if (page->principal + 1 != s->limits.public_principal)
				CHECK(page->principal == x->principal); /* I2 */
			enum column before = column_of(s, page);
			if (page->owners == 1) {
				sole_count(s, g, page, -1);
				if (g == 0)
					session_at(s, page->owner_xor)->sole--;
			}
			uint32_t yielded = (uint32_t)page_yields(page);
			page->owners++;
			page->yielding += i >= x->floor;
			page->owner_xor ^= to;
			if (g == 0)
				s->yielding_units -= yielded - (uint32_t)page_yields(page);
			ledger_move(s, account_of[page->place], before, column_of(s, page),
				    s->limits.group[g].page_bytes);
			struct run run = {EFFECT_SHARE, to, g, index, i, 0, page->tag};
			run_emit(p, &run);
		}
	}
}

static void page_release(struct step *p, const struct run *run, enum column from)
{
	struct sched *s = p->s;
	struct page *page = page_at(s, run->group, run->page);
	uint64_t bytes = s->limits.group[run->group].page_bytes;
	struct run told = *run;
	enum column to = COLUMN_FREE;
	device_bytes(s, page, run->group, -1);
	if (page->moving) {
		page->moving = 0;
		page->bad = 0;
		page->state = PAGE_MOVING; /* until the copy is done that fills it */
		page->doom_step = s->step;
		s->page_leaving[run->group] += page->place == PLACE_DEVICE;
		to = COLUMN_MOVING;
	} else if (page->bad == PAGE_BAD) {
		page->state = PAGE_QUARANTINED;
		page->bad = 0;
		s->page_quarantined[run->group]++;
		told.kind = EFFECT_QUARANTINE;
		to = COLUMN_DOOMED;
	} else if (s->limits.hold_until_durable && page->place == PLACE_DEVICE) {
		page->state = PAGE_DOOMED;
		page->bad = 0;
		page->doom_step = s->step;
		page_push(s, &s->page_doomed[run->group], run->group, run->page);
		to = COLUMN_DOOMED;
	} else {
		page->state = PAGE_FREE;
		page->bad = 0;
		page_push(s, &s->page_free[page->place][run->group], run->group, run->page);
	}
	ledger_move(s, account_of[page->place], from, to, bytes);
	run_emit(p, &told);
}

static void page_leave(struct step *p, const struct run *run)
{
	struct sched *s = p->s;
	struct session *x = session_at(s, run->session);
	struct page *page = page_at(s, run->group, run->page);
	int lead = run->group == 0, yielded = page_yields(page);
	enum column before = column_of(s, page);
	CHECK(page->state == PAGE_OWNED);
	CHECK(page->owners > 0);
	CHECK(page->unit == run->unit);
	if (page->owners == 1)
		sole_count(s, run->group, page, -1);
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
	if (page->owners == 0) {
		if (lead)
			prefix_remove(s, run->page);
		page_release(p, run, before);
		return;
	}
	if (page->owners == 1) {
		sole_count(s, run->group, page, 1);
		if (lead)
			session_at(s, page->owner_xor)->sole++;
	}
	ledger_move(s, account_of[page->place], before, column_of(s, page),
		    s->limits.group[run->group].page_bytes);
}

/* Moves. */

void slots_trade(struct sched *s, uint32_t group, uint32_t a, uint32_t b)
{
	struct page *x = page_at(s, group, a), *y = page_at(s, group, b);
	uint32_t slot = x->slot;
	uint8_t place = x->place;
	x->slot = y->slot;
	x->place = y->place;
	y->slot = slot;
	y->place = place;
	*slot_page(s, group, (enum place)x->place, x->slot) = a;
	*slot_page(s, group, (enum place)y->place, y->slot) = b;
}

static void page_move(struct step *p, uint32_t session, uint32_t group, uint32_t index, enum place to)
{
	struct sched *s = p->s;
	struct page *page = page_at(s, group, index);
	uint32_t other = page_pop(s, &s->page_free[to][group], group);
	struct page *target = page_at(s, group, other);
	uint64_t bytes = s->limits.group[group].page_bytes;
	const struct session *x = session_at(s, session);
	enum column before = column_of(s, page);
	struct effect *told = effect_of_session(p, EFFECT_COPY, session);
	CHECK(page->state == PAGE_OWNED);
	CHECK(!page->moving);
	if (page->owners == 1)
		sole_count(s, group, page, -1);
	device_bytes(s, page, group, -1);
	told->as.copy.group = group;
	told->as.copy.place_from = page->place;
	told->as.copy.page_from = page->slot;
	told->as.copy.tag_from = page->tag;
	ledger_move(s, account_of[page->place], before, COLUMN_MOVING, bytes);
	ledger_move(s, account_of[to], COLUMN_FREE, COLUMN_MOVING, bytes);
	slots_trade(s, group, index, other);
	page->moving = 1;
	page->tag = s->tag_next++;
	page->partner = other;
	target->state = PAGE_MOVING;
	target->partner = index;
	target->copy = (uint32_t)s->copy_next;
	target->doom_step = s->step;
	s->page_leaving[group] += target->place == PLACE_DEVICE;
	s->copies++;
	device_bytes(s, page, group, 1);
	if (page->owners == 1)
		sole_count(s, group, page, 1);
	told->as.copy.place_to = to;
	told->as.copy.page_to = page->slot;
	told->as.copy.tag_to = page->tag;
	told->as.copy.copy = s->copy_next++ << 28 | (uint64_t)group << 26 | other;
	uint32_t first = page->unit * s->limits.page_tokens, left = x->resident - first;
	told->as.copy.tokens = left < s->limits.page_tokens ? left : s->limits.page_tokens;
	told->as.copy.position_first = first;
}

/* Moves the session's unit, in all groups, to a place with room. Whoever else owns it finds it there.
   A page of a group with a window may be there already: another owner of the unit, without that page,
   moved the rest. Returns how many of the moved pages have no other owner. */
uint32_t pages_move(struct step *p, uint32_t session, uint32_t unit, enum place to)
{
	struct sched *s = p->s;
	struct cursor at = cursor_at(s, session, unit);
	uint32_t alone = 0;
	CHECK(pages_room(s, &at, to));
	const struct page *lead = page_at(s, 0, cursor_page(s, &at, 0));
	s->yielding_units -= (uint32_t)page_yields(lead);
	for (uint32_t g = 0; g < s->limits.group_count; g++) {
		uint32_t page = cursor_page(s, &at, g);
		if (page == SCHED_NONE || page_at(s, g, page)->place == to)
			continue;
		alone += page_at(s, g, page)->owners == 1;
		page_move(p, session, g, page, to);
	}
	s->yielding_units += (uint32_t)page_yields(lead);
	return alone;
}

/* A page whose slot nobody needs any more. */
static void page_arrived_free(struct sched *s, uint32_t group, uint32_t index)
{
	struct page *page = page_at(s, group, index);
	enum column to = COLUMN_FREE;
	CHECK(page->state == PAGE_MOVING);
	if (page->place == PLACE_DEVICE)
		s->page_leaving[group]--;
	/* The record of its release is that of the step in which the copy began, or its owners left. */
	if (page->place == PLACE_DEVICE && s->limits.hold_until_durable && page->doom_step > s->durable) {
		const struct chain *doomed = &s->page_doomed[group];
		page->state = PAGE_DOOMED;
		/* The list is in order of these: behind the last one, which has a record too. */
		if (doomed->count && page_at(s, group, doomed->last)->doom_step > page->doom_step)
			page->doom_step = page_at(s, group, doomed->last)->doom_step;
		page_push(s, &s->page_doomed[group], group, index);
		to = COLUMN_DOOMED;
	} else {
		page->state = PAGE_FREE;
		page_push(s, &s->page_free[page->place][group], group, index);
	}
	ledger_move(s, account_of[page->place], COLUMN_MOVING, to, s->limits.group[group].page_bytes);
}

void on_copy_done(struct step *p)
{
	struct sched *s = p->s;
	uint64_t copy = p->event->as.copy.copy;
	uint32_t group = (uint32_t)(copy >> 26 & 3), other = (uint32_t)(copy & 0x3ffffff);
	CHECK(s->copies > 0); /* R2 */
	CHECK(group < s->limits.group_count);
	CHECK(other < pages_of_group(s, group));
	struct page *source = page_at(s, group, other);
	CHECK(source->state == PAGE_MOVING);
	uint32_t index = source->partner;
	struct page *page = page_at(s, group, index);
	CHECK(source->copy == (uint32_t)(copy >> 28));
	CHECK(page->partner == other);
	s->copies--;
	page_arrived_free(s, group, other);
	if (page->state == PAGE_MOVING) {
		page_arrived_free(s, group, index); /* its owners left meanwhile */
		return;
	}
	if (page->owners == 1)
		sole_count(s, group, page, -1);
	page->moving = 0;
	if (p->event->as.copy.err)
		page->bad = PAGE_LOST;
	p->look = page->bad || page->owners > 1;
	if (page->owners == 1 && page->place == PLACE_DEVICE &&
	    session_at(s, page->owner_xor)->state == SESSION_RUNNING) {
		struct turn *t = turn_at(s, session_at(s, page->owner_xor)->turn);
		t->arriving -= t->arriving > 0;
	}
	ledger_move(s, account_of[page->place], COLUMN_MOVING, column_of(s, page),
		    s->limits.group[group].page_bytes);
	if (page->owners == 1)
		sole_count(s, group, page, 1);
}

void pages_drop(struct step *p, uint32_t session, uint32_t units_left, enum lost_why reason)
{
	struct sched *s = p->s;
	struct session *x = session_at(s, session);
	CHECK(units_left <= x->units);
	/* I10: the batch in flight may read any page of its sessions. */
	if (units_left < x->units && x->turn != SCHED_NONE)
		CHECK(!turn_at(s, x->turn)->in_flight);
	prefix_leave(s, session, units_left);
	window_kept_count(s, x, -1);
	for (uint32_t g = 0; g < s->limits.group_count; g++) {
		CHECK(units_left == 0 || units_left >= x->low[g]);
		struct cursor at = cursor_at(s, session, units_left > x->low[g] ? units_left : x->low[g]);
		while (at.unit < x->units) {
			struct run run = {EFFECT_FREE, session, g, cursor_page(s, &at, g), at.unit, reason, 0};
			run.tag = page_at(s, g, run.page)->tag;
			page_leave(p, &run);
			cursor_next(s, &at);
		}
	}
	table_shrink(s, x, units_left);
	if (x->edge > x->units)
		x->edge = x->units;
	for (uint32_t g = 0; units_left == 0 && g < s->limits.group_count; g++)
		x->low[g] = 0;
	window_kept_count(s, x, 1);
}

/* The group's pages before the unit `low` go: the session runs, and will never look at them again. */
void pages_trim(struct step *p, uint32_t session, uint32_t group, uint32_t low)
{
	struct sched *s = p->s;
	struct session *x = session_at(s, session);
	CHECK(window_of(s, group));
	CHECK(low <= x->units);
	CHECK(x->floor == FLOOR_ALL);
	CHECK(!turn_at(s, x->turn)->in_flight); /* I10 */
	struct cursor at = cursor_at(s, session, x->low[group]);
	for (; at.unit < low; cursor_next(s, &at)) {
		struct run run = {EFFECT_FREE, session, group, cursor_page(s, &at, group), at.unit, 0, 0};
		run.tag = page_at(s, group, run.page)->tag;
		page_leave(p, &run);
		*cursor_entry(s, &at, group) = SCHED_NONE;
	}
	x->low[group] = low;
}

void pages_floor_set(struct sched *s, uint32_t session, uint32_t floor)
{
	struct session *x = session_at(s, session);
	uint32_t low = floor < x->floor ? floor : x->floor, high = floor < x->floor ? x->floor : floor;
	if (high > x->units)
		high = x->units;
	window_kept_count(s, x, -1);
	for (uint32_t g = 0; g < s->limits.group_count && low < high; g++) {
		struct cursor at = cursor_at(s, session, low > x->low[g] ? low : x->low[g]);
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
	window_kept_count(s, x, 1);
}

void pages_durable(struct sched *s, uint64_t step)
{
	for (uint32_t g = 0; g < s->limits.group_count; g++) {
		struct chain *doomed = &s->page_doomed[g];
		while (doomed->count && page_at(s, g, doomed->first)->doom_step <= step) {
			uint32_t page = page_pop(s, doomed, g);
			CHECK(page_at(s, g, page)->state == PAGE_DOOMED);
			page_at(s, g, page)->state = PAGE_FREE;
			page_push(s, &s->page_free[PLACE_DEVICE][g], g, page);
			ledger_move(s, ACCOUNT_DEVICE, COLUMN_DOOMED, COLUMN_FREE,
				    s->limits.group[g].page_bytes);
		}
	}
}
