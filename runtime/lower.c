/*
 * The place below the device: a slab of host memory, and the copies to and from it. The engine
 * carries them out, in the order in which the scheduler asked for them; the loop tells it when each
 * is done. A page takes the digest of its valid positions along, and what comes back must have the
 * same one: else the copy has failed, and its tokens are computed again.
 *
 * For the audit log a page that leaves the device is free, and one that comes back is assigned: the
 * log tells who owned which page of the device, and under which tag.
 */
#include <stdlib.h>
#include <string.h>

#include "runtime/events.h"

static uint32_t host_pages(const struct daemon *d)
{
	return d->limits.group[0].page_count[PLACE_HOST];
}

int lower_open(struct daemon *d)
{
	const uint32_t pages = host_pages(d);
	if (pages == 0)
		return 0;
	/* Each copy in flight has two pages to itself, one of them here. */
	d->copied = calloc(pages, sizeof *d->copied);
	d->host_sums = calloc(pages, sizeof *d->host_sums);
	d->host = memory_reserve(pages * d->limits.group[0].page_bytes);
	return d->copied && d->host_sums && d->host ? 0 : -ERR_MEMORY;
}

static void record_copy(struct daemon *d, const struct effect *e, uint8_t kind, uint32_t page, uint64_t tag)
{
	const struct session *s = &d->sessions[e->session_key];
	struct session_view view;
	struct page_view seen;
	struct store_record r = {.kind = kind, .place = PLACE_DEVICE, .principal = e->principal,
				 .group = e->as.copy.group, .page_first = page, .page_count = 1, .tag_first = tag};
	if (sched_page(d->sched, e->as.copy.group, page, &seen) == 0 && kind == STORE_ASSIGN)
		r.position_first = seen.position;
	if (s->used && sched_session(d->sched, e->session, &view) == 0) {
		memcpy(r.session, s->id.bytes, sizeof r.session);
		r.turn = (uint32_t)s->turn;
	}
	step_record(d, &r);
}

void lower_copy(struct daemon *d, const struct effect *e)
{
	struct engine_job *job = d->job;
	const bool up = e->as.copy.place_to == PLACE_DEVICE;
	const uint32_t slot = up ? e->as.copy.page_from : e->as.copy.page_to;
	CHECK(job);
	CHECK(e->as.copy.group == 0);
	CHECK(slot < host_pages(d));
	CHECK(job->copy_count < job->copy_max);
	job->copy[job->copy_count++] = (struct engine_copy){
		.copy = e->as.copy.copy, .page = up ? e->as.copy.page_to : e->as.copy.page_from, .up = up,
		.tokens = e->as.copy.tokens, .tag = e->as.copy.tag_to, .sum = &d->host_sums[slot],
		.bytes = d->host + slot * d->limits.group[0].page_bytes};
	if (up) {
		d->page_principal[e->as.copy.page_to] = e->principal;
		record_copy(d, e, STORE_ASSIGN, e->as.copy.page_to, e->as.copy.tag_to);
	} else {
		record_copy(d, e, STORE_FREE, e->as.copy.page_from, e->as.copy.tag_from);
	}
}

/* A job with copies and no batch goes as soon as there is another one to fill. */
void lower_submit(struct daemon *d)
{
	struct engine_job *next;
	if (!d->job || d->job->copy_count == 0 || !(next = engine_job(d->engine)))
		return;
	engine_submit(d->engine, d->job);
	d->job = next;
}

/* Before the job is released: what it copied. */
void lower_take(struct daemon *d, const struct engine_job *job)
{
	for (uint32_t i = 0; i < job->copy_count; i++) {
		CHECK(d->copied_count < host_pages(d));
		const uint32_t at = (d->copied_first + d->copied_count++) % host_pages(d);
		d->copied[at] = (struct copied){job->copy[i].copy, job->err ? -job->err : job->copy[i].err};
		if (d->copied[at].err)
			log_say(LOG_ERROR, "a page could not be moved: %s; its tokens will be computed again",
				err_text(-d->copied[at].err));
	}
}

/* Tells the scheduler, as far as the audit log has room. */
void lower_tell(struct daemon *d)
{
	while (d->copied_count && step_room(d)) {
		const struct copied *c = &d->copied[d->copied_first];
		struct event e = {.kind = EVENT_COPY_DONE, .session = SCHED_NONE, .turn = SCHED_NONE,
				  .now_us = d->now_us};
		e.as.copy.copy = c->copy;
		e.as.copy.err = (uint32_t)c->err;
		d->copied_first = (d->copied_first + 1) % host_pages(d);
		d->copied_count--;
		kv_copied(d, e.as.copy.copy, e.as.copy.err == 0);
		step(d, &e, NULL);
	}
}
