/*
 * The heart of the project, for any device: a session that is continued gives bit for bit what the
 * same history gives when it is computed from nothing, whatever else happens.
 *
 * A history of tokens, some given and some sampled greedily, is computed once in one chunk on one
 * thread: that is the truth for a path (device, instruction set and KV precision). Then it is computed
 * in other ways: in chunks of 1, 7 and 64, with neighbours in the batch, on two threads, after a fork
 * and after a rollback, with pages of another size. At every position the sampled token, its
 * log-probability and the alternatives must be the same bits.
 */
#ifndef HOLDFAST_TESTS_HEART_H
#define HOLDFAST_TESTS_HEART_H

#include <stdlib.h>
#include <string.h>

#include "runtime/program.h"
#include "tests/tap.h"

enum { LENGTH_MAX = 736, BESIDE_MAX = 320, ROWS_MAX = 512, PAGES = 48, SEQUENCES = 3, TOP = 4 };

static const char *const kv_names[] = {"fp8", "int8", "bf16", "f32"};
static const char *heart_cache; /* a folder for what is kept of a model, or NULL */

struct setup {
	const struct model *model;
	const char *device; /* NULL: the CPU */
	enum isa isa;
	enum kv_kind kv;
	uint32_t threads, page_tokens, length;
	bool brief, one; /* a slow path: only the ways that say so; only on two threads */
};

/* A way to compute the history. */
struct way {
	const char *what;
	uint32_t chunk;
	bool neighbours, brief;
};

static int setup_open(const struct setup *s, struct run *run)
{
	struct forward_options o;
	forward_options_default(&o);
	o.device = s->device;
	o.kv = s->kv;
	o.isa = s->isa;
	o.threads = s->threads;
	o.page_tokens = s->page_tokens;
	o.page_count = PAGES * SEQUENCES;
	o.sequences_max = SEQUENCES;
	o.samples_max = s->length < BESIDE_MAX ? BESIDE_MAX : ROWS_MAX;
	o.rows_max = o.samples_max + 16;
	o.context = LENGTH_MAX + 16;
	o.cache_dir = heart_cache;
	TRY(run_open("test", s->model, &o, run));
	for (uint32_t i = 0; i < SEQUENCES; i++) {
		const struct run_sequence q = {.page_first = i * PAGES, .tag_first = 1 + i * PAGES};
		TRY(run_tags(run, &q, PAGES));
	}
	return 0;
}

static struct run_sequence sequence_at(uint32_t index)
{
	return (struct run_sequence){.page_first = index * PAGES, .tag_first = 1 + index * PAGES};
}

/* Rows of tokens[from .. to) in one step, all sampled, after and before neighbours if wanted. */
static int step(struct run *run, const struct run_sequence *sequence, const uint32_t *tokens,
		uint32_t from, uint32_t to, bool neighbours, struct ops_sampled *out)
{
	static uint32_t beside[SEQUENCES];
	batch_begin(run->builder);
	for (uint32_t i = 0; i < SEQUENCES; i++) {
		const struct run_sequence other = sequence_at(i);
		if (other.page_first == sequence->page_first) {
			const uint32_t row = run_put(run, sequence, tokens + from, to - from, from);
			for (uint32_t k = 0; k < to - from; k++)
				batch_sample(run->builder, row + k)->top_count = TOP;
		} else if (neighbours) {
			/* Its own history: other tokens, one to five rows a step. */
			const uint32_t count = 1 + (from + i) % 5;
			if (beside[i] + count > BESIDE_MAX)
				beside[i] = 0;
			run_put(run, &other, tokens + (BESIDE_MAX - beside[i] - count), count,
				beside[i]);
			beside[i] += count;
		}
	}
	TRY(run_step(run));
	memcpy(out + from, run->sampled, (to - from) * sizeof *out);
	return 0;
}

static int history(struct run *run, const struct run_sequence *sequence, const uint32_t *tokens,
		   uint32_t from, uint32_t to, uint32_t chunk, bool neighbours,
		   struct ops_sampled *out)
{
	for (uint32_t at = from; at < to; at += chunk)
		TRY(step(run, sequence, tokens, at, to - at < chunk ? to : at + chunk, neighbours,
			 out));
	return 0;
}

/* Positions [from, to) of both agree in every bit that was computed. */
static bool same(const struct ops_sampled *a, const struct ops_sampled *b, uint32_t from, uint32_t to)
{
	for (uint32_t i = from; i < to; i++) {
		const bool equal = a[i].token == b[i].token && a[i].top_count == b[i].top_count &&
				   memcmp(&a[i].logprob, &b[i].logprob, sizeof a[i].logprob) == 0 &&
				   memcmp(a[i].top_token, b[i].top_token, TOP * 4) == 0 &&
				   memcmp(a[i].top_logprob, b[i].top_logprob, TOP * 4) == 0;
		if (equal)
			continue;
		printf("# position %u: token %u (%.9g), it should be %u (%.9g)\n", i, a[i].token,
		       (double)a[i].logprob, b[i].token, (double)b[i].logprob);
		return false;
	}
	return true;
}

/* A session: a prompt, a turn of sampled tokens, a tool's result, a turn, and so on: `tokens` gets
   the whole history (and the rest of its room other given tokens), out what was sampled on the way. */
static int session(const struct setup *s, struct run *run, uint32_t *tokens, struct ops_sampled *out)
{
	static const uint32_t turns[] = {0, 3, 1, 2}; /* fourths of given and sampled tokens */
	const uint32_t vocab = s->model->arch.vocab;
	const struct run_sequence sequence = sequence_at(0);
	CHECK(s->length >= 8); /* something is given first */
	for (uint32_t i = 0; i < LENGTH_MAX; i++)
		tokens[i] = 3 + (i * i * 31 + i * 7 + 5) % (vocab - 3);
	uint32_t at = 0;
	for (uint32_t turn = 0; at < s->length; turn++) {
		uint32_t given = s->length / 8 + 3 * turns[turn % 4], sampled = 5 + turns[turn % 4];
		if (given > s->length - at)
			given = s->length - at;
		TRY(history(run, &sequence, tokens, at, at + given, ROWS_MAX, false, out));
		at += given;
		for (; sampled > 0 && at < s->length; sampled--, at++) {
			tokens[at] = out[at - 1].token;
			TRY(history(run, &sequence, tokens, at, at + 1, 1, false, out));
		}
	}
	return 0;
}

static const struct way ways[] = {
	{"one chunk", ROWS_MAX, false, false},
	{"chunks of 64", 64, false, false},
	{"chunks of 7", 7, false, false},
	{"one by one", 1, false, true},
	{"chunks of 64 with neighbours", 64, true, false},
	{"chunks of 7 with neighbours", 7, true, true},
	{"one by one with neighbours", 1, true, false},
};

/* Fork: the full pages are shared, the open one is copied; the copy goes on, then the original goes
   on: neither sees the other. Rollback: other tokens over the end, then the right ones again. Both at
   `middle`, so that a window that reaches back over it sees pages of both. */
static int fork_and_rollback(const struct setup *s, struct run *run, const uint32_t *tokens, uint32_t middle,
			     const struct ops_sampled *truth, struct ops_sampled *out, bool *good)
{
	const struct ops *ops = forward_ops(run->forward);
	const uint32_t page = middle / s->page_tokens;
	const struct run_sequence sequence = sequence_at(0), fork = sequence_at(1);
	uint32_t wrong[LENGTH_MAX];
	for (uint32_t i = 0; i < LENGTH_MAX; i++)
		wrong[i] = tokens[LENGTH_MAX - 1 - i];
	TRY(history(run, &sequence, tokens, 0, middle, 64, false, out));
	for (uint32_t i = 0; i <= page; i++)
		TRY(ops->page_copy(forward_device(run->forward), 0, sequence.page_first + i,
				   fork.page_first + i));
	TRY(history(run, &fork, wrong, middle, s->length, 7, false, out));
	TRY(history(run, &sequence, tokens, middle, s->length, 1, false, out));
	*good = same(out, truth, 0, s->length) && *good;
	/* The fork is rolled back to where it began, and takes the original's way. */
	memset(out + middle, 0, (s->length - middle) * sizeof *out);
	TRY(history(run, &fork, tokens, middle, s->length, 7, false, out));
	*good = same(out, truth, middle, s->length) && *good;
	return 0;
}

static void heart(const struct setup *first)
{
	static uint32_t tokens[LENGTH_MAX];
	static struct ops_sampled lived[LENGTH_MAX], truth[LENGTH_MAX], out[LENGTH_MAX];
	const uint32_t threads_first = first->one ? 2 : 1;
	for (uint32_t threads = threads_first; threads <= 2; threads++) {
		struct setup s = *first;
		struct run run;
		bool good = true;
		s.threads = threads;
		/* Another size of page on the second round changes nothing either. */
		s.page_tokens = threads == 1 ? 16 : 64;
		REQUIRE(setup_open(&s, &run) == 0);
		const struct run_sequence sequence = sequence_at(0);
		if (threads == threads_first) {
			EXPECT_EQ(session(&s, &run, tokens, lived), 0);
			EXPECT_EQ(history(&run, &sequence, tokens, 0, s.length, ROWS_MAX, false, truth), 0);
			EXPECT(same(lived, truth, 0, s.length));
		}
		for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++) {
			if (s.brief && !ways[i].brief)
				continue;
			memset(out, 0, sizeof out);
			EXPECT_EQ(history(&run, &sequence, tokens, 0, s.length, ways[i].chunk,
					  ways[i].neighbours, out), 0);
			if (!EXPECT(same(out, truth, 0, s.length)))
				printf("# %s, %s KV, %u threads, %s\n", s.device ? s.device : ops_isa_name(s.isa),
				       kv_names[s.kv], threads, ways[i].what);
		}
		EXPECT_EQ(fork_and_rollback(&s, &run, tokens, s.length * 2 / 3 | 1, truth, out, &good), 0);
		/* Longer than a window of 512: before it is full, above, and here while it slides. */
		if (s.length > ROWS_MAX)
			EXPECT_EQ(fork_and_rollback(&s, &run, tokens, s.length * 7 / 8 | 1, truth, out, &good), 0);
		EXPECT(good);
		run_close(&run);
	}
}

#endif
