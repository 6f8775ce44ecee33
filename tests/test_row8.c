/*
 * The copies of a weight for given tokens (PACK_I8, PACK_BF16): what they hold, the activation rows that
 * enter them, and the products of every path that runs here, bit for bit what the formulas in cpu.h say.
 * Outputs lie between guard values.
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
	CHECK(given_make(PREFILL_INT8, NULL, w, data) == 0);
	CHECK(w->given != NULL);
	EXPECT_EQ(w->given->bytes, given_bytes(PREFILL_INT8, type, rows, columns));
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
	EXPECT(given_make(PREFILL_INT8, NULL, w, data) == 0 && w->given == NULL &&
	       given_bytes(PREFILL_INT8, TYPE_Q4_1, 16, 96) == 0);
	pack_free(NULL, w);
	free(data);
}

/* Nearest even by comparing the two neighbours; what is small is 0. */
static float near_bf16(float x)
{
	uint32_t u;
	memcpy(&u, &x, 4);
	if ((u & 0x7fffffff) >= 0x7f800000)
		return x;
	const uint32_t low = u & 0xffff0000, high = low + 0x10000;
	float a, b;
	memcpy(&a, &low, 4);
	memcpy(&b, &high, 4);
	const double down = fabs((double)x - (double)a), up = fabs((double)b - (double)x);
	const int odd = (low & 0x10000) != 0;
	const float y = isinf(b) ? ((u & 0xffff) >= 0x8000 ? b : a) : down < up || (down == up && !odd) ? a : b;
	return fabsf(y) < 0x1p-55f ? 0 : y;
}

static float bf16_float(uint16_t h)
{
	const uint32_t u = (uint32_t)h << 16;
	float x;
	memcpy(&x, &u, 4);
	return x;
}

/* Every bf16, each with what is around it: its neighbours in f32, and the middle to the next. */
static void rounded_rows(void)
{
	static const uint32_t around[8] = {0, 1, 0x7fff, 0x8000, 0x8001, 0xffff, 0x4000, 0xc000};
	for (int isa = ISA_SCALAR; isa <= ISA_AVX512 && ops_isa_runs(isa); isa++) {
		int wrong = 0;
		for (uint32_t high = 0; high < 0x10000; high += 8) {
			float x[64];
			uint16_t h[66];
			h[64] = h[65] = 0x1234;
			for (uint32_t i = 0; i < 64; i++) {
				const uint32_t u = (high + i / 8) << 16 | around[i % 8];
				memcpy(&x[i], &u, 4);
			}
			leaves[isa].round_row(x, 64, h);
			for (uint32_t i = 0; i < 64; i++)
				wrong += isnan(x[i]) ? !isnan(bf16_float(h[i])) : bf16_float(h[i]) != near_bf16(x[i]);
			wrong += h[64] != 0x1234 || h[65] != 0x1234;
		}
		if (!EXPECT(wrong == 0))
			printf("# %s: %d\n", ops_isa_name(isa), wrong);
	}
}

/* One result as cpu.h has it. */
static float bf16_dot(const float *w, const float *x, uint32_t n)
{
	volatile float acc = 0, part[2];
	for (uint32_t k = 0; k < n; k += 32) {
		part[0] = part[1] = 0;
		for (uint32_t i = 0; i < 32; i++) {
			const volatile float product = w[k + i] * x[k + i];
			part[i % 2] += product;
		}
		const volatile float both = part[0] + part[1];
		acc += both;
	}
	return acc;
}

static void bf16_case(uint32_t type, uint32_t rows, uint32_t columns, float scale)
{
	static const uint32_t parts[][2] = {{0, 1}, {3, 2}, {1, 3}, {2, 7}, {0, 8}, {5, 16}, {1, 33}, {0, 40}};
	uint8_t *data = random_weight(&seed, type, (size_t)rows * columns, 0.2f);
	float *want = take((size_t)C_MAX * rows), *x = take(C_MAX * columns);
	float *w_rows = take((size_t)rows * columns);
	uint16_t *h = (uint16_t *)(void *)take(C_MAX * columns);
	struct weight *w;
	CHECK(pack_make(NULL, type, WEIGHT_MATMUL, rows, columns, data, &w) == 0);
	CHECK(given_make(PREFILL_BF16, NULL, w, data) == 0);
	CHECK(w->given != NULL);
	EXPECT_EQ(w->given->bytes, given_bytes(PREFILL_BF16, type, rows, columns));
	for (uint32_t r = 0; r < rows; r++)
		quant_decode(type, data + r * w->row_bytes, columns, w_rows + (size_t)r * columns);
	for (uint32_t k = 0; k < rows * columns; k++)
		w_rows[k] = near_bf16(w_rows[k]);
	for (uint32_t k = 0; k < C_MAX * columns; k++) {
		x[k] = k / columns == 2 ? 0 : scale * random_normal(&seed);
		if (k % 7 == 0)
			x[k] *= 0x1p-54f; /* some are small, and then none at all */
	}
	for (uint32_t c = 0; c < C_MAX; c++)
		leaves[ISA_SCALAR].round_row(x + c * columns, columns, h + c * columns);
	for (uint32_t k = 0; k < C_MAX * columns; k++)
		x[k] = near_bf16(x[k]);
	for (uint32_t c = 0; c < C_MAX; c++)
		for (uint32_t r = 0; r < rows; r++)
			want[c * rows + r] = bf16_dot(w_rows + (size_t)r * columns, x + c * columns, columns);
	const struct act a = {.kind = ACT_BF16, .columns = columns, .h = h, .h_stride = columns};
	for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
		for (int isa = ISA_SCALAR; isa <= ISA_AVX512 && ops_isa_runs(isa); isa++)
			given_judge(ops_isa_name(isa), leaves[isa].matmul[PACK_BF16], w->given, &a, parts[i][0],
				    parts[i][1], want);
		/* What tiles have taken the place of. */
		if (ops_isa_runs(ISA_AVX512))
			given_judge("registers", fast_bf16_avx512, w->given, &a, parts[i][0], parts[i][1], want);
	}
	pack_free(NULL, w);
	free(data), free(want), free(w_rows), free(x), free(h);
}

static void bf16_copies(void)
{
	bf16_case(TYPE_Q4_1, 1, 32, 1);
	bf16_case(TYPE_Q8_0, 17, 576, 1e6f);
	bf16_case(TYPE_Q5_0, 33, 96, 0x1p-50f); /* products near the smallest there can be */
	bf16_case(TYPE_BF16, 48, 2112, 1);
	bf16_case(TYPE_Q6_K, 15, 256, 1);
	bf16_case(TYPE_F32, 133, 64, 1);
	uint8_t *data = random_weight(&seed, TYPE_F32, 16 * 48, 0.2f);
	struct weight *w;
	CHECK(pack_make(NULL, TYPE_F32, WEIGHT_MATMUL, 16, 48, data, &w) == 0);
	EXPECT(given_make(PREFILL_BF16, NULL, w, data) == 0 && w->given == NULL &&
	       given_bytes(PREFILL_BF16, TYPE_F32, 16, 48) == 0);
	pack_free(NULL, w);
	free(data);
}

int main(void)
{
	leaves_make();
	TAP_RUN(given_copies, "copies for given tokens, bit for bit");
	TAP_RUN(rounded_rows, "rows in bf16, for every number around each");
	TAP_RUN(bf16_copies, "copies in bf16, bit for bit");
	return tap_done();
}
