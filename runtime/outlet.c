/*
 * The sockets of events: how they are made, who hears what, and what is sent on them.
 *
 * The socket of session events is an XPUB that asks us for each subscription. Its library pairs what
 * it hands us with connections in two queues, and a message that is no subscription shifts one against
 * the other; so at the first such message the socket is made anew, before anything behind it is
 * looked at. The same is done when somebody subscribes without end, since that is kept in memory.
 */
#include "config.h"

#include "runtime/outlet.h"

#include <errno.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>
#include <zmq.h>

#include "runtime/endpoint.h"
#include "runtime/events.h"

enum {
	TAKE_PER_TURN = 64,
	TOPIC_MAX = NAME_MAX_BYTES + 2,
	EVENTS_HWM = 4096,      /* messages of some 400 bytes */
	KV_HWM = 1024,          /* messages of KV_PAYLOAD_MAX bytes at most */
	PREFIXES_MAX = 2
};

static void set_int(void *socket, int option, int value)
{
	CHECK(zmq_setsockopt(socket, option, &value, sizeof value) == 0);
}

static void common_set(const struct daemon *d, void *socket, const struct outlet *o)
{
	char domain[TENANT_NAME_MAX + 4];
	/* What is said of blocks is for those who may see all of the tenant's. */
	snprintf(domain, sizeof domain, "%s%s", d->tenants.tenant[o->tenant].name, o->kv ? "/kv" : "");
	const int64_t frame = TOPIC_MAX + 1;
	set_int(socket, ZMQ_RCVHWM, TAKE_PER_TURN);
	endpoint_watch(socket, d->options.heartbeat_ms);
	set_int(socket, ZMQ_LINGER, 0);
	CHECK(zmq_setsockopt(socket, ZMQ_MAXMSGSIZE, &frame, sizeof frame) == 0);
	CHECK(zmq_setsockopt(socket, ZMQ_ZAP_DOMAIN, domain, strlen(domain)) == 0);
#ifdef ZMQ_ZAP_ENFORCE_DOMAIN
	set_int(socket, ZMQ_ZAP_ENFORCE_DOMAIN, 1);
#endif
}

static int watch(struct daemon *d, void *socket)
{
	int fd = -1;
	size_t size = sizeof fd;
	CHECK(zmq_getsockopt(socket, ZMQ_FD, &fd, &size) == 0);
	struct epoll_event e = {.events = EPOLLIN, .data.fd = fd};
	return epoll_ctl(d->epoll, EPOLL_CTL_ADD, fd, &e) == 0 ? 0 : -ERR_IO;
}

static int one_bind(struct daemon *d, const struct outlet *o, void *socket, const char *listen,
		    const char *secret)
{
	common_set(d, socket, o);
	TRY(endpoint_secure(socket, listen, secret));
	/* The daemon's own user's are for nobody else; a tenant's are reached by whom the folder lets in. */
	TRY(endpoint_bind(socket, listen, o->tenant == 0 ? 0177 : 0111));
	return d->epoll >= 0 ? watch(d, socket) : 0;
}

static int sockets_make(struct daemon *d, struct outlet *o, const char *secret)
{
	o->subscriptions = 0;
	o->socket = zmq_socket(d->zmq, ZMQ_XPUB);
	if (!o->socket)
		return -ERR_MEMORY;
	set_int(o->socket, ZMQ_SNDHWM, o->kv ? KV_HWM : EVENTS_HWM);
	if (!o->kv)
		set_int(o->socket, ZMQ_XPUB_MANUAL, 1);
	TRY(one_bind(d, o, o->socket, o->listen, secret));
	if (!o->replay_listen[0])
		return 0;
	o->replay = zmq_socket(d->zmq, ZMQ_ROUTER);
	if (!o->replay)
		return -ERR_MEMORY;
	/* All that is kept, once, and its end. */
	set_int(o->replay, ZMQ_SNDHWM, KV_KEPT_MAX + 2);
	return one_bind(d, o, o->replay, o->replay_listen, secret);
}

static void sockets_end(struct outlet *o)
{
	if (o->socket)
		zmq_close(o->socket);
	if (o->replay)
		zmq_close(o->replay);
	o->socket = o->replay = NULL;
}

static int outlet_add(struct daemon *d, uint32_t tenant, bool kv, const char *listen, const char *replay,
		      const char *secret)
{
	struct outlet *o = &d->outlet[d->outlet_count++];
	*o = (struct outlet){.tenant = tenant, .kv = kv, .lock = -1, .replay_lock = -1};
	snprintf(o->listen, sizeof o->listen, "%s", listen);
	snprintf(o->replay_listen, sizeof o->replay_listen, "%s", replay);
	if (tenant == 0 && (strncmp(listen, "tcp:", 4) == 0 || strncmp(replay, "tcp:", 4) == 0)) {
		log_say(LOG_ERROR, "over TCP events are told to tenants, who have keys (--tenants)");
		return -ERR_BAD_ARG;
	}
	TRY(endpoint_path_take(&o->lock, o->listen));
	if (replay[0])
		TRY(endpoint_path_take(&o->replay_lock, o->replay_listen));
	return sockets_make(d, o, secret);
}

/* Where a tenant's session events are: where it was said, or beside its ipc socket. "": nowhere. */
static void events_listen(const char *said, const char *listen, char *out, size_t capacity)
{
	out[0] = 0;
	if (strcmp(said, "none") == 0)
		return;
	if (said[0])
		snprintf(out, capacity, "%s", said);
	else if (strncmp(listen, "ipc://", 6) == 0 && endpoint_path_fits(listen, "-events"))
		snprintf(out, capacity, "%s-events", listen);
}

static int tenant_open(struct daemon *d, uint32_t tenant, const char *secret)
{
	const struct tenant *t = &d->tenants.tenant[tenant];
	const struct options *p = &d->options;
	char events[OPTIONS_PATH_MAX + 8];
	events_listen(tenant ? t->events : p->events, tenant ? t->listen : p->listen, events, sizeof events);
	const char *kv = tenant ? t->kv_events : p->kv_events;
	if (events[0])
		TRY(outlet_add(d, tenant, false, events, "", secret));
	if (kv[0])
		TRY(outlet_add(d, tenant, true, kv, tenant ? t->kv_replay : p->kv_replay, secret));
	return 0;
}

static int secret_read(const struct daemon *d, char secret[KEY_CHARS + 1])
{
	secret[0] = 0;
	return d->options.curve_key[0] ? key_read(d->options.curve_key, secret) : 0;
}

int outlets_open(struct daemon *d)
{
	char secret[KEY_CHARS + 1];
	d->outlet = calloc(OUTLETS_MAX, sizeof *d->outlet);
	if (!d->outlet)
		return -ERR_MEMORY;
	int code = secret_read(d, secret);
	for (uint32_t i = 0; !code && i < d->tenants.count; i++)
		code = tenant_open(d, i, secret);
	sodium_memzero(secret, sizeof secret);
	return code;
}

void outlets_close(struct daemon *d)
{
	for (uint32_t i = 0; i < d->outlet_count; i++) {
		struct outlet *o = &d->outlet[i];
		sockets_end(o);
		if (o->lock >= 0)
			close(o->lock);
		if (o->replay_lock >= 0)
			close(o->replay_lock);
	}
	d->outlet_count = 0;
	free(d->outlet);
	d->outlet = NULL;
}

int outlets_watch(struct daemon *d)
{
	for (uint32_t i = 0; i < d->outlet_count; i++) {
		TRY(watch(d, d->outlet[i].socket));
		if (d->outlet[i].replay)
			TRY(watch(d, d->outlet[i].replay));
	}
	return 0;
}

static void outlet_again(struct daemon *d, struct outlet *o)
{
	char secret[KEY_CHARS + 1];
	sockets_end(o);
	int code = secret_read(d, secret);
	if (!code)
		code = sockets_make(d, o, secret);
	sodium_memzero(secret, sizeof secret);
	if (!code)
		return;
	sockets_end(o);
	log_say(LOG_ERROR, "the events of tenant %s are told nobody until the next reload: %s",
		d->tenants.tenant[o->tenant].name, err_text(code));
}

void outlets_again(struct daemon *d)
{
	for (uint32_t i = 0; i < d->outlet_count; i++)
		outlet_again(d, &d->outlet[i]);
}

/* The prefixes of topics that a user may hear of, at that outlet. */
static uint32_t prefixes(struct daemon *d, const struct outlet *o, const char *user,
			 char out[PREFIXES_MAX][TOPIC_MAX], size_t length[PREFIXES_MAX])
{
	uint32_t roles = 0;
	bool revoked = true;
	/* An outlet has no door of its own; the tenant's first one stands for it. */
	uint32_t door = 0;
	while (door < d->door_count && d->door[door].tenant != o->tenant)
		door++;
	const uint32_t principal = door == d->door_count || !user || !user[0]
		? NONE : principal_of_user(d, door, user, &roles, &revoked);
	if (principal == NONE || revoked)
		return 0;
	if (roles & ROLE_OPERATOR) {
		length[0] = 0;
		return 1;
	}
	/* The zero byte ends the name: no name is another's beginning. */
	length[0] = strlen(d->principals[principal].name) + 1;
	memcpy(out[0], d->principals[principal].name, length[0]);
	if (!(roles & ROLE_GATEWAY))
		return 1;
	memcpy(out[1], out[0], length[0]);
	out[1][length[0] - 1] = '/';
	length[1] = length[0];
	return 2;
}

static void subscription(struct daemon *d, struct outlet *o, const char *topic, size_t length, bool begins,
			 const char *user)
{
	char may[PREFIXES_MAX][TOPIC_MAX];
	size_t may_length[PREFIXES_MAX];
	const uint32_t count = prefixes(d, o, user, may, may_length);
	const int option = begins ? ZMQ_SUBSCRIBE : ZMQ_UNSUBSCRIBE;
	for (uint32_t i = 0; i < count; i++) {
		if (length <= may_length[i] && memcmp(topic, may[i], length) == 0)
			zmq_setsockopt(o->socket, option, may[i], may_length[i]);
		else if (may_length[i] < length && memcmp(topic, may[i], may_length[i]) == 0)
			zmq_setsockopt(o->socket, option, topic, length);
	}
}

/* True if there was one; false: nothing is left, or the socket was made anew. */
static bool subscription_take(struct daemon *d, struct outlet *o)
{
	zmq_msg_t m;
	zmq_msg_init(&m);
	if (zmq_msg_recv(&m, o->socket, ZMQ_DONTWAIT) < 0) {
		zmq_msg_close(&m);
		return false;
	}
	const uint8_t *bytes = zmq_msg_data(&m);
	const size_t length = zmq_msg_size(&m);
	const bool odd = length == 0 || bytes[0] > 1 || zmq_msg_more(&m);
	if (!odd && bytes[0] == 1)
		o->subscriptions++;
	else if (!odd && o->subscriptions)
		o->subscriptions--;
	const bool again = odd || o->subscriptions > d->options.subscriptions;
	if (!again && !o->kv)
		subscription(d, o, (const char *)bytes + 1, length - 1, bytes[0] == 1,
			     zmq_msg_gets(&m, "User-Id"));
	zmq_msg_close(&m);
	if (again) {
		log_say(LOG_NOTICE, "the events' socket of tenant %s is made anew: %s",
			d->tenants.tenant[o->tenant].name,
			odd ? "somebody sent what is no subscription" : "too many subscriptions");
		outlet_again(d, o);
	}
	return !again;
}

static bool readable(void *socket)
{
	int events = 0;
	size_t size = sizeof events;
	return socket && zmq_getsockopt(socket, ZMQ_EVENTS, &events, &size) == 0 && (events & ZMQ_POLLIN);
}

bool outlets_take(struct daemon *d)
{
	bool more = false;
	for (uint32_t i = 0; i < d->outlet_count; i++) {
		struct outlet *o = &d->outlet[i];
		int taken = 0;
		while (taken < TAKE_PER_TURN && readable(o->socket) && subscription_take(d, o))
			taken++;
		more |= taken == TAKE_PER_TURN;
		if (o->replay && readable(o->replay))
			more |= kv_replay(d, o);
	}
	return more;
}

bool outlets_readable(const struct daemon *d)
{
	for (uint32_t i = 0; i < d->outlet_count; i++)
		if (readable(d->outlet[i].socket) || readable(d->outlet[i].replay))
			return true;
	return false;
}

void outlet_say(const struct outlet *o, const char *topic, size_t topic_length, uint64_t seq,
		const void *body, size_t length)
{
	uint8_t number[8];
	for (int i = 0; i < 8; i++)
		number[i] = (uint8_t)(seq >> 8 * (7 - i));
	/* Who does not read loses messages, and sees the gap. */
	if (!o->socket || zmq_send(o->socket, topic, topic_length, ZMQ_SNDMORE | ZMQ_DONTWAIT) < 0)
		return;
	zmq_send(o->socket, number, sizeof number, ZMQ_SNDMORE | ZMQ_DONTWAIT);
	zmq_send(o->socket, body, length, ZMQ_DONTWAIT);
}

void outlet_send(struct daemon *d, uint32_t tenant, const char *topic, size_t topic_length, uint64_t seq,
		 const void *body, size_t length)
{
	for (uint32_t i = 0; i < d->outlet_count; i++)
		if (!d->outlet[i].kv && (d->outlet[i].tenant == tenant || d->outlet[i].tenant == 0))
			outlet_say(&d->outlet[i], topic, topic_length, seq, body, length);
}
