/*
 * The moving of old entries into segments, and the reading of segments.
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

#include "runtime/cure.h"
#include "runtime/fault.h"
#include "sched/check.h"

enum { COPY_MAX = 512, DROP_MAX = 4096, PATH_BYTES = 3200, ENTRY_MARK_BYTES = 8448 };
static const uint64_t segment_bytes_max =
	(uint64_t)ARCHIVE_SEGMENT * (STORE_VALUE_MAX + 12 + ENTRY_MARK_BYTES) + 4096;

struct segment_head {
	char magic[8];
	uint8_t uuid[STORE_UUID], before[STORE_HASH];
	uint64_t first, last;
};
_Static_assert(sizeof(struct segment_head) == 72, "no holes in what is written");
static const char magic[8] = "hfseg 1";

static void segment_path(char out[PATH_BYTES], const char *dir, uint64_t first, uint64_t last,
			 const char *end)
{
	snprintf(out, PATH_BYTES, "%.3000s/archive/%020llu-%020llu.%s", dir, (unsigned long long)first,
		 (unsigned long long)last, end);
}

static bool segment_name(const char *name, const char *end, uint64_t *first, uint64_t *last)
{
	unsigned long long a, b;
	char tail[8];
	if (strlen(name) != 20 + 1 + 20 + 1 + strlen(end) ||
	    sscanf(name, "%20llu-%20llu.%7s", &a, &b, tail) != 3 || strcmp(tail, end) != 0 || a == 0 || b < a)
		return false;
	*first = a;
	*last = b;
	return true;
}

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
	*archive = (struct store_archive){.fd = -1};
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
	return archive->place != NULL ? 0 : -ERR_MEMORY;
}

static void move_end(struct store_archive *a, const struct store_disk *disk, bool failed)
{
	char path[PATH_BYTES];
	if (a->fd >= 0)
		close(a->fd);
	if (failed && a->state == ARCHIVE_COPY) {
		segment_path(path, disk->dir, a->first, a->last, "part");
		unlink(path);
	}
	a->fd = -1;
	a->state = ARCHIVE_IDLE;
}

void archive_close(struct store_archive *archive)
{
	if (archive->fd >= 0)
		close(archive->fd);
	free(archive->place);
	*archive = (struct store_archive){.fd = -1};
}

static int file_put(struct store_archive *a, const void *bytes, size_t count)
{
	const long code = fault_pass(FAULT_SEGMENT);
	if (code != 0)
		return store_code((int)code);
	for (size_t done = 0; done < count;) {
		const ssize_t n = write(a->fd, (const uint8_t *)bytes + done, count - done);
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return n < 0 ? store_code(errno) : -ERR_DISK_FULL;
		done += (size_t)n;
	}
	a->bytes += count;
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
static int move_resumes(struct store_archive *a, const struct store_disk *disk, uint64_t first)
{
	struct segment segment;
	TRY(segment_open(disk->dir, disk->uuid, first, &segment));
	const int code = segment_check(&segment, a->hash);
	a->first = segment.first;
	a->last = segment.last;
	segment_close(&segment);
	return code;
}

int archive_begin(struct store_archive *archive, const struct store_disk *disk, uint64_t last)
{
	char path[PATH_BYTES];
	const uint64_t first = disk->archived.seq + 1;
	CHECK(archive->state == ARCHIVE_IDLE);
	CHECK(last >= first);
	snprintf(path, sizeof path, "%.3000s/archive", disk->dir);
	if (mkdir(path, 0700) == 0)
		TRY(store_code_of(store_dir_sync(disk->dir)));
	else if (errno != EEXIST)
		return store_code(errno);
	const int found = move_resumes(archive, disk, first);
	if (found == 0)
		archive->state = ARCHIVE_DROP;
	if (found != -ERR_NOT_FOUND)
		return found;
	archive->first = archive->next = first;
	archive->last = last - first < ARCHIVE_SEGMENT ? last : first + ARCHIVE_SEGMENT - 1;
	archive->bytes = 0;
	segment_path(path, disk->dir, archive->first, archive->last, "part");
	unlink(path);
	archive->fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (archive->fd < 0)
		return store_code(errno);
	archive->state = ARCHIVE_COPY;
	struct segment_head head = {.first = archive->first, .last = archive->last};
	memcpy(head.magic, magic, sizeof head.magic);
	memcpy(head.uuid, disk->uuid, sizeof head.uuid);
	memcpy(head.before, disk->archived.hash, sizeof head.before);
	memcpy(archive->hash, disk->archived.hash, sizeof archive->hash);
	const int code = file_put(archive, &head, sizeof head);
	if (code != 0)
		move_end(archive, disk, true);
	return code;
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

static int file_seal(struct store_archive *a, const struct store_disk *disk)
{
	char from[PATH_BYTES], to[PATH_BYTES];
	const uint64_t count = a->last - a->first + 1;
	struct segment segment;
	uint8_t hash[STORE_HASH];
	TRY(rows_copy(a, disk));
	TRY(file_put(a, a->place, count * sizeof *a->place));
	TRY(file_put(a, &count, sizeof count));
	if (fdatasync(a->fd) != 0)
		return store_code(errno);
	segment_path(from, disk->dir, a->first, a->last, "part");
	segment_path(to, disk->dir, a->first, a->last, "seg");
	if (rename(from, to) != 0)
		return store_code(errno);
	int code = folder_sync(disk->dir);
	/* What was meant to be written is not what counts, but what is there. */
	if (code == 0)
		code = segment_open(disk->dir, disk->uuid, a->first, &segment);
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

int archive_step(struct store_archive *archive, struct store_disk *disk, struct store_head *head, bool clean,
		 bool *over)
{
	int code = 0;
	*over = false;
	CHECK(archive->state != ARCHIVE_IDLE);
	if (archive->state == ARCHIVE_DROP) {
		code = drop_some(archive, disk, head, clean, over);
	} else {
		code = copy_some(archive, disk);
		if (code == 0 && archive->next > archive->last) {
			code = file_seal(archive, disk);
			if (code == 0) {
				close(archive->fd);
				archive->fd = -1;
				archive->state = ARCHIVE_DROP;
			}
		}
	}
	if (code == 0 && *over)
		archive->moved += archive->last - archive->first + 1;
	if (code != 0 || *over)
		move_end(archive, disk, code != 0);
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
		code = archive_begin(&a, disk, until);
		while (code == 0 && !over)
			code = archive_step(&a, disk, &disk->head, disk->clean, &over);
	}
	*moved = a.moved;
	archive_close(&a);
	return code;
}

static int segment_find(const char *dir, uint64_t seq, uint64_t *first, uint64_t *last)
{
	char path[PATH_BYTES];
	snprintf(path, sizeof path, "%.3000s/archive", dir);
	DIR *d = opendir(path);
	bool found = false;
	for (struct dirent *e; d != NULL && !found && (e = readdir(d)) != NULL;)
		found = segment_name(e->d_name, "seg", first, last) && *first <= seq && seq <= *last;
	if (d != NULL)
		closedir(d);
	return found ? 0 : -ERR_NOT_FOUND;
}

static int bytes_read(const char *path, struct segment *out)
{
	struct stat st;
	const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
	if (fd < 0)
		return store_code(errno);
	int code = fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_size > 0 &&
		   (uint64_t)st.st_size <= segment_bytes_max ? 0 : -ERR_BAD_FILE;
	if (code == 0) {
		out->size = (uint64_t)st.st_size;
		out->bytes = malloc(out->size);
		code = out->bytes != NULL ? 0 : -ERR_MEMORY;
	}
	for (uint64_t at = 0; code == 0 && at < out->size;) {
		const ssize_t n = read(fd, out->bytes + at, out->size - at);
		if (n <= 0)
			code = n < 0 ? store_code(errno) : -ERR_BAD_FILE;
		else
			at += (uint64_t)n;
	}
	close(fd);
	return code;
}

int segment_open(const char *dir, const uint8_t uuid[STORE_UUID], uint64_t seq, struct segment *out)
{
	char path[PATH_BYTES];
	struct segment_head head;
	uint64_t count = 0;
	*out = (struct segment){0};
	TRY(segment_find(dir, seq, &out->first, &out->last));
	segment_path(path, dir, out->first, out->last, "seg");
	int code = bytes_read(path, out);
	if (code == 0 && out->size < sizeof head + sizeof count)
		code = -ERR_BAD_FILE;
	if (code == 0) {
		memcpy(&head, out->bytes, sizeof head);
		memcpy(&count, out->bytes + out->size - sizeof count, sizeof count);
		const bool right = memcmp(head.magic, magic, sizeof magic) == 0 &&
			memcmp(head.uuid, uuid, STORE_UUID) == 0 && head.first == out->first &&
			head.last == out->last && count == out->last - out->first + 1 &&
			count <= ARCHIVE_SEGMENT && out->size >= sizeof head + (count + 1) * sizeof count;
		code = right ? 0 : -ERR_BAD_FILE;
	}
	if (code != 0)
		segment_close(out);
	else
		out->place = out->bytes + out->size - (count + 1) * sizeof count;
	return code;
}

void segment_close(struct segment *segment)
{
	free(segment->bytes);
	*segment = (struct segment){0};
}

int segment_entry(const struct segment *segment, uint64_t seq, const uint8_t **bytes, uint32_t *length)
{
	if (seq < segment->first || seq > segment->last)
		return -ERR_NOT_FOUND;
	uint64_t at;
	memcpy(&at, segment->place + (seq - segment->first) * sizeof at, sizeof at);
	if (at < sizeof(struct segment_head) || at > segment->size - sizeof *length)
		return -ERR_BAD_FILE;
	memcpy(length, segment->bytes + at, sizeof *length);
	if (*length < STORE_HASH || *length > segment->size - at - sizeof *length)
		return -ERR_BAD_FILE;
	*bytes = segment->bytes + at + sizeof *length;
	return 0;
}

void segment_before(const struct segment *segment, uint8_t hash[STORE_HASH])
{
	memcpy(hash, segment->bytes + offsetof(struct segment_head, before), STORE_HASH);
}

/* What lies between the last entry and the places. */
static int rows_read(int fd, const struct segment_head *head, uint64_t size, struct segment_rows *out)
{
	uint64_t count = 0, at = 0;
	uint32_t length = 0;
	if (size < sizeof *head + sizeof count ||
	    pread(fd, &count, sizeof count, (off_t)(size - sizeof count)) != sizeof count ||
	    count != head->last - head->first + 1 || count > ARCHIVE_SEGMENT ||
	    size < sizeof *head + (count + 1) * sizeof count)
		return -ERR_BAD_FILE;
	const uint64_t end = size - (count + 1) * sizeof count;
	if (pread(fd, &at, sizeof at, (off_t)(end + (count - 1) * sizeof at)) != sizeof at || at < sizeof *head ||
	    at > end - sizeof length || pread(fd, &length, sizeof length, (off_t)at) != sizeof length ||
	    length > end - at - sizeof length)
		return -ERR_BAD_FILE;
	at += sizeof length + length;
	out->size = end - at;
	out->bytes = malloc(out->size + 1);
	if (out->bytes == NULL)
		return -ERR_MEMORY;
	return pread(fd, out->bytes, out->size, (off_t)at) == (ssize_t)out->size ? 0 : -ERR_BAD_FILE;
}

int segment_rows_open(const char *dir, const uint8_t uuid[STORE_UUID], uint64_t seq, struct segment_rows *out)
{
	char path[PATH_BYTES];
	struct segment_head head;
	struct stat st;
	*out = (struct segment_rows){0};
	TRY(segment_find(dir, seq, &out->first, &out->last));
	segment_path(path, dir, out->first, out->last, "seg");
	const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
	if (fd < 0)
		return store_code(errno);
	int code = fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && (uint64_t)st.st_size <= segment_bytes_max &&
		   pread(fd, &head, sizeof head, 0) == (ssize_t)sizeof head &&
		   memcmp(head.magic, magic, sizeof magic) == 0 && memcmp(head.uuid, uuid, STORE_UUID) == 0 &&
		   head.first == out->first && head.last == out->last ? 0 : -ERR_BAD_FILE;
	if (code == 0)
		code = rows_read(fd, &head, (uint64_t)st.st_size, out);
	close(fd);
	if (code != 0)
		segment_rows_close(out);
	return code;
}

void segment_rows_close(struct segment_rows *rows)
{
	free(rows->bytes);
	*rows = (struct segment_rows){0};
}

int segment_rows_of(const struct segment *segment, struct segment_rows *out)
{
	const uint8_t *bytes;
	uint32_t length;
	*out = (struct segment_rows){.first = segment->first, .last = segment->last};
	TRY(segment_entry(segment, segment->last, &bytes, &length));
	if (bytes + length > segment->place)
		return -ERR_BAD_FILE;
	out->bytes = (uint8_t *)bytes + length;
	out->size = (uint64_t)(segment->place - out->bytes);
	return 0;
}

bool segment_row_next(const struct segment_rows *rows, uint64_t *at, const uint8_t **row,
		      struct index_head *head)
{
	const uint64_t left = rows->size - *at;
	if (*at > rows->size || left < sizeof *head)
		return false;
	memcpy(head, rows->bytes + *at, sizeof *head);
	const uint64_t bytes = sizeof *head + (uint64_t)head->count * sizeof(uint64_t);
	if (bytes > left || index_head_read(rows->bytes + *at, bytes, head) != 0)
		return false;
	*row = rows->bytes + *at;
	*at += bytes;
	return true;
}

uint64_t segments_first(const char *dir, uint64_t seq)
{
	uint64_t first, last, from = seq + 1;
	while (from > 1 && segment_find(dir, from - 1, &first, &last) == 0)
		from = first;
	return from;
}

static int segment_refuse(const char *dir, const char *name, const char *what, char *reason)
{
	char path[80];
	store_refuse(reason, 0, "audit log '%s': the file 'archive/%s' %s, and must be what its name says, of "
			"this log", dir, name, what);
	snprintf(path, sizeof path, "archive/%.60s", name);
	store_cure(reason, "put the right one in its place, or, to go on without those entries", "mv @ ^", dir,
			path);
	return -ERR_INTEGRITY;
}

int segments_check(const char *dir, const uint8_t uuid[STORE_UUID], char *reason)
{
	char path[PATH_BYTES];
	uint64_t first, last;
	int code = 0;
	snprintf(path, sizeof path, "%.3000s/archive", dir);
	DIR *d = opendir(path);
	for (struct dirent *e; d != NULL && code == 0 && (e = readdir(d)) != NULL;) {
		struct segment_head head = {.first = 0};
		if (!segment_name(e->d_name, "seg", &first, &last))
			continue;
		segment_path(path, dir, first, last, "seg");
		const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
		if (fd < 0 && errno == ENOENT)
			continue; /* taken elsewhere just now */
		if (fd < 0) {
			const int error = errno;
			code = store_refuse(reason, store_code(error), "audit log '%s': archive/%s cannot be read: %s",
					dir, e->d_name, strerror(error));
			if (reason != NULL)
				cure_errno(reason, STORE_REASON_MAX, path, error);
			break;
		}
		const bool whole = pread(fd, &head, sizeof head, 0) == (ssize_t)sizeof head &&
				   memcmp(head.magic, magic, sizeof magic) == 0;
		close(fd);
		if (!whole)
			code = segment_refuse(dir, e->d_name, "is not a segment", reason);
		else if (memcmp(head.uuid, uuid, STORE_UUID) != 0)
			code = segment_refuse(dir, e->d_name, "is of another log", reason);
		else if (head.first != first || head.last != last)
			code = segment_refuse(dir, e->d_name, "has other entries than its name says", reason);
	}
	if (d != NULL)
		closedir(d);
	return code;
}
