/*
 * Where each DATA ended, in the file `streams`: it is written before the DATA is sent and never flushed, so
 * it outlives the process, and a stream goes on without gap or repeat. A DATA whose mark cannot be written is
 * not sent, unless its cuts are on the disk with the answer. After a power cut the marks are not relied on: a
 * stream of before begins anew.
 *
 * The file is mapped, since a system call for each DATA would be a third of what one costs. What is written
 * there has its blocks first, so that a full disk is an error of fallocate and not a signal; not on Btrfs,
 * which writes a block anew each time, so nothing is mapped there.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <sodium.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "runtime/cure.h"
#include "runtime/fault.h"
#include "runtime/keep.h"

enum { ROOM_BYTES = 16 << 10 /* blocks that a call gets at a time */ };

struct kept_mark {
	uint64_t op;
	uint32_t seq, tokens, bytes, check;
};

static uint64_t op_word(const struct wire_id *op)
{
	uint64_t word;
	memcpy(&word, op->bytes, sizeof word);
	return word;
}

static uint32_t mark_check(const struct kept_mark *m)
{
	return (uint32_t)m->op ^ (uint32_t)(m->op >> 32) ^ m->seq * 0x9e3779b1u ^ m->tokens * 0x85ebca6bu ^
	       m->bytes;
}

/* A slot's part of the file begins here. */
static uint64_t part_at(const struct daemon *d, uint32_t call)
{
	return (uint64_t)call * d->limits.context_tokens * sizeof(struct kept_mark);
}

static uint64_t mark_at(const struct daemon *d, uint32_t call, uint64_t seq)
{
	return part_at(d, call) + (seq - 1) * sizeof(struct kept_mark);
}

/* Without a map each mark is a system call, and nothing else changes. */
static void streams_map(struct daemon *d, uint64_t size)
{
	const uint64_t whole = part_at(d, (uint32_t)d->options.calls);
	struct statfs on;
	if (fstatfs(d->streams, &on) != 0 || on.f_type == BTRFS_SUPER_MAGIC)
		return;
	if (size < whole && ftruncate(d->streams, (off_t)whole) != 0)
		return;
	void *at = mmap(NULL, whole, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, d->streams, 0);
	d->marks = at == MAP_FAILED ? NULL : at;
}

/* Of the running kernel: marks that it has written are there as long as it runs. Where it cannot be asked
   each process has a number of its own, so that no stream of before is joined in its middle. */
static uint32_t kernel_boot(void)
{
	uint8_t text[64];
	const int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? 0 : read(fd, text, sizeof text);
	uint32_t boot = 2166136261u;
	if (n <= 0) {
		n = sizeof text;
		randombytes_buf(text, sizeof text);
	}
	for (ssize_t i = 0; i < n; i++)
		boot = (boot ^ text[i]) * 16777619u;
	if (fd >= 0)
		close(fd);
	return boot | 1;
}

int keep_streams_open(struct daemon *d)
{
	char path[OPTIONS_PATH_MAX + 16];
	struct stat st;
	d->kernel_boot = kernel_boot();
	snprintf(path, sizeof path, "%s/streams", d->options.state);
	d->streams = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
	if (d->streams >= 0 && fstat(d->streams, &st) == 0 && S_ISREG(st.st_mode)) {
		streams_map(d, (uint64_t)st.st_size);
		return 0;
	}
	char line[LOG_LINE_MAX];
	const int error = d->streams < 0 ? errno : ENOTDIR;
	snprintf(line, sizeof line, "the file streams in %.400s cannot be used: %s", d->options.state,
		 d->streams < 0 ? strerror(error) : "it is not a file, and must be one");
	cure_errno(line, sizeof line, path, error);
	log_say(LOG_ERROR, "%s", line);
	return -ERR_BAD_FILE;
}

void keep_streams_close(struct daemon *d)
{
	if (d->marks)
		munmap(d->marks, part_at(d, (uint32_t)d->options.calls));
	d->marks = NULL;
}

/* The blocks of the mark at `at` are there. */
static bool room(struct daemon *d, uint32_t call, uint64_t at)
{
	struct call *c = &d->calls[call];
	const uint64_t end = part_at(d, call + 1);
	if (!d->marks)
		return false;
	if (at + sizeof(struct kept_mark) <= c->marks_room)
		return true;
	const uint64_t most = end - at < ROOM_BYTES ? end - at : ROOM_BYTES;
	if (fallocate(d->streams, 0, (off_t)at, (off_t)most) != 0)
		return false;
	c->marks_room = at + most;
	return true;
}

void keep_sent_soon(const struct daemon *d, uint32_t call)
{
	if (d->marks)
		__builtin_prefetch(d->marks + mark_at(d, call, d->calls[call].marked + 1), 1);
}

bool keep_sent(struct daemon *d, uint32_t call, uint64_t seq, const struct sent_mark *mark)
{
	struct call *c = &d->calls[call];
	if (d->streams < 0 || !c->kept || seq <= c->marked)
		return true;
	if (seq != c->marked + 1)
		return false;
	const uint64_t at = mark_at(d, call, seq);
	struct kept_mark m = {op_word(&c->op), (uint32_t)seq, mark->tokens, mark->bytes, 0};
	m.check = mark_check(&m);
	/* Never flushed, but a disk that hangs may have the page, or the blocks that are asked of it. */
	guard_begin(d->guard, "the file streams");
	if (fault_pass(FAULT_MARK) != 0) {
		guard_end(d->guard);
		return false;
	}
	if (room(d, call, at)) {
		memcpy(d->marks + at, &m, sizeof m);
		c->marked = seq;
	} else if (pwrite(d->streams, &m, sizeof m, (off_t)at) == (ssize_t)sizeof m) {
		c->marked = seq;
	}
	guard_end(d->guard);
	return c->marked == seq;
}

void keep_marks_restore(struct daemon *d, uint32_t call)
{
	struct call *c = &d->calls[call];
	struct kept_mark m, before = {0};
	uint64_t seq = c->seq_made + 1;
	if (c->seq_made) {
		before.tokens = c->sent[c->seq_made - 1].tokens;
		before.bytes = c->sent[c->seq_made - 1].bytes;
	}
	for (; seq <= d->limits.context_tokens; seq++) {
		if (pread(d->streams, &m, sizeof m, (off_t)mark_at(d, call, seq)) != (ssize_t)sizeof m ||
		    m.op != op_word(&c->op) || m.seq != seq || m.check != mark_check(&m) ||
		    m.tokens < before.tokens || m.bytes < before.bytes || m.tokens > d->limits.context_tokens)
			break;
		before = m;
		c->sent[seq - 1] = (struct sent_mark){m.tokens, m.bytes};
	}
	c->seq_made = c->marked = seq - 1;
	c->made_tokens = c->seq_made ? c->sent[c->seq_made - 1].tokens : 0;
}
