/*
 * Power cuts: every write to data.mdb is recorded, with what was said to be durable at that moment, while
 * a store works. Then each prefix of the writes, and each that is cut in the middle of a write, is put on
 * disk as it would have been found: the store opens, its chain is whole, and whatever was said to be
 * durable is there.
 *
 * The writes are seen by functions of this program that stand before those of the C library.
 */
#include "config.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <sys/uio.h>

#include "tests/store_dir.h"

enum { WRITES_MAX = 4096, BYTES_MAX = 64 << 20 };
static struct record {
	off_t at;
	size_t bytes, from; /* from: its place in `bytes` below */
	uint64_t durable;   /* said before it */
} record[WRITES_MAX];
static uint8_t *bytes;
static unsigned record_count;
static size_t byte_count;
static ino_t watched;
static _Atomic uint64_t said;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void record_add(int fd, const void *data, size_t count, off_t at)
{
	struct stat st;
	if (watched == 0 || fstat(fd, &st) != 0 || st.st_ino != watched)
		return;
	pthread_mutex_lock(&lock);
	if (record_count < WRITES_MAX && byte_count + count <= BYTES_MAX) {
		record[record_count++] = (struct record){at, count, byte_count, said};
		memcpy(bytes + byte_count, data, count);
		byte_count += count;
	}
	pthread_mutex_unlock(&lock);
}

ssize_t pwrite(int fd, const void *data, size_t count, off_t at)
{
	record_add(fd, data, count, at);
	return syscall(SYS_pwrite64, fd, data, count, at);
}

ssize_t pwrite64(int fd, const void *data, size_t count, off_t at);
ssize_t pwrite64(int fd, const void *data, size_t count, off_t at)
{
	return pwrite(fd, data, count, at);
}

ssize_t writev(int fd, const struct iovec *list, int n)
{
	off_t at = lseek(fd, 0, SEEK_CUR);
	for (int i = 0; i < n && at >= 0; i++) {
		record_add(fd, list[i].iov_base, list[i].iov_len, at);
		at += (off_t)list[i].iov_len;
	}
	return syscall(SYS_writev, fd, list, n);
}

/* The file as a cut after `count` writes leaves it; of the next one the first `part` bytes are there too. */
static bool put(const void *first, size_t first_bytes, unsigned count, size_t part)
{
	const int fd = open(dir_path("data.mdb"), O_WRONLY | O_CREAT | O_TRUNC, 0600);
	bool done = fd >= 0 && write(fd, first, first_bytes) == (ssize_t)first_bytes;
	for (unsigned i = 0; i < count + (part > 0) && done; i++) {
		const size_t n = i < count ? record[i].bytes : part;
		done = syscall(SYS_pwrite64, fd, bytes + record[i].from, n, record[i].at) == (long)n;
	}
	if (fd >= 0)
		close(fd);
	return done;
}

/* The last step that is there, in the last boot that made any. */
static uint64_t step_last(void)
{
	struct store_reader *r;
	static struct store_read_entry e;
	uint64_t step = 0;
	if (!EXPECT(store_reader_open(store_dir, &r, store_reason) == 0))
		return 0;
	for (uint64_t seq = 1; seq <= store_reader_last(r); seq++)
		if (store_reader_entry(r, seq, &e) == 0 && e.kind == STORE_STEP_END && e.count > 0 && !e.partial)
			step = e.step > step ? e.step : step;
	store_reader_close(&r);
	return step;
}

static void power_cuts(void)
{
	struct store *s;
	struct stat st;
	REQUIRE(dir_open(&s) == 0);
	REQUIRE(store_close(&s) == 0);
	REQUIRE(stat(dir_path("data.mdb"), &st) == 0);
	const size_t first_bytes = (size_t)st.st_size;
	void *first = malloc(first_bytes);
	int fd = open(dir_path("data.mdb"), O_RDONLY);
	REQUIRE(first != NULL && fd >= 0 && read(fd, first, first_bytes) == (ssize_t)first_bytes);
	close(fd);
	bytes = malloc(BYTES_MAX);
	REQUIRE(bytes != NULL);
	watched = st.st_ino;
	REQUIRE(dir_open(&s) == 0);
	const uint64_t steps = getenv("HOLDFAST_SANITIZED") ? 12 : 40;
	for (uint64_t step = 1; step <= steps; step++) {
		static const uint8_t value[5000];
		struct store_key key = {.bytes = {(uint8_t)(step % 7)}, .length = 1};
		EXPECT_EQ(store_keep(s, TABLE_TURN, &key, false, NULL, value, 100 * step), 0);
		EXPECT_EQ(push_step(s, step), 0);
		if (step % 3 == 0 && durable_wait(s, step))
			said = step;
	}
	EXPECT_EQ(store_close(&s), 0);
	watched = 0;
	printf("# %u writes, %zu bytes, %llu steps\n", record_count, byte_count, (unsigned long long)steps);
	EXPECT(record_count > 2 * steps / 3 && record_count < WRITES_MAX);
	unsigned cuts = 0;
	uint64_t gained = 0;
	for (unsigned i = 0; i <= record_count; i++) {
		/* The meta page is one sector: it is there or not. Of others any part may be. */
		const bool whole = i == record_count || record[i].bytes < 512;
		const size_t end = whole ? 1 : record[i].bytes, stride = whole ? 1 : 1 + record[i].bytes / 2;
		for (size_t part = 0; part < end; part += stride) {
			struct store_verified v;
			REQUIRE(put(first, first_bytes, i, part));
			if (!EXPECT(dir_sound(&v)))
				return;
			const uint64_t found = step_last(), promised = i == record_count ? steps : record[i].durable;
			if (!EXPECT(found >= promised))
				return;
			gained = found > gained ? found : gained;
			cuts++;
		}
	}
	EXPECT_EQ(gained, steps);
	EXPECT_EQ(dir_try(), 0);
	printf("# %u cuts, each verified\n", cuts);
	free(first);
	free(bytes);
}

int main(void)
{
	setvbuf(stdout, NULL, _IOLBF, 0); /* nothing is left in it for a child to print again */
	dir_run(power_cuts, "a power cut after or within any write: a whole chain, and all that was durable");
	return tap_done();
}
