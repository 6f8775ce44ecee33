/*
 * The builder of a step's block. The pieces are gathered in places of their own and laid into the
 * block at the end: rows, sequences, pages, samples, extra area. Until then an offset into the extra
 * area counts as if that came right after the header; batch_end moves it.
 */
#include "runtime/batch.h"

#include <stdlib.h>
#include <string.h>

_Static_assert(sizeof(struct ops_batch) % 8 == 0, "the header keeps 8-byte offsets");
_Static_assert(sizeof(struct ops_row) % 8 == 0, "rows keep 8-byte offsets");
_Static_assert(sizeof(struct ops_sequence) % 8 == 0, "sequences keep 8-byte offsets");
_Static_assert(sizeof(struct ops_page) % 8 == 0, "pages keep 8-byte offsets");
_Static_assert(sizeof(struct ops_sample) % 8 == 0, "samples keep 8-byte offsets");

struct batch_builder {
	uint32_t rows_max, sequences_max, pages_max, samples_max, extra_max; /* extra: bytes */
	uint32_t rows, sequences, pages, samples, extra;
	uint32_t group; /* of the last page of the current sequence */
	struct ops_row *row;
	struct ops_sequence *sequence;
	struct ops_page *page;
	struct ops_sample *sample;
	uint32_t *words; /* the extra area */
	struct ops_batch *block;
};

int batch_builder_open(const struct device_plan *plan, struct batch_builder **out)
{
	struct batch_builder *b = calloc(1, sizeof *b);
	if (!b)
		return -ERR_MEMORY;
	b->rows_max = plan->rows_max;
	b->sequences_max = plan->sequences_max;
	b->pages_max = plan->pages_max;
	b->samples_max = plan->samples_max;
	b->extra_max = plan->extra_bytes_max / 8 * 8;
	const size_t bytes = sizeof(struct ops_batch) + b->extra_max +
			     b->rows_max * sizeof(struct ops_row) +
			     b->sequences_max * sizeof(struct ops_sequence) +
			     b->pages_max * sizeof(struct ops_page) +
			     b->samples_max * sizeof(struct ops_sample);
	b->row = calloc(b->rows_max, sizeof *b->row);
	b->sequence = calloc(b->sequences_max, sizeof *b->sequence);
	b->page = calloc(b->pages_max, sizeof *b->page);
	b->sample = calloc(b->samples_max, sizeof *b->sample);
	b->words = calloc(1, b->extra_max + 8);
	b->block = bytes <= UINT32_MAX ? calloc(1, bytes) : NULL;
	*out = b;
	if (b->row && b->sequence && b->page && b->sample && b->words && b->block)
		return 0;
	batch_builder_close(out);
	return bytes <= UINT32_MAX ? -ERR_MEMORY : -ERR_OUT_OF_RANGE;
}

void batch_builder_close(struct batch_builder **builder)
{
	struct batch_builder *b = *builder;
	if (!b)
		return;
	free(b->row);
	free(b->sequence);
	free(b->page);
	free(b->sample);
	free(b->words);
	free(b->block);
	free(b);
	*builder = NULL;
}

void batch_begin(struct batch_builder *b)
{
	b->rows = b->sequences = b->pages = b->samples = b->extra = 0;
}

uint32_t batch_sequence(struct batch_builder *b, uint32_t slot, const uint32_t *page_position)
{
	CHECK(b->sequences < b->sequences_max);
	struct ops_sequence *s = &b->sequence[b->sequences];
	memset(s, 0, sizeof *s);
	s->slot = slot;
	s->row_first = b->rows;
	for (uint32_t g = 0; g < OPS_GROUP_MAX; g++) {
		s->page_first[g] = b->pages;
		s->page_position[g] = page_position[g];
	}
	b->group = 0;
	return b->sequences++;
}

void batch_first(struct batch_builder *b, uint32_t position)
{
	CHECK(b->sequences > 0);
	b->sequence[b->sequences - 1].position_first = position;
}

void batch_page(struct batch_builder *b, uint32_t group, uint32_t page, uint64_t tag)
{
	CHECK(b->sequences > 0);
	CHECK(b->pages < b->pages_max);
	CHECK(group < OPS_GROUP_MAX);
	CHECK(group >= b->group);
	struct ops_sequence *s = &b->sequence[b->sequences - 1];
	for (uint32_t g = b->group + 1; g <= group; g++)
		s->page_first[g] = b->pages;
	b->group = group;
	b->page[b->pages++] = (struct ops_page){.page = page, .group = group, .tag = tag};
	s->page_count[group]++;
	for (uint32_t g = group + 1; g < OPS_GROUP_MAX; g++)
		s->page_first[g] = b->pages;
}

uint32_t batch_row(struct batch_builder *b, uint32_t token, uint32_t position, uint32_t phase)
{
	CHECK(b->sequences > 0);
	CHECK(b->rows < b->rows_max);
	struct ops_sequence *s = &b->sequence[b->sequences - 1];
	if (s->row_count > 0)
		CHECK(position == b->row[b->rows - 1].position + 1);
	b->row[b->rows] = (struct ops_row){.token = token, .position = position,
					   .sequence = b->sequences - 1, .phase = phase};
	s->row_count++;
	return b->rows++;
}

struct ops_sample *batch_sample(struct batch_builder *b, uint32_t row)
{
	CHECK(row < b->rows);
	CHECK(b->samples < b->samples_max);
	struct ops_sample *s = &b->sample[b->samples++];
	*s = (struct ops_sample){.row = row, .top_p = 1, .typical = 1, .repetition = 1};
	return s;
}

uint32_t *batch_extra(struct batch_builder *b, uint32_t words, uint32_t *at)
{
	/* Each piece begins on 8 bytes, as all offsets do. */
	CHECK(words <= (b->extra_max - b->extra) / 8 * 2);
	*at = (uint32_t)sizeof(struct ops_batch) + b->extra;
	uint32_t *room = b->words + b->extra / 4;
	b->extra += (words + 1) / 2 * 8;
	if (words % 2)
		room[words] = 0;
	return room;
}

/* Copies an array behind what is in the block already. */
static uint32_t batch_lay(struct ops_batch *block, const void *array, size_t bytes)
{
	const uint32_t at = block->bytes;
	if (bytes > 0)
		memcpy((char *)block + at, array, bytes);
	block->bytes += (uint32_t)bytes;
	return at;
}

/* Offsets of what is used move behind the arrays; the builder's own samples stay as they are. */
static void batch_move(struct ops_batch *block, uint32_t by)
{
	struct ops_sample *sample = (struct ops_sample *)(void *)((char *)block + block->sample_at);
	for (uint32_t i = 0; i < block->sample_count; i++) {
		if (sample[i].mask_at)
			sample[i].mask_at += by;
		if (sample[i].count_count)
			sample[i].counts_at += by;
		if (sample[i].bias_count)
			sample[i].bias_at += by;
	}
}

const struct ops_batch *batch_end(struct batch_builder *b)
{
	struct ops_batch *block = b->block;
	*block = (struct ops_batch){
		.bytes = (uint32_t)sizeof *block,
		.row_count = b->rows,
		.sequence_count = b->sequences,
		.page_count = b->pages,
		.sample_count = b->samples,
	};
	block->row_at = batch_lay(block, b->row, b->rows * sizeof *b->row);
	block->sequence_at = batch_lay(block, b->sequence, b->sequences * sizeof *b->sequence);
	block->page_at = batch_lay(block, b->page, b->pages * sizeof *b->page);
	block->sample_at = batch_lay(block, b->sample, b->samples * sizeof *b->sample);
	block->extra_at = batch_lay(block, b->words, b->extra);
	batch_move(block, block->extra_at - (uint32_t)sizeof *block);
	return block;
}
