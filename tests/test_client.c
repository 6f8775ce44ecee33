/*
 * The C client library against a daemon that does as it is told: all calls, the stream with its
 * credit, tool calls, errors, cancel, deadlines; and a daemon that talks nonsense. Method: a turn's
 * message tells tests/fake_daemon.c what to do. The daemon counts what clients do wrong: nothing.
 */
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "clients/client.h"
#include "sched/check.h"
#include "tests/fake_start.h"
#include "tests/tap.h"

static char dir[] = "/tmp/holdfast-test-XXXXXX", endpoint[100];
static pid_t child;
static struct hf_client *c;
static struct hf_session s;
static struct hf_end end;
/* Whom the fake daemon's nonsense does not keep long: what it forgets is not waited for. */
static const struct hf_options options = {.client = "test_client", .timeout_ms = 3000,
	.resume_ms = 400};

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void daemon_start(void)
{
	child = fake_start(endpoint);
}

/* What a stream brought. */
struct got {
	char text[300000];
	size_t length, pieces, ids, notes;
	size_t stop_at; /* cancel when so much is there; 0: never */
	bool bad_ids, logprobs;
	double logprob;
	char state[20];
	unsigned delay_us;
};
static struct got got;
static atomic_bool begun; /* its first piece is there: what comes after it comes within the call */

static int on_piece(void *data, const struct hf_piece *p)
{
	struct got *g = data;
	CHECK(g->length + p->length < sizeof g->text);
	memcpy(g->text + g->length, p->text, p->length);
	g->length += p->length;
	g->text[g->length] = 0;
	g->pieces++;
	atomic_store(&begun, true);
	for (uint32_t i = 0; i < p->id_count; i++)
		if (p->ids[i] != (uint8_t)p->text[i] + 256u)
			g->bad_ids = true;
	g->ids += p->id_count;
	if (p->logprobs && p->logprobs_json) {
		g->logprobs = strstr(p->logprobs_json, "\"p\":-0.5") != NULL;
		g->logprob = (double)p->logprobs[0];
	}
	if (g->delay_us > 0)
		usleep(g->delay_us);
	return g->stop_at > 0 && g->length >= g->stop_at;
}

static int on_note(void *data, const struct hf_note *n)
{
	struct got *g = data;
	snprintf(g->state, sizeof g->state, "%s", n->state);
	g->notes++;
	return 0;
}

static const struct hf_stream stream = {on_piece, on_note, &got};

static int say_with(const char *text, struct hf_turn t)
{
	struct hf_message m = {.role = HF_USER, .content = text};
	size_t stop_at = got.stop_at;
	unsigned delay_us = got.delay_us;
	t.messages = &m;
	t.message_count = 1;
	memset(&got, 0, sizeof got);
	got.stop_at = stop_at;
	got.delay_us = delay_us;
	atomic_store(&begun, false);
	hf_end_free(&end);
	return hf_session_turn(c, &s, &t, &stream, &end);
}

static int say(const char *text)
{
	return say_with(text, (struct hf_turn){0});
}

static void opens(void)
{
	struct hf_residency r = {HF_LEASED, HF_NONE, 1000, 60000};
	const char *tools[] = {"{\"name\":\"read_file\"}", "{\"name\":\"run\"}"};
	struct hf_open_args a = {"Be brief.", NULL, "test", tools, 2, &r};
	REQUIRE(hf_open(endpoint, &options, &c) == 0);
	EXPECT(strcmp(hf_principal(c), "uid:1") == 0);
	EXPECT_EQ(hf_session_open(c, &a, &s, &end), 0);
	EXPECT_EQ(s.id.bytes[15], 15);
	EXPECT_EQ(s.epoch, 1);
	EXPECT(end.json && strstr(end.json, "\"history\":42"));
	EXPECT(end.status && strcmp(end.status, "ok") == 0);
}

static void streams(void)
{
	EXPECT_EQ(say("hello"), 0);
	EXPECT(strcmp(got.text, "You said: hello") == 0);
	EXPECT_EQ(got.ids, got.length);
	EXPECT(!got.bad_ids && !got.logprobs);
	EXPECT(strcmp(end.status, "stop") == 0 && end.usage.present);
	EXPECT_EQ(end.usage.prompt, end.usage.resident + end.usage.fresh);
	EXPECT_EQ(end.usage.tool_us, HF_NONE);
	EXPECT_EQ(end.usage.diverged_at, 6);
	EXPECT(end.usage.diverged_why && strcmp(end.usage.diverged_why, "new") == 0);
	uint64_t turn = s.turn;
	EXPECT_EQ(say("again"), 0);
	EXPECT_EQ(s.turn, turn + 1);
	EXPECT_EQ(say("notes"), 0);
	EXPECT_EQ(got.notes, 2);
	EXPECT(strcmp(got.state, "prefilling") == 0 && strcmp(got.text, "ok") == 0);
	EXPECT_EQ(say("stray"), 0);
	EXPECT(strcmp(got.text, "fine") == 0);
	EXPECT_EQ(say_with("echo 8", (struct hf_turn){.sampling = {.logprobs = 1}}), 0);
	EXPECT(got.logprobs && got.logprob < -0.49 && got.logprob > -0.51);
}

static void credits(void)
{
	/* More than the window: only grants let the daemon go on. */
	EXPECT_EQ(say("echo 200000"), 0);
	EXPECT_EQ(got.length, 200000);
	size_t in_order = 0;
	while (in_order < got.length && got.text[in_order] == (char)('a' + in_order % 26))
		in_order++;
	EXPECT_EQ(in_order, got.length);
	struct hf_client *narrow = NULL, *wide = c;
	struct hf_options o = {.timeout_ms = 3000, .window = 1024};
	REQUIRE(hf_open(endpoint, &o, &narrow) == 0);
	c = narrow;
	EXPECT_EQ(say("echo 5000"), 0);
	EXPECT_EQ(got.length, 5000);
	hf_end_free(&end);
	EXPECT_EQ(hf_metrics(c, &end), 0);
	unsigned long bad = 9, windows = 0;
	REQUIRE(end.json != NULL);
	sscanf(end.json, "{\"text\":\"bad %lu windows %lu", &bad, &windows);
	EXPECT_EQ(bad, 0);
	EXPECT(windows >= 8 && windows < 100);
	c = wide;
	hf_close(&narrow);
	EXPECT(narrow == NULL);
}

static void tools(void)
{
	EXPECT_EQ(say("tool"), 0);
	EXPECT(strcmp(end.status, "tool_wait") == 0);
	REQUIRE(end.call_count == 1);
	EXPECT(strcmp(end.calls[0].name, "read_file") == 0);
	EXPECT(strcmp(end.calls[0].arguments, "{\"path\":\"a.txt\"}") == 0);
	EXPECT_EQ(end.usage.tool_us, 44);
	struct hf_message m = {.role = HF_TOOL, .content = "two\0parts", .length = 9,
		.tool_call_id = "c1"};
	struct hf_turn t = {.messages = &m, .message_count = 1};
	memset(&got, 0, sizeof got);
	hf_end_free(&end);
	EXPECT_EQ(hf_session_continue(c, &s, &t, &stream, &end), 0);
	EXPECT(got.length == 23 && memcmp(got.text, "The tool says two\0parts", 23) == 0);
}

static void errors(void)
{
	EXPECT_EQ(say("error 404"), -ERR_CONTEXT_FULL);
	EXPECT(strcmp(end.name, "context_full") == 0 && strlen(end.text) > 0);
	EXPECT(end.used == 100 && end.asked == 200 && end.limit == 256);
	EXPECT(!hf_later(end.code));
	EXPECT_EQ(say("error 400"), -ERR_SESSION_BUSY);
	EXPECT(end.after_ms == 120 && strcmp(end.retry, "later") == 0 && hf_later(end.code));
	EXPECT_EQ(say("reject 500"), -ERR_OVERLOADED);
	EXPECT(end.status == NULL);
	/* What the daemon would refuse never leaves the client. */
	EXPECT_EQ(say_with("x", (struct hf_turn){.sampling = {.temperature = 101}}),
		-ERR_OUT_OF_RANGE);
	EXPECT_EQ(say_with("x", (struct hf_turn){.sampling = {.top_p = 1.5}}), -ERR_OUT_OF_RANGE);
	EXPECT_EQ(say("not UTF-8: \xff"), -ERR_BAD_ARG);
	EXPECT_EQ(say_with("x", (struct hf_turn){.tool_choice = (enum hf_tool_choice)9}),
		-ERR_BAD_ARG);
	struct hf_turn none = {0};
	hf_end_free(&end);
	EXPECT_EQ(hf_session_turn(c, &s, &none, NULL, &end), -ERR_BAD_ARG);
	const char *stops[20] = {0};
	EXPECT_EQ(say_with("x", (struct hf_turn){.sampling = {.stop = stops, .stop_count = 20}}),
		-ERR_OUT_OF_RANGE);
	char *large = calloc(1, 300000);
	CHECK(large != NULL);
	memset(large, 'x', 299999);
	EXPECT_EQ(say(large), -ERR_TOO_BIG);
	free(large);
	EXPECT_EQ(say("well"), 0);
}

static void await_begun(void)
{
	while (!atomic_load(&begun))
		usleep(1000);
}

static void *cancel_soon(void *data)
{
	await_begun();
	hf_cancel(data);
	return NULL;
}

static void on_alarm(int signal)
{
	(void)signal;
	if (atomic_load(&begun))
		hf_cancel(c);
}

static void cancels(void)
{
	pthread_t thread;
	atomic_store(&begun, false);
	EXPECT(pthread_create(&thread, NULL, cancel_soon, c) == 0);
	EXPECT_EQ(say("hang"), 0);
	pthread_join(thread, NULL);
	EXPECT(end.status && strcmp(end.status, "cancelled") == 0);
	EXPECT(strcmp(got.text, "begun ") == 0);
	struct sigaction a = {.sa_handler = on_alarm};
	sigaction(SIGALRM, &a, NULL);
	ualarm(50000, 50000);
	EXPECT_EQ(say("hang"), 0);
	ualarm(0, 0);
	EXPECT(end.status && strcmp(end.status, "cancelled") == 0);
	/* From the callback, in the middle of a long stream. */
	got.stop_at = 1000;
	EXPECT_EQ(say("echo 200000"), 0);
	EXPECT(end.status && strcmp(end.status, "cancelled") == 0);
	EXPECT(got.length >= 1000 && got.length < 1100);
	got.stop_at = 0;
	/* A cancel that comes before a call does not touch it. */
	hf_cancel(c);
	EXPECT_EQ(say("hello"), 0);
	EXPECT(end.status && strcmp(end.status, "stop") == 0);
}

static void deadlines(void)
{
	double began = now();
	/* The fake daemon knows no deadlines: the client cancels half a second after. */
	EXPECT_EQ(say_with("hang", (struct hf_turn){.deadline_ms = 100}), 0);
	EXPECT(end.status && strcmp(end.status, "cancelled") == 0);
	EXPECT(now() - began > 0.5 && now() - began < 3);
	began = now();
	EXPECT_EQ(say("silent"), -ERR_CLOSED);
	EXPECT(now() - began > 0.3 && now() - began < 3);
	/* The next call says HELLO again. */
	EXPECT_EQ(say("hello"), 0);
}

static void nonsense(void)
{
	static const struct { const char *text; int code; } table[] = {
		{"gap", ERR_BAD_FRAMES}, {"back", ERR_BAD_BODY}, {"future", ERR_BAD_FRAMES},
		{"overrun", ERR_BAD_BODY}, {"unaccepted", ERR_BAD_FRAMES}, {"flood", ERR_BAD_FRAMES},
		{"raw ", ERR_BAD_FRAMES},                 /* one empty frame */
		{"raw 4152,80", ERR_BAD_FRAMES},          /* a short header */
		{"raw H,80,00", ERR_BAD_FRAMES},          /* a blob that was not announced */
		{"raw H,80,00,00,00", ERR_BAD_FRAMES},
		{"raw 415202830000000000000000000000010000000000000001,80", ERR_VERSION},
		{"raw 415201830002000000000000000000010000000000000001,80", ERR_BAD_FRAMES},
		{"raw H,", ERR_BAD_BODY}, {"raw H,c1", ERR_BAD_BODY}, {"raw H,80", ERR_BAD_BODY},
		{"raw H,ddffffffff", ERR_BAD_BODY}, {"raw H,9405c0c0c0", ERR_BAD_BODY},
		{"raw H,940001a2ffffc0", ERR_BAD_BODY},   /* not UTF-8 */
		{"raw H,940101a26161c0", ERR_BAD_BODY},   /* two bytes at offset 1 */
	};
	for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
		if (!EXPECT(say(table[i].text) == -table[i].code))
			printf("# %s: %s\n", table[i].text, end.name);
		EXPECT(end.status == NULL);
		EXPECT_EQ(say("hello"), 0);
	}
	EXPECT_EQ(say("repeat"), 0);
	EXPECT(strcmp(got.text, "onetwo") == 0);
	/* What comes after END belongs to nobody, least of all to the next call. */
	EXPECT_EQ(say("twice"), 0);
	EXPECT_EQ(say("hello"), 0);
	EXPECT(strcmp(got.text, "You said: hello") == 0);
	EXPECT(say("forget") == -ERR_RESTARTED);
	EXPECT_EQ(say("hello"), 0);
	/* 3 MiB in a frame: ZeroMQ drops the connection, the daemon does not know the next one. */
	int code = say("huge");
	EXPECT(code == -ERR_RESTARTED || code == -ERR_CLOSED);
	EXPECT_EQ(say("hello"), 0);
}

static void rest(void)
{
	struct hf_session fork = {0};
	static const uint32_t ids[] = {1, 2, 70000};
	struct hf_turn t = {.tokens = ids, .token_count = 3, .keep = HF_NONE};
	struct hf_residency r = {HF_PINNED, 1, HF_NONE, HF_NONE};
#define TRY_CALL(call) hf_end_free(&end); if (!EXPECT((call) == 0)) printf("# %s\n", end.name)
	memset(&got, 0, sizeof got);
	TRY_CALL(hf_session_turn(c, &s, &t, &stream, &end));
	EXPECT(strcmp(got.text, "abcd") == 0);
	TRY_CALL(hf_session_fork(c, &s, HF_NONE, HF_NONE, &fork, &end));
	EXPECT(fork.epoch == 1);
	TRY_CALL(hf_session_fork(c, &s, 10, HF_NONE, &fork, &end));
	TRY_CALL(hf_session_rollback(c, &s, HF_NONE, 1, &end));
	EXPECT(end.json && strcmp(end.json, "{\"history\":10,\"resident\":10}") == 0);
	TRY_CALL(hf_session_show(c, &s, &end));
	EXPECT(end.json && strstr(end.json, "\"waiting\":{\"why\":\"pages\""));
	TRY_CALL(hf_session_attach(c, &s, &end));
	TRY_CALL(hf_session_residency(c, &s, &r, &end));
	TRY_CALL(hf_session_hint(c, &s, 500, "run", &end));
	TRY_CALL(hf_session_touch(c, &s, &end));
	TRY_CALL(hf_session_fork_tied(c, &s, HF_NONE, HF_NONE, &fork, &end));
	TRY_CALL(hf_session_park(c, &s, "host", &end));
	hf_end_free(&end);
	EXPECT_EQ(hf_session_park(c, &s, "attic", &end), -ERR_BAD_ARG);
	TRY_CALL(hf_session_list(c, 0, 10, &end));
	EXPECT(end.json && end.json[0] == '[');
	TRY_CALL(hf_ledger_show(c, &end));
	TRY_CALL(hf_pages_show(c, NULL, 0, 10, &end));
	TRY_CALL(hf_pages_show(c, &s, 0, 10, &end));
	TRY_CALL(hf_model_show(c, &end));
	TRY_CALL(hf_health(c, &end));
	TRY_CALL(hf_tokenize(c, "a\xff\0b", 4, true, &end));
	EXPECT(end.id_count == 4 && end.ids[1] == 0xff && end.ids[3] == 'b');
	TRY_CALL(hf_tokenize(c, "", 0, false, &end));
	EXPECT_EQ(end.id_count, 0);
	TRY_CALL(hf_detokenize(c, ids, 3, &end));
	EXPECT(end.byte_count == 5 && memcmp(end.bytes, "h\xc3\xa9\0\xff", 5) == 0);
	TRY_CALL(hf_session_close(c, &s, &end));
	TRY_CALL(hf_session_forget(c, &s, &end));
	TRY_CALL(hf_metrics(c, &end));
	EXPECT(end.json && strncmp(end.json, "{\"text\":\"bad 0 ", 15) == 0);
}

static void connects(void)
{
	struct hf_client *other = c;
	char absent[200];
	snprintf(absent, sizeof absent, "ipc://%s/nobody", dir);
	EXPECT_EQ(hf_open(absent, NULL, &other), -ERR_NO_FILE);
	EXPECT(other == NULL);
	EXPECT_EQ(hf_open("carrier pigeon", NULL, &other), -ERR_BAD_ARG);
	EXPECT_EQ(hf_open("pigeon://x", NULL, &other), -ERR_BAD_ARG);
	EXPECT_EQ(hf_open(endpoint, &(struct hf_options){.token = "wrong"}, &other), -ERR_FORBIDDEN);
	EXPECT_EQ(hf_open(endpoint, &(struct hf_options){.window = 7}, &other), -ERR_OUT_OF_RANGE);
	EXPECT_EQ(hf_open(endpoint, &(struct hf_options){.client = "a\nb"}, &other), -ERR_BAD_ARG);
	setenv("HOLDFAST_ENDPOINT", endpoint, 1);
	EXPECT_EQ(hf_open(NULL, NULL, &other), 0);
	hf_close(&other);
	hf_close(&other);
	struct hf_id id;
	char text[33];
	EXPECT(hf_id_read("00112233445566778899aabbccddeeff", &id));
	hf_id_text(&id, text);
	EXPECT(strcmp(text, "00112233445566778899aabbccddeeff") == 0);
	EXPECT(!hf_id_read("00112233445566778899aabbccddeef", &id));
	EXPECT(!hf_id_read("00112233445566778899aabbccddeefg", &id));
}

/* What the callback form said at last. */
struct ended {
	pthread_mutex_t lock;
	pthread_cond_t told;
	int count, code;
	char status[20];
};

static void on_end(void *data, struct hf_end *e)
{
	struct ended *d = data;
	pthread_mutex_lock(&d->lock);
	d->count++;
	d->code = e->code;
	snprintf(d->status, sizeof d->status, "%s", e->status ? e->status : "");
	pthread_cond_broadcast(&d->told);
	pthread_mutex_unlock(&d->lock);
	hf_end_free(e);
}

/* What is not there, where there should be something: an error, and the handle is as good as before. */
static void wrong_use(void)
{
	struct hf_message m = {.role = HF_USER, .content = "x"};
	struct hf_message calls = {.role = HF_ASSISTANT, .content = "x", .call_count = 2};
	struct hf_session made;
	struct hf_client *none = NULL;
	struct hf_events *events = NULL;
	struct hf_id id;
	const struct hf_turn turns[] = {
		{.message_count = 1}, {.token_count = 3}, {.messages = &calls, .message_count = 1},
		{.messages = &m, .message_count = 1, .choice_count = 2},
		{.messages = &m, .message_count = 1, .sampling = {.stop_count = 1}},
		{.messages = &m, .message_count = 1, .sampling = {.bias_count = 1}},
		{.messages = &m, .message_count = 1, .sampling = {.stop_token_count = 1}},
		{.messages = &m, .message_count = UINT32_MAX},
		{.tokens = (const uint32_t *)"ids", .token_count = SIZE_MAX},
		{.messages = &m, .message_count = 1, .choice_count = UINT32_MAX},
	};
	for (size_t i = 0; i < sizeof turns / sizeof turns[0]; i++) {
		hf_end_free(&end);
		const int code = hf_session_turn(c, &s, &turns[i], NULL, &end);
		if (!EXPECT(code == -ERR_BAD_ARG || code == -ERR_OUT_OF_RANGE || code == -ERR_TOO_BIG))
			printf("# turn %zu: %s\n", i, hf_name(code));
	}
	const struct hf_turn plain = {.messages = &m, .message_count = 1};
#define WRONG(call) hf_end_free(&end); EXPECT_EQ((call), -ERR_BAD_ARG)
	WRONG(hf_session_turn(c, &s, NULL, NULL, &end));
	WRONG(hf_session_turn(c, NULL, &plain, NULL, &end));
	WRONG(hf_session_continue(c, &s, NULL, NULL, &end));
	WRONG(hf_session_turn(NULL, &s, &plain, NULL, &end));
	WRONG(hf_session_turn_start(c, &s, &plain, NULL, NULL, NULL));
	WRONG(hf_session_turn_start(NULL, &s, &plain, NULL, on_end, NULL));
	WRONG(hf_session_continue_start(c, &s, &plain, NULL, NULL, NULL));
	WRONG(hf_session_open(c, &(struct hf_open_args){.tool_count = 1}, &made, &end));
	WRONG(hf_session_residency(c, &s, NULL, &end));
	WRONG(hf_session_show(c, NULL, &end));
	WRONG(hf_session_fork(c, NULL, HF_NONE, HF_NONE, &made, &end));
	WRONG(hf_tokenize(c, NULL, 3, false, &end));
	WRONG(hf_detokenize(c, NULL, 3, &end));
	WRONG(hf_session_import(c, NULL, 0, NULL, 0, &made, &end));
	WRONG(hf_session_import(c, (const uint8_t *)"\x91\xc1", 2, NULL, 0, &made, &end));
	WRONG(hf_health(NULL, &end));
	WRONG(hf_events_open(NULL, NULL, &events));
	WRONG(hf_events_open(c, NULL, NULL));
	WRONG(hf_events_next(NULL, 0, NULL));
	WRONG(hf_session_open(c, NULL, NULL, &end));
	WRONG(hf_session_fork(c, &s, HF_NONE, HF_NONE, NULL, &end));
	EXPECT(events == NULL);
	EXPECT(!hf_id_read(NULL, &id));
	hf_close(NULL);
	hf_close(&none);
	hf_cancel(NULL);
	hf_events_close(NULL);
	hf_end_free(NULL);
	EXPECT(hf_principal(NULL) == NULL);
	EXPECT(hf_name(-99999) != NULL && hf_text(INT32_MIN) != NULL && hf_name(INT32_MIN) != NULL);
	EXPECT(!hf_later(INT32_MIN));
	/* No arguments at all are a session as the daemon likes it. */
	hf_end_free(&end);
	EXPECT_EQ(hf_session_open(c, NULL, &made, &end), 0);
	EXPECT_EQ(say("hello"), 0);
}

/* Threads that share a handle: every call gets its own answer, whole. */
static void *asks(void *data)
{
	struct hf_session mine = s;
	for (int i = 0; i < 40; i++) {
		struct hf_end e;
		char text[64], want[96];
		struct got *g = calloc(1, sizeof *g);
		snprintf(text, sizeof text, "thread %d asks %d", *(int *)data, i);
		snprintf(want, sizeof want, "You said: %s", text);
		struct hf_message m = {.role = HF_USER, .content = text};
		struct hf_turn t = {.messages = &m, .message_count = 1};
		struct hf_stream to = {.on_piece = on_piece, .data = g};
		mine.turn = HF_NONE;
		const int code = hf_session_turn(c, &mine, &t, &to, &e);
		const bool good = code == 0 && strcmp(g->text, want) == 0;
		hf_end_free(&e);
		free(g);
		if (!good)
			return data;
	}
	return NULL;
}

static void shared(void)
{
	pthread_t thread[4];
	int number[4];
	for (int i = 0; i < 4; i++) {
		number[i] = i;
		REQUIRE(pthread_create(&thread[i], NULL, asks, &number[i]) == 0);
	}
	for (int i = 0; i < 4; i++) {
		void *bad;
		pthread_join(thread[i], &bad);
		EXPECT(bad == NULL);
	}
}

static void ended_await(struct ended *d, int count)
{
	pthread_mutex_lock(&d->lock);
	while (d->count < count)
		pthread_cond_wait(&d->told, &d->lock);
	pthread_mutex_unlock(&d->lock);
}

static void in_callbacks(void)
{
	static struct ended d = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0, 0, ""};
	static struct got mine;
	struct hf_session one = s, other = s;
	struct hf_message m = {.role = HF_USER, .content = "echo 5000"};
	struct hf_message hang = {.role = HF_USER, .content = "hang"};
	struct hf_turn t = {.messages = &m, .message_count = 1};
	struct hf_turn long_turn = {.messages = &hang, .message_count = 1};
	struct hf_stream to = {.on_piece = on_piece, .data = &mine};
	one.turn = other.turn = HF_NONE;
	REQUIRE(hf_session_turn_start(c, &one, &t, &to, on_end, &d) == 0);
	ended_await(&d, 1);
	EXPECT_EQ(mine.length, 5000);
	EXPECT(d.code == 0 && strcmp(d.status, "stop") == 0);
	/* Tools' results, in the same form. */
	struct hf_message call = {.role = HF_USER, .content = "tool"};
	struct hf_message result = {.role = HF_TOOL, .content = "a file", .tool_call_id = "c1"};
	struct hf_turn asked = {.messages = &call, .message_count = 1};
	struct hf_turn answered = {.messages = &result, .message_count = 1};
	REQUIRE(hf_session_turn_start(c, &one, &asked, &to, on_end, &d) == 0);
	ended_await(&d, 2);
	EXPECT(d.code == 0 && strcmp(d.status, "tool_wait") == 0);
	mine.length = mine.pieces = 0;
	REQUIRE(hf_session_continue_start(c, &one, &answered, &to, on_end, &d) == 0);
	ended_await(&d, 3);
	EXPECT(d.code == 0 && strcmp(d.status, "stop") == 0);
	EXPECT(strcmp(mine.text, "The tool says a file") == 0);
	/* What is wrong with it is told there too, and by nothing else. */
	answered.message_count = 0;
	REQUIRE(hf_session_continue_start(c, &one, &answered, NULL, on_end, &d) == 0);
	ended_await(&d, 4);
	EXPECT(d.code == -ERR_BAD_ARG && strcmp(d.status, "") == 0);
	/* Closing a handle ends what runs and what waits, and tells each. */
	struct hf_client *own = NULL;
	REQUIRE(hf_open(endpoint, &options, &own) == 0);
	d.count = 0;
	REQUIRE(hf_session_turn_start(own, &one, &long_turn, NULL, on_end, &d) == 0);
	REQUIRE(hf_session_turn_start(own, &other, &long_turn, NULL, on_end, &d) == 0);
	usleep(100000);
	double began = now();
	hf_close(&own);
	EXPECT_EQ(d.count, 2);
	EXPECT(strcmp(d.status, "cancelled") == 0);
	EXPECT(now() - began < 3);
}

static void *kill_soon(void *data)
{
	await_begun();
	kill(*(pid_t *)data, SIGKILL);
	return NULL;
}

/* Stopped, not dead: the kernel takes connections for it, and nobody answers. */
static void stops(void)
{
	struct hf_client *other = NULL;
	EXPECT_EQ(say("hello"), 0);
	EXPECT(kill(child, SIGSTOP) == 0);
	double began = now();
	EXPECT_EQ(hf_open(endpoint, &(struct hf_options){.timeout_ms = 300}, &other), -ERR_TIMEOUT);
	EXPECT(now() - began > 0.2 && now() - began < 3);
	EXPECT(other == NULL);
	/* It had said WELCOME: three pings. */
	EXPECT_EQ(say("hello"), -ERR_CLOSED);
	EXPECT(end.status == NULL);
	EXPECT(kill(child, SIGCONT) == 0);
	EXPECT_EQ(say("hello"), 0);
}

static void dies_within(void)
{
	pthread_t thread;
	EXPECT_EQ(say("hello"), 0);
	atomic_store(&begun, false);
	EXPECT(pthread_create(&thread, NULL, kill_soon, &child) == 0);
	double began = now();
	EXPECT_EQ(say("hang"), -ERR_CLOSED);
	EXPECT(now() - began < 3);
	EXPECT(strcmp(got.text, "begun ") == 0);
	pthread_join(thread, NULL);
	waitpid(child, NULL, 0);
	/* Its socket is there, and nobody listens. */
	EXPECT_EQ(say("hello"), -ERR_CLOSED);
}

static void dies_between(void)
{
	daemon_start();
	EXPECT_EQ(say("hello"), 0);
	EXPECT(kill(child, SIGKILL) == 0);
	waitpid(child, NULL, 0);
	/* ZeroMQ has seen it by then: there is nowhere to send to, for the three seconds. */
	usleep(300000);
	double began = now();
	EXPECT_EQ(say("hello"), -ERR_CLOSED);
	EXPECT(now() - began < 5);
	EXPECT_EQ(say("hello"), -ERR_CLOSED);
	unlink(endpoint + 6);
	EXPECT_EQ(say("hello"), -ERR_NO_FILE);
	hf_end_free(&end);
	hf_close(&c);
}

int main(void)
{
	CHECK(mkdtemp(dir) != NULL);
	snprintf(endpoint, sizeof endpoint, "ipc://%s/s", dir);
	daemon_start();
	TAP_RUN(opens, "HELLO and a session");
	TAP_RUN(streams, "text, ids, log-probabilities, notes, usage");
	TAP_RUN(credits, "credit is granted as text is read");
	TAP_RUN(tools, "a tool call and its result");
	TAP_RUN(errors, "errors with their numbers; what never leaves the client");
	TAP_RUN(cancels, "cancel from a thread, a signal handler, a callback");
	TAP_RUN(deadlines, "deadlines, and a daemon that falls silent");
	TAP_RUN(nonsense, "a daemon that talks nonsense");
	TAP_RUN(rest, "all other calls");
	TAP_RUN(connects, "endpoints that are none, refusals, ids");
	TAP_RUN(wrong_use, "wrong use is an error: what is not there, counts that cannot be");
	TAP_RUN(shared, "threads share a handle");
	TAP_RUN(in_callbacks, "the callback form, and a handle that is closed under it");
	TAP_RUN(stops, "a daemon that stops: timeout for who comes, closed for who was there");
	TAP_RUN(dies_within, "a daemon that dies within a call: closed");
	TAP_RUN(dies_between, "a daemon that dies between calls: closed, then no file");
	rmdir(dir);
	return tap_done();
}
