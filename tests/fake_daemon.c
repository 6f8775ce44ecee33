/*
 * A daemon without a model: AR/1 well enough to try clients on. fake_daemon ENDPOINT [HB_MS] serves
 * until it gets SIGTERM or its standard input ends. The first message of a turn says what it is to
 * do; see the table "turns". A model's reply is the letters of the alphabet. It holds clients to the
 * protocol: what it must refuse is counted, and "metrics" returns the counts.
 */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zmq.h>

#include "clients/wire.h"
#include "tests/fake_results.h"
#include "tests/pack.h"

enum { PEERS_MAX = 256, PIECE = 16 };

/* One client, and the one call that it may have under way. */
struct peer {
	uint8_t id[256];
	size_t id_length;
	bool hello, mute;
	uint64_t channel, seq, off, limit, todo;
	bool running, hanging, logprobs;
	struct wire_id op, sess;
	uint64_t turn;
};
static struct peer peers[PEERS_MAX];
static void *router;
static unsigned long bad, windows, pings, cancels, calls;
static uint64_t hb_ms = 200;
static const struct wire_id boot = {{'f', 'a', 'k', 'e'}};

static struct peer *peer_find(const void *id, size_t length)
{
	struct peer *idle = NULL;
	for (int i = 0; i < PEERS_MAX; i++) {
		if (peers[i].id_length == length && memcmp(peers[i].id, id, length) == 0)
			return &peers[i];
		if (!idle && !peers[i].running)
			idle = &peers[i];
	}
	/* Taking an idle place anew is all that is needed for the tests' few clients. */
	for (int i = 0; i < PEERS_MAX; i++)
		if (peers[i].id_length == 0)
			idle = &peers[i];
	CHECK(idle != NULL);
	*idle = (struct peer){.id_length = length};
	memcpy(idle->id, id, length);
	return idle;
}

static void send_raw(struct peer *p, const void *head, size_t head_length, const void *body,
	size_t length, const void *blob, size_t blob_length)
{
	if (zmq_send(router, p->id, p->id_length, ZMQ_SNDMORE | ZMQ_DONTWAIT) < 0)
		return; /* gone */
	zmq_send(router, head, head_length, ZMQ_SNDMORE);
	zmq_send(router, body, length, blob ? ZMQ_SNDMORE : 0);
	if (blob)
		zmq_send(router, blob, blob_length, 0);
}

static void send_blob(struct peer *p, uint8_t type, uint64_t channel, uint64_t seq,
	const void *body, size_t length, const void *blob, size_t blob_length)
{
	uint8_t head[WIRE_HEADER_BYTES];
	struct wire_header h = {type, blob ? WIRE_FLAG_BLOB : 0, channel, seq};
	wire_header_write(&h, head);
	send_raw(p, head, sizeof head, body, length, blob, blob_length);
}

static uint8_t out[256 << 10];
static struct wire_writer *writer(void)
{
	static struct wire_writer w;
	wire_writer_init(&w, out, sizeof out);
	return &w;
}

static void send_reject(struct peer *p, uint64_t channel, int code)
{
	struct wire_writer *w = writer();
	struct wire_reject m;
	wire_reject_init(&m);
	m.err.code = code;
	wire_write_reject(w, &m);
	send_blob(p, WIRE_REJECT, channel, 0, out, w->length, NULL, 0);
}

static void send_accepted(struct peer *p)
{
	struct wire_writer *w = writer();
	struct wire_accepted m = {p->op, false, false};
	wire_write_accepted(w, &m);
	send_blob(p, WIRE_ACCEPTED, p->channel, 0, out, w->length, NULL, 0);
}

static void send_note(struct peer *p, const char *state)
{
	struct wire_writer *w = writer();
	struct wire_note m;
	wire_note_init(&m);
	m.op = p->op;
	m.state = (struct wire_str){state, strlen(state)};
	m.done = 1;
	m.total = 2;
	wire_write_note(w, &m);
	send_blob(p, WIRE_NOTE, p->channel, 0, out, w->length, NULL, 0);
}

/* Text as DATA, each byte a token. */
static void send_text(struct peer *p, const char *text, size_t length)
{
	struct wire_writer *w = writer();
	static uint8_t ids[4 * 65536], lp[1 << 16];
	struct wire_writer l;
	p->off += length;
	struct wire_data m = {p->off, (uint32_t)length, {text, length}, {NULL, 0}};
	for (size_t i = 0; i < length; i++)
		memcpy(ids + 4 * i, (uint8_t[4]){(uint8_t)text[i], 1, 0, 0}, 4);
	if (p->logprobs) {
		wire_writer_init(&l, lp, sizeof lp);
		wire_put_array(&l, m.n_tokens);
		for (size_t i = 0; i < length; i++) {
			wire_put_map(&l, 2);
			wire_put_text(&l, "t");
			wire_put_u64(&l, (uint64_t)(uint8_t)text[i] + 256);
			wire_put_text(&l, "p");
			wire_put_f32(&l, -0.5f);
		}
		m.logprobs = (struct wire_value){lp, l.length};
	}
	wire_write_data(w, &m);
	send_blob(p, WIRE_DATA, p->channel, ++p->seq, out, w->length, ids, 4 * length);
}

static void send_end(struct peer *p, const char *status, int code, bool tool, const char *result)
{
	static struct wire_end m;
	static uint8_t r[64 << 10];
	struct wire_writer *w = writer();
	wire_end_init(&m);
	m.status = (struct wire_str){status, strlen(status)};
	m.err.code = code;
	if (code == ERR_CONTEXT_FULL) {
		m.err.used = 100;
		m.err.asked = 200;
		m.err.limit = 256;
	}
	if (code == ERR_SESSION_BUSY) {
		m.err.after_ms = 120;
		m.err.retry = "later";
	}
	m.has_sess = true;
	m.sess = p->sess;
	m.turn = p->turn;
	m.epoch = 1;
	if (!result) {
		m.usage = (struct wire_usage){true, 10, 6, 0, 0, 4, p->off, 10 + p->off, 1000, 11, 22,
			33, tool ? 44 : WIRE_NONE, 6, {"new", 3}, 0};
	} else {
		m.result = (struct wire_value){r, pack(result, r, sizeof r)};
	}
	if (tool) {
		m.call_count = 1;
		m.calls[0] = (struct wire_tool_call){{"c1", 2}, {"read_file", 9},
			{"{\"path\":\"a.txt\"}", 16}};
	}
	wire_write_end(w, &m);
	send_blob(p, WIRE_END, p->channel, ++p->seq, out, w->length, NULL, 0);
	p->running = p->hanging = false;
}

/* --- Turns, by the first word of the message. --- */

static void turn_echo(struct peer *p, const char *rest)
{
	p->todo = strtoull(rest, NULL, 10);
	p->running = true;
}

static void turn_tool(struct peer *p, const char *rest)
{
	(void)rest;
	send_text(p, "I look. ", 8);
	send_end(p, "tool_wait", 0, true, NULL);
}

static void turn_error(struct peer *p, const char *rest)
{
	send_end(p, "error", (int)strtol(rest, NULL, 10), false, NULL);
}

static void turn_hang(struct peer *p, const char *rest)
{
	(void)rest;
	send_text(p, "begun ", 6);
	p->running = p->hanging = true;
}

/* Nothing comes of it, but END after a cancel. */
static void turn_wait(struct peer *p, const char *rest)
{
	(void)rest;
	p->running = p->hanging = true;
}

static void turn_notes(struct peer *p, const char *rest)
{
	(void)rest;
	send_note(p, "queued");
	send_note(p, "prefilling");
	send_text(p, "ok", 2);
	send_end(p, "stop", 0, false, NULL);
}

static void turn_silent(struct peer *p, const char *rest)
{
	(void)rest;
	p->mute = true;
}

static void turn_gap(struct peer *p, const char *rest)
{
	(void)rest;
	send_text(p, "one", 3);
	p->seq++;
	send_text(p, "three", 5);
	send_end(p, "stop", 0, false, NULL);
}

static void turn_repeat(struct peer *p, const char *rest)
{
	(void)rest;
	send_text(p, "one", 3);
	p->seq--;
	p->off -= 3;
	send_text(p, "one", 3);
	send_text(p, "two", 3);
	send_end(p, "stop", 0, false, NULL);
}

static void turn_twice(struct peer *p, const char *rest)
{
	(void)rest;
	send_end(p, "stop", 0, false, NULL);
	send_end(p, "stop", 0, false, NULL);
	send_text(p, "after the end", 13);
}

static void turn_huge(struct peer *p, const char *rest)
{
	size_t size = 3 << 20;
	uint8_t *body = calloc(1, size);
	(void)rest;
	CHECK(body != NULL);
	send_blob(p, WIRE_DATA, p->channel, ++p->seq, body, size, NULL, 0);
	free(body);
	/* The connection is dropped now; whoever comes back is a stranger. */
	p->hello = false;
}

static void turn_raw(struct peer *p, const char *rest)
{
	/* hex of the frames after the routing id, separated by commas */
	static uint8_t frames[8][2048];
	size_t lengths[8] = {0};
	int count = 1;
	for (; *rest; rest++) {
		char two[3] = {rest[0], rest[1], 0};
		if (*rest == ',') {
			CHECK(++count <= 8);
			continue;
		}
		if (*rest == 'H') { /* the right header of DATA */
			struct wire_header h = {WIRE_DATA, 0, p->channel, p->seq + 1};
			wire_header_write(&h, frames[count - 1]);
			lengths[count - 1] = WIRE_HEADER_BYTES;
			continue;
		}
		frames[count - 1][lengths[count - 1]++] = (uint8_t)strtoul(two, NULL, 16);
		rest++;
	}
	zmq_send(router, p->id, p->id_length, ZMQ_SNDMORE | ZMQ_DONTWAIT);
	for (int i = 0; i < count; i++)
		zmq_send(router, frames[i], lengths[i], i + 1 < count ? ZMQ_SNDMORE : 0);
	p->running = p->hanging = true;
}

static void turn_overrun(struct peer *p, const char *rest)
{
	(void)rest;
	p->running = p->hanging = true;
	p->off = p->limit;
	send_text(p, "x", 1);
}

static void turn_back(struct peer *p, const char *rest)
{
	(void)rest;
	send_text(p, "forward", 7);
	p->off = 0;
	send_text(p, "back", 4);
	p->running = p->hanging = true;
}

static void turn_future(struct peer *p, const char *rest)
{
	(void)rest;
	p->channel += 1000;
	send_text(p, "x", 1);
	p->channel -= 1000;
	p->running = p->hanging = true;
}

static void turn_forget(struct peer *p, const char *rest)
{
	(void)rest;
	p->running = p->hanging = true;
	p->hello = false;
}

static void turn_stray(struct peer *p, const char *rest)
{
	(void)rest;
	for (int i = 0; i < 100; i++)
		send_blob(p, 0xc0, p->channel, 7, "\x80", 1, NULL, 0);
	send_blob(p, WIRE_GOAWAY, 0, 0, "\x81\xa3why\xa1x", 7, NULL, 0);
	send_text(p, "fine", 4);
	send_end(p, "stop", 0, false, NULL);
}

static void turn_flood(struct peer *p, const char *rest)
{
	(void)rest;
	p->running = p->hanging = true;
	for (int i = 0; i < 20000; i++)
		send_blob(p, 0xc0, p->channel, 7, "\x80", 1, NULL, 0);
}

static void turn_escape(struct peer *p, const char *rest)
{
	static const char text[] = "a\033[31mred\a \xc2\x9b" "31m \u00e9\n";
	(void)rest;
	send_text(p, text, sizeof text - 1);
	send_end(p, "stop", 0, false, NULL);
}

static const struct turn {
	const char *word;
	void (*run)(struct peer *p, const char *rest);
} turns[] = {
	{"echo", turn_echo}, {"tool", turn_tool}, {"error", turn_error}, {"hang", turn_hang},
	{"wait", turn_wait},
	{"notes", turn_notes}, {"silent", turn_silent}, {"gap", turn_gap},
	{"repeat", turn_repeat}, {"twice", turn_twice}, {"huge", turn_huge}, {"raw", turn_raw},
	{"overrun", turn_overrun}, {"back", turn_back}, {"future", turn_future},
	{"forget", turn_forget}, {"stray", turn_stray}, {"flood", turn_flood},
	{"escape", turn_escape},
};

static void run_turn(struct peer *p, const struct wire_call *m)
{
	char text[4096] = "";
	if (m->a.tokens_in_blob) {
		send_accepted(p);
		turn_echo(p, "4");
		return;
	}
	struct wire_str s = m->a.messages[m->a.message_count - 1].content;
	snprintf(text, sizeof text, "%.*s", (int)s.length, s.at ? s.at : "");
	p->logprobs = m->a.sampling.logprobs > 0;
	if (strncmp(text, "reject ", 7) == 0) {
		send_reject(p, p->channel, (int)strtol(text + 7, NULL, 10));
		return;
	}
	if (strcmp(text, "unaccepted") == 0) {
		send_text(p, "x", 1);
		return;
	}
	send_accepted(p);
	for (size_t i = 0; i < sizeof turns / sizeof turns[0]; i++) {
		size_t length = strlen(turns[i].word);
		if (strncmp(text, turns[i].word, length) == 0 &&
		    (text[length] == ' ' || text[length] == 0)) {
			turns[i].run(p, text + length + (text[length] == ' '));
			return;
		}
	}
	send_text(p, "You said: ", 10);
	send_text(p, text, strlen(text));
	send_end(p, "stop", 0, false, NULL);
}

static void run_continue(struct peer *p, const struct wire_call *m)
{
	const struct wire_message *r = &m->a.messages[0];
	send_accepted(p);
	if (m->a.tokens_in_blob || r->tool_call_id.length != 2) {
		send_end(p, "error", ERR_BAD_ARG, false, NULL);
		return;
	}
	send_text(p, "The tool says ", 14);
	send_text(p, r->content.at, r->content.length);
	send_end(p, "stop", 0, false, NULL);
}

/* --- Methods. --- */

static void run_method(struct peer *p, const struct wire_call *m, const uint8_t *blob,
	size_t blob_length)
{
	static char text[300];
	static uint8_t ids[4096];
	struct wire_writer *w;
	send_accepted(p);
	if (m->method == METHOD_METRICS) {
		snprintf(text, sizeof text, "{'text': 'bad %lu windows %lu pings %lu cancels %lu "
			"calls %lu'}", bad, windows, pings, cancels, calls);
		send_end(p, "ok", 0, false, text);
	} else if (m->method == METHOD_TOKENIZE) {
		/* A byte a token. */
		size_t length = blob ? blob_length : m->a.text.length;
		const uint8_t *from = blob ? blob : (const uint8_t *)m->a.text.at;
		static struct wire_end end;
		uint8_t r[32];
		CHECK(length <= sizeof ids / 4);
		for (size_t i = 0; i < length; i++)
			memcpy(ids + 4 * i, (uint8_t[4]){from[i], 0, 0, 0}, 4);
		snprintf(text, sizeof text, "{'count': %zu}", length);
		wire_end_init(&end);
		end.status = (struct wire_str){"ok", 2};
		end.result = (struct wire_value){r, pack(text, r, sizeof r)};
		w = writer();
		wire_write_end(w, &end);
		send_blob(p, WIRE_END, p->channel, ++p->seq, out, w->length, ids, 4 * length);
	} else {
		send_end(p, "ok", 0, false, results[m->method]);
	}
}

static void on_call(struct peer *p, const struct wire_header *h, const uint8_t *body,
	size_t length, const uint8_t *blob, size_t blob_length)
{
	static struct wire_call m;
	int code = wire_read_call(body, length, NULL, &m);
	bool blob_fits = blob == NULL || m.a.tokens_in_blob || m.method == METHOD_TOKENIZE ||
		m.method == METHOD_DETOKENIZE;
	if (code != 0 || h->channel <= p->channel || p->running || !blob_fits) {
		bad++;
		send_reject(p, h->channel, code != 0 ? -code : ERR_BAD_FRAMES);
		return;
	}
	calls++;
	p->channel = h->channel;
	p->seq = p->off = 0;
	p->limit = m.window;
	p->op = (struct wire_id){{(uint8_t)calls, (uint8_t)(calls >> 8), 1}};
	if (!m.has_sess)
		p->sess = (struct wire_id){{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}};
	else
		p->sess = m.sess;
	if (m.method == METHOD_SESSION_TURN || m.method == METHOD_SESSION_CONTINUE)
		p->turn = (m.turn == WIRE_NONE ? p->turn : m.turn) + 1;
	if (m.method == METHOD_SESSION_TURN)
		run_turn(p, &m);
	else if (m.method == METHOD_SESSION_CONTINUE)
		run_continue(p, &m);
	else
		run_method(p, &m, blob, blob_length);
}

static void on_hello(struct peer *p, const uint8_t *body, size_t length)
{
	struct wire_hello m;
	struct wire_writer *w = writer();
	struct wire_welcome welcome = {0, boot, {"uid:1", 5}, 1 << 20, 64, 1 << 20, 16, hb_ms};
	int code = wire_read_hello(body, length, NULL, &m);
	if (code != 0) {
		bad++;
		send_reject(p, 0, -code);
		return;
	}
	if (m.token.at && m.token.length == 5 && memcmp(m.token.at, "wrong", 5) == 0) {
		send_reject(p, 0, ERR_FORBIDDEN);
		return;
	}
	p->hello = true;
	p->mute = false;
	wire_write_welcome(w, &welcome);
	send_blob(p, WIRE_WELCOME, 0, 0, out, w->length, NULL, 0);
}

static void on_steer(struct peer *p, const struct wire_header *h, const uint8_t *body,
	size_t length)
{
	struct wire_window window;
	struct wire_cancel cancel;
	struct wire_ping ping;
	switch (h->type) {
	case WIRE_WINDOW:
		if (wire_read_window(body, length, NULL, &window) != 0 || h->channel != p->channel ||
		    (p->running && memcmp(&window.op, &p->op, sizeof p->op) != 0))
			bad++;
		else if (window.max_off > p->limit)
			p->limit = window.max_off;
		windows++;
		break;
	case WIRE_CANCEL:
		cancels++;
		if (wire_read_cancel(body, length, NULL, &cancel) != 0)
			bad++;
		else if (p->running)
			send_end(p, "cancelled", 0, false, NULL);
		else
			send_reject(p, h->channel, ERR_NOT_FOUND);
		break;
	case WIRE_PING:
		pings++;
		if (wire_read_ping(body, length, NULL, &ping) != 0)
			bad++;
		else
			send_blob(p, WIRE_PONG, 0, 0, body, length, NULL, 0);
		break;
	case WIRE_BYE:
		p->hello = false;
		break;
	case WIRE_ACK:
		break;
	case WIRE_RESUME: /* keeps nothing */
		send_reject(p, h->channel, ERR_GONE);
		break;
	default:
		bad++;
		send_reject(p, h->channel, ERR_BAD_TYPE);
	}
}

static void on_message(zmq_msg_t *frames, int count)
{
	struct wire_header h;
	struct peer *p = peer_find(zmq_msg_data(&frames[0]), zmq_msg_size(&frames[0]));
	int code = count < 3 || count > 4 ? -ERR_BAD_FRAMES :
		wire_header_read(zmq_msg_data(&frames[1]), zmq_msg_size(&frames[1]), &h);
	if (code != 0 || (h.flags != 0) != (count == 4)) {
		bad++;
		send_reject(p, 0, ERR_BAD_FRAMES);
		return;
	}
	const uint8_t *body = zmq_msg_data(&frames[2]);
	size_t length = zmq_msg_size(&frames[2]);
	if (h.type == WIRE_HELLO)
		on_hello(p, body, length);
	else if (p->mute)
		return;
	else if (!p->hello)
		send_reject(p, h.channel, ERR_UNAUTHENTICATED);
	else if (h.type == WIRE_CALL)
		on_call(p, &h, body, length, count == 4 ? zmq_msg_data(&frames[3]) : NULL,
			count == 4 ? zmq_msg_size(&frames[3]) : 0);
	else
		on_steer(p, &h, body, length);
}

static void receive_all(void)
{
	for (;;) {
		zmq_msg_t frames[8];
		int count = 0, more = 1;
		while (more) {
			CHECK(count < 8);
			zmq_msg_init(&frames[count]);
			if (zmq_msg_recv(&frames[count], router, ZMQ_DONTWAIT) < 0)
				return;
			more = zmq_msg_more(&frames[count++]);
		}
		on_message(frames, count);
		for (int i = 0; i < count; i++)
			zmq_msg_close(&frames[i]);
	}
}

/* A piece of each stream that has credit; true if more can be sent at once. */
static bool stream_all(void)
{
	bool more = false;
	for (int i = 0; i < PEERS_MAX; i++) {
		struct peer *p = &peers[i];
		char text[PIECE];
		uint64_t n = p->todo - p->off < PIECE ? p->todo - p->off : PIECE;
		if (!p->running || p->hanging)
			continue;
		if (n > p->limit - p->off)
			n = p->limit - p->off;
		for (uint64_t k = 0; k < n; k++)
			text[k] = (char)('a' + (p->off + k) % 26);
		if (n > 0)
			send_text(p, text, n);
		if (p->off == p->todo)
			send_end(p, "stop", 0, false, NULL);
		more = more || (p->running && p->off < p->limit);
	}
	return more;
}

int main(int argc, char **argv)
{
	int mandatory = 1, linger = 0;
	bool more = false;
	void *context = zmq_ctx_new();
	CHECK(argc >= 2);
	if (argc > 2)
		hb_ms = strtoull(argv[2], NULL, 10);
	router = zmq_socket(context, ZMQ_ROUTER);
	zmq_setsockopt(router, ZMQ_ROUTER_MANDATORY, &mandatory, sizeof mandatory);
	zmq_setsockopt(router, ZMQ_LINGER, &linger, sizeof linger);
	mandatory = 0;
	zmq_setsockopt(router, ZMQ_SNDHWM, &mandatory, sizeof mandatory);
	if (zmq_bind(router, argv[1]) != 0) {
		fprintf(stderr, "fake_daemon: %s\n", zmq_strerror(errno));
		return 1;
	}
	printf("ready\n");
	fflush(stdout);
	for (;;) {
		zmq_pollitem_t items[2] = {{router, 0, ZMQ_POLLIN, 0}, {NULL, 0, ZMQ_POLLIN, 0}};
		if (zmq_poll(items, 2, more ? 0 : 1000) < 0 && errno != EINTR)
			break;
		if (items[1].revents)
			break;
		receive_all();
		more = stream_all();
	}
	zmq_close(router);
	zmq_ctx_term(context);
	return 0;
}
