/*
 * One event through the scheduler, and its effects carried out: pages to the engine and the audit
 * log, batches built from histories, ends to their calls. Effects change slots and never send.
 */
#define _GNU_SOURCE
#include <inttypes.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/events.h"
#include "runtime/fault.h"
#include "runtime/forget.h"
#include "runtime/keep.h"

enum {
	RATES_US = 1000000,  /* how often the scheduler hears of rates */
	SEND_FIRST_US = 2000 /* of so long a step the device does not miss what sending takes */
};

struct granted step_granted;

int step_open(struct daemon *d)
{
	const struct sched_limits *l = &d->limits;
	const size_t pages = pages_count(d, PLACE_DEVICE);
	void *block = aligned_alloc(64, sched_bytes(l));
	d->effects.capacity = sched_effect_max(l);
	d->effects.list = calloc(d->effects.capacity, sizeof *d->effects.list);
	d->effects.entry_capacity = l->batch_turns;
	d->effects.entries = calloc(l->batch_turns, sizeof *d->effects.entries);
	d->entry = calloc(l->batch_turns, sizeof *d->entry);
	d->entry_call = calloc(l->batch_turns, sizeof *d->entry_call);
	d->entry_sample = calloc(l->batch_turns, sizeof *d->entry_sample);
	d->result = calloc(l->batch_turns, sizeof *d->result);
	d->undo.call = NONE;
	d->undo.token = malloc(l->context_tokens * sizeof *d->undo.token);
	d->refs = calloc((l->context_tokens / l->page_tokens + 2) * l->group_count, sizeof *d->refs);
	d->page_principal = malloc(pages * sizeof *d->page_principal);
	if (!block || !d->effects.list || !d->effects.entries || !d->entry || !d->entry_call ||
	    !d->entry_sample || !d->result || !d->refs || !d->page_principal || !d->undo.token)
		return -ERR_MEMORY;
	memset(d->page_principal, 0xff, pages * sizeof *d->page_principal);
	TRY(digests_open(d));
	TRY(chains_open(d));
	TRY(lower_open(d));
	d->sched = sched_init(block, l);
	d->job = engine_job(d->engine);
	CHECK(d->job);
	return 0;
}

void step_record(struct daemon *d, const struct store_record *record)
{
	if (!d->store)
		return;
	/* Room was made sure of before, so that a refusal means that the writer has failed. */
	if (store_push(d->store, record) != 0)
		d->failed = true;
	d->unclosed = true;
}

void step_record_close(struct daemon *d)
{
	const struct store_record r = {.kind = STORE_STEP_END, .step = d->effects.step};
	if (!d->unclosed)
		return;
	/* Pages that were freed are short: who wants one waits for the record of its release. */
	const uint64_t doomed = sched_ledger(d->sched, ACCOUNT_DEVICE, COLUMN_DOOMED);
	if (doomed > 0 && sched_ledger(d->sched, ACCOUNT_DEVICE, COLUMN_FREE) <= doomed)
		store_hurry(d->store);
	if (store_push(d->store, &r) != 0)
		d->failed = true;
	d->unclosed = false;
}

bool step_room(const struct daemon *d)
{
	return !d->store || (store_room(d->store) > d->effects.capacity + 1024 &&
			     store_keep_room(d->store) > KEEP_STEP_BYTES);
}

static struct session *session_of(struct daemon *d, const struct effect *e)
{
	return e->session == SCHED_NONE ? NULL : &d->sessions[e->session_key];
}

static uint32_t call_of(const struct daemon *d, uint64_t turn_key)
{
	const uint32_t call = (uint32_t)turn_key;
	CHECK(call < d->options.calls);
	CHECK(d->calls[call].generation == (uint32_t)(turn_key >> 32));
	return call;
}

static void record_run(struct daemon *d, const struct effect *e, uint8_t kind, uint8_t reason)
{
	struct store_record r = {
		.kind = kind, .reason = reason, .place = (uint16_t)e->as.run.place,
		.principal = e->principal, .group = e->as.run.group, .page_first = e->as.run.page_first,
		.page_count = e->as.run.page_count, .position_first = e->as.run.position_first,
		.tag_first = e->as.run.tag_first};
	const struct session *s = session_of(d, e);
	if (s && s->used) {
		memcpy(r.session, s->id.bytes, sizeof r.session);
		r.turn = (uint32_t)s->turn;
	}
	step_record(d, &r);
}

/* 1: the pages are zeroed first, since another principal had one of them. */
static uint8_t assign(struct daemon *d, const struct effect *e)
{
	struct engine_job *job = d->job;
	uint32_t clear = 0;
	CHECK(job->assign_count < job->assign_max);
	for (uint32_t i = 0; i < e->as.run.page_count; i++) {
		const uint32_t page = e->as.run.page_first + i;
		const uint32_t had = d->page_principal[pages_number(d, PLACE_DEVICE, e->as.run.group, page)];
		clear |= had != NONE && had != e->principal;
		forget_page_given(d, e->as.run.group, page, e->principal);
	}
	job->assign[job->assign_count++] = (struct engine_assign){
		.group = e->as.run.group, .page_first = e->as.run.page_first,
		.page_count = e->as.run.page_count, .clear = clear, .tag_first = e->as.run.tag_first};
	return (uint8_t)clear;
}

/* The pages of an entry in d->refs, group after group; begins its sequence, and returns how many pages of
   the first group it has. A group with a window begins at its first page. */
static uint32_t entry_pages(struct daemon *d, const struct batch_entry *e, uint32_t slot, bool resumes)
{
	const uint32_t span = d->limits.page_tokens;
	const uint32_t last = e->position_first + e->row_count, units = (last + span - 1) / span;
	uint32_t page_position[OPS_GROUP_MAX] = {0}, at = 0;
	for (uint32_t g = 0; g < d->limits.group_count; g++) {
		const uint32_t first = sched_page_first(d->sched, e->session, g);
		struct page_ref *refs = d->refs + at;
		page_position[g] = first * span;
		CHECK(first <= units);
		CHECK(sched_page_table(d->sched, e->session, g, first, units - first, refs) == units - first);
		digests_entry(d, e, g, first, refs, resumes);
		at += units - first;
	}
	batch_sequence(d->job->builder, slot, page_position);
	return units;
}

/* The rows of an entry; its last one. */
static uint32_t entry_rows(struct batch_builder *b, const struct session *s, const struct batch_entry *e)
{
	enum { PART = 256 };
	const uint32_t last = e->position_first + e->row_count;
	uint32_t row = 0;
	for (uint32_t at = e->position_first; at < last; at += PART) {
		const uint32_t n = last - at < PART ? last - at : PART;
		uint8_t phase[PART];
		session_phases(s, at, n, phase);
		for (uint32_t i = 0; i < n; i++)
			row = batch_row(b, s->token[at + i], at + i, phase[i]);
	}
	return row;
}

/* One entry of the scheduler's batch becomes a sequence with its pages and rows. */
static void entry_build(struct daemon *d, uint32_t i, uint64_t batch)
{
	const struct batch_entry *e = &d->entry[i];
	struct batch_builder *b = d->job->builder;
	struct session_view sv;
	struct turn_view tv;
	CHECK(sched_session(d->sched, e->session, &sv) == 0);
	CHECK(sched_turn(d->sched, e->turn, &tv) == 0);
	const struct session *s = &d->sessions[sv.key];
	d->entry_call[i] = call_of(d, tv.key);
	CHECK(e->position_first + e->row_count <= s->history);
	const bool resumes = !d->calls[d->entry_call[i]].begun && e->position_first > 0;
	const uint32_t pages = entry_pages(d, e, (uint32_t)sv.key, resumes);
	inject_entry(d, &d->calls[d->entry_call[i]], e, pages, resumes, batch);
	d->calls[d->entry_call[i]].begun = true;
	for (uint32_t g = 0, at = 0; g < d->limits.group_count; g++)
		for (uint32_t p = sched_page_first(d->sched, e->session, g); p < pages; p++, at++)
			batch_page(b, g, d->refs[at].page, d->refs[at].tag);
	const uint32_t row = entry_rows(b, s, e);
	if (e->sample)
		turn_sample(d, d->entry_call[i], b, batch_sample(b, row));
}

static void batch_build(struct daemon *d, const struct effect *e)
{
	struct engine_job *job = d->job;
	CHECK(!d->in_flight);
	d->entry_count = e->as.batch.entry_count;
	CHECK(d->entry_count <= d->limits.batch_turns);
	memcpy(d->entry, d->effects.entries + e->as.batch.entry_first, d->entry_count * sizeof *d->entry);
	uint32_t samples = 0;
	batch_begin(job->builder);
	for (uint32_t i = 0; i < d->entry_count; i++) {
		entry_build(d, i, e->as.batch.batch);
		d->entry_sample[i] = d->entry[i].sample ? samples++ : NONE;
	}
	job->block = batch_end(job->builder);
	job->batch = e->as.batch.batch;
	d->in_flight = true;
}

static void granted(const struct effect *e)
{
	step_granted = (struct granted){
		.err = e->kind == EFFECT_REFUSED ? (int)e->as.residency.err : 0,
		.session = e->session, .kind = e->as.residency.kind, .bytes = e->as.residency.bytes,
		.lease_us = e->as.residency.lease_us, .asked_bytes = e->as.residency.asked_bytes,
		.free_bytes = e->as.residency.free_bytes};
}

const char *step_lost_name(uint32_t why)
{
	switch (why) {
	case LOST_LEASE: return "lease_over";
	case LOST_QUARANTINE: return "quarantined";
	case LOST_COPY: return "copy_failed";
	case LOST_PARK: return "parked";
	case LOST_WINDOW: return "window_passed";
	default: return "evicted";
	}
}

static void turn_effect(struct daemon *d, const struct effect *e)
{
	const uint32_t call = call_of(d, e->turn_key);
	struct call *c = &d->calls[call];
	switch (e->kind) {
	case EFFECT_ADMITTED:
		c->sched = e->turn;
		c->waiting = false;
		break;
	case EFFECT_WAIT:
		c->sched = e->turn;
		c->waiting = true;
		break;
	case EFFECT_PAUSED:
		c->paused = true;
		break;
	default:
		turn_over(d, call, e);
	}
}

static void effect_do(struct daemon *d, const struct effect *e)
{
	switch (e->kind) {
	case EFFECT_OPENED:
	case EFFECT_REFUSED:
	case EFFECT_RESIDENCY:
		granted(e);
		return;
	case EFFECT_ADMITTED:
	case EFFECT_WAIT:
	case EFFECT_PAUSED:
	case EFFECT_END:
		turn_effect(d, e);
		return;
	case EFFECT_ASSIGN:
		if (e->as.run.place != PLACE_DEVICE) {
			lower_found(d, e);
			return;
		}
		record_run(d, e, STORE_ASSIGN, assign(d, e));
		return;
	case EFFECT_SHARE:
		/* The log tells of the device: what is shared below is told when it comes up. */
		if (e->as.run.place == PLACE_DEVICE)
			record_run(d, e, STORE_SHARE, 0);
		return;
	case EFFECT_FREE:
		forget_pages(d, e);
		lower_free(d, e);
		if (e->as.run.place == PLACE_DEVICE && !inject_now(&d->inject, INJECT_SKIP))
			record_run(d, e, STORE_FREE, (uint8_t)e->as.run.reason);
		return;
	case EFFECT_QUARANTINE:
		record_run(d, e, STORE_QUARANTINE, (uint8_t)e->as.run.reason);
		return;
	case EFFECT_BATCH:
		batch_build(d, e);
		return;
	case EFFECT_LOST:
		d->sessions[e->session_key].why_lost = step_lost_name(e->as.lost.why);
		return;
	case EFFECT_CLOSED:
		session_drop(d, (uint32_t)e->session_key);
		return;
	case EFFECT_COPY:
		lower_copy(d, e);
		return;
	default:
		return;
	}
}

bool step_job_send(struct daemon *d)
{
	if (engine_spare(d->engine) < (d->in_flight ? 1u : 2u))
		return false;
	engine_submit(d->engine, d->job);
	d->job = engine_job(d->engine);
	CHECK(d->job);
	return true;
}

void step(struct daemon *d, const struct event *event, const struct batch_result *results)
{
	static bool inside;
	CHECK(!inside);
	inside = true;
	sched_step(d->sched, event, event->kind == EVENT_TURN ? d->chain : NULL, results, &d->effects);
	(void)fault_pass(FAULT_STEP);
	for (uint32_t i = 0; i < d->effects.count; i++)
		effect_do(d, &d->effects.list[i]);
	kv_step(d);
	events_step(d);
	step_record_close(d);
	d->audit_due = true;
	if (d->job->batch) {
		engine_submit(d->engine, d->job);
		d->job = engine_job(d->engine);
		CHECK(d->job); /* step_job_send leaves one for this */
	}
	lower_submit(d);
	forget_submit(d);
	inside = false;
}

void step_incident(struct daemon *d, const struct ops_fault *f, uint8_t reason, uint32_t call)
{
	static const char *const names[REASON_COUNT] = {
		"its tag is another", "its bytes are not what they were", "its row in the log is another", "", "",
		"it did not come back"};
	const struct call *c = call == NONE ? NULL : &d->calls[call];
	const struct session *s = c ? &d->sessions[c->session] : NULL;
	struct page_view page = {0};
	struct session_view owner;
	sched_page(d->sched, f->group, f->page, &page);
	if (!s && page.session != SCHED_NONE && sched_session(d->sched, page.session, &owner) == 0)
		s = &d->sessions[owner.key];
	struct store_record r = {.kind = STORE_INCIDENT, .reason = reason, .principal = page.principal,
				 .group = f->group, .page_first = f->page, .page_count = 1,
				 .position_first = page.position, .tag_first = page.tag,
				 .value = {page.tag, f->found}};
	struct store_last_word word = {.reason = reason, .group = f->group, .page = f->page,
				       .expected = page.tag, .found = f->found};
	if (s) {
		r.principal = s->principal;
		r.turn = (uint32_t)s->turn;
		memcpy(r.session, s->id.bytes, sizeof r.session);
		memcpy(word.session, s->id.bytes, sizeof word.session);
	}
	if (c)
		memcpy(r.op, c->op.bytes, sizeof r.op);
	step_record(d, &r);
	d->incidents[reason]++;
	log_say(d->sink ? LOG_DEBUG : LOG_ERROR,
		"integrity: page %u of group %u: %s (tag %" PRIu64 ", found %" PRIu64 ")%s", f->page, f->group,
		names[reason], page.tag, f->found, c ? "; its turn is over, the page is quarantined" : "");
	if (d->options.integrity != INTEGRITY_ABORT)
		return;
	if (d->store)
		store_beacon(d->store, &word);
	/* Asked for by --integrity abort: a wrong page is a broken invariant of the process. */
	CHECK(d->options.integrity != INTEGRITY_ABORT);
}

static void integrity_found(struct daemon *d, uint32_t call, const struct ops_fault *f, uint64_t batch)
{
	const struct call *c = &d->calls[call];
	if (c->poked && batch - c->poked_batch > d->poke_steps_max)
		d->poke_steps_max = batch - c->poked_batch;
	struct page_view page = {0};
	sched_page(d->sched, f->group, f->page, &page);
	step_incident(d, f, digest_bad(d, f->group, f->page, page.tag) ? REASON_DIGEST : REASON_TAG, call);
}

/* The first message wakes the library's thread. On the loop's own processor that would run there and then,
   for one message, and the others would come behind it one by one: of the batch class it waits until all are
   made, takes them together, and has the processor once it is given up. Elsewhere it makes no difference. */
static bool library_hush(const struct daemon *d, int from, int to)
{
	const struct sched_param none = {.sched_priority = 0};
	return d->library_thread && sched_getscheduler(d->library_thread) == from &&
	       sched_setscheduler(d->library_thread, to, &none) == 0;
}

/* Who reads has the tokens before the next step is planned. Not one that may be its turn's last: what END
   adds to its text goes out with it. One after another, so that the library's thread finds many at once. */
static void tokens_send(struct daemon *d)
{
	const bool hushed = d->entry_count > 1 && library_hush(d, SCHED_OTHER, SCHED_BATCH);
	for (uint32_t i = 0; i < d->entry_count; i++) {
		const struct call *c = &d->calls[d->entry_call[i]];
		if (d->result[i].end == END_NONE && d->result[i].sampled && c->sampled < c->output_max &&
		    c->prompt + c->sampled < d->limits.context_tokens)
			call_flush(d, d->entry_call[i]);
	}
	if (hushed && library_hush(d, SCHED_BATCH, SCHED_OTHER))
		sched_yield();
}

/* What a step's tokens touch lies in some hundreds of places that nobody has looked at since the step before:
   asked for together they come at once, and not each when it is wanted. */
static void results_prefetch(const struct daemon *d)
{
	enum { LINE = 64, CALL_LINES = 8 };
	for (uint32_t i = 0; i < d->entry_count; i++) {
		const char *call = (const char *)&d->calls[d->entry_call[i]];
		for (uint32_t k = 0; k < CALL_LINES; k++)
			__builtin_prefetch(call + k * LINE, 1);
	}
	for (uint32_t i = 0; i < d->entry_count; i++) {
		const struct call *c = &d->calls[d->entry_call[i]];
		const struct session *s = &d->sessions[c->session];
		__builtin_prefetch(s, 1);
		__builtin_prefetch((const char *)s + LINE, 1);
		__builtin_prefetch(c->token + c->sampled, 1);
		__builtin_prefetch(c->text_end + c->sampled, 1);
		__builtin_prefetch(c->logprob + c->sampled, 1);
		__builtin_prefetch(c->sent + c->seq_made, 1);
		__builtin_prefetch(c->text + c->text_length, 1);
		keep_sent_soon(d, d->entry_call[i]);
	}
	for (uint32_t i = 0; i < d->entry_count; i++) {
		const struct session *s = &d->sessions[d->calls[d->entry_call[i]].session];
		__builtin_prefetch(s->token + s->history, 1);
	}
}

static void result_make(struct daemon *d, const struct engine_job *job, uint32_t i)
{
	const struct batch_entry *e = &d->entry[i];
	struct batch_result *r = &d->result[i];
	const uint32_t call = d->entry_call[i];
	*r = (struct batch_result){.turn = e->turn};
	if (job->err) {
		r->end = END_FAULT;
		return;
	}
	if (job->faults[i].page != OPS_NONE) {
		r->end = END_INTEGRITY;
		r->page = job->faults[i].page;
		r->group = job->faults[i].group;
		integrity_found(d, call, &job->faults[i], job->batch);
		return;
	}
	r->computed = e->row_count;
	d->calls[call].paused = d->calls[call].waiting = false;
	if (!e->sample)
		return;
	const struct ops_sampled *s = &job->sampled[d->entry_sample[i]];
	if (s->token == OPS_NONE) {
		r->end = END_FAULT;
		return;
	}
	r->end = turn_token(d, call, s, &r->sampled);
}

static void job_failed(struct daemon *d, const struct engine_job *job)
{
	if (job->err == -ERR_INTERNAL)
		lost_device(d);
	else if (job->err)
		log_say(LOG_ERROR, "the device failed: %s", err_text(job->err));
}

/* A job without a batch: copies, digests of pages at rest, pages to be zeroed. */
static void step_idle_done(struct daemon *d, struct engine_job *job)
{
	job_failed(d, job);
	engine_release(d->engine, job);
	lower_submit(d);
	forget_submit(d);
}

/* What a row of prompts takes, of late: of batches that are mostly that. */
static void prefill_measure(struct daemon *d, const struct engine_job *job)
{
	uint64_t rows = 0;
	for (uint32_t i = 0; i < d->entry_count; i++)
		rows += d->entry[i].row_count;
	if (job->err || rows < 16 * (uint64_t)d->entry_count || rows == 0)
		return;
	d->prefill_us_total += job->measured_us;
	d->prefill_rows_total += rows;
	d->rates_news = true;
	if (d->prefill_rows_total > 65536) {
		d->prefill_us_total /= 2;
		d->prefill_rows_total /= 2;
	}
}

void rates_tell(struct daemon *d)
{
	if (!d->rates_news || d->now_us < d->rates_told_us + RATES_US || !step_room(d))
		return;
	struct event e = {.kind = EVENT_RATES, .session = SCHED_NONE, .turn = SCHED_NONE, .now_us = d->now_us};
	if (d->prefill_rows_total)
		e.as.rates.prefill_ns_token = d->prefill_us_total * 1000 / d->prefill_rows_total;
	e.as.rates.copy_bytes_s[PLACE_DISK] = lower_disk_rate(d);
	d->rates_told_us = d->now_us;
	d->rates_news = false;
	step(d, &e, NULL);
}

void step_batch_done(struct daemon *d, struct engine_job *job)
{
	(void)fault_pass(FAULT_BATCH);
	digests_take(d, job);
	lower_take(d, job);
	if (job->batch == 0) {
		step_idle_done(d, job);
		return;
	}
	CHECK(d->in_flight);
	job_failed(d, job);
	results_prefetch(d);
	for (uint32_t i = 0; i < d->entry_count; i++) {
		result_make(d, job, i);
		kv_computed(d, &d->entry[i], d->result[i].computed);
	}
	if (job->measured_us >= SEND_FIRST_US)
		tokens_send(d);
	prefill_measure(d, job);
	const struct event e = {.kind = EVENT_BATCH_DONE, .session = SCHED_NONE, .turn = SCHED_NONE,
				.now_us = d->now_us,
				.as.batch = {.batch = job->batch, .measured_us = job->measured_us,
					     .result_count = d->entry_count}};
	engine_release(d->engine, job);
	d->in_flight = false;
	step(d, &e, d->result);
}
