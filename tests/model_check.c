/*
 * The second half of the model: rules that effects must keep, and the comparison with every view
 * after each step.
 */
#include "tests/model.h"

#include <string.h>

/* In the groups without a window. */
uint64_t model_unit_bytes(const struct model *m)
{
	uint64_t bytes = 0;
	for (uint32_t g = 0; g < m->limits.group_count; g++)
		bytes += model_window(m, g) ? 0 : m->limits.group[g].page_bytes;
	return bytes;
}

uint32_t model_turn_units(const struct model *m, const struct model_turn *t)
{
	uint64_t last = (uint64_t)t->keep + t->append + t->output_max;
	if (last > m->limits.context_tokens)
		last = m->limits.context_tokens;
	return model_units(m, last - 1);
}

static uint32_t pages_in(const struct model *m, uint32_t group, uint32_t state)
{
	uint32_t count = 0;
	for (uint32_t i = 0; i < m->limits.group[group].page_count[PLACE_DEVICE]; i++)
		count += m->page[group][i].state == state;
	return count;
}

static uint32_t total_units(const struct model *m)
{
	uint32_t units = 0xffffffffu;
	for (uint32_t g = 0; g < m->limits.group_count; g++) {
		uint32_t left = m->limits.group[g].page_count[PLACE_DEVICE] - pages_in(m, g, PAGE_QUARANTINED);
		units = left < units && !model_window(m, g) ? left : units;
	}
	return units;
}

static uint32_t granted_units(const struct model *m, uint32_t session)
{
	return model_granted(m, &m->session[session]);
}

/* Would the turn fit beside what others were granted, if nothing else ran? */
int model_fits_beside(const struct model *m, const struct model_turn *t)
{
	uint64_t others = 0;
	for (uint32_t i = 0; i < SIM_SESSIONS; i++)
		if (m->session[i].open && i != t->session)
			others += granted_units(m, i);
	for (uint32_t g = 0; g < m->limits.group_count; g++) {
		uint64_t pages = model_need(m, g, model_turn_units(m, t));
		for (uint32_t i = 0; i < SIM_SESSIONS; i++)
			if (m->session[i].open && i != t->session)
				pages += model_need(m, g, granted_units(m, i));
		if (model_window(m, g) && pages > model_total(m, g))
			return 0;
	}
	return model_turn_units(m, t) + others <= total_units(m) && !model_quota_short(m, t, 0);
}

/* Too large for the group, if nothing else were there; the numbers that are told then. */
static int too_large(const struct model *m, const struct model_turn *t, uint64_t *needed, uint64_t *limit)
{
	uint32_t units = model_turn_units(m, t);
	*needed = units * model_unit_bytes(m);
	*limit = total_units(m) * model_unit_bytes(m);
	if (units > total_units(m))
		return 1;
	for (uint32_t g = 0; g < m->limits.group_count; g++) {
		if (!model_window(m, g) || model_need(m, g, units) <= model_total(m, g))
			continue;
		*needed = model_need(m, g, units) * m->limits.group[g].page_bytes;
		*limit = model_total(m, g) * m->limits.group[g].page_bytes;
		return 1;
	}
	*needed = model_bytes(m, units);
	*limit = model_quota(m, m->session[t->session].principal);
	return *limit > 0 && *needed > *limit;
}

/* The turn has waited so long that it comes before all others. */
int model_due(const struct model *m, const struct model_turn *t)
{
	uint64_t wait = m->limits.wait_us_max, now = m->event.now_us;
	return wait == 0 || (t->arrived_us + wait <= now && m->forced_us + wait / 4 <= now);
}

/* The turn, or one of its principal that came before it, is short of the quota. */
static int quota_holds(const struct model *m, uint32_t turn)
{
	const struct model_turn *t = &m->turn[turn];
	for (uint32_t i = 0; i < MODEL_TURNS; i++) {
		const struct model_turn *o = &m->turn[i];
		if (!o->live || o->running || o->arrival > t->arrival || m->session[o->session].turn != i)
			continue;
		if (m->session[o->session].principal == m->session[t->session].principal &&
		    model_quota_short(m, o, 1))
			return 1;
	}
	return 0;
}

/* Nobody passes a turn that arrived earlier, is its session's, fits beside the grants, and is due: of
   those, at least not the one that came first. */
void model_order(struct model *m, uint32_t turn)
{
	uint32_t first = SCHED_NONE;
	for (uint32_t i = 0; i < MODEL_TURNS; i++) {
		const struct model_turn *t = &m->turn[i];
		if (!t->live || t->running || m->session[t->session].turn != i || !model_fits_beside(m, t))
			continue;
		uint32_t its = m->session[t->session].principal;
		int others = its != m->session[m->turn[turn].session].principal;
		if (i != turn && (model_awaits(m, t) || model_at_quota(m, its)))
			continue;
		if (i != turn && others && quota_holds(m, i))
			continue;
		if (first == SCHED_NONE || t->arrival < m->turn[first].arrival)
			first = i;
	}
	if (first != SCHED_NONE && m->turn[first].arrival < m->turn[turn].arrival &&
	    model_due(m, &m->turn[first]))
		model_fail(m, "ADMITTED out of order");
}

/* A refusal must be true. */
void model_refusal(struct model *m, const struct effect *f)
{
	const struct event *e = &m->event;
	const struct model_session *x = &m->session[e->session];
	struct model_turn asked;
	uint64_t prompt = (uint64_t)e->as.turn.keep + e->as.turn.append;
	uint32_t waiting = 0, live = 0;
	uint64_t needed, limit;
	int right = 0;
	memset(&asked, 0, sizeof asked);
	asked.session = e->session;
	asked.keep = e->as.turn.keep;
	asked.append = e->as.turn.append;
	asked.output_max = e->as.turn.output_max;
	for (uint32_t i = 0; i < MODEL_TURNS; i++) {
		live += m->turn[i].live;
		waiting += m->turn[i].live && !m->turn[i].running;
	}
	if (e->kind != EVENT_TURN || f->session != e->session || f->turn_key != e->turn_key)
		model_fail(m, "a refusal that answers nothing");
	switch (f->as.end.err) {
	case ERR_GONE: right = x->closing; break;
	case ERR_DRAINING: right = m->draining; break;
	case ERR_SESSION_BUSY: right = x->turn != SCHED_NONE && !e->as.turn.supersede; break;
	case ERR_OUT_OF_RANGE:
		right = e->as.turn.keep > x->history || prompt == 0 || e->as.turn.output_max == 0;
		break;
	case ERR_CONTEXT_FULL:
		right = prompt + 1 > m->limits.context_tokens && f->as.end.needed == prompt + 1 &&
			f->as.end.limit == m->limits.context_tokens && f->as.end.end == END_CONTEXT;
		break;
	case ERR_NO_PAGES:
		right = too_large(m, &asked, &needed, &limit) && f->as.end.needed == needed &&
			f->as.end.limit == limit;
		break;
	case ERR_OVERLOADED:
		right = waiting >= m->limits.queue_turns || live >= m->limits.turn_count ||
			(uint64_t)(live + 1) * m->limits.stream_turn_bytes > m->limits.stream_bytes;
		break;
	default: break;
	}
	if (!right)
		model_fail(m, "a refusal without its reason");
}

/* What is to be computed follows on what is there, in pages that are this session's alone. */
static void entry_check(struct model *m, const struct batch_entry *entry)
{
	const struct model_turn *t = &m->turn[model_turn_by_index(m, entry->turn)];
	const struct model_session *x = &m->session[t->session];
	uint32_t last = entry->position_first + entry->row_count, page_tokens = m->limits.page_tokens;
	if (entry->session != t->session || entry->position_first != x->resident || entry->row_count == 0)
		model_fail(m, "an entry that does not follow on what is resident");
	if (last > x->history || entry->sample != (last == x->history))
		model_fail(m, "an entry beyond the history, or its sample mark is wrong");
	if (entry->sample && t->sampled >= t->credit)
		model_fail(m, "a sample without room in the stream");
	int decode = t->sampled > 0 && entry->position_first + 1 == x->history;
	if (decode != (entry->phase == PHASE_DECODE) || (!decode && entry->row_count > m->limits.chunk_tokens))
		model_fail(m, "an entry of the wrong phase, or too long");
	if (model_on_the_way(m, x))
		model_fail(m, "a row of a session whose pages are not all there");
	for (uint32_t g = 0; g < m->limits.group_count; g++) {
		if (x->unit_count[g] * page_tokens < last) {
			model_fail(m, "a row without a page");
			return;
		}
		for (uint32_t u = entry->position_first / page_tokens; u * page_tokens < last; u++)
			if (model_owners(m, g, x->unit[g][u]) != 1)
				model_fail(m, "a row in a page that others own too");
			else if (m->page[g][x->unit[g][u]].principal != x->principal)
				model_fail(m, "a row in a page of another principal");
		if (model_usable(m, x, entry->position_first) != entry->position_first)
			model_fail(m, "a row that does not find all that its window shows");
	}
}

void model_batch(struct model *m, const struct effect *f)
{
	uint32_t rows = 0;
	for (uint32_t i = 0; i < m->entry_count; i++) {
		entry_check(m, &m->entries[i]);
		rows += m->entries[i].row_count;
	}
	if (rows != f->as.batch.row_count || rows > m->limits.batch_rows || m->entry_count == 0)
		model_fail(m, "BATCH with a wrong number of rows");
}

static int session_runs(const struct model *m, uint32_t session)
{
	uint32_t turn = m->session[session].turn;
	return turn != SCHED_NONE && m->turn[turn].running;
}

/* What the page holds, or what is on the way to it. */
static const uint64_t *content(const struct model *m, uint32_t g, uint32_t id)
{
	for (uint32_t i = 0; m->page[g][id].copying && i < SIM_COPIES; i++)
		if (m->copy[i].id && m->copy[i].group == g && m->copy[i].to == id)
			return m->copy[i].slot;
	return m->page[g][id].slot;
}

static void session_after(struct model *m, uint32_t session)
{
	struct model_session *x = &m->session[session];
	struct session_view view;
	struct page_ref refs[SIM_UNITS];
	int there = sched_session(m->s, session, &view) == 0;
	if (there != (int)x->open) {
		model_fail(m, "a session is there, or is not");
		return;
	}
	if (!there)
		return;
	uint32_t state = session_runs(m, session) ? SESSION_RUNNING
		: x->turn != SCHED_NONE ? SESSION_WAITING : SESSION_IDLE;
	if (view.state != state || view.history != x->history || view.resident != x->resident)
		model_fail(m, "a session's state, history or residence differs");
	if (view.granted_bytes != x->granted_bytes || view.lease_until_us != x->lease_until_us ||
	    view.principal != x->principal)
		model_fail(m, "a session's grant, lease or principal differs");
	for (uint32_t g = 0; g < m->limits.group_count; g++) {
		uint32_t units = model_units(m, x->resident);
		if (state != SESSION_RUNNING && x->unit_count[g] != units)
			model_fail(m, "a session at rest has pages that it does not fill");
		uint32_t count = sched_page_table(m->s, session, g, 0, SIM_UNITS, refs);
		if (count != x->unit_count[g] || count < units) {
			model_fail(m, "a page table has another length");
			return;
		}
		if (sched_page_first(m->s, session, g) != x->low[g])
			model_fail(m, "a group begins at another page");
		for (uint32_t u = 0; u < x->low[g]; u++)
			if (refs[u].page != SCHED_NONE)
				model_fail(m, "a page table names a page that was given up");
		for (uint32_t u = x->low[g]; u < count; u++)
			if (model_id(refs[u].place, refs[u].page) != x->unit[g][u] ||
			    refs[u].tag != m->page[g][x->unit[g][u]].tag)
				model_fail(m, "a page table names another page or tag");
		for (uint32_t tokens = m->limits.page_tokens, i = x->low[g] * tokens; i < x->resident; i++)
			if (content(m, g, x->unit[g][i / tokens])[i % tokens] != x->token[i] &&
			    !m->page[g][x->unit[g][i / tokens]].lost)
				model_fail(m, "what is called resident holds other tokens");
	}
}

/* Owned pages by who owns them: running alone, at rest alone, more than one. */
struct owned {
	uint32_t running, retained, shared, moving, yielding;
};

static void page_after(struct model *m, uint32_t g, uint32_t page, struct owned *sum)
{
	struct page_view view;
	uint32_t owners = 0, owner = SCHED_NONE, kept = 0;
	for (uint32_t i = 0; i < SIM_SESSIONS; i++) {
		const struct model_session *x = &m->session[i];
		for (uint32_t u = x->low[g]; x->open && u < x->unit_count[g]; u++) {
			if (x->unit[g][u] != page)
				continue;
			owners++;
			owner = i;
			kept += session_runs(m, i) || u < model_floor(m, x);
		}
	}
	const struct model_page *p = &m->page[g][page];
	uint32_t state = p->copying ? PAGE_MOVING : owners > 1 ? PAGE_SHARED : p->state;
	if ((owners > 0) != (p->state == PAGE_OWNED))
		model_fail(m, "a page without owner was not freed, or one with an owner was");
	if (page < SIM_PAGES && sched_page(m->s, g, page, &view) == 0) {
		if (view.state != state || view.owners != owners ||
		    (view.tag != p->tag && p->state == PAGE_OWNED))
			model_fail(m, "a page's state, owners or tag differ");
		if (view.session != (owners == 1 ? owner : SCHED_NONE))
			model_fail(m, "a page's owner differs");
	}
	int runs = owners == 1 && session_runs(m, owner) && page < SIM_PAGES;
	sum->moving += p->copying || p->state == PAGE_MOVING;
	sum->shared += owners > 1 && !p->copying;
	sum->running += runs && !p->copying;
	sum->retained += owners == 1 && !runs && !p->copying;
	sum->yielding += owners > 0 && kept == 0 && page < SIM_PAGES;
}

/* What a running turn may still need, and what of it the scheduler says is promised. */
static uint64_t claim_units(const struct model *m, const struct model_turn *t)
{
	const struct model_session *x = &m->session[t->session];
	return model_turn_units(m, t) - (x->unit_count[0] - model_missing(m, x));
}

/* Pages with a window that it may still need: all of them are promised. */
static uint64_t window_claim_bytes(const struct model *m, const struct model_turn *t)
{
	uint64_t bytes = 0;
	for (uint32_t g = 0; g < m->limits.group_count; g++)
		if (model_window(m, g))
			bytes += (model_need(m, g, model_turn_units(m, t)) -
				  model_held(m, &m->session[t->session], g)) * m->limits.group[g].page_bytes;
	return bytes;
}

static uint64_t promise_of(const struct model *m, const struct model_turn *t)
{
	struct turn_view view;
	if (!t->live || !t->running || sched_turn(m->s, t->index, &view) != 0)
		return 0;
	return (view.promised_bytes - window_claim_bytes(m, t)) / model_unit_bytes(m);
}

static uint64_t promised_units(const struct model *m)
{
	uint64_t units = 0;
	for (uint32_t i = 0; i < MODEL_TURNS; i++)
		units += promise_of(m, &m->turn[i]);
	return units;
}

/* The running turn that was admitted next after `after`, or SCHED_NONE. */
static uint32_t running_next(const struct model *m, uint64_t after)
{
	uint32_t found = SCHED_NONE;
	for (uint32_t i = 0; i < MODEL_TURNS; i++)
		if (m->turn[i].live && m->turn[i].running && m->turn[i].admitted > after &&
		    (found == SCHED_NONE || m->turn[i].admitted < m->turn[found].admitted))
			found = i;
	return found;
}

/* What the turn gives back when it has had all it may need, and has ended: at least. */
static int64_t given_back(const struct model *m, const struct model_turn *t)
{
	const struct model_session *x = &m->session[t->session];
	uint32_t alone = x->unit_count[0], granted = granted_units(m, t->session);
	while (alone > 0 && model_owners(m, 0, x->unit[0][alone - 1]) == 1)
		alone--;
	if (granted > model_turn_units(m, t))
		granted = model_turn_units(m, t);
	return (int64_t)x->unit_count[0] - model_missing(m, x) - (granted > alone ? granted : alone);
}

/* The banker's rule: in the order of their admission, each turn's claim is covered beside what is
   promised to younger ones, by `cover` and by what older ones give back. `more` is one turn more, with
   what is promised to it at once (its claim is `claim`). */
static int claims_covered(const struct model *m, int64_t cover, int64_t more, int64_t claim)
{
	int64_t younger = (int64_t)promised_units(m) + more;
	uint64_t after = 0;
	for (uint32_t i = running_next(m, 0); i != SCHED_NONE; i = running_next(m, after)) {
		const struct model_turn *t = &m->turn[i];
		younger -= (int64_t)promise_of(m, t);
		if (cover < (int64_t)claim_units(m, t) + younger)
			return 0;
		cover += given_back(m, t);
		after = t->admitted;
	}
	return cover >= claim;
}

/* Units that the turn's own session has in the count of those that would be given up. */
static uint32_t own_yielding(const struct model *m, uint32_t session)
{
	const struct model_session *x = &m->session[session];
	uint32_t units = 0;
	for (uint32_t u = model_floor(m, x); u < x->unit_count[0]; u++) {
		uint32_t kept = 0;
		for (uint32_t i = 0; i < SIM_SESSIONS; i++)
			if (m->session[i].open && u < m->session[i].unit_count[0] &&
			    m->session[i].unit[0][u] == x->unit[0][u])
				kept += session_runs(m, i) || u < model_floor(m, &m->session[i]);
		units += kept == 0 && x->unit[0][u] < SIM_PAGES;
	}
	return units;
}

/* Promises are covered; and whoever is first and fits does not wait. */
static void promises_after(struct model *m, uint32_t yielding)
{
	uint64_t cover = 0xffffffffu, promised = promised_units(m);
	uint32_t running = 0, first = SCHED_NONE;
	uint64_t needed, limit;
	for (uint32_t g = 0; g < m->limits.group_count; g++) {
		uint64_t units = (uint64_t)pages_in(m, g, PAGE_FREE) + pages_in(m, g, PAGE_DOOMED) +
			pages_in(m, g, PAGE_MOVING) + yielding;
		cover = units < cover && !model_window(m, g) ? units : cover;
	}
	if (cover < promised)
		model_fail(m, "promised more than there is");
	if (!claims_covered(m, (int64_t)cover, 0, 0))
		model_fail(m, "an admitted turn may not be able to finish");
	for (uint32_t i = 0; i < MODEL_TURNS; i++) {
		const struct model_turn *t = &m->turn[i];
		running += t->live && t->running;
		if (!t->live || t->running || m->session[t->session].turn != i)
			continue;
		if (too_large(m, t, &needed, &limit))
			model_fail(m, "a turn waits that can never fit");
		if (first == SCHED_NONE || t->arrival < m->turn[first].arrival)
			first = i;
	}
	if (running > m->limits.batch_turns)
		model_fail(m, "more turns run than may");
	if (first == SCHED_NONE || running == m->limits.batch_turns || cover < promised ||
	    !model_due(m, &m->turn[first]))
		return;
	uint32_t session = m->turn[first].session;
	const struct model_turn *t = &m->turn[first];
	uint64_t claim = claim_units(m, t), now = claim, have = m->session[session].unit_count[0];
	have -= model_missing(m, &m->session[session]);
	if (m->limits.growth_tokens) {
		uint64_t reach = model_units(m, (uint64_t)t->keep + t->append + m->limits.growth_tokens);
		now = reach < have ? 0 : reach - have < claim ? reach - have : claim;
	}
	for (uint32_t g = 0; g < m->limits.group_count; g++) {
		const struct model_session *x = &m->session[session];
		uint64_t own = model_floor(m, x) > 0 ? x->unit_count[g] - x->low[g] : 0;
		uint64_t pages = model_reserved(m, g) - own + model_need(m, g, model_turn_units(m, t));
		if (model_window(m, g) && pages > model_total(m, g))
			return;
	}
	int64_t taken = own_yielding(m, session);
	if (model_awaits(m, t) || model_at_quota(m, m->session[session].principal) || model_quota_short(m, t, 1))
		return;
	if (claims_covered(m, (int64_t)cover - taken, (int64_t)now, (int64_t)claim))
		model_fail(m, "the first turn fits, and waits");
}

/* Host or disk. */
static void low_after(struct model *m, uint32_t place, enum account account)
{
	uint64_t bytes[COLUMN_COUNT] = {0};
	for (uint32_t g = 0; g < m->limits.group_count; g++) {
		uint64_t each = m->limits.group[g].page_bytes;
		struct owned sum = {0, 0, 0, 0, 0};
		for (uint32_t i = 0; i < m->limits.group[g].page_count[place]; i++) {
			page_after(m, g, model_id(place, i), &sum);
			bytes[COLUMN_FREE] += m->page[g][model_id(place, i)].state == PAGE_FREE ? each : 0;
		}
		bytes[COLUMN_RETAINED] += sum.retained * each;
		bytes[COLUMN_SHARED] += sum.shared * each;
		bytes[COLUMN_MOVING] += sum.moving * each;
	}
	for (uint32_t c = 0; c < COLUMN_COUNT; c++)
		if (sched_ledger(m->s, account, (enum column)c) != bytes[c])
			model_fail(m, "the ledger of a lower place differs from a recount");
}

static void ledger_after(struct model *m, const struct owned *sum)
{
	uint64_t free_bytes = 0, doomed = 0, promised = 0, owned[4] = {0}, live = 0;
	uint64_t units = promised_units(m);
	for (uint32_t g = 0; g < m->limits.group_count; g++) {
		uint64_t bytes = m->limits.group[g].page_bytes, count = pages_in(m, g, PAGE_FREE);
		free_bytes += count * bytes;
		uint64_t most = model_window(m, g) ? model_left(m, g) : units;
		promised += (count < most ? count : most) * bytes;
		doomed += (uint64_t)(pages_in(m, g, PAGE_DOOMED) + pages_in(m, g, PAGE_QUARANTINED)) * bytes;
		owned[0] += sum[g].running * bytes;
		owned[1] += sum[g].retained * bytes;
		owned[2] += sum[g].shared * bytes;
		owned[3] += sum[g].moving * bytes;
	}
	for (uint32_t i = 0; i < MODEL_TURNS; i++)
		live += m->turn[i].live;
	if (sched_ledger(m->s, ACCOUNT_DEVICE, COLUMN_FREE) + promised != free_bytes ||
	    sched_ledger(m->s, ACCOUNT_DEVICE, COLUMN_PROMISED) != promised ||
	    sched_ledger(m->s, ACCOUNT_DEVICE, COLUMN_DOOMED) != doomed ||
	    sched_ledger(m->s, ACCOUNT_DEVICE, COLUMN_RUNNING) != owned[0] ||
	    sched_ledger(m->s, ACCOUNT_DEVICE, COLUMN_RETAINED) != owned[1] ||
	    sched_ledger(m->s, ACCOUNT_DEVICE, COLUMN_SHARED) != owned[2] ||
	    sched_ledger(m->s, ACCOUNT_DEVICE, COLUMN_MOVING) != owned[3] ||
	    sched_ledger(m->s, ACCOUNT_STREAM, COLUMN_RUNNING) != live * m->limits.stream_turn_bytes)
		model_fail(m, "the ledger differs from a recount");
}

static void turns_after(struct model *m)
{
	struct turn_view view;
	int could = 0;
	uint32_t doomed = 0, oldest = running_next(m, 0);
	for (uint32_t g = 0; g < m->limits.group_count; g++)
		doomed += pages_in(m, g, PAGE_DOOMED);
	for (uint32_t i = 0; i < MODEL_TURNS; i++) {
		const struct model_turn *t = &m->turn[i];
		if (!t->live)
			continue;
		if (t->ending && !t->in_flight)
			model_fail(m, "a turn that must end goes on");
		if (t->index == SCHED_NONE || sched_turn(m->s, t->index, &view) != 0) {
			model_fail(m, "a turn is not there, or was never told");
			continue;
		}
		if (view.key != t->key || view.running != t->running || view.sampled != t->sampled ||
		    view.credit != t->credit)
			model_fail(m, "a turn's view differs");
		/* The turn admitted first is never short of pages; with promises in full nobody is. */
		if (t->running && (oldest == i || m->limits.growth_tokens == 0))
			could |= t->sampled < t->credit;
		uint64_t claim = claim_units(m, t) * model_unit_bytes(m) + window_claim_bytes(m, t);
		if (t->running && (view.claim_bytes != claim ||
				   view.promised_bytes > view.claim_bytes ||
				   (m->limits.growth_tokens == 0 && view.promised_bytes != view.claim_bytes)))
			model_fail(m, "a turn's claim or promise differs");
	}
	/* Work is never left lying, unless pages wait for their records. */
	if (could && !m->batch && (!m->limits.hold_until_durable || doomed == 0) && m->copies == 0)
		model_fail(m, "there is work, and no batch");
}

/* Units that are not on the device. */
uint32_t model_missing(const struct model *m, const struct model_session *x)
{
	uint32_t missing = 0;
	(void)m;
	for (uint32_t u = 0; u < x->unit_count[0]; u++)
		missing += x->unit[0][u] >= SIM_PAGES;
	return missing;
}

/* Something of the session is not on the device, or not yet. */
int model_on_the_way(const struct model *m, const struct model_session *x)
{
	for (uint32_t g = 0; g < m->limits.group_count; g++)
		for (uint32_t u = x->low[g]; u < x->unit_count[g]; u++)
			if (x->unit[g][u] >= SIM_PAGES || m->page[g][x->unit[g][u]].copying ||
			    m->page[g][x->unit[g][u]].lost)
				return 1;
	return 0;
}

/* A page of the disk that the session owns from now on, with what the event says is in it. */
void model_found(struct model *m, const struct effect *f)
{
	struct model_session *x = &m->session[f->session];
	uint32_t g = f->as.run.group, unit = x->unit_count[g], span = m->limits.page_tokens;
	uint32_t id = model_id(PLACE_DISK, f->as.run.page_first);
	struct model_page *page = &m->page[g][id];
	if (f->as.run.page_count != 1 || f->as.run.page_first != m->event.as.found.slot[g])
		model_fail(m, "ASSIGN of another page than the one found");
	if (page->state != PAGE_FREE || f->as.run.tag_first != m->next_tag++)
		model_fail(m, "a page found where one was, or with a tag used before");
	if (unit * span != f->as.run.position_first || f->session != m->event.session)
		model_fail(m, "a page found for another position than the next");
	page->state = PAGE_OWNED;
	page->tag = f->as.run.tag_first;
	page->principal = x->principal;
	memset(page->slot, 0xee, sizeof page->slot);
	for (uint32_t i = unit * span; i < x->resident; i++)
		page->slot[i % span] = x->token[i];
	x->unit[g][x->unit_count[g]++] = id;
}

void model_after(struct model *m, const struct effects *out)
{
	struct owned sum[SCHED_GROUP_MAX];
	memset(sum, 0, sizeof sum);
	for (uint32_t i = 0; i < out->count && !m->failure; i++)
		model_effect(m, &out->list[i], out);
	if (m->arriving != SCHED_NONE)
		m->session[m->turn[m->arriving].session].next = m->arriving;
	m->arriving = SCHED_NONE;
	if (m->answered > 1)
		model_fail(m, "more than one refusal for one turn");
	for (uint32_t i = 0; i < SIM_SESSIONS && !m->failure; i++)
		session_after(m, i);
	for (uint32_t g = 0; g < m->limits.group_count && !m->failure; g++)
		for (uint32_t i = 0; i < m->limits.group[g].page_count[PLACE_DEVICE]; i++)
			page_after(m, g, i, &sum[g]);
	if (m->failure)
		return;
	model_windows_after(m);
	promises_after(m, sum[0].yielding);
	ledger_after(m, sum);
	low_after(m, PLACE_HOST, ACCOUNT_HOST);
	low_after(m, PLACE_DISK, ACCOUNT_DISK);
	turns_after(m);
}
