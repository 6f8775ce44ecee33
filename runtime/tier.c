/*
 * The file of the disk tier: a head, a table of one entry for each slot, then the slots. An entry
 * is written after its page and says what the page must be; so the order in which the two reach
 * the disk does not matter.
 */
#include "config.h"

#include "runtime/tier.h"

#include <errno.h>
#include <fcntl.h>
#include <sodium.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "runtime/cure.h"
#include "runtime/fault.h"
#include "sched/check.h"

enum { TIER_VERSION = 1, TIER_BLOCK = 4096, TIER_MAC = 16, PATH_BYTES = 4200 };

static const char tier_magic[16] = "holdfast pages\n";

struct tier_head {
	char magic[16];
	uint32_t version, group_count;
	uint8_t store[16];
	struct {
		uint64_t page_bytes;
		uint32_t page_count, reserved;
	} group[TIER_GROUP_MAX];
	uint8_t sum[TIER_MAC]; /* over all before */
};

/* sum: over slot, proof and the page's bytes; check: over all before it, so that a scan need not
   read the page. */
struct tier_entry {
	uint32_t used, group, slot, reserved;
	struct tier_proof proof;
	uint8_t sum[TIER_MAC];
	uint8_t check[TIER_MAC];
};
_Static_assert(sizeof(struct tier_proof) == 88, "no holes in what is compared and hashed");
_Static_assert(sizeof(struct tier_entry) == 16 + 88 + 32, "no holes in what is stored");

struct tier {
	int fd;
	struct tier_options options;
	uint64_t entries_at[TIER_GROUP_MAX], pages_at[TIER_GROUP_MAX], slot_bytes[TIER_GROUP_MAX];
	uint64_t bytes;
};

static uint64_t block_up(uint64_t bytes)
{
	return (bytes + TIER_BLOCK - 1) / TIER_BLOCK * TIER_BLOCK;
}

static int code_of(int error)
{
	return error == ENOSPC || error == EDQUOT || error == EFBIG ? -ERR_DISK_FULL
	       : error == EACCES || error == EPERM || error == EROFS ? -ERR_PERMISSION : -ERR_IO;
}

static int refuse_aside(char *reason, int code, const char *path)
{
	cure_add(reason, TIER_REASON_MAX, "to set it aside and begin a new one", "mv @ ^", path);
	return code;
}

static int refuse_errno(char *reason, int error, const char *path)
{
	snprintf(reason, TIER_REASON_MAX, "disk tier '%.300s': cannot be used: %s", path, strerror(error));
	cure_errno(reason, TIER_REASON_MAX, path, error);
	return code_of(error);
}

__attribute__((format(printf, 3, 4)))
static int refuse(char *reason, int code, const char *format, ...)
{
	va_list args;
	va_start(args, format);
	vsnprintf(reason, TIER_REASON_MAX, format, args);
	va_end(args);
	return code;
}

static int write_all(int fd, const void *bytes, size_t count, uint64_t at)
{
	const uint8_t *from = bytes;
	while (count > 0) {
		const ssize_t n = pwrite(fd, from, count, (off_t)at);
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return n < 0 ? code_of(errno) : -ERR_DISK_FULL;
		from += n;
		at += (uint64_t)n;
		count -= (size_t)n;
	}
	return 0;
}

/* -ERR_NOT_FOUND: the file ends before. */
static int read_all(int fd, void *bytes, size_t count, uint64_t at)
{
	uint8_t *to = bytes;
	while (count > 0) {
		const ssize_t n = pread(fd, to, count, (off_t)at);
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return n < 0 ? -ERR_IO : -ERR_NOT_FOUND;
		to += n;
		at += (uint64_t)n;
		count -= (size_t)n;
	}
	return 0;
}

static void head_make(const struct tier_options *o, struct tier_head *head)
{
	memset(head, 0, sizeof *head);
	memcpy(head->magic, tier_magic, sizeof head->magic);
	head->version = TIER_VERSION;
	head->group_count = o->group_count;
	memcpy(head->store, o->store, sizeof head->store);
	for (uint32_t g = 0; g < o->group_count; g++) {
		head->group[g].page_bytes = o->group[g].page_bytes;
		head->group[g].page_count = o->group[g].page_count;
	}
	crypto_generichash(head->sum, sizeof head->sum, (const uint8_t *)head,
			   offsetof(struct tier_head, sum), NULL, 0);
}

/* An empty file with a new head: all that stood in it is given back to the file system. The head is on the
   disk before there is anything else, so that a power cut leaves no file that is nobody's. */
static int file_begin(struct tier *t, const struct tier_head *head)
{
	if (ftruncate(t->fd, 0) != 0)
		return code_of(errno);
	TRY(write_all(t->fd, head, sizeof *head, 0));
	if (fdatasync(t->fd) != 0)
		return code_of(errno);
	return ftruncate(t->fd, (off_t)t->bytes) == 0 ? 0 : code_of(errno);
}

/* Ours and of the same sizes; a tail that is missing is filled with nothing, and its pages are absent. */
static int file_whole(struct tier *t, uint64_t size, const char *path, char *reason, const char **warning)
{
	if (size == t->bytes)
		return 0;
	*warning = "the disk tier's file was cut: what is missing of it is void";
	(void)refuse(reason, 0, "disk tier '%.300s': was cut: it has %llu bytes, and should have %llu; what is "
		     "missing is void", path, (unsigned long long)size, (unsigned long long)t->bytes);
	if (ftruncate(t->fd, (off_t)t->bytes) == 0)
		return 0;
	return refuse_errno(reason, errno, path);
}

/* Its first block is zeros, as far as it goes: what a power cut leaves of one that had no head yet. */
static bool file_bare(const struct tier *t, uint64_t size)
{
	static const uint8_t zero[TIER_BLOCK];
	uint8_t block[TIER_BLOCK];
	const size_t n = size < TIER_BLOCK ? (size_t)size : TIER_BLOCK;
	return read_all(t->fd, block, n, 0) == 0 && memcmp(block, zero, n) == 0;
}

/* Ours and of the same sizes: kept. Ours, but other: begun anew, with a word. Not ours: refused. */
static int file_take(struct tier *t, const char *path, char *reason, const char **warning)
{
	struct tier_head wanted, found;
	struct stat st;
	if (fstat(t->fd, &st) != 0)
		return refuse_errno(reason, errno, path);
	if (!S_ISREG(st.st_mode))
		return refuse_aside(reason, refuse(reason, -ERR_BAD_FILE, "disk tier '%.300s': is not a file, and "
				"must be one", path), path);
	if (flock(t->fd, LOCK_EX | LOCK_NB) != 0) {
		(void)refuse(reason, 0, "disk tier '%.300s': is in use by another process, and must be by none",
				path);
		cure_add(reason, TIER_REASON_MAX, "name another folder with --disk-dir; to see which it is", "fuser "
				"-v @", path);
		return -ERR_IN_USE;
	}
	memset(&found, 0, sizeof found);
	head_make(&t->options, &wanted);
	int err = st.st_size == 0 ? -ERR_NOT_FOUND : read_all(t->fd, &found, sizeof found, 0);
	if (err == -ERR_IO)
		return refuse_errno(reason, EIO, path);
	/* A file that was cut off before its head was whole is ours only if it has nothing else. */
	const bool bare = st.st_size > 0 && file_bare(t, (uint64_t)st.st_size);
	if (st.st_size > 0 && !bare && memcmp(found.magic, tier_magic, sizeof found.magic) != 0)
		return refuse_aside(reason, refuse(reason, -ERR_BAD_FILE, "disk tier '%.300s': is not one of ours, "
				"which begins with 'holdfast pages'", path), path);
	if (err == 0 && !bare && found.version != wanted.version)
		return refuse_aside(reason, refuse(reason, -ERR_BAD_FILE, "disk tier '%.300s': is of version %u, "
				"and this program's is %u", path, found.version, wanted.version), path);
	if (err == 0 && memcmp(&found, &wanted, sizeof found) == 0)
		return file_whole(t, (uint64_t)st.st_size, path, reason, warning);
	if (st.st_size > 0)
		*warning = bare ? "the disk tier's file has no head, as a power cut leaves it: its pages are void"
			   : err == 0 && memcmp(found.store, wanted.store, sizeof found.store) != 0
				   ? "the disk tier belongs to another store: its pages are void"
				   : "the disk tier has other sizes than asked for: its pages are void";
	err = file_begin(t, &wanted);
	if (err == 0)
		return 0;
	(void)refuse(reason, 0, "disk tier '%.300s': cannot be begun: %s", path, err_text(err));
	cure_errno(reason, TIER_REASON_MAX, path, err == -ERR_DISK_FULL ? ENOSPC : err == -ERR_PERMISSION ?
			EACCES : EIO);
	return err;
}

static int options_check(const struct tier_options *o, char *reason)
{
	if (o->group_count == 0 || o->group_count > TIER_GROUP_MAX)
		return refuse(reason, -ERR_OUT_OF_RANGE, "disk tier: %u groups: 1 to %d are possible",
			      o->group_count, TIER_GROUP_MAX);
	for (uint32_t g = 0; g < o->group_count; g++)
		if (o->group[g].page_bytes == 0 || o->group[g].page_bytes > 1ull << 32)
			return refuse(reason, -ERR_OUT_OF_RANGE, "disk tier: pages of %llu bytes",
				      (unsigned long long)o->group[g].page_bytes);
	return 0;
}

int tier_open(const struct tier_options *options, struct tier **out, char *reason,
	      const char **warning)
{
	char path[PATH_BYTES];
	*out = NULL;
	*warning = NULL;
	reason[0] = 0;
	if (sodium_init() < 0)
		return refuse(reason, -ERR_INTERNAL, "disk tier: libsodium does not start");
	TRY(options_check(options, reason));
	struct tier *t = calloc(1, sizeof *t);
	if (t == NULL)
		return refuse(reason, -ERR_MEMORY, "disk tier: no memory");
	t->options = *options;
	t->options.dir = NULL; /* the caller's */
	t->bytes = TIER_BLOCK;
	for (uint32_t g = 0; g < options->group_count; g++) {
		const struct tier_group *group = &options->group[g];
		t->slot_bytes[g] = block_up(group->page_bytes);
		t->entries_at[g] = t->bytes;
		t->bytes += block_up((uint64_t)group->page_count * sizeof(struct tier_entry));
		t->pages_at[g] = t->bytes;
		t->bytes += group->page_count * t->slot_bytes[g];
	}
	snprintf(path, sizeof path, "%s/pages", options->dir);
	t->fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
	int err = 0;
	if (t->fd < 0)
		err = refuse_errno(reason, errno, path);
	if (err == 0)
		err = file_take(t, path, reason, warning);
	if (err != 0)
		tier_close(&t);
	*out = t;
	return err;
}

void tier_close(struct tier **tier)
{
	struct tier *t = *tier;
	if (t == NULL)
		return;
	*tier = NULL;
	if (t->fd >= 0)
		close(t->fd);
	free(t);
}

static void slot_check(const struct tier *t, uint32_t group, uint32_t slot)
{
	CHECK(group < t->options.group_count);
	CHECK(slot < t->options.group[group].page_count);
}

static uint64_t entry_at(const struct tier *t, uint32_t group, uint32_t slot)
{
	return t->entries_at[group] + (uint64_t)slot * sizeof(struct tier_entry);
}

static uint64_t page_at(const struct tier *t, uint32_t group, uint32_t slot)
{
	return t->pages_at[group] + slot * t->slot_bytes[group];
}

static void entry_sum(const struct tier_entry *e, const void *bytes, uint64_t count,
		      uint8_t out[TIER_MAC])
{
	crypto_generichash_state state;
	crypto_generichash_init(&state, NULL, 0, TIER_MAC);
	crypto_generichash_update(&state, (const uint8_t *)e, offsetof(struct tier_entry, sum));
	crypto_generichash_update(&state, bytes, count);
	crypto_generichash_final(&state, out, TIER_MAC);
	sodium_stackzero(4096); /* the hash's last blocks: what is forgotten may not live on there */
}

static void entry_check(const struct tier_entry *e, uint8_t out[TIER_MAC])
{
	crypto_generichash(out, TIER_MAC, (const uint8_t *)e, offsetof(struct tier_entry, check),
			   NULL, 0);
}

static int entry_empty(struct tier *t, uint32_t group, uint32_t slot)
{
	static const struct tier_entry none;
	return write_all(t->fd, &none, sizeof none, entry_at(t, group, slot));
}

/* -ERR_NOT_FOUND, with the reason in *why, unless the entry is one of ours and used. */
static int entry_read(struct tier *t, uint32_t group, uint32_t slot, struct tier_entry *e,
		      const char **why)
{
	uint8_t check[TIER_MAC];
	*why = "the disk cannot be read";
	TRY(read_all(t->fd, e, sizeof *e, entry_at(t, group, slot)));
	*why = "the slot is empty";
	if (e->used == 0)
		return -ERR_NOT_FOUND;
	entry_check(e, check);
	*why = "the slot's entry is damaged";
	if (e->used != 1 || e->group != group || e->slot != slot ||
	    memcmp(check, e->check, sizeof check) != 0)
		return -ERR_NOT_FOUND;
	return 0;
}

/* A test's way to cut a write in two, or the disk's. */
static int page_write(struct tier *t, const void *bytes, uint64_t count, uint64_t at)
{
	struct statvfs fs;
	const long code = fault_pass(FAULT_TIER_WRITE);
	if (code > 0)
		return code_of((int)code);
	if (t->options.reserve_bytes && fstatvfs(t->fd, &fs) == 0 &&
	    fs.f_bavail * fs.f_frsize < t->options.reserve_bytes + count)
		return -ERR_DISK_FULL;
	return write_all(t->fd, bytes, code == FAULT_HALF ? count / 2 : count, at);
}

int tier_put(struct tier *t, uint32_t group, uint32_t slot, const struct tier_proof *proof,
	     const void *bytes)
{
	slot_check(t, group, slot);
	const uint64_t count = t->options.group[group].page_bytes;
	struct tier_entry e = {.used = 1, .group = group, .slot = slot, .proof = *proof};
	e.proof.reserved = 0;
	entry_sum(&e, bytes, count, e.sum);
	entry_check(&e, e.check);
	int err = page_write(t, bytes, count, page_at(t, group, slot));
	if (err == 0)
		err = write_all(t->fd, &e, sizeof e, entry_at(t, group, slot));
	/* The old entry would not match what stands there now; this only spares the reading. */
	if (err != 0)
		(void)entry_empty(t, group, slot);
	return err;
}

static const char *proof_differs(const struct tier_proof *is, const struct tier_proof *want)
{
	const int any = want->content[0] == 0 && want->content[1] == 0;
	if (memcmp(is->model, want->model, sizeof is->model) != 0)
		return "it was made by another model file";
	if (memcmp(is->plan, want->plan, sizeof is->plan) != 0)
		return "it was made under another precision plan";
	if (is->principal != want->principal)
		return "it belongs to another principal";
	if (is->position != want->position || is->tokens != want->tokens)
		return "it stands for other positions";
	if (memcmp(is->chain, want->chain, sizeof is->chain) != 0)
		return "it stands for other tokens";
	if (!any && memcmp(is->content, want->content, sizeof is->content) != 0)
		return "it has another content";
	return NULL;
}

int tier_get(struct tier *t, uint32_t group, uint32_t slot, const struct tier_proof *expected,
	     void *bytes, const char **why)
{
	struct tier_entry e;
	uint8_t sum[TIER_MAC];
	slot_check(t, group, slot);
	const uint64_t count = t->options.group[group].page_bytes;
	TRY(entry_read(t, group, slot, &e, why));
	const char *differs = proof_differs(&e.proof, expected);
	if (differs != NULL) {
		*why = differs;
		return -ERR_NOT_FOUND;
	}
	*why = "the disk cannot be read";
	const long code = fault_pass(FAULT_TIER_READ);
	if (code > 0)
		return code_of((int)code);
	const int err = read_all(t->fd, bytes, count, page_at(t, group, slot));
	if (err == -ERR_IO)
		return err;
	if (code == FAULT_HALF)
		((uint8_t *)bytes)[slot % count] ^= 1;
	*why = "its bytes are not those that were put";
	if (err != 0)
		return -ERR_INTEGRITY;
	entry_sum(&e, bytes, count, sum);
	if (memcmp(sum, e.sum, sizeof sum) != 0)
		return -ERR_INTEGRITY;
	*why = NULL;
	return 0;
}

int tier_drop(struct tier *t, uint32_t group, uint32_t slot)
{
	slot_check(t, group, slot);
	TRY(entry_empty(t, group, slot));
	const off_t at = (off_t)page_at(t, group, slot), count = (off_t)t->slot_bytes[group];
	if (fallocate(t->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, at, count) == 0)
		return 0;
	if (errno != EOPNOTSUPP && errno != ENOSYS)
		return code_of(errno);
	/* A file system without holes: the bytes are written over. */
	static const uint8_t zero[TIER_BLOCK];
	for (off_t i = 0; i < count; i += TIER_BLOCK)
		TRY(write_all(t->fd, zero, sizeof zero, (uint64_t)(at + i)));
	return 0;
}

void tier_harm(struct tier *t, uint32_t group, uint32_t slot, uint64_t bit)
{
	slot_check(t, group, slot);
	const uint64_t at = page_at(t, group, slot) + bit / 8 % t->options.group[group].page_bytes;
	uint8_t byte = 0;
	if (read_all(t->fd, &byte, 1, at) != 0)
		return;
	byte ^= (uint8_t)(1u << bit % 8);
	(void)write_all(t->fd, &byte, 1, at);
}

int tier_scan(struct tier *t, uint32_t group, uint32_t *slot, struct tier_proof *proof)
{
	enum { MANY = 256 };
	struct tier_entry many[MANY];
	uint8_t check[TIER_MAC];
	CHECK(group < t->options.group_count);
	const uint32_t last = t->options.group[group].page_count;
	/* Whoever goes on from one finds the next beside it, as a rule. */
	for (uint32_t at = *slot, n = 1; at < last; at += n, n = MANY) {
		n = last - at < n ? last - at : n;
		TRY(read_all(t->fd, many, n * sizeof many[0], entry_at(t, group, at)));
		for (uint32_t i = 0; i < n; i++) {
			if (many[i].used != 1 || many[i].group != group || many[i].slot != at + i)
				continue;
			entry_check(&many[i], check);
			if (memcmp(check, many[i].check, sizeof check) != 0)
				continue;
			*slot = at + i;
			*proof = many[i].proof;
			return 0;
		}
	}
	return -ERR_NOT_FOUND;
}

void tier_chain(uint64_t out[2], const uint64_t before[2], const uint32_t *tokens,
		const uint8_t *phases, uint32_t count)
{
	crypto_generichash_state state;
	crypto_generichash_init(&state, NULL, 0, 16);
	crypto_generichash_update(&state, (const uint8_t *)before, 16);
	for (uint32_t i = 0; i < count; i++) {
		const uint8_t word[5] = {(uint8_t)tokens[i], (uint8_t)(tokens[i] >> 8),
					 (uint8_t)(tokens[i] >> 16), (uint8_t)(tokens[i] >> 24),
					 phases ? phases[i] : 0};
		crypto_generichash_update(&state, word, sizeof word);
	}
	crypto_generichash_final(&state, (uint8_t *)out, 16);
}
