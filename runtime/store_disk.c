/*
 * The store's directory: whose it is, on what it lies, who holds it, and the opening of the
 * environment in it. Everything that is refused is refused here, before anything is changed.
 */
#include "config.h"

#include "runtime/store_disk.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sodium.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>

#include "runtime/cure.h"
#include "runtime/fault.h"
#include "sched/check.h"

enum { UUID_LINE = 64, DIR_MAX = 3000, LOCK_WAIT_MS = 2000 };
static const char uuid_word[] = "holdfast-audit";

int store_refuse(char *reason, int code, const char *format, ...)
{
	if (reason != NULL) {
		va_list args;
		va_start(args, format);
		vsnprintf(reason, STORE_REASON_MAX, format, args);
		va_end(args);
	}
	return code;
}

int store_code(int code)
{
	switch (code) {
	case ENOSPC: case EDQUOT: case EFBIG: case MDB_MAP_FULL: return -ERR_DISK_FULL;
	case EACCES: case EPERM: case EROFS: return -ERR_PERMISSION;
	case ENOMEM: return -ERR_MEMORY;
	case ENOENT: return -ERR_NO_FILE;
	case MDB_KEYEXIST: return -ERR_INTEGRITY;
	case MDB_INVALID: case MDB_CORRUPTED: case MDB_PAGE_NOTFOUND: case MDB_INCOMPATIBLE:
	case MDB_BAD_VALSIZE: return -ERR_BAD_FILE;
	case MDB_VERSION_MISMATCH: return -ERR_UNSUPPORTED;
	default: return -ERR_IO;
	}
}

int store_code_of(int code)
{
	return code == 0 ? 0 : store_code(code);
}

void store_cure(char *reason, const char *words, const char *command, const char *dir, const char *name)
{
	char path[DIR_MAX + 300];
	snprintf(path, sizeof path, "%s%s%s", dir, name[0] ? "/" : "", name);
	if (reason != NULL)
		cure_add(reason, STORE_REASON_MAX, words, command, path);
}

int store_cure_log(char *reason, const char *dir, int code)
{
	if (code == -ERR_BAD_FILE || code == -ERR_INTEGRITY)
		store_cure(reason, "restore the folder from one copy, or, to keep it for examination and begin a "
				"new log", "mv @ ^", dir, "");
	else if (code == -ERR_UNSUPPORTED)
		store_cure(reason, "use the program that made it, or, to keep it and begin a new log", "mv @ ^", dir,
				"");
	return code;
}

int store_refuse_code(char *reason, const char *dir, int code, const char *format, ...)
{
	if (reason == NULL)
		return code;
	va_list args;
	va_start(args, format);
	vsnprintf(reason, STORE_REASON_MAX, format, args);
	va_end(args);
	(void)store_cure_log(reason, dir, code);
	cure_errno(reason, STORE_REASON_MAX, dir, code == -ERR_DISK_FULL ? ENOSPC : code == -ERR_PERMISSION ?
			EACCES : code == -ERR_MEMORY ? ENOMEM : EIO);
	return code;
}

/* The failing call, its words, and what can be done about it. name: of a file in the folder, or "". */
static int refuse_errno(char *reason, const char *dir, const char *name, const char *what, int code)
{
	char path[DIR_MAX + 300];
	const bool link = code == ELOOP;
	snprintf(path, sizeof path, "%s%s%s", dir, name[0] && link ? "/" : "", link ? name : "");
	store_refuse(reason, 0, "audit log '%s': %s%s%s%s: %s (error %d)", dir, what,
		     name[0] ? " the file '" : "", name, name[0] ? "'" : "", mdb_strerror(code), code);
	if (reason != NULL && code > 0)
		cure_errno(reason, STORE_REASON_MAX, path, code);
	return store_code(code);
}

static int refuse_network(char *reason, const char *dir, const char *name, uint32_t magic)
{
	store_refuse(reason, 0, "audit log '%s': lies on a network file system (%s, 0x%x), and must lie on a "
			"local disk, since LMDB needs one machine's memory and locks", dir, name, magic);
	store_cure(reason, "name a folder of a local disk with --state; to list those", "findmnt --real -t "
			"ext4,xfs,btrfs", dir, "");
	return -ERR_UNSUPPORTED;
}

/* Magic numbers of statfs(2) and of linux/magic.h. LMDB needs one machine's memory map and locks. */
static int place_check(const char *dir, char *reason, const char **warning)
{
	static const struct { uint32_t magic; const char *name; } network[] = {
		{0x6969, "NFS"}, {0x517b, "SMB"}, {0xff534d42, "CIFS"}, {0xfe534d42, "SMB2"},
		{0x5346414f, "AFS"}, {0x6b414653, "AFS"}, {0x73757245, "Coda"}, {0x564c, "NCP"},
		{0x00c36400, "Ceph"}, {0x01021997, "9P"}, {0x0bd00bd0, "Lustre"},
		{0x7461636f, "OCFS2"}, {0x01161970, "GFS2"}, {0x47504653, "GPFS"},
		{0x19830326, "BeeGFS"},
	};
	struct statfs fs;
	if (statfs(dir, &fs) != 0)
		return refuse_errno(reason, dir, "", "statfs", errno);
	uint32_t magic = (uint32_t)fs.f_type;
	long other = fault_pass(FAULT_STATFS);
	if (other != 0)
		magic = (uint32_t)other;
	for (unsigned i = 0; i < sizeof network / sizeof network[0]; i++)
		if (network[i].magic == magic)
			return refuse_network(reason, dir, network[i].name, magic);
	*warning = NULL;
	if (magic == 0x794c7630)
		*warning = "the audit log lies on an overlay file system: it goes when the container goes";
	else if (magic == 0x01021994 || magic == 0x858458f6)
		*warning = "the audit log lies in memory (tmpfs): it does not survive a restart of the machine";
	else if (magic == 0x65735546)
		*warning = "the audit log lies on FUSE: it is as durable as what is behind that";
	return 0;
}

/* 1 if the folder holds anything but our own lock file. */
static int dir_used(const char *dir)
{
	DIR *d = opendir(dir);
	if (d == NULL)
		return -errno;
	int used = 0;
	for (struct dirent *e = readdir(d); e != NULL; e = readdir(d))
		if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0 &&
		    strcmp(e->d_name, "lock") != 0)
			used = 1;
	closedir(d);
	return used;
}

static int refuse_foreign(char *reason, const char *dir)
{
	store_refuse(reason, 0, "audit log '%s': the folder has files in it, but no log of ours (no file "
			"'uuid'), and must be empty, or a whole log", dir);
	store_cure(reason, "choose another; for one within it say --state @, and", "install -d -m 0700 @", dir,
			"holdfast");
	return -ERR_BAD_FILE;
}

/* Somebody's, with nothing of a log: it is not to be changed for our sake. */
static bool dir_foreign(const char *dir)
{
	static const char *const names[] = {"uuid", "uuid.new", "data.mdb", "lock"};
	char path[DIR_MAX + 16];
	bool ours = false;
	for (unsigned i = 0; i < sizeof names / sizeof names[0]; i++) {
		snprintf(path, sizeof path, "%s/%s", dir, names[i]);
		ours |= access(path, F_OK) == 0;
	}
	return !ours && dir_used(dir) == 1;
}

static int refuse_owner(char *reason, const char *dir, unsigned owner, unsigned user)
{
	char command[60];
	store_refuse(reason, 0, "audit log '%s': belongs to user %u, and must be that of this user, %u: who "
			"owns the folder can forge the log", dir, owner, user);
	snprintf(command, sizeof command, "sudo chown -R %u @", user);
	store_cure(reason, "name another with --state, or, if what is in it is to be trusted", command, dir, "");
	return -ERR_PERMISSION;
}

static int dir_take(const char *dir, char *reason, const char **warning)
{
	struct stat st;
	if (strlen(dir) == 0 || strlen(dir) > DIR_MAX)
		return store_refuse(reason, -ERR_BAD_ARG, "audit log: the folder's name has %zu bytes, "
				    "1 to %d are possible", strlen(dir), DIR_MAX);
	if (mkdir(dir, 0700) != 0 && errno != EEXIST)
		return refuse_errno(reason, dir, "", "cannot make the folder", errno);
	if (stat(dir, &st) != 0)
		return refuse_errno(reason, dir, "", "stat", errno);
	if (!S_ISDIR(st.st_mode)) {
		store_refuse(reason, 0, "audit log '%s': is not a folder, and must be one, or not be there yet", dir);
		store_cure(reason, "choose another with --state, or, to set it aside", "mv @ ^", dir, "");
		return -ERR_BAD_FILE;
	}
	const bool owned = st.st_uid == geteuid() || st.st_uid == 0, closed = (st.st_mode & 077) == 0;
	if ((!owned || !closed) && dir_foreign(dir))
		return refuse_foreign(reason, dir);
	if (!owned)
		return refuse_owner(reason, dir, (unsigned)st.st_uid, (unsigned)geteuid());
	if (!closed) {
		store_refuse(reason, 0, "audit log '%s': mode %04o lets others in, and must be 0700", dir,
				(unsigned)(st.st_mode & 07777));
		store_cure(reason, "", "chmod 0700 @", dir, "");
		return -ERR_PERMISSION;
	}
	return place_check(dir, reason, warning);
}

static long lock_holder(const struct store_disk *disk)
{
	char text[32];
	ssize_t n = pread(disk->lock_fd, text, sizeof text - 1, 0);
	text[n > 0 ? n : 0] = 0;
	return strtol(text, NULL, 10);
}

static int refuse_held(char *reason, const char *dir, long pid)
{
	char command[40], path[DIR_MAX + 16];
	snprintf(path, sizeof path, "%s/lock", dir);
	store_refuse(reason, 0, "audit log '%s': in use by process %ld; one daemon at a time may have it%s", dir,
			pid, pid == (long)getpid() ? ", and once" : "");
	const bool known = pid > 0 && pid <= INT32_MAX && pid != (long)getpid() &&
			   store_held_by(path, (uint32_t)pid);
	snprintf(command, sizeof command, known ? "kill %ld" : "fuser -v @", pid);
	store_cure(reason, known ? "name another with --state, or, to end that one" : "name another with "
			"--state, or, to see who has it", command, dir, "lock");
	return -ERR_IN_USE;
}

static int lock_take(struct store_disk *disk, char *reason)
{
	char path[DIR_MAX + 16], text[32];
	snprintf(path, sizeof path, "%s/lock", disk->dir);
	disk->lock_fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (disk->lock_fd < 0)
		return refuse_errno(reason, disk->dir, "lock", "cannot open", errno);
	/* A daemon killed while it forked its walker leaves the lock with that child for a moment. */
	for (int left = LOCK_WAIT_MS / 10; flock(disk->lock_fd, LOCK_EX | LOCK_NB) != 0; left--) {
		if (errno != EWOULDBLOCK)
			return refuse_errno(reason, disk->dir, "lock", "cannot lock", errno);
		long pid = lock_holder(disk);
		bool gone = pid <= 0 || (kill((pid_t)pid, 0) != 0 && errno == ESRCH);
		if (!gone || left == 0)
			return refuse_held(reason, disk->dir, pid);
		nanosleep(&(struct timespec){0, 10000000}, NULL);
	}
	/* For the line above only: on a full disk it stays empty, and the lock holds all the same. */
	int n = snprintf(text, sizeof text, "%ld\n", (long)getpid());
	if (ftruncate(disk->lock_fd, 0) != 0 || pwrite(disk->lock_fd, text, (size_t)n, 0) != n)
		return 0;
	return 0;
}

/* 0 and the uuid; -ENOENT; or refused. */
static int uuid_read(struct store_disk *disk, const char *name, char *reason)
{
	char path[DIR_MAX + 16], line[UUID_LINE + 1] = {0}, word[32] = {0}, hex[40] = {0};
	unsigned version = 0;
	snprintf(path, sizeof path, "%s/%s", disk->dir, name);
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
	if (fd < 0)
		return errno == ENOENT ? -ENOENT : refuse_errno(reason, disk->dir, name, "cannot read", errno);
	ssize_t n = read(fd, line, UUID_LINE);
	close(fd);
	size_t got = 0;
	const char *end;
	if (n < 0 || sscanf(line, "%31s %9u %39s", word, &version, hex) != 3 ||
	    strcmp(word, uuid_word) != 0)
		return store_cure_log(reason, disk->dir, store_refuse(reason, -ERR_BAD_FILE, "audit log '%s': the "
				"file '%s' (%zd bytes) is not one of ours, which is a line of '%s', a version and 32 "
				"hexadecimal digits", disk->dir, name, n, uuid_word));
	if (version < STORE_SCHEMA_FIRST || version > STORE_SCHEMA)
		return store_cure_log(reason, disk->dir, store_refuse(reason, -ERR_UNSUPPORTED, "audit log '%s': is "
				"of version %u, this program reads version %d, and brings those from %d on forward",
				disk->dir, version, STORE_SCHEMA, STORE_SCHEMA_FIRST));
	if (sodium_hex2bin(disk->uuid, STORE_UUID, hex, strlen(hex), NULL, &got, &end) != 0 ||
	    got != STORE_UUID || *end != 0)
		return store_cure_log(reason, disk->dir, store_refuse(reason, -ERR_BAD_FILE, "audit log '%s': the "
				"file '%s' is damaged: its id has %zu bytes of hexadecimal digits, and must have %d",
				disk->dir, name, got, STORE_UUID));
	disk->schema = version;
	return 0;
}

int store_dir_sync(const char *dir)
{
	const int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0)
		return errno;
	const int err = fsync(fd) == 0 ? 0 : errno;
	close(fd);
	return err;
}

/* 'uuid.new'. A whole line or no file: with a half-written one the folder would look like another's. */
static int uuid_write(struct store_disk *disk, char *reason)
{
	char path[DIR_MAX + 16], made[DIR_MAX + 16], line[UUID_LINE], hex[2 * STORE_UUID + 1];
	sodium_bin2hex(hex, sizeof hex, disk->uuid, STORE_UUID);
	int n = snprintf(line, sizeof line, "%s %d %s\n", uuid_word, STORE_SCHEMA, hex);
	snprintf(made, sizeof made, "%s/uuid.new", disk->dir);
	(void)unlink(made); /* of an earlier try to bring the log forward */
	int fd = open(disk->dir, O_TMPFILE | O_WRONLY | O_CLOEXEC, 0600);
	bool named = fd < 0; /* not every file system has files without a name */
	if (named)
		fd = open(made, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (fd < 0)
		return refuse_errno(reason, disk->dir, "uuid.new", "cannot make", errno);
	int err = 0;
	ssize_t put = write(fd, line, (size_t)n);
	if (put != n)
		err = put < 0 ? errno : ENOSPC;
	if (err == 0 && fsync(fd) != 0)
		err = errno;
	if (err == 0 && !named) {
		snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
		if (linkat(AT_FDCWD, path, AT_FDCWD, made, AT_SYMLINK_FOLLOW) != 0)
			err = errno;
	}
	close(fd);
	if (err == 0)
		err = store_dir_sync(disk->dir);
	return err == 0 ? 0 : refuse_errno(reason, disk->dir, "uuid.new", "cannot write", err);
}

int store_none(char *reason, const char *dir)
{
	store_refuse(reason, 0, "audit log '%s': there is none: a log has a file 'uuid', which is not there",
			dir);
	store_cure(reason, "name the folder of one with --state; to see where there are any, up to there",
			"find \"$(dirname @)\" -maxdepth 3 -name uuid", dir, "");
	return -ERR_NO_FILE;
}

int store_disk_lock(const char *dir, struct store_disk *disk, bool *in_use, char *reason)
{
	const char *warning;
	*disk = (struct store_disk){.lock_fd = -1, .beacon_fd = -1};
	int err = 0;
	if (access(dir, F_OK) != 0)
		return errno == ENOENT ? store_none(reason, dir) : refuse_errno(reason, dir, "", "cannot read",
				errno);
	disk->dir = strdup(dir);
	if (disk->dir == NULL)
		return store_refuse(reason, -ERR_MEMORY, "audit log: no memory");
	err = dir_take(dir, reason, &warning);
	if (err == 0)
		err = uuid_read(disk, "uuid", reason);
	if (err == -ENOENT)
		err = store_none(reason, dir);
	if (err == 0)
		err = lock_take(disk, reason);
	/* Never a second time in the process that has it: LMDB does not bear that. */
	*in_use = err == -ERR_IN_USE && lock_holder(disk) != (long)getpid();
	if (*in_use) {
		close(disk->lock_fd);
		disk->lock_fd = -1;
		err = 0;
	}
	if (err != 0)
		store_disk_close(disk);
	return err;
}

/* What stands in the folder: an enum of three, or an error. */
enum standing { STANDING_NONE, STANDING_MAKING, STANDING_MADE };

static int standing_find(struct store_disk *disk, enum standing *out, bool *data, char *reason)
{
	char path[DIR_MAX + 16];
	struct stat st;
	snprintf(path, sizeof path, "%s/data.mdb", disk->dir);
	bool exists = lstat(path, &st) == 0;
	if (exists && !S_ISREG(st.st_mode))
		return store_cure_log(reason, disk->dir, store_refuse(reason, -ERR_BAD_FILE, "audit log '%s': "
				"data.mdb is not a file, and must be one", disk->dir));
	*data = exists && st.st_size > 0;
	int err = uuid_read(disk, "uuid", reason);
	if (err == 0) {
		*out = STANDING_MADE;
		if (*data)
			return 0;
		return store_cure_log(reason, disk->dir, store_refuse(reason, -ERR_BAD_FILE, "audit log '%s': "
				"data.mdb is %s, but the file 'uuid' says that the log was in use before", disk->dir, exists
				? "empty (0 bytes)" : "gone"));
	}
	if (err != -ENOENT)
		return err;
	err = uuid_read(disk, "uuid.new", reason);
	*out = STANDING_MAKING;
	if (err != -ENOENT)
		return err;
	int used = dir_used(disk->dir);
	if (used < 0)
		return refuse_errno(reason, disk->dir, "", "cannot list it", -used);
	*out = STANDING_NONE;
	if (used == 0)
		return 0;
	/* A log that was restored in part. */
	return exists ? store_cure_log(reason, disk->dir, store_refuse(reason, -ERR_BAD_FILE, "audit log '%s': "
			"the folder has a data.mdb, but no log of ours (no file 'uuid'), and must be empty, or a whole "
			"log", disk->dir)) : refuse_foreign(reason, disk->dir);
}

/* Address space for what is there and as much again, or what was asked for. */
static uint64_t map_first(const struct store_disk *disk, const struct store_options *o)
{
	char path[DIR_MAX + 16];
	struct stat st;
	snprintf(path, sizeof path, "%s/data.mdb", disk->dir);
	uint64_t bytes = o->map_begin != 0 ? o->map_begin : o->map_bytes;
	if (stat(path, &st) == 0 && (uint64_t)st.st_size * 2 > bytes)
		bytes = (uint64_t)st.st_size * 2;
	return bytes < o->map_bytes ? bytes : o->map_bytes;
}

static int env_open(struct store_disk *disk, uint64_t map_bytes, char *reason)
{
	int rc = mdb_env_create(&disk->env);
	if (rc == 0)
		rc = mdb_env_set_mapsize(disk->env, map_bytes);
	if (rc == 0)
		rc = mdb_env_set_maxdbs(disk->env, STORE_DBS_MAX);
	if (rc == 0)
		rc = mdb_env_set_maxreaders(disk->env, STORE_READERS_MAX);
	/* The default flags: two flushes a commit. WRITEMAP would turn a full disk into a signal. */
	if (rc == 0)
		rc = mdb_env_open(disk->env, disk->dir, MDB_NOTLS, 0600);
	int fd, dead;
	if (rc == 0)
		rc = mdb_env_get_fd(disk->env, &fd);
	if (rc == 0 && fcntl(fd, F_SETFD, FD_CLOEXEC) != 0)
		rc = errno;
	if (rc == 0)
		rc = mdb_reader_check(disk->env, &dead);
	return rc == 0 ? 0 : refuse_errno(reason, disk->dir, "data.mdb", "cannot open", rc);
}

/* The three databases; where the log is new, with what they hold at first. */
static int tables_open(struct store_disk *disk, bool make, char *reason)
{
	MDB_txn *txn = NULL;
	unsigned flags = make ? MDB_CREATE : 0;
	int rc = mdb_txn_begin(disk->env, NULL, 0, &txn);
	if (rc == 0)
		rc = mdb_dbi_open(txn, "meta", flags, &disk->meta);
	if (rc == 0)
		rc = mdb_dbi_open(txn, "audit", flags | MDB_INTEGERKEY, &disk->audit);
	if (rc == 0)
		rc = mdb_dbi_open(txn, "own", flags | MDB_INTEGERKEY, &disk->own);
	/* A log of before these tables were has none of them yet. */
	if (rc == 0)
		rc = mdb_dbi_open(txn, "index", MDB_CREATE | MDB_INTEGERKEY, &disk->index);
	for (unsigned i = 0; rc == 0 && i < TABLE_COUNT; i++)
		rc = mdb_dbi_open(txn, store_table_names[i], MDB_CREATE, &disk->kept[i]);
	uint32_t schema = STORE_SCHEMA, found = disk->schema;
	MDB_val key = {6, "schema"}, value;
	/* What data.mdb itself says: the file `uuid` beside it may be of another time. */
	if (rc == 0 && !make && mdb_get(txn, disk->meta, &key, &value) == 0 && value.mv_size == sizeof found)
		memcpy(&found, value.mv_data, sizeof found);
	value = (MDB_val){sizeof schema, &schema};
	/* Owners of earlier boots are void, so they need no other form. */
	if (rc == 0 && found < STORE_SCHEMA_OWN)
		rc = mdb_drop(txn, disk->own, 0);
	if (rc == 0 && (make || found < STORE_SCHEMA))
		rc = mdb_put(txn, disk->meta, &key, &value, 0);
	if (rc == 0 && make) {
		store_genesis(disk->head.hash, disk->uuid);
		key = (MDB_val){4, "uuid"};
		value = (MDB_val){STORE_UUID, disk->uuid};
		if (rc == 0)
			rc = mdb_put(txn, disk->meta, &key, &value, 0);
		int err = rc == 0 ? store_put_head(txn, disk, &disk->head, true) : 0;
		if (err != 0) {
			mdb_txn_abort(txn);
			return store_refuse_code(reason, disk->dir, err, "audit log '%s': cannot write its head: %s",
					disk->dir, err_text(err));
		}
	}
	if (rc != 0) {
		mdb_txn_abort(txn);
	} else {
		rc = mdb_txn_commit(txn);
	}
	return rc == 0 ? 0 : refuse_errno(reason, disk->dir, "data.mdb", "cannot open its tables in", rc);
}

static int made_seal(struct store_disk *disk, char *reason)
{
	char from[DIR_MAX + 16], to[DIR_MAX + 16];
	snprintf(from, sizeof from, "%s/uuid.new", disk->dir);
	snprintf(to, sizeof to, "%s/uuid", disk->dir);
	long code = fault_pass(FAULT_CREATED);
	if (code != 0)
		return store_refuse(reason, store_code((int)code), "audit log: stopped by a test");
	if (rename(from, to) != 0)
		return refuse_errno(reason, disk->dir, "uuid.new", "cannot rename", errno);
	const int err = store_dir_sync(disk->dir);
	return err == 0 ? 0 : refuse_errno(reason, disk->dir, "", "fsync", err);
}

/* "uuid.new" first, then the environment, then "uuid": whatever the moment at which making a store
   is cut off, what is left can be told from a store that lost its data. */
static int open_locked(const struct store_options *options, struct store_disk *disk, char *reason)
{
	enum standing standing;
	enum store_found found = STORE_EMPTY;
	struct store_walk walk;
	bool data;
	TRY(standing_find(disk, &standing, &data, reason));
	if (data)
		TRY(store_walk_child(disk->dir, options->map_bytes, disk, &found, reason));
	if (standing == STANDING_MADE && found == STORE_EMPTY)
		return store_refuse(reason, -ERR_BAD_FILE, "audit log '%s': data.mdb has none of its tables, but "
				"the file 'uuid' says that the log was in use before", disk->dir);
	if (standing == STANDING_NONE) {
		disk->schema = STORE_SCHEMA;
		randombytes_buf(disk->uuid, STORE_UUID);
		TRY(uuid_write(disk, reason));
	}
	TRY(env_open(disk, map_first(disk, options), reason));
	TRY(tables_open(disk, found == STORE_EMPTY, reason));
	TRY(beacon_open(disk, reason));
	/* An older program would take the log, and not know what is in it now. */
	if (disk->schema < STORE_SCHEMA)
		TRY(uuid_write(disk, reason));
	if (standing != STANDING_MADE || disk->schema < STORE_SCHEMA)
		TRY(made_seal(disk, reason));
	/* The child's word was for the file; this is for what this process reads of it. */
	TRY(store_walk(disk->env, disk->uuid, WALK_HEAD, &walk, &found, reason));
	disk->head = walk.head;
	disk->archived = walk.archived;
	disk->clean = walk.clean;
	return 0;
}

int store_disk_open(const struct store_options *options, struct store_disk *disk, char *reason,
		    const char **warning)
{
	*disk = (struct store_disk){.lock_fd = -1, .beacon_fd = -1};
	*warning = NULL;
	if (sodium_init() < 0)
		return store_refuse(reason, -ERR_INTERNAL, "audit log: libsodium does not start");
	int err = dir_take(options->dir, reason, warning);
	if (err != 0)
		return err;
	disk->dir = strdup(options->dir);
	if (disk->dir == NULL)
		return store_refuse(reason, -ERR_MEMORY, "audit log: no memory");
	/* Before the lock makes a file in a folder that may not be ours. */
	char path[DIR_MAX + 16];
	snprintf(path, sizeof path, "%s/lock", disk->dir);
	enum standing standing;
	bool data;
	if (access(path, F_OK) != 0)
		err = standing_find(disk, &standing, &data, reason);
	if (err == 0)
		err = lock_take(disk, reason);
	if (err == 0)
		err = store_cure_log(reason, disk->dir, open_locked(options, disk, reason));
	if (err != 0)
		store_disk_close(disk);
	return err;
}

void store_disk_close(struct store_disk *disk)
{
	if (disk->env != NULL)
		mdb_env_close(disk->env);
	if (disk->beacon_fd >= 0)
		close(disk->beacon_fd);
	if (disk->lock_fd >= 0)
		close(disk->lock_fd);
	free(disk->dir);
	*disk = (struct store_disk){.lock_fd = -1, .beacon_fd = -1};
}
