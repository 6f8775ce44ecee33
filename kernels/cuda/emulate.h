/*
 * CUDA's kernel language on the CPU, for the host compiler: what a kernel of this folder may use,
 * with the meaning that a GPU gives it, and with checks that a GPU does not make. The rest of the
 * folder includes kernels/cuda/gpu.h, which takes this or the toolkit's headers.
 *
 * A thread is a fiber with a stack of its own. Blocks run one after the other; within a block a
 * warp's lanes run until each waits or is done, then the next warp. That is the largest skew that
 * barriers allow, so a barrier that is missing shows. The order of blocks, warps and lanes follows
 * a seed.
 *
 * What is checked, each with one line that names the kernel, block and thread:
 *  - every thread of a block reaches the same __syncthreads; none has left
 *  - every lane of a warp reaches the same collective; none has left; a block has whole warps
 *  - deadlock: all wait, and for different things
 *  - shared memory is filled with NaN before each block, and has guards behind it
 *  - an async copy arrives at the wait and not before; until then its target holds NaN
 *  - alignment of vector loads and stores, and of async copies
 *  - a stack that was overrun
 * A fault ends the launch and stays until it is read: emulate_fault().
 *
 * What it cannot show: the memory model (no fences are needed here), bank conflicts, coalescing,
 * occupancy, time. One thread of the process at a time.
 */
#ifndef HOLDFAST_KERNELS_CUDA_EMULATE_H
#define HOLDFAST_KERNELS_CUDA_EMULATE_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <functional>

#include "kernels/fp8.h"

#if defined(__SANITIZE_ADDRESS__)
#define EMULATE_WATCHED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define EMULATE_WATCHED 1
#endif
#endif

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __restrict__ __restrict
#define __launch_bounds__(...)

struct dim3 {
	unsigned x, y, z;
	constexpr dim3(unsigned a = 1, unsigned b = 1, unsigned c = 1) : x(a), y(b), z(c) {}
};
struct alignas(8) uint2 { unsigned x, y; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
struct alignas(16) float4 { float x, y, z, w; };

enum { WARP = 32, EMULATE_EXCHANGE_MAX = 64, EMULATE_FAULT_MAX = 300 };

/* What the running thread sees. */
struct emulate_place {
	dim3 thread, block, block_size, grid_size;
};
const emulate_place *emulate_here();
#define threadIdx (emulate_here()->thread)
#define blockIdx (emulate_here()->block)
#define blockDim (emulate_here()->block_size)
#define gridDim (emulate_here()->grid_size)

/* Runs a kernel to its end. A block is whole warps. The name is for messages. */
void emulate_run(const char *name, dim3 grid, dim3 block, size_t shared_bytes,
		 const std::function<void()> &body);
/* 0: ascending; 1: descending; else drawn from it. Holds for launches to come. */
void emulate_seed(uint64_t seed);
/* The first fault since the last call, or NULL; forgets it. The text lives until the next one. */
const char *emulate_fault();
int emulate_faulted(); /* whether there is one; keeps it */
/* For the kernels' own checks. Does not return. */
[[noreturn]] void emulate_fail(const char *what);

/* Waits of the calling thread; site tells one place in the text from another. */
void emulate_barrier(int site);
/* Gives `bytes` to the other lanes and takes theirs: lane i's at i * EMULATE_EXCHANGE_MAX, until the
   warp's next but one exchange. */
const unsigned char *emulate_exchange(const void *mine, size_t bytes, int site);
int emulate_lane();

void *emulate_shared(const void *key, size_t bytes);
void *emulate_shared_dynamic();
void emulate_copy_async(void *shared, const void *from, size_t bytes);
void emulate_copy_commit();
void emulate_copy_wait(int left);
/* Another thread may come first. Called before atomics. */
void emulate_pause();

#define SHARED(type, name, count) \
	static const char name##_key = 0; \
	type *const name = static_cast<type *>(emulate_shared(&name##_key, sizeof(type) * (count)))
#define SHARED_DYNAMIC(type, name) \
	type *const name = static_cast<type *>(emulate_shared_dynamic())

#define __syncthreads() emulate_barrier(__LINE__)

inline void emulate_align(const void *p, size_t bytes)
{
	if ((uintptr_t)p % bytes != 0)
		emulate_fail("a vector load or store is not aligned");
}

/* Vector loads and stores, by bytes. */
template <class T> static inline T load_vector(const void *p)
{
	T v;
	emulate_align(p, sizeof(T));
	memcpy(&v, p, sizeof v);
	return v;
}
template <class T> static inline void store_vector(void *p, T v)
{
	emulate_align(p, sizeof(T));
	memcpy(p, &v, sizeof v);
}

static inline void copy_async_16(void *shared, const void *from)
{
	emulate_align(shared, 16);
	emulate_align(from, 16);
	emulate_copy_async(shared, from, 16);
}
static inline void copy_commit()
{
	emulate_copy_commit();
}
/* Waits until at most LEFT of this thread's groups are under way. */
template <int LEFT> static inline void copy_wait()
{
	emulate_copy_wait(LEFT);
}

/* Collectives of a whole warp. */
static inline void warp_sync(int site = __builtin_LINE())
{
	emulate_exchange("", 1, site);
}
template <class T> static inline T warp_from(T value, int lane, int site = __builtin_LINE())
{
	static_assert(sizeof(T) <= EMULATE_EXCHANGE_MAX, "too large for a shuffle");
	const unsigned char *all = emulate_exchange(&value, sizeof value, site);
	T out;
	memcpy(&out, all + (size_t)(lane & 31) * EMULATE_EXCHANGE_MAX, sizeof out);
	return out;
}
template <class T> static inline T warp_xor(T value, int mask, int site = __builtin_LINE())
{
	return warp_from(value, emulate_lane() ^ mask, site);
}
/* The value of the lane `delta` before, one's own where there is none. */
template <class T> static inline T warp_up(T value, int delta, int site = __builtin_LINE())
{
	const int lane = emulate_lane();
	return warp_from(value, lane >= delta ? lane - delta : lane, site);
}
static inline unsigned warp_ballot(int predicate, int site = __builtin_LINE())
{
	const unsigned char mine = predicate != 0;
	const unsigned char *all = emulate_exchange(&mine, 1, site);
	unsigned bits = 0;
	for (int i = 0; i < WARP; i++)
		bits |= (unsigned)all[i * EMULATE_EXCHANGE_MAX] << i;
	return bits;
}

template <class T> static inline T atomicAdd(T *p, T v)
{
	emulate_pause();
	const T old = *p;
	*p = old + v;
	return old;
}
static inline unsigned atomicOr(unsigned *p, unsigned v)
{
	emulate_pause();
	const unsigned old = *p;
	*p = old | v;
	return old;
}
template <class T> static inline T atomicMin(T *p, T v)
{
	emulate_pause();
	const T old = *p;
	*p = v < old ? v : old;
	return old;
}

static inline int __popc(unsigned x)
{
	return __builtin_popcount(x);
}

/* mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32, by the fragment layouts of the PTX manual:
   with g = lane / 4 and t = lane % 4, a0: row g, columns 2t, 2t+1; a1: row g + 8; a2, a3: columns 8
   further; b0: rows 2t, 2t+1 of column g; b1: rows 8 further; c0, c1: row g, columns 2t, 2t+1;
   c2, c3: row g + 8. The order of the hardware's sums is not stated; here it is ascending. */
static inline unsigned emulate_word(const unsigned char *all, int lane, int index)
{
	unsigned word;
	memcpy(&word, all + lane * EMULATE_EXCHANGE_MAX + 4 * index, sizeof word);
	return word;
}

static inline float emulate_bf16(unsigned word, int high)
{
	const unsigned bits = high ? word & 0xffff0000u : word << 16;
	float x;
	memcpy(&x, &bits, sizeof x);
	return x;
}

static inline void mma_bf16(float c[4], const unsigned a[4], const unsigned b[2],
			    int site = __builtin_LINE())
{
	const unsigned mine[6] = {a[0], a[1], a[2], a[3], b[0], b[1]};
	const unsigned char *all = emulate_exchange(mine, sizeof mine, site);
	const int lane = emulate_lane(), group = lane >> 2, in_group = lane & 3;
	for (int i = 0; i < 4; i++) {
		const int high_row = i >> 1, column = in_group * 2 + (i & 1);
		float sum = c[i];
		for (int k = 0; k < 16; k++) {
			const int from = (group << 2) | (k % 8 / 2), to = (column << 2) | (k % 8 / 2);
			sum += emulate_bf16(emulate_word(all, from, high_row + 2 * (k / 8)), k & 1) *
			       emulate_bf16(emulate_word(all, to, 4 + k / 8), k & 1);
		}
		c[i] = sum;
	}
}

/* cvt.rn.bf16x2.f32. */
static inline unsigned bf16_pair(float low, float high)
{
	return bf16_encode(low) | (unsigned)bf16_encode(high) << 16;
}

/* prmt.b32 in its first mode, without the bit that repeats a sign. */
static inline unsigned byte_permute(unsigned x, unsigned y, unsigned selector)
{
	const uint64_t both = (uint64_t)y << 32 | x;
	unsigned out = 0;
	for (int i = 0; i < 4; i++)
		out |= (unsigned)(both >> (8 * (selector >> (4 * i) & 7)) & 0xff) << (8 * i);
	return out;
}

/* fma.rn.bf16x2, for sums that f32 holds; others would be rounded twice. */
static inline unsigned fma_bf16_pair(unsigned a, unsigned b, unsigned c)
{
	float sum[2];
	for (int high = 0; high < 2; high++)
		sum[high] = fmaf(emulate_bf16(a, high), emulate_bf16(b, high), emulate_bf16(c, high));
	return bf16_pair(sum[0], sum[1]);
}

/* mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32: a0: row g, columns 4t .. 4t+3; a1: row g + 8; b:
   rows 4t .. 4t+3 of column g; c as above. */
static inline void mma_s8_k16(int c[4], const unsigned a[2], unsigned b, int site = __builtin_LINE())
{
	const unsigned mine[3] = {a[0], a[1], b};
	const unsigned char *all = emulate_exchange(mine, sizeof mine, site);
	const int lane = emulate_lane(), group = lane >> 2, in_group = lane & 3;
	for (int i = 0; i < 4; i++) {
		const int column = in_group * 2 + (i & 1);
		int sum = c[i];
		for (int t = 0; t < 4; t++) {
			const unsigned x = emulate_word(all, (group << 2) | t, i >> 1);
			const unsigned y = emulate_word(all, (column << 2) | t, 2);
			for (int k = 0; k < 4; k++)
				sum += (int8_t)(x >> (8 * k)) * (int8_t)(y >> (8 * k));
		}
		c[i] = sum;
	}
}

/* mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32: as above with a2, a3 and b1 16 columns (rows)
   further. */
static inline void mma_s8_k32(int c[4], const unsigned a[4], const unsigned b[2],
			      int site = __builtin_LINE())
{
	mma_s8_k16(c, a, b[0], site);
	mma_s8_k16(c, a + 2, b[1], site);
}

#endif
