/*
 * The commands that go on looking: top, watch, and metrics; and the completion of shells, which is
 * printed from the same tables as the help.
 */
#include "config.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "clients/command.h"
#include "clients/item.h"

enum { BAR = 48, INTERVAL_MS = 1000, WATCHED_MAX = 1024, NAME = 33 };

static void pause_ms(const struct said *o)
{
	const uint32_t ms = o->interval_ms ? o->interval_ms : INTERVAL_MS;
	const struct timespec t = {ms / 1000, (long)(ms % 1000) * 1000000};
	fflush(stdout);
	nanosleep(&t, NULL);
}

static uint64_t number_of(struct wire_value map, const char *key)
{
	uint64_t n = 0;
	wire_get_u64(wire_find(map, key), &n);
	return n;
}

/* One account as a bar: who holds how much of it. */
static void print_bar(const char *name, struct wire_value account)
{
	static const struct { const char *key; char mark; } parts[] = {
		{"running", '#'}, {"retained", '='}, {"shared", '+'}, {"moving", '>'},
		{"promised", '.'}, {"doomed", 'x'}, {"free", ' '}};
	uint64_t all = 0, sum = 0;
	for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
		all += number_of(account, parts[i].key);
	if (all == 0)
		return;
	printf("%-8s [", name);
	for (size_t i = 0, at = 0; i < sizeof parts / sizeof parts[0]; i++) {
		sum += number_of(account, parts[i].key);
		for (const size_t to = (size_t)((double)sum / (double)all * BAR + 0.5); at < to; at++)
			putchar(parts[i].mark);
	}
	printf("] %.1f of %.1f MiB\n", (double)(all - number_of(account, "free")) / (1 << 20),
		(double)all / (1 << 20));
}

static void print_top(struct wire_value health, struct wire_value ledger, struct wire_value sessions,
	double rate)
{
	static const char *const accounts[] = {"device", "host", "disk", "stream"};
	struct wire_str state = {"", 0};
	wire_get_str(wire_find(health, "state"), &state);
	print_text(stdout, state.at, state.length);
	printf(": %" PRIu64 " turns run, %" PRIu64 " wait, %" PRIu64 " sessions, %.1f tokens a second\n",
		number_of(health, "turns_running"), number_of(health, "turns_waiting"),
		number_of(health, "sessions"), rate);
	for (size_t i = 0; i < sizeof accounts / sizeof accounts[0]; i++)
		print_bar(accounts[i], wire_find(wire_find(ledger, "accounts"), accounts[i]));
	puts("         # running  = retained  + shared  > moving  . promised\n");
	print_sessions(sessions);
}

/* Clears what was there on a terminal; elsewhere the pictures follow each other. */
int command_top(struct said *o)
{
	const bool live = isatty(1) && !o->json;
	uint64_t before = 0, count = o->count_said ? o->count : live ? UINT64_MAX : 1;
	uint64_t at = 0;
	for (uint64_t i = 0; i < count; i++) {
		struct hf_end health, ledger, sessions;
		struct timespec t;
		int code = hf_health(o->client, &health);
		code = code ? (hf_ledger_show(o->client, &ledger), code) : hf_ledger_show(o->client, &ledger);
		const int last = hf_session_list(o->client, 0, WIRE_COUNT_MAX, &sessions);
		code = code ? code : last;
		clock_gettime(CLOCK_MONOTONIC, &t);
		const uint64_t now = (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
		const struct wire_value h = {health.packed, health.packed_bytes};
		const uint64_t tokens = code ? 0 : number_of(h, "tokens_sampled");
		const double rate = at && now > at ? (double)(tokens - before) * 1000 / (double)(now - at) : 0;
		if (code == 0 && o->json)
			printf("{\"health\":%s,\"ledger\":%s,\"sessions\":%s}\n", health.json, ledger.json,
				sessions.json);
		else if (code == 0)
			fputs(live ? "\033[H\033[2J" : i ? "\n" : "", stdout);
		if (code == 0 && !o->json)
			print_top(h, (struct wire_value){ledger.packed, ledger.packed_bytes},
				(struct wire_value){sessions.packed, sessions.packed_bytes}, rate);
		before = tokens;
		at = now;
		int exit = code ? say_error(o, code, code == last ? &sessions : &health) : EXIT_DONE;
		hf_end_free(&health);
		hf_end_free(&ledger);
		hf_end_free(&sessions);
		if (code || ferror(stdout))
			return exit;
		if (i + 1 < count)
			pause_ms(o);
	}
	return EXIT_DONE;
}

/* A session as watch saw it last. */
struct watched {
	char id[NAME], state[NAME];
	uint64_t resident, turn;
	bool here;
};

static void say_change(const struct said *o, const char *id, const char *what, const char *from,
	const char *to)
{
	char clock[16];
	time_t now = time(NULL);
	struct tm tm;
	strftime(clock, sizeof clock, "%H:%M:%S", localtime_r(&now, &tm));
	if (o->json)
		printf("{\"time\":%lld,\"session\":\"%s\",\"event\":\"%s\",\"from\":\"%s\",\"to\":\"%s\"}\n",
			(long long)now, id, what, from, to);
	else
		printf("%s  %s  %-9s %s%s%s\n", clock, id, what, from, *from && *to ? " -> " : "", to);
}

static struct watched *watched_find(struct watched *list, uint32_t *count, const char *id, bool *fresh)
{
	for (uint32_t i = 0; i < *count; i++)
		if (strcmp(list[i].id, id) == 0)
			return *fresh = false, &list[i];
	if (*count == WATCHED_MAX)
		return NULL;
	struct watched *w = &list[(*count)++];
	*w = (struct watched){.here = true};
	snprintf(w->id, sizeof w->id, "%s", id);
	return *fresh = true, w;
}

static void watch_one(const struct said *o, struct watched *list, uint32_t *count, struct wire_value row,
	bool first)
{
	struct wire_bin id = {NULL, 0};
	struct wire_str state = {"", 0};
	struct hf_id key;
	char text[NAME], now[NAME], numbers[2][24];
	bool fresh;
	if (!wire_get_bin(wire_find(row, "sess"), &id) || id.length != sizeof key.bytes)
		return;
	memcpy(key.bytes, id.at, sizeof key.bytes);
	hf_id_text(&key, text);
	wire_get_str(wire_find(row, "state"), &state);
	snprintf(now, sizeof now, "%.*s", (int)(state.length < NAME ? state.length : NAME - 1), state.at);
	struct watched *w = watched_find(list, count, text, &fresh);
	if (!w)
		return;
	const uint64_t resident = number_of(row, "resident"), turn = number_of(row, "turn");
	if (fresh && !first)
		say_change(o, text, "opened", "", now);
	else if (!fresh && strcmp(w->state, now) != 0)
		say_change(o, text, "state", w->state, now);
	if (!fresh && turn == w->turn && resident < w->resident) {
		snprintf(numbers[0], sizeof numbers[0], "%" PRIu64, w->resident);
		snprintf(numbers[1], sizeof numbers[1], "%" PRIu64, resident);
		say_change(o, text, "demoted", numbers[0], numbers[1]);
	}
	snprintf(w->state, sizeof w->state, "%s", now);
	w->resident = resident;
	w->turn = turn;
	w->here = true;
}

int command_watch(struct said *o)
{
	static struct watched list[WATCHED_MAX];
	const uint64_t most = o->count_said ? o->count : UINT64_MAX;
	uint32_t count = 0;
	for (uint64_t i = 0; i < most; i++) {
		struct hf_end end;
		struct wire_value row;
		struct walk w;
		const int code = hf_session_list(o->client, 0, WIRE_COUNT_MAX, &end);
		if (code) {
			const int exit = say_error(o, code, &end);
			return hf_end_free(&end), exit;
		}
		for (uint32_t k = 0; k < count; k++)
			list[k].here = false;
		walk_init(&w, (struct wire_value){end.packed, end.packed_bytes});
		while (walk_next(&w, &row))
			watch_one(o, list, &count, row, i == 0);
		for (uint32_t k = 0; k < count;) {
			if (!list[k].here) {
				say_change(o, list[k].id, "closed", list[k].state, "");
				list[k] = list[--count];
			} else {
				k++;
			}
		}
		hf_end_free(&end);
		if (ferror(stdout))
			break;
		if (i + 1 < most)
			pause_ms(o);
	}
	return EXIT_DONE;
}

int command_metrics(struct said *o)
{
	struct hf_end end;
	struct wire_str text = {NULL, 0};
	const int code = hf_metrics(o->client, &end);
	int exit = EXIT_DONE;
	if (code)
		exit = say_error(o, code, &end);
	else if (o->json)
		puts(end.json);
	else if (wire_get_str(wire_find((struct wire_value){end.packed, end.packed_bytes}, "text"), &text))
		print_text(stdout, text.at, text.length);
	hf_end_free(&end);
	return exit;
}
