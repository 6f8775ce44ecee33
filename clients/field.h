/*
 * Messages as tables. A field says under which key a member of a struct stands on the wire, of what
 * kind it is, in what range, and when it is left out; the same table reads and writes. Private to
 * clients/.
 */
#ifndef HOLDFAST_CLIENTS_FIELD_H
#define HOLDFAST_CLIENTS_FIELD_H

#include "clients/item.h"

enum field_kind {
	FIELD_U32, FIELD_U64, FIELD_BOOL, FIELD_REAL,
	FIELD_TEXT,   /* struct wire_str of any characters */
	FIELD_NAME,   /* struct wire_str without control characters; one of names, if there are */
	FIELD_CHOICE, /* uint8_t: the index in names */
	FIELD_ID,     /* struct wire_id */
	FIELD_VALUE,  /* struct wire_value, as it stands */
	FIELD_MAP,    /* a struct with a table of its own */
	FIELD_OTHER,  /* by the functions below */
	FIELD_SKIP    /* known, not read and not written by the table */
};

enum {
	FIELD_NEEDED = 1, /* refused when absent; always written */
	FIELD_ABOVE = 2   /* the lower bound itself is outside */
};

struct table;

struct field {
	const char *key;
	uint8_t kind, flags;
	uint32_t at;  /* offset of the member */
	uint32_t has; /* 1 + offset of a bool that says it is there; 0: none */
	uint32_t methods; /* bits of enum wire_method that take it; 0: all */
	/* Of integers the range of the value, of strings that of the length; high 0: no bound. */
	uint64_t low, high, absent;
	double real_low, real_high, real_absent;
	const char *const *names; /* ends with NULL */
	const struct table *table;
	int (*read)(struct wire_value v, void *message);
	bool (*present)(const void *message);
	void (*write)(struct wire_writer *w, const void *message);
};

struct table {
	const struct field *fields;
	uint32_t count;
	bool strict; /* what a client sends: unknown keys are refused */
};

#define TABLE(name, fields, is_strict) \
	static const struct table name = {fields, sizeof fields / sizeof fields[0], is_strict}

/* Fills the members whose keys are there, leaves the others as they are. methods: the bit of the
   method that is called, or 0. *key, if key is not NULL: of the field that is wrong or missing. */
int fields_read(struct wire_value map, const struct table *t, uint32_t methods, void *message,
	const char **key);
void fields_write(struct wire_writer *w, const struct table *t, uint32_t methods,
	const void *message);

/* Validates the body, asks for a map, reads it. */
int fields_read_body(const void *body, size_t length, const struct wire_limits *l,
	const struct table *t, void *message, const char **key);
/* Writes a body; 0 or -ERR_TOO_BIG. */
int fields_write_body(struct wire_writer *w, const struct table *t, const void *message);

/* A string of low to high bytes; name: without control characters. */
int field_string(struct wire_value v, uint64_t low, uint64_t high, bool name,
	struct wire_str *out);

/* Arrays of tool calls, of which there is room for max. */
int field_calls_read(struct wire_value array, struct wire_tool_call *out, uint32_t max,
	uint32_t *count, bool strict);
void field_calls_write(struct wire_writer *w, const struct wire_tool_call *calls,
	uint32_t count);

#endif
