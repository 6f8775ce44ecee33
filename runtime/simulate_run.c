/*
 * One simulated run: the clock, the clients that send what the trace has, and the scheduler's
 * effects carried out.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/groups.h"
#include "runtime/simulate_inside.h"

const struct trace_turn *client_turn(const struct world *w, uint32_t client, uint32_t turn)
{
	const struct trace_session *x = &w->trace->sessions[client];
	CHECK(turn < x->turn_count);
	return &w->trace->turns[x->turn_first + turn];
}

/* The heap of clients by the time of their next turn. */

static bool client_before(const struct world *w, uint32_t a, uint32_t b)
{
	const uint64_t at = w->clients[a].due_us, bt = w->clients[b].due_us;
	return at != bt ? at < bt : a < b;
}

static void order_push(struct world *w, uint32_t client)
{
	uint32_t at = w->order_count++;
	for (; at > 0 && client_before(w, client, w->order[(at - 1) / 2]); at = (at - 1) / 2)
		w->order[at] = w->order[(at - 1) / 2];
	w->order[at] = client;
}

static uint32_t order_pop(struct world *w)
{
	const uint32_t first = w->order[0], last = w->order[--w->order_count];
	uint32_t at = 0;
	for (;;) {
		uint32_t child = 2 * at + 1;
		if (child >= w->order_count)
			break;
		if (child + 1 < w->order_count && client_before(w, w->order[child + 1], w->order[child]))
			child++;
		if (!client_before(w, w->order[child], last))
			break;
		w->order[at] = w->order[child];
		at = child;
	}
	if (w->order_count)
		w->order[at] = last;
	return first;
}

/* Starts of sessions. */

static uint64_t draw(uint64_t *rng)
{
	*rng += 0x9e3779b97f4a7c15u;
	uint64_t z = *rng;
	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
	return z ^ (z >> 31);
}

/* A Poisson process, in an order drawn from the seed; or the trace's own times. */
static void starts_draw(struct world *w)
{
	const uint32_t count = w->trace->session_count;
	uint64_t rng = w->options->seed * 0x2545f4914f6cdd1du + 1;
	double at_us = 0;
	for (uint32_t i = 0; i < count; i++)
		w->order[i] = i;
	for (uint32_t i = count - 1; i > 0; i--) {
		const uint32_t other = (uint32_t)(draw(&rng) % (i + 1)), mine = w->order[i];
		w->order[i] = w->order[other];
		w->order[other] = mine;
	}
	for (uint32_t i = 0; i < count; i++) {
		struct client *c = &w->clients[w->order[i]];
		const double u = (double)((draw(&rng) >> 11) + 1) * 0x1p-53;
		if (w->options->arrivals_h > 0)
			at_us += -log(u) * 3.6e9 / w->options->arrivals_h;
		else
			at_us = (double)w->trace->sessions[w->order[i]].start_ms * 1000;
		c->start_us = c->due_us = (uint64_t)at_us;
		c->picture = i < PICTURE_SESSIONS ? i : UINT32_MAX;
	}
	/* The heap is made anew from the same room. */
	w->order_count = 0;
	for (uint32_t i = 0; i < count; i++)
		order_push(w, i);
}

/* What clients do. */

static struct event event_of(const struct world *w, enum event_kind kind, uint32_t client)
{
	const struct client *c = &w->clients[client];
	return (struct event){.kind = kind, .session = c->session, .turn = SCHED_NONE,
			      .session_key = client};
}

static void step(struct world *w, struct event *event);

/* When the client's next turn is due, once an answer has come. UINT64_MAX: it has none. */
static uint64_t client_due_us(const struct world *w, uint32_t client)
{
	const struct client *c = &w->clients[client];
	if (c->next >= w->trace->sessions[client].turn_count)
		return UINT64_MAX;
	uint64_t due_us = w->now_us;
	if (w->options->loop == LOOP_CLOSED)
		due_us += (uint64_t)client_turn(w, client, c->next - 1)->pause_ms * 1000;
	else
		due_us = c->start_us + (uint64_t)client_turn(w, client, c->next)->at_ms * 1000;
	return due_us > w->now_us ? due_us : w->now_us;
}

/* After an answer: the clairvoyant tells the scheduler all that is to be known of the session. What
   the next prompt does not keep is cut at once; a session that will not return gives up its pages. */
static void client_foretell(struct world *w, uint32_t client, uint64_t due_us)
{
	struct client *c = &w->clients[client];
	struct event e;
	if (due_us == UINT64_MAX) {
		e = event_of(w, EVENT_PARK, client);
		e.as.park.place = PLACE_TOKENS;
		step(w, &e);
		return;
	}
	const uint32_t keep = client_turn(w, client, c->next)->keep;
	if (keep < c->history) {
		e = event_of(w, EVENT_ROLLBACK, client);
		e.as.rollback.tokens = keep;
		step(w, &e);
		c->history = keep;
	}
	e = event_of(w, EVENT_HINT, client);
	e.as.hint.pause = PAUSE_TOOL;
	e.as.hint.returns_in_us = due_us - w->now_us;
	step(w, &e);
}

static void client_answered(struct world *w, uint32_t client, const struct effect *effect)
{
	struct client *c = &w->clients[client];
	const bool refused = effect->as.end.end == END_REFUSED || effect->as.end.end == END_CONTEXT;
	count_end(w, client, effect);
	if (effect->turn != SCHED_NONE)
		w->turn_client[effect->turn] = UINT32_MAX;
	if (!refused || effect->turn != SCHED_NONE)
		c->history = effect->as.end.history;
	c->turn = SCHED_NONE;
	c->next++;
	c->due_us = client_due_us(w, client);
	count_state(w, client);
	if (c->due_us != UINT64_MAX)
		order_push(w, client);
}

/* The keys of the prompt's full pages, where the trace names its blocks: an id stands for all before it. */
static uint32_t keys_fill(struct world *w, const struct trace_turn *turn)
{
	const uint32_t span = w->limits.page_tokens;
	uint32_t count = turn->prompt / span;
	for (uint32_t unit = 0; unit < count; unit++) {
		const uint32_t block = unit * span / TRACE_BLOCK;
		if (block >= turn->id_count)
			count = unit;
		else
			w->keys[unit] = (struct chain_key){w->trace->ids[turn->id_first + block], unit};
	}
	return w->options->apart ? 0 : count;
}

/* Sends the next turn of a client, and opens its session before the first. */
static void client_send(struct world *w, uint32_t client)
{
	struct client *c = &w->clients[client];
	if (c->session == SCHED_NONE) {
		struct event e = event_of(w, EVENT_OPEN, client);
		step(w, &e);
		CHECK(c->session != SCHED_NONE); /* there is one for each of the trace */
	}
	const struct trace_turn *turn = client_turn(w, client, c->next);
	struct event e = event_of(w, EVENT_TURN, client);
	const uint32_t keep = turn->keep < c->history ? turn->keep : c->history;
	const uint64_t slab = (uint64_t)w->limits.group[0].page_count[PLACE_DEVICE] * w->limits.page_tokens;
	uint32_t output = turn->completion ? turn->completion : 1;
	/* A client does not know how long the answer will be, and asks for what there is room for. */
	if (output < w->options->output_max) {
		const uint64_t room = slab > turn->prompt ? slab - turn->prompt : 0;
		if (room > output)
			output = room < w->options->output_max ? (uint32_t)room : w->options->output_max;
	}
	e.turn_key = c->next + 1;
	e.as.turn.keep = keep;
	e.as.turn.append = turn->prompt - keep;
	e.as.turn.output_max = output;
	e.as.turn.credit = output;
	e.as.turn.chain_count = keys_fill(w, turn);
	c->sent_us = w->now_us;
	c->sampled = c->high = 0;
	c->waited = c->admitted = false;
	c->kind = c->next == 0 ? KIND_NEW : KIND_TOOL + client_turn(w, client, c->next - 1)->stop;
	w->report->turns++;
	step(w, &e);
}

/* Effects. */

static void effect_wait(struct world *w, const struct effect *effect)
{
	struct client *c = &w->clients[w->turn_client[effect->turn]];
	if (!c->waited) {
		CHECK(effect->as.wait.why < WAIT_COUNT);
		w->report->turns_waited++;
		w->report->waited[effect->as.wait.why]++;
	}
	c->waited = true;
}

/* A turn's index is learned from the first effect that has it. */
static void effect_turn(struct world *w, const struct effect *effect)
{
	if (effect->turn == SCHED_NONE || effect->session == SCHED_NONE)
		return;
	const uint32_t client = w->session_client[effect->session];
	if (effect->kind == EFFECT_ADMITTED || effect->kind == EFFECT_WAIT) {
		w->turn_client[effect->turn] = client;
		w->clients[client].turn = effect->turn;
	}
}

/* Carries the effects of one step out. Answers are gathered first: what a client does then is a
   step of its own, which would write over the effects. */
static void effects_take(struct world *w, uint32_t *answered, uint32_t *answered_count)
{
	for (uint32_t i = 0; i < w->effects.count; i++) {
		const struct effect *effect = &w->effects.list[i];
		effect_turn(w, effect);
		switch (effect->kind) {
		case EFFECT_OPENED:
			w->clients[effect->session_key].session = effect->session;
			w->session_client[effect->session] = (uint32_t)effect->session_key;
			break;
		case EFFECT_WAIT: effect_wait(w, effect); break;
		case EFFECT_ADMITTED: {
			const uint32_t client = w->turn_client[effect->turn];
			const uint64_t waited_us = w->now_us - w->clients[client].sent_us;
			w->clients[client].admitted = true;
			if (waited_us > w->report->wait_max_us)
				w->report->wait_max_us = waited_us;
			count_state(w, client);
			break;
		}
		case EFFECT_BATCH: machine_batch(w, effect); break;
		case EFFECT_COPY:
			if (machine_copy(w, effect) != 0)
				w->err = -ERR_MEMORY;
			break;
		case EFFECT_LOST: count_state(w, w->session_client[effect->session]); break;
		case EFFECT_END:
			client_answered(w, (uint32_t)effect->session_key, effect);
			answered[(*answered_count)++] = (uint32_t)effect->session_key;
			break;
		default: break;
		}
	}
}

static void step(struct world *w, struct event *event)
{
	/* One END for each turn that runs, one for each that waits; more than one seldom. */
	enum { ANSWERED_MAX = 1024 };
	uint32_t answered[ANSWERED_MAX], answered_count = 0;
	CHECK(w->limits.batch_turns < ANSWERED_MAX);
	event->now_us = w->now_us;
	sched_step(w->sched, event, w->keys, w->results, &w->effects);
	w->report->steps++;
	effects_take(w, answered, &answered_count);
	count_step(w);
	if (!w->options->clairvoyant)
		return;
	for (uint32_t i = 0; i < answered_count; i++)
		client_foretell(w, answered[i], w->clients[answered[i]].due_us);
}

/* The run. */

static uint64_t world_due_us(const struct world *w)
{
	uint64_t due_us = machine_due_us(w);
	if (w->order_count && w->clients[w->order[0]].due_us < due_us)
		due_us = w->clients[w->order[0]].due_us;
	const uint64_t timer_us = sched_deadline_us(w->sched);
	/* Timers alone do not keep the run going: with nobody to come, nothing more is asked. */
	if (timer_us < due_us && (due_us != UINT64_MAX || w->report->turns_answered +
				  w->report->turns_refused < w->report->turns))
		due_us = timer_us;
	return due_us;
}

static void world_run(struct world *w)
{
	const struct simulate_options *o = w->options;
	for (;;) {
		uint64_t due_us = world_due_us(w);
		if (w->err != 0 || due_us == UINT64_MAX || due_us > w->end_us)
			break;
		if (o->stop_on_recompute && w->report->tokens_recomputed + w->report->turns_refused) {
			w->report->recomputed = true;
			break;
		}
		if (due_us < w->now_us)
			due_us = w->now_us;
		count_time(w, due_us);
		w->now_us = due_us;
		if (machine_due_us(w) <= due_us) {
			struct event e = machine_event(w);
			step(w, &e);
		} else if (w->order_count && w->clients[w->order[0]].due_us <= due_us) {
			client_send(w, order_pop(w));
		} else {
			struct event e = {.kind = EVENT_TIMER, .session = SCHED_NONE, .turn = SCHED_NONE};
			step(w, &e);
		}
		if (o->progress && w->report->steps % 4096 == 0)
			o->progress(o->progress_arg, "simulating",
				    w->report->turns_answered + w->report->turns_refused,
				    w->trace->turn_count);
	}
	if (o->progress)
		o->progress(o->progress_arg, "simulating", 1, 1);
}

static int limits_refuse(char *reason, const char *what)
{
	snprintf(reason, TRACE_REASON_MAX, "%s", what);
	return -ERR_OUT_OF_RANGE;
}

/* Layers with a window have pages of their own, if a session would ever give one up. */
static void groups_make(const struct simulate_machine *m, struct sched_limits *l)
{
	const uint64_t span = l->page_tokens;
	const uint32_t units = (l->context_tokens + l->page_tokens - 1) / l->page_tokens;
	l->group_count = 1;
	l->group[0].page_bytes = m->kv_bytes_per_token * span;
	l->group[1].window_tokens = m->window_tokens;
	if (m->window_tokens == 0 || sched_window(l, 1).turn_pages >= units) {
		l->group[1].window_tokens = 0;
		return;
	}
	l->group_count = 2;
	l->group[1].page_bytes = m->window_bytes_per_token * span;
	l->group[0].page_bytes -= l->group[1].page_bytes;
}

static int pages_make(const struct simulate_options *o, struct sched_limits *l, char *reason)
{
	const uint64_t bytes[PLACE_COUNT] = {o->memory_bytes, o->host_bytes, o->disk_bytes};
	const uint64_t context = l->context_tokens / 4 > l->page_tokens ? l->context_tokens / 4 : l->page_tokens;
	const uint64_t unit = l->group[0].page_bytes + l->group[1].page_bytes;
	if (bytes[PLACE_DEVICE] < unit) {
		snprintf(reason, TRACE_REASON_MAX, "--memory: %llu bytes hold no page of %llu",
			 (unsigned long long)o->memory_bytes, (unsigned long long)unit);
		return -ERR_OUT_OF_RANGE;
	}
	if (l->group_count > 1 && o->disk_bytes)
		return limits_refuse(reason, "--disk: a context with windows is not kept on disk");
	for (uint32_t place = 0; place < PLACE_COUNT; place++) {
		uint64_t pages[2];
		groups_share(l, context, bytes[place], place == PLACE_DEVICE ? l->batch_turns : 0, pages);
		for (uint32_t g = 0; g < l->group_count; g++) {
			if (pages[g] > 1u << 24)
				return limits_refuse(reason, "more than 16777216 pages: choose larger "
							     "--page-tokens or less memory");
			l->group[g].page_count[place] = (uint32_t)pages[g];
		}
	}
	return 0;
}

int simulate_limits(const struct simulate_options *o, const struct trace *trace,
		    struct sched_limits *out, char *reason)
{
	uint64_t most = 2;
	*out = (struct sched_limits){.principal_count = 1};
	for (uint32_t i = 0; i < trace->turn_count; i++) {
		const struct trace_turn *turn = &trace->turns[i];
		const uint64_t tokens = (uint64_t)turn->prompt +
			(turn->completion > o->output_max ? turn->completion : o->output_max);
		if (tokens + 1 > most)
			most = tokens + 1;
	}
	out->session_count = trace->session_count;
	out->turn_count = trace->session_count + o->turns;
	if (out->turn_count > 1u << 20)
		out->turn_count = 1u << 20;
	out->queue_turns = out->turn_count;
	out->batch_turns = o->turns < out->turn_count ? o->turns : out->turn_count;
	out->page_tokens = o->page_tokens;
	out->context_tokens = (uint32_t)most;
	out->batch_rows = o->batch_rows > out->batch_turns ? o->batch_rows : out->batch_turns;
	out->chunk_tokens = o->chunk;
	out->growth_tokens = o->growth;
	out->step_us = (uint64_t)o->step_ms * 1000;
	out->policy = o->policy;
	out->ttl_us = o->ttl_us;
	out->wait_us_max = (uint64_t)o->wait_s * 1000000;
	out->knee_tokens = (uint32_t)(o->machine.attention_knee < 1e9 ? o->machine.attention_knee : 1e9);
	const char *field;
	groups_make(&o->machine, out);
	TRY(pages_make(o, out, reason));
	if (sched_limits_check(out, &field) != 0) {
		snprintf(reason, TRACE_REASON_MAX, "the scheduler refuses its limit %s", field);
		return -ERR_OUT_OF_RANGE;
	}
	return 0;
}

static int world_open(struct world *w)
{
	const struct sched_limits *l = &w->limits;
	void *block = aligned_alloc(64, sched_bytes(l));
	w->clients = calloc(l->session_count, sizeof *w->clients);
	w->order = calloc(l->session_count, sizeof *w->order);
	w->turn_client = calloc(l->turn_count, sizeof *w->turn_client);
	w->session_client = calloc(l->session_count, sizeof *w->session_client);
	w->effects.capacity = sched_effect_max(l);
	w->effects.entry_capacity = l->batch_turns;
	w->effects.list = malloc(w->effects.capacity * sizeof *w->effects.list);
	w->effects.entries = malloc(w->effects.entry_capacity * sizeof *w->effects.entries);
	if (block)
		w->sched = sched_init(block, l);
	w->keys = malloc((l->context_tokens / l->page_tokens + 1) * sizeof *w->keys);
	if (!block || !w->keys || !w->clients || !w->order || !w->turn_client || !w->session_client ||
	    !w->effects.list || !w->effects.entries)
		return -ERR_MEMORY;
	for (uint32_t i = 0; i < l->session_count; i++)
		w->clients[i].session = w->clients[i].turn = SCHED_NONE;
	TRY(machine_open(w));
	TRY(count_open(w));
	w->end_us = w->options->hours > 0 ? (uint64_t)(w->options->hours * 3.6e9) : UINT64_MAX - 1;
	starts_draw(w);
	return 0;
}

static void rates_tell(struct world *w)
{
	const struct simulate_machine *m = &w->options->machine;
	struct event e = {.kind = EVENT_RATES, .session = SCHED_NONE, .turn = SCHED_NONE};
	e.as.rates.prefill_ns_token = (uint64_t)w->token_ns + 1;
	e.as.rates.decode_ns_row = (uint64_t)w->token_ns + 1;
	e.as.rates.copy_bytes_s[PLACE_HOST] = (uint64_t)m->host_bps;
	e.as.rates.copy_bytes_s[PLACE_DISK] = (uint64_t)m->disk_bps;
	step(w, &e);
}

int simulate_run(const struct simulate_options *options, const struct trace *trace,
		 struct simulate_report *report, struct picture *picture, char *reason)
{
	struct world w = {.options = options, .trace = trace, .report = report, .picture = picture};
	*report = (struct simulate_report){.sessions = trace->session_count};
	if (picture)
		*picture = (struct picture){.bucket_us = 1000};
	TRY(simulate_limits(options, trace, &w.limits, reason));
	int err = world_open(&w);
	if (err == 0) {
		rates_tell(&w);
		world_run(&w);
		count_finish(&w);
		err = w.err;
	}
	if (err != 0) {
		picture_close(picture);
		snprintf(reason, TRACE_REASON_MAX, "%s", err_text(err));
	}
	count_close(&w);
	machine_close(&w);
	free(w.sched);
	free(w.clients);
	free(w.keys);
	free(w.order);
	free(w.turn_client);
	free(w.session_client);
	free(w.effects.list);
	free(w.effects.entries);
	return err;
}

/* Doubles until nothing is recomputed, then halves the interval. */
int simulate_search(const struct simulate_options *options, const struct trace *trace,
		    uint64_t *bytes, char *reason)
{
	const uint64_t page_bytes = options->machine.kv_bytes_per_token * options->page_tokens;
	struct simulate_options o = *options;
	struct simulate_report *report = malloc(sizeof *report);
	uint64_t low = 0, high = 0;
	int err = report ? 0 : -ERR_MEMORY;
	o.stop_on_recompute = true;
	o.memory_bytes = page_bytes > options->memory_bytes / 16 ? page_bytes : options->memory_bytes / 16;
	while (err == 0) {
		if (o.memory_bytes / page_bytes > 1u << 24)
			o.memory_bytes = page_bytes << 24;
		err = simulate_run(&o, trace, report, NULL, reason);
		if (err != 0)
			break;
		if (report->recomputed)
			low = o.memory_bytes;
		else
			high = o.memory_bytes;
		if (low == page_bytes << 24)
			break; /* none that can be asked for is enough */
		if (high && (high - low <= page_bytes || high - low < high / 50))
			break;
		o.memory_bytes = high ? low + (high - low) / 2 : 2 * low;
	}
	*bytes = high;
	free(report);
	return err;
}
