/*
 * Reads all of a store that the daemon will later rely on, before the daemon does: LMDB 0.9 has no
 * checksums, and a crafted or torn file can crash whoever maps it. The child takes that fall.
 */
#include "config.h"

#include "runtime/store_disk.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/store_archive.h"
#include "sched/check.h"

enum {
	BREATHE = 4096,   /* entries, rows or values of one transaction beside a daemon: some milliseconds */
	BREATHE_BYTES = 16 << 20 /* of values */
};

static int refuse_file(char *reason, const char *what, int rc)
{
	return store_refuse(reason, rc == 0 ? -ERR_BAD_FILE : store_code(rc), "audit log: data.mdb is damaged: "
			"%s%s%s; it must be as the last commit left it", what, rc == 0 ? "" : ": ", rc == 0 ? "" :
			mdb_strerror(rc));
}

static int refuse_chain(char *reason, const char *what, uint64_t seq)
{
	return store_refuse(reason, -ERR_INTEGRITY, "audit log: entry %llu: %s, as it must: the log was changed",
			(unsigned long long)seq, what);
}

/* The free list is LMDB's own, and what it says is believed at each write. */
static int walk_free(MDB_txn *txn, uint64_t page_last, char *reason)
{
	MDB_cursor *cursor;
	MDB_val key, value;
	int rc = mdb_cursor_open(txn, 0, &cursor);
	if (rc != 0)
		return refuse_file(reason, "the free list does not open", rc);
	uint64_t bound = page_last + 2;
	for (rc = mdb_cursor_get(cursor, &key, &value, MDB_FIRST); rc == 0 && bound > 0; bound--) {
		/* A count and so many page numbers; LMDB aligns values to 2 bytes only. */
		size_t count = 0, page;
		if (value.mv_size >= sizeof count)
			memcpy(&count, value.mv_data, sizeof count);
		bool right = key.mv_size == sizeof(size_t) && value.mv_size / sizeof count > count;
		for (size_t i = 1; right && i <= count; i++) {
			memcpy(&page, (uint8_t *)value.mv_data + i * sizeof page, sizeof page);
			right = page >= 2 && page <= page_last;
		}
		if (!right)
			break;
		rc = mdb_cursor_get(cursor, &key, &value, MDB_NEXT);
	}
	mdb_cursor_close(cursor);
	return rc == MDB_NOTFOUND ? 0 : refuse_file(reason, "the free list is not valid", 0);
}

static bool name_is(const MDB_val *key, const char *name)
{
	return key->mv_size == strlen(name) && memcmp(key->mv_data, name, key->mv_size) == 0;
}

/* Old pages of the file are free again for the daemon that runs beside. What the cursor stood at is gone. */
static int walk_breathe(MDB_txn *txn, MDB_cursor *cursor)
{
	mdb_txn_reset(txn);
	const int rc = mdb_txn_renew(txn);
	return rc == 0 ? mdb_cursor_renew(txn, cursor) : rc;
}

/* To the first key behind *key, as the table is by now. */
static int kept_breathe(MDB_txn *txn, MDB_cursor *cursor, MDB_val *key, MDB_val *value)
{
	uint8_t behind[STORE_KEY_MAX + 1] = {0};
	const size_t length = key->mv_size;
	if (length > STORE_KEY_MAX)
		return MDB_BAD_VALSIZE;
	memcpy(behind, key->mv_data, length);
	const int rc = walk_breathe(txn, cursor);
	*key = (MDB_val){length + 1, behind};
	return rc == 0 ? mdb_cursor_get(cursor, key, value, MDB_SET_RANGE) : rc;
}

/* The values of one table; live: their number is that of no one moment, once the walk took breath. */
static int kept_values(MDB_txn *txn, MDB_dbi dbi, bool live, char *reason)
{
	MDB_stat stat;
	MDB_cursor *cursor;
	MDB_val key, value;
	uint32_t sum = 0;
	size_t seen = 0, bytes = 0;
	bool breathed = false;
	int rc = mdb_stat(txn, dbi, &stat);
	if (rc == 0)
		rc = mdb_cursor_open(txn, dbi, &cursor);
	if (rc != 0)
		return refuse_file(reason, "a table of sessions does not open", rc);
	rc = mdb_cursor_get(cursor, &key, &value, MDB_FIRST);
	while (rc == 0 && seen++ <= stat.ms_entries) {
		for (size_t at = 0; at < value.mv_size; at += 512)
			sum += ((const uint8_t *)value.mv_data)[at];
		bytes += value.mv_size;
		if (!live || (seen < BREATHE && bytes < BREATHE_BYTES)) {
			rc = mdb_cursor_get(cursor, &key, &value, MDB_NEXT);
			continue;
		}
		seen = bytes = 0;
		breathed = true;
		rc = kept_breathe(txn, cursor, &key, &value);
		if (rc == 0)
			rc = mdb_stat(txn, dbi, &stat);
	}
	mdb_cursor_close(cursor);
	*(volatile uint32_t *)&sum = sum;
	if (rc == MDB_NOTFOUND && (seen == stat.ms_entries || breathed))
		return 0;
	return refuse_file(reason, "a table of sessions is not whole", rc == MDB_NOTFOUND ? 0 : rc);
}

/* Every value is touched, so that what crashes crashes the child; what it says is proven when read. */
static int walk_kept(MDB_txn *txn, bool live, char *reason)
{
	for (unsigned i = 0; i < TABLE_COUNT; i++) {
		MDB_dbi dbi;
		const int rc = mdb_dbi_open(txn, store_table_names[i], 0, &dbi);
		if (rc == MDB_NOTFOUND)
			continue;
		if (rc != 0)
			return refuse_file(reason, "a table of sessions does not open", rc);
		TRY(kept_values(txn, dbi, live, reason));
	}
	return 0;
}

static int walk_names(MDB_txn *txn, unsigned *count, char *reason)
{
	static const char *const names[] = {"meta", "audit", "own"};
	unsigned ours_count = 0;
	MDB_dbi main_dbi;
	MDB_cursor *cursor;
	MDB_val key, value;
	*count = 0;
	int rc = mdb_dbi_open(txn, NULL, 0, &main_dbi);
	if (rc == 0)
		rc = mdb_cursor_open(txn, main_dbi, &cursor);
	if (rc != 0)
		return refuse_file(reason, "the list of tables does not open", rc);
	for (rc = mdb_cursor_get(cursor, &key, &value, MDB_FIRST); rc == 0 && *count <= 4 + TABLE_COUNT;
	     ++*count) {
		bool ours = false, kept = name_is(&key, "index");
		for (unsigned i = 0; i < 3; i++)
			ours |= name_is(&key, names[i]);
		for (unsigned i = 0; i < TABLE_COUNT; i++)
			kept |= name_is(&key, store_table_names[i]);
		if (!ours && !kept)
			break;
		ours_count += ours;
		rc = mdb_cursor_get(cursor, &key, &value, MDB_NEXT);
	}
	mdb_cursor_close(cursor);
	if (rc == MDB_NOTFOUND && (*count == 0 || ours_count == 3))
		return 0;
	return store_refuse(reason, -ERR_UNSUPPORTED, "audit log: data.mdb has other tables than this "
			"program's, which must be there and no others");
}

static int meta_get(MDB_txn *txn, MDB_dbi meta, const char *name, void *out, size_t bytes)
{
	MDB_val key = {strlen(name), (void *)name}, value;
	int rc = mdb_get(txn, meta, &key, &value);
	if (rc == 0 && value.mv_size != bytes)
		rc = MDB_BAD_VALSIZE;
	if (rc == 0)
		memcpy(out, value.mv_data, bytes);
	return rc;
}

static int walk_meta(MDB_txn *txn, const uint8_t uuid[STORE_UUID], struct store_walk *out,
		     char *reason)
{
	MDB_dbi meta;
	uint32_t schema = 0;
	uint8_t found[STORE_UUID], clean;
	int rc = mdb_dbi_open(txn, "meta", 0, &meta);
	if (rc == 0)
		rc = meta_get(txn, meta, "schema", &schema, sizeof schema);
	if (rc == 0 && (schema < STORE_SCHEMA_FIRST || schema > STORE_SCHEMA))
		return store_refuse(reason, -ERR_UNSUPPORTED, "audit log: data.mdb is of version %u, this program "
				"reads version %d, and brings those from %d on forward", schema, STORE_SCHEMA,
				STORE_SCHEMA_FIRST);
	out->schema = schema;
	if (rc == 0)
		rc = meta_get(txn, meta, "uuid", found, sizeof found);
	if (rc == 0 && memcmp(found, uuid, sizeof found) != 0)
		return store_refuse(reason, -ERR_INTEGRITY, "audit log: data.mdb and the file 'uuid' are of two "
				"different logs, and must be of one");
	if (rc == 0)
		rc = meta_get(txn, meta, "head", &out->head, sizeof out->head);
	if (rc == 0)
		rc = meta_get(txn, meta, "clean", &clean, sizeof clean);
	out->clean = rc == 0 && clean == 1;
	store_genesis(out->archived.hash, uuid);
	MDB_dbi audit;
	MDB_stat stat = {0};
	if (rc == 0)
		rc = mdb_dbi_open(txn, "audit", MDB_INTEGERKEY, &audit);
	if (rc == 0)
		rc = mdb_stat(txn, audit, &stat);
	if (rc == 0) {
		rc = meta_get(txn, meta, "archived", &out->archived, sizeof out->archived);
		if (rc == MDB_NOTFOUND)
			rc = 0;
		else if (rc == 0 && out->archived.seq > out->head.seq)
			rc = MDB_CORRUPTED;
	}
	if (rc == 0) {
		rc = meta_get(txn, meta, "keys", &out->flushes, sizeof out->flushes);
		rc = rc == MDB_NOTFOUND ? 0 : rc;
	}
	out->entries = stat.ms_entries + out->archived.seq;
	return rc == 0 ? 0 : refuse_file(reason, "its head does not read", rc);
}

/* A value of the owners' table: its runs, and that none speaks of an entry to come. Before STORE_SCHEMA_OWN
   it was one row of one page. */
static bool own_right(const MDB_val *key, const MDB_val *value, uint32_t schema, uint64_t seq,
		      uint64_t *number, uint64_t *rows)
{
	struct store_own runs[OWN_PAGES];
	if (key->mv_size != sizeof *number)
		return false;
	memcpy(number, key->mv_data, sizeof *number);
	if (schema < STORE_SCHEMA_OWN) {
		if (value->mv_size != sizeof runs[0])
			return false;
		memcpy(runs, value->mv_data, sizeof runs[0]);
		++*rows;
		return runs[0].crc == store_crc(*number, runs) && runs[0].last_seq <= seq;
	}
	const uint32_t count = store_own_runs(value, *number, runs);
	for (uint32_t i = 0; i < count; i++) {
		*rows += runs[i].count;
		if (runs[i].last_seq > seq)
			return false;
	}
	return count > 0 && *number % OWN_PAGES == 0;
}

/* The table and the head as they are by now; the cursor goes to the first row from `number` on. */
static int own_breathe(MDB_txn *txn, MDB_cursor *cursor, uint64_t number, MDB_val *key, MDB_val *value,
		       MDB_stat *stat, uint64_t *seq)
{
	struct store_head head;
	MDB_dbi meta;
	int rc = walk_breathe(txn, cursor);
	if (rc == 0)
		rc = mdb_stat(txn, mdb_cursor_dbi(cursor), stat);
	if (rc == 0)
		rc = mdb_dbi_open(txn, "meta", 0, &meta);
	if (rc == 0)
		rc = meta_get(txn, meta, "head", &head, sizeof head);
	if (rc == 0)
		*seq = head.seq;
	*key = (MDB_val){sizeof number, &number};
	return rc == 0 ? mdb_cursor_get(cursor, key, value, MDB_SET_RANGE) : rc;
}

static int walk_own(MDB_txn *txn, bool live, struct store_walk *out, char *reason)
{
	MDB_dbi own;
	MDB_cursor *cursor;
	MDB_stat stat;
	MDB_val key, value;
	uint64_t number = 0, seq = out->head.seq;
	size_t seen = 0;
	int rc = mdb_dbi_open(txn, "own", MDB_INTEGERKEY, &own);
	if (rc == 0)
		rc = mdb_stat(txn, own, &stat);
	if (rc == 0)
		rc = mdb_cursor_open(txn, own, &cursor);
	if (rc != 0)
		return refuse_file(reason, "the owners' table does not open", rc);
	const size_t least = stat.ms_entries; /* rows are never removed */
	rc = mdb_cursor_get(cursor, &key, &value, MDB_FIRST);
	while (rc == 0 && seen < stat.ms_entries &&
	       own_right(&key, &value, out->schema, seq, &number, &out->rows)) {
		seen++;
		rc = live && seen % BREATHE == 0 ?
			     own_breathe(txn, cursor, number + 1, &key, &value, &stat, &seq) :
			     mdb_cursor_get(cursor, &key, &value, MDB_NEXT);
	}
	mdb_cursor_close(cursor);
	if (rc == MDB_NOTFOUND && seen >= least && seen <= stat.ms_entries)
		return 0;
	if (rc != 0)
		return refuse_file(reason, "the owners' table is not whole", rc == MDB_NOTFOUND ? 0 : rc);
	return store_refuse(reason, -ERR_INTEGRITY, "audit log: the owners of page %llu of group %u and those "
			"behind it are damaged: their sum is not what it must be", (unsigned long long)(number &
			0xffffffffffff), (unsigned)(number >> 48 & 0xff));
}

static const char *entry_words(int code)
{
	return code == -ERR_INTEGRITY ? "its hash does not follow from the entry before" : "its header is wrong";
}

static int entry_check(const void *bytes, size_t count, uint64_t seq, uint8_t hash[STORE_HASH],
		       const struct store_watch *watch, char *reason)
{
	if (count < sizeof(struct store_header) + STORE_HASH || count > STORE_VALUE_MAX)
		return refuse_chain(reason, "its size is wrong", seq);
	const int code = store_entry_follows(bytes, count, hash);
	if (code != 0)
		return refuse_chain(reason, entry_words(code), seq);
	return watch != NULL ? watch->entry(watch->arg, seq, hash, reason) : 0;
}

/* It was moved by the daemon that runs beside, since the walk began. g: the segment of the one before. */
static int entry_moved(const struct store_watch *watch, const uint8_t uuid[STORE_UUID], uint64_t seq,
		       struct segment *g, uint8_t hash[STORE_HASH], char *reason)
{
	const uint8_t *bytes;
	uint32_t length;
	if (g->bytes == NULL || seq > g->last) {
		segment_close(g);
		if (watch == NULL || !watch->live || segment_open(watch->dir, uuid, seq, g) != 0)
			return refuse_chain(reason, "it is not there", seq);
	}
	if (segment_entry(g, seq, &bytes, &length) != 0)
		return refuse_chain(reason, "it is not there", seq);
	return entry_check(bytes, length, seq, hash, watch, reason);
}

/* The entries of a table from where the chain is taken up: that of `seq`, whose hash is `hash`. */
static int walk_entries(MDB_txn *txn, MDB_cursor *cursor, const uint8_t uuid[STORE_UUID], uint64_t seq,
			uint8_t hash[STORE_HASH], struct store_walk *out, const struct store_watch *watch,
			char *reason)
{
	MDB_val key, value;
	struct segment moved = {0};
	bool seek = true;
	int err = 0;
	while (err == 0 && seq < out->head.seq) {
		uint64_t number = 0, wanted = ++seq;
		key = (MDB_val){sizeof wanted, &wanted};
		if (watch != NULL && watch->live && seq % BREATHE == 0) {
			if (walk_breathe(txn, cursor) != 0) {
				err = refuse_chain(reason, "it cannot be read", seq);
				break;
			}
			seek = true;
		}
		const int rc = mdb_cursor_get(cursor, &key, &value, seek ? MDB_SET_RANGE : MDB_NEXT);
		if (rc == 0 && key.mv_size == sizeof number)
			memcpy(&number, key.mv_data, sizeof number);
		out->checked++;
		seek = rc != 0 || number != seq;
		err = seek ? entry_moved(watch, uuid, seq, &moved, hash, reason) :
			     entry_check(value.mv_data, value.mv_size, seq, hash, watch, reason);
	}
	segment_close(&moved);
	return err;
}

/* From the entry before the first one checked, whose stored hash is where the chain is taken up. */
static int walk_audit(MDB_txn *txn, const uint8_t uuid[STORE_UUID], uint64_t tail, struct store_walk *out,
		      const struct store_watch *watch, char *reason)
{
	MDB_dbi audit;
	MDB_cursor *cursor;
	uint8_t hash[STORE_HASH];
	const uint64_t last = out->head.seq, archived = out->archived.seq;
	uint64_t seq = last - archived <= tail ? archived : last - tail;
	int rc = mdb_dbi_open(txn, "audit", MDB_INTEGERKEY, &audit);
	if (rc == 0)
		rc = mdb_cursor_open(txn, audit, &cursor);
	if (rc != 0)
		return refuse_file(reason, "the entries' table does not open", rc);
	MDB_val key = {sizeof seq, &seq}, value;
	memcpy(hash, out->archived.hash, sizeof hash);
	if (seq > archived) {
		rc = mdb_cursor_get(cursor, &key, &value, MDB_SET);
		if (rc == 0 && value.mv_size > STORE_HASH)
			memcpy(hash, (uint8_t *)value.mv_data + value.mv_size - STORE_HASH, STORE_HASH);
	}
	int err = rc != 0 ? refuse_chain(reason, "it is not there", seq) :
			    walk_entries(txn, cursor, uuid, seq, hash, out, watch, reason);
	mdb_cursor_close(cursor);
	if (err != 0)
		return err;
	if (memcmp(hash, out->head.hash, STORE_HASH) != 0)
		return refuse_chain(reason, "its hash is not the head's", last);
	if (out->entries != last)
		return refuse_chain(reason, "the table has another number of entries", last);
	return 0;
}

/* The segments, up to where the table goes on. Those that were taken elsewhere are passed over, from the
   oldest on. */
static int walk_segments(const uint8_t uuid[STORE_UUID], const struct store_watch *watch,
			 struct store_walk *out, char *reason)
{
	uint8_t hash[STORE_HASH];
	const uint64_t until = out->archived.seq;
	uint64_t seq = until == 0 ? 1 : segments_first(watch->dir, until);
	out->segments_first = seq;
	while (seq <= until) {
		struct segment g;
		int err = segment_open(watch->dir, uuid, seq, &g);
		if (err != 0)
			return refuse_chain(reason, "its segment in the folder 'archive' is damaged", seq);
		if (seq == out->segments_first)
			segment_before(&g, hash);
		for (seq = g.first; err == 0 && seq <= g.last && seq <= until; seq++) {
			const uint8_t *bytes;
			uint32_t length;
			err = segment_entry(&g, seq, &bytes, &length);
			err = err != 0 ? refuse_chain(reason, "its segment in the folder 'archive' is damaged", seq) :
					 entry_check(bytes, length, seq, hash, watch, reason);
			out->checked++;
		}
		if (err == 0)
			err = index_verify_segment(&g, until, &out->indexed, reason);
		segment_close(&g);
		TRY(err);
	}
	if (until > 0 && out->segments_first <= until && memcmp(hash, out->archived.hash, STORE_HASH) != 0)
		return refuse_chain(reason, "the segments do not lead to the log", until);
	return 0;
}

int store_names_keep(MDB_env *env)
{
	static const char *const names[] = {"audit", "own", "index"};
	MDB_txn *txn;
	MDB_dbi dbi;
	int rc = mdb_txn_begin(env, NULL, MDB_RDONLY, &txn);
	if (rc != 0)
		return rc;
	for (unsigned i = 0; i < 3 && rc == 0; i++) {
		rc = mdb_dbi_open(txn, names[i], MDB_INTEGERKEY, &dbi);
		rc = rc == MDB_NOTFOUND && i == 2 ? 0 : rc; /* of a version before it */
	}
	if (rc == 0)
		rc = mdb_dbi_open(txn, "meta", 0, &dbi);
	for (unsigned i = 0; i < TABLE_COUNT && rc == 0; i++) {
		rc = mdb_dbi_open(txn, store_table_names[i], 0, &dbi);
		rc = rc == MDB_NOTFOUND ? 0 : rc;
	}
	if (rc == 0)
		return mdb_txn_commit(txn);
	mdb_txn_abort(txn);
	return rc;
}

static int walk(MDB_env *env, const uint8_t uuid[STORE_UUID], enum store_depth depth,
		const struct store_watch *watch, struct store_walk *out, enum store_found *found, char *reason)
{
	static const uint64_t tails[] = {1, STORE_TAIL, UINT64_MAX};
	MDB_txn *txn;
	MDB_envinfo info;
	unsigned count;
	const bool live = watch != NULL && watch->live;
	*out = (struct store_walk){0};
	*found = STORE_EMPTY;
	int rc = mdb_env_info(env, &info);
	if (rc == 0)
		rc = mdb_txn_begin(env, NULL, MDB_RDONLY, &txn);
	if (rc != 0)
		return refuse_file(reason, "it does not open", rc);
	int err = 0;
	if (depth != WALK_HEAD)
		err = walk_free(txn, info.me_last_pgno, reason);
	if (err == 0)
		err = walk_names(txn, &count, reason);
	if (err == 0 && count > 0) {
		*found = STORE_WHOLE;
		err = walk_meta(txn, uuid, out, reason);
		if (err == 0 && depth != WALK_HEAD)
			err = walk_own(txn, live, out, reason);
		if (err == 0 && depth != WALK_HEAD)
			err = walk_kept(txn, live, reason);
		if (err == 0 && depth != WALK_HEAD)
			err = index_walk(txn, out->head.seq, live, reason);
		if (err == 0 && watch != NULL) {
			/* Files, not the table: however long that takes, no page of it is held meanwhile. */
			if (live)
				mdb_txn_reset(txn);
			err = walk_segments(uuid, watch, out, reason);
			if (err == 0 && live && (rc = mdb_txn_renew(txn)) != 0)
				err = refuse_file(reason, "it cannot be read on", rc);
		}
		if (err == 0)
			err = walk_audit(txn, uuid, tails[depth], out, watch, reason);
		if (err == 0 && watch != NULL)
			err = index_verify(txn, out->archived.seq, out->head.seq, live, &out->indexed, reason);
	}
	mdb_txn_abort(txn);
	return err;
}

int store_walk(MDB_env *env, const uint8_t uuid[STORE_UUID], enum store_depth depth,
	       struct store_walk *out, enum store_found *found, char *reason)
{
	return walk(env, uuid, depth, NULL, out, found, reason);
}

int store_walk_all(MDB_env *env, const uint8_t uuid[STORE_UUID], const struct store_watch *watch,
		   struct store_walk *out, char *reason)
{
	enum store_found found;
	if (watch->live && store_names_keep(env) != 0)
		return refuse_file(reason, "its tables do not open", 0);
	return walk(env, uuid, WALK_ALL, watch, out, &found, reason);
}

int store_open_reading(const char *dir, uint64_t map_bytes, bool live, MDB_env **env, char *reason)
{
	*env = NULL;
	int rc = mdb_env_create(env);
	if (rc == 0)
		rc = mdb_env_set_mapsize(*env, map_bytes);
	if (rc == 0)
		rc = mdb_env_set_maxdbs(*env, STORE_DBS_MAX);
	/* Our own lock keeps every writer out, so LMDB's is not needed. */
	if (rc == 0)
		rc = mdb_env_open(*env, dir, MDB_RDONLY | (live ? 0 : MDB_NOLOCK) | MDB_NOTLS, 0600);
	if (rc == 0)
		return 0;
	if (*env != NULL)
		mdb_env_close(*env);
	*env = NULL;
	return refuse_file(reason, "it does not open", rc);
}

/* What the child says: one struct through a pipe, so that a half-said verdict is none. */
struct verdict {
	int err;
	enum store_found found;
	char reason[STORE_REASON_MAX];
};
_Static_assert(sizeof(struct verdict) <= 4096, "a pipe takes it whole");

unsigned store_walk_cpu_s = 120;

static void child_run(const char *dir, uint64_t map_bytes, const uint8_t uuid[STORE_UUID],
		      int pipe_fd, pid_t parent)
{
	static const int fatal[] = {SIGSEGV, SIGBUS, SIGABRT, SIGFPE, SIGILL, SIGTERM, SIGXCPU};
	struct rlimit none = {0, 0}, cpu = {store_walk_cpu_s, store_walk_cpu_s};
	struct verdict verdict = {0};
	struct store_walk walk;
	MDB_env *env;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (getppid() != parent) /* it died before that line */
		_exit(1);
	setrlimit(RLIMIT_CORE, &none);
	setrlimit(RLIMIT_CPU, &cpu);
	for (unsigned i = 0; i < sizeof fatal / sizeof fatal[0]; i++)
		signal(fatal[i], SIG_DFL);
	int null = open("/dev/null", O_WRONLY);
	if (null >= 0)
		dup2(null, 2); /* LMDB's assertions speak there */
	verdict.err = store_open_reading(dir, map_bytes, false, &env, verdict.reason);
	if (verdict.err == 0)
		verdict.err = store_walk(env, uuid, WALK_TAIL, &walk, &verdict.found, verdict.reason);
	/* What the parent looks for itself: another way through the file's pages. */
	if (verdict.err == 0)
		verdict.err = store_walk(env, uuid, WALK_HEAD, &walk, &verdict.found, verdict.reason);
	ssize_t n = write(pipe_fd, &verdict, sizeof verdict);
	_exit(n == (ssize_t)sizeof verdict ? 0 : 1);
}

int store_walk_child(const char *dir, uint64_t map_bytes, const struct store_disk *disk,
		     enum store_found *found, char *reason)
{
	int fds[2], status = 0;
	if (pipe2(fds, O_CLOEXEC) != 0)
		return store_refuse(reason, store_code(errno), "audit log: pipe: %s", strerror(errno));
	const pid_t parent = getpid();
	pid_t pid = fork();
	if (pid < 0) {
		int code = errno;
		close(fds[0]);
		close(fds[1]);
		return store_refuse(reason, -ERR_MEMORY, "audit log: fork: %s", strerror(code));
	}
	if (pid == 0) {
		close(disk->lock_fd); /* the parent's copy keeps the lock, and only that */
		close(fds[0]);
		child_run(dir, map_bytes, disk->uuid, fds[1], parent);
	}
	close(fds[1]);
	struct verdict verdict;
	ssize_t n;
	do
		n = read(fds[0], &verdict, sizeof verdict);
	while (n < 0 && errno == EINTR);
	close(fds[0]);
	while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
		;
	if (n != (ssize_t)sizeof verdict)
		return store_refuse(reason, -ERR_BAD_FILE, "audit log '%s': data.mdb is damaged: reading it ended a "
				"child process (signal %d), and must end in its head", dir, WIFSIGNALED(status) ?
				WTERMSIG(status) : 0);
	verdict.reason[sizeof verdict.reason - 1] = 0;
	*found = verdict.found;
	if (verdict.err != 0)
		store_refuse(reason, 0, "%s", verdict.reason);
	return verdict.err;
}
