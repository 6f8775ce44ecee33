/*
 * Pages of the CUDA device: tags, copies and digests, on a stream of their own; events put them after
 * the step before and before the step after.
 */
#include <string.h>

#include "kernels/cuda/device.h"

/* Every operation on pages: after the step, on the stream for copies. */
static int pages_begin(struct device *d, uint32_t group, uint32_t first, uint32_t count)
{
	if (group >= d->plan.group_count || first > d->group[group].page_count ||
	    count > d->group[group].page_count - first)
		return -ERR_OUT_OF_RANGE;
	TRY(step_flush(d));
	CUDA_TRY(d, cudaEventRecord(d->stepped, d->step));
	CUDA_TRY(d, cudaStreamWaitEvent(d->copy, d->stepped, 0));
	return 0;
}

static int pages_end(struct device *d)
{
	CUDA_TRY(d, cudaStreamSynchronize(d->copy));
	return 0;
}

/* For what need not be waited for: the next step comes after it. */
static int pages_order(struct device *d)
{
	CUDA_TRY(d, cudaEventRecord(d->copied, d->copy));
	CUDA_TRY(d, cudaStreamWaitEvent(d->step, d->copied, 0));
	return 0;
}

static uint8_t *page_at(const struct device *d, uint32_t group, uint32_t page)
{
	return d->group[group].pages + d->group[group].page_bytes * page;
}

int cuda_page_tags_set(struct device *d, uint32_t group, uint32_t page_first, uint32_t page_count,
			      uint64_t tag_first)
{
	TRY(pages_begin(d, group, page_first, page_count));
	uint64_t *const room = reinterpret_cast<uint64_t *>(d->page_room);
	const uint32_t most = (uint32_t)(d->page_room_bytes / sizeof *room);
	for (uint32_t done = 0; done < page_count;) {
		const uint32_t n = page_count - done < most ? page_count - done : most;
		for (uint32_t i = 0; i < n; i++)
			room[i] = tag_first + done + i;
		CUDA_TRY(d, cudaMemcpyAsync(d->group[group].tags + page_first + done, room, n * sizeof *room,
					    cudaMemcpyHostToDevice, d->copy));
		TRY(pages_end(d));
		done += n;
	}
	return 0;
}

int cuda_page_tag(struct device *d, uint32_t group, uint32_t page, uint64_t *tag)
{
	TRY(pages_begin(d, group, page, 1));
	CUDA_TRY(d, cudaMemcpyAsync(d->page_room, d->group[group].tags + page, sizeof *tag,
				    cudaMemcpyDeviceToHost, d->copy));
	TRY(pages_end(d));
	memcpy(tag, d->page_room, sizeof *tag);
	return 0;
}

int cuda_page_clear(struct device *d, uint32_t group, uint32_t page_first, uint32_t page_count)
{
	TRY(pages_begin(d, group, page_first, page_count));
	CUDA_TRY(d, cudaMemsetAsync(page_at(d, group, page_first), 0, d->group[group].page_bytes * page_count,
				    d->copy));
	return pages_order(d);
}

int cuda_page_copy(struct device *d, uint32_t group, uint32_t from, uint32_t to)
{
	TRY(pages_begin(d, group, from, 1));
	TRY(pages_begin(d, group, to, 1));
	if (from != to)
		CUDA_TRY(d, cudaMemcpyAsync(page_at(d, group, to), page_at(d, group, from),
					    d->group[group].page_bytes, cudaMemcpyDeviceToDevice, d->copy));
	return pages_order(d);
}

/* Whether the driver can copy there and from there by itself. */
static bool is_pinned(const struct device *d, const void *at, uint64_t bytes)
{
	const uint8_t *const p = static_cast<const uint8_t *>(at);
	return d->pinned && p >= d->pinned && p < d->pinned + d->pinned_bytes &&
	       bytes <= (uint64_t)(d->pinned + d->pinned_bytes - p);
}

int cuda_page_read(struct device *d, uint32_t group, uint32_t page, void *to)
{
	TRY(pages_begin(d, group, page, 1));
	const uint64_t bytes = d->group[group].page_bytes;
	const bool straight = is_pinned(d, to, bytes);
	CUDA_TRY(d, cudaMemcpyAsync(straight ? to : d->page_room, page_at(d, group, page), bytes,
				    cudaMemcpyDeviceToHost, d->copy));
	TRY(pages_end(d));
	if (!straight)
		memcpy(to, d->page_room, bytes);
	return 0;
}

int cuda_page_write(struct device *d, uint32_t group, uint32_t page, const void *from)
{
	TRY(pages_begin(d, group, page, 1));
	const uint64_t bytes = d->group[group].page_bytes;
	const bool straight = is_pinned(d, from, bytes);
	if (!straight)
		memcpy(d->page_room, from, bytes);
	CUDA_TRY(d, cudaMemcpyAsync(page_at(d, group, page), straight ? from : d->page_room, bytes,
				    cudaMemcpyHostToDevice, d->copy));
	return pages_end(d);
}

/* A driver that refuses leaves the device as it was. */
int cuda_host_pin(struct device *d, void *memory, size_t bytes)
{
	if (d->lost)
		return -ERR_INTERNAL;
	if (d->pinned)
		return -ERR_BAD_ARG;
	if (cudaSetDevice((int)d->plan.gpu) != cudaSuccess)
		return -ERR_INTERNAL;
	if (cudaHostRegister(memory, bytes, cudaHostRegisterDefault) != cudaSuccess) {
		cudaGetLastError();
		return -ERR_MEMORY;
	}
	d->pinned = static_cast<uint8_t *>(memory);
	d->pinned_bytes = bytes;
	return 0;
}

/* ---- digests ---- */

/* Of so many as there is room for; only they come back. */
static int digests_run(struct device *d, struct ops_digest *list, uint32_t count)
{
	const struct device_plan *p = &d->plan;
	struct digest_page *const room = reinterpret_cast<struct digest_page *>(d->page_room);
	TRY(pages_begin(d, list[0].group, list[0].page, 1));
	memset(room, 0, count * sizeof *room);
	for (uint32_t i = 0; i < count; i++) {
		room[i].page = page_at(d, list[i].group, list[i].page);
		room[i].scales = page_place_of(p, list[i].group, 0, 0).scales;
		room[i].blocks = page_blocks(p, list[i].group);
		room[i].tokens = list[i].tokens;
	}
	const struct digest_args a = {d->digest_list, d->digests, page_place_of(p, 0, 0, 0).block_bytes,
				      d->blocks_most, p->head, kv_value_bytes(p->kv), kv_scale_lines(p),
				      p->page_tokens};
	CUDA_TRY(d, cudaMemcpyAsync(d->digest_list, room, count * sizeof *room, cudaMemcpyHostToDevice, d->copy));
	digest_launch(&a, count, d->copy);
	CUDA_TRY(d, cudaGetLastError());
	CUDA_TRY(d, cudaMemcpyAsync(room, d->digest_list, count * sizeof *room, cudaMemcpyDeviceToHost, d->copy));
	TRY(pages_end(d));
	for (uint32_t i = 0; i < count; i++)
		memcpy(list[i].digest, room[i].digest, sizeof list[i].digest);
	return 0;
}

int cuda_page_digests(struct device *d, struct ops_digest *list, uint32_t count)
{
	for (uint32_t i = 0; i < count; i++)
		if (list[i].group >= d->plan.group_count || list[i].page >= d->group[list[i].group].page_count ||
		    list[i].tokens > d->plan.page_tokens)
			return -ERR_OUT_OF_RANGE;
	for (uint32_t done = 0; done < count; done += DIGESTS_MAX)
		TRY(digests_run(d, list + done, count - done < DIGESTS_MAX ? count - done : (uint32_t)DIGESTS_MAX));
	return 0;
}
