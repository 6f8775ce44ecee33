/*
 * Several GPUs that split a model, a process for each. All they need of one another is a gather on the
 * step's stream; sums, faults and logits are put together from it by own kernels in the order of the
 * ranks, so a row's sum has the same bits in every batch (K1), which NCCL's own reductions do not
 * promise. A gather goes over NCCL (nccl.cu) where the machine has it, else through the host, in stream
 * order, by the plan's collective. Both may be captured in a graph.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/device.h"

enum { RANKS_THREADS = 256 };

/* x[i] = ((all of rank 0 + rank 1) + rank 2) + ... */
__global__ __launch_bounds__(RANKS_THREADS) void ranks_sum(const struct ranks_args a)
{
	const size_t i = (size_t)blockIdx.x * RANKS_THREADS + threadIdx.x;
	if (i >= a.count)
		return;
	float sum = a.all[i];
	for (uint32_t r = 1; r < a.ranks; r++)
		sum += a.all[r * a.count + i];
	a.x[i] = sum;
}

/* A row of logits from the ranks' columns. */
__global__ __launch_bounds__(RANKS_THREADS) void ranks_logits(const struct ranks_args a)
{
	const uint32_t sample = blockIdx.y, id = blockIdx.x * RANKS_THREADS + threadIdx.x;
	if (sample >= STEP(a.step)->sample_count || id >= a.vocab)
		return;
	const uint32_t rank = id / a.share;
	a.x[(size_t)sample * a.vocab + id] = a.all[rank * a.count + (size_t)sample * a.share + id % a.share];
}

/* The lowest rank that found a fault has the word. */
__global__ __launch_bounds__(RANKS_THREADS) void ranks_faults(const struct ranks_args a)
{
	const uint32_t i = blockIdx.x * RANKS_THREADS + threadIdx.x;
	if (i >= STEP(a.step)->sequence_count)
		return;
	const struct ops_fault *const all = reinterpret_cast<const struct ops_fault *>(a.all);
	for (uint32_t r = a.ranks; r-- > 0;)
		if (all[r * a.count + i].page != (uint32_t)OPS_NONE)
			a.faults[i] = all[r * a.count + i];
}

/* ---- through the host ---- */

/* What a host function of a graph is called with: one for each size, as long as the device. */
struct exchange {
	struct exchange *next;
	struct device *d;
	size_t bytes;
};

static void exchange_run(void *arg)
{
	const struct exchange *e = static_cast<const struct exchange *>(arg);
	const struct collective *c = e->d->plan.collective;
	if (!e->d->rank_lost && c->gather(c->self, e->d->rank_host, e->bytes, e->d->rank_host_all) != 0)
		e->d->rank_lost = true;
}

static struct exchange *exchange_of(struct device *d, size_t bytes)
{
	struct exchange *e = d->exchanges;
	while (e && e->bytes != bytes)
		e = e->next;
	if (e)
		return e;
	e = static_cast<struct exchange *>(calloc(1, sizeof *e));
	if (!e)
		return NULL;
	e->d = d;
	e->bytes = bytes;
	e->next = d->exchanges;
	d->exchanges = e;
	return e;
}

/* Errors are found where a launch's are. */
static void host_gather(struct device *d, const void *mine, size_t bytes)
{
	struct exchange *const e = exchange_of(d, bytes);
	if (!e) {
		d->rank_lost = true;
		return;
	}
	cudaMemcpyAsync(d->rank_host, mine, bytes, cudaMemcpyDeviceToHost, d->step);
	cudaLaunchHostFunc(d->step, exchange_run, e);
	cudaMemcpyAsync(d->rank_all, d->rank_host_all, bytes * d->plan.ranks, cudaMemcpyHostToDevice, d->step);
}

/* ---- what the device asks ---- */

size_t ranks_piece_bytes(const struct device_plan *p)
{
	const size_t rows = (size_t)p->rows_max * p->width, logits = (size_t)p->samples_max * p->vocab_share;
	const size_t faults = p->sequences_max * sizeof(struct ops_fault) / sizeof(float);
	const size_t most = rows > logits ? rows : logits;
	return (most > faults ? most : faults) * sizeof(float);
}

/* Every rank comes here when its memory is made, or could not be: NCCL waits for all of them. */
int ranks_open(struct device *d, int code)
{
	const struct collective *c = d->plan.collective;
	int all[1024], mine = code == 0 && nccl_found() ? 1 : code;
	CHECK(d->plan.ranks <= sizeof all / sizeof all[0]);
	TRY(c->gather(c->self, &mine, sizeof mine, all));
	bool nccl = true;
	for (uint32_t r = 0; r < d->plan.ranks; r++) {
		if (all[r] < 0)
			return code ? code : -ERR_MEMORY;
		nccl = nccl && all[r] == 1;
	}
	if (!nccl && nccl_found())
		return -ERR_UNSUPPORTED; /* there is no room for the host's way: some rank lacks NCCL */
	return nccl ? nccl_open(d) : 0;
}

void ranks_close(struct device *d)
{
	nccl_close(d);
	while (d->exchanges) {
		struct exchange *const e = d->exchanges;
		d->exchanges = e->next;
		free(e);
	}
}

int ranks_sound(struct device *d)
{
	if (!d->rank_lost)
		return 0;
	d->lost = true;
	return -ERR_INTERNAL;
}

/* For the step's stream. A kernel of NCCL's waits for a rank that is gone for ever. */
int ranks_wait(struct device *d)
{
	if (d->nccl)
		TRY(nccl_wait(d));
	else
		CUDA_TRY(d, cudaStreamSynchronize(d->step));
	return ranks_sound(d);
}

static void gather(struct device *d, const void *mine, size_t bytes)
{
	if (!d->rank_host)
		nccl_gather(d, mine, bytes);
	else
		host_gather(d, mine, bytes);
}

static struct ranks_args args_of(const struct device *d, size_t count)
{
	struct ranks_args a;
	memset(&a, 0, sizeof a);
	a.step = d->block;
	a.all = reinterpret_cast<const float *>(d->rank_all);
	a.ranks = d->plan.ranks;
	a.count = count;
	return a;
}

void ranks_sum_run(struct device *d, float *x, size_t count)
{
	struct ranks_args a = args_of(d, count);
	a.x = x;
	gather(d, x, count * sizeof *x);
	LAUNCH(ranks_sum, dim3((unsigned)((count + RANKS_THREADS - 1) / RANKS_THREADS)), dim3(RANKS_THREADS), 0,
	       d->step, a);
}

void ranks_faults_run(struct device *d, uint32_t sequences)
{
	struct ranks_args a = args_of(d, sequences);
	a.faults = d->faults;
	gather(d, d->faults, sequences * sizeof *d->faults);
	LAUNCH(ranks_faults, dim3((sequences + RANKS_THREADS - 1) / RANKS_THREADS), dim3(RANKS_THREADS), 0,
	       d->step, a);
}

void ranks_logits_run(struct device *d, uint32_t samples)
{
	const struct device_plan *p = &d->plan;
	struct ranks_args a = args_of(d, (size_t)samples * p->vocab_share);
	a.x = d->buffer[BUFFER_LOGITS];
	a.vocab = p->vocab;
	a.share = p->vocab_share;
	gather(d, d->rank_part, a.count * sizeof(float));
	LAUNCH(ranks_logits, dim3((p->vocab + RANKS_THREADS - 1) / RANKS_THREADS, samples), dim3(RANKS_THREADS),
	       0, d->step, a);
}
