/*
 * The part of the plain model that carries out copies: what a page holds goes along when it is told, and
 * may be read when the copy is done.
 */
#include "tests/model.h"

#include <string.h>

void model_copy(struct model *m, const struct effect *f)
{
	uint32_t g = f->as.copy.group, from = model_id(f->as.copy.place_from, f->as.copy.page_from);
	uint32_t to = model_id(f->as.copy.place_to, f->as.copy.page_to), moved = 0;
	struct model_page *source = &m->page[g][from], *target = &m->page[g][to];
	struct model_copy *copy = m->copy;
	while (copy->id)
		copy++;
	if (source->state != PAGE_OWNED || source->copying || source->tag != f->as.copy.tag_from)
		model_fail(m, "COPY of a page that is not there");
	if (target->state != PAGE_FREE || f->as.copy.tag_to != m->next_tag++)
		model_fail(m, "COPY to a page that is not free, or with a tag used before");
	for (uint32_t i = 0; i < SIM_SESSIONS; i++) {
		struct model_session *x = &m->session[i];
		for (uint32_t u = x->low[g]; x->open && u < x->unit_count[g]; u++) {
			if (x->unit[g][u] != from)
				continue;
			x->unit[g][u] = to;
			moved++;
			if (from < SIM_PAGES && x->turn != SCHED_NONE && m->turn[x->turn].running)
				model_fail(m, "COPY takes a page from a running turn");
			uint32_t left = x->resident - u * m->limits.page_tokens;
			if (left > m->limits.page_tokens)
				left = m->limits.page_tokens;
			if (i == f->session && f->as.copy.tokens != left)
				model_fail(m, "COPY of another number of tokens");
		}
	}
	if (moved == 0)
		model_fail(m, "COPY of a page that nobody owns");
	copy->id = f->as.copy.copy;
	copy->group = g;
	copy->from = from;
	copy->to = to;
	memcpy(copy->slot, source->slot, sizeof copy->slot);
	memset(target->slot, 0xee, sizeof target->slot);
	target->state = PAGE_OWNED;
	target->tag = f->as.copy.tag_to;
	target->copying = 1;
	target->lost = source->lost;
	source->state = PAGE_MOVING;
	source->doom_step = m->step;
	m->copies++;
}
