/*
 * Keys: what is kept of a session is on the disk only encrypted, under a key of that session's own.
 * The keys lie in the file `keys`, a slot each, and are written over in place; so what was kept is gone
 * with its key, also from pages that LMDB has not used again, and from copies of data.mdb alone. (A
 * medium that keeps old blocks, and copies of the whole folder, are beyond this.)
 *
 * All but vault_sync is for the loop's thread.
 */
#ifndef HOLDFAST_RUNTIME_STORE_VAULT_H
#define HOLDFAST_RUNTIME_STORE_VAULT_H

#include <stdbool.h>
#include <stdint.h>

enum { VAULT_OWNER = 16, VAULT_KEY = 32 };

struct vault;
/* Room for so many owners and as many that ended; what is there already is kept. own: who the log itself is;
   least: what vault_flushes said when the log was last written. A file that is not there, another log's or
   an older one is refused then; 0: of a log without that number it is taken as it is. */
int vault_open(const char *dir, uint32_t owners, const uint8_t own[VAULT_OWNER], uint64_t least,
	       struct vault **out, char *reason);
void vault_close(struct vault **vault);
/* For readers: the same refusals; nothing is changed. */
int vault_check(const char *dir, const uint8_t own[VAULT_OWNER], uint64_t least, char *reason);
/* The owner's key; make: a new one if there is none. NULL: none, or no room. */
const uint8_t *vault_key(struct vault *vault, const uint8_t owner[VAULT_OWNER], bool make);
/* The owner has ended, and what it answered may still be asked for; ms: when. */
void vault_end(struct vault *vault, const uint8_t owner[VAULT_OWNER], uint64_t ms);
/* The key is written over: what it opened is gone. */
void vault_drop(struct vault *vault, const uint8_t owner[VAULT_OWNER]);
/* Drops the keys of those that ended before; how many. */
uint32_t vault_sweep(struct vault *vault, uint64_t before_ms);
/* Who is not known any more has ended. */
void vault_end_others(struct vault *vault, bool (*lives)(void *arg, const uint8_t owner[VAULT_OWNER]),
		      void *arg, uint64_t ms);
/* From the writer, before a commit: the keys of what it writes are on the disk before it is, and those that
   were written over are gone from it. What could not be written then is written now. */
int vault_sync(struct vault *vault);
/* How often the file was flushed in all its life; the writer's. */
uint64_t vault_flushes(struct vault *vault);

#endif
