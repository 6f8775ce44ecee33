/*
 * session.forget: text, tokens and pages of a session go, everywhere. The loop's.
 */
#ifndef HOLDFAST_RUNTIME_FORGET_H
#define HOLDFAST_RUNTIME_FORGET_H

#include "runtime/daemon.h"

/* In page_principal, beside principals: NONE, which holds nothing of anybody, and */
enum {
	PRINCIPAL_MIXED = 0xfffffffeu, /* who knows whose */
	PAGE_FORGOTTEN = 0xfffffffdu,  /* of a forgotten session, not zeroed yet */
	PAGE_LEAVING = 0xfffffffcu     /* the same, when the copy that is under way has had it */
};
enum { FORGET_STEP_BYTES = 16 << 20 }; /* zeroed at once; what runs waits no longer */
/* Whose bytes are on a page of the device from now on. */
void forget_page_given(struct daemon *d, uint32_t group, uint32_t page, uint32_t principal);
/* A copy is over. */
void forget_page_copied(struct daemon *d, const struct engine_copy *c, int err);
/* After a session was forgotten: what nobody holds any more, and still has somebody's bytes. Returns when
   to be called next. */
uint64_t forget_tick(struct daemon *d);
/* The session's text, tokens and pages go, everywhere; it ends. */
void session_forget(struct daemon *d, uint32_t session);
/* The part of it on the disk, and of answers: nothing of the session is kept from now on. */
void session_unkeep(struct daemon *d, uint32_t session);
/* Text and tokens in a call's slot. */
void forget_slot(const struct daemon *d, struct call *c);
/* A run of pages of a session that is forgotten came back: zeroed before anything else is done. */
void forget_pages(struct daemon *d, const struct effect *e);
/* Sends what is to be zeroed to the engine, if no batch takes it along. */
void forget_submit(struct daemon *d);

#endif
