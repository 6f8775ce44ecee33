/*
 * Which attention kernel takes a unit, and the merge of stored partials.
 */
#include "kernels/cuda/attend.h"

/* One block a unit and KV head: its partials in ascending order. */
__global__ __launch_bounds__(ATTEND_THREADS) void attend_merge(const struct attend_args a)
{
	if (blockIdx.x >= STEP(a.step)->unit_count[a.kind])
		return;
	const struct unit u = STEP_UNITS(a.step, a.kind)[blockIdx.x];
	if (a.faults[u.sequence].page != (uint32_t)OPS_NONE)
		return; /* its zeros are there */
	const uint32_t shared = a.heads / a.kv_heads, vectors = u.row_count * shared;
	uint32_t first, last;
	unit_partitions(&a, &u, &first, &last);
	for (uint32_t e = threadIdx.x; e < vectors * a.head; e += ATTEND_THREADS) {
		const uint32_t v = e / a.head;
		const float *p = partial_at(&a, blockIdx.x, blockIdx.y, 0, attend_vectors(a.kind, shared));
		const size_t size = (size_t)attend_vectors(a.kind, shared) * (a.head + 2);
		float m = p[v], l = p[vectors + v], o = p[2 * vectors + e];
		for (uint32_t i = first + 1; i <= last; i++) {
			float keep, add;
			p += size;
			if (!fold_factors(&m, p[v], &keep, &add))
				continue;
			l = l * keep + p[vectors + v] * add;
			o = o * keep + p[2 * vectors + e] * add;
		}
		attended(&a, &u, blockIdx.y, v)[e % a.head] = o * (l > 0 ? 1.0f / l : 0.0f);
	}
}

size_t attend_shared_bytes(enum kv_kind kv, uint32_t head, uint32_t kind, uint32_t group)
{
	if (kind == UNIT_ROW)
		return attend_row_bytes(head, group);
	return attend_tile_bytes(kv, head, attend_vectors(kind, group) <= 8 ? 8 : 32);
}

cudaError_t attend_prepare(enum kv_kind kv, uint32_t head, uint32_t group, size_t shared_most)
{
	for (uint32_t kind = 0; kind < UNIT_KINDS; kind++) {
		const bool wide = head > 256 && (group > 8 || kind == UNIT_LARGE);
		if (kind != UNIT_ROW && (kv == KV_F32 || group > 32 || wide))
			continue; /* taken by rows, or one row at a time */
		if (attend_shared_bytes(kv, head, kind, group) > shared_most)
			return cudaErrorInvalidValue;
		const cudaError_t error = kind == UNIT_ROW
						  ? attend_row_prepare(kv, head, group)
						  : attend_tile_prepare(kv, head, attend_vectors(kind, group));
		if (error != cudaSuccess)
			return error;
	}
	return cudaSuccess;
}

void attend_launch(const struct attend_args *a, enum kv_kind kv, const struct grid_of *grid,
		   cudaStream_t stream)
{
	const uint32_t group = a->heads / a->kv_heads;
	const size_t shared = attend_shared_bytes(kv, a->head, a->kind, group);
	const uint32_t z = a->partials ? grid->partitions : 1;
	if (a->kind == UNIT_ROW)
		attend_row_launch(a, kv, dim3(grid->units, a->kv_heads * ((group + 3) / 4), z), shared, stream);
	else
		attend_tile_launch(a, kv, dim3(grid->units, a->kv_heads, z), shared, stream);
	if (a->partials)
		LAUNCH(attend_merge, dim3(grid->units, a->kv_heads), dim3(ATTEND_THREADS), 0, stream, *a);
}
