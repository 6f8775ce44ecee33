/*
 * The writer: the one thread that empties the ring into LMDB, a transaction at a time, and between
 * transactions sees to space, anchors and segments.
 */
#include "config.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#include "runtime/fault.h"
#include "runtime/store_inside.h"
#include "sched/check.h"

enum { BATCH_BYTES = 256 << 10, FULL_BYTES = 1 << 20, FULL_WAIT_MS = 200, ARCHIVE_AGAIN_S = 30,
       PACE_SHARE = 200, SECOND_LOOK_MS = 100, SECOND_GRACE_MS = 500, SECOND_SILENT_S = 5,
       ARCHIVE_GRACE_MS = 50, STOP_LOOK_MS = 2 };

/* Up to where the writer may take: whole steps, or all when a step is larger than the ring. */
static uint64_t pending(const struct store *s, uint64_t tail)
{
	uint64_t whole = atomic_load(&s->whole);
	if (whole > tail)
		return whole;
	uint64_t head = atomic_load_explicit(&s->head, memory_order_acquire);
	return head - tail == s->mask + 1 ? head : tail;
}

void store_deadline(struct timespec *t, uint64_t ns)
{
	t->tv_sec = (time_t)(ns / 1000000000);
	t->tv_nsec = (long)(ns % 1000000000);
}

/* Whether records up to `to` are to be written now; else *next says when. */
static bool due(const struct store *s, uint64_t tail, uint64_t to, uint64_t gather_ns, uint64_t *next)
{
	const bool waited_for = atomic_load(&s->wanted) > tail;
	*next = waited_for || gather_ns > s->paced_ns ? gather_ns : s->paced_ns;
	return to - tail >= s->options.commit_records || to - tail > s->mask / 2 ||
	       store_clock_ns(CLOCK_MONOTONIC) >= *next;
}

/* Sleeps until there is something to write, or until_ns. *to: up to where to write; tail itself:
   nothing. True: the store is being closed, and *to is the end. */
static bool writer_wait(struct store *s, uint64_t tail, uint64_t until_ns, uint64_t *to)
{
	struct timespec deadline;
	bool stop;
	pthread_mutex_lock(&s->mutex);
	for (;;) {
		uint64_t next = until_ns;
		atomic_store(&s->gathers, false);
		*to = pending(s, tail);
		stop = s->stop;
		if (stop) {
			*to = atomic_load(&s->head);
			break;
		}
		const uint64_t now = store_clock_ns(CLOCK_MONOTONIC);
		if (*to != tail) {
			if (!s->gather_ns)
				s->gather_ns = now + s->options.commit_ms * 1000000ull;
			if (due(s, tail, *to, s->gather_ns, &next))
				break;
			atomic_store(&s->gathers, true);
			/* What was wanted just before is seen by who set it, or here. */
			if (due(s, tail, *to, s->gather_ns, &next))
				break;
			if (now >= until_ns) { /* the chores first; what is gathered stays so */
				*to = tail;
				break;
			}
			next = next < until_ns ? next : until_ns;
		} else if (now >= until_ns || atomic_load(&s->keys_due)) {
			break;
		}
		store_deadline(&deadline, next);
		if (next == UINT64_MAX)
			pthread_cond_wait(&s->wake, &s->mutex);
		else
			pthread_cond_timedwait(&s->wake, &s->mutex, &deadline);
	}
	pthread_mutex_unlock(&s->mutex);
	if (*to != tail)
		s->gather_ns = 0;
	return stop;
}

void store_announce(const struct store *s)
{
	uint64_t one = 1;
	/* Fails only when the counter is full, and then the descriptor is readable anyway. */
	ssize_t ignored = write(s->event_fd, &one, sizeof one);
	(void)ignored;
}

static int entry_end(struct store *s, struct batch *b, const struct store_record *end, unsigned flags)
{
	if (end != NULL) {
		s->entry.mono_ns = end->value[0];
		s->entry.wall_ns = end->value[1];
	}
	b->bytes += s->entry.bytes;
	b->changed = true;
	int err = store_entry_put_step(&s->entry, b->txn, &s->disk, &b->head, end ? end->step : 0, flags);
	store_entry_begin(&s->entry);
	return err;
}

/* The rows of a record; a conflict is an incident of the same entry. */
static int rows_put(struct store *s, struct batch *b, const struct store_record *r)
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
	b->conflicts += found.count;
	return 0;
}

static int kept_put(struct store *s, struct batch *b, const struct store_record *r)
{
	struct keep_head head;
	const uint64_t from_byte = r->value[0] & (s->options.keep_bytes - 1);
	memcpy(&head, s->keep + from_byte, sizeof head);
	TRY(table_put(b->txn, &s->disk, &head, s->keep + from_byte + sizeof head));
	b->keep_at = r->value[1];
	b->bytes += head.bytes;
	b->changed = true;
	return 0;
}

/* A part of a step bears the time of the step, as its end does: when that was, and not when it is written. Of
   one that is larger than the ring the end is still to come. */
static int part_end(struct store *s, struct batch *b, uint64_t to)
{
	uint64_t at = b->no_end > b->at ? b->no_end : b->at;
	for (; at != to && s->ring[at & s->mask].kind != STORE_STEP_END; at++)
		s->looked++;
	b->no_end = at;
	if (at != to) {
		s->entry.mono_ns = s->ring[at & s->mask].value[0];
		s->entry.wall_ns = s->ring[at & s->mask].value[1];
	}
	TRY(entry_end(s, b, NULL, STORE_FLAG_PARTIAL));
	b->open = true;
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
				TRY(entry_end(s, b, r, 0));
			b->open = false;
			b->step = r->step;
			if (b->at - from >= s->options.commit_records || b->bytes >= BATCH_BYTES)
				return 0;
			continue;
		}
		if (r->kind == KIND_KEPT) {
			TRY(kept_put(s, b, r));
			continue;
		}
		if (!store_entry_room(&s->entry, 2))
			TRY(part_end(s, b, to));
		store_entry_add(&s->entry, r);
		TRY(rows_put(s, b, r));
	}
	return s->entry.count > 0 ? part_end(s, b, to) : 0;
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
int store_batch_commit(const struct store *s, struct batch *b, bool clean)
{
	int err = vault_sync(s->vault);
	if (err == 0)
		err = store_put_head(b->txn, &s->disk, &b->head, clean);
	if (err == 0)
		err = store_put_flushes(b->txn, &s->disk, vault_flushes(s->vault));
	int rc = err == 0 ? (int)fault_pass(FAULT_COMMIT) : 0;
	if (err != 0 || rc != 0)
		mdb_txn_abort(b->txn);
	else
		rc = mdb_txn_commit(b->txn);
	b->txn = NULL;
	if (err == 0 && rc == 0)
		index_commit(s->disk.marks);
	return err != 0 ? err : rc != 0 ? commit_code(s, rc) : 0;
}

int store_batch_begin(const struct store *s, struct batch *b)
{
	int rc = mdb_txn_begin(s->disk.env, NULL, 0, &b->txn);
	if (rc != 0)
		return store_code(rc);
	rc = mdb_cursor_open(b->txn, s->disk.own, &b->own);
	int err = rc == 0 ? 0 : store_code(rc);
	if (rc == 0 && b->bare)
		index_again(s->disk.marks);
	else if (rc == 0)
		err = index_begin(s->disk.marks, b->txn, s->disk.index, b->last);
	if (err != 0)
		mdb_txn_abort(b->txn);
	return err;
}

void store_head_take(struct store *s, const struct store_head *head)
{
	s->disk.head = *head;
	atomic_store(&s->said_seq, head->seq);
	for (unsigned i = 0; i < STORE_HASH / 8; i++) {
		uint64_t word;
		memcpy(&word, head->hash + i * 8, sizeof word);
		atomic_store_explicit(&s->said_hash[i], word, memory_order_relaxed);
	}
	room_look(s);
	(void)fault_pass(FAULT_COMMITTED);
}

static void pace_set(struct store *s, uint64_t cpu_ns)
{
	const uint64_t most = s->options.pace_ms * 1000000ull, gather = cpu_ns * PACE_SHARE;
	s->paced_ns = store_clock_ns(CLOCK_MONOTONIC) + (gather < most ? gather : most);
}

static int batch_write(struct store *s, struct batch *b, uint64_t to)
{
	b->bytes = b->conflicts = 0;
	b->changed = false;
	TRY(store_batch_begin(s, b));
	int err = batch_fill(s, b, to);
	if (err != 0 || !b->changed) {
		mdb_txn_abort(b->txn);
		return err;
	}
	const uint64_t cpu = store_clock_ns(CLOCK_THREAD_CPUTIME_ID);
	TRY(store_batch_commit(s, b, false));
	pace_set(s, store_clock_ns(CLOCK_THREAD_CPUTIME_ID) - cpu);
	store_head_take(s, &b->head);
	if (b->conflicts > 0)
		atomic_fetch_add(&s->conflicts, b->conflicts);
	return 0;
}

/* Entries beyond what data.mdb is to keep go to a segment; a log that is nearly full gives up more. */
static uint64_t archive_until(const struct store *s)
{
	uint64_t keep = s->options.history_entries;
	const uint64_t seq = s->disk.head.seq;
	if (keep == 0)
		return 0;
	if (atomic_load(&s->room.state) != 0 && !s->room.disk_full)
		keep /= 4;
	return seq > keep ? seq - keep : 0;
}

static void archive_say(struct store *s, int code)
{
	if (atomic_exchange(&s->archive_err, code) != code)
		store_announce(s);
}

/* The folder's work is its own thread's. One that answers is waited for, so that what is due is soon done;
   one that does not costs this once, holds up its own segments and nothing else, and is looked at again. */
static bool archive_ask(struct store *s, uint64_t *again_ns)
{
	aside_ask(&s->third);
	if (aside_wait(&s->third, ARCHIVE_GRACE_MS))
		return true;
	*again_ns = store_clock_ns(CLOCK_MONOTONIC) + SECOND_LOOK_MS * 1000000ull;
	return false;
}

/* True: a piece was moved, and more may follow at once. Else *again_ns says when to look again. */
static bool archive_some(struct store *s, struct batch *b, uint64_t now_ns, uint64_t *again_ns)
{
	struct store_archive *a = &s->archive;
	bool over = false, stepped = false;
	int code = 0;
	*again_ns = UINT64_MAX;
	const uint64_t since_ns = aside_since_ns(&s->third);
	if (since_ns != 0) {
		if (now_ns > since_ns + SECOND_SILENT_S * 1000000000ull)
			archive_say(s, -ERR_TIMEOUT);
		*again_ns = now_ns + SECOND_LOOK_MS * 1000000ull;
		return false;
	}
	if (now_ns < s->archive_next_ns)
		return false;
	if (a->state == ARCHIVE_IDLE) {
		const uint64_t until = archive_until(s), from = s->disk.archived.seq;
		/* Whole segments, so that there are not more files than that. */
		if (until < from + s->options.segment_entries)
			return false;
		archive_begin(a, &s->disk, from + s->options.segment_entries);
	} else {
		struct store_head head = s->disk.head;
		code = archive_step(a, &s->disk, &head, false, &over);
		stepped = true;
		if (code == 0 && head.seq != s->disk.head.seq) {
			b->head = head;
			store_head_take(s, &head);
		}
	}
	atomic_store(&s->archived, s->disk.archived.seq);
	/* That one begins says nothing of the folder yet. */
	if (stepped)
		archive_say(s, code);
	if (code != 0)
		s->archive_next_ns = now_ns + ARCHIVE_AGAIN_S * 1000000000ull;
	return code == 0 && (!a->works || archive_ask(s, again_ns));
}

/* What is on its way makes room: it is waited for as long as the folder is not known to hang, at a stop
   too. */
static bool archive_comes(struct store *s)
{
	const uint64_t since_ns = aside_since_ns(&s->third), now_ns = store_clock_ns(CLOCK_MONOTONIC);
	const uint64_t silent_ns = since_ns != 0 && now_ns > since_ns ? now_ns - since_ns : 0;
	if (!s->archive.works || silent_ns >= SECOND_SILENT_S * 1000000000ull)
		return false;
	return aside_wait(&s->third, (uint32_t)(SECOND_SILENT_S * 1000 - silent_ns / 1000000));
}

/* A transaction for which there was no room changed nothing, so it is tried again: with a larger map at
   once, on a full disk until there is space. The ring fills meanwhile, and nothing in it is lost. */
static int batch_try(struct store *s, struct batch *b, uint64_t to)
{
	struct batch before = *b;
	for (;;) {
		uint64_t again_ns;
		const int err = batch_write(s, b, to);
		if (err != -ERR_DISK_FULL)
			return err;
		*b = before;
		store_entry_begin(&s->entry);
		if (room_more(s))
			continue;
		/* What a batch has no room for is room enough to take old entries out: a map that is full is
		   emptied so. On a full disk that moves what was due anyway, and no more (archive_until): a segment
		   needs room of its own, but may lie on another disk. */
		if (archive_some(s, b, store_clock_ns(CLOCK_MONOTONIC), &again_ns)) {
			before = *b;
			continue;
		}
		if (archive_comes(s))
			continue;
		if (index_skip(s->disk.marks))
			continue;
		/* Who sees that it waits sees that nothing is to begin. */
		s->room.disk_full = s->room.batch_waits = true;
		room_look(s);
		if (!atomic_exchange(&s->waits, true))
			store_announce(s);
		struct timespec deadline;
		pthread_mutex_lock(&s->mutex);
		const bool stop = s->stop;
		store_deadline(&deadline, store_clock_ns(CLOCK_MONOTONIC) + FULL_WAIT_MS * 1000000ull);
		if (!stop)
			pthread_cond_timedwait(&s->wake, &s->mutex, &deadline);
		pthread_mutex_unlock(&s->mutex);
		if (stop)
			return err;
	}
}

bool store_anchor_ask(struct store *s)
{
	if (aside_since_ns(&s->second) != 0)
		return false;
	s->second_head = s->disk.head;
	aside_ask(&s->second);
	return true;
}

/* A place that does not answer holds up its own anchors and nothing else. */
static uint64_t anchor_waits(struct store *s, uint64_t now_ns, uint64_t since_ns)
{
	if (now_ns > since_ns + SECOND_SILENT_S * 1000000000ull &&
	    atomic_exchange(&s->anchor.err, -ERR_TIMEOUT) != -ERR_TIMEOUT)
		store_announce(s);
	return now_ns + SECOND_LOOK_MS * 1000000ull;
}

static uint64_t anchor_some(struct store *s, uint64_t now_ns)
{
	struct store_anchor *a = &s->anchor;
	if (a->fd < 0)
		return UINT64_MAX;
	const uint64_t since_ns = aside_since_ns(&s->second);
	if (since_ns != 0)
		return anchor_waits(s, now_ns, since_ns);
	/* It came back just when that was said. */
	int silent = -ERR_TIMEOUT;
	if (atomic_compare_exchange_strong(&a->err, &silent, 0))
		store_announce(s);
	if (a->seq == s->disk.head.seq)
		return UINT64_MAX;
	const uint64_t next = a->at_ns + s->options.anchor_ms * 1000000ull;
	const bool failed = atomic_load(&a->err) != 0;
	if (now_ns < next && (failed || s->disk.head.seq < a->seq + s->options.anchor_entries))
		return next;
	/* A place that answers is waited for, so that no more is unanchored than was asked for; one that does not
	   costs this once, and is looked at again. */
	(void)store_anchor_ask(s);
	if (!aside_wait(&s->second, SECOND_GRACE_MS))
		return now_ns + SECOND_LOOK_MS * 1000000ull;
	return atomic_load(&a->err) == 0 ? UINT64_MAX : a->at_ns + s->options.anchor_ms * 1000000ull;
}

/* Between transactions. Returns until when the writer may sleep. */
static uint64_t chores(struct store *s, struct batch *b)
{
	const uint64_t now = store_clock_ns(CLOCK_MONOTONIC);
	uint64_t next = room_chores(s, now);
	const uint64_t anchor = anchor_some(s, now);
	next = anchor < next ? anchor : next;
	uint64_t again;
	if (archive_some(s, b, now, &again))
		return now;
	return again < next ? again : next;
}

static int shutdown_put(struct store *s, struct batch *b)
{
	TRY(store_batch_begin(s, b));
	const int err = store_put_shutdown(b->txn, &s->disk, &b->head, atomic_load(&s->durable));
	if (err != 0) {
		mdb_txn_abort(b->txn);
		return err;
	}
	return store_batch_commit(s, b, true);
}

/* The writer's last: who waits for its end waits for this too. Where the map has no room for the row beside
   it, the next start makes that. */
static void shutdown_record(struct store *s)
{
	struct batch b = {.head = s->disk.head, .last = true};
	int err = shutdown_put(s, &b);
	if (err == -ERR_DISK_FULL) {
		b = (struct batch){.head = s->disk.head, .bare = true};
		err = shutdown_put(s, &b);
	}
	if (err == 0)
		s->disk.head = b.head;
	else
		atomic_store(&s->failed, err);
}

/* On a full disk the next commit writes them. */
static int keys_write(struct store *s)
{
	const int err = atomic_exchange(&s->keys_due, false) ? vault_sync(s->vault) : 0;
	return err == -ERR_DISK_FULL ? 0 : err;
}

static void *writer_run(void *arg)
{
	struct store *s = arg;
	struct batch b = {.head = s->disk.head};
	uint64_t until = store_clock_ns(CLOCK_MONOTONIC), to;
	store_entry_begin(&s->entry);
	for (;;) {
		const bool stop = writer_wait(s, b.at, until, &to);
		if (stop && to == b.at) {
			shutdown_record(s);
			break;
		}
		const bool writes = to != b.at;
		const int err = writes ? batch_try(s, &b, to) : keys_write(s);
		if (err != 0) {
			/* What a failed flush left on the disk is unknown: nothing more is written. */
			atomic_store(&s->failed, err);
			store_announce(s);
			break;
		}
		/* Who sees that it is settled sees all the rest: the tail is last. */
		atomic_store_explicit(&s->keep_tail, b.keep_at, memory_order_release);
		atomic_store_explicit(&s->durable, b.step, memory_order_release);
		if (s->room.batch_waits) {
			s->room.batch_waits = false;
			room_look(s);
		}
		atomic_store(&s->waits, false);
		atomic_store_explicit(&s->tail, b.at, memory_order_release);
		if (writes)
			store_announce(s);
		until = chores(s, &b);
	}
	return NULL;
}

/* The writer takes no signals: they are the loop's. */
int store_writer_start(struct store *s)
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

bool store_writer_stop(struct store *s, uint32_t ms)
{
	const struct timespec pause = {0, STOP_LOOK_MS * 1000000};
	pthread_mutex_lock(&s->mutex);
	s->stop = true;
	pthread_cond_signal(&s->wake);
	pthread_mutex_unlock(&s->mutex);
	if (ms == 0)
		pthread_join(s->thread, NULL);
	/* Silence is counted, from the last record that went to disk; and no clock asked: one may be set, and
	   both go on while this process stands still. */
	uint64_t tail = atomic_load(&s->tail);
	for (uint32_t waited = 0; ms != 0 && pthread_tryjoin_np(s->thread, NULL) != 0; waited += STOP_LOOK_MS) {
		const uint64_t now = atomic_load(&s->tail);
		if (now != tail)
			waited = 0;
		tail = now;
		if (waited >= ms)
			return false;
		nanosleep(&pause, NULL);
	}
	pthread_cond_destroy(&s->wake);
	pthread_mutex_destroy(&s->mutex);
	return true;
}
