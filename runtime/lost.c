/*
 * The end of the device, or of a rank of it, while the daemon lives: it is on record, every turn gets an
 * END that says so, and the daemon ends in order.
 */
#include <inttypes.h>
#include <time.h>

#include "runtime/daemon.h"
#include "runtime/keep.h"
#include "runtime/loop.h"

enum { LOOK_EVERY_US = 500000, ENDS_WAIT_US = 2000000 };

/* The device computes no more: on record, and the end of the daemon. Only once. */
void lost_device(struct daemon *d)
{
	const uint64_t ranks = d->ranks ? ranks_count(d->ranks) : 1;
	const int gone = forward_rank_gone(d->forward, true);
	const struct store_record r = {.kind = STORE_INCIDENT, .reason = REASON_DEVICE,
				       .value = {ranks, gone < 0 ? ranks : (uint64_t)gone}};
	if (d->device_lost)
		return;
	d->device_lost = d->failed = true;
	d->incidents[REASON_DEVICE]++;
	step_record(d, &r);
	if (gone >= 0)
		log_say(LOG_ERROR, "rank %d of %" PRIu64 " is gone, and the device with it: turns end, and so does "
			"the daemon; start it again", gone, ranks);
	else
		log_say(LOG_ERROR, "the device is lost: turns end, and so does the daemon; start it again");
}

/* When the ranks are to be looked at next. */
uint64_t lost_look_us(const struct daemon *d)
{
	return d->ranks ? d->ranks_looked_us + LOOK_EVERY_US : UINT64_MAX;
}

/* A rank that ends while nothing is computed is noticed here; else by the step that waits for it. */
void lost_look(struct daemon *d)
{
	if (d->in_flight || d->now_us < lost_look_us(d))
		return;
	d->ranks_looked_us = d->now_us;
	if (forward_rank_gone(d->forward, true) < 0)
		return;
	lost_device(d);
	step_record_close(d);
}

/* Whether a reader has not got its END. */
static bool ends_owed(const struct daemon *d)
{
	for (uint32_t i = 0; i < d->calls_top; i++) {
		const struct call *c = &d->calls[i];
		if (c->state == CALL_ENDED && c->peer != NONE && !c->end_sent)
			return true;
	}
	return false;
}

/* The device or the log is lost: who waits for an END gets one. */
void lost_calls(struct daemon *d)
{
	const int code = d->store && store_failed(d->store) ? ERR_AUDIT_STALLED
			 : d->device_lost                     ? ERR_DEVICE
							      : ERR_INTERNAL;
	for (uint32_t i = 0; i < d->calls_top; i++) {
		struct call *c = &d->calls[i];
		if (c->state != CALL_RUNNING && c->state != CALL_DEFERRED)
			continue;
		c->state = CALL_ENDED;
		c->dropped = true;
		call_fail(d, i, code);
	}
	/* An END waits until what it says is on disk: the writer lives, if the log does. */
	const struct timespec pause = {.tv_nsec = 1000 * 1000};
	const uint64_t until_us = loop_clock_us() + ENDS_WAIT_US;
	for (calls_flush(d); ends_owed(d) && loop_clock_us() < until_us; calls_flush(d))
		nanosleep(&pause, NULL);
}
