/*
 * Groups with a window. Goal: a session keeps the pages that a next row can see, and a few more; what
 * can be cut, forked, granted and moved then; who waits for such pages, and who is refused. Method:
 * single events with known numbers. The simulator and the exhaustive test have the rest.
 */
#include "tests/tap.h"
#include "tests/sched_rig.h"

enum { WINDOW = 64, KEEP = 80, CAP = 8 }; /* 64 + 16 stay; (80 + 32) / 16 + 1 pages at once */

/* Group 0 sees all, group 1 the last 64. */
static struct sched_limits limits_make(uint32_t pages, uint32_t window_pages)
{
	struct sched_limits l = rig_limits(pages);
	l.context_tokens = 1024;
	l.group_count = 2;
	l.group[1].page_bytes = 4096;
	l.group[1].page_count[PLACE_DEVICE] = window_pages;
	l.group[1].window_tokens = WINDOW;
	return l;
}

static uint32_t held(const struct rig *r, uint32_t session)
{
	struct page_ref refs[64];
	uint32_t first = sched_page_first(r->s, session, 1);
	return sched_page_table(r->s, session, 1, first, 64, refs);
}

static void stays(void)
{
	struct rig r;
	struct sched_limits l = limits_make(64, 64);
	rig_open(&r, &l);
	uint32_t session = rig_session(&r);
	(void)rig_whole(&r, session, 0, 5, 1); /* so that chunks lie across pages */
	struct rig_turn turn = {5, 595, 100, 100, 0, 0};
	(void)rig_turn(&r, session, turn);
	uint32_t most = 0;
	for (struct rig_batch b = rig_batch(&r); b.count; b = rig_done(&r, &b))
		most = held(&r, session) > most ? held(&r, session) : most;
	EXPECT(most == CAP);
	EXPECT(rig_view(&r, session).resident == 699);
	EXPECT(sched_page_first(r.s, session, 0) == 0);
	EXPECT(sched_page_first(r.s, session, 1) == (699 - KEEP) / 16);
	EXPECT(held(&r, session) == 44 - (699 - KEEP) / 16);
	/* Given up pages are told as such, and the bytes are those of what is there. */
	struct page_ref refs[64];
	EXPECT(sched_page_table(r.s, session, 1, 0, 64, refs) == 44);
	EXPECT(refs[0].page == SCHED_NONE);
	EXPECT(refs[37].page == SCHED_NONE);
	EXPECT(refs[38].page != SCHED_NONE);
	EXPECT(rig_view(&r, session).device_bytes == 44 * 1024 + 6 * 4096);
	rig_simple(&r, EVENT_CLOSE, session);
	EXPECT(sched_ledger(r.s, ACCOUNT_DEVICE, COLUMN_FREE) == 64 * 1024 + 64 * 4096);
	rig_close(&r);
}

static void cuts(void)
{
	struct rig r;
	struct sched_limits l = limits_make(64, 64);
	rig_open(&r, &l);
	uint32_t session = rig_session(&r);
	(void)rig_whole(&r, session, 0, 600, 11); /* 610 resident: pages from 33, so 528, on */
	EXPECT(sched_page_first(r.s, session, 1) == 33);
	/* A next row at 591 sees 528 and on. */
	struct effect end = rig_whole(&r, session, 591, 5, 1);
	EXPECT(end.as.end.resident == 591);
	EXPECT(end.as.end.recomputed == 0);
	EXPECT(sched_page_first(r.s, session, 1) == 33);
	/* One at 590 would see 527. */
	rig_rollback(&r, session, 590);
	const struct effect *lost = rig_effect(&r, EFFECT_LOST, 0);
	EXPECT(lost && lost->as.lost.why == LOST_WINDOW);
	EXPECT(lost && lost->as.lost.tokens_before == 596 && lost->as.lost.tokens_after == 0);
	EXPECT(rig_view(&r, session).history == 590);
	EXPECT(rig_view(&r, session).resident == 0);
	end = rig_whole(&r, session, 590, 5, 1);
	EXPECT(end.as.end.recomputed == 590);
	EXPECT(end.as.end.fresh == 5);
	/* A turn that keeps too little says so before it runs. */
	struct rig_turn turn = {100, 5, 1, 1, 0, 0};
	(void)rig_turn(&r, session, turn);
	lost = rig_effect(&r, EFFECT_LOST, 0);
	EXPECT(lost && lost->as.lost.why == LOST_WINDOW);
	end = rig_run(&r, rig_batch(&r));
	EXPECT(end.as.end.recomputed == 100);
	/* What is shorter than the window can be cut anywhere. */
	(void)rig_whole(&r, session, 0, 70, 1);
	end = rig_whole(&r, session, 30, 1, 1);
	EXPECT(end.as.end.resident == 30);
	rig_close(&r);
}

static void forks(void)
{
	struct rig r;
	struct sched_limits l = limits_make(128, 64);
	rig_open(&r, &l);
	uint32_t parent = rig_session(&r);
	(void)rig_whole(&r, parent, 0, 601, 1);
	uint32_t had = held(&r, parent), first = sched_page_first(r.s, parent, 1);
	uint32_t child = rig_fork(&r, parent);
	EXPECT(rig_view(&r, child).resident == 592);
	EXPECT(sched_page_first(r.s, child, 1) == first);
	EXPECT(sched_ledger(r.s, ACCOUNT_DEVICE, COLUMN_SHARED) == 37 * 1024 + (37 - (uint64_t)first) * 4096);
	/* The parent goes on, and its shares of the pages behind it go; the child keeps them. */
	(void)rig_whole(&r, parent, 601, 200, 1);
	EXPECT(sched_page_first(r.s, parent, 1) > 37);
	EXPECT(held(&r, parent) <= had + 1);
	struct effect end = rig_whole(&r, child, 601, 4, 4);
	EXPECT(end.as.end.resident == 592);
	EXPECT(end.as.end.recomputed == 9);
	/* A parent that was cut to the edge has no full page that a child could go on from. */
	rig_rollback(&r, parent, 801 - 16);
	uint32_t edge = sched_page_first(r.s, parent, 1) * 16 + WINDOW - 1;
	rig_rollback(&r, parent, edge);
	EXPECT(rig_view(&r, parent).resident == edge);
	child = rig_fork(&r, parent);
	EXPECT(rig_view(&r, child).resident == 0);
	rig_close(&r);
}

/* Each turn reserves what it may need; who finds too little waits, and all end. */
static void admits(void)
{
	struct rig r;
	struct sched_limits l = limits_make(256, 2 * CAP + 3);
	rig_open(&r, &l);
	uint32_t session[3];
	struct rig_batch b;
	memset(&b, 0, sizeof b);
	for (int i = 0; i < 3; i++) {
		session[i] = rig_session(&r);
		struct rig_turn turn = {0, 400, 50, 50, 0, 0};
		(void)rig_turn(&r, session[i], turn);
		if (i == 0) {
			EXPECT(sched_ledger(r.s, ACCOUNT_DEVICE, COLUMN_PROMISED) ==
			       ((400 + 49 + 15) / 16 - 2) * 1024 + (CAP - 2) * 4096);
		}
		if (i == 2) {
			const struct effect *wait = rig_effect(&r, EFFECT_WAIT, 0);
			EXPECT(wait && wait->as.wait.why == WAIT_PAGES);
			EXPECT(wait && wait->as.wait.short_bytes == (CAP - 3) * 4096);
		}
		if (i == 0) {
			b = rig_batch(&r);
			b = rig_done(&r, &b);
		}
	}
	uint32_t ends = 0;
	for (uint32_t i = 0; i < 3000 && b.count; i++) {
		b = rig_done(&r, &b);
		ends += rig_count(&r, EFFECT_END);
	}
	EXPECT(ends == 3);
	EXPECT(sched_counts(r.s).forced_recomputes == 0);
	EXPECT(sched_counts(r.s).tokens_recomputed == 0);
	/* A slab that holds no turn's window refuses it, with the numbers. */
	rig_close(&r);
	l = limits_make(256, CAP - 1);
	rig_open(&r, &l);
	session[0] = rig_session(&r);
	struct effect end = rig_whole(&r, session[0], 0, 400, 50);
	EXPECT(end.as.end.end == END_REFUSED && end.as.end.err == ERR_NO_PAGES);
	EXPECT(end.as.end.needed == CAP * 4096 && end.as.end.limit == (CAP - 1) * 4096);
	end = rig_whole(&r, session[0], 0, 60, 20);
	EXPECT(end.as.end.end == END_LIMIT);
	rig_close(&r);
}

/* Sessions at rest give way when the window's pages are short, and are whole or gone. */
static void gives(void)
{
	struct rig r;
	struct sched_limits l = limits_make(256, 2 * CAP);
	rig_open(&r, &l);
	uint32_t session[4];
	for (int i = 0; i < 4; i++) {
		session[i] = rig_session(&r);
		(void)rig_whole(&r, session[i], 0, 300, 1);
	}
	EXPECT(rig_view(&r, session[0]).resident == 0);
	EXPECT(rig_view(&r, session[3]).resident == 300);
	struct effect end = rig_whole(&r, session[0], 300, 1, 1);
	EXPECT(end.as.end.recomputed == 300);
	rig_close(&r);
}

static void grants(void)
{
	struct rig r;
	struct sched_limits l = limits_make(256, 4 * CAP);
	rig_open(&r, &l);
	uint32_t session = rig_session(&r);
	(void)rig_whole(&r, session, 0, 320, 1);
	/* Bytes of 25 units: 25 pages of the one, 8 of the other. */
	rig_residency(&r, session, RESIDENCY_PINNED, 25 * 1024 + CAP * 4096, 0);
	EXPECT(rig_effect(&r, EFFECT_RESIDENCY, 0)->as.residency.bytes == 25 * 1024 + CAP * 4096);
	for (int i = 0; i < 6; i++)
		(void)rig_whole(&r, rig_session(&r), 0, 400, 1);
	EXPECT(rig_view(&r, session).resident == 320);
	/* It outgrows its grant: of no use in part, so it gives way as a whole. */
	(void)rig_whole(&r, session, 320, 200, 1);
	(void)rig_whole(&r, rig_session(&r), 0, 900, 1);
	(void)rig_whole(&r, 1, 400, 500, 1);
	(void)rig_whole(&r, 2, 400, 500, 1);
	(void)rig_whole(&r, 3, 400, 500, 1);
	EXPECT(rig_view(&r, session).resident == 0);
	rig_close(&r);
}

/* The child keeps window pages of units that the parent, which runs, has too but for those pages: they
   are the child's to give, and are taken though not a unit comes free. */
static void gives_windows(void)
{
	struct rig r;
	struct sched_limits l = limits_make(256, 2 * CAP);
	rig_open(&r, &l);
	uint32_t parent = rig_session(&r);
	(void)rig_whole(&r, parent, 0, 401, 1);
	uint32_t child = rig_fork(&r, parent), other = rig_session(&r);
	struct rig_turn turn = {401, 200, 50, 1, 0, 0}, rest = {0, 400, 1, 1, 0, 0};
	(void)rig_turn(&r, parent, turn);
	(void)rig_run(&r, rig_batch(&r)); /* it stands still for want of credit */
	EXPECT(rig_view(&r, parent).state == SESSION_RUNNING);
	EXPECT(rig_view(&r, child).resident == 400);
	EXPECT(sched_page_first(r.s, parent, 1) > 25);
	(void)rig_turn(&r, other, rest);
	struct effect end = rig_run(&r, rig_batch(&r));
	EXPECT(end.session == other && end.as.end.end == END_LIMIT);
	EXPECT(rig_view(&r, child).resident == 0);
	rig_close(&r);
}

/* The child's pages go down, the shared units among them; the parent brings those back, but not pages
   that only the child has. Those are loaded by the child's next turn. */
static void strays(void)
{
	struct rig r;
	struct sched_limits l = limits_make(64, 32);
	l.group[0].page_count[PLACE_HOST] = 64;
	l.group[1].page_count[PLACE_HOST] = 24;
	rig_open(&r, &l);
	uint32_t parent = rig_session(&r);
	(void)rig_whole(&r, parent, 0, 401, 1);
	uint32_t child = rig_fork(&r, parent), pages = held(&r, child);
	(void)rig_whole(&r, parent, 401, 200, 1);
	EXPECT(sched_page_first(r.s, parent, 1) > 25);
	rig_park(&r, child, PLACE_HOST);
	EXPECT(rig_count(&r, EFFECT_COPY) == 25 + pages);
	(void)rig_copies_done(&r);
	struct rig_turn turn = {601, 5, 1, 1, 0, 0}, next = {401, 5, 1, 1, 0, 0};
	(void)rig_turn(&r, parent, turn);
	EXPECT(rig_count(&r, EFFECT_COPY) == 25);
	(void)rig_copies_done(&r);
	(void)rig_run(&r, rig_batch(&r));
	EXPECT(rig_view(&r, child).lower_bytes == pages * 4096);
	(void)rig_turn(&r, child, next);
	EXPECT(rig_count(&r, EFFECT_COPY) == pages);
	EXPECT(rig_count(&r, EFFECT_BATCH) == 0);
	(void)rig_copies_done(&r);
	struct effect end = rig_run(&r, rig_batch(&r));
	EXPECT(end.session == child && end.as.end.recomputed == 1);
	EXPECT(rig_view(&r, child).lower_bytes == 0);
	rig_close(&r);
}

/* Down and up again: a window's pages go with the rest. */
static void moves(void)
{
	struct rig r;
	struct sched_limits l = limits_make(64, 24);
	l.group[0].page_count[PLACE_HOST] = 64;
	l.group[1].page_count[PLACE_HOST] = 24;
	rig_open(&r, &l);
	uint32_t session = rig_session(&r);
	(void)rig_whole(&r, session, 0, 400, 1);
	uint32_t pages = held(&r, session);
	rig_park(&r, session, PLACE_HOST);
	EXPECT(rig_count(&r, EFFECT_COPY) == 25 + pages);
	EXPECT(rig_view(&r, session).device_bytes == 0);
	EXPECT(rig_view(&r, session).lower_bytes == 25 * 1024 + pages * 4096);
	(void)rig_copies_done(&r);
	struct rig_turn turn = {400, 5, 1, 1, 0, 0};
	(void)rig_turn(&r, session, turn);
	EXPECT(rig_count(&r, EFFECT_COPY) == 25 + pages);
	(void)rig_copies_done(&r);
	struct effect end = rig_run(&r, rig_batch(&r));
	EXPECT(end.as.end.reloaded == 400);
	EXPECT(end.as.end.recomputed == 0);
	rig_close(&r);
}

static void limits(void)
{
	const char *field = NULL;
	struct sched_limits l = limits_make(64, 64);
	EXPECT(sched_limits_check(&l, &field) == 0);
	l.group[0].window_tokens = 64;
	EXPECT(sched_limits_check(&l, &field) == -ERR_OUT_OF_RANGE);
	EXPECT(field && strcmp(field, "window_tokens") == 0);
	l.group[0].window_tokens = 0;
	l.group[1].window_tokens = 0xffffffffu;
	EXPECT(sched_limits_check(&l, &field) == -ERR_OUT_OF_RANGE);
}

int main(void)
{
	TAP_RUN(stays, "a session keeps its window and a page or a quarter more");
	TAP_RUN(cuts, "a cut inside it keeps the rest; one below it loses all, and says so");
	TAP_RUN(forks, "a fork shares the window; each goes its way");
	TAP_RUN(admits, "a turn reserves what its window needs; who finds none waits, or is refused");
	TAP_RUN(gives, "who gives way for a window's pages is whole or gone");
	TAP_RUN(grants, "a grant keeps a whole context; one that outgrew it gives way");
	TAP_RUN(gives_windows, "a page of a window is taken where its unit is not free");
	TAP_RUN(strays, "a page of a window that is not where its unit is comes alone");
	TAP_RUN(moves, "pages of both groups go down and come back");
	TAP_RUN(limits, "limits that make no sense are refused");
	return tap_done();
}
