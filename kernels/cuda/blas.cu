/*
 * cuBLASLt for the products of given tokens (plan.prefill). It is looked for when a device with such a
 * plan is opened, asked for one small product whose sums are known, and used only if they are right; a
 * program without it, or with one that is too old, wrong or unwilling, takes the kernels of given.cu.
 *
 * Each shape of a matrix has its algorithms when the matrix is made, for tokens in padded buckets
 * (powers of two), without split-K and within a workspace that is the plan's. INT8 is exact, so each
 * bucket may have its own. In BF16 and e4m3 the order of a sum is the algorithm's, so a shape has one
 * for all buckets, or none: a row's sums are then its own in any company (K1).
 *
 * What of the library's interface is used is declared here, as the documentation of version 12 and 13
 * has it, so that no header of it is needed; where there is one, nvcc compares.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/device.h"
#include "kernels/fp8.h"

enum {
	LT_R_32F = 0, LT_R_8I = 3, LT_R_32I = 10, LT_R_16BF = 14, LT_R_8F_E4M3 = 28,
	LT_COMPUTE_32F = 68, LT_COMPUTE_32I = 72,
	LT_DESC_TRANSA = 3, LT_OP_T = 1,
	LT_PREF_MAX_WORKSPACE = 1, LT_PREF_REDUCTION = 3,
	LT_CONFIG_SPLITK = 2,
	LT_VERSION_LEAST = 120000, LT_CHOICES = 8
};
struct lt_algo {
	uint64_t data[8];
};
struct lt_result {
	struct lt_algo algo;
	size_t workspace;
	int state;
	float waves;
	int reserved[4];
};

#if defined(__CUDACC__) && defined(__has_include)
#if __has_include(<cublasLt.h>)
#include <cublasLt.h>
#define CUBLASLT_SEEN
static_assert(LT_R_8I == CUDA_R_8I && LT_R_32I == CUDA_R_32I && LT_R_16BF == CUDA_R_16BF &&
		      LT_R_8F_E4M3 == CUDA_R_8F_E4M3 && LT_R_32F == CUDA_R_32F &&
		      LT_COMPUTE_32F == CUBLAS_COMPUTE_32F && LT_COMPUTE_32I == CUBLAS_COMPUTE_32I,
	      "types");
static_assert((int)LT_DESC_TRANSA == CUBLASLT_MATMUL_DESC_TRANSA && (int)LT_OP_T == CUBLAS_OP_T &&
		      (int)LT_PREF_MAX_WORKSPACE == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES &&
		      (int)LT_PREF_REDUCTION == CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK &&
		      (int)LT_CONFIG_SPLITK == CUBLASLT_ALGO_CONFIG_SPLITK_NUM,
	      "names");
static_assert(sizeof(struct lt_algo) == sizeof(cublasLtMatmulAlgo_t) &&
		      sizeof(struct lt_result) == sizeof(cublasLtMatmulHeuristicResult_t) &&
		      offsetof(struct lt_result, state) == offsetof(cublasLtMatmulHeuristicResult_t, state),
	      "structs");
#endif
#endif

struct lt {
	size_t (*version)();
	int (*create)(void **);
	int (*destroy)(void *);
	int (*layout_create)(void **, int, uint64_t, uint64_t, int64_t);
	int (*layout_destroy)(void *);
	int (*desc_create)(void **, int, int);
	int (*desc_destroy)(void *);
	int (*desc_set)(void *, int, const void *, size_t);
	int (*pref_create)(void **);
	int (*pref_destroy)(void *);
	int (*pref_set)(void *, int, const void *, size_t);
	int (*choose)(void *, void *, void *, void *, void *, void *, void *, int, struct lt_result *, int *);
	int (*check)(void *, void *, void *, void *, void *, void *, const struct lt_algo *, struct lt_result *);
	int (*config)(const struct lt_algo *, int, void *, size_t, size_t *);
	int (*matmul)(void *, void *, const void *, const void *, void *, const void *, void *, const void *,
		      const void *, void *, void *, void *, const struct lt_algo *, void *, size_t, cudaStream_t);
};

#ifdef CUBLASLT_SEEN
CALLED_ALIKE(struct lt, version, cublasLtGetVersion);
CALLED_ALIKE(struct lt, create, cublasLtCreate);
CALLED_ALIKE(struct lt, destroy, cublasLtDestroy);
CALLED_ALIKE(struct lt, layout_create, cublasLtMatrixLayoutCreate);
CALLED_ALIKE(struct lt, layout_destroy, cublasLtMatrixLayoutDestroy);
CALLED_ALIKE(struct lt, desc_create, cublasLtMatmulDescCreate);
CALLED_ALIKE(struct lt, desc_destroy, cublasLtMatmulDescDestroy);
CALLED_ALIKE(struct lt, desc_set, cublasLtMatmulDescSetAttribute);
CALLED_ALIKE(struct lt, pref_create, cublasLtMatmulPreferenceCreate);
CALLED_ALIKE(struct lt, pref_destroy, cublasLtMatmulPreferenceDestroy);
CALLED_ALIKE(struct lt, pref_set, cublasLtMatmulPreferenceSetAttribute);
CALLED_ALIKE(struct lt, choose, cublasLtMatmulAlgoGetHeuristic);
CALLED_ALIKE(struct lt, check, cublasLtMatmulAlgoCheck);
CALLED_ALIKE(struct lt, config, cublasLtMatmulAlgoConfigGetAttribute);
CALLED_ALIKE(struct lt, matmul, cublasLtMatmul);
#endif

enum { BLAS_BUCKETS = 17, BUCKET_LEAST = 16 };

struct blas_shape {
	struct blas_shape *next;
	uint32_t rows, columns;
	bool good;
	void *a;
	struct {
		void *x, *sums;
		struct lt_algo algo;
	} bucket[BLAS_BUCKETS];
};

struct blas {
	void *handle, *desc, *pref;
	struct blas_shape *shapes;
	uint32_t most; /* tokens of the largest bucket */
};

bool library_name(void *library, const char *name, void *out)
{
	void *const found = dlsym(library, name);
	memcpy(out, &found, sizeof found);
	return found != NULL;
}

static bool library_wanted()
{
	const char *const named = getenv("HOLDFAST_CUBLASLT");
	return !named || strcmp(named, "off") != 0;
}

/* HOLDFAST_CUBLASLT: a path, or "off". Emulated, there is none but what it names. */
static void *library_open()
{
#ifdef __CUDACC__
	static const char *const names[] = {"libcublasLt.so.13", "libcublasLt.so.12"};
#else
	static const char *const names[] = {""};
#endif
	const char *const named = getenv("HOLDFAST_CUBLASLT");
	if (named)
		return library_wanted() ? dlopen(named, RTLD_NOW | RTLD_LOCAL) : NULL;
	void *l = NULL;
	for (unsigned i = 0; i < sizeof names / sizeof names[0] && !l; i++)
		l = names[i][0] ? dlopen(names[i], RTLD_NOW | RTLD_LOCAL) : NULL;
	return l;
}

/* NULL where it is not. */
static const struct lt *lt_find()
{
	static struct lt t;
	static int state; /* 1: there, 2: not */
	if (state == 0) {
		void *const l = library_open();
		const bool there = l && library_name(l, "cublasLtGetVersion", &t.version) &&
			library_name(l, "cublasLtCreate", &t.create) && library_name(l, "cublasLtDestroy", &t.destroy) &&
			library_name(l, "cublasLtMatrixLayoutCreate", &t.layout_create) &&
			library_name(l, "cublasLtMatrixLayoutDestroy", &t.layout_destroy) &&
			library_name(l, "cublasLtMatmulDescCreate", &t.desc_create) &&
			library_name(l, "cublasLtMatmulDescDestroy", &t.desc_destroy) &&
			library_name(l, "cublasLtMatmulDescSetAttribute", &t.desc_set) &&
			library_name(l, "cublasLtMatmulPreferenceCreate", &t.pref_create) &&
			library_name(l, "cublasLtMatmulPreferenceDestroy", &t.pref_destroy) &&
			library_name(l, "cublasLtMatmulPreferenceSetAttribute", &t.pref_set) &&
			library_name(l, "cublasLtMatmulAlgoGetHeuristic", &t.choose) &&
			library_name(l, "cublasLtMatmulAlgoCheck", &t.check) &&
			library_name(l, "cublasLtMatmulAlgoConfigGetAttribute", &t.config) &&
			library_name(l, "cublasLtMatmul", &t.matmul) && t.version() >= LT_VERSION_LEAST;
		state = there ? 1 : 2;
	}
	return state == 1 ? &t : NULL;
}

bool blas_found()
{
	return lt_find() != NULL;
}

static uint32_t tokens_padded(uint32_t tokens)
{
	return (tokens + BUCKET_LEAST - 1) / BUCKET_LEAST * BUCKET_LEAST;
}

size_t blas_sums_bytes(const struct device_plan *p)
{
	size_t widest = p->width > p->ff ? p->width : p->ff;
	widest = widest > (size_t)p->heads * p->head ? widest : (size_t)p->heads * p->head;
	return (size_t)tokens_padded(p->rows_max) * widest * sizeof(float);
}

/* The smallest bucket that has so many tokens, and how many it has: 16, 32, ... and the most. */
static uint32_t bucket_of(const struct blas *b, uint32_t tokens, uint32_t *padded)
{
	uint32_t i = 0;
	for (*padded = BUCKET_LEAST; *padded < tokens && *padded < b->most; i++)
		*padded *= 2;
	*padded = *padded < b->most ? *padded : b->most;
	return i;
}

static int type_of(const struct device *d)
{
	return d->plan.prefill == PREFILL_INT8 ? LT_R_8I
	       : d->plan.prefill == PREFILL_BF16 ? LT_R_16BF
						 : LT_R_8F_E4M3;
}

/* ---- shapes ---- */

/* What a call that failed has left behind is nothing. */
static bool made(int code, void **out)
{
	if (code != 0)
		*out = NULL;
	return code == 0;
}

static bool algo_fits(const struct lt *t, const struct lt_result *r)
{
	uint32_t parts = 0;
	size_t written = 0;
	return r->state == 0 && r->workspace <= BLAS_ROOM_BYTES &&
	       t->config(&r->algo, LT_CONFIG_SPLITK, &parts, sizeof parts, &written) == 0 && parts <= 1;
}

/* The library's first choice that fits. */
static bool algo_choose(const struct lt *t, const struct blas *b, const struct blas_shape *s, uint32_t i,
			struct lt_algo *out)
{
	struct lt_result list[LT_CHOICES];
	int count = 0;
	memset(list, 0, sizeof list);
	if (t->choose(b->handle, b->desc, s->a, s->bucket[i].x, s->bucket[i].sums, s->bucket[i].sums, b->pref,
		      LT_CHOICES, list, &count) != 0)
		return false;
	for (int k = 0; k < count && k < LT_CHOICES; k++)
		if (algo_fits(t, &list[k])) {
			*out = list[k].algo;
			return true;
		}
	return false;
}

static bool shape_make(struct device *d, struct blas_shape *s)
{
	const struct lt *t = lt_find();
	const struct blas *b = d->blas;
	const bool exact = d->plan.prefill == PREFILL_INT8;
	const int type = type_of(d), sums = exact ? LT_R_32I : LT_R_32F;
	uint32_t padded = 0;
	const uint32_t last = bucket_of(b, b->most, &padded);
	CHECK(last < BLAS_BUCKETS);
	/* Its matrices lie column after column: ours transposed. */
	if (!made(t->layout_create(&s->a, type, s->columns, s->rows, s->columns), &s->a))
		return false;
	for (uint32_t i = last + 1; i-- > 0;) {
		struct lt_result is;
		const uint32_t tokens = i == last ? b->most : BUCKET_LEAST << i;
		if (!made(t->layout_create(&s->bucket[i].x, type, s->columns, tokens, s->columns), &s->bucket[i].x) ||
		    !made(t->layout_create(&s->bucket[i].sums, sums, s->rows, tokens, s->rows), &s->bucket[i].sums))
			return false;
		if (exact || i == last) {
			if (!algo_choose(t, b, s, i, &s->bucket[i].algo))
				return false;
			continue;
		}
		memset(&is, 0, sizeof is);
		s->bucket[i].algo = s->bucket[last].algo;
		if (t->check(b->handle, b->desc, s->a, s->bucket[i].x, s->bucket[i].sums, s->bucket[i].sums,
			     &s->bucket[i].algo, &is) != 0 || is.state != 0 || is.workspace > BLAS_ROOM_BYTES)
			return false;
	}
	return true;
}

static struct blas_shape *shape_find(const struct blas *b, uint32_t rows, uint32_t columns)
{
	struct blas_shape *s = b->shapes;
	while (s && (s->rows != rows || s->columns != columns))
		s = s->next;
	return s;
}

int blas_shape_add(struct device *d, uint32_t rows, uint32_t columns)
{
	if (!d->blas || rows % 16 != 0 || shape_find(d->blas, rows, columns))
		return 0;
	struct blas_shape *const s = static_cast<struct blas_shape *>(calloc(1, sizeof *s));
	if (!s)
		return -ERR_MEMORY;
	s->rows = rows;
	s->columns = columns;
	s->next = d->blas->shapes;
	d->blas->shapes = s;
	s->good = shape_make(d, s);
	return 0;
}

bool blas_run(struct device *d, const struct product *p, const void *x, uint32_t tokens, void *sums)
{
	const struct lt *t = lt_find();
	const struct blas *b = d->blas;
	const struct blas_shape *s = b ? shape_find(b, p->w.rows, p->w.columns) : NULL;
	if (!s || !s->good)
		return false;
	uint32_t padded;
	const uint32_t i = bucket_of(b, tokens, &padded);
	const int one_int = 1, none_int = 0;
	const float one = 1, none = 0;
	const bool exact = d->plan.prefill == PREFILL_INT8;
	const void *const alpha = exact ? static_cast<const void *>(&one_int) : &one;
	const void *const beta = exact ? static_cast<const void *>(&none_int) : &none;
	if (t->matmul(b->handle, b->desc, alpha, p->copy.data, s->a, x, s->bucket[i].x, beta, sums,
		      s->bucket[i].sums, sums, s->bucket[i].sums, &s->bucket[i].algo, d->blas_room, BLAS_ROOM_BYTES,
		      d->step) != 0)
		d->failed = true; /* what would come is no sum: the step ends with a code */
	return true;
}

/* ---- life ---- */

enum { PROBE_ROWS = 32, PROBE_COLUMNS = 64, PROBE_TOKENS = 16 };

static int probe_value(uint32_t i, uint32_t k)
{
	return (int)((i * 7 + k * 3 + i * k) % 15) - 7;
}

static void probe_fill(const struct device *d, uint32_t count, uint32_t salt, uint8_t *out)
{
	for (uint32_t i = 0; i < count; i++)
		for (uint32_t k = 0; k < PROBE_COLUMNS; k++) {
			const size_t at = (size_t)i * PROBE_COLUMNS + k;
			const int v = probe_value(i + salt, k);
			if (d->plan.prefill == PREFILL_INT8) {
				out[at] = (uint8_t)(int8_t)v;
			} else if (d->plan.prefill == PREFILL_FP8) {
				out[at] = fp8_encode((float)v);
			} else {
				const uint16_t h = bf16_encode((float)v);
				memcpy(out + 2 * at, &h, sizeof h);
			}
		}
}

/* One product whose sums are integers that every precision holds; 0 if they are right. */
static int probe_run(struct device *d)
{
	const size_t row = PROBE_COLUMNS * given_element(d->plan.prefill);
	struct product p;
	memset(&p, 0, sizeof p);
	p.w.rows = PROBE_ROWS;
	p.w.columns = PROBE_COLUMNS;
	/* The weights behind the tokens, in the room for both. */
	p.copy.data = d->given_x + PROBE_TOKENS * row;
	probe_fill(d, PROBE_TOKENS, 5, d->page_room);
	probe_fill(d, PROBE_ROWS, 0, d->page_room + PROBE_TOKENS * row);
	CUDA_TRY(d, cudaMemcpyAsync(d->given_x, d->page_room, (PROBE_TOKENS + PROBE_ROWS) * row,
				    cudaMemcpyHostToDevice, d->step));
	TRY(blas_shape_add(d, PROBE_ROWS, PROBE_COLUMNS));
	if (!blas_run(d, &p, d->given_x, PROBE_TOKENS, d->given_sums) || d->failed)
		return -ERR_UNSUPPORTED;
	CUDA_TRY(d, cudaMemcpyAsync(d->page_room, d->given_sums, PROBE_TOKENS * PROBE_ROWS * sizeof(float),
				    cudaMemcpyDeviceToHost, d->step));
	CUDA_TRY(d, cudaStreamSynchronize(d->step));
	for (uint32_t i = 0; i < PROBE_TOKENS; i++)
		for (uint32_t r = 0; r < PROBE_ROWS; r++) {
			const uint8_t *const at = d->page_room + 4 * (i * PROBE_ROWS + r);
			int sum = 0, whole;
			float real;
			for (uint32_t k = 0; k < PROBE_COLUMNS; k++)
				sum += probe_value(i + 5, k) * probe_value(r, k);
			memcpy(&whole, at, sizeof whole);
			memcpy(&real, at, sizeof real);
			if (d->plan.prefill == PREFILL_INT8 ? whole != sum : real != (float)sum)
				return -ERR_UNSUPPORTED;
		}
	return 0;
}

static int handles_make(struct device *d)
{
	const struct lt *t = lt_find();
	struct blas *const b = d->blas;
	const bool exact = d->plan.prefill == PREFILL_INT8;
	const int transposed = LT_OP_T;
	const uint64_t room = BLAS_ROOM_BYTES;
	const uint32_t none = 0;
	if (!made(t->create(&b->handle), &b->handle) ||
	    !made(t->desc_create(&b->desc, exact ? LT_COMPUTE_32I : LT_COMPUTE_32F, exact ? LT_R_32I : LT_R_32F),
		  &b->desc) ||
	    t->desc_set(b->desc, LT_DESC_TRANSA, &transposed, sizeof transposed) != 0 ||
	    !made(t->pref_create(&b->pref), &b->pref) ||
	    t->pref_set(b->pref, LT_PREF_MAX_WORKSPACE, &room, sizeof room) != 0 ||
	    t->pref_set(b->pref, LT_PREF_REDUCTION, &none, sizeof none) != 0)
		return -ERR_UNSUPPORTED;
	return 0;
}

int blas_open(struct device *d)
{
	const struct lt *t = lt_find();
	if (!t) {
		if (library_wanted())
			fprintf(stderr, "cuda: no cuBLASLt of version 12 or later is found (libcublasLt.so.13, .12, or "
				"HOLDFAST_CUBLASLT); given tokens take own kernels\n");
		return 0;
	}
	d->blas = static_cast<struct blas *>(calloc(1, sizeof *d->blas));
	if (!d->blas)
		return -ERR_MEMORY;
	d->blas->most = tokens_padded(d->plan.rows_max);
	int code = handles_make(d);
	if (code == 0)
		code = probe_run(d);
	if (code == 0) {
		const size_t at = strlen(d->name);
		snprintf(d->name + at, sizeof d->name - at, ", cuBLASLt %u", (unsigned)t->version());
		return 0;
	}
	if (d->lost)
		return code;
	/* A failed call, or wrong sums, are no fault of the device's. */
	d->failed = false;
	cudaGetLastError();
	fprintf(stderr, "cuda: cuBLASLt %u does not do what is asked of it; own kernels are used\n",
		(unsigned)t->version());
	blas_close(d);
	return 0;
}

void blas_close(struct device *d)
{
	const struct lt *t = lt_find();
	struct blas *const b = d->blas;
	if (!b)
		return;
	while (b->shapes) {
		struct blas_shape *const s = b->shapes;
		b->shapes = s->next;
		if (s->a)
			t->layout_destroy(s->a);
		for (uint32_t i = 0; i < BLAS_BUCKETS; i++) {
			if (s->bucket[i].x)
				t->layout_destroy(s->bucket[i].x);
			if (s->bucket[i].sums)
				t->layout_destroy(s->bucket[i].sums);
		}
		free(s);
	}
	if (b->pref)
		t->pref_destroy(b->pref);
	if (b->desc)
		t->desc_destroy(b->desc);
	if (b->handle)
		t->destroy(b->handle);
	free(b);
	d->blas = NULL;
}
