/*
 * A turn's text: sampled tokens become characters, what may be shown of them is told, stop strings and
 * calls are found.
 */
#include <sodium.h>
#include <stdio.h>
#include <string.h>

#include "runtime/daemon.h"

/* Parses what there is of the text from where a call could begin. */
static void calls_look(const struct daemon *d, const struct call *c, bool final, struct calls *out)
{
	calls_parse_from(d->template, c->text, c->text_length, c->calls_from, final, out);
}

/* By then an object's first key is there, by which much is told to be no call. */
enum { CALL_HEAD_BYTES = 64 };

static bool call_may_end(const char *text, size_t length)
{
	for (size_t i = 0; i < length; i++)
		if (text[i] == '}' || text[i] == '>' || text[i] == ']')
			return true;
	return false;
}

/* Moves the visible end after new text; true: a stop string was found and the text ends before it. */
static bool visible_move(struct daemon *d, struct call *c, size_t before)
{
	size_t hold, from = before > 256 ? before - 256 : 0;
	const size_t at = stop_find(
			c->sampling.stop, c->sampling.stop_count, c->text, from, c->text_length, &hold);
	if (at != SIZE_MAX) {
		c->text_length = at;
		hold = at;
	}
	c->visible = hold;
	/* A call that is open stays so until one of these comes; what it holds back is not read again for
	   every token, or a long one would take time by its square. */
	if (c->call_open && at == SIZE_MAX && !call_may_end(c->text + before, c->text_length - before)) {
		c->visible = hold < c->call_visible ? hold : c->call_visible;
	} else if (c->tools && d->template) {
		struct calls calls;
		calls_look(d, c, false, &calls);
		if (calls.state == CALLS_NONE)
			c->calls_from = c->text_length;
		else if (calls.state != CALLS_BROKEN && calls.text_length < c->visible)
			c->visible = calls.text_length;
		c->call_open = calls.state == CALLS_PARTIAL && c->text_length - calls.text_length > CALL_HEAD_BYTES;
		c->call_visible = c->visible;
	}
	return at != SIZE_MAX;
}

static bool is_stop(const struct call *c, uint32_t token)
{
	for (uint32_t i = 0; i < c->sampling.stop_token_count; i++)
		if (c->sampling.stop_token[i] == token)
			return true;
	return false;
}

static enum end token_take(struct daemon *d, uint32_t call, const struct ops_sampled *sampled)
{
	struct call *c = &d->calls[call];
	struct session *s = &d->sessions[c->session];
	const uint32_t token = sampled->token, n = c->sampled;
	const char *bytes;
	CHECK(s->history < d->limits.context_tokens);
	CHECK(token < d->model->arch.vocab);
	s->token[s->history++] = token;
	c->token[n] = token;
	c->logprob[n] = sampled->logprob;
	if (c->sampling.logprobs > 1)
		c->alternatives[n] = *sampled;
	c->sampled++;
	d->tokens_sampled++;
	const bool stops = is_stop(c, token);
	bool over = stops || (!c->sampling.ignore_end && tokenizer_is_end(d->tokenizer, token));
	const size_t before = c->text_length;
	/* The mark of a call may be a control token: then its text counts. */
	size_t length = tokenizer_bytes(d->tokenizer, token, c->tools && token == d->call_mark, &bytes);
	if (c->forced && !over)
		turn_form_token(d, c, token, bytes, length);
	if (stops)
		length = 0; /* what stops is not sent */
	c->text_length += utf8_stream_push(&c->utf8, bytes, length, true, over, c->text + c->text_length);
	over |= visible_move(d, c, before);
	c->text_end[n] = (uint32_t)c->text_length;
	/* A found stop string may have cut into the text of earlier tokens. */
	for (uint32_t i = n; i > c->made_tokens && c->text_end[i - 1] > c->text_length; i--)
		c->text_end[i - 1] = (uint32_t)c->text_length;
	if (!over && c->prompt + c->sampled < d->limits.context_tokens &&
	    (c->sampling.max_tokens == 0 || c->sampled < c->sampling.max_tokens))
		return END_NONE;
	if (c->tools && d->template) {
		struct calls calls;
		calls_look(d, c, true, &calls);
		if (calls.state == CALLS_COMPLETE)
			return END_TOOL;
	}
	return over ? END_STOP : END_NONE; /* limits are the scheduler's to find */
}

/* The next token is known, and there is room for it. Who asked for log-probabilities gets those of
   each token, so each is sampled. */
static bool known_next(struct daemon *d, struct call *c, uint32_t *token)
{
	return c->forced && d->options.forced == FORCED_APPEND && c->sampling.logprobs == 0 &&
	       c->sampled < c->output_max && c->sampled < c->credit &&
	       c->prompt + c->sampled < d->limits.context_tokens && turn_form_next(d, c, token);
}

enum end turn_token(struct daemon *d, uint32_t call, const struct ops_sampled *sampled, uint32_t *count)
{
	struct call *c = &d->calls[call];
	struct ops_sampled known = {0};
	enum end end = token_take(d, call, sampled);
	metrics_token(d, c);
	for (*count = 1; end == END_NONE && known_next(d, c, &known.token); ++*count) {
		end = token_take(d, call, &known);
		c->forced_tokens++;
		d->tokens_forced++;
	}
	return end;
}

const char *turn_status(enum end end)
{
	switch (end) {
	case END_STOP: return "stop";
	case END_LIMIT: return "limit";
	case END_TOOL: return "tool_wait";
	case END_CONTEXT: return "context_full";
	case END_CANCEL: return "cancelled";
	case END_CLOSED: return "closed";
	case END_SUPERSEDED: return "superseded";
	case END_DEADLINE: return "deadline";
	case END_SLOW: return "slow_consumer";
	case END_DRAIN: return "suspended";
	default: return "error";
	}
}

void turn_calls_fill(struct daemon *d, struct call *c, struct wire_end *end, char ids[][TURN_ID_ROOM])
{
	struct calls calls;
	calls_look(d, c, true, &calls);
	if (calls.state != CALLS_COMPLETE)
		return; /* cannot be: this is the text that was parsed when the turn ended */
	c->visible = calls.text_length;
	for (uint32_t i = 0; i < calls.count && i < WIRE_CALLS_MAX; i++) {
		uint64_t random;
		randombytes_buf(&random, sizeof random);
		snprintf(ids[i], TURN_ID_ROOM, "call_%016llx", (unsigned long long)random);
		const struct tool_call *t = &calls.call[i];
		/* The model's own, where its template has ids: it will look for it in the result. */
		bool own = t->id.length > 0 && t->id.length < TURN_ID_ROOM;
		for (uint32_t k = 0; k < i && own; k++)
			own = strlen(ids[k]) != t->id.length || memcmp(ids[k], t->id.at, t->id.length);
		if (own)
			snprintf(ids[i], TURN_ID_ROOM, "%.*s", (int)t->id.length, t->id.at);
		end->calls[i] = (struct wire_tool_call){{ids[i], strlen(ids[i])}, {t->name.at, t->name.length},
							{t->arguments.at, t->arguments.length}};
		end->call_count = i + 1;
	}
}

uint32_t turn_ids_add(uint32_t sum, const struct wire_str *id)
{
	static const uint8_t key[crypto_shorthash_KEYBYTES] = {0};
	uint8_t hash[crypto_shorthash_BYTES];
	crypto_shorthash(hash, (const uint8_t *)id->at, id->length, key);
	return sum + ((uint32_t)hash[0] | (uint32_t)hash[1] << 8 | (uint32_t)hash[2] << 16 |
		      (uint32_t)hash[3] << 24);
}

void turn_no_call_fill(struct daemon *d, const struct call *c, struct wire_end *end)
{
	struct calls calls;
	struct wire_writer w;
	if (!c->tools || !d->template)
		return;
	calls_look(d, c, true, &calls);
	if (calls.state != CALLS_BROKEN)
		return;
	wire_writer_init(&w, d->out, d->out_max);
	wire_put_map(&w, 1);
	wire_put_text(&w, "no_call");
	wire_put_text(&w, calls.reason);
	end->result = (struct wire_value){w.at, w.length};
}
