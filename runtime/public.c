/*
 * Public prefixes: beginnings of sessions that an operator names in a file, so that all users share
 * their pages. They belong to the principal `public`, which nobody comes in as: the daemon opens a
 * session of its own for each, pinned, and computes it when it starts.
 *
 * The file is one JSON object, or an array of them: {"system": TEXT, "tools": [TOOL, …]}, either may be
 * missing. A tool is an object, taken as it is written, or a string with the text of one. What clients
 * open their sessions with must be the same to the byte, or their tokens are others.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/daemon.h"
#include "runtime/json.h"

enum { FILE_BYTES_MAX = 4 << 20, PREFIXES_MAX = 64 };

bool public_is(const struct daemon *d, uint32_t principal)
{
	return d->limits.public_principal && principal + 1 == d->limits.public_principal;
}

uint32_t principals_all(const struct daemon *d)
{
	return (uint32_t)d->options.principals + (d->limits.public_principal != 0);
}

static int refuse(const struct daemon *d, const char *why)
{
	log_say(LOG_ERROR, "--public-prefix %s: %s", d->options.public_prefix, why);
	return -ERR_BAD_ARG;
}

/* A string's bytes go to *room, which moves on. */
static struct wire_str text_take(struct json string, char **room)
{
	const struct wire_str text = {*room, json_string(string, *room)};
	*room += text.length;
	return text;
}

/* room: as many bytes as the file has. Returns why it is none, or NULL. */
static const char *head_read(struct json head, char **room, struct wire_args *a)
{
	struct json_walk walk = json_walk(head);
	struct json key, value, tool;
	memset(a, 0, sizeof *a);
	if (json_kind(head) != JSON_OBJECT)
		return "a prefix is an object with system, tools or both";
	while (json_next(&walk, &key, &value)) {
		if (json_equals(key, "system", 6) && json_kind(value) == JSON_STRING) {
			a->system = text_take(value, room);
			continue;
		}
		if (!json_equals(key, "tools", 5) || json_kind(value) != JSON_ARRAY)
			return "a prefix has a text \"system\" and an array \"tools\", and nothing else";
		struct json_walk tools = json_walk(value);
		for (a->tool_count = 0; json_next(&tools, NULL, &tool); a->tool_count++) {
			if (a->tool_count == WIRE_TOOLS_MAX)
				return "too many tools";
			if (json_kind(tool) == JSON_OBJECT)
				a->tools[a->tool_count] = (struct wire_str){tool.at, tool.length};
			else if (json_kind(tool) == JSON_STRING)
				a->tools[a->tool_count] = text_take(tool, room);
			else
				return "a tool is an object, or a string";
		}
	}
	return a->system.at || a->tool_count ? NULL : "a prefix has system, tools or both";
}

/* A turn of one token, read by nobody, computes what the session begins with. */
static int head_compute(struct daemon *d, uint32_t slot)
{
	struct session *s = &d->sessions[slot];
	uint32_t call = 0;
	while (call < d->options.calls && d->calls[call].state != CALL_FREE)
		call++;
	if (call == d->options.calls)
		return refuse(d, "no call is left for it (--calls)");
	call_reset(d, call);
	struct call *c = &d->calls[call];
	c->principal = s->principal;
	c->session = slot;
	c->method = METHOD_SESSION_TURN;
	c->detach_us = 1; /* nobody will read it, and it is not to be cancelled for that */
	c->forget_us = UINT64_MAX;
	c->progress_us = c->began_us = d->now_us;
	c->note_us = UINT64_MAX;
	c->output_max = 1;
	c->prompt = s->history;
	c->tool_us = WIRE_NONE;
	c->sampling = (struct wire_sampling){.max_tokens = 1, .top_p = 1, .typical = 1, .repetition = 1};
	s->mark[s->mark_count++] = (struct turn_mark){.start = 0, .output = s->history, .before = s->state};
	turn_restart(d, call);
	return 0;
}

static int prefix_open(struct daemon *d, const struct wire_args *a)
{
	const uint32_t principal = d->limits.public_principal - 1, span = d->limits.page_tokens;
	const uint32_t slot = session_take(d, principal);
	if (slot == NONE)
		return refuse(d, "no session is left for it (--sessions)");
	struct session *s = &d->sessions[slot];
	if (session_head(d, s, a) != 0 || s->history == 0) {
		session_drop(d, slot);
		return refuse(d, "it cannot be rendered with this model's template, or is longer than a context");
	}
	snprintf(s->label, sizeof s->label, "public");
	const uint64_t bytes = (s->history + span) / span * d->limits.group[0].page_bytes;
	const struct event e = {
		.kind = EVENT_OPEN, .session = SCHED_NONE, .turn = SCHED_NONE, .principal = principal,
		.now_us = d->now_us, .session_key = slot,
		.as.residency = {.kind = RESIDENCY_PINNED, .bytes = bytes}};
	step(d, &e, NULL);
	CHECK(step_granted.err == 0); /* a session was free, and a grant is only ever clipped */
	s->sched = step_granted.session;
	if (step_granted.bytes < bytes)
		log_say(LOG_NOTICE, "--public-prefix: %llu of %llu bytes could be pinned",
			(unsigned long long)step_granted.bytes, (unsigned long long)bytes);
	log_say(LOG_NOTICE, "a public prefix of %u tokens", s->history);
	return head_compute(d, slot);
}

static int file_read(const struct daemon *d, char **text, size_t *length)
{
	FILE *file = fopen(d->options.public_prefix, "re");
	if (!file)
		return refuse(d, strerror(errno));
	*text = malloc(FILE_BYTES_MAX + 1);
	*length = *text ? fread(*text, 1, FILE_BYTES_MAX + 1, file) : 0;
	const bool failed = ferror(file) || !*text;
	fclose(file);
	if (failed)
		return refuse(d, "it cannot be read");
	return *length > FILE_BYTES_MAX ? refuse(d, "it is too large") : 0;
}

int public_open(struct daemon *d)
{
	static struct wire_args args;
	char *text = NULL, *strings = NULL;
	size_t length = 0;
	struct json all, head;
	int code = 0;
	if (!d->limits.public_principal)
		return 0;
	if (!chains_share(d))
		return refuse(d, "nothing is shared with --share no, nor where layers have windows, unless with "
				 "--windows keep");
	code = file_read(d, &text, &length);
	if (!code && json_check(text, length, &all) != 0)
		code = refuse(d, "it is not JSON");
	if (!code && !(strings = malloc(length + 1)))
		code = -ERR_MEMORY;
	if (code)
		goto out;
	const bool many = json_kind(all) == JSON_ARRAY;
	struct json_walk walk = json_walk(all);
	uint32_t count = 0;
	for (head = all; !code && (many ? json_next(&walk, NULL, &head) : count == 0); count++) {
		char *room = strings;
		const char *why = head_read(head, &room, &args);
		if (count == PREFIXES_MAX)
			why = "too many prefixes";
		code = why ? refuse(d, why) : prefix_open(d, &args);
	}
out:
	free(strings);
	free(text);
	return code;
}
