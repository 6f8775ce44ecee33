/*
 * Questions to the audit log. Who held a page at a time; all pages of a session; where a turn's
 * context came from; what happened between two times; incidents; whether the log is whole; all of it
 * as JSON lines.
 *
 * A time is found by halving, since entries are in order, but where the clock was set back: each stretch
 * between two such places is looked at; a session, and what is rare, by the index; a page from its owner
 * row, or backwards from the time by the index.
 */
#include "config.h"

#include "runtime/audit.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <sodium.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "runtime/audit_say.h"
#include "runtime/store_read.h"
#include "sched/check.h"

enum { VERIFY_UNPROVEN = 3 }; /* an exit status */

struct ask {
	struct store_reader *reader;
	bool json;
	uint64_t looked, found;
	struct store_read_entry entry;
};

/* Seconds since 1970, or YYYY-MM-DDTHH:MM:SS in UTC. */
static bool time_read(const char *text, uint64_t *ns)
{
	struct tm tm = {0};
	char *end;
	const char *rest = strptime(text, "%Y-%m-%dT%H:%M:%S", &tm);
	double fraction = 0;
	if (rest) {
		if (*rest == '.')
			fraction = strtod(rest, &end), rest = end;
		*ns = (uint64_t)timegm(&tm) * 1000000000u + (uint64_t)(fraction * 1e9);
		return *rest == 0 || strcmp(rest, "Z") == 0;
	}
	const double seconds = strtod(text, &end);
	if (text[0] < '0' || text[0] > '9' || *end || seconds > 1e11)
		return false;
	*ns = (uint64_t)(seconds * 1e9);
	return true;
}

static bool id_read(const char *text, uint8_t out[16])
{
	size_t n = 0;
	const char *end = NULL;
	return sodium_hex2bin(out, 16, text, strlen(text), NULL, &n, &end) == 0 && n == 16 && *end == 0;
}

static void record_show(struct ask *a, const struct store_record *r)
{
	a->found++;
	audit_say_record(&a->entry, r, a->json);
}

/* A boot or shutdown, as a record of its own. */
static void mark_show(struct ask *a)
{
	const struct store_record r = {.kind = a->entry.kind, .turn = a->entry.boot};
	if (a->entry.kind != STORE_STEP_END)
		record_show(a, &r);
}

static int entry_at(struct ask *a, uint64_t seq)
{
	a->looked++;
	return store_reader_entry(a->reader, seq, &a->entry);
}

/* The first entry of [low, high) at or after a time; high if there is none. In them the clock does not go
   back. */
static int seq_of(struct ask *a, uint64_t ns, uint64_t low, uint64_t high, uint64_t *out)
{
	while (low < high) {
		const uint64_t middle = low + (high - low) / 2;
		uint64_t wall;
		TRY(store_reader_wall(a->reader, middle, &wall));
		a->looked++;
		if (wall < ns)
			low = middle + 1;
		else
			high = middle;
	}
	*out = low;
	return 0;
}

/* A page of the device: the log tells of no other place who holds what. */
static bool covers(const struct store_record *r, uint32_t group, uint32_t page)
{
	return r->kind >= STORE_ASSIGN && r->kind <= STORE_QUARANTINE && r->place == 0 && r->group == group &&
	       page >= r->page_first && page - r->page_first < r->page_count;
}

/* Events of the page before an entry, backwards up to the assignment that began its holding: the index names
   the entries that may have them. */
static int page_history(struct ask *a, uint64_t seq, uint32_t group, uint32_t page)
{
	struct store_wanted wanted = {.count = 0};
	store_want_page(&wanted, group, page);
	store_want_kind(&wanted, STORE_BOOT);
	while (seq > 1) {
		const int code = store_reader_seek(a->reader, &wanted, seq - 1, true, &seq);
		if (code)
			return code == -ERR_NOT_FOUND ? 0 : code;
		TRY(entry_at(a, seq));
		if (a->entry.kind == STORE_BOOT)
			break; /* memory begins anew with each boot */
		for (uint32_t i = a->entry.count; i-- > 0;) {
			struct store_record r = a->entry.records[i];
			if (!covers(&r, group, page))
				continue;
			r.position_first += (page - r.page_first) * store_reader_page_tokens(a->reader);
			r.tag_first += page - r.page_first;
			r.page_first = page;
			r.page_count = 1;
			record_show(a, &r);
			if (r.kind == STORE_ASSIGN)
				return 0;
		}
	}
	return 0;
}

/* Backwards from the time: events of the page up to the assignment that began its holding. */
static int ask_page(struct ask *a, uint32_t group, uint32_t page, const char *at)
{
	uint64_t seq = store_reader_last(a->reader) + 1, ns;
	struct store_row row;
	const int known = store_reader_row(a->reader, 0, group, page, &row);
	if (at && !time_read(at, &ns))
		return -ERR_BAD_ARG;
	/* Where the clock said that time more than once, it is the last. */
	uint64_t low = store_reader_first(a->reader), next, found = low;
	for (; at && low < seq; low = next) {
		next = store_reader_ordered(a->reader, low);
		uint64_t here;
		TRY(seq_of(a, ns, low, next, &here));
		found = here > low ? here : found;
	}
	if (at)
		seq = found;
	/* The row names the last entry that changed it: nothing lies between. */
	if (known == 0 && row.last_seq < seq)
		seq = row.last_seq + 1;
	audit_say_head(a->json);
	return page_history(a, seq, group, page);
}

/* Every record that names the session, of all kinds or of one turn. */
static int ask_session(struct ask *a, const char *text, const char *turn)
{
	uint8_t id[16];
	uint64_t seq = 0;
	char *end = NULL;
	const unsigned long wanted = turn ? strtoul(turn, &end, 10) : 0;
	if (!id_read(text, id) || (turn && (*end || turn[0] < '0' || turn[0] > '9')))
		return -ERR_BAD_ARG;
	struct store_wanted name;
	int code;
	store_want_session(&name, id);
	audit_say_head(a->json);
	while ((code = store_reader_seek(a->reader, &name, seq + 1, false, &seq)) == 0) {
		TRY(entry_at(a, seq));
		for (uint32_t i = 0; i < a->entry.count; i++) {
			const struct store_record *r = &a->entry.records[i];
			if (memcmp(r->session, id, sizeof id) != 0 || (turn && r->turn > wanted))
				continue;
			record_show(a, r);
			/* Its END closes the question: what came before is where its context came from. */
			if (turn && r->kind == STORE_TURN_END && r->turn == wanted + 1)
				return 0;
		}
	}
	return code == -ERR_NOT_FOUND ? 0 : code;
}

static void turn_origin(const struct ask *a, const struct store_record *r)
{
	const uint64_t reloaded = r->tag_first >> 32, fresh = r->tag_first & 0xffffffffu;
	static const char text[] = "turn %u: a prompt of %u tokens, of which %u were resident, %" PRIu64
		" reloaded, %u recomputed, %" PRIu64 " new; %" PRIu64 " sampled\n";
	static const char json[] = "{\"turn\": %u, \"prompt\": %u, \"resident\": %u, \"reloaded\": %" PRIu64
		", \"recomputed\": %u, \"new\": %" PRIu64 ", \"sampled\": %" PRIu64 "}\n";
	if (a->json)
		printf(json, r->turn - 1, r->position_first, r->page_first, reloaded, r->group, fresh, r->value[0]);
	else
		printf(text, r->turn - 1, r->position_first, r->page_first, reloaded, r->group, fresh, r->value[0]);
}

/* The turn's own numbers, then the pages that the session had got by then, with the turn that
   computed them. */
static int ask_turn(struct ask *a, const char *text, const char *turn)
{
	uint8_t id[16];
	uint64_t seq = 0;
	char *end;
	const unsigned long wanted = strtoul(turn, &end, 10);
	if (!id_read(text, id) || *end || turn[0] < '0' || turn[0] > '9')
		return -ERR_BAD_ARG;
	struct store_wanted name;
	int code;
	store_want_session(&name, id);
	audit_say_head(a->json);
	while ((code = store_reader_seek(a->reader, &name, seq + 1, false, &seq)) == 0) {
		TRY(entry_at(a, seq));
		for (uint32_t i = 0; i < a->entry.count; i++) {
			const struct store_record *r = &a->entry.records[i];
			if (memcmp(r->session, id, sizeof id) != 0)
				continue;
			const bool page = r->kind >= STORE_ASSIGN && r->kind <= STORE_QUARANTINE;
			if (page && r->turn <= wanted)
				record_show(a, r);
			if (r->kind == STORE_TURN_END && r->turn == wanted + 1) {
				turn_origin(a, r);
				a->found++;
				return 0;
			}
		}
	}
	return code;
}

static int ask_between(struct ask *a, const char *from, const char *to)
{
	uint64_t first, last, t0, t1;
	if (!time_read(from, &t0) || !time_read(to, &t1))
		return -ERR_BAD_ARG;
	audit_say_head(a->json);
	uint64_t next;
	for (uint64_t low = store_reader_first(a->reader); low <= store_reader_last(a->reader); low = next) {
		next = store_reader_ordered(a->reader, low);
		TRY(seq_of(a, t0, low, next, &first));
		TRY(seq_of(a, t1, low, next, &last));
		for (uint64_t seq = first; seq < last; seq++) {
			TRY(entry_at(a, seq));
			mark_show(a);
			for (uint32_t i = 0; i < a->entry.count; i++)
				record_show(a, &a->entry.records[i]);
		}
	}
	return 0;
}

/* Each incident, and what the log says of its page before it. */
static int ask_incidents(struct ask *a)
{
	static struct ask back;
	struct store_wanted wanted = {.count = 0};
	uint64_t seq = 0;
	int code;
	store_want_kind(&wanted, STORE_INCIDENT);
	audit_say_head(a->json);
	while ((code = store_reader_seek(a->reader, &wanted, seq + 1, false, &seq)) == 0) {
		TRY(entry_at(a, seq));
		for (uint32_t i = 0; i < a->entry.count; i++) {
			const struct store_record r = a->entry.records[i];
			if (r.kind != STORE_INCIDENT)
				continue;
			record_show(a, &r);
			back = (struct ask){.reader = a->reader, .json = a->json};
			if (r.reason != REASON_BEACON && r.reason != REASON_DEVICE && r.place == 0)
				TRY(page_history(&back, seq, r.group, r.page_first));
			a->looked += back.looked;
			a->found += back.found;
		}
	}
	return code == -ERR_NOT_FOUND ? 0 : code;
}

/* What the log has of a kind that is rare; of configuration, boots too: each says with what it began. */
static int ask_kind(struct ask *a, uint8_t kind)
{
	struct store_wanted wanted = {.count = 0};
	uint64_t seq = 0;
	int code;
	store_want_kind(&wanted, kind);
	if (kind == STORE_CONFIG)
		store_want_kind(&wanted, STORE_BOOT);
	audit_say_head(a->json);
	while ((code = store_reader_seek(a->reader, &wanted, seq + 1, false, &seq)) == 0) {
		TRY(entry_at(a, seq));
		if (kind == STORE_CONFIG && a->entry.kind == STORE_BOOT)
			mark_show(a);
		for (uint32_t i = 0; i < a->entry.count; i++)
			if (a->entry.records[i].kind == kind)
				record_show(a, &a->entry.records[i]);
	}
	return code == -ERR_NOT_FOUND ? 0 : code;
}

static int ask_export(struct ask *a)
{
	a->json = true;
	for (uint64_t seq = store_reader_first(a->reader); seq <= store_reader_last(a->reader); seq++) {
		TRY(entry_at(a, seq));
		mark_show(a);
		for (uint32_t i = 0; i < a->entry.count; i++)
			audit_say_record(&a->entry, &a->entry.records[i], true);
	}
	return 0;
}

static void verified_line(const struct store_verified *v)
{
	printf("whole: %" PRIu64 " entries to the head", v->entries);
	if (v->archived)
		printf(" (up to %" PRIu64 " in segments)", v->archived);
	if (v->first > 1)
		printf("; those before %" PRIu64 " are not here", v->first);
	printf("; %" PRIu64 " owner rows; boot %u%s\n", v->rows, v->boot, v->clean ? ", closed" : "");
}

/* Entries that the index speaks of: a question reads the rest one by one. */
static void index_line(const struct store_verified *v)
{
	printf("index: of %" PRIu64 " entries, and it says what they say\n", v->indexed);
}

static void unproven_lines(const struct store_verify *what, const struct store_verified *v)
{
	if (v->keyless)
		printf("not proven: the file 'keys' is not here, so neither that sessions can be read, nor that it "
		       "would be of this log and as new; no daemon starts on this folder\n");
	if (v->signed_right < v->anchors)
		printf("not proven: who made %" PRIu64 " of the %" PRIu64 " anchors: their keys are not in '%s'; "
		       "say where they were taken to: --anchor-key DIR\n", v->anchors - v->signed_right, v->anchors,
		       what->key_dir ? what->key_dir : what->anchor_dir);
}

static void anchors_line(const struct store_verify *what, const struct store_verified *v)
{
	if (!what->anchor_dir) {
		printf("anchored: nothing was compared; say where the anchors are: --anchor DIR\n");
		return;
	}
	printf("anchored: up to entry %" PRIu64 ", by %" PRIu64 " anchors, %" PRIu64
	       " of them with the right signature", v->anchored, v->anchors, v->signed_right);
	if (v->torn)
		printf("; %" PRIu64 " lines are none", v->torn);
	printf("\n");
}

static int verify(const struct store_verify *what, bool json)
{
	struct store_verified v;
	char reason[STORE_REASON_MAX] = "";
	const int code = store_verify_all(what, &v, reason);
	const uint64_t tail = v.entries > v.anchored ? v.entries - v.anchored : 0;
	const bool proven = code == 0 && !v.keyless && v.signed_right == v.anchors;
	if (json) {
		printf("{\"ok\": %s, \"entries\": %" PRIu64 ", \"rows\": %" PRIu64 ", \"boot\": %u, "
		       "\"clean\": %s, \"first\": %" PRIu64 ", \"archived\": %" PRIu64 ", \"anchored\": %" PRIu64
		       ", \"tail\": %" PRIu64 ", \"anchors\": %" PRIu64 ", \"signed\": %" PRIu64
		       ", \"keys\": %s, \"indexed\": %" PRIu64 ", \"proven\": %s, \"error\": \"%s\"}\n",
		       code ? "false" : "true", v.entries, v.rows, v.boot,
		       v.clean ? "true" : "false", v.first, v.archived, v.anchored, tail, v.anchors,
		       v.signed_right, v.keyless ? "false" : "true", v.indexed, proven ? "true" : "false",
		       code ? err_name(code) : "");
	} else if (code == 0 || v.anchored) {
		if (code == 0)
			verified_line(&v);
		anchors_line(what, &v);
		if (code == 0)
			printf("unanchored tail: %" PRIu64 " entries\n", tail);
		if (code == 0)
			index_line(&v);
		if (code == 0)
			unproven_lines(what, &v);
	}
	if (code)
		fprintf(stderr, "holdfastd: audit: %s%s\n", json ? "" : "broken: ", reason);
	return code ? 1 : proven ? 0 : VERIFY_UNPROVEN;
}

static int archive(const char *dir, const char *keep, bool json)
{
	char reason[STORE_REASON_MAX] = "", *end;
	uint64_t moved;
	const unsigned long long entries = keep ? strtoull(keep, &end, 10) : 0;
	if (keep && (*end || keep[0] < '0' || keep[0] > '9'))
		return 2;
	const int code = store_archive(dir, entries, &moved, reason);
	if (code)
		fprintf(stderr, "holdfastd: audit: %s%s\n", reason, code == -ERR_IN_USE ?
			"; a daemon moves old entries by itself, see --audit-history" : "");
	printf(json ? "{\"moved\": %" PRIu64 "}\n" : "%" PRIu64 " entries moved to segments\n", moved);
	return code ? 1 : 0;
}

static const char help[] =
	"usage: holdfast audit [--state DIR] [--json] [--anchor DIR [--anchor-key DIR]] QUESTION\n"
	"  page N [TIME]       who held page N of the device, now or at a time; G:N: of page group G\n"
	"  session ID          every page and event of a session\n"
	"  turn ID N           where the context of its turn N (from 0) came from\n"
	"  between TIME TIME   all that happened\n"
	"  incidents           each with its page's history\n"
	"  refusals            who was refused what, by key, user, role or session; who was cut off\n"
	"  configuration       with what each boot began, and what reloads changed\n"
	"  verify              chain, anchors, owner rows: anchored, unanchored tail, or where it is broken\n"
	"  export              everything, as JSON lines\n"
	"  archive [KEEP]      moves all but the last KEEP entries to segments; not beside a daemon\n"
	"--anchor is for verify: the folder of the daemon's --anchor. --anchor-key: where its *.key files were\n"
	"taken to. Without the keys the anchors are compared, but not their signatures.\n"
	"verify ends with 0 when all is proven, 1 when the log is broken, 3 when nothing is wrong but something\n"
	"could not be proven, since keys are not here; it says what.\n"
	"TIME is seconds since 1970, or 2026-01-31T12:00:00 (UTC). Works beside a running daemon, and without.\n";

static const char *state_default(void)
{
	static char dir[4096];
	const char *state = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
	if (state && state[0] == '/')
		snprintf(dir, sizeof dir, "%s/holdfast", state);
	else
		snprintf(dir, sizeof dir, "%s/.local/state/holdfast", home ? home : "");
	return dir;
}

/* -ERR_BAD_ARG: the question is none. */
static int question(struct ask *a, int count, const char **word)
{
	char *end;
	const char *what = word[0];
	if (strcmp(what, "page") == 0 && (count == 2 || count == 3)) {
		const char *number = strchr(word[1], ':');
		unsigned long group = number ? strtoul(word[1], &end, 10) : 0;
		if (number && (end != number++ || word[1][0] < '0' || word[1][0] > '9' || group > UINT8_MAX))
			return -ERR_BAD_ARG;
		number = number ? number : word[1];
		const unsigned long page = strtoul(number, &end, 10);
		if (*end || number[0] < '0' || number[0] > '9' || page > UINT32_MAX)
			return -ERR_BAD_ARG;
		return ask_page(a, (uint32_t)group, (uint32_t)page, count == 3 ? word[2] : NULL);
	}
	if (strcmp(what, "session") == 0 && count == 2)
		return ask_session(a, word[1], NULL);
	if (strcmp(what, "turn") == 0 && count == 3)
		return ask_turn(a, word[1], word[2]);
	if (strcmp(what, "between") == 0 && count == 3)
		return ask_between(a, word[1], word[2]);
	if (strcmp(what, "incidents") == 0 && count == 1)
		return ask_incidents(a);
	if (strcmp(what, "refusals") == 0 && count == 1)
		return ask_kind(a, STORE_AUTH);
	if (strcmp(what, "configuration") == 0 && count == 1)
		return ask_kind(a, STORE_CONFIG);
	if (strcmp(what, "export") == 0 && count == 1)
		return ask_export(a);
	return -ERR_BAD_ARG;
}

enum { WORDS_MAX = 3 };
struct command {
	const char *dir, *anchor, *anchor_key, *word[WORDS_MAX];
	int count;
	bool json;
};

/* 0; 1: help; 2: wrong. */
static int arguments_read(int argc, char **argv, struct command *c)
{
	static const char *const names[] = {"--state", "--anchor", "--anchor-key"};
	const char **const values[] = {&c->dir, &c->anchor, &c->anchor_key};
	for (int i = 1; i < argc; i++) {
		bool taken = false;
		for (unsigned k = 0; k < 3 && !taken; k++) {
			const size_t n = strlen(names[k]);
			if (strncmp(argv[i], names[k], n) != 0 || (argv[i][n] != 0 && argv[i][n] != '='))
				continue;
			taken = true;
			if (argv[i][n] == 0 && i + 1 == argc)
				return 2;
			*values[k] = argv[i][n] == '=' ? argv[i] + n + 1 : argv[++i];
		}
		if (taken)
			continue;
		if (strcmp(argv[i], "--help") == 0)
			return 1;
		if (strcmp(argv[i], "--json") == 0)
			c->json = true;
		else if (strncmp(argv[i], "--", 2) == 0 || c->count == WORDS_MAX)
			return 2;
		else
			c->word[c->count++] = argv[i];
	}
	return c->count == 0 ? 2 : 0;
}

static int ask(struct ask *a, struct command *c)
{
	char reason[STORE_REASON_MAX];
	int code = store_reader_open_unseen(c->dir, &a->reader, reason);
	if (code) {
		fprintf(stderr, "holdfastd: audit: %s\n", reason);
		return 1;
	}
	const uint64_t last = store_reader_last(a->reader), first = store_reader_first(a->reader);
	a->json = c->json;
	code = question(a, c->count, c->word);
	const uint64_t looked = a->looked + store_reader_passed(a->reader), all = last ? last - first + 1 : 0;
	store_reader_close(&a->reader);
	if (code == -ERR_BAD_ARG)
		return 2;
	if (code && code != -ERR_NOT_FOUND)
		fprintf(stderr, "holdfastd: audit: %s\n", err_text(code));
	else if (!a->json)
		fprintf(stderr, "%" PRIu64 " records; %" PRIu64 " entries looked at of %" PRIu64 "\n", a->found,
			looked, all);
	return code == 0 ? 0 : 1;
}

/* In a child: what a crafted file can crash is only that. */
static int ask_apart(struct ask *a, struct command *c)
{
	const pid_t parent = getpid();
	int status = 0;
	fflush(stdout);
	const pid_t pid = fork();
	if (pid < 0)
		return ask(a, c);
	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (getppid() != parent) /* it died before that line */
			_exit(1);
		setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0}); /* it would hold the log */
		const int code = ask(a, c);
		_exit(fflush(stdout) == 0 ? code : 1);
	}
	while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
		;
	if (WIFEXITED(status))
		return WEXITSTATUS(status);
	const int sig = WTERMSIG(status);
	const bool crashed = sig == SIGSEGV || sig == SIGBUS || sig == SIGABRT || sig == SIGFPE || sig == SIGILL;
	if (!crashed && sig != SIGPIPE)
		fprintf(stderr, "holdfastd: audit: the process that read '%s' was ended (signal %d); ask again\n",
			c->dir, sig);
	else if (crashed)
		fprintf(stderr, "holdfastd: audit: reading '%s' ended a process (signal %d): data.mdb is damaged; "
			"for what is to be done, ask 'verify'\n", c->dir, sig);
	return 1;
}

int audit_main(int argc, char **argv)
{
	static struct ask a;
	struct command c = {.dir = state_default()};
	int code = arguments_read(argc, argv, &c);
	if (code == 1) {
		fputs(help, stdout);
		return 0;
	}
	const struct store_verify what = {.dir = c.dir, .anchor_dir = c.anchor, .key_dir = c.anchor_key};
	if (code == 0 && strcmp(c.word[0], "verify") == 0 && c.count == 1)
		code = verify(&what, c.json);
	else if (code == 0 && strcmp(c.word[0], "archive") == 0 && c.count <= 2)
		code = archive(c.dir, c.word[1], c.json);
	else if (code == 0)
		code = ask_apart(&a, &c);
	if (code == 2)
		fputs(help, stderr);
	return code;
}
