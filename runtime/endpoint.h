/*
 * The daemon's socket: its folder, its lock, and the ROUTER behind it.
 */
#ifndef HOLDFAST_RUNTIME_ENDPOINT_H
#define HOLDFAST_RUNTIME_ENDPOINT_H

#include "runtime/daemon.h"

/* Locks the endpoint, so that a second daemon cannot take its place: before anything costly is done.
   On refusal says one line on stderr and returns a negative code. */
int endpoint_lock(struct daemon *d);
/* Opens the sockets and binds; the lock is held. */
int endpoint_open(struct daemon *d);
void endpoint_close(struct daemon *d);

#endif
