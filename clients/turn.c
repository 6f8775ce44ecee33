/*
 * The commands that run turns: "turn", for scripts, and "chat", for people. Ctrl-C cancels the turn
 * that runs, and ends a chat that waits; SIGTERM ends both. A session that was opened here is closed
 * here, also then.
 */
#include "config.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "clients/command.h"

/* The text of a turn, kept for --json. */
struct text {
	char *at;
	size_t length, capacity;
	bool print, lost, ended_line;
};

enum { HISTORY_BYTES = 4000 }; /* of what was said before, shown by --resume */

static struct hf_client *running; /* what Ctrl-C cancels */
volatile sig_atomic_t interrupted;

/* A call hears of no cancel that comes before it has begun, and where no piece comes on_piece says none:
   so it is said again each second until the call is over. */
static void cancel_say(void)
{
	if (running)
		hf_cancel(running); /* leaves errno as it is, and so does alarm */
	alarm(1);
}

static void on_signal(int signal)
{
	if (interrupted != SIGTERM)
		interrupted = signal;
	cancel_say();
}

static void on_alarm(int signal)
{
	(void)signal;
	if (interrupted)
		cancel_say();
}

/* Before a session is opened, so that none is left behind. */
static void signals_take(void)
{
	struct sigaction a = {.sa_handler = on_signal};
	sigaction(SIGINT, &a, NULL);
	sigaction(SIGTERM, &a, NULL);
	/* It is nobody's news but ours: what it meets goes on. */
	a.sa_handler = on_alarm;
	a.sa_flags = SA_RESTART;
	sigaction(SIGALRM, &a, NULL);
}

/* Ctrl-C was for the turn. A SIGTERM that comes meanwhile is not forgotten. */
static void signal_forget(void)
{
	sigset_t term, before;
	sigemptyset(&term);
	sigaddset(&term, SIGTERM);
	sigprocmask(SIG_BLOCK, &term, &before);
	if (interrupted == SIGINT)
		interrupted = 0;
	sigprocmask(SIG_SETMASK, &before, NULL);
}

/* Closes what session_begin opened, and says how the command ends. */
static int session_over(struct said *o, struct hf_session *s, bool leave, int exit)
{
	struct hf_end end;
	if (!o->session && !leave) {
		hf_session_close(o->client, s, &end);
		hf_end_free(&end);
	}
	return interrupted ? EXIT_SIGNAL + interrupted : exit;
}

static int on_piece(void *data, const struct hf_piece *p)
{
	struct text *t = data;
	if (interrupted)
		return 1; /* it came before there was anything to cancel */
	if (t->print) {
		print_text(stdout, p->text, p->length);
		if (fflush(stdout) != 0)
			return 1; /* nobody reads: no need to go on */
		if (p->length > 0)
			t->ended_line = p->text[p->length - 1] == '\n';
		return 0;
	}
	if (p->length > t->capacity - t->length) {
		size_t capacity = 2 * (t->length + p->length) + 4096;
		char *at = realloc(t->at, capacity);
		if (!at) {
			t->lost = true;
			return 1;
		}
		t->at = at;
		t->capacity = capacity;
	}
	memcpy(t->at + t->length, p->text, p->length);
	t->length += p->length;
	return 0;
}

char *read_all(size_t *length)
{
	size_t capacity = 1 << 16;
	char *at = malloc(capacity);
	for (*length = 0; at;) {
		size_t got = fread(at + *length, 1, capacity - *length - 1, stdin);
		*length += got;
		if (got == 0)
			break;
		if (*length > 1u << 20) {
			free(at);
			return NULL;
		}
		if (*length + 1 == capacity) {
			char *more = realloc(at, capacity *= 2);
			if (!more)
				free(at);
			at = more;
		}
	}
	if (at)
		at[*length] = 0;
	return at;
}

int session_begin(struct said *o, struct hf_session *out)
{
	struct hf_end end;
	char text[33];
	*out = (struct hf_session){.epoch = HF_NONE, .turn = HF_NONE};
	if (o->session)
		return hf_id_read(o->session, &out->id) ? EXIT_DONE :
			say_usage(o, "a session is 32 hexadecimal digits");
	struct hf_open_args a = {.system = o->system, .label = o->label, .tools = o->tools,
		.tool_count = o->tool_count};
	int code = hf_session_open(o->client, &a, out, &end);
	int exit = code == 0 ? EXIT_DONE : say_error(o, code, &end);
	if (code == -ERR_BAD_ARG && o->tool_count > 0)
		say_line("a tool is a JSON object with a name of 1 to 64 bytes, none of them escaped");
	hf_end_free(&end);
	if (code == 0 && !o->json) {
		hf_id_text(&out->id, text);
		fprintf(stderr, "session %s\n", text);
	}
	return exit;
}

/* A file's text, ended by NUL; NULL: it cannot be read, or is longer than a schema may be. */
static char *read_file(const char *path)
{
	char *at = malloc(WIRE_SCHEMA_MAX + 2);
	FILE *f = at ? fopen(path, "r") : NULL;
	size_t n = f ? fread(at, 1, WIRE_SCHEMA_MAX + 1, f) : 0;
	if (!f || ferror(f) || n > WIRE_SCHEMA_MAX) {
		free(at);
		at = NULL;
	} else {
		at[n] = 0;
	}
	if (f)
		fclose(f);
	return at;
}

/* Runs a turn of the message, or the continuation of the results. */
static int run(struct said *o, struct hf_session *s, const struct hf_message *m, uint32_t count,
	struct text *t, struct hf_end *end)
{
	struct hf_stream stream = {.on_piece = on_piece, .data = t};
	struct hf_turn turn = {.messages = m, .message_count = count, .sampling = o->sampling,
		.regex = o->regex, .choices = o->choices, .choice_count = o->choice_count,
		.deadline_ms = o->deadline_ms};
	char *schema = NULL;
	if (o->schema_path) {
		turn.schema = schema = read_file(o->schema_path);
		if (!schema) {
			*end = (struct hf_end){.after_ms = HF_NONE, .used = HF_NONE, .asked = HF_NONE,
				.limit = HF_NONE};
			return -ERR_NO_FILE;
		}
	}
	turn.sampling.stop = o->stops;
	turn.sampling.stop_count = o->stop_count;
	turn.sampling.stop_tokens = o->stop_tokens;
	turn.sampling.stop_token_count = o->stop_token_count;
	turn.sampling.ignore_end = o->ignore_end;
	running = o->client;
	int code = m[0].role == HF_TOOL ? hf_session_continue(o->client, s, &turn, &stream, end) :
		hf_session_turn(o->client, s, &turn, &stream, end);
	running = NULL;
	free(schema);
	return code;
}

static void put_usage(struct wire_writer *w, const struct hf_usage *u)
{
	const struct { const char *key; uint64_t n; } counts[] = {
		{"prompt", u->prompt}, {"resident", u->resident}, {"reloaded", u->reloaded},
		{"recomputed", u->recomputed}, {"new", u->fresh}, {"sampled", u->sampled},
		{"history", u->history}, {"context_left", u->context_left},
		{"queue_us", u->queue_us}, {"prefill_us", u->prefill_us},
		{"decode_us", u->decode_us}, {"forced", u->forced},
	};
	uint32_t count = sizeof counts / sizeof counts[0];
	wire_put_text(w, "usage");
	wire_put_map(w, count);
	for (uint32_t i = 0; i < count; i++) {
		wire_put_text(w, counts[i].key);
		wire_put_u64(w, counts[i].n);
	}
}

static void put_calls(struct wire_writer *w, const struct hf_end *end)
{
	wire_put_text(w, "calls");
	wire_put_array(w, end->call_count);
	for (uint32_t i = 0; i < end->call_count; i++) {
		wire_put_map(w, 3);
		wire_put_text(w, "id");
		wire_put_text(w, end->calls[i].id);
		wire_put_text(w, "name");
		wire_put_text(w, end->calls[i].name);
		wire_put_text(w, "arguments");
		wire_put_text(w, end->calls[i].arguments);
	}
}

/* The whole turn as one line of JSON. */
static int print_turn(const struct said *o, const struct hf_session *s, const struct text *t,
	const struct hf_end *end)
{
	size_t capacity = t->length + (512u << 10);
	uint8_t *buffer = malloc(capacity);
	struct wire_writer w;
	if (!buffer || t->lost)
		return free(buffer), say_error(o, -ERR_MEMORY, NULL);
	wire_writer_init(&w, buffer, capacity);
	wire_put_map(&w, 4u + (end->usage.present ? 1 : 0) + (end->call_count > 0 ? 1 : 0));
	wire_put_text(&w, "session");
	wire_put_bin(&w, s->id.bytes, sizeof s->id.bytes);
	wire_put_text(&w, "status");
	wire_put_text(&w, end->status ? end->status : "error");
	wire_put_text(&w, "error");
	if (end->code != 0)
		wire_put_text(&w, end->name);
	else
		wire_put_nil(&w);
	wire_put_text(&w, "text");
	wire_put_str(&w, t->at ? t->at : "", t->length);
	if (end->usage.present)
		put_usage(&w, &end->usage);
	if (end->call_count > 0)
		put_calls(&w, end);
	struct wire_value v = {buffer, w.length};
	size_t length = wire_json(v, NULL, 0);
	char *json = malloc(length + 1);
	if (json) {
		wire_json(v, json, length + 1);
		puts(json);
	}
	free(json);
	free(buffer);
	return EXIT_DONE;
}

static void print_calls(const struct hf_end *end)
{
	for (uint32_t i = 0; i < end->call_count; i++) {
		const struct hf_tool_call *c = &end->calls[i];
		fprintf(stderr, "call %u ", i + 1);
		print_text(stderr, c->id, strlen(c->id));
		fputs(": ", stderr);
		print_text(stderr, c->name, strlen(c->name));
		fputc(' ', stderr);
		print_text(stderr, c->arguments, strlen(c->arguments));
		fputc('\n', stderr);
	}
}

static void print_end(const struct hf_end *end)
{
	const struct hf_usage *u = &end->usage;
	if (!end->status)
		return;
	fputc('[', stderr);
	print_text(stderr, end->status, strlen(end->status));
	if (u->present)
		fprintf(stderr, "; prompt %llu: resident %llu, reloaded %llu, recomputed %llu, "
			"new %llu; sampled %llu in %.2f s; %llu left", (unsigned long long)u->prompt,
			(unsigned long long)u->resident, (unsigned long long)u->reloaded,
			(unsigned long long)u->recomputed, (unsigned long long)u->fresh,
			(unsigned long long)u->sampled,
			(double)(u->queue_us + u->prefill_us + u->decode_us) / 1e6,
			(unsigned long long)u->context_left);
	fputs("]\n", stderr);
}

/* Results as ID=TEXT. The ids are cut out of copies, which results_free frees. */
static int results_read(struct said *o, struct hf_message *m)
{
	for (uint32_t i = 0; i < o->result_count; i++) {
		char *copy = strdup(o->results[i]);
		char *equals = copy ? strchr(copy, '=') : NULL;
		if (!equals)
			return free(copy), say_usage(o, "--result takes ID=TEXT");
		*equals = 0;
		m[i] = (struct hf_message){.role = HF_TOOL, .tool_call_id = copy,
			.content = equals + 1};
	}
	return EXIT_DONE;
}

static void results_free(struct hf_message *m)
{
	for (uint32_t i = 0; i < LIST_MAX; i++)
		free((char *)m[i].tool_call_id);
}

int command_turn(struct said *o)
{
	struct hf_message m[LIST_MAX] = {{.role = HF_USER, .content = o->message}};
	struct hf_session s;
	struct hf_end end;
	uint32_t count = o->result_count > 0 ? o->result_count : 1;
	char *input = NULL;
	struct text t = {.print = !o->json, .ended_line = true};
	if (o->result_count > 0 && !o->session)
		return say_usage(o, "--result needs --session");
	if (o->message && strcmp(o->message, "-") == 0)
		o->read_stdin = true;
	if (o->read_stdin) {
		input = read_all(&m[0].length);
		if (!input)
			return say_error(o, -ERR_TOO_BIG, NULL);
		m[0].content = input;
	}
	int exit = results_read(o, m);
	if (exit == EXIT_DONE && !m[0].content)
		exit = say_usage(o, "--message TEXT, --message - or --result ID=TEXT is needed");
	signals_take();
	if (exit == EXIT_DONE)
		exit = session_begin(o, &s);
	if (exit != EXIT_DONE)
		return results_free(m), free(input), exit;
	if (interrupted)
		return results_free(m), free(input), session_over(o, &s, o->keep, exit);
	int code = run(o, &s, m, count, &t, &end);
	if (!t.ended_line)
		putchar('\n');
	if (o->json)
		exit = print_turn(o, &s, &t, &end);
	else
		print_calls(&end), print_end(&end);
	if (code != 0)
		exit = say_error(o, code, &end);
	bool waits = end.call_count > 0;
	hf_end_free(&end);
	/* A session of one turn is not left behind; one that waits for a tool is. */
	exit = session_over(o, &s, o->keep || waits, exit);
	results_free(m);
	free(input);
	free(t.at);
	return exit;
}

/* A line of the user's, or NULL at the end. */
static char *ask(const char *prompt)
{
	if (isatty(0))
		fputs(prompt, stderr);
	return input_line(&interrupted);
}

/* The result of a call: of its command, if the user allows it, or as the user types it. NULL: the end
   of input, or a signal came. */
static char *result_of(struct said *o, const struct hf_tool_call *call)
{
	const char *command = tool_command(o, call->name);
	char *text;
	if (!command) {
		text = ask("result> ");
		return text ? strdup(text) : NULL;
	}
	const enum consent consent = tool_allowed(o, call->name);
	if (consent != CONSENT_GIVEN)
		return consent == CONSENT_NOBODY ? NULL : strdup("error: the user refused this call");
	text = tool_run(command, call->arguments);
	if (interrupted)
		return free(text), NULL; /* it was cut off: that is no result */
	if (text)
		fprintf(stderr, "%s", text[0] ? "" : "(no output)\n");
	if (text)
		print_text(stderr, text, strlen(text));
	return text ? text : strdup("error: the tool could not be run");
}

/* A result for each call that the model made; false when there is no more input. */
static bool ask_results(struct said *o, const struct hf_end *end, struct hf_message *m, uint32_t *count)
{
	print_calls(end);
	for (*count = 0; *count < end->call_count; (*count)++) {
		char *text = result_of(o, &end->calls[*count]);
		if (!text) {
			for (uint32_t i = 0; i < *count; i++) {
				free((char *)m[i].content);
				free((char *)m[i].tool_call_id);
			}
			return false;
		}
		m[*count] = (struct hf_message){.role = HF_TOOL, .content = text,
			.tool_call_id = strdup(end->calls[*count].id)};
	}
	return true;
}

/* Attaches, so that an older client cannot write any more, and shows the end of what was said. */
static int resume(struct said *o, struct hf_session *s)
{
	struct hf_end end, text = {0};
	int code = hf_session_attach(o->client, s, &end);
	hf_end_free(&end);
	if (code == 0) {
		code = hf_session_export(o->client, s, &end);
		if (code == 0)
			code = hf_detokenize(o->client, end.ids, end.id_count, &text);
		if (code == 0) {
			const size_t from = text.byte_count > HISTORY_BYTES ? text.byte_count - HISTORY_BYTES : 0;
			fputs(from ? "…" : "", stdout);
			print_text(stdout, text.bytes + from, text.byte_count - from);
			putchar('\n');
		}
		hf_end_free(&end);
		hf_end_free(&text);
	}
	return code == 0 ? EXIT_DONE : say_error(o, code, NULL);
}

int command_chat(struct said *o)
{
	struct hf_message m[WIRE_CALLS_MAX];
	struct hf_session s;
	struct hf_end end;
	char *line;
	signals_take();
	int exit = session_begin(o, &s);
	if (exit == EXIT_DONE && o->resume)
		exit = resume(o, &s);
	if (exit != EXIT_DONE)
		return exit;
	while (!interrupted && (line = ask("> ")) != NULL && strcmp(line, "/quit") != 0) {
		uint32_t count = 1;
		if (*line == 0)
			continue;
		m[0] = (struct hf_message){.role = HF_USER, .content = line};
		for (bool more = true; more;) {
			struct text t = {.print = true, .ended_line = true};
			int code = run(o, &s, m, count, &t, &end);
			for (uint32_t i = 0; m[0].role == HF_TOOL && i < count; i++) {
				free((char *)m[i].content);
				free((char *)m[i].tool_call_id);
			}
			if (!t.ended_line)
				putchar('\n');
			fflush(stdout);
			print_end(&end);
			exit = code != 0 ? say_error(o, code, &end) : EXIT_DONE;
			more = end.call_count > 0 && !interrupted &&
				ask_results(o, &end, m, &count);
			hf_end_free(&end);
		}
		signal_forget();
	}
	return session_over(o, &s, o->keep, exit);
}
