/*
 * The end of a broken invariant, and the texts of the error codes. check_failed is the only place
 * in the program that aborts; it uses nothing that could fail or allocate.
 */
#include "sched/check.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct err_entry {
	int code;
	const char *name;
	const char *text;
};

static const struct err_entry table[] = {
	{ERR_NONE, "ok", "no error"},
	{ERR_VERSION, "version", "this major version of the protocol is not spoken here"},
	{ERR_BAD_FRAMES, "bad_frames", "the message does not have the frames it must have"},
	{ERR_BAD_TYPE, "bad_type", "the message type is not known"},
	{ERR_BAD_BODY, "bad_body", "the body is not valid in this protocol"},
	{ERR_TOO_BIG, "too_big", "a part of the message is larger than its limit"},
	{ERR_UNKNOWN_FIELD, "unknown_field", "the body has a field that this method does not know"},
	{ERR_LIMIT, "limit", "a limit on the number of things in flight is reached"},
	{ERR_UNAUTHENTICATED, "unauthenticated", "say HELLO first"},
	{ERR_FORBIDDEN, "forbidden", "this principal may not do that"},
	{ERR_KEY_REVOKED, "key_revoked", "the key was revoked"},
	{ERR_ROUTING_ID, "routing_id", "connect without a routing id of your own"},
	{ERR_BAD_ARG, "bad_arg", "an argument is missing or of the wrong kind"},
	{ERR_OUT_OF_RANGE, "out_of_range", "an argument is outside its range"},
	{ERR_IDEM_MISMATCH, "idem_mismatch", "the idempotency key was used with another body"},
	{ERR_NOT_FOUND, "not_found", "there is no such thing, or it is not yours"},
	{ERR_GONE, "gone", "what was asked for is no longer kept"},
	{ERR_SESSION_BUSY, "session_busy", "the session has a turn running"},
	{ERR_TURN_CONFLICT, "turn_conflict", "the session is at another turn"},
	{ERR_FENCED, "fenced", "the session was attached by a newer client"},
	{ERR_EXPIRED, "expired", "the session or its lease has expired"},
	{ERR_CONTEXT_FULL, "context_full", "the turn does not fit the context"},
	{ERR_OVERLOADED, "overloaded", "too much work is waiting"},
	{ERR_NO_PAGES, "no_pages", "the turn can never fit the KV memory"},
	{ERR_SLOW_CONSUMER, "slow_consumer", "the client did not read its stream in time"},
	{ERR_DEADLINE, "deadline", "the deadline passed"},
	{ERR_DRAINING, "draining", "the daemon is shutting down"},
	{ERR_AUDIT_STALLED, "audit_stalled", "the audit log does not keep up"},
	{ERR_LOG_FULL, "log_full", "there is no room for the audit log"},
	{ERR_INTERNAL, "internal", "an internal fault ended the turn"},
	{ERR_INTEGRITY, "integrity", "a page was not the turn's own; the turn is over"},
	{ERR_RESTARTED, "restarted", "the daemon restarted"},
	{ERR_DEVICE, "device", "the device, or a rank of it, is lost; the daemon ends"},
	{ERR_IO, "io", "an input or output operation failed"},
	{ERR_MEMORY, "memory", "not enough memory"},
	{ERR_PERMISSION, "permission", "permission denied"},
	{ERR_IN_USE, "in_use", "in use by another process"},
	{ERR_DISK_FULL, "disk_full", "no space left on the disk"},
	{ERR_BAD_FILE, "bad_file", "the file is not valid"},
	{ERR_UNSUPPORTED, "unsupported", "valid, but not supported here"},
	{ERR_NO_FILE, "no_file", "there is no such file"},
	{ERR_TIMEOUT, "timeout", "no answer in time"},
	{ERR_CLOSED, "closed", "the connection or handle is closed"},
};

static const struct err_entry *err_find(int code)
{
	const long wanted = code < 0 ? -(long)code : code; /* whatever a caller of the library hands in */
	for (unsigned i = 0; i < sizeof table / sizeof table[0]; i++)
		if (table[i].code == wanted)
			return &table[i];
	return NULL;
}

const char *err_name(int code)
{
	const struct err_entry *e = err_find(code);
	return e ? e->name : "unknown";
}

const char *err_text(int code)
{
	const struct err_entry *e = err_find(code);
	return e ? e->text : "unknown error";
}

static void say(const char *text)
{
	/* Nothing can be done about a failure here: the process is ending. */
	ssize_t ignored = write(2, text, strlen(text));
	(void)ignored;
}

void check_failed(const char *file, int line, const char *expression)
{
	char digits[12];
	int at = (int)sizeof digits;
	digits[--at] = 0;
	do {
		digits[--at] = (char)('0' + line % 10);
		line /= 10;
	} while (line > 0);
	say("holdfast: broken invariant: ");
	say(file);
	say(":");
	say(digits + at);
	say(": ");
	say(expression);
	say("\n");
	abort();
}
