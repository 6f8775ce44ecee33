/*
 * What the parts of the self-test share. All of it lies in memory that outlives a process: each life
 * of the daemon is a child, and may end at any moment.
 */
#ifndef HOLDFAST_RUNTIME_SELFTEST_INSIDE_H
#define HOLDFAST_RUNTIME_SELFTEST_INSIDE_H

#include "runtime/daemon.h"
#include "runtime/fault.h"

enum { SESSIONS = 6, TURNS = 3, OUTPUT = 12, PROMPT_MAX = 96 };

struct player {
	struct wire_id id;
	uint32_t prompt[TURNS][PROMPT_MAX], prompt_count[TURNS];
	uint32_t right[TURNS][OUTPUT];
	uint32_t history[TURNS + 1]; /* after so many turns; known from the first play on */
	uint32_t done, most;         /* turns that were answered; before some of them were asked again */
	bool opened, closing;
	bool outside;                /* a bit was turned in a page while it was read: its tokens may be any */
	/* The call in hand. */
	uint64_t channel;
	uint32_t got[OUTPUT], got_count, turn, tries;
	bool waits, ended, later;    /* later: refused for now, to be asked again */
};

struct selftest {
	struct daemon daemon;
	struct options options;
	struct player player[SESSIONS];
	uint64_t channel, random;
	bool live;             /* --outside: bits are turned in pages that are being read, too */
	bool learning;         /* the first play, without faults, says what is right */
	uint64_t faults;       /* wanted */
	/* Of all lives so far; of the one that runs, the daemon's own counts and `world`. */
	uint64_t kinds[INJECT_COUNT], kind_world, kind_row, kind_tier, kind_ends;
	uint64_t by_tag, by_digest, by_lower, by_row, by_proof, undetected;
	uint64_t tokens, tokens_wrong, tokens_outside, sessions_lost, refused, steps_to_detection, lives;
	uint64_t world;        /* of this life: faults of disk and clock, or rows written wrong */
	bool rows;             /* a life of the latter */
	bool places;           /* pages can go down */
	int code;              /* how the last life ended */
	char dir[64];
};
extern struct selftest *selftest;

uint64_t selftest_draw(uint64_t below);
/* Faults in this life and before it. */
uint64_t selftest_injected(void);

/* A life's parts, in the child. Each plays with the daemon that is open. */
int selftest_sink(struct daemon *d, uint32_t peer, const struct wire_header *h, const void *body,
		  size_t length, const void *blob, size_t blob_length);
/* Told by the daemon whose page was harmed while it was read. */
void selftest_outside(struct daemon *d, uint32_t session);
/* Every session opened, and every turn of it; then closed. */
int selftest_round(void);
int selftest_close(void);
/* The sessions that the last life left: each must be there with its history, and says its last turn
   again from what it has. Then they are closed. */
int selftest_left(void);

#endif
