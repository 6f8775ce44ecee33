/*
 * Goal: given tokens with weights of their own on the GPU. Method: the layers' products of both phases on
 * a CPU device and on an emulated GPU, the GPU with its own kernels and with a stand-in for cuBLASLt that
 * does, or does not, what is asked of it. INT8 is the CPU's bits in every case; BF16 and e4m3 are compared
 * with double, and a row with itself in other company. Each case is a process, since a library is looked
 * for once.
 */
#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kernels/fp8.h"
#include "tests/cuda_both.h"

enum { ROWS = 37, ALONE = 5 };

static const char *library(const char *name)
{
	static char path[512];
	const char *build = getenv("BUILDDIR");
	snprintf(path, sizeof path, "%s/tests/%s", build ? build : ".", name);
	return path;
}

static struct device_plan plan_of(enum prefill_kind kind)
{
	struct device_plan p = fixture_plan();
	p.heads = 3;
	p.kv_heads = 1;
	p.head = 64;
	p.width = 128;
	p.ff = 320;
	p.vocab = 32;
	p.rows_max = 40;
	p.samples_max = 8;
	p.group[0].page_count = 16;
	p.prefill = kind;
	return p;
}

static const struct fixture_options options = {.matmul_type = TYPE_Q4_1, .embedding_type = TYPE_Q8_0};

static int is_given(uint32_t row)
{
	return row % 7 < 4;
}

/* A batch whose rows are of both phases, and random rows in the buffers that enter; `count` of them from
   row `first` of a fixed table, so that a row can be looked at alone. */
static int rows_put(struct fixture *f, uint32_t first, uint32_t count)
{
	const struct fixture_sequence s = {text, 0, count, 0, 0};
	const struct device_plan *p = &f->plan;
	struct ops_batch *b = fixture_block(f, &s, 1, 0);
	struct ops_row *rows = (struct ops_row *)(void *)((uint8_t *)b + b->row_at);
	for (uint32_t i = 0; i < count; i++)
		rows[i].phase = !is_given(first + i);
	const int code = f->ops->batch(f->device, b);
	free(b);
	if (code != 0)
		return code;
	const uint32_t widths[2] = {p->heads * p->head, p->ff};
	for (int i = 0; i < 2; i++) {
		float *x = floats((size_t)ROWS * widths[i]);
		uint64_t state = 11 + (uint64_t)i;
		for (size_t k = 0; k < (size_t)ROWS * widths[i]; k++)
			x[k] = random_normal(&state) * (k % 97 == 0 ? 20.0f : 1.0f);
		CHECK(f->ops->buffer_write(f->device, i ? BUFFER_F : BUFFER_A, 0, (size_t)count * widths[i],
					   x + (size_t)first * widths[i]) == 0);
		free(x);
	}
	float *zero = floats((size_t)count * p->width);
	CHECK(f->ops->buffer_write(f->device, BUFFER_X, 0, (size_t)count * p->width, zero) == 0);
	free(zero);
	return 0;
}

/* X after the products that no norm stands before: output, then down. */
static int products_of(struct fixture *f, uint32_t first, uint32_t count, float *x)
{
	int code = rows_put(f, first, count);
	code = code ? code : f->ops->output(f->device, &f->layer[0].ops);
	code = code ? code : f->ops->down(f->device, &f->layer[1].ops);
	return code ? code : f->ops->buffer_read(f->device, BUFFER_X, 0, (size_t)count * f->plan.width, x);
}

/* The same in double, of values that are rounded to nothing; the root of the mean square error. */
static double error_of(struct fixture *f, const float *got)
{
	const struct device_plan *p = &f->plan;
	const struct fixture_weight *w[2] = {&f->layer[0].output, &f->layer[1].down};
	const uint32_t widths[2] = {p->heads * p->head, p->ff};
	double error = 0, size = 0;
	float *x[2];
	for (int i = 0; i < 2; i++) {
		x[i] = floats((size_t)ROWS * widths[i]);
		CHECK(f->ops->buffer_read(f->device, i ? BUFFER_F : BUFFER_A, 0, (size_t)ROWS * widths[i],
					  x[i]) == 0);
	}
	for (uint32_t row = 0; row < ROWS; row++)
		for (uint32_t r = 0; r < p->width && is_given(row); r++) {
			double sum = 0;
			for (int i = 0; i < 2; i++)
				for (uint32_t k = 0; k < widths[i]; k++)
					sum += (double)w[i]->values[(size_t)r * widths[i] + k] *
					       x[i][(size_t)row * widths[i] + k];
			const double e = sum - got[(size_t)row * p->width + r];
			error += e * e;
			size += sum * sum;
		}
	free(x[0]);
	free(x[1]);
	return sqrt(error / size);
}

/* ---- cases; each in a process of its own, whose exit says how it went ---- */

struct way {
	const char *name, *fault; /* FAKE_CUBLASLT */
	int taken;                /* 1: the library is used, 0: own kernels, -1: the step fails, 2: as it likes */
};
/* Beside a real GPU there are only these: the stand-ins for the library know the emulated one. */
static const struct way own = {"off", "", 0}, real = {"", "", 2};

static int wrong;
#define SHOULD(x) \
	do { \
		if (!(x)) { \
			printf("# %d: %s\n", __LINE__, #x); \
			wrong = 1; \
		} \
	} while (0)

static void int8_case(const struct way *w, float *x)
{
	struct device_plan p = plan_of(PREFILL_INT8);
	const size_t width = p.width;
	float *want = floats(ROWS * width);
	both_open(&p, &options, 3);
	SHOULD(w->taken == 2 ||
	       (strstr(gpu.ops->device_isa(gpu.device), "cuBLASLt 130100") != NULL) == (w->taken != 0));
	if (w->taken == 2)
		printf("# %s\n", gpu.ops->device_isa(gpu.device));
	if (w->taken < 0) {
		int code = 0;
		for (int i = 0; i < 4 && code == 0; i++)
			code = products_of(&gpu, 0, ROWS, x);
		SHOULD(code == -ERR_INTERNAL);
		SHOULD(products_of(&gpu, 0, ROWS, x) == -ERR_INTERNAL);
	} else {
		struct device_needs needs;
		SHOULD(products_of(&cpu, 0, ROWS, want) == 0);
		for (int i = 0; i < 3; i++) { /* the second and third with the first's graph */
			SHOULD(products_of(&gpu, 0, ROWS, x) == 0);
			for (uint32_t row = 0; row < ROWS; row++)
				for (uint32_t k = 0; k < width; k++) {
					const float a = want[row * width + k], b = x[row * width + k];
					SHOULD(is_given(row) ? a == b : fabsf(a - b) <= 1e-3f);
				}
		}
		gpu.ops->device_needs(&p, &needs);
		uint64_t weights = 0;
		for (int l = 0; l < FIXTURE_LAYERS; l++)
			weights += gpu.ops->weight_bytes(gpu.layer[l].ops.output);
		SHOULD(weights > 2 * (uint64_t)width * p.heads * p.head);
		SHOULD(hook_taken() <= needs.slab_bytes + needs.workspace_bytes + (1 << 20));
	}
	free(want);
}

static void float_case(const struct way *w, enum prefill_kind kind, float *x)
{
	struct device_plan p = plan_of(kind);
	const size_t width = p.width;
	float *alone = floats(ALONE * width);
	fixture_table = ops_cuda;
	fixture_open(&gpu, &p, &options, 3);
	SHOULD(w->taken == 2 ||
	       (strstr(gpu.ops->device_isa(gpu.device), "cuBLASLt") != NULL) == (w->taken != 0));
	SHOULD(w->taken == 2 || gpu.ops->device_beside(gpu.device) == (w->taken ? 1 << 20 : 0));
	if (w->taken == 2)
		printf("# %s\n", gpu.ops->device_isa(gpu.device));
	SHOULD(products_of(&gpu, 0, ROWS, x) == 0);
	const double error = error_of(&gpu, x);
	SHOULD(error > 0 && error < (kind == PREFILL_BF16 ? 0.004 : 0.05));
	/* In other company, in another bucket. */
	SHOULD(products_of(&gpu, 12, ALONE, alone) == 0);
	SHOULD(memcmp(alone, x + 12 * width, ALONE * width * sizeof *x) == 0);
	/* As many rows, all given or none: not one graph for both. */
	for (uint32_t at = 0; at < 8; at += 4) {
		SHOULD(products_of(&gpu, at, 3, alone) == 0);
		SHOULD(memcmp(alone, x + at * width, 3 * width * sizeof *x) == 0);
	}
	free(alone);
}

/* 0 if the case went well; what it computed is in *out, so that ways can be compared. */
static int case_run(const struct way *w, enum prefill_kind kind, float *out)
{
	int ends[2];
	const size_t bytes = sizeof(float) * ROWS * 128;
	CHECK(pipe(ends) == 0);
	fflush(stdout);
	const pid_t pid = fork();
	CHECK(pid >= 0);
	if (pid == 0) {
		float *x = floats(ROWS * 128);
		const int whole = w->name[0] == '/' || w == &own;
		if (w == &real) /* as a daemon looks for it */
			unsetenv("HOLDFAST_CUBLASLT");
		else
			setenv("HOLDFAST_CUBLASLT", whole ? w->name : library(w->name), 1);
		setenv("FAKE_CUBLASLT", w->fault, 1);
		CHECK(freopen("/dev/null", "w", stderr) != NULL);
		hook_seed(seeds[kind % SEEDS]);
		if (kind == PREFILL_INT8)
			int8_case(w, x);
		else
			float_case(w, kind, x);
		if (kind == PREFILL_INT8)
			fixture_close(&cpu);
		fixture_close(&gpu);
		SHOULD(hook_fault() == NULL);
		const char *const name = getenv("HOLDFAST_CUBLASLT");
		void *const l = name ? dlopen(name, RTLD_NOW | RTLD_NOLOAD) : NULL;
		int (*left)(void);
		void *const at = l ? dlsym(l, "fake_cublaslt_left") : NULL;
		memcpy(&left, &at, sizeof left);
		SHOULD(!at || left() == 0);
		fflush(stdout);
		CHECK(write(ends[1], x, bytes) == (ssize_t)bytes);
		_exit(wrong);
	}
	close(ends[1]);
	size_t got = 0;
	for (ssize_t n; got < bytes && (n = read(ends[0], (char *)out + got, bytes - got)) > 0;)
		got += (size_t)n;
	close(ends[0]);
	int status = 0;
	waitpid(pid, &status, 0);
	if (status != 0)
		printf("# %s %s, kind %d: status %d\n", w->name, w->fault, (int)kind, status);
	return status != 0 || got != bytes;
}

#define FAKE "fake_cublaslt.so"

static void exact(void)
{
	static const struct way ways[] = {
		{FAKE, "", 1}, {FAKE, "version", 0}, {FAKE, "create", 0}, {FAKE, "wrong", 0},
		{FAKE, "none", 0}, {FAKE, "split", 0}, {FAKE, "room", 0}, {FAKE, "matmul=1", 0},
		{"fake_cublaslt_part.so", "", 0}, {"/no/such/library.so", "", 0},
		{FAKE, "matmul=3", -1}, /* the probe is the first */
	};
	float x[ROWS * 128];
	EXPECT(case_run(&own, PREFILL_INT8, x) == 0);
	if (!hook_emulated())
		EXPECT(case_run(&real, PREFILL_INT8, x) == 0);
	for (size_t i = 0; hook_emulated() && i < sizeof ways / sizeof ways[0]; i++)
		EXPECT(case_run(&ways[i], PREFILL_INT8, x) == 0);
}

static void rounded(void)
{
	static const struct way fake = {FAKE, "", 1};
	/* No one algorithm for all buckets: own kernels, though the library is there. */
	static const struct way refused = {FAKE, "refuse", 0};
	static float a[ROWS * 128], b[ROWS * 128], c[ROWS * 128];
	for (int kind = PREFILL_BF16; kind <= PREFILL_FP8; kind++) {
		double error = 0, size = 0;
		EXPECT(case_run(&own, kind, a) == 0);
		if (!hook_emulated()) {
			EXPECT(case_run(&real, kind, b) == 0);
			continue;
		}
		EXPECT(case_run(&fake, kind, b) == 0);
		EXPECT(case_run(&refused, kind, c) == 0);
		EXPECT(memcmp(a, c, sizeof a) == 0);
		for (size_t i = 0; i < ROWS * 128; i++) {
			error += (a[i] - b[i]) * (double)(a[i] - b[i]);
			size += a[i] * (double)a[i];
		}
		EXPECT(sqrt(error / size) < 1e-6);
		/* They are not the same sums: which library made them is in the plan's identity. */
		EXPECT(error > 0);
	}
}

int main(void)
{
	if (hook_missing())
		return tap_skip_all(hook_missing());
	text_make(32);
	TAP_RUN(exact, "INT8: the CPU's bits, by own kernels and by a library, whatever the library does");
	TAP_RUN(rounded, "BF16 and e4m3 within their rounding; a row is its own in any company");
	return tap_done();
}
