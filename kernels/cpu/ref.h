/*
 * Between the two files of the scalar leaves. Private to kernels/cpu/.
 */
#ifndef HOLDFAST_KERNELS_CPU_REF_H
#define HOLDFAST_KERNELS_CPU_REF_H

#include "kernels/cpu/cpu.h"

void ref_attend(const struct attend_job *job);
void ref_encode_k(enum kv_kind kv, const float *k, uint32_t head, uint32_t token,
		  uint32_t page_tokens, uint8_t *block, uint8_t *scales);
void ref_encode_v(enum kv_kind kv, const float *v, uint32_t head, uint32_t token,
		  uint32_t page_tokens, uint8_t *block, uint8_t *scales);

#endif
