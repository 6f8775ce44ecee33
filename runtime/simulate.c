/*
 * holdfastd simulate: its options, checked, and what is run for them.
 */
#include "runtime/simulate.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/flags.h"
#include "runtime/program.h"

/* As they are typed. Rates are texts: they may have a fraction, an exponent or a unit. */
struct arguments {
	const char *trace, *policy, *arrivals, *svg, *model;
	const char *prefill, *decode, *knee, *host_bps, *disk_bps, *hours;
	int format, loop;
	uint64_t kv_bytes, window_bytes;
	uint32_t window;
	bool json, help, search;
};

static int refuse(const char *option, const char *what)
{
	program_fail("simulate", "--%s: %s", option, what);
	return 2;
}

/* A positive number with an optional fraction, exponent, and K, M, G or T (powers of 1000), and an
   optional unit after it, as in 60/h. */
static bool number_read(const char *text, const char *unit, double *out)
{
	char *end;
	if ((text[0] < '0' || text[0] > '9') && text[0] != '.')
		return false;
	errno = 0;
	double value = strtod(text, &end);
	/* strtod takes hexadecimals, too; a number here has digits, a point and an exponent. */
	if (strcspn(text, "xXnN") < (size_t)(end - text))
		return false;
	static const char scales[] = "KMGT";
	const char *scale = *end ? strchr(scales, *end >= 'a' ? *end - 32 : *end) : NULL;
	if (scale) {
		for (const char *s = scales; s <= scale; s++)
			value *= 1000;
		end++;
	}
	if (unit && strcmp(end, unit) == 0)
		end += strlen(unit);
	if (*end != '\0' || !isfinite(value) || value > 1e18)
		return false;
	*out = value;
	return true;
}

static int rate_set(const char *option, const char *text, bool zero, double *out)
{
	double value;
	if (!text)
		return 0;
	if (!number_read(text, NULL, &value) || (!zero && value <= 0) || (value > 0 && value < 1e-6))
		return refuse(option, zero ? "not a number of at least 0" : "not a number above 0");
	*out = value;
	return 0;
}

static int policy_set(const char *text, struct simulate_options *o)
{
	static const struct {
		const char *name;
		enum policy policy;
		bool clairvoyant;
	} policies[] = {{"cost", POLICY_COST, false}, {"lru", POLICY_LRU, false},
			{"swap", POLICY_SWAP, false}, {"none", POLICY_NONE, false},
			{"clairvoyant", POLICY_HINTED, true}};
	double seconds;
	for (uint32_t i = 0; i < sizeof policies / sizeof policies[0]; i++) {
		if (strcmp(text, policies[i].name) == 0) {
			o->policy = policies[i].policy;
			o->clairvoyant = policies[i].clairvoyant;
			return 0;
		}
	}
	if (strncmp(text, "ttl:", 4) == 0 && number_read(text + 4, NULL, &seconds) && seconds <= 1e9) {
		o->policy = POLICY_TTL;
		o->ttl_us = (uint64_t)(seconds * 1e6);
		return 0;
	}
	return refuse("policy", "not one of cost, lru, ttl:SECONDS, swap, none, clairvoyant");
}

enum { SIMULATE_FLAGS = 33 };

static uint32_t flags_make(struct arguments *a, struct simulate_options *o, struct flag *flags)
{
	const struct flag table[] = {
		{"trace", FLAG_TEXT, &a->trace, 0, 0, NULL, "file of recorded traffic"},
		{"format", FLAG_CHOICE, &a->format, 0, 0, "swebench|weka|mooncake|holdfast", "its format"},
		{"memory", FLAG_BYTES, &o->memory_bytes, 0, 0, NULL, "bytes of KV pages on the device"},
		{"host", FLAG_BYTES, &o->host_bytes, 0, 0, NULL, "bytes of the host tier [0: none]"},
		{"disk", FLAG_BYTES, &o->disk_bytes, 0, 0, NULL, "bytes of the disk tier [0: none]"},
		{"model", FLAG_TEXT, &a->model, 0, 0, NULL,
		 "model file: its KV bytes a token, and rates measured now by bench"},
		{"kv-bytes-per-token", FLAG_U64, &a->kv_bytes, 1, 1 << 30, NULL, "[65536]"},
		{"window", FLAG_U32, &a->window, 1, 1 << 24, NULL,
		 "positions that some layers see, the last ones [none]"},
		{"window-kv-bytes", FLAG_U64, &a->window_bytes, 1, 1 << 30, NULL,
		 "of a token's KV bytes, those in such layers"},
		{"prefill-tps", FLAG_TEXT, &a->prefill, 0, 0, NULL,
		 "prompt tokens a second in an empty context [20000]"},
		{"decode-tps", FLAG_TEXT, &a->decode, 0, 0, NULL, "sampled tokens a second, alone [100]"},
		{"attention-knee", FLAG_TEXT, &a->knee, 0, 0, NULL,
		 "context at which attention costs a token as much as the weights do; 0: never [32768]"},
		{"host-bps", FLAG_TEXT, &a->host_bps, 0, 0, NULL, "bytes a second to and from host [25e9]"},
		{"disk-bps", FLAG_TEXT, &a->disk_bps, 0, 0, NULL, "bytes a second to and from disk [3e9]"},
		{"policy", FLAG_TEXT, &a->policy, 0, 0, NULL,
		 "cost, lru, ttl:SECONDS, swap, none or clairvoyant [cost]"},
		{"arrivals", FLAG_TEXT, &a->arrivals, 0, 0, NULL,
		 "new sessions an hour, as N/h [the trace's own; where it has none, 60/h]"},
		{"loop", FLAG_CHOICE, &a->loop, 0, 0, "open|closed",
		 "turns come at the trace's times, or its pauses after each answer [open]"},
		{"seed", FLAG_U64, &o->seed, 0, 0, NULL, "of starting times and order [1]"},
		{"hours", FLAG_TEXT, &a->hours, 0, 0, NULL, "simulated at most [to the end]"},
		{"json", FLAG_SWITCH, &a->json, 0, 0, NULL, "one line of JSON instead of the table"},
		{"search", FLAG_SWITCH, &a->search, 0, 0, NULL,
		 "also the least memory at which nothing is recomputed (many runs)"},
		{"svg", FLAG_TEXT, &a->svg, 0, 0, NULL, "draws the run into this file"},
		{"page-tokens", FLAG_U32, &o->page_tokens, 16, 256, NULL, "16, 32, 64, 128 or 256 [256]"},
		{"turns", FLAG_U32, &o->turns, 1, 1000, NULL, "turns running at once [64]"},
		{"batch-rows", FLAG_U32, &o->batch_rows, 1, 65536, NULL, "rows of a step [2048]"},
		{"chunk", FLAG_U32, &o->chunk, 1, 65536, NULL, "prefill rows of a turn in a step [2048]"},
		{"growth", FLAG_U32, &o->growth, 0, 1 << 20, NULL, "growth quantum [256]"},
		{"step-ms", FLAG_U32, &o->step_ms, 0, 60000, NULL, "wanted time of a step; 0: no bound [0]"},
		{"wait-s", FLAG_U32, &o->wait_s, 0, 1 << 20, NULL, "after so long nobody passes a turn [600]"},
		{"max-tokens", FLAG_U32, &o->output_max, 0, 1 << 20, NULL,
		 "asked for by each turn; 0: what its answer has [4096]"},
		{"no-share", FLAG_SWITCH, &o->apart, 0, 0, NULL,
		 "no pages are shared, though the trace's ids name them"},
		{"help", FLAG_SWITCH, &a->help, 0, 0, NULL, "this list"},
	};
	_Static_assert(sizeof table / sizeof table[0] <= SIMULATE_FLAGS, "room for all flags");
	memcpy(flags, table, sizeof table);
	return sizeof table / sizeof table[0];
}

static int options_check(const struct arguments *a, struct simulate_options *o)
{
	if (!a->trace)
		return refuse("trace", "is missing");
	if (a->format < 0)
		return refuse("format", "is missing: swebench, weka, mooncake or holdfast");
	if (o->memory_bytes == 0)
		return refuse("memory", "is missing, or 0");
	if (256 % o->page_tokens != 0)
		return refuse("page-tokens", "not 16, 32, 64, 128 or 256");
	return 0;
}

/* From two contexts, what a position more costs, and so where it costs as much as all else. */
static int machine_measure(const char *path, struct simulate_machine *machine)
{
	struct bench_rates rates;
	const int code = bench_rates("simulate", path, &rates);
	if (code != 0)
		return code;
	machine->kv_bytes_per_token = rates.kv_bytes_per_token;
	machine->window_bytes_per_token = rates.window_bytes_per_token;
	machine->window_tokens = rates.window_tokens;
	machine->prefill_tps = rates.prefill_tps;
	machine->decode_tps = rates.decode_tps;
	machine->attention_knee = 0;
	const double more = rates.prefill_far_tps > 0 ? 1 / rates.prefill_far_tps - 1 / rates.prefill_tps : 0;
	if (more > 0)
		machine->attention_knee = rates.far_tokens / rates.prefill_tps / more;
	(void)program_fail("simulate", "measured: prefill %.0f tokens a second, decode %.1f, knee at %.0f tokens",
			   machine->prefill_tps, machine->decode_tps, machine->attention_knee);
	return 0;
}

/* A model's windows hold as long as its bytes do. */
static int window_set(const struct arguments *a, struct simulate_machine *m)
{
	if (a->kv_bytes || a->window_bytes || a->window) {
		m->window_tokens = a->window;
		m->window_bytes_per_token = a->window_bytes;
	}
	if ((m->window_bytes_per_token == 0) != (m->window_tokens == 0))
		return refuse("window", "--window-kv-bytes and --window go together");
	if (m->window_bytes_per_token >= m->kv_bytes_per_token)
		return refuse("window-kv-bytes", "not less than all bytes of a token");
	return 0;
}

/* Reads what the arguments say; 0, or the exit code. */
static int options_make(const struct arguments *a, struct simulate_options *o)
{
	struct simulate_machine *m = &o->machine;
	int code = options_check(a, o);
	if (code == 0 && a->model)
		code = machine_measure(a->model, m);
	if (a->kv_bytes)
		m->kv_bytes_per_token = a->kv_bytes;
	code = code ? code : window_set(a, m);
	code = code ? code : rate_set("prefill-tps", a->prefill, false, &m->prefill_tps);
	code = code ? code : rate_set("decode-tps", a->decode, false, &m->decode_tps);
	code = code ? code : rate_set("attention-knee", a->knee, true, &m->attention_knee);
	code = code ? code : rate_set("host-bps", a->host_bps, false, &m->host_bps);
	code = code ? code : rate_set("disk-bps", a->disk_bps, false, &m->disk_bps);
	code = code ? code : rate_set("hours", a->hours, true, &o->hours);
	code = code ? code : policy_set(a->policy, o);
	if (code == 0 && a->arrivals &&
	    (!number_read(a->arrivals, "/h", &o->arrivals_h) || o->arrivals_h < 1e-6 ||
	     o->arrivals_h > 1e9))
		code = refuse("arrivals", "not a number of sessions an hour, as in 60/h");
	o->loop = (enum simulate_loop)a->loop;
	return code;
}

static int simulate_do(const struct arguments *a, struct simulate_options *o, const struct trace *trace)
{
	char reason[TRACE_REASON_MAX] = "";
	struct simulate_report *report = calloc(1, sizeof *report);
	struct picture *picture = a->svg ? calloc(1, sizeof *picture) : NULL;
	uint64_t least = 0;
	int err = -ERR_MEMORY, code = 1;
	if (!report || (a->svg && !picture)) {
		program_fail("simulate", "no memory");
		goto out;
	}
	err = simulate_run(o, trace, report, picture, reason);
	if (err == 0 && a->search)
		err = simulate_search(o, trace, &least, reason);
	if (err != 0) {
		program_fail("simulate", "%s", reason);
		code = err == -ERR_OUT_OF_RANGE ? 2 : 1;
		goto out;
	}
	if (picture && simulate_svg(a->svg, o, a->policy, report, picture) != 0) {
		program_fail("simulate", "%s: %s", a->svg, strerror(errno));
		goto out;
	}
	if (a->json)
		simulate_print_json(o, a->policy, report, least);
	else
		simulate_print_table(o, a->policy, report, least);
	code = fflush(stdout) == 0 ? 0 : program_fail("simulate", "stdout: %s", strerror(errno));
out:
	picture_close(picture);
	free(picture);
	free(report);
	return code;
}

int simulate_main(int argc, char **argv)
{
	static const char usage[] = "--trace FILE --format FORMAT --memory BYTES [option …]";
	struct arguments a = {.policy = "cost", .format = -1};
	struct simulate_options o = {
		.machine = {65536, 0, 0, 20000, 100, 32768, 25e9, 3e9}, .seed = 1, .page_tokens = 256, .turns = 64,
		.batch_rows = 2048, .chunk = 2048, .growth = 256, .output_max = 4096, .wait_s = 600,
	};
	struct flag flags[SIMULATE_FLAGS];
	char reason[FLAGS_REASON_MAX], why[TRACE_REASON_MAX];
	const uint32_t count = flags_make(&a, &o, flags);
	const int err = flags_read(flags, count, argc, argv, NULL, 0, reason);
	if (a.help) {
		printf("holdfastd %s %s\n", argv[0], usage);
		flags_help(flags, count);
		printf("BYTES take K, M, G and T (powers of 1024), rates K, M, G and T (powers of 1000).\n");
		return 0;
	}
	if (err != 0) {
		program_fail(argv[0], "%s", reason);
		fprintf(stderr, "usage: holdfastd %s %s\n", argv[0], usage);
		return 2;
	}
	const int code = options_make(&a, &o);
	if (code != 0)
		return code;
	/* On a terminal only. */
	o.progress = isatty(STDERR_FILENO) ? program_progress : NULL;
	struct trace trace;
	if (trace_open(a.trace, (enum trace_format)a.format, program_progress, NULL, &trace, why) != 0)
		return program_fail(argv[0], "%s: %s", a.trace, why);
	if (!trace.has_starts && o.arrivals_h <= 0)
		o.arrivals_h = 60;
	const int done = simulate_do(&a, &o, &trace);
	trace_close(&trace);
	return done;
}
