/*
 * A CALL is dispatched by a table; and the methods that only look: sessions, ledger, pages, model,
 * tokens, health. Their results' keys are in clients/README.md.
 */
#include <sodium.h>
#include <string.h>

#include "config.h"
#include "runtime/events.h"
#include "runtime/keep.h"

enum { LIST_COUNT_DEFAULT = 100 };

static void result_end(struct daemon *d, uint32_t call, const struct wire_writer *w)
{
	struct wire_end end = {.status = {"ok", 2}, .turn = WIRE_NONE, .epoch = WIRE_NONE};
	if (w->full) {
		call_fail(d, call, ERR_TOO_BIG);
		return;
	}
	end.result = (struct wire_value){w->at, w->length};
	const uint32_t session = d->calls[call].session;
	if (session != NONE)
		session_end_fields(&d->sessions[session], &end);
	call_end(d, call, &end);
}

static void put_u64(struct wire_writer *w, const char *key, uint64_t value)
{
	wire_put_text(w, key);
	wire_put_u64(w, value);
}

static void put_text(struct wire_writer *w, const char *key, const char *value)
{
	wire_put_text(w, key);
	wire_put_text(w, value);
}

static void put_principal(struct daemon *d, struct wire_writer *w, uint32_t principal)
{
	const struct principal_view v = sched_principal(d->sched, principal);
	uint64_t sessions = 0, turns = 0;
	for (uint32_t i = 0; i < d->options.sessions; i++) {
		const struct session *s = &d->sessions[i];
		sessions += s->used && s->principal == principal;
		turns += s->used && s->principal == principal && s->call != NONE;
	}
	/* What is public is the operator's own and has no quotas. */
	const bool own = !public_is(d, principal);
	const uint64_t sessions_most = own ? d->options.sessions_principal : 0;
	const uint64_t running_most = own ? d->options.turns_principal : 0;
	wire_put_map(w, 7u + (v.quota_bytes != 0) + (sessions_most != 0) + (running_most != 0));
	put_text(w, "principal", d->principals[principal].name);
	put_u64(w, "sessions", sessions);
	put_u64(w, "turns", turns);
	put_u64(w, "running", v.running);
	put_u64(w, "bytes", v.bytes);
	put_u64(w, "granted", v.granted_bytes);
	put_u64(w, "charged", v.charged_bytes);
	if (v.quota_bytes)
		put_u64(w, "limit", v.quota_bytes);
	if (sessions_most)
		put_u64(w, "sessions_limit", sessions_most);
	if (running_most)
		put_u64(w, "running_limit", running_most);
}

static const char *wait_name(uint32_t why)
{
	static const char *const names[] = {"pages", "turns", "rows", "prefix", "durable", "copy"};
	return why < sizeof names / sizeof names[0] ? names[why] : "other";
}

static const char *state_name(const struct session *s, const struct session_view *v)
{
	return v->state == SESSION_RUNNING ? "running" : v->state == SESSION_WAITING ? "queued"
	       : s->waits_since_us ? "tool_wait" : "idle";
}

static void put_session(struct daemon *d, struct wire_writer *w, const struct session *s)
{
	static const char *const residency[] = {"best_effort", "leased", "pinned"};
	struct session_view v;
	struct turn_view t = {0};
	CHECK(sched_session(d->sched, s->sched, &v) == 0);
	const bool waits = v.state == SESSION_WAITING && sched_turn(d->sched, v.turn, &t) == 0;
	const char *state = state_name(s, &v);
	const bool tied = s->parent && !session_orphan(s);
	const uint64_t back_us = sched_return_us(d->sched, s->sched, d->now_us);
	wire_put_map(w, 12 + waits + tied + (back_us != UINT64_MAX));
	wire_put_text(w, "sess");
	wire_put_bin(w, s->id.bytes, sizeof s->id.bytes);
	put_text(w, "state", state);
	put_text(w, "principal", d->principals[s->principal].name);
	put_u64(w, "turn", s->turn);
	put_u64(w, "epoch", s->epoch);
	put_u64(w, "history", s->history);
	put_u64(w, "resident", v.resident);
	put_u64(w, "bytes", v.device_bytes);
	put_u64(w, "lower", v.lower_bytes); /* on host and disk */
	put_text(w, "residency", residency[v.residency < 3 ? v.residency : 0]);
	put_u64(w, "idle_ms", v.state == SESSION_IDLE && d->now_us > v.idle_since_us
				      ? (d->now_us - v.idle_since_us) / 1000 : 0);
	put_text(w, "label", s->label);
	if (back_us != UINT64_MAX)
		put_u64(w, "returns_in_ms", back_us > d->now_us ? (back_us - d->now_us) / 1000 : 0);
	if (tied) {
		wire_put_text(w, "parent");
		wire_put_bin(w, d->sessions[s->parent - 1].id.bytes, 16);
	}
	if (!waits)
		return;
	wire_put_text(w, "waiting");
	wire_put_map(w, t.blocker != SCHED_NONE ? 5 : 4);
	put_text(w, "why", wait_name(t.wait_why));
	put_u64(w, "place", t.place);
	put_u64(w, "short_by", t.short_bytes);
	put_u64(w, "eta_ms", t.eta_us > d->now_us ? (t.eta_us - d->now_us) / 1000 : 0);
	struct session_view b;
	if (t.blocker == SCHED_NONE)
		return;
	wire_put_text(w, "blocker");
	/* Whose the blocker is, is not told across principals. */
	if (sched_session(d->sched, t.blocker, &b) == 0 && b.principal == s->principal)
		wire_put_bin(w, d->sessions[b.key].id.bytes, 16);
	else
		wire_put_nil(w);
}

/* One session's account. What is shared counts for each who shares it. */
static void put_account(struct daemon *d, struct wire_writer *w, const struct session *s)
{
	struct session_view v;
	struct turn_view t = {0};
	CHECK(sched_session(d->sched, s->sched, &v) == 0);
	if (v.state == SESSION_RUNNING)
		CHECK(sched_turn(d->sched, v.turn, &t) == 0);
	wire_put_map(w, 9);
	wire_put_text(w, "sess");
	wire_put_bin(w, s->id.bytes, sizeof s->id.bytes);
	put_text(w, "principal", d->principals[s->principal].name);
	put_text(w, "state", state_name(s, &v));
	put_u64(w, "bytes", v.device_bytes);
	put_u64(w, "lower", v.lower_bytes);
	put_u64(w, "granted", v.granted_bytes);
	put_u64(w, "charged", v.charged_bytes);
	put_u64(w, "promised", t.promised_bytes);
	put_text(w, "label", s->label);
}

/* Of `all`, how many are listed, and how many are behind those. */
static uint32_t listed(const struct wire_call *m, uint64_t all, uint64_t *first, uint64_t *rest)
{
	const uint64_t most = m->a.count == WIRE_NONE ? LIST_COUNT_DEFAULT : m->a.count;
	*first = m->a.first == WIRE_NONE ? 0 : m->a.first;
	const uint64_t from = *first < all ? all - *first : 0, count = from < most ? from : most;
	*rest = from - count;
	return (uint32_t)count;
}

/* The sessions that the call may see, from the `first` on, each put by `put`. How many are behind them. */
static uint64_t put_sessions(struct daemon *d, uint32_t call, const struct wire_call *m,
			     struct wire_writer *w,
			     void (*put)(struct daemon *, struct wire_writer *, const struct session *))
{
	uint64_t all = 0, seen = 0, first, rest;
	for (uint32_t i = 0; i < d->options.sessions; i++)
		all += d->sessions[i].used && call_sees(d, call, d->sessions[i].principal);
	uint32_t count = listed(m, all, &first, &rest);
	wire_put_array(w, count);
	for (uint32_t i = 0; i < d->options.sessions && count; i++) {
		if (!d->sessions[i].used || !call_sees(d, call, d->sessions[i].principal) || seen++ < first)
			continue;
		put(d, w, &d->sessions[i]);
		count--;
	}
	return rest;
}

/* The same of principals: one sees its own line, an operator those of its tenant. */
static uint64_t put_principals(struct daemon *d, uint32_t call, const struct wire_call *m,
			       struct wire_writer *w)
{
	uint64_t all = 0, seen = 0, first, rest;
	for (uint32_t i = 0; i < principals_all(d); i++)
		all += d->principals[i].name[0] && call_sees(d, call, i);
	uint32_t count = listed(m, all, &first, &rest);
	wire_put_array(w, count);
	for (uint32_t i = 0; i < principals_all(d) && count; i++) {
		if (!d->principals[i].name[0] || !call_sees(d, call, i) || seen++ < first)
			continue;
		put_principal(d, w, i);
		count--;
	}
	return rest;
}

static void session_list(struct daemon *d, uint32_t call, const struct wire_call *m)
{
	struct wire_writer w;
	wire_writer_init(&w, d->out, d->out_max);
	(void)put_sessions(d, call, m, &w, put_session);
	result_end(d, call, &w);
}

static void session_show(struct daemon *d, uint32_t call, const struct wire_call *m)
{
	struct wire_writer w;
	(void)m;
	wire_writer_init(&w, d->out, d->out_max);
	put_session(d, &w, &d->sessions[d->calls[call].session]);
	result_end(d, call, &w);
}

/* What a deployment has: what the weights take, what the KV pages take and how much of that is free, and
   what one more turn could have. */
static void put_deployment(struct daemon *d, struct wire_writer *w)
{
	uint64_t kv = 0;
	uint32_t turns;
	const uint64_t room = sched_headroom(d->sched, &turns);
	for (uint32_t c = 0; c < COLUMN_COUNT; c++)
		kv += sched_ledger(d->sched, ACCOUNT_DEVICE, (enum column)c);
	wire_put_text(w, "deployment");
	wire_put_map(w, 3);
	wire_put_text(w, "weights");
	wire_put_map(w, 1);
	put_u64(w, "bytes", sched_ledger(d->sched, ACCOUNT_WEIGHTS, COLUMN_RUNNING));
	wire_put_text(w, "kv");
	wire_put_map(w, 2);
	put_u64(w, "bytes", kv);
	put_u64(w, "free", sched_ledger(d->sched, ACCOUNT_DEVICE, COLUMN_FREE));
	wire_put_text(w, "headroom");
	wire_put_map(w, 2);
	put_u64(w, "bytes", room);
	put_u64(w, "turns", turns);
}

static void ledger_show(struct daemon *d, uint32_t call, const struct wire_call *m)
{
	static const char *const accounts[ACCOUNT_COUNT] = {"weights", "workspace", "device", "host", "disk",
							    "stream"};
	static const char *const columns[COLUMN_COUNT] = {"free", "running", "promised", "retained", "shared",
							  "moving", "doomed"};
	struct wire_writer w;
	wire_writer_init(&w, d->out, d->out_max);
	wire_put_map(&w, 5);
	put_deployment(d, &w);
	wire_put_text(&w, "accounts");
	wire_put_map(&w, ACCOUNT_COUNT);
	for (uint32_t a = 0; a < ACCOUNT_COUNT; a++) {
		wire_put_text(&w, accounts[a]);
		wire_put_map(&w, COLUMN_COUNT);
		for (uint32_t c = 0; c < COLUMN_COUNT; c++)
			put_u64(&w, columns[c], sched_ledger(d->sched, (enum account)a, (enum column)c));
	}
	wire_put_text(&w, "principals");
	const uint64_t principals = put_principals(d, call, m, &w);
	wire_put_text(&w, "sessions");
	const uint64_t sessions = put_sessions(d, call, m, &w, put_account);
	wire_put_text(&w, "more");
	wire_put_map(&w, 2);
	put_u64(&w, "principals", principals);
	put_u64(&w, "sessions", sessions);
	result_end(d, call, &w);
}

static void pages_show(struct daemon *d, uint32_t call, const struct wire_call *m)
{
	static const char *const states[] = {"free", "owned", "shared", "moving", "doomed", "quarantined"};
	const uint64_t group = m->a.group == WIRE_NONE ? 0 : m->a.group;
	const uint32_t pages = group < d->limits.group_count ? d->limits.group[group].page_count[PLACE_DEVICE]
							     : 0;
	const uint32_t me = d->calls[call].principal;
	const uint64_t first = m->a.first == WIRE_NONE ? 0 : m->a.first;
	const uint64_t most = m->a.count == WIRE_NONE ? LIST_COUNT_DEFAULT : m->a.count;
	uint32_t count = first >= pages ? 0 : (uint32_t)(pages - first < most ? pages - first : most);
	struct wire_writer w;
	wire_writer_init(&w, d->out, d->out_max);
	wire_put_array(&w, count);
	for (uint32_t i = 0; i < count; i++) {
		struct page_view v;
		struct session_view sv;
		const uint32_t page = (uint32_t)first + i;
		CHECK(sched_page(d->sched, (uint32_t)group, page, &v) == 0);
		const bool mine = v.session != SCHED_NONE && v.principal == me &&
				  sched_session(d->sched, v.session, &sv) == 0;
		wire_put_map(&w, mine ? 7 : 6);
		put_u64(&w, "page", page);
		put_u64(&w, "group", group);
		put_text(&w, "state", v.state < 6 ? states[v.state] : "other");
		put_u64(&w, "tag", v.tag);
		put_u64(&w, "owners", v.owners);
		put_u64(&w, "position", v.position);
		if (!mine)
			continue;
		wire_put_text(&w, "sess");
		wire_put_bin(&w, d->sessions[sv.key].id.bytes, 16);
	}
	result_end(d, call, &w);
}

static void model_show(struct daemon *d, uint32_t call, const struct wire_call *m)
{
	static const char *const kvs[] = {"fp8", "int8", "bf16", "f32"};
	static const char *const acts[] = {"auto", "f32", "bf16", "i8", "i8-row"};
	const struct arch *a = &d->model->arch;
	const struct ops *ops = forward_ops(d->forward);
	struct device *device = forward_device(d->forward);
	struct wire_writer w;
	(void)m;
	wire_writer_init(&w, d->out, d->out_max);
	wire_put_map(&w, 16);
	put_text(&w, "name", d->model->title);
	put_text(&w, "architecture", a->name);
	put_u64(&w, "layers", a->layers);
	put_u64(&w, "width", a->width);
	put_u64(&w, "heads", a->heads);
	put_u64(&w, "kv_heads", a->kv_heads);
	put_u64(&w, "head", a->head);
	put_u64(&w, "vocab", a->vocab);
	put_u64(&w, "context", d->limits.context_tokens);
	put_u64(&w, "parameters", d->model->parameters);
	put_u64(&w, "bytes", d->model->file_bytes);
	put_text(&w, "kv", kvs[d->options.kv]);
	put_text(&w, "act", acts[ops->device_act(device)]);
	put_text(&w, "isa", ops->device_isa(device));
	put_u64(&w, "page_tokens", d->limits.page_tokens);
	put_u64(&w, "page_bytes", d->limits.group[0].page_bytes);
	result_end(d, call, &w);
}

static void health(struct daemon *d, uint32_t call, const struct wire_call *m)
{
	uint64_t running = 0, waiting = 0, sessions = 0;
	struct wire_writer w;
	(void)m;
	for (uint32_t i = 0; i < d->calls_top; i++)
		if (d->calls[i].state == CALL_RUNNING)
			*(d->calls[i].waiting ? &waiting : &running) += 1;
	for (uint32_t i = 0; i < d->options.sessions; i++)
		sessions += d->sessions[i].used;
	wire_writer_init(&w, d->out, d->out_max);
	wire_put_map(&w, 9);
	put_text(&w, "state", d->draining ? "draining" : "serving");
	put_u64(&w, "uptime_ms", (d->now_us - d->started_us) / 1000);
	put_u64(&w, "loop_turns", d->loop_turns);
	put_u64(&w, "turns_running", running);
	put_u64(&w, "turns_waiting", waiting);
	put_u64(&w, "sessions", sessions);
	put_u64(&w, "tokens_sampled", d->tokens_sampled);
	put_text(&w, "version", PACKAGE_VERSION);
	wire_put_text(&w, "boot");
	wire_put_bin(&w, d->boot, sizeof d->boot);
	result_end(d, call, &w);
}

/* What tokenize and detokenize are given: in the third frame, or as text. */
static struct text source(const struct wire_call *m, const uint8_t *blob, size_t blob_length)
{
	if (m->a.text.at)
		return (struct text){m->a.text.at, m->a.text.length};
	return (struct text){(const char *)blob, blob ? blob_length : 0};
}

static void tokenize(struct daemon *d, uint32_t call, const struct wire_call *m, const uint8_t *blob,
		     size_t blob_length)
{
	struct call *c = &d->calls[call];
	const struct text text = source(m, blob, blob_length);
	uint32_t *ids = (uint32_t *)(void *)c->text;
	size_t count = 0;
	struct wire_writer w;
	const int code = text.at ? tokenizer_encode(d->tokenizer, text.at, text.length, m->a.special, ids,
						    d->text_max / sizeof *ids, &count) : 0;
	if (code) {
		call_fail(d, call, code);
		return;
	}
	c->blob_length = count * sizeof *ids;
	wire_writer_init(&w, d->out, d->out_max);
	wire_put_map(&w, 1);
	put_u64(&w, "count", count);
	result_end(d, call, &w);
}

static void detokenize(struct daemon *d, uint32_t call, const struct wire_call *m, const uint8_t *blob,
		       size_t blob_length)
{
	const struct text from = source(m, blob, blob_length);
	char *text = d->calls[call].text;
	size_t length = 0;
	struct wire_writer w;
	if (from.length % 4 != 0) {
		call_fail(d, call, ERR_BAD_ARG);
		return;
	}
	for (size_t i = 0; i < from.length; i += 4) {
		const uint8_t *p = (const uint8_t *)from.at + i;
		const uint32_t id = (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 |
							(uint32_t)p[3] << 24;
		const char *bytes;
		if (id >= tokenizer_count(d->tokenizer)) {
			call_fail(d, call, ERR_OUT_OF_RANGE);
			return;
		}
		const size_t n = tokenizer_bytes(d->tokenizer, id, true, &bytes);
		if (length + n > d->text_max) {
			call_fail(d, call, ERR_TOO_BIG);
			return;
		}
		memcpy(text + length, bytes, n);
		length += n;
	}
	d->calls[call].text_used = length;
	wire_writer_init(&w, d->out, d->out_max);
	wire_put_map(&w, 1);
	wire_put_text(&w, "text");
	wire_put_bin(&w, text, length);
	result_end(d, call, &w);
}

struct method {
	void (*look)(struct daemon *, uint32_t, const struct wire_call *);
	bool session, writes; /* needs one; changes it, so that an older epoch is fenced */
};

static const struct method methods[METHOD_COUNT] = {
	[METHOD_SESSION_OPEN] = {session_method_open, false, true},
	[METHOD_SESSION_TURN] = {NULL, true, true},
	[METHOD_SESSION_CONTINUE] = {NULL, true, true},
	[METHOD_SESSION_FORK] = {session_method_fork, true, true},
	[METHOD_SESSION_ROLLBACK] = {session_method_rollback, true, true},
	[METHOD_SESSION_CLOSE] = {session_method_close, true, true},
	[METHOD_SESSION_FORGET] = {session_method_forget, true, true},
	[METHOD_SESSION_LIST] = {session_list, false, false},
	[METHOD_SESSION_SHOW] = {session_show, true, false},
	[METHOD_SESSION_ATTACH] = {session_method_attach, true, false},
	[METHOD_SESSION_RESIDENCY] = {session_method_residency, true, true},
	[METHOD_SESSION_HINT] = {session_method_hint, true, true},
	[METHOD_SESSION_PARK] = {session_method_park, true, true},
	[METHOD_SESSION_TOUCH] = {session_method_touch, true, true},
	[METHOD_SESSION_EXPORT] = {session_method_export, true, false},
	[METHOD_SESSION_IMPORT] = {NULL, false, true},
	[METHOD_LEDGER_SHOW] = {ledger_show, false, false},
	[METHOD_PAGES_SHOW] = {pages_show, false, false},
	[METHOD_MODEL_SHOW] = {model_show, false, false},
	[METHOD_TOKENIZE] = {NULL, false, false},
	[METHOD_DETOKENIZE] = {NULL, false, false},
	[METHOD_HEALTH] = {health, false, false},
	[METHOD_METRICS] = {metrics_show, false, false},
	[METHOD_EVENTS_REPLAY] = {events_replay, false, false},
};

bool method_is_turn(uint8_t method)
{
	return method == METHOD_SESSION_TURN || method == METHOD_SESSION_CONTINUE;
}

int method_session_check(struct daemon *d, uint32_t call, const struct wire_call *m)
{
	struct call *c = &d->calls[call];
	if (!methods[m->method].session)
		return 0;
	const uint32_t session = session_find(d, c->principal, &m->sess);
	if (m->has_sess && session == NONE && c->peer != NONE)
		authority_session(d, c->peer, &m->sess);
	if (!m->has_sess)
		return ERR_NOT_FOUND;
	if (session == NONE)
		return session_expired(d, c->principal, &m->sess) ? ERR_EXPIRED : ERR_NOT_FOUND;
	struct session *s = &d->sessions[session];
	c->session = session;
	c->owner = s->id;
	s->touched_us = d->now_us;
	if (methods[m->method].writes && m->epoch != WIRE_NONE && m->epoch != s->epoch)
		return ERR_FENCED;
	if (methods[m->method].writes && m->turn != WIRE_NONE && m->turn != s->turn)
		return ERR_TURN_CONFLICT;
	return 0;
}

static void dispatch(struct daemon *d, uint32_t call, const void *body, size_t length,
		     const uint8_t *blob, size_t blob_length)
{
	const struct wire_call *m = &d->message;
	const int code = method_session_check(d, call, m);
	const uint64_t mark = d->store ? store_mark(d->store) : 0;
	if (code)
		call_fail(d, call, code);
	else if (methods[m->method].look)
		methods[m->method].look(d, call, m);
	else if (m->method == METHOD_TOKENIZE)
		tokenize(d, call, m, blob, blob_length);
	else if (m->method == METHOD_DETOKENIZE)
		detokenize(d, call, m, blob, blob_length);
	else if (m->method == METHOD_SESSION_IMPORT)
		session_method_import(d, call, m, blob, blob_length);
	else
		turn_method(d, call, m, body, length, blob, blob_length);
	/* What was changed is on disk before its END says so; a turn sees to its own. */
	if (d->store && !method_is_turn(m->method) && store_mark(d->store) != mark)
		d->calls[call].hold_mark = store_hurry(d->store);
}

/* As idem_find, by the bytes of the message: those are what must be the same. */
static int key_find(struct daemon *d, uint32_t principal, const void *body, size_t length,
		    const uint8_t *blob, size_t blob_length, uint8_t hash[16], struct wire_id *op)
{
	crypto_generichash_state state;
	crypto_generichash_init(&state, NULL, 0, 16);
	crypto_generichash_update(&state, body, length);
	if (blob)
		crypto_generichash_update(&state, blob, blob_length);
	crypto_generichash_final(&state, hash, 16);
	const int code = idem_find(d, principal, &d->message.idem, hash, op);
	return code ? code : keep_idem_find(d, principal, &d->message.idem, hash, op);
}

void method_call(struct daemon *d, uint32_t peer, uint64_t channel, const void *body, size_t length,
		 const uint8_t *blob, size_t blob_length)
{
	struct wire_call *m = &d->message;
	struct peer *p = &d->peers[peer];
	int code = wire_read_call(body, length, &d->wire, m);
	if (code == 0 && (channel == 0 || channel <= p->channel_last)) {
		code = -ERR_BAD_FRAMES;
		m->why = CHANNEL_AGAIN;
	}
	if (code == 0 && m->deadline_ms != WIRE_NONE && m->deadline_ms > d->options.deadline_max_ms)
		code = -ERR_OUT_OF_RANGE;
	/* A pure operator looks; and on a control socket one looks and cancels. */
	if (code == 0 && methods[m->method].writes &&
	    (d->door[p->door].control || !(p->roles & (ROLE_AGENT | ROLE_GATEWAY))))
		code = -ERR_FORBIDDEN;
	if (code == -ERR_FORBIDDEN)
		authority_denied(d, peer, AUTH_ROLE, NULL, NULL);
	/* Without room to record it nothing begins; what only looks is still served, and on a full disk
	   what gives room back is too. */
	if (code == 0 && methods[m->method].writes && (!step_room(d) || keep_stalled(d)))
		code = d->store && store_waits(d->store) ? -ERR_LOG_FULL : -ERR_AUDIT_STALLED;
	if (code == 0 && methods[m->method].writes && m->method != METHOD_SESSION_CLOSE &&
	    m->method != METHOD_SESSION_FORGET && d->store &&
	    store_space(d->store) == -ERR_DISK_FULL)
		code = -ERR_LOG_FULL;
	if (code) {
		peer_reject_why(d, peer, channel, code, m->why);
		return;
	}
	if (m->window == WIRE_NONE)
		m->window = d->options.window_bytes;
	uint8_t hash[16];
	struct wire_id op;
	code = m->has_idem ? key_find(d, p->principal, body, length, blob, blob_length, hash, &op) : 0;
	uint32_t first = code == 1 ? call_of_op(d, p->principal, &op) : NONE;
	if (code == 1 && first == NONE)
		first = keep_call_revive(d, p->principal, &op);
	if (first != NONE && call_attach(d, first, peer, channel, 0, m->window) == 0) {
		p->channel_last = channel;
		return;
	}
	const uint32_t call = call_take(d, peer, channel, m);
	if (call == NONE) {
		const struct wire_err err = {.code = ERR_LIMIT, .retry = "later", .after_ms = 100, .used = WIRE_NONE,
					     .asked = 1, .limit = d->options.calls_principal};
		peer_reject_numbers(d, peer, channel, &err);
		return;
	}
	p->channel_last = channel;
	struct call *c = &d->calls[call];
	if (code != 0) {
		/* Never run twice. What the first answered is not kept any more: `gone`. */
		c->op = code == 1 ? op : c->op;
		c->dup = code == 1;
		call_fail(d, call, code == 1 ? ERR_GONE : ERR_IDEM_MISMATCH);
		return;
	}
	if (m->has_idem)
		idem_keep(d, call, &m->idem, hash);
	if (m->has_idem && methods[m->method].writes)
		keep_idem(d, call, &m->idem, hash);
	dispatch(d, call, body, length, blob, blob_length);
}
