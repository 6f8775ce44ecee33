/*
 * The public face of the client library: handles, and each method as arguments put into one CALL.
 */
#include "config.h"

#include "clients/client.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "clients/link.h"

enum { RESUME_MS = 30000 };

static struct wire_str str(const char *text)
{
	return (struct wire_str){text, text ? strlen(text) : 0};
}

static bool copy_option(char **to, const char *from)
{
	*to = from ? strdup(from) : NULL;
	return !from || *to;
}

void hf_close(struct hf_client **client)
{
	struct hf_client *c = client ? *client : NULL;
	if (!c)
		return;
	started_wait(c);
	if (c->socket) {
		uint8_t body[4];
		struct wire_writer w;
		wire_writer_init(&w, body, sizeof body);
		wire_write_bye(&w);
		link_send(c, WIRE_BYE, 0, body, w.length, NULL, 0, 0);
	}
	link_reset(c);
	if (c->context)
		zmq_ctx_term(c->context);
	for (int i = 0; i < 2; i++)
		if (c->wake[i] >= 0)
			close(c->wake[i]);
	pthread_mutex_destroy(&c->lock);
	pthread_mutex_destroy(&c->count_lock);
	pthread_cond_destroy(&c->counted);
	free(c->endpoint);
	free(c->client);
	free(c->token);
	free(c->act_as);
	free(c->body);
	explicit_bzero(c->keys, sizeof c->keys);
	free(c);
	*client = NULL;
}

/* Our certificate: both keys of it, each a value in quotes. */
static int keys_read(struct hf_client *c, const struct hf_options *o)
{
	static const char *const names[] = {"public-key", "secret-key"};
	char line[1024];
	uint8_t raw[32];
	if (!o->key_file && !o->server_key)
		return 0;
	if (!o->key_file || !o->server_key || strlen(o->server_key) != 40 || !zmq_has("curve") ||
	    !zmq_z85_decode(raw, o->server_key))
		return -ERR_BAD_ARG;
	FILE *file = fopen(o->key_file, "re");
	if (!file)
		return errno == EACCES ? -ERR_PERMISSION : -ERR_NO_FILE;
	while (fgets(line, sizeof line, file))
		for (int i = 0; i < 2; i++) {
			char *at = strstr(line, names[i]);
			at = at ? strchr(at, '"') : NULL;
			if (!at || strcspn(at + 1, "\"") != 40)
				continue;
			memcpy(c->keys[i], at + 1, 40);
			if (!zmq_z85_decode(raw, c->keys[i]))
				c->keys[i][0] = 0;
		}
	fclose(file);
	memcpy(c->keys[2], o->server_key, 41);
	explicit_bzero(line, sizeof line);
	explicit_bzero(raw, sizeof raw);
	return c->keys[0][0] && c->keys[1][0] ? 0 : -ERR_BAD_FILE;
}

static int client_fill(struct hf_client *c, const char *endpoint, const struct hf_options *o)
{
	char fallback[512];
	if (!endpoint) {
		TRY(wire_default_endpoint(fallback, sizeof fallback));
		endpoint = fallback;
	}
	c->timeout_ms = o->timeout_ms > 0 ? o->timeout_ms : LINK_TIMEOUT_MS;
	c->window = o->window > 0 ? o->window : WIRE_WINDOW_DEFAULT;
	c->resume_ms = o->resume_ms == HF_NEVER ? 0 : o->resume_ms > 0 ? o->resume_ms : RESUME_MS;
	if (c->resume_ms > WIRE_DETACH_MS_MAX)
		return -ERR_OUT_OF_RANGE;
	TRY(keys_read(c, o));
	if (c->window < 1024 || c->window > WIRE_WINDOW_MAX || c->timeout_ms > INT32_MAX)
		return -ERR_OUT_OF_RANGE;
	c->context = zmq_ctx_new();
	c->body_capacity = c->limits.body_bytes;
	c->body = malloc(c->body_capacity);
	if (!copy_option(&c->endpoint, endpoint) || !copy_option(&c->token, o->token) ||
	    !copy_option(&c->client, o->client ? o->client : "libholdfast") ||
	    !copy_option(&c->act_as, o->act_as) || !c->context || !c->body)
		return -ERR_MEMORY;
	/* Not blocking: hf_cancel is for signal handlers, and the pipe may be full. */
	if (pipe2(c->wake, O_CLOEXEC | O_NONBLOCK) != 0)
		return -ERR_IO;
	return link_connect(c);
}

int hf_open(const char *endpoint, const struct hf_options *options, struct hf_client **out)
{
	static const struct hf_options defaults;
	if (!out)
		return -ERR_BAD_ARG;
	struct hf_client *c = calloc(1, sizeof *c);
	*out = NULL;
	if (!c)
		return -ERR_MEMORY;
	c->wake[0] = c->wake[1] = -1;
	pthread_mutex_init(&c->lock, NULL);
	pthread_mutex_init(&c->count_lock, NULL);
	pthread_cond_init(&c->counted, NULL);
	wire_limits_default(&c->limits);
	int code = client_fill(c, endpoint, options ? options : &defaults);
	if (code == 0)
		*out = c;
	else
		hf_close(&c);
	return code;
}

const char *hf_principal(const struct hf_client *c)
{
	return c ? c->principal : NULL;
}

void hf_cancel(struct hf_client *c)
{
	int saved = errno;
	if (!c)
		return;
	atomic_store(&c->cancel, true);
	ssize_t ignored = write(c->wake[1], "", 1);
	(void)ignored;
	errno = saved;
}

void hf_end_free(struct hf_end *end)
{
	if (!end)
		return;
	for (uint32_t i = 0; i < end->call_count; i++) {
		free(end->calls[i].id);
		free(end->calls[i].name);
		free(end->calls[i].arguments);
	}
	free(end->calls);
	free(end->status);
	free(end->usage.diverged_why);
	free(end->json);
	free(end->packed);
	free(end->ids);
	free(end->bytes);
	end_init(end);
}

/* --- Calls. --- */

/* Other threads' calls wait here; a callback's on its own handle is refused (NULL). */
struct hf_client *client_acquire(struct hf_client *c)
{
	if (!c || atomic_load(&c->owner) == (uintptr_t)pthread_self())
		return NULL;
	pthread_mutex_lock(&c->lock);
	atomic_store(&c->owner, (uintptr_t)pthread_self());
	return c;
}

void client_release(struct hf_client **held)
{
	if (!*held)
		return;
	atomic_store(&(*held)->owner, 0);
	pthread_mutex_unlock(&(*held)->lock);
}

/* The room for the arguments; NULL while a call runs, which is then refused. */
struct wire_call *client_begin(struct hf_client *c, const struct hf_client *held,
	enum wire_method method, const struct hf_session *s, struct hf_end *end)
{
	end_init(end);
	if (!held) {
		end_fail(end, c ? -ERR_IN_USE : -ERR_BAD_ARG);
		return NULL;
	}
	wire_call_init(&c->call, method);
	if (s) {
		c->call.has_sess = true;
		memcpy(c->call.sess.bytes, s->id.bytes, sizeof s->id.bytes);
		c->call.epoch = s->epoch;
		c->call.turn = s->turn;
	}
	return &c->call;
}

/* What END said of the session that was called. */
static int finish(struct hf_session *s, struct hf_end *end)
{
	if (s && end->status) {
		if (end->session.epoch != HF_NONE)
			s->epoch = end->session.epoch;
		if (end->session.turn != HF_NONE)
			s->turn = end->session.turn;
	}
	return end->code;
}

static int simple(struct hf_client *c, enum wire_method method, struct hf_session *s,
	struct hf_end *end)
{
	HOLD(c);
	if (!client_begin(c, held, method, s, end))
		return end->code;
	call_run(c, NULL, 0, NULL, end);
	return finish(s, end);
}

static void put_residency(struct wire_residency_args *to, const struct hf_residency *from)
{
	*to = (struct wire_residency_args){
		true, (uint8_t)from->kind, from->bytes, from->tokens, from->lease_ms};
}

/* The session that END made; a daemon that names none has not made one. */
int client_opened(struct hf_session *out, struct hf_end *end)
{
	if (!out)
		return end_fail(end, -ERR_BAD_ARG);
	*out = (struct hf_session){.epoch = HF_NONE, .turn = HF_NONE};
	if (end->code != 0)
		return end->code;
	if (!end->has_session)
		return end_fail(end, -ERR_BAD_BODY);
	*out = end->session;
	return 0;
}

int hf_session_open(struct hf_client *c, const struct hf_open_args *args, struct hf_session *out,
	struct hf_end *end)
{
	HOLD(c);
	static const struct hf_open_args none;
	struct wire_call *m = client_begin(c, held, METHOD_SESSION_OPEN, NULL, end);
	if (!m)
		return end->code;
	if (!out)
		return end_fail(end, -ERR_BAD_ARG);
	args = args ? args : &none;
	m->a.system = str(args->system);
	m->a.template_name = str(args->template_name);
	m->a.label = str(args->label);
	if (args->tool_count > WIRE_TOOLS_MAX)
		return end_fail(end, -ERR_OUT_OF_RANGE);
	if (args->tool_count > 0 && !args->tools)
		return end_fail(end, -ERR_BAD_ARG);
	for (; m->a.tool_count < args->tool_count; m->a.tool_count++)
		m->a.tools[m->a.tool_count] = str(args->tools[m->a.tool_count]);
	if (args->residency && (unsigned)args->residency->kind > HF_PINNED)
		return end_fail(end, -ERR_BAD_ARG);
	if (args->residency)
		put_residency(&m->a.residency, args->residency);
	call_run(c, NULL, 0, NULL, end);
	return client_opened(out, end);
}

static double off(double value, double when_zero)
{
	return value < 0 || value > 0 ? value : when_zero;
}

static int put_sampling(struct wire_sampling *to, const struct hf_sampling *s)
{
	if (s->stop_count > WIRE_STOPS_MAX || s->bias_count > WIRE_BIAS_MAX ||
			s->stop_token_count > WIRE_STOPS_MAX)
		return -ERR_OUT_OF_RANGE;
	if ((s->stop_count > 0 && !s->stop) || (s->bias_count > 0 && !s->bias) ||
	    (s->stop_token_count > 0 && !s->stop_tokens))
		return -ERR_BAD_ARG;
	to->max_tokens = s->max_tokens;
	to->temperature = s->temperature;
	to->top_p = off(s->top_p, 1);
	to->min_p = s->min_p;
	to->typical = off(s->typical, 1);
	to->top_k = s->top_k;
	to->repetition = off(s->repetition, 1);
	to->presence = s->presence;
	to->frequency = s->frequency;
	to->dry = s->dry;
	to->dry_base = off(s->dry_base, to->dry_base);
	to->dry_allowed = s->dry_allowed ? s->dry_allowed : to->dry_allowed;
	to->dry_last = s->dry_last ? s->dry_last : to->dry_last;
	to->seed = s->seed;
	to->logprobs = s->logprobs;
	to->ignore_end = s->ignore_end;
	for (; to->stop_count < s->stop_count; to->stop_count++)
		to->stop[to->stop_count] = str(s->stop[to->stop_count]);
	for (; to->stop_token_count < s->stop_token_count; to->stop_token_count++)
		to->stop_token[to->stop_token_count] = s->stop_tokens[to->stop_token_count];
	for (; to->bias_count < s->bias_count; to->bias_count++) {
		to->bias[to->bias_count].token = s->bias[to->bias_count].token;
		to->bias[to->bias_count].add = s->bias[to->bias_count].add;
	}
	return 0;
}

static int put_messages(struct wire_args *a, const struct hf_turn *t)
{
	if (t->message_count > WIRE_MESSAGES_MAX)
		return -ERR_OUT_OF_RANGE;
	if (t->message_count > 0 && !t->messages)
		return -ERR_BAD_ARG;
	for (; a->message_count < t->message_count; a->message_count++) {
		const struct hf_message *from = &t->messages[a->message_count];
		struct wire_message *to = &a->messages[a->message_count];
		if ((unsigned)from->role > HF_TOOL || (from->call_count > 0 && !from->calls))
			return -ERR_BAD_ARG;
		if (from->call_count > WIRE_MESSAGES_MAX - a->call_count)
			return -ERR_OUT_OF_RANGE;
		to->role = (uint8_t)from->role;
		to->content = str(from->content);
		if (from->length > 0)
			to->content.length = from->length;
		to->tool_call_id = str(from->tool_call_id);
		to->name = str(from->name);
		to->call_first = a->call_count;
		to->call_count = from->call_count;
		for (uint32_t i = 0; i < from->call_count; i++)
			a->calls[a->call_count++] = (struct wire_tool_call){str(from->calls[i].id),
				str(from->calls[i].name), str(from->calls[i].arguments)};
	}
	return 0;
}

/* Ids as they go over the wire, no more than a third frame takes; free it. */
static uint8_t *put_ids(const uint32_t *ids, size_t count)
{
	uint8_t *blob = malloc(4 * count + 1);
	for (size_t i = 0; blob && i < 4 * count; i++)
		blob[i] = (uint8_t)(ids[i / 4] >> 8 * (i % 4));
	return blob;
}

/* The whole of a turn but its tokens. */
static int put_turn(struct wire_call *m, const struct hf_turn *t)
{
	TRY(put_sampling(&m->a.sampling, &t->sampling));
	TRY(put_messages(&m->a, t));
	if ((unsigned)t->tool_choice > HF_REQUIRED || (t->token_count > 0 && !t->tokens))
		return -ERR_BAD_ARG;
	if (t->choice_count > WIRE_CHOICES_MAX)
		return -ERR_OUT_OF_RANGE;
	if (t->choice_count > 0 && !t->choices)
		return -ERR_BAD_ARG;
	m->a.schema = str(t->schema);
	m->a.regex = str(t->regex);
	for (uint32_t i = 0; i < t->choice_count; i++)
		m->a.choices[m->a.choice_count++] = str(t->choices[i]);
	m->a.tool_choice = (uint8_t)t->tool_choice;
	m->a.supersede = t->supersede;
	if (t->deadline_ms > 0)
		m->deadline_ms = t->deadline_ms;
	return 0;
}

static int turn(struct hf_client *c, enum wire_method method, struct hf_session *s,
	const struct hf_turn *t, const struct hf_stream *stream, struct hf_end *end)
{
	HOLD(c);
	uint8_t *blob = NULL;
	struct wire_call *m = client_begin(c, held, method, s, end);
	if (!m)
		return end->code;
	int code = t ? put_turn(m, t) : -ERR_BAD_ARG;
	if (code == 0 && t->token_count > c->limits.blob_bytes / 4)
		code = -ERR_TOO_BIG;
	if (code == 0 && t->token_count > 0) {
		m->a.tokens_in_blob = true;
		m->a.keep = t->keep;
		blob = put_ids(t->tokens, t->token_count);
		code = blob ? 0 : -ERR_MEMORY;
	}
	if (code != 0)
		end_fail(end, code);
	else
		call_run(c, blob, blob ? 4 * t->token_count : 0, stream, end);
	free(blob);
	return finish(s, end);
}

int hf_session_turn(struct hf_client *c, struct hf_session *s, const struct hf_turn *t,
	const struct hf_stream *stream, struct hf_end *end)
{
	return turn(c, METHOD_SESSION_TURN, s, t, stream, end);
}

int hf_session_continue(struct hf_client *c, struct hf_session *s, const struct hf_turn *t,
	const struct hf_stream *stream, struct hf_end *end)
{
	return turn(c, METHOD_SESSION_CONTINUE, s, t, stream, end);
}

static int fork_as(struct hf_client *c, struct hf_session *s, uint64_t to_tokens, uint64_t to_turn,
	bool tied, struct hf_session *out, struct hf_end *end)
{
	HOLD(c);
	struct wire_call *m = client_begin(c, held, METHOD_SESSION_FORK, s, end);
	if (!m)
		return end->code;
	if (!out)
		return end_fail(end, -ERR_BAD_ARG);
	m->a.tokens = to_tokens;
	m->a.to_turn = to_turn;
	m->a.tied = tied;
	call_run(c, NULL, 0, NULL, end);
	return client_opened(out, end);
}

int hf_session_fork(struct hf_client *c, struct hf_session *s, uint64_t to_tokens,
	uint64_t to_turn, struct hf_session *out, struct hf_end *end)
{
	return fork_as(c, s, to_tokens, to_turn, false, out, end);
}

int hf_session_fork_tied(struct hf_client *c, struct hf_session *s, uint64_t to_tokens,
	uint64_t to_turn, struct hf_session *out, struct hf_end *end)
{
	return fork_as(c, s, to_tokens, to_turn, true, out, end);
}

int hf_session_rollback(struct hf_client *c, struct hf_session *s, uint64_t to_tokens,
	uint64_t to_turn, struct hf_end *end)
{
	HOLD(c);
	struct wire_call *m = client_begin(c, held, METHOD_SESSION_ROLLBACK, s, end);
	if (!m)
		return end->code;
	m->a.tokens = to_tokens;
	m->a.to_turn = to_turn;
	call_run(c, NULL, 0, NULL, end);
	return finish(s, end);
}

int hf_session_close(struct hf_client *c, struct hf_session *s, struct hf_end *end)
{
	return simple(c, METHOD_SESSION_CLOSE, s, end);
}

int hf_session_forget(struct hf_client *c, struct hf_session *s, struct hf_end *end)
{
	return simple(c, METHOD_SESSION_FORGET, s, end);
}

int hf_session_touch(struct hf_client *c, struct hf_session *s, struct hf_end *end)
{
	return simple(c, METHOD_SESSION_TOUCH, s, end);
}

int hf_session_show(struct hf_client *c, struct hf_session *s, struct hf_end *end)
{
	return simple(c, METHOD_SESSION_SHOW, s, end);
}

int hf_session_attach(struct hf_client *c, struct hf_session *s, struct hf_end *end)
{
	return simple(c, METHOD_SESSION_ATTACH, s, end);
}

int hf_session_residency(struct hf_client *c, struct hf_session *s,
	const struct hf_residency *residency, struct hf_end *end)
{
	HOLD(c);
	struct wire_call *m = client_begin(c, held, METHOD_SESSION_RESIDENCY, s, end);
	if (!m)
		return end->code;
	if (!residency || (unsigned)residency->kind > HF_PINNED)
		return end_fail(end, -ERR_BAD_ARG);
	put_residency(&m->a.residency, residency);
	call_run(c, NULL, 0, NULL, end);
	return finish(s, end);
}

int hf_session_hint(struct hf_client *c, struct hf_session *s, uint64_t returns_in_ms,
	const char *tool, struct hf_end *end)
{
	HOLD(c);
	struct wire_call *m = client_begin(c, held, METHOD_SESSION_HINT, s, end);
	if (!m)
		return end->code;
	m->a.returns_in_ms = returns_in_ms;
	m->a.tool_name = str(tool);
	call_run(c, NULL, 0, NULL, end);
	return finish(s, end);
}

int hf_session_park(struct hf_client *c, struct hf_session *s, const char *place,
	struct hf_end *end)
{
	HOLD(c);
	struct wire_call *m = client_begin(c, held, METHOD_SESSION_PARK, s, end);
	if (!m)
		return end->code;
	m->a.place = str(place);
	call_run(c, NULL, 0, NULL, end);
	return finish(s, end);
}

static int range(struct hf_client *c, enum wire_method method, const struct hf_session *of,
	uint64_t first, uint64_t count, struct hf_end *end)
{
	HOLD(c);
	struct wire_call *m = client_begin(c, held, method, of, end);
	if (!m)
		return end->code;
	m->epoch = m->turn = WIRE_NONE; /* to look is not to write */
	m->a.first = first;
	m->a.count = count;
	return call_run(c, NULL, 0, NULL, end);
}

int hf_session_list(struct hf_client *c, uint64_t first, uint64_t count, struct hf_end *end)
{
	return range(c, METHOD_SESSION_LIST, NULL, first, count, end);
}

int hf_pages_show(struct hf_client *c, const struct hf_session *of, uint64_t first,
	uint64_t count, struct hf_end *end)
{
	return range(c, METHOD_PAGES_SHOW, of, first, count, end);
}

int hf_ledger_show(struct hf_client *c, struct hf_end *end)
{
	return simple(c, METHOD_LEDGER_SHOW, NULL, end);
}

int hf_ledger_part(struct hf_client *c, uint64_t first, uint64_t count, struct hf_end *end)
{
	return range(c, METHOD_LEDGER_SHOW, NULL, first, count, end);
}

int hf_model_show(struct hf_client *c, struct hf_end *end)
{
	return simple(c, METHOD_MODEL_SHOW, NULL, end);
}

int hf_health(struct hf_client *c, struct hf_end *end)
{
	return simple(c, METHOD_HEALTH, NULL, end);
}

int hf_metrics(struct hf_client *c, struct hf_end *end)
{
	return simple(c, METHOD_METRICS, NULL, end);
}

int hf_events_replay(struct hf_client *c, const char *principal, uint64_t first, uint64_t count,
	struct hf_end *end)
{
	return client_replay(c, principal, first, count, WIRE_NONE, end);
}

int client_replay(struct hf_client *c, const char *principal, uint64_t first, uint64_t count,
	uint64_t deadline_ms, struct hf_end *end)
{
	HOLD(c);
	struct wire_call *m = client_begin(c, held, METHOD_EVENTS_REPLAY, NULL, end);
	if (!m)
		return end->code;
	m->a.first = first;
	m->a.count = count;
	m->a.principal = str(principal);
	m->deadline_ms = deadline_ms;
	return call_run(c, NULL, 0, NULL, end);
}

int hf_tokenize(struct hf_client *c, const char *text, size_t length, bool special,
	struct hf_end *end)
{
	HOLD(c);
	struct wire_call *m = client_begin(c, held, METHOD_TOKENIZE, NULL, end);
	if (!m)
		return end->code;
	if (length > 0 && !text)
		return end_fail(end, -ERR_BAD_ARG);
	m->a.special = special;
	/* In the third frame: it may be large, and need not be UTF-8. */
	return call_run(c, text, length, NULL, end);
}

int hf_detokenize(struct hf_client *c, const uint32_t *ids, size_t count, struct hf_end *end)
{
	HOLD(c);
	if (!client_begin(c, held, METHOD_DETOKENIZE, NULL, end))
		return end->code;
	if (count > 0 && !ids)
		return end_fail(end, -ERR_BAD_ARG);
	if (count > c->limits.blob_bytes / 4)
		return end_fail(end, -ERR_TOO_BIG);
	uint8_t *blob = put_ids(ids, count);
	if (!blob)
		return end_fail(end, -ERR_MEMORY);
	call_run(c, blob, 4 * count, NULL, end);
	free(blob);
	return end->code;
}
