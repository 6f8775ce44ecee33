/*
 * What makes a run of the loop repeat, message for message: a clock that only the test moves, chance from a
 * seed, and an audit log that is on disk when the test says so. In the place of runtime/fault.c.
 *
 * All of it is for the thread that called lockstep_begin; others have the time and the chance of the
 * system.
 */
#ifndef HOLDFAST_TESTS_LOCKSTEP_H
#define HOLDFAST_TESTS_LOCKSTEP_H

#include <stdbool.h>
#include <stdint.h>

#include "runtime/store.h"

/* Before libsodium is used, and again for each run. The clocks of the process stand still from here on. */
void lockstep_begin(uint64_t seed);
/* The clocks move on. */
void lockstep_pass(uint64_t us);
uint64_t lockstep_us(void);
/* What was pushed so far, and closed by a STEP_END, is on disk when this returns. Between two calls nothing
   is committed. */
void lockstep_log(struct store *store);
/* Before the store is closed: it may write again; or (killed) what is not on disk by now never will be. */
void lockstep_end(bool killed);
/* Before it is opened. */
void lockstep_open(void);

#endif
