/*
 * What is said on stderr of the log's own state: space, anchors, segments, readers beside.
 */
#include "runtime/keep.h"

/* What waits for the disk has waited for too long, since the first look at which something waited.
   A full disk is said apart. */
static void stall_say(struct daemon *d)
{
	const uint64_t settled = store_settled(d->store);
	if (!d->told.behind || settled != d->told.at || store_waits(d->store)) {
		d->told.at = settled;
		d->told.us = d->now_us;
	}
	d->told.behind = settled != store_mark(d->store);
	const bool stalled = d->now_us >= d->told.us + d->options.audit_stall_ms * 1000;
	if (stalled && !d->told.stalled)
		log_say(LOG_ERROR, "the disk of the audit log does not answer: nothing new begins (audit_stalled) "
			"until it does");
	else if (!stalled && d->told.stalled)
		log_say(LOG_NOTICE, "the disk of the audit log answers again");
	d->told.stalled = stalled;
}

bool keep_stalled(const struct daemon *d)
{
	return d->told.stalled;
}

/* Space, anchors, segments, readers, the disk's answers: each change is said once. */
void keep_say(struct daemon *d)
{
	const int space = store_space(d->store), archive = store_archive_failed(d->store);
	const bool waits = store_waits(d->store);
	const uint32_t reader = store_reader_stays(d->store), ended = store_reader_ended(d->store);
	int anchor;
	stall_say(d);
	const uint64_t anchored = store_anchored(d->store, &anchor);
	if (space == -ERR_DISK_FULL && d->told.space != space)
		log_say(LOG_ERROR, "no room for the audit log in %.400s: nothing new begins (log_full) until "
			"there is; make room, or raise --audit-map-bytes", d->options.state);
	else if (space != -ERR_DISK_FULL && d->told.space == -ERR_DISK_FULL)
		log_say(LOG_NOTICE, "the audit log has room again");
	else if (space == -ERR_LIMIT && d->told.space == 0)
		log_say(LOG_NOTICE, "the audit log has taken four fifths of --audit-map-bytes");
	if (waits && !d->told.waits)
		log_say(LOG_ERROR, "the head-room of the audit log is used up: what runs waits for the disk");
	if (anchor && d->told.anchor != anchor)
		log_say(LOG_ERROR, "no anchor can be written to %.400s: %s; the last is of entry %llu",
			d->options.anchor, err_text(anchor), (unsigned long long)anchored);
	else if (!anchor && d->told.anchor)
		log_say(LOG_NOTICE, "anchors are written again");
	if (archive && d->told.archive != archive)
		log_say(LOG_ERROR, "old entries of the audit log cannot be moved to %.400s/archive: %s",
			d->options.state, err_text(archive));
	if (reader && d->told.reader != reader)
		log_say(LOG_ERROR, "process %u reads the audit log and does not go on: the log grows while it "
			"stays", reader);
	if (ended && d->told.ended != ended)
		log_say(LOG_ERROR, "process %u was ended: it stayed in one transaction of the audit log for "
			"--audit-reader-stay-ms", ended);
	d->told.space = space;
	d->told.waits = waits;
	d->told.anchor = anchor;
	d->told.archive = archive;
	d->told.reader = reader;
	d->told.ended = ended;
}
