/*
 * What a front process before the daemon would cost: 32 messages of a token each, every 5 ms, to one
 * reader, from who has the ROUTER himself, and from one who hands each over a SEQPACKET socket to a
 * process that has it.
 *
 *	bench_front
 *
 * Says how old a message is when it is read, and what processor time all but the reader take for it.
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <zmq.h>

enum { STREAMS = 32, ROUNDS = 800, EVERY_US = 5000 };

struct message {
	char head[24];
	double made;
	char rest[8];
};

static char endpoint[96];

static void fail(const char *what)
{
	fprintf(stderr, "bench_front: %s: %s\n", what, strerror(errno));
	exit(1);
}

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static double cpu_of(const struct rusage *r)
{
	return (double)(r->ru_utime.tv_sec + r->ru_stime.tv_sec) +
	       (double)(r->ru_utime.tv_usec + r->ru_stime.tv_usec) * 1e-6;
}

static int smaller(const void *a, const void *b)
{
	const double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

static void reader(void)
{
	static double age[STREAMS * ROUNDS];
	struct message m;
	const int most = 0, count = STREAMS * ROUNDS;
	void *s = zmq_socket(zmq_ctx_new(), ZMQ_DEALER);
	if (!s || zmq_setsockopt(s, ZMQ_RCVHWM, &most, sizeof most) || zmq_connect(s, endpoint) ||
	    zmq_send(s, "x", 1, 0) < 0)
		fail("the reader");
	for (int i = 0; i < count; i++) {
		if (zmq_recv(s, m.head, sizeof m.head, 0) < 0 || zmq_recv(s, &m.made, sizeof m.made, 0) < 0 ||
		    zmq_recv(s, m.rest, sizeof m.rest, 0) < 0)
			fail("nothing comes");
		age[i] = (now() - m.made) * 1e6;
	}
	qsort(age, (size_t)count, sizeof *age, smaller);
	printf("p10 %.0f us, p50 %.0f us, p99 %.0f us", age[count / 10], age[count / 2],
	       age[count / 100 * 99]);
	fflush(stdout);
	_exit(0);
}

/* A ROUTER, and who said something to it. */
static void *router_open(char id[64], size_t *length)
{
	char word[8];
	void *s = zmq_socket(zmq_ctx_new(), ZMQ_ROUTER);
	if (!s || zmq_bind(s, endpoint))
		fail("a socket");
	const int n = zmq_recv(s, id, 64, 0);
	if (n < 0 || zmq_recv(s, word, sizeof word, 0) < 0)
		fail("nobody comes");
	*length = (size_t)n;
	return s;
}

static void pass_on(void *s, const char *id, size_t length, const struct message *m)
{
	zmq_send(s, id, length, ZMQ_SNDMORE);
	zmq_send(s, m->head, sizeof m->head, ZMQ_SNDMORE);
	zmq_send(s, &m->made, sizeof m->made, ZMQ_SNDMORE);
	zmq_send(s, m->rest, sizeof m->rest, 0);
}

static void front(int fd)
{
	char id[64];
	size_t length;
	struct message m;
	void *s = router_open(id, &length);
	if (write(fd, "x", 1) != 1)
		fail("the front");
	while (read(fd, &m, sizeof m) == (ssize_t)sizeof m)
		pass_on(s, id, length, &m);
	usleep(200000);
	_exit(0);
}

static void run(int with_front)
{
	int pair[2], status;
	char id[64], word;
	size_t length = 0;
	void *s = NULL;
	struct message m = {.made = 0};
	struct rusage before, after, theirs = {.ru_maxrss = 0};
	const struct timespec rest = {.tv_nsec = EVERY_US * 1000};
	if (socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair))
		fail("a pair");
	const pid_t reads = fork();
	if (reads == 0)
		reader();
	const pid_t fronts = with_front ? fork() : 0;
	if (with_front && fronts == 0) {
		close(pair[0]);
		front(pair[1]);
	}
	close(pair[1]);
	if (!with_front)
		s = router_open(id, &length);
	else if (read(pair[0], &word, 1) != 1)
		fail("the front");
	getrusage(RUSAGE_SELF, &before);
	for (int round = 0; round < ROUNDS; round++) {
		nanosleep(&rest, NULL);
		m.made = now();
		for (int i = 0; i < STREAMS; i++)
			if (!with_front)
				pass_on(s, id, length, &m);
			else if (write(pair[0], &m, sizeof m) != (ssize_t)sizeof m)
				fail("the front");
	}
	waitpid(reads, &status, 0);
	getrusage(RUSAGE_SELF, &after);
	close(pair[0]);
	if (with_front)
		wait4(fronts, &status, 0, &theirs);
	printf("; %.1f us of processor time a message, of it %.1f in the front\n",
	       (cpu_of(&after) - cpu_of(&before) + cpu_of(&theirs)) * 1e6 / (STREAMS * ROUNDS),
	       cpu_of(&theirs) * 1e6 / (STREAMS * ROUNDS));
}

int main(void)
{
	char home[] = "/dev/shm/hf-front-XXXXXX";
	if (!mkdtemp(home))
		fail("a folder");
	snprintf(endpoint, sizeof endpoint, "ipc://%s/s", home);
	for (int i = 0; i < 4; i++) {
		printf("%s: ", i % 2 ? "by a front" : "its own ROUTER");
		fflush(stdout);
		const pid_t child = fork();
		if (child == 0) {
			run(i % 2);
			fflush(stdout);
			_exit(0);
		}
		waitpid(child, NULL, 0);
		unlink(endpoint + 6);
	}
	rmdir(home);
	return 0;
}
