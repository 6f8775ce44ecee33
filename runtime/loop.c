/*
 * The loop: sockets, engine, audit log, signals and time, one thread. Time is read once a turn.
 *
 * ZeroMQ's descriptors are edge-triggered: after every wake-up each socket is asked for its events
 * whether or not it fired, and again before the loop sleeps.
 */
#include "runtime/loop.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/signalfd.h>
#include <time.h>
#include <unistd.h>
#include <zmq.h>

#include "runtime/events.h"
#include "runtime/forget.h"
#include "runtime/intake.h"
#include "runtime/keep.h"

enum {
	MESSAGES_PER_TURN = 64,
	MESSAGES_US = 4000, /* after so long the others have their turn */
	PARTS_MAX = 4,
	SLEEP_MS_MAX = 60000,
	LINGER_MS = 1000,
	DRAIN_STUCK_MS = 5000,
	AUDIT_EVERY_MS = 1000,
	OWED_RETRY_US = 10000
};

/* One message: routing id, header, body, maybe a blob. */
struct parts {
	zmq_msg_t part[PARTS_MAX];
	int count;
	bool too_many;
};

uint64_t loop_clock_us(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}

/* Takes a whole message off the socket, however many frames it has. False: there is none. */
static bool parts_receive(void *socket, struct parts *p)
{
	zmq_msg_t extra;
	p->count = 0;
	p->too_many = false;
	for (bool more = true; more;) {
		zmq_msg_t *to = p->count < PARTS_MAX ? &p->part[p->count] : &extra;
		zmq_msg_init(to);
		if (zmq_msg_recv(to, socket, ZMQ_DONTWAIT) < 0) {
			zmq_msg_close(to);
			break;
		}
		more = zmq_msg_more(to) != 0;
		if (to == &extra) {
			p->too_many = true;
			zmq_msg_close(to);
		} else {
			p->count++;
		}
	}
	return p->count > 0;
}

static void parts_close(struct parts *p)
{
	for (int i = 0; i < p->count; i++)
		zmq_msg_close(&p->part[i]);
}

/* For whom a gateway speaks; its own principal is never another's. */
static int act_as(struct daemon *d, struct peer *p, const struct wire_str *name)
{
	char full[NAME_MAX_BYTES];
	const char *base = d->principals[p->base].name;
	if (!(p->roles & ROLE_GATEWAY))
		return -ERR_FORBIDDEN;
	/* A name with a slash could be another's; one that is cut, too. */
	if (name->length == 0 || memchr(name->at, '/', name->length) ||
	    strlen(base) + 1 + name->length >= sizeof full)
		return -ERR_OUT_OF_RANGE;
	const size_t at = strlen(base);
	memcpy(full, base, at);
	full[at] = '/';
	memcpy(full + at + 1, name->at, name->length);
	full[at + 1 + name->length] = 0;
	const uint32_t principal = principal_find(d, full, d->principals[p->base].tenant);
	if (principal == NONE)
		return -ERR_LIMIT;
	if (p->calls && principal != p->principal)
		return -ERR_FORBIDDEN; /* not under a call that runs */
	p->principal = principal;
	return 0;
}

/* How many have said HELLO at that tenant. Who left without BYE shows only when he is sent something: with
   `ask` each is, and what cannot be delivered to is gone. */
static uint64_t tenant_peers(struct daemon *d, uint32_t tenant, bool ask)
{
	static const uint8_t nothing[] = {0x81, 0xa1, 't', 0};
	uint64_t count = 0;
	for (uint32_t i = 0; i < d->options.peers; i++) {
		const struct peer *q = &d->peers[i];
		if (!q->used || !q->hello || d->door[q->door].tenant != tenant)
			continue;
		if (ask && peer_send(d, i, WIRE_PONG, 0, 0, nothing, sizeof nothing, NULL, 0) == -ERR_CLOSED)
			peer_gone(d, i);
		else
			count++;
	}
	return count;
}

static bool tenant_full(struct daemon *d, const struct peer *p)
{
	const uint32_t tenant = d->door[p->door].tenant;
	const uint64_t most = d->tenants.tenant[tenant].connections;
	return most && tenant_peers(d, tenant, false) >= most && tenant_peers(d, tenant, true) >= most;
}

static void hello(struct daemon *d, uint32_t peer, const void *body, size_t length)
{
	struct wire_hello m;
	struct peer *p = &d->peers[peer];
	int code = wire_read_hello(body, length, &d->wire, &m);
	if (code == 0 && !p->hello && tenant_full(d, p))
		code = -ERR_LIMIT;
	if (code == 0 && m.act_as.at)
		code = act_as(d, p, &m.act_as);
	if (code == -ERR_FORBIDDEN)
		authority_denied(d, peer, AUTH_ACT_AS, NULL, NULL);
	if (code) {
		peer_reject(d, peer, 0, code);
		return;
	}
	p->hello = true;
	const char *name = d->principals[p->principal].name;
	struct wire_welcome w = {
		.minor = (int)m.minor < WIRE_MINOR ? m.minor : WIRE_MINOR, .principal = {name, strlen(name)},
		.frame_max = d->options.blob_bytes, .inflight_max = d->options.calls_principal,
		.window_max = d->options.window_max, .depth_max = d->wire.depth,
		.hb_ms = d->options.heartbeat_ms};
	uint8_t bytes[512];
	struct wire_writer writer;
	memcpy(w.boot.bytes, d->boot, sizeof d->boot);
	wire_writer_init(&writer, bytes, sizeof bytes);
	CHECK(wire_write_welcome(&writer, &w) == 0);
	peer_say(d, peer, WIRE_WELCOME, 0, bytes, writer.length);
}

static void window(struct daemon *d, uint32_t peer, const struct wire_header *h,
		const void *body, size_t length)
{
	struct wire_window m;
	const int code = wire_read_window(body, length, &d->wire, &m);
	const uint32_t call = code ? NONE : call_of_op(d, d->peers[peer].principal, &m.op);
	/* A grant may cross the END of its call: that is no error. */
	if (code)
		peer_reject(d, peer, h->channel, code);
	else if (call != NONE && d->calls[call].peer == peer)
		call_window(d, call, m.max_off);
}

static void cancel(struct daemon *d, uint32_t peer, const struct wire_header *h,
		const void *body, size_t length)
{
	struct wire_cancel m;
	const int code = wire_read_cancel(body, length, &d->wire, &m);
	if (code) {
		peer_reject(d, peer, h->channel, code);
		return;
	}
	const uint32_t call = m.has_op ? call_of_op(d, d->peers[peer].principal, &m.op)
				       : call_of_channel(d, peer, h->channel);
	if (call == NONE && m.has_op)
		authority_call(d, peer, &m.op);
	if (call == NONE)
		peer_reject(d, peer, h->channel, ERR_NOT_FOUND);
	else if (d->calls[call].state == CALL_DEFERRED) {
		d->calls[call].state = CALL_ENDED;
		struct wire_end end = {.status = {"cancelled", 9}, .turn = WIRE_NONE, .epoch = WIRE_NONE};
		call_end(d, call, &end);
	} else {
		/* Nobody wants the rest: END, this one's or the one that won the race, comes next. */
		d->calls[call].dropped = true;
		call_cancel(d, call, END_CANCEL);
	}
}

static void pong(struct daemon *d, uint32_t peer, const void *body, size_t length)
{
	struct wire_ping m;
	uint8_t bytes[32];
	struct wire_writer w;
	const int code = wire_read_ping(body, length, &d->wire, &m);
	if (code) {
		peer_reject(d, peer, 0, code);
		return;
	}
	wire_writer_init(&w, bytes, sizeof bytes);
	CHECK(wire_write_ping(&w, &m) == 0);
	peer_say(d, peer, WIRE_PONG, 0, bytes, w.length);
}

void loop_message(struct daemon *d, uint32_t peer, const struct wire_header *h, const void *body,
		  size_t length, const void *blob, size_t blob_length)
{
	if (d->peers[peer].chosen) {
		authority_denied(d, peer, AUTH_ROUTING, NULL, NULL);
		peer_reject(d, peer, h->channel, ERR_ROUTING_ID);
		return;
	}
	if (h->type != WIRE_HELLO && !d->peers[peer].hello) {
		peer_reject(d, peer, h->channel, ERR_UNAUTHENTICATED);
		return;
	}
	if (blob && h->type != WIRE_CALL) {
		peer_reject(d, peer, h->channel, ERR_BAD_FRAMES);
		return;
	}
	if (d->door[d->peers[peer].door].control &&
	    (h->type == WIRE_RESUME || h->type == WIRE_WINDOW || h->type == WIRE_ACK)) {
		authority_denied(d, peer, AUTH_ROLE, NULL, NULL);
		peer_reject(d, peer, h->channel, ERR_FORBIDDEN);
		return;
	}
	switch (h->type) {
	case WIRE_HELLO: hello(d, peer, body, length); break;
	case WIRE_CALL:
		method_call(d, peer, h->channel, body, length, blob, blob_length);
		break;
	case WIRE_WINDOW: window(d, peer, h, body, length); break;
	case WIRE_CANCEL: cancel(d, peer, h, body, length); break;
	case WIRE_RESUME: attach_resume(d, peer, h, body, length); break;
	case WIRE_ACK: attach_ack(d, peer, h, body, length); break;
	case WIRE_PING: pong(d, peer, body, length); break;
	case WIRE_BYE: peer_gone(d, peer); break;
	default: peer_reject(d, peer, h->channel, ERR_BAD_TYPE);
	}
}

/* Its key was taken from it: nothing of it goes on. */
static void revoked(struct daemon *d, uint32_t peer)
{
	for (uint32_t i = 0; i < d->calls_top; i++)
		if (d->calls[i].state != CALL_FREE && d->calls[i].peer == peer)
			d->calls[i].detach_us = 0;
	authority_denied(d, peer, AUTH_REVOKED, NULL, NULL);
	peer_reject(d, peer, 0, ERR_KEY_REVOKED);
	peer_gone(d, peer);
}

static size_t parts_bytes(struct parts *p)
{
	size_t bytes = 0;
	for (int i = 1; i < p->count; i++)
		bytes += zmq_msg_size(&p->part[i]);
	return bytes;
}

/* The peer that sent it, known by what its frames carry of their sender; NONE: it is not looked at. */
static uint32_t parts_peer(struct daemon *d, uint32_t door, struct parts *p)
{
	const void *id = zmq_msg_data(&p->part[0]);
	const size_t length = zmq_msg_size(&p->part[0]);
	const char *user = zmq_msg_gets(&p->part[p->count - 1], "User-Id");
	uint32_t roles = 0;
	bool lost = false;
	const uint32_t principal =
		user && user[0] ? principal_of_user(d, door, user, &roles, &lost) : NONE;
	if (principal != NONE && lost) {
		/* Under whatever name it was let in. */
		for (uint32_t i = 0; i < d->options.peers; i++) {
			const struct peer *q = &d->peers[i];
			if (q->used && q->door == door && q->id_length == length && memcmp(q->id, id, length) == 0)
				revoked(d, i);
		}
		return NONE;
	}
	const uint32_t peer = principal == NONE ? NONE : peer_find(d, door, id, length, principal);
	if (peer == NONE) {
		log_say(LOG_DEBUG, "a message from nobody known, or too many peers or principals; dropped");
		return NONE;
	}
	struct peer *q = &d->peers[peer];
	q->roles = (uint8_t)roles;
	q->seen_us = d->now_us;
	return d->now_us < q->muted_us ? NONE : peer;
}

/* Too much from one peer. What steers a call, and what ends one, is cheap and always done. */
static bool parts_over_rate(struct daemon *d, uint32_t peer, const struct wire_header *h, struct parts *p)
{
	if (!peer_over_rate(d, &d->peers[peer], parts_bytes(p)))
		return false;
	const struct wire_err err = {.code = ERR_LIMIT, .retry = "later", .after_ms = 1000, .used = WIRE_NONE,
				     .asked = WIRE_NONE,
				     .limit = d->tenants.tenant[d->door[d->peers[peer].door].tenant].rate};
	if (h->type == WIRE_WINDOW || h->type == WIRE_CANCEL || h->type == WIRE_ACK || h->type == WIRE_BYE)
		return false;
	if (h->type != WIRE_PING)
		peer_reject_numbers(d, peer, h->channel, &err);
	return true;
}

static void parts_do(struct daemon *d, uint32_t door, struct parts *p)
{
	struct wire_header h = {0};
	const int fd = zmq_msg_get(&p->part[p->count - 1], ZMQ_SRCFD);
	intake_taken(fd);
	d->library_thread = intake_thread(fd);
	const uint32_t peer = parts_peer(d, door, p);
	if (peer == NONE)
		return;
	int code = p->count < 3 || p->too_many ? -ERR_BAD_FRAMES : 0;
	if (code == 0)
		code = wire_header_read(zmq_msg_data(&p->part[1]), zmq_msg_size(&p->part[1]), &h);
	if (code == 0 && (p->count == 4) != ((h.flags & WIRE_FLAG_BLOB) != 0))
		code = -ERR_BAD_FRAMES;
	if (code == 0 && p->count == 4 && zmq_msg_size(&p->part[3]) > d->wire.blob_bytes)
		code = -ERR_TOO_BIG;
	if (parts_over_rate(d, peer, &h, p))
		return;
	if (code)
		peer_reject(d, peer, h.channel, code);
	else
		loop_message(d, peer, &h, zmq_msg_data(&p->part[2]), zmq_msg_size(&p->part[2]),
			     p->count == 4 ? zmq_msg_data(&p->part[3]) : NULL,
			     p->count == 4 ? zmq_msg_size(&p->part[3]) : 0);
}

static bool socket_readable(void *socket)
{
	int events = 0;
	size_t size = sizeof events;
	return zmq_getsockopt(socket, ZMQ_EVENTS, &events, &size) == 0 && (events & ZMQ_POLLIN);
}

/* True if messages of that door are left for the next turn. */
static bool door_take(struct daemon *d, uint32_t door)
{
	struct parts p;
	const uint64_t began = loop_clock_us();
	for (int i = 0; i < MESSAGES_PER_TURN; i++) {
		if (!parts_receive(d->door[door].socket, &p))
			return false;
		parts_do(d, door, &p);
		parts_close(&p);
		/* Costly ones share the loop with streams and with other peers. */
		if (loop_clock_us() - began > MESSAGES_US)
			break;
	}
	return true;
}

/* Control first, so that a cancel waits behind no prompt. */
static bool messages_take(struct daemon *d)
{
	bool more = false;
	while (socket_readable(d->zap))
		zap_serve(d);
	for (uint32_t i = 0; i < d->door_count; i++)
		if (d->door[i].control)
			more |= door_take(d, i);
	for (uint32_t i = 0; i < d->door_count; i++)
		if (!d->door[i].control)
			more |= door_take(d, i);
	return more;
}

static bool doors_readable(const struct daemon *d)
{
	for (uint32_t i = 0; i < d->door_count; i++)
		if (socket_readable(d->door[i].socket))
			return true;
	return socket_readable(d->zap) || outlets_readable(d);
}

static void drain_begin(struct daemon *d)
{
	uint8_t bytes[128];
	struct wire_writer w;
	const struct wire_goaway m = {
			.why = {"shutdown", 8}, .deadline_ms = d->options.drain_ms, .retry_ms = 1000};
	log_say(LOG_NOTICE, "draining: running turns have %llu ms",
		(unsigned long long)d->options.drain_ms);
	d->draining = true;
	d->drain_until_us = d->now_us + d->options.drain_ms * 1000;
	wire_writer_init(&w, bytes, sizeof bytes);
	CHECK(wire_write_goaway(&w, &m) == 0);
	for (uint32_t i = 0; i < d->options.peers; i++)
		if (d->peers[i].used && d->peers[i].hello)
			peer_say(d, i, WIRE_GOAWAY, 0, bytes, w.length);
	const struct event e = {.kind = EVENT_DRAIN,
			.session = SCHED_NONE,
			.turn = SCHED_NONE,
			.now_us = d->now_us};
	step(d, &e, NULL);
	/* What has not begun will not begin. */
	for (uint32_t i = 0; i < d->calls_top; i++)
		if (d->calls[i].state == CALL_RUNNING && d->calls[i].waiting)
			call_cancel(d, i, END_DRAIN);
}

/* True when the last turn has ended and what it said is on its way. */
static bool drain_over(struct daemon *d)
{
	bool running = d->in_flight, sending = false;
	const bool late = d->now_us >= d->drain_until_us;
	for (uint32_t i = 0; i < d->calls_top; i++) {
		const struct call *c = &d->calls[i];
		if (c->state == CALL_RUNNING && late)
			call_cancel(d, i, END_DRAIN);
		running |= c->state == CALL_RUNNING || c->state == CALL_DEFERRED ||
			   (c->state == CALL_ENDED && c->peer != NONE && call_waits_for_log(d, c));
		sending |= c->state == CALL_ENDED && c->peer != NONE;
	}
	if (running) {
		d->drain_quiet_us = 0;
		/* A device or a log that does not come back does not hold the process. */
		return d->now_us >= d->drain_until_us + DRAIN_STUCK_MS * 1000;
	}
	if (!d->drain_quiet_us)
		d->drain_quiet_us = d->now_us;
	if (sending && d->now_us < d->drain_quiet_us + LINGER_MS * 1000)
		return false;
	/* Who has not read the rest by now gets at least the END. */
	for (uint32_t i = 0; sending && i < d->calls_top; i++)
		d->calls[i].dropped = true;
	calls_flush(d);
	return true;
}

static void signals_take(struct daemon *d)
{
	struct signalfd_siginfo info;
	while (read(d->signals, &info, sizeof info) == sizeof info) {
		if (info.ssi_signo == SIGHUP) {
			authority_reload(d);
			continue;
		}
		if (d->draining) {
			d->stopping = true; /* asked twice: at once */
			continue;
		}
		drain_begin(d);
	}
}

static void fd_drain(int fd)
{
	uint64_t n;
	while (read(fd, &n, sizeof n) == sizeof n)
		;
}

static bool engine_take(struct daemon *d)
{
	struct engine_job *job;
	bool some = false;
	/* Without room in the audit log the step waits: what changes something must be on record. */
	for (; step_room(d) && (job = engine_done(d->engine)); some = true)
		step_batch_done(d, job);
	lower_tell(d);
	return some;
}

static void store_take(struct daemon *d)
{
	if (!d->store)
		return;
	keep_say(d);
	const uint64_t durable = store_durable(d->store), conflicts = store_conflicts(d->store);
	if (conflicts != d->conflicts_told) {
		log_say(d->sink ? LOG_DEBUG : LOG_ERROR,
			"integrity: %llu owner rows of the audit log were not what they should be",
			(unsigned long long)(conflicts - d->conflicts_told));
		d->incidents[REASON_ROW] += conflicts - d->conflicts_told;
		d->conflicts_told = conflicts;
		const struct store_last_word word = {.reason = REASON_ROW};
		if (d->options.integrity == INTEGRITY_ABORT)
			store_beacon(d->store, &word);
		CHECK(d->options.integrity != INTEGRITY_ABORT);
	}
	if (store_failed(d->store) && !d->failed) {
		log_say(LOG_ERROR,
			"the audit log in %.400s failed: %s; stopping: make room or mend the disk, start again",
			d->options.state, err_text(store_failed(d->store)));
		d->failed = true;
	}
	if (durable == d->durable_told || !step_room(d))
		return;
	d->durable_told = durable;
	const struct event e = {.kind = EVENT_DURABLE, .session = SCHED_NONE, .turn = SCHED_NONE,
				.now_us = d->now_us, .as.durable = {.step = durable}};
	step(d, &e, NULL);
}

static int sleep_ms(struct daemon *d, uint64_t calls_next, bool more)
{
	if (more || doors_readable(d) || (d->copied_count && step_room(d)))
		return 0;
	/* While the audit log has no room nothing of this could be done: its growth wakes us. */
	uint64_t next = step_room(d) ? sched_deadline_us(d->sched) : UINT64_MAX;
	next = calls_next < next ? calls_next : next;
	if (d->draining && d->now_us + 20000 < next)
		next = d->now_us + 20000;
	const uint64_t look = lost_look_us(d), waits = keep_look_us(d);
	next = look < next ? look : next;
	next = waits < next ? waits : next;
	if (next == UINT64_MAX)
		return SLEEP_MS_MAX;
	const uint64_t now = loop_clock_us();
	if (next <= now)
		return 0;
	const uint64_t ms = (next - now + 999) / 1000;
	return ms > SLEEP_MS_MAX ? SLEEP_MS_MAX : (int)ms;
}

static int epoll_add(struct daemon *d, int fd)
{
	struct epoll_event e = {.events = EPOLLIN, .data.fd = fd};
	return epoll_ctl(d->epoll, EPOLL_CTL_ADD, fd, &e) == 0 ? 0 : -ERR_IO;
}

static int socket_fd(void *socket)
{
	int fd = -1;
	size_t size = sizeof fd;
	CHECK(zmq_getsockopt(socket, ZMQ_FD, &fd, &size) == 0);
	return fd;
}

static int loop_open(struct daemon *d)
{
	d->epoll = epoll_create1(EPOLL_CLOEXEC);
	if (d->epoll < 0)
		return -ERR_IO;
	for (uint32_t i = 0; i < d->door_count; i++)
		TRY(epoll_add(d, socket_fd(d->door[i].socket)));
	TRY(epoll_add(d, socket_fd(d->zap)));
	TRY(outlets_watch(d));
	TRY(epoll_add(d, d->signals));
	if (d->store)
		TRY(epoll_add(d, store_fd(d->store)));
	return lower_disk_fd(d) >= 0 ? epoll_add(d, lower_disk_fd(d)) : 0;
}

/* The engine's descriptor stays readable while its result cannot be taken: then it is not waited for. */
static void engine_watch(struct daemon *d)
{
	const bool watch = step_room(d);
	struct epoll_event e = {.events = EPOLLIN, .data.fd = engine_fd(d->engine)};
	if (watch == d->engine_watched)
		return;
	d->engine_watched = watch;
	CHECK(epoll_ctl(d->epoll, watch ? EPOLL_CTL_ADD : EPOLL_CTL_DEL, e.data.fd, &e) == 0);
}

/* When nothing runs, the scheduler's whole state is checked; not for each small call again. */
static void audit(struct daemon *d)
{
	if (!d->audit_due || d->in_flight || d->now_us < d->audited_us + AUDIT_EVERY_MS * 1000)
		return;
	d->audit_due = false;
	d->audited_us = d->now_us;
	sched_audit(d->sched);
}

void loop_work(struct daemon *d, bool *more, uint64_t *calls_next)
{
	d->now_us = loop_clock_us();
	d->loop_turns++;
	const uint64_t disk = lower_disk_tick(d);
	if (engine_take(d))
		calls_flush(d); /* before messages that have just come */
	lower_submit(d);
	store_take(d);
	rates_tell(d);
	if (d->now_us >= sched_deadline_us(d->sched) && step_room(d)) {
		const struct event e = {.kind = EVENT_TIMER, .session = SCHED_NONE, .turn = SCHED_NONE,
					.now_us = d->now_us};
		step(d, &e, NULL);
	}
	*more = d->sink ? false : messages_take(d);
	*more |= outlets_take(d);
	turns_deferred(d);
	peers_flush(d);
	calls_flush(d);
	*calls_next = calls_tick(d);
	*calls_next = disk < *calls_next ? disk : *calls_next;
	const uint64_t reap = sessions_reap(d);
	*calls_next = reap < *calls_next ? reap : *calls_next;
	if (d->owed_count && d->now_us + OWED_RETRY_US < *calls_next)
		*calls_next = d->now_us + OWED_RETRY_US;
	const uint64_t held = authority_tick(d);
	*calls_next = held < *calls_next ? held : *calls_next;
	const uint64_t sweep = keep_sweep(d), forget = forget_tick(d), scrub = digests_scrub(d);
	*calls_next = forget < *calls_next ? forget : *calls_next;
	*calls_next = sweep < *calls_next ? sweep : *calls_next;
	*calls_next = scrub < *calls_next ? scrub : *calls_next;
	step_record_close(d);
	kv_flush(d);
	audit(d);
}

static void loop_turn(struct daemon *d, bool *more, uint64_t *calls_next)
{
	d->now_us = loop_clock_us();
	signals_take(d);
	loop_work(d, more, calls_next);
	lost_look(d);
	engine_watch(d);
}

int loop_run(struct daemon *d)
{
	bool more = false;
	uint64_t calls_next = UINT64_MAX;
	TRY(loop_open(d));
	d->now_us = d->started_us = loop_clock_us();
	for (;;) {
		loop_turn(d, &more, &calls_next);
		if (d->failed || d->stopping || (d->draining && drain_over(d) && lower_park(d)))
			break;
		struct epoll_event fired[8];
		const int n = epoll_wait(d->epoll, fired, 8, sleep_ms(d, calls_next, more));
		for (int i = 0; i < n; i++)
			if ((d->store && fired[i].data.fd == store_fd(d->store)) ||
			    fired[i].data.fd == lower_disk_fd(d))
				fd_drain(fired[i].data.fd);
	}
	if (d->failed)
		lost_calls(d);
	authority_end(d);
	close(d->epoll);
	return d->failed ? -ERR_INTERNAL : 0;
}
