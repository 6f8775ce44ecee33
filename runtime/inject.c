/*
 * The reading of a fault specification, and the chances.
 */
#include "config.h"

#include "runtime/inject.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/fault.h"
#include "sched/check.h"

enum { SPEC_MAX = 1024 };

static const char *const names[INJECT_COUNT] = {
	"tag-device", "tag-table", "swap", "double-assign", "early-free", "skip-free", "bits-idle", "bits-live",
	"bits-host", "bits-disk", "copy-skip", "copy-late",
};

const char *inject_name(enum inject_kind kind)
{
	return (unsigned)kind < INJECT_COUNT ? names[kind] : "";
}

static bool number(const char **at, uint64_t *out)
{
	char *end;
	if (**at < '0' || **at > '9')
		return false;
	errno = 0;
	*out = strtoull(*at, &end, 10);
	*at = end;
	return errno == 0;
}

static bool what_read(const char *at, struct fault *f)
{
	uint64_t ms;
	if (strcmp(at, "eio") == 0)
		f->code = EIO;
	else if (strcmp(at, "enospc") == 0)
		f->code = ENOSPC;
	else if (strcmp(at, "half") == 0)
		f->code = FAULT_HALF;
	else if (strcmp(at, "crash") == 0)
		f->crash = true;
	else if (strncmp(at, "wait:", 5) == 0 && (at += 5, number(&at, &ms)) && *at == 0 && ms <= 600000)
		f->wait_ms = (uint32_t)ms;
	else
		return false;
	return true;
}

/* NAME@N or NAME/N, and for a point what shall happen. */
static bool item_read(const char *item, struct inject *out, struct fault *table, unsigned *count)
{
	const size_t length = strcspn(item, "@/=");
	const char *at = item + length;
	uint64_t n = 0;
	if (length == 4 && memcmp(item, "seed", 4) == 0 && *at == '=')
		return at++, number(&at, &out->random) && *at == 0;
	if (*at != '@' && *at != '/')
		return false;
	const bool once = *at++ == '@';
	if (!number(&at, &n) || n == 0 || n > UINT32_MAX)
		return false;
	for (unsigned i = 0; i < INJECT_COUNT; i++)
		if (strlen(names[i]) == length && memcmp(names[i], item, length) == 0) {
			*(once ? &out->rule[i].at : &out->rule[i].one_in) = (uint32_t)n;
			return *at == 0;
		}
	for (unsigned i = 0; i < FAULT_COUNT; i++) {
		const char *name = fault_name((enum fault_point)i);
		if (strlen(name) != length || memcmp(name, item, length) != 0 || *count == FAULT_TABLE_MAX)
			continue;
		struct fault *f = &table[(*count)++];
		*f = (struct fault){.point = (enum fault_point)i, .at = (uint32_t)n,
				    .every = once ? 0 : (uint32_t)n};
		return *at == '=' && what_read(at + 1, f);
	}
	return false;
}

int inject_read(const char *spec, struct inject *out, char *reason)
{
	struct fault table[FAULT_TABLE_MAX];
	char text[SPEC_MAX];
	unsigned count = 0, place = 0;
	*out = (struct inject){.random = 1};
	if (spec == NULL || spec[0] == 0)
		return 0;
	if (strlen(spec) >= sizeof text) {
		snprintf(reason, INJECT_REASON_MAX, "it is longer than %d bytes", SPEC_MAX - 1);
		return -ERR_BAD_ARG;
	}
	snprintf(text, sizeof text, "%s", spec);
	for (char *item = text; item != NULL;) {
		char *comma = strchr(item, ',');
		if (comma)
			*comma++ = 0;
		place++;
		if (!item_read(item, out, table, &count)) {
			snprintf(reason, INJECT_REASON_MAX, "item %u is not one of NAME@N, NAME/N, "
				 "POINT@N=WHAT, POINT/N=WHAT, seed=N", place);
			return -ERR_BAD_ARG;
		}
		item = comma;
	}
	out->on = true;
	out->random = out->random * 6364136223846793005u + 1442695040888963407u;
	fault_set(table, count);
	return 0;
}

uint64_t inject_random(struct inject *inject, uint64_t below)
{
	CHECK(below > 0);
	inject->random = inject->random * 6364136223846793005u + 1442695040888963407u;
	return (inject->random >> 20) % below;
}

bool inject_now(struct inject *inject, enum inject_kind kind)
{
	if (!inject->on)
		return false;
	const uint32_t chance = ++inject->rule[kind].chances, one_in = inject->rule[kind].one_in;
	const bool now = chance == inject->rule[kind].at ||
			 (one_in != 0 && inject_random(inject, one_in) == 0);
	inject->made[kind] += now;
	return now;
}
