/*
 * The moving of old entries into segments.
 */
#include "config.h"

#include "runtime/store_archive.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/fault.h"
#include "sched/check.h"

enum { COPY_MAX = 512, DROP_MAX = 4096, PATH_BYTES = SEGMENT_PATH };
static int folder_sync(const char *dir)
{
	char path[PATH_BYTES];
	snprintf(path, sizeof path, "%.3000s/archive", dir);
	return store_code_of(store_dir_sync(path));
}

int archive_open(struct store_archive *archive, const struct store_disk *disk)
{
	char path[PATH_BYTES];
	uint64_t first, last;
	*archive = (struct store_archive){.fd = -1, .dir = strdup(disk->dir)};
	memcpy(archive->uuid, disk->uuid, STORE_UUID);
	snprintf(path, sizeof path, "%.3000s/archive", disk->dir);
	DIR *dir = opendir(path);
	for (struct dirent *e; dir != NULL && (e = readdir(dir)) != NULL;) {
		if (!segment_name(e->d_name, "part", &first, &last))
			continue;
		segment_path(path, disk->dir, first, last, "part");
		unlink(path); /* a copy: its entries are where they were */
	}
	if (dir != NULL)
		closedir(dir);
	archive->place = malloc(ARCHIVE_SEGMENT * sizeof *archive->place);
	return archive->place != NULL && archive->dir != NULL ? 0 : -ERR_MEMORY;
}

/* A part that will not be whole. */
static void part_drop(struct store_archive *a)
{
	char path[PATH_BYTES];
	if (a->fd < 0)
		return;
	close(a->fd);
	a->fd = -1;
	segment_path(path, a->dir, a->part[0], a->part[1], "part");
	unlink(path);
}

void archive_close(struct store_archive *archive)
{
	if (archive->fd >= 0)
		close(archive->fd);
	free(archive->place);
	free(archive->held);
	free(archive->dir);
	*archive = (struct store_archive){.fd = -1};
}

/* Into memory: the log is not read while the file is written. */
static int file_put(struct store_archive *a, const void *bytes, size_t count)
{
	if (a->held_bytes + count > a->held_room) {
		const uint64_t room = (a->held_bytes + count) * 2;
		uint8_t *held = realloc(a->held, room);
		if (held == NULL)
			return -ERR_MEMORY;
		a->held = held;
		a->held_room = room;
	}
	memcpy(a->held + a->held_bytes, bytes, count);
	a->held_bytes += count;
	a->bytes += count;
	a->puts++;
	return 0;
}

static int held_write(struct store_archive *a)
{
	for (; a->puts > 0; a->puts--) {
		const long code = fault_pass(FAULT_SEGMENT);
		if (code != 0)
			return store_code((int)code);
	}
	for (uint64_t done = 0; done < a->held_bytes;) {
		const ssize_t n = write(a->fd, a->held + done, a->held_bytes - done);
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return n < 0 ? store_code(errno) : -ERR_DISK_FULL;
		done += (uint64_t)n;
	}
	a->held_bytes = 0;
	return 0;
}

/* Every entry of it, as a reader would find it; hash: of its last. */
static int segment_check(const struct segment *s, uint8_t hash[STORE_HASH])
{
	segment_before(s, hash);
	for (uint64_t seq = s->first; seq <= s->last; seq++) {
		const uint8_t *bytes;
		uint32_t length;
		TRY(segment_entry(s, seq, &bytes, &length));
		TRY(store_entry_follows(bytes, length, hash));
	}
	return 0;
}

/* A segment that has the entry already: the move before was cut off in its dropping. -ERR_NOT_FOUND:
   none. */
static int move_resumes(struct store_archive *a)
{
	struct segment segment;
	TRY(segment_open(a->dir, a->uuid, a->first, &segment));
	const int code = segment_check(&segment, a->hash);
	a->first = segment.first;
	a->last = segment.last;
	segment_close(&segment);
	return code;
}

void archive_begin(struct store_archive *archive, const struct store_disk *disk, uint64_t last)
{
	const uint64_t first = disk->archived.seq + 1;
	CHECK(archive->state == ARCHIVE_IDLE);
	CHECK(last >= first);
	archive->first = archive->next = first;
	archive->last = last - first < ARCHIVE_SEGMENT ? last : first + ARCHIVE_SEGMENT - 1;
	archive->bytes = archive->held_bytes = archive->puts = 0;
	memcpy(archive->before, disk->archived.hash, sizeof archive->before);
	memcpy(archive->hash, archive->before, sizeof archive->hash);
	archive->state = ARCHIVE_BEGIN;
	archive->works = true;
	archive->resumed = false;
}

static int part_begin(struct store_archive *a)
{
	char path[PATH_BYTES];
	part_drop(a); /* of a move that the log itself gave up */
	snprintf(path, sizeof path, "%.3000s/archive", a->dir);
	if (mkdir(path, 0700) == 0)
		TRY(store_code_of(store_dir_sync(a->dir)));
	else if (errno != EEXIST)
		return store_code(errno);
	const int found = move_resumes(a);
	a->resumed = found == 0;
	if (found != -ERR_NOT_FOUND)
		return found;
	segment_path(path, a->dir, a->first, a->last, "part");
	unlink(path);
	a->fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (a->fd < 0)
		return store_code(errno);
	a->part[0] = a->first;
	a->part[1] = a->last;
	struct segment_head head = {.first = a->first, .last = a->last};
	memcpy(head.magic, segment_magic, sizeof head.magic);
	memcpy(head.uuid, a->uuid, sizeof head.uuid);
	memcpy(head.before, a->before, sizeof head.before);
	TRY(file_put(a, &head, sizeof head));
	return held_write(a);
}

/* Entries are moved only as what they were: each is hashed on its way. */
static int copy_some(struct store_archive *a, const struct store_disk *disk)
{
	MDB_txn *txn;
	int rc = mdb_txn_begin(disk->env, NULL, MDB_RDONLY, &txn), code = 0;
	if (rc != 0)
		return store_code(rc);
	for (unsigned i = 0; i < COPY_MAX && a->next <= a->last && code == 0; i++) {
		MDB_val key = {sizeof a->next, &a->next}, value;
		rc = mdb_get(txn, disk->audit, &key, &value);
		code = rc != 0 ? store_code(rc) : store_entry_follows(value.mv_data, value.mv_size, a->hash);
		if (code != 0)
			break;
		const uint32_t length = (uint32_t)value.mv_size;
		a->place[a->next - a->first] = a->bytes;
		code = file_put(a, &length, sizeof length);
		if (code == 0)
			code = file_put(a, value.mv_data, length);
		a->next++;
	}
	mdb_txn_abort(txn);
	return code;
}

/* The rows of the index that speak of its entries. */
static int rows_copy(struct store_archive *a, const struct store_disk *disk)
{
	MDB_txn *txn;
	int rc = mdb_txn_begin(disk->env, NULL, MDB_RDONLY, &txn), code = 0;
	if (rc != 0)
		return store_code(rc);
	uint64_t seq = a->first, next;
	while (code == 0 && seq <= a->last) {
		struct index_head head;
		MDB_val row;
		if (index_row_find(txn, disk->index, seq, &row, &head, &next)) {
			code = file_put(a, row.mv_data, row.mv_size);
			next = head.last + 1;
		}
		seq = next;
	}
	mdb_txn_abort(txn);
	/* Of the newest entries there is no row yet. */
	struct index_head head;
	const uint64_t *marks;
	if (code == 0 && disk->marks != NULL && index_pending(disk->marks, &head, &marks) &&
	    head.first <= a->last) {
		code = file_put(a, &head, sizeof head);
		if (code == 0)
			code = file_put(a, marks, head.count * sizeof *marks);
	}
	return code;
}

/* Rows that speak of nothing else any more. */
static int rows_drop(MDB_txn *txn, const struct store_disk *disk, uint64_t last)
{
	MDB_cursor *cursor;
	MDB_val key, row;
	struct index_head head;
	int rc = mdb_cursor_open(txn, disk->index, &cursor);
	if (rc != 0)
		return rc;
	for (rc = mdb_cursor_get(cursor, &key, &row, MDB_FIRST); rc == 0;
	     rc = mdb_cursor_get(cursor, &key, &row, MDB_NEXT)) {
		if (index_head_read(row.mv_data, row.mv_size, &head) == 0 && head.last > last)
			break;
		rc = mdb_cursor_del(cursor, 0);
		if (rc != 0)
			break;
	}
	mdb_cursor_close(cursor);
	return rc == MDB_NOTFOUND ? 0 : rc;
}

static int file_seal(struct store_archive *a)
{
	char from[PATH_BYTES], to[PATH_BYTES];
	struct segment segment;
	uint8_t hash[STORE_HASH];
	TRY(held_write(a));
	if (fdatasync(a->fd) != 0)
		return store_code(errno);
	segment_path(from, a->dir, a->first, a->last, "part");
	segment_path(to, a->dir, a->first, a->last, "seg");
	if (rename(from, to) != 0)
		return store_code(errno);
	close(a->fd);
	a->fd = -1;
	int code = folder_sync(a->dir);
	/* What was meant to be written is not what counts, but what is there. */
	if (code == 0)
		code = segment_open(a->dir, a->uuid, a->first, &segment);
	if (code == 0) {
		code = segment_check(&segment, hash);
		segment_close(&segment);
	}
	if (code == 0 && memcmp(hash, a->hash, sizeof hash) != 0)
		code = -ERR_INTEGRITY;
	if (code != 0)
		unlink(to);
	return code;
}

void archive_work(struct store_archive *archive)
{
	if (!archive->works)
		return;
	archive->code = archive->state == ARCHIVE_BEGIN ? part_begin(archive) :
			archive->state == ARCHIVE_SEAL ? file_seal(archive) : held_write(archive);
	if (archive->code != 0)
		part_drop(archive);
}

static int drop_some(struct store_archive *a, struct store_disk *disk, struct store_head *head, bool clean,
		     bool *over)
{
	MDB_txn *txn;
	struct store_archived to = disk->archived;
	struct store_head now = *head;
	int rc = mdb_txn_begin(disk->env, NULL, 0, &txn);
	if (rc != 0)
		return store_code(rc);
	/* No row is put here: what makes room must need none. */
	if (disk->marks != NULL)
		index_again(disk->marks);
	for (unsigned i = 0; rc == 0 && i < DROP_MAX && to.seq < a->last; i++) {
		const uint64_t seq = to.seq + 1;
		MDB_val key = {sizeof seq, (void *)&seq}, value;
		rc = mdb_get(txn, disk->audit, &key, &value);
		if (rc != 0 || value.mv_size < STORE_HASH)
			break;
		memcpy(to.hash, (uint8_t *)value.mv_data + value.mv_size - STORE_HASH, STORE_HASH);
		to.seq = seq;
		rc = mdb_del(txn, disk->audit, &key, NULL);
	}
	*over = to.seq == a->last;
	if (rc == 0 && *over)
		rc = rows_drop(txn, disk, a->last);
	int code = rc != 0 ? store_code(rc) : 0;
	if (code == 0 && *over && memcmp(to.hash, a->hash, STORE_HASH) != 0)
		code = -ERR_INTEGRITY;
	if (code == 0 && *over)
		code = store_put_archive(txn, disk, &now, a->first, a->last);
	if (code == 0)
		code = store_put_archived(txn, disk, &to);
	if (code == 0)
		code = store_put_head(txn, disk, &now, clean);
	if (code == 0)
		code = store_code_of((int)fault_pass(FAULT_DROP));
	if (code != 0) {
		mdb_txn_abort(txn);
		return code;
	}
	rc = mdb_txn_commit(txn);
	if (rc != 0)
		return store_code(rc);
	if (disk->marks != NULL)
		index_commit(disk->marks);
	disk->archived = to;
	*head = now;
	return 0;
}

/* Reads the next entries of the log, and behind the last of them what a segment ends in. */
static int copy_next(struct store_archive *a, const struct store_disk *disk)
{
	const uint64_t count = a->last - a->first + 1;
	TRY(copy_some(a, disk));
	a->works = true;
	if (a->next <= a->last)
		return 0;
	a->state = ARCHIVE_SEAL;
	TRY(rows_copy(a, disk));
	TRY(file_put(a, a->place, count * sizeof *a->place));
	return file_put(a, &count, sizeof count);
}

/* What the work of the step before came to. */
static int work_take(struct store_archive *a)
{
	if (!a->works)
		return 0;
	a->works = false;
	if (a->code != 0)
		return a->code;
	a->state = a->state == ARCHIVE_SEAL || a->resumed ? ARCHIVE_DROP : ARCHIVE_COPY;
	return 0;
}

int archive_step(struct store_archive *archive, struct store_disk *disk, struct store_head *head, bool clean,
		 bool *over)
{
	*over = false;
	CHECK(archive->state != ARCHIVE_IDLE);
	int code = work_take(archive);
	if (code == 0)
		code = archive->state == ARCHIVE_DROP ? drop_some(archive, disk, head, clean, over) :
							copy_next(archive, disk);
	if (code == 0 && *over)
		archive->moved += archive->last - archive->first + 1;
	if (code != 0 || *over) {
		archive->state = ARCHIVE_IDLE;
		archive->works = false;
	}
	return code;
}

int archive_all(struct store_disk *disk, uint64_t keep, uint64_t *moved)
{
	struct store_archive a;
	*moved = 0;
	const uint64_t until = disk->head.seq > keep ? disk->head.seq - keep : 0;
	int code = archive_open(&a, disk);
	while (code == 0 && disk->archived.seq < until) {
		bool over = false;
		archive_begin(&a, disk, until);
		while (code == 0 && !over) {
			archive_work(&a);
			code = archive_step(&a, disk, &disk->head, disk->clean, &over);
		}
		part_drop(&a);
	}
	*moved = a.moved;
	archive_close(&a);
	return code;
}
