/*
 * The ranks of a model that is split (--tensor-parallel): processes that compute one batch together.
 * Rank 0 is the daemon, or the program that was called; the others follow it. Rank 0 starts them on
 * its own machine, or a launcher starts all of them and says in the environment who is who:
 *
 *     RANK, WORLD_SIZE, LOCAL_RANK,
 *     LOCAL_WORLD_SIZE                  or those of Open MPI, PMI (MPICH, Intel) and Slurm
 *     MASTER_ADDR, MASTER_PORT          where rank 0 listens until all are there
 *     HOLDFAST_RANKS_KEY                a secret that all share
 *
 * Devices get the collective of kernels/collective.h with their plan. Ranks of one start meet in shared
 * memory, those of a launcher over TCP, through rank 0. A rank that ends is noticed by the others
 * within about a tenth of a second wherever they wait; then every call is -ERR_INTERNAL for good.
 */
#ifndef HOLDFAST_RUNTIME_RANKS_H
#define HOLDFAST_RUNTIME_RANKS_H

#include <stdbool.h>
#include <stdint.h>

#include "runtime/split.h"

enum { RANKS_REASON_MAX = 300 };

struct ranks;

/* Whether a launcher started this process as one of `count` ranks, and which; nothing is opened. Rank
   0 of 1, not launched, without one. -ERR_BAD_ARG with one line in reason for an environment that
   contradicts `count` or itself. */
struct ranks_place {
	uint32_t rank, local; /* local: which on this machine */
	uint32_t local_count; /* how many are on it, as far as the launcher says; else 1 */
	bool launched;
	char address[256], port[16];
};
int ranks_place(uint32_t count, struct ranks_place *out, char *reason);

/* Starts the others (the caller has one thread yet), or meets them; the child processes of the first
   way return from it too, each with its own rank. reason (RANKS_REASON_MAX): one line. -ERR_IO,
   -ERR_MEMORY, -ERR_BAD_ARG, -ERR_TIMEOUT, -ERR_UNAUTHENTICATED. */
int ranks_start(uint32_t count, struct ranks **out, char *reason);
/* Rank 0 waits for those it started, who were told before (the device's close does); one that does not end in
   the time of the goodbye is ended. */
void ranks_close(struct ranks **ranks);
/* How long the others are waited for when rank 0's device closes, in its telling and in their closing, and
   how long then for their processes to end: RANKS_GOODBYE_MS each if nothing is said. */
enum { RANKS_GOODBYE_MS = 10 * 1000 };
void ranks_goodbye_limit(struct ranks *ranks, uint32_t ms);

uint32_t ranks_rank(const struct ranks *ranks);
uint32_t ranks_count(const struct ranks *ranks);
uint32_t ranks_local(const struct ranks *ranks);
/* How many ranks share this machine's cores, as far as is known. */
uint32_t ranks_local_count(const struct ranks *ranks);
const struct collective *ranks_collective(const struct ranks *ranks);
/* The rank that is gone, or -1; `look` asks the system. Any thread. */
int ranks_gone(struct ranks *ranks, bool look);

/* What each rank says, in the order of the ranks: the first that is no success becomes the result on
   all of them, its line in reason with the rank before it. */
int ranks_agree(struct ranks *ranks, int code, char *reason, size_t room);
/* Whether all have the same bytes; -ERR_BAD_ARG with one line in reason that names `what`. */
int ranks_same(struct ranks *ranks, const void *bytes, size_t count, const char *what, char *reason,
	       size_t room);

/* The table over `inner` that makes one device of all ranks. On rank 0 each of its operations is made
   on all of them; a whole step, as forward_step makes it, is made by the others when rank 0 calls
   `batch`. A page is the ranks' pieces one after another. The plan is that of the whole model with
   kv_own x ranks KV heads; the split is the rank's. Both are the ranks' until they close. */
const struct ops *ranks_ops(struct ranks *ranks, const struct split *split, const struct ops *inner);
/* From here on the others follow: called by all of them when their device is whole. */
void ranks_ready(struct ranks *ranks);
/* On the others: the next thing that rank 0 did. RANKS_STEP: *block is to be computed as a whole step;
   RANKS_DONE: it was done here, or refused as on rank 0; RANKS_END: rank 0 has closed its device. A
   negative code: this rank is of no more use. */
enum ranks_next { RANKS_STEP, RANKS_DONE, RANKS_END };
int ranks_next(struct ranks *ranks, struct device *device, const struct ops_batch **block);

/* This rank can do no more of what the others wait for: the end of all. -ERR_INTERNAL. */
int ranks_give_up(struct ranks *ranks);

/* For tests: `count` ranks in one process, a thread for each. The first makes the memory where they
   meet; ranks_lose says that one is gone. */
struct ranks_room;
int ranks_room_open(uint32_t count, struct ranks_room **out);
void ranks_room_close(struct ranks_room **room);
int ranks_join(struct ranks_room *room, uint32_t rank, struct ranks **out);
void ranks_lose(struct ranks_room *room, uint32_t rank);

#endif
