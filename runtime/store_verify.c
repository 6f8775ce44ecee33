/*
 * `verify`: a log against its own hashes, its anchors, and the files that lie beside it.
 */
#include "config.h"

#include <stdio.h>
#include <string.h>

#include "runtime/store_anchor.h"
#include "runtime/store_read_inside.h"
#include "runtime/store_vault.h"
#include "sched/check.h"

/* The anchors beside the entries, both in ascending order. */
struct check {
	struct anchor_reader *reader;
	struct anchor_line line;
	bool more;
	struct store_verified *out;
	const struct store_verify *what;
	const uint8_t *uuid;
};

static void check_next(struct check *c)
{
	c->more = anchor_reader_next(c->reader, &c->line, &c->out->torn);
}

static int refuse_key(const struct check *c, uint32_t series, char *reason)
{
	char end[32];
	snprintf(end, sizeof end, "%u.key", series);
	store_refuse(reason, 0, "audit log: the file of the first key of series %u of its anchors is of another "
			"log, and must be this log's", series);
	anchor_cure(reason, "put the right one in its place, or, to set it aside", "mv @ ^", c->what->key_dir !=
			NULL ? c->what->key_dir : c->what->anchor_dir, c->uuid, end);
	return -ERR_INTEGRITY;
}

static int check_entry(void *arg, uint64_t seq, const uint8_t hash[STORE_HASH], char *reason)
{
	struct check *c = arg;
	while (c->more && c->line.seq <= seq) {
		const struct anchor_line *l = &c->line;
		if (l->key_other)
			return refuse_key(c, l->series, reason);
		if (l->signed_wrong || l->gap) {
			store_refuse(reason, 0, "audit log: %s entry %llu is %s: the anchors were changed",
				     l->signed_wrong ? "the anchor of" : "an anchor before that of",
				     (unsigned long long)l->seq,
				     l->signed_wrong ? "not signed with its key, as it must" : "gone");
			anchor_cure(reason, "compare with another copy of them; for its sum", "sha256sum @",
					c->what->anchor_dir, c->uuid, "anchors");
			return -ERR_INTEGRITY;
		}
		if (l->seq == seq && memcmp(hash, l->hash, STORE_HASH) != 0)
			return store_refuse(reason, -ERR_INTEGRITY, "audit log: entry %llu: it is not the one that was "
					"anchored: the log was written anew between entry %llu and this one",
					(unsigned long long)seq, (unsigned long long)c->out->anchored);
		c->out->anchors++;
		c->out->signed_right += l->signed_right;
		if (l->seq == seq)
			c->out->anchored = seq;
		check_next(c);
	}
	return 0;
}

/* Everything is behind us; an anchor that is left is of an entry that is gone. Beside a daemon it may be
   of one that came after the walk began. */
static int check_rest(struct check *c, const struct store_reader *r, char *reason)
{
	if (c->reader == NULL || !c->more || (r->live && c->line.boot == r->walk.head.boot))
		return 0;
	store_refuse(reason, 0, "audit log: ends at entry %llu, but entry %llu was anchored: its end was cut "
			"off, or an old copy was put in its place", (unsigned long long)r->walk.head.seq,
			(unsigned long long)c->line.seq);
	anchor_cure(reason, "restore the newer copy, or, to go on from here without the anchors of before", "mv "
			"@ ^", c->what->anchor_dir, c->uuid, "anchors");
	return -ERR_INTEGRITY;
}

int store_verify_all(const struct store_verify *what, struct store_verified *out, char *reason)
{
	struct store_reader *r;
	struct check check = {.out = out, .what = what};
	*out = (struct store_verified){0};
	TRY(reader_open(what->dir, false, &r, reason));
	check.uuid = r->disk.uuid;
	/* Files that a start would refuse, by their names. */
	int err = beacon_check(&r->disk, reason);
	if (err == 0) {
		err = vault_check(r->disk.dir, r->disk.uuid, r->walk.flushes, reason);
		/* Who is to look at the log and not into sessions has a copy without the keys. */
		out->keyless = err == -ERR_NO_FILE;
		err = out->keyless ? 0 : err;
	}
	if (err == 0)
		err = segments_check(r->disk.dir, r->disk.uuid, reason);
	if (err == 0)
		err = anchor_key_check(&r->disk, reason);
	if (err == 0 && what->anchor_dir != NULL)
		err = anchor_reader_open(what->anchor_dir, what->key_dir, r->disk.uuid, &check.reader, reason);
	if (check.reader != NULL)
		check_next(&check);
	const struct store_watch watch = {check_entry, &check, r->disk.dir, r->live};
	if (err == 0)
		err = store_walk_all(r->disk.env, r->disk.uuid, &watch, &r->walk, reason);
	if (err == 0)
		err = check_rest(&check, r, reason);
	out->entries = r->walk.entries;
	out->rows = r->walk.rows;
	out->first = r->walk.segments_first;
	out->indexed = r->walk.indexed;
	out->archived = r->walk.archived.seq;
	out->boot = r->walk.head.boot;
	out->clean = r->walk.clean;
	(void)store_cure_log(reason, what->dir, err);
	anchor_reader_close(&check.reader);
	store_reader_close(&r);
	return err;
}

int store_verify(const char *dir, struct store_verified *out, char *reason)
{
	return store_verify_all(&(struct store_verify){.dir = dir}, out, reason);
}
