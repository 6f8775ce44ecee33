/*
 * The text of a daemon's model: tokenizer, template, the vocabulary for forms; and which template a
 * session may name.
 */
#include <stdio.h>
#include <string.h>

#include "runtime/daemon.h"

/* The named one. A model that lacks what it writes is served all the same: its user asked for it. */
static int template_named(struct daemon *d)
{
	if (template_find(d->options.template_name, &d->template) != 0) {
		char names[256] = "";
		for (unsigned i = 0, n = 0; template_names(i) && n < sizeof names; i++)
			n += (unsigned)snprintf(names + n, sizeof names - n, "%s%s", i ? ", " : "", template_names(i));
		log_say(LOG_ERROR, "there is no chat template of that name (--template); known: %s", names);
		return -ERR_UNSUPPORTED;
	}
	const char *missing = template_missing(d->template, d->model);
	if (missing)
		log_say(LOG_NOTICE,
			"this model has no control token %s, which the template %s writes: it will be read as "
			"plain text (--template)", missing, template_name(d->template));
	return 0;
}

static int template_open(struct daemon *d)
{
	char reason[MODEL_REASON_MAX];
	if (d->options.template_name[0]) {
		TRY(template_named(d));
	} else if (template_of_model(d->model, &d->template, reason) != 0) {
		log_say(LOG_NOTICE, "%s; name a template with --template, or send raw tokens: "
			"messages will be refused", reason);
		d->template = NULL;
	}
	if (d->template)
		snprintf(d->template_why, sizeof d->template_why,
			 "this daemon's template is %s: name that one, none (raw tokens), "
			 "or leave it away", template_name(d->template));
	else
		snprintf(d->template_why, sizeof d->template_why,
			 "this daemon has no template: name none (raw tokens), or leave it "
			 "away; --template names one at its start");
	return 0;
}

int text_open(struct daemon *d)
{
	char reason[MODEL_REASON_MAX];
	int code = tokenizer_open(d->model, &d->tokenizer, reason);
	if (code) {
		log_say(LOG_ERROR, "%s", reason);
		return code;
	}
	TRY(template_open(d));
	d->call_mark = d->end_mark = UINT32_MAX;
	for (uint32_t id = tokenizer_count(d->tokenizer); d->template && id-- > 0;)
		if (tokenizer_is_end(d->tokenizer, id) && template_is_end_mark(d->template, d->tokenizer, id))
			d->end_mark = id;
	if (d->template)
		d->call_mark = tokenizer_find(d->tokenizer, template_call_mark(d->template));
	if (form_index_open(d->tokenizer, &d->form_index) != 0)
		log_say(LOG_NOTICE, "this vocabulary cannot write answers of a form");
	for (uint32_t id = 0; id < tokenizer_count(d->tokenizer); id++) {
		const char *bytes;
		const size_t n = tokenizer_bytes(d->tokenizer, id, true, &bytes);
		if (n > d->token_bytes_max)
			d->token_bytes_max = n;
	}
	/* A byte that is no character may become three. */
	d->token_bytes_max = d->token_bytes_max * 3 + 16;
	return 0;
}

int session_template(const struct daemon *d, const struct wire_str *name, bool *raw)
{
	*raw = name->length == 4 && memcmp(name->at, "none", 4) == 0;
	if (!name->at || *raw)
		return 0;
	const char *ours = d->template ? template_name(d->template) : "";
	return strlen(ours) == name->length && memcmp(ours, name->at, name->length) == 0 ? 0 : -ERR_BAD_ARG;
}
