/*
 * Space: the map that grows, the head-room that is kept on the disk so that what was begun can end,
 * and readers that keep old pages from being used again.
 *
 * The blocks of the next `headroom_bytes` behind the end of data.mdb are reserved (fallocate without
 * changing its size), before they are needed. When they cannot be had, nothing new begins, and what
 * runs is written into those that are there. Where a file system reserves nothing the free space is
 * asked for instead.
 */
#include "config.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#include "runtime/fault.h"
#include "runtime/store_inside.h"
#include "sched/check.h"

enum { RETRY_MS = 500, STAYS_TXNS = 64, READER_PATH_MAX = 4096 };

static uint64_t used_bytes(const struct store *s)
{
	MDB_envinfo info;
	MDB_stat stat;
	if (mdb_env_info(s->disk.env, &info) != 0 || mdb_env_stat(s->disk.env, &stat) != 0)
		return s->room.used;
	return (info.me_last_pgno + 1) * (uint64_t)stat.ms_psize;
}

/* Pages inside the file that hold nothing: a walk of the free list, which is short. */
static uint64_t free_bytes(const struct store *s)
{
	MDB_txn *txn;
	MDB_cursor *cursor;
	MDB_val key, value;
	MDB_stat stat;
	uint64_t pages = 0;
	if (mdb_env_stat(s->disk.env, &stat) != 0 || mdb_txn_begin(s->disk.env, NULL, MDB_RDONLY, &txn) != 0)
		return 0;
	if (mdb_cursor_open(txn, 0, &cursor) == 0) {
		for (int rc = mdb_cursor_get(cursor, &key, &value, MDB_FIRST); rc == 0;
		     rc = mdb_cursor_get(cursor, &key, &value, MDB_NEXT)) {
			size_t count = 0;
			if (value.mv_size >= sizeof count)
				memcpy(&count, value.mv_data, sizeof count);
			pages += count;
		}
		mdb_cursor_close(cursor);
	}
	mdb_txn_abort(txn);
	return pages * stat.ms_psize;
}

static void state_set(struct store *s)
{
	const uint64_t most = s->options.map_bytes;
	uint64_t used = s->room.used;
	int state = 0;
	if (used > most / 100 * 80) {
		const uint64_t free = free_bytes(s);
		used = used > free ? used - free : 0;
	}
	if (used > most / 100 * 80)
		state = -ERR_LIMIT;
	if (used > most / 100 * 95 || s->room.disk_full || s->room.batch_waits)
		state = -ERR_DISK_FULL;
	if (atomic_exchange(&s->room.state, state) != state)
		store_announce(s);
}

/* The blocks behind the end; false: the disk has not so many. */
static bool reserve(struct store *s)
{
	struct store_room *r = &s->room;
	struct statvfs fs;
	int fd;
	const long fault = fault_pass(FAULT_RESERVE);
	if (fault != 0)
		return false;
	if (r->reserves && mdb_env_get_fd(s->disk.env, &fd) == 0) {
		if (fallocate(fd, FALLOC_FL_KEEP_SIZE, (off_t)r->used, (off_t)s->options.headroom_bytes) == 0) {
			r->reserved = r->used + s->options.headroom_bytes;
			return true;
		}
		if (errno == ENOSPC || errno == EDQUOT || errno == EFBIG)
			return false;
		r->reserves = false;
	}
	return statvfs(s->disk.dir, &fs) != 0 || fs.f_bavail * fs.f_frsize >= s->options.headroom_bytes;
}

static bool map_grow(struct store *s, uint64_t least)
{
	uint64_t bytes = s->room.map_bytes;
	while (bytes < least && bytes < s->options.map_bytes)
		bytes = bytes > s->options.map_bytes / 2 ? s->options.map_bytes : bytes * 2;
	if (bytes == s->room.map_bytes)
		return false;
	/* No transaction of this process is open: the writer is here, and who reads holds the mutex. */
	pthread_mutex_lock(&s->map);
	const int rc = mdb_env_set_mapsize(s->disk.env, bytes);
	pthread_mutex_unlock(&s->map);
	if (rc == 0)
		s->room.map_bytes = bytes;
	return rc == 0;
}

int room_open(struct store *s)
{
	MDB_envinfo info;
	if (mdb_env_info(s->disk.env, &info) != 0)
		return -ERR_IO;
	s->room.map_bytes = info.me_mapsize;
	s->room.reserves = s->options.headroom_bytes > 0;
	room_look(s);
	return 0;
}

void room_look(struct store *s)
{
	struct store_room *r = &s->room;
	r->used = used_bytes(s);
	/* Ahead of need, so that a batch finds the map large enough: one has 256 KiB, and splits of pages. */
	if (r->used > r->map_bytes / 4 * 3)
		map_grow(s, r->used * 2);
	if (s->options.headroom_bytes > 0 &&
	    (r->disk_full || !r->reserves || r->used + s->options.headroom_bytes / 2 > r->reserved)) {
		const uint64_t now = store_clock_ns(CLOCK_MONOTONIC);
		/* Without reserving, and while it is full, asked for a few times a second only. */
		if ((r->reserves && !r->disk_full) || now > r->looked_ns + RETRY_MS * 1000000ull) {
			r->looked_ns = now;
			r->disk_full = !reserve(s);
		}
	}
	state_set(s);
}

/* What one batch can need at most is what waits in the ring's values, and pages that are split. With
   a map that has that much behind the end it is the disk that is full. */
bool room_more(struct store *s)
{
	s->room.used = used_bytes(s);
	return map_grow(s, s->room.used + 2 * s->options.keep_bytes + (4 << 20));
}

struct readers {
	uint64_t oldest; /* transaction */
	uint32_t pid;
};

/* A line of mdb_reader_list: process, thread, transaction or "-". */
static int reader_line(const char *text, void *arg)
{
	struct readers *r = arg;
	unsigned pid;
	unsigned long long thread, txn;
	if (sscanf(text, "%u %llx %llu", &pid, &thread, &txn) == 3 && txn < r->oldest) {
		r->oldest = txn;
		r->pid = pid;
	}
	return 0;
}

bool store_held_by(const char *file, uint32_t pid)
{
	char path[READER_PATH_MAX];
	struct stat lock, st;
	bool ours = false;
	if (stat(file, &lock) != 0)
		return false;
	snprintf(path, sizeof path, "/proc/%u/fd", pid);
	DIR *dir = opendir(path);
	for (struct dirent *e; dir && !ours && (e = readdir(dir)) != NULL;) {
		snprintf(path, sizeof path, "/proc/%u/fd/%.32s", pid, e->d_name);
		ours = stat(path, &st) == 0 && st.st_dev == lock.st_dev && st.st_ino == lock.st_ino;
	}
	if (dir)
		closedir(dir);
	return ours;
}

static bool reader_ours(const struct store *s, uint32_t pid)
{
	char path[READER_PATH_MAX];
	snprintf(path, sizeof path, "%s/lock.mdb", s->disk.dir);
	return store_held_by(path, pid);
}

/* By a handle: the number may be another's between the look and the signal. */
static bool reader_killed(const struct store *s, uint32_t pid)
{
	const int handle = pidfd_open((pid_t)pid, 0);
	const bool killed = handle >= 0 && reader_ours(s, pid) &&
			    pidfd_send_signal(handle, SIGKILL, NULL, 0) == 0;
	if (handle >= 0)
		close(handle);
	return killed;
}

/* What one transaction keeps from being used again has a bound: the file's growth in that time. */
static void reader_end(struct store *s, const struct readers *r, uint64_t now_ns)
{
	struct store_room *room = &s->room;
	if (r->oldest != room->reader_txn || r->pid != atomic_load(&room->reader)) {
		room->reader_txn = r->oldest;
		room->reader_ns = now_ns;
		return;
	}
	if (s->options.reader_stay_ms == 0 || now_ns < room->reader_ns + s->options.reader_stay_ms * 1000000ull ||
	    !reader_killed(s, r->pid))
		return;
	atomic_store(&room->ended, r->pid);
	store_announce(s);
}

static void readers_look(struct store *s, uint64_t now_ns)
{
	struct readers r = {.oldest = UINT64_MAX};
	MDB_envinfo info;
	int dead;
	(void)mdb_reader_check(s->disk.env, &dead);
	if (mdb_env_info(s->disk.env, &info) != 0)
		return;
	(void)mdb_reader_list(s->disk.env, reader_line, &r);
	const bool stays = r.oldest != UINT64_MAX && r.oldest + STAYS_TXNS < info.me_last_txnid &&
			   r.pid != (uint32_t)getpid();
	if (stays)
		reader_end(s, &r, now_ns);
	if (atomic_exchange(&s->room.reader, stays ? r.pid : 0) == 0 && stays)
		store_announce(s);
}

uint64_t room_chores(struct store *s, uint64_t now_ns)
{
	struct store_room *r = &s->room;
	const uint64_t every = s->options.readers_ms * 1000000ull;
	if (every > 0 && now_ns >= r->readers_ns + every) {
		r->readers_ns = now_ns;
		readers_look(s, now_ns);
	}
	if (!r->disk_full)
		return UINT64_MAX;
	room_look(s);
	return r->disk_full ? now_ns + RETRY_MS * 1000000ull : UINT64_MAX;
}
