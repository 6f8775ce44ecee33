/*
 * A test program: functions that check, reported in TAP, one line a function. A failed REQUIRE
 * leaves the function, a failed EXPECT goes on; either makes the line "not ok".
 *
 *	static void adds(void) { EXPECT(1 + 1 == 2); }
 *	int main(void) { TAP_RUN(adds, "numbers add up"); return tap_done(); }
 */
#ifndef HOLDFAST_TESTS_TAP_H
#define HOLDFAST_TESTS_TAP_H

#include <stdarg.h>
#include <stdio.h>

static int tap_count, tap_failures, tap_failed;
static const char *tap_reason; /* set by TAP_SKIP inside a test */

#define EXPECT(expression) \
	((expression) ? 1 : (printf("# %s:%d: %s\n", __FILE__, __LINE__, #expression), tap_failed = 1, 0))
#define EXPECT_EQ(a, b) \
	do { \
		long long tap_a_ = (long long)(a), tap_b_ = (long long)(b); \
		if (tap_a_ != tap_b_) { \
			printf("# %s:%d: %s is %lld, %s is %lld\n", __FILE__, __LINE__, #a, tap_a_, #b, tap_b_); \
			tap_failed = 1; \
		} \
	} while (0)
#define REQUIRE(expression) \
	do { \
		if (!EXPECT(expression)) \
			return; \
	} while (0)
/* Leaves the test as skipped, with the reason shown. */
#define TAP_SKIP(reason) \
	do { \
		tap_reason = (reason); \
		return; \
	} while (0)

#define TAP_RUN(function, what) tap_run((function), (what))

static inline void tap_run(void (*function)(void), const char *what)
{
	tap_failed = 0;
	tap_reason = NULL;
	function();
	tap_count++;
	if (tap_failed)
		tap_failures++;
	printf("%s %d - %s", tap_failed ? "not ok" : "ok", tap_count, what);
	if (tap_reason && !tap_failed)
		printf(" # SKIP %s", tap_reason);
	printf("\n");
	fflush(stdout);
}

/* No test is run, for the reason shown. What main returns. */
static inline int tap_skip_all(const char *reason)
{
	printf("1..0 # SKIP %s\n", reason);
	return 77;
}

static inline int tap_done(void)
{
	printf("1..%d\n", tap_count);
	return tap_failures ? 1 : 0;
}

#endif
