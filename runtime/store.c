/*
 * The writer: a ring that the loop fills, and the one thread that empties it into LMDB, a
 * transaction at a time. A slot of the ring is free again when its record is on disk, so the ring
 * is also the bound of what a crash can lose.
 */
#include "config.h"

#include "runtime/store.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#include "runtime/fault.h"
#include "runtime/store_disk.h"
#include "sched/check.h"

enum { MAP_BYTES_MIN = 1 << 20, BATCH_BYTES = 256 << 10, RING_MAX = 1 << 24,
       FULL_BYTES = 1 << 20 };

/* In the ring beside the records: a value that is kept. value[0]: where its head lies. */
enum { KIND_KEPT = STORE_KIND_COUNT };

struct store {
	struct store_disk disk;
	/* Bytes of what is kept on its way; positions count up for ever, a value never goes around. */
	uint8_t *keep;
	uint64_t keep_head;         /* the loop's */
	_Atomic uint64_t keep_tail; /* the writer's */
	struct store_options options;
	struct store_record *ring;
	uint64_t mask;
	uint32_t boot;
	int event_fd;
	pthread_t thread;
	pthread_mutex_t mutex; /* for sleeping only; the ring's numbers are atomic */
	pthread_cond_t wake;
	bool stop;             /* under mutex */
	/* Positions count up for ever. head, whole: the loop's; tail: the writer's. whole is the
	   position after the last STEP_END. */
	_Atomic uint64_t head, whole, tail;
	_Atomic uint64_t durable;
	_Atomic int failed, space;
	_Atomic uint64_t conflicts, said_seq, said_hash[STORE_HASH / 8];
	_Atomic unsigned beacons;
	unsigned heard;
	struct store_entry entry;    /* the writer's */
};

void store_options_default(struct store_options *options)
{
	*options = (struct store_options){
		.map_bytes = 64ull << 30, .ring_records = 1 << 16, .commit_records = 4096,
		.keep_bytes = 16 << 20, .page_tokens = 16,
	};
}

/* Up to where the writer may take: whole steps, or all when a step is larger than the ring. */
static uint64_t pending(const struct store *s, uint64_t tail)
{
	uint64_t whole = atomic_load_explicit(&s->whole, memory_order_acquire);
	if (whole > tail)
		return whole;
	uint64_t head = atomic_load_explicit(&s->head, memory_order_acquire);
	return head - tail == s->mask + 1 ? head : tail;
}

static void deadline_after(struct timespec *t, uint32_t ms)
{
	uint64_t ns = store_clock_ns(CLOCK_MONOTONIC) + (uint64_t)ms * 1000000;
	t->tv_sec = (time_t)(ns / 1000000000);
	t->tv_nsec = (long)(ns % 1000000000);
}

/* Sleeps until there is something to write; returns up to where. tail itself: the end. */
static uint64_t writer_wait(struct store *s, uint64_t tail)
{
	struct timespec deadline;
	bool gathering = false;
	uint64_t to;
	pthread_mutex_lock(&s->mutex);
	for (;;) {
		to = pending(s, tail);
		if (s->stop) {
			to = atomic_load(&s->head);
			break;
		}
		if (to == tail) {
			pthread_cond_wait(&s->wake, &s->mutex);
			continue;
		}
		if (s->options.commit_ms == 0 || to - tail >= s->options.commit_records ||
		    to - tail == s->mask + 1)
			break;
		if (!gathering)
			deadline_after(&deadline, s->options.commit_ms);
		gathering = true;
		if (pthread_cond_timedwait(&s->wake, &s->mutex, &deadline) == ETIMEDOUT)
			break;
	}
	pthread_mutex_unlock(&s->mutex);
	return to;
}

static void announce(const struct store *s)
{
	uint64_t one = 1;
	/* Fails only when the counter is full, and then the descriptor is readable anyway. */
	ssize_t ignored = write(s->event_fd, &one, sizeof one);
	(void)ignored;
}

struct batch {
	MDB_txn *txn;
	MDB_cursor *own;
	struct store_head head;
	uint64_t at, step; /* step: the last one closed */
	uint64_t keep_at;  /* keep's bytes are free up to here, once this is on disk */
	size_t bytes;
	bool open;         /* a part of the step in hand was put already */
	bool changed;
};

static int entry_end(struct store *s, struct batch *b, uint64_t step, unsigned flags)
{
	b->bytes += s->entry.bytes;
	b->changed = true;
	int err = store_entry_put_step(&s->entry, b->txn, &s->disk, &b->head, step, flags);
	store_entry_begin(&s->entry);
	return err;
}

/* The rows of a record; a conflict is an incident of the same entry. */
static int rows_put(struct store *s, const struct batch *b, const struct store_record *r)
{
	struct store_conflict found = {0};
	TRY(store_put_rows(b->own, r, b->head.boot, b->head.seq + 1, s->options.page_tokens, &found));
	if (found.count == 0)
		return 0;
	struct store_record incident = *r;
	incident.kind = STORE_INCIDENT;
	incident.reason = REASON_ROW;
	incident.page_first = found.page;
	incident.page_count = 1;
	incident.value[0] = found.expected;
	incident.value[1] = found.found;
	store_entry_add(&s->entry, &incident);
	atomic_fetch_add(&s->conflicts, found.count);
	announce(s);
	return 0;
}

/* Steps from b->at on, until `to` or the batch is large enough. */
static int batch_fill(struct store *s, struct batch *b, uint64_t to)
{
	const uint64_t from = b->at;
	while (b->at != to) {
		const struct store_record *r = &s->ring[b->at++ & s->mask];
		if (r->kind == STORE_STEP_END) {
			if (s->entry.count > 0 || b->open)
				TRY(entry_end(s, b, r->step, 0));
			b->open = false;
			b->step = r->step;
			if (b->at - from >= s->options.commit_records || b->bytes >= BATCH_BYTES)
				return 0;
			continue;
		}
		if (r->kind == KIND_KEPT) {
			struct keep_head head;
			const uint64_t from_byte = r->value[0] & (s->options.keep_bytes - 1);
			memcpy(&head, s->keep + from_byte, sizeof head);
			TRY(table_put(b->txn, &s->disk, &head, s->keep + from_byte + sizeof head));
			b->keep_at = r->value[1];
			b->bytes += head.bytes;
			b->changed = true;
			continue;
		}
		if (!store_entry_room(&s->entry, 2)) {
			TRY(entry_end(s, b, 0, STORE_FLAG_PARTIAL));
			b->open = true;
		}
		store_entry_add(&s->entry, r);
		TRY(rows_put(s, b, r));
	}
	if (s->entry.count > 0) {
		TRY(entry_end(s, b, 0, STORE_FLAG_PARTIAL));
		b->open = true;
	}
	return 0;
}

/* A write that a full disk cuts in two is EIO to LMDB; the one who reads the line wants the cause. */
static int commit_code(const struct store *s, int rc)
{
	struct statvfs fs;
	if (rc == EIO && statvfs(s->disk.dir, &fs) == 0 && fs.f_bavail * fs.f_frsize < FULL_BYTES)
		return -ERR_DISK_FULL;
	return store_code(rc);
}

/* The one way out of a transaction: after a commit, failed or not, its handle is gone. */
static int batch_commit(const struct store *s, struct batch *b, bool clean)
{
	int err = store_put_head(b->txn, &s->disk, &b->head, clean);
	int rc = err == 0 ? (int)fault_pass(FAULT_COMMIT) : 0;
	if (err != 0 || rc != 0)
		mdb_txn_abort(b->txn);
	else
		rc = mdb_txn_commit(b->txn);
	b->txn = NULL;
	return err != 0 ? err : rc != 0 ? commit_code(s, rc) : 0;
}

static int batch_begin(const struct store *s, struct batch *b)
{
	int rc = mdb_txn_begin(s->disk.env, NULL, 0, &b->txn);
	if (rc != 0)
		return store_code(rc);
	rc = mdb_cursor_open(b->txn, s->disk.own, &b->own);
	if (rc == 0)
		return 0;
	mdb_txn_abort(b->txn);
	return store_code(rc);
}

/* By the file's high-water mark: pages that LMDB has free inside count as used. */
static int space_code(const struct store *s)
{
	MDB_envinfo info;
	MDB_stat stat;
	if (mdb_env_info(s->disk.env, &info) != 0 || mdb_env_stat(s->disk.env, &stat) != 0)
		return -ERR_IO;
	uint64_t used = (info.me_last_pgno + 1) * (uint64_t)stat.ms_psize;
	if (used > info.me_mapsize / 100 * 95)
		return -ERR_DISK_FULL;
	return used > info.me_mapsize / 100 * 80 ? -ERR_LIMIT : 0;
}

static void head_take(struct store *s, const struct store_head *head)
{
	s->disk.head = *head;
	atomic_store(&s->said_seq, head->seq);
	for (unsigned i = 0; i < STORE_HASH / 8; i++) {
		uint64_t word;
		memcpy(&word, head->hash + i * 8, sizeof word);
		atomic_store_explicit(&s->said_hash[i], word, memory_order_relaxed);
	}
	atomic_store(&s->space, space_code(s));
	(void)fault_pass(FAULT_COMMITTED);
}

static int writer_batch(struct store *s, struct batch *b, uint64_t to)
{
	b->bytes = 0;
	b->changed = false;
	TRY(batch_begin(s, b));
	int err = batch_fill(s, b, to);
	if (err != 0 || !b->changed) {
		mdb_txn_abort(b->txn);
		return err;
	}
	TRY(batch_commit(s, b, false));
	head_take(s, &b->head);
	return 0;
}

static void *writer_run(void *arg)
{
	struct store *s = arg;
	struct batch b = {.head = s->disk.head};
	uint64_t to;
	store_entry_begin(&s->entry);
	while ((to = writer_wait(s, b.at)) != b.at) {
		int err = writer_batch(s, &b, to);
		if (err != 0) {
			/* What a failed flush left on the disk is unknown: nothing more is written. */
			atomic_store(&s->failed, err);
			announce(s);
			break;
		}
		atomic_store_explicit(&s->keep_tail, b.keep_at, memory_order_release);
		atomic_store_explicit(&s->tail, b.at, memory_order_release);
		atomic_store_explicit(&s->durable, b.step, memory_order_release);
		announce(s);
	}
	return NULL;
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
	struct batch b = {.head = s->disk.head};
	b.head.boot++;
	TRY(batch_begin(s, &b));
	int err = store_put_boot(b.txn, &s->disk, &b.head, s->options.page_tokens);
	if (err == 0)
		err = beacons_put(s, &b);
	if (err != 0) {
		mdb_txn_abort(b.txn);
		return err;
	}
	TRY(batch_commit(s, &b, false));
	for (unsigned i = 0; i < BEACON_SLOTS; i++)
		beacon_clear(&s->disk, i);
	s->boot = b.head.boot;
	head_take(s, &b.head);
	return 0;
}

/* The writer takes no signals: they are the loop's. */
static int writer_start(struct store *s)
{
	sigset_t all, before;
	pthread_condattr_t attr;
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_mutex_init(&s->mutex, NULL);
	pthread_cond_init(&s->wake, &attr);
	pthread_condattr_destroy(&attr);
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	int rc = pthread_create(&s->thread, NULL, writer_run, s);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (rc == 0)
		return 0;
	pthread_cond_destroy(&s->wake);
	pthread_mutex_destroy(&s->mutex);
	return -ERR_MEMORY;
}

static void store_free(struct store *s)
{
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
	if (o->keep_bytes < 4096 || (o->keep_bytes & (o->keep_bytes - 1)) != 0)
		return store_refuse(reason, -ERR_OUT_OF_RANGE,
			"audit log: %llu bytes for what is kept: it must be a power of two from 4096",
			(unsigned long long)o->keep_bytes);
	if (o->commit_records == 0 || o->page_tokens == 0)
		return store_refuse(reason, -ERR_OUT_OF_RANGE, "audit log: %s is 0: 1 is the least",
				    o->commit_records == 0 ? "commit_records" : "page_tokens");
	return 0;
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
	s->options = *options;
	s->options.dir = NULL; /* the caller's; disk has a copy */
	s->mask = options->ring_records - 1;
	s->disk.lock_fd = s->disk.beacon_fd = -1;
	s->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	s->ring = calloc(options->ring_records, sizeof *s->ring);
	s->keep = malloc(options->keep_bytes);
	int err = s->event_fd < 0 || s->ring == NULL || s->keep == NULL ? -ERR_MEMORY : 0;
	if (err != 0)
		store_refuse(reason, err, "audit log: no memory for a ring of %u records",
			     options->ring_records);
	if (err == 0)
		err = store_disk_open(options, &s->disk, reason, warning);
	if (err == 0) {
		err = boot_record(s);
		if (err == 0)
			err = writer_start(s);
		if (err != 0)
			store_refuse(reason, err, "audit log '%s': cannot record the boot: %s",
				     options->dir, err_text(err));
	}
	if (err != 0) {
		store_free(s);
		return err;
	}
	*out = s;
	return 0;
}

static int shutdown_record(struct store *s)
{
	struct batch b = {.head = s->disk.head};
	TRY(batch_begin(s, &b));
	int err = store_put_shutdown(b.txn, &s->disk, &b.head, atomic_load(&s->durable));
	if (err == 0)
		return batch_commit(s, &b, true);
	mdb_txn_abort(b.txn);
	return err;
}

int store_close(struct store **store)
{
	struct store *s = *store;
	if (s == NULL)
		return 0;
	*store = NULL;
	pthread_mutex_lock(&s->mutex);
	s->stop = true;
	pthread_cond_signal(&s->wake);
	pthread_mutex_unlock(&s->mutex);
	pthread_join(s->thread, NULL);
	pthread_cond_destroy(&s->wake);
	pthread_mutex_destroy(&s->mutex);
	int err = atomic_load(&s->failed);
	if (err == 0)
		err = shutdown_record(s);
	store_free(s);
	return err;
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
	store->ring[head & store->mask] = *record;
	bool end = record->kind == STORE_STEP_END;
	atomic_store_explicit(&store->head, head + 1, memory_order_release);
	if (end)
		atomic_store_explicit(&store->whole, head + 1, memory_order_release);
	/* Not at each record: the writer has nothing to do before a step is whole. */
	if (end || head + 1 - tail > store->mask) {
		pthread_mutex_lock(&store->mutex);
		pthread_cond_signal(&store->wake);
		pthread_mutex_unlock(&store->mutex);
	}
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
	       const void *value, size_t bytes)
{
	const struct keep_head head = {.key = *key, .table = table, .prefix = prefix,
				       .removed = value == NULL, .bytes = value ? bytes : 0};
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
		memcpy(store->keep + (at & (ring - 1)) + sizeof head, value, head.bytes);
	const struct store_record r = {.kind = KIND_KEPT, .value = {at, at + whole}};
	TRY(ring_push(store, &r));
	store->keep_head = at + whole;
	return 0;
}

static int kept_read(struct store *store, enum store_table table, struct store_key *key, void *value,
		     size_t *bytes, MDB_cursor_op how)
{
	MDB_txn *txn;
	int rc = mdb_txn_begin(store->disk.env, NULL, MDB_RDONLY, &txn);
	if (rc != 0)
		return store_code(rc);
	const int err = table_get(txn, &store->disk, table, key, value, bytes, how);
	mdb_txn_abort(txn);
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
	return atomic_load(&store->space);
}

uint64_t store_boot(const struct store *store)
{
	return store->boot;
}

uint64_t store_mark(const struct store *store)
{
	return atomic_load_explicit(&store->head, memory_order_relaxed);
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
