/*
 * DRY against its definition: for each earlier place the tokens before it compared with those at the
 * end, one by one. Histories of few kinds of tokens, so that there are many runs.
 */
#include <math.h>
#include <string.h>

#include "runtime/dry.h"
#include "tests/tap.h"

enum { BREAK = 9 };
static uint64_t seed = 77;

static uint32_t draw(uint32_t below)
{
	seed = seed * 6364136223846793005u + 1442695040888963407u;
	return (uint32_t)(seed >> 33) % below;
}

static bool breaks(const void *of, uint32_t token)
{
	return token == *(const uint32_t *)of;
}

static const uint32_t breaker = BREAK;

/* What a token costs. */
static double plainly(const struct dry *d, const uint32_t *h, uint32_t count, uint32_t token)
{
	const uint32_t first = count > d->window ? count - d->window : 0;
	uint32_t longest = 0;
	for (uint32_t i = first; i + 1 < count; i++) {
		uint32_t n = 0;
		if (h[i + 1] != token)
			continue;
		while (n < DRY_RUN_MAX && i >= first + n && h[i - n] == h[count - 1 - n] && h[i - n] != BREAK)
			n++;
		longest = n > longest ? n : longest;
	}
	return longest < d->allowed ? 0 : fmin(1000, d->multiplier * pow(d->base, longest - d->allowed));
}

static void as_defined(void)
{
	static uint32_t h[700];
	static struct dry_penalty out[DRY_TOKENS_MAX];
	unsigned costs = 0;
	for (unsigned round = 0; round < 400; round++) {
		const struct dry d = {0.1 + draw(30) / 10.0, 1 + draw(10) / 10.0, 1 + draw(4), 1 + draw(700)};
		const uint32_t kinds = 1 + draw(10), count = draw(700);
		for (uint32_t i = 0; i < count; i++)
			h[i] = i > 40 && draw(3) ? h[i - 1 - draw(3)] : draw(kinds);
		for (uint32_t i = 0; count > 60 && i < 20; i++)
			h[count - 1 - i] = h[count - 31 - i];
		const uint32_t n = dry_find(&d, h, count, breaks, &breaker, out);
		uint32_t at = 0;
		for (uint32_t token = 0; token < 12; token++) {
			const double want = plainly(&d, h, count, token);
			const double got = at < n && out[at].token == token ? (double)out[at++].minus : 0;
			if (!EXPECT(fabs(want - got) <= 1e-5 * want))
				printf("# round %u, token %u: %g, not %g\n", round, token, got, want);
			costs += want > 0;
		}
		EXPECT_EQ(at, n);
	}
	EXPECT(costs > 500);
}

static void limits(void)
{
	static uint32_t h[DRY_WINDOW_MAX];
	static struct dry_penalty out[DRY_TOKENS_MAX];
	const struct dry d = {1, 1.75, 1, DRY_WINDOW_MAX};
	struct dry off = d;
	/* More tokens than can be named followed the one at the end; those after the longest run stay. */
	for (uint32_t i = 0; i + 1 < DRY_WINDOW_MAX; i += 2) {
		h[i] = 1;
		h[i + 1] = 100 + i;
	}
	h[DRY_WINDOW_MAX - 1] = 1;
	h[DRY_WINDOW_MAX - 2] = 100;
	EXPECT_EQ(dry_find(&d, h, DRY_WINDOW_MAX, breaks, &breaker, out), DRY_TOKENS_MAX);
	EXPECT(out[0].token == 100 && out[1].token == 102 && out[1].minus > 1.7f && out[1].minus < 1.8f);
	for (uint32_t i = 0; i < DRY_WINDOW_MAX; i++)
		h[i] = 3;
	EXPECT_EQ(dry_find(&d, h, DRY_WINDOW_MAX, breaks, &breaker, out), 1);
	EXPECT(out[0].token == 3 && out[0].minus >= 1000);
	h[DRY_WINDOW_MAX - 1] = BREAK;
	EXPECT_EQ(dry_find(&d, h, DRY_WINDOW_MAX, breaks, &breaker, out), 0);
	EXPECT_EQ(dry_find(&d, h, 0, breaks, &breaker, out), 0);
	off.multiplier = 0;
	EXPECT_EQ(dry_find(&off, h, 5, breaks, &breaker, out), 0);
}

int main(void)
{
	TAP_RUN(as_defined, "penalties are those of the definition");
	TAP_RUN(limits, "limits, nothing to find, and off");
	return tap_done();
}
