/*
 * Ranks that a launcher started meet over TCP, through rank 0: it takes every piece and gives back the
 * sum or the whole. That is slower than shared memory and much slower than NCCL, and asks nothing of
 * the machines but that they reach rank 0. What a GPU sums goes over NCCL where the build has it.
 *
 * Whoever comes must know the group's secret before anything else is read of him: both sides prove it
 * over the other's random bytes. What is sent after that is not encrypted; the network is the ranks'
 * own, as it is for NCCL.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "runtime/ranks_inside.h"

enum { MEET_S = 300, HELLO_S = 5, KEY_BYTES_MIN = 16, STREAM_VERSION = 1 };

/* What each side says of itself; proof is a keyed hash of the other's nonce and all that stands before. */
struct hello {
	char magic[8];
	uint32_t version, count, rank, reserved;
	uint8_t nonce[32], proof[32];
};

/* Either of from and to. */
static int bytes_move(int fd, const uint8_t *from, uint8_t *to, size_t count)
{
	for (size_t at = 0; at < count;) {
		const ssize_t n = from ? send(fd, from + at, count - at, MSG_NOSIGNAL)
				       : recv(fd, to + at, count - at, 0);
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return -ERR_INTERNAL;
		at += (size_t)n;
	}
	return 0;
}

static int bytes_send(int fd, const void *from, size_t count)
{
	return bytes_move(fd, from, NULL, count);
}

static int bytes_take(int fd, void *to, size_t count)
{
	return bytes_move(fd, NULL, to, count);
}

static int room_for(struct ranks *r, size_t bytes)
{
	if (bytes <= r->stream_bytes)
		return 0;
	uint8_t *room = realloc(r->stream, bytes);
	if (!room)
		return -ERR_MEMORY;
	r->stream = room;
	r->stream_bytes = bytes;
	return 0;
}

/* On rank 0: to all others. */
static int to_all(struct ranks *r, const void *bytes, size_t count)
{
	for (uint32_t i = 1; i < r->count; i++)
		if (bytes_send(r->fd[i], bytes, count) != 0)
			return ranks_lost(r, i);
	return 0;
}

static int stream_sum(void *self, float *x, size_t count)
{
	struct ranks *r = self;
	const size_t bytes = count * sizeof *x;
	if (ranks_gone(r, false) >= 0)
		return -ERR_INTERNAL;
	if (r->rank != 0) {
		if (bytes_send(r->fd[0], x, bytes) != 0 || bytes_take(r->fd[0], x, bytes) != 0)
			return ranks_lost(r, 0);
		return 0;
	}
	if (room_for(r, bytes) != 0)
		return ranks_lost(r, 0); /* the others wait for what does not come */
	for (uint32_t i = 1; i < r->count; i++) {
		const float *y = (const float *)(const void *)r->stream;
		if (bytes_take(r->fd[i], r->stream, bytes) != 0)
			return ranks_lost(r, i);
		for (size_t k = 0; k < count; k++)
			x[k] += y[k];
	}
	return to_all(r, x, bytes);
}

static int stream_gather(void *self, const void *mine, size_t bytes, void *all)
{
	struct ranks *r = self;
	if (ranks_gone(r, false) >= 0)
		return -ERR_INTERNAL;
	if (r->rank != 0) {
		if (bytes_send(r->fd[0], mine, bytes) != 0 || bytes_take(r->fd[0], all, bytes * r->count) != 0)
			return ranks_lost(r, 0);
		return 0;
	}
	memcpy(all, mine, bytes);
	for (uint32_t i = 1; i < r->count; i++)
		if (bytes_take(r->fd[i], (uint8_t *)all + i * bytes, bytes) != 0)
			return ranks_lost(r, i);
	return to_all(r, all, bytes * r->count);
}

static int stream_broadcast(void *self, void *bytes, size_t count)
{
	struct ranks *r = self;
	if (ranks_gone(r, false) >= 0)
		return -ERR_INTERNAL;
	if (r->rank == 0)
		return to_all(r, bytes, count);
	return bytes_take(r->fd[0], bytes, count) == 0 ? 0 : ranks_lost(r, 0);
}

void stream_collective(struct ranks *r)
{
	r->collective = (struct collective){r, stream_sum, stream_gather, stream_broadcast,
					    ranks_alive};
}

/* ---- meeting ---- */

static int64_t now_s(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec;
}

static void patience(int fd, uint32_t ms)
{
	const struct timeval time = {.tv_sec = ms / 1000, .tv_usec = ms % 1000 * 1000};
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time);
	setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &time, sizeof time);
}

void stream_patience(struct ranks *r, uint32_t ms)
{
	for (uint32_t i = 0; i < SPLIT_RANKS_MAX; i++)
		if (r->fd[i] >= 0)
			patience(r->fd[i], ms);
}

/* A machine that is gone says nothing more: after half a minute without a sign it counts as ended. */
static void lively(int fd)
{
	const int on = 1, idle = 10, every = 5, times = 4, most_ms = 30000;
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
	setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
	setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
	setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &every, sizeof every);
	setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &times, sizeof times);
	setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &most_ms, sizeof most_ms);
	patience(fd, 0);
}

static void key_of(const char *secret, uint8_t key[32])
{
	crypto_generichash(key, 32, (const uint8_t *)secret, strlen(secret), NULL, 0);
}

static void hello_make(const struct ranks *r, struct hello *h)
{
	*h = (struct hello){.magic = "HFRANKS", .version = STREAM_VERSION, .count = r->count, .rank = r->rank};
	randombytes_buf(h->nonce, sizeof h->nonce);
}

static void proof_make(const struct hello *h, const uint8_t nonce[32], const uint8_t key[32], uint8_t out[32])
{
	crypto_generichash_state state;
	crypto_generichash_init(&state, key, 32, 32);
	crypto_generichash_update(&state, nonce, 32);
	crypto_generichash_update(&state, (const uint8_t *)h, offsetof(struct hello, proof));
	crypto_generichash_final(&state, out, 32);
}

static bool hello_right(const struct ranks *r, const struct hello *h, const uint8_t nonce[32],
			const uint8_t key[32])
{
	uint8_t proof[32];
	proof_make(h, nonce, key, proof);
	return memcmp(h->magic, "HFRANKS", 8) == 0 && h->version == STREAM_VERSION && h->count == r->count &&
	       h->rank < r->count && sodium_memcmp(proof, h->proof, 32) == 0;
}

/* Whole within the socket's patience: who sends a byte now and then does not keep rank 0 from the others. */
static int hello_take(int fd, void *to, size_t count)
{
	return recv(fd, to, count, MSG_WAITALL) == (ssize_t)count ? 0 : -ERR_INTERNAL;
}

/* Both nonces, then both proofs. Rank 0 learns who it is. */
static int handshake(struct ranks *r, int fd, const uint8_t key[32], uint32_t *rank)
{
	struct hello mine, other;
	uint8_t nonce[32];
	hello_make(r, &mine);
	TRY(bytes_send(fd, mine.nonce, sizeof mine.nonce));
	TRY(hello_take(fd, nonce, sizeof nonce));
	/* A proof over a nonce of one's own, sent back, proves nothing. */
	if (sodium_memcmp(nonce, mine.nonce, sizeof nonce) == 0)
		return -ERR_UNAUTHENTICATED;
	if (r->rank != 0) {
		proof_make(&mine, nonce, key, mine.proof);
		TRY(bytes_send(fd, &mine, sizeof mine));
	}
	TRY(hello_take(fd, &other, sizeof other));
	if (!hello_right(r, &other, mine.nonce, key) || (other.rank == 0) == (r->rank == 0))
		return -ERR_UNAUTHENTICATED;
	if (r->rank == 0) {
		proof_make(&mine, nonce, key, mine.proof);
		TRY(bytes_send(fd, &mine, sizeof mine));
	}
	*rank = other.rank;
	return 0;
}

static int meet_listen(const struct addrinfo *at, char *reason)
{
	const int on = 1, fd = socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (fd >= 0)
		setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
	if (fd < 0 || bind(fd, at->ai_addr, at->ai_addrlen) != 0 || listen(fd, SPLIT_RANKS_MAX) != 0) {
		snprintf(reason, RANKS_REASON_MAX, "rank 0 cannot listen at MASTER_ADDR and MASTER_PORT: %s",
			 strerror(errno));
		if (fd >= 0)
			close(fd);
		return -ERR_IO;
	}
	return fd;
}

/* Takes the others as they come; who cannot prove himself is let go and changes nothing. */
static int meet_others(struct ranks *r, const struct addrinfo *at, const uint8_t key[32], char *reason)
{
	const int listener = meet_listen(at, reason);
	const int64_t until = now_s() + MEET_S;
	uint32_t there = 1;
	if (listener < 0)
		return listener;
	while (there < r->count && now_s() < until) {
		struct pollfd p = {.fd = listener, .events = POLLIN};
		uint32_t rank;
		if (poll(&p, 1, 1000) <= 0)
			continue;
		const int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
		if (fd < 0)
			continue;
		patience(fd, HELLO_S * 1000);
		if (handshake(r, fd, key, &rank) != 0 || r->fd[rank] >= 0) {
			close(fd);
			continue;
		}
		lively(fd);
		r->fd[rank] = fd;
		there++;
	}
	close(listener);
	if (there == r->count)
		return 0;
	snprintf(reason, RANKS_REASON_MAX, "after %d s only %u of %u ranks are here", MEET_S, there, r->count);
	return -ERR_TIMEOUT;
}

/* Rank 0 may not listen yet: tried again for a while. */
static int meet_first(struct ranks *r, const struct addrinfo *at, const uint8_t key[32], char *reason)
{
	const int64_t until = now_s() + MEET_S;
	const struct timespec pause = {.tv_nsec = 100 * 1000 * 1000};
	for (;;) {
		uint32_t rank;
		int code = -ERR_IO;
		const int fd = socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
		if (fd >= 0)
			patience(fd, HELLO_S * 1000);
		if (fd >= 0 && connect(fd, at->ai_addr, at->ai_addrlen) == 0) {
			patience(fd, MEET_S * 1000); /* rank 0 takes one after another */
			code = handshake(r, fd, key, &rank);
			if (code == 0) {
				lively(fd);
				r->fd[0] = fd;
				return 0;
			}
		}
		if (fd >= 0)
			close(fd);
		if (code == -ERR_UNAUTHENTICATED || code == -ERR_INTERNAL) {
			snprintf(reason, RANKS_REASON_MAX, "rank 0 did not take rank %u: another secret "
				 "(HOLDFAST_RANKS_KEY), another number of ranks, or another build", r->rank);
			return -ERR_UNAUTHENTICATED;
		}
		if (now_s() >= until) {
			snprintf(reason, RANKS_REASON_MAX, "rank 0 is not reached at MASTER_ADDR and MASTER_PORT");
			return -ERR_TIMEOUT;
		}
		nanosleep(&pause, NULL);
	}
}

int stream_meet(struct ranks *r, const struct ranks_place *place, char *reason)
{
	const char *secret = getenv("HOLDFAST_RANKS_KEY");
	const struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
	struct addrinfo *at = NULL;
	uint8_t key[32];
	if (sodium_init() < 0)
		return -ERR_INTERNAL;
	if (getaddrinfo(place->address, place->port, &hints, &at) != 0 || !at) {
		snprintf(reason, RANKS_REASON_MAX, "MASTER_ADDR and MASTER_PORT are not an address");
		return -ERR_BAD_ARG;
	}
	int code = -ERR_UNAUTHENTICATED;
	/* On this machine too: its other users reach the port as well. */
	if (!secret || strlen(secret) < KEY_BYTES_MIN)
		snprintf(reason, RANKS_REASON_MAX, "set HOLDFAST_RANKS_KEY to a secret of %d bytes or more, the "
			 "same for all ranks", KEY_BYTES_MIN);
	else
		code = 0;
	key_of(secret ? secret : "", key);
	if (code == 0)
		code = r->rank == 0 ? meet_others(r, at, key, reason) : meet_first(r, at, key, reason);
	freeaddrinfo(at);
	sodium_memzero(key, sizeof key);
	stream_collective(r);
	return code;
}
