/*
 * The daemon's options: one table of names, kinds, ranges and defaults, for the command line and
 * the config file alike. Every limit of the daemon is here.
 */
#ifndef HOLDFAST_RUNTIME_OPTIONS_H
#define HOLDFAST_RUNTIME_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { OPTIONS_PATH_MAX = 4096 };

/* When the bytes of full pages are compared with their digest, beside every move. */
enum digest { DIGEST_OFF, DIGEST_RESUME /* a turn begins */, DIGEST_SCRUB /* and at rest */ };

/* Tokens of a form that nothing else can stand for: known, or sampled as all others. */
enum forced { FORCED_APPEND, FORCED_STEP };

struct options {
	char model[OPTIONS_PATH_MAX], listen[OPTIONS_PATH_MAX], state[OPTIONS_PATH_MAX];
	char tenants[OPTIONS_PATH_MAX], curve_key[OPTIONS_PATH_MAX];
	char cache[OPTIONS_PATH_MAX], config[OPTIONS_PATH_MAX], template_name[64];
	bool check, json;
	char device[16];
	uint64_t kv, isa, act, integrity, log, forced; /* values of their enums */
	uint64_t prefill; /* enum prefill_kind, or one more: whichever fits */
	uint64_t kv_memory;      /* bytes; 0: a quarter of the memory that is available */
	uint64_t host_memory;    /* bytes of the host slab; 0: none */
	uint64_t windows;        /* 0 trim, 1 keep: pages of layers with a window */
	uint64_t kv_context;     /* tokens; 0: a quarter of a session's context */
	uint64_t disk_bytes;     /* bytes of the disk tier; 0: none */
	uint64_t disk_reserve, disk_wait_ms, stop_ms;
	char disk_dir[OPTIONS_PATH_MAX];
	uint64_t page_tokens, context, threads, tensor_parallel, ranks_start_seconds;
	uint64_t sessions, turns, queue, calls, calls_principal, peers, principals;
	uint64_t session_turns;  /* turns that one session may have */
	uint64_t batch_rows, chunk, step_ms, growth, wait_ms, policy, ttl_ms;
	uint64_t body_bytes, blob_bytes, unread_bytes, stream_bytes, window_bytes, window_max;
	uint64_t lease_max_ms, principal_bytes;
	uint64_t sessions_principal, turns_principal; /* of one principal; 0: no quota */
	uint64_t share; /* 1: sessions of a principal share pages of equal tokens */
	uint64_t detach_ms, detach_max_ms, keep_ms, session_idle_ms, strikes, mute_ms;
	uint64_t heartbeat_ms, drain_ms, stall_ms, note_ms, deadline_max_ms;
	uint64_t audit_map_bytes, audit_commit_ms, audit_pace_ms, audit_stall_ms, audit_abort_ms, history_ttl_ms;
	uint64_t audit_headroom, audit_history, audit_segment, audit_readers_ms, audit_reader_stay_ms;
	char anchor[OPTIONS_PATH_MAX];
	uint64_t anchor_ms, anchor_entries;
	uint64_t digest, scrub_bytes, scrub_ms; /* digest: enum digest */
	char trace[OPTIONS_PATH_MAX], public_prefix[OPTIONS_PATH_MAX];
	uint64_t idem_ms;
	char inject[1024];
	/* Sockets of events: where session events are told ("": beside --listen), and blocks. */
	char events[OPTIONS_PATH_MAX], kv_events[OPTIONS_PATH_MAX], kv_replay[OPTIONS_PATH_MAX], kv_topic[64];
	uint64_t events_kept, kv_events_kept, kv_events_form, subscriptions;
};

/* Fills in the defaults, then the config file if one is named, then the arguments (argv[0] is not
   looked at). On refusal prints one line to stderr and returns the exit code 2 (or 1 for a config
   file that cannot be read); 0 when all is well; -1 when help was asked for and printed. */
int options_read(int argc, char **argv, struct options *out);

/* The options that are not the default, as they would be typed, one a space; what has no room is left out.
   What the environment named, or the daemon chose, is there too. Returns the length. */
size_t options_text(const struct options *o, char *out, size_t room);

#endif
