/*
 * The form that a turn asks for itself: JSON of a schema, a regular expression, one of a list. Its source
 * is kept with the call, so that a turn that runs again after a restart has the same form.
 */
#include <stdlib.h>
#include <string.h>

#include "runtime/daemon.h"

enum { STRING_MAX = 65536 }; /* characters of a string whose schema names no bound */

static int form_of_source(struct daemon *d, struct call *c, const char **reason)
{
	static struct text choice[WIRE_CHOICES_MAX];
	const struct text whole = {c->own_source, c->own_bytes};
	uint32_t count = 0;
	if (!d->form_index) {
		*reason = "this vocabulary can write no form";
		return -ERR_UNSUPPORTED;
	}
	if (c->own_kind == OWN_SCHEMA)
		return form_open_schema(d->form_index, whole, STRING_MAX, &c->own, reason);
	if (c->own_kind == OWN_REGEX)
		return form_open_regex(d->form_index, whole, &c->own, reason);
	for (size_t at = 0; at < c->own_bytes; count++) {
		uint32_t length;
		if (count == WIRE_CHOICES_MAX || c->own_bytes - at < sizeof length)
			return -ERR_INTEGRITY;
		memcpy(&length, c->own_source + at, sizeof length);
		at += sizeof length;
		if (length > c->own_bytes - at)
			return -ERR_INTEGRITY;
		choice[count] = (struct text){c->own_source + at, length};
		at += length;
	}
	return form_open_choices(d->form_index, choice, count, &c->own, reason);
}

int turn_form_restore(struct daemon *d, struct call *c, uint8_t kind, const void *source, size_t bytes)
{
	const char *reason = NULL;
	if (kind == OWN_NONE)
		return 0;
	if (kind > OWN_CHOICES)
		return -ERR_INTEGRITY;
	c->own_source = malloc(bytes + 1);
	if (!c->own_source)
		return -ERR_MEMORY;
	if (bytes)
		memcpy(c->own_source, source, bytes);
	c->own_bytes = (uint32_t)bytes;
	c->own_kind = kind;
	return form_of_source(d, c, &reason);
}

static size_t choices_bytes(const struct wire_args *a)
{
	size_t bytes = 0;
	for (uint32_t i = 0; i < a->choice_count; i++)
		bytes += sizeof(uint32_t) + a->choices[i].length;
	return bytes;
}

int turn_form_take(struct daemon *d, struct call *c, const struct wire_args *a, const char **reason)
{
	const struct wire_str *one = a->schema.at ? &a->schema : &a->regex;
	size_t at = 0;
	*reason = NULL;
	if (!a->schema.at && !a->regex.at && a->choice_count == 0)
		return 0;
	if (a->choice_count == 0) {
		c->own_source = malloc(one->length + 1);
		if (!c->own_source)
			return -ERR_MEMORY;
		memcpy(c->own_source, one->at, one->length);
		c->own_bytes = (uint32_t)one->length;
		c->own_kind = a->schema.at ? OWN_SCHEMA : OWN_REGEX;
		return form_of_source(d, c, reason);
	}
	c->own_source = malloc(choices_bytes(a));
	if (!c->own_source)
		return -ERR_MEMORY;
	for (uint32_t i = 0; i < a->choice_count; i++) {
		const uint32_t length = (uint32_t)a->choices[i].length;
		memcpy(c->own_source + at, &length, sizeof length);
		memcpy(c->own_source + at + sizeof length, a->choices[i].at, length);
		at += sizeof length + length;
	}
	c->own_bytes = (uint32_t)at;
	c->own_kind = OWN_CHOICES;
	return form_of_source(d, c, reason);
}

void turn_form_drop(struct call *c)
{
	form_close(&c->own);
	free(c->own_source);
	c->own_source = NULL;
	c->own_bytes = 0;
	c->own_kind = OWN_NONE;
}

void turn_form_start(struct daemon *d, struct call *c)
{
	form_start(turn_form(d, c), &c->form);
	c->coming_at = c->coming_count = c->forced_tokens = 0;
}

/* What was told to come stays so to the last, whether it is sampled under a mask or not: so both give
   the same tokens. */
bool turn_form_next(struct daemon *d, struct call *c, uint32_t *token)
{
	const uint32_t end = c->sampling.ignore_end ? UINT32_MAX : d->end_mark;
	if (c->coming_at == c->coming_count) {
		c->coming_at = 0;
		c->coming_count = form_forced(turn_form(d, c), &c->form, end, c->coming);
	}
	if (c->coming_at == c->coming_count)
		return false;
	*token = c->coming[c->coming_at];
	return true;
}

void turn_form_mask(struct daemon *d, struct call *c, uint32_t *bits)
{
	uint32_t token;
	if (turn_form_next(d, c, &token))
		bits[token / 32] |= 1u << token % 32;
	else
		form_mask(turn_form(d, c), &c->form, bits);
}

void turn_form_token(struct daemon *d, struct call *c, uint32_t token, const char *bytes, size_t length)
{
	if (c->coming_at < c->coming_count)
		CHECK(token == c->coming[c->coming_at++]);
	CHECK(form_advance(turn_form(d, c), &c->form, bytes, length));
}

struct form *turn_form(const struct daemon *d, const struct call *c)
{
	return c->own ? c->own : d->sessions[c->session].form->form;
}
