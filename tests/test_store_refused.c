/*
 * A state folder that is not what it must be, one row a way: each is refused by what was found and what was
 * expected, nothing in it is changed, and the line ends in a command. Where one command can repair it, or set
 * it aside, it is run as it stands, by a shell, and then the log opens: the same one, or a new one beside the
 * old, which is kept.
 */
#include "config.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/wait.h>

#include "runtime/store_anchor.h"
#include "runtime/tier.h"
#include "tests/store_dir.h"

enum after {
	SAME,   /* the log is there again */
	ANEW,   /* a new log; the old folder is beside it */
	NAMED,  /* the command only shows, or needs another user or --state: it must be there */
};

/* In the shell: S the state folder, in P; A its folder of anchors; O another log's state folder. */
struct row {
	const char *what, *harm;
	int code;
	const char *found, *expected, *command; /* command: how it begins */
	enum after after;
};

static const struct row rows[] = {
	{"not a folder", "rm -r \"$S\"; echo mine > \"$S\"", -ERR_BAD_FILE, "is not a folder", "must be one",
	 "mv '", ANEW},
	{"somebody's folder", "rm -r \"$S\"; mkdir -m 700 \"$S\"; echo mine > \"$S/letter\"", -ERR_BAD_FILE,
	 "has files in it", "must be empty", "install -d -m 0700 '", NAMED},
	{"somebody's folder, open to all", "rm -r \"$S\"; mkdir -m 755 \"$S\"; echo mine > \"$S/letter\"",
	 -ERR_BAD_FILE, "has files in it", "must be empty", "install -d -m 0700 '", NAMED},
	{"open to others", "chmod 0755 \"$S\"", -ERR_PERMISSION, "mode 0755", "must be 0700", "chmod 0700 '",
	 SAME},
	{"the folder above is a file", "rm -r \"$P\"; echo mine > \"$P\"", -ERR_IO, "Not a directory", "must be "
	 "what is expected", "mv '", NAMED},
	{"of a version to come", "sed -i 's/ 5 / 6 /' \"$S/uuid\"", -ERR_UNSUPPORTED, "version 6", "reads "
	 "version 5", "mv '", ANEW},
	{"of the first version", "sed -i 's/ 5 / 1 /' \"$S/uuid\"", -ERR_UNSUPPORTED, "version 1", "from 2 on",
	 "mv '", ANEW},
	{"another program's uuid", "echo hello > \"$S/uuid\"", -ERR_BAD_FILE, "is not one of ours", "a line of "
	 "'holdfast-audit'", "mv '", ANEW},
	{"a uuid that was cut", "truncate -s 30 \"$S/uuid\"", -ERR_BAD_FILE, "damaged", "must have 16", "mv '",
	 ANEW},
	{"uuid is a link", "mv \"$S/uuid\" \"$S/u\"; ln -s u \"$S/uuid\"", -ERR_IO, "'uuid'", "no link", "mv '",
	 NAMED},
	{"restored without uuid", "rm \"$S/uuid\"", -ERR_BAD_FILE, "no file 'uuid'", "a whole log", "mv '", ANEW},
	{"restored without data.mdb", "rm \"$S/data.mdb\"", -ERR_BAD_FILE, "data.mdb is gone", "in use before",
	 "mv '", ANEW},
	{"data.mdb is empty", ": > \"$S/data.mdb\"", -ERR_BAD_FILE, "0 bytes", "in use before", "mv '", ANEW},
	{"data.mdb is a folder", "rm \"$S/data.mdb\"; mkdir \"$S/data.mdb\"", -ERR_BAD_FILE, "is not a file",
	 "must be one", "mv '", ANEW},
	{"data.mdb is something else", "head -c 16384 /dev/zero | tr '\\0' x > \"$S/data.mdb\"", -ERR_BAD_FILE,
	 "data.mdb is damaged", "the last commit", "mv '", ANEW},
	{"data.mdb was cut", "truncate -s 8192 \"$S/data.mdb\"", -ERR_BAD_FILE, "data.mdb is damaged", "must",
	 "mv '", ANEW},
	{"data.mdb of another log", "cp \"$O/data.mdb\" \"$S/data.mdb\"", -ERR_INTEGRITY, "two different logs",
	 "must be of one", "mv '", ANEW},
	{"restored without keys", "rm \"$S/keys\"", -ERR_NO_FILE, "'keys'", "must be there", "mv '", ANEW},
	{"keys of another log", "cp \"$O/keys\" \"$S/keys\"", -ERR_INTEGRITY, "of another log", "at least", "mv "
	 "'", ANEW},
	{"keys are a folder", "rm \"$S/keys\"; mkdir \"$S/keys\"", -ERR_IO, "'keys'", "must be there", "mv '",
	 ANEW},
	{"last words of another log", "cp \"$O/beacon\" \"$S/beacon\"", -ERR_INTEGRITY, "'beacon' is of another "
	 "log", "must be this log's", "mv '", SAME},
	{"last words are a folder", "rm \"$S/beacon\"; mkdir \"$S/beacon\"", -ERR_IO, "'beacon'", "must be",
	 "mv '", SAME},
	{"key of anchors of another log", "cp \"$O/anchor\" \"$S/anchor\"", -ERR_INTEGRITY, "'anchor' is of "
	 "another log", "must be this log's", "mv '", SAME},
	{"anchors of a later state", "cp \"$A/later\" \"$A/\"*.anchors", -ERR_INTEGRITY, "its end was cut off",
	 "was anchored", "mv '", SAME},
	{"anchors of another log", "for f in \"$A/\"*.anchors; do sed -i '1s/log ../log zz/' \"$f\"; done",
	 -ERR_INTEGRITY, "is of another log", "must be this log's", "mv '", SAME},
	{"the place of anchors is a file", "rm -r \"$A\"; echo mine > \"$A\"", -ERR_BAD_FILE, "is not a folder",
	 "must be one", "mv '", SAME},
	{"a segment of another log", "cp \"$O/archive/\"*01-*.seg \"$S/archive/\"", -ERR_INTEGRITY, "is of "
	 "another log", "must be what its name says", "mv '", SAME},
	{"a segment that was cut", "for f in \"$S/archive/\"*01-*.seg; do truncate -s 20 \"$f\"; done",
	 -ERR_INTEGRITY, "is not a segment", "must be what its name says", "mv '", SAME},
	{"the lock is a link", "rm \"$S/lock\"; ln -s uuid \"$S/lock\"", -ERR_IO, "'lock'", "no link", "mv '",
	 SAME},
};

/* A space and a quote: the command is for a shell. */
static char above[256], state[300], anchors[300], other[300], other_anchors[320];

static struct store_options options(const char *dir, const char *second)
{
	struct store_options o = dir_options();
	o.dir = dir;
	o.anchor_dir = second;
	o.anchor_entries = 4;
	o.history_entries = 20;
	o.segment_entries = 16;
	return o;
}

static bool filled(const char *dir, const char *second, uint64_t first)
{
	struct store *s;
	const struct store_options o = options(dir, second);
	const uint8_t owner[16] = {1};
	const struct store_key key = {.bytes = {1}, .length = 1};
	if (store_open(&o, &s, store_reason, &store_warning) != 0)
		return false;
	(void)store_keep(s, TABLE_TURN, &key, false, owner, "x", 1);
	for (uint64_t step = first; step < first + 60; step++) {
		if (push_step(s, step) != 0)
			return false;
		durable_wait(s, step);
	}
	for (unsigned i = 0; i < 5000 && store_archived(s) == 0; i++)
		wait_ms(1);
	const struct store_last_word word = {.reason = REASON_TAG};
	store_beacon(s, &word);
	return store_close(&s) == 0;
}

/* What a command says, up to its first line's end. */
static const char *said(const char *command)
{
	static char line[2][256];
	static unsigned at;
	at = (at + 1) % 2;
	line[at][0] = 0;
	FILE *out = popen(command, "r");
	if (out != NULL && fgets(line[at], sizeof line[at], out) == NULL)
		line[at][0] = 0;
	return out != NULL && pclose(out) == 0 ? line[at] : "";
}

/* All that lies there by name, mode, size and bytes. A start may open the lock's file. */
static const char *standing(void)
{
	return said("(find \"$P\" ! -name 'lock*' -printf '%p %m %y %l\\n'; find \"$P\" -type f ! -name "
		"'lock*' -exec cksum {} +)"
		    " | sort | cksum");
}

static const char *command_of(const char *reason)
{
	const char *at = strstr(reason, ", run: "), *bare = strstr(reason, "; run: ");
	return at != NULL ? at + 7 : bare != NULL ? bare + 7 : "";
}

static int tried(void)
{
	struct store *s;
	const struct store_options o = options(state, anchors);
	store_reason[0] = 0;
	const int code = store_open(&o, &s, store_reason, &store_warning);
	return code != 0 ? code : store_close(&s);
}

static bool row_refused(const struct row *row)
{
	char before[256];
	snprintf(before, sizeof before, "%s", standing());
	const int code = tried();
	bool right = code == row->code && strcmp(before, standing()) == 0 && before[0] != 0;
	right &= strstr(store_reason, row->found) != NULL && strstr(store_reason, row->expected) != NULL;
	right &= strncmp(command_of(store_reason), row->command, strlen(row->command)) == 0;
	right &= strchr(store_reason, '\n') == NULL;
	if (!right)
		printf("# %s: %d: %s\n", row->what, code, store_reason);
	return right;
}

/* As it stands in the line. */
static bool row_cured(const struct row *row)
{
	char command[STORE_REASON_MAX], was[256];
	snprintf(was, sizeof was, "%s", said("cat \"$P.whole/uuid.of\""));
	snprintf(command, sizeof command, "%s", command_of(store_reason));
	if (row->after == NAMED)
		return true;
	bool right = system(command) == 0 && tried() == 0;
	if (right && row->after == SAME)
		right = strcmp(was, said("cat \"$S/uuid\"")) == 0;
	else if (right)
		right = strcmp(was, said("cat \"$S/uuid\"")) != 0 && system("test -e \"$S.aside\"") == 0;
	if (!right)
		printf("# %s: after: %s: %s\n", row->what, command, store_reason);
	return right;
}

static void refused(void)
{
	static const char fresh[] = "rm -rf \"$P\"; cp -a \"$P.whole\" \"$P\"";
	for (unsigned i = 0; i < sizeof rows / sizeof rows[0]; i++) {
		REQUIRE(system(fresh) == 0);
		REQUIRE(system(rows[i].harm) == 0);
		if (EXPECT(row_refused(&rows[i])))
			EXPECT(row_cured(&rows[i]));
	}
	/* Without a harm it opens: the rows are of what they say. */
	REQUIRE(system(fresh) == 0);
	EXPECT_EQ(tried(), 0);
}

static void whole_make(void)
{
	REQUIRE(filled(state, anchors, 1) && filled(other, other_anchors, 1));
	/* The anchors of what the log will be, beside those of now. */
	REQUIRE(system("cp -a \"$P\" \"$P.now\"") == 0);
	REQUIRE(filled(state, anchors, 61));
	REQUIRE(system("cp \"$A/\"*.anchors \"$P.now/second/later\" && cp \"$P.now/it's state/uuid\" "
		"\"$P.now/uuid.of\" && "
		       "rm -r \"$P\" && mv \"$P.now\" \"$P.whole\"") == 0);
	refused();
}

int main(void)
{
	dir_make(true);
	snprintf(above, sizeof above, "%.200s/in", store_dir);
	snprintf(state, sizeof state, "%s/it's state", above);
	snprintf(anchors, sizeof anchors, "%s/second", above);
	snprintf(other, sizeof other, "%.200s/other", store_dir);
	snprintf(other_anchors, sizeof other_anchors, "%s.second", other);
	CHECK(mkdir(above, 0700) == 0);
	CHECK(setenv("P", above, 1) == 0 && setenv("S", state, 1) == 0 && setenv("A", anchors, 1) == 0 &&
	      setenv("O", other, 1) == 0 && setenv("D", store_dir, 1) == 0 && setenv("LC_ALL", "C", 1) == 0);
	TAP_RUN(whole_make, "a state folder that is not what it must be: what was found, what was expected, "
		"and a command that works");
	CHECK(system("rm -rf \"$D\"") == 0);
	return tap_done();
}
