/*
 * Stands in the place of the C library's recv, for libzmq, which reads each connection with it in a thread of
 * its own. Bytes are counted by descriptor, from one whole message that the loop took to the next, and for
 * each ZMTP frame what the library keeps beside its bytes (RFC 23: a greeting of 64 bytes, then flags, a
 * length of one byte or eight, and so many bytes); a connection beyond the bound is told to the library as
 * one that was reset, and takes its memory along.
 *
 * What came behind a message before that was taken is not counted, so that the bound is of about so many
 * bytes: the flow of one turn of the loop may come on top.
 */
#include "config.h"

#include "runtime/intake.h"

#include <errno.h>
#include <stdatomic.h>
#include <stddef.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { DESCRIPTORS = 1 << 17, GREETING = 64, FRAME_COST = 64, FRAME_LONG = 2 };

/* 0: not a connection of ours; else one more than the bytes that came. */
static _Atomic uint64_t unread[DESCRIPTORS];
/* Where in its frames a connection is. The library's thread alone touches it, once it reads. */
static struct frames {
	uint64_t skip; /* bytes until the next frame's head */
	uint64_t size;
	uint8_t left;  /* of the head: 0: its flags come next */
} frames[DESCRIPTORS];
static _Atomic int reader[DESCRIPTORS]; /* the thread that reads it */
static uint64_t limit;
static _Atomic uint64_t closed;

void intake_limit(uint64_t bytes)
{
	limit = bytes;
}

void intake_begin(int fd)
{
	if (fd < 0 || fd >= DESCRIPTORS)
		return;
	frames[fd] = (struct frames){.skip = GREETING};
	atomic_store(&unread[fd], 1);
}

/* How many frames begin in these bytes. */
static uint64_t frames_count(struct frames *f, const uint8_t *at, size_t bytes)
{
	uint64_t count = 0;
	for (size_t i = 0; i < bytes;) {
		if (f->skip) {
			const uint64_t some = f->skip < bytes - i ? f->skip : bytes - i;
			f->skip -= some;
			i += (size_t)some;
			continue;
		}
		const uint8_t byte = at[i++];
		if (f->left == 0) {
			f->left = byte & FRAME_LONG ? 8 : 1;
			f->size = 0;
			count++;
			continue;
		}
		f->size = f->size << 8 | byte;
		if (--f->left == 0)
			f->skip = f->size;
	}
	return count;
}

void intake_taken(int fd)
{
	if (fd >= 0 && fd < DESCRIPTORS && atomic_load(&unread[fd]))
		atomic_store(&unread[fd], 1);
}

int intake_thread(int fd)
{
	return fd >= 0 && fd < DESCRIPTORS ? atomic_load_explicit(&reader[fd], memory_order_relaxed) : 0;
}

uint64_t intake_closed(void)
{
	return atomic_load(&closed);
}

ssize_t recv(int fd, void *buffer, size_t bytes, int flags)
{
	static _Thread_local int self;
	const ssize_t n = (ssize_t)syscall(SYS_recvfrom, fd, buffer, bytes, flags, NULL, NULL);
	if (n > 0 && fd >= 0 && fd < DESCRIPTORS) {
		self = self ? self : (int)syscall(SYS_gettid);
		atomic_store_explicit(&reader[fd], self, memory_order_relaxed);
	}
	if (n <= 0 || fd < 0 || fd >= DESCRIPTORS || !limit || !atomic_load(&unread[fd]))
		return n;
	const uint64_t cost = (uint64_t)n + frames_count(&frames[fd], buffer, (size_t)n) * FRAME_COST;
	if (atomic_fetch_add(&unread[fd], cost) + cost <= limit)
		return n;
	atomic_store(&unread[fd], 0);
	atomic_fetch_add(&closed, 1);
	errno = ECONNRESET;
	return -1;
}
