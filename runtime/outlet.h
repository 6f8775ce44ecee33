/*
 * Outlets: the sockets on which the daemon speaks without being asked. One for session events for each
 * tenant, and one for events of KV blocks where it was asked for, with a second socket that plays the
 * kept ones again. Who listens has come in as to any other socket of the tenant; what he gets of the
 * sessions is what he might ask for.
 */
#ifndef HOLDFAST_RUNTIME_OUTLET_H
#define HOLDFAST_RUNTIME_OUTLET_H

#include "runtime/daemon.h"

enum { OUTLETS_MAX = 2 * (TENANTS_MAX + 1) };

struct outlet {
	void *socket, *replay; /* replay: NULL if there is none */
	uint32_t tenant;
	bool kv;
	uint64_t subscriptions;
	int lock, replay_lock;
	char listen[OPTIONS_PATH_MAX], replay_listen[OPTIONS_PATH_MAX];
};

/* After the tenants' sockets. One that cannot be bound stops the start. */
int outlets_open(struct daemon *d);
void outlets_close(struct daemon *d);
/* Everybody has to come in again: who may has changed, or somebody sent what nobody sends. */
void outlets_again(struct daemon *d);
/* Subscriptions, and requests to play again; a bounded number. True if some are left. */
bool outlets_take(struct daemon *d);
bool outlets_readable(const struct daemon *d);
/* Into the loop's epoll set. */
int outlets_watch(struct daemon *d);
/* Three frames to whoever of that tenant's, and of the daemon's own user, hears of the topic. */
void outlet_send(struct daemon *d, uint32_t tenant, const char *topic, size_t topic_length, uint64_t seq,
		 const void *body, size_t length);
/* Three frames to one outlet. */
void outlet_say(const struct outlet *o, const char *topic, size_t topic_length, uint64_t seq,
		const void *body, size_t length);

#endif
