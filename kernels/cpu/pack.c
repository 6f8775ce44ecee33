/*
 * Weights into memory: aligned, in the order that the leaves read them (cpu.h).
 */
#define _GNU_SOURCE
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "kernels/cpu/block.h"
#include "kernels/cpu/device.h"
#include "kernels/cpu/math.h"
#include "kernels/cpu/nodes.h"
#include "kernels/quant.h"

#define HUGE_BYTES ((size_t)2 << 20)
#define SPARE_BYTES 64

/* The address sanitizer watches only what comes from its own allocator. */
#if defined(__SANITIZE_ADDRESS__)
#define WATCHED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define WATCHED 1
#endif
#endif

#ifdef WATCHED
void *memory_take(size_t bytes)
{
	void *p = NULL;
	if (posix_memalign(&p, 64, bytes + SPARE_BYTES) != 0)
		return NULL;
	return memset(p, 0, bytes + SPARE_BYTES);
}

void memory_give(void *memory, size_t bytes)
{
	(void)bytes;
	free(memory);
}
#else
/* Anonymous mappings: zeroed by the kernel, and not resident until they are touched. */
static size_t mapped_bytes(size_t bytes)
{
	return (bytes + SPARE_BYTES + 4095) / 4096 * 4096;
}

void *memory_take(size_t bytes)
{
	if (bytes > SIZE_MAX / 2)
		return NULL;
	const size_t size = mapped_bytes(bytes);
	const size_t extra = size >= HUGE_BYTES ? HUGE_BYTES : 0;
	uint8_t *p = mmap(NULL, size + extra, PROT_READ | PROT_WRITE,
			  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (p == MAP_FAILED)
		return NULL;
	if (!extra)
		return p;
	/* Keep the aligned part, give back what is before and behind it. */
	uint8_t *const at = p + (HUGE_BYTES - (uintptr_t)p % HUGE_BYTES) % HUGE_BYTES;
	if (at > p)
		munmap(p, (size_t)(at - p));
	if (at + size < p + size + extra)
		munmap(at + size, (size_t)(p + size + extra - (at + size)));
	madvise(at, size / HUGE_BYTES * HUGE_BYTES, MADV_HUGEPAGE);
	const uint64_t nodes = nodes_read(NODES_PATH);
	if (nodes & (nodes - 1)) /* more than one */
		(void)nodes_spread(nodes, at, size);
	return at;
}

void memory_give(void *memory, size_t bytes)
{
	if (memory)
		munmap(memory, mapped_bytes(bytes));
}
#endif

#define CHUNK_BYTES ((size_t)32 << 20)

/* Room for a weight in a chunk that has it, or in a new one; aligned to 64, zeroed. */
static int chunk_take(struct chunk **chunks, struct weight *w)
{
	const size_t bytes = (w->bytes + SPARE_BYTES + 63) / 64 * 64;
	struct chunk *c = *chunks;
	while (c && c->bytes - c->used < bytes)
		c = c->next;
	if (!c) {
		c = calloc(1, sizeof *c);
		if (!c)
			return -ERR_MEMORY;
		c->bytes = bytes > CHUNK_BYTES ? bytes : CHUNK_BYTES;
		c->at = memory_take(c->bytes);
		if (!c->at) {
			free(c);
			return -ERR_MEMORY;
		}
		c->next = *chunks;
		*chunks = c;
	}
	w->data = c->at + c->used;
	w->chunk = c;
	c->used += bytes;
	c->weights++;
	return 0;
}

static void chunk_free(struct chunk *c)
{
	memory_give(c->at, c->bytes);
	free(c);
}

void chunks_free(struct chunk **chunks)
{
	while (*chunks) {
		struct chunk *const c = *chunks;
		*chunks = c->next;
		chunk_free(c);
	}
}

void pack_free(struct chunk **chunks, struct weight *w)
{
	if (!w)
		return;
	pack_free(chunks, w->given);
	if (!w->chunk) {
		memory_give(w->data, w->bytes);
	} else if (--w->chunk->weights == 0) {
		while (*chunks != w->chunk)
			chunks = &(*chunks)->next;
		*chunks = w->chunk->next;
		chunk_free(w->chunk);
	}
	free(w);
}

static void row_pack(const struct weight *w, uint32_t row, const uint8_t *from)
{
	const uint32_t r = row % PACK_ROWS, elements = weight_type_elements(w->type);
	const uint32_t step = elements < 32 ? 32 : elements;
	const size_t from_bytes = (size_t)step / elements * weight_type_bytes(w->type);
	const size_t to_bytes = (size_t)pack_block_bytes(w->pack) * (step / 32);
	uint8_t *to = w->data + (size_t)(row / PACK_ROWS) * w->group_bytes;

	for (uint32_t k = 0; k < w->columns; k += step, from += from_bytes, to += to_bytes)
		pack_block(w, from, w->columns - k, r, to);
}

/* Rows that pad the last group: zero weights, which for PACK_Q8 are bytes of 128. */
static void pad_rows(const struct weight *w)
{
	const uint32_t used = w->rows % PACK_ROWS;
	if (used == 0 || w->pack != PACK_Q8)
		return;
	uint8_t *to = w->data + (size_t)(w->rows / PACK_ROWS) * w->group_bytes;
	for (uint32_t k = 0; k < w->columns; k += 32, to += 544)
		for (uint32_t g = 0; g < 8; g++)
			memset(to + 32 + 64 * g + 4 * used, 128, 4 * (PACK_ROWS - used));
}

static enum pack pack_of(uint32_t type, enum weight_use use)
{
	if (use == WEIGHT_LOOKUP || use == WEIGHT_VECTOR)
		return PACK_RAW;
	return weight_pack(type);
}

static void sizes_set(struct weight *w, enum weight_use use)
{
	const size_t blocks = (w->columns + 31) / 32;
	const size_t groups = ((size_t)w->rows + PACK_ROWS - 1) / PACK_ROWS;
	w->pack = pack_of(w->type, use);
	w->zero = pack_zero(w->type);
	w->row_bytes = (size_t)w->columns / weight_type_elements(w->type) *
		       weight_type_bytes(w->type);
	if (w->pack == PACK_RAW) {
		w->bytes = w->rows * w->row_bytes;
		return;
	}
	w->group_bytes = blocks * pack_block_bytes(w->pack);
	w->bytes = groups * w->group_bytes;
}

uint64_t pack_bytes(uint32_t type, enum weight_use use, uint32_t rows, uint32_t columns)
{
	if (weight_type_elements(type) == 0)
		return 0;
	struct weight w = {.type = use == WEIGHT_VECTOR ? TYPE_F32 : type, .rows = rows,
			   .columns = columns};
	sizes_set(&w, use);
	return w.bytes;
}

/* Of a group; 0 where the columns can have no copy: whole tiles, and integer sums that fit 32 bits. */
static size_t given_group_bytes(enum prefill_kind kind, uint32_t columns)
{
	if (kind == PREFILL_INT8 && columns % 64 == 0 && columns <= GIVEN_COLUMNS_MAX)
		return PACK_ROWS * sizeof(float) + (size_t)columns * PACK_ROWS;
	if (kind == PREFILL_BF16 && columns % 32 == 0)
		return (size_t)columns * PACK_ROWS * sizeof(uint16_t);
	return 0;
}

uint64_t given_bytes(enum prefill_kind kind, uint32_t type, uint32_t rows, uint32_t columns)
{
	if (weight_type_elements(type) == 0)
		return 0;
	return ((uint64_t)rows + PACK_ROWS - 1) / PACK_ROWS * given_group_bytes(kind, columns);
}

/* One row of f32 values into a PACK_BF16. */
static void given_row_bf16(const struct weight *w, uint32_t row, const float *x)
{
	uint8_t *line = w->data + row / PACK_ROWS * w->group_bytes + row % PACK_ROWS * 4;
	for (uint32_t k = 0; k < w->columns; k += 2, line += 4 * PACK_ROWS) {
		const uint16_t pair[2] = {bf16_normal(x[k]), bf16_normal(x[k + 1])};
		memcpy(line, pair, sizeof pair);
	}
}

/* One row of f32 values into a PACK_I8. */
static void given_row_i8(const struct weight *w, uint32_t row, const float *x)
{
	uint8_t *const group = w->data + row / PACK_ROWS * w->group_bytes;
	float largest = 0;
	for (uint32_t k = 0; k < w->columns; k++)
		largest = fabsf(x[k]) > largest ? fabsf(x[k]) : largest;
	float d = largest / 127.0f, inverse = 1.0f / d;
	if (!(inverse <= 3.4028234e38f))
		d = inverse = 0;
	memcpy(group + row % PACK_ROWS * sizeof d, &d, sizeof d);
	uint8_t *line = group + PACK_ROWS * sizeof d + row % PACK_ROWS * 4;
	for (uint32_t k = 0; k < w->columns; k += 4, line += 4 * PACK_ROWS)
		for (uint32_t j = 0; j < 4; j++) {
			const int q = (int)lrintf(x[k + j] * inverse);
			line[j] = (uint8_t)((q > 127 ? 127 : q < -127 ? -127 : q) + 128);
		}
}

int given_make(enum prefill_kind kind, struct chunk **chunks, struct weight *w, const void *data)
{
	if (given_group_bytes(kind, w->columns) == 0)
		return 0;
	struct weight *g = calloc(1, sizeof *g);
	float *row = malloc(w->columns * sizeof *row);
	if (!g || !row)
		goto out;
	g->type = w->type;
	g->pack = kind == PREFILL_INT8 ? PACK_I8 : PACK_BF16;
	g->rows = w->rows;
	g->columns = w->columns;
	g->group_bytes = given_group_bytes(kind, w->columns);
	g->bytes = given_bytes(kind, w->type, w->rows, w->columns);
	if (chunks)
		chunk_take(chunks, g);
	else
		g->data = memory_take(g->bytes);
	if (!g->data)
		goto out;
	/* Rows that pad the last group: any number will do. */
	memset(g->data, kind == PREFILL_INT8 ? 128 : 0, g->bytes);
	for (uint32_t i = 0; i < w->rows; i++) {
		quant_decode(w->type, (const uint8_t *)data + i * w->row_bytes, w->columns, row);
		(kind == PREFILL_INT8 ? given_row_i8 : given_row_bf16)(g, i, row);
	}
	free(row);
	w->given = g;
	return 0;
out:
	free(row);
	free(g);
	return -ERR_MEMORY;
}

int pack_make(struct chunk **chunks, uint32_t type, enum weight_use use, uint32_t rows,
	      uint32_t columns, const void *data, struct weight **out)
{
	const uint32_t elements = weight_type_elements(type);
	if (elements == 0)
		return -ERR_UNSUPPORTED;
	if (use == WEIGHT_VECTOR && elements != 1)
		return -ERR_UNSUPPORTED;
	if (rows == 0 || columns == 0 || columns % elements != 0 || rows > 1u << 28 ||
	    columns > 1u << 28 || (use == WEIGHT_VECTOR && rows != 1))
		return -ERR_OUT_OF_RANGE;
	TRY(quant_check(type, data, (size_t)rows * columns));
	struct weight *w = calloc(1, sizeof *w);
	if (!w)
		return -ERR_MEMORY;
	w->type = use == WEIGHT_VECTOR ? TYPE_F32 : type;
	w->rows = rows;
	w->columns = columns;
	sizes_set(w, use);
	if (!chunks)
		w->data = memory_take(w->bytes);
	if (chunks ? chunk_take(chunks, w) != 0 : !w->data) {
		free(w);
		return -ERR_MEMORY;
	}
	if (use == WEIGHT_VECTOR)
		quant_decode(type, data, columns, (float *)(void *)w->data);
	else if (w->pack == PACK_RAW)
		memcpy(w->data, data, w->bytes);
	else
		for (uint32_t row = 0; row < rows; row++)
			row_pack(w, row, (const uint8_t *)data + row * w->row_bytes);
	pad_rows(w);
	*out = w;
	return 0;
}
