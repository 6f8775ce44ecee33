/*
 * What libzmq alone takes: a thread in the engine's place, one in the loop's that does nothing but send, and
 * a ROUTER. Messages have as many frames and bytes as DATA of one token, and a body that is DATA's.
 */
#ifndef HOLDFAST_TESTS_BENCH_BARE_H
#define HOLDFAST_TESTS_BENCH_BARE_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>
#include <zmq.h>

#include "clients/wire.h"
#include "sched/check.h"
#include "tests/draw.h"

enum { BARE_ROUNDS_MAX = 8192 };

struct bare {
	void *context, *router;
	int fd;
	uint64_t rounds, every_us;
	uint32_t burst; /* messages a round */
	pthread_t maker, sender;
	double made[BARE_ROUNDS_MAX]; /* when a round was */
};

/* In the place of the engine. */
static inline void *bare_make(void *arg)
{
	struct bare *b = arg;
	const uint64_t one = 1;
	const struct timespec rest = {.tv_nsec = (long)b->every_us * 1000};
	for (uint64_t i = 0; i < b->rounds; i++) {
		nanosleep(&rest, NULL);
		b->made[i] = now();
		CHECK(write(b->fd, &one, sizeof one) == sizeof one);
	}
	return NULL;
}

/* In the place of the loop. `off` tells the round. */
static inline void *bare_send(void *arg)
{
	struct bare *b = arg;
	uint8_t id[64], head[WIRE_HEADER_BYTES], body[64], blob[4] = {0};
	uint64_t n;
	zmq_pollitem_t item = {.fd = b->fd, .events = ZMQ_POLLIN};
	const int id_length = zmq_recv(b->router, id, sizeof id, 0);
	CHECK(id_length > 0);
	zmq_recv(b->router, body, sizeof body, 0);
	zmq_recv(b->router, body, sizeof body, 0);
	for (uint64_t round = 0; round < b->rounds; round++) {
		zmq_poll(&item, 1, -1);
		CHECK(read(b->fd, &n, sizeof n) == sizeof n);
		for (uint32_t i = 0; i < b->burst; i++) {
			const struct wire_header h = {.type = WIRE_DATA, .flags = WIRE_FLAG_BLOB, .channel = i + 1,
						      .seq = round + 1};
			const struct wire_data m = {.off = round, .n_tokens = 1, .text = {"a", 1}};
			struct wire_writer w;
			wire_writer_init(&w, body, sizeof body);
			CHECK(wire_write_data(&w, &m) == 0);
			wire_header_write(&h, head);
			zmq_send(b->router, id, (size_t)id_length, ZMQ_SNDMORE | ZMQ_DONTWAIT);
			zmq_send(b->router, head, sizeof head, ZMQ_SNDMORE | ZMQ_DONTWAIT);
			zmq_send(b->router, body, w.length, ZMQ_SNDMORE | ZMQ_DONTWAIT);
			zmq_send(b->router, blob, sizeof blob, ZMQ_DONTWAIT);
		}
	}
	return NULL;
}

/* It begins when somebody has said HELLO. */
static inline void bare_begin(struct bare *b, const char *endpoint, uint64_t rounds, uint64_t every_us,
			      uint32_t burst)
{
	CHECK(rounds <= BARE_ROUNDS_MAX);
	b->rounds = rounds;
	b->every_us = every_us;
	b->burst = burst;
	b->context = zmq_ctx_new();
	b->router = zmq_socket(b->context, ZMQ_ROUTER);
	b->fd = eventfd(0, EFD_CLOEXEC | EFD_SEMAPHORE);
	CHECK(b->fd >= 0);
	/* Beyond its mark a ROUTER drops, and the reader would wait for what does not come. */
	const int most = 0;
	CHECK(zmq_setsockopt(b->router, ZMQ_SNDHWM, &most, sizeof most) == 0);
	CHECK(zmq_bind(b->router, endpoint) == 0);
	CHECK(pthread_create(&b->sender, NULL, bare_send, b) == 0);
	CHECK(pthread_create(&b->maker, NULL, bare_make, b) == 0);
}

static inline void bare_end(struct bare *b)
{
	pthread_join(b->maker, NULL);
	pthread_join(b->sender, NULL);
	zmq_close(b->router);
	zmq_ctx_term(b->context);
	close(b->fd);
}

#endif
