/*
 * The store when all goes well, and when it is killed: what was pushed is there after a reopen, in
 * order, chained, with the owner rows that follow from it. The rows are compared with a plain
 * model; the kills come at random moments.
 */
#include "config.h"

#include <errno.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "runtime/fault.h"
#include "tests/store_dir.h"

static uint64_t seed = 0x9e3779b97f4a7c15u;

static uint32_t random_below(uint32_t bound)
{
	seed ^= seed << 13;
	seed ^= seed >> 7;
	seed ^= seed << 17;
	return (uint32_t)(seed >> 33) % bound;
}

static void reopen(void)
{
	struct store_verified v;
	struct stat st;
	for (uint32_t boot = 1; boot <= 3; boot++) {
		struct store *s;
		REQUIRE(dir_open(&s) == 0);
		EXPECT_EQ(store_boot(s), boot);
		EXPECT_EQ(store_durable(s), 0);
		EXPECT_EQ(store_room(s), 1024);
		EXPECT_EQ(store_space(s), 0);
		EXPECT_EQ(push_step(s, 1), 0);
		EXPECT_EQ(push_step(s, 2), 0);
		struct pollfd p = {.fd = store_fd(s), .events = POLLIN};
		uint64_t count;
		while (store_durable(s) < 2) {
			REQUIRE(poll(&p, 1, 10000) == 1);
			REQUIRE(read(store_fd(s), &count, sizeof count) == sizeof count);
		}
		EXPECT_EQ(store_close(&s), 0);
		EXPECT(s == NULL);
		REQUIRE(dir_sound(&v));
		EXPECT_EQ(v.entries, boot * 4);
		EXPECT_EQ(v.boot, boot);
		EXPECT(v.clean);
	}
	EXPECT_EQ(store_close(&(struct store *){NULL}), 0);
	REQUIRE(stat(store_dir, &st) == 0);
	EXPECT_EQ(st.st_mode & 0777, 0700);
	static const char *const names[] = {"lock", "uuid", "data.mdb", "lock.mdb"};
	for (unsigned i = 0; i < 4; i++) {
		REQUIRE(stat(dir_path(names[i]), &st) == 0);
		EXPECT_EQ(st.st_mode & 0777, 0600);
	}
}

static bool record_equal(const struct store_record *a, const struct store_record *b)
{
	return a->kind == b->kind && a->reason == b->reason && a->place == b->place &&
	       a->principal == b->principal && memcmp(a->session, b->session, 16) == 0 &&
	       memcmp(a->op, b->op, 16) == 0 && a->turn == b->turn && a->group == b->group &&
	       a->page_first == b->page_first && a->page_count == b->page_count &&
	       a->position_first == b->position_first && a->tag_first == b->tag_first &&
	       a->value[0] == b->value[0] && a->value[1] == b->value[1];
}

/* Every field of every kind at its largest: the packed form must hold it. */
static void kinds(void)
{
	struct store *s;
	struct store_record pushed[STORE_KIND_COUNT];
	REQUIRE(dir_open(&s) == 0);
	for (unsigned kind = STORE_ASSIGN; kind < STORE_KIND_COUNT; kind++) {
		struct store_record *r = &pushed[kind];
		memset(r, 0xff, sizeof *r);
		r->kind = (uint8_t)kind;
		if (kind == STORE_SESSION_OPEN)
			*r = (struct store_record){.kind = STORE_SESSION_OPEN, .op = {9}};
		if (kind <= STORE_QUARANTINE) {
			r->page_count = kind - STORE_ASSIGN;
			r->place = 255;
			r->group = 255;
		}
		if (kind != STORE_STEP_END)
			EXPECT_EQ(store_push(s, r), 0);
	}
	EXPECT_EQ(store_push(s, &pushed[STORE_STEP_END]), 0);
	EXPECT_EQ(store_close(&s), 0);
	struct store_reader *reader;
	static struct store_read_entry e;
	REQUIRE(store_reader_open(store_dir, &reader, store_reason) == 0);
	EXPECT_EQ(store_reader_last(reader), 3);
	EXPECT_EQ(store_reader_entry(reader, 1, &e), 0);
	EXPECT(e.kind == STORE_BOOT && !e.unclean && e.boot == 1 && e.wall_ns > 0);
	EXPECT_EQ(store_reader_entry(reader, 2, &e), 0);
	EXPECT(e.kind == STORE_STEP_END && !e.partial && e.step == UINT64_MAX);
	EXPECT_EQ(e.count, STORE_KIND_COUNT - STORE_ASSIGN - 1);
	for (uint32_t i = 0; i < e.count; i++)
		EXPECT(record_equal(&e.records[i], &pushed[STORE_ASSIGN + i + (STORE_ASSIGN + i >= STORE_STEP_END)]));
	EXPECT_EQ(store_reader_entry(reader, 3, &e), 0);
	EXPECT(e.kind == STORE_SHUTDOWN && e.step == UINT64_MAX);
	EXPECT_EQ(store_reader_entry(reader, 4, &e), -ERR_NOT_FOUND);
	store_reader_close(&reader);
}

enum { PAGES = 200, STEPS = 1500 };

struct model_row {
	uint32_t boot, principal, turn, position, state;
	uint8_t session;
	uint64_t tag, step;
	bool known;
};
static struct model_row model[2][PAGES];

static void model_change(const struct store_record *r, uint32_t boot)
{
	for (uint32_t i = 0; i < r->page_count; i++) {
		struct model_row *m = &model[r->group][r->page_first + i];
		if (r->kind == STORE_ASSIGN || !m->known || m->boot != boot) {
			m->principal = r->principal;
			m->session = r->session[0];
			m->turn = r->turn;
			m->tag = r->tag_first + i;
			m->position = r->position_first + 16 * i;
		}
		m->known = true;
		m->boot = boot;
		m->step = r->step;
		m->state = r->kind == STORE_ASSIGN ? STORE_ROW_OWNED
			   : r->kind == STORE_SHARE ? STORE_ROW_SHARED
			   : r->kind == STORE_FREE ? STORE_ROW_FREE : STORE_ROW_QUARANTINED;
	}
}

static void random_steps(struct store *s, uint64_t *tag)
{
	for (uint64_t step = 1; step <= STEPS; step++) {
		uint32_t count = random_below(30) == 0 ? 1500 : random_below(4);
		for (uint32_t i = 0; i < count; i++) {
			uint32_t first = random_below(PAGES);
			struct store_record r = {
				.kind = (uint8_t)(STORE_ASSIGN + random_below(4)), .group = random_below(2),
				.principal = random_below(5), .session = {(uint8_t)random_below(256)},
				.turn = random_below(100), .page_first = first, .step = step,
				.page_count = random_below(PAGES - first < 17 ? PAGES - first : 17),
				.position_first = random_below(4096), .tag_first = *tag,
			};
			*tag += r.page_count;
			if (push_wait(s, &r) != 0)
				return;
			model_change(&r, (uint32_t)store_boot(s));
		}
		struct store_record end = step_end(step);
		if (push_wait(s, &end) != 0)
			return;
	}
}

static void rows(void)
{
	struct store *s;
	struct store_verified v;
	uint64_t tag = 1;
	memset(model, 0, sizeof model);
	for (unsigned boot = 1; boot <= 2; boot++) {
		REQUIRE(dir_open(&s) == 0);
		random_steps(s, &tag);
		EXPECT(durable_wait(s, STEPS));
		EXPECT_EQ(store_close(&s), 0);
	}
	REQUIRE(dir_sound(&v));
	struct store_reader *reader;
	static struct store_read_entry e;
	REQUIRE(store_reader_open(store_dir, &reader, store_reason) == 0);
	uint32_t wrong = 0, known = 0;
	for (uint32_t group = 0; group < 2; group++)
		for (uint32_t page = 0; page < PAGES; page++) {
			const struct model_row *m = &model[group][page];
			struct store_row r;
			int err = store_reader_row(reader, 0, group, page, &r);
			if (!m->known) {
				wrong += err != -ERR_NOT_FOUND;
				continue;
			}
			known++;
			wrong += err != 0 || r.boot != m->boot || r.principal != m->principal ||
				 r.session[0] != m->session || r.turn != m->turn || r.tag != m->tag ||
				 r.position != m->position || r.state != m->state;
			/* The entry that the row names is of the step that changed it last. */
			uint64_t seq = r.last_seq;
			do
				err = store_reader_entry(reader, seq++, &e);
			while (err == 0 && e.partial);
			wrong += err != 0 || e.step != m->step || e.boot != m->boot;
		}
	store_reader_close(&reader);
	EXPECT_EQ(wrong, 0);
	EXPECT(known > PAGES);
}

/* A step that is larger than the ring, and one without records. */
static void large_step(void)
{
	struct store *s;
	REQUIRE(dir_open(&s) == 0);
	struct store_record r = {.kind = STORE_SESSION_OPEN}, end = step_end(5);
	for (uint32_t i = 0; i < 5000; i++) {
		r.turn = i;
		REQUIRE(push_wait(s, &r) == 0);
	}
	EXPECT_EQ(store_durable(s), 0);
	EXPECT_EQ(push_wait(s, &end), 0);
	EXPECT(durable_wait(s, 5));
	end = step_end(6);
	EXPECT_EQ(push_wait(s, &end), 0);
	EXPECT(durable_wait(s, 6));
	EXPECT_EQ(store_close(&s), 0);
	struct store_reader *reader;
	static struct store_read_entry e;
	REQUIRE(store_reader_open(store_dir, &reader, store_reason) == 0);
	uint32_t next = 0, wrong = 0;
	uint64_t last = store_reader_last(reader);
	for (uint64_t seq = 2; seq < last; seq++) {
		REQUIRE(store_reader_entry(reader, seq, &e) == 0);
		for (uint32_t i = 0; i < e.count; i++)
			wrong += e.records[i].turn != next++;
		wrong += e.partial != (seq < last - 1);
		wrong += !e.partial && e.step != 5;
	}
	EXPECT_EQ(next, 5000);
	EXPECT_EQ(wrong, 0);
	store_reader_close(&reader);
}

/* The commit is held up; the ring fills; the loop is told, and nothing is lost. */
static void ring_full(void)
{
	struct store *s;
	struct fault slow = {FAULT_COMMIT, 2, 0, 300, 0, false};
	fault_set(&slow, 1);
	REQUIRE(dir_open(&s) == 0);
	uint32_t stalls = 0, pushed = 0;
	for (uint64_t step = 1; pushed < 4000; step++) {
		struct store_record r = {.kind = STORE_CONFIG, .turn = pushed}, end = step_end(step);
		int err = store_push(s, &r);
		if (err != 0) {
			EXPECT_EQ(err, -ERR_AUDIT_STALLED);
			stalls++;
			REQUIRE(push_wait(s, &r) == 0);
		}
		pushed++;
		REQUIRE(push_wait(s, &end) == 0);
	}
	EXPECT(stalls > 0);
	EXPECT_EQ(store_close(&s), 0);
	struct store_reader *reader;
	static struct store_read_entry e;
	REQUIRE(store_reader_open(store_dir, &reader, store_reason) == 0);
	EXPECT_EQ(store_reader_last(reader), 4002);
	uint32_t wrong = 0;
	for (uint32_t i = 0; i < 4000; i++)
		wrong += store_reader_entry(reader, 2 + i, &e) != 0 || e.count != 1 ||
			 e.step != i + 1 || e.records[0].turn != i;
	EXPECT_EQ(wrong, 0);
	store_reader_close(&reader);
}

/* With a time to gather, steps that come close together become durable together. */
static void gather(void)
{
	struct store *s;
	struct store_options o = dir_options();
	o.commit_ms = 60000;
	o.commit_records = 6;
	REQUIRE(store_open(&o, &s, store_reason, &store_warning) == 0);
	EXPECT_EQ(push_step(s, 1), 0);
	EXPECT_EQ(push_step(s, 2), 0);
	wait_ms(50);
	EXPECT_EQ(store_durable(s), 0);
	EXPECT_EQ(push_step(s, 3), 0);
	EXPECT(durable_wait(s, 3));
	EXPECT_EQ(push_step(s, 4), 0);
	EXPECT_EQ(store_close(&s), 0);
	struct store_verified v;
	REQUIRE(dir_sound(&v));
	EXPECT_EQ(v.entries, 6);
}

/* ms that so many steps take until they are durable, one after the other. */
static uint64_t steps_ms(struct store *s, uint64_t *step, bool hurry)
{
	const uint64_t begun = store_clock_ns(CLOCK_MONOTONIC);
	for (unsigned i = 0; i < 10; i++) {
		EXPECT_EQ(push_step(s, ++*step), 0);
		if (hurry)
			store_hurry(s);
		EXPECT(durable_wait(s, *step));
	}
	return (store_clock_ns(CLOCK_MONOTONIC) - begun) / 1000000;
}

static uint64_t step_ns(struct store *s, uint64_t step, bool hurry)
{
	const uint64_t begun = store_clock_ns(CLOCK_MONOTONIC);
	EXPECT_EQ(push_step(s, step), 0);
	if (hurry)
		store_hurry(s);
	EXPECT(durable_wait(s, step));
	return store_clock_ns(CLOCK_MONOTONIC) - begun;
}

/* Who waited for a step that was closed waits for none after it. */
static void hurry_once(void)
{
	struct store *s;
	struct store_options o = dir_options();
	uint64_t step = 0, lazy = 0, prompt = 0;
	o.pace_ms = 1000;
	REQUIRE(store_open(&o, &s, store_reason, &store_warning) == 0);
	for (unsigned k = 0; k < 6 && lazy <= 2 * prompt; k++)
		for (unsigned i = 0; i < 8; i++) {
			prompt += step_ns(s, ++step, true);
			lazy += step_ns(s, ++step, false);
		}
	EXPECT(lazy > 2 * prompt);
	EXPECT_EQ(store_close(&s), 0);
}

/* The parts of a large step bear the time at which it ended, not that at which they were written. */
static void parts_time(void)
{
	struct store *s;
	const struct fault slow = {.point = FAULT_COMMIT, .at = 1, .wait_ms = 300};
	struct store_record r = {.kind = STORE_SESSION_OPEN}, end = step_end(2);
	REQUIRE(dir_open(&s) == 0);
	fault_set(&slow, 1);
	EXPECT_EQ(push_step(s, 1), 0);
	wait_ms(50);
	for (uint32_t i = 0; i < 500; i++)
		REQUIRE(push_wait(s, &r) == 0);
	EXPECT_EQ(push_wait(s, &end), 0);
	const uint64_t now = store_clock_ns(CLOCK_REALTIME);
	EXPECT(durable_wait(s, 2));
	fault_set(NULL, 0);
	EXPECT_EQ(store_close(&s), 0);
	struct store_reader *reader;
	static struct store_read_entry e;
	REQUIRE(store_reader_open(store_dir, &reader, store_reason) == 0);
	uint32_t parts = 0, late = 0;
	for (uint64_t seq = 2; seq < store_reader_last(reader); seq++) {
		REQUIRE(store_reader_entry(reader, seq, &e) == 0);
		parts += e.partial;
		late += e.wall_ns > now;
	}
	EXPECT(parts > 0);
	EXPECT_EQ(late, 0);
	store_reader_close(&reader);
}

/* A commit that took much is followed by none for a while, but for what somebody waits for, or much. */
static void pace(void)
{
	struct store *s;
	struct store_options o = dir_options();
	uint64_t step = 0, lazy = 0, prompt = 0;
	o.pace_ms = 1000;
	o.commit_records = 512;
	REQUIRE(store_open(&o, &s, store_reason, &store_warning) == 0);
	/* On a busy machine one of the three will do. */
	for (unsigned k = 0; k < 3 && lazy <= 3 * prompt; k++) {
		lazy = steps_ms(s, &step, false);
		prompt = steps_ms(s, &step, true);
	}
	printf("# ten steps that nobody waits for: %u ms; that somebody does: %u\n", (unsigned)lazy,
	       (unsigned)prompt);
	EXPECT(lazy > 3 * prompt && lazy < 10000);
	/* What is asked for before its step is closed is wanted all the same. */
	struct store_record r = {.kind = STORE_CONFIG}, end = step_end(++step);
	REQUIRE(push_wait(s, &r) == 0);
	const uint64_t mark = store_hurry(s);
	REQUIRE(push_wait(s, &end) == 0);
	EXPECT(durable_wait(s, step));
	EXPECT(store_settled(s) > mark);
	EXPECT_EQ(push_step(s, ++step), 0);
	EXPECT_EQ(store_close(&s), 0);
	struct store_verified v;
	REQUIRE(dir_sound(&v));
	EXPECT_EQ(v.entries, step + 2);
}

static void idle(void)
{
	struct store *s;
	struct timespec before, after;
	REQUIRE(dir_open(&s) == 0);
	EXPECT_EQ(push_step(s, 1), 0);
	EXPECT(durable_wait(s, 1));
	wait_ms(20);
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &before);
	wait_ms(400);
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &after);
	long long used = (after.tv_sec - before.tv_sec) * 1000000000ll + after.tv_nsec - before.tv_nsec;
	EXPECT(used < 10000000); /* of 400 ms; a loop that polls takes all of them */
	EXPECT_EQ(store_close(&s), 0);
}

/* In the child: writes until it is killed, and says in shared memory what was durable. */
static void writer_child(volatile uint64_t *durable)
{
	struct store *s;
	if (dir_open(&s) != 0) {
		fprintf(stderr, "# child: %s\n", store_reason);
		_exit(3);
	}
	durable[1] = store_boot(s);
	for (uint64_t step = 1;; step++) {
		for (uint32_t i = random_below(60); i > 0; i--) {
			struct store_record r = {.kind = STORE_ASSIGN, .page_first = random_below(5000),
						 .page_count = 8, .tag_first = step};
			if (push_wait(s, &r) != 0)
				_exit(4);
		}
		if (push_step(s, step) != 0)
			_exit(4);
		durable[0] = store_durable(s);
	}
}

static void kills(void)
{
	const char *env = getenv("STORE_KILLS");
	long rounds = env ? strtol(env, NULL, 10) : 20;
	volatile uint64_t *durable = mmap(NULL, 4096, PROT_READ | PROT_WRITE,
					  MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	REQUIRE((void *)durable != MAP_FAILED);
	uint64_t steps = 0;
	for (long round = 1; round <= rounds; round++) {
		durable[0] = durable[1] = 0;
		fflush(stdout);
		pid_t pid = fork();
		REQUIRE(pid >= 0);
		if (pid == 0) {
			seed += (uint64_t)round;
			writer_child(durable);
		}
		/* One in four falls into the making of the store or its opening. */
		bool early = round % 4 == 1;
		for (unsigned i = 0; !early && durable[1] == 0 && i < 10000; i++)
			wait_ms(1);
		wait_ms(random_below(early ? 12 : 80));
		kill(pid, SIGKILL);
		int status;
		REQUIRE(waitpid(pid, &status, 0) == pid);
		EXPECT(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
		uint64_t promised = durable[0], boot = durable[1];
		if (boot == 0)
			continue;
		struct store_verified v;
		REQUIRE(dir_sound(&v));
		EXPECT(!v.clean);
		EXPECT_EQ(v.boot, boot);
		struct store_reader *reader;
		static struct store_read_entry e;
		REQUIRE(store_reader_open(store_dir, &reader, store_reason) == 0);
		uint64_t found = 0;
		for (uint64_t seq = store_reader_last(reader); seq > 0 && found == 0; seq--) {
			REQUIRE(store_reader_entry(reader, seq, &e) == 0);
			if (e.boot != boot || e.kind != STORE_STEP_END)
				break;
			found = e.partial ? 0 : e.step;
		}
		EXPECT(found >= promised);
		steps += found;
		store_reader_close(&reader);
	}
	EXPECT(steps > 0);
	printf("# %ld kills, %llu steps\n", rounds, (unsigned long long)steps);
	struct store *s;
	REQUIRE(dir_open(&s) == 0);
	EXPECT_EQ(store_close(&s), 0);
	struct store_reader *reader;
	static struct store_read_entry e;
	REQUIRE(store_reader_open(store_dir, &reader, store_reason) == 0);
	EXPECT(store_reader_clean(reader));
	EXPECT_EQ(store_reader_entry(reader, store_reader_last(reader) - 1, &e), 0);
	EXPECT(e.kind == STORE_BOOT && e.unclean);
	store_reader_close(&reader);
	munmap((void *)durable, 4096);
}

static int opens_too(const char *none)
{
	struct store *other;
	(void)none;
	return dir_open(&other) == -ERR_IN_USE && dir_says(", run: kill ") ? 0 : 1;
}

static void second(void)
{
	struct store *s, *other;
	REQUIRE(dir_open(&s) == 0);
	EXPECT_EQ(dir_open(&other), -ERR_IN_USE);
	EXPECT(other == NULL);
	char words[64];
	snprintf(words, sizeof words, "in use by process %ld;", (long)getpid());
	EXPECT(dir_says(words) && dir_says("one daemon at a time") && dir_says(", run: fuser -v '"));
	const pid_t pid = dir_child("opens too", "");
	int status;
	REQUIRE(waitpid(pid, &status, 0) == pid);
	EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	struct store_verified v;
	EXPECT_EQ(store_verify(store_dir, &v, store_reason), -ERR_IN_USE);
	EXPECT_EQ(push_step(s, 1), 0);
	EXPECT_EQ(store_close(&s), 0);
	EXPECT(dir_sound(&v));
}

static long wall_leap_s;

/* The clock of the whole process; the day can be moved. */
int clock_gettime(clockid_t clock, struct timespec *t)
{
	const int code = (int)syscall(SYS_clock_gettime, clock, t);
	if (code == 0 && clock == CLOCK_REALTIME)
		t->tv_sec += wall_leap_s;
	return code;
}

/* The steps that an answer of `holdfastd audit` names, as bits. */
static unsigned asked(const char *question)
{
	char command[1000], line[2000];
	const char *build = getenv("BUILDDIR"), *at;
	unsigned steps = 0;
	snprintf(command, sizeof command, "'%s/holdfastd' audit --state '%s' --json %s", build ? build : ".",
		 store_dir, question);
	FILE *f = popen(command, "r");
	EXPECT(f != NULL);
	while (f != NULL && fgets(line, sizeof line, f) != NULL)
		if ((at = strstr(line, "\"step\": ")) != NULL && strstr(line, "\"assign\"") != NULL)
			steps |= 1u << strtoul(at + 8, NULL, 10);
	EXPECT(f != NULL && pclose(f) == 0);
	return steps;
}

/* The program that asks the log is built in the plain tree and the address sanitizer's. */
static int asks(void)
{
	char path[1000];
	const char *build = getenv("BUILDDIR");
	snprintf(path, sizeof path, "%s/holdfastd", build ? build : ".");
	return access(path, X_OK) == 0;
}

/* Set on by two hours, back by three, and right again: what lies between two times is found all the same. */
static void clock_jumps(void)
{
	static const long leaps[] = {0, 0, 7200, -3600, 0};
	struct store *s;
	struct store_reader *r;
	struct store_verified v;
	char question[100];
	REQUIRE(dir_open(&s) == 0);
	const long now = (long)time(NULL);
	for (uint64_t step = 1; step < 5; step++) {
		wall_leap_s = leaps[step];
		REQUIRE(push_step(s, step) == 0);
		EXPECT(durable_wait(s, step));
	}
	EXPECT_EQ(store_close(&s), 0);
	REQUIRE(store_reader_open(store_dir, &r, store_reason) == 0);
	EXPECT_EQ(store_reader_ordered(r, 1), 4);
	EXPECT_EQ(store_reader_ordered(r, 3), 4);
	EXPECT_EQ(store_reader_ordered(r, 4), 7);
	store_reader_close(&r);
	if (!asks())
		TAP_SKIP("holdfastd is not built here");
	snprintf(question, sizeof question, "between %ld %ld", now - 60, now + 60);
	EXPECT_EQ(asked(question), 1u << 1 | 1u << 4);
	snprintf(question, sizeof question, "between %ld %ld", now + 7100, now + 7300);
	EXPECT_EQ(asked(question), 1u << 2);
	snprintf(question, sizeof question, "between %ld %ld", now - 3700, now - 3500);
	EXPECT_EQ(asked(question), 1u << 3);
	/* Page 4 was assigned in each; between the last two it was that of step 3. */
	snprintf(question, sizeof question, "page 4 %ld", now - 3000);
	EXPECT_EQ(asked(question), 1u << 3);
	snprintf(question, sizeof question, "page 4 %ld", now + 60);
	EXPECT_EQ(asked(question), 1u << 4);
	EXPECT_EQ(asked("page 4 1000"), 0);
	EXPECT(dir_sound(&v));
}

/* Of the polynomial's definition, a bit at a time. */
static uint32_t crc_slow(const uint8_t *data, size_t bytes)
{
	uint32_t crc = ~0u;
	for (size_t i = 0; i < bytes; i++) {
		crc ^= data[i];
		for (unsigned k = 0; k < 8; k++)
			crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78 : 0);
	}
	return ~crc;
}

static void sums(void)
{
	uint8_t data[200];
	uint64_t draw = 5;
	for (size_t i = 0; i < sizeof data; i++)
		data[i] = (uint8_t)((draw = draw * 6364136223846793005u + 1) >> 56);
	EXPECT_EQ(store_crc_bytes("123456789", 9), 0xe3069283);
	for (size_t from = 0; from < 9; from++)
		for (size_t n = 0; n + from <= sizeof data; n++) {
			const uint32_t right = crc_slow(data + from, n);
			REQUIRE(store_crc_bytes(data + from, n) == right);
			REQUIRE(~store_crc_plain(~0u, data + from, n) == right);
		}
}

int main(int argc, char **argv)
{
	static const struct dir_job jobs[] = {{"opens too", opens_too}};
	dir_jobs(argc, argv, jobs, sizeof jobs / sizeof jobs[0]);
	setvbuf(stdout, NULL, _IOLBF, 0); /* nothing is left in it for a child to print again */
	TAP_RUN(sums, "sums of rows are those of the polynomial, with and without an instruction for it");
	dir_run(reopen, "three boots leave one chain, and files for their owner only");
	dir_run(kinds, "every kind of record comes back as it was pushed");
	dir_run(rows, "owner rows follow a plain model through 3,000 random steps and a reboot");
	dir_run(large_step, "a step larger than the ring is one step in parts; an empty one is none");
	dir_run(ring_full, "a full ring refuses, and nothing is lost or moved");
	dir_run(gather, "a time to gather holds commits back until enough waits");
	dir_run(pace, "what nobody waits for is gathered, what somebody waits for is not");
	dir_run(hurry_once, "who waited for a step that was closed hurries none after it");
	dir_run(parts_time, "the parts of a large step bear the time of the step");
	dir_run(idle, "an idle store uses no processor");
	dir_run(clock_jumps, "a clock that jumps: what lies between two times is found");
	dir_run(second, "a second opener is refused, in this process and in another");
	dir_make(false); /* what is killed is on the disk that the build is on */
	TAP_RUN(kills, "kill -9 at random moments: chain whole, what was durable is there");
	dir_drop();
	return tap_done();
}
