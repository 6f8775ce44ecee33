/*
 * K and V into pages, by the leaves of every instruction set that runs here: each against the scalar
 * ones, bit for bit, and those against what a page's format promises.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/device.h"
#include "kernels/fp8.h"
#include "tests/kernels_fixture.h"
#include "tests/leaves.h"
#include "tests/tap.h"

static uint64_t seed = 99;

/* One token's K or V written by each leaf into a page of noise. */
static void encode_case(int kv, uint32_t head, uint32_t page_tokens, uint32_t token,
			int is_v)
{
	const size_t block = (size_t)head * page_tokens * kv_value_bytes(kv);
	const size_t lines = (size_t)kv_group_count(head) * page_tokens;
	uint8_t *want = (uint8_t *)take(block / 4 + lines),
		*got = (uint8_t *)take(block / 4 + lines);
	uint8_t *noise = (uint8_t *)take(block / 4 + lines);
	float *x = take(head);
	for (size_t i = 0; i < block + lines; i++)
		noise[i] = (uint8_t)random_next(&seed);
	const int scale = (int)random_below(&seed, 42) - 30; /* INT8 holds up to 30480 */
	for (uint32_t i = 0; i < head; i++)
		x[i] = random_below(&seed, 9) ? random_normal(&seed) * ldexpf(1, scale) : 0;
	if (token % 5 == 3)
		memset(x, 0, head * sizeof *x);
	for (int isa = ISA_SCALAR; isa <= ISA_AVX512 && ops_isa_runs(isa); isa++) {
		uint8_t *page = isa == ISA_SCALAR ? want : got;
		memcpy(page, noise, block + lines);
		(is_v ? leaves[isa].encode_v : leaves[isa].encode_k)(
			kv, x, head, token, page_tokens, page, page + block);
		if (!EXPECT(memcmp(want, page, block + lines) == 0))
			printf("# %s kv %d head %u token %u\n", ops_isa_name(isa), kv, head,
			       token);
	}
	/* The scalar one: every value comes back near enough, and nothing else
	   has changed. */
	size_t changed = 0;
	for (size_t i = 0; i < block + lines; i++)
		changed += want[i] != noise[i];
	EXPECT(changed <= (size_t)head * kv_value_bytes(kv) + kv_group_count(head));
	for (uint32_t i = 0; i < head; i++) {
		const size_t at = is_v ? page_v_at(token, i, head)
				       : page_k_at(token, i, head);
		const uint8_t byte =
			want[block + i / kv_group_values(head) * page_tokens + token];
		float most = 0, y;
		uint16_t h;
		const uint32_t first = i / kv_group_values(head) * kv_group_values(head);
		for (uint32_t k = first; k < first + kv_group_values(head); k++)
			most = fmaxf(most, fabsf(x[k]));
		if (kv == KV_FP8) {
			y = fp8_decode(want[at]) * ldexpf(1, byte - 128);
			EXPECT(fabsf(y - x[i]) <= fmaxf(fabsf(x[i]) / 16, most * 0x1p-17f));
			EXPECT(most == 0 || (most * ldexpf(1, 128 - byte) <= 448 &&
					     most * ldexpf(1, 129 - byte) > 448));
		} else if (kv == KV_INT8) {
			const float s = (8 + (float)(byte % 8)) / 8 *
					ldexpf(1, byte / 8 - 24);
			y = (float)(int8_t)want[at] * s;
			/* Nothing clips, and half a step is the most that is lost; the
			   scale is at most an eighth above what is needed, or the smallest
			   there is. */
			EXPECT(fabsf(y - x[i]) <= s * 0.5001f);
			EXPECT(s * 127 >= most * 0.999999f &&
			       (byte == 0 || s * 127 <= most * 1.1251f));
		} else if (kv == KV_BF16) {
			memcpy(&h, want + 2 * at, 2);
			EXPECT(h == bf16_encode(x[i]));
		} else {
			memcpy(&y, want + 4 * at, 4);
			EXPECT(y == x[i]);
		}
	}
	free(want), free(got), free(noise), free(x);
}

static void encoders(void)
{
	static const uint32_t heads[] = {16, 64, 80, 96, 128, 256};
	for (int kv = KV_FP8; kv <= KV_F32; kv++)
		for (size_t i = 0; i < sizeof heads / sizeof heads[0]; i++)
			for (uint32_t token = 0; token < 32; token++)
				encode_case(kv, heads[i], 32 << i % 3, token,
					    (int)token & 1);
}

enum { BF16_HEAD = 64, BF16_PAGE = 16, BF16_BYTES = BF16_HEAD * BF16_PAGE };

/* 448 and the 63 bf16 from `high` on, by one leaf's encoder into a page of zeros. 2: all are at most 448;
   1: all are finite; 0: some are not, and the page may be anything. */
static int encode_bf16(const struct leaf *leaf, int kv, int is_v, uint32_t high, float *x, uint8_t *page)
{
	const uint32_t token = high / 63 % BF16_PAGE;
	int sort = 2;
	memset(page, 0, BF16_BYTES + BF16_PAGE);
	x[0] = 448;
	for (uint32_t i = 1; i < BF16_HEAD; i++) {
		const uint32_t h = high + i - 1;
		x[i] = bf16_decode((uint16_t)(h < 0xffff ? h : 0xffff));
		if (fabsf(x[i]) > 448 && sort == 2)
			sort = 1;
		if (!isfinite(x[i]))
			sort = 0;
	}
	(is_v ? leaf->encode_v : leaf->encode_k)(kv, x, BF16_HEAD, token, BF16_PAGE, page, page + BF16_BYTES);
	return sort;
}

/* Every bf16 through the encoders of K and V, unscaled since 448 stands beside them; what is larger has a
   largest of its own beside it, so there the scalar leaf says what is right. */
static void encoders_bf16(void)
{
	uint8_t want[BF16_BYTES + BF16_PAGE], got[BF16_BYTES + BF16_PAGE];
	float x[BF16_HEAD];
	for (int isa = ISA_SCALAR; isa <= ISA_AVX512 && ops_isa_runs(isa); isa++) {
		uint32_t wrong = 0;
		for (uint32_t at = 0; at < 4 * 0x10000; at += 4 * (BF16_HEAD - 1))
			for (uint32_t way = 0; way < 4; way++) {
				const int kv = way / 2 ? KV_INT8 : KV_FP8, is_v = way % 2;
				const uint32_t high = at / 4, token = high / 63 % BF16_PAGE;
				encode_bf16(&leaves[ISA_SCALAR], kv, is_v, high, x, want);
				const int sort = encode_bf16(&leaves[isa], kv, is_v, high, x, got);
				wrong += sort > 0 && memcmp(want, got, sizeof want) != 0;
				for (uint32_t i = 0; i < BF16_HEAD && sort == 2 && kv == KV_FP8; i++)
					wrong += got[is_v ? page_v_at(token, i, BF16_HEAD)
							  : page_k_at(token, i, BF16_HEAD)] != fp8_encode(x[i]);
			}
		if (!EXPECT(wrong == 0))
			printf("# %s: %u\n", ops_isa_name(isa), wrong);
	}
}

/* By request (HOLDFAST_FP8_ALL): every float that a page holds unscaled. 448 beside them makes it so. */
static void encoders_all(void)
{
	enum { HEAD = 96, MOST = 0x43e00000 };
	uint8_t page[HEAD * 16], scales[16];
	float x[HEAD] = {448};
	uint64_t wrong = 0;
	if (!getenv("HOLDFAST_FP8_ALL"))
		TAP_SKIP("takes minutes: HOLDFAST_FP8_ALL=1");
	for (int isa = ISA_AVX2; isa <= ISA_AVX512 && ops_isa_runs(isa); isa++)
		for (uint32_t sign = 0; sign < 2; sign++)
			for (uint32_t u = 0; u <= MOST; u += HEAD - 1) {
				for (uint32_t i = 1; i < HEAD; i++) {
					const uint32_t at = u + i - 1 < MOST ? u + i - 1 : MOST;
					x[i] = float_from_bits(at | sign << 31);
				}
				leaves[isa].encode_k(KV_FP8, x, HEAD, 3, 16, page, scales);
				wrong += scales[3] != 128;
				for (uint32_t i = 0; i < HEAD; i++)
					wrong += page[page_k_at(3, i, HEAD)] != fp8_encode(x[i]);
			}
	EXPECT(wrong == 0);
}

int main(void)
{
	leaves_make();
	printf("# best here: %s\n", ops_isa_name(ops_isa_best()));
	TAP_RUN(encoders, "K and V into pages, bit for bit");
	TAP_RUN(encoders_bf16, "every bf16, into K and V");
	TAP_RUN(encoders_all, "every float that needs no scale, into a page");
	return tap_done();
}
