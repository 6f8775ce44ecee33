/*
 * Matmuls in the shapes of models: sums that are carried over chunks of columns, groups that make several
 * lots, activation rows that make several; every set of leaves that runs here, bit for bit.
 */
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/device.h"
#include "kernels/cpu/fast.h"
#include "kernels/quant.h"
#include "tests/kernels_fixture.h"
#include "tests/leaves.h"
#include "tests/matmuls.h"
#include "tests/tap.h"

enum { C_MANY = 133 };

/* Every set of leaves that runs here, beside the scalar one. */
struct sets {
	struct leaf leaf[3 + SUBSETS];
	uint32_t count;
};

static void sets_make(struct sets *s)
{
	s->count = 0;
	for (int isa = ISA_AVX2; isa <= ISA_AVX512 && ops_isa_runs(isa); isa++)
		s->leaf[s->count++] = leaves[isa];
	if (ops_isa_runs(ISA_AVX2)) {
		s->leaf[s->count] = leaves[ISA_AVX2];
		fast_plain_avx2(&s->leaf[s->count]);
		s->leaf[s->count++].name = "avx2 without AVX-VNNI";
	}
	for (size_t i = 0; i < SUBSETS && ops_isa_runs(ISA_AVX512); i++) {
		if (subsets[i] & ~fast_have_avx512())
			continue;
		leaf_init_ref(&s->leaf[s->count]);
		fast_init_avx512(&s->leaf[s->count++], subsets[i]);
	}
}

/* Shapes of models: sums that are carried over the chunks of columns, groups that make several lots,
   activation rows that make several. The scalar leaf says what is right, and the formula a sample of it. */
static void matmul_large(const struct sets *sets, uint32_t type, uint32_t rows, uint32_t columns,
			 uint32_t c_first, uint32_t c_count, enum act_kind kind)
{
	const uint32_t end = c_first + c_count;
	struct act a = act_make(columns, end);
	uint8_t *data = random_weight(&seed, type, (size_t)rows * columns, 0.2f);
	float *want = take((size_t)end * rows);
	struct weight *w;
	int wrong = 0;
	CHECK(pack_make(NULL, type, WEIGHT_MATMUL, rows, columns, data, &w) == 0);
	a.kind = kind;
	leaves[ISA_SCALAR].matmul[w->pack](w, 0, (rows + PACK_ROWS - 1) / PACK_ROWS, &a, c_first, c_count, want,
					   rows);
	for (uint32_t i = 0; i < 24; i++) {
		const uint32_t c = c_first + i * 7 % c_count, r = i < 12 ? i * 5 % rows : rows - 1 - i * 5 % rows;
		const float right = expected(type, data, r, &a, c);
		wrong += memcmp(&right, want + (size_t)c * rows + r, sizeof right) != 0;
	}
	if (!EXPECT(wrong == 0))
		printf("# scalar %s %ux%u\n", weight_type_name(type), rows, columns);
	for (uint32_t i = 0; i < sets->count; i++)
		matmul_judge(&sets->leaf[i], w, &a, rows > PACK_ROWS, c_first, c_count, want, rows);
	pack_free(NULL, w);
	free(data), free(want), act_free(&a);
}

static void matmuls_large(void)
{
	static const struct {
		uint32_t rows, columns, c_first, c_count;
	} shapes[] = {{17, 1536, 3, 2}, {33, 2048, 0, 17}, {16, 4864, 5, 12}, {580, 1536, 0, 4}};
	const int sanitized = getenv("HOLDFAST_SANITIZED") != NULL;
	struct sets sets;
	sets_make(&sets);
	for (uint32_t type = 0; type < 40; type++) {
		if (!weight_type_elements(type))
			continue;
		for (uint32_t i = 0; i < (sanitized ? 2 : 4); i++)
			matmul_large(&sets, type, shapes[i].rows, shapes[i].columns, shapes[i].c_first,
				     shapes[i].c_count, ACT_I8_BLOCK);
		if (!sanitized || type == TYPE_Q4_1)
			matmul_large(&sets, type, 33, 2048, 0, 5, ACT_F32);
		if (!sanitized)
			matmul_large(&sets, type, 48, weight_type_elements(type) == 256 ? 768 : 576, 0, C_MANY,
				     ACT_I8_BLOCK);
	}
	/* Several lots of groups of every pack that is cut into them, and chunks and lots of rows at once. */
	matmul_large(&sets, TYPE_Q4_1, sanitized ? 560 : 900, sanitized ? 1536 : 576, 0, sanitized ? 2 : C_MANY,
		     ACT_I8_BLOCK);
}

int main(void)
{
	leaves_make();
	printf("# best here: %s\n", ops_isa_name(ops_isa_best()));
	TAP_RUN(matmuls_large, "matmuls of models' shapes, every set, bit for bit");
	return tap_done();
}
