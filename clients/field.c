/*
 * The engine under the tables of the messages: reads and writes structs as they say.
 */
#include "clients/field.h"

#include <string.h>

static void *member(void *message, uint32_t at)
{
	return (char *)message + at;
}

static const void *member_const(const void *message, uint32_t at)
{
	return (const char *)message + at;
}

int field_string(struct wire_value v, uint64_t low, uint64_t high, bool name,
	struct wire_str *out)
{
	struct wire_str s;
	if (!wire_get_str(v, &s))
		return -ERR_BAD_ARG;
	if (s.length < low || (high > 0 && s.length > high))
		return -ERR_OUT_OF_RANGE;
	for (size_t i = 0; name && i < s.length; i++)
		if ((unsigned char)s.at[i] < 0x20 || s.at[i] == 0x7f)
			return -ERR_BAD_ARG;
	*out = s;
	return 0;
}

static int read_integer(const struct field *f, struct wire_value v, uint64_t *out)
{
	double any;
	if (!wire_get_u64(v, out)) {
		struct item i;
		bool below = item_read(v.at, v.length, &i) && i.kind == ITEM_INT;
		return below && wire_get_f64(v, &any) ? -ERR_OUT_OF_RANGE : -ERR_BAD_ARG;
	}
	if (*out < f->low || (f->high > 0 && *out > f->high))
		return -ERR_OUT_OF_RANGE;
	return 0;
}

static int read_real(const struct field *f, struct wire_value v, double *out)
{
	double n;
	if (!wire_get_f64(v, &n))
		return -ERR_BAD_ARG;
	if (n < f->real_low || n > f->real_high)
		return -ERR_OUT_OF_RANGE;
	if ((f->flags & FIELD_ABOVE) && n <= f->real_low)
		return -ERR_OUT_OF_RANGE;
	*out = n;
	return 0;
}

static int name_index(const char *const *names, struct wire_str s)
{
	for (int i = 0; names[i]; i++)
		if (strlen(names[i]) == s.length && memcmp(names[i], s.at, s.length) == 0)
			return i;
	return -ERR_BAD_ARG;
}

static int read_name(const struct field *f, struct wire_value v, void *to)
{
	struct wire_str s;
	TRY(field_string(v, f->low, f->high, f->kind != FIELD_TEXT, &s));
	int index = f->names ? name_index(f->names, s) : 0;
	if (index < 0)
		return index;
	if (f->kind == FIELD_CHOICE)
		*(uint8_t *)to = (uint8_t)index;
	else
		*(struct wire_str *)to = s;
	return 0;
}

static int read_id(struct wire_value v, struct wire_id *out)
{
	struct wire_bin b;
	if (!wire_get_bin(v, &b) || b.length != sizeof out->bytes)
		return -ERR_BAD_ARG;
	memcpy(out->bytes, b.at, sizeof out->bytes);
	return 0;
}

/* Maps in maps: the tables nest two deep, and only as the tables say. */
static int field_read(const struct field *f, struct wire_value v, uint32_t methods, void *message)
{
	void *to = member(message, f->at);
	uint64_t n = 0;
	switch ((enum field_kind)f->kind) {
	case FIELD_U32:
		TRY(read_integer(f, v, &n));
		CHECK(n <= UINT32_MAX);
		*(uint32_t *)to = (uint32_t)n;
		break;
	case FIELD_U64:
		TRY(read_integer(f, v, to));
		break;
	case FIELD_BOOL:
		if (!wire_get_bool(v, to))
			return -ERR_BAD_ARG;
		break;
	case FIELD_REAL:
		TRY(read_real(f, v, to));
		break;
	case FIELD_TEXT:
	case FIELD_NAME:
	case FIELD_CHOICE:
		TRY(read_name(f, v, to));
		break;
	case FIELD_ID:
		TRY(read_id(v, to));
		break;
	case FIELD_VALUE:
		*(struct wire_value *)to = v;
		break;
	case FIELD_MAP:
		TRY(fields_read(v, f->table, methods, to, NULL));
		break;
	case FIELD_OTHER:
		TRY(f->read(v, message));
		break;
	case FIELD_SKIP:
		break;
	}
	if (f->has > 0)
		*(bool *)member(message, f->has - 1) = true;
	return 0;
}

static bool field_takes(const struct field *f, uint32_t methods)
{
	return f->methods == 0 || (f->methods & methods) != 0;
}

static const struct field *field_find(const struct table *t, uint32_t methods, struct wire_str key)
{
	for (uint32_t i = 0; i < t->count; i++) {
		const struct field *f = &t->fields[i];
		if (strlen(f->key) == key.length && memcmp(f->key, key.at, key.length) == 0 &&
		    field_takes(f, methods))
			return f;
	}
	return NULL;
}

/* The field is wrong. */
static int wrong(const struct table *t, const struct field *f, int code, const char **key)
{
	if (key)
		*key = f->key;
	return t->strict ? code : -ERR_BAD_BODY;
}

int fields_read(struct wire_value map, const struct table *t, uint32_t methods, void *message,
	const char **key)
{
	struct wire_value name, value;
	struct walk w;
	uint32_t pairs;
	uint64_t seen = 0;
	CHECK(t->count <= 64);
	if (!wire_get_map(map, &pairs))
		return t->strict ? -ERR_BAD_ARG : -ERR_BAD_BODY;
	walk_init(&w, map);
	while (walk_next(&w, &name) && walk_next(&w, &value)) {
		struct wire_str said;
		CHECK(wire_get_str(name, &said));
		const struct field *f = field_find(t, methods, said);
		if (f) {
			int code = field_read(f, value, methods, message);
			if (code != 0)
				return wrong(t, f, code, key);
			seen |= 1ull << (f - t->fields);
		} else if (t->strict && (said.length < 2 || memcmp(said.at, "x-", 2) != 0)) {
			return -ERR_UNKNOWN_FIELD;
		}
	}
	for (uint32_t i = 0; i < t->count; i++)
		if ((t->fields[i].flags & FIELD_NEEDED) && field_takes(&t->fields[i], methods) &&
		    !(seen >> i & 1))
			return wrong(t, &t->fields[i], -ERR_BAD_ARG, key);
	return 0;
}

int fields_read_body(const void *body, size_t length, const struct wire_limits *l,
	const struct table *t, void *message, const char **key)
{
	struct wire_value root = {body, length};
	uint32_t pairs;
	TRY(wire_validate(body, length, l));
	if (!wire_get_map(root, &pairs))
		return -ERR_BAD_BODY;
	return fields_read(root, t, 0, message, key);
}

static bool field_present(const struct field *f, uint32_t methods, const void *message)
{
	const void *from = member_const(message, f->at);
	if (f->kind == FIELD_SKIP || !field_takes(f, methods))
		return false;
	if (f->present)
		return f->present(message);
	if (f->has > 0)
		return *(const bool *)member_const(message, f->has - 1);
	if (f->flags & FIELD_NEEDED)
		return true;
	switch ((enum field_kind)f->kind) {
	case FIELD_U32:
		return *(const uint32_t *)from != f->absent;
	case FIELD_U64:
		return *(const uint64_t *)from != f->absent;
	case FIELD_BOOL:
		return *(const bool *)from;
	case FIELD_REAL:
		return *(const double *)from < f->real_absent ||
			*(const double *)from > f->real_absent;
	case FIELD_TEXT:
	case FIELD_NAME:
		return ((const struct wire_str *)from)->at != NULL;
	case FIELD_CHOICE:
		return *(const uint8_t *)from != f->absent;
	case FIELD_VALUE:
		return ((const struct wire_value *)from)->at != NULL;
	default:
		return true;
	}
}

static void field_write(struct wire_writer *w, const struct field *f, uint32_t methods,
	const void *message)
{
	const void *from = member_const(message, f->at);
	const struct wire_str *s = from;
	wire_put_text(w, f->key);
	switch ((enum field_kind)f->kind) {
	case FIELD_U32:
		wire_put_u64(w, *(const uint32_t *)from);
		break;
	case FIELD_U64:
		wire_put_u64(w, *(const uint64_t *)from);
		break;
	case FIELD_BOOL:
		wire_put_bool(w, *(const bool *)from);
		break;
	case FIELD_REAL:
		wire_put_f64(w, *(const double *)from);
		break;
	case FIELD_TEXT:
	case FIELD_NAME:
		wire_put_str(w, s->at ? s->at : "", s->length);
		break;
	case FIELD_CHOICE:
		wire_put_text(w, f->names[*(const uint8_t *)from]);
		break;
	case FIELD_ID:
		wire_put_bin(w, ((const struct wire_id *)from)->bytes, sizeof(struct wire_id));
		break;
	case FIELD_VALUE:
		wire_put_value(w, *(const struct wire_value *)from);
		break;
	case FIELD_MAP:
		fields_write(w, f->table, methods, from);
		break;
	case FIELD_OTHER:
		f->write(w, message);
		break;
	case FIELD_SKIP:
		break;
	}
}

void fields_write(struct wire_writer *w, const struct table *t, uint32_t methods,
	const void *message)
{
	uint32_t pairs = 0;
	for (uint32_t i = 0; i < t->count; i++)
		pairs += field_present(&t->fields[i], methods, message);
	wire_put_map(w, pairs);
	for (uint32_t i = 0; i < t->count; i++)
		if (field_present(&t->fields[i], methods, message))
			field_write(w, &t->fields[i], methods, message);
}

int fields_write_body(struct wire_writer *w, const struct table *t, const void *message)
{
	fields_write(w, t, 0, message);
	return w->full ? -ERR_TOO_BIG : 0;
}
