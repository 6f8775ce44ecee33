/*
 * Bytes as events: each input is read as a sequence of small events, in whatever order and with
 * whatever arguments, made legal only where a breach is the caller's (indices, times, results).
 * Audited after each step. Without arguments it runs a corpus that it makes itself; with
 * arguments each is a file, so that a fuzzing engine's findings can be kept and run again.
 */
#include "tests/tap.h"
#include "tests/sched_rig.h"

enum { INPUT_MAX = 4096, INPUTS = 6000, LETTERS = 400 };

struct input {
	const unsigned char *bytes;
	size_t count, at;
};

static uint32_t byte(struct input *in)
{
	return in->at < in->count ? in->bytes[in->at++] : 0;
}

static uint32_t word(struct input *in)
{
	uint32_t low = byte(in), high = byte(in);
	return low | high << 8;
}

static struct sched_limits limits_read(struct input *in)
{
	struct sched_limits l = rig_limits(1 + byte(in) % 20);
	l.page_tokens = 16u << byte(in) % 3;
	l.context_tokens = 2 + byte(in);
	l.batch_turns = 1 + byte(in) % 4;
	l.batch_rows = l.batch_turns + byte(in) % 64;
	l.chunk_tokens = 1 + byte(in) % 64;
	l.queue_turns = 1 + byte(in) % 4;
	l.hold_until_durable = byte(in) & 1;
	l.group_count = 1 + (byte(in) & 1);
	l.group[1] = l.group[0];
	l.group[1].page_count[PLACE_DEVICE] = 1 + byte(in) % 20;
	l.principal_bytes = byte(in) % 4 * 2048;
	return l;
}

/* A session that is open, the n-th after a start; SCHED_NONE if there is none. */
static uint32_t session_pick(const struct rig *r, uint32_t n)
{
	struct session_view view;
	for (uint32_t i = 0; i < r->limits.session_count; i++) {
		uint32_t session = (n + i) % r->limits.session_count;
		if (sched_session(r->s, session, &view) == 0)
			return session;
	}
	return SCHED_NONE;
}

static uint32_t turn_pick(const struct rig *r, uint32_t n)
{
	struct turn_view view;
	for (uint32_t i = 0; i < r->limits.turn_count; i++) {
		uint32_t turn = (n + i) % r->limits.turn_count;
		if (sched_turn(r->s, turn, &view) == 0)
			return turn;
	}
	return SCHED_NONE;
}

static void batch_answer(struct rig *r, struct rig_batch *b, struct input *in)
{
	static const enum end ends[] = {END_STOP, END_TOOL, END_FAULT, END_INTEGRITY, END_SLOW};
	for (uint32_t i = 0; i < b->count; i++) {
		struct batch_result *result = &b->results[i];
		uint32_t how = byte(in);
		if (how < 160)
			continue;
		result->computed = byte(in) % (b->entries[i].row_count + 1);
		result->sampled = b->entries[i].sample && result->computed == b->entries[i].row_count;
		if (how < 200)
			continue;
		result->end = ends[how % 5];
		result->sampled = result->sampled && (how & 1);
		if (result->end == END_INTEGRITY) {
			struct page_ref refs[64];
			result->group = byte(in) % r->limits.group_count;
			uint32_t count = sched_page_table(r->s, b->entries[i].session, result->group, 0, 64, refs);
			result->page = refs[byte(in) % count].page;
		}
	}
	struct rig_batch next = rig_done(r, b);
	*b = next;
}

static void event_arguments(struct rig *r, struct event *e, struct input *in)
{
	switch (e->kind) {
	case EVENT_OPEN: e->principal = byte(in) % r->limits.principal_count; /* fall through */
	case EVENT_FORK:
	case EVENT_RESIDENCY:
		e->session_key = r->next_key++;
		e->as.residency.kind = byte(in) % 3;
		e->as.residency.bytes = word(in);
		e->as.residency.lease_us = word(in);
		break;
	case EVENT_TURN:
		e->turn_key = r->next_key++;
		e->as.turn.keep = byte(in) < 128 ? rig_view(r, e->session).history : byte(in);
		e->as.turn.append = byte(in);
		e->as.turn.output_max = byte(in);
		e->as.turn.credit = byte(in);
		e->as.turn.supersede = byte(in) & 1;
		e->as.turn.deadline_us = byte(in) < 32 ? r->now_us + byte(in) : 0;
		break;
	case EVENT_CANCEL: e->as.cancel.end = byte(in) & 1 ? END_CANCEL : END_SLOW; break;
	case EVENT_CREDIT: e->as.credit.tokens = byte(in); break;
	case EVENT_ROLLBACK: e->as.rollback.tokens = byte(in); break;
	case EVENT_HINT: e->as.hint.pause = byte(in) & 1; break;
	case EVENT_PARK: e->as.park.place = byte(in) % 4; break;
	case EVENT_DURABLE: e->as.durable.step = r->out.step - (byte(in) < 128 && r->out.step ? 1 : 0); break;
	case EVENT_RATES:
		e->as.rates.prefill_ns_token = word(in);
		e->as.rates.decode_ns_row = word(in);
		break;
	default: break;
	}
}

static void input_run(const unsigned char *bytes, size_t count)
{
	struct input in = {bytes, count, 0};
	struct sched_limits l = limits_read(&in);
	struct rig_batch b;
	struct rig r;
	rig_open(&r, &l);
	memset(&b, 0, sizeof b);
	for (int letters = 0; in.at < in.count && letters < LETTERS; letters++) {
		uint32_t kind = byte(&in), pick = byte(&in);
		/* Half of all letters answer the batch: else little would ever be computed. */
		kind = kind & 1 ? EVENT_BATCH_DONE : (kind >> 1) % EVENT_KIND_COUNT;
		r.now_us += pick & 15;
		struct event e = rig_event(&r, (enum event_kind)kind);
		if (kind == EVENT_BATCH_DONE) {
			if (b.count)
				batch_answer(&r, &b, &in);
			continue;
		}
		if (kind == EVENT_COPY_DONE || kind == EVENT_FOUND || (kind == EVENT_DRAIN && pick < 250))
			continue;
		if (kind == EVENT_CANCEL || kind == EVENT_CREDIT) {
			e.turn = turn_pick(&r, pick);
			if (e.turn == SCHED_NONE)
				continue;
		} else if (kind != EVENT_OPEN && kind != EVENT_DURABLE && kind != EVENT_TIMER &&
			   kind != EVENT_RATES && kind != EVENT_DRAIN) {
			e.session = session_pick(&r, pick);
			if (e.session == SCHED_NONE)
				continue;
		}
		event_arguments(&r, &e, &in);
		rig_send(&r, &e);
		if (rig_effect(&r, EFFECT_BATCH, 0))
			b = rig_batch(&r);
	}
	rig_close(&r);
}

static void corpus(void)
{
	static unsigned char bytes[INPUT_MAX];
	uint64_t x = 88172645463325252u;
	for (int i = 0; i < INPUTS; i++) {
		size_t count = 16 + (size_t)(x >> 33) % (INPUT_MAX - 16);
		for (size_t k = 0; k < count; k++) {
			x ^= x << 13;
			x ^= x >> 7;
			x ^= x << 17;
			bytes[k] = (unsigned char)(x >> 24);
		}
		input_run(bytes, count);
	}
	EXPECT(x != 0);
	/* The edges: nothing at all, all zeros, all ones. */
	input_run(bytes, 0);
	memset(bytes, 0, sizeof bytes);
	input_run(bytes, sizeof bytes);
	memset(bytes, 0xff, sizeof bytes);
	input_run(bytes, sizeof bytes);
}

int main(int argc, char **argv)
{
	static unsigned char bytes[1 << 20];
	for (int i = 1; i < argc; i++) {
		FILE *file = fopen(argv[i], "rb");
		if (!file)
			return 1;
		input_run(bytes, fread(bytes, 1, sizeof bytes, file));
		(void)fclose(file);
	}
	if (argc == 1) {
		TAP_RUN(corpus, "any bytes as events keep every invariant");
		return tap_done();
	}
	return 0;
}
