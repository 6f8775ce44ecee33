/*
 * Power cuts: every write to the log's files is recorded, with what was said to be durable at that moment,
 * while a store works: data.mdb, the keys of sessions, segments, anchors and their key, last words (the disk
 * tier's file has a test of its own, test_tier_power). Then the folder is made as a cut would have left it:
 * after each write, and in the middle of one, with all that was written before; and with no more than what
 * was flushed before, file by file, names by their folder's flush. The store verifies with its anchors and
 * opens, whatever was said to be durable is there and can be read, and what was forgotten cannot.
 * HOLDFAST_POWER=1 cuts at each of them, in three places of a write, and opens each; else some are left out.
 *
 * The writes are seen by functions of this program that stand before those of the C library.
 */
#include "config.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <sys/uio.h>

#include "tests/store_dir.h"

enum { OPS_MAX = 8192, BYTES_MAX = 64 << 20, FILES_MAX = 64, NAME_MAX_ = 120, OWNERS = 7 };
enum kind { WRITE, RENAME, UNLINK, FLUSH, FOLDER };
static struct op {
	enum kind kind;
	bool flushed;       /* a write that is on the disk when it returns */
	char name[NAME_MAX_], to[NAME_MAX_]; /* from the folder on */
	off_t at;
	size_t bytes, from; /* from: its place in `bytes` below */
	uint64_t durable, forgotten; /* said before it */
} op[OPS_MAX];
static uint8_t *bytes;
static unsigned op_count;
static size_t byte_count;
static char root[PATH_MAX];
static bool watched;
static _Atomic uint64_t said, said_forgotten;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

struct file {
	char name[NAME_MAX_];
	uint8_t *bytes;
	size_t size;
};
struct folder {
	struct file file[FILES_MAX];
	unsigned count;
};
static struct folder first;

/* The name from the folder on; "" is the folder itself. */
static bool name_of(const char *path, char name[NAME_MAX_])
{
	const size_t n = strlen(root);
	if (!watched || strncmp(path, root, n) != 0 || (path[n] != '/' && path[n] != 0))
		return false;
	snprintf(name, NAME_MAX_, "%s", path[n] ? path + n + 1 : "");
	return strcmp(name, "lock.mdb") != 0;
}

static bool name_of_fd(int fd, char name[NAME_MAX_])
{
	char link[64], path[PATH_MAX];
	snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
	const ssize_t n = watched ? readlink(link, path, sizeof path - 1) : -1;
	if (n < 0)
		return false;
	path[n] = 0;
	return name_of(path, name);
}

static void op_add(const struct op *o, const void *data)
{
	pthread_mutex_lock(&lock);
	CHECK(op_count < OPS_MAX && byte_count + o->bytes <= BYTES_MAX);
	op[op_count] = *o;
	op[op_count].from = byte_count;
	op[op_count].durable = said;
	op[op_count++].forgotten = said_forgotten;
	if (o->bytes)
		memcpy(bytes + byte_count, data, o->bytes);
	byte_count += o->bytes;
	pthread_mutex_unlock(&lock);
}

static void write_add(int fd, const void *data, size_t count, off_t at)
{
	struct op o = {.kind = WRITE, .at = at, .bytes = count};
	struct stat st;
	if (!name_of_fd(fd, o.name))
		return;
	const int flags = fcntl(fd, F_GETFL);
	o.flushed = flags & O_DSYNC;
	if (flags & O_APPEND && fstat(fd, &st) == 0)
		o.at = st.st_size;
	op_add(&o, data);
}

ssize_t pwrite(int fd, const void *data, size_t count, off_t at)
{
	write_add(fd, data, count, at);
	return syscall(SYS_pwrite64, fd, data, count, at);
}

ssize_t pwrite64(int fd, const void *data, size_t count, off_t at);
ssize_t pwrite64(int fd, const void *data, size_t count, off_t at)
{
	return pwrite(fd, data, count, at);
}

ssize_t write(int fd, const void *data, size_t count)
{
	if (watched)
		write_add(fd, data, count, lseek(fd, 0, SEEK_CUR));
	return syscall(SYS_write, fd, data, count);
}

ssize_t writev(int fd, const struct iovec *list, int n)
{
	off_t at = lseek(fd, 0, SEEK_CUR);
	for (int i = 0; i < n && at >= 0; i++) {
		write_add(fd, list[i].iov_base, list[i].iov_len, at);
		at += (off_t)list[i].iov_len;
	}
	return syscall(SYS_writev, fd, list, n);
}

static int flush(long call, int fd)
{
	struct op o = {.kind = FLUSH};
	const int code = (int)syscall(call, fd);
	if (code == 0 && name_of_fd(fd, o.name))
		op_add(&o, NULL);
	return code;
}

int fsync(int fd)
{
	return flush(SYS_fsync, fd);
}

int fdatasync(int fd)
{
	return flush(SYS_fdatasync, fd);
}

int rename(const char *from, const char *to)
{
	struct op o = {.kind = RENAME};
	if (name_of(from, o.name) && name_of(to, o.to))
		op_add(&o, NULL);
	return (int)syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0);
}

int unlink(const char *path)
{
	struct op o = {.kind = UNLINK};
	if (name_of(path, o.name))
		op_add(&o, NULL);
	return (int)syscall(SYS_unlinkat, AT_FDCWD, path, 0);
}

int mkdir(const char *path, mode_t mode)
{
	struct op o = {.kind = FOLDER};
	const int code = (int)syscall(SYS_mkdirat, AT_FDCWD, path, mode);
	if (code == 0 && name_of(path, o.name))
		op_add(&o, NULL);
	return code;
}

/* Folders in memory. */

static struct file *file_find(struct folder *f, const char *name, bool make)
{
	for (unsigned i = 0; i < f->count; i++)
		if (strcmp(f->file[i].name, name) == 0)
			return &f->file[i];
	if (!make)
		return NULL;
	CHECK(f->count < FILES_MAX);
	struct file *file = &f->file[f->count++];
	*file = (struct file){.size = 0};
	snprintf(file->name, sizeof file->name, "%s", name);
	return file;
}

static void file_drop(struct folder *f, struct file *file)
{
	free(file->bytes);
	*file = f->file[--f->count];
}

static void file_put(struct file *file, const void *data, size_t count, size_t at)
{
	if (at + count > file->size) {
		file->bytes = realloc(file->bytes, at + count);
		CHECK(file->bytes != NULL);
		memset(file->bytes + file->size, 0, at + count - file->size);
		file->size = at + count;
	}
	memcpy(file->bytes + at, data, count);
}

static void op_do(struct folder *f, const struct op *o, size_t part)
{
	struct file *file = file_find(f, o->name, o->kind == WRITE);
	if (o->kind == WRITE) {
		file_put(file, bytes + o->from, part, (size_t)o->at);
	} else if (o->kind == UNLINK && file) {
		file_drop(f, file);
	} else if (o->kind == RENAME && file) {
		struct file *old = file_find(f, o->to, false);
		if (old)
			file_drop(f, old);
		snprintf(file_find(f, o->name, false)->name, NAME_MAX_, "%s", o->to);
	}
}

static void folder_read(struct folder *f, const char *prefix, const char *dir)
{
	static uint8_t all[8 << 20];
	struct stat st;
	DIR *d = opendir(dir);
	for (struct dirent *e; d != NULL && (e = readdir(d)) != NULL;) {
		char path[PATH_MAX], name[NAME_MAX_];
		snprintf(path, sizeof path, "%.2000s/%s", dir, e->d_name);
		if (stat(path, &st) != 0 || !S_ISREG(st.st_mode) || strcmp(e->d_name, "lock.mdb") == 0)
			continue;
		snprintf(name, sizeof name, "%s%.80s", prefix, e->d_name);
		const int fd = open(path, O_RDONLY);
		const ssize_t n = read(fd, all, sizeof all);
		CHECK(n == st.st_size);
		close(fd);
		file_put(file_find(f, name, true), all, (size_t)n, 0);
	}
	if (d != NULL)
		closedir(d);
}

static void folder_free(struct folder *f)
{
	while (f->count)
		file_drop(f, &f->file[0]);
}

static const struct folder *folder_copy(struct folder *to, const struct folder *from)
{
	for (unsigned i = 0; i < from->count; i++)
		file_put(file_find(to, from->file[i].name, true), from->file[i].bytes, from->file[i].size, 0);
	return to;
}

static bool folder_write(const struct folder *f)
{
	bool done = true;
	dir_drop();
	done &= mkdir(store_dir, 0700) == 0 && mkdir(dir_path("archive"), 0700) == 0 &&
		mkdir(dir_path("second"), 0700) == 0;
	for (unsigned i = 0; i < f->count && done; i++) {
		const int fd = open(dir_path(f->file[i].name), O_WRONLY | O_CREAT | O_EXCL, 0600);
		done = fd >= 0 && write(fd, f->file[i].bytes, f->file[i].size) == (ssize_t)f->file[i].size;
		close(fd);
	}
	return done;
}

static void parent_of(const char *name, char parent[NAME_MAX_])
{
	snprintf(parent, NAME_MAX_, "%s", name);
	char *slash = strrchr(parent, '/');
	*(slash ? slash : parent) = 0;
}

static bool flushed(unsigned from, unsigned until, const char *name)
{
	for (unsigned i = from; i < until; i++)
		if (op[i].kind == FLUSH && strcmp(op[i].name, name) == 0)
			return true;
	return false;
}

/* Its name, or that of the folder it is in, if that was made since. */
static bool name_lost(unsigned i, unsigned count)
{
	char parent[NAME_MAX_];
	parent_of(op[i].name, parent);
	if (!flushed(i, count, parent))
		return true;
	for (unsigned k = 0; k < i; k++)
		if (op[k].kind == FOLDER && strcmp(op[k].name, parent) == 0)
			return !flushed(k, count, "");
	return false;
}

/* Before the cut after `count` of them nothing had to be kept of it. */
static bool op_lost(unsigned i, unsigned count)
{
	const struct op *o = &op[i];
	if (o->kind == FLUSH)
		return true;
	if (o->kind != WRITE)
		return name_lost(i, count);
	if (!o->flushed && !flushed(i, count, o->name))
		return true;
	/* A file that was made since has a name when its folder was flushed. */
	return !file_find(&first, o->name, false) && name_lost(i, count);
}

/* What a store does. */

static struct store_options options(void)
{
	struct store_options o = dir_options();
	static char anchors[300];
	snprintf(anchors, sizeof anchors, "%s/second", store_dir);
	o.anchor_dir = anchors;
	o.anchor_ms = 100000;
	o.anchor_entries = 4;
	o.history_entries = 16;
	o.segment_entries = 8;
	return o;
}

static void owner_of(uint64_t step, uint8_t owner[16])
{
	memset(owner, 0, 16);
	owner[0] = owner[1] = owner[2] = (uint8_t)(1 + (step - 1) / OWNERS);
	owner[3] = 0x5a;
}

/* The value of a step is its owner's; the second owner is forgotten halfway. */
static void work(uint64_t steps)
{
	struct store *s;
	const struct store_options o = options();
	REQUIRE(store_open(&o, &s, store_reason, &store_warning) == 0);
	for (uint64_t step = 1; step <= steps; step++) {
		uint8_t value[5000], owner[16];
		struct store_key key = {.bytes = {(uint8_t)step}, .length = 1};
		memset(value, (int)step, sizeof value);
		owner_of(step, owner);
		EXPECT_EQ(store_keep(s, TABLE_TURN, &key, false, owner, value, 100 * step), 0);
		if (step == steps / 2) {
			owner_of(OWNERS + 1, owner);
			store_forget(s, owner);
		}
		EXPECT_EQ(push_step(s, step), 0);
		/* As one that ends would; each of its writes is on the disk when it returns. */
		const struct store_last_word word = {.reason = REASON_STUCK, .found = step};
		if (step % 10 == 0)
			store_beacon(s, &word);
		if (step % 3 == 0 && durable_wait(s, step)) {
			said = step;
			said_forgotten = step >= steps / 2;
		}
	}
	durable_wait(s, steps);
	for (unsigned i = 0; i < 2000 && store_archived(s) + 24 < store_seq(s); i++)
		wait_ms(1);
	EXPECT_EQ(store_close(&s), 0);
}

/* The last step that is there. */
static uint64_t step_last(void)
{
	struct store_reader *r;
	static struct store_read_entry e;
	uint64_t step = 0;
	if (!EXPECT(store_reader_open(store_dir, &r, store_reason) == 0))
		return 0;
	for (uint64_t seq = store_reader_last(r); seq >= store_reader_first(r) && step == 0; seq--)
		if (store_reader_entry(r, seq, &e) == 0 && e.kind == STORE_STEP_END && e.count > 0 && !e.partial &&
		    e.records[0].kind != STORE_ARCHIVE)
			step = e.step;
	store_reader_close(&r);
	return step;
}

static bool verified(void)
{
	struct store_verified v;
	const struct store_options o = options();
	struct store_verify what = {.dir = store_dir};
	DIR *d = opendir(o.anchor_dir);
	for (struct dirent *e; d != NULL && (e = readdir(d)) != NULL;)
		if (strstr(e->d_name, "anchors"))
			what.anchor_dir = o.anchor_dir;
	closedir(d);
	const int code = store_verify_all(&what, &v, store_reason);
	if (code != 0 || v.first != 1)
		printf("# verify: from entry %llu on: %s\n", (unsigned long long)v.first, store_reason);
	/* A segment that is not there may have been taken elsewhere; here none was. */
	return code == 0 && v.first == 1;
}

/* It starts, has what was promised, and no more of who was forgotten. */
static bool opened(uint64_t promised, bool forgotten)
{
	struct store *s;
	const struct store_options o = options();
	uint8_t owner[16], gone[16], value[8192];
	bool right = store_open(&o, &s, store_reason, &store_warning) == 0;
	if (!right) {
		printf("# open: %s\n", store_reason);
		return false;
	}
	owner_of(OWNERS + 1, gone);
	for (uint64_t step = 1; step <= promised; step++) {
		struct store_key key = {.bytes = {(uint8_t)step}, .length = 1};
		size_t n = sizeof value;
		owner_of(step, owner);
		const int code = store_kept(s, TABLE_TURN, &key, value, &n);
		if (memcmp(owner, gone, sizeof gone) != 0)
			right &= code == 0 && n == 100 * step && value[n - 1] == (uint8_t)step;
		else if (forgotten)
			right &= code == -ERR_GONE;
	}
	EXPECT_EQ(push_step(s, 1000), 0);
	EXPECT_EQ(store_close(&s), 0);
	return right && verified();
}

static bool cut_judge(const struct folder *f, unsigned at, bool open, const char *what)
{
	const uint64_t promised = at < op_count ? op[at].durable : said;
	const bool forgotten = at < op_count ? op[at].forgotten : said_forgotten;
	const bool right = folder_write(f) && verified() && step_last() >= promised &&
			   (!open || opened(promised, forgotten));
	if (!right)
		printf("# %s, cut %u: %s of %s\n", what, at, at < op_count && op[at].kind == WRITE ? "a write" : "",
		       at < op_count ? op[at].name : "");
	return right;
}

/* Only so many bytes of the write are there. */
static bool cut_torn(const struct folder *all, unsigned at, size_t part, bool open)
{
	struct folder torn = {.count = 0};
	folder_copy(&torn, all);
	op_do(&torn, &op[at], part);
	const bool right = cut_judge(&torn, at, open, "in a write");
	folder_free(&torn);
	return right;
}

static unsigned op_of(enum kind kind, const char *part)
{
	unsigned n = 0;
	for (unsigned i = 0; i < op_count; i++)
		n += op[i].kind == kind && strstr(op[i].name, part) != NULL;
	return n;
}

/* Without its keys a log is refused: their name is on the disk before the first entry counts them. */
static void keys_named(void)
{
	struct store *s;
	unsigned made = 0, entry;
	REQUIRE(realpath(store_dir, root) != NULL);
	bytes = malloc(BYTES_MAX);
	REQUIRE(bytes != NULL);
	watched = true;
	EXPECT_EQ(dir_open(&s), 0);
	EXPECT_EQ(store_close(&s), 0);
	watched = false;
	while (made < op_count && (op[made].kind != WRITE || strcmp(op[made].name, "keys") != 0))
		made++;
	for (entry = made; entry < op_count && strcmp(op[entry].name, "data.mdb") != 0;)
		entry++;
	EXPECT(entry < op_count);
	EXPECT(flushed(made, entry, ""));
	free(bytes);
	op_count = 0;
	byte_count = 0;
	dir_drop();
	REQUIRE(mkdir(store_dir, 0700) == 0);
}

static void power_cuts(void)
{
	const bool slow = getenv("HOLDFAST_SANITIZED") != NULL, whole = getenv("HOLDFAST_POWER") != NULL;
	const unsigned torn_each = slow && !whole ? 8 : 1, all_each = slow && !whole ? 8 : 1;
	const unsigned open_each = whole ? 1 : 8, flushed_each = slow && !whole ? 5 : 1;
	const uint64_t steps = slow ? 30 : 42;
	struct store *s;
	REQUIRE(dir_open(&s) == 0);
	REQUIRE(store_close(&s) == 0);
	REQUIRE(mkdir(dir_path("second"), 0700) == 0);
	REQUIRE(realpath(store_dir, root) != NULL);
	folder_read(&first, "", store_dir);
	bytes = malloc(BYTES_MAX);
	REQUIRE(bytes != NULL);
	watched = true;
	work(steps);
	watched = false;
	/* Else the cuts would ask for little. */
	EXPECT_EQ(said, steps);
	EXPECT(said_forgotten);
	printf("# %u operations, %zu bytes, %llu steps; writes: data %u, keys %u, segments %u, anchors %u, "
	       "beacon %u\n",
	       op_count, byte_count, (unsigned long long)steps, op_of(WRITE, "data.mdb"), op_of(WRITE, "keys"),
	       op_of(WRITE, "archive/"), op_of(WRITE, "second/"), op_of(WRITE, "beacon"));
	EXPECT(op_of(WRITE, "beacon") > 2);
	EXPECT(op_of(WRITE, "keys") > 5 && op_of(RENAME, "archive/") > 1 && op_of(WRITE, "second/") > 5);
	unsigned cuts = 0;
	struct folder all = {.count = 0};
	folder_copy(&all, &first);
	for (unsigned i = 0; i <= op_count; i++) {
		/* A sector is there or not. Of more any part may be. */
		const bool torn = i < op_count && op[i].kind == WRITE && op[i].bytes >= 512 && i % torn_each == 0;
		for (unsigned part = whole ? 1 : 2; torn && part <= (whole ? 3 : 2); part++, cuts++)
			if (!EXPECT(cut_torn(&all, i, op[i].bytes * part / 4 + 1, i % open_each == 0)))
				return;
		if (i == op_count || op[i].kind != FLUSH) {
			if (i % all_each == 0 || i == op_count) {
				cuts++;
				if (!EXPECT(cut_judge(&all, i, whole || i % 4 == 0, "all before it")))
					return;
			}
		}
		if (i < op_count)
			op_do(&all, &op[i], op[i].bytes);
	}
	folder_free(&all);
	for (unsigned i = 1; i <= op_count; i += flushed_each) {
		/* After a flush more is there than before. */
		if (i < op_count && op[i - 1].kind != FLUSH && !op[i - 1].flushed)
			continue;
		struct folder kept = {.count = 0};
		folder_copy(&kept, &first);
		for (unsigned k = 0; k < i; k++)
			if (!op_lost(k, i))
				op_do(&kept, &op[k], op[k].bytes);
		const bool right = cut_judge(&kept, i, true, "what was flushed");
		folder_free(&kept);
		cuts++;
		if (!EXPECT(right))
			return;
	}
	printf("# %u cuts, each verified\n", cuts);
	folder_free(&first);
	free(bytes);
}

int main(void)
{
	setvbuf(stdout, NULL, _IOLBF, 0); /* nothing is left in it for a child to print again */
	dir_make(true);
	TAP_RUN(keys_named, "the name of a new log's keys is there before its first entry");
	TAP_RUN(power_cuts, "a power cut after or within any write: a whole chain, and all that was durable");
	dir_empty("second");
	dir_drop();
	return tap_done();
}
