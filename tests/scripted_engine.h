/*
 * An engine without arithmetic, in the place of runtime/engine.c: what is sampled follows from the last
 * token and its position. For tests of the loop, and for measuring it.
 */
#ifndef HOLDFAST_TESTS_SCRIPTED_ENGINE_H
#define HOLDFAST_TESTS_SCRIPTED_ENGINE_H

#include <stdbool.h>
#include <stdint.h>

struct scripted {
	/* 0: a job is done when it is submitted. Else a thread does one in so many microseconds. */
	uint64_t step_us;
	/* What each job is said to have taken. */
	uint64_t measured_us;
	/* One job in so many copies of pages fails; 0: none. */
	uint32_t copy_fails;
	/* One sequence in so many is at fault; 0: none. */
	uint32_t faults;
	/* One token in eight is half a character. */
	bool halves;
	/* Called for each sample that was made, in the engine's thread: slot is the session's. */
	void (*on_sample)(uint32_t slot, uint32_t position);
	uint64_t batches, rows;
};
extern struct scripted scripted;

/* What follows a token at a position: what a reader must get. */
uint32_t scripted_token(uint32_t token, uint32_t position);

#endif
