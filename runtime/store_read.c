/*
 * The reader's side of the store. What it decodes was written by this program, but may have been
 * changed since: every field is checked before it is believed.
 */
#include "config.h"

#include "runtime/store_read.h"

#include <msgpack.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "runtime/store_archive.h"
#include "runtime/store_read_inside.h"
#include "sched/check.h"

/* Address space for reading: the file's own size counts, this is only what it may not exceed. */
static const uint64_t map_bytes = 256ull << 30;

int reader_look_begin(const struct store_reader *r)
{
	const int rc = r->live ? mdb_txn_renew(r->txn) : 0;
	return rc == 0 ? 0 : store_code(rc);
}

void reader_look_end(const struct store_reader *r)
{
	if (r->live)
		mdb_txn_reset(r->txn);
}

static int reader_look(struct store_reader *r, bool unseen, char *reason)
{
	enum store_found found = STORE_WHOLE;
	if (!r->live && !unseen)
		TRY(store_walk_child(r->disk.dir, map_bytes, &r->disk, &found, reason));
	if (found == STORE_EMPTY)
		return store_refuse(reason, -ERR_BAD_FILE, "audit log: data.mdb has none of its tables");
	TRY(store_open_reading(r->disk.dir, map_bytes, r->live, &r->disk.env, reason));
	return store_walk(r->disk.env, r->disk.uuid, WALK_HEAD, &r->walk, &found, reason);
}

/* Only after the walk: LMDB does not bear names that are opened in two transactions at once. */
static int reader_begin(struct store_reader *r, char *reason)
{
	int rc = store_names_keep(r->disk.env);
	if (rc == 0)
		rc = mdb_txn_begin(r->disk.env, NULL, MDB_RDONLY, &r->txn);
	if (rc == 0)
		rc = mdb_dbi_open(r->txn, "audit", MDB_INTEGERKEY, &r->audit);
	if (rc == 0)
		rc = mdb_dbi_open(r->txn, "own", MDB_INTEGERKEY, &r->own);
	if (rc == 0)
		rc = mdb_dbi_open(r->txn, "index", MDB_INTEGERKEY, &r->index);
	r->indexed = rc == 0;
	rc = rc == MDB_NOTFOUND ? 0 : rc; /* of a version before it */
	MDB_dbi meta;
	MDB_val key = {4, "span"}, value;
	r->page_tokens = 16;
	if (rc == 0)
		rc = mdb_dbi_open(r->txn, "meta", 0, &meta);
	if (rc == 0 && mdb_get(r->txn, meta, &key, &value) == 0 && value.mv_size == sizeof r->page_tokens)
		memcpy(&r->page_tokens, value.mv_data, sizeof r->page_tokens);
	if (rc == 0 && store_meta_backs(r->txn, meta, &r->backs) != 0)
		rc = MDB_CORRUPTED;
	r->first = segments_first(r->disk.dir, r->walk.archived.seq);
	if (rc == 0)
		reader_look_end(r);
	return rc == 0 ? 0 : store_refuse_code(reason, r->disk.dir, store_code(rc), "audit log: data.mdb cannot "
			"be read: %s", mdb_strerror(rc));
}

int reader_open(const char *dir, bool unseen, struct store_reader **out, char *reason)
{
	*out = NULL;
	if (sodium_init() < 0)
		return store_refuse(reason, -ERR_INTERNAL, "audit log: libsodium does not start");
	struct store_reader *r = calloc(1, sizeof *r);
	if (r == NULL)
		return store_refuse(reason, -ERR_MEMORY, "audit log: no memory");
	int err = store_disk_lock(dir, &r->disk, &r->live, reason);
	if (err == 0)
		err = store_cure_log(reason, dir, reader_look(r, unseen, reason));
	if (err != 0)
		store_reader_close(&r);
	*out = r;
	return err;
}

static int reader_open_begin(const char *dir, bool unseen, struct store_reader **out, char *reason)
{
	TRY(reader_open(dir, unseen, out, reason));
	const int err = reader_begin(*out, reason);
	if (err != 0)
		store_reader_close(out);
	return err;
}

int store_reader_open(const char *dir, struct store_reader **out, char *reason)
{
	return reader_open_begin(dir, false, out, reason);
}

int store_reader_open_unseen(const char *dir, struct store_reader **out, char *reason)
{
	return reader_open_begin(dir, true, out, reason);
}

void store_reader_close(struct store_reader **reader)
{
	struct store_reader *r = *reader;
	if (r == NULL)
		return;
	*reader = NULL;
	if (r->txn != NULL)
		mdb_txn_abort(r->txn);
	segment_close(&r->segment);
	segment_rows_close(&r->rows);
	store_disk_close(&r->disk);
	free(r);
}

uint64_t store_reader_last(const struct store_reader *reader)
{
	return reader->walk.head.seq;
}

uint32_t store_reader_boot(const struct store_reader *reader)
{
	return reader->walk.head.boot;
}

bool store_reader_clean(const struct store_reader *reader)
{
	return reader->walk.clean;
}

static bool number(const msgpack_object *o, uint64_t max, uint64_t *out)
{
	if (o->type != MSGPACK_OBJECT_POSITIVE_INTEGER || o->via.u64 > max)
		return false;
	*out = o->via.u64;
	return true;
}

static bool identity(const msgpack_object *o, uint8_t out[16])
{
	memset(out, 0, 16);
	if (o->type == MSGPACK_OBJECT_NIL)
		return true;
	if (o->type != MSGPACK_OBJECT_BIN || o->via.bin.size != 16)
		return false;
	memcpy(out, o->via.bin.ptr, 16);
	return true;
}

static bool record_read(const msgpack_object *o, struct store_record *r)
{
	uint64_t n[12];
	*r = (struct store_record){0};
	if (o->type != MSGPACK_OBJECT_ARRAY || o->via.array.size != 14)
		return false;
	const msgpack_object *at = o->via.array.ptr;
	static const uint8_t place_of[12] = {0, 1, 2, 3, 6, 7, 8, 9, 10, 11, 12, 13};
	static const uint64_t max[12] = {
		STORE_KIND_COUNT - 1, UINT8_MAX, UINT16_MAX, UINT32_MAX, UINT32_MAX, UINT32_MAX,
		UINT32_MAX, UINT32_MAX, UINT32_MAX, UINT64_MAX, UINT64_MAX, UINT64_MAX,
	};
	for (unsigned i = 0; i < 12; i++)
		if (!number(&at[place_of[i]], max[i], &n[i]))
			return false;
	r->kind = (uint8_t)n[0];
	r->reason = (uint8_t)n[1];
	r->place = (uint16_t)n[2];
	r->principal = (uint32_t)n[3];
	r->turn = (uint32_t)n[4];
	r->group = (uint32_t)n[5];
	r->page_first = (uint32_t)n[6];
	r->page_count = (uint32_t)n[7];
	r->position_first = (uint32_t)n[8];
	r->tag_first = n[9];
	r->value[0] = n[10];
	r->value[1] = n[11];
	return identity(&at[4], r->session) && identity(&at[5], r->op);
}

static bool body_read(const msgpack_object *body, struct store_read_entry *out)
{
	if (body->type != MSGPACK_OBJECT_ARRAY || body->via.array.size == 0)
		return false;
	const msgpack_object *at = body->via.array.ptr;
	if (out->kind == STORE_BOOT) {
		/* Of a version before there is none. */
		const msgpack_object *text = body->via.array.size > 3 ? &at[3] : NULL;
		if (text != NULL && (text->type != MSGPACK_OBJECT_BIN || text->via.bin.size > STORE_CONFIG_MAX))
			return false;
		if (text != NULL) {
			memcpy(out->config, text->via.bin.ptr, text->via.bin.size);
			out->config[text->via.bin.size] = 0;
		}
		return true;
	}
	if (!number(&at[0], UINT64_MAX, &out->step))
		return false;
	if (out->kind == STORE_SHUTDOWN)
		return true;
	if (body->via.array.size != 2 || at[1].type != MSGPACK_OBJECT_ARRAY ||
	    at[1].via.array.size > STORE_ENTRY_RECORDS)
		return false;
	for (uint32_t i = 0; i < at[1].via.array.size; i++)
		if (!record_read(&at[1].via.array.ptr[i], &out->records[i]))
			return false;
	out->count = at[1].via.array.size;
	return true;
}

uint64_t store_reader_first(const struct store_reader *reader)
{
	return reader->walk.head.seq ? reader->first : 0;
}

uint64_t store_reader_ordered(const struct store_reader *reader, uint64_t seq)
{
	for (uint32_t i = 0; i < reader->backs.count; i++)
		if (reader->backs.seq[i] > seq && reader->backs.seq[i] <= reader->walk.head.seq)
			return reader->backs.seq[i];
	return reader->walk.head.seq + 1;
}

uint32_t store_reader_page_tokens(const struct store_reader *reader)
{
	return reader->page_tokens;
}

int reader_entry_find(struct store_reader *r, uint64_t seq, const uint8_t **bytes, size_t *count)
{
	MDB_val key = {sizeof seq, &seq}, value;
	const int rc = mdb_get(r->txn, r->audit, &key, &value);
	if (rc == 0) {
		*bytes = value.mv_data;
		*count = value.mv_size;
		return 0;
	}
	if (rc != MDB_NOTFOUND)
		return store_code(rc);
	/* Not there: in a segment, also one that was made after this reader was opened. */
	uint32_t length;
	if (r->segment.bytes == NULL || seq < r->segment.first || seq > r->segment.last) {
		segment_close(&r->segment);
		TRY(segment_open(r->disk.dir, r->disk.uuid, seq, &r->segment));
	}
	TRY(segment_entry(&r->segment, seq, bytes, &length));
	*count = length;
	return 0;
}

int store_reader_wall(struct store_reader *reader, uint64_t seq, uint64_t *wall_ns)
{
	struct store_header header;
	const uint8_t *bytes;
	size_t count;
	TRY(reader_look_begin(reader));
	int err = reader_entry_find(reader, seq, &bytes, &count);
	if (err == 0 && count < sizeof header)
		err = -ERR_BAD_FILE;
	if (err == 0) {
		memcpy(&header, bytes, sizeof header);
		*wall_ns = header.wall_ns;
	}
	reader_look_end(reader);
	return err;
}

int store_entry_read(const uint8_t *bytes, size_t count, uint64_t seq, struct store_read_entry *out)
{
	struct store_header header;
	if (count < sizeof header + STORE_HASH)
		return -ERR_BAD_FILE;
	memcpy(&header, bytes, sizeof header);
	if (header.body_bytes != count - sizeof header - STORE_HASH)
		return -ERR_BAD_FILE;
	memset(out, 0, offsetof(struct store_read_entry, records));
	out->config[0] = 0;
	out->seq = seq;
	out->mono_ns = header.mono_ns;
	out->wall_ns = header.wall_ns;
	out->boot = header.boot;
	out->kind = header.kind;
	out->partial = header.flags & STORE_FLAG_PARTIAL;
	out->unclean = header.flags & STORE_FLAG_UNCLEAN;
	msgpack_unpacked body;
	msgpack_unpacked_init(&body);
	size_t at = 0;
	bool right = header.kind < STORE_KIND_COUNT &&
		     msgpack_unpack_next(&body, (const char *)bytes + sizeof header, header.body_bytes, &at) ==
			     MSGPACK_UNPACK_SUCCESS &&
		     at == header.body_bytes && body_read(&body.data, out);
	msgpack_unpacked_destroy(&body);
	return right ? 0 : -ERR_BAD_FILE;
}

int store_reader_entry(struct store_reader *reader, uint64_t seq, struct store_read_entry *out)
{
	const uint8_t *bytes;
	size_t count;
	TRY(reader_look_begin(reader));
	int err = reader_entry_find(reader, seq, &bytes, &count);
	if (err == 0)
		err = store_entry_read(bytes, count, seq, out);
	reader_look_end(reader);
	return err;
}

int store_reader_row(const struct store_reader *reader, uint32_t place, uint32_t group,
		     uint64_t page, struct store_row *out)
{
	const uint64_t number_of = (uint64_t)place << 56 | (uint64_t)group << 48 | page;
	uint64_t begin = number_of / OWN_PAGES * OWN_PAGES;
	struct store_own runs[OWN_PAGES];
	MDB_val key = {sizeof begin, &begin}, value;
	uint32_t count = 0;
	TRY(reader_look_begin(reader));
	const int rc = mdb_get(reader->txn, reader->own, &key, &value);
	if (rc == 0)
		count = store_own_runs(&value, begin, runs);
	reader_look_end(reader);
	if (rc != 0)
		return rc == MDB_NOTFOUND ? -ERR_NOT_FOUND : store_code(rc);
	for (uint32_t i = 0; i < count; i++) {
		const struct store_own *run = &runs[i];
		const uint64_t at = number_of - begin - run->first; /* of one before it: too large */
		if (at >= run->count)
			continue;
		*out = (struct store_row){
			.boot = run->boot, .principal = run->principal, .turn = run->turn,
			.position = run->position + (uint32_t)at * run->span, .state = run->state,
			.tag = run->tag + at, .last_seq = run->last_seq,
		};
		memcpy(out->session, run->session, sizeof out->session);
		return 0;
	}
	return count > 0 ? -ERR_NOT_FOUND : -ERR_INTEGRITY;
}

int store_archive(const char *dir, uint64_t keep, uint64_t *moved, char *reason)
{
	struct store_options options;
	struct store_disk disk;
	const char *warning;
	*moved = 0;
	if (sodium_init() < 0)
		return store_refuse(reason, -ERR_INTERNAL, "audit log: libsodium does not start");
	/* Opening would make one where there is none. */
	struct stat st;
	char path[3200];
	snprintf(path, sizeof path, "%.3000s/uuid", dir);
	if (stat(path, &st) != 0)
		return store_none(reason, dir);
	store_options_default(&options);
	options.dir = dir;
	TRY(store_disk_open(&options, &disk, reason, &warning));
	const int err = archive_all(&disk, keep, moved);
	if (err != 0)
		store_refuse_code(reason, dir, err, "audit log '%s': entry %llu could not be moved to the folder "
				"'archive': %s", dir, (unsigned long long)disk.archived.seq + 1, err_text(err));
	store_disk_close(&disk);
	return err;
}
