/*
 * The CUDA device's own state, and what its files share: device.cu (life, weights, buffers,
 * the table), pages.cu, step.cu (the step's operations, the graphs, the one wait). Private to kernels/cuda/.
 *
 * Operations are written down when they are called and launched together, at `wait` or at whatever
 * else needs their result: as a captured graph when the step is small enough for one. All memory of
 * the step is one piece of the device's, cut up when the device is opened.
 */
#ifndef HOLDFAST_KERNELS_CUDA_DEVICE_H
#define HOLDFAST_KERNELS_CUDA_DEVICE_H

#include "kernels/cuda/cuda.h"

enum {
	ROPE_SETS = 4,     /* distinct rotary parameters kept for a batch */
	GRAPHS_MAX = 64,   /* kept; a step beyond them runs without one */
	GRAPH_ROWS_MAX = 128,
	GRAPH_ROOM_BYTES = 64 << 20, /* for the driver's memory of graphs: charged, and not passed */
	PARTIAL_BYTES_MAX = 64 << 20,
	DIGESTS_MAX = 64, /* pages of one launch */
	GROUP_HEADS_MAX = 32, /* query heads that share a KV head, on tensor cores */
	TILE_HEAD_MAX = 256,  /* values of a head, for units of several rows */
	BLAS_ROOM_BYTES = 32 << 20 /* cuBLASLt's workspace */
};

struct weight {
	struct matrix m;
	uint32_t type, use;
	size_t bytes;
	void *memory;      /* on the device */
	struct given_copy copy; /* there too, behind the matrix */
	float *vector;     /* there too: a vector's floats; NULL for a matrix */
	float *host;       /* a vector's floats on the host */
	struct weight *next, **link; /* in the device's list, with which it is freed */
};

struct rope_set {
	float base, scale;
	uint32_t dims;
	const struct weight *factors;
	double *host;      /* KV_HEAD_MAX / 2, pinned */
	double *frequency; /* on the device */
	float *turns;
	bool used;         /* by the batch: its turns are made, or will be */
};

struct group {
	uint32_t layers, page_count;
	uint64_t page_bytes;
	uint8_t *pages;
	uint64_t *tags;
};

enum call_kind {
	CALL_TAGS, CALL_EMBED, CALL_QKV, CALL_TURNS, CALL_ROPE, CALL_ATTEND, CALL_OUTPUT, CALL_GATE_UP,
	CALL_DOWN, CALL_HEAD, CALL_SAMPLE
};

/* One operation of the step, checked. All of it is compared when a graph is looked for, so it has no
   byte that is not set. */
struct call {
	uint32_t kind, rope;
	const struct weight *first, *second; /* embedding; or the head's norm and matrix */
	float x, y;                          /* scale; or epsilon and softcap */
	struct ops_layer layer;
};

/* What makes a captured graph the right one, with the calls themselves. */
struct graph_key {
	uint32_t rows, samples, sequences, units[UNIT_KINDS], partitions, phases[2], calls;
};
struct graph {
	struct graph_key key;
	cudaGraphExec_t exec;
};

struct device {
	struct device_plan plan;
	char name[64]; /* "sm_90", and the libraries in use */
	enum act_kind act;
	uint32_t shared_most;
	int major; /* of its compute capability */
	bool opened;
	bool lost; /* the context is; every operation is refused */
	bool graphs_off;
	bool failed; /* a call for the step under way was refused: it must not go on */

	cudaStream_t step, copy;
	cudaEvent_t stepped, copied;
	uint8_t *slab;    /* on the device: all that follows */
	uint8_t *host;    /* pinned: all that follows */

	float *buffer[BUFFER_COUNT];
	size_t buffer_floats[BUFFER_COUNT];
	float *up, *product;
	struct act_rows enter;
	float *partials;
	size_t partial_floats;
	float *sample_work;
	struct ops_fault *faults;
	struct ops_sampled *sampled;
	uint8_t *block;   /* STEP_BYTES, the batch's block, the units */
	size_t block_bytes;
	struct group group[OPS_GROUP_MAX];
	struct rope_set rope[ROPE_SETS];

	/* Pinned. Two rooms for blocks: one is checked while the other is current. */
	uint8_t *staging[2];
	struct ops_fault *host_faults, *faults_none;
	struct ops_sampled *host_sampled, *sampled_none;
	uint8_t *page_room;
	size_t page_room_bytes;
	uint8_t *pinned; /* the caller's: pages are copied there without the room */
	size_t pinned_bytes;
	struct digest_page *digest_list; /* on the device, with the digests of blocks */
	uint64_t *digests;
	uint32_t blocks_most; /* of a page */

	/* Given tokens with weights of their own: their rows, the rows' scales, a library's sums. */
	uint8_t *given_x, *given_sums, *blas_room;
	float *given_scales;
	struct blas *blas; /* NULL: own kernels */

	/* Several ranks: all ranks' pieces, this rank's logits; pinned ones where NCCL is not. */
	uint8_t *rank_all, *rank_host, *rank_host_all;
	float *rank_part;
	void *nccl;               /* NULL: through the host */
	struct exchange *exchanges;
	volatile bool rank_lost;  /* set by a function of the stream's */

	/* The current batch. */
	uint32_t units[UNIT_KINDS], partitions; /* most of a unit, windows aside */
	bool copied_down;  /* sampled and faults are on the host */
	bool fresh;        /* no operation was launched since the batch came */
	struct weight *weights;
	struct call *calls; /* the step's call_max, then each graph's (graph_calls) */
	uint32_t call_count, call_max;
	struct graph graphs[GRAPHS_MAX];
	uint32_t graph_count;
	size_t graph_bytes; /* that the driver took for them */
	bool graphs_full;   /* one more did not fit */
	size_t beside;      /* that libraries took */
};

/* A CUDA error: our code. The device is lost, unless it is being opened and there is no memory. */
int cuda_error(struct device *d, cudaError_t error);
#define CUDA_TRY(d, call) \
	do { \
		const cudaError_t error_ = (call); \
		if (error_ != cudaSuccess) \
			return cuda_error((d), error_); \
	} while (0)

/* Whether two functions are called alike: the same number of arguments, each as wide, an address or a number
   alike. The libraries' handles and enumerations have names of their own, so the types themselves differ. */
#ifdef __CUDACC__
#include <type_traits>
template <class T> constexpr size_t call_kind_of()
{
	if constexpr (std::is_void<T>::value)
		return 0;
	else
		return (std::is_pointer<T>::value ? 1 : std::is_class<T>::value ? 2
			: std::is_floating_point<T>::value ? 3 : 4) + 8 * sizeof(T);
}
template <class R, class... A, class S, class... B> constexpr bool called_alike(R (*)(A...), S (*)(B...))
{
	const size_t a[] = {call_kind_of<R>(), call_kind_of<A>()...};
	const size_t b[] = {call_kind_of<S>(), call_kind_of<B>()...};
	bool alike = sizeof...(A) == sizeof...(B);
	for (size_t i = 0; alike && i <= sizeof...(A); i++)
		alike = a[i] == b[i];
	return alike;
}
#define CALLED_ALIKE(type, member, function) \
	static_assert(called_alike(decltype(((type *)0)->member)(nullptr), decltype(&function)(nullptr)), \
		      #function)
#endif

/* Puts the address of a library's function into *out. */
bool library_name(void *library, const char *name, void *out);

/* copy.cu. A weight's copy for given tokens: its rows, then their scales; 0 where the columns do not
   allow it. */
size_t given_bytes(const struct device_plan *plan, enum weight_use use, uint32_t rows, uint32_t columns);
/* Makes it `at` bytes behind the weight's beginning. */
int given_make(struct device *d, struct weight *w, size_t at);

/* blas.cu. An unusable library is none, and no error. */
bool blas_found();
size_t blas_sums_bytes(const struct device_plan *plan);
int blas_open(struct device *d);
void blas_close(struct device *d);
/* For a matrix of this shape, when it is made. */
int blas_shape_add(struct device *d, uint32_t rows, uint32_t columns);
/* sums[token][row], `tokens` of the bucket or some more; false: not its shape. */
bool blas_run(struct device *d, const struct product *p, const void *x, uint32_t tokens, void *sums);

/* nccl.cu. Every rank comes to open; gather's failures are found by ranks_sound. */
bool nccl_found();
int nccl_open(struct device *d);
void nccl_close(struct device *d);
int nccl_wait(struct device *d); /* for the step's stream */
void nccl_gather(struct device *d, const void *mine, size_t bytes);

/* ranks.cu. What is put into a graph counts by the bucket, so it is alike on all ranks. */
size_t ranks_piece_bytes(const struct device_plan *plan);
int ranks_open(struct device *d, int code);
void ranks_close(struct device *d);
int ranks_sound(struct device *d); /* -ERR_INTERNAL, and lost, when a rank is gone */
int ranks_wait(struct device *d);  /* for the step's stream */
void ranks_sum_run(struct device *d, float *x, size_t count);
void ranks_faults_run(struct device *d, uint32_t sequences);
void ranks_logits_run(struct device *d, uint32_t samples);

/* Launches what was written down. */
int step_flush(struct device *d);
/* And waits for it. */
int step_settle(struct device *d);
size_t step_block_bytes(const struct device_plan *plan);
void graphs_drop(struct device *d);

static inline const struct step *step_now(const struct device *d)
{
	return reinterpret_cast<const struct step *>(d->staging[0]);
}

extern "C" {
int cuda_batch(struct device *d, const struct ops_batch *block);
int cuda_tag_check(struct device *d);
int cuda_tag_skip(struct device *d);
int cuda_embed(struct device *d, const struct weight *embedding, float scale);
int cuda_qkv(struct device *d, const struct ops_layer *layer);
int cuda_rope_write(struct device *d, const struct ops_layer *layer);
int cuda_attend(struct device *d, const struct ops_layer *layer);
int cuda_output(struct device *d, const struct ops_layer *layer);
int cuda_gate_up(struct device *d, const struct ops_layer *layer);
int cuda_down(struct device *d, const struct ops_layer *layer);
int cuda_head(struct device *d, const struct weight *norm, float epsilon, const struct weight *head,
	      float softcap);
int cuda_sample(struct device *d);
int cuda_wait(struct device *d, struct ops_sampled *sampled, struct ops_fault *faults);
int cuda_page_tags_set(struct device *d, uint32_t group, uint32_t page_first, uint32_t page_count,
		       uint64_t tag_first);
int cuda_page_tag(struct device *d, uint32_t group, uint32_t page, uint64_t *tag);
int cuda_page_clear(struct device *d, uint32_t group, uint32_t page_first, uint32_t page_count);
int cuda_page_copy(struct device *d, uint32_t group, uint32_t from, uint32_t to);
int cuda_page_read(struct device *d, uint32_t group, uint32_t page, void *to);
int cuda_page_write(struct device *d, uint32_t group, uint32_t page, const void *from);
int cuda_page_digests(struct device *d, struct ops_digest *list, uint32_t count);
int cuda_host_pin(struct device *d, void *memory, size_t bytes);
}

#endif
