/*
 * Goal: whatever clients send, in whatever order, each call has its answer: REJECT, or ACCEPTED and then
 * exactly one END, DATA between them numbered without gaps, and nothing behind it.
 *
 * Method: the daemon's own loop with a scripted engine and a sink in the sockets' place. Valid messages
 * are drawn by a seed: calls of every method, credit, cancels, RESUME, ACK, BYE, HELLO again; readers stop,
 * vanish and come back; copies fail; time leaps; the daemon is closed and opened again. From time to time
 * the noise stops, and then everything that is owed must come, and nothing may be held.
 *
 * HOLDFAST_FUZZ_LOOP=N: so many messages (default 60,000; 6,000 with sanitizers). HOLDFAST_SEED=N.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "runtime/keep.h"
#include "runtime/loop.h"
#include "tests/draw.h"
#include "tests/fuzz_fill.h"
#include "tests/memory.h"
#include "tests/scripted_engine.h"
#include "tests/tap.h"

enum {
	CLIENTS = 6, PRINCIPALS = 2, OWED_MAX_CALLS = 4096, OPS = 512, SESSIONS = 32, KEYS = 12, OFFS = 256,
	QUIET_EVERY = 3000, LIFE_EVERY = 40000, CHANNELS = 1 << 20
};

/* A call as its client knows it. */
struct owed_call {
	bool used, accepted, dup;
	uint32_t client;
	uint64_t channel, seq, off;
	struct wire_id op;
	uint8_t method;
	uint64_t after_seq; /* of a RESUME */
};

/* Where each DATA of an op ended: what is sent again is cut as it was. */
struct known_op {
	struct wire_id op;
	uint32_t principal;
	uint64_t seqs;
	uint32_t off[OFFS];
};

static struct daemon daemon_;
static struct options options;
static struct {
	struct owed_call calls[OWED_MAX_CALLS];
	struct known_op ops[OPS];
	uint32_t op_next;
	struct wire_id sessions[PRINCIPALS][SESSIONS];
	uint32_t session_next[PRINCIPALS];
	uint64_t channel[CLIENTS], cancelled[CLIENTS];
	bool unknown[CLIENTS]; /* it is told to say HELLO */
	bool here[CLIENTS]; /* it has a place among the peers */
	bool stuck[CLIENTS], lost[CLIENTS]; /* its pipe is full; it is gone, and the daemon does not know */
	uint64_t messages, answered, ends, data, rejects, resumed, lives;
	uint64_t statuses[16];
	bool quiet;
} world;
static uint64_t leap_us;
static const char *wrong;

/* The clock of the whole process, that can be moved on. */
int clock_gettime(clockid_t clock, struct timespec *t)
{
	const int code = (int)syscall(SYS_clock_gettime, clock, t);
	if (code == 0 && clock == CLOCK_MONOTONIC) {
		const uint64_t us = (uint64_t)t->tv_nsec / 1000 + leap_us;
		t->tv_sec += (time_t)(us / 1000000);
		t->tv_nsec = (long)(us % 1000000) * 1000 + t->tv_nsec % 1000;
	}
	return code;
}

/* Why a call is over for its client, the last of so many channels: for whoever reads a failure. */
enum { REASONS = 4096 };
static char reason[CLIENTS][REASONS];

static void over(struct owed_call *c, char why)
{
	c->used = false;
	reason[c->client][c->channel % REASONS] = why;
}

static void bad(const char *what)
{
	if (!wrong)
		wrong = what;
}

static struct owed_call *call_find(uint32_t client, uint64_t channel)
{
	for (uint32_t i = 0; i < OWED_MAX_CALLS; i++)
		if (world.calls[i].used && world.calls[i].client == client && world.calls[i].channel == channel)
			return &world.calls[i];
	return NULL;
}

static struct known_op *op_find(const struct wire_id *op)
{
	for (uint32_t i = 0; i < OPS; i++)
		if (memcmp(&world.ops[i].op, op, sizeof *op) == 0)
			return &world.ops[i];
	return NULL;
}

/* Whoever reads it no more is owed nothing. */
static void client_gone(uint32_t client)
{
	for (uint32_t i = 0; i < OWED_MAX_CALLS; i++)
		if (world.calls[i].used && world.calls[i].client == client)
			over(&world.calls[i], 'g');
}

static void accepted(struct owed_call *c, uint32_t principal, const void *body, size_t length)
{
	struct wire_accepted m;
	if (wire_read_accepted(body, length, &daemon_.wire, &m) != 0 || c->accepted) {
		bad("ACCEPTED twice, or unreadable");
		return;
	}
	c->accepted = true;
	c->dup = m.dup;
	c->op = m.op;
	struct known_op *k = op_find(&m.op);
	c->seq = c->after_seq;
	c->off = c->after_seq && k && c->after_seq <= OFFS ? k->off[c->after_seq - 1] : 0;
	if (k)
		return;
	k = &world.ops[world.op_next++ % OPS];
	*k = (struct known_op){.op = m.op, .principal = principal};
}

static void data(struct owed_call *c, const struct wire_header *h, const void *body, size_t length,
		 size_t blob_length)
{
	struct wire_data m;
	struct known_op *k = op_find(&c->op);
	if (wire_read_data(body, length, &daemon_.wire, &m) != 0 || !c->accepted || h->seq != c->seq + 1 ||
	    blob_length != m.n_tokens * 4 || m.off != c->off + m.text.length) {
		bad("DATA out of order, or not what it says");
		return;
	}
	c->seq = h->seq;
	c->off = m.off;
	world.data++;
	if (!k || h->seq > OFFS)
		return;
	if (h->seq <= k->seqs && k->off[h->seq - 1] != m.off)
		bad("what is sent again is cut differently");
	k->off[h->seq - 1] = (uint32_t)m.off;
	k->seqs = h->seq > k->seqs ? h->seq : k->seqs;
}

static void end(struct owed_call *c, uint32_t principal, const struct wire_header *h, const void *body,
		size_t length)
{
	static struct wire_end m;
	if (wire_read_end(body, length, &daemon_.wire, &m) != 0 || !c->accepted || h->seq != c->seq + 1 ||
	    m.status.length == 0) {
		bad("END out of order, or unreadable");
		return;
	}
	if (m.has_sess && m.err.code == 0)
		world.sessions[principal][world.session_next[principal]++ % SESSIONS] = m.sess;
	world.ends++;
	over(c, 'e');
}

static int sink(struct daemon *d, uint32_t peer, const struct wire_header *h, const void *body, size_t length,
		const void *blob, size_t blob_length)
{
	const uint32_t client = d->peers[peer].id[1], principal = client % PRINCIPALS;
	(void)blob;
	if (d->peers[peer].id[0] != 'p')
		return 0; /* a stranger's */
	if (world.lost[client]) {
		world.lost[client] = false;
		client_gone(client);
		return -ERR_CLOSED;
	}
	if (world.stuck[client])
		return -ERR_LIMIT;
	struct owed_call *c = h->channel ? call_find(client, h->channel) : NULL;
	switch (h->type) {
	case WIRE_REJECT:
		world.rejects++;
		static struct wire_reject refused;
		if (wire_read_reject(body, length, &d->wire, &refused) != 0)
			bad("REJECT is unreadable");
		world.unknown[client] |= refused.err.code == ERR_UNAUTHENTICATED;
		/* A cancel that came too late is refused on its call's channel. */
		if (!c && h->channel && !world.cancelled[client])
			bad("REJECT of what nobody asked");
		if (c)
			over(c, 'r');
		break;
	case WIRE_ACCEPTED:
	case WIRE_DATA:
	case WIRE_END:
		if (!c) {
			printf("# type %#x, client %u, channel %llu, which ended by '%c'\n", h->type, client,
			       (unsigned long long)h->channel, reason[client][h->channel % REASONS]);
			bad("a message of a call that is over");
		} else if (h->type == WIRE_ACCEPTED)
			accepted(c, principal, body, length);
		else if (h->type == WIRE_DATA)
			data(c, h, body, length, blob_length);
		else
			end(c, principal, h, body, length);
		break;
	case WIRE_NOTE:
		if (!c)
			bad("NOTE of a call that is over");
		break;
	default:
		break;
	}
	return 0;
}

/* Who had a place among the peers and gave it up to another is owed nothing that waited for room. */
static void places_look(void)
{
	bool here[CLIENTS] = {false};
	for (uint32_t i = 0; i < daemon_.options.peers; i++)
		if (daemon_.peers[i].used && daemon_.peers[i].id[0] == 'p')
			here[daemon_.peers[i].id[1]] = true;
	for (uint32_t i = 0; i < CLIENTS; i++) {
		if (world.here[i] && !here[i])
			client_gone(i);
		world.here[i] = here[i];
	}
}

/* As parts_peer does, without a socket. */
static uint32_t peer_of(uint32_t client)
{
	struct daemon *d = &daemon_;
	const uint8_t id[2] = {'p', (uint8_t)client};
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
		METHOD_SESSION_FORK, METHOD_SESSION_ROLLBACK, METHOD_SESSION_PARK};
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
	m.has_sess |= method == METHOD_SESSION_EXPORT;
	m.sess = session_any(client % PRINCIPALS);
	if (draw(3) == 0) {
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

static void say_resume(uint32_t client)
{
	struct wire_writer w = writer();
	struct owed_call *c = call_new(client);
	const struct wire_id op = op_any(client % PRINCIPALS);
	const struct known_op *k = op_find(&op);
	if (!c)
		return;
	const struct wire_resume m = {.op = op, .window = draw(2) ? draw(3000) : 1 << 20,
				      .after_seq = k && k->seqs ? draw((uint32_t)(k->seqs < OFFS ? k->seqs : OFFS) + 2)
								: draw(3)};
	c->after_seq = m.after_seq;
	CHECK(wire_write_resume(&w, &m) == 0);
	world.resumed++;
	say(client, WIRE_RESUME, c->channel, &w, NULL, 0);
}

static void say_cancel(uint32_t client)
{
	struct wire_writer w = writer();
	struct wire_cancel m = {.has_op = draw(2), .op = op_any(client % PRINCIPALS)};
	const uint64_t channel = m.has_op ? 0 : 1 + draw((uint32_t)world.channel[client] + 1);
	CHECK(wire_write_cancel(&w, &m) == 0);
	world.cancelled[client]++;
	say(client, WIRE_CANCEL, channel, &w, NULL, 0);
}

static void say_small(uint32_t client, uint8_t type)
{
	struct wire_writer w = writer();
	const struct wire_window window = {op_any(client % PRINCIPALS), draw(6000)};
	const struct wire_ack ack = {op_any(client % PRINCIPALS), draw(20)};
	const struct wire_ping ping = {draw(1000)};
	if (type == WIRE_WINDOW)
		CHECK(wire_write_window(&w, &window) == 0);
	else if (type == WIRE_ACK)
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
	uint64_t next, n;
	loop_work(&daemon_, &more, &next);
	if (daemon_.store && read(store_fd(daemon_.store), &n, sizeof n) < 0)
		return;
}

/* Somebody comes for whom another has to give up his place. */
static void stranger(void)
{
	const uint8_t id[2] = {'s', (uint8_t)draw(200)};
	const struct wire_header h = {.type = WIRE_HELLO};
	const struct wire_hello m = {.client = {"x", 1}};
	struct wire_writer w = writer();
	const uint32_t peer = peer_find(&daemon_, 0, id, sizeof id, 0);
	CHECK(wire_write_hello(&w, &m) == 0);
	places_look();
	if (peer != NONE)
		loop_message(&daemon_, peer, &h, w.at, w.length, NULL, 0);
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
		say_small(client, WIRE_WINDOW);
	else if (what < 66)
		say_resume(client);
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
		leap_us += draw(20) ? draw(20000) : draw(400000);
	if (draw(3) == 0)
		loop_once();
}

static uint32_t still_owed(void)
{
	uint32_t n = 0;
	for (uint32_t i = 0; i < OWED_MAX_CALLS; i++)
		n += world.calls[i].used;
	return n;
}

/* Everybody reads again; what is owed comes, and then nothing is held. */
static bool quiet(void)
{
	struct daemon *d = &daemon_;
	memset(world.stuck, 0, sizeof world.stuck);
	for (int round = 0; round < 4000; round++) {
		for (uint32_t i = 0; round % 16 == 0 && i < OWED_MAX_CALLS; i++) {
			const struct owed_call *c = &world.calls[i];
			struct wire_writer w = writer();
			if (!c->used)
				continue;
			const struct wire_window m = {c->op, INT64_MAX};
			CHECK(wire_write_window(&w, &m) == 0);
			say(c->client, WIRE_WINDOW, 0, &w, NULL, 0);
		}
		loop_once();
		/* Also those that nobody reads, within their detach time. */
		uint32_t running = d->in_flight;
		for (uint32_t i = 0; i < d->options.calls; i++)
			running += d->calls[i].state != CALL_FREE && !call_kept(&d->calls[i]);
		if (!running && !still_owed())
			return true;
		leap_us += 1000;
		/* The log's thread has its own time. */
		if (round > 20)
			usleep(round < 200 ? 50 : 1000);
	}
	printf("# %u calls are owed, after %llu messages\n", still_owed(), (unsigned long long)world.messages);
	for (uint32_t i = 0; i < OWED_MAX_CALLS; i++) {
		const struct owed_call *o = &world.calls[i];
		const uint32_t at = o->used && o->accepted ? call_of_op(d, o->client % PRINCIPALS, &o->op) : NONE;
		if (!o->used)
			continue;
		printf("# client %u, channel %llu, method %u, accepted %d, dup %d, seq %llu", o->client,
		       (unsigned long long)o->channel, o->method, o->accepted, o->dup, (unsigned long long)o->seq);
		if (at != NONE)
			printf("; its slot: state %d, peer %d, channel %llu, seq %llu of %llu, end %zu, sent %d, "
			       "restarted %d", d->calls[at].state, (int)d->calls[at].peer,
			       (unsigned long long)d->calls[at].channel, (unsigned long long)d->calls[at].seq,
			       (unsigned long long)d->calls[at].seq_made,
			       d->calls[at].end_length, d->calls[at].end_sent, d->calls[at].restarted);
		printf("\n");
	}
	return false;
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

static int life_open(void)
{
	struct daemon *d = &daemon_;
	TRY(daemon_inside_open(d, &options));
	d->sink = sink;
	d->now_us = d->started_us = loop_clock_us();
	CHECK(principal_find(d, "ann", 0) == 0);
	CHECK(principal_find(d, "bob", 0) == 1);
	world.lives++;
	return 0;
}

static void messages_in_any_order(void)
{
	const char *asked = getenv("HOLDFAST_FUZZ_LOOP"), *from = getenv("HOLDFAST_SEED");
	const uint64_t most = asked ? strtoull(asked, NULL, 10) : getenv("HOLDFAST_SANITIZED") ? 6000 : 60000;
	if (from)
		seed = strtoull(from, NULL, 10) * 2654435761u + 1;
	scripted.copy_fails = 50;
	scripted.faults = 20000;
	REQUIRE(life_open() == 0);
	uint64_t next_quiet = QUIET_EVERY, next_life = LIFE_EVERY;
	double first_mib = 0;
	while (world.messages < most && !wrong) {
		noise();
		if (world.messages >= next_quiet && !wrong) {
			next_quiet += QUIET_EVERY;
			REQUIRE(EXPECT(quiet()));
			REQUIRE(EXPECT(nothing_held()));
			memset(world.cancelled, 0, sizeof world.cancelled);
			/* Tables are touched bit by bit in the first life. */
			if (first_mib == 0 && world.lives > 1)
				first_mib = anonymous_mib();
		}
		if (world.messages >= next_life && !wrong) {
			/* In the middle of everything. Channels and pipes are gone with it. */
			next_life += LIFE_EVERY;
			daemon_inside_close(&daemon_);
			for (uint32_t i = 0; i < CLIENTS; i++)
				client_gone(i);
			memset(world.here, 0, sizeof world.here);
			REQUIRE(life_open() == 0);
		}
	}
	if (wrong)
		printf("# %s, after %llu messages\n", wrong, (unsigned long long)world.messages);
	REQUIRE(wrong == NULL);
	EXPECT(quiet());
	EXPECT(nothing_held());
	const double last_mib = anonymous_mib();
	if (first_mib > 0 && !getenv("HOLDFAST_SANITIZED") && !EXPECT(last_mib < first_mib + 16))
		printf("# %.1f MiB grew to %.1f MiB\n", first_mib, last_mib);
	EXPECT(world.ends > most / 20);
	EXPECT(world.data > most / 400);
	EXPECT(world.resumed > most / 50);
	printf("# %llu messages, %llu ends, %llu data, %llu refusals, %llu resumes, %llu lives\n",
	       (unsigned long long)world.messages, (unsigned long long)world.ends, (unsigned long long)world.data,
	       (unsigned long long)world.rejects, (unsigned long long)world.resumed,
	       (unsigned long long)world.lives);
	daemon_inside_close(&daemon_);
}

int main(void)
{
	char folder[] = "/dev/shm/hf-fuzz-XXXXXX", elsewhere[] = "/tmp/hf-fuzz-XXXXXX", command[512];
	char model[64], state[64], cache[64];
	const char *home = mkdtemp(folder) ? folder : mkdtemp(elsewhere), *build = getenv("BUILDDIR");
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
	TAP_RUN(messages_in_any_order, "valid messages in any order: each call has its answer");
	snprintf(command, sizeof command, "rm -rf '%s'", home);
	CHECK(system(command) == 0);
	return tap_done();
}
