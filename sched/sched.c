/*
 * The step: one total table of event kind by session state says what happens. Then time is
 * looked at, waiting turns are admitted, and the next batch is issued, always in this order.
 */
#include "sched/state.h"

#include <string.h>

static int limits_refuse(const char **field, const char *name)
{
	*field = name;
	return -ERR_OUT_OF_RANGE;
}

static int groups_check(const struct sched_limits *l, const char **field)
{
	static const uint64_t bytes_max = (uint64_t)1 << 40;
	if (l->group_count < 1 || l->group_count > SCHED_GROUP_MAX)
		return limits_refuse(field, "group_count");
	for (uint32_t g = 0; g < l->group_count; g++) {
		const struct sched_group *group = &l->group[g];
		if (group->page_bytes < 1 || group->page_bytes > bytes_max)
			return limits_refuse(field, "page_bytes");
		if (group->page_count[PLACE_DEVICE] < 1)
			return limits_refuse(field, "page_count");
		for (uint32_t place = 0; place < PLACE_COUNT; place++)
			if (group->page_count[place] > 1u << 24)
				return limits_refuse(field, "page_count");
		/* What stands in units is counted in the first group. */
		if (group->window_tokens > (g == 0 ? 0 : 1u << 27))
			return limits_refuse(field, "window_tokens");
	}
	return 0;
}

int sched_limits_check(const struct sched_limits *l, const char **field)
{
	static const uint64_t bytes_max = (uint64_t)1 << 60;
	static const uint32_t tokens_max = 1u << 27;
	if (l->session_count < 1 || l->session_count > 1u << 20)
		return limits_refuse(field, "session_count");
	if (l->turn_count < 1 || l->turn_count > 1u << 20)
		return limits_refuse(field, "turn_count");
	if (l->principal_count < 1 || l->principal_count > 1u << 20)
		return limits_refuse(field, "principal_count");
	if (l->page_tokens < 16 || l->page_tokens % 16 || 256 % l->page_tokens)
		return limits_refuse(field, "page_tokens");
	if (l->context_tokens < 2 || l->context_tokens > tokens_max)
		return limits_refuse(field, "context_tokens");
	if (l->batch_turns < 1 || l->batch_turns > l->turn_count)
		return limits_refuse(field, "batch_turns");
	/* Each running turn may decode in one batch. */
	if (l->batch_rows < l->batch_turns || l->batch_rows > tokens_max)
		return limits_refuse(field, "batch_rows");
	if (l->chunk_tokens < 1)
		return limits_refuse(field, "chunk_tokens");
	if (l->queue_turns < 1)
		return limits_refuse(field, "queue_turns");
	if (l->hold_until_durable > 1)
		return limits_refuse(field, "hold_until_durable");
	if (l->weights_bytes > bytes_max)
		return limits_refuse(field, "weights_bytes");
	if (l->workspace_bytes > bytes_max)
		return limits_refuse(field, "workspace_bytes");
	if (l->stream_bytes > bytes_max)
		return limits_refuse(field, "stream_bytes");
	/* Or no turn could ever be accepted. */
	if (l->stream_turn_bytes > l->stream_bytes)
		return limits_refuse(field, "stream_turn_bytes");
	if (l->policy >= POLICY_COUNT)
		return limits_refuse(field, "policy");
	if (l->public_principal > l->principal_count)
		return limits_refuse(field, "public_principal");
	return groups_check(l, field);
}

size_t sched_bytes(const struct sched_limits *limits)
{
	struct sched s;
	memset(&s, 0, sizeof s);
	s.limits = *limits;
	return state_layout(&s);
}

uint32_t sched_effect_max(const struct sched_limits *l)
{
	/* In one step a page is freed once at most, since pages are assigned last; a batch is assigned
	   what its rows fill, and two partial pages an entry; a fork shares one table; a session is
	   opened, closed, loses pages twice (sole, then shared units), a cut loses its windows, and its
	   lease ends; a turn is admitted, told to wait, paused and ended. Beside them: a refusal, a batch,
	   an answer. */
	uint64_t assigned = l->batch_rows / l->page_tokens + 2 * (uint64_t)l->batch_turns;
	uint64_t pages = 0, units = (l->context_tokens + (uint64_t)l->page_tokens - 1) / l->page_tokens;
	for (uint32_t g = 0; g < l->group_count; g++)
		for (uint32_t place = 0; place < PLACE_COUNT; place++)
			pages += l->group[g].page_count[place];
	if (units > pages)
		units = pages;
	/* Copies: what is loaded, what is moved down for it or ahead, one whole context. */
	uint64_t copies = assigned + units + 2 * (uint64_t)LOAD_MAX * l->batch_turns + 4 * AHEAD_MAX;
	uint64_t most = pages + (assigned + units + copies) * l->group_count + 7 * (uint64_t)l->session_count +
		5 * (uint64_t)l->turn_count + 16;
	return most < 0xffffffffu ? (uint32_t)most : 0xffffffffu;
}

struct sched *sched_init(void *block, const struct sched_limits *limits)
{
	struct sched *s = block;
	const char *field;
	CHECK(sched_limits_check(limits, &field) == 0);
	CHECK(((uintptr_t)block & 63) == 0);
	memset(block, 0, sched_bytes(limits));
	s->limits = *limits;
	(void)state_layout(s);
	s->tag_next = 1;
	s->batch_next = 1;
	s->copy_next = 1; /* no copy is number 0 */
	s->arrival_next = 1;
	for (uint32_t g = 0; g < limits->group_count; g++)
		s->unit_bytes += window_of(s, g) ? 0 : limits->group[g].page_bytes;
	s->context_units = units_of(s, limits->context_tokens);
	window_init(s);
	chain_clear(&s->session_free);
	chain_clear(&s->grants);
	chain_clear(&s->turn_free);
	chain_clear(&s->queue);
	chain_clear(&s->running);
	pages_init(s);
	retain_init(s);
	prefix_init(s);
	for (uint32_t i = 0; i < limits->session_count; i++)
		chain_push_last(s, &s->session_free, LINK_REST, i);
	for (uint32_t i = 0; i < limits->turn_count; i++)
		chain_push_last(s, &s->turn_free, LINK_TURN, i);
	/* Grants leave room for one whole context beside them, or for half of a slab smaller than two. */
	uint32_t total = pages_total_units(s), beside = total - total / 2;
	s->grant_max = total - (s->context_units < beside ? s->context_units : beside);
	ledger_open(s);
	ledger_settle(s);
	return s;
}

/* The step. */

static void on_dead(struct step *p)
{
	CHECK(session_at(p->s, p->event->session)->state != SESSION_FREE); /* R3 */
}

static void on_durable(struct step *p)
{
	CHECK(p->event->as.durable.step < p->s->step);
	if (p->event->as.durable.step > p->s->durable)
		p->s->durable = p->event->as.durable.step;
	pages_durable(p->s, p->event->as.durable.step);
}

static void on_timer(struct step *p)
{
	/* Each step looks at the time; this one has no other reason. */
	CHECK(p->event->kind == EVENT_TIMER);
}

static void on_rates(struct step *p)
{
	struct sched *s = p->s;
	const uint64_t *copy = p->event->as.rates.copy_bytes_s;
	/* 0 is no news. What is quite another rate asks for a new guess of a step's rows. */
	uint64_t was = s->prefill_ns_token, is = p->event->as.rates.prefill_ns_token;
	if (is) {
		s->prefill_rows = is / 2 > was || is < was / 2 ? 0 : s->prefill_rows;
		s->prefill_ns_token = is;
	}
	if (p->event->as.rates.decode_ns_row)
		s->decode_ns_row = p->event->as.rates.decode_ns_row;
	for (uint32_t place = PLACE_HOST; place < PLACE_COUNT; place++)
		if (copy[place])
			s->copy_bytes_s[place] = copy[place];
}

static void on_nothing(struct step *p)
{
	/* A hint that comes too late: the session is not idle any more. */
	CHECK(p->event->kind == EVENT_HINT);
}

typedef void action(struct step *p);

/* By the state of the event's session. The events above the line have no session, and are looked
   up under FREE; CANCEL and CREDIT name a turn. */
static action *const actions[EVENT_KIND_COUNT][SESSION_RUNNING + 1] = {
	/*                     FREE           IDLE          WAITING       RUNNING */
	[EVENT_OPEN]       = { on_open,       NULL,         NULL,         NULL },
	[EVENT_CANCEL]     = { on_cancel,     NULL,         NULL,         NULL },
	[EVENT_CREDIT]     = { on_credit,     NULL,         NULL,         NULL },
	[EVENT_BATCH_DONE] = { on_batch_done, NULL,         NULL,         NULL },
	[EVENT_COPY_DONE]  = { on_copy_done,  NULL,         NULL,         NULL },
	[EVENT_DURABLE]    = { on_durable,    NULL,         NULL,         NULL },
	[EVENT_TIMER]      = { on_timer,      NULL,         NULL,         NULL },
	[EVENT_RATES]      = { on_rates,      NULL,         NULL,         NULL },
	[EVENT_DRAIN]      = { on_drain,      NULL,         NULL,         NULL },
	/* ------------------------------------------------------------------ */
	[EVENT_FORK]       = { on_dead,       on_fork,      on_busy,      on_busy },
	[EVENT_TURN]       = { on_dead,       on_turn,      on_turn,      on_turn },
	[EVENT_ROLLBACK]   = { on_dead,       on_rollback,  on_busy,      on_busy },
	[EVENT_CLOSE]      = { on_dead,       on_close,     on_close,     on_close },
	[EVENT_RESIDENCY]  = { on_dead,       on_residency, on_residency, on_residency },
	[EVENT_HINT]       = { on_dead,       on_hint,      on_nothing,   on_nothing },
	[EVENT_PARK]       = { on_dead,       on_park,      on_busy,      on_busy },
	[EVENT_TOUCH]      = { on_dead,       on_touch,     on_touch,     on_touch },
	[EVENT_FOUND]      = { on_dead,       on_found,     NULL,         NULL },
};

static void step_act(struct step *p)
{
	action *const *row = actions[p->event->kind];
	uint32_t state = SESSION_FREE;
	if (row[SESSION_IDLE])
		state = session_at(p->s, p->event->session)->state;
	CHECK(row[state] != NULL);
	row[state](p);
}

static void step_time(struct step *p)
{
	uint32_t session, turn;
	while (timer_due(p->s, &session, &turn)) {
		if (session != SCHED_NONE) {
			retain_expire(p, session);
		} else {
			timer_clear_deadline(p->s, turn);
			turn_end_soon(p, turn, END_DEADLINE, ERR_DEADLINE);
		}
	}
}

void sched_step(struct sched *s, const struct event *event, const struct chain_key *keys,
		const struct batch_result *results, struct effects *out)
{
	struct step p = {s, out, event, results, keys, 0, 0, SCHED_NONE};
	CHECK(event->kind < EVENT_KIND_COUNT);
	CHECK(event->now_us >= s->now_us); /* R1 */
	CHECK(event->now_us < UINT64_MAX);
	CHECK(out->entry_capacity >= s->limits.batch_turns);
	CHECK(out->capacity >= sched_effect_max(&s->limits));
	s->now_us = event->now_us;
	s->step++;
	out->count = 0;
	out->entry_count = 0;
	out->step = s->step;
	ledger_unsettle(s);
	step_act(&p);
	step_time(&p);
	retain_tick(&p);
	admit_waiting(&p);
	while (load_issue(&p))
		admit_waiting(&p); /* those that it admits may have something to load */
	admit_tell(&p);
	batch_issue(&p);
	ledger_settle(s);
}

uint64_t sched_deadline_us(const struct sched *s)
{
	uint64_t timer = timer_soonest_us(s), due = retain_due_us(s);
	uint64_t queue = order_due_us(s);
	due = due < queue ? due : queue;
	return timer < due ? timer : due;
}

uint64_t sched_hash(const struct sched *s)
{
	const unsigned char *bytes = (const unsigned char *)s;
	uint64_t hash = 0x9e3779b97f4a7c15u;
	CHECK(s->bytes % 8 == 0);
	for (uint64_t at = 0; at < s->bytes; at += 8) {
		uint64_t word;
		memcpy(&word, bytes + at, sizeof word);
		hash = (hash ^ word) * 0xff51afd7ed558ccdu;
		hash ^= hash >> 32;
	}
	return hash;
}
