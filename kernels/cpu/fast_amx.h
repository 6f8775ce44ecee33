/*
 * AMX's tiles: eight registers of up to 16 rows of 64 bytes. Inline assembly, so that a file that uses
 * them is compiled without AMX in its target.
 */
#ifndef HOLDFAST_KERNELS_CPU_FAST_AMX_H
#define HOLDFAST_KERNELS_CPU_FAST_AMX_H

#include "kernels/cpu/fast_v16.h"

enum { AMX_TILE = 16 }; /* rows of a tile */

/* What ldtilecfg reads. */
struct amx_config {
	uint8_t palette, start_row, reserved[14];
	uint16_t bytes[16]; /* of a row */
	uint8_t rows[16];
};

#define AMX_ZERO(n) __asm__ volatile("tilezero %%tmm" #n ::)
#define AMX_LOAD(n, p, stride) \
	__asm__ volatile("tileloadd (%0,%1,1), %%tmm" #n ::"r"(p), "r"((size_t)(stride)) : "memory")
#define AMX_STORE(n, p, stride) \
	__asm__ volatile("tilestored %%tmm" #n ", (%0,%1,1)" ::"r"(p), "r"((size_t)(stride)) : "memory")
/* sum += activations (signed) times weights: signed, or unsigned. */
#define AMX_DOT(weights, acts, sum) \
	__asm__ volatile("tdpbssd %%tmm" #weights ", %%tmm" #acts ", %%tmm" #sum ::)
#define AMX_DOT_UNSIGNED(weights, acts, sum) \
	__asm__ volatile("tdpbsud %%tmm" #weights ", %%tmm" #acts ", %%tmm" #sum ::)
/* Pairs of bf16, sums in f32: as cpu.h has it. */
#define AMX_DOT_BF16(weights, acts, sum) \
	__asm__ volatile("tdpbf16ps %%tmm" #weights ", %%tmm" #acts ", %%tmm" #sum ::)
/* What a switch of threads would have to save is gone. */
#define AMX_RELEASE() __asm__ volatile("tilerelease" ::)

#endif
