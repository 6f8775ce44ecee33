/*
 * What is found on the disk at the start: pages that an earlier process put there, and that prove to
 * be a session's. The session owns them from now on, as if they had gone down in this life; its next
 * turn loads them.
 */
#include "sched/state.h"

/* Takes the slot's page out of the free list: the first page of the list takes the slot over. */
static uint32_t slot_take(struct sched *s, uint32_t group, uint32_t slot)
{
	CHECK(slot < s->limits.group[group].page_count[PLACE_DISK]); /* R6 */
	uint32_t there = *slot_page(s, group, PLACE_DISK, slot);
	CHECK(page_at(s, group, there)->state == PAGE_FREE); /* R6 */
	uint32_t page = page_pop(s, &s->page_free[PLACE_DISK][group], group);
	if (page != there)
		slots_trade(s, group, page, there);
	return page;
}

static void page_found(struct step *p, uint32_t session, struct cursor at, uint32_t group)
{
	struct sched *s = p->s;
	const struct session *x = session_at(s, session);
	uint32_t index = slot_take(s, group, p->event->as.found.slot[group]);
	struct page *page = page_at(s, group, index);
	CHECK(page->place == PLACE_DISK);
	CHECK(page->owners == 0);
	page->tag = s->tag_next++;
	page->next = SCHED_NONE;
	page->unit = at.unit;
	page->owners = 1;
	page->yielding = at.unit >= x->floor;
	page->owner_xor = session;
	page->principal = x->principal;
	page->state = PAGE_OWNED;
	*cursor_entry(s, &at, group) = index;
	ledger_move(s, ACCOUNT_DISK, COLUMN_FREE, COLUMN_RETAINED, s->limits.group[group].page_bytes);
	sole_count(s, group, page, 1);
	struct run run = {EFFECT_ASSIGN, session, group, index, at.unit, 0, page->tag};
	run_emit(p, &run);
}

void on_found(struct step *p)
{
	struct sched *s = p->s;
	uint32_t session = p->event->session, tokens = p->event->as.found.tokens;
	struct session *x = session_at(s, session);
	uint32_t unit = x->units;
	CHECK(!s->windowed); /* R6 */
	CHECK(tokens > 0);
	CHECK(tokens <= s->limits.page_tokens);
	CHECK(x->resident == unit * s->limits.page_tokens); /* R6 */
	CHECK(x->history == x->resident); /* R6 */
	CHECK(x->history + tokens <= s->limits.context_tokens);
	if (!x->pausing)
		retain_begin(s, session);
	table_grow(s, x, unit + 1);
	x->sole++;
	for (uint32_t g = 0; g < s->limits.group_count; g++)
		page_found(p, session, cursor_at(s, session, unit), g);
	x->history += tokens;
	x->resident = x->known = x->history;
	rest_settle(s, session, 0);
}
