/*
 * The beacon: a file of 16 places, written whole when it is made, into which a process that is
 * about to end says why. Writing takes no lock and no memory, so it works from any thread and from
 * a signal's handler, also while the writer is inside a transaction. The next boot makes an entry of
 * each place, in the transaction of the boot itself, and then empties it.
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

#include "runtime/store_disk.h"
#include "sched/check.h"

enum { BEACON_SLOT_BYTES = 4096, BEACON_BYTES = BEACON_SLOTS * BEACON_SLOT_BYTES, PATH_BYTES = 3100 };

static const char beacon_magic[8] = "beacon1";

static uint32_t slot_crc(const struct beacon_slot *slot)
{
	struct beacon_slot copy = *slot;
	copy.crc = 0;
	return store_crc_bytes(&copy, sizeof copy);
}

/* All blocks are there from the first day: a full disk does not keep the last word from being said. */
static int beacon_fill(int fd)
{
	static const uint8_t zero[BEACON_SLOT_BYTES];
	struct stat st;
	if (fstat(fd, &st) != 0)
		return errno;
	if (!S_ISREG(st.st_mode))
		return EINVAL;
	if (st.st_size == BEACON_BYTES)
		return 0;
	for (off_t at = 0; at < BEACON_BYTES; at += BEACON_SLOT_BYTES) {
		const ssize_t n = pwrite(fd, zero, sizeof zero, at);
		if (n != (ssize_t)sizeof zero)
			return n < 0 ? errno : ENOSPC;
	}
	if (ftruncate(fd, BEACON_BYTES) != 0)
		return errno;
	return fsync(fd) == 0 ? 0 : errno;
}

int beacon_open(struct store_disk *disk, char *reason)
{
	char path[PATH_BYTES];
	snprintf(path, sizeof path, "%s/beacon", disk->dir);
	disk->beacon_fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_DSYNC | O_NONBLOCK, 0600);
	const int code = disk->beacon_fd < 0 ? errno : beacon_fill(disk->beacon_fd);
	if (code == 0)
		return 0;
	return store_refuse(reason, code == EINVAL ? -ERR_BAD_FILE : store_code(code),
			    "audit log '%s': the file 'beacon' cannot be used: %s", disk->dir,
			    code == EINVAL ? "it is not a file" : strerror(code));
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
	if (pread(disk->beacon_fd, slot, sizeof *slot, (off_t)place * BEACON_SLOT_BYTES) !=
	    (ssize_t)sizeof *slot)
		return false;
	return memcmp(slot->magic, beacon_magic, sizeof slot->magic) == 0 && slot->crc == slot_crc(slot);
}

void beacon_clear(const struct store_disk *disk, unsigned place)
{
	static const struct beacon_slot none;
	/* One that stays is known by its id and not made an entry of again. */
	ssize_t ignored = pwrite(disk->beacon_fd, &none, sizeof none, (off_t)place * BEACON_SLOT_BYTES);
	(void)ignored;
}
