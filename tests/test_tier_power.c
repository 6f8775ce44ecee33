/*
 * Goal: after a power cut the disk tier's file gives a start, and no page but one that was put whole. Method:
 * each write to the file, its size and its flushes are recorded while pages are put, put over and dropped.
 * Then the file is made as a cut would have left it: all before a write, and parts of that; and, since what
 * was not flushed reaches the disk in any order, any sectors of it by a seeded chance. The tier opens, and of
 * each slot each page that was ever there is asked for: it is absent, or right byte for byte.
 */
#include "config.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "runtime/tier.h"
#include "sched/check.h"
#include "tests/tap.h"

enum { PAGE = 5000, SLOTS = 4, PUTS = 14, OPS_MAX = 256, FILE_MAX = 128 << 10, SECTOR = 512 };
enum kind { WRITE, SIZE, FLUSH };

static struct op {
	enum kind kind;
	size_t at, count;
	uint8_t *bytes;
} op[OPS_MAX];
static unsigned op_count;
static bool watched;
static char dir[64], path[96], reason[TIER_REASON_MAX];
static const char *warning, *why;

static void op_add(enum kind kind, const void *bytes, size_t count, off_t at)
{
	if (!watched)
		return;
	CHECK(op_count < OPS_MAX && (size_t)at + count <= FILE_MAX);
	op[op_count] = (struct op){.kind = kind, .at = (size_t)at, .count = count};
	if (kind == WRITE) {
		op[op_count].bytes = calloc(1, count);
		CHECK(op[op_count].bytes != NULL);
		if (bytes)
			memcpy(op[op_count].bytes, bytes, count);
	}
	op_count++;
}

ssize_t pwrite(int fd, const void *data, size_t count, off_t at)
{
	op_add(WRITE, data, count, at);
	return syscall(SYS_pwrite64, fd, data, count, at);
}

ssize_t pwrite64(int fd, const void *data, size_t count, off_t at);
ssize_t pwrite64(int fd, const void *data, size_t count, off_t at)
{
	return pwrite(fd, data, count, at);
}

int ftruncate(int fd, off_t size)
{
	op_add(SIZE, NULL, 0, size);
	return (int)syscall(SYS_ftruncate, fd, size);
}

int ftruncate64(int fd, off_t size);
int ftruncate64(int fd, off_t size)
{
	return ftruncate(fd, size);
}

/* A hole: zeros. */
int fallocate(int fd, int mode, off_t at, off_t count)
{
	op_add(WRITE, NULL, (size_t)count, at);
	return (int)syscall(SYS_fallocate, fd, mode, at, count);
}

int fallocate64(int fd, int mode, off_t at, off_t count);
int fallocate64(int fd, int mode, off_t at, off_t count)
{
	return fallocate(fd, mode, at, count);
}

int fdatasync(int fd)
{
	op_add(FLUSH, NULL, 0, 0);
	return (int)syscall(SYS_fdatasync, fd);
}

int fsync(int fd)
{
	op_add(FLUSH, NULL, 0, 0);
	return (int)syscall(SYS_fsync, fd);
}

static int opens(struct tier **t)
{
	const struct tier_options o = {.dir = dir, .store = {1, 2, 3}, .group_count = 1,
				       .group = {{PAGE, SLOTS}}};
	return tier_open(&o, t, reason, &warning);
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

static void work(void)
{
	struct tier *t;
	uint8_t bytes[PAGE];
	watched = true;
	REQUIRE(opens(&t) == 0);
	for (uint32_t n = 0; n < PUTS; n++) {
		const struct tier_proof p = proof(n);
		fill(bytes, n);
		EXPECT_EQ(tier_put(t, 0, n % SLOTS, &p, bytes), 0);
		if (n % 5 == 4)
			EXPECT_EQ(tier_drop(t, 0, n % SLOTS), 0);
	}
	tier_close(&t);
	watched = false;
}

/* The file as it is on the disk. */
static uint8_t disk[FILE_MAX];
static size_t disk_size;

static void op_do(const struct op *o, size_t part)
{
	if (o->kind == SIZE) {
		if (o->at < disk_size)
			memset(disk + o->at, 0, disk_size - o->at);
		disk_size = o->at;
	} else if (o->kind == WRITE) {
		memcpy(disk + o->at, o->bytes, part);
		disk_size = o->at + part > disk_size ? o->at + part : disk_size;
	}
}

/* How many pages are there; none may be anything else than what was put. */
static unsigned judge(unsigned at, const char *what)
{
	struct tier *t;
	unsigned found = 0;
	const int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
	CHECK(fd >= 0);
	bool made = syscall(SYS_pwrite64, fd, disk, disk_size, 0L) == (long)disk_size;
	close(fd);
	made = made && opens(&t) == 0;
	if (!EXPECT(made)) {
		printf("# %s, cut %u of %zu bytes: %s\n", what, at, disk_size, reason);
		return 0;
	}
	for (uint32_t n = 0; n < PUTS; n++) {
		uint8_t got[PAGE], put[PAGE];
		const struct tier_proof p = proof(n);
		fill(put, n);
		const int code = tier_get(t, 0, n % SLOTS, &p, got, &why);
		const bool right = code == 0 ? memcmp(got, put, PAGE) == 0
					     : code == -ERR_NOT_FOUND || code == -ERR_INTEGRITY;
		if (!EXPECT(right))
			printf("# %s, cut %u: page %u\n", what, at, n);
		found += code == 0;
	}
	/* It is one to go on with. */
	const struct tier_proof p = proof(PUTS);
	uint8_t bytes[PAGE];
	fill(bytes, PUTS);
	EXPECT_EQ(tier_put(t, 0, 0, &p, bytes), 0);
	EXPECT_EQ(tier_get(t, 0, 0, &p, bytes, &why), 0);
	tier_close(&t);
	return found;
}

static void in_order(void)
{
	unsigned found = 0, cuts = 0;
	memset(disk, 0, sizeof disk);
	disk_size = 0;
	for (unsigned i = 0; i <= op_count; i++) {
		found += judge(i, "all before it");
		cuts++;
		if (i == op_count)
			break;
		static uint8_t before[FILE_MAX];
		const size_t size = disk_size;
		memcpy(before, disk, sizeof disk);
		for (unsigned part = 1; op[i].kind == WRITE && part < 4; part++, cuts++) {
			op_do(&op[i], op[i].count * part / 4);
			found += judge(i, "in a write");
			memcpy(disk, before, sizeof disk);
			disk_size = size;
		}
		op_do(&op[i], op[i].count);
	}
	printf("# %u operations, %u cuts, %u pages came back\n", op_count, cuts, found);
	EXPECT(found > 40);
}

static uint64_t random_state = 5;

static uint32_t draw(uint32_t below)
{
	random_state = random_state * 6364136223846793005u + 1442695040888963407u;
	return (uint32_t)(random_state >> 33) % below;
}

static unsigned flushed_before(unsigned at)
{
	while (at > 0 && op[at - 1].kind != FLUSH)
		at--;
	return at;
}

/* Up to the last flush all of it; of the rest each sector or not, and each size or not. */
static void in_any_order(void)
{
	const unsigned rounds = getenv("HOLDFAST_SANITIZED") ? 150 : 600;
	unsigned found = 0;
	for (unsigned r = 0; r < rounds; r++) {
		const unsigned until = draw(op_count + 1), whole = flushed_before(until);
		const uint32_t there = (const uint32_t[]){32, 56, 63}[draw(3)]; /* of 64 */
		memset(disk, 0, sizeof disk);
		disk_size = 0;
		for (unsigned i = 0; i < until; i++) {
			if (i < whole || (op[i].kind == SIZE && draw(64) < there)) {
				op_do(&op[i], op[i].count);
				continue;
			}
			for (size_t at = 0; op[i].kind == WRITE && at < op[i].count;) {
				const size_t end = (op[i].at + at) / SECTOR * SECTOR + SECTOR - op[i].at;
				const size_t n = (end < op[i].count ? end : op[i].count) - at;
				const struct op part = {.kind = WRITE, .at = op[i].at + at, .count = n,
							.bytes = op[i].bytes + at};
				if (draw(64) < there)
					op_do(&part, n);
				at += n;
			}
		}
		found += judge(until, "any sectors");
	}
	printf("# %u cuts, %u pages came back\n", rounds, found);
	EXPECT(found > rounds / 10);
}

/* A file that has a size and nothing else is what a cut leaves of one that was just begun. */
static void only_zeros(void)
{
	memset(disk, 0, sizeof disk);
	static const size_t sizes[] = {1, 100, 4096, 65536};
	for (unsigned i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
		disk_size = sizes[i];
		EXPECT_EQ(judge(i, "zeros"), 0);
	}
}

int main(void)
{
	snprintf(dir, sizeof dir, "/tmp/tier power.XXXXXX");
	CHECK(mkdtemp(dir) != NULL);
	snprintf(path, sizeof path, "%s/pages", dir);
	work();
	TAP_RUN(in_order, "all before a write, and parts of it");
	TAP_RUN(in_any_order, "what was not flushed, in any order and any part");
	TAP_RUN(only_zeros, "a file of zeros");
	for (unsigned i = 0; i < op_count; i++)
		free(op[i].bytes);
	unlink(path);
	rmdir(dir);
	return tap_done();
}
