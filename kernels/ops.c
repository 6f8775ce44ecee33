/*
 * What the door offers beside its table: page sizes, and the instruction sets of this
 * machine.
 */
#include "kernels/ops.h"

#include <cpuid.h>

#include "kernels/cpu/cpu.h"

uint64_t ops_page_bytes(enum kv_kind kv, uint32_t layers, uint32_t kv_heads, uint32_t head,
			uint32_t page_tokens)
{
	const uint64_t tokens = (uint64_t)2 * layers * kv_heads * page_tokens; /* K and V */
	switch (kv) {
	case KV_F32:
		return tokens * head * 4;
	case KV_BF16:
		return tokens * head * 2;
	case KV_FP8: case KV_INT8:
		break;
	}
	return tokens * (head + kv_group_count(head));
}

/* The register state that the operating system saves (XCR0). */
static uint64_t state_saved(void)
{
	uint32_t low, high;
	__asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
	return (uint64_t)high << 32 | low;
}

static enum isa isa_find(void)
{
	uint32_t a, b, c, d;
	if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_OSXSAVE))
		return ISA_SCALAR;
	const uint32_t avx2_of_1 = bit_FMA | bit_F16C | bit_AVX;
	const uint64_t saved = state_saved();
	if ((c & avx2_of_1) != avx2_of_1 || (saved & 6) != 6)
		return ISA_SCALAR;
	if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(b & bit_AVX2))
		return ISA_SCALAR;
	const uint32_t avx512 = bit_AVX512F | bit_AVX512BW | bit_AVX512VL | bit_AVX512DQ;
	if ((b & avx512) != avx512 || (saved & 0xe6) != 0xe6)
		return ISA_AVX2;
	return ISA_AVX512;
}

enum isa ops_isa_best(void)
{
	return isa_find();
}

int ops_isa_runs(enum isa isa)
{
	return isa == ISA_AUTO || (isa >= ISA_SCALAR && isa <= isa_find());
}

const char *ops_isa_name(enum isa isa)
{
	switch (isa) {
	case ISA_AUTO:
		return "auto";
	case ISA_SCALAR:
		return "scalar";
	case ISA_AVX2:
		return "avx2";
	case ISA_AVX512:
		return "avx512";
	}
	return "unknown";
}
