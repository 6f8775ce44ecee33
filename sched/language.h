/*
 * The whole language of the scheduler: the events that go in and the effects that come out.
 * Counts, keys, tags and times; never text. Included by sched/sched.h, which is the door.
 *
 * Both are plain data without pointers, so a day can be recorded, replayed, hashed and compared.
 * The variable parts (chain keys of an event, results of a batch, entries of a batch) lie in
 * arrays beside them, owned by the caller and read only during the call.
 */
#ifndef HOLDFAST_SCHED_LANGUAGE_H
#define HOLDFAST_SCHED_LANGUAGE_H

#include <stdint.h>

enum { SCHED_GROUP_MAX = 4, SCHED_NONE = 0xffffffffu };

/* Where a page's bytes lie. PLACE_TOKENS is no place: nothing but the tokens is left. */
enum place { PLACE_DEVICE, PLACE_HOST, PLACE_DISK, PLACE_TOKENS, PLACE_COUNT = PLACE_TOKENS };

enum residency { RESIDENCY_BEST_EFFORT, RESIDENCY_LEASED, RESIDENCY_PINNED };

/* What a session waits for between its turns; chooses the clock that estimates its return. */
enum pause { PAUSE_HUMAN, PAUSE_TOOL };

/* Why a turn ended. END_NONE is "it goes on". */
enum end {
	END_NONE,
	END_STOP,       /* an end token or a stop string */
	END_LIMIT,      /* max_tokens */
	END_TOOL,       /* a tool call; the session waits in PAUSE_TOOL */
	END_CONTEXT,    /* the context is full: while decoding, or at arrival (refused) */
	END_CANCEL,
	END_CLOSED,     /* its session was closed under it */
	END_SUPERSEDED, /* another turn of the session asked to take its place */
	END_DEADLINE,
	END_SLOW,       /* the client did not read in time, and had asked for this */
	END_DRAIN,      /* suspended by a shutdown */
	END_REFUSED,    /* can never fit, or too much is waiting: see err */
	END_INTEGRITY,  /* a page tag was not the expected one */
	END_FAULT       /* the device or the runtime failed */
};

/* The key of a full page: a hash of every token up to its last, with each token's plan bit. */
struct chain_key {
	uint64_t lo, hi;
};

enum event_kind {
	EVENT_OPEN,       /* a new session */
	EVENT_FORK,       /* a new session with the history and full pages of `session` */
	EVENT_TURN,       /* arrival of a turn */
	EVENT_CANCEL,     /* of a turn; `end` says what it shall end as */
	EVENT_CREDIT,     /* a turn's stream has room up to an absolute token count */
	EVENT_ROLLBACK,   /* cut an idle session's history to `tokens` */
	EVENT_CLOSE,      /* a session, and its turn with it */
	EVENT_RESIDENCY,  /* ask again for another residency */
	EVENT_HINT,       /* an idle session says when it will be back, and from what */
	EVENT_PARK,       /* move an idle session's pages down, to `place` */
	EVENT_BATCH_DONE, /* the batch in flight has been computed; results beside it */
	EVENT_COPY_DONE,  /* of a copy that was asked for */
	EVENT_DURABLE,    /* the records of all steps up to `step` are on disk */
	EVENT_TIMER,      /* the deadline that sched_deadline_us told has passed */
	EVENT_RATES,      /* measured rates of this machine; 0: no news of it */
	EVENT_DRAIN,      /* admit nothing more */
	EVENT_FOUND,      /* at the start: a session's next page was found on the disk, and is its own */
	EVENT_TOUCH,      /* a session is still wanted: its pause and its lease count from now */
	EVENT_KIND_COUNT
};

/* One event. Fields that a kind does not name must be zero. `now_us` never goes back. */
struct event {
	uint32_t kind; /* enum event_kind */
	uint32_t session, turn; /* indices that an effect has told; SCHED_NONE where none */
	uint32_t principal;     /* OPEN: whose; an index below limits.principal_count */
	uint64_t now_us;
	uint64_t session_key, turn_key; /* OPEN, FORK, TURN: the runtime's names, told back */
	union {
		struct { uint32_t kind, reserved; uint64_t bytes, lease_us; } residency; /* OPEN, FORK, RESIDENCY */
		struct {
			uint32_t keep;       /* tokens of the history that stay; the rest is cut first */
			uint32_t append;     /* given tokens that follow; keep + append is the prompt */
			uint32_t output_max; /* tokens to sample at most, at least 1 */
			uint32_t credit;     /* tokens that may be sampled before more credit comes */
			uint32_t supersede;  /* 1: a running turn of this session ends first */
			uint32_t chain_first, chain_count; /* the keys beside: of full pages of the prompt */
			uint32_t reserved;
			uint64_t deadline_us; /* absolute; 0 for none */
		} turn;
		struct { uint32_t end, err; } cancel;         /* enum end, enum err */
		struct { uint32_t tokens, reserved; } credit; /* absolute; lower is no news */
		struct { uint32_t tokens, reserved; } rollback; /* history length afterwards */
		struct { uint32_t pause, reserved; uint64_t returns_in_us, tool_key; } hint;
		struct { uint32_t place, reserved; } park;
		struct { uint64_t batch, measured_us; uint32_t result_count, reserved; } batch;
		struct { uint64_t copy; uint32_t err, reserved; } copy; /* err 0: done and proven */
		struct { uint64_t step; } durable;
		/* copy_bytes_s: from that place to the device, what is behind a page in a queue counted in. */
		struct { uint64_t prefill_ns_token, decode_ns_row, copy_bytes_s[PLACE_COUNT]; } rates;
		struct { uint32_t slot[SCHED_GROUP_MAX], tokens, reserved; } found; /* tokens: that are valid */
	} as;
};

/* What became of one entry of a batch, in the order of the entries. */
struct batch_result {
	uint32_t turn;
	uint32_t computed; /* rows whose K and V are in the pages now: 0 .. row_count */
	uint32_t sampled;  /* tokens that the history has grown by: one sampled, and those behind it that
			      were known without sampling; no more than credit, output and context leave.
			      Those that are not computed yet come as rows of the next batches */
	uint32_t end;      /* END_NONE, or what the runtime found: STOP, TOOL, INTEGRITY, FAULT … */
	uint32_t page;     /* INTEGRITY: the physical page that did not match, and its group */
	uint32_t group;
};

enum effect_kind {
	EFFECT_OPENED,     /* OPEN or FORK succeeded: session, residency granted */
	EFFECT_REFUSED,    /* OPEN, FORK, ROLLBACK, RESIDENCY, PARK refused: err and the numbers */
	EFFECT_RESIDENCY,  /* what a RESIDENCY event got */
	EFFECT_ADMITTED,   /* a turn begins to run */
	EFFECT_ASSIGN,     /* a run of pages gets an owner, and tags that count up from tag_first; of the
			      device, or of the disk after FOUND */
	EFFECT_SHARE,      /* a run of full pages gets one more owner */
	EFFECT_FREE,       /* a run of pages lost its last owner */
	EFFECT_QUARANTINE, /* a page is taken out of use until the restart */
	EFFECT_COPY,       /* move or copy one page between places; answer with COPY_DONE */
	EFFECT_BATCH,      /* compute; at most one is in flight; answer with BATCH_DONE */
	EFFECT_WAIT,       /* a turn waits: why, its place, what is short, who holds it */
	EFFECT_LOST,       /* a session's pages were given up; tokens remain: how many, why */
	EFFECT_PAUSED,     /* a turn stands still until its stream has room */
	EFFECT_END,        /* the turn is over: exactly one for each EVENT_TURN. One that was refused at
			      its arrival never had an index: `turn` is SCHED_NONE, turn_key is its name */
	EFFECT_CLOSED,     /* the session's index is free again */
	EFFECT_KIND_COUNT
};

enum wait_why { WAIT_PAGES, WAIT_TURNS, WAIT_BATCH, WAIT_PREFIX, WAIT_DURABLE, WAIT_COPY };

enum lost_why {
	LOST_PRESSURE = 1, LOST_LEASE, LOST_QUARANTINE, LOST_COPY, LOST_PARK,
	LOST_POLICY, /* its time was over, by the policy */
	LOST_WINDOW  /* cut to where the pages of window layers are gone: nothing before is of use */
};

struct effect {
	uint32_t kind; /* enum effect_kind */
	uint32_t session, turn;
	uint32_t principal;
	uint64_t session_key, turn_key;
	union {
		struct {
			uint32_t kind, blocker; /* blocker: a session, or SCHED_NONE */
			uint64_t bytes, lease_us, asked_bytes, free_bytes;
			uint32_t err, reserved;
		} residency; /* OPENED, REFUSED, RESIDENCY */
		struct {
			uint64_t tag_first;
			uint32_t group, page_first, page_count;
			uint32_t position_first; /* token position of the first page */
			uint32_t place, reason;  /* enum lost_why for FREE of retained pages, else 0 */
		} run; /* ASSIGN, SHARE, FREE, QUARANTINE */
		struct {
			uint64_t copy, tag_from, tag_to;
			uint32_t group, place_from, page_from, place_to, page_to;
			uint32_t tokens; /* how many of the page's positions are valid */
			uint32_t position_first, reserved;
		} copy;
		struct { uint64_t batch; uint32_t entry_first, entry_count, row_count, reserved; } batch;
		struct { uint32_t why, place, blocker, reserved; uint64_t short_bytes, eta_us; } wait;
		struct { uint32_t tokens_before, tokens_after, why, place; } lost;
		struct {
			uint32_t end, err;
			/* The prompt by origin; the four add up to prompt_tokens. */
			uint32_t prompt_tokens, resident, reloaded, recomputed, fresh;
			uint32_t sampled;      /* tokens sampled in this turn */
			uint32_t history;      /* tokens of the session now */
			uint32_t context_left; /* tokens that still fit */
			/* For a refusal: what was needed, what there is at most (tokens or bytes by err). */
			uint64_t needed, limit;
			uint64_t queue_us, prefill_us, decode_us; /* by the events' clock */
		} end;
	} as;
};

enum phase { PHASE_PREFILL, PHASE_DECODE };

/* One turn's part of a batch: the history's tokens at position_first and the following. */
struct batch_entry {
	uint32_t turn, session;
	uint32_t position_first, row_count;
	uint32_t sample; /* 1: the last row is the history's last token; sample after it */
	uint32_t phase;  /* enum phase: DECODE when the one row is a token sampled in this turn, and the last */
};

#endif
