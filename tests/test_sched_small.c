/*
 * Exhaustive, small: every sequence of DEPTH events from a small alphabet over two sessions and
 * five pages, audited after each step. The state is one block without pointers, so each branch
 * starts from a copy of its parent's block; and one whose state was seen at the same depth before is not
 * followed again, since what can come of it was. The seventeen events include answers to the batch in
 * flight: all well, half computed, a fault, a bad page. After each sequence everything is answered
 * and closed, and every page must be free or quarantined.
 */
#include "tests/tap.h"
#include "tests/sched_rig.h"

enum { DEPTH_MAX = 6, ALPHABET = 17, SEEN_BITS = 21 };

struct node {
	struct rig_batch batch; /* in flight; count 0 for none */
	uint32_t turn[2], open[2]; /* by session index: its live turn, is it there */
	uint64_t step;
};

static struct rig rig;
static unsigned char *saved[DEPTH_MAX + 1];
static struct node nodes[DEPTH_MAX + 1];
static size_t block_bytes;
static uint64_t leaves, steps, sequences[DEPTH_MAX + 1]; /* sequences: that go through the node so far */

/* A state at a depth, by its hash, and how many sequences go on from it. */
struct seen {
	uint64_t hash, sequences; /* hash 0: none */
};
static struct seen *seen, *node_seen[DEPTH_MAX + 1];
static uint32_t seen_count;

/* The place of this state, the last step's, at this depth; its hash is 0 if it was not there before. What is
   not in the scheduler's block of a node is in the hash, too. */
static struct seen *seen_find(uint32_t depth, const struct node *n, uint64_t *found)
{
	const uint64_t words[] = {depth, n->turn[0], n->turn[1], n->open[0], n->open[1], n->batch.count, n->step};
	uint64_t hash = sched_hash(rig.s);
	for (uint32_t i = 0; i < sizeof words / sizeof words[0]; i++) {
		hash = (hash ^ words[i]) * 0xff51afd7ed558ccdu;
		hash ^= hash >> 32;
	}
	hash += hash == 0;
	uint32_t at = (uint32_t)(hash >> (64 - SEEN_BITS));
	while (seen[at].hash && seen[at].hash != hash)
		at = (at + 1) & ((1u << SEEN_BITS) - 1);
	*found = hash;
	return &seen[at];
}

/* Goes down to the node, or counts what was found behind it. */
static int node_enter(uint32_t depth)
{
	uint64_t hash;
	struct seen *at = seen_find(depth, &nodes[depth], &hash);
	if (at->hash) {
		sequences[depth - 1] += at->sequences;
		return 0;
	}
	CHECK(++seen_count < 1u << (SEEN_BITS - 1));
	at->hash = hash;
	node_seen[depth] = at;
	sequences[depth] = 0;
	return 1;
}

static void node_leave(uint32_t depth)
{
	node_seen[depth]->sequences = sequences[depth];
	sequences[depth - 1] += sequences[depth];
}

/* Takes over what the last step told. */
static void node_follow(struct node *n)
{
	for (uint32_t i = 0; i < rig.out.count; i++) {
		const struct effect *f = &rig.out.list[i];
		if (f->kind == EFFECT_OPENED)
			n->open[f->session] = 1;
		if (f->kind == EFFECT_CLOSED)
			n->open[f->session] = 0;
		if (f->kind == EFFECT_ADMITTED || f->kind == EFFECT_WAIT)
			n->turn[f->session] = f->turn;
		if (f->kind == EFFECT_END && f->turn != SCHED_NONE && n->turn[f->session] == f->turn)
			n->turn[f->session] = SCHED_NONE;
	}
	if (rig_effect(&rig, EFFECT_BATCH, 0))
		n->batch = rig_batch(&rig);
	n->step = rig.out.step;
	steps++;
}

static void answer(struct node *n, enum end end, int half)
{
	struct rig_batch b = n->batch;
	for (uint32_t i = 0; i < b.count; i++) {
		b.results[i].end = end;
		if (half)
			b.results[i].computed /= 2;
		if (half || end != END_NONE)
			b.results[i].sampled = 0;
		if (end == END_INTEGRITY) {
			struct page_ref ref;
			uint32_t group = rig.limits.group_count - 1, session = b.entries[i].session;
			(void)sched_page_table(rig.s, session, group, sched_page_first(rig.s, session, group), 1, &ref);
			b.results[i].page = ref.page;
			b.results[i].group = group;
		}
	}
	n->batch.count = 0;
	(void)rig_done(&rig, &b);
}

static void turn_send(uint32_t session, uint32_t append, uint32_t output_max, uint32_t supersede)
{
	struct event e = rig_event(&rig, EVENT_TURN);
	e.session = session;
	e.turn_key = rig.next_key++;
	e.as.turn.keep = rig_view(&rig, session).history;
	e.as.turn.append = append;
	e.as.turn.output_max = output_max;
	e.as.turn.credit = 100;
	e.as.turn.supersede = supersede;
	rig_send(&rig, &e);
}

/* Sends the letter's event; returns 0 if it makes no sense here. */
static int letter_send(struct node *n, uint32_t letter)
{
	uint32_t session = letter & 1, there = n->open[session];
	switch (letter) {
	case 0: /* a small turn, and one of nearly the whole slab */
	case 1:
		if (!there)
			return 0;
		turn_send(session, 10, 3, 0);
		return 1;
	case 2:
	case 3:
		if (!there)
			return 0;
		turn_send(session, 50, 6, 1);
		return 1;
	case 4:
	case 5:
		if (!there || n->turn[session] == SCHED_NONE)
			return 0;
		rig_cancel(&rig, n->turn[session], END_CANCEL);
		return 1;
	case 6:
	case 7:
		if (!there)
			return 0;
		rig_simple(&rig, EVENT_CLOSE, session);
		return 1;
	case 8: /* opens or forks into the free index */
		if (n->open[0] && n->open[1])
			return 0;
		if (n->open[0] || n->open[1])
			(void)rig_fork(&rig, n->open[1]);
		else
			(void)rig_session(&rig);
		return 1;
	case 9:
		if (!n->open[1] || rig_view(&rig, 1).history < 20)
			return 0;
		rig_rollback(&rig, 1, 20);
		return 1;
	case 10:
	case 11:
		if (!there)
			return 0;
		rig_residency(&rig, session, RESIDENCY_PINNED, 2048, 0);
		return 1;
	case 12: /* time for a record */
		rig_durable(&rig, n->step);
		return 1;
	default:
		if (n->batch.count == 0)
			return 0;
		answer(n, letter == 15 ? END_FAULT : letter == 16 ? END_INTEGRITY : END_NONE, letter == 14);
		return 1;
	}
}

/* Answers and closes everything; then no page may be owned or doomed. */
static int leaf_ends_clean(struct node n)
{
	for (int bound = 0; bound < 200 && (n.open[0] || n.open[1] || n.batch.count); bound++) {
		for (uint32_t i = 0; i < 2; i++) {
			if (n.open[i] && bound == 3) {
				rig_simple(&rig, EVENT_CLOSE, i);
				node_follow(&n);
			}
		}
		if (n.batch.count) {
			answer(&n, END_NONE, 0);
			node_follow(&n);
		}
		rig_durable(&rig, n.step);
		node_follow(&n);
	}
	rig_durable(&rig, n.step);
	uint64_t all = 0;
	for (int column = 0; column < COLUMN_COUNT; column++)
		if (column != COLUMN_FREE && column != COLUMN_DOOMED)
			all += sched_ledger(rig.s, ACCOUNT_DEVICE, (enum column)column);
	for (uint32_t g = 0; g < rig.limits.group_count; g++)
		for (uint32_t i = 0; i < rig.limits.group[g].page_count[PLACE_DEVICE]; i++) {
			struct page_view view;
			(void)sched_page(rig.s, g, i, &view);
			all += view.state != PAGE_FREE && view.state != PAGE_QUARANTINED;
		}
	return all == 0 && !n.open[0] && !n.open[1];
}

static void tree(uint32_t depth_max)
{
	uint32_t letter[DEPTH_MAX + 1] = {0}, depth = 0;
	for (;;) {
		if (letter[depth] == ALPHABET || depth == depth_max) {
			if (depth == depth_max) {
				memcpy(rig.s, saved[depth], block_bytes);
				leaves++;
				sequences[depth] = 1;
				if (!leaf_ends_clean(nodes[depth])) {
					printf("# after");
					for (uint32_t i = 0; i < depth; i++)
						printf(" %u", letter[i] - 1);
					printf("\n");
					tap_failed = 1;
					return;
				}
			}
			if (depth == 0)
				return;
			node_leave(depth--);
			continue;
		}
		memcpy(rig.s, saved[depth], block_bytes);
		nodes[depth + 1] = nodes[depth];
		rig.next_key = 100; /* keys are told and not looked at: equal ones make equal states */
		if (letter_send(&nodes[depth + 1], letter[depth]++)) {
			node_follow(&nodes[depth + 1]);
			if (!node_enter(depth + 1))
				continue;
			memcpy(saved[depth + 1], rig.s, block_bytes);
			depth++;
			if (depth < depth_max)
				letter[depth] = 0;
		}
	}
}

/* The root: two sessions, the first with 40 tokens of history. */
static void all_sequences(uint32_t depth, uint32_t hold, uint32_t window)
{
	struct sched_limits l = rig_limits(5);
	l.session_count = 2;
	l.turn_count = 4;
	l.batch_turns = 2;
	l.queue_turns = 2;
	l.context_tokens = 80;
	l.hold_until_durable = hold;
	if (window) {
		/* Half of a whole context's window pages are trimmed; there are enough for one and a bit. */
		l.group_count = 2;
		l.group[1].page_bytes = 512;
		l.group[1].page_count[PLACE_DEVICE] = 5;
		l.group[1].window_tokens = window;
		l.chunk_tokens = 16;
	}
	rig_open(&rig, &l);
	block_bytes = sched_bytes(&l);
	for (uint32_t i = 0; i <= depth; i++)
		saved[i] = malloc(block_bytes);
	struct node *n = &nodes[0];
	memset(n, 0, sizeof *n);
	n->turn[0] = n->turn[1] = SCHED_NONE;
	n->open[0] = n->open[1] = 1;
	(void)rig_session(&rig);
	(void)rig_session(&rig);
	(void)rig_whole(&rig, 0, 0, 40, 1);
	n->step = rig.out.step;
	memcpy(saved[0], rig.s, block_bytes);
	leaves = steps = seen_count = 0;
	sequences[0] = 0;
	seen = calloc((size_t)1 << SEEN_BITS, sizeof *seen);
	tree(depth);
	free(seen);
	printf("# depth %u: %llu sequences, %llu states at the end, %llu steps\n", depth,
	       (unsigned long long)sequences[0], (unsigned long long)leaves, (unsigned long long)steps);
	EXPECT(sequences[0] > 100000);
	for (uint32_t i = 0; i <= depth; i++)
		free(saved[i]);
	rig_close(&rig);
}

static uint32_t depth_wanted;

static void at_once(void)
{
	all_sequences(depth_wanted, 0, 0);
}

static void held(void)
{
	all_sequences(depth_wanted, 1, 0);
}

static void windowed(void)
{
	all_sequences(depth_wanted, 1, 16);
}

int main(int argc, char **argv)
{
	depth_wanted = getenv("HOLDFAST_SANITIZED") ? 5 : DEPTH_MAX;
	if (argc > 1)
		depth_wanted = atoi(argv[1]) == DEPTH_MAX ? DEPTH_MAX : 5;
	TAP_RUN(at_once, "every short sequence of events, pages freed at once");
	TAP_RUN(held, "every short sequence of events, pages held until durable");
	TAP_RUN(windowed, "every short sequence of events, with a group that has a window");
	return tap_done();
}
