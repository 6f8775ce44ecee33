/*
 * load_faults MODEL: the world fails the loader, once at each place where it can. Each allocation comes
 * back without memory, each read with an error, with the file's end or interrupted; descriptors are used
 * up. What is opened must then be refused with the right code and one line of reason, leave nothing behind
 * (the address sanitizer looks), and open when nothing fails. So must the tokenizer, its index and a form
 * of a schema, a pattern and choices. One line as JSON: how many places failed, and how many of them were
 * answered wrongly.
 */
#include "config.h"

#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/form.h"
#include "runtime/tokenizer.h"
#include "sched/check.h"

/* What fails, and at which chance; 0 at none. */
static enum what { MEMORY, READ_ERROR, READ_END, READ_INTERRUPTED, STAT, KINDS } what;
static const char *const what_name[KINDS] = {"memory", "error", "end", "interrupted", "stat"};
static unsigned long fails_at, chances;

static bool fails(enum what kind)
{
	return kind == what && fails_at != 0 && ++chances == fails_at;
}

/* Linked in the place of the library's own (--wrap). */
void *__real_malloc(size_t bytes);
void *__real_calloc(size_t count, size_t bytes);
void *__real_realloc(void *at, size_t bytes);
char *__real_strdup(const char *text);
ssize_t __real_read(int fd, void *to, size_t bytes);
ssize_t __real_pread(int fd, void *to, size_t bytes, off_t at);
int __real_fstat(int fd, struct stat *st);
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);
void *__wrap_realloc(void *at, size_t bytes);
char *__wrap_strdup(const char *text);
ssize_t __wrap_read(int fd, void *to, size_t bytes);
ssize_t __wrap_pread(int fd, void *to, size_t bytes, off_t at);
int __wrap_fstat(int fd, struct stat *st);

void *__wrap_malloc(size_t bytes) { return fails(MEMORY) ? NULL : __real_malloc(bytes); }
void *__wrap_calloc(size_t count, size_t bytes) { return fails(MEMORY) ? NULL : __real_calloc(count, bytes); }
char *__wrap_strdup(const char *text) { return fails(MEMORY) ? NULL : __real_strdup(text); }

/* What shrinks is of no weight: it stays as it is. */
void *__wrap_realloc(void *at, size_t bytes)
{
	return (at == NULL || malloc_usable_size(at) < bytes) && fails(MEMORY) ? NULL : __real_realloc(at, bytes);
}

/* Whether a read fails; then with which result. */
static bool read_fails(ssize_t *result)
{
	*result = fails(READ_END) ? 0 : -1;
	if (*result == 0)
		return true;
	errno = fails(READ_ERROR) ? EIO : fails(READ_INTERRUPTED) ? EINTR : 0;
	return errno != 0;
}

ssize_t __wrap_read(int fd, void *to, size_t bytes)
{
	ssize_t result;
	return read_fails(&result) ? result : __real_read(fd, to, bytes);
}

ssize_t __wrap_pread(int fd, void *to, size_t bytes, off_t at)
{
	ssize_t result;
	return read_fails(&result) ? result : __real_pread(fd, to, bytes, at);
}

int __wrap_fstat(int fd, struct stat *st)
{
	errno = EIO;
	return fails(STAT) ? -1 : __real_fstat(fd, st);
}

/* ---- What is opened. */

static const char *path;
static char reason[MODEL_REASON_MAX];
static struct model *model;
static struct tokenizer *tokenizer;
static struct form_index *index_;

static int open_model(void)
{
	struct model *m;
	const int code = model_open(path, &m, reason);
	CHECK((code == 0) == (m != NULL));
	model_close(&m);
	return code;
}

static int open_tokenizer(void)
{
	struct tokenizer *t;
	const int code = tokenizer_open(model, &t, reason);
	CHECK((code == 0) == (t != NULL));
	tokenizer_close(&t);
	return code;
}

static int open_index(void)
{
	struct form_index *x;
	const int code = form_index_open(tokenizer, &x);
	CHECK((code == 0) == (x != NULL));
	snprintf(reason, sizeof reason, "of the index");
	form_index_close(&x);
	return code;
}

static int closed(int code, struct form *form, const char *why)
{
	CHECK((code == 0) == (form != NULL));
	snprintf(reason, sizeof reason, "%s", why ? why : "");
	form_close(&form);
	return code;
}

static int open_schema(void)
{
	static const char schema[] =
		"{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\",\"minimum\":3},"
		"\"b\":{\"enum\":[\"x\",1]},"
		"\"c\":{\"type\":\"array\",\"items\":{\"$ref\":\"#/$defs/d\"}}},\"required\":[\"a\"],"
		"\"$defs\":{\"d\":{\"anyOf\":[{\"type\":\"string\",\"pattern\":\"^[a-f]+$\"},{\"type\":\"null\"}]}}}";
	struct form *form;
	const char *why = NULL;
	const int code = form_open_schema(index_, (struct text){schema, sizeof schema - 1}, 100, &form, &why);
	return closed(code, form, why);
}

static int open_regex(void)
{
	struct form *form;
	const char *why = NULL;
	const int code = form_open_regex(index_, (struct text){"(ab|c)*[x-z]{2,5}", 17}, &form, &why);
	return closed(code, form, why);
}

static int open_choices(void)
{
	struct form *form;
	const char *why = NULL;
	const struct text choice[] = {{"yes", 3}, {"no", 2}, {"yet", 3}};
	const int code = form_open_choices(index_, choice, 3, &form, &why);
	return closed(code, form, why);
}

/* ---- */

static unsigned wrong;

static bool right(enum what kind, int code)
{
	static const int of[KINDS] = {-ERR_MEMORY, -ERR_IO, -ERR_BAD_FILE, 0, -ERR_IO};
	if (kind == READ_INTERRUPTED)
		return code == 0;
	if (code != of[kind])
		return false;
	const size_t n = strnlen(reason, sizeof reason);
	for (size_t i = 0; i < n; i++)
		if (reason[i] < ' ' || reason[i] > '~')
			return false;
	return n > 4 && n < sizeof reason;
}

/* Fails at each chance in turn, until there is none; returns how many there were. */
static unsigned long each(const char *name, int (*open_one)(void), enum what kind)
{
	what = kind;
	for (fails_at = 1;; fails_at++) {
		chances = 0;
		memset(reason, 0, sizeof reason);
		const int code = open_one();
		if (chances < fails_at) {
			const unsigned long count = fails_at - 1;
			wrong += code != 0;
			fails_at = 0;
			return count;
		}
		if (!right(kind, code)) {
			wrong++;
			fprintf(stderr, "%s, %s %lu: %s: \"%.200s\"\n", name, what_name[kind], fails_at,
				err_name(code), reason);
		}
	}
}

/* No descriptor is left, or only a few. */
static unsigned descriptors(void)
{
	struct rlimit was, few;
	unsigned refused = 0;
	CHECK(getrlimit(RLIMIT_NOFILE, &was) == 0);
	const int next = open("/dev/null", O_RDONLY);
	CHECK(next >= 0);
	close(next);
	for (few = was, few.rlim_cur = (rlim_t)next;; few.rlim_cur++, refused++) {
		CHECK(setrlimit(RLIMIT_NOFILE, &few) == 0);
		const int code = open_model();
		CHECK(setrlimit(RLIMIT_NOFILE, &was) == 0);
		if (code == 0)
			return refused;
		if (code != -ERR_IO || !strstr(reason, "errno")) {
			wrong++;
			fprintf(stderr, "descriptors: %s: \"%.200s\"\n", err_name(code), reason);
		}
	}
}

int main(int argc, char **argv)
{
	if (argc != 2) {
		fprintf(stderr, "usage: load_faults MODEL\n");
		return 2;
	}
	path = argv[1];
	unsigned long count[KINDS];
	for (enum what kind = 0; kind < KINDS; kind++)
		count[kind] = each("model", open_model, kind);
	const unsigned few = descriptors();
	if (model_open(path, &model, reason) != 0)
		return 1;
	unsigned long text = each("tokenizer", open_tokenizer, MEMORY), forms = 0;
	if (tokenizer_open(model, &tokenizer, reason) == 0 && form_index_open(tokenizer, &index_) == 0) {
		text += each("index", open_index, MEMORY);
		forms = each("schema", open_schema, MEMORY) + each("pattern", open_regex, MEMORY) +
			each("choices", open_choices, MEMORY);
	}
	for (enum what kind = 0; kind < KINDS; kind++)
		printf("%s\"%s\": %lu", kind ? ", " : "{", what_name[kind], count[kind]);
	printf(", \"descriptors\": %u, \"text\": %lu, \"forms\": %lu, \"wrong\": %u}\n", few, text, forms, wrong);
	form_index_close(&index_);
	tokenizer_close(&tokenizer);
	model_close(&model);
	return wrong != 0;
}
