/*
 * Who the ranks are: read from a launcher's environment, or started here as children of rank 0; how
 * they agree before they serve, and how the end of one is noticed.
 */
#define _GNU_SOURCE
#include "runtime/ranks.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "runtime/ranks_inside.h"

/* A variable that holds a number; false if it is not set. -1 in *out: it is no number. */
static bool number_of(const char *name, long *out)
{
	const char *text = getenv(name);
	char *end;
	if (!text || !*text)
		return false;
	const long value = strtol(text, &end, 10);
	*out = *end || value < 0 || value > 65535 ? -1 : value;
	return true;
}

int ranks_place(uint32_t count, struct ranks_place *out, char *reason)
{
	static const char *const names[][4] = {
		{"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"},
		{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
		 "OMPI_COMM_WORLD_LOCAL_SIZE"},
		{"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"},
		{"SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_NTASKS_PER_NODE"},
	};
	const char *address = getenv("MASTER_ADDR"), *port = getenv("MASTER_PORT");
	*out = (struct ranks_place){.local_count = 1};
	/* A shell within a batch job has the numbers of its one task: only with an address they count. */
	if (!address || !*address || count == 1)
		return 0;
	for (unsigned i = 0; i < sizeof names / sizeof names[0]; i++) {
		long rank, world = -1, local = 0, beside = 1;
		if (!number_of(names[i][0], &rank) || !number_of(names[i][1], &world))
			continue;
		if (number_of(names[i][2], &local) && local < 0)
			rank = -1;
		if (rank < 0 || world < 0 || rank >= world) {
			snprintf(reason, RANKS_REASON_MAX, "%s and %s are not a rank and a number of ranks",
				 names[i][0], names[i][1]);
			return -ERR_BAD_ARG;
		}
		if (world != (long)count) {
			snprintf(reason, RANKS_REASON_MAX, "the launcher started %ld ranks (%s), "
				 "--tensor-parallel says %u", world, names[i][1], count);
			return -ERR_BAD_ARG;
		}
		if (strlen(address) >= sizeof out->address || !port || !*port ||
		    strlen(port) >= sizeof out->port) {
			snprintf(reason, RANKS_REASON_MAX,
				 "MASTER_ADDR is set, so MASTER_PORT must say the port of rank 0");
			return -ERR_BAD_ARG;
		}
		if (number_of(names[i][3], &beside) && beside >= 1 && beside <= world)
			out->local_count = (uint32_t)beside;
		out->rank = (uint32_t)rank;
		out->local = (uint32_t)local;
		out->launched = true;
		snprintf(out->address, sizeof out->address, "%s", address);
		snprintf(out->port, sizeof out->port, "%s", port);
		return 0;
	}
	return 0;
}

/* A started rank ends with its parent, and leaves the terminal's signals to it. */
static void child_begin(struct ranks *r, uint32_t rank, pid_t parent)
{
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (getppid() != parent)
		_exit(1);
	signal(SIGINT, SIG_IGN);
	signal(SIGTERM, SIG_IGN);
	signal(SIGHUP, SIG_IGN);
	memset(r->child, 0, sizeof r->child);
	r->parent = parent;
	r->rank = r->local = rank;
	room_collective(r);
}

static int ranks_fork(struct ranks *r, char *reason)
{
	const pid_t parent = getpid();
	int code = ranks_room_open(r->count, &r->room);
	if (code != 0) {
		snprintf(reason, RANKS_REASON_MAX, "no shared memory for %u ranks", r->count);
		return code;
	}
	r->room_owned = true;
	r->local_count = r->count;
	room_collective(r);
	fflush(NULL);
	for (uint32_t i = 1; i < r->count; i++) {
		const pid_t pid = fork();
		if (pid == 0) {
			child_begin(r, i, parent);
			return 0;
		}
		if (pid < 0) {
			snprintf(reason, RANKS_REASON_MAX, "rank %u cannot be started: %s", i, strerror(errno));
			return -ERR_IO;
		}
		r->child[i] = pid;
	}
	return 0;
}

int ranks_start(uint32_t count, struct ranks **out, char *reason)
{
	struct ranks_place place;
	TRY(ranks_place(count, &place, reason));
	struct ranks *r = calloc(1, sizeof *r);
	snprintf(reason, RANKS_REASON_MAX, "no memory");
	if (!r)
		return -ERR_MEMORY;
	CHECK(count <= SPLIT_RANKS_MAX);
	r->count = count;
	r->rank = place.rank;
	r->local = place.local;
	r->local_count = place.local_count;
	for (uint32_t i = 0; i < SPLIT_RANKS_MAX; i++)
		r->fd[i] = -1;
	const int code = place.launched ? stream_meet(r, &place, reason) : ranks_fork(r, reason);
	*out = r;
	if (code != 0)
		ranks_close(out);
	return code;
}

void ranks_goodbye_limit(struct ranks *r, uint32_t ms)
{
	r->goodbye_ms = ms;
}

/* Waits for a child's end for so long, then ends it: one that hangs keeps nobody. */
static void child_end(pid_t child, uint32_t ms)
{
	const struct timespec pause = {.tv_nsec = 5 * 1000 * 1000};
	for (uint32_t waited = 0; waited < ms; waited += 5) {
		if (waitpid(child, NULL, WNOHANG) != 0)
			return;
		nanosleep(&pause, NULL);
	}
	kill(child, SIGKILL);
	waitpid(child, NULL, 0);
}

void ranks_close(struct ranks **ranks)
{
	struct ranks *r = *ranks;
	if (!r)
		return;
	for (uint32_t i = 0; i < SPLIT_RANKS_MAX; i++) {
		if (r->fd[i] >= 0)
			close(r->fd[i]);
		if (!r->child[i])
			continue;
		/* One that was told to end does; one that waits for others that are gone would not. */
		const bool left = r->ready && !r->late && !atomic_load(&r->gone);
		child_end(r->child[i], !left ? 0 : r->goodbye_ms ? r->goodbye_ms : RANKS_GOODBYE_MS);
	}
	if (r->room_owned)
		ranks_room_close(&r->room);
	free(r->stream);
	free(r->block);
	free(r);
	*ranks = NULL;
}

uint32_t ranks_rank(const struct ranks *ranks)
{
	return ranks->rank;
}

uint32_t ranks_count(const struct ranks *ranks)
{
	return ranks->count;
}

uint32_t ranks_local(const struct ranks *ranks)
{
	return ranks->local;
}

uint32_t ranks_local_count(const struct ranks *ranks)
{
	return ranks->local_count;
}

const struct collective *ranks_collective(const struct ranks *ranks)
{
	return &ranks->collective;
}

int ranks_lost(struct ranks *r, uint32_t rank)
{
	int none = 0;
	atomic_compare_exchange_strong(&r->gone, &none, (int)rank + 1);
	return -ERR_INTERNAL;
}

int ranks_look(const struct ranks *r)
{
	for (uint32_t i = 0; i < r->count; i++) {
		siginfo_t info = {0};
		char byte;
		if (r->child[i] && waitid(P_PID, (id_t)r->child[i], &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
		    info.si_pid == r->child[i])
			return (int)i;
		if (r->fd[i] >= 0 && recv(r->fd[i], &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0)
			return (int)i;
	}
	return r->parent && getppid() != r->parent ? 0 : -1;
}

int ranks_gone(struct ranks *r, bool look)
{
	const int found = look && atomic_load(&r->gone) == 0 ? ranks_look(r) : -1;
	if (found >= 0)
		ranks_lost(r, (uint32_t)found);
	return atomic_load(&r->gone) - 1;
}

struct said {
	int32_t code;
	char reason[252];
};

int ranks_agree(struct ranks *r, int code, char *reason, size_t room)
{
	struct said mine = {.code = code}, *heard = calloc(r->count, sizeof *heard);
	if (!heard)
		return -ERR_MEMORY;
	if (code != 0)
		snprintf(mine.reason, sizeof mine.reason, "%.*s", (int)sizeof mine.reason - 1, reason);
	const int met = r->collective.gather(r->collective.self, &mine, sizeof mine, heard);
	uint32_t i = 0;
	while (met == 0 && i < r->count && heard[i].code == 0)
		i++;
	int result = 0;
	if (met != 0) {
		const int gone = ranks_gone(r, false);
		result = met;
		if (code == 0)
			snprintf(reason, room, "rank %d of %u ended", gone < 0 ? 0 : gone, r->count);
	} else if (i < r->count) {
		result = heard[i].code;
		if (i == r->rank)
			snprintf(reason, room, "%.250s", heard[i].reason);
		else
			snprintf(reason, room, "rank %u: %.250s", i, heard[i].reason);
	}
	free(heard);
	return result;
}

int ranks_same(struct ranks *r, const void *bytes, size_t count, const char *what, char *reason, size_t room)
{
	uint8_t *all = malloc(count * r->count);
	if (!all)
		return -ERR_MEMORY;
	int code = r->collective.gather(r->collective.self, bytes, count, all);
	if (code != 0)
		snprintf(reason, room, "a rank of %u ended", r->count);
	for (uint32_t i = 1; code == 0 && i < r->count; i++)
		if (memcmp(all, all + i * count, count) != 0) {
			snprintf(reason, room, "rank %u has another %s than rank 0", i, what);
			code = -ERR_BAD_ARG;
		}
	free(all);
	return code;
}

void ranks_ready(struct ranks *r)
{
	r->ready = true;
}

int ranks_give_up(struct ranks *r)
{
	if (r->room)
		ranks_lose(r->room, r->rank);
	return ranks_lost(r, r->rank);
}

int ranks_alive(void *self)
{
	struct ranks *r = self;
	return ranks_gone(r, true) < 0 ? 0 : -ERR_INTERNAL;
}
