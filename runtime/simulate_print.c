/*
 * The figures of a simulated run: one line of JSON for programs, a table for people.
 */
#include <inttypes.h>
#include <string.h>

#include "runtime/simulate.h"

static const char *const column_names[COLUMN_COUNT] = {"free",     "running", "promised", "retained",
						       "shared",   "moving",  "doomed"};
static const char *const wait_names[WAIT_COUNT] = {"pages", "turns", "batch", "prefix", "durable", "copy"};
static const char *const kind_names[KIND_COUNT] = {"new", "tool", "person", "other"};

static double held(const struct simulate_report *r)
{
	double bytes = 0;
	for (uint32_t column = COLUMN_FREE + 1; column < COLUMN_COUNT; column++)
		bytes += r->byte_seconds[ACCOUNT_DEVICE][column];
	return bytes;
}

/* Sessions an hour at which each resource is used up, from what a session took of it in this run.
   0: it took nothing. */
struct loads {
	double memory, compute, host, disk, offered;
	const char *first;
};

static double load_of(double capacity_s, double taken_s, double sessions)
{
	return taken_s > 0 ? capacity_s / (taken_s / sessions) * 3600 : 0;
}

static struct loads loads_of(const struct simulate_options *o, const struct simulate_report *r)
{
	const double sessions = r->sessions_done > 0 ? (double)r->sessions_done : 1;
	struct loads l = {
		/* By Little's law: rate * (bytes * seconds of one session) is what is held on average. */
		.memory = load_of((double)o->memory_bytes, r->live_byte_seconds, sessions),
		.compute = load_of(1, r->busy_s, sessions),
		.host = load_of(1, r->copy_busy_s[PLACE_HOST], sessions),
		.disk = load_of(1, r->copy_busy_s[PLACE_DISK], sessions),
		.offered = o->arrivals_h,
		.first = "memory",
	};
	double least = l.memory;
	if (l.compute > 0 && (l.compute < least || least <= 0)) {
		least = l.compute;
		l.first = "compute";
	}
	if (l.host > 0 && l.host < least) {
		least = l.host;
		l.first = "host copies";
	}
	if (l.disk > 0 && l.disk < least)
		l.first = "disk copies";
	return l;
}

static void json_columns(const struct simulate_report *r, const char *name, enum account account)
{
	printf("\"%s\":{", name);
	for (uint32_t column = 0; column < COLUMN_COUNT; column++)
		printf("%s\"%s\":%.6g", column ? "," : "", column_names[column],
		       r->byte_seconds[account][column]);
	printf("}");
}

void simulate_print_json(const struct simulate_options *o, const char *policy,
			 const struct simulate_report *r, uint64_t least_bytes)
{
	const struct loads l = loads_of(o, r);
	printf("{\"policy\":\"%s\",\"memory_bytes\":%" PRIu64 ",\"host_bytes\":%" PRIu64
	       ",\"disk_bytes\":%" PRIu64 ",\"loop\":\"%s\",\"seed\":%" PRIu64,
	       policy, o->memory_bytes, o->host_bytes, o->disk_bytes,
	       o->loop == LOOP_OPEN ? "open" : "closed", o->seed);
	printf(",\"turns\":%" PRIu64 ",\"turns_answered\":%" PRIu64 ",\"turns_refused\":%" PRIu64
	       ",\"turns_waited\":%" PRIu64, r->turns, r->turns_answered, r->turns_refused,
	       r->turns_waited);
	printf(",\"waited\":{");
	for (uint32_t why = 0; why < WAIT_COUNT; why++)
		printf("%s\"%s\":%" PRIu64, why ? "," : "", wait_names[why], r->waited[why]);
	printf("},\"wait_ms_max\":%.3f", (double)r->wait_max_us / 1000);
	printf(",\"sessions\":%" PRIu64 ",\"sessions_done\":%" PRIu64, r->sessions, r->sessions_done);
	printf(",\"tokens_new\":%" PRIu64 ",\"tokens_resident\":%" PRIu64 ",\"tokens_recomputed\":%" PRIu64
	       ",\"tokens_reloaded\":%" PRIu64 ",\"tokens_sampled\":%" PRIu64
	       ",\"tokens_shared\":%" PRIu64, r->tokens_new, r->tokens_resident, r->tokens_recomputed,
	       r->tokens_reloaded, r->tokens_sampled, r->tokens_shared);
	printf(",\"ttft_ms_p50\":%.3f,\"ttft_ms_p99\":%.3f,\"ttft_ms\":{",
	       (double)r->ttft_all.p50_us / 1000, (double)r->ttft_all.p99_us / 1000);
	for (uint32_t kind = 0; kind < KIND_COUNT; kind++)
		printf("%s\"%s\":{\"turns\":%" PRIu64 ",\"p50\":%.3f,\"p99\":%.3f}", kind ? "," : "",
		       kind_names[kind], r->ttft[kind].count, (double)r->ttft[kind].p50_us / 1000,
		       (double)r->ttft[kind].p99_us / 1000);
	printf("},\"session_s_p50\":%.3f,\"session_s_p99\":%.3f", (double)r->session_p50_us / 1e6,
	       (double)r->session_p99_us / 1e6);
	printf(",\"forced_recomputes\":%" PRIu64 ",\"held_byte_seconds\":%.6g,\"byte_seconds\":{",
	       r->forced_recomputes, held(r));
	json_columns(r, "device", ACCOUNT_DEVICE);
	printf(",");
	json_columns(r, "host", ACCOUNT_HOST);
	printf(",");
	json_columns(r, "disk", ACCOUNT_DISK);
	printf("},\"wanted_byte_seconds\":%.6g,\"wanted_bytes_peak\":%" PRIu64
	       ",\"compute_busy_s\":%.3f,\"host_busy_s\":%.3f,\"disk_busy_s\":%.3f",
	       r->live_byte_seconds, r->live_peak_bytes, r->busy_s, r->copy_busy_s[PLACE_HOST],
	       r->copy_busy_s[PLACE_DISK]);
	printf(",\"sessions_h_max\":{\"memory\":%.3f,\"compute\":%.3f,\"host\":%.3f,\"disk\":%.3f}"
	       ",\"gives_out_first\":\"%s\"", l.memory, l.compute, l.host, l.disk, l.first);
	if (least_bytes)
		printf(",\"memory_bytes_no_recompute\":%" PRIu64, least_bytes);
	printf(",\"steps\":%" PRIu64 ",\"span_s\":%.6f,\"hash\":\"%016" PRIx64 "\"}\n", r->steps,
	       (double)r->span_us / 1e6, r->hash);
}

/* For people. */

static const char *bytes_text(double bytes, char text[32])
{
	static const char units[] = " KMGTPE";
	uint32_t unit = 0;
	for (; bytes >= 1024 && units[unit + 1]; unit++)
		bytes /= 1024;
	if (unit == 0)
		snprintf(text, 32, "%.0f B", bytes);
	else
		snprintf(text, 32, "%.1f %ciB", bytes, units[unit]);
	return text;
}

static void table_tokens(const struct simulate_report *r)
{
	const double reusable = (double)(r->tokens_resident + r->tokens_reloaded + r->tokens_recomputed);
	const struct {
		const char *name;
		uint64_t tokens;
	} rows[] = {{"resident", r->tokens_resident},
		    {"reloaded", r->tokens_reloaded},
		    {"recomputed", r->tokens_recomputed}};
	printf("\ntokens of prompts\n  %-12s %16" PRIu64 "\n", "new", r->tokens_new);
	for (uint32_t i = 0; i < 3; i++)
		printf("  %-12s %16" PRIu64 "  %5.1f %% of what could be kept\n", rows[i].name,
		       rows[i].tokens, reusable > 0 ? 100 * (double)rows[i].tokens / reusable : 0);
	if (r->tokens_shared)
		printf("  %-12s %16" PRIu64 "  of these, found in other sessions\n", "shared", r->tokens_shared);
	printf("  %-12s %16" PRIu64 "\n", "sampled", r->tokens_sampled);
}

static void table_ttft(const struct simulate_report *r)
{
	printf("\ntime to first token, ms %8s %12s %12s\n", "turns", "p50", "p99");
	for (uint32_t kind = 0; kind <= KIND_COUNT; kind++) {
		const struct simulate_ttft *t = kind < KIND_COUNT ? &r->ttft[kind] : &r->ttft_all;
		static const char *const names[] = {"new session", "after a tool", "after a person",
						    "after another end", "all"};
		if (t->count)
			printf("  %-20s %9" PRIu64 " %12.1f %12.1f\n", names[kind], t->count,
			       (double)t->p50_us / 1000, (double)t->p99_us / 1000);
	}
}

static void table_columns(const struct simulate_report *r)
{
	char text[3][32];
	printf("\nGiB x hours %18s %12s %12s\n", "device", "host", "disk");
	for (uint32_t column = 0; column < COLUMN_COUNT; column++) {
		double sum = 0;
		for (uint32_t i = 0; i < 3; i++) {
			const double b = r->byte_seconds[ACCOUNT_DEVICE + i][column];
			snprintf(text[i], sizeof text[i], "%.2f", b / 3600 / (1 << 30));
			sum += b;
		}
		if (sum > 0)
			printf("  %-14s %13s %12s %12s\n", column_names[column], text[0], text[1], text[2]);
	}
}

static void table_loads(const struct simulate_options *o, const struct simulate_report *r)
{
	const struct loads l = loads_of(o, r);
	const struct {
		const char *name;
		double load;
	} rows[] = {{"memory", l.memory}, {"compute", l.compute}, {"host copies", l.host},
		    {"disk copies", l.disk}};
	printf("\nwhat gives out first: %s\n", l.first);
	for (uint32_t i = 0; i < 4; i++)
		if (rows[i].load > 0)
			printf("  %-14s carries %10.1f sessions an hour\n", rows[i].name, rows[i].load);
	if (l.offered > 0)
		printf("  %-14s         %10.1f\n", "offered", l.offered);
}

void simulate_print_table(const struct simulate_options *o, const char *policy,
			  const struct simulate_report *r, uint64_t least_bytes)
{
	char a[32], b[32];
	const double hours = (double)r->span_us / 3.6e9;
	printf("policy %s, %s of device memory, %s loop, seed %" PRIu64 ", %.2f hours\n", policy,
	       bytes_text((double)o->memory_bytes, a), o->loop == LOOP_OPEN ? "open" : "closed", o->seed,
	       hours);
	printf("\nturns\n  %-12s %10" PRIu64 " of %" PRIu64 ", %.1f an hour\n", "answered", r->turns_answered,
	       r->turns, hours > 0 ? (double)r->turns_answered / hours : 0);
	printf("  %-12s %10" PRIu64 "%s\n", "refused", r->turns_refused,
	       r->turns_refused ? ", larger than the memory" : "");
	printf("  %-12s %10" PRIu64, "waited", r->turns_waited);
	for (uint32_t why = 0, shown = 0; why < WAIT_COUNT; why++)
		if (r->waited[why])
			printf("%s %s %" PRIu64, shown++ ? "," : ", for", wait_names[why], r->waited[why]);
	printf("\n  %-12s %10.1f s\n", "longest wait", (double)r->wait_max_us / 1e6);
	printf("  sessions done %8" PRIu64 " of %" PRIu64 ", p50 %.0f s, p99 %.0f s\n", r->sessions_done,
	       r->sessions, (double)r->session_p50_us / 1e6, (double)r->session_p99_us / 1e6);
	table_tokens(r);
	table_ttft(r);
	table_columns(r);
	table_loads(o, r);
	printf("\ncontexts that are wanted take %s at the peak", bytes_text((double)r->live_peak_bytes, b));
	if (least_bytes)
		printf(";\nthe least memory at which this policy recomputes nothing: %s",
		       bytes_text((double)least_bytes, a));
	printf("\n");
}
