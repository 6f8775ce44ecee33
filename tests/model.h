/*
 * The plain model of the scheduler that the simulator compares with. See sim.h.
 */
#ifndef HOLDFAST_TESTS_MODEL_H
#define HOLDFAST_TESTS_MODEL_H

#include "sched/sched.h"

enum {
	SIM_SESSIONS = 12, SIM_TURNS = 12, SIM_PAGES = 128, SIM_CONTEXT = 1700,
	SIM_LOW = 40, SIM_COPIES = 4 * SIM_LOW * SCHED_GROUP_MAX,
	SIM_UNITS = SIM_CONTEXT / 16 + 1, MODEL_TURNS = SIM_TURNS + 2
};

struct model_session {
	uint32_t open, closing, principal, history, resident;
	uint32_t turn, next; /* model turns, or SCHED_NONE */
	uint64_t granted_bytes, key, lease_us, lease_until_us; /* 0: no lease runs */
	uint64_t token[SIM_CONTEXT + 1];
	uint32_t ever[SIM_CONTEXT + 1]; /* computed once, as part of this history */
	uint32_t outgrown; /* it has more units than were granted, in a world with windows */
	uint32_t low[SCHED_GROUP_MAX]; /* the first unit with a page, in a group with a window */
	uint32_t unit_count[SCHED_GROUP_MAX];
	uint32_t unit[SCHED_GROUP_MAX][SIM_UNITS]; /* model_id of each page */
};

struct model_turn {
	uint32_t live, running, session, index; /* index: the scheduler's, once it was told */
	uint32_t keep, append, output_max, credit, sampled;
	uint32_t in_flight, ending;             /* ending: the END that must come, or END_NONE */
	uint32_t key_first, key_end;            /* units of the prompt of which it told the keys */
	uint64_t key, arrival, arrived_us, admitted, deadline_us;
	uint32_t resident, reloaded, recomputed, fresh;
};

struct model_page {
	uint32_t state, bad; /* FREE, OWNED, MOVING (waits for a copy), DOOMED or QUARANTINED */
	uint32_t copying, lost; /* copying: OWNED, and its content is on the way; lost: it never came */
	uint32_t principal; /* whose session it was assigned to */
	uint64_t tag, doom_step;
	uint64_t slot[256];  /* hash of the token whose K and V are there */
};

struct model_copy {
	uint64_t id; /* 0: none */
	uint32_t group, from, to;
	uint64_t slot[256]; /* what it carries */
};

struct model {
	struct sched *s;
	struct sched_limits limits;
	struct model_session session[SIM_SESSIONS];
	struct model_turn turn[MODEL_TURNS];
	struct model_page page[SCHED_GROUP_MAX][PLACE_COUNT * SIM_PAGES]; /* by model_id */
	struct model_copy copy[SIM_COPIES];
	uint32_t copies;
	uint64_t next_token, next_tag, step, arrivals, admissions;
	uint64_t durable;   /* the records of all steps up to it are on disk */
	uint64_t forced_us; /* when a turn was admitted last that had waited for wait_us_max */
	uint64_t batch; /* in flight, or 0 */
	struct batch_entry entries[SIM_TURNS];
	uint32_t entry_count;
	struct event event; /* of this step */
	uint32_t arriving;  /* a superseding turn whose place is not free yet */
	uint32_t answered;  /* refusals told in this step */
	uint32_t draining, shrunk; /* shrunk: pages went bad in this step */
	uint64_t shared; /* pages that were found by their keys */
	const char *failure;
};

/* A page by place and slot, as one number: below SIM_PAGES on the device. */
static inline uint32_t model_id(uint32_t place, uint32_t slot)
{
	return place * SIM_PAGES + slot;
}

/* model_window.c: groups whose layers see the last positions only. */
int model_window(const struct model *m, uint32_t g);
int model_windowed(const struct model *m);
uint32_t model_need(const struct model *m, uint32_t g, uint32_t units); /* pages of so many units */
uint32_t model_low(const struct model *m, uint32_t g, uint32_t resident); /* after a batch */
uint32_t model_usable(const struct model *m, const struct model_session *x, uint32_t tokens);
uint64_t model_bytes(const struct model *m, uint32_t units); /* of one session, at most */
uint32_t model_granted(const struct model *m, const struct model_session *x); /* units */
uint32_t model_floor(const struct model *m, const struct model_session *x);
uint32_t model_held(const struct model *m, const struct model_session *x, uint32_t g); /* on the device */
uint32_t model_total(const struct model *m, uint32_t g);
uint64_t model_reserved(const struct model *m, uint32_t g); /* by running turns and kept at rest */
uint64_t model_left(const struct model *m, uint32_t g); /* of what running turns need, not there yet */
void model_windows_after(struct model *m);

/* model.c */
uint32_t model_missing(const struct model *m, const struct model_session *x);
int model_on_the_way(const struct model *m, const struct model_session *x);
void model_open(struct model *m, struct sched *s, const struct sched_limits *limits);
void model_event(struct model *m, const struct event *e, const struct batch_result *results,
		 const struct effects *out);
void model_effect(struct model *m, const struct effect *f, const struct effects *out);
uint32_t model_turn_by_index(const struct model *m, uint32_t index);
uint32_t model_units(const struct model *m, uint64_t tokens);
uint32_t model_owners(const struct model *m, uint32_t group, uint32_t page);
void model_fail(struct model *m, const char *rule);

/* model_prefix.c */
uint64_t model_token(uint64_t before, uint64_t turn_key, uint32_t position);
uint32_t model_keys(const struct model *m, const struct event *e, struct chain_key *keys);
void model_share(struct model *m, const struct effect *f);
int model_awaits(const struct model *m, const struct model_turn *t);
int model_at_quota(const struct model *m, uint32_t principal);
uint64_t model_quota(const struct model *m, uint32_t principal);
int model_quota_short(const struct model *m, const struct model_turn *t, int running);
/* model_copy.c */
void model_copy(struct model *m, const struct effect *f);

/* model_check.c */
uint64_t model_unit_bytes(const struct model *m);
uint32_t model_turn_units(const struct model *m, const struct model_turn *t);
int model_fits_beside(const struct model *m, const struct model_turn *t);
int model_due(const struct model *m, const struct model_turn *t);
void model_order(struct model *m, uint32_t turn);
void model_refusal(struct model *m, const struct effect *f);
void model_batch(struct model *m, const struct effect *f);
void model_found(struct model *m, const struct effect *f);
void model_after(struct model *m, const struct effects *out);

#endif
