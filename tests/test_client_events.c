/*
 * The C library's events against a publisher that does not keep the rules: numbers that nobody has any more,
 * answers to events.replay without an event in them, noise without an end. Each is the next event or
 * -ERR_TIMEOUT, never a loop. (What a real daemon tells is in test_events.py.)
 */
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/wait.h>
#include <zmq.h>

#include "clients/client.h"
#include "clients/wire.h"
#include "sched/check.h"
#include "tests/fake_start.h"
#include "tests/tap.h"

static char dir[] = "/tmp/holdfast-test-XXXXXX", endpoint[100], published[100];
static struct hf_client *c;
static struct hf_events *e;
static void *publisher;

static size_t event_of(uint64_t seq, uint8_t *out, size_t room)
{
	struct wire_writer w;
	wire_writer_init(&w, out, room);
	wire_put_map(&w, 4);
	wire_put_text(&w, "boot");
	wire_put_bin(&w, "0123456789abcdef", 16);
	wire_put_text(&w, "kind");
	wire_put_text(&w, "granted");
	wire_put_text(&w, "principal");
	wire_put_text(&w, "uid:1");
	wire_put_text(&w, "seq");
	wire_put_u64(&w, seq);
	return w.length;
}

static void publish(const void *body, size_t length)
{
	zmq_send(publisher, "uid:1", 5, ZMQ_SNDMORE);
	zmq_send(publisher, "12345678", 8, ZMQ_SNDMORE);
	zmq_send(publisher, body, length, 0);
}

static void publish_event(uint64_t seq)
{
	uint8_t body[200];
	publish(body, event_of(seq, body, sizeof body));
}

static void begin(void)
{
	const struct hf_options options = {.client = "test_client_events", .timeout_ms = 3000};
	struct hf_event got = {0};
	int wait = 1, code = -1;
	REQUIRE(hf_open(endpoint, &options, &c) == 0);
	REQUIRE(hf_events_open(c, published, &e) == 0);
	/* Who subscribes is heard of at some time. */
	for (; wait < 500 && code; wait++) {
		publish_event(1);
		code = hf_events_next(e, 20, &got);
	}
	EXPECT_EQ(code, 0);
	EXPECT_EQ(got.seq, 1);
	EXPECT(got.json && strstr(got.json, "granted"));
}

static void gap(void)
{
	struct hf_event got;
	publish_event(5);
	REQUIRE(hf_events_next(e, 5000, &got) == 0);
	EXPECT_EQ(got.seq, 5);
	publish_event(6);
	REQUIRE(hf_events_next(e, 5000, &got) == 0);
	EXPECT_EQ(got.seq, 6);
}

static atomic_bool enough;

static void *noise(void *data)
{
	while (!atomic_load(&enough)) {
		publish(data, 1); /* 0xc1 is no MessagePack; an event of old and a nil are no news */
		publish_event(1);
		publish("\xc0", 1);
	}
	return NULL;
}

static void endless(void)
{
	struct hf_event got;
	pthread_t thread;
	REQUIRE(pthread_create(&thread, NULL, noise, "\xc1") == 0);
	const int code = hf_events_next(e, 100, &got), again = hf_events_next(e, 0, &got);
	atomic_store(&enough, true);
	pthread_join(thread, NULL);
	EXPECT_EQ(code, -ERR_TIMEOUT);
	EXPECT_EQ(again, -ERR_TIMEOUT);
	/* What goes out behind a flood may be dropped. */
	int last = -1;
	for (int i = 0; i < 100 && last; i++) {
		publish_event(7);
		last = hf_events_next(e, 200, &got);
	}
	EXPECT_EQ(last, 0);
	EXPECT_EQ(got.seq, 7);
}

int main(void)
{
	CHECK(mkdtemp(dir) != NULL);
	snprintf(endpoint, sizeof endpoint, "ipc://%s/fake", dir);
	snprintf(published, sizeof published, "ipc://%s/events", dir);
	const pid_t child = fake_start(endpoint);
	void *context = zmq_ctx_new();
	publisher = zmq_socket(context, ZMQ_PUB);
	CHECK(zmq_bind(publisher, published) == 0);
	TAP_RUN(begin, "an event is the next one");
	TAP_RUN(gap, "what was missed and is not kept, with an answer that has no event: the gap shows");
	TAP_RUN(endless, "noise without an end: none in time");
	hf_events_close(&e);
	hf_close(&c);
	const int linger = 0;
	zmq_setsockopt(publisher, ZMQ_LINGER, &linger, sizeof linger);
	zmq_close(publisher);
	zmq_ctx_term(context);
	kill(child, SIGTERM);
	waitpid(child, NULL, 0);
	unlink(endpoint + 6);
	unlink(published + 6);
	rmdir(dir);
	return tap_done();
}
