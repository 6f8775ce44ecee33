/*
 * Digests of pages, as kernels/README.md defines them and kernels/cpu/pages.c makes them: BLAKE2b-128
 * of each block of K and V with its scales, all of them side by side, then of a page's block digests.
 * Four lanes share a hash: lane c has column c of its state, and the columns turn by shuffles. A hash is
 * one long chain, about 2,500 clocks for 128 bytes; a GPU is fast at it by having many.
 */
#include "kernels/cuda/cuda.h"

enum { DIGEST_THREADS = 128, MESSAGE = 128, WORDS = MESSAGE / 8, WORDS_PLACE = WORDS + 1 };

/* The bytes of one hash. */
struct source {
	const uint8_t *data, *scales;
	uint32_t whole;  /* bytes that are taken as they lie; whole messages, but for a list of digests */
	uint32_t part;   /* then those of a tile that is not full */
	uint32_t lines;  /* then so many lines of scales, `line` apart, of which `tokens` each */
	uint32_t tokens, line, head, size, is_v;
};

/* Where the i-th value of a tile of `tokens` positions stands in the layout: page_k_at and page_v_at read
   backwards, those of later positions left out. */
__device__ static inline uint32_t part_place(const struct source *s, uint32_t i)
{
	const uint32_t tokens = s->tokens % 16;
	if (s->is_v) {
		const uint32_t pairs = tokens / 2 * 2 * s->head;
		return i < pairs ? i : pairs + 2 * (i - pairs);
	}
	const uint32_t full = tokens / 4 * 16, rest = tokens % 4 * 2, first = i / (4 * tokens) * 64;
	i %= 4 * tokens;
	return first + (i < full ? i : full + (i - full) / rest * 8 + (i - full) % rest);
}

/* The i-th byte; behind the last one there are zeros. */
__device__ static inline uint32_t source_byte(const struct source *s, uint32_t i)
{
	if (i < s->whole)
		return s->data[i];
	i -= s->whole;
	if (i < s->part)
		return s->data[s->whole + part_place(s, i / s->size) * s->size + i % s->size];
	i -= s->part;
	return i < s->lines * s->tokens ? s->scales[i / s->tokens * s->line + i % s->tokens] : 0;
}

/* The lane's four words of a message. */
__device__ static inline void source_words(const struct source *s, uint32_t at, int lane, uint64_t *to)
{
	const uint32_t first = at + 32 * lane;
	if (at + MESSAGE <= s->whole) {
		const uint4 low = load_vector<uint4>(s->data + first);
		const uint4 high = load_vector<uint4>(s->data + first + 16);
		to[4 * lane] = (uint64_t)low.y << 32 | low.x;
		to[4 * lane + 1] = (uint64_t)low.w << 32 | low.z;
		to[4 * lane + 2] = (uint64_t)high.y << 32 | high.x;
		to[4 * lane + 3] = (uint64_t)high.w << 32 | high.z;
		return;
	}
	for (uint32_t i = 0; i < 4; i++) {
		uint64_t word = 0;
		for (uint32_t k = 0; k < 8; k++)
			word |= (uint64_t)source_byte(s, first + 8 * i + k) << (8 * k);
		to[4 * lane + i] = word;
	}
}

__device__ static inline uint64_t turned(uint64_t x, int by)
{
	return x >> by | x << (64 - by);
}

__device__ static inline void mix(uint64_t v[4], uint64_t x, uint64_t y)
{
	v[0] += v[1] + x;
	v[3] = turned(v[3] ^ v[0], 32);
	v[2] += v[3];
	v[1] = turned(v[1] ^ v[2], 24);
	v[0] += v[1] + y;
	v[3] = turned(v[3] ^ v[0], 16);
	v[2] += v[3];
	v[1] = turned(v[1] ^ v[2], 63);
}

/* The lane's h[c] and h[4 + c] with one message more. iv: those of the same places. */
__device__ static inline void compress(uint64_t h[2], const uint64_t iv[2], const uint64_t *words, int lane,
				       uint64_t bytes, bool last)
{
	/* Each round's order of the words, the first in the lowest four bits. */
	const uint64_t orders[10] = {0xfedcba9876543210, 0x357b20c16df984ae, 0x491763eadf250c8b,
				     0x8f04a562ebcd1397, 0xd386cb1efa427509, 0x91ef57d438b0a6c2,
				     0xb8293670a4def15c, 0xa2684f05931ce7bd, 0x5a417d2c803b9ef6,
				     0x0dc3e9bf5167482a};
	const int next = (threadIdx.x & ~3u) | ((lane + 1) & 3), half = (threadIdx.x & ~3u) | (lane ^ 2),
		  last_one = (threadIdx.x & ~3u) | ((lane + 3) & 3);
	uint64_t v[4] = {h[0], h[1], iv[0], iv[1] ^ (lane == 0 ? bytes : lane == 2 && last ? ~(uint64_t)0 : 0)};
#pragma unroll
	for (int round = 0; round < 12; round++) {
		const uint32_t columns = (uint32_t)orders[round % 10] >> (8 * lane);
		const uint32_t diagonals = (uint32_t)(orders[round % 10] >> 32) >> (8 * lane);
		mix(v, words[columns & 15], words[columns >> 4 & 15]);
		v[1] = warp_from(v[1], next);
		v[2] = warp_from(v[2], half);
		v[3] = warp_from(v[3], last_one);
		mix(v, words[diagonals & 15], words[diagonals >> 4 & 15]);
		v[1] = warp_from(v[1], last_one);
		v[2] = warp_from(v[2], half);
		v[3] = warp_from(v[3], next);
	}
	h[0] ^= v[0] ^ v[2];
	h[1] ^= v[1] ^ v[3];
}

/* By four lanes, each warp's with sources of one length: lane 0 gets the digest's first 8 bytes and lane 1
   the others. */
__device__ static inline uint64_t hash(const struct source *s, uint64_t *words, int lane)
{
	const uint64_t iv[2] = {
		lane == 0 ? 0x6a09e667f3bcc908 : lane == 1 ? 0xbb67ae8584caa73b
						: lane == 2 ? 0x3c6ef372fe94f82b : 0xa54ff53a5f1d36f1,
		lane == 0 ? 0x510e527fade682d1 : lane == 1 ? 0x9b05688c2b3e6c1f
						: lane == 2 ? 0x1f83d9abfb41bd6b : 0x5be0cd19137e2179};
	const uint32_t bytes = s->whole + s->part + s->lines * s->tokens;
	uint64_t h[2] = {iv[0] ^ (lane == 0 ? 0x01010010 : 0), iv[1]};
	uint32_t at = 0;
	do {
		source_words(s, at, lane, words);
		warp_sync();
		at += MESSAGE;
		compress(h, iv, words, lane, at < bytes ? at : bytes, at >= bytes);
		warp_sync();
	} while (at < bytes);
	return h[0];
}

__global__ __launch_bounds__(DIGEST_THREADS) void digest_blocks(const struct digest_args a)
{
	SHARED(uint64_t, room, DIGEST_THREADS / 4 * WORDS_PLACE);
	const struct digest_page *const g = &a.list[blockIdx.y];
	const uint32_t first = blockIdx.x * (DIGEST_THREADS / 4), quad = threadIdx.x / 4;
	const int lane = (int)threadIdx.x & 3;
	if (first >= g->blocks)
		return;
	/* Those beyond the last do its work again: a warp's lanes stay together. */
	const uint32_t block = first + quad < g->blocks ? first + quad : g->blocks - 1;
	const uint32_t tile = 16 * a.head * a.size;
	const struct source s = {g->page + (size_t)block * a.block_bytes,
				 g->page + g->scales + (size_t)block * a.lines * a.page_tokens,
				 g->tokens / 16 * tile, g->tokens % 16 * a.head * a.size, a.lines, g->tokens,
				 a.page_tokens, a.head, a.size, block % 2};
	const uint64_t h = hash(&s, room + quad * WORDS_PLACE, lane);
	if (first + quad < g->blocks && lane < 2)
		a.digests[2 * ((size_t)blockIdx.y * a.blocks_most + block) + lane] = h;
}

__global__ __launch_bounds__(WARP) void digest_pages(const struct digest_args a)
{
	SHARED(uint64_t, room, WARP / 4 * WORDS_PLACE);
	struct digest_page *const g = &a.list[blockIdx.x];
	const int lane = (int)threadIdx.x & 3;
	const uint64_t *const digests = a.digests + 2 * (size_t)blockIdx.x * a.blocks_most;
	const uint8_t *const data = reinterpret_cast<const uint8_t *>(digests);
	const struct source s = {data, NULL, g->blocks * 16, 0, 0, 1, 1, 1, 1, 0};
	const uint64_t h = hash(&s, room + threadIdx.x / 4 * WORDS_PLACE, lane);
	if (threadIdx.x < 2)
		g->digest[threadIdx.x] = h;
}

void digest_launch(const struct digest_args *a, uint32_t pages, cudaStream_t stream)
{
	const uint32_t quads = DIGEST_THREADS / 4, blocks = (a->blocks_most + quads - 1) / quads;
	LAUNCH(digest_blocks, dim3(blocks, pages), dim3(DIGEST_THREADS), 0, stream, *a);
	LAUNCH(digest_pages, dim3(pages), dim3(WARP), 0, stream, *a);
}
