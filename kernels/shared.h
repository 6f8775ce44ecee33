/*
 * What every device shares: where a value of K and V lies in a page, and the checks of a plan and of
 * a batch block. Private to kernels/. Compiles as C11 and as C++17, for a GPU too.
 */
#ifndef HOLDFAST_KERNELS_SHARED_H
#define HOLDFAST_KERNELS_SHARED_H

#include <stddef.h>
#include <stdint.h>

#include "kernels/fp8.h"
#include "kernels/ops.h"

enum { KV_HEAD_MAX = 512 }; /* values of a head */

/* Place of an element within the K or V block of one layer and KV head, in elements (times the
   kind's element size). Tiles of 16 tokens, each 16*head elements; pairs along the contraction
   axis: two values of one token for K, two tokens of one value for V. */
FP8_INLINE size_t page_k_at(uint32_t token, uint32_t value, uint32_t head)
{
	const uint32_t t = token % 16;
	return (size_t)(token / 16) * 16 * head + (value / 4) * 64 + (t / 4) * 16 +
	       ((value / 2) & 1) * 8 + (t % 4) * 2 + (value & 1);
}

FP8_INLINE size_t page_v_at(uint32_t token, uint32_t value, uint32_t head)
{
	const uint32_t t = token % 16;
	return (size_t)(token / 16) * 16 * head + (size_t)(t / 2) * 2 * head + (value / 32) * 64 +
	       (value % 32) * 2 + (t & 1);
}

/* Values that share a scale byte, and scale bytes of one token's K (or V) in one KV head. */
FP8_INLINE uint32_t kv_group_values(uint32_t head)
{
	return head <= 96 ? head : 64;
}

FP8_INLINE uint32_t kv_group_count(uint32_t head)
{
	return head <= 96 ? 1 : head / 64;
}

FP8_INLINE uint32_t kv_value_bytes(enum kv_kind kv)
{
	return kv == KV_F32 ? 4 : kv == KV_BF16 ? 2 : 1;
}

/* Of one layer and KV head the scales are: K's [group][page_tokens] bytes, then V's. FP8's scale
   byte is e + 128 for the scale 2^e, the smallest with max|x| / 2^e <= 448, but not below -126
   (e = 0 for an all-zero vector): from the bits b of max|x|, e = ((b + 0x1fffff) >> 23) - 135.
   INT8's is 8*e' + m, its value (8 + m) / 8 * 2^(e' - 24) with e' 0 .. 31, m 0 .. 7, rounded up so
   that nothing clips: from the bits b of the f32 quotient max|x| / 127,
   ((b + 0xfffff) >> 20) - 824 held within 0 .. 255; and the bits of the scale are
   (byte + 824) << 20. */
FP8_INLINE float kv_scale_value(enum kv_kind kv, uint8_t byte)
{
	if (kv == KV_INT8)
		return float_from_bits((byte + 824u) << 20);
	/* 2^(byte - 128); a byte that no encoder writes gives 0. */
	return byte < 2 ? 0.0f : float_from_bits((byte - 1u) << 23);
}

/* largest_bits: of max|x|, NaN counting as no larger. */
FP8_INLINE uint8_t kv_scale_byte(enum kv_kind kv, uint32_t largest_bits)
{
	if (kv == KV_INT8) {
		const uint32_t t = (float_bits(float_from_bits(largest_bits) / 127.0f) + 0xfffff) >> 20;
		return (uint8_t)((t < 824 ? 824 : t > 824 + 255 ? 824 + 255 : t) - 824);
	}
	const int e = (int)((largest_bits + 0x1fffff) >> 23) - 135;
	return (uint8_t)((largest_bits == 0 ? 0 : e < -126 ? -126 : e) + 128);
}

FP8_INLINE uint8_t kv_encode_8(enum kv_kind kv, float x, float scale, float inverse)
{
	if (kv == KV_FP8)
		return fp8_encode(x * inverse);
	float y = x / scale;
	y = y >= -127.0f ? y : -127.0f;
	y = y <= 127.0f ? y : 127.0f;
	return (uint8_t)(int8_t)((y + 12582912.0f) - 12582912.0f);
}

/* The rows of the vocabulary that the rank has: of embedding and head. */
static inline uint32_t plan_vocab_first(const struct device_plan *p)
{
	return p->ranks > 1 ? p->rank * p->vocab_share : 0;
}

static inline uint32_t plan_vocab_rows(const struct device_plan *p)
{
	const uint32_t left = p->vocab - plan_vocab_first(p);
	return p->ranks > 1 && left > p->vocab_share ? p->vocab_share : left;
}

/* Place of a layer and KV head's K block and scales within a page; V's block follows K's. */
struct page_place {
	size_t block, block_bytes; /* K's block; V's is block_bytes on */
	size_t scales;
};

static inline struct page_place page_place_of(const struct device_plan *p, uint32_t group,
					      uint32_t layer, uint32_t kv_head)
{
	const size_t bytes = (size_t)p->head * p->page_tokens * kv_value_bytes(p->kv);
	const size_t index = 2 * ((size_t)layer * p->kv_heads + kv_head);
	const size_t blocks = 2 * (size_t)p->group[group].layers * p->kv_heads * bytes;
	struct page_place place;
	place.block = index * bytes;
	place.block_bytes = bytes;
	place.scales = blocks + index * kv_group_count(p->head) * p->page_tokens;
	return place;
}

/* Blocks of K and V in a page, in turn, and the lines of scales of one. */
static inline uint32_t page_blocks(const struct device_plan *p, uint32_t group)
{
	return 2 * p->group[group].layers * p->kv_heads;
}

static inline uint32_t kv_scale_lines(const struct device_plan *p)
{
	return p->kv == KV_FP8 || p->kv == KV_INT8 ? kv_group_count(p->head) : 0;
}

#ifdef __cplusplus
extern "C" {
#endif

/* Whether a plan's sizes make sense, within limits far above any model. */
int plan_valid(const struct device_plan *plan);

/* Bytes of the largest block that a plan allows. */
size_t batch_bytes_max(const struct device_plan *plan);
/* Copies the block into `copy` (batch_bytes_max of room) and checks the copy as a whole; what was
   checked is what is there. -ERR_OUT_OF_RANGE. */
int batch_take(const struct device_plan *plan, const struct ops_batch *block, uint8_t *copy);

#ifdef __cplusplus
}
#endif

#endif
