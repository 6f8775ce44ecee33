/*
 * The table of the daemon's options and its two readers: arguments and a config file of lines
 * `name = value`. Ranges are checked here, so that the rest may rely on them.
 */
#include "runtime/options.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "clients/wire.h"
#include "kernels/ops.h"

enum { ABORT_MS = 60000 }; /* what audit-abort-ms is if nobody says */
enum kind { KIND_TEXT, KIND_FLAG, KIND_NUMBER, KIND_BYTES, KIND_CHOICE };

struct entry {
	const char *name;
	enum kind kind;
	size_t at;       /* offset into struct options */
	uint64_t least, most; /* of a number; most is the size of a text */
	const char *standard; /* default, as it would be typed; NULL: none */
	const char *choices;  /* "a|b|c", in the order of the enum */
	const char *help;
};

#define AT(field) offsetof(struct options, field)
#define TEXT(n, f, s, h) {n, KIND_TEXT, AT(f), 0, sizeof(((struct options *)0)->f), s, NULL, h}
#define NUMBER(n, f, lo, hi, s, h) {n, KIND_NUMBER, AT(f), lo, hi, s, NULL, h}
#define BYTES(n, f, lo, hi, s, h) {n, KIND_BYTES, AT(f), lo, hi, s, NULL, h}
#define CHOICE(n, f, c, s, h) {n, KIND_CHOICE, AT(f), 0, 0, s, c, h}
#define FLAG(n, f, h) {n, KIND_FLAG, AT(f), 0, 1, NULL, NULL, h}


static const struct entry table[] = {
	TEXT("model", model, "", "model file: GGUF (the first of a split one), or a folder with safetensors"),
	TEXT("listen", listen, "", "endpoint, ipc://PATH; default as the clients' (see holdfast --help)"),
	TEXT("state", state, "", "folder of the audit log; default $XDG_STATE_HOME/holdfast"),
	TEXT("cache", cache, "", "folder of what is derived from models; default $XDG_CACHE_HOME/holdfast"),
	TEXT("config", config, "", "file with lines `name = value`, read before the arguments"),
	TEXT("tenants", tenants, "", "file of tenants: their endpoints, limits and keys; read again on SIGHUP"),
	TEXT("curve-key", curve_key, "", "file of the server's secret key, for tenants over TCP"),
	TEXT("events", events, "", "where session events are told, or none; default --listen and -events"),
	NUMBER("events-kept", events_kept, 1, 65536, "256",
	       "session events of a principal that are kept to be asked for"),
	TEXT("kv-events", kv_events, "", "where events of KV blocks are told, ipc://PATH; default nowhere"),
	TEXT("kv-replay", kv_replay, "", "with --kv-events: where kept ones are asked for, ipc://PATH"),
	TEXT("kv-topic", kv_topic, "", "first frame of events of blocks"),
	CHOICE("kv-form", kv_events_form, "array|map", "array", "their structs: as arrays, or as maps"),
	BYTES("kv-events-kept", kv_events_kept, 65536, 1ull << 32, "16M",
	      "bytes of them that are kept for each tenant"),
	NUMBER("subscriptions", subscriptions, 1, 1ull << 20, "4096",
	       "subscriptions of a socket of events; at more, all have to come again"),
	TEXT("template", template_name, "", "chat template by name, when the file's is not recognised"),
	FLAG("check", check, "print the memory plan and start nothing"),
	FLAG("json", json, "with --check: as JSON"),
	CHOICE("kv", kv, "fp8|int8|bf16|f32", "fp8", "precision of the KV pages"),
	TEXT("device", device, "cpu", "where the model runs: cpu, cuda or cuda:N"),
	NUMBER("tensor-parallel", tensor_parallel, 1, 64, "1",
	       "ranks that the model is split over: processes, on GPUs from --device's on"),
	NUMBER("ranks-start-seconds", ranks_start_seconds, 1, 3600, "120",
	       "most that NCCL may take to start between the ranks"),
	CHOICE("isa", isa, "auto|scalar|avx2|avx512", "auto", "instruction set of the CPU kernels"),
	CHOICE("act", act, "auto|f32|bf16|i8|i8-row", "auto", "precision of activations in matmuls"),
	CHOICE("prefill-weights", prefill, "same|int8|bf16|fp8|auto", "same",
	       "weights of given tokens: the file's, or a copy in 8 bits a row or in bf16, on a GPU also in fp8; "
	       "auto: the copy that is faster here and fits, bf16 before int8"),
	CHOICE("integrity", integrity, "off|check|abort", "check", "page tags: what a mismatch does"),
	CHOICE("digest", digest, "off|resume|scrub", "off",
	       "content of full pages: compared when a turn resumes, or at rest too"),
	BYTES("scrub-bytes", scrub_bytes, 1, 1ull << 40, "16M", "bytes a second of --digest scrub"),
	NUMBER("scrub-ms", scrub_ms, 1, 1ull << 40, "60000", "time between two looks at a page at rest"),
	TEXT("trace", trace, "", "records counts and times of the turns into a new file, for simulate"),
	TEXT("inject", inject, "", "faults on purpose: NAME@N, NAME/N, POINT@N=WHAT, seed=N, with commas"),
	CHOICE("log", log, "error|notice|debug", "notice", "how much is said on stderr"),
	BYTES("kv-memory", kv_memory, 0, 1ull << 46, "0", "bytes of KV pages; 0: a quarter of what is available"),
	BYTES("host-memory", host_memory, 0, 1ull << 46, "0",
	       "bytes of host memory that pages go to before they are given up; 0: none"),
	CHOICE("forced", forced, "append|step", "append",
	       "tokens of a form that has no other: computed together, or sampled one by one"),
	CHOICE("windows", windows, "trim|keep", "trim",
	       "layers with a sliding window keep what it shows, or the whole context"),
	NUMBER("kv-context", kv_context, 0, 1 << 20, "0",
	       "tokens of a context for which --windows trim divides the pages; 0: a quarter of --context"),
	BYTES("disk-bytes", disk_bytes, 0, 1ull << 50, "0",
	      "bytes of the disk tier, where pages go that host memory does not hold; 0: none"),
	TEXT("disk-dir", disk_dir, "", "folder of the disk tier's file; default: that of --state"),
	BYTES("disk-reserve", disk_reserve, 0, 1ull << 50, "256M",
	      "the disk tier leaves so much of its file system free"),
	NUMBER("disk-wait-ms", disk_wait_ms, 100, 3600000, "5000",
	       "what waits so long for the disk tier is computed again"),
	NUMBER("stop-ms", stop_ms, 0, 3600000, "10000",
	       "time to write sessions at rest to the disk tier at shutdown"),
	NUMBER("page-tokens", page_tokens, 16, 256, "16", "positions in a page: 16, 32, 64, 128 or 256"),
	NUMBER("context", context, 0, 1 << 20, "0", "positions of a session; 0: the model's"),
	NUMBER("threads", threads, 0, 256, "0", "threads of the CPU device; 0: all cores"),
	NUMBER("sessions", sessions, 1, 100000, "1024", "sessions that may exist"),
	NUMBER("turns", turns, 1, 1024, "32", "turns that may run at once"),
	NUMBER("queue", queue, 0, 100000, "256", "turns that may wait"),
	NUMBER("calls", calls, 1, 100000, "512", "calls in flight"),
	NUMBER("calls-principal", calls_principal, 1, 100000, "64", "calls in flight of one principal"),
	NUMBER("sessions-principal", sessions_principal, 0, 100000, "0", "sessions of one principal; 0: any"),
	NUMBER("turns-principal", turns_principal, 0, 1024, "0", "turns of one principal at once; 0: any"),
	NUMBER("peers", peers, 1, 100000, "1024", "connections that are remembered"),
	NUMBER("principals", principals, 1, 65535, "64", "principals that are remembered"),
	NUMBER("session-turns", session_turns, 1, 1 << 20, "1024", "turns of one session"),
	NUMBER("batch-rows", batch_rows, 1, 65536, "512", "rows of one step"),
	NUMBER("chunk", chunk, 1, 65536, "256", "prefill rows of one turn in one step"),
	NUMBER("step-ms", step_ms, 0, 60000, "0",
	       "wanted time of a step; 0: about twice what decoding alone takes"),
	NUMBER("wait-ms", wait_ms, 0, 1ull << 40, "300000",
	       "a turn that waited so long goes before all others; 0: first come, first served"),
	TEXT("public-prefix", public_prefix, "", "JSON file of beginnings (system, tools) that all users share"),
	CHOICE("share", share, "no|yes", "yes", "sessions of one user share pages of what they begin alike with"),
	CHOICE("policy", policy, "cost|lru|ttl|swap|none", "cost", "what stays between turns"),
	NUMBER("ttl-ms", ttl_ms, 0, 1ull << 40, "300000", "with policy ttl: how long a context stays"),
	NUMBER("growth", growth, 0, 1 << 20, "256", "growth quantum in tokens; 0: promise in full"),
	BYTES("body-bytes", body_bytes, 1024, 64 << 20, "262144", "MessagePack body of one message"),
	BYTES("blob-bytes", blob_bytes, 1024, 256 << 20, "1048576", "third frame of one message"),
	BYTES("unread-bytes", unread_bytes, 0, 1ull << 32, "16M",
	      "bytes of a connection that bring no whole message before it is closed; 0: any"),
	BYTES("stream-bytes", stream_bytes, 1024, 64 << 20, "65536", "unread text of a turn before it pauses"),
	BYTES("window", window_bytes, 1, 64 << 20, "65536", "credit of a call that names none"),
	BYTES("window-max", window_max, 1, 256 << 20, "1048576", "credit beyond what was sent"),
	NUMBER("lease-max-ms", lease_max_ms, 0, 1ull << 40, "86400000", "longest lease"),
	BYTES("principal-bytes", principal_bytes, 0, 1ull << 46, "0",
	       "KV bytes of one principal: granted, or to be had by running turns; 0: no quota"),
	NUMBER("detach-ms", detach_ms, 0, 86400000, "30000",
	       "a call with a key outlives its lost reader by so long, if it names no time"),
	NUMBER("detach-max-ms", detach_max_ms, 0, 86400000, "600000", "longest such time that a call may name"),
	NUMBER("keep-ms", keep_ms, 0, 86400000, "300000", "an ended call with a key can be asked for again"),
	NUMBER("idem-ms", idem_ms, 1000, 1ull << 40, "86400000", "an answer is on disk for its key so long"),
	NUMBER("session-idle-ms", session_idle_ms, 0, 1ull << 40, "0",
	       "a session that nobody names for so long is closed; 0: never"),
	NUMBER("history-ttl-ms", history_ttl_ms, 0, 1ull << 40, "0",
	       "a session that nobody names for so long is forgotten: text, tokens, pages; 0: never"),
	NUMBER("strikes", strikes, 0, 1000000, "3", "malformed messages a minute before a peer is muted; 0: any"),
	NUMBER("mute-ms", mute_ms, 0, 3600000, "60000", "how long it is muted"),
	NUMBER("heartbeat-ms", heartbeat_ms, 100, 60000, "5000", "a silent client pings after so long"),
	NUMBER("drain-ms", drain_ms, 0, 3600000, "10000", "time for running turns at shutdown"),
	NUMBER("stall-ms", stall_ms, 100, 3600000, "60000", "a call waits so long for its reader"),
	NUMBER("note-ms", note_ms, 50, 60000, "500", "time between progress notes"),
	NUMBER("deadline-max-ms", deadline_max_ms, 1, 1ull << 40, "3600000", "longest deadline of a call"),
	BYTES("audit-map-bytes", audit_map_bytes, 1 << 20, 1ull << 44, "64G",
	      "what the audit log's data.mdb may grow to"),
	BYTES("audit-headroom", audit_headroom, 0, 1ull << 40, "16M",
	      "kept free on the log's disk for what runs; without it nothing begins"),
	NUMBER("audit-history", audit_history, 0, 1ull << 40, "1000000",
	       "entries in data.mdb; older ones go to the folder archive; 0: all stay"),
	NUMBER("audit-segment", audit_segment, 16, 16384, "16384", "entries that go there in one file"),
	NUMBER("audit-readers-ms", audit_readers_ms, 100, 3600000, "60000",
	       "time between two looks at who reads the log beside"),
	NUMBER("audit-reader-stay-ms", audit_reader_stay_ms, 0, 86400000, "300000",
	       "who stays in one transaction of the log for longer is ended (SIGKILL); 0: never"),
	TEXT("anchor", anchor, "", "folder, better on another machine's disk, where the log is anchored"),
	NUMBER("anchor-ms", anchor_ms, 1, 86400000, "10000", "one anchor after so long, if the log grew"),
	NUMBER("anchor-entries", anchor_entries, 1, 1 << 30, "1024", "... or after so many entries"),
	NUMBER("audit-commit-ms", audit_commit_ms, 0, 1000, "0",
	       "time to gather records for a commit; 0: none"),
	NUMBER("audit-pace-ms", audit_pace_ms, 0, 1000, "100",
	       "what nobody waits for gathers so long at most, so that commits are cheap; 0: it does not"),
	NUMBER("audit-stall-ms", audit_stall_ms, 100, 3600000, "10000",
	       "when the log's disk has answered nothing for so long, nothing new begins"),
	NUMBER("audit-abort-ms", audit_abort_ms, 0, 86400000, "60000",
	       "... and for so long, the daemon says so in the beacon and ends (SIGABRT); 0: never; a minute is "
	       "raised to twice --audit-stall-ms where that is not less"),
};
enum { ENTRY_COUNT = sizeof table / sizeof table[0] };

static void help(void)
{
	printf("usage: holdfastd --model FILE [options]\n"
	       "       holdfastd inspect|tokenize|logits|perplexity|bench MODEL [options]\n"
	       "       holdfastd simulate --trace FILE --format FORMAT --memory BYTES [options]\n"
	       "       holdfastd selftest --model FILE [options]\n"
	       "       holdfastd audit QUESTION --state DIR [options]\n\noptions:\n");
	for (int i = 0; i < ENTRY_COUNT; i++) {
		const struct entry *e = &table[i];
		char left[80];
		if (e->kind == KIND_FLAG)
			snprintf(left, sizeof left, "--%s", e->name);
		else
			snprintf(left, sizeof left, "--%s %s", e->name,
				 e->choices ? e->choices : e->kind == KIND_TEXT ? "TEXT" : "N");
		printf("  %-36s %s", left, e->help);
		if (e->standard && e->standard[0])
			printf(" [%s]", e->standard);
		printf("\n");
	}
	printf("\nN takes the suffixes K, M and G (powers of 1024).\n");
}

static bool number_read(const char *text, uint64_t *out)
{
	char *end;
	errno = 0;
	if (text[0] < '0' || text[0] > '9')
		return false;
	const unsigned long long value = strtoull(text, &end, 10);
	unsigned shift = 0;
	switch (*end) {
	case 'K': case 'k': shift = 10; break;
	case 'M': case 'm': shift = 20; break;
	case 'G': case 'g': shift = 30; break;
	default: break;
	}
	if (errno || end[shift ? 1 : 0] || (shift && value > (UINT64_MAX >> shift)))
		return false;
	*out = (uint64_t)value << shift;
	return true;
}

static bool choice_read(const char *choices, const char *text, uint64_t *out)
{
	const size_t length = strlen(text);
	uint64_t index = 0;
	for (const char *at = choices; at; index++) {
		const char *bar = strchr(at, '|');
		const size_t n = bar ? (size_t)(bar - at) : strlen(at);
		if (n == length && memcmp(at, text, n) == 0) {
			*out = index;
			return true;
		}
		at = bar ? bar + 1 : NULL;
	}
	return false;
}

/* Sets one option; prints why not. `from` says where the value stood. */
static int option_set(const struct entry *e, const char *value, struct options *out, const char *from)
{
	char *field = (char *)out + e->at;
	uint64_t number = 0;
	switch (e->kind) {
	case KIND_TEXT:
		if (!value[0]) {
			fprintf(stderr, "holdfastd: %s%s is empty\n", from, e->name);
			return 2;
		}
		if (strlen(value) >= e->most) {
			fprintf(stderr, "holdfastd: %s%s is longer than %llu bytes\n", from, e->name,
				(unsigned long long)e->most - 1);
			return 2;
		}
		strncpy(field, value, e->most);
		return 0;
	case KIND_FLAG:
		if (!choice_read("no|yes|false|true", value, &number)) {
			fprintf(stderr, "holdfastd: %s%s takes yes or no\n", from, e->name);
			return 2;
		}
		*(bool *)field = number % 2;
		return 0;
	case KIND_CHOICE:
		if (!choice_read(e->choices, value, &number)) {
			fprintf(stderr, "holdfastd: %s%s takes one of %s\n", from, e->name, e->choices);
			return 2;
		}
		break;
	default:
		if (!number_read(value, &number) || number < e->least || number > e->most) {
			fprintf(stderr, "holdfastd: %s%s takes a number from %llu to %llu\n", from, e->name,
				(unsigned long long)e->least, (unsigned long long)e->most);
			return 2;
		}
	}
	memcpy(field, &number, sizeof number);
	return 0;
}

static const struct entry *entry_find(const char *name, size_t length)
{
	for (int i = 0; i < ENTRY_COUNT; i++)
		if (strlen(table[i].name) == length && memcmp(table[i].name, name, length) == 0)
			return &table[i];
	return NULL;
}

static char *trim(char *text)
{
	while (*text == ' ' || *text == '\t')
		text++;
	size_t n = strlen(text);
	while (n && (text[n - 1] == ' ' || text[n - 1] == '\t' || text[n - 1] == '\n' || text[n - 1] == '\r'))
		text[--n] = 0;
	return text;
}

static int config_read(const char *path, struct options *out)
{
	struct stat st;
	FILE *file = fopen(path, "re");
	if (file && (fstat(fileno(file), &st) != 0 || S_ISDIR(st.st_mode))) {
		fprintf(stderr, "holdfastd: the config file %s is a folder\n", path);
		fclose(file);
		return 1;
	}
	if (!file) {
		fprintf(stderr, "holdfastd: the config file %s cannot be read: %s\n", path, strerror(errno));
		return 1;
	}
	char line[OPTIONS_PATH_MAX + 128];
	int code = 0;
	for (unsigned number = 1; !code && fgets(line, sizeof line, file); number++) {
		char *name = trim(line);
		if (!*name || *name == '#')
			continue;
		char *equals = strchr(name, '=');
		char from[OPTIONS_PATH_MAX + 64];
		snprintf(from, sizeof from, "%.4000s:%u: ", path, number);
		if (!equals) {
			fprintf(stderr, "holdfastd: %sexpected `name = value`\n", from);
			code = 2;
			break;
		}
		*equals = 0;
		name = trim(name);
		const struct entry *e = entry_find(name, strlen(name));
		if (!e || e->at == AT(config)) {
			fprintf(stderr, "holdfastd: %sno such option\n", from);
			code = 2;
			break;
		}
		code = option_set(e, trim(equals + 1), out, from);
	}
	fclose(file);
	return code;
}

/* Finds the argument's entry and value; *used is how many arguments it took. */
static int argument_read(int argc, char **argv, int i, const struct entry **e, const char **value, int *used)
{
	const char *a = argv[i];
	if (strncmp(a, "--", 2) != 0) {
		fprintf(stderr, "holdfastd: unexpected argument number %d; options begin with --\n", i);
		return 2;
	}
	const char *equals = strchr(a, '=');
	*e = entry_find(a + 2, equals ? (size_t)(equals - a - 2) : strlen(a + 2));
	if (!*e) {
		fprintf(stderr, "holdfastd: no such option: argument number %d; see holdfastd --help\n", i);
		return 2;
	}
	*used = 1;
	if ((*e)->kind == KIND_FLAG && !equals) {
		*value = "yes";
	} else if (equals) {
		*value = equals + 1;
	} else if (i + 1 < argc) {
		*value = argv[i + 1];
		*used = 2;
	} else {
		fprintf(stderr, "holdfastd: --%s needs a value\n", (*e)->name);
		return 2;
	}
	return 0;
}

static int arguments_read(int argc, char **argv, struct options *out, bool config_only)
{
	for (int i = 1; i < argc;) {
		const struct entry *e;
		const char *value;
		int used;
		if (strcmp(argv[i], "--help") == 0) {
			help();
			return -1;
		}
		int code = argument_read(argc, argv, i, &e, &value, &used);
		if (!code && (e->at == AT(config)) == config_only)
			code = option_set(e, value, out, "--");
		if (code)
			return code;
		i += used;
	}
	return 0;
}

/* Folders that the environment names. */
static int folders_default(struct options *o)
{
	const char *home = getenv("HOME");
	const char *state = getenv("XDG_STATE_HOME"), *cache = getenv("XDG_CACHE_HOME");
	if (!o->state[0]) {
		if (state && state[0] == '/')
			snprintf(o->state, sizeof o->state, "%s/holdfast", state);
		else if (home && home[0] == '/')
			snprintf(o->state, sizeof o->state, "%s/.local/state/holdfast", home);
		else {
			fprintf(stderr, "holdfastd: neither XDG_STATE_HOME nor HOME is set; say --state DIR\n");
			return 2;
		}
	}
	if (!o->cache[0]) {
		if (cache && cache[0] == '/')
			snprintf(o->cache, sizeof o->cache, "%s/holdfast", cache);
		else if (home && home[0] == '/')
			snprintf(o->cache, sizeof o->cache, "%s/.cache/holdfast", home);
	}
	if (!o->listen[0] && wire_default_endpoint(o->listen, sizeof o->listen) != 0) {
		fprintf(stderr, "holdfastd: no default endpoint can be made here; say --listen ipc://PATH\n");
		return 2;
	}
	return 0;
}

int options_read(int argc, char **argv, struct options *out)
{
	memset(out, 0, sizeof *out);
	for (int i = 0; i < ENTRY_COUNT; i++)
		if (table[i].standard && table[i].standard[0] && option_set(&table[i], table[i].standard, out, "--"))
			return 2;
	int code = arguments_read(argc, argv, out, true);
	if (!code && out->config[0])
		code = config_read(out->config, out);
	if (!code)
		code = arguments_read(argc, argv, out, false);
	if (code)
		return code;
	if (out->page_tokens & (out->page_tokens - 1) || out->page_tokens > OPS_PARTITION) {
		fprintf(stderr, "holdfastd: --page-tokens takes 16, 32, 64, 128 or 256\n");
		return 2;
	}
	const uint64_t commit_ms = out->audit_commit_ms, pace_ms = out->audit_pace_ms;
	const uint64_t gathers = commit_ms > pace_ms ? commit_ms : pace_ms;
	if (out->audit_stall_ms <= gathers) {
		fprintf(stderr, "holdfastd: --audit-stall-ms %llu is not more than what records are gathered for, "
			"%llu ms (--audit-commit-ms, --audit-pace-ms): nothing would ever begin\n",
			(unsigned long long)out->audit_stall_ms, (unsigned long long)gathers);
		return 2;
	}
	if (out->audit_abort_ms == ABORT_MS && out->audit_stall_ms >= ABORT_MS)
		out->audit_abort_ms = 2 * out->audit_stall_ms;
	if (out->audit_abort_ms && out->audit_abort_ms <= out->audit_stall_ms) {
		fprintf(stderr, "holdfastd: --audit-abort-ms %llu is not more than --audit-stall-ms %llu: what runs "
			"would have no time\n", (unsigned long long)out->audit_abort_ms,
			(unsigned long long)out->audit_stall_ms);
		return 2;
	}
	if (out->kv_replay[0] && !out->kv_events[0]) {
		fprintf(stderr, "holdfastd: --kv-replay is beside --kv-events\n");
		return 2;
	}
	if (out->unread_bytes && out->unread_bytes < 2 * (out->body_bytes + out->blob_bytes)) {
		fprintf(stderr, "holdfastd: --unread-bytes is less than two of the largest messages\n");
		return 2;
	}
	if (!out->model[0]) {
		fprintf(stderr, "holdfastd: say which model: --model FILE (./bootstrap model prints one)\n");
		return 2;
	}
	return folders_default(out);
}

/* "--name value"; 0: it is the default. */
static int option_text(const struct entry *e, const struct options *o, const struct options *standard,
		       char *out, size_t room)
{
	const char *field = (const char *)o + e->at;
	const uint64_t bytes = e->kind == KIND_TEXT ? 0 : e->kind == KIND_FLAG ? sizeof(bool) : sizeof(uint64_t);
	const char *const was = (const char *)standard + e->at;
	uint64_t number = 0;
	if (e->kind == KIND_TEXT ? strcmp(field, was) == 0 : memcmp(field, was, bytes) == 0)
		return 0;
	memcpy(&number, field, bytes);
	if (e->kind == KIND_TEXT)
		return snprintf(out, room, "--%s %s", e->name, field);
	if (e->kind == KIND_FLAG)
		return snprintf(out, room, "--%s", e->name);
	const char *choice = e->kind == KIND_CHOICE ? e->choices : NULL;
	for (uint64_t i = 0; choice && i < number; i++)
		choice = strchr(choice, '|') ? strchr(choice, '|') + 1 : NULL;
	if (choice)
		return snprintf(out, room, "--%s %.*s", e->name, (int)strcspn(choice, "|"), choice);
	return snprintf(out, room, "--%s %llu", e->name, (unsigned long long)number);
}

size_t options_text(const struct options *o, char *out, size_t room)
{
	static struct options standard;
	size_t at = 0;
	memset(&standard, 0, sizeof standard);
	for (int i = 0; i < ENTRY_COUNT; i++)
		if (table[i].standard && table[i].standard[0])
			option_set(&table[i], table[i].standard, &standard, "--");
	out[0] = 0;
	for (int i = 0; i < ENTRY_COUNT; i++) {
		const size_t space = at > 0;
		const size_t left = at + space < room ? room - at - space : 0;
		const int n = left ? option_text(&table[i], o, &standard, out + at + space, left) : 0;
		if (n <= 0)
			continue;
		if (at + space + (size_t)n >= room) {
			out[at] = 0;
			continue;
		}
		if (space)
			out[at] = ' ';
		at += space + (size_t)n;
	}
	return at;
}
