/*
 * DATA, the one message that is an array: it is hot and its form is fixed.
 */
#include "clients/item.h"

enum { DATA_PARTS = 4 };

static bool data_nil(struct wire_value v)
{
	struct item i;
	return item_read(v.at, v.length, &i) && i.kind == ITEM_NIL;
}

/* One map for each token, each with its id and its log-probability. */
static int data_logprobs(struct wire_value v, struct wire_data *out)
{
	struct wire_value token;
	struct walk w;
	uint32_t count;
	uint64_t id;
	double p;
	if (!wire_get_array(v, &count) || count != out->n_tokens)
		return -ERR_BAD_BODY;
	walk_init(&w, v);
	while (walk_next(&w, &token))
		if (!wire_get_u64(wire_find(token, "t"), &id) ||
		    !wire_get_f64(wire_find(token, "p"), &p))
			return -ERR_BAD_BODY;
	out->logprobs = v;
	return 0;
}

int wire_read_data(const void *body, size_t length, const struct wire_limits *l,
	struct wire_data *out)
{
	struct wire_value root = {body, length}, part[DATA_PARTS];
	uint64_t tokens;
	uint32_t count;
	struct walk w;
	*out = (struct wire_data){0};
	TRY(wire_validate(body, length, l));
	/* More parts than these may come from a later version. */
	if (!wire_get_array(root, &count) || count < DATA_PARTS)
		return -ERR_BAD_BODY;
	walk_init(&w, root);
	for (int i = 0; i < DATA_PARTS; i++)
		CHECK(walk_next(&w, &part[i]));
	if (!wire_get_u64(part[0], &out->off) || out->off > WIRE_U64_MAX)
		return -ERR_BAD_BODY;
	if (!wire_get_u64(part[1], &tokens) || tokens > WIRE_DATA_TOKENS_MAX)
		return -ERR_BAD_BODY;
	out->n_tokens = (uint32_t)tokens;
	if (!data_nil(part[2]) && !wire_get_str(part[2], &out->text))
		return -ERR_BAD_BODY;
	return data_nil(part[3]) ? 0 : data_logprobs(part[3], out);
}

int wire_write_data(struct wire_writer *w, const struct wire_data *m)
{
	wire_put_array(w, DATA_PARTS);
	wire_put_u64(w, m->off);
	wire_put_u64(w, m->n_tokens);
	if (m->text.at)
		wire_put_str(w, m->text.at, m->text.length);
	else
		wire_put_nil(w);
	wire_put_value(w, m->logprobs);
	return w->full ? -ERR_TOO_BIG : 0;
}
