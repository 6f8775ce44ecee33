/*
 * The messages of AR/1 as structs: what wire_read_* fill and wire_write_* take. Included by
 * clients/wire.h, which is the door.
 *
 * Strings and byte strings are borrowed: they point into the frame that was read, and die with it.
 * Absent optional numbers are WIRE_NONE or what the comment says; absent strings have at == NULL.
 */
#ifndef HOLDFAST_CLIENTS_MESSAGE_H
#define HOLDFAST_CLIENTS_MESSAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { WIRE_HEADER_BYTES = 24, WIRE_MAJOR = 1, WIRE_MINOR = 0 };
#define WIRE_NONE UINT64_MAX

enum wire_type {
	WIRE_HELLO = 0x01, WIRE_CALL = 0x02, WIRE_WINDOW = 0x03, WIRE_CANCEL = 0x04,
	WIRE_RESUME = 0x05, WIRE_ACK = 0x06, WIRE_PING = 0x07, WIRE_BYE = 0x0f,
	WIRE_WELCOME = 0x81, WIRE_ACCEPTED = 0x82, WIRE_DATA = 0x83, WIRE_END = 0x84,
	WIRE_NOTE = 0x85, WIRE_PONG = 0x87, WIRE_GOAWAY = 0x88, WIRE_REJECT = 0x89
};

enum { WIRE_FLAG_BLOB = 1 };

struct wire_header {
	uint8_t type; /* enum wire_type, or unknown */
	uint16_t flags;
	uint64_t channel, seq;
};

struct wire_id {
	uint8_t bytes[16];
};

struct wire_str {
	const char *at; /* NULL: absent */
	size_t length;
};

struct wire_bin {
	const uint8_t *at; /* NULL: absent */
	size_t length;
};

/* A part of a validated body: any MessagePack value with all that is in it. */
struct wire_value {
	const uint8_t *at; /* NULL: absent */
	size_t length;
};

enum wire_method {
	METHOD_SESSION_OPEN, METHOD_SESSION_TURN, METHOD_SESSION_CONTINUE, METHOD_SESSION_FORK,
	METHOD_SESSION_ROLLBACK, METHOD_SESSION_CLOSE, METHOD_SESSION_LIST, METHOD_SESSION_SHOW,
	METHOD_SESSION_ATTACH, METHOD_SESSION_RESIDENCY, METHOD_SESSION_HINT, METHOD_SESSION_PARK,
	METHOD_LEDGER_SHOW, METHOD_PAGES_SHOW, METHOD_MODEL_SHOW, METHOD_TOKENIZE,
	METHOD_DETOKENIZE, METHOD_HEALTH, METHOD_METRICS, METHOD_SESSION_EXPORT,
	METHOD_SESSION_IMPORT, METHOD_SESSION_FORGET, METHOD_EVENTS_REPLAY, METHOD_SESSION_TOUCH, METHOD_COUNT
};

enum wire_role { WIRE_SYSTEM, WIRE_USER, WIRE_ASSISTANT, WIRE_TOOL };
enum wire_tool_choice { TOOL_AUTO, TOOL_NONE, TOOL_REQUIRED };
enum wire_residency { WIRE_BEST_EFFORT, WIRE_LEASED, WIRE_PINNED };

enum {
	WIRE_MESSAGES_MAX = 256, WIRE_TOOLS_MAX = 128, WIRE_CALLS_MAX = 16, WIRE_STOPS_MAX = 16,
	WIRE_BIAS_MAX = 256, WIRE_CHOICES_MAX = 256
};

/* Lengths in bytes, and ranges. Names have no control characters. */
enum {
	WIRE_NAME_MAX = 64,       /* client, act_as, principal, template, label, status, why */
	WIRE_TOOL_NAME_MAX = 128, /* tool names and the ids of tool calls */
	WIRE_TOKEN_MAX = 1024,    /* of auth */
	WIRE_STOP_MAX = 256,
	WIRE_SCHEMA_MAX = 256 << 10, WIRE_REGEX_MAX = 16384, WIRE_CHOICE_MAX = 16384, WIRE_WHY_MAX = 128,
	WIRE_DRY_ALLOWED_MAX = 256, WIRE_DRY_LAST_MAX = 8192, WIRE_DRY_ALLOWED = 2, WIRE_DRY_LAST = 1024,
	WIRE_MAX_TOKENS_MAX = 1 << 24, WIRE_TOP_K_MAX = 1 << 20, WIRE_LOGPROBS_MAX = 17,
	WIRE_COUNT_MAX = 1024, WIRE_COUNT_DEFAULT = 100, WIRE_GROUP_MAX = 255,
	WIRE_WINDOW_DEFAULT = 64 << 10, WIRE_WINDOW_MAX = 1 << 20,
	WIRE_DEADLINE_MS_MAX = 3600 * 1000, WIRE_DETACH_MS_MAX = 24 * 3600 * 1000,
	WIRE_LEASE_MS_MAX = 7 * 24 * 3600 * 1000, WIRE_DATA_TOKENS_MAX = 1 << 16
};
#define WIRE_U64_MAX ((uint64_t)INT64_MAX) /* of turns, epochs, sequence numbers, offsets, bytes */

struct wire_tool_call {
	struct wire_str id, name, arguments; /* arguments: JSON text */
};

struct wire_message {
	uint8_t role; /* enum wire_role */
	struct wire_str content;
	uint32_t call_first, call_count; /* into wire_args.calls */
	struct wire_str tool_call_id, name;
};

struct wire_sampling {
	uint32_t max_tokens;  /* 0: what the context leaves */
	double temperature;   /* default 0: greedy */
	double top_p, min_p, typical; /* 1, 0, 1: off */
	uint32_t top_k;       /* 0: off */
	double repetition, presence, frequency; /* 1, 0, 0: off */
	double dry, dry_base;  /* 0: off; base 1.75 */
	uint32_t dry_allowed, dry_last;
	uint64_t seed;
	uint32_t logprobs;    /* 0: none; 1: of the sampled; 1 + n: with n alternatives */
	uint32_t stop_count, stop_token_count;
	uint32_t bias_count;
	bool ignore_end;      /* end tokens do not end the turn */
	struct wire_str stop[WIRE_STOPS_MAX]; /* each 1 .. 256 bytes */
	uint32_t stop_token[WIRE_STOPS_MAX];
	struct { uint32_t token; double add; } bias[WIRE_BIAS_MAX];
};

struct wire_residency_args {
	bool present;
	uint8_t kind;       /* enum wire_residency */
	uint64_t bytes, tokens, lease_ms; /* WIRE_NONE: not said */
};

/* The arguments of all methods; each method's reader fills what it knows and refuses the rest. */
struct wire_args {
	/* session.open */
	struct wire_str system, template_name, label;
	uint32_t tool_count;
	struct wire_str tools[WIRE_TOOLS_MAX]; /* each a JSON object as text */
	struct wire_residency_args residency;  /* also fork, residency */
	/* session.turn, session.continue */
	uint32_t message_count, call_count;
	struct wire_message messages[WIRE_MESSAGES_MAX]; /* continue: role WIRE_TOOL each */
	struct wire_tool_call calls[WIRE_MESSAGES_MAX];  /* of all messages together */
	bool tokens_in_blob; /* the third frame holds little-endian u32 ids instead of messages */
	uint64_t keep;       /* with tokens: history tokens that stay; WIRE_NONE: all */
	uint8_t tool_choice; /* enum wire_tool_choice */
	bool supersede;
	struct wire_sampling sampling;
	/* The form of the answer: one of them at most. */
	struct wire_str schema, regex; /* schema: JSON text */
	bool has_choices;
	uint32_t choice_count;
	struct wire_str choices[WIRE_CHOICES_MAX];
	/* session.rollback, session.fork: token count or turn number to go back to */
	uint64_t tokens, to_turn;
	bool tied;           /* session.fork: it is closed when its parent is */
	/* session.hint */
	uint64_t returns_in_ms;
	struct wire_str tool_name;
	struct wire_str place; /* session.park: "host", "disk", "tokens" */
	/* pages.show, session.list: a range; events.replay: the first event's number, and how many */
	uint64_t first, count, group;
	struct wire_str principal; /* events.replay: whose; absent: one's own */
	/* session.import, with the tokens in the third frame */
	struct wire_bin course; /* how the history came to be, as session.export gave it */
	uint64_t at_turn;
	bool waits;             /* for the results of tool calls */
	/* tokenize: text, or the third frame; detokenize: ids in the third frame */
	struct wire_str text;
	bool special;
};

struct wire_hello {
	struct wire_str client;
	uint32_t minor;
	struct wire_str token, act_as;
};
struct wire_welcome {
	uint32_t minor;
	struct wire_id boot;
	struct wire_str principal;
	uint64_t frame_max, inflight_max, window_max, depth_max, hb_ms;
};
struct wire_call {
	uint8_t method; /* enum wire_method */
	bool has_idem, has_sess;
	struct wire_id idem, sess;
	uint64_t epoch, turn, deadline_ms, detach_ms; /* WIRE_NONE: absent */
	uint64_t window; /* first absolute byte limit; default 64 KiB */
	struct wire_args a;
	const char *why; /* of one that is refused: the argument's name, or a fixed text; or NULL */
};
struct wire_accepted {
	struct wire_id op;
	bool dup, durable;
};
/* Text may be empty. logprobs: per token its own, then its alternatives, if asked. ids in the blob. */
struct wire_data {
	uint64_t off;
	uint32_t n_tokens;
	struct wire_str text;
	struct wire_value logprobs; /* array of n_tokens maps {t: id, p: f32, top: [[id, p]…]}, or absent */
};
struct wire_err {
	int code; /* enum err, 100 … 699; 0: none */
	const char *retry; /* "no", "same", "later", "resume" */
	uint64_t after_ms; /* WIRE_NONE: absent */
	uint64_t used, asked, limit; /* numbers of the refusal; WIRE_NONE: absent */
	struct wire_str why; /* a fixed text that says more than the code; may be absent */
};
struct wire_usage {
	bool present;
	uint64_t prompt, resident, reloaded, recomputed, fresh; /* "new" on the wire */
	uint64_t sampled, history, context_left;
	uint64_t queue_us, prefill_us, decode_us, tool_us; /* tool_us: since the tool call, WIRE_NONE */
	uint64_t diverged_at; /* first token that was not found resident; WIRE_NONE: all were */
	struct wire_str diverged_why; /* "new", "rolled_back", "evicted", "fork_tail", … */
	uint64_t forced; /* of the sampled: known without sampling, since nothing else could come */
};
struct wire_end {
	struct wire_str status; /* "stop", "limit", "tool_wait", "cancelled", "ok", "error", … */
	struct wire_err err;
	struct wire_usage usage;
	uint64_t turn, epoch; /* the session's now; WIRE_NONE: absent */
	bool has_sess;
	struct wire_id sess;
	uint32_t call_count;
	struct wire_tool_call calls[WIRE_CALLS_MAX]; /* "next": the calls to make */
	struct wire_value result; /* "r": what the method returns; absent for turns */
	bool durable;
};
struct wire_note {
	struct wire_id op;
	struct wire_str state; /* "queued", "prefilling", "decoding", "paused" */
	uint64_t done, total, place, short_by, eta_ms; /* WIRE_NONE: absent */
};
struct wire_reject {
	struct wire_err err;
};
struct wire_goaway {
	struct wire_str why;
	uint64_t deadline_ms, retry_ms;
};
struct wire_window {
	struct wire_id op;
	uint64_t max_off;
};
struct wire_cancel {
	bool has_op;          /* else by the header's channel */
	struct wire_id op;
	struct wire_str why;
};
struct wire_resume {
	struct wire_id op;
	uint64_t after_seq, window;
};
struct wire_ack {
	struct wire_id op;
	uint64_t seq;
};
struct wire_ping {
	uint64_t t;
};

#endif
