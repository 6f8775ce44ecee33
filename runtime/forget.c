/*
 * session.forget: text, tokens and pages of a session go, everywhere. On the disk its key is written over,
 * so that its rows, its answers and what old pages of the file still hold are nothing; in memory its
 * history, its answers and what was last in hand are zeroed; its pages are zeroed on the device as they
 * come back, and then whatever is nobody's on device and host: what it had there earlier, before it moved,
 * was cut or gave way, is among that. The audit log keeps numbers and ids only, and says that it was done.
 * What a fork of it has is the fork's.
 */
#include <sodium.h>
#include <string.h>
#include <sys/mman.h>

#include "runtime/forget.h"
#include "runtime/keep.h"

void forget_slot(const struct daemon *d, struct call *c)
{
	const size_t context = d->limits.context_tokens;
	const size_t text = c->text_used > c->text_length ? c->text_used : c->text_length;
	sodium_memzero(c->text, text > c->blob_length ? text : c->blob_length);
	sodium_memzero(c->end_body, c->end_length);
	sodium_memzero(c->token, (c->sampled < context ? c->sampled : context) * sizeof *c->token);
	sodium_memzero(c->stop_bytes, sizeof c->stop_bytes);
}

/* Its calls: answers that are only kept so that they can be asked for again go now, also from slots that
   were given back; what runs or is being sent is zeroed at its end. */
static void calls_forget(struct daemon *d, const struct wire_id *owner)
{
	for (uint32_t i = 0; i < d->options.calls; i++) {
		struct call *c = &d->calls[i];
		if (memcmp(&c->owner, owner, sizeof *owner) != 0)
			continue;
		c->forgotten = true;
		if (c->state == CALL_FREE)
			forget_slot(d, c);
		else if (call_kept(c))
			call_free(d, i);
	}
}

/* What was last rendered, tokenised, read or put together here may be its. */
static void hands_wipe(struct daemon *d)
{
	const size_t context = d->limits.context_tokens;
	sodium_memzero(d->ids, (context + 1) * sizeof *d->ids);
	sodium_memzero(d->undo.token, context * sizeof *d->undo.token);
	sodium_memzero(d->out, d->out_max);
	if (d->rendering.bytes)
		sodium_memzero(d->rendering.bytes, d->rendering.length);
	rendering_free(&d->rendering);
	rendering_init(&d->rendering);
	if (d->scratch)
		madvise(d->scratch, KEEP_SCRATCH_BYTES, MADV_DONTNEED);
}

void session_unkeep(struct daemon *d, uint32_t session)
{
	struct session *s = &d->sessions[session];
	s->forgets = d->forget_due = true;
	calls_forget(d, &s->id); /* before its turn ends: nothing of it is kept any more */
	keep_forget(d, &s->id);
}

void session_forget(struct daemon *d, uint32_t session)
{
	struct session *s = &d->sessions[session];
	record_session(d, s, STORE_FORGET);
	sodium_memzero(s->label, sizeof s->label);
	if (s->form && s->form->sessions == 1 && s->form->tools)
		sodium_memzero(s->form->tools, strlen(s->form->tools));
	/* Before the step that ends it is closed: on disk with that, and so before anybody is told. */
	session_unkeep(d, session);
	session_end(d, session);
	hands_wipe(d);
}

void session_method_forget(struct daemon *d, uint32_t call, const struct wire_call *m)
{
	const uint32_t slot = d->calls[call].session;
	struct wire_end end = {.status = {"ok", 2}};
	(void)m;
	session_end_fields(&d->sessions[slot], &end);
	d->calls[call].session = NONE;
	memset(&d->calls[call].owner, 0, sizeof d->calls[call].owner); /* its END speaks of no text */
	session_forget(d, slot);
	call_end(d, call, &end);
}

/* Pages of the device. */

static uint32_t *page_had(const struct daemon *d, uint32_t group, uint32_t page)
{
	return &d->page_principal[pages_number(d, PLACE_DEVICE, group, page)];
}

static void page_forgotten(struct daemon *d, uint32_t *had)
{
	d->wipe_count += *had != PAGE_FORGOTTEN;
	*had = PAGE_FORGOTTEN;
}

void forget_page_given(struct daemon *d, uint32_t group, uint32_t page, uint32_t principal)
{
	uint32_t *had = page_had(d, group, page);
	d->wipe_count -= *had == PAGE_FORGOTTEN;
	*had = principal;
}

/* A page that did not come up holds who knows what. One that was forgotten on its way holds it again. */
void forget_page_copied(struct daemon *d, const struct engine_copy *c, int err)
{
	uint32_t *had = page_had(d, c->group, c->page);
	if (*had == PAGE_LEAVING || (c->up && (*had == NONE || *had == PAGE_FORGOTTEN)))
		page_forgotten(d, had);
	else if (c->up && err)
		*had = PRINCIPAL_MIXED;
	else
		return;
	d->forget_due = true;
}

void forget_pages(struct daemon *d, const struct effect *e)
{
	if (e->session == SCHED_NONE || !d->sessions[e->session_key].forgets)
		return;
	d->forget_due = true;
	for (uint32_t i = 0; i < e->as.run.page_count && e->as.run.place == PLACE_DEVICE; i++)
		page_forgotten(d, page_had(d, e->as.run.group, e->as.run.page_first + i));
}

/* Pages that nobody holds, whoever had them. */
static void left_mark(struct daemon *d)
{
	const uint32_t pages = pages_count(d, PLACE_DEVICE);
	for (uint32_t i = 0; i < pages; i++) {
		uint32_t page = i, *had = &d->page_principal[i];
		struct page_view v;
		if (*had == NONE || *had == PAGE_FORGOTTEN || *had == PAGE_LEAVING)
			continue;
		const uint32_t group = pages_group(d, PLACE_DEVICE, &page);
		CHECK(sched_page(d->sched, group, page, &v) == 0);
		if (v.owners == 0 && v.state == PAGE_MOVING)
			*had = PAGE_LEAVING;
		else if (v.owners == 0)
			page_forgotten(d, had);
	}
}

uint64_t forget_tick(struct daemon *d)
{
	if (!d->forget_due)
		return UINT64_MAX;
	left_mark(d);
	forget_submit(d);
	d->forget_due = !lower_wipe(d);
	return d->forget_due ? d->now_us : UINT64_MAX;
}

/* One job does not hold all of it; the rest waits for the next. */
static void group_add(struct daemon *d, uint32_t group, uint64_t *bytes)
{
	struct engine_job *job = d->job;
	const uint32_t pages = d->limits.group[group].page_count[PLACE_DEVICE];
	uint32_t *had = page_had(d, group, 0);
	for (uint32_t page = 0; page < pages && d->wipe_count > 0; page++) {
		if (had[page] != PAGE_FORGOTTEN)
			continue;
		if (job->assign_count == job->assign_max || *bytes >= FORGET_STEP_BYTES)
			return;
		struct engine_assign *a = &job->assign[job->assign_count++];
		*a = (struct engine_assign){.group = group, .page_first = page, .clear = 1};
		for (; page < pages && had[page] == PAGE_FORGOTTEN && *bytes < FORGET_STEP_BYTES; page++) {
			had[page] = NONE;
			d->wipe_count--;
			a->page_count++;
			*bytes += d->limits.group[group].page_bytes;
		}
	}
}

/* What the job in hand zeroes already: it may wait for a spare one for a while. */
static uint64_t hand_bytes(const struct daemon *d)
{
	uint64_t bytes = 0;
	for (uint32_t i = 0; i < d->job->assign_count; i++) {
		const struct engine_assign *a = &d->job->assign[i];
		bytes += a->clear ? a->page_count * d->limits.group[a->group].page_bytes : 0;
	}
	return bytes;
}

void forget_submit(struct daemon *d)
{
	uint64_t bytes = d->wipe_count ? hand_bytes(d) : 0;
	for (uint32_t g = 0; g < d->limits.group_count && d->wipe_count > 0; g++)
		group_add(d, g, &bytes);
	/* Runs to be zeroed are all that a job without a batch has of these. */
	if (d->job->assign_count > 0)
		(void)step_job_send(d);
}
