/*
 * Lines of standard input for "chat", where a signal ends the wait for one at any moment: also between
 * the prompt and the read, where a handler's flag alone would be seen only after the next key.
 */
#include "config.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "clients/command.h"

enum { READ_BYTES = 4096 };

/* What was read and not yet handed out is at[from..to). One thread uses it. */
static struct {
	char *at;
	size_t from, to, capacity;
} input;

/* Room for one more read. */
static bool input_room(void)
{
	if (input.from > 0) {
		memmove(input.at, input.at + input.from, input.to - input.from);
		input.to -= input.from;
		input.from = 0;
	}
	if (input.capacity - input.to > READ_BYTES)
		return true;
	const size_t capacity = 2 * input.capacity + 2 * READ_BYTES;
	char *at = realloc(input.at, capacity);
	if (!at)
		return false;
	input.at = at;
	input.capacity = capacity;
	return true;
}

/* Half a line that cannot be read to its end is not sent as a whole one. */
static bool input_drop(void)
{
	input.from = input.to = 0;
	return false;
}

/* More bytes; false: there are none, or the signal came. The signals are blocked but while it waits. */
static bool input_more(const volatile sig_atomic_t *stop, const sigset_t *waiting)
{
	for (;;) {
		if (*stop)
			return false;
		if (!input_room())
			return input_drop();
		struct pollfd p = {.fd = STDIN_FILENO, .events = POLLIN};
		if (ppoll(&p, 1, NULL, waiting) < 0) {
			if (errno == EINTR)
				continue;
			return input_drop();
		}
		const ssize_t n = read(STDIN_FILENO, input.at + input.to, READ_BYTES);
		if (n > 0) {
			input.to += (size_t)n;
			return true;
		}
		if (n == 0)
			return false;
		if (errno != EINTR && errno != EAGAIN)
			return input_drop();
	}
}

char *input_line(const volatile sig_atomic_t *stop)
{
	sigset_t ours, before;
	size_t length = 0; /* of what was looked through */
	char *end = NULL;
	bool more = true;
	sigemptyset(&ours);
	sigaddset(&ours, SIGINT);
	sigaddset(&ours, SIGTERM);
	sigprocmask(SIG_BLOCK, &ours, &before);
	while (!end && more) {
		const size_t have = input.to - input.from;
		if (have > length)
			end = memchr(input.at + input.from + length, '\n', have - length);
		length = have;
		if (!end)
			more = input_more(stop, &before);
	}
	sigprocmask(SIG_SETMASK, &before, NULL);
	/* The last line may have no end; but one that a signal cut off was not meant to be sent. */
	if (*stop || (!end && input.from == input.to)) {
		input.from = input.to = 0;
		return NULL;
	}
	char *line = input.at + input.from;
	if (!end)
		end = input.at + input.to; /* there is room for one more: input_room */
	*end = 0;
	input.from = (size_t)(end - input.at) + (end < input.at + input.to ? 1 : 0);
	return line;
}
