/*
 * The inside of a client handle: the socket, and messages to and from it. Private to the client
 * library. link.c sends and receives; call.c runs one call; client.c is the public face.
 */
#ifndef HOLDFAST_CLIENTS_LINK_H
#define HOLDFAST_CLIENTS_LINK_H

#include <pthread.h>
#include <stdatomic.h>
#include <zmq.h>

#include "clients/client.h"
#include "clients/wire.h"

enum {
	LINK_TIMEOUT_MS = 5000,  /* for WELCOME, and for a cancelled call to end */
	LINK_HB_MS_MIN = 50, LINK_HB_MS_MAX = 60000,
	LINK_MISSES_MAX = 3,     /* pings without any answer */
	LINK_STRAY_MAX = 10000,  /* messages within a call that are not of it */
	LINK_FRAMES_MAX = 3
};

struct hf_client {
	char *endpoint, *client, *token, *act_as;
	uint32_t timeout_ms, window;
	char keys[3][41];       /* over TCP: our public, our secret, the daemon's; empty: none */
	uint32_t resume_ms;     /* 0: a call ends with its connection */
	void *context, *socket; /* socket NULL: HELLO must be said again */
	void *monitor;          /* says when the connection ends; may be NULL */
	uint64_t monitors;      /* made so far: each has a name of its own */
	pthread_mutex_t lock;   /* held through a call */
	atomic_uintptr_t owner; /* the thread that holds it; 0: none */
	pthread_mutex_t count_lock;
	pthread_cond_t counted;
	uint32_t started;       /* calls that run in threads of ours */
	int wake[2];            /* a pipe that hf_cancel writes to */
	atomic_bool cancel;
	bool busy;              /* inside a call: callbacks must not start another */
	uint64_t channel;       /* of the last call */
	uint64_t hb_ms;
	struct wire_id boot;
	char principal[4 * WIRE_NAME_MAX + 1];
	struct wire_limits limits; /* of what the daemon may send */
	/* Room that would be too large for the stack. */
	struct wire_call call, check;
	struct wire_end end;
	uint8_t *body;
	size_t body_capacity;
};

/* A message received: frames stay until link_drop. */
struct link_message {
	zmq_msg_t frames[LINK_FRAMES_MAX];
	int count;
	struct wire_header header;
	const uint8_t *body, *blob;
	size_t body_length, blob_length;
};

uint64_t link_now_ms(void); /* monotonic */
int link_connect(struct hf_client *c); /* socket and HELLO; nothing if it stands */
void link_reset(struct hf_client *c);  /* the connection is not to be trusted any more */
int link_send(struct hf_client *c, uint8_t type, uint64_t channel, const void *body,
	size_t length, const void *blob, size_t blob_length, int timeout_ms);

/* 1: a message, 0: none up to the time, or woken; else a code. Frames, header and sizes of the
   message are checked, its body is not. */
int link_receive(struct hf_client *c, uint64_t until_ms, struct link_message *m);
void link_drop(struct link_message *m);

/* The handle is this thread's until the function returns; NULL in a callback of its own. */
struct hf_client *client_acquire(struct hf_client *c);
void client_release(struct hf_client **held);
#define HOLD(c) __attribute__((cleanup(client_release))) struct hf_client *held = client_acquire(c)
/* The room for the arguments; NULL while a call runs, which is then refused. */
struct wire_call *client_begin(struct hf_client *c, const struct hf_client *held, enum wire_method method,
	const struct hf_session *s, struct hf_end *end);
/* The session that END made; a daemon that names none has not made one. */
int client_opened(struct hf_session *out, struct hf_end *end);
/* hf_events_replay, with a deadline; WIRE_NONE: without. */
int client_replay(struct hf_client *c, const char *principal, uint64_t first, uint64_t count,
	uint64_t deadline_ms, struct hf_end *end);
/* Runs c->call with an optional third frame, and fills end. */
int call_run(struct hf_client *c, const void *blob, size_t blob_length,
	const struct hf_stream *stream, struct hf_end *end);
/* Cancels what runs in threads of ours, and waits for it. */
void started_wait(struct hf_client *c);
void end_init(struct hf_end *end);
int end_fail(struct hf_end *end, int code); /* sets and returns the code */

#endif
