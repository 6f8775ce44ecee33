/*
 * The command line: what its files share. stdout is data, stderr is words; exit codes are
 * EXIT_*. Private to the program holdfast.
 */
#ifndef HOLDFAST_CLIENTS_COMMAND_H
#define HOLDFAST_CLIENTS_COMMAND_H

#include <signal.h>

#include "clients/client.h"
#include "clients/wire.h"

enum { EXIT_DONE = 0, EXIT_FAILED = 1, EXIT_USAGE = 2, EXIT_LATER = 3,
	EXIT_SIGNAL = 128 /* and its number, as shells say it */ };
enum { LIST_MAX = 64 };

/* What the command line said. */
struct said {
	const char *command, *endpoint, *session, *system, *message, *label;
	bool json, keep, read_stdin, ignore_end, special, tied;
	const char *tools[WIRE_TOOLS_MAX], *stops[WIRE_STOPS_MAX], *results[LIST_MAX];
	uint32_t tool_count, stop_count, result_count, choice_count;
	const char *schema_path, *regex, *choices[WIRE_CHOICES_MAX];
	struct hf_bias biases[WIRE_BIAS_MAX];
	uint64_t to_tokens, to_turn, first, count; /* HF_NONE: not said */
	struct hf_sampling sampling;
	uint32_t timeout_ms, deadline_ms;
	char **words; /* what is no option */
	int word_count;
	struct hf_client *client;
	const char *runs[LIST_MAX]; /* NAME=COMMAND */
	uint32_t run_count, interval_ms;
	bool run_all, resume, count_said;
	uint32_t stop_tokens[WIRE_STOPS_MAX], stop_token_count;
	const char *key_file, *server_key, *events;
};

/* Says a line on stderr: "holdfast: turn: …". Returns the exit code for a code of the library. */
int say_error(const struct said *o, int code, const struct hf_end *end);
int say_usage(const struct said *o, const char *what);
void say_line(const char *text);

int command_chat(struct said *o);
int command_turn(struct said *o);
int command_top(struct said *o);
int command_watch(struct said *o);
int command_metrics(struct said *o);
int command_keygen(struct said *o);
/* What to do about a daemon that could not be reached, with that code of hf_open; NULL: nothing is known. */
const char *connect_advice(const struct said *o, const char *endpoint, int code);
int command_export(struct said *o);
int command_import(struct said *o);

/* The command that --run names for a tool; NULL: none. */
const char *tool_command(const struct said *o, const char *name);
/* Asks the user, who may say so for all that follow; nobody: at the end of input, or a signal came. */
enum consent { CONSENT_GIVEN, CONSENT_REFUSED, CONSENT_NOBODY };
enum consent tool_allowed(struct said *o, const char *name);
/* Runs the command with the arguments on its standard input; its output, to be freed. NULL: it cannot. When
   `interrupted` is set it is ended. */
char *tool_run(const char *command, const char *arguments);

/* Opens the session that --session names, or a new one. */
int session_begin(struct said *o, struct hf_session *out);

/* The signal that came for "turn" or "chat"; 0: none. */
extern volatile sig_atomic_t interrupted;
/* The next line of standard input, without its end, good until the next call; NULL: there is none, no
   memory, or *stop became non-zero by a handler of SIGINT or SIGTERM, at whatever moment. */
char *input_line(const volatile sig_atomic_t *stop);

/* All of standard input; NULL when there is no memory, or more than a message may hold. */
char *read_all(size_t *length);

/* Text of somebody else's to a stream: where that is a terminal, without control characters. */
void print_text(void *stream, const char *text, size_t length);

/* Results for people. */
int rows_of_terminal(void);
int columns_of_terminal(void); /* where there is none more than anything needs */
void print_sessions(struct wire_value r);
void print_ledger(struct wire_value r);
void print_pages(struct wire_value r);
void print_map(struct wire_value r);

#endif
