/*
 * What the clients of tests/fuzz_loop.c know, and hold against what the daemon sends them: each call's
 * answer, in order, once, within its credit, and the same whenever it is sent again.
 */
#ifndef HOLDFAST_TESTS_FUZZ_WORLD_H
#define HOLDFAST_TESTS_FUZZ_WORLD_H

#include "runtime/daemon.h"

enum { CLIENTS = 6, PRINCIPALS = 2, OWED_MAX_CALLS = 4096, OPS = 512, SESSIONS = 32, OFFS = 256 };

/* A call as its client knows it. */
struct owed_call {
	bool used, accepted, dup, must; /* must: it may not be refused */
	uint32_t client;
	uint64_t channel, seq, off, window;
	struct wire_id op;
	uint8_t method;
	struct wire_id sess;
	uint64_t after_seq; /* of a RESUME */
};

/* Where each DATA of an op ended, and what it was; and how far each client let it go. */
struct known_op {
	struct wire_id op;
	uint32_t principal;
	uint64_t seqs, granted[CLIENTS];
	uint32_t off[OFFS], sum[OFFS];
};

struct world {
	struct owed_call calls[OWED_MAX_CALLS];
	struct known_op ops[OPS];
	uint32_t op_next;
	struct wire_id sessions[PRINCIPALS][SESSIONS];
	uint32_t session_next[PRINCIPALS];
	uint64_t channel[CLIENTS], cancelled[CLIENTS];
	bool unknown[CLIENTS]; /* it is told to say HELLO */
	bool here[CLIENTS]; /* it has a place among the peers */
	bool stuck[CLIENTS], lost[CLIENTS]; /* its pipe is full; it is gone, and the daemon does not know */
	bool refused[CLIENTS]; /* what was last sent to it found no room */
	uint64_t messages, ends, data, rejects, resumed, lives, kills, found;
	uint32_t lag; /* the log falls behind for so many turns of the loop */
	bool quiet;
	uint64_t digest; /* of all that was sent */
};
extern struct world world;
extern struct daemon daemon_;
/* The first thing that was not as it should be; NULL. */
extern const char *wrong;

struct known_op *op_find(const struct wire_id *op);
struct owed_call *call_find(uint32_t client, uint64_t channel);
/* Whoever reads it no more is owed nothing. How much that was. */
uint32_t client_gone(uint32_t client);
/* Who had a place among the peers and was let go is owed nothing. Nobody is who reads and has a call: those
   give up their place who do not take what is sent, and those to whom nothing is owed. */
void places_look(void);
/* In the place of the sockets. */
int world_sink(struct daemon *d, uint32_t peer, const struct wire_header *h, const void *body, size_t length,
	       const void *blob, size_t blob_length);
/* How many calls wait for their END. Those that do are printed. */
uint32_t still_owed(void);
void owed_print(void);

#endif
