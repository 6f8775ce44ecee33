/*
 * Refusals of authority, and configuration, as records of the audit log.
 */
#include "runtime/authority.h"

#include <arpa/inet.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/forward.h"
#include "runtime/keep.h"
#include "runtime/outlet.h"

enum { OPTIONS_TEXT = 32768 };

/* Whether the budget has room for one more now; then it is taken. */
static bool budget_take(struct auth_budget *b, uint64_t now_us)
{
	const uint64_t every = AUTH_EVERY_MS * 1000ull;
	if (b->until_us > now_us + (AUTH_BURST - 1) * every)
		return false;
	b->until_us = (b->until_us > now_us ? b->until_us : now_us) + every;
	return true;
}

static void budget_spend(struct daemon *d, struct auth_budget *b, const struct store_record *record)
{
	struct store_record r = *record;
	r.value[0] = b->left_out;
	b->left_out = 0;
	b->held = false;
	step_record(d, &r);
}

/* Now, or as soon as there is room for it; of those that wait the newest is kept, the rest counted. */
static void auth_record(struct daemon *d, uint32_t tenant, const struct store_record *r)
{
	struct auth_budget *b = &d->authority.budget[tenant][r->reason];
	if (!d->store)
		return;
	b->left_out += b->held;
	b->held = false;
	/* Nobody chooses how often but who writes the file of tenants. */
	if (step_room(d) && (r->reason == AUTH_REVOKED || budget_take(b, d->now_us))) {
		budget_spend(d, b, r);
		return;
	}
	b->held = d->authority.any_held = true;
	b->last = *r;
}

/* What a reload changed holds from then on; that it did is recorded as soon as the log takes it. */
static void reload_put(struct daemon *d)
{
	if (!d->authority.reload_held || !step_room(d))
		return;
	d->authority.reload_held = false;
	step_record(d, &d->authority.reload);
	step_record_close(d);
	store_hurry(d->store);
}

uint64_t authority_tick(struct daemon *d)
{
	uint64_t next = UINT64_MAX;
	reload_put(d);
	if (!d->authority.any_held || !step_room(d))
		return next;
	d->authority.any_held = false;
	for (uint32_t t = 0; t <= TENANTS_MAX; t++)
		for (uint32_t i = 0; i < AUTH_REASONS; i++) {
			struct auth_budget *b = &d->authority.budget[t][i];
			if (!b->held)
				continue;
			if (budget_take(b, d->now_us)) {
				budget_spend(d, b, &b->last);
				continue;
			}
			const uint64_t at = b->until_us - (AUTH_BURST - 1) * AUTH_EVERY_MS * 1000ull;
			next = at < next ? at : next;
			d->authority.any_held = true;
		}
	return next;
}

void authority_end(struct daemon *d)
{
	reload_put(d);
	for (uint32_t t = 0; d->store && t <= TENANTS_MAX; t++)
		for (uint32_t i = 0; i < AUTH_REASONS; i++)
			if (d->authority.budget[t][i].held && step_room(d))
				budget_spend(d, &d->authority.budget[t][i], &d->authority.budget[t][i].last);
	step_record_close(d);
}

void authority_refused(struct daemon *d, uint32_t tenant, const uint8_t *key, const char *address)
{
	struct store_record r = {.kind = STORE_AUTH, .reason = key ? AUTH_KEY : AUTH_USER,
				 .place = (uint16_t)tenant, .principal = UINT32_MAX};
	unsigned uid, pid;
	struct in_addr four;
	if (key)
		crypto_generichash(r.op, sizeof r.op, key, KEY_BYTES, NULL, 0);
	if (sscanf(address, "localhost:%u:%*u:%u", &uid, &pid) == 2) {
		r.turn = uid;
		r.group = pid;
	} else if (inet_pton(AF_INET, address, &four) == 1) {
		r.session[10] = r.session[11] = 0xff; /* as IPv6 has it */
		memcpy(r.session + 12, &four, sizeof four);
	} else {
		(void)inet_pton(AF_INET6, address, r.session);
	}
	auth_record(d, tenant, &r);
}

void authority_denied(struct daemon *d, uint32_t peer, enum store_auth reason, const struct wire_id *session,
		      const struct wire_id *op)
{
	const struct peer *p = &d->peers[peer];
	const uint32_t tenant = d->door[p->door].tenant;
	struct store_record r = {.kind = STORE_AUTH, .reason = (uint8_t)reason, .place = (uint16_t)tenant,
				 .principal = p->principal};
	if (session)
		memcpy(r.session, session->bytes, sizeof r.session);
	if (op)
		memcpy(r.op, op->bytes, sizeof r.op);
	auth_record(d, tenant, &r);
}

void authority_session(struct daemon *d, uint32_t peer, const struct wire_id *session)
{
	for (uint32_t i = 0; i < d->options.sessions; i++) {
		const struct session *s = &d->sessions[i];
		if (s->used && s->principal != d->peers[peer].principal &&
		    memcmp(&s->id, session, sizeof *session) == 0)
			authority_denied(d, peer, AUTH_SESSION, session, NULL);
	}
}

void authority_call(struct daemon *d, uint32_t peer, const struct wire_id *op)
{
	for (uint32_t i = 0; i < d->calls_top; i++) {
		const struct call *c = &d->calls[i];
		if (c->state != CALL_FREE && c->principal != d->peers[peer].principal &&
		    memcmp(&c->op, op, sizeof *op) == 0)
			authority_denied(d, peer, AUTH_CALL, &c->owner, op);
	}
}

/* Configuration. */

static struct store_record config_of(enum store_config reason, const uint8_t *hash, size_t bytes,
				     struct store_record r)
{
	r.kind = STORE_CONFIG;
	r.reason = (uint8_t)reason;
	/* A hash of 32 bytes takes both names. */
	memcpy(r.op, hash, bytes < sizeof r.op ? bytes : sizeof r.op);
	if (bytes > sizeof r.op)
		memcpy(r.session, hash + sizeof r.op, sizeof r.session);
	return r;
}

static void config_record(struct daemon *d, enum store_config reason, const uint8_t *hash, size_t bytes,
			  struct store_record more)
{
	const struct store_record r = config_of(reason, hash, bytes, more);
	step_record(d, &r);
}

void authority_changed(struct daemon *d, enum store_config reason, const uint8_t was[16])
{
	config_record(d, reason, was, 16, (struct store_record){0});
}

/* A number for each grant and tenant, so that two lists are compared by sorting them. */
struct listed {
	uint32_t count;
	uint64_t grant[GRANTS_MAX], tenant[TENANTS_MAX + 1];
	uint8_t digest[16];
};

static int by_value(const void *a, const void *b)
{
	const uint64_t *x = a, *y = b;
	return (*x > *y) - (*x < *y);
}

static uint64_t short_hash(const void *bytes, size_t count)
{
	uint64_t out[2];
	crypto_generichash((uint8_t *)out, sizeof out, bytes, count, NULL, 0);
	return out[0];
}

static void tenants_list(const struct tenants *t, struct listed *out)
{
	crypto_generichash_state all;
	char line[512];
	out->count = t->grant_count;
	crypto_generichash_init(&all, NULL, 0, sizeof out->digest);
	for (uint32_t i = 0; i < t->grant_count; i++) {
		const struct grant *g = &t->grant[i];
		const int n = snprintf(line, sizeof line, "%s %s %u %s %u %lld", t->tenant[g->tenant].name, g->key,
				       g->uid, g->name, g->roles, (long long)g->until);
		out->grant[i] = short_hash(line, (size_t)n);
	}
	qsort(out->grant, out->count, sizeof out->grant[0], by_value);
	crypto_generichash_update(&all, (const uint8_t *)out->grant, out->count * sizeof out->grant[0]);
	for (uint32_t i = 0; i < t->count; i++) {
		const struct tenant *one = &t->tenant[i];
		const uint64_t limits[5] = {one->rate, one->bytes, one->calls, one->sessions, one->connections};
		out->tenant[i] = short_hash(limits, sizeof limits);
		crypto_generichash_update(&all, (const uint8_t *)one->name, sizeof one->name);
	}
	crypto_generichash_update(&all, (const uint8_t *)out->tenant, t->count * sizeof out->tenant[0]);
	crypto_generichash_final(&all, out->digest, sizeof out->digest);
}

/* Of two sorted lists: what only the one has, and what only the other. */
static void lists_compare(const struct listed *before, const struct listed *after, uint32_t *gone,
			  uint32_t *come)
{
	uint32_t a = 0, b = 0;
	*gone = *come = 0;
	while (a < before->count || b < after->count) {
		const bool left = a < before->count, right = b < after->count;
		if (left && right && before->grant[a] == after->grant[b]) {
			a++;
			b++;
		} else if (!right || (left && before->grant[a] < after->grant[b])) {
			a++;
			++*gone;
		} else {
			b++;
			++*come;
		}
	}
}

void authority_start(struct daemon *d)
{
	static char text[OPTIONS_TEXT];
	static struct listed list;
	uint8_t hash[16];
	if (!d->store)
		return;
	const size_t n = options_text(&d->options, text, sizeof text);
	crypto_generichash(hash, sizeof hash, (const uint8_t *)text, n, NULL, 0);
	config_record(d, CONFIG_OPTIONS, hash, sizeof hash, (struct store_record){0});
	config_record(d, CONFIG_MODEL, d->model->hash, sizeof d->model->hash, (struct store_record){0});
	forward_plan_hash(d->forward, hash);
	config_record(d, CONFIG_PLAN, hash, sizeof hash, (struct store_record){0});
	tenants_list(&d->tenants, &list);
	config_record(d, CONFIG_TENANTS, list.digest, sizeof list.digest,
		      (struct store_record){.value = {d->tenants.count, d->tenants.grant_count}});
	/* By their names, since refusals name them by their numbers. */
	for (uint32_t i = 0; i < d->tenants.count; i++) {
		uint32_t grants = 0;
		for (uint32_t g = 0; g < d->tenants.grant_count; g++)
			grants += d->tenants.grant[g].tenant == i;
		config_record(d, CONFIG_TENANT, (const uint8_t *)d->tenants.tenant[i].name, TENANT_NAME_MAX,
			      (struct store_record){.place = (uint16_t)i, .value = {0, grants}});
	}
	step_record_close(d);
	store_hurry(d->store);
}

void authority_reload(struct daemon *d)
{
	static struct listed before, after;
	struct store_record r = {0};
	if (!d->options.tenants[0])
		return;
	tenants_list(&d->tenants, &before);
	const bool read = tenants_read(d->options.tenants, &d->tenants_fresh) == 0;
	const bool more = read && tenants_reload(&d->tenants, &d->tenants_fresh);
	tenants_list(&d->tenants, &after);
	lists_compare(&before, &after, &r.group, &r.turn);
	for (uint32_t i = 0; i < d->tenants.count; i++)
		r.position_first += before.tenant[i] != after.tenant[i];
	r.place = more;
	r.value[0] = d->tenants.count;
	r.value[1] = d->tenants.grant_count;
	if (d->authority.reload_held) {
		r.turn += d->authority.reload.turn;
		r.group += d->authority.reload.group;
		r.position_first += d->authority.reload.position_first;
		r.place = r.place || d->authority.reload.place;
	}
	d->authority.reload = config_of(read ? CONFIG_RELOAD : CONFIG_RELOAD_REFUSED, after.digest,
					sizeof after.digest, r);
	d->authority.reload_held = d->store != NULL;
	reload_put(d);
	if (!read) {
		log_say(LOG_ERROR, "the tenants are as they were");
		return;
	}
	/* Who listens to events sends nothing at which he could be refused. */
	outlets_again(d);
	log_say(LOG_NOTICE, "tenants read again: %u grants%s", d->tenants.grant_count,
		more ? "; new tenants, and other endpoints, need a restart" : "");
}
