/*
 * What the daemon says of itself: top, again and again, and metrics.
 */
#include "config.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "clients/command.h"

enum {
	BAR = 48, INTERVAL_MS = 1000,
	ROWS_ABOVE = 9, /* of the sessions, and one for the cursor */
	ROWS_BROKEN = 2, /* more of them, where the terminal is narrower than COLUMNS */
	COLUMNS = 76
};

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
	char figures[64];
	for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
		all += number_of(account, parts[i].key);
	if (all == 0)
		return;
	const int taken = 11 + snprintf(figures, sizeof figures, " %.1f of %.1f MiB",
		(double)(all - number_of(account, "free")) / (1 << 20), (double)all / (1 << 20));
	const int room = columns_of_terminal() - taken, bar = room < 1 ? 1 : room < BAR ? room : BAR;
	printf("%-8s [", name);
	for (size_t i = 0, at = 0; i < sizeof parts / sizeof parts[0]; i++) {
		sum += number_of(account, parts[i].key);
		for (const size_t to = (size_t)((double)sum / (double)all * bar + 0.5); at < to; at++)
			putchar(parts[i].mark);
	}
	printf("]%s\n", figures);
}

static void print_top(struct wire_value health, struct wire_value ledger, struct wire_value sessions,
	double rate)
{
	static const char *const accounts[] = {"device", "host", "disk", "stream"};
	const char *between = columns_of_terminal() < COLUMNS ? "\n" : "";
	struct wire_str state = {"", 0};
	wire_get_str(wire_find(health, "state"), &state);
	print_text(stdout, state.at, state.length);
	printf(": %" PRIu64 " turns run, %" PRIu64 " wait,%s %" PRIu64 " sessions, %.1f tokens a second\n",
		number_of(health, "turns_running"), number_of(health, "turns_waiting"), between,
		number_of(health, "sessions"), rate);
	for (size_t i = 0; i < sizeof accounts / sizeof accounts[0]; i++)
		print_bar(accounts[i], wire_find(wire_find(ledger, "accounts"), accounts[i]));
	printf("         # running  = retained  + shared%s%s  > moving  . promised\n\n", between,
		*between ? "       " : "");
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
		/* What a terminal has no room for would push the rest out. */
		const int rows = rows_of_terminal() - ROWS_ABOVE -
				 (columns_of_terminal() < COLUMNS ? ROWS_BROKEN : 0);
		const int last = hf_session_list(o->client, 0, !live ? WIRE_COUNT_MAX : rows > 1 ? (uint64_t)rows : 1,
						 &sessions);
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
