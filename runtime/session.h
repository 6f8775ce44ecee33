/*
 * Sessions of the daemon: their histories, and the methods on them. Included by runtime/daemon.h, which has
 * the structures.
 */
#ifndef HOLDFAST_RUNTIME_SESSION_H
#define HOLDFAST_RUNTIME_SESSION_H

/* session.c: histories. */
int sessions_open(struct daemon *d);
void sessions_close(struct daemon *d);
uint32_t session_take(struct daemon *d, uint32_t principal);
/* There is none: the call ends, and is told which limit is reached. */
void session_refuse(struct daemon *d, uint32_t call, uint32_t principal);
void session_drop(struct daemon *d, uint32_t session);
void session_end_alone(struct daemon *d, uint32_t session); /* not what is tied to it */
void record_session(struct daemon *d, const struct session *s, uint8_t kind);
/* family.c */
void session_end(struct daemon *d, uint32_t session); /* and all that is tied to it */
/* What it was tied to has ended. */
bool session_orphan(const struct session *s);
/* At the start: what it was tied to is gone, or was forgotten. It ends in the loop, with all that is tied to
   it. */
void session_orphan_make(struct daemon *d, uint32_t session, bool forgotten);
/* It is gone since nobody named it for too long; as far as is known. */
bool session_expired(const struct daemon *d, uint32_t principal, const struct wire_id *id);
/* Closes what was idle for too long, if there is such a limit. Returns when to look again. */
uint64_t sessions_reap(struct daemon *d);
uint32_t session_find(struct daemon *d, uint32_t principal, const struct wire_id *id);
/* session_rest.c */
int session_rest_open(struct daemon *d);
void session_rest_close(struct daemon *d);
/* Nothing of it runs: a short history needs no pages of its own. Its tokens may be read, and cut. */
void session_rest(struct daemon *d, uint32_t session);
/* Before anything is appended. */
void session_wake(struct session *s);
/* What was touched of the room for all goes back. */
void session_far_release(struct daemon *d, struct session *s);
/* The form of another session with the same tools; NULL: none. */
struct held_form *session_form_same(const struct daemon *d, const struct wire_args *a);
/* Cuts the history and what goes with it to `tokens`, which lies within it. */
void session_cut(struct daemon *d, uint32_t session, uint32_t tokens);
/* Cuts to `tokens` here and in the scheduler; the session has no running call. */
void session_rollback(struct daemon *d, uint32_t session, uint32_t tokens);
/* text.c: whether sessions of that template can be had (d->template_why); raw: tokens only. */
int session_template(const struct daemon *d, const struct wire_str *name, bool *raw);
/* Whether it may have a system prompt and tools; where not, it is noted why. */
bool session_offers(const struct daemon *d, struct session *s);
/* Takes the tools that a session is opened with; `tools` has room for them. */
int session_tools(struct daemon *d, struct session *s, const struct wire_args *a, struct tool *tools);
/* Renders and tokenises what a session begins with into its history. */
int session_head(struct daemon *d, struct session *s, const struct wire_args *a);
/* The scheduler hears of a session whose slot is filled, unless code says what is wrong with it; ends
   the call either way. */
void session_begin(struct daemon *d, uint32_t call, const struct wire_call *m, uint32_t slot, int code);
void session_method_open(struct daemon *d, uint32_t call, const struct wire_call *m);
void session_method_fork(struct daemon *d, uint32_t call, const struct wire_call *m);
void session_method_rollback(struct daemon *d, uint32_t call, const struct wire_call *m);
void session_method_close(struct daemon *d, uint32_t call, const struct wire_call *m);
void session_method_forget(struct daemon *d, uint32_t call, const struct wire_call *m);
void session_method_attach(struct daemon *d, uint32_t call, const struct wire_call *m);
void session_method_residency(struct daemon *d, uint32_t call, const struct wire_call *m);
void session_method_hint(struct daemon *d, uint32_t call, const struct wire_call *m);
void session_method_park(struct daemon *d, uint32_t call, const struct wire_call *m);
void session_method_touch(struct daemon *d, uint32_t call, const struct wire_call *m);
/* The tools of a session, as they were kept. */
int session_tools_restore(struct daemon *d, struct session *s, const uint8_t *tools, size_t bytes);
/* Sets what END says of a session: id, epoch, turn. */
void session_end_fields(const struct session *s, struct wire_end *end);
/* Tokenises the rendering in hand into d->ids; *count of them. */
int session_tokenise(struct daemon *d, size_t *count);

/* lost.c: the device, or a rank of it, is gone. */
/* Says and records it, once: the loop ends. */
void lost_device(struct daemon *d);
/* Whether the ranks live, when nothing is computed; and when to ask next. */
void lost_look(struct daemon *d);
uint64_t lost_look_us(const struct daemon *d);
/* Who waits for an END gets one: the device is lost, or the log. */
void lost_calls(struct daemon *d);

#endif
