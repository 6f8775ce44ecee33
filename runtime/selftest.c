/*
 * Sessions whose right tokens are known play their turns again and again while pages, tags and block
 * tables are harmed by a seeded chance. It is the daemon itself, with a sink in the socket's place:
 * what is compared is what a client would have been sent. In between it is closed and opened again;
 * the sessions must be there.
 *
 * The disk tier is harmed beside it, page by page: bits turned in reading, writes cut in two.
 */
#include "runtime/selftest.h"

#include <dirent.h>
#include <poll.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/fault.h"
#include "runtime/loop.h"
#include "runtime/tier.h"

enum {
	SESSIONS = 6, TURNS = 3, OUTPUT = 12, PROMPT_MAX = 96, LIFE_ROUNDS = 8,
	TRIES_MAX = 200,    /* of one turn: more would be a fault that does not go away */
	WAIT_MS = 60000, TIER_SLOTS = 16, TIER_SHARE = 8 /* one fault in so many is the tier's */
};

struct player {
	struct wire_id id;
	uint32_t prompt[TURNS][PROMPT_MAX], prompt_count[TURNS];
	uint32_t right[TURNS][OUTPUT];
	uint32_t history[TURNS + 1];
	/* The call in hand. */
	uint64_t channel;
	uint32_t got[OUTPUT], got_count, turn, tries;
	bool waits, ended, integrity, opened;
};

static struct test {
	struct daemon daemon;
	struct options options;
	struct player player[SESSIONS];
	uint64_t channel, random;
	bool learning;       /* the first play, without faults, says what is right */
	uint64_t faults;     /* wanted */
	uint64_t injected, detected, by_tag, by_digest, by_proof, tokens, tokens_wrong, sessions_lost, refused;
	uint64_t steps_to_detection, lives, kinds[INJECT_COUNT], kind_disk;
	char dir[64];
} test;

static uint64_t draw(uint64_t below)
{
	test.random = test.random * 6364136223846793005u + 1442695040888963407u;
	return (test.random >> 20) % below;
}

static struct player *player_of(uint64_t channel)
{
	for (unsigned i = 0; i < SESSIONS; i++)
		if (test.player[i].waits && test.player[i].channel == channel)
			return &test.player[i];
	return NULL;
}

static void data_take(struct player *p, const uint8_t *ids, size_t bytes)
{
	for (size_t i = 0; i + 4 <= bytes; i += 4) {
		uint32_t token;
		memcpy(&token, ids + i, sizeof token);
		test.tokens++;
		if (p->got_count == OUTPUT || (!test.learning && token != p->right[p->turn][p->got_count]))
			test.tokens_wrong++;
		else
			p->got[p->got_count++] = token;
	}
}

static void end_take(struct daemon *d, struct player *p, const void *body, size_t length)
{
	static struct wire_end end;
	p->waits = false;
	if (wire_read_end(body, length, &d->wire, &end) != 0)
		return;
	p->ended = true;
	p->integrity = end.err.code == ERR_INTEGRITY;
	if (end.err.code != 0 && !p->integrity)
		test.refused++;
	if (!p->opened && end.has_sess && end.err.code == 0) {
		p->id = end.sess;
		p->opened = true;
		p->history[0] = 0;
	} else if (p->opened && end.err.code == 0) {
		p->history[p->turn + 1] = (uint32_t)end.usage.history;
	}
}

/* What a client would be sent. */
static int sink(struct daemon *d, uint32_t peer, const struct wire_header *h, const void *body,
		size_t length, const void *blob, size_t blob_length)
{
	struct player *p = player_of(h->channel);
	(void)peer;
	if (p == NULL)
		return 0;
	if (h->type == WIRE_DATA)
		data_take(p, blob, blob_length);
	else if (h->type == WIRE_END)
		end_take(d, p, body, length);
	return 0;
}

static void ask(struct player *p, uint8_t method)
{
	struct daemon *d = &test.daemon;
	struct wire_call *m = &d->message;
	memset(m, 0, sizeof *m);
	m->method = method;
	m->epoch = m->turn = m->deadline_ms = m->detach_ms = WIRE_NONE;
	m->window = 1 << 20;
	p->channel = ++test.channel;
	p->waits = true;
	p->ended = p->integrity = false;
	p->got_count = 0;
	const uint32_t call = call_take(d, 0, p->channel, m);
	CHECK(call != NONE);
	if (method == METHOD_SESSION_OPEN) {
		m->a.template_name = (struct wire_str){"none", 4};
		session_method_open(d, call, m);
		return;
	}
	m->has_sess = true;
	m->sess = p->id;
	const uint32_t session = session_find(d, 0, &p->id);
	if (session == NONE) {
		test.sessions_lost++;
		call_fail(d, call, ERR_NOT_FOUND);
		return;
	}
	d->calls[call].session = session;
	if (method == METHOD_SESSION_CLOSE) {
		session_method_close(d, call, m);
		return;
	}
	m->a.tokens_in_blob = true;
	m->a.keep = p->history[p->turn];
	m->a.sampling = (struct wire_sampling){
		.max_tokens = OUTPUT, .temperature = 0.8, .top_p = 1, .typical = 1, .repetition = 1,
		.seed = (uint64_t)(p - test.player) * 100 + p->turn, .ignore_end = true};
	turn_method(d, call, m, NULL, 0, (const uint8_t *)p->prompt[p->turn], p->prompt_count[p->turn] * 4);
}

/* One turn of the loop; what became of the faults is seen from the daemon's own counts. */
static int work(void)
{
	struct daemon *d = &test.daemon;
	bool more;
	uint64_t next;
	d->peers[0].seen_us = loop_clock_us();
	loop_work(d, &more, &next);
	if (d->failed)
		return -ERR_INTERNAL;
	struct pollfd fds[2] = {{.fd = engine_fd(d->engine), .events = POLLIN},
				{.fd = store_fd(d->store), .events = POLLIN}};
	poll(fds, 2, d->in_flight || d->scrubbing ? 1000 : 1);
	uint64_t n;
	if (fds[1].revents && read(store_fd(d->store), &n, sizeof n) < 0)
		return 0;
	return 0;
}

static bool waiting(void)
{
	for (unsigned i = 0; i < SESSIONS; i++)
		if (test.player[i].waits)
			return true;
	return false;
}

static int settle(void)
{
	const uint64_t until = loop_clock_us() + (uint64_t)WAIT_MS * 1000;
	while (waiting()) {
		TRY(work());
		if (loop_clock_us() > until)
			return -ERR_TIMEOUT;
	}
	return 0;
}

/* Every player's turn `turn`, side by side, asked again until it was answered. */
static int turn_play(uint32_t turn)
{
	struct daemon *d = &test.daemon;
	for (unsigned i = 0; i < SESSIONS; i++) {
		test.player[i].turn = turn;
		test.player[i].tries = 0;
		ask(&test.player[i], METHOD_SESSION_TURN);
	}
	for (;;) {
		uint64_t made = 0;
		TRY(settle());
		bool again = false;
		for (unsigned i = 0; i < SESSIONS; i++) {
			struct player *p = &test.player[i];
			if (!p->ended || p->got_count == OUTPUT)
				continue;
			if (++p->tries > TRIES_MAX)
				return -ERR_TIMEOUT;
			ask(p, METHOD_SESSION_TURN);
			again = true;
		}
		for (unsigned k = 0; k < INJECT_COUNT; k++)
			made += d->inject.made[k];
		if (made + test.injected >= test.faults)
			d->inject.on = false;
		if (!again)
			return 0;
	}
}

static int round_play(void)
{
	for (unsigned i = 0; i < SESSIONS; i++) {
		test.player[i].opened = false;
		ask(&test.player[i], METHOD_SESSION_OPEN);
	}
	TRY(settle());
	for (uint32_t turn = 0; turn < TURNS; turn++) {
		TRY(turn_play(turn));
		for (unsigned i = 0; test.learning && i < SESSIONS; i++)
			memcpy(test.player[i].right[turn], test.player[i].got, sizeof test.player[i].got);
	}
	return 0;
}

static int round_close(void)
{
	for (unsigned i = 0; i < SESSIONS; i++)
		ask(&test.player[i], METHOD_SESSION_CLOSE);
	TRY(settle());
	for (unsigned i = 0; i < SESSIONS; i++)
		test.player[i].opened = false;
	return 0;
}

static int life_open(const char *spec)
{
	struct daemon *d = &test.daemon;
	char why[INJECT_REASON_MAX];
	TRY(daemon_inside_open(d, &test.options));
	d->sink = sink;
	snprintf(d->principals[0].name, sizeof d->principals[0].name, "selftest");
	d->peers[0].used = d->peers[0].hello = true;
	d->peers[0].principal = 0;
	d->now_us = d->started_us = loop_clock_us();
	test.lives++;
	return inject_read(spec, &d->inject, why);
}

static void life_close(void)
{
	struct daemon *d = &test.daemon;
	for (unsigned k = 0; k < INJECT_COUNT; k++) {
		test.kinds[k] += d->inject.made[k];
		test.injected += d->inject.made[k];
	}
	test.by_tag += d->incidents[REASON_TAG];
	test.by_digest += d->incidents[REASON_DIGEST];
	if (d->poke_steps_max > test.steps_to_detection)
		test.steps_to_detection = d->poke_steps_max;
	daemon_inside_close(d);
}

static bool worn(const struct daemon *d)
{
	bool worn = false;
	for (uint32_t g = 0; g < d->limits.group_count; g++) {
		uint32_t bad = 0;
		const uint32_t pages = d->limits.group[g].page_count[PLACE_DEVICE];
		for (uint32_t i = 0; i < pages; i++) {
			struct page_view v;
			bad += sched_page(d->sched, g, i, &v) == 0 && v.state == PAGE_QUARANTINED;
		}
		worn = worn || bad > pages / 3;
	}
	return worn;
}

/* Rounds until the pages are worn out by quarantine, or enough was done. */
static int life_play(uint64_t faults)
{
	for (unsigned i = 1;; i++) {
		TRY(round_play());
		/* The last ones are left open, to be found by the next life. */
		if (i == LIFE_ROUNDS || worn(&test.daemon) || !test.daemon.inject.on || test.injected >= faults)
			return 0;
		TRY(round_close());
	}
}

/* The sessions that the last life left open: each must be there with its history. */
static int left_check(void)
{
	struct daemon *d = &test.daemon;
	for (unsigned i = 0; i < SESSIONS; i++) {
		struct player *p = &test.player[i];
		const uint32_t session = p->opened ? session_find(d, 0, &p->id) : NONE;
		if (p->opened && (session == NONE || d->sessions[session].history != p->history[TURNS]))
			test.sessions_lost++;
		p->opened = p->opened && session != NONE;
		if (p->opened)
			ask(p, METHOD_SESSION_CLOSE);
	}
	return settle();
}

/* The disk tier: each fault makes the page absent, or the page was never there. */
static int tier_play(uint64_t faults)
{
	enum { BYTES = 8192 };
	static uint8_t page[BYTES], back[BYTES];
	struct tier_options o = {.dir = test.dir, .group_count = 1, .group = {{BYTES, TIER_SLOTS}}};
	char reason[TIER_REASON_MAX];
	const char *why;
	struct tier *tier;
	TRY(tier_open(&o, &tier, reason, &why));
	for (uint64_t i = 0; i < faults; i++) {
		const uint32_t slot = (uint32_t)draw(TIER_SLOTS);
		struct tier_proof proof = {.chain = {i, draw(1u << 30)}, .content = {1, 1}, .tokens = 16};
		const bool writes = draw(2);
		for (unsigned k = 0; k < BYTES; k++)
			page[k] = (uint8_t)(i + k * 7);
		const struct fault f = {.point = writes ? FAULT_TIER_WRITE : FAULT_TIER_READ, .at = 1,
					.code = FAULT_HALF};
		fault_set(&f, 1);
		(void)tier_put(tier, 0, slot, &proof, page);
		const int code = tier_get(tier, 0, slot, &proof, back, &why);
		fault_set(NULL, 0);
		test.injected++;
		test.kind_disk++;
		test.by_proof += code != 0;
		test.tokens_wrong += code == 0 && memcmp(page, back, BYTES) != 0;
	}
	tier_close(&tier);
	return 0;
}

static void report(bool json, int code)
{
	test.detected = test.by_tag + test.by_digest + test.by_proof;
	if (!json) {
		printf("faults made      %llu", (unsigned long long)test.injected);
		for (unsigned k = 0; k < INJECT_COUNT; k++)
			if (test.kinds[k])
				printf("%s %llu %s", k ? "," : ":", (unsigned long long)test.kinds[k], inject_name(k));
		printf(", %llu disk\n", (unsigned long long)test.kind_disk);
		printf("found            %llu: %llu by tag, %llu by digest, %llu by a page's proof\n",
		       (unsigned long long)test.detected,
		       (unsigned long long)test.by_tag, (unsigned long long)test.by_digest,
		       (unsigned long long)test.by_proof);
		printf("tokens           %llu sent, %llu wrong\nsessions lost    %llu over %llu starts\n",
		       (unsigned long long)test.tokens, (unsigned long long)test.tokens_wrong,
		       (unsigned long long)test.sessions_lost, (unsigned long long)test.lives);
	}
	printf("{\"injected\": %llu, \"detected\": %llu, \"by_tag\": %llu, \"by_digest\": %llu, "
	       "\"by_proof\": %llu, \"outside\": %llu, \"tokens\": %llu, \"tokens_wrong\": %llu, "
	       "\"sessions_lost\": %llu, \"starts\": %llu, \"steps_to_detection\": %llu, \"ok\": %s}\n",
	       (unsigned long long)test.injected, (unsigned long long)test.detected,
	       (unsigned long long)test.by_tag, (unsigned long long)test.by_digest,
	       (unsigned long long)test.by_proof, (unsigned long long)test.kinds[INJECT_BITS_LIVE],
	       (unsigned long long)test.tokens, (unsigned long long)test.tokens_wrong,
	       (unsigned long long)test.sessions_lost, (unsigned long long)test.lives,
	       (unsigned long long)test.steps_to_detection, code == 0 ? "true" : "false");
}

static void folder_remove(const char *folder)
{
	char path[512];
	DIR *dir = opendir(folder);
	for (struct dirent *e; dir && (e = readdir(dir));) {
		snprintf(path, sizeof path, "%s/%.255s", folder, e->d_name);
		if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0 && unlink(path) != 0)
			rmdir(path);
	}
	if (dir)
		closedir(dir);
	rmdir(folder);
}

static int test_run(uint64_t seed)
{
	char spec[256];
	test.random = seed * 2 + 1;
	TRY(life_open(""));
	const uint32_t vocab = test.daemon.model->arch.vocab;
	for (unsigned i = 0; i < SESSIONS; i++)
		for (unsigned t = 0; t < TURNS; t++) {
			struct player *p = &test.player[i];
			p->prompt_count[t] = 1 + (uint32_t)draw(t == 0 ? PROMPT_MAX : 40);
			for (uint32_t k = 0; k < p->prompt_count[t]; k++)
				p->prompt[t][k] = (uint32_t)draw(vocab);
		}
	test.learning = true;
	TRY(round_play());
	TRY(round_close());
	test.learning = false;
	life_close();
	TRY(tier_play(test.faults / TIER_SHARE));
	while (test.injected < test.faults) {
		const uint64_t before = test.injected;
		snprintf(spec, sizeof spec, "tag-device/25,tag-table/25,swap/25,double-assign/25,early-free/25,"
			 "bits-idle/3,seed=%llu", (unsigned long long)draw(1u << 30));
		TRY(life_open(spec));
		test.daemon.inject.on = false;
		TRY(left_check());
		test.daemon.inject.on = true;
		TRY(life_play(test.faults));
		life_close();
		if (test.injected == before)
			return -ERR_INTERNAL; /* a life without a fault: the spec does nothing */
	}
	/* What the last life left must be there as well. */
	TRY(life_open(""));
	TRY(left_check());
	life_close();
	return test.tokens_wrong || test.sessions_lost || test.refused ? -ERR_INTEGRITY : 0;
}

static int usage(FILE *to)
{
	fprintf(to, "usage: holdfastd selftest --model MODEL [--faults N] [--seed S] [--json] [option …]\n"
		"N faults (default 1000) on pages, tags, block tables and the disk tier, while sessions play known\n"
		"turns; 0 when no wrong token left and no session was lost. Other options are the daemon's.\n");
	return to == stdout ? 0 : 2;
}

/* Ours are taken out; the rest is the daemon's. 1: used wrongly; -1: help is asked for. */
static int arguments_read(int argc, char **argv, uint64_t *seed, char **rest, int *count)
{
	*count = 0;
	rest[(*count)++] = argv[0];
	for (int i = 1; i < argc; i++) {
		const bool faults = strncmp(argv[i], "--faults", 8) == 0, s = strncmp(argv[i], "--seed", 6) == 0;
		if (strcmp(argv[i], "--help") == 0)
			return -1;
		if (!faults && !s) {
			rest[(*count)++] = argv[i];
			continue;
		}
		const char *value = strchr(argv[i], '=');
		value = value ? value + 1 : i + 1 < argc ? argv[++i] : "";
		char *end;
		const unsigned long long n = strtoull(value, &end, 10);
		if (value[0] < '0' || value[0] > '9' || *end || (faults && (n == 0 || n > 100000000)))
			return 1;
		*(faults ? &test.faults : seed) = n;
	}
	return 0;
}

int selftest_main(int argc, char **argv)
{
	static char *fixed[] = {"--digest", "resume", "--log", "error", "--kv-memory", "0"};
	enum { FIXED = sizeof fixed / sizeof fixed[0] };
	char **rest = calloc((size_t)argc + FIXED + 4, sizeof *rest);
	uint64_t seed = 1;
	int count;
	test.faults = 1000;
	const int wrong = rest ? arguments_read(argc, argv, &seed, rest, &count) : 1;
	if (wrong) {
		free(rest);
		return usage(wrong < 0 ? stdout : stderr);
	}
	char **with = calloc((size_t)count + FIXED + 4, sizeof *with);
	if (!with)
		return 1;
	/* What is named by the caller comes later and stands. */
	int n = 0;
	with[n++] = rest[0];
	for (int i = 0; i < FIXED; i++)
		with[n++] = fixed[i];
	snprintf(test.dir, sizeof test.dir, "/tmp/holdfast-selftest.XXXXXX");
	if (mkdtemp(test.dir) == NULL) {
		fprintf(stderr, "holdfastd: selftest: no folder can be made in /tmp\n");
		return 1;
	}
	static char state[96];
	snprintf(state, sizeof state, "%s/state", test.dir);
	with[n++] = "--state";
	with[n++] = state;
	for (int i = 1; i < count; i++)
		with[n++] = rest[i];
	int code = options_read(n, with, &test.options);
	free(rest);
	free(with);
	if (code == 0) {
		if (test.options.kv_memory == 0)
			test.options.kv_memory = 64 << 20;
		code = test_run(seed);
		if (code)
			fprintf(stderr, "holdfastd: selftest: %s\n", err_text(code));
		report(test.options.json, code);
		code = code != 0;
	}
	folder_remove(state);
	folder_remove(test.dir);
	return code < 0 ? 0 : code;
}
