/*
 * CHECK, TRY and the error codes: the one header that every folder shares.
 *
 * Two kinds of error, never mixed. CHECK is for a broken invariant of ours: it aborts, in every
 * build. An error code is for the world: a function returns 0 or one of these codes negated
 * (`return -ERR_NOT_FOUND;`), and its results come back through its last parameters.
 *
 * Compiles as C11 and as C++17. The numbers below 700 are those of the wire (clients/README.md).
 */
#ifndef HOLDFAST_SCHED_CHECK_H
#define HOLDFAST_SCHED_CHECK_H

#ifdef __cplusplus
extern "C" {
#endif

enum err {
	ERR_NONE = 0,
	/* 1xx: the protocol. */
	ERR_VERSION = 100,
	ERR_BAD_FRAMES = 101,
	ERR_BAD_TYPE = 102,
	ERR_BAD_BODY = 103,
	ERR_TOO_BIG = 104,
	ERR_UNKNOWN_FIELD = 105,
	ERR_LIMIT = 106,
	/* 2xx: authority. */
	ERR_UNAUTHENTICATED = 200,
	ERR_FORBIDDEN = 201,
	ERR_KEY_REVOKED = 202,
	ERR_ROUTING_ID = 203,
	/* 3xx: the request. */
	ERR_BAD_ARG = 300,
	ERR_OUT_OF_RANGE = 301,
	ERR_IDEM_MISMATCH = 302,
	ERR_NOT_FOUND = 303,
	ERR_GONE = 304,
	/* 4xx: the session. */
	ERR_SESSION_BUSY = 400,
	ERR_TURN_CONFLICT = 401,
	ERR_FENCED = 402,
	ERR_EXPIRED = 403,
	ERR_CONTEXT_FULL = 404,
	/* 5xx: resources. */
	ERR_OVERLOADED = 500,
	ERR_NO_PAGES = 501,
	ERR_SLOW_CONSUMER = 502,
	ERR_DEADLINE = 503,
	ERR_DRAINING = 504,
	ERR_AUDIT_STALLED = 505,
	ERR_LOG_FULL = 506,
	/* 6xx: ours. */
	ERR_INTERNAL = 600,
	ERR_INTEGRITY = 601,
	ERR_RESTARTED = 602,
	ERR_DEVICE = 603,
	/* 7xx: the machine; these never cross the wire. */
	ERR_IO = 700,
	ERR_MEMORY = 701,
	ERR_PERMISSION = 702,
	ERR_IN_USE = 703,
	ERR_DISK_FULL = 704,
	ERR_BAD_FILE = 705,
	ERR_UNSUPPORTED = 706,
	ERR_NO_FILE = 707,
	ERR_TIMEOUT = 708,
	ERR_CLOSED = 709
};

/* The name of a code as it stands on the wire ("no_pages"); "unknown" for a number that is none.
   Accepts the code or its negation. The text is static. */
const char *err_name(int code);

/* The fixed sentence for a code; says nothing about any particular request. Static. */
const char *err_text(int code);

#ifdef __GNUC__
__attribute__((noreturn, cold))
#endif
void check_failed(const char *file, int line, const char *expression);

#define CHECK(expression) \
	((expression) ? (void)0 : check_failed(__FILE__, __LINE__, #expression))

/* Returns early with the code of a call that was refused. */
#define TRY(call) \
	do { \
		int try_code_ = (call); \
		if (try_code_ != 0) \
			return try_code_; \
	} while (0)

#ifdef __cplusplus
}
#endif

#endif
