/*
 * What the loop does in a second, without a model: small calls, DATA out, their latency at half of that
 * load, what a token waits between the engine and its reader, and what those cost who only wait.
 *
 *	bench_wire MODEL [calls|data|half|latency|idle N|curve N|waiting N|soak N]
 *
 * Method: the daemon with a scripted engine runs in a thread; clients speak AR/1 over its ipc socket from
 * others (idle, curve: from other processes; curve is idle over TCP with keys). Besides the wall's time the
 * loop's own processor time is taken, since on few cores clients and library take theirs from the same.
 * `latency` has slices of the same load over a bare pair of the library's sockets between those of the daemon
 * (bare.h): what the daemon adds is the difference, whatever else the machine does.
 */
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <zmq.h>

#include "runtime/daemon.h"
#include "tests/bench/bare.h"
#include "tests/bench/client.h"
#include "tests/bench/keyed.h"
#include "tests/bench/samples.h"
#include "tests/draw.h"
#include "tests/memory.h"
#include "tests/scripted_engine.h"

enum {
	STREAMS = 32, DEPTH = 48, POSITIONS = 8192,
	HEAP_SLACK = 196608 /* the library's queues, as they are just then */
};

static struct {
	char home[64], endpoint[96];
	char keys[3][KEY_CHARS + 1]; /* over TCP: the clients' public and secret, and the daemon's; else empty */
	struct options options;
	pthread_t thread;
	clockid_t clock;
	volatile bool over;
} at;
static double made[STREAMS][POSITIONS]; /* when the engine had sampled after that position */

/* --- The daemon. --- */

static void *daemon_main(void *arg)
{
	(void)arg;
	pthread_getcpuclockid(pthread_self(), &at.clock);
	daemon_run(&at.options);
	at.over = true;
	return NULL;
}

static void daemon_stop(void)
{
	char command[128];
	if (!at.over)
		kill(getpid(), SIGTERM);
	pthread_join(at.thread, NULL);
	snprintf(command, sizeof command, "rm -rf '%s'", at.home);
	if (system(command) != 0)
		fail("the folder");
}

static void daemon_start(const char *model, char **more, int more_count)
{
	char *argv[64] = {"holdfastd", "--model", (char *)model, "--listen", at.endpoint, "--log", "error",
		"--template", "smollm2", "--strikes", "0", "--threads", "1"};
	char state[96], cache[96];
	int n = 13;
	snprintf(at.home, sizeof at.home, "/dev/shm/hf-bench-XXXXXX");
	if (!mkdtemp(at.home))
		fail("a folder");
	snprintf(at.endpoint, sizeof at.endpoint, "ipc://%s/rpc.sock", at.home);
	snprintf(state, sizeof state, "%s/state", at.home);
	snprintf(cache, sizeof cache, "%s/cache", at.home);
	argv[n++] = "--state";
	argv[n++] = state;
	argv[n++] = "--cache";
	argv[n++] = cache;
	for (int i = 0; i < more_count; i++)
		argv[n++] = more[i];
	sigset_t set;
	sigfillset(&set);
	pthread_sigmask(SIG_BLOCK, &set, NULL);
	if (options_read(n, argv, &at.options) != 0)
		exit(1);
	if (pthread_create(&at.thread, NULL, daemon_main, NULL) != 0)
		fail("a thread");
	for (int i = 0; i < 2000 && !at.over && access(at.endpoint + 6, F_OK) != 0; i++)
		usleep(5000);
	if (!at.over && access(at.endpoint + 6, F_OK) == 0)
		return;
	fprintf(stderr, "bench_wire: the daemon does not serve with %s\n", model);
	if (at.over)
		daemon_stop();
	exit(1);
}

/* The daemon's threads and the library's: in `idle` and `waiting` nobody else is at work. */
static double process_cpu(void)
{
	struct timespec t;
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static double loop_cpu(void)
{
	struct timespec t;
	clock_gettime(at.clock, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* --- Small calls. --- */

/* rate 0: as many as go. Returns calls a second. */
static double calls_run(void *s, uint64_t *channel_at, double seconds, double rate, double *cpu_rate)
{
	static double sent[1 << 16];
	static struct wire_call m;
	uint8_t body[4096];
	struct wire_header h;
	size_t length = 0;
	uint64_t ended = 0, flying = 0, channel = *channel_at, began = channel;
	const double start = now(), cpu = loop_cpu();
	sample_count = 0;
	for (double t = start; t < start + seconds || flying; t = now()) {
		const double due = rate != 0 ? (t - start) * rate : 1e18;
		while (t < start + seconds && flying < DEPTH && (double)(channel - began) < due) {
			wire_call_init(&m, channel % 8 ? METHOD_HEALTH : METHOD_LEDGER_SHOW);
			sent[++channel % (1 << 16)] = now();
			call_send(s, channel, &m, NULL, 0);
			flying++;
		}
		while (take(s, &h, body, sizeof body, &length, flying ? 1 : 0)) {
			if (h.type == WIRE_REJECT)
				fail("a refusal");
			if (h.type != WIRE_END)
				continue;
			ended++;
			flying--;
			sample_add(now() - sent[h.channel % (1 << 16)]);
			if (flying < DEPTH / 2 || rate != 0)
				break;
		}
	}
	const double took = now() - start;
	*cpu_rate = (double)ended / (loop_cpu() - cpu);
	*channel_at = channel;
	qsort(samples, sample_count, sizeof *samples, smaller);
	return (double)ended / took;
}

static void calls(const char *model)
{
	double cpu;
	daemon_start(model, (char *[]){"--kv-memory", "600000"}, 2);
	void *context = zmq_ctx_new(), *s = client_open(context, at.endpoint, at.keys);
	uint64_t channel = 0;
	calls_run(s, &channel, 0.5, 0, &cpu);
	const double most = calls_run(s, &channel, 4, 0, &cpu);
	printf("small calls: %.0f a second, one client; %.0f a second of the loop's processor time\n", most, cpu);
	const double rates[] = {most / 2, 25000};
	for (int i = 0; i < 2; i++) {
		const double rate = calls_run(s, &channel, 4, rates[i], &cpu);
		printf("  at %s (%.0f a second): p50 %.0f us, p99 %.0f us\n", i ? "half of 50,000" : "half of that",
		       rate, percentile(0.5), percentile(0.99));
	}
	zmq_close(s);
	zmq_ctx_term(context);
	daemon_stop();
}

/* --- Streams. --- */

static void on_sample(uint32_t slot, uint32_t position)
{
	if (slot < STREAMS && position < POSITIONS)
		made[slot][position] = now();
}

/* Sessions 0 .. STREAMS - 1, opened one after another, so that the engine's slots are known. */
static void sessions_open_all(void *s, struct wire_id ids[STREAMS], uint64_t *channel)
{
	static struct wire_call m;
	static struct wire_end end;
	static uint8_t body[1 << 16];
	struct wire_limits limits;
	struct wire_header h;
	size_t length = 0;
	wire_limits_default(&limits);
	for (uint32_t i = 0; i < STREAMS;) {
		wire_call_init(&m, METHOD_SESSION_OPEN);
		m.a.template_name = (struct wire_str){"none", 4};
		call_send(s, ++*channel, &m, NULL, 0);
		while (take(s, &h, body, sizeof body, &length, 5000) && h.type != WIRE_END)
			;
		if (h.type != WIRE_END || wire_read_end(body, length, &limits, &end) != 0 || !end.has_sess)
			fail("a session");
		ids[i++] = end.sess;
	}
}

/* Every stream's turn of `tokens`; again and again for so long. Returns DATA a second. */
static double streams_run(void *s, const struct wire_id ids[STREAMS], uint64_t *channel_at, double seconds,
			  uint32_t tokens, double *cpu_rate, double *tokens_rate)
{
	static struct wire_call m;
	static struct wire_data data;
	static uint8_t body[1 << 16];
	struct wire_limits limits;
	uint64_t channel = *channel_at, count = 0, got = 0, of[STREAMS], seen[STREAMS];
	const uint32_t prompt[16] = {97};
	size_t length = 0;
	struct wire_header h;
	wire_limits_default(&limits);
	sample_count = first_count = 0;
	const double start = now(), cpu = loop_cpu();
	uint32_t running = 0;
	for (uint32_t i = 0; i < STREAMS; i++)
		of[i] = 0;
	for (;;) {
		for (uint32_t i = 0; i < STREAMS; i++) {
			if (of[i] || now() > start + seconds)
				continue;
			wire_call_init(&m, METHOD_SESSION_TURN);
			m.has_sess = true;
			m.sess = ids[i];
			m.window = 1 << 20;
			m.a.tokens_in_blob = true;
			m.a.keep = 0;
			m.a.sampling.max_tokens = tokens;
			m.a.sampling.ignore_end = true;
			seen[i] = 0;
			of[i] = ++channel;
			call_send(s, channel, &m, prompt, sizeof prompt);
			running++;
		}
		if (!running)
			break;
		if (!take(s, &h, body, sizeof body, &length, 5000))
			fail("nothing comes");
		uint32_t i = 0;
		while (i < STREAMS && of[i] != h.channel)
			i++;
		if (i == STREAMS)
			continue;
		if (h.type == WIRE_END) {
			of[i] = 0;
			running--;
		} else if (h.type == WIRE_DATA && wire_read_data(body, length, &limits, &data) == 0) {
			/* The last of its tokens is the one that was waited for. */
			seen[i] += data.n_tokens;
			got += data.n_tokens;
			count++;
			const uint64_t position = 15 + seen[i] - 1;
			if (position < POSITIONS)
				token_add(made[i][position]);
		}
	}
	const double took = now() - start;
	*cpu_rate = (double)count / (loop_cpu() - cpu);
	*tokens_rate = (double)got / took;
	*channel_at = channel;
	qsort(samples, sample_count, sizeof *samples, smaller);
	return (double)count / took;
}

/* The daemon, sessions in it, and a client. */
static void *streams_begin(const char *model, uint64_t step_us, void **context, struct wire_id ids[STREAMS],
			   uint64_t *channel)
{
	scripted.step_us = scripted.measured_us = step_us;
	scripted.on_sample = on_sample;
	daemon_start(model, (char *[]){"--kv-memory", "512M", "--stream-bytes", "1M",
		     "--audit-map-bytes", "1G"}, 6);
	*context = zmq_ctx_new();
	void *s = client_open(*context, at.endpoint, at.keys);
	sessions_open_all(s, ids, channel);
	return s;
}

static void streams_end(void *s, void *context)
{
	zmq_close(s);
	zmq_ctx_term(context);
	daemon_stop();
}

static void streams(const char *model, const char *what, uint64_t step_us, uint32_t tokens, double seconds)
{
	double cpu, rate;
	void *context;
	struct wire_id ids[STREAMS];
	uint64_t channel = 0;
	void *s = streams_begin(model, step_us, &context, ids, &channel);
	const double most = streams_run(s, ids, &channel, seconds, tokens, &cpu, &rate);
	printf("%s: %.0f DATA a second (%.0f tokens), %.0f a second of the loop's processor time\n", what, most,
	       rate, cpu);
	printf("  from the engine to the reader: p10 %.0f us, p50 %.0f us, p99 %.0f us\n", percentile(0.1),
	       percentile(0.5), percentile(0.99));
	streams_end(s, context);
}

/* --- What a token waits, beside what the library alone takes. --- */

enum { STEP_US = 5000, SLICE_TOKENS = 150 };

static struct slice bare_slice(void)
{
	static struct bare bare;
	static struct wire_data data;
	char endpoint[128];
	uint8_t body[256];
	struct wire_limits limits;
	struct wire_header h;
	size_t length = 0;
	void *context = zmq_ctx_new();
	wire_limits_default(&limits);
	snprintf(endpoint, sizeof endpoint, "%s-bare", at.endpoint);
	bare_begin(&bare, endpoint, SLICE_TOKENS, STEP_US, STREAMS);
	void *s = client_open(context, endpoint, at.keys);
	sample_count = first_count = 0;
	for (uint32_t i = 0; i < SLICE_TOKENS * STREAMS; i++) {
		if (!take(s, &h, body, sizeof body, &length, 5000) ||
		    wire_read_data(body, length, &limits, &data) != 0)
			fail("nothing comes");
		token_add(bare.made[data.off]);
	}
	bare_end(&bare);
	zmq_close(s);
	zmq_ctx_term(context);
	unlink(endpoint + 6);
	qsort(samples, sample_count, sizeof *samples, smaller);
	return slice_take();
}

static void latency(const char *model)
{
	double cpu, rate, more[SLICES];
	void *context;
	struct wire_id ids[STREAMS];
	struct slice ours[SLICES], theirs[SLICES];
	uint64_t channel = 0;
	void *s = streams_begin(model, STEP_US, &context, ids, &channel);
	streams_run(s, ids, &channel, 0.1, 20, &cpu, &rate);
	for (uint32_t i = 0; i < SLICES; i++) {
		theirs[i] = bare_slice();
		streams_run(s, ids, &channel, 0.1, SLICE_TOKENS, &cpu, &rate);
		ours[i] = slice_take();
		more[i] = ours[i].p50 - theirs[i].p50;
	}
	qsort(more, SLICES, sizeof *more, smaller);
	printf("%d streams, a step of %d us, from the engine to the reader, %d slices each in turns:\n", STREAMS,
	       STEP_US, SLICES);
	const struct slice b = slice_say("a bare ROUTER and DEALER", theirs);
	const struct slice o = slice_say("the daemon", ours);
	printf("  the daemon adds %.0f us at p50 (%.0f to %.0f in pairs of slices), %.0f us to the first\n",
	       more[SLICES / 2], more[0], more[SLICES - 1], o.first - b.first);
	streams_end(s, context);
}

/* So many messages, in and out, of small calls and of streams in turn. Memory must not grow, and nothing be
   left: every chunk ends with the last END. Of the second half the heap is held against the messages: one
   allocation that is lost now and then shows there, when what is made once is made. */
static int soak(const char *model, uint64_t most)
{
	uint64_t messages = 0, channel = 0, tenths = 0;
	uint64_t half = 0;
	double cpu, rate, first = 0, last = 0, heap_half = 0, heap = 0;
	struct wire_id ids[STREAMS];
	daemon_start(model, (char *[]){"--kv-memory", "4M", "--stream-bytes", "1M",
		     "--audit-map-bytes", "4G"}, 6);
	void *context = zmq_ctx_new(), *s = client_open(context, at.endpoint, at.keys);
	sessions_open_all(s, ids, &channel);
	for (uint32_t chunk = 0; messages < most || chunk < 6; chunk++) {
		const uint64_t before = channel;
		calls_run(s, &channel, 0.25, 0, &cpu);
		messages += 3 * (channel - before);
		const double data = streams_run(s, ids, &channel, 0.25, 400, &cpu, &rate);
		messages += (uint64_t)(data * 0.25);
		/* The audit log is a file in memory, and no growth of ours. */
		last = anonymous_mib();
		heap = heap_bytes();
		if (chunk == 2)
			first = last;
		if (!half && chunk >= 2 && messages >= most / 2) {
			half = messages;
			heap_half = heap;
		}
		if (messages / (most / 10 + 1) > tenths) {
			tenths = messages / (most / 10 + 1);
			printf("# %" PRIu64 " messages: %.1f MiB, %.0f bytes of heap\n", messages, last, heap);
			fflush(stdout);
		}
	}
	zmq_close(s);
	zmq_ctx_term(context);
	daemon_stop();
	const double grown = heap - heap_half, each = grown / (double)(messages - half);
	printf("%" PRIu64 " messages: %.1f MiB after the third half second, %.1f MiB at the end; the heap grew "
	       "by %.2f bytes a message in the second half (%.0f bytes)\n", messages, first, last, each, grown);
	return first > 0 && last < first + 24 && grown < HEAP_SLACK + (double)(messages - half) / 4
		       ? 0 : 1;
}

/* --- Those who wait. --- */

/* A socket of the library has two descriptors, so that one process has too few for 10,000. */
enum { IDLE_PROCESSES = 4 };

static void idle_clients(const char *endpoint, uint32_t count, int tell)
{
	uint8_t body[512];
	struct wire_header h;
	size_t length = 0;
	uint32_t welcome = 0;
	void *context = zmq_ctx_new();
	zmq_ctx_set(context, ZMQ_MAX_SOCKETS, (int)count + 16);
	while (welcome < count &&
	       take(client_open(context, endpoint, at.keys), &h, body, sizeof body, &length, 10000) &&
	       h.type == WIRE_WELCOME)
		welcome++;
	if (write(tell, &welcome, sizeof welcome) != sizeof welcome)
		_exit(1);
	pause();
	_exit(0);
}

static void idle(const char *model, uint32_t count, bool curve)
{
	char peers[16], tenants[128], secret[128], endpoint[96], home[] = "/dev/shm/hf-keys-XXXXXX";
	int in[2];
	snprintf(peers, sizeof peers, "%u", count + 16);
	if (curve) {
		if (!mkdtemp(home))
			fail("a folder");
		tenant_make(at.keys, home, tenants, secret, endpoint, count + 16);
		daemon_start(model, (char *[]){"--kv-memory", "600000", "--peers", peers, "--tenants", tenants,
			     "--curve-key", secret}, 8);
	} else {
		daemon_start(model, (char *[]){"--kv-memory", "600000", "--peers", peers}, 4);
		snprintf(endpoint, sizeof endpoint, "%s", at.endpoint);
	}
	usleep(300000);
	const double before = anonymous_mib();
	if (pipe(in) != 0)
		fail("a pipe");
	pid_t child[IDLE_PROCESSES];
	uint32_t welcome = 0;
	for (uint32_t i = 0; i < IDLE_PROCESSES; i++) {
		child[i] = fork();
		if (child[i] == 0)
			idle_clients(endpoint, count / IDLE_PROCESSES, in[1]);
	}
	for (uint32_t i = 0; i < IDLE_PROCESSES; i++) {
		uint32_t part;
		if (read(in[0], &part, sizeof part) != sizeof part)
			fail("the clients");
		welcome += part;
	}
	sleep(1);
	const double grown = anonymous_mib() - before, cpu = process_cpu(), start = now();
	sleep(5);
	printf("%u connections %s that wait: %.1f KiB each with the library's buffers, %zu bytes each of ours; "
	       "the process takes %.2f %% of a core\n", welcome, curve ? "over TCP with keys" : "by ipc",
	       grown * 1024 / welcome, sizeof(struct peer), (process_cpu() - cpu) / (now() - start) * 100);
	for (uint32_t i = 0; i < IDLE_PROCESSES; i++) {
		kill(child[i], SIGKILL);
		waitpid(child[i], NULL, 0);
	}
	daemon_stop();
	if (curve) {
		unlink(tenants);
		unlink(secret);
		rmdir(home);
	}
}

static void waiting(const char *model, uint32_t count)
{
	static struct wire_call m;
	static struct wire_end end;
	static uint8_t body[1 << 16];
	static const char tool[] = "{\"name\":\"ls\",\"parameters\":{\"type\":\"object\",\"properties\":{},"
				   "\"required\":[]}}";
	char sessions[16];
	struct wire_limits limits;
	struct wire_header h;
	uint64_t channel = 0, history = 0;
	uint32_t waits = 0;
	size_t length = 0;
	wire_limits_default(&limits);
	snprintf(sessions, sizeof sessions, "%u", count + 128);
	daemon_start(model, (char *[]){"--kv-memory", "1G", "--sessions", sessions, "--audit-map-bytes", "4G"},
		     6);
	void *context = zmq_ctx_new(), *s = client_open(context, at.endpoint, at.keys);
	double before = 0;
	for (uint32_t i = 0; i < count; i++) {
		if (i == count / 2)
			before = anonymous_mib(); /* what is made once is made, and its rings have been around */
		wire_call_init(&m, METHOD_SESSION_OPEN);
		m.a.tool_count = 1;
		m.a.tools[0] = (struct wire_str){tool, sizeof tool - 1};
		call_send(s, ++channel, &m, NULL, 0);
		while (take(s, &h, body, sizeof body, &length, 10000) && h.type != WIRE_END)
			;
		if (wire_read_end(body, length, &limits, &end) != 0 || !end.has_sess)
			break;
		wire_call_init(&m, METHOD_SESSION_TURN);
		m.has_sess = true;
		m.sess = end.sess;
		m.a.message_count = 1;
		m.a.messages[0] = (struct wire_message){.role = WIRE_USER, .content = {"list the folder", 15}};
		m.a.tool_choice = TOOL_REQUIRED;
		call_send(s, ++channel, &m, NULL, 0);
		while (take(s, &h, body, sizeof body, &length, 10000) && h.type != WIRE_END)
			;
		if (h.type == WIRE_END && wire_read_end(body, length, &limits, &end) == 0)
			waits += end.status.length == 9 && memcmp(end.status.at, "tool_wait", 9) == 0;
		history = end.usage.history ? end.usage.history : history;
	}
	sleep(1);
	const double grown = anonymous_mib() - before, cpu = process_cpu(), start = now();
	sleep(5);
	printf("%u sessions that wait for tools (%" PRIu64 " tokens each): %.2f KiB each beside KV; the process "
	       "takes %.2f %% of a core\n", waits, history, grown * 1024 / (count - count / 2),
	       (process_cpu() - cpu) / (now() - start) * 100);
	zmq_close(s);
	zmq_ctx_term(context);
	daemon_stop();
}

/* Each in a process of its own: the daemon is one of a process. */
static int apart(const char *model, const char *what, uint64_t count)
{
	int status = 1, code = 0;
	fflush(stdout);
	const pid_t child = fork();
	if (child == 0) {
		if (strcmp(what, "soak") == 0)
			code = soak(model, count);
		else if (strcmp(what, "calls") == 0)
			calls(model);
		else if (strcmp(what, "data") == 0)
			streams(model, "DATA out, 32 streams, 533,000 tokens a second made", 60, 700, 4);
		else if (strcmp(what, "half") == 0)
			streams(model, "DATA at 100,000 a second", 320, 700, 4);
		else if (strcmp(what, "latency") == 0)
			latency(model);
		else if (strcmp(what, "idle") == 0)
			idle(model, (uint32_t)count, false);
		else if (strcmp(what, "curve") == 0)
			idle(model, (uint32_t)count, true);
		else
			waiting(model, (uint32_t)count);
		fflush(stdout);
		_exit(code);
	}
	waitpid(child, &status, 0);
	return status == 0 ? 0 : 1;
}

int main(int argc, char **argv)
{
	static const char *const all[] = {"calls", "data", "half", "latency", "idle", "curve", "waiting", "soak"};
	static const char usage[] = "usage: bench_wire MODEL [calls|data|half|latency|idle N|curve N|waiting N|"
				    "soak N]";
	enum { MODES = sizeof all / sizeof all[0], COUNTED = 4 /* from here on with an N */ };
	const char *mode = argc > 2 ? argv[2] : NULL;
	struct stat file;
	char *end = "";
	uint32_t which = 0;
	const uint64_t count = argc > 3 ? strtoull(argv[3], &end, 10) : 10000;
	while (mode && which < MODES && strcmp(mode, all[which]) != 0)
		which++;
	if (argc < 2 || argc > 4 || which == MODES || *end || count == 0 || (argc > 3 && which < COUNTED)) {
		fprintf(stderr, "%s\n", usage);
		return 2;
	}
	if (stat(argv[1], &file) != 0 || !S_ISREG(file.st_mode) || access(argv[1], R_OK) != 0) {
		fprintf(stderr, "bench_wire: %s is not a model's file\n%s\n", argv[1], usage);
		return 2;
	}
	samples = malloc(SAMPLES_MAX * sizeof *samples);
	int code = 0;
	/* What is asked of DATA is so many a second, and how late they are at half of that. */
	for (uint32_t i = 0; i < MODES; i++)
		if (mode ? i == which || (i == 2 && which == 1) : i + 1 < MODES)
			code |= apart(argv[1], all[i], count);
	return code;
}
