/*
 * `inspect` and `tokenize` as a user has them: arguments, stdin, stdout, stderr, exit code. Method:
 * each run is a child whose standard streams are files; on a small model made here, and on the
 * default model when it is there.
 */
#define _GNU_SOURCE
#include <sys/wait.h>

#include "runtime/inspect.h"
#include "runtime/json.h"
#include "tests/gguf_make.h"
#include "tests/tap.h"

static struct made_file small;
static char out[1 << 16], err[1 << 12];
static size_t out_length;

static size_t slurp(int fd, char *to, size_t room)
{
	ssize_t n = pread(fd, to, room - 1, 0);
	to[n > 0 ? n : 0] = 0;
	return n > 0 ? (size_t)n : 0;
}

static int run(int (*program)(int, char **), const char *input, size_t input_length,
	       char *const *argv)
{
	int argc = 0, status = -1;
	int fd[3];
	fflush(stdout);
	for (int i = 0; i < 3; i++)
		fd[i] = memfd_create("stream", 0);
	if (write(fd[0], input, input_length) != (ssize_t)input_length)
		abort();
	lseek(fd[0], 0, SEEK_SET);
	while (argv[argc])
		argc++;
	pid_t child = fork();
	if (child == 0) {
		for (int i = 0; i < 3; i++)
			dup2(fd[i], i);
		exit(program(argc, (char **)argv));
	}
	waitpid(child, &status, 0);
	out_length = slurp(fd[1], out, sizeof out);
	slurp(fd[2], err, sizeof err);
	for (int i = 0; i < 3; i++)
		close(fd[i]);
	return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

#define RUN(program, input, length, ...) \
	run(program, input, length, (char *const[]){"name", __VA_ARGS__, NULL})

/* One line of words, and no data. */
static bool one_line(void)
{
	char *end = strchr(err, '\n');
	return out_length == 0 && end && end[1] == 0;
}

static void inspects(void)
{
	struct json all, value;
	int64_t n;
	REQUIRE(RUN(inspect_main, "", 0, small.path, "--json") == 0);
	EXPECT(!err[0]);
	REQUIRE(json_check(out, out_length, &all) == 0);
	EXPECT(json_find(all, "architecture", &value) && json_equals(value, "llama", 5));
	EXPECT(json_find(all, "vocab", &value) && json_integer(value, 5, 5, &n));
	EXPECT(json_find(all, "kv_bytes_per_token", &value) && json_integer(value, 34, 34, &n));
	REQUIRE(json_find(all, "types", &all));
	EXPECT(json_find(all, "F32", &value) && json_integer(value, 3, 3, &n));
	EXPECT(json_find(all, "Q4_1", &value) && json_integer(value, 7, 7, &n));
	REQUIRE(RUN(inspect_main, "", 0, small.path) == 0);
	EXPECT(strstr(out, "kv_bytes_per_token  34\n") != NULL);
}

static void inspects_real(void)
{
	char *path = getenv("HOLDFAST_MODEL");
	static const char expected[] =
		"{\"architecture\":\"llama\",\"layers\":30,\"width\":576,\"heads\":9,\"kv_heads\":3,"
		"\"head\":64,\"vocab\":49152,\"context\":8192,\"parameters\":134515008,"
		"\"bytes\":98362432,\"types\":{\"F32\":61,\"Q4_1\":210,\"Q8_0\":1},"
		"\"kv_bytes_per_token\":11700}\n";
	if (!path || !*path)
		TAP_SKIP("HOLDFAST_MODEL is not set");
	EXPECT_EQ(RUN(inspect_main, "", 0, path, "--json"), 0);
	if (!EXPECT(!strcmp(out, expected)))
		printf("# %s", out);
}

static void tokenizes(void)
{
	EXPECT_EQ(RUN(tokenize_main, "ab a<|im_end|>", 14, small.path), 0);
	EXPECT(!strcmp(out, "[3, 4, 1]\n")); /* the others have no token here */
	EXPECT_EQ(RUN(tokenize_main, "ab a<|im_end|>", 14, small.path, "--special"), 0);
	EXPECT(!strcmp(out, "[3, 4, 1, 0]\n"));
	EXPECT_EQ(RUN(tokenize_main, "", 0, small.path), 0);
	EXPECT(!strcmp(out, "[]\n"));
	EXPECT_EQ(RUN(tokenize_main, "[3, 4 ,1,0]\n", 12, small.path, "--decode"), 0);
	EXPECT(out_length == 14 && !memcmp(out, "ab a<|im_end|>", 14));
	EXPECT_EQ(RUN(tokenize_main, "[]", 2, "--decode", small.path), 0);
	EXPECT_EQ(out_length, 0);
}

static void tokenizes_real(void)
{
	char *path = getenv("HOLDFAST_MODEL");
	static const char text[] = "int main(void)\n{\n\treturn 0;\n}\n\xf0\x9f\x99\x82";
	char ids[4096];
	if (!path || !*path)
		TAP_SKIP("HOLDFAST_MODEL is not set");
	REQUIRE(RUN(tokenize_main, text, sizeof text - 1, path) == 0);
	memcpy(ids, out, out_length);
	REQUIRE(RUN(tokenize_main, ids, out_length, path, "--decode") == 0);
	EXPECT(out_length == sizeof text - 1 && !memcmp(out, text, out_length));
}

static void helps(void)
{
	EXPECT_EQ(RUN(inspect_main, "", 0, "--help"), 0);
	EXPECT(strstr(out, "usage: holdfastd name MODEL [--json]\n") == out && strstr(out, "--help"));
	EXPECT(!err[0]);
	EXPECT_EQ(RUN(tokenize_main, "", 0, small.path, "--help"), 0);
	EXPECT(strstr(out, "--special") && strstr(out, "--decode") && !err[0]);
	EXPECT_EQ(RUN(tokenize_main, "", 0, "--nonsense"), 2);
	EXPECT(one_line());
}

static void refuses(void)
{
	static const char *const bad[] = {"", "{}", "[1,]", "[5]", "[-1]", "[1.0]", "[\"a\"]", "[1e0]"};
	for (unsigned i = 0; i < sizeof bad / sizeof bad[0]; i++) {
		EXPECT_EQ(RUN(tokenize_main, bad[i], strlen(bad[i]), small.path, "--decode"), 1);
		EXPECT(one_line());
	}
	EXPECT_EQ(RUN(inspect_main, "", 0, "/nonexistent"), 1);
	EXPECT(one_line() && strstr(err, "no such file"));
	EXPECT_EQ(RUN(inspect_main, "", 0, "/dev/null", "--json"), 1);
	EXPECT(one_line());
	EXPECT_EQ(RUN(inspect_main, "", 0, "--json"), 2);
	EXPECT(one_line());
	EXPECT_EQ(RUN(inspect_main, "", 0, small.path, "--yaml"), 2);
	EXPECT_EQ(RUN(inspect_main, "", 0, small.path, small.path), 2);
	EXPECT_EQ(RUN(tokenize_main, "", 0, "--special"), 2);
	EXPECT(one_line());
}

int main(void)
{
	static struct maker m;
	make_tiny(&m);
	struct bytes b = make_bytes(&m);
	small = made_open(b.at, b.length);
	TAP_RUN(inspects, "inspect of a small model");
	TAP_RUN(inspects_real, "inspect of the default model");
	TAP_RUN(tokenizes, "tokenize with a small vocabulary");
	TAP_RUN(tokenizes_real, "tokenize and back with the default model");
	TAP_RUN(helps, "--help is data, a wrong use is not");
	TAP_RUN(refuses, "errors are one line and a code");
	made_close(&small);
	free(b.at);
	return tap_done();
}
