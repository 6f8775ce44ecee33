/*
 * A call's reader, lost and found again: detach times, RESUME, ACK, and ended calls that are kept
 * for a while because their END may not have arrived.
 *
 * A turn's text and tokens lie in its slot, and so does where each DATA ended: what is sent again is
 * cut as it was, with the same numbers.
 */
#include <string.h>

#include "runtime/keep.h"

bool call_kept(const struct call *c)
{
	return c->state == CALL_ENDED && c->end_sent;
}

/* How long an ended call is kept for those who may not have heard its END. */
static uint64_t keep_us(const struct daemon *d, const struct call *c)
{
	const uint64_t keyed = c->keyed ? d->options.keep_ms * 1000 : 0;
	return c->detach_us > keyed ? c->detach_us : keyed;
}

void call_detached(struct daemon *d, uint32_t call)
{
	struct call *c = &d->calls[call];
	CHECK(c->peer == NONE);
	if (c->state == CALL_ENDED && c->end_length) {
		call_settled(d, call);
	} else if (c->detach_us) {
		c->forget_us = d->now_us + c->detach_us;
	} else if (c->state == CALL_RUNNING) {
		call_cancel(d, call, END_CANCEL);
	} else {
		c->state = CALL_ENDED; /* a deferred turn has not begun */
		call_idem_forget(d, call);
		call_free(d, call);
	}
}

void call_settled(struct daemon *d, uint32_t call)
{
	struct call *c = &d->calls[call];
	const uint64_t keep = keep_us(d, c);
	CHECK(c->state == CALL_ENDED);
	if (!keep) {
		call_free(d, call);
		return;
	}
	if (c->peer != NONE) {
		CHECK(d->peers[c->peer].calls > 0);
		d->peers[c->peer].calls--;
		c->peer = NONE;
	}
	c->end_sent = true;
	if (c->forget_us < d->now_us + keep)
		c->forget_us = d->now_us + keep;
}

uint32_t call_reclaim(struct daemon *d, uint32_t principal, bool only_own)
{
	uint32_t oldest = NONE;
	for (uint32_t i = 0; i < d->calls_top; i++) {
		const struct call *c = &d->calls[i];
		if (call_kept(c) && (!only_own || c->principal == principal) &&
		    (oldest == NONE || c->forget_us < d->calls[oldest].forget_us))
			oldest = i;
	}
	if (oldest != NONE)
		call_free(d, oldest);
	return oldest;
}

int call_attach(struct daemon *d, uint32_t call, uint32_t peer, uint64_t channel, uint64_t after_seq,
		uint64_t window)
{
	struct call *c = &d->calls[call];
	/* What was cut after a power cut is cut otherwise than what a reader may have of before it; and a number
	   does not say of which cuts it is, also when its reader has begun anew since. */
	if (c->anew && after_seq > 0)
		return -ERR_GONE;
	if (after_seq > c->seq_made)
		return c->restarted ? -ERR_GONE : -ERR_OUT_OF_RANGE;
	const uint32_t before = c->peer;
	const uint64_t channel_before = c->channel;
	c->peer = peer;
	c->channel = channel;
	d->peers[peer].calls++;
	c->dup = true;
	d->stats.resumes++;
	c->accepted_sent = c->end_sent = false;
	c->dropped = c->state == CALL_RUNNING && c->dropped;
	c->forget_us = 0;
	c->seq = after_seq;
	c->sent_tokens = after_seq ? c->sent[after_seq - 1].tokens : 0;
	c->sent_bytes = after_seq ? c->sent[after_seq - 1].bytes : 0;
	const uint64_t most = c->sent_bytes + d->options.window_max;
	c->window = window < most ? window : most;
	c->progress_us = d->now_us;
	if (before == NONE)
		return 0;
	/* Who read it until now hears that another does. Last, since he may be the same one, and found gone. */
	CHECK(d->peers[before].calls > 0);
	d->peers[before].calls--;
	peer_reject(d, before, channel_before, ERR_FENCED);
	return 0;
}

uint64_t call_detached_tick(struct daemon *d, uint32_t call)
{
	struct call *c = &d->calls[call];
	if (!c->forget_us)
		return UINT64_MAX; /* cancelled: its END comes */
	if (d->now_us < c->forget_us)
		return c->forget_us;
	if (c->state == CALL_RUNNING) {
		c->forget_us = 0;
		c->detach_us = 0;
		call_cancel(d, call, END_CANCEL);
	} else {
		if (c->state == CALL_DEFERRED)
			call_idem_forget(d, call);
		c->state = CALL_ENDED;
		keep_call_drop(d, call);
		call_free(d, call);
	}
	return UINT64_MAX;
}

void attach_resume(struct daemon *d, uint32_t peer, const struct wire_header *h, const void *body,
		   size_t length)
{
	struct wire_resume m;
	struct peer *p = &d->peers[peer];
	const char *why = NULL;
	int code = wire_read_resume(body, length, &d->wire, &m);
	/* Whatever has become of the call that had it: nothing would tell apart its messages and the new. */
	if (code == 0 && (h->channel == 0 || h->channel <= p->channel_last)) {
		code = -ERR_BAD_FRAMES;
		why = CHANNEL_AGAIN;
	}
	uint32_t call = code ? NONE : call_of_op(d, p->principal, &m.op);
	if (code == 0 && call == NONE)
		call = keep_call_revive(d, p->principal, &m.op);
	if (code == 0)
		code = call == NONE ? -ERR_GONE
		       : call_attach(d, call, peer, h->channel, m.after_seq, m.window);
	if (code == -ERR_GONE && call == NONE)
		authority_call(d, peer, &m.op);
	if (code) {
		peer_reject_why(d, peer, h->channel, code, why);
		return;
	}
	p->channel_last = h->channel;
}

void attach_ack(struct daemon *d, uint32_t peer, const struct wire_header *h, const void *body,
		size_t length)
{
	struct wire_ack m;
	const int code = wire_read_ack(body, length, &d->wire, &m);
	const uint32_t call = code ? NONE : call_of_op(d, d->peers[peer].principal, &m.op);
	if (code)
		peer_reject(d, peer, h->channel, code);
	/* END has arrived: nothing has to be kept. One that nobody keeps any more is no error. */
	else if (call != NONE && call_kept(&d->calls[call]) && m.seq > d->calls[call].seq) {
		keep_call_drop(d, call);
		call_free(d, call);
	}
}
