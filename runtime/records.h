/*
 * What the loop keeps of each principal, door, peer, session and call. In fixed slots, made before the first
 * message: a slot's index is its name. Private to the files of daemon.h, and to the loop's thread.
 */
#ifndef HOLDFAST_RUNTIME_RECORDS_H
#define HOLDFAST_RUNTIME_RECORDS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "clients/wire.h"
#include "runtime/engine.h"
#include "runtime/form.h"
#include "runtime/template.h"
#include "runtime/tenant.h"
#include "sched/sched.h"

enum { NONE = 0xffffffffu, ROUTING_MAX = 255, LABEL_MAX = 64, NAME_MAX_BYTES = 64 };

struct principal {
	char name[NAME_MAX_BYTES]; /* "uid:1000", "TENANT/NAME", "TENANT/NAME/ACT_AS"; empty: free */
	uint32_t tenant;
	uint64_t prompt, sampled; /* tokens of its turns that have ended */
};

/* A socket: one for calls and one for control for each tenant. */
enum { DOORS_MAX = 2 * (TENANTS_MAX + 1) };
struct door {
	void *socket;
	uint32_t tenant;
	bool control; /* for cancels and looks only, so that they wait behind nothing */
	int lock;
	char listen[OPTIONS_PATH_MAX];
};

/* A connection, by its routing id. */
struct peer {
	bool used, hello, gone, congested, chosen; /* chosen: the id, by the client */
	uint8_t id[ROUTING_MAX], id_length;
	uint8_t door, roles;
	uint32_t base, principal; /* who it is; for whom it acts: another for a gateway only */
	uint64_t rate_us, bytes_us; /* up to when its messages and bytes are spoken for */
	uint32_t calls;         /* accepted ones that have not ended */
	uint32_t owed;          /* short answers that could not be sent yet */
	uint64_t channel_last;  /* the highest channel of a CALL so far */
	uint64_t seen_us, retry_us;
	uint32_t strikes;       /* malformed messages since strike_us */
	uint64_t strike_us, muted_us; /* muted_us: until when nothing of it is looked at */
};

/* A short answer outside of any call (WELCOME, PONG, REJECT) that found its peer's pipe full. Kept in
   the order of a ring; a peer that owes itself too many by not reading loses those beyond. */
enum { OWED_MAX = 1024, OWED_PEER_MAX = 512, OWED_BODY_MAX = 512 };
struct owed {
	uint32_t peer; /* NONE: sent, or its peer is gone */
	uint8_t type;
	uint64_t channel;
	size_t length;
	uint8_t body[OWED_BODY_MAX];
};

/* How a session's history came to be, turn by turn, so that it can go back. */
struct turn_mark {
	uint32_t start, output;         /* token positions: where the turn's input and output begin */
	struct template_state before;   /* at start */
};

/* The form of a session's tool calls; a fork shares its parent's. */
struct held_form {
	struct form *form;
	uint32_t sessions;
	/* The tools that it was made of, one after another, for session.export and restarts. */
	char *tools;
	uint32_t tool_count, *tool_length;
};

struct session {
	bool used, closing, tools, raw; /* raw: template "none": tokens only */
	bool forgets;              /* its pages are zeroed as they come back */
	struct wire_id id;
	uint32_t principal, sched; /* sched: the scheduler's index */
	uint64_t epoch, turn;      /* turn: how many have ended */
	uint32_t history;          /* tokens in `token` */
	uint32_t call;             /* the running call, or NONE */
	uint32_t waits_for;        /* how many results it waits for, if known, or 0 */
	uint32_t waits_ids;        /* the ids of their calls, as turn_ids_add adds them up; 0: not known */
	uint32_t mark_count, parent; /* parent: what it is closed with, from 1; 0: it is not tied; family.c */
	uint32_t *token;           /* context of them, or as many as there are, while it rests */
	struct turn_mark *mark;    /* options.session_turns of them, or so */
	uint32_t *far_token;       /* the room for all of them */
	struct turn_mark *far_mark;
	struct template_state state;
	struct held_form *form;    /* for tool_choice required; NULL: no tools, or none can be made */
	const char *form_why;      /* what is wrong with its tools, or why none can be made; static text */
	char label[LABEL_MAX + 1];
	uint64_t waits_since_us;   /* since the last tool call; 0: none is waited for */
	uint64_t number;           /* in the recorded traffic; 0: not there yet */
	uint64_t touched_us, looked; /* when a call last named it; the last look at it in family.c */
	bool kept;                 /* in the store; of it unchanged: so many tokens and marks */
	uint32_t kept_history, kept_marks;
	uint32_t known;            /* tokens that were computed before the restart */
	const char *why_lost;      /* why pages were given up since the last turn; static text */
};

enum call_state {
	CALL_FREE,
	CALL_DEFERRED, /* a turn that waits for the one it supersedes; its message lies in `text` */
	CALL_RUNNING, /* a turn that the scheduler knows */
	CALL_ENDED    /* its END is made; what is left is to send it */
};

enum own_form { OWN_NONE, OWN_SCHEMA, OWN_REGEX, OWN_CHOICES };

/* Where a DATA ended, so that it can be sent again as it was. */
struct sent_mark {
	uint32_t tokens, bytes;
};

/* An accepted call. Text and tokens of a turn lie in the slot from its first byte to its last. What each
   token touches comes first, so that it is few lines of memory: of a step's calls each is looked at once. */
struct call {
	enum call_state state;
	uint32_t generation; /* with the index, the scheduler's turn key */
	uint32_t peer;       /* or NONE: nobody reads it now */
	uint32_t principal, session, sched; /* session: index or NONE; sched: the scheduler's turn */
	uint32_t prompt, output_max;
	uint32_t sampled;       /* tokens so far */
	uint32_t credit;        /* told to the scheduler */
	uint32_t sent_tokens;   /* what its reader was sent; less than made after a RESUME */
	uint32_t made_tokens;   /* what was ever in a DATA: never cut differently again */
	/* Memory of the slot. */
	char *text;             /* text_max bytes */
	uint32_t *token, *text_end; /* context of each: ids, and the text's length after each */
	float *logprob;         /* context */
	struct ops_sampled *alternatives; /* context; only touched when asked for */
	struct sent_mark *sent; /* context of them: by seq - 1, where each DATA ends */
	uint64_t channel, seq;  /* seq: the last that its reader was sent */
	uint64_t seq_made, marked; /* marked: up to this one the file of the streams says where they end */
	uint64_t marks_room;    /* in it there are blocks up to here */
	uint64_t window, progress_us;
	uint64_t began_us, token_us; /* when it came; when its last token did */
	size_t text_length;     /* bytes of text so far */
	size_t visible;         /* of them may be sent: no half character, stop string or call */
	size_t sent_bytes;
	size_t end_length;
	uint64_t accept_mark;   /* ACCEPTED waits until the audit log is on disk up to here */
	uint64_t hold_mark;     /* END waits until the audit log is on disk up to here */
	struct wire_id op, owner; /* owner: the session that it speaks of; zero: none */
	struct utf8_stream utf8;
	uint8_t method;
	bool dup, accepted_sent, begun; /* begun: a batch has had it */
	bool kept, restarted, anew; /* kept: as a turn, in the store; of an earlier process; of an earlier boot */
	bool unmarked;          /* its next DATA waits for its mark */
	bool dropped;           /* the rest of the stream is not sent: cancelled, or unread too long */
	bool cut;               /* it has its END: what is not made of it goes a token at a time */
	bool forced, tools;
	bool call_open;         /* a call is being written, and the text is shown up to call_visible */
	bool waiting, paused, decoding;
	struct wire_sampling sampling; /* its strings point into stop_bytes */
	char stop_bytes[WIRE_STOPS_MAX * 257];
	bool keyed, end_sent;   /* keyed: named by an idempotency key */
	uint64_t detach_us;     /* how long it lives without a reader */
	uint64_t forget_us;     /* without a reader: when that is over */
	uint64_t poked_batch;
	bool queue_told;        /* that it waits is told once */
	bool poked;             /* a fault was made on purpose in its turn: at most one */
	bool forgotten;         /* its session is: nothing of it is kept, and it is zeroed at its end */
	uint32_t idem;          /* where its key is remembered, or NONE */
	size_t text_used;       /* bytes of `text` that were ever touched */
	size_t deferred_body, deferred_blob;
	size_t blob_length;     /* END's third frame, kept in `text`; 0: none */
	uint64_t deadline_us, note_us;
	struct form_state form;
	/* The form that the turn asked for itself; else a forced call has its session's. */
	uint8_t own_kind; /* enum own_form */
	struct form *own;
	char *own_source; /* choices: each a u32 length and its bytes */
	uint32_t own_bytes;
	/* What must come next of it, told and not sampled yet; how many were never sampled. */
	uint32_t coming[FORM_FORCED_MAX], coming_at, coming_count, forced_tokens;
	uint32_t computed, keep;
	uint64_t tool_us;
	size_t calls_from;      /* no call's mark begins before */
	size_t call_visible;
	bool pages_lost;
	uint32_t wait_why, wait_place;
	uint64_t wait_short, wait_eta;
	enum end end;           /* what the runtime found, told with the batch's result */
	uint8_t *end_body;
};

/* What a turn changed of its session on arrival, for the case that the scheduler refuses it. */
struct undo {
	uint32_t call, history, mark_count, cut; /* call: NONE when there is nothing to undo; cut: where */
	uint64_t turn;
	struct template_state state;
	struct turn_mark mark;
	uint32_t *token; /* the tokens from cut on; room for a context */
};

/* A key under which a call was accepted; the newest `calls` x 4 are remembered. */
struct idem {
	bool used;
	uint32_t principal;
	struct wire_id key, op;
	uint8_t body_hash[16];
};

/* The digest of a full page, as long as it bears the tag. */
struct page_sum {
	uint64_t tag, digest[2];
	uint64_t asked; /* the tag under which it is being computed; 0: it is not */
	uint64_t bad;   /* the tag under which it was found to be another */
};

enum { METRICS_BUCKETS = 16, METRICS_ENDS = 32 };
enum { ORIGIN_RESIDENT, ORIGIN_RELOADED, ORIGIN_RECOMPUTED, ORIGIN_NEW, ORIGIN_COUNT };
struct histogram {
	uint64_t bucket[METRICS_BUCKETS], count, sum_us;
};
/* What only grows, for the method metrics. */
struct stats {
	uint64_t calls, resumes, rejects, mutes, data, data_bytes;
	uint64_t prompt[ORIGIN_COUNT], ends[METRICS_ENDS];
	struct histogram first_token, next_token, queue;
	/* By group, place and column; where there are many they are counted once a second. */
	uint64_t pages[SCHED_GROUP_MAX][PLACE_COUNT][COLUMN_COUNT], pages_us;
};

#endif
