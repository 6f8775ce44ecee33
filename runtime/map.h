/*
 * A table from byte strings to numbers, of a fixed size. Keyed with a random key of the process, so
 * that no file can be made whose strings all fall on one slot.
 */
#ifndef HOLDFAST_RUNTIME_MAP_H
#define HOLDFAST_RUNTIME_MAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { MAP_COUNT_MAX = 1 << 26 };

struct map; /* any thread may search; adding needs the table for itself */

/* Room for count_max keys. -ERR_TOO_BIG, -ERR_MEMORY. */
int map_open(uint32_t count_max, struct map **out);
void map_close(struct map **map);
/* Borrows the key. False if the key is there already, and then nothing changes. value is not
   UINT32_MAX. */
bool map_add(struct map *map, const char *key, size_t length, uint32_t value);
/* UINT32_MAX if there is none. */
uint32_t map_find(const struct map *map, const char *key, size_t length);

#endif
