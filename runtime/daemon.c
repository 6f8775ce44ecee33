/*
 * Opening the daemon: the memory plan, what must be held before anything is served, and the order
 * in which it is all closed again.
 */
#include <errno.h>
#include <signal.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/cure.h"
#include "runtime/endpoint.h"
#include "runtime/events.h"
#include "runtime/keep.h"
#include "runtime/loop.h"

enum { EXIT_DONE = 0, EXIT_FAILED = 1, EXIT_NOT_NOW = 3, OUT_BYTES = 320 * 1024, FD_WANTED = 4096 };

static const uint64_t KV_STANDARD_MAX = 4ull << 30; /* a default slab is never larger */

struct plan {
	struct forward_needs needs;
	uint64_t available, kv_bytes;
	bool apart; /* the device has memory of its own, which available is of */
};

/* One rule for all lines that say memory: tenths of a MiB, rounded. */
static double mib(uint64_t bytes)
{
	return (double)bytes / 1048576;
}

static uint64_t number_in(const char *path)
{
	FILE *file = fopen(path, "re");
	unsigned long long value = 0;
	const bool found = file && fscanf(file, "%llu", &value) == 1;
	if (file)
		fclose(file);
	return found ? value : UINT64_MAX;
}

/* What a container leaves us: its limit less what it uses. */
static uint64_t memory_limit(void)
{
	const uint64_t most = number_in("/sys/fs/cgroup/memory.max");
	const uint64_t used = number_in("/sys/fs/cgroup/memory.current");
	return most == UINT64_MAX || used == UINT64_MAX ? UINT64_MAX : most > used ? most - used : 0;
}

static uint64_t memory_available(void)
{
	FILE *file = fopen("/proc/meminfo", "re");
	char line[256];
	unsigned long long kib = 0;
	while (file && fgets(line, sizeof line, file))
		if (sscanf(line, "MemAvailable: %llu kB", &kib) == 1)
			break;
	if (file)
		fclose(file);
	const uint64_t limit = memory_limit();
	return limit < (uint64_t)kib * 1024 ? limit : (uint64_t)kib * 1024;
}

static void forward_options_fill(const struct daemon *d, struct forward_options *f)
{
	const struct options *o = &d->options;
	forward_options_default(f);
	f->kv = (enum kv_kind)o->kv;
	f->act = (enum act_kind)o->act;
	f->prefill = o->prefill <= PREFILL_FP8 ? (enum prefill_kind)o->prefill : PREFILL_SAME;
	f->isa = (enum isa)o->isa;
	f->device = o->device;
	f->integrity = (enum integrity)o->integrity;
	f->threads = (uint32_t)o->threads;
	f->page_tokens = (uint32_t)o->page_tokens;
	f->page_count = d->limits.group[0].page_count[PLACE_DEVICE];
	f->window_pages = d->limits.group[1].page_count[PLACE_DEVICE];
	f->rows_max = (uint32_t)(o->batch_rows > o->turns ? o->batch_rows : o->turns);
	f->sequences_max = f->samples_max = (uint32_t)o->turns;
	f->context = d->limits.context_tokens;
	f->cache_dir = o->cache[0] ? o->cache : NULL;
	f->progress = log_progress;
	f->ranks_count = (uint32_t)o->tensor_parallel;
	f->ranks = d->ranks;
	f->start_seconds = (uint32_t)o->ranks_start_seconds;
}

static void limits_fill(struct daemon *d)
{
	const struct options *o = &d->options;
	struct sched_limits *l = &d->limits;
	const uint32_t model = d->model->arch.context;
	l->session_count = (uint32_t)o->sessions;
	l->turn_count = (uint32_t)(o->turns + o->queue);
	l->principal_count = (uint32_t)o->principals + (o->public_prefix[0] != 0);
	l->public_principal = o->public_prefix[0] ? l->principal_count : 0;
	l->page_tokens = (uint32_t)o->page_tokens;
	l->context_tokens = o->context && o->context < model ? (uint32_t)o->context : model;
	l->batch_rows = (uint32_t)(o->batch_rows > o->turns ? o->batch_rows : o->turns);
	l->chunk_tokens = (uint32_t)(o->chunk < l->batch_rows ? o->chunk : l->batch_rows);
	l->batch_turns = (uint32_t)o->turns;
	l->queue_turns = (uint32_t)o->queue;
	l->growth_tokens = (uint32_t)o->growth;
	l->hold_until_durable = 1;
	l->step_us = o->step_ms ? o->step_ms * 1000 : SCHED_STEP_AUTO;
	l->wait_us_max = o->wait_ms * 1000;
	l->policy = (uint32_t)o->policy;
	l->ttl_us = o->ttl_ms * 1000;
	l->stream_turn_bytes = o->stream_bytes;
	l->stream_bytes = o->stream_bytes * l->turn_count;
	l->lease_us_max = o->lease_max_ms * 1000;
	l->principal_bytes = o->principal_bytes;
	l->principal_turns = (uint32_t)o->turns_principal;
	l->group_count = groups_wanted(d) ? 2 : 1;
}

/* The pages of each group, on the device and below. */
static void slabs_fill(struct daemon *d, struct plan *p)
{
	struct sched_limits *l = &d->limits;
	uint64_t pages[2], host[2], disk[2];
	l->group[0].page_bytes = p->needs.page_bytes;
	if (l->group_count > 1) {
		l->group[1].page_bytes = p->needs.window_page_bytes;
		l->group[1].window_tokens = d->model->arch.window;
	}
	groups_split(d, p->kv_bytes, d->options.turns, pages);
	groups_split(d, d->options.host_memory, 0, host);
	groups_split(d, d->options.disk_bytes, 0, disk);
	/* More than all sessions could ever hold is never touched. */
	const uint64_t most = (l->context_tokens + l->page_tokens - 1) / l->page_tokens * d->options.sessions;
	if (pages[0] > most)
		pages[0] = most;
	for (uint32_t g = 0; g < l->group_count; g++) {
		l->group[g].page_count[PLACE_DEVICE] = pages[g] < 1u << 30 ? (uint32_t)pages[g] : 1u << 30;
		l->group[g].page_count[PLACE_HOST] = host[g] < 1u << 24 ? (uint32_t)host[g] : 1u << 24;
		l->group[g].page_count[PLACE_DISK] = disk[g] < 1u << 24 ? (uint32_t)disk[g] : 1u << 24;
	}
	p->kv_bytes = groups_bytes(d, PLACE_DEVICE);
}

/* What has to fit into `available`. */
static uint64_t plan_sum(const struct daemon *d, const struct plan *p)
{
	return p->needs.weights_bytes + p->needs.workspace_bytes + p->kv_bytes +
	       (p->apart ? 0 : groups_bytes(d, PLACE_HOST));
}

/* --prefill-weights auto: the copy that is faster here and has room, the finer one first; it is said. */
static int prefill_choose(struct daemon *d, struct forward_options *f, struct plan *p)
{
	const bool cpu = !f->device || strcmp(f->device, "cpu") == 0;
	struct forward_needs needs;
	char reason[MODEL_REASON_MAX];
	uint64_t more = 0;
	if (d->options.prefill <= PREFILL_FP8)
		return 0;
	for (d->options.prefill = PREFILL_BF16; d->options.prefill != PREFILL_SAME; d->options.prefill--) {
		f->prefill = (enum prefill_kind)d->options.prefill;
		if (!cpu || !ops_isa_runs(f->isa) || !ops_isa_prefill(f->isa, f->prefill))
			continue;
		TRY(forward_needs(d->model, f, &needs, reason));
		more = needs.weights_bytes - p->needs.weights_bytes;
		if (!p->available || plan_sum(d, p) + more <= p->available)
			break;
	}
	const char *const why = more ? "there is no room for a copy" : "a copy is not faster here";
	if (d->options.prefill == PREFILL_SAME)
		return log_say(LOG_NOTICE, "--prefill-weights auto: same: %s", why), 0;
	const bool bf16 = d->options.prefill == PREFILL_BF16;
	log_say(LOG_NOTICE, "--prefill-weights auto: %s: given tokens take a copy of the weights (%.1f MiB): "
		"faster, and perplexity is %s; --prefill-weights same if it must not be", bf16 ? "bf16" : "int8",
		mib(more), bf16 ? "some tenths of a per cent higher" : "some per cent higher");
	d->limits.weights_bytes += more;
	p->needs.weights_bytes += more;
	return 0;
}

/* Sizes the slab and finds out whether all of it fits. */
static int plan_make(struct daemon *d, struct plan *p)
{
	struct forward_options f;
	limits_fill(d);
	forward_options_fill(d, &f);
	f.page_count = 1;
	f.window_pages = d->limits.group_count > 1;
	uint64_t left;
	char reason[MODEL_REASON_MAX];
	const int found = forward_device_look(f.device, f.ranks_count > 1, &left, reason);
	if (found != 0) {
		log_say(LOG_ERROR, "--device %s: %s", d->options.device, reason);
		return found;
	}
	const int needed = forward_needs(d->model, &f, &p->needs, reason);
	if (needed != 0) {
		if (reason[0])
			log_say(LOG_ERROR, "%s", reason);
		return needed;
	}
	/* Each rank has a GPU of its own; the first stands for all. */
	p->apart = left != 0;
	p->available = left ? left * (f.ranks_count > 1 ? f.ranks_count : 1) : memory_available();
	p->kv_bytes = d->options.kv_memory;
	if (!p->kv_bytes) {
		p->kv_bytes = p->available / 4;
		if (p->kv_bytes > KV_STANDARD_MAX)
			p->kv_bytes = KV_STANDARD_MAX;
	}
	slabs_fill(d, p);
	if (p->kv_bytes == 0) {
		log_say(LOG_ERROR, "--kv-memory of %llu bytes holds no page; one page has %llu",
			(unsigned long long)d->options.kv_memory,
			(unsigned long long)(p->needs.page_bytes + p->needs.window_page_bytes));
		return -ERR_OUT_OF_RANGE;
	}
	d->limits.weights_bytes = p->needs.weights_bytes;
	d->limits.workspace_bytes = p->needs.workspace_bytes;
	const char *field = "";
	if (sched_limits_check(&d->limits, &field) != 0) {
		log_say(LOG_ERROR, "these options cannot be scheduled with: %s is out of range", field);
		return -ERR_OUT_OF_RANGE;
	}
	const uint64_t host_bytes = groups_bytes(d, PLACE_HOST), here = p->apart ? memory_available() : 0;
	if (here && host_bytes > here) {
		log_say(LOG_ERROR, "not enough memory: --host-memory of %.1f MiB is more than the %.1f MiB available "
			"beside the GPU's", mib(host_bytes), mib(here));
		return -ERR_MEMORY;
	}
	if (p->available && plan_sum(d, p) > p->available) {
		log_say(LOG_ERROR, "not enough memory: weights %.1f MiB + workspace %.1f MiB + KV %.1f MiB is "
			"more than the %.1f MiB available; lower --kv-memory", mib(p->needs.weights_bytes),
			mib(p->needs.workspace_bytes), mib(p->kv_bytes), mib(p->available));
		return -ERR_MEMORY;
	}
	return prefill_choose(d, &f, p);
}

static void plan_print(const struct daemon *d, const struct plan *p)
{
	static const char *const kvs[] = {"fp8", "int8", "bf16", "f32"};
	static const char *const prefills[] = {"same", "int8", "bf16", "fp8"};
	const struct sched_group *group = d->limits.group;
	const uint64_t pages = group[0].page_count[PLACE_DEVICE], tokens = pages * d->limits.page_tokens;
	const uint64_t host_bytes = groups_bytes(d, PLACE_HOST);
	const uint64_t sum = plan_sum(d, p);
	const uint64_t disk_bytes = groups_bytes(d, PLACE_DISK);
	const uint64_t head = p->available > sum ? p->available - sum : 0;
	if (d->options.json) {
		printf("{\"weights_bytes\": %llu, \"workspace_bytes\": %llu, \"kv_bytes\": %llu, "
			   "\"kv\": \"%s\", \"host_bytes\": %llu, \"disk_bytes\": %llu, "
			   "\"page_bytes\": %llu, \"page_tokens\": %u, \"pages\": %llu, \"kv_tokens\": "
			   "%llu, \"context\": %u, "
			   "\"window_tokens\": %u, \"window_page_bytes\": %llu, \"window_pages\": %u, "
			   "\"prefill_weights\": \"%s\", \"available_bytes\": %llu, \"headroom_bytes\": %llu}\n",
				(unsigned long long)p->needs.weights_bytes,
				(unsigned long long)p->needs.workspace_bytes, (unsigned long long)p->kv_bytes,
				kvs[d->options.kv], (unsigned long long)host_bytes, (unsigned long long)disk_bytes,
				(unsigned long long)p->needs.page_bytes,
				d->limits.page_tokens, (unsigned long long)pages,
				(unsigned long long)tokens, d->limits.context_tokens,
				group[1].window_tokens, (unsigned long long)group[1].page_bytes,
				group[1].page_count[PLACE_DEVICE], prefills[d->options.prefill],
				(unsigned long long)p->available, (unsigned long long)head);
		return;
	}
	printf("model      %s (%s, context %u)\n", d->model->title, d->model->arch.name,
			d->limits.context_tokens);
	printf("weights    %9.1f MiB%s\n", mib(p->needs.weights_bytes),
	       d->options.prefill == PREFILL_SAME ? "" : ", with the copy for given tokens");
	printf("workspace  %9.1f MiB\n", mib(p->needs.workspace_bytes));
	printf("KV (%s)  %9.1f MiB: %llu pages of %u tokens, %llu tokens in all, %.1f full contexts\n",
	       kvs[d->options.kv], mib(p->kv_bytes), (unsigned long long)pages,
	       d->limits.page_tokens, (unsigned long long)tokens, groups_contexts(d, d->limits.context_tokens));
	if (d->limits.group_count > 1)
		printf("  of these   %9.1f MiB: %u pages for layers that see the last %u tokens; "
		       "%.1f contexts of %llu\n",
		       mib(group[1].page_count[PLACE_DEVICE] * group[1].page_bytes),
		       group[1].page_count[PLACE_DEVICE], group[1].window_tokens,
		       groups_contexts(d, groups_context(d)), (unsigned long long)groups_context(d));
	if (host_bytes)
		printf("host       %9.1f MiB for pages that gave way\n", mib(host_bytes));
	if (disk_bytes)
		printf("disk       %9.1f MiB in %s/pages\n", mib(disk_bytes),
		       d->options.disk_dir[0] ? d->options.disk_dir : d->options.state);
	printf("head-room  %9.1f MiB of %.1f available\n", mib(head), mib(p->available));
}

/* Makes the folders above the last, as mkdir --parents does. */
static int parents_make(const char *path)
{
	char folder[OPTIONS_PATH_MAX];
	snprintf(folder, sizeof folder, "%s", path);
	for (char *slash = strchr(folder + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
		*slash = 0;
		if (mkdir(folder, 0700) != 0 && errno != EEXIST) {
			const int error = errno;
			char line[LOG_LINE_MAX];
			snprintf(line, sizeof line, "the folder %.1500s cannot be made: %s; say another --state", path,
					strerror(error));
			cure_errno(line, sizeof line, path, error);
			log_say(LOG_ERROR, "%s", line);
			return error == EACCES || error == EROFS ? -ERR_PERMISSION : error == ENOSPC ? -ERR_DISK_FULL :
				-ERR_IO;
		}
		*slash = '/';
	}
	return 0;
}

static int store_start(struct daemon *d)
{
	static char text[STORE_CONFIG_MAX];
	struct store_options so;
	char reason[STORE_REASON_MAX];
	const char *warning = NULL;
	TRY(parents_make(d->options.state));
	store_options_default(&so);
	so.dir = d->options.state;
	so.map_bytes = d->options.audit_map_bytes;
	so.commit_ms = (uint32_t)d->options.audit_commit_ms;
	so.pace_ms = (uint32_t)d->options.audit_pace_ms;
	so.owners = (uint32_t)d->options.sessions;
	so.headroom_bytes = d->options.audit_headroom;
	so.history_entries = d->options.audit_history;
	so.segment_entries = (uint32_t)d->options.audit_segment;
	so.readers_ms = (uint32_t)d->options.audit_readers_ms;
	so.reader_stay_ms = (uint32_t)d->options.audit_reader_stay_ms;
	so.anchor_dir = d->options.anchor;
	so.anchor_ms = (uint32_t)d->options.anchor_ms;
	so.anchor_entries = (uint32_t)d->options.anchor_entries;
	so.page_tokens = d->limits.page_tokens;
	so.config = text;
	options_text(&d->options, text, sizeof text);
	const uint32_t most = sched_effect_max(&d->limits) * 2 + 4096;
	so.keep_bytes = 4 * KEEP_STEP_BYTES;
	while (so.ring_records < most)
		so.ring_records *= 2;
	const int code = store_open(&so, &d->store, reason, &warning);
	if (code)
		log_say(LOG_ERROR, "%s", reason);
	else if (warning)
		log_say(LOG_NOTICE, "%s", warning);
	if (!code && store_heard(d->store))
		log_say(LOG_ERROR,
			"the process before this one ended with a last word: it is an incident of the log now");
	else if (!code && store_unclean(d->store))
		log_say(LOG_NOTICE, "the process before this one did not close its log (killed, or the power went)");
	return code;
}

static int device_open(struct daemon *d)
{
	struct forward_options f;
	char reason[MODEL_REASON_MAX];
	forward_options_fill(d, &f);
	const int code = forward_open(d->model, &f, &d->forward, reason);
	if (code)
		log_say(LOG_ERROR, "%s", reason);
	d->memory_told = code != 0;
	TRY(code);
	d->limits.weights_bytes = forward_weights_bytes(d->forward);
	d->limits.workspace_bytes += forward_ops(d->forward)->device_beside(forward_device(d->forward));
	const uint32_t pages = pages_count(d, PLACE_DEVICE), copies = pages_count(d, PLACE_HOST) + LOWER_STAGES;
	/* Twice: what is forgotten is zeroed, and may be given out again in the same job. */
	return engine_open(d->forward, 2 * pages + 1, pages, copies, &d->engine);
}

static int tables_open(struct daemon *d)
{
	d->text_max = (size_t)d->limits.context_tokens * d->token_bytes_max;
	const size_t message = (size_t)(d->options.body_bytes + d->options.blob_bytes) * 4;
	if (d->text_max < message)
		d->text_max = message;
	wire_limits_default(&d->wire);
	d->wire.body_bytes = (uint32_t)d->options.body_bytes;
	d->wire.blob_bytes = (uint32_t)d->options.blob_bytes;
	d->wire.string_bytes = (uint32_t)d->options.body_bytes;
	d->out_max = OUT_BYTES;
	d->out = malloc(d->out_max);
	d->ids = calloc(d->limits.context_tokens + 1, sizeof *d->ids);
	rendering_init(&d->rendering);
	if (!d->out || !d->ids)
		return -ERR_MEMORY;
	TRY(peers_open(d));
	TRY(calls_open(d));
	TRY(sessions_open(d));
	TRY(events_open(d));
	TRY(kv_open(d));
	return step_open(d);
}

static int signals_open(struct daemon *d)
{
	sigset_t set;
	sigemptyset(&set);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGINT);
	sigaddset(&set, SIGHUP);
	/* Before any thread is made, so that all inherit it. */
	if (sigprocmask(SIG_BLOCK, &set, NULL) != 0)
		return -ERR_INTERNAL;
	signal(SIGPIPE, SIG_IGN);
	signal(SIGXFSZ, SIG_IGN); /* a full disk is an error code, not an end */
	d->signals = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
	return d->signals < 0 ? -ERR_IO : 0;
}

/* For the connections that are remembered, the library's own, and files. */
static void descriptors_raise(uint64_t peers)
{
	struct rlimit limit;
	if (getrlimit(RLIMIT_NOFILE, &limit) != 0)
		return;
	const rlim_t all = FD_WANTED + 2 * peers;
	const rlim_t wanted = limit.rlim_max < all ? limit.rlim_max : all;
	if (limit.rlim_cur < wanted) {
		limit.rlim_cur = wanted;
		setrlimit(RLIMIT_NOFILE, &limit);
	}
}

/* Loud: whoever reads the log of a daemon with faults on purpose must see it. */
static int inject_open(struct daemon *d)
{
	char why[INJECT_REASON_MAX];
	const int code = inject_read(d->options.inject, &d->inject, why);
	if (code)
		log_say(LOG_ERROR, "--inject: %s", why);
	else if (d->inject.on)
		log_say(LOG_ERROR, "FAULTS ARE MADE ON PURPOSE (--inject %.200s): not for use", d->options.inject);
	return code;
}

static struct store *last_word_store;

/* A broken invariant says so in the beacon before the process ends. */
static void last_word(int signal_number)
{
	const struct store_last_word word = {.reason = REASON_INVARIANT};
	signal(signal_number, SIG_DFL);
	if (last_word_store && store_said(last_word_store) == 0)
		store_beacon(last_word_store, &word);
}

static void rank_say(const char *line)
{
	log_say(LOG_ERROR, "%s", line);
}

/* Before any thread, lock or socket: what a rank inherits it would hold. A rank that is not the first
   does not come back. */
static int ranks_open(struct daemon *d)
{
	char reason[RANKS_REASON_MAX];
	struct forward_options f;
	if (d->options.tensor_parallel < 2)
		return 0;
	struct ranks_place place = {0};
	int code = ranks_place((uint32_t)d->options.tensor_parallel, &place, reason);
	if (code == 0)
		code = ranks_start((uint32_t)d->options.tensor_parallel, &d->ranks, reason);
	if (code) {
		log_say(LOG_ERROR, "--tensor-parallel %llu: %s", (unsigned long long)d->options.tensor_parallel,
			reason);
		return code;
	}
	if (ranks_rank(d->ranks) == 0)
		return 0;
	forward_options_fill(d, &f);
	const int done = forward_rank_main(d->model, &f, place.launched ? rank_say : NULL);
	ranks_close(&d->ranks);
	_exit(done);
}

static int daemon_open(struct daemon *d)
{
	TRY(signals_open(d));
	TRY(inject_open(d));
	TRY(ranks_open(d));
	descriptors_raise(d->options.peers);
	TRY(tenants_read(d->options.tenants, &d->tenants));
	TRY(endpoint_lock(d));
	TRY(store_start(d));
	last_word_store = d->store;
	signal(SIGABRT, last_word);
	TRY(device_open(d));
	TRY(lower_disk_open(d));
	TRY(tables_open(d));
	TRY(traffic_open(d));
	TRY(keep_open(d));
	TRY(keep_restore(d));
	TRY(keep_guard_open(d));
	authority_start(d);
	TRY(public_open(d));
	TRY(endpoint_open(d));
	TRY(outlets_open(d));
	const struct ops *ops = forward_ops(d->forward);
	log_say(LOG_NOTICE, "serving %s on %s (%s, %u threads, KV %.1f MiB in %u pages)",
			d->model->title, d->options.listen, ops->device_isa(forward_device(d->forward)),
			ops->device_threads(forward_device(d->forward)),
			mib(groups_bytes(d, PLACE_DEVICE)), pages_count(d, PLACE_DEVICE));
	return 0;
}

static void daemon_close(struct daemon *d)
{
	outlets_close(d);
	endpoint_close(d);
	if (d->engine)
		engine_close(&d->engine); /* closes the forward pass with it */
	else if (d->forward)
		forward_close(&d->forward);
	lower_disk_close(d);
	ranks_close(&d->ranks);
	if (d->store)
		keep_settle(d);
	guard_close(&d->guard);
	last_word_store = NULL;
	if (d->store && store_close(&d->store) != 0)
		d->failed = true;
	traffic_close(d);
	calls_close(d);
	sessions_close(d);
	events_close(d);
	kv_close(d);
	keep_close(d);
	if (d->streams >= 0)
		close(d->streams);
	rendering_free(&d->rendering);
	free(d->peers);
	free(d->owed);
	free(d->principals);
	free(d->effects.list);
	free(d->effects.entries);
	free(d->entry);
	free(d->entry_call);
	free(d->entry_sample);
	free(d->result);
	free(d->refs);
	free(d->chain);
	free(d->undo.token);
	free(d->page_principal);
	lower_close(d);
	free(d->sched);
	free(d->sums);
	free(d->out);
	free(d->ids);
	form_index_close(&d->form_index);
	tokenizer_close(&d->tokenizer);
	model_close(&d->model);
	if (d->signals >= 0)
		close(d->signals);
}

static int exit_code(int code)
{
	return code == 0 ? EXIT_DONE : code == -ERR_IN_USE ? EXIT_NOT_NOW : EXIT_FAILED;
}

static int daemon_begin(struct daemon *d, const struct options *options, struct plan *plan)
{
	char reason[MODEL_REASON_MAX];
	memset(d, 0, sizeof *d);
	d->options = *options;
	d->signals = d->epoll = d->streams = -1;
	log_level_set((enum log_level)options->log);
	if (sodium_init() < 0)
		return -ERR_INTERNAL;
	randombytes_buf(d->boot, sizeof d->boot);
	int code = model_open(options->model, &d->model, reason);
	if (code)
		log_say(LOG_ERROR, "%.400s: %s", options->model, reason);
	if (!code)
		code = text_open(d);
	return code ? code : plan_make(d, plan);
}

int daemon_inside_open(struct daemon *d, const struct options *options)
{
	struct plan plan;
	TRY(daemon_begin(d, options, &plan));
	TRY(store_start(d));
	TRY(device_open(d));
	TRY(lower_disk_open(d));
	TRY(tables_open(d));
	TRY(keep_open(d));
	return keep_restore(d);
}

void daemon_inside_close(struct daemon *d)
{
	daemon_close(d);
}

int daemon_run(const struct options *options)
{
	static struct daemon daemon;
	struct daemon *d = &daemon;
	struct plan plan;
	int code = daemon_begin(d, options, &plan);
	if (!code && options->check) {
		plan_print(d, &plan);
	} else if (!code) {
		code = daemon_open(d);
		if (!code)
			code = loop_run(d);
		else if (code == -ERR_MEMORY && !d->memory_told)
			log_say(LOG_ERROR, "not enough memory to start; lower --kv-memory, --sessions or --calls");
	}
	daemon_close(d);
	return code ? exit_code(code) : d->failed ? EXIT_FAILED : EXIT_DONE;
}
