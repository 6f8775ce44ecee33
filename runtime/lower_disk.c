/*
 * Copies to and from the disk tier. A page that leaves the device is read by the engine into a stage,
 * and is down for the scheduler from then on: the write follows behind. One that leaves the host is
 * written from where it lies. One that comes back is read into a stage, proven, and written to the
 * device by the engine, which proves it once more.
 *
 * What fails loses the page, and never more: its tokens are computed again. A disk that does not
 * answer for --disk-wait-ms fails all that waits for it, so nothing stands still.
 */
#include "runtime/lower_disk.h"

#include <inttypes.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/forget.h"

enum {
	FULL_US = 1000000,       /* a full disk is tried again after so long */
	RATE_LEAST_US = 1000     /* from reading for less no rate is told */
};

/* Keys. */

void disk_chain(struct daemon *d, uint32_t session, uint32_t position, uint32_t tokens, uint64_t out[2])
{
	struct lower_disk *x = d->disk;
	const struct session *s = &d->sessions[session];
	const uint32_t span = d->limits.page_tokens, unit = position / span;
	static const uint64_t nothing[2];
	CHECK(position % span == 0);
	CHECK(position + tokens <= s->history);
	uint64_t (*chain)[2] = x->chain[session];
	uint8_t room[OPS_PARTITION];
	for (uint32_t u = x->chain_count[session]; u < unit; u++) {
		tier_chain(chain[u], u ? chain[u - 1] : nothing, s->token + (size_t)u * span,
			   session_phases_named(d, s, u * span, span, room), span);
		x->chain_count[session] = u + 1;
	}
	tier_chain(out, unit ? chain[unit - 1] : nothing, s->token + position,
		   session_phases_named(d, s, position, tokens, room), tokens);
}

void lower_history_cut(struct daemon *d, uint32_t session, uint32_t tokens)
{
	struct lower_disk *x = d->disk;
	const uint32_t units = tokens / d->limits.page_tokens;
	if (x && x->chain_count[session] > units)
		x->chain_count[session] = units;
}

void disk_proof(const struct lower_disk *x, const struct disk_slot *r, struct tier_proof *out)
{
	memset(out, 0, sizeof *out);
	memcpy(out->model, x->model, sizeof out->model);
	memcpy(out->plan, x->plan, sizeof out->plan);
	memcpy(out->chain, r->chain, sizeof out->chain);
	memcpy(out->content, r->content, sizeof out->content);
	out->tag = r->tag;
	out->principal = r->principal;
	out->position = r->position;
	out->tokens = r->tokens;
}

/* Slots. */

void disk_empty(struct daemon *d, uint32_t group, uint32_t slot)
{
	struct lower_disk *x = d->disk;
	struct disk_slot *r = &x->slot[group][slot];
	r->state = SLOT_EMPTY;
	if (r->dropping || r->writes)
		return; /* it is on the way; or it will be when the write is done */
	r->dropping = 1;
	x->drop_ring[(x->drop_first + x->drop_count++) % x->ring_size] = (uint64_t)group << 32 | slot;
}

/* Slots that sessions leave behind are found by session, to be emptied with it. Only what group 0 has is
   linked: the groups move in step, but each slot is a move of its own. */
static void behind_put(struct daemon *d, const struct disk_move *m)
{
	struct lower_disk *x = d->disk;
	const uint32_t slot = m->slot;
	struct disk_slot *r = &x->slot[m->group][slot];
	const struct session *s = &d->sessions[m->session];
	if (m->group != 0 || !s->used || s->closing || memcmp(&s->id, &m->id, sizeof s->id) != 0) {
		disk_empty(d, m->group, slot);
		return;
	}
	r->state = SLOT_BEHIND;
	r->session = m->session;
	r->prev = NONE;
	r->next = x->behind[r->session];
	if (r->next != NONE)
		x->slot[0][r->next].prev = slot;
	x->behind[r->session] = slot;
}

static void behind_take(struct daemon *d, uint32_t slot)
{
	struct lower_disk *x = d->disk;
	struct disk_slot *r = &x->slot[0][slot];
	if (r->prev != NONE)
		x->slot[0][r->prev].next = r->next;
	else
		x->behind[r->session] = r->next;
	if (r->next != NONE)
		x->slot[0][r->next].prev = r->prev;
	r->state = SLOT_EMPTY;
}

void lower_forget(struct daemon *d, uint32_t session)
{
	struct lower_disk *x = d->disk;
	if (!x)
		return;
	while (x->behind[session] != NONE) {
		const uint32_t slot = x->behind[session];
		behind_take(d, slot);
		disk_empty(d, 0, slot);
	}
	x->chain_count[session] = 0;
}

void lower_free(struct daemon *d, const struct effect *e)
{
	const uint32_t group = e->as.run.group, first = e->as.run.page_first, count = e->as.run.page_count;
	for (uint32_t i = 0; i < count && e->as.run.place == PLACE_HOST; i++)
		d->host_state[pages_number(d, PLACE_HOST, group, first + i)] &= (uint8_t)~HOST_HELD;
	for (uint32_t i = 0; i < count && e->as.run.place == PLACE_DISK && d->disk; i++)
		disk_empty(d, group, first + i);
}

/* Telling. */

static void tell(struct daemon *d, const struct disk_move *m, int err)
{
	if (m->from == PLACE_HOST)
		lower_host_copied(d, pages_number(d, PLACE_HOST, m->group, m->page), true);
	/* One that was over before the engine had it is over all the same. */
	if (m->from == PLACE_DEVICE || m->to == PLACE_DEVICE)
		forget_page_copied(d, &(struct engine_copy){.group = m->group, .page = m->page,
							    .up = m->to == PLACE_DEVICE}, err);
	lower_done(d, m->copy, err);
	if (err)
		d->disk->lost++;
}

/* A page that should be on the disk is not: on record, with whose it was. */
static void incident(struct daemon *d, const struct disk_move *m, uint8_t reason, const char *why)
{
	const struct session *s = &d->sessions[m->session];
	struct store_record r = {.kind = STORE_INCIDENT, .reason = reason, .place = PLACE_DISK,
				 .principal = m->principal, .group = m->group, .page_first = m->slot,
				 .page_count = 1, .position_first = m->position,
				 .tag_first = d->disk->slot[m->group][m->slot].tag};
	if (s->used) {
		memcpy(r.session, s->id.bytes, sizeof r.session);
		r.turn = (uint32_t)s->turn;
	}
	step_record(d, &r);
	d->incidents[reason]++;
	log_say(d->sink ? LOG_DEBUG : LOG_ERROR,
		"integrity: page %u of the disk tier: %s; its tokens will be computed again", m->slot, why);
}

/* Stages. */

static struct stage *stage_take(struct lower_disk *x, const struct disk_move *m)
{
	const bool down = m->to == PLACE_DISK;
	for (uint32_t i = 0; i < STAGES && (!down || x->stages_down < STAGES_DOWN); i++) {
		struct stage *g = &x->stage[i];
		if (g->state != STAGE_FREE)
			continue;
		g->move = *m;
		g->engine = g->told = false;
		g->used |= m->from != PLACE_HOST;
		g->tag = x->slot[m->group][m->slot].tag;
		memset(&g->job, 0, sizeof g->job);
		g->job.group = m->group;
		g->job.slot = x->slot[m->group][m->slot].file;
		g->job.bytes = g->bytes;
		x->stages_down += down;
		return g;
	}
	return NULL;
}

static void stage_wipe(const struct lower_disk *x, struct stage *g)
{
	sodium_memzero(g->bytes, x->stage_bytes);
	g->used = g->wipe = false;
}

static void stage_free(struct lower_disk *x, struct stage *g)
{
	x->stages_down -= g->move.to == PLACE_DISK;
	g->state = STAGE_FREE;
	if (g->wipe)
		stage_wipe(x, g);
}

void lower_disk_wipe(struct daemon *d)
{
	struct lower_disk *x = d->disk;
	for (uint32_t i = 0; x && i < STAGES; i++) {
		struct stage *g = &x->stage[i];
		g->wipe = g->used;
		if (g->state == STAGE_FREE && g->wipe)
			stage_wipe(x, g);
	}
}

/* The slot still stands for what this move brings. */
static bool stage_counts(const struct lower_disk *x, const struct stage *g)
{
	const struct disk_slot *r = &x->slot[g->move.group][g->move.slot];
	return r->state == SLOT_HELD && r->tag == g->tag;
}

static void stage_write(struct daemon *d, struct stage *g)
{
	struct lower_disk *x = d->disk;
	struct disk_slot *r = &x->slot[g->move.group][g->move.slot];
	g->state = STAGE_WRITE;
	g->job.verb = DISK_PUT;
	g->job.slot = r->file;
	disk_proof(x, r, &g->job.proof);
	r->writes++;
	disk_submit(x->disk, &g->job, false);
}

/* Moves begin. */

static bool writes_refused(const struct daemon *d)
{
	return d->disk->stalled || d->now_us < d->disk->full_until_us;
}

static void slot_lost(struct daemon *d, const struct disk_move *m, uint64_t tag)
{
	struct disk_slot *r = &d->disk->slot[m->group][m->slot];
	if (r->state == SLOT_HELD && r->tag == tag)
		r->state = SLOT_GONE;
}

/* False: there is no room for it now. */
static bool down_begin(struct daemon *d, const struct disk_move *m)
{
	struct lower_disk *x = d->disk;
	struct disk_slot *r = &x->slot[m->group][m->slot];
	if (r->tag != m->tag_to || r->state != SLOT_HELD) {
		tell(d, m, 0); /* its owners left, and nobody will ask for it */
		return true;
	}
	if (writes_refused(d)) {
		slot_lost(d, m, r->tag);
		tell(d, m, ERR_IO);
		return true;
	}
	if (m->from == PLACE_DEVICE && d->job->copy_count == d->job->copy_max)
		return false;
	struct stage *g = stage_take(x, m);
	if (!g)
		return false;
	if (m->from == PLACE_HOST) {
		const struct engine_sum *sum = &d->host_sums[pages_number(d, PLACE_HOST, m->group, m->page)];
		memcpy(r->content, sum->digest, sizeof r->content);
		g->job.bytes = lower_host_at(d, m->group, m->page);
		stage_write(d, g);
		return true;
	}
	g->state = STAGE_DOWN;
	g->engine = true;
	d->job->copy[d->job->copy_count++] = (struct engine_copy){
		.copy = m->copy, .group = m->group, .page = m->page, .tokens = m->tokens, .sum = &g->sum,
		.bytes = g->bytes, .stage = (uint32_t)(g - x->stage),
		.skip = inject_now(&d->inject, INJECT_COPY_SKIP), .late = inject_now(&d->inject, INJECT_COPY_LATE)};
	return true;
}

static bool load_begin(struct daemon *d, const struct disk_move *m)
{
	struct lower_disk *x = d->disk;
	struct disk_slot *r = &x->slot[m->group][m->slot];
	uint64_t chain[2];
	if (r->state != SLOT_HELD || x->stalled) {
		tell(d, m, ERR_IO); /* told when it was lost */
		return true;
	}
	/* The session's own tokens must be those that the page stands for, as far as they are there. */
	const uint32_t tokens = m->tokens < r->tokens ? m->tokens : r->tokens;
	if (tokens == r->tokens)
		disk_chain(d, m->session, m->position, tokens, chain);
	if (r->position != m->position || r->principal != m->principal || m->tokens > r->tokens ||
	    (tokens == r->tokens && memcmp(chain, r->chain, sizeof chain) != 0)) {
		incident(d, m, REASON_LOWER, "it stands for other tokens than the session's");
		disk_empty(d, m->group, m->slot);
		tell(d, m, ERR_INTEGRITY);
		return true;
	}
	struct stage *g = stage_take(x, m);
	if (!g)
		return false;
	g->state = STAGE_READ;
	g->job.verb = DISK_GET;
	disk_proof(x, r, &g->job.proof);
	if (inject_now(&d->inject, INJECT_BITS_DISK))
		g->job.harm = 1 + (uint32_t)inject_random(&d->inject, d->limits.group[m->group].page_bytes * 8 - 1);
	disk_submit(x->disk, &g->job, r->writes == 0);
	return true;
}

static void ring_put(struct lower_disk *x, struct move_ring *ring, const struct disk_move *m)
{
	CHECK(ring->count < x->ring_size); /* each copy has a slot of the disk to itself */
	ring->at[(ring->first + ring->count++) % x->ring_size] = *m;
}

static void ring_run(struct daemon *d, struct move_ring *ring, bool (*begin)(struct daemon *,
		     const struct disk_move *))
{
	while (ring->count && begin(d, &ring->at[ring->first])) {
		ring->first = (ring->first + 1) % d->disk->ring_size;
		ring->count--;
	}
}

/* What was read goes up with the next job. */
static void ups_run(struct daemon *d)
{
	struct lower_disk *x = d->disk;
	for (uint32_t i = 0; i < STAGES; i++) {
		struct stage *g = &x->stage[i];
		if (g->state != STAGE_UP || g->engine || d->job->copy_count == d->job->copy_max)
			continue;
		g->engine = true;
		d->job->copy[d->job->copy_count++] = (struct engine_copy){
			.copy = g->move.copy, .group = g->move.group, .page = g->move.page, .up = 1,
			.tokens = g->move.tokens, .tag = g->move.tag_to, .sum = &g->sum, .bytes = g->bytes, .stage = i,
			.late = inject_now(&d->inject, INJECT_COPY_LATE)};
	}
}

static void drops_run(struct lower_disk *x)
{
	for (uint32_t i = 0; i < DROPS && x->drop_count; i++) {
		struct drop *p = &x->drop[i];
		while (!p->busy && x->drop_count) {
			const uint64_t which = x->drop_ring[x->drop_first];
			const uint32_t group = (uint32_t)(which >> 32), slot = (uint32_t)which;
			struct disk_slot *r = &x->slot[group][slot];
			x->drop_first = (x->drop_first + 1) % x->ring_size;
			x->drop_count--;
			r->dropping = 0;
			if (r->state != SLOT_EMPTY)
				continue; /* used again: its write goes over what is there */
			*p = (struct drop){.job = {.verb = DISK_DROP, .group = group, .slot = r->file}, .busy = true,
					   .slot = slot};
			r->writes++;
			disk_submit(x->disk, &p->job, false);
		}
	}
}

void lower_disk_pump(struct daemon *d)
{
	struct lower_disk *x = d->disk;
	if (!x)
		return;
	ring_run(d, &x->loads, load_begin);
	ups_run(d);
	ring_run(d, &x->downs, down_begin);
	drops_run(x);
}

void lower_disk_copy(struct daemon *d, const struct effect *e)
{
	struct lower_disk *x = d->disk;
	const bool down = e->as.copy.place_to == PLACE_DISK;
	const struct disk_move m = {
		.copy = e->as.copy.copy, .tag_to = e->as.copy.tag_to, .group = e->as.copy.group,
		.from = e->as.copy.place_from, .to = e->as.copy.place_to,
		.page = down ? e->as.copy.page_from : e->as.copy.page_to,
		.slot = down ? e->as.copy.page_to : e->as.copy.page_from, .tokens = e->as.copy.tokens,
		.position = e->as.copy.position_first, .principal = e->principal,
		.session = (uint32_t)e->session_key, .id = d->sessions[e->session_key].id};
	CHECK(x);
	CHECK(m.slot < x->slot_count[m.group]);
	if (m.from == PLACE_HOST)
		d->host_state[pages_number(d, PLACE_HOST, m.group, m.page)] |= HOST_BUSY;
	if (!down) {
		ring_put(x, &x->loads, &m);
		return;
	}
	struct disk_slot *r = &x->slot[m.group][m.slot];
	if (r->state == SLOT_BEHIND)
		behind_take(d, m.slot);
	r->state = SLOT_HELD;
	r->tag = m.tag_to;
	r->principal = m.principal;
	r->position = m.position;
	r->tokens = m.tokens;
	r->session = m.session;
	r->content[0] = r->content[1] = 0;
	disk_chain(d, m.session, m.position, m.tokens, r->chain);
	ring_put(x, &x->downs, &m);
}

/* Moves end. */

/* The engine has had the stage's copy. */
void lower_disk_took(struct daemon *d, uint32_t stage, int err)
{
	struct lower_disk *x = d->disk;
	struct stage *g = &x->stage[stage];
	struct disk_slot *r = &x->slot[g->move.group][g->move.slot];
	CHECK(g->engine);
	g->engine = false;
	if (g->state == STAGE_UP) {
		if (err == ERR_INTEGRITY)
			incident(d, &g->move, REASON_LOWER, "its content on the device is not what had left it");
		if (err)
			disk_empty(d, g->move.group, g->move.slot);
		else
			behind_put(d, &g->move);
		tell(d, &g->move, err);
		stage_free(x, g);
		return;
	}
	CHECK(g->state == STAGE_DOWN);
	if (err)
		slot_lost(d, &g->move, g->tag);
	tell(d, &g->move, err);
	if (err || !stage_counts(x, g)) {
		stage_free(x, g);
		return;
	}
	memcpy(r->content, g->sum.digest, sizeof r->content);
	if (writes_refused(d)) {
		slot_lost(d, &g->move, g->tag);
		stage_free(x, g);
		return;
	}
	stage_write(d, g);
}

/* The slot of the file is out of use; false: there is no spare one. */
static bool slot_replace(struct daemon *d, const struct disk_move *m)
{
	struct lower_disk *x = d->disk;
	x->bad_slots++;
	if (x->spare_next[m->group] == x->spare_end[m->group])
		return false;
	struct disk_slot *r = &x->slot[m->group][m->slot];
	log_say(LOG_ERROR, "slot %u of the disk tier cannot be written: it is out of use", r->file);
	r->file = x->spare_next[m->group]++;
	return true;
}

static void write_done(struct daemon *d, struct stage *g)
{
	struct lower_disk *x = d->disk;
	struct disk_slot *r = &x->slot[g->move.group][g->move.slot];
	const int err = -g->job.err;
	CHECK(r->writes > 0);
	r->writes--;
	x->puts += !err;
	x->put_bytes += err ? 0 : d->limits.group[g->move.group].page_bytes;
	if (err == ERR_IO && !x->stalled && stage_counts(x, g) && slot_replace(d, &g->move)) {
		stage_write(d, g);
		return;
	}
	if (err && !x->stalled)
		log_say(LOG_ERROR, "a page could not be written to the disk tier: %s; its tokens will be computed "
			"again", g->job.why);
	if (err == ERR_DISK_FULL)
		x->full_until_us = d->now_us + FULL_US;
	if (err)
		slot_lost(d, &g->move, g->tag);
	if (g->move.from == PLACE_HOST)
		tell(d, &g->move, err);
	else
		x->lost += err != 0;
	/* Freed while it was written: nothing of it stays. */
	if (r->state == SLOT_EMPTY && r->writes == 0)
		disk_empty(d, g->move.group, g->move.slot);
	stage_free(x, g);
}

static void read_done(struct daemon *d, struct stage *g)
{
	struct lower_disk *x = d->disk;
	struct disk_slot *r = &x->slot[g->move.group][g->move.slot];
	const uint64_t bytes = d->limits.group[g->move.group].page_bytes;
	if (g->job.err == 0 && !g->told) {
		x->gets++;
		x->get_bytes += bytes;
		x->read_bytes += bytes;
		x->read_us += g->job.took_us;
		d->rates_news = true;
		g->sum = (struct engine_sum){.digest = {r->content[0], r->content[1]}, .tokens = r->tokens};
		g->state = STAGE_UP;
		return;
	}
	if (!g->told) {
		if (g->job.took_us)
			incident(d, &g->move, g->job.err == -ERR_INTEGRITY ? REASON_DIGEST : REASON_LOWER, g->job.why);
		disk_empty(d, g->move.group, g->move.slot);
		tell(d, &g->move, -g->job.err);
	}
	stage_free(x, g);
}

static void job_done(struct daemon *d, struct disk_job *job)
{
	struct lower_disk *x = d->disk;
	for (uint32_t i = 0; i < DROPS; i++)
		if (job == &x->drop[i].job) {
			x->drop[i].busy = false;
			if (job->err)
				log_say(LOG_ERROR, "a page cannot be removed from the disk tier: %s; its bytes stay in "
					"slot %u", job->why, job->slot);
			x->slot[job->group][x->drop[i].slot].writes--;
			return;
		}
	const size_t at = (size_t)((uint8_t *)job - (uint8_t *)x->stage) / sizeof x->stage[0];
	CHECK(at < STAGES);
	if (job->verb == DISK_PUT)
		write_done(d, &x->stage[at]);
	else
		read_done(d, &x->stage[at]);
}

/* A disk that does not answer: whoever waits for it need not any more. */
static void stall(struct daemon *d, const struct disk_job *hand)
{
	struct lower_disk *x = d->disk;
	if (!x->stalled)
		log_say(LOG_ERROR, "the disk tier does not answer: what waits for it will be computed again");
	x->stalled = true;
	disk_cancel(x->disk);
	for (uint32_t i = 0; i < STAGES; i++) {
		struct stage *g = &x->stage[i];
		if (&g->job != hand || g->state != STAGE_READ || g->told)
			continue;
		g->told = true;
		disk_empty(d, g->move.group, g->move.slot);
		tell(d, &g->move, ERR_IO);
	}
}

uint64_t lower_disk_rate(struct daemon *d)
{
	struct lower_disk *x = d->disk;
	if (!x || x->read_us < RATE_LEAST_US)
		return 0;
	const uint64_t rate = x->read_bytes * 1000000 / x->read_us + 1;
	x->read_bytes /= 2;
	x->read_us /= 2;
	return rate;
}

uint64_t lower_disk_tick(struct daemon *d)
{
	struct lower_disk *x = d->disk;
	const uint64_t wait_us = d->options.disk_wait_ms * 1000;
	const struct disk_job *hand;
	struct disk_job *job;
	if (!x)
		return UINT64_MAX;
	while (step_room(d) && (job = disk_done(x->disk)))
		job_done(d, job);
	const uint64_t busy_us = disk_busy_us(x->disk, &hand);
	if (busy_us && d->now_us >= busy_us + wait_us)
		stall(d, hand);
	else if (x->stalled)
		x->stalled = false;
	lower_disk_pump(d);
	return busy_us && !x->stalled ? busy_us + wait_us : x->stalled ? d->now_us + wait_us : UINT64_MAX;
}

struct lower_figures lower_figures(const struct daemon *d)
{
	const struct lower_disk *x = d->disk;
	const uint64_t rate = x->read_us ? x->read_bytes * 1000000 / x->read_us : 0;
	return (struct lower_figures){x->puts, x->gets, x->lost, x->bad_slots, rate, x->stalled};
}

int lower_disk_fd(const struct daemon *d)
{
	return d->disk ? disk_fd(d->disk->disk) : -1;
}
