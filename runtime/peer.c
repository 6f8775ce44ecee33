/*
 * Who speaks: connections by their routing id, principals by what the kernel says of them, the ZAP
 * requests in which it says so, and the sending of one message to one peer.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zmq.h>

#include "runtime/keep.h"

enum { CONGESTED_RETRY_US = 10000, STRIKE_US = 60000000, RATE_BURST_US = 1000000 };

int peers_open(struct daemon *d)
{
	d->peers = calloc(d->options.peers, sizeof *d->peers);
	/* Behind those who come in: the one whom nobody comes in as. */
	d->principals = calloc(d->options.principals + 1, sizeof *d->principals);
	if (d->principals)
		snprintf(d->principals[d->options.principals].name, NAME_MAX_BYTES, "public");
	d->owed = calloc(OWED_MAX, sizeof *d->owed);
	return d->peers && d->principals && d->owed ? 0 : -ERR_MEMORY;
}

uint32_t principal_find(struct daemon *d, const char *user, uint32_t tenant)
{
	for (uint32_t i = 0; i < d->options.principals; i++) {
		if (!d->principals[i].name[0]) {
			snprintf(d->principals[i].name, sizeof d->principals[i].name, "%s", user);
			d->principals[i].tenant = tenant;
			keep_principal(d, i);
			return i;
		}
		if (strcmp(d->principals[i].name, user) == 0)
			return i;
	}
	return NONE;
}

/* User ids are ours, made by the ZAP handler: "u:UID" or "k:KEY", within the door's tenant. */
uint32_t principal_of_user(struct daemon *d, uint32_t door, const char *user, uint32_t *roles, bool *revoked)
{
	const uint32_t tenant = d->door[door].tenant;
	char name[NAME_MAX_BYTES];
	*revoked = false;
	if (tenant == 0 && user[0] == 'u') {
		const unsigned long uid = strtoul(user + 2, NULL, 10);
		*roles = ROLE_AGENT | (uid == getuid() ? ROLE_OPERATOR : 0u);
		snprintf(name, sizeof name, "uid:%lu", uid);
		return principal_find(d, name, 0);
	}
	const struct grant *g = user[0] == 'k' && strlen(user) == 2 + KEY_CHARS
		? tenants_key(&d->tenants, tenant, user + 2)
		: user[0] == 'u' ? tenants_uid(&d->tenants, tenant, (uint32_t)strtoul(user + 2, NULL, 10)) : NULL;
	*revoked = g == NULL;
	*roles = g ? g->roles : 0;
	/* One that is revoked has a principal too, of its own: its peer must be found to be told. */
	snprintf(name, sizeof name, "%s/%s", d->tenants.tenant[tenant].name, g ? g->name : "-");
	return principal_find(d, name, tenant);
}

bool peer_over_rate(struct daemon *d, struct peer *p, size_t bytes)
{
	const struct tenant *t = &d->tenants.tenant[d->door[p->door].tenant];
	/* A second's worth may come at once. */
	if ((t->rate && p->rate_us > d->now_us + RATE_BURST_US) ||
	    (t->bytes && p->bytes_us > d->now_us + RATE_BURST_US))
		return true;
	if (t->rate)
		p->rate_us = (p->rate_us > d->now_us ? p->rate_us : d->now_us) + 1000000 / t->rate;
	if (t->bytes)
		p->bytes_us = (p->bytes_us > d->now_us ? p->bytes_us : d->now_us) + bytes * 1000000 / t->bytes;
	return false;
}

bool call_sees(const struct daemon *d, uint32_t call, uint32_t principal)
{
	const struct call *c = &d->calls[call];
	const uint32_t mine = d->principals[c->principal].tenant;
	if (principal == c->principal)
		return true;
	return c->peer != NONE && (d->peers[c->peer].roles & ROLE_OPERATOR) &&
	       (mine == 0 || d->principals[principal].tenant == mine);
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

uint32_t peer_find(struct daemon *d, uint32_t door, const void *id, size_t length, uint32_t principal)
{
	if (length == 0 || length > ROUTING_MAX)
		return NONE;
	for (uint32_t i = 0; i < d->options.peers; i++) {
		struct peer *p = &d->peers[i];
		if (!p->used || p->door != door || p->id_length != length || memcmp(p->id, id, length) != 0)
			continue;
		if (p->base == principal && !p->gone)
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
	/* What is owed to the one before is not the new one's. */
	if (p->used)
		peer_gone(d, slot);
	memset(p, 0, sizeof *p);
	p->used = true;
	memcpy(p->id, id, length);
	p->id_length = (uint8_t)length;
	/* libzmq's own are a zero byte and a counter of four. One that anybody can choose again is none to send
	   to: who comes in by it when its holder has gone gets what is the holder's, and has said nothing yet. */
	p->chosen = length != 5 || p->id[0] != 0;
	p->base = p->principal = principal;
	p->door = (uint8_t)door;
	p->seen_us = d->now_us;
	return slot;
}

/* Frames to the socket. It refuses on the first one or not at all, so that a message is sent whole. */
static int frames_send(void *socket, const struct peer *p, const struct wire_header *header,
		       const void *body, size_t length, const void *blob, size_t blob_length)
{
	uint8_t bytes[WIRE_HEADER_BYTES];
	wire_header_write(header, bytes);
	if (zmq_send(socket, p->id, p->id_length, ZMQ_SNDMORE | ZMQ_DONTWAIT) < 0)
		return errno == EAGAIN || errno == EINTR ? -ERR_LIMIT : -ERR_CLOSED;
	int failed = zmq_send(socket, bytes, sizeof bytes, ZMQ_SNDMORE | ZMQ_DONTWAIT) < 0;
	failed |= zmq_send(socket, body, length, (blob ? ZMQ_SNDMORE : 0) | ZMQ_DONTWAIT) < 0;
	if (blob)
		failed |= zmq_send(socket, blob, blob_length, ZMQ_DONTWAIT) < 0;
	return failed ? -ERR_CLOSED : 0;
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
	const int code = d->sink ? d->sink(d, peer, &header, body, length, blob, blob_length)
				 : frames_send(d->door[p->door].socket, p, &header, body, length, blob, blob_length);
	p->congested = code == -ERR_LIMIT;
	if (p->congested)
		p->retry_us = d->now_us + CONGESTED_RETRY_US;
	return code;
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

void peer_reject_why(struct daemon *d, uint32_t peer, uint64_t channel, int code, const char *why)
{
	struct wire_err err = {.code = code < 0 ? -code : code, .after_ms = WIRE_NONE,
			       .used = WIRE_NONE, .asked = WIRE_NONE, .limit = WIRE_NONE,
			       .why = {why, why ? strlen(why) : 0}};
	if (err.code >= ERR_VERSION && err.code <= ERR_TOO_BIG && strike(d, &d->peers[peer])) {
		err.code = ERR_LIMIT;
		err.why = (struct wire_str){NULL, 0};
		err.after_ms = d->options.mute_ms;
		err.limit = d->options.strikes;
	}
	peer_reject_numbers(d, peer, channel, &err);
}

void peer_reject(struct daemon *d, uint32_t peer, uint64_t channel, int code)
{
	peer_reject_why(d, peer, channel, code, NULL);
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
	for (uint32_t i = 0; i < d->calls_top; i++) {
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
struct zap_request {
	char frame[8][256];
	size_t length[8];
	int count;
};

static bool zap_read(struct daemon *d, struct zap_request *r)
{
	int more = 1;
	for (r->count = 0; more; r->count++) {
		const int i = r->count < 8 ? r->count : 7;
		const int n = zmq_recv(d->zap, r->frame[i], 255, ZMQ_DONTWAIT);
		if (n < 0)
			return false;
		r->length[i] = (size_t)(n < 255 ? n : 255);
		r->frame[i][r->length[i]] = 0;
		size_t size = sizeof more;
		zmq_getsockopt(d->zap, ZMQ_RCVMORE, &more, &size);
	}
	return true;
}

static bool grant_holds(const struct grant *g, bool operators)
{
	return g && (!operators || (g->roles & ROLE_OPERATOR));
}

/* Local sockets say "localhost:UID:GID:PID", which is the kernel's word; over TCP there must be a key.
   Either must be allowed at that tenant. Fills in the user id. */
static bool zap_allows(const struct daemon *d, struct zap_request *r, char user[64], uint32_t *tenant_of)
{
	unsigned uid = 0;
	char key[KEY_CHARS + 1];
	if (r->count < 6 || r->count > 7 || strcmp(r->frame[0], "1.0") != 0)
		return false;
	/* Where events of blocks are told: only who may see all of the tenant's. */
	char *slash = strchr(r->frame[2], '/');
	const bool operators = slash && strcmp(slash, "/kv") == 0;
	if (operators)
		*slash = 0;
	const uint32_t tenant = tenants_find(&d->tenants, r->frame[2]);
	*tenant_of = tenant;
	if (tenant == UINT32_MAX)
		return false;
	const bool local = tenant == 0 || strncmp(d->tenants.tenant[tenant].listen, "ipc:", 4) == 0;
	if (local && strcmp(r->frame[5], "NULL") == 0 && sscanf(r->frame[3], "localhost:%u:", &uid) == 1) {
		snprintf(user, 64, "u:%u", uid);
		return tenant == 0 ? !operators || uid == getuid()
				   : grant_holds(tenants_uid(&d->tenants, tenant, uid), operators);
	}
	if (strcmp(r->frame[5], "CURVE") != 0 || r->count != 7 || r->length[6] != KEY_BYTES)
		return false;
	if (!zmq_z85_encode(key, (const uint8_t *)r->frame[6], KEY_BYTES))
		return false;
	snprintf(user, 64, "k:%s", key);
	return tenant != 0 && grant_holds(tenants_key(&d->tenants, tenant, key), operators);
}

void zap_serve(struct daemon *d)
{
	struct zap_request r = {.count = 0};
	char user[64] = "";
	if (!zap_read(d, &r))
		return;
	uint32_t tenant = UINT32_MAX;
	const bool known = zap_allows(d, &r, user, &tenant);
	const uint8_t *key = r.length[6] == KEY_BYTES ? (const uint8_t *)r.frame[6] : NULL;
	if (!known && tenant != UINT32_MAX)
		authority_refused(d, tenant, key, r.frame[3]);
	zmq_send(d->zap, "1.0", 3, ZMQ_SNDMORE);
	zmq_send(d->zap, r.frame[1], r.length[1], ZMQ_SNDMORE);
	zmq_send(d->zap, known ? "200" : "400", 3, ZMQ_SNDMORE);
	zmq_send(d->zap, "", 0, ZMQ_SNDMORE);
	zmq_send(d->zap, user, known ? strlen(user) : 0, ZMQ_SNDMORE);
	zmq_send(d->zap, "", 0, 0);
}
