/*
 * The gather of several ranks by NCCL. It is looked for when the first device of several is opened; a
 * program without it goes through the host. Its first word (its id) travels by the plan's collective.
 *
 * No call of it waits: the communicator is made not to block, and who waits for it looks now and then
 * whether all ranks live and whether the plan's time for a start is over. Then the communicator is aborted.
 *
 * What of its interface is used is declared here, as the documentation of version 2.14 and later has it
 * (the struct of options is 2.14's, which later ones take), so that no header of it is needed; where there
 * is one, nvcc compares.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kernels/cuda/device.h"

enum { NC_SUCCESS = 0, NC_IN_PROGRESS = 7, NC_INT8 = 0, NC_VERSION_LEAST = 21400 };
enum { NC_LINE_BYTES = 160, CLOSE_SECONDS = 2 };
struct nc_id {
	char bytes[128];
};
struct nc_config {
	size_t size;
	unsigned magic, version;
	int blocking;
};

#if defined(__CUDACC__) && defined(__has_include)
#if __has_include(<nccl.h>)
#include <nccl.h>
#define NCCL_SEEN
static_assert((int)NC_SUCCESS == ncclSuccess && (int)NC_IN_PROGRESS == ncclInProgress &&
		      (int)NC_INT8 == ncclInt8 && sizeof(struct nc_id) == sizeof(ncclUniqueId),
	      "names");
static_assert(offsetof(struct nc_config, magic) == offsetof(ncclConfig_t, magic) &&
		      offsetof(struct nc_config, version) == offsetof(ncclConfig_t, version) &&
		      offsetof(struct nc_config, blocking) == offsetof(ncclConfig_t, blocking),
	      "the options");
#endif
#endif

struct nc {
	int (*version)(int *);
	int (*id)(struct nc_id *);
	int (*init)(void **, int, struct nc_id, int, struct nc_config *);
	int (*state)(void *, int *);
	int (*gather)(const void *, void *, size_t, int, void *, cudaStream_t);
	int (*finalize)(void *);
	int (*destroy)(void *);
	int (*abort)(void *);
};

#ifdef NCCL_SEEN
CALLED_ALIKE(struct nc, version, ncclGetVersion);
CALLED_ALIKE(struct nc, id, ncclGetUniqueId);
CALLED_ALIKE(struct nc, init, ncclCommInitRankConfig);
CALLED_ALIKE(struct nc, state, ncclCommGetAsyncError);
CALLED_ALIKE(struct nc, gather, ncclAllGather);
CALLED_ALIKE(struct nc, finalize, ncclCommFinalize);
CALLED_ALIKE(struct nc, destroy, ncclCommDestroy);
CALLED_ALIKE(struct nc, abort, ncclCommAbort);
#endif

/* HOLDFAST_NCCL: a path, or "off". Emulated, there is none but what it names. */
static void *library_open()
{
	const char *const named = getenv("HOLDFAST_NCCL");
	if (named)
		return strcmp(named, "off") == 0 ? NULL : dlopen(named, RTLD_NOW | RTLD_LOCAL);
#ifdef __CUDACC__
	return dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
#else
	return NULL;
#endif
}

/* NULL where it is not. */
static const struct nc *nc_find()
{
	static struct nc t;
	static int state; /* 1: there, 2: not */
	if (state == 0) {
		int version = 0;
		void *const l = library_open();
		const bool there = l && library_name(l, "ncclGetVersion", &t.version) &&
				   library_name(l, "ncclGetUniqueId", &t.id) &&
				   library_name(l, "ncclCommInitRankConfig", &t.init) &&
				   library_name(l, "ncclCommGetAsyncError", &t.state) &&
				   library_name(l, "ncclAllGather", &t.gather) &&
				   library_name(l, "ncclCommFinalize", &t.finalize) &&
				   library_name(l, "ncclCommDestroy", &t.destroy) &&
				   library_name(l, "ncclCommAbort", &t.abort) &&
				   t.version(&version) == NC_SUCCESS && version >= NC_VERSION_LEAST;
		state = there ? 1 : 2;
	}
	return state == 1 ? &t : NULL;
}

bool nccl_found()
{
	return nc_find() != NULL;
}

/* ---- waiting ---- */

static double seconds_now()
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* The communicator is of no more use, nor is the device. */
static int nccl_lost(struct device *d, int code, const char *why)
{
	fprintf(stderr, "cuda: %s\n", why);
	d->lost = true;
	nccl_close(d);
	return code;
}

static bool all_live(const struct device *d)
{
	const struct collective *const c = d->plan.collective;
	return c->alive(c->self) == 0;
}

/* Until what was asked of the communicator is under way on the stream, or has failed: why, in line. most: in
   seconds; 0: no end. */
static int nccl_await(const struct device *d, int code, uint32_t most, char line[NC_LINE_BYTES])
{
	const struct timespec pause = {0, 100000};
	const double end = seconds_now() + most;
	for (uint32_t turn = 1; code == NC_IN_PROGRESS; turn++) {
		if (nc_find()->state(d->nccl, &code) != NC_SUCCESS) {
			snprintf(line, NC_LINE_BYTES, "NCCL does not say how it is");
			return -ERR_INTERNAL;
		}
		if (code != NC_IN_PROGRESS)
			break;
		if (turn < 1000)
			continue;
		nanosleep(&pause, NULL);
		if (turn % 100 == 0 && !all_live(d)) {
			snprintf(line, NC_LINE_BYTES, "a rank is gone; NCCL is left");
			return -ERR_INTERNAL;
		}
		if (most && seconds_now() > end) {
			snprintf(line, NC_LINE_BYTES, "NCCL is not ready between %u ranks after %u seconds "
				 "(--ranks-start-seconds)", d->plan.ranks, most);
			return -ERR_TIMEOUT;
		}
	}
	if (code == NC_SUCCESS)
		return 0;
	snprintf(line, NC_LINE_BYTES, "NCCL fails between the ranks (its result is %d)", code);
	return -ERR_INTERNAL;
}

static int nccl_settle(struct device *d, int code)
{
	char line[NC_LINE_BYTES];
	const int done = nccl_await(d, code, d->plan.start_seconds, line);
	return done == 0 ? 0 : nccl_lost(d, done, line);
}

int nccl_wait(struct device *d)
{
	const struct timespec pause = {0, 20000};
	for (uint32_t turn = 1;; turn++) {
		const cudaError_t error = cudaStreamQuery(d->step);
		if (error == cudaSuccess)
			return 0;
		if (error != cudaErrorNotReady)
			return cuda_error(d, error);
		if (turn < 2000)
			continue;
		nanosleep(&pause, NULL);
		if (turn % 1000 == 0 && !all_live(d))
			return nccl_lost(d, -ERR_INTERNAL, "a rank is gone; NCCL is left");
	}
}

/* ---- life ---- */

int nccl_open(struct device *d)
{
	const struct nc *const n = nc_find();
	const struct collective *const c = d->plan.collective;
	struct nc_id id;
	struct nc_config config = {sizeof config, 0xcafebeef, NC_VERSION_LEAST, 0 /* it does not block */};
	int version = 0;
	memset(&id, 0, sizeof id);
	if (d->plan.rank == 0 && n->id(&id) != NC_SUCCESS)
		memset(&id, 0, sizeof id);
	TRY(c->broadcast(c->self, &id, sizeof id));
	TRY(nccl_settle(d, n->init(&d->nccl, (int)d->plan.ranks, id, (int)d->plan.rank, &config)));
	n->version(&version);
	const size_t at = strlen(d->name);
	snprintf(d->name + at, sizeof d->name - at, ", NCCL %d", version);
	return 0;
}

/* Nobody needs it any more: what does not end in time is left, and no words are made of it. */
void nccl_close(struct device *d)
{
	char line[NC_LINE_BYTES];
	if (!d->nccl)
		return;
	if (!d->lost && nccl_await(d, nc_find()->finalize(d->nccl), CLOSE_SECONDS, line) == 0)
		nc_find()->destroy(d->nccl);
	else
		nc_find()->abort(d->nccl);
	d->nccl = NULL;
}

void nccl_gather(struct device *d, const void *mine, size_t bytes)
{
	if (d->lost || !d->nccl ||
	    nccl_settle(d, nc_find()->gather(mine, d->rank_all, bytes, NC_INT8, d->nccl, d->step)) != 0)
		d->rank_lost = true;
}
