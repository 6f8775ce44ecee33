/*
 * Sessions whose right tokens are known play their turns again and again while pages, tags, block
 * tables, copies, the disk tier and the log are harmed by a seeded chance. It is the daemon itself,
 * with a sink in the socket's place: what is compared is what a client would have been sent.
 *
 * The daemon has many lives, each in a child of its own, of which some end by SIGKILL at a named point
 * or by a log that cannot be written. In the next one the sessions must be there, and go on.
 *
 * The disk tier is harmed beside it, page by page: bits turned in reading, writes cut in two.
 */
#include "config.h"

#include "runtime/selftest.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/loop.h"
#include "runtime/selftest_inside.h"
#include "runtime/tier.h"

enum {
	LIFE_ROUNDS = 8, LIVE_ONE_IN = 60, TIER_SLOTS = 16,
	TIER_SHARE = 8, /* one fault in so many is the tier's */
	ROW_LIVES = 8, ROW_EVERY = 97 /* a life in so many is of wrong owner rows: one row in so many */
};

struct selftest *selftest;

uint64_t selftest_draw(uint64_t below)
{
	selftest->random = selftest->random * 6364136223846793005u + 1442695040888963407u;
	return (selftest->random >> 20) % below;
}

static uint64_t injected(void)
{
	const struct selftest *t = selftest;
	uint64_t n = t->kind_world + t->kind_row + t->kind_tier + t->kind_ends;
	for (unsigned k = 0; k < INJECT_COUNT; k++)
		n += t->kinds[k];
	return n;
}

uint64_t selftest_injected(void)
{
	uint64_t n = injected() + selftest->world;
	for (unsigned k = 0; k < INJECT_COUNT; k++)
		n += selftest->daemon.inject.made[k];
	return n;
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
static int life_play(void)
{
	for (unsigned i = 1;; i++) {
		TRY(selftest_round());
		/* The last ones are left open, to be found by the next life. */
		if (i == LIFE_ROUNDS || worn(&selftest->daemon) || !selftest->daemon.inject.on)
			return 0;
		TRY(selftest_close());
	}
}

/* In the child: a whole life of the daemon. No spec: nothing but what was left, or, the first time, what
   is right. */
static int life_lead(const char *spec)
{
	struct daemon *d = &selftest->daemon;
	char why[INJECT_REASON_MAX];
	TRY(daemon_inside_open(d, &selftest->options));
	d->sink = selftest_sink;
	d->outside = selftest_outside;
	snprintf(d->principals[0].name, sizeof d->principals[0].name, "selftest");
	d->peers[0].used = d->peers[0].hello = true;
	d->peers[0].principal = 0;
	d->now_us = d->started_us = loop_clock_us();
	selftest->places = d->limits.group[0].page_count[PLACE_HOST] + d->limits.group[0].page_count[PLACE_DISK];
	if (selftest->learning) {
		const uint32_t vocab = d->model->arch.vocab;
		for (unsigned i = 0; i < SESSIONS * TURNS; i++) {
			struct player *p = &selftest->player[i / TURNS];
			const unsigned t = i % TURNS;
			p->prompt_count[t] = 1 + (uint32_t)selftest_draw(t == 0 ? PROMPT_MAX : 40);
			for (uint32_t k = 0; k < p->prompt_count[t]; k++)
				p->prompt[t][k] = (uint32_t)selftest_draw(vocab);
		}
		TRY(selftest_round());
		return selftest_close();
	}
	TRY(inject_read(spec, &d->inject, why));
	d->inject.on = false;
	TRY(selftest_left());
	d->inject.on = spec[0] != 0;
	return spec[0] ? life_play() : 0;
}

/* What was made and found in the life that is over. Where it ended by itself, nothing may have stayed
   undetected of what a batch, a digest or a read must find. */
static void life_count(bool whole)
{
	struct selftest *t = selftest;
	const struct daemon *d = &t->daemon;
	const uint64_t *made = d->inject.made, *found = d->incidents;
	const uint64_t tags = made[INJECT_TAG_DEVICE] + made[INJECT_TAG_TABLE] + made[INJECT_SWAP] +
			      made[INJECT_DOUBLE] + made[INJECT_EARLY];
	for (unsigned k = 0; k < INJECT_COUNT; k++)
		t->kinds[k] += made[k];
	const uint64_t conflicts = made[INJECT_SKIP] + (t->rows ? t->world : 0);
	*(t->rows ? &t->kind_row : &t->kind_world) += t->world;
	t->by_tag += found[REASON_TAG];
	t->by_digest += found[REASON_DIGEST];
	t->by_lower += found[REASON_LOWER];
	/* One wrong row may be met with more than once, and a release that is not recorded is of many. */
	t->by_row += found[REASON_ROW] < conflicts ? found[REASON_ROW] : conflicts;
	if (whole && found[REASON_TAG] < tags)
		t->undetected += tags - found[REASON_TAG];
	if (whole && found[REASON_DIGEST] < made[INJECT_BITS_IDLE])
		t->undetected += made[INJECT_BITS_IDLE] - found[REASON_DIGEST];
	if (d->poke_steps_max > t->steps_to_detection)
		t->steps_to_detection = d->poke_steps_max;
}

static const char *said_path(void)
{
	static char path[96];
	snprintf(path, sizeof path, "%s/said", selftest->dir);
	return path;
}

/* What the last life said: of interest where it failed. */
static void said_show(void)
{
	char line[512];
	FILE *f = fopen(said_path(), "r");
	while (f && fgets(line, sizeof line, f))
		fputs(line, stderr);
	if (f)
		fclose(f);
}

/* ends: it may end by the fault that was asked for. */
static int life(const char *spec, bool ends)
{
	struct selftest *t = selftest;
	int status;
	memset(&t->daemon, 0, sizeof t->daemon);
	t->world = 0;
	t->code = -ERR_INTERNAL;
	t->lives++;
	fflush(NULL);
	const pid_t pid = fork();
	if (pid < 0)
		return -ERR_MEMORY;
	if (pid == 0) {
		if (freopen(said_path(), "w", stderr) == NULL)
			_exit(2);
		t->code = life_lead(spec);
		t->world = fault_made();
		daemon_inside_close(&t->daemon);
		_exit(t->code ? 1 : 0);
	}
	while (waitpid(pid, &status, 0) < 0)
		if (errno != EINTR)
			return -ERR_INTERNAL;
	const bool whole = WIFEXITED(status) && WEXITSTATUS(status) == 0;
	const bool killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
	life_count(whole);
	if (whole)
		return 0;
	if (!ends || !(killed || (WIFEXITED(status) && t->code == -ERR_IO)))
		return t->code ? t->code : -ERR_INTERNAL;
	/* A log that could not be written is among the disk's already. */
	t->kind_ends++;
	t->kind_world -= !killed;
	return 0;
}

/* The disk tier: each fault makes the page absent, or the page was never there. */
static int tier_play(uint64_t faults)
{
	enum { BYTES = 8192 };
	static uint8_t page[BYTES], back[BYTES];
	struct tier_options o = {.dir = selftest->dir, .group_count = 1, .group = {{BYTES, TIER_SLOTS}}};
	char reason[TIER_REASON_MAX];
	const char *why;
	struct tier *tier;
	TRY(tier_open(&o, &tier, reason, &why));
	for (uint64_t i = 0; i < faults; i++) {
		const uint32_t slot = (uint32_t)selftest_draw(TIER_SLOTS);
		struct tier_proof proof = {.chain = {i, selftest_draw(1u << 30)}, .content = {1, 1}, .tokens = 16};
		const bool writes = selftest_draw(2);
		for (unsigned k = 0; k < BYTES; k++)
			page[k] = (uint8_t)(i + k * 7);
		const struct fault f = {.point = writes ? FAULT_TIER_WRITE : FAULT_TIER_READ, .at = 1,
					.code = FAULT_HALF};
		fault_set(&f, 1);
		(void)tier_put(tier, 0, slot, &proof, page);
		const int code = tier_get(tier, 0, slot, &proof, back, &why);
		fault_set(NULL, 0);
		selftest->kind_tier++;
		selftest->by_proof += code != 0;
		selftest->undetected += code == 0 && memcmp(page, back, BYTES) != 0;
	}
	tier_close(&tier);
	return 0;
}

static void report(bool json, int code)
{
	const struct selftest *t = selftest;
	const uint64_t made = injected();
	const uint64_t detected = t->by_tag + t->by_digest + t->by_lower + t->by_row + t->by_proof;
	const uint64_t endured = t->kind_world + t->kind_ends + t->kinds[INJECT_COPY_LATE];
	const uint64_t outside = t->kinds[INJECT_BITS_LIVE];
	const uint64_t met = detected + endured + outside, silent = made > met ? made - met : 0;
	if (!json) {
		printf("faults made      %" PRIu64 ": ", made);
		for (unsigned k = 0; k < INJECT_COUNT; k++)
			if (t->kinds[k])
				printf("%" PRIu64 " %s, ", t->kinds[k], inject_name(k));
		printf("%" PRIu64 " row, %" PRIu64 " tier, %" PRIu64 " world, %" PRIu64 " crash\n",
		       t->kind_row, t->kind_tier, t->kind_world, t->kind_ends);
		printf("found            %" PRIu64 ": %" PRIu64 " by tag, %" PRIu64 " by digest, %" PRIu64
		       " by a page's proof, %" PRIu64 " on the way up, %" PRIu64 " by owner row\n",
		       detected, t->by_tag, t->by_digest, t->by_proof, t->by_lower, t->by_row);
		printf("not to be found  %" PRIu64 " endured, %" PRIu64 " in what nobody read again\n",
		       endured, silent);
		printf("undetected       %" PRIu64 "\n", t->undetected);
		printf("outside          %" PRIu64 " bits of pages that were being read: %" PRIu64 " other tokens\n",
		       outside, t->tokens_outside);
		printf("tokens           %" PRIu64 " sent, %" PRIu64 " wrong\nsessions lost    %" PRIu64 " over %"
		       PRIu64 " starts\n", t->tokens, t->tokens_wrong, t->sessions_lost, t->lives);
	}
	printf("{\"injected\": %" PRIu64 ", \"detected\": %" PRIu64 ", \"undetected\": %" PRIu64
	       ", \"endured\": %" PRIu64
	       ", \"unread\": %" PRIu64 ", \"outside\": %" PRIu64 ", \"by_tag\": %" PRIu64
	       ", \"by_digest\": %" PRIu64
	       ", \"by_proof\": %" PRIu64 ", \"by_copy\": %" PRIu64 ", \"by_row\": %" PRIu64 ", ",
	       made, detected, t->undetected, endured, silent, outside, t->by_tag, t->by_digest, t->by_proof,
	       t->by_lower, t->by_row);
	for (unsigned k = 0; k < INJECT_COUNT; k++)
		printf("\"%s\": %" PRIu64 ", ", inject_name(k), t->kinds[k]);
	printf("\"row\": %" PRIu64 ", \"crash\": %" PRIu64 ", \"tokens\": %" PRIu64 ", \"tokens_wrong\": %" PRIu64
	       ", \"tokens_outside\": %" PRIu64 ", \"sessions_lost\": %" PRIu64 ", \"starts\": %" PRIu64
	       ", \"steps_to_detection\": %" PRIu64
	       ", \"ok\": %s}\n", t->kind_row, t->kind_ends, t->tokens, t->tokens_wrong,
	       t->tokens_outside, t->sessions_lost, t->lives,
	       t->steps_to_detection, code == 0 ? "true" : "false");
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

/* What happens in one life; true: it may end there. */
static bool spec_draw(char *spec, size_t bytes)
{
	static const struct { const char *point, *what; unsigned within; } ends[] = {
		{"put", "crash", 900}, {"commit", "crash", 200}, {"committed", "crash", 200}, {"row", "crash", 2000},
		{"step", "crash", 4000}, {"batch", "crash", 3000}, {"accepted", "crash", 100}, {"keys", "crash", 20},
		{"tier-write", "crash", 100}, {"tier-read", "crash", 50}, {"commit", "eio", 300},
		{"put", "eio", 900}};
	int n = snprintf(spec, bytes,
		"tag-device/25,tag-table/25,swap/25,double-assign/25,early-free/25,bits-idle/3,"
		"skip-free/40,bits-host/4,bits-disk/4,copy-skip/6,copy-late/60,tier-write/199=eio,"
		"tier-write/499=enospc,tier-read/97=wait:20,commit/61=wait:30,commit/301=enospc,put/1501=enospc,"
		"seed=%" PRIu64, selftest_draw(1u << 30));
	if (selftest->live)
		n += snprintf(spec + n, bytes - (size_t)n, ",bits-live/%d", LIVE_ONE_IN);
	const bool one = selftest_draw(3) == 0;
	const unsigned which = (unsigned)selftest_draw(sizeof ends / sizeof ends[0]);
	if (one)
		snprintf(spec + n, bytes - (size_t)n, ",%s@%" PRIu64 "=%s", ends[which].point,
			 1 + selftest_draw(ends[which].within), ends[which].what);
	return one;
}

/* Owner rows with another tag than the log's. They are found when their page is met with again; those that
   are left, by the next start, which refuses the folder. It begins anew after that. */
static int rows_play(void)
{
	struct selftest *t = selftest;
	const uint64_t found = t->by_row, made = t->kind_row;
	char spec[64], state[96];
	snprintf(spec, sizeof spec, "row/%d=eio", ROW_EVERY);
	t->rows = true;
	const int lived = life(spec, false);
	t->rows = false;
	TRY(lived);
	const int code = life("", false);
	const uint64_t left = t->kind_row - made - (t->by_row - found);
	if (code != 0 && code != -ERR_INTEGRITY)
		return code;
	t->by_row += code ? left : 0;
	snprintf(state, sizeof state, "%s/state", t->dir);
	folder_remove(state);
	for (unsigned i = 0; i < SESSIONS; i++)
		t->player[i].opened = false;
	return 0;
}

static int test_run(uint64_t seed)
{
	char spec[1024];
	selftest->random = seed * 2 + 1;
	selftest->learning = true;
	TRY(life("", false));
	selftest->learning = false;
	TRY(tier_play(selftest->faults / TIER_SHARE));
	while (injected() < selftest->faults) {
		const uint64_t before = injected();
		if (selftest_draw(ROW_LIVES) == 0)
			TRY(rows_play());
		const bool ends = spec_draw(spec, sizeof spec);
		TRY(life(spec, ends));
		if (injected() == before && !ends)
			return -ERR_INTERNAL; /* a life without a fault: the spec does nothing */
	}
	/* What the last life left must be there as well. */
	TRY(life("", false));
	const struct selftest *t = selftest;
	return t->tokens_wrong || t->sessions_lost || t->refused || t->undetected ? -ERR_INTEGRITY : 0;
}

static int usage(FILE *to)
{
	fprintf(to, "usage: holdfastd selftest --model MODEL [--faults N] [--seed S] [--outside] [--json]\n"
		"       [option …]\n"
		"N faults (default 1000) on pages, tags, block tables, copies, the disk tier and the log,\n"
		"while sessions play known turns and the daemon is ended and started again; 0 when no wrong\n"
		"token left, no session was lost and nothing that had to be found was not. --outside also turns\n"
		"bits of pages while they are read, which nothing finds: counted apart. Other options are\n"
		"the daemon's; --host-memory and --disk-bytes are 16M each unless named.\n");
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
		if (strcmp(argv[i], "--outside") == 0) {
			selftest->live = true;
			continue;
		}
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
		*(faults ? &selftest->faults : seed) = n;
	}
	return 0;
}

/* What is named by the caller comes later and stands, but where faults go: into our own folder. */
static int options_take(char **rest, int count, char *state)
{
	static char *const fixed[] = {"--digest", "resume", "--log", "error", "--kv-memory", "0",
				      "--host-memory", "16M",
				      "--disk-bytes", "16M", "--disk-reserve", "0"};
	enum { FIXED = sizeof fixed / sizeof fixed[0] };
	char **with = calloc((size_t)count + FIXED + 3, sizeof *with);
	if (!with)
		return -ERR_MEMORY;
	int n = 0;
	with[n++] = rest[0];
	for (int i = 0; i < FIXED; i++)
		with[n++] = fixed[i];
	for (int i = 1; i < count; i++)
		with[n++] = rest[i];
	with[n++] = "--state";
	with[n++] = state;
	const int code = options_read(n, with, &selftest->options);
	free(with);
	if (code == 0 && selftest->options.kv_memory == 0)
		selftest->options.kv_memory = 64 << 20;
	return code;
}

int selftest_main(int argc, char **argv)
{
	uint64_t seed = 1;
	int count;
	selftest = mmap(NULL, sizeof *selftest, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	char **rest = calloc((size_t)argc + 1, sizeof *rest);
	if (selftest == MAP_FAILED || !rest) {
		free(rest);
		return 1;
	}
	selftest->faults = 1000;
	const int wrong = arguments_read(argc, argv, &seed, rest, &count);
	if (wrong) {
		free(rest);
		return usage(wrong < 0 ? stdout : stderr);
	}
	snprintf(selftest->dir, sizeof selftest->dir, "/tmp/holdfast-selftest.XXXXXX");
	if (mkdtemp(selftest->dir) == NULL) {
		fprintf(stderr, "holdfastd: selftest: no folder can be made in /tmp\n");
		free(rest);
		return 1;
	}
	char state[96];
	snprintf(state, sizeof state, "%s/state", selftest->dir);
	int code = options_take(rest, count, state);
	free(rest);
	if (code == 0) {
		code = test_run(seed);
		if (code)
			said_show();
		if (code)
			fprintf(stderr, "holdfastd: selftest: %s\n", err_text(code));
		report(selftest->options.json, code);
		code = code != 0;
	}
	folder_remove(state);
	folder_remove(selftest->dir);
	return code < 0 ? 0 : code;
}
