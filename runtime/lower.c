/*
 * The places below the device: a slab of host memory, and the copies to and from it. The engine
 * carries them out, in the order in which the scheduler asked for them; the loop tells it when each
 * is done. A page takes the digest of its valid positions along, and what comes back must have the
 * same one: else the copy has failed, and its tokens are computed again. What goes to the disk or comes
 * from there is lower_disk.c's.
 *
 * For the audit log a page that leaves the device is free, and one that comes back is assigned: the
 * log tells who owned which page of the device, and under which tag.
 */
#include <stdlib.h>
#include <string.h>

#include "runtime/events.h"
#include "runtime/forget.h"

static uint32_t host_pages(const struct daemon *d)
{
	return pages_count(d, PLACE_HOST);
}

/* Group after group. */
uint8_t *lower_host_at(const struct daemon *d, uint32_t group, uint32_t slot)
{
	uint8_t *at = d->host;
	for (uint32_t g = 0; g < group; g++)
		at += d->limits.group[g].page_count[PLACE_HOST] * d->limits.group[g].page_bytes;
	return at + slot * d->limits.group[group].page_bytes;
}

/* Each copy in flight has two pages to itself, one of them on a lower place. */
static uint32_t copies_most(const struct daemon *d)
{
	return host_pages(d) + pages_count(d, PLACE_DISK);
}

bool lower_wipe(struct daemon *d)
{
	uint64_t bytes = 0;
	lower_disk_wipe(d);
	for (uint32_t i = 0; i < host_pages(d); i++) {
		uint32_t slot = i;
		/* Whether it is held, too: what goes up has no owner here any more when it is there. */
		if (d->host_state[i] & HOST_BUSY)
			d->host_state[i] |= HOST_WIPE;
		if (d->host_state[i] & (HOST_HELD | HOST_BUSY) || d->host_state[i] == 0)
			continue;
		if (bytes >= FORGET_STEP_BYTES)
			return false;
		const uint32_t group = pages_group(d, PLACE_HOST, &slot);
		memset(lower_host_at(d, group, slot), 0, d->limits.group[group].page_bytes);
		bytes += d->limits.group[group].page_bytes;
		d->host_state[i] = 0;
	}
	return true;
}

void lower_host_copied(struct daemon *d, uint32_t number, bool leaves)
{
	uint8_t *state = &d->host_state[number];
	*state &= (uint8_t)~(leaves ? HOST_BUSY | HOST_HELD : HOST_BUSY);
	d->forget_due = d->forget_due || (*state & (HOST_WIPE | HOST_HELD)) == HOST_WIPE;
}

int lower_open(struct daemon *d)
{
	const uint32_t pages = host_pages(d);
	if (copies_most(d) == 0)
		return 0;
	d->copied = calloc(copies_most(d), sizeof *d->copied);
	if (!d->copied)
		return -ERR_MEMORY;
	if (pages == 0)
		return 0;
	d->host_sums = calloc(pages, sizeof *d->host_sums);
	d->host_state = calloc(pages, sizeof *d->host_state);
	d->host = memory_reserve(groups_bytes(d, PLACE_HOST));
	if (!d->host_sums || !d->host_state || !d->host)
		return -ERR_MEMORY;
	const uint64_t bytes = groups_bytes(d, PLACE_HOST);
	if (forward_ops(d->forward)->host_pin(forward_device(d->forward), d->host, bytes) != 0)
		log_say(LOG_NOTICE, "the %.1f MiB of host memory for pages cannot be pinned: copies are slower",
			(double)bytes / (1 << 20));
	return 0;
}

/* Nothing is under way any more. */
void lower_close(struct daemon *d)
{
	if (d->host)
		memory_release(d->host, groups_bytes(d, PLACE_HOST));
	free(d->host_state);
	free(d->host_sums);
	free(d->copied);
}

/* A page leaves the device, comes to it, or goes between the places below. */
static void record_copy(struct daemon *d, const struct effect *e)
{
	const bool up = e->as.copy.place_to == PLACE_DEVICE, down = e->as.copy.place_from == PLACE_DEVICE;
	const uint8_t kind = up ? STORE_ASSIGN : down ? STORE_FREE : STORE_MOVE;
	const uint32_t page = up ? e->as.copy.page_to : e->as.copy.page_from;
	const struct session *s = &d->sessions[e->session_key];
	struct session_view view;
	struct page_view seen;
	const uint64_t other = up ? e->as.copy.place_from : e->as.copy.place_to;
	struct store_record r = {
		.kind = kind, .reason = up ? ASSIGN_MOVED : down ? FREE_MOVED : 0, .principal = e->principal,
		.place = (uint16_t)(up ? e->as.copy.place_to : e->as.copy.place_from), .group = e->as.copy.group,
		.page_first = page, .page_count = 1, .tag_first = up ? e->as.copy.tag_to : e->as.copy.tag_from,
		.value = {other << 32 | (up ? e->as.copy.page_from : e->as.copy.page_to),
			  up ? e->as.copy.tag_from : e->as.copy.tag_to}};
	if (sched_page(d->sched, e->as.copy.group, page, &seen) == 0 && kind == STORE_ASSIGN)
		r.position_first = seen.position;
	if (s->used && sched_session(d->sched, e->session, &view) == 0) {
		memcpy(r.session, s->id.bytes, sizeof r.session);
		r.turn = (uint32_t)s->turn;
	}
	step_record(d, &r);
}

static void host_copy(struct daemon *d, const struct effect *e, bool up)
{
	struct engine_job *job = d->job;
	const uint32_t slot = up ? e->as.copy.page_from : e->as.copy.page_to;
	const uint32_t group = e->as.copy.group, number = pages_number(d, PLACE_HOST, group, slot);
	const uint64_t bytes = d->limits.group[group].page_bytes;
	CHECK(job->copy_count < job->copy_max);
	job->copy[job->copy_count++] = (struct engine_copy){
		.copy = e->as.copy.copy, .group = group, .page = up ? e->as.copy.page_to : e->as.copy.page_from,
		.up = up, .tokens = e->as.copy.tokens, .tag = e->as.copy.tag_to, .sum = &d->host_sums[number],
		.bytes = lower_host_at(d, group, slot), .stage = NONE,
		.skip = !up && inject_now(&d->inject, INJECT_COPY_SKIP),
		.late = inject_now(&d->inject, INJECT_COPY_LATE)};
	d->host_state[number] = HOST_BYTES | HOST_HELD | HOST_BUSY;
	/* Nobody writes there now: the page is on its way up. */
	if (up && inject_now(&d->inject, INJECT_BITS_HOST))
		lower_host_at(d, group, slot)[inject_random(&d->inject, bytes)] ^= 1;
}

void lower_copy(struct daemon *d, const struct effect *e)
{
	const bool up = e->as.copy.place_to == PLACE_DEVICE;
	const uint32_t group = e->as.copy.group;
	if (e->as.copy.place_from == PLACE_DISK || e->as.copy.place_to == PLACE_DISK)
		lower_disk_copy(d, e);
	else
		host_copy(d, e, up);
	if (up)
		forget_page_given(d, group, e->as.copy.page_to, e->principal);
	record_copy(d, e);
}

/* A job with copies and no batch goes as soon as there is another one to fill. */
void lower_submit(struct daemon *d)
{
	lower_disk_pump(d);
	if (d->job->copy_count > 0 && step_job_send(d))
		lower_disk_pump(d);
}

void lower_done(struct daemon *d, uint64_t copy, int err)
{
	CHECK(d->copied_count < copies_most(d));
	const uint32_t at = (d->copied_first + d->copied_count++) % copies_most(d);
	d->copied[at] = (struct copied){copy, err};
}

/* A page of the host that is not what it was. */
static void host_incident(struct daemon *d, const struct engine_copy *c)
{
	uint32_t page = (uint32_t)(c->sum - d->host_sums);
	const uint32_t group = pages_group(d, PLACE_HOST, &page);
	struct store_record r = {.kind = STORE_INCIDENT, .reason = REASON_LOWER, .place = PLACE_HOST,
				 .group = group, .page_first = page, .page_count = 1, .tag_first = c->tag};
	step_record(d, &r);
	d->incidents[REASON_LOWER]++;
}

/* Before the job is released: what it copied. A page that did not come up holds who knows what: it is
   cleared before anybody gets it. */
void lower_take(struct daemon *d, const struct engine_job *job)
{
	for (uint32_t i = 0; i < job->copy_count; i++) {
		const struct engine_copy *c = &job->copy[i];
		const int err = job->err ? -job->err : c->err;
		forget_page_copied(d, c, err);
		if (c->stage != NONE) {
			lower_disk_took(d, c->stage, err);
			continue;
		}
		/* What went up is needed here no more. */
		lower_host_copied(d, (uint32_t)(c->sum - d->host_sums), c->up);
		lower_done(d, c->copy, err);
		if (err && c->up && err == ERR_INTEGRITY)
			host_incident(d, c);
		if (err)
			log_say(d->sink ? LOG_DEBUG : LOG_ERROR,
				"a page could not be moved: %s; its tokens will be computed again",
				err_text(-err));
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
		d->copied_first = (d->copied_first + 1) % copies_most(d);
		d->copied_count--;
		kv_copied(d, e.as.copy.copy, e.as.copy.err == 0);
		step(d, &e, NULL);
	}
}
