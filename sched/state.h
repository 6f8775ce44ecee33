/*
 * The state of the scheduler, private to sched/. One block: struct sched, then its tables, each
 * found by an offset. There is no pointer in it, so the block can be copied, hashed and compared.
 *
 * A *unit* is one page position of a session: page_tokens tokens, one page in each group. The
 * groups without a window move in step, so most counts are in units. A group with a window has pages
 * from the session's unit `low` on, and its counts are in pages: see window.c.
 *
 * The invariants, asserted in audit.c and argued in README.md:
 *  I1  each page is in exactly one place: free, doomed, quarantined, or in 1..n page tables;
 *  I2  a page's owners are sessions of one principal, at the same unit; of any, if its principal's
 *      prefixes are public;
 *  I3  tags are unique, never 0, and below tag_next;
 *  I4  an idle or waiting session has exactly the units that its resident tokens fill;
 *      a running one has at least those;
 *  I5  a page that is not full has one owner, and is of its principal;
 *  I6  the claim of each running turn, and what is promised to younger ones, are covered by free,
 *      doomed and yielded units and by what older turns give back: see claim.c; in a group with a
 *      window, what running turns need and granted sessions keep is there: see window.c;
 *  I7  the ledger's columns are what a recount gives, and each account's sum never changes;
 *  I8  resident <= known <= history <= context, and history counts every given and sampled token;
 *  I9  the queue is in order of arrival; a session is in the retention list if, and only if, it
 *      is idle and has units to give;
 *  I10 sessions in the batch in flight lose no page;
 *  I11 a page in the table of prefixes is full, found under its key, and its holder owns it.
 */
#ifndef HOLDFAST_SCHED_STATE_H
#define HOLDFAST_SCHED_STATE_H

#include "sched/sched.h"

enum {
	CHUNK_UNITS = 32, /* units of one chunk of a page table */
	SHARE_FACTOR = 8, /* page table entries kept for shared pages, for each page of the slab */
	KEY_UNITS_MAX = 8192, /* of a prompt, so many units at most can be found by their keys */
	FLOOR_ALL = 0xffffffffu - 1, /* a session that yields nothing */
	AGE_COUNT = 40,     /* ages of a pause that are told apart: each up to half as long again */
	LOAD_MAX = 64,      /* units that one turn begins to load in one step at most */
	AHEAD_MAX = 8,      /* units that are moved ahead of need in one step at most, of each place */
	KIND_COUNT = 3,     /* of pauses: after an answer, after a tool call, after another end */
	HINT_COUNT = 8,     /* classes of pauses whose end was told, by its order of magnitude */
	SIZE_COUNT = 4, LAST_COUNT = 4, /* bins of what was sampled, and of the pause before */
	CLASS_HINT = KIND_COUNT,
	CLASS_TRAIT = CLASS_HINT + HINT_COUNT,
	CLASS_TOOL = CLASS_TRAIT + KIND_COUNT * SIZE_COUNT * LAST_COUNT,
	TOOL_COUNT = 48     /* classes of pauses learned for one tool of one principal, at most */
};

struct link {
	uint32_t prev, next;
};

/* A page is named by an index that stays when it moves: it then trades slots with a free page of the
   other place. Indices count the slots of all places; slots are what the world sees.

   A move takes effect at once: the page is where it goes to, `moving` until COPY_DONE; the page that
   got its old slot is MOVING, and becomes free then. So nobody reads the one or fills the other
   before the copy is done, and neither needs to be taken back. */
/* A list through the `link` of table entries. */
struct chain {
	uint32_t first, last, count;
};

struct page {
	uint64_t tag;
	union {
		uint64_t doom_step; /* DOOMED, MOVING: the step whose record must be durable before it is free */
		struct {
			uint32_t unit;     /* OWNED: position in the owners' tables */
			uint32_t yielding; /* OWNED: of the owners, those that would give it up */
		};
	};
	union {
		uint32_t next;      /* FREE, DOOMED: in the list */
		uint32_t owner_xor; /* OWNED: of the owners' indices: with one owner left, its index */
		uint32_t copy; /* MOVING, as the source of a copy in flight: the low bits of its number */
	};
	uint32_t owners;    /* tables that it is in */
	uint32_t principal; /* whose it is, or was last */
	uint32_t slot;      /* where its bytes lie, in its place */
	uint32_t partner;   /* MOVING: the page that the copy in flight fills, or the one that it filled */
	uint8_t state;      /* FREE, OWNED, MOVING, DOOMED or QUARANTINED; SHARED is OWNED with more owners */
	uint8_t place;      /* enum place */
	uint8_t moving;     /* 1: OWNED, and the copy that fills its slot is in flight */
	uint8_t bad;        /* PAGE_BAD: to be quarantined when the last owner is gone; PAGE_LOST: a copy
			       failed, its owners lose it when they next run */
};
enum { PAGE_BAD = 1, PAGE_LOST = 2 };
_Static_assert(sizeof(struct page) <= 40, "a page's entry is small");

/* A page of the first group in the table of prefixes: prefix.c. */
struct prefix {
	struct chain_key key;
	uint32_t holder; /* one of the page's owners, from 1; 0: the page is not in the table */
	uint32_t next;   /* in its bucket */
};

/* The first units of a holder's table, which a turn could have, and what that means for others. */
struct share {
	uint32_t holder, units;
	uint32_t missing; /* of them, not on the device */
	uint32_t yielded; /* of them, given up by all who own them so far */
	uint32_t loser, loss; /* a running turn, or SCHED_NONE, that owns so many of them alone */
};

struct session {
	uint64_t key, lease_until_us, lease_us, idle_since_us;
	uint64_t returns_us, tool_key; /* the last hint */
	uint32_t state, principal, pause; /* pause: enum pause */
	uint32_t kind, sampled;   /* of the pause: after which end; tokens sampled before it */
	uint32_t last_age[KIND_COUNT]; /* how long the last pause of each kind was, from 1; 0: none */
	uint32_t turn, next_turn; /* the active one, and one that waits for it to leave the batch */
	uint32_t history, resident, known; /* known: leading tokens that were computed once */
	uint32_t units, sole;     /* units in the table; those with no other owner: the last ones */
	uint32_t at[PLACE_COUNT]; /* of the sole ones, those on each place */
	uint64_t here_bytes;      /* of sole pages on the device that do not move */
	uint32_t edge;            /* at[DEVICE] and shared units all lie before */
	uint32_t parked;          /* 1: moved down on demand, in this pause */
	uint32_t raise_from;      /* units before were looked at: see raise.c */
	uint32_t floor;           /* units from here on are yielded to those who need pages */
	uint32_t granted;         /* units that stay while the session waits */
	uint32_t outgrown;        /* 1: it has more, and its windows are not those of its granted ones */
	uint32_t low[SCHED_GROUP_MAX]; /* the first unit with a page in the group; 0 without a window */
	uint32_t residency, expired, closing;
	uint32_t chunk_first, chunk_last;
	uint32_t heap_at;         /* place in the timers, from 1; 0: none */
	struct link rest[PLACE_COUNT], pause_link, grant; /* rest[0]: also the list of free sessions */
	struct link family; /* a ring of the principal's sessions; who shares with whom stands near */
	uint32_t at_rest;         /* enum rest: which list of those who can give */
	uint32_t low_rest[PLACE_COUNT]; /* 1: in the list of those who can give there; not the device */
	uint32_t rest_units;      /* as counted in its class */
	uint32_t pausing, class, age; /* pausing 1: in the pause list of this class and age */
	uint64_t seen_us;         /* until when its pause was counted */
};
_Static_assert(sizeof(struct session) <= 512, "a session's entry is small");

enum turn_state { TURN_FREE, TURN_WAITING, TURN_RUNNING };

struct turn {
	uint64_t key, arrival, deadline_us, arrived_us, admitted_us, first_us, short_bytes;
	uint32_t state, session;
	uint32_t keep, prompt, output_max, credit, sampled;
	uint32_t claim;    /* units that may still be assigned to it */
	uint32_t promised; /* of those, the ones that are its to have at any time */
	uint32_t missing;  /* units in the table of its session that are not on the device */
	uint32_t loading;  /* 1: there are some, or their copies are in flight */
	uint32_t arriving; /* copies in flight, to the device, of pages that it owns alone */
	uint32_t load_from; /* units before this one are on the device, or on the way */
	uint32_t strays;   /* units that are on the device but for a group with a window */
	uint32_t need[SCHED_GROUP_MAX]; /* pages of a group with a window that are its to have */
	uint32_t stalled;  /* 1: it was told to wait for pages of older turns */
	uint32_t in_flight, paused;
	uint32_t end, err; /* what it shall end as when the batch is done */
	uint32_t waits, wait_why, blocker; /* waits 1: EFFECT_WAIT was told */
	/* When it was last asked to run, by sched.asks; the steps in which it was admitted, began copies, was
	   planned. */
	uint64_t asked, admitted_step, loaded_step, planned;
	uint32_t answer_why;
	uint32_t key_first, key_end; /* units of the prompt of which keys are kept; none: both 0 */
	uint32_t prefix_units; /* that were found by keys when it last asked */
	uint32_t prefix_next;  /* the last unit that it has waited for */
	uint64_t prefix_until; /* how long it does at most, in prompt_rows; 0: it has not */
	uint32_t origin_resident, origin_reloaded, origin_recomputed, origin_fresh;
	struct link link; /* queue, running or free */
	uint32_t heap_at;
};

struct principal {
	uint64_t bytes;
	uint64_t work;                   /* rows computed for it, as a virtual time: see order.c */
	uint64_t prompt_rows;            /* rows of prompts computed for it */
	uint64_t granted_bytes;
	uint64_t running_bytes;          /* what running turns may need beyond the grants of their sessions */
	uint64_t short_asks;             /* when a turn of it last stood for its right to the quota: sched.asks */
	uint32_t granted, session_count; /* granted: units */
	uint32_t active, running;        /* turns waiting and running; running */
	uint32_t member;                 /* one of its sessions, from 1; 0: it has none */
	uint32_t first_running;          /* of its running turns the one admitted first, from 1; 0: none */
};

/* What a session at rest has to give: pages that nobody else owns, or shares only. */
enum rest { REST_NOTHING, REST_SOLE, REST_SHARED };

/* What is known of one kind of pause, by its age: how often it ended at that age, and for how long
   sessions were seen to be of that age. The lists hold the sessions that are in such a pause now,
   the longest first. */
struct pause_class {
	uint64_t name;         /* of a tool's class: principal and tool; 0: not in use */
	uint64_t pausing, resting[PLACE_COUNT]; /* a bit for each age whose list is not empty */
	uint64_t exposure_us[AGE_COUNT];
	uint32_t returns[AGE_COUNT]; /* in 1/RETURN_ONE */
	uint64_t value[AGE_COUNT];   /* of one unit for a while: see retain.c */
	uint64_t news;         /* returns since value was computed */
	uint32_t cut[2];       /* of a kind: ages below which half, and seven eighths, of its pauses end */
	uint64_t expected;     /* a bit for each age at which a return within wait_us_max is likely */
	uint64_t seen;         /* returns in all, in 1/RETURN_ONE */
	uint64_t base_seen;    /* of the class that it leans on, when value was computed; 0: never was */
	struct chain pause[AGE_COUNT], rest[PLACE_COUNT][AGE_COUNT];
	uint64_t units[AGE_COUNT]; /* of the sessions in rest */
};

/* How much of its time the machine computed of late, and how much of that prompts: see order.c. */
enum load_kind { LOAD_OF_ALL, LOAD_OF_PROMPTS, LOAD_KINDS };
struct load {
	uint64_t busy_us;
	uint32_t share, reserved;
};

struct flight {
	uint32_t turn, position, rows, sample, phase, wanted;
};

struct sched {
	struct sched_limits limits;
	uint64_t bytes, now_us, step, tag_next, arrival_next;
	uint64_t asks;        /* how often waiting turns were looked through */
	uint64_t batch, batch_next; /* batch: the one in flight; 0 for none */
	uint64_t unit_bytes; /* in the groups without a window */
	uint64_t prefill_ns_token, decode_ns_row, copy_bytes_s[PLACE_COUNT];
	uint64_t durable;     /* all records up to this step are on disk */
	uint64_t decode_us;   /* what a batch without prefill took, smoothed; 0: not known */
	uint64_t forced_us;   /* when a turn was last admitted because it had waited long enough */
	uint64_t load_from_us; /* since when busy_us counts */
	struct load load[LOAD_KINDS];
	uint64_t work_least;  /* the virtual time: of the active principal served least */
	uint32_t gated;       /* a turn waits for the machine to have time to spare */
	uint32_t prefill_rows, prefill_planned; /* what a step may prefill at most; what the last one did */
	uint64_t at_page[SCHED_GROUP_MAX], at_session, at_turn, at_principal, at_chunk, at_heap, at_flight;
	uint64_t at_class, at_prefix, at_bucket, at_key;
	uint32_t bucket_count, prefix_count; /* of the table of prefixes */
	uint32_t key_units;                  /* keys kept of one turn at most */
	struct sched_counts counts;
	uint64_t ledger[ACCOUNT_COUNT][COLUMN_COUNT];
	struct chain page_free[PLACE_COUNT][SCHED_GROUP_MAX], page_doomed[SCHED_GROUP_MAX];
	uint32_t page_leaving[SCHED_GROUP_MAX]; /* on the device: MOVING, free when their copy is done */
	uint64_t at_slot[SCHED_GROUP_MAX], copy_next;
	uint32_t copies; /* in flight */
	uint32_t page_quarantined[SCHED_GROUP_MAX];
	uint32_t context_units;
	/* Of groups with a window: pages of one session at most; what may be granted; what running turns
	   need, and what sessions at rest keep. */
	uint32_t windowed, window_cap[SCHED_GROUP_MAX], window_grant_max[SCHED_GROUP_MAX];
	uint64_t window_need[SCHED_GROUP_MAX], window_kept[SCHED_GROUP_MAX], window_granted[SCHED_GROUP_MAX];
	uint32_t share_extra, share_max; /* table entries beyond the first of each page */
	uint32_t chunk_count, chunk_used, chunk_free;
	uint32_t yielding_units; /* units whose owners would all give them up */
	uint32_t promised_units, granted_units, grant_max;
	struct chain session_free, shared_rest, grants, turn_free, queue, running;
	uint32_t heap_count, flight_count, draining;
	uint32_t class_count, class_turn; /* class_turn: whose pauses are looked at next */
	uint32_t resting; /* sessions in a list of those who can give */
};

/* One step: what came in, and where what follows goes. */
struct step {
	struct sched *s;
	struct effects *out;
	const struct event *event;
	const struct batch_result *results;
	const struct chain_key *keys;
	uint32_t look; /* 1: a copy failed or was of a shared page: turns that load look at their tables */
	uint32_t freed; /* 1: a turn gave up what a failed copy lost */
	uint32_t superseded; /* a session whose next turn is at hand: it does not pause */
};

/* state.c: tables, lists, effects. */
struct page *page_at(const struct sched *s, uint32_t group, uint32_t page);
struct session *session_at(const struct sched *s, uint32_t session);
struct turn *turn_at(const struct sched *s, uint32_t turn);
struct principal *principal_at(const struct sched *s, uint32_t principal);
struct pause_class *class_at(const struct sched *s, uint32_t class);
uint32_t *chunk_at(const struct sched *s, uint32_t chunk);
struct prefix *prefix_at(const struct sched *s, uint32_t page);
uint32_t *bucket_at(const struct sched *s, uint32_t bucket);
struct chain_key *key_at(const struct sched *s, uint32_t turn, uint32_t unit);
uint32_t *heap_of(const struct sched *s);
struct flight *flight_at(const struct sched *s, uint32_t entry);
size_t state_layout(struct sched *s); /* sets the offsets from s->limits; the block's size */
uint32_t units_of(const struct sched *s, uint64_t tokens); /* that tokens fill, rounded up */

/* Which of an item's links a chain goes through; LINK_TURN is the turns', the others sessions'. */
enum link_kind { LINK_REST, LINK_REST_HOST, LINK_REST_DISK, LINK_PAUSE, LINK_GRANT, LINK_TURN };
void chain_clear(struct chain *chain);
void chain_push_last(struct sched *s, struct chain *chain, enum link_kind kind, uint32_t item);
void chain_push_first(struct sched *s, struct chain *chain, enum link_kind kind, uint32_t item);
void chain_take(struct sched *s, struct chain *chain, enum link_kind kind, uint32_t item);

struct effect *effect_add(struct effects *out, enum effect_kind kind);
struct effect *effect_of_session(struct step *p, enum effect_kind kind, uint32_t session);
struct effect *effect_of_turn(struct step *p, enum effect_kind kind, uint32_t turn);
void effect_lost(struct step *p, uint32_t session, uint32_t before, enum lost_why why, enum place place);

/* ledger.c */
void ledger_open(struct sched *s);
void ledger_move(struct sched *s, enum account account, enum column from, enum column to, uint64_t bytes);
void ledger_settle(struct sched *s);
void ledger_unsettle(struct sched *s);
uint64_t ledger_promised(const struct sched *s); /* what PROMISED must be when settled */

/* timer.c: leases and deadlines, soonest first. */
void timer_set_lease(struct sched *s, uint32_t session);
void timer_set_deadline(struct sched *s, uint32_t turn);
void timer_clear_lease(struct sched *s, uint32_t session);
void timer_clear_deadline(struct sched *s, uint32_t turn);
uint64_t timer_soonest_us(const struct sched *s);
int timer_due(const struct sched *s, uint32_t *session, uint32_t *turn); /* 1: one of them is due */
int timer_ordered(const struct sched *s);

/* pages.c: tables of units, and who owns which page. */
struct cursor {
	uint32_t chunk, unit;
};
struct cursor cursor_at(const struct sched *s, uint32_t session, uint32_t unit);
void cursor_next(const struct sched *s, struct cursor *at);
uint32_t cursor_page(const struct sched *s, const struct cursor *at, uint32_t group);
uint32_t *slot_page(const struct sched *s, uint32_t group, enum place place, uint32_t slot);
uint32_t pages_of_group(const struct sched *s, uint32_t group); /* of all places */
int pages_room(const struct sched *s, const struct cursor *at, enum place place); /* for the unit */
uint32_t pages_move(struct step *p, uint32_t session, uint32_t unit, enum place to);
void pages_trim(struct step *p, uint32_t session, uint32_t group, uint32_t low);
void on_copy_done(struct step *p);
/* For found.c: the parts of a page's assignment. */
struct run {
	enum effect_kind kind;
	uint32_t session, group, page, unit, reason;
	uint64_t tag;
};
uint32_t page_pop(struct sched *s, struct chain *chain, uint32_t group);
uint32_t *cursor_entry(const struct sched *s, const struct cursor *at, uint32_t group);
void table_grow(struct sched *s, struct session *x, uint32_t units);
void sole_count(struct sched *s, uint32_t group, const struct page *page, int sign);
void slots_trade(struct sched *s, uint32_t group, uint32_t a, uint32_t b);
void run_emit(struct step *p, const struct run *run);
void on_found(struct step *p);
uint32_t table_page(const struct sched *s, uint32_t session, uint32_t group, uint32_t unit);
int page_yields(const struct page *page); /* all its owners would give it up */
void pages_init(struct sched *s);
void pages_assign(struct step *p, uint32_t session, uint32_t units);
void pages_share(struct step *p, uint32_t from, uint32_t to, uint32_t units);
void pages_drop(struct step *p, uint32_t session, uint32_t units_left, enum lost_why reason);
void pages_floor_set(struct sched *s, uint32_t session, uint32_t floor);
void pages_durable(struct sched *s, uint64_t step);
uint32_t pages_coming(const struct sched *s, uint32_t group); /* free or doomed */
uint32_t pages_free_units(const struct sched *s);    /* assignable now, in every group */
uint32_t pages_coming_units(const struct sched *s);  /* likewise, in the groups without a window */
uint32_t pages_total_units(const struct sched *s);   /* not quarantined, in those */

/* window.c: groups whose layers see the last positions only. */
int window_of(const struct sched *s, uint32_t group); /* it has one */
void window_init(struct sched *s);
uint32_t window_need(const struct sched *s, uint32_t group, uint32_t units);
uint32_t window_total(const struct sched *s, uint32_t group);
uint64_t window_bytes(const struct sched *s, uint64_t units);
uint32_t window_units(const struct sched *s, uint64_t bytes);
uint32_t window_usable(const struct sched *s, uint32_t session, uint32_t tokens);
uint32_t window_held(const struct sched *s, uint32_t session, uint32_t group);
uint32_t window_missing(const struct sched *s, uint32_t session, uint32_t group);
uint64_t window_promised(const struct sched *s, uint32_t group);
uint64_t window_slack(const struct sched *s, uint32_t group);
int window_safe(const struct sched *s); /* I6 */
uint64_t window_short(const struct sched *s, uint32_t session, uint32_t units, int *ever);
int window_fits(const struct sched *s, uint32_t units, uint64_t *needed, uint64_t *limit);
void window_reserve(struct sched *s, struct turn *t, uint32_t units);
void window_release(struct sched *s, struct turn *t);
uint32_t window_kept_of(const struct session *x, uint32_t group);
void window_kept_count(struct sched *s, const struct session *x, int sign);
void window_trim(struct step *p, uint32_t session);

/* load.c: what comes back from lower places. */
int unit_moves(const struct sched *s, const struct cursor *at); /* a copy of it is in flight */
int unit_lost(const struct sched *s, const struct cursor *at);  /* or has failed */
uint32_t load_missing(const struct sched *s, uint32_t session); /* units not on the device */
uint32_t load_strays(const struct sched *s, uint32_t session);  /* on it but for windows */
int load_needed(const struct sched *s, uint32_t session);       /* there are some, or they move */
uint32_t load_tokens(const struct sched *s, uint32_t session);  /* resident ones, not on the device */
void load_mend(struct step *p, uint32_t session);
int load_issue(struct step *p);

/* raise.c */
void raise_ahead(struct step *p);
/* prefix.c: pages of other sessions, found by chain keys. */
void prefix_init(struct sched *s);
void prefix_remove(struct sched *s, uint32_t page);
void prefix_leave(struct sched *s, uint32_t session, uint32_t units_left);
void prefix_keys_take(struct step *p, uint32_t turn);
void prefix_enter(struct sched *s, uint32_t turn, uint32_t first, uint32_t end);
struct share prefix_find(const struct sched *s, uint32_t turn);
uint32_t prefix_coming(const struct sched *s, uint32_t turn, uint32_t unit);
void prefix_take(struct step *p, uint32_t turn, const struct share *share);
void prefix_audit(const struct sched *s);

/* claim.c: what running turns may still need, and what is promised of it. */
uint64_t claim_cover(const struct sched *s); /* free, doomed and yielded units */
int claim_safe(const struct sched *s);       /* I6 */
uint64_t claim_slack(const struct sched *s);
uint64_t claim_slack_after(const struct sched *s, uint32_t turn);
/* What a turn that is to run asks for. */
struct need {
	uint64_t claim, now; /* all that it may need; and what is promised at once */
	uint64_t taken;      /* units that count as yielded now and would not any more */
	uint32_t loser, loss; /* a running turn would give back so many units less; SCHED_NONE: none */
};
uint64_t claim_missing(const struct sched *s, const struct need *need);
uint32_t claim_quantum(const struct sched *s, uint32_t tokens, uint32_t units, uint32_t claim);
uint32_t claim_promise(struct sched *s, uint32_t turn, uint32_t wanted);
uint32_t claim_excess(struct sched *s);

/* grant.c: what was promised to stay. */
void retain_open(struct step *p, uint32_t session, struct effect *told);
void retain_release(struct sched *s, uint32_t session);
void lease_renew(struct sched *s, uint32_t session);
void retain_expire(struct step *p, uint32_t session);
uint32_t retain_floor(const struct session *x);
uint64_t quota_of(const struct sched *s, uint32_t principal);
uint64_t quota_charged(const struct sched *s, uint32_t session);
uint64_t quota_short(const struct sched *s, uint32_t session, uint32_t units, int *never);
void quota_begin(struct sched *s, uint32_t session);
void quota_end(struct sched *s, uint32_t session);
uint32_t retain_blocker(const struct sched *s, uint32_t session);
void on_residency(struct step *p);

/* pause.c: what is learned of pauses. */
void pause_init(struct sched *s);
uint32_t pause_age_of(uint64_t us);
uint32_t pause_class(struct sched *s, const struct session *x);
void pause_renew(struct sched *s, uint32_t class);
void pause_count(struct sched *s, uint32_t session, int returned);

/* rest.c: the lists of sessions at rest, by class and age of their pause. */
void rest_put(struct sched *s, uint32_t session, enum rest wanted, int oldest);
void rest_take(struct sched *s, uint32_t session);
void rest_settle(struct sched *s, uint32_t session, int oldest);
void low_take(struct sched *s, uint32_t session, uint32_t place);
void pause_put(struct sched *s, uint32_t session);
void pause_take(struct sched *s, uint32_t session);
void pause_move(struct sched *s, uint32_t session, uint32_t class, uint32_t age);

/* retain.c: what stays between turns beyond that, and who gives way. */
void retain_init(struct sched *s);
void retain_begin(struct sched *s, uint32_t session);  /* a pause begins */
void retain_pause(struct step *p, uint32_t session);   /* its turn is over: likewise */
void retain_return(struct sched *s, uint32_t session); /* its next one is there, or it is closed */
void retain_class_set(struct sched *s, uint32_t session);
void retain_touch(struct sched *s, uint32_t session); /* its pause counts from now */
/* What must be free or coming: units, and pages of each group with a window. */
struct wanted {
	uint64_t units, pages[SCHED_GROUP_MAX];
};
void retain_reclaim(struct step *p, const struct wanted *wanted);
void retain_tick(struct step *p);
uint64_t retain_due_us(const struct sched *s);
uint64_t retain_expected_units(const struct sched *s); /* that will probably be wanted again soon */
void on_park(struct step *p);
uint64_t retain_worth(const struct sched *s, uint32_t session); /* of its last unit, as it rests */

/* session.c */
void session_resident_cut(struct step *p, uint32_t session, uint32_t tokens);
void session_units_cut(struct step *p, uint32_t session, uint32_t units, enum lost_why why);
void session_history_cut(struct step *p, uint32_t session, uint32_t tokens);
void session_close(struct step *p, uint32_t session);
int session_owns(const struct sched *s, uint32_t session, uint32_t group, uint32_t page);
void session_near(struct sched *s, uint32_t near, uint32_t session);
void on_open(struct step *p);
void on_fork(struct step *p);
void on_rollback(struct step *p);
void on_close(struct step *p);
void on_hint(struct step *p);
void on_touch(struct step *p);
void on_busy(struct step *p);

/* turn.c */
void turn_end(struct step *p, uint32_t turn, enum end end, int err);
void turn_refuse_pages(struct step *p, uint32_t turn, uint64_t needed, uint64_t limit);
void turn_end_soon(struct step *p, uint32_t turn, enum end end, int err);
void turn_run(struct step *p, uint32_t turn, uint32_t units); /* waiting to running */
uint32_t turn_units(const struct sched *s, uint64_t prompt, uint32_t output_max);
int end_err(enum end end);
void on_turn(struct step *p);
void on_cancel(struct step *p);
void on_credit(struct step *p);
void on_drain(struct step *p);

/* order.c: who goes first. */
void order_arrive(struct sched *s, uint32_t principal);
void order_leave(struct sched *s, uint32_t principal);
void order_work(struct sched *s, uint32_t principal, uint32_t rows);
uint32_t order_prefill(const struct sched *s, uint64_t passed);
void order_measure(struct sched *s, uint64_t measured_us);
uint32_t order_prefill_rows(struct sched *s, uint32_t decode_rows);
int order_loaded(struct sched *s);
int order_warm(const struct sched *s, uint32_t turn);
int order_due(const struct sched *s, uint32_t turn);
uint64_t order_due_us(const struct sched *s);

/* admit.c, batch.c */
void admit_waiting(struct step *p);
void admit_tell(struct step *p);
uint64_t admit_eta_us(const struct sched *s, uint32_t turn);
void batch_issue(struct step *p);
void on_batch_done(struct step *p);

#endif
