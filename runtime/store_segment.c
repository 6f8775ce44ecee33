/*
 * Segments as they lie in the folder `archive`: their names and their form, and the reading of them.
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
#include "sched/check.h"

enum { PATH_BYTES = SEGMENT_PATH, ENTRY_MARK_BYTES = 8448 };
static const uint64_t segment_bytes_max =
	(uint64_t)ARCHIVE_SEGMENT * (STORE_VALUE_MAX + 12 + ENTRY_MARK_BYTES) + 4096;

const char segment_magic[8] = "hfseg 1";

void segment_path(char out[SEGMENT_PATH], const char *dir, uint64_t first, uint64_t last,
			 const char *end)
{
	snprintf(out, SEGMENT_PATH, "%.3000s/archive/%020llu-%020llu.%s", dir, (unsigned long long)first,
		 (unsigned long long)last, end);
}

bool segment_name(const char *name, const char *end, uint64_t *first, uint64_t *last)
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
		const bool right = memcmp(head.magic, segment_magic, sizeof segment_magic) == 0 &&
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
		   memcmp(head.magic, segment_magic, sizeof segment_magic) == 0 &&
		   memcmp(head.uuid, uuid, STORE_UUID) == 0 && head.first == out->first &&
		   head.last == out->last ? 0 : -ERR_BAD_FILE;
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
				   memcmp(head.magic, segment_magic, sizeof segment_magic) == 0;
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
