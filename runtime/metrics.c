/*
 * What is counted as the daemon works, and its text in Prometheus' form. Names and units are as the
 * ecosystem has them: base units, _total for what only grows, histograms with cumulative buckets.
 *
 * A principal sees totals of the daemon and its own sessions and bytes; an operator those of its tenant.
 */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "config.h"
#include "runtime/daemon.h"

enum { PAGES_MANY = 65536, PAGES_US = 1000000 };

static const char *const columns[COLUMN_COUNT] = {
	"free", "running", "promised", "retained", "shared", "moving", "doomed"};

/* Upper bounds in microseconds; the last bucket has none. */
static const uint64_t bounds[METRICS_BUCKETS - 1] = {
	1000, 2500, 5000, 10000, 25000, 50000, 100000, 250000, 500000, 1000000, 2500000, 5000000,
	10000000, 30000000, 60000000};

void histogram_add(struct histogram *h, uint64_t us)
{
	uint32_t i = 0;
	while (i < METRICS_BUCKETS - 1 && us > bounds[i])
		i++;
	h->bucket[i]++;
	h->count++;
	h->sum_us += us;
}

void metrics_token(struct daemon *d, struct call *c)
{
	if (c->sampled == 1)
		histogram_add(&d->stats.first_token, d->now_us - c->began_us);
	else
		histogram_add(&d->stats.next_token, d->now_us - c->token_us);
	c->token_us = d->now_us;
}

void metrics_end(struct daemon *d, const struct call *c, const struct effect *e)
{
	struct stats *s = &d->stats;
	struct principal *p = &d->principals[c->principal];
	p->sampled += c->sampled;
	p->prompt += e->as.end.resident + e->as.end.reloaded + e->as.end.recomputed + e->as.end.fresh;
	if (e->as.end.end < METRICS_ENDS)
		s->ends[e->as.end.end]++;
	s->prompt[ORIGIN_RESIDENT] += e->as.end.resident;
	s->prompt[ORIGIN_RELOADED] += e->as.end.reloaded;
	s->prompt[ORIGIN_RECOMPUTED] += e->as.end.recomputed;
	s->prompt[ORIGIN_NEW] += e->as.end.fresh;
	histogram_add(&s->queue, e->as.end.queue_us);
}

/* Text that grows in a fixed buffer; what does not fit makes it full. */
struct page_text {
	char *at;
	size_t length, capacity;
	bool full;
};

static void put(struct page_text *t, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void put(struct page_text *t, const char *format, ...)
{
	va_list arguments;
	va_start(arguments, format);
	const size_t room = t->capacity - t->length;
	const int n = vsnprintf(t->at + t->length, room, format, arguments);
	va_end(arguments);
	if (n < 0 || (size_t)n >= room)
		t->full = true;
	else
		t->length += (size_t)n;
}

static void head(struct page_text *t, const char *name, const char *kind, const char *text)
{
	put(t, "# HELP holdfast_%s %s\n# TYPE holdfast_%s %s\n", name, text, name, kind);
}

static void one(struct page_text *t, const char *name, const char *kind, const char *text, uint64_t value)
{
	head(t, name, kind, text);
	put(t, "holdfast_%s %llu\n", name, (unsigned long long)value);
}

static void labelled(struct page_text *t, const char *name, const char *label, const char *is, uint64_t value)
{
	put(t, "holdfast_%s{%s=\"%s\"} %llu\n", name, label, is, (unsigned long long)value);
}

static void put_histogram(struct page_text *t, const char *name, const char *text, const struct histogram *h)
{
	uint64_t sum = 0;
	head(t, name, "histogram", text);
	for (uint32_t i = 0; i < METRICS_BUCKETS; i++) {
		sum += h->bucket[i];
		if (i < METRICS_BUCKETS - 1)
			put(t, "holdfast_%s_bucket{le=\"%g\"} %llu\n", name, (double)bounds[i] / 1e6,
			    (unsigned long long)sum);
		else
			put(t, "holdfast_%s_bucket{le=\"+Inf\"} %llu\n", name, (unsigned long long)sum);
	}
	put(t, "holdfast_%s_sum %.6f\nholdfast_%s_count %llu\n", name, (double)h->sum_us / 1e6, name,
	    (unsigned long long)h->count);
}

static void put_tokens(const struct daemon *d, struct page_text *t)
{
	static const char *const origins[ORIGIN_COUNT] = {"resident", "reloaded", "recomputed", "new"};
	head(t, "prompt_tokens_total", "counter", "Tokens of prompts, by where they were found.");
	for (uint32_t i = 0; i < ORIGIN_COUNT; i++)
		labelled(t, "prompt_tokens_total", "origin", origins[i], d->stats.prompt[i]);
	one(t, "generation_tokens_total", "counter", "Tokens sampled.", d->tokens_sampled);
	one(t, "forced_tokens_total", "counter", "Of these, known without sampling: a form had no other.",
	    d->tokens_forced);
	head(t, "turns_total", "counter", "Turns that have ended, by how.");
	for (uint32_t i = 0; i < METRICS_ENDS; i++)
		if (d->stats.ends[i])
			labelled(t, "turns_total", "status", turn_status((enum end)i), d->stats.ends[i]);
	put_histogram(t, "time_to_first_token_seconds", "From the call to its first token.",
		      &d->stats.first_token);
	put_histogram(t, "time_per_output_token_seconds", "From one token of a turn to its next.",
		      &d->stats.next_token);
	put_histogram(t, "queue_time_seconds", "From the call to its admission.", &d->stats.queue);
}

static void put_ledger(const struct daemon *d, struct page_text *t)
{
	static const char *const accounts[ACCOUNT_COUNT] = {"weights", "workspace", "device", "host", "disk",
							    "stream"};
	head(t, "ledger_bytes", "gauge", "The memory ledger: bytes by account and column.");
	for (uint32_t a = 0; a < ACCOUNT_COUNT; a++)
		for (uint32_t c = 0; c < COLUMN_COUNT; c++)
			put(t, "holdfast_ledger_bytes{account=\"%s\",column=\"%s\"} %llu\n", accounts[a], columns[c],
			    (unsigned long long)sched_ledger(d->sched, (enum account)a, (enum column)c));
	one(t, "page_bytes", "gauge", "Bytes of one KV page.", d->limits.group[0].page_bytes);
}

/* One scrape after another must not take the loop's time where there are very many. */
static void pages_count_all(struct daemon *d)
{
	struct stats *s = &d->stats;
	uint64_t all = 0;
	for (uint32_t g = 0; g < d->limits.group_count; g++)
		for (uint32_t place = 0; place < PLACE_COUNT; place++)
			all += d->limits.group[g].page_count[place];
	if (all > PAGES_MANY && s->pages_us && d->now_us < s->pages_us + PAGES_US)
		return;
	s->pages_us = d->now_us;
	for (uint32_t g = 0; g < d->limits.group_count; g++)
		sched_pages(d->sched, g, s->pages[g]);
}

static void put_pages(struct daemon *d, struct page_text *t)
{
	static const char *const places[PLACE_COUNT] = {"device", "host", "disk"};
	pages_count_all(d);
	head(t, "pages", "gauge", "KV pages by group, place and column.");
	for (uint32_t g = 0; g < d->limits.group_count; g++)
		for (uint32_t place = 0; place < PLACE_COUNT; place++)
			for (uint32_t c = 0; c < COLUMN_COUNT; c++)
				put(t, "holdfast_pages{group=\"%u\",place=\"%s\",column=\"%s\"} %llu\n", g, places[place],
				    columns[c], (unsigned long long)d->stats.pages[g][place][c]);
	head(t, "group_page_bytes", "gauge", "Bytes of one KV page of a group.");
	for (uint32_t g = 0; g < d->limits.group_count; g++)
		put(t, "holdfast_group_page_bytes{group=\"%u\"} %llu\n", g,
		    (unsigned long long)d->limits.group[g].page_bytes);
}

static void put_disk(const struct daemon *d, struct page_text *t)
{
	struct lower_figures f = lower_figures(d);
	head(t, "disk_pages_total", "counter", "Pages to the disk tier and back, and those that were lost.");
	labelled(t, "disk_pages_total", "verb", "put", f.puts);
	labelled(t, "disk_pages_total", "verb", "get", f.gets);
	labelled(t, "disk_pages_total", "verb", "lost", f.lost);
	one(t, "disk_bad_slots", "gauge", "Slots of the disk tier that are out of use.", f.bad_slots);
	one(t, "disk_read_bytes_per_second", "gauge", "Of late, by the disk tier's thread.", f.read_bytes_s);
	one(t, "disk_stalled", "gauge", "1 while the disk does not answer.", f.stalled);
}

static uint64_t sessions_of(const struct daemon *d, uint32_t principal)
{
	uint64_t count = 0;
	for (uint32_t i = 0; i < d->options.sessions; i++)
		count += d->sessions[i].used && d->sessions[i].principal == principal;
	return count;
}

/* Of one that is used, and that the client may see. */
static bool principal_shown(const struct daemon *d, uint32_t call, uint32_t principal)
{
	return d->principals[principal].name[0] && call_sees(d, call, principal);
}

static uint64_t sampled_of(const struct daemon *d, uint32_t principal)
{
	uint64_t sampled = d->principals[principal].sampled;
	for (uint32_t i = 0; i < d->calls_top; i++)
		if (d->calls[i].state == CALL_RUNNING && d->calls[i].principal == principal)
			sampled += d->calls[i].sampled;
	return sampled;
}

static void put_principals(const struct daemon *d, struct page_text *t, uint32_t call)
{
	const uint32_t all = principals_all(d);
	head(t, "principal_sessions", "gauge", "Sessions of a principal that the client may see.");
	for (uint32_t p = 0; p < all; p++)
		if (principal_shown(d, call, p))
			labelled(t, "principal_sessions", "principal", d->principals[p].name, sessions_of(d, p));
	head(t, "principal_bytes", "gauge", "KV bytes of a principal that the client may see.");
	for (uint32_t p = 0; p < all; p++)
		if (principal_shown(d, call, p))
			labelled(t, "principal_bytes", "principal", d->principals[p].name,
				 sched_principal_bytes(d->sched, p));
	head(t, "principal_prompt_tokens_total", "counter",
	     "Tokens of prompts of the turns that have ended, of a principal that the client may see.");
	for (uint32_t p = 0; p < all; p++)
		if (principal_shown(d, call, p))
			labelled(t, "principal_prompt_tokens_total", "principal", d->principals[p].name,
				 d->principals[p].prompt);
	head(t, "principal_generation_tokens_total", "counter",
	     "Tokens sampled for a principal that the client may see.");
	for (uint32_t p = 0; p < all; p++)
		if (principal_shown(d, call, p))
			labelled(t, "principal_generation_tokens_total", "principal", d->principals[p].name,
				 sampled_of(d, p));
}

static void put_work(const struct daemon *d, struct page_text *t)
{
	uint64_t running = 0, waiting = 0, kept = 0, sessions = 0, peers = 0, detached = 0;
	for (uint32_t i = 0; i < d->calls_top; i++) {
		const struct call *c = &d->calls[i];
		kept += call_kept(c);
		running += c->state == CALL_RUNNING && !c->waiting;
		waiting += c->state == CALL_RUNNING && c->waiting;
		detached += c->state == CALL_RUNNING && c->peer == NONE;
	}
	for (uint32_t i = 0; i < d->options.sessions; i++)
		sessions += d->sessions[i].used;
	for (uint32_t i = 0; i < d->options.peers; i++)
		peers += d->peers[i].used && d->peers[i].hello;
	one(t, "turns_running", "gauge", "Turns that have been admitted.", running);
	one(t, "turns_waiting", "gauge", "Turns that wait for memory or their place.", waiting);
	one(t, "turns_detached", "gauge", "Turns that go on without a reader.", detached);
	one(t, "calls_kept", "gauge", "Ended calls that can be asked for again.", kept);
	one(t, "sessions", "gauge", "Sessions of all principals.", sessions);
	one(t, "connections", "gauge", "Connections that have said HELLO.", peers);
}

void metrics_show(struct daemon *d, uint32_t call, const struct wire_call *m)
{
	static char text[128 << 10];
	struct page_text t = {text, 0, sizeof text, false};
	struct wire_writer w;
	(void)m;
	head(&t, "build_info", "gauge", "The version of the daemon.");
	labelled(&t, "build_info", "version", PACKAGE_VERSION, 1);
	put(&t, "# HELP holdfast_uptime_seconds Since the start.\n# TYPE holdfast_uptime_seconds gauge\n"
		"holdfast_uptime_seconds %.3f\n", (double)(d->now_us - d->started_us) / 1e6);
	one(&t, "loop_turns_total", "counter", "Turns of the loop.", d->loop_turns);
	put_tokens(d, &t);
	put_work(d, &t);
	put_ledger(d, &t);
	put_pages(d, &t);
	if (d->disk)
		put_disk(d, &t);
	one(&t, "calls_total", "counter", "Calls accepted.", d->stats.calls);
	one(&t, "resumes_total", "counter", "Streams that found their reader again.", d->stats.resumes);
	one(&t, "rejects_total", "counter", "Messages refused.", d->stats.rejects);
	one(&t, "mutes_total", "counter", "Peers muted for malformed messages.", d->stats.mutes);
	one(&t, "data_messages_total", "counter", "DATA messages sent.", d->stats.data);
	one(&t, "data_bytes_total", "counter", "Bytes of text sent.", d->stats.data_bytes);
	if (!t.full) {
		const size_t length = t.length;
		put_principals(d, &t, call);
		/* Of very many no half is shown, and the rest is. */
		if (t.full)
			t.length = length;
		t.full = false;
	}
	if (t.full) {
		call_fail(d, call, ERR_TOO_BIG);
		return;
	}
	wire_writer_init(&w, d->out, d->out_max);
	wire_put_map(&w, 1);
	wire_put_text(&w, "text");
	wire_put_str(&w, t.at, t.length);
	struct wire_end end = {.status = {"ok", 2}, .turn = WIRE_NONE, .epoch = WIRE_NONE,
			       .result = {w.at, w.length}};
	call_end(d, call, &end);
}
