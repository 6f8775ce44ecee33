/*
 * What is told of sessions and of KV blocks without being asked: made from the scheduler's effects,
 * numbered, kept for a while so that who missed some can ask, and sent by outlet.c.
 */
#ifndef HOLDFAST_RUNTIME_EVENTS_H
#define HOLDFAST_RUNTIME_EVENTS_H

#include "runtime/outlet.h"

/* --- events.c: sessions. Numbers count from 1 for each principal, anew in each process. --- */

struct event_part {
	const char *key, *text; /* text NULL: the number is meant; both static */
	uint64_t number;
};
int events_open(struct daemon *d);
void events_close(struct daemon *d);
void event_say(struct daemon *d, const struct session *s, const char *what, const struct event_part *parts,
	       uint32_t count);
/* What the effects of a step have to tell, once they are carried out. */
void events_step(struct daemon *d);
/* The method events.replay. */
void events_replay(struct daemon *d, uint32_t call, const struct wire_call *m);

/* --- kv_events.c: full pages, in the schema of vLLM's kv_events (see the README). --- */

enum { KV_KEPT_MAX = 16384, KV_PAYLOAD_MAX = 32768 };
enum kv_form { KV_FORM_ARRAY, KV_FORM_MAP };
/* Nothing is made, and nothing costs anything, unless somebody asked for the events. */
int kv_open(struct daemon *d);
void kv_close(struct daemon *d);
/* Of the batch in flight: so many rows of the entry are in its pages now. Before the scheduler hears it. */
void kv_computed(struct daemon *d, const struct batch_entry *e, uint32_t computed);
/* The effects of a step, once they are carried out. */
void kv_step(struct daemon *d);
/* A copy between places has ended. Before the scheduler hears it. */
void kv_copied(struct daemon *d, uint64_t copy, bool done);
/* A session was cut, without a turn. */
void kv_cut(struct daemon *d, uint32_t session);
/* Sends what has gathered. */
void kv_flush(struct daemon *d);
/* Answers one request to play again. True if another may be there. */
bool kv_replay(struct daemon *d, struct outlet *o);

#endif
