/*
 * The command watch: a line for each event of a session, as the daemon tells it.
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

enum { LOOK_MS = 1000 };

/* What every event has, and what is printed in a place of its own. */
static bool known_key(const char *key)
{
	static const char *const keys[] = {"seq", "ms", "boot", "principal", "event", "sess", "turn"};
	for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
		if (strcmp(keys[i], key) == 0)
			return true;
	return false;
}

static void print_event(struct wire_value v)
{
	struct wire_str event = {"", 0}, text;
	struct wire_bin id = {NULL, 0};
	struct wire_value key, value;
	struct walk w;
	uint64_t ms = 0, number;
	char clock[16], session[33] = "";
	struct tm tm;
	struct hf_id as;
	wire_get_u64(wire_find(v, "ms"), &ms);
	const time_t seconds = (time_t)(ms / 1000);
	strftime(clock, sizeof clock, "%H:%M:%S", localtime_r(&seconds, &tm));
	wire_get_str(wire_find(v, "event"), &event);
	if (wire_get_bin(wire_find(v, "sess"), &id) && id.length == sizeof as.bytes) {
		memcpy(as.bytes, id.at, sizeof as.bytes);
		hf_id_text(&as, session);
	}
	printf("%s  %s  ", clock, session);
	print_text(stdout, event.at, event.length);
	walk_init(&w, v);
	while (walk_next(&w, &key) && walk_next(&w, &value)) {
		char name[ITEM_KEY_MAX + 1] = "";
		if (!wire_get_str(key, &text) || text.length > ITEM_KEY_MAX)
			continue;
		memcpy(name, text.at, text.length);
		if (known_key(name))
			continue;
		printf("  %s ", name);
		if (wire_get_str(value, &text))
			print_text(stdout, text.at, text.length);
		else if (wire_get_u64(value, &number))
			printf("%" PRIu64, number);
	}
	putchar('\n');
}

/* A socket file that is not there says at once what an endless wait would not. */
static int where(const struct said *o, char *out, size_t capacity)
{
	char endpoint[512];
	if (o->events) {
		snprintf(out, capacity, "%s", o->events);
	} else {
		if (!o->endpoint && wire_default_endpoint(endpoint, sizeof endpoint) != 0)
			return say_usage(o, "where to? --events ENDPOINT");
		snprintf(out, capacity, "%s-events", o->endpoint ? o->endpoint : endpoint);
		if (strncmp(out, "tcp:", 4) == 0)
			return say_usage(o, "over TCP the events have an endpoint of their own: --events ENDPOINT");
	}
	if (strncmp(out, "ipc://", 6) != 0 || access(out + 6, F_OK) == 0)
		return EXIT_DONE;
	fprintf(stderr, "holdfast: watch: no events are told at %s\n", out);
	return EXIT_FAILED;
}

int command_watch(struct said *o)
{
	const uint64_t most = o->count_said ? o->count : UINT64_MAX;
	struct hf_events *events;
	struct hf_event e;
	char at[600];
	int exit = where(o, at, sizeof at), code;
	if (exit != EXIT_DONE)
		return exit;
	code = hf_events_open(o->client, at, &events);
	for (uint64_t i = 0; code == 0 && i < most && !ferror(stdout);) {
		code = hf_events_next(events, LOOK_MS, &e);
		if (code == -ERR_TIMEOUT) {
			/* Is anybody there? */
			struct hf_end end;
			code = hf_health(o->client, &end);
			hf_end_free(&end);
			continue;
		}
		if (code)
			break;
		if (o->json)
			puts(e.json);
		else
			print_event((struct wire_value){e.packed, e.packed_bytes});
		fflush(stdout);
		i++;
	}
	if (code)
		exit = say_error(o, code, NULL);
	hf_events_close(&events);
	return exit;
}
