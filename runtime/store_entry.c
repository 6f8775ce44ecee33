/*
 * Entries and rows: how a step's records become bytes in a transaction. Knows nothing of the ring
 * and of the directory.
 */
#include "config.h"

#include "runtime/store_disk.h"

#include <errno.h>
#include <msgpack.h>
#include <sodium.h>
#include <string.h>
#include <time.h>

#include "runtime/fault.h"
#include "runtime/store_read.h"
#include "sched/check.h"

/* CRC-32C (Castagnoli, reflected 0x82f63b78), four bits at a time: rows are short and few, and a
   table of 16 words stays in the cache. */
uint32_t store_crc_plain(uint32_t crc, const void *data, size_t bytes)
{
	static const uint32_t table[16] = {
		0x00000000, 0x105ec76f, 0x20bd8ede, 0x30e349b1, 0x417b1dbc, 0x5125dad3,
		0x61c69362, 0x7198540d, 0x82f63b78, 0x92a8fc17, 0xa24bb5a6, 0xb21572c9,
		0xc38d26c4, 0xd3d3e1ab, 0xe330a81a, 0xf36e6f75,
	};
	const uint8_t *at = data;
	for (size_t i = 0; i < bytes; i++) {
		crc ^= at[i];
		crc = table[crc & 15] ^ (crc >> 4);
		crc = table[crc & 15] ^ (crc >> 4);
	}
	return crc;
}

/* The instruction of SSE 4.2, where there is one: a row has two sums. */
#ifdef __x86_64__
__attribute__((target("sse4.2")))
static uint32_t crc_instruction(uint32_t crc, const void *data, size_t bytes)
{
	const uint8_t *at = data;
	uint64_t wide = crc, word;
	for (; bytes >= sizeof word; bytes -= sizeof word, at += sizeof word) {
		memcpy(&word, at, sizeof word);
		wide = __builtin_ia32_crc32di(wide, word);
	}
	for (crc = (uint32_t)wide; bytes > 0; bytes--, at++)
		crc = __builtin_ia32_crc32qi(crc, *at);
	return crc;
}
#endif

uint32_t store_crc_more(uint32_t crc, const void *data, size_t bytes)
{
#ifdef __x86_64__
	if (__builtin_cpu_supports("sse4.2"))
		return crc_instruction(crc, data, bytes);
#endif
	return store_crc_plain(crc, data, bytes);
}

uint32_t store_crc_bytes(const void *data, size_t bytes)
{
	return ~store_crc_more(~0u, data, bytes);
}

void store_genesis(uint8_t out[STORE_HASH], const uint8_t uuid[STORE_UUID])
{
	static const char word[] = "holdfast audit 1";
	crypto_generichash_state state;
	crypto_generichash_init(&state, NULL, 0, STORE_HASH);
	crypto_generichash_update(&state, (const uint8_t *)word, sizeof word);
	crypto_generichash_update(&state, uuid, STORE_UUID);
	crypto_generichash_final(&state, out, STORE_HASH);
}

void store_hash(uint8_t out[STORE_HASH], const uint8_t before[STORE_HASH], const void *value,
		size_t value_bytes)
{
	crypto_generichash_state state;
	crypto_generichash_init(&state, NULL, 0, STORE_HASH);
	crypto_generichash_update(&state, before, STORE_HASH);
	crypto_generichash_update(&state, value, value_bytes);
	crypto_generichash_final(&state, out, STORE_HASH);
}

int store_entry_follows(const void *bytes, size_t count, uint8_t before[STORE_HASH])
{
	struct store_header header;
	uint8_t hash[STORE_HASH];
	if (count < sizeof header + STORE_HASH || count > STORE_VALUE_MAX)
		return -ERR_BAD_FILE;
	memcpy(&header, bytes, sizeof header);
	const size_t hashed = count - STORE_HASH;
	if (header.version < STORE_SCHEMA_FIRST || header.version > STORE_SCHEMA ||
	    header.body_bytes != hashed - sizeof header)
		return -ERR_BAD_FILE;
	store_hash(hash, before, bytes, hashed);
	if (memcmp(hash, (const uint8_t *)bytes + hashed, STORE_HASH) != 0)
		return -ERR_INTEGRITY;
	memcpy(before, hash, STORE_HASH);
	return 0;
}

uint64_t store_clock_ns(int clock)
{
	struct timespec t;
	clock_gettime(clock, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* The packer writes into the entry: nothing is allocated after the start. */
static int entry_write(void *data, const char *bytes, size_t count)
{
	struct store_entry *e = data;
	CHECK(e->bytes + count <= sizeof e->value - STORE_HASH);
	memcpy(e->value + e->bytes, bytes, count);
	e->bytes += (uint32_t)count;
	return 0;
}

/* A step's body is [step, [record, …]]. Both numbers are known last, so they have a fixed width and
   are filled in then: array of 2, u64, array of 16-bit count. */
enum {
	BODY = sizeof(struct store_header),
	BODY_STEP = BODY + 2,
	BODY_COUNT = BODY_STEP + 8 + 1,
	BODY_RECORDS = BODY_COUNT + 2
};

void store_entry_begin(struct store_entry *entry)
{
	memset(entry->value, 0, BODY_RECORDS);
	entry->value[BODY] = 0x92;
	entry->value[BODY + 1] = 0xcf;
	entry->value[BODY_COUNT - 1] = 0xdc;
	entry->bytes = BODY_RECORDS;
	entry->count = entry->marks = 0;
	entry->mono_ns = entry->wall_ns = 0;
}

bool store_entry_room(const struct store_entry *entry, uint32_t records)
{
	return entry->bytes + records * STORE_PACKED_MAX + STORE_HASH <= sizeof entry->value;
}

static void pack_id(msgpack_packer *p, const uint8_t id[16])
{
	static const uint8_t zero[16];
	if (memcmp(id, zero, sizeof zero) == 0) {
		msgpack_pack_nil(p);
		return;
	}
	msgpack_pack_bin(p, 16);
	msgpack_pack_bin_body(p, id, 16);
}

/* At most 1 + 1 + 2 + 3 + 5 + 18 + 18 + 5 × 5 + 9 × 3 = 100 bytes. */
void store_entry_add(struct store_entry *entry, const struct store_record *record)
{
	CHECK(store_entry_room(entry, 1));
	msgpack_packer p;
	msgpack_packer_init(&p, entry, entry_write);
	msgpack_pack_array(&p, 14);
	msgpack_pack_uint8(&p, record->kind);
	msgpack_pack_uint8(&p, record->reason);
	msgpack_pack_uint16(&p, record->place);
	msgpack_pack_uint32(&p, record->principal);
	pack_id(&p, record->session);
	pack_id(&p, record->op);
	msgpack_pack_uint32(&p, record->turn);
	msgpack_pack_uint32(&p, record->group);
	msgpack_pack_uint32(&p, record->page_first);
	msgpack_pack_uint32(&p, record->page_count);
	msgpack_pack_uint32(&p, record->position_first);
	msgpack_pack_uint64(&p, record->tag_first);
	msgpack_pack_uint64(&p, record->value[0]);
	msgpack_pack_uint64(&p, record->value[1]);
	entry->count++;
	CHECK(entry->count <= STORE_ENTRY_RECORDS);
	entry->marks += index_of_record(record, entry->mark + entry->marks);
}

static int meta_put(MDB_txn *txn, MDB_dbi meta, const char *name, const void *data, size_t bytes)
{
	MDB_val key = {strlen(name), (void *)name}, value = {bytes, (void *)data};
	int rc = mdb_put(txn, meta, &key, &value, 0);
	return rc == 0 ? 0 : store_code(rc);
}

int store_meta_backs(MDB_txn *txn, MDB_dbi meta, struct store_backs *out)
{
	MDB_val key = {5, "backs"}, value;
	const int rc = mdb_get(txn, meta, &key, &value);
	*out = (struct store_backs){0};
	if (rc == 0 && value.mv_size == sizeof *out)
		memcpy(out, value.mv_data, sizeof *out);
	if (out->count > BACKS_MAX)
		out->count = 0;
	return rc == 0 || rc == MDB_NOTFOUND ? 0 : store_code(rc);
}

/* The clock was set back before this entry. */
static int back_put(MDB_txn *txn, const struct store_disk *disk, uint64_t seq)
{
	struct store_backs backs;
	TRY(store_meta_backs(txn, disk->meta, &backs));
	if (backs.count == BACKS_MAX)
		memmove(backs.seq, backs.seq + 1, --backs.count * sizeof backs.seq[0]);
	backs.seq[backs.count++] = seq;
	return meta_put(txn, disk->meta, "backs", &backs, sizeof backs);
}

/* Header, hash, and the entry as the next of the chain. */
static int entry_put(struct store_entry *entry, MDB_txn *txn, const struct store_disk *disk,
		     struct store_head *head, uint8_t kind, unsigned flags)
{
	struct store_header header = {
		.version = STORE_SCHEMA, .kind = kind, .flags = (uint16_t)flags,
		.body_bytes = entry->bytes - BODY, .mono_ns = entry->mono_ns, .wall_ns = entry->wall_ns,
		.boot = head->boot,
	};
	if (entry->mono_ns == 0) {
		header.mono_ns = store_clock_ns(CLOCK_MONOTONIC);
		header.wall_ns = store_clock_ns(CLOCK_REALTIME);
	} else if (header.mono_ns < head->mono_ns) {
		/* The writer put one of its own in between: no clock was set back. */
		header.mono_ns = head->mono_ns;
		header.wall_ns = head->wall_ns;
	}
	memcpy(entry->value, &header, sizeof header);
	uint8_t hash[STORE_HASH];
	store_hash(hash, head->hash, entry->value, entry->bytes);
	memcpy(entry->value + entry->bytes, hash, sizeof hash);
	uint64_t seq = head->seq + 1;
	MDB_val key = {sizeof seq, &seq};
	MDB_val value = {entry->bytes + STORE_HASH, entry->value};
	int rc = (int)fault_pass(FAULT_PUT);
	if (rc == 0)
		rc = mdb_put(txn, disk->audit, &key, &value, MDB_APPEND);
	if (rc != 0)
		return store_code(rc);
	if (header.wall_ns < head->wall_ns)
		TRY(back_put(txn, disk, seq));
	if (disk->marks != NULL)
		index_add(disk->marks, seq, entry->mark, entry->marks);
	head->seq = seq;
	memcpy(head->hash, hash, sizeof hash);
	head->mono_ns = header.mono_ns;
	head->wall_ns = header.wall_ns;
	return 0;
}

int store_entry_put_step(struct store_entry *entry, MDB_txn *txn, const struct store_disk *disk,
			 struct store_head *head, uint64_t step, unsigned flags)
{
	for (unsigned i = 0; i < 8; i++)
		entry->value[BODY_STEP + i] = (uint8_t)(step >> (56 - 8 * i));
	CHECK(entry->count <= UINT16_MAX);
	entry->value[BODY_COUNT] = (uint8_t)(entry->count >> 8);
	entry->value[BODY_COUNT + 1] = (uint8_t)entry->count;
	return entry_put(entry, txn, disk, head, STORE_STEP_END, flags);
}

int store_put_boot(MDB_txn *txn, const struct store_disk *disk, struct store_head *head,
		   uint32_t page_tokens, const char *config)
{
	const size_t length = config ? strnlen(config, STORE_CONFIG_MAX) : 0;
	struct store_entry entry = {.bytes = BODY, .marks = 1, .mark = {index_of_kind(STORE_BOOT)}};
	msgpack_packer p;
	msgpack_packer_init(&p, &entry, entry_write);
	msgpack_pack_array(&p, 4);
	msgpack_pack_uint32(&p, head->boot);
	msgpack_pack_bin(&p, STORE_UUID);
	msgpack_pack_bin_body(&p, disk->uuid, STORE_UUID);
	msgpack_pack_uint32(&p, page_tokens);
	/* As bytes: what it was started with need not be UTF-8. */
	msgpack_pack_bin(&p, length);
	if (length)
		msgpack_pack_bin_body(&p, config, length);
	TRY(meta_put(txn, disk->meta, "span", &page_tokens, sizeof page_tokens));
	return entry_put(&entry, txn, disk, head, STORE_BOOT, disk->clean ? 0 : STORE_FLAG_UNCLEAN);
}

int store_put_shutdown(MDB_txn *txn, const struct store_disk *disk, struct store_head *head,
		       uint64_t step)
{
	struct store_entry entry = {.bytes = BODY};
	msgpack_packer p;
	msgpack_packer_init(&p, &entry, entry_write);
	msgpack_pack_array(&p, 1);
	msgpack_pack_uint64(&p, step);
	return entry_put(&entry, txn, disk, head, STORE_SHUTDOWN, 0);
}

int store_put_archive(MDB_txn *txn, const struct store_disk *disk, struct store_head *head, uint64_t first,
		      uint64_t last)
{
	struct store_entry entry;
	const struct store_record r = {.kind = STORE_ARCHIVE, .value = {first, last}};
	store_entry_begin(&entry);
	store_entry_add(&entry, &r);
	return store_entry_put_step(&entry, txn, disk, head, 0, 0);
}

int store_put_archived(MDB_txn *txn, const struct store_disk *disk, const struct store_archived *to)
{
	return meta_put(txn, disk->meta, "archived", to, sizeof *to);
}

int store_put_head(MDB_txn *txn, const struct store_disk *disk, const struct store_head *head,
		   bool clean)
{
	uint8_t flag = clean;
	TRY(meta_put(txn, disk->meta, "head", head, sizeof *head));
	return meta_put(txn, disk->meta, "clean", &flag, sizeof flag);
}

int store_put_flushes(MDB_txn *txn, const struct store_disk *disk, uint64_t flushes)
{
	return meta_put(txn, disk->meta, "keys", &flushes, sizeof flushes);
}

int store_flushes(const struct store_disk *disk, uint64_t *flushes, char *reason)
{
	MDB_txn *txn;
	MDB_val key = {4, "keys"}, value;
	*flushes = 0;
	int rc = mdb_txn_begin(disk->env, NULL, MDB_RDONLY, &txn);
	if (rc == 0) {
		rc = mdb_get(txn, disk->meta, &key, &value);
		if (rc == 0 && value.mv_size == sizeof *flushes)
			memcpy(flushes, value.mv_data, sizeof *flushes);
		mdb_txn_abort(txn);
	}
	return rc == 0 || rc == MDB_NOTFOUND ? 0 : store_refuse_code(reason, disk->dir, store_code(rc), "audit "
			"log: data.mdb cannot be read: %s", mdb_strerror(rc));
}

int store_meta_ids(MDB_txn *txn, const struct store_disk *disk, uint64_t ids[BEACON_SLOTS])
{
	MDB_val key = {6, "beacon"}, value;
	int rc = mdb_get(txn, disk->meta, &key, &value);
	if (rc == 0 && value.mv_size == BEACON_SLOTS * sizeof ids[0])
		memcpy(ids, value.mv_data, value.mv_size);
	return rc == 0 || rc == MDB_NOTFOUND ? 0 : store_code(rc);
}

int store_meta_ids_put(MDB_txn *txn, const struct store_disk *disk, const uint64_t ids[BEACON_SLOTS])
{
	return meta_put(txn, disk->meta, "beacon", ids, BEACON_SLOTS * sizeof ids[0]);
}
