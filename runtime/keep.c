/*
 * Sessions and principals, kept and found again. A session is a row, its tokens in chunks, its
 * turns' marks in chunks, and its tools as they were given; what is resident of it is not kept: it
 * is computed again from the tokens, bit for bit.
 */
#include "runtime/keep.h"

#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "runtime/events.h"
#include "runtime/loop.h"

enum { ROW_VERSION = 3, CHUNK_TOKENS = 1024, CHUNK_MARKS = 64, PLAN_KEY = 0xffffffff };
enum { KIND_TOKENS, KIND_MARKS, KIND_TOOLS };
enum { FLAG_TOOLS = 1, FLAG_RAW = 2, FLAG_WAITS = 4, WAITS_FOR_SHIFT = 8 /* how many results */ };

struct row {
	uint32_t version, principal;
	uint64_t epoch, turn, touched_ms;
	uint32_t history, mark_count, flags, residency;
	uint64_t residency_bytes, lease_us;
	struct template_state state;
	char label[LABEL_MAX + 1];
	uint8_t op[16]; /* of the turn that runs; zero: none */
	uint8_t parent[16]; /* what it is closed with; zero: it is not tied */
	uint32_t waits_ids, reserved; /* of which calls results are waited for */
};
/* Of version 1, which ends before `parent`, and of 2, before `waits_ids`. */
enum { ROW_1_BYTES = (offsetof(struct row, parent) + 7) / 8 * 8,
	ROW_2_BYTES = (offsetof(struct row, waits_ids) + 7) / 8 * 8 };

/* What tokens and pages mean. */
struct plan_row {
	uint8_t model[16], plan[16];
	uint32_t vocab, vocab_sum; /* of its tokens' texts; 0: written by a version that did not say */
};

uint64_t keep_wall_ms(void)
{
	struct timespec t;
	clock_gettime(CLOCK_REALTIME, &t);
	return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

void keep_key(struct store_key *key, const void *bytes, size_t length)
{
	key->length = 0;
	keep_key_add(key, bytes, length);
}

void keep_key_add(struct store_key *key, const void *bytes, size_t length)
{
	CHECK(key->length + length <= sizeof key->bytes);
	memcpy(key->bytes + key->length, bytes, length);
	key->length += (uint32_t)length;
}

/* Big-endian, so that they sort. */
void keep_key_u32(struct store_key *key, uint32_t number)
{
	const uint8_t bytes[4] = {(uint8_t)(number >> 24), (uint8_t)(number >> 16), (uint8_t)(number >> 8),
				  (uint8_t)number};
	keep_key_add(key, bytes, sizeof bytes);
}

/* value NULL: removed. A value that finds no room is said and lost: the ring holds what the largest
   steps push, and step_room asks first. */
void keep_put(struct daemon *d, enum store_table table, const struct store_key *key,
	      const struct wire_id *owner, const void *value, size_t bytes)
{
	const int code = store_keep(d->store, table, key, false, owner ? owner->bytes : NULL, value, bytes);
	d->unclosed = true;
	if (code == -ERR_AUDIT_STALLED || code == -ERR_TOO_BIG || code == -ERR_LIMIT)
		log_say(LOG_ERROR, "a value of %zu bytes could not be kept: %s", bytes, err_text(code));
	else if (code)
		d->failed = true;
}

int keep_open(struct daemon *d)
{
	d->scratch = memory_reserve(KEEP_SCRATCH_BYTES);
	return !d->scratch ? -ERR_MEMORY : d->store ? keep_streams_open(d) : 0;
}

void keep_close(struct daemon *d)
{
	if (d->scratch)
		munmap(d->scratch, KEEP_SCRATCH_BYTES);
	d->scratch = NULL;
	keep_streams_close(d);
}

void keep_principal(struct daemon *d, uint32_t principal)
{
	struct store_key key = {.length = 0};
	if (!d->store)
		return;
	keep_key_u32(&key, principal);
	keep_put(d, TABLE_PRINCIPAL, &key, NULL, d->principals[principal].name,
		 strlen(d->principals[principal].name));
}

static void chunk_key(struct store_key *key, const struct session *s, uint8_t kind, uint32_t chunk)
{
	keep_key(key, s->id.bytes, sizeof s->id.bytes);
	keep_key_add(key, &kind, 1);
	keep_key_u32(key, chunk);
}

/* Chunks [first, …) of an array whose first `changed` elements are on disk as they are. */
static void chunks_put(struct daemon *d, const struct session *s, uint8_t kind, const void *array,
		       size_t element, uint32_t per_chunk, uint32_t changed, uint32_t count)
{
	struct store_key key;
	for (uint32_t at = changed / per_chunk * per_chunk; at < count; at += per_chunk) {
		const uint32_t n = count - at < per_chunk ? count - at : per_chunk;
		chunk_key(&key, s, kind, at / per_chunk);
		keep_put(d, TABLE_TURN, &key, &s->id, (const uint8_t *)array + at * element, n * element);
	}
}

/* A length and a text each. */
static void tools_put(struct daemon *d, const struct session *s)
{
	struct store_key key;
	const struct held_form *held = s->form;
	size_t at = 0, from = 0;
	for (uint32_t i = 0; i < held->tool_count; i++) {
		const uint32_t length = held->tool_length[i];
		if (length + sizeof length > KEEP_SCRATCH_BYTES - at)
			return;
		memcpy(d->scratch + at, &length, sizeof length);
		memcpy(d->scratch + at + sizeof length, held->tools + from, length);
		at += sizeof length + length;
		from += length;
	}
	chunk_key(&key, s, KIND_TOOLS, 0);
	keep_put(d, TABLE_TURN, &key, &s->id, d->scratch, at);
}

void keep_session(struct daemon *d, uint32_t session)
{
	struct session *s = &d->sessions[session];
	struct session_view v;
	struct store_key key;
	struct row row;
	if (!d->store || s->closing || s->forgets || s->sched == SCHED_NONE || public_is(d, s->principal))
		return;
	memset(&row, 0, sizeof row); /* the holes too */
	CHECK(sched_session(d->sched, s->sched, &v) == 0);
	/* A turn that runs begins anew after a kill: what it sampled so far is not history yet. */
	const bool runs = s->call != NONE && d->calls[s->call].kept;
	const uint32_t history = runs ? d->calls[s->call].prompt : s->history;
	row.version = ROW_VERSION;
	row.principal = s->principal;
	row.epoch = s->epoch;
	row.turn = s->turn;
	row.touched_ms = keep_wall_ms();
	row.history = history;
	row.mark_count = s->mark_count;
	row.flags = (s->tools ? FLAG_TOOLS : 0) | (s->raw ? FLAG_RAW : 0) | (s->waits_since_us ? FLAG_WAITS : 0) |
		    s->waits_for << WAITS_FOR_SHIFT;
	row.residency = v.residency;
	row.residency_bytes = v.granted_bytes;
	row.lease_us = v.lease_until_us > d->now_us ? v.lease_until_us - d->now_us : 0;
	row.waits_ids = s->waits_ids;
	row.state = s->state;
	memcpy(row.label, s->label, sizeof row.label);
	if (runs)
		memcpy(row.op, d->calls[s->call].op.bytes, sizeof row.op);
	if (session_orphan(s))
		memset(row.parent, 0xff, sizeof row.parent); /* nobody's: it ends at the start, too */
	else if (s->parent)
		memcpy(row.parent, d->sessions[s->parent - 1].id.bytes, sizeof row.parent);
	keep_key(&key, s->id.bytes, sizeof s->id.bytes);
	keep_put(d, TABLE_SESSION, &key, &s->id, &row, sizeof row);
	if (!s->kept && s->form)
		tools_put(d, s);
	chunks_put(d, s, KIND_TOKENS, s->token, sizeof *s->token, CHUNK_TOKENS, s->kept_history, history);
	chunks_put(d, s, KIND_MARKS, s->mark, sizeof *s->mark, CHUNK_MARKS, s->kept_marks, s->mark_count);
	s->kept = true;
	s->kept_history = history;
	s->kept_marks = s->mark_count;
}

void keep_session_drop(struct daemon *d, uint32_t session)
{
	struct session *s = &d->sessions[session];
	struct store_key key;
	if (!d->store || !s->kept)
		return;
	keep_key(&key, s->id.bytes, sizeof s->id.bytes);
	keep_put(d, TABLE_SESSION, &key, NULL, NULL, 0);
	if (store_keep(d->store, TABLE_TURN, &key, true, NULL, NULL, 0) != 0)
		d->failed = true;
	store_owner_end(d->store, s->id.bytes, keep_wall_ms());
	s->kept = false;
}

void keep_forget(struct daemon *d, const struct wire_id *owner)
{
	if (d->store)
		store_forget(d->store, owner->bytes);
}

/* Rows without a key: the process ended while the session was being forgotten. */
static void session_gone(struct daemon *d, const struct store_key *key)
{
	keep_put(d, TABLE_SESSION, key, NULL, NULL, 0);
	if (store_keep(d->store, TABLE_TURN, key, true, NULL, NULL, 0) != 0)
		d->failed = true;
}

static bool session_lives(void *arg, const uint8_t owner[16])
{
	const struct daemon *d = arg;
	for (uint32_t i = 0; i < d->options.sessions; i++)
		if (d->sessions[i].used && memcmp(d->sessions[i].id.bytes, owner, 16) == 0)
			return true;
	return false;
}

/* The start. */

static int principals_restore(struct daemon *d)
{
	struct store_key key = {.length = 0};
	for (;;) {
		size_t bytes = NAME_MAX_BYTES - 1;
		char name[NAME_MAX_BYTES] = {0};
		const int code = store_kept_next(d->store, TABLE_PRINCIPAL, &key, name, &bytes);
		if (code == -ERR_NOT_FOUND)
			return 0;
		if (code == -ERR_TOO_BIG) /* the plan's row, the last */
			return 0;
		TRY(code);
		const uint32_t at = (uint32_t)key.bytes[0] << 24 | (uint32_t)key.bytes[1] << 16 |
				    (uint32_t)key.bytes[2] << 8 | key.bytes[3];
		if (at == PLAN_KEY)
			return 0;
		if (key.length != 4 || at >= d->options.principals) {
			log_say(LOG_ERROR, "the store knows principal %u; start with --principals %u or more", at,
				at + 1);
			return -ERR_OUT_OF_RANGE;
		}
		memcpy(d->principals[at].name, name, sizeof name);
		d->principals[at].tenant = tenants_of_principal(&d->tenants, name);
		keep_key_add(&key, "", 1); /* the next key */
	}
}

static uint32_t vocabulary_sum(const struct vocabulary *v)
{
	crypto_generichash_state state;
	uint32_t sum[4];
	crypto_generichash_init(&state, NULL, 0, sizeof sum);
	for (uint32_t i = 0; i < v->count; i++) {
		crypto_generichash_update(&state, (const uint8_t *)&v->length[i], sizeof v->length[i]);
		crypto_generichash_update(&state, (const uint8_t *)v->text[i], v->length[i]);
	}
	crypto_generichash_final(&state, (uint8_t *)sum, sizeof sum);
	return sum[0] ? sum[0] : 1;
}

/* 1: the pages and running turns of before are of another model or plan. */
static int plan_restore(struct daemon *d, bool *other)
{
	struct store_key key = {.length = 0};
	struct plan_row now, was;
	size_t bytes = sizeof was;
	memset(&now, 0, sizeof now);
	memcpy(now.model, d->model->hash, sizeof now.model);
	forward_plan_hash(d->forward, now.plan);
	now.vocab = d->model->arch.vocab;
	now.vocab_sum = vocabulary_sum(&d->model->vocabulary);
	keep_key_u32(&key, PLAN_KEY);
	const int code = store_kept(d->store, TABLE_PRINCIPAL, &key, &was, &bytes);
	const bool said = code == 0 && was.vocab_sum != 0;
	if (!said)
		was.vocab_sum = now.vocab_sum;
	*other = code == 0 && memcmp(&now, &was, sizeof now) != 0;
	if (code != 0 && code != -ERR_NOT_FOUND)
		return code;
	if (*other) {
		const bool model = memcmp(now.model, was.model, sizeof now.model) != 0;
		log_say(LOG_NOTICE, "%s since the last start: pages of before are void, and turns that ran end as "
			"restarted", model ? "the model file changed" : "the precision plan changed");
		if (now.vocab != was.vocab) {
			log_say(LOG_ERROR, "the sessions of this store were made with a model of %u tokens, this one "
				"has %u; start with that model, or with another --state", was.vocab, now.vocab);
			return -ERR_OUT_OF_RANGE;
		}
		/* Their numbers would stand for other words. */
		if (now.vocab_sum != was.vocab_sum) {
			log_say(LOG_ERROR, "the sessions of this store were made with another vocabulary of %u tokens: "
				"start with that model, or with another --state", was.vocab);
			return -ERR_UNSUPPORTED;
		}
		/* Not of a start that was refused. */
		if (model)
			authority_changed(d, CONFIG_MODEL_CHANGED, was.model);
		if (memcmp(now.plan, was.plan, sizeof now.plan) != 0)
			authority_changed(d, CONFIG_PLAN_CHANGED, was.plan);
	}
	if (!said || *other)
		keep_put(d, TABLE_PRINCIPAL, &key, NULL, &now, sizeof now);
	return 0;
}

static int chunks_get(struct daemon *d, const struct session *s, uint8_t kind, void *array, size_t element,
		      uint32_t per_chunk, uint32_t count)
{
	struct store_key key;
	for (uint32_t at = 0; at < count; at += per_chunk) {
		size_t bytes = KEEP_SCRATCH_BYTES;
		const uint32_t n = count - at < per_chunk ? count - at : per_chunk;
		chunk_key(&key, s, kind, at / per_chunk);
		TRY(store_kept(d->store, TABLE_TURN, &key, d->scratch, &bytes));
		if (bytes < n * element)
			return -ERR_INTEGRITY;
		memcpy((uint8_t *)array + at * element, d->scratch, n * element);
	}
	return 0;
}

static bool history_sound(const struct daemon *d, const struct session *s)
{
	for (uint32_t i = 0; i < s->history; i++)
		if (s->token[i] >= d->model->arch.vocab)
			return false;
	for (uint32_t i = 0; i < s->mark_count; i++)
		if (s->mark[i].start > s->mark[i].output || s->mark[i].start > s->history ||
		    (i > 0 && s->mark[i].start < s->mark[i - 1].start))
			return false;
	return true;
}

static int session_fill(struct daemon *d, struct session *s, const struct row *row)
{
	struct store_key key;
	size_t bytes = KEEP_SCRATCH_BYTES;
	s->epoch = row->epoch;
	s->turn = row->turn;
	s->history = row->history;
	s->mark_count = row->mark_count;
	s->tools = row->flags & FLAG_TOOLS;
	s->raw = row->flags & FLAG_RAW;
	s->waits_since_us = row->flags & FLAG_WAITS ? d->now_us : 0;
	s->waits_for = row->flags >> WAITS_FOR_SHIFT;
	s->waits_ids = row->waits_ids;
	s->state = row->state;
	memcpy(s->label, row->label, sizeof s->label);
	s->label[LABEL_MAX] = 0;
	TRY(chunks_get(d, s, KIND_TOKENS, s->token, sizeof *s->token, CHUNK_TOKENS, s->history));
	TRY(chunks_get(d, s, KIND_MARKS, s->mark, sizeof *s->mark, CHUNK_MARKS, s->mark_count));
	if (!history_sound(d, s))
		return -ERR_INTEGRITY;
	chunk_key(&key, s, KIND_TOOLS, 0);
	if (s->tools && store_kept(d->store, TABLE_TURN, &key, d->scratch, &bytes) == 0)
		TRY(session_tools_restore(d, s, d->scratch, bytes));
	s->kept = true;
	s->kept_history = s->history;
	s->kept_marks = s->mark_count;
	/* The last token was sampled, and is computed first thing in the next turn. */
	s->known = s->mark_count && s->history ? s->history - 1 : 0;
	s->why_lost = "restarted";
	return 0;
}

static void session_enter(struct daemon *d, uint32_t slot, const struct row *row)
{
	struct session *s = &d->sessions[slot];
	uint32_t shared;
	const uint32_t donor = lower_donor(d, slot, &shared);
	struct event e = {.kind = donor == NONE ? EVENT_OPEN : EVENT_FORK, .turn = SCHED_NONE,
			  .session = donor == NONE ? SCHED_NONE : d->sessions[donor].sched,
			  .principal = s->principal, .now_us = d->now_us, .session_key = slot};
	e.as.residency.kind = row->residency;
	if (row->residency != RESIDENCY_BEST_EFFORT)
		e.as.residency.bytes = row->residency_bytes;
	if (row->residency == RESIDENCY_LEASED) {
		e.as.residency.lease_us = row->lease_us;
		if (row->lease_us == 0 || row->lease_us > d->limits.lease_us_max)
			e.as.residency.kind = RESIDENCY_BEST_EFFORT;
	}
	if (e.as.residency.kind == RESIDENCY_BEST_EFFORT || e.as.residency.bytes == 0)
		memset(&e.as, 0, sizeof e.as);
	step(d, &e, NULL);
	if (step_granted.err && e.as.residency.kind != RESIDENCY_BEST_EFFORT) {
		/* What was granted before does not fit these limits: the session stays, unpinned. */
		log_say(LOG_NOTICE, "a session's residency could not be granted again");
		memset(&e.as, 0, sizeof e.as);
		step(d, &e, NULL);
	}
	CHECK(step_granted.err == 0); /* session_take found a slot, and the scheduler has as many */
	s->sched = step_granted.session;
	if (donor != NONE) {
		const struct event cut = {.kind = EVENT_ROLLBACK, .session = s->sched, .turn = SCHED_NONE,
					  .now_us = d->now_us, .as.rollback = {.tokens = shared}};
		step(d, &cut, NULL);
	}
	lower_adopt(d, slot);
}

static int limits_fit(const struct daemon *d, const struct row *row)
{
	if (row->history <= d->limits.context_tokens && row->mark_count <= d->options.session_turns &&
	    row->principal < d->options.principals)
		return 0;
	log_say(LOG_ERROR, "a session of this store has %u tokens in %u turns; start with --context and "
		"--session-turns that hold it, or with another --state", row->history, row->mark_count);
	return -ERR_OUT_OF_RANGE;
}

struct restored {
	uint32_t sessions, turns, damaged;
	struct wire_id *op; /* per session: of the turn that ran; zero: none */
	struct wire_id *parent; /* likewise: what it is tied to */
	struct wire_id *gone; /* which were being forgotten when the process ended */
	uint32_t gone_count;
};

static int session_restore(struct daemon *d, const struct store_key *key, const struct row *row,
			   struct restored *n)
{
	TRY(limits_fit(d, row));
	const uint32_t slot = session_take(d, row->principal);
	if (slot == NONE) {
		log_say(LOG_ERROR, "the store has more than %llu sessions; raise --sessions",
			(unsigned long long)d->options.sessions);
		return -ERR_OUT_OF_RANGE;
	}
	struct session *s = &d->sessions[slot];
	memcpy(s->id.bytes, key->bytes, sizeof s->id.bytes);
	const int code = session_fill(d, s, row);
	if (code == -ERR_INTEGRITY || code == -ERR_NOT_FOUND) {
		log_say(LOG_ERROR, "a session's rows in the store are damaged: it is left as it is and not served");
		session_drop(d, slot);
		n->damaged++;
		return 0;
	}
	TRY(code);
	session_enter(d, slot, row);
	session_rest(d, slot);
	n->sessions++;
	memcpy(n->op[slot].bytes, row->op, sizeof n->op[slot].bytes);
	memcpy(n->parent[slot].bytes, row->parent, sizeof n->parent[slot].bytes);
	return 0;
}

/* What was resident before the restart and is not found below the device. */
static void lost_say(struct daemon *d)
{
	for (uint32_t i = 0; i < d->options.sessions; i++) {
		const struct session *s = &d->sessions[i];
		struct session_view view;
		if (!s->used || sched_session(d->sched, s->sched, &view) != 0 || view.resident >= s->known)
			continue;
		const struct event_part lost[] = {{"from", NULL, s->known}, {"to", NULL, view.resident},
						  {"why", "restarted", 0}};
		event_say(d, s, "lost", lost, 3);
	}
}

/* Turns run again when all sessions rest as they did: until then some are forks of others. */
static int turns_restore(struct daemon *d, struct restored *n)
{
	static const struct wire_id none;
	for (uint32_t i = 0; i < d->options.sessions; i++) {
		if (memcmp(&n->op[i], &none, sizeof none) == 0)
			continue;
		n->turns++;
		TRY(keep_call_restart(d, i, &n->op[i]));
	}
	return 0;
}

static bool row_known(const struct row *row, size_t bytes)
{
	const size_t wanted[] = {0, ROW_1_BYTES, ROW_2_BYTES, sizeof *row};
	return row->version > 0 && row->version <= ROW_VERSION && bytes == wanted[row->version];
}

static bool id_gone(const struct restored *n, const struct wire_id *id)
{
	for (uint32_t i = 0; i < n->gone_count; i++)
		if (memcmp(&n->gone[i], id, sizeof *id) == 0)
			return true;
	return false;
}

/* Ties again what was tied. What a parent has left behind, since the process ended between the two, ends, in
   the loop: here there may be no room for so many in the log. */
static void ties_restore(struct daemon *d, struct restored *n)
{
	static const struct wire_id none;
	struct wire_id nobody;
	memset(&nobody, 0xff, sizeof nobody);
	for (uint32_t i = 0; i < d->options.sessions; i++) {
		struct session *s = &d->sessions[i];
		if (!s->used || memcmp(&n->parent[i], &none, sizeof none) == 0)
			continue;
		const uint32_t parent = session_find(d, s->principal, &n->parent[i]);
		s->parent = parent == NONE ? 0 : parent + 1;
	}
	for (uint32_t i = 0; i < d->options.sessions; i++) {
		const struct session *s = &d->sessions[i];
		if (!s->used || s->parent || memcmp(&n->parent[i], &none, sizeof none) == 0)
			continue;
		const bool forgotten = id_gone(n, &n->parent[i]);
		/* One that is damaged may be somebody's parent. */
		if (forgotten || n->damaged == 0 || memcmp(&n->parent[i], &nobody, sizeof nobody) == 0)
			session_orphan_make(d, i, forgotten);
	}
	for (uint32_t i = 0; i < d->options.sessions; i++)
		if (session_orphan(&d->sessions[i]))
			memset(&n->op[i], 0, sizeof n->op[i]);
}

static int sessions_restore(struct daemon *d, struct restored *n)
{
	struct store_key key = {.length = 0};
	for (;;) {
		struct row row = {0};
		size_t bytes = sizeof row;
		const int code = store_kept_next(d->store, TABLE_SESSION, &key, &row, &bytes);
		if (code == -ERR_NOT_FOUND)
			return 0;
		if (code == -ERR_TOO_BIG || (code == 0 && !row_known(&row, bytes))) {
			log_say(LOG_ERROR, "the sessions of this store are of another version of the program; use that "
				"one, or another --state");
			return -ERR_UNSUPPORTED;
		}
		if (code != 0 && code != -ERR_INTEGRITY && code != -ERR_GONE)
			return code;
		if (row.version < 2)
			memset(row.parent, 0, sizeof row.parent);
		n->damaged += code == -ERR_INTEGRITY;
		if (code == -ERR_GONE && key.length == sizeof n->gone[0] && n->gone_count < d->options.sessions)
			memcpy(&n->gone[n->gone_count++], key.bytes, key.length);
		if (code == -ERR_GONE)
			session_gone(d, &key);
		if (code == 0)
			TRY(session_restore(d, &key, &row, n));
		keep_key_add(&key, "", 1);
	}
}

int keep_restore(struct daemon *d)
{
	struct restored n = {0};
	if (!d->store)
		return 0;
	d->now_us = loop_clock_us();
	TRY(principals_restore(d));
	TRY(plan_restore(d, &d->restore_other));
	TRY(lower_disk_scan(d));
	n.op = calloc(d->options.sessions, sizeof *n.op);
	n.parent = calloc(d->options.sessions, sizeof *n.parent);
	n.gone = calloc(d->options.sessions, sizeof *n.gone);
	int code = n.op && n.parent && n.gone ? sessions_restore(d, &n) : -ERR_MEMORY;
	if (code == 0) {
		ties_restore(d, &n);
		lower_adopted(d);
		lost_say(d);
		code = turns_restore(d, &n);
	}
	free(n.op);
	free(n.parent);
	free(n.gone);
	TRY(code);
	/* What is damaged is left as it is, its key too. */
	if (n.damaged == 0)
		store_owners_end(d->store, session_lives, d, keep_wall_ms());
	if (n.sessions || n.damaged)
		log_say(LOG_NOTICE, "%u sessions are back, %u of them in a turn%s", n.sessions, n.turns,
			n.damaged ? "; some were damaged" : "");
	step_record_close(d);
	return 0;
}
