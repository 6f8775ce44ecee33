/*
 * What is said on stderr of the log's own state: space, anchors, segments, readers beside.
 */
#include "config.h"

#include <pthread.h>
#include <signal.h>
#include <time.h>

#include "runtime/keep.h"
#include "sched/check.h"

enum { LOOK_MS = 1000, WORD_S = 2 };
static const char the_disk[] = "the disk of the audit log";

struct stuck {
	struct store *store;
	uint64_t most_ms, waited_ms;
};

static void *word_say(void *arg)
{
	const struct stuck *stuck = arg;
	const struct store_last_word word = {.reason = REASON_STUCK, .expected = stuck->most_ms,
					     .found = stuck->waited_ms};
	store_beacon(stuck->store, &word);
	return NULL;
}

/* The beacon lies on the same disk: the word has a thread of its own, and the process ends without it if that
   does not come back. */
static void stuck_end(const struct daemon *d, const char *what, uint64_t waited_ms)
{
	static struct stuck stuck;
	struct timespec until;
	pthread_t thread;
	stuck = (struct stuck){d->store, d->options.audit_abort_ms, waited_ms};
	log_say(LOG_ERROR, "%s has not answered for %llu ms (--audit-abort-ms): the process ends", what,
		(unsigned long long)waited_ms);
	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += WORD_S;
	if (pthread_create(&thread, NULL, word_say, &stuck) == 0)
		(void)pthread_timedjoin_np(thread, NULL, &until);
	signal(SIGABRT, SIG_DFL); /* its handler would speak again */
	CHECK(waited_ms < stuck.most_ms); /* asked for by --audit-abort-ms */
}

static void guard_silent(void *arg, const char *what, uint64_t waited_ms)
{
	stuck_end(arg, what, waited_ms);
}

int keep_guard_open(struct daemon *d)
{
	return guard_open(d->options.audit_abort_ms, guard_silent, d, &d->guard);
}

/* What waits for the disk has waited for too long, since the first look at which something waited. In time
   that this process stood still the writer did too: so one look counts for little. A full disk is said
   apart. */
static void stall_say(struct daemon *d)
{
	const uint64_t settled = store_settled(d->store), look = d->now_us - d->told.looked_us;
	if (!d->told.behind || settled != d->told.at || store_waits(d->store)) {
		d->told.at = settled;
		d->told.waited_us = 0;
	} else {
		d->told.waited_us += look < LOOK_MS * 1000 ? look : LOOK_MS * 1000;
	}
	d->told.looked_us = d->now_us;
	d->told.behind = settled != store_mark(d->store);
	const bool stalled = d->told.waited_us >= d->options.audit_stall_ms * 1000;
	if (stalled && !d->told.stalled)
		log_say(LOG_ERROR, "the disk of the audit log does not answer: nothing new begins (audit_stalled) "
			"until it does");
	else if (!stalled && d->told.stalled)
		log_say(LOG_NOTICE, "the disk of the audit log answers again");
	d->told.stalled = stalled;
	if (d->options.audit_abort_ms && d->told.waited_us >= d->options.audit_abort_ms * 1000)
		stuck_end(d, the_disk, d->told.waited_us / 1000);
}

uint64_t keep_look_us(const struct daemon *d)
{
	/* Asked anew: what this turn of the loop recorded is behind too. */
	const bool behind = d->store && store_settled(d->store) != store_mark(d->store);
	return behind ? d->told.looked_us + LOOK_MS * 1000 : UINT64_MAX;
}

void keep_settle(struct daemon *d)
{
	if (!store_settle(d->store, (uint32_t)d->options.audit_abort_ms)) {
		stuck_end(d, the_disk, d->options.audit_abort_ms);
	}
	if (!store_anchors_end(d->store))
		log_say(LOG_ERROR, "%.400s does not answer: the last entries of the log are not anchored",
			d->options.anchor);
	if (!store_archive_end(d->store))
		log_say(LOG_ERROR, "%.400s/archive does not answer: the entries that were on their way there are "
			"in the log", d->options.state);
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
	else if (!archive && d->told.archive)
		log_say(LOG_NOTICE, "old entries of the audit log are moved to %.400s/archive again",
			d->options.state);
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
