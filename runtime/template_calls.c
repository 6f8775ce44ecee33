/*
 * Finds tool calls in an assistant's text, whole or still growing.
 */
#include "runtime/template_inside.h"

#include <string.h>

enum { NAME_BYTES_MAX = 64 };

static bool is_space(char c)
{
	return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

/* How many of the mark's bytes the text begins with. */
static size_t common(const char *text, size_t length, const char *mark)
{
	size_t n = 0;
	while (n < length && mark[n] && text[n] == mark[n])
		n++;
	return n;
}

/* Takes name and arguments out of a whole object; false if it is no call. */
static bool read_call(struct json object, struct tool_call *call)
{
	struct json name, arguments;
	if (!json_find(object, "name", &name) || json_kind(name) != JSON_STRING)
		return false;
	if (!json_find(object, "arguments", &arguments) || json_kind(arguments) != JSON_OBJECT)
		return false;
	if (name.length < 3 || name.length > NAME_BYTES_MAX + 2 ||
	    memchr(name.at, '\\', name.length))
		return false;
	memset(call, 0, sizeof *call);
	call->name = (struct text){name.at + 1, name.length - 2};
	call->arguments = (struct text){arguments.at, arguments.length};
	return true;
}

/* What follows a call's opening mark; *used: bytes up to and with its closing mark. */
static enum json_scan scan_call(const char *text, size_t length, bool final,
				struct tool_call *call, size_t *used)
{
	struct json object;
	size_t at = 0;
	while (at < length && is_space(text[at]))
		at++;
	if (at < length && text[at] != '{')
		return JSON_WRONG;
	enum json_scan scan = json_scan(text + at, length - at, final, &object);
	if (scan == JSON_PART && final)
		return JSON_WRONG;
	if (scan != JSON_WHOLE)
		return scan;
	if (!read_call(object, call))
		return JSON_WRONG;
	at = (size_t)(object.at - text) + object.length;
	while (at < length && is_space(text[at]))
		at++;
	size_t n = common(text + at, length - at, TEMPLATE_CALL_CLOSE);
	*used = at + n;
	if (n == sizeof TEMPLATE_CALL_CLOSE - 1)
		return JSON_WHOLE;
	if (at + n < length)
		return JSON_WRONG;
	return final ? JSON_WHOLE : JSON_PART;
}

void calls_parse(const struct template *template, const char *text, size_t length, bool final,
		 struct calls *out)
{
	enum { CALLS_MAX = sizeof out->call / sizeof out->call[0] };
	const size_t mark = sizeof TEMPLATE_CALL_OPEN - 1;
	bool broken = false;
	(void)template;
	memset(out, 0, sizeof *out);
	out->text_length = length;
	for (size_t at = 0; at < length && out->count < CALLS_MAX;) {
		const char *start = memchr(text + at, '<', length - at);
		if (!start)
			break;
		at = (size_t)(start - text);
		size_t n = common(start, length - at, TEMPLATE_CALL_OPEN), used = 0;
		enum json_scan scan = JSON_WRONG;
		if (n == mark)
			scan = scan_call(start + mark, length - at - mark, final,
					 &out->call[out->count], &used);
		else if (at + n == length && !final)
			scan = JSON_PART;
		if (scan == JSON_WRONG) {
			broken |= n == mark;
			at += n == mark ? mark : 1;
			continue;
		}
		if (out->count == 0)
			out->text_length = at;
		if (scan == JSON_PART) {
			if (out->count == 0)
				out->state = n == mark ? CALLS_PARTIAL :
					     broken ? CALLS_BROKEN : CALLS_MAYBE;
			break;
		}
		out->count++;
		at += mark + used;
	}
	if (out->count > 0)
		out->state = CALLS_COMPLETE;
	else if (out->state == CALLS_NONE && broken)
		out->state = CALLS_BROKEN;
}
