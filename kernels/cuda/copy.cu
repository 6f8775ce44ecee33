/*
 * The copies of weights for given tokens (plan.prefill): made on the GPU of a matrix that is there, and
 * kept behind it.
 */
#include <string.h>

#include "kernels/cuda/device.h"

size_t given_bytes(const struct device_plan *p, enum weight_use use, uint32_t rows, uint32_t columns)
{
	if (use != WEIGHT_PHASED || p->prefill == PREFILL_SAME || columns % GIVEN_COLUMNS != 0 ||
	    columns > GIVEN_COLUMNS_MAX)
		return 0;
	return (size_t)rows * columns * given_element(p->prefill) + (size_t)rows * sizeof(float);
}

int given_make(struct device *d, struct weight *w, size_t at)
{
	const size_t values = (size_t)w->m.rows * w->m.columns * given_element(d->plan.prefill);
	uint8_t *const data = static_cast<uint8_t *>(w->memory) + at;
	struct dequantise_args a;
	memset(&a, 0, sizeof a);
	w->copy.data = data;
	w->copy.scales = reinterpret_cast<float *>(data + values);
	a.w = w->m;
	a.row_count = w->m.rows;
	a.out = data;
	a.scales = reinterpret_cast<float *>(data + values);
	a.to = d->plan.prefill == PREFILL_INT8 ? DEQUANTISE_I8
	       : d->plan.prefill == PREFILL_BF16 ? DEQUANTISE_BF16 : DEQUANTISE_FP8;
	dequantise_launch(&a, d->step);
	CUDA_TRY(d, cudaGetLastError());
	CUDA_TRY(d, cudaStreamSynchronize(d->step));
	return blas_shape_add(d, w->m.rows, w->m.columns);
}
