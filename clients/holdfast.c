/*
 * The command line of holdfast: options, the table of commands, and those that ask one question.
 */
#include "config.h"

#include <errno.h>
#include <getopt.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "clients/command.h"

void say_line(const char *text)
{
	fprintf(stderr, "%s\n", text);
}

int say_usage(const struct said *o, const char *what)
{
	fprintf(stderr, "holdfast: %s%s%s\n", o->command ? o->command : "",
		o->command ? ": " : "", what);
	return EXIT_USAGE;
}

int say_error(const struct said *o, int code, const struct hf_end *end)
{
	const struct { const char *form; uint64_t n; } numbers[] = {
		{"%llu used", end ? end->used : HF_NONE}, {"%llu asked", end ? end->asked : HF_NONE},
		{"%llu is the limit", end ? end->limit : HF_NONE},
	};
	const char *between = " (";
	fprintf(stderr, "holdfast: %s: %s: %s", o->command, hf_name(code), hf_text(code));
	for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
		if (numbers[i].n != HF_NONE) {
			fputs(between, stderr);
			fprintf(stderr, numbers[i].form, (unsigned long long)numbers[i].n);
			between = ", ";
		}
	if (between[0] == ',')
		fputc(')', stderr);
	if (end && end->why[0])
		fprintf(stderr, ": %s", end->why);
	if (end && end->after_ms != HF_NONE)
		fprintf(stderr, ", try again in %llu ms", (unsigned long long)end->after_ms);
	fputc('\n', stderr);
	return hf_later(code) ? EXIT_LATER : EXIT_FAILED;
}

/* Prints a result by its printer, or as JSON, and frees the end. */
static int show(const struct said *o, int code, struct hf_end *end,
	void (*print)(struct wire_value r))
{
	struct wire_value r = {end->packed, end->packed_bytes};
	int exit = EXIT_DONE;
	if (code != 0)
		exit = say_error(o, code, end);
	else if (o->json)
		puts(end->json ? end->json : "null");
	else if (print && r.at)
		print(r);
	hf_end_free(end);
	return exit;
}

static int command_sessions(struct said *o)
{
	struct hf_end end;
	int code = hf_session_list(o->client, o->first, o->count, &end);
	return show(o, code, &end, print_sessions);
}

static int session_word(const struct said *o, struct hf_session *out)
{
	*out = (struct hf_session){.epoch = HF_NONE, .turn = HF_NONE};
	const char *text = o->word_count > 0 ? o->words[0] : o->session;
	if (!text)
		return say_usage(o, "which session?");
	return hf_id_read(text, &out->id) ? EXIT_DONE :
		say_usage(o, "a session is 32 hexadecimal digits");
}

static int command_show(struct said *o)
{
	struct hf_session s;
	struct hf_end end;
	int exit = session_word(o, &s);
	return exit != EXIT_DONE ? exit :
		show(o, hf_session_show(o->client, &s, &end), &end, print_map);
}

/* The rest of the words are sessions, each of which it is done to. */
static int each_session(struct said *o,
	int (*verb)(struct hf_client *, struct hf_session *, struct hf_end *))
{
	int exit = EXIT_DONE;
	if (o->word_count == 0)
		return say_usage(o, "which session?");
	for (; o->word_count > 0; o->words++, o->word_count--) {
		struct hf_session s;
		struct hf_end end;
		int one = session_word(o, &s);
		if (one == EXIT_DONE) {
			int code = verb(o->client, &s, &end);
			one = code == 0 ? EXIT_DONE : say_error(o, code, &end);
			hf_end_free(&end);
		}
		exit = one != EXIT_DONE ? one : exit;
	}
	return exit;
}

static int command_close(struct said *o)
{
	return each_session(o, hf_session_close);
}

static int command_forget(struct said *o)
{
	return each_session(o, hf_session_forget);
}

static int command_touch(struct said *o)
{
	return each_session(o, hf_session_touch);
}

static int command_fork(struct said *o)
{
	struct hf_session s, out;
	struct hf_end end;
	char text[33];
	int exit = session_word(o, &s);
	if (exit != EXIT_DONE)
		return exit;
	int code = (o->tied ? hf_session_fork_tied : hf_session_fork)(o->client, &s, o->to_tokens, o->to_turn,
		&out, &end);
	if (code == 0) {
		hf_id_text(&out.id, text);
		printf(o->json ? "{\"session\":\"%s\"}\n" : "%s\n", text);
		hf_end_free(&end);
		return EXIT_DONE;
	}
	return show(o, code, &end, NULL);
}

static int command_rollback(struct said *o)
{
	struct hf_session s;
	struct hf_end end;
	int exit = session_word(o, &s);
	if (exit != EXIT_DONE)
		return exit;
	if ((o->to_tokens == HF_NONE) == (o->to_turn == HF_NONE))
		return say_usage(o, "--to-tokens N or --to-turn N is needed");
	return show(o, hf_session_rollback(o->client, &s, o->to_tokens, o->to_turn, &end), &end,
		print_map);
}

static int command_ledger(struct said *o)
{
	struct hf_end end;
	return show(o, hf_ledger_part(o->client, o->first, o->count, &end), &end, print_ledger);
}

static int command_pages(struct said *o)
{
	struct hf_session s;
	struct hf_end end;
	bool one = o->word_count > 0 || o->session;
	int exit = one ? session_word(o, &s) : EXIT_DONE;
	return exit != EXIT_DONE ? exit :
		show(o, hf_pages_show(o->client, one ? &s : NULL, o->first, o->count, &end), &end,
			print_pages);
}

static int command_model(struct said *o)
{
	struct hf_end end;
	return show(o, hf_model_show(o->client, &end), &end, print_map);
}

static int command_health(struct said *o)
{
	struct hf_end end;
	return show(o, hf_health(o->client, &end), &end, print_map);
}

static int command_tokenize(struct said *o)
{
	struct hf_end end;
	char *input = NULL;
	const char *text = o->word_count > 0 ? o->words[0] : NULL;
	size_t length = text ? strlen(text) : 0;
	if (!text) {
		text = input = read_all(&length);
		if (!input)
			return say_error(o, -ERR_TOO_BIG, NULL);
	}
	int code = hf_tokenize(o->client, text, length, o->special, &end);
	if (code == 0) {
		for (size_t i = 0; i < end.id_count; i++)
			printf("%s%u", i == 0 ? "[" : ",", end.ids[i]);
		puts(end.id_count > 0 ? "]" : "[]");
	} else {
		say_error(o, code, &end);
	}
	free(input);
	hf_end_free(&end);
	return code == 0 ? EXIT_DONE : hf_later(code) ? EXIT_LATER : EXIT_FAILED;
}

static int command_completion(struct said *o);

/* --- Commands and options. --- */

/* main gives `holdfast audit …` to holdfastd before options are read: its options are not ours. */
static int command_audit(struct said *o)
{
	return say_usage(o, "audit stands first: holdfast audit QUESTION [options]");
}

static const struct command {
	const char *name, *usage, *help;
	const char *options; /* the letters of those it takes */
	int words; /* at most */
	int (*run)(struct said *o);
} commands[] = {
	{"chat", "[--session ID]", "talk; a line is a turn, /quit or end of input leaves",
		"SyLTkmtpKsfqxidDGCYRPFBluZXU", 0, command_chat},
	{"turn", "[--session ID] --message TEXT", "run one turn and print what comes",
		"SyLTkmtpKsfqxidMrIDGCYRPFBlu", 0, command_turn},
	{"sessions", "", "list sessions", "nc", 0, command_sessions},
	{"show", "ID", "show a session", "S", 1, command_show},
	{"fork", "ID", "make a session of another's history", "SabO", 1, command_fork},
	{"rollback", "ID", "take a session back", "Sab", 1, command_rollback},
	{"touch", "ID…", "say that sessions are still wanted", "", 1000, command_touch},
	{"close", "ID…", "end sessions", "", 1000, command_close},
	{"forget", "ID…", "end them, and remove text, tokens and pages", "", 1000, command_forget},
	{"ledger", "", "what memory holds: accounts, principals, sessions", "nc", 0, command_ledger},
	{"pages", "[ID]", "list KV pages", "Snc", 1, command_pages},
	{"model", "", "show the model", "", 0, command_model},
	{"tokenize", "[TEXT]", "ids of a text, or of standard input, as JSON", "z", 1,
		command_tokenize},
	{"health", "", "ask how the daemon is", "", 0, command_health},
	{"top", "", "memory, sessions and speed, again and again", "wc", 0, command_top},
	{"watch", "", "a line for each event of a session", "cv", 0, command_watch},
	{"metrics", "", "counters, in Prometheus' form", "", 0, command_metrics},
	{"export", "ID > FILE", "a session as tokens and settings, to be moved", "", 1, command_export},
	{"import", "[FILE]", "a session that was exported, as a new one; prints its ID", "", 1,
		command_import},
	{"keygen", "NAME", "make the keys NAME.key and NAME.key_secret", "", 1, command_keygen},
	{"audit", "QUESTION [--state DIR]", "ask the audit log: session, page, turn, verify, …", "",
		8, command_audit},
	{"completion", "bash|zsh|fish", "the completion of a shell", "", 1, command_completion},
};

static const struct option_entry {
	const char *name, *value, *help;
	char letter; /* upper and lower case are different options; none is a short option */
} option_table[] = {
	{"session", "ID", "the session; without it, a new one that is closed at the end", 'S'},
	{"system", "TEXT", "system prompt of a new session", 'y'},
	{"label", "TEXT", "label of a new session", 'L'},
	{"tool", "JSON", "a tool of a new session; may be repeated", 'T'},
	{"resume", "ID", "attach to this session, fence its last client, show what was said", 'Z'},
	{"run", "NAME=COMMAND", "what runs a tool, arguments on stdin; may be repeated", 'X'},
	{"yes", NULL, "run tools without asking", 'U'},
	{"interval", "MS", "time between two looks; default 1000", 'w'},
	{"events", "E", "where events are told; default the endpoint with -events", 'v'},
	{"keep", NULL, "do not close the new session", 'k'},
	{"message", "TEXT", "what the user says; -: standard input", 'M'},
	{"stdin", NULL, "the same as --message -", 'I'},
	{"result", "CALL=TEXT", "the result of a tool call; may be repeated", 'r'},
	{"max-tokens", "N", "sample at most so many", 'm'},
	{"temperature", "X", "0 (greedy) to 100", 't'},
	{"top-p", "X", "above 0, up to 1", 'p'},
	{"top-k", "N", "0: off", 'K'},
	{"seed", "N", "0 to 18446744073709551615", 's'},
	{"stop", "TEXT", "a string that ends the turn; may be repeated", 'f'},
	{"stop-token", "ID", "a token that ends the turn; may be repeated", 'q'},
	{"ignore-end", NULL, "end tokens do not end the turn", 'x'},
	{"deadline", "MS", "cancel after so many milliseconds", 'd'},
	{"min-p", "X", "0 (off) to 1", 'i'},
	{"typical", "X", "above 0, up to 1", 'Y'},
	{"repetition", "X", "0.01 to 100; 1: off", 'R'},
	{"presence", "X", "-100 to 100", 'P'},
	{"frequency", "X", "-100 to 100", 'F'},
	{"dry", "X", "what a repeated run of tokens costs; 0: off", 'u'},
	{"bias", "ID=X", "added to the logit of a token; may be repeated", 'B'},
	{"logprobs", "N", "1: of what was sampled; 1 + N: with N others (--json)", 'l'},
	{"schema", "FILE", "the answer is JSON of this JSON Schema", 'D'},
	{"regex", "TEXT", "the answer matches this, as a whole", 'G'},
	{"choice", "TEXT", "the answer is one of these; may be repeated", 'C'},
	{"to-tokens", "N", "so many tokens of the history stay", 'a'},
	{"to-turn", "N", "the turns up to this one stay", 'b'},
	{"tied", NULL, "the new session is closed when its parent is", 'O'},
	{"first", "N", "begin with this one", 'n'},
	{"count", "N", "list at most so many", 'c'},
	{"special", NULL, "control tokens are recognised", 'z'},
	{"endpoint", "E", "where the daemon listens", 'E'},
	{"key", "FILE", "our key_secret, for a daemon over TCP", 'g'},
	{"server-key", "Z85", "the daemon's public key, over TCP", 'W'},
	{"timeout", "MS", "for the daemon to answer at all; default 5000", 'o'},
	{"json", NULL, "results as JSON", 'j'},
	{"help", NULL, "this text", 'h'},
	{"version", NULL, "the version", 'V'},
};
static const char options_of_all[] = "EgWojhV";
enum { OPTION_COUNT = sizeof option_table / sizeof option_table[0],
	COMMAND_COUNT = sizeof commands / sizeof commands[0] };

static void print_options(const char *letters)
{
	for (int i = 0; i < OPTION_COUNT; i++) {
		const struct option_entry *e = &option_table[i];
		char left[40];
		if (!strchr(letters, e->letter))
			continue;
		snprintf(left, sizeof left, "--%s%s%s", e->name, e->value ? " " : "",
			e->value ? e->value : "");
		/* Only what takes --keep makes sessions; elsewhere it is another way to say ID. */
		printf("  %-20s %s\n", left, e->letter == 'S' && !strchr(letters, 'k') ?
			"the session, in place of the word ID" : e->help);
	}
}

static int print_help(const struct command *c)
{
	if (c) {
		printf("usage: holdfast %s %s [options]\n%s\n\n", c->name, c->usage, c->help);
		print_options(c->options);
	} else {
		printf("usage: holdfast COMMAND [options]\n\n");
		for (int i = 0; i < COMMAND_COUNT; i++)
			printf("  %-10s %-30s %s\n", commands[i].name, commands[i].usage,
				commands[i].help);
		printf("\nholdfast COMMAND --help shows the options of a command. "
			"Of all commands:\n");
	}
	print_options(options_of_all);
	printf("\nThe endpoint is --endpoint, else $HOLDFAST_ENDPOINT, else\n"
		"ipc://${XDG_RUNTIME_DIR:-/tmp/holdfast-UID}/holdfast.sock\n"
		"Exit codes: 0 done, 1 failed, 2 used wrongly, 3 not now: try again;\n"
		"128 and the signal's number: ended by it.\n");
	return EXIT_DONE;
}

static bool number(const char *text, uint64_t most, uint64_t *out)
{
	char *rest;
	errno = 0;
	unsigned long long n = strtoull(text, &rest, 10);
	if (*text < '0' || *text > '9' || *rest || errno || n > most)
		return false;
	*out = n;
	return true;
}

static bool number32(const char *text, uint32_t *out)
{
	uint64_t n;
	if (!number(text, UINT32_MAX, &n))
		return false;
	*out = (uint32_t)n;
	return true;
}

static bool real(const char *text, double *out)
{
	char *rest;
	*out = strtod(text, &rest);
	return rest != text && !*rest;
}

static bool append(const char **list, uint32_t *count, uint32_t most, const char *value)
{
	if (*count >= most)
		return false;
	list[(*count)++] = value;
	return true;
}

/* ID=X */
static bool bias(struct said *o, const char *text)
{
	char *rest;
	const unsigned long id = strtoul(text, &rest, 10);
	const uint32_t n = o->sampling.bias_count;
	if (*text < '0' || *text > '9' || *rest != '=' || id > INT32_MAX || n == WIRE_BIAS_MAX)
		return false;
	o->biases[n].token = (uint32_t)id;
	o->sampling.bias = o->biases;
	o->sampling.bias_count++;
	return real(rest + 1, &o->biases[n].add);
}

static bool stop_token(struct said *o, const char *text)
{
	return o->stop_token_count < WIRE_STOPS_MAX &&
		number32(text, &o->stop_tokens[o->stop_token_count++]);
}

static bool take_option(struct said *o, char letter, const char *value)
{
	switch (letter) {
	case 'S': o->session = value; return true;
	case 'y': o->system = value; return true;
	case 'L': o->label = value; return true;
	case 'T': return append(o->tools, &o->tool_count, WIRE_TOOLS_MAX, value);
	case 'k': o->keep = true; return true;
	case 'Z': o->session = value; return o->resume = true;
	case 'X': return strchr(value, '=') && append(o->runs, &o->run_count, LIST_MAX, value);
	case 'U': return o->run_all = true;
	case 'w': return number32(value, &o->interval_ms) && o->interval_ms > 0;
	case 'v': o->events = value; return true;
	case 'M': o->message = value; return true;
	case 'I': o->read_stdin = true; return true;
	case 'r': return append(o->results, &o->result_count, LIST_MAX, value);
	case 'm': return number32(value, &o->sampling.max_tokens);
	case 't': return real(value, &o->sampling.temperature);
	case 'p': return real(value, &o->sampling.top_p);
	case 'i': return real(value, &o->sampling.min_p);
	case 'K': return number32(value, &o->sampling.top_k);
	case 's': return number(value, UINT64_MAX, &o->sampling.seed);
	case 'f': return append(o->stops, &o->stop_count, WIRE_STOPS_MAX, value);
	case 'q': return stop_token(o, value);
	case 'x': o->ignore_end = true; return true;
	case 'Y': return real(value, &o->sampling.typical);
	case 'R': return real(value, &o->sampling.repetition);
	case 'P': return real(value, &o->sampling.presence);
	case 'F': return real(value, &o->sampling.frequency);
	case 'u': return real(value, &o->sampling.dry);
	case 'B': return bias(o, value);
	case 'l': return number32(value, &o->sampling.logprobs);
	case 'D': o->schema_path = value; return true;
	case 'G': o->regex = value; return true;
	case 'C': return append(o->choices, &o->choice_count, WIRE_CHOICES_MAX, value);
	case 'd': return number32(value, &o->deadline_ms);
	case 'a': return number(value, INT32_MAX, &o->to_tokens);
	case 'b': return number(value, INT64_MAX, &o->to_turn);
	case 'O': return o->tied = true;
	case 'n': return number(value, UINT32_MAX, &o->first);
	case 'c':
		o->count_said = true;
		return number(value, WIRE_COUNT_MAX, &o->count) && o->count > 0;
	case 'z': o->special = true; return true;
	case 'E': o->endpoint = value; return true;
	case 'g': o->key_file = value; return true;
	case 'W': o->server_key = value; return true;
	case 'o': return number32(value, &o->timeout_ms) && o->timeout_ms > 0;
	case 'j': o->json = true; return true;
	default: return false;
	}
}

static void completion_words(const char *before, const char *letters)
{
	for (int i = 0; i < OPTION_COUNT; i++)
		if (strchr(letters, option_table[i].letter) || strchr(options_of_all, option_table[i].letter))
			printf("%s--%s", before, option_table[i].name);
}

/* From the tables, so that it cannot be older than they are. */
static int command_completion(struct said *o)
{
	const char *shell = o->word_count > 0 ? o->words[0] : "";
	if (strcmp(shell, "fish") == 0) {
		for (int i = 0; i < COMMAND_COUNT; i++) {
			const struct command *c = &commands[i];
			printf("complete -c holdfast -f -n __fish_use_subcommand -a %s -d '%s'\n", c->name,
				strcmp(c->name, "metrics") == 0 ? "counters" : c->help);
			for (int k = 0; k < OPTION_COUNT; k++)
				if (strchr(c->options, option_table[k].letter))
					printf("complete -c holdfast -n '__fish_seen_subcommand_from %s' -l %s%s\n",
						c->name, option_table[k].name, option_table[k].value ? " -r" : "");
		}
		return EXIT_DONE;
	}
	if (strcmp(shell, "bash") != 0 && strcmp(shell, "zsh") != 0)
		return say_usage(o, "which shell: bash, zsh or fish?");
	if (*shell == 'z')
		puts("autoload -U +X bashcompinit && bashcompinit");
	fputs("_holdfast() {\n\tlocal now=${COMP_WORDS[COMP_CWORD]} words\n\tcase ${COMP_WORDS[1]} in\n",
		stdout);
	for (int i = 0; i < COMMAND_COUNT; i++) {
		printf("\t%s) words=\"", commands[i].name);
		completion_words(" ", commands[i].options);
		puts("\";;");
	}
	fputs("\t*) words=\"", stdout);
	for (int i = 0; i < COMMAND_COUNT; i++)
		printf(" %s", commands[i].name);
	puts("\";;\n\tesac\n\tCOMPREPLY=($(compgen -W \"$words\" -- \"$now\"))\n}\n"
		"complete -F _holdfast holdfast");
	return EXIT_DONE;
}

static const struct command *command_find(const char *name)
{
	for (int i = 0; name && i < COMMAND_COUNT; i++)
		if (strcmp(commands[i].name, name) == 0)
			return &commands[i];
	return NULL;
}

/* Reads options; -1 to go on, else the exit code. */
static int options_read(struct said *o, const struct command *c, int argc, char **argv)
{
	struct option longs[OPTION_COUNT + 1] = {0};
	int at, got;
	for (int i = 0; i < OPTION_COUNT; i++)
		longs[i] = (struct option){option_table[i].name,
			option_table[i].value ? required_argument : no_argument, NULL, 0};
	while ((got = getopt_long(argc, argv, "", longs, &at)) != -1) {
		if (got == '?') {
			fprintf(stderr, "holdfast%s%s --help lists the options\n", o->command ? " " : "",
				o->command ? o->command : "");
			return EXIT_USAGE;
		}
		const struct option_entry *e = &option_table[at];
		if (e->letter == 'h')
			return print_help(c);
		if (e->letter == 'V')
			return puts("holdfast " PACKAGE_VERSION), EXIT_DONE;
		if (!strchr(options_of_all, e->letter) && !(c && strchr(c->options, e->letter))) {
			fprintf(stderr, "holdfast: %s: --%s is not an option of it\n",
				o->command ? o->command : "holdfast", e->name);
			return EXIT_USAGE;
		}
		if (!take_option(o, e->letter, optarg)) {
			fprintf(stderr, "holdfast: --%s: this value is not possible\n", e->name);
			return EXIT_USAGE;
		}
	}
	return -1;
}

static int connect_to(struct said *o)
{
	char fallback[512] = "";
	struct hf_options options = {.client = "holdfast", .timeout_ms = o->timeout_ms,
		.key_file = o->key_file, .server_key = o->server_key};
	int code = hf_open(o->endpoint, &options, &o->client);
	if (code == 0)
		return EXIT_DONE;
	if (!o->endpoint)
		wire_default_endpoint(fallback, sizeof fallback);
	const char *at = o->endpoint ? o->endpoint : fallback;
	const char *advice = connect_advice(o, at, code);
	fprintf(stderr, "holdfast: %s: %s: %s: %s\n", o->command, at, hf_name(code),
		advice ? advice : hf_text(code));
	if (code == -ERR_BAD_ARG)
		return EXIT_USAGE;
	/* A daemon may come later; a key's file that is not there is a mistake. */
	return hf_later(code) && !(o->key_file && access(o->key_file, F_OK) != 0) ? EXIT_LATER : EXIT_FAILED;
}

/* The first word that is neither an option nor the value of one. The options of a command are only
   known with it, so it is looked for before they are read. */
static const char *command_word(int argc, char **argv)
{
	for (int i = 1; i < argc; i++) {
		if (argv[i][0] != '-')
			return argv[i];
		if (strcmp(argv[i], "--endpoint") == 0 || strcmp(argv[i], "--timeout") == 0 ||
		    strcmp(argv[i], "--key") == 0 || strcmp(argv[i], "--server-key") == 0)
			i++;
	}
	return NULL;
}

/* A pipe of which nobody holds the other end: as with other tools, no reason for words. */
static bool reader_gone(void)
{
	struct pollfd p = {.fd = 1, .events = POLLOUT};
	return poll(&p, 1, 0) == 1 && (p.revents & POLLERR) != 0;
}

/* The log's questions are answered by the daemon's program, which knows its files: found beside this
   one, or where programs are. */
static int audit_run(char **argv)
{
	char path[4096];
	const ssize_t n = readlink("/proc/self/exe", path, sizeof path - sizeof "d");
	if (n > 0) {
		path[n] = 'd';
		path[n + 1] = 0;
		execv(path, argv);
		/* In a build tree libtool keeps this program one folder below. */
		char *below = strstr(path, "/.libs/holdfastd");
		if (below && below[sizeof "/.libs/holdfastd" - 1] == 0) {
			memmove(below, below + strlen("/.libs"), sizeof "/holdfastd");
			execv(path, argv);
		}
	}
	execvp("holdfastd", argv);
	say_line("holdfast: audit: holdfastd is not found beside this program, nor in PATH");
	return EXIT_FAILED;
}

int main(int argc, char **argv)
{
	if (argc > 1 && strcmp(argv[1], "audit") == 0)
		return audit_run(argv);
	struct said o = {.to_tokens = HF_NONE, .to_turn = HF_NONE, .count = WIRE_COUNT_DEFAULT};
	o.command = command_word(argc, argv);
	const struct command *c = command_find(o.command);
	if (o.command && !c)
		return say_usage(&o, "there is no such command; holdfast --help lists them");
	int exit = options_read(&o, c, argc, argv);
	if (exit >= 0)
		return exit;
	if (!c)
		return say_usage(&o, "a command is needed; holdfast --help lists them");
	optind++;
	o.words = argv + optind;
	o.word_count = argc - optind;
	if (o.word_count > c->words)
		return say_usage(&o, "too many words");
	/* A reader that goes away is an error to be seen, not a death: a session may be to close. */
	signal(SIGPIPE, SIG_IGN);
	exit = c->run == command_completion || c->run == command_keygen ? EXIT_DONE : connect_to(&o);
	if (exit == EXIT_DONE)
		exit = c->run(&o);
	hf_close(&o.client);
	if (fflush(stdout) != 0 || ferror(stdout)) {
		if (reader_gone())
			return EXIT_SIGNAL + SIGPIPE;
		say_line("holdfast: standard output cannot be written");
		exit = exit == EXIT_DONE ? EXIT_FAILED : exit;
	}
	return exit;
}
