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

/* One message of a known peer, whose frames were checked; blob NULL: there is none. Its answers are
   sent, or wait for loop_work. */
void loop_message(struct daemon *d, uint32_t peer, const struct wire_header *h, const void *body,
		  size_t length, const void *blob, size_t blob_length);

/* One turn of the loop without signals and descriptors, for a daemon with a sink. */
void loop_work(struct daemon *d, bool *more, uint64_t *calls_next);

#endif
