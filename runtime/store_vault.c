/*
 * The file of keys and its index.
 */
#include "config.h"

#include "runtime/store_vault.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sodium.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/cure.h"
#include "runtime/fault.h"
#include "runtime/store_disk.h"
#include "sched/check.h"

enum { PATH_BYTES = 3200, SLOTS_EXTRA = 64, SLOTS_MAX = 1 << 22 };
enum { INDEX_FREE = 0xffffffffu, INDEX_GONE = 0xfffffffeu, OWN_NONE = 0xffffffffu };

struct slot {
	uint8_t owner[VAULT_OWNER], key[VAULT_KEY];
	uint64_t ended_ms; /* 0: it lives. Of the log's own slot: how often the file was flushed */
	uint32_t used, crc;
};
_Static_assert(sizeof(struct slot) == 64, "a slot lies within one sector");

struct vault {
	int fd;
	_Atomic bool dirty;
	/* Held where a slot changes, and by the writer while it copies some; never in a write. */
	pthread_mutex_t mutex;
	/* Under it: slots that are not in the file as they are here, each once and in their order; all: nothing
	   is known of it. */
	uint32_t *changed;
	uint64_t changed_at, changed_count;
	uint8_t *is_changed;   /* 2: and its key is to be written over */
	bool all;
	uint32_t count, free_count, index_mask, gone;
	uint32_t own;          /* the slot whose owner is the log itself; OWN_NONE */
	struct slot *slot;
	uint32_t *free, *index; /* index: of owners, open addressing; owners are random numbers */
};

static uint32_t slot_crc(const struct slot *slot)
{
	struct slot copy = *slot;
	copy.crc = 0;
	const uint32_t crc = store_crc_bytes(&copy, sizeof copy);
	sodium_memzero(&copy, sizeof copy);
	return crc;
}

static uint32_t place_of(const struct vault *v, const uint8_t owner[VAULT_OWNER])
{
	uint32_t word;
	memcpy(&word, owner, sizeof word);
	return (word * 2654435761u) & v->index_mask;
}

static void index_put(struct vault *v, uint32_t slot)
{
	uint32_t at = place_of(v, v->slot[slot].owner);
	while (v->index[at] != INDEX_FREE)
		at = (at + 1) & v->index_mask;
	v->index[at] = slot;
}

static void index_make(struct vault *v)
{
	memset(v->index, 0xff, ((size_t)v->index_mask + 1) * sizeof *v->index);
	v->gone = 0;
	for (uint32_t i = 0; i < v->count; i++)
		if (v->slot[i].used)
			index_put(v, i);
}

/* Where the owner's slot stands in the index; INDEX_FREE: nowhere. */
static uint32_t index_find(const struct vault *v, const uint8_t owner[VAULT_OWNER])
{
	uint32_t at = place_of(v, owner);
	for (; v->index[at] != INDEX_FREE; at = (at + 1) & v->index_mask)
		if (v->index[at] != INDEX_GONE && memcmp(v->slot[v->index[at]].owner, owner, VAULT_OWNER) == 0)
			return at;
	return INDEX_FREE;
}

static int bytes_put(const struct vault *v, const struct slot *slot, uint32_t first, uint32_t count)
{
	const size_t bytes = count * sizeof *slot;
	for (size_t at = 0; at < bytes;) {
		const ssize_t n = pwrite(v->fd, (const uint8_t *)slot + at, bytes - at,
					 (off_t)(first * sizeof *slot + at));
		if (n <= 0)
			return n < 0 ? store_code(errno) : -ERR_IO;
		at += (size_t)n;
	}
	return 0;
}

/* The writer's, which writes and flushes it before what was sealed with it is committed: the loop waits for
   no disk. Under the mutex. */
static void slot_write(struct vault *v, uint32_t i)
{
	v->slot[i].crc = v->slot[i].used ? slot_crc(&v->slot[i]) : 0;
	if (!v->is_changed[i])
		v->changed[v->changed_count++ % v->count] = i;
	v->is_changed[i] = v->slot[i].used ? 1 : 2;
	atomic_store(&v->dirty, true);
}

/* All of the file, a part at a time. */
static int all_put(struct vault *v)
{
	struct slot part[64];
	const long fault = fault_pass(FAULT_KEY);
	int code = fault != 0 ? store_code((int)fault) : 0;
	for (uint32_t at = 0, n; at < v->count && code == 0; at += n) {
		n = v->count - at < 64 ? v->count - at : 64;
		pthread_mutex_lock(&v->mutex);
		memcpy(part, &v->slot[at], n * sizeof part[0]);
		pthread_mutex_unlock(&v->mutex);
		code = bytes_put(v, part, at, n);
	}
	sodium_memzero(part, sizeof part);
	return code;
}

/* Those that changed. The blocks are there from the first day, but not every file system writes into those:
   where one fails all are written again. */
static int changed_put(struct vault *v)
{
	struct slot one;
	bool all, more = true;
	while (more) {
		uint32_t i = 0;
		uint8_t how = 0;
		pthread_mutex_lock(&v->mutex);
		all = v->all;
		more = v->changed_at != v->changed_count;
		if (more) {
			i = v->changed[v->changed_at++ % v->count];
			how = v->is_changed[i];
			v->is_changed[i] = 0;
			one = v->slot[i];
		}
		v->all = all && more;
		pthread_mutex_unlock(&v->mutex);
		if (more && !all && (fault_pass(FAULT_KEY) != 0 || bytes_put(v, &one, i, 1) != 0)) {
			pthread_mutex_lock(&v->mutex);
			v->all = true;
			pthread_mutex_unlock(&v->mutex);
		}
		if (how == 2)
			(void)fault_pass(FAULT_FORGET);
	}
	sodium_memzero(&one, sizeof one);
	return all ? all_put(v) : 0;
}

/* All of the file is there before it is needed, so that a full disk hinders neither keys nor their end. */
static int file_fill(struct vault *v)
{
	static const struct slot none[64];
	struct stat st;
	if (fstat(v->fd, &st) != 0)
		return store_code(errno);
	if (!S_ISREG(st.st_mode) || st.st_size % (off_t)sizeof *v->slot != 0 ||
	    st.st_size / (off_t)sizeof *v->slot > SLOTS_MAX)
		return -ERR_BAD_FILE;
	const uint32_t there = (uint32_t)(st.st_size / (off_t)sizeof *v->slot);
	if (there > v->count)
		v->count = there;
	for (uint32_t at = there; at < v->count;) {
		const uint32_t n = v->count - at < 64 ? v->count - at : 64;
		const ssize_t put = pwrite(v->fd, none, n * sizeof none[0], (off_t)at * (off_t)sizeof none[0]);
		if (put != (ssize_t)(n * sizeof none[0]))
			return put < 0 ? store_code(errno) : -ERR_DISK_FULL;
		at += n;
	}
	return fsync(v->fd) == 0 ? 0 : store_code(errno);
}

static int slots_read(struct vault *v)
{
	uint32_t size = 1;
	while (size < 2 * v->count)
		size *= 2;
	v->index_mask = size - 1;
	v->slot = calloc(v->count, sizeof *v->slot);
	v->free = calloc(v->count, sizeof *v->free);
	v->index = calloc(size, sizeof *v->index);
	v->changed = calloc(v->count, sizeof *v->changed);
	v->is_changed = calloc(v->count, sizeof *v->is_changed);
	if (v->slot == NULL || v->free == NULL || v->index == NULL || v->changed == NULL || v->is_changed == NULL)
		return -ERR_MEMORY;
	const size_t bytes = v->count * sizeof *v->slot;
	for (size_t at = 0; at < bytes;) {
		const ssize_t n = pread(v->fd, (uint8_t *)v->slot + at, bytes - at, (off_t)at);
		if (n <= 0)
			return n < 0 ? store_code(errno) : -ERR_BAD_FILE;
		at += (size_t)n;
	}
	for (uint32_t i = v->count; i-- > 0;) {
		/* One that was cut off is none: its session's rows say so. */
		if (v->slot[i].used != 1 || v->slot[i].crc != slot_crc(&v->slot[i]))
			sodium_memzero(&v->slot[i], sizeof v->slot[i]);
		if (!v->slot[i].used)
			v->free[v->free_count++] = i;
	}
	index_make(v);
	return 0;
}

uint64_t vault_flushes(struct vault *vault)
{
	return vault->own == OWN_NONE ? 0 : vault->slot[vault->own].ended_ms;
}

static int own_refuse(const char *dir, bool found, uint64_t number, uint64_t least, char *reason)
{
	store_refuse(reason, 0, "audit log '%s': the file 'keys' is %s: its number is %llu, and that of "
			"data.mdb %llu, which it must have at least; without the keys no session can be read", dir, found
			? "an older one" : "of another log", (unsigned long long)number, (unsigned long long)least);
	return store_cure_log(reason, dir, -ERR_INTEGRITY);
}

/* error: what open(2) said, or 0. Without its keys, or with what is none, the log is not whole. */
static int keys_refuse(const char *dir, int code, int error, char *reason)
{
	char path[PATH_BYTES];
	snprintf(path, sizeof path, "%.3000s/keys", dir);
	store_refuse(reason, 0, "audit log '%s': the file 'keys' cannot be used: %s: it must be there, and be "
			"this log's", dir, error != 0 ? strerror(error) : err_text(code));
	if (error == ENOENT || error == ELOOP || error == EISDIR || code == -ERR_BAD_FILE)
		return store_cure_log(reason, dir, -ERR_BAD_FILE), code;
	if (reason != NULL)
		cure_errno(reason, STORE_REASON_MAX, path, error != 0 ? error : code == -ERR_DISK_FULL ? ENOSPC :
				EIO);
	return code;
}

/* What the log's last transaction was written with must be there. */
static int own_check(struct vault *v, const char *dir, const uint8_t own[VAULT_OWNER], uint64_t least,
		     char *reason)
{
	uint32_t at = index_find(v, own);
	if (at == INDEX_FREE && least == 0) {
		(void)vault_key(v, own, true);
		at = index_find(v, own);
	}
	v->own = at == INDEX_FREE ? OWN_NONE : v->index[at];
	if (least == 0 || (v->own != OWN_NONE && v->slot[v->own].ended_ms >= least))
		return 0;
	return own_refuse(dir, v->own != OWN_NONE, vault_flushes(v), least, reason);
}

/* The log's own slot of a file that a daemon may be writing to. */
static bool own_find(int fd, const uint8_t own[VAULT_OWNER], uint64_t *number)
{
	struct slot slot;
	bool found = false;
	for (off_t at = 0; !found && pread(fd, &slot, sizeof slot, at) == (ssize_t)sizeof slot; at += sizeof slot)
		if (slot.used == 1 && memcmp(slot.owner, own, VAULT_OWNER) == 0 && slot.crc == slot_crc(&slot)) {
			*number = slot.ended_ms;
			found = true;
		}
	sodium_memzero(&slot, sizeof slot);
	return found;
}

int vault_check(const char *dir, const uint8_t own[VAULT_OWNER], uint64_t least, char *reason)
{
	char path[PATH_BYTES];
	uint64_t number = 0;
	bool found = false;
	if (least == 0)
		return 0;
	snprintf(path, sizeof path, "%.3000s/keys", dir);
	const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
	if (fd < 0)
		return keys_refuse(dir, store_code(errno), errno, reason);
	/* A slot that is just being written may be read in two halves. */
	for (unsigned i = 0; i < 3 && !found; i++)
		found = own_find(fd, own, &number);
	close(fd);
	return found && number >= least ? 0 : own_refuse(dir, found, number, least, reason);
}

int vault_open(const char *dir, uint32_t owners, const uint8_t own[VAULT_OWNER], uint64_t least,
	       struct vault **out, char *reason)
{
	char path[PATH_BYTES];
	*out = NULL;
	struct vault *v = calloc(1, sizeof *v);
	if (v == NULL)
		return store_refuse(reason, -ERR_MEMORY, "audit log: no memory");
	pthread_mutex_init(&v->mutex, NULL);
	v->count = 2 * owners + SLOTS_EXTRA;
	snprintf(path, sizeof path, "%.3000s/keys", dir);
	v->own = OWN_NONE;
	v->fd = open(path, O_RDWR | (least ? 0 : O_CREAT) | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
	const int error = errno;
	int code = v->fd < 0 ? store_code(error) : file_fill(v);
	if (code == 0)
		code = slots_read(v);
	if (code != 0) {
		keys_refuse(dir, code, v->fd < 0 ? error : 0, reason);
		vault_close(&v);
		return code;
	}
	code = own_check(v, dir, own, least, reason);
	if (code != 0)
		vault_close(&v);
	*out = v;
	return code;
}

void vault_close(struct vault **vault)
{
	struct vault *v = *vault;
	if (v == NULL)
		return;
	*vault = NULL;
	if (v->fd >= 0)
		close(v->fd);
	if (v->slot != NULL)
		sodium_memzero(v->slot, v->count * sizeof *v->slot);
	free(v->slot);
	free(v->free);
	free(v->index);
	free(v->changed);
	free(v->is_changed);
	pthread_mutex_destroy(&v->mutex);
	free(v);
}

/* The one that ended first gives way: its answers are gone before their time. */
static bool slot_reclaim(struct vault *v)
{
	uint32_t oldest = INDEX_FREE;
	for (uint32_t i = 0; i < v->count; i++)
		if (v->slot[i].used && i != v->own && v->slot[i].ended_ms != 0 &&
		    (oldest == INDEX_FREE || v->slot[i].ended_ms < v->slot[oldest].ended_ms))
			oldest = i;
	if (oldest == INDEX_FREE)
		return false;
	uint8_t owner[VAULT_OWNER];
	memcpy(owner, v->slot[oldest].owner, sizeof owner);
	vault_drop(v, owner);
	return true;
}

const uint8_t *vault_key(struct vault *vault, const uint8_t owner[VAULT_OWNER], bool make)
{
	const uint32_t at = index_find(vault, owner);
	if (at != INDEX_FREE)
		return vault->slot[vault->index[at]].key;
	if (!make || (vault->free_count == 0 && !slot_reclaim(vault)))
		return NULL;
	const uint32_t i = vault->free[--vault->free_count];
	struct slot *s = &vault->slot[i];
	pthread_mutex_lock(&vault->mutex);
	*s = (struct slot){.used = 1};
	memcpy(s->owner, owner, VAULT_OWNER);
	randombytes_buf(s->key, sizeof s->key);
	if (vault->gone > vault->index_mask / 4)
		index_make(vault);
	else
		index_put(vault, i);
	slot_write(vault, i);
	pthread_mutex_unlock(&vault->mutex);
	return s->key;
}

void vault_end(struct vault *vault, const uint8_t owner[VAULT_OWNER], uint64_t ms)
{
	const uint32_t at = index_find(vault, owner);
	if (at == INDEX_FREE || vault->slot[vault->index[at]].ended_ms != 0)
		return;
	pthread_mutex_lock(&vault->mutex);
	vault->slot[vault->index[at]].ended_ms = ms;
	slot_write(vault, vault->index[at]);
	pthread_mutex_unlock(&vault->mutex);
}

void vault_drop(struct vault *vault, const uint8_t owner[VAULT_OWNER])
{
	const uint32_t at = index_find(vault, owner);
	if (at == INDEX_FREE)
		return;
	const uint32_t i = vault->index[at];
	vault->index[at] = INDEX_GONE;
	vault->gone++;
	pthread_mutex_lock(&vault->mutex);
	sodium_memzero(&vault->slot[i], sizeof vault->slot[i]);
	slot_write(vault, i);
	pthread_mutex_unlock(&vault->mutex);
	vault->free[vault->free_count++] = i;
}

uint32_t vault_sweep(struct vault *vault, uint64_t before_ms)
{
	uint32_t dropped = 0;
	uint8_t owner[VAULT_OWNER];
	for (uint32_t i = 0; i < vault->count; i++) {
		const struct slot *s = &vault->slot[i];
		if (!s->used || i == vault->own || s->ended_ms == 0 || s->ended_ms >= before_ms)
			continue;
		memcpy(owner, s->owner, sizeof owner);
		vault_drop(vault, owner);
		dropped++;
	}
	return dropped;
}

void vault_end_others(struct vault *vault, bool (*lives)(void *arg, const uint8_t owner[VAULT_OWNER]),
		      void *arg, uint64_t ms)
{
	for (uint32_t i = 0; i < vault->count; i++)
		if (vault->slot[i].used && i != vault->own && vault->slot[i].ended_ms == 0 &&
		    !lives(arg, vault->slot[i].owner))
			vault_end(vault, vault->slot[i].owner, ms);
}

int vault_sync(struct vault *vault)
{
	if (!atomic_exchange(&vault->dirty, false))
		return 0;
	pthread_mutex_lock(&vault->mutex);
	if (vault->own != OWN_NONE) {
		vault->slot[vault->own].ended_ms++;
		slot_write(vault, vault->own);
		atomic_store(&vault->dirty, false);
	}
	pthread_mutex_unlock(&vault->mutex);
	int code = changed_put(vault);
	if (code == 0)
		code = store_code_of((int)fault_pass(FAULT_KEYS));
	if (code == 0)
		code = store_code_of(fdatasync(vault->fd) == 0 ? 0 : errno);
	/* What the file has now is not known: all of it again, before anything that it opens is committed. */
	if (code != 0) {
		pthread_mutex_lock(&vault->mutex);
		vault->all = true;
		pthread_mutex_unlock(&vault->mutex);
		atomic_store(&vault->dirty, true);
	}
	return code;
}
