/*
 * What a session keeps while nothing of it runs: a short history lies densely among others', so that it
 * does not hold pages of memory for itself; equal tools are one form.
 */
#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "runtime/daemon.h"

/* Marks, and behind them tokens: what a session that waits takes beside its pages stays below 4 KiB. Two
   marks leave room for 374 tokens. */
enum { NEAR_BYTES = 1536 };

int session_rest_open(struct daemon *d)
{
	d->near = memory_reserve(d->options.sessions * NEAR_BYTES);
	return d->near ? 0 : -ERR_MEMORY;
}

void session_rest_close(struct daemon *d)
{
	if (d->near)
		memory_release(d->near, d->options.sessions * NEAR_BYTES);
	d->near = NULL;
}

static void far_release(struct daemon *d, struct session *s)
{
	madvise(s->far_token, d->limits.context_tokens * sizeof *s->far_token, MADV_DONTNEED);
	madvise(s->far_mark, d->options.session_turns * sizeof *s->far_mark, MADV_DONTNEED);
}

void session_rest(struct daemon *d, uint32_t session)
{
	struct session *s = &d->sessions[session];
	struct turn_mark *mark = (struct turn_mark *)(void *)(d->near + (size_t)session * NEAR_BYTES);
	uint32_t *token = (uint32_t *)(void *)(mark + s->mark_count);
	if (!s->used || s->call != NONE || s->token != s->far_token ||
	    (size_t)s->history * sizeof *token + (size_t)s->mark_count * sizeof *mark > NEAR_BYTES)
		return;
	memcpy(token, s->token, s->history * sizeof *token);
	memcpy(mark, s->mark, s->mark_count * sizeof *mark);
	far_release(d, s);
	s->token = token;
	s->mark = mark;
}

void session_wake(struct session *s)
{
	if (s->token == s->far_token)
		return;
	memcpy(s->far_token, s->token, s->history * sizeof *s->token);
	memcpy(s->far_mark, s->mark, s->mark_count * sizeof *s->mark);
	s->token = s->far_token;
	s->mark = s->far_mark;
}

void session_far_release(struct daemon *d, struct session *s)
{
	far_release(d, s);
	/* What rested here may have woken since: the copy is still there. */
	sodium_memzero(d->near + (size_t)(s - d->sessions) * NEAR_BYTES, NEAR_BYTES);
}

static bool tools_same(const struct held_form *held, const struct wire_args *a)
{
	if (held->tool_count != a->tool_count)
		return false;
	for (uint32_t i = 0; i < a->tool_count; i++)
		if (held->tool_length[i] != a->tools[i].length)
			return false;
	size_t at = 0;
	for (uint32_t i = 0; i < a->tool_count; at += a->tools[i++].length)
		if (memcmp(held->tools + at, a->tools[i].at, a->tools[i].length) != 0)
			return false;
	return true;
}

struct held_form *session_form_same(const struct daemon *d, const struct wire_args *a)
{
	for (uint32_t i = 0; i < d->options.sessions; i++) {
		const struct session *s = &d->sessions[i];
		if (s->used && s->form && tools_same(s->form, a))
			return s->form;
	}
	return NULL;
}
