/*
 * The kernel language of this folder: one text, two compilers. nvcc takes the toolkit's and the few
 * names below; the host compiler takes the emulation. Also the launch, which is one function for
 * both. C++17.
 */
#ifndef HOLDFAST_KERNELS_CUDA_GPU_H
#define HOLDFAST_KERNELS_CUDA_GPU_H

#ifdef __CUDACC__

#include <cuda_runtime.h>
#include <stdint.h>

enum { WARP = 32 };

#define SHARED(type, name, count) __shared__ __align__(16) type name[count]
#define SHARED_DYNAMIC(type, name) \
	extern __shared__ __align__(16) unsigned char shared_dynamic[]; \
	type *const name = reinterpret_cast<type *>(shared_dynamic)

template <class T> __device__ static inline T load_vector(const void *p)
{
	return *static_cast<const T *>(p);
}
template <class T> __device__ static inline void store_vector(void *p, T v)
{
	*static_cast<T *>(p) = v;
}

__device__ static inline void copy_async_16(void *shared, const void *from)
{
	const unsigned to = static_cast<unsigned>(__cvta_generic_to_shared(shared));
	asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
__device__ static inline void copy_commit()
{
	asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int LEFT> __device__ static inline void copy_wait()
{
	asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
}

__device__ static inline void warp_sync()
{
	__syncwarp();
}
template <class T> __device__ static inline T warp_from(T value, int lane)
{
	return __shfl_sync(0xffffffffu, value, lane);
}
template <class T> __device__ static inline T warp_xor(T value, int mask)
{
	return __shfl_xor_sync(0xffffffffu, value, mask);
}
template <class T> __device__ static inline T warp_up(T value, int delta)
{
	return __shfl_up_sync(0xffffffffu, value, delta);
}
__device__ static inline unsigned warp_ballot(int predicate)
{
	return __ballot_sync(0xffffffffu, predicate);
}

__device__ static inline void mma_bf16(float c[4], const unsigned a[4], const unsigned b[2])
{
	asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
		     "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
		     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
		     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
__device__ static inline void mma_s8_k16(int c[4], const unsigned a[2], unsigned b)
{
	asm volatile("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 "
		     "{%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
		     : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
		     : "r"(a[0]), "r"(a[1]), "r"(b));
}
__device__ static inline void mma_s8_k32(int c[4], const unsigned a[4], const unsigned b[2])
{
	asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 "
		     "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
		     : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
		     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/* Two f32 as bf16, the first in the low half; nearest even, finite. */
__device__ static inline unsigned bf16_pair(float low, float high)
{
	unsigned pair;
	asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
	return pair;
}
/* Four bytes of x (0 - 3) and y (4 - 7), each named by a digit of the selector, the lowest first. */
__device__ static inline unsigned byte_permute(unsigned x, unsigned y, unsigned selector)
{
	return __byte_perm(x, y, selector);
}
/* a * b + c of both halves, bf16, rounded once; subnormal ones are kept. */
__device__ static inline unsigned fma_bf16_pair(unsigned a, unsigned b, unsigned c)
{
	unsigned out;
	asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(out) : "r"(a), "r"(b), "r"(c));
	return out;
}

/* Every kernel of the folder takes one struct by value. */
template <class A>
static inline void gpu_launch(const char *, void (*kernel)(A), dim3 grid, dim3 block,
			      size_t shared_bytes, cudaStream_t stream, const A &argument)
{
	A copy = argument;
	void *list[] = {&copy};
	cudaLaunchKernel(reinterpret_cast<const void *>(kernel), grid, block, list, shared_bytes,
			 stream);
}

#else

#include "kernels/cuda/emulate.h"
#include "kernels/cuda/emulate_runtime.h"

template <class A>
static inline void gpu_launch(const char *name, void (*kernel)(A), dim3 grid, dim3 block,
			      size_t shared_bytes, cudaStream_t stream, const A &argument)
{
	emulate_launch(name, grid, block, shared_bytes, stream,
		       [kernel, argument] { kernel(argument); });
}

#endif

/* kernel may be a template's instance with commas. Errors are found by cudaGetLastError. */
#define LAUNCH(kernel, grid, block, shared_bytes, stream, argument) \
	gpu_launch(#kernel, kernel, grid, block, shared_bytes, stream, argument)
/* An instance that is written with commas, in one macro argument. */
#define INSTANCE(...) (__VA_ARGS__)

#endif
