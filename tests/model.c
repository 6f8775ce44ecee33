/*
 * The plain model: what each event means for tokens and turns, and what each effect does to pages.
 * Arrays, loops, no cleverness. model_check.c holds the result against the views.
 */
#include "tests/model.h"

#include <string.h>

__attribute__((noinline)) void model_fail(struct model *m, const char *rule)
{
	if (!m->failure)
		m->failure = rule;
}

uint32_t model_units(const struct model *m, uint64_t tokens)
{
	return (uint32_t)((tokens + m->limits.page_tokens - 1) / m->limits.page_tokens);
}

/* Tables that a page is in. */
uint32_t model_owners(const struct model *m, uint32_t group, uint32_t page)
{
	uint32_t owners = 0;
	for (uint32_t i = 0; i < SIM_SESSIONS; i++)
		for (uint32_t u = m->session[i].low[group];
		     m->session[i].open && u < m->session[i].unit_count[group]; u++)
			owners += m->session[i].unit[group][u] == page;
	return owners;
}

void model_open(struct model *m, struct sched *s, const struct sched_limits *limits)
{
	memset(m, 0, sizeof *m);
	m->s = s;
	m->limits = *limits;
	m->next_token = 1;
	m->next_tag = 1;
	for (uint32_t i = 0; i < SIM_SESSIONS; i++)
		m->session[i].turn = m->session[i].next = SCHED_NONE;
}

uint32_t model_turn_by_index(const struct model *m, uint32_t index)
{
	for (uint32_t i = 0; i < MODEL_TURNS; i++)
		if (m->turn[i].live && m->turn[i].index == index)
			return i;
	return SCHED_NONE;
}

static uint32_t turn_by_key(const struct model *m, uint64_t key)
{
	for (uint32_t i = 0; i < MODEL_TURNS; i++)
		if (m->turn[i].live && m->turn[i].key == key)
			return i;
	return SCHED_NONE;
}

/* A token's hash covers all before it, so equal hashes mean equal histories. */
static void history_append(struct model *m, struct model_session *x, uint32_t count)
{
	for (uint32_t i = 0; i < count; i++) {
		uint64_t before = x->history ? x->token[x->history - 1] : 0;
		x->token[x->history] = (before + m->next_token++) * 0x9e3779b97f4a7c15u;
		x->ever[x->history++] = 0;
	}
}

static void prompt_append(struct model_session *x, const struct model_turn *t)
{
	for (uint32_t i = 0; i < t->append; i++) {
		uint64_t before = x->history ? x->token[x->history - 1] : 0;
		x->token[x->history] = model_token(before, t->key, x->history);
		x->ever[x->history++] = 0;
	}
}

/* Shared units go without an effect: the table is cut with what is resident. The FREE effects of
   those that had no other owner follow, and are held against what stood there. */
static void table_cut(struct model *m, struct model_session *x, uint32_t tokens)
{
	for (uint32_t g = 0; g < m->limits.group_count; g++) {
		if (x->unit_count[g] > model_units(m, tokens))
			x->unit_count[g] = model_units(m, tokens);
		if (tokens == 0)
			x->low[g] = 0;
	}
}

/* To so many tokens, or to none if a window is not whole there. */
static void units_cut(struct model *m, struct model_session *x, uint32_t tokens)
{
	uint32_t left = tokens < x->resident ? tokens : x->resident, usable = model_usable(m, x, left);
	x->resident = usable;
	table_cut(m, x, usable < left ? 0 : tokens);
}

static void resident_cut(struct model *m, struct model_session *x, uint32_t tokens)
{
	if (tokens >= x->resident)
		return;
	uint32_t part = tokens % m->limits.page_tokens;
	/* A page that others own too, or that is public, may not be written: it is given up from its start. */
	uint32_t page = part ? x->unit[0][tokens / m->limits.page_tokens] : 0;
	if (part && (model_owners(m, 0, page) > 1 || m->page[0][page].principal != x->principal))
		tokens -= part;
	x->resident = model_usable(m, x, tokens);
	table_cut(m, x, x->resident);
}

static void history_cut(struct model *m, struct model_session *x, uint32_t tokens)
{
	if (tokens < x->history)
		x->history = tokens;
	resident_cut(m, x, tokens);
}

/* The session gives up what a failed copy lost; returns how many tokens. */
static uint32_t mend(struct model *m, struct model_session *x)
{
	uint32_t lost = x->unit_count[0], before = x->resident, tokens = m->limits.page_tokens;
	for (uint32_t g = 0; g < m->limits.group_count; g++)
		for (uint32_t u = x->low[g]; u < x->unit_count[g] && u < lost; u++)
			if (m->page[g][x->unit[g][u]].lost)
				lost = u;
	if (lost == x->unit_count[0])
		return 0;
	units_cut(m, x, lost * tokens);
	return before - x->resident;
}

/* A running turn computes again what it lost. */
static void turn_mend(struct model *m, struct model_turn *t)
{
	uint32_t lost = mend(m, &m->session[t->session]);
	uint32_t part = lost < t->reloaded ? lost : t->reloaded;
	t->reloaded -= part;
	t->resident -= lost - part;
	t->recomputed += lost;
}

static void take_over(struct model *m, uint32_t turn)
{
	struct model_turn *t = &m->turn[turn];
	struct model_session *x = &m->session[t->session];
	x->turn = turn;
	(void)mend(m, x);
	history_cut(m, x, t->keep);
	prompt_append(x, t);
	resident_cut(m, x, x->history - 1);
}

static void turn_ending(struct model *m, uint32_t turn, uint32_t end)
{
	if (turn != SCHED_NONE && m->turn[turn].ending == END_NONE)
		m->turn[turn].ending = end;
}

/* Was this step's TURN refused? Then its END has no index. */
static int turn_refused(const struct model *m, const struct effects *out)
{
	for (uint32_t i = 0; i < out->count; i++)
		if (out->list[i].kind == EFFECT_END && out->list[i].turn == SCHED_NONE &&
		    out->list[i].turn_key == m->event.turn_key)
			return 1;
	return 0;
}

static void event_turn(struct model *m, const struct effects *out)
{
	const struct event *e = &m->event;
	struct model_session *x = &m->session[e->session];
	uint32_t turn = 0;
	if (turn_refused(m, out))
		return;
	turn_ending(m, x->next, END_SUPERSEDED);
	turn_ending(m, x->turn, END_SUPERSEDED);
	while (m->turn[turn].live)
		turn++;
	struct model_turn *t = &m->turn[turn];
	memset(t, 0, sizeof *t);
	t->live = 1;
	t->session = e->session;
	t->index = SCHED_NONE;
	t->key = e->turn_key;
	t->keep = e->as.turn.keep;
	t->append = e->as.turn.append;
	t->output_max = e->as.turn.output_max;
	t->credit = e->as.turn.credit;
	t->deadline_us = e->as.turn.deadline_us;
	t->key_first = e->as.turn.chain_first;
	t->key_end = e->as.turn.chain_first + e->as.turn.chain_count;
	t->arrived_us = e->now_us;
	t->arrival = ++m->arrivals;
	if (x->turn == SCHED_NONE)
		take_over(m, turn);
	else
		m->arriving = turn; /* takes its place when the others are out of the way */
}

/* Rows are written into the pages that the batch was issued with. */
static void result_apply(struct model *m, const struct batch_entry *entry, const struct batch_result *r)
{
	uint32_t turn = model_turn_by_index(m, entry->turn), page_tokens = m->limits.page_tokens;
	struct model_turn *t = &m->turn[turn];
	struct model_session *x = &m->session[t->session];
	t->in_flight = 0;
	for (uint32_t i = 0; i < r->computed; i++) {
		uint32_t position = entry->position_first + i;
		for (uint32_t g = 0; g < m->limits.group_count; g++)
			m->page[g][x->unit[g][position / page_tokens]].slot[position % page_tokens] =
				x->token[position];
		x->ever[position] = 1;
	}
	x->resident += r->computed;
	history_append(m, x, r->sampled);
	t->sampled += r->sampled;
	if (r->end == END_INTEGRITY || r->end == END_FAULT)
		t->ending = r->end;
	else if (t->ending == END_NONE && r->end != END_NONE)
		t->ending = r->end;
	else if (t->ending == END_NONE && t->sampled == t->output_max)
		t->ending = END_LIMIT;
	else if (t->ending == END_NONE && x->history == m->limits.context_tokens)
		t->ending = END_CONTEXT;
}

/* A bad page takes everything that was built on it, whoever owns it. */
static void integrity_apply(struct model *m, const struct batch_result *r)
{
	uint32_t page_tokens = m->limits.page_tokens;
	m->page[r->group][r->page].bad = 1;
	m->shrunk = 1;
	for (uint32_t i = 0; i < SIM_SESSIONS; i++) {
		struct model_session *x = &m->session[i];
		for (uint32_t u = x->low[r->group]; x->open && u < x->unit_count[r->group]; u++) {
			if (x->unit[r->group][u] != r->page)
				continue;
			units_cut(m, x, u * page_tokens);
			if (x->turn != SCHED_NONE && m->turn[x->turn].running)
				m->turn[x->turn].ending = END_INTEGRITY;
		}
	}
}

static void event_batch(struct model *m, const struct batch_result *results)
{
	for (uint32_t i = 0; i < m->entry_count; i++)
		result_apply(m, &m->entries[i], &results[i]);
	for (uint32_t i = 0; i < m->entry_count; i++)
		if (results[i].end == END_INTEGRITY)
			integrity_apply(m, &results[i]);
	/* What no row to come can see goes; the FREE effects are held against what stood there. */
	for (uint32_t i = 0; i < m->entry_count; i++)
		for (uint32_t g = 0; g < m->limits.group_count; g++) {
			struct model_session *x = &m->session[m->entries[i].session];
			if (model_low(m, g, x->resident) > x->low[g])
				x->low[g] = model_low(m, g, x->resident);
		}
	m->batch = 0;
	m->entry_count = 0;
}

static void page_freed(struct model *m, uint32_t id, struct model_page *page)
{
	page->state = m->limits.hold_until_durable && id < SIM_PAGES ? PAGE_DOOMED : PAGE_FREE;
	page->doom_step = m->step;
	page->lost = 0;
}

/* The copy is done that the page waited for: free when the record of its release is on disk, and not
   before those that were released earlier. */
static void page_arrived(struct model *m, uint32_t g, uint32_t id)
{
	struct model_page *page = &m->page[g][id];
	page->state = PAGE_FREE;
	page->lost = 0;
	if (id >= SIM_PAGES || !m->limits.hold_until_durable || page->doom_step <= m->durable)
		return;
	for (uint32_t i = 0; i < SIM_PAGES; i++)
		if (m->page[g][i].state == PAGE_DOOMED && m->page[g][i].doom_step > page->doom_step)
			page->doom_step = m->page[g][i].doom_step;
	page->state = PAGE_DOOMED;
}

static void event_copy(struct model *m, const struct event *e)
{
	struct model_copy *copy = m->copy;
	while (copy->id != e->as.copy.copy)
		copy++;
	struct model_page *from = &m->page[copy->group][copy->from], *to = &m->page[copy->group][copy->to];
	if (from->state != PAGE_MOVING)
		model_fail(m, "the source of a copy was used before it was done");
	page_arrived(m, copy->group, copy->from);
	if (to->state == PAGE_MOVING) {
		page_arrived(m, copy->group, copy->to);
	} else {
		to->copying = 0;
		to->lost |= e->as.copy.err != 0;
		if (!to->lost)
			memcpy(to->slot, copy->slot, sizeof to->slot);
	}
	copy->id = 0;
	m->copies--;
	for (uint32_t i = 0; to->lost && i < MODEL_TURNS; i++) {
		/* One whose deadline passes in this step ends before it looks, and its END tells, as of any turn that
		   ends while it loads, where its prompt was to come from. Nothing else ends one in this step. */
		int over = m->turn[i].deadline_us && m->turn[i].deadline_us <= e->now_us;
		if (m->turn[i].live && m->turn[i].running && !over)
			turn_mend(m, &m->turn[i]);
	}
}

/* What the event means before any effect. */
void model_event(struct model *m, const struct event *e, const struct batch_result *results,
		 const struct effects *out)
{
	m->event = *e;
	m->step++;
	m->arriving = SCHED_NONE;
	m->answered = 0;
	m->shrunk = 0;
	struct model_session *x = e->session == SCHED_NONE ? NULL : &m->session[e->session];
	switch (e->kind) {
	case EVENT_TURN:
		event_turn(m, out);
		break;
	case EVENT_CANCEL:
		turn_ending(m, model_turn_by_index(m, e->turn), e->as.cancel.end);
		break;
	case EVENT_CREDIT: {
		struct model_turn *t = &m->turn[model_turn_by_index(m, e->turn)];
		if (e->as.credit.tokens > t->credit)
			t->credit = e->as.credit.tokens;
		break;
	}
	case EVENT_ROLLBACK:
		if (x->turn == SCHED_NONE && e->as.rollback.tokens <= x->history)
			history_cut(m, x, e->as.rollback.tokens);
		break;
	case EVENT_CLOSE:
		x->closing = 1;
		turn_ending(m, x->next, END_CLOSED);
		turn_ending(m, x->turn, END_CLOSED);
		break;
	case EVENT_BATCH_DONE:
		event_batch(m, results);
		break;
	case EVENT_DURABLE:
		if (e->as.durable.step > m->durable)
			m->durable = e->as.durable.step;
		for (uint32_t g = 0; g < m->limits.group_count; g++)
			for (uint32_t i = 0; i < SIM_PAGES; i++)
				if (m->page[g][i].state == PAGE_DOOMED &&
				    m->page[g][i].doom_step <= e->as.durable.step)
					m->page[g][i].state = PAGE_FREE;
		break;
	case EVENT_COPY_DONE:
		event_copy(m, e);
		break;
	case EVENT_FOUND:
		history_append(m, x, e->as.found.tokens);
		for (; x->resident < x->history; x->resident++)
			x->ever[x->resident] = 1;
		break;
	case EVENT_TOUCH:
		if (x->lease_until_us && !x->closing)
			x->lease_until_us = e->now_us + x->lease_us;
		break;
	case EVENT_DRAIN:
		m->draining = 1;
		for (uint32_t i = 0; i < MODEL_TURNS; i++)
			if (m->turn[i].live && !m->turn[i].running)
				turn_ending(m, i, END_DRAIN);
		break;
	default:
		break;
	}
	for (uint32_t i = 0; i < MODEL_TURNS; i++)
		if (m->turn[i].live && m->turn[i].deadline_us && m->turn[i].deadline_us <= e->now_us)
			turn_ending(m, i, END_DEADLINE);
}

/* Effects. */

static void grant_note(struct model *m, struct model_session *x, const struct effect *f)
{
	x->granted_bytes = f->as.residency.bytes;
	x->lease_us = f->as.residency.lease_us;
	x->lease_until_us = x->lease_us ? m->event.now_us + x->lease_us : 0;
}

static void effect_opened(struct model *m, const struct effect *f)
{
	struct model_session *x = &m->session[f->session];
	if (x->open)
		model_fail(m, "OPENED names a session that is open");
	memset(x, 0, sizeof *x);
	x->open = 1;
	x->turn = x->next = SCHED_NONE;
	x->principal = f->principal;
	grant_note(m, x, f);
	x->key = f->session_key;
	if (m->event.kind != EVENT_FORK)
		return;
	const struct model_session *parent = &m->session[m->event.session];
	x->principal = parent->principal;
	x->history = parent->history;
	memcpy(x->token, parent->token, sizeof x->token);
	memcpy(x->ever, parent->ever, sizeof x->ever);
	x->resident = model_usable(m, parent, parent->resident / m->limits.page_tokens * m->limits.page_tokens);
	for (uint32_t g = 0; x->resident && g < m->limits.group_count; g++)
		x->unit_count[g] = x->low[g] = parent->low[g];
	x->outgrown = model_windowed(m) && model_units(m, x->resident) > model_granted(m, x);
}

static void effect_assign(struct model *m, const struct effect *f)
{
	struct model_session *x = &m->session[f->session];
	uint32_t g = f->as.run.group;
	if (m->event.kind == EVENT_FOUND && f->as.run.place == PLACE_DISK) {
		model_found(m, f);
		return;
	}
	if (f->as.run.place != PLACE_DEVICE || x->turn == SCHED_NONE || !m->turn[x->turn].running)
		model_fail(m, "ASSIGN to a session that does not run");
	if (m->batch)
		model_fail(m, "ASSIGN while a batch is in flight");
	if (f->as.run.tag_first != m->next_tag)
		model_fail(m, "a tag was skipped or given twice");
	m->next_tag += f->as.run.page_count;
	for (uint32_t i = 0; i < f->as.run.page_count; i++) {
		struct model_page *page = &m->page[g][f->as.run.page_first + i];
		if (page->state != PAGE_FREE)
			model_fail(m, "ASSIGN of a page that is not free");
		if (x->unit_count[g] != f->as.run.position_first / m->limits.page_tokens + i)
			model_fail(m, "ASSIGN at another position than the next");
		page->state = PAGE_OWNED;
		page->tag = f->as.run.tag_first + i;
		page->principal = x->principal;
		/* What another owner left must never be taken for this one's. */
		memset(page->slot, 0xee, sizeof page->slot);
		x->unit[g][x->unit_count[g]++] = f->as.run.page_first + i;
	}
}

/* FREE and QUARANTINE: the session's units from here on are gone. */
static void effect_free(struct model *m, const struct effect *f)
{
	struct model_session *x = &m->session[f->session];
	uint32_t g = f->as.run.group, first = f->as.run.position_first / m->limits.page_tokens;
	if (x->turn != SCHED_NONE && m->turn[x->turn].in_flight)
		model_fail(m, "FREE of a page that the batch in flight may read");
	for (uint32_t i = 0; i < f->as.run.page_count; i++) {
		uint32_t index = model_id(f->as.run.place, f->as.run.page_first + i);
		struct model_page *page = &m->page[g][index];
		if (first + i >= SIM_UNITS || x->unit[g][first + i] != index)
			model_fail(m, "FREE of a page that is not the session's");
		if (page->tag != f->as.run.tag_first + i || page->state != PAGE_OWNED)
			model_fail(m, "FREE names another tag, or a page without owner");
		page_freed(m, index, page);
		if (page->copying)
			page->state = PAGE_MOVING; /* until the copy that fills it is done */
		page->copying = 0;
		if (f->kind == EFFECT_QUARANTINE) {
			if (!page->bad)
				model_fail(m, "QUARANTINE of a good page");
			page->state = PAGE_QUARANTINED;
		} else if (page->bad) {
			model_fail(m, "FREE of a bad page");
		}
	}
	if (x->unit_count[g] > first && first >= x->low[g])
		x->unit_count[g] = first;
}

static void effect_lost(struct model *m, const struct effect *f)
{
	struct model_session *x = &m->session[f->session];
	uint32_t page_tokens = m->limits.page_tokens, floor;
	if (x->turn != SCHED_NONE && m->turn[x->turn].running)
		model_fail(m, "LOST by a running session");
	if (f->as.lost.why == LOST_COPY)
		return; /* taken from the copy that failed */
	if (f->as.lost.why == LOST_QUARANTINE || f->as.lost.why == LOST_WINDOW) {
		if (f->as.lost.tokens_after != x->resident)
			model_fail(m, "LOST tells another number of tokens");
		return;
	}
	floor = model_floor(m, x) * page_tokens;
	if (f->as.lost.tokens_before != x->resident || f->as.lost.tokens_after > x->resident)
		model_fail(m, "LOST tells another number of tokens");
	if (f->as.lost.why != LOST_PARK && f->as.lost.tokens_after < floor &&
	    f->as.lost.tokens_after < x->resident)
		model_fail(m, "LOST what was granted");
	if (f->as.lost.tokens_after % page_tokens)
		model_fail(m, "LOST a part of a page");
	if (model_usable(m, x, f->as.lost.tokens_after) != f->as.lost.tokens_after)
		model_fail(m, "LOST leaves what is of no use");
	x->resident = f->as.lost.tokens_after;
	table_cut(m, x, x->resident);
}

static void effect_admitted(struct model *m, const struct effect *f)
{
	uint32_t turn = turn_by_key(m, f->turn_key);
	struct model_turn *t = &m->turn[turn];
	const struct model_session *x = &m->session[t->session];
	if (t->running || x->turn != turn || t->ending)
		model_fail(m, "ADMITTED a turn that may not run");
	if (m->draining)
		model_fail(m, "ADMITTED while draining");
	if (model_at_quota(m, x->principal))
		model_fail(m, "ADMITTED beyond the principal's quota");
	if (model_quota_short(m, t, 1))
		model_fail(m, "ADMITTED beyond the principal's quota of bytes");
	model_order(m, turn);
	t->index = f->turn;
	t->running = 1;
	t->admitted = ++m->admissions;
	if (t->arrived_us + m->limits.wait_us_max <= m->event.now_us)
		m->forced_us = m->event.now_us;
	t->reloaded = 0;
	for (uint32_t i = 0; i < x->resident; i++)
		t->reloaded += x->unit[0][i / m->limits.page_tokens] >= SIM_PAGES;
	t->resident = x->resident - t->reloaded;
	t->recomputed = t->fresh = 0;
	for (uint32_t i = x->resident; i < x->history; i++)
		*(x->ever[i] ? &t->recomputed : &t->fresh) += 1;
	turn_mend(m, t);
}

static void effect_end(struct model *m, const struct effect *f)
{
	uint32_t turn = turn_by_key(m, f->turn_key);
	struct model_session *x = &m->session[f->session];
	if (f->turn == SCHED_NONE) {
		m->answered++;
		model_refusal(m, f);
		return;
	}
	if (turn == SCHED_NONE) {
		model_fail(m, "END of a turn that is not there");
		return;
	}
	struct model_turn *t = &m->turn[turn];
	if (t->in_flight)
		model_fail(m, "END of a turn that is in flight");
	if (f->as.end.err == ERR_NO_PAGES && !t->running)
		t->ending = END_REFUSED;
	/* The only way that an admitted turn can lack pages: there are less of them now. */
	int less = m->shrunk || m->event.kind == EVENT_COPY_DONE;
	if (f->as.end.err == ERR_NO_PAGES && t->running && less && t->ending == END_NONE)
		t->ending = END_FAULT;
	if (f->as.end.end != t->ending || t->ending == END_NONE)
		model_fail(m, "END with another reason, or without one");
	if (f->as.end.sampled != t->sampled || f->as.end.history != x->history ||
	    f->as.end.context_left != m->limits.context_tokens - x->history)
		model_fail(m, "END with wrong counts");
	uint32_t prompt = t->running ? t->keep + t->append : 0;
	if (f->as.end.prompt_tokens != prompt || f->as.end.resident != t->resident ||
	    f->as.end.recomputed != t->recomputed || f->as.end.fresh != t->fresh ||
	    f->as.end.reloaded != t->reloaded)
		model_fail(m, "END with wrong origins");
	if (f->as.end.resident + f->as.end.reloaded + f->as.end.recomputed + f->as.end.fresh != prompt)
		model_fail(m, "the origins do not add up to the prompt");
	if (t->running)
		x->outgrown = model_windowed(m) && x->unit_count[0] > model_granted(m, x);
	t->live = 0;
	if (m->arriving == turn)
		m->arriving = SCHED_NONE; /* its deadline is now */
	if (x->next == turn)
		x->next = SCHED_NONE;
	if (x->turn == turn) {
		x->turn = SCHED_NONE;
		if (m->arriving != SCHED_NONE && m->turn[m->arriving].session == f->session) {
			take_over(m, m->arriving);
			m->arriving = SCHED_NONE;
		} else if (x->next != SCHED_NONE && !x->closing) {
			take_over(m, x->next);
			x->next = SCHED_NONE;
		}
	}
}

static void effect_batch(struct model *m, const struct effect *f, const struct effects *out)
{
	if (m->batch)
		model_fail(m, "BATCH while one is in flight");
	m->batch = f->as.batch.batch;
	m->entry_count = f->as.batch.entry_count;
	for (uint32_t i = 0; i < m->entry_count; i++) {
		m->entries[i] = out->entries[f->as.batch.entry_first + i];
		uint32_t turn = model_turn_by_index(m, m->entries[i].turn);
		if (turn == SCHED_NONE || !m->turn[turn].running || m->turn[turn].in_flight) {
			model_fail(m, "BATCH with a turn that does not run");
			return;
		}
		m->turn[turn].in_flight = 1;
	}
	model_batch(m, f);
}

static void effect_residency(struct model *m, const struct effect *f)
{
	struct model_session *x = &m->session[f->session];
	if (f->as.residency.err == ERR_EXPIRED && m->event.now_us < x->lease_until_us)
		model_fail(m, "a lease that ran out before its time");
	grant_note(m, x, f);
	if (model_windowed(m))
		x->outgrown = x->unit_count[0] > model_granted(m, x);
}

void model_effect(struct model *m, const struct effect *f, const struct effects *out)
{
	switch (f->kind) {
	case EFFECT_OPENED: effect_opened(m, f); break;
	case EFFECT_RESIDENCY: effect_residency(m, f); break;
	case EFFECT_ADMITTED: effect_admitted(m, f); break;
	case EFFECT_ASSIGN: effect_assign(m, f); break;
	case EFFECT_SHARE: model_share(m, f); break;
	case EFFECT_FREE:
	case EFFECT_QUARANTINE: effect_free(m, f); break;
	case EFFECT_LOST: effect_lost(m, f); break;
	case EFFECT_BATCH: effect_batch(m, f, out); break;
	case EFFECT_END: effect_end(m, f); break;
	case EFFECT_WAIT: m->turn[turn_by_key(m, f->turn_key)].index = f->turn; break;
	case EFFECT_PAUSED: {
		const struct model_turn *t = &m->turn[model_turn_by_index(m, f->turn)];
		if (t->in_flight || t->sampled < t->credit)
			model_fail(m, "PAUSED a turn that could go on");
		break;
	}
	case EFFECT_CLOSED:
		if (!m->session[f->session].closing || m->session[f->session].turn != SCHED_NONE)
			model_fail(m, "CLOSED a session that is in use");
		m->session[f->session].open = 0;
		break;
	case EFFECT_COPY: model_copy(m, f); break;
	case EFFECT_REFUSED: break;
	default: model_fail(m, "an effect that this form does not have"); break;
	}
}
