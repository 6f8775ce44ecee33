/*
 * The door of the store: opening and closing, and the ring that the loop fills. A slot of the ring is
 * free again when its record is on disk, so the ring is also the bound of what a crash can lose.
 */
#include "config.h"

#include "runtime/store.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "runtime/fault.h"
#include "runtime/store_inside.h"
#include "sched/check.h"

enum { MAP_BYTES_MIN = 1 << 20, RING_MAX = 1 << 24, MARKS_ROOM_MAX = 1 << 19,
       SECOND_WAIT_MS = 5000 /* for an anchor at the end; one that is not there by then will not be */ };

void store_options_default(struct store_options *options)
{
	*options = (struct store_options){
		.map_bytes = 64ull << 30, .map_begin = 1ull << 30, .ring_records = 1 << 16,
		.commit_records = 4096, .keep_bytes = 16 << 20, .page_tokens = 16, .headroom_bytes = 16 << 20,
		.owners = 1024, .segment_entries = ARCHIVE_SEGMENT, .readers_ms = 60000, .anchor_ms = 10000,
		.anchor_entries = 1024, .pace_ms = 100,
	};
}

/* What an earlier process said last becomes an entry each, once: the ids of those that were are kept
   in the same transaction. */
static int beacons_put(struct store *s, struct batch *b)
{
	uint64_t ids[BEACON_SLOTS] = {0}, now[BEACON_SLOTS] = {0};
	struct beacon_slot slot;
	bool any = false;
	TRY(store_meta_ids(b->txn, &s->disk, ids));
	for (unsigned i = 0; i < BEACON_SLOTS; i++) {
		if (!beacon_read(&s->disk, i, &slot))
			continue;
		now[i] = slot.id;
		any = true;
		bool known = false;
		for (unsigned k = 0; k < BEACON_SLOTS; k++)
			known |= ids[k] == slot.id;
		if (known)
			continue;
		struct store_record r = {
			.kind = STORE_INCIDENT, .reason = REASON_BEACON, .place = (uint16_t)slot.reason,
			.group = slot.group, .page_first = slot.page, .page_count = 1, .tag_first = slot.wall_ns,
			.value = {slot.expected, slot.found}};
		memcpy(r.session, slot.session, sizeof r.session);
		store_entry_begin(&s->entry);
		store_entry_add(&s->entry, &r);
		TRY(store_entry_put_step(&s->entry, b->txn, &s->disk, &b->head, 0, 0));
		s->heard++;
	}
	return any ? store_meta_ids_put(b->txn, &s->disk, now) : 0;
}

/* The boot's record is durable before anything else is. */
static int boot_record(struct store *s)
{
	struct batch b = {.head = s->disk.head, .bare = true};
	b.head.boot++;
	TRY(store_batch_begin(s, &b));
	int err = store_put_boot(b.txn, &s->disk, &b.head, s->options.page_tokens, s->options.config);
	if (err == 0)
		err = beacons_put(s, &b);
	if (err != 0) {
		mdb_txn_abort(b.txn);
		return err;
	}
	TRY(store_batch_commit(s, &b, false));
	for (unsigned i = 0; i < BEACON_SLOTS; i++)
		beacon_clear(&s->disk, i);
	s->boot = b.head.boot;
	store_head_take(s, &b.head);
	return 0;
}

static void store_free(struct store *s)
{
	pthread_mutex_destroy(&s->map);
	vault_close(&s->vault);
	anchor_close(&s->anchor);
	archive_close(&s->archive);
	index_close(&s->index);
	store_disk_close(&s->disk);
	if (s->event_fd >= 0)
		close(s->event_fd);
	free(s->ring);
	free(s->keep);
	free(s);
}

static int options_check(const struct store_options *o, char *reason)
{
	if (o->ring_records < 2 || o->ring_records > RING_MAX ||
	    (o->ring_records & (o->ring_records - 1)) != 0)
		return store_refuse(reason, -ERR_OUT_OF_RANGE,
			"audit log: a ring of %u records: it must be a power of two, 2 to %d",
			o->ring_records, RING_MAX);
	if (o->map_bytes < MAP_BYTES_MIN)
		return store_refuse(reason, -ERR_OUT_OF_RANGE,
			"audit log: a map of %llu bytes: it must have %d or more",
			(unsigned long long)o->map_bytes, MAP_BYTES_MIN);
	if (o->segment_entries == 0 || o->segment_entries > ARCHIVE_SEGMENT)
		return store_refuse(reason, -ERR_OUT_OF_RANGE,
			"audit log: segments of %u entries: 1 to %d are possible", o->segment_entries,
			ARCHIVE_SEGMENT);
	if (o->keep_bytes < 4096 || (o->keep_bytes & (o->keep_bytes - 1)) != 0)
		return store_refuse(reason, -ERR_OUT_OF_RANGE,
			"audit log: %llu bytes for what is kept: it must be a power of two from 4096",
			(unsigned long long)o->keep_bytes);
	if (o->commit_records == 0 || o->page_tokens == 0)
		return store_refuse(reason, -ERR_OUT_OF_RANGE, "audit log: %s is 0: 1 is the least",
				    o->commit_records == 0 ? "commit_records" : "page_tokens");
	return 0;
}

/* The second thread's work. */
static void second_put(void *arg)
{
	struct store *s = arg;
	(void)anchor_put(&s->anchor, &s->second_head);
	store_announce(s); /* always: that it was silent may have been said meanwhile */
}

/* The third's. */
static void third_work(void *arg)
{
	archive_work(arg);
}

/* In this order: nothing is written before the anchors agreed with what is there. */
static int parts_open(struct store *s, const struct store_options *options, char *reason,
		      const char **warning)
{
	TRY(store_disk_open(options, &s->disk, reason, warning));
	TRY(segments_check(options->dir, s->disk.uuid, reason));
	TRY(anchor_open(&s->anchor, &s->disk, options->anchor_dir, reason));
	if (s->anchor.fd >= 0 && aside_open(&s->second, second_put, s) != 0)
		return store_refuse(reason, -ERR_MEMORY, "audit log: no thread for the anchors");
	uint64_t flushes;
	TRY(store_flushes(&s->disk, &flushes, reason));
	/* A record may bring an incident along. */
	const uint64_t marks = options->ring_records * 2ull * INDEX_RECORD;
	TRY(vault_open(options->dir, options->owners, s->disk.uuid, flushes, &s->vault, reason));
	int err = archive_open(&s->archive, &s->disk);
	if (err == 0)
		err = aside_open(&s->third, third_work, &s->archive);
	atomic_store(&s->archived, s->disk.archived.seq);
	if (err == 0)
		err = index_open(&s->index, &s->disk, (uint32_t)(marks < MARKS_ROOM_MAX ? marks : MARKS_ROOM_MAX));
	s->disk.marks = &s->index;
	if (err == 0)
		err = room_open(s);
	/* What the first entry relies on: without the keys no later start would take the log. */
	if (err == 0)
		err = store_code_of(store_dir_sync(options->dir));
	if (err == 0)
		err = boot_record(s);
	if (err == 0)
		err = store_writer_start(s);
	if (err != 0)
		store_refuse_code(reason, options->dir, err, "audit log '%s': cannot record the boot: %s",
				options->dir, err_text(err));
	return err;
}

int store_open(const struct store_options *options, struct store **out, char *reason,
	       const char **warning)
{
	*out = NULL;
	*warning = NULL;
	TRY(options_check(options, reason));
	struct store *s = calloc(1, sizeof *s);
	if (s == NULL)
		return store_refuse(reason, -ERR_MEMORY, "audit log: no memory");
	pthread_mutex_init(&s->map, NULL);
	s->options = *options;
	s->mask = options->ring_records - 1;
	s->disk.lock_fd = s->disk.beacon_fd = -1;
	s->anchor.fd = s->anchor.key_fd = s->archive.fd = -1;
	s->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	s->ring = calloc(options->ring_records, sizeof *s->ring);
	s->keep = malloc(options->keep_bytes);
	int err = s->event_fd < 0 || s->ring == NULL || s->keep == NULL ? -ERR_MEMORY : 0;
	if (err != 0)
		store_refuse(reason, err, "audit log: no memory for a ring of %u records",
			     options->ring_records);
	if (err == 0)
		err = parts_open(s, options, reason, warning);
	/* The caller's; disk has a copy. */
	s->options.dir = s->options.anchor_dir = s->options.config = NULL;
	if (err != 0) {
		(void)aside_close(&s->second);
		(void)aside_close(&s->third);
		store_free(s);
		return err;
	}
	*out = s;
	return 0;
}

bool store_settle(struct store *s, uint32_t ms)
{
	s->settled = s->settled || store_writer_stop(s, ms);
	return s->settled;
}

/* The last word of the log is anchored too; where that fails, or the place does not answer, it is in the
   unanchored tail. */
bool store_anchors_end(struct store *s)
{
	CHECK(s->settled);
	if (s->second_left || s->anchor.fd < 0 || !s->second.started)
		return !s->second_left;
	if (aside_wait(&s->second, SECOND_WAIT_MS) && atomic_load(&s->failed) == 0 && store_anchor_ask(s))
		(void)aside_wait(&s->second, SECOND_WAIT_MS);
	s->second_left = !aside_close(&s->second);
	return !s->second_left;
}

/* A move that is cut off is taken up again. */
bool store_archive_end(struct store *s)
{
	CHECK(s->settled);
	if (!s->third_left && s->third.started) {
		(void)aside_wait(&s->third, SECOND_WAIT_MS);
		s->third_left = !aside_close(&s->third);
	}
	return !s->third_left;
}

int store_close(struct store **store)
{
	static struct store *left_behind; /* a thread of another place may still come back to it */
	struct store *s = *store;
	if (s == NULL)
		return 0;
	*store = NULL;
	store_settle(s, 0);
	const int err = atomic_load(&s->failed);
	const bool anchors = store_anchors_end(s);
	if (store_archive_end(s) && anchors) {
		store_free(s);
		return err;
	}
	store_disk_close(&s->disk);
	left_behind = s;
	CHECK(left_behind != NULL);
	return err;
}

static void writer_wake(struct store *store)
{
	pthread_mutex_lock(&store->mutex);
	pthread_cond_signal(&store->wake);
	pthread_mutex_unlock(&store->mutex);
}

/* A writer that gathers wakes by itself, and is woken for much; by store_hurry for what somebody waits
   for. */
static bool wakes(const struct store *s, uint64_t tail, uint64_t head)
{
	return !atomic_load(&s->gathers) || head - tail >= s->options.commit_records ||
	       head - tail > s->mask / 2;
}

static int ring_push(struct store *store, const struct store_record *record)
{
	int err = atomic_load_explicit(&store->failed, memory_order_relaxed);
	if (err != 0)
		return err;
	uint64_t head = atomic_load_explicit(&store->head, memory_order_relaxed);
	uint64_t tail = atomic_load_explicit(&store->tail, memory_order_acquire);
	if (head - tail > store->mask)
		return -ERR_AUDIT_STALLED;
	struct store_record *place = &store->ring[head & store->mask];
	*place = *record;
	bool end = record->kind == STORE_STEP_END;
	/* When it was, and not when it is written. */
	if (end) {
		place->value[0] = store_clock_ns(CLOCK_MONOTONIC);
		place->value[1] = store_clock_ns(CLOCK_REALTIME);
	}
	atomic_store_explicit(&store->head, head + 1, memory_order_release);
	if (end)
		atomic_store(&store->whole, head + 1);
	/* Not at each record: the writer has nothing to do before a step is whole. */
	if (head + 1 - tail > store->mask || (end && wakes(store, tail, head + 1)))
		writer_wake(store);
	return 0;
}

int store_push(struct store *store, const struct store_record *record)
{
	CHECK(record->kind >= STORE_ASSIGN);
	CHECK(record->kind < STORE_KIND_COUNT);
	return ring_push(store, record);
}

size_t store_keep_room(const struct store *store)
{
	const uint64_t used = store->keep_head -
			      atomic_load_explicit(&store->keep_tail, memory_order_acquire);
	/* A value that would go around leaves the rest of the ring empty: half is always whole. */
	return used >= store->options.keep_bytes / 2 ? 0 : (size_t)(store->options.keep_bytes / 2 - used);
}

int store_keep(struct store *store, enum store_table table, const struct store_key *key, bool prefix,
	       const uint8_t *owner, const void *value, size_t bytes)
{
	const struct keep_head head = {.key = *key, .table = table, .prefix = prefix, .removed = value == NULL,
				       .bytes = value ? seal_bytes(owner != NULL, bytes) : 0};
	const uint64_t whole = (sizeof head + head.bytes + 7) / 8 * 8, ring = store->options.keep_bytes;
	CHECK(key->length <= STORE_KEY_MAX);
	if (head.bytes > STORE_KEPT_MAX || whole > ring / 2)
		return -ERR_TOO_BIG;
	uint64_t at = store->keep_head;
	if ((at & (ring - 1)) + whole > ring)
		at = (at + ring - 1) / ring * ring;
	if (at + whole - atomic_load_explicit(&store->keep_tail, memory_order_acquire) > ring)
		return -ERR_AUDIT_STALLED;
	memcpy(store->keep + (at & (ring - 1)), &head, sizeof head);
	if (head.bytes)
		TRY(seal_put(store->vault, owner, key, value, bytes, store->keep + (at & (ring - 1)) + sizeof head));
	const struct store_record r = {.kind = KIND_KEPT, .value = {at, at + whole}};
	TRY(ring_push(store, &r));
	store->keep_head = at + whole;
	return 0;
}

static int kept_read(struct store *store, enum store_table table, struct store_key *key, void *value,
		     size_t *bytes, MDB_cursor_op how)
{
	MDB_txn *txn;
	pthread_mutex_lock(&store->map);
	const int rc = mdb_txn_begin(store->disk.env, NULL, MDB_RDONLY, &txn);
	int err = store_code_of(rc);
	if (rc == 0) {
		err = table_get(txn, &store->disk, store->vault, table, key, value, bytes, how);
		mdb_txn_abort(txn);
	}
	pthread_mutex_unlock(&store->map);
	return err;
}

int store_kept(struct store *store, enum store_table table, const struct store_key *key, void *value,
	       size_t *bytes)
{
	struct store_key same = *key;
	return kept_read(store, table, &same, value, bytes, MDB_SET_KEY);
}

int store_kept_next(struct store *store, enum store_table table, struct store_key *key, void *value,
		    size_t *bytes)
{
	return kept_read(store, table, key, value, bytes, MDB_SET_RANGE);
}

void store_forget(struct store *store, const uint8_t owner[16])
{
	vault_drop(store->vault, owner);
}

void store_owner_end(struct store *store, const uint8_t owner[16], uint64_t ms)
{
	vault_end(store->vault, owner, ms);
}

uint32_t store_owners_sweep(struct store *store, uint64_t before_ms)
{
	const uint32_t dropped = vault_sweep(store->vault, before_ms);
	/* Nothing else may be recorded for long. */
	if (dropped > 0) {
		atomic_store(&store->keys_due, true);
		writer_wake(store);
	}
	return dropped;
}

void store_owners_end(struct store *store, bool (*lives)(void *arg, const uint8_t owner[16]), void *arg,
		      uint64_t ms)
{
	vault_end_others(store->vault, lives, arg, ms);
}

uint32_t store_room(const struct store *store)
{
	uint64_t used = atomic_load_explicit(&store->head, memory_order_relaxed) -
			atomic_load_explicit(&store->tail, memory_order_acquire);
	return (uint32_t)(store->mask + 1 - used);
}

uint64_t store_durable(const struct store *store)
{
	return atomic_load_explicit(&store->durable, memory_order_acquire);
}

int store_fd(const struct store *store)
{
	return store->event_fd;
}

int store_failed(const struct store *store)
{
	return atomic_load(&store->failed);
}

int store_space(const struct store *store)
{
	return atomic_load(&store->room.state);
}

bool store_waits(const struct store *store)
{
	return atomic_load(&store->waits);
}

uint64_t store_anchored(const struct store *store, int *err)
{
	*err = atomic_load(&store->anchor.err);
	return atomic_load(&store->anchor.said);
}

uint64_t store_seq(const struct store *store)
{
	return atomic_load(&store->said_seq);
}

uint64_t store_archived(const struct store *store)
{
	return atomic_load(&store->archived);
}

int store_archive_failed(const struct store *store)
{
	return atomic_load(&store->archive_err);
}

uint32_t store_reader_stays(const struct store *store)
{
	return atomic_load(&store->room.reader);
}

uint32_t store_reader_ended(const struct store *store)
{
	return atomic_load(&store->room.ended);
}

uint64_t store_boot(const struct store *store)
{
	return store->boot;
}

uint64_t store_mark(const struct store *store)
{
	return atomic_load_explicit(&store->head, memory_order_relaxed);
}

uint64_t store_hurry(struct store *store)
{
	const uint64_t head = atomic_load_explicit(&store->head, memory_order_relaxed);
	/* With what closes its step, which wakes the writer if it is still to come. What comes after a step that
	   is closed is not wanted for that. */
	const bool closed = atomic_load_explicit(&store->whole, memory_order_relaxed) == head;
	atomic_store(&store->wanted, closed ? head : head + 1);
	if (atomic_load(&store->gathers))
		writer_wake(store);
	return head;
}

uint64_t store_settled(const struct store *store)
{
	return atomic_load_explicit(&store->tail, memory_order_acquire);
}

uint64_t store_conflicts(const struct store *store)
{
	return atomic_load(&store->conflicts);
}

void store_beacon(struct store *store, const struct store_last_word *word)
{
	struct beacon_slot slot = {
		.boot = store->boot, .reason = word->reason, .group = word->group, .page = word->page,
		.expected = word->expected, .found = word->found, .seq = atomic_load(&store->said_seq)};
	memcpy(slot.session, word->session, sizeof slot.session);
	for (unsigned i = 0; i < STORE_HASH / 8; i++) {
		const uint64_t part = atomic_load_explicit(&store->said_hash[i], memory_order_relaxed);
		memcpy(slot.hash + i * 8, &part, sizeof part);
	}
	beacon_write(&store->disk, atomic_fetch_add(&store->beacons, 1), &slot);
}

unsigned store_said(const struct store *store)
{
	return atomic_load(&store->beacons);
}

unsigned store_heard(const struct store *store)
{
	return store->heard;
}

void store_uuid(const struct store *s, uint8_t out[16])
{
	memcpy(out, s->disk.uuid, STORE_UUID);
}

bool store_unclean(const struct store *store)
{
	return store->boot > 1 && !store->disk.clean;
}
