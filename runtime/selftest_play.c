/*
 * The self-test's players: what they ask of the daemon, and what comes back. They are clients that ask
 * again what was refused for a while or ended as a fault, and that know every token that is right.
 */
#include "config.h"

#include "runtime/selftest_inside.h"

#include <poll.h>
#include <string.h>
#include <unistd.h>

#include "runtime/forget.h"
#include "runtime/loop.h"

enum {
	TRIES_MAX = 200, /* of one turn: more would be a fault that does not go away */
	WAIT_MS = 60000
};

static struct player *player_of(uint64_t channel)
{
	for (unsigned i = 0; i < SESSIONS; i++)
		if (selftest->player[i].waits && selftest->player[i].channel == channel)
			return &selftest->player[i];
	return NULL;
}

static void data_take(struct player *p, const uint8_t *ids, size_t bytes)
{
	for (size_t i = 0; i + 4 <= bytes; i += 4) {
		uint32_t token;
		memcpy(&token, ids + i, sizeof token);
		selftest->tokens++;
		const bool right = p->got_count < OUTPUT &&
				   (selftest->learning || token == p->right[p->turn][p->got_count]);
		if (!right)
			++*(p->outside ? &selftest->tokens_outside : &selftest->tokens_wrong);
		if (p->got_count < OUTPUT && (right || p->outside))
			p->got[p->got_count++] = token;
	}
}

/* What a client asks again a moment later. */
static bool passes(int err)
{
	return err == ERR_SESSION_BUSY || err == ERR_OVERLOADED || err == ERR_AUDIT_STALLED ||
	       err == ERR_LOG_FULL;
}

static void end_take(struct daemon *d, struct player *p, const void *body, size_t length)
{
	static struct wire_end end;
	p->waits = false;
	if (wire_read_end(body, length, &d->wire, &end) != 0)
		return;
	p->ended = true;
	p->later = passes(end.err.code);
	if (end.err.code != 0 && end.err.code != ERR_INTEGRITY && !p->later)
		selftest->refused++;
	if (end.err.code != 0)
		return;
	if (!p->opened && end.has_sess) {
		p->id = end.sess;
		p->opened = true;
		p->outside = false;
		p->done = p->most = p->history[0] = 0;
	} else if (p->got_count == OUTPUT) {
		p->done = p->turn + 1;
		p->most = p->done > p->most ? p->done : p->most;
		p->history[p->done] = (uint32_t)end.usage.history;
	}
}

/* What it reads from here on is not what it was. Nothing compares while it reads; it is closed after this
   turn, so that no later look at the page meets with the fault, which is none of those to be found. */
void selftest_outside(struct daemon *d, uint32_t session)
{
	for (unsigned i = 0; i < SESSIONS; i++)
		if (memcmp(&selftest->player[i].id, &d->sessions[session].id, sizeof d->sessions[session].id) == 0)
			selftest->player[i].outside = true;
}

int selftest_sink(struct daemon *d, uint32_t peer, const struct wire_header *h, const void *body,
		  size_t length, const void *blob, size_t blob_length)
{
	struct player *p = player_of(h->channel);
	(void)peer;
	if (p == NULL)
		return 0;
	if (h->type == WIRE_DATA)
		data_take(p, blob, blob_length);
	else if (h->type == WIRE_END)
		end_take(d, p, body, length);
	return 0;
}

static void turn_ask(struct daemon *d, uint32_t call, struct player *p)
{
	struct wire_call *m = &d->message;
	m->a.tokens_in_blob = true;
	m->a.keep = p->history[p->turn];
	m->a.sampling = (struct wire_sampling){
		.max_tokens = OUTPUT, .temperature = 0.8, .top_p = 1, .typical = 1, .repetition = 1,
		.seed = (uint64_t)(p - selftest->player) * 100 + p->turn, .ignore_end = true};
	turn_method(d, call, m, NULL, 0, (const uint8_t *)p->prompt[p->turn], p->prompt_count[p->turn] * 4);
}

static void park_ask(struct daemon *d, uint32_t call)
{
	struct wire_call *m = &d->message;
	static const struct wire_str places[] = {{"host", 4}, {"disk", 4}, {"tokens", 6}};
	m->a.place = places[selftest_draw(8) < 5 ? selftest_draw(2) : 2];
	const enum place place = m->a.place.at[0] == 'h' ? PLACE_HOST : PLACE_DISK;
	if (m->a.place.at[0] != 't' && d->limits.group[0].page_count[place] == 0)
		m->a.place = places[2];
	session_method_park(d, call, m);
}

static void session_ask(struct daemon *d, uint32_t call, struct player *p, uint8_t method)
{
	struct wire_call *m = &d->message;
	if (method == METHOD_SESSION_OPEN) {
		m->a.template_name = (struct wire_str){"none", 4};
		session_method_open(d, call, m);
		return;
	}
	m->has_sess = true;
	m->sess = p->id;
	const uint32_t session = session_find(d, 0, &p->id);
	if (session == NONE) {
		selftest->sessions_lost++;
		call_fail(d, call, ERR_NOT_FOUND);
		return;
	}
	d->calls[call].session = session;
	p->closing = method == METHOD_SESSION_CLOSE;
	if (p->closing)
		session_method_close(d, call, m);
	else if (method == METHOD_SESSION_PARK)
		park_ask(d, call);
	else
		turn_ask(d, call, p);
}

static void ask(struct player *p, uint8_t method)
{
	struct daemon *d = &selftest->daemon;
	const uint64_t mark = store_mark(d->store);
	struct wire_call *m = &d->message;
	memset(m, 0, sizeof *m);
	m->method = method;
	m->epoch = m->turn = m->deadline_ms = m->detach_ms = WIRE_NONE;
	m->window = 1 << 20;
	p->channel = ++selftest->channel;
	p->waits = true;
	p->ended = p->later = false;
	p->got_count = 0;
	const uint32_t call = call_take(d, 0, p->channel, m);
	CHECK(call != NONE);
	session_ask(d, call, p, method);
	/* As where calls come in: END waits until what was changed is on disk; a turn sees to its own. */
	if (method != METHOD_SESSION_TURN && store_mark(d->store) != mark)
		d->calls[call].hold_mark = store_hurry(d->store);
}

/* One turn of the loop. What the disk's faults made so far is told to who outlives us. */
static int work(void)
{
	struct daemon *d = &selftest->daemon;
	bool more;
	uint64_t next;
	d->peers[0].seen_us = loop_clock_us();
	loop_work(d, &more, &next);
	selftest->world = fault_made();
	if (d->failed)
		return -ERR_IO;
	struct pollfd fds[3] = {{.fd = engine_fd(d->engine), .events = POLLIN},
				{.fd = store_fd(d->store), .events = POLLIN},
				{.fd = lower_disk_fd(d), .events = POLLIN}};
	poll(fds, 3, d->in_flight || d->scrubbing ? 20 : 1);
	uint64_t n;
	if (fds[1].revents && read(store_fd(d->store), &n, sizeof n) < 0)
		return 0;
	return 0;
}

static bool waiting(void)
{
	for (unsigned i = 0; i < SESSIONS; i++)
		if (selftest->player[i].waits)
			return true;
	return false;
}

static int settle(void)
{
	const uint64_t until = loop_clock_us() + (uint64_t)WAIT_MS * 1000;
	while (waiting()) {
		TRY(work());
		if (loop_clock_us() > until)
			return -ERR_TIMEOUT;
	}
	return 0;
}

/* Asked of all that are to be asked, and again until it is answered. */
static int asked(const bool *whom, uint8_t method)
{
	const uint64_t until = loop_clock_us() + (uint64_t)WAIT_MS * 1000;
	bool left[SESSIONS];
	memcpy(left, whom, sizeof left);
	for (unsigned i = 0; i < SESSIONS; i++)
		selftest->player[i].tries = 0;
	for (bool again = true; again;) {
		for (unsigned i = 0; i < SESSIONS; i++)
			if (left[i])
				ask(&selftest->player[i], method);
		TRY(settle());
		again = false;
		for (unsigned i = 0; i < SESSIONS; i++) {
			struct player *p = &selftest->player[i];
			const bool turn = method == METHOD_SESSION_TURN;
			left[i] = left[i] && (p->later || (turn && p->got_count != OUTPUT)) && !(turn && p->outside);
			again = again || left[i];
			p->tries += left[i] && !p->later;
			if (p->tries > TRIES_MAX || loop_clock_us() > until)
				return -ERR_TIMEOUT;
		}
		if (selftest_injected() >= selftest->faults)
			selftest->daemon.inject.on = false;
		if (again)
			TRY(work());
	}
	return 0;
}

/* Some go down, to the host, the disk or nothing, before their next turn. */
static int parked(void)
{
	bool whom[SESSIONS];
	for (unsigned i = 0; i < SESSIONS; i++)
		whom[i] = selftest_draw(2) && !selftest->player[i].outside;
	return asked(whom, METHOD_SESSION_PARK);
}

int selftest_round(void)
{
	bool all[SESSIONS];
	memset(all, true, sizeof all);
	for (unsigned i = 0; i < SESSIONS; i++)
		selftest->player[i].opened = false;
	TRY(asked(all, METHOD_SESSION_OPEN));
	for (uint32_t turn = 0; turn < TURNS; turn++) {
		for (unsigned i = 0; i < SESSIONS; i++) {
			selftest->player[i].turn = turn;
			all[i] = !selftest->player[i].outside;
		}
		TRY(asked(all, METHOD_SESSION_TURN));
		for (unsigned i = 0; selftest->learning && i < SESSIONS; i++)
			memcpy(selftest->player[i].right[turn], selftest->player[i].got,
			       sizeof selftest->player[i].got);
		if (selftest->places && !selftest->learning)
			TRY(parked());
	}
	return 0;
}

int selftest_close(void)
{
	bool whom[SESSIONS];
	for (unsigned i = 0; i < SESSIONS; i++)
		whom[i] = selftest->player[i].opened;
	TRY(asked(whom, METHOD_SESSION_CLOSE));
	for (unsigned i = 0; i < SESSIONS; i++)
		selftest->player[i].opened = selftest->player[i].closing = false;
	return 0;
}

/* Those of which no player was told. */
static void strays_end(struct daemon *d)
{
	for (uint32_t s = 0; s < d->options.sessions; s++) {
		bool known = !d->sessions[s].used || d->sessions[s].closing;
		for (unsigned i = 0; i < SESSIONS; i++)
			known = known || (selftest->player[i].opened &&
					  memcmp(&selftest->player[i].id, &d->sessions[s].id,
						 sizeof d->sessions[s].id) == 0);
		if (!known)
			session_forget(d, s);
	}
}

/* A turn that ran when the process ended may have gone on since, or, when it was asked again, not have cut
   anything yet: between the turns that were answered and the next, or all that were ever. */
static bool left_right(const struct player *p, uint32_t history)
{
	const uint32_t next = p->done < TURNS ? p->done + 1 : p->done, most = next > p->most ? next : p->most;
	return history >= p->history[p->done] && history <= p->history[most];
}

int selftest_left(void)
{
	struct daemon *d = &selftest->daemon;
	bool whom[SESSIONS];
	for (unsigned i = 0; i < SESSIONS; i++) {
		struct player *p = &selftest->player[i];
		const uint32_t session = p->opened ? session_find(d, 0, &p->id) : NONE;
		whom[i] = session != NONE;
		p->waits = false;
		if (p->opened && !p->closing && (session == NONE || !left_right(p, d->sessions[session].history)))
			selftest->sessions_lost++;
		p->opened = whom[i];
		p->turn = p->done = p->done ? p->done - 1 : 0;
	}
	strays_end(d);
	/* What a harmed page led to is in its history. */
	for (unsigned i = 0; i < SESSIONS; i++)
		whom[i] = whom[i] && !selftest->player[i].outside;
	TRY(asked(whom, METHOD_SESSION_TURN));
	return selftest_close();
}
