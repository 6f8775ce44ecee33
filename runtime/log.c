/*
 * What the daemon says on stderr: lines with a level, and a progress bar where there is a terminal.
 */
#include <stdarg.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#include "runtime/daemon.h"

static enum log_level level_now = LOG_NOTICE;

void log_level_set(enum log_level level)
{
	level_now = level;
}

void log_say(enum log_level level, const char *format, ...)
{
	if (level > level_now)
		return;
	char line[LOG_LINE_MAX];
	va_list arguments;
	va_start(arguments, format);
	int n = vsnprintf(line, sizeof line - 1, format, arguments);
	va_end(arguments);
	if (n < 0)
		return;
	fprintf(stderr, "holdfastd: %s\n", line);
}

void log_progress(void *arg, const char *what, uint64_t done, uint64_t total)
{
	static struct timespec last;
	(void)arg;
	if (!isatty(2) || !total)
		return;
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	const long ms = (now.tv_sec - last.tv_sec) * 1000 + (now.tv_nsec - last.tv_nsec) / 1000000;
	if (done < total && ms < 50)
		return;
	last = now;
	char bar[41];
	const int filled = (int)((double)done / (double)total * 40);
	for (int i = 0; i < 40; i++)
		bar[i] = i < filled ? '#' : '.';
	bar[40] = 0;
	fprintf(stderr, "\r%-12s [%s] %3d %%%s", what, bar, (int)(100 * ((double)done / (double)total)),
		done >= total ? "\n" : "");
}
