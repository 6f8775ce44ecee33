/*
 * Records of the audit log, as people and programs read them.
 */
#include "config.h"

#include "runtime/audit_say.h"

#include <arpa/inet.h>
#include <inttypes.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "runtime/json.h"

static const char *const kinds[STORE_KIND_COUNT] = {
	"boot", "shutdown", "assign", "share", "free", "quarantine", "session_open", "session_close",
	"turn_end", "incident", "config", "step_end", "forget", "archive", "auth", "move",
};
static const char *const incidents[REASON_COUNT] = {"tag", "digest", "row", "beacon", "invariant", "lower",
							"device", "stuck"};
static const char *const lost[] = {"", "pressure", "lease", "quarantine", "copy", "park", "policy"};
static const char *const auths[AUTH_REASONS] = {"key", "user", "revoked", "act_as", "role", "session", "call",
						    "routing_id"};
static const char *const configs[CONFIG_REASONS] = {
	"", "disk_model", "disk_plan", "disk_refused", "disk_anew", "options", "model", "plan", "tenants",
	"tenant", "reload", "reload_refused", "model_changed", "plan_changed"};

static const char *const places[] = {"device", "host", "disk"};

/* The other place of a page that moved. */
static bool moved(const struct store_record *r)
{
	return r->kind == STORE_MOVE || (r->kind == STORE_ASSIGN && r->reason == ASSIGN_MOVED) ||
	       (r->kind == STORE_FREE && r->reason == FREE_MOVED);
}

static const char *place_name(uint64_t place)
{
	return place < sizeof places / sizeof places[0] ? places[place] : "other";
}

static const char *name_of(const char *const *names, size_t count, uint8_t reason)
{
	return reason < count ? names[reason] : "other";
}

static const char *reason_name(const struct store_record *r)
{
	switch (r->kind) {
	case STORE_INCIDENT: return name_of(incidents, REASON_COUNT, r->reason);
	case STORE_AUTH: return name_of(auths, AUTH_REASONS, r->reason);
	case STORE_CONFIG: return name_of(configs, CONFIG_REASONS, r->reason);
	case STORE_ASSIGN: /* zeroed: before it was given, since another principal had it */
		return r->reason == ASSIGN_MOVED ? "moved" : r->reason ? "zeroed" : "";
	case STORE_FREE:
		if (r->reason == FREE_MOVED)
			return "moved";
		return name_of(lost, sizeof lost / sizeof lost[0], r->reason);
	default: return name_of(lost, sizeof lost / sizeof lost[0], r->reason);
	}
}

static void time_text(uint64_t ns, char out[40])
{
	const time_t s = (time_t)(ns / 1000000000);
	struct tm tm;
	char text[24];
	gmtime_r(&s, &tm);
	strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", &tm);
	snprintf(out, 40, "%s.%03uZ", text, (unsigned)(ns / 1000000 % 1000));
}

static void id_text(const uint8_t id[16], char out[33])
{
	static const uint8_t none[16];
	out[0] = 0;
	if (memcmp(id, none, sizeof none) != 0)
		sodium_bin2hex(out, 33, id, 16);
}

/* What a refusal and a configuration have in these fields is no session and no call. */
static bool session_is(const struct store_record *r)
{
	return r->kind != STORE_CONFIG && (r->kind != STORE_AUTH || r->reason > AUTH_USER);
}

/* From where: a user of this machine, or an address. */
static void from_text(const struct store_record *r, char out[64])
{
	static const uint8_t four[12] = {[10] = 0xff, [11] = 0xff};
	const bool old = memcmp(r->session, four, sizeof four) == 0;
	if (r->reason == AUTH_USER)
		snprintf(out, 64, "uid %u, process %u", r->turn, r->group);
	else if (!inet_ntop(old ? AF_INET : AF_INET6, r->session + (old ? 12 : 0), out, 64))
		out[0] = 0;
}

/* Letters, digits, - and _, as the file of tenants has them; what is crafted is not shown. */
static void tenant_text(const struct store_record *r, char out[17])
{
	memcpy(out, r->op, 16);
	out[16] = 0;
	for (char *at = out; *at; at++)
		if ((unsigned char)*at <= ' ' || *at == '"' || *at == '\\' || (unsigned char)*at >= 0x7f)
			*at = '?';
}

static void digest_text(const struct store_record *r, char out[65])
{
	id_text(r->op, out);
	id_text(r->session, out + strlen(out)); /* 2 × 32 at most */
}

static void text_json(const char *text)
{
	struct json_out out = {0};
	if (json_write_string(text, strlen(text), &out) == 0)
		printf("%.*s", (int)out.length, out.bytes);
	else
		printf("\"\"");
	free(out.bytes);
}

static void auth_json(const struct store_record *r)
{
	char from[64] = "", key[33] = "";
	if (!session_is(r)) {
		from_text(r, from);
		id_text(r->op, key);
	}
	printf(", \"tenant\": %u, \"left_out\": %" PRIu64 ", \"from\": \"%s\", \"key\": \"%s\"", r->place,
	       r->value[0], from, key);
}

static void config_json(const struct store_record *r)
{
	char digest[65], name[17];
	if (r->reason == CONFIG_TENANT) {
		tenant_text(r, name);
		printf(", \"tenant\": %u, \"name\": \"%s\", \"grants\": %" PRIu64, r->place, name, r->value[1]);
		return;
	}
	digest_text(r, digest);
	if (r->reason > CONFIG_DISK_ANEW)
		printf(", \"digest\": \"%s\"", digest);
	if (r->reason == CONFIG_RELOAD)
		printf(", \"added\": %u, \"removed\": %u, \"changed\": %u, \"restart\": %s", r->turn, r->group,
		       r->position_first, r->place ? "true" : "false");
	if (r->reason >= CONFIG_TENANTS && r->reason <= CONFIG_RELOAD_REFUSED)
		printf(", \"tenants\": %" PRIu64 ", \"grants\": %" PRIu64, r->value[0], r->value[1]);
}

static void record_json(const struct store_read_entry *e, const struct store_record *r)
{
	char when[40], session[33] = "", op[33] = "", principal[16] = "null";
	time_text(e->wall_ns, when);
	if (session_is(r)) {
		id_text(r->session, session);
		id_text(r->op, op);
	}
	if (r->principal != UINT32_MAX)
		snprintf(principal, sizeof principal, "%u", r->principal);
	printf("{\"seq\": %" PRIu64 ", \"time\": \"%s\", \"boot\": %u, \"step\": %" PRIu64 ", \"kind\": \"%s\", "
	       "\"reason\": \"%s\", \"principal\": %s, \"session\": \"%s\", \"op\": \"%s\", \"turn\": %u, "
	       "\"place\": %u, \"group\": %u, \"page\": %u, \"pages\": %u, \"position\": %u, \"tag\": %" PRIu64
	       ", \"value\": [%" PRIu64 ", %" PRIu64 "]",
	       e->seq, when, e->boot, e->step, kinds[r->kind], reason_name(r), principal, session, op, r->turn,
	       r->place, r->group, r->page_first, r->page_count, r->position_first, r->tag_first, r->value[0],
	       r->value[1]);
	if (moved(r))
		printf(", \"%s\": {\"place\": \"%s\", \"page\": %u, \"tag\": %" PRIu64 "}",
		       r->kind == STORE_ASSIGN ? "from" : "to", place_name(r->value[0] >> 32), (uint32_t)r->value[0],
		       r->value[1]);
	if (r->kind == STORE_AUTH)
		auth_json(r);
	if (r->kind == STORE_CONFIG)
		config_json(r);
	if (r->kind == STORE_BOOT) {
		printf(", \"unclean\": %s, \"options\": ", e->unclean ? "true" : "false");
		text_json(e->config);
	}
	printf("}\n");
}

/* In place of the columns of pages. */
static void words_line(const struct store_read_entry *e, const struct store_record *r)
{
	char a[65] = "", b[64] = "";
	if (r->kind == STORE_BOOT) {
		for (const char *at = e->config; *at; at++)
			putchar((unsigned char)*at < ' ' || *at == 0x7f ? '?' : *at);
	} else if (r->kind == STORE_AUTH) {
		if (!session_is(r))
			from_text(r, b);
		id_text(r->reason == AUTH_KEY || r->reason == AUTH_CALL ? r->op : r->session, a);
		if (r->reason == AUTH_USER)
			a[0] = 0;
		printf("tenant %u  ", r->place);
		if (r->principal != UINT32_MAX)
			printf("principal %u  ", r->principal);
		printf("%s%s%s", b, a[0] && b[0] ? "  " : "", a);
		if (r->value[0])
			printf("  and %" PRIu64 " before it left out", r->value[0]);
	} else if (r->reason == CONFIG_TENANT) {
		tenant_text(r, a);
		printf("tenant %u is %s, %" PRIu64 " grants", r->place, a, r->value[1]);
	} else if (r->reason <= CONFIG_DISK_ANEW) {
		printf("%" PRIu64 " pages", r->value[0]);
	} else {
		digest_text(r, a);
		printf("%s", a);
		if (r->reason == CONFIG_RELOAD)
			printf("  %u grants added, %u removed, %u tenants with other limits", r->turn, r->group,
			       r->position_first);
	}
}

static void record_line(const struct store_read_entry *e, const struct store_record *r)
{
	char when[40], session[33], pages[40] = "", other[64] = "";
	time_text(e->wall_ns, when);
	if (r->kind == STORE_BOOT || r->kind == STORE_AUTH || r->kind == STORE_CONFIG) {
		printf("%10" PRIu64 "  %s  %-13s %-10s ", e->seq, when, kinds[r->kind], reason_name(r));
		words_line(e, r);
		putchar('\n');
		return;
	}
	id_text(r->session, session);
	if (r->page_count)
		snprintf(pages, sizeof pages, "%u..%u", r->page_first, r->page_first + r->page_count - 1);
	if (moved(r))
		snprintf(other, sizeof other, "%s %s page %u%s", r->kind == STORE_ASSIGN ? "from" : "to",
			 place_name(r->value[0] >> 32), (uint32_t)r->value[0],
			 r->kind != STORE_MOVE ? "" : r->place == 1 ? ", it was on the host" : ", it was on the disk");
	printf("%10" PRIu64 "  %s  %-13s %-10s %-13s %8u  %12" PRIu64 "  %4u  %-12.12s %s%s\n", e->seq, when,
	       kinds[r->kind], reason_name(r), pages, r->position_first, r->tag_first, r->turn, session,
	       other, e->partial ? "+" : "");
}

void audit_say_head(bool json)
{
	if (!json)
		printf("%10s  %-24s  %-13s %-10s %-13s %8s  %12s  %4s  %s\n", "entry", "time", "kind", "reason",
		       "pages", "position", "tag", "turn", "session");
}

void audit_say_record(const struct store_read_entry *e, const struct store_record *r, bool json)
{
	if (json)
		record_json(e, r);
	else
		record_line(e, r);
}
