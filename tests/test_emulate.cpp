/*
 * Goal: the emulation of CUDA is right, and each of its checks fires. Method: small kernels with
 * known results, under several orders; and kernels with one fault each, whose message is looked for.
 */
#include <sys/wait.h>
#include <unistd.h>

#include <vector>

#include "kernels/cuda/attend.h"
#include "kernels/fp8.h"
#include "tests/tap.h"

static const uint64_t seeds[] = {0, 1, 2, 3, 77};

/* Runs under every order; what is expected to fault must name the reason each time. */
template <class F> static void run_all(dim3 grid, dim3 block, size_t shared, const char *fault, F kernel)
{
	for (uint64_t seed : seeds) {
		emulate_seed(seed);
		emulate_run("kernel", grid, block, shared, kernel);
		const char *found = emulate_fault();
		if (!fault)
			EXPECT(found == NULL);
		else
			EXPECT(found != NULL && strstr(found, fault) != NULL);
		if (found && (!fault || !strstr(found, fault)))
			printf("# seed %d: %s\n", (int)seed, found);
	}
	emulate_seed(0);
}

/* PRMT by its definition, over all selectors of one digit; then what the tiles of attention make of two bytes
   of FP8 or INT8, over all 65,536 pairs: the values that the codes stand for. */
static void pairs()
{
	for (unsigned digit = 0; digit < 8; digit++)
		for (int place = 0; place < 4; place++) {
			const unsigned found = byte_permute(0x33221100u, 0x77665544u, digit << (4 * place));
			EXPECT_EQ(found >> (8 * place) & 0xff, digit * 0x11);
		}
	EXPECT_EQ(byte_permute(0xa1b2c3d4u, 0, 0x1404), 0xc300d400u);
	EXPECT_EQ(fma_bf16_pair(0x3f804000u, 0x40404040u, 0x80008000u), 0x404040c0u); /* 2 x 3, 1 x 3 */
	unsigned wrong = 0;
	for (unsigned pair = 0; pair < 65536; pair++)
		for (int i = 0; i < 2; i++) {
			const unsigned word = i ? pair << 16 | 0x5aa5 : pair | 0xa55a0000u;
			const unsigned fp8 = bytes_pair<KV_FP8>(word, i), int8 = bytes_pair<KV_INT8>(word, i);
			for (int half = 0; half < 2; half++) {
				const uint8_t code = (uint8_t)(pair >> (8 * half));
				const float value = fp8_decode(code);
				if (!isnan(value))
					wrong += (uint16_t)(fp8 >> (16 * half)) != float_bits(value) >> 16;
				wrong += emulate_bf16(int8, half) != (float)(int8_t)code;
			}
		}
	EXPECT_EQ(wrong, 0);
}

static void places()
{
	std::vector<unsigned> seen(2 * 3 * 4 * 64);
	run_all(dim3(2, 3, 4), dim3(16, 2, 2), 0, NULL, [&] {
		const unsigned b = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
		const unsigned t = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
		seen[b * 64 + t]++;
	});
	for (unsigned n : seen)
		EXPECT_EQ(n, 5);
}

static void barriers()
{
	std::vector<int> out(256);
	run_all(dim3(1), dim3(256), 0, NULL, [&] {
		SHARED(int, values, 256);
		const unsigned t = threadIdx.x;
		values[t] = (int)t;
		for (unsigned step = 128; step > 0; step /= 2) {
			__syncthreads();
			const int other = t < step ? values[t + step] : 0;
			__syncthreads();
			values[t] += other;
		}
		__syncthreads();
		out[t] = values[0];
	});
	for (int x : out)
		EXPECT_EQ(x, 255 * 128);
}

/* A sum in shared memory without its barrier: some order must give NaN or a wrong number. */
static void barrier_missing()
{
	int wrong = 0;
	for (uint64_t seed : seeds) {
		float sum = 0;
		emulate_seed(seed);
		emulate_run("kernel", dim3(1), dim3(64), 0, [&] {
			SHARED(float, values, 64);
			values[threadIdx.x] = 1;
			if (threadIdx.x == 0)
				for (int i = 0; i < 64; i++)
					sum += values[i];
		});
		EXPECT(emulate_fault() == NULL);
		wrong += !(sum == 64);
	}
	emulate_seed(0);
	EXPECT(wrong >= 1);
}

static void collectives()
{
	std::vector<int> bad(96);
	run_all(dim3(1), dim3(96), 0, NULL, [&] {
		const int lane = (int)threadIdx.x % 32, base = (int)threadIdx.x - lane;
		int wrong = 0;
		wrong |= warp_from((int)threadIdx.x, 5) != base + 5;
		wrong |= warp_xor((int)threadIdx.x, 17) != base + (lane ^ 17);
		wrong |= warp_up((int)threadIdx.x, 3) != base + (lane < 3 ? lane : lane - 3);
		wrong |= warp_ballot(lane % 3 == 0) != 0x49249249u;
		wrong |= warp_from((double)lane, 31) != 31.0;
		for (int i = 0; i < 50; i++) /* more exchanges than there are rooms */
			wrong |= warp_xor(i * 100 + lane, 1) != i * 100 + (lane ^ 1);
		bad[threadIdx.x] |= wrong;
	});
	for (int x : bad)
		EXPECT_EQ(x, 0);
}

static void matrix_bf16()
{
	float a[16][16], b[16][8], want[16][8], got[16][8];
	uint64_t state = 9;
	for (int i = 0; i < 16; i++)
		for (int k = 0; k < 16; k++) {
			state = state * 6364136223846793005u + 1442695040888963407u;
			a[i][k] = (float)(int)((state >> 40) % 255) - 127;
			b[k][i % 8] = (float)(int)((state >> 50) % 31) - 15;
		}
	for (int i = 0; i < 16; i++)
		for (int j = 0; j < 8; j++) {
			want[i][j] = (float)(i - j); /* what is there is added to */
			for (int k = 0; k < 16; k++)
				want[i][j] += a[i][k] * b[k][j];
		}
	run_all(dim3(1), dim3(32), 0, NULL, [&] {
		const int g = (int)threadIdx.x / 4, t = (int)threadIdx.x % 4;
		const auto two = [](float low, float high) {
			return bf16_encode(low) | (unsigned)bf16_encode(high) << 16;
		};
		unsigned fa[4], fb[2];
		for (int r = 0; r < 4; r++)
			fa[r] = two(a[g + 8 * (r & 1)][2 * t + 8 * (r >> 1)],
				    a[g + 8 * (r & 1)][2 * t + 1 + 8 * (r >> 1)]);
		for (int r = 0; r < 2; r++)
			fb[r] = two(b[2 * t + 8 * r][g], b[2 * t + 1 + 8 * r][g]);
		float c[4];
		for (int i = 0; i < 4; i++)
			c[i] = (float)(g + 8 * (i >> 1) - (2 * t + (i & 1)));
		mma_bf16(c, fa, fb);
		for (int i = 0; i < 4; i++)
			got[g + 8 * (i >> 1)][2 * t + (i & 1)] = c[i];
	});
	EXPECT(memcmp(want, got, sizeof want) == 0); /* small integers: exact */
}

static void matrix_s8()
{
	int8_t a[16][32], b[32][8];
	int want[16][8] = {}, got[16][8], half[16][8];
	uint64_t state = 5;
	for (int i = 0; i < 16; i++)
		for (int k = 0; k < 32; k++) {
			state = state * 6364136223846793005u + 1442695040888963407u;
			a[i][k] = (int8_t)(state >> 40);
			b[k][i % 8] = (int8_t)(state >> 50);
		}
	for (int i = 0; i < 16; i++)
		for (int j = 0; j < 8; j++)
			for (int k = 0; k < 32; k++)
				want[i][j] += a[i][k] * b[k][j];
	run_all(dim3(1), dim3(32), 0, NULL, [&] {
		const int g = (int)threadIdx.x / 4, t = (int)threadIdx.x % 4;
		unsigned fa[4], fb[2];
		for (int r = 0; r < 4; r++)
			memcpy(&fa[r], &a[g + 8 * (r & 1)][4 * t + 16 * (r >> 1)], 4);
		for (int r = 0; r < 2; r++) {
			int8_t four[4];
			for (int k = 0; k < 4; k++)
				four[k] = b[16 * r + 4 * t + k][g];
			memcpy(&fb[r], four, 4);
		}
		int c[4] = {}, d[4] = {};
		mma_s8_k32(c, fa, fb);
		mma_s8_k16(d, fa, fb[0]);
		mma_s8_k16(d, fa + 2, fb[1]);
		for (int i = 0; i < 4; i++) {
			got[g + 8 * (i >> 1)][2 * t + (i & 1)] = c[i];
			half[g + 8 * (i >> 1)][2 * t + (i & 1)] = d[i];
		}
	});
	EXPECT(memcmp(want, got, sizeof want) == 0);
	EXPECT(memcmp(want, half, sizeof want) == 0);
}

static void async_copies()
{
	alignas(16) unsigned char from[64 * 16];
	int early = 0, late = 0;
	for (size_t i = 0; i < sizeof from; i++)
		from[i] = (unsigned char)(i * 7);
	run_all(dim3(1), dim3(32), 0, NULL, [&] {
		SHARED(unsigned char, to, 64 * 16);
		const unsigned t = threadIdx.x;
		copy_async_16(to + 16 * t, from + 16 * t);
		copy_commit();
		copy_async_16(to + 16 * (t + 32), from + 16 * (t + 32));
		copy_commit();
		early |= to[16 * t] != 0xff; /* NaN until the wait */
		copy_wait<1>();
		late |= memcmp(to + 16 * t, from + 16 * t, 16) != 0;
		early |= to[16 * (t + 32)] != 0xff;
		copy_wait<0>();
		__syncthreads();
		late |= memcmp(to, from, sizeof from) != 0;
	});
	EXPECT_EQ(early, 0);
	EXPECT_EQ(late, 0);
}

static void atomics()
{
	unsigned sum = 0, bits = 0, least = 1000;
	run_all(dim3(3), dim3(64), 0, NULL, [&] {
		atomicAdd(&sum, 1u);
		atomicOr(&bits, 1u << (threadIdx.x % 32));
		atomicMin(&least, threadIdx.x + 5);
	});
	EXPECT_EQ(sum, 5 * 3 * 64);
	EXPECT_EQ(bits, 0xffffffffu);
	EXPECT_EQ(least, 5);
}

static void divergence()
{
	run_all(dim3(1), dim3(64), 0, "threads have left", [] {
		if (threadIdx.x < 32)
			__syncthreads();
	});
	run_all(dim3(1), dim3(64), 0, "at different ones", [] {
		if (threadIdx.x < 32)
			__syncthreads();
		else {
			__syncthreads();
		}
	});
	run_all(dim3(1), dim3(32), 0, "a lane has left", [] {
		if (threadIdx.x != 7)
			warp_sync();
	});
	run_all(dim3(1), dim3(32), 0, "different collectives", [] {
		if (threadIdx.x < 16)
			warp_sync();
		else
			warp_ballot(1);
	});
	run_all(dim3(1), dim3(32), 0, "deadlock", [] {
		if (threadIdx.x < 16)
			warp_sync();
		else
			__syncthreads();
	});
}

static void bounds()
{
	alignas(16) static float data[16];
	run_all(dim3(1), dim3(32), 0, "not aligned", [] { load_vector<float4>(data + 1); });
	run_all(dim3(1), dim3(32), 0, "not aligned", [] { store_vector(data + 2, float4{}); });
	run_all(dim3(1), dim3(32), 0, "async copies under way", [] {
		SHARED(float4, to, 1);
		if (threadIdx.x == 3)
			copy_async_16(to, data);
	});
	run_all(dim3(1), dim3(32), 0, "not aligned", [] {
		SHARED(float, to, 8);
		copy_async_16(to + 1, data);
	});
	run_all(dim3(1), dim3(32), 0, "not in shared memory", [] {
		copy_async_16(data, data + 4);
	});
	run_all(dim3(1), dim3(32), 0, "more shared memory", [] {
		SHARED(float, a, 30000);
		SHARED(float, b, 30000);
		a[0] = b[0] = 0;
	});
	run_all(dim3(1), dim3(33), 0, "whole warps", [] {});
	run_all(dim3(1, 70000), dim3(32), 0, "cannot be launched", [] {});
}

/* Where the address sanitizer watches, it ends the program before the guard is looked at. */
static void guards()
{
#ifndef EMULATE_WATCHED
	run_all(dim3(1), dim3(32), 16, "beyond its end", [] {
		SHARED_DYNAMIC(unsigned char, dynamic);
		volatile unsigned char *p = dynamic;
		if (threadIdx.x == 0)
			p[16] = 1;
	});
#endif
	int unset = 0;
	run_all(dim3(2), dim3(32), 64, NULL, [&] {
		SHARED_DYNAMIC(float, dynamic);
		SHARED(float, fixed, 4);
		unset |= !(dynamic[3] == dynamic[3]) && !(fixed[3] == fixed[3]) ? 1 : 2;
		__syncthreads();
		dynamic[3] = fixed[3] = 1; /* and the next block finds NaN again */
	});
	EXPECT_EQ(unset, 1);
}

struct add_one {
	int *p;
};

static void add_kernel(add_one a)
{
	if (threadIdx.x == 0)
		*a.p += 1;
}

static void broken_kernel(add_one a)
{
	(void)a;
	if (threadIdx.x < 32)
		__syncthreads();
}

/* Streams put work off, events order it, graphs repeat it, a lost context stays lost. */
static void runtime()
{
	cudaStream_t one, two;
	cudaEvent_t event;
	cudaGraph_t graph;
	cudaGraphExec_t exec;
	void *memory;
	int host = 7, back = 0;
	REQUIRE(cudaStreamCreateWithFlags(&one, cudaStreamNonBlocking) == cudaSuccess);
	REQUIRE(cudaStreamCreateWithFlags(&two, cudaStreamNonBlocking) == cudaSuccess);
	REQUIRE(cudaEventCreateWithFlags(&event, cudaEventDisableTiming) == cudaSuccess);
	REQUIRE(cudaMalloc(&memory, sizeof(int)) == cudaSuccess);
	const add_one a = {(int *)memory};
	cudaMemcpyAsync(memory, &host, sizeof host, cudaMemcpyHostToDevice, one);
	host = 20; /* read when it runs */
	LAUNCH(add_kernel, dim3(1), dim3(32), 0, one, a);
	cudaMemcpy(&back, memory, sizeof back, cudaMemcpyDeviceToHost);
	EXPECT(back != 21); /* the blocking copy waits for no stream */
	cudaEventRecord(event, one);
	cudaStreamWaitEvent(two, event, 0);
	cudaMemcpyAsync(&back, memory, sizeof back, cudaMemcpyDeviceToHost, two);
	EXPECT(cudaStreamSynchronize(two) == cudaSuccess);
	EXPECT_EQ(back, 21);
	cudaStreamBeginCapture(one, cudaStreamCaptureModeThreadLocal);
	LAUNCH(add_kernel, dim3(1), dim3(32), 0, one, a);
	LAUNCH(add_kernel, dim3(1), dim3(32), 0, one, a);
	EXPECT(cudaStreamEndCapture(one, &graph) == cudaSuccess);
	EXPECT(cudaGraphInstantiate(&exec, graph, 0) == cudaSuccess);
	cudaGraphLaunch(exec, one);
	cudaGraphLaunch(exec, one);
	EXPECT(cudaStreamSynchronize(one) == cudaSuccess);
	cudaMemcpy(&back, memory, sizeof back, cudaMemcpyDeviceToHost);
	EXPECT_EQ(back, 25);
	LAUNCH(broken_kernel, dim3(1), dim3(64), 0, one, a);
	EXPECT(cudaStreamSynchronize(one) == cudaErrorLaunchFailure);
	EXPECT(cudaStreamSynchronize(one) == cudaErrorLaunchFailure);
	const char *fault = emulate_fault();
	EXPECT(fault && strstr(fault, "broken_kernel"));
	cudaGetLastError();
	emulate_runtime_lose(1);
	EXPECT(cudaSetDevice(0) == cudaSuccess);
	EXPECT(cudaSetDevice(0) == cudaErrorLaunchFailure);
	EXPECT(cudaSetDevice(0) == cudaErrorLaunchFailure);
	emulate_runtime_lose(-1);
	void *other;
	EXPECT(cudaMalloc(&other, (size_t)1 << 31) == cudaErrorMemoryAllocation);
	EXPECT_EQ(emulate_runtime_taken(), 4 + 2 * (4 << 10)); /* and the graph's two nodes */
	cudaFree(memory);
	cudaGraphDestroy(graph);
	cudaGraphExecDestroy(exec);
	EXPECT_EQ(emulate_runtime_taken(), 0);
	cudaEventDestroy(event);
	cudaStreamDestroy(one);
	cudaStreamDestroy(two);
}

/* What a process does at its end, in another one: 0, or not. */
template <class F> static int ends(F does)
{
	int status = 0;
	fflush(stdout);
	const pid_t pid = fork();
	if (pid == 0) {
		if (!freopen("/dev/null", "w", stderr))
			_exit(9);
		does();
		_exit(0);
	}
	return pid < 0 || waitpid(pid, &status, 0) != pid ? -1 : status;
}

/* Device memory is the device's: the host cannot read it, and nobody what lies behind it. */
static void memory_apart()
{
	void *memory;
	int back = 0;
	const int host = 5;
	REQUIRE(cudaMalloc(&memory, 300) == cudaSuccess);
	EXPECT(cudaMemcpy(memory, &host, sizeof host, cudaMemcpyHostToDevice) == cudaSuccess);
	EXPECT(cudaMemcpy(&back, memory, sizeof back, cudaMemcpyDeviceToHost) == cudaSuccess && back == 5);
	const volatile int *const at = (const volatile int *)memory;
	EXPECT(ends([] {}) == 0);
	EXPECT(ends([at] { (void)*at; }) != 0);
	EXPECT(ends([at] { *const_cast<volatile int *>(at) = 1; }) != 0);
	void *const behind = (char *)memory + 512;
	for (int beyond = 0; beyond < 2; beyond++) {
		const int status = ends([&] {
			const emulate_machine usual = {1, 13000, 9, 0, (size_t)1 << 30, 0, 0};
			emulate_runtime_machine(&usual); /* a fork may not use it else */
			(void)cudaMemcpy(&back, beyond ? behind : memory, sizeof back, cudaMemcpyDeviceToHost);
		});
		EXPECT((status != 0) == (beyond != 0));
	}
	cudaFree(memory);
	EXPECT_EQ(emulate_runtime_taken(), 0);
}

int main()
{
	TAP_RUN(places, "every thread of every block runs once and knows its place");
	TAP_RUN(pairs, "bytes and pairs of bf16 as the manual has them, all 65,536");
	TAP_RUN(barriers, "a tree in shared memory with its barriers");
	TAP_RUN(barrier_missing, "a missing barrier shows");
	TAP_RUN(collectives, "shuffles and ballots");
	TAP_RUN(matrix_bf16, "bf16 products by the fragments' layout");
	TAP_RUN(matrix_s8, "int8 products by the fragments' layout");
	TAP_RUN(async_copies, "async copies arrive at the wait");
	TAP_RUN(atomics, "atomics");
	TAP_RUN(divergence, "divergent barriers and collectives, and deadlock, are found");
	TAP_RUN(bounds, "misalignment, lost copies, too much shared memory are found");
	TAP_RUN(guards, "shared memory is NaN at first and guarded");
	TAP_RUN(runtime, "streams, events, graphs, a lost context");
	TAP_RUN(memory_apart, "device memory is not the host's, and has an end");
	return tap_done();
}
