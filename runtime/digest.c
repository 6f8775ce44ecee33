/*
 * Digests of full pages: made once a page is full, compared when a session's next turn begins and,
 * at a limited rate, while the page is at rest. A page that is not what it was loses its tag, so
 * the turn that needs it ends before a token of it is sampled. And the faults that --inject makes
 * on the pages of a batch.
 *
 * The engine computes; a job's requests lie in the job. Which digest belongs to which page is kept
 * here, by the page's tag: a page that has another owner has no digest.
 */
#include <stdlib.h>

#include "runtime/daemon.h"

enum {
	MADE_PER_ENTRY = 4,       /* beyond those that the entry's own rows fill */
	SCRUB_PAGES_MAX = 64,     /* of one job */
	SCRUB_LOOKS_MAX = 4096,   /* pages looked at in one turn of the loop */
	GIVEN_TAG_BIT = 62        /* of tags that no assignment ever gives */
};

int digests_open(struct daemon *d)
{
	d->sums = calloc(pages_count(d, PLACE_DEVICE), sizeof *d->sums);
	return d->sums ? 0 : -ERR_MEMORY;
}

static void digest_ask(struct engine_job *job, struct page_sum *sum, uint32_t group,
		       const struct page_ref *ref, bool compare)
{
	if (job->digest_count == job->digest_max || sum->asked == ref->tag)
		return;
	sum->asked = ref->tag;
	struct engine_digest *g = &job->digest[job->digest_count++];
	*g = (struct engine_digest){.group = group, .page = ref->page, .tag = ref->tag};
	if (compare) {
		g->want[0] = sum->digest[0];
		g->want[1] = sum->digest[1];
	}
}

static struct page_sum *sum_of(const struct daemon *d, uint32_t group, uint32_t page)
{
	return &d->sums[pages_number(d, PLACE_DEVICE, group, page)];
}

void digests_entry(struct daemon *d, const struct batch_entry *e, uint32_t group, uint32_t first,
		   const struct page_ref *refs, bool resumes)
{
	const uint32_t span = d->limits.page_tokens, full = e->position_first / span;
	uint32_t made = 0;
	if (d->options.digest == DIGEST_OFF || d->options.integrity == INTEGRITY_OFF)
		return;
	for (uint32_t p = 0; first + p < full; p++) {
		struct page_sum *sum = sum_of(d, group, refs[p].page);
		if (sum->tag == refs[p].tag) {
			if (resumes)
				digest_ask(d->job, sum, group, &refs[p], true);
		} else if (made++ < MADE_PER_ENTRY + e->row_count / span) {
			digest_ask(d->job, sum, group, &refs[p], false);
		}
	}
}

void digests_take(struct daemon *d, const struct engine_job *job)
{
	for (uint32_t i = 0; i < job->digest_count; i++) {
		const struct engine_digest *g = &job->digest[i];
		struct page_sum *sum = sum_of(d, g->group, g->page);
		if (sum->asked == g->tag)
			sum->asked = 0;
		if (job->err)
			continue;
		if (g->state == DIGEST_MADE) {
			sum->tag = g->tag;
			sum->digest[0] = g->got[0];
			sum->digest[1] = g->got[1];
		} else if (g->state == DIGEST_OTHER) {
			sum->bad = g->tag;
			if (job->batch == 0)
				step_incident(d, &(struct ops_fault){.page = g->page, .group = g->group},
					      REASON_DIGEST, NONE);
		}
	}
	d->scrubbing = d->scrubbing && (job->batch != 0 || job->digest_count == 0);
}

bool digest_bad(const struct daemon *d, uint32_t group, uint32_t page, uint64_t tag)
{
	return sum_of(d, group, page)->bad == tag && tag != 0;
}

/* Faults on purpose: see inject_entry below. */

static void poke(struct daemon *d, uint32_t kind, uint32_t group, uint32_t page, uint64_t value)
{
	struct engine_job *job = d->job;
	if (job->poke_count < ENGINE_POKES)
		job->poke[job->poke_count++] = (struct engine_poke){.kind = kind, .group = group, .page = page,
								    .value = value};
}

static void told(enum inject_kind kind, uint32_t page)
{
	log_say(LOG_DEBUG, "fault on purpose: %s, page %u", inject_name(kind), page);
}

/* A page of a session at rest that can be compared, or has no digest yet. */
static bool scrub_wants(const struct daemon *d, uint32_t group, uint32_t page, struct page_ref *ref,
			bool *compare)
{
	struct page_view v;
	struct session_view owner;
	const struct page_sum *sum = sum_of(d, group, page);
	if (sched_page(d->sched, group, page, &v) != 0 || (v.state != PAGE_OWNED && v.state != PAGE_SHARED) ||
	    sum->bad == v.tag)
		return false;
	if (v.session != SCHED_NONE &&
	    (sched_session(d->sched, v.session, &owner) != 0 || owner.state != SESSION_IDLE ||
	     v.position + d->limits.page_tokens > owner.resident))
		return false;
	*ref = (struct page_ref){.page = page, .tag = v.tag};
	*compare = sum->tag == v.tag;
	return true;
}

uint64_t digests_scrub(struct daemon *d)
{
	const uint32_t pages = pages_count(d, PLACE_DEVICE);
	uint64_t us = 0;
	if (d->options.digest != DIGEST_SCRUB || d->options.integrity == INTEGRITY_OFF || d->scrubbing)
		return UINT64_MAX;
	/* Where the device has work the batches make and compare; nothing waits for this. */
	if (d->in_flight || engine_spare(d->engine) < 2 || d->job->assign_count || d->job->copy_count ||
	    d->now_us < d->scrub_next_us)
		return d->scrub_next_us > d->now_us ? d->scrub_next_us : UINT64_MAX;
	if (d->scrub_page == 0)
		d->scrub_began_us = d->now_us;
	uint32_t looks = 0;
	for (; looks < SCRUB_LOOKS_MAX && d->scrub_page < pages && d->job->digest_count < SCRUB_PAGES_MAX;
	     looks++, d->scrub_page++) {
		struct page_ref ref;
		bool compare;
		uint32_t page = d->scrub_page;
		const uint32_t group = pages_group(d, PLACE_DEVICE, &page);
		const uint64_t bytes = d->limits.group[group].page_bytes;
		if (!scrub_wants(d, group, page, &ref, &compare))
			continue;
		us += bytes * 1000000 / (d->options.scrub_bytes + 1) + 1;
		digest_ask(d->job, sum_of(d, group, page), group, &ref, compare);
		if (compare && inject_now(&d->inject, INJECT_BITS_IDLE)) {
			poke(d, POKE_BIT, group, ref.page, inject_random(&d->inject, bytes * 8));
			told(INJECT_BITS_IDLE, ref.page);
		}
	}
	const uint32_t asked = d->job->digest_count;
	us += d->limits.group[0].page_bytes * 1000000 / (d->options.scrub_bytes + 1) + 1;
	d->scrub_next_us = d->now_us + us;
	if (d->scrub_page == pages) {
		d->scrub_page = 0;
		if (d->scrub_next_us < d->scrub_began_us + d->options.scrub_ms * 1000)
			d->scrub_next_us = d->scrub_began_us + d->options.scrub_ms * 1000;
	}
	if (asked) {
		d->scrubbing = true;
		CHECK(step_job_send(d));
	}
	return d->scrub_next_us;
}

/* One fault in a turn at most, so that it can be told what found it. */
void inject_entry(struct daemon *d, struct call *c, const struct batch_entry *e, uint32_t pages,
		  bool resumes, uint64_t batch)
{
	struct inject *n = &d->inject;
	const uint32_t full = e->position_first / d->limits.page_tokens;
	if (!n->on || c->poked)
		return;
	/* All refs of the entry: the first `pages` are of group 0; the others of a group with a window. */
	const uint32_t first = d->limits.group_count > 1 ? sched_page_first(d->sched, e->session, 1) : 0;
	const uint32_t all = d->limits.group_count > 1 ? 2 * pages - first : pages;
	const uint32_t which = (uint32_t)inject_random(n, all), group = which >= pages;
	struct page_ref *const own = d->refs + (group ? pages : 0), *at = &d->refs[which];
	const uint32_t owns = group ? pages - first : pages;
	const uint32_t whole = !group ? full : full > first ? full - first : 0;
	const struct page_ref *idle = resumes && whole ? &own[inject_random(n, whole)] : NULL;
	const uint64_t bits = d->limits.group[group].page_bytes * 8;
	c->poked = true;
	c->poked_batch = batch;
	if (inject_now(n, INJECT_TAG_DEVICE)) {
		poke(d, POKE_TAG, group, at->page, 1ull << inject_random(n, 64));
		told(INJECT_TAG_DEVICE, at->page);
	} else if (inject_now(n, INJECT_DOUBLE)) {
		poke(d, POKE_GIVE, group, at->page, 1ull << GIVEN_TAG_BIT | ++n->random);
		told(INJECT_DOUBLE, at->page);
	} else if (inject_now(n, INJECT_EARLY)) {
		poke(d, POKE_TAKE, group, at->page, 1ull << GIVEN_TAG_BIT | ++n->random);
		told(INJECT_EARLY, at->page);
	} else if (inject_now(n, INJECT_TAG_TABLE)) {
		told(INJECT_TAG_TABLE, at->page);
		at->tag ^= 1ull << inject_random(n, 64);
	} else if (owns > 1 && inject_now(n, INJECT_SWAP)) {
		const uint32_t i = (uint32_t)(at - own), page = at->page;
		struct page_ref *other = &own[(i + 1 + inject_random(n, owns - 1)) % owns];
		told(INJECT_SWAP, page);
		at->page = other->page;
		other->page = page;
	} else if (idle && d->options.digest != DIGEST_OFF && sum_of(d, group, idle->page)->tag == idle->tag &&
		   sum_of(d, group, idle->page)->asked == idle->tag && inject_now(n, INJECT_BITS_IDLE)) {
		/* The last of them have no digest yet: those are not at rest. */
		poke(d, POKE_BIT, group, idle->page, inject_random(n, bits));
		told(INJECT_BITS_IDLE, idle->page);
	} else {
		c->poked = !resumes && inject_now(n, INJECT_BITS_LIVE);
		if (!c->poked)
			return;
		poke(d, POKE_BIT, group, at->page, inject_random(n, bits));
		told(INJECT_BITS_LIVE, at->page);
		if (d->outside)
			d->outside(d, c->session);
	}
}
