/*
 * The daemon's own traffic as a trace that the planner reads (--trace FILE): counts and times of each
 * turn that was answered, never text, names or keys. Sessions have numbers in the order in which they
 * were met.
 *
 * A file that cannot be written ends the recording, not the daemon.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/daemon.h"
#include "runtime/trace.h"

int traffic_open(struct daemon *d)
{
	if (!d->options.trace[0])
		return 0;
	const int fd = open(d->options.trace, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600);
	struct stat st;
	if (fd >= 0 && fstat(fd, &st) == 0 && st.st_size > 0) {
		/* Its clock was another one; times would run backwards. */
		close(fd);
		log_say(LOG_ERROR, "--trace: the file is there already");
		return -ERR_IN_USE;
	}
	d->traffic = fd < 0 ? NULL : fdopen(fd, "ab");
	if (!d->traffic) {
		log_say(LOG_ERROR, "--trace: %s", strerror(errno));
		return -ERR_IO;
	}
	return 0;
}

void traffic_close(struct daemon *d)
{
	if (d->traffic && fclose(d->traffic) != 0)
		log_say(LOG_ERROR, "--trace: %s", strerror(errno));
	d->traffic = NULL;
}

void traffic_turn(struct daemon *d, const struct call *c, struct session *s, const struct effect *e)
{
	if (!d->traffic || e->as.end.prompt_tokens == 0)
		return;
	if (s->number == 0)
		s->number = ++d->traffic_sessions;
	const struct trace_turn turn = {
		.prompt = e->as.end.prompt_tokens, .keep = e->as.end.prompt_tokens - e->as.end.fresh,
		.completion = e->as.end.sampled,
		.stop = e->as.end.end == END_TOOL ? TRACE_TOOL : e->as.end.end == END_STOP ? TRACE_END : TRACE_OTHER};
	const int64_t began_ms = (int64_t)((c->began_us - d->started_us) / 1000);
	const int64_t ended_ms = (int64_t)((d->now_us - d->started_us) / 1000);
	/* Line by line, so that what is there is whole when the daemon is killed. */
	guard_begin(d->guard, "the file of --trace");
	const bool put = trace_write_turn(d->traffic, s->number, began_ms, ended_ms - began_ms, &turn) >= 0 &&
			 fflush(d->traffic) == 0;
	guard_end(d->guard);
	if (!put) {
		log_say(LOG_ERROR, "--trace: %s; nothing more is recorded", strerror(errno));
		fclose(d->traffic);
		d->traffic = NULL;
	}
}
