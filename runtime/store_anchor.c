/*
 * The writing of anchors, the keys that sign them, and the reading for verify.
 *
 * The file `anchor` of the store has the current key in one of two places, by turns: the one that is
 * written over is that of the line before the last. A crash between the line and the key leaves a key
 * that is behind; it is brought forward by the last line's number.
 */
#include "config.h"

#include "runtime/store_anchor.h"

#include <errno.h>
#include <fcntl.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "runtime/cure.h"
#include "runtime/fault.h"
#include "runtime/store_archive.h"
#include "sched/check.h"

enum { PATH_BYTES = 3200, UUID_HEX = 2 * STORE_UUID + 1, SERIES_MAX = 1000, TAIL_BYTES = 8192,
       KEYS_BEHIND = 1 << 20 /* a key that is further behind is of an old copy of the log */ };

struct key_slot {
	char magic[8];
	struct anchor_key key;
	uint8_t uuid[STORE_UUID];
	uint32_t reserved, crc;
};
_Static_assert(sizeof(struct key_slot) == 72, "no holes in what is summed");
static const char slot_magic[8] = "hfkey 2"; /* one of a version before is none: a new series begins */

static void anchor_path(char out[PATH_BYTES], const char *dir, const uint8_t uuid[STORE_UUID],
			const char *end)
{
	char hex[UUID_HEX];
	sodium_bin2hex(hex, sizeof hex, uuid, STORE_UUID);
	snprintf(out, PATH_BYTES, "%.3000s/%s.%s", dir, hex, end);
}

static void key_next(struct anchor_key *key)
{
	static const char word[] = "holdfast anchor";
	uint8_t next[ANCHOR_KEY];
	crypto_generichash(next, sizeof next, (const uint8_t *)word, sizeof word, key->bytes, sizeof key->bytes);
	memcpy(key->bytes, next, sizeof next);
	sodium_memzero(next, sizeof next);
	key->index++;
}

static void mac_make(char out[2 * ANCHOR_MAC + 1], const struct anchor_key *key, const char *line,
		     size_t length)
{
	uint8_t mac[ANCHOR_MAC];
	crypto_generichash(mac, sizeof mac, (const uint8_t *)line, length, key->bytes, sizeof key->bytes);
	sodium_bin2hex(out, 2 * ANCHOR_MAC + 1, mac, sizeof mac);
}

static bool line_read(const char *line, struct anchor_line *out, size_t *signed_bytes,
		      char mac[2 * ANCHOR_MAC + 1])
{
	unsigned long long seq, wall;
	char hash[2 * STORE_HASH + 1];
	size_t n = 0;
	int at = 0;
	*out = (struct anchor_line){0};
	if (sscanf(line, "anchor %20llu %10u %20llu %64[0-9a-f] %10u %10u %n%32[0-9a-f]", &seq, &out->boot,
		   &wall, hash, &out->series, &out->index, &at, mac) != 7 || at == 0 ||
	    strlen(mac) != 2 * ANCHOR_MAC || strlen(hash) != 2 * STORE_HASH)
		return false;
	out->seq = seq;
	out->wall_ns = wall;
	*signed_bytes = (size_t)at;
	return sodium_hex2bin(out->hash, sizeof out->hash, hash, strlen(hash), NULL, &n, NULL) == 0;
}

static uint32_t slot_crc(const struct key_slot *slot)
{
	struct key_slot copy = *slot;
	copy.crc = 0;
	return store_crc_bytes(&copy, sizeof copy);
}

/* The newest key of the two places; false: there is none. *other: one is of another log. */
static bool key_read(int fd, const uint8_t uuid[STORE_UUID], struct anchor_key *key, bool *other)
{
	struct key_slot slot;
	bool found = false;
	*other = false;
	for (unsigned i = 0; i < 2; i++) {
		if (pread(fd, &slot, sizeof slot, (off_t)(i * sizeof slot)) != (ssize_t)sizeof slot ||
		    memcmp(slot.magic, slot_magic, sizeof slot.magic) != 0 || slot.crc != slot_crc(&slot))
			continue;
		*other |= memcmp(slot.uuid, uuid, STORE_UUID) != 0;
		if (found && (slot.key.series < key->series ||
			      (slot.key.series == key->series && slot.key.index < key->index)))
			continue;
		*key = slot.key;
		found = true;
	}
	sodium_memzero(&slot.key, sizeof slot.key);
	return found;
}

static int key_write(const struct store_anchor *a, const struct anchor_key *key)
{
	struct key_slot slot;
	memset(&slot, 0, sizeof slot);
	memcpy(slot.magic, slot_magic, sizeof slot.magic);
	slot.key = *key;
	memcpy(slot.uuid, a->uuid, STORE_UUID);
	slot.crc = slot_crc(&slot);
	const ssize_t n = pwrite(a->key_fd, &slot, sizeof slot, (off_t)(key->index % 2 * sizeof slot));
	sodium_memzero(&slot.key, sizeof slot.key);
	if (n != (ssize_t)sizeof slot)
		return n < 0 ? store_code(errno) : -ERR_DISK_FULL;
	return fdatasync(a->key_fd) == 0 ? 0 : store_code(errno);
}

/* A new series: its first key is written down where the verifier finds it. */
static int key_make(const struct store_anchor *a, const struct store_disk *disk, const char *dir,
		    struct anchor_key *key)
{
	char path[PATH_BYTES], end[32], text[2 * ANCHOR_KEY + UUID_HEX + 2];
	int fd = -1;
	randombytes_buf(key->bytes, sizeof key->bytes);
	key->index = 0;
	for (key->series = 1; key->series < SERIES_MAX && fd < 0; key->series++) {
		snprintf(end, sizeof end, "%u.key", key->series);
		anchor_path(path, dir, disk->uuid, end);
		fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0400);
		if (fd < 0 && errno != EEXIST)
			return store_code(errno);
		if (fd >= 0)
			break;
	}
	if (fd < 0)
		return -ERR_LIMIT;
	sodium_bin2hex(text, sizeof text, key->bytes, sizeof key->bytes);
	text[2 * ANCHOR_KEY] = ' ';
	sodium_bin2hex(text + 2 * ANCHOR_KEY + 1, UUID_HEX, disk->uuid, STORE_UUID);
	const size_t length = sizeof text - 1; /* the hexadecimal ends in a 0 byte */
	text[length - 1] = '\n';
	const bool put = write(fd, text, length) == (ssize_t)length && fsync(fd) == 0;
	int code = put ? 0 : store_code(errno);
	sodium_memzero(text, sizeof text);
	close(fd);
	if (code == 0)
		code = key_write(a, key);
	if (code != 0)
		unlink(path);
	return code;
}

/* Of a file that says of which log it is: 0 of one that does not, as those of a version before. */
enum { OWNER_LINE = 4 + UUID_HEX, OWNER_OURS = 1 };

static void owner_line(const uint8_t uuid[STORE_UUID], char line[OWNER_LINE + 1])
{
	char hex[UUID_HEX];
	sodium_bin2hex(hex, sizeof hex, uuid, STORE_UUID);
	snprintf(line, OWNER_LINE + 1, "log %s\n", hex);
}

void anchor_cure(char *reason, const char *words, const char *command, const char *dir,
		 const uint8_t uuid[STORE_UUID], const char *end)
{
	char path[PATH_BYTES];
	anchor_path(path, dir, uuid, end);
	if (reason != NULL)
		cure_add(reason, STORE_REASON_MAX, words, command, path);
}

static int path_cure(char *reason, int code, const char *words, const char *path)
{
	if (reason != NULL)
		cure_add(reason, STORE_REASON_MAX, words, "mv @ ^", path);
	return code;
}

/* error: of a call for the path. */
static int path_refuse(char *reason, int error, const char *path)
{
	store_refuse(reason, 0, "anchors: '%s' cannot be used: %s", path, strerror(error));
	if (reason != NULL)
		cure_errno(reason, STORE_REASON_MAX, path, error);
	return store_code(error);
}

static int owner_read(int fd, const uint8_t uuid[STORE_UUID], const char *path, char *reason)
{
	char line[OWNER_LINE], ours[OWNER_LINE + 1];
	owner_line(uuid, ours);
	if (pread(fd, line, sizeof line, 0) != (ssize_t)sizeof line || memcmp(line, "log ", 4) != 0 ||
	    line[OWNER_LINE - 1] != '\n')
		return 0;
	if (memcmp(line, ours, sizeof line) == 0)
		return OWNER_OURS;
	store_refuse(reason, 0, "anchors: '%s' is of another log, and must be this log's", path);
	return path_cure(reason, -ERR_INTEGRITY, "put the right one in its place, or, to go on without those of "
			"before", path);
}

static int owner_check(int fd, const uint8_t uuid[STORE_UUID], const char *path, char *reason)
{
	char ours[OWNER_LINE + 1];
	struct stat st;
	const int code = owner_read(fd, uuid, path, reason);
	owner_line(uuid, ours);
	if (code < 0)
		return code;
	/* One that is cut off is a line that is none. */
	if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_size == 0 &&
	    write(fd, ours, OWNER_LINE) != OWNER_LINE)
		return path_refuse(reason, errno, path);
	return 0;
}

/* The last whole line of the file; a line that was cut off is ended, so that the next is one. */
static int tail_read(int fd, struct anchor_line *last, bool *any)
{
	char tail[TAIL_BYTES + 1], mac[2 * ANCHOR_MAC + 1];
	size_t signed_bytes;
	struct stat st;
	*any = false;
	if (fstat(fd, &st) != 0)
		return store_code(errno);
	if (!S_ISREG(st.st_mode))
		return -ERR_BAD_FILE;
	const off_t from = st.st_size > TAIL_BYTES ? st.st_size - TAIL_BYTES : 0;
	const ssize_t n = pread(fd, tail, TAIL_BYTES, from);
	if (n < 0)
		return store_code(errno);
	tail[n] = 0;
	for (char *at = tail; at != NULL && *at != 0;) {
		char *end = strchr(at, '\n');
		struct anchor_line line;
		if (end != NULL)
			*end++ = 0;
		if (end != NULL && (at != tail || from == 0) && line_read(at, &line, &signed_bytes, mac)) {
			*last = line;
			*any = true;
		}
		at = end;
	}
	if (n > 0 && tail[n - 1] != 0 && write(fd, "\n", 1) != 1)
		return store_code(errno);
	return 0;
}

static bool segment_hash(const struct store_disk *disk, uint64_t seq, uint8_t hash[STORE_HASH])
{
	struct segment g;
	const uint8_t *bytes;
	uint32_t length;
	if (segment_open(disk->dir, disk->uuid, seq, &g) != 0)
		return false;
	const bool there = segment_entry(&g, seq, &bytes, &length) == 0;
	if (there)
		memcpy(hash, bytes + length - STORE_HASH, STORE_HASH);
	segment_close(&g);
	return there;
}

/* The log must have the entry that its last anchor speaks of. */
static int last_check(const struct store_disk *disk, const struct anchor_line *last, const char *dir,
		      char *reason)
{
	MDB_txn *txn;
	uint64_t seq = last->seq;
	MDB_val key = {sizeof seq, &seq}, value;
	if (seq > disk->head.seq) {
		store_refuse(reason, 0, "audit log '%s': ends at entry %llu, but entry %llu was anchored in '%s': "
				"its end was cut off, or an old copy was put in its place", disk->dir,
				(unsigned long long)disk->head.seq, (unsigned long long)seq, dir);
		anchor_cure(reason, "restore the newer copy, or, to go on from here without the anchors of before",
				"mv @ ^", dir, disk->uuid, "anchors");
		return -ERR_INTEGRITY;
	}
	uint8_t hash[STORE_HASH];
	int rc = 0;
	if (seq < disk->archived.seq) {
		if (!segment_hash(disk, seq, hash))
			return 0; /* it was taken elsewhere, or is damaged, which verify tells */
	} else if (seq == disk->archived.seq) {
		memcpy(hash, disk->archived.hash, sizeof hash);
	} else {
		rc = mdb_txn_begin(disk->env, NULL, MDB_RDONLY, &txn);
		if (rc == 0) {
			rc = mdb_get(txn, disk->audit, &key, &value);
			if (rc == 0 && value.mv_size >= STORE_HASH)
				memcpy(hash, (uint8_t *)value.mv_data + value.mv_size - STORE_HASH, STORE_HASH);
			mdb_txn_abort(txn);
		}
	}
	if (rc == 0 && memcmp(hash, last->hash, sizeof hash) == 0)
		return 0;
	store_refuse(reason, 0, "audit log '%s': entry %llu is not the one that was anchored in '%s': the log "
			"was written anew", disk->dir, (unsigned long long)seq, dir);
	return store_cure_log(reason, disk->dir, -ERR_INTEGRITY);
}

static int folder_check(const struct store_disk *disk, const char *dir, char *reason)
{
	struct stat there, here;
	if ((mkdir(dir, 0700) != 0 && errno != EEXIST) || stat(dir, &there) != 0 || stat(disk->dir, &here) != 0)
		return path_refuse(reason, errno, dir);
	if (!S_ISDIR(there.st_mode)) {
		store_refuse(reason, 0, "anchors: '%s' is not a folder, and must be one", dir);
		return path_cure(reason, -ERR_BAD_FILE, "name another with --anchor, or, to set it aside", dir);
	}
	if (there.st_dev == here.st_dev && there.st_ino == here.st_ino) {
		store_refuse(reason, 0, "anchors: '%s' is the log's own folder: a second place must be another", dir);
		store_cure(reason, "better on another disk; for one beside it say --anchor ^, and", "install -d -m "
				"0700 ^", dir, "");
		return -ERR_BAD_ARG;
	}
	return 0;
}

static int key_refuse(const struct store_disk *disk, char *reason)
{
	store_refuse(reason, 0, "audit log '%s': the file 'anchor' is of another log, and must be this log's",
			disk->dir);
	store_cure(reason, "restore the folder from one copy, or, to begin a new series of keys", "mv @ ^",
			disk->dir, "anchor");
	return -ERR_INTEGRITY;
}

int anchor_key_check(const struct store_disk *disk, char *reason)
{
	char path[PATH_BYTES];
	struct anchor_key key;
	bool other;
	snprintf(path, sizeof path, "%.3000s/anchor", disk->dir);
	const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
	if (fd < 0)
		return 0; /* no anchors are made, or a new series begins */
	(void)key_read(fd, disk->uuid, &key, &other);
	sodium_memzero(&key, sizeof key);
	close(fd);
	return other ? key_refuse(disk, reason) : 0;
}

static int keys_open(struct store_anchor *a, const struct store_disk *disk, const char *dir,
		     const struct anchor_line *last, bool any, char *reason)
{
	char path[PATH_BYTES];
	struct anchor_key key = {.index = 0};
	bool other;
	snprintf(path, sizeof path, "%.3000s/anchor", disk->dir);
	a->key_fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
	if (a->key_fd < 0)
		return path_refuse(reason, errno, path);
	const bool known = key_read(a->key_fd, disk->uuid, &key, &other);
	if (other)
		return key_refuse(disk, reason);
	/* A key that is ahead of the lines, or of another series, signs all the same: verify follows. */
	if (known && any && key.series == last->series)
		for (uint32_t i = 0; key.index <= last->index && i < KEYS_BEHIND; i++)
			key_next(&key);
	const int code = known ? 0 : key_make(a, disk, dir, &key);
	if (code != 0) {
		store_refuse(reason, 0, "anchors: a key cannot be made in '%s': %s", dir, err_text(code));
		if (reason != NULL)
			cure_errno(reason, STORE_REASON_MAX, dir, code == -ERR_DISK_FULL ? ENOSPC :
					code == -ERR_PERMISSION ? EACCES : EIO);
		return code;
	}
	a->key = key;
	sodium_memzero(&key, sizeof key);
	return 0;
}

int anchor_open(struct store_anchor *anchor, const struct store_disk *disk, const char *dir, char *reason)
{
	char path[PATH_BYTES];
	struct anchor_line last = {.seq = 0};
	bool any = false;
	*anchor = (struct store_anchor){.fd = -1, .key_fd = -1};
	if (dir == NULL || dir[0] == 0)
		return 0;
	TRY(folder_check(disk, dir, reason));
	anchor_path(path, dir, disk->uuid, "anchors");
	anchor->fd = open(path, O_RDWR | O_APPEND | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
	if (anchor->fd < 0)
		return path_refuse(reason, errno, path);
	/* A copy of the folder has the same name for its anchors. */
	if (flock(anchor->fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
		store_refuse(reason, 0, "anchors: '%s' is in use by another process, and must be by none: one log, "
				"or a copy of it, runs already", path);
		if (reason != NULL)
			cure_add(reason, STORE_REASON_MAX, "stop that, or name another folder; to see which it is",
					"fuser -v @", path);
		return -ERR_IN_USE;
	}
	memcpy(anchor->uuid, disk->uuid, STORE_UUID);
	TRY(owner_check(anchor->fd, disk->uuid, path, reason));
	int code = tail_read(anchor->fd, &last, &any);
	if (code != 0) {
		store_refuse(reason, 0, "anchors: '%s' cannot be used: %s", path, err_text(code));
		return path_cure(reason, code, "it must be a file that can be read; to set it aside", path);
	}
	if (any)
		TRY(last_check(disk, &last, dir, reason));
	TRY(keys_open(anchor, disk, dir, &last, any, reason));
	anchor->seq = last.seq;
	atomic_store(&anchor->said, last.seq);
	return 0;
}

void anchor_close(struct store_anchor *anchor)
{
	if (anchor->fd >= 0)
		close(anchor->fd);
	if (anchor->key_fd >= 0)
		close(anchor->key_fd);
	sodium_memzero(&anchor->key, sizeof anchor->key);
	anchor->fd = anchor->key_fd = -1;
}

static int line_put(struct store_anchor *a, const struct store_head *head)
{
	char line[ANCHOR_LINE], hash[2 * STORE_HASH + 1];
	sodium_bin2hex(hash, sizeof hash, head->hash, STORE_HASH);
	const int n = snprintf(line, sizeof line - 2 * ANCHOR_MAC - 2, "anchor %llu %u %llu %s %u %u ",
			       (unsigned long long)head->seq, head->boot, (unsigned long long)head->wall_ns, hash,
			       a->key.series, a->key.index);
	mac_make(line + n, &a->key, line, (size_t)n);
	const size_t length = (size_t)n + 2 * ANCHOR_MAC;
	line[length] = '\n';
	const long fault = fault_pass(FAULT_ANCHOR);
	if (fault != 0)
		return store_code((int)fault);
	if (a->torn && write(a->fd, "\n", 1) != 1)
		return store_code(errno);
	const ssize_t put = write(a->fd, line, length + 1);
	a->torn = put > 0 && put != (ssize_t)length + 1;
	if (put != (ssize_t)length + 1)
		return put < 0 ? store_code(errno) : -ERR_DISK_FULL;
	return fdatasync(a->fd) == 0 ? 0 : store_code(errno);
}

int anchor_put(struct store_anchor *anchor, const struct store_head *head)
{
	if (anchor->fd < 0 || head->seq <= anchor->seq)
		return 0;
	anchor->at_ns = store_clock_ns(CLOCK_MONOTONIC);
	int code = line_put(anchor, head);
	if (code == 0) {
		anchor->seq = head->seq;
		key_next(&anchor->key);
		code = key_write(anchor, &anchor->key);
		atomic_store(&anchor->said, anchor->seq);
	}
	atomic_store(&anchor->err, code);
	return code;
}

struct anchor_reader {
	FILE *file;
	char dir[PATH_BYTES];
	uint8_t uuid[STORE_UUID];
	struct anchor_key key;
	bool known; /* key is one of key.series */
	bool other; /* its file is of another log */
	uint32_t looked; /* the series whose key was looked for */
	uint32_t lines, series, index; /* series, index: of the last line */
};

int anchor_reader_open(const char *dir, const char *key_dir, const uint8_t uuid[STORE_UUID],
		       struct anchor_reader **out, char *reason)
{
	char path[PATH_BYTES];
	*out = NULL;
	anchor_path(path, dir, uuid, "anchors");
	struct anchor_reader *r = calloc(1, sizeof *r);
	if (r == NULL)
		return store_refuse(reason, -ERR_MEMORY, "anchors: no memory");
	r->file = fopen(path, "re");
	if (r->file == NULL) {
		const int code = errno;
		free(r);
		if (code != ENOENT)
			return path_refuse(reason, code, path);
		store_refuse(reason, 0, "anchors: '%s' is not there: the folder has none of this log", path);
		if (reason != NULL)
			cure_add(reason, STORE_REASON_MAX, "say --anchor with the folder that the daemon was given; to "
					"see what is there", "ls -l @", dir);
		return store_code(code);
	}
	const int code = owner_read(fileno(r->file), uuid, path, reason);
	if (code < 0) {
		anchor_reader_close(&r);
		return code;
	}
	if (code == OWNER_OURS)
		(void)fseek(r->file, OWNER_LINE, SEEK_SET);
	snprintf(r->dir, sizeof r->dir, "%.3000s", key_dir != NULL ? key_dir : dir);
	memcpy(r->uuid, uuid, STORE_UUID);
	*out = r;
	return 0;
}

static void key_find(struct anchor_reader *r, uint32_t series)
{
	char path[PATH_BYTES], end[32], hex[2 * ANCHOR_KEY + 1] = "", whose[UUID_HEX] = "", ours[UUID_HEX];
	size_t n = 0;
	if (r->looked == series)
		return;
	r->looked = series;
	snprintf(end, sizeof end, "%u.key", series);
	anchor_path(path, r->dir, r->uuid, end);
	FILE *file = fopen(path, "re");
	sodium_bin2hex(ours, sizeof ours, r->uuid, STORE_UUID);
	r->known = file != NULL && fscanf(file, "%64[0-9a-f] %32[0-9a-f]", hex, whose) >= 1 &&
		   sodium_hex2bin(r->key.bytes, ANCHOR_KEY, hex, strlen(hex), NULL, &n, NULL) == 0 && n == ANCHOR_KEY;
	if (file != NULL)
		fclose(file);
	r->other = whose[0] != 0 && strcmp(whose, ours) != 0;
	r->key.series = series;
	r->key.index = 0;
}

bool anchor_reader_next(struct anchor_reader *reader, struct anchor_line *line, uint64_t *torn)
{
	char text[2 * ANCHOR_LINE], mac[2 * ANCHOR_MAC + 1], right[2 * ANCHOR_MAC + 1];
	size_t signed_bytes;
	while (fgets(text, sizeof text, reader->file) != NULL) {
		if (strchr(text, '\n') == NULL || !line_read(text, line, &signed_bytes, mac)) {
			*torn += text[0] != '\n';
			continue;
		}
		key_find(reader, line->series);
		line->gap = reader->lines > 0 && reader->series == line->series && line->index != reader->index + 1;
		reader->series = line->series;
		reader->index = line->index;
		/* Keys go forward only, one a line: a number that goes back, or leaps, was not written by this
		   program. */
		const uint32_t most = ++reader->lines;
		while (reader->known && reader->key.index < line->index && reader->key.index < most)
			key_next(&reader->key);
		line->key_other = reader->other;
		line->signed_wrong = reader->known && reader->key.index != line->index;
		if (reader->known && !line->signed_wrong) {
			mac_make(right, &reader->key, text, signed_bytes);
			line->signed_right = memcmp(mac, right, sizeof mac) == 0;
			line->signed_wrong = !line->signed_right;
		}
		return true;
	}
	return false;
}

void anchor_reader_close(struct anchor_reader **reader)
{
	if (*reader == NULL)
		return;
	fclose((*reader)->file);
	sodium_memzero(*reader, sizeof **reader);
	free(*reader);
	*reader = NULL;
}
