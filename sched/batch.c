/*
 * Batches: what is computed next, and what came of it. One is in flight at a time.
 *
 * Every decoding turn with room in its stream has one row; prefill chunks fill what is left, in the
 * order that order.c gives. Rows are planned first, then pages are made free for all of
 * them at once, then each entry gets what there is: a turn whose pages are not durable yet is cut
 * short or left out, and comes again with the next batch.
 */
#include "sched/state.h"

static void pause_tell(struct step *p, uint32_t turn)
{
	struct turn *t = turn_at(p->s, turn);
	if (t->paused)
		return;
	t->paused = 1;
	(void)effect_of_turn(p, EFFECT_PAUSED, turn);
}

/* Rows that the turn could compute, without regard to others; 0 tells that it stands still. */
static uint32_t rows_wanted(const struct sched *s, const struct turn *t)
{
	const struct session *x = session_at(s, t->session);
	uint32_t rows = x->history - x->resident;
	CHECK(rows > 0);
	/* Without room in the stream nothing is sampled: the last row waits. */
	if (t->sampled >= t->credit)
		rows--;
	return rows;
}

static void plan_add(struct sched *s, uint32_t turn, uint32_t rows, enum phase phase)
{
	const struct session *x = session_at(s, turn_at(s, turn)->session);
	struct flight *f = flight_at(s, s->flight_count++);
	f->turn = turn;
	f->position = x->resident;
	f->rows = rows;
	f->sample = 0;
	f->phase = phase;
	uint32_t units = units_of(s, (uint64_t)x->resident + rows);
	f->wanted = units > x->units ? units - x->units : 0;
	CHECK(f->wanted <= turn_at(s, turn)->promised); /* what is promised is enough, again */
}

/* Of the rows, those that the turn has or is promised pages for. Told once when there are none: the
   turn waits until an older one has ended. */
static uint32_t rows_covered(struct step *p, uint32_t turn, uint32_t rows)
{
	struct sched *s = p->s;
	struct turn *t = turn_at(s, turn);
	const struct session *x = session_at(s, t->session);
	uint32_t units = units_of(s, (uint64_t)x->resident + rows);
	if (units <= x->units)
		return rows;
	uint64_t have = (uint64_t)x->units + claim_promise(s, turn, units - x->units);
	uint64_t reach = have * s->limits.page_tokens - x->resident;
	if (reach > 0) {
		t->stalled = 0;
		return rows < reach ? rows : (uint32_t)reach;
	}
	if (!t->stalled) {
		struct effect *told = effect_of_turn(p, EFFECT_WAIT, turn);
		told->as.wait.why = WAIT_PAGES;
		told->as.wait.blocker = turn_at(s, s->running.first)->session;
		told->as.wait.short_bytes = s->unit_bytes;
	}
	t->stalled = 1;
	return 0;
}

static int turn_decodes(const struct sched *s, const struct turn *t)
{
	const struct session *x = session_at(s, t->session);
	return t->sampled > 0 && x->resident + 1 == x->history;
}

static uint32_t prefill_rows(struct step *p, uint32_t turn, uint32_t left)
{
	const struct sched *s = p->s;
	uint32_t rows = rows_wanted(s, turn_at(s, turn));
	if (rows == 0) {
		pause_tell(p, turn);
		return 0;
	}
	if (rows > s->limits.chunk_tokens)
		rows = s->limits.chunk_tokens;
	return rows_covered(p, turn, rows < left ? rows : left);
}

static void plan(struct step *p)
{
	struct sched *s = p->s;
	uint32_t left = s->limits.batch_rows, turn;
	s->flight_count = 0;
	for (turn = s->running.first; turn != SCHED_NONE; turn = turn_at(s, turn)->link.next) {
		struct turn *t = turn_at(s, turn);
		if (t->loading)
			t->planned = s->step; /* its pages are on the way */
		if (t->loading || !turn_decodes(s, t))
			continue;
		t->planned = s->step;
		if (rows_wanted(s, t) == 0) {
			pause_tell(p, turn);
			continue;
		}
		CHECK(left > 0); /* batch_rows is at least batch_turns */
		if (rows_covered(p, turn, 1) == 0)
			continue;
		plan_add(s, turn, 1, PHASE_DECODE);
		left--;
	}
	left = order_prefill_rows(s, s->limits.batch_rows - left);
	s->prefill_planned = 0;
	while (left > 0 && (turn = order_prefill(s, s->step)) != SCHED_NONE) {
		turn_at(s, turn)->planned = s->step;
		if (turn_decodes(s, turn_at(s, turn)))
			continue;
		uint32_t rows = prefill_rows(p, turn, left);
		if (rows == 0)
			continue;
		plan_add(s, turn, rows, PHASE_PREFILL);
		s->prefill_planned += rows;
		left -= rows;
	}
}

/* Pages to be made free now. Where they are held until they are durable, the next batch's pages
   are given up one batch ahead, so that a turn rarely stands still for a record. */
static struct wanted pages_wanted(const struct sched *s)
{
	struct wanted wanted = {0, {0}};
	for (uint32_t i = 0; i < s->flight_count; i++) {
		const struct flight *f = flight_at(s, i);
		const struct turn *t = turn_at(s, f->turn);
		uint32_t ahead = t->promised - f->wanted;
		uint32_t ahead_max = s->limits.hold_until_durable ? units_of(s, f->rows) : 0;
		wanted.units += f->wanted + (ahead < ahead_max ? ahead : ahead_max);
		for (uint32_t g = 0; s->windowed && g < s->limits.group_count; g++) {
			if (!window_of(s, g))
				continue;
			uint32_t left = t->need[g] - window_held(s, t->session, g);
			CHECK(f->wanted <= left); /* what is reserved is enough, again */
			left -= f->wanted;
			wanted.pages[g] += f->wanted + (left < ahead_max ? left : ahead_max);
		}
	}
	CHECK(wanted.units <= s->promised_units);
	return wanted;
}

/* Assigns the entry's pages, as far as there are any; returns the rows that have pages. */
static uint32_t flight_assign(struct step *p, const struct flight *f)
{
	struct sched *s = p->s;
	struct turn *t = turn_at(s, f->turn);
	const struct session *x = session_at(s, t->session);
	uint32_t units = pages_free_units(s), rows = f->rows;
	if (units > f->wanted)
		units = f->wanted;
	uint64_t reach = ((uint64_t)x->units + units) * s->limits.page_tokens - x->resident;
	if (rows > reach)
		rows = (uint32_t)reach;
	if (units) {
		pages_assign(p, t->session, units);
		t->promised -= units;
		t->claim -= units;
		s->promised_units -= units;
	}
	return rows;
}

void batch_issue(struct step *p)
{
	struct sched *s = p->s;
	uint32_t kept = 0, row_count = 0, planned;
	if (s->batch || s->running.count == 0)
		return;
	plan(p);
	struct wanted wanted = pages_wanted(s);
	retain_reclaim(p, &wanted);
	planned = s->flight_count;
	for (uint32_t i = 0; i < planned; i++) {
		struct flight f = *flight_at(s, i);
		struct turn *t = turn_at(s, f.turn);
		f.rows = flight_assign(p, &f);
		if (f.rows == 0)
			continue;
		f.sample = f.position + f.rows == session_at(s, t->session)->history;
		if (f.sample)
			CHECK(t->sampled < t->credit);
		t->in_flight = 1;
		*flight_at(s, kept) = f;
		CHECK(kept < p->out->entry_capacity);
		struct batch_entry *entry = &p->out->entries[kept++];
		entry->turn = f.turn;
		entry->session = t->session;
		entry->position_first = f.position;
		entry->row_count = f.rows;
		entry->sample = f.sample;
		entry->phase = f.phase;
		row_count += f.rows;
	}
	s->flight_count = kept;
	p->out->entry_count = kept;
	if (kept == 0)
		return;
	CHECK(row_count <= s->limits.batch_rows);
	s->batch = s->batch_next++;
	struct effect *told = effect_add(p->out, EFFECT_BATCH);
	told->as.batch.batch = s->batch;
	told->as.batch.entry_count = kept;
	told->as.batch.row_count = row_count;
}

/* What came of it. */

/* The result names a slot of the device. */
static uint32_t bad_page(const struct sched *s, const struct batch_result *r)
{
	return *slot_page(s, r->group, PLACE_DEVICE, r->page);
}

static void owner_cut(struct step *p, uint32_t session, uint32_t unit)
{
	struct sched *s = p->s;
	struct session *x = session_at(s, session);
	uint32_t before = x->resident;
	session_units_cut(p, session, unit, LOST_QUARANTINE);
	if (x->state == SESSION_RUNNING) {
		turn_at(s, x->turn)->end = END_INTEGRITY;
		turn_at(s, x->turn)->err = ERR_INTEGRITY;
	} else {
		effect_lost(p, session, before, LOST_QUARANTINE, PLACE_TOKENS);
		rest_settle(s, session, 0);
	}
}

/* Where a page did not match: everyone who owns it loses it and all that was built on it. The owners
   are of one principal, or anybody if it is public. */
static void integrity_cut(struct step *p, uint32_t session, uint32_t group, uint32_t page)
{
	struct sched *s = p->s;
	uint32_t unit = page_at(s, group, page)->unit, member = session;
	int all = page_at(s, group, page)->principal + 1 == s->limits.public_principal;
	for (uint32_t i = 0; all && i < s->limits.session_count; i++)
		if (session_at(s, i)->state != SESSION_FREE && session_owns(s, i, group, page))
			owner_cut(p, i, unit);
	do {
		if (!all && session_owns(s, member, group, page))
			owner_cut(p, member, unit);
		member = session_at(s, member)->family.next;
	} while (member != session);
}

static void result_take(struct step *p, const struct flight *f, const struct batch_result *r)
{
	struct sched *s = p->s;
	struct turn *t = turn_at(s, f->turn);
	struct session *x = session_at(s, t->session);
	CHECK(x->resident == f->position);
	x->resident += r->computed;
	prefix_enter(s, f->turn, f->position / s->limits.page_tokens, x->resident / s->limits.page_tokens);
	order_work(s, x->principal, r->computed);
	if (f->phase == PHASE_PREFILL)
		principal_at(s, x->principal)->prompt_rows += r->computed;
	if (x->known < x->resident)
		x->known = x->resident;
	if (r->sampled) {
		CHECK(f->sample);
		CHECK(r->computed == f->rows);
		CHECK(r->sampled <= s->limits.context_tokens - x->history);
		CHECK(r->sampled <= t->output_max - t->sampled);
		CHECK(r->sampled <= t->credit - t->sampled);
		if (t->sampled == 0)
			t->first_us = s->now_us;
		x->history += r->sampled;
		t->sampled += r->sampled;
	}
	enum end end = (enum end)r->end;
	if (end == END_NONE && t->sampled == t->output_max)
		end = END_LIMIT;
	else if (end == END_NONE && x->history == s->limits.context_tokens)
		end = END_CONTEXT;
	/* All computed, nothing sampled, and it is to go on: there would be no next row. */
	if (end == END_NONE)
		CHECK(x->resident < x->history);
	if (end == END_INTEGRITY || end == END_FAULT || t->end == END_NONE) {
		t->end = end;
		t->err = (uint32_t)end_err(end);
	}
}

static void results_check(const struct step *p)
{
	const struct sched *s = p->s;
	CHECK(s->batch != 0);
	CHECK(p->event->as.batch.batch == s->batch);
	CHECK(p->event->as.batch.result_count == s->flight_count);
	for (uint32_t i = 0; i < s->flight_count; i++) {
		const struct batch_result *r = &p->results[i];
		CHECK(r->turn == flight_at(s, i)->turn);
		CHECK(r->computed <= flight_at(s, i)->rows);
		CHECK(r->end <= END_FAULT);
		CHECK(r->end != END_REFUSED);
		if (r->end == END_INTEGRITY)
			CHECK(session_owns(s, turn_at(s, r->turn)->session, r->group, bad_page(s, r)));
	}
}

void on_batch_done(struct step *p)
{
	struct sched *s = p->s;
	uint32_t count = s->flight_count, next;
	results_check(p);
	order_measure(s, p->event->as.batch.measured_us);
	/* In this order: all rows are taken while every table still is as the batch saw it; then bad
	   pages are marked, all of them before the first is cut, since one cut may free another. */
	for (uint32_t i = 0; i < count; i++) {
		turn_at(s, flight_at(s, i)->turn)->in_flight = 0;
		result_take(p, flight_at(s, i), &p->results[i]);
	}
	s->batch = 0;
	s->flight_count = 0;
	for (uint32_t i = 0; i < count; i++)
		if (p->results[i].end == END_INTEGRITY)
			page_at(s, p->results[i].group, bad_page(s, &p->results[i]))->bad = PAGE_BAD;
	for (uint32_t i = 0; i < count; i++) {
		const struct batch_result *r = &p->results[i];
		if (r->end == END_INTEGRITY && page_at(s, r->group, bad_page(s, r))->bad == PAGE_BAD)
			integrity_cut(p, turn_at(s, r->turn)->session, r->group, bad_page(s, r));
	}
	for (uint32_t i = 0; i < count; i++)
		window_trim(p, turn_at(s, p->results[i].turn)->session);
	for (uint32_t turn = s->running.first; turn != SCHED_NONE; turn = next) {
		const struct turn *t = turn_at(s, turn);
		next = t->link.next;
		if (t->end != END_NONE)
			turn_end(p, turn, (enum end)t->end, (int)t->err);
	}
	/* A slab with less pages may not hold what was counted on. */
	for (uint32_t turn = claim_excess(s); turn != SCHED_NONE; turn = claim_excess(s)) {
		s->counts.forced_recomputes++;
		turn_end(p, turn, END_FAULT, ERR_NO_PAGES);
	}
}
