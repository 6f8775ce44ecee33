/*
 * Session events: granted, queued, running, tool_wait, ended, demoted, restored, lost, expired, closed.
 *
 * An event is a small map, made once; the newest of each principal are kept in a ring of its own, so
 * that nobody's many make another's few be forgotten.
 */
#include "runtime/events.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { EVENT_BYTES = 440, REPLAY_MAX = 256, PARTS_MAX = 4 };

struct kept_event {
	uint64_t seq; /* 0: none */
	uint32_t length;
	uint8_t body[EVENT_BYTES];
};

struct event_log {
	uint64_t *seq;            /* per principal: the newest */
	struct kept_event *kept;  /* per principal: options.events_kept */
};

int events_open(struct daemon *d)
{
	const size_t n = principals_all(d);
	d->events = calloc(1, sizeof *d->events);
	if (!d->events)
		return -ERR_MEMORY;
	d->events->seq = calloc(n, sizeof *d->events->seq);
	d->events->kept = memory_reserve(n * d->options.events_kept * sizeof *d->events->kept);
	return d->events->seq && d->events->kept ? 0 : -ERR_MEMORY;
}

void events_close(struct daemon *d)
{
	if (!d->events)
		return;
	if (d->events->kept)
		memory_release(d->events->kept,
			       (size_t)principals_all(d) * d->options.events_kept * sizeof *d->events->kept);
	free(d->events->seq);
	free(d->events);
	d->events = NULL;
}

static struct kept_event *kept_at(struct daemon *d, uint32_t principal, uint64_t seq)
{
	const uint64_t n = d->options.events_kept;
	return &d->events->kept[principal * n + seq % n];
}

static uint64_t unix_ms(void)
{
	struct timespec t;
	clock_gettime(CLOCK_REALTIME, &t);
	return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

static void put_number(struct wire_writer *w, const char *key, uint64_t value)
{
	wire_put_text(w, key);
	wire_put_u64(w, value);
}

void event_say(struct daemon *d, const struct session *s, const char *what, const struct event_part *parts,
	       uint32_t count)
{
	if (!d->events)
		return;
	CHECK(count <= PARTS_MAX);
	const char *name = d->principals[s->principal].name;
	const uint64_t seq = ++d->events->seq[s->principal];
	struct kept_event *k = kept_at(d, s->principal, seq);
	struct wire_writer w;
	wire_writer_init(&w, k->body, sizeof k->body);
	wire_put_map(&w, 7 + (s->label[0] != 0) + count);
	put_number(&w, "seq", seq);
	put_number(&w, "ms", unix_ms());
	wire_put_text(&w, "boot");
	wire_put_bin(&w, d->boot, sizeof d->boot);
	wire_put_text(&w, "principal");
	wire_put_text(&w, name);
	wire_put_text(&w, "event");
	wire_put_text(&w, what);
	wire_put_text(&w, "sess");
	wire_put_bin(&w, s->id.bytes, sizeof s->id.bytes);
	put_number(&w, "turn", s->turn);
	if (s->label[0]) {
		wire_put_text(&w, "label");
		wire_put_text(&w, s->label);
	}
	for (uint32_t i = 0; i < count; i++) {
		wire_put_text(&w, parts[i].key);
		if (parts[i].text)
			wire_put_text(&w, parts[i].text);
		else
			wire_put_u64(&w, parts[i].number);
	}
	CHECK(!w.full);
	k->seq = seq;
	k->length = (uint32_t)w.length;
	outlet_send(d, d->principals[s->principal].tenant, name, strlen(name) + 1, seq, k->body, k->length);
}

static void granted(struct daemon *d, const struct session *s, const struct effect *e)
{
	static const char *const kinds[] = {"best_effort", "leased", "pinned"};
	const struct event_part parts[] = {{"kind", kinds[e->as.residency.kind % 3], 0},
					   {"bytes", NULL, e->as.residency.bytes},
					   {"lease_ms", NULL, e->as.residency.lease_us / 1000}};
	event_say(d, s, "granted", parts, 3);
}

static void waits(struct daemon *d, const struct session *s, const struct effect *e)
{
	static const char *const why[] = {"pages", "turns", "rows", "prefix", "durable", "copy"};
	struct call *c = &d->calls[(uint32_t)e->turn_key];
	const struct event_part parts[] = {{"why", e->as.wait.why < 6 ? why[e->as.wait.why] : "other", 0},
					   {"place", NULL, e->as.wait.place},
					   {"short_by", NULL, e->as.wait.short_bytes}};
	/* It is told again and again how a turn waits; here once. */
	if (c->queue_told)
		return;
	c->queue_told = true;
	event_say(d, s, "queued", parts, 3);
}

static void lost(struct daemon *d, const struct session *s, const struct effect *e)
{
	const struct event_part parts[] = {{"from", NULL, e->as.lost.tokens_before},
					   {"to", NULL, e->as.lost.tokens_after},
					   {"why", step_lost_name(e->as.lost.why), 0}};
	event_say(d, s, "lost", parts, 3);
}

static void over(struct daemon *d, const struct session *s, const struct effect *e)
{
	const struct event_part parts[] = {{"status", turn_status(e->as.end.end), 0},
					   {"history", NULL, e->as.end.history},
					   {"sampled", NULL, e->as.end.sampled}};
	/* One that was refused on its arrival never was. */
	if (e->as.end.end == END_REFUSED && e->turn == SCHED_NONE)
		return;
	event_say(d, s, e->as.end.end == END_TOOL ? "tool_wait" : "ended", parts, 3);
}

/* Pages of one session that move in one step and one direction are one event. */
static uint32_t moved(struct daemon *d, const struct session *s, uint32_t at)
{
	static const char *const places[] = {"device", "host", "disk"};
	const struct effect *first = &d->effects.list[at];
	const uint32_t from = first->as.copy.place_from, to = first->as.copy.place_to;
	uint64_t pages = 0;
	for (; at < d->effects.count; at++) {
		const struct effect *e = &d->effects.list[at];
		if (e->kind != EFFECT_COPY || e->session != first->session || e->as.copy.place_to != to ||
		    e->as.copy.place_from != from)
			break;
		pages++;
	}
	const struct event_part parts[] = {{"from", from < PLACE_COUNT ? places[from] : "", 0},
					   {"to", to < PLACE_COUNT ? places[to] : "", 0},
					   {"pages", NULL, pages}};
	event_say(d, s, to > from ? "demoted" : "restored", parts, 3);
	return at - 1;
}

void events_step(struct daemon *d)
{
	for (uint32_t i = 0; d->events && i < d->effects.count; i++) {
		const struct effect *e = &d->effects.list[i];
		/* Its slot is filled before the scheduler hears of a session, and emptied by CLOSED at last. */
		const struct session *s = e->session == SCHED_NONE ? NULL : &d->sessions[e->session_key];
		if (!s)
			continue;
		switch (e->kind) {
		case EFFECT_OPENED:
		case EFFECT_RESIDENCY: granted(d, s, e); break;
		case EFFECT_WAIT: waits(d, s, e); break;
		case EFFECT_ADMITTED: event_say(d, s, "running", NULL, 0); break;
		case EFFECT_END: over(d, s, e); break;
		case EFFECT_LOST: lost(d, s, e); break;
		case EFFECT_COPY: i = moved(d, s, i); break;
		case EFFECT_CLOSED: event_say(d, s, "closed", NULL, 0); break;
		default: break;
		}
	}
}

/* {last, first, events}: `first` is the oldest that is kept, so that who asked for an older one sees it. */
void events_replay(struct daemon *d, uint32_t call, const struct wire_call *m)
{
	uint32_t whose = d->calls[call].principal, count = 0;
	struct wire_writer w;
	if (m->a.principal.at) {
		for (whose = 0; whose < principals_all(d); whose++) {
			const char *name = d->principals[whose].name;
			if (name[0] && strlen(name) == m->a.principal.length &&
			    memcmp(name, m->a.principal.at, m->a.principal.length) == 0)
				break;
		}
		/* Who is not to be seen is not there. */
		if (whose == principals_all(d) || !call_sees(d, call, whose)) {
			call_fail(d, call, ERR_NOT_FOUND);
			return;
		}
	}
	const uint64_t last = d->events->seq[whose];
	const uint64_t oldest = last >= d->options.events_kept ? last - d->options.events_kept + 1 : 1;
	const uint64_t most = m->a.count < REPLAY_MAX ? m->a.count : REPLAY_MAX;
	const uint64_t from = m->a.first > oldest ? m->a.first : oldest;
	if (from <= last)
		count = (uint32_t)(last - from + 1 < most ? last - from + 1 : most);
	wire_writer_init(&w, d->out, d->out_max);
	wire_put_map(&w, 3);
	put_number(&w, "last", last);
	put_number(&w, "first", oldest);
	wire_put_text(&w, "events");
	wire_put_array(&w, count);
	for (uint32_t i = 0; i < count; i++) {
		const struct kept_event *k = kept_at(d, whose, from + i);
		CHECK(k->seq == from + i);
		wire_put_value(&w, (struct wire_value){k->body, k->length});
	}
	CHECK(!w.full);
	struct wire_end end = {.status = {"ok", 2}, .result = {w.at, w.length}, .turn = WIRE_NONE,
			       .epoch = WIRE_NONE};
	call_end(d, call, &end);
}
