/*
 * What the audit log says of authority and configuration: who was refused and why, whose key was taken
 * away, with what the daemon began, and what a reload changed.
 *
 * A refusal costs its sender nothing and the log a record, so each reason has a budget of its own at each
 * tenant: AUTH_BURST at once, then one every AUTH_EVERY_MS. What is beyond that is counted, and the next
 * record of that reason there says how many were left out before it.
 */
#ifndef HOLDFAST_RUNTIME_AUTHORITY_H
#define HOLDFAST_RUNTIME_AUTHORITY_H

#include "runtime/store.h"
#include "runtime/tenant.h"

struct daemon;
struct wire_id;

enum { AUTH_BURST = 16, AUTH_EVERY_MS = 10000 };

struct authority {
	struct auth_budget {
		uint64_t until_us, left_out; /* until_us: up to when the budget is spoken for */
		bool held;                   /* `last` waits for the budget */
		struct store_record last;
	} budget[TENANTS_MAX + 1][AUTH_REASONS];
	bool any_held;
	struct store_record reload; /* waits for the log, with what further ones changed added */
	bool reload_held;
};

/* A connection that was not let in at that tenant. key: its 32 bytes or NULL; what is recorded of it is
   its hash. address: what the library says of the other side, "localhost:UID:GID:PID" or a number. */
void authority_refused(struct daemon *d, uint32_t tenant, const uint8_t *key, const char *address);
/* A peer was refused something, or cut off. session, op: what it asked for, where that is somebody's. */
void authority_denied(struct daemon *d, uint32_t peer, enum store_auth reason, const struct wire_id *session,
		      const struct wire_id *op);
/* The same, if that session or call is there and another principal's. */
void authority_session(struct daemon *d, uint32_t peer, const struct wire_id *session);
void authority_call(struct daemon *d, uint32_t peer, const struct wire_id *op);
/* Records what waited for its budget. Returns when to be called next. */
uint64_t authority_tick(struct daemon *d);
/* ... at the end, whatever the budgets say. */
void authority_end(struct daemon *d);

/* At the start: model, plan, options and tenants. */
void authority_start(struct daemon *d);
/* The store's were made with another model or plan; was: that one's hash. */
void authority_changed(struct daemon *d, enum store_config reason, const uint8_t was[16]);
/* Reads the tenants again. A file that is wrong changes nothing: who is in stays in, and no more come. */
void authority_reload(struct daemon *d);

#endif
