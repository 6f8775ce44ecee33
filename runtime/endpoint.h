/*
 * The daemon's socket: its folder, its lock, and the ROUTER behind it.
 */
#ifndef HOLDFAST_RUNTIME_ENDPOINT_H
#define HOLDFAST_RUNTIME_ENDPOINT_H

#include <sys/types.h>

#include "runtime/daemon.h"

/* Locks the endpoint, so that a second daemon cannot take its place: before anything costly is done.
   On refusal says one line on stderr and returns a negative code. */
int endpoint_lock(struct daemon *d);
/* Opens the sockets and binds; the lock is held. */
int endpoint_open(struct daemon *d);
void endpoint_close(struct daemon *d);

/* For sockets beside: over TCP a key is needed; the path of an ipc endpoint is locked, as the daemon's
   own is; a socket file gets the mode that it keeps. Each says on stderr why it refuses. */
int endpoint_secure(void *socket, const char *listen, const char *secret);
int endpoint_path_take(int *lock, const char *listen);
int endpoint_bind(void *socket, const char *listen, mode_t mask);
/* Ends of peers: by the kernel's word alone. Over TCP it drops a host that says nothing for four
   heartbeats, whether something is on its way to it or not. Not by the library's heartbeats: for each
   answer it goes through all of its timers, and with 10,000 connections that is more than a core's work.
   Who is there without taking part is found by AR/1's own silence. */
void endpoint_watch(void *socket, uint64_t heartbeat_ms);
/* Whether an ipc endpoint may be so much longer. */
bool endpoint_path_fits(const char *listen, const char *suffix);

#endif
