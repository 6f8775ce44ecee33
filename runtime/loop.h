/*
 * The loop of the daemon, from the first message to the end of the drain.
 */
#ifndef HOLDFAST_RUNTIME_LOOP_H
#define HOLDFAST_RUNTIME_LOOP_H

#include "runtime/daemon.h"

/* Everything is open; d->signals is a signalfd. Returns 0 after a drain, or a negative code when
   something failed for good (it has been said on stderr). */
uint64_t loop_clock_us(void); /* the clock of all events */
int loop_run(struct daemon *d);

#endif
