/*
 * The fibers behind emulate.h: threads of a block, their barriers, shared memory and async copies.
 */
#include "kernels/cuda/emulate.h"

#include <stdio.h>
#include <stdlib.h>

#include <algorithm>
#include <vector>

#ifdef EMULATE_WATCHED
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

namespace {

#ifdef EMULATE_WATCHED
enum { STACK_BYTES = 192 << 10, STACK_LEFT = 4 << 10 };
#else
enum { STACK_BYTES = 64 << 10 };
#endif
enum { THREADS_MAX = 1024, GUARD_BYTES = 64, SHARED_MAX = 227 << 10, STACK_MARK = 64 };

enum state { STATE_RUN, STATE_BARRIER, STATE_WARP, STATE_DONE };

struct copy {
	void *to;
	const void *from;
	size_t bytes;
	unsigned group;
};

struct fiber {
	void *stack_pointer;
	unsigned char *stack;
	enum state state;
	int site;
	emulate_place place;
	unsigned exchanges; /* how many it has entered */
	std::vector<copy> copies;
	unsigned copy_group;
	void *fake_stack;
	int lane;
	struct warp *warp;
	~fiber() { free(stack); }
};

struct warp {
	alignas(16) unsigned char slot[2][WARP][EMULATE_EXCHANGE_MAX];
	fiber *lanes;
	unsigned char order[WARP];
	int at;      /* in the order: the lane that runs */
	int waiting; /* lanes at the collective */
};

struct piece {
	const void *key;
	unsigned char *at;
	size_t bytes;
};

std::vector<fiber> fibers;
std::vector<warp> warps;
std::vector<piece> pieces;
void *scheduler_pointer;
fiber *current;
const std::function<void()> *body;
const char *kernel_name;
piece dynamic;
char fault_text[EMULATE_FAULT_MAX], fault_read[EMULATE_FAULT_MAX];
uint64_t seed_now, random_state;
bool faulted; /* within this launch */

uint64_t random_draw()
{
	uint64_t z = random_state += 0x9e3779b97f4a7c15u; /* splitmix64 */
	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
	return z ^ (z >> 31);
}

/* 0 .. n-1 in the order of the seed. */
void order_make(std::vector<unsigned> &order, unsigned n)
{
	order.resize(n);
	for (unsigned i = 0; i < n; i++)
		order[i] = seed_now == 1 ? n - 1 - i : i;
	if (seed_now > 1)
		for (unsigned i = n; i > 1; i--)
			std::swap(order[i - 1], order[random_draw() % i]);
}

} // namespace

/* Keeps the callee-saved registers of the System V ABI on the stack that is left. */
extern "C" void emulate_switch(void **from, void *to);
__asm__(".text\n"
	".globl emulate_switch\n"
	".type emulate_switch, @function\n"
	"emulate_switch:\n"
	"	pushq %rbp\n	pushq %rbx\n	pushq %r12\n"
	"	pushq %r13\n	pushq %r14\n	pushq %r15\n"
	"	movq %rsp, (%rdi)\n	movq %rsi, %rsp\n"
	"	popq %r15\n	popq %r14\n	popq %r13\n"
	"	popq %r12\n	popq %rbx\n	popq %rbp\n"
	"	ret\n"
	".size emulate_switch, .-emulate_switch\n"
	".section .note.GNU-stack,\"\",@progbits\n"
	".text\n");

namespace {

#ifdef EMULATE_WATCHED
const void *scheduler_bottom;
size_t scheduler_size;
void *scheduler_fake;
#endif

bool from_scheduler;

/* Leaves f for another fiber, or for the scheduler if `to` is NULL. */
void leave(fiber *f, fiber *to, bool last)
{
	current = to;
	from_scheduler = false;
#ifdef EMULATE_WATCHED
	__sanitizer_start_switch_fiber(last ? NULL : &f->fake_stack, to ? to->stack : scheduler_bottom,
				       to ? (size_t)STACK_BYTES : scheduler_size);
#endif
	emulate_switch(&f->stack_pointer, to ? to->stack_pointer : scheduler_pointer);
#ifdef EMULATE_WATCHED
	const void *bottom;
	size_t size;
	__sanitizer_finish_switch_fiber(f->fake_stack, &bottom, &size);
	if (from_scheduler) {
		scheduler_bottom = bottom;
		scheduler_size = size;
	}
#endif
	(void)last;
}

void to_fiber(fiber *f)
{
	current = f;
	from_scheduler = true;
#ifdef EMULATE_WATCHED
	__sanitizer_start_switch_fiber(&scheduler_fake, f->stack, STACK_BYTES);
#endif
	emulate_switch(&scheduler_pointer, f->stack_pointer);
#ifdef EMULATE_WATCHED
	__sanitizer_finish_switch_fiber(scheduler_fake, NULL, NULL);
#endif
	current = NULL;
}

/* The next lane of the warp that can run, or the scheduler. */
void leave_for_next(bool last)
{
	fiber *const f = current;
	struct warp *const w = f->warp;
	while (!faulted && ++w->at < WARP)
		if (w->lanes[w->order[w->at]].state == STATE_RUN) {
			leave(f, &w->lanes[w->order[w->at]], last);
			return;
		}
	leave(f, NULL, last);
}

void fiber_main()
{
#ifdef EMULATE_WATCHED
	const void *bottom;
	size_t size;
	__sanitizer_finish_switch_fiber(NULL, &bottom, &size);
	if (from_scheduler) {
		scheduler_bottom = bottom;
		scheduler_size = size;
	}
#endif
	(*body)();
	if (!current->copies.empty())
		emulate_fail("a thread left with async copies under way");
	current->state = STATE_DONE;
	leave_for_next(true);
}

void fault_set(const char *what, const fiber *f)
{
	faulted = true;
	if (fault_text[0])
		return;
	const emulate_place *p = &fibers[0].place;
	if (f)
		p = &f->place;
	int n = snprintf(fault_text, sizeof fault_text, "%s, block (%u,%u,%u)", kernel_name, p->block.x,
			 p->block.y, p->block.z);
	if (f)
		n += snprintf(fault_text + n, sizeof fault_text - (size_t)n, ", thread (%u,%u,%u)",
			      p->thread.x, p->thread.y, p->thread.z);
	snprintf(fault_text + n, sizeof fault_text - (size_t)n, ": %s", what);
}

void fiber_start(fiber *f, emulate_place place)
{
	if (!f->stack) {
		f->stack = (unsigned char *)aligned_alloc(64, STACK_BYTES);
		if (!f->stack) {
			fault_set("no memory for a stack", NULL);
			return;
		}
	}
#ifdef EMULATE_WATCHED
	/* What ended has left its last frames alone; what was abandoned may have left any. */
	const size_t used = f->state == STATE_DONE ? (size_t)STACK_LEFT : (size_t)STACK_BYTES;
	__asan_unpoison_memory_region(f->stack + STACK_BYTES - used, used);
#endif
	memset(f->stack, 0xa5, STACK_MARK);
	f->state = STATE_RUN;
	f->place = place;
	f->exchanges = 0;
	f->copies.clear();
	f->copy_group = 0;
	f->fake_stack = NULL;
	/* As if fiber_main had been called: the stack is 8 off a multiple of 16 at its first
	   instruction. Six registers are popped before. */
	void **top = (void **)(void *)(f->stack + STACK_BYTES) - 2;
	*top = (void *)fiber_main;
	f->stack_pointer = top - 6;
	memset(f->stack_pointer, 0, 6 * sizeof(void *));
}

unsigned char *shared_take(size_t bytes)
{
	unsigned char *at = NULL;
	if (posix_memalign((void **)&at, 128, bytes + GUARD_BYTES) != 0)
		return NULL;
	memset(at, 0xff, bytes);
	memset(at + bytes, 0xc3, GUARD_BYTES);
#ifdef EMULATE_WATCHED
	__asan_poison_memory_region(at + (bytes + 7) / 8 * 8, GUARD_BYTES - 8);
#endif
	return at;
}

void shared_give(const piece *p)
{
#ifdef EMULATE_WATCHED
	__asan_unpoison_memory_region(p->at, p->bytes + GUARD_BYTES);
#endif
	for (size_t i = 0; i < GUARD_BYTES; i++)
		if (p->at[p->bytes + i] != 0xc3) {
			fault_set("shared memory was written beyond its end", NULL);
			break;
		}
	free(p->at);
}

/* Says why a warp's lanes do not all wait for the same. */
void warp_judge(const struct warp *w)
{
	int done = 0, elsewhere = 0;
	const fiber *first = NULL;
	for (int i = 0; i < WARP; i++) {
		done += w->lanes[i].state == STATE_DONE;
		elsewhere += w->lanes[i].state == STATE_BARRIER;
		if (w->lanes[i].state == STATE_WARP)
			first = &w->lanes[i];
	}
	if (done)
		fault_set("a warp's collective, and a lane has left", first);
	else if (elsewhere)
		fault_set("deadlock: lanes wait at a collective and at a barrier", first);
	else
		fault_set("lanes of a warp are at different collectives", first);
}

void warp_order(struct warp *w)
{
	w->at = -1;
	if (seed_now <= 1)
		return; /* as it was made */
	for (unsigned i = WARP; i > 1; i--)
		std::swap(w->order[i - 1], w->order[random_draw() % i]);
}

void warp_run(struct warp *w)
{
	for (;;) {
		warp_order(w);
		fiber *first = NULL;
		while (!first && ++w->at < WARP)
			if (w->lanes[w->order[w->at]].state == STATE_RUN)
				first = &w->lanes[w->order[w->at]];
		if (!first)
			break;
		to_fiber(first);
		if (faulted)
			return;
	}
	if (w->waiting)
		warp_judge(w);
}

/* 1 if the block goes on, 0 when all have left. */
int barrier_release(unsigned threads)
{
	const fiber *first = NULL;
	unsigned waiting = 0;
	for (unsigned i = 0; i < threads; i++) {
		if (fibers[i].state != STATE_BARRIER)
			continue;
		if (first && fibers[i].site != first->site) {
			fault_set("divergent __syncthreads: threads are at different ones", first);
			return 0;
		}
		first = &fibers[i];
		waiting++;
	}
	if (waiting == 0)
		return 0;
	if (waiting < threads) {
		fault_set("divergent __syncthreads: threads have left", first);
		return 0;
	}
	for (unsigned i = 0; i < threads; i++)
		fibers[i].state = STATE_RUN;
	return 1;
}

void block_run(dim3 block, dim3 size, dim3 grid, size_t shared_bytes)
{
	const unsigned threads = size.x * size.y * size.z;
	static std::vector<unsigned> order;
	dynamic = piece{NULL, shared_take(shared_bytes), shared_bytes};
	for (unsigned i = 0; i < threads; i++) {
		fiber_start(&fibers[i], emulate_place{dim3(i % size.x, i / size.x % size.y,
							   i / size.x / size.y),
						      block, size, grid});
		fibers[i].lane = (int)(i % WARP);
		fibers[i].warp = &warps[i / WARP];
	}
	for (unsigned i = 0; i < threads / WARP; i++) {
		warps[i].lanes = &fibers[(size_t)i * WARP];
		warps[i].waiting = 0;
		for (int k = 0; k < WARP; k++)
			warps[i].order[k] = (unsigned char)(seed_now == 1 ? WARP - 1 - k : k);
	}
	do {
		order_make(order, threads / WARP);
		const std::vector<unsigned> mine = order;
		for (unsigned i = 0; i < threads / WARP && !faulted; i++)
			warp_run(&warps[mine[i]]);
	} while (!faulted && barrier_release(threads));
	for (unsigned i = 0; i < threads && !faulted; i++)
		for (unsigned k = 0; k < STACK_MARK; k++)
			if (fibers[i].stack[k] != 0xa5) {
				fault_set("a stack was overrun", &fibers[i]);
				break;
			}
	for (const piece &p : pieces)
		shared_give(&p);
	shared_give(&dynamic);
	pieces.clear();
}

void copies_arrive(fiber *f, unsigned before)
{
	size_t kept = 0;
	for (const copy &c : f->copies) {
		if (c.group < before)
			memcpy(c.to, c.from, c.bytes);
		else
			f->copies[kept++] = c;
	}
	f->copies.resize(kept);
}

bool in_piece(const piece *p, const void *at, size_t bytes)
{
	const unsigned char *a = (const unsigned char *)at;
	return p->at && a >= p->at && a + bytes <= p->at + p->bytes;
}

} // namespace

void emulate_run(const char *name, dim3 grid, dim3 block, size_t shared_bytes,
		 const std::function<void()> &kernel)
{
	const unsigned threads = block.x * block.y * block.z;
	kernel_name = name;
	faulted = false;
	if (fibers.empty())
		fibers.resize(THREADS_MAX); /* they do not move: a running one is pointed at */
	if (warps.empty())
		warps.resize(THREADS_MAX / WARP);
	if (threads == 0 || threads > THREADS_MAX || threads % WARP != 0) {
		fault_set("a block must be whole warps, at most 1024 threads", NULL);
		return;
	}
	if (grid.x == 0 || grid.y == 0 || grid.z == 0 || grid.y > 65535 || grid.z > 65535) {
		fault_set("a grid of this size cannot be launched", NULL);
		return;
	}
	if (shared_bytes > SHARED_MAX) {
		fault_set("more shared memory than a block can have", NULL);
		return;
	}
	body = &kernel;
	random_state = seed_now;
	std::vector<unsigned> order;
	order_make(order, grid.x * grid.y * grid.z);
	for (unsigned i = 0; i < order.size() && !faulted; i++)
		block_run(dim3(order[i] % grid.x, order[i] / grid.x % grid.y,
			       order[i] / grid.x / grid.y),
			  block, grid, shared_bytes);
}

void emulate_seed(uint64_t seed)
{
	seed_now = seed;
}

const char *emulate_fault()
{
	if (!fault_text[0])
		return NULL;
	memcpy(fault_read, fault_text, sizeof fault_read);
	fault_text[0] = 0;
	return fault_read;
}

int emulate_faulted()
{
	return fault_text[0] != 0;
}

/* The fiber is left where it stands; the launch ends without it. */
void emulate_fail(const char *what)
{
	fault_set(what, current);
	for (;;)
		leave(current, NULL, false);
}

const emulate_place *emulate_here()
{
	return &current->place;
}

int emulate_lane()
{
	return current->lane;
}

void emulate_barrier(int site)
{
	current->state = STATE_BARRIER;
	current->site = site;
	leave_for_next(false);
}

const unsigned char *emulate_exchange(const void *mine, size_t bytes, int site)
{
	fiber *const f = current;
	struct warp *const w = f->warp;
	/* Two rooms in turn: a lane can be one exchange ahead of the others, never two. */
	unsigned char(*slot)[EMULATE_EXCHANGE_MAX] = w->slot[f->exchanges++ & 1];
	memcpy(slot[f->lane], mine, bytes);
	f->state = STATE_WARP;
	f->site = site;
	if (++w->waiting < WARP) {
		leave_for_next(false);
		return slot[0];
	}
	/* The last to come lets all go, and goes on itself. */
	w->waiting = 0;
	for (int i = 0; i < WARP; i++) {
		if (w->lanes[i].site != site)
			emulate_fail("lanes of a warp are at different collectives");
		w->lanes[i].state = STATE_RUN;
	}
	warp_order(w);
	return slot[0];
}

void emulate_pause()
{
	leave_for_next(false);
}

void *emulate_shared(const void *key, size_t bytes)
{
	for (const piece &p : pieces)
		if (p.key == key)
			return p.at;
	size_t sum = dynamic.bytes + bytes;
	for (const piece &p : pieces)
		sum += p.bytes;
	if (sum > SHARED_MAX)
		emulate_fail("more shared memory than a block can have");
	pieces.push_back(piece{key, shared_take(bytes), bytes});
	return pieces.back().at;
}

void *emulate_shared_dynamic()
{
	return dynamic.at;
}

void emulate_copy_async(void *shared, const void *from, size_t bytes)
{
	bool inside = in_piece(&dynamic, shared, bytes);
	for (const piece &p : pieces)
		inside |= in_piece(&p, shared, bytes);
	if (!inside)
		emulate_fail("an async copy whose target is not in shared memory");
	memset(shared, 0xff, bytes);
	current->copies.push_back(copy{shared, from, bytes, current->copy_group});
}

void emulate_copy_commit()
{
	current->copy_group++;
}

void emulate_copy_wait(int left)
{
	const unsigned groups = current->copy_group, stay = (unsigned)left;
	copies_arrive(current, groups > stay ? groups - stay : 0);
}
