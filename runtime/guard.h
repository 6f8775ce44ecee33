/*
 * What the loop itself reads and writes in a file may wait for a disk, and then nobody hears a signal: a
 * thread of its own sees that, and ends the process after --audit-abort-ms, as when the log's disk does not
 * answer.
 * Without one (0, or no daemon) both calls do nothing.
 */
#ifndef HOLDFAST_RUNTIME_GUARD_H
#define HOLDFAST_RUNTIME_GUARD_H

#include <stdint.h>

struct guard;

/* silent: in the guard's thread, once, when the loop has waited for `ms` or more; what: static text. */
int guard_open(uint64_t ms, void (*silent)(void *arg, const char *what, uint64_t waited_ms), void *arg,
	       struct guard **out);
void guard_close(struct guard **guard);
/* Around a call that may wait; not nested. From one thread. */
void guard_begin(struct guard *guard, const char *what);
void guard_end(struct guard *guard);

#endif
