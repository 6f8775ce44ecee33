/*
 * The copy of a weight for given tokens (PACK_I8): what it holds, the activation rows that enter it, and
 * the products of every path that runs here, bit for bit what the formulas in cpu.h say. Outputs lie
 * between guard values.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/device.h"
#include "kernels/cpu/fast.h"
#include "kernels/quant.h"
#include "tests/kernels_fixture.h"
#include "tests/leaves.h"
#include "tests/tap.h"

enum { C_MAX = 40 };

static uint64_t seed = 99;

/* One row with one scale: the values that the integers stand for, and their sum. */
static float row_round(const float *x, uint32_t n, int8_t *q, int *sum)
{
	float most = 0;
	for (uint32_t k = 0; k < n; k++)
		most = fmaxf(most, fabsf(x[k]));
	const float d = most / 127, inverse = 1 / d;
	*sum = 0;
	for (uint32_t k = 0; k < n; k++) {
		q[k] = isinf(inverse) ? 0 : (int8_t)nearbyintf(x[k] * inverse);
		*sum += q[k];
	}
	return isinf(inverse) ? 0 : d;
}

typedef void matmul_given(const struct weight *w, uint32_t group_first, uint32_t group_count,
			  const struct act *a, uint32_t c_first, uint32_t c_count, float *out,
			  size_t out_stride);

static void given_judge(const char *name, matmul_given *matmul, const struct weight *w,
			const struct act *a, uint32_t c_first, uint32_t c_count, const float *want)
{
	const size_t stride = w->rows + 2, size = C_MAX * stride;
	float *memory = guarded(size), *out = memory + GUARD;
	const uint32_t groups = (w->rows + PACK_ROWS - 1) / PACK_ROWS, half = groups / 2;
	int wrong = 0;
	matmul(w, 0, half, a, c_first, c_count, out, stride);
	matmul(w, half, groups - half, a, c_first, c_count, out, stride);
	for (size_t i = 0; i < size + 2 * GUARD; i++) {
		const size_t c = (i - GUARD) / stride, row = (i - GUARD) % stride;
		const int inside = i >= GUARD && c >= c_first && c < c_first + c_count && row < w->rows;
		const float guard = GUARD_VALUE;
		wrong += memcmp(memory + i, inside ? want + c * w->rows + row : &guard, 4) != 0;
	}
	if (!EXPECT(wrong == 0))
		printf("# %s %u x %u, c %u+%u\n", name, w->rows, w->columns, c_first, c_count);
	free(memory);
}

/* The copy for given tokens: what it holds, what enters it, and the products of every path. */
static void given_case(uint32_t type, uint32_t rows, uint32_t columns)
{
	static const uint32_t parts[][2] = {{0, 1}, {3, 2}, {1, 3}, {2, 7}, {0, 8}, {5, 16}, {1, 33}, {0, 40}};
	uint8_t *data = random_weight(&seed, type, (size_t)rows * columns, 0.2f);
	float *want = take((size_t)C_MAX * rows), *row = take(columns), *x = take(C_MAX * columns);
	float *d = take(C_MAX), *s = take(C_MAX), *wd = take(rows);
	int8_t *q = (int8_t *)(void *)take(C_MAX * columns), *wq = (int8_t *)(void *)take(rows * columns);
	int sum, differ = 0;
	struct weight *w;
	CHECK(pack_make(NULL, type, WEIGHT_MATMUL, rows, columns, data, &w) == 0);
	CHECK(given_make(NULL, w, data) == 0);
	CHECK(w->given != NULL);
	EXPECT_EQ(w->given->bytes, given_bytes(type, rows, columns));
	for (uint32_t r = 0; r < rows; r++) {
		quant_decode(type, data + r * w->row_bytes, columns, row);
		wd[r] = row_round(row, columns, wq + (size_t)r * columns, &sum);
	}
	for (uint32_t k = 0; k < C_MAX * columns; k++)
		x[k] = k / columns == 2 ? 0 : random_normal(&seed); /* a row of zeros among them */
	for (int isa = ISA_SCALAR; isa <= ISA_AVX512 && ops_isa_runs(isa); isa++)
		for (uint32_t c = 0; c < C_MAX; c++) {
			d[c] = row_round(x + c * columns, columns, q + (size_t)c * columns, &sum);
			s[c] = (float)sum;
			float da, sa;
			int8_t *got = (int8_t *)(void *)take(columns);
			leaves[isa].quantise_row(x + c * columns, columns, got, &da, &sa);
			differ += memcmp(got, q + (size_t)c * columns, columns) != 0 || da != d[c] || sa != s[c];
			free(got);
		}
	EXPECT_EQ(differ, 0);
	for (uint32_t c = 0; c < C_MAX; c++)
		for (uint32_t r = 0; r < rows; r++) {
			const volatile float scale = wd[r] * d[c];
			sum = 0;
			for (uint32_t k = 0; k < columns; k++)
				sum += wq[(size_t)r * columns + k] * q[(size_t)c * columns + k];
			want[c * rows + r] = scale * (float)sum;
		}
	const struct act a = {.kind = ACT_I8_ROW, .columns = columns, .q = q, .q_stride = columns,
			      .d = d, .s = s, .block_stride = 1};
	for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
		for (int isa = ISA_SCALAR; isa <= ISA_AVX512 && ops_isa_runs(isa); isa++)
			given_judge(ops_isa_name(isa), leaves[isa].matmul[PACK_I8], w->given, &a, parts[i][0],
				    parts[i][1], want);
		/* What a better set has taken the place of. */
		if (ops_isa_runs(ISA_AVX2))
			given_judge("plain avx2", fast_row8_avx2, w->given, &a, parts[i][0], parts[i][1], want);
		if (ops_isa_runs(ISA_AVX512) && __builtin_cpu_supports("avx512vnni"))
			given_judge("vnni", fast_row8_avx512, w->given, &a, parts[i][0], parts[i][1], want);
	}
	pack_free(NULL, w);
	free(data), free(want), free(row), free(x), free(d), free(s), free(wd), free(q), free(wq);
}

static void given_copies(void)
{
	given_case(TYPE_Q4_1, 1, 64);
	given_case(TYPE_Q8_0, 17, 576);
	given_case(TYPE_Q5_0, 33, 192);
	given_case(TYPE_BF16, 48, 2112);
	given_case(TYPE_Q6_K, 15, 256);
	/* Columns that make no whole tile have no copy. */
	uint8_t *data = random_weight(&seed, TYPE_Q4_1, 16 * 96, 0.2f);
	struct weight *w;
	CHECK(pack_make(NULL, TYPE_Q4_1, WEIGHT_MATMUL, 16, 96, data, &w) == 0);
	EXPECT(given_make(NULL, w, data) == 0 && w->given == NULL && given_bytes(TYPE_Q4_1, 16, 96) == 0);
	pack_free(NULL, w);
	free(data);
}

int main(void)
{
	leaves_make();
	TAP_RUN(given_copies, "copies for given tokens, bit for bit");
	return tap_done();
}
