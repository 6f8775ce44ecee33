/*
 * A stand-in for cuBLASLt, as kernels/cuda/blas.cu loads it: the same few functions, in plain C++ on the
 * emulated stream. FAKE_CUBLASLT says what is wrong with it: version, create, none (no algorithm), split
 * (only such as split K), room (only such as need more workspace than is given), refuse (a pinned one
 * is refused for another bucket), wrong (sums), matmul=N (the Nth product and all later ones fail).
 * Compiled with PART, it lacks a function.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <list>

#include "kernels/cuda/emulate_runtime.h"
#include "kernels/fp8.h"

namespace {

struct layout {
	int type;
	uint64_t rows, columns;
	int64_t stride;
};

struct algo {
	uint64_t id, parts, rest[6];
};

struct result {
	struct algo algo;
	size_t workspace;
	int state;
	float waves;
	int reserved[4];
};

struct product {
	const uint8_t *w, *x;
	uint8_t *sums;
	layout a, b, c;
};

/* As long as graphs that hold their addresses. */
std::list<product> products;
int handles, objects, done;
void *memory; /* what it takes of the GPU's */

bool is(const char *fault)
{
	const char *const mode = getenv("FAKE_CUBLASLT");
	return mode && strncmp(mode, fault, strlen(fault)) == 0;
}

double value(const uint8_t *p, int type, size_t at)
{
	uint16_t h;
	switch (type) {
	case 3: return reinterpret_cast<const int8_t *>(p)[at];
	case 14: memcpy(&h, p + 2 * at, 2); return bf16_decode(h);
	default: return fp8_decode(p[at]);
	}
}

void product_run(void *argument)
{
	const product *const p = static_cast<product *>(argument);
	for (uint64_t i = 0; i < p->b.columns; i++)
		for (uint64_t r = 0; r < p->a.columns; r++) {
			double sum = is("wrong") ? 1 : 0;
			for (uint64_t k = 0; k < p->a.rows; k++)
				sum += value(p->w, p->a.type, r * p->a.stride + k) *
				       value(p->x, p->b.type, i * p->b.stride + k);
			const int whole = (int)sum;
			const float real = (float)sum;
			memcpy(p->sums + 4 * (i * p->c.stride + r), p->a.type == 3 ? (const void *)&whole : &real, 4);
		}
}

} // namespace

extern "C" {

size_t cublasLtGetVersion()
{
	return is("version") ? 110000 : 130100;
}
int cublasLtCreate(void **out)
{
	*out = &handles;
	if (is("create"))
		return 1;
	handles++;
	return cudaMalloc(&memory, 1 << 20) != cudaSuccess;
}
int cublasLtDestroy(void *)
{
	cudaFree(memory);
	return --handles < 0;
}
int cublasLtMatrixLayoutCreate(void **out, int type, uint64_t rows, uint64_t columns, int64_t stride)
{
	objects++;
	*out = new layout{type, rows, columns, stride};
	return 0;
}
int cublasLtMatrixLayoutDestroy(void *l)
{
	objects--;
	delete static_cast<layout *>(l);
	return 0;
}
int cublasLtMatmulDescCreate(void **out, int compute, int)
{
	objects++;
	*out = new int(compute);
	return 0;
}
int cublasLtMatmulDescDestroy(void *d)
{
	objects--;
	delete static_cast<int *>(d);
	return 0;
}
int cublasLtMatmulDescSetAttribute(void *, int name, const void *value, size_t bytes)
{
	int transposed = 0;
	if (name != 3 || bytes != sizeof transposed)
		return 7;
	memcpy(&transposed, value, bytes);
	return transposed == 1 ? 0 : 7;
}
int cublasLtMatmulPreferenceCreate(void **out)
{
	return cublasLtMatmulDescCreate(out, 0, 0);
}
int cublasLtMatmulPreferenceDestroy(void *p)
{
	return cublasLtMatmulDescDestroy(p);
}
int cublasLtMatmulPreferenceSetAttribute(void *, int name, const void *, size_t bytes)
{
	return (name == 1 && bytes == 8) || (name == 3 && bytes == 4) ? 0 : 7;
}
int cublasLtMatmulAlgoGetHeuristic(void *, void *, void *, void *b, void *, void *, void *, int most,
				   result *out, int *count)
{
	*count = 0;
	if (is("none") || most < 2)
		return 15;
	/* The first is never one that may be taken. */
	for (int i = 0; i < 2; i++) {
		out[i].algo.id = 100 + static_cast<layout *>(b)->columns;
		out[i].algo.parts = is("split") || i == 0 ? 4 : 1;
		out[i].workspace = is("room") ? (size_t)64 << 20 : 1 << 20;
	}
	*count = 2;
	return 0;
}
#ifndef PART
int cublasLtMatmulAlgoCheck(void *, void *, void *, void *, void *, void *, const algo *, result *out)
{
	out->state = is("refuse") ? 15 : 0;
	return 0;
}
#endif
int cublasLtMatmulAlgoConfigGetAttribute(const algo *a, int name, void *to, size_t bytes, size_t *written)
{
	const uint32_t parts = (uint32_t)a->parts;
	if (name != 2 || bytes != sizeof parts)
		return 7;
	memcpy(to, &parts, *written = sizeof parts);
	return 0;
}
int cublasLtMatmul(void *, void *desc, const void *alpha, const void *w, void *a, const void *x, void *b,
		   const void *beta, const void *, void *, void *sums, void *c, const algo *how, void *, size_t room,
		   cudaStream_t stream)
{
	const product p = {static_cast<const uint8_t *>(w), static_cast<const uint8_t *>(x),
			   static_cast<uint8_t *>(sums), *static_cast<layout *>(a), *static_cast<layout *>(b),
			   *static_cast<layout *>(c)};
	const bool integers = *static_cast<int *>(desc) == 72;
	int whole = 0, nothing = 1;
	float real = 0;
	memcpy(&whole, alpha, sizeof whole);
	memcpy(&real, alpha, sizeof real);
	memcpy(&nothing, beta, sizeof nothing);
	/* As the true one: what does not fit together is refused; with INT8 an algorithm is its bucket's. */
	if (p.a.rows != p.b.rows || p.c.rows != p.a.columns || p.c.columns != p.b.columns || nothing != 0 ||
	    (integers ? whole != 1 : real != 1.0f) || (p.a.type == 3) != integers || room < 1 << 20 ||
	    how->parts != 1 || (integers && how->id != 100 + p.b.columns))
		return 7;
	if (is("matmul=") && ++done >= atoi(getenv("FAKE_CUBLASLT") + 7))
		return 13;
	products.push_back(p);
	return cudaLaunchHostFunc(stream, product_run, &products.back()) == cudaSuccess ? 0 : 13;
}
/* What was made and not given back. */
int fake_cublaslt_left()
{
	return handles + objects;
}
}
