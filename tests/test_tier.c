/*
 * Goal: a page comes back from the disk tier only as what was put there. Method: each field of the
 * proof is made to differ; writes are cut, refused and torn by a table of failures; every byte of a
 * small file is turned once; the process is killed in the middle of writing.
 */
#include "config.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/fault.h"
#include "runtime/tier.h"
#include "sched/check.h"
#include "tests/tap.h"

enum { PAGE = 5000, SLOTS = 8 };

static char dir[64], reason[TIER_REASON_MAX];
static const char *warning, *why;

static struct tier_options options(void)
{
	return (struct tier_options){.dir = dir, .store = {1, 2, 3}, .group_count = 2,
				     .group = {{PAGE, SLOTS}, {64, 3}}};
}

static const char *file_path(void)
{
	static char path[96];
	snprintf(path, sizeof path, "%s/pages", dir);
	return path;
}

static struct tier_proof proof(uint32_t n)
{
	return (struct tier_proof){.model = {7}, .plan = {8}, .chain = {n, 2}, .content = {3, n}, .tag = n,
				   .principal = 1, .position = n * 16, .tokens = 16};
}

static void fill(uint8_t *bytes, uint32_t n)
{
	for (uint32_t i = 0; i < PAGE; i++)
		bytes[i] = (uint8_t)(i * 31 + n * 7 + (i >> 8));
}

static int opens(struct tier **t)
{
	struct tier_options o = options();
	return tier_open(&o, t, reason, &warning);
}

static void folder_make(void)
{
	snprintf(dir, sizeof dir, "/tmp/tier test.XXXXXX");
	CHECK(mkdtemp(dir) != NULL);
}

static void folder_drop(void)
{
	unlink(file_path());
	rmdir(dir);
	fault_set(NULL, 0);
}

/* 0, or what tier_get says of slot n as page n. */
static int look(struct tier *t, uint32_t n)
{
	uint8_t bytes[PAGE], right[PAGE];
	const struct tier_proof p = proof(n);
	const int err = tier_get(t, 0, n, &p, bytes, &why);
	fill(right, n);
	if (err == 0)
		EXPECT(memcmp(bytes, right, PAGE) == 0);
	return err;
}

static int put(struct tier *t, uint32_t n)
{
	uint8_t bytes[PAGE];
	const struct tier_proof p = proof(n);
	fill(bytes, n);
	return tier_put(t, 0, n, &p, bytes);
}

static void keeps(void)
{
	struct tier *t;
	struct tier_proof found;
	folder_make();
	REQUIRE(opens(&t) == 0);
	EXPECT(warning == NULL);
	EXPECT_EQ(look(t, 1), -ERR_NOT_FOUND);
	EXPECT_EQ(put(t, 1), 0);
	EXPECT_EQ(put(t, 6), 0);
	EXPECT_EQ(look(t, 1), 0);
	struct tier *second;
	EXPECT_EQ(opens(&second), -ERR_IN_USE);
	tier_close(&t);
	REQUIRE(opens(&t) == 0);
	EXPECT(warning == NULL);
	uint32_t slot = 0;
	EXPECT_EQ(tier_scan(t, 0, &slot, &found), 0);
	EXPECT_EQ(slot, 1);
	EXPECT_EQ(found.position, 16);
	slot++;
	EXPECT_EQ(tier_scan(t, 0, &slot, &found), 0);
	EXPECT_EQ(slot, 6);
	slot++;
	EXPECT_EQ(tier_scan(t, 0, &slot, &found), -ERR_NOT_FOUND);
	slot = 0;
	EXPECT_EQ(tier_scan(t, 1, &slot, &found), -ERR_NOT_FOUND);
	EXPECT_EQ(look(t, 6), 0);
	EXPECT_EQ(tier_drop(t, 0, 6), 0);
	EXPECT_EQ(look(t, 6), -ERR_NOT_FOUND);
	EXPECT_EQ(look(t, 1), 0);
	tier_close(&t);
	folder_drop();
}

static void field_differs(void)
{
	static const struct { size_t at; int err; const char *word; } fields[] = {
		{offsetof(struct tier_proof, model), -ERR_NOT_FOUND, "model"},
		{offsetof(struct tier_proof, plan), -ERR_NOT_FOUND, "plan"},
		{offsetof(struct tier_proof, chain), -ERR_NOT_FOUND, "tokens"},
		{offsetof(struct tier_proof, content), -ERR_NOT_FOUND, "content"},
		{offsetof(struct tier_proof, principal), -ERR_NOT_FOUND, "principal"},
		{offsetof(struct tier_proof, position), -ERR_NOT_FOUND, "positions"},
		{offsetof(struct tier_proof, tokens), -ERR_NOT_FOUND, "positions"},
		{offsetof(struct tier_proof, tag), 0, NULL},
	};
	struct tier *t;
	uint8_t bytes[PAGE];
	folder_make();
	REQUIRE(opens(&t) == 0);
	EXPECT_EQ(put(t, 2), 0);
	for (unsigned i = 0; i < sizeof fields / sizeof fields[0]; i++) {
		struct tier_proof p = proof(2);
		((uint8_t *)&p)[fields[i].at] ^= 0x40;
		EXPECT_EQ(tier_get(t, 0, 2, &p, bytes, &why), fields[i].err);
		if (fields[i].word)
			EXPECT(why && strstr(why, fields[i].word));
	}
	/* A page in another slot than it was put is nobody's. */
	struct tier_proof p = proof(2);
	EXPECT_EQ(tier_get(t, 0, 3, &p, bytes, &why), -ERR_NOT_FOUND);
	p.content[0] = p.content[1] = 0;
	EXPECT_EQ(tier_get(t, 0, 2, &p, bytes, &why), 0);
	tier_close(&t);
	folder_drop();
}

static void faults(void)
{
	static const struct { struct fault fault; int put, get; } cases[] = {
		{{.point = FAULT_TIER_WRITE, .at = 1, .code = EIO}, -ERR_IO, -ERR_NOT_FOUND},
		{{.point = FAULT_TIER_WRITE, .at = 1, .code = ENOSPC}, -ERR_DISK_FULL, -ERR_NOT_FOUND},
		{{.point = FAULT_TIER_WRITE, .at = 1, .code = FAULT_HALF}, 0, -ERR_INTEGRITY},
		{{.point = FAULT_TIER_READ, .at = 1, .code = EIO}, 0, -ERR_IO},
		{{.point = FAULT_TIER_READ, .at = 1, .code = FAULT_HALF}, 0, -ERR_INTEGRITY},
	};
	for (unsigned i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		struct tier *t;
		folder_make();
		REQUIRE(opens(&t) == 0);
		/* An older page stands there: it may not come back in the new one's place. */
		EXPECT_EQ(put(t, 4), 0);
		fault_set(&cases[i].fault, 1);
		uint8_t bytes[PAGE];
		struct tier_proof p = proof(5);
		fill(bytes, 5);
		EXPECT_EQ(tier_put(t, 0, 4, &p, bytes), cases[i].put);
		EXPECT_EQ(tier_get(t, 0, 4, &p, bytes, &why), cases[i].get);
		EXPECT(look(t, 4) == -ERR_NOT_FOUND);
		EXPECT_EQ(fault_made(), 1);
		tier_close(&t);
		folder_drop();
	}
}

/* The file cannot grow: the limit of a process stands for a full disk. */
static void full(void)
{
	struct tier *t;
	folder_make();
	struct tier_options o = options();
	o.reserve_bytes = 1ull << 60;
	REQUIRE(tier_open(&o, &t, reason, &warning) == 0);
	EXPECT_EQ(put(t, 1), -ERR_DISK_FULL);
	EXPECT_EQ(look(t, 1), -ERR_NOT_FOUND);
	tier_close(&t);
	folder_drop();
}

/* Whatever byte is turned: the page is the right one or absent, and no other page is touched. */
static void hostile_bytes(void)
{
	struct tier *t;
	struct stat st;
	folder_make();
	REQUIRE(opens(&t) == 0);
	EXPECT_EQ(put(t, 0), 0);
	EXPECT_EQ(put(t, 7), 0);
	tier_close(&t);
	EXPECT_EQ(stat(file_path(), &st), 0);
	const int step = getenv("HOLDFAST_SANITIZED") ? 97 : 13;
	unsigned absent = 0, void_file = 0;
	for (off_t at = 0; at < st.st_size; at += step) {
		uint8_t byte;
		int fd = open(file_path(), O_RDWR | O_CLOEXEC);
		REQUIRE(fd >= 0);
		EXPECT_EQ(pread(fd, &byte, 1, at), 1);
		byte ^= (uint8_t)(1u << (at % 8));
		EXPECT_EQ(pwrite(fd, &byte, 1, at), 1);
		const int err = opens(&t);
		if (err == 0) {
			const int a = look(t, 0), b = look(t, 7);
			EXPECT(a == 0 || b == 0 || warning != NULL);
			absent += a != 0 || b != 0;
			void_file += warning != NULL;
			if (warning) {
				EXPECT_EQ(put(t, 0), 0);
				EXPECT_EQ(put(t, 7), 0);
			}
			tier_close(&t);
		} else {
			EXPECT_EQ(err, -ERR_BAD_FILE);
		}
		byte ^= (uint8_t)(1u << (at % 8));
		if (err != 0 || !warning)
			EXPECT_EQ(pwrite(fd, &byte, 1, at), 1);
		close(fd);
	}
	EXPECT(absent > 50);
	EXPECT(void_file > 0);
	folder_drop();
}

static int opens_as(const struct tier_options *o)
{
	struct tier *t;
	const int err = tier_open(o, &t, reason, &warning);
	tier_close(&t);
	return err;
}

/* The command that the refusal names is run as it stands; then the tier opens,
	and what lay there is beside. */
static void set_aside(const struct tier_options *o, const char *found)
{
	char aside[128];
	const char *command = strstr(reason, ", run: mv '");
	snprintf(aside, sizeof aside, "%s.aside", file_path());
	REQUIRE(strstr(reason, found) != NULL && command != NULL);
	EXPECT(system(command + 7) == 0);
	EXPECT_EQ(opens_as(o), 0);
	EXPECT(access(aside, F_OK) == 0 || readlink(aside, (char[8]){0}, 8) > 0);
	unlink(aside);
	unlink(file_path());
}

static void other_files(void)
{
	struct tier *t;
	struct tier_options o = options();
	folder_make();
	REQUIRE(opens(&t) == 0);
	EXPECT_EQ(put(t, 1), 0);
	tier_close(&t);
	o.store[0] ^= 1;
	EXPECT_EQ(opens_as(&o), 0);
	EXPECT(warning && strstr(warning, "another store"));
	o = options();
	REQUIRE(opens(&t) == 0);
	EXPECT_EQ(look(t, 1), -ERR_NOT_FOUND);
	EXPECT_EQ(put(t, 1), 0);
	tier_close(&t);
	o.group[0].page_count = 4;
	EXPECT_EQ(opens_as(&o), 0);
	EXPECT(warning && strstr(warning, "sizes"));
	EXPECT_EQ(truncate(file_path(), 5000), 0); /* partly restored */
	EXPECT_EQ(opens_as(&o), 0);
	EXPECT(warning != NULL);
	EXPECT_EQ(opens_as(&o), 0);
	EXPECT(warning == NULL);
	FILE *f = fopen(file_path(), "w");
	REQUIRE(f != NULL);
	fputs("somebody's letters, which may not be lost", f);
	fclose(f);
	EXPECT_EQ(opens_as(&o), -ERR_BAD_FILE);
	struct stat st;
	EXPECT_EQ(stat(file_path(), &st), 0);
	EXPECT_EQ(st.st_size, 41);
	set_aside(&o, "begins with 'holdfast pages'");
	EXPECT_EQ(opens_as(&o), 0);
	const uint32_t other = 9;
	const int fd = open(file_path(), O_WRONLY);
	EXPECT(fd >= 0 && pwrite(fd, &other, sizeof other, 16) == sizeof other && close(fd) == 0);
	EXPECT_EQ(opens_as(&o), -ERR_BAD_FILE);
	set_aside(&o, "is of version 9, and this program's is 1");
	EXPECT_EQ(symlink("/etc/passwd", file_path()), 0);
	EXPECT(opens_as(&o) != 0 && strstr(reason, "link"));
	set_aside(&o, "no link");
	EXPECT_EQ(mkfifo(file_path(), 0600), 0);
	EXPECT_EQ(opens_as(&o), -ERR_BAD_FILE);
	set_aside(&o, "must be one");
	o.group_count = 5;
	EXPECT_EQ(opens_as(&o), -ERR_OUT_OF_RANGE);
	folder_drop();
}

/* A drop leaves nothing of the page in the file. */
static void wiped(void)
{
	struct tier *t;
	static uint8_t bytes[PAGE], all[1 << 18];
	const struct tier_proof p = proof(3);
	folder_make();
	REQUIRE(opens(&t) == 0);
	memset(bytes, 0xd7, sizeof bytes);
	EXPECT_EQ(tier_put(t, 0, 3, &p, bytes), 0);
	EXPECT_EQ(tier_drop(t, 0, 3), 0);
	tier_close(&t);
	FILE *f = fopen(file_path(), "r");
	REQUIRE(f != NULL);
	const size_t n = fread(all, 1, sizeof all, f);
	fclose(f);
	EXPECT(n > PAGE);
	unsigned left = 0;
	for (size_t i = 16; i < n; i++)
		left += all[i] == 0xd7;
	EXPECT(left < 8);
	folder_drop();
}

/* Killed while it writes, again and again: each slot is a whole page or none. */
static void killed(void)
{
	const unsigned rounds = getenv("HOLDFAST_SANITIZED") ? 10 : 40;
	unsigned whole = 0;
	folder_make();
	for (unsigned i = 0; i < rounds; i++) {
		int ends[2];
		char began;
		REQUIRE(pipe(ends) == 0);
		const pid_t pid = fork();
		if (pid == 0) {
			struct tier *t;
			if (opens(&t) != 0)
				_exit(1);
			for (uint32_t n = 0;; n++) {
				(void)put(t, n % SLOTS);
				if (n == SLOTS && write(ends[1], "x", 1) != 1)
					_exit(2);
			}
		}
		close(ends[1]);
		EXPECT(read(ends[0], &began, 1) == 1);
		close(ends[0]);
		usleep(i * 137 % 5000);
		kill(pid, SIGKILL);
		waitpid(pid, NULL, 0);
		struct tier *t;
		REQUIRE(opens(&t) == 0);
		for (uint32_t n = 0; n < SLOTS; n++) {
			const int err = look(t, n);
			EXPECT(err == 0 || err == -ERR_NOT_FOUND || err == -ERR_INTEGRITY);
			whole += err == 0;
		}
		tier_close(&t);
	}
	EXPECT(whole > 0);
	folder_drop();
}

static void chain(void)
{
	const uint32_t tokens[3] = {5, 6, 7};
	const uint8_t given[3] = {0}, sampled[3] = {0, 0, 1};
	const uint64_t none[2] = {0};
	uint64_t a[2], b[2];
	tier_chain(a, none, tokens, given, 3);
	tier_chain(b, none, tokens, NULL, 3);
	EXPECT(memcmp(a, b, sizeof a) == 0);
	tier_chain(b, none, tokens, sampled, 3);
	EXPECT(memcmp(a, b, sizeof a) != 0);
	tier_chain(b, a, tokens, given, 3);
	EXPECT(memcmp(a, b, sizeof a) != 0);
}

int main(void)
{
	TAP_RUN(keeps, "a page comes back, also after the file was closed");
	TAP_RUN(field_differs, "a field of the proof that differs makes the page absent");
	TAP_RUN(faults, "short writes, EIO, ENOSPC and a turned bit");
	TAP_RUN(full, "what is kept free for the log is not taken");
	TAP_RUN(hostile_bytes, "any byte of the file may be wrong");
	TAP_RUN(other_files, "another store's, other sizes, not ours, a link, a pipe");
	TAP_RUN(wiped, "a drop leaves nothing in the file");
	TAP_RUN(killed, "killed while it writes");
	TAP_RUN(chain, "the chain's key");
	return tap_done();
}
