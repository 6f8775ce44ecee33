/*
 * The inside of the events of KV blocks: kv_events.c keeps what is where, kv_feed.c sends it and plays it
 * again.
 */
#ifndef HOLDFAST_RUNTIME_KV_EVENTS_H
#define HOLDFAST_RUNTIME_KV_EVENTS_H

#include "runtime/events.h"

enum { OPS_GATHERED = 1024 };

/* A page of a place, by its slot. */
struct kv_page {
	uint64_t tag;
	struct chain_key key, parent;
	uint32_t unit, tenant;
	bool stored;
};

/* How many pages of a place have that key. Open addressing; count 0: empty. */
struct kv_seen {
	struct chain_key key;
	uint32_t place, count;
};

enum op_kind { OP_CLEAR, OP_STORE, OP_REMOVE };
struct kv_op {
	uint8_t kind, place;
	uint32_t tenant, token_at;
	bool has_parent;
	uint64_t parent, hash;
};

/* A full page on its way; its tokens lie in kv.move_token by its index. */
struct kv_move {
	uint64_t copy;
	uint32_t place, slot; /* where it will be */
	struct kv_page page;
};

/* What one outlet was sent. The bytes lie in `arena`, one after another, around. */
struct kv_feed {
	uint32_t tenant;
	uint64_t next;
	uint32_t first, count;
	struct kv_kept {
		uint64_t seq;
		size_t at, length;
	} *kept;
	uint8_t *arena;
	size_t end; /* where the next one goes */
};

struct kv {
	uint32_t span;
	struct kv_page *page[PLACE_COUNT];
	struct kv_seen *seen;
	uint32_t seen_mask;
	struct kv_op op[OPS_GATHERED];
	uint32_t op_count, token_count;
	uint32_t *token; /* OPS_GATHERED x span */
	struct kv_move *move;
	uint32_t *move_token;
	uint32_t move_count, move_max;
	uint32_t feed_count;
	struct kv_feed feed[TENANTS_MAX + 1];
	uint8_t events[KV_PAYLOAD_MAX], payload[KV_PAYLOAD_MAX + 128];
};

/* Notes what is to be told of a page; its tokens are to follow in kv.token if it is stored. */
struct kv_op *kv_op_add(struct daemon *d, enum op_kind kind, uint32_t place, const struct kv_page *p);

#endif
