/*
 * Finds tool calls in an assistant's text, whole or still growing: behind the marks that a template
 * has for them, or as an answer that is nothing else.
 */
#include "runtime/template_inside.h"

#include <string.h>

enum {
	NAME_BYTES_MAX = 64,
	ID_CHARACTERS = 9,
	CALLS_MAX = sizeof ((struct calls *)0)->call / sizeof(struct tool_call)
};

/* How calls follow a mark. */
enum shape {
	SHAPE_BLOCK, /* one object, then a closing mark */
	SHAPE_LIST,  /* an array of objects, or one object */
	SHAPE_ROW    /* objects, parted by white space and ';' */
};
struct mark {
	const char *open, *close;
	enum shape shape;
};

/* All take ChatML's blocks: models are trained on many texts, and forced calls are written so. */
static const struct mark marks_chatml[] = {{TEMPLATE_CALL_OPEN, TEMPLATE_CALL_CLOSE, SHAPE_BLOCK}};
static const struct mark marks_llama[] = {{TEMPLATE_CALL_OPEN, TEMPLATE_CALL_CLOSE, SHAPE_BLOCK},
					  {TEMPLATE_PYTHON_TAG, "", SHAPE_ROW}};
static const struct mark marks_mistral[] = {{TEMPLATE_CALL_OPEN, TEMPLATE_CALL_CLOSE, SHAPE_BLOCK},
					    {TEMPLATE_CALLS_MARK, "", SHAPE_LIST}};

/* What is looked at: the whole text, and whether more may come. */
struct scan {
	const char *text;
	size_t length;
	bool final;
	struct calls *out;
};

static const struct mark *marks_of(const struct template *template, unsigned *count)
{
	*count = template->family == &family_llama || template->family == &family_mistral ? 2 : 1;
	return template->family == &family_llama ? marks_llama :
	       template->family == &family_mistral ? marks_mistral : marks_chatml;
}

const char *template_call_mark(const struct template *template)
{
	unsigned count;
	const struct mark *mark = marks_of(template, &count);
	return mark[count - 1].open;
}

static bool is_space(char c)
{
	return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

static size_t spaces(const struct scan *s, size_t at)
{
	while (at < s->length && is_space(s->text[at]))
		at++;
	return at;
}

/* How many of the mark's bytes the text has at `at`. */
static size_t common(const struct scan *s, size_t at, const char *mark)
{
	size_t n = 0;
	while (at + n < s->length && mark[n] && s->text[at + n] == mark[n])
		n++;
	return n;
}

static bool nine_characters(struct json id)
{
	if (json_kind(id) != JSON_STRING || id.length != ID_CHARACTERS + 2)
		return false;
	for (size_t i = 1; i <= ID_CHARACTERS; i++) {
		const char c = id.at[i];
		if (!((c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')))
			return false;
	}
	return true;
}

/* Takes name and arguments out of a whole object; NULL, or why it is no call. */
static const char *read_call(struct json object, struct tool_call *call)
{
	struct json name, arguments, id;
	if (!json_find(object, "name", &name) || json_kind(name) != JSON_STRING)
		return "the object has no name";
	if (!json_find(object, "arguments", &arguments) && !json_find(object, "parameters", &arguments))
		return "the object has no arguments";
	if (json_kind(arguments) != JSON_OBJECT)
		return "the arguments are no object";
	if (name.length < 3 || name.length > NAME_BYTES_MAX + 2 || memchr(name.at, '\\', name.length))
		return "the name is empty, too long or has escapes";
	memset(call, 0, sizeof *call);
	call->name = (struct text){name.at + 1, name.length - 2};
	call->arguments = (struct text){arguments.at, arguments.length};
	if (json_find(object, "id", &id) && nine_characters(id))
		call->id = (struct text){id.at + 1, id.length - 2};
	return NULL;
}

_Static_assert(JSON_DEPTH_MAX == 64, "as the reason below says");

/* A call's object at `at`, after white space; *end: behind it. */
static enum json_scan scan_object(struct scan *s, size_t at, struct tool_call *call, size_t *end)
{
	struct json object;
	at = spaces(s, at);
	if (at == s->length && !s->final)
		return JSON_PART;
	s->out->reason = "no JSON object follows";
	if (at == s->length || s->text[at] != '{')
		return JSON_WRONG;
	const enum json_scan scan = json_scan(s->text + at, s->length - at, s->final, &object);
	if (scan == JSON_PART && !s->final)
		return JSON_PART;
	s->out->reason = scan == JSON_PART ? "the JSON is cut off" :
			 scan == JSON_DEEP ? "the JSON is nested deeper than 64" : "the JSON is broken";
	if (scan != JSON_WHOLE)
		return JSON_WRONG;
	*end = (size_t)(object.at - s->text) + object.length;
	s->out->reason = read_call(object, call);
	return s->out->reason ? JSON_WRONG : JSON_WHOLE;
}

/* One object and the closing mark; *end: behind that. */
static enum json_scan scan_block(struct scan *s, size_t at, const char *close, size_t *end)
{
	const enum json_scan scan = scan_object(s, at, &s->out->call[s->out->count], end);
	if (scan != JSON_WHOLE)
		return scan;
	*end = spaces(s, *end);
	const size_t n = common(s, *end, close);
	*end += n;
	if (close[n] && *end < s->length) {
		s->out->reason = "text stands between the object and the closing mark";
		return JSON_WRONG;
	}
	if (close[n] && !s->final)
		return JSON_PART;
	s->out->count++;
	return JSON_WHOLE;
}

/* Objects one after another, each a call as soon as it is whole. WRONG only when the first is none;
   PART while a further one may come. */
static enum json_scan scan_row(struct scan *s, size_t at, bool list, size_t *end)
{
	const uint32_t before = s->out->count;
	enum json_scan scan = JSON_WHOLE;
	at = spaces(s, at);
	const bool array = list && at < s->length && s->text[at] == '[';
	for (at += array; s->out->count < CALLS_MAX;) {
		scan = scan_object(s, at, &s->out->call[s->out->count], end);
		if (scan != JSON_WHOLE)
			break;
		s->out->count++;
		at = spaces(s, *end);
		if (at == s->length)
			return s->final ? JSON_WHOLE : JSON_PART;
		const char between = s->text[at];
		if (array ? between == ',' : !list && between == ';')
			at++;
		else if (list || between != '{')
			break;
		*end = at;
	}
	if (array && at < s->length && s->text[at] == ']')
		*end = at + 1;
	return scan == JSON_WRONG && s->out->count > before ? JSON_WHOLE : scan;
}

/* Whether the object's first key, as far as it is there, could be a call's: what is plainly something
   else need not be held back until its end. */
static bool first_key_fits(const struct scan *s, size_t at)
{
	static const char *const keys[] = {"\"name\"", "\"arguments\"", "\"parameters\"", "\"id\"", "\"type\""};
	at = spaces(s, at + 1);
	for (unsigned i = 0; i < sizeof keys / sizeof keys[0]; i++) {
		const size_t n = common(s, at, keys[i]);
		if (!keys[i][n] || at + n == s->length)
			return true;
	}
	return false;
}

/* An answer that is nothing but a call's object, perhaps in a fence: WHOLE only when no more comes. */
static enum json_scan scan_bare(struct scan *s, const struct template *template)
{
	static const char *const fences[] = {"```json", "```"};
	size_t at = spaces(s, 0), end = 0;
	const char *close = "";
	if (at == s->length)
		return s->final ? JSON_WRONG : JSON_PART;
	for (unsigned i = 0; i < 2 && !close[0]; i++) {
		const size_t n = common(s, at, fences[i]);
		if (at + n == s->length && !s->final)
			return JSON_PART;
		if (fences[i][n] == 0) {
			at = spaces(s, at + n);
			close = "```";
		}
	}
	if (at == s->length && !s->final)
		return JSON_PART;
	if (at == s->length || s->text[at] != '{' || !first_key_fits(s, at))
		return JSON_WRONG;
	const bool row = template->family == &family_llama && !close[0];
	enum json_scan scan = row ? scan_row(s, at, false, &end) : scan_object(s, at, &s->out->call[0], &end);
	if (scan != JSON_WHOLE)
		return scan;
	end = spaces(s, end);
	end += common(s, end, close);
	if (spaces(s, end) < s->length)
		return JSON_WRONG;
	s->out->count = s->out->count ? s->out->count : 1;
	return s->final ? JSON_WHOLE : JSON_PART;
}

/* The next place where one of the marks begins, or could begin at the text's end; how many of its
   bytes are there in *have. */
static const struct mark *mark_next(const struct scan *s, const struct template *template, size_t *at,
				    size_t *have)
{
	unsigned count;
	const struct mark *marks = marks_of(template, &count);
	for (; *at < s->length; ++*at) {
		const char *left = s->text + *at;
		if (count == 1 && !(left = memchr(left, marks[0].open[0], s->length - *at)))
			break;
		*at = (size_t)(left - s->text);
		for (unsigned i = 0; i < count; i++) {
			*have = common(s, *at, marks[i].open);
			if (!marks[i].open[*have] || (*have && *at + *have == s->length && !s->final))
				return &marks[i];
		}
	}
	return NULL;
}

static void scan_marks(struct scan *s, const struct template *template, size_t from)
{
	struct calls *out = s->out;
	const struct mark *mark;
	const char *broken = NULL;
	size_t at = from, have, end = 0;
	while (out->count < CALLS_MAX && (mark = mark_next(s, template, &at, &have))) {
		const uint32_t before = out->count;
		const bool whole = !mark->open[have];
		enum json_scan scan = JSON_PART;
		if (whole && mark->shape == SHAPE_BLOCK)
			scan = scan_block(s, at + have, mark->close, &end);
		else if (whole)
			scan = scan_row(s, at + have, mark->shape == SHAPE_LIST, &end);
		if (scan == JSON_WRONG) {
			broken = broken ? broken : out->reason;
			at += have;
			continue;
		}
		if (before == 0)
			out->text_length = at;
		if (scan == JSON_PART) {
			if (out->count == 0)
				out->state = whole ? CALLS_PARTIAL : broken ? CALLS_BROKEN : CALLS_MAYBE;
			break;
		}
		at = end;
	}
	out->reason = NULL;
	if (out->count > 0)
		out->state = CALLS_COMPLETE;
	else if (broken && (out->state == CALLS_NONE || out->state == CALLS_BROKEN)) {
		out->state = CALLS_BROKEN;
		out->reason = broken;
	}
}

void calls_parse_from(const struct template *template, const char *text, size_t length, size_t from,
		      bool final, struct calls *out)
{
	struct scan s = {text, length, final, out};
	memset(out, 0, sizeof *out);
	out->text_length = length;
	if (from == 0 && length > 0) {
		const enum json_scan scan = scan_bare(&s, template);
		out->reason = NULL;
		if (scan == JSON_WHOLE)
			out->state = CALLS_COMPLETE;
		else if (scan == JSON_PART)
			out->state = spaces(&s, 0) == length ? CALLS_MAYBE : CALLS_PARTIAL;
		if (scan != JSON_WHOLE)
			out->count = 0;
		if (scan != JSON_WRONG) {
			out->text_length = 0;
			return;
		}
	}
	scan_marks(&s, template, from);
}

void calls_parse(const struct template *template, const char *text, size_t length, bool final,
		 struct calls *out)
{
	calls_parse_from(template, text, length, 0, final, out);
}
