/*
 * What the loop keeps in the store so that a restart finds it: principals, sessions with their
 * tokens, turns that run, what was answered, idempotency keys. Private to the daemon.
 *
 * All of it is pushed in the step that it belongs to and is on disk with that step's records. With
 * no store nothing is kept and every call does nothing.
 */
#ifndef HOLDFAST_RUNTIME_KEEP_H
#define HOLDFAST_RUNTIME_KEEP_H

#include "runtime/daemon.h"

/* The most that one step pushes as a rule; what does not fit makes the step wait. */
enum { KEEP_STEP_BYTES = 4 << 20, KEEP_SCRATCH_BYTES = 8 << 20 };

int keep_open(struct daemon *d);
void keep_close(struct daemon *d);
/* Everything that was kept becomes sessions and running turns again. Before the first message.
   -ERR_OUT_OF_RANGE: the limits are smaller than what was kept; one line is said. */
int keep_restore(struct daemon *d);

void keep_principal(struct daemon *d, uint32_t principal);
/* The session as it stands: its row, and of its tokens and marks what changed. */
void keep_session(struct daemon *d, uint32_t session);
void keep_session_drop(struct daemon *d, uint32_t session);
/* The key of a session that was dropped: nothing that was ever kept of it can be read, neither rows nor
   answers nor what lies in old pages of the file. */
void keep_forget(struct daemon *d, const struct wire_id *owner);

/* A key that is new: on disk before ACCEPTED is sent. */
void keep_idem(struct daemon *d, uint32_t call, const struct wire_id *key, const uint8_t hash[16]);
void keep_idem_drop(struct daemon *d, uint32_t principal, const struct wire_id *key);
/* As idem_find, in what is on disk; and 0 for a call of which nothing came. */
int keep_idem_find(struct daemon *d, uint32_t principal, const struct wire_id *key,
		   const uint8_t hash[16], struct wire_id *op);
/* A turn has begun; a call has its END. */
void keep_call_begin(struct daemon *d, uint32_t call);
void keep_call_end(struct daemon *d, uint32_t call);
/* Nobody will ask for the answer again, unless by its key. */
void keep_call_drop(struct daemon *d, uint32_t call);
/* An answer that is on disk takes a slot again; NONE. */
uint32_t keep_call_revive(struct daemon *d, uint32_t principal, const struct wire_id *op);
/* keep_marks.c: where the DATA `seq` of a call ends, before it is sent. False: that, or one before it, could
   not be written: it must not be sent before the answer is on disk with its cuts. */
bool keep_sent(struct daemon *d, uint32_t call, uint64_t seq, const struct sent_mark *mark);
/* It will be written soon. */
void keep_sent_soon(const struct daemon *d, uint32_t call);
/* What is past its time is removed, a little. Returns when to be called next. */
uint64_t keep_sweep(struct daemon *d);

/* keep_say.c: each change of the log's space, anchors, segments and readers, once. */
void keep_say(struct daemon *d);
/* While something waits for the log's disk: when its state is to be looked at again. */
uint64_t keep_look_us(const struct daemon *d);
/* At the end: the log's last records, for which a disk that does not answer has --audit-abort-ms. */
void keep_settle(struct daemon *d);
/* The log's disk has not answered for --audit-stall-ms: begin nothing. */
bool keep_stalled(const struct daemon *d);

/* Between keep.c and keep_call.c. */
void keep_key(struct store_key *key, const void *bytes, size_t length);
void keep_key_add(struct store_key *key, const void *bytes, size_t length);
void keep_key_u32(struct store_key *key, uint32_t number);
/* owner: whose key it lies under, NULL for what names no text. */
void keep_put(struct daemon *d, enum store_table table, const struct store_key *key,
	      const struct wire_id *owner, const void *value, size_t bytes);
uint64_t keep_wall_ms(void);
int keep_guard_open(struct daemon *d); /* d->guard: over what the loop itself does in files */
int keep_streams_open(struct daemon *d);
void keep_streams_close(struct daemon *d);
/* The DATA of a call that were made before the restart. */
void keep_marks_restore(struct daemon *d, uint32_t call);
/* A turn that ran takes its old slot and runs again. */
int keep_call_restart(struct daemon *d, uint32_t session, const struct wire_id *op);

#endif
