/*
 * One device of all ranks. What is asked of it on rank 0 is told to the others by one message, and then
 * done everywhere: pages and tags by the same call, a batch as a whole step. So the tables of pages and
 * the tags beside them are the same on each rank. A page that is read is the ranks' pieces one after
 * another; its digest is one over the digests of the pieces.
 */
#include <sodium.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/ranks_inside.h"

enum message_kind {
	SAY_STEP = 1, SAY_TAGS, SAY_CLEAR, SAY_COPY, SAY_READ, SAY_WRITE, SAY_DIGESTS, SAY_END
};

enum { DIGESTS_MAX = 32 }; /* of one message */

struct message {
	uint32_t kind, group, page, count; /* count: pages, the page to copy to, digests, a block's bytes */
	uint64_t tag;
};

struct device {
	struct ranks *ranks;
	const struct ops *ops;
	struct device *inner;
	uint64_t piece_bytes[OPS_GROUP_MAX]; /* this rank's of a page */
	uint32_t group_count;
	uint8_t *page; /* room for a whole page */
};

static struct ranks *ranks_of(const struct device_plan *plan)
{
	return plan->collective->self;
}

static int tell(struct device *d, uint32_t kind, uint32_t group, uint32_t page, uint32_t count, uint64_t tag)
{
	struct ranks *r = d->ranks;
	struct message m = {kind, group, page, count, tag};
	return r->rank == 0 ? r->collective.broadcast(r, &m, sizeof m) : 0;
}

static int all_device_needs(const struct device_plan *plan, struct device_needs *out)
{
	const struct ranks *r = ranks_of(plan);
	struct split one = r->split;
	*out = (struct device_needs){0};
	for (one.rank = 0; one.rank < one.ranks; one.rank++) {
		struct device_plan own;
		struct device_needs needs;
		split_plan(&one, plan, &own);
		TRY(r->inner->device_needs(&own, &needs));
		out->workspace_bytes += needs.workspace_bytes;
		out->slab_bytes += needs.slab_bytes;
	}
	return 0;
}

/* One that lives and does not answer keeps nobody. */
static void patience(struct ranks *r)
{
	const uint32_t ms = r->goodbye_ms ? r->goodbye_ms : RANKS_GOODBYE_MS;
	stream_patience(r, ms);
	room_patience(r, ms);
}

/* Goodbye: who was told of the end leaves when all have closed. A device asks, while it closes, whether all
   live, and one that left first would look like one that is lost. */
static void all_device_close(struct device **device)
{
	struct device *d = *device;
	if (!d)
		return;
	struct ranks *const r = d->ranks;
	uint8_t here = 1, all[SPLIT_RANKS_MAX];
	/* The others may be gone already: then nobody hears it. */
	if (r->ready && r->rank == 0) {
		patience(r);
		r->ending = tell(d, SAY_END, 0, 0, 0, 0) == 0;
		r->late = !r->ending;
	}
	if (d->inner)
		d->ops->device_close(&d->inner);
	if (r->ready)
		patience(r); /* anew: the device took its time; of one that did not open the others are yet to hear */
	if (r->ending && r->collective.gather(r, &here, sizeof here, all) != 0)
		r->late = true;
	free(d->page);
	free(d);
	*device = NULL;
}

static int all_device_open(const struct device_plan *plan, struct device **out)
{
	struct ranks *r = ranks_of(plan);
	struct device_plan own;
	struct device *d = calloc(1, sizeof *d);
	uint64_t most = 1;
	if (!d)
		return -ERR_MEMORY;
	split_plan(&r->split, plan, &own);
	d->ranks = r;
	d->ops = r->inner;
	d->group_count = own.group_count;
	for (uint32_t g = 0; g < own.group_count; g++) {
		d->piece_bytes[g] = ops_page_bytes(own.kv, own.group[g].layers, own.kv_heads, own.head,
						   own.page_tokens);
		most = d->piece_bytes[g] > most ? d->piece_bytes[g] : most;
	}
	d->page = malloc(most * r->count);
	int code = d->page ? r->inner->device_open(&own, &d->inner) : -ERR_MEMORY;
	*out = d;
	if (code != 0)
		all_device_close(out);
	return code;
}

static const char *all_device_isa(const struct device *d)
{
	return d->ops->device_isa(d->inner);
}

static enum act_kind all_device_act(const struct device *d)
{
	return d->ops->device_act(d->inner);
}

static uint32_t all_device_threads(const struct device *d)
{
	return d->ops->device_threads(d->inner);
}

/* Each has as much beside it as this one. */
static uint64_t all_device_beside(const struct device *d)
{
	return d->ranks->count * d->ops->device_beside(d->inner);
}

static int all_weight_make(struct device *d, uint32_t type, enum weight_use use, uint32_t rows,
			   uint32_t columns, const void *data, struct weight **out)
{
	return d->ops->weight_make(d->inner, type, use, rows, columns, data, out);
}

static void all_weight_free(struct device *d, struct weight **weight)
{
	d->ops->weight_free(d->inner, weight);
}

static int all_weight_rows(struct device *d, const struct weight *w, uint32_t row_first, uint32_t row_count,
			   float *out)
{
	return d->ops->weight_rows(d->inner, w, row_first, row_count, out);
}

static int all_buffer_write(struct device *d, enum ops_buffer buffer, size_t offset, size_t count,
			    const float *from)
{
	return d->ops->buffer_write(d->inner, buffer, offset, count, from);
}

static int all_buffer_read(struct device *d, enum ops_buffer buffer, size_t offset, size_t count, float *to)
{
	return d->ops->buffer_read(d->inner, buffer, offset, count, to);
}

/* Checked here first: a block that is refused is never told. */
static int all_batch(struct device *d, const struct ops_batch *block)
{
	struct ranks *r = d->ranks;
	const uint32_t bytes = block->bytes;
	TRY(d->ops->batch(d->inner, block));
	if (r->rank != 0)
		return 0;
	/* The collective takes bytes that it may write; on rank 0 it only reads them. */
	uint8_t *room;
	TRY(tell(d, SAY_STEP, 0, 0, bytes, 0));
	memcpy(&room, &block, sizeof room);
	return r->collective.broadcast(r, room, bytes);
}

static int all_tag_check(struct device *d)
{
	return d->ops->tag_check(d->inner);
}

static int all_tag_skip(struct device *d)
{
	return d->ops->tag_skip(d->inner);
}

static int all_embed(struct device *d, const struct weight *embedding, float scale)
{
	return d->ops->embed(d->inner, embedding, scale);
}

static int all_qkv(struct device *d, const struct ops_layer *layer)
{
	return d->ops->qkv(d->inner, layer);
}

static int all_rope_write(struct device *d, const struct ops_layer *layer)
{
	return d->ops->rope_write(d->inner, layer);
}

static int all_attend(struct device *d, const struct ops_layer *layer)
{
	return d->ops->attend(d->inner, layer);
}

static int all_output(struct device *d, const struct ops_layer *layer)
{
	return d->ops->output(d->inner, layer);
}

static int all_gate_up(struct device *d, const struct ops_layer *layer)
{
	return d->ops->gate_up(d->inner, layer);
}

static int all_down(struct device *d, const struct ops_layer *layer)
{
	return d->ops->down(d->inner, layer);
}

static int all_head(struct device *d, const struct weight *norm, float epsilon, const struct weight *head,
		    float softcap)
{
	return d->ops->head(d->inner, norm, epsilon, head, softcap);
}

static int all_sample(struct device *d)
{
	return d->ops->sample(d->inner);
}

static int all_wait(struct device *d, struct ops_sampled *sampled, struct ops_fault *faults)
{
	return d->ops->wait(d->inner, sampled, faults);
}

static int all_page_tags_set(struct device *d, uint32_t group, uint32_t page_first, uint32_t page_count,
			     uint64_t tag_first)
{
	TRY(d->ops->page_tags_set(d->inner, group, page_first, page_count, tag_first));
	return tell(d, SAY_TAGS, group, page_first, page_count, tag_first);
}

static int all_page_tag(struct device *d, uint32_t group, uint32_t page, uint64_t *tag)
{
	return d->ops->page_tag(d->inner, group, page, tag);
}

static int all_page_clear(struct device *d, uint32_t group, uint32_t page_first, uint32_t page_count)
{
	TRY(d->ops->page_clear(d->inner, group, page_first, page_count));
	return tell(d, SAY_CLEAR, group, page_first, page_count, 0);
}

static int all_page_copy(struct device *d, uint32_t group, uint32_t from, uint32_t to)
{
	TRY(d->ops->page_copy(d->inner, group, from, to));
	return tell(d, SAY_COPY, group, from, to, 0);
}

static uint8_t *piece_at(const struct device *d, uint32_t group, uint32_t rank)
{
	return d->page + d->piece_bytes[group] * rank;
}

static int all_page_read(struct device *d, uint32_t group, uint32_t page, void *to)
{
	struct ranks *r = d->ranks;
	uint8_t *const mine = d->page;
	TRY(d->ops->page_read(d->inner, group, page, mine));
	TRY(tell(d, SAY_READ, group, page, 0, 0));
	if (r->rank == 0)
		return r->collective.gather(r, mine, d->piece_bytes[group], to);
	uint8_t *const all = malloc(d->piece_bytes[group] * r->count);
	if (!all)
		return -ERR_MEMORY;
	const int code = r->collective.gather(r, mine, d->piece_bytes[group], all);
	free(all);
	return code;
}

static int all_page_write(struct device *d, uint32_t group, uint32_t page, const void *from)
{
	struct ranks *r = d->ranks;
	uint64_t tag;
	TRY(d->ops->page_tag(d->inner, group, page, &tag)); /* whether there is such a page */
	const size_t bytes = d->piece_bytes[group] * r->count;
	if (r->rank == 0)
		memcpy(d->page, from, bytes);
	TRY(tell(d, SAY_WRITE, group, page, 0, 0));
	TRY(r->collective.broadcast(r, d->page, bytes));
	return d->ops->page_write(d->inner, group, page, piece_at(d, group, r->rank));
}

/* The list goes round in pieces, so that nobody needs room for one of any length. */
static int digests_of(struct device *d, struct ops_digest *list, uint32_t count)
{
	struct ranks *r = d->ranks;
	uint64_t mine[DIGESTS_MAX][2], all[SPLIT_RANKS_MAX][DIGESTS_MAX][2], one[SPLIT_RANKS_MAX][2];
	/* On rank 0 first: a list that is refused is never told. */
	if (r->rank == 0)
		TRY(d->ops->page_digests(d->inner, list, count));
	TRY(tell(d, SAY_DIGESTS, 0, 0, count, 0));
	TRY(r->collective.broadcast(r, list, count * sizeof *list));
	if (r->rank != 0)
		TRY(d->ops->page_digests(d->inner, list, count));
	for (uint32_t i = 0; i < count; i++)
		memcpy(mine[i], list[i].digest, sizeof mine[i]);
	TRY(r->collective.gather(r, mine, count * sizeof mine[0], all));
	const uint64_t(*const found)[2] = (const uint64_t(*)[2])all;
	for (uint32_t i = 0; i < count; i++) {
		for (uint32_t rank = 0; rank < r->count; rank++)
			memcpy(one[rank], found[rank * count + i], sizeof one[0]);
		crypto_generichash((uint8_t *)list[i].digest, sizeof one[0], (const uint8_t *)one,
				   r->count * sizeof one[0], NULL, 0);
	}
	return 0;
}

static int all_page_digests(struct device *d, struct ops_digest *list, uint32_t count)
{
	for (uint32_t done = 0; done < count; done += DIGESTS_MAX)
		TRY(digests_of(d, list + done, count - done < DIGESTS_MAX ? count - done : DIGESTS_MAX));
	return 0;
}

/* A page comes out of the collective's memory. */
static int all_host_pin(struct device *d, void *memory, size_t bytes)
{
	(void)d;
	(void)memory;
	(void)bytes;
	return 0;
}

const struct ops *ranks_ops(struct ranks *ranks, const struct split *split, const struct ops *inner)
{
	struct ops *t = &ranks->table;
	ranks->split = *split;
	ranks->inner = inner;
	*t = *inner; /* weight_bytes and weight_needs know no device */
	t->device_needs = all_device_needs;
	t->device_open = all_device_open;
	t->device_close = all_device_close;
	t->device_isa = all_device_isa;
	t->device_act = all_device_act;
	t->device_threads = all_device_threads;
	t->device_beside = all_device_beside;
	t->weight_make = all_weight_make;
	t->weight_free = all_weight_free;
	t->weight_rows = all_weight_rows;
	t->buffer_write = all_buffer_write;
	t->buffer_read = all_buffer_read;
	t->batch = all_batch;
	t->tag_check = all_tag_check;
	t->tag_skip = all_tag_skip;
	t->embed = all_embed;
	t->qkv = all_qkv;
	t->rope_write = all_rope_write;
	t->attend = all_attend;
	t->output = all_output;
	t->gate_up = all_gate_up;
	t->down = all_down;
	t->head = all_head;
	t->sample = all_sample;
	t->wait = all_wait;
	t->page_tags_set = all_page_tags_set;
	t->page_tag = all_page_tag;
	t->page_clear = all_page_clear;
	t->page_copy = all_page_copy;
	t->page_read = all_page_read;
	t->page_write = all_page_write;
	t->page_digests = all_page_digests;
	t->host_pin = all_host_pin;
	return t;
}

static int block_take(struct ranks *r, uint32_t bytes, const struct ops_batch **block)
{
	if (bytes < sizeof **block || bytes > INT32_MAX)
		return -ERR_OUT_OF_RANGE;
	if (bytes > r->block_bytes) {
		uint8_t *room = realloc(r->block, 2 * (size_t)bytes);
		if (!room)
			return -ERR_MEMORY;
		r->block = room;
		r->block_bytes = 2 * (size_t)bytes;
	}
	TRY(r->collective.broadcast(r, r->block, bytes));
	*block = (const struct ops_batch *)(const void *)r->block;
	return 0;
}

static int message_do(struct device *d, const struct message *m)
{
	struct ops_digest list[DIGESTS_MAX];
	switch (m->kind) {
	case SAY_TAGS: return all_page_tags_set(d, m->group, m->page, m->count, m->tag);
	case SAY_CLEAR: return all_page_clear(d, m->group, m->page, m->count);
	case SAY_COPY: return all_page_copy(d, m->group, m->page, m->count);
	case SAY_READ: return all_page_read(d, m->group, m->page, NULL);
	case SAY_WRITE: return all_page_write(d, m->group, m->page, NULL);
	case SAY_DIGESTS: return m->count <= DIGESTS_MAX ? digests_of(d, list, m->count) : -ERR_OUT_OF_RANGE;
	default: return -ERR_BAD_TYPE;
	}
}

int ranks_next(struct ranks *r, struct device *d, const struct ops_batch **block)
{
	struct message m;
	TRY(r->collective.broadcast(r, &m, sizeof m));
	if (m.kind == SAY_END) {
		r->ending = true;
		return RANKS_END;
	}
	if (m.kind == SAY_STEP) {
		TRY(block_take(r, m.count, block));
		return RANKS_STEP;
	}
	/* It was done on rank 0: what is not done here makes this rank another. */
	TRY(message_do(d, &m));
	return RANKS_DONE;
}
