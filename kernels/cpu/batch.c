/*
 * The batch block: copied, checked, then made current.
 *
 * The check is on the copy, so what was checked is what is used. A refusal leaves the batch
 * before it in place: the copy goes into the second of two rooms, and they change places at
 * the end.
 */
#include <math.h>
#include <string.h>

#include "kernels/cpu/device.h"

static size_t up_to_8(size_t x)
{
	return (x + 7) / 8 * 8;
}

size_t batch_bytes_max(const struct device_plan *p)
{
	/* Each array may be followed by padding to 8. */
	return sizeof(struct ops_batch) +
	       up_to_8((size_t)p->rows_max * sizeof(struct ops_row)) +
	       up_to_8((size_t)p->sequences_max * sizeof(struct ops_sequence)) +
	       up_to_8((size_t)p->pages_max * sizeof(struct ops_page)) +
	       up_to_8((size_t)p->samples_max * sizeof(struct ops_sample)) +
	       up_to_8(p->extra_bytes_max);
}

/* A block under check: its header and its arrays. */
struct view {
	const struct device_plan *plan;
	const uint8_t *base;
	const struct ops_batch *batch;
	const struct ops_row *rows;
	const struct ops_sequence *sequences;
	const struct ops_page *pages;
	const struct ops_sample *samples;
};

/* Whether `count` items of `size` bytes at `at` lie in the block, after the header. */
static int span_valid(const struct ops_batch *b, uint32_t at, uint32_t count, size_t size)
{
	return at % 8 == 0 && at >= sizeof *b && at <= b->bytes &&
	       count <= (b->bytes - at) / size;
}

static int header_valid(const struct ops_batch *b, const struct device_plan *p)
{
	if (b->row_count == 0 || b->row_count > p->rows_max || b->sequence_count == 0 ||
	    b->sequence_count > p->sequences_max || b->page_count > p->pages_max ||
	    b->sample_count > p->samples_max)
		return 0;
	if (!span_valid(b, b->row_at, b->row_count, sizeof(struct ops_row)) ||
	    !span_valid(b, b->sequence_at, b->sequence_count, sizeof(struct ops_sequence)))
		return 0;
	if (b->page_count &&
	    !span_valid(b, b->page_at, b->page_count, sizeof(struct ops_page)))
		return 0;
	if (b->sample_count &&
	    !span_valid(b, b->sample_at, b->sample_count, sizeof(struct ops_sample)))
		return 0;
	/* No extras may be written as 0, or as the end of the block. */
	return b->extra_at == 0 || (span_valid(b, b->extra_at, 0, 1) &&
				    b->bytes - b->extra_at <= up_to_8(p->extra_bytes_max));
}

static int rows_valid(const struct view *v, uint32_t index)
{
	const struct ops_sequence *s = &v->sequences[index];
	const uint32_t count = v->batch->row_count;
	if (s->row_count == 0 || s->row_first >= count ||
	    s->row_count > count - s->row_first)
		return 0;
	const struct ops_row *r = &v->rows[s->row_first];
	for (uint32_t i = 0; i < s->row_count; i++)
		if (r[i].sequence != index || r[i].token >= v->plan->vocab ||
		    r[i].position >= v->plan->context ||
		    r[i].position - r[0].position != i || r[i].phase > 1)
			return 0;
	return 1;
}

/* The sequence's pages of one group: within the array, of the group, and under all its
   rows. */
static int pages_valid(const struct view *v, const struct ops_sequence *s, uint32_t group)
{
	const uint32_t tokens = v->plan->page_tokens;
	const uint32_t first = s->page_first[group], count = s->page_count[group];
	if (group >= v->plan->group_count)
		return count == 0;
	if (count == 0 || first >= v->batch->page_count ||
	    count > v->batch->page_count - first || s->page_position[group] % tokens != 0)
		return 0;
	for (uint32_t i = first; i < first + count; i++)
		if (v->pages[i].group != group ||
		    v->pages[i].page >= v->plan->group[group].page_count)
			return 0;
	const uint64_t low = s->page_position[group], high = low + (uint64_t)count * tokens;
	const uint32_t position = v->rows[s->row_first].position;
	if (s->position_first > position)
		return 0;
	return low <= position && (uint64_t)position + s->row_count <= high;
}

static int sequences_valid(const struct view *v)
{
	uint64_t rows = 0;
	for (uint32_t i = 0; i < v->batch->sequence_count; i++) {
		const struct ops_sequence *s = &v->sequences[i];
		if (!rows_valid(v, i))
			return 0;
		for (uint32_t g = 0; g < OPS_GROUP_MAX; g++)
			if (!pages_valid(v, s, g))
				return 0;
		rows += s->row_count;
	}
	/* A row names one sequence, so equal numbers mean that each row is in
	   exactly one. */
	return rows == v->batch->row_count;
}

/* Negated comparisons, so that NaN is refused. */
static int between(float x, float low, float high)
{
	return x >= low && x <= high;
}

static int extra_valid(const struct view *v, uint32_t at, uint32_t count, size_t size)
{
	return v->batch->extra_at != 0 && at >= v->batch->extra_at &&
	       span_valid(v->batch, at, count, size);
}

/* Pairs {token, value}: ascending tokens of the vocabulary. */
static int pairs_valid(const struct view *v, uint32_t at, uint32_t count, int is_bias)
{
	if (count == 0)
		return 1;
	if (!extra_valid(v, at, count, 8))
		return 0;
	const uint32_t *pair = (const uint32_t *)(const void *)(v->base + at);
	for (uint32_t i = 0; i < count; i++) {
		float value;
		memcpy(&value, pair + 2 * i + 1, sizeof value);
		if (pair[2 * i] >= v->plan->vocab ||
		    (i > 0 && pair[2 * i] <= pair[2 * i - 2]))
			return 0;
		/* Minus infinity bans a token; NaN and plus infinity are nothing. */
		if (is_bias && !(value <= 3.4028234e38f))
			return 0;
	}
	return 1;
}

static int sample_valid(const struct view *v, const struct ops_sample *s)
{
	if (s->row >= v->batch->row_count || s->top_count > OPS_TOP_MAX)
		return 0;
	if (!between(s->temperature, 0, 100) || !(s->top_p > 0 && s->top_p <= 1) ||
	    !(s->min_p >= 0 && s->min_p < 1) || !(s->typical > 0 && s->typical <= 1) ||
	    !(s->repetition > 0 && s->repetition <= 1e6f) ||
	    !between(s->presence, -1e6f, 1e6f) || !between(s->frequency, -1e6f, 1e6f))
		return 0;
	if (s->mask_at && !extra_valid(v, s->mask_at, (v->plan->vocab + 31) / 32, 4))
		return 0;
	return pairs_valid(v, s->counts_at, s->count_count, 0) &&
	       pairs_valid(v, s->bias_at, s->bias_count, 1);
}

static int view_valid(const struct view *v)
{
	if (!sequences_valid(v))
		return 0;
	for (uint32_t i = 0; i < v->batch->sample_count; i++)
		if (!sample_valid(v, &v->samples[i]))
			return 0;
	return 1;
}

static void tiles_cut(struct device *d)
{
	d->tile_count = 0;
	for (uint32_t i = 0; i < d->sequence_count; i++) {
		const struct ops_sequence *s = &d->sequences[i];
		for (uint32_t at = 0; at < s->row_count;) {
			const uint32_t row = s->row_first + at;
			uint32_t n = TILE_ROWS - d->rows[row].position % TILE_ROWS;
			n = n < s->row_count - at ? n : s->row_count - at;
			d->tiles[d->tile_count++] = (struct tile){i, row, n};
			at += n;
		}
	}
}

static uint32_t is_given(const struct device *d, uint32_t row)
{
	return d->plan.prefill != PREFILL_SAME && d->rows[row].phase == 0;
}

/* Rows of one phase that follow each other, so many at most. */
static void spans_cut(struct device *d)
{
	d->span_count = 0;
	for (uint32_t at = 0, n; at < d->row_count; at += n) {
		const uint32_t given = is_given(d, at), most = given ? GIVEN_SPAN_ROWS : SPAN_ROWS;
		for (n = 1; n < most && at + n < d->row_count; n++)
			if (is_given(d, at + n) != given)
				break;
		d->spans[d->span_count++] = (struct span){at, n, given};
	}
}

static void faults_clear(struct device *d)
{
	for (uint32_t i = 0; i < d->sequence_count; i++)
		d->faults[i] = (struct ops_fault){.page = OPS_NONE};
	for (uint32_t i = 0; i < d->sample_count; i++)
		d->sampled[i] = (struct ops_sampled){.token = OPS_NONE};
}

/* Where the arrays of a block lie. */
static struct view view_of(const struct device_plan *plan, const uint8_t *block)
{
	const struct ops_batch *b = (const struct ops_batch *)(const void *)block;
	struct view v = {.plan = plan, .base = block, .batch = b};
	v.rows = (const struct ops_row *)(const void *)(block + b->row_at);
	v.sequences = (const struct ops_sequence *)(const void *)(block + b->sequence_at);
	if (b->page_count)
		v.pages = (const struct ops_page *)(const void *)(block + b->page_at);
	if (b->sample_count)
		v.samples = (const struct ops_sample *)(const void *)(block + b->sample_at);
	return v;
}

int batch_take(const struct device_plan *plan, const struct ops_batch *block, uint8_t *copy)
{
	uint32_t bytes;
	memcpy(&bytes, &block->bytes, sizeof bytes);
	if (bytes < sizeof *block || bytes > batch_bytes_max(plan))
		return -ERR_OUT_OF_RANGE;
	memcpy(copy, block, bytes);
	struct ops_batch *const b = (struct ops_batch *)(void *)copy;
	b->bytes = bytes; /* whatever the block says now */
	if (!header_valid(b, plan))
		return -ERR_OUT_OF_RANGE;
	const struct view v = view_of(plan, copy);
	return view_valid(&v) ? 0 : -ERR_OUT_OF_RANGE;
}

int cpu_batch(struct device *d, const struct ops_batch *block)
{
	uint8_t *const copy = d->block[1];
	TRY(batch_take(&d->plan, block, copy));
	const struct view v = view_of(&d->plan, copy);
	const struct ops_batch *const b = v.batch;
	d->block[1] = d->block[0];
	d->block[0] = copy;
	d->rows = v.rows;
	d->sequences = v.sequences;
	d->pages = v.pages;
	d->samples = v.samples;
	d->row_count = b->row_count;
	d->sequence_count = b->sequence_count;
	d->page_count = b->page_count;
	d->sample_count = b->sample_count;
	d->rope_count = 0;
	tiles_cut(d);
	spans_cut(d);
	faults_clear(d);
	return 0;
}
