/*
 * A client of AR/1 for benches, as plain as can be.
 */
#ifndef HOLDFAST_TESTS_BENCH_CLIENT_H
#define HOLDFAST_TESTS_BENCH_CLIENT_H

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zmq.h>

#include "clients/wire.h"
#include "tests/bench/keyed.h"

static inline void fail(const char *what)
{
	fprintf(stderr, "bench_wire: %s: %s\n", what, strerror(errno));
	exit(1);
}

/* Says HELLO. keys: its public and secret, and the daemon's; NULL: by ipc. */
static inline void *client_open(void *context, const char *endpoint, char (*keys)[KEY_CHARS + 1])
{
	void *s = zmq_socket(context, ZMQ_DEALER);
	const int zero = 0;
	uint8_t head[WIRE_HEADER_BYTES], body[256];
	struct wire_writer w;
	const struct wire_hello m = {.client = {"bench", 5}};
	const struct wire_header h = {.type = WIRE_HELLO};
	if (!s || zmq_setsockopt(s, ZMQ_LINGER, &zero, sizeof zero) ||
	    zmq_setsockopt(s, ZMQ_RCVHWM, &zero, sizeof zero))
		fail("a socket");
	if (keys && keys[0][0] && (zmq_setsockopt(s, ZMQ_CURVE_PUBLICKEY, keys[0], KEY_CHARS + 1) ||
	    zmq_setsockopt(s, ZMQ_CURVE_SECRETKEY, keys[1], KEY_CHARS + 1) ||
	    zmq_setsockopt(s, ZMQ_CURVE_SERVERKEY, keys[2], KEY_CHARS + 1)))
		fail("keys");
	if (zmq_connect(s, endpoint))
		fail("a connection");
	wire_writer_init(&w, body, sizeof body);
	wire_write_hello(&w, &m);
	wire_header_write(&h, head);
	zmq_send(s, head, sizeof head, ZMQ_SNDMORE);
	zmq_send(s, body, w.length, 0);
	return s;
}

static inline void call_send(void *s, uint64_t channel, struct wire_call *m, const void *blob,
			     size_t blob_length)
{
	static __thread uint8_t body[8192];
	uint8_t head[WIRE_HEADER_BYTES];
	struct wire_writer w;
	const struct wire_header h = {.type = WIRE_CALL, .channel = channel, .flags = blob ? WIRE_FLAG_BLOB : 0};
	wire_writer_init(&w, body, sizeof body);
	if (wire_write_call(&w, m) != 0)
		fail("a message");
	wire_header_write(&h, head);
	zmq_send(s, head, sizeof head, ZMQ_SNDMORE);
	zmq_send(s, body, w.length, blob ? ZMQ_SNDMORE : 0);
	if (blob)
		zmq_send(s, blob, blob_length, 0);
}

/* The next message: its header, and its body's first bytes. False: none in time. */
static inline bool take(void *s, struct wire_header *h, uint8_t *body, size_t room, size_t *length,
			int wait_ms)
{
	uint8_t head[WIRE_HEADER_BYTES];
	int more = 1;
	size_t size = sizeof more;
	zmq_pollitem_t item = {.socket = s, .events = ZMQ_POLLIN};
	if (zmq_recv(s, head, sizeof head, ZMQ_DONTWAIT) < 0) {
		if (wait_ms == 0 || zmq_poll(&item, 1, wait_ms) <= 0 ||
		    zmq_recv(s, head, sizeof head, ZMQ_DONTWAIT) < 0)
			return false;
	}
	if (wire_header_read(head, sizeof head, h) != 0)
		fail("a header");
	*length = (size_t)zmq_recv(s, body, room, 0);
	for (zmq_getsockopt(s, ZMQ_RCVMORE, &more, &size); more; zmq_getsockopt(s, ZMQ_RCVMORE, &more, &size))
		zmq_recv(s, NULL, 0, 0);
	return true;
}

#endif
