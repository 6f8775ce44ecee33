/* tests/fake_daemon, started by a test that is a C program. Include it once. */
#ifndef HOLDFAST_TESTS_FAKE_START_H
#define HOLDFAST_TESTS_FAKE_START_H

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "sched/check.h"

/* Returns its process, once it listens. */
static pid_t fake_start(const char *endpoint)
{
	const char *build = getenv("BUILDDIR");
	char path[4096], ready[16];
	int in[2], out[2];
	snprintf(path, sizeof path, "%s/tests/fake_daemon", build ? build : ".");
	CHECK(pipe(in) == 0);
	CHECK(pipe(out) == 0);
	const pid_t child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		/* The daemon ends when its standard input does: with us, however we end. */
		dup2(in[0], 0);
		dup2(out[1], 1);
		close(in[1]);
		execl(path, path, endpoint, "100", (char *)NULL);
		_exit(127);
	}
	close(in[0]);
	close(out[1]);
	CHECK(read(out[0], ready, sizeof ready) > 0);
	close(out[0]);
	return child;
}

#endif
