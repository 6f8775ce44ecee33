/*
 * Makes a failing run short. Events are left out in ever smaller parts, as long as the same rule fails.
 * What is left may name sessions, turns and copies that are not there without the others: such an event
 * is passed over; and a batch or a copy is answered as the trace has it if it is the same one, else well.
 *
 * Each try is a process of its own, since what is missing may also break a rule that aborts.
 */
#include "tests/sim.h"
#include "tests/model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static int owns(const struct model *m, uint32_t session, const struct batch_result *r)
{
	const struct model_session *x = &m->session[session];
	for (uint32_t u = 0; u < x->unit_count[r->group]; u++)
		if (x->unit[r->group][u] == r->page)
			return 1;
	return 0;
}

/* So many tokens, sampled or known behind it, a turn may be told of. */
static uint32_t room(const struct model *m, const struct batch_entry *entry)
{
	const struct model_turn *t = &m->turn[model_turn_by_index(m, entry->turn)];
	uint32_t left = m->limits.context_tokens - m->session[t->session].history;
	if (left > t->output_max - t->sampled)
		left = t->output_max - t->sampled;
	return left > t->credit - t->sampled ? t->credit - t->sampled : left;
}

/* The results of a batch that is in flight now: those of the trace as far as they fit. */
static void answer_fit(const struct model *m, struct event *e, const struct batch_result *given,
		       struct batch_result *results)
{
	const struct batch_result *old = given;
	uint32_t old_count = e->as.batch.result_count;
	memset(results, 0, SIM_TURNS * sizeof *results);
	for (uint32_t i = 0; i < m->entry_count; i++) {
		const struct batch_entry *entry = &m->entries[i];
		results[i].turn = entry->turn;
		results[i].computed = entry->row_count;
		results[i].sampled = entry->sample;
		if (i >= old_count || old[i].turn != entry->turn || old[i].computed > entry->row_count ||
		    (old[i].sampled && !entry->sample) || old[i].sampled > room(m, entry))
			continue;
		if (old[i].end == END_INTEGRITY && !owns(m, entry->session, &old[i]))
			continue;
		if (old[i].end == END_NONE && old[i].computed == entry->row_count && !old[i].sampled)
			continue;
		results[i] = old[i];
	}
	e->as.batch.batch = m->batch;
	e->as.batch.result_count = m->entry_count;
}

/* Without others before them, sessions and turns may have other indices. 0: it is not there. */
static int names_fit(const struct model *m, struct event *e, uint64_t who)
{
	uint32_t at = 0;
	if (e->session != SCHED_NONE) {
		while (at < SIM_SESSIONS && (!m->session[at].open || m->session[at].key != who))
			at++;
		e->session = at;
		return at < SIM_SESSIONS;
	}
	if (e->turn == SCHED_NONE)
		return 1;
	while (at < MODEL_TURNS && (!m->turn[at].live || m->turn[at].key != who))
		at++;
	e->turn = at < MODEL_TURNS ? m->turn[at].index : SCHED_NONE;
	return e->turn != SCHED_NONE;
}

/* Makes the event fit what is there; 0: it makes no sense. */
static int event_fit(const struct model *m, struct event *e, uint64_t who, const struct batch_result *given,
		     struct batch_result *results)
{
	uint32_t copy = 0;
	if (!names_fit(m, e, who))
		return 0;
	switch (e->kind) {
	case EVENT_BATCH_DONE:
		if (!m->batch)
			return 0;
		answer_fit(m, e, given, results);
		return 1;
	case EVENT_COPY_DONE:
		while (copy < SIM_COPIES && m->copy[copy].id != e->as.copy.copy)
			copy++;
		return copy < SIM_COPIES && e->as.copy.copy != 0;
	case EVENT_DURABLE: return e->as.durable.step <= m->step;
	default: return 1;
	}
}

static const char *replay(const struct sim_trace *trace, const unsigned char *left_out,
			  const struct sim_options *options)
{
	static struct model m;
	struct batch_result results[SIM_TURNS];
	struct chain_key keys[SIM_UNITS];
	struct effects out;
	memset(&out, 0, sizeof out);
	out.capacity = sched_effect_max(&trace->limits);
	out.list = calloc(out.capacity, sizeof *out.list);
	out.entry_capacity = trace->limits.batch_turns;
	out.entries = calloc(out.entry_capacity, sizeof *out.entries);
	struct sched *s = sched_init(aligned_alloc(64, sched_bytes(&trace->limits)), &trace->limits);
	model_open(&m, s, &trace->limits);
	uint32_t result = 0;
	for (uint32_t i = 0; i < trace->event_count && !m.failure; i++) {
		struct event e = trace->events[i];
		const struct batch_result *given = trace->results + result;
		result += e.kind == EVENT_BATCH_DONE ? e.as.batch.result_count : 0;
		if ((left_out && left_out[i]) || !event_fit(&m, &e, trace->who[i], given, results))
			continue;
		/* The history may be another than it was: so are the keys. */
		if (e.kind == EVENT_TURN && e.as.turn.chain_count) {
			e.as.turn.chain_first = 0;
			e.as.turn.chain_count = model_keys(&m, &e, keys);
		}
		sched_step(s, &e, keys, results, &out);
		sched_audit(s);
		model_event(&m, &e, results, &out);
		model_after(&m, &out);
		if (options && options->planted && options->planted(&out))
			model_fail(&m, "planted");
	}
	free(s);
	free(out.list);
	free(out.entries);
	return m.failure;
}

const char *sim_try(const struct sim_trace *trace, const unsigned char *left_out,
		    const struct sim_options *options)
{
	static char rule[256];
	int ends[2], status = 0;
	if (pipe(ends) != 0)
		return NULL;
	(void)fflush(stdout);
	pid_t child = fork();
	if (child == 0) {
		(void)!freopen("/dev/null", "w", stderr);
		const char *failure = replay(trace, left_out, options);
		if (failure)
			(void)!write(ends[1], failure, strlen(failure));
		_exit(0);
	}
	close(ends[1]);
	ssize_t length = read(ends[0], rule, sizeof rule - 1);
	close(ends[0]);
	(void)waitpid(child, &status, 0);
	rule[length > 0 ? length : 0] = 0;
	if (WIFSIGNALED(status))
		return "aborted";
	return length > 0 ? rule : NULL;
}

static int fails(const struct sim_trace *trace, const unsigned char *left_out,
		 const struct sim_options *options, const char *rule)
{
	const char *found = sim_try(trace, left_out, options);
	return found && !strcmp(found, rule);
}

static void trace_keep(struct sim_trace *trace, const unsigned char *left_out)
{
	uint32_t kept = 0, result = 0, kept_results = 0;
	for (uint32_t i = 0; i < trace->event_count; i++) {
		const struct event e = trace->events[i];
		uint32_t count = e.kind == EVENT_BATCH_DONE ? e.as.batch.result_count : 0;
		if (!left_out[i]) {
			trace->who[kept] = trace->who[i];
			trace->events[kept++] = e;
			memmove(trace->results + kept_results, trace->results + result, count * sizeof *trace->results);
			kept_results += count;
		}
		result += count;
	}
	trace->event_count = kept;
	trace->result_count = kept_results;
}

uint32_t sim_shrink(struct sim_trace *trace, const struct sim_options *options, const char *rule)
{
	unsigned char *out = calloc(trace->event_count + 1, 1);
	uint32_t part = trace->event_count;
	int gained = 0;
	if (!fails(trace, out, options, rule)) {
		printf("# the run is not the same without its random part: not made shorter\n");
		part = 0;
	}
	/* In halves, quarters …, and at last one by one until that gains nothing. */
	while (part > 0) {
		gained = 0;
		for (uint32_t end = trace->event_count; end > 0; end = end > part ? end - part : 0) {
			uint32_t first = end > part ? end - part : 0, new = 0;
			unsigned char *kept = malloc(trace->event_count + 1);
			memcpy(kept, out, trace->event_count);
			for (uint32_t i = first; i < end; i++)
				new += !out[i], out[i] = 1;
			if (new && fails(trace, out, options, rule))
				gained = 1;
			else
				memcpy(out, kept, trace->event_count);
			free(kept);
		}
		if (part == 1 && !gained)
			break;
		part = part > 1 ? part / 2 : 1;
	}
	trace_keep(trace, out);
	free(out);
	return trace->event_count;
}

void sim_print(const struct sim_trace *trace)
{
	static const char *const names[EVENT_KIND_COUNT] = {
		"OPEN", "FORK", "TURN", "CANCEL", "CREDIT", "ROLLBACK", "CLOSE", "RESIDENCY", "HINT", "PARK",
		"BATCH_DONE", "COPY_DONE", "DURABLE", "TIMER", "RATES", "DRAIN", "FOUND",
		"TOUCH"};
	for (uint32_t i = 0; i < trace->event_count; i++) {
		const struct event *e = &trace->events[i];
		printf("#  %llu us %s", (unsigned long long)e->now_us, names[e->kind]);
		if (e->session != SCHED_NONE)
			printf(" session %u", e->session);
		if (e->turn != SCHED_NONE)
			printf(" turn %u", e->turn);
		if (e->kind == EVENT_TURN)
			printf(" keep %u append %u output %u credit %u supersede %u keys %u", e->as.turn.keep,
			       e->as.turn.append, e->as.turn.output_max, e->as.turn.credit, e->as.turn.supersede,
			       e->as.turn.chain_count);
		if (e->kind == EVENT_ROLLBACK)
			printf(" to %u", e->as.rollback.tokens);
		if (e->kind == EVENT_OPEN || e->kind == EVENT_FORK || e->kind == EVENT_RESIDENCY)
			printf(" kind %u bytes %llu", e->as.residency.kind, (unsigned long long)e->as.residency.bytes);
		printf("\n");
	}
}
