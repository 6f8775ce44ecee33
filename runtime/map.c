/*
 * Open addressing with linear probing, at most half full. SipHash comes from libsodium.
 */
#include "runtime/map.h"

#include <sodium.h>
#include <stdlib.h>
#include <string.h>

#include "sched/check.h"

struct entry {
	const char *key; /* NULL: free */
	uint64_t hash;
	size_t length;
	uint32_t value;
};

struct map {
	uint8_t secret[crypto_shorthash_KEYBYTES];
	uint32_t count, count_max, mask;
	struct entry *entry;
};

int map_open(uint32_t count_max, struct map **out)
{
	*out = NULL;
	if (count_max > MAP_COUNT_MAX)
		return -ERR_TOO_BIG;
	uint32_t slots = 16;
	while (slots / 2 < count_max)
		slots *= 2;
	struct map *map = calloc(1, sizeof *map);
	if (!map)
		return -ERR_MEMORY;
	map->entry = calloc(slots, sizeof *map->entry);
	if (!map->entry) {
		free(map);
		return -ERR_MEMORY;
	}
	map->mask = slots - 1;
	map->count_max = count_max;
	randombytes_buf(map->secret, sizeof map->secret);
	*out = map;
	return 0;
}

void map_close(struct map **map)
{
	if (!*map)
		return;
	free((*map)->entry);
	free(*map);
	*map = NULL;
}

/* The slot of the key, or the free one where it would go. */
static struct entry *map_slot(const struct map *map, const char *key, size_t length,
			      uint64_t *hash)
{
	uint8_t digest[crypto_shorthash_BYTES];
	crypto_shorthash(digest, (const uint8_t *)key, length, map->secret);
	memcpy(hash, digest, sizeof *hash);
	for (uint32_t i = (uint32_t)*hash & map->mask;; i = (i + 1) & map->mask) {
		struct entry *e = &map->entry[i];
		if (!e->key)
			return e;
		if (e->hash == *hash && e->length == length && !memcmp(e->key, key, length))
			return e;
	}
}

bool map_add(struct map *map, const char *key, size_t length, uint32_t value)
{
	CHECK(value != UINT32_MAX);
	uint64_t hash;
	struct entry *e = map_slot(map, key, length, &hash);
	if (e->key)
		return false;
	CHECK(map->count < map->count_max);
	map->count++;
	*e = (struct entry){.key = key, .hash = hash, .length = length, .value = value};
	return true;
}

uint32_t map_find(const struct map *map, const char *key, size_t length)
{
	uint64_t hash;
	const struct entry *e = map_slot(map, key, length, &hash);
	return e->key ? e->value : UINT32_MAX;
}
