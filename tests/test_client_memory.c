/*
 * The client library when memory runs out: a script of its calls, in which each allocation of the library's
 * own fails once, and each socket, pipe and thread that it asks the system for. Method: those functions are
 * replaced at link time (--wrap), the script runs again and again with the next one failing, and a call that
 * says no memory is made once more, which must then work. What was allocated is counted: nothing may be
 * left. libzmq's own allocations are not touched: it ends the process when one fails.
 */
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/wait.h>
#include <zmq.h>

#include "clients/client.h"
#include "sched/check.h"
#include "tests/fake_start.h"
#include "tests/tap.h"

static char dir[] = "/tmp/holdfast-test-XXXXXX", endpoint[100];
static atomic_ulong chances, fails_at; /* 0: nothing fails */
static atomic_bool did;
static atomic_long alive; /* allocations that are not freed */

static bool fails(void)
{
	if (atomic_load(&fails_at) == 0 || atomic_fetch_add(&chances, 1) + 1 != atomic_load(&fails_at))
		return false;
	atomic_store(&did, true);
	return true;
}

/* Linked in the place of the library's own (--wrap). */
void *__real_malloc(size_t bytes);
void *__real_calloc(size_t count, size_t bytes);
void *__real_realloc(void *at, size_t bytes);
char *__real_strdup(const char *text);
void __real_free(void *at);
void *__real_zmq_ctx_new(void);
void *__real_zmq_socket(void *context, int type);
int __real_pipe2(int fd[2], int flags);
int __real_pthread_create(pthread_t *thread, const pthread_attr_t *how, void *(*run)(void *),
	void *data);
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);
void *__wrap_realloc(void *at, size_t bytes);
char *__wrap_strdup(const char *text);
void __wrap_free(void *at);
void *__wrap_zmq_ctx_new(void);
void *__wrap_zmq_socket(void *context, int type);
int __wrap_pipe2(int fd[2], int flags);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *how, void *(*run)(void *),
	void *data);

static void *counted(void *at)
{
	if (at)
		atomic_fetch_add(&alive, 1);
	return at;
}

void *__wrap_malloc(size_t bytes) { return fails() ? NULL : counted(__real_malloc(bytes)); }
void *__wrap_calloc(size_t count, size_t bytes)
{
	return fails() ? NULL : counted(__real_calloc(count, bytes));
}

char *__wrap_strdup(const char *text) { return fails() ? NULL : counted(__real_strdup(text)); }
void *__wrap_zmq_ctx_new(void) { return fails() ? NULL : __real_zmq_ctx_new(); }

void *__wrap_zmq_socket(void *context, int type)
{
	return fails() ? NULL : __real_zmq_socket(context, type);
}

int __wrap_pipe2(int fd[2], int flags) { return fails() ? -1 : __real_pipe2(fd, flags); }

void *__wrap_realloc(void *at, size_t bytes)
{
	void *to = fails() ? NULL : __real_realloc(at, bytes);
	return at ? to : counted(to);
}

void __wrap_free(void *at)
{
	if (at)
		atomic_fetch_sub(&alive, 1);
	__real_free(at);
}

int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *how, void *(*run)(void *), void *data)
{
	return fails() ? 11 : __real_pthread_create(thread, how, run, data);
}

/* ---- The script. */

static struct hf_client *c;
static struct hf_session s;
static struct hf_end end;
static char text[9000];
static size_t length;
static const char *at; /* the call that is made, for the words of a failure */

static int on_piece(void *data, const struct hf_piece *p)
{
	(void)data;
	CHECK(length + p->length < sizeof text);
	memcpy(text + length, p->text, p->length);
	text[length += p->length] = 0;
	return 0;
}

static const struct hf_stream stream = {.on_piece = on_piece};

static int open_client(void)
{
	const struct hf_options o = {.client = "memory", .act_as = NULL, .timeout_ms = 20000, .resume_ms = 20000};
	const int code = hf_open(endpoint, &o, &c);
	CHECK((code == 0) == (c != NULL));
	return code;
}

static int open_session(void)
{
	static const char *const tools[] = {"{\"name\":\"read_file\"}"};
	const struct hf_open_args a = {.system = "Be brief.", .tools = tools, .tool_count = 1};
	return hf_session_open(c, &a, &s, &end);
}

static int say(const char *what, const struct hf_stream *to, uint32_t logprobs)
{
	const struct hf_message m = {.role = HF_USER, .content = what};
	const struct hf_turn t = {.messages = &m, .message_count = 1, .sampling = {.logprobs = logprobs}};
	length = 0;
	text[0] = 0;
	s.turn = HF_NONE; /* a turn whose END found no memory may have been counted, or not */
	return hf_session_turn(c, &s, &t, to, &end);
}

static int turn_plain(void) { return say("hello", &stream, 0); }
static int turn_logprobs(void) { return say("echo 40", &stream, 1); }
static int turn_tool(void) { return say("tool", NULL, 0); }

static int turn_tokens(void)
{
	static const uint32_t ids[] = {1, 2, 3};
	const struct hf_turn t = {.tokens = ids, .token_count = 3, .keep = HF_NONE};
	s.turn = HF_NONE;
	return hf_session_turn(c, &s, &t, &stream, &end);
}

static const struct hf_message result = {.role = HF_TOOL, .content = "a file", .tool_call_id = "c1"};
static const struct hf_turn results = {.messages = &result, .message_count = 1};

static int turn_continue(void)
{
	length = 0;
	text[0] = 0;
	s.turn = HF_NONE;
	return hf_session_continue(c, &s, &results, &stream, &end);
}

/* The callback form: what its end says, or that it did not start. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t told = PTHREAD_COND_INITIALIZER;
static int ends;

static void on_end(void *data, struct hf_end *e)
{
	(void)data;
	pthread_mutex_lock(&lock);
	end = *e;
	ends++;
	pthread_cond_signal(&told);
	pthread_mutex_unlock(&lock);
}

static int turn_started(void)
{
	ends = 0;
	length = 0;
	text[0] = 0;
	s.turn = HF_NONE;
	const int code = hf_session_continue_start(c, &s, &results, &stream, on_end, NULL);
	pthread_mutex_lock(&lock);
	while (code == 0 && ends == 0)
		pthread_cond_wait(&told, &lock);
	pthread_mutex_unlock(&lock);
	CHECK(code == 0 || ends == 0);
	return code == 0 ? end.code : code;
}

static int show(void) { return hf_session_show(c, &s, &end); }
static int ledger(void) { return hf_ledger_show(c, &end); }
static int tokenize(void) { return hf_tokenize(c, "abc", 3, false, &end); }
static int detokenize(void) { return hf_detokenize(c, (const uint32_t[]){1, 2}, 2, &end); }

static int fork_session(void)
{
	struct hf_session f;
	return hf_session_fork(c, &s, HF_NONE, HF_NONE, &f, &end);
}

static int events(void)
{
	struct hf_events *e = NULL;
	const int code = hf_events_open(c, NULL, &e);
	CHECK((code == 0) == (e != NULL));
	hf_events_close(&e);
	return code;
}

static const struct { const char *name; int (*call)(void); const char *text; } script[] = {
	{"open", open_client, NULL}, {"session.open", open_session, NULL},
	{"turn", turn_plain, "You said: hello"},
	{"turn with log-probabilities", turn_logprobs, "abcdefghijklmnopqrstuvwxyzabcdefghijklmn"},
	{"turn of tokens", turn_tokens, NULL}, {"turn that calls a tool", turn_tool, NULL},
	{"continue", turn_continue, "The tool says a file"}, {"show", show, NULL},
	{"ledger", ledger, NULL}, {"tokenize", tokenize, NULL}, {"detokenize", detokenize, NULL},
	{"fork", fork_session, NULL}, {"continue_start", turn_started, "The tool says a file"},
	{"events", events, NULL},
};

/* Whether all went as it should; *refused: how many calls said that there is no memory. */
static bool play(unsigned *refused)
{
	bool good = true;
	*refused = 0;
	for (size_t i = 0; i < sizeof script / sizeof script[0]; i++) {
		at = script[i].name;
		int code = script[i].call();
		const char *name = end.name;
		if (code != 0) {
			++*refused;
			good = good && (code == -ERR_MEMORY || (i == 0 && code == -ERR_IO)); /* a pipe is no memory */
			if (!good)
				printf("# %s at %lu: %s (%s)\n", at, atomic_load(&fails_at), hf_name(code), name ? name : "");
			hf_end_free(&end);
			code = script[i].call();
		}
		if (code != 0 || (script[i].text && strcmp(text, script[i].text) != 0)) {
			printf("# %s at %lu: %s, %s\n", at, atomic_load(&fails_at), hf_name(code), text);
			good = false;
		}
		hf_end_free(&end);
		if (!c)
			return false;
	}
	hf_close(&c);
	if (atomic_load(&alive) != 0) {
		printf("# %ld are left at %lu\n", atomic_load(&alive), atomic_load(&fails_at));
		atomic_store(&alive, 0);
		good = false;
	}
	return good;
}

static void nothing_fails(void)
{
	unsigned refused;
	EXPECT(play(&refused) && refused == 0);
}

static void each_fails(void)
{
	unsigned long places = 0, refusals = 0, through = 0;
	for (unsigned long n = 1; n < 1000; n++) {
		unsigned refused;
		atomic_store(&chances, 0);
		atomic_store(&did, false);
		atomic_store(&fails_at, n);
		const bool good = play(&refused);
		atomic_store(&fails_at, 0);
		EXPECT(good && refused <= 1);
		if (!atomic_load(&did))
			break;
		places++;
		refusals += refused;
		through += refused == 0;
	}
	printf("# %lu places, %lu refused, %lu done without\n", places, refusals, through);
	/* Done without: the socket that tells of a broken connection, which then shows by silence. */
	EXPECT(places > 40 && through <= 1);
}

int main(void)
{
	CHECK(mkdtemp(dir) != NULL);
	snprintf(endpoint, sizeof endpoint, "ipc://%s/s", dir);
	const pid_t child = fake_start(endpoint);
	TAP_RUN(nothing_fails, "the script, when nothing fails, leaves nothing");
	TAP_RUN(each_fails, "each allocation fails once: a code, nothing left, and the next call works");
	kill(child, SIGTERM);
	waitpid(child, NULL, 0);
	unlink(endpoint + 6);
	rmdir(dir);
	return tap_done();
}
