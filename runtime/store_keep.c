/*
 * What must be there after a restart, in LMDB's tables: put, removed and read by key. LMDB 0.9 has no
 * checksums, so each value ends in a sum over its table, its key and itself. What is a session's lies
 * there under the session's key.
 */
#include "config.h"

#include <sodium.h>
#include <string.h>

#include "runtime/store_disk.h"
#include "runtime/store_vault.h"
#include "sched/check.h"

const char *const store_table_names[TABLE_COUNT] = {
	"principal", "session", "turn", "call", "idem", "expires",
};

static void sum_make(uint8_t out[KEEP_SUM], uint32_t table, const void *key, size_t key_bytes,
		     const void *value, size_t bytes)
{
	uint8_t whole[16];
	crypto_generichash_state state;
	const uint32_t head[2] = {table, (uint32_t)key_bytes};
	crypto_generichash_init(&state, NULL, 0, sizeof whole);
	crypto_generichash_update(&state, (const uint8_t *)head, sizeof head);
	crypto_generichash_update(&state, key, key_bytes);
	crypto_generichash_update(&state, value, bytes);
	crypto_generichash_final(&state, whole, sizeof whole);
	memcpy(out, whole, KEEP_SUM);
}

/* All keys that begin so, a delete each. */
static int prefix_drop(MDB_txn *txn, MDB_dbi dbi, const struct store_key *prefix)
{
	MDB_cursor *cursor;
	int rc = mdb_cursor_open(txn, dbi, &cursor);
	if (rc != 0)
		return store_code(rc);
	MDB_val key = {prefix->length, (void *)prefix->bytes}, value;
	rc = mdb_cursor_get(cursor, &key, &value, MDB_SET_RANGE);
	while (rc == 0 && key.mv_size >= prefix->length &&
	       memcmp(key.mv_data, prefix->bytes, prefix->length) == 0) {
		rc = mdb_cursor_del(cursor, 0);
		if (rc == 0)
			rc = mdb_cursor_get(cursor, &key, &value, MDB_NEXT); /* skips none after a delete */
	}
	mdb_cursor_close(cursor);
	return rc == 0 || rc == MDB_NOTFOUND ? 0 : store_code(rc);
}

int table_put(MDB_txn *txn, const struct store_disk *disk, const struct keep_head *head, const void *value)
{
	CHECK(head->table < TABLE_COUNT);
	const MDB_dbi dbi = disk->kept[head->table];
	MDB_val key = {head->key.length, (void *)head->key.bytes};
	if (head->removed && head->prefix)
		return prefix_drop(txn, dbi, &head->key);
	if (head->removed) {
		const int rc = mdb_del(txn, dbi, &key, NULL);
		return rc == 0 || rc == MDB_NOTFOUND ? 0 : store_code(rc);
	}
	MDB_val room = {head->bytes + KEEP_SUM, NULL};
	const int rc = mdb_put(txn, dbi, &key, &room, MDB_RESERVE);
	if (rc != 0)
		return store_code(rc);
	memcpy(room.mv_data, value, head->bytes);
	sum_make((uint8_t *)room.mv_data + head->bytes, head->table, head->key.bytes, head->key.length, value,
		 head->bytes);
	return 0;
}

size_t seal_bytes(bool owned, size_t bytes)
{
	return owned ? bytes + SEAL_MAX : bytes + 1;
}

int seal_put(struct vault *vault, const uint8_t *owner, const struct store_key *key, const void *value,
	     size_t bytes, uint8_t *out)
{
	unsigned long long length;
	out[0] = owner == NULL ? SEAL_PLAIN : SEAL_OWNER;
	if (owner == NULL) {
		if (bytes > 0)
			memcpy(out + 1, value, bytes);
		return 0;
	}
	const uint8_t *secret = vault_key(vault, owner, true);
	if (secret == NULL)
		return -ERR_LIMIT;
	memcpy(out + 1, owner, VAULT_OWNER);
	uint8_t *nonce = out + 1 + VAULT_OWNER;
	randombytes_buf(nonce, crypto_aead_xchacha20poly1305_ietf_NPUBBYTES);
	crypto_aead_xchacha20poly1305_ietf_encrypt(nonce + crypto_aead_xchacha20poly1305_ietf_NPUBBYTES, &length,
						   value, bytes, key->bytes, key->length, NULL, nonce, secret);
	CHECK(length == bytes + crypto_aead_xchacha20poly1305_ietf_ABYTES);
	return 0;
}

/* -ERR_GONE: the key was written over. */
static int seal_get(struct vault *vault, const MDB_val *key, const uint8_t *sealed, size_t length,
		    void *value, size_t *bytes)
{
	if (length < 1)
		return -ERR_INTEGRITY;
	if (sealed[0] == SEAL_PLAIN) {
		if (length - 1 > *bytes)
			return -ERR_TOO_BIG;
		if (length > 1)
			memcpy(value, sealed + 1, length - 1);
		*bytes = length - 1;
		return 0;
	}
	if (sealed[0] != SEAL_OWNER || length < SEAL_MAX)
		return -ERR_INTEGRITY;
	if (length - SEAL_MAX > *bytes)
		return -ERR_TOO_BIG;
	const uint8_t *secret = vault_key(vault, sealed + 1, false);
	if (secret == NULL)
		return -ERR_GONE;
	const uint8_t *nonce = sealed + 1 + VAULT_OWNER;
	const uint8_t *body = nonce + crypto_aead_xchacha20poly1305_ietf_NPUBBYTES;
	unsigned long long opened;
	const size_t left = length - (size_t)(body - sealed);
	if (crypto_aead_xchacha20poly1305_ietf_decrypt(value, &opened, NULL, body, left, key->mv_data,
						       key->mv_size, nonce, secret) != 0)
		return -ERR_INTEGRITY;
	*bytes = (size_t)opened;
	return 0;
}

int table_get(MDB_txn *txn, const struct store_disk *disk, struct vault *vault, enum store_table table,
	      struct store_key *key, void *value, size_t *bytes, MDB_cursor_op how)
{
	MDB_cursor *cursor;
	MDB_val k = {key->length, key->bytes}, v;
	uint8_t sum[KEEP_SUM];
	int rc = mdb_cursor_open(txn, disk->kept[table], &cursor);
	if (rc == 0) {
		rc = mdb_cursor_get(cursor, &k, &v, key->length ? how : MDB_FIRST);
		mdb_cursor_close(cursor);
	}
	if (rc != 0)
		return rc == MDB_NOTFOUND ? -ERR_NOT_FOUND : store_code(rc);
	if (k.mv_size > sizeof key->bytes)
		return -ERR_BAD_FILE;
	memcpy(key->bytes, k.mv_data, k.mv_size);
	key->length = (uint32_t)k.mv_size;
	if (v.mv_size < KEEP_SUM)
		return -ERR_INTEGRITY;
	const size_t length = v.mv_size - KEEP_SUM;
	sum_make(sum, table, k.mv_data, k.mv_size, v.mv_data, length);
	if (memcmp(sum, (const uint8_t *)v.mv_data + length, KEEP_SUM) != 0)
		return -ERR_INTEGRITY;
	return seal_get(vault, &k, v.mv_data, length, value, bytes);
}
