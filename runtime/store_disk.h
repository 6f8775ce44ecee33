/*
 * The store's inside: what lies on disk, and the calls that its files make of each other. Only
 * runtime/store*.c and tests include this.
 *
 * A store is a directory of mode 0700 with
 *	lock                held by flock for the life of the daemon; its text is the process number
 *	uuid                one line of text: schema version and store_uuid; "uuid.new" while the
 *	                    store is being made
 *	beacon              see store_beacon.c; says of which log it is
 *	keys                see store_vault.h
 *	anchor              see store_anchor.c; only where anchors are made
 *	archive/            see store_archive.h
 *	data.mdb, lock.mdb  LMDB's, with these databases:
 *	meta    short string -> schema u32, uuid 16 bytes, head struct store_head, clean u8, beacon
 *		the ids of the beacon's places that were made entries of, span u32 the
 *		positions of a page, archived struct store_archived, keys u64 how often `keys` was
 *		flushed
 *	audit   seq u64, native, appended only -> struct store_header, body, 32 bytes of hash
 *	principal, session, turn, call, idem, expires: see store.h; a value begins with how it is
 *		sealed and ends in its sum
 *	index   seq u64, native, of the first of a stretch of entries -> see store_index.h
 *	own     place << 56 | group << 48 | page, native, of the first of OWN_PAGES -> a struct store_own
 *		for each run of them
 *
 * The hash of an entry is BLAKE2b-256 over the hash before it, the header and the body; the hash
 * before the first is that of the uuid. Numbers are in the machine's order: LMDB's file is not
 * portable either.
 */
#ifndef HOLDFAST_RUNTIME_STORE_DISK_H
#define HOLDFAST_RUNTIME_STORE_DISK_H

#include <lmdb.h>
#include <stddef.h>
#include <stdint.h>

#include "runtime/store.h"
#include "runtime/store_index.h"

enum {
	STORE_SCHEMA = 5,
	STORE_SCHEMA_FIRST = 2,  /* of a log that is brought forward when it is opened */
	STORE_SCHEMA_OWN = 4,    /* before it each page's owner was a value of its own */
	STORE_SCHEMA_INDEX = 5,  /* before it there was no table `index`, and no record of authority */
	STORE_HASH = 32,
	STORE_UUID = 16,
	STORE_BODY_MAX = 4000,   /* header, body and hash share one 4 KiB page with LMDB's 16 bytes */
	STORE_PACKED_MAX = 100,  /* of one record, see record_pack */
	STORE_TAIL = 65536,      /* entries whose chain is followed at each open */
	STORE_DBS_MAX = 16, /* the tables below, and room */
	STORE_READERS_MAX = 16
};

enum { STORE_FLAG_PARTIAL = 1, STORE_FLAG_UNCLEAN = 2 };

struct store_header {
	uint8_t version, kind; /* kind: STORE_BOOT, STORE_SHUTDOWN or STORE_STEP_END */
	uint16_t flags; /* PARTIAL: the step goes on in the next entry; UNCLEAN: of a BOOT */
	uint32_t body_bytes;
	uint64_t mono_ns, wall_ns;
	uint32_t boot, principal;
	uint64_t op[2];
};
_Static_assert(sizeof(struct store_header) == 48, "the header of an entry");
enum { STORE_VALUE_MAX = sizeof(struct store_header) + STORE_BODY_MAX + STORE_HASH };
_Static_assert(STORE_VALUE_MAX + 16 <= 4096, "an entry fits one page");

/* The owner of a run of pages: `first` to first + count - 1 of its value. Page first + i has tag + i and
   position + i * span. One of another boot is void: the memory that it speaks of is gone. SHARED: the
   first owner; the entries name all. The crc is over the value's key and all of this. */
struct store_own {
	uint32_t boot, principal;
	uint8_t session[16];
	uint64_t tag;
	uint32_t turn, position;
	uint64_t last_seq;
	uint32_t state, crc; /* state: enum store_row_state */
	uint32_t span;
	uint16_t first, count;
};
_Static_assert(sizeof(struct store_own) == 64, "no holes in what is summed");
enum { OWN_PAGES = 16 }; /* of one value, whose runs are in order; a page of no run never had an owner */

struct store_head {
	uint64_t seq;
	uint8_t hash[STORE_HASH];
	uint32_t boot, reserved;
	uint64_t mono_ns, wall_ns;
};
_Static_assert(sizeof(struct store_head) == 64, "no holes in what is hashed or stored");

/* Entries up to seq, whose hash this is, lie in segments. None: seq 0 and the genesis. */
struct store_archived {
	uint64_t seq;
	uint8_t hash[STORE_HASH];
};
_Static_assert(sizeof(struct store_archived) == 40, "no holes in what is stored");

/* What a process says before it ends by its own hand. */
enum { BEACON_SLOTS = 16 };
struct beacon_slot {
	char magic[8];
	uint64_t id; /* so that none is made an entry of twice */
	uint64_t mono_ns, wall_ns, seq; /* seq: the last entry that was known to be on disk */
	uint32_t boot, reason, group, page;
	uint64_t expected, found;
	uint8_t session[16], hash[STORE_HASH];
	char build[28];
	uint32_t crc; /* over all with crc as 0 */
};
_Static_assert(sizeof(struct beacon_slot) == 152, "no holes in what is summed");

struct store_disk {
	char *dir;
	int lock_fd, beacon_fd;
	MDB_env *env;
	MDB_dbi meta, audit, own, index, kept[TABLE_COUNT];
	struct store_index *marks; /* the writer's; NULL: what is put is not marked */
	uint8_t uuid[STORE_UUID];
	uint32_t schema; /* as found in the file 'uuid' */
	struct store_head head;
	struct store_archived archived;
	bool clean; /* as found at open */
};

/* store_disk.c: the directory, the lock, the environment. On failure nothing stays open. */
int store_disk_open(const struct store_options *options, struct store_disk *disk, char *reason,
		    const char **warning);
/* What was made in a folder, or renamed, has its name there after a power cut too. 0 or errno. */
int store_dir_sync(const char *dir);
/* Locks the directory, or says that a daemon has it, and reads its uuid; for readers, which open the
   environment themselves. */
int store_disk_lock(const char *dir, struct store_disk *disk, bool *in_use, char *reason);
void store_disk_close(struct store_disk *disk);
/* One line into reason (may be NULL); returns code. */
__attribute__((format(printf, 3, 4)))
int store_refuse(char *reason, int code, const char *format, ...);
/* Appends what can be done about it, see cure.h; name: of a file in the folder, or "". store_cure_log: the
   whole log is not what it must be, by the code, which it returns; nothing where the line has a command
   already. */
void store_cure(char *reason, const char *words, const char *command, const char *dir, const char *name);
int store_cure_log(char *reason, const char *dir, int code);
/* As store_refuse, of one of our codes, with what can be done about it in the folder. */
__attribute__((format(printf, 4, 5)))
int store_refuse_code(char *reason, const char *dir, int code, const char *format, ...);
int store_none(char *reason, const char *dir); /* no log is there: refused */
/* A code of LMDB or errno as one of ours, negative; store_code_of: 0 of 0. */
int store_code(int lmdb_or_errno);
int store_code_of(int lmdb_or_errno);

/* store_beacon.c. Writing is for any thread and for a signal's handler. */
int beacon_open(struct store_disk *disk, char *reason);
/* For readers: 0 where there is none, or it is this log's. */
int beacon_check(const struct store_disk *disk, char *reason);
void beacon_write(const struct store_disk *disk, unsigned place, struct beacon_slot *slot);
bool beacon_read(const struct store_disk *disk, unsigned place, struct beacon_slot *slot);
void beacon_clear(const struct store_disk *disk, unsigned place);

/* store_keep.c: the tables of what is kept. */
enum { KEEP_SUM = 8 };
/* What stands before a value on its way to the writer. bytes: NONE for a removal. */
struct keep_head {
	struct store_key key;
	uint32_t table, prefix, removed, reserved;
	uint64_t bytes;
};
struct vault;
/* A value as it lies in its table, but for the sum: 0 and the bytes, or 1, the owner, a nonce, and the
   bytes under the owner's key. */
enum { SEAL_PLAIN, SEAL_OWNER, SEAL_MAX = 1 + 16 + 24 + 16 };
size_t seal_bytes(bool owned, size_t bytes);
/* -ERR_LIMIT: the owner has no key, and there is no room for one. */
int seal_put(struct vault *vault, const uint8_t *owner, const struct store_key *key, const void *value,
	     size_t bytes, uint8_t *out);
extern const char *const store_table_names[TABLE_COUNT];
int table_put(MDB_txn *txn, const struct store_disk *disk, const struct keep_head *head, const void *value);
/* how: MDB_SET_KEY, or MDB_SET_RANGE for the first at or after *key, which it becomes. */
int table_get(MDB_txn *txn, const struct store_disk *disk, struct vault *vault, enum store_table table,
	      struct store_key *key, void *value, size_t *bytes, MDB_cursor_op how);

/* store_own.c: who has which page. */
uint32_t store_crc(uint64_t key, const struct store_own *run);
/* A run that is not what a record finds it to be: damaged, or of pages that are assigned while they have an
   owner. */
struct store_conflict {
	uint32_t count, page; /* page, tags: of the first */
	uint64_t expected, found;
};
int store_put_rows(MDB_cursor *own, const struct store_record *record, uint32_t boot, uint64_t seq,
		   uint32_t page_tokens, struct store_conflict *conflict);
/* The runs of a value, as it lies in the table: how many there are, or 0 where it is not whole. */
uint32_t store_own_runs(const MDB_val *value, uint64_t key, struct store_own runs[OWN_PAGES]);

/* store_entry.c: one entry into a transaction. head moves with it. */
uint32_t store_crc_bytes(const void *data, size_t bytes);
/* Neither begins nor ends with the complement; plain: without an instruction for it. */
uint32_t store_crc_more(uint32_t crc, const void *data, size_t bytes);
uint32_t store_crc_plain(uint32_t crc, const void *data, size_t bytes);
void store_hash(uint8_t out[STORE_HASH], const uint8_t before[STORE_HASH], const void *value,
		size_t value_bytes);
void store_genesis(uint8_t out[STORE_HASH], const uint8_t uuid[STORE_UUID]);
/* Whether an entry's bytes follow from the hash before it, which becomes its own. */
int store_entry_follows(const void *bytes, size_t count, uint8_t before[STORE_HASH]);
uint64_t store_clock_ns(int clock);

struct store_entry {
	uint64_t mono_ns, wall_ns; /* when it was; 0: when it is put */
	uint32_t bytes, count, marks; /* of value so far; records in it; marks of them */
	uint8_t value[STORE_VALUE_MAX];
	uint32_t mark[264 * INDEX_RECORD + 1]; /* as many records as there is room for */
};
void store_entry_begin(struct store_entry *entry);
bool store_entry_room(const struct store_entry *entry, uint32_t records); /* for so many more */
void store_entry_add(struct store_entry *entry, const struct store_record *record);
int store_entry_put_step(struct store_entry *entry, MDB_txn *txn, const struct store_disk *disk,
			 struct store_head *head, uint64_t step, unsigned flags);
/* config: text of STORE_CONFIG_MAX bytes at most, or NULL. */
int store_put_boot(MDB_txn *txn, const struct store_disk *disk, struct store_head *head,
		   uint32_t page_tokens, const char *config);
/* A segment's range, as an entry; and up to where entries are in segments. */
int store_put_archive(MDB_txn *txn, const struct store_disk *disk, struct store_head *head, uint64_t first,
		      uint64_t last);
int store_put_archived(MDB_txn *txn, const struct store_disk *disk, const struct store_archived *to);
int store_put_shutdown(MDB_txn *txn, const struct store_disk *disk, struct store_head *head,
		       uint64_t step);
/* Entries whose wall clock stands before that of the entry before them, in order, the newest: between them
   a time can be found by halving. Beyond BACKS_MAX the oldest is dropped. */
enum { BACKS_MAX = 64 };
struct store_backs {
	uint64_t count, seq[BACKS_MAX];
};
int store_meta_backs(MDB_txn *txn, MDB_dbi meta, struct store_backs *out);
/* How often the keys were flushed before the transaction: a file of keys that says less is not this log's. */
int store_put_flushes(MDB_txn *txn, const struct store_disk *disk, uint64_t flushes);
int store_flushes(const struct store_disk *disk, uint64_t *flushes, char *reason);
/* The ids of the beacon's places that are entries already. */
int store_meta_ids(MDB_txn *txn, const struct store_disk *disk, uint64_t ids[BEACON_SLOTS]);
int store_meta_ids_put(MDB_txn *txn, const struct store_disk *disk, const uint64_t ids[BEACON_SLOTS]);
int store_put_head(MDB_txn *txn, const struct store_disk *disk, const struct store_head *head,
		   bool clean);

/* store_walk.c: reads all that the daemon will read, and says what is wrong. */
enum store_found { STORE_EMPTY, STORE_WHOLE };
/* Is shown each entry that was checked, in their order; a code ends the walk. */
struct store_watch {
	int (*entry)(void *arg, uint64_t seq, const uint8_t hash[STORE_HASH], char *reason);
	void *arg;
	const char *dir; /* its segments are walked too */
	bool live;       /* beside a daemon: not long in one transaction */
};
struct store_walk {
	struct store_head head;
	struct store_archived archived;
	uint64_t segments_first; /* WALK_ALL: the first entry that was found at all */
	uint64_t flushes;        /* of the keys */
	uint64_t entries, rows, checked; /* checked: entries whose hash was computed */
	uint64_t indexed;        /* WALK_ALL: entries that are in the index, which is right */
	uint32_t schema;
	bool clean;
};
/* HEAD: what the next entry hangs on. TAIL: the free list, the owner rows, the last STORE_TAIL
   entries. ALL: every entry. */
enum store_depth { WALK_HEAD, WALK_TAIL, WALK_ALL };
/* In this process: may crash on a crafted file. */
int store_walk(MDB_env *env, const uint8_t uuid[STORE_UUID], enum store_depth depth,
	       struct store_walk *out, enum store_found *found, char *reason);
/* All of it, segments included; watch: is shown the entries. */
int store_walk_all(MDB_env *env, const uint8_t uuid[STORE_UUID], const struct store_watch *watch,
		   struct store_walk *out, char *reason);
/* A name that is opened in a transaction lasts beyond it only if that is committed, a reading one too; so
   it is done before a transaction that is reset and renewed. */
int store_names_keep(MDB_env *env);
/* store_index_walk.c. The rows of the index, each within itself; then against the entries. */
int index_walk(MDB_txn *txn, uint64_t last, bool live, char *reason);
int index_verify(MDB_txn *txn, uint64_t archived, uint64_t last, bool live, uint64_t *indexed, char *reason);
struct segment;
int index_verify_segment(const struct segment *segment, uint64_t until, uint64_t *indexed, char *reason);
/* store_room.c. Whether the process that has this number here has the file open: a number that a process of
   another name space wrote down means nothing, or somebody else, here. */
bool store_held_by(const char *file, uint32_t pid);
/* In a child, which is all that a crafted file can crash. A cycle of pages ends when it has used so much of a
   processor; only tests set it. */
extern unsigned store_walk_cpu_s;
int store_walk_child(const char *dir, uint64_t map_bytes, const struct store_disk *disk,
		     enum store_found *found, char *reason);
/* Opens data.mdb for reading; without touching lock.mdb if the caller holds our lock, else (live) as
   one of its readers. */
int store_open_reading(const char *dir, uint64_t map_bytes, bool live, MDB_env **env, char *reason);

#endif
