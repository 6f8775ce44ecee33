/*
 * What a connection may send without finishing a message. The library has no bound on that: its high
 * water counts whole messages, and each frame of an endless one is small enough.
 */
#ifndef HOLDFAST_RUNTIME_INTAKE_H
#define HOLDFAST_RUNTIME_INTAKE_H

#include <stdint.h>

/* The bound, before the first connection; 0: none. */
void intake_limit(uint64_t bytes);
/* A connection was accepted. Any thread. */
void intake_begin(int fd);
/* Which thread of the library reads the connection; 0: not known. */
int intake_thread(int fd);
/* A whole message of the connection was taken: what came before it is no debt. The loop's thread. */
void intake_taken(int fd);
/* How many were closed so far. */
uint64_t intake_closed(void);

#endif
