/*
 * Pages and tags: assignment, comparison, copies, digests.
 */
#include <sodium.h>
#include <string.h>

#include "kernels/cpu/device.h"

/* A sequence that is at fault anywhere is at fault everywhere: else a rank would add what it read to
   what another one left out. The lowest rank's word is taken. */
static int faults_share(struct device *d)
{
	const struct collective *c = d->plan.collective;
	const size_t count = d->sequence_count;
	TRY(c->gather(c->self, d->faults, count * sizeof *d->faults, d->fault_all));
	for (size_t i = 0; i < count; i++)
		for (uint32_t r = d->plan.ranks; r-- > 0;)
			if (d->fault_all[r * count + i].page != OPS_NONE)
				d->faults[i] = d->fault_all[r * count + i];
	return 0;
}

int cpu_tag_check(struct device *d)
{
	for (uint32_t i = 0; i < d->sequence_count; i++) {
		const struct ops_sequence *s = &d->sequences[i];
		for (uint32_t g = 0; g < d->plan.group_count; g++) {
			const struct ops_page *p = d->pages + s->page_first[g];
			for (uint32_t j = 0; j < s->page_count[g]; j++) {
				const uint64_t found = d->group[g].tags[p[j].page];
				if (found == p[j].tag || d->faults[i].page != OPS_NONE)
					continue;
				d->faults[i] = (struct ops_fault){p[j].page, g, found};
			}
		}
	}
	return d->plan.ranks > 1 ? faults_share(d) : 0;
}

int cpu_tag_skip(struct device *d)
{
	(void)d;
	return 0;
}

static int pages_check(const struct device *d, uint32_t group, uint32_t first,
		       uint32_t count)
{
	if (group >= d->plan.group_count || first > d->group[group].page_count ||
	    count > d->group[group].page_count - first)
		return -ERR_OUT_OF_RANGE;
	return 0;
}

static uint8_t *page_at(const struct device *d, uint32_t group, uint32_t page)
{
	return d->group[group].pages + d->group[group].page_bytes * page;
}

int cpu_page_tags_set(struct device *d, uint32_t group, uint32_t page_first,
		      uint32_t page_count, uint64_t tag_first)
{
	TRY(pages_check(d, group, page_first, page_count));
	for (uint32_t i = 0; i < page_count; i++)
		d->group[group].tags[page_first + i] = tag_first + i;
	return 0;
}

int cpu_page_tag(struct device *d, uint32_t group, uint32_t page, uint64_t *tag)
{
	TRY(pages_check(d, group, page, 1));
	*tag = d->group[group].tags[page];
	return 0;
}

int cpu_page_clear(struct device *d, uint32_t group, uint32_t page_first,
		   uint32_t page_count)
{
	TRY(pages_check(d, group, page_first, page_count));
	memset(page_at(d, group, page_first), 0, d->group[group].page_bytes * page_count);
	return 0;
}

int cpu_page_copy(struct device *d, uint32_t group, uint32_t from, uint32_t to)
{
	TRY(pages_check(d, group, from, 1));
	TRY(pages_check(d, group, to, 1));
	if (from != to)
		memcpy(page_at(d, group, to), page_at(d, group, from),
		       d->group[group].page_bytes);
	return 0;
}

int cpu_page_read(struct device *d, uint32_t group, uint32_t page, void *to)
{
	TRY(pages_check(d, group, page, 1));
	memcpy(to, page_at(d, group, page), d->group[group].page_bytes);
	return 0;
}

int cpu_page_write(struct device *d, uint32_t group, uint32_t page, const void *from)
{
	TRY(pages_check(d, group, page, 1));
	memcpy(page_at(d, group, page), from, d->group[group].page_bytes);
	return 0;
}

/* It is the device's memory already. */
int cpu_host_pin(struct device *d, void *memory, size_t bytes)
{
	(void)d;
	(void)memory;
	(void)bytes;
	return 0;
}

/* A K or V block's first `tokens` positions: whole tiles as they lie, of the last tile the
   values of those positions in the order of the layout. */
static void block_digest(crypto_generichash_state *state, const struct device_plan *p,
			 const uint8_t *block, uint32_t tokens, int is_v)
{
	const uint32_t size = kv_value_bytes(p->kv), tile = 16 * p->head * size;
	uint8_t part[16 * HEAD_MAX * 4];
	uint32_t n = 0;
	crypto_generichash_update(state, block, tokens / 16 * tile);
	if (tokens % 16 == 0)
		return;
	block += tokens / 16 * tile;
	/* Token of the i-th value of a tile: page_k_at and page_v_at read backwards. */
	for (uint32_t i = 0; i < 16 * p->head; i++) {
		const uint32_t token = is_v ? i / (2 * p->head) * 2 + i % 2
					    : i / 16 % 4 * 4 + i / 2 % 4;
		if (token >= tokens % 16)
			continue;
		memcpy(part + n, block + i * size, size);
		n += size;
	}
	crypto_generichash_update(state, part, n);
}

/* One digest of the digests of all blocks: a device may make those side by side. */
__attribute__((noinline)) static void digest_make(const struct device_plan *p, uint32_t group,
						  const uint8_t *base, uint32_t tokens, uint64_t digest[2])
{
	const uint32_t blocks = page_blocks(p, group), lines = kv_scale_lines(p);
	const struct page_place first = page_place_of(p, group, 0, 0);
	crypto_generichash_state whole, state;
	uint8_t one[16];
	crypto_generichash_init(&whole, NULL, 0, sizeof one);
	for (uint32_t i = 0; i < blocks; i++) {
		const uint8_t *scales = base + first.scales + (size_t)i * lines * p->page_tokens;
		crypto_generichash_init(&state, NULL, 0, sizeof one);
		block_digest(&state, p, base + i * first.block_bytes, tokens, i % 2);
		for (uint32_t line = 0; line < lines; line++, scales += p->page_tokens)
			crypto_generichash_update(&state, scales, tokens);
		crypto_generichash_final(&state, one, sizeof one);
		crypto_generichash_update(&whole, one, sizeof one);
	}
	crypto_generichash_final(&whole, (uint8_t *)digest, 16);
}

/* What is forgotten may not live on in a stack: neither part of a tile nor the hash's last blocks. */
enum { DIGEST_STACK = 16 * HEAD_MAX * 4 + 4096 };

int cpu_page_digests(struct device *d, struct ops_digest *list, uint32_t count)
{
	for (uint32_t i = 0; i < count; i++) {
		TRY(pages_check(d, list[i].group, list[i].page, 1));
		if (list[i].tokens > d->plan.page_tokens)
			return -ERR_OUT_OF_RANGE;
	}
	for (uint32_t i = 0; i < count; i++) {
		struct ops_digest *const g = &list[i];
		digest_make(&d->plan, g->group, page_at(d, g->group, g->page), g->tokens, g->digest);
	}
	sodium_stackzero(DIGEST_STACK);
	return 0;
}
