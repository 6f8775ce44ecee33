/*
 * `--inject SPEC`: faults made on purpose while the daemon serves, to see what finds them. Off unless
 * asked for, and loud when on.
 *
 * SPEC is a list with commas: `NAME@N` makes the fault at its N-th chance, `NAME/N` at one chance in
 * N, `seed=N` chooses which. Points of runtime/fault.h take what shall happen as well:
 * `commit@3=crash`, `tier-write/100=enospc`, `put@5=wait:200`; one of eio, enospc, half, crash,
 * wait:MS.
 */
#ifndef HOLDFAST_RUNTIME_INJECT_H
#define HOLDFAST_RUNTIME_INJECT_H

#include <stdbool.h>
#include <stdint.h>

enum { INJECT_REASON_MAX = 160 };

enum inject_kind {
	INJECT_TAG_DEVICE, /* the tag beside a page of the batch */
	INJECT_TAG_TABLE,  /* the tag that the batch expects */
	INJECT_SWAP,       /* two page ids in a block table */
	INJECT_DOUBLE,     /* a page of the batch is given to another owner too */
	INJECT_EARLY,      /* ... and cleared, as if its owner had freed it */
	INJECT_SKIP,       /* the release of a page is not recorded */
	INJECT_BITS_IDLE,  /* a bit of a page at rest */
	INJECT_BITS_LIVE,  /* a bit of a page that is being read: outside of what is found */
	INJECT_BITS_HOST,  /* a bit of a page in host memory, before it comes back */
	INJECT_BITS_DISK,  /* a bit of a page in the disk tier's file, before it comes back */
	INJECT_COPY_SKIP,  /* a copy down that moves nothing, and says that it is done */
	INJECT_COPY_LATE,  /* a copy with the device, up or down, that takes 50 ms longer */
	INJECT_COUNT
};

struct inject {
	bool on;
	uint64_t random;
	struct { uint32_t at, one_in, chances; } rule[INJECT_COUNT];
	uint64_t made[INJECT_COUNT];
};

/* Reads SPEC and sets the points' table. -ERR_BAD_ARG with one line in reason. NULL or "": all off. */
int inject_read(const char *spec, struct inject *out, char *reason);
/* Whether this chance is one; counts it as made. */
bool inject_now(struct inject *inject, enum inject_kind kind);
uint64_t inject_random(struct inject *inject, uint64_t below);
const char *inject_name(enum inject_kind kind);

#endif
