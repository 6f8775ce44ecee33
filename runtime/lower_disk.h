/*
 * The disk tier on the loop's side, shared by lower_disk.c (copies) and lower_found.c (what is found at
 * the start, what is written down at the end). Private to them.
 *
 * The scheduler's pages of the disk are slots of the tier's file through a map: a slot that the disk
 * refuses is put out of use, and a spare one takes its place.
 */
#ifndef HOLDFAST_RUNTIME_LOWER_DISK_H
#define HOLDFAST_RUNTIME_LOWER_DISK_H

#include "runtime/daemon.h"
#include "runtime/disk.h"

enum {
	STAGES = LOWER_STAGES, /* copies in hand at once */
	STAGES_DOWN = 48,   /* of them down at most, so that what is waited for finds room */
	DROPS = 16          /* slots that are emptied at once */
};

/* What stands in a slot, or will when its write is done. GONE: it was lost, and is so until the slot
   is used again. BEHIND: the page went up, and the slot is free for the scheduler; a restart may still
   find it. */
enum slot_state { SLOT_EMPTY, SLOT_HELD, SLOT_GONE, SLOT_BEHIND };

struct disk_slot {
	uint64_t chain[2], content[2], tag;
	uint32_t principal, position, tokens;
	uint32_t file;              /* slot of the file */
	uint32_t session;           /* whose move put it there */
	uint32_t next, prev;        /* of those that the session left BEHIND */
	uint16_t writes;            /* on their way */
	uint8_t state;              /* enum slot_state */
	uint8_t dropping;           /* in the ring of those to be emptied */
};

struct disk_move {
	uint64_t copy, tag_to;
	uint32_t group, from, to, page, slot; /* page: of the device or the host */
	uint32_t tokens, position, principal, session;
	struct wire_id id; /* the session's: its slot may be another's when the move ends */
};

struct move_ring {
	struct disk_move *at;
	uint32_t first, count;
};

enum stage_state { STAGE_FREE, STAGE_DOWN, STAGE_WRITE, STAGE_READ, STAGE_UP };
struct stage {
	enum stage_state state;
	bool engine, told;          /* with the engine; the scheduler has its COPY_DONE */
	bool used, wipe;            /* its bytes are somebody's; they are zeroed when it is free */
	struct disk_move move;
	struct engine_sum sum;
	struct disk_job job;        /* its bytes: the stage's own, or the host's */
	uint8_t *bytes;
	uint64_t tag;               /* of the slot when the move began */
};

struct found; /* lower_found.c */

struct lower_disk {
	struct disk *disk;
	struct tier *tier;          /* the disk's; for the start, before there is anything to do */
	bool anew;                  /* the file was begun anew: what was there could not be used */
	uint8_t model[16], plan[16];
	uint32_t slot_count[SCHED_GROUP_MAX], spare_next[SCHED_GROUP_MAX], spare_end[SCHED_GROUP_MAX];
	struct disk_slot *slot[SCHED_GROUP_MAX];
	struct move_ring loads, downs;
	uint32_t ring_size;
	struct stage stage[STAGES];
	uint32_t stages_down;
	uint64_t stage_bytes;
	struct drop {
		struct disk_job job;
		bool busy;
		uint32_t slot;
	} drop[DROPS];
	uint64_t *drop_ring;        /* group << 32 | slot */
	uint32_t drop_first, drop_count;
	uint32_t *behind;           /* per session: the first slot of group 0 … left behind; NONE */
	uint64_t (**chain)[2];      /* per session: the keys of its full pages */
	uint32_t *chain_count;
	bool stalled;
	uint64_t full_until_us;     /* no writes before: the disk was full */
	uint64_t read_bytes, read_us, rates_told_us; /* of late */
	/* Figures. */
	uint64_t puts, gets, put_bytes, get_bytes, lost, bad_slots;
	/* The end. */
	uint32_t *park_order, park_count, park_at;
	uint64_t park_until_us;
	/* The start: what was found in the file, and what became of it. */
	uint64_t found, void_model, void_plan, adopted;
	struct found *found_list;
	uint32_t *found_table, found_mask;
};

/* The key of the session's page that begins at position, for so many of its tokens. */
void disk_chain(struct daemon *d, uint32_t session, uint32_t position, uint32_t tokens, uint64_t out[2]);
/* The slot is to be emptied when the disk has time. */
void disk_empty(struct daemon *d, uint32_t group, uint32_t slot);
void disk_proof(const struct lower_disk *x, const struct disk_slot *r, struct tier_proof *out);

#endif
