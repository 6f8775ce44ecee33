/*
 * The disk tier from one process to the next. At the start the file is read through by its entries;
 * a session that was restored gets the pages that stand for its own tokens, made by this model under
 * this plan, from its first token on as far as they go. Pages that several sessions have in common
 * are shared again: the later one is a fork of the earlier one, cut where they part. At the end, what
 * sessions at rest have on higher places is written down, for as long as --stop-ms allows.
 */
#include "runtime/lower_disk.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

struct found {
	struct tier_proof proof;
	uint32_t group, file, slot;
	bool adopted;
};

enum { SPARE_PART = 64, SPARE_LEAST = 8, CLOSE_MS = 2000 };

static void config_record(struct daemon *d, uint8_t reason, uint64_t pages)
{
	const struct store_record r = {.kind = STORE_CONFIG, .reason = reason, .place = PLACE_DISK,
				       .value = {pages, 0}};
	step_record(d, &r);
}

/* Opening. */

static int rings_open(struct daemon *d, struct lower_disk *x, uint32_t slots)
{
	const size_t units = d->limits.context_tokens / d->limits.page_tokens + 1;
	x->ring_size = slots + 1;
	x->loads.at = calloc(x->ring_size, sizeof *x->loads.at);
	x->downs.at = calloc(x->ring_size, sizeof *x->downs.at);
	x->drop_ring = calloc(x->ring_size, sizeof *x->drop_ring);
	x->behind = malloc(d->options.sessions * sizeof *x->behind);
	x->park_order = calloc(d->options.sessions, sizeof *x->park_order);
	x->chain = calloc(d->options.sessions, sizeof *x->chain);
	x->chain_count = calloc(d->options.sessions, sizeof *x->chain_count);
	if (!x->loads.at || !x->downs.at || !x->drop_ring || !x->behind || !x->park_order || !x->chain ||
	    !x->chain_count)
		return -ERR_MEMORY;
	memset(x->behind, 0xff, d->options.sessions * sizeof *x->behind);
	for (uint32_t i = 0; i < d->options.sessions; i++)
		if (!(x->chain[i] = memory_reserve(units * sizeof *x->chain[i])))
			return -ERR_MEMORY;
	return 0;
}

static int tables_open(struct daemon *d, struct lower_disk *x)
{
	uint32_t slots = 0;
	for (uint32_t g = 0; g < d->limits.group_count; g++) {
		const uint32_t count = x->slot_count[g];
		x->slot[g] = calloc(count, sizeof *x->slot[g]);
		if (!x->slot[g])
			return -ERR_MEMORY;
		for (uint32_t i = 0; i < count; i++)
			x->slot[g][i].file = i;
		slots += count;
		if (d->limits.group[g].page_bytes > x->stage_bytes)
			x->stage_bytes = d->limits.group[g].page_bytes;
	}
	for (uint32_t i = 0; i < STAGES; i++)
		if (!(x->stage[i].bytes = memory_reserve(x->stage_bytes)))
			return -ERR_MEMORY;
	return rings_open(d, x, slots);
}

static int file_open(struct daemon *d, struct lower_disk *x)
{
	struct tier_options o = {.dir = d->options.disk_dir[0] ? d->options.disk_dir : d->options.state,
				 .reserve_bytes = d->options.disk_reserve, .group_count = d->limits.group_count};
	char reason[TIER_REASON_MAX];
	const char *warning;
	struct tier *tier;
	store_uuid(d->store, o.store);
	for (uint32_t g = 0; g < o.group_count; g++) {
		const uint32_t count = d->limits.group[g].page_count[PLACE_DISK];
		x->slot_count[g] = x->spare_next[g] = count;
		x->spare_end[g] = count + count / SPARE_PART + SPARE_LEAST;
		o.group[g] = (struct tier_group){d->limits.group[g].page_bytes, x->spare_end[g]};
	}
	const int err = tier_open(&o, &tier, reason, &warning);
	if (err) {
		log_say(LOG_ERROR, "%s", reason);
		return err;
	}
	if (warning) {
		log_say(LOG_ERROR, "%s", reason[0] ? reason : warning);
		x->anew = true;
	}
	x->tier = tier;
	return 0;
}

int lower_disk_open(struct daemon *d)
{
	if (d->limits.group[0].page_count[PLACE_DISK] == 0)
		return 0;
	struct lower_disk *x = d->disk = calloc(1, sizeof *x);
	if (!x)
		return -ERR_MEMORY;
	memcpy(x->model, d->model->hash, sizeof x->model);
	forward_plan_hash(d->forward, x->plan);
	if (file_open(d, x) == 0) {
		TRY(tables_open(d, x));
		return disk_open(x->tier, &x->disk);
	}
	/* What lies there is left as it is, and everything is served without it. */
	log_say(LOG_ERROR, "the disk tier is off; sessions are computed again from their tokens");
	for (uint32_t g = 0; g < d->limits.group_count; g++)
		d->limits.group[g].page_count[PLACE_DISK] = 0;
	free(x);
	d->disk = NULL;
	d->disk_refused = true;
	return 0;
}

void lower_disk_close(struct daemon *d)
{
	struct lower_disk *x = d->disk;
	if (!x)
		return;
	if (x->disk && disk_close(&x->disk, CLOSE_MS) != 0)
		return; /* its thread is still there, with what it works on */
	for (uint32_t g = 0; g < SCHED_GROUP_MAX; g++)
		free(x->slot[g]);
	const size_t units = d->limits.context_tokens / d->limits.page_tokens + 1;
	for (uint32_t i = 0; x->chain && i < d->options.sessions; i++)
		if (x->chain[i])
			munmap(x->chain[i], units * sizeof *x->chain[i]);
	for (uint32_t i = 0; i < STAGES; i++)
		if (x->stage[i].bytes)
			munmap(x->stage[i].bytes, x->stage_bytes);
	free(x->loads.at);
	free(x->downs.at);
	free(x->drop_ring);
	free(x->behind);
	free(x->park_order);
	free(x->chain);
	free(x->chain_count);
	free(x->found_list);
	free(x->found_table);
	free(x);
	d->disk = NULL;
}

/* What is in the file. */

static uint32_t key_hash(const struct tier_proof *p, uint32_t group)
{
	return (uint32_t)(p->chain[0] ^ p->chain[1] >> 32) ^ p->principal * 0x9e3779b1u ^
	       p->tokens * 0x85ebca6bu ^ group * 0xc2b2ae35u;
}

static bool key_same(const struct found *f, const struct tier_proof *p, uint32_t group)
{
	return f->group == group && memcmp(f->proof.chain, p->chain, sizeof p->chain) == 0 &&
	       f->proof.principal == p->principal && f->proof.position == p->position &&
	       f->proof.tokens == p->tokens;
}

static struct found *found_find(const struct lower_disk *x, const struct tier_proof *p, uint32_t group)
{
	for (uint32_t at = key_hash(p, group);; at++) {
		const uint32_t i = x->found_table[at & x->found_mask];
		if (i == 0)
			return NULL;
		if (key_same(&x->found_list[i - 1], p, group))
			return &x->found_list[i - 1];
	}
}

/* One of several that say the same is enough: so whoever shares a page shares all before it. */
static void found_enter(struct lower_disk *x, uint32_t i)
{
	const struct found *f = &x->found_list[i];
	if (found_find(x, &f->proof, f->group))
		return;
	uint32_t at = key_hash(&f->proof, f->group);
	while (x->found_table[at & x->found_mask])
		at++;
	x->found_table[at & x->found_mask] = i + 1;
}

static bool found_usable(struct lower_disk *x, const struct tier_proof *p)
{
	const bool model = memcmp(p->model, x->model, sizeof p->model) == 0;
	const bool plan = memcmp(p->plan, x->plan, sizeof p->plan) == 0;
	x->void_model += !model;
	x->void_plan += model && !plan;
	return model && plan;
}

/* A page in a spare slot of the file stands for a slot of the scheduler's whose own is empty. */
static void spares_map(struct lower_disk *x, uint32_t group, const bool *taken)
{
	uint32_t slot = 0;
	for (uint64_t i = 0; i < x->found; i++) {
		struct found *f = &x->found_list[i];
		if (f->group != group || f->file < x->slot_count[group])
			continue;
		while (slot < x->slot_count[group] && taken[slot])
			slot++;
		if (slot == x->slot_count[group])
			return;
		f->slot = slot;
		x->slot[group][slot++].file = f->file;
		if (x->spare_next[group] <= f->file)
			x->spare_next[group] = f->file + 1;
	}
}

static int group_scan(struct daemon *d, struct lower_disk *x, uint32_t group)
{
	bool *taken = calloc(x->slot_count[group], sizeof *taken);
	int err = taken ? 0 : -ERR_MEMORY;
	for (uint32_t at = 0; err == 0; at++) {
		struct tier_proof proof;
		err = tier_scan(x->tier, group, &at, &proof);
		if (err)
			break;
		const bool usable = found_usable(x, &proof) && proof.tokens > 0 &&
				    proof.tokens <= d->limits.page_tokens;
		if (!usable && at < x->slot_count[group])
			disk_empty(d, group, at);
		else if (!usable)
			(void)tier_drop(x->tier, group, at);
		if (!usable)
			continue;
		if (at < x->slot_count[group])
			taken[at] = true;
		x->found_list[x->found++] =
			(struct found){.proof = proof, .group = group, .file = at,
				       .slot = at < x->slot_count[group] ? at : NONE};
	}
	if (err == -ERR_NOT_FOUND)
		spares_map(x, group, taken);
	free(taken);
	return err == -ERR_NOT_FOUND ? 0 : err;
}

int lower_disk_scan(struct daemon *d)
{
	struct lower_disk *x = d->disk;
	uint64_t most = 0, size = 64;
	if (!x)
		return 0;
	for (uint32_t g = 0; g < d->limits.group_count; g++)
		most += x->spare_end[g];
	while (size < 2 * most)
		size *= 2;
	/* Touched only as far as something is found. */
	x->found_list = calloc(most, sizeof *x->found_list);
	x->found_table = calloc(size, sizeof *x->found_table);
	x->found_mask = (uint32_t)(size - 1);
	if (!x->found_list || !x->found_table)
		return -ERR_MEMORY;
	for (uint32_t g = 0; g < d->limits.group_count; g++)
		if (group_scan(d, x, g) != 0) {
			log_say(LOG_ERROR, "the disk tier cannot be read: its pages are computed again");
			x->found = 0;
		}
	for (uint32_t i = 0; i < x->found; i++)
		if (x->found_list[i].slot != NONE)
			found_enter(x, i);
	return 0;
}

/* Adoption. */

/* Pages of a window are of use all or none, and only with those of the other groups; the scheduler takes what
   it finds a page at a time, so they are not found again by the next process. */
static bool outlives(const struct daemon *d)
{
	return d->limits.group_count == 1 || d->limits.group[1].window_tokens == 0;
}

/* The page of the session at the position, for so many tokens; in group 0, if all groups have it. */
static struct found *unit_find(struct daemon *d, uint32_t session, uint32_t position, uint32_t tokens)
{
	struct tier_proof p = {.principal = d->sessions[session].principal, .position = position,
			       .tokens = tokens};
	disk_chain(d, session, position, tokens, p.chain);
	struct found *lead = found_find(d->disk, &p, 0);
	for (uint32_t g = 1; lead && g < d->limits.group_count; g++)
		if (!found_find(d->disk, &p, g))
			return NULL;
	return lead;
}

/* The next page of the session, full if there is such a one; NULL: none. */
static struct found *next_find(struct daemon *d, uint32_t session, uint32_t position)
{
	const uint32_t span = d->limits.page_tokens, left = d->sessions[session].history - position;
	struct found *f = NULL;
	for (uint32_t tokens = left < span ? left : span; !f && tokens > 0; tokens--)
		f = unit_find(d, session, position, tokens);
	return f;
}

uint32_t lower_donor(struct daemon *d, uint32_t session, uint32_t *tokens)
{
	const struct lower_disk *x = d->disk;
	const uint32_t span = d->limits.page_tokens;
	uint32_t donor = NONE;
	*tokens = 0;
	if (!x || x->found == 0 || !outlives(d))
		return NONE;
	while (*tokens + span <= d->sessions[session].history) {
		const struct found *f = unit_find(d, session, *tokens, span);
		if (!f || !f->adopted)
			break;
		donor = x->slot[0][f->slot].session;
		*tokens += span;
	}
	return donor;
}

static void slot_fill(struct daemon *d, const struct found *f, uint32_t session)
{
	struct disk_slot *r = &d->disk->slot[f->group][f->slot];
	memcpy(r->chain, f->proof.chain, sizeof r->chain);
	memcpy(r->content, f->proof.content, sizeof r->content);
	r->principal = f->proof.principal;
	r->position = f->proof.position;
	r->tokens = f->proof.tokens;
	r->session = session;
	r->state = SLOT_HELD;
}

void lower_found(struct daemon *d, const struct effect *e)
{
	struct lower_disk *x = d->disk;
	CHECK(x);
	for (uint32_t i = 0; i < e->as.run.page_count; i++)
		x->slot[e->as.run.group][e->as.run.page_first + i].tag = e->as.run.tag_first + i;
}

void lower_adopt(struct daemon *d, uint32_t session)
{
	struct lower_disk *x = d->disk;
	const struct session *s = &d->sessions[session];
	const uint32_t span = d->limits.page_tokens;
	struct session_view v;
	if (!x || x->found == 0 || !outlives(d))
		return;
	CHECK(sched_session(d->sched, s->sched, &v) == 0);
	if (v.resident != v.history || v.resident % span)
		return;
	for (uint32_t at = v.resident; at < s->history;) {
		struct found *f = next_find(d, session, at);
		if (!f || f->adopted)
			break;
		struct event e = {.kind = EVENT_FOUND, .session = s->sched, .turn = SCHED_NONE, .now_us = d->now_us};
		e.as.found.tokens = f->proof.tokens;
		for (uint32_t g = 0; g < d->limits.group_count; g++) {
			struct found *of = found_find(x, &f->proof, g);
			of->adopted = true;
			slot_fill(d, of, session);
			e.as.found.slot[g] = of->slot;
			x->adopted++;
		}
		step(d, &e, NULL);
		at += f->proof.tokens;
		if (f->proof.tokens < span)
			break;
	}
}

void lower_adopted(struct daemon *d)
{
	struct lower_disk *x = d->disk;
	if (d->disk_refused)
		config_record(d, CONFIG_DISK_REFUSED, 0);
	if (!x)
		return;
	if (x->anew)
		config_record(d, CONFIG_DISK_ANEW, 0);
	if (x->void_model) {
		config_record(d, CONFIG_DISK_MODEL, x->void_model);
		log_say(LOG_ERROR, "%llu pages of the disk tier were made by another model file: they are void",
			(unsigned long long)x->void_model);
	}
	if (x->void_plan) {
		config_record(d, CONFIG_DISK_PLAN, x->void_plan);
		log_say(LOG_ERROR, "%llu pages of the disk tier were made under another precision plan: they are "
			"void",
			(unsigned long long)x->void_plan);
	}
	if (x->found)
		log_say(LOG_NOTICE, "%llu pages of %llu in the disk tier are sessions' again",
			(unsigned long long)x->adopted, (unsigned long long)x->found);
	for (uint64_t i = 0; i < x->found; i++) {
		const struct found *f = &x->found_list[i];
		if (!f->adopted && f->slot != NONE)
			disk_empty(d, f->group, f->slot);
	}
	free(x->found_list);
	free(x->found_table);
	x->found_list = NULL;
	x->found_table = NULL;
	x->found = 0;
}

/* The end. */

static const struct session *park_sessions;

/* Who was named last comes first. */
static int park_order(const void *a, const void *b)
{
	const uint64_t x = park_sessions[*(const uint32_t *)a].touched_us;
	const uint64_t y = park_sessions[*(const uint32_t *)b].touched_us;
	return (x < y) - (x > y);
}

static void park_begin(struct daemon *d, struct lower_disk *x)
{
	x->park_until_us = d->now_us + d->options.stop_ms * 1000;
	for (uint32_t i = 0; i < d->options.sessions; i++)
		if (d->sessions[i].used && !d->sessions[i].closing && d->sessions[i].sched != SCHED_NONE)
			x->park_order[x->park_count++] = i;
	park_sessions = d->sessions;
	qsort(x->park_order, x->park_count, sizeof *x->park_order, park_order);
}

static bool disk_quiet(const struct daemon *d)
{
	const struct lower_disk *x = d->disk;
	bool busy = x->loads.count || x->downs.count || x->drop_count || d->copied_count;
	for (uint32_t i = 0; i < STAGES; i++)
		busy |= x->stage[i].state != STAGE_FREE;
	for (uint32_t i = 0; i < DROPS; i++)
		busy |= x->drop[i].busy;
	return !busy;
}

bool lower_park(struct daemon *d)
{
	struct lower_disk *x = d->disk;
	if (!x || !outlives(d))
		return true;
	if (x->park_until_us == 0)
		park_begin(d, x);
	if (d->now_us >= x->park_until_us) {
		if (x->park_at < x->park_count || !disk_quiet(d))
			log_say(LOG_NOTICE, "the time to write to the disk tier is over: %u sessions of %u were not "
				"looked at", x->park_count - x->park_at, x->park_count);
		return true;
	}
	while (x->park_at < x->park_count && x->downs.count == 0 && step_room(d)) {
		const struct session *s = &d->sessions[x->park_order[x->park_at++]];
		struct session_view v;
		if (!s->used || sched_session(d->sched, s->sched, &v) != 0 || v.state != SESSION_IDLE)
			continue;
		struct event e = {.kind = EVENT_PARK, .session = s->sched, .turn = SCHED_NONE, .now_us = d->now_us};
		e.as.park.place = PLACE_DISK;
		step(d, &e, NULL);
	}
	return x->park_at == x->park_count && disk_quiet(d);
}
