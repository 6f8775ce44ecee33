/*
 * The audit log: who owned which page when, in LMDB, written by one thread in group commits.
 * The loop pushes records into a bounded ring and goes on; durable_step tells what is on disk.
 *
 * Records of one scheduler step become one audit entry (runs of pages, not pages) with the owner
 * rows it changes, in the same transaction. Entries are chained by hash. store.c states the schema.
 */
#ifndef HOLDFAST_RUNTIME_STORE_H
#define HOLDFAST_RUNTIME_STORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { STORE_REASON_MAX = 2048, STORE_CONFIG_MAX = 3500 /* bytes of a boot's text */ };

enum store_kind {
	STORE_BOOT, STORE_SHUTDOWN, STORE_ASSIGN, STORE_SHARE, STORE_FREE, STORE_QUARANTINE,
	STORE_SESSION_OPEN, STORE_SESSION_CLOSE, STORE_TURN_END, STORE_INCIDENT, STORE_CONFIG,
	STORE_STEP_END, /* closes a step: what was pushed since the last belongs to it */
	STORE_FORGET,   /* a session's text, tokens and pages were removed everywhere */
	STORE_ARCHIVE,  /* the store's own: entries value[0] to value[1] lie in a segment now */
	STORE_AUTH,     /* somebody was refused what he may not */
	STORE_MOVE,     /* of a page below the device; from there it is a FREE, to there an ASSIGN */
	STORE_KIND_COUNT
};

/* Why an incident is one; `reason` of a STORE_INCIDENT. */
enum store_reason {
	REASON_TAG,     /* the tag beside a page was not the expected one */
	REASON_DIGEST,  /* a page's bytes are not what they were */
	REASON_ROW,     /* an owner row of the log is damaged, or the page had an owner already */
	REASON_BEACON,  /* said by a process before it ended; value: as it said */
	REASON_INVARIANT, /* in a beacon: a broken invariant of the process */
	REASON_LOWER,   /* a page of the host or the disk could not be had back as what it was; place: where */
	REASON_DEVICE,  /* the device is lost; value: ranks, and the one that ended or that number */
	REASON_STUCK,   /* in a beacon: the log's disk answered nothing for too long; found: ms */
	REASON_COUNT
};

/* A page that goes to another place, or comes from one: value[0] is that place << 32 | the page there,
   value[1] its tag there. So a page is followed through all places by the records of its session. */
enum { ASSIGN_ZEROED = 1, ASSIGN_MOVED = 2, FREE_MOVED = 15 };

/* Why somebody was refused; `reason` of a STORE_AUTH. KEY, USER: a connection, of nobody that is known
   (principal UINT32_MAX). Of all others the principal says who. */
enum store_auth {
	AUTH_KEY,     /* not in the list of that tenant; op: its BLAKE2b-128; session: from where, as IPv6 */
	AUTH_USER,    /* of this machine, not in the list; turn: uid, group: process */
	AUTH_REVOKED, /* was taken out of the list by a reload, or its day is over: cut off */
	AUTH_ACT_AS,  /* speaks for another, without being a gateway, or under a call that runs */
	AUTH_ROLE,    /* a method that its role, or a control socket, does not do */
	AUTH_SESSION, /* another's session; session: which */
	AUTH_CALL,    /* another's call; op: which */
	AUTH_ROUTING, /* named itself, so that it could get what is another's */
	AUTH_REASONS
};

/* What a STORE_CONFIG speaks of. The first four: pages of the disk tier, value[0]: how many, in place. */
enum store_config {
	CONFIG_NONE,
	CONFIG_DISK_MODEL, CONFIG_DISK_PLAN, /* void, since made with another */
	CONFIG_DISK_REFUSED, CONFIG_DISK_ANEW,
	CONFIG_OPTIONS, /* op: hash over the options that are not the default; their text is the boot's */
	CONFIG_MODEL,   /* op, session: the 32 bytes of its hash */
	CONFIG_PLAN,    /* op: the hash of the precision plan */
	CONFIG_TENANTS, /* op: hash over tenants and grants; value: tenants, grants */
	CONFIG_TENANT,  /* op: its name; place: its number; value[1]: grants */
	CONFIG_RELOAD,  /* as TENANTS; turn: grants that came, group: went; position_first: tenants whose limits
			   changed; place: 1: the file names what needs a restart */
	CONFIG_RELOAD_REFUSED, /* the file is wrong, and nothing changed */
	CONFIG_MODEL_CHANGED, CONFIG_PLAN_CHANGED, /* since the boot before; op: what it was */
	CONFIG_REASONS
};

/* One record; fields that a kind does not name are zero. */
struct store_record {
	uint8_t kind;
	uint8_t reason;       /* of INCIDENT, AUTH, CONFIG: enums above; ASSIGN: ZEROED first, since another
				 principal had the pages; ASSIGN, FREE: MOVED */
	uint16_t place;
	uint32_t principal;
	uint64_t step;        /* STEP_END: the scheduler's step */
	uint8_t session[16];  /* the wire's id; zero where none */
	uint8_t op[16];
	uint32_t turn;        /* the session's turn number */
	uint32_t group, page_first, page_count, position_first;
	uint64_t tag_first;
	uint64_t value[2];    /* TURN_END: tokens sampled, end; INCIDENT: expected, found tag; AUTH: value[0]
				 that were left out before it */
	/* TURN_END says more: position_first the prompt's tokens, of which page_first were resident,
	   tag_first >> 32 reloaded, group recomputed, tag_first's lower half new. */
};

struct store_options {
	const char *dir;        /* made with mode 0700 if absent */
	uint64_t map_bytes;     /* what data.mdb may grow to; the map grows with it */
	uint64_t map_begin;     /* address space of the map at the start; 0: map_bytes */
	uint64_t headroom_bytes; /* kept free for the log on its disk; 0: none */
	uint64_t history_entries; /* kept in data.mdb, the rest goes to segments; 0: all */
	uint32_t segment_entries; /* of one segment, at most 16,384 */
	uint32_t readers_ms;      /* time between two looks at other readers */
	uint32_t reader_stay_ms;  /* one that stays in a transaction for longer is ended; 0: never */
	const char *anchor_dir; /* where anchors go; NULL: nowhere */
	uint32_t anchor_ms, anchor_entries; /* one after so long, or so many entries */
	uint32_t ring_records;  /* power of two */
	uint32_t commit_ms;     /* gather so long before a commit; 0: as soon as the last one ended */
	uint32_t commit_records; /* ... or until so many wait; a commit takes whole steps */
	uint32_t pace_ms;       /* what nobody waits for is gathered, for so long at most; 0: it is not */
	uint64_t keep_bytes;    /* room for what is kept, on its way to the disk; power of two */
	uint32_t owners;        /* sessions that may be kept at once */
	uint32_t page_tokens;   /* positions in a page: where the pages of a run after its first begin */
	const char *config;     /* what the process was started with, for the boot's record; NULL: not said */
};
void store_options_default(struct store_options *options);

struct store;

/* Locks the directory (-ERR_IN_USE if another daemon has it), opens or makes the environment,
   verifies the chain's head, records the boot, starts the writer. Refuses network file systems;
   warns on overlay and tmpfs through *warning (static text or NULL). An environment that exists is
   first walked by a child process, so call this before other threads run. reason (of
   STORE_REASON_MAX bytes): one line: what was found, what was expected, and the command that repairs it or
   sets it aside. Nothing that is found is ever deleted
   or made anew. */
int store_open(const struct store_options *options, struct store **out, char *reason,
	       const char **warning);
/* The first two parts of store_close, each once, for who would not wait without an end. Nothing is pushed any
   more: writes what is in the ring and a shutdown record, and ends the writer. A log that has failed ends so
   too, and a step that is open is written as far as it goes. False: the disk did not answer within ms (0: it
   is waited for); the store is as it was, and a last word can be said. */
bool store_settle(struct store *store, uint32_t ms);
/* The last anchor. False: the second place does not answer within five seconds; it is left to itself. */
bool store_anchors_end(struct store *store);
/* The same of the folder of segments. */
bool store_archive_end(struct store *store);
/* Writes what is in the ring and a shutdown record, then closes. 0, or the error that the writer
   met. */
int store_close(struct store **store);

/* From one thread, the loop. -ERR_AUDIT_STALLED: the ring is full, nothing was taken: stop admitting
   and try again. -ERR_IO, -ERR_DISK_FULL: the writer has failed for good. Kinds from STORE_ASSIGN
   on; boot and shutdown are the store's own. A step without records costs no commit. */
int store_push(struct store *store, const struct store_record *record);
uint32_t store_room(const struct store *store); /* records that can be pushed now */
/* The last step whose records are on disk; readable on store_fd when it has grown. */
uint64_t store_durable(const struct store *store);
int store_fd(const struct store *store);
int store_failed(const struct store *store); /* 0, or the writer's error; store_fd tells of it */
/* 0; -ERR_LIMIT when over 80 % of map_bytes is used; -ERR_DISK_FULL when over 95 %, or when the disk has
   not the head-room that was asked for: begin nothing. What runs goes on within the head-room; when that
   is used up too the writer waits for space, and the ring fills. */
int store_space(const struct store *store);
bool store_waits(const struct store *store); /* the writer waits for space just now */
/* Up to which entry the log is anchored; *err: why the last anchor could not be made, 0 if it could. */
uint64_t store_anchored(const struct store *store, int *err);
uint64_t store_seq(const struct store *store); /* the last entry on disk */
/* Up to which entry they lie in segments; why no more can be moved, 0. */
uint64_t store_archived(const struct store *store);
int store_archive_failed(const struct store *store);
/* The process of another reader of the log that has stayed in a transaction for too long, so that
   the file grows; 0: none. */
uint32_t store_reader_stays(const struct store *store);
/* The process of the last reader that stayed too long and was ended by SIGKILL (reader_stay_ms); 0: none. */
uint32_t store_reader_ended(const struct store *store);
/* What must be there after a restart: values by key, written in the transaction of the step in which
   they are pushed. A value is proven when it is read (a sum over key and bytes). */
enum store_table {
	TABLE_PRINCIPAL, /* u32 -> name */
	TABLE_SESSION,   /* id -> what a session is, without its tokens */
	TABLE_TURN,      /* id, kind, chunk -> tokens, marks, tools */
	TABLE_CALL,      /* op -> a call that runs, or what it answered */
	TABLE_IDEM,      /* principal, key -> op and hash of the body */
	TABLE_EXPIRES,   /* time, table, key -> empty */
	TABLE_COUNT
};
enum { STORE_KEY_MAX = 64, STORE_KEPT_MAX = 8 << 20 };
struct store_key {
	uint8_t bytes[STORE_KEY_MAX];
	uint32_t length;
};
/* value NULL: the key is removed; with prefix, all that begin so. owner: whose it is, 16 bytes: it lies
   on the disk under a key of that owner's, until store_forget; NULL: in the clear. -ERR_AUDIT_STALLED:
   no room now (see store_keep_room), -ERR_TOO_BIG, or the writer's error. Needs the STEP_END of its
   step. */
int store_keep(struct store *store, enum store_table table, const struct store_key *key, bool prefix,
	       const uint8_t *owner, const void *value, size_t bytes);
size_t store_keep_room(const struct store *store); /* bytes of values that can be pushed now */
/* Reads what is on disk, not what was only pushed. *bytes: room in, length out. -ERR_NOT_FOUND,
   -ERR_TOO_BIG, -ERR_GONE (its owner was forgotten), -ERR_INTEGRITY (the value is damaged). From the
   loop's thread only. */
int store_kept(struct store *store, enum store_table table, const struct store_key *key, void *value,
	       size_t *bytes);
/* The first key at or after *key with its value; *key becomes it. As store_kept. */
int store_kept_next(struct store *store, enum store_table table, struct store_key *key, void *value,
		    size_t *bytes);

/* The owner's key is written over, on the disk with the next commit: nothing that was kept of it can
   be read again. */
void store_forget(struct store *store, const uint8_t owner[16]);
/* The owner has ended; its key stays for what it answered, until a sweep with a later time. */
void store_owner_end(struct store *store, const uint8_t owner[16], uint64_t ms);
uint32_t store_owners_sweep(struct store *store, uint64_t before_ms);
/* At the start: owners that are not known any more have ended. */
void store_owners_end(struct store *store, bool (*lives)(void *arg, const uint8_t owner[16]), void *arg,
		      uint64_t ms);

/* Where the log stands after what was pushed so far, and up to where it is on disk: what was pushed
   is durable when settled has reached the mark taken after it. Records need their STEP_END. */
uint64_t store_mark(const struct store *store);
/* The same mark; and somebody waits for it. What nobody waits for is gathered: a commit takes hundreds of
   microseconds of a processor, and comes when that is 1 in 200 of the time since the last, or after
   pace_ms. */
uint64_t store_hurry(struct store *store);
uint64_t store_settled(const struct store *store);
/* Rows that were not what a record found them to be, since the start; each has an incident. */
uint64_t store_conflicts(const struct store *store);
/* The last word of a process that is about to end: on disk when the call returns. Any thread, and a
   signal's handler. */
struct store_last_word {
	uint32_t reason, group, page; /* reason: enum store_reason */
	uint64_t expected, found;
	uint8_t session[16];
};
void store_beacon(struct store *store, const struct store_last_word *word);
/* Last words said so far by this process, and those of earlier ones that this boot made entries of. */
unsigned store_said(const struct store *store);
unsigned store_heard(const struct store *store);
void store_uuid(const struct store *store, uint8_t out[16]); /* the store's own, for all its life */
bool store_unclean(const struct store *store); /* the process before this one did not close */
uint64_t store_boot(const struct store *store); /* counts up by one with each open, from 1 */

#endif
