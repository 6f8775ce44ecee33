/*
 * The daemon's own structures, shared by the files that make up the loop: loop.c (the world: files,
 * sockets, time), peer.c (connections and principals), call.c (accepted calls: streams, credit,
 * END), session.c (histories), turn.c (a turn from messages to tokens and back to text), step.c
 * (the scheduler's effects carried out), methods.c (what is looked at). Private to them. What is kept of
 * each peer, session and call is in records.h.
 *
 * One thread runs all of it. Nothing here is reached from another thread.
 */
#ifndef HOLDFAST_RUNTIME_DAEMON_H
#define HOLDFAST_RUNTIME_DAEMON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "clients/wire.h"
#include "runtime/authority.h"
#include "runtime/guard.h"
#include "runtime/inject.h"
#include "runtime/options.h"
#include "runtime/records.h"
#include "runtime/store.h"
#include "sched/sched.h"

struct lower_disk;

enum { EXPIRED_MAX = 1024 };

struct daemon {
	struct options options;
	struct model *model;
	struct tokenizer *tokenizer;
	const struct template *template;
	char template_why[128];   /* to who names another: which may be named */
	uint32_t call_mark;       /* the token of the template's mark for calls, if it is one */
	uint32_t end_mark;        /* the template's token that ends a turn; UINT32_MAX: not known */
	struct form_index *form_index; /* NULL: this vocabulary can write no form */
	struct ranks *ranks;      /* NULL: one */
	struct forward *forward; /* only for what does not change: its plan */
	struct engine *engine;
	struct store *store;
	struct guard *guard;
	struct sched *sched;
	struct effects effects;
	struct sched_limits limits;
	size_t text_max, end_max;

	void *zmq, *zap;
	struct door door[DOORS_MAX];
	uint32_t door_count;
	struct outlet *outlet; /* sockets of events: outlet.h */
	uint32_t outlet_count;
	struct event_log *events;
	struct kv *kv;         /* NULL: nobody asked for events of blocks */
	struct tenants tenants, tenants_fresh;
	struct authority authority;
	int epoll, signals;
	int library_thread;     /* of libzmq: reads and writes the connections; 0: not known yet */
	uint8_t boot[16];
	uint64_t now_us, started_us, loop_turns, tokens_sampled, tokens_forced;
	struct stats stats;
	FILE *traffic;          /* NULL: nothing is recorded */
	uint64_t traffic_sessions;
	bool draining, stopping, failed, device_lost;
	bool memory_told; /* a line has said what there is no memory for */
	bool deferred; /* a call may be CALL_DEFERRED */
	uint64_t ranks_looked_us;
	uint64_t drain_until_us, drain_quiet_us;
	bool unclosed;          /* records were pushed since the last STEP_END */
	bool audit_due, engine_watched;
	uint64_t audited_us, reaped_us, orphans, family_looks; /* orphans: sessions that must end; family.c */

	struct principal *principals;
	struct peer *peers;
	struct owed *owed;       /* ring of OWED_MAX */
	uint32_t owed_first, owed_count;
	struct session *sessions;
	uint8_t *near;           /* short histories of sessions that rest */
	struct call *calls;
	uint32_t calls_top; /* slots from here on are free: they are large, and need not be looked at */
	struct idem *idem;
	uint32_t idem_count, idem_next;
	size_t token_bytes_max;   /* of one token's text */
	/* The host slab, its pages' digests, and a ring of copies that are done and not told yet. */
	uint8_t *host;
	struct engine_sum *host_sums;
	uint8_t *host_state;    /* per page of the host: bits of enum host_state */
	struct copied {
		uint64_t copy;
		int err;
	} *copied;
	uint32_t copied_first, copied_count;
	struct chain_key *chain, chain_root; /* the keys of the turn in hand; what they stand on */
	struct lower_disk *disk; /* NULL: there is no disk tier */
	bool disk_refused;      /* there should be one, and its file could not be used */
	uint32_t *page_principal; /* per page, by pages_number: who had it last, to know what must be cleared */

	struct wire_limits wire;
	struct wire_call message; /* the CALL in hand */
	struct rendering rendering;
	uint32_t *ids;          /* context + 1 of room */
	struct page_ref *refs;  /* pages of one session, group after group */
	uint8_t *out;           /* room for one outgoing body */
	size_t out_max;
	uint32_t *mask;         /* vocab bits */

	struct engine_job *job; /* being filled */
	uint32_t *entry_call, *entry_sample; /* of the batch in flight: per entry */
	struct batch_entry *entry;
	struct batch_result *result;
	uint32_t entry_count;
	bool in_flight;
	struct undo undo;
	/* Takes every message in the socket's place: the self-test's. Returns what peer_send does. */
	int (*sink)(struct daemon *d, uint32_t peer, const struct wire_header *h, const void *body,
		    size_t length, const void *blob, size_t blob_length);
	/* Told whose page --inject turned a bit of while it is read: the self-test's, or NULL. */
	void (*outside)(struct daemon *d, uint32_t session);
	uint8_t *scratch;       /* for what is kept */
	int streams;            /* the file of what was sent, */
	uint8_t *marks;         /* mapped; or NULL */
	bool restore_other;     /* what is restored was made with another model or plan */
	uint64_t swept_us, poke_steps_max; /* steps from a fault on purpose to its being found */
	/* Sessions that nobody named for too long, the newest: who names one now hears that. */
	struct expired {
		uint32_t principal;
		struct wire_id id;
	} expired[EXPIRED_MAX];
	uint64_t expired_count; /* free-running */
	struct wire_id forgotten[256]; /* ops whose answers are being removed from the disk, the newest */
	uint32_t forgotten_next, kernel_boot; /* kernel_boot: streams of another one are not joined */
	struct inject inject;
	struct page_sum *sums;  /* per page, by pages_number */
	bool scrubbing;         /* a job of the scrub's is with the engine */
	uint32_t wipe_count;    /* device pages that are PAGE_FORGOTTEN */
	bool forget_due;        /* a session was forgotten: what is free is to be looked at */
	uint32_t scrub_page;
	uint64_t scrub_next_us, scrub_began_us;
	uint64_t incidents[REASON_COUNT], conflicts_told;
	uint64_t durable_told;
	/* What was said of the log's state, so that each change is said once. */
	struct {
		int space, anchor, archive;
		bool waits, stalled, behind;
		uint32_t reader, ended;
		uint64_t waited_us, looked_us, at; /* what waits for the disk: for how long, and where it stood */
	} told;
	uint64_t prefill_us_total, prefill_rows_total, rates_told_us;
	bool rates_news; /* something was measured since */
};

/* log.c */
enum { LOG_LINE_MAX = 3072 };
enum log_level { LOG_ERROR, LOG_NOTICE, LOG_DEBUG };
void log_level_set(enum log_level level);
__attribute__((format(printf, 2, 3))) void log_say(enum log_level level, const char *format, ...);
/* A progress bar on a terminal's stderr; nothing elsewhere. done == total ends its line. */
void log_progress(void *arg, const char *what, uint64_t done, uint64_t total);

/* peer.c: who speaks. */
int peers_open(struct daemon *d);
/* The principal of that name, or NONE if the table is full. */
uint32_t principal_find(struct daemon *d, const char *name, uint32_t tenant);
/* Whose message it is that came in at a door with that User-Id, and what he may; NONE if nobody's that is
   known. *revoked: he was let in, and may not come in any more. */
uint32_t principal_of_user(struct daemon *d, uint32_t door, const char *user, uint32_t *roles, bool *revoked);
/* The peer with that routing id and principal; a new slot if there is none; NONE if all are busy. */
uint32_t peer_find(struct daemon *d, uint32_t door, const void *id, size_t length, uint32_t principal);
/* Whether the peer sends more than its tenant allows; counts the message. */
bool peer_over_rate(struct daemon *d, struct peer *p, size_t bytes);
/* Whether the call's client may see what is that principal's. */
bool call_sees(const struct daemon *d, uint32_t call, uint32_t principal);
/* Sends one message; 0, -ERR_LIMIT (try again later), -ERR_CLOSED (the peer is gone). */
int peer_send(struct daemon *d, uint32_t peer, uint8_t type, uint64_t channel, uint64_t seq,
	      const void *body, size_t length, const void *blob, size_t blob_length);
/* Sends a short answer, now or as soon as there is room; a peer that is gone is let go. */
void peer_say(struct daemon *d, uint32_t peer, uint8_t type, uint64_t channel, const void *body,
	      size_t length);
/* Tries again what is owed. */
void peers_flush(struct daemon *d);
void peer_reject(struct daemon *d, uint32_t peer, uint64_t channel, int code);
/* Why a CALL or RESUME is refused whose channel is none that may be next. */
#define CHANNEL_AGAIN "a channel is a number above those of the connection's calls before"
void peer_reject_why(struct daemon *d, uint32_t peer, uint64_t channel, int code, const char *why);
void peer_reject_numbers(struct daemon *d, uint32_t peer, uint64_t channel, const struct wire_err *err);
/* The peer is gone: its calls lose their reader. */
void peer_gone(struct daemon *d, uint32_t peer);
/* Answers one request on the ZAP socket, if there is one. */
void zap_serve(struct daemon *d);

/* call.c: accepted calls. */
int calls_open(struct daemon *d);
void calls_close(struct daemon *d);
/* A slot for the CALL in hand; NONE if there is none free or the principal has too many. */
uint32_t call_take(struct daemon *d, uint32_t peer, uint64_t channel, const struct wire_call *m);
void call_free(struct daemon *d, uint32_t call);
/* A free slot as a new one, in CALL_ENDED, with nobody's name on it. */
void call_reset(struct daemon *d, uint32_t call);
/* Address space of so many bytes; what is never touched costs nothing. NULL: none. */
void *memory_reserve(size_t bytes);
void memory_release(void *at, size_t bytes);
/* Forgets a call's key: it was refused before anything was done. */
void call_idem_forget(struct daemon *d, uint32_t call);
/* 0: a new key; -ERR_IDEM_MISMATCH; 1: seen, *op is its call's. */
int idem_find(const struct daemon *d, uint32_t principal, const struct wire_id *key,
	      const uint8_t body_hash[16], struct wire_id *op);
/* Remembers a new key with the call's op. */
void idem_keep(struct daemon *d, uint32_t call, const struct wire_id *key,
	       const uint8_t body_hash[16]);
uint32_t call_of_op(struct daemon *d, uint32_t principal, const struct wire_id *op);
uint32_t call_of_channel(struct daemon *d, uint32_t peer, uint64_t channel);
/* Makes the END of a call that is no turn, or of a refused turn. code 0: status "ok". */
void call_end(struct daemon *d, uint32_t call, struct wire_end *end);
void call_fail(struct daemon *d, uint32_t call, int code);
/* why: a text that stays, or NULL. */
void call_fail_why(struct daemon *d, uint32_t call, int code, const char *why);
void call_fail_numbers(struct daemon *d, uint32_t call, const struct wire_err *err);
/* Sends what can be sent now: ACCEPTED, DATA within the credit, END; frees the slot after END. */
void call_flush(struct daemon *d, uint32_t call);
void calls_flush(struct daemon *d);
/* The next of it may not be sent before the audit log is on disk: it waits for that, not for its reader. */
bool call_waits_for_log(const struct daemon *d, const struct call *c);
/* Stalled readers, deadlines of notes. Returns when to be called next. */
uint64_t calls_tick(struct daemon *d);
void call_window(struct daemon *d, uint32_t call, uint64_t max_off);
/* The client takes the call back, or is gone. */
void call_cancel(struct daemon *d, uint32_t call, enum end end);
/* Tells the scheduler of new room in the stream, when it matters. */
void call_credit(struct daemon *d, uint32_t call);

/* attach.c: a call's reader, lost and found again. */
/* The call has lost its reader: it lives on for its detach time, or is cancelled. */
void call_detached(struct daemon *d, uint32_t call);
/* END was sent, or made with nobody there: the slot is kept for a RESUME, or freed. */
void call_settled(struct daemon *d, uint32_t call);
/* Ended and sent: only kept so that it can be asked for again. */
bool call_kept(const struct call *c);
/* Frees the kept call that gives way to a new one of that principal; NONE: there is none. */
uint32_t call_reclaim(struct daemon *d, uint32_t principal, bool only_own);
/* The peer's channel becomes the call's reader, behind after_seq. 0, or why not; then nothing is
   changed. Whoever read it before is told so. */
int call_attach(struct daemon *d, uint32_t call, uint32_t peer, uint64_t channel, uint64_t after_seq,
		uint64_t window);
/* Time for a call without a reader. Returns when to look again. */
uint64_t call_detached_tick(struct daemon *d, uint32_t call);
/* RESUME and ACK. */
void attach_resume(struct daemon *d, uint32_t peer, const struct wire_header *h, const void *body,
		   size_t length);
void attach_ack(struct daemon *d, uint32_t peer, const struct wire_header *h, const void *body,
		size_t length);

/* turn.c */
/* body: the message's second frame, for a turn that has to wait before it can be rendered. */
void turn_method(struct daemon *d, uint32_t call, const struct wire_call *m, const void *body,
		 size_t length, const uint8_t *blob, size_t blob_length);
/* A turn that ran before the restart runs again from its start, or ends as restarted. */
void turn_restart(struct daemon *d, uint32_t call);
void turn_restart_fail(struct daemon *d, uint32_t call);
/* It has a turn: one that runs, or one that waits for that and has yet to begin. */
bool session_busy(const struct daemon *d, uint32_t session);
/* Ends the deferred turns of a session, with a status or (NULL) as not found. */
void turns_deferred_end(struct daemon *d, uint32_t session, const char *status);
void turns_deferred(struct daemon *d); /* runs the turns that waited for the one they supersede */
/* One sampled token, and those behind it that are known since a form has no other: *count of them
   together. Returns END_NONE or why the turn is over. */
enum end turn_token(struct daemon *d, uint32_t call, const struct ops_sampled *sampled, uint32_t *count);
/* What END says of a turn that ended so. */
const char *turn_status(enum end end);
/* The calls that the text ends in, into END, with ids; which live as long as `ids`. */
enum { TURN_ID_ROOM = 24 };
void turn_calls_fill(struct daemon *d, struct call *c, struct wire_end *end, char ids[][TURN_ID_ROOM]);
/* Adds an id of a call to those of a turn, in any order. The same in every process. */
uint32_t turn_ids_add(uint32_t sum, const struct wire_str *id);
/* Says in END's result why what looked like a call was none, if something did. */
void turn_no_call_fill(struct daemon *d, const struct call *c, struct wire_end *end);
/* The scheduler's END of a turn. */
void turn_over(struct daemon *d, uint32_t call, const struct effect *effect);
/* Adds the counts that penalties need. */
void turn_counts(struct daemon *d, uint32_t call, struct batch_builder *b, struct ops_sample *sample);
/* Fills the sample of a turn's last row. */
void turn_sample(struct daemon *d, uint32_t call, struct batch_builder *b, struct ops_sample *sample);

/* lower.c: pages of the host slab, and what copies have in common. */
enum host_state {
	HOST_BYTES = 1, /* somebody's bytes are there */
	HOST_HELD = 2,  /* by the scheduler's word */
	HOST_BUSY = 4,  /* the engine or the disk copies from or to it */
	HOST_WIPE = 8   /* to be zeroed after that */
};
int lower_open(struct daemon *d);
void lower_close(struct daemon *d);
/* Zeroes what lies on the host and in the hands of copies and is nobody's, a part of it; false: there is
   more. What is being copied is zeroed after that (forget_due). */
bool lower_wipe(struct daemon *d);
/* A copy from or to a page of the host is over; leaves: the page has nothing more to do there. */
void lower_host_copied(struct daemon *d, uint32_t number, bool leaves);
/* Where a page of the host slab lies. */
uint8_t *lower_host_at(const struct daemon *d, uint32_t group, uint32_t slot);
void lower_copy(struct daemon *d, const struct effect *e);
void lower_submit(struct daemon *d);
void lower_take(struct daemon *d, const struct engine_job *job);
void lower_done(struct daemon *d, uint64_t copy, int err); /* err: an enum err, or 0 */
void lower_tell(struct daemon *d);

/* chain.c: the keys of full pages. */
int chains_open(struct daemon *d);
bool chains_share(const struct daemon *d); /* sessions can find each other's pages at all */
/* Makes those of the session's history in d->chain; how many, or 0 where nothing is shared. */
uint32_t chain_make(struct daemon *d, const struct session *s);
/* Which of the tokens from `first` on were sampled, and so have the plan of sampled tokens now and whenever
   they are computed again: 1, or 0 for a given one. */
void session_phases(const struct session *s, uint32_t first, uint32_t count, uint8_t *out);
/* The same in room, if that is part of a page's name: NULL where both have one plan. */
const uint8_t *session_phases_named(const struct daemon *d, const struct session *s, uint32_t first,
				    uint32_t count, uint8_t *room);

/* public.c: what an operator lets all users share. */
int public_open(struct daemon *d);
bool public_is(const struct daemon *d, uint32_t principal);
/* Places in the table of principals: those who come in, and `public` behind them if there is one. */
uint32_t principals_all(const struct daemon *d);
enum { LOWER_STAGES = 64 }; /* copies that the disk tier may have with the engine at once */
/* lower_disk.c: copies to and from the disk tier. Without one all of them do nothing. */
void lower_disk_copy(struct daemon *d, const struct effect *e);
void lower_disk_pump(struct daemon *d);
void lower_disk_took(struct daemon *d, uint32_t stage, int err);
/* Takes what the disk has done. Returns when to be called next at the latest. */
uint64_t lower_disk_tick(struct daemon *d);
/* Bytes a second, of late, as they are told: what is older counts less. */
uint64_t lower_disk_rate(struct daemon *d);
int lower_disk_fd(const struct daemon *d); /* -1: there is none */
struct lower_figures {
	uint64_t puts, gets, lost, bad_slots, read_bytes_s, stalled;
};
struct lower_figures lower_figures(const struct daemon *d);
/* Zeroes stages: those in hand when they are free again. */
void lower_disk_wipe(struct daemon *d);
/* Pages of the host or the disk lost their last owner. */
void lower_free(struct daemon *d, const struct effect *e);
/* The session's history was cut; the session is gone, and nothing of it stays in the file. */
void lower_history_cut(struct daemon *d, uint32_t session, uint32_t tokens);
void lower_forget(struct daemon *d, uint32_t session);

/* lower_found.c: the disk tier from one process to the next. */
/* Opens the file, before the scheduler's limits are final: without it there is no disk to schedule. */
int lower_disk_open(struct daemon *d);
int lower_disk_scan(struct daemon *d); /* before the first session is restored */
void lower_disk_close(struct daemon *d);
/* The session restored before that has most full pages of the tier in common with this one: so many
   tokens. NONE. */
uint32_t lower_donor(struct daemon *d, uint32_t session, uint32_t *tokens);
/* Gives a session that the scheduler knows, and that rests, what more of it is in the file. */
void lower_adopt(struct daemon *d, uint32_t session);
void lower_found(struct daemon *d, const struct effect *e);
/* All sessions are restored: what is nobody's is emptied. */
void lower_adopted(struct daemon *d);
/* At the end: sessions at rest are written down. True when done, or when the time for it is over. */
bool lower_park(struct daemon *d);

/* turn_bias.c: biases, and what DRY takes off. */
void turn_bias(struct daemon *d, uint32_t call, struct batch_builder *b, struct ops_sample *sample);

/* turn_form.c: the form that a turn asks for itself. */
/* Makes it of the arguments, if they name one. A negative code; *reason is then a fixed text or NULL. */
int turn_form_take(struct daemon *d, struct call *c, const struct wire_args *a, const char **reason);
/* The same of what was kept. */
int turn_form_restore(struct daemon *d, struct call *c, uint8_t kind, const void *source, size_t bytes);
void turn_form_drop(struct call *c);
/* The form's start. */
void turn_form_start(struct daemon *d, struct call *c);
/* The token that must come next of a forced turn's form; false: there is a choice. */
bool turn_form_next(struct daemon *d, struct call *c, uint32_t *token);
/* The form goes on by a token that did not end the turn. */
void turn_form_token(struct daemon *d, struct call *c, uint32_t token, const char *bytes, size_t length);
/* What may come next, as bits that were zero. */
void turn_form_mask(struct daemon *d, struct call *c, uint32_t *bits);
/* The form of a forced turn. */
struct form *turn_form(const struct daemon *d, const struct call *c);

/* step.c */
int step_open(struct daemon *d);
/* Why pages were given up, as it is told: enum lost_why. */
const char *step_lost_name(uint32_t why);
/* One event through the scheduler, its effects carried out. */
void step(struct daemon *d, const struct event *event, const struct batch_result *results);
/* Sends the job in hand, which has no batch, to the engine and takes another; false, and nothing is done,
   where none would be left to take when the next batch is sent. So there is always one in hand. */
bool step_job_send(struct daemon *d);
void step_batch_done(struct daemon *d, struct engine_job *job);
/* Tells the scheduler how fast this machine is, of late, if something was measured. */
void rates_tell(struct daemon *d);
/* Records an incident with a page, and ends the process where --integrity says so. call: whose turn
   it ends, or NONE. */
void step_incident(struct daemon *d, const struct ops_fault *f, uint8_t reason, uint32_t call);
/* The audit log has room for the records of another step. */
bool step_room(const struct daemon *d);
/* Pushes one record of the step in hand; and closes the step, if any was pushed. */
void step_record(struct daemon *d, const struct store_record *record);
void step_record_close(struct daemon *d);
/* What the last OPEN, FORK, RESIDENCY or PARK event got. */
struct granted {
	int err;
	uint32_t session, kind;
	uint64_t bytes, lease_us, asked_bytes, free_bytes;
};
extern struct granted step_granted;

/* methods.c: a CALL is dispatched, and the methods that only look. */
/* A turn: its call may stay for long. */
bool method_is_turn(uint8_t method);
/* Why a call may not touch the session that it names; 0: it may, and c->session is set. */
int method_session_check(struct daemon *d, uint32_t call, const struct wire_call *m);
void method_call(struct daemon *d, uint32_t peer, uint64_t channel, const void *body, size_t length,
		 const uint8_t *blob, size_t blob_length);

/* digest.c */
/* groups.c: layers with a window have pages of their own. */
bool groups_wanted(const struct daemon *d); /* by the model, the options and the limits */
/* Divides bytes between the groups, for contexts of groups_context tokens of which `turns` run. */
void groups_split(const struct daemon *d, uint64_t bytes, uint64_t turns, uint64_t pages[2]);
uint64_t groups_context(const struct daemon *d);
double groups_contexts(const struct daemon *d, uint64_t tokens); /* of so many, on the device */
uint64_t groups_bytes(const struct daemon *d, enum place place);
/* The pages of all groups as one row of numbers: those of group 0 first. The last is the way back: the
   group, and in *number its page. */
uint32_t pages_count(const struct daemon *d, enum place place);
uint32_t pages_number(const struct daemon *d, enum place place, uint32_t group, uint32_t page);
uint32_t pages_group(const struct daemon *d, enum place place, uint32_t *number);

int digests_open(struct daemon *d);
/* The digests that an entry of the batch asks for, of one group: its pages are in refs, the first is the
   session's `first`. resumes: its turn begins. */
void digests_entry(struct daemon *d, const struct batch_entry *e, uint32_t group, uint32_t first,
		   const struct page_ref *refs, bool resumes);
void digests_take(struct daemon *d, const struct engine_job *job);
/* A page that was found to be another under that tag. */
bool digest_bad(const struct daemon *d, uint32_t group, uint32_t page, uint64_t tag);
/* Pages at rest are compared, a few. Returns when to be called next. */
uint64_t digests_scrub(struct daemon *d);
/* The faults of --inject on an entry, whose pages are in d->refs: those of group 0 from refs[0] on, all
   of them, then those of group 1, the first of which is the session's `first`. */
void inject_entry(struct daemon *d, struct call *c, const struct batch_entry *e, uint32_t pages,
		  bool resumes, uint64_t batch);

/* move.c */
void session_method_export(struct daemon *d, uint32_t call, const struct wire_call *m);
void session_method_import(struct daemon *d, uint32_t call, const struct wire_call *m, const uint8_t *blob,
			   size_t blob_length);

/* traffic.c: the turns that were answered, as a trace. */
int traffic_open(struct daemon *d);
void traffic_turn(struct daemon *d, const struct call *c, struct session *s, const struct effect *e);
void traffic_close(struct daemon *d);

/* metrics.c */
void histogram_add(struct histogram *h, uint64_t us);
/* A token of the call was sampled just now; a turn has ended. */
void metrics_token(struct daemon *d, struct call *c);
void metrics_end(struct daemon *d, const struct call *c, const struct effect *e);
void metrics_show(struct daemon *d, uint32_t call, const struct wire_call *m);

/* stop.c: how much of a text may be shown while a stop string could still begin in it. */
/* Looks for the first stop string in text[from..length): its start, or SIZE_MAX. *hold: where the
   shortest suffix begins that could still become one (length if none). */
size_t stop_find(const struct wire_str *stop, uint32_t count, const char *text, size_t from,
		 size_t length, size_t *hold);

/* text.c: the model's tokenizer, template and vocabulary for forms. Says what is wrong. */
int text_open(struct daemon *d);

/* daemon.c: everything from opening to closing; returns the exit code. */
int daemon_run(const struct options *options);
/* All but the endpoint and its lock, for a daemon with a sink; close what was opened in any case. */
int daemon_inside_open(struct daemon *d, const struct options *options);
void daemon_inside_close(struct daemon *d);

#include "runtime/session.h"

#endif
