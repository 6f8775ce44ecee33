/*
 * The vector leaves: names shared by the files that are compiled once per instruction set. Such a
 * file sees FAST_AVX512 set or not by its library's flags and gives its functions the suffix.
 * Everything else in these files is static: a function with vector instructions must never be the
 * one copy that the linker keeps for the whole program.
 */
#ifndef HOLDFAST_KERNELS_CPU_FAST_H
#define HOLDFAST_KERNELS_CPU_FAST_H

#include "kernels/cpu/cpu.h"

#ifdef FAST_AVX512
#define FAST(name) name##_avx512
#else
#define FAST(name) name##_avx2
#endif

#define INLINE static inline __attribute__((always_inline))

/* Write the slots that the file has. */
void fast_rows_init_avx2(struct leaf *leaf);
void fast_rows_init_avx512(struct leaf *leaf);
void fast_attend_init_avx2(struct leaf *leaf);
void fast_attend_init_avx512(struct leaf *leaf); /* needs VBMI */
void fast_amx_attend_init(struct leaf *leaf);    /* the same bits with AMX's bf16 */

/* Matmuls of five and six bits, tables and K blocks; of AVX-512 only with VNNI. */
void fast_wide_init_avx2(struct leaf *leaf, int vnni);
void fast_wide_init_avx512(struct leaf *leaf);

/* With AMX, for many activation rows. ready: whether the CPU, the operating system and this process have
   it; asks Linux for it. */
int fast_amx_ready(void);
int fast_amx_bf16_ready(void); /* tiles of bf16 too */
void fast_amx_init(struct leaf *leaf);

/* The f32 dot: PACK_F32 and PACK_HALF with both kinds of act, the others with ACT_F32. */
#define FAST_DOT(name) \
	void name(const struct weight *w, uint32_t group_first, uint32_t group_count, \
		  const struct act *a, uint32_t c_first, uint32_t c_count, float *out, \
		  size_t out_stride)
FAST_DOT(fast_dot_avx2);
FAST_DOT(fast_dot_avx512);
typedef FAST_DOT(matmul_leaf);

/* The packs times i8 blocks, of AVX-512 with VNNI. */
FAST_DOT(fast_q4_avx512);
FAST_DOT(fast_q8_avx512);
FAST_DOT(fast_q5_avx512);
FAST_DOT(fast_t4_avx512);
FAST_DOT(fast_k4_avx512);
FAST_DOT(fast_k5_avx512);
FAST_DOT(fast_k6_avx512);

/* The instruction that bounds the 8-bit matmuls, on registers alone (ops_isa_work); of AVX-512 only
   with VNNI. */
uint64_t fast_work_avx2(uint64_t rounds);
uint64_t fast_work_avx512(uint64_t rounds);
/* The same of f32, and of tiles of 8 bits, which only a CPU with AMX has. */
uint64_t fast_work_f32_avx2(uint64_t rounds);
uint64_t fast_work_f32_avx512(uint64_t rounds);
uint64_t fast_work_tiles(uint64_t rounds);

/* Whether AVX2 has AVX-VNNI beside it. HOLDFAST_AVX_VNNI=off says that it has not: so the leaves of a CPU
   without it (Zen 2 and 3, Haswell) are timed on one that has it. The bits are the same. */
int fast_vnni_avx2(void);

/* PACK_I8 with a scale for each activation row; of AVX-512 only with VNNI. */
FAST_DOT(fast_row8_avx2);
FAST_DOT(fast_row8_vnni_avx2);
FAST_DOT(fast_row8_avx512);
FAST_DOT(fast_amx_row8);

/* PACK_BF16 with rows in bf16. */
FAST_DOT(fast_bf16_avx2);
FAST_DOT(fast_bf16_avx512);
FAST_DOT(fast_amx_bf16);

/* What a CPU with AVX-512 may have beside it; what this one has; the leaves of one that has just those. */
enum { FAST_VNNI = 1, FAST_VBMI = 2, FAST_AMX = 4, FAST_AMX_BF16 = 8 };
unsigned fast_have_avx512(void);
void fast_init_avx512(struct leaf *leaf, unsigned have);

/* Puts back the matmuls of AVX2 without AVX-VNNI, and those of AVX-512 with VNNI but without AMX; for
   tests and figures on a CPU that has them. */
void fast_plain_avx2(struct leaf *leaf);
void fast_plain_avx512(struct leaf *leaf);

#endif
