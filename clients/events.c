/*
 * Session events: a socket of its own that listens, and the calls that fetch what was missed.
 *
 * Each principal's events count from 1 in each process of the daemon. A number that is passed over is
 * asked for with events.replay; what came live meanwhile waits until that is handed out.
 */
#include "config.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "clients/item.h"
#include "clients/link.h"

enum { FRAMES = 3, HEARD_MAX = 256, JSON_MAX = 4096, BODY_MAX = 1024, EVENTS_HWM = 10000,
       SOON_MS = 100 };

struct heard {
	char principal[WIRE_NAME_MAX + 1];
	uint8_t boot[16];
	uint64_t last;
};

struct hf_events {
	struct hf_client *client;
	void *socket;
	struct heard heard[HEARD_MAX];
	uint32_t count;
	struct hf_end again;  /* of the call in hand */
	struct walk walk;     /* its events; items 0: none is left */
	uint8_t body[BODY_MAX]; /* the last one that came live */
	size_t length;
	bool waits;           /* it waits behind those */
	char json[JSON_MAX];
};

int hf_events_open(struct hf_client *c, const char *endpoint, struct hf_events **out)
{
	const int linger = 0, hwm = EVENTS_HWM, beat = 5000, dead = 15000;
	const int64_t frame = BODY_MAX;
	char beside[1024];
	if (!out)
		return -ERR_BAD_ARG;
	*out = NULL;
	if (!c)
		return -ERR_BAD_ARG;
	struct hf_events *e = calloc(1, sizeof *e);
	if (!e)
		return -ERR_MEMORY;
	e->client = c;
	end_init(&e->again);
	if (!endpoint) {
		snprintf(beside, sizeof beside, "%s-events", c->endpoint);
		endpoint = beside;
	}
	e->socket = zmq_socket(c->context, ZMQ_SUB);
	if (!e->socket) {
		free(e);
		return -ERR_MEMORY;
	}
	zmq_setsockopt(e->socket, ZMQ_LINGER, &linger, sizeof linger);
	zmq_setsockopt(e->socket, ZMQ_RCVHWM, &hwm, sizeof hwm);
	zmq_setsockopt(e->socket, ZMQ_MAXMSGSIZE, &frame, sizeof frame);
	zmq_setsockopt(e->socket, ZMQ_HEARTBEAT_IVL, &beat, sizeof beat);
	zmq_setsockopt(e->socket, ZMQ_HEARTBEAT_TIMEOUT, &dead, sizeof dead);
	if (c->keys[0][0]) {
		zmq_setsockopt(e->socket, ZMQ_CURVE_PUBLICKEY, c->keys[0], 41);
		zmq_setsockopt(e->socket, ZMQ_CURVE_SECRETKEY, c->keys[1], 41);
		zmq_setsockopt(e->socket, ZMQ_CURVE_SERVERKEY, c->keys[2], 41);
	}
	if (zmq_connect(e->socket, endpoint) != 0 || zmq_setsockopt(e->socket, ZMQ_SUBSCRIBE, "", 0) != 0) {
		hf_events_close(&e);
		return -ERR_BAD_ARG;
	}
	*out = e;
	return 0;
}

void hf_events_close(struct hf_events **events)
{
	struct hf_events *e = events ? *events : NULL;
	if (!e)
		return;
	if (e->socket)
		zmq_close(e->socket);
	hf_end_free(&e->again);
	free(e);
	*events = NULL;
}

/* After one that is no news: the time is over, and this call looked through what a socket holds. */
static bool too_late(uint64_t until_ms, uint32_t *passed)
{
	return ++*passed >= EVENTS_HWM && link_now_ms() >= until_ms;
}

/* One message: topic, number, body; the body is kept. 0, or -ERR_TIMEOUT when there is none in time.
   *passed: how many were not taken since the call began. */
static int body_receive(struct hf_events *e, uint64_t until_ms, uint32_t *passed)
{
	for (;;) {
		const uint64_t now = link_now_ms();
		zmq_pollitem_t item = {.socket = e->socket, .events = ZMQ_POLLIN};
		const uint64_t left = until_ms > now ? until_ms - now : 0;
		if (zmq_poll(&item, 1, left < 60000 ? (long)left : 60000) < 0 && errno != EINTR)
			return -ERR_IO;
		if (!(item.revents & ZMQ_POLLIN)) {
			if (link_now_ms() >= until_ms)
				return -ERR_TIMEOUT;
			continue;
		}
		int more = 1, count = 0, length = 0;
		for (; more; count++) {
			size_t size = sizeof more;
			length = zmq_recv(e->socket, e->body, sizeof e->body, ZMQ_DONTWAIT);
			if (length < 0)
				break;
			zmq_getsockopt(e->socket, ZMQ_RCVMORE, &more, &size);
		}
		e->length = (size_t)length;
		if (count == FRAMES && length > 0 && length <= BODY_MAX &&
		    wire_validate(e->body, e->length, &e->client->limits) == 0)
			return 0;
		if (too_late(until_ms, passed))
			return -ERR_TIMEOUT;
	}
}

static struct heard *heard_of(struct hf_events *e, struct wire_str name)
{
	if (!name.at || name.length > WIRE_NAME_MAX)
		return NULL;
	for (uint32_t i = 0; i < e->count; i++)
		if (strlen(e->heard[i].principal) == name.length &&
		    memcmp(e->heard[i].principal, name.at, name.length) == 0)
			return &e->heard[i];
	/* Of more than these, gaps are not seen. */
	if (e->count == HEARD_MAX)
		return NULL;
	struct heard *h = &e->heard[e->count++];
	memcpy(h->principal, name.at, name.length);
	return h;
}

/* Fills `out`, if this one is new. *missed: numbers before it were passed over, of *whose. */
static bool event_take(struct hf_events *e, struct wire_value v, struct hf_event *out, uint64_t *missed,
	struct heard **whose)
{
	struct wire_str name = {NULL, 0};
	struct wire_bin boot = {NULL, 0};
	uint64_t seq = 0;
	*missed = 0;
	if (!wire_get_str(wire_find(v, "principal"), &name) || !wire_get_u64(wire_find(v, "seq"), &seq) ||
	    !wire_get_bin(wire_find(v, "boot"), &boot) || boot.length != 16 || seq == 0)
		return false;
	struct heard *h = *whose = heard_of(e, name);
	if (h && memcmp(h->boot, boot.at, 16) != 0) {
		/* Another process: what it told before this one was not heard, unless we have just come. */
		h->last = h->last ? 0 : seq - 1;
		memcpy(h->boot, boot.at, 16);
	}
	if (h && seq <= h->last)
		return false;
	if (h && seq > h->last + 1)
		*missed = h->last + 1;
	*out = (struct hf_event){.seq = seq, .packed = v.at, .packed_bytes = v.length};
	if (h && !*missed)
		h->last = seq;
	return true;
}

static void event_json(struct hf_events *e, struct hf_event *out)
{
	wire_json((struct wire_value){out->packed, out->packed_bytes}, e->json, sizeof e->json);
	out->json = e->json;
}

/* The next of those that were fetched; false: none is left. */
static bool fetched_next(struct hf_events *e, struct hf_event *out)
{
	struct wire_value v;
	struct heard *whose;
	uint64_t missed;
	while (e->walk.items > 0 && walk_next(&e->walk, &v)) {
		if (!event_take(e, v, out, &missed, &whose))
			continue;
		/* What the daemon does not keep any more is gone: the numbers show it. */
		if (whose)
			whose->last = out->seq;
		return true;
	}
	e->walk.items = 0;
	return false;
}

/* -ERR_TIMEOUT: not answered in the time that is left, or, of no time, soon. What the daemon refuses to play
   again is not kept: there is none then. */
static int fetch(struct hf_events *e, const struct heard *whose, uint64_t first, uint64_t until_ms)
{
	const uint64_t now = link_now_ms(), left = until_ms > now ? until_ms - now : 0;
	hf_end_free(&e->again);
	const int code = client_replay(e->client, whose->principal, first, WIRE_COUNT_MAX,
				       left > SOON_MS ? left : SOON_MS, &e->again);
	e->walk.items = 0;
	switch (code) {
	case 0: break;
	case -ERR_DEADLINE: return -ERR_TIMEOUT;
	case -ERR_TIMEOUT: case -ERR_CLOSED: case -ERR_IO: case -ERR_MEMORY: case -ERR_IN_USE: return code;
	default: return 0;
	}
	const struct wire_value list =
		wire_find((struct wire_value){e->again.packed, e->again.packed_bytes}, "events");
	uint32_t count;
	if (list.at && wire_get_array(list, &count) && count > 0)
		walk_init(&e->walk, list);
	return 0;
}

int hf_events_next(struct hf_events *e, uint32_t timeout_ms, struct hf_event *out)
{
	if (!e || !out)
		return -ERR_BAD_ARG;
	const uint64_t until = link_now_ms() + timeout_ms;
	struct heard *whose = NULL;
	uint64_t missed = 0, asked = 0;
	uint32_t passed = 0;
	memset(out, 0, sizeof *out);
	for (;;) {
		if (fetched_next(e, out))
			break;
		if (!e->waits)
			TRY(body_receive(e, until, &passed));
		e->waits = false;
		if (!event_take(e, (struct wire_value){e->body, e->length}, out, &missed, &whose)) {
			if (too_late(until, &passed))
				return -ERR_TIMEOUT;
			continue;
		}
		if (!missed)
			break;
		e->waits = true; /* what came stays in hand, whatever comes of the question */
		/* Not kept any more, or the answer had no event that is news: the numbers show it. */
		if (missed == asked) {
			whose->last = out->seq - 1;
			continue;
		}
		TRY(fetch(e, whose, missed, until));
		asked = missed;
	}
	event_json(e, out);
	return 0;
}
