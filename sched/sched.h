/*
 * The door of the scheduler: admission, pages and their tags, the ledger, batches, retention.
 *
 * Pure: no clock, no I/O, no allocation, no threads, and no pointers in its state, which is one
 * block that the caller provides. Equal state and equal event give equal effects and equal state.
 * One thread at a time. Nothing here returns text.
 *
 * The caller's duties, each checked where it can be (a breach aborts and names the rule):
 *  R1  event times never go back;
 *  R2  each EFFECT_BATCH is answered by one EVENT_BATCH_DONE with a result for each entry, in
 *      order, and each EFFECT_COPY by one EVENT_COPY_DONE;
 *  R3  indices come from effects, and a session's index is dead after EFFECT_CLOSED, a turn's
 *      after EFFECT_END;
 *  R4  all effects of a step are carried out, in order, before the next batch is computed;
 *  R5  sched_step is called with EVENT_TIMER when sched_deadline_us has passed;
 *  R6  what is FOUND lies in free slots of the disk, and its session rests, all of its history in
 *      full pages; no group has a window. The same page of another session is had by FORK and
 *      ROLLBACK of that one.
 */
#ifndef HOLDFAST_SCHED_SCHED_H
#define HOLDFAST_SCHED_SCHED_H

#include <stddef.h>
#include <stdint.h>

#include "sched/check.h"
#include "sched/language.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The ledger: accounts of bytes by columns. One verb moves an amount from column to column. */
enum account {
	ACCOUNT_WEIGHTS, ACCOUNT_WORKSPACE, ACCOUNT_DEVICE, ACCOUNT_HOST, ACCOUNT_DISK, ACCOUNT_STREAM,
	ACCOUNT_COUNT
};
enum column {
	COLUMN_FREE,
	COLUMN_RUNNING,  /* pages that a running turn owns alone */
	COLUMN_PROMISED, /* not assigned yet, kept for the growth of admitted turns */
	COLUMN_RETAINED, /* pages of sessions between turns */
	COLUMN_SHARED,   /* pages with more than one owner, counted once */
	COLUMN_MOVING,   /* source or target of a copy in flight */
	COLUMN_DOOMED,   /* freed, but their release is not durable yet; or quarantined */
	COLUMN_COUNT
};

/* What stays in memory between turns, and who gives way: retain.c. The first is the default. */
enum policy {
	POLICY_COST, /* gives up first what is least likely to be wanted soon, by what was learned */
	POLICY_LRU,  /* the end of the session used least recently */
	POLICY_TTL,  /* a whole context for ttl_us, then nothing of it */
	POLICY_SWAP, /* whole contexts move to host, first come first served */
	POLICY_NONE, /* nothing is kept over a pause */
	POLICY_HINTED, /* the end of the session whose hint says that it returns last; for planning: its
			  steps grow with the number of sessions at rest */
	POLICY_COUNT
};

struct sched_group {
	uint64_t page_bytes;
	uint32_t window_tokens;           /* 0: every layer of the group sees the whole context; else the
					     last positions only, its own among them, and pages before
					     them are given up. Group 0 has none */
	uint32_t page_count[PLACE_COUNT]; /* pages of the slab, the host slab, the disk tier */
};

#define SCHED_STEP_AUTO UINT64_MAX

struct sched_limits {
	uint32_t session_count, turn_count, principal_count, group_count;
	uint32_t page_tokens;      /* multiple of 16; divides 256 */
	uint32_t context_tokens;   /* of one session */
	uint32_t batch_rows;       /* rows of one step at most */
	uint32_t chunk_tokens;     /* prefill rows of one turn in one step at most */
	uint32_t batch_turns;      /* turns running at once at most */
	uint32_t queue_turns;      /* turns waiting at most; more are refused as overloaded */
	uint32_t growth_tokens;    /* growth quantum; 0: promise output_max in full */
	uint32_t hold_until_durable; /* 1: a freed page is used again only after EVENT_DURABLE */
	uint64_t step_us;          /* wanted time of a step; 0: no bound; SCHED_STEP_AUTO: about twice
				      what the decoding turns alone take */
	uint64_t weights_bytes, workspace_bytes, stream_bytes; /* for the ledger */
	uint64_t stream_turn_bytes; /* charged to ACCOUNT_STREAM for each accepted turn */
	uint64_t lease_us_max;
	uint64_t principal_bytes;  /* quota of pinned and leased bytes of one principal; 0: none */
	uint32_t principal_turns;  /* turns of one principal running at once; 0: no quota */
	uint32_t policy;           /* enum policy */
	uint32_t public_principal; /* from 1: the one whose prefixes all may share; 0: nobody's */
	uint32_t knee_tokens;      /* context at which attention costs a token as much as the weights do;
				      0: every token costs the same to compute again */
	uint64_t ttl_us;           /* POLICY_TTL */
	uint64_t wait_us_max;      /* a turn that waited so long comes before all others, 16 of them in
				      such a time at most; 0: always first come, first served */
	struct sched_group group[SCHED_GROUP_MAX];
};

struct sched; /* the caller's block */

/* The caller's room for the effects of one step. Lives as long as the caller likes; sched_step
   overwrites it from the start. */
struct effects {
	struct effect *list;
	uint32_t count, capacity; /* capacity at least sched_effect_max(limits) */
	struct batch_entry *entries;
	uint32_t entry_count, entry_capacity; /* at least limits.batch_turns */
	uint64_t step; /* number of this step, counting from 1; what EVENT_DURABLE refers to */
};

/* Refuses limits that make no sense: -ERR_OUT_OF_RANGE, and the name of the field in *field. */
int sched_limits_check(const struct sched_limits *limits, const char **field);
/* Size of the block, aligned to 64; limits must have passed the check. */
size_t sched_bytes(const struct sched_limits *limits);
uint32_t sched_effect_max(const struct sched_limits *limits);
/* Makes the state in `block` (sched_bytes large, aligned to 64) and returns it. */
struct sched *sched_init(void *block, const struct sched_limits *limits);

/* Takes one event; out receives what follows from it. `keys` holds the chain_count keys of a TURN,
   `results` the result_count results of a BATCH_DONE; NULL otherwise. Cannot fail: what is
   impossible for the world is an effect (REFUSED, END), what breaks a rule aborts. */
void sched_step(struct sched *s, const struct event *event, const struct chain_key *keys,
		const struct batch_result *results, struct effects *out);

/* When to call with EVENT_TIMER at the latest; UINT64_MAX: no timer runs. */
uint64_t sched_deadline_us(const struct sched *s);

/* Walks everything and aborts if any invariant does not hold. Cost: pages + sessions + turns. */
void sched_audit(const struct sched *s);
/* A hash of the whole state; equal histories of events give equal hashes. */
uint64_t sched_hash(const struct sched *s);

/* Pages of a group with a window that a session has at most: at once in a turn, and between turns. */
struct sched_window {
	uint32_t turn_pages, rest_pages;
};
struct sched_window sched_window(const struct sched_limits *limits, uint32_t group);

/* Tokens of a session that its principal's byte quota has room for, if nothing else is there; a context at
   most. */
uint32_t sched_tokens_most(const struct sched *s, uint32_t session);

/* Views, for those who must show or carry out; never change anything. */
const struct sched_limits *sched_limits_of(const struct sched *s);
uint64_t sched_ledger(const struct sched *s, enum account account, enum column column);
/* Pages of a group by place and column: their bytes are what the ledger has of all groups. Where there is
   more than one group this goes through all of the group's pages. */
void sched_pages(const struct sched *s, uint32_t group, uint64_t out[PLACE_COUNT][COLUMN_COUNT]);

enum session_state { SESSION_FREE, SESSION_IDLE, SESSION_WAITING, SESSION_RUNNING };

struct session_view {
	uint64_t key;
	uint32_t principal, state, turn; /* turn: the active one, or SCHED_NONE */
	uint32_t pause;                  /* enum pause, when idle */
	uint32_t history, resident;      /* tokens; resident: with K and V, on whatever place */
	uint32_t residency;
	uint64_t granted_bytes, lease_until_us;
	uint64_t charged_bytes; /* to its principal's quota: the grant, and what its running turn may ever need
				   beyond it */
	uint64_t device_bytes, lower_bytes, idle_since_us; /* lower_bytes: on host and disk */
};
/* -ERR_NOT_FOUND if the index is not in use. */
int sched_session(const struct sched *s, uint32_t session, struct session_view *out);
/* When a session that pauses is expected back: what its hint says, or when half of those are back that have
   paused so long in its way. UINT64_MAX: nobody knows, or it does not pause. Never in the past. The session
   is in use. */
uint64_t sched_return_us(const struct sched *s, uint32_t session, uint64_t now_us);

struct turn_view {
	uint64_t key;
	uint32_t session, running; /* running 0: waiting */
	uint32_t place;            /* in the queue, from 1; 0 when running */
	uint32_t wait_why, blocker;
	uint64_t short_bytes, eta_us; /* eta_us: when it may run, by estimate, if it waits */
	uint32_t prompt, computed, sampled, output_max, credit;
	uint64_t claim_bytes, promised_bytes; /* running: what it may still need; what is its to have */
};
int sched_turn(const struct sched *s, uint32_t turn, struct turn_view *out);

struct page_ref {
	uint32_t page, place; /* the slot, and the place that it is of: enum place */
	uint64_t tag;
};
/* The session's pages of a group for positions first_page*page_tokens and on: up to `count` into
   out; returns how many were written. What the engine reads and expects. Pages that a group with a
   window has given up are told as SCHED_NONE; sched_page_first is the first that it has. */
uint32_t sched_page_first(const struct sched *s, uint32_t session, uint32_t group);
uint32_t sched_page_table(const struct sched *s, uint32_t session, uint32_t group,
			  uint32_t first_page, uint32_t count, struct page_ref *out);

enum page_state { PAGE_FREE, PAGE_OWNED, PAGE_SHARED, PAGE_MOVING, PAGE_DOOMED, PAGE_QUARANTINED };
struct page_view {
	uint64_t tag;
	uint32_t state, principal, owners, position;
	uint32_t session; /* the owner; SCHED_NONE if there is none, or more than one */
};
int sched_page(const struct sched *s, uint32_t group, uint32_t page, struct page_view *out);

/* What was done since sched_init. Tokens are those of prompts, by origin, of admitted turns. */
struct sched_counts {
	uint64_t turns_arrived, turns_admitted, turns_ended, turns_refused, turns_waited;
	uint64_t tokens_resident, tokens_reloaded, tokens_recomputed, tokens_fresh, tokens_sampled;
	uint64_t tokens_shared; /* of those resident or reloaded: found by their chain keys */
	uint64_t pages_assigned, pages_given_up; /* given up: of sessions at rest, to others */
	uint64_t pages_raised; /* moved up before their session's turn asked for them */
	uint64_t forced_recomputes; /* running turns that had to end for want of pages: 0, unless pages
				       were quarantined */
};
struct sched_counts sched_counts(const struct sched *s);

/* Concurrency head-room: bytes of the device that a turn that came now could have, all that may give
   way given up, and how many turns more may run. */
uint64_t sched_headroom(const struct sched *s, uint32_t *turns);

/* What so many tokens of one session take at most, in bytes of the device: what a grant of them is. */
uint64_t sched_context_bytes(const struct sched *s, uint64_t tokens);

/* Bytes of pages that a principal's sessions hold on the device; shared pages count once. */
uint64_t sched_principal_bytes(const struct sched *s, uint32_t principal);

/* A principal's account: what was granted to its sessions, what its quota of bytes is charged with (the
   sum of their charged_bytes), and that quota, 0 for none; its turns, and those of them that run. */
struct principal_view {
	uint64_t bytes, granted_bytes, charged_bytes, quota_bytes;
	uint32_t sessions, turns, running, reserved;
};
struct principal_view sched_principal(const struct sched *s, uint32_t principal);

#ifdef __cplusplus
}
#endif

#endif
