/*
 * Inside the ranks: ranks.c (who they are, starting and agreeing), ranks_room.c (shared memory),
 * ranks_stream.c (TCP), ranks_ops.c (one device of all). Nobody else includes this.
 */
#ifndef HOLDFAST_RUNTIME_RANKS_INSIDE_H
#define HOLDFAST_RUNTIME_RANKS_INSIDE_H

#include <stdatomic.h>
#include <sys/types.h>

#include "runtime/ranks.h"

struct ranks {
	struct collective collective;
	uint32_t rank, count, local, local_count;
	pid_t parent;                      /* of a started one; 0: none */
	pid_t child[SPLIT_RANKS_MAX];      /* on rank 0: those it started; 0: none */
	atomic_int gone;                   /* the rank that is lost, + 1; 0: none */
	/* Shared memory. */
	struct ranks_room *room;
	bool room_owned;
	uint32_t turn;                     /* which half of a rank's slot is next */
	/* TCP: rank 0 has all of them, the others have rank 0's at 0. -1: none. */
	int fd[SPLIT_RANKS_MAX];
	uint8_t *stream; /* rank 0's room to put pieces together */
	size_t stream_bytes;
	/* One device of all. */
	struct ops table;
	const struct ops *inner;
	struct split split;
	bool ready;
	bool ending; /* rank 0 has closed its device, and said so */
	bool late;   /* on rank 0: not all were there at the goodbye */
	uint32_t goodbye_ms; /* 0: as ranks.h has it */
	int64_t until_ms;    /* in shared memory: the others are waited for until then; 0: without end */
	uint8_t *block; /* on the others: the batch */
	size_t block_bytes;
};

void room_collective(struct ranks *ranks);
void stream_collective(struct ranks *ranks);
/* From now on an answer of another rank over TCP is waited for so long at most. */
void stream_patience(struct ranks *ranks, uint32_t ms);
/* From now on the others are waited for until so much later, and then a call is -ERR_TIMEOUT. */
void room_patience(struct ranks *ranks, uint32_t ms);
/* Meets the others over TCP as the place says. */
int stream_meet(struct ranks *ranks, const struct ranks_place *place, char *reason);

/* A rank is gone: noted once, said once. */
int ranks_lost(struct ranks *ranks, uint32_t rank);
/* The rank that the system says is gone, or -1; it is not noted. */
int ranks_look(const struct ranks *ranks);
/* The collective's `alive`. */
int ranks_alive(void *self);

#endif
