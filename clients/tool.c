/*
 * Tools that the command line runs for a model, with the user's consent: a command for each name, given
 * the call's arguments as JSON on standard input; what it prints is the result. A signal that ends the turn
 * or the chat ends the tool that runs.
 */
#include "config.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "clients/command.h"

enum { RESULT_BYTES = 64 << 10, GRACE_MS = 2000 /* from the signal to SIGKILL */, LOOK_MS = 2 };

const char *tool_command(const struct said *o, const char *name)
{
	const size_t length = strlen(name);
	for (uint32_t i = 0; i < o->run_count; i++)
		if (strncmp(o->runs[i], name, length) == 0 && o->runs[i][length] == '=')
			return o->runs[i] + length + 1;
	return NULL;
}

enum consent tool_allowed(struct said *o, const char *name)
{
	if (o->run_all)
		return CONSENT_GIVEN;
	for (;;) {
		fprintf(stderr, "run ");
		print_text(stderr, name, strlen(name));
		fprintf(stderr, "? [y]es, [n]o, [a]ll from now on: ");
		fflush(stderr);
		const char *line = input_line(&interrupted);
		if (!line)
			return CONSENT_NOBODY;
		switch (line[0]) {
		case 'a':
			o->run_all = true;
			return CONSENT_GIVEN;
		case 'y':
			return CONSENT_GIVEN;
		case 'n':
			return CONSENT_REFUSED;
		default:
			break;
		}
	}
}

/* The child: the command with the two pipes, and no signal handling of ours. What it starts ends with it:
   they are a group, but on a terminal, which reads for one group alone and itself sends that its signals. */
static void child(const char *command, const int in[2], const int out[2], bool group)
{
	if (group)
		setpgid(0, 0);
	dup2(in[0], 0);
	dup2(out[1], 1);
	for (int i = 0; i < 2; i++) {
		close(in[i]);
		close(out[i]);
	}
	signal(SIGPIPE, SIG_DFL);
	execl("/bin/sh", "sh", "-c", command, (char *)NULL);
	_exit(127);
}

/* Writes the arguments and reads the result at once, so that neither side waits for the other; no longer than
   until a signal came: should it come just before the wait, the alarm that follows it ends that. */
static size_t exchange(int to, int from, const char *arguments, char *result)
{
	size_t left = strlen(arguments), length = 0;
	while (from >= 0 && !interrupted) {
		struct pollfd p[2] = {{from, POLLIN, 0}, {left ? to : -1, POLLOUT, 0}};
		char drain[4096];
		if (!left && to >= 0) {
			close(to);
			to = -1;
		}
		if (poll(p, 2, -1) < 0) {
			if (errno == EINTR)
				continue;
			break;
		}
		if (p[1].revents) {
			const ssize_t n = write(to, arguments, left < 4096 ? left : 4096);
			left = n < 0 ? 0 : left - (size_t)n; /* who does not read them does not want them */
			arguments += n < 0 ? 0 : n;
		}
		if (p[0].revents) {
			const bool room = length < RESULT_BYTES;
			const ssize_t n = room ? read(from, result + length, RESULT_BYTES - length)
					       : read(from, drain, sizeof drain);
			if (n <= 0)
				break;
			length += room ? (size_t)n : 0;
		}
	}
	if (to >= 0)
		close(to);
	return length;
}

/* Waits for it, and ends it when a signal came: by the same, and who does not heed that by SIGKILL. Returns
   what waitpid says. It looks again and again, since a signal just before a wait would not end that. */
static int child_wait(pid_t pid, bool group)
{
	const struct timespec look = {.tv_nsec = LOOK_MS * 1000000L};
	int status = 0, told_ms = 0;
	pid_t got;
	while ((got = waitpid(pid, &status, WNOHANG)) == 0 || (got < 0 && errno == EINTR)) {
		if (interrupted && (told_ms == 0 || told_ms == GRACE_MS))
			kill(group ? -pid : pid, told_ms == 0 ? interrupted : SIGKILL);
		told_ms += interrupted ? LOOK_MS : 0;
		nanosleep(&look, NULL);
	}
	/* What it had started and did not take along. */
	if (group && interrupted)
		kill(-pid, SIGKILL);
	return status;
}

/* What is no character of UTF-8 would be refused by the wire. */
static void plain(char *text, size_t length)
{
	for (size_t i = 0; i < length; i++) {
		const unsigned char b = (unsigned char)text[i];
		const size_t n = b < 0x80 ? 1 : b >= 0xc2 && b < 0xe0 ? 2 : b >= 0xe0 && b < 0xf0 ? 3
				 : b >= 0xf0 && b < 0xf5 ? 4 : 0;
		size_t k = 1;
		while (k < n && i + k < length && ((unsigned char)text[i + k] & 0xc0) == 0x80)
			k++;
		const unsigned char second = n > 1 && k > 1 ? (unsigned char)text[i + 1] : 0;
		const bool good = n != 0 && k == n && text[i] != 0 && !(b == 0xe0 && second < 0xa0) &&
			!(b == 0xed && second >= 0xa0) && !(b == 0xf0 && second < 0x90) &&
			!(b == 0xf4 && second >= 0x90);
		if (!good)
			text[i] = '?';
		else
			i += n - 1;
	}
}

char *tool_run(const char *command, const char *arguments)
{
	int in[2], out[2], status = 0;
	const bool group = !isatty(0);
	char *result = malloc(RESULT_BYTES + 64);
	if (!result || pipe(in) != 0)
		return free(result), NULL;
	if (pipe(out) != 0) {
		close(in[0]);
		close(in[1]);
		return free(result), NULL;
	}
	fflush(stdout);
	const pid_t pid = fork();
	if (pid == 0)
		child(command, in, out, group);
	if (pid > 0 && group)
		setpgid(pid, pid); /* both do: whoever is first */
	close(in[0]);
	close(out[1]);
	size_t length = pid > 0 ? exchange(in[1], out[0], arguments, result) : (close(in[1]), 0);
	close(out[0]);
	if (pid > 0)
		status = child_wait(pid, group);
	plain(result, length);
	result[length] = 0;
	if (pid < 0 || status != 0)
		snprintf(result + length, 64, "%s(exit code %d)\n", length ? "\n" : "",
			pid > 0 && WIFEXITED(status) ? WEXITSTATUS(status) : 128);
	return result;
}
