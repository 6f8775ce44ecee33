/*
 * The C client library of holdfast: blocking calls over AR/1. Needs no other header of ours.
 *
 *	struct hf_client *c;
 *	if (hf_open(NULL, NULL, &c) != 0) …
 *
 * A handle may be shared by threads: their calls run one after the other (two streams at once take two
 * handles). hf_cancel may be called from a signal handler too. Functions return 0 or a negative code:
 * that of the daemon's error (-404 is context_full), or one of the library's own, from 700. hf_name and
 * hf_text say both in words.
 *
 * A connection that breaks within a call is made again, and the call goes on where it was, with no gap
 * and no repeat, for resume_ms. Calls that change something carry a key, so that none runs twice.
 *
 * A daemon that is not there is told apart by when that shows: no_file or closed, nobody listens;
 * timeout, HELLO was not answered, or a cancelled call did not end; closed, a daemon that had said
 * WELCOME takes nothing any more or is silent to three pings. closed says nothing about the call
 * that was under way: it may have run.
 *
 * Each call takes a struct hf_end and fills it whatever happens; free it with hf_end_free. It owns
 * its memory and outlives the handle. Strings are UTF-8 and end with NUL; those that are passed in
 * are only borrowed for the call. The library installs no signal handler and ends no process, and
 * it believes nothing that the daemon says without a check.
 */
#ifndef HOLDFAST_CLIENT_H
#define HOLDFAST_CLIENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define HF_NONE UINT64_MAX /* a number that is absent */

struct hf_client;

struct hf_options {
	const char *client;  /* a name for logs, up to 64 bytes; NULL: "libholdfast" */
	const char *token;   /* NULL: none */
	const char *act_as;  /* for gateways; NULL: oneself */
	uint32_t timeout_ms; /* for the daemon to answer at all; 0: 5,000 */
	uint32_t window;     /* bytes of text in flight, 1,024 to 1 MiB; 0: 64 KiB */
	const char *key_file;   /* over TCP: our certificate, as holdfast keygen makes; NULL: none */
	const char *server_key; /* with it: the daemon's public key in Z85 */
	uint32_t resume_ms;  /* a call outlives its connection by so long; 0: 30,000; HF_NEVER: not */
};
#define HF_NEVER UINT32_MAX

struct hf_id {
	uint8_t bytes[16];
};

/* A session as this client knows it: each call on it carries epoch and turn, and updates them.
   HF_NONE: not known, and then not checked by the daemon. */
struct hf_session {
	struct hf_id id;
	uint64_t epoch, turn;
};

/* Says HELLO and waits for WELCOME. endpoint NULL: $HOLDFAST_ENDPOINT, else
   ipc://DIR/holdfast.sock with DIR $XDG_RUNTIME_DIR, else /tmp/holdfast-UID. */
int hf_open(const char *endpoint, const struct hf_options *options, struct hf_client **out);
void hf_close(struct hf_client **client); /* accepts NULL in it */
const char *hf_principal(const struct hf_client *c); /* who the daemon takes us for */

/* Cancels the call that runs, if one does: it ends with what was sampled, as "cancelled". */
void hf_cancel(struct hf_client *c);

/* --- What a call brings. --- */

/* A piece of the stream. Valid during the callback. */
struct hf_piece {
	const char *text; /* not ended by NUL */
	size_t length;
	const uint32_t *ids;
	const float *logprobs; /* one for each id; NULL if not asked */
	uint32_t id_count;
	const char *logprobs_json; /* with the alternatives; NULL if not asked */
};
struct hf_note {
	const char *state; /* "queued", "prefilling", "decoding", "paused" */
	uint64_t done, total, place, short_by, eta_ms; /* HF_NONE: absent */
};
/* Callbacks, each may be NULL. They run inside the call; one that returns non-zero cancels it. They
   must not call into the same handle (in_use), but for hf_cancel. */
struct hf_stream {
	int (*on_piece)(void *data, const struct hf_piece *piece);
	int (*on_note)(void *data, const struct hf_note *note);
	void *data;
};

struct hf_tool_call {
	char *id, *name, *arguments; /* arguments: JSON as the model wrote it */
};
struct hf_usage {
	bool present;
	uint64_t prompt, resident, reloaded, recomputed, fresh; /* the four add up to prompt */
	uint64_t sampled, history, context_left;
	uint64_t queue_us, prefill_us, decode_us, tool_us; /* tool_us may be HF_NONE */
	uint64_t diverged_at; /* HF_NONE: all was resident */
	char *diverged_why;   /* or NULL */
	uint64_t forced;      /* of the sampled: known without sampling, since nothing else could come */
};
struct hf_end {
	int code;          /* 0, or what the call returned */
	const char *name;  /* of the code; static */
	const char *text;  /* a sentence for the code; static */
	const char *retry; /* "no", "same", "later", "resume"; static */
	uint64_t after_ms, used, asked, limit; /* HF_NONE: absent */
	char why[132];     /* what a refusal says beyond its code; empty: nothing */
	char *status;      /* "stop", "limit", "tool_wait", "cancelled", …; NULL: no END came */
	struct hf_usage usage;
	struct hf_session session; /* where has_session */
	bool has_session, durable;
	struct hf_tool_call *calls; /* to be made, and answered with hf_session_continue */
	uint32_t call_count;
	char *json;        /* the result of methods that have one, as JSON; else NULL */
	uint8_t *packed;   /* the same as it came, in MessagePack, validated */
	size_t packed_bytes;
	uint32_t *ids;     /* of hf_tokenize */
	size_t id_count;
	char *bytes;       /* of hf_detokenize; ended by NUL, may contain NUL */
	size_t byte_count;
};
void hf_end_free(struct hf_end *end);

/* --- Sessions. --- */

enum hf_residency_kind { HF_BEST_EFFORT, HF_LEASED, HF_PINNED };
struct hf_residency {
	enum hf_residency_kind kind;
	uint64_t bytes, tokens, lease_ms; /* HF_NONE: not said */
};
struct hf_open_args {
	const char *system, *template_name, *label; /* NULL: none */
	const char *const *tools; /* each a JSON object */
	uint32_t tool_count;
	const struct hf_residency *residency; /* NULL: as the daemon likes */
};

enum hf_role { HF_SYSTEM, HF_USER, HF_ASSISTANT, HF_TOOL };
struct hf_message {
	enum hf_role role;
	const char *content;
	size_t length; /* of content; 0: up to its NUL */
	const struct hf_tool_call *calls; /* with HF_ASSISTANT */
	uint32_t call_count;
	const char *tool_call_id, *name; /* NULL: none */
};
enum hf_tool_choice { HF_AUTO, HF_NO_TOOL, HF_REQUIRED };
struct hf_bias {
	uint32_t token;
	double add;
};
/* All zero: greedy, up to the end of the turn or of the context. */
struct hf_sampling {
	uint32_t max_tokens;
	double temperature;
	double top_p, min_p, typical;           /* 0: off */
	uint32_t top_k;                         /* 0: off */
	double repetition, presence, frequency; /* 0: off */
	double dry, dry_base;                   /* 0: off; base 0: 1.75 */
	uint32_t dry_allowed, dry_last;         /* 0: 2, and 1024 tokens */
	uint64_t seed;
	uint32_t logprobs; /* 0: none; 1: of the sampled; 1 + n: with n alternatives */
	const char *const *stop;
	uint32_t stop_count;
	const struct hf_bias *bias;
	uint32_t bias_count;
	bool ignore_end;
	const uint32_t *stop_tokens; /* a token of these ends the turn too */
	uint32_t stop_token_count;
};
/* A turn has messages or, if token_count > 0, tokens. For hf_session_continue the messages are the
   results of tools: role HF_TOOL, tool_call_id, content. */
struct hf_turn {
	const struct hf_message *messages;
	uint32_t message_count;
	const uint32_t *tokens;
	size_t token_count;
	uint64_t keep; /* with tokens: history tokens that stay; 0: none, HF_NONE: all */
	enum hf_tool_choice tool_choice;
	bool supersede;
	struct hf_sampling sampling;
	/* The form of the answer, one of them at most: JSON of a schema, a regular expression, one of a
	   list. NULL or 0: none. */
	const char *schema, *regex;
	const char *const *choices;
	uint32_t choice_count;
	uint32_t deadline_ms; /* 0: none */
};

int hf_session_open(struct hf_client *c, const struct hf_open_args *args, struct hf_session *out,
	struct hf_end *end);
int hf_session_turn(struct hf_client *c, struct hf_session *s, const struct hf_turn *turn,
	const struct hf_stream *stream, struct hf_end *end);
int hf_session_continue(struct hf_client *c, struct hf_session *s, const struct hf_turn *turn,
	const struct hf_stream *stream, struct hf_end *end);
/* The same without waiting: 0, and then on_end is called once, whatever happens, in a thread of the
   library's, as are the callbacks of `stream` (copied). `s`, `turn` and all that it points to must live
   until then. on_end owns end and must not close the handle; hf_close cancels and waits for it. */
typedef void hf_on_end(void *data, struct hf_end *end);
int hf_session_turn_start(struct hf_client *c, struct hf_session *s, const struct hf_turn *turn,
	const struct hf_stream *stream, hf_on_end *on_end, void *data);
int hf_session_continue_start(struct hf_client *c, struct hf_session *s,
	const struct hf_turn *turn, const struct hf_stream *stream, hf_on_end *on_end, void *data);
/* Back to a number of tokens or to a turn; the other is HF_NONE. Fork: both may be. */
int hf_session_fork(struct hf_client *c, struct hf_session *s, uint64_t to_tokens,
	uint64_t to_turn, struct hf_session *out, struct hf_end *end);
/* The same; the new session is closed when this one is. */
int hf_session_fork_tied(struct hf_client *c, struct hf_session *s, uint64_t to_tokens,
	uint64_t to_turn, struct hf_session *out, struct hf_end *end);
int hf_session_rollback(struct hf_client *c, struct hf_session *s, uint64_t to_tokens,
	uint64_t to_turn, struct hf_end *end);
int hf_session_close(struct hf_client *c, struct hf_session *s, struct hf_end *end);
/* Closes it, and removes its text, tokens and pages everywhere; what was answered cannot be asked for
   again. Forks of it are sessions of their own, unless tied: those go with it. */
int hf_session_forget(struct hf_client *c, struct hf_session *s, struct hf_end *end);
int hf_session_show(struct hf_client *c, struct hf_session *s, struct hf_end *end);
int hf_session_attach(struct hf_client *c, struct hf_session *s, struct hf_end *end);
int hf_session_residency(struct hf_client *c, struct hf_session *s,
	const struct hf_residency *residency, struct hf_end *end);
int hf_session_hint(struct hf_client *c, struct hf_session *s, uint64_t returns_in_ms,
	const char *tool, struct hf_end *end);
/* It is still wanted: how long it rests, and its lease, count from now. */
int hf_session_touch(struct hf_client *c, struct hf_session *s, struct hf_end *end);
int hf_session_park(struct hf_client *c, struct hf_session *s, const char *place,
	struct hf_end *end);
/* The session as tokens (end->ids) and settings (end->json). */
int hf_session_export(struct hf_client *c, struct hf_session *s, struct hf_end *end);
/* As a new one, of this daemon or another with the same model: settings in MessagePack (end->packed of
   the export) and tokens. Settings that are none are bad_arg. */
int hf_session_import(struct hf_client *c, const uint8_t *settings, size_t bytes, const uint32_t *ids,
	size_t count, struct hf_session *out, struct hf_end *end);
int hf_session_list(struct hf_client *c, uint64_t first, uint64_t count, struct hf_end *end);

/* --- The rest. Results in end->json, ids and bytes. --- */

int hf_ledger_show(struct hf_client *c, struct hf_end *end); /* of sessions the first hundred */
int hf_ledger_part(struct hf_client *c, uint64_t first, uint64_t count, struct hf_end *end);
int hf_pages_show(struct hf_client *c, const struct hf_session *of, uint64_t first,
	uint64_t count, struct hf_end *end); /* of NULL: of all sessions */
int hf_model_show(struct hf_client *c, struct hf_end *end);
int hf_tokenize(struct hf_client *c, const char *text, size_t length, bool special,
	struct hf_end *end);
int hf_detokenize(struct hf_client *c, const uint32_t *ids, size_t count, struct hf_end *end);
int hf_health(struct hf_client *c, struct hf_end *end);
int hf_metrics(struct hf_client *c, struct hf_end *end);

/* --- Session events: granted, queued, running, tool_wait, ended, demoted, restored, lost, expired,
   closed, of the sessions that one may ask for. --- */

struct hf_events;
struct hf_event {
	uint64_t seq;        /* counts from 1 for each principal, anew when the daemon restarts */
	const char *json;    /* all of it; valid until the next call */
	const uint8_t *packed; /* the same in MessagePack */
	size_t packed_bytes;
};
/* endpoint NULL: the client's with "-events" behind it. The client must outlive it, and is used to ask
   for what was missed; events belong to one thread. Nobody need listen there: then none comes. */
int hf_events_open(struct hf_client *c, const char *endpoint, struct hf_events **out);
/* Waits for the next one; -timeout (708) when none came. What was missed comes first, if the daemon
   keeps it; else a gap in `seq` shows. Asking for it may take half a second longer, and waits for a call of
   another thread that runs on the client. */
int hf_events_next(struct hf_events *e, uint32_t timeout_ms, struct hf_event *out);
void hf_events_close(struct hf_events **events);
/* {last, first, events}: kept ones from number `first` on, of a principal (NULL: oneself). */
int hf_events_replay(struct hf_client *c, const char *principal, uint64_t first, uint64_t count,
	struct hf_end *end);

/* --- Words. --- */

const char *hf_name(int code); /* "session_busy"; of a code or its negation; static */
const char *hf_text(int code);
bool hf_later(int code); /* the same call may succeed later */
/* Ids as 32 hex digits and back. */
void hf_id_text(const struct hf_id *id, char out[33]);
bool hf_id_read(const char *text, struct hf_id *out);

#ifdef __cplusplus
}
#endif

#endif
