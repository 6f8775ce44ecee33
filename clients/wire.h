/*
 * The door of the wire: frames and MessagePack to structs and back. Strict, bounded, keeps nothing
 * on failure. Knows no socket. Both the daemon and the clients use it; clients/README.md is the
 * protocol, AR/1.
 *
 * Reading: wire_header_read, then wire_validate on the body, then the reader of the type. Every
 * reader validates first by itself too, so that none can be called on raw bytes by mistake. A
 * refused body leaves *out undefined and nothing else changed. Thread-safe: no state.
 */
#ifndef HOLDFAST_CLIENTS_WIRE_H
#define HOLDFAST_CLIENTS_WIRE_H

#include "clients/message.h"
#include "sched/check.h"

#ifdef __cplusplus
extern "C" {
#endif

struct wire_limits {
	uint32_t body_bytes;   /* of the second frame; default 256 KiB */
	uint32_t blob_bytes;   /* of the third; default 1 MiB */
	uint32_t depth, nodes; /* defaults 16 and 20,000 */
	uint32_t string_bytes; /* of one string; default body_bytes */
};
void wire_limits_default(struct wire_limits *limits);

/* -ERR_BAD_FRAMES: length, magic, reserved bits; -ERR_VERSION: another major. */
int wire_header_read(const void *frame, size_t length, struct wire_header *out);
void wire_header_write(const struct wire_header *header, uint8_t out[WIRE_HEADER_BYTES]);

/* The pre-scan, without allocation: one value that fills the buffer exactly; counts against bytes
   left (nested too), depth, nodes, lengths, strict UTF-8, keys of [a-z0-9_-] up to 32 bytes without
   duplicates, no extension types, finite floats. -ERR_BAD_BODY, -ERR_TOO_BIG. */
int wire_validate(const void *body, size_t length, const struct wire_limits *limits);

/* Readers of what clients send: -ERR_BAD_BODY, -ERR_TOO_BIG, -ERR_UNKNOWN_FIELD (a key that is not
   known and does not begin with "x-"), -ERR_BAD_ARG, -ERR_OUT_OF_RANGE. wire_read_call needs
   wire_call's room, which is large: keep it static or on the heap. What it refuses it says in out->why. */
int wire_read_hello(const void *body, size_t length,
	const struct wire_limits *l, struct wire_hello *out);
int wire_read_call(const void *body, size_t length,
	const struct wire_limits *l, struct wire_call *out);
int wire_read_window(const void *body, size_t length,
	const struct wire_limits *l, struct wire_window *out);
int wire_read_cancel(const void *body, size_t length,
	const struct wire_limits *l, struct wire_cancel *out);
int wire_read_resume(const void *body, size_t length,
	const struct wire_limits *l, struct wire_resume *out);
int wire_read_ack(const void *body, size_t length,
	const struct wire_limits *l, struct wire_ack *out);
int wire_read_ping(const void *body, size_t length,
	const struct wire_limits *l, struct wire_ping *out);

/* Readers of what the daemon sends; unknown keys are passed over. */
int wire_read_welcome(const void *body, size_t length,
	const struct wire_limits *l, struct wire_welcome *out);
int wire_read_accepted(const void *body, size_t length,
	const struct wire_limits *l, struct wire_accepted *out);
int wire_read_data(const void *body, size_t length,
	const struct wire_limits *l, struct wire_data *out);
int wire_read_end(const void *body, size_t length,
	const struct wire_limits *l, struct wire_end *out);
int wire_read_note(const void *body, size_t length,
	const struct wire_limits *l, struct wire_note *out);
int wire_read_reject(const void *body, size_t length,
	const struct wire_limits *l, struct wire_reject *out);
int wire_read_goaway(const void *body, size_t length,
	const struct wire_limits *l, struct wire_goaway *out);

/* What is not there, before one is filled to be written: numbers that are absent, sampling that is
   off. The readers begin with these too. */
void wire_call_init(struct wire_call *m, enum wire_method method);
void wire_end_init(struct wire_end *m);
void wire_note_init(struct wire_note *m);
void wire_reject_init(struct wire_reject *m);

/* Writing: into a fixed buffer; what does not fit makes the writer full, which sticks. Integers and
   lengths in their shortest form. */
struct wire_writer {
	uint8_t *at;
	size_t length, capacity;
	bool full;
};
void wire_writer_init(struct wire_writer *w, void *buffer, size_t capacity);
void wire_put_nil(struct wire_writer *w);
void wire_put_bool(struct wire_writer *w, bool value);
void wire_put_u64(struct wire_writer *w, uint64_t value);
void wire_put_i64(struct wire_writer *w, int64_t value);
void wire_put_f32(struct wire_writer *w, float value);
void wire_put_f64(struct wire_writer *w, double value);
void wire_put_str(struct wire_writer *w, const char *at, size_t length);
void wire_put_text(struct wire_writer *w, const char *text); /* NUL-terminated */
void wire_put_bin(struct wire_writer *w, const void *at, size_t length);
void wire_put_array(struct wire_writer *w, uint32_t count);
void wire_put_map(struct wire_writer *w, uint32_t pairs);
void wire_put_value(struct wire_writer *w, struct wire_value value); /* copies it whole */

/* One body each. 0, or -ERR_TOO_BIG when the writer is full. */
int wire_write_hello(struct wire_writer *w, const struct wire_hello *m);
int wire_write_call(struct wire_writer *w, const struct wire_call *m);
int wire_write_window(struct wire_writer *w, const struct wire_window *m);
int wire_write_cancel(struct wire_writer *w, const struct wire_cancel *m);
int wire_write_resume(struct wire_writer *w, const struct wire_resume *m);
int wire_write_ack(struct wire_writer *w, const struct wire_ack *m);
int wire_write_ping(struct wire_writer *w, const struct wire_ping *m); /* PING and PONG */
int wire_write_welcome(struct wire_writer *w, const struct wire_welcome *m);
int wire_write_accepted(struct wire_writer *w, const struct wire_accepted *m);
int wire_write_data(struct wire_writer *w, const struct wire_data *m);
int wire_write_end(struct wire_writer *w, const struct wire_end *m);
int wire_write_note(struct wire_writer *w, const struct wire_note *m);
int wire_write_reject(struct wire_writer *w, const struct wire_reject *m);
int wire_write_goaway(struct wire_writer *w, const struct wire_goaway *m);
int wire_write_bye(struct wire_writer *w);

/* Looking into a value that was validated. Each returns false if the value is not of that kind. */
bool wire_get_u64(struct wire_value v, uint64_t *out);
bool wire_get_f64(struct wire_value v, double *out);
bool wire_get_bool(struct wire_value v, bool *out);
bool wire_get_str(struct wire_value v, struct wire_str *out);
bool wire_get_bin(struct wire_value v, struct wire_bin *out);
bool wire_get_array(struct wire_value v, uint32_t *count);
bool wire_get_map(struct wire_value v, uint32_t *pairs);
/* Of a map by key, of an array by index; absent (at NULL) if there is none. */
struct wire_value wire_find(struct wire_value map, const char *key);
struct wire_value wire_at(struct wire_value array, uint32_t index);
/* The value as JSON text: bin as lower-case hex. NUL-terminated; returns the length without it, or
   what it would be if capacity is too small (then out is cut). */
size_t wire_json(struct wire_value v, char *out, size_t capacity);

/* Methods by their names on the wire ("session.open"); METHOD_COUNT if unknown. */
enum wire_method wire_method_find(const char *at, size_t length);
const char *wire_method_name(enum wire_method method);

/* The endpoint when none is given: $HOLDFAST_ENDPOINT, else ipc://DIR/holdfast.sock, where DIR is
   $XDG_RUNTIME_DIR, else /tmp/holdfast-UID. -ERR_TOO_BIG if it does not fit. */
int wire_default_endpoint(char *out, size_t capacity);

#ifdef __cplusplus
}
#endif

#endif
