/*
 * One call, from CALL to END: the stream with its credit, pings, deadline, cancel; and the checks
 * that a daemon out of its mind does not pass. Whatever goes wrong ends the call with a code and,
 * where the connection can no longer be trusted, drops it: the next call says HELLO again.
 */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "clients/item.h"
#include "clients/link.h"

enum { RECOVER_EVERY_MS = 100 };

/* A call under way. */
struct run {
	struct hf_client *c;
	const struct hf_stream *stream;
	struct hf_end *end;
	uint64_t channel;
	bool accepted, cancelled, over;
	bool known;              /* accepted once: op is its name on any connection */
	bool gap, refused;       /* text is missing; the daemon does not go on with it */
	size_t length, blob_length;
	const void *blob;        /* with length bytes of c->body, the CALL */
	int broke;               /* what broke the connection that was before this one */
	struct wire_id op;
	uint64_t seq, off;       /* of the last DATA */
	uint64_t granted, window; /* the offset the daemon may reach; how far ahead it is set */
	uint64_t deadline_ms;    /* when we cancel; UINT64_MAX: never */
	uint64_t give_up_ms;     /* when we stop waiting for END; UINT64_MAX: not yet */
	uint64_t ping_ms;        /* when to ping next: the daemon must hear of us too */
	uint32_t misses, strays;
	int why;                 /* the code if no END comes after a cancel */
	uint32_t *ids;
	float *logprobs;
	char *json;
};

void end_init(struct hf_end *end)
{
	*end = (struct hf_end){
		.name = err_name(0), .text = err_text(0), .retry = "no", .after_ms = HF_NONE,
		.used = HF_NONE, .asked = HF_NONE, .limit = HF_NONE,
	};
	end->usage.tool_us = end->usage.diverged_at = HF_NONE;
}

int end_fail(struct hf_end *end, int code)
{
	end->code = code;
	end->name = err_name(code);
	end->text = err_text(code);
	return code;
}

static char *copy_text(const void *at, size_t length)
{
	char *copy = malloc(length + 1);
	if (!copy)
		return NULL;
	if (length > 0)
		memcpy(copy, at, length);
	copy[length] = 0;
	return copy;
}

static char *copy_str(struct wire_str s)
{
	return copy_text(s.at, s.length);
}

static uint32_t *copy_ids(const uint8_t *blob, size_t length)
{
	uint32_t *ids = malloc(length > 0 ? length : 1);
	for (size_t i = 0; ids && i < length / 4; i++, blob += 4)
		ids[i] = (uint32_t)blob[0] | (uint32_t)blob[1] << 8 | (uint32_t)blob[2] << 16 |
			(uint32_t)blob[3] << 24;
	return ids;
}

static char *copy_json(struct wire_value v)
{
	size_t length = wire_json(v, NULL, 0);
	char *json = malloc(length + 1);
	if (json)
		wire_json(v, json, length + 1);
	return json;
}

/* --- What we send. --- */

static void run_send(struct run *r, uint8_t type, struct wire_writer *w)
{
	/* A message that cannot be sent now is missed by a peer that is not there: the pings and
	   the deadline find that out. */
	CHECK(!w->full);
	const uint64_t channel = type == WIRE_PING || type == WIRE_ACK ? 0 : r->channel;
	link_send(r->c, type, channel, w->at, w->length, NULL, 0, 0);
	r->ping_ms = link_now_ms() + r->c->hb_ms;
}

static void run_say_cancel(struct run *r)
{
	uint8_t body[64];
	struct wire_writer w;
	struct wire_cancel m = {.has_op = r->accepted, .op = r->op};
	wire_writer_init(&w, body, sizeof body);
	wire_write_cancel(&w, &m);
	run_send(r, WIRE_CANCEL, &w);
}

static void run_cancel(struct run *r, int why)
{
	if (r->cancelled)
		return;
	r->cancelled = true;
	r->why = why;
	r->give_up_ms = link_now_ms() + LINK_TIMEOUT_MS;
	run_say_cancel(r);
}

/* END has come: nothing of the call has to be kept for us. */
static void run_ack(struct run *r, uint64_t seq)
{
	uint8_t body[64];
	struct wire_writer w;
	struct wire_ack m = {r->op, seq};
	if (!r->c->call.has_idem)
		return;
	wire_writer_init(&w, body, sizeof body);
	wire_write_ack(&w, &m);
	run_send(r, WIRE_ACK, &w);
}

static void run_grant(struct run *r)
{
	uint8_t body[64];
	struct wire_writer w;
	/* At half: the daemon never waits for us while we read, and grants are few. */
	if (r->granted - r->off > r->window / 2)
		return;
	r->granted = r->off + r->window;
	struct wire_window m = {r->op, r->granted};
	wire_writer_init(&w, body, sizeof body);
	wire_write_window(&w, &m);
	run_send(r, WIRE_WINDOW, &w);
}

static int run_ping(struct run *r)
{
	uint8_t body[64];
	struct wire_writer w;
	struct wire_ping m = {link_now_ms()};
	if (r->misses++ >= LINK_MISSES_MAX)
		return -ERR_CLOSED;
	wire_writer_init(&w, body, sizeof body);
	wire_write_ping(&w, &m);
	run_send(r, WIRE_PING, &w);
	return 0;
}

/* --- What we receive. --- */

static int take_logprobs(struct run *r, const struct wire_data *d, struct hf_piece *p)
{
	if (!d->logprobs.at)
		return 0;
	r->logprobs = malloc((d->n_tokens + 1) * sizeof *r->logprobs);
	r->json = copy_json(d->logprobs);
	uint32_t *ids = r->ids ? NULL : malloc((d->n_tokens + 1) * sizeof *ids);
	if (!r->logprobs || !r->json || (!r->ids && !ids))
		return free(ids), -ERR_MEMORY;
	struct wire_value v;
	struct walk w;
	uint32_t i = 0;
	walk_init(&w, d->logprobs);
	for (; i < d->n_tokens && walk_next(&w, &v); i++) {
		uint64_t id = 0;
		double lp = 0;
		wire_get_u64(wire_find(v, "t"), &id);
		wire_get_f64(wire_find(v, "p"), &lp);
		r->logprobs[i] = (float)lp;
		if (ids)
			ids[i] = (uint32_t)id;
	}
	if (ids)
		r->ids = ids;
	p->logprobs = r->logprobs;
	p->logprobs_json = r->json;
	return 0;
}

static void run_free(struct run *r)
{
	free(r->ids);
	free(r->logprobs);
	free(r->json);
	r->ids = NULL;
	r->logprobs = NULL;
	r->json = NULL;
}

/* A piece to the caller. */
static int deliver(struct run *r, const struct wire_data *d, const struct link_message *m)
{
	struct hf_piece p = {.text = d->text.at ? d->text.at : "", .length = d->text.length};
	int code = 0, stop = 0;
	if (!r->stream || !r->stream->on_piece || r->cancelled)
		return 0;
	if (m->blob) {
		r->ids = copy_ids(m->blob, m->blob_length);
		if (!r->ids)
			return -ERR_MEMORY;
	}
	code = take_logprobs(r, d, &p);
	if (code == 0) {
		p.ids = r->ids;
		p.id_count = r->ids ? d->n_tokens : 0;
		stop = r->stream->on_piece(r->stream->data, &p);
	}
	run_free(r);
	if (stop != 0)
		run_cancel(r, -ERR_TIMEOUT);
	return code;
}

static int take_data(struct run *r, const struct link_message *m)
{
	struct wire_data d;
	if (m->header.seq <= r->seq)
		return 0; /* a repeat */
	if (!r->accepted || m->header.seq != r->seq + 1) {
		r->gap = r->accepted; /* text is missing: it is asked for again */
		return -ERR_BAD_FRAMES;
	}
	TRY(wire_read_data(m->body, m->body_length, &r->c->limits, &d));
	if (m->blob && m->blob_length != 4 * (size_t)d.n_tokens)
		return -ERR_BAD_BODY;
	/* Offsets count text: they neither lose any nor pass what was granted. */
	if (d.off < r->off || d.off - r->off < d.text.length || d.off > r->granted)
		return -ERR_BAD_BODY;
	r->seq = m->header.seq;
	r->off = d.off;
	TRY(deliver(r, &d, m));
	run_grant(r);
	return 0;
}

static int take_note(struct run *r, const struct link_message *m)
{
	struct wire_note n;
	TRY(wire_read_note(m->body, m->body_length, &r->c->limits, &n));
	if (!r->stream || !r->stream->on_note || r->cancelled)
		return 0;
	char state[WIRE_NAME_MAX + 1];
	memcpy(state, n.state.at, n.state.length);
	state[n.state.length] = 0;
	struct hf_note note = {state, n.done, n.total, n.place, n.short_by, n.eta_ms};
	if (r->stream->on_note(r->stream->data, &note) != 0)
		run_cancel(r, -ERR_TIMEOUT);
	return 0;
}

static void end_usage(struct hf_usage *to, const struct wire_usage *from)
{
	*to = (struct hf_usage){
		from->present, from->prompt, from->resident, from->reloaded, from->recomputed,
		from->fresh, from->sampled, from->history, from->context_left, from->queue_us,
		from->prefill_us, from->decode_us, from->tool_us, from->diverged_at, NULL,
		from->forced,
	};
}

static void end_error(struct hf_end *end, const struct wire_err *e)
{
	if (e->code != 0)
		end_fail(end, -e->code);
	end->retry = e->retry;
	end->after_ms = e->after_ms;
	end->used = e->used;
	end->asked = e->asked;
	end->limit = e->limit;
	if (e->why.at && e->why.length < sizeof end->why)
		memcpy(end->why, e->why.at, e->why.length);
}

/* What has memory of its own; false when there is none. */
static bool end_copies(struct hf_end *end, const struct wire_end *m, const uint8_t *blob,
	size_t blob_length)
{
	struct wire_bin bytes;
	end->status = copy_str(m->status);
	if (m->usage.diverged_why.at)
		end->usage.diverged_why = copy_str(m->usage.diverged_why);
	end->calls = calloc(m->call_count + 1, sizeof *end->calls);
	if (!end->status || !end->calls || (m->usage.diverged_why.at && !end->usage.diverged_why))
		return false;
	for (; end->call_count < m->call_count; end->call_count++) {
		struct hf_tool_call *to = &end->calls[end->call_count];
		to->id = copy_str(m->calls[end->call_count].id);
		to->name = copy_str(m->calls[end->call_count].name);
		to->arguments = copy_str(m->calls[end->call_count].arguments);
		if (!to->id || !to->name || !to->arguments)
			return end->call_count++, false;
	}
	if (m->result.at) {
		end->json = copy_json(m->result);
		end->packed = (uint8_t *)copy_text(m->result.at, m->result.length);
		end->packed_bytes = m->result.length;
		if (!end->json || !end->packed)
			return false;
	}
	if (wire_get_bin(wire_find(m->result, "text"), &bytes)) {
		end->bytes = copy_text(bytes.at, bytes.length);
		end->byte_count = bytes.length;
	}
	if (blob) {
		end->ids = copy_ids(blob, blob_length);
		end->id_count = blob_length / 4;
	}
	return (!blob || end->ids) && (!bytes.at || !end->byte_count || end->bytes);
}

static int take_end(struct run *r, const struct link_message *m)
{
	struct wire_end *w = &r->c->end;
	struct hf_end *end = r->end;
	if (!r->accepted || m->header.seq != r->seq + 1) {
		r->gap = r->accepted;
		return -ERR_BAD_FRAMES;
	}
	TRY(wire_read_end(m->body, m->body_length, &r->c->limits, w));
	if (m->blob_length % 4 != 0)
		return -ERR_BAD_BODY;
	end_usage(&end->usage, &w->usage);
	end->has_session = w->has_sess;
	memcpy(end->session.id.bytes, w->sess.bytes, sizeof w->sess.bytes);
	end->session.epoch = w->epoch;
	end->session.turn = w->turn;
	end->durable = w->durable;
	if (!end_copies(end, w, m->blob, m->blob_length))
		return -ERR_MEMORY;
	end_error(end, &w->err);
	r->over = true;
	run_ack(r, m->header.seq);
	return 0;
}

static int take_accepted(struct run *r, const struct link_message *m)
{
	struct wire_accepted a;
	if (r->accepted)
		return -ERR_BAD_FRAMES;
	TRY(wire_read_accepted(m->body, m->body_length, &r->c->limits, &a));
	if (r->known && memcmp(&a.op, &r->op, sizeof a.op) != 0)
		return -ERR_BAD_FRAMES;
	r->accepted = r->known = true;
	r->op = a.op;
	if (r->cancelled)
		run_say_cancel(r); /* said before, on a connection that broke */
	return 0;
}

static int take_reject(struct run *r, const struct link_message *m)
{
	struct wire_reject j;
	if (m->header.channel != 0 && m->header.channel != r->channel)
		return 0;
	TRY(wire_read_reject(m->body, m->body_length, &r->c->limits, &j));
	/* The daemon does not know us: it is a new one, or our connection is. */
	if (j.err.code == ERR_UNAUTHENTICATED && r->accepted)
		return -ERR_RESTARTED;
	/* What it was before another reader took the stream, or the daemon forgot it. */
	if (r->accepted && j.err.code == ERR_FENCED && m->header.channel == r->channel)
		return r->refused = true, -ERR_FENCED;
	if (r->known && !r->accepted)
		return r->refused = true, r->broke;
	/* Once accepted, only END ends a call; a CANCEL that came late is refused as well. */
	if (r->accepted || (r->cancelled && j.err.code == ERR_NOT_FOUND))
		return 0;
	end_error(r->end, &j.err);
	r->over = true;
	if (j.err.code == ERR_UNAUTHENTICATED)
		link_reset(r->c);
	return 0;
}

static int take(struct run *r, const struct link_message *m)
{
	bool ours = m->header.channel == r->channel;
	r->misses = 0;
	if (m->header.type == WIRE_REJECT)
		return take_reject(r, m);
	if (ours && m->header.type == WIRE_ACCEPTED)
		return take_accepted(r, m);
	if (ours && m->header.type == WIRE_DATA)
		return take_data(r, m);
	if (ours && m->header.type == WIRE_END)
		return take_end(r, m);
	if (ours && m->header.type == WIRE_NOTE)
		return take_note(r, m);
	/* A call that we have not made is nonsense; what is left of an older one is not, nor are
	   PONG, GOAWAY (running calls finish) and types of a later version. */
	if (m->header.channel > r->channel)
		return -ERR_BAD_FRAMES;
	return r->strays++ < LINK_STRAY_MAX ? 0 : -ERR_BAD_FRAMES;
}

/* --- The loop. --- */

static uint64_t earliest(const struct run *r)
{
	uint64_t t = r->ping_ms;
	if (!r->cancelled && r->deadline_ms < t)
		t = r->deadline_ms;
	return r->give_up_ms < t ? r->give_up_ms : t;
}

static int run_loop(struct run *r)
{
	while (!r->over) {
		struct link_message m;
		if (atomic_exchange(&r->c->cancel, false))
			run_cancel(r, -ERR_TIMEOUT);
		int code = link_receive(r->c, earliest(r), &m);
		if (code < 0)
			return code;
		if (code == 1) {
			code = take(r, &m);
			link_drop(&m);
			if (code != 0)
				return code;
		}
		uint64_t now = link_now_ms();
		if (r->over)
			break;
		if (now >= r->give_up_ms)
			return r->why;
		if (now >= r->deadline_ms)
			run_cancel(r, -ERR_DEADLINE);
		if (now >= r->ping_ms)
			TRY(run_ping(r));
	}
	return 0;
}

/* Packs c->call into c->body and reads it again by the daemon's own rules. */
static int pack_call(struct hf_client *c, size_t *length)
{
	struct wire_writer w;
	c->check.why = NULL;
	wire_writer_init(&w, c->body, c->body_capacity);
	TRY(wire_write_call(&w, &c->call));
	*length = w.length;
	int code = wire_read_call(c->body, w.length, NULL, &c->check);
	return code == -ERR_BAD_BODY ? -ERR_BAD_ARG : code;
}

/* What only looks may be asked twice; all else carries a key, so that it runs once. */
static bool looks(uint8_t method)
{
	switch (method) {
	case METHOD_SESSION_LIST:
	case METHOD_SESSION_SHOW:
	case METHOD_LEDGER_SHOW:
	case METHOD_PAGES_SHOW:
	case METHOD_MODEL_SHOW:
	case METHOD_TOKENIZE:
	case METHOD_DETOKENIZE:
	case METHOD_HEALTH:
	case METHOD_METRICS:
	case METHOD_SESSION_EXPORT:
	case METHOD_EVENTS_REPLAY:
		return true;
	default:
		return false;
	}
}

static void call_key(struct hf_client *c)
{
	if (!c->resume_ms || looks(c->call.method) ||
	    getrandom(c->call.idem.bytes, sizeof c->call.idem.bytes, 0) !=
		    (ssize_t)sizeof c->call.idem.bytes)
		return;
	c->call.has_idem = true;
	c->call.detach_ms = c->resume_ms;
}

/* The connection is of no use for the call any more, and another may be. */
static bool broken(const struct run *r, int code)
{
	const bool may = r->known ? r->c->call.has_idem :
		r->c->call.has_idem || looks(r->c->call.method);
	if (!may || !r->c->resume_ms || r->refused || link_now_ms() >= r->give_up_ms)
		return false;
	return code == -ERR_CLOSED || code == -ERR_IO || code == -ERR_RESTARTED || r->gap;
}

/* A new connection, and what goes on with the call there. */
static int run_again(struct run *r)
{
	struct hf_client *c = r->c;
	uint8_t body[64];
	struct wire_writer w;
	link_reset(c);
	TRY(link_connect(c));
	if (c->window < r->window) { /* another daemon, which takes less */
		r->window = c->window;
		r->granted = r->off + r->window;
	}
	const struct wire_resume m = {r->op, r->seq, r->granted};
	r->channel = ++c->channel;
	r->accepted = r->gap = false;
	r->misses = 0;
	r->ping_ms = link_now_ms() + c->hb_ms;
	if (!r->known)
		return link_send(c, WIRE_CALL, r->channel, c->body, r->length, r->blob, r->blob_length,
			(int)c->timeout_ms);
	wire_writer_init(&w, body, sizeof body);
	wire_write_resume(&w, &m);
	return link_send(c, WIRE_RESUME, r->channel, body, w.length, NULL, 0, (int)c->timeout_ms);
}

/* One try, which waits no longer for the daemon than until `until`. */
static int run_again_until(struct run *r, uint64_t until)
{
	struct hf_client *c = r->c;
	const uint32_t timeout = c->timeout_ms;
	const uint64_t now = link_now_ms(), left = until > now ? until - now : 0;
	if (left < timeout)
		c->timeout_ms = left > RECOVER_EVERY_MS ? (uint32_t)left : RECOVER_EVERY_MS;
	const int code = run_again(r);
	c->timeout_ms = timeout;
	return code;
}

/* Tries for resume_ms; then `code`, which broke the connection, is what the call ends with. No longer
   than the call's own deadline, since nobody is there to say that it has passed. */
static int run_recover(struct run *r, int code)
{
	const uint64_t patience = link_now_ms() + r->c->resume_ms;
	const uint64_t due = r->cancelled ? r->give_up_ms : r->deadline_ms;
	const uint64_t until = due < patience ? due : patience;
	r->broke = code;
	while (run_again_until(r, until) != 0) {
		if (atomic_load(&r->c->cancel))
			return code;
		if (link_now_ms() >= until)
			return until < patience && !r->cancelled ? -ERR_DEADLINE : code;
		struct pollfd wake = {r->c->wake[0], POLLIN, 0};
		poll(&wake, 1, RECOVER_EVERY_MS);
	}
	return 0;
}

int call_run(struct hf_client *c, const void *blob, size_t blob_length,
	const struct hf_stream *stream, struct hf_end *end)
{
	size_t length;
	struct run r = {.c = c, .stream = stream, .end = end, .give_up_ms = UINT64_MAX,
		.deadline_ms = UINT64_MAX, .window = c->window, .granted = c->window,
		.blob = blob, .blob_length = blob_length};
	if (blob_length > c->limits.blob_bytes)
		return end_fail(end, -ERR_TOO_BIG);
	if (c->busy)
		return end_fail(end, -ERR_IN_USE);
	c->call.window = c->window;
	call_key(c);
	int code = pack_call(c, &length);
	if (code != 0) {
		if (c->check.why)
			snprintf(end->why, sizeof end->why, "%s", c->check.why);
		return end_fail(end, code);
	}
	r.length = length;
	c->busy = true;
	atomic_store(&c->cancel, false);
	uint64_t began = link_now_ms();
	/* Half a second for the daemon to say it first. */
	if (c->call.deadline_ms != WIRE_NONE)
		r.deadline_ms = began + c->call.deadline_ms + 500;
	code = link_connect(c);
	if (code == 0) {
		if (c->window < r.window) /* a new connection, to a daemon that takes less */
			r.window = r.granted = c->window;
		r.channel = ++c->channel;
		code = link_send(c, WIRE_CALL, r.channel, c->body, length, blob, blob_length,
			(int)c->timeout_ms);
		/* Who has said WELCOME and then takes nothing is gone, as after silent pings: whether
		   ZeroMQ had seen it by now must make no difference. */
		if (code == -ERR_TIMEOUT)
			code = -ERR_CLOSED;
	}
	r.ping_ms = link_now_ms() + c->hb_ms;
	if (code == 0)
		code = run_loop(&r);
	while (code != 0 && r.channel != 0 && broken(&r, code)) {
		code = run_recover(&r, code);
		if (code != 0)
			break;
		code = run_loop(&r);
	}
	if (code != 0) {
		end_fail(end, code);
		link_reset(c);
	}
	c->busy = false;
	return end->code;
}
