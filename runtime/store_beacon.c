/*
 * The beacon: a file of 16 places, written whole when it is made, into which a process that is
 * about to end says why. Writing takes no lock and no memory, so it works from any thread and from
 * a signal's handler, also while the writer is inside a transaction. The next boot makes an entry of
 * each place, in the transaction of the boot itself, and then empties it. Behind the places stands of
 * which log the file is: words of another's would be lost for that one, and untrue in this.
 */
#include "config.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/cure.h"
#include "runtime/store_disk.h"
#include "sched/check.h"

enum { BEACON_SLOT_BYTES = 4096, BEACON_BYTES = BEACON_SLOTS * BEACON_SLOT_BYTES, PATH_BYTES = 3100 };

struct beacon_owner {
	char magic[8];
	uint8_t uuid[STORE_UUID];
	uint32_t reserved, crc; /* crc: over what is before it */
};
_Static_assert(sizeof(struct beacon_owner) == 32, "no holes in what is summed");

static const char beacon_magic[8] = "beacon1", owner_magic[8] = "beacons";

static uint32_t slot_crc(const struct beacon_slot *slot)
{
	struct beacon_slot copy = *slot;
	copy.crc = 0;
	return store_crc_bytes(&copy, sizeof copy);
}

static bool slot_read(int fd, unsigned place, struct beacon_slot *slot)
{
	if (pread(fd, slot, sizeof *slot, (off_t)place * BEACON_SLOT_BYTES) != (ssize_t)sizeof *slot)
		return false;
	return memcmp(slot->magic, beacon_magic, sizeof slot->magic) == 0 && slot->crc == slot_crc(slot);
}

/* *whole: it says that it is this log's. One that says nothing is of an older program, or its making was
   cut off, and then nobody has spoken yet. */
static int owner_check(const struct store_disk *disk, int fd, bool *whole, char *reason)
{
	struct beacon_owner owner;
	struct beacon_slot slot;
	bool spoken = false;
	*whole = pread(fd, &owner, sizeof owner, BEACON_BYTES) == (ssize_t)sizeof owner &&
		 memcmp(owner.magic, owner_magic, sizeof owner.magic) == 0 &&
		 owner.crc == store_crc_bytes(&owner, offsetof(struct beacon_owner, crc));
	if (*whole && memcmp(owner.uuid, disk->uuid, STORE_UUID) == 0)
		return 0;
	for (unsigned i = 0; i < BEACON_SLOTS && !*whole && disk->schema == STORE_SCHEMA; i++)
		spoken |= slot_read(fd, i, &slot);
	if (!*whole && !spoken)
		return 0;
	store_refuse(reason, 0, "audit log '%s': the file 'beacon' %s, and must be this log's", disk->dir, *whole
			? "is of another log" : "does not say of which log it is");
	store_cure(reason, "restore the folder from one copy, or, to set that file aside, with what a process "
			"said last in it", "mv @ ^", disk->dir, "beacon");
	return -ERR_INTEGRITY;
}

/* All blocks are there from the first day: a full disk does not keep the last word from being said. */
static int beacon_fill(const struct store_disk *disk)
{
	static const uint8_t zero[BEACON_SLOT_BYTES];
	struct beacon_owner owner = {.reserved = 0};
	struct stat st;
	if (fstat(disk->beacon_fd, &st) != 0)
		return errno;
	/* Words are kept only of a file that was whole. */
	const off_t from = st.st_size >= BEACON_BYTES ? BEACON_BYTES : 0;
	for (off_t at = from; at <= BEACON_BYTES; at += BEACON_SLOT_BYTES) {
		const ssize_t n = pwrite(disk->beacon_fd, zero, sizeof zero, at);
		if (n != (ssize_t)sizeof zero)
			return n < 0 ? errno : ENOSPC;
	}
	memcpy(owner.magic, owner_magic, sizeof owner.magic);
	memcpy(owner.uuid, disk->uuid, STORE_UUID);
	owner.crc = store_crc_bytes(&owner, offsetof(struct beacon_owner, crc));
	const ssize_t n = pwrite(disk->beacon_fd, &owner, sizeof owner, BEACON_BYTES);
	if (n != (ssize_t)sizeof owner)
		return n < 0 ? errno : ENOSPC;
	return fsync(disk->beacon_fd) == 0 ? 0 : errno;
}

static int beacon_refuse(const struct store_disk *disk, int code, char *reason)
{
	char path[PATH_BYTES];
	snprintf(path, sizeof path, "%s/beacon", disk->dir);
	store_refuse(reason, 0, "audit log '%s': the file 'beacon' cannot be used: %s", disk->dir, code == EINVAL
			? "it is not a file" : strerror(code));
	if (reason != NULL)
		cure_errno(reason, STORE_REASON_MAX, path, code == EINVAL ? ENOTDIR : code);
	return code == EINVAL ? -ERR_BAD_FILE : store_code(code);
}

static int beacon_find(const struct store_disk *disk, int flags)
{
	char path[PATH_BYTES];
	snprintf(path, sizeof path, "%s/beacon", disk->dir);
	return open(path, flags | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
}

int beacon_open(struct store_disk *disk, char *reason)
{
	struct stat st;
	bool whole;
	disk->beacon_fd = beacon_find(disk, O_RDWR | O_CREAT | O_DSYNC);
	if (disk->beacon_fd < 0 || fstat(disk->beacon_fd, &st) != 0)
		return beacon_refuse(disk, errno, reason);
	if (!S_ISREG(st.st_mode))
		return beacon_refuse(disk, EINVAL, reason);
	TRY(owner_check(disk, disk->beacon_fd, &whole, reason));
	const int code = whole ? 0 : beacon_fill(disk);
	return code == 0 ? 0 : beacon_refuse(disk, code, reason);
}

int beacon_check(const struct store_disk *disk, char *reason)
{
	bool whole;
	const int fd = beacon_find(disk, O_RDONLY);
	if (fd < 0)
		return errno == ENOENT ? 0 : beacon_refuse(disk, errno, reason);
	const int code = owner_check(disk, fd, &whole, reason);
	close(fd);
	return code;
}

void beacon_write(const struct store_disk *disk, unsigned place, struct beacon_slot *slot)
{
	memcpy(slot->magic, beacon_magic, sizeof slot->magic);
	snprintf(slot->build, sizeof slot->build, "%s", PACKAGE_VERSION);
	slot->mono_ns = store_clock_ns(CLOCK_MONOTONIC);
	slot->wall_ns = store_clock_ns(CLOCK_REALTIME);
	slot->id = slot->mono_ns ^ slot->wall_ns << 20 ^ (uint64_t)getpid() << 48 ^ place;
	slot->crc = slot_crc(slot);
	/* If even this fails, the missing shutdown record is the witness. */
	ssize_t ignored = pwrite(disk->beacon_fd, slot, sizeof *slot,
				 (off_t)(place % BEACON_SLOTS) * BEACON_SLOT_BYTES);
	(void)ignored;
}

bool beacon_read(const struct store_disk *disk, unsigned place, struct beacon_slot *slot)
{
	return slot_read(disk->beacon_fd, place, slot);
}

void beacon_clear(const struct store_disk *disk, unsigned place)
{
	static const struct beacon_slot none;
	/* One that stays is known by its id and not made an entry of again. */
	ssize_t ignored = pwrite(disk->beacon_fd, &none, sizeof none, (off_t)place * BEACON_SLOT_BYTES);
	(void)ignored;
}
