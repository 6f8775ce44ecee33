/*
 * The disk tier: one file of slots, each of which holds one page and the page's proof. Who uses
 * which slot is the scheduler's business; what stands in a slot is believed only by its proof.
 *
 * A proof says which model file and precision plan made the page, whose it is, which tokens it
 * stands for (a key over every token up to its last) and what its bytes are. A reader names what it
 * expects; a slot that says anything else, or whose bytes are not those that were put, is absent,
 * and the call says why. So a write that was cut off, a file of another store and a flipped bit
 * cost a computation, and never a token.
 *
 * Pages survive a kill of the process; nothing but the head is flushed for a power cut, after which what
 * is not whole is absent.
 *
 * Threads: calls on different slots may run at once; open, close and scan are alone.
 */
#ifndef HOLDFAST_RUNTIME_TIER_H
#define HOLDFAST_RUNTIME_TIER_H

#include <stdint.h>

enum { TIER_REASON_MAX = 2048, TIER_GROUP_MAX = 4 };

struct tier_proof {
	uint8_t model[16];   /* hash of the model file */
	uint8_t plan[16];    /* forward_plan_hash */
	uint64_t chain[2];   /* key over all tokens up to the page's last */
	uint64_t content[2]; /* ops->page_digests of the valid positions, when the page left the device */
	uint64_t tag;        /* the tag that it had there; for messages, not compared */
	uint32_t principal, position, tokens; /* position: of its first token; tokens: that are valid */
	uint32_t reserved;   /* 0 */
};

struct tier_group {
	uint64_t page_bytes;
	uint32_t page_count; /* slots */
};

struct tier_options {
	const char *dir;        /* exists; the file is DIR/pages */
	uint8_t store[16];      /* the store that this tier belongs to; another one's is void */
	uint64_t reserve_bytes; /* a put leaves so much of the file system free, for the audit log */
	uint32_t group_count;
	struct tier_group group[TIER_GROUP_MAX];
};

struct tier;

/* Opens or makes the file, and locks it (-ERR_IN_USE). A file of ours with other sizes or of
   another store is begun anew, and *warning (static text, or NULL) says so: its pages could not be
   used. What is not ours is refused and left as it is (-ERR_BAD_FILE). reason: TIER_REASON_MAX. */
int tier_open(const struct tier_options *options, struct tier **out, char *reason,
	      const char **warning);
void tier_close(struct tier **tier);

/* Writes the page into the slot; whatever stood there is gone, also if this fails. -ERR_DISK_FULL,
   -ERR_IO: the slot is empty. */
int tier_put(struct tier *tier, uint32_t group, uint32_t slot, const struct tier_proof *proof,
	     const void *bytes);
/* Reads the slot if it proves to be what is expected: model, plan, chain, content (unless expected
   as 0, 0), principal, position, tokens. -ERR_NOT_FOUND: the slot is empty or says something else;
   -ERR_INTEGRITY: its bytes are not those that were put; -ERR_IO. *why is static text. */
int tier_get(struct tier *tier, uint32_t group, uint32_t slot, const struct tier_proof *expected,
	     void *bytes, const char **why);
/* Empties the slot and gives its space back to the file system: nothing of it stays in the file. */
int tier_drop(struct tier *tier, uint32_t group, uint32_t slot);
/* Turns bit `bit`, counted around, of what stands in the slot: a fault on purpose. */
void tier_harm(struct tier *tier, uint32_t group, uint32_t slot, uint64_t bit);
/* The first slot from *slot on that holds a page, by its proof; the bytes are not read.
   -ERR_NOT_FOUND: there is none. For the start. */
int tier_scan(struct tier *tier, uint32_t group, uint32_t *slot, struct tier_proof *proof);

/* The key of the chain's next page: all before it, then this page's tokens with the bit of each
   token's plan (0 given, 1 sampled). The first page's `before` is {0, 0}. */
void tier_chain(uint64_t out[2], const uint64_t before[2], const uint32_t *tokens,
		const uint8_t *phases, uint32_t count);

#endif
