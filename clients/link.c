/*
 * The socket of a client: a DEALER without routing id, HELLO first, messages of two or three
 * frames. The daemon is not trusted: sizes are bounded, everything has an end in time.
 */
#include "clients/link.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

uint64_t link_now_ms(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

void link_reset(struct hf_client *c)
{
	if (c->monitor) {
		zmq_socket_monitor(c->socket, NULL, 0);
		zmq_close(c->monitor);
	}
	if (c->socket)
		zmq_close(c->socket);
	c->socket = c->monitor = NULL;
}

/* Without it a broken connection shows by silence only: ZeroMQ makes another without a word. */
static void monitor_open(struct hf_client *c)
{
	char name[48];
	int linger = 0;
	snprintf(name, sizeof name, "inproc://monitor-%llu", (unsigned long long)c->monitors++);
	if (zmq_socket_monitor(c->socket, name, ZMQ_EVENT_DISCONNECTED) != 0)
		return;
	c->monitor = zmq_socket(c->context, ZMQ_PAIR);
	if (!c->monitor)
		return;
	zmq_setsockopt(c->monitor, ZMQ_LINGER, &linger, sizeof linger);
	if (zmq_connect(c->monitor, name) != 0) {
		zmq_close(c->monitor);
		c->monitor = NULL;
	}
}

/* Whether somebody listens: ZeroMQ itself would try for ever and not say why. */
static int probe(const char *endpoint)
{
	struct sockaddr_un a = {.sun_family = AF_UNIX};
	const char *path = endpoint + 6;
	if (strncmp(endpoint, "ipc://", 6) != 0 || path[0] == '@' || path[0] == '*')
		return 0;
	if (strlen(path) >= sizeof a.sun_path)
		return -ERR_TOO_BIG;
	memcpy(a.sun_path, path, strlen(path) + 1);
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return -ERR_IO;
	int failed = connect(fd, (struct sockaddr *)&a, sizeof a) != 0 ? errno : 0;
	close(fd);
	switch (failed) {
	case 0:
	case EAGAIN: /* its queue is full: somebody is there */
		return 0;
	case ENOENT:
		return -ERR_NO_FILE;
	case ECONNREFUSED:
		return -ERR_CLOSED;
	case EACCES:
	case EPERM:
		return -ERR_PERMISSION;
	default:
		return -ERR_IO;
	}
}

/* The first socket starts ZeroMQ's threads, which block signals only once they run: one that came before
   would be handled there, and end no wait of the program's. */
static void *socket_make(struct hf_client *c)
{
	sigset_t all, before;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	void *socket = zmq_socket(c->context, ZMQ_DEALER);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return socket;
}

static int open_socket(struct hf_client *c)
{
	TRY(probe(c->endpoint));
	c->socket = socket_make(c);
	if (!c->socket)
		return -ERR_MEMORY;
	int linger = 200, immediate = 1, hwm = 256;
	int64_t frame_max = (int64_t)c->limits.blob_bytes + WIRE_HEADER_BYTES;
	zmq_setsockopt(c->socket, ZMQ_LINGER, &linger, sizeof linger);
	zmq_setsockopt(c->socket, ZMQ_IMMEDIATE, &immediate, sizeof immediate);
	zmq_setsockopt(c->socket, ZMQ_SNDHWM, &hwm, sizeof hwm);
	zmq_setsockopt(c->socket, ZMQ_RCVHWM, &hwm, sizeof hwm);
	zmq_setsockopt(c->socket, ZMQ_MAXMSGSIZE, &frame_max, sizeof frame_max);
	if (c->keys[0][0]) {
		zmq_setsockopt(c->socket, ZMQ_CURVE_PUBLICKEY, c->keys[0], 41);
		zmq_setsockopt(c->socket, ZMQ_CURVE_SECRETKEY, c->keys[1], 41);
		zmq_setsockopt(c->socket, ZMQ_CURVE_SERVERKEY, c->keys[2], 41);
	}
	monitor_open(c);
	if (zmq_connect(c->socket, c->endpoint) != 0)
		return errno == EINVAL || errno == EPROTONOSUPPORT || errno == ENOCOMPATPROTO ?
			-ERR_BAD_ARG : -ERR_IO;
	return 0;
}

int link_send(struct hf_client *c, uint8_t type, uint64_t channel, const void *body,
	size_t length, const void *blob, size_t blob_length, int timeout_ms)
{
	uint8_t head[WIRE_HEADER_BYTES];
	struct wire_header h = {type, blob ? WIRE_FLAG_BLOB : 0, channel, 0};
	uint64_t until = link_now_ms() + (uint64_t)timeout_ms;
	wire_header_write(&h, head);
	/* Only the first frame can be refused for want of room or of a connection. */
	while (zmq_send(c->socket, head, sizeof head, ZMQ_SNDMORE | ZMQ_DONTWAIT) < 0) {
		zmq_pollitem_t item = {c->socket, 0, ZMQ_POLLOUT, 0};
		uint64_t now = link_now_ms();
		if (errno != EAGAIN && errno != EINTR)
			return -ERR_IO;
		if (now >= until)
			return -ERR_TIMEOUT;
		/* A signal may end the wait early; the time is asked again. */
		zmq_poll(&item, 1, (long)(until - now));
	}
	while (zmq_send(c->socket, body, length, blob ? ZMQ_SNDMORE : 0) < 0)
		if (errno != EINTR)
			return -ERR_IO;
	while (blob && zmq_send(c->socket, blob, blob_length, 0) < 0)
		if (errno != EINTR)
			return -ERR_IO;
	return 0;
}

void link_drop(struct link_message *m)
{
	for (int i = 0; i < m->count; i++)
		zmq_msg_close(&m->frames[i]);
	m->count = 0;
}

/* Takes all frames of the message that is there, and keeps the first three. */
static int take_frames(struct hf_client *c, struct link_message *m, int *frames)
{
	bool more = true;
	m->count = 0;
	for (*frames = 0; more; (*frames)++) {
		zmq_msg_t f;
		zmq_msg_init(&f);
		while (zmq_msg_recv(&f, c->socket, *frames == 0 ? ZMQ_DONTWAIT : 0) < 0) {
			if (errno == EINTR)
				continue;
			zmq_msg_close(&f);
			return errno == EAGAIN && *frames == 0 ? 0 : -ERR_IO;
		}
		more = zmq_msg_more(&f);
		if (m->count < LINK_FRAMES_MAX) {
			zmq_msg_init(&m->frames[m->count]);
			zmq_msg_move(&m->frames[m->count++], &f);
		}
		zmq_msg_close(&f);
	}
	return 1;
}

static int check_frames(struct hf_client *c, struct link_message *m, int frames)
{
	if (frames < 2 || frames > LINK_FRAMES_MAX)
		return -ERR_BAD_FRAMES;
	TRY(wire_header_read(zmq_msg_data(&m->frames[0]), zmq_msg_size(&m->frames[0]), &m->header));
	if ((m->header.flags & WIRE_FLAG_BLOB) != (frames == 3 ? WIRE_FLAG_BLOB : 0))
		return -ERR_BAD_FRAMES;
	m->body = zmq_msg_data(&m->frames[1]);
	m->body_length = zmq_msg_size(&m->frames[1]);
	m->blob = frames == 3 ? zmq_msg_data(&m->frames[2]) : NULL;
	m->blob_length = frames == 3 ? zmq_msg_size(&m->frames[2]) : 0;
	if (m->body_length > c->limits.body_bytes || m->blob_length > c->limits.blob_bytes)
		return -ERR_TOO_BIG;
	return 0;
}

int link_receive(struct hf_client *c, uint64_t until_ms, struct link_message *m)
{
	zmq_pollitem_t items[3] = {
		{c->socket, 0, ZMQ_POLLIN, 0}, {NULL, c->wake[0], ZMQ_POLLIN, 0},
		{c->monitor, -1, ZMQ_POLLIN, 0}
	};
	uint64_t now = link_now_ms();
	int frames = 0;
	m->count = 0;
	int ready = zmq_poll(items, c->monitor ? 3 : 2, until_ms > now ? (long)(until_ms - now) : 0);
	if (ready < 0)
		return errno == EINTR ? 0 : -ERR_IO;
	if (items[1].revents & ZMQ_POLLIN) {
		char drain[64];
		ssize_t ignored = read(c->wake[0], drain, sizeof drain);
		(void)ignored;
	}
	/* What came before the end is read first. */
	if (!(items[0].revents & ZMQ_POLLIN))
		return c->monitor && items[2].revents & ZMQ_POLLIN ? -ERR_CLOSED : 0;
	int code = take_frames(c, m, &frames);
	if (code > 0) {
		code = check_frames(c, m, frames);
		code = code == 0 ? 1 : code;
	}
	if (code != 1)
		link_drop(m);
	return code;
}

static struct wire_str str(const char *text)
{
	return (struct wire_str){text, text ? strlen(text) : 0};
}

static int say_hello(struct hf_client *c)
{
	struct wire_hello h = {str(c->client), WIRE_MINOR, str(c->token), str(c->act_as)};
	/* Not in c->body: there the call that made us connect is waiting. */
	uint8_t body[2 * WIRE_TOKEN_MAX];
	struct wire_writer w;
	wire_writer_init(&w, body, sizeof body);
	TRY(wire_write_hello(&w, &h));
	/* What the daemon would refuse is refused here, without a word to it. */
	struct wire_hello check;
	TRY(wire_read_hello(body, w.length, NULL, &check));
	return link_send(c, WIRE_HELLO, 0, body, w.length, NULL, 0, (int)c->timeout_ms);
}

static int welcome_read(struct hf_client *c, const struct link_message *m)
{
	struct wire_welcome w;
	struct wire_reject r;
	if (m->header.type == WIRE_REJECT) {
		TRY(wire_read_reject(m->body, m->body_length, &c->limits, &r));
		return -r.err.code;
	}
	if (m->header.type != WIRE_WELCOME)
		return -ERR_BAD_TYPE;
	TRY(wire_read_welcome(m->body, m->body_length, &c->limits, &w));
	c->boot = w.boot;
	c->hb_ms = w.hb_ms < LINK_HB_MS_MIN ? LINK_HB_MS_MIN :
		w.hb_ms > LINK_HB_MS_MAX ? LINK_HB_MS_MAX : w.hb_ms;
	/* Who believes that more was granted than the daemon takes never grants again. */
	if (w.window_max > 0 && w.window_max < c->window)
		c->window = (uint32_t)w.window_max;
	if (w.principal.length >= sizeof c->principal)
		return -ERR_BAD_BODY;
	memcpy(c->principal, w.principal.at, w.principal.length);
	c->principal[w.principal.length] = 0;
	return 0;
}

static int await_welcome(struct hf_client *c)
{
	uint64_t until = link_now_ms() + c->timeout_ms;
	for (;;) {
		struct link_message m;
		int code = link_receive(c, until, &m);
		if (code < 0)
			return code;
		if (code == 1) {
			code = welcome_read(c, &m);
			link_drop(&m);
			return code;
		}
		if (link_now_ms() >= until)
			return -ERR_TIMEOUT;
	}
}

int link_connect(struct hf_client *c)
{
	if (c->socket)
		return 0;
	int code = open_socket(c);
	if (code == 0)
		code = say_hello(c);
	if (code == 0)
		code = await_welcome(c);
	if (code != 0)
		link_reset(c);
	return code;
}
