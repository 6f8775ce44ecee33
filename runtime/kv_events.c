/*
 * Events of KV blocks, for routers that send a request to where its prefix lies. A block is a full page:
 * its hash is a chain over the plan, the principal and every token up to its last. Hash and schema are
 * those of vLLM's kv_events (vllm/distributed/kv_events.py in its repository): an EventBatch
 * [ts, events, data_parallel_rank] of BlockStored, BlockRemoved and AllBlocksCleared, in frames of topic,
 * number and payload; a second socket plays kept ones again.
 *
 * A router keeps a set. Two sessions with the same tokens have two pages of one hash, so that it is told
 * of the first that comes and of the last that goes.
 */
#include "runtime/kv_events.h"

#include <sodium.h>
#include <stdlib.h>
#include <string.h>

static bool wanted(const struct daemon *d, uint32_t tenant)
{
	return (tenant ? d->tenants.tenant[tenant].kv_events : d->options.kv_events)[0] != 0;
}

static int tables_make(struct daemon *d, struct kv *kv)
{
	uint64_t pages = 0, lower = 0;
	for (uint32_t p = 0; p < PLACE_COUNT; p++) {
		const uint32_t n = d->limits.group[0].page_count[p];
		pages += n;
		lower += p == PLACE_DEVICE ? 0 : n;
		kv->page[p] = calloc(n ? n : 1, sizeof **kv->page);
		if (!kv->page[p])
			return -ERR_MEMORY;
	}
	uint32_t room = 64;
	while (room < 2 * pages)
		room *= 2;
	kv->seen_mask = room - 1;
	kv->seen = calloc(room, sizeof *kv->seen);
	kv->token = calloc(OPS_GATHERED, kv->span * sizeof *kv->token);
	/* Each copy in flight has a page of a lower place to itself. */
	kv->move_max = (uint32_t)lower;
	kv->move = calloc(lower + 1, sizeof *kv->move);
	kv->move_token = memory_reserve((lower + 1) * kv->span * sizeof *kv->move_token);
	return kv->seen && kv->token && kv->move && kv->move_token ? 0 : -ERR_MEMORY;
}

static int feed_make(const struct daemon *d, struct kv_feed *f, uint32_t tenant)
{
	f->tenant = tenant;
	f->kept = calloc(KV_KEPT_MAX, sizeof *f->kept);
	f->arena = memory_reserve(d->options.kv_events_kept);
	return f->kept && f->arena ? 0 : -ERR_MEMORY;
}

int kv_open(struct daemon *d)
{
	struct kv *kv;
	bool any = false;
	for (uint32_t i = 0; i < d->tenants.count; i++)
		any |= wanted(d, i);
	if (!any)
		return 0;
	kv = d->kv = calloc(1, sizeof *kv);
	if (!kv)
		return -ERR_MEMORY;
	kv->span = d->limits.page_tokens;
	TRY(tables_make(d, kv));
	for (uint32_t i = 0; i < d->tenants.count; i++)
		if (wanted(d, i))
			TRY(feed_make(d, &kv->feed[kv->feed_count++], i));
	/* What a router remembers of a process before this one is gone. */
	kv->op[kv->op_count++] = (struct kv_op){.kind = OP_CLEAR};
	return 0;
}

void kv_close(struct daemon *d)
{
	struct kv *kv = d->kv;
	if (!kv)
		return;
	for (uint32_t p = 0; p < PLACE_COUNT; p++)
		free(kv->page[p]);
	for (uint32_t i = 0; i < kv->feed_count; i++) {
		free(kv->feed[i].kept);
		if (kv->feed[i].arena)
			memory_release(kv->feed[i].arena, d->options.kv_events_kept);
	}
	if (kv->move_token)
		memory_release(kv->move_token, (kv->move_max + 1) * kv->span * sizeof *kv->move_token);
	free(kv->seen);
	free(kv->token);
	free(kv->move);
	free(kv);
	d->kv = NULL;
}

/* --- Hashes, and who has them. --- */

static struct chain_key chain_root(const struct daemon *d, uint32_t principal)
{
	struct chain_key key;
	crypto_generichash_state state;
	uint8_t plan[16];
	forward_plan_hash(d->forward, plan);
	crypto_generichash_init(&state, (const uint8_t *)"holdfast kv block", 17, sizeof key);
	crypto_generichash_update(&state, plan, sizeof plan);
	crypto_generichash_update(&state, (const uint8_t *)d->principals[principal].name,
				  strlen(d->principals[principal].name));
	crypto_generichash_final(&state, (uint8_t *)&key, sizeof key);
	return key;
}

static struct chain_key chain_next(const struct chain_key *parent, const uint32_t *token, uint32_t count)
{
	struct chain_key key;
	crypto_generichash((uint8_t *)&key, sizeof key, (const uint8_t *)token, count * sizeof *token,
			   (const uint8_t *)parent, sizeof *parent);
	return key;
}

static bool key_same(const struct chain_key *a, const struct chain_key *b)
{
	return a->lo == b->lo && a->hi == b->hi;
}

/* Where that key is, or the empty place where it would be. There is one: the table is half full at most. */
static struct kv_seen *seen_find(struct kv *kv, const struct chain_key *key, uint32_t place)
{
	uint32_t at = (uint32_t)(key->lo + place) & kv->seen_mask;
	while (kv->seen[at].count && !(kv->seen[at].place == place && key_same(&kv->seen[at].key, key)))
		at = (at + 1) & kv->seen_mask;
	return &kv->seen[at];
}

/* Empties a place, and moves up what stood behind it because of it. */
static void seen_remove(struct kv *kv, struct kv_seen *gone)
{
	uint32_t hole = (uint32_t)(gone - kv->seen);
	for (uint32_t at = (hole + 1) & kv->seen_mask; kv->seen[at].count; at = (at + 1) & kv->seen_mask) {
		const uint32_t home = (uint32_t)(kv->seen[at].key.lo + kv->seen[at].place) & kv->seen_mask;
		if (((at - home) & kv->seen_mask) < ((at - hole) & kv->seen_mask))
			continue;
		kv->seen[hole] = kv->seen[at];
		hole = at;
	}
	kv->seen[hole] = (struct kv_seen){.count = 0};
}

struct kv_op *kv_op_add(struct daemon *d, enum op_kind kind, uint32_t place, const struct kv_page *p)
{
	struct kv *kv = d->kv;
	if (kv->op_count == OPS_GATHERED)
		kv_flush(d);
	struct kv_op *op = &kv->op[kv->op_count++];
	*op = (struct kv_op){.kind = (uint8_t)kind, .place = (uint8_t)place, .tenant = p->tenant,
			     .has_parent = p->unit > 0, .parent = p->parent.lo, .hash = p->key.lo,
			     .token_at = kv->token_count};
	return op;
}

static void page_store(struct daemon *d, uint32_t place, struct kv_page *p, const uint32_t *token)
{
	struct kv *kv = d->kv;
	struct kv_seen *seen = seen_find(kv, &p->key, place);
	CHECK(!p->stored);
	p->stored = true;
	seen->key = p->key;
	seen->place = place;
	if (seen->count++)
		return;
	const struct kv_op *op = kv_op_add(d, OP_STORE, place, p);
	memcpy(kv->token + op->token_at, token, kv->span * sizeof *token);
	kv->token_count += kv->span;
}

static void page_unstore(struct daemon *d, uint32_t place, struct kv_page *p)
{
	struct kv *kv = d->kv;
	if (!p->stored)
		return;
	p->stored = false;
	struct kv_seen *seen = seen_find(kv, &p->key, place);
	CHECK(seen->count > 0);
	if (seen->count > 1) {
		seen->count--;
		return;
	}
	seen_remove(kv, seen);
	(void)kv_op_add(d, OP_REMOVE, place, p);
}

/* --- What happens to pages. --- */

/* The key of the session's page `unit`, whose tokens and pages before it are there. */
static struct chain_key unit_key(const struct daemon *d, const struct session *s, uint32_t session,
				 uint32_t unit)
{
	const struct kv *kv = d->kv;
	struct chain_key key = chain_root(d, s->principal);
	struct page_ref ref;
	uint32_t from = 0;
	/* The page before it has been a block itself, as a rule. */
	if (unit > 0 && sched_page_table(d->sched, session, 0, unit - 1, 1, &ref) == 1 &&
	    ref.place < PLACE_COUNT) {
		const struct kv_page *p = &kv->page[ref.place][ref.page];
		if (p->stored && p->tag == ref.tag && p->unit == unit - 1) {
			key = p->key;
			from = unit;
		}
	}
	for (uint32_t u = from; u < unit; u++)
		key = chain_next(&key, s->token + u * kv->span, kv->span);
	return key;
}

void kv_computed(struct daemon *d, const struct batch_entry *e, uint32_t computed)
{
	struct kv *kv = d->kv;
	struct session_view view;
	if (!kv || !computed)
		return;
	const uint32_t first = e->position_first / kv->span;
	const uint32_t last = (e->position_first + computed) / kv->span;
	if (last <= first || sched_session(d->sched, e->session, &view) != 0)
		return;
	const struct session *s = &d->sessions[view.key];
	if (sched_page_table(d->sched, e->session, 0, first, last - first, d->refs) < last - first)
		return;
	struct chain_key parent = unit_key(d, s, e->session, first);
	for (uint32_t unit = first; unit < last; unit++) {
		const struct page_ref *ref = &d->refs[unit - first];
		const uint32_t *token = s->token + unit * kv->span;
		struct kv_page *p = &kv->page[ref->place][ref->page];
		const struct chain_key key = chain_next(&parent, token, kv->span);
		if (!p->stored || p->tag != ref->tag || !key_same(&p->key, &key)) {
			page_unstore(d, ref->place, p);
			*p = (struct kv_page){.tag = ref->tag, .key = key, .parent = parent, .unit = unit,
					      .tenant = d->principals[s->principal].tenant};
			page_store(d, ref->place, p, token);
		}
		parent = key;
	}
}

/* The page in which the session ends is not full, whatever it was before. */
static void open_page(struct daemon *d, uint32_t session)
{
	struct session_view view;
	struct page_ref ref;
	const struct kv *kv = d->kv;
	if (sched_session(d->sched, session, &view) != 0 || view.resident % kv->span == 0 ||
	    sched_page_table(d->sched, session, 0, view.resident / kv->span, 1, &ref) != 1 ||
	    ref.place >= PLACE_COUNT)
		return;
	struct kv_page *p = &kv->page[ref.place][ref.page];
	if (p->tag == ref.tag)
		page_unstore(d, ref.place, p);
}

void kv_cut(struct daemon *d, uint32_t session)
{
	if (d->kv)
		open_page(d, session);
}

static void run_gone(struct daemon *d, const struct effect *e)
{
	struct kv *kv = d->kv;
	if (e->as.run.group != 0 || e->as.run.place >= PLACE_COUNT)
		return;
	const uint32_t first = e->as.run.page_first, last = first + e->as.run.page_count;
	for (uint32_t i = first; i < last; i++)
		page_unstore(d, e->as.run.place, &kv->page[e->as.run.place][i]);
	/* Who left while his page was on its way will not see it arrive. */
	for (uint32_t i = 0; i < kv->move_count; i++)
		if (kv->move[i].place == e->as.run.place && kv->move[i].slot >= first && kv->move[i].slot < last)
			kv->move[i].place = PLACE_COUNT;
}

static void move_begin(struct daemon *d, const struct effect *e)
{
	struct kv *kv = d->kv;
	const uint32_t from = e->as.copy.place_from;
	if (e->as.copy.group != 0 || from >= PLACE_COUNT || e->as.copy.place_to >= PLACE_COUNT)
		return;
	struct kv_page *p = &kv->page[from][e->as.copy.page_from];
	if (!p->stored)
		return;
	const struct session *s = &d->sessions[e->session_key];
	if (kv->move_count < kv->move_max && s->used) {
		memcpy(kv->move_token + kv->move_count * kv->span, s->token + p->unit * kv->span,
		       kv->span * sizeof *s->token);
		struct kv_move *m = &kv->move[kv->move_count++];
		*m = (struct kv_move){.copy = e->as.copy.copy, .place = e->as.copy.place_to,
				      .slot = e->as.copy.page_to, .page = *p};
		m->page.tag = e->as.copy.tag_to;
		m->page.stored = false;
	}
	page_unstore(d, from, p);
}

void kv_copied(struct daemon *d, uint64_t copy, bool done)
{
	struct kv *kv = d->kv;
	for (uint32_t i = 0; kv && i < kv->move_count; i++) {
		struct kv_move *m = &kv->move[i];
		if (m->copy != copy)
			continue;
		if (done && m->place < PLACE_COUNT) {
			struct kv_page *p = &kv->page[m->place][m->slot];
			page_unstore(d, m->place, p);
			*p = m->page;
			page_store(d, m->place, p, kv->move_token + i * kv->span);
		}
		kv->move_count--;
		memmove(m, m + 1, (kv->move_count - i) * sizeof *m);
		memmove(kv->move_token + i * kv->span, kv->move_token + (i + 1) * kv->span,
			(kv->move_count - i) * kv->span * sizeof *kv->move_token);
		return;
	}
}

void kv_step(struct daemon *d)
{
	for (uint32_t i = 0; d->kv && i < d->effects.count; i++) {
		const struct effect *e = &d->effects.list[i];
		switch (e->kind) {
		case EFFECT_ASSIGN:
		case EFFECT_FREE:
		case EFFECT_QUARANTINE: run_gone(d, e); break;
		case EFFECT_COPY: move_begin(d, e); break;
		case EFFECT_ADMITTED:
		case EFFECT_END:
			if (e->session != SCHED_NONE)
				open_page(d, e->session);
			break;
		default: break;
		}
	}
}
