/*
 * Goal: whatever clients send, in whatever order, each call has its answer: REJECT, or ACCEPTED and then
 * exactly one END, DATA between them numbered without gaps and within the credit, and nothing behind it;
 * what is sent again is what it was; who reads is not let go; and a turn that was accepted is there after a
 * kill.
 *
 * Method: the daemon's own loop with a scripted engine and a sink in the sockets' place. Valid messages
 * are drawn by a seed: calls of every method, credit, cancels, RESUME, ACK, BYE, HELLO again; readers stop,
 * vanish and come back; copies fail; time leaps; the audit log falls behind; the daemon is closed, or
 * killed, and opened again. From time to time the noise stops, and then everything that is owed must come,
 * and nothing may be held. Clock, chance and log go in step (lockstep.h): a seed is a run.
 *
 * HOLDFAST_FUZZ_LOOP=N: so many messages (default 40,000; 8,000 with sanitizers), over four seeds.
 * HOLDFAST_SEED=N: all of them with that one.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/keep.h"
#include "runtime/loop.h"
#include "tests/draw.h"
#include "tests/fuzz_fill.h"
#include "tests/fuzz_world.h"
#include "tests/lockstep.h"
#include "tests/memory.h"
#include "tests/scripted_engine.h"
#include "tests/tap.h"

enum {
	KEYS = 12, QUIET_EVERY = 1300, LIFE_EVERY = 1900, SEEDS = 4, LOOP_US = 50,
	LAG_LOOPS = 200, LAG_LEAP_US = 350000 /* more than two stall times pass while the log lags */
};

static struct options options;
static const char *home;

/* As parts_peer does, without a socket. */
static uint32_t peer_of(uint32_t client)
{
	struct daemon *d = &daemon_;
	const uint8_t id[5] = {0, 'p', (uint8_t)client};
	places_look();
	const uint32_t peer = peer_find(d, 0, id, sizeof id, client % PRINCIPALS);
	places_look();
	if (peer == NONE)
		return NONE;
	d->peers[peer].roles = ROLE_AGENT | (client == 0 ? ROLE_OPERATOR : 0);
	d->peers[peer].seen_us = d->now_us;
	return peer;
}

static void say(uint32_t client, uint8_t type, uint64_t channel, const struct wire_writer *w,
		const void *blob, size_t blob_length)
{
	const uint32_t peer = peer_of(client);
	const struct wire_header h = {.type = type, .flags = blob ? WIRE_FLAG_BLOB : 0, .channel = channel};
	world.messages++;
	CHECK(!w->full);
	if (peer == NONE) {
		struct owed_call *c = channel ? call_find(client, channel) : NULL;
		if (c)
			c->used = false;
		return;
	}
	const bool known = daemon_.peers[peer].hello;
	loop_message(&daemon_, peer, &h, w->at, w->length, blob, blob_length);
	if (type == WIRE_BYE && known)
		client_gone(client);
	places_look();
}

static uint8_t body_bytes[1 << 16];

static struct wire_writer writer(void)
{
	struct wire_writer w;
	wire_writer_init(&w, body_bytes, sizeof body_bytes);
	return w;
}

static void say_hello(uint32_t client)
{
	struct wire_writer w = writer();
	const struct wire_hello m = {.client = {"fuzz", 4}, .minor = draw(3)};
	CHECK(wire_write_hello(&w, &m) == 0);
	say(client, WIRE_HELLO, 0, &w, NULL, 0);
}

static struct owed_call *call_new(uint32_t client)
{
	for (uint32_t i = 0; i < OWED_MAX_CALLS; i++)
		if (!world.calls[i].used) {
			world.calls[i] = (struct owed_call){.used = true, .client = client,
							    .channel = ++world.channel[client]};
			return &world.calls[i];
		}
	return NULL;
}

static struct wire_id session_any(uint32_t principal)
{
	struct wire_id id = world.sessions[principal][draw(SESSIONS)];
	if (draw(50) == 0)
		id.bytes[3] ^= 1;
	return id;
}

static struct wire_id key_any(void)
{
	struct wire_id id = {{0}};
	id.bytes[0] = (uint8_t)(1 + draw(KEYS));
	return id;
}

static void say_call(uint32_t client)
{
	static struct wire_call m;
	static uint32_t ids[512];
	static const uint8_t often[] = {METHOD_SESSION_TURN, METHOD_SESSION_TURN, METHOD_SESSION_TURN,
		METHOD_SESSION_TURN, METHOD_SESSION_CONTINUE, METHOD_SESSION_OPEN, METHOD_SESSION_OPEN,
		METHOD_SESSION_FORK, METHOD_SESSION_ROLLBACK, METHOD_SESSION_PARK, METHOD_SESSION_ATTACH};
	const uint8_t method = draw(3) ? often[draw(sizeof often)] : (uint8_t)draw(METHOD_COUNT);
	struct owed_call *c;
	struct wire_writer w = writer();
	size_t count = 0;
	if (method == METHOD_SESSION_IMPORT || !(c = call_new(client)))
		return;
	wire_call_init(&m, (enum wire_method)method);
	m.window = draw(3) ? draw(4000) : 1 << 20;
	/* Methods of a session name one. */
	m.has_sess = method <= METHOD_SESSION_PARK && method != METHOD_SESSION_OPEN &&
		     method != METHOD_SESSION_LIST;
	m.has_sess |= method == METHOD_SESSION_EXPORT || method == METHOD_SESSION_TOUCH;
	m.sess = session_any(client % PRINCIPALS);
	if (draw(6) == 0) {
		m.has_idem = true;
		m.idem = key_any();
	}
	if (draw(4) == 0)
		m.detach_ms = draw(60);
	if (draw(12) == 0)
		m.deadline_ms = 1 + draw(300);
	if (method_is_turn(method))
		count = turn_fill(&m, ids);
	else
		args_fill(&m);
	CHECK(wire_write_call(&w, &m) == 0);
	c->method = method;
	c->sess = m.sess;
	c->window = m.window;
	say(client, WIRE_CALL, c->channel, &w, count ? ids : NULL, count * 4);
}

static struct wire_id op_any(uint32_t principal)
{
	struct wire_id id = {{9}};
	for (int i = 0; i < 8; i++) {
		const struct known_op *k = &world.ops[draw(OPS)];
		if (k->principal == principal)
			id = k->op;
	}
	return id;
}

static void say_resume(uint32_t client, const struct wire_id *op, uint64_t after_seq, bool must)
{
	struct wire_writer w = writer();
	struct owed_call *c = call_new(client);
	if (!c)
		return;
	const struct wire_resume m = {.op = *op, .window = draw(2) ? draw(3000) : 1 << 20,
				      .after_seq = after_seq};
	c->after_seq = m.after_seq;
	c->window = m.window;
	c->must = must;
	CHECK(wire_write_resume(&w, &m) == 0);
	world.resumed++;
	say(client, WIRE_RESUME, c->channel, &w, NULL, 0);
}

static void say_resume_any(uint32_t client)
{
	const struct wire_id op = op_any(client % PRINCIPALS);
	const struct known_op *k = op_find(&op);
	say_resume(client, &op, k && k->seqs ? draw((uint32_t)(k->seqs < OFFS ? k->seqs : OFFS) + 2) : draw(3),
		   false);
}

static void say_cancel(uint32_t client)
{
	struct wire_writer w = writer();
	struct wire_cancel m = {.has_op = draw(2), .op = op_any(client % PRINCIPALS)};
	/* Not the next one: its call could be made before the refusal of this is read. */
	const bool none = !world.channel[client] || draw(50) == 0;
	const uint64_t channel = m.has_op ? 0 : none ? 1ull << 40 : 1 + draw((uint32_t)world.channel[client]);
	CHECK(wire_write_cancel(&w, &m) == 0);
	world.cancelled[client]++;
	say(client, WIRE_CANCEL, channel, &w, NULL, 0);
}

static void say_window(uint32_t client, const struct wire_id *op, uint64_t max_off)
{
	struct wire_writer w = writer();
	struct known_op *k = op_find(op);
	const struct wire_window m = {*op, max_off};
	if (k && k->granted[client] < max_off)
		k->granted[client] = max_off;
	CHECK(wire_write_window(&w, &m) == 0);
	say(client, WIRE_WINDOW, 0, &w, NULL, 0);
}

static void say_small(uint32_t client, uint8_t type)
{
	struct wire_writer w = writer();
	const struct wire_ack ack = {op_any(client % PRINCIPALS), draw(20)};
	const struct wire_ping ping = {draw(1000)};
	if (type == WIRE_ACK)
		CHECK(wire_write_ack(&w, &ack) == 0);
	else if (type == WIRE_PING)
		CHECK(wire_write_ping(&w, &ping) == 0);
	else
		CHECK(wire_write_bye(&w) == 0);
	say(client, type, 0, &w, NULL, 0);
}

static void loop_once(void)
{
	bool more;
	uint64_t next;
	lockstep_pass(LOOP_US);
	loop_work(&daemon_, &more, &next);
	places_look();
	if (world.lag && !world.quiet) {
		world.lag--;
		if (draw(LAG_LOOPS / 4) == 0)
			lockstep_pass(LAG_LEAP_US);
		return;
	}
	lockstep_log(daemon_.store);
	if (world.quiet)
		return;
	if (draw(4) == 0)
		world.lag = draw(6);
	else if (draw(LAG_LOOPS) == 0)
		world.lag = draw(2 * LAG_LOOPS);
}

/* Somebody comes for whom another has to give up his place. */
static void stranger(void)
{
	const uint8_t id[5] = {0, 's', (uint8_t)draw(200)};
	const struct wire_header h = {.type = WIRE_HELLO};
	const struct wire_hello m = {.client = {"x", 1}};
	struct wire_writer w = writer();
	const uint32_t peer = peer_find(&daemon_, 0, id, sizeof id, 0);
	CHECK(wire_write_hello(&w, &m) == 0);
	places_look();
	if (peer != NONE)
		loop_message(&daemon_, peer, &h, w.at, w.length, NULL, 0);
}

static void window_any(uint32_t client)
{
	const struct wire_id op = op_any(client % PRINCIPALS);
	say_window(client, &op, draw(6000));
}

static void noise(void)
{
	const uint32_t client = draw(CLIENTS), what = draw(100);
	if (world.unknown[client] && draw(8)) {
		world.unknown[client] = false;
		say_hello(client);
	} else if (what < 42)
		say_call(client);
	else if (what < 58)
		window_any(client);
	else if (what < 66)
		say_resume_any(client);
	else if (what < 74)
		say_cancel(client);
	else if (what < 80)
		say_small(client, WIRE_ACK);
	else if (what < 88)
		say_small(client, WIRE_PING);
	else if (what < 92)
		say_hello(client);
	else if (what < 93)
		say_small(client, WIRE_BYE);
	else if (what < 94)
		world.stuck[client] = true;
	else if (what < 96)
		memset(world.stuck, 0, sizeof world.stuck);
	else if (what == 96 && draw(4) == 0)
		world.lost[client] = true;
	else if (what == 98 && draw(8) == 0)
		stranger();
	else if (what == 97)
		lockstep_pass(draw(20) ? draw(20000) : draw(400000));
	if (draw(3) == 0)
		loop_once();
}

static bool nothing_held(void)
{
	const struct daemon *d = &daemon_;
	bool fine = true;
	for (enum account a = ACCOUNT_DEVICE; a <= ACCOUNT_STREAM; a++)
		for (enum column c = COLUMN_RUNNING; c <= COLUMN_MOVING; c++)
			if (c != COLUMN_RETAINED && c != COLUMN_SHARED)
				fine &= sched_ledger(d->sched, a, c) == 0;
	for (uint32_t i = 0; i < d->options.peers; i++)
		fine &= !d->peers[i].used || d->peers[i].calls == 0;
	fine &= sched_ledger(d->sched, ACCOUNT_STREAM, COLUMN_RUNNING) == 0;
	sched_audit(d->sched);
	return fine;
}

/* Everybody reads again; what is owed comes, and then nothing is held. */
static bool quiet(void)
{
	struct daemon *d = &daemon_;
	memset(world.stuck, 0, sizeof world.stuck);
	world.quiet = true;
	for (int round = 0; round < 4000; round++) {
		for (uint32_t i = 0; round % 16 == 0 && i < OWED_MAX_CALLS; i++)
			if (world.calls[i].used)
				say_window(world.calls[i].client, &world.calls[i].op, INT64_MAX);
		loop_once();
		/* Also those that nobody reads, within their detach time. */
		uint32_t running = d->in_flight || d->owed_count;
		for (uint32_t i = 0; i < d->options.calls; i++)
			running += d->calls[i].state != CALL_FREE && !call_kept(&d->calls[i]);
		/* Pages that nobody waits for may still be on their way down. */
		if (!running && !still_owed() && nothing_held()) {
			world.quiet = false;
			return true;
		}
		lockstep_pass(1000);
	}
	printf("# %u calls are owed, %s is held, after %llu messages\n", still_owed(),
	       nothing_held() ? "nothing" : "something", (unsigned long long)world.messages);
	owed_print();
	return false;
}

static int life_open(void)
{
	struct daemon *d = &daemon_;
	lockstep_open();
	TRY(daemon_inside_open(d, &options));
	d->sink = world_sink;
	d->now_us = d->started_us = loop_clock_us();
	CHECK(principal_find(d, "ann", 0) == 0);
	CHECK(principal_find(d, "bob", 0) == 1);
	world.lives++;
	return 0;
}

/* Closed in the middle of everything, or killed, and opened again. Channels and pipes are gone with it;
   turns that were accepted, and had no END, are not. */
static int life_next(void)
{
	struct daemon *d = &daemon_;
	const bool killed = world.lives % 2;
	struct { struct wire_id op; uint32_t client; uint64_t seq; } runs[CLIENTS * 4];
	uint32_t count = 0;
	for (uint32_t i = 0; killed && i < OWED_MAX_CALLS && count < CLIENTS * 4; i++) {
		const struct owed_call *c = &world.calls[i];
		const uint32_t at = c->used && c->accepted && c->seq < OFFS
			? call_of_op(d, c->client % PRINCIPALS, &c->op) : NONE;
		/* Who reads it now: one that was fenced may not know it yet. */
		if (at == NONE || d->calls[at].state != CALL_RUNNING || d->calls[at].peer == NONE ||
		    d->peers[d->calls[at].peer].id[2] != c->client || d->calls[at].channel != c->channel)
			continue;
		runs[count].op = c->op;
		runs[count].client = c->client;
		runs[count++].seq = c->seq;
	}
	world.kills += killed;
	lockstep_end(killed);
	daemon_inside_close(d);
	for (uint32_t i = 0; i < CLIENTS; i++)
		client_gone(i);
	memset(world.here, 0, sizeof world.here);
	memset(world.lost, 0, sizeof world.lost);
	memset(world.stuck, 0, sizeof world.stuck);
	TRY(life_open());
	for (uint32_t i = 0; i < count; i++) {
		say_hello(runs[i].client);
		say_resume(runs[i].client, &runs[i].op, runs[i].seq, true);
		world.found++;
	}
	return 0;
}

/* A turn runs, and its client knows. */
static bool turn_runs(void)
{
	for (uint32_t i = 0; i < daemon_.options.calls; i++)
		if (daemon_.calls[i].state == CALL_RUNNING && daemon_.calls[i].accepted_sent && daemon_.calls[i].seq)
			return true;
	return false;
}

static void grown(double *first_mib, bool end)
{
	/* Tables are touched bit by bit in the first life. */
	if (*first_mib == 0 && world.lives > 1)
		*first_mib = anonymous_mib();
	const double last_mib = anonymous_mib();
	if (end && *first_mib > 0 && !getenv("HOLDFAST_SANITIZED") && !EXPECT(last_mib < *first_mib + 16))
		printf("# %.1f MiB grew to %.1f MiB\n", *first_mib, last_mib);
}

/* One run, from a store of its own. */
static void run(uint64_t from, uint64_t most)
{
	double first_mib = 0;
	memset(&world, 0, sizeof world);
	world.digest = 0xcbf29ce484222325;
	wrong = NULL;
	seed = from * 2654435761u + 1;
	lockstep_begin(from);
	scripted.copy_fails = 50;
	scripted.faults = 20000;
	scripted.halves = true;
	scripted.measured_us = from % 2 * 5000; /* what is sent first depends on it */
	snprintf(options.state, sizeof options.state, "%s/state-%d-%llu", home, (int)getpid(),
		 (unsigned long long)from);
	REQUIRE(life_open() == 0);
	uint64_t next_quiet = QUIET_EVERY, next_life = LIFE_EVERY;
	while (world.messages < most && !wrong) {
		noise();
		if (world.messages >= next_quiet && !wrong) {
			next_quiet = world.messages + QUIET_EVERY;
			REQUIRE(EXPECT(quiet()));
			memset(world.cancelled, 0, sizeof world.cancelled);
			grown(&first_mib, false);
		}
		if (world.messages >= next_life + (turn_runs() ? 0 : LIFE_EVERY / 4) && !wrong) {
			next_life = world.messages + LIFE_EVERY;
			REQUIRE(life_next() == 0);
		}
	}
	if (!wrong)
		EXPECT(quiet());
	if (wrong)
		printf("# seed %llu: %s, after %llu messages\n", (unsigned long long)from, wrong,
		       (unsigned long long)world.messages);
	REQUIRE(wrong == NULL);
	grown(&first_mib, true);
	lockstep_end(false);
	daemon_inside_close(&daemon_);
}

static uint64_t messages_all(void)
{
	const char *asked = getenv("HOLDFAST_FUZZ_LOOP");
	return asked ? strtoull(asked, NULL, 10) : getenv("HOLDFAST_SANITIZED") ? 8000 : 40000;
}

static void messages_in_any_order(void)
{
	const char *from = getenv("HOLDFAST_SEED");
	uint64_t lives = 0, kills = 0, found = 0;
	for (uint64_t i = 1; i <= (from ? 1 : SEEDS) && !tap_failed; i++) {
		const uint64_t one = from ? strtoull(from, NULL, 10) : i, most = messages_all() / (from ? 1 : SEEDS);
		run(one, most);
		printf("# seed %llu: %llu messages, %llu ends, %llu data, %llu refusals, %llu resumes, %llu lives, "
		       "%llu of them after kills, %llu turns found again\n", (unsigned long long)one,
		       (unsigned long long)world.messages, (unsigned long long)world.ends,
		       (unsigned long long)world.data, (unsigned long long)world.rejects,
		       (unsigned long long)world.resumed, (unsigned long long)world.lives,
		       (unsigned long long)world.kills, (unsigned long long)world.found);
		EXPECT(world.ends > most / 20);
		EXPECT(world.data > most / 400);
		EXPECT(world.resumed > most / 50);
		lives += world.lives;
		kills += world.kills;
		found += world.found;
	}
	if (!from && messages_all() >= 40000) {
		EXPECT(kills > 1 && lives > kills + SEEDS);
		EXPECT(found > 0);
	}
}

/* In a process of its own, so that nothing of the one before is there. */
static uint64_t digest_of(uint64_t from, uint64_t most)
{
	int ends[2], status;
	uint64_t digest = 0;
	fflush(stdout);
	CHECK(pipe(ends) == 0);
	const pid_t child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		run(from, most);
		fflush(stdout);
		_exit(tap_failed || write(ends[1], &world.digest, sizeof world.digest) != sizeof world.digest);
	}
	close(ends[1]);
	const bool whole = read(ends[0], &digest, sizeof digest) == sizeof digest;
	close(ends[0]);
	CHECK(waitpid(child, &status, 0) == child);
	EXPECT(whole && status == 0);
	return digest;
}

static void seed_is_a_run(void)
{
	const uint64_t most = getenv("HOLDFAST_SANITIZED") ? 1500 : 5000;
	const uint64_t first = digest_of(7, most);
	EXPECT(first != 0 && digest_of(7, most) == first);
	EXPECT(digest_of(8, most) != first);
}

int main(void)
{
	char folder[] = "/dev/shm/hf-fuzz-XXXXXX", elsewhere[] = "/tmp/hf-fuzz-XXXXXX", command[512];
	char model[64], state[64], cache[64];
	const char *build = getenv("BUILDDIR");
	home = mkdtemp(folder) ? folder : mkdtemp(elsewhere);
	CHECK(home);
	snprintf(model, sizeof model, "%s/tiny.gguf", home);
	snprintf(state, sizeof state, "%s/state", home);
	snprintf(cache, sizeof cache, "%s/cache", home);
	snprintf(command, sizeof command, "'%s/tests/make_tiny' %s 7", build ? build : ".", model);
	CHECK(system(command) == 0);
	char *argv[] = {"holdfastd", "--model", model, "--state", state, "--cache", cache,
		"--template", "smollm2", "--listen", "ipc:///nowhere", "--kv-memory", "300000",
		"--host-memory", "60000", "--context", "256",
		"--sessions", "24", "--turns", "4", "--queue", "6", "--calls", "40", "--calls-principal", "16",
		"--stream-bytes", "1024", "--detach-ms", "20", "--detach-max-ms", "60", "--keep-ms", "30",
		"--note-ms", "50", "--stall-ms", "150", "--session-turns", "8", "--strikes", "0", "--peers", "7",
		"--principals", "4", "--events-kept", "64", "--log", "error", "--threads", "1",
		"--audit-map-bytes", "1G", "--session-idle-ms", "4000", "--integrity", "check", NULL};
	CHECK(options_read(sizeof argv / sizeof argv[0] - 1, argv, &options) == 0);
	TAP_RUN(seed_is_a_run, "a seed is a run: the same messages each time");
	TAP_RUN(messages_in_any_order, "valid messages in any order: each call has its answer");
	snprintf(command, sizeof command, "rm -rf '%s'", home);
	CHECK(system(command) == 0);
	return tap_done();
}
