/*
 * Who speaks: connections by their routing id, principals by what the kernel says of them, the ZAP
 * requests in which it says so, and the sending of one message to one peer.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zmq.h>

#include "runtime/keep.h"

enum { CONGESTED_RETRY_US = 10000, STRIKE_US = 60000000 };

int peers_open(struct daemon *d)
{
	d->peers = calloc(d->options.peers, sizeof *d->peers);
	d->principals = calloc(d->options.principals, sizeof *d->principals);
	d->owed = calloc(OWED_MAX, sizeof *d->owed);
	return d->peers && d->principals && d->owed ? 0 : -ERR_MEMORY;
}

uint32_t principal_find(struct daemon *d, const char *user)
{
	for (uint32_t i = 0; i < d->options.principals; i++) {
		if (!d->principals[i].name[0]) {
			snprintf(d->principals[i].name, sizeof d->principals[i].name, "%s", user);
			keep_principal(d, i);
			return i;
		}
		if (strcmp(d->principals[i].name, user) == 0)
			return i;
	}
	return NONE;
}

/* A slot for a new peer: a free one, else the one that has been silent longest and has no call. */
static uint32_t peer_slot(struct daemon *d)
{
	uint32_t best = NONE;
	for (uint32_t i = 0; i < d->options.peers; i++) {
		if (!d->peers[i].used)
			return i;
		if (d->peers[i].calls == 0 && (best == NONE || d->peers[i].seen_us < d->peers[best].seen_us))
			best = i;
	}
	return best;
}

uint32_t peer_find(struct daemon *d, const void *id, size_t length, uint32_t principal)
{
	if (length == 0 || length > ROUTING_MAX)
		return NONE;
	for (uint32_t i = 0; i < d->options.peers; i++) {
		struct peer *p = &d->peers[i];
		if (!p->used || p->id_length != length || memcmp(p->id, id, length) != 0)
			continue;
		if (p->principal == principal && !p->gone)
			return i;
		/* Another principal on the same routing id is a new peer with no rights. */
		peer_gone(d, i);
		if (p->calls == 0)
			p->used = false;
	}
	const uint32_t slot = peer_slot(d);
	if (slot == NONE)
		return NONE;
	struct peer *p = &d->peers[slot];
	memset(p, 0, sizeof *p);
	p->used = true;
	memcpy(p->id, id, length);
	p->id_length = (uint8_t)length;
	p->principal = principal;
	p->seen_us = d->now_us;
	return slot;
}

int peer_send(struct daemon *d, uint32_t peer, uint8_t type, uint64_t channel, uint64_t seq,
	      const void *body, size_t length, const void *blob, size_t blob_length)
{
	struct peer *p = &d->peers[peer];
	CHECK(p->used);
	if (p->gone)
		return -ERR_CLOSED;
	const struct wire_header header = {.type = type, .flags = blob ? WIRE_FLAG_BLOB : 0,
					   .channel = channel, .seq = seq};
	uint8_t bytes[WIRE_HEADER_BYTES];
	wire_header_write(&header, bytes);
	/* The socket refuses on the first frame or not at all, so that a message is sent whole. */
	if (zmq_send(d->router, p->id, p->id_length, ZMQ_SNDMORE | ZMQ_DONTWAIT) < 0) {
		if (errno == EAGAIN || errno == EINTR) {
			p->congested = true;
			p->retry_us = d->now_us + CONGESTED_RETRY_US;
			return -ERR_LIMIT;
		}
		return -ERR_CLOSED;
	}
	p->congested = false;
	int failed = zmq_send(d->router, bytes, sizeof bytes, ZMQ_SNDMORE | ZMQ_DONTWAIT) < 0;
	failed |= zmq_send(d->router, body, length, (blob ? ZMQ_SNDMORE : 0) | ZMQ_DONTWAIT) < 0;
	if (blob)
		failed |= zmq_send(d->router, blob, blob_length, ZMQ_DONTWAIT) < 0;
	return failed ? -ERR_CLOSED : 0;
}

void peer_say(struct daemon *d, uint32_t peer, uint8_t type, uint64_t channel, const void *body,
	      size_t length)
{
	struct peer *p = &d->peers[peer];
	CHECK(length <= OWED_BODY_MAX);
	if (p->owed == 0) {
		const int code = peer_send(d, peer, type, channel, 0, body, length, NULL, 0);
		if (code == -ERR_CLOSED)
			peer_gone(d, peer);
		if (code != -ERR_LIMIT)
			return;
	}
	if (p->owed == OWED_PEER_MAX || d->owed_count == OWED_MAX)
		return;
	struct owed *o = &d->owed[(d->owed_first + d->owed_count++) % OWED_MAX];
	o->peer = peer;
	o->type = type;
	o->channel = channel;
	o->length = length;
	memcpy(o->body, body, length);
	p->owed++;
}

void peers_flush(struct daemon *d)
{
	for (uint32_t i = 0; i < d->owed_count; i++) {
		struct owed *o = &d->owed[(d->owed_first + i) % OWED_MAX];
		if (o->peer == NONE || (d->peers[o->peer].congested && d->now_us < d->peers[o->peer].retry_us))
			continue;
		const int code = peer_send(d, o->peer, o->type, o->channel, 0, o->body, o->length, NULL, 0);
		if (code == -ERR_LIMIT)
			continue;
		if (code == -ERR_CLOSED) {
			peer_gone(d, o->peer); /* takes what is owed along */
			continue;
		}
		d->peers[o->peer].owed--;
		o->peer = NONE;
	}
	while (d->owed_count && d->owed[d->owed_first].peer == NONE) {
		d->owed_first = (d->owed_first + 1) % OWED_MAX;
		d->owed_count--;
	}
}

void peer_reject_numbers(struct daemon *d, uint32_t peer, uint64_t channel, const struct wire_err *err)
{
	uint8_t body[512];
	struct wire_writer w;
	const struct wire_reject m = {.err = *err};
	d->stats.rejects++;
	wire_writer_init(&w, body, sizeof body);
	if (wire_write_reject(&w, &m) != 0)
		return;
	peer_say(d, peer, WIRE_REJECT, channel, body, w.length);
}

/* A malformed message. Too many of them, and for a while none of that peer is looked at. */
static bool strike(struct daemon *d, struct peer *p)
{
	if (!d->options.strikes)
		return false;
	if (p->strikes == 0 || d->now_us > p->strike_us + STRIKE_US) {
		p->strikes = 0;
		p->strike_us = d->now_us;
	}
	if (++p->strikes < d->options.strikes)
		return false;
	p->strikes = 0;
	d->stats.mutes++;
	p->muted_us = d->now_us + d->options.mute_ms * 1000;
	return true;
}

void peer_reject(struct daemon *d, uint32_t peer, uint64_t channel, int code)
{
	struct wire_err err = {.code = code < 0 ? -code : code, .after_ms = WIRE_NONE,
			       .used = WIRE_NONE, .asked = WIRE_NONE, .limit = WIRE_NONE};
	if (err.code >= ERR_VERSION && err.code <= ERR_TOO_BIG && strike(d, &d->peers[peer])) {
		err.code = ERR_LIMIT;
		err.after_ms = d->options.mute_ms;
		err.limit = d->options.strikes;
	}
	peer_reject_numbers(d, peer, channel, &err);
}

void peer_gone(struct daemon *d, uint32_t peer)
{
	struct peer *p = &d->peers[peer];
	if (p->gone)
		return;
	p->gone = true;
	for (uint32_t i = 0; p->owed && i < d->owed_count; i++) {
		struct owed *o = &d->owed[(d->owed_first + i) % OWED_MAX];
		if (o->peer != peer)
			continue;
		o->peer = NONE;
		p->owed--;
	}
	for (uint32_t i = 0; i < d->options.calls; i++) {
		struct call *c = &d->calls[i];
		if (c->state == CALL_FREE || c->peer != peer)
			continue;
		c->peer = NONE;
		CHECK(p->calls > 0);
		p->calls--;
		call_detached(d, i);
	}
	p->used = false;
}

/* A request has version, id, domain, address, identity, mechanism and maybe credentials. */
void zap_serve(struct daemon *d)
{
	char frame[8][256];
	int count = 0, more = 1;
	while (more) {
		char *to = frame[count < 8 ? count : 7];
		const int n = zmq_recv(d->zap, to, 255, ZMQ_DONTWAIT);
		if (n < 0)
			return;
		to[n < 255 ? n : 255] = 0;
		size_t size = sizeof more;
		zmq_getsockopt(d->zap, ZMQ_RCVMORE, &more, &size);
		count++;
	}
	/* Local sockets say "localhost:UID:GID:PID"; nothing else is let in. */
	unsigned uid = 0;
	const bool known = count >= 6 && strcmp(frame[0], "1.0") == 0 && strcmp(frame[5], "NULL") == 0 &&
			   sscanf(frame[3], "localhost:%u:", &uid) == 1;
	char user[32];
	snprintf(user, sizeof user, "uid:%u", uid);
	zmq_send(d->zap, "1.0", 3, ZMQ_SNDMORE);
	zmq_send(d->zap, frame[1], strlen(frame[1]), ZMQ_SNDMORE);
	zmq_send(d->zap, known ? "200" : "400", 3, ZMQ_SNDMORE);
	zmq_send(d->zap, "", 0, ZMQ_SNDMORE);
	zmq_send(d->zap, user, known ? strlen(user) : 0, ZMQ_SNDMORE);
	zmq_send(d->zap, "", 0, 0);
}
